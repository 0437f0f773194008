//! Coda: the job with the least remaining work first, bounded by what fair sharing would give.
//!
//! 1. **Order.** Map slots go to the job with the least remaining work of maps relative to all map
//!    slots, in seconds. The size of a job is this plus the remaining work of its reduces relative
//!    to all reduce slots. Both are divided by the weight of its priority. Work is estimated
//!    (`estimator`).
//! 2. **Reduces.** A reduce that waits for maps only holds its slot. A job is *ready* when its last
//!    map is expected to end within the time that a reduce needs to fetch its input. Reduce slots
//!    go to ready jobs, the smallest first, then to the others, those whose maps end soonest first.
//! 3. **Preemption.** A job preempts attempts of jobs with more work by `margin` in this order, and
//!    a ready job also reduces of jobs that are not ready. Attempts that will end about as soon as
//!    they could be preempted are left alone, and their slots are counted.
//! 4. **Bound.** Fair sharing is simulated (`virtual_fair`). A job that has taken or will take
//!    `overdue_after` times as long as it would have under fair sharing is overdue. Overdue jobs
//!    have precedence for `overdue_share` of the slots and share them evenly.
//! 5. **Minimum shares.** A pool below its minimum share comes before all jobs that are not
//!    overdue.
//! 6. **Unequal nodes.** A slot of a slow node is not used if the task would end sooner on another
//!    node, after the work of the jobs that are ahead. An attempt on a slow node moves if it ends
//!    sooner elsewhere.
//! 7. **Recovery.** Tasks that were lost with a node get slots at once, in the order of their jobs
//!    (`chronos`).
//!
//! Every rule can be switched off. README.md and docs/research/coda.md explain why each exists.

mod estimator;
mod nodes;
mod virtual_fair;

use crate::{
    chronos::Chronos,
    estimate::{Mean, demand},
    fair::pools::{self, Pool, Pools},
    fill::{LocalityDelay, SlotOrder, fill_in_order},
    params::Section,
    paused::PausedReduces,
    ranked_queue::{RankedQueue, Real},
    victims::{PreemptionRules, Victims, preempt_for_jobs},
};
use estimator::{Estimator, Work, part_reduced};
use mrcore::{
    AcceptedSlots, Cluster, Fact, PerPhase, Phase, Plan, Scheduler, Span, Time, Why,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::Job,
    plan::{CheckpointPlace, Locality, PreemptMode},
    scheduler::{Cause, Round},
    task::{Attempt, Task},
};
use nodes::{MeasuredMap, Nodes, SLOW};
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};
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
const INTERVAL_S: std::ops::RangeInclusive<u64> = 1..=10;
/// Assumed cost in seconds of a preemption before any was measured.
const UNMEASURED_COST_S: f64 = 2.0;
/// Time to start a process again.
const RESTART_S: f64 = 1.0;
/// Assumed rate at which a reduce fetches its input or copies a checkpoint.
const FETCH_BYTES_PER_S: f64 = 40e6;
/// How long before the end of the maps a reduce is launched, in addition to the time of the fetch.
const LEAD_S: f64 = 3.0;
/// A job that is ready stays so until its maps need this many times as long.
const READY_HYSTERESIS: f64 = 3.0;
/// Maps that are slower elsewhere by less than this factor do not wait for a node-local slot.
const REMOTE_SLOWDOWN_MIN: f64 = 1.05;
/// A task waits for a better slot at most this many times as long as expected, plus a constant.
const PATIENCE: f64 = 4.0;
const PATIENCE_MIN_S: f64 = 60.0;

/// An attempt moves from a slow node for the first time if it ends this many times as soon elsewhere.
const MOVE_GAIN: f64 = 2.0;
/// An attempt is preempted if it would hold its slot for this many times the cost. Maps are short,
/// and a split map loses its locality.
const COST_MARGIN: PerPhase<f64> = PerPhase { map: 5.0, reduce: 1.25 };

