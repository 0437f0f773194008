//! Changes a workload as a whole: its load, the sample of its jobs, and its users.

use super::{JobPlan, Workload, seconds};
use crate::{rng::Rng, setup::Setup};
use mrcore::{PerPhase, Phase, Span};
use serde::Serialize;
use std::fmt;

/// Traces are resampled in as many pieces as this, which keeps bursts together. The Facebook traces
/// consist of 24 samples of one hour.
const PIECES: usize = 24;
/// Traces with fewer jobs are not resampled.
const JOBS_MIN: usize = 2 * PIECES;
/// Traces that are shorter than this, from the first job to the last, are not resampled.
const SPAN_MIN: Span = Span::secs(PIECES as u64);
/// Number of users of a trace without user names.
const USERS: u64 = 20;

/// The offered load of each phase.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct OfferedLoad {
    pub map: f64,
    pub reduce: f64,
}

impl From<PerPhase<f64>> for OfferedLoad {
    fn from(PerPhase { map, reduce }: PerPhase<f64>) -> Self {
        Self { map, reduce }
    }
}

impl fmt::Display for OfferedLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offered load {:.2} (maps) and {:.2} (reduces)", self.map, self.reduce)
    }
}

impl JobPlan {
    /// Returns the slot seconds that the tasks of the job need on machines of speed 1, without
    /// waiting for input.
    pub fn work_s(&self) -> PerPhase<f64> {
        let start_s = self.startup_time.as_secs_f64();
        let output: f64 = self.maps.iter().map(|map| map.bytes as f64).sum::<f64>() * self.map_out;
        let map = self.maps.iter().map(|map| start_s + f64::from(map.work_s)).sum();
        let reduce = self.reduces.iter().map(|reduce| {
            let each = 1.0 / self.merge_rate + f64::from(reduce.factor) / self.reduce_rate;
            start_s + f64::from(reduce.fixed_s) + f64::from(reduce.share) * output * each
        });
        PerPhase { map, reduce: reduce.sum() }
    }
}

impl Workload {
    /// Returns the offered load of each phase: the work of all jobs, divided by what the slots can
    /// do while the jobs arrive; infinite if there are no slots. `None` if all jobs arrive at once.
    pub fn offered_load(&self, setup: &Setup) -> Option<PerPhase<f64>> {
        let (first, last) = (self.jobs.first()?.at, self.jobs.last()?.at);
        let gaps = self.jobs.len().saturating_sub(1).max(1) as f64;
        // The last job is followed by a gap, too.
        let span_s = (last.as_secs_f64() - first.as_secs_f64()) * (gaps + 1.0) / gaps;
        let mut load = PerPhase { map: 0.0, reduce: 0.0 };
        for work in self.jobs.iter().map(JobPlan::work_s) {
            load.map += work.map;
            load.reduce += work.reduce;
        }
        for phase in Phase::BOTH {
            let speeds = setup.machines.iter().map(|machine| f64::from(machine.slots[phase]) * machine.speed);
            // Without work the load is 0, also without slots.
            if load[phase] > 0.0 {
                load[phase] /= speeds.sum::<f64>() * span_s;
            }
        }
        (span_s > 0.0).then_some(load)
    }

    /// Multiplies the times between submissions by one factor, so that the offered load of the busier
    /// phase is `target`. Does nothing if all jobs arrive at once.
    #[must_use]
    pub fn with_load(mut self, target: f64, setup: &Setup) -> Self {
        let Some(load) = self.offered_load(setup) else { return self };
        let factor = load.map.max(load.reduce) / target;
        for job in &mut self.jobs {
            job.at = seconds(job.at.as_secs_f64() * factor);
        }
        self
    }

    /// Returns whether [`Self::resampled`] changes the workload.
    pub fn can_be_resampled(&self) -> bool {
        let ends = self.jobs.first().zip(self.jobs.last());
        self.jobs.len() >= JOBS_MIN && ends.is_some_and(|(first, last)| last.at.0 - first.at.0 >= SPAN_MIN.0)
    }

