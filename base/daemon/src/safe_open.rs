//! Opens files that another account may have created and may be changing, for example the output of
//! a task, read by its tracker.
//!
//! Guarantees: the last component of the path is not a link, opening never blocks on a pipe or
//! device, and the file has the expected owner. The parent folders must belong to the opener.

use rustix::fs::{Mode, OFlags};
use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

/// Placeholder for the account of this process; no account has this number.
const OWN: u32 = u32::MAX;
/// Account that must own the files.
static OWNER: AtomicU32 = AtomicU32::new(OWN);

/// Sets the account that must own opened files; the default is the account of this process.
pub fn belongs_to(user: u32) {
    OWNER.store(user, Ordering::Relaxed);
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
    let owner = match OWNER.load(Ordering::Relaxed) {
        OWN => rustix::process::geteuid().as_raw(),
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
    fn only_own_regular_files_are_opened() {
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
