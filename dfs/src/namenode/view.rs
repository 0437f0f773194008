//! What the NameNode's state shows of itself: plain answers, field for field as in namenode.proto.
//!
//! Deliberately absent: wire types. The driver turns these into them.

use crate::{
    ids::{BlockId, FileId, NodeUuid, Nonce},
    namenode::op::Quota,
    path::DfsPath,
};

/// A file or folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStatus {
    /// Where it is now.
    pub path: DfsPath,
    /// A folder.
    pub is_dir: bool,
    /// Its id, which outlives its name.
    pub file_id: FileId,
    /// Bytes that can be read; 0 for a folder.
    pub length: u64,
    /// Replicas wanted; 0 for a folder.
    pub replication: u32,
    /// Largest block; 0 for a folder.
    pub block_size: u64,
    /// Who made it.
    pub owner: String,
    /// Its group.
    pub group: String,
    /// Permission bits.
    pub mode: u32,
    /// Wall clock of the last change.
    pub modified_ms: u64,
    /// Access times are not kept: the same as `modified_ms`.
    pub accessed_ms: u64,
    /// A writer holds it.
    pub open: bool,
    /// How many blocks it has, unfinished ones included.
    pub blocks: u32,
    /// Limits of a folder, when any is set.
    pub quota: Option<Quota>,
}

/// Where to reach a DataNode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    /// Its name.
    pub node: String,
    /// Its identity.
    pub uuid: NodeUuid,
    /// `host:port` of the bulk protocol.
    pub data_addr: String,
    /// Its rack.
    pub rack: String,
    /// Unix socket for readers on its machine; empty if none.
    pub local_socket: String,
    /// Its host.
    pub host: String,
}

/// A block and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocatedBlock {
    /// Which.
    pub block: BlockId,
    /// Its nonce: replicas with another are of another block.
    pub nonce: Nonce,
    /// Of its first byte in the file.
    pub offset: u64,
    /// Its bytes; 0 while it is being written.
    pub length: u64,
    /// Nearest to the reader first; in pipeline order for a new block.
    pub nodes: Vec<NodeAddress>,
    /// Names of nodes that are there and have a damaged replica.
    pub damaged_on: Vec<String>,
}

/// What a folder (or file) holds, itself not counted for a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Files below.
    pub files: u64,
    /// Folders below.
    pub dirs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes times replication; a block counts once it is committed.
    pub space: u64,
    /// Limits, if any is set.
    pub quota: Option<Quota>,
}

/// One page of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FsckPage {
    /// Files that are not healthy.
    pub problems: Vec<FsckFile>,
    /// Files looked at.
    pub files: u64,
    /// Their blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// There is another page.
    pub more: bool,
    /// The last file looked at: `start_after` of the next page.
    pub last_path: Option<DfsPath>,
}

/// A file with a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FsckFile {
    /// Which.
    pub path: DfsPath,
    /// A writer holds it.
    pub open: bool,
    /// Its blocks with a problem.
    pub blocks: Vec<FsckBlock>,
}

/// A block with a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsckBlock {
    /// Which.
    pub block: BlockId,
    /// Its bytes.
    pub length: u64,
    /// Replicas wanted.
    pub wanted: u32,
    /// Good replicas on nodes that stay.
    pub live: u32,
    /// Damaged replicas.
    pub corrupt: u32,
    /// Good replicas on nodes that leave.
    pub draining: u32,
}

/// Whether and why changes are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SafemodeStatus {
    /// Changes are refused.
    pub on: bool,
    /// Why; may also hold a warning while off.
    pub reason: String,
    /// Blocks with a reported replica.
    pub blocks_seen: u64,
    /// Blocks that must be seen.
    pub blocks_needed: u64,
}

/// How a DataNode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// Heard of.
    Live,
    /// Silent for a while: not used for new blocks.
    Suspect,
    /// Silent for long: its replicas do not count.
    Dead,
    /// Being emptied.
    Draining,
    /// Everything it has is elsewhere too.
    Drained,
}

