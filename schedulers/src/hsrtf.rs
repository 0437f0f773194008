//! Shortest remaining time first, for jobs of many tasks.
//!
//! Cheriere, Donat-Bouillud, Ibrahim and Simonin (SAC 2016). The remaining time of a job is
//! estimated every ten seconds, as if the job were alone on the cluster ([`formulas`], equations 1
//! and 2). `pu` gives every slot to the job with the shortest remaining time. `pr` divides slots in
//! inverse proportion to remaining times, with more slots for jobs that starve (equations 3 to 5).
//! `pup` and `prp` also preempt: the attempt with the least progress, of the job with the longest
//! remaining time, for a job with a shorter one. A preempted slot is reserved for that job, which
//! then does not wait for locality. Reduces wait a while for a tracker that ran maps of their job
//! or stores its input.
//!
//! Differs from the paper: equation 2 is in seconds; preemption splits and pauses, needs a margin,
//! spares attempts that were just launched or whose task was already killed, respects the shares of
//! `pr`, and also happens at once when a job arrives; under `pr` each job gets at least one slot.
//! The time of a reduce starts at the end of the maps. Reduces wait for a tracker near their job; in
//! the paper they only prefer one that has a free slot. `literal = true` reverts all of these (the
//! table is in docs/research/papers/hsrtf.md). README.md explains how ambiguous parts are read.
//!
//! Not used: users, queues, priorities.

mod estimator;
pub mod formulas;

use crate::{
    fill::{LocalityDelay, SlotOrder, fill_in_order},
    params::Section,
    ranked_queue::{RankedQueue, Real},
    shares::should_move,
    victims::{PreemptionRules, Victims, preempt_for_jobs},
};
use estimator::{Estimate, Estimator};
use mrcore::{
    Cluster, Fact, PerPhase, Phase, Plan, Scheduler, Span, Time, Why,
    ids::{AttemptId, HostId, JobId, TaskId, TrackerId},
    job::Job,
    plan::{CheckpointPlace, Locality, PreemptMode},
    scheduler::{Cause, Round},
    task::{Attempt, AttemptState, PreemptKind},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// The texts of the rules of these policies.
pub const RULE_TEXTS: &[crate::explain::RuleText] = &[
    ("remaining-time", "its job has about {remaining:s} left[, and a share of {share slot|slots}]"),
    (
        "shorter-jobs-take-map-slots",
        "the job has about {remaining:s} left[ and a share of {share map slot|map slots}]; {jobs_ahead job goes|jobs go} first\
         [; next preemption for shorter jobs in {next:s}]",
    ),
    (
        "shorter-jobs-take-reduce-slots",
        "the job has about {remaining:s} left[ and a share of {share reduce slot|reduce slots}]; {jobs_ahead job goes|jobs go} first\
         [; next preemption for shorter jobs in {next:s}]",
    ),
    (
        "longest-remaining-time",
        "its job has about {remaining:s} left, and the slot goes to {for_job:job}, which has about {shorter:s} left",
    ),
    (
        "longer-jobs-just-launched",
        "{tasks task of a longer job was|tasks of longer jobs were} launched less than {at_most:s} ago: not preempted for another {next:s}",
    ),
    (
        "no-longer-job",
        "no job with slots of this kind has more than {margin:%} of the remaining time of this job: none is preempted",
    ),
    (
        "reduces-wait-for-map-hosts",
        "its reduces wait for nodes that ran maps of the job or store its input: {waited:s} so far, at most {at_most:s}",
    ),
];

/// How slots are divided (`Pu`: all to the shortest job, `Pr`: in proportion), and whether attempts
/// are preempted (`P` at the end).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Pu,
    PuP,
    Pr,
    PrP,
}

/// The four `hsrtf` policies: [`Mode`] selects one.
#[derive(Debug)]
pub struct Hsrtf {
    mode: Mode,
    /// Whether only the rules of the paper are used.
    literal: bool,
    estimator: Estimator,
    preempt_mode: PreemptMode,
    /// A job without a slot yields to shorter jobs for at most this many times its remaining time.
    starvation_factor: f64,
    /// How many times longer the remaining time of the job of a victim must be.
    margin: f64,
    /// How long a victim must have run since its launch.
    newly_launched: Span,
    /// How long reduces wait for a tracker near the input of their job.
    colocation: LocalityDelay,
    /// Hosts of the input of each job.
    input_hosts: BTreeMap<JobId, BTreeSet<HostId>>,
    /// Jobs that can use a slot, in order.
    waiting_jobs: PerPhase<RankedQueue<JobId, (Real, Real)>>,
    /// Jobs that have arrived since the last preemption.
    arrivals: BTreeSet<JobId>,
    /// When remaining times were last estimated.
    last_estimate: Option<Time>,
}

