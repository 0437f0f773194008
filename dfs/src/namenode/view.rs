//! The results of queries to the state machine of the NameNode, with the same fields as in
//! `namenode.proto`. Results with the same fields in the client API are types of the client.
//!
//! `wire` converts them to protobuf types.

pub use dfs_client::{DrainBlock, DrainStatus, FileStatus, NodeState, SafemodeStatus, Usage};

use dfs_client::{
    ids::{BlockId, NodeUuid, Nonce},
    path::DfsPath,
};

/// The address of a DataNode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    /// The name of the node.
    pub node: String,
    /// The ID of the DataNode.
    pub uuid: NodeUuid,
    /// Address of the bulk protocol, `host:port`.
    pub data_addr: String,
    /// The rack of the node.
    pub rack: String,
    /// Path of the Unix socket for readers on its machine; empty if there is none.
    pub local_socket: String,
    /// The host name of the node.
    pub host: String,
}

/// A block of a file, and the nodes with its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocatedBlock {
    /// The ID of the block.
    pub block: BlockId,
    /// The nonce of the block. A replica with another nonce belongs to another block.
    pub nonce: Nonce,
    /// Offset of the block in the file.
    pub offset: u64,
    /// Length in bytes; 0 while the block is being written.
    pub length: u64,
    /// The nodes, nearest to the reader first; for a new block, in pipeline order.
    pub nodes: Vec<NodeAddress>,
    /// Names of live nodes with a damaged replica.
    pub damaged_on: Vec<String>,
}

/// A page of the result of an fsck.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FsckPage {
    /// The files that have a problem.
    pub problems: Vec<FsckFile>,
    /// Number of checked files.
    pub files: u64,
    /// Number of blocks of these files.
    pub blocks: u64,
    /// Total length of these files in bytes.
    pub bytes: u64,
    /// Whether there are more files.
    pub more: bool,
    /// The last checked file, which is `start_after` of the next page.
    pub last_path: Option<DfsPath>,
}

/// A file with a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FsckFile {
    /// The path of the file.
    pub path: DfsPath,
    /// Whether the file is open for writing.
    pub open: bool,
    /// The blocks that have a problem.
    pub blocks: Vec<FsckBlock>,
}

/// A block with a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsckBlock {
    /// The ID of the block.
    pub block: BlockId,
    /// Length in bytes.
    pub length: u64,
    /// Wanted number of replicas.
    pub wanted: u32,
    /// Number of good replicas on nodes that are neither dead nor draining.
    pub live: u32,
    /// Number of damaged replicas.
    pub corrupt: u32,
    /// Number of good replicas on draining nodes.
    pub draining: u32,
}

/// The report on a DataNode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// The address of the node.
    pub address: NodeAddress,
    /// The state of the node.
    pub state: NodeState,
    /// Used and free bytes of all data folders.
    pub capacity: u64,
    /// Bytes used by blocks.
    pub used: u64,
    /// Bytes that are free for blocks.
    pub free: u64,
    /// Number of good replicas.
    pub blocks: u64,
    /// Milliseconds since the last heartbeat.
    pub last_heartbeat_ms_ago: u64,
    /// Number of data folders in use.
    pub volumes: u32,
    /// Number of data folders that were retired after an error.
    pub failed_volumes: u32,
    /// Number of blocks that must be copied before the node is drained.
    pub blocks_left_to_drain: u64,
    /// The version of the DataNode.
    pub version: String,
    /// Whether its full report is complete.
    pub reported: bool,
}

/// Results of the checks that were requested from DataNodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    /// Number of good replicas.
    pub good: u64,
    /// Total length of the good replicas in bytes.
    pub good_bytes: u64,
    /// Number of damaged replicas.
    pub bad: u64,
}

/// A summary of the cluster. The driver adds the version of the NameNode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The ID of the cluster.
    pub cluster_id: String,
    /// The state of safemode.
    pub safemode: SafemodeStatus,
    /// Number of files.
    pub files: u64,
    /// Number of folders, without the root.
    pub dirs: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Total length of all files in bytes.
    pub bytes: u64,
    /// Used plus free bytes of all nodes that are not dead.
    pub capacity: u64,
    /// Bytes used by blocks.
    pub used: u64,
    /// Bytes that are free for blocks. A file system that several nodes of a host share is counted
    /// once.
    pub free: u64,
    /// Number of distinct file systems of the nodes.
    pub disks: u64,
    /// Number of blocks with at least one good replica, but fewer than wanted.
    pub under_replicated: u64,
    /// Number of blocks with more replicas than wanted.
    pub over_replicated: u64,
    /// Number of committed blocks without a replica on a live node.
    pub missing: u64,
    /// Number of committed blocks that have only damaged replicas.
    pub corrupt: u64,
    /// Number of damaged replicas that are not replaced yet.
    pub corrupt_replicas: u64,
    /// Number of damaged replicas found since the start of the NameNode.
    pub corrupt_found_total: u64,
    /// Number of damaged replicas replaced since the start of the NameNode.
    pub corrupt_replaced_total: u64,
    /// Number of copies that were ordered and are not complete.
    pub copies_pending: u64,
    /// Number of copies completed since the start of the NameNode.
    pub copies_done_total: u64,
    /// Number of files that are open for writing.
    pub open_files: u64,
    /// Number of records that were ever applied to this namespace.
    pub last_edit: u64,
    /// Wall clock time of the start of the NameNode, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// All nodes that have registered since the start of the NameNode, sorted by name.
    pub nodes: Vec<NodeReport>,
    /// Number of replicas of blocks that this NameNode never assigned.
    pub future_replicas: u64,
    /// Number of replicas with the ID of a known block but another nonce.
    pub stale_replicas: u64,
    /// The reasons why registrations of DataNodes were refused.
    pub refused_nodes: Vec<String>,
    /// Number of requested checks without a result.
    pub checks_pending: u64,
    /// Results of the requested checks since the start of the NameNode.
    pub checks: Checked,
    /// The epoch of this start of the NameNode.
    pub epoch: u64,
}
