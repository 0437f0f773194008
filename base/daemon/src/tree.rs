//! Removes a folder with its contents, even if another account has manipulated it: a task may leave
//! folders without permissions, links to any path, and arbitrarily deep trees.
//!
//! Guarantees: no link is followed. A folder of the own account without permissions is made
//! accessible first. Folders are traversed by descriptors without recursion, with a bounded number
//! of open descriptors. An entry that cannot be removed does not stop the removal of others.

use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{AtFlags, Dir, FileType, Mode, OFlags, chmod, fstat, open, openat, renameat, unlinkat},
    io::Errno,
};
use std::{
    ffi::{CStr, CString},
    io,
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
    path::Path,
};

/// Maximum number of open folders. Deeper ones are moved up before they are traversed.
const OPEN_MAX: usize = 32;
/// Permissions that the owner needs to empty a folder.
const OWNERS: u32 = 0o700;

/// Removes the file or folder at `path`. A missing path is not an error. If something cannot be
/// removed, returns the first error.
pub fn remove(path: &Path) -> io::Result<()> {
    let Some(name) = path.file_name() else { return Err(io::ErrorKind::InvalidInput.into()) };
    let name = CString::new(name.as_bytes())?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = match open(parent, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let mut removal = Removal { parent, levels: Vec::new(), moved: Vec::new(), number: 0, first_error: None };
    removal.go(&name);
    removal.first_error.map_or(Ok(()), |error| Err(error.into()))
}

/// A folder whose entries are being removed, and its name in its parent.
struct Level {
    dir: Dir,
    name: CString,
}

struct Removal {
    /// Parent of the first level.
    parent: OwnedFd,
    levels: Vec<Level>,
    /// Folders that were moved to the first level and are to be traversed there.
    moved: Vec<CString>,
    number: u64,
    first_error: Option<Errno>,
}

impl Removal {
    fn go(&mut self, name: &CStr) {
        let begun = self.entry(name, FileType::Unknown);
        self.note(begun);
        while let Some(level) = self.levels.last_mut() {
            let done = match level.dir.read() {
                Some(Ok(entry)) if [c".", c".."].contains(&entry.file_name()) => Ok(()),
                Some(Ok(entry)) => self.entry(entry.file_name(), entry.file_type()),
                Some(Err(error)) => Err(error),
                None => self.leave(),
            };
            self.note(done);
        }
    }

    fn note(&mut self, done: Result<(), Errno>) {
        if let Err(error) = done
            && error != Errno::NOENT
        {
            self.first_error.get_or_insert(error);
        }
    }

    /// Returns the folder whose entries are being removed.
    fn at(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.levels.last().map_or(Ok(self.parent.as_fd()), |level| level.dir.fd())
    }

    /// Removes an entry. A folder with contents is entered, or moved up for later.
    fn entry(&mut self, name: &CStr, kind: FileType) -> Result<(), Errno> {
        if unlink(self.at()?, name, kind)? {
            return Ok(());
        }
        let dir = enter(self.at()?, name)?;
        if self.levels.len() < OPEN_MAX {
            self.levels.push(Level { dir, name: name.to_owned() });
            return Ok(());
        }
        // The folder is writable by now, so it can be moved.
        loop {
            self.number += 1;
            let new = CString::new(format!(".removed-{}", self.number)).expect("no zero byte");
            match renameat(self.at()?, name, self.levels[0].dir.fd()?, &new) {
                // The name is in use already.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    self.moved.push(new);
                    return Ok(());
                }
            }
        }
    }

    /// Leaves the last level, after its entries were removed as far as possible.
    fn leave(&mut self) -> Result<(), Errno> {
        if self.levels.len() == 1
            && let Some(name) = self.moved.pop()
        {
            let dir = enter(self.at()?, &name)?;
            self.levels.push(Level { dir, name });
            return Ok(());
        }
        let Some(Level { name, .. }) = self.levels.pop() else { return Ok(()) };
        unlinkat(self.at()?, &name, AtFlags::REMOVEDIR)
    }
}

