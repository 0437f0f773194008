//! What has happened. One list feeds the journal, the schedulers, job history, metrics and the web page.
//!
//! The journal holds every fact, in order; [`crate::Cluster::apply`] over all of them gives the cluster as it was.
//! Names are in the past tense. Facts are never changed, only added.

use crate::{
    ids::{AttemptId, Incarnation, JobId, RequestId, TrackerId},
    job::{JobOutcome, JobSpec},
    phase::PerPhase,
    plan::Why,
    task::AttemptResult,
    time::Time,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

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
    AttemptLaunched { attempt: AttemptId, tracker: TrackerId, speculative: bool, why: Why },
    /// Told to stop; with `fault` for one of its own, and it will count as failed when it is gone.
    AttemptRecalled { attempt: AttemptId, why: String, fault: bool },
    /// It is done, and its result counts; other attempts of its task were told to stop.
    AttemptSucceeded { attempt: AttemptId, result: AttemptResult },
    /// Its own fault: uses the task's budget.
    AttemptFailed { attempt: AttemptId, error: String },
    /// Stopped or lost: uses no budget.
    AttemptKilled { attempt: AttemptId, why: String },
    /// A map's output is gone and the map runs again; `unfetched` if that is what reduces said, and its tracker
    /// may be to blame.
    MapOutputLost { attempt: AttemptId, why: String, unfetched: bool },
    /// Its tracker serves a map's output at another address than reduces were told.
    MapOutputMoved { attempt: AttemptId },
    /// A job will not use a tracker any more.
    TrackerBlacklisted { job: JobId, tracker: TrackerId },
}
