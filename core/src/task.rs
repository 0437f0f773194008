//! Tasks and their attempts.
//!
//! An attempt holds its slot from the moment it is decided until its tracker says that the process is gone, or
//! the tracker is lost. It is *trying* until it is told to stop. A task waits exactly when it is not done, has no
//! attempt that tries, nobody holds it, and its job runs: one that will not die must not keep its task from running
//! elsewhere.
//!
//! A map that is split ends where it stands: its task's range becomes shorter, and a new task of the same root takes
//! the rest. A reduce that is paused leaves a checkpoint, which the task's next attempt takes up.

use crate::{
    ids::{AttemptId, HostId, TaskId, TrackerId},
    plan::Why,
    time::{Span, Time},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt};

/// A task.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its name.
    pub id: TaskId,
    /// The split, as submitted, that a map's range is a part of. Of no meaning for a reduce.
    pub root: u32,
    /// First byte of a map's range; 0 for a reduce.
    pub start: u64,
    /// One past its last byte.
    pub end: u64,
    /// Hosts that have a map's input.
    pub hosts: Vec<HostId>,
    /// Every try so far, by number.
    pub attempts: Vec<Attempt>,
    /// The attempt whose result counts.
    pub done_by: Option<u32>,
    /// Attempts that failed: these use up the budget.
    pub failures: u32,
    /// How often a map's output could not be fetched.
    pub unfetched: u32,
    /// The state of a reduce that was paused and has not been taken further since.
    pub checkpoint: Option<Checkpoint>,
    /// Of the work of attempts whose slots were preempted, what its result or its checkpoint is made of.
    pub saved_work: Work,
    /// Somebody wants it to wait until they say otherwise.
    pub on_hold: bool,
    /// Trackers where it failed, or where its output could not be fetched: others are tried first.
    pub avoided_trackers: BTreeSet<TrackerId>,
}

/// Where an attempt stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttemptState {
    /// Its tracker has been told, and has not said that it runs.
    Launching,
    /// It runs.
    Running,
    /// A map that has been told to end where it stands, and has not said where that was.
    Splitting,
    /// A reduce that has been told to save its checkpoint, and has not done so.
    Pausing,
    /// It has been told to stop, and its tracker has not said that it is gone.
    Stopping,
    /// Its result counts, or would have.
    Succeeded,
    /// It failed: its own fault.
    Failed,
    /// It was stopped or lost: no fault of the task, and no budget is used.
    Killed,
    /// Its state is checkpointed; another attempt will take it up.
    Paused,
}

/// How a slot is preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PreemptKind {
    /// Whatever it has done is thrown away.
    Kill,
    /// A map: what it has done counts, the rest of its range becomes a task of its own.
    Split,
    /// A reduce: its state is checkpointed and resumed later, here or elsewhere.
    Pause,
}

impl fmt::Display for PreemptKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PreemptKind::Kill => "kill",
            PreemptKind::Split => "split",
            PreemptKind::Pause => "pause",
        })
    }
}

impl AttemptState {
    /// Whether it holds a slot.
    pub fn holds_slot(self) -> bool {
        self.is_viable() || self == Self::Stopping
    }

    /// Whether it may still bring a result that is wanted.
    pub fn is_viable(self) -> bool {
        matches!(self, Self::Launching | Self::Running | Self::Splitting | Self::Pausing)
    }
}

/// What a reduce is doing. Its progress means different things in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// A map, mapping.
    #[default]
    Map,
    /// Fetching map output.
    Shuffle,
    /// Everything is fetched; merging.
    Merge,
    /// Reducing.
    Reduce,
}

/// Work, as it is counted where slots are preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Work {
    /// Input bytes read.
    pub bytes: u64,
    /// Time of attempts.
    pub time: Span,
}

impl std::ops::Add for Work {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self { bytes: self.bytes + more.bytes, time: self.time + more.time }
    }
}

/// What a tracker says of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckpointInfo {
    /// What the reduce was doing.
    pub stage: Stage,
    /// How large it is.
    pub bytes: u64,
    /// What was fetched for it, by all attempts that it goes back to.
    pub bytes_in: u64,
    /// Records that they have reduced.
    pub records: u64,
}

/// The state of a paused reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// Whose it is.
    pub attempt: AttemptId,
    /// Where it lies.
    pub tracker: TrackerId,
    /// What the reduce was doing.
    pub stage: Stage,
    /// How large it is.
    pub bytes: u64,
    /// What was done for it, by all attempts that it goes back to.
    pub work: Work,
    /// Records that they have reduced. Not durable: its tracker says it again when it registers.
    pub records: u64,
}

impl Checkpoint {
    /// Whether less is left to do from here than from another state of the same task.
    pub fn is_ahead_of(&self, other: &CheckpointInfo) -> bool {
        (self.stage, self.records, self.work.bytes) > (other.stage, other.records, other.bytes_in)
    }
}

