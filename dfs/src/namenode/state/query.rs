//! Queries about files and the locations of blocks. They change nothing and run under the read lock
//! of the driver.

use super::{
    State,
    nodes::{Liveness, NodeIx},
};
use crate::namenode::{
    namespace::{Block, Body, File, Folder, Inode, Totals},
    op::Quota,
    view::{FileStatus, LocatedBlock, NodeAddress, Usage},
};
use daemon::human;
use dfs_client::{
    error::{Error, Kind},
    ids::{BlockId, FileId, NodeUuid, Nonce},
    path::DfsPath,
};
use std::ops::Bound::{Excluded, Unbounded};

/// Maximum number of blocks in a reply to Locate.
const LOCATE_BLOCKS_MAX: usize = 1000;

impl State {
    /// Returns the status of a file or folder by its path.
    pub fn stat(&self, path: &DfsPath) -> Result<FileStatus, Error> {
        let (id, inode) = self.namespace.get(path)?;
        Ok(self.status(path.clone(), id, inode))
    }

    /// Checks that quotas allow `entries` more files and folders and one more byte at a path that
    /// does not exist. This is only an early check: quotas may change before the path is created.
    pub(in crate::namenode) fn check_quotas(&self, path: &DfsPath, entries: u64) -> Result<(), Error> {
        let mut missing = 0_u64;
        let mut at = path.clone();
        let nearest = loop {
            match self.namespace.find(&at) {
                Ok(Some(id)) => break id,
                _ => match at.split_last() {
                    Some((above, _)) => (at, missing) = (above, missing + 1),
                    None => return Ok(()),
                },
            }
        };
        if missing == 0 {
            return Ok(());
        }
        // The path itself is also missing, but `entries` includes it.
        let more = entries.max(1) + missing - 1;
        for id in std::iter::once(nearest).chain(self.namespace.ancestors(nearest)) {
            let Some(folder) = self.namespace.inode(id).and_then(Inode::folder) else { continue };
            let name = || self.namespace.path_of(id).map_or_else(|| id.to_string(), |path| path.to_string());
            let had = i128::from(folder.totals.files) + i128::from(folder.totals.dirs) + 1;
            if let Some(most) = folder.quota.files
                && had + i128::from(more) > i128::from(most)
            {
                let text = format!(
                    "{}: quota of {most} files and folders exceeded: it has {had}, {more} more needed",
                    name()
                );
                return Err(Error::new(Kind::Quota, text));
            }
            if let Some(most) = folder.quota.space
                && folder.totals.space >= i128::from(most)
            {
                let used = human(folder.totals.space.try_into().unwrap_or(u64::MAX));
                let (name, most) = (name(), human(most));
                let text = format!("{name}: quota of {most} over all replicas is used up: {used} used");
                return Err(Error::new(Kind::Quota, text));
            }
        }
        Ok(())
    }

    /// Returns the status of a file or folder by its ID.
    pub fn stat_id(&self, id: FileId) -> Result<FileStatus, Error> {
        let gone = || Error::new(Kind::NotFound, format!("{id} does not exist any more"));
        let inode = self.namespace.inode(id).ok_or_else(gone)?;
        Ok(self.status(self.namespace.path_of(id).ok_or_else(gone)?, id, inode))
    }

    /// Returns the entries of a folder after the name `start_after` (empty: from the first), and
    /// whether there are more. For a file, returns the file itself.
    pub fn list(
        &self,
        path: &DfsPath,
        start_after: &str,
        limit: usize,
    ) -> Result<(Vec<FileStatus>, bool), Error> {
        let (id, inode) = self.namespace.get(path)?;
        let Body::Folder(folder) = &inode.body else {
            return Ok((vec![self.status(path.clone(), id, inode)], false));
        };
        let mut entries = Vec::new();
        for (name, id) in folder.children.range::<str, _>((Excluded(start_after), Unbounded)) {
            if entries.len() == limit.max(1) {
                return Ok((entries, true));
            }
            if let Some(inode) = self.namespace.inode(*id) {
                entries.push(self.status(path.join(name)?, *id, inode));
            }
        }
        Ok((entries, false))
    }

    fn status(&self, path: DfsPath, file_id: FileId, inode: &Inode) -> FileStatus {
        let file = inode.file();
        FileStatus {
            path,
            is_dir: file.is_none(),
            file_id,
            length: file.map_or(0, |file| self.readable_length(file)),
            replication: file.map_or(0, |file| file.replication),
            block_size: file.map_or(0, |file| file.block_size),
            owner: inode.owner.to_string(),
            group: inode.group.to_string(),
            mode: inode.mode,
            modified_ms: inode.modified_ms,
            accessed_ms: inode.modified_ms,
            open: file.is_some_and(|file| file.open.is_some()),
            blocks: file.map_or(0, |file| file.blocks.len() as u32),
            quota: inode.folder().and_then(quota_if_set),
        }
    }

    /// Returns the blocks that can be read: the committed blocks before the first uncommitted one.
    fn readable_blocks<'a>(&'a self, file: &'a File) -> impl Iterator<Item = (BlockId, Nonce, u64)> + 'a {
        file.blocks.iter().map_while(|block| {
            let known = self.namespace.block(*block)?;
            Some((*block, known.nonce, known.length()?))
        })
    }

