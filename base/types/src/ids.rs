//! IDs and how they are printed: `job_7`, `job_7.m3`, `job_7.m3.1`.
//!
//! Each ID has exactly one text. IDs from clients are parsed before they become part of a path, so
//! that a path cannot lead out of its folder.

use crate::phase::Phase;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// ID of a job. Jobs are numbered from 1, over the lifetime of the data folder of the JobTracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub u32);

/// ID of a task: a map or reduce of a job. When a map is split, the task for the remainder gets the
/// next free index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    /// The job of the task.
    pub job: JobId,
    /// Map or reduce.
    pub phase: Phase,
    /// The index among the tasks of this phase, from 0.
    pub index: u32,
}

/// ID of an attempt, which is one execution of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptId {
    pub task: TaskId,
    /// The number of the attempt among those of its task, from 0. Numbers are never reused.
    pub number: u32,
}

/// ID of a tracker. Trackers are numbered in the order of their first registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TrackerId(pub u32);

/// ID of a host name. IDs are cheaper to compare than names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostId(pub u32);

/// ID of a rack name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RackId(pub u32);

/// The number of a tracker process among all processes that have registered with the same name.
/// Only the process with the highest number is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

/// Identifies a request, to match its reply and to recognise a repeated request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub u128);

impl TaskId {
    /// Returns the ID of the attempt of this task with this number.
    pub fn attempt(self, number: u32) -> AttemptId {
        AttemptId { task: self, number }
    }
}

impl AttemptId {
    /// Returns the job of the attempt.
    pub fn job(self) -> JobId {
        self.task.job
    }
    /// Returns the phase of the attempt.
    pub fn phase(self) -> Phase {
        self.task.phase
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job_{}", self.0)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}{}", self.job, self.phase.letter(), self.index)
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.task, self.number)
    }
}

impl fmt::Display for TrackerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tracker_{}", self.0)
    }
}

/// A text that is not a valid ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct IdError {
    text: String,
    wanted: &'static str,
}

/// Parses a number as `Display` writes it: without a sign and leading zeros.
fn parse_number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

impl FromStr for JobId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let id = text.strip_prefix("job_").and_then(parse_number);
        id.map(JobId).ok_or(IdError { text: text.into(), wanted: "a job id, such as job_7" })
    }
}

impl FromStr for TaskId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let parse = || {
            let (job, task) = text.split_once('.')?;
            let phase = Phase::from_letter(task.chars().next()?)?;
            Some(TaskId { job: job.parse().ok()?, phase, index: parse_number(task.get(1..)?)? })
        };
        parse().ok_or(IdError { text: text.into(), wanted: "a task id, such as job_7.m3 or job_7.r0" })
    }
}

impl FromStr for AttemptId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let parse = || {
            let (task, last) = text.rsplit_once('.')?;
            Some(AttemptId { task: task.parse().ok()?, number: parse_number(last)? })
        };
        parse().ok_or(IdError { text: text.into(), wanted: "an attempt id, such as job_7.m3.0" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_ids_parse_to_the_same_id() {
        let attempt = TaskId { job: JobId(7), phase: Phase::Reduce, index: 3 }.attempt(1);
        assert_eq!(attempt.to_string(), "job_7.r3.1");
        assert_eq!("job_7.r3.1".parse(), Ok(attempt));
        assert_eq!("job_7.r3".parse(), Ok(attempt.task));
        assert_eq!("job_7".parse(), Ok(JobId(7)));
    }

    #[test]
    fn malformed_ids_are_rejected() {
        for text in
            ["", "job", "job_", "job_x", "7", "job_07", "job_+7", "job_-7", "job_ 7", "job_4294967296"]
        {
            assert!(text.parse::<JobId>().is_err(), "{text}");
        }
        for text in
            ["job_7", "job_7.", "job_7.x1", "job_7.m", "job_7.mé", "job_7.m-1", "job_7.m01", "job_07.m1"]
        {
            assert!(text.parse::<TaskId>().is_err(), "{text}");
        }
        for text in ["job_7.m1", "job_7.m3.0.1", "job_7.m+3.0", "job_7.m3.00", "job_07.m3.0", "../x.m1.0"] {
            assert!(text.parse::<AttemptId>().is_err(), "{text}");
        }
    }
}
