//! Fair completion: small jobs overtake large ones on reduce slots.
//!
//! Wang et al. (ICAC'13), algorithms 1 and 2. The remaining work of a job is (`T_rs`, `R_left`):
//! the seconds until its last map is done and the bytes that are still to be reduced, compared in
//! this order. A free reduce slot goes to the job with the least remaining work. A job with pending
//! reduces gets slots from jobs with more remaining work, whose reduces are paused. A paused reduce
//! resumes where it was paused; after it has skipped more than D offers it migrates. A reduce that
//! was delayed to `slack_max` times its own duration is not paused again.
//!
//! Differs from the paper: `T_rs` is `M_left / M_rate` (the printed formula has the unit s²), and
//! the rate follows from the maps that run now; jobs with a pending reduce whose slack has reached
//! the limit are overdue, and have precedence for `overdue_share` of the reduce slots, so that they
//! do not starve; slack is projected to the end of the reduce; small differences of `T_rs` do not
//! count; slots that are being released count as available, and an available slot counts for one job
//! only; a paused reduce preempts only on its own node, and does not migrate while a slot is free
//! there; `fair` also preempts maps. `literal = true` reverts all of these.
//!
//! FCS does not schedule maps: `fair` assigns map slots, and its parameters are also in this
//! section.

mod preempt;
mod work;

use crate::{
    estimate::{self, DataFlow, Mean},
    fair::Fair,
    fill::{SlotOrder, fill_in_order},
    params::Section,
    paused::PausedReduces,
    ranked_queue::RankedQueue,
};
use mrcore::{
    Cluster, Fact, PerPhase, Phase, Plan, Scheduler, Span, Time, Why,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::Job,
    plan::CheckpointPlace,
    scheduler::{Cause, Round},
    task::Attempt,
    tracker::Tracker,
};
use std::collections::{BTreeMap, BTreeSet};
use work::{JobEstimate, Rank, RemainingWork, SlackForm};

/// The texts of the rules of this policy.
pub const RULE_TEXTS: &[crate::explain::RuleText] = &[
    (
        "least-remaining-work",
        "its job has the least remaining work: {shuffle_left:s} of shuffling and {bytes_left:bytes} to reduce",
    ),
    (
        "overdue",
        "its job has used up its slack, and such jobs have precedence for {share:%} of the reduce slots; remaining work: \
         {shuffle_left:s} of shuffling and {bytes_left:bytes} to reduce",
    ),
    (
        "least-remaining-work-first",
        "its reduces have {shuffle_left:s} of shuffling and {bytes_left:bytes} to reduce left; {jobs_ahead job goes|jobs go} first, with \
         less remaining work or without slack",
    ),
    (
        "overdue-first",
        "the job has used up its slack, and such jobs share {share:%} of the reduce slots; remaining work: {shuffle_left:s} of \
         shuffling and {bytes_left:bytes} to reduce; {jobs_ahead such job goes|such jobs go} first",
    ),
    (
        "less-remaining-work",
        "its job has {victim_shuffle_left:s} of shuffling and {victim_bytes_left:bytes} left, and the slot goes to {for_job:job}, \
         which has {shuffle_left:s} and {bytes_left:bytes} left",
    ),
    (
        "reduces-protected",
        "{tasks reduce of a job with more remaining work is|reduces of jobs with more remaining work are} not paused\
         [; launched less than {at_most:s} ago: {new}][; more than {beyond:%} done: {nearly}][; slack used up: {late}]",
    ),
    ("no-job-with-more-work", "no job with reduce slots has more remaining work: no reduce is paused"),
    (
        "paused-reduces-wait-for-nodes",
        "{tasks paused reduce waits|paused reduces wait} for the node with its checkpoint: it has skipped {offers_skipped} offers of other nodes \
         and migrates after {at_most}",
    ),
];

