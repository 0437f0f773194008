//! What goes wrong in a simulated cluster, and when. Plain data, drawn by the fuzzer, written in scenario files, and what
//! their steps become (`crate::scenario`).

use mrcore::Span;
use serde::Deserialize;

/// One fault.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    /// Seconds after the start.
    pub at_s: f64,
    /// How long; forever if it is not said.
    pub for_s: Option<f64>,
    /// What.
    pub what: FaultKind,
}

/// What goes wrong. Nodes and racks are counted from 0.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum FaultKind {
    /// The tracker's process dies; its files and the DataNode stay.
    Tracker { node: u32 },
    /// The DataNode's process dies; its blocks and the tracker stay.
    Datanode { node: u32 },
    /// The machine dies: tracker, DataNode, and all files of jobs.
    Node { node: u32 },
    /// Every machine of a rack is unreachable.
    Rack { rack: u32 },
    /// A machine stands still: nobody hears of it, and nobody reaches it.
    Frozen { node: u32 },
    /// The tracker's process stands still; its tasks and the DataNode go on. Of scenarios alone.
    FrozenTracker { node: u32 },
    /// The DataNode's process stands still. Of scenarios alone.
    FrozenDatanode { node: u32 },
    /// A machine computes slower by this factor.
    Slow { node: u32, factor: f64 },
    /// A tracker and the JobTracker do not hear each other; others reach it.
    Partition { node: u32 },
    /// A tracker does not hear the JobTracker, which hears it.
    NoOrders { node: u32 },
    /// Somebody takes back the slots of a machine; what they paused may continue when this is over.
    PreemptAll { node: u32 },
    /// Somebody stops the oldest job that runs.
    KillOldestJob,
    /// The JobTracker's process dies and replays its journal when it is back.
    JobTracker,
    /// The JobTracker's process stands still, and forgets nothing. Of scenarios alone.
    FrozenJobTracker,
}

/// A fault as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FaultRecord {
    at_s: f64,
    for_s: Option<f64>,
    what: String,
    node: Option<u32>,
    rack: Option<u32>,
    factor: Option<f64>,
}

impl FaultRecord {
    /// The fault, or why it is none.
    pub(crate) fn read(&self) -> Result<Fault, String> {
        let sound = |value: f64| value.is_finite() && value >= 0.0;
        if !sound(self.at_s) || !self.for_s.is_none_or(sound) {
            return Err("at_s and for_s are seconds from 0 on".into());
        }
        let kind = self.what.as_str();
        let missing = |key: &str| format!("{kind}: which? say {key} = 1");
        let node = || self.node.ok_or_else(|| missing("node"));
        let what = match kind {
            "tracker" => FaultKind::Tracker { node: node()? },
            "datanode" => FaultKind::Datanode { node: node()? },
            "node" => FaultKind::Node { node: node()? },
            "rack" => FaultKind::Rack { rack: self.rack.ok_or_else(|| missing("rack"))? },
            "frozen" => FaultKind::Frozen { node: node()? },
            "slow" => FaultKind::Slow { node: node()?, factor: self.factor()? },
            "partition" => FaultKind::Partition { node: node()? },
            "no-orders" => FaultKind::NoOrders { node: node()? },
            "preempt" => FaultKind::PreemptAll { node: node()? },
            "stop" => FaultKind::KillOldestJob,
            "job-tracker" => FaultKind::JobTracker,
            other => {
                return Err(format!(
                    "what = {other:?}: tracker, datanode, node, rack, frozen, slow, partition, no-orders, preempt, stop or job-tracker"
                ));
            }
        };
        let takes_node =
            !matches!(what, FaultKind::Rack { .. } | FaultKind::KillOldestJob | FaultKind::JobTracker);
        let used = [
            ("node", self.node.is_some(), takes_node),
            ("rack", self.rack.is_some(), matches!(what, FaultKind::Rack { .. })),
            ("factor", self.factor.is_some(), matches!(what, FaultKind::Slow { .. })),
        ];
        match used.iter().find(|(_, paper_figures, takes)| *paper_figures && !takes) {
            Some((key, ..)) => Err(format!("{kind} takes no {key}")),
            None => Ok(Fault { at_s: self.at_s, for_s: self.for_s, what }),
        }
    }

    fn factor(&self) -> Result<f64, String> {
        let factor = self.factor.ok_or("slow: how much? say factor = 3.0")?;
        if factor.is_finite() && factor > 0.0 {
            return Ok(factor);
        }
        Err(format!("slow: a factor of {factor} is not above 0"))
    }
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
