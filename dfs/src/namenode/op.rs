//! The input and output types of the state machine of the NameNode: operations and their outcomes,
//! and messages of DataNodes.

pub use dfs_client::Quota;

use dfs_client::{
    ids::{BlockId, FileId, NodeIncarnation, NodeUuid, Nonce, RequestId, Start, StartId},
    path::DfsPath,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The current time. The driver reads both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// Monotonic time in milliseconds since the start of the process, for durations.
    pub mono_ms: u64,
    /// Wall clock time in milliseconds since the Unix epoch, for users.
    pub wall_ms: u64,
}

/// The caller of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The user name. The user owns the files that it creates.
    pub user: String,
    /// The groups of the user.
    pub groups: Arc<[String]>,
    /// Whether the caller bypasses permission checks.
    pub superuser: bool,
}

impl Caller {
    /// Creates a caller that bypasses permission checks.
    pub fn superuser(user: impl Into<String>) -> Self {
        Self { user: user.into(), groups: Arc::default(), superuser: true }
    }
}

/// What happens to a file whose writer has disappeared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnAbandon {
    /// Close the file with its committed blocks.
    Close,
    /// Delete the file.
    Delete,
}

/// A block that its writer has completely written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockLength {
    /// The ID of the block.
    pub block: BlockId,
    /// Length in bytes.
    pub length: u64,
}

/// A finalised replica that a DataNode reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replica {
    /// The ID of its block.
    pub block: BlockId,
    /// The nonce in the header of its checksum file.
    pub nonce: Nonce,
    /// Length in bytes.
    pub length: u64,
}

/// A file of a fenced commit. The pieces, in order, become the file `to`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitMove {
    /// Closed files. They do not exist after the commit.
    pub pieces: Vec<DfsPath>,
    /// The path of the resulting file, which must not exist.
    pub to: DfsPath,
}

/// A change that a client requests. `namenode.proto` documents the operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Create {
        path: DfsPath,
        holder: String,
        replication: Option<u32>,
        block_size: Option<u64>,
        overwrite: bool,
        make_parents: bool,
        mode: Option<u32>,
        on_abandon: OnAbandon,
    },
    Append {
        path: DfsPath,
        holder: String,
    },
    AddBlock {
        file: FileId,
        holder: String,
        commits: Vec<BlockLength>,
        exclude_nodes: Vec<String>,
        writer_host: String,
        expected: u64,
        nonce: Nonce,
    },
    AbandonBlock {
        file: FileId,
        holder: String,
        block: BlockId,
    },
    Close {
        file: FileId,
        holder: String,
        commits: Vec<BlockLength>,
        rename_to: Option<DfsPath>,
        overwrite: bool,
    },
    Mkdir {
        path: DfsPath,
        parents: bool,
        mode: Option<u32>,
    },
    Rename {
        from: DfsPath,
        to: DfsPath,
        overwrite: bool,
    },
    Delete {
        path: DfsPath,
        recursive: bool,
    },
    SetAttributes {
        path: DfsPath,
        replication: Option<u32>,
        mode: Option<u32>,
        owner: Option<String>,
        group: Option<String>,
        modified_ms: Option<u64>,
    },
    SetQuota {
        path: DfsPath,
        quota: Quota,
    },
    Concat {
        target: DfsPath,
        sources: Vec<DfsPath>,
    },
    Fence {
        scope: String,
        /// The start of the calling JobTracker.
        start: Start,
        /// Starts of that JobTracker since the last one that was accepted.
        earlier: Vec<Start>,
    },
    Commit {
        scope: String,
        start: Start,
        commit_id: String,
        moves: Vec<CommitMove>,
        deletes: Vec<DfsPath>,
    },
    Drain {
        node: String,
        cancel: bool,
    },
}

