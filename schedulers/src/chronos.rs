//! Chronos: tasks that were lost with a node get slots at once, near their input, under the ranking
//! of any other policy.
//!
//! Yildiz et al. (2015). When a tracker is lost, the tasks that ran on it, the maps whose output
//! was lost with it and is still needed, and the paused reduces whose checkpoint was on it are
//! *recovery tasks*. They are placed in the order of their jobs under the inner policy. Each gets a
//! victim: a running attempt on a host of its input (for a reduce, on any host) of a job that the
//! job of the task outranks under the inner policy. Among these, an attempt of the lowest-ranked
//! job is chosen, then the one with the least progress. The victim is split or paused, and its slot
//! is reserved. When no outranked attempt is left, the remaining recovery tasks wait like other
//! pending tasks. A victim resumes later as an ordinary pending task.
//!
//! Differs from the paper: with `early = suspect`, Chronos acts when a tracker becomes suspect, by
//! launching speculative attempts of the tasks there (only for jobs that allow them). If the
//! tracker recovers, the first attempt of a task to finish counts. If no live host has the input of
//! a task, its victim may be anywhere. Recovery tasks without a slot are tried again every second,
//! and lost checkpoints count as lost tasks. `literal = true` reverts all of these.
//!
//! Chronos has no ranking of its own.

use mrcore::{
    AcceptedSlots, Cluster, Fact, Phase, Plan, Refused, Scheduler, Span, Time, Why,
    compute::{Numbers, Problem},
    fact::TRACKER_LOST,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::Job,
    plan::{Locality, PreemptMode},
    scheduler::{Cause, Round},
    task::{Attempt, PreemptKind},
    tracker::TrackerState,
};
use std::collections::{BTreeMap, BTreeSet};

use crate::params::Section;

/// How often recovery tasks without a slot are tried again.
const RETRY_INTERVAL: Span = Span::secs(1);

/// The texts of the rules of this policy.
pub const RULE_TEXTS: &[crate::explain::RuleText] = &[
    (
        "recovery",
        "[the slot goes to a task of {for_job:job} that was lost with its node][!for_job it was lost with its node and has precedence]",
    ),
    (
        "lost-with-tracker",
        "{tasks task was|tasks were} lost with a node: attempts near the input are preempted",
    ),
];

/// The `chronos` policy, which wraps another policy.
#[derive(Debug)]
pub struct Chronos {
    inner: Box<dyn Scheduler>,
    name: String,
    /// Whether only the rules of the paper are used.
    literal: bool,
    /// Whether Chronos acts when a tracker becomes suspect, and not only when it is lost.
    acts_on_suspicion: bool,
    preempt_mode: PreemptMode,
    /// Recovery tasks that have not been launched since.
    lost_tasks: BTreeSet<TaskId>,
    /// Whether there are new recovery tasks.
    has_new_lost_tasks: bool,
}

impl Chronos {
    /// Wraps a policy.
    pub fn new(inner: Box<dyn Scheduler>, section: &mut Section<'_>) -> Self {
        let about = "only the rules of the paper: lost checkpoints do not count, maps are placed only near their input, each task \
                     is tried once; also early lost unless it is set";
        let literal = section.flag("literal", false, about);
        let about = "act when a tracker is suspect, or only when it is lost";
        let mut words = [("suspect", true), ("lost", false)];
        if literal {
            words.reverse();
        }
        let acts_on_suspicion = section.choice("early", &words, about);
        let name = format!("chronos({})", inner.name());
        Self { name, literal, acts_on_suspicion, ..Self::part_of(inner, section.preempt_mode()) }
    }

    /// Wraps a policy that has recovery as one of its rules, with the default parameters.
    pub fn part_of(inner: Box<dyn Scheduler>, preempt_mode: PreemptMode) -> Self {
        Self {
            name: inner.name().to_owned(),
            inner,
            literal: false,
            acts_on_suspicion: true,
            preempt_mode,
            lost_tasks: BTreeSet::new(),
            has_new_lost_tasks: false,
        }
    }

