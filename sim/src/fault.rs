//! Faults of a simulated cluster, as plain data. The fuzzer generates faults; scenario files
//! contain them directly or as steps (`crate::scenario`).

use crate::rng::Rng;
use mrcore::Span;
use serde::Deserialize;

/// Random failures begin until this long after twice the time of the last submission.
const FAILURES_AFTER_LAST_JOB_S: f64 = 86_400.0;
/// The largest factor by which a machine gets slower, like the smallest `speed` of a cluster file.
const SLOW_FACTOR_MAX: f64 = 1000.0;

/// A fault with its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    /// Start, in seconds of simulated time.
    pub at_s: f64,
    /// Duration in seconds; `None` for a permanent fault.
    pub for_s: Option<f64>,
    /// Kind and target.
    pub what: FaultKind,
}

/// Kinds of faults. Nodes and racks are counted from 0.
#[derive(Debug, Clone, PartialEq)]
pub enum FaultKind {
    /// The process of the tracker dies. Its files and the DataNode remain.
    Tracker { node: u32 },
    /// The process of the DataNode dies. Its blocks and the tracker remain.
    Datanode { node: u32 },
    /// The machine dies: tracker, DataNode and all files of jobs are lost.
    Node { node: u32 },
    /// Every machine of a rack is unreachable.
    Rack { rack: u32 },
    /// A machine is frozen: it sends nothing and is unreachable.
    Frozen { node: u32 },
    /// The process of the tracker is frozen. Its tasks and the DataNode continue. Used only by
    /// scenarios.
    FrozenTracker { node: u32 },
    /// The process of the DataNode is frozen. Used only by scenarios.
    FrozenDatanode { node: u32 },
    /// A machine computes slower by this factor, which is at least 1.
    Slow { node: u32, factor: f64 },
    /// Messages between a tracker and the JobTracker are lost in both directions. Other daemons can
    /// still reach the tracker.
    Partition { node: u32 },
    /// Messages from the JobTracker to a tracker are lost. The other direction works.
    NoOrders { node: u32 },
    /// A user preempts all attempts on a machine. Paused tasks are resumed when the fault ends.
    PreemptAll { node: u32 },
    /// A user kills the oldest active job.
    KillOldestJob,
    /// The process of the JobTracker dies, and replays its journal when it starts again.
    JobTracker,
    /// The process of the JobTracker is frozen and keeps its state. Used only by scenarios.
    FrozenJobTracker,
}

/// Returns random failures of machines: each machine works for `mtbf_s` seconds on average, then it
/// is down for `mttr_s` seconds on average. Both are distributed exponentially. No failure begins
/// after `until_s`.
fn random_failures(machines: u32, mtbf_s: f64, mttr_s: f64, until_s: f64, seed: u64) -> Vec<Fault> {
    let mut faults = Vec::new();
    for node in 0..machines {
        let mut rng = Rng::of(seed, "failures").forked(u64::from(node));
        let mut at_s = rng.exponential(mtbf_s);
        while at_s < until_s {
            let down_s = rng.exponential(mttr_s);
            faults.push(Fault { at_s, for_s: Some(down_s), what: FaultKind::Node { node } });
            at_s += down_s + rng.exponential(mtbf_s);
        }
    }
    faults
}

/// Returns random failures of machines while jobs may run. The last job is submitted at `last_s`.
pub fn random_failures_during(
    last_s: f64,
    machines: usize,
    (mtbf_s, mttr_s): (f64, f64),
    seed: u64,
) -> Vec<Fault> {
    let until_s = 2.0 * last_s + FAILURES_AFTER_LAST_JOB_S;
    random_failures(machines as u32, mtbf_s, mttr_s, until_s, seed)
}

/// A fault as written in a file.
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
    /// Converts the record to a fault, or returns why it is not valid.
    pub(crate) fn read(&self) -> Result<Fault, String> {
        let sound = |value: f64| value.is_finite() && value >= 0.0;
        if !sound(self.at_s) || !self.for_s.is_none_or(sound) {
            return Err("at_s and for_s must be seconds, not below 0".into());
        }
        let kind = self.what.as_str();
        let missing = |key: &str| format!("{kind}: {key} is missing, for example {key} = 1");
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
                    "what = {other:?}: must be tracker, datanode, node, rack, frozen, slow, partition, no-orders, preempt, stop or job-tracker"
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
        match used.iter().find(|(_, given, takes)| *given && !takes) {
            Some((key, ..)) => Err(format!("{kind} takes no {key}")),
            None => Ok(Fault { at_s: self.at_s, for_s: self.for_s, what }),
        }
    }

    fn factor(&self) -> Result<f64, String> {
        let factor = self.factor.ok_or("slow: factor is missing, for example factor = 3.0")?;
        if (1.0..=SLOW_FACTOR_MAX).contains(&factor) {
            return Ok(factor);
        }
        Err(format!(
            "slow: factor = {factor:?} is not valid: it must be from 1 to {SLOW_FACTOR_MAX}, because the times of tasks are multiplied by it; the key speed of a cluster file makes machines faster"
        ))
    }
}

impl Fault {
    /// Returns when the fault begins.
    pub fn at(&self) -> Span {
        Span((self.at_s * 1e6) as u64)
    }

    /// Returns when the fault ends; `None` for a permanent fault.
    pub fn until(&self) -> Option<Span> {
        self.for_s.map(|lasts| Span(((self.at_s + lasts) * 1e6) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_the_mean_times_that_were_requested() {
        let faults = random_failures(50, 1000.0, 100.0, 100_000.0, 7);
        // 50 machines fail about every 1,100 s.
        let expected = 50.0 * 100_000.0 / 1100.0;
        assert!((faults.len() as f64 / expected - 1.0).abs() < 0.1, "{}", faults.len());
        let down_s: f64 = faults.iter().filter_map(|fault| fault.for_s).sum();
        assert!((down_s / faults.len() as f64 / 100.0 - 1.0).abs() < 0.1);
        assert_eq!(faults, random_failures(50, 1000.0, 100.0, 100_000.0, 7));
        assert_ne!(faults, random_failures(50, 1000.0, 100.0, 100_000.0, 8));
    }
}