/// The position of a job: jobs that are not ready come last.
type Rank = (bool, Real);

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
    locality_delay: LocalityDelay,
    paused: PausedReduces,
    virtual_fair: VirtualFair,
    jobs: BTreeMap<JobId, JobState>,
    /// Jobs that can use a slot, in order.
    waiting_jobs: PerPhase<RankedQueue<JobId, Rank>>,
    nodes: Nodes,
    /// Measured time from the request to the release of a slot.
    latency: PerPhase<Mean>,
    /// The overdue jobs, the one that has been overdue longest first.
    overdue: Vec<JobId>,
    /// How often work is estimated and attempts are preempted.
    interval: Span,
    /// Since when jobs have left slots of slow nodes free.
    declined_since: BTreeMap<JobId, Time>,
    /// Whether jobs have arrived or become ready since the last round.
    wants_round: bool,
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
    /// Remaining seconds on the whole cluster, divided by the weight of the priority: of the maps,
    /// and of maps and reduces.
    size: PerPhase<f64>,
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
            preempt_mode: section.preempt_mode(),
            preempts: PerPhase {
                map: section.switch("preempt_maps", "preempt maps of larger jobs"),
                reduce: section.switch("preempt_reduces", "preempt reduces"),
            },
            ready_first: section
                .switch("ready_first", "reduce slots go first to jobs whose maps are done or nearly done"),
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
            locality_delay: LocalityDelay::new(node_wait, rack_wait),
            paused: PausedReduces::default(),
            virtual_fair: VirtualFair::default(),
            jobs: BTreeMap::new(),
            waiting_jobs: PerPhase::default(),
            nodes: Nodes::default(),
            latency: PerPhase::default(),
            overdue: Vec::new(),
            interval: Span::secs(*INTERVAL_S.start()),
            declined_since: BTreeMap::new(),
            wants_round: false,
        }
    }

    fn state(&self, job: JobId) -> JobState {
        self.jobs.get(&job).copied().unwrap_or_default()
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
        let (maps, all) = (left(Phase::Map) / weight, (left(Phase::Map) + left(Phase::Reduce)) / weight);
        state.size = PerPhase { map: maps, reduce: all };
        state.maps_end_s = maps_end_s;
        // A job that is ready stays so while its estimate varies, or its reduces would be paused
        // and resumed again and again.
        let within_s = if was_ready { READY_HYSTERESIS * fetch_s } else { fetch_s };
        state.is_ready = !self.settings.ready_first || maps_end_s <= within_s;
        state.estimated_at = now;
        self.wants_round |= state.is_ready && !was_ready;
    }

    /// Updates the place of a job in the queues.
    fn refresh(&mut self, id: JobId, cluster: &Cluster) {
        let state = self.state(id);
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
            in_order.sort_by_key(|id| (Real(self.state(*id).size[phase]), *id));
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
            let is_overdue =
                fair_s.is_some_and(|fair_s| ends > self.settings.overdue_after * fair_s + LEAD_S);
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

    /// Returns whether a task of a job would end sooner on another node than on this slow one,
    /// after the work of all smaller jobs.
    fn is_too_slow(&self, job: JobId, phase: Phase, tracker: TrackerId) -> bool {
        let speed = self.speed(tracker);
        if !self.settings.avoids_slow_nodes || speed >= SLOW {
            return false;
        }
        let state = self.state(job);
        state.work.task_s[phase] / speed > state.work.task_s[phase] + state.backlog_s[phase]
    }

    /// Returns whether a job leaves a slot of a slow node free. If no other slot comes for much
    /// longer than expected, the job takes the slot.
    fn declines(
        &self,
        job: JobId,
        (phase, tracker): (Phase, TrackerId),
        now: Time,
        declined_since: &mut BTreeMap<JobId, Time>,
    ) -> bool {
        if !self.is_too_slow(job, phase, tracker) {
            return false;
        }
        let since = *declined_since.entry(job).or_insert(now);
        let state = self.state(job);
        let expected_s = state.backlog_s[phase] + state.work.task_s[phase];
        now.since(since).as_secs_f64() < PATIENCE * expected_s + PATIENCE_MIN_S
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

    /// Returns the overdue jobs that have precedence for the next slot because they have less than
    /// their share, the one with the fewest slots first.
    fn overdue_jobs(&self, phase: Phase, plan: &Plan<'_>) -> Vec<JobId> {
        let waiting = self.overdue.iter().filter(|id| self.waiting_jobs[phase].key(**id).is_some());
        let retained = waiting.map(|id| (Self::retained_slots(*id, phase, plan), *id));
        let mut below: Vec<(u32, JobId)> =
            retained.filter(|(retained, id)| *retained < self.state(*id).overdue_slots[phase]).collect();
        below.sort_by_key(|(retained, _)| *retained);
        below.into_iter().map(|(_, id)| id).collect()
    }

    fn is_below_min(&self, job: JobId, phase: Phase) -> bool {
        let below = |pool: &Pool| pool.held_slots[phase] < pool.min[phase];
        self.settings.min_shares && self.pools.pool_of(job).is_some_and(below)
    }

    /// Returns the jobs that can use a slot in the order in which they get one. A job may occur more
    /// than once.
    fn in_order<'a>(
        &'a self,
        phase: Phase,
        plan: &Plan<'_>,
    ) -> impl Iterator<Item = (JobId, Precedence)> + 'a {
        let overdue = self.overdue_jobs(phase, plan).into_iter().map(|id| (id, Precedence::Overdue));
        let waiting = || self.waiting_jobs[phase].iter();
        let below = waiting().filter(move |id| self.is_below_min(*id, phase));
        let below = below.map(|id| (id, Precedence::BelowMinShare));
        overdue.chain(below).chain(waiting().map(move |id| (id, self.state(id).precedence(phase))))
    }

    /// Returns the precedence of a job that holds this many slots.
    fn precedence(&self, id: JobId, phase: Phase, held_slots: u32) -> Precedence {
        let state = self.state(id);
        if state.overdue_since.is_some() && held_slots < state.overdue_slots[phase] {
            Precedence::Overdue
        } else if self.is_below_min(id, phase) {
            Precedence::BelowMinShare
        } else {
            state.precedence(phase)
        }
    }

    /// Returns the reason why a job gets a slot.
    fn launch_reason(&self, id: JobId, phase: Phase, precedence: Precedence, detail: &str) -> Why {
        let (state, why) = (self.state(id), Why::rule(precedence.rule()));
        let why = if detail.is_empty() { why } else { why.with_detail(detail) };
        match precedence {
            Precedence::Overdue => why.with("share", self.settings.overdue_share),
            Precedence::MapsEndSoonest => why.with("maps_end", state.maps_end_s),
            Precedence::BelowMinShare | Precedence::LeastWork => why.with("size", state.size[phase]),
        }
    }

    /// Returns the map that gets a slot. A job waits for a node-local slot, at most as long as a
    /// map loses elsewhere.
    fn choose_map(&mut self, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        let mut delay = std::mem::take(&mut self.locality_delay);
        let mut declined_since = std::mem::take(&mut self.declined_since);
        let (slot, now) = ((Phase::Map, tracker), plan.now());
        let found = self.in_order(Phase::Map, plan).find_map(|(id, precedence)| {
            let job = plan.cluster().job(id)?;
            if self.declines(id, slot, now, &mut declined_since) {
                return None;
            }
            let waited = delay.since(id).map_or(Span(0), |since| now.since(since));
            let is_over = waited.as_secs_f64() >= self.remote_loss_s(id);
            let (task, near) = delay.next_map(job, tracker, is_over, plan)?;
            Some((task, self.launch_reason(id, Phase::Map, precedence, near.name())))
        });
        (self.locality_delay, self.declined_since) = (delay, declined_since);
        found
    }

    /// Returns the reduce that gets a slot.
    fn choose_reduce(&mut self, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        let mut declined_since = std::mem::take(&mut self.declined_since);
        let (slot, now) = ((Phase::Reduce, tracker), plan.now());
        let found = self.in_order(Phase::Reduce, plan).find_map(|(id, precedence)| {
            let job = plan.cluster().job(id)?;
            if self.declines(id, slot, now, &mut declined_since) {
                return None;
            }
            let (task, how) = self.reduce_for(job, tracker, plan)?;
            Some((task, self.launch_reason(id, Phase::Reduce, precedence, how)))
        });
        self.declined_since = declined_since;
        found
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

    /// Returns the seconds that a preemption costs: until the slot is free, to start the victim
    /// again, and to read back what it had in memory, which takes about as long as to write it.
    fn preemption_cost_s(&self, phase: Phase) -> f64 {
        let latency = self.latency[phase].value().unwrap_or(UNMEASURED_COST_S);
        RESTART_S + latency * if phase == Phase::Reduce { 2.0 } else { 1.0 }
    }

    /// Preempts attempts for waiting jobs: first those whose slots are node-local for a map of the
    /// job, then any.
    fn preempt(&self, phase: Phase, plan: &mut Plan<'_>) {
        if !self.settings.preempts[phase] || self.waiting_jobs[phase].is_empty() {
            return;
        }
        let mut seen = BTreeSet::new();
        let in_order = self.in_order(phase, plan).map(|(id, _)| id);
        let in_need: Vec<JobId> = in_order.filter(|id| seen.insert(*id)).collect();
        let limits: &[Locality] = match phase {
            Phase::Map => &[Locality::NodeLocal, Locality::OffRack],
            Phase::Reduce => &[Locality::OffRack],
        };
        let ending = self.slots_free_soon(phase, plan);
        for limit in limits {
            let victims = Victims::greatest_first(phase, plan, |attempt, _| {
                let rank = self.state(attempt.id.job()).rank(phase);
                // By work, not by time: otherwise the slots of slow nodes would be freed first.
                let left = 1.0 - f64::from(plan.cluster().progress(attempt).done);
                (rank, Real(left), attempt.id)
            });
            // Smaller jobs do not use the slots of slow nodes.
            let victims = victims.without_slots_on(|tracker| self.speed(tracker) < SLOW);
            let rules = Preemption { policy: self, limit: *limit, ending: Cell::new(ending) };
            preempt_for_jobs(&in_need, phase, victims, &rules, self.settings.preempt_mode, plan);
        }
    }

    /// Preempts attempts on slow nodes that end sooner on another node.
    fn leave_slow_nodes(&self, plan: &mut Plan<'_>) {
        if !self.settings.avoids_slow_nodes {
            return;
        }
        let cluster = plan.cluster();
        for tracker in cluster.trackers() {
            let speed = self.speed(tracker.id);
            if speed >= SLOW {
                continue;
            }
            for phase in Phase::BOTH.into_iter().filter(|phase| self.settings.preempts[*phase]) {
                for attempt in tracker.running[phase].iter().filter_map(|id| cluster.attempt(*id)) {
                    let state = self.state(attempt.id.job());
                    // A reduce waits for maps on any node.
                    let waits_s = if phase == Phase::Reduce { state.maps_end_s } else { 0.0 };
                    let left_s = self.remaining_s(attempt, plan) - waits_s;
                    let there_s = self.preemption_cost_s(phase) + state.backlog_s[phase];
                    let is_new = plan.now().since(attempt.launched) < self.settings.newly_launched;
                    let there_s = left_s * speed + there_s;
                    let mut moves = !is_new && left_s > MOVE_GAIN * there_s;
                    if moves {
                        // Each move must gain more than the one before.
                        let before = interruptions(attempt, cluster);
                        moves = left_s > (MOVE_GAIN + f64::from(before)) * there_s;
                    }
                    if moves && !plan.is_preempted(attempt.id) {
                        let why = Why::rule("slow-node").with("speed", speed);
                        let _ = plan.preempt_in_mode(attempt.id, self.settings.preempt_mode, why);
                    }
                }
            }
        }
    }

    /// Returns the number of slots that will soon be free without preemption.
    fn slots_free_soon(&self, phase: Phase, plan: &Plan<'_>) -> u32 {
        let cluster = plan.cluster();
        let attempts = cluster.active_jobs().flat_map(|job| cluster.running(job, phase));
        attempts
            .filter(|(attempt, _)| !plan.is_preempted(attempt.id) && self.ends_soon(attempt, plan))
            .count() as u32
    }

    /// Returns whether an attempt ends by itself so soon that preempting it does not pay.
    fn ends_soon(&self, attempt: &Attempt, plan: &Plan<'_>) -> bool {
        let phase = attempt.id.phase();
        self.settings.weighs_cost
            && self.remaining_s(attempt, plan) < COST_MARGIN[phase] * self.preemption_cost_s(phase)
    }
}