/// The outcome of an operation. It contains what is needed to answer the request, also when the
/// request is repeated after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The operation succeeded and has no result.
    Done,
    /// A file was created, reopened, closed or concatenated.
    File(FileId),
    /// A block was added. The client writes it to these nodes, in this order.
    Block {
        /// The ID of the block.
        block: BlockId,
        /// The nodes of the pipeline.
        nodes: Vec<NodeUuid>,
    },
    /// The result of a delete: whether the path existed.
    Existed(bool),
    /// The result of a commit.
    Committed {
        /// Whether the commit had been done before.
        already_done: bool,
    },
}

/// The registration of a DataNode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The ID of the DataNode, from its data folders.
    pub uuid: NodeUuid,
    /// Identifies this start of the DataNode.
    pub incarnation: NodeIncarnation,
    /// The name of the node.
    pub node: String,
    /// Host name or address, for locality.
    pub host: String,
    /// The rack of the node.
    pub rack: String,
    /// Address of the bulk protocol, `host:port`.
    pub data_addr: String,
    /// Path of the Unix socket for readers on its machine; empty if there is none.
    pub local_socket: String,
    /// The version of the DataNode.
    pub version: String,
    /// The ID of the cluster that its data folders belong to; empty if they belong to none yet.
    pub cluster_id: String,
    /// Whether an operator has declared its data folders new, with a file `NEW` in each of them.
    pub declared_new: bool,
    /// The epoch of the NameNode start that the DataNode last registered with; 0 if there is none.
    pub seen_epoch: u64,
    /// The ID of that start.
    pub seen_start: StartId,
    /// The usage of its data folders. Each heartbeat replaces it.
    pub usage: Usage,
}

/// The data folders of a DataNode and their space in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage {
    /// Used and free bytes of all data folders.
    pub capacity: u64,
    /// Bytes used by blocks.
    pub used: u64,
    /// Bytes that are free for blocks.
    pub free: u64,
    /// The device number and the free bytes of each file system. Nodes on the same host may share a
    /// file system.
    pub disks: Vec<(u64, u64)>,
    /// Number of data folders in use.
    pub volumes: u32,
    /// Number of data folders that were retired after an error.
    pub failed_volumes: u32,
}

/// The heartbeat of a DataNode.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Heartbeat {
    /// The sequence number, which increases within an incarnation. A repeated heartbeat has the
    /// same number.
    pub seq: u64,
    /// The epoch that the DataNode has acknowledged: it executes no command of an earlier one, and
    /// this heartbeat or an earlier one reports every replica that it deleted before.
    pub epoch: u64,
    /// The usage of its data folders.
    pub usage: Usage,
    /// Replicas that were finalised since the last heartbeat.
    pub received: Vec<Replica>,
    /// Replicas that were deleted on command.
    pub deleted: Vec<BlockId>,
    /// Replicas that were found damaged and quarantined, with the reason.
    pub bad: Vec<(BlockId, String)>,
    /// Replicas that were lost, and not deleted on command: their data folder failed, or a check
    /// did not find them.
    pub lost: Vec<BlockId>,
    /// Replicas that were verified on command and are good.
    pub checked: Vec<BlockId>,
    /// Whether the DataNode is stopping, so that this is its last heartbeat.
    pub leaving: bool,
}

/// A command in the reply to a heartbeat. A repeated command has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Copy this block to these nodes.
    Copy {
        /// The ID of the block.
        block: BlockId,
        /// The nonce of the block.
        nonce: Nonce,
        /// The length of the block.
        length: u64,
        /// The target nodes, in pipeline order.
        targets: Vec<NodeUuid>,
    },
    /// Delete these replicas if they have these nonces. Quarantined replicas of these blocks are
    /// always deleted.
    Delete(Vec<(BlockId, Nonce)>),
    /// Verify this replica and report the result.
    Check(BlockId, Nonce),
}

/// The reply to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeartbeatAnswer {
    /// This incarnation is not registered: register and send a full report.
    RegisterAgain,
    /// The heartbeat is accepted. Execute these commands.
    Commands(Vec<Command>),
}

/// A request with its ID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The ID of the request. A repeated request has the same ID.
    pub id: RequestId,
    /// The caller of the operation.
    pub caller: Caller,
    pub op: Op,
}
