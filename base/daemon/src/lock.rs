//! A lock on a data folder, so that only one daemon uses it. The kernel releases the lock when the
//! process ends.

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

/// Interval at which the daemon checks that its folders still exist.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How long a daemon waits for the lock. After SIGKILL, a process has the lock until the kernel has
/// freed its memory, and a supervisor may start the next process at once.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval at which a process retries to get the lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A locked folder; dropping it releases the lock.
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
    /// Returns whether the lock file has been deleted or replaced. A disk error gives false.
    fn is_gone(&self) -> bool {
        let identity = |file: std::fs::Metadata| (file.dev(), file.ino());
        match (std::fs::metadata(&self.path), self.file.metadata()) {
            (Err(error), _) => error.kind() == io::ErrorKind::NotFound,
            (Ok(there), Ok(ours)) => identity(there) != identity(ours),
            (Ok(_), Err(_)) => false,
        }
    }
}

/// All folders that this process has locked.
static LOCKED_FOLDERS: Mutex<Vec<Weak<LockedFolder>>> = Mutex::new(Vec::new());

/// Waits until every folder that this process has locked was deleted, and returns one of them.
///
/// It lets a daemon stop when its cluster was deleted and created again under the same path.
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
    /// The folder or its lock file cannot be created.
    #[error("cannot use folder {path}: {source}")]
    Io {
        /// Path of the folder.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// Another process has the lock.
    #[error("folder {path} is in use by {holder}: stop it, or give this daemon another folder")]
    InUse {
        /// Path of the folder.
        path: PathBuf,
        /// Owner as written in the lock file.
        holder: String,
    },
}

/// Returns whether an error means that a disk is full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl FolderLock {
    /// Creates the folder if necessary, and locks it. Blocks for a few seconds if another process
    /// has the lock. `who` is the name of this process in the lock file.
    pub fn acquire(folder: &Path, who: &str) -> Result<Self, LockError> {
        Self::acquire_within(folder, who, LOCK_TIMEOUT, |holder| {
            tracing::warn!(folder = %folder.display(), holder, "the folder is in use: waiting up to {LOCK_TIMEOUT:?}");
        })
    }

    /// Like [`Self::acquire`], but blocks for up to `wait`. Calls `notify` with the holder of the
    /// lock if it has to wait.
    pub fn acquire_within(
        folder: &Path,
        who: &str,
        wait: Duration,
        notify: impl FnOnce(&str),
    ) -> Result<Self, LockError> {
        let deadline = Instant::now() + wait;
        let mut notify = Some(notify);
        loop {
            match Self::try_acquire(folder, who) {
                Err(LockError::InUse { holder, .. }) if Instant::now() < deadline => {
                    if let Some(notify) = notify.take() {
                        notify(&holder);
                    }
                    std::thread::sleep(RETRY_INTERVAL);
                }
                other => return other,
            }
        }
    }

    fn try_acquire(folder: &Path, who: &str) -> Result<Self, LockError> {
        let io = |source| LockError::Io { path: folder.into(), source };
        std::fs::create_dir_all(folder).map_err(io)?;
        let path = folder.join("LOCK");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(io)?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            return Err(lock_error(folder, file, error));
        }
        // The name of the holder is informational. It is written over the old content before the
        // file is truncated, so that this works on a full disk.
        let holder = format!("{who}, pid {}", std::process::id());
        match file.write_all(holder.as_bytes()).and_then(|()| file.set_len(holder.len() as u64)) {
            Err(error) if is_full(&error) => {
                tracing::warn!(folder = %folder.display(), %error, "cannot write the owner to the LOCK file");
            }
            other => other.map_err(io)?,
        }
        let locked_folder = Arc::new(LockedFolder { path, file });
        LOCKED_FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&locked_folder));
        Ok(Self { locked_folder })
    }

    /// Returns whether the folder has been deleted or replaced.
    pub fn is_gone(&self) -> bool {
        self.locked_folder.is_gone()
    }
}

/// Returns the error for a lock that the kernel has refused.
fn lock_error(folder: &Path, mut file: File, error: Errno) -> LockError {
    let io = |source| LockError::Io { path: folder.into(), source };
    if error != Errno::WOULDBLOCK {
        return io(error.into());
    }
    let mut holder = String::new();
    if let Err(error) = file.read_to_string(&mut holder) {
        return io(error);
    }
    let holder = if holder.is_empty() { "another process".into() } else { holder };
    LockError::InUse { path: folder.into(), holder: holder.trim().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_error_is_not_reported_as_a_lock_of_another_process() {
        let refused =
            |error| lock_error(Path::new("/data"), tempfile::tempfile().unwrap(), error).to_string();
        assert_eq!(
            refused(Errno::WOULDBLOCK),
            "folder /data is in use by another process: stop it, or give this daemon another folder"
        );
        let no_locks = refused(Errno::NOLCK);
        assert!(no_locks.starts_with("cannot use folder /data: "), "{no_locks}");
    }

    #[test]
    fn second_lock_fails_until_the_first_is_released() {
        let dir = tempfile::tempdir().unwrap();
        let first = FolderLock::acquire(dir.path(), "namenode").unwrap();
        let error = FolderLock::try_acquire(dir.path(), "namenode").unwrap_err().to_string();
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

    /// Regression: a NameNode that was started right after another one had been killed found the
    /// folder still locked, and ended.
    #[test]
    fn acquire_waits_for_a_lock_that_is_released_soon() {
        let dir = tempfile::tempdir().unwrap();
        let first = FolderLock::acquire(dir.path(), "namenode").unwrap();
        let soon = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(first);
        });
        let mut holders = Vec::new();
        let notify = |holder: &str| holders.push(holder.to_owned());
        FolderLock::acquire_within(dir.path(), "mrctl", LOCK_TIMEOUT, notify).unwrap();
        soon.join().unwrap();
        assert_eq!(holders, [format!("namenode, pid {}", std::process::id())]);
    }

    /// Otherwise a task or another program that a daemon has started would hold the lock after the
    /// daemon has ended.
    #[test]
    fn child_processes_do_not_inherit_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let first = FolderLock::acquire(dir.path(), "namenode").unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        drop(first);
        let second = FolderLock::acquire(dir.path(), "namenode");
        child.kill().unwrap();
        child.wait().unwrap();
        second.unwrap();
    }
}