/// Returns how often the task of an attempt was interrupted. The remainder of a map that was split
/// is a new task with the same root.
fn interruptions(attempt: &Attempt, cluster: &Cluster) -> u32 {
    let job = cluster.job(attempt.id.job()).filter(|_| attempt.id.phase() == Phase::Map);
    let root = cluster.task(attempt.id.task).map(|task| task.root);
    let pieces = job.into_iter().flat_map(|job| &job.tasks.map).filter(|task| Some(task.root) == root);
    attempt.id.number + (pieces.count() as u32).saturating_sub(1)
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
            Phase::Reduce if !self.is_ready => (true, Real(self.maps_end_s)),
            _ => (false, Real(self.size[phase])),
        }
    }

    fn precedence(&self, phase: Phase) -> Precedence {
        match phase {
            Phase::Reduce if !self.is_ready => Precedence::MapsEndSoonest,
            _ => Precedence::LeastWork,
        }
    }
}

/// The rules of one round of preemptions.
struct Preemption<'a> {
    policy: &'a Coda,
    /// How near the input of a map must be.
    limit: Locality,
    /// Number of slots that will soon be free without preemption, and are not counted for a job
    /// yet.
    ending: Cell<u32>,
}

impl PreemptionRules for Preemption<'_> {
    fn deficit(&self, job: &Job, phase: Phase, plan: &Plan<'_>) -> u32 {
        let state = self.policy.state(job.id);
        if phase == Phase::Reduce && !state.is_ready && state.overdue_since.is_none() {
            return 0;
        }
        let wanted = (plan.startable_tasks(job, phase) as u32).min(plan.cluster().slots(phase));
        let spared = wanted.min(self.ending.get());
        self.ending.set(self.ending.get() - spared);
        wanted - spared
    }

    fn may_preempt_from(&self, to: JobId, from: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        self.policy.preemption_rule(to, from, phase, plan).is_some()
    }

    fn is_protected(&self, victim: &Attempt, plan: &Plan<'_>) -> bool {
        plan.now().since(victim.launched) < self.policy.settings.newly_launched
            || plan.has_just_resumed(victim)
            || self.policy.ends_soon(victim, plan)
    }

    fn task_in_slot(&self, job: &Job, victim: &Attempt, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        let (phase, tracker) = (victim.id.phase(), victim.tracker);
        if self.policy.is_too_slow(job.id, phase, tracker) {
            return None;
        }
        let (task, detail) = match phase {
            Phase::Map => {
                let (task, near) = plan.next_map(job, tracker, self.limit)?;
                (task, near.name())
            }
            Phase::Reduce => self.policy.reduce_for(job, tracker, plan)?,
        };
        let retained_slots = Coda::retained_slots(job.id, phase, plan);
        let precedence = self.policy.precedence(job.id, phase, retained_slots);
        Some((task, self.policy.launch_reason(job.id, phase, precedence, detail)))
    }

    /// A free slot of a slow node may be as near to the input, but the task would end later there.
    fn accepted_slots(&self) -> AcceptedSlots {
        if self.policy.settings.avoids_slow_nodes && self.policy.nodes.has_slow() {
            AcceptedSlots::ThisTracker
        } else {
            AcceptedSlots::EquallyNear
        }
    }

    fn reason(&self, victim: AttemptId, beneficiary: JobId, plan: &Plan<'_>) -> Why {
        let (from, to) = (self.policy.state(victim.job()), self.policy.state(beneficiary));
        let phase = victim.phase();
        let rule = self.policy.preemption_rule(beneficiary, victim.job(), phase, plan);
        let why = match rule {
            Some("waits-for-maps") => Why::rule("waits-for-maps").with("maps_end", from.maps_end_s),
            Some("larger-job") | None => {
                Why::rule("larger-job").with("size", from.size[phase]).with("less", to.size[phase])
            }
            Some(rule) => Why::rule(rule),
        };
        why.with_beneficiary(beneficiary)
    }
}

