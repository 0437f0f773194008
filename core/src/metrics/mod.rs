//! Computes the metrics of the papers, only from facts. The daemon, the simulator and a history
//! file give the same metrics for the same facts.
//!
//! | metric | paper | here |
//! |---|---|---|
//! | makespan, waiting, execution | hSRTF | [`JobFigures::makespan`] = waiting (to the first map) + execution |
//! | slowdown | FCS | [`JobFigures::slowdown`]: makespan over that of the same job alone |
//! | wait of reduces | FCS | [`JobFigures::reduce_wait`]: for a slot, after the maps of the job are done |
//! | preemptions, lost work | FCS, Chronos | [`JobFigures::preemption`], [`JobFigures::lost`]; other cost: [`JobFigures::overhead`] |
//! | locality | all | [`JobFigures::near`] |
//! | wait and locality of recovery | Chronos | [`Recovery`], for each job and in total |
//! | dissatisfaction, fairness | COSHH | [`shares::Shares`] |
//! | scheduling time | COSHH | `schedulers::timed`, measured with the clock of the caller: no fact contains it |

mod figures;
pub mod shares;
pub mod stats;
pub mod timeline;

use crate::{
    fact::{Fact, TRACKER_LOST},
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::{JobOutcome, JobSpec},
    phase::{PerPhase, Phase},
    plan::Locality,
    task::PreemptKind,
    time::{Span, Time},
};
pub use figures::{JobFigures, PreemptionCounts, Recovery};
use shares::Shares;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use timeline::Timeline;

/// The rule at the start of every reason for splitting a slow map.
const STRAGGLER_RULE: &str = "straggler-split";

/// The job setting that names the group under which the job's metrics are aggregated.
pub const GROUP: &str = "group";

/// Returns the group of a job: the setting `group`, else the name of the job.
pub fn group(spec: &JobSpec) -> &str {
    spec.conf.get(GROUP).unwrap_or(&spec.name)
}

/// Slot use by job is recorded only for jobs with IDs up to this number.
pub const JOBS_SHOWN_MAX: usize = 40;

/// The state of a job while it runs.
#[derive(Debug)]
struct RunningJob {
    spec: Arc<JobSpec>,
    /// The root of each map: the index of the submitted split that contains its range. When a map
    /// is split, the remainder adds an entry.
    roots: Vec<u32>,
    maps_done: u32,
    /// The duration of each map that is done.
    map_durations: Vec<Span>,
    maps: Vec<MapProgress>,
    reduces: Vec<ReduceProgress>,
    /// For each task: whether it waits for a slot, or will when it may start.
    unassigned: PerPhase<Vec<bool>>,
}

impl RunningJob {
    fn is_unassigned(&self, task: TaskId) -> bool {
        let index = task.index as usize;
        match task.phase {
            Phase::Map => self.maps.get(index).is_some_and(|map| !map.is_done && map.running == 0),
            Phase::Reduce => self.reduces.get(index).is_some_and(ReduceProgress::waits),
        }
    }
}

/// The state of a map.
#[derive(Debug, Clone, Copy, Default)]
struct MapProgress {
    /// Number of running attempts.
    running: u32,
    is_done: bool,
}

/// The state of a reduce, to measure its waiting time.
#[derive(Debug, Clone, Copy)]
struct ReduceProgress {
    /// Since when it waits for a slot, if no attempt is running and it is not on hold.
    waiting_since: Time,
    /// Number of running attempts.
    running: u32,
    is_done: bool,
    /// Whether it is on hold. Then it does not wait for a slot.
    is_on_hold: bool,
    /// Slot time of the work in its checkpoint.
    checkpointed_time: Span,
    /// The tracker where it was paused last. Several attempts may resume from the same checkpoint.
    paused_on: Option<TrackerId>,
}

impl ReduceProgress {
    fn new(waiting_since: Time) -> Self {
        Self {
            waiting_since,
            running: 0,
            is_done: false,
            is_on_hold: false,
            checkpointed_time: Span(0),
            paused_on: None,
        }
    }

