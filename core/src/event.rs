//! Input and output of the state machine of the JobTracker: events and effects.

use crate::{
    compute::{Numbers, Problem},
    fact::{Entry, Start},
    ids::{AttemptId, Incarnation, JobId, RequestId, TaskId, TrackerId},
    job::{JobSpec, MapEvent},
    output::Leftovers,
    phase::PerPhase,
    task::{AttemptResult, CheckpointInfo, PreemptKind, Progress},
    time::Span,
};
use std::sync::Arc;

pub use types::FetchFailure;

/// Input of the state machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The process has started and replayed its journal.
    Start,
    /// This JobTracker begins to lead its group, and has applied all facts of earlier leaders. `id` is
    /// the random ID of the start that this is. All else is as after [`Event::Start`].
    Lead { id: u64 },
    /// The NameNode has accepted this start of a leader of a group.
    StartAccepted { start: Start },
    /// Time has passed.
    Tick,
    /// The free space on the disk of the journal. No attempt is launched while it is nearly full.
    FreeSpace { bytes: u64 },
    /// A job was submitted. Its input has been divided into splits.
    Submission { request: RequestId, spec: Arc<JobSpec> },
    /// A user kills a job.
    Kill { request: RequestId, job: JobId, by: String },
    /// A user preempts an attempt. A task that is paused this way is on hold until a user resumes
    /// it.
    Preemption { request: RequestId, attempt: AttemptId, kind: PreemptKind, by: String },
    /// A user resumes a paused task, on the tracker `on` if there is one.
    Resumption { request: RequestId, task: TaskId, on: Option<TrackerId>, by: String },
    /// A user drains a tracker within this time, or cancels the drain if `within` is `None`.
    Drain { request: RequestId, tracker: TrackerId, within: Option<Span>, by: String },
    /// A user removes a lost tracker from the list of known trackers.
    Forget { request: RequestId, tracker: TrackerId, by: String },
    /// A tracker registers.
    Registration { request: RequestId, tracker: Registration },
    /// A heartbeat of a tracker.
    Heartbeat(Heartbeat),
    /// The connection of a tracker broke.
    Disconnection { tracker: TrackerId, incarnation: Incarnation },
    /// A computation has ended. `answer` is its solution, or empty if the computation failed.
    Computed { number: u64, answer: Numbers },
    /// The output of a job was committed, or could not be. `repeated` says that the commit was
    /// carried out before and has changed nothing now.
    CommitResult { job: JobId, repeated: bool, result: Result<(), String> },
}

/// The registration of a tracker.
#[derive(Debug, Clone, PartialEq)]
pub struct Registration {
    /// The name of the tracker.
    pub name: String,
    /// The incarnation that the JobTracker assigned to this process at its last registration; 0 at
    /// its first one.
    pub incarnation: Incarnation,
    /// The host of the tracker.
    pub host: String,
    /// The rack of the tracker.
    pub rack: String,
    /// Where reduces fetch map output from this tracker, `host:port`.
    pub shuffle_addr: String,
    /// Where logs of its attempts are read, `host:port`.
    pub logs_addr: String,
    /// Number of slots.
    pub slots: PerPhase<u32>,
    /// Reports of running attempts, and of ended attempts whose report has not been acknowledged
    /// yet.
    pub attempts: Vec<AttemptReport>,
    /// Map attempts whose output it serves.
    pub outputs: Vec<AttemptId>,
    /// Paused attempts whose checkpoint it has.
    pub checkpoints: Vec<(AttemptId, CheckpointInfo)>,
    /// Jobs of which it has at least one file.
    pub jobs: Vec<JobId>,
}

/// A heartbeat of a tracker. It is sent again with the same `seq` until it is answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Heartbeat {
    /// The sender.
    pub tracker: TrackerId,
    /// The incarnation of the sender.
    pub incarnation: Incarnation,
    /// The sequence number of the heartbeat. It starts at 1 after every registration and increases
    /// by 1.
    pub seq: u64,
    /// The number of the newest order that the tracker has received.
    pub acked: u64,
    /// Reports of all running attempts, and of those that have ended since the last answered
    /// heartbeat.
    pub attempts: Vec<AttemptReport>,
    /// Map outputs that reduces on this tracker could not fetch.
    pub fetch_failures: Vec<FetchFailure>,
}

/// The status of an attempt, as its tracker reports it.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptReport {
    /// The attempt that is reported.
    pub attempt: AttemptId,
    pub status: AttemptStatus,
}

