//! Which jobs' tasks are still authorized. A task's token names its job. The JobTracker sends the NameNode the list of
//! unfinished jobs; tokens of all other jobs are rejected, even before they expire.
//!
//! The list is kept in memory only. Until the first list after a start arrives, every valid token is accepted. A job
//! that is newer than the list is accepted too, so that no list has to be sent before a job starts.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// What one who runs jobs has said last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActiveJobs {
    /// Of which start of it: an older one has nothing to say.
    pub epoch: u64,
    /// The number that the next job will have.
    pub next: u64,
    /// Active jobs.
    pub live: BTreeSet<u64>,
}

/// By scope: the name of a journal of jobs.
#[derive(Debug, Default)]
pub struct Jobs(Mutex<BTreeMap<String, ActiveJobs>>);

/// A job, as a task's token names it.
pub fn job_name_of(scope: &str, job: u64) -> String {
    format!("{scope}/{job}")
}

impl Jobs {
    /// One who runs jobs says how they stand. False if a newer start of it has spoken.
    pub fn update(&self, scope: &str, active: ActiveJobs) -> bool {
        let mut all = self.0.lock();
        if all.get(scope).is_some_and(|known| known.epoch > active.epoch) {
            return false;
        }
        all.insert(scope.to_owned(), active);
        true
    }

    /// Whether the job of a genuine token is known to be over.
    pub(crate) fn is_over(&self, word: &str) -> bool {
        let Some((scope, job)) = word.rsplit_once('/') else { return false };
        let Ok(job) = job.parse() else { return false };
        self.0.lock().get(scope).is_some_and(|active| job < active.next && !active.live.contains(&job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_over_when_its_own_jobtracker_says_so() {
        let jobs = Jobs::default();
        let active =
            |epoch, next, live: &[u64]| ActiveJobs { epoch, next, live: live.iter().copied().collect() };
        assert!(!jobs.is_over(&job_name_of("a", 3)), "nothing was said yet");
        assert!(jobs.update("a", active(2, 5, &[3])));
        assert!(!jobs.is_over("a/3") && jobs.is_over("a/4") && jobs.is_over("a/1"));
        assert!(!jobs.is_over("a/5"), "it may have begun since");
        assert!(!jobs.is_over("b/4"), "another's");
        assert!(!jobs.update("a", active(1, 9, &[])), "an older start of it, woken up");
        assert!(!jobs.is_over("a/3"));
        assert!(jobs.update("a", active(2, 6, &[])));
        assert!(jobs.is_over("a/3") && jobs.is_over("a/5"));
    }
}