    /// Returns whether it waits for a slot, provided that the maps are done.
    fn waits(&self) -> bool {
        !self.is_done && !self.is_on_hold && self.running == 0
    }
}

/// A slot that an attempt holds.
#[derive(Debug, Clone, Copy)]
struct HeldSlot {
    since: Time,
    on: TrackerId,
    request: Option<RequestedPreemption>,
}

/// The preemption of an attempt that holds a slot.
#[derive(Debug, Clone, Copy)]
struct RequestedPreemption {
    kind: PreemptKind,
    at: Time,
    /// Whether the slot is for another job. It is not if a straggler is split or a tracker is
    /// drained.
    for_others: bool,
    /// Whether the task is on hold from then on.
    holds: bool,
}

/// The metrics of all jobs.
#[derive(Debug, Default)]
pub struct Metrics {
    figures: BTreeMap<JobId, JobFigures>,
    running_jobs: BTreeMap<JobId, RunningJob>,
    held_slots: BTreeMap<AttemptId, HeldSlot>,
    /// The host and the rack of each tracker.
    tracker_places: BTreeMap<TrackerId, (String, String)>,
    /// The rack of each host.
    rack_of_host: BTreeMap<String, String>,
    /// Trackers that are lost, and since when.
    lost_trackers: BTreeMap<TrackerId, Time>,
    draining: BTreeSet<TrackerId>,
    /// Tasks that must run again because a tracker or an output was lost, and since when.
    to_recover: BTreeMap<TaskId, Time>,
    /// How fast lost work was launched again, over all jobs.
    pub recovery: Recovery,
    /// Slot use by group.
    pub timeline: Timeline,
    /// Slot use by job, for the jobs 1 to [`JOBS_SHOWN_MAX`].
    pub by_job: Timeline,
    /// Slots of users compared with their minimum shares, if users were configured.
    pub shares: Shares,
}

impl Metrics {
    /// Creates metrics with these minimum shares of users.
    pub fn with_users(users: impl IntoIterator<Item = (String, shares::MinShare)>) -> Self {
        Self { shares: Shares::new(users), ..Self::default() }
    }

    /// Returns the metrics of all jobs, oldest first.
    pub fn jobs(&self) -> impl Iterator<Item = (JobId, &JobFigures)> {
        self.figures.iter().map(|(id, figures)| (*id, figures))
    }

    /// Returns the metrics of one job.
    pub fn job(&self, id: JobId) -> Option<&JobFigures> {
        self.figures.get(&id)
    }

    /// Returns when the first of the trackers that are still lost was lost.
    pub fn first_loss(&self) -> Option<Time> {
        self.lost_trackers.values().copied().min()
    }

    /// Adds one fact.
    pub fn observe(&mut self, at: Time, fact: &Fact) {
        match fact {
            Fact::TrackerJoined { tracker, host, rack, .. } => {
                self.tracker_places.insert(*tracker, (host.clone(), rack.clone()));
                self.rack_of_host.insert(host.clone(), rack.clone());
                self.lost_trackers.remove(tracker);
            }
            Fact::TrackerLost { tracker, .. } => {
                self.lost_trackers.insert(*tracker, at);
            }
            Fact::JobSubmitted { job, spec, .. } => self.job_submitted(at, *job, spec),
            Fact::JobEnded { job, outcome } => self.job_ended(at, *job, outcome),
            Fact::AttemptLaunched { attempt, tracker, speculative, resumed_from, .. } => {
                self.attempt_launched(at, *attempt, *tracker, *speculative, *resumed_from);
            }
            Fact::TrackerDraining { tracker, .. } => {
                self.draining.insert(*tracker);
            }
            Fact::DrainCancelled { tracker, .. } => {
                self.draining.remove(tracker);
            }
            Fact::PreemptionRequested { attempt, kind, fault: false, why, hold } => {
                self.preemption_requested(at, *attempt, *kind, why, *hold);
            }
            Fact::PreemptionRefused { attempt, .. } => self.preemption_refused(*attempt),
            Fact::TaskReleased { task } => {
                if let Some(reduce) = self.reduce(*task) {
                    (reduce.is_on_hold, reduce.waiting_since) = (false, at);
                }
            }
            Fact::AttemptSucceeded { attempt, .. } => self.attempt_succeeded(at, *attempt),
            Fact::MapSplit { attempt, .. } => self.map_split(at, *attempt),
            Fact::AttemptPaused { attempt, .. } => self.attempt_paused(at, *attempt),
            Fact::AttemptFailed { attempt, .. } => self.attempt_wasted(at, *attempt, 0),
            Fact::AttemptKilled { attempt, bytes_in, .. } => self.attempt_wasted(at, *attempt, *bytes_in),
            Fact::MapOutputLost { attempt, .. } => self.map_output_lost(at, *attempt),
            Fact::CheckpointLost { attempt, why } => self.checkpoint_lost(at, *attempt, why),
            _ => {}
        }
        self.update_unassigned(at, fact);
    }

