//! The namespace as a stream of items, and back.
//!
//! Items come in a fixed order: Header, folders and files by id, fences, draining nodes, answers, End. Folders'
//! children and totals are not written; the loader works them out again from each item's parent.

use super::{ApplyError, Namespace};
use crate::{
    ids::{BlockId, FileId, RequestId},
    namenode::op::{OnAbandon, Outcome, Quota},
};
use serde::{Deserialize, Serialize};

/// One piece of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are what the names say")]
pub enum SnapshotItem {
    /// First.
    Header { cluster_id: String, next_file: u64, next_block: u64, skipped: Vec<(u64, u64)>, records: u64 },
    /// A folder; the root is its own parent.
    Folder { entry: Entry, quota: Quota },
    /// A file; a block without a length is being written.
    File {
        entry: Entry,
        replication: u32,
        block_size: u64,
        blocks: Vec<(BlockId, Option<u64>)>,
        open: Option<(String, OnAbandon)>,
        commit_id: Option<String>,
    },
    /// A scope's fence.
    Fence { scope: String, epoch: u64 },
    /// A node being emptied.
    Draining { node: String },
    /// An answer kept for repeats, oldest first.
    Answer { request: RequestId, outcome: Outcome },
    /// Last: how many items of each kind came before.
    End { folders: u64, files: u64, others: u64 },
}

/// What folders and files have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are what the names say")]
pub struct Entry {
    pub id: FileId,
    pub parent: FileId,
    pub name: String,
    pub owner: String,
    pub group: String,
    pub mode: u32,
    pub modified_ms: u64,
}

/// Takes a snapshot's items one by one.
#[derive(Debug, Default)]
pub struct SnapshotLoader {}

impl SnapshotLoader {
    /// Takes the next item.
    pub fn take(&mut self, _item: SnapshotItem) -> Result<(), ApplyError> {
        todo!()
    }
    /// The namespace, if the items were whole and fit together.
    pub fn finish(self) -> Result<Namespace, ApplyError> {
        todo!()
    }
}
