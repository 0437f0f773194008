//! Opens what somebody else has made and may be changing: a task's output, read by its tracker.
//!
//! What holds: never by way of a link in the last place of the path, never a pipe or a device that would make the opener
//! wait, never a file of another owner's. The folders on the way must be the opener's own.

use rustix::fs::{Mode, OFlags};
use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

/// No account has this number.
const OWN: u32 = u32::MAX;
/// Whose the files must be.
static OWNER: AtomicU32 = AtomicU32::new(OWN);

/// What is opened carefully from now on belongs to this account; silently, to that of this process.
pub fn belongs_to(user: u32) {
    OWNER.store(user, Ordering::Relaxed);
}

/// Opens it for reading.
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
        return refuse("it is not its maker's");
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
            assert!(open(&at("good")).unwrap_err().to_string().contains("not its maker's"));
        }
    }
}