    /// Updates the number of unassigned tasks of a user after a fact about a task.
    fn update_unassigned(&mut self, at: Time, fact: &Fact) {
        let task = match fact {
            Fact::AttemptLaunched { attempt, .. }
            | Fact::PreemptionRequested { attempt, .. }
            | Fact::PreemptionRefused { attempt, .. }
            | Fact::AttemptSucceeded { attempt, .. }
            | Fact::MapSplit { attempt, .. }
            | Fact::AttemptPaused { attempt, .. }
            | Fact::AttemptFailed { attempt, .. }
            | Fact::AttemptKilled { attempt, .. }
            | Fact::MapOutputLost { attempt, .. } => attempt.task,
            Fact::TaskReleased { task } => *task,
            _ => return,
        };
        let Some(job) = self.running_jobs.get_mut(&task.job) else { return };
        // A split adds a task at the end.
        let last = TaskId { index: (job.maps.len() as u32).saturating_sub(1), ..task };
        let remainder = matches!(fact, Fact::MapSplit { .. }).then_some(last);
        for task in std::iter::once(task).chain(remainder) {
            let now = job.is_unassigned(task);
            let Some(before) = job.unassigned[task.phase].get_mut(task.index as usize) else { continue };
            if std::mem::replace(before, now) != now {
                self.shares.change_unassigned(at, &job.spec.user, if now { 1 } else { -1 });
            }
        }
    }

    fn job_submitted(&mut self, at: Time, id: JobId, spec: &Arc<JobSpec>) {
        let tasks = PerPhase { map: spec.splits.len() as u32, reduce: spec.reduces };
        let figures = JobFigures {
            name: spec.name.clone(),
            user: spec.user.clone(),
            group: group(spec).to_owned(),
            tasks,
            input_bytes: spec.splits.iter().map(|split| split.end.saturating_sub(split.start)).sum(),
            submitted: at,
            first_map: None,
            first_reduce: None,
            maps_done: None,
            ended: None,
            observed_until: None,
            succeeded: false,
            failure: None,
            near: [0; 3],
            preemption: PreemptionCounts::default(),
            speculative_attempts: 0,
            lost: Span(0),
            preemption_latency: Span(0),
            restarting: Span(0),
            lost_bytes: 0,
            held: PerPhase::default(),
            reduce_waited: Span(0),
            recovery: Recovery::default(),
        };
        self.figures.insert(id, figures);
        let roots = (0..tasks.map).collect();
        let map_durations = vec![Span(0); tasks.map as usize];
        let maps = vec![MapProgress::default(); tasks.map as usize];
        let reduces = vec![ReduceProgress::new(at); tasks.reduce as usize];
        let unassigned =
            PerPhase { map: vec![true; tasks.map as usize], reduce: vec![true; tasks.reduce as usize] };
        let spec = spec.clone();
        self.shares.change_jobs(at, &spec.user, 1);
        self.shares.change_unassigned(at, &spec.user, i64::from(tasks.map) + i64::from(tasks.reduce));
        self.running_jobs
            .insert(id, RunningJob { spec, roots, maps_done: 0, map_durations, maps, reduces, unassigned });
    }

