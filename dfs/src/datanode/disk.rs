//! The disk operations that can fail or block (fsync, open, measuring free space), so that tests
//! can replace them. Also defines what an error means for a data folder.
//!
//! A read error affects one replica: a bad sector does not make the whole disk unusable. An
//! [`is_transient`] error affects no replica, because the process itself lacks a resource. After a
//! failed fsync the kernel may have dropped the dirty pages. A second fsync would then succeed
//! although the data is lost, so a folder that fails to sync is retired and never used again.

use rustix::io::Errno;
use std::{fmt, fs::File, io, path::Path};

/// Free space of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DiskSpace {
    /// Bytes that are free for blocks: the available space minus the reserve.
    pub(super) free: u64,
    /// Identifies the file system. Folders on the same file system share its free space.
    pub(super) device: u64,
}

/// The disk operations. Tests use an implementation that fails.
pub(super) trait Disk: Send + Sync + fmt::Debug {
    /// Syncs the data of `file`, whose path is `path`.
    fn sync_file(&self, file: &File, path: &Path) -> io::Result<()>;
    /// Syncs the entries of a folder.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<File>;
    /// Returns the free space of the file system of `path`. May block forever if the disk is
    /// broken.
    fn space(&self, path: &Path) -> io::Result<DiskSpace>;
}

/// Uses the real operations of the operating system.
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

/// Makes the kernel start to write a range of a file to disk, without waiting until it is written.
/// Otherwise all of a block is written by the sync at its end, while its writer waits: with a disk
/// that is twice as fast as the network, a write takes 1.5 times as long. Errors are ignored, because
/// this is only an optimisation and the sync reports errors of the write.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "neither the standard library nor rustix has this call")]
pub(super) fn start_writing(file: &File, range: std::ops::Range<u64>) {
    use std::os::fd::AsRawFd;
    let (Ok(start), Ok(end)) = (i64::try_from(range.start), i64::try_from(range.end)) else { return };
    // SAFETY: the descriptor is open, and the call reads and writes no memory of this process.
    let _ =
        unsafe { libc::sync_file_range(file.as_raw_fd(), start, end - start, libc::SYNC_FILE_RANGE_WRITE) };
}

#[cfg(not(target_os = "linux"))]
pub(super) fn start_writing(_: &File, _: std::ops::Range<u64>) {}

/// What an error means for the data folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskFault {
    /// The disk is full: this write fails, and the folder stays in use.
    Full,
    /// The process lacks a resource (descriptors, memory): this write fails, and the folder stays
    /// in use.
    Transient,
    /// The folder must not be used any more.
    Broken,
}

/// Returns whether an error is caused by this process (descriptors, memory, a signal) and not by
/// the disk.
pub(super) fn is_transient(error: &io::Error) -> bool {
    classify(error) == DiskFault::Transient
}

/// Classifies an error of a write, a sync or another change of a folder.
pub(super) fn classify(error: &io::Error) -> DiskFault {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => DiskFault::Full,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR | Errno::AGAIN) => DiskFault::Transient,
        _ => DiskFault::Broken,
    }
}
