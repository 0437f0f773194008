//! Determines which tasks are still authorised. The token of a task contains its job. The
//! JobTracker sends the NameNode the list of active jobs; tokens of tasks of other jobs are
//! rejected, even before they expire.
//!
//! The list is only in memory. Until the first list after a start arrives, every valid token is
//! accepted. A job that is newer than the list is accepted too, so that no list has to be sent
//! before a job starts.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// The last list of active jobs from a JobTracker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActiveJobs {
    /// Epoch of the JobTracker; lists with an older epoch are ignored.
    pub epoch: u64,
    /// ID of the next job. Jobs with this ID or a higher one are newer than the list.
    pub next: u64,
    /// IDs of the active jobs.
    pub live: BTreeSet<u64>,
}

/// Lists of active jobs by scope. A scope identifies the journal of a JobTracker.
#[derive(Debug, Default)]
pub struct Jobs(Mutex<BTreeMap<String, ActiveJobs>>);

impl Jobs {
    /// Replaces the list of a JobTracker. Returns false if the known list has a newer epoch.
    pub fn update(&self, scope: &str, active: ActiveJobs) -> bool {
        let mut all = self.0.lock();
        if all.get(scope).is_some_and(|known| known.epoch > active.epoch) {
            return false;
        }
        all.insert(scope.to_owned(), active);
        true
    }

    /// Returns whether a job, named as in [`crate::job_name_of`], is known to have ended.
    pub(crate) fn has_ended(&self, name: &str) -> bool {
        let Some((scope, job)) = name.rsplit_once('/') else { return false };
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
        assert!(!jobs.has_ended(&job_name_of("a", 3)), "there is no list yet");
        assert!(jobs.update("a", active(2, 5, &[3])));
        assert!(!jobs.has_ended("a/3") && jobs.has_ended("a/4") && jobs.has_ended("a/1"));
        assert!(!jobs.has_ended("a/5"), "the job may have started after the list was sent");
        assert!(!jobs.has_ended("b/4"), "a job of another JobTracker");
        assert!(!jobs.update("a", active(1, 9, &[])), "a list with an older epoch");
        assert!(!jobs.has_ended("a/3"));
        assert!(jobs.update("a", active(2, 6, &[])));
        assert!(jobs.has_ended("a/3") && jobs.has_ended("a/5"));
    }
}