    fn job_ended(&mut self, at: Time, id: JobId, outcome: &JobOutcome) {
        if let Some(figures) = self.figures.get_mut(&id) {
            figures.ended = Some(at);
            figures.succeeded = *outcome == JobOutcome::Succeeded;
            figures.failure = match outcome {
                JobOutcome::Succeeded => None,
                JobOutcome::Failed(why) => Some(why.clone()),
                JobOutcome::Killed(user) => Some(format!("killed by {user}")),
            };
        }
        if let Some(live) = self.running_jobs.remove(&id) {
            self.shares.change_jobs(at, &live.spec.user, -1);
            let left = Phase::BOTH.iter().flat_map(|phase| &live.unassigned[*phase]);
            let left: i64 = left.map(|unassigned| i64::from(*unassigned)).sum();
            self.shares.change_unassigned(at, &live.spec.user, -left);
        }
        self.to_recover.retain(|task, _| task.job != id);
    }

    fn locality_of(&self, task: TaskId, on: TrackerId) -> Option<Locality> {
        let live = self.running_jobs.get(&task.job)?;
        let split = live.spec.splits.get(*live.roots.get(task.index as usize)? as usize)?;
        let (host, rack) = self.tracker_places.get(&on)?;
        Some(if split.hosts.contains(host) {
            Locality::NodeLocal
        } else if split.hosts.iter().any(|host| self.rack_of_host.get(host) == Some(rack)) {
            Locality::RackLocal
        } else {
            Locality::OffRack
        })
    }

    fn attempt_launched(
        &mut self,
        at: Time,
        id: AttemptId,
        on: TrackerId,
        speculative: bool,
        resumed_from: Option<AttemptId>,
    ) {
        self.held_slots.insert(id, HeldSlot { since: at, on, request: None });
        let near = (id.phase() == Phase::Map).then(|| self.locality_of(id.task, on)).flatten();
        let lost = self.to_recover.remove(&id.task);
        let Some(figures) = self.figures.get_mut(&id.job()) else { return };
        if let Some(lost) = lost {
            figures.recovery.add_launch(at.since(lost), near);
            self.recovery.add_launch(at.since(lost), near);
        }
        figures.speculative_attempts += u32::from(speculative);
        if let Some(near) = near {
            figures.first_map.get_or_insert(at);
            figures.near[near as usize] += 1;
        }
        if id.phase() == Phase::Reduce {
            figures.first_reduce.get_or_insert(at);
        }
        let live = self.running_jobs.get_mut(&id.job()).filter(|_| id.phase() == Phase::Reduce);
        if let Some(reduce) = live.and_then(|live| live.reduces.get_mut(id.task.index as usize)) {
            if resumed_from.is_some() {
                figures.preemption.resumes += 1;
                figures.preemption.migrations +=
                    u32::from(reduce.paused_on.is_some_and(|before| before != on));
            }
            if let Some(done) = figures.maps_done.filter(|_| reduce.waits()) {
                figures.reduce_waited = figures.reduce_waited + at.since(done.max(reduce.waiting_since));
            }
            reduce.running += 1;
        }
        let user = figures.user.clone();
        if let Some(map) = self.map(id.task) {
            map.running += 1;
        }
        self.shares.change_slots(at, &user, 1);
    }

    /// Returns the state of a map of a running job.
    fn map(&mut self, id: TaskId) -> Option<&mut MapProgress> {
        let live = self.running_jobs.get_mut(&id.job).filter(|_| id.phase == Phase::Map)?;
        live.maps.get_mut(id.index as usize)
    }

    /// Returns the state of a reduce of a running job.
    fn reduce(&mut self, id: TaskId) -> Option<&mut ReduceProgress> {
        let live = self.running_jobs.get_mut(&id.job).filter(|_| id.phase == Phase::Reduce)?;
        live.reduces.get_mut(id.index as usize)
    }