    /// Updates the list of recovery tasks.
    fn update_lost_tasks(&mut self, fact: &Fact, cluster: &Cluster) {
        match fact {
            Fact::TrackerSuspected { tracker, .. } if self.acts_on_suspicion => {
                let running = cluster.tracker(*tracker).map(|tracker| &tracker.running);
                let running =
                    running.into_iter().flat_map(|running| running.map.iter().chain(&running.reduce));
                let tasks: Vec<TaskId> = running.map(|attempt| attempt.task).collect();
                for task in tasks {
                    self.add_lost_task(task);
                }
            }
            // A map whose output could not be fetched from a live tracker is not a recovery task.
            Fact::AttemptKilled { attempt, .. } | Fact::MapOutputLost { attempt, .. }
                if was_on_lost_tracker(*attempt, cluster) =>
            {
                self.add_lost_task(attempt.task);
            }
            // The reduce may already have resumed elsewhere.
            Fact::CheckpointLost { attempt, why }
                if !self.literal
                    && why == TRACKER_LOST
                    && cluster
                        .task(attempt.task)
                        .is_some_and(|task| task.viable_attempts().next().is_none()) =>
            {
                self.add_lost_task(attempt.task);
            }
            Fact::AttemptLaunched { attempt, .. } | Fact::AttemptSucceeded { attempt, .. } => {
                self.lost_tasks.remove(&attempt.task);
            }
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => {
                self.lost_tasks.retain(|task| task.job != *job);
            }
            // Tasks that were lost before a restart of the JobTracker are placed by the inner
            // policy.
            Fact::JobTrackerStarted { .. } => self.lost_tasks.clear(),
            _ => {}
        }
    }

    fn add_lost_task(&mut self, task: TaskId) {
        self.has_new_lost_tasks |= self.lost_tasks.insert(task);
    }

    /// Finds slots for recovery tasks, as far as the ranking of the inner policy allows.
    fn recover(&mut self, plan: &mut Plan<'_>) {
        let tasks = self.ordered_lost_tasks(plan);
        // Jobs and phases for whose tasks no slot was found on any tracker in this round.
        let mut without_slot: BTreeSet<(JobId, Phase)> = BTreeSet::new();
        for task in tasks {
            let kind = (task.job, task.phase);
            if plan.reserved_place(task).is_some() || without_slot.contains(&kind) {
                continue;
            }
            match self.find_slot(task, plan) {
                Placement::Done => {
                    self.lost_tasks.remove(&task);
                }
                Placement::Impossible => {
                    without_slot.insert(kind);
                }
                Placement::Waiting => {}
            }
        }
        if self.literal {
            // The paper acts once, when the failure is detected. Tasks without a slot wait like
            // other pending tasks.
            self.lost_tasks.clear();
        }
    }

    /// Returns the recovery tasks in the order of their jobs under the inner policy: a job comes
    /// after all jobs that outrank it.
    fn ordered_lost_tasks(&self, plan: &Plan<'_>) -> Vec<TaskId> {
        let mut ranks: BTreeMap<(Phase, JobId), usize> = BTreeMap::new();
        for phase in Phase::BOTH {
            let tasks = self.lost_tasks.iter().filter(|task| task.phase == phase);
            let jobs: BTreeSet<JobId> = tasks.map(|task| task.job).collect();
            // `outranks` may be no total order, so jobs are ordered by the number of jobs above
            // them.
            let rank =
                |job: &JobId| jobs.iter().filter(|other| self.outranks(**other, *job, phase, plan)).count();
            ranks.extend(jobs.iter().map(|job| ((phase, *job), rank(job))));
        }
        let mut tasks: Vec<TaskId> = self.lost_tasks.iter().copied().collect();
        tasks.sort_by_key(|task| (ranks.get(&(task.phase, task.job)).copied(), *task));
        tasks
    }