/// Why an attempt that was preempted goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum PreemptRefusal {
    /// There is nowhere to put its state.
    #[error("no disk of its tracker has room for its state")]
    NoSpace,
    /// Its reducer carries something from key to key, and cannot save it.
    #[error("its reducer keeps state between keys that it cannot save: it can only be killed")]
    ReducerNotSavable,
    /// Its mapper must see its whole range.
    #[error("its mapper is not divisible: it can only be killed")]
    MapperNotDivisible,
}

/// How far an attempt is, as its tracker last said.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// From 0 to 1.
    pub done: f32,
    /// What it is doing.
    pub stage: Stage,
    /// Input bytes read so far.
    pub bytes_in: u64,
    /// Output bytes written so far.
    pub bytes_out: u64,
    /// Counts up while its work goes on, also where nothing else shows it: waiting for maps, sorting, merging.
    pub activity: u64,
    /// How often it was preempted and went on.
    pub refusals: u32,
    /// Why, the last time.
    pub refused: Option<PreemptRefusal>,
}

/// One try at a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// Its name.
    pub id: AttemptId,
    /// Where.
    pub tracker: TrackerId,
    /// The end of its range when it was decided: a split makes the task's shorter.
    pub end: u64,
    /// The paused attempt that it resumed from.
    pub from: Option<AttemptId>,
    /// Where that lay.
    pub checkpoint_on: Option<TrackerId>,
    /// What had been done for it.
    pub prior_work: Work,
    /// Where a map's output lies, once it is done: where it ran, or where it was taken from there.
    pub output_on: TrackerId,
    /// Where it stands.
    pub state: AttemptState,
    /// When it was decided.
    pub launched: Time,
    /// When its tracker last said that it had come further, or was at work.
    pub last_progress: Time,
    /// When it ended.
    pub ended: Option<Time>,
    /// When its tracker last said that it runs, or was asked to stop it. What trackers say is not durable.
    pub last_reported: Time,
    /// How and when it was told to release its slot, if it was.
    pub preempt_request: Option<(PreemptKind, Time)>,
    /// Whether whoever asked wants its task to wait.
    pub hold_requested: bool,
    /// If it still holds its slot then, it is killed.
    pub preempt_deadline: Option<Time>,
    /// How often it was preempted and refused.
    pub refusals: u32,
    /// What it has done, if it ended because its slot was wanted.
    pub work_done: Option<Work>,
    /// Why it was asked to stop, if that was its own fault: it counts as failed once it is gone.
    pub fault: Option<String>,
    /// Why it was placed where it was.
    pub why: Why,
    /// Why it failed or was stopped.
    pub error: Option<String>,
    /// How far it is.
    pub progress: Progress,
    /// It duplicates one that runs.
    pub speculative: bool,
    /// What it brought, once it has succeeded. For a map, gone again when its output is.
    pub result: Option<AttemptResult>,
}

/// What a successful attempt leaves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AttemptResult {
    /// By name.
    pub counters: Vec<(String, u64)>,
    /// Files that hold a reduce's (or a map-only map's) output, in order. Tasks never rename: these are moved into
    /// place when the whole job is.
    pub pieces: Vec<String>,
    /// Bytes of a map's output over all partitions, or of a reduce's pieces.
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
            checkpoint: None,
            saved_work: Work::default(),
            on_hold: false,
            avoided_trackers: BTreeSet::new(),
        }
    }

    /// Attempts that hold a slot.
    pub fn live(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(|attempt| attempt.state.holds_slot())
    }

    /// An attempt, the one that it resumed from, the one whose state that took up, and so on.
    pub fn chain(&self, number: u32) -> impl Iterator<Item = &Attempt> {
        let first = self.attempts.get(number as usize);
        std::iter::successors(first, |attempt| self.attempts.get(attempt.from?.number as usize))
    }

    /// Attempts that may still bring a result that is wanted.
    pub fn viable(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(|attempt| attempt.state.is_viable())
    }

    /// States on disks that some attempt may still read: the one to take up, and those that were taken up. With the
    /// trackers that have them.
    pub fn checkpoints(&self) -> impl Iterator<Item = (AttemptId, TrackerId)> + '_ {
        let checkpoint = self.checkpoint.map(|checkpoint| (checkpoint.attempt, checkpoint.tracker));
        checkpoint
            .into_iter()
            .chain(self.live().filter_map(|attempt| attempt.from.zip(attempt.checkpoint_on)))
    }

    /// Whether it waits for a slot, if its job runs.
    pub fn waits(&self) -> bool {
        !self.is_done() && !self.on_hold && self.viable().next().is_none()
    }

    /// Whether nothing of it runs, and nothing will before somebody who holds it says so.
    pub fn is_on_hold(&self) -> bool {
        !self.is_done() && self.on_hold && self.viable().next().is_none()
    }

    /// Whether its result is there.
    pub fn is_done(&self) -> bool {
        self.done_by.is_some()
    }

    /// The attempt whose result counts.
    pub fn winner(&self) -> Option<&Attempt> {
        self.done_by.and_then(|number| self.attempts.get(number as usize))
    }

    /// Bytes of its range.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }
}
