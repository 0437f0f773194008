//! Opens the folders at start. A folder that cannot be used is logged and skipped if there is
//! another; so is one that was in use and is empty now, because its disk is not mounted. A full
//! folder is opened, because its files are still served.

use super::{
    Disk, Disks, Found, PRIVATE,
    free_space::{FreeSpaceFn, Gauge, free},
    is_full, replace, sweep,
};
use crate::{
    error::{TrackerError, folder},
    orphan_reaper, system,
};
use daemon::{
    data_dirs,
    lock::{FolderLock, LockError},
};
use parking_lot::Mutex;
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::AtomicU64,
};

/// Subfolders of every folder.
const PARTS: [&str; 4] = ["warm", "process-logs", "jobs", "logs"];

impl Disks {
    /// Locks the folders, removes files of earlier attempts, and finds the map outputs.
    pub(crate) fn open(dirs: &[PathBuf], reserve: u64) -> Result<(Self, Found), TrackerError> {
        Self::open_with(dirs, reserve, free)
    }

    pub(super) fn open_with(
        dirs: &[PathBuf],
        reserve: u64,
        free_space: FreeSpaceFn,
    ) -> Result<(Self, Found), TrackerError> {
        let mut all = Vec::new();
        let mut first_error = None;
        let vanished = data_dirs::vanished(dirs);
        for dir in dirs {
            let opened = if vanished.contains(dir) {
                Err(folder("use", dir)(data_dirs::vanished_error(dir)))
            } else {
                Disk::open(dir, free_space)
            };
            match opened {
                Ok(disk) => all.push(disk),
                Err(error @ (TrackerError::Folder { .. } | TrackerError::Lock(LockError::Io { .. }))) => {
                    tracing::error!(folder = %dir.display(), %error, "cannot use this data folder: starting without it");
                    first_error.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(error) = first_error.filter(|_| all.is_empty()) {
            return Err(error);
        }
        data_dirs::remember(dirs, all.iter().map(|disk| disk.root.as_path()));
        let (next_disk, numbers) = (AtomicU64::new(0), AtomicU64::new(0));
        let disks = Self { all, reserve, free_space, next_disk, numbers, account: None };
        // Before the files are examined, because processes of an earlier start may still write.
        // They are marked with the first folder of that start, which may have been another one.
        for dir in dirs {
            let root = fs::canonicalize(dir).unwrap_or_else(|_| dir.clone());
            system::kill_marked(&root, None, orphan_reaper::DRAIN_TIMEOUT);
        }
        let found = disks.sweep();
        Ok((disks, found))
    }

    /// Returns the number of this start: the time, but always greater than the last number, even if
    /// the clock was set back. It is stored in every folder, because any of them may be missing
    /// next time.
    pub(crate) fn next_incarnation(&self, now: u64) -> io::Result<u64> {
        let mut last: u64 = 0;
        let mut readable = Vec::new();
        let mut first_error = None;
        for path in self.roots().map(|root| root.join("incarnation")) {
            match fs::read_to_string(&path) {
                Ok(text) => last = last.max(text.trim().parse().unwrap_or(0)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    first_error = Some(error);
                    continue;
                }
            }
            readable.push(path);
        }
        let next = now.max(last.saturating_add(1));
        let mut stored = false;
        for path in readable {
            match replace(&path, next.to_string().as_bytes(), PRIVATE, true) {
                Ok(()) => stored = true,
                Err(error) => {
                    let path = path.display();
                    tracing::warn!(%path, %error, "cannot store the number of this start: the clock must not be set back");
                    // The clock alone makes the next number greater.
                    stored |= is_full(&error);
                    first_error = Some(error);
                }
            }
        }
        match first_error {
            Some(error) if !stored => Err(error),
            _ => Ok(next),
        }
    }
}

impl Disk {
    /// Locks a folder, and creates its subfolders.
    fn open(dir: &Path, free_space: FreeSpaceFn) -> Result<Self, TrackerError> {
        let lock = FolderLock::acquire(dir, "tasktracker")?;
        // Absolute, because children have other working folders.
        let root = fs::canonicalize(dir).map_err(folder("use", dir))?;
        for path in PARTS.map(|part| root.join(part)) {
            fs::create_dir_all(&path).map_err(folder("make", &path))?;
            sweep::entries(&path)?;
        }
        let gauge = Gauge::start(&root, free_space).map_err(TrackerError::Thread)?;
        Ok(Self { root, gauge, load: AtomicU64::new(0), avoided_since: Mutex::new(None), _lock: lock })
    }
}