impl Hsrtf {
    /// Reads the parameters.
    pub fn new(mode: Mode, section: &mut Section<'_>) -> Self {
        let about = "only the rules of the paper: no minimum share, preemption only at the end of an interval, of any longer job; \
                     also eq2 printed, margin 1, newly_launched 0s, colocate_wait 0s and preempt kill unless they are set";
        let literal = section.flag("literal", false, about);
        let about = "pr: a job without a slot yields to shorter jobs for at most this many times its remaining time; not used with literal";
        let starvation_factor = section.number("starvation_factor", 10.0, 0.0..=1e6, about);
        let about = "a job is preempted only if its remaining time is longer than that of the other job by this factor";
        let margin = section.number("margin", if literal { 1.0 } else { 1.25 }, 1.0..=1000.0, about);
        let about = "an attempt is not preempted for this long after its launch";
        let newly_launched = section.span("newly_launched", Span::secs(if literal { 0 } else { 10 }), about);
        let about = "how long reduces wait for a tracker that ran maps of their job or stores its input";
        let preempt_default = if literal { PreemptMode::Kill } else { PreemptMode::Lossless };
        Self {
            mode,
            literal,
            estimator: Estimator::new(literal, section),
            preempt_mode: section.preempt_mode_or(preempt_default),
            starvation_factor,
            margin,
            newly_launched,
            colocation: LocalityDelay::new(
                section.span("colocate_wait", Span::secs(if literal { 0 } else { 3 }), about),
                Span(0),
            ),
            input_hosts: BTreeMap::new(),
            waiting_jobs: PerPhase::default(),
            arrivals: BTreeSet::new(),
            last_estimate: None,
        }
    }

    fn is_pure(&self) -> bool {
        matches!(self.mode, Mode::Pu | Mode::PuP)
    }

    fn preempts(&self) -> bool {
        matches!(self.mode, Mode::PuP | Mode::PrP)
    }

    /// Returns the position of a job: by its remaining time, or by the fraction of its share that
    /// it would hold with one more slot (with `literal`, by the fraction that it holds).
    fn job_rank(&self, job: &Job, held: u32, phase: Phase) -> (Real, Real) {
        let Estimate { remaining, share, .. } = self.estimator.estimate_of(job.id);
        if self.is_pure() {
            return (Real(0.0), Real(remaining));
        }
        if self.literal {
            return (Real(f64::from(held) / share[phase].max(1e-6)), Real(remaining));
        }
        // Jobs without a slot come first, the shortest first. The time of submission is added so
        // that a job does not wait for jobs that arrive much later.
        if held == 0 {
            let submitted = Span(job.submitted.0).as_secs_f64();
            return (Real(0.0), Real(submitted + self.starvation_factor * remaining));
        }
        (Real((f64::from(held) + 1.0) / share[phase].max(1e-6)), Real(remaining))
    }

    /// Updates the position of a job from the cluster.
    fn refresh(&mut self, id: JobId, cluster: &Cluster) {
        let job = cluster.job(id);
        for phase in Phase::BOTH {
            let waits = job.filter(|job| job.may_start(phase) && !job.pending[phase].is_empty());
            let key = waits.map(|job| self.job_rank(job, job.running[phase].len() as u32, phase));
            self.waiting_jobs[phase].set(id, key);
        }
    }

    fn refresh_all(&mut self, cluster: &Cluster) {
        for job in cluster.active_jobs() {
            self.refresh(job.id, cluster);
        }
    }

    /// Preempts attempts for jobs with shorter remaining times, at most for the slots that they
    /// miss: for all jobs, or only for `only`.
    fn preempt(&self, phase: Phase, only: Option<&BTreeSet<JobId>>, plan: &mut Plan<'_>) {
        let remaining = |job: JobId| self.estimator.estimate_of(job).remaining;
        let asked = |job: &JobId| only.is_none_or(|only| only.contains(job));
        let mut in_need: Vec<JobId> = self.waiting_jobs[phase].iter().filter(asked).collect();
        in_need.sort_by_key(|job| (Real(remaining(*job)), *job));
        if self.literal {
            // Table 1 of the paper: slots are freed for the job with the shortest remaining time.
            in_need.truncate(1);
        }
        if in_need.is_empty() {
            return;
        }
        let key = |attempt: &Attempt, done: f32| {
            let done = Reverse((f64::from(done) * 1000.0) as u32);
            (Real(remaining(attempt.id.job())), done, attempt.id)
        };
        let victims = Victims::greatest_first(phase, plan, key);
        preempt_for_jobs(&in_need, phase, victims, self, self.preempt_mode, plan);
    }

