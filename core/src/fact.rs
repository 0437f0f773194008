//! What has happened. One list feeds the journal, the schedulers, job history, metrics and the web page.
//!
//! The journal holds every fact, in order; [`crate::Cluster::apply`] over all of them gives the cluster as it was.
//! Names are in the past tense. Facts are never changed, only added.

use crate::{
    ids::{AttemptId, Incarnation, JobId, RequestId, TaskId, TrackerId},
    job::{JobOutcome, JobSpec},
    phase::{PerPhase, Phase},
    plan::Why,
    task::{AttemptResult, PreemptKind, Stage},
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
        /// The paused attempt that it resumes from.
        from: Option<AttemptId>,
        why: Why,
    },
    /// Told to release its slot, and how; with `fault` for one of its own, and it will count as failed when it is
    /// gone; with `hold` its task waits until somebody says otherwise.
    PreemptionRequested { attempt: AttemptId, kind: PreemptKind, why: String, fault: bool, hold: bool },
    /// A map ended at `position` of its range: what it brings counts for what it has read, and a new task has the rest.
    MapSplit { attempt: AttemptId, position: u64, result: AttemptResult },
    /// A reduce has saved its checkpoint: of so many bytes, after it has read so many.
    AttemptPaused { attempt: AttemptId, stage: Stage, bytes: u64, bytes_in: u64 },
    /// A held task may continue.
    TaskReleased { task: TaskId },
    /// The state of a paused attempt is gone or of no use: its task starts over.
    CheckpointLost { attempt: AttemptId, why: String },
    /// It is done, and its result counts; other attempts of its task were told to stop.
    AttemptSucceeded { attempt: AttemptId, result: AttemptResult },
    /// Its own fault: uses the task's budget.
    AttemptFailed { attempt: AttemptId, error: String },
    /// Stopped or lost: uses no budget. What it had read was read for nothing.
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
    IdsSkipped { epoch: u64, job: u32 },
    /// A reduce that was paused does its last stage again, and was so long at it for nothing. Not made any more.
    StageLost { attempt: AttemptId, why: String, time: Span },
    /// A tracker is to be drained and gets nothing new; what cannot be taken from it without loss may continue until then.
    TrackerDraining { tracker: TrackerId, by: String, until: Time },
    /// It is used again.
    DrainCancelled { tracker: TrackerId, by: String },
    /// Another tracker has a copy of a map's output: it is fetched from there.
    MapOutputCopied { attempt: AttemptId, tracker: TrackerId, bytes: u64 },
    /// Another tracker has a copy of the checkpoint of a paused reduce: it is resumed from there.
    CheckpointCopied { attempt: AttemptId, tracker: TrackerId, bytes: u64 },
    /// A reduce that was asked to pause has no room for its state, and continues. Not made any more: `PreemptionRefused` is.
    PauseRefused { attempt: AttemptId },
    /// An attempt that was preempted goes on, for the so many-th time, and why.
    PreemptionRefused { attempt: AttemptId, refusals: u32, why: String },
    /// Somebody waits for the slot of an attempt that was asked for it: if it still holds it then, it is killed.
    PreemptionDeadlineSet { attempt: AttemptId, until: Time },
    /// A lost tracker is no longer known. Its number is never given to another.
    TrackerForgotten { tracker: TrackerId, name: String, why: String },
}

impl Fact {
    /// The tracker whose slots policies may reckon with, or no longer, from now on ([`Cluster::slots`]).
    ///
    /// [`Cluster::slots`]: crate::Cluster::slots
    pub fn changes_slots_of(&self) -> Option<TrackerId> {
        match self {
            Fact::TrackerJoined { tracker, .. }
            | Fact::TrackerSuspected { tracker, .. }
            | Fact::TrackerRecovered { tracker, .. }
            | Fact::TrackerLost { tracker, .. }
            | Fact::TrackerDraining { tracker, .. }
            | Fact::DrainCancelled { tracker, .. } => Some(*tracker),
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
            | Fact::CheckpointCopied { attempt, .. } => {
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
            | Fact::PreemptionRequested { attempt, .. }
            | Fact::MapSplit { attempt, .. }
            | Fact::AttemptPaused { attempt, .. }
            | Fact::StageLost { attempt, .. }
            | Fact::CheckpointLost { attempt, .. }
            | Fact::AttemptSucceeded { attempt, .. }
            | Fact::AttemptFailed { attempt, .. }
            | Fact::AttemptKilled { attempt, .. }
            | Fact::MapOutputLost { attempt, .. }
            | Fact::MapOutputMoved { attempt }
            | Fact::MapOutputCopied { attempt, .. }
            | Fact::CheckpointCopied { attempt, .. }
            | Fact::PauseRefused { attempt }
            | Fact::PreemptionRefused { attempt, .. }
            | Fact::PreemptionDeadlineSet { attempt, .. } => Some(attempt.job()),
            Fact::TaskReleased { task } => Some(task.job),
            Fact::JobTrackerStarted { .. }
            | Fact::TrackerJoined { .. }
            | Fact::TrackerSuspected { .. }
            | Fact::TrackerRecovered { .. }
            | Fact::TrackerLost { .. }
            | Fact::TrackerDraining { .. }
            | Fact::DrainCancelled { .. }
            | Fact::TrackerForgotten { .. }
            | Fact::IdsSkipped { .. } => None,
        }
    }
}
