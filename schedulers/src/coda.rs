//! Coda: the job with the least remaining work first, bounded by what fair sharing would give.
//!
//! 1. **Work.** The work of a job is estimated in slot seconds: predicted from earlier jobs of its
//!    program, then measured (`estimator`).
//! 2. **Order.** Map slots go to the job with the least remaining work of maps relative to all map
//!    slots, in seconds. The size of a job is this plus the remaining work of its reduces relative
//!    to all reduce slots. Both are divided by the weight of its priority (`Coda::estimate`,
//!    `JobState::rank`, `Coda::in_order`).
//! 3. **Reduces.** A reduce that waits for maps only holds its slot. A job is *ready* when its last
//!    map is expected to end within the time that a reduce needs to fetch its input. Reduce slots
//!    go to ready jobs, the smallest first, then to the others, those whose maps end soonest first
//!    (`Coda::estimate`, `JobState::rank`).
//! 4. **Preemption.** A job preempts attempts of jobs with more work by `margin` in this order, and a
//!    ready job also reduces of jobs that are not ready. Attempts that will end about as soon as
//!    they could be preempted are left alone, and their slots are counted (`preemption`).
//! 5. **Bound.** Fair sharing is simulated (`virtual_fair`). A job that has taken or will take
//!    `overdue_after` times as long as it would have under fair sharing is overdue. Overdue jobs
//!    have precedence for `overdue_share` of the slots and share them evenly
//!    (`Coda::advance_virtual_fair`, `Coda::share_overdue_slots`).
//! 6. **Minimum shares.** A pool below its minimum share comes before all jobs that are not
//!    overdue (`Coda::is_below_min`).
//! 7. **Locality.** A job waits for a node-local slot, at most as long as a map loses elsewhere
//!    (`Coda::map_for`).
//! 8. **Unequal nodes.** Speeds are measured (`nodes`). A slot of a slow node is not used if the task
//!    would end sooner on another node, after the work of the jobs that are ahead
//!    (`Coda::declines`). An attempt on a slow node moves if it ends sooner elsewhere
//!    (`Coda::leave_slow_nodes` in `preemption`).
//! 9. **Checkpoints.** A paused reduce waits for the node of its checkpoint if a slot there is free
//!    sooner than the checkpoint could be copied (`Coda::reduce_for`).
//! 10. **Recovery.** Tasks that were lost with a node get slots at once, in the order of their jobs
//!     (`chronos`, in `Coda::build`).
//!
//! Rules 3 to 10 and the predictions can be switched off (`Settings`, `Estimator::new` and
//! `Coda::build`). README.md and
//! docs/research/coda.md explain why each exists.

mod estimator;
mod nodes;
mod preemption;
mod virtual_fair;

use crate::{
    chronos::Chronos,
    estimate::{Mean, demand},
    fair::pools::{self, Pool, Pools},
    fill::{LocalityDelay, SlotOrder, fill_in_order},
    params::Section,
    paused::PausedReduces,
    ranked_queue::{RankedQueue, Real},
};
use estimator::{Estimator, Work, part_reduced};
use mrcore::{
    Cluster, Fact, PerPhase, Phase, Plan, Scheduler, Span, Time, Why,
    cluster::NotPreemptible,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::Job,
    plan::{CheckpointPlace, PreemptMode},
    scheduler::{Cause, Round},
    task::{Attempt, PreemptKind, Task},
};
use nodes::{MeasuredMap, Nodes, SLOW};
use std::{cmp::Reverse, collections::BTreeMap, ops::RangeInclusive};
use virtual_fair::{SharingJob, SharingPool, VirtualFair};

/// The texts of the rules of this policy.
pub const RULE_TEXTS: &[crate::explain::RuleText] = &[
    (
        "smallest-job",
        "its job has the least remaining work of the jobs that can use the slot, about {size:s}",
    ),
    (
        "maps-end-soonest",
        "no job needs the slot at once, and the maps of its job end soonest, in about {maps_end:s}",
    ),
    ("below-min-share", "its pool has less than its minimum share; remaining work: about {size:s}"),
    (
        "beyond-fair-sharing",
        "its job takes much longer than under fair sharing, and such jobs have precedence for {share:%} of the slots",
    ),
    ("smaller-jobs-first", "the job has about {size:s} of work left[; {jobs_ahead job goes|jobs go} first]"),
    (
        "ready-jobs-first",
        "the last map of the job ends in about {maps_end:s}, and its reduces do not need slots before[; {jobs_ahead job goes|jobs go} first]",
    ),
    (
        "shares-with-overdue-jobs",
        "the job takes much longer than under fair sharing; such jobs share {share:%} of the slots[, and {jobs_ahead job goes|jobs go} first]",
    ),
    (
        "slots-not-preemptible",
        "{tasks running task keeps its slot|running tasks keep their slots} until the end, because preemption would lose work; {first_job:job} holds most of these slots",
    ),
    (
        "waits-for-faster-node",
        "its tasks would end sooner on another node than in the free slots of slow nodes; it takes one of these after {at_most:s}; {waited:s} so far",
    ),
    (
        "waits-for-checkpoint-node",
        "{tasks paused reduce waits|paused reduces wait} for the node with its checkpoint: a slot there is expected before a copy would end",
    ),
    (
        "larger-job",
        "its job has about {size:s} of work left, and the slot goes to {for_job:job}, which has {less:s}",
    ),
    (
        "waits-for-maps",
        "its job has maps for another {maps_end:s}, and the slot goes to {for_job:job}, whose maps are done or nearly done",
    ),
    ("min-share", "the slot goes to {for_job:job}, whose pool has less than its minimum share"),
    ("overdue-job", "the slot goes to {for_job:job}, which takes much longer than under fair sharing"),
    ("slow-node", "its node has {speed:%} of the usual speed, and the task ends sooner on another node"),
];