    /// Finds a slot for one task, or preempts an attempt for it.
    fn find_slot(&self, task: TaskId, plan: &mut Plan<'_>) -> Placement {
        // The maximum of the inner policy applies to recovery tasks, too.
        if !self.inner.may_have_slot(task.job, task.phase, plan) {
            return Placement::Waiting;
        }
        let (candidate_trackers, anywhere) = candidate_trackers(task, plan);
        if self.literal && anywhere && task.phase == Phase::Map {
            return Placement::Impossible;
        }
        let free = candidate_trackers.iter().find(|tracker| {
            plan.free_slots(**tracker, task.phase) > 0 && plan.could_run(task, **tracker).is_ok()
        });
        if let Some(tracker) = free {
            let assigned = plan.assign(task, *tracker, recovery_reason(task, *tracker, plan));
            return if assigned.is_ok() { Placement::Done } else { Placement::Waiting };
        }
        // The task is no longer pending: it already has an attempt, or its tracker has recovered.
        if candidate_trackers
            .iter()
            .any(|tracker| matches!(plan.could_run(task, *tracker), Err(Refused::NotPending(_))))
        {
            return Placement::Done;
        }
        let Some((victim, tracker)) = self.choose_victim(task, &candidate_trackers, plan) else {
            return if anywhere { Placement::Impossible } else { Placement::Waiting };
        };
        let why = Why::rule("recovery").with_beneficiary(task.job);
        if plan
            .reserve(task, (tracker, AcceptedSlots::EquallyNear), recovery_reason(task, tracker, plan))
            .is_ok()
        {
            // The preemption cannot fail. If it did, the reservation would lapse.
            let _ = plan.preempt_in_mode(victim, self.preempt_mode, why);
        }
        Placement::Waiting
    }

    /// Returns the attempt to preempt for a task: an attempt of the lowest-ranked job, and among
    /// those the one with the least progress.
    fn choose_victim(
        &self,
        task: TaskId,
        candidate_trackers: &[TrackerId],
        plan: &Plan<'_>,
    ) -> Option<(AttemptId, TrackerId)> {
        let cluster = plan.cluster();
        // The attempt with the least progress of each job, so that jobs are ranked once and not for
        // each attempt.
        let mut least: BTreeMap<JobId, (&Attempt, f32)> = BTreeMap::new();
        for tracker in candidate_trackers.iter().filter_map(|tracker| cluster.tracker(*tracker)) {
            if plan.could_run(task, tracker.id).is_err() {
                continue;
            }
            for id in &tracker.running[task.phase] {
                let Some(attempt) = cluster.attempt(*id).filter(|_| !plan.is_preempted(*id)) else {
                    continue;
                };
                if plan.preempt_kind(*id, self.preempt_mode).is_some()
                    && cluster.may_preempt(*id, PreemptKind::Kill).is_ok()
                {
                    let candidate = (attempt, cluster.progress(attempt).done);
                    let known = least.entry(id.job()).or_insert(candidate);
                    if has_less_progress(candidate, *known) {
                        *known = candidate;
                    }
                }
            }
        }
        let mut worst: Option<(&Attempt, f32)> = None;
        for candidate in least.into_values() {
            if self.outranks(task.job, candidate.0.id.job(), task.phase, plan)
                && worst.is_none_or(|worst| self.is_worse(candidate, worst, plan))
            {
                worst = Some(candidate);
            }
        }
        worst.map(|(attempt, _)| (attempt.id, attempt.tracker))
    }

    /// Returns whether attempt `a` should be preempted before attempt `b`: its job ranks lower, or
    /// the jobs rank equally and it has less progress. Both attempts are given with their progress.
    fn is_worse(&self, a: (&Attempt, f32), b: (&Attempt, f32), plan: &Plan<'_>) -> bool {
        let (job_a, job_b) = (a.0.id.job(), b.0.id.job());
        let phase = a.0.id.phase();
        if job_a != job_b {
            if self.outranks(job_b, job_a, phase, plan) {
                return true;
            }
            if self.outranks(job_a, job_b, phase, plan) {
                return false;
            }
        }
        has_less_progress(a, b)
    }
}

