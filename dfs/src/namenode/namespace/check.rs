//! Checks the invariants of the namespace. Used only in tests, because it visits all inodes and
//! blocks.

use super::{Body, Namespace, ROOT, Totals};
use dfs_client::ids::FileId;
use std::collections::BTreeSet;

impl Namespace {
    /// Checks all invariants. Returns a description of the first violation.
    pub(in crate::namenode) fn invariants(&self) -> Result<(), String> {
        let reached = self.subtree(ROOT);
        if reached.len() != self.inodes.len() {
            let (inodes, reached) = (self.inodes.len(), reached.len());
            return Err(format!("there are {inodes} inodes, but {reached} can be reached from the root"));
        }
        let mut blocks = 0;
        let mut finished = 0;
        let mut open = BTreeSet::new();
        for (id, inode) in &self.inodes {
            if id.0 >= self.next_file {
                return Err(format!("{id} was never assigned"));
            }
            if *id != ROOT && self.child(inode.parent, &inode.name).ok().flatten() != Some(*id) {
                return Err(format!("{id} is not the entry {:?} of its parent", inode.name));
            }
            match &inode.body {
                Body::Folder(folder) => {
                    let sum: Totals =
                        folder.children.values().map(|child| self.recompute_totals(*child)).sum();
                    if sum != folder.totals {
                        return Err(format!(
                            "{id} has totals {:?}, but the sum of its children is {sum:?}",
                            folder.totals
                        ));
                    }
                }
                Body::File(file) => {
                    blocks += file.blocks.len();
                    finished += self.check_file(*id, file)?;
                    if file.open.is_some() {
                        open.insert(*id);
                    }
                }
            }
        }
        if blocks != self.blocks.len() || finished != self.committed_blocks || open != self.open {
            return Err(format!(
                "the stored counts are wrong: files have {blocks} blocks, {finished} finished; open are {open:?}"
            ));
        }
        Ok(())
    }

    fn check_file(&self, id: FileId, file: &super::File) -> Result<u64, String> {
        let mut length = 0;
        let mut finished = 0;
        for block in &file.blocks {
            let known = self.block(*block).ok_or(format!("{id} has an unknown {block}"))?;
            if known.file != id || block.0 >= self.next_block {
                return Err(format!(
                    "{block} of {id} belongs to {}, or is not below the next block ID {}",
                    known.file, self.next_block
                ));
            }
            length += known.length().unwrap_or(0);
            finished += u64::from(known.length().is_some());
        }
        let unfinished = file.open.as_ref().map_or(0, |open| u64::from(open.uncommitted_blocks));
        if length != file.length || finished + unfinished != file.blocks.len() as u64 {
            return Err(format!(
                "{id} has length {}, but the sum of its blocks is {length}; {unfinished} blocks are unfinished",
                file.length
            ));
        }
        Ok(finished)
    }

    fn recompute_totals(&self, top: FileId) -> Totals {
        self.subtree(top)
            .iter()
            .filter_map(|id| self.inode(*id))
            .map(|inode| match &inode.body {
                Body::Folder(_) => Totals { dirs: 1, ..Totals::default() },
                Body::File(file) => file.totals(),
            })
            .sum()
    }
}
