//! Rules: each operation is planned against the namespace, which is only read. Every refusal happens here, so
//! that nothing has changed; what comes out is a list of edits that fits.
//!
//! A plan remembers what it adds and how totals would change, so that an operation of several steps (a fenced
//! commit) is checked as a whole, quotas included. What a plan removes still counts as being there: an
//! operation never puts something in a place that it empties itself, except where it replaces a file.
//!
//! Deliberately absent: permissions (`permit`, which is asked first), replicas and nodes (`state`).

mod commit;
mod files;
mod names;

pub(super) use files::NewFile;
pub(super) use names::Attributes;

use super::{
    namespace::{Edit, Inode, Namespace, Totals},
    settings::Settings,
};
use crate::{
    error::{Error, Kind},
    ids::FileId,
    path::DfsPath,
};
use std::collections::BTreeMap;

/// Mode of a folder that nobody asked a mode for.
const FOLDER_MODE: u32 = 0o755;
/// Mode of a file that nobody asked a mode for.
const FILE_MODE: u32 = 0o644;
/// Blocks of one file, at the most: a snapshot holds a file in one record, and so does the log its recovery, at
/// up to 29 bytes a block.
const FILE_BLOCKS_MAX: usize = 500_000;
/// Longest holder, owner, group, scope, commit id.
const LABEL_BYTES_MAX: usize = 255;

/// One operation on its way to becoming a record.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    namespace: &'a Namespace,
    settings: &'a Settings,
    user: &'a str,
    edits: Vec<Edit>,
    next_file: u64,
    /// Entries that this plan adds.
    created: BTreeMap<(FileId, String), NewEntry>,
    /// Folders that this plan adds, and the nearest one above each that exists.
    under: BTreeMap<FileId, FileId>,
    changes: BTreeMap<FileId, Totals>,
    entries: BTreeMap<FileId, i64>,
    /// Blocks that files gain.
    gained: BTreeMap<FileId, usize>,
}

#[derive(Debug, Clone, Copy)]
enum NewEntry {
    Folder(FileId),
    File,
}

/// Where something is to be: a folder that exists or is made by the plan, and a name in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    folder: FileId,
    name: String,
}

fn refuse<T>(kind: Kind, message: impl Into<String>) -> Result<T, Error> {
    Err(Error::new(kind, message))
}

/// Checks a holder, owner, scope, ...
fn check_label(what: &str, word: &str) -> Result<(), Error> {
    if word.is_empty() {
        return refuse(Kind::Invalid, format!("{what} is empty: name one"));
    }
    if word.len() > LABEL_BYTES_MAX || word.chars().any(char::is_control) {
        let bytes = word.len();
        return refuse(
            Kind::Invalid,
            format!(
                "{what} of {bytes} bytes: at most {LABEL_BYTES_MAX}, without control characters, are allowed"
            ),
        );
    }
    Ok(())
}

fn check_mode(path: &DfsPath, mode: u32) -> Result<(), Error> {
    if mode > 0o7777 {
        return refuse(
            Kind::Invalid,
            format!("{path}: mode {mode:o} is more than permission bits: use 0 to 7777"),
        );
    }
    Ok(())
}

impl<'a> Plan<'a> {
    /// A plan for `user`.
    pub(super) fn new(namespace: &'a Namespace, settings: &'a Settings, user: &'a str) -> Self {
        Self {
            namespace,
            settings,
            user,
            edits: Vec::new(),
            next_file: namespace.next_file(),
            created: BTreeMap::new(),
            under: BTreeMap::new(),
            changes: BTreeMap::new(),
            entries: BTreeMap::new(),
            gained: BTreeMap::new(),
        }
    }

