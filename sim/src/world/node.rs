//! A machine: its running attempts, its files, and its unsent reports.

use super::run::{Run, StoredCheckpoint};
use mrcore::{
    PerPhase, Time,
    event::{AttemptReport, Heartbeat},
    ids::{AttemptId, JobId, TrackerId},
};
use std::collections::{BTreeMap, BTreeSet};

/// Map events of a job that a tracker has received.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MapEventState {
    /// Number of received events.
    pub(super) seen: usize,
    /// Number of maps of the job.
    pub(super) maps: u32,
}

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
    pub(super) incarnation: u64,
    /// The blocks of the machine have been replicated elsewhere.
    pub(super) replaced: bool,
    /// How often its DataNode came back.
    pub(super) returns: u32,
    pub(super) number: Option<TrackerId>,
    pub(super) seq: u64,
    pub(super) acked: u64,
    /// Highest order acknowledged in the last heartbeat.
    pub(super) acked_reported: u64,
    /// The unanswered heartbeat, and the number of ends of attempts in it.
    pub(super) unanswered: Option<(Heartbeat, usize)>,
    pub(super) answered: Time,
    pub(super) next_beat: Time,
    pub(super) beat_version: u32,
    pub(super) runs: Vec<Run>,
    pub(super) ended: Vec<AttemptReport>,
    pub(super) outputs: BTreeSet<AttemptId>,
    pub(super) checkpoints: BTreeMap<AttemptId, StoredCheckpoint>,
    pub(super) jobs: BTreeSet<JobId>,
    pub(super) map_events: BTreeMap<JobId, MapEventState>,
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

    pub(super) fn run(&mut self, key: u64) -> Option<&mut Run> {
        self.runs.iter_mut().find(|run| run.key == key)
    }
}
