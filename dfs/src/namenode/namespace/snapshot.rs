//! Converts the namespace to the items of a snapshot, and loads it from them.
//!
//! The order of the items is fixed: header, folders and files by ID, fences, commits, draining
//! nodes, safemode, outcomes, end. The children and totals of folders are not stored: the loader
//! computes them from the parent of each inode.

use super::{ApplyError, Block, Body, File, Folder, Inode, Interner, Namespace, OpenWriter, ROOT};
use crate::namenode::op::{OnAbandon, Outcome, Quota};
use dfs_client::ids::{BlockId, FileId, Nonce, RequestId, Start, StartId};
use serde::{Deserialize, Serialize};

/// An item of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotItem {
    /// The first item: the cluster ID, the next IDs and the starts of the namespace.
    Header {
        cluster_id: String,
        next_file: u64,
        next_block: u64,
        skipped: Vec<(u64, u64)>,
        epoch: u64,
        starts: Vec<(u64, StartId)>,
        accepted: bool,
        records: u64,
    },
    /// A folder. The root is its own parent.
    Folder { entry: Entry, quota: Quota },
    /// A file. A block without a length is being written.
    File {
        entry: Entry,
        replication: u32,
        block_size: u64,
        blocks: Vec<(BlockId, Nonce, Option<u64>)>,
        open: Option<(String, OnAbandon)>,
    },
    /// The fence of a scope: the newest start of a JobTracker, which may commit. Earlier ones, and
    /// others with the same epoch, may not.
    Fence { scope: String, start: Start },
    /// A completed commit. The oldest commit is first.
    Commit { scope: String, commit_id: String, at_ms: u64 },
    /// A node that is being drained.
    Draining { node: String },
    /// The outcome of a recent request. The oldest outcome is first.
    Answer { request: RequestId, at_ms: u64, outcome: Outcome },
    /// The last item of a snapshot: the number of items of each kind before it.
    End { folders: u64, files: u64, others: u64 },
    /// An operator has turned safemode on.
    Safemode {},
}

/// The common part of folders and files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub id: FileId,
    pub parent: FileId,
    pub name: String,
    pub owner: String,
    pub group: String,
    pub mode: u32,
    pub modified_ms: u64,
}

impl Namespace {
    /// Returns the items of a snapshot of this namespace.
    pub fn items(&self) -> impl Iterator<Item = SnapshotItem> {
        let header = SnapshotItem::Header {
            cluster_id: self.cluster_id.clone(),
            next_file: self.next_file,
            next_block: self.next_block,
            skipped: self.skipped.clone(),
            epoch: self.epoch,
            starts: self.starts.iter().copied().collect(),
            accepted: self.accepted,
            records: self.records,
        };
        let inodes = self.inodes.iter().map(|(id, inode)| self.inode_item(*id, inode));
        let fences = self.fences.iter().map(|(scope, start)| {
            let scope = scope.clone();
            SnapshotItem::Fence { scope, start: *start }
        });
        let commits = self.commits.iter().map(|(scope, commit_id, at_ms)| {
            let (scope, commit_id) = (scope.to_owned(), commit_id.to_owned());
            SnapshotItem::Commit { scope, commit_id, at_ms }
        });
        let draining = self.draining.iter().map(|node| SnapshotItem::Draining { node: node.clone() });
        let retry_cache = self.retry_cache.iter().map(|(request, at_ms, outcome)| {
            let outcome = outcome.clone();
            SnapshotItem::Answer { request, at_ms, outcome }
        });
        let safemode = self.safemode.then_some(SnapshotItem::Safemode {});
        let others = fences.chain(commits).chain(draining).chain(safemode).chain(retry_cache);
        let items = std::iter::once(header).chain(inodes).chain(others);
        let mut counts = Counts::default();
        items.map(Some).chain(std::iter::once(None)).map(move |item| match item {
            Some(item) => {
                counts.add(&item);
                item
            }
            None => counts.end(),
        })
    }

