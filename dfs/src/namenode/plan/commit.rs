//! Plans fenced commits, which make the output of a job appear completely and only once. A commit
//! is refused if its start is earlier than the fence of its scope, or is another start with the same
//! epoch.

use super::{FILE_MODE, Plan, check_label, refuse};
use crate::namenode::{
    namespace::{Edit, Inode},
    op::{CommitMove, OnAbandon, Outcome},
};
use dfs_client::{
    error::{Error, Kind},
    ids::{FileId, Start},
    path::DfsPath,
};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of scopes with a fence. A fence is never removed.
const FENCES_MAX: usize = 100_000;

impl Plan<'_> {
    /// Plans to set the fence of a scope: earlier starts, and other ones with the same epoch, are
    /// refused from now on.
    pub(in crate::namenode) fn fence(
        &mut self,
        scope: &str,
        start: Start,
        earlier: &[Start],
    ) -> Result<Outcome, Error> {
        check_label("scope", scope)?;
        self.namespace.check_fence(scope, start)?;
        self.namespace.check_earlier_starts(scope, start, earlier)?;
        self.raise_fence(scope, start)?;
        Ok(Outcome::Done)
    }

    fn raise_fence(&mut self, scope: &str, start: Start) -> Result<(), Error> {
        let fence = self.namespace.fence(scope);
        if fence.is_none() && self.namespace.fences_len() >= FENCES_MAX {
            return refuse(
                Kind::Quota,
                format!(
                    "{scope}: {FENCES_MAX} scopes have fences, which is the limit: use one scope for many commits"
                ),
            );
        }
        if fence != Some(start) {
            self.edits.push(Edit::Fenced { scope: scope.to_owned(), start });
        }
        Ok(())
    }

    /// Plans a fenced commit: first the pieces are moved, then the deletes are done. Either all of
    /// it is done or nothing.
    pub(in crate::namenode) fn commit(
        &mut self,
        scope: &str,
        start: Start,
        commit_id: &str,
        moves: &[CommitMove],
        deletes: &[DfsPath],
    ) -> Result<Outcome, Error> {
        check_label("scope", scope)?;
        check_label("commit id", commit_id)?;
        self.namespace.check_fence(scope, start)?;
        self.raise_fence(scope, start)?;
        if self.namespace.is_committed(scope, commit_id) {
            return Ok(Outcome::Committed { already_done: true });
        }
        for path in deletes {
            if let Some(step) = moves.iter().find(|step| step.to.is_within(path)) {
                return refuse(
                    Kind::Invalid,
                    format!("{path} is to be deleted, but {} is to be created in it", step.to),
                );
            }
        }
        let mut pieces = BTreeMap::new();
        for step in moves {
            self.commit_move(step, &mut pieces)?;
        }
        self.check_output_folders(moves, deletes, &pieces)?;
        self.commit_deletes(deletes, &pieces)?;
        self.edits.push(Edit::Committed { scope: scope.to_owned(), commit_id: commit_id.to_owned() });
        Ok(Outcome::Committed { already_done: false })
    }

    fn commit_move(
        &mut self,
        step: &CommitMove,
        pieces: &mut BTreeMap<FileId, DfsPath>,
    ) -> Result<(), Error> {
        let to = &step.to;
        let target = self.resolve(to, true)?;
        if self.inode_at(&target).is_some()
            || self.created_entries.contains_key(&(target.folder, target.name.clone()))
        {
            return refuse(Kind::Exists, format!("{to} already exists: choose another output path"));
        }
        let mut found: Vec<(FileId, &Inode)> = Vec::new();
        for piece in &step.pieces {
            let (id, inode) = self.closed_file(piece)?;
            if pieces.insert(id, piece.clone()).is_some() {
                return refuse(Kind::Invalid, format!("{piece} is given twice: it can be moved only once"));
            }
            found.push((id, inode));
        }
        match found.split_first() {
            Some(((id, inode), rest)) => {
                for (source_id, source) in rest {
                    self.append_blocks(*id, inode, *source_id, source);
                }
                self.move_to(*id, inode, &target);
            }
            None => self.create_empty_file(&target),
        }
        Ok(())
    }

    /// Refuses a commit if an output folder contains entries that are not from this commit. An
    /// output folder is one in which the commit creates files and from which it deletes its work
    /// folder.
    fn check_output_folders(
        &self,
        moves: &[CommitMove],
        deletes: &[DfsPath],
        pieces: &BTreeMap<FileId, DfsPath>,
    ) -> Result<(), Error> {
        let parent = |path: &DfsPath| path.split_last().map(|(parent, _)| parent);
        let targets: BTreeSet<DfsPath> = moves.iter().filter_map(|step| parent(&step.to)).collect();
        for output in deletes.iter().filter_map(parent).filter(|output| targets.contains(output)) {
            let id = self.namespace.find(&output)?;
            let Some(folder) = id.and_then(|id| self.namespace.inode(id)).and_then(Inode::folder) else {
                continue;
            };
            let is_own = |name: &str, id: &FileId| {
                let is_deleted =
                    |path: &DfsPath| path.name() == name && parent(path).as_ref() == Some(&output);
                pieces.contains_key(id) || deletes.iter().any(is_deleted)
            };
            if let Some((name, _)) = folder.children.iter().find(|(name, id)| !is_own(name, id)) {
                return refuse(
                    Kind::Exists,
                    format!(
                        "{output} contains {name}, which is not part of this commit: choose an output folder that is empty"
                    ),
                );
            }
        }
        Ok(())
    }

    fn create_empty_file(&mut self, target: &super::Target) {
        let id = self.new_id();
        let edit = Edit::FileCreated {
            id,
            parent: target.folder,
            name: target.name.clone(),
            owner: self.user.to_owned(),
            group: self.group_in(target.folder),
            mode: FILE_MODE,
            replication: self.settings.replication,
            block_size: self.settings.block_size,
            holder: "commit".into(),
            on_abandon: OnAbandon::Close,
        };
        self.add_file(target, edit);
        self.edits.push(Edit::FileClosed { file: id });
    }

    /// Plans the deletes of a commit. The pieces have been moved already: deleting the old path of
    /// a piece has no effect, and deleting its old folder does not delete the piece.
    fn commit_deletes(
        &mut self,
        deletes: &[DfsPath],
        pieces: &BTreeMap<FileId, DfsPath>,
    ) -> Result<(), Error> {
        let mut gone = BTreeSet::new();
        for path in deletes {
            if path.is_root() {
                return refuse(Kind::Refused, "/ is the root folder and cannot be deleted");
            }
            if let Ok(Some(id)) = self.namespace.find(path)
                && !pieces.contains_key(&id)
            {
                gone.insert(id);
            }
        }
        for id in &gone {
            let nested = self.namespace.ancestors(*id).any(|above| gone.contains(&above));
            if let Some(inode) = self.namespace.inode(*id).filter(|_| !nested) {
                self.delete(*id, inode);
            }
        }
        Ok(())
    }
}
