//! Checks permissions with owner, group and mode, as in POSIX. The checks are read-only and run
//! before an operation is planned.
//!
//! The caller needs execute permission on every folder in the path. Creating, moving and deleting
//! an entry needs write permission on its folder. In a sticky folder (mode 1777) only the owner of
//! the entry or of the folder may remove it. For a path that does not exist, the check succeeds,
//! and the operation itself reports that it is missing. A superuser is not checked.
//!
//! The gate before the server (`security`) decides which users are superusers and which methods a
//! role may call.

use super::{
    namespace::{Inode, Namespace, ROOT},
    op::{Caller, Op, Request},
};
use dfs_client::{
    error::{Error, Kind},
    ids::FileId,
    path::DfsPath,
};

const READ: u32 = 4;
const WRITE: u32 = 2;
const EXECUTE: u32 = 1;
const STICKY: u32 = 0o1000;

/// The permission that a query needs on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Permission to reach the path.
    Traverse,
    /// Permission to read the contents of the file.
    Read,
    /// Permission to list the folder.
    List,
    /// Permission to create the path, if it does not exist.
    Create,
    /// These permission bits.
    Access(u32),
}

impl Namespace {
    /// Checks that the caller has the needed permission on a path.
    pub(crate) fn permit(&self, caller: &Caller, path: &DfsPath, need: Need) -> Result<(), Error> {
        if caller.superuser {
            return Ok(());
        }
        let check = PermissionCheck { namespace: self, caller };
        let Some(inode) = check.find(path)?.inode else {
            return if need == Need::Create { check.may_create(path, true) } else { Ok(()) };
        };
        match need {
            Need::Traverse | Need::Create => Ok(()),
            Need::List if inode.folder().is_none() => Ok(()),
            Need::Read | Need::List => check.require(inode, READ, path, "read"),
            Need::Access(bits) => check.require(inode, bits, path, "access"),
        }
    }

    /// Checks that the caller may do this operation.
    pub(super) fn permit_op(&self, request: &Request) -> Result<(), Error> {
        let caller = &request.caller;
        if caller.superuser {
            return Ok(());
        }
        let check = PermissionCheck { namespace: self, caller };
        match &request.op {
            Op::Create { path, make_parents, .. } => check.may_create(path, *make_parents),
            Op::Mkdir { path, parents, .. } => match check.find(path)?.inode {
                Some(_) if *parents => Ok(()),
                _ => check.may_create(path, *parents),
            },
            Op::Append { path, .. } => check.may_write(path),
            Op::AddBlock { file, .. } | Op::AbandonBlock { file, .. } => check.may_write_by_id(*file),
            Op::Close { file, rename_to, .. } => {
                check.may_write_by_id(*file)?;
                let Some(to) = rename_to else { return Ok(()) };
                self.path_of(*file).map_or(Ok(()), |from| check.may_remove(&from, false))?;
                check.may_create(to, false)
            }
            Op::Rename { from, to, .. } => {
                check.may_remove(from, false).and_then(|()| check.may_create(to, false))
            }
            Op::Delete { path, .. } => check.may_remove(path, true),
            Op::SetAttributes { path, replication, mode, owner, group, modified_ms } => {
                if replication.is_some() {
                    check.may_write(path)?;
                }
                let others = mode.is_some() || group.is_some() || modified_ms.is_some();
                check.may_set_attributes(path, others, owner.as_deref(), group.as_deref())
            }
            Op::Concat { target, sources } => {
                check.may_write(target)?;
                sources.iter().try_for_each(|source| {
                    // The caller must be able to read the source, because it could read the data
                    // through the target afterwards.
                    check.may_read(source)?;
                    check.may_remove(source, false)
                })
            }
            Op::Commit { moves, deletes, .. } => {
                for step in moves {
                    step.pieces.iter().try_for_each(|piece| check.may_remove(piece, false))?;
                    // Joining pieces is a concat to the first piece.
                    if let [first, rest @ ..] = &step.pieces[..]
                        && !rest.is_empty()
                    {
                        check.may_write(first)?;
                        rest.iter().try_for_each(|piece| check.may_read(piece))?;
                    }
                    check.may_create(&step.to, true)?;
                }
                deletes.iter().try_for_each(|path| check.may_remove(path, true))
            }
            Op::SetQuota { .. } | Op::Fence { .. } | Op::Drain { .. } => {
                Err(denied_error(caller, "do this", "only admins may"))
            }
        }
    }
}