    /// Explains why no attempt is preempted for a job that waits for a slot, apart from the
    /// interval between preemptions.
    fn explain_no_preemption(&self, job: &Job, phase: Phase, now: Time, cluster: &Cluster) -> Option<Why> {
        if !self.preempts() || cluster.free_trackers(phase).next().is_some() {
            return None;
        }
        let longest = self.margin * self.estimator.estimate_of(job.id).remaining;
        let longer =
            cluster.active_jobs().filter(|other| self.estimator.estimate_of(other.id).remaining > longest);
        let running = longer.flat_map(|other| &other.running[phase]).filter_map(|id| cluster.attempt(*id));
        let ages: Vec<Span> = running
            .filter(|attempt| attempt.preempt_request.is_none())
            .map(|attempt| now.since(attempt.launched))
            .collect();
        let Some(oldest) = ages.iter().max() else {
            return Some(Why::rule("no-longer-job").with("margin", self.margin));
        };
        let next = Span(self.newly_launched.0.saturating_sub(oldest.0)).as_secs_f64();
        (*oldest < self.newly_launched).then(|| {
            let why = Why::rule("longer-jobs-just-launched").with("tasks", ages.len() as f64);
            why.with("at_most", self.newly_launched.as_secs_f64()).with("next", next)
        })
    }

    fn should_move_slot(&self, to: JobId, from: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        let retained = |id: JobId| {
            let retained = plan.cluster().job(id).map_or(0, |job| plan.retained_slots(job, phase));
            (f64::from(retained), self.estimator.estimate_of(id).share[phase])
        };
        should_move(retained(to), retained(from))
    }
}

impl PreemptionRules for Hsrtf {
    /// Returns the number of slots that a job should have but does not have.
    fn deficit(&self, job: &Job, phase: Phase, plan: &Plan<'_>) -> u32 {
        let waiting = plan.startable_tasks(job, phase) as u32;
        if self.is_pure() {
            return waiting.min(plan.cluster().slots(phase));
        }
        // Shares are sums of fractions: 3.9999 counts as 4.
        let share = self.estimator.estimate_of(job.id).share[phase];
        // The paper has no minimum share. Rounded down, the share of the shortest job could be 0, and
        // the job would never get a slot early (table 1).
        let least = u32::from(self.literal && share > 0.0);
        let slots = ((share + 1e-6).floor() as u32).max(least);
        waiting.min(slots.saturating_sub(plan.retained_slots(job, phase)))
    }

    fn may_preempt_from(&self, to: JobId, from: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        let longer = self.estimator.estimate_of(from).remaining
            > self.margin * self.estimator.estimate_of(to).remaining;
        longer && (self.is_pure() || self.literal || self.should_move_slot(to, from, phase, plan))
    }

    /// An attempt is protected if it was just launched, so a split would be like a
    /// kill; or work of its task was already lost for another job. Otherwise two jobs whose
    /// remaining times cross repeatedly would kill each other's tasks forever, or copy the
    /// checkpoints of their reduces forever.
    fn is_protected(&self, victim: &Attempt, plan: &Plan<'_>) -> bool {
        if plan.now().since(victim.launched) < self.newly_launched || plan.has_just_resumed(victim) {
            return true;
        }
        if self.literal {
            return false;
        }
        let was_wasted = |attempt: &Attempt| match attempt.preempt_request {
            Some((PreemptKind::Kill, _)) => self.preempt_mode == PreemptMode::Kill,
            Some((PreemptKind::Pause, _)) => attempt.state == AttemptState::Killed,
            _ => false,
        };
        plan.cluster().task(victim.id.task).is_some_and(|task| task.attempts.iter().any(was_wasted))
    }

    fn task_in_slot(&self, job: &Job, victim: &Attempt, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        let phase = victim.id.phase();
        let near_outputs = !self.literal;
        let fit = task_for(job, self.input_hosts.get(&job.id), phase, victim.tracker, near_outputs, plan)?;
        let estimate = self.estimator.estimate_of(job.id);
        Some((fit.task, estimate.add_numbers_to(Why::rule(fit.rule), phase, self.is_pure())))
    }