    fn inode_item(&self, id: FileId, inode: &Inode) -> SnapshotItem {
        let entry = Entry {
            id,
            parent: inode.parent,
            name: inode.name.to_string(),
            owner: inode.owner.to_string(),
            group: inode.group.to_string(),
            mode: inode.mode,
            modified_ms: inode.modified_ms,
        };
        match &inode.body {
            Body::Folder(folder) => SnapshotItem::Folder { entry, quota: folder.quota },
            Body::File(file) => SnapshotItem::File {
                entry,
                replication: file.replication,
                block_size: file.block_size,
                blocks: file
                    .blocks
                    .iter()
                    .filter_map(|id| self.block(*id).map(|block| (*id, block.nonce, block.length())))
                    .collect(),
                open: file.open.as_ref().map(|open| (open.holder.to_string(), open.on_abandon)),
            },
        }
    }
}

/// Number of items of each kind.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Counts {
    folders: u64,
    files: u64,
    others: u64,
}

impl Counts {
    fn add(&mut self, item: &SnapshotItem) {
        match item {
            SnapshotItem::Folder { .. } => self.folders += 1,
            SnapshotItem::File { .. } => self.files += 1,
            _ => self.others += 1,
        }
    }

    fn end(&self) -> SnapshotItem {
        let Self { folders, files, others } = *self;
        SnapshotItem::End { folders, files, others }
    }
}

/// Loads a snapshot item by item.
#[derive(Debug, Default)]
pub struct SnapshotLoader {
    namespace: Option<Namespace>,
    counts: Counts,
    ended: bool,
    retry_cache_limit: Option<usize>,
}

fn invalid_snapshot(what: impl std::fmt::Display) -> ApplyError {
    ApplyError(format!("invalid snapshot: {what}"))
}

/// Creates an empty namespace with the values of the header.
fn namespace_from_header(item: SnapshotItem) -> Result<Namespace, ApplyError> {
    let SnapshotItem::Header { cluster_id, next_file, next_block, skipped, epoch, starts, accepted, records } =
        item
    else {
        return Err(invalid_snapshot("it does not start with a header"));
    };
    let bare = Namespace::without_root(cluster_id, Interner::default());
    let starts = starts.into();
    Ok(Namespace { next_file, next_block, skipped, epoch, starts, accepted, records, ..bare })
}

impl SnapshotLoader {
    /// Creates a loader whose namespace keeps at most `limit` outcomes for repeated requests.
    pub fn with_retry_cache(limit: usize) -> Self {
        Self { retry_cache_limit: Some(limit), ..Self::default() }
    }

    /// Adds the next item.
    pub fn take(&mut self, item: SnapshotItem) -> Result<(), ApplyError> {
        if self.ended {
            return Err(invalid_snapshot("there are items after the end"));
        }
        if let SnapshotItem::End { .. } = item {
            self.ended = item == self.counts.end();
            return if self.ended {
                Ok(())
            } else {
                Err(invalid_snapshot(format_args!(
                    "the end item is {item:?}, but there are {:?}",
                    self.counts
                )))
            };
        }
        self.counts.add(&item);
        let Some(namespace) = &mut self.namespace else {
            let namespace = self.namespace.insert(namespace_from_header(item)?);
            if let Some(limit) = self.retry_cache_limit {
                namespace.set_retry_cache_limit(limit);
            }
            return Ok(());
        };
        namespace.load_item(item)
    }

    /// Returns the namespace, if the items are complete and consistent.
    pub fn finish(self) -> Result<Namespace, ApplyError> {
        match self.namespace {
            Some(mut namespace) if self.ended => {
                namespace.link_children()?;
                Ok(namespace)
            }
            _ => Err(invalid_snapshot("the end item is missing")),
        }
    }
}

