//! What has happened. One list feeds the journal, the schedulers, job history, metrics and the web page.
//!
//! The journal holds every fact, in order; [`crate::Cluster::apply`] over all of them gives the cluster as it was.
//! Names are in the past tense. Facts are never changed, only added.

use crate::{
    ids::{AttemptId, Incarnation, JobId, RequestId, TaskId, TrackerId},
    job::{JobOutcome, JobSpec},
    phase::{PerPhase, Phase},
    plan::Why,
    task::{AttemptResult, Recall, Stage},
    time::{Span, Time},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Why attempts end, outputs and paused state are gone, when their tracker is given up.
pub const TRACKER_LOST: &str = "its tracker was lost";

/// A fact and when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When.
    pub at: Time,
    /// What.
    pub fact: Fact,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the fields are what their types and names say")]
pub enum Fact {
    /// The JobTracker began; every tracker is expected back.
    JobTrackerStarted { epoch: u64, scheduler: String },
    /// A tracker registered: for the first time, again after a silence, or as a new process.
    TrackerJoined {
        tracker: TrackerId,
        name: String,
        incarnation: Incarnation,
        host: String,
        rack: String,
        shuffle_addr: String,
        logs_addr: String,
        slots: PerPhase<u32>,
    },
    /// Silent for a while, or its connection broke.
    TrackerSuspected { tracker: TrackerId, why: String },
    /// Heard of again before it was given up.
    TrackerRecovered { tracker: TrackerId },
    /// Given up.
    TrackerLost { tracker: TrackerId, why: String },
    /// A job came in.
    JobSubmitted { job: JobId, request: RequestId, spec: Arc<JobSpec> },
    /// All its tasks are done; its output is being moved into place.
    JobCommitting { job: JobId },
    /// It is over; attempts of it that still ran were told to stop.
    JobEnded { job: JobId, outcome: JobOutcome },
    /// It is no longer remembered.
    JobForgotten { job: JobId },
    /// A tracker was told to run an attempt.
    AttemptLaunched {
        attempt: AttemptId,
        tracker: TrackerId,
        speculative: bool,
        /// The paused attempt whose state it takes up.
        from: Option<AttemptId>,
        why: Why,
    },
    /// Told to give its slot back, and how; with `fault` for one of its own, and it will count as failed when it is
    /// gone; with `hold` its task waits until somebody says otherwise.
    AttemptRecalled { attempt: AttemptId, how: Recall, why: String, fault: bool, hold: bool },
    /// A map ended at `position` of its range: what it brings counts for what it has read, and a new task has the rest.
    MapSplit { attempt: AttemptId, position: u64, result: AttemptResult },
    /// A reduce has put its state aside: of so many bytes, after it has read so many.
    AttemptPaused { attempt: AttemptId, stage: Stage, bytes: u64, bytes_in: u64 },
    /// A held task may go on.
    TaskReleased { task: TaskId },
    /// The state of a paused attempt is gone or of no use: its task begins anew.
    CheckpointLost { attempt: AttemptId, why: String },
    /// It is done, and its result counts; other attempts of its task were told to stop.
    AttemptSucceeded { attempt: AttemptId, result: AttemptResult },
    /// Its own fault: uses the task's budget.
    AttemptFailed { attempt: AttemptId, error: String },
    /// Stopped or lost: uses no budget. What it had read was read in vain.
    AttemptKilled { attempt: AttemptId, why: String, bytes_in: u64 },
    /// A map's output is gone and the map runs again; `unfetched` if that is what reduces said, and its tracker
    /// may be to blame.
    MapOutputLost { attempt: AttemptId, why: String, unfetched: bool },
    /// Its tracker serves a map's output at another address than reduces were told.
    MapOutputMoved { attempt: AttemptId },
    /// A job will not use a tracker any more.
    TrackerBlacklisted { job: JobId, tracker: TrackerId },
    /// Records of the journal were lost, and with them which numbers they gave out: starts and jobs go on above
    /// these.
    NumbersSkipped { epoch: u64, job: u32 },
    /// A reduce that was paused does its last stage again, and was so long at it in vain. Not made any more.
    StageLost { attempt: AttemptId, why: String, time: Span },
    /// A tracker is to be emptied and gets nothing new; what cannot be taken from it without loss may go on until then.
    TrackerDraining { tracker: TrackerId, by: String, until: Time },
    /// It is used again.
    TrackerReturned { tracker: TrackerId, by: String },
    /// Another tracker has a copy of a map's output: it is fetched from there.
    MapOutputTaken { attempt: AttemptId, tracker: TrackerId, bytes: u64 },
    /// Another tracker has a copy of what a paused reduce put aside: it is taken up from there.
    CheckpointTaken { attempt: AttemptId, tracker: TrackerId, bytes: u64 },
    /// A reduce that was told to pause has no room for its state, and goes on. Not made any more: `RecallRefused` is.
    PauseRefused { attempt: AttemptId },
    /// An attempt that was asked for its slot goes on, for the so many-th time, and why.
    RecallRefused { attempt: AttemptId, refusals: u32, why: String },
    /// Somebody waits for the slot of an attempt that was asked for it: if it still holds it then, it is killed.
    SlotDue { attempt: AttemptId, until: Time },
    /// A lost tracker is no longer known. Its number is never given to another.
    TrackerForgotten { tracker: TrackerId, name: String, why: String },
}

impl Fact {
    /// The tracker whose slots policies may reckon with, or no longer, from now on ([`Cluster::slots`]).
    ///
    /// [`Cluster::slots`]: crate::Cluster::slots
    pub fn reshapes(&self) -> Option<TrackerId> {
        match self {
            Fact::TrackerJoined { tracker, .. }
            | Fact::TrackerSuspected { tracker, .. }
            | Fact::TrackerRecovered { tracker, .. }
            | Fact::TrackerLost { tracker, .. }
            | Fact::TrackerDraining { tracker, .. }
            | Fact::TrackerReturned { tracker, .. } => Some(*tracker),
            _ => None,
        }
    }

    /// The reduce that an attempt of it has ended with this, or whose state on disks it is about.
    pub(crate) fn reduce(&self) -> Option<TaskId> {
        match self {
            Fact::AttemptPaused { attempt, .. }
            | Fact::AttemptSucceeded { attempt, .. }
            | Fact::AttemptFailed { attempt, .. }
            | Fact::AttemptKilled { attempt, .. }
            | Fact::CheckpointLost { attempt, .. }
            | Fact::CheckpointTaken { attempt, .. } => {
                Some(attempt.task).filter(|task| task.phase == Phase::Reduce)
            }
            _ => None,
        }
    }

    /// The job that it is about, if it is about one.
    pub fn job(&self) -> Option<JobId> {
        match self {
            Fact::JobSubmitted { job, .. }
            | Fact::JobCommitting { job }
            | Fact::JobEnded { job, .. }
            | Fact::JobForgotten { job }
            | Fact::TrackerBlacklisted { job, .. } => Some(*job),
            Fact::AttemptLaunched { attempt, .. }
            | Fact::AttemptRecalled { attempt, .. }
            | Fact::MapSplit { attempt, .. }
            | Fact::AttemptPaused { attempt, .. }
            | Fact::StageLost { attempt, .. }
            | Fact::CheckpointLost { attempt, .. }
            | Fact::AttemptSucceeded { attempt, .. }
            | Fact::AttemptFailed { attempt, .. }
            | Fact::AttemptKilled { attempt, .. }
            | Fact::MapOutputLost { attempt, .. }
            | Fact::MapOutputMoved { attempt }
            | Fact::MapOutputTaken { attempt, .. }
            | Fact::CheckpointTaken { attempt, .. }
            | Fact::PauseRefused { attempt }
            | Fact::RecallRefused { attempt, .. }
            | Fact::SlotDue { attempt, .. } => Some(attempt.job()),
            Fact::TaskReleased { task } => Some(task.job),
            Fact::JobTrackerStarted { .. }
            | Fact::TrackerJoined { .. }
            | Fact::TrackerSuspected { .. }
            | Fact::TrackerRecovered { .. }
            | Fact::TrackerLost { .. }
            | Fact::TrackerDraining { .. }
            | Fact::TrackerReturned { .. }
            | Fact::TrackerForgotten { .. }
            | Fact::NumbersSkipped { .. } => None,
        }
    }
}