    fn reason(&self, victim: AttemptId, beneficiary: JobId, _plan: &Plan<'_>) -> Why {
        let remaining = |job: JobId| self.estimator.estimate_of(job).remaining;
        let why = Why::rule("longest-remaining-time").with("remaining", remaining(victim.job()));
        why.with("shorter", remaining(beneficiary)).with_beneficiary(beneficiary)
    }
}

impl SlotOrder for Hsrtf {
    fn choose(&mut self, phase: Phase, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        let (is_pure, literal) = (self.is_pure(), self.literal);
        let Self { waiting_jobs, colocation, input_hosts, estimator, .. } = self;
        let mut jobs = waiting_jobs[phase].iter().filter_map(|id| plan.cluster().job(id));
        let TaskFit { task, rule, .. } = jobs.find_map(|job| {
            let hosts = input_hosts.get(&job.id);
            let fit = task_for(job, hosts, phase, tracker, !literal, plan)?;
            match fit.near {
                NearInput::Yes => colocation.forget(job.id),
                NearInput::No if phase == Phase::Reduce && !colocation.is_over(job.id, plan.now()) => {
                    return None;
                }
                NearInput::No
                    if phase == Phase::Reduce && literal && has_free_slot_near(job, hosts, plan) =>
                {
                    return None;
                }
                NearInput::No | NearInput::Resumed => {}
            }
            Some(fit)
        })?;
        Some((task, estimator.estimate_of(task.job).add_numbers_to(Why::rule(rule), phase, is_pure)))
    }

    fn charge(&mut self, job: JobId, phase: Phase, plan: &Plan<'_>) {
        let found = plan.cluster().job(job);
        let key = found.map(|job| self.job_rank(job, plan.held_slots(job, phase) + 1, phase));
        self.waiting_jobs[phase].set(job, key);
    }

    fn restore(&mut self, job: JobId, cluster: &Cluster) {
        self.refresh(job, cluster);
    }
}

/// The task that a job would run on a tracker, and why.
struct TaskFit {
    task: TaskId,
    rule: &'static str,
    near: NearInput,
}

/// Whether a tracker is near the input of a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NearInput {
    /// The checkpoint of the task is there.
    Resumed,
    Yes,
    No,
}

/// Returns the task that a job would run on a tracker. A tracker that only serves outputs of the
/// job's maps counts as near if `near_outputs` is set.
fn task_for(
    job: &Job,
    hosts: Option<&BTreeSet<HostId>>,
    phase: Phase,
    tracker: TrackerId,
    near_outputs: bool,
    plan: &Plan<'_>,
) -> Option<TaskFit> {
    if phase == Phase::Map {
        let (task, near) = plan.next_map(job, tracker, Locality::OffRack)?;
        let rules = ["remaining-time,node-local", "remaining-time,rack-local", "remaining-time,off-rack"];
        return Some(TaskFit { task, rule: rules[near as usize], near: NearInput::No });
    }
    if let Some((task, _)) = plan.next_reduce_at(job, tracker, CheckpointPlace::Local) {
        return Some(TaskFit { task, rule: "remaining-time,resumed", near: NearInput::Resumed });
    }
    let task = plan.next_reduce(job, tracker)?;
    if hosts.is_none_or(|hosts| is_near(job.id, hosts, tracker, near_outputs, plan)) {
        return Some(TaskFit { task, rule: "remaining-time,near-maps", near: NearInput::Yes });
    }
    Some(TaskFit { task, rule: "remaining-time", near: NearInput::No })
}

/// Returns whether a tracker runs maps of a job, is on a host of the input, or (with
/// `near_outputs`) serves outputs of the maps.
fn is_near(
    job: JobId,
    hosts: &BTreeSet<HostId>,
    tracker: TrackerId,
    near_outputs: bool,
    plan: &Plan<'_>,
) -> bool {
    let Some(tracker) = plan.cluster().tracker(tracker) else { return false };
    let first = TaskId { job, phase: Phase::Map, index: 0 }.attempt(0);
    let has = |attempts: &BTreeSet<AttemptId>| {
        attempts.range(first..).next().is_some_and(|attempt| attempt.job() == job)
    };
    hosts.contains(&tracker.host) || has(&tracker.running.map) || near_outputs && has(&tracker.outputs)
}

