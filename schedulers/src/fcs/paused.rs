//! Paused reduces, and how many offers each has let pass for the sake of its own node.

use mrcore::{
    Cluster, Fact, Phase,
    ids::{JobId, TaskId},
};
use std::collections::BTreeMap;

/// A job's paused reduces that wait, the one that was paused first first.
///
/// The paper counts up every paused reduce of a job that an offer passes by. Here the job counts, and each reduce
/// remembers where the count stood when it was paused: the same numbers, at one addition an offer.
#[derive(Debug, Default)]
struct Line {
    passed: u64,
    waiting: Vec<(u32, u64)>,
}

#[derive(Debug, Default)]
pub(super) struct Paused {
    jobs: BTreeMap<JobId, Line>,
}

impl Paused {
    pub(super) fn observe(&mut self, fact: &Fact, cluster: &Cluster) {
        match fact {
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => {
                self.jobs.remove(job);
            }
            Fact::AttemptLaunched { attempt, .. }
            | Fact::AttemptRecalled { attempt, .. }
            | Fact::AttemptPaused { attempt, .. }
            | Fact::AttemptSucceeded { attempt, .. }
            | Fact::AttemptFailed { attempt, .. }
            | Fact::AttemptKilled { attempt, .. }
            | Fact::CheckpointLost { attempt, .. } => self.see(attempt.task, cluster),
            Fact::TaskReleased { task } => self.see(*task, cluster),
            // Counts are of a time that is over.
            Fact::JobTrackerStarted { .. } => {
                for line in self.jobs.values_mut() {
                    line.waiting.iter_mut().for_each(|(_, at)| *at = line.passed);
                }
            }
            _ => {}
        }
    }

    /// Sets what is kept of a task to what the cluster shows.
    fn see(&mut self, id: TaskId, cluster: &Cluster) {
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
        let line = self.jobs.entry(id.job).or_default();
        let at = line.waiting.iter().position(|(index, _)| *index == id.index);
        match (waits, at) {
            (true, None) => line.waiting.push((id.index, line.passed)),
            (false, Some(at)) => {
                line.waiting.remove(at);
            }
            _ => {}
        }
    }

    pub(super) fn count(&self, job: JobId) -> usize {
        self.jobs.get(&job).map_or(0, |line| line.waiting.len())
    }

    /// A job's paused reduces, oldest first.
    pub(super) fn of(&self, job: JobId) -> impl Iterator<Item = u32> + '_ {
        self.jobs.get(&job).into_iter().flat_map(|line| &line.waiting).map(|(index, _)| *index)
    }

    /// Those that have let more than so many offers pass (with 0: all).
    pub(super) fn tired(&self, job: JobId, most: u64) -> impl Iterator<Item = u32> + '_ {
        let line = self.jobs.get(&job);
        let passed = line.map_or(0, |line| line.passed);
        let waiting = line.into_iter().flat_map(|line| &line.waiting);
        waiting.take_while(move |(_, at)| most == 0 || passed - at > most).map(|(index, _)| *index)
    }

    /// An offer has passed a job's paused reduces by.
    pub(super) fn pass(&mut self, job: JobId) {
        if let Some(line) = self.jobs.get_mut(&job) {
            line.passed += 1;
        }
    }

    /// How many offers the oldest has let pass.
    pub(super) fn passed(&self, job: JobId) -> Option<u64> {
        let line = self.jobs.get(&job)?;
        line.waiting.first().map(|(_, at)| line.passed - at)
    }
}
