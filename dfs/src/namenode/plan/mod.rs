//! Plans operations: checks whether the namespace allows an operation, and makes the list of edits
//! that carry it out. The namespace is only read. An operation is refused here, before anything has
//! changed.
//!
//! A plan records the entries that it adds and the changes of the totals. An operation with several
//! steps (a fenced commit) is therefore checked as a whole, including quotas. Entries that a plan
//! removes still count as existing: an operation never creates an entry at a path that it removes,
//! except when it replaces a file.
//!
//! Permissions are checked earlier (`permit`). Replicas and nodes are not considered here
//! (`state`).

mod commit;
mod files;
mod names;

pub(super) use files::NewFile;
pub(super) use names::Attributes;

use super::{
    namespace::{Edit, Inode, Namespace, Totals},
    settings::Settings,
};
use daemon::human;
use dfs_client::{
    error::{Error, Kind},
    ids::FileId,
    path::DfsPath,
};
use std::collections::BTreeMap;

/// Default mode of a folder.
const FOLDER_MODE: u32 = 0o755;
/// Default mode of a file.
const FILE_MODE: u32 = 0o644;
/// Maximum number of blocks of a file. It is limited because all blocks of a file must fit into one
/// record, in a snapshot and when the file is recovered, with up to 29 bytes per block.
const FILE_BLOCKS_MAX: usize = 500_000;
/// Maximum length of a holder, owner, group, scope or commit ID.
const LABEL_BYTES_MAX: usize = 255;

/// A planned operation, which becomes a record.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    namespace: &'a Namespace,
    settings: &'a Settings,
    user: &'a str,
    edits: Vec<Edit>,
    next_file: u64,
    /// Entries that this plan creates, by folder and name.
    created_entries: BTreeMap<(FileId, String), NewEntry>,
    /// Folders that this plan creates, each with its nearest existing ancestor.
    existing_ancestor: BTreeMap<FileId, FileId>,
    /// By how much the plan changes the totals (files and bytes) of each existing folder.
    totals_changes: BTreeMap<FileId, Totals>,
    /// By how much the plan changes the number of entries of each folder.
    entry_changes: BTreeMap<FileId, i64>,
    /// Number of blocks that this plan adds to each file.
    added_blocks: BTreeMap<FileId, usize>,
}

#[derive(Debug, Clone, Copy)]
enum NewEntry {
    Folder(FileId),
    File,
}

/// A path, split into its parent folder, which exists or is created by the plan, and the name in
/// that folder.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    folder: FileId,
    name: String,
}

fn refuse<T>(kind: Kind, message: impl Into<String>) -> Result<T, Error> {
    Err(Error::new(kind, message))
}

/// Checks the length and characters of a holder, owner, group, scope or commit ID.
fn check_label(what: &str, word: &str) -> Result<(), Error> {
    if word.is_empty() {
        return refuse(Kind::Invalid, format!("{what} must not be empty"));
    }
    let bytes = word.len();
    if bytes > LABEL_BYTES_MAX {
        let why = format!("{what} of {bytes} bytes is too long: the limit is {LABEL_BYTES_MAX}");
        return refuse(Kind::Invalid, why);
    }
    if word.chars().any(char::is_control) {
        return refuse(Kind::Invalid, format!("{what} must not contain control characters"));
    }
    Ok(())
}

fn check_mode(path: &DfsPath, mode: u32) -> Result<(), Error> {
    if mode > 0o7777 {
        return refuse(Kind::Invalid, format!("{path}: mode {mode:o} is invalid: use 0 to 7777"));
    }
    Ok(())
}

impl<'a> Plan<'a> {
    /// Creates a plan for `user`.
    pub(super) fn new(namespace: &'a Namespace, settings: &'a Settings, user: &'a str) -> Self {
        Self {
            namespace,
            settings,
            user,
            edits: Vec::new(),
            next_file: namespace.next_file(),
            created_entries: BTreeMap::new(),
            existing_ancestor: BTreeMap::new(),
            totals_changes: BTreeMap::new(),
            entry_changes: BTreeMap::new(),
            added_blocks: BTreeMap::new(),
        }
    }