    fn readable_length(&self, file: &File) -> u64 {
        match file.open {
            Some(_) => self.readable_blocks(file).map(|(.., length)| length).sum(),
            None => file.length,
        }
    }

    /// Returns the status of a file and its blocks in `offset..offset + length`, each with its
    /// nodes, nearest first. At most `LOCATE_BLOCKS_MAX` blocks are returned; the client asks again
    /// from the end of the last.
    pub fn locate(
        &self,
        path: &DfsPath,
        offset: u64,
        length: u64,
        reader_host: &str,
    ) -> Result<(FileStatus, Vec<LocatedBlock>), Error> {
        let (id, inode) = self.namespace.get(path)?;
        let Some(file) = inode.file() else {
            return Err(Error::new(
                Kind::IsDirectory,
                format!("{path} is a folder: give the path of a file"),
            ));
        };
        let at_reader = self.nodes.iter().find(|(_, node)| node.registration.host == reader_host);
        let rack = at_reader.map(|(_, node)| node.registration.rack.as_str());
        let end = offset.saturating_add(length);
        let mut at = 0;
        let mut blocks = Vec::new();
        for (block, nonce, length) in self.readable_blocks(file) {
            if at >= end || blocks.len() == LOCATE_BLOCKS_MAX {
                break;
            }
            if at + length > offset {
                let nodes = self.nodes_by_distance(block, reader_host, rack);
                let damaged_on = self.damaged_on(block);
                blocks.push(LocatedBlock { block, nonce, offset: at, length, nodes, damaged_on });
            }
            at += length;
        }
        Ok((self.status(path.clone(), id, inode), blocks))
    }

    /// Returns the nodes with a good replica of a block: live nodes before suspect ones, then by
    /// distance (the host of the reader, its rack, others). Nodes at the same distance are ordered
    /// differently for each block, to spread the readers.
    fn nodes_by_distance(&self, block: BlockId, reader_host: &str, rack: Option<&str>) -> Vec<NodeAddress> {
        let key = |ix: &NodeIx| {
            let node = self.nodes.get(*ix);
            let distance = match () {
                () if node.registration.host == reader_host => 0,
                () if Some(node.registration.rack.as_str()) == rack => 1,
                () => 2,
            };
            (
                node.liveness != Liveness::Live,
                distance,
                (block.0 ^ u64::from(*ix)).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            )
        };
        let mut on = self.holders(block).to_vec();
        on.sort_by_key(key);
        on.into_iter().map(|ix| self.nodes.get(ix).address()).collect()
    }

    fn damaged_on(&self, block: BlockId) -> Vec<String> {
        self.bad_holders(block).map(|ix| self.nodes.get(ix).registration.node.clone()).collect()
    }

    /// Returns a new block with its pipeline, for the reply to `AddBlock`. Nodes that no longer
    /// exist are omitted.
    pub fn located_block(&self, block: BlockId, nodes: &[NodeUuid]) -> Result<LocatedBlock, Error> {
        let gone = || Error::new(Kind::NotFound, format!("{block} does not exist any more"));
        let known = self.namespace.block(block).ok_or_else(gone)?;
        let file = self.namespace.file(known.file).ok_or_else(gone)?;
        let length = |block: &BlockId| self.namespace.block(*block).and_then(Block::length).unwrap_or(0);
        // Sum the lengths of the blocks after this one. There are few of them, because the block
        // was the last when it was added.
        let from_here = file.blocks.iter().rev().take_while(|other| **other != block).map(length);
        let own = known.length().unwrap_or(0);
        Ok(LocatedBlock {
            block,
            nonce: known.nonce,
            offset: file.length - own - from_here.sum::<u64>(),
            length: own,
            nodes: nodes.iter().filter_map(|uuid| self.node_address(*uuid)).collect(),
            damaged_on: Vec::new(),
        })
    }

    /// Returns the maximum length of a block, which is the block size of its file.
    pub fn block_bytes_max(&self, block: BlockId) -> u64 {
        let file = self.namespace.block(block).and_then(|block| self.namespace.file(block.file));
        file.map_or(0, |file| file.block_size)
    }

    /// Returns whether a client may still write replicas of a block: the block exists and is not
    /// committed.
    pub fn is_being_written(&self, block: BlockId, nonce: Nonce) -> bool {
        self.namespace.block(block).is_some_and(|block| block.length().is_none() && block.nonce == nonce)
    }

    /// Returns the address of a node, for example of the target of a copy.
    pub fn node_address(&self, node: NodeUuid) -> Option<NodeAddress> {
        Some(self.nodes.get(self.nodes.find(node)?).address())
    }

    /// Returns the size of the contents of a folder, or of a file.
    pub fn usage(&self, path: &DfsPath) -> Result<Usage, Error> {
        let (_, inode) = self.namespace.get(path)?;
        let (totals, quota) = match &inode.body {
            Body::Folder(folder) => (folder.totals, quota_if_set(folder)),
            Body::File(file) => (file.totals(), None),
        };
        let Totals { files, dirs, bytes, space } = totals;
        let figure = |sum: i128| u64::try_from(sum).unwrap_or(u64::MAX);
        Ok(Usage {
            files: figure(files.into()),
            dirs: figure(dirs.into()),
            bytes: figure(bytes),
            space: figure(space),
            quota,
        })
    }
}

fn quota_if_set(folder: &Folder) -> Option<Quota> {
    (folder.quota != Quota::default()).then_some(folder.quota)
}
