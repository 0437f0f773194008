//! What goes wrong in a simulated cluster, and when. Plain data, drawn by the fuzzer, written in scenario files, and what
//! their steps become (`crate::scenario`).

use mrcore::Span;
use serde::{Deserialize, Serialize};

/// One fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Seconds after the start.
    pub at_s: f64,
    /// How long; for ever if it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<f64>,
    /// What.
    #[serde(flatten)]
    pub what: Harm,
}

/// What goes wrong. Nodes and racks are counted from 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum Harm {
    /// The tracker's process dies; its files and the DataNode stay.
    Tracker { node: u32 },
    /// The machine dies: tracker, DataNode, and all files of jobs.
    Node { node: u32 },
    /// Every machine of a rack is unreachable.
    Rack { rack: u32 },
    /// A machine stands still: nobody hears of it, and nobody reaches it.
    Frozen { node: u32 },
    /// A machine computes slower by this factor.
    Slow { node: u32, factor: f64 },
    /// A tracker and the JobTracker do not hear each other; others reach it.
    Partition { node: u32 },
    /// A tracker does not hear the JobTracker, which hears it.
    Deaf { node: u32 },
    /// Somebody takes back the slots of a machine; what they paused may go on when this is over.
    Meddle { node: u32 },
    /// Somebody stops the oldest job that runs.
    Stop,
    /// The JobTracker's process dies and replays its journal when it is back.
    JobTracker,
}

impl Fault {
    /// When it begins.
    pub fn at(&self) -> Span {
        Span((self.at_s * 1e6) as u64)
    }

    /// When it is over.
    pub fn until(&self) -> Option<Span> {
        self.for_s.map(|lasts| Span(((self.at_s + lasts) * 1e6) as u64))
    }

    /// Whether its numbers make sense.
    pub(crate) fn check(&self) -> Result<(), String> {
        let sound = |value: f64| value.is_finite() && value >= 0.0;
        if !sound(self.at_s) || !self.for_s.is_none_or(sound) {
            return Err("at_s and for_s are seconds from 0 on".into());
        }
        if let Harm::Slow { factor, .. } = self.what
            && !(factor.is_finite() && factor > 0.0)
        {
            return Err(format!("slow: a factor of {factor} is not above 0"));
        }
        Ok(())
    }
}
