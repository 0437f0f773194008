//! Opens files that another account may have created and may still change. For example, a tracker
//! opens the output of a task.
//!
//! Guarantees: the last component of the path is not a link, opening never blocks on a pipe or
//! device, and the file has the expected owner. The parent folders must belong to the account of
//! this process.

use rustix::fs::{Mode, OFlags};
use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

/// Value of [`REQUIRED_OWNER`] that stands for the account of this process. No account has this ID.
const OWN_ACCOUNT: u32 = u32::MAX;
/// User ID of the account that must own opened files.
static REQUIRED_OWNER: AtomicU32 = AtomicU32::new(OWN_ACCOUNT);

/// Sets the account, by its user ID, that must own opened files. The default is the account of this
/// process.
pub fn set_required_owner(user: u32) {
    REQUIRED_OWNER.store(user, Ordering::Relaxed);
}

/// Opens a regular file for reading.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let about = file.metadata()?;
    let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    if !about.is_file() {
        return refuse("it is not a regular file");
    }
    let owner = match REQUIRED_OWNER.load(Ordering::Relaxed) {
        OWN_ACCOUNT => rustix::process::geteuid().as_raw(),
        other => other,
    };
    if about.uid() != owner {
        return refuse("it has an unexpected owner");
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Read, os::unix::fs::symlink};

    #[test]
    fn only_regular_files_of_the_required_owner_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("good"), "words").unwrap();
        let mut read = String::new();
        open(&at("good")).unwrap().read_to_string(&mut read).unwrap();
        assert_eq!(read, "words");
        symlink(at("good"), at("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
        fs::create_dir(at("folder")).unwrap();
        for wrong in ["link", "pipe", "folder", "missing"] {
            open(&at(wrong)).unwrap_err();
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(at("good"), Some(65534), None).unwrap();
            assert!(open(&at("good")).unwrap_err().to_string().contains("unexpected owner"));
        }
    }
}
