//! Folders and files as the namespace keeps them: small, because there are millions.

use crate::{
    ids::{BlockId, FileId, Nonce},
    namenode::op::{OnAbandon, Quota},
};
use smallvec::SmallVec;
use std::{collections::BTreeMap, iter::Sum, ops, sync::Arc};

/// A folder or file. `name` is shared with the parent's table of children, `owner` and `group` with everyone.
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

/// What makes the difference.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::namenode) enum Body {
    Folder(Box<Folder>),
    File(Box<File>),
}

/// A folder. `totals` is the sum over everything below, itself not counted.
#[derive(Debug, Clone, PartialEq, Default)]
pub(in crate::namenode) struct Folder {
    pub(in crate::namenode) children: BTreeMap<Arc<str>, FileId>,
    pub(in crate::namenode) totals: Totals,
    pub(in crate::namenode) quota: Quota,
}

/// A file. `length` is the sum of its finished blocks; only an open file has unfinished ones.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::namenode) struct File {
    pub(in crate::namenode) blocks: SmallVec<[BlockId; 2]>,
    pub(in crate::namenode) length: u64,
    pub(in crate::namenode) block_size: u64,
    pub(in crate::namenode) replication: u32,
    pub(in crate::namenode) open: Option<Box<Open>>,
}

/// The writer of a file.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::namenode) struct Open {
    pub(in crate::namenode) holder: Box<str>,
    pub(in crate::namenode) on_abandon: OnAbandon,
    /// Blocks added and not committed.
    pub(in crate::namenode) unfinished: u32,
}

/// A block, as far as it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::namenode) struct Block {
    pub(in crate::namenode) file: FileId,
    pub(in crate::namenode) nonce: Nonce,
    length: u64,
}

const UNFINISHED: u64 = u64::MAX;

impl Block {
    /// A block of `file`; without a length it is being written.
    pub(super) fn new(file: FileId, nonce: Nonce, length: Option<u64>) -> Self {
        Self { file, nonce, length: length.unwrap_or(UNFINISHED) }
    }

    /// Its bytes, once committed.
    pub(in crate::namenode) fn length(self) -> Option<u64> {
        (self.length != UNFINISHED).then_some(self.length)
    }
}

/// Files, folders, bytes and bytes times replication: a sum, or a change of one.
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
    /// What it adds to the folders above it. A block counts from its commit on, with the bytes it has.
    pub(in crate::namenode) fn totals(&self) -> Totals {
        let bytes = i128::from(self.length);
        Totals { files: 1, dirs: 0, bytes, space: bytes * i128::from(self.replication) }
    }
}

impl Inode {
    /// What it and everything below add to the folders above it.
    pub(in crate::namenode) fn totals(&self) -> Totals {
        match &self.body {
            Body::Folder(folder) => folder.totals + Totals { dirs: 1, ..Totals::default() },
            Body::File(file) => file.totals(),
        }
    }

    /// The file, if it is one.
    pub(in crate::namenode) fn file(&self) -> Option<&File> {
        match &self.body {
            Body::File(file) => Some(file),
            Body::Folder(_) => None,
        }
    }

    /// The folder, if it is one.
    pub(in crate::namenode) fn folder(&self) -> Option<&Folder> {
        match &self.body {
            Body::Folder(folder) => Some(folder),
            Body::File(_) => None,
        }
    }
}
