//! The folders of the tracker, ideally one per disk, and their contents:
//!
//! ```text
//! LOCK
//! incarnation                    number of the last start of the tracker, in each folder
//! VOLUMES                        all folders of the tracker (daemon::data_dirs)
//! warm/N/                        working folder of an idle process; renamed for its attempt
//! process-logs/N/{stdout,stderr} output of an idle process; renamed to `logs/ATTEMPT`
//! jobs/JOB/work/ATTEMPT/         working folder, spills
//! jobs/JOB/output/ATTEMPT/out    map output, and its .index
//! jobs/JOB/checkpoints/ATTEMPT/  checkpoint of a paused reduce, perhaps on several disks
//! jobs/JOB/program, jobs/JOB/files/  fetched once per job, in one of the folders
//! jobs/JOB/token                 shuffle token of the job, in one of the folders
//! logs/ATTEMPT/{stdout,stderr}   output of an attempt; and `owner`, if owners are enforced
//! ```
//!
//! Invariants: names are made from typed IDs. Files that the tracker did not make are not touched.
//! Tasks may write to `warm/N` and to the folders of attempts in `work`, `output` and
//! `checkpoints`; the tracker reads files there only with `safe_open`. All parent folders and other
//! files belong to the tracker, so that no task can create links there. A folder that is full or
//! has failed gets no new attempts for a while. A folder that cannot be used at the start is
//! skipped if another folder can be used. Files of tasks cannot prevent the start of the tracker.
//!
//! Only the incarnation, checkpoints and copies are synced. If other map outputs are lost in a
//! power failure, their maps run again.

mod copy_targets;
mod free_space;
mod open;
mod process_logs;
mod sweep;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) use process_logs::{ProcessLogs, create_log_files};
pub(crate) use sweep::FoundFiles;

use crate::{
    account::{Account, hand_over},
    error::{TrackerError, folder_error},
};
use daemon::{
    files::{PRIVATE, replace},
    lock::FolderLock,
};
pub(crate) use daemon::{lock::is_full, tree::remove as remove_tree};
use free_space::{FreeSpaceFn, FreeSpaceGauge};
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

/// A folder that was full or has failed gets no new attempt for this long, unless there is no
/// other.
const AVOID_FOR: Duration = Duration::from_mins(1);
/// Mode of a folder that other accounts may traverse but not list.
const TRAVERSABLE: u32 = 0o711;
/// Name of the map output in the folder of its attempt.
const OUTPUT_FILE: &str = "out";
/// Name of the token file in the folder of a job.
const TOKEN_FILE: &str = "token";
/// Name of the token file while it is being written.
const TOKEN_TEMPORARY_FILE: &str = "token.new";
/// If fewer bytes are free when a process ends without a message, the error says that the disk is
/// full.
const FULL_BELOW_BYTES: u64 = 1 << 20;

/// A checkpoint that is being deleted is named with its attempt, this text and a number.
const DROPPED_INFIX: &str = ".dropped-";
/// Number of deletions so far, which makes the names of deleted checkpoints unique.
static DELETIONS: AtomicU64 = AtomicU64::new(0);

/// How often the deletion of the folder of a job is tried. An escaped process may still write to
/// it.
const DELETE_TRIES_MAX: u32 = 10;
/// Delay between two tries to delete the folder of a job.
const DELETE_RETRY_DELAY: Duration = Duration::from_millis(100);

/// All folders of the tracker.
#[derive(Debug)]
pub(crate) struct Disks {
    disks: Vec<Disk>,
    /// A folder with fewer free bytes gets no new attempts.
    reserve_bytes: u64,
    free_space: FreeSpaceFn,
    /// Index of the disk that is preferred next if several are equally good.
    next_disk: AtomicU64,
    /// Number of the next folder of an idle process.
    next_number: AtomicU64,
    /// The account of tasks; `None` if it is the account of the tracker.
    account: Option<Account>,
}

/// A folder of the tracker.
#[derive(Debug)]
struct Disk {
    root: PathBuf,
    gauge: Arc<FreeSpaceGauge>,
    /// Number of attempts whose working folder is here.
    attempts: AtomicU64,
    /// The folder gets no new attempts before this time.
    avoided_until: Mutex<Option<Instant>>,
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
    /// Sets the account of tasks. Returns an error if this account cannot reach the folders.
    pub(crate) fn with_account(self, account: Option<Account>) -> Result<Self, TrackerError> {
        if let Some(account) = account {
            for disk in &self.disks {
                for path in [disk.root.clone(), disk.root.join("warm"), disk.root.join("jobs")] {
                    fs::set_permissions(&path, Permissions::from_mode(TRAVERSABLE))
                        .map_err(folder_error("open", &path))?;
                }
                account.check_reachable(&disk.root)?;
            }
        }
        Ok(Self { account, ..self })
    }

