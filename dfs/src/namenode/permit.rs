//! Who may touch what: owner, group and mode, as POSIX has them. Read-only, before anything is planned.
//!
//! Every folder on the way must let the caller through (execute). Making, moving and deleting an entry needs write
//! on its folder; in a sticky folder (mode 1777) only the owner of the entry or of the folder may take it away. What
//! is not there is no secret worth a rule: the operation itself says that it is missing. A superuser is not asked.
//!
//! Deliberately absent: who is a superuser, and whether a method is for the caller's role (the gate before the server).

use super::{
    namespace::{Inode, Namespace, ROOT},
    op::{Caller, Op, Request},
    state::State,
};
use crate::{
    error::{Error, Kind},
    ids::FileId,
    path::DfsPath,
};

const READ: u32 = 4;
const WRITE: u32 = 2;
const EXECUTE: u32 = 1;
const STICKY: u32 = 0o1000;

/// What a question needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// The way to it.
    Traverse,
    /// Its bytes.
    Read,
    /// The names in it, of a folder.
    List,
    /// To put something there, if nothing is.
    Create,
}

impl State {
    /// Whether the caller may ask this of a path.
    pub(crate) fn permit(&self, caller: &Caller, path: &DfsPath, need: Need) -> Result<(), Error> {
        if caller.superuser {
            return Ok(());
        }
        let asked = PermissionCheck { namespace: self.namespace(), caller };
        let Some(inode) = asked.find(path)?.inode else {
            return if need == Need::Create { asked.put(path) } else { Ok(()) };
        };
        match need {
            Need::Traverse | Need::Create => Ok(()),
            Need::List if inode.folder().is_none() => Ok(()),
            Need::Read | Need::List => asked.demand(inode, READ, path, "read"),
        }
    }

    /// Whether the caller may do this.
    pub(super) fn permit_op(&self, request: &Request) -> Result<(), Error> {
        let caller = &request.caller;
        if caller.superuser {
            return Ok(());
        }
        let asked = PermissionCheck { namespace: self.namespace(), caller };
        match &request.op {
            Op::Create { path, .. } => asked.put(path),
            Op::Mkdir { path, parents, .. } => match asked.find(path)?.inode {
                Some(_) if *parents => Ok(()),
                _ => asked.put(path),
            },
            Op::Append { path, .. } => asked.write(path),
            Op::AddBlock { file, .. } | Op::AbandonBlock { file, .. } => asked.write_to(*file),
            Op::Close { file, rename_to, .. } => {
                asked.write_to(*file)?;
                let Some(to) = rename_to else { return Ok(()) };
                self.namespace().path_of(*file).map_or(Ok(()), |from| asked.remove(&from, false))?;
                asked.put(to)
            }
            Op::Rename { from, to, .. } => asked.remove(from, false).and_then(|()| asked.put(to)),
            Op::Delete { path, .. } => asked.remove(path, true),
            Op::SetAttributes { path, replication, mode, owner, group, modified_ms } => {
                if replication.is_some() {
                    asked.write(path)?;
                }
                let others = mode.is_some() || group.is_some() || modified_ms.is_some();
                asked.set_attributes(path, others, owner.as_deref(), group.as_deref())
            }
            Op::Concat { target, sources } => {
                asked.write(target)?;
                sources.iter().try_for_each(|source| {
                    // What was another's to read would become the target's.
                    asked.read(source)?;
                    asked.remove(source, false)
                })
            }
            Op::Commit { moves, deletes, .. } => {
                for step in moves {
                    step.pieces.iter().try_for_each(|piece| asked.remove(piece, false))?;
                    asked.put(&step.to)?;
                }
                deletes.iter().try_for_each(|path| asked.remove(path, true))
            }
            Op::SetQuota { .. } | Op::Fence { .. } | Op::Drain { .. } => {
                Err(denied(caller, "do this", "it is for admins"))
            }
        }
    }
}

fn denied(caller: &Caller, what: &str, why: &str) -> Error {
    Error::new(Kind::Denied, format!("user {} may not {what}: {why}", caller.user))
}

/// One who is bound by owners and modes, and what there is.
struct PermissionCheck<'a> {
    namespace: &'a Namespace,
    caller: &'a Caller,
}

