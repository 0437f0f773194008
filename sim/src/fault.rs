//! What goes wrong, and when. Plain data, read from scenario files and drawn by the fuzzer.

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
}

/// A scenario file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("faults: {0}")]
pub struct BadFaults(String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    fault: Vec<Fault>,
}

/// Reads a scenario: TOML with a `[[fault]]` for each.
pub fn parse(text: &str) -> Result<Vec<Fault>, BadFaults> {
    let file: File =
        toml::from_str(text).map_err(|error| BadFaults(error.to_string().trim().replace('\n', " ")))?;
    for fault in &file.fault {
        let sound = |value: f64| value.is_finite() && value >= 0.0;
        if !sound(fault.at_s) || !fault.for_s.is_none_or(sound) {
            return Err(BadFaults(format!("{fault:?}: times are seconds from 0 on")));
        }
        if let Harm::Slow { factor, .. } = fault.what
            && !(factor.is_finite() && factor > 0.0)
        {
            return Err(BadFaults(format!("slow node: a factor of {factor} is not above 0")));
        }
    }
    Ok(file.fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_reads_and_nonsense_does_not() {
        let text = "[[fault]]\nat_s = 25.0\nwhat = \"node\"\nnode = 3\n\n[[fault]]\nat_s = 1.5\nfor_s = 10.0\nwhat = \"job-tracker\"\n";
        let faults = parse(text).expect("it reads");
        assert_eq!(faults[0].what, Harm::Node { node: 3 });
        assert_eq!(faults[1].until(), Some(Span(11_500_000)));
        for bad in [
            "[[fault]]\nat_s = -1.0\nwhat = \"job-tracker\"",
            "[[fault]]\nat_s = 1.0\nwhat = \"meteor\"",
            "x = 1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
