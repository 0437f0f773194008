//! What the agent hears and says.

use crate::ids::{Attempt, Job};
use proto::mr::{CheckpointInfo, MapEvent, PreemptKind, Progress, TaskResult, TaskSpec};
use std::time::Duration;

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// There is a line to the JobTracker.
    Connected,
    /// It took the registration.
    Registered {
        /// How often it wants to hear of us.
        heartbeat: Duration,
        /// It gives us up when it has not heard of us for so long.
        lost_after: Duration,
        /// The number of this process among those that have had its name.
        incarnation: u64,
    },
    /// It does not know us any more.
    RegisterAgain,
    /// It has spoken its last word to us.
    Refused(String),
    /// Orders, as the answer to a heartbeat unless `answers` is 0.
    Orders {
        /// Which heartbeat.
        answers: u64,
        /// What to do, numbered.
        orders: Vec<(u64, Order)>,
    },
    /// The line broke.
    Disconnected,
    /// A process has been given its attempt.
    Started(Attempt),
    /// It came further.
    Progressed(Attempt, Progress),
    /// A reduce could not fetch a map's output.
    FetchFailed(FetchFailure),
    /// Its process is gone, and so is its folder.
    Ended(Attempt, AttemptEnd),
    /// What an attempt left on another tracker is here too; or it is not, and why.
    Copied(Attempt, Result<Copied, String>),
    /// The files of a job have been deleted, or not all of them could be.
    Cleaned(Job, bool),
    /// Time has passed.
    Tick,
}

/// A copy of what an attempt left on another tracker.
#[derive(Debug, Clone, PartialEq)]
pub enum Copied {
    /// A map's output, so many bytes.
    Output(u64),
    /// What a paused reduce checkpointed.
    Checkpoint(CheckpointInfo),
}

impl Copied {
    /// How long it is.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Output(bytes) => *bytes,
            Self::Checkpoint(state) => state.bytes,
        }
    }
}

/// What the JobTracker wants done.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// Run this, from the state that another attempt checkpointed if that is given.
    Launch(Attempt, Box<TaskSpec>, Option<CheckpointSource>),
    /// Have this release its slot in that way, and say when it has.
    Preempt(Attempt, PreemptKind, String),
    /// Entries of a job's map events, for its reduces.
    MapEvents(Job, MapEventBatch),
    /// Delete what this attempt checkpointed: nobody will take it up any more.
    DropCheckpoint(Attempt),
    /// Copy what this attempt left on another tracker.
    CopyFiles(Attempt, CopySource),
    /// Delete whatever is left of a job.
    Clean(Job),
    /// Not understood; taken, so that it is not sent forever.
    Unknown,
}

/// Part of a job's list of map events.
#[derive(Debug, Clone, PartialEq)]
pub struct MapEventBatch {
    /// The number of the first.
    pub first: u64,
    /// The entries.
    pub events: Vec<MapEvent>,
    /// How many maps the job has once these are counted; 0 if that is not said.
    pub maps: u32,
}

/// How an attempt came to its end.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptEnd {
    /// All its work is done.
    Succeeded {
        /// What it has to show.
        result: TaskResult,
        /// Whether this tracker now has map output of it.
        output: bool,
    },
    /// Its state is checkpointed on this tracker's disks.
    Paused(CheckpointInfo),
    /// The checkpoint that it was to resume from is gone or damaged.
    CheckpointCorrupt(String),
    /// Who has the checkpoint that it was to resume from does not answer.
    CheckpointUnreachable(String),
    /// It failed in a way in which every attempt would.
    Fatal(String),
    /// It did not work out, and why.
    Failed(String),
    /// It was stopped.
    Killed(String),
}

/// Where the state lies that an attempt takes up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointSource {
    /// Whose it is.
    pub attempt: Attempt,
    /// The shuffle address of the tracker that has it.
    pub addr: String,
}

/// Where something lies that is to be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopySource {
    /// The shuffle address of the tracker that has it.
    pub addr: String,
    /// What opens it, there and here.
    pub token: Vec<u8>,
    /// Of its job.
    pub partitions: u32,
}

/// Something to be done, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Run an attempt.
    Start(Attempt, Box<TaskSpec>, Option<CheckpointSource>),
    /// End it at once.
    Kill(Attempt, String),
    /// Ask it to end by itself: a map where it stands, a reduce with its state checkpointed.
    Preempt(Attempt, PreemptKind, String),
    /// Tell a reduce about maps.
    MapEvents(Attempt, MapEventBatch),
    /// Delete the checkpoint of an attempt.
    DropCheckpoint(Attempt),
    /// Copy what an attempt left on another tracker, and say when it is here.
    CopyFiles(Attempt, CopySource),
    /// Delete a job's files, and say when they are gone; nothing of it runs any more.
    Clean(Job),
    /// Say who we are and what we have.
    Register {
        /// What the JobTracker gave this process before; 0 if nothing.
        incarnation: u64,
        /// Running, or ended and not yet told.
        attempts: Vec<Report>,
        /// Maps whose output is here.
        outputs: Vec<Attempt>,
        /// Attempts whose state is checkpointed here.
        checkpoints: Vec<(Attempt, CheckpointInfo)>,
        /// Every job that something is kept of, on disk or in memory.
        jobs: Vec<Job>,
    },
    /// A heartbeat.
    Heartbeat(Heartbeat),
    /// The end, with the reason; everything that runs has been killed before.
    Exit(String),
}

/// A heartbeat. Every attempt that runs is in every one.
#[derive(Debug, Clone, PartialEq)]
pub struct Heartbeat {
    /// Counts up from 1 within a registration.
    pub seq: u64,
    /// The newest order taken.
    pub acked: u64,
    /// What attempts do and did.
    pub attempts: Vec<Report>,
    /// Map output that reduces here could not fetch.
    pub fetch_failures: Vec<FetchFailure>,
}

/// A reduce could not fetch a map's output.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FetchFailure {
    /// Who wanted it.
    pub reduce: Attempt,
    /// Whose output.
    pub map: Attempt,
    /// The shuffle address that it was told.
    pub addr: String,
}

/// What is said of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Which.
    pub attempt: Attempt,
    /// What.
    pub status: Status,
}

/// The states that the JobTracker is told. All but `Running` mean that the process is gone and the slot is free.
#[derive(Debug, Clone, PartialEq)]
pub enum Status {
    /// It is this far.
    Running(Progress),
    /// It is over.
    Ended(AttemptEnd),
    /// It never ran here: what it left elsewhere is here too, so many bytes, or is not, and why.
    Copied(Result<u64, String>),
}

/// How many attempts run at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// Maps.
    pub map: u32,
    /// Reduces.
    pub reduce: u32,
}
