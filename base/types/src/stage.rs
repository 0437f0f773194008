//! Stages of attempts.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// What an attempt is doing. Its progress is measured differently in each stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// A map is reading its input.
    #[default]
    Map,
    /// A reduce is fetching map output.
    Shuffle,
    /// A reduce has fetched everything and is merging.
    Merge,
    /// A reduce is calling the reducer.
    Reduce,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Stage; 4] = [Stage::Map, Stage::Shuffle, Stage::Merge, Stage::Reduce];

    /// Returns the name of the stage in messages, histories and texts.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Map => "map",
            Stage::Shuffle => "shuffle",
            Stage::Merge => "merge",
            Stage::Reduce => "reduce",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Stage {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|stage| stage.name() == text);
        found.ok_or_else(|| format!("{text:?} is not a stage"))
    }
}