    /// Returns the edits, if no limit of a folder or file is exceeded.
    pub(super) fn finish(self) -> Result<Vec<Edit>, Error> {
        for (id, change) in &self.totals_changes {
            self.check_quota(*id, *change)?;
        }
        for (id, more) in &self.entry_changes {
            let Some(folder) = self.namespace.inode(*id).and_then(Inode::folder) else { continue };
            let (has, max) = (folder.children.len(), self.settings.dir_entries_max);
            if *more > 0 && has as u64 + more.unsigned_abs() > max {
                let path = self.path_text(*id);
                return refuse(
                    Kind::Quota,
                    format!("{path} has {has} entries, the limit is {max}: use more folders"),
                );
            }
        }
        for (id, more) in &self.added_blocks {
            let blocks = self.namespace.file(*id).map_or(0, |file| file.blocks.len()) + more;
            if blocks > FILE_BLOCKS_MAX {
                let path = self.path_text(*id);
                return refuse(
                    Kind::Quota,
                    format!(
                        "{path} would have {blocks} blocks, the limit is {FILE_BLOCKS_MAX}: use larger blocks"
                    ),
                );
            }
        }
        Ok(self.edits)
    }

    fn check_quota(&self, id: FileId, change: Totals) -> Result<(), Error> {
        let Some(folder) = self.namespace.inode(id).and_then(Inode::folder) else { return Ok(()) };
        let now = folder.totals + change;
        let (had, has) = (folder.totals.files + folder.totals.dirs + 1, now.files + now.dirs + 1);
        if let Some(max) = folder.quota.files
            && has > had
            && i128::from(has) > i128::from(max)
        {
            let path = self.path_text(id);
            return refuse(
                Kind::Quota,
                format!(
                    "{path}: quota of {max} files and folders exceeded: it has {had} and would have {has}"
                ),
            );
        }
        if let Some(max) = folder.quota.space
            && change.space > 0
            && now.space > i128::from(max)
        {
            let (path, size) =
                (self.path_text(id), |bytes: i128| human(bytes.try_into().unwrap_or(u64::MAX)));
            let (max, used, more) = (human(max), size(folder.totals.space), size(change.space));
            return refuse(
                Kind::Quota,
                format!("{path}: quota of {max} over all replicas exceeded: {used} used, {more} more needed"),
            );
        }
        Ok(())
    }

    fn path_text(&self, id: FileId) -> String {
        self.namespace.path_of(id).map_or_else(|| id.to_string(), |path| path.to_string())
    }

    /// Adds `change` to the planned totals of `folder` and all of its ancestors.
    fn charge(&mut self, folder: FileId, change: Totals) {
        let base = self.existing_ancestor.get(&folder).copied().unwrap_or(folder);
        let above: Vec<FileId> = std::iter::once(base).chain(self.namespace.ancestors(base)).collect();
        for id in above {
            let sum = self.totals_changes.entry(id).or_default();
            *sum = *sum + change;
        }
    }

    fn add_entry(&mut self, target: &Target, created: NewEntry, totals: Totals) {
        self.created_entries.insert((target.folder, target.name.clone()), created);
        *self.entry_changes.entry(target.folder).or_default() += 1;
        self.charge(target.folder, totals);
    }

    fn new_id(&mut self) -> FileId {
        let id = FileId(self.next_file);
        self.next_file += 1;
        id
    }

    /// Returns the group of new entries of a folder, which is the group of the folder.
    fn group_in(&self, folder: FileId) -> String {
        let base = self.existing_ancestor.get(&folder).copied().unwrap_or(folder);
        self.namespace.inode(base).map_or_else(String::new, |inode| inode.group.to_string())
    }

