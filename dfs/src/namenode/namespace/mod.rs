//! The durable half of the NameNode: what the edit log and the snapshots hold, and nothing else.
//!
//! It changes only by [`Namespace::apply`], live and in replay alike, so that replay equals memory by
//! construction. Invariants: every inode but the root is its parent's child under its name; a block is in
//! exactly one file; a folder's totals are the sums over what is below it; ids are never given twice.
//!
//! Deliberately absent: replicas, nodes, leases' deadlines (volatile: `state`), and rules (`plan`).

mod apply;
mod check;
mod commits;
mod edit;
mod inode;
mod retry_cache;
mod snapshot;
mod start;
mod tree;

pub(super) use apply::Changes;
pub use edit::{Edit, Record};
pub(super) use inode::{Block, Body, File, Folder, Inode, Open, Totals};
pub use snapshot::{Entry, SnapshotItem, SnapshotLoader};
pub(super) use start::StartMismatch;

use super::op::Outcome;
use crate::ids::{BlockId, FileId, RequestId, StartId};
use commits::Commits;
use retry_cache::RetryCache;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// Why a record or snapshot item does not fit: the log is damaged or another cluster's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ApplyError(pub(crate) String);

/// The root folder's id.
pub(super) const ROOT: FileId = FileId(1);

/// Folders, files, their blocks, and what else must outlive a restart.
#[derive(Debug, Clone, PartialEq)]
pub struct Namespace {
    cluster_id: String,
    inodes: BTreeMap<FileId, Inode>,
    blocks: BTreeMap<BlockId, Block>,
    /// Files with a writer.
    open: BTreeSet<FileId>,
    retry_cache: RetryCache,
    fences: BTreeMap<String, u64>,
    commits: Commits,
    draining: BTreeSet<String>,
    next_file: u64,
    next_block: u64,
    /// Block ids that were never given out, `from..to`: see [`Namespace::is_future`].
    skipped: Vec<(u64, u64)>,
    /// The number of the current start, and the ids of the latest starts since the last accepted restore.
    epoch: u64,
    starts: VecDeque<(u64, StartId)>,
    /// Whether an operator accepted this namespace after a restore or a loss of records.
    accepted: bool,
    /// Blocks with a length.
    finished: u64,
    records: u64,
    interner: Interner,
}

/// One copy of each owner and group. It decides nothing, so any two are equal.
#[derive(Debug, Clone, Default)]
struct Interner {
    known: BTreeSet<Arc<str>>,
    /// At this size, words that nobody uses any more are thrown out.
    sweep_at: usize,
}

/// No sweep before there are this many.
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
    /// An empty one: only the root folder.
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
        Self { inodes: BTreeMap::from([(ROOT, root)]), ..Self::bare(cluster_id.into(), interner) }
    }

    /// Not even a root: where a snapshot begins.
    fn bare(cluster_id: String, interner: Interner) -> Self {
        Self {
            cluster_id,
            inodes: BTreeMap::new(),
            blocks: BTreeMap::new(),
            open: BTreeSet::new(),
            retry_cache: RetryCache::default(),
            fences: BTreeMap::new(),
            commits: Commits::default(),
            draining: BTreeSet::new(),
            next_file: ROOT.0 + 1,
            next_block: 1,
            skipped: Vec::new(),
            epoch: 0,
            starts: VecDeque::new(),
            accepted: false,
            finished: 0,
            records: 0,
            interner,
        }
    }

    /// Which cluster.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// Records applied in its life.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// How many scopes have a fence.
    pub(super) fn fences_len(&self) -> usize {
        self.fences.len()
    }

    /// Keeps at most this many answers for repeats.
    pub fn set_retry_cache_limit(&mut self, limit: usize) {
        self.retry_cache.set_limit(limit);
    }

    /// The answer given to a request before.
    pub(super) fn answer(&self, request: RequestId) -> Option<&Outcome> {
        self.retry_cache.get(request)
    }

    /// A folder or file.
    pub(super) fn inode(&self, id: FileId) -> Option<&Inode> {
        self.inodes.get(&id)
    }

    /// A file by id.
    pub(super) fn file(&self, id: FileId) -> Option<&File> {
        self.inodes.get(&id)?.file()
    }

    /// A block.
    pub(super) fn block(&self, block: BlockId) -> Option<Block> {
        self.blocks.get(&block).copied()
    }

    /// How many blocks there are.
    pub(super) fn blocks_len(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// How many of them are committed.
    pub(super) fn finished_blocks(&self) -> u64 {
        self.finished
    }

    /// Replicas wanted of a committed block.
    pub(super) fn wanted(&self, block: BlockId) -> Option<u32> {
        let known = self.blocks.get(&block)?;
        known.length()?;
        Some(self.file(known.file)?.replication)
    }

    /// Files with a writer.
    pub(super) fn open_files(&self) -> impl ExactSizeIterator<Item = (FileId, &Open)> {
        self.open.iter().map(|id| {
            let open = self.file(*id).and_then(|file| file.open.as_deref());
            (*id, open.expect("the set of open files holds open files"))
        })
    }

    /// The highest epoch of a scope.
    pub(super) fn fence(&self, scope: &str) -> u64 {
        self.fences.get(scope).copied().unwrap_or(0)
    }

    /// Whether a commit was carried out, as far back as commits are remembered.
    pub(super) fn is_committed(&self, scope: &str, commit_id: &str) -> bool {
        self.commits.contains(scope, commit_id)
    }

    /// Whether a node of this name is to be drained.
    pub(super) fn is_draining(&self, node: &str) -> bool {
        self.draining.contains(node)
    }

    /// The next folder's or file's id.
    pub(super) fn next_file(&self) -> u64 {
        self.next_file
    }

    /// The next block's id.
    pub(super) fn next_block(&self) -> u64 {
        self.next_block
    }

    /// Whether no block of this id was ever added. A replica that carries such an id comes from a history
    /// that this namespace has lost, and must not be deleted.
    pub(super) fn is_future(&self, block: BlockId) -> bool {
        block.0 >= self.next_block || self.skipped.iter().any(|(from, to)| (*from..*to).contains(&block.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_interned_names_are_swept() {
        let mut interner = Interner::default();
        let used = interner.share("used");
        for number in 0..10 * INTERNER_SWEEP_MIN {
            interner.share(&format!("word {number}"));
        }
        assert!(interner.known.len() <= INTERNER_SWEEP_MIN);
        assert!(Arc::ptr_eq(&used, &interner.share("used")));
    }
}
