//! The two places where a disk can lie to us: making things durable, and errors. A seam for tests, and the
//! one rule on what an error means for the folder it came from.
//!
//! After a failed fsync the kernel may have dropped the dirty pages and a second fsync would succeed with the
//! bytes lost: so a failing folder is retired, never tried again.

use rustix::io::Errno;
use std::{fmt, fs::File, io, path::Path};

/// Makes writes durable. Tests put one in that fails.
pub(super) trait Disk: Send + Sync + fmt::Debug {
    /// The data of `file`, which lies at `path`.
    fn sync_file(&self, file: &File, path: &Path) -> io::Result<()>;
    /// The entries of a folder.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
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
}

/// What an error on a write or sync says of its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is full: this write fails, the folder stays.
    Full,
    /// The process lacks something (descriptors, memory): this write fails, the folder stays.
    Passing,
    /// It cannot be trusted with another byte.
    Broken,
}

/// Judges an error of a write, sync, rename or create.
pub(super) fn judge(error: &io::Error) -> Verdict {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => Verdict::Full,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR) => Verdict::Passing,
        _ => Verdict::Broken,
    }
}
