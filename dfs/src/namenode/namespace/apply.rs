//! Applies edits to the namespace, both when they are made and when the log is replayed.
//!
//! If a record cannot be applied, the log is damaged or belongs to another cluster. The namespace
//! is then unusable.

use super::{ApplyError, Block, Body, Edit, File, Folder, Inode, Namespace, OpenWriter, Record, Totals};
use crate::namenode::op::OnAbandon;
use dfs_client::ids::{BlockId, FileId, Nonce};
use std::sync::Arc;

/// The changes of a record that affect the volatile half of the state.
#[derive(Debug, Default)]
pub(in crate::namenode) struct Changes {
    /// Blocks that were added to a file.
    pub(in crate::namenode) added: Vec<BlockId>,
    /// Blocks that were committed: their lengths are final.
    pub(in crate::namenode) committed: Vec<BlockId>,
    /// Blocks that were deleted.
    pub(in crate::namenode) dropped: Vec<(BlockId, Nonce)>,
    /// Blocks whose wanted number of replicas may have changed, with the previous number.
    pub(in crate::namenode) replication_changed: Vec<(BlockId, u32)>,
    /// Files that were opened for writing.
    pub(in crate::namenode) opened: Vec<FileId>,
    /// Files that have no writer any more, with the previous writer.
    pub(in crate::namenode) released: Vec<(FileId, Box<str>)>,
    /// Names of nodes whose drain was started or stopped.
    pub(in crate::namenode) drains: Vec<String>,
    /// Whether the epoch has changed.
    pub(in crate::namenode) started: bool,
}

pub(super) fn apply_error(what: impl std::fmt::Display) -> ApplyError {
    ApplyError(format!("record does not fit the namespace: {what}"))
}

impl Namespace {
    /// Applies one record of the log.
    pub fn apply(&mut self, record: &Record) -> Result<(), ApplyError> {
        self.apply_with_changes(record, &mut Changes::default())
    }

    /// Applies one record and collects the changes for the volatile half.
    pub(in crate::namenode) fn apply_with_changes(
        &mut self,
        record: &Record,
        changes: &mut Changes,
    ) -> Result<(), ApplyError> {
        for edit in &record.edits {
            self.apply_edit(record.at_ms, edit, changes)?;
        }
        if let Some((request, outcome)) = &record.request {
            self.retry_cache.insert(*request, record.at_ms, outcome.clone());
        }
        self.records += 1;
        Ok(())
    }

    fn apply_edit(&mut self, at_ms: u64, edit: &Edit, changes: &mut Changes) -> Result<(), ApplyError> {
        match edit {
            Edit::FolderCreated { .. } | Edit::FileCreated { .. } => self.apply_created(at_ms, edit, changes),
            Edit::FileReopened { file, holder } => self.apply_reopened(*file, holder, changes),
            Edit::BlockAdded { file, block, nonce } => {
                self.apply_block_added(*file, *block, *nonce)?;
                changes.added.push(*block);
                Ok(())
            }
            Edit::BlockCommitted { block, length } => self.apply_block_committed(*block, *length, changes),
            Edit::BlockDropped { block } => self.apply_block_dropped(*block, changes),
            Edit::FileClosed { file } => self.apply_closed(at_ms, *file, changes),
            Edit::Renamed { id, parent, name } => self.apply_renamed(at_ms, *id, *parent, name),
            Edit::Deleted { id } => self.apply_deleted(at_ms, *id, changes),
            Edit::AttributesSet { .. } => self.apply_attributes_set(edit, changes),
            Edit::QuotaSet { id, quota } => {
                self.folder_mut(*id)?.quota = *quota;
                Ok(())
            }
            Edit::Concatenated { target, source } => {
                self.apply_concatenated(at_ms, *target, *source, changes)
            }
            Edit::Committed { scope, commit_id } => {
                self.commits.insert(scope, commit_id, at_ms);
                Ok(())
            }
            Edit::Fenced { scope, start } => {
                self.fences.insert(scope.clone(), *start);
                Ok(())
            }
            Edit::DrainSet { node, on } => {
                if *on {
                    self.draining.insert(node.clone())
                } else {
                    self.draining.remove(node)
                };
                changes.drains.push(node.clone());
                Ok(())
            }
            Edit::Started { .. } => {
                changes.started = true;
                self.apply_started(edit)
            }
            Edit::SafemodeSet { on } => {
                self.safemode = *on;
                Ok(())
            }
            Edit::NewerBlocksDropped { next_block } => self.apply_newer_blocks_dropped(*next_block),
        }
    }

