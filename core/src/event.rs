//! What reaches the JobTracker's state machine, and what it wants done.

use crate::{
    compute::{Numbers, Problem},
    fact::Entry,
    ids::{AttemptId, Incarnation, JobId, RequestId, TaskId, TrackerId},
    job::{JobSpec, MapEvent},
    phase::PerPhase,
    task::{AttemptResult, CheckpointInfo, PreemptKind, Progress},
    time::Span,
};
use std::sync::Arc;

/// Something that the core is told.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the fields are what their types and names say")]
pub enum Event {
    /// The process began and its journal has been replayed.
    Start,
    /// Time has passed.
    Tick,
    /// Whether attempts may be launched. The driver forbids it while the journal's disk is nearly full.
    Launches { allowed: bool },
    /// A job comes in, its input cut into splits.
    Submission { request: RequestId, spec: Arc<JobSpec> },
    /// Somebody wants a job stopped.
    Kill { request: RequestId, job: JobId, by: String },
    /// Somebody wants an attempt's slot back. A task that they pause waits until they say otherwise.
    Preemption { request: RequestId, attempt: AttemptId, kind: PreemptKind, by: String },
    /// Somebody wants a paused task to continue, on that tracker if they name one.
    Resumption { request: RequestId, task: TaskId, on: Option<TrackerId>, by: String },
    /// Somebody wants a tracker emptied within this time; with None, used again.
    Drain { request: RequestId, tracker: TrackerId, within: Option<Span>, by: String },
    /// Somebody wants a lost tracker removed from what is known.
    Forget { request: RequestId, tracker: TrackerId, by: String },
    /// A tracker introduces itself.
    Registration { request: RequestId, tracker: Registration },
    /// A heartbeat of a tracker.
    Heartbeat(Heartbeat),
    /// A tracker's connection broke.
    Disconnection { tracker: TrackerId, incarnation: Incarnation },
    /// What came of a computation; empty if it went wrong.
    Computed { number: u64, answer: Numbers },
    /// What came of moving a job's output into place.
    CommitResult { job: JobId, result: Result<(), String> },
}

/// What a tracker says of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Registration {
    /// Its name.
    pub name: String,
    /// The incarnation that the JobTracker gave this process when it registered before; 0 if it has not.
    pub incarnation: Incarnation,
    /// Its host.
    pub host: String,
    /// Its rack.
    pub rack: String,
    /// Where reducers fetch map output.
    pub shuffle_addr: String,
    /// Where its attempts' logs are read, `host:port`.
    pub logs_addr: String,
    /// How many attempts it takes at a time.
    pub slots: PerPhase<u32>,
    /// Attempts that it runs, or has run and could not tell of yet.
    pub attempts: Vec<AttemptReport>,
    /// Maps whose output it has.
    pub outputs: Vec<AttemptId>,
    /// Paused attempts whose state it has.
    pub checkpoints: Vec<(AttemptId, CheckpointInfo)>,
    /// Jobs that it keeps anything of.
    pub jobs: Vec<JobId>,
}

/// A heartbeat of a tracker. Sent again with the same `seq` until it is answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Heartbeat {
    /// Who.
    pub tracker: TrackerId,
    /// Which start of it.
    pub incarnation: Incarnation,
    /// Counts up from 1 within a registration.
    pub seq: u64,
    /// The newest order that it has taken.
    pub acked: u64,
    /// What its attempts do: every one that runs, and those that have ended since it was last answered.
    pub attempts: Vec<AttemptReport>,
    /// Map output that reduces here could not fetch.
    pub fetch_failures: Vec<FetchFailure>,
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptReport {
    /// Which.
    pub attempt: AttemptId,
    /// What.
    pub status: AttemptStatus,
}

