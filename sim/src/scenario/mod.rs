//! Scenario files: what goes wrong, and when, for a simulated cluster and a real one alike. The format is described in
//! docs/operate/faults.md; [`parse`] reads it, the simulator plays it, `mrctl chaos run` does it to real daemons.
//!
//! A step comes at a time after the start, or when a job has come so far. What it does to whom is written as one says it
//! to `mrctl chaos`. Deliberately absent: what a step does for real.

mod read;
#[cfg(test)]
mod tests;
mod validate;

pub use read::{ScenarioFileError, parse};
pub(crate) use validate::number;

use crate::fault::Fault;
use mrcore::Span;

/// What a file says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scenario {
    /// What happens, in the order of the file.
    pub steps: Vec<Step>,
    /// Faults that only the simulator has.
    pub faults: Vec<Fault>,
    /// Where the file says each of these.
    pub fault_lines: Vec<usize>,
}

/// Something that is done to the cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Where the file says it.
    pub line: usize,
    /// What it waits for.
    pub when: When,
    /// And so much longer.
    pub after: Span,
    /// What is done.
    pub action: ScenarioAction,
    /// After this long it is undone; if it is not said, a later step may undo it.
    pub lasts: Option<Span>,
}

/// What a step waits for.
#[derive(Debug, Clone, PartialEq)]
pub enum When {
    /// So long after the start.
    At(Span),
    /// A job has come so far.
    Job(JobRef, JobMark),
}

/// Which job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobRef {
    /// The first is 1; jobs that run when the scenario begins count.
    Nth(u32),
    /// The job of this number, as `job_7`.
    Number(u64),
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum JobMark {
    /// It is there.
    Submitted,
    /// This part of its maps is done.
    Maps(f64),
    /// This part of its reduces is done.
    Reduces(f64),
    /// It has ended.
    Over,
}

/// Whom a step is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeRef {
    /// The node of this name or, if there is none and it is `nodeN`, the nth; `namenode` and `jobtracker`.
    Named(String),
    /// A node by chance.
    Any,
    /// A node by chance that runs a task of this job; any if none does.
    Running(JobRef),
    /// The node that the last step was for.
    Same,
}

/// Which daemon of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Daemons {
    /// Both.
    Both,
    /// The one that keeps blocks.
    Datanode,
    /// The one that runs tasks.
    Tasktracker,
}

/// What is done: the verbs of `mrctl chaos`.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum ScenarioAction {
    /// SIGKILL; undone by a restart.
    Kill { node: NodeRef, half: Daemons },
    /// SIGSTOP; undone by SIGCONT.
    Stop { node: NodeRef, half: Daemons },
    /// SIGCONT.
    Cont { node: NodeRef, half: Daemons },
    /// Started again; one that runs is ended first.
    Restart { node: NodeRef, half: Daemons },
    /// What the one sends to the other is lost, and the other way round unless it is one-way.
    Partition { from: NodeRef, to: NodeRef, one_way: bool },
    /// All links of a node, or all of the cluster, work again.
    Heal { node: Option<NodeRef> },
    /// A replica is damaged: of this block, or any on the node.
    Corrupt { node: NodeRef, block: Option<String>, cut: bool },
    /// Its daemons run for a part of the time.
    Slow { node: NodeRef, share: f64 },
    /// All room on its disk but this is taken; undone by giving it back.
    FillDisk { node: NodeRef, leave: u64 },
}

impl ScenarioAction {
    /// The verb.
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

    /// Whom it is for; the first of two.
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

    /// Why the simulator has nothing like it; none if it has.
    pub fn not_simulated(&self) -> Option<&'static str> {
        let master =
            |who: &NodeRef| matches!(who, NodeRef::Named(name) if name == "jobtracker" || name == "master");
        match self {
            Self::Corrupt { .. } | Self::FillDisk { .. } => Some("its disks neither lie nor fill"),
            Self::Partition { from, to, .. } if !master(from) && !master(to) => {
                Some("its nodes always reach each other: name the jobtracker")
            }
            Self::Slow { node, .. } if master(node) => Some("its jobtracker takes no time"),
            _ if self.node().is_some_and(|who| *who == NodeRef::Named("namenode".into())) => {
                Some("it has no namenode")
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
