//! Determines which tasks are still authorised. The token of a task contains its job. The
//! JobTracker sends the NameNode the list of active jobs; tokens of all other jobs are rejected,
//! even before they expire.
//!
//! The list is only in memory. Until the first list after a start arrives, every valid token is
//! accepted. A job that is newer than the list is accepted too, so that no list has to be sent
//! before a job starts.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// The last list of a JobTracker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActiveJobs {
    /// Epoch of the JobTracker; lists with an older epoch are ignored.
    pub epoch: u64,
    /// Number of the next job.
    pub next: u64,
    /// Active jobs.
    pub live: BTreeSet<u64>,
}

/// Lists by scope, which identifies the journal of a JobTracker.
#[derive(Debug, Default)]
pub struct Jobs(Mutex<BTreeMap<String, ActiveJobs>>);

impl Jobs {
    /// Updates the list of a JobTracker. Returns false if a list with a newer epoch exists.
    pub fn update(&self, scope: &str, active: ActiveJobs) -> bool {
        let mut all = self.0.lock();
        if all.get(scope).is_some_and(|known| known.epoch > active.epoch) {
            return false;
        }
        all.insert(scope.to_owned(), active);
        true
    }

    /// Whether the job of a valid token is known to have ended.
    pub(crate) fn is_over(&self, word: &str) -> bool {
        let Some((scope, job)) = word.rsplit_once('/') else { return false };
        let Ok(job) = job.parse() else { return false };
        self.0.lock().get(scope).is_some_and(|active| job < active.next && !active.live.contains(&job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_name_of;

    #[test]
    fn job_has_ended_when_its_jobtracker_no_longer_lists_it() {
        let jobs = Jobs::default();
        let active =
            |epoch, next, live: &[u64]| ActiveJobs { epoch, next, live: live.iter().copied().collect() };
        assert!(!jobs.is_over(&job_name_of("a", 3)), "there is no list yet");
        assert!(jobs.update("a", active(2, 5, &[3])));
        assert!(!jobs.is_over("a/3") && jobs.is_over("a/4") && jobs.is_over("a/1"));
        assert!(!jobs.is_over("a/5"), "it may have started since");
        assert!(!jobs.is_over("b/4"), "another's");
        assert!(!jobs.update("a", active(1, 9, &[])), "a list with an older epoch");
        assert!(!jobs.is_over("a/3"));
        assert!(jobs.update("a", active(2, 6, &[])));
        assert!(jobs.is_over("a/3") && jobs.is_over("a/5"));
    }
}