/// The states that a tracker knows. All but `Running` mean that the process is gone and the slot is free; the last two are
/// of attempts that never ran there.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptStatus {
    /// It runs and is this far.
    Running(Progress),
    /// It is done.
    Succeeded(AttemptResult),
    /// A map ended there, as it was told; this is what it brings for what it has read.
    Split(u64, AttemptResult),
    /// A reduce has saved its checkpoint.
    Paused(CheckpointInfo),
    /// The checkpoint that it was to resume from is gone or damaged.
    CheckpointCorrupt(String),
    /// Who has the checkpoint that it was to resume from does not answer.
    CheckpointUnreachable(String),
    /// It failed, and why.
    Failed(String),
    /// It failed in a way in which every attempt would: the job fails.
    Fatal(String),
    /// It was stopped.
    Killed(String),
    /// This tracker has a copy, of so many bytes, of the output or the state that the attempt left on another.
    Copied(u64),
    /// It has none, and why.
    CopyFailed(String),
}

/// A reduce could not fetch a map's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchFailure {
    /// Who wanted it.
    pub reduce: AttemptId,
    /// Whose output.
    pub map: AttemptId,
    /// The shuffle address that it was told. A failure at another one than the tracker has now says nothing of the output.
    pub addr: String,
}

/// What a tracker is told. Numbered; kept until it says that it has it, so a repeat does no harm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Run this attempt.
    Launch(AttemptId),
    /// Have this attempt release its slot, and say when it has.
    Preempt {
        /// Which.
        attempt: AttemptId,
        /// How.
        kind: PreemptKind,
        /// Why, for its log.
        why: String,
    },
    /// Delete the state of this paused attempt: nobody will take it up any more.
    DropCheckpoint(AttemptId),
    /// News for the reduces of a job that run here: entries `first..` of its map events.
    MapEvents {
        /// Which job.
        job: JobId,
        /// The index of the first.
        first: usize,
        /// How many maps the job has. A split adds one before its first half is announced.
        maps: u32,
        /// The news.
        events: Vec<MapEvent>,
    },
    /// Copy what this attempt left on another tracker (a map's output, a paused reduce's state), and say when it is here.
    CopyFiles {
        /// Which.
        attempt: AttemptId,
        /// Where it lies.
        from: TrackerId,
    },
    /// Delete whatever is left of a job.
    Clean(JobId),
}

/// An order and its number.
pub type Numbered = (u64, Order);

/// Something that the core wants done. **Contract:** carried out in order, and nothing that comes after an
/// `Append` leaves the process before that entry is durable.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the fields are what their types and names say")]
pub enum Effect {
    /// Add to the journal.
    Append(Entry),
    /// Answer a request.
    Reply { request: RequestId, reply: Reply },
    /// Send a tracker the orders that it has not taken yet; with `answer`, as the reply to that heartbeat.
    SendOrders { tracker: TrackerId, answer: Option<u64>, orders: Vec<Numbered> },
    /// A heartbeat from a tracker that must register first.
    RequestRegistration { tracker: TrackerId, incarnation: Incarnation },
    /// Move a job's output into place, fenced by the epoch, and come back with a `CommitResult`.
    CommitJob { job: JobId },
    /// Solve this beside the core, and come back with a `Computed` of the same number. Lost with the process: it is
    /// asked for again after a restart, if it is still wanted.
    Compute { number: u64, problem: Problem },
    /// Remove what a job without a future has written.
    DiscardOutput { job: JobId },
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The job's id; the same for a repeat.
    Submitted(JobId),
    /// The job is stopped, or was over already.
    Stopped,
    /// It will be done, or is being done already.
    Accepted,
    /// Welcome; this is your number, your incarnation, and the JobTracker's epoch.
    Registered {
        /// The tracker's number.
        tracker: TrackerId,
        /// The JobTracker's epoch.
        epoch: u64,
        /// The number of this process among all that have had the tracker's name. Goes up with each of them.
        incarnation: Incarnation,
    },
    /// It cannot be done: one line, for people.
    Refused(String),
}
