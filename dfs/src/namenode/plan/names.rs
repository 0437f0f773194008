//! Plans operations on folders, names and attributes.

use super::{FOLDER_MODE, NewEntry, Plan, Target, check_label, check_mode, refuse};
use crate::namenode::{
    namespace::{Body, Edit, Inode, Totals},
    op::{Outcome, Quota},
};
use dfs_client::{
    error::{Error, Kind},
    ids::FileId,
    path::{DfsPath, PATH_BYTES_MAX},
};
use std::collections::BTreeSet;

/// The attributes to set. `None` leaves an attribute unchanged.
#[derive(Debug, Default)]
pub(in crate::namenode) struct Attributes<'a> {
    pub(in crate::namenode) replication: Option<u32>,
    pub(in crate::namenode) mode: Option<u32>,
    pub(in crate::namenode) owner: Option<&'a str>,
    pub(in crate::namenode) group: Option<&'a str>,
    pub(in crate::namenode) modified_ms: Option<u64>,
}

impl<'a> Plan<'a> {
    /// Creates a folder. With `parents`, also creates missing parents, and succeeds if the folder
    /// already exists.
    pub(in crate::namenode) fn mkdir(
        &mut self,
        path: &DfsPath,
        parents: bool,
        mode: Option<u32>,
    ) -> Result<Outcome, Error> {
        check_mode(path, mode.unwrap_or(FOLDER_MODE))?;
        if path.is_root() {
            return if parents { Ok(Outcome::Done) } else { refuse(Kind::Exists, "/ already exists") };
        }
        let target = self.resolve(path, parents)?;
        match self.inode_at(&target) {
            Some((_, inode)) if inode.folder().is_some() && parents => {}
            Some((_, inode)) => {
                let what = if inode.folder().is_some() { "folder" } else { "file" };
                return refuse(Kind::Exists, format!("{path}: a {what} of this name already exists"));
            }
            None => drop(self.make_folder(&target, mode)),
        }
        Ok(Outcome::Done)
    }

    /// Creates a home folder with the default quota. Its parent must exist, because only a
    /// superuser may create the parent.
    pub(in crate::namenode) fn make_home(&mut self, path: &DfsPath, mode: u32) -> Result<(), Error> {
        check_label("user", self.user)?;
        let target = self.resolve(path, false)?;
        let id = self.make_folder(&target, Some(mode));
        self.edits.push(Edit::QuotaSet { id, quota: self.settings.default_quota });
        Ok(())
    }

    /// Moves a file or folder. `to` is the complete new path.
    pub(in crate::namenode) fn rename(
        &mut self,
        from: &DfsPath,
        to: &DfsPath,
        overwrite: bool,
    ) -> Result<Outcome, Error> {
        if from.is_root() {
            return refuse(Kind::Refused, format!("/ is the root folder and cannot be renamed to {to}"));
        }
        let (id, inode) = self.namespace.get(from)?;
        self.rename_inode(id, inode, from, to, overwrite)?;
        Ok(Outcome::Done)
    }

    /// Moves a file or folder like [`Self::rename`], if its inode is already known.
    pub(super) fn rename_inode(
        &mut self,
        id: FileId,
        inode: &'a Inode,
        from: &DfsPath,
        to: &DfsPath,
        overwrite: bool,
    ) -> Result<(), Error> {
        if from == to {
            return Ok(());
        }
        if to.is_within(from) {
            return refuse(Kind::Invalid, format!("{from} cannot be renamed to {to}, which is inside it"));
        }
        if to.is_root() {
            return refuse(
                Kind::Exists,
                format!("{from} cannot be renamed to /: give the complete new path"),
            );
        }
        let target = self.resolve(to, false)?;
        if let Some((old_id, old)) = self.inode_at(&target) {
            self.replace_file(old_id, old, to, overwrite, inode.folder().is_some())?;
        }
        if inode.folder().is_some() && to.as_str().len() > from.as_str().len() {
            let longest = to.as_str().len() + self.namespace.longest_below(id);
            if longest > PATH_BYTES_MAX {
                return refuse(
                    Kind::Invalid,
                    format!(
                        "{from} cannot be renamed to {to}: a path below it would have {longest} bytes, the limit is {PATH_BYTES_MAX}"
                    ),
                );
            }
        }
        self.move_to(id, inode, &target);
        Ok(())
    }

    /// Deletes the file `old` at `path`, to which another inode is moved. Refuses if it must not be
    /// replaced.
    fn replace_file(
        &mut self,
        old_id: FileId,
        old: &Inode,
        path: &DfsPath,
        overwrite: bool,
        by_folder: bool,
    ) -> Result<(), Error> {
        let Some(file) = old.file() else {
            return refuse(Kind::Exists, format!("{path}: a folder of this name already exists"));
        };
        if !overwrite {
            return refuse(Kind::Exists, format!("{path}: a file of this name already exists"));
        }
        if by_folder {
            return refuse(Kind::NotDirectory, format!("{path}: a folder cannot replace a file"));
        }
        if let Some(open) = &file.open {
            return refuse(Kind::Busy, format!("{path} is being written by {}", open.holder));
        }
        self.delete(old_id, old);
        Ok(())
    }

