//! Least attained service: the job that has used the least slot time so far goes first.
//!
//! The policy needs no estimates, so it is a baseline for policies that do. Slot time counts in both
//! phases. Jobs are in levels: level 0 has used less than `quantum`, and each further level twice as
//! much as the one before. A free slot goes to the lowest level, and within a level to the oldest job,
//! so that jobs with similar use do not take turns. A job with pending tasks preempts attempts of jobs
//! in higher levels by split and pause, those of the highest level and with the least progress first.
//!
//! Not used: users, queues, priorities, locality delays.

use crate::{
    fill::{fill, locality_reason},
    params::Section,
    ranked_queue::RankedQueue,
    victims::{PreemptionRules, Victims, preempt_for_jobs},
};
use mrcore::{
    Cluster, Fact, PerPhase, Phase, Plan, Scheduler, Span, Time, Why,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::Job,
    plan::{Locality, PreemptMode},
    scheduler::{Cause, Round},
    task::Attempt,
};
use std::{cmp::Reverse, collections::BTreeMap};

/// How often slot time is added up and attempts are preempted.
const INTERVAL: Span = Span::secs(1);

/// The texts of the rules of this policy.
pub const RULE_TEXTS: &[crate::explain::RuleText] = &[
    ("least-service", "its job has used {used:s} of slot time, in the lowest level that can use the slot"),
    (
        "less-service-first",
        "the job has used {used:s} of slot time; {jobs_ahead job goes|jobs go} first, which used less or came earlier",
    ),
    (
        "more-service",
        "its job has used {used:s} of slot time, and the slot goes to {for_job:job}, which has used {less:s}",
    ),
];

/// The `las` policy.
#[derive(Debug)]
pub struct Las {
    quantum_s: f64,
    newly_launched: Span,
    preempt_mode: PreemptMode,
    jobs: BTreeMap<JobId, Service>,
    /// Jobs that can use a slot, by level and then by age.
    waiting_jobs: PerPhase<RankedQueue<JobId, u32>>,
}

/// The slot time of a job.
#[derive(Debug, Clone, Copy, Default)]
struct Service {
    /// Slot seconds up to `until`.
    used_s: f64,
    /// Number of slots since `until`.
    slots: u32,
    until: Time,
}

impl Las {
    /// Reads the parameters.
    pub fn new(section: &mut Section<'_>) -> Self {
        let about = "slot time of the jobs in the lowest level";
        let quantum = section.period("quantum", Span::secs(10), about);
        let about = "an attempt is not preempted for this long after its launch";
        Self {
            quantum_s: quantum.as_secs_f64(),
            newly_launched: section.span("newly_launched", Span::secs(10), about),
            preempt_mode: section.preempt_mode(),
            jobs: BTreeMap::new(),
            waiting_jobs: PerPhase::default(),
        }
    }

    fn used_s(&self, job: JobId) -> f64 {
        self.jobs.get(&job).map_or(0.0, |service| service.used_s)
    }

    fn level(&self, job: JobId) -> u32 {
        let quanta = (self.used_s(job) / self.quantum_s) as u64;
        u64::BITS - quanta.leading_zeros()
    }

    /// Updates the slot time and the place of a job.
    fn refresh(&mut self, id: JobId, now: Time, cluster: &Cluster) {
        let Some(job) = cluster.job(id).filter(|job| job.is_running()) else {
            self.jobs.remove(&id);
            for phase in Phase::BOTH {
                self.waiting_jobs[phase].set(id, None);
            }
            return;
        };
        let service = self.jobs.entry(id).or_insert(Service { until: now, ..Service::default() });
        service.used_s += f64::from(service.slots) * now.since(service.until).as_secs_f64();
        service.until = now;
        service.slots = Phase::BOTH.into_iter().map(|phase| job.running[phase].len() as u32).sum();
        let level = self.level(id);
        for phase in Phase::BOTH {
            let waits = job.may_start(phase) && !job.pending[phase].is_empty();
            self.waiting_jobs[phase].set(id, waits.then_some(level));
        }
    }

    fn next(&self, phase: Phase, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        let mut jobs = self.waiting_jobs[phase].iter().filter_map(|id| plan.cluster().job(id));
        jobs.find_map(|job| self.task_for(job, phase, tracker, plan))
    }

