//! The folders of the tracker, ideally one per disk, and their contents:
//!
//! ```text
//! LOCK
//! incarnation                    of the last start of the tracker, in each folder
//! VOLUMES                        all folders of the tracker (daemon::data_dirs)
//! warm/N/                        working folder of an idle process; renamed for its attempt
//! process-logs/N/{stdout,stderr} of an idle process; renamed to `logs/ATTEMPT`
//! jobs/JOB/work/ATTEMPT/         working folder, spills
//! jobs/JOB/output/ATTEMPT/out    map output, and its .index
//! jobs/JOB/checkpoints/ATTEMPT/  checkpoint of a paused reduce, perhaps on several disks
//! jobs/JOB/program, jobs/JOB/files/  fetched once per job, in one of the folders
//! jobs/JOB/token                 shuffle token of the job, in one of the folders
//! logs/ATTEMPT/{stdout,stderr}   and `owner`, if owners are enforced
//! ```
//!
//! Invariants: names are made from typed IDs. Files that the tracker did not make are not touched.
//! Tasks may write to `warm/N` and to the folders of attempts in `work`, `output` and
//! `checkpoints`; the tracker reads there only with `safe_open`. All parent folders and other files
//! belong to the tracker, so that no task can create links there. A full or failing folder is not
//! used for a while. A folder that cannot be used at start is skipped if there is another. Files of
//! tasks cannot prevent the start of the tracker.
//!
//! Deliberately absent: fsync, except for the incarnation and checkpoints. Other data that is lost
//! in a power failure is made again by running the map again.

mod copy_targets;
mod free_space;
mod open;
mod process_logs;
mod sweep;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) use process_logs::{ProcessLogs, files as log_files};
pub(crate) use sweep::Found;

use crate::{
    account::{Account, hand_over},
    error::{TrackerError, folder},
};
use daemon::{
    files::{PRIVATE, replace},
    lock::FolderLock,
};
pub(crate) use daemon::{lock::is_full, tree::remove as remove_tree};
use free_space::{FreeSpaceFn, Gauge};
use parking_lot::Mutex;
use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use types::{AttemptId, JobId, Phase};

/// A folder that was full or failed gets no new attempt for this long, if there is another.
const AVOID_FOR: Duration = Duration::from_mins(1);
/// Mode of a folder that other accounts may traverse but not list.
const TRAVERSABLE: u32 = 0o711;
/// Name of the map output in the folder of its attempt.
const OUTPUT: &str = "out";
/// Name of the token file in the folder of a job.
const TOKEN: &str = "token";
/// Name of the token file while it is being written.
const TOKEN_TEMPORARY: &str = "token.new";
/// If less is free, the silent end of a process is attributed to a full disk.
const FULL_BELOW: u64 = 1 << 20;

/// Infix of the name of a checkpoint that is being deleted, between the attempt and a number.
const DROPPED: &str = ".dropped-";
static DELETIONS: AtomicU64 = AtomicU64::new(0);

/// How often the removal of the folder of a job is tried: an escaped process may still write to it.
const CLEAN_ATTEMPTS_MAX: u32 = 10;
const CLEAN_PAUSE: Duration = Duration::from_millis(100);

/// All folders of the tracker.
#[derive(Debug)]
pub(crate) struct Disks {
    all: Vec<Disk>,
    reserve: u64,
    free_space: FreeSpaceFn,
    next_disk: AtomicU64,
    numbers: AtomicU64,
    account: Option<Account>,
}

#[derive(Debug)]
struct Disk {
    root: PathBuf,
    gauge: Arc<Gauge>,
    /// Number of attempts with their folder here.
    load: AtomicU64,
    avoided_since: Mutex<Option<Instant>>,
    _lock: FolderLock,
}

