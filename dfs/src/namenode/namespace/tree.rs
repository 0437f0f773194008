//! Lookup of inodes by path, paths of inodes, and traversal of subtrees.

use super::{Inode, Namespace, ROOT, Totals};
use dfs_client::{
    error::{Error, Kind},
    ids::FileId,
    path::DfsPath,
};
use std::{
    ops::Bound::{Excluded, Unbounded},
    sync::Arc,
};

impl Namespace {
    /// Returns the inode at `path`, or `None` if it does not exist. It is an error if a parent in
    /// the path is a file.
    pub(in crate::namenode) fn find(&self, path: &DfsPath) -> Result<Option<FileId>, Error> {
        let mut at = ROOT;
        for name in path.names() {
            match self.child(at, name) {
                Ok(Some(child)) => at = child,
                Ok(None) => return Ok(None),
                Err(NotAFolder) => return Err(self.not_a_folder(at, path)),
            }
        }
        Ok(Some(at))
    }

    /// Returns the inode at `path`, or an error if it does not exist.
    pub(in crate::namenode) fn get(&self, path: &DfsPath) -> Result<(FileId, &Inode), Error> {
        let missing = || Error::new(Kind::NotFound, format!("{path}: no such file or folder"));
        let id = self.find(path)?.ok_or_else(missing)?;
        Ok((id, self.inodes.get(&id).ok_or_else(missing)?))
    }

    /// Returns the entry `name` of a folder.
    pub(in crate::namenode) fn child(
        &self,
        folder: FileId,
        name: &str,
    ) -> Result<Option<FileId>, NotAFolder> {
        let folder = self.inodes.get(&folder).and_then(Inode::folder).ok_or(NotAFolder)?;
        Ok(folder.children.get(name).copied())
    }

    /// Returns the error for a path in which `file` is used as a folder.
    pub(in crate::namenode) fn not_a_folder(&self, file: FileId, path: &DfsPath) -> Error {
        let at = self.path_of(file).map_or_else(|| file.to_string(), |at| at.to_string());
        Error::new(Kind::NotDirectory, format!("{path}: {at} is a file, not a folder"))
    }

    /// Returns the current path of an inode.
    pub(in crate::namenode) fn path_of(&self, id: FileId) -> Option<DfsPath> {
        let mut names: Vec<Arc<str>> = Vec::new();
        let mut at = id;
        while at != ROOT {
            let inode = self.inodes.get(&at)?;
            names.push(inode.name.clone());
            at = inode.parent;
        }
        let mut text = String::from("/");
        for (i, name) in names.iter().rev().enumerate() {
            if i > 0 {
                text.push('/');
            }
            text.push_str(name);
        }
        DfsPath::parse(&text).ok()
    }

    /// Returns the ancestors of an inode, the parent first, the root last.
    pub(in crate::namenode) fn ancestors(&self, id: FileId) -> impl Iterator<Item = FileId> {
        let mut at = id;
        std::iter::from_fn(move || {
            if at == ROOT {
                return None;
            }
            at = self.inodes.get(&at)?.parent;
            Some(at)
        })
    }

    /// Returns how many more bytes, over all replicas, the quotas of the ancestors of `id` allow.
    /// Returns `None` if there is no quota, and a negative number if a quota is already exceeded.
    pub(in crate::namenode) fn space_left(&self, id: FileId) -> Option<i128> {
        let folders = self.ancestors(id).filter_map(|above| self.inodes.get(&above)?.folder());
        folders.filter_map(|folder| Some(i128::from(folder.quota.space?) - folder.totals.space)).min()
    }

    /// Returns `id` and all of its descendants, parents before children.
    pub(in crate::namenode) fn subtree(&self, id: FileId) -> Vec<FileId> {
        let mut all = vec![id];
        let mut next = 0;
        while next < all.len() {
            if let Some(folder) = self.inodes.get(&all[next]).and_then(Inode::folder) {
                all.extend(folder.children.values());
            }
            next += 1;
        }
        all
    }

    /// Returns the length in bytes of the longest path below `id`, relative to `id`.
    pub(in crate::namenode) fn longest_below(&self, id: FileId) -> usize {
        let mut longest = 0;
        let mut todo = vec![(id, 0)];
        while let Some((at, bytes)) = todo.pop() {
            longest = longest.max(bytes);
            if let Some(folder) = self.inodes.get(&at).and_then(Inode::folder) {
                todo.extend(folder.children.iter().map(|(name, child)| (*child, bytes + 1 + name.len())));
            }
        }
        longest
    }

    /// Adds `change` to the totals of `folder` and all of its ancestors.
    pub(super) fn charge(&mut self, folder: FileId, change: Totals) {
        let mut at = folder;
        while let Some(Inode { parent, body: super::Body::Folder(body), .. }) = self.inodes.get_mut(&at) {
            body.totals = body.totals + change;
            if at == ROOT {
                return;
            }
            at = *parent;
        }
    }

    /// Iterates over the files below `top` in the order of their names, starting after
    /// `start_after`.
    pub(in crate::namenode) fn files_after(
        &self,
        top: FileId,
        top_path: &DfsPath,
        start_after: Option<&DfsPath>,
    ) -> FilesAfter<'_> {
        let mut stack = vec![(top, None)];
        if let Some(start) = start_after.filter(|start| start.is_within(top_path)) {
            for name in start.names().skip(top_path.names().count()) {
                let Some((folder, last)) = stack.last_mut() else { break };
                *last = Some(name.into());
                match self.child(*folder, name) {
                    Ok(Some(child)) if self.inodes.get(&child).is_some_and(|c| c.folder().is_some()) => {
                        stack.push((child, None));
                    }
                    _ => break,
                }
            }
        }
        FilesAfter { namespace: self, stack }
    }
}

/// The inode is a file or does not exist.
#[derive(Debug)]
pub(in crate::namenode) struct NotAFolder;

/// Iterator of [`Namespace::files_after`]. The stack contains the folders from `top` down to the
/// current one, each with the last visited name.
#[derive(Debug)]
pub(in crate::namenode) struct FilesAfter<'a> {
    namespace: &'a Namespace,
    stack: Vec<(FileId, Option<Arc<str>>)>,
}

impl Iterator for FilesAfter<'_> {
    type Item = FileId;

    fn next(&mut self) -> Option<FileId> {
        loop {
            let (folder, last) = self.stack.last_mut()?;
            let children = &self.namespace.inodes.get(folder)?.folder()?.children;
            let next = match last {
                Some(last) => children.range::<str, _>((Excluded(&**last), Unbounded)).next(),
                None => children.iter().next(),
            };
            let Some((name, child)) = next else {
                self.stack.pop();
                continue;
            };
            *last = Some(name.clone());
            if self.namespace.file(*child).is_some() {
                return Some(*child);
            }
            self.stack.push((*child, None));
        }
    }
}