/// How far a drain is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainStatus {
    /// The node's state.
    pub state: NodeState,
    /// Blocks that want more replicas on nodes that stay.
    pub blocks_left: u64,
    /// All of them have as many as the nodes that stay can hold: it will not get further.
    pub stuck: bool,
    /// DataNodes that are neither dead nor draining.
    pub staying: u32,
    /// Some of the blocks left.
    pub examples: Vec<DrainBlock>,
}

/// A block that keeps a node from being drained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainBlock {
    /// Which.
    pub block: BlockId,
    /// Of which file.
    pub path: DfsPath,
    /// Replicas wanted; 0 while it is being written.
    pub wanted: u32,
    /// Good replicas on nodes that stay.
    pub have: u32,
    /// Why there are no more.
    pub why: String,
}

/// One DataNode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// Where.
    pub address: NodeAddress,
    /// How.
    pub state: NodeState,
    /// Room in all folders, bytes.
    pub capacity: u64,
    /// Taken by blocks.
    pub used: u64,
    /// Left for blocks.
    pub free: u64,
    /// Good replicas.
    pub blocks: u64,
    /// Silence so far.
    pub last_heartbeat_ms_ago: u64,
    /// Folders in use.
    pub volumes: u32,
    /// Folders retired after an error.
    pub failed_volumes: u32,
    /// Blocks to copy before it may leave.
    pub blocks_left_to_drain: u64,
    /// Its build.
    pub version: String,
}

/// Replicas that DataNodes were asked to re-read and have reported on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    /// Sound ones.
    pub good: u64,
    /// Their bytes.
    pub good_bytes: u64,
    /// Damaged ones.
    pub bad: u64,
}

/// The whole cluster. The driver adds its own version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Which cluster.
    pub cluster_id: String,
    /// Whether changes are refused.
    pub safemode: SafemodeStatus,
    /// All files.
    pub files: u64,
    /// All folders, the root not counted.
    pub dirs: u64,
    /// All blocks.
    pub blocks: u64,
    /// All bytes, each once.
    pub bytes: u64,
    /// Used and free over all nodes that are not dead.
    pub capacity: u64,
    /// Taken by blocks.
    pub used: u64,
    /// Left for blocks; a file system that several nodes of a host share counts once.
    pub free: u64,
    /// File systems, each once.
    pub disks: u64,
    /// Blocks with a good replica but fewer than wanted.
    pub under_replicated: u64,
    /// Blocks with more than wanted.
    pub over_replicated: u64,
    /// Finished blocks of which no node that is there has a replica.
    pub missing: u64,
    /// Finished blocks of which only damaged replicas are there.
    pub corrupt: u64,
    /// Damaged replicas not yet replaced.
    pub corrupt_replicas: u64,
    /// Damaged replicas found since the start.
    pub corrupt_found_total: u64,
    /// Damaged replicas replaced since the start.
    pub corrupt_replaced_total: u64,
    /// Copies under way.
    pub copies_pending: u64,
    /// Copies done since the start.
    pub copies_done_total: u64,
    /// Files with a writer.
    pub open_files: u64,
    /// Records applied in the life of this namespace.
    pub last_edit: u64,
    /// Wall clock of the start.
    pub started_ms: u64,
    /// Every node ever registered since the start, by name.
    pub nodes: Vec<NodeReport>,
    /// Replicas of blocks that this NameNode never gave out.
    pub future_replicas: u64,
    /// Replicas with the id of a known block and another nonce.
    pub stale_replicas: u64,
    /// DataNodes that were refused because they have seen a newer NameNode, and why.
    pub refused_nodes: Vec<String>,
    /// Replicas that DataNodes were asked to re-read and have not reported on.
    pub checks_pending: u64,
    /// Replicas re-read on request since the start.
    pub checks: Checked,
    /// The number of this start.
    pub epoch: u64,
}
