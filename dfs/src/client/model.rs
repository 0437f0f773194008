//! What the client hands out: plain data with its own words, printed as they are by `--json`.
//!
//! Invariant: nothing here is a wire type; `wire.rs` checks what a server sent before it becomes one of these.

use crate::ids::{BlockId, FileId, Nonce};
use crate::path::DfsPath;
use serde::Serialize;
use std::path::PathBuf;
use tokio::io::AsyncRead;

/// A file or folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileStatus {
    /// Where it is.
    pub path: DfsPath,
    /// Whether it is a folder.
    pub is_dir: bool,
    /// Its id, whatever it is called.
    pub file_id: FileId,
    /// Bytes; 0 for a folder.
    pub length: u64,
    /// Replicas wanted; 0 for a folder.
    pub replication: u32,
    /// Bytes in a full block; 0 for a folder.
    pub block_size: u64,
    /// Who owns it.
    pub owner: String,
    /// Its group.
    pub group: String,
    /// Permission bits.
    pub mode: u32,
    /// Last change, milliseconds since the epoch.
    pub modified_ms: u64,
    /// Last use, milliseconds since the epoch.
    pub accessed_ms: u64,
    /// Whether a writer holds it.
    pub open: bool,
    /// How many blocks it has.
    pub blocks: u32,
    /// A folder's quota, if it has one.
    pub quota: Option<Quota>,
}

/// Limits on what is below a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Quota {
    /// Files and folders, itself included.
    pub files: Option<u64>,
    /// Bytes times replication.
    pub space: Option<u64>,
}

/// One page of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListPage {
    /// Entries, sorted by name.
    pub entries: Vec<FileStatus>,
    /// Whether there are more after the last one.
    pub more: bool,
}

/// What to change of a file or folder; `None` leaves as is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Replicas wanted.
    pub replication: Option<u32>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub owner: Option<String>,
    /// Group.
    pub group: Option<String>,
    /// Last change, milliseconds since the epoch.
    pub modified_ms: Option<u64>,
}

/// What lies in a file or below a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Files.
    pub files: u64,
    /// Folders.
    pub dirs: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bytes times replication.
    pub space: u64,
    /// The folder's quota, if it has one.
    pub quota: Option<Quota>,
}

/// A fenced commit: one atomic step; each move's pieces become one file, then the deletes go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// What the fence guards, e.g. a job id.
    pub scope: String,
    /// Which holder of the scope commits; an older one than the fence is refused.
    pub epoch: u64,
    /// Names the commit; a repeat has no effect.
    pub commit_id: String,
    /// What to move where.
    pub moves: Vec<CommitMove>,
    /// What to delete afterwards, recursively; absent is fine.
    pub deletes: Vec<DfsPath>,
}

/// Files that become one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitMove {
    /// In order.
    pub pieces: Vec<DfsPath>,
    /// Where the whole goes.
    pub to: DfsPath,
}

/// Where a DataNode is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeAddress {
    /// Its name.
    pub node: String,
    /// Its identity, as the NameNode gave it.
    pub uuid: String,
    /// `host:port` of the bulk protocol.
    pub data_addr: String,
    /// Its rack.
    pub rack: String,
    /// Unix socket for short-circuit reads, if any.
    pub local_socket: Option<PathBuf>,
    /// Its machine.
    pub host: String,
    /// The NameNode's word for where it is, of one that is to be written to.
    #[serde(skip)]
    pub seal: Vec<u8>,
}

/// A block of a file and where its replicas are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LocatedBlock {
    /// The block.
    pub block: BlockId,
    /// Its nonce, which a replica must have.
    #[serde(skip)]
    pub nonce: Nonce,
    /// Of its first byte in the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Its replicas, nearest to the reader first.
    pub nodes: Vec<NodeAddress>,
    /// To be shown to them.
    #[serde(skip)]
    pub token: security::BlockToken,
    /// Nodes that are there and have a damaged one.
    pub damaged_on: Vec<String>,
}

/// The verdict of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Every block has its replicas.
    Healthy,
    /// Every block can be read, some have too few replicas.
    Degraded,
    /// At least one block is on no node that is there; it may come back with one.
    Missing,
    /// At least one block has damaged replicas only.
    Corrupt,
}