    /// The edits, if the limits of every folder concerned hold.
    pub(super) fn finish(self) -> Result<Vec<Edit>, Error> {
        for (id, change) in &self.changes {
            self.check_quota(*id, *change)?;
        }
        for (id, more) in &self.entries {
            let Some(folder) = self.namespace.inode(*id).and_then(Inode::folder) else { continue };
            let (has, max) = (folder.children.len(), self.settings.dir_entries_max);
            if *more > 0 && has as u64 + more.unsigned_abs() > max {
                let path = self.show(*id);
                return refuse(
                    Kind::Quota,
                    format!("{path} has {has} entries and {max} is the limit: use more folders"),
                );
            }
        }
        for (id, more) in &self.gained {
            let blocks = self.namespace.file(*id).map_or(0, |file| file.blocks.len()) + more;
            if blocks > FILE_BLOCKS_MAX {
                let path = self.show(*id);
                return refuse(
                    Kind::Quota,
                    format!(
                        "{path} would have {blocks} blocks and {FILE_BLOCKS_MAX} is the limit: use larger blocks"
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
            let path = self.show(id);
            return refuse(
                Kind::Quota,
                format!("{path}: quota of {max} files and folders: {had} there, {has} would be"),
            );
        }
        if let Some(max) = folder.quota.space
            && change.space > 0
            && now.space > i128::from(max)
        {
            let (path, used, more) = (self.show(id), folder.totals.space, change.space);
            return refuse(
                Kind::Quota,
                format!(
                    "{path}: quota of {max} bytes over all replicas: {used} used, {more} more are needed"
                ),
            );
        }
        Ok(())
    }

    fn show(&self, id: FileId) -> String {
        self.namespace.path_of(id).map_or_else(|| id.to_string(), |path| path.to_string())
    }

    /// Adds `change` to what will be below `folder` and all above it.
    fn charge(&mut self, folder: FileId, change: Totals) {
        let base = self.under.get(&folder).copied().unwrap_or(folder);
        let above: Vec<FileId> = std::iter::once(base).chain(self.namespace.ancestors(base)).collect();
        for id in above {
            let sum = self.changes.entry(id).or_default();
            *sum = *sum + change;
        }
    }

    fn add_entry(&mut self, place: &Target, created: NewEntry, totals: Totals) {
        self.created.insert((place.folder, place.name.clone()), created);
        *self.entries.entry(place.folder).or_default() += 1;
        self.charge(place.folder, totals);
    }

    fn new_id(&mut self) -> FileId {
        let id = FileId(self.next_file);
        self.next_file += 1;
        id
    }

    /// New entries belong to the group of the folder they are in.
    fn group_in(&self, folder: FileId) -> String {
        let base = self.under.get(&folder).copied().unwrap_or(folder);
        self.namespace.inode(base).map_or_else(String::new, |inode| inode.group.to_string())
    }

    /// Where `path` is or would be. Missing folders above it are made if `make` says so.
    fn place(&mut self, path: &DfsPath, make: bool) -> Result<Target, Error> {
        let Some((above, name)) = path.split_last() else {
            return refuse(Kind::IsDirectory, "/ is the root folder: name something in it");
        };
        let mut at = super::namespace::ROOT;
        for step in above.names() {
            at = match self.created.get(&(at, step.to_owned())) {
                Some(NewEntry::Folder(id)) => *id,
                Some(NewEntry::File) => {
                    return refuse(
                        Kind::NotDirectory,
                        format!("{path}: the same request puts a file at its folder {step:?}"),
                    );
                }
                None => match self.existing(at, step) {
                    Ok(Some(child)) => child,
                    Ok(None) if make => self.make_folder(&Target { folder: at, name: step.into() }, None),
                    Ok(None) => {
                        return refuse(
                            Kind::NotFound,
                            format!(
                                "{path}: there is no folder {above}: make it first (mkdir -p makes the whole path)"
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

    /// The entry that a folder has now; nothing for a folder that the plan makes.
    fn existing(&self, folder: FileId, name: &str) -> Result<Option<FileId>, FileId> {
        if self.under.contains_key(&folder) {
            return Ok(None);
        }
        self.namespace.child(folder, name).map_err(|_| folder)
    }

    /// What is at `place` now.
    fn at(&self, place: &Target) -> Option<(FileId, &'a Inode)> {
        let id = self.existing(place.folder, &place.name).ok().flatten()?;
        Some((id, self.namespace.inode(id)?))
    }

    fn make_folder(&mut self, place: &Target, mode: Option<u32>) -> FileId {
        let id = self.new_id();
        let base = self.under.get(&place.folder).copied().unwrap_or(place.folder);
        self.edits.push(Edit::FolderCreated {
            id,
            parent: place.folder,
            name: place.name.clone(),
            owner: self.user.to_owned(),
            group: self.group_in(place.folder),
            mode: mode.unwrap_or(FOLDER_MODE),
        });
        self.add_entry(place, NewEntry::Folder(id), Totals { dirs: 1, ..Totals::default() });
        self.under.insert(id, base);
        id
    }

    /// What an inode and everything below will hold once the plan so far is done.
    fn totals_of(&self, id: FileId, inode: &Inode) -> Totals {
        inode.totals() + self.changes.get(&id).copied().unwrap_or_default()
    }

    /// Takes an inode out of its folder's account.
    fn detach(&mut self, id: FileId, inode: &Inode) -> Totals {
        let totals = self.totals_of(id, inode);
        *self.entries.entry(inode.parent).or_default() -= 1;
        self.charge(inode.parent, -totals);
        totals
    }

    fn delete(&mut self, id: FileId, inode: &Inode) {
        self.detach(id, inode);
        self.edits.push(Edit::Deleted { id });
    }

    fn move_to(&mut self, id: FileId, inode: &Inode, place: &Target) {
        let totals = self.detach(id, inode);
        let created = if inode.file().is_some() { NewEntry::File } else { NewEntry::Folder(id) };
        self.add_entry(place, created, totals);
        self.edits.push(Edit::Renamed { id, parent: place.folder, name: place.name.clone() });
    }
}
