//! Facts: what has happened. The journal, the schedulers, the job history, the metrics and the web
//! pages use the same facts.
//!
//! The journal contains every fact, in order. Applying all of them with [`crate::Cluster::apply`]
//! restores the durable half of the cluster. Names are in the past tense.
//!
//! The journal encodes facts by the positions of variants and fields. A new fact goes to the end of
//! [`Fact`]. Any other change, also of a type that facts contain, changes the encoding: it needs a
//! new layout of the journal folder, and folders of earlier builds are then refused.

use crate::{
    ids::{AttemptId, Incarnation, JobId, RequestId, TaskId, TrackerId},
    job::{JobOutcome, JobSpec},
    phase::{PerPhase, Phase},
    task::{AttemptResult, PreemptKind, Stage},
    time::Time,
    why::Why,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The reason recorded for attempts, map outputs and checkpoints that are given up with their
/// tracker.
pub const TRACKER_LOST: &str = "its tracker was lost";

/// One start of the JobTracker, as the NameNode distinguishes it from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Its number.
    pub epoch: u64,
    /// Its random ID.
    pub id: u64,
}

/// A fact and its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When it happened.
    pub at: Time,
    /// What happened.
    pub fact: Fact,
}

/// A durable event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fact {
    /// The JobTracker started. Every known tracker is expected to register again.
    JobTrackerStarted { epoch: u64, scheduler: String },
    /// A tracker registered: for the first time, again after missed heartbeats, or as a new
    /// process.
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
    /// The heartbeats of a tracker are late, or its connection broke.
    TrackerSuspected { tracker: TrackerId, why: String },
    /// A suspect tracker sent a heartbeat before it was given up.
    TrackerRecovered { tracker: TrackerId },
    /// A tracker was given up.
    TrackerLost { tracker: TrackerId, why: String },
    /// A job was accepted.
    JobSubmitted { job: JobId, request: RequestId, spec: Arc<JobSpec> },
    /// All tasks of a job are done and its output is being committed.
    JobCommitting { job: JobId },
    /// A job ended. Its running attempts are to be killed.
    JobEnded { job: JobId, outcome: JobOutcome },
    /// A finished job was removed from memory.
    JobForgotten { job: JobId },
    /// A tracker was ordered to run an attempt.
    AttemptLaunched {
        attempt: AttemptId,
        tracker: TrackerId,
        speculative: bool,
        /// The paused attempt whose checkpoint it resumes from.
        resumed_from: Option<AttemptId>,
        why: Why,
    },
    /// An attempt was ordered to release its slot. With `fault`, the reason is an error of the
    /// attempt, and it counts as failed when it has ended. With `hold`, its task waits until a user
    /// resumes it.
    PreemptionRequested { attempt: AttemptId, kind: PreemptKind, why: String, fault: bool, hold: bool },
    /// A map ended at `position` of its range. Its result counts for what it has read, and a new
    /// task gets the remainder.
    MapSplit { attempt: AttemptId, position: u64, result: AttemptResult },
    /// A reduce saved a checkpoint of `bytes` bytes, after it had read `bytes_in` bytes. With
    /// `interrupted`, nothing had requested it.
    AttemptPaused { attempt: AttemptId, stage: Stage, bytes: u64, bytes_in: u64, interrupted: bool },
    /// A task is no longer on hold.
    TaskReleased { task: TaskId },
    /// The checkpoint of a paused attempt is gone or unusable, and its task starts over.
    CheckpointLost { attempt: AttemptId, why: String },
    /// An attempt succeeded and its result counts. Other attempts of its task are to be killed.
    AttemptSucceeded { attempt: AttemptId, result: AttemptResult },
    /// An attempt failed. This counts towards the maximum number of attempts of its task.
    AttemptFailed { attempt: AttemptId, error: String },
    /// An attempt was killed or lost. This does not count as a failure. The `bytes_in` bytes that
    /// it had read are lost work. With `interrupted`, its tracker reported the end although nothing
    /// had ordered the attempt to end.
    AttemptKilled { attempt: AttemptId, why: String, bytes_in: u64, interrupted: bool },
    /// The output of a map is gone and the map runs again. With `unfetched`, reduces have reported
    /// that they cannot fetch it, and the tracker may be at fault.
    MapOutputLost { attempt: AttemptId, why: String, unfetched: bool },
    /// The tracker of a map output now serves it at a different address.
    MapOutputMoved { attempt: AttemptId },
    /// A job no longer uses a tracker.
    TrackerBlacklisted { job: JobId, tracker: TrackerId },
    /// Records of the journal were lost, and with them the IDs that they assigned. New epochs and
    /// jobs get higher numbers than `epoch` and `job`.
    IdsSkipped { epoch: u64, job: u32 },
    /// A tracker is being drained and gets no new work. Attempts that cannot be preempted without
    /// loss may continue until `until`.
    TrackerDraining { tracker: TrackerId, by: String, until: Time },
    /// The drain of a tracker was cancelled.
    DrainCancelled { tracker: TrackerId, by: String },
    /// Another tracker has copied a map output and serves it from now on.
    MapOutputCopied { attempt: AttemptId, tracker: TrackerId, bytes: u64 },
    /// Another tracker has copied the checkpoint of a paused reduce, which resumes from this copy.
    CheckpointCopied { attempt: AttemptId, tracker: TrackerId, bytes: u64 },
    /// An attempt refused to be preempted and continues. `refusals` is the number of its refusals
    /// so far.
    PreemptionRefused { attempt: AttemptId, refusals: u32, why: String },
    /// A preempted attempt got a deadline: it is killed if it still holds its slot at `until`.
    PreemptionDeadlineSet { attempt: AttemptId, until: Time },
    /// A lost tracker was removed from memory. Its ID is never reused.
    TrackerForgotten { tracker: TrackerId, name: String, why: String },
    /// A request of a user was accepted, or refused for the reason `refusal`. The facts of its
    /// effects precede this one in the same event.
    RequestAnswered { request: RequestId, refusal: Option<String> },
    /// A JobTracker began to lead its group: the start that precedes this fact has this ID. With
    /// `accepted`, the NameNode has accepted it.
    StartRecorded { start: Start, accepted: bool },
}

impl Fact {
    /// Returns the tracker whose number of usable slots this fact may change.
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

    /// Returns the reduce whose checkpoints may no longer be needed after this fact.
    pub(crate) fn affected_reduce(&self) -> Option<TaskId> {
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

    /// Returns the job that this fact is about, if any.
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
            | Fact::CheckpointLost { attempt, .. }
            | Fact::AttemptSucceeded { attempt, .. }
            | Fact::AttemptFailed { attempt, .. }
            | Fact::AttemptKilled { attempt, .. }
            | Fact::MapOutputLost { attempt, .. }
            | Fact::MapOutputMoved { attempt }
            | Fact::MapOutputCopied { attempt, .. }
            | Fact::CheckpointCopied { attempt, .. }
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
            | Fact::IdsSkipped { .. }
            | Fact::RequestAnswered { .. }
            | Fact::StartRecorded { .. } => None,
        }
    }
}
