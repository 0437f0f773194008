//! The facts that make up the namespace's history. One [`Record`] is one atomic step of it.

use crate::{
    ids::{BlockId, FileId, Nonce, RequestId, StartId},
    namenode::op::{OnAbandon, Outcome, Quota},
};
use serde::{Deserialize, Serialize};

/// One edit-log record: an answered request, or a step of the NameNode's own, and what it changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Wall clock of the step.
    pub at_ms: u64,
    /// The request and its answer, to recognise a repeat; None for a step of the NameNode's own.
    pub request: Option<(RequestId, Outcome)>,
    /// In order.
    pub edits: Vec<Edit>,
}

/// Something that happened to the namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are what the names say")]
pub enum Edit {
    /// A folder came to be.
    FolderCreated { id: FileId, parent: FileId, name: String, owner: String, group: String, mode: u32 },
    /// A file came to be, open for its holder.
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
    /// An open file got a block at its end. Ids skipped on the way are never given out.
    BlockAdded { file: FileId, block: BlockId, nonce: Nonce },
    /// A block is wholly written.
    BlockCommitted { block: BlockId, length: u64 },
    /// A block was taken out of its open file.
    BlockDropped { block: BlockId },
    /// The writer is gone, all blocks are committed.
    FileClosed { file: FileId },
    /// It is now called `name` in `parent`; nothing of that name is there.
    Renamed { id: FileId, parent: FileId, name: String },
    /// It is gone, with everything below.
    Deleted { id: FileId },
    /// Attributes that are Some changed.
    AttributesSet {
        id: FileId,
        replication: Option<u32>,
        mode: Option<u32>,
        owner: Option<String>,
        group: Option<String>,
        modified_ms: Option<u64>,
    },
    /// A folder's limits are these.
    QuotaSet { id: FileId, quota: Quota },
    /// The source's blocks went to the end of the target; the source is gone.
    Concatenated { target: FileId, source: FileId },
    /// A fenced commit was carried out.
    Committed { scope: String, commit_id: String },
    /// No commit of the scope below this epoch any more.
    Fenced { scope: String, epoch: u64 },
    /// A DataNode is to be drained, or no longer.
    DrainSet { node: String, on: bool },
    /// A NameNode started. Ids below `next_file` and `next_block` may have been used by records that this log has
    /// lost (an older copy was restored), so they are never used again. With `accepted`, an operator declared this
    /// namespace the right one, whatever DataNodes have seen (ADR 0022).
    Started { epoch: u64, start: StartId, accepted: bool, next_file: u64, next_block: u64 },
}