fn denied_error(caller: &Caller, what: &str, why: &str) -> Error {
    Error::new(Kind::Denied, format!("user {} may not {what}: {why}", caller.user))
}

/// The permission checks of one caller, who is not a superuser.
struct PermissionCheck<'a> {
    namespace: &'a Namespace,
    caller: &'a Caller,
}

/// The result of a lookup: the inode at the path, if it exists, and the last existing folder above
/// it.
struct PathLookup<'a> {
    inode: Option<&'a Inode>,
    folder: Ancestor<'a>,
}

/// A folder above a path, and the number of names in its own path.
#[derive(Clone, Copy)]
struct Ancestor<'a> {
    inode: &'a Inode,
    depth: usize,
}

impl<'a> PermissionCheck<'a> {
    fn grants(&self, inode: &Inode, bits: u32) -> bool {
        let shift = if *inode.owner == *self.caller.user {
            6
        } else if self.caller.groups.iter().any(|group| **group == *inode.group) {
            3
        } else {
            0
        };
        (inode.mode >> shift) & bits == bits
    }

    fn require(&self, inode: &Inode, bits: u32, path: &DfsPath, what: &str) -> Result<(), Error> {
        self.require_with_subject(String::new, inode, bits, path, what)
    }

    /// Checks like [`Self::require`], but for an ancestor folder of `path`, which the error names.
    fn require_of_ancestor(
        &self,
        folder: Ancestor<'_>,
        bits: u32,
        path: &DfsPath,
        what: &str,
    ) -> Result<(), Error> {
        let subject = || {
            let names: Vec<&str> = path.names().take(folder.depth).collect();
            format!("/{} has ", names.join("/"))
        };
        self.require_with_subject(subject, folder.inode, bits, path, what)
    }

    fn require_with_subject(
        &self,
        subject: impl FnOnce() -> String,
        inode: &Inode,
        bits: u32,
        path: &DfsPath,
        what: &str,
    ) -> Result<(), Error> {
        if self.grants(inode, bits) {
            return Ok(());
        }
        let subject = subject();
        let (owner, group, mode) = (&inode.owner, &inode.group, inode.mode);
        let what = format!("{what} {path}");
        Err(denied_error(
            self.caller,
            &what,
            &format!("{subject}owner {owner}, group {group}, mode {mode:o}"),
        ))
    }

