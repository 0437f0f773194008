//! The data types of the client API. `mrctl --json` prints them as they are.
//!
//! Invariant: none of them is a wire type. `wire.rs` validates the messages of a server before it
//! converts them.

use crate::ids::{BlockId, FileId, Nonce, Start};
use crate::path::DfsPath;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tokio::io::AsyncRead;

/// A file or folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileStatus {
    /// The path of the file.
    pub path: DfsPath,
    /// Whether this is a folder.
    pub is_dir: bool,
    /// The ID, which does not change when the file is renamed.
    pub file_id: FileId,
    /// Length in bytes; 0 for a folder.
    pub length: u64,
    /// Wanted number of replicas; 0 for a folder.
    pub replication: u32,
    /// Bytes in a full block; 0 for a folder.
    pub block_size: u64,
    /// The user that owns the file.
    pub owner: String,
    /// The group of the file.
    pub group: String,
    /// Permission bits.
    pub mode: u32,
    /// Time of the last modification, milliseconds since the Unix epoch.
    pub modified_ms: u64,
    /// The same as `modified_ms`, because access times are not recorded.
    pub accessed_ms: u64,
    /// Whether the file is open for writing.
    pub open: bool,
    /// Number of blocks, including uncommitted ones.
    pub blocks: u32,
    /// The quota of a folder, if it has one.
    pub quota: Option<Quota>,
}

/// Limits on the contents of a folder. `None` means no limit. The edit log of the NameNode contains
/// this type, so the order of the fields must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Quota {
    /// Maximum number of files and folders, including the folder itself.
    pub files: Option<u64>,
    /// Maximum number of bytes over all replicas: the sum of length times replication.
    pub space: Option<u64>,
}

/// A page of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListPage {
    /// Entries, sorted by name.
    pub entries: Vec<FileStatus>,
    /// Whether the folder has entries after the last one.
    pub more: bool,
}

/// Attributes to change. `None` leaves an attribute unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Wanted number of replicas.
    pub replication: Option<u32>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// The user that owns the file.
    pub owner: Option<String>,
    /// The group of the file.
    pub group: Option<String>,
    /// Time of the last modification, milliseconds since the Unix epoch.
    pub modified_ms: Option<u64>,
}

/// The size of a file or of the contents of a folder. The folder itself is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Usage {
    /// Number of files.
    pub files: u64,
    /// Number of folders.
    pub dirs: u64,
    /// Sum of the lengths in bytes.
    pub bytes: u64,
    /// Sum of length times replication, in bytes. A block counts when it is committed.
    pub space: u64,
    /// The quota of the folder, if it has one.
    pub quota: Option<Quota>,
}

/// A commit that is refused if the epoch of the caller is too old. In one atomic step, the pieces
/// of each move become one file, and then the deletes are done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Names what the fence protects, for example a job ID.
    pub scope: String,
    /// The start of the caller. A commit is refused if its epoch is lower than that of the fence,
    /// or the same with another ID.
    pub start: Start,
    /// Identifies the commit. A repeated commit has no effect.
    pub commit_id: String,
    /// The moves, done first.
    pub moves: Vec<CommitMove>,
    /// Paths to delete recursively after the moves. A path that does not exist is ignored.
    pub deletes: Vec<DfsPath>,
}

/// Files that become one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitMove {
    /// The source files, in order.
    pub pieces: Vec<DfsPath>,
    /// The path of the resulting file.
    pub to: DfsPath,
}

/// The address of a DataNode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeAddress {
    /// The name of the node.
    pub node: String,
    /// The ID of the DataNode, as sent by the NameNode.
    pub uuid: String,
    /// Address of the bulk protocol, `host:port`.
    pub data_addr: String,
    /// The rack of the node.
    pub rack: String,
    /// Path of the Unix socket for short-circuit reads, if there is one.
    pub local_socket: Option<PathBuf>,
    /// The host name of the node.
    pub host: String,
    /// The signature of the NameNode for `data_addr`. Set only for nodes that the caller may write
    /// to.
    #[serde(skip)]
    pub seal: Vec<u8>,
}

/// A block of a file and where its replicas are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LocatedBlock {
    /// The ID of the block.
    pub block: BlockId,
    /// The nonce that a replica must have.
    #[serde(skip)]
    pub nonce: Nonce,
    /// Offset of the block in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Nodes with a replica, nearest to the reader first.
    pub nodes: Vec<NodeAddress>,
    /// The token to send to the nodes.
    #[serde(skip)]
    pub token: security::BlockToken,
    /// Live nodes that have a damaged replica.
    pub damaged_on: Vec<String>,
}

/// The result of an fsck, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Every block has the wanted number of replicas.
    Healthy,
    /// Every block can be read, but some blocks have too few replicas.
    Degraded,
    /// At least one block has no replica on a live node. It is available again when a node with a
    /// replica returns.
    Missing,
    /// At least one block has only damaged replicas.
    Corrupt,
}