    /// Notes that an attempt was preempted. A repeated request of the same kind keeps the time of
    /// the first request.
    fn preemption_requested(&mut self, at: Time, id: AttemptId, kind: PreemptKind, why: &str, holds: bool) {
        let Some(held) = self.held_slots.get_mut(&id) else { return };
        let for_others = !self.draining.contains(&held.on) && !why.starts_with(STRAGGLER_RULE);
        let before = held.request.filter(|request| request.kind == kind);
        let holds = holds || held.request.is_some_and(|request| request.holds);
        let at = before.map_or(at, |request| request.at);
        held.request = Some(RequestedPreemption { kind, at, for_others, holds });
        if let Some(reduce) = self.reduce(id.task) {
            reduce.is_on_hold |= holds;
        }
    }

    /// Notes that an attempt refused to be preempted and continues.
    fn preemption_refused(&mut self, id: AttemptId) {
        let request = self.held_slots.get_mut(&id).and_then(|held| held.request.take());
        // Another attempt of the task may also have been paused with a hold.
        let other_holds = self
            .held_slots
            .iter()
            .any(|(other, held)| other.task == id.task && held.request.is_some_and(|request| request.holds));
        if request.is_some_and(|request| request.holds)
            && !other_holds
            && let Some(reduce) = self.reduce(id.task)
        {
            reduce.is_on_hold = false;
        }
    }

    /// Notes that the slot of an attempt is free, and returns what was known about the slot.
    fn slot_released(&mut self, at: Time, id: AttemptId) -> Option<HeldSlot> {
        let held = self.held_slots.remove(&id)?;
        if let Some(reduce) = self.reduce(id.task) {
            reduce.running = reduce.running.saturating_sub(1);
            reduce.waiting_since = at;
        }
        if let Some(map) = self.map(id.task) {
            map.running = map.running.saturating_sub(1);
        }
        let figures = self.figures.get_mut(&id.job())?;
        figures.held[id.phase()] = figures.held[id.phase()] + at.since(held.since);
        self.timeline.add(&figures.group, id.phase(), held.since, at);
        if (id.job().0 as usize) <= JOBS_SHOWN_MAX {
            let name = format!("{} {}", id.job(), figures.name);
            self.by_job.add(&name, id.phase(), held.since, at);
        }
        let user = figures.user.clone();
        self.shares.change_slots(at, &user, -1);
        Some(held)
    }

    fn attempt_succeeded(&mut self, at: Time, id: AttemptId) {
        let held = self.slot_released(at, id);
        if let Some(live) = self.running_jobs.get_mut(&id.job()) {
            let index = id.task.index as usize;
            if let (Phase::Map, Some(elapsed), Some(held)) =
                (id.phase(), live.map_durations.get_mut(index), held)
            {
                *elapsed = at.since(held.since);
            }
            if let (Phase::Reduce, Some(reduce)) = (id.phase(), live.reduces.get_mut(index)) {
                reduce.is_done = true;
            }
        }
        self.map_done(at, id);
    }

    /// Counts an attempt that was split or paused.
    fn count_lossless_preemption(
        &mut self,
        at: Time,
        id: AttemptId,
        held: Option<HeldSlot>,
        count: fn(&mut PreemptionCounts) -> &mut u32,
    ) {
        let request = held.and_then(|held| held.request);
        if let Some(figures) = self.figures.get_mut(&id.job()) {
            let for_others = request.is_none_or(|request| request.for_others);
            *(if for_others { count(&mut figures.preemption) } else { &mut figures.preemption.internal }) +=
                1;
            figures.preemption_latency =
                figures.preemption_latency + request.map_or(Span(0), |request| at.since(request.at));
        }
    }

    fn map_split(&mut self, at: Time, id: AttemptId) {
        let held = self.slot_released(at, id);
        self.count_lossless_preemption(at, id, held, |preemption| &mut preemption.splits);
        if let Some(live) = self.running_jobs.get_mut(&id.job()) {
            let index = id.task.index as usize;
            let root = live.roots.get(index).copied().unwrap_or(0);
            live.roots.push(root);
            live.map_durations.push(Span(0));
            live.maps.push(MapProgress::default());
            live.unassigned.map.push(false);
            if let (Some(elapsed), Some(held)) = (live.map_durations.get_mut(index), held) {
                *elapsed = at.since(held.since);
            }
        }
        self.map_done(at, id);
    }