    /// Returns the folder and the name of `path`. With `make`, plans to create missing parent
    /// folders.
    fn resolve(&mut self, path: &DfsPath, make: bool) -> Result<Target, Error> {
        let Some((above, name)) = path.split_last() else {
            return refuse(Kind::IsDirectory, "/ is the root folder: give a path below it");
        };
        let mut at = super::namespace::ROOT;
        for step in above.names() {
            at = match self.created_entries.get(&(at, step.to_owned())) {
                Some(NewEntry::Folder(id)) => *id,
                Some(NewEntry::File) => {
                    return refuse(
                        Kind::NotDirectory,
                        format!("{path}: the same request creates a file at its parent {step:?}"),
                    );
                }
                None => match self.existing_child(at, step) {
                    Ok(Some(child)) => child,
                    Ok(None) if make => self.make_folder(&Target { folder: at, name: step.into() }, None),
                    Ok(None) => {
                        return refuse(
                            Kind::NotFound,
                            format!(
                                "{path}: folder {above} does not exist: create it first (mkdir -p also creates its parents)"
                            ),
                        );
                    }
                    Err(file) => return Err(self.namespace.not_a_folder(file, path)),
                },
            };
        }
        if self.namespace.inode(at).is_some_and(|inode| inode.folder().is_none()) {
            return Err(self.namespace.not_a_folder(at, path));
        }
        Ok(Target { folder: at, name: name.to_owned() })
    }

    /// Returns the entry `name` that a folder has before the plan. A folder that the plan creates
    /// has none. The error is the ID of `folder` if that is a file.
    fn existing_child(&self, folder: FileId, name: &str) -> Result<Option<FileId>, FileId> {
        if self.existing_ancestor.contains_key(&folder) {
            return Ok(None);
        }
        self.namespace.child(folder, name).map_err(|_| folder)
    }

    /// Returns the inode that exists at the target before the plan.
    fn inode_at(&self, target: &Target) -> Option<(FileId, &'a Inode)> {
        let id = self.existing_child(target.folder, &target.name).ok().flatten()?;
        Some((id, self.namespace.inode(id)?))
    }

    fn make_folder(&mut self, target: &Target, mode: Option<u32>) -> FileId {
        let id = self.new_id();
        let base = self.existing_ancestor.get(&target.folder).copied().unwrap_or(target.folder);
        self.edits.push(Edit::FolderCreated {
            id,
            parent: target.folder,
            name: target.name.clone(),
            owner: self.user.to_owned(),
            group: self.group_in(target.folder),
            mode: mode.unwrap_or(FOLDER_MODE),
        });
        self.add_entry(target, NewEntry::Folder(id), Totals { dirs: 1, ..Totals::default() });
        self.existing_ancestor.insert(id, base);
        id
    }

    /// Returns the totals of an inode and its descendants, including the changes of this plan.
    fn totals_of(&self, id: FileId, inode: &Inode) -> Totals {
        inode.totals() + self.totals_changes.get(&id).copied().unwrap_or_default()
    }

    /// Subtracts an inode from the planned totals of its ancestors. Returns the totals of the
    /// inode.
    fn detach(&mut self, id: FileId, inode: &Inode) -> Totals {
        let totals = self.totals_of(id, inode);
        *self.entry_changes.entry(inode.parent).or_default() -= 1;
        self.charge(inode.parent, -totals);
        totals
    }

    fn delete(&mut self, id: FileId, inode: &Inode) {
        self.detach(id, inode);
        self.edits.push(Edit::Deleted { id });
    }

    fn move_to(&mut self, id: FileId, inode: &Inode, target: &Target) {
        let totals = self.detach(id, inode);
        let created = if inode.file().is_some() { NewEntry::File } else { NewEntry::Folder(id) };
        self.add_entry(target, created, totals);
        self.edits.push(Edit::Renamed { id, parent: target.folder, name: target.name.clone() });
    }
}
