//! The edits of the namespace. One [`Record`] is one atomic step.

use crate::namenode::op::{OnAbandon, Outcome, Quota};
use dfs_client::ids::{BlockId, FileId, Nonce, RequestId, Start, StartId};
use serde::{Deserialize, Serialize};

/// A record of the edit log: the changes of one request, or of one step of the NameNode itself, for
/// example the expiry of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Wall clock time of the step, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The request and its outcome, to recognise a repeated request. `None` for a step of the
    /// NameNode itself.
    pub request: Option<(RequestId, Outcome)>,
    /// The changes, in order.
    pub edits: Vec<Edit>,
}

/// A change of the namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Edit {
    /// A folder was created.
    FolderCreated { id: FileId, parent: FileId, name: String, owner: String, group: String, mode: u32 },
    /// A file was created and is open for writing by `holder`, which identifies a client.
    FileCreated {
        id: FileId,
        parent: FileId,
        name: String,
        owner: String,
        group: String,
        mode: u32,
        replication: u32,
        block_size: u64,
        holder: String,
        on_abandon: OnAbandon,
    },
    /// A closed file was opened again to append blocks.
    FileReopened { file: FileId, holder: String },
    /// A block was added at the end of an open file. IDs between the last block ID and this one are
    /// never assigned.
    BlockAdded { file: FileId, block: BlockId, nonce: Nonce },
    /// A block was completely written.
    BlockCommitted { block: BlockId, length: u64 },
    /// A block was removed from its open file.
    BlockDropped { block: BlockId },
    /// The file has no writer any more, and all of its blocks are committed.
    FileClosed { file: FileId },
    /// The file or folder was moved to `name` in `parent`, where no entry with that name existed.
    Renamed { id: FileId, parent: FileId, name: String },
    /// The file or folder was deleted with all of its contents.
    Deleted { id: FileId },
    /// The attributes that are `Some` were changed.
    AttributesSet {
        id: FileId,
        replication: Option<u32>,
        mode: Option<u32>,
        owner: Option<String>,
        group: Option<String>,
        modified_ms: Option<u64>,
    },
    /// The quota of a folder was set.
    QuotaSet { id: FileId, quota: Quota },
    /// The blocks of the source were appended to the target, and the source was deleted.
    Concatenated { target: FileId, source: FileId },
    /// The fenced commit with this ID was done. The edits that move its files are in the same
    /// record.
    Committed { scope: String, commit_id: String },
    /// Commits of the scope by an earlier start, or by another one with this epoch, are refused
    /// from now on.
    Fenced { scope: String, start: Start },
    /// The drain of a DataNode was started or cancelled.
    DrainSet { node: String, on: bool },
    /// A NameNode started. IDs below `next_file` and `next_block` may have been used by records
    /// that this log has lost (an older copy was restored), so they are never assigned again. With
    /// `accepted`, an operator has declared this namespace the valid one, even if DataNodes have
    /// registered with a later start (ADR 0022).
    Started { epoch: u64, start: StartId, accepted: bool, next_file: u64, next_block: u64 },
    /// An operator turned safemode on or off.
    SafemodeSet { on: bool },
    /// An operator has restored a backup and gives up the blocks since then: IDs below `next_block`
    /// count as assigned, so that replicas with them are deleted like those of deleted blocks.
    NewerBlocksDropped { next_block: u64 },
}
