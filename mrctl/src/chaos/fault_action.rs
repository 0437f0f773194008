//! One thing that is done to somebody, and how it is undone.

use super::target::{ChaosTarget, Damage, FaultSignal};
use crate::cluster::Kind;
use anyhow::Result;
use daemon::Bytes;
use sim::scenario::{Daemons, ScenarioAction};
use std::time::Duration;

/// What is done, and to whom.
#[derive(Debug, Clone)]
pub(super) struct FaultAction {
    /// By which it is known, and its end.
    pub(super) number: usize,
    /// Of the scenario.
    pub(super) line: usize,
    pub(super) action: ScenarioAction,
    /// The node; empty: all.
    pub(super) node: String,
    /// The other end of a link.
    pub(super) to: String,
    /// How long it lasts.
    pub(super) lasts: Option<Duration>,
    pub(super) chance: u64,
    /// Whether it is the end of the one of this number.
    pub(super) is_end: bool,
}

fn is_master(name: &str) -> bool {
    matches!(name, "namenode" | "jobtracker" | "master")
}

impl FaultAction {
    /// Who is off because of it: of two ends of a link, the one that is no master.
    pub(super) fn affected_node(&self) -> &str {
        if matches!(self.action, ScenarioAction::Partition { .. }) && is_master(&self.node) {
            &self.to
        } else {
            &self.node
        }
    }

    /// A cut between nodes, which no master notices.
    pub(super) fn is_between_nodes(&self) -> bool {
        matches!(self.action, ScenarioAction::Partition { .. })
            && !is_master(&self.node)
            && !is_master(&self.to)
    }

    /// Its end.
    pub(super) fn undo(&self) -> Self {
        Self { is_end: true, ..self.clone() }
    }

    /// Whether it leaves something that has to be undone. A slow node is free when the slowing ends.
    pub(super) fn needs_undo(&self) -> bool {
        self.lasts.is_some() && !matches!(self.action, ScenarioAction::Slow { .. })
    }
}

/// Which daemons of a node are meant; none named means all.
pub(super) fn kinds(half: Daemons) -> Vec<Kind> {
    match half {
        Daemons::Both => Vec::new(),
        Daemons::Datanode => vec![Kind::Datanode],
        Daemons::Tasktracker => vec![Kind::Tasktracker],
    }
}

/// Does it, or ends it; what was done, in lines.
pub(super) async fn perform(target: &ChaosTarget, fault_action: &FaultAction) -> Result<Vec<String>> {
    let FaultAction { node, to, chance, .. } = fault_action;
    let undo = fault_action.is_end;
    match &fault_action.action {
        ScenarioAction::Kill { half, .. } if undo => target.restart(node, &kinds(*half)).await,
        ScenarioAction::Kill { half, .. } => {
            blocking(|| target.signal(node, &kinds(*half), FaultSignal::Kill))
        }
        ScenarioAction::Stop { half, .. } => blocking(|| {
            target.signal(node, &kinds(*half), if undo { FaultSignal::Cont } else { FaultSignal::Stop })
        }),
        ScenarioAction::Cont { half, .. } => {
            blocking(|| target.signal(node, &kinds(*half), FaultSignal::Cont))
        }
        ScenarioAction::Restart { half, .. } => target.restart(node, &kinds(*half)).await,
        ScenarioAction::Partition { .. } if undo => {
            blocking(|| target.heal(Some(if is_master(node) { to } else { node })))
        }
        ScenarioAction::Partition { one_way, .. } => blocking(|| target.partition(node, to, *one_way)),
        ScenarioAction::Heal { .. } => {
            blocking(|| target.heal(Some(node.as_str()).filter(|node| !node.is_empty())))
        }
        ScenarioAction::Corrupt { block, cut, .. } => {
            let damage =
                Damage { block: block.clone(), node: Some(node.clone()), cut: *cut, chance: *chance };
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