impl Fsck {
    /// Creates the result of an fsck of no files.
    pub fn new() -> Self {
        Self { status: Health::Healthy, files: 0, blocks: 0, bytes: 0, problems: Vec::new() }
    }

    /// Adds the result of an fsck of other files.
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

/// The result of an fsck.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fsck {
    /// The worst status of all files.
    pub status: Health,
    /// Number of checked files.
    pub files: u64,
    /// Number of blocks of these files.
    pub blocks: u64,
    /// Total length of these files in bytes.
    pub bytes: u64,
    /// The files that are not healthy.
    pub problems: Vec<FsckFile>,
}

/// A file with a problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FsckFile {
    /// The path of the file.
    pub path: DfsPath,
    /// The worst status of its blocks.
    pub status: Health,
    /// Whether the file is open for writing.
    pub open: bool,
    /// The blocks that have a problem.
    pub blocks: Vec<FsckBlock>,
}

/// A block with a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FsckBlock {
    /// The ID of the block.
    pub block: BlockId,
    /// Length in bytes.
    pub length: u64,
    /// The status of the block.
    pub status: Health,
    /// Wanted number of replicas.
    pub wanted: u32,
    /// Number of good replicas on live nodes that are not draining.
    pub live: u32,
    /// Number of damaged replicas.
    pub corrupt: u32,
    /// Number of good replicas on draining nodes.
    pub draining: u32,
}

/// A summary of the file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The ID of the cluster.
    pub cluster_id: String,
    /// The version of the NameNode.
    pub version: String,
    /// Start time of the NameNode, milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// The state of safemode.
    pub safemode: SafemodeStatus,
    /// Number of files.
    pub files: u64,
    /// Number of folders.
    pub dirs: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Total length of all files in bytes.
    pub bytes: u64,
    /// Bytes used by blocks plus free bytes.
    pub capacity: u64,
    /// Bytes used by blocks.
    pub used: u64,
    /// Free bytes. A file system that several nodes of a host share is counted once.
    pub free: u64,
    /// Number of distinct file systems of the nodes.
    pub disks: u64,
    /// Number of blocks with too few replicas.
    pub under_replicated: u64,
    /// Number of blocks with too many replicas.
    pub over_replicated: u64,
    /// Number of blocks without a replica on a live node.
    pub missing: u64,
    /// Number of blocks that have only damaged replicas.
    pub corrupt: u64,
    /// Number of known damaged replicas that are not replaced yet.
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
    /// Sequence number of the newest edit.
    pub last_edit: u64,
    /// Number of replicas of blocks that this NameNode never assigned, which means that its log is
    /// not the newest. The replicas are kept. JSON and messages use the documented key
    /// `future_blocks`.
    #[serde(rename = "future_blocks")]
    pub future_replicas: u64,
    /// Number of replicas with the ID of a known block but another nonce. They are never served.
    pub stale_replicas: u64,
    /// DataNodes whose registration was refused, with the reason.
    pub refused_nodes: Vec<String>,
    /// The epoch of this start of the NameNode.
    pub epoch: u64,
    /// Number of replicas whose check was requested and has no result yet.
    pub checks_pending: u64,
    /// Number of replicas that were checked on request and are good, since the start of the
    /// NameNode.
    pub checks_good_total: u64,
    /// Total length of these replicas in bytes.
    pub checks_good_bytes_total: u64,
    /// Number of replicas that were checked on request and are damaged, since the start of the
    /// NameNode.
    pub checks_bad_total: u64,
    /// Describes the edits that the NameNode dropped from its log at this start; empty if none.
    pub lost_edits: String,
    pub nodes: Vec<NodeReport>,
}

/// One DataNode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    /// The address of the node.
    #[serde(flatten)]
    pub address: NodeAddress,
    /// The state of the node.
    pub state: NodeState,
    /// Capacity of its disks in bytes.
    pub capacity: u64,
    /// Bytes used by blocks.
    pub used: u64,
    /// Free bytes.
    pub free: u64,
    /// Number of replicas.
    pub blocks: u64,
    /// Milliseconds since the last heartbeat.
    pub last_heartbeat_ms_ago: u64,
    /// Number of data folders in use.
    pub volumes: u32,
    /// Number of retired data folders.
    pub failed_volumes: u32,
    /// Number of blocks that must be copied before the node is drained.
    pub blocks_left_to_drain: u64,
    /// The version of the DataNode.
    pub version: String,
    /// Whether its full block report is complete.
    pub reported: bool,
}

/// The state of a DataNode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Heartbeats arrive.
    Live,
    /// Heartbeats are late. The node gets no new blocks.
    Suspect,
    /// Heartbeats have been missing for too long. The replicas of the node do not count any more.
    Dead,
    /// The blocks of the node are being copied to other nodes.
    Draining,
    /// All blocks are on other nodes. The node may be stopped.
    Drained,
}