    fn apply_created(&mut self, at_ms: u64, edit: &Edit, changes: &mut Changes) -> Result<(), ApplyError> {
        let (id, parent, name, owner, group, mode, body) = match edit {
            Edit::FolderCreated { id, parent, name, owner, group, mode } => {
                (*id, *parent, name, owner, group, *mode, Body::Folder(Box::default()))
            }
            Edit::FileCreated { id, parent, name, owner, group, mode, .. } => {
                changes.opened.push(*id);
                (*id, *parent, name, owner, group, *mode, Body::File(Box::new(new_file(edit)?)))
            }
            other => return Err(apply_error(format_args!("{other:?} creates nothing"))),
        };
        if id.0 < self.next_file {
            return Err(apply_error(format_args!("{id} was assigned before")));
        }
        let (owner, group) = (self.interner.share(owner), self.interner.share(group));
        let name: Arc<str> = name.as_str().into();
        if matches!(body, Body::File(_)) {
            self.open.insert(id);
        }
        let inode = Inode { parent, name, owner, group, mode, modified_ms: at_ms, body };
        self.inodes.insert(id, inode);
        self.next_file = id.0 + 1;
        self.link(at_ms, id)
    }

    /// Adds an inode to the children and totals of its parent.
    fn link(&mut self, at_ms: u64, id: FileId) -> Result<(), ApplyError> {
        let inode = self.existing_inode(id)?;
        let (parent, name, totals) = (inode.parent, inode.name.clone(), inode.totals());
        if parent == id || self.ancestors(parent).any(|above| above == id) {
            return Err(apply_error(format_args!("{id} would be its own descendant")));
        }
        if self.folder_mut(parent)?.children.insert(name.clone(), id).is_some() {
            return Err(apply_error(format_args!("{parent} already has an entry {name:?}")));
        }
        self.touch(parent, at_ms);
        self.charge(parent, totals);
        Ok(())
    }

    /// Removes an inode from the children and totals of its parent.
    fn unlink(&mut self, at_ms: u64, id: FileId) -> Result<(), ApplyError> {
        let inode = self.existing_inode(id)?;
        let (parent, name, totals) = (inode.parent, inode.name.clone(), inode.totals());
        if self.folder_mut(parent)?.children.get(&name) != Some(&id) {
            return Err(apply_error(format_args!("{id} is not an entry of its parent")));
        }
        self.folder_mut(parent)?.children.remove(&name);
        self.touch(parent, at_ms);
        self.charge(parent, -totals);
        Ok(())
    }

    fn apply_renamed(
        &mut self,
        at_ms: u64,
        id: FileId,
        parent: FileId,
        name: &str,
    ) -> Result<(), ApplyError> {
        self.unlink(at_ms, id)?;
        let inode = self.inodes.get_mut(&id).ok_or_else(|| apply_error(id))?;
        inode.parent = parent;
        inode.name = name.into();
        self.link(at_ms, id)
    }

    fn apply_deleted(&mut self, at_ms: u64, id: FileId, changes: &mut Changes) -> Result<(), ApplyError> {
        self.unlink(at_ms, id)?;
        for gone in self.subtree(id) {
            let Some(Inode { body: Body::File(file), .. }) = self.inodes.remove(&gone) else { continue };
            for block in file.blocks {
                let Some(known) = self.blocks.remove(&block) else { continue };
                self.committed_blocks -= u64::from(known.length().is_some());
                changes.dropped.push((block, known.nonce));
            }
            if let Some(open) = file.open {
                self.open.remove(&gone);
                changes.released.push((gone, open.holder));
            }
        }
        Ok(())
    }

