//! Chronos: work lost with a machine gets slots back at once, near its data, under the ranking of any other policy.
//!
//! Yildiz et al. (2015). When a tracker is lost, what ran on it, and maps whose output went with it and is needed,
//! are *recovery tasks*. Each is paired with a victim: a running attempt on a host of its input (for a reduce, on
//! any), of a job that its own job outranks under the inner policy; of these the lowest-ranked job's, then the one that
//! has done least. The victim's slot is preempted by split or pause and reserved. When no victim is outranked any more,
//! the inner rule holds, and the rest waits its turn. Victims go on later like any waiting task.
//! Differs from the paper: with `early = suspect` it acts when a tracker falls silent or its connection breaks, by
//! duplicates that failed if the tracker is heard of again (only for jobs that allow duplicates). Input that is
//! on no live host may have a victim anywhere.
//! Deliberately absent: any ranking of its own.

use mrcore::{
    Cluster, Fact, Phase, Plan, Refused, Scheduler, Span, Time, Why,
    compute::{Numbers, Problem},
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::Job,
    plan::{Locality, PreemptMode},
    scheduler::{Cause, Round},
    task::Attempt,
    tracker::TrackerState,
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::params::Section;

/// Work that has found no slot is looked at this often.
const RETRY_INTERVAL: Span = Span::secs(1);

/// What its rules mean in words.
pub const RULE_TEXTS: &[crate::explain::RuleText] = &[
    (
        "recovery",
        "[the slot goes to work of {for_job:job} that was lost with a node][!for_job it was lost with a node and goes first]",
    ),
    (
        "lost-with-tracker",
        "{tasks task was|tasks were} lost with a node, and slots near the input are preempted",
    ),
];

/// The wrapper.
#[derive(Debug)]
pub struct Chronos {
    inner: Box<dyn Scheduler>,
    name: String,
    /// Whether a tracker that is only suspect counts.
    acts_on_suspicion: bool,
    preempt_mode: PreemptMode,
    /// Tasks whose work went with a machine, and that have not been launched since.
    lost: BTreeSet<TaskId>,
    /// Some of them are new.
    has_new_work: bool,
}

impl Chronos {
    /// Around a policy.
    pub fn new(inner: Box<dyn Scheduler>, section: &mut Section<'_>) -> Self {
        let about = "act when a tracker is suspect, or only when it is lost";
        let acts_on_suspicion = section.choice("early", &[("suspect", true), ("lost", false)], about);
        let (name, preempt_mode) = (format!("chronos({})", inner.name()), section.preempt_mode());
        Self { inner, name, acts_on_suspicion, preempt_mode, lost: BTreeSet::new(), has_new_work: false }
    }

    /// Takes down what a fact says of work that went with a machine.
    fn note(&mut self, fact: &Fact, cluster: &Cluster) {
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
            // What could not be fetched from a machine that is there is no loss of a machine.
            Fact::AttemptKilled { attempt, .. } | Fact::MapOutputLost { attempt, .. }
                if was_on_lost_tracker(*attempt, cluster) =>
            {
                self.add_lost_task(attempt.task);
            }
            Fact::AttemptLaunched { attempt, .. } | Fact::AttemptSucceeded { attempt, .. } => {
                self.lost.remove(&attempt.task);
            }
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => {
                self.lost.retain(|task| task.job != *job);
            }
            // What was lost before a restart has waited so long that the inner policy may have it.
            Fact::JobTrackerStarted { .. } => self.lost.clear(),
            _ => {}
        }
    }

    fn add_lost_task(&mut self, task: TaskId) {
        self.has_new_work |= self.lost.insert(task);
    }

    /// Finds a slot for each recovery task, as far as the inner policy's ranking goes.
    fn recover(&mut self, plan: &mut Plan<'_>) {
        let cluster = plan.cluster();
        let urgency = |task: &TaskId| (Reverse(cluster.job(task.job).map(|job| job.spec.priority)), *task);
        let mut tasks: Vec<TaskId> = self.lost.iter().copied().collect();
        tasks.sort_by_key(urgency);
        // Those for which one place is like another: where one of a job finds none, none of it does in this round.
        let mut in_vain: BTreeSet<(JobId, Phase)> = BTreeSet::new();
        for task in tasks {
            let kind = (task.job, task.phase);
            if plan.reserved_place(task).is_some() || in_vain.contains(&kind) {
                continue;
            }
            match self.place(task, plan) {
                Placement::Done => {
                    self.lost.remove(&task);
                }
                Placement::Impossible => {
                    in_vain.insert(kind);
                }
                Placement::Waiting => {}
            }
        }
    }

    /// Finds a slot for one task, or has one given back for it.
    fn place(&self, task: TaskId, plan: &mut Plan<'_>) -> Placement {
        // A maximum holds for work that was lost, too.
        if !self.inner.may_have_slot(task.job, task.phase, plan) {
            return Placement::Waiting;
        }
        let (candidate_trackers, anywhere) = candidate_trackers(task, plan);
        let free = candidate_trackers
            .iter()
            .find(|tracker| plan.free(**tracker, task.phase) > 0 && plan.could_run(task, **tracker).is_ok());
        if let Some(tracker) = free {
            let assigned = plan.assign(task, *tracker, recovery(task, *tracker, plan));
            return if assigned.is_ok() { Placement::Done } else { Placement::Waiting };
        }
        // It runs already, or its tracker was heard of again.
        if candidate_trackers
            .iter()
            .any(|tracker| matches!(plan.could_run(task, *tracker), Err(Refused::NotPending(_))))
        {
            return Placement::Done;
        }
        let Some((victim, tracker)) = self.victim(task, &candidate_trackers, plan) else {
            return if anywhere { Placement::Impossible } else { Placement::Waiting };
        };
        let why = Why::rule("recovery").benefit(task.job);
        if plan.reserve(task, tracker, recovery(task, tracker, plan)).is_ok() {
            // Known to be possible; and a promise without a victim would only lapse.
            let _ = plan.preempt_in_mode(victim, self.preempt_mode, why);
        }
        Placement::Waiting
    }

    /// The attempt that should give its slot to a task: of the lowest-ranked job, then the one that has done least.
    fn victim(
        &self,
        task: TaskId,
        candidate_trackers: &[TrackerId],
        plan: &Plan<'_>,
    ) -> Option<(AttemptId, TrackerId)> {
        let cluster = plan.cluster();
        // Of each job the one that has done least: jobs are ranked once, not for each attempt.
        let mut least: BTreeMap<JobId, &Attempt> = BTreeMap::new();
        for tracker in candidate_trackers.iter().filter_map(|tracker| cluster.tracker(*tracker)) {
            if plan.could_run(task, tracker.id).is_err() {
                continue;
            }
            for id in &tracker.running[task.phase] {
                let Some(attempt) = cluster.attempt(*id).filter(|_| !plan.is_preempted(*id)) else {
                    continue;
                };
                if cluster.may_preempt(*id, mrcore::task::PreemptKind::Kill).is_ok() {
                    let known = least.entry(id.job()).or_insert(attempt);
                    if has_less_progress(attempt, known) {
                        *known = attempt;
                    }
                }
            }
        }
        let mut worst: Option<&Attempt> = None;
        for attempt in least.into_values() {
            if self.inner.outranks(task.job, attempt.id.job(), task.phase, plan)
                && worst.is_none_or(|worst| self.is_worse(attempt, worst, plan))
            {
                worst = Some(attempt);
            }
        }
        worst.map(|attempt| (attempt.id, attempt.tracker))
    }

    fn is_worse(&self, a: &Attempt, b: &Attempt, plan: &Plan<'_>) -> bool {
        let (job_a, job_b) = (a.id.job(), b.id.job());
        let phase = a.id.phase();
        if job_a != job_b {
            if self.inner.outranks(job_b, job_a, phase, plan) {
                return true;
            }
            if self.inner.outranks(job_a, job_b, phase, plan) {
                return false;
            }
        }
        has_less_progress(a, b)
    }
}