/// The `fcs` policy.
#[derive(Debug)]
pub struct Fcs {
    /// Assigns map slots.
    map_policy: Fair,
    settings: Settings,
    flow: DataFlow,
    estimates: BTreeMap<JobId, JobEstimate>,
    /// Running jobs with reduces, ordered by remaining work.
    by_remaining_work: RankedQueue<JobId, Rank>,
    /// Jobs with pending reduces that may start, ordered by remaining work.
    waiting_jobs: RankedQueue<JobId, Rank>,
    /// Those of them that are overdue. The job with the fewest reduce slots comes first, then the
    /// job that has been overdue for longest.
    overdue_jobs: RankedQueue<JobId, (u32, Time)>,
    /// Running reduces that were launched because their job was overdue.
    overdue_attempts: BTreeSet<AttemptId>,
    /// Number of slots that this round gives to overdue jobs because they have precedence.
    overdue_choices: usize,
    paused: PausedReduces,
    /// The number of offers that a paused reduce skips before it migrates (D in the paper).
    skips: u64,
    /// The mean duration of a map in seconds, for jobs without measurements.
    typical_map: f64,
    /// The mean duration of a reduce in seconds, for jobs without measurements.
    typical_reduce: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Settings {
    /// Whether the formulas are used as the paper prints them.
    literal: bool,
    form: SlackForm,
    slack_max: f64,
    overdue_share: f64,
    newly_launched: Span,
    nearly_done: f64,
    tolerance: Span,
    skips: Skips,
    interval: Span,
}

/// How D is determined, the number of offers that a paused reduce skips before it migrates.
#[derive(Debug, Clone, Copy)]
enum Skips {
    Fixed(u64),
    /// Computed from the number of nodes, so that this fraction of the paused reduces resumes on
    /// the node of the checkpoint.
    Formula(f64),
}

impl Settings {
    fn read(section: &mut Section<'_>) -> Self {
        let about = "only the rules of the paper: T_rs as printed, every job compares its demand with all free slots, slots that are being released do not count as available, paused reduces preempt on any node; also slack printed, tolerance 0s, overdue_share 0, and timeouts of map slots never unless they are set";
        let literal = section.flag("literal", false, about);
        let mut words = [("projected", SlackForm::Projected), ("printed", SlackForm::Printed)];
        if literal {
            words.reverse();
        }
        let form = section.choice(
            "slack",
            &words,
            "how slack is computed: projected to the end of the reduce, or up to now",
        );
        let slack_max = section.number(
            "slack_max",
            5.0,
            1.0..=1000.0,
            "a reduce delayed to this many times its own duration is not paused, and its job is overdue if it is pending",
        );
        let overdue_share = section.number(
            "overdue_share",
            if literal { 0.0 } else { 0.3 },
            0.0..=1.0,
            "fraction of the reduce slots for which overdue jobs have precedence; they share it evenly",
        );
        let newly_launched = section.span(
            "newly_launched",
            Span::secs(10),
            "a reduce is not paused for this long after its launch",
        );
        let nearly_done = section.number(
            "nearly_done",
            0.7,
            0.0..=1.0,
            "a reduce with more progress than this is not paused",
        );
        let tolerance = section.span(
            "tolerance",
            Span::secs(if literal { 0 } else { 5 }),
            "remaining shuffle times that differ by less are equal, and remaining data decides",
        );
        let fixed = section.count(
            "skips",
            60,
            "D: number of offers that a paused reduce skips before it migrates; 0: it migrates at once",
        );
        let by_formula =
            section.choice("skips_by", &[("count", false), ("formula", true)], "how D is determined");
        let locality = section.number(
            "locality",
            0.95,
            0.0..=0.9999,
            "fraction of the paused reduces that should resume on their own node (L in the formula for D)",
        );
        Self {
            literal,
            form,
            slack_max,
            overdue_share,
            newly_launched,
            nearly_done,
            tolerance,
            skips: if by_formula { Skips::Formula(locality) } else { Skips::Fixed(u64::from(fixed)) },
            interval: section.period(
                "every",
                Span::secs(1),
                "how often estimates and preemptions are computed",
            ),
        }
    }

    fn is_overdue(&self, total: f64, service: f64, estimate: f64) -> bool {
        work::slack(self.form, total, service, estimate) >= self.slack_max
    }

