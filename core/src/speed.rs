//! Measures how fast trackers are, from facts. After a restart the values are the same, as far as
//! the journal goes back.
//!
//! The rate of a map is the size of its range divided by its duration. The rate of a reduce is the
//! number of bytes that it wrote divided by the time since the last map ended. Programs differ by
//! orders of magnitude, so rates are compared within a job: the speed of an attempt is its rate
//! divided by the geometric mean of all attempts of its job so far. The speed of a tracker is the
//! geometric mean of the speeds of its attempts, so the mean over all attempts is 1. A job that ran
//! on only one tracker gives no speed.
//!
//! Measurements do not age: a machine that was repaired registers with the same name and keeps its
//! old measurements until its tracker is forgotten.

use crate::{
    cluster::Cluster,
    fact::{Entry, Fact},
    ids::{AttemptId, JobId, TrackerId},
    phase::{PerPhase, Phase},
    time::Time,
};
use std::collections::BTreeMap;

/// The throughput of a set of attempts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Throughput {
    /// Input bytes of maps, or output bytes of reduces.
    pub bytes: f64,
    /// Seconds, summed over the attempts.
    pub seconds: f64,
    /// Number of attempts.
    pub attempts: u32,
    /// Number of attempts that were compared with attempts of the same job on other trackers.
    compared_attempts: u32,
    /// The sum of the logarithms of the speeds of the compared attempts.
    log_speed_sum: f64,
}

impl Throughput {
    /// Returns the bytes per second, if bytes and time were measured.
    pub fn rate(&self) -> Option<f64> {
        (self.seconds > 0.0 && self.bytes > 0.0).then(|| self.bytes / self.seconds)
    }

    /// Returns the speed relative to other trackers that ran the same jobs. The geometric mean over
    /// all attempts is 1. `None` without anything to compare with.
    pub fn speed(&self) -> Option<f64> {
        (self.compared_attempts > 0).then(|| (self.log_speed_sum / f64::from(self.compared_attempts)).exp())
    }

    fn add(&mut self, bytes: f64, seconds: f64) {
        self.bytes += bytes;
        self.seconds += seconds;
        self.attempts += 1;
    }

    fn compare(&mut self, (attempts, logarithms): (u32, f64)) {
        self.compared_attempts += attempts;
        self.log_speed_sum += logarithms;
    }
}

/// The rates of the attempts of a job and phase: the number of attempts and the sum of the
/// logarithms of their rates, for each tracker and in total.
#[derive(Debug, Default)]
struct JobRates {
    trackers: BTreeMap<TrackerId, (u32, f64)>,
    total: (u32, f64),
}

impl JobRates {
    fn add(&mut self, tracker: TrackerId, rate: f64) {
        for sum in [self.trackers.entry(tracker).or_default(), &mut self.total] {
            *sum = (sum.0 + 1, sum.1 + rate.ln());
        }
    }

    /// Compares the attempts of a tracker with the mean of the job. Returns their number and the
    /// sum of the logarithms of their speeds; zero if no other tracker ran attempts of the job.
    fn compared_with_job(&self, tracker: TrackerId) -> (u32, f64) {
        let own = self.trackers.get(&tracker).filter(|_| self.trackers.len() > 1);
        let Some((own, logarithms)) = own else { return (0, 0.0) };
        (*own, logarithms - f64::from(*own) * self.total.1 / f64::from(self.total.0))
    }
}

/// The throughput of every tracker, and the rates of every running job.
#[derive(Debug, Default)]
pub(crate) struct Speeds {
    /// Contains comparisons only within jobs that have ended. Those of running jobs are in `jobs`.
    trackers: BTreeMap<TrackerId, PerPhase<Throughput>>,
    jobs: BTreeMap<JobId, PerPhase<JobRates>>,
}

