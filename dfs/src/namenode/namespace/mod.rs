//! The durable half of the state of the NameNode: exactly what is in the edit log and the
//! snapshots.
//!
//! It changes only through [`Namespace::apply`], both when a record is made and when the log is
//! replayed. A replay therefore gives the same state.
//!
//! Invariants: every inode except the root is in the children of its parent under its name. A block
//! belongs to exactly one file. The totals of a folder are the sums over its descendants. IDs are
//! never assigned twice.
//!
//! Replicas, nodes and deadlines of leases are volatile and belong to `state`. The rules of
//! operations are in `plan`.

mod apply;
mod check;
mod commits;
mod edit;
mod fences;
mod inode;
mod retry_cache;
mod snapshot;
mod start;
mod tree;

pub(super) use apply::Changes;
pub use edit::{Edit, Record};
pub(super) use inode::{Block, Body, File, Folder, Inode, OpenWriter, Totals};
pub use snapshot::{Entry, SnapshotItem, SnapshotLoader};
pub(super) use start::StartMismatch;

use super::op::Outcome;
use commits::Commits;
use dfs_client::ids::{BlockId, FileId, RequestId, Start, StartId};
use retry_cache::RetryCache;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// Why a record or snapshot item cannot be applied. The log is damaged or belongs to another
/// cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ApplyError(pub(crate) String);

/// The ID of the root folder.
pub(super) const ROOT: FileId = FileId(1);

/// Folders, files, their blocks, and all other state that survives a restart.
#[derive(Debug, Clone, PartialEq)]
pub struct Namespace {
    cluster_id: String,
    inodes: BTreeMap<FileId, Inode>,
    blocks: BTreeMap<BlockId, Block>,
    /// Files that are open for writing.
    open: BTreeSet<FileId>,
    retry_cache: RetryCache,
    /// The fence of each scope: the newest start that may commit.
    fences: BTreeMap<String, Start>,
    commits: Commits,
    /// Names of nodes that are being drained.
    draining: BTreeSet<String>,
    /// Whether an operator has turned safemode on.
    safemode: bool,
    /// The next ID of a folder or file.
    next_file: u64,
    /// The next ID of a block.
    next_block: u64,
    /// Ranges `from..to` of block IDs that were never assigned: see [`Namespace::is_future`].
    skipped: Vec<(u64, u64)>,
    /// The epoch of the current start. It increases with every start of the NameNode.
    epoch: u64,
    /// Epochs and IDs of the latest starts of the NameNode, since an operator last accepted the
    /// namespace.
    starts: VecDeque<(u64, StartId)>,
    /// Whether an operator accepted this namespace after a restore or a loss of records.
    accepted: bool,
    /// Number of committed blocks.
    committed_blocks: u64,
    /// Number of records that were ever applied.
    records: u64,
    interner: Interner,
}

/// Keeps one copy of each owner and group name. It is only a cache, so any two interners compare as
/// equal.
#[derive(Debug, Clone, Default)]
struct Interner {
    known: BTreeSet<Arc<str>>,
    /// At this size, names that are not used any more are removed.
    sweep_at: usize,
}

/// Number of names below which unused names are not removed.
const INTERNER_SWEEP_MIN: usize = 1024;

impl PartialEq for Interner {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Interner {
    fn share(&mut self, word: &str) -> Arc<str> {
        if let Some(known) = self.known.get(word) {
            return known.clone();
        }
        if self.known.len() >= self.sweep_at.max(INTERNER_SWEEP_MIN) {
            self.known.retain(|word| Arc::strong_count(word) > 1);
            self.sweep_at = 2 * self.known.len();
        }
        let new: Arc<str> = word.into();
        self.known.insert(new.clone());
        new
    }
}

impl Namespace {
    /// Creates an empty namespace with only the root folder.
    pub fn new(cluster_id: impl Into<String>) -> Self {
        let mut interner = Interner::default();
        let root = Inode {
            parent: ROOT,
            name: "".into(),
            owner: interner.share("fermata"),
            group: interner.share("fermata"),
            mode: 0o755,
            modified_ms: 0,
            body: Body::Folder(Box::default()),
        };
        Self { inodes: BTreeMap::from([(ROOT, root)]), ..Self::without_root(cluster_id.into(), interner) }
    }

