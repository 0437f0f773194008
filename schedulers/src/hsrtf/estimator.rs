//! Estimates the remaining times and shares of running jobs, periodically.

use super::formulas::{self, Work};
use crate::{
    estimate::{self, DataFlow, Mean, demand},
    params::Section,
};
use mrcore::{Cluster, Fact, PerPhase, Phase, Span, Time, Why, ids::JobId, job::Job};
use std::collections::BTreeMap;

/// The estimate for a job.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Estimate {
    /// Remaining seconds if the job were alone on the whole cluster (equation 1).
    pub(super) remaining: f64,
    /// The number of slots that the job should hold.
    pub(super) share: PerPhase<f64>,
    /// Seconds that one task takes.
    seconds: PerPhase<f64>,
}

impl Estimate {
    /// Adds the numbers of the estimate to a reason. The share is left out if it is not used or has
    /// not been computed yet.
    pub(super) fn add_numbers_to(&self, why: Why, phase: Phase, is_pure: bool) -> Why {
        let why = why.with("remaining", self.remaining);
        if is_pure || self.share[phase] == 0.0 { why } else { why.with("share", self.share[phase]) }
    }
}

#[derive(Debug)]
pub(super) struct Estimator {
    pub(super) interval: Span,
    /// Whether durations and shares are computed as in the paper, except equation 2.
    literal: bool,
    /// Whether equation 2 is used as the paper prints it.
    prints_equation_2: bool,
    adjusts_for_starvation: bool,
    /// The assumed seconds of a task before any was measured.
    default: PerPhase<f64>,
    flow: DataFlow,
    jobs: BTreeMap<JobId, Estimate>,
    /// Whether trackers have joined or left since the last estimate of all jobs.
    is_stale: bool,
    /// When all jobs were last estimated.
    last_estimate: Option<Time>,
    /// Mean seconds of a task over the running jobs that have been measured, for the other jobs.
    means: PerPhase<Option<f64>>,
}

impl Estimator {
    pub(super) fn new(literal: bool, section: &mut Section<'_>) -> Self {
        let interval = section.period("every", Span::secs(10), "how often remaining times are estimated");
        let map =
            section.span("default_map", Span::secs(30), "assumed duration of a map before any was measured");
        let reduce = section.span(
            "default_reduce",
            Span::secs(30),
            "assumed duration of a reduce before any was measured",
        );
        let mut words = [("seconds", false), ("printed", true)];
        if literal {
            words.reverse();
        }
        let about = "equation 2: in seconds, or as printed, which is not a time";
        Self {
            interval,
            literal,
            prints_equation_2: section.choice("eq2", &words, about),
            adjusts_for_starvation: section.flag(
                "starvation",
                true,
                "increase the share of a job with the time it has starved (equation 5 of the paper)",
            ),
            default: PerPhase { map: map.as_secs_f64(), reduce: reduce.as_secs_f64() },
            flow: DataFlow::default(),
            jobs: BTreeMap::new(),
            is_stale: false,
            last_estimate: None,
            means: PerPhase::default(),
        }
    }

    pub(super) fn estimate_of(&self, job: JobId) -> Estimate {
        self.jobs.get(&job).copied().unwrap_or_default()
    }

    /// Observes a fact. Must be called with every fact. Returns whether estimates have changed.
    pub(super) fn observe(&mut self, now: Time, fact: &Fact, cluster: &Cluster) -> bool {
        self.flow.observe(fact, cluster);
        match fact {
            Fact::JobTrackerStarted { .. } => self.estimate_all(now, cluster),
            // After a restart every tracker registers again, so estimates are updated at most once
            // a second.
            fact if fact.changes_slots_of().is_some() => {
                self.is_stale = cluster.active_jobs().next().is_some();
                return self.catch_up(now, cluster);
            }
            Fact::JobSubmitted { job, .. } => {
                let Some(job) = cluster.job(*job) else { return false };
                let job_estimate = self.estimate_job(job, now, cluster);
                self.jobs.insert(job.id, job_estimate);
                self.compute_shares(now, cluster);
            }
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => {
                if self.jobs.remove(job).is_none() {
                    return false;
                }
                self.compute_shares(now, cluster);
            }
            _ => return false,
        }
        true
    }

    /// Updates all estimates if trackers have changed, at most once a second. Returns whether
    /// estimates were updated.
    pub(super) fn catch_up(&mut self, now: Time, cluster: &Cluster) -> bool {
        let is_due = self.is_stale && self.last_estimate.is_none_or(|last| now.since(last) >= Span::secs(1));
        if is_due {
            self.estimate_all(now, cluster);
        }
        is_due
    }

