//! A machine: its tracker, its running attempts, and its files.

use super::{
    run::{Run, StoredCheckpoint},
    tracker::{Agent, AgentEvent},
};
use mrcore::{
    PerPhase, Phase, Time,
    ids::{AttemptId, JobId, TaskId, TrackerId},
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
    /// The process of the DataNode is dead or frozen; its blocks are intact.
    pub(super) datanode_down: u32,
    /// No other machine can reach this machine.
    pub(super) unreachable: u32,
    /// The JobTracker cannot reach this machine, but other machines can.
    pub(super) partitioned: u32,
    /// Messages of the JobTracker do not arrive.
    pub(super) no_orders: u32,
}

/// State of a machine.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) rack: String,
    pub(super) slots: PerPhase<u32>,
    pub(super) speed: f64,
    pub(super) cores: f64,
    /// Combined factor of all slowdowns.
    pub(super) slowdown: f64,
    /// Memory for cached files, including what attempts take from it.
    pub(super) cache: u64,
    /// Memory that each attempt takes from the cache; 0 if that is not modelled.
    pub(super) task_memory: u64,
    /// How many bytes of its input a reduce has in memory. What exceeds them is in files.
    pub(super) task_buffer: u64,
    pub(super) faults: NodeFaults,
    /// Whether the blocks of the machine have been replicated elsewhere.
    pub(super) blocks_replaced: bool,
    /// How often its DataNode came back after a fault.
    pub(super) returns: u32,
    /// How often the process of its tracker was started. Each process has a different shuffle
    /// address.
    pub(super) starts: u32,
    /// The state machine of the tracker process.
    pub(super) agent: Agent,
    /// ID that the JobTracker has assigned to its tracker.
    pub(super) tracker_id: Option<TrackerId>,
    /// Incarnation that the JobTracker has assigned to the tracker process.
    pub(super) incarnation: u64,
    /// Number of the newest order that has reached the tracker since its registration.
    pub(super) newest_order: u64,
    /// Number of scheduled attempts to connect to the JobTracker; only the newest is valid.
    pub(super) connections: u32,
    /// When the next deadline of the agent is scheduled.
    pub(super) next_agent_deadline: Option<Time>,
    /// Events that a frozen tracker has not received yet.
    pub(super) inbox: Vec<AgentEvent>,
    /// Whether a slot was free after its last heartbeat although a task could use it.
    pub(super) idle: PerPhase<bool>,
    /// Ended attempts that wait to be reported with the next heartbeat.
    pub(super) unreported: Vec<AgentEvent>,
    /// Attempts whose files it copies, with the keys of the copies.
    pub(super) copying: BTreeMap<AttemptId, u64>,
    pub(super) runs: Vec<Run>,
    /// Attempts whose map output is on its disks, with the bytes. Like checkpoints, outputs remain
    /// when the process dies.
    pub(super) outputs: BTreeMap<AttemptId, u64>,
    /// Bytes of all outputs.
    pub(super) output_bytes: u64,
    pub(super) checkpoints: BTreeMap<AttemptId, StoredCheckpoint>,
    /// Jobs that have files on its disks.
    pub(super) jobs: BTreeSet<JobId>,
}

impl Node {
    /// Whether the process of the tracker exists. It may be frozen.
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

    /// Returns the current speed of each of its tasks: that of a core, or less if more tasks compute
    /// than there are cores.
    pub(super) fn speed_now(&self) -> f64 {
        let mut speed = self.speed / self.slowdown;
        if self.cores.is_finite() {
            let computing = self.runs.iter().filter(|run| run.computes()).count();
            speed *= (self.cores / computing.max(1) as f64).min(1.0);
        }
        speed
    }

    /// Whether nothing runs and the JobTracker knows all that has happened.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_up() || (self.agent.is_idle() && self.unreported.is_empty() && self.inbox.is_empty())
    }

    /// Starts a new tracker process, which finds the files of earlier processes.
    pub(super) fn start_agent(&mut self) {
        let checkpoints = self.checkpoints.iter().map(|(attempt, saved)| (*attempt, saved.checkpoint));
        self.agent = Agent::new(
            self.slots,
            self.outputs.keys().copied().collect(),
            checkpoints.collect(),
            self.jobs.clone(),
            None,
        );
        self.tracker_id = None;
        self.starts += 1;
    }

    /// Adds a map output to its disks.
    pub(super) fn add_output(&mut self, attempt: AttemptId, bytes: u64) {
        let before = self.outputs.insert(attempt, bytes).unwrap_or(0);
        self.output_bytes = self.output_bytes - before + bytes;
    }

    /// Deletes the map outputs of a job.
    pub(super) fn delete_outputs(&mut self, job: JobId) {
        let first = |job| TaskId { job, phase: Phase::Map, index: 0 }.attempt(0);
        let mut later = self.outputs.split_off(&first(job));
        let mut others = later.split_off(&first(JobId(job.0 + 1)));
        self.output_bytes -= later.values().sum::<u64>();
        self.outputs.append(&mut others);
    }

    /// Deletes all map outputs.
    pub(super) fn lose_outputs(&mut self) {
        self.outputs.clear();
        self.output_bytes = 0;
    }

    /// Returns the fraction of the temporary files of tasks that must be written to disk and read
    /// from disk, because they do not fit into the memory for cached files. It is computed from the
    /// map outputs; if attempts take memory, from what they leave, and also from checkpoints and
    /// spilled data of reduces.
    pub(super) fn uncached_share(&self) -> f64 {
        let (mut cache, mut files) = (self.cache, self.output_bytes as f64);
        if self.task_memory > 0 {
            cache = cache.saturating_sub(self.task_memory.saturating_mul(self.runs.len() as u64));
            let checkpoints = self.checkpoints.values().map(|saved| saved.checkpoint.bytes);
            files += checkpoints.sum::<u64>() as f64;
            files += self.runs.iter().map(|run| run.spilled_bytes(self.task_buffer)).sum::<f64>();
        }
        1.0 - (cache as f64 / files.max(1.0)).min(1.0)
    }

    /// Returns the shuffle address of the tracker process with this start number.
    pub(super) fn shuffle_addr(&self, start: u32) -> String {
        format!("{}:{start}", self.name)
    }

    pub(super) fn run(&mut self, key: u64) -> Option<&mut Run> {
        self.runs.iter_mut().find(|run| run.key == key)
    }
}
