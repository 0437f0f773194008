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

/// Seconds that a job's maps take: of those that are done, and of those that run what their progress promises.
/// Nothing before there is any.
pub fn map_seconds(job: &Job, now: Time, cluster: &Cluster) -> Option<f64> {
    let mut mean = Mean::default();
    mean.add_many(job.took.map.as_secs_f64(), f64::from(job.succeeded.map));
    for attempt in running(job, Phase::Map, cluster) {
        mean.add_many(promised(attempt, attempt.launched, now).unwrap_or(0.0), weight(attempt));
    }
    mean.value()
}

/// Seconds that a job's reduces take, as far as that can be measured: of those that are done, and, once all maps
/// are, of those that run, counted from then. Before, a running reduce mostly waits, and its progress tells nothing.
pub fn reduce_seconds(job: &Job, now: Time, cluster: &Cluster) -> Option<f64> {
    let mut mean = Mean::default();
    mean.add_many(job.took.reduce.as_secs_f64(), f64::from(job.succeeded.reduce));
    if let Some(maps_done) = job.maps_done {
        for attempt in running(job, Phase::Reduce, cluster) {
            let from = attempt.launched.max(maps_done);
            mean.add_many(promised(attempt, from, now).unwrap_or(0.0), weight(attempt));
        }
    }
    mean.value()
}

fn running<'a>(job: &'a Job, phase: Phase, cluster: &'a Cluster) -> impl Iterator<Item = &'a Attempt> {
    let attempts = job.running[phase].iter().filter_map(|id| cluster.attempt(*id));
    attempts.filter(|attempt| attempt.state == AttemptState::Running)
}

/// One that has made no progress yet promises nothing.
fn weight(attempt: &Attempt) -> f64 {
    if attempt.progress.done > 0.0 { 1.0 } else { 0.0 }
}

/// How long an attempt will have taken at the rate so far.
fn promised(attempt: &Attempt, from: Time, now: Time) -> Option<f64> {
    let done = f64::from(attempt.progress.done);
    (done > 0.0).then(|| now.since(from).as_secs_f64() / done)
}

/// Bytes that maps of each job have read and written, for how much comes to its reduces.
#[derive(Debug, Default)]
pub struct Flow {
    jobs: BTreeMap<JobId, (f64, f64)>,
}

impl Flow {
    /// To be told every fact.
    pub fn observe(&mut self, fact: &Fact, cluster: &Cluster) {
        match fact {
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
            }
            _ => {}
        }
    }

    /// Bytes out of a job's maps for each byte in; 1 before anything is known.
    pub fn selectivity(&self, job: JobId) -> f64 {
        let known = self.jobs.get(&job).filter(|(bytes_in, _)| *bytes_in > 0.0);
        known.map_or(1.0, |(bytes_in, bytes_out)| bytes_out / bytes_in)
    }

    /// Bytes that each reduce of a job will get, by what its maps have brought so far.
    pub fn bytes_per_reduce(&self, job: &Job) -> f64 {
        input_bytes(job) * self.selectivity(job.id) / f64::from(job.spec.reduces.max(1))
    }
}

/// Bytes of a job's input.
pub fn input_bytes(job: &Job) -> f64 {
    job.spec.splits.iter().map(|split| (split.end - split.start) as f64).sum()
}

/// Tasks that are not done.
pub fn left(job: &Job, phase: Phase) -> f64 {
    (job.tasks[phase].len() - job.succeeded[phase] as usize) as f64
}
