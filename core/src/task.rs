//! Tasks and their attempts.
//!
//! An attempt holds its slot from its launch until its tracker reports that the process has ended,
//! or until the tracker is lost. It is *viable* until it is to be killed. A task is pending if
//! its job is running, it is not done and not on hold, it has no viable attempt, and it may fail
//! again. An attempt that does not end therefore does not prevent its task from running elsewhere.
//!
//! A map that is split ends at its current position: the range of its task becomes shorter, and a
//! new task with the same root gets the remainder. A reduce that is paused leaves a checkpoint,
//! from which the next attempt of the task resumes.

use crate::{
    ids::{AttemptId, HostId, TaskId, TrackerId},
    time::{Span, Time},
    why::Why,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

pub use types::{PreemptKind, PreemptRefusal, Stage};

/// After this many interruptions of a task, its job fails.
pub(crate) const INTERRUPTIONS_MAX: u32 = 1000;
/// A task that was interrupted at most this often is launched again at once.
const RETRIES_AT_ONCE: u32 = 4;
/// The longest delay before an interrupted task is launched again.
const RETRY_DELAY_MAX: Span = Span::secs(60);

/// A map or a reduce of a job, according to the facts.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub id: TaskId,
    /// The split, as submitted, that the range of a map is a part of. Unused for a reduce.
    pub root: u32,
    /// First byte of the range of a map; 0 for a reduce.
    pub start: u64,
    /// One past the last byte of the range.
    pub end: u64,
    /// Hosts that have the input of a map.
    pub hosts: Vec<HostId>,
    /// All attempts so far, by number.
    pub attempts: Vec<Attempt>,
    /// The number of the attempt whose result counts, if the task is done.
    pub done_by: Option<u32>,
    /// Number of failed attempts. They count towards the maximum of the job.
    pub failures: u32,
    /// How often the output of a map was given up because it could not be fetched.
    pub unfetched: u32,
    /// Number of interruptions: attempts that nothing had ordered to end, and whose tracker reported
    /// that they were killed or paused all the same. For example, the file system was unavailable.
    /// They do not count as failures. Attempts that were lost with their tracker are not
    /// interruptions.
    pub interruptions: u32,
    /// The newest checkpoint of a paused reduce.
    pub checkpoint: Option<Checkpoint>,
    /// The work of preempted attempts that is part of its result or its checkpoint.
    pub saved_work: Work,
    /// The task waits until a user resumes it.
    pub on_hold: bool,
    /// Trackers where it failed, where its output could not be fetched, or where it was interrupted
    /// after earlier interruptions. Other trackers are tried first.
    pub avoided_trackers: BTreeSet<TrackerId>,
}

/// The state of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttemptState {
    /// It was launched. Its tracker may not have reported it yet
    /// ([`crate::Cluster::has_started`]).
    Running,
    /// A map that was ordered to split and has not reported where it ended.
    Splitting,
    /// A reduce that was ordered to pause and has not reported its checkpoint.
    Pausing,
    /// Its tracker was ordered to kill it and has not reported its end. Users see `stopping`.
    Killing,
    /// It succeeded, and its result counts or did count.
    Succeeded,
    /// It failed. This counts as a failure of the task.
    Failed,
    /// It was killed or lost. This does not count as a failure of the task.
    Killed,
    /// It saved a checkpoint, from which another attempt will resume.
    Paused,
}

impl AttemptState {
    /// Returns whether it holds a slot.
    pub fn holds_slot(self) -> bool {
        self.is_viable() || self == Self::Killing
    }

    /// Returns whether its result may still count.
    pub fn is_viable(self) -> bool {
        matches!(self, Self::Running | Self::Splitting | Self::Pausing)
    }
}

/// Work of preempted attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Work {
    /// Input bytes read.
    pub bytes: u64,
    /// Duration of the attempts.
    pub time: Span,
}

impl std::ops::Add for Work {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self { bytes: self.bytes + more.bytes, time: self.time + more.time }
    }
}

/// What a tracker reports about a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckpointInfo {
    /// The stage of the reduce.
    pub stage: Stage,
    /// The size of the checkpoint.
    pub bytes: u64,
    /// Bytes fetched by this attempt and all attempts that it resumed from.
    pub bytes_in: u64,
    /// Records reduced by these attempts.
    pub records: u64,
}

/// The checkpoint of a paused reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// The attempt that saved it.
    pub attempt: AttemptId,
    /// The tracker that has it.
    pub tracker: TrackerId,
    /// The stage of the reduce.
    pub stage: Stage,
    /// The size of the checkpoint.
    pub bytes: u64,
    /// Work of this attempt and all attempts that it resumed from.
    pub work: Work,
}

/// The progress of an attempt, as last reported by its tracker.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Between 0 and 1.
    pub done: f32,
    /// The current stage.
    pub stage: Stage,
    /// Input bytes read so far.
    pub bytes_in: u64,
    /// Output bytes written so far.
    pub bytes_out: u64,
    /// Increases while the attempt works, even if nothing else changes: while it waits for maps,
    /// sorts or merges.
    pub activity: u64,
    /// How often it was preempted and refused.
    pub refusals: u32,
    /// The reason of the last refusal.
    pub refused: Option<PreemptRefusal>,
}

