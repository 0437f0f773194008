//! IDs of jobs and attempts in their text form: `job_7`, `job_7.m3.1`.
//!
//! Every ID in a path on disk is parsed here first, so that a name cannot lead out of its folder.

use std::{fmt, str::FromStr};

/// ID of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job(pub u32);

/// Map or reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Reads a split.
    Map,
    /// Reads a partition of every map's output.
    Reduce,
}

/// ID of an attempt of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt {
    /// Job of the task.
    pub job: Job,
    /// Map or reduce.
    pub phase: Phase,
    /// Index of the task in its phase.
    pub index: u32,
    /// Number of the attempt of the task.
    pub number: u32,
}

/// A text that is not an ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct IdError {
    text: String,
    wanted: &'static str,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job_{}", self.0)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Map => "map",
            Self::Reduce => "reduce",
        })
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = if self.phase == Phase::Map { 'm' } else { 'r' };
        write!(f, "{}.{letter}{}.{}", self.job, self.index, self.number)
    }
}

/// Accepts only what `Display` writes: no signs, no leading zeros, so that each ID has one text.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

impl FromStr for Job {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let id = text.strip_prefix("job_").and_then(number);
        id.map(Job).ok_or(IdError { text: text.into(), wanted: "a job id, such as job_7" })
    }
}

impl FromStr for Attempt {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let parse = || {
            let (job, rest) = text.split_once('.')?;
            let (task, try_number) = rest.split_once('.')?;
            let (phase, index) = match (task.strip_prefix('m'), task.strip_prefix('r')) {
                (Some(index), _) => (Phase::Map, index),
                (_, Some(index)) => (Phase::Reduce, index),
                _ => return None,
            };
            Some(Attempt {
                job: job.parse().ok()?,
                phase,
                index: number(index)?,
                number: number(try_number)?,
            })
        };
        parse().ok_or(IdError { text: text.into(), wanted: "an attempt id, such as job_7.m3.0" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip_and_others_are_rejected() {
        for text in ["job_7.m3.0", "job_0.r12.4"] {
            assert_eq!(text.parse::<Attempt>().unwrap().to_string(), text);
        }
        for text in
            ["", "job_7", "job_7.m3", "job_7.x3.0", "job_7.m3.0.1", "job_7.m+3.0", "job_7.m03.0", "../x.m1.0"]
        {
            assert!(text.parse::<Attempt>().is_err(), "{text}");
        }
        assert_eq!("job_9".parse(), Ok(Job(9)));
        assert!("job_-9".parse::<Job>().is_err());
    }
}
