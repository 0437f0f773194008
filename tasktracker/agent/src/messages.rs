//! The events that the agent handles, and the actions that it requests.

use crate::DriverTypes;
use std::sync::Arc;
use types::{AttemptId, FetchFailure, JobId, PreemptKind, Span, ids::Incarnation};

/// An event for the agent.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<T: DriverTypes> {
    /// A connection to the JobTracker exists.
    Connected,
    /// The JobTracker has accepted the registration.
    Registered {
        /// Interval between heartbeats.
        heartbeat: Span,
        /// Time without a heartbeat after which the JobTracker declares the tracker lost.
        lost_after: Span,
        /// Number of this process among all tracker processes that had its name.
        incarnation: Incarnation,
    },
    /// The JobTracker does not know this tracker any more.
    RegisterAgain,
    /// The JobTracker has refused this tracker permanently.
    Refused(String),
    /// Orders of the JobTracker. They answer a heartbeat unless `answers` is 0.
    Orders {
        /// Sequence number of the answered heartbeat.
        answers: u64,
        /// Numbered orders.
        orders: Vec<(u64, Order<T>)>,
    },
    /// The connection was closed.
    Disconnected,
    /// A process has started its attempt.
    Started(AttemptId),
    /// An attempt reports progress.
    Progressed(AttemptId, T::Progress),
    /// A reduce could not fetch a map output.
    FetchFailed(FetchFailure),
    /// The process of an attempt has ended or is idle again, and the folder of the attempt has been
    /// removed.
    Ended(AttemptId, AttemptEnd<T>),
    /// Result of a copy from another tracker, or why it failed.
    Copied(AttemptId, Result<Copied<T>, String>),
    /// The driver has deleted the files of a job; false if some files could not be deleted.
    Cleaned(JobId, bool),
    /// Time has passed.
    Tick,
}

/// A completed copy of files from another tracker.
#[derive(Debug, Clone, PartialEq)]
pub struct Copied<T: DriverTypes> {
    /// Length in bytes.
    pub bytes: u64,
    /// The checkpoint of a paused reduce; `None` for a map output.
    pub checkpoint: Option<T::Checkpoint>,
}

/// An order of the JobTracker.
#[derive(Debug, Clone, PartialEq)]
pub enum Order<T: DriverTypes> {
    /// Run an attempt.
    Launch(AttemptId, T::Launch),
    /// Preempt an attempt in this way, and report when its slot is free.
    Preempt(AttemptId, PreemptKind, String),
    /// Map events of a job, for its reduces.
    MapEvents(JobId, MapEventBatch<T>),
    /// Delete the checkpoint of an attempt, which will not be used any more.
    DropCheckpoint(AttemptId),
    /// Copy the files of an attempt from another tracker.
    CopyFiles(AttemptId, T::Source),
    /// Delete all files of a job.
    Clean(JobId),
    /// An order that this build does not understand. It is acknowledged, so that it is not sent
    /// again.
    Unknown,
}

/// A part of the list of map events of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct MapEventBatch<T: DriverTypes> {
    /// Index of the first event.
    pub first: u64,
    pub events: Vec<T::MapEvent>,
    /// Number of maps of the job after these events; 0 if unknown.
    pub maps: u32,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptEnd<T: DriverTypes> {
    /// The attempt succeeded.
    Succeeded {
        /// Result of the task.
        result: T::Result,
        /// Whether this tracker has the map output of the attempt.
        output: bool,
    },
    /// The attempt was paused with a checkpoint on the disks of this tracker.
    Paused(T::Checkpoint),
    /// The checkpoint to resume from is missing or damaged.
    CheckpointCorrupt(String),
    /// The tracker with the checkpoint to resume from is unreachable.
    CheckpointUnreachable(String),
    /// The attempt failed, and every other attempt would fail too.
    Fatal(String),
    /// The attempt failed with this error.
    Failed(String),
    /// The attempt was killed for this reason.
    Killed(String),
}

/// An action that the driver executes, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Action<T: DriverTypes> {
    /// Run an attempt.
    Start(AttemptId, T::Launch),
    /// Kill an attempt.
    Kill(AttemptId, String),
    /// Preempt an attempt: a map ends at a record, a reduce saves a checkpoint and ends.
    Preempt(AttemptId, PreemptKind, String),
    /// Send map events to a reduce.
    MapEvents(AttemptId, MapEventBatch<T>),
    /// Delete the checkpoint of an attempt.
    DropCheckpoint(AttemptId),
    /// Copy the files of an attempt from another tracker, and report the result.
    CopyFiles(AttemptId, T::Source),
    /// Delete the files of a job, and report the result. No attempt of the job runs any more.
    Clean(JobId),
    /// Register at the JobTracker. If the driver cannot send the registration, it closes the
    /// connection, because the agent does not repeat a registration.
    Register {
        /// Incarnation that the JobTracker has assigned to this process; 0 if it has assigned none.
        incarnation: Incarnation,
        /// Attempts that are running, or that have ended and whose report was not acknowledged.
        attempts: Vec<AttemptReport<T>>,
        /// Attempts of maps whose output is on this tracker.
        outputs: Vec<AttemptId>,
        /// Attempts with a checkpoint on this tracker.
        checkpoints: Vec<(AttemptId, T::Checkpoint)>,
        /// Every job with files or state on this tracker.
        jobs: Vec<JobId>,
    },
    /// Send a heartbeat. The agent stores it until it is answered.
    Heartbeat(Arc<Heartbeat<T>>),
    /// Exit with this reason. The actions before this one kill all attempts.
    Exit(String),
}

/// A heartbeat. Every heartbeat reports all running attempts.
#[derive(Debug, Clone, PartialEq)]
pub struct Heartbeat<T: DriverTypes> {
    /// Sequence number; the first heartbeat after a registration has 1.
    pub seq: u64,
    /// Number of the newest acknowledged order.
    pub acked: u64,
    /// Reports of attempts.
    pub attempts: Vec<AttemptReport<T>>,
    /// Map outputs that reduces could not fetch.
    pub fetch_failures: Vec<FetchFailure>,
}

/// A report about an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptReport<T: DriverTypes> {
    /// ID of the attempt.
    pub attempt: AttemptId,
    /// State of the attempt.
    pub status: AttemptStatus<T>,
}

/// The state of an attempt in a report. All states except `Running` mean that the attempt uses no
/// slot.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptStatus<T: DriverTypes> {
    /// The attempt is running, with this progress.
    Running(T::Progress),
    /// The attempt has ended.
    Ended(AttemptEnd<T>),
    /// Files of the attempt, which did not run here, were copied from another tracker: their length
    /// in bytes, or why the copy failed.
    Copied(Result<u64, String>),
}