    /// Deletes a file or folder. Does nothing if the path does not exist.
    pub(in crate::namenode) fn delete_path(
        &mut self,
        path: &DfsPath,
        recursive: bool,
    ) -> Result<Outcome, Error> {
        if path.is_root() {
            return refuse(Kind::Refused, "/ is the root folder and cannot be deleted");
        }
        let Some(id) = self.namespace.find(path)? else { return Ok(Outcome::Existed(false)) };
        let Some(inode) = self.namespace.inode(id) else { return Ok(Outcome::Existed(false)) };
        if let Body::Folder(folder) = &inode.body
            && !folder.children.is_empty()
            && !recursive
        {
            let inside = match folder.children.len() {
                1 => "1 entry".into(),
                entries => format!("{entries} entries"),
            };
            return refuse(
                Kind::NotEmpty,
                format!("{path} is a folder with {inside}: delete it with the recursive flag"),
            );
        }
        self.delete(id, inode);
        Ok(Outcome::Existed(true))
    }

    /// Changes the attributes that are given.
    pub(in crate::namenode) fn set_attributes(
        &mut self,
        path: &DfsPath,
        set: &Attributes<'_>,
    ) -> Result<Outcome, Error> {
        let (id, inode) = self.namespace.get(path)?;
        check_mode(path, set.mode.unwrap_or(0))?;
        for (what, word) in [("owner", set.owner), ("group", set.group)] {
            word.map_or(Ok(()), |word| check_label(what, word))?;
        }
        if let Some(replication) = set.replication {
            self.check_replication(path, replication)?;
            let Some(file) = inode.file() else {
                return refuse(Kind::IsDirectory, format!("{path} is a folder: only files are replicated"));
            };
            let mut changed = file.clone();
            changed.replication = replication;
            self.charge(inode.parent, changed.totals() + -file.totals());
        }
        self.edits.push(Edit::AttributesSet {
            id,
            replication: set.replication,
            mode: set.mode,
            owner: set.owner.map(str::to_owned),
            group: set.group.map(str::to_owned),
            modified_ms: set.modified_ms,
        });
        Ok(Outcome::Done)
    }

    /// Sets the quota of a folder. A quota below the current size only prevents growth.
    pub(in crate::namenode) fn set_quota(&mut self, path: &DfsPath, quota: Quota) -> Result<Outcome, Error> {
        let (id, inode) = self.namespace.get(path)?;
        if inode.folder().is_none() {
            return refuse(Kind::NotDirectory, format!("{path} is a file: only folders have quotas"));
        }
        self.edits.push(Edit::QuotaSet { id, quota });
        Ok(Outcome::Done)
    }

    /// Appends the blocks of `sources`, in order, to `target`. The sources are removed.
    pub(in crate::namenode) fn concat(
        &mut self,
        target: &DfsPath,
        sources: &[DfsPath],
    ) -> Result<Outcome, Error> {
        if sources.is_empty() {
            return refuse(Kind::Invalid, format!("{target}: give at least one file to append"));
        }
        let (id, inode) = self.closed_file(target)?;
        let mut used = BTreeSet::from([id]);
        for source in sources {
            let (source_id, source_inode) = self.closed_file(source)?;
            if !used.insert(source_id) {
                return refuse(
                    Kind::Invalid,
                    format!("{source} is given twice: a file can be appended only once"),
                );
            }
            self.append_blocks(id, inode, source_id, source_inode);
        }
        Ok(Outcome::File(id))
    }

    /// Appends the blocks of a closed file to another closed file.
    pub(super) fn append_blocks(&mut self, id: FileId, inode: &Inode, source_id: FileId, source: &Inode) {
        let replication = inode.file().map_or(0, |file| file.replication);
        let bytes = source.totals().bytes;
        self.detach(source_id, source);
        let more = Totals { bytes, space: bytes * i128::from(replication), ..Totals::default() };
        self.charge(inode.parent, more);
        // Also record the totals for the file itself, so that a later move in the same plan moves
        // the added bytes too.
        let totals = self.totals_changes.entry(id).or_default();
        *totals = *totals + more;
        *self.added_blocks.entry(id).or_default() += source.file().map_or(0, |file| file.blocks.len());
        self.edits.push(Edit::Concatenated { target: id, source: source_id });
    }

    /// Returns a file that exists and is not open for writing.
    pub(super) fn closed_file(&self, path: &DfsPath) -> Result<(FileId, &'a Inode), Error> {
        let (id, inode) = self.namespace.get(path)?;
        let Some(file) = inode.file() else {
            return refuse(Kind::IsDirectory, format!("{path} is a folder, not a file"));
        };
        if let Some(open) = &file.open {
            return refuse(Kind::Busy, format!("{path} is being written by {}: close it first", open.holder));
        }
        Ok((id, inode))
    }

    /// Adds the edit that creates a file, and its entry.
    pub(super) fn add_file(&mut self, target: &Target, edit: Edit) {
        self.edits.push(edit);
        self.add_entry(target, NewEntry::File, Totals { files: 1, ..Totals::default() });
    }
}
