//! Remaining times of running jobs, and the shares that follow from them: made again every so often.

use super::formulas::{self, Work};
use crate::{
    estimate::{self, Flow, Mean, demand},
    params::Section,
};
use mrcore::{Cluster, Fact, PerPhase, Phase, Span, Time, Why, ids::JobId, job::Job};
use std::collections::BTreeMap;

/// What is thought of a job.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Estimate {
    /// Seconds, alone on the whole cluster (Eq. 1).
    pub(super) remaining: f64,
    /// Slots.
    pub(super) share: PerPhase<f64>,
    seconds: PerPhase<f64>,
}

impl Estimate {
    /// A reason with what it goes by: the share only where it counts, and has been reckoned since the job could use any.
    pub(super) fn numbers(&self, why: Why, phase: Phase, is_pure: bool) -> Why {
        let why = why.with("remaining", self.remaining);
        if is_pure || self.share[phase] == 0.0 { why } else { why.with("share", self.share[phase]) }
    }
}

#[derive(Debug)]
pub(super) struct Estimator {
    pub(super) every: Span,
    literal: bool,
    adjusts_for_starvation: bool,
    default: PerPhase<f64>,
    flow: Flow,
    jobs: BTreeMap<JobId, Estimate>,
    /// Trackers have come or gone since it last thought of every job.
    is_stale: bool,
    last: Option<Time>,
    /// Means over the running jobs that have been measured, for those that have not.
    means: PerPhase<Option<f64>>,
}

impl Estimator {
    pub(super) fn new(section: &mut Section<'_>) -> Self {
        let every = section.period("every", Span::secs(10), "how often remaining times are estimated");
        let map =
            section.span("default_map", Span::secs(30), "how long a map takes when nothing is known of any");
        let reduce = section.span("default_reduce", Span::secs(30), "and a reduce");
        Self {
            every,
            literal: section.flag("literal", false, "equation 2 as printed"),
            adjusts_for_starvation: section.flag(
                "starvation",
                true,
                "shares grow with how long a job has starved (equation 5)",
            ),
            default: PerPhase { map: map.as_secs_f64(), reduce: reduce.as_secs_f64() },
            flow: Flow::default(),
            jobs: BTreeMap::new(),
            is_stale: false,
            last: None,
            means: PerPhase::default(),
        }
    }

    pub(super) fn of(&self, job: JobId) -> Estimate {
        self.jobs.get(&job).copied().unwrap_or_default()
    }

    /// To be told every fact; says whether what it thinks has changed.
    pub(super) fn observe(&mut self, now: Time, fact: &Fact, cluster: &Cluster) -> bool {
        self.flow.observe(fact, cluster);
        match fact {
            Fact::JobTrackerStarted { .. } => self.estimate(now, cluster),
            // After a restart every tracker joins anew: once a second is enough.
            fact if fact.changes_slots_of().is_some() => {
                self.is_stale = cluster.active_jobs().next().is_some();
                return self.catch_up(now, cluster);
            }
            Fact::JobSubmitted { job, .. } => {
                let Some(job) = cluster.job(*job) else { return false };
                let thought = self.estimate_job(job, now, cluster);
                self.jobs.insert(job.id, thought);
                self.divide(now, cluster);
            }
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => {
                if self.jobs.remove(job).is_none() {
                    return false;
                }
                self.divide(now, cluster);
            }
            _ => return false,
        }
        true
    }

    /// Thinks of every job anew if the cluster has changed, and not within a second of the last time; says whether it has.
    pub(super) fn catch_up(&mut self, now: Time, cluster: &Cluster) -> bool {
        let is_due = self.is_stale && self.last.is_none_or(|last| now.since(last) >= Span::secs(1));
        if is_due {
            self.estimate(now, cluster);
        }
        is_due
    }

    /// Thinks of every job anew.
    pub(super) fn estimate(&mut self, now: Time, cluster: &Cluster) {
        (self.is_stale, self.last) = (false, Some(now));
        let mut means = PerPhase::<Mean>::default();
        for job in cluster.active_jobs() {
            if let Some(seconds) = estimate::map_seconds(job, now, cluster) {
                means.map.add(seconds);
            }
            if let Some(seconds) = estimate::reduce_seconds(job, now, cluster) {
                means.reduce.add(seconds);
            }
        }
        self.means = PerPhase { map: means.map.value(), reduce: means.reduce.value() };
        self.jobs = cluster.active_jobs().map(|job| (job.id, self.estimate_job(job, now, cluster))).collect();
        self.divide(now, cluster);
    }