impl Fsck {
    /// Of nothing.
    pub fn new() -> Self {
        Self { status: Health::Healthy, files: 0, blocks: 0, bytes: 0, problems: Vec::new() }
    }

    /// Adds what another check found.
    pub fn add(&mut self, other: Self) {
        self.status = self.status.max(other.status);
        self.files = self.files.saturating_add(other.files);
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.problems.extend(other.problems);
    }
}

impl Default for Fsck {
    fn default() -> Self {
        Self::new()
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fsck {
    /// The verdict over all.
    pub status: Health,
    /// Files looked at.
    pub files: u64,
    /// Their blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Only files that are not healthy.
    pub problems: Vec<FsckFile>,
}

/// A file with a problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FsckFile {
    /// Where.
    pub path: DfsPath,
    /// The verdict over its blocks.
    pub status: Health,
    /// Whether a writer holds it.
    pub open: bool,
    /// Only blocks with a problem.
    pub blocks: Vec<FsckBlock>,
}

/// A block with a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FsckBlock {
    /// The block.
    pub block: BlockId,
    /// Bytes.
    pub length: u64,
    /// The verdict.
    pub status: Health,
    /// Replicas wanted.
    pub wanted: u32,
    /// Good replicas on live nodes that are not draining.
    pub live: u32,
    /// Damaged replicas.
    pub corrupt: u32,
    /// Good replicas on nodes being drained.
    pub draining: u32,
}

/// The whole file system at a glance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The cluster's identity.
    pub cluster_id: String,
    /// The NameNode's version.
    pub version: String,
    /// When it started, milliseconds since the epoch.
    pub started_ms: u64,
    /// Safemode.
    pub safemode: SafemodeStatus,
    /// Files.
    pub files: u64,
    /// Folders.
    pub dirs: u64,
    /// Blocks.
    pub blocks: u64,
    /// Bytes in files.
    pub bytes: u64,
    /// Bytes taken by blocks, and left.
    pub capacity: u64,
    /// Bytes taken by blocks.
    pub used: u64,
    /// Bytes left; a file system that several nodes of a host share counts once.
    pub free: u64,
    /// File systems, each once.
    pub disks: u64,
    /// Blocks with too few replicas.
    pub under_replicated: u64,
    /// Blocks with too many.
    pub over_replicated: u64,
    /// Blocks of which no node that is there has a replica.
    pub missing: u64,
    /// Blocks of which only damaged replicas are there.
    pub corrupt: u64,
    /// Replicas known damaged and not yet replaced.
    pub corrupt_replicas: u64,
    /// Damaged replicas found since the NameNode started.
    pub corrupt_found_total: u64,
    /// Damaged replicas replaced since then.
    pub corrupt_replaced_total: u64,
    /// Copies under way or waiting.
    pub copies_pending: u64,
    /// Copies made since the NameNode started.
    pub copies_done_total: u64,
    /// Files that a writer holds.
    pub open_files: u64,
    /// Number of the newest edit.
    pub last_edit: u64,
    /// Replicas of blocks that the NameNode never gave out: its log is not the newest. They are kept.
    pub future_blocks: u64,
    /// Replicas with the id of a known block and another nonce. They are never served.
    pub stale_replicas: u64,
    /// DataNodes that were refused because they have seen a newer NameNode, and why.
    pub refused_nodes: Vec<String>,
    /// Rises at each start of the NameNode.
    pub epoch: u64,
    /// Replicas that DataNodes were asked to re-read and have not reported on.
    pub checks_pending: u64,
    /// Replicas that were re-read on request and are sound, since this NameNode started.
    pub checks_good_total: u64,
    /// Their bytes.
    pub checks_good_bytes_total: u64,
    /// Replicas that were re-read on request and are damaged.
    pub checks_bad_total: u64,
    /// What the NameNode cut or dropped from its edit log at this start; empty if nothing.
    pub lost_edits: String,
    /// The DataNodes.
    pub nodes: Vec<NodeReport>,
}

