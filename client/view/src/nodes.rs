//! The nodes of a cluster, each with its DataNode and its tracker.

use crate::output;
use client::model::Tracker;
use dfs_client::{NodeReport, NodeState};
use serde::Serialize;

/// A node as JSON: its DataNode, its tracker, or both.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Row<'a> {
    /// A DataNode, with the tracker of its node if there is one.
    Datanode {
        #[serde(flatten)]
        datanode: &'a NodeReport,
        /// The tracker of the same name.
        tracker: Option<&'a Tracker>,
    },
    /// A tracker without a DataNode.
    Tracker {
        /// The name of the node.
        node: &'a str,
        tracker: &'a Tracker,
    },
}

impl Row<'_> {
    fn sort_key(&self) -> (&str, u64, &str) {
        match self {
            Self::Datanode { datanode, .. } => natural_sort_key(&datanode.address.node),
            Self::Tracker { node, .. } => natural_sort_key(node),
        }
    }
}

/// Merges DataNodes and trackers of the same name. Returns the nodes sorted by name.
pub fn merge_by_name<'a>(nodes: &'a [NodeReport], trackers: &'a [Tracker]) -> Vec<Row<'a>> {
    let mut all: Vec<Row<'_>> = nodes
        .iter()
        .map(|datanode| {
            let node = datanode.address.node.as_str();
            Row::Datanode { datanode, tracker: trackers.iter().find(|tracker| tracker.name == node) }
        })
        .collect();
    let without_datanode =
        trackers.iter().filter(|tracker| nodes.iter().all(|node| node.address.node != tracker.name));
    all.extend(without_datanode.map(|tracker| Row::Tracker { node: &tracker.name, tracker }));
    all.sort_by(|one, other| one.sort_key().cmp(&other.sort_key()));
    all
}

/// Returns the name of a state, as tables show it.
pub fn state_name(state: NodeState) -> &'static str {
    match state {
        NodeState::Live => "live",
        NodeState::Suspect => "suspect",
        NodeState::Dead => "dead",
        NodeState::Draining => "draining",
        NodeState::Drained => "drained",
    }
}

/// Returns the sort key of a node name: `node10` sorts after `node9`.
pub fn natural_sort_key(name: &str) -> (&str, u64, &str) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem, name[stem.len()..].parse().unwrap_or(0), name)
}

/// Describes when the last heartbeat of a tracker arrived. An awaited tracker has sent none since
/// the JobTracker started.
pub fn tracker_heartbeat(tracker: &Tracker) -> String {
    if tracker.state == "awaited" { "-".into() } else { heartbeat(tracker.last_heartbeat_ms_ago) }
}

/// Describes when a heartbeat arrived.
pub fn heartbeat(ms_ago: u64) -> String {
    format!("{} ago", output::age(ms_ago))
}

/// Returns what `describe` says about the volumes of a DataNode; `-` for a dead DataNode, whose
/// replicas do not count.
pub fn of_volumes(node: &NodeReport, describe: impl FnOnce(&NodeReport) -> String) -> String {
    if node.state == NodeState::Dead { "-".into() } else { describe(node) }
}

/// Describes what is unusual about a DataNode.
pub fn note(node: &NodeReport) -> String {
    let mut notes = Vec::new();
    if node.state == NodeState::Draining {
        notes.push(format!("{} left", output::count(node.blocks_left_to_drain, "block")));
    }
    if node.failed_volumes > 0 {
        let all = node.volumes + node.failed_volumes;
        notes.push(format!("{} of {all} folders failed", node.failed_volumes));
    }
    notes.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_names_sort_by_number() {
        let mut names = ["node10", "node9", "web", "node1", "b2"];
        names.sort_by(|one, other| natural_sort_key(one).cmp(&natural_sort_key(other)));
        assert_eq!(names, ["b2", "node1", "node9", "node10", "web"]);
    }
}