/// Returns whether a reduce of a job could start now on a tracker that runs maps of the job or is on
/// a host of the input.
fn has_free_slot_near(job: &Job, hosts: Option<&BTreeSet<HostId>>, plan: &Plan<'_>) -> bool {
    let cluster = plan.cluster();
    let with_input = hosts.into_iter().flatten().flat_map(|host| cluster.trackers_on(*host));
    let with_maps = cluster.running(job, Phase::Map).map(|(attempt, _)| attempt.tracker);
    with_input.chain(with_maps).any(|tracker| {
        plan.free_slots(tracker, Phase::Reduce) > 0 && plan.next_reduce(job, tracker).is_some()
    })
}

impl Scheduler for Hsrtf {
    fn name(&self) -> &'static str {
        match self.mode {
            Mode::Pu => "hsrtf-pu",
            Mode::PuP => "hsrtf-pup",
            Mode::Pr => "hsrtf-pr",
            Mode::PrP => "hsrtf-prp",
        }
    }

    fn observe(&mut self, now: Time, fact: &Fact, cluster: &Cluster) {
        match fact {
            Fact::JobSubmitted { job, .. } => {
                self.arrivals.insert(*job);
                let tasks = cluster.job(*job).into_iter().flat_map(|job| &job.tasks.map);
                let hosts: BTreeSet<HostId> = tasks.flat_map(|task| task.hosts.iter().copied()).collect();
                // Without hosts, all trackers are equal.
                if !hosts.is_empty() {
                    self.input_hosts.insert(*job, hosts);
                }
            }
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => {
                self.colocation.forget(*job);
                self.arrivals.remove(job);
                self.input_hosts.remove(job);
            }
            Fact::JobTrackerStarted { .. } => self.colocation.reset(),
            _ => {}
        }
        if self.estimator.observe(now, fact, cluster) {
            self.refresh_all(cluster);
        }
        if let Some(job) = fact.job() {
            self.refresh(job, cluster);
        }
    }

    fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
        if self.estimator.catch_up(round.now, plan.cluster()) {
            self.refresh_all(plan.cluster());
        }
        match round.cause {
            Cause::Offer(tracker) => fill_in_order(self, tracker, plan),
            Cause::Tick => {
                let arrivals = std::mem::take(&mut self.arrivals);
                let is_due =
                    self.last_estimate.is_none_or(|last| round.now.since(last) >= self.estimator.interval);
                if is_due {
                    self.last_estimate = Some(round.now);
                    self.estimator.estimate_all(round.now, plan.cluster());
                    self.refresh_all(plan.cluster());
                }
                if self.preempts() && (is_due || !self.literal) {
                    let only = (!is_due).then_some(&arrivals);
                    for phase in Phase::BOTH {
                        self.preempt(phase, only, plan);
                    }
                }
            }
        }
    }

    fn tick_interval(&self) -> Option<Span> {
        Some(self.estimator.interval)
    }

    fn needs_round(&self) -> bool {
        !self.arrivals.is_empty() && self.preempts() && !self.literal
    }

    fn outranks(&self, a: JobId, b: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        if self.is_pure() {
            let place = |job: JobId| (Real(self.estimator.estimate_of(job).remaining), job);
            return place(a) < place(b);
        }
        self.should_move_slot(a, b, phase, plan)
    }

    fn explain(&self, job: &Job, now: Time, cluster: &Cluster) -> Vec<Why> {
        let estimate = self.estimator.estimate_of(job.id);
        let mut reasons = Vec::new();
        let waits = |phase: &Phase| job.may_start(*phase) && !job.pending[*phase].is_empty();
        for phase in Phase::BOTH.into_iter().filter(waits) {
            let rule = match phase {
                Phase::Map => "shorter-jobs-take-map-slots",
                Phase::Reduce => "shorter-jobs-take-reduce-slots",
            };
            let ahead = self.waiting_jobs[phase].ahead_of(job.id).count() as f64;
            let why =
                estimate.add_numbers_to(Why::rule(rule), phase, self.is_pure()).with("jobs_ahead", ahead);
            reasons.push(match self.last_estimate.filter(|_| self.preempts()) {
                Some(last) => {
                    let passed = now.since(last);
                    why.with("next", Span(self.estimator.interval.0.saturating_sub(passed.0)).as_secs_f64())
                }
                None => why,
            });
            reasons.extend(self.explain_no_preemption(job, phase, now, cluster));
        }
        let waits = self.colocation.node_wait > Span(0) && !job.pending.reduce.is_empty();
        if let Some(since) = self.colocation.since(job.id).filter(|_| waits) {
            let waited = now.since(since).as_secs_f64();
            let limit = self.colocation.node_wait.as_secs_f64();
            reasons
                .push(Why::rule("reduces-wait-for-map-hosts").with("waited", waited).with("at_most", limit));
        }
        reasons
    }
}
