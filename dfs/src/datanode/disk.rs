//! The places where a disk can lie to us or leave us waiting: making things durable, opening what is there, its
//! room, and errors. A seam for tests, and the rules on what an error means.
//!
//! An error of a read is about one replica: a bad sector does not condemn the disk ([`is_transient`] errors are about
//! this process). After a failed fsync the kernel may have dropped the dirty pages and a second fsync would succeed
//! with the bytes lost: so a failing folder is retired, never tried again.

use rustix::io::Errno;
use std::{fmt, fs::File, io, path::Path};

/// Room on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DiskSpace {
    /// For blocks: what is available less the reserve.
    pub(super) free: u64,
    /// Names the file system: folders on one disk share its room.
    pub(super) device: u64,
}

/// What can fail on a disk. Tests put one in that does.
pub(super) trait Disk: Send + Sync + fmt::Debug {
    /// The data of `file`, which lies at `path`.
    fn sync_file(&self, file: &File, path: &Path) -> io::Result<()>;
    /// The entries of a folder.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    /// Opens a file to read it.
    fn open(&self, path: &Path) -> io::Result<File>;
    /// What the file system of `path` says of its room. May take forever when the disk is ill.
    fn space(&self, path: &Path) -> io::Result<DiskSpace>;
}

/// The real thing.
#[derive(Debug)]
pub(super) struct RealDisk;

impl Disk for RealDisk {
    fn sync_file(&self, file: &File, _path: &Path) -> io::Result<()> {
        file.sync_data()
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        File::open(path)
    }

    fn space(&self, path: &Path) -> io::Result<DiskSpace> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(DiskSpace { free: stat.f_bavail.saturating_mul(stat.f_frsize), device: stat.f_fsid })
    }
}

/// What an error says of the folder it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskFault {
    /// It is full: this write fails, the folder stays.
    Full,
    /// The process lacks something (descriptors, memory): this write fails, the folder stays.
    Transient,
    /// It cannot be trusted with another byte.
    Broken,
}

/// Whether an error is about this process (descriptors, memory, a signal) and not about the disk.
pub(super) fn is_transient(error: &io::Error) -> bool {
    classify(error) == DiskFault::Transient
}

/// Judges an error of a write, a sync or another change to a folder.
pub(super) fn classify(error: &io::Error) -> DiskFault {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => DiskFault::Full,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR | Errno::AGAIN) => DiskFault::Transient,
        _ => DiskFault::Broken,
    }
}