    /// Looks up the path as far as it exists. Fails if the caller may not traverse a folder in the
    /// path.
    fn find(&self, path: &DfsPath) -> Result<PathLookup<'a>, Error> {
        let root = self.namespace.inode(ROOT).expect("there is always a root");
        let (mut id, mut at) = (ROOT, root);
        let mut found = PathLookup { inode: None, folder: Ancestor { inode: root, depth: 0 } };
        for (depth, name) in path.names().enumerate() {
            if at.folder().is_none() {
                return Ok(found);
            }
            found.folder = Ancestor { inode: at, depth };
            self.require_of_ancestor(found.folder, EXECUTE, path, "access")?;
            let child = self.namespace.child(id, name).ok().flatten();
            let Some((child, inode)) = child.and_then(|child| Some((child, self.namespace.inode(child)?)))
            else {
                return Ok(found);
            };
            (id, at) = (child, inode);
        }
        found.inode = Some(at);
        Ok(found)
    }

    /// Checks that the caller may create the path or replace an existing file. If the parent does
    /// not exist and is not created either, the operation fails for that reason.
    fn may_create(&self, path: &DfsPath, make_parents: bool) -> Result<(), Error> {
        let PathLookup { inode, folder } = self.find(path)?;
        if !make_parents && folder.depth + 1 < path.names().count() {
            return Ok(());
        }
        self.require_of_ancestor(folder, WRITE | EXECUTE, path, "create")?;
        inode.map_or(Ok(()), |inode| self.check_sticky(folder.inode, inode, path))
    }

    /// Checks that the caller may remove the path. With `destroy`, also checks that the caller may
    /// delete its contents.
    fn may_remove(&self, path: &DfsPath, destroy: bool) -> Result<(), Error> {
        let PathLookup { inode, folder } = self.find(path)?;
        let Some(inode) = inode else { return Ok(()) };
        self.require_of_ancestor(folder, WRITE | EXECUTE, path, "remove")?;
        self.check_sticky(folder.inode, inode, path)?;
        if destroy { self.may_delete_contents(inode, path) } else { Ok(()) }
    }

    fn check_sticky(&self, folder: &Inode, inode: &Inode, path: &DfsPath) -> Result<(), Error> {
        let own = [folder, inode].iter().any(|inode| *inode.owner == *self.caller.user);
        if folder.mode & STICKY == 0 || own {
            return Ok(());
        }
        let why = format!("its owner is {}, and its folder is sticky", inode.owner);
        Err(denied_error(self.caller, &format!("remove {path}"), &why))
    }

    /// Checks that the caller may delete the contents of the inode and of all folders below it.
    fn may_delete_contents(&self, inode: &'a Inode, path: &DfsPath) -> Result<(), Error> {
        let mut left = vec![inode];
        while let Some(inode) = left.pop() {
            let Some(folder) = inode.folder().filter(|folder| !folder.children.is_empty()) else { continue };
            self.require(inode, READ | WRITE | EXECUTE, path, "delete the contents of")?;
            for child in folder.children.values().filter_map(|child| self.namespace.inode(*child)) {
                self.check_sticky(inode, child, path)?;
                left.push(child);
            }
        }
        Ok(())
    }

    /// Checks that the caller may read the file.
    fn may_read(&self, path: &DfsPath) -> Result<(), Error> {
        let inode = self.find(path)?.inode;
        inode.map_or(Ok(()), |inode| self.require(inode, READ, path, "read"))
    }

    /// Checks that the caller may change the file.
    fn may_write(&self, path: &DfsPath) -> Result<(), Error> {
        let inode = self.find(path)?.inode;
        inode.map_or(Ok(()), |inode| self.require(inode, WRITE, path, "write"))
    }

    /// Checks that the caller may change the file with this ID. The folders in its path were
    /// checked when the writer opened the file.
    fn may_write_by_id(&self, file: FileId) -> Result<(), Error> {
        let Some((inode, path)) = self.namespace.inode(file).zip(self.namespace.path_of(file)) else {
            return Ok(());
        };
        let own = *inode.owner == *self.caller.user;
        if own { Ok(()) } else { self.require(inode, WRITE, &path, "write") }
    }

    fn may_set_attributes(
        &self,
        path: &DfsPath,
        others: bool,
        owner: Option<&str>,
        group: Option<&str>,
    ) -> Result<(), Error> {
        let Some(inode) = self.find(path)?.inode else { return Ok(()) };
        if owner.is_some_and(|owner| *owner != *inode.owner) {
            return Err(denied_error(self.caller, &format!("change the owner of {path}"), "only admins may"));
        }
        if others && *inode.owner != *self.caller.user {
            let why = format!("its owner is {}", inode.owner);
            return Err(denied_error(self.caller, &format!("change {path}"), &why));
        }
        let foreign =
            |group: &&str| *inode.group != **group && !self.caller.groups.iter().any(|own| own == group);
        match group.filter(foreign) {
            Some(group) => {
                let why = format!("{} is not in group {group}", self.caller.user);
                Err(denied_error(self.caller, &format!("change the group of {path}"), &why))
            }
            None => Ok(()),
        }
    }
}