    fn skips(&self, cluster: &Cluster) -> u64 {
        match self.skips {
            Skips::Fixed(skips) => skips,
            Skips::Formula(locality) => {
                let counts = |tracker: &&Tracker| tracker.capacity() != PerPhase::default();
                let nodes = cluster.trackers().filter(counts).count();
                work::skips_for(nodes as f64, locality).round() as u64
            }
        }
    }
}

impl Fcs {
    /// Reads the parameters.
    pub fn new(section: &mut Section<'_>) -> Self {
        let settings = Settings::read(section);
        let default_map =
            section.span("default_map", Span::secs(30), "assumed duration of a map before any was measured");
        Self {
            map_policy: Fair::with_preemption(section, !settings.literal),
            settings,
            flow: DataFlow::default(),
            estimates: BTreeMap::new(),
            by_remaining_work: RankedQueue::default(),
            waiting_jobs: RankedQueue::default(),
            overdue_jobs: RankedQueue::default(),
            overdue_attempts: BTreeSet::new(),
            overdue_choices: 0,
            paused: PausedReduces::default(),
            skips: settings.skips(&Cluster::default()),
            typical_map: default_map.as_secs_f64(),
            typical_reduce: None,
        }
    }

    /// Updates the data of a job from the cluster.
    fn refresh(&mut self, id: JobId, now: Time, cluster: &Cluster) {
        let job = cluster.job(id).filter(|job| job.is_running() && job.spec.reduces > 0);
        let (Some(job), Some(known)) = (job, self.estimates.get_mut(&id)) else {
            self.by_remaining_work.set(id, None);
            self.waiting_jobs.set(id, None);
            self.overdue_jobs.set(id, None);
            return;
        };
        known.update_remaining(job, &self.flow, self.typical_map, self.settings.literal, now);
        let rank = known.remaining.rank(self.settings.tolerance);
        let waits = job.may_start(Phase::Reduce) && !job.pending.reduce.is_empty();
        self.by_remaining_work.set(id, Some(rank));
        self.waiting_jobs.set(id, waits.then_some(rank));
        self.rank_overdue(id, job.running.reduce.len() as u32);
    }

    /// Sets the place of a job among the overdue jobs, by the number of its reduce slots.
    fn rank_overdue(&mut self, id: JobId, slots: u32) {
        let overdue = self.estimates.get(&id).and_then(|known| known.overdue);
        let waits = self.waiting_jobs.key(id).is_some();
        self.overdue_jobs.set(id, overdue.filter(|_| waits).map(|since| (slots, since)));
    }

    /// Returns whether the next slot goes to an overdue job: such jobs have less than their share
    /// of the reduce slots.
    fn are_overdue_first(&self, cluster: &Cluster) -> bool {
        let share = self.settings.overdue_share * f64::from(cluster.slots(Phase::Reduce));
        let slots = if self.settings.overdue_share > 0.0 { (share as usize).max(1) } else { 0 };
        self.overdue_attempts.len() + self.overdue_choices < slots
    }

    /// Updates the estimates of all jobs.
    fn refresh_all(&mut self, now: Time, cluster: &Cluster) {
        let (mut maps, mut reduces) = (Mean::default(), Mean::default());
        for job in cluster.active_jobs() {
            let Some(known) = self.estimates.get_mut(&job.id) else { continue };
            known.refresh(job, self.paused.tasks_of(job.id), now, cluster);
            if let Some(seconds) = known.map_s {
                maps.add(seconds);
            }
            if let Some(seconds) = estimate::reduce_seconds(job, now, cluster) {
                reduces.add(seconds);
            }
        }
        self.typical_map = maps.value().unwrap_or(self.typical_map);
        self.typical_reduce = reduces.value().or(self.typical_reduce);
        let ids: Vec<JobId> = self.estimates.keys().copied().collect();
        for id in ids {
            let overdue = cluster.job(id).is_some_and(|job| self.is_overdue(job, now, cluster));
            if let Some(known) = self.estimates.get_mut(&id) {
                known.overdue = overdue.then(|| known.overdue.unwrap_or(now));
            }
            self.refresh(id, now, cluster);
        }
    }

