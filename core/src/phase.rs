//! Map and reduce, and a pair of anything for the two.

use serde::{Deserialize, Serialize};
use std::{fmt, ops};

/// The two kinds of task, each with slots of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Reads a split of the input.
    Map,
    /// Reads one partition of every map's output.
    Reduce,
}

impl Phase {
    /// Both, maps first.
    pub const BOTH: [Phase; 2] = [Phase::Map, Phase::Reduce];

    /// `m` or `r`, as in task ids.
    pub fn letter(self) -> char {
        match self {
            Phase::Map => 'm',
            Phase::Reduce => 'r',
        }
    }

    pub(crate) fn from_letter(letter: char) -> Option<Self> {
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
    /// For maps.
    pub map: T,
    /// For reduces.
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