/// One DataNode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    /// Where it is.
    #[serde(flatten)]
    pub address: NodeAddress,
    /// How it is.
    pub state: NodeState,
    /// Bytes its disks hold.
    pub capacity: u64,
    /// Bytes taken by blocks.
    pub used: u64,
    /// Bytes left.
    pub free: u64,
    /// Replicas.
    pub blocks: u64,
    /// Milliseconds since it was last heard of.
    pub last_heartbeat_ms_ago: u64,
    /// Folders in use.
    pub volumes: u32,
    /// Folders retired.
    pub failed_volumes: u32,
    /// Blocks that must still be copied before it is drained.
    pub blocks_left_to_drain: u64,
    /// Its version.
    pub version: String,
}

/// How a DataNode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// In use.
    Live,
    /// Not heard of for a while; no new blocks.
    Suspect,
    /// Given up.
    Dead,
    /// Being emptied.
    Draining,
    /// Empty; may be stopped.
    Drained,
}

/// Safemode: nothing may change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SafemodeStatus {
    /// Whether it is on.
    pub on: bool,
    /// Why; empty when off.
    pub reason: String,
    /// Blocks reported so far.
    pub blocks_seen: u64,
    /// Blocks to be reported before it ends.
    pub blocks_needed: u64,
}

/// How far a drain is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DrainBlock {
    /// Which.
    pub block: BlockId,
    /// Of which file.
    pub path: String,
    /// Replicas wanted; 0 while it is being written.
    pub wanted: u32,
    /// Good replicas on nodes that stay.
    pub have: u32,
    /// Why there are no more.
    pub why: String,
}

/// What becomes of a file whose writer disappears.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnAbandon {
    /// Keep what was committed and close it.
    #[default]
    Close,
    /// Delete it, as if it had never been.
    Delete,
}

/// How to create a file; the default takes the NameNode's settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CreateOptions {
    /// Replicas; `None`: the NameNode's default.
    pub replication: Option<u32>,
    /// Bytes in a block; `None`: the NameNode's default.
    pub block_size: Option<u64>,
    /// Replace a file already there.
    pub overwrite: bool,
    /// Make missing folders above it.
    pub make_parents: bool,
    /// Permission bits; `None`: the NameNode's default.
    pub mode: Option<u32>,
    /// What becomes of it when this writer disappears.
    pub on_abandon: OnAbandon,
    /// Hosts a scheduler would like the blocks on.
    pub suggested_hosts: Vec<String>,
}

/// Where `put` takes the bytes from.
pub enum PutSource {
    /// A local file; its blocks are written in parallel.
    File(PathBuf),
    /// A stream, e.g. standard input; written block after block.
    Reader(Box<dyn AsyncRead + Send + Unpin>),
}

/// How to put.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PutOptions {
    /// Replicas; `None`: the NameNode's default.
    pub replication: Option<u32>,
    /// Bytes in a block; `None`: the NameNode's default.
    pub block_size: Option<u64>,
    /// Replace a file already there.
    pub overwrite: bool,
    /// Make missing folders above it.
    pub make_parents: bool,
    /// Permission bits; `None`: the NameNode's default.
    pub mode: Option<u32>,
}

/// What a put did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PutReport {
    /// The file as it is now.
    pub status: FileStatus,
    /// Nodes that failed on the way and were left out, with the reason.
    pub faults: Vec<NodeFault>,
    /// How many replicas the block with the fewest had when it was written; `None` without blocks.
    pub replicas: Option<u32>,
}

/// How to get.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GetOptions {
    /// Replace a local file already there.
    pub overwrite: bool,
}

/// What a get did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GetReport {
    /// The file as it was at opening.
    pub status: FileStatus,
    /// The local file.
    pub to: PathBuf,
    /// Replicas that failed on the way, with the reason.
    pub faults: Vec<NodeFault>,
    /// Where zeros stand for bytes of which no good replica was found; nothing unless that was asked for.
    pub lost: Vec<super::Lost>,
}

/// A node that failed and was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeFault {
    /// Its name.
    pub node: String,
    /// Why.
    pub reason: String,
}

/// Told of bytes as they arrive; each byte once, replays left out.
pub trait Progress: Send + Sync {
    /// `bytes` more have been taken over.
    fn advance(&self, bytes: u64);
}

/// Nobody is watching.
impl Progress for () {
    fn advance(&self, _bytes: u64) {}
}
