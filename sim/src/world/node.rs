//! A machine as the world sees it: what its tracker runs, has, and has not told yet.

use super::run::{Run, StoredCheckpoint};
use mrcore::{
    PerPhase, Time,
    event::{AttemptReport, Heartbeat},
    ids::{AttemptId, JobId, TrackerId},
};
use std::collections::{BTreeMap, BTreeSet};

/// What a tracker has been told of a job's maps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MapEventState {
    /// Entries of its list.
    pub(super) seen: usize,
    /// How many maps it has.
    pub(super) maps: u32,
}

/// Why a machine is not well. Several things can be wrong at once, so each is counted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NodeFaults {
    /// The tracker's process is gone.
    pub(super) dead: u32,
    /// So are its disks.
    pub(super) wiped: u32,
    /// The tracker's process stands still.
    pub(super) frozen: u32,
    /// The DataNode's process is gone or stands still; its blocks are there.
    pub(super) datanode_down: u32,
    /// Nobody reaches it.
    pub(super) unreachable: u32,
    /// The JobTracker does not.
    pub(super) partitioned: u32,
    /// It does not hear the JobTracker.
    pub(super) no_orders: u32,
}

/// A machine.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) slots: PerPhase<u32>,
    pub(super) speed: f64,
    /// What slows it down, all together.
    pub(super) slow: f64,
    pub(super) disk: f64,
    pub(super) faults_of: NodeFaults,
    pub(super) incarnation: u64,
    /// It is away for so long that the file system has made up for its blocks.
    pub(super) replaced: bool,
    /// How often its blocks were there again.
    pub(super) returns: u32,
    pub(super) number: Option<TrackerId>,
    pub(super) seq: u64,
    pub(super) acked: u64,
    /// As its last heartbeat said.
    pub(super) acked_reported: u64,
    /// The heartbeat that has not been answered, and how many ends of attempts it tells.
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
    /// Whether its tracker runs.
    pub(super) fn is_up(&self) -> bool {
        self.faults_of.dead == 0
    }

    /// Whether others can fetch from its tracker.
    pub(super) fn serves(&self) -> bool {
        self.is_up() && self.faults_of.unreachable == 0 && self.faults_of.frozen == 0
    }

    /// Whether its DataNode gives out blocks.
    pub(super) fn has_blocks(&self) -> bool {
        self.faults_of.wiped == 0 && self.faults_of.datanode_down == 0 && self.faults_of.unreachable == 0
    }

    /// Whether it and the JobTracker can speak.
    pub(super) fn can_communicate(&self) -> bool {
        self.serves() && self.faults_of.partitioned == 0
    }

    /// How fast it computes now.
    pub(super) fn speed_now(&self) -> f64 {
        self.speed / self.slow
    }

    pub(super) fn run(&mut self, key: u64) -> Option<&mut Run> {
        self.runs.iter_mut().find(|run| run.key == key)
    }
}
