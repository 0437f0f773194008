//! What is known of how long tasks take: measured, of running ones projected, of new jobs borrowed.

use mrcore::{
    Cluster, Fact, Phase, Time,
    ids::JobId,
    job::Job,
    task::{Attempt, AttemptState},
};
use std::collections::BTreeMap;

/// A mean that is being gathered.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mean {
    /// The sum.
    pub sum: f64,
    /// Of so many.
    pub count: f64,
}

impl Mean {
    /// One more.
    pub fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1.0;
    }

    /// So many more of this mean.
    pub fn add_many(&mut self, sum: f64, count: f64) {
        self.sum += sum;
        self.count += count;
    }

    /// What it is, if there is any.
    pub fn value(self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

/// A reduce that has come less far than this since the maps were done promises nothing: its progress counts thirds, and
/// does not tell how long each takes.
const PREDICTABLE: f64 = 0.1;

/// Seconds that a job's maps take: of those that are done, and of those that run what their progress promises.
/// Nothing before there is any.
pub fn map_seconds(job: &Job, now: Time, cluster: &Cluster) -> Option<f64> {
    let mut mean = Mean::default();
    mean.add_many(job.task_time.map.as_secs_f64(), f64::from(job.succeeded.map));
    for attempt in running(job, Phase::Map, cluster) {
        let done = f64::from(attempt.progress.done);
        if done > 0.0 {
            mean.add(now.since(attempt.launched).as_secs_f64() / done);
        }
    }
    mean.value()
}

/// Seconds that a job's reduces take once all maps are done ([`Job::reduce_time`]): of those that are done, and of those that
/// run what their progress since then promises. Nothing before there is any.
pub fn reduce_seconds(job: &Job, now: Time, cluster: &Cluster) -> Option<f64> {
    let mut mean = Mean::default();
    mean.add_many(job.reduce_times.0.as_secs_f64(), f64::from(job.reduce_times.1));
    for attempt in running(job, Phase::Reduce, cluster) {
        if let (Some(time), done) = (job.reduce_time(attempt.id, now), since_maps(job, attempt))
            && done >= PREDICTABLE
        {
            mean.add(time.as_secs_f64() / done);
        }
    }
    mean.value()
}

/// The part that a reduce has done of what it had to do once all maps were done. One that began before had fetched
/// most by then: that is the first third of its progress.
fn since_maps(job: &Job, attempt: &Attempt) -> f64 {
    let done = f64::from(attempt.progress.done);
    let began = chain_began(job, attempt);
    match job.maps_done {
        Some(maps_done) if began < maps_done => ((done - 1.0 / 3.0) * 1.5).max(0.0),
        _ => done,
    }
}

/// When the first of the attempts whose state it continues from was launched.
fn chain_began(job: &Job, attempt: &Attempt) -> Time {
    let Some(task) = job.task(attempt.id.task) else { return attempt.launched };
    let mut first = attempt;
    while let Some(before) = first.from.and_then(|from| task.attempts.get(from.number as usize)) {
        first = before;
    }
    first.launched
}

fn running<'a>(job: &'a Job, phase: Phase, cluster: &'a Cluster) -> impl Iterator<Item = &'a Attempt> {
    let attempts = job.running[phase].iter().filter_map(|id| cluster.attempt(*id));
    attempts.filter(|attempt| attempt.state == AttemptState::Running)
}

/// Bytes of each job's input, and those that its maps have read and written: how much comes to its reduces.
#[derive(Debug, Default)]
pub struct Flow {
    jobs: BTreeMap<JobId, (f64, f64)>,
    inputs: BTreeMap<JobId, f64>,
}

impl Flow {
    /// To be told every fact.
    pub fn observe(&mut self, fact: &Fact, cluster: &Cluster) {
        match fact {
            Fact::JobSubmitted { job, spec, .. } => {
                let bytes = spec.splits.iter().map(|split| (split.end - split.start) as f64);
                self.inputs.insert(*job, bytes.sum());
            }
            Fact::AttemptSucceeded { attempt, result } | Fact::MapSplit { attempt, result, .. }
                if attempt.phase() == Phase::Map =>
            {
                // A split's task ends where it stood, so its range is what was read.
                let read = cluster.task(attempt.task).map_or(0, mrcore::task::Task::bytes);
                let (bytes_in, bytes_out) = self.jobs.entry(attempt.job()).or_default();
                *bytes_in += read as f64;
                *bytes_out += result.bytes_out as f64;
            }
            Fact::JobEnded { job, .. } | Fact::JobForgotten { job } => {
                self.jobs.remove(job);
                self.inputs.remove(job);
            }
            _ => {}
        }
    }

    /// Bytes of a job's input.
    pub fn input(&self, job: JobId) -> f64 {
        self.inputs.get(&job).copied().unwrap_or(0.0)
    }

    /// Bytes out of a job's maps for each byte in; 1 before anything is known.
    pub fn selectivity(&self, job: JobId) -> f64 {
        let known = self.jobs.get(&job).filter(|(bytes_in, _)| *bytes_in > 0.0);
        known.map_or(1.0, |(bytes_in, bytes_out)| bytes_out / bytes_in)
    }

    /// Bytes that each reduce of a job will get, by what its maps have brought so far.
    pub fn bytes_per_reduce(&self, job: &Job) -> f64 {
        self.input(job.id) * self.selectivity(job.id) / f64::from(job.spec.reduces.max(1))
    }
}

/// Tasks that are not done.
pub fn left(job: &Job, phase: Phase) -> f64 {
    (job.tasks[phase].len() - job.succeeded[phase] as usize) as f64
}

/// Slots of a phase that a job can use now: those it holds, and one for each task that may start.
pub fn demand(job: &Job, phase: Phase) -> f64 {
    let waiting = if job.may_start(phase) { job.pending[phase].len() } else { 0 };
    (job.running[phase].len() + waiting) as f64
}

#[cfg(test)]
mod tests;
