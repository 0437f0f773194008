//! Estimates task durations: measured for tasks that are done, projected for running tasks.

use mrcore::{
    Cluster, Fact, Phase, Time,
    ids::JobId,
    job::Job,
    task::{Attempt, AttemptState},
};
use std::collections::BTreeMap;

/// A running mean.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mean {
    /// The sum of the values.
    pub sum: f64,
    /// The number of values.
    pub count: f64,
}

impl Mean {
    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1.0;
    }

    /// Adds several values by their sum.
    pub fn add_many(&mut self, sum: f64, count: f64) {
        self.sum += sum;
        self.count += count;
    }

    /// Returns the mean, if there are values.
    pub fn value(self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

/// A running reduce with less progress than this since the maps were done is not used for a
/// projection. Its progress consists of three equal parts for its stages, which do not take equal
/// times.
const PROJECTED_PROGRESS_MIN: f64 = 0.1;

/// Returns the mean duration of the maps of a job in seconds. The duration is measured for maps
/// that are done, and projected from their progress for running maps. Returns `None` if no map is
/// done and none has progress.
pub fn map_seconds(job: &Job, now: Time, cluster: &Cluster) -> Option<f64> {
    task_seconds(job, Phase::Map, now, cluster)
}

/// Returns the mean duration of the tasks of a phase in seconds, each from its launch. For reduces
/// this includes the wait for the last map; [`reduce_seconds`] does not.
pub fn task_seconds(job: &Job, phase: Phase, now: Time, cluster: &Cluster) -> Option<f64> {
    let mut mean = Mean::default();
    mean.add_many(job.task_time[phase].as_secs_f64(), f64::from(job.succeeded[phase]));
    for (attempt, done) in running(job, phase, cluster) {
        if done > 0.0 {
            mean.add(now.since(attempt.launched).as_secs_f64() / done);
        }
    }
    mean.value()
}

/// Returns the mean duration of the reduces of a job in seconds ([`reduce_times`]). Returns `None` if
/// no reduce is done and none has enough progress.
pub fn reduce_seconds(job: &Job, now: Time, cluster: &Cluster) -> Option<f64> {
    reduce_times(job, now, cluster).value()
}

/// Returns the durations of the reduces of a job in seconds, counted from when all maps are done
/// ([`Job::reduce_time`]). The duration is measured for reduces that are done, and projected from
/// their progress since then for running reduces with enough progress.
pub fn reduce_times(job: &Job, now: Time, cluster: &Cluster) -> Mean {
    let mut mean = Mean::default();
    mean.add_many(job.reduce_times.0.as_secs_f64(), f64::from(job.reduce_times.1));
    for (attempt, done) in running(job, Phase::Reduce, cluster) {
        if let (Some(time), done) =
            (job.reduce_time(attempt.id, now), progress_since_maps(job, attempt, done))
            && done >= PROJECTED_PROGRESS_MIN
        {
            mean.add(time.as_secs_f64() / done);
        }
    }
    mean
}

/// Returns the fraction of its work after the end of the maps that a reduce has done. A reduce that
/// started before the end of the maps had already fetched most of its input by then, which is the
/// first third of its progress.
fn progress_since_maps(job: &Job, attempt: &Attempt, done: f64) -> f64 {
    let began = first_launch_in_chain(job, attempt);
    match job.maps_done {
        Some(maps_done) if began < maps_done => ((done - 1.0 / 3.0) * 1.5).max(0.0),
        _ => done,
    }
}

/// Returns when the first attempt in the chain of attempts that resumed from each other was
/// launched.
fn first_launch_in_chain(job: &Job, attempt: &Attempt) -> Time {
    let Some(task) = job.task(attempt.id.task) else { return attempt.launched };
    let mut first = attempt;
    while let Some(before) = first.resumed_from.and_then(|paused| task.attempts.get(paused.number as usize)) {
        first = before;
    }
    first.launched
}

/// Returns the running attempts that are not being preempted, with their progress.
fn running<'a>(job: &'a Job, phase: Phase, cluster: &'a Cluster) -> impl Iterator<Item = (&'a Attempt, f64)> {
    let running = cluster.running(job, phase).filter(|(attempt, _)| attempt.state == AttemptState::Running);
    running.filter_map(|(attempt, progress)| Some((attempt, f64::from(progress?.done))))
}

/// Input bytes of each job, and bytes read and written by its maps. The input of its reduces is
/// estimated from them.
#[derive(Debug, Default)]
pub struct DataFlow {
    /// Bytes read and bytes written by the maps of each job that are done.
    map_bytes: BTreeMap<JobId, (f64, f64)>,
    /// Input bytes of each job.
    input_bytes: BTreeMap<JobId, f64>,
}

impl DataFlow {
    /// Observes a fact. Must be called with every fact.
    pub fn observe(&mut self, fact: &Fact, cluster: &Cluster) {
        match fact {
            Fact::JobSubmitted { job, spec, .. } => {
                let bytes = spec.splits.iter().map(|split| (split.end - split.start) as f64);
                self.input_bytes.insert(*job, bytes.sum());
            }
            Fact::AttemptSucceeded { attempt, result } | Fact::MapSplit { attempt, result, .. }
                if attempt.phase() == Phase::Map =>
            {
                // The range of a task that was split ends at the split, so it is what the attempt
                // has read.
                let read = cluster.task(attempt.task).map_or(0, mrcore::task::Task::bytes);
                let (bytes_in, bytes_out) = self.map_bytes.entry(attempt.job()).or_default();
                *bytes_in += read as f64;
                *bytes_out += result.bytes_out as f64;
            }
            Fact::JobEnded { job, .. } | Fact::JobForgotten { job } => {
                self.map_bytes.remove(job);
                self.input_bytes.remove(job);
            }
            _ => {}
        }
    }

    /// Returns the number of input bytes of a job.
    pub fn input_bytes(&self, job: JobId) -> f64 {
        self.input_bytes.get(&job).copied().unwrap_or(0.0)
    }

    /// Returns the output bytes of the maps of a job per input byte; 1 before any map is done.
    pub fn selectivity(&self, job: JobId) -> f64 {
        let known = self.map_bytes.get(&job).filter(|(bytes_in, _)| *bytes_in > 0.0);
        known.map_or(1.0, |(bytes_in, bytes_out)| bytes_out / bytes_in)
    }

    /// Returns the number of bytes that each reduce of a job will get, estimated from the maps that
    /// are done.
    pub fn bytes_per_reduce(&self, job: &Job) -> f64 {
        self.input_bytes(job.id) * self.selectivity(job.id) / f64::from(job.spec.reduces.max(1))
    }
}

/// Returns the number of tasks of a phase that are not done.
pub fn remaining_tasks(job: &Job, phase: Phase) -> f64 {
    (job.tasks[phase].len() - job.succeeded[phase] as usize) as f64
}

/// Returns the number of slots of a phase that a job can use now: those that it holds, and one for
/// each pending task that may start. A task that waits after an interruption may not start.
pub fn demand(job: &Job, phase: Phase, cluster: &Cluster) -> f64 {
    let pending = &job.pending[phase];
    let delayed = cluster.delayed_tasks(job.id, phase).filter(|task| pending.contains(task.index));
    let waiting = if job.may_start(phase) { pending.len() - delayed.count() } else { 0 };
    (job.running[phase].len() + waiting) as f64
}

#[cfg(test)]
mod tests;
