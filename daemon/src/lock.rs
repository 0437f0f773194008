//! One daemon per data folder: an advisory lock that the kernel drops when the process ends, however it ends.

use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    path::{Path, PathBuf},
};

/// Held for as long as it lives.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

/// Why a folder could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The folder or its lock file cannot be made.
    #[error("cannot use folder {path}: {source}")]
    Io {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another process has it.
    #[error("folder {path} is in use by {holder}: stop it, or give this daemon a folder of its own")]
    Held {
        /// The folder.
        path: PathBuf,
        /// As its lock file says.
        holder: String,
    },
}

impl FolderLock {
    /// Makes the folder if need be and locks it for `who`.
    pub fn acquire(folder: &Path, who: &str) -> Result<Self, LockError> {
        let io = |source| LockError::Io { path: folder.into(), source };
        std::fs::create_dir_all(folder).map_err(io)?;
        let path = folder.join("LOCK");
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            file.read_to_string(&mut holder).map_err(io)?;
            let holder = if holder.is_empty() { "another process".into() } else { holder };
            return Err(LockError::Held { path: folder.into(), holder: holder.trim().into() });
        }
        file.set_len(0).map_err(io)?;
        write!(file, "{who}, pid {}", std::process::id()).map_err(io)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_until_the_first_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let first = FolderLock::acquire(dir.path(), "namenode").unwrap();
        let error = FolderLock::acquire(dir.path(), "namenode").unwrap_err().to_string();
        assert!(error.contains("in use by namenode, pid "), "{error}");
        drop(first);
        FolderLock::acquire(dir.path(), "namenode").unwrap();
    }
}
