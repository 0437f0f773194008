//! One fault of a scenario: how it is injected and undone.

use super::{
    node::{Damage, FaultSignal},
    target::ChaosTarget,
};
use anyhow::Result;
use clusters::local::Kind;
use daemon::Bytes;
use sim::scenario::{Daemons, ScenarioAction};
use std::time::Duration;

/// A fault, its target and its duration.
#[derive(Debug, Clone)]
pub(super) struct FaultAction {
    /// Identifies the fault. The action that ends a fault has the same number.
    pub(super) number: usize,
    /// The line in the scenario file.
    pub(super) line: usize,
    pub(super) action: ScenarioAction,
    /// The name of the node; empty means all nodes.
    pub(super) node: String,
    /// The name of the machine at the other end of a partitioned link.
    pub(super) to: String,
    /// After this time the fault is undone; None means never.
    pub(super) lasts: Option<Duration>,
    /// Selects one of several blocks to damage.
    pub(super) random_number: u64,
    /// Whether this action ends the fault instead of injecting it.
    pub(super) is_end: bool,
}

fn is_master(name: &str) -> bool {
    matches!(name, "namenode" | "jobtracker" | "master")
}

impl FaultAction {
    /// Returns the node that is affected. For a link to a master, this is the node at the other
    /// end.
    pub(super) fn affected_node(&self) -> &str {
        if matches!(self.action, ScenarioAction::Partition { .. }) && is_master(&self.node) {
            &self.to
        } else {
            &self.node
        }
    }

    /// Returns whether the fault is a partition between two nodes, which no master notices.
    pub(super) fn is_between_nodes(&self) -> bool {
        matches!(self.action, ScenarioAction::Partition { .. })
            && !is_master(&self.node)
            && !is_master(&self.to)
    }

    /// Returns the action that ends this fault.
    pub(super) fn undo(&self) -> Self {
        Self { is_end: true, ..self.clone() }
    }

    /// Returns whether the fault must be undone. Slowing a node needs no undo, because the node
    /// runs at full speed again when the action ends.
    pub(super) fn needs_undo(&self) -> bool {
        self.lasts.is_some() && !matches!(self.action, ScenarioAction::Slow { .. })
    }
}

/// Returns the kinds of daemon to act on; empty means all daemons of the node.
pub(super) fn kinds(daemons: Daemons) -> Vec<Kind> {
    match daemons {
        Daemons::Both => Vec::new(),
        Daemons::Datanode => vec![Kind::Datanode],
        Daemons::Tasktracker => vec![Kind::Tasktracker],
    }
}

/// Injects or ends the fault. Returns lines that describe what was done.
pub(super) async fn perform(target: &ChaosTarget, fault_action: &FaultAction) -> Result<Vec<String>> {
    let FaultAction { node, to, random_number, .. } = fault_action;
    let undo = fault_action.is_end;
    match &fault_action.action {
        ScenarioAction::Kill { daemons, .. } if undo => target.restart(node, &kinds(*daemons)).await,
        ScenarioAction::Kill { daemons, .. } => {
            blocking(|| target.signal(node, &kinds(*daemons), FaultSignal::Kill))
        }
        ScenarioAction::Stop { daemons, .. } => blocking(|| {
            target.signal(node, &kinds(*daemons), if undo { FaultSignal::Cont } else { FaultSignal::Stop })
        }),
        ScenarioAction::Cont { daemons, .. } => blocking(|| target.cont(node, &kinds(*daemons))),
        ScenarioAction::Restart { daemons, .. } => target.restart(node, &kinds(*daemons)).await,
        ScenarioAction::Partition { .. } if undo => {
            blocking(|| target.heal(Some(if is_master(node) { to } else { node })))
        }
        ScenarioAction::Partition { one_way, .. } => blocking(|| target.partition(node, to, *one_way)),
        ScenarioAction::Heal { .. } => {
            blocking(|| target.heal(Some(node.as_str()).filter(|node| !node.is_empty())))
        }
        ScenarioAction::Corrupt { block, cut, .. } => {
            let damage = Damage {
                block: block.clone(),
                node: Some(node.clone()),
                cut: *cut,
                random_number: *random_number,
            };
            blocking(|| target.corrupt(&damage).map(|line| vec![line]))
        }
        ScenarioAction::Slow { share, .. } => {
            target.slow(node, *share, fault_action.lasts.unwrap_or_default()).await.map(|()| Vec::new())
        }
        ScenarioAction::FillDisk { .. } if undo => {
            blocking(|| target.clear_disk(node).map(|line| vec![line]))
        }
        ScenarioAction::FillDisk { leave, .. } => {
            blocking(|| target.fill_disk(node, Bytes(*leave), false).map(|line| vec![line]))
        }
    }
}

fn blocking<T>(action: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(action)
}