/// Why there is no folder for an attempt.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    /// No folder has enough space.
    #[error("no space on {0}")]
    NoSpace(String),
    /// A folder failed.
    #[error("cannot use {path}: {source}")]
    Io {
        /// Path of the folder.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

impl Disks {
    /// Sets the account of tasks, which must be able to reach the folders.
    pub(crate) fn for_tasks_of(self, account: Option<Account>) -> Result<Self, TrackerError> {
        if let Some(account) = account {
            for disk in &self.all {
                for path in [disk.root.clone(), disk.root.join("warm"), disk.root.join("jobs")] {
                    fs::set_permissions(&path, Permissions::from_mode(TRAVERSABLE))
                        .map_err(folder("open", &path))?;
                }
                account.check_reachable(&disk.root)?;
            }
        }
        Ok(Self { account, ..self })
    }

    /// Returns the account of tasks, if it is not that of the tracker.
    pub(crate) fn account(&self) -> Option<Account> {
        self.account
    }

    /// Returns the number of folders.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns a subfolder of the folder of a job, on each disk.
    pub(crate) fn job_parts(&self, job: JobId, part: &'static str) -> impl Iterator<Item = PathBuf> {
        (0..self.all.len()).map(move |disk| self.job_folder(disk, job).join(part))
    }

    /// Returns the folders in the order of the configuration.
    pub(crate) fn roots(&self) -> impl Iterator<Item = &Path> {
        self.all.iter().map(|disk| disk.root.as_path())
    }

    /// Returns the folder of a job on a disk.
    pub(crate) fn job_folder(&self, disk: usize, job: JobId) -> PathBuf {
        self.all[disk].root.join("jobs").join(job.to_string())
    }

    fn job_folders(&self, job: JobId) -> impl Iterator<Item = PathBuf> {
        (0..self.all.len()).map(move |disk| self.job_folder(disk, job))
    }

    /// Creates a subfolder of the folder of a job, which belongs to the tracker.
    pub(crate) fn make_part(&self, disk: usize, job: JobId, part: &str) -> io::Result<PathBuf> {
        let folder = self.job_folder(disk, job);
        let path = folder.join(part);
        make_tracker_folder(&folder).and_then(|()| make_tracker_folder(&path)).map(|()| path)
    }

    /// Creates the folder of an attempt in a subfolder of its job, and gives it to the account of
    /// tasks.
    fn make_attempt_part(&self, disk: usize, attempt: AttemptId, part: &str) -> Result<PathBuf, DiskError> {
        let path = self.job_folder(disk, attempt.job()).join(part).join(attempt.to_string());
        let made = self.make_part(disk, attempt.job(), part).and_then(|_| remove_tree(&path));
        made.and_then(|()| fs::create_dir(&path))
            .and_then(|()| hand_over(&path, self.account))
            .map_err(|source| self.failed(disk, &path, source))?;
        Ok(path)
    }

    /// Returns a number that no folder of this start has had.
    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Stores the token of a job for the next start, readable only by the tracker, on the first
    /// disk that works. Returns its path. Only one writer at a time.
    pub(crate) fn keep_token(&self, job: JobId, token: &[u8]) -> io::Result<PathBuf> {
        let mut last = Err(io::ErrorKind::NotFound.into());
        for folder in self.job_folders(job) {
            let path = folder.join(TOKEN);
            last = make_tracker_folder(&folder)
                .and_then(|()| replace(&path, token, PRIVATE, false))
                .map(|()| path);
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// Returns the path of the stored token of a job.
    pub(crate) fn token(&self, job: JobId) -> Option<PathBuf> {
        self.job_folders(job).map(|folder| folder.join(TOKEN)).find(|path| path.exists())
    }

    /// Whether a new attempt may use this folder.
    pub(crate) fn usable(&self, disk: usize) -> bool {
        let Disk { gauge, avoided_since, .. } = &self.all[disk];
        let avoided_since = avoided_since.lock().is_some_and(|until| Instant::now() < until);
        !avoided_since && gauge.answers() && self.has_space(disk)
    }

    /// Whether there was enough space at the last measurement.
    fn has_space(&self, disk: usize) -> bool {
        self.all[disk].gauge.figure().is_some_and(|free_space| free_space > self.reserve)
    }

    /// Returns the folder with the most space per attempt; equal ones alternate. Uses the last
    /// measurements and does not access disks.
    pub(crate) fn choose(&self) -> Result<usize, DiskError> {
        self.choose_except(&[])
    }

    /// Like [`Self::choose`], excluding these folders.
    pub(crate) fn choose_except(&self, not: &[usize]) -> Result<usize, DiskError> {
        let count = self.all.len();
        let next_disk = self.next_disk.fetch_add(1, Ordering::Relaxed) as usize;
        let share = |disk: usize| {
            let Disk { gauge, load, .. } = &self.all[disk];
            // Rounded, so that disks with slightly different free space count as equal.
            (gauge.figure().unwrap_or(0) / (load.load(Ordering::Relaxed) + 1)) >> 26
        };
        let order = (0..count).map(|step| (next_disk + step) % count).filter(|disk| !not.contains(disk));
        let order = order.filter(|disk| self.usable(*disk));
        let best = order.rev().max_by_key(|disk| share(*disk));
        // A folder that failed recently is better than none.
        let left = |disk: &usize| !not.contains(disk) && self.has_space(*disk);
        best.or_else(|| (0..count).find(left)).ok_or_else(|| {
            let names: Vec<String> = self.roots().map(|root| root.display().to_string()).collect();
            DiskError::NoSpace(names.join(", "))
        })
    }

    /// Uses the folder for no new attempts for a while.
    pub(crate) fn avoid(&self, disk: usize) {
        *self.all[disk].avoided_since.lock() = Some(Instant::now() + AVOID_FOR);
    }

    /// Returns a disk of the attempt that has no space at all, if any.
    pub(crate) fn full(&self, work: &AttemptFolders) -> Option<usize> {
        let bound = FULL_BELOW.min(self.reserve.max(1));
        let used = |disk: &usize| work.scratch.iter().any(|path| path.starts_with(&self.all[*disk].root));
        let full = |disk: &usize| {
            (self.free_space)(&self.all[*disk].root).is_ok_and(|free_space| free_space < bound)
        };
        (0..self.all.len()).find(|disk| used(disk) && full(disk))
    }

    /// Returns the folder whose path is part of the text; the longest if there are several.
    pub(crate) fn folder_named_in(&self, text: &str) -> Option<usize> {
        let path = |disk: &usize| self.all[*disk].root.to_string_lossy();
        let named = (0..self.all.len()).filter(|disk| text.contains(&*path(disk)));
        named.max_by_key(|disk| path(disk).len())
    }

    /// Returns the path of the folder.
    pub(crate) fn root(&self, disk: usize) -> &Path {
        &self.all[disk].root
    }

    /// Creates folders for a process without an attempt, on the best disk.
    pub(crate) fn make_process_folders(&self) -> Result<ProcessFolders, DiskError> {
        let disk = self.choose()?;
        let folder = self.make_folder(disk)?;
        let process_logs =
            self.make_process_logs(disk).map_err(|source| self.failed(disk, &folder, source))?;
        Ok(ProcessFolders { disk, folder, process_logs })
    }

    /// Like [`Self::make_process_folders`], for a process that has its log files already.
    pub(crate) fn make_process_folders_with(
        &self,
        process_logs: ProcessLogs,
    ) -> Result<ProcessFolders, DiskError> {
        let disk = self.choose()?;
        Ok(ProcessFolders { disk, folder: self.make_folder(disk)?, process_logs })
    }

    fn make_folder(&self, disk: usize) -> Result<PathBuf, DiskError> {
        let path = self.all[disk].root.join("warm").join(self.number().to_string());
        let made = fs::create_dir(&path).and_then(|()| hand_over(&path, self.account));
        made.map_err(|source| self.failed(disk, &path, source))?;
        Ok(path)
    }

    /// Creates the folders of an attempt: the main one from that of its process, and one on each
    /// other disk for spills.
    pub(crate) fn make_attempt_folders(
        &self,
        attempt: AttemptId,
        place: &ProcessFolders,
    ) -> Result<AttemptFolders, DiskError> {
        let disk = place.disk;
        let own = self.job_folder(disk, attempt.job()).join("work").join(attempt.to_string());
        let moved = self.make_part(disk, attempt.job(), "work").and_then(|_| fs::rename(&place.folder, &own));
        let logs = moved.and_then(|()| self.begin_logs(attempt, &place.process_logs));
        let logs = logs.map_err(|source| self.failed(disk, &own, source))?;
        let mut work = AttemptFolders {
            attempt,
            disk,
            own: own.clone(),
            logs,
            scratch: vec![own],
            outputs: Vec::new(),
            checkpoint_dirs: Vec::new(),
        };
        self.all[disk].load.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.make_result_folders(disk, &mut work) {
            self.abandon(&work);
            return Err(error);
        }
        for other in (0..self.all.len()).filter(|other| *other != disk && self.usable(*other)) {
            // A disk on which this fails is not used.
            if let Ok(path) = self.make_attempt_part(other, attempt, "work") {
                work.scratch.push(path);
                self.make_result_folders(other, &mut work).ok();
            }
        }
        Ok(work)
    }

    /// Creates the folder for the map output, or for the checkpoint of a reduce.
    fn make_result_folders(&self, disk: usize, work: &mut AttemptFolders) -> Result<(), DiskError> {
        match work.attempt.phase() {
            Phase::Map => {
                work.outputs.push(self.make_attempt_part(disk, work.attempt, "output")?.join(OUTPUT));
            }
            Phase::Reduce => {
                work.checkpoint_dirs.push(self.make_attempt_part(disk, work.attempt, "checkpoints")?);
            }
        }
        Ok(())
    }

    /// Returns the folder of the checkpoint of an attempt on a disk.
    fn checkpoint_dir(&self, disk: usize, attempt: AttemptId) -> PathBuf {
        self.job_folder(disk, attempt.job()).join("checkpoints").join(attempt.to_string())
    }

    /// Deletes the checkpoint of an attempt, complete or not.
    pub(crate) fn delete_checkpoint(&self, attempt: AttemptId) {
        for path in self.rename_for_deletion(attempt) {
            warn(&path, "remove", remove_tree(&path));
        }
    }

    /// Renames the checkpoint of an attempt, so that a new one may be created while it is deleted.
    /// Returns the folders to delete.
    pub(crate) fn rename_for_deletion(&self, attempt: AttemptId) -> Vec<PathBuf> {
        let unname = |disk| {
            let path = self.checkpoint_dir(disk, attempt);
            let number = DELETIONS.fetch_add(1, Ordering::Relaxed);
            let dropped = path.with_file_name(format!("{attempt}{DROPPED}{number}"));
            match fs::rename(&path, &dropped) {
                Ok(()) => Some(dropped),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(_) => Some(path),
            }
        };
        (0..self.all.len()).filter_map(unname).collect()
    }

    fn failed(&self, disk: usize, path: &Path, source: io::Error) -> DiskError {
        self.avoid(disk);
        if is_full(&source) {
            DiskError::NoSpace(self.all[disk].root.display().to_string())
        } else {
            DiskError::Io { path: path.into(), source }
        }
    }

    /// Removes the folders and outputs of an attempt, except its logs up to `log_max` bytes each
    /// (0: all) and the output `good`.
    pub(crate) fn remove_attempt_folders(&self, work: &AttemptFolders, good: Option<&Path>, log_max: u64) {
        work.cut_logs(log_max);
        for path in &work.scratch {
            warn(path, "remove", remove_tree(path));
        }
        for output in work.outputs.iter().filter(|output| good != Some(output)) {
            let path = output.parent().unwrap_or(output);
            warn(path, "remove", remove_tree(path));
        }
        self.all[work.disk].load.fetch_sub(1, Ordering::Relaxed);
    }

    /// Removes the folders and logs of an attempt that has never started.
    pub(crate) fn abandon(&self, work: &AttemptFolders) {
        self.remove_attempt_folders(work, None, 0);
        self.remove_log(work.attempt);
    }

    /// Deletes all files of a job except its logs; returns false if some are left.
    pub(crate) fn clean(&self, job: JobId) -> bool {
        let mut whole = true;
        for path in self.job_folders(job) {
            let mut removed = remove_tree(&path);
            for _ in 1..CLEAN_ATTEMPTS_MAX {
                if removed.is_ok() {
                    break;
                }
                std::thread::sleep(CLEAN_PAUSE);
                removed = remove_tree(&path);
            }
            whole &= removed.is_ok();
            warn(&path, "remove", removed);
        }
        whole
    }
}

/// The folders of a process without an attempt.
#[derive(Debug)]
pub(crate) struct ProcessFolders {
    /// Disk of its working folder.
    pub(crate) disk: usize,
    /// Its working folder.
    pub(crate) folder: PathBuf,
    /// Its stdout and stderr files.
    pub(crate) process_logs: ProcessLogs,
}

impl ProcessFolders {
    /// Removes the folders. They are empty, because there was no attempt.
    pub(crate) fn discard(self) {
        warn(&self.folder, "remove", remove_tree(&self.folder));
    }
}

/// The folders of a running attempt.
#[derive(Debug)]
pub(crate) struct AttemptFolders {
    attempt: AttemptId,
    /// Disk of its working folder.
    pub(crate) disk: usize,
    /// Its working folder.
    pub(crate) own: PathBuf,
    /// Folder of its logs, which belongs to the tracker.
    pub(crate) logs: PathBuf,
    /// Folders for spills; the working folder is the first.
    pub(crate) scratch: Vec<PathBuf>,
    /// Paths where a map may put its output, best first, each in a separate folder.
    pub(crate) outputs: Vec<PathBuf>,
    /// Folders where a reduce may save its checkpoint, one per disk.
    pub(crate) checkpoint_dirs: Vec<PathBuf>,
}

/// Creates a folder that belongs to the tracker, unless it exists.
fn make_tracker_folder(path: &Path) -> io::Result<()> {
    fs::create_dir(path)
        .or_else(|error| if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })
}

pub(crate) fn warn(path: &Path, what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!(path = %path.display(), %error, "cannot {what} it");
    }
}
