//! Scratch files: spread over the folders given, removed when they are no longer needed.
//!
//! A folder that is full is passed over: the file is written anew in another. Only when all have failed is it the
//! task's error.

use crate::error::TaskError;
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
    count: AtomicUsize,
}

/// A scratch file; removed with its last clone.
#[derive(Debug, Clone)]
pub struct ScratchFile(Arc<Owned>);

#[derive(Debug)]
struct Owned(PathBuf);

impl ScratchFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Best effort: the tracker clears the whole folder in the end.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Scratch {
    /// Over these folders, of which there must be one. They belong to this task alone.
    pub fn new(dirs: Vec<PathBuf>) -> Self {
        assert!(!dirs.is_empty(), "a task has at least one scratch folder");
        Self { inner: Arc::new(Inner { dirs, count: AtomicUsize::new(0) }) }
    }

    /// Has `write` make a file at the path it is given; it may be called again with another if a disk is full.
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
            let file = ScratchFile(Arc::new(Owned(dir.join(format!("{name}-{number}")))));
            match write(file.path()) {
                Ok(made) => return Ok((file, made)),
                Err(error) if disk_failed(&error) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.expect("there is a folder, and it failed"))
    }
}

/// Whether it is a disk that is full or broken: another may do.
pub(crate) fn disk_failed(error: &TaskError) -> bool {
    let TaskError::Io { source, .. } = error else { return false };
    matches!(
        source.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::ReadOnlyFilesystem
    ) || source.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}
