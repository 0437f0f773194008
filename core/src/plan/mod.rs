//! One round's decisions, checked as they are made.
//!
//! A plan is the policy's view and its list of decisions in one. It lays what this round has decided over the
//! cluster (slots taken, tasks no longer waiting) and refuses what is illegal at the door, so that carrying it out
//! cannot fail. Questions cost at most a few look-ups: policies ask many.

mod check;
mod choose;

pub use crate::why::Why;
use crate::{
    cluster::{Cluster, NotPreemptible},
    config::Config,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::Job,
    phase::{PerPhase, Phase},
    reserve::Reservations,
    task::{Attempt, AttemptState, PreemptKind, Task},
    time::Time,
    tracker::{Tracker, TrackerState},
};
use serde::{Deserialize, Serialize};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Reserved tasks that are tried on a slot that came free elsewhere: with each offer, so not thousands.
const RESERVATIONS_TRIED_MAX: usize = 64;

/// How near a map's input is to a tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Locality {
    /// On the same host.
    NodeLocal,
    /// In the same rack.
    RackLocal,
    /// Elsewhere, or nowhere in particular.
    OffRack,
}

impl fmt::Display for Locality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Locality::NodeLocal => "node-local",
            Locality::RackLocal => "rack-local",
            Locality::OffRack => "off-rack",
        })
    }
}

/// Where a waiting reduce's state is, seen from a tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckpointPlace {
    /// It was paused here and can continue.
    Local,
    /// Nowhere: it begins.
    None,
    /// On another tracker: to run here, it migrates.
    Remote,
}

/// How a policy preempts slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PreemptMode {
    /// Maps are split and reduces paused, so that nothing is lost; what can be neither is killed.
    #[default]
    Lossless,
    /// Whatever it has done is thrown away.
    Kill,
}

/// Why a plan would not take a decision. Nothing has changed; the policy may continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Refused {
    #[error("task {0} neither waits nor may be duplicated")]
    NotPending(TaskId),
    #[error("{job} has too few maps done to start reduces")]
    SlowStart { job: JobId },
    #[error("tracker {tracker} has no free {phase} slot")]
    NoSlot { tracker: TrackerId, phase: Phase },
    #[error("{job} does not use tracker {tracker} any more")]
    Blacklisted { job: JobId, tracker: TrackerId },
    #[error("task {task} failed on tracker {tracker}, and other trackers can run it")]
    Avoided { task: TaskId, tracker: TrackerId },
    #[error("tracker {0} runs an attempt of this task already")]
    SameTracker(TrackerId),
    #[error("tracker {0} is being drained")]
    Draining(TrackerId),
    #[error("the checkpoint of task {task} is on tracker {on}, which is suspect")]
    CheckpointUnavailable { task: TaskId, on: TrackerId },
    #[error("a slot of tracker {on} is reserved for task {task}")]
    Reserved { task: TaskId, on: TrackerId },
    #[error(transparent)]
    NotPreemptible(#[from] NotPreemptible),
}

/// A decision.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Run a task on a tracker.
    Assign {
        /// Which.
        task: TaskId,
        /// Where.
        on: TrackerId,
        /// It duplicates one that runs.
        speculative: bool,
        /// Why.
        why: Why,
    },
    /// Take an attempt's slot back.
    Preempt {
        /// Whose.
        attempt: AttemptId,
        /// How.
        kind: PreemptKind,
        /// Why.
        why: Why,
    },
    /// The next free slot of a tracker is this task's.
    Reserve {
        /// Which.
        task: TaskId,
        /// Where.
        on: TrackerId,
        /// Why.
        why: Why,
    },
}