    /// Updates all estimates.
    pub(super) fn estimate_all(&mut self, now: Time, cluster: &Cluster) {
        (self.is_stale, self.last_estimate) = (false, Some(now));
        let mut means = PerPhase::<Mean>::default();
        for job in cluster.active_jobs() {
            if let Some(seconds) = estimate::map_seconds(job, now, cluster) {
                means.map.add(seconds);
            }
            if let Some(seconds) = self.measured_reduce_seconds(job, now, cluster) {
                means.reduce.add(seconds);
            }
        }
        self.means = PerPhase { map: means.map.value(), reduce: means.reduce.value() };
        self.jobs = cluster.active_jobs().map(|job| (job.id, self.estimate_job(job, now, cluster))).collect();
        self.compute_shares(now, cluster);
    }

    fn estimate_job(&self, job: &Job, now: Time, cluster: &Cluster) -> Estimate {
        let seconds = self.seconds(job, now, cluster);
        let tasks = PerPhase {
            map: estimate::remaining_tasks(job, Phase::Map),
            reduce: estimate::remaining_tasks(job, Phase::Reduce),
        };
        let remaining = Work { tasks, seconds }.remaining(capacity(cluster));
        Estimate { remaining, seconds, share: PerPhase::default() }
    }

    /// Returns the task durations of a job. A job without measurements gets the means of other
    /// jobs.
    fn seconds(&self, job: &Job, now: Time, cluster: &Cluster) -> PerPhase<f64> {
        let borrowed = |phase| self.means[phase].unwrap_or(self.default[phase]);
        let own = estimate::map_seconds(job, now, cluster);
        let map = own.unwrap_or_else(|| borrowed(Phase::Map));
        let measured = self.measured_reduce_seconds(job, now, cluster).filter(|_| job.is_done(Phase::Map));
        let bytes = self.flow.input_bytes(job.id);
        let reduce = match (measured, own) {
            (Some(seconds), _) => seconds,
            (None, Some(map)) if bytes > 0.0 && map > 0.0 => {
                // Tasks that were created by splits count as maps, as they do in `map`.
                let block = bytes / job.tasks.map.len() as f64;
                let bytes = self.flow.bytes_per_reduce(job);
                formulas::reduce_seconds(bytes, block, map, self.prints_equation_2)
            }
            _ => borrowed(Phase::Reduce),
        };
        PerPhase { map, reduce }
    }

    /// Returns the mean duration of the reduces of a job: without the time until all maps are done,
    /// or with it, as in the paper (`literal`).
    fn measured_reduce_seconds(&self, job: &Job, now: Time, cluster: &Cluster) -> Option<f64> {
        if self.literal {
            estimate::task_seconds(job, Phase::Reduce, now, cluster)
        } else {
            estimate::reduce_seconds(job, now, cluster)
        }
    }

    /// Divides the slots by remaining times (equations 3 and 4), then corrects the shares for
    /// starvation (equation 5).
    fn compute_shares(&mut self, now: Time, cluster: &Cluster) {
        let jobs: Vec<&Job> = self.jobs.keys().filter_map(|job| cluster.job(*job)).collect();
        let slots = capacity(cluster);
        for phase in Phase::BOTH {
            let claim = |job: &&Job| (self.estimate_of(job.id).remaining, demand(job, phase, cluster));
            let claims: Vec<(f64, f64)> = jobs.iter().map(claim).collect();
            let shares = formulas::shares(slots[phase], &claims, self.literal);
            self.set_shares(phase, &jobs, &shares);
        }
        if !self.adjusts_for_starvation {
            return;
        }
        let starvation: Vec<f64> = jobs.iter().map(|job| self.starvation(job, now, slots)).collect();
        for phase in Phase::BOTH {
            let claims = jobs.iter().zip(&starvation);
            let claims: Vec<(f64, f64, f64)> = claims
                .map(|(job, starvation)| {
                    (self.estimate_of(job.id).share[phase], *starvation, demand(job, phase, cluster))
                })
                .collect();
            let shares = formulas::apply_starvation(slots[phase], &claims, self.literal);
            self.set_shares(phase, &jobs, &shares);
        }
    }

    fn starvation(&self, job: &Job, now: Time, slots: PerPhase<f64>) -> f64 {
        let Estimate { share, seconds, .. } = self.estimate_of(job.id);
        let tasks =
            |count: &dyn Fn(Phase) -> f64| PerPhase { map: count(Phase::Map), reduce: count(Phase::Reduce) };
        let all = Work { tasks: tasks(&|phase| job.tasks[phase].len() as f64), seconds };
        let left = Work { tasks: tasks(&|phase| estimate::remaining_tasks(job, phase)), seconds };
        let since = now.since(job.submitted).as_secs_f64();
        formulas::starvation(since, left.remaining(share), all.remaining(slots))
    }

    fn set_shares(&mut self, phase: Phase, jobs: &[&Job], shares: &[f64]) {
        for (job, share) in jobs.iter().zip(shares) {
            if let Some(job_estimate) = self.jobs.get_mut(&job.id) {
                job_estimate.share[phase] = *share;
            }
        }
    }
}

fn capacity(cluster: &Cluster) -> PerPhase<f64> {
    PerPhase { map: f64::from(cluster.slots(Phase::Map)), reduce: f64::from(cluster.slots(Phase::Reduce)) }
}
