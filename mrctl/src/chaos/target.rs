//! A cluster that things can be done to: on this machine, or on several. What was done is told in lines; nothing is
//! printed here.

use super::{local, machines};
use crate::{
    cluster::{ClusterState, Kind},
    locate::Target,
    remote::{Fleet, Part},
};
use anyhow::Result;
use daemon::{Bytes, Period, config::Config};
use std::{path::PathBuf, time::Duration};

/// A signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultSignal {
    Kill,
    Stop,
    Cont,
}

impl FaultSignal {
    /// What it has done.
    pub(crate) fn done(self) -> &'static str {
        match self {
            Self::Kill => "killed",
            Self::Stop => "froze",
            Self::Cont => "continued",
        }
    }
}

/// How to damage a replica.
#[derive(Debug, Clone)]
pub(crate) struct Damage {
    /// Which block; any if none is named.
    pub(crate) block: Option<String>,
    /// On which node; the first that has the block if none is named.
    pub(crate) node: Option<String>,
    /// Cut off its second half, instead of flipping a byte.
    pub(crate) cut: bool,
    /// Which of many, where any will do.
    pub(crate) chance: u64,
}

/// What a daemon needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResourceUsage {
    pub(crate) node: String,
    pub(crate) program: String,
    /// Bytes of memory.
    pub(crate) bytes: u64,
    /// Open files.
    pub(crate) files: u64,
    /// Processes that it has started.
    pub(crate) tasks: u32,
}

/// The cluster.
pub(crate) enum ChaosTarget {
    /// The folder of `mrctl up`.
    Here(PathBuf),
    Machines(Fleet),
}

impl ChaosTarget {
    pub(crate) fn here(folder: PathBuf) -> Result<Self> {
        ClusterState::require(&folder)?;
        Ok(Self::Here(folder))
    }

    pub(crate) fn config_file(&self) -> PathBuf {
        match self {
            Self::Here(folder) => folder.join("fermata.toml"),
            Self::Machines(fleet) => fleet.cluster.join("fermata.toml"),
        }
    }

    /// For commands that talk with it.
    pub(crate) fn target(&self) -> Target {
        Target::of_config(&self.config_file())
    }

    /// Its settings.
    pub(crate) fn config(&self) -> Result<Config> {
        Ok(Config::load(Some(&self.config_file()))?)
    }

    /// The names of its nodes, in their order.
    pub(crate) fn nodes(&self) -> Result<Vec<String>> {
        Ok(match self {
            Self::Here(folder) => {
                let state = ClusterState::require(folder)?;
                let nodes = state.daemons.iter().filter(|daemon| daemon.kind == Kind::Datanode);
                nodes.map(|daemon| daemon.name.clone()).collect()
            }
            Self::Machines(fleet) => {
                let nodes = fleet.machines.iter().filter(|machine| machine.host.part == Part::Node);
                nodes.map(|machine| machine.host.name.clone()).collect()
            }
        })
    }

    /// The machine that is meant by the name of a node, or of a master's daemon.
    pub(crate) fn machine_of(&self, name: &str) -> String {
        let master = match self {
            Self::Machines(fleet) => {
                fleet.of_part(Part::Master).first().map(|machine| machine.host.name.clone())
            }
            Self::Here(_) => None,
        };
        match (name, master) {
            ("namenode" | "jobtracker" | "master", Some(master)) => master,
            _ => name.to_owned(),
        }
    }

    /// What the daemons that run need.
    pub(crate) fn resource_usage(&self) -> Result<Vec<ResourceUsage>> {
        match self {
            Self::Here(folder) => local::resource_usage(folder),
            Self::Machines(fleet) => machines::resource_usage(fleet),
        }
    }

    /// What trackers have of jobs on their disks.
    pub(crate) fn job_files(&self) -> Result<Vec<String>> {
        match self {
            Self::Here(folder) => local::job_files(folder),
            Self::Machines(fleet) => machines::job_files(fleet),
        }
    }

    /// After how much silence the NameNode gives this node up; none if it keeps no blocks.
    pub(crate) fn silence(&self, node: &str) -> Result<Option<Period>> {
        let keeps = self.nodes()?.iter().any(|name| name == node);
        Ok(if keeps { Some(self.config()?.namenode.dead_after) } else { None })
    }

    /// Sends a signal to the daemons of a node: these kinds, or all.
    pub(crate) fn signal(&self, node: &str, kinds: &[Kind], sign: FaultSignal) -> Result<Vec<String>> {
        match self {
            Self::Here(folder) => local::signal(folder, node, kinds, sign),
            Self::Machines(fleet) => machines::signal(fleet, node, kinds, sign),
        }
    }

    /// Ends daemons of a node and starts them again.
    pub(crate) async fn restart(&self, node: &str, kinds: &[Kind]) -> Result<Vec<String>> {
        match self {
            Self::Here(folder) => local::restart(folder, node, kinds).await,
            Self::Machines(fleet) => tokio::task::block_in_place(|| machines::restart(fleet, node, kinds)),
        }
    }

    /// What one sends to the other is lost, and the other way round unless it is one-way.
    pub(crate) fn partition(&self, a: &str, b: &str, one_way: bool) -> Result<Vec<String>> {
        match self {
            Self::Here(_) => Err(local::no_links()),
            Self::Machines(fleet) => machines::partition(fleet, a, b, one_way),
        }
    }

    /// Mends the links of a node, or of all.
    pub(crate) fn heal(&self, node: Option<&str>) -> Result<Vec<String>> {
        match self {
            Self::Here(_) => Err(local::no_links()),
            Self::Machines(fleet) => machines::heal(fleet, node),
        }
    }

    /// Damages a replica.
    pub(crate) fn corrupt(&self, damage: &Damage) -> Result<String> {
        match self {
            Self::Here(folder) => local::corrupt(folder, damage),
            Self::Machines(fleet) => machines::corrupt(fleet, damage),
        }
    }

    /// Lets a node's daemons run for a part of the time, until this time is over or the future is dropped.
    pub(crate) async fn slow(&self, node: &str, share: f64, time: Duration) -> Result<()> {
        match self {
            Self::Here(folder) => local::slow(folder, node, share, time).await,
            Self::Machines(fleet) => machines::slow(fleet, node, share, time).await,
        }
    }

    /// Takes all room on a node's disk but this.
    pub(crate) fn fill_disk(&self, node: &str, leave: Bytes, force: bool) -> Result<String> {
        match self {
            Self::Here(folder) => local::fill_disk(folder, node, leave, force),
            Self::Machines(fleet) => machines::fill_disk(fleet, node, leave, force),
        }
    }

    /// Gives that room back.
    pub(crate) fn clear_disk(&self, node: &str) -> Result<String> {
        let taken = match self {
            Self::Here(folder) => local::clear_disk(folder, node)?,
            Self::Machines(fleet) => machines::clear_disk(fleet, node)?,
        };
        let done = if taken { "has room again" } else { "was not filled by us: nothing to give back" };
        Ok(format!("the disk of {node} {done}"))
    }
}