    /// Returns whether the slack of a pending reduce of a job is used up. The reduce is paused, or
    /// has waited since all maps were done.
    fn is_overdue(&self, job: &Job, now: Time, cluster: &Cluster) -> bool {
        let has_precedence = self.settings.overdue_share > 0.0;
        if !has_precedence || !job.may_start(Phase::Reduce) || job.pending.reduce.is_empty() {
            return false;
        }
        let own = || estimate::reduce_seconds(job, now, cluster).or(self.typical_reduce);
        let reports = cluster.reports(job.id, Phase::Reduce);
        let done = |attempt: &Attempt| reports.progress(attempt).done;
        let paused = self.paused.tasks_of(job.id).any(|index| {
            let times =
                job.tasks.reduce.get(index as usize).and_then(|task| work::reduce_times(task, now, done));
            times.is_some_and(|(total, service, estimate)| {
                let estimate = estimate.or_else(own);
                estimate.is_some_and(|estimate| self.settings.is_overdue(total, service, estimate))
            })
        });
        let has_fresh = job.pending.reduce.len() > self.paused.count_of(job.id);
        // If a job has more reduces than there are slots, its last reduces wait for other reduces
        // of the same job.
        let waves = f64::from(job.spec.reduces) / f64::from(cluster.slots(Phase::Reduce).max(1));
        paused
            || has_fresh
                && job.maps_done.zip(own()).is_some_and(|(since, estimate)| {
                    let alone = estimate * waves.ceil().max(1.0);
                    self.settings.is_overdue(now.since(since).as_secs_f64(), 0.0, alone)
                })
    }

    /// Returns the reduce that gets a slot, of the job with the least remaining work (algorithm 2).
    fn next_reduce(&mut self, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        let cluster = plan.cluster();
        let overdue_first = self.are_overdue_first(cluster);
        let (share, literal) = (self.settings.overdue_share, self.settings.literal);
        let Self { waiting_jobs, overdue_jobs, overdue_choices, estimates, paused, skips, .. } = self;
        let overdue = overdue_jobs.iter().filter(|_| overdue_first).map(|id| (id, true));
        let others = waiting_jobs.iter().filter(|id| !overdue_first || overdue_jobs.key(*id).is_none());
        for (id, overdue) in overdue.chain(others.map(|id| (id, false))) {
            let (Some(job), Some(known)) = (cluster.job(id), estimates.get(&id)) else { continue };
            let rules = if overdue {
                ["overdue", "overdue,resumed", "overdue,migrated"]
            } else {
                ["least-remaining-work", "least-remaining-work,resumed", "least-remaining-work,migrated"]
            };
            let checkpoint = paused.count_of(id);
            let limit = if job.pending.reduce.len() > checkpoint {
                CheckpointPlace::None
            } else {
                CheckpointPlace::Local
            };
            if let Some((task, place)) = plan.next_reduce_at(job, tracker, limit) {
                let why = Why::rule(rules[usize::from(place == CheckpointPlace::Local)]);
                *overdue_choices += usize::from(overdue);
                return Some((task, with_remaining_work(with_share(why, overdue, share), known.remaining)));
            }
            if checkpoint == 0 {
                continue;
            }
            let skipped = paused.skipped_more_than(id, *skips);
            if let Some(task) = reduce_to_migrate(job, skipped, tracker, literal, plan) {
                *overdue_choices += usize::from(overdue);
                let why = with_share(Why::rule(rules[2]), overdue, share);
                return Some((task, with_remaining_work(why, known.remaining)));
            }
            paused.skip_offer(id);
        }
        None
    }
}

impl SlotOrder for Fcs {
    fn choose(&mut self, phase: Phase, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        match phase {
            Phase::Map => self.map_policy.choose(phase, tracker, plan),
            Phase::Reduce => self.next_reduce(tracker, plan),
        }
    }

    fn charge(&mut self, job: JobId, phase: Phase, plan: &Plan<'_>) {
        match (phase, plan.cluster().job(job)) {
            (Phase::Map, _) => self.map_policy.charge(job, phase, plan),
            (Phase::Reduce, Some(held_by)) => self.rank_overdue(job, plan.held_slots(held_by, phase) + 1),
            (Phase::Reduce, None) => {}
        }
    }

