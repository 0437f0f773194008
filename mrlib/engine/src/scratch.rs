//! Scratch files, spread over several folders and removed when they are no longer used.
//!
//! If a folder is full, the file is written again in another. The task fails only if all folders
//! fail.

use mrlib_api::TaskError;
use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Folders for scratch files, used in turn.
#[derive(Debug, Clone)]
pub struct Scratch {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dirs: Vec<PathBuf>,
    /// Number of files created.
    count: AtomicUsize,
}

/// A scratch file, removed when its last clone is dropped.
#[derive(Debug, Clone)]
pub struct ScratchFile(Arc<OwnedPath>);

#[derive(Debug)]
struct OwnedPath(PathBuf);

impl ScratchFile {
    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.0.0
    }
}

impl Drop for OwnedPath {
    fn drop(&mut self) {
        // Errors are ignored, because the tracker deletes the folder later.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Scratch {
    /// Uses these folders, which belong to this task alone. There must be at least one folder.
    pub fn new(dirs: Vec<PathBuf>) -> Self {
        assert!(!dirs.is_empty(), "a task has at least one scratch folder");
        Self { inner: Arc::new(Inner { dirs, count: AtomicUsize::new(0) }) }
    }

    /// Calls `write` with a path to create a file. If a disk is full, `write` is called again with
    /// another path.
    pub fn create<T>(
        &self,
        name: &str,
        mut write: impl FnMut(&Path) -> Result<T, TaskError>,
    ) -> Result<(ScratchFile, T), TaskError> {
        let number = self.inner.count.fetch_add(1, Ordering::Relaxed);
        let dirs = &self.inner.dirs;
        let mut last = None;
        for turn in 0..dirs.len() {
            let dir = &dirs[(number + turn) % dirs.len()];
            let file = ScratchFile(Arc::new(OwnedPath(dir.join(format!("{name}-{number}")))));
            match write(file.path()) {
                Ok(made) => return Ok((file, made)),
                Err(error) if disk_failed(&error) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.expect("there is at least one folder"))
    }
}

/// Returns whether the error means that a disk is full, read-only or failing, so that another disk
/// may work.
pub(crate) fn disk_failed(error: &TaskError) -> bool {
    let TaskError::Io { source, .. } = error else { return false };
    matches!(
        source.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::ReadOnlyFilesystem
    ) || source.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}
