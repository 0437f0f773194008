//! A machine: its tracker, its running attempts, and its files.

use super::{
    run::{Run, StoredCheckpoint},
    tracker::{Agent, AgentEvent},
};
use mrcore::{
    PerPhase, Time,
    ids::{AttemptId, JobId, TrackerId},
};
use std::collections::{BTreeMap, BTreeSet};

/// Active faults of a machine. Each is a counter, because faults can overlap.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NodeFaults {
    /// The process of the tracker is dead.
    pub(super) dead: u32,
    /// The disks are lost.
    pub(super) wiped: u32,
    /// The process of the tracker is frozen.
    pub(super) frozen: u32,
    /// The process of the DataNode is dead or frozen; its blocks exist.
    pub(super) datanode_down: u32,
    /// The machine is unreachable for all.
    pub(super) unreachable: u32,
    /// The machine is unreachable for the JobTracker.
    pub(super) partitioned: u32,
    /// Messages of the JobTracker do not arrive.
    pub(super) no_orders: u32,
}

/// State of a machine.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) slots: PerPhase<u32>,
    pub(super) speed: f64,
    /// Combined factor of all slowdowns.
    pub(super) slow: f64,
    pub(super) disk: f64,
    pub(super) faults: NodeFaults,
    /// The blocks of the machine have been replicated elsewhere.
    pub(super) replaced: bool,
    /// How often its DataNode came back.
    pub(super) returns: u32,
    /// How often the process of its tracker was started. Each has another shuffle address.
    pub(super) starts: u32,
    /// The state machine of the tracker process.
    pub(super) agent: Agent,
    /// Number and incarnation that the JobTracker has assigned.
    pub(super) number: Option<TrackerId>,
    pub(super) incarnation: u64,
    /// Number of planned connections to the JobTracker; only the newest is valid.
    pub(super) connections: u32,
    /// The next deadline of the agent that is scheduled.
    pub(super) next_beat: Option<Time>,
    /// Events that a frozen tracker has not received yet.
    pub(super) inbox: Vec<AgentEvent>,
    /// Ends of attempts that wait for the next heartbeat.
    pub(super) unreported: Vec<AgentEvent>,
    /// Attempts whose files it copies, and from which machine.
    pub(super) copying: BTreeMap<AttemptId, usize>,
    pub(super) runs: Vec<Run>,
    /// Files of jobs, which remain when the process dies.
    pub(super) outputs: BTreeSet<AttemptId>,
    pub(super) checkpoints: BTreeMap<AttemptId, StoredCheckpoint>,
    pub(super) jobs: BTreeSet<JobId>,
}

impl Node {
    /// Whether the process of the tracker runs.
    pub(super) fn is_up(&self) -> bool {
        self.faults.dead == 0
    }

    /// Whether others can fetch from its tracker.
    pub(super) fn serves(&self) -> bool {
        self.is_up() && self.faults.unreachable == 0 && self.faults.frozen == 0
    }

    /// Whether its DataNode serves blocks.
    pub(super) fn has_blocks(&self) -> bool {
        self.faults.wiped == 0 && self.faults.datanode_down == 0 && self.faults.unreachable == 0
    }

    /// Whether it can exchange messages with the JobTracker.
    pub(super) fn can_communicate(&self) -> bool {
        self.serves() && self.faults.partitioned == 0
    }

    /// Returns its current speed.
    pub(super) fn speed_now(&self) -> f64 {
        self.speed / self.slow
    }

    /// Whether nothing runs and the JobTracker knows all that has happened.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_up() || (self.agent.is_idle() && self.unreported.is_empty() && self.inbox.is_empty())
    }

    /// A new process of the tracker starts, and finds the files of earlier ones.
    pub(super) fn start_agent(&mut self) {
        let checkpoints = self.checkpoints.iter().map(|(attempt, saved)| (*attempt, saved.checkpoint));
        self.agent =
            Agent::new(self.slots, self.outputs.clone(), checkpoints.collect(), self.jobs.clone(), None);
        self.number = None;
        self.starts += 1;
    }

    /// The shuffle address of a process of its tracker.
    pub(super) fn shuffle_addr(&self, start: u32) -> String {
        format!("{}:{start}", self.name)
    }

    pub(super) fn run(&mut self, key: u64) -> Option<&mut Run> {
        self.runs.iter_mut().find(|run| run.key == key)
    }
}
