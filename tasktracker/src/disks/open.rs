//! Opens the folders at the start of the tracker. A folder that cannot be used is logged and
//! skipped if another folder can be used. A folder that was in use and is empty now is also
//! skipped, because its disk is probably not mounted. A full folder is opened, because its files
//! are still served.

use super::{
    Disk, Disks, FoundFiles, PRIVATE,
    free_space::{FreeSpaceFn, FreeSpaceGauge, measure_free_bytes},
    is_full, replace, sweep,
};
use crate::{
    error::{TrackerError, folder_error},
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

/// Subfolders that are created in every folder of the tracker.
const SUBFOLDERS: [&str; 4] = ["warm", "process-logs", "jobs", "logs"];

impl Disks {
    /// Locks the folders and removes files of earlier attempts. Also returns the map outputs and
    /// checkpoints that are kept.
    pub(crate) fn open(dirs: &[PathBuf], reserve_bytes: u64) -> Result<(Self, FoundFiles), TrackerError> {
        Self::open_with(dirs, reserve_bytes, measure_free_bytes)
    }

    pub(super) fn open_with(
        dirs: &[PathBuf],
        reserve_bytes: u64,
        free_space: FreeSpaceFn,
    ) -> Result<(Self, FoundFiles), TrackerError> {
        let mut disks = Vec::new();
        let mut first_error = None;
        let vanished = data_dirs::vanished_dirs(dirs);
        for dir in dirs {
            let opened = if vanished.contains(dir) {
                Err(folder_error("use", dir)(data_dirs::vanished_error(dir)))
            } else {
                Disk::open(dir, free_space)
            };
            match opened {
                Ok(disk) => disks.push(disk),
                Err(error @ (TrackerError::Folder { .. } | TrackerError::Lock(LockError::Io { .. }))) => {
                    tracing::error!(folder = %dir.display(), %error, "cannot use this data folder: starting without it");
                    first_error.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(error) = first_error.filter(|_| disks.is_empty()) {
            return Err(error);
        }
        data_dirs::write_list(dirs, disks.iter().map(|disk| disk.root.as_path()));
        data_dirs::forget_declared_new(disks.iter().map(|disk| disk.root.as_path()));
        let (next_disk, next_number) = (AtomicU64::new(0), AtomicU64::new(0));
        let disks = Self { disks, reserve_bytes, free_space, next_disk, next_number, account: None };
        // Kill processes of an earlier start before the files are examined, because they may still
        // write. They are marked with the first folder of that start, which may be any of the
        // folders.
        for dir in dirs {
            let root = fs::canonicalize(dir).unwrap_or_else(|_| dir.clone());
            system::kill_marked(&root, None, orphan_reaper::KILL_TIMEOUT);
        }
        let found = disks.sweep();
        Ok((disks, found))
    }

    /// Returns the number of this start: the current time `now`, or the last number plus 1 if that
    /// is greater because the clock was set back. The number is stored in every folder, because any
    /// of them may be missing at the next start.
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
                    // A full disk does not prevent the start: the number of the next start is
                    // greater anyway, unless the clock is set back.
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
        // The path must be absolute, because child processes have other working folders.
        let root = fs::canonicalize(dir).map_err(folder_error("use", dir))?;
        for path in SUBFOLDERS.map(|part| root.join(part)) {
            fs::create_dir_all(&path).map_err(folder_error("make", &path))?;
            sweep::list_folder(&path)?;
        }
        let gauge = FreeSpaceGauge::start(&root, free_space).map_err(TrackerError::Thread)?;
        Ok(Self { root, gauge, attempts: AtomicU64::new(0), avoided_until: Mutex::new(None), _lock: lock })
    }
}