/// Returns whether attempt `a` has less progress than attempt `b`. Of two attempts with the same
/// progress, the one with the higher ID counts as having less.
fn has_less_progress((a, done_a): (&Attempt, f32), (b, done_b): (&Attempt, f32)) -> bool {
    done_a.total_cmp(&done_b).then(b.id.cmp(&a.id)).is_lt()
}

/// The result of the search for a slot.
enum Placement {
    /// The task has a slot, or no longer needs one.
    Done,
    /// No slot was found near the input, or a slot is being released. The task is tried again.
    Waiting,
    /// No tracker has a free slot or a victim.
    Impossible,
}

/// Returns the live trackers where a slot is searched: those on hosts of the input, or all if there
/// are none. The flag is `true` if all trackers are returned.
fn candidate_trackers(task: TaskId, plan: &Plan<'_>) -> (Vec<TrackerId>, bool) {
    let cluster = plan.cluster();
    let hosts = cluster.task(task).map_or(&[][..], |task| &task.hosts);
    let near = hosts.iter().flat_map(|host| cluster.trackers_on(*host));
    let near: BTreeSet<TrackerId> = near.filter(|tracker| plan.accepts_work(*tracker)).collect();
    if !near.is_empty() {
        return (near.into_iter().collect(), false);
    }
    (cluster.trackers().filter(|tracker| tracker.accepts_work()).map(|tracker| tracker.id).collect(), true)
}

fn recovery_reason(task: TaskId, on: TrackerId, plan: &Plan<'_>) -> Why {
    match plan.locality(task, on) {
        Locality::NodeLocal => Why::rule("recovery,node-local"),
        _ => Why::rule("recovery"),
    }
}

fn was_on_lost_tracker(attempt: AttemptId, cluster: &Cluster) -> bool {
    let on = cluster.attempt(attempt).and_then(|attempt| cluster.tracker(attempt.output_on));
    on.is_some_and(|tracker| tracker.state == TrackerState::Lost)
}

impl Scheduler for Chronos {
    fn name(&self) -> &str {
        &self.name
    }

    fn observe(&mut self, now: Time, fact: &Fact, cluster: &Cluster) {
        self.update_lost_tasks(fact, cluster);
        self.inner.observe(now, fact, cluster);
    }

    fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
        // The inner policy decides about offered slots.
        if round.cause == Cause::Tick {
            self.has_new_lost_tasks = false;
            self.recover(plan);
        }
        self.inner.decide(round, plan);
    }

    fn outranks(&self, a: JobId, b: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        if self.literal {
            self.inner.outranks_by_share(a, b, phase, plan)
        } else {
            self.inner.outranks(a, b, phase, plan)
        }
    }

    fn may_have_slot(&self, job: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        self.inner.may_have_slot(job, phase, plan)
    }

    fn tick_interval(&self) -> Option<Span> {
        let own = (!self.lost_tasks.is_empty()).then_some(RETRY_INTERVAL);
        [own, self.inner.tick_interval()].into_iter().flatten().min()
    }

    fn needs_round(&self) -> bool {
        self.has_new_lost_tasks || self.inner.needs_round()
    }

    fn explain(&self, job: &Job, now: Time, cluster: &Cluster) -> Vec<Why> {
        let lost = self.lost_tasks.iter().filter(|task| task.job == job.id).count();
        let own = (lost > 0).then(|| Why::rule("lost-with-tracker").with("tasks", lost as f64));
        own.into_iter().chain(self.inner.explain(job, now, cluster)).collect()
    }

    fn next_computation(&mut self) -> Option<Problem> {
        self.inner.next_computation()
    }

    fn finish_computation(&mut self, now: Time, answer: &Numbers, cluster: &Cluster) {
        self.inner.finish_computation(now, answer, cluster);
    }
}
