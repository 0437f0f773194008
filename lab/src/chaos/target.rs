//! The target of faults: a local cluster, or a cluster on several machines. The methods return
//! lines that describe what was done; they print nothing.

use super::{
    local, machines,
    node::{Damage, FaultSignal, ResourceUsage},
};
use anyhow::{Result, bail};
use clusters::{
    local::{ClusterState, Kind},
    locate::Target,
    remote::{Fleet, MachineRole},
};
use daemon::{Bytes, Period, config::Config};
use std::{path::PathBuf, time::Duration};

/// The cluster that faults act on.
pub(crate) enum ChaosTarget {
    /// The folder of a local cluster.
    Local(PathBuf),
    Machines(Fleet),
}

impl ChaosTarget {
    pub(crate) fn local(folder: PathBuf) -> Result<Self> {
        ClusterState::require(&folder)?;
        Ok(Self::Local(folder))
    }

    pub(crate) fn config_file(&self) -> PathBuf {
        match self {
            Self::Local(folder) => folder.join("fermata.toml"),
            Self::Machines(fleet) => fleet.cluster.join("fermata.toml"),
        }
    }

    /// Returns the target for commands that connect to this cluster.
    pub(crate) fn client_target(&self) -> Target {
        Target::of_config(&self.config_file())
    }

    pub(crate) fn config(&self) -> Result<Config> {
        Ok(Config::load(Some(&self.config_file()))?)
    }

    /// Returns the names of the nodes of the cluster, in order.
    pub(crate) fn nodes(&self) -> Result<Vec<String>> {
        Ok(match self {
            Self::Local(folder) => {
                let state = ClusterState::require(folder)?;
                let nodes = state.daemons.iter().filter(|daemon| daemon.kind == Kind::Datanode);
                nodes.map(|daemon| daemon.name.clone()).collect()
            }
            Self::Machines(fleet) => {
                let nodes = fleet.machines.iter().filter(|machine| machine.host.role == MachineRole::Node);
                nodes.map(|machine| machine.host.name.clone()).collect()
            }
        })
    }

    /// Returns the name of the machine of a node or of a master.
    pub(crate) fn machine_of(&self, name: &str) -> String {
        let master = match self {
            Self::Machines(fleet) => {
                fleet.with_role(MachineRole::Master).first().map(|machine| machine.host.name.clone())
            }
            Self::Local(_) => None,
        };
        match (name, master) {
            ("namenode" | "jobtracker" | "master", Some(master)) => master,
            _ => name.to_owned(),
        }
    }

    /// Returns the resources that the running daemons use.
    pub(crate) fn resource_usage(&self) -> Result<Vec<ResourceUsage>> {
        match self {
            Self::Local(folder) => local::resource_usage(folder),
            Self::Machines(fleet) => machines::resource_usage(fleet),
        }
    }

    /// Returns the files of jobs on the disks of trackers.
    pub(crate) fn job_files(&self) -> Result<Vec<String>> {
        match self {
            Self::Local(folder) => local::job_files(folder),
            Self::Machines(fleet) => machines::job_files(fleet),
        }
    }

    /// Returns how long after the last heartbeat the NameNode declares this node dead; None if it
    /// is no DataNode.
    pub(crate) fn dead_after(&self, node: &str) -> Result<Option<Period>> {
        let is_datanode = self.nodes()?.iter().any(|name| name == node);
        Ok(if is_datanode { Some(self.config()?.namenode.dead_after) } else { None })
    }

    /// Sends a signal to the daemons of a node: those of these kinds, or all if `kinds` is empty.
    /// Returns no lines if the signal had no effect.
    pub(crate) fn signal(&self, node: &str, kinds: &[Kind], sign: FaultSignal) -> Result<Vec<String>> {
        match self {
            Self::Local(folder) => local::signal(folder, node, kinds, sign),
            Self::Machines(fleet) => machines::signal(fleet, node, kinds, sign),
        }
    }

    /// Continues the frozen daemons of a node. It is an error if none of them is frozen.
    pub(crate) fn cont(&self, node: &str, kinds: &[Kind]) -> Result<Vec<String>> {
        let lines = self.signal(node, kinds, FaultSignal::Cont)?;
        if lines.is_empty() {
            bail!("{node} is already running: `mrctl chaos cont` is for what `mrctl chaos stop` has frozen");
        }
        Ok(lines)
    }

    /// Freezes the daemons of a node. It is an error if all of them are frozen.
    pub(crate) fn stop(&self, node: &str, kinds: &[Kind]) -> Result<Vec<String>> {
        let lines = self.signal(node, kinds, FaultSignal::Stop)?;
        if lines.is_empty() {
            bail!("{node} is already frozen: continue it with `mrctl chaos cont {node}`");
        }
        Ok(lines)
    }

    /// Stops daemons of a node and starts them again.
    pub(crate) async fn restart(&self, node: &str, kinds: &[Kind]) -> Result<Vec<String>> {
        match self {
            Self::Local(folder) => local::restart(folder, node, kinds).await,
            Self::Machines(fleet) => tokio::task::block_in_place(|| machines::restart(fleet, node, kinds)),
        }
    }

    /// Drops packets from `a` to `b`, and in the other direction unless `one_way`.
    pub(crate) fn partition(&self, a: &str, b: &str, one_way: bool) -> Result<Vec<String>> {
        match self {
            Self::Local(_) => Err(local::partition_not_supported_error()),
            Self::Machines(fleet) => machines::partition(fleet, a, b, one_way),
        }
    }

    /// Restores the network links of a node, or of all nodes.
    pub(crate) fn heal(&self, node: Option<&str>) -> Result<Vec<String>> {
        match self {
            Self::Local(_) => Err(local::partition_not_supported_error()),
            Self::Machines(fleet) => machines::heal(fleet, node),
        }
    }

    pub(crate) fn corrupt(&self, damage: &Damage) -> Result<String> {
        match self {
            Self::Local(folder) => local::corrupt(folder, damage),
            Self::Machines(fleet) => machines::corrupt(fleet, damage),
        }
    }

    /// Lets the daemons of a node run only for the fraction `share` of the time, until `time` is
    /// over or the future is dropped.
    pub(crate) async fn slow(&self, node: &str, share: f64, time: Duration) -> Result<()> {
        match self {
            Self::Local(folder) => local::slow(folder, node, share, time).await,
            Self::Machines(fleet) => machines::slow(fleet, node, share, time).await,
        }
    }

    /// Fills the disk of a node, except for this amount of space.
    pub(crate) fn fill_disk(&self, node: &str, leave: Bytes, force: bool) -> Result<String> {
        match self {
            Self::Local(folder) => local::fill_disk(folder, node, leave, force),
            Self::Machines(fleet) => machines::fill_disk(fleet, node, leave, force),
        }
    }

    /// Frees the space that `fill_disk` has taken.
    pub(crate) fn clear_disk(&self, node: &str) -> Result<String> {
        let removed = match self {
            Self::Local(folder) => local::clear_disk(folder, node)?,
            Self::Machines(fleet) => machines::clear_disk(fleet, node)?,
        };
        let done = if removed { "has free space again" } else { "was not filled by mrctl: nothing to free" };
        Ok(format!("the disk of {node} {done}"))
    }
}
