//! The phases map and reduce, and a pair of values, one for each phase.

use serde::{Deserialize, Serialize};
use std::{fmt, ops};

/// The two phases of a job. Each has slots of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// A map reads a split of the input.
    Map,
    /// A reduce reads one partition of the output of every map.
    Reduce,
}

impl Phase {
    /// Both phases, map first.
    pub const BOTH: [Phase; 2] = [Phase::Map, Phase::Reduce];

    /// Returns the letter of the phase in task IDs, `m` or `r`.
    pub fn letter(self) -> char {
        match self {
            Phase::Map => 'm',
            Phase::Reduce => 'r',
        }
    }

    /// Returns the phase that a letter in a task ID stands for.
    pub fn from_letter(letter: char) -> Option<Self> {
        Self::BOTH.into_iter().find(|phase| phase.letter() == letter)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Map => "map",
            Phase::Reduce => "reduce",
        })
    }
}

/// One value for maps and one for reduces; indexed by [`Phase`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PerPhase<T> {
    /// The value for maps.
    pub map: T,
    /// The value for reduces.
    pub reduce: T,
}

impl<T> ops::Index<Phase> for PerPhase<T> {
    type Output = T;
    fn index(&self, phase: Phase) -> &T {
        match phase {
            Phase::Map => &self.map,
            Phase::Reduce => &self.reduce,
        }
    }
}

impl<T> ops::IndexMut<Phase> for PerPhase<T> {
    fn index_mut(&mut self, phase: Phase) -> &mut T {
        match phase {
            Phase::Map => &mut self.map,
            Phase::Reduce => &mut self.reduce,
        }
    }
}