    fn attempt_paused(&mut self, at: Time, id: AttemptId) {
        let held = self.slot_released(at, id);
        self.count_lossless_preemption(at, id, held, |preemption| &mut preemption.pauses);
        if let (Some(held), Some(reduce)) = (held, self.reduce(id.task)) {
            reduce.checkpointed_time = reduce.checkpointed_time + at.since(held.since);
            reduce.paused_on = Some(held.on);
        }
    }

    /// Counts the slot time in the lost checkpoint of a reduce as lost.
    fn checkpoint_lost(&mut self, at: Time, id: AttemptId, why: &str) {
        let Some(reduce) = self.reduce(id.task) else { return };
        let (lost, is_running) = (std::mem::take(&mut reduce.checkpointed_time), reduce.running > 0);
        if why == TRACKER_LOST && !is_running {
            self.to_recover.insert(id.task, at);
        }
        if let Some(figures) = self.figures.get_mut(&id.job()) {
            figures.lost = figures.lost + lost;
        }
    }

    /// Counts the slot time and the bytes read of an attempt that failed or was killed as lost.
    fn attempt_wasted(&mut self, at: Time, id: AttemptId, bytes: u64) {
        let Some(held) = self.slot_released(at, id) else { return };
        let running = self.running_jobs.contains_key(&id.job());
        if let Some(figures) = self.figures.get_mut(&id.job()) {
            figures.lost = figures.lost + at.since(held.since);
            figures.lost_bytes += bytes;
            if let Some(request) = held.request.filter(|request| running && request.kind == PreemptKind::Kill)
            {
                figures.preemption.kills += u32::from(request.for_others);
                figures.preemption.internal += u32::from(!request.for_others);
            }
        }
        if running && let Some(lost) = self.lost_trackers.get(&held.on) {
            self.to_recover.insert(id.task, *lost);
        }
    }

    fn map_done(&mut self, at: Time, id: AttemptId) {
        let Some(live) = self.running_jobs.get_mut(&id.job()).filter(|_| id.phase() == Phase::Map) else {
            return;
        };
        if let Some(map) = live.maps.get_mut(id.task.index as usize) {
            map.is_done = true;
        }
        live.maps_done += 1;
        if live.maps_done as usize == live.roots.len()
            && let Some(figures) = self.figures.get_mut(&id.job())
        {
            figures.maps_done = Some(at);
        }
    }

    fn map_output_lost(&mut self, at: Time, id: AttemptId) {
        let Some(live) = self.running_jobs.get_mut(&id.job()) else { return };
        live.maps_done = live.maps_done.saturating_sub(1);
        if let Some(map) = live.maps.get_mut(id.task.index as usize) {
            map.is_done = false;
        }
        self.to_recover.insert(id.task, at);
        let Some(figures) = self.figures.get_mut(&id.job()) else { return };
        let elapsed = live.map_durations.get_mut(id.task.index as usize).map(std::mem::take);
        figures.lost = figures.lost + elapsed.unwrap_or_default();
        if let Some(done) = figures.maps_done.take() {
            // From now on the reduces wait for a map. Their waiting time for a slot ends here.
            for reduce in live.reduces.iter().filter(|reduce| reduce.waits()) {
                figures.reduce_waited = figures.reduce_waited + at.since(done.max(reduce.waiting_since));
            }
        }
    }

    /// Adds the time that an attempt needed to start after a preemption.
    pub fn restarted(&mut self, job: JobId, elapsed: Span) {
        if let Some(figures) = self.figures.get_mut(&job) {
            figures.restarting = figures.restarting + elapsed;
        }
    }

    /// Ends the observation at this time. Jobs that have not ended get it as `observed_until`, and
    /// the slots that they hold count up to it.
    pub fn end_observation(&mut self, at: Time) {
        for (id, held) in &self.held_slots {
            if let Some(figures) = self.figures.get_mut(&id.job()) {
                figures.held[id.phase()] = figures.held[id.phase()] + at.since(held.since);
            }
        }
        for figures in self.figures.values_mut().filter(|figures| figures.ended.is_none()) {
            figures.observed_until = Some(at);
        }
    }
}

#[cfg(test)]
mod tests;
