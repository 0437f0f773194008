//! Answers kept so that a repeated request is recognised: those of the last minutes, whatever the load, up to a
//! number that bounds memory (about 100 bytes each). The oldest goes first.

use crate::{ids::RequestId, namenode::op::Outcome};
use std::collections::{BTreeMap, VecDeque};

/// How long an answer is kept, by the time of records: longer than anybody repeats a request.
const KEEP_MS: u64 = 10 * 60 * 1000;
/// This many are kept however old they are: a clock set forward must not throw out all at once.
const KEEP_MIN: usize = 10_000;
/// How many are kept when nobody says otherwise.
const LIMIT: usize = 1_000_000;

/// Requests answered lately.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    known: BTreeMap<RequestId, Outcome>,
    /// With the time of each, oldest first.
    order: VecDeque<(RequestId, u64)>,
    limit: usize,
}

impl Default for Answers {
    fn default() -> Self {
        Self { known: BTreeMap::new(), order: VecDeque::new(), limit: LIMIT }
    }
}

/// Two are equal when they know the same: the limit is a setting, not knowledge.
impl PartialEq for Answers {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order && self.known == other.known
    }
}

impl Answers {
    /// Keeps at most `limit` from now on.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.trim(0);
    }

    /// The answer given to this request.
    pub(super) fn get(&self, request: RequestId) -> Option<&Outcome> {
        self.known.get(&request)
    }

    /// Remembers an answer given at this time.
    pub(super) fn insert(&mut self, request: RequestId, at_ms: u64, outcome: Outcome) {
        if self.known.insert(request, outcome).is_none() {
            self.order.push_back((request, at_ms));
        }
        self.trim(at_ms);
    }

    /// All with their times, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestId, u64, &Outcome)> {
        self.order.iter().filter_map(|(request, at_ms)| Some((*request, *at_ms, self.known.get(request)?)))
    }

    fn trim(&mut self, now_ms: u64) {
        while let Some((oldest, at_ms)) = self.order.front().copied() {
            let old = self.order.len() > KEEP_MIN && at_ms.saturating_add(KEEP_MS) < now_ms;
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
    fn the_oldest_goes_first() {
        let mut answers = Answers::default();
        answers.set_limit(2);
        for id in 1..=3 {
            answers.insert(RequestId(id), 0, Outcome::Existed(id == 1));
        }
        assert_eq!(answers.get(RequestId(1)), None);
        assert_eq!(answers.get(RequestId(3)), Some(&Outcome::Existed(false)));
        assert_eq!(answers.iter().map(|(id, ..)| id.0).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn age_decides_whatever_the_load() {
        let mut answers = Answers::default();
        // Ten thousand a second for a minute: all are kept.
        for id in 0..600_000 {
            answers.insert(RequestId(id), id as u64 / 10, Outcome::Done);
        }
        assert!(answers.get(RequestId(0)).is_some());
        // Long after, they go, but for the last: the clock may have been set.
        answers.insert(RequestId(700_000), 100 * KEEP_MS, Outcome::Done);
        assert_eq!(answers.iter().count(), KEEP_MIN);
        assert!(answers.get(RequestId(599_999)).is_some() && answers.get(RequestId(0)).is_none());
    }
}
