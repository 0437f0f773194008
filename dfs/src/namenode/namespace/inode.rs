//! Folders and files in memory. Their types are small, because there are millions of them.

use crate::namenode::op::{OnAbandon, Quota};
use dfs_client::ids::{BlockId, FileId, Nonce};
use smallvec::SmallVec;
use std::{collections::BTreeMap, iter::Sum, ops, sync::Arc};

/// A folder or file. `name` shares its memory with the key in the children of the parent. `owner`
/// and `group` share their memory with all inodes that have the same owner or group.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::namenode) struct Inode {
    /// The root is its own parent.
    pub(in crate::namenode) parent: FileId,
    pub(in crate::namenode) name: Arc<str>,
    pub(in crate::namenode) owner: Arc<str>,
    pub(in crate::namenode) group: Arc<str>,
    pub(in crate::namenode) mode: u32,
    pub(in crate::namenode) modified_ms: u64,
    pub(in crate::namenode) body: Body,
}

/// The part that differs between folders and files.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::namenode) enum Body {
    Folder(Box<Folder>),
    File(Box<File>),
}

/// A folder. `totals` is the sum over all descendants, without the folder itself.
#[derive(Debug, Clone, PartialEq, Default)]
pub(in crate::namenode) struct Folder {
    pub(in crate::namenode) children: BTreeMap<Arc<str>, FileId>,
    pub(in crate::namenode) totals: Totals,
    pub(in crate::namenode) quota: Quota,
}

/// A file. `length` is the total length of its committed blocks. Only an open file has uncommitted
/// blocks.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::namenode) struct File {
    pub(in crate::namenode) blocks: SmallVec<[BlockId; 2]>,
    pub(in crate::namenode) length: u64,
    pub(in crate::namenode) block_size: u64,
    pub(in crate::namenode) replication: u32,
    pub(in crate::namenode) open: Option<Box<OpenWriter>>,
}

/// The writer of an open file.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::namenode) struct OpenWriter {
    pub(in crate::namenode) holder: Box<str>,
    pub(in crate::namenode) on_abandon: OnAbandon,
    /// Number of blocks that are added and not committed.
    pub(in crate::namenode) uncommitted_blocks: u32,
}

/// The durable state of a block. Its replicas are volatile: DataNodes report them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::namenode) struct Block {
    pub(in crate::namenode) file: FileId,
    pub(in crate::namenode) nonce: Nonce,
    length: u64,
}

/// Stands for the length of a block that is not committed.
const UNFINISHED: u64 = u64::MAX;

impl Block {
    /// Creates a block of `file`. A block without a length is being written.
    pub(super) fn new(file: FileId, nonce: Nonce, length: Option<u64>) -> Self {
        Self { file, nonce, length: length.unwrap_or(UNFINISHED) }
    }

    /// Returns the length if the block is committed.
    pub(in crate::namenode) fn length(self) -> Option<u64> {
        (self.length != UNFINISHED).then_some(self.length)
    }
}

/// Number of files, folders and bytes, and bytes times replication (`space`): the sum over a
/// subtree, or the change of such a sum, which may be negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::namenode) struct Totals {
    pub(in crate::namenode) files: i64,
    pub(in crate::namenode) dirs: i64,
    pub(in crate::namenode) bytes: i128,
    pub(in crate::namenode) space: i128,
}

impl ops::Add for Totals {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            files: self.files + other.files,
            dirs: self.dirs + other.dirs,
            bytes: self.bytes + other.bytes,
            space: self.space + other.space,
        }
    }
}

impl ops::Neg for Totals {
    type Output = Self;
    fn neg(self) -> Self {
        Self { files: -self.files, dirs: -self.dirs, bytes: -self.bytes, space: -self.space }
    }
}

impl Sum for Totals {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::default(), ops::Add::add)
    }
}

impl File {
    /// Returns what the file adds to the totals of its ancestors. A block counts once it is
    /// committed.
    pub(in crate::namenode) fn totals(&self) -> Totals {
        let bytes = i128::from(self.length);
        Totals { files: 1, dirs: 0, bytes, space: bytes * i128::from(self.replication) }
    }
}

impl Inode {
    /// Returns what the inode and all of its descendants add to the totals of its ancestors.
    pub(in crate::namenode) fn totals(&self) -> Totals {
        match &self.body {
            Body::Folder(folder) => folder.totals + Totals { dirs: 1, ..Totals::default() },
            Body::File(file) => file.totals(),
        }
    }

    /// Returns the file, if the inode is one.
    pub(in crate::namenode) fn file(&self) -> Option<&File> {
        match &self.body {
            Body::File(file) => Some(file),
            Body::Folder(_) => None,
        }
    }

    /// Returns the folder, if the inode is one.
    pub(in crate::namenode) fn folder(&self) -> Option<&Folder> {
        match &self.body {
            Body::Folder(folder) => Some(folder),
            Body::File(_) => None,
        }
    }
}