/// One execution of a task, according to the facts.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    pub id: AttemptId,
    /// The tracker that runs it.
    pub tracker: TrackerId,
    /// The end of its range at launch. A split makes the range of the task shorter.
    pub end: u64,
    /// The paused attempt whose checkpoint it resumed from.
    pub resumed_from: Option<AttemptId>,
    /// The tracker that had this checkpoint at the launch.
    pub checkpoint_on: Option<TrackerId>,
    /// The work in this checkpoint.
    pub prior_work: Work,
    /// The tracker that has the output of a map that is done: the one that ran it, or one that
    /// copied it.
    pub output_on: TrackerId,
    pub state: AttemptState,
    /// When it was launched.
    pub launched: Time,
    /// When its tracker was last sent an order about it: to launch or preempt it.
    pub last_order: Time,
    /// When it ended.
    pub ended: Option<Time>,
    /// How and when it was preempted, if it was.
    pub preempt_request: Option<(PreemptKind, Time)>,
    /// Whether a user requested the pause, so that the task is on hold.
    pub hold_requested: bool,
    /// When it is killed if it still holds its slot after a preemption.
    pub preempt_deadline: Option<Time>,
    /// How often it was preempted and refused.
    pub refusals: u32,
    /// Its own work, if it ended because it was preempted.
    pub work_done: Option<Work>,
    /// The error for which it is to be killed. It counts as failed when it has ended.
    pub fault: Option<String>,
    /// Why the policy launched it there.
    pub why: Why,
    /// Why it failed or was killed.
    pub error: Option<String>,
    /// The stage in which it was launched or paused.
    pub stage: Stage,
    /// Whether it was launched while another attempt of its task ran.
    pub speculative: bool,
    /// Its result, if it succeeded. Removed when the output of a map is lost.
    pub result: Option<AttemptResult>,
}

/// The result of a successful attempt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AttemptResult {
    /// Counters by name.
    pub counters: Vec<(String, u64)>,
    /// The output files of a reduce, or of a map of a map-only job, in order. Attempts do not
    /// rename them: the commit of the job moves them.
    pub pieces: Vec<String>,
    /// Bytes of the output of a map over all partitions, or of the pieces of a reduce.
    pub bytes_out: u64,
}

impl Task {
    pub(crate) fn new(id: TaskId, root: u32, start: u64, end: u64, hosts: Vec<HostId>) -> Self {
        Self {
            id,
            root,
            start,
            end,
            hosts,
            attempts: Vec::new(),
            done_by: None,
            failures: 0,
            unfetched: 0,
            interruptions: 0,
            checkpoint: None,
            saved_work: Work::default(),
            on_hold: false,
            avoided_trackers: BTreeSet::new(),
        }
    }

    /// Returns how long the task waits after its last interruption before it is launched again: not
    /// at all at first, then 1 second, doubled with each interruption, up to a minute.
    pub(crate) fn retry_delay(&self) -> Span {
        if !self.is_interrupted_often() {
            return Span(0);
        }
        let doublings = self.interruptions - RETRIES_AT_ONCE - 1;
        Span::secs(1 << doublings.min(16)).min(RETRY_DELAY_MAX)
    }

    /// Returns whether an interruption is a reason to delay the task and to avoid a tracker. A few
    /// interruptions are not, so that a restart of a tracker or of the JobTracker does not cost
    /// locality.
    pub(crate) fn is_interrupted_often(&self) -> bool {
        self.interruptions > RETRIES_AT_ONCE
    }

    /// Returns the attempts that hold a slot.
    pub fn live_attempts(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(|attempt| attempt.state.holds_slot())
    }

    /// Returns the attempt with this number, the attempt that it resumed from, and so on.
    pub fn resume_chain(&self, number: u32) -> impl Iterator<Item = &Attempt> {
        let first = self.attempts.get(number as usize);
        std::iter::successors(first, |attempt| self.attempts.get(attempt.resumed_from?.number as usize))
    }

    /// Returns the attempts whose result may still count.
    pub fn viable_attempts(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(|attempt| attempt.state.is_viable())
    }

    /// Returns the checkpoints that an attempt may still read, with their trackers: the newest one,
    /// and those that live attempts resumed from.
    pub fn checkpoints(&self) -> impl Iterator<Item = (AttemptId, TrackerId)> + '_ {
        let checkpoint = self.checkpoint.map(|checkpoint| (checkpoint.attempt, checkpoint.tracker));
        checkpoint
            .into_iter()
            .chain(self.live_attempts().filter_map(|attempt| attempt.resumed_from.zip(attempt.checkpoint_on)))
    }

    /// Returns whether the task is pending, provided that its job is running. A live attempt with a
    /// fault will count as failed when it has ended. If that is the last failure that the job
    /// allows, the task is not launched again.
    pub fn is_pending(&self, attempts_max: u32) -> bool {
        let faults = self.live_attempts().filter(|attempt| attempt.fault.is_some()).count();
        let may_retry = self.failures as usize + faults < attempts_max as usize;
        !self.is_done() && !self.on_hold && self.viable_attempts().next().is_none() && may_retry
    }

    /// Returns whether the task is on hold and no attempt is viable.
    pub fn is_on_hold(&self) -> bool {
        !self.is_done() && self.on_hold && self.viable_attempts().next().is_none()
    }

    /// Returns whether an attempt has succeeded and its result still exists.
    pub fn is_done(&self) -> bool {
        self.done_by.is_some()
    }

    /// Returns the attempt whose result counts.
    pub fn winning_attempt(&self) -> Option<&Attempt> {
        self.done_by.and_then(|number| self.attempts.get(number as usize))
    }

    /// Returns the size of its range in bytes.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }
}