/// How often work is estimated and attempts are preempted: every second for each hundred trackers,
/// within these limits. Heartbeats of larger clusters are rarer, so progress is known less often.
const INTERVAL_S: RangeInclusive<u64> = 1..=10;
/// Assumed rate at which a reduce fetches its input or copies a checkpoint.
const FETCH_BYTES_PER_S: f64 = 40e6;
/// How long before the end of the maps a reduce is launched, in addition to the time of the fetch.
const LEAD_S: f64 = 3.0;
/// A job is not overdue if it takes longer by less than this.
const OVERDUE_TOLERANCE_S: f64 = 3.0;
/// A job that is ready stays so until its maps need this many times as long.
const READY_HYSTERESIS: f64 = 3.0;
/// Maps that are slower elsewhere by less than this factor do not wait for a node-local slot.
const REMOTE_SLOWDOWN_MIN: f64 = 1.05;
/// A task waits for a better slot at most this many times as long as expected, plus a constant.
const PATIENCE: f64 = 4.0;
const PATIENCE_MIN_S: f64 = 60.0;

/// The position of a job by its own work.
type Rank = (Precedence, Real);

/// Why a job comes before others, in the order in which jobs get slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Precedence {
    Overdue,
    BelowMinShare,
    LeastWork,
    /// A reduce slot for a job that is not ready.
    MapsEndSoonest,
}

impl Precedence {
    const fn rule(self) -> &'static str {
        match self {
            Self::Overdue => "beyond-fair-sharing",
            Self::BelowMinShare => "below-min-share",
            Self::LeastWork => "smallest-job",
            Self::MapsEndSoonest => "maps-end-soonest",
        }
    }
}

/// The `coda` policy.
#[derive(Debug)]
pub struct Coda {
    settings: Settings,
    estimator: Estimator,
    pools: Pools,
    waits: Waits,
    paused: PausedReduces,
    virtual_fair: VirtualFair,
    jobs: BTreeMap<JobId, JobState>,
    /// The state of a job that is not in `jobs`.
    unknown_job: JobState,
    /// Jobs that can use a slot, in order.
    waiting_jobs: PerPhase<RankedQueue<JobId, Rank>>,
    nodes: Nodes,
    /// Measured time from the request to the release of a slot.
    latency: PerPhase<Mean>,
    /// The overdue jobs, the one that has been overdue longest first.
    overdue: Vec<JobId>,
    /// How often work is estimated and attempts are preempted.
    interval: Span,
    /// Whether jobs have arrived or become ready since the last round.
    wants_round: bool,
}

/// How long jobs have waited for better slots than those that were offered.
#[derive(Debug, Default)]
struct Waits {
    /// For slots near the input of maps.
    locality: LocalityDelay,
    /// Since when jobs have left slots of slow nodes free.
    slow_nodes: BTreeMap<JobId, Time>,
}

#[derive(Debug, Clone, Copy)]
struct Settings {
    margin: f64,
    newly_launched: Span,
    overdue_after: f64,
    overdue_share: f64,
    preempt_mode: PreemptMode,
    /// The switches of the rules.
    preempts: PerPhase<bool>,
    ready_first: bool,
    stays_ready: bool,
    weighs_cost: bool,
    min_shares: bool,
    avoids_slow_nodes: bool,
    measures_locality: bool,
    waits_for_checkpoint: bool,
}

/// What the policy knows about a job.
#[derive(Debug, Clone, Copy, Default)]
struct JobState {
    work: Work,
    /// Remaining seconds of the maps on the whole cluster, divided by the weight of the priority.
    map_size_s: f64,
    /// The same of maps and reduces.
    size_s: f64,
    /// Seconds until the last map ends.
    maps_end_s: f64,
    /// Whether reduces are useful now.
    is_ready: bool,
    overdue_since: Option<Time>,
    /// Number of slots that the job has precedence for because it is overdue.
    overdue_slots: PerPhase<u32>,
    /// Seconds that the work of this job and all smaller jobs takes on all slots.
    backlog_s: PerPhase<f64>,
    estimated_at: Time,
}

