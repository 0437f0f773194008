//! Converts between protobuf messages and the types of the daemon, and refuses malformed messages.

mod backup;
mod inbound;
mod orders;
mod status;
mod why;

pub(crate) use backup::{backup_chunk, backup_start};
pub(crate) use inbound::{
    DrainRequest, Submission, TrackerMessage, caller, drain, forget, job_id, kill, preempt, resume, subject,
    submission, tasks, tracker_message,
};
pub(crate) use orders::{orders, refused, register_again, registered};
pub(crate) use proto::mr::{FromTracker, ToTracker};
pub(crate) use status::{drain_status, job_status, task_statuses, tracker_infos, visible_to};
pub(crate) use why::{formatter, schedulers, shadow, why};