/// Removes an entry. Returns false if it is a folder with contents.
fn unlink(at: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<bool, Errno> {
    if kind != FileType::Directory {
        match unlinkat(at, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => {}
            other => return other.map(|()| true),
        }
    }
    match unlinkat(at, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        other => other.map(|()| true),
    }
}

/// Opens a folder to empty it. Adds missing permissions if it belongs to the own account.
fn enter(at: BorrowedFd<'_>, name: &CStr) -> Result<Dir, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(at, name, flags | OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
    let about = fstat(&folder)?;
    if about.st_mode & OWNERS != OWNERS && about.st_uid == rustix::process::geteuid().as_raw() {
        // By its descriptor, because another file may have its name by now. If this fails, the next
        // call fails too and returns the reason.
        let own = format!("/proc/self/fd/{}", folder.as_raw_fd());
        chmod(own, Mode::from_raw_mode(OWNERS)).ok();
    }
    Dir::new(openat(&folder, c".", flags | OFlags::RDONLY, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::mkdirat;
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt, chown, symlink},
        path::PathBuf,
    };

    const NOBODY: u32 = 65534;

    /// Runs `act` as the account nobody, in a folder that was prepared for it.
    fn as_nobody(prepare: impl FnOnce(&Path), act: impl FnOnce(PathBuf) + Send) {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("tree");
        fs::create_dir(&folder).unwrap();
        let root = rustix::process::geteuid().is_root();
        if root {
            fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).unwrap();
            chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        prepare(&folder);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                if root {
                    // Affects only this thread.
                    let nobody = rustix::process::Uid::from_raw(NOBODY);
                    rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
                }
                act(folder);
            });
        });
    }

    #[test]
    fn folder_without_owner_permissions_is_removed() {
        as_nobody(
            |_| (),
            |folder| {
                let tree = folder.join("work");
                for (name, mode) in [("closed", 0), ("fixed", 0o555), ("blind", 0o300), ("listed", 0o444)] {
                    let path = tree.join(name);
                    fs::create_dir_all(path.join("deeper/still")).unwrap();
                    fs::write(path.join("deeper/file"), "x").unwrap();
                    fs::write(path.join("file"), "x").unwrap();
                    fs::set_permissions(path.join("deeper"), Permissions::from_mode(mode)).unwrap();
                    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
                }
                // Shows that the standard library cannot remove this tree.
                assert!(fs::remove_dir_all(&tree).is_err());
                remove(&tree).unwrap();
                assert!(!tree.exists());
                // A missing path is not an error.
                remove(&tree).unwrap();
                remove(&tree.join("never/was")).unwrap();
            },
        );
    }

    #[test]
    fn no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("elsewhere/folder")).unwrap();
        fs::write(at("elsewhere/file"), "another's").unwrap();
        fs::set_permissions(at("elsewhere"), Permissions::from_mode(0o555)).unwrap();
        fs::create_dir(at("tree")).unwrap();
        for (name, to) in [("folder", "elsewhere"), ("file", "elsewhere/file"), ("nowhere", "nothing")] {
            symlink(at(to), at("tree").join(name)).unwrap();
        }
        symlink(at("elsewhere"), at("link")).unwrap();
        remove(&at("tree")).unwrap();
        remove(&at("link")).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(fs::read(at("elsewhere/file")).unwrap(), b"another's");
        assert_eq!(fs::metadata(at("elsewhere")).unwrap().permissions().mode() & 0o777, 0o555);
        fs::set_permissions(at("elsewhere"), Permissions::from_mode(0o755)).unwrap();
    }

    /// Deeper than the maximum length of a path, the number of descriptors, and the stack of a
    /// thread.
    #[test]
    fn deep_trees_are_removed() {
        as_nobody(
            |_| (),
            |folder| {
                let tree = folder.join("deep");
                fs::create_dir(&tree).unwrap();
                fs::create_dir_all(tree.join(".removed-1/not ours")).unwrap();
                let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
                let mut at = open(&tree, flags, Mode::empty()).unwrap();
                for level in 0..5_000 {
                    for name in [c"d", c"e"] {
                        mkdirat(&at, name, Mode::from_raw_mode(0o700)).unwrap();
                    }
                    let next = openat(&at, c"d", flags, Mode::empty()).unwrap();
                    if level % 1000 == 999 {
                        chmod(format!("/proc/self/fd/{}", at.as_raw_fd()), Mode::from_raw_mode(0o100))
                            .unwrap();
                    }
                    at = next;
                }
                drop(at);
                remove(&tree).unwrap();
                assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
            },
        );
    }

    #[test]
    fn unremovable_entry_does_not_stop_the_removal() {
        if !rustix::process::geteuid().is_root() {
            return skip::skip("root", "only root can create files of another account");
        }
        let prepare = |folder: &Path| {
            fs::create_dir_all(folder.join("work/b/root's")).unwrap();
            chown(folder.join("work"), Some(NOBODY), None).unwrap();
        };
        as_nobody(prepare, |folder| {
            let tree = folder.join("work");
            for name in ["a", "c"] {
                fs::create_dir_all(tree.join(name).join("deeper")).unwrap();
            }
            assert_eq!(remove(&tree).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            let left: Vec<_> = fs::read_dir(&tree).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left, ["b"]);
        });
    }
}