impl Settings {
    fn read(section: &mut Section<'_>) -> Self {
        let about = "an attempt is preempted only for a job that is smaller by this factor";
        let margin = section.number("margin", 1.25, 1.0..=1000.0, about);
        let about = "an attempt is not preempted for this long after its launch";
        let newly_launched = section.span("newly_launched", Span::secs(10), about);
        let about = "a job is overdue if it takes this many times as long as under fair sharing";
        let overdue_after = section.number("overdue_after", 1.5, 1.0..=1000.0, about);
        let about = "fraction of the slots for which overdue jobs have precedence; they share it evenly";
        let overdue_share = section.number("overdue_share", 0.3, 0.0..=1.0, about);
        Self {
            margin,
            newly_launched,
            overdue_after,
            overdue_share,
            preempt_mode: section.choice(
                "preempt",
                &[
                    ("lossless-only", PreemptMode::LosslessOnly),
                    ("lossless", PreemptMode::Lossless),
                    ("kill", PreemptMode::Kill),
                ],
                "how attempts are preempted: lossless splits maps and pauses reduces and kills those that \
                 allow neither, lossless-only leaves those alone",
            ),
            preempts: PerPhase {
                map: section.switch("preempt_maps", "preempt maps of larger jobs"),
                reduce: section.switch("preempt_reduces", "preempt reduces"),
            },
            ready_first: section
                .switch("ready_first", "reduce slots go first to jobs whose maps are done or nearly done"),
            stays_ready: section
                .switch("stay_ready", "a job that is ready stays so until its maps need three times as long"),
            weighs_cost: section.switch(
                "weigh_cost",
                "do not preempt attempts that end about as soon as they could be preempted",
            ),
            min_shares: section.switch("min_shares", "pools below their minimum share come first"),
            avoids_slow_nodes: section.switch(
                "avoid_slow_nodes",
                "leave a slot of a slow node free if the task ends sooner elsewhere",
            ),
            measures_locality: section.switch(
                "measure_locality",
                "wait for a node-local slot at most as long as a map loses elsewhere",
            ),
            waits_for_checkpoint: section.switch(
                "wait_for_checkpoint",
                "a paused reduce waits for the node of its checkpoint if that is sooner than copying it",
            ),
        }
    }
}

impl Coda {
    /// Reads the parameters and creates the policy.
    pub fn build(section: &mut Section<'_>) -> Box<dyn Scheduler> {
        let recovers =
            section.switch("recover", "tasks that were lost with a node get slots at once, as in chronos");
        let policy = Self::new(section);
        let preempt_mode = policy.settings.preempt_mode;
        if recovers { Box::new(Chronos::part_of(Box::new(policy), preempt_mode)) } else { Box::new(policy) }
    }

    fn new(section: &mut Section<'_>) -> Self {
        let about = "how long a job waits for a node-local slot";
        let node_wait = section.span("node_wait", Span::secs(3), about);
        let about = "how long it then waits for a rack-local slot";
        let rack_wait = section.span("rack_wait", Span::secs(3), about);
        Self {
            settings: Settings::read(section),
            estimator: Estimator::new(section),
            pools: Pools::new(section),
            waits: Waits { locality: LocalityDelay::new(node_wait, rack_wait), ..Waits::default() },
            paused: PausedReduces::default(),
            virtual_fair: VirtualFair::default(),
            jobs: BTreeMap::new(),
            unknown_job: JobState::default(),
            waiting_jobs: PerPhase::default(),
            nodes: Nodes::default(),
            latency: PerPhase::default(),
            overdue: Vec::new(),
            interval: Span::secs(*INTERVAL_S.start()),
            wants_round: false,
        }
    }

    fn state(&self, job: JobId) -> &JobState {
        self.jobs.get(&job).unwrap_or(&self.unknown_job)
    }

    /// Estimates the work of a job.
    fn estimate(&mut self, job: &Job, now: Time, cluster: &Cluster) {
        let work = self.estimator.work(job, &self.paused, now, cluster);
        let left = |phase| work.left_s[phase] / f64::from(cluster.slots(phase).max(1));
        let running = (job.running.map.len() as f64).max(1.0);
        let maps_end_s = if job.is_done(Phase::Map) { 0.0 } else { work.left_s.map / running };
        let fetch_s = LEAD_S + work.reduce_bytes / FETCH_BYTES_PER_S;
        let state = self.jobs.entry(job.id).or_default();
        let was_ready = state.is_ready;
        state.work = work;
        let weight = pools::weight(job.spec.priority);
        state.map_size_s = left(Phase::Map) / weight;
        state.size_s = (left(Phase::Map) + left(Phase::Reduce)) / weight;
        state.maps_end_s = maps_end_s;
        // A job that is ready stays so while its estimate varies, or its reduces would be paused
        // and resumed again and again.
        let within_s =
            if was_ready && self.settings.stays_ready { READY_HYSTERESIS * fetch_s } else { fetch_s };
        state.is_ready = !self.settings.ready_first || maps_end_s <= within_s;
        state.estimated_at = now;
        self.wants_round |= state.is_ready && !was_ready;
    }

    /// Updates the place of a job in the queues.
    fn refresh(&mut self, id: JobId, cluster: &Cluster) {
        let state = *self.state(id);
        for phase in Phase::BOTH {
            let job = cluster.job(id).filter(|job| job.may_start(phase) && !job.pending[phase].is_empty());
            let may_run = |pool: &Pool| !pool.is_waiting_for_pool(id);
            let waits = job.is_some() && self.pools.pool_of(id).is_some_and(may_run);
            self.waiting_jobs[phase].set(id, waits.then(|| state.rank(phase)));
        }
    }