/// The status of an attempt on a tracker. With every status except `Running`, the process has ended
/// and its slot is free. `Copied` and `CopyFailed` are about attempts that ran on another tracker.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptStatus {
    /// It is running.
    Running(Progress),
    /// It succeeded.
    Succeeded(AttemptResult),
    /// A map ended at this position because it was preempted. The result covers the input before
    /// the position.
    Split(u64, AttemptResult),
    /// A reduce saved a checkpoint and ended.
    Paused(CheckpointInfo),
    /// It ended because the checkpoint that it should resume from is missing or damaged.
    CheckpointCorrupt(String),
    /// It ended because the tracker with the checkpoint that it should resume from does not answer.
    CheckpointUnreachable(String),
    /// It failed with this error.
    Failed(String),
    /// It failed with an error that every other attempt would also have, so the job fails.
    Fatal(String),
    /// It was killed for this reason.
    Killed(String),
    /// The reporting tracker has copied the output or checkpoint of an attempt that ran elsewhere.
    /// The number is its size in bytes.
    Copied(u64),
    /// The reporting tracker could not copy the output or checkpoint, for this reason.
    CopyFailed(String),
}

/// A command to a tracker. Orders are numbered and sent again until the tracker has acknowledged
/// them, so a tracker must accept duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Run this attempt.
    Launch(AttemptId),
    /// Make this attempt release its slot, and report when it has.
    Preempt {
        /// The attempt to preempt.
        attempt: AttemptId,
        /// How to preempt it.
        kind: PreemptKind,
        /// The reason, for the log of the attempt.
        why: String,
    },
    /// Delete the checkpoint of this paused attempt. No attempt will resume from it.
    DropCheckpoint(AttemptId),
    /// Pass these new map events to the reduces of a job on this tracker.
    MapEvents {
        job: JobId,
        /// The index of the first of these events in the list of map events of the job.
        first: usize,
        /// Number of maps of the job. When a map is split, this number increases before the output
        /// of the part that was read is announced.
        maps: u32,
        events: Vec<MapEvent>,
    },
    /// Copy the map output or the checkpoint of this attempt from another tracker, and report when
    /// the copy is complete.
    CopyFiles {
        /// The attempt whose files to copy.
        attempt: AttemptId,
        /// The tracker that has the files.
        from: TrackerId,
    },
    /// Delete all files of a job.
    Clean(JobId),
}

/// An order with its number.
pub type NumberedOrder = (u64, Order);

/// Output of the state machine. **Contract:** effects are carried out in order, and nothing that
/// follows an `Append` leaves the process before that entry is durable.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Append an entry to the journal.
    Append(Entry),
    /// Answer a request.
    Reply { request: RequestId, reply: Reply },
    /// Send a tracker its orders. `orders` contains all that it has not acknowledged, and the driver
    /// skips those that have reached the tracker since its registration. With `answers`, they are the
    /// reply to the heartbeat with this sequence number.
    SendOrders { tracker: TrackerId, answers: Option<u64>, orders: Vec<NumberedOrder> },
    /// Answer a heartbeat with the request to register first.
    RegisterAgain { tracker: TrackerId, incarnation: Incarnation },
    /// Commit the output of a job, fenced by the epoch, and send a `CommitResult` event.
    CommitJob { job: JobId },
    /// Solve a problem outside of the state machine, and send a `Computed` event with the same
    /// number. The computation is lost with the process. After a restart the policy asks for it
    /// again if it still needs it.
    Compute { number: u64, problem: Problem },
    /// Delete what an ended job has left in the file system. This effect is sent again when an
    /// attempt that outlived the job has ended, because the attempt may have written files in
    /// between, and when the commit of the job was repeated.
    DeleteLeftovers { job: JobId, leftovers: Leftovers },
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The ID of the job. A repeated submission gets the same ID.
    Submitted(JobId),
    /// The request is being carried out. A job that is to be killed may already have ended.
    Accepted,
    /// The registration was accepted.
    Registered {
        /// The ID of the tracker.
        tracker: TrackerId,
        /// The epoch of the JobTracker.
        epoch: u64,
        /// The number of this process among all that have registered with the same name.
        incarnation: Incarnation,
    },
    /// The request was refused, for this reason. One line, shown to the user.
    Refused(String),
    /// The submitted job was refused.
    JobRefused(JobRefusal),
}

/// Why a job is refused. One line, shown to the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobRefusal {
    /// The cluster or the user has too many active jobs or tasks.
    #[error("{0}: try again later")]
    Overloaded(String),
    /// An active job writes to this folder, which is the output folder of the new job, or inside or
    /// around it.
    #[error("{job} is writing to {output}: wait until it ends, or choose another output")]
    OutputInUse {
        /// The active job.
        job: JobId,
        /// Its output folder.
        output: String,
    },
    /// The job is invalid, or exceeds a limit for single jobs.
    #[error("{0}")]
    Invalid(String),
}
