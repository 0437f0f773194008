//! Kinds of preemption, and why an attempt refuses one.

use crate::phase::Phase;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How an attempt is preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PreemptKind {
    /// The attempt is killed, and its work is lost.
    Kill,
    /// Only for maps: the attempt ends, its result counts for the input that it has read, and a new
    /// task gets the remainder of its range.
    Split,
    /// Only for reduces: the attempt saves a checkpoint and ends. The task is resumed later, on any
    /// tracker.
    Pause,
}

impl PreemptKind {
    /// Returns the kind of preemption that loses no work of an attempt in this phase.
    pub fn lossless(phase: Phase) -> Self {
        match phase {
            Phase::Map => PreemptKind::Split,
            Phase::Reduce => PreemptKind::Pause,
        }
    }
}

impl fmt::Display for PreemptKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PreemptKind::Kill => "kill",
            PreemptKind::Split => "split",
            PreemptKind::Pause => "pause",
        })
    }
}

/// Why an attempt that was preempted continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum PreemptRefusal {
    /// There is no space for its checkpoint.
    #[error("no disk of its tracker has space for its checkpoint")]
    NoSpace,
    /// Its reducer keeps state between keys that it cannot save.
    #[error("its reducer keeps state between keys that it cannot save: it can only be killed")]
    ReducerNotSavable,
    /// Its mapper has not declared that its input may be divided.
    #[error("its mapper is not divisible: it can only be killed")]
    MapperNotDivisible,
}