/// One round's view and decisions.
#[derive(Debug)]
pub struct Plan<'a> {
    cluster: &'a Cluster,
    config: &'a Config,
    reserved: &'a Reservations,
    now: Time,
    decisions: Vec<Decision>,
    used_slots: BTreeMap<TrackerId, PerPhase<u32>>,
    /// Slots that this round gave to each job, for tasks that waited and for duplicates.
    granted: BTreeMap<JobId, PerPhase<Granted>>,
    assigned_tasks: BTreeSet<TaskId>,
    preempted: BTreeSet<AttemptId>,
    /// Of each job that was asked about: slots that it held before this round and did not count on; and those that
    /// this round takes back. Policies ask again and again.
    leaving: RefCell<BTreeMap<JobId, PerPhase<u32>>>,
    preempted_slots: BTreeMap<JobId, PerPhase<u32>>,
    new_reservations: BTreeMap<TaskId, TrackerId>,
    /// Of each job that was asked about: its tasks that have a slot reserved, and below which number all that wait are
    /// spoken for. A round that takes thousands of slots back walks past each of them once.
    reserved_slots: RefCell<BTreeMap<JobId, PerPhase<u32>>>,
    reserved_below: RefCell<BTreeMap<(JobId, Phase), u32>>,
    refusals: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Granted {
    waiting: u32,
    duplicates: u32,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(
        cluster: &'a Cluster,
        config: &'a Config,
        reserved: &'a Reservations,
        now: Time,
    ) -> Self {
        Self {
            cluster,
            config,
            reserved,
            now,
            decisions: Vec::new(),
            used_slots: BTreeMap::new(),
            granted: BTreeMap::new(),
            assigned_tasks: BTreeSet::new(),
            preempted: BTreeSet::new(),
            leaving: RefCell::default(),
            preempted_slots: BTreeMap::new(),
            new_reservations: BTreeMap::new(),
            reserved_slots: RefCell::default(),
            reserved_below: RefCell::default(),
            refusals: 0,
        }
    }

    /// The decisions, and how many were refused.
    pub(crate) fn finish(self) -> (Vec<Decision>, u64) {
        (self.decisions, self.refusals)
    }

    fn count<T>(&mut self, result: Result<T, Refused>) -> Result<T, Refused> {
        self.refusals += u64::from(result.is_err());
        result
    }

    /// When.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The cluster as it was before this round.
    pub fn cluster(&self) -> &'a Cluster {
        self.cluster
    }

    /// Decisions so far.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Slots that are free after what this round has decided.
    pub fn free(&self, tracker: TrackerId, phase: Phase) -> u32 {
        let used_slots = self.used_slots.get(&tracker).map_or(0, |used_slots| used_slots[phase]);
        self.cluster.tracker(tracker).map_or(0, |tracker| tracker.free(phase)).saturating_sub(used_slots)
    }

    /// Slots that a job holds, with what this round gave it.
    pub fn held_slots(&self, job: &Job, phase: Phase) -> u32 {
        let granted = self.granted_to(job, phase);
        job.running[phase].len() as u32 + granted.waiting + granted.duplicates
    }

    fn granted_to(&self, job: &Job, phase: Phase) -> Granted {
        self.granted.get(&job.id).map_or(Granted::default(), |granted| granted[phase])
    }

    /// Slots that a job holds and has not been told to give back, and those reserved for it, this round included. What it
    /// holds on a tracker that is suspect it does not count on.
    pub fn retained_slots(&self, job: &Job, phase: Phase) -> u32 {
        let used_slots = self.preempted_slots.get(&job.id).map_or(0, |used_slots| used_slots[phase]);
        let before =
            self.leaving.borrow_mut().entry(job.id).or_insert_with(|| self.leaving_slots(job))[phase];
        self.held_slots(job, phase) + self.reserved_slots(job, phase) - before - used_slots
    }

    fn leaving_slots(&self, job: &Job) -> PerPhase<u32> {
        let goes = |phase: Phase| {
            job.running[phase]
                .iter()
                .filter(|id| self.preempt_requested(**id) || self.is_uncertain(**id))
                .count() as u32
        };
        PerPhase { map: goes(Phase::Map), reduce: goes(Phase::Reduce) }
    }

    fn preempt_requested(&self, id: AttemptId) -> bool {
        let preempt_requested_at =
            |attempt: &Attempt| attempt.preempt_request.is_some() || attempt.state == AttemptState::Stopping;
        self.cluster.attempt(id).is_some_and(preempt_requested_at)
    }

    fn is_uncertain(&self, id: AttemptId) -> bool {
        let on = self.cluster.attempt(id).and_then(|attempt| self.cluster.tracker(attempt.tracker));
        on.is_some_and(|tracker| tracker.state == TrackerState::Suspect)
    }

    /// Slots that are reserved for a job's tasks, this round included.
    pub fn reserved_slots(&self, job: &Job, phase: Phase) -> u32 {
        let count = |phase| self.reserved.of(job.id, phase).count() as u32;
        let before = || PerPhase { map: count(Phase::Map), reduce: count(Phase::Reduce) };
        self.reserved_slots.borrow_mut().entry(job.id).or_insert_with(before)[phase]
    }

    /// Whether an attempt has been told to release its slot, this round included.
    pub fn is_preempted(&self, id: AttemptId) -> bool {
        self.preempted.contains(&id) || self.preempt_requested(id)
    }

    /// Whether the slot of an attempt that has been told to give it back can be counted on: its tracker takes work, and it
    /// has not been long about it. Who asked by hand waits for as long as it takes; a process may not die.
    pub fn is_slot_expected(&self, id: AttemptId) -> bool {
        let Some(attempt) = self.cluster.attempt(id).filter(|_| self.is_preempted(id)) else { return false };
        let late = |preempt_requested_at: Time| {
            self.now.since(preempt_requested_at) >= self.config.preemption_timeout
        };
        self.is_live(attempt.tracker)
            && !attempt.preempt_request.is_some_and(|(_, preempt_requested_at)| late(preempt_requested_at))
    }

    /// Whether an attempt has taken up a state and has come no further yet. To put it aside again would be to no purpose: two
    /// jobs that take each other's slots would do nothing else.
    pub fn has_just_resumed(&self, attempt: &Attempt) -> bool {
        let from = attempt.from.and_then(|from| self.cluster.attempt(from));
        from.is_some_and(|from| attempt.progress.done <= from.progress.done)
    }

    /// Whether a job has a task that waits and may start now. Reduces wait for enough maps to be done.
    pub fn has_pending(&self, job: &Job, phase: Phase) -> bool {
        self.waiting(job, phase) > 0
    }

    /// Tasks of a job that wait and may start now, and this round has not given away.
    fn open(&self, job: &Job, phase: Phase) -> usize {
        if !job.may_start(phase) {
            return 0;
        }
        let all = phase == Phase::Map || job.reduces_may_start();
        let pending = if all { job.pending[phase].len() } else { with_all_map_output(job) };
        pending.saturating_sub(self.granted_to(job, phase).waiting as usize)
    }

    /// Tasks of a job that wait, may start now, and have no slot reserved.
    pub fn waiting(&self, job: &Job, phase: Phase) -> usize {
        let open = self.open(job, phase);
        if open == 0 {
            return 0;
        }
        let waits = |id: TaskId| job.pending[phase].contains(id.index) && !self.assigned_tasks.contains(&id);
        let mut spoken_for = 0;
        if !self.reserved.is_empty() || !self.new_reservations.is_empty() {
            let before = self.reserved.of(job.id, phase).filter(|id| !self.new_reservations.contains_key(id));
            let now =
                self.new_reservations.keys().copied().filter(|id| (id.job, id.phase) == (job.id, phase));
            spoken_for += before.chain(now).filter(|id| waits(*id)).count();
        }
        if phase == Phase::Reduce {
            spoken_for += self.waiting_for_checkpoint(job);
        }
        open.saturating_sub(spoken_for)
    }

    /// Reduces of a job that wait for a tracker to come back with their state.
    fn waiting_for_checkpoint(&self, job: &Job) -> usize {
        let away = self.cluster.unreachable_trackers.iter().filter_map(|id| self.cluster.tracker(*id));
        let its = away.flat_map(|tracker| &tracker.checkpoints).filter(|attempt| attempt.job() == job.id);
        its.filter(|attempt| job.pending.reduce.contains(attempt.task.index)).count()
    }

    /// The tracker that has the state a task continues from, if that is expected back: the task waits for it.
    fn unavailable_checkpoint(&self, task: &Task) -> Option<TrackerId> {
        task.checkpoint
            .map(|checkpoint| checkpoint.tracker)
            .filter(|on| self.cluster.unreachable_trackers.contains(on))
    }

    /// Where a task has a slot reserved, this round included.
    pub fn reserved_place(&self, task: TaskId) -> Option<TrackerId> {
        self.new_reservations.get(&task).copied().or_else(|| self.reserved.place(task))
    }

    /// Whether a job would use a tracker at all. A job that has turned away more of the live trackers than it may
    /// (for others have gone since) uses them all again, rather than wait forever.
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

    /// Whether a task has failed on a tracker, or has an attempt there that will not end, while some
    /// other tracker could take it.
    fn is_avoided(&self, job: &Job, task: &Task, on: TrackerId) -> bool {
        let avoided_trackers = |tracker: TrackerId| {
            task.avoided_trackers.contains(&tracker) || task.live().any(|attempt| attempt.tracker == tracker)
        };
        let could = |tracker: &Tracker| {
            tracker.accepts_work()
                && tracker.slots[task.id.phase] > 0
                && !avoided_trackers(tracker.id)
                && self.may_use(job, tracker.id)
        };
        avoided_trackers(on) && self.cluster.trackers().any(could)
    }

    /// Preempts an attempt. It is free when the attempt has ended in the way it was told: not in this round.
    pub fn preempt(&mut self, attempt: AttemptId, kind: PreemptKind, why: Why) -> Result<(), Refused> {
        let mut may = self.cluster.may_preempt(attempt, kind);
        if self.preempted.contains(&attempt) {
            may = Err(NotPreemptible::Already(attempt));
        }
        self.count(may.map_err(Refused::from))?;
        if !self.preempt_requested(attempt) && !self.is_uncertain(attempt) {
            self.preempted_slots.entry(attempt.job()).or_default()[attempt.phase()] += 1;
        }
        self.preempted.insert(attempt);
        self.decisions.push(Decision::Preempt { attempt, kind, why });
        Ok(())
    }

    /// Preempts an attempt in the way that its phase and input allow; says which that was.
    pub fn preempt_in_mode(
        &mut self,
        attempt: AttemptId,
        preempt_mode: PreemptMode,
        why: Why,
    ) -> Result<PreemptKind, Refused> {
        if self.is_preempted(attempt) {
            return self.count(Err(NotPreemptible::Already(attempt).into()));
        }
        let lossless = match attempt.phase() {
            Phase::Map => PreemptKind::Split,
            Phase::Reduce => PreemptKind::Pause,
        };
        // One that has refused would again.
        let willing = self.cluster.attempt(attempt).is_some_and(|attempt| attempt.refusals == 0);
        let conserves = preempt_mode == PreemptMode::Lossless
            && willing
            && self.cluster.may_preempt(attempt, lossless).is_ok();
        let kind = if conserves { lossless } else { PreemptKind::Kill };
        self.preempt(attempt, kind, why).map(|()| kind)
    }

    /// Keeps the next free slot of a tracker for a task that waits, or that runs on a tracker that is suspect. Until it
    /// is launched policies are offered it nowhere, and other tasks wait behind it there.
    pub fn reserve(&mut self, task: TaskId, on: TrackerId, why: Why) -> Result<(), Refused> {
        let could = self.could_run(task, on);
        self.count(could)?;
        if self.reserved_place(task).is_none()
            && let Some(job) = self.cluster.job(task.job)
        {
            let before = self.reserved_slots(job, task.phase);
            self.reserved_slots.borrow_mut().entry(job.id).or_default()[task.phase] = before + 1;
        }
        self.new_reservations.insert(task, on);
        self.decisions.push(Decision::Reserve { task, on, why });
        Ok(())
    }

    /// Gives a tracker's free slots to the tasks that they are reserved for; and what is left to those that wait for a slot
    /// elsewhere, if they are as well off here: it may be long in coming. Done before the policy is asked.
    pub(crate) fn fill_reservations(&mut self, tracker: TrackerId) {
        let elsewhere = self.reserved.elsewhere(tracker).take(RESERVATIONS_TRIED_MAX);
        for (task, why) in self.reserved.on(tracker).chain(elsewhere) {
            // What can no longer be launched there lapses with time.
            if self.check(task, tracker).is_ok() {
                let _ = self.assign(task, tracker, why.clone());
            }
        }
    }

    /// Slots of a tracker that attempts have been told to give back, this round included, and still hold.
    pub fn slots_being_freed(&self, tracker: TrackerId, phase: Phase) -> u32 {
        let running = self.cluster.tracker(tracker).into_iter().flat_map(|tracker| &tracker.running[phase]);
        running.filter(|id| self.is_preempted(**id)).count() as u32
    }

    /// Runs a task that waits, or duplicates a straggler.
    pub fn assign(&mut self, task: TaskId, on: TrackerId, why: Why) -> Result<(), Refused> {
        let checked = self.check(task, on);
        let speculative = self.count(checked)?;
        self.used_slots.entry(on).or_default()[task.phase] += 1;
        let granted = &mut self.granted.entry(task.job).or_default()[task.phase];
        if speculative {
            granted.duplicates += 1;
        } else {
            granted.waiting += 1;
        }
        self.assigned_tasks.insert(task);
        self.decisions.push(Decision::Assign { task, on, speculative, why });
        Ok(())
    }
}

/// Reduces of a job that wait and need no more maps.
fn with_all_map_output(job: &Job) -> usize {
    let waiting = job.pending.reduce.iter().map(|index| &job.tasks.reduce[index as usize]);
    waiting.filter(|task| job.may_start_task(task)).count()
}
