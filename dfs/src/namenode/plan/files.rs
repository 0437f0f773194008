//! Plans operations on files and their writers.

use super::{FILE_MODE, Plan, check_label, check_mode, refuse};
use crate::namenode::{
    namespace::{Block, Edit, File, Inode, Totals},
    op::{BlockLength, OnAbandon, Outcome},
};
use daemon::config::BLOCK_BYTES_MAX;
use dfs_client::{
    error::{Error, Kind},
    ids::{BlockId, FileId, Nonce},
    path::DfsPath,
};
use std::collections::BTreeMap;

/// A file to be created.
#[derive(Debug)]
pub(in crate::namenode) struct NewFile<'a> {
    pub(in crate::namenode) path: &'a DfsPath,
    pub(in crate::namenode) holder: &'a str,
    pub(in crate::namenode) replication: Option<u32>,
    pub(in crate::namenode) block_size: Option<u64>,
    pub(in crate::namenode) overwrite: bool,
    pub(in crate::namenode) make_parents: bool,
    pub(in crate::namenode) mode: Option<u32>,
    pub(in crate::namenode) on_abandon: OnAbandon,
}

impl<'a> Plan<'a> {
    /// Creates a file that is open for writing by its holder.
    pub(in crate::namenode) fn create(&mut self, new: &NewFile<'_>) -> Result<Outcome, Error> {
        let path = new.path;
        let replication = new.replication.unwrap_or(self.settings.replication);
        let block_size = new.block_size.unwrap_or(self.settings.block_size);
        check_label("holder", new.holder)?;
        check_mode(path, new.mode.unwrap_or(FILE_MODE))?;
        self.check_replication(path, replication)?;
        self.check_block_size(path, block_size)?;
        let target = self.resolve(path, new.make_parents)?;
        if let Some((old_id, old)) = self.inode_at(&target) {
            self.replace_existing(path, new, old_id, old)?;
        }
        let edit = Edit::FileCreated {
            id: self.new_id(),
            parent: target.folder,
            name: target.name.clone(),
            owner: self.user.to_owned(),
            group: self.group_in(target.folder),
            mode: new.mode.unwrap_or(FILE_MODE),
            replication,
            block_size,
            holder: new.holder.to_owned(),
            on_abandon: new.on_abandon,
        };
        self.add_file(&target, edit);
        Ok(Outcome::File(FileId(self.next_file - 1)))
    }

    fn replace_existing(
        &mut self,
        path: &DfsPath,
        new: &NewFile<'_>,
        old_id: FileId,
        old: &Inode,
    ) -> Result<(), Error> {
        let Some(file) = old.file() else {
            return refuse(Kind::IsDirectory, format!("{path} is a folder: choose another name"));
        };
        match &file.open {
            Some(open) if &*open.holder != new.holder || !new.overwrite => {
                refuse(Kind::Busy, format!("{path} is being written by {}", open.holder))
            }
            None if !new.overwrite => {
                refuse(Kind::Exists, format!("{path} already exists: delete it or set the overwrite option"))
            }
            _ => {
                self.delete(old_id, old);
                Ok(())
            }
        }
    }

    /// Opens a closed file for writing again.
    pub(in crate::namenode) fn append(&mut self, path: &DfsPath, holder: &str) -> Result<Outcome, Error> {
        check_label("holder", holder)?;
        let (file, _) = self.closed_file(path)?;
        self.edits.push(Edit::FileReopened { file, holder: holder.to_owned() });
        Ok(Outcome::File(file))
    }

    /// Commits the blocks in `commits` and adds `block` at the end of the file. Returns the block
    /// size and the replication of the file. No quota is reserved for the block, because it counts
    /// when it is committed. It is refused now only if its `expected` length (one byte, if unknown)
    /// would exceed a quota.
    pub(in crate::namenode) fn add_block(
        &mut self,
        id: FileId,
        holder: &str,
        commits: &[BlockLength],
        (block, nonce): (BlockId, Nonce),
        expected: u64,
    ) -> Result<(u64, u32), Error> {
        let (inode, file) = self.file_written_by(id, holder)?;
        self.commit_lengths(id, inode, file, commits)?;
        let space = i128::from(expected.clamp(1, file.block_size)) * i128::from(file.replication);
        self.charge(inode.parent, Totals { space, ..Totals::default() });
        self.edits.push(Edit::BlockAdded { file: id, block, nonce });
        *self.added_blocks.entry(id).or_default() += 1;
        Ok((file.block_size, file.replication))
    }

