//! Fewest remaining tasks first, with lossless preemption.
//!
//! A free slot goes to the job with the fewest tasks that are not done, and among equal ones to the
//! oldest. Every second, jobs with pending tasks preempt attempts of jobs that have at least
//! `factor` times as many remaining tasks, those with the least progress first.

use mrcore::{
    Cluster, Fact, PerPhase, Phase, Plan, Scheduler, Span, Time, Why,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::Job,
    plan::{Locality, PreemptMode},
    scheduler::{Cause, Round},
    task::Attempt,
};
use schedulers::{
    Policy, Section,
    explain::RuleText,
    fill::fill,
    ranked_queue::RankedQueue,
    victims::{PreemptionRules, Victims, preempt_for_jobs},
};
use std::cmp::Reverse;

/// The policies of this crate.
pub(crate) const POLICIES: &[Policy] = &[Policy {
    name: "my-scheduler",
    section: "my-scheduler",
    about: "slots go to the job with the fewest remaining tasks, also by preemption",
    rule_texts: RULE_TEXTS,
    build: |section| Box::new(FewestTasks::new(section)),
}];

/// The texts of its rules, for people.
const RULE_TEXTS: &[RuleText] = &[
    ("fewest-tasks", "its job has the fewest remaining tasks ({tasks}) of those that can use the slot"),
    ("fewer-tasks-first", "{jobs job has|jobs have} fewer remaining tasks, or came earlier"),
    ("more-tasks", "its job has more remaining tasks than {for_job:job}, which gets the slot"),
];

/// The policy.
#[derive(Debug)]
struct FewestTasks {
    factor: f64,
    protected: Span,
    preempt_mode: PreemptMode,
    /// Jobs that can use a slot, by their number of remaining tasks and then by age.
    waiting_jobs: PerPhase<RankedQueue<JobId, usize>>,
}

impl FewestTasks {
    fn new(section: &mut Section<'_>) -> Self {
        let about = "how many times as many remaining tasks a job has that is preempted";
        let factor = section.number("factor", 2.0, 1.0..=1e6, about);
        let about = "an attempt is not preempted for this long after its launch";
        Self {
            factor,
            protected: section.span("protected", Span::secs(10), about),
            preempt_mode: section.preempt_mode(),
            waiting_jobs: PerPhase::default(),
        }
    }

    /// Returns the task of a job that a tracker should run, with the reason.
    fn task_for(job: &Job, phase: Phase, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        let task = match phase {
            Phase::Map => plan.next_map(job, tracker, Locality::OffRack)?.0,
            Phase::Reduce => plan.next_reduce(job, tracker)?,
        };
        Some((task, Why::rule("fewest-tasks").with("tasks", remaining_tasks(job) as f64)))
    }
}

/// Returns the number of tasks of a job that are not done.
fn remaining_tasks(job: &Job) -> usize {
    let left = |phase: Phase| job.tasks[phase].len() - job.succeeded[phase] as usize;
    left(Phase::Map) + left(Phase::Reduce)
}

impl Scheduler for FewestTasks {
    fn name(&self) -> &'static str {
        "my-scheduler"
    }

    // Keep this cheap: it is called for every fact.
    fn observe(&mut self, _now: Time, fact: &Fact, cluster: &Cluster) {
        let Some(id) = fact.job() else { return };
        for phase in Phase::BOTH {
            let waits = |job: &&Job| job.may_start(phase) && !job.pending[phase].is_empty();
            let job = cluster.job(id).filter(waits);
            self.waiting_jobs[phase].set(id, job.map(remaining_tasks));
        }
    }

    fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
        match round.cause {
            Cause::Offer(tracker) => fill(plan, tracker, |plan, phase| {
                let mut jobs = self.waiting_jobs[phase].iter().filter_map(|id| plan.cluster().job(id));
                jobs.find_map(|job| Self::task_for(job, phase, tracker, plan))
            }),
            Cause::Tick => {
                for phase in Phase::BOTH {
                    let waiting: Vec<JobId> = self.waiting_jobs[phase].iter().collect();
                    let cluster = plan.cluster();
                    let tasks = |job: JobId| cluster.job(job).map_or(0, remaining_tasks);
                    let progress = |done: f32| Reverse((done * 1000.0) as u32);
                    let key = |attempt: &Attempt, done| (tasks(attempt.id.job()), progress(done), attempt.id);
                    let victims = Victims::greatest_first(phase, plan, key);
                    preempt_for_jobs(&waiting, phase, victims, self, self.preempt_mode, plan);
                }
            }
        }
    }

    fn tick_interval(&self) -> Option<Span> {
        Some(Span::secs(1))
    }

    fn outranks(&self, a: JobId, b: JobId, _phase: Phase, plan: &Plan<'_>) -> bool {
        let key = |id: JobId| plan.cluster().job(id).map(|job| (remaining_tasks(job), id));
        key(a).zip(key(b)).is_some_and(|(a, b)| a < b)
    }

    fn explain(&self, job: &Job, _now: Time, _cluster: &Cluster) -> Vec<Why> {
        let phase = Phase::BOTH.into_iter().find(|phase| self.waiting_jobs[*phase].key(job.id).is_some());
        let ahead = |phase: Phase| self.waiting_jobs[phase].ahead_of(job.id).count() as f64;
        phase.map(|phase| Why::rule("fewer-tasks-first").with("jobs", ahead(phase))).into_iter().collect()
    }
}

impl PreemptionRules for FewestTasks {
    fn deficit(&self, job: &Job, phase: Phase, plan: &Plan<'_>) -> u32 {
        (plan.startable_tasks(job, phase) as u32).min(plan.cluster().slots(phase))
    }

    fn may_preempt_from(&self, to: JobId, from: JobId, _phase: Phase, plan: &Plan<'_>) -> bool {
        let tasks = |id: JobId| plan.cluster().job(id).map(|job| remaining_tasks(job) as f64);
        tasks(to).zip(tasks(from)).is_some_and(|(to, from)| from >= to * self.factor && from > to)
    }

    fn is_protected(&self, victim: &Attempt, plan: &Plan<'_>) -> bool {
        plan.now().since(victim.launched) < self.protected || plan.has_just_resumed(victim)
    }

    fn task_in_slot(&self, job: &Job, victim: &Attempt, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        Self::task_for(job, victim.id.phase(), victim.tracker, plan)
    }

    fn reason(&self, _victim: AttemptId, beneficiary: JobId, _plan: &Plan<'_>) -> Why {
        Why::rule("more-tasks").with_beneficiary(beneficiary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file has a small cluster, events, and below `----` the expected decisions.
    #[test]
    fn scenario_has_the_expected_decisions() {
        let written = include_str!("../scenarios/preemption.txt");
        let make = |name: &str, params: &_| {
            schedulers::make_with(POLICIES, name, params).map_err(|error| error.to_string())
        };
        let played = mrcore::scenario::run(written, "my-scheduler", &make, &mrcore::invariants::check);
        let played = played.unwrap_or_else(|error| panic!("{error}"));
        assert!(played == written, "actual decisions; review them and copy them to the file:\n{played}");
    }
}