/// The state of safemode, in which the NameNode refuses changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SafemodeStatus {
    /// Whether safemode is on.
    pub on: bool,
    /// Why safemode is on. May contain a warning when it is off.
    pub reason: String,
    /// Number of blocks that DataNodes have reported.
    pub blocks_seen: u64,
    /// Number of blocks that must be reported before safemode ends.
    pub blocks_needed: u64,
}

impl SafemodeStatus {
    /// Returns the reason without the prefix that all messages about safemode have.
    pub fn cause(&self) -> &str {
        self.reason.strip_prefix("safemode is on: ").unwrap_or(&self.reason)
    }
}

/// The progress of a drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DrainStatus {
    /// The state of the node.
    pub state: NodeState,
    /// Number of blocks that need more replicas on the staying nodes.
    pub blocks_left: u64,
    /// Whether the drain cannot continue: each of the blocks left has as many replicas as the
    /// staying nodes can store.
    pub stuck: bool,
    /// Number of DataNodes that are neither dead nor draining.
    pub staying: u32,
    /// Some of the blocks that need more replicas.
    pub examples: Vec<DrainBlock>,
}

/// A block that prevents a node from being drained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DrainBlock {
    /// The ID of the block.
    pub block: BlockId,
    /// The file that the block belongs to.
    pub path: DfsPath,
    /// Wanted number of replicas; 0 while the block is being written.
    pub wanted: u32,
    /// Number of good replicas on the staying nodes.
    pub have: u32,
    /// Why there are not more replicas.
    pub why: String,
}

/// What the NameNode does with a file whose writer disappears.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnAbandon {
    /// Close the file with the blocks that were committed.
    #[default]
    Close,
    /// Delete the file.
    Delete,
}

/// Options for a new file. The default uses the settings of the NameNode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CreateOptions {
    /// Wanted number of replicas. `None` is the default of the NameNode.
    pub replication: Option<u32>,
    /// Block size in bytes. `None` is the default of the NameNode.
    pub block_size: Option<u64>,
    /// Whether to replace an existing file.
    pub overwrite: bool,
    /// Whether to create missing parent folders.
    pub make_parents: bool,
    /// Permission bits. `None` is the default of the NameNode.
    pub mode: Option<u32>,
    /// What the NameNode does with the file if this writer disappears.
    pub on_abandon: OnAbandon,
}

/// The source of the data of a `put`.
pub enum PutSource {
    /// A local file. Its blocks are written in parallel.
    File(PathBuf),
    /// A stream, for example standard input. Its blocks are written one after the other.
    Reader(Box<dyn AsyncRead + Send + Unpin>),
}

/// Options of `put`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PutOptions {
    /// Wanted number of replicas. `None` is the default of the NameNode.
    pub replication: Option<u32>,
    /// Block size in bytes. `None` is the default of the NameNode.
    pub block_size: Option<u64>,
    /// Whether to replace an existing file.
    pub overwrite: bool,
    /// Whether to create missing parent folders.
    pub make_parents: bool,
    /// Permission bits. `None` is the default of the NameNode.
    pub mode: Option<u32>,
}

/// The result of a `put`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PutReport {
    /// The status of the new file.
    pub status: FileStatus,
    /// Nodes that failed and were excluded, with the reason.
    pub faults: Vec<NodeFault>,
    /// The lowest number of replicas that a block had when it was written. `None` for a file
    /// without blocks.
    #[serde(rename = "replicas")]
    pub replicas_min: Option<u32>,
}

/// Options of `get`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GetOptions {
    /// Whether to replace an existing local file.
    pub overwrite: bool,
}

/// The result of a `get`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GetReport {
    /// The status of the file when it was opened.
    pub status: FileStatus,
    /// The local file.
    pub to: PathBuf,
    /// Replicas that failed, with the reason.
    pub faults: Vec<NodeFault>,
    /// Ranges without a good replica, which are filled with zeros. Empty unless the caller asked to
    /// skip lost blocks.
    pub lost: Vec<super::LostRange>,
}

/// A node that failed and was excluded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeFault {
    /// The name of the node.
    pub node: String,
    /// Why the node failed.
    pub reason: String,
}

/// Receives the progress of a transfer. Each byte is counted once, even if it is sent again.
pub trait Progress: Send + Sync {
    /// Is called after `bytes` more bytes were transferred.
    fn advance(&self, bytes: u64);
}

/// Ignores the progress.
impl Progress for () {
    fn advance(&self, _bytes: u64) {}
}

/// A part of the backup of a master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupPart {
    /// The first part.
    Start(BackupStart),
    /// Begins a file: its path in the folder of the master.
    File(String),
    /// The next bytes of the file.
    Data(Vec<u8>),
    /// The last part: the number of files.
    End(u64),
}

/// What the backup of a master contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupStart {
    /// The ID of the cluster in the folder of the master.
    pub cluster_id: String,
    /// The layout of that folder.
    pub layout: u32,
    /// The subfolder of the journal.
    pub journal: String,
    /// The last record in the backup.
    pub last_record: u64,
    /// Length of all files together, approximately.
    pub bytes: u64,
}