    /// Estimates all jobs, advances virtual fair sharing, and finds overdue jobs and slow nodes.
    fn refresh_all(&mut self, now: Time, cluster: &Cluster) {
        let hundreds = cluster.trackers().count() as u64 / 100;
        self.interval = Span::secs(hundreds.clamp(*INTERVAL_S.start(), *INTERVAL_S.end()));
        let running: Vec<&Job> = cluster.active_jobs().filter(|job| job.is_running()).collect();
        for job in &running {
            self.estimate(job, now, cluster);
        }
        self.advance_virtual_fair(&running, now, cluster);
        let mut in_order: Vec<JobId> = running.iter().map(|job| job.id).collect();
        for phase in Phase::BOTH {
            in_order.sort_by_cached_key(|id| (Real(self.state(*id).size_for(phase)), *id));
            let mut ahead_s = 0.0;
            for id in &in_order {
                let Some(state) = self.jobs.get_mut(id) else { continue };
                ahead_s += state.work.left_s[phase] / f64::from(cluster.slots(phase).max(1));
                state.backlog_s[phase] = ahead_s;
            }
        }
        for job in &running {
            self.refresh(job.id, cluster);
        }
        self.share_overdue_slots(&running, cluster);
        self.measure_nodes(&running, now, cluster);
    }

    fn advance_virtual_fair(&mut self, running: &[&Job], now: Time, cluster: &Cluster) {
        if self.settings.overdue_share <= 0.0 {
            return;
        }
        let slots = PerPhase {
            map: f64::from(cluster.slots(Phase::Map)),
            reduce: f64::from(cluster.slots(Phase::Reduce)),
        };
        let sharing: Vec<SharingJob> = running
            .iter()
            .filter_map(|job| {
                let weight = pools::weight(job.spec.priority);
                let (pool, work) = (self.pools.pool_number(job.id)?, self.state(job.id).work);
                Some(SharingJob { id: job.id, submitted: job.submitted, pool, weight, work })
            })
            .collect();
        let min = |pool: &Pool| PerPhase { map: f64::from(pool.min.map), reduce: f64::from(pool.min.reduce) };
        let pools: Vec<SharingPool> =
            self.pools.iter().map(|pool| SharingPool { weight: pool.weight, min: min(pool) }).collect();
        self.virtual_fair.advance(now, &sharing, &pools, slots);
        for job in running {
            let fair_s = self.virtual_fair.completion_s(job.id);
            let Some(state) = self.jobs.get_mut(&job.id) else { continue };
            // The time that the job needs on the slots for overdue jobs.
            let needs = |phase: Phase| {
                let slots = (self.settings.overdue_share * slots[phase]).max(1.0);
                let left_s = state.work.left_s[phase];
                (left_s / slots).max(left_s.min(state.work.task_s[phase]))
            };
            let ends = now.since(job.submitted).as_secs_f64() + needs(Phase::Map) + needs(Phase::Reduce);
            let is_overdue = fair_s
                .is_some_and(|fair_s| ends > self.settings.overdue_after * fair_s + OVERDUE_TOLERANCE_S);
            state.overdue_since = is_overdue.then(|| state.overdue_since.unwrap_or(now));
        }
    }

    /// Measures the speed of the nodes and the value of locality.
    fn measure_nodes(&mut self, running: &[&Job], now: Time, cluster: &Cluster) {
        let mut maps = Vec::new();
        for job in running {
            for (attempt, progress) in cluster.running(job, Phase::Map) {
                let done = f64::from(progress.unwrap_or_default().done);
                if done > 0.0
                    && let Some(expected_s) = self.expected_map_s(job, attempt.id)
                {
                    maps.push(MeasuredMap { job, attempt, done, expected_s });
                }
            }
        }
        self.nodes.measure(&maps, now, cluster);
    }

    /// Counts a finished map for the speed of its node. The first part of a split map counts as
    /// well: otherwise nothing would be known about a slow node when all maps have left it.
    fn record_map(&mut self, id: AttemptId, now: Time, cluster: &Cluster) {
        let (Some(job), Some(attempt)) = (cluster.job(id.job()), cluster.attempt(id)) else { return };
        if id.phase() == Phase::Map
            && let Some(expected_s) = self.expected_map_s(job, id)
        {
            self.nodes.record(&MeasuredMap { job, attempt, done: 1.0, expected_s }, now, cluster);
        }
    }

    /// Returns the speed of a node relative to the usual speed; 1 if slow nodes are not avoided.
    fn speed(&self, tracker: TrackerId) -> f64 {
        if self.settings.avoids_slow_nodes { self.nodes.speed(tracker) } else { 1.0 }
    }

    /// Returns the expected seconds of a map by the other maps of its job, or, if the job has only
    /// one or two, by earlier jobs of its program. `None` while too few have been measured.
    fn expected_map_s(&self, job: &Job, attempt: AttemptId) -> Option<f64> {
        let Work { measured_map_s, earlier_map_s, input_bytes, .. } = self.state(job.id).work;
        let bytes = job.task(attempt.task)?.bytes() as f64;
        let part = if input_bytes > 0.0 { bytes / input_bytes } else { 1.0 / job.tasks.map.len() as f64 };
        let total_s = if job.spec.splits.len() > 2 { measured_map_s } else { earlier_map_s };
        total_s.map(|total_s| total_s * part)
    }