    fn estimate_job(&self, job: &Job, now: Time, cluster: &Cluster) -> Estimate {
        let seconds = self.seconds(job, now, cluster);
        let tasks =
            PerPhase { map: estimate::left(job, Phase::Map), reduce: estimate::left(job, Phase::Reduce) };
        let remaining = Work { tasks, seconds }.remaining(capacity(cluster));
        Estimate { remaining, seconds, share: PerPhase::default() }
    }

    /// How long the tasks of a job take. A new job's are as long as those of others.
    fn seconds(&self, job: &Job, now: Time, cluster: &Cluster) -> PerPhase<f64> {
        let borrowed = |phase| self.means[phase].unwrap_or(self.default[phase]);
        let own = estimate::map_seconds(job, now, cluster);
        let map = own.unwrap_or_else(|| borrowed(Phase::Map));
        let measured = estimate::reduce_seconds(job, now, cluster).filter(|_| job.is_done(Phase::Map));
        let bytes = self.flow.input(job.id);
        let reduce = match (measured, own) {
            (Some(seconds), _) => seconds,
            (None, Some(map)) if bytes > 0.0 && map > 0.0 => {
                // Pieces that maps were split into count as maps: `map` is what those take.
                let block = bytes / job.tasks.map.len() as f64;
                formulas::reduce_seconds(self.flow.bytes_per_reduce(job), block, map, self.literal)
            }
            _ => borrowed(Phase::Reduce),
        };
        PerPhase { map, reduce }
    }

    /// Divides the cluster by remaining times (Eq. 3 and 4), then once more by how jobs starve on that (Eq. 5).
    fn divide(&mut self, now: Time, cluster: &Cluster) {
        let jobs: Vec<&Job> = self.jobs.keys().filter_map(|job| cluster.job(*job)).collect();
        let slots = capacity(cluster);
        for phase in Phase::BOTH {
            let claims: Vec<(f64, f64)> =
                jobs.iter().map(|job| (self.of(job.id).remaining, demand(job, phase))).collect();
            let shares = formulas::shares(slots[phase], &claims);
            self.set_shares(phase, &jobs, &shares);
        }
        if !self.adjusts_for_starvation {
            return;
        }
        let starvation: Vec<f64> = jobs.iter().map(|job| self.starvation(job, now, slots)).collect();
        for phase in Phase::BOTH {
            let claims = jobs.iter().zip(&starvation);
            let claims: Vec<(f64, f64, f64)> = claims
                .map(|(job, starvation)| (self.of(job.id).share[phase], *starvation, demand(job, phase)))
                .collect();
            let shares = formulas::apply_starvation(slots[phase], &claims);
            self.set_shares(phase, &jobs, &shares);
        }
    }

    fn starvation(&self, job: &Job, now: Time, slots: PerPhase<f64>) -> f64 {
        let Estimate { share, seconds, .. } = self.of(job.id);
        let tasks =
            |count: &dyn Fn(Phase) -> f64| PerPhase { map: count(Phase::Map), reduce: count(Phase::Reduce) };
        let all = Work { tasks: tasks(&|phase| job.tasks[phase].len() as f64), seconds };
        let left = Work { tasks: tasks(&|phase| estimate::left(job, phase)), seconds };
        let since = now.since(job.submitted).as_secs_f64();
        formulas::starvation(since, left.remaining(share), all.remaining(slots))
    }

    fn set_shares(&mut self, phase: Phase, jobs: &[&Job], shares: &[f64]) {
        for (job, share) in jobs.iter().zip(shares) {
            if let Some(thought) = self.jobs.get_mut(&job.id) {
                thought.share[phase] = *share;
            }
        }
    }
}

fn capacity(cluster: &Cluster) -> PerPhase<f64> {
    PerPhase { map: f64::from(cluster.slots(Phase::Map)), reduce: f64::from(cluster.slots(Phase::Reduce)) }
}