    /// Returns the account of tasks; `None` if it is the account of the tracker.
    pub(crate) fn account(&self) -> Option<Account> {
        self.account
    }

    /// Returns the number of folders.
    pub(crate) fn count(&self) -> usize {
        self.disks.len()
    }

    /// Returns the paths of a subfolder of a job, one for each disk.
    pub(crate) fn job_subfolders(&self, job: JobId, part: &'static str) -> impl Iterator<Item = PathBuf> {
        (0..self.disks.len()).map(move |disk| self.job_folder(disk, job).join(part))
    }

    /// Returns the folders in the order of the configuration.
    pub(crate) fn roots(&self) -> impl Iterator<Item = &Path> {
        self.disks.iter().map(|disk| disk.root.as_path())
    }

    /// Returns the folder of a job on a disk.
    pub(crate) fn job_folder(&self, disk: usize, job: JobId) -> PathBuf {
        self.disks[disk].root.join("jobs").join(job.to_string())
    }

    fn job_folders(&self, job: JobId) -> impl Iterator<Item = PathBuf> {
        (0..self.disks.len()).map(move |disk| self.job_folder(disk, job))
    }

    /// Creates a subfolder of a job on a disk. It belongs to the tracker.
    pub(crate) fn make_job_subfolder(&self, disk: usize, job: JobId, part: &str) -> io::Result<PathBuf> {
        let folder = self.job_folder(disk, job);
        let path = folder.join(part);
        make_tracker_folder(&folder).and_then(|()| make_tracker_folder(&path)).map(|()| path)
    }

    /// Creates the folder of an attempt in a subfolder of its job. It belongs to the account of
    /// tasks.
    fn make_attempt_subfolder(
        &self,
        disk: usize,
        attempt: AttemptId,
        part: &str,
    ) -> Result<PathBuf, DiskError> {
        let path = self.job_folder(disk, attempt.job()).join(part).join(attempt.to_string());
        let made = self.make_job_subfolder(disk, attempt.job(), part).and_then(|_| remove_tree(&path));
        made.and_then(|()| fs::create_dir(&path))
            .and_then(|()| hand_over(&path, self.account))
            .map_err(|source| self.failed(disk, &path, source))?;
        Ok(path)
    }