    /// Returns the seconds of work that comes before the next task of a job on all slots: none if the
    /// job has precedence over smaller ones.
    fn backlog_s(&self, job: JobId, phase: Phase) -> f64 {
        let state = self.state(job);
        let comes_first = state.overdue_since.is_some() || self.is_below_min(job, phase);
        if comes_first { 0.0 } else { state.backlog_s[phase] }
    }

    /// Returns whether a task of a job would end sooner on another node than on this slow one,
    /// after the work of the jobs that are ahead.
    fn is_too_slow(&self, job: JobId, phase: Phase, tracker: TrackerId) -> bool {
        let speed = self.speed(tracker);
        if !self.settings.avoids_slow_nodes || speed >= SLOW {
            return false;
        }
        let task_s = self.state(job).work.task_s[phase];
        task_s / speed > task_s + self.backlog_s(job, phase)
    }

    /// Returns whether a job leaves a slot of a slow node free. If no other slot comes for much
    /// longer than expected, the job takes the slot.
    fn declines(
        &self,
        job: JobId,
        (phase, tracker): (Phase, TrackerId),
        now: Time,
        waits: &mut Waits,
    ) -> bool {
        if !self.is_too_slow(job, phase, tracker) {
            return false;
        }
        let since = *waits.slow_nodes.entry(job).or_insert(now);
        now.since(since).as_secs_f64() < self.longest_wait_s(job, phase)
    }

    /// Returns how long a job leaves slots of slow nodes free at most.
    fn longest_wait_s(&self, job: JobId, phase: Phase) -> f64 {
        let task_s = self.state(job).work.task_s[phase];
        PATIENCE * (self.backlog_s(job, phase) + task_s) + PATIENCE_MIN_S
    }

    /// Returns the number of slots for which overdue jobs have precedence.
    fn overdue_slots(&self, phase: Phase, cluster: &Cluster) -> u32 {
        if self.settings.overdue_share <= 0.0 {
            return 0;
        }
        ((self.settings.overdue_share * f64::from(cluster.slots(phase))) as u32).max(1)
    }

    /// Divides the slots for overdue jobs evenly among those that can use them. What cannot be
    /// divided goes to those that have been overdue longest.
    fn share_overdue_slots(&mut self, running: &[&Job], cluster: &Cluster) {
        let since = |job: &Job| Some((self.state(job.id).overdue_since?, job.id));
        let mut overdue: Vec<(Time, JobId)> = running.iter().filter_map(|job| since(job)).collect();
        overdue.sort_unstable();
        self.overdue = overdue.into_iter().map(|(_, id)| id).collect();
        for phase in Phase::BOTH {
            let usable = |id: &JobId| {
                let job = cluster.job(*id)?;
                let waits = self.waiting_jobs[phase].key(*id).is_some();
                Some(if waits { demand(job, phase, cluster) as u32 } else { job.running[phase].len() as u32 })
            };
            let usable: Vec<u32> = self.overdue.iter().map(|id| usable(id).unwrap_or(0)).collect();
            let shares = divide_evenly(self.overdue_slots(phase, cluster), &usable);
            for (id, share) in self.overdue.iter().zip(shares) {
                if let Some(state) = self.jobs.get_mut(id) {
                    state.overdue_slots[phase] = share;
                }
            }
        }
    }

    /// Returns the number of slots that a job will keep.
    fn retained_slots(job: JobId, phase: Phase, plan: &Plan<'_>) -> u32 {
        plan.cluster().job(job).map_or(0, |job| plan.retained_slots(job, phase))
    }

    /// Returns whether a job that has this many slots has precedence because it is overdue.
    fn is_overdue_below_share(&self, id: JobId, phase: Phase, slots: u32) -> bool {
        self.state(id).overdue_share(phase).is_some_and(|share| slots < share)
    }

    fn is_below_min(&self, job: JobId, phase: Phase) -> bool {
        let below = |pool: &Pool| pool.held_slots[phase] < pool.min[phase];
        self.settings.min_shares && self.pools.pool_of(job).is_some_and(below)
    }

    /// Returns the precedence of a job that has this many slots. Among jobs with equal precedence
    /// the rank decides, and among overdue jobs the number of slots.
    fn precedence(&self, id: JobId, phase: Phase, slots: u32) -> Precedence {
        if self.is_overdue_below_share(id, phase, slots) {
            Precedence::Overdue
        } else if self.is_below_min(id, phase) {
            Precedence::BelowMinShare
        } else {
            self.state(id).rank(phase).0
        }
    }

