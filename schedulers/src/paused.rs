//! Paused reduces, and how many offers of other nodes each of them has skipped.

use mrcore::{
    Cluster, Fact, Phase,
    ids::{JobId, TaskId},
};
use std::collections::BTreeMap;

/// The paused reduces of a job that are pending, in the order in which they were paused.
///
/// FCS increments a counter of every paused reduce of a job with each skipped offer. Here the job
/// has one counter, and each reduce stores the value of the counter at the time of its pause. The
/// resulting numbers are the same, but an offer needs only one addition. `coda` does not count
/// offers.
#[derive(Debug, Default)]
struct PausedQueue {
    /// Number of offers that the job has skipped.
    skipped_offers: u64,
    /// The index of each paused reduce, and the value of `skipped_offers` when it was paused.
    waiting: Vec<(u32, u64)>,
}

#[derive(Debug, Default)]
pub(crate) struct PausedReduces {
    jobs: BTreeMap<JobId, PausedQueue>,
}

impl PausedReduces {
    pub(crate) fn observe(&mut self, fact: &Fact, cluster: &Cluster) {
        match fact {
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => {
                self.jobs.remove(job);
            }
            Fact::AttemptLaunched { attempt, .. }
            | Fact::PreemptionRequested { attempt, .. }
            | Fact::AttemptPaused { attempt, .. }
            | Fact::AttemptSucceeded { attempt, .. }
            | Fact::AttemptFailed { attempt, .. }
            | Fact::AttemptKilled { attempt, .. }
            | Fact::CheckpointLost { attempt, .. } => self.update(attempt.task, cluster),
            Fact::TaskReleased { task } => self.update(*task, cluster),
            // After a restart, counting starts again.
            Fact::JobTrackerStarted { .. } => {
                for queue in self.jobs.values_mut() {
                    queue.waiting.iter_mut().for_each(|(_, at)| *at = queue.skipped_offers);
                }
            }
            _ => {}
        }
    }

    /// Updates the data of a task from the cluster.
    fn update(&mut self, id: TaskId, cluster: &Cluster) {
        if id.phase != Phase::Reduce {
            return;
        }
        let waits = cluster.job(id.job).is_some_and(|job| {
            job.is_running()
                && job.pending.reduce.contains(id.index)
                && job.task(id).is_some_and(|task| task.checkpoint.is_some())
        });
        if !waits && !self.jobs.contains_key(&id.job) {
            return;
        }
        let queue = self.jobs.entry(id.job).or_default();
        let at = queue.waiting.iter().position(|(index, _)| *index == id.index);
        match (waits, at) {
            (true, None) => queue.waiting.push((id.index, queue.skipped_offers)),
            (false, Some(at)) => {
                queue.waiting.remove(at);
            }
            _ => {}
        }
    }

    pub(crate) fn count_of(&self, job: JobId) -> usize {
        self.jobs.get(&job).map_or(0, |queue| queue.waiting.len())
    }

    /// Returns the paused reduces of a job, oldest first.
    pub(crate) fn tasks_of(&self, job: JobId) -> impl Iterator<Item = u32> + '_ {
        self.jobs.get(&job).into_iter().flat_map(|queue| &queue.waiting).map(|(index, _)| *index)
    }

    /// Returns the paused reduces of a job that have skipped more than `max` offers; with 0, all
    /// paused reduces of the job.
    pub(crate) fn skipped_more_than(&self, job: JobId, max: u64) -> impl Iterator<Item = u32> + '_ {
        let queue = self.jobs.get(&job);
        let skipped = queue.map_or(0, |queue| queue.skipped_offers);
        let waiting = queue.into_iter().flat_map(|queue| &queue.waiting);
        waiting.take_while(move |(_, at)| max == 0 || skipped - at > max).map(|(index, _)| *index)
    }

    /// Counts a slot offer that was not used for any paused reduce of the job.
    pub(crate) fn skip_offer(&mut self, job: JobId) {
        if let Some(queue) = self.jobs.get_mut(&job) {
            queue.skipped_offers += 1;
        }
    }

    /// Returns the number of offers that the oldest paused reduce has skipped.
    pub(crate) fn skipped_offers(&self, job: JobId) -> Option<u64> {
        let queue = self.jobs.get(&job)?;
        queue.waiting.first().map(|(_, at)| queue.skipped_offers - at)
    }
}
