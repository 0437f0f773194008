//! The NameNode's state machine: operations and reports in, outcomes, records and commands out.

#![allow(unused_variables, reason = "first commit: signatures only")]

use super::{
    namespace::{Namespace, Record},
    op::{BlockLength, Heartbeat, HeartbeatAnswer, Now, Outcome, Registration, Request},
    settings::Settings,
    view::{FileStatus, FsckPage, LocatedBlock, NodeState, Report, SafemodeStatus, Usage},
};
use crate::{
    error::Error,
    ids::{BlockId, FileId, Incarnation, NodeUuid},
    path::DfsPath,
};

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handled {
    /// The answer.
    pub outcome: Outcome,
    /// To be made durable before the answer leaves; None for a repeat.
    pub record: Option<Record>,
}

/// Everything the NameNode knows.
#[derive(Debug)]
pub struct State {}

impl State {
    /// Begins with what the log held. In safemode if there are blocks to wait for.
    pub fn new(settings: Settings, namespace: Namespace, now: Now) -> State {
        todo!()
    }
    /// One client operation. Refusals change nothing; repeats get the same outcome and no record.
    pub fn handle(&mut self, now: Now, request: Request) -> Result<Handled, Error> {
        todo!()
    }
    /// What time brings: expiry, repair, the end of safemode. Every 200 ms or so.
    pub fn tick(&mut self, now: Now) -> Vec<Record> {
        todo!()
    }
    /// A DataNode introduces itself.
    pub fn register(&mut self, now: Now, registration: Registration) -> Result<(), Error> {
        todo!()
    }
    /// A chunk of everything on a DataNode's disks; takes effect with the last.
    pub fn full_report(
        &mut self,
        now: Now,
        node: NodeUuid,
        incarnation: Incarnation,
        chunk: u32,
        last: bool,
        replicas: Vec<BlockLength>,
    ) -> Result<(), Error> {
        todo!()
    }
    /// A DataNode's regular word.
    pub fn heartbeat(
        &mut self,
        now: Now,
        node: NodeUuid,
        incarnation: Incarnation,
        heartbeat: Heartbeat,
    ) -> HeartbeatAnswer {
        todo!()
    }
    /// The holder lives: its files stay its own for this many milliseconds more.
    pub fn renew_lease(&mut self, now: Now, holder: &str) -> Result<u64, Error> {
        todo!()
    }
    /// A client could not use a replica: its node is told to check it.
    pub fn report_bad_replica(
        &mut self,
        now: Now,
        block: BlockId,
        node: NodeUuid,
        reason: &str,
    ) -> Result<(), Error> {
        todo!()
    }
    /// An operator's wish. Off also ends the wait for blocks.
    pub fn set_safemode(&mut self, on: bool) {
        todo!()
    }
    /// The edit log's disk is short of room: this many bytes are left. None when it has room again.
    pub fn set_disk_low(&mut self, free: Option<u64>) {
        todo!()
    }
    /// A file or folder by path.
    pub fn stat(&self, path: &DfsPath) -> Result<FileStatus, Error> {
        todo!()
    }
    /// A file or folder by id.
    pub fn stat_id(&self, id: FileId) -> Result<FileStatus, Error> {
        todo!()
    }
    /// A folder's entries by name after `start_after` (empty: from the first), and whether there are more.
    /// A file lists as itself.
    pub fn list(
        &self,
        path: &DfsPath,
        start_after: &str,
        limit: usize,
    ) -> Result<(Vec<FileStatus>, bool), Error> {
        todo!()
    }
    /// A file and the blocks that hold `offset..offset + length`.
    pub fn locate(
        &self,
        path: &DfsPath,
        offset: u64,
        length: u64,
        reader_host: &str,
    ) -> Result<(FileStatus, Vec<LocatedBlock>), Error> {
        todo!()
    }
    /// The answer to AddBlock: a new block and its pipeline.
    pub fn located_block(&self, block: BlockId, nodes: &[NodeUuid]) -> Result<LocatedBlock, Error> {
        todo!()
    }
    /// What is below.
    pub fn usage(&self, path: &DfsPath) -> Result<Usage, Error> {
        todo!()
    }
    /// Checks up to `limit` files below `path`, after `start_after`.
    pub fn fsck(
        &self,
        path: &DfsPath,
        start_after: Option<&DfsPath>,
        limit: usize,
    ) -> Result<FsckPage, Error> {
        todo!()
    }
    /// The cluster at a glance.
    pub fn report(&self, now: Now) -> Report {
        todo!()
    }
    /// Whether changes are refused.
    pub fn safemode(&self) -> SafemodeStatus {
        todo!()
    }
    /// The answer to Drain: how a node is, and how many blocks must be copied before it may leave.
    pub fn drain_status(&self, node: &str) -> Result<(NodeState, u64), Error> {
        todo!()
    }
    /// Which cluster.
    pub fn cluster_id(&self) -> &str {
        todo!()
    }
    /// How long a lease lasts.
    pub fn lease_ms(&self) -> u64 {
        todo!()
    }
    /// The address of a node for Copy commands' targets.
    pub fn node_address(&self, node: NodeUuid) -> Option<super::view::NodeAddress> {
        todo!()
    }
    /// The durable half, for snapshots.
    pub fn namespace(&self) -> &Namespace {
        todo!()
    }
    /// Checks everything against everything; for tests and `--check`.
    pub fn invariants(&self) -> Result<(), String> {
        todo!()
    }
}