    /// Returns the workload of a seed: the trace itself for seed 1, otherwise a sample with
    /// replacement of its pieces, which are equal in time.
    #[must_use]
    pub fn resampled(self, seed: u64) -> Self {
        if seed == 1 || !self.can_be_resampled() {
            return self;
        }
        let (first, last) = (self.jobs[0].at, self.jobs[self.jobs.len() - 1].at);
        let piece = Span(((last.0 - first.0) / PIECES as u64).max(1));
        let mut rng = Rng::of(seed, "resample");
        let mut jobs = Vec::with_capacity(self.jobs.len());
        for place in 0..PIECES as u64 {
            let source = rng.below(PIECES as u64);
            let from = Span(first.0 + source * piece.0);
            let is_last = source + 1 == PIECES as u64;
            let in_piece = |job: &&JobPlan| job.at >= from && (is_last || job.at.0 < from.0 + piece.0);
            jobs.extend(self.jobs.iter().filter(in_piece).map(|job| {
                let offset = (job.at.0 - from.0).min(piece.0 - 1);
                JobPlan { at: Span(first.0 + place * piece.0 + offset), ..job.clone() }
            }));
        }
        // A sample of empty pieces only has no jobs.
        if jobs.is_empty() { self } else { Self { name: self.name, jobs } }
    }

    /// Gives every job a random user. The first users have more jobs: the numbers of jobs follow
    /// Zipf's law.
    #[must_use]
    pub fn with_random_users(mut self, seed: u64) -> Self {
        let mut rng = Rng::of(seed, "users");
        let total: f64 = (1..=USERS).map(|rank| 1.0 / rank as f64).sum();
        for job in &mut self.jobs {
            let mut left = rng.unit() * total;
            let rank = (1..USERS).find(|rank| {
                left -= 1.0 / *rank as f64;
                left < 0.0
            });
            job.user = format!("user{}", rank.unwrap_or(USERS));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{profile, workload::synthetic};
    use std::collections::BTreeMap;

    fn setup() -> Setup {
        Setup::even(10, PerPhase { map: 4, reduce: 2 }, "fifo")
    }

    fn workload() -> Workload {
        synthetic::gridmix(&profile::built_in(), synthetic::Arrivals::Poisson, 200, 10.0, 1)
    }

    #[test]
    fn offered_load_is_work_over_slot_time_and_can_be_set() {
        let load = workload().offered_load(&setup()).expect("jobs arrive over time");
        let work: f64 = workload().jobs.iter().map(|job| job.work_s().map).sum();
        let span_s = workload().jobs[199].at.as_secs_f64() - workload().jobs[0].at.as_secs_f64();
        assert!((load.map - work / (40.0 * span_s * 200.0 / 199.0)).abs() < 1e-9, "{load:?}");
        let set = workload().with_load(0.7, &setup()).offered_load(&setup()).expect("it has a load");
        assert!((set.map.max(set.reduce) - 0.7).abs() < 1e-3, "{set:?}");
        let mut at_once = workload();
        at_once.jobs.iter_mut().for_each(|job| job.at = Span(0));
        assert_eq!(at_once.offered_load(&setup()), None);
        assert_eq!(at_once.clone().with_load(0.7, &setup()), at_once);
    }

    #[test]
    fn resampled_workloads_differ_by_seed_and_consist_of_jobs_of_the_trace() {
        let trace = workload();
        assert_eq!(trace.clone().resampled(1), trace, "seed 1 is the trace itself");
        let (two, three) = (trace.clone().resampled(2), trace.clone().resampled(3));
        assert!(two != three && two == trace.clone().resampled(2));
        assert!(two.jobs.is_sorted_by_key(|job| job.at));
        assert!(two.jobs.iter().all(|job| trace.jobs.iter().any(|known| known.name == job.name)));
        let end = |workload: &Workload| workload.jobs.last().map(|job| job.at);
        assert!(end(&two) <= end(&trace));
        let short = Workload { jobs: trace.jobs[..JOBS_MIN - 1].to_vec(), ..Workload::default() };
        assert_eq!(short.clone().resampled(2), short);
    }

    #[test]
    fn first_users_have_the_most_jobs() {
        let mut jobs: BTreeMap<String, u32> = BTreeMap::new();
        for job in workload().with_random_users(3).jobs {
            *jobs.entry(job.user).or_default() += 1;
        }
        assert!(jobs["user1"] > jobs["user2"] && jobs["user2"] > jobs["user9"], "{jobs:?}");
        assert_eq!(workload().with_random_users(3), workload().with_random_users(3));
    }
}
