//! Removes a folder with its contents, even if another account has created the contents: a task may
//! leave folders without permissions, links to any path, and arbitrarily deep trees.
//!
//! Guarantees: no link is followed. A folder without permissions that belongs to the account of
//! this process is made accessible first. Folders are opened relative to the descriptor of their
//! parent, without recursion, and the number of open descriptors is bounded. An entry that cannot
//! be removed does not stop the removal of other entries.

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

/// Maximum number of open folders. Deeper folders are moved up before they are traversed.
const OPEN_MAX: usize = 32;
/// Permissions that the owner needs to empty a folder.
const OWNER_PERMISSIONS: u32 = 0o700;

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
    let mut removal =
        Removal { parent, levels: Vec::new(), moved: Vec::new(), last_number: 0, first_error: None };
    removal.remove_all(&name);
    removal.first_error.map_or(Ok(()), |error| Err(error.into()))
}

/// A folder whose entries are being removed, and its name in its parent.
struct Level {
    dir: Dir,
    name: CString,
}

struct Removal {
    /// Parent of the folder that is being removed.
    parent: OwnedFd,
    /// Open folders, from the folder that is being removed to the current one.
    levels: Vec<Level>,
    /// Names of folders that were moved up to the first level, and are still to be removed there.
    moved: Vec<CString>,
    /// Number in the last name that was given to a moved folder.
    last_number: u64,
    first_error: Option<Errno>,
}

impl Removal {
    fn remove_all(&mut self, name: &CStr) {
        let begun = self.remove_entry(name, FileType::Unknown);
        self.keep_first_error(begun);
        while let Some(level) = self.levels.last_mut() {
            let done = match level.dir.read() {
                Some(Ok(entry)) if [c".", c".."].contains(&entry.file_name()) => Ok(()),
                Some(Ok(entry)) => self.remove_entry(entry.file_name(), entry.file_type()),
                Some(Err(error)) => Err(error),
                None => self.leave(),
            };
            self.keep_first_error(done);
        }
    }

    fn keep_first_error(&mut self, done: Result<(), Errno>) {
        if let Err(error) = done
            && error != Errno::NOENT
        {
            self.first_error.get_or_insert(error);
        }
    }

    /// Returns the descriptor of the folder whose entries are being removed.
    fn current_dir(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.levels.last().map_or(Ok(self.parent.as_fd()), |level| level.dir.fd())
    }

    /// Removes an entry of the current folder. A folder with contents is entered, or moved up to be
    /// removed later.
    fn remove_entry(&mut self, name: &CStr, kind: FileType) -> Result<(), Errno> {
        if unlink(self.current_dir()?, name, kind)? {
            return Ok(());
        }
        let dir = enter(self.current_dir()?, name)?;
        if self.levels.len() < OPEN_MAX {
            self.levels.push(Level { dir, name: name.to_owned() });
            return Ok(());
        }
        // `enter` has made the folder writable, so it can be moved.
        loop {
            self.last_number += 1;
            let new = CString::new(format!(".removed-{}", self.last_number)).expect("no zero byte");
            match renameat(self.current_dir()?, name, self.levels[0].dir.fd()?, &new) {
                // The name is already in use.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    self.moved.push(new);
                    return Ok(());
                }
            }
        }
    }

    /// Leaves the current folder, after its entries were removed as far as possible, and removes
    /// it. At the first level, enters a moved folder first, if there is one.
    fn leave(&mut self) -> Result<(), Errno> {
        if self.levels.len() == 1
            && let Some(name) = self.moved.pop()
        {
            let dir = enter(self.current_dir()?, &name)?;
            self.levels.push(Level { dir, name });
            return Ok(());
        }
        let Some(Level { name, .. }) = self.levels.pop() else { return Ok(()) };
        unlinkat(self.current_dir()?, &name, AtFlags::REMOVEDIR)
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

/// Opens a folder to empty it. Adds missing permissions if it belongs to the account of this
/// process.
fn enter(at: BorrowedFd<'_>, name: &CStr) -> Result<Dir, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(at, name, flags | OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
    let about = fstat(&folder)?;
    if about.st_mode & OWNER_PERMISSIONS != OWNER_PERMISSIONS
        && about.st_uid == rustix::process::geteuid().as_raw()
    {
        // Change the mode through the descriptor, because another file may have taken the name by
        // now. An error is ignored: the next call fails too and returns it.
        let own = format!("/proc/self/fd/{}", folder.as_raw_fd());
        chmod(own, Mode::from_raw_mode(OWNER_PERMISSIONS)).ok();
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

    /// Calls `prepare`, and then `act` as the account nobody, with the same new folder.
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

    /// The tree is deeper than the maximum length of a path, the maximum number of descriptors, and
    /// the stack of a thread allow.
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