    /// Returns the jobs that can use a slot in the order in which they get one, which is that of
    /// their `precedence`. It is not sorted, because most slots go to one of the first jobs. A job
    /// may occur more than once.
    fn in_order<'a>(
        &'a self,
        phase: Phase,
        plan: &Plan<'_>,
    ) -> impl Iterator<Item = (JobId, Precedence)> + 'a {
        let waiting = || self.waiting_jobs[phase].iter();
        let overdue = self.overdue.iter().filter(|id| self.waiting_jobs[phase].key(**id).is_some());
        let retained = overdue.map(|id| (Self::retained_slots(*id, phase, plan), *id));
        let mut overdue: Vec<(u32, JobId)> =
            retained.filter(|(slots, id)| self.is_overdue_below_share(*id, phase, *slots)).collect();
        overdue.sort_by_key(|(slots, _)| *slots);
        let overdue = overdue.into_iter().map(|(_, id)| (id, Precedence::Overdue));
        let below_min = waiting().filter(move |id| self.is_below_min(*id, phase));
        let below_min = below_min.map(|id| (id, Precedence::BelowMinShare));
        overdue.chain(below_min).chain(waiting().map(move |id| (id, self.state(id).rank(phase).0)))
    }

    /// Returns the reason why a job gets a slot.
    fn launch_reason(&self, id: JobId, phase: Phase, precedence: Precedence, detail: &str) -> Why {
        let (state, why) = (self.state(id), Why::rule(precedence.rule()));
        let why = if detail.is_empty() { why } else { why.with_detail(detail) };
        match precedence {
            Precedence::Overdue => why.with("share", self.settings.overdue_share),
            Precedence::MapsEndSoonest => why.with("maps_end", state.maps_end_s),
            Precedence::BelowMinShare | Precedence::LeastWork => why.with("size", state.size_for(phase)),
        }
    }

    /// Returns the map that a job would run on a tracker, and how near its input is. A job waits for
    /// a node-local slot, at most as long as a map loses elsewhere.
    fn map_for(
        &self,
        job: &Job,
        tracker: TrackerId,
        waits: &mut Waits,
        plan: &Plan<'_>,
    ) -> Option<(TaskId, &'static str)> {
        let waited = waits.locality.since(job.id).map_or(Span(0), |since| plan.now().since(since));
        let is_over = waited.as_secs_f64() >= self.remote_loss_s(job.id);
        let (task, near) = waits.locality.next_map(job, tracker, is_over, plan)?;
        Some((task, near.name()))
    }

    /// Returns the seconds that a map of a job loses if it is not node-local.
    fn remote_loss_s(&self, job: JobId) -> f64 {
        if !self.settings.measures_locality {
            return f64::INFINITY;
        }
        let slowdown = self.nodes.remote_slowdown();
        let loss_s = self.state(job).work.task_s.map * (slowdown - 1.0);
        if slowdown < REMOTE_SLOWDOWN_MIN { 0.0 } else { loss_s }
    }

    /// Returns the reduce that a job would run on a tracker: one whose checkpoint is there, a new
    /// one, or one whose checkpoint can be copied sooner than a slot is free where it is.
    fn reduce_for(&self, job: &Job, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, &'static str)> {
        if !self.settings.waits_for_checkpoint {
            return Some((plan.next_reduce(job, tracker)?, ""));
        }
        if let Some((task, place)) = plan.next_reduce_at(job, tracker, CheckpointPlace::None) {
            return Some((task, if place == CheckpointPlace::Local { "resumed" } else { "" }));
        }
        let mut paused =
            self.paused.tasks_of(job.id).filter_map(|index| job.tasks.reduce.get(index as usize));
        let found = paused.find(|task| {
            plan.reserved_place(task.id).is_none()
                && plan.could_run(task.id, tracker).is_ok()
                && self.may_migrate(task, plan)
        });
        found.map(|task| (task.id, "migrated"))
    }

    /// Returns whether a paused reduce may resume on a node without its checkpoint.
    fn may_migrate(&self, task: &Task, plan: &Plan<'_>) -> bool {
        let Some(checkpoint) = task.checkpoint else { return false };
        let copy_s = checkpoint.bytes as f64 / FETCH_BYTES_PER_S;
        let home = checkpoint.tracker;
        let paused_at = plan.cluster().attempt(checkpoint.attempt).and_then(|paused| paused.ended);
        let waited_s = paused_at.map_or(0.0, |at| plan.now().since(at).as_secs_f64());
        copy_s < self.release_s(home, plan)
            || plan.could_run(task.id, home).is_err()
            || waited_s > PATIENCE * copy_s + PATIENCE_MIN_S
    }

    /// Returns the seconds until a reduce slot of a tracker is free.
    fn release_s(&self, tracker: TrackerId, plan: &Plan<'_>) -> f64 {
        if plan.free_slots(tracker, Phase::Reduce) > 0 {
            return if self.speed(tracker) < SLOW { f64::INFINITY } else { 0.0 };
        }
        let Some(tracker) = plan.cluster().tracker(tracker).filter(|tracker| tracker.accepts_work()) else {
            return f64::INFINITY;
        };
        let attempts = tracker.running.reduce.iter().filter_map(|id| plan.cluster().attempt(*id));
        attempts.map(|attempt| self.remaining_s(attempt, plan)).fold(f64::INFINITY, f64::min)
    }

    /// Returns the seconds until an attempt ends by itself. A reduce that has already taken longer
    /// than predicted needs at least as much more.
    fn remaining_s(&self, attempt: &Attempt, plan: &Plan<'_>) -> f64 {
        let progress = plan.cluster().progress(attempt);
        let state = self.state(attempt.id.job());
        let elapsed = plan.now().since(attempt.launched).as_secs_f64();
        match attempt.id.phase() {
            Phase::Map => {
                let done = f64::from(progress.done);
                if done > 0.0 { elapsed * (1.0 - done) / done } else { state.work.task_s.map }
            }
            Phase::Reduce => {
                let task_s = state.work.task_s.reduce;
                let job = plan.cluster().job(attempt.id.job());
                let taken = job.and_then(|job| job.reduce_time(attempt.id, plan.now()));
                let overrun_s = taken.map_or(0.0, |taken| taken.as_secs_f64() - task_s);
                let left_s = (task_s * (1.0 - part_reduced(progress))).max(overrun_s);
                state.maps_end_s + left_s / self.speed(attempt.tracker).min(1.0)
            }
        }
    }
}

