//! Scenario files: faults with their times, for simulated and real clusters. docs/operate/faults.md
//! describes the format. [`parse`] reads it, the simulator applies it, and `mrctl chaos run`
//! applies it to real daemons.
//!
//! A step is due at a time after the start, or when a job has made some progress. Actions and nodes
//! are written as in the arguments of `mrctl chaos`. This module does not execute steps:
//! `world/steps.rs` does in the simulator, `lab/src/chaos/` on real daemons.

mod read;
#[cfg(test)]
mod tests;
mod validate;

pub use read::{ScenarioFileError, parse};
pub(crate) use validate::node_index;

use crate::fault::Fault;
use mrcore::Span;

/// Contents of a scenario file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scenario {
    /// Steps in the order of the file.
    pub steps: Vec<Step>,
    /// Faults that only the simulator supports.
    pub faults: Vec<Fault>,
    /// Line of each fault in the file.
    pub fault_lines: Vec<usize>,
}

/// An action on the cluster with its condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Line in the file.
    pub line: usize,
    /// Condition that the step waits for.
    pub when: When,
    /// Delay after the condition is met.
    pub after: Span,
    pub action: ScenarioAction,
    /// Time after which the action is undone; `None` if it lasts until a later step undoes it.
    pub lasts: Option<Span>,
}

/// Condition that a step waits for.
#[derive(Debug, Clone, PartialEq)]
pub enum When {
    /// Time since the start.
    At(Span),
    /// Progress of a job.
    Job(JobRef, JobMark),
}

/// How a scenario refers to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobRef {
    /// The nth job, counted from 1 and including jobs that are active when the scenario starts.
    Nth(u32),
    /// The job with this ID: 7 for `job_7`.
    Number(u64),
}

/// Progress of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum JobMark {
    /// The job is submitted.
    Submitted,
    /// This fraction of its maps is done.
    Maps(f64),
    /// This fraction of its reduces is done.
    Reduces(f64),
    /// The job has ended.
    Ended,
}

/// Target of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeRef {
    /// The node with this name or, if there is none and it is `nodeN`, the nth node; also
    /// `namenode` and `jobtracker`.
    Named(String),
    /// A random node.
    Any,
    /// A random node that runs a task of this job; any node if no node runs one.
    Running(JobRef),
    /// The same node as in the previous step.
    Same,
}

/// Which daemons of a node an action affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Daemons {
    /// Both daemons.
    Both,
    /// Only the DataNode.
    Datanode,
    /// Only the TaskTracker.
    Tasktracker,
}

/// Actions. They are the same as the commands of `mrctl chaos`.
#[derive(Debug, Clone, PartialEq)]
pub enum ScenarioAction {
    /// Sends SIGKILL; undone by a restart.
    Kill { node: NodeRef, daemons: Daemons },
    /// Sends SIGSTOP; undone by SIGCONT.
    Stop { node: NodeRef, daemons: Daemons },
    /// Sends SIGCONT.
    Cont { node: NodeRef, daemons: Daemons },
    /// Starts the daemon. A running daemon is killed first.
    Restart { node: NodeRef, daemons: Daemons },
    /// Drops messages from `from` to `to`, and also the other direction unless `one_way` is set.
    Partition { from: NodeRef, to: NodeRef, one_way: bool },
    /// Restores all links of a node, or all links of the cluster.
    Heal { node: Option<NodeRef> },
    /// Damages a replica of this block, or a random replica on the node. `cut` truncates it instead
    /// of flipping a byte.
    Corrupt { node: NodeRef, block: Option<String>, cut: bool },
    /// Lets the daemons run only for this fraction of the time.
    Slow { node: NodeRef, share: f64 },
    /// Fills the disk until `leave` bytes are free; undone by freeing the space.
    FillDisk { node: NodeRef, leave: u64 },
}

impl ScenarioAction {
    /// Returns the name of the action in scenario files.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Kill { .. } => "kill",
            Self::Stop { .. } => "stop",
            Self::Cont { .. } => "cont",
            Self::Restart { .. } => "restart",
            Self::Partition { .. } => "partition",
            Self::Heal { .. } => "heal",
            Self::Corrupt { .. } => "corrupt",
            Self::Slow { .. } => "slow",
            Self::FillDisk { .. } => "fill-disk",
        }
    }

    /// Returns the target node. If there are two, returns the first.
    pub fn node(&self) -> Option<&NodeRef> {
        match self {
            Self::Kill { node, .. }
            | Self::Stop { node, .. }
            | Self::Cont { node, .. }
            | Self::Restart { node, .. }
            | Self::Partition { from: node, .. }
            | Self::Corrupt { node, .. }
            | Self::Slow { node, .. }
            | Self::FillDisk { node, .. } => Some(node),
            Self::Heal { node } => node.as_ref(),
        }
    }

    /// Returns why the simulator skips the action; `None` if it executes it.
    pub fn not_simulated(&self) -> Option<&'static str> {
        let master =
            |who: &NodeRef| matches!(who, NodeRef::Named(name) if name == "jobtracker" || name == "master");
        match self {
            Self::Corrupt { .. } | Self::FillDisk { .. } => Some("simulated disks are never damaged or full"),
            Self::Partition { from, to, .. } if !master(from) && !master(to) => {
                Some("simulated nodes always reach each other: use the jobtracker as one side")
            }
            Self::Slow { node, .. } if master(node) => Some("the simulated jobtracker takes no time"),
            _ if self.node().is_some_and(|who| *who == NodeRef::Named("namenode".into())) => {
                Some("the simulated cluster has no namenode")
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for NodeRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Any => f.write_str("any"),
            Self::Running(JobRef::Nth(number)) => write!(f, "any running job {number}"),
            Self::Running(JobRef::Number(number)) => write!(f, "any running job_{number}"),
            Self::Same => f.write_str("same"),
        }
    }
}