/// Of two that have done as much, the later one.
fn has_less_progress(a: &Attempt, b: &Attempt) -> bool {
    a.progress.done.total_cmp(&b.progress.done).then(b.id.cmp(&a.id)).is_lt()
}

/// What came of the search for a recovery task's slot.
enum Placement {
    /// There is nothing left to do for it.
    Done,
    /// It is tried again.
    Waiting,
    /// No tracker at all has one, or a victim.
    Impossible,
}

/// Live trackers where a task's victims are sought: on hosts of its input, if there are any; else all, which is said.
fn candidate_trackers(task: TaskId, plan: &Plan<'_>) -> (Vec<TrackerId>, bool) {
    let cluster = plan.cluster();
    let hosts = cluster.task(task).map_or(&[][..], |task| &task.hosts);
    let near = hosts.iter().flat_map(|host| cluster.trackers_on(*host));
    let near: BTreeSet<TrackerId> = near.filter(|tracker| plan.is_live(*tracker)).collect();
    if !near.is_empty() {
        return (near.into_iter().collect(), false);
    }
    (cluster.trackers().filter(|tracker| tracker.accepts_work()).map(|tracker| tracker.id).collect(), true)
}

fn recovery(task: TaskId, on: TrackerId, plan: &Plan<'_>) -> Why {
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
        self.note(fact, cluster);
        self.inner.observe(now, fact, cluster);
    }

    fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
        // A slot that is offered is the inner policy's to give.
        if round.cause == Cause::Tick {
            self.has_new_work = false;
            self.recover(plan);
        }
        self.inner.decide(round, plan);
    }

    fn outranks(&self, a: JobId, b: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        self.inner.outranks(a, b, phase, plan)
    }

    fn may_have_slot(&self, job: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        self.inner.may_have_slot(job, phase, plan)
    }

    fn tick_every(&self) -> Option<Span> {
        let own = (!self.lost.is_empty()).then_some(RETRY_INTERVAL);
        [own, self.inner.tick_every()].into_iter().flatten().min()
    }

    fn needs_round(&self) -> bool {
        self.has_new_work || self.inner.needs_round()
    }

    fn explain(&self, job: &Job, now: Time, cluster: &Cluster) -> Vec<Why> {
        let lost = self.lost.iter().filter(|task| task.job == job.id).count();
        let own = (lost > 0).then(|| Why::rule("lost-with-tracker").with("tasks", lost as f64));
        own.into_iter().chain(self.inner.explain(job, now, cluster)).collect()
    }

    fn next_problem(&mut self) -> Option<Problem> {
        self.inner.next_problem()
    }

    fn solved(&mut self, now: Time, answer: &Numbers, cluster: &Cluster) {
        self.inner.solved(now, answer, cluster);
    }

    fn placement(&self, source: &str) -> Vec<TrackerId> {
        self.inner.placement(source)
    }
}