    fn restore(&mut self, job: JobId, cluster: &Cluster) {
        self.map_policy.restore(job, cluster);
        self.overdue_choices = 0;
        self.rank_overdue(job, cluster.job(job).map_or(0, |job| job.running.reduce.len() as u32));
    }
}

/// Returns the first of some paused reduces that can resume on `tracker` and cannot resume on the
/// tracker of its checkpoint. The paper does not have the second condition (`literal`).
fn reduce_to_migrate(
    job: &Job,
    skipped_more_than: impl Iterator<Item = u32>,
    tracker: TrackerId,
    literal: bool,
    plan: &Plan<'_>,
) -> Option<TaskId> {
    let mut tasks = skipped_more_than.filter_map(|index| job.tasks.reduce.get(index as usize));
    let found = tasks.find(|task| {
        let home = task.checkpoint.map(|checkpoint| checkpoint.tracker);
        let could =
            |on: TrackerId| plan.free_slots(on, Phase::Reduce) > 0 && plan.could_run(task.id, on).is_ok();
        (literal || !home.is_some_and(could)) && could(tracker)
    });
    found.map(|task| task.id)
}

fn with_share(why: Why, overdue: bool, share: f64) -> Why {
    if overdue { why.with("share", share) } else { why }
}

fn with_remaining_work(why: Why, left: RemainingWork) -> Why {
    why.with("shuffle_left", left.shuffle).with("bytes_left", left.bytes)
}

impl Scheduler for Fcs {
    fn name(&self) -> &'static str {
        "fcs"
    }

    fn observe(&mut self, now: Time, fact: &Fact, cluster: &Cluster) {
        self.map_policy.observe(now, fact, cluster);
        self.flow.observe(fact, cluster);
        self.paused.observe(fact, cluster);
        match fact {
            Fact::JobSubmitted { job, .. } => {
                self.estimates.insert(*job, JobEstimate::default());
            }
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => {
                self.estimates.remove(job);
                self.overdue_attempts.retain(|attempt| attempt.job() != *job);
            }
            Fact::AttemptLaunched { attempt, why, .. } if why.rule.starts_with("overdue") => {
                self.overdue_attempts.insert(*attempt);
            }
            Fact::AttemptPaused { attempt, .. }
            | Fact::AttemptSucceeded { attempt, .. }
            | Fact::AttemptFailed { attempt, .. }
            | Fact::AttemptKilled { attempt, .. } => {
                self.overdue_attempts.remove(attempt);
            }
            _ => {}
        }
        if fact.changes_slots_of().is_some() {
            self.skips = self.settings.skips(cluster);
        }
        if let Some(job) = fact.job() {
            self.refresh(job, now, cluster);
        }
    }

    fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
        match round.cause {
            Cause::Offer(tracker) => fill_in_order(self, tracker, plan),
            Cause::Tick => {
                self.map_policy.reclaim(&[Phase::Map], plan);
                self.refresh_all(round.now, plan.cluster());
                self.preempt(plan);
            }
        }
    }

    fn tick_interval(&self) -> Option<Span> {
        Some(self.settings.interval)
    }

    fn outranks(&self, a: JobId, b: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        match phase {
            Phase::Map => self.map_policy.outranks(a, b, phase, plan),
            Phase::Reduce => {
                self.by_remaining_work.key(a).zip(self.by_remaining_work.key(b)).is_some_and(|(a, b)| a < b)
            }
        }
    }

    fn explain(&self, job: &Job, now: Time, cluster: &Cluster) -> Vec<Why> {
        let mut reasons = self.map_policy.reasons(&[Phase::Map], job, now, cluster);
        let Some(known) = self.estimates.get(&job.id) else { return reasons };
        if self.waiting_jobs.key(job.id).is_some() {
            let is_overdue = self.overdue_jobs.key(job.id).is_some();
            let (rule, ahead) = if is_overdue {
                ("overdue-first", self.overdue_jobs.ahead_of(job.id).count())
            } else {
                let mut ahead: BTreeSet<JobId> = self.waiting_jobs.ahead_of(job.id).collect();
                if self.are_overdue_first(cluster) {
                    ahead.extend(self.overdue_jobs.iter());
                }
                ("least-remaining-work-first", ahead.len())
            };
            let why = with_share(Why::rule(rule), is_overdue, self.settings.overdue_share);
            reasons.push(with_remaining_work(why, known.remaining).with("jobs_ahead", ahead as f64));
            reasons.extend(self.explain_no_preemption(job.id, known.remaining, now, cluster));
        }
        if let Some(skipped) = self.paused.skipped_offers(job.id) {
            let why = Why::rule("paused-reduces-wait-for-nodes");
            let why =
                why.with("tasks", self.paused.count_of(job.id) as f64).with("offers_skipped", skipped as f64);
            reasons.push(why.with("at_most", self.skips as f64));
        }
        reasons
    }
}
