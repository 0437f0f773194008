//! The plan of one round: what the policy sees and what it decides.
//!
//! A plan is both the view of the cluster that a policy gets and the list of its decisions. The
//! view includes the decisions of this round (used slots, assigned tasks). An illegal decision is
//! refused when it is made, so applying a plan cannot fail. Policies make many queries, so a query
//! costs at most a few look-ups.

mod check;
mod choose;

pub use crate::{cluster::Locality, why::Why};
use crate::{
    cluster::{Cluster, NotPreemptible},
    config::Config,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::Job,
    phase::{PerPhase, Phase},
    reserve::{AcceptedSlots, Reservations},
    task::{Attempt, AttemptState, PreemptKind, Task},
    time::Time,
    tracker::{Tracker, TrackerState},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

/// Maximum number of tasks with a reservation on another tracker that are tried on the free slots
/// of an offer.
const OTHER_RESERVATIONS_TRIED_MAX: usize = 64;

/// Where the checkpoint of a pending reduce is, relative to a tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckpointPlace {
    /// On this tracker.
    Local,
    /// The reduce has no checkpoint and starts from the beginning.
    None,
    /// On another tracker: the reduce would migrate.
    Remote,
}

/// How a policy preempts attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PreemptMode {
    /// Splits maps and pauses reduces, so that no work is lost. Attempts that cannot be split or
    /// paused are killed.
    #[default]
    Lossless,
    /// Splits maps and pauses reduces. Attempts that cannot be split or paused are not preempted.
    LosslessOnly,
    /// Kills attempts. Their work is lost.
    Kill,
}

/// Why a plan refused a decision. Nothing has changed, and the policy may continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("task {0} is not pending, and may not get a speculative attempt")]
    NotPending(TaskId),
    #[error("{job} has too few maps done to start reduces")]
    SlowStart { job: JobId },
    #[error("tracker {tracker} has no free {phase} slot")]
    NoSlot { tracker: TrackerId, phase: Phase },
    #[error("{job} has blacklisted tracker {tracker}")]
    Blacklisted { job: JobId, tracker: TrackerId },
    #[error("task {task} failed or was interrupted on tracker {tracker}, and other trackers can run it")]
    Avoided { task: TaskId, tracker: TrackerId },
    #[error("tracker {0} is already running an attempt of this task")]
    SameTracker(TrackerId),
    #[error("tracker {0} is being drained")]
    Draining(TrackerId),
    #[error("the checkpoint of task {task} is on tracker {on}, which is suspect")]
    CheckpointUnavailable { task: TaskId, on: TrackerId },
    #[error("task {0} waits, because its last attempts ended without a result")]
    Delayed(TaskId),
    #[error("a slot of tracker {on} is reserved for task {task}")]
    Reserved { task: TaskId, on: TrackerId },
    #[error(transparent)]
    NotPreemptible(#[from] NotPreemptible),
}

/// A decision of a policy.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Run a task on a tracker.
    Assign {
        task: TaskId,
        on: TrackerId,
        /// Whether the task has a running attempt.
        speculative: bool,
        why: Why,
    },
    /// Preempt an attempt.
    Preempt {
        attempt: AttemptId,
        /// How to preempt it.
        kind: PreemptKind,
        why: Why,
    },
    /// Reserve the next free slot of a tracker for a task.
    Reserve { task: TaskId, on: TrackerId, accepted_slots: AcceptedSlots, why: Why },
}

/// The view and the decisions of one round.
#[derive(Debug)]
pub struct Plan<'a> {
    cluster: &'a Cluster,
    config: &'a Config,
    reservations: &'a Reservations,
    now: Time,
    decisions: Vec<Decision>,
    used_slots: BTreeMap<TrackerId, PerPhase<u32>>,
    /// Number of slots that this round gave to each job.
    granted_slots: BTreeMap<JobId, PerPhase<GrantedSlots>>,
    assigned_tasks: BTreeSet<TaskId>,
    preempted_attempts: BTreeSet<AttemptId>,
    /// Cache: number of slots of each job that were being released, or were on suspect trackers,
    /// before this round.
    leaving_slots: RefCell<BTreeMap<JobId, PerPhase<u32>>>,
    /// Number of slots of each job that this round preempts.
    preempted_slots: BTreeMap<JobId, PerPhase<u32>>,
    new_reservations: BTreeMap<TaskId, TrackerId>,
    /// Cache: number of tasks of each job that have a reservation.
    reserved_slots: RefCell<BTreeMap<JobId, PerPhase<u32>>>,
    /// Cache: an index below which all pending tasks of a job are assigned or reserved. It saves a
    /// round that preempts thousands of slots from visiting these tasks again.
    first_index_to_check: RefCell<BTreeMap<(JobId, Phase), u32>>,
    refusals: u64,
}