    fn apply_reopened(&mut self, id: FileId, holder: &str, changes: &mut Changes) -> Result<(), ApplyError> {
        let file = self.file_mut(id)?;
        if file.open.is_some() {
            return Err(apply_error(format_args!("{id} is already open")));
        }
        let open = OpenWriter { holder: holder.into(), on_abandon: OnAbandon::Close, uncommitted_blocks: 0 };
        file.open = Some(Box::new(open));
        self.open.insert(id);
        changes.opened.push(id);
        Ok(())
    }

    fn apply_block_added(&mut self, id: FileId, block: BlockId, nonce: Nonce) -> Result<(), ApplyError> {
        if block.0 < self.next_block {
            return Err(apply_error(format_args!("{block} was assigned before")));
        }
        self.change_file(id, |file| {
            file.open
                .as_mut()
                .ok_or_else(|| apply_error(format_args!("{id} is closed")))?
                .uncommitted_blocks += 1;
            file.blocks.push(block);
            Ok(())
        })?;
        self.skip_blocks(block.0);
        self.next_block = block.0 + 1;
        self.blocks.insert(block, Block::new(id, nonce, None));
        Ok(())
    }

    fn apply_block_committed(
        &mut self,
        block: BlockId,
        length: u64,
        changes: &mut Changes,
    ) -> Result<(), ApplyError> {
        let (id, nonce) = self.uncommitted_block(block)?;
        self.change_file(id, |file| {
            file.open
                .as_mut()
                .ok_or_else(|| apply_error(format_args!("{id} is closed")))?
                .uncommitted_blocks -= 1;
            file.length += length;
            Ok(())
        })?;
        self.blocks.insert(block, Block::new(id, nonce, Some(length)));
        self.committed_blocks += 1;
        changes.committed.push(block);
        Ok(())
    }

    fn apply_block_dropped(&mut self, block: BlockId, changes: &mut Changes) -> Result<(), ApplyError> {
        let known = self.blocks.remove(&block).ok_or_else(|| apply_error(block))?;
        self.change_file(known.file, |file| {
            let open = file
                .open
                .as_mut()
                .ok_or_else(|| apply_error(format_args!("the file of {block} is closed")))?;
            match known.length() {
                Some(length) => file.length -= length,
                None => open.uncommitted_blocks -= 1,
            }
            file.blocks.retain(|kept| *kept != block);
            Ok(())
        })?;
        self.committed_blocks -= u64::from(known.length().is_some());
        changes.dropped.push((block, known.nonce));
        Ok(())
    }

    fn apply_closed(&mut self, at_ms: u64, id: FileId, changes: &mut Changes) -> Result<(), ApplyError> {
        let open =
            self.file_mut(id)?.open.take().ok_or_else(|| apply_error(format_args!("{id} is closed")))?;
        if open.uncommitted_blocks > 0 {
            return Err(apply_error(format_args!("{id} is closed with unfinished blocks")));
        }
        self.touch(id, at_ms);
        self.open.remove(&id);
        changes.released.push((id, open.holder));
        Ok(())
    }

    fn apply_attributes_set(&mut self, edit: &Edit, changes: &mut Changes) -> Result<(), ApplyError> {
        let Edit::AttributesSet { id, replication, mode, owner, group, modified_ms } = edit else {
            return Err(apply_error(format_args!("{edit:?} sets nothing")));
        };
        if let Some(replication) = replication {
            self.change_file(*id, |file| {
                let before = std::mem::replace(&mut file.replication, *replication);
                changes.replication_changed.extend(file.blocks.iter().map(|block| (*block, before)));
                Ok(())
            })?;
        }
        let owner = owner.as_ref().map(|owner| self.interner.share(owner));
        let group = group.as_ref().map(|group| self.interner.share(group));
        let inode = self.inodes.get_mut(id).ok_or_else(|| apply_error(id))?;
        inode.mode = mode.unwrap_or(inode.mode);
        inode.modified_ms = modified_ms.unwrap_or(inode.modified_ms);
        inode.owner = owner.unwrap_or_else(|| inode.owner.clone());
        inode.group = group.unwrap_or_else(|| inode.group.clone());
        Ok(())
    }