    fn task_for(
        &self,
        job: &Job,
        phase: Phase,
        tracker: TrackerId,
        plan: &Plan<'_>,
    ) -> Option<(TaskId, Why)> {
        let (task, why) = match phase {
            Phase::Map => {
                let (task, near) = plan.next_map(job, tracker, Locality::OffRack)?;
                let rules =
                    ["least-service,node-local", "least-service,rack-local", "least-service,off-rack"];
                (task, locality_reason(rules, near))
            }
            Phase::Reduce => (plan.next_reduce(job, tracker)?, Why::rule("least-service")),
        };
        Some((task, why.with("used", self.used_s(job.id))))
    }
}

impl PreemptionRules for Las {
    fn deficit(&self, job: &Job, phase: Phase, plan: &Plan<'_>) -> u32 {
        (plan.startable_tasks(job, phase) as u32).min(plan.cluster().slots(phase))
    }

    fn may_preempt_from(&self, to: JobId, from: JobId, _phase: Phase, _plan: &Plan<'_>) -> bool {
        self.level(from) > self.level(to)
    }

    fn is_protected(&self, victim: &Attempt, plan: &Plan<'_>) -> bool {
        plan.now().since(victim.launched) < self.newly_launched || plan.has_just_resumed(victim)
    }

    fn task_in_slot(&self, job: &Job, victim: &Attempt, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        self.task_for(job, victim.id.phase(), victim.tracker, plan)
    }

    fn reason(&self, victim: AttemptId, beneficiary: JobId, _plan: &Plan<'_>) -> Why {
        let why = Why::rule("more-service").with("used", self.used_s(victim.job()));
        why.with("less", self.used_s(beneficiary)).with_beneficiary(beneficiary)
    }
}

impl Scheduler for Las {
    fn name(&self) -> &'static str {
        "las"
    }

    fn observe(&mut self, now: Time, fact: &Fact, cluster: &Cluster) {
        // Nobody knows how long tasks ran while the JobTracker was down.
        if let Fact::JobTrackerStarted { .. } = fact {
            self.jobs.values_mut().for_each(|service| service.until = now);
        }
        if let Some(job) = fact.job() {
            self.refresh(job, now, cluster);
        }
    }

    fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
        match round.cause {
            Cause::Offer(tracker) => fill(plan, tracker, |plan, phase| self.next(phase, tracker, plan)),
            Cause::Tick => {
                let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
                for job in jobs {
                    self.refresh(job, round.now, plan.cluster());
                }
                for phase in Phase::BOTH {
                    let running = plan.cluster().active_jobs().filter(|job| !job.running[phase].is_empty());
                    let highest = running.map(|job| self.level(job.id)).max().unwrap_or(0);
                    let waiting = self.waiting_jobs[phase].iter();
                    let waiting: Vec<JobId> = waiting.take_while(|job| self.level(*job) < highest).collect();
                    if waiting.is_empty() {
                        continue;
                    }
                    let progress = |done: f32| Reverse((f64::from(done) * 1000.0) as u32);
                    let key =
                        |attempt: &Attempt, done| (self.level(attempt.id.job()), progress(done), attempt.id);
                    let victims = Victims::greatest_first(phase, plan, key);
                    preempt_for_jobs(&waiting, phase, victims, self, self.preempt_mode, plan);
                }
            }
        }
    }

    fn tick_interval(&self) -> Option<Span> {
        Some(INTERVAL)
    }

    fn outranks(&self, a: JobId, b: JobId, _phase: Phase, _plan: &Plan<'_>) -> bool {
        (self.level(a), a) < (self.level(b), b)
    }

    fn explain(&self, job: &Job, _now: Time, _cluster: &Cluster) -> Vec<Why> {
        let waits = |phase: &Phase| self.waiting_jobs[*phase].key(job.id).is_some();
        let reason = |phase: Phase| {
            let ahead = self.waiting_jobs[phase].ahead_of(job.id).count() as f64;
            Why::rule("less-service-first").with("used", self.used_s(job.id)).with("jobs_ahead", ahead)
        };
        Phase::BOTH.into_iter().filter(waits).map(reason).take(1).collect()
    }
}