impl Coda {
    /// Returns the rule by which a slot may move from a job to another, if it may.
    fn preemption_rule(&self, to: JobId, from: JobId, phase: Phase, plan: &Plan<'_>) -> Option<&'static str> {
        let (to_state, from_state) = (self.state(to), self.state(from));
        // An overdue job keeps its share, and takes what it lacks from all others.
        if from_state.overdue_since.is_some()
            && Self::retained_slots(from, phase, plan) <= from_state.overdue_slots[phase]
        {
            return None;
        }
        if to_state.overdue_since.is_some()
            && Self::retained_slots(to, phase, plan) < to_state.overdue_slots[phase]
        {
            return Some("overdue-job");
        }
        if self.settings.min_shares && self.pools.pool_number(to) != self.pools.pool_number(from) {
            let at_min = |pool: &Pool| pool.retained_slots(phase, plan) <= f64::from(pool.min[phase]);
            if self.pools.pool_of(from).is_some_and(|pool| pool.min[phase] > 0 && at_min(pool)) {
                return None;
            }
            // What this round preempts for the pool counts.
            let below = |pool: &Pool| {
                pool.min[phase] > 0 && pool.retained_slots(phase, plan) < f64::from(pool.min[phase])
            };
            if self.pools.pool_of(to).is_some_and(below) {
                return Some("min-share");
            }
        }
        if phase == Phase::Reduce && !to_state.is_ready {
            return None;
        }
        if phase == Phase::Reduce && !from_state.is_ready {
            return Some("waits-for-maps");
        }
        (from_state.size[phase] > self.settings.margin * to_state.size[phase]).then_some("larger-job")
    }
}

impl SlotOrder for Coda {
    fn choose(&mut self, phase: Phase, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        match phase {
            Phase::Map => self.choose_map(tracker, plan),
            Phase::Reduce => self.choose_reduce(tracker, plan),
        }
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
                self.locality_delay.reset();
                self.declined_since.clear();
            }
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => {
                self.jobs.remove(job);
                self.locality_delay.forget(*job);
                self.declined_since.remove(job);
            }
            Fact::MapSplit { attempt, .. } | Fact::AttemptPaused { attempt, .. } => {
                let requested = cluster.attempt(*attempt).and_then(|attempt| attempt.preempt_request);
                if let Some((_, at)) = requested {
                    self.latency[attempt.phase()].add(now.since(at).as_secs_f64());
                }
                self.record_map(*attempt, now, cluster);
            }
            Fact::AttemptLaunched { attempt, .. } => {
                self.declined_since.remove(&attempt.job());
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

    fn explain(&self, job: &Job, _now: Time, cluster: &Cluster) -> Vec<Why> {
        let state = self.state(job.id);
        let waits = |phase: &Phase| self.waiting_jobs[*phase].key(job.id).is_some();
        let place = |id: JobId, phase: Phase| {
            let held = cluster.job(id).map_or(0, |job| job.running[phase].len() as u32);
            (self.precedence(id, phase, held), self.state(id).rank(phase), id)
        };
        let reason = |phase: Phase| {
            let own = place(job.id, phase);
            let ahead = self.waiting_jobs[phase].iter().filter(|id| place(*id, phase) < own).count();
            let why = if state.overdue_since.is_some() {
                Why::rule("shares-with-overdue-jobs").with("share", self.settings.overdue_share)
            } else if phase == Phase::Reduce && !state.is_ready {
                Why::rule("ready-jobs-first").with("maps_end", state.maps_end_s)
            } else {
                Why::rule("smaller-jobs-first").with("size", state.size[phase])
            };
            if ahead > 0 { why.with("jobs_ahead", ahead as f64) } else { why }
        };
        Phase::BOTH.into_iter().filter(waits).map(reason).collect()
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