    fn apply_concatenated(
        &mut self,
        at_ms: u64,
        target: FileId,
        source: FileId,
        changes: &mut Changes,
    ) -> Result<(), ApplyError> {
        if target == source || self.file_mut(target)?.open.is_some() || self.file_mut(source)?.open.is_some()
        {
            return Err(apply_error(format_args!("{source} cannot be appended to {target}")));
        }
        self.unlink(at_ms, source)?;
        let Some(Inode { body: Body::File(tail), .. }) = self.inodes.remove(&source) else {
            return Err(apply_error(source));
        };
        for block in &tail.blocks {
            self.blocks.entry(*block).and_modify(|known| known.file = target);
        }
        self.change_file(target, |file| {
            file.blocks.extend_from_slice(&tail.blocks);
            file.length += tail.length;
            file.block_size = file.block_size.max(tail.block_size);
            Ok(())
        })?;
        self.touch(target, at_ms);
        changes.replication_changed.extend(tail.blocks.iter().map(|block| (*block, tail.replication)));
        Ok(())
    }

    /// Changes a file and adds the change of its totals to its ancestors.
    fn change_file(
        &mut self,
        id: FileId,
        change: impl FnOnce(&mut File) -> Result<(), ApplyError>,
    ) -> Result<(), ApplyError> {
        let file = self.file_mut(id)?;
        let before = file.totals();
        change(file)?;
        let difference = file.totals() + -before;
        let parent = self.existing_inode(id)?.parent;
        if difference != Totals::default() {
            self.charge(parent, difference);
        }
        Ok(())
    }

    fn uncommitted_block(&self, block: BlockId) -> Result<(FileId, Nonce), ApplyError> {
        match self.blocks.get(&block) {
            Some(known) if known.length().is_none() => Ok((known.file, known.nonce)),
            _ => Err(apply_error(format_args!("{block} is not being written"))),
        }
    }

    fn touch(&mut self, id: FileId, at_ms: u64) {
        if let Some(inode) = self.inodes.get_mut(&id) {
            inode.modified_ms = at_ms;
        }
    }

    fn existing_inode(&self, id: FileId) -> Result<&Inode, ApplyError> {
        self.inodes.get(&id).ok_or_else(|| apply_error(format_args!("{id} does not exist")))
    }

    fn folder_mut(&mut self, id: FileId) -> Result<&mut Folder, ApplyError> {
        match self.inodes.get_mut(&id) {
            Some(Inode { body: Body::Folder(folder), .. }) => Ok(folder),
            _ => Err(apply_error(format_args!("{id} is not a folder"))),
        }
    }

    fn file_mut(&mut self, id: FileId) -> Result<&mut File, ApplyError> {
        match self.inodes.get_mut(&id) {
            Some(Inode { body: Body::File(file), .. }) => Ok(file),
            _ => Err(apply_error(format_args!("{id} is not a file"))),
        }
    }
}

fn new_file(edit: &Edit) -> Result<File, ApplyError> {
    let Edit::FileCreated { replication, block_size, holder, on_abandon, .. } = edit else {
        return Err(apply_error(format_args!("{edit:?} creates no file")));
    };
    let open = OpenWriter { holder: holder.as_str().into(), on_abandon: *on_abandon, uncommitted_blocks: 0 };
    Ok(File {
        blocks: smallvec::SmallVec::new(),
        length: 0,
        block_size: *block_size,
        replication: *replication,
        open: Some(Box::new(open)),
    })
}
