//! Remembers the outcomes of recent requests, so that a repeated request is recognised. Outcomes of
//! the last minutes are kept, up to a limit that bounds memory (about 100 bytes each). The oldest
//! is removed first.

use crate::namenode::op::Outcome;
use dfs_client::ids::RequestId;
use std::collections::{BTreeMap, VecDeque};

/// How long an outcome is kept, according to the times of the records in the edit log: longer than
/// any client repeats a request.
const RETAIN_MS: u64 = 10 * 60 * 1000;
/// Number of outcomes that are kept regardless of their age, so that not all are removed if the
/// clock is set forward.
const RETAIN_MIN: usize = 10_000;
/// Default maximum number of outcomes.
const LIMIT_DEFAULT: usize = 1_000_000;

/// The outcomes of recent requests.
#[derive(Debug, Clone)]
pub(super) struct RetryCache {
    known: BTreeMap<RequestId, Outcome>,
    /// The requests with their time, oldest first.
    order: VecDeque<(RequestId, u64)>,
    limit: usize,
}

impl Default for RetryCache {
    fn default() -> Self {
        Self { known: BTreeMap::new(), order: VecDeque::new(), limit: LIMIT_DEFAULT }
    }
}

/// Compares only the contents: the limit is a setting.
impl PartialEq for RetryCache {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order && self.known == other.known
    }
}

impl RetryCache {
    /// Sets the maximum number of outcomes and removes the oldest ones above it.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.trim(0);
    }

    /// Returns the outcome of this request.
    pub(super) fn get(&self, request: RequestId) -> Option<&Outcome> {
        self.known.get(&request)
    }

    /// Adds the outcome of a request that was executed at `at_ms`.
    pub(super) fn insert(&mut self, request: RequestId, at_ms: u64, outcome: Outcome) {
        if self.known.insert(request, outcome).is_none() {
            self.order.push_back((request, at_ms));
        }
        self.trim(at_ms);
    }

    /// Returns all outcomes with their times, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestId, u64, &Outcome)> {
        self.order.iter().filter_map(|(request, at_ms)| Some((*request, *at_ms, self.known.get(request)?)))
    }

    fn trim(&mut self, now_ms: u64) {
        while let Some((oldest, at_ms)) = self.order.front().copied() {
            let old = self.order.len() > RETAIN_MIN && at_ms.saturating_add(RETAIN_MS) < now_ms;
            if !old && self.order.len() <= self.limit {
                return;
            }
            self.order.pop_front();
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_outcomes_are_evicted_first_at_the_limit() {
        let mut retry_cache = RetryCache::default();
        retry_cache.set_limit(2);
        for id in 1..=3 {
            retry_cache.insert(RequestId(id), 0, Outcome::Existed(id == 1));
        }
        assert_eq!(retry_cache.get(RequestId(1)), None);
        assert_eq!(retry_cache.get(RequestId(3)), Some(&Outcome::Existed(false)));
        assert_eq!(retry_cache.iter().map(|(id, ..)| id.0).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn outcomes_older_than_retain_ms_are_evicted_except_the_newest() {
        let mut retry_cache = RetryCache::default();
        // 10,000 requests per second for a minute: all are kept.
        for id in 0..600_000 {
            retry_cache.insert(RequestId(id), id as u64 / 10, Outcome::Done);
        }
        assert!(retry_cache.get(RequestId(0)).is_some());
        // After a long time, all but the last `RETAIN_MIN` are removed. Those are kept, because the
        // clock may have been set forward.
        retry_cache.insert(RequestId(700_000), 100 * RETAIN_MS, Outcome::Done);
        assert_eq!(retry_cache.iter().count(), RETAIN_MIN);
        assert!(retry_cache.get(RequestId(599_999)).is_some() && retry_cache.get(RequestId(0)).is_none());
    }
}