/// Number of slots that a round gave to a job, for pending tasks and for speculative attempts.
#[derive(Debug, Clone, Copy, Default)]
struct GrantedSlots {
    pending: u32,
    speculative: u32,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(
        cluster: &'a Cluster,
        config: &'a Config,
        reservations: &'a Reservations,
        now: Time,
    ) -> Self {
        Self {
            cluster,
            config,
            reservations,
            now,
            decisions: Vec::new(),
            used_slots: BTreeMap::new(),
            granted_slots: BTreeMap::new(),
            assigned_tasks: BTreeSet::new(),
            preempted_attempts: BTreeSet::new(),
            leaving_slots: RefCell::default(),
            preempted_slots: BTreeMap::new(),
            new_reservations: BTreeMap::new(),
            reserved_slots: RefCell::default(),
            first_index_to_check: RefCell::default(),
            refusals: 0,
        }
    }

    /// Returns the decisions, and the number of refused decisions.
    pub(crate) fn finish(self) -> (Vec<Decision>, u64) {
        (self.decisions, self.refusals)
    }

    fn count_refusal<T>(&mut self, result: Result<T, Refused>) -> Result<T, Refused> {
        self.refusals += u64::from(result.is_err());
        result
    }

    /// Returns the time of the round.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the cluster before this round.
    pub fn cluster(&self) -> &'a Cluster {
        self.cluster
    }

    /// Returns the decisions so far.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Returns the number of free slots of a tracker, after the decisions of this round.
    pub fn free_slots(&self, tracker: TrackerId, phase: Phase) -> u32 {
        let used_slots = self.used_slots.get(&tracker).map_or(0, |used_slots| used_slots[phase]);
        let free = self.cluster.tracker(tracker).map_or(0, |tracker| self.cluster.free_slots(tracker, phase));
        free.saturating_sub(used_slots)
    }

    /// Returns the number of slots that a job holds, including those that this round gave to it.
    pub fn held_slots(&self, job: &Job, phase: Phase) -> u32 {
        let granted = self.granted_to(job, phase);
        job.running[phase].len() as u32 + granted.pending + granted.speculative
    }

    fn granted_to(&self, job: &Job, phase: Phase) -> GrantedSlots {
        self.granted_slots.get(&job.id).map_or(GrantedSlots::default(), |granted| granted[phase])
    }

    /// Returns the number of slots that a job will keep: those that it holds and those that are
    /// reserved for it, without those being preempted, after the decisions of this round. Slots on
    /// suspect trackers do not count.
    pub fn retained_slots(&self, job: &Job, phase: Phase) -> u32 {
        let used_slots = self.preempted_slots.get(&job.id).map_or(0, |used_slots| used_slots[phase]);
        let before = if job.running[phase].is_empty() {
            0
        } else {
            let mut known = self.leaving_slots.borrow_mut();
            known.entry(job.id).or_insert_with(|| self.count_leaving_slots(job))[phase]
        };
        self.held_slots(job, phase) + self.reserved_slots(job, phase) - before - used_slots
    }

    fn count_leaving_slots(&self, job: &Job) -> PerPhase<u32> {
        let leaves = |phase: Phase| {
            job.running[phase]
                .iter()
                .filter(|id| self.preempt_requested(**id) || self.is_on_suspect_tracker(**id))
                .count() as u32
        };
        PerPhase { map: leaves(Phase::Map), reduce: leaves(Phase::Reduce) }
    }

    fn preempt_requested(&self, id: AttemptId) -> bool {
        let was_preempted =
            |attempt: &Attempt| attempt.preempt_request.is_some() || attempt.state == AttemptState::Killing;
        self.cluster.attempt(id).is_some_and(was_preempted)
    }

    fn is_on_suspect_tracker(&self, id: AttemptId) -> bool {
        let on = self.cluster.attempt(id).and_then(|attempt| self.cluster.tracker(attempt.tracker));
        on.is_some_and(|tracker| tracker.state == TrackerState::Suspect)
    }

    /// Returns the number of slots that are reserved for tasks of a job, after the decisions of
    /// this round.
    pub fn reserved_slots(&self, job: &Job, phase: Phase) -> u32 {
        let count = |phase| self.reservations.tasks_of(job.id, phase).count() as u32;
        if self.reservations.is_empty() && self.new_reservations.is_empty() {
            return 0;
        }
        let before = || PerPhase { map: count(Phase::Map), reduce: count(Phase::Reduce) };
        self.reserved_slots.borrow_mut().entry(job.id).or_insert_with(before)[phase]
    }

    /// Returns whether an attempt has been preempted, before or in this round.
    pub fn is_preempted(&self, id: AttemptId) -> bool {
        self.preempted_attempts.contains(&id) || self.preempt_requested(id)
    }

    /// Returns whether the slot of a preempted attempt will be free soon: its tracker accepts work,
    /// and the preemption was requested less than `preemption_timeout` ago. A preemption by a user
    /// has no deadline, and a process may fail to end.
    pub fn is_slot_expected(&self, id: AttemptId) -> bool {
        let Some(attempt) = self.cluster.attempt(id).filter(|_| self.is_preempted(id)) else { return false };
        let late = |preempt_requested_at: Time| {
            self.now.since(preempt_requested_at) >= self.config.preemption_timeout
        };
        self.accepts_work(attempt.tracker)
            && !attempt.preempt_request.is_some_and(|(_, preempt_requested_at)| late(preempt_requested_at))
    }

    /// Returns whether an attempt has resumed from a checkpoint and made no progress since. Pausing
    /// it again would be useless: two jobs could preempt each other forever.
    pub fn has_just_resumed(&self, attempt: &Attempt) -> bool {
        let paused = attempt.resumed_from.and_then(|paused| self.cluster.attempt(paused));
        let done = |attempt: &Attempt| self.cluster.progress(attempt).done;
        paused.is_some_and(|paused| done(attempt) <= done(paused))
    }

    /// Returns whether a job has a pending task without a reservation that may start now. Reduces
    /// wait until enough maps are done.
    pub fn has_pending(&self, job: &Job, phase: Phase) -> bool {
        self.startable_tasks(job, phase) > 0
    }

    /// Returns the number of pending tasks of a job that may start now and that this round has not
    /// assigned.
    fn unassigned_pending(&self, job: &Job, phase: Phase) -> usize {
        if !job.may_start(phase) {
            return 0;
        }
        let all = phase == Phase::Map || job.reduces_may_start();
        let pending = if all { job.pending[phase].len() } else { reduces_with_all_map_output(job) };
        pending.saturating_sub(self.granted_to(job, phase).pending as usize)
    }

    /// Returns the number of pending tasks of a job that may start now and have no reservation.
    pub fn startable_tasks(&self, job: &Job, phase: Phase) -> usize {
        let open = self.unassigned_pending(job, phase);
        if open == 0 {
            return 0;
        }
        let waits = |id: TaskId| job.pending[phase].contains(id.index) && !self.assigned_tasks.contains(&id);
        let mut taken = 0;
        if !self.reservations.is_empty() || !self.new_reservations.is_empty() {
            let before = self
                .reservations
                .tasks_of(job.id, phase)
                .filter(|id| !self.new_reservations.contains_key(id));
            let now =
                self.new_reservations.keys().copied().filter(|id| (id.job, id.phase) == (job.id, phase));
            taken += before.chain(now).filter(|id| waits(*id)).count();
        }
        if phase == Phase::Reduce {
            taken += self.waiting_for_checkpoint(job);
        }
        let delayed = self.cluster.delayed_tasks(job.id, phase).filter(|id| {
            let counted_above = |task: &Task| {
                self.reserved_place(*id).is_some() || self.unavailable_checkpoint(task).is_some()
            };
            let is_open = |task: &Task| job.may_start_task(task) && !counted_above(task);
            waits(*id) && job.task(*id).is_some_and(is_open)
        });
        taken += delayed.count();
        open.saturating_sub(taken)
    }

    /// Returns whether every pending map of a running job may start now, unless this round has
    /// assigned it: no task has a reservation, and none is delayed.
    pub fn all_pending_maps_may_start(&self) -> bool {
        self.reservations.is_empty() && self.new_reservations.is_empty() && !self.cluster.has_delayed_tasks()
    }

    /// Returns the number of pending reduces of a job whose checkpoint is on an unreachable
    /// tracker.
    fn waiting_for_checkpoint(&self, job: &Job) -> usize {
        let away = self.cluster.unreachable_trackers().iter().filter_map(|id| self.cluster.tracker(*id));
        let its = away.flat_map(|tracker| &tracker.checkpoints).filter(|attempt| attempt.job() == job.id);
        its.filter(|attempt| job.pending.reduce.contains(attempt.task.index)).count()
    }

    /// Returns the unreachable tracker that has the checkpoint of a task. The task waits for it.
    fn unavailable_checkpoint(&self, task: &Task) -> Option<TrackerId> {
        task.checkpoint
            .map(|checkpoint| checkpoint.tracker)
            .filter(|on| self.cluster.unreachable_trackers().contains(on))
    }

    /// Returns the tracker where a slot is reserved for a task, before or in this round.
    pub fn reserved_place(&self, task: TaskId) -> Option<TrackerId> {
        self.new_reservations.get(&task).copied().or_else(|| self.reservations.tracker_for(task))
    }

    /// Returns whether a job may use a tracker. If the job has blacklisted a larger fraction of the
    /// live trackers than allowed (because others were lost since), it uses all of them again.
    pub fn may_use(&self, job: &Job, tracker: TrackerId) -> bool {
        if !job.blacklist.contains(&tracker) {
            return true;
        }
        let live = self.cluster.trackers().filter(|tracker| tracker.accepts_work());
        let (mut all, mut avoided) = (0_usize, 0_usize);
        for tracker in live {
            all += 1;
            avoided += usize::from(job.blacklist.contains(&tracker.id));
        }
        avoided == all || avoided as f64 > all as f64 * self.config.blacklist_share
    }

    /// Returns whether a task should not run on a tracker, because it has failed there or still has
    /// an attempt there that does not end, while another tracker could run it.
    fn is_avoided(&self, job: &Job, task: &Task, on: TrackerId) -> bool {
        let avoids = |tracker: TrackerId| {
            task.avoided_trackers.contains(&tracker)
                || task.live_attempts().any(|attempt| attempt.tracker == tracker)
        };
        let could = |tracker: &Tracker| {
            tracker.accepts_work()
                && tracker.slots[task.id.phase] > 0
                && !avoids(tracker.id)
                && self.may_use(job, tracker.id)
        };
        avoids(on) && self.cluster.trackers().any(could)
    }

    /// Preempts an attempt. Its slot becomes free later, not in this round.
    pub fn preempt(&mut self, attempt: AttemptId, kind: PreemptKind, why: Why) -> Result<(), Refused> {
        let mut may = self.cluster.may_preempt(attempt, kind);
        if self.preempted_attempts.contains(&attempt) {
            may = Err(NotPreemptible::Already(attempt));
        }
        self.count_refusal(may.map_err(Refused::from))?;
        if !self.preempt_requested(attempt) && !self.is_on_suspect_tracker(attempt) {
            self.preempted_slots.entry(attempt.job()).or_default()[attempt.phase()] += 1;
        }
        self.preempted_attempts.insert(attempt);
        self.decisions.push(Decision::Preempt { attempt, kind, why });
        Ok(())
    }

    /// Preempts an attempt in the way that its phase and input allow, and returns the kind of
    /// preemption.
    pub fn preempt_in_mode(
        &mut self,
        attempt: AttemptId,
        preempt_mode: PreemptMode,
        why: Why,
    ) -> Result<PreemptKind, Refused> {
        if self.is_preempted(attempt) {
            return self.count_refusal(Err(NotPreemptible::Already(attempt).into()));
        }
        let kind = self.preempt_kind(attempt, preempt_mode);
        let kind = self.count_refusal(kind.ok_or(NotPreemptible::LosesWork(attempt).into()))?;
        self.preempt(attempt, kind, why).map(|()| kind)
    }

    /// Returns how an attempt would be preempted in a mode, and `None` if the mode forbids it.
    pub fn preempt_kind(&self, attempt: AttemptId, preempt_mode: PreemptMode) -> Option<PreemptKind> {
        let lossless = PreemptKind::lossless(attempt.phase());
        // An attempt that has refused before would refuse again.
        let is_willing = || self.cluster.attempt(attempt).is_some_and(|attempt| attempt.refusals == 0);
        let loses_no_work = || is_willing() && self.cluster.may_preempt(attempt, lossless).is_ok();
        match preempt_mode {
            PreemptMode::Lossless | PreemptMode::LosslessOnly if loses_no_work() => Some(lossless),
            PreemptMode::LosslessOnly => None,
            PreemptMode::Lossless | PreemptMode::Kill => Some(PreemptKind::Kill),
        }
    }

    /// Reserves the next free slot of a tracker for a task that is pending, or whose attempt is on
    /// a suspect tracker. Until the task is launched, queries do not return it, and other tasks
    /// cannot use the slot.
    pub fn reserve(
        &mut self,
        task: TaskId,
        (on, accepted_slots): (TrackerId, AcceptedSlots),
        why: Why,
    ) -> Result<(), Refused> {
        let could = self.could_run(task, on);
        self.count_refusal(could)?;
        if self.reserved_place(task).is_none()
            && let Some(job) = self.cluster.job(task.job)
        {
            let before = self.reserved_slots(job, task.phase);
            self.reserved_slots.borrow_mut().entry(job.id).or_default()[task.phase] = before + 1;
        }
        self.new_reservations.insert(task, on);
        self.decisions.push(Decision::Reserve { task, on, accepted_slots, why });
        Ok(())
    }

    /// Gives free slots of a tracker to the tasks that have reserved them. Remaining slots go to
    /// tasks with a reservation elsewhere for which this tracker is equally good. Called before the
    /// policy decides.
    pub(crate) fn fill_reservations(&mut self, tracker: TrackerId) {
        let elsewhere = self.reservations.tasks_elsewhere(tracker).take(OTHER_RESERVATIONS_TRIED_MAX);
        for (task, why) in self.reservations.tasks_on(tracker).chain(elsewhere) {
            // A reservation whose task cannot be launched lapses later.
            if self.check(task, tracker).is_ok() {
                let _ = self.assign(task, tracker, why.clone());
            }
        }
    }

    /// Returns the number of slots of a tracker that preempted attempts still hold, including those
    /// that this round preempts.
    pub fn slots_being_freed(&self, tracker: TrackerId, phase: Phase) -> u32 {
        let running = self.cluster.tracker(tracker).into_iter().flat_map(|tracker| &tracker.running[phase]);
        running.filter(|id| self.is_preempted(**id)).count() as u32
    }

    /// Launches an attempt of a pending task, or a speculative attempt.
    pub fn assign(&mut self, task: TaskId, on: TrackerId, why: Why) -> Result<(), Refused> {
        let checked = self.check(task, on);
        let speculative = self.count_refusal(checked)?;
        self.used_slots.entry(on).or_default()[task.phase] += 1;
        let granted = &mut self.granted_slots.entry(task.job).or_default()[task.phase];
        if speculative {
            granted.speculative += 1;
        } else {
            granted.pending += 1;
        }
        self.assigned_tasks.insert(task);
        self.decisions.push(Decision::Assign { task, on, speculative, why });
        Ok(())
    }
}

/// Returns the number of pending reduces of a job that need no more map output.
fn reduces_with_all_map_output(job: &Job) -> usize {
    let waiting = job.pending.reduce.iter().map(|index| &job.tasks.reduce[index as usize]);
    waiting.filter(|task| job.may_start_task(task)).count()
}