impl Namespace {
    fn load_item(&mut self, item: SnapshotItem) -> Result<(), ApplyError> {
        match item {
            SnapshotItem::Folder { entry, quota } => {
                let folder = Folder { quota, ..Folder::default() };
                return self.load_inode(entry, Body::Folder(Box::new(folder)));
            }
            SnapshotItem::File { entry, replication, block_size, blocks, open } => {
                let open = open.map(|(holder, on_abandon)| {
                    let uncommitted_blocks =
                        blocks.iter().filter(|(.., length)| length.is_none()).count() as u32;
                    Box::new(OpenWriter { holder: holder.into(), on_abandon, uncommitted_blocks })
                });
                let mut file = File {
                    blocks: blocks.iter().map(|(block, ..)| *block).collect(),
                    length: 0,
                    block_size,
                    replication,
                    open,
                };
                self.load_blocks(entry.id, &mut file, &blocks)?;
                return self.load_inode(entry, Body::File(Box::new(file)));
            }
            SnapshotItem::Fence { scope, start } => drop(self.fences.insert(scope, start)),
            SnapshotItem::Commit { scope, commit_id, at_ms } => {
                self.commits.insert(&scope, &commit_id, at_ms);
            }
            SnapshotItem::Draining { node } => drop(self.draining.insert(node)),
            SnapshotItem::Safemode {} => self.safemode = true,
            SnapshotItem::Answer { request, at_ms, outcome } => {
                self.retry_cache.insert(request, at_ms, outcome);
            }
            SnapshotItem::Header { .. } | SnapshotItem::End { .. } => {
                return Err(invalid_snapshot("a second header or end"));
            }
        }
        Ok(())
    }

    fn load_blocks(
        &mut self,
        id: FileId,
        file: &mut File,
        blocks: &[(BlockId, Nonce, Option<u64>)],
    ) -> Result<(), ApplyError> {
        for (block, nonce, length) in blocks {
            let known = Block::new(id, *nonce, *length);
            if block.0 >= self.next_block || self.blocks.insert(*block, known).is_some() {
                return Err(invalid_snapshot(format_args!("{block} appears twice or was never assigned")));
            }
            if length.is_none() && file.open.is_none() {
                return Err(invalid_snapshot(format_args!("{id} is closed and {block} has no length")));
            }
            file.length += length.unwrap_or(0);
            self.committed_blocks += u64::from(length.is_some());
        }
        if file.open.is_some() {
            self.open.insert(id);
        }
        Ok(())
    }

    fn load_inode(&mut self, entry: Entry, body: Body) -> Result<(), ApplyError> {
        let inode = Inode {
            parent: entry.parent,
            name: entry.name.into(),
            owner: self.interner.share(&entry.owner),
            group: self.interner.share(&entry.group),
            mode: entry.mode,
            modified_ms: entry.modified_ms,
            body,
        };
        if entry.id.0 >= self.next_file || self.inodes.insert(entry.id, inode).is_some() {
            return Err(invalid_snapshot(format_args!("{} appears twice or was never assigned", entry.id)));
        }
        Ok(())
    }

    /// Computes the children and totals of all folders: first the children by name, then the totals
    /// from the leaves up.
    fn link_children(&mut self) -> Result<(), ApplyError> {
        if self.inode(ROOT).and_then(Inode::folder).is_none() {
            return Err(invalid_snapshot("there is no root folder"));
        }
        let parents: Vec<_> =
            self.inodes.iter().map(|(id, inode)| (*id, inode.parent, inode.name.clone())).collect();
        for (id, parent, name) in parents.into_iter().filter(|(id, ..)| *id != ROOT) {
            match self.inodes.get_mut(&parent).map(|inode| &mut inode.body) {
                Some(Body::Folder(folder)) if !folder.children.contains_key(&name) => {
                    folder.children.insert(name, id);
                }
                _ => return Err(invalid_snapshot(format_args!("{id} cannot be an entry of {parent}"))),
            }
        }
        let order = self.subtree(ROOT);
        if order.len() != self.inodes.len() {
            return Err(invalid_snapshot("some folders are not below the root"));
        }
        for id in order.into_iter().rev().filter(|id| *id != ROOT) {
            let Some(inode) = self.inodes.get(&id) else { continue };
            let (parent, totals) = (inode.parent, inode.totals());
            if let Some(Inode { body: Body::Folder(folder), .. }) = self.inodes.get_mut(&parent) {
                folder.totals = folder.totals + totals;
            }
        }
        Ok(())
    }
}