/// What is at a path, and the folder nearest to it that is there: its own, if it is.
struct Found<'a> {
    inode: Option<&'a Inode>,
    folder: &'a Inode,
    folder_path: String,
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

    fn demand(&self, inode: &Inode, bits: u32, path: &DfsPath, what: &str) -> Result<(), Error> {
        self.demand_of("", inode, bits, path, what)
    }

    /// The same of a folder above `path`.
    fn demand_above(
        &self,
        folder: (&Inode, &str),
        bits: u32,
        path: &DfsPath,
        what: &str,
    ) -> Result<(), Error> {
        self.demand_of(&format!("{} has ", folder.1), folder.0, bits, path, what)
    }

    fn demand_of(
        &self,
        whose: &str,
        inode: &Inode,
        bits: u32,
        path: &DfsPath,
        what: &str,
    ) -> Result<(), Error> {
        if self.grants(inode, bits) {
            return Ok(());
        }
        let (owner, group, mode) = (&inode.owner, &inode.group, inode.mode);
        let what = format!("{what} {path}");
        Err(denied(self.caller, &what, &format!("{whose}owner {owner}, group {group}, mode {mode:o}")))
    }

    /// Goes as far as there is something, if the caller may.
    fn find(&self, path: &DfsPath) -> Result<Found<'a>, Error> {
        let root = self.namespace.inode(ROOT).expect("there is always a root");
        let (mut id, mut at) = (ROOT, root);
        let mut found = Found { inode: None, folder: root, folder_path: "/".into() };
        let mut walked = String::new();
        for name in path.names() {
            if at.folder().is_none() {
                return Ok(found);
            }
            let here = if walked.is_empty() { "/" } else { &walked };
            self.demand_above((at, here), EXECUTE, path, "go to")?;
            here.clone_into(&mut found.folder_path);
            found.folder = at;
            let child = self.namespace.child(id, name).ok().flatten();
            let Some((child, inode)) = child.and_then(|child| Some((child, self.namespace.inode(child)?)))
            else {
                return Ok(found);
            };
            (id, at) = (child, inode);
            walked = format!("{walked}/{name}");
        }
        found.inode = Some(at);
        Ok(found)
    }

    /// To put something there, in place of what may be there.
    fn put(&self, path: &DfsPath) -> Result<(), Error> {
        let Found { inode, folder, folder_path } = self.find(path)?;
        self.demand_above((folder, &folder_path), WRITE | EXECUTE, path, "make")?;
        inode.map_or(Ok(()), |inode| self.unstick(folder, inode, path))
    }

    /// To take away what is there, with everything in it if it is to be destroyed.
    fn remove(&self, path: &DfsPath, destroy: bool) -> Result<(), Error> {
        let Found { inode, folder, folder_path } = self.find(path)?;
        let Some(inode) = inode else { return Ok(()) };
        self.demand_above((folder, &folder_path), WRITE | EXECUTE, path, "remove")?;
        self.unstick(folder, inode, path)?;
        if destroy { self.empty(inode, path) } else { Ok(()) }
    }

    fn unstick(&self, folder: &Inode, inode: &Inode, path: &DfsPath) -> Result<(), Error> {
        let own = [folder, inode].iter().any(|inode| *inode.owner == *self.caller.user);
        if folder.mode & STICKY == 0 || own {
            return Ok(());
        }
        let why = format!("it is {}'s, and its folder is sticky", inode.owner);
        Err(denied(self.caller, &format!("remove {path}"), &why))
    }

    /// Every folder below that has something in it must be the caller's to empty.
    fn empty(&self, inode: &'a Inode, path: &DfsPath) -> Result<(), Error> {
        let mut left = vec![inode];
        while let Some(inode) = left.pop() {
            let Some(folder) = inode.folder().filter(|folder| !folder.children.is_empty()) else { continue };
            self.demand(inode, READ | WRITE | EXECUTE, path, "empty what is in")?;
            for child in folder.children.values().filter_map(|child| self.namespace.inode(*child)) {
                self.unstick(inode, child, path)?;
                left.push(child);
            }
        }
        Ok(())
    }

    /// To have its bytes.
    fn read(&self, path: &DfsPath) -> Result<(), Error> {
        let inode = self.find(path)?.inode;
        inode.map_or(Ok(()), |inode| self.demand(inode, READ, path, "read"))
    }

    /// To change a file.
    fn write(&self, path: &DfsPath) -> Result<(), Error> {
        let inode = self.find(path)?.inode;
        inode.map_or(Ok(()), |inode| self.demand(inode, WRITE, path, "write"))
    }

    /// The same by its id. Its writer went through the folders when it opened it.
    fn write_to(&self, file: FileId) -> Result<(), Error> {
        let Some((inode, path)) = self.namespace.inode(file).zip(self.namespace.path_of(file)) else {
            return Ok(());
        };
        let own = *inode.owner == *self.caller.user;
        if own { Ok(()) } else { self.demand(inode, WRITE, &path, "write") }
    }

    fn set_attributes(
        &self,
        path: &DfsPath,
        others: bool,
        owner: Option<&str>,
        group: Option<&str>,
    ) -> Result<(), Error> {
        let Some(inode) = self.find(path)?.inode else { return Ok(()) };
        if owner.is_some_and(|owner| *owner != *inode.owner) {
            return Err(denied(self.caller, &format!("give {path} to another"), "that is for admins"));
        }
        if others && *inode.owner != *self.caller.user {
            let why = format!("it is {}'s", inode.owner);
            return Err(denied(self.caller, &format!("change {path}"), &why));
        }
        let foreign =
            |group: &&str| *inode.group != **group && !self.caller.groups.iter().any(|own| own == group);
        match group.filter(foreign) {
            Some(group) => {
                let why = format!("{} is not in group {group}", self.caller.user);
                Err(denied(self.caller, &format!("change the group of {path}"), &why))
            }
            None => Ok(()),
        }
    }
}