    /// Returns a number that no folder of an idle process has had since the start.
    fn unused_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Stores the token of a job for the next start, readable only by the tracker, on the first
    /// disk that works. Returns the path of the file. The caller ensures that there is only one
    /// writer at a time.
    pub(crate) fn store_token(&self, job: JobId, token: &[u8]) -> io::Result<PathBuf> {
        let mut last = Err(io::ErrorKind::NotFound.into());
        for folder in self.job_folders(job) {
            let path = folder.join(TOKEN_FILE);
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
        self.job_folders(job).map(|folder| folder.join(TOKEN_FILE)).find(|path| path.exists())
    }

    /// Returns whether a new attempt may use this folder.
    pub(crate) fn is_usable(&self, disk: usize) -> bool {
        let Disk { gauge, avoided_until, .. } = &self.disks[disk];
        let is_avoided = avoided_until.lock().is_some_and(|until| Instant::now() < until);
        !is_avoided && gauge.is_responsive() && self.has_space(disk)
    }

    /// Returns whether there was enough space at the last measurement.
    fn has_space(&self, disk: usize) -> bool {
        self.disks[disk].gauge.free_bytes().is_some_and(|free_space| free_space > self.reserve_bytes)
    }

    /// Returns the folder with the most space per attempt. Folders with about the same space are
    /// used in turn. Uses the last measurements and does not access disks.
    pub(crate) fn choose(&self) -> Result<usize, DiskError> {
        self.choose_except(&[])
    }

    /// Same as [`Self::choose`], without the folders in `excluded`.
    pub(crate) fn choose_except(&self, excluded: &[usize]) -> Result<usize, DiskError> {
        let count = self.disks.len();
        let next_disk = self.next_disk.fetch_add(1, Ordering::Relaxed) as usize;
        let share = |disk: usize| {
            let Disk { gauge, attempts, .. } = &self.disks[disk];
            // The value is rounded, so that disks with slightly different free space count as
            // equal.
            (gauge.free_bytes().unwrap_or(0) / (attempts.load(Ordering::Relaxed) + 1)) >> 26
        };
        let order = (0..count).map(|step| (next_disk + step) % count).filter(|disk| !excluded.contains(disk));
        let order = order.filter(|disk| self.is_usable(*disk));
        let best = order.rev().max_by_key(|disk| share(*disk));
        // As a last resort, use a folder that was recently full, failing or unresponsive.
        let has_space = |disk: &usize| !excluded.contains(disk) && self.has_space(*disk);
        best.or_else(|| (0..count).find(has_space)).ok_or_else(|| {
            let names: Vec<String> = self.roots().map(|root| root.display().to_string()).collect();
            DiskError::NoSpace(names.join(", "))
        })
    }

    /// Does not choose the folder for new attempts for a while.
    pub(crate) fn avoid(&self, disk: usize) {
        *self.disks[disk].avoided_until.lock() = Some(Instant::now() + AVOID_FOR);
    }

    /// Returns a disk of the attempt that has almost no free space, if any.
    pub(crate) fn full_disk_of(&self, work: &AttemptFolders) -> Option<usize> {
        let bound = FULL_BELOW_BYTES.min(self.reserve_bytes.max(1));
        let used = |disk: &usize| work.scratch.iter().any(|path| path.starts_with(&self.disks[*disk].root));
        let full = |disk: &usize| {
            (self.free_space)(&self.disks[*disk].root).is_ok_and(|free_space| free_space < bound)
        };
        (0..self.disks.len()).find(|disk| used(disk) && full(disk))
    }

    /// Returns the folder whose path is part of the text. If there are several, returns the one
    /// with the longest path.
    pub(crate) fn folder_named_in(&self, text: &str) -> Option<usize> {
        let path = |disk: &usize| self.disks[*disk].root.to_string_lossy();
        let named = (0..self.disks.len()).filter(|disk| text.contains(&*path(disk)));
        named.max_by_key(|disk| path(disk).len())
    }

    /// Returns the path of a folder of the tracker.
    pub(crate) fn root(&self, disk: usize) -> &Path {
        &self.disks[disk].root
    }

    /// Creates the folders of a process that has no attempt yet, on the best disk.
    pub(crate) fn make_process_folders(&self) -> Result<ProcessFolders, DiskError> {
        let disk = self.choose()?;
        let folder = self.make_working_folder(disk)?;
        let process_logs =
            self.make_process_logs(disk).map_err(|source| self.failed(disk, &folder, source))?;
        Ok(ProcessFolders { disk, folder, process_logs })
    }

    /// Same as [`Self::make_process_folders`], for a process that already has log files.
    pub(crate) fn make_process_folders_with(
        &self,
        process_logs: ProcessLogs,
    ) -> Result<ProcessFolders, DiskError> {
        let disk = self.choose()?;
        Ok(ProcessFolders { disk, folder: self.make_working_folder(disk)?, process_logs })
    }

    fn make_working_folder(&self, disk: usize) -> Result<PathBuf, DiskError> {
        let path = self.disks[disk].root.join("warm").join(self.unused_number().to_string());
        let made = fs::create_dir(&path).and_then(|()| hand_over(&path, self.account));
        made.map_err(|source| self.failed(disk, &path, source))?;
        Ok(path)
    }

    /// Creates the folders of an attempt: renames the folder of its process to its working folder,
    /// and creates a folder for spills on each other disk.
    pub(crate) fn make_attempt_folders(
        &self,
        attempt: AttemptId,
        process_folders: &ProcessFolders,
    ) -> Result<AttemptFolders, DiskError> {
        let disk = process_folders.disk;
        let working = self.job_folder(disk, attempt.job()).join("work").join(attempt.to_string());
        let renamed = self
            .make_job_subfolder(disk, attempt.job(), "work")
            .and_then(|_| fs::rename(&process_folders.folder, &working));
        let logs = renamed.and_then(|()| self.begin_logs(attempt, &process_folders.process_logs));
        let logs = logs.map_err(|source| self.failed(disk, &working, source))?;
        let mut work = AttemptFolders {
            attempt,
            disk,
            working: working.clone(),
            logs,
            scratch: vec![working],
            outputs: Vec::new(),
            checkpoint_dirs: Vec::new(),
        };
        self.disks[disk].attempts.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.make_result_folders(disk, &mut work) {
            self.remove_unstarted(&work);
            return Err(error);
        }
        for other in (0..self.disks.len()).filter(|other| *other != disk && self.is_usable(*other)) {
            // If the folder cannot be created on a disk, the attempt does not use that disk.
            if let Ok(path) = self.make_attempt_subfolder(other, attempt, "work") {
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
                work.outputs
                    .push(self.make_attempt_subfolder(disk, work.attempt, "output")?.join(OUTPUT_FILE));
            }
            Phase::Reduce => {
                work.checkpoint_dirs.push(self.make_attempt_subfolder(disk, work.attempt, "checkpoints")?);
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
            log_failure(&path, "remove", remove_tree(&path));
        }
    }

    /// Renames the checkpoint of an attempt, so that a new checkpoint of the attempt may be created
    /// while the old one is deleted. Returns the folders to delete.
    pub(crate) fn rename_for_deletion(&self, attempt: AttemptId) -> Vec<PathBuf> {
        let rename = |disk| {
            let path = self.checkpoint_dir(disk, attempt);
            let number = DELETIONS.fetch_add(1, Ordering::Relaxed);
            let dropped = path.with_file_name(format!("{attempt}{DROPPED_INFIX}{number}"));
            match fs::rename(&path, &dropped) {
                Ok(()) => Some(dropped),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(_) => Some(path),
            }
        };
        (0..self.disks.len()).filter_map(rename).collect()
    }

    /// Avoids the disk for a while. Returns the error to report.
    fn failed(&self, disk: usize, path: &Path, source: io::Error) -> DiskError {
        self.avoid(disk);
        if is_full(&source) {
            DiskError::NoSpace(self.disks[disk].root.display().to_string())
        } else {
            DiskError::Io { path: path.into(), source }
        }
    }

    /// Removes the folders and outputs of an attempt that has ended, except the output
    /// `kept_output`. Truncates each of its logs to `log_max` bytes; 0 for no limit.
    pub(crate) fn remove_attempt_folders(
        &self,
        work: &AttemptFolders,
        kept_output: Option<&Path>,
        log_max: u64,
    ) {
        work.truncate_logs(log_max);
        for path in &work.scratch {
            log_failure(path, "remove", remove_tree(path));
        }
        for output in work.outputs.iter().filter(|output| kept_output != Some(output)) {
            let path = output.parent().unwrap_or(output);
            log_failure(path, "remove", remove_tree(path));
        }
        self.disks[work.disk].attempts.fetch_sub(1, Ordering::Relaxed);
    }

    /// Removes the folders and logs of an attempt whose process was never started.
    pub(crate) fn remove_unstarted(&self, work: &AttemptFolders) {
        self.remove_attempt_folders(work, None, 0);
        self.remove_logs(work.attempt);
    }

    /// Deletes all files of a job except its logs. Returns false if some files could not be
    /// deleted.
    pub(crate) fn delete_job_files(&self, job: JobId) -> bool {
        let mut complete = true;
        for path in self.job_folders(job) {
            let mut removed = remove_tree(&path);
            for _ in 1..DELETE_TRIES_MAX {
                if removed.is_ok() {
                    break;
                }
                std::thread::sleep(DELETE_RETRY_DELAY);
                removed = remove_tree(&path);
            }
            complete &= removed.is_ok();
            log_failure(&path, "remove", removed);
        }
        complete
    }
}

/// The folders of a process that has no attempt yet.
#[derive(Debug)]
pub(crate) struct ProcessFolders {
    /// Disk of the working folder.
    pub(crate) disk: usize,
    /// Working folder of the process.
    pub(crate) folder: PathBuf,
    /// Files with the stdout and stderr of the process.
    pub(crate) process_logs: ProcessLogs,
}

impl ProcessFolders {
    /// Removes the folders.
    pub(crate) fn discard(self) {
        log_failure(&self.folder, "remove", remove_tree(&self.folder));
    }
}

/// The folders of a running attempt.
#[derive(Debug)]
pub(crate) struct AttemptFolders {
    attempt: AttemptId,
    /// Disk of the working folder.
    pub(crate) disk: usize,
    /// Working folder of the attempt.
    pub(crate) working: PathBuf,
    /// Folder with the logs of the attempt. It belongs to the tracker.
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

/// Logs a warning if an operation on a file or folder failed. `what` is a verb such as "remove".
pub(crate) fn log_failure(path: &Path, what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!(path = %path.display(), %error, "cannot {what} this file or folder");
    }
}