impl Speeds {
    /// Adds a fact that has already been applied to the cluster.
    pub(crate) fn add_fact(&mut self, entry: &Entry, cluster: &Cluster) {
        match &entry.fact {
            Fact::AttemptSucceeded { attempt, result } => {
                let bytes = match attempt.phase() {
                    Phase::Map => cluster.task(attempt.task).map_or(0, crate::task::Task::bytes),
                    Phase::Reduce => result.bytes_out,
                };
                self.add_sample(*attempt, bytes, entry.at, cluster);
            }
            Fact::MapSplit { attempt, .. } => {
                // The range of the task now ends where the attempt ended.
                let bytes = cluster.task(attempt.task).map_or(0, crate::task::Task::bytes);
                self.add_sample(*attempt, bytes, entry.at, cluster);
            }
            Fact::JobEnded { job, .. } => {
                let Some(rates) = self.jobs.remove(job) else { return };
                for (tracker, own) in &mut self.trackers {
                    for phase in Phase::BOTH {
                        own[phase].compare(rates[phase].compared_with_job(*tracker));
                    }
                }
            }
            Fact::TrackerForgotten { tracker, .. } => {
                self.trackers.remove(tracker);
            }
            _ => {}
        }
    }

    /// Adds a sample. An attempt that resumed from a checkpoint is ignored.
    fn add_sample(&mut self, id: AttemptId, bytes: u64, at: Time, cluster: &Cluster) {
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
        self.trackers.entry(attempt.tracker).or_default()[phase].add(bytes, seconds);
        self.jobs.entry(job.id).or_default()[phase].add(attempt.tracker, bytes / seconds);
    }

    pub(crate) fn throughput(&self, tracker: TrackerId) -> PerPhase<Throughput> {
        let mut own = self.trackers.get(&tracker).copied().unwrap_or_default();
        for rates in self.jobs.values() {
            for phase in Phase::BOTH {
                own[phase].compare(rates[phase].compared_with_job(tracker));
            }
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the speed of a tracker from the rates of one job.
    fn speed(rates: &JobRates, tracker: TrackerId) -> Option<f64> {
        let mut own = Throughput::default();
        own.compare(rates.compared_with_job(tracker));
        own.speed()
    }

    #[test]
    fn speeds_do_not_depend_on_the_order_and_their_mean_is_one() {
        let (slow, fast) = (TrackerId(1), TrackerId(2));
        // The first attempts of a job are slow, because nothing is cached yet.
        let samples = [(slow, 50.0), (fast, 100.0), (slow, 200.0), (fast, 400.0)];
        let mut rates = [JobRates::default(), JobRates::default()];
        for (tracker, rate) in samples {
            rates[0].add(tracker, rate);
        }
        for (tracker, rate) in samples.into_iter().rev() {
            rates[1].add(tracker, rate);
        }
        for rates in &rates {
            let (slow, fast) = (speed(rates, slow).unwrap(), speed(rates, fast).unwrap());
            assert!((slow * fast - 1.0).abs() < 1e-9, "equal numbers of attempts: {slow} {fast}");
            assert!((fast / slow - 2.0).abs() < 1e-9, "twice as fast: {slow} {fast}");
        }
    }

    #[test]
    fn a_single_tracker_has_a_rate_but_no_speed() {
        let (mut own, mut rates) = (Throughput::default(), JobRates::default());
        own.add(100.0, 4.0);
        own.add(300.0, 4.0);
        rates.add(TrackerId(1), 25.0);
        rates.add(TrackerId(1), 75.0);
        assert_eq!((own.rate(), speed(&rates, TrackerId(1))), (Some(50.0), None));
        assert_eq!((Throughput::default().rate(), Throughput::default().speed()), (None, None));
    }

    #[test]
    fn forgotten_tracker_has_no_throughput() {
        let (mut speeds, tracker) = (Speeds::default(), TrackerId(1));
        speeds.trackers.insert(tracker, PerPhase::default());
        let fact = Fact::TrackerForgotten { tracker, name: "t1".into(), why: String::new() };
        speeds.add_fact(&Entry { at: Time(0), fact }, &Cluster::default());
        assert!(speeds.trackers.is_empty());
    }
}
