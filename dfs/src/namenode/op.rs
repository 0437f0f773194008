//! The language of the NameNode's state machine: what can be asked, what comes of it, what DataNodes tell.

use crate::{
    ids::{BlockId, FileId, Incarnation, NodeUuid, Nonce, RequestId, StartId},
    path::DfsPath,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The two clocks, read by the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// Monotonic, milliseconds since the process began: for every duration.
    pub mono_ms: u64,
    /// Wall clock, milliseconds since the epoch: for times that people see.
    pub wall_ms: u64,
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// User name; owns what it creates.
    pub user: String,
    /// Groups that it is in.
    pub groups: Arc<[String]>,
    /// Owners and modes do not bind it.
    pub superuser: bool,
}

impl Caller {
    /// One who may do everything.
    pub fn superuser(user: impl Into<String>) -> Self {
        Self { user: user.into(), groups: Arc::default(), superuser: true }
    }
}

/// Limits on a folder; None is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Quota {
    /// Files and folders below it, itself included.
    pub files: Option<u64>,
    /// Bytes times replication.
    pub space: Option<u64>,
}

/// What becomes of a file whose writer disappeared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnAbandon {
    /// Close it with what was committed.
    Close,
    /// Delete it.
    Delete,
}

/// A block that its writer has wholly written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockLength {
    /// Which.
    pub block: BlockId,
    /// Its bytes.
    pub length: u64,
}

/// A finished replica, as its DataNode reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replica {
    /// Its block's id.
    pub block: BlockId,
    /// Its block's nonce, from the header of the checksum file.
    pub nonce: Nonce,
    /// Its bytes.
    pub length: u64,
}

/// One file of a fenced commit: the pieces, in order, become `to`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitMove {
    /// Closed files; they cease to exist.
    pub pieces: Vec<DfsPath>,
    /// Where the whole goes; must not exist.
    pub to: DfsPath,
}

/// A change that a client asks for. Meanings as in namenode.proto.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "namenode.proto says what each field means")]
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
        suggested_hosts: Vec<String>,
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
        epoch: u64,
    },
    Commit {
        scope: String,
        epoch: u64,
        commit_id: String,
        moves: Vec<CommitMove>,
        deletes: Vec<DfsPath>,
    },
    Drain {
        node: String,
        cancel: bool,
    },
}

/// What came of an operation: enough to answer it, and to answer a repeat of it after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is done; nothing to tell.
    Done,
    /// A file was created, reopened, closed or put together.
    File(FileId),
    /// A block was added; write it to these nodes, in this order.
    Block {
        /// Which.
        block: BlockId,
        /// Where.
        nodes: Vec<NodeUuid>,
    },
    /// Delete: whether there was anything.
    Existed(bool),
    /// Commit: whether it had been done before.
    Committed {
        /// True for a repeat.
        already_done: bool,
    },
}

/// What a DataNode says of itself when it registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Its data folders' identity.
    pub uuid: NodeUuid,
    /// This start of it.
    pub incarnation: Incarnation,
    /// Its name.
    pub node: String,
    /// Host name or address, for locality.
    pub host: String,
    /// Its rack.
    pub rack: String,
    /// `host:port` of the bulk protocol.
    pub data_addr: String,
    /// Unix socket for readers on its machine; empty if none.
    pub local_socket: String,
    /// Its build.
    pub version: String,
    /// The cluster its folders belong to; empty for none yet.
    pub cluster_id: String,
    /// The start of the NameNode that it last registered with; epoch 0 for none.
    pub seen_epoch: u64,
    /// The id of that start.
    pub seen_start: StartId,
}

/// A DataNode's heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Heartbeat {
    /// Counts up within an incarnation.
    pub seq: u64,
    /// Room in all folders, bytes.
    pub capacity: u64,
    /// Taken by blocks.
    pub used: u64,
    /// Left for blocks.
    pub free: u64,
    /// The same by file system: device and bytes. Nodes of a host may share one.
    pub disks: Vec<(u64, u64)>,
    /// Folders in use.
    pub volumes: u32,
    /// Folders retired after an error.
    pub failed_volumes: u32,
    /// Replicas finalised since the last one.
    pub received: Vec<Replica>,
    /// Replicas deleted on command.
    pub deleted: Vec<BlockId>,
    /// Replicas found damaged, quarantined, and why.
    pub bad: Vec<(BlockId, String)>,
    /// Replicas gone without a command.
    pub lost: Vec<BlockId>,
    /// Replicas that were re-read on command and are sound.
    pub checked: Vec<BlockId>,
    /// The node stops, and this is its last word.
    pub leaving: bool,
}

/// What a DataNode is told in the answer to its heartbeat. Each may be repeated without harm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Send this block to those nodes.
    Copy {
        /// Which.
        block: BlockId,
        /// Its nonce.
        nonce: Nonce,
        /// Its length.
        length: u64,
        /// To whom, as a pipeline.
        targets: Vec<NodeUuid>,
    },
    /// Delete these replicas, if they have these nonces; damaged ones that were quarantined in any case.
    Delete(Vec<(BlockId, Nonce)>),
    /// Re-read this replica, and report it if it is damaged.
    Check(BlockId, Nonce),
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeartbeatAnswer {
    /// This incarnation is not known here: register, and report everything.
    RegisterAgain,
    /// Go on, and do these.
    Commands(Vec<Command>),
}

/// A request with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Repeats carry the same.
    pub id: RequestId,
    /// Who asks.
    pub caller: Caller,
    /// What for.
    pub op: Op,
}