/// Divides slots evenly among jobs that can use these numbers of slots. What cannot be divided goes
/// to the first.
fn divide_evenly(slots: u32, usable: &[u32]) -> Vec<u32> {
    let mut shares = vec![0; usable.len()];
    let mut left = slots.min(usable.iter().sum());
    while left > 0 {
        for (share, usable) in shares.iter_mut().zip(usable) {
            if left > 0 && *share < *usable {
                (*share, left) = (*share + 1, left - 1);
            }
        }
    }
    shares
}

impl JobState {
    fn rank(&self, phase: Phase) -> Rank {
        match phase {
            Phase::Reduce if !self.is_ready => (Precedence::MapsEndSoonest, Real(self.maps_end_s)),
            _ => (Precedence::LeastWork, Real(self.size_for(phase))),
        }
    }

    /// Returns the work that counts for slots of a phase: that of the maps for map slots, and that
    /// of the job for reduce slots.
    fn size_for(&self, phase: Phase) -> f64 {
        match phase {
            Phase::Map => self.map_size_s,
            Phase::Reduce => self.size_s,
        }
    }

    /// Returns the number of slots that the job has precedence for, if it is overdue.
    fn overdue_share(&self, phase: Phase) -> Option<u32> {
        self.overdue_since.map(|_| self.overdue_slots[phase])
    }
}

impl SlotOrder for Coda {
    fn choose(&mut self, phase: Phase, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        // The order of the jobs borrows the policy while the waits change.
        let mut waits = std::mem::take(&mut self.waits);
        let found = self.in_order(phase, plan).find_map(|(id, precedence)| {
            let job = plan.cluster().job(id)?;
            if self.declines(id, (phase, tracker), plan.now(), &mut waits) {
                return None;
            }
            let (task, detail) = match phase {
                Phase::Map => self.map_for(job, tracker, &mut waits, plan)?,
                Phase::Reduce => self.reduce_for(job, tracker, plan)?,
            };
            Some((task, self.launch_reason(id, phase, precedence, detail)))
        });
        self.waits = waits;
        found
    }

    fn charge(&mut self, job: JobId, phase: Phase, _plan: &Plan<'_>) {
        self.pools.charge(job, phase);
    }

    fn restore(&mut self, job: JobId, cluster: &Cluster) {
        self.pools.refresh(job, cluster);
    }
}

impl Scheduler for Coda {
    fn name(&self) -> &'static str {
        "coda"
    }

    fn observe(&mut self, now: Time, fact: &Fact, cluster: &Cluster) {
        self.pools.observe(fact, cluster);
        self.estimator.observe(fact, cluster);
        self.paused.observe(fact, cluster);
        match fact {
            Fact::JobTrackerStarted { .. } => {
                self.waits.locality.reset();
                self.waits.slow_nodes.clear();
            }
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => {
                self.jobs.remove(job);
                self.waits.locality.forget(*job);
                self.waits.slow_nodes.remove(job);
            }
            Fact::MapSplit { attempt, .. } | Fact::AttemptPaused { attempt, .. } => {
                let requested = cluster.attempt(*attempt).and_then(|attempt| attempt.preempt_request);
                if let Some((_, at)) = requested {
                    self.latency[attempt.phase()].add(now.since(at).as_secs_f64());
                }
                self.record_map(*attempt, now, cluster);
            }
            Fact::AttemptLaunched { attempt, .. } => {
                self.waits.slow_nodes.remove(&attempt.job());
            }
            Fact::AttemptSucceeded { attempt, .. } => self.record_map(*attempt, now, cluster),
            Fact::TrackerLost { tracker, .. } | Fact::TrackerForgotten { tracker, .. } => {
                self.nodes.forget(*tracker);
            }
            _ => {}
        }
        let Some(id) = fact.job() else { return };
        if let Some(job) = cluster.job(id).filter(|job| job.is_running()) {
            let is_new = !self.jobs.contains_key(&id);
            let is_old = || now.since(self.state(id).estimated_at) >= self.interval;
            if is_new || is_old() {
                self.estimate(job, now, cluster);
            }
            self.wants_round |= is_new;
        }
        self.refresh(id, cluster);
    }

    fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
        match round.cause {
            Cause::Offer(tracker) => fill_in_order(self, tracker, plan),
            Cause::Tick => {
                self.refresh_all(round.now, plan.cluster());
                self.wants_round = false;
                self.leave_slow_nodes(plan);
                for phase in Phase::BOTH {
                    self.preempt(phase, plan);
                }
            }
        }
    }

    fn tick_interval(&self) -> Option<Span> {
        Some(self.interval)
    }

    fn needs_round(&self) -> bool {
        self.wants_round
    }

    /// Lost tasks preempt by the same rules as waiting jobs: an overdue job keeps its share, a pool
    /// its minimum share, and a job that is hardly larger its slots. No rule applies in both
    /// directions.
    fn outranks(&self, a: JobId, b: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        self.preemption_rule(a, b, phase, plan).is_some()
    }

    fn explain(&self, job: &Job, now: Time, cluster: &Cluster) -> Vec<Why> {
        if let Some(why) = self.pools.pool_of(job.id).and_then(|pool| pool.job_limit_reason(job.id)) {
            return vec![why];
        }
        let mut reasons = Vec::new();
        for phase in Phase::BOTH.into_iter().filter(|phase| self.waiting_jobs[*phase].key(job.id).is_some()) {
            let waits = self.wait_reasons(job, phase, now, cluster);
            let ahead = self.order_reason(job.id, phase, cluster);
            if waits.is_empty() || ahead.number("jobs_ahead").is_some() {
                reasons.push(ahead);
            }
            reasons.extend(waits);
            reasons.extend(self.preemption_reason(job.id, phase, cluster));
        }
        reasons
    }
}