    /// Removes an uncommitted block from its file. Ignores a block that is not in the file.
    pub(in crate::namenode) fn abandon_block(
        &mut self,
        id: FileId,
        holder: &str,
        block: BlockId,
    ) -> Result<Outcome, Error> {
        let (_, file) = self.file_written_by(id, holder)?;
        if file.blocks.contains(&block) {
            if self.namespace.block(block).and_then(Block::length).is_some() {
                return refuse(
                    Kind::Refused,
                    format!("{block} of {id} is committed: it cannot be abandoned"),
                );
            }
            self.edits.push(Edit::BlockDropped { block });
        }
        Ok(Outcome::Done)
    }

    /// Commits the blocks in `commits`, closes the file, and moves it if requested. Refuses if
    /// another block of the file is not committed.
    pub(in crate::namenode) fn close(
        &mut self,
        id: FileId,
        holder: &str,
        commits: &[BlockLength],
        rename_to: Option<(&DfsPath, bool)>,
    ) -> Result<Outcome, Error> {
        let (inode, file) = self.file_written_by(id, holder)?;
        let lengths = self.commit_lengths(id, inode, file, commits)?;
        let unfinished = |block: &&BlockId| {
            !lengths.contains_key(block) && self.namespace.block(**block).and_then(Block::length).is_none()
        };
        if let Some(block) = file.blocks.iter().find(unfinished) {
            return refuse(
                Kind::Refused,
                format!("{}: {block} is not committed: commit or abandon it", self.path_text(id)),
            );
        }
        self.edits.push(Edit::FileClosed { file: id });
        if let Some((to, overwrite)) = rename_to
            && let Some(from) = self.namespace.path_of(id)
        {
            self.rename_inode(id, inode, &from, to, overwrite)?;
        }
        Ok(Outcome::File(id))
    }

    /// Returns the file, if `holder` is its writer.
    fn file_written_by(&self, id: FileId, holder: &str) -> Result<(&'a Inode, &'a File), Error> {
        let lost = |why: &str| {
            let at = self.path_text(id);
            refuse(Kind::LeaseLost, format!("{at} is not open for {holder}: {why}"))
        };
        let Some(inode) = self.namespace.inode(id) else {
            return lost("it was deleted, perhaps because its lease expired");
        };
        match inode.file().map(|file| (file, &file.open)) {
            Some((file, Some(open))) if &*open.holder == holder => Ok((inode, file)),
            Some((_, Some(open))) => lost(&format!("its writer is {}", open.holder)),
            Some((_, None)) => lost("it is closed, perhaps because its lease expired"),
            None => lost("it is a folder"),
        }
    }

    /// Plans the commits of blocks. Returns the lengths of the blocks that were not committed
    /// before. A repeated commit is ignored.
    fn commit_lengths(
        &mut self,
        id: FileId,
        inode: &Inode,
        file: &File,
        commits: &[BlockLength],
    ) -> Result<BTreeMap<BlockId, u64>, Error> {
        let mut lengths = BTreeMap::new();
        for BlockLength { block, length } in commits {
            let Some(known) = self.namespace.block(*block).filter(|known| known.file == id) else {
                return refuse(Kind::Invalid, format!("{block} is not a block of {}", self.path_text(id)));
            };
            match known.length().or(lengths.get(block).copied()) {
                Some(before) if before == *length => continue,
                Some(before) => {
                    return refuse(
                        Kind::Invalid,
                        format!(
                            "{block} of {}: it is committed with {before} bytes, not {length}",
                            self.path_text(id)
                        ),
                    );
                }
                None => {}
            }
            if *length > file.block_size {
                return refuse(
                    Kind::Invalid,
                    format!(
                        "{block} of {}: {length} bytes are more than the block size {}",
                        self.path_text(id),
                        file.block_size
                    ),
                );
            }
            lengths.insert(*block, *length);
            self.edits.push(Edit::BlockCommitted { block: *block, length: *length });
            let bytes = i128::from(*length);
            let space = bytes * i128::from(file.replication);
            self.charge(inode.parent, Totals { bytes, space, ..Totals::default() });
        }
        Ok(lengths)
    }

    pub(super) fn check_replication(&self, path: &DfsPath, replication: u32) -> Result<(), Error> {
        let max = self.settings.replication_max;
        if replication == 0 || replication > max {
            return refuse(
                Kind::Invalid,
                format!("{path}: replication {replication} is not between 1 and {max} (replication_max)"),
            );
        }
        Ok(())
    }

    fn check_block_size(&self, path: &DfsPath, block_size: u64) -> Result<(), Error> {
        let least = self.settings.block_size_min;
        if !(least..=BLOCK_BYTES_MAX).contains(&block_size) {
            return refuse(
                Kind::Invalid,
                format!(
                    "{path}: block size {block_size} is not between {least} (block_size_min) and {BLOCK_BYTES_MAX}"
                ),
            );
        }
        Ok(())
    }
}
