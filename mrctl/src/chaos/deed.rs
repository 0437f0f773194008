//! One thing that is done to somebody, and how it is undone.

use super::site::{Damage, Sign, Site};
use crate::cluster::Kind;
use anyhow::Result;
use daemon::Bytes;
use sim::scenario::{Act, Half};
use std::time::Duration;

/// What is done, and to whom.
#[derive(Debug, Clone)]
pub(super) struct Deed {
    /// By which it is known, and its end.
    pub(super) number: usize,
    /// Of the scenario.
    pub(super) line: usize,
    pub(super) act: Act,
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

impl Deed {
    /// Who is off because of it: of two ends of a link, the one that is no master.
    pub(super) fn sufferer(&self) -> &str {
        if matches!(self.act, Act::Partition { .. }) && is_master(&self.node) { &self.to } else { &self.node }
    }

    /// A cut between nodes, which no master notices.
    pub(super) fn is_between_nodes(&self) -> bool {
        matches!(self.act, Act::Partition { .. }) && !is_master(&self.node) && !is_master(&self.to)
    }

    /// Its end.
    pub(super) fn undo(&self) -> Self {
        Self { is_end: true, ..self.clone() }
    }

    /// Whether it leaves something that has to be undone. A slow node is free when the slowing ends.
    pub(super) fn wounds(&self) -> bool {
        self.lasts.is_some() && !matches!(self.act, Act::Slow { .. })
    }
}

/// Which daemons of a node are meant; none named means all.
pub(super) fn kinds(half: Half) -> Vec<Kind> {
    match half {
        Half::Whole => Vec::new(),
        Half::Datanode => vec![Kind::Datanode],
        Half::Tasktracker => vec![Kind::Tasktracker],
    }
}

/// Does it, or ends it; what was done, in lines.
pub(super) async fn perform(site: &Site, deed: &Deed) -> Result<Vec<String>> {
    let Deed { node, to, chance, .. } = deed;
    let undo = deed.is_end;
    match &deed.act {
        Act::Kill { half, .. } if undo => site.restart(node, &kinds(*half)).await,
        Act::Kill { half, .. } => blocking(|| site.signal(node, &kinds(*half), Sign::Kill)),
        Act::Stop { half, .. } => {
            blocking(|| site.signal(node, &kinds(*half), if undo { Sign::Cont } else { Sign::Stop }))
        }
        Act::Cont { half, .. } => blocking(|| site.signal(node, &kinds(*half), Sign::Cont)),
        Act::Restart { half, .. } => site.restart(node, &kinds(*half)).await,
        Act::Partition { .. } if undo => {
            blocking(|| site.heal(Some(if is_master(node) { to } else { node })))
        }
        Act::Partition { one_way, .. } => blocking(|| site.partition(node, to, *one_way)),
        Act::Heal { .. } => blocking(|| site.heal(Some(node.as_str()).filter(|node| !node.is_empty()))),
        Act::Corrupt { block, cut, .. } => {
            let damage =
                Damage { block: block.clone(), node: Some(node.clone()), cut: *cut, chance: *chance };
            blocking(|| site.corrupt(&damage).map(|line| vec![line]))
        }
        Act::Slow { share, .. } => {
            site.slow(node, *share, deed.lasts.unwrap_or_default()).await.map(|()| Vec::new())
        }
        Act::FillDisk { .. } if undo => blocking(|| site.clear_disk(node).map(|line| vec![line])),
        Act::FillDisk { leave, .. } => {
            blocking(|| site.fill_disk(node, Bytes(*leave), false).map(|line| vec![line]))
        }
    }
}

fn blocking<T>(act: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(act)
}