    /// Creates a namespace without a root, to load a snapshot into.
    fn without_root(cluster_id: String, interner: Interner) -> Self {
        Self {
            cluster_id,
            inodes: BTreeMap::new(),
            blocks: BTreeMap::new(),
            open: BTreeSet::new(),
            retry_cache: RetryCache::default(),
            fences: BTreeMap::new(),
            commits: Commits::default(),
            draining: BTreeSet::new(),
            safemode: false,
            next_file: ROOT.0 + 1,
            next_block: 1,
            skipped: Vec::new(),
            epoch: 0,
            starts: VecDeque::new(),
            accepted: false,
            committed_blocks: 0,
            records: 0,
            interner,
        }
    }

    /// Returns the ID of the cluster.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// Returns whether an operator has turned safemode on, so that only an operator can end it.
    pub fn safemode(&self) -> bool {
        self.safemode
    }

    /// Returns the total number of records applied.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Returns the number of scopes with a fence.
    pub(super) fn fences_len(&self) -> usize {
        self.fences.len()
    }

    /// Sets the maximum number of outcomes that are kept for repeated requests.
    pub fn set_retry_cache_limit(&mut self, limit: usize) {
        self.retry_cache.set_limit(limit);
    }

    /// Returns the outcome of an earlier request with this ID, if it is still kept.
    pub(super) fn outcome_of(&self, request: RequestId) -> Option<&Outcome> {
        self.retry_cache.get(request)
    }

    /// Returns a folder or file.
    pub(super) fn inode(&self, id: FileId) -> Option<&Inode> {
        self.inodes.get(&id)
    }

    /// Returns a file by its ID.
    pub(super) fn file(&self, id: FileId) -> Option<&File> {
        self.inodes.get(&id)?.file()
    }

    /// Returns a block by its ID.
    pub(super) fn block(&self, block: BlockId) -> Option<Block> {
        self.blocks.get(&block).copied()
    }

    /// Returns the number of blocks.
    pub(super) fn blocks_len(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Returns the number of committed blocks.
    pub(super) fn committed_blocks(&self) -> u64 {
        self.committed_blocks
    }

    /// Returns the wanted number of replicas of a committed block.
    pub(super) fn wanted_replicas(&self, block: BlockId) -> Option<u32> {
        let known = self.blocks.get(&block)?;
        known.length()?;
        Some(self.file(known.file)?.replication)
    }

    /// Returns the files that are open for writing.
    pub(super) fn open_files(&self) -> impl ExactSizeIterator<Item = (FileId, &OpenWriter)> {
        self.open.iter().map(|id| {
            let open = self.file(*id).and_then(|file| file.open.as_deref());
            (*id, open.expect("the set of open files contains only open files"))
        })
    }

    /// Returns whether a commit was done. Commits that are too old are not remembered.
    pub(super) fn is_committed(&self, scope: &str, commit_id: &str) -> bool {
        self.commits.contains(scope, commit_id)
    }

    /// Returns whether the node with this name is being drained.
    pub(super) fn is_draining(&self, node: &str) -> bool {
        self.draining.contains(node)
    }

    /// Returns the next ID of a folder or file.
    pub(super) fn next_file(&self) -> u64 {
        self.next_file
    }

    /// Returns the next ID of a block.
    pub(super) fn next_block(&self) -> u64 {
        self.next_block
    }

    /// Returns whether this namespace has never assigned the block ID. A replica with such an ID
    /// was written under a NameNode whose records this namespace no longer has, and must not be
    /// deleted.
    pub(super) fn is_future(&self, block: BlockId) -> bool {
        block.0 >= self.next_block || self.skipped.iter().any(|(from, to)| (*from..*to).contains(&block.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_names_are_removed_from_the_interner() {
        let mut interner = Interner::default();
        let used = interner.share("used");
        for number in 0..10 * INTERNER_SWEEP_MIN {
            interner.share(&format!("word {number}"));
        }
        assert!(interner.known.len() <= INTERNER_SWEEP_MIN);
        assert!(Arc::ptr_eq(&used, &interner.share("used")));
    }
}
