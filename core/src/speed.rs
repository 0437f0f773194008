//! How fast trackers are, measured from facts. After a restart the values are the same, as far as
//! the journal goes back.
//!
//! The rate of a map is the size of its range divided by its duration. The rate of a reduce is the
//! number of bytes that it wrote divided by the time since the last map ended. Programs differ by
//! orders of magnitude, so rates are compared within a job: the speed of an attempt is its rate
//! divided by the mean rate of its job so far. The speed of a tracker is the geometric mean of
//! these speeds.
//!
//! Deliberately absent: ageing. A machine that was repaired registers with the same name and keeps
//! its old measurements until its tracker is forgotten.

use crate::{
    cluster::Cluster,
    fact::{Entry, Fact},
    ids::{AttemptId, JobId, TrackerId},
    phase::{PerPhase, Phase},
    time::Time,
};
use std::collections::BTreeMap;

/// Bytes and seconds of a set of attempts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Throughput {
    /// Bytes of input for maps, of output for reduces.
    pub bytes: f64,
    /// Seconds, summed over the attempts.
    pub seconds: f64,
    /// Number of attempts.
    pub attempts: u32,
    compared: u32,
    logarithms: f64,
}

impl Throughput {
    /// Bytes per second, if there were any.
    pub fn rate(&self) -> Option<f64> {
        (self.seconds > 0.0 && self.bytes > 0.0).then(|| self.bytes / self.seconds)
    }

    /// The speed relative to other trackers that ran the same jobs, which is 1 on average. `None`
    /// without anything to compare with.
    pub fn speed(&self) -> Option<f64> {
        (self.compared > 0).then(|| (self.logarithms / f64::from(self.compared)).exp())
    }

    fn add(&mut self, bytes: f64, seconds: f64) {
        self.bytes += bytes;
        self.seconds += seconds;
        self.attempts += 1;
    }

    fn compare(&mut self, rate: f64, mean: f64) {
        self.compared += 1;
        self.logarithms += (rate / mean).ln();
    }
}

/// The throughput of every tracker and of every running job.
#[derive(Debug, Default)]
pub(crate) struct Speeds {
    trackers: BTreeMap<TrackerId, PerPhase<Throughput>>,
    jobs: BTreeMap<JobId, PerPhase<Throughput>>,
}

impl Speeds {
    /// Adds a fact that has already been applied to the cluster.
    pub(crate) fn note(&mut self, entry: &Entry, cluster: &Cluster) {
        match &entry.fact {
            Fact::AttemptSucceeded { attempt, result } => {
                let bytes = match attempt.phase() {
                    Phase::Map => cluster.task(attempt.task).map_or(0, crate::task::Task::bytes),
                    Phase::Reduce => result.bytes_out,
                };
                self.sample(*attempt, bytes, entry.at, cluster);
            }
            Fact::MapSplit { attempt, .. } => {
                // The range of the task now ends where the attempt ended.
                let bytes = cluster.task(attempt.task).map_or(0, crate::task::Task::bytes);
                self.sample(*attempt, bytes, entry.at, cluster);
            }
            Fact::JobEnded { job, .. } => {
                self.jobs.remove(job);
            }
            Fact::TrackerForgotten { tracker, .. } => {
                self.trackers.remove(tracker);
            }
            _ => {}
        }
    }

    /// Adds a sample. An attempt that resumed from a checkpoint is ignored.
    fn sample(&mut self, id: AttemptId, bytes: u64, at: Time, cluster: &Cluster) {
        let (Some(job), Some(attempt)) = (cluster.job(id.job()), cluster.attempt(id)) else { return };
        let phase = id.phase();
        let began = match phase {
            Phase::Map => attempt.launched,
            Phase::Reduce => job.maps_done.map_or(attempt.launched, |done| done.max(attempt.launched)),
        };
        let (bytes, seconds) = (bytes as f64, at.since(began).as_secs_f64());
        if attempt.resumed_from.is_some() || bytes <= 0.0 || seconds <= 0.0 {
            return;
        }
        let own = &mut self.trackers.entry(attempt.tracker).or_default()[phase];
        own.add(bytes, seconds);
        let all = &mut self.jobs.entry(job.id).or_default()[phase];
        if let Some(mean) = all.rate() {
            own.compare(bytes / seconds, mean);
        }
        all.add(bytes, seconds);
    }

    pub(crate) fn of(&self, tracker: TrackerId) -> PerPhase<Throughput> {
        self.trackers.get(&tracker).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracker_twice_as_fast_has_speed_two() {
        let (mut slow, mut fast) = (Throughput::default(), Throughput::default());
        for (rate, mean) in [(50.0, 100.0), (200.0, 400.0)] {
            slow.compare(rate, mean);
            fast.compare(mean, rate);
        }
        assert!((slow.speed().unwrap() - 0.5).abs() < 1e-9);
        assert!((fast.speed().unwrap() - 2.0).abs() < 1e-9);
        slow.add(100.0, 4.0);
        slow.add(300.0, 4.0);
        assert_eq!(slow.rate(), Some(50.0));
        assert_eq!((Throughput::default().rate(), Throughput::default().speed()), (None, None));
    }

    #[test]
    fn forgotten_tracker_has_no_throughput() {
        let (mut speeds, tracker) = (Speeds::default(), TrackerId(1));
        speeds.trackers.insert(tracker, PerPhase::default());
        let fact = Fact::TrackerForgotten { tracker, name: "t1".into(), why: String::new() };
        speeds.note(&Entry { at: Time(0), fact }, &Cluster::default());
        assert!(speeds.trackers.is_empty());
    }
}
