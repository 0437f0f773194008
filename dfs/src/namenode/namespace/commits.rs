//! Remembers completed fenced commits (which move the output of a job into place), so that a
//! repeated commit is recognised even if its files have changed since.
//!
//! A commit is kept for [`RETAIN_MS`], which is much longer than the time in which a JobTracker
//! repeats a commit after a restart. At most [`COMMITS_MAX`] are kept; the oldest is removed first.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

/// How long a commit is kept, according to the times of the records in the edit log.
const RETAIN_MS: u64 = 30 * 24 * 3600 * 1000;
/// Number of commits that are kept regardless of their age, so that not all are removed if the
/// clock is set forward.
const RETAIN_MIN: usize = 1000;
/// Maximum number of commits that are kept. Each needs about 150 bytes of memory.
const COMMITS_MAX: usize = 100_000;

/// The scope of a commit, which names what a fence protects, and its ID. Shared by the set and the
/// queue.
type Key = Arc<(String, String)>;

/// The scopes and IDs of the latest commits.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Commits {
    known: BTreeSet<Key>,
    /// The commits with their time, oldest first.
    order: VecDeque<(Key, u64)>,
}

impl Commits {
    pub(super) fn contains(&self, scope: &str, commit_id: &str) -> bool {
        self.known.contains(&(scope.to_owned(), commit_id.to_owned()))
    }

    pub(super) fn insert(&mut self, scope: &str, commit_id: &str, at_ms: u64) {
        let key = Key::new((scope.to_owned(), commit_id.to_owned()));
        if self.known.insert(key.clone()) {
            self.order.push_back((key, at_ms));
        }
        while let Some((_, oldest_ms)) = self.order.front() {
            let old = self.order.len() > RETAIN_MIN && oldest_ms.saturating_add(RETAIN_MS) < at_ms;
            if !old && self.order.len() <= COMMITS_MAX {
                break;
            }
            if let Some((key, _)) = self.order.pop_front() {
                self.known.remove(&key);
            }
        }
    }

    /// Returns all commits, oldest first: scope, ID, time.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        self.order.iter().map(|(key, at_ms)| (key.0.as_str(), key.1.as_str(), *at_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_commits_are_removed_first_but_a_minimum_is_kept() {
        let mut commits = Commits::default();
        for number in 0..=COMMITS_MAX as u64 {
            commits.insert("jobs", &format!("job_{number}"), number);
        }
        assert_eq!(commits.iter().count(), COMMITS_MAX);
        assert!(!commits.contains("jobs", "job_0") && commits.contains("jobs", "job_1"));
        assert!(!commits.contains("others", "job_1"), "commit IDs are separate per scope");
        commits.insert("jobs", "late", 100 * RETAIN_MS);
        assert_eq!(commits.iter().count(), RETAIN_MIN);
        assert!(commits.contains("jobs", "late") && commits.contains("jobs", &format!("job_{COMMITS_MAX}")));
    }
}