impl Coda {
    /// Returns why a job waits in the order of jobs.
    fn order_reason(&self, job: JobId, phase: Phase, cluster: &Cluster) -> Why {
        let state = self.state(job);
        let place = |id: JobId| {
            let held = cluster.job(id).map_or(0, |job| job.running[phase].len() as u32);
            (self.precedence(id, phase, held), self.state(id).rank(phase), id)
        };
        let own = place(job);
        let ahead = self.waiting_jobs[phase].iter().filter(|id| place(*id) < own).count();
        let why = if state.overdue_since.is_some() {
            Why::rule("shares-with-overdue-jobs").with("share", self.settings.overdue_share)
        } else if phase == Phase::Reduce && !state.is_ready {
            Why::rule("ready-jobs-first").with("maps_end", state.maps_end_s)
        } else {
            Why::rule("smaller-jobs-first").with("size", state.size_for(phase))
        };
        if ahead > 0 { why.with("jobs_ahead", ahead as f64) } else { why }
    }

    /// Returns which slots a job cannot get by preemption, from jobs that are not smaller.
    fn preemption_reason(&self, job: JobId, phase: Phase, cluster: &Cluster) -> Option<Why> {
        let is_lossless_only = self.settings.preempt_mode == PreemptMode::LosslessOnly;
        if !self.settings.preempts[phase]
            || !is_lossless_only
            || cluster.free_trackers(phase).next().is_some()
        {
            return None;
        }
        let is_overdue = self.state(job).overdue_since.is_some();
        let held_by = |other: &Job| {
            let running = cluster.running(other, phase);
            let kind = PreemptKind::lossless(phase);
            let is_indivisible =
                |id| matches!(cluster.may_preempt(id, kind), Err(NotPreemptible::Indivisible(_)));
            running.filter(|(attempt, _)| attempt.refusals > 0 || is_indivisible(attempt.id)).count()
        };
        let others = cluster.active_jobs().filter(|other| other.id != job);
        let others = others.filter(|other| is_overdue || self.size_rule(other.id, job, phase).is_none());
        let held: Vec<(usize, JobId)> = others.map(|other| (held_by(other), other.id)).collect();
        let (_, first) = held.iter().max_by_key(|(tasks, id)| (*tasks, Reverse(*id)))?;
        let tasks: usize = held.iter().map(|(tasks, _)| tasks).sum();
        let why = Why::rule("slots-not-preemptible").with("tasks", tasks as f64);
        (tasks > 0).then(|| why.with("first_job", f64::from(first.0)))
    }

    /// Returns which better slots a job waits for although others are free.
    fn wait_reasons(&self, job: &Job, phase: Phase, now: Time, cluster: &Cluster) -> Vec<Why> {
        let free: Vec<TrackerId> = cluster.free_trackers(phase).collect();
        if free.is_empty() {
            return Vec::new();
        }
        let limit = Span((self.remote_loss_s(job.id) * 1e6) as u64);
        let locality = self.waits.locality.reason(job, limit, now, cluster).filter(|_| phase == Phase::Map);
        let since = self.waits.slow_nodes.get(&job.id);
        let since = since.filter(|_| free.iter().any(|tracker| self.is_too_slow(job.id, phase, *tracker)));
        let slow = since.map(|since| {
            let why = Why::rule("waits-for-faster-node").with("waited", now.since(*since).as_secs_f64());
            why.with("at_most", self.longest_wait_s(job.id, phase))
        });
        let paused = self.paused.count_of(job.id);
        let waits = phase == Phase::Reduce && paused > 0 && self.settings.waits_for_checkpoint;
        let checkpoint = waits.then(|| Why::rule("waits-for-checkpoint-node").with("tasks", paused as f64));
        locality.into_iter().chain(slow).chain(checkpoint).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::divide_evenly;

    #[test]
    fn slots_of_overdue_jobs_are_divided_evenly() {
        assert_eq!(divide_evenly(6, &[9, 9, 9]), [2, 2, 2]);
        assert_eq!(divide_evenly(8, &[9, 9, 9]), [3, 3, 2]);
        // A job that can use less leaves the rest to others.
        assert_eq!(divide_evenly(8, &[1, 9, 2]), [1, 5, 2]);
        assert_eq!(divide_evenly(8, &[1, 0, 2]), [1, 0, 2]);
        // More jobs than slots: those that have been overdue longest.
        assert_eq!(divide_evenly(2, &[9, 9, 9]), [1, 1, 0]);
        assert_eq!(divide_evenly(0, &[9]), [0]);
    }
}
