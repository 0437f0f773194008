//! One daemon per data folder: an advisory lock that the kernel drops when the process ends, however it ends.

use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

/// Between two looks at whether the folders are still there.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Held for as long as it lives.
#[derive(Debug)]
pub struct FolderLock {
    locked_folder: Arc<LockedFolder>,
}

#[derive(Debug)]
struct LockedFolder {
    path: PathBuf,
    file: File,
}

impl LockedFolder {
    /// Whether its file has been deleted, or another is in its place. A disk that does not answer is no proof.
    fn is_gone(&self) -> bool {
        let identity = |file: std::fs::Metadata| (file.dev(), file.ino());
        match (std::fs::metadata(&self.path), self.file.metadata()) {
            (Err(error), _) => error.kind() == io::ErrorKind::NotFound,
            (Ok(there), Ok(ours)) => identity(there) != identity(ours),
            (Ok(_), Err(_)) => false,
        }
    }
}

/// All that this process holds.
static LOCKED_FOLDERS: Mutex<Vec<Weak<LockedFolder>>> = Mutex::new(Vec::new());

/// Completes when every folder that this process holds has been deleted under it; one of them is named.
///
/// Whoever deletes a cluster's folder and makes another in its place must not find the old daemons at work in it.
pub async fn all_folders_gone() -> PathBuf {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let mut all = LOCKED_FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|locked_folder| locked_folder.strong_count() > 0);
        let locked_folder: Vec<Arc<LockedFolder>> = all.iter().filter_map(Weak::upgrade).collect();
        if let Some(first) = locked_folder.first()
            && locked_folder.iter().all(|locked_folder| locked_folder.is_gone())
        {
            return first.path.parent().map(Path::to_owned).unwrap_or_default();
        }
    }
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
    InUse {
        /// The folder.
        path: PathBuf,
        /// As its lock file says.
        holder: String,
    },
}

/// Whether an error says that a disk is full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl FolderLock {
    /// Makes the folder if need be and locks it for `who`.
    pub fn acquire(folder: &Path, who: &str) -> Result<Self, LockError> {
        let io = |source| LockError::Io { path: folder.into(), source };
        std::fs::create_dir_all(folder).map_err(io)?;
        let path = folder.join("LOCK");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(io)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            file.read_to_string(&mut holder).map_err(io)?;
            let holder = if holder.is_empty() { "another process".into() } else { holder };
            return Err(LockError::InUse { path: folder.into(), holder: holder.trim().into() });
        }
        // Over what is there, then cut: a full disk has room for that. Who holds it is a word for people.
        let holder = format!("{who}, pid {}", std::process::id());
        match file.write_all(holder.as_bytes()).and_then(|()| file.set_len(holder.len() as u64)) {
            Err(error) if is_full(&error) => {
                tracing::warn!(folder = %folder.display(), %error, "its LOCK does not say who holds it");
            }
            other => other.map_err(io)?,
        }
        let locked_folder = Arc::new(LockedFolder { path, file });
        LOCKED_FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&locked_folder));
        Ok(Self { locked_folder })
    }

    /// Whether the folder has been deleted under its holder.
    pub fn is_gone(&self) -> bool {
        self.locked_folder.is_gone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_lock_fails_until_the_first_is_released() {
        let dir = tempfile::tempdir().unwrap();
        let first = FolderLock::acquire(dir.path(), "namenode").unwrap();
        let error = FolderLock::acquire(dir.path(), "namenode").unwrap_err().to_string();
        assert!(error.contains("in use by namenode, pid "), "{error}");
        assert!(!first.is_gone());
        std::fs::remove_file(dir.path().join("LOCK")).unwrap();
        assert!(first.is_gone());
        std::fs::write(dir.path().join("LOCK"), "another's").unwrap();
        assert!(first.is_gone());
        drop(first);
        FolderLock::acquire(dir.path(), "namenode").unwrap();
        let named = std::fs::read_to_string(dir.path().join("LOCK")).unwrap();
        assert_eq!(named, format!("namenode, pid {}", std::process::id()));
    }
}
