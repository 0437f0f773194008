//! The tracker's folders, best one a disk, and what lies where in them:
//!
//! ```text
//! LOCK
//! incarnation                    of the tracker's last start, in each folder
//! VOLUMES                        all folders of the tracker (daemon::data_dirs)
//! warm/N/                        of an idle process: becomes its attempt's folder, by a rename
//! printed/N/{stdout,stderr}      of an idle process: becomes `logs/ATTEMPT`, by a rename
//! jobs/JOB/work/ATTEMPT/         current folder, spills
//! jobs/JOB/output/ATTEMPT/out    map output, and its .index
//! jobs/JOB/checkpoints/ATTEMPT/        the checkpoint of a paused reduce (mrlib's `checkpoint`), perhaps on several disks
//! jobs/JOB/program, jobs/JOB/files/    fetched once a job, in one of the folders
//! jobs/JOB/token                 the job's shuffle token, in one of the folders
//! logs/ATTEMPT/{stdout,stderr}, and owner where owners bind
//! ```
//!
//! What holds: names come from typed ids; what we did not make is not touched; `warm/N` and the folders of attempts in
//! `work`, `output` and `checkpoints` are the task's to write in, and only by careful opening do we read there; all folders
//! above them, and what else lies here, are the tracker's, so no task can put a link in our way; a full or failing folder is left
//! alone for a while, and one that cannot be used when the tracker starts is left out, if there is another; nothing that a
//! task left keeps the tracker from starting. Deliberately absent: fsync, but for the incarnation and what tasks checkpointed. What else a power cut takes is made again by running the map again.

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
    confine::{Account, hand_over},
    error::{TrackerError, folder},
    ids::{Attempt, Job, Phase},
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

/// A folder that was full or failed gets no new attempt for this long, if there is another.
const AVOID_FOR: Duration = Duration::from_mins(1);
/// Of a folder that another account walks through and cannot list.
const TRAVERSABLE: u32 = 0o711;
/// Map output in its attempt's folder.
const OUTPUT: &str = "out";
/// A job's token, in its folder.
const TOKEN: &str = "token";
/// The same while it is being written.
const TOKEN_TEMPORARY: &str = "token.new";
/// With less than this, the disk of a process that ended silently was full.
const FULL_BELOW: u64 = 1 << 20;

/// What follows an attempt's name where its checkpoint is being deleted, with a number behind it.
const DROPPED: &str = ".dropped-";
static DELETIONS: AtomicU64 = AtomicU64::new(0);

/// How often a job's folder is tried to be removed: an escaped process may still write there.
const CLEAN_ATTEMPTS_MAX: u32 = 10;
const CLEAN_PAUSE: Duration = Duration::from_millis(100);

/// All folders.
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
    /// Attempts that have their folder here.
    load: AtomicU64,
    avoided_since: Mutex<Option<Instant>>,
    _lock: FolderLock,
}

/// Why there is no folder for an attempt.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    /// Nowhere is room.
    #[error("no space on {0}")]
    NoSpace(String),
    /// A folder failed.
    #[error("cannot use {path}: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Disks {
    /// The same for tasks that run as this account, which must be able to come to its folders.
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

    /// The account of tasks, if it is not the tracker's.
    pub(crate) fn account(&self) -> Option<Account> {
        self.account
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// A part of a job's folder, on each disk.
    pub(crate) fn job_parts(&self, job: Job, part: &'static str) -> impl Iterator<Item = PathBuf> {
        (0..self.all.len()).map(move |disk| self.job_folder(disk, job).join(part))
    }

    /// The folders, in the order of the configuration.
    pub(crate) fn roots(&self) -> impl Iterator<Item = &Path> {
        self.all.iter().map(|disk| disk.root.as_path())
    }

    /// What is fetched once a job goes here, if it goes to this disk.
    pub(crate) fn job_folder(&self, disk: usize, job: Job) -> PathBuf {
        self.all[disk].root.join("jobs").join(job.to_string())
    }

    fn job_folders(&self, job: Job) -> impl Iterator<Item = PathBuf> {
        (0..self.all.len()).map(move |disk| self.job_folder(disk, job))
    }

    /// Makes a part of a job's folder, which stays the tracker's own.
    pub(crate) fn make_part(&self, disk: usize, job: Job, part: &str) -> io::Result<PathBuf> {
        let folder = self.job_folder(disk, job);
        let path = folder.join(part);
        make_tracker_folder(&folder).and_then(|()| make_tracker_folder(&path)).map(|()| path)
    }

    /// Makes an attempt's own folder in a part of its job's, and hands it over.
    fn make_attempt_part(&self, disk: usize, attempt: Attempt, part: &str) -> Result<PathBuf, DiskError> {
        let path = self.job_folder(disk, attempt.job).join(part).join(attempt.to_string());
        let made = self.make_part(disk, attempt.job, part).and_then(|_| remove_tree(&path));
        made.and_then(|()| fs::create_dir(&path))
            .and_then(|()| hand_over(&path, self.account))
            .map_err(|source| self.failed(disk, &path, source))?;
        Ok(path)
    }

    /// A number that no folder of this start has had.
    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps a job's token for the next start, readable by us alone, on the first disk that will; where. One writer at a time.
    pub(crate) fn keep_token(&self, job: Job, token: &[u8]) -> io::Result<PathBuf> {
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

    /// Where a job's token is kept.
    pub(crate) fn token(&self, job: Job) -> Option<PathBuf> {
        self.job_folders(job).map(|folder| folder.join(TOKEN)).find(|path| path.exists())
    }

    /// Whether a new attempt may go to this folder.
    pub(crate) fn usable(&self, disk: usize) -> bool {
        let Disk { gauge, avoided_since, .. } = &self.all[disk];
        let avoided_since = avoided_since.lock().is_some_and(|until| Instant::now() < until);
        !avoided_since && gauge.answers() && self.has_space(disk)
    }

    /// Whether there was room when last it was asked.
    fn has_space(&self, disk: usize) -> bool {
        self.all[disk].gauge.figure().is_some_and(|free_space| free_space > self.reserve)
    }

    /// The folder with the most room for each attempt in it; equals take turns. By the last figures: no disk is asked.
    pub(crate) fn choose(&self) -> Result<usize, DiskError> {
        self.choose_except(&[])
    }

    /// The same, but none of these.
    pub(crate) fn choose_except(&self, not: &[usize]) -> Result<usize, DiskError> {
        let count = self.all.len();
        let next_disk = self.next_disk.fetch_add(1, Ordering::Relaxed) as usize;
        let share = |disk: usize| {
            let Disk { gauge, load, .. } = &self.all[disk];
            // Equal disks must count as equal although their room changes a little all the time.
            (gauge.figure().unwrap_or(0) / (load.load(Ordering::Relaxed) + 1)) >> 26
        };
        let order = (0..count).map(|step| (next_disk + step) % count).filter(|disk| !not.contains(disk));
        let order = order.filter(|disk| self.usable(*disk));
        let best = order.rev().max_by_key(|disk| share(*disk));
        // Rather a folder that failed lately than none.
        let left = |disk: &usize| !not.contains(disk) && self.has_space(*disk);
        best.or_else(|| (0..count).find(left)).ok_or_else(|| {
            let names: Vec<String> = self.roots().map(|root| root.display().to_string()).collect();
            DiskError::NoSpace(names.join(", "))
        })
    }

    /// No new attempts here for a while.
    pub(crate) fn avoid(&self, disk: usize) {
        *self.all[disk].avoided_since.lock() = Some(Instant::now() + AVOID_FOR);
    }

    /// If one of an attempt's disks has no room at all now: which.
    pub(crate) fn full(&self, work: &AttemptFolders) -> Option<usize> {
        let bound = FULL_BELOW.min(self.reserve.max(1));
        let used = |disk: &usize| work.scratch.iter().any(|path| path.starts_with(&self.all[*disk].root));
        let full = |disk: &usize| {
            (self.free_space)(&self.all[*disk].root).is_ok_and(|free_space| free_space < bound)
        };
        (0..self.all.len()).find(|disk| used(disk) && full(disk))
    }

    /// The folder of ours that these words tell of, the longest path if there are several.
    pub(crate) fn folder_named_in(&self, text: &str) -> Option<usize> {
        let path = |disk: &usize| self.all[*disk].root.to_string_lossy();
        let named = (0..self.all.len()).filter(|disk| text.contains(&*path(disk)));
        named.max_by_key(|disk| path(disk).len())
    }

    /// The folder's path.
    pub(crate) fn root(&self, disk: usize) -> &Path {
        &self.all[disk].root
    }

    /// New folders for a process without an attempt, on the best disk.
    pub(crate) fn make_process_folders(&self) -> Result<ProcessFolders, DiskError> {
        let disk = self.choose()?;
        let folder = self.make_folder(disk)?;
        let process_logs =
            self.make_process_logs(disk).map_err(|source| self.failed(disk, &folder, source))?;
        Ok(ProcessFolders { disk, folder, process_logs })
    }

    /// The same for a process that has its files already.
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

    /// The folders of an attempt: its own, made of its process's, and one on each other disk for spills.
    pub(crate) fn make_attempt_folders(
        &self,
        attempt: Attempt,
        place: &ProcessFolders,
    ) -> Result<AttemptFolders, DiskError> {
        let disk = place.disk;
        let own = self.job_folder(disk, attempt.job).join("work").join(attempt.to_string());
        let moved = self.make_part(disk, attempt.job, "work").and_then(|_| fs::rename(&place.folder, &own));
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
            // A disk that will not is done without.
            if let Ok(path) = self.make_attempt_part(other, attempt, "work") {
                work.scratch.push(path);
                self.make_result_folders(other, &mut work).ok();
            }
        }
        Ok(work)
    }

    /// Where a map puts its output, or a reduce its state.
    fn make_result_folders(&self, disk: usize, work: &mut AttemptFolders) -> Result<(), DiskError> {
        match work.attempt.phase {
            Phase::Map => {
                work.outputs.push(self.make_attempt_part(disk, work.attempt, "output")?.join(OUTPUT))
            }
            Phase::Reduce => {
                work.checkpoint_dirs.push(self.make_attempt_part(disk, work.attempt, "checkpoints")?)
            }
        }
        Ok(())
    }

    /// Where an attempt saves its checkpoint on a disk.
    fn checkpoint_dir(&self, disk: usize, attempt: Attempt) -> PathBuf {
        self.job_folder(disk, attempt.job).join("checkpoints").join(attempt.to_string())
    }

    /// Deletes the checkpoint of an attempt, whole or not.
    pub(crate) fn delete_checkpoint(&self, attempt: Attempt) {
        for path in self.rename_for_deletion(attempt) {
            warn(&path, "remove", remove_tree(&path));
        }
    }

    /// Takes the name from the checkpoint of an attempt, so that another may come to lie there while this is deleted; the
    /// folders to delete.
    pub(crate) fn rename_for_deletion(&self, attempt: Attempt) -> Vec<PathBuf> {
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

    /// Removes an attempt's folders and outputs, keeping its logs up to `log_max` bytes each (0: all), and the output
    /// that is good.
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

    /// Removes an attempt's folders and its logs: it has never begun.
    pub(crate) fn abandon(&self, work: &AttemptFolders) {
        self.remove_attempt_folders(work, None, 0);
        self.remove_log(work.attempt);
    }

    /// Deletes everything of a job but its logs; false if something is left.
    pub(crate) fn clean(&self, job: Job) -> bool {
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
    /// Which disk its current folder is on.
    pub(crate) disk: usize,
    /// Its current folder.
    pub(crate) folder: PathBuf,
    /// What it prints into.
    pub(crate) process_logs: ProcessLogs,
}

impl ProcessFolders {
    /// Removes them. There is no attempt yet, so there is nothing in them.
    pub(crate) fn discard(self) {
        warn(&self.folder, "remove", remove_tree(&self.folder));
    }
}

/// The folders of a running attempt.
#[derive(Debug)]
pub(crate) struct AttemptFolders {
    attempt: Attempt,
    /// Which disk its own folder is on.
    pub(crate) disk: usize,
    /// Its current folder.
    pub(crate) own: PathBuf,
    /// The tracker's folder of what it prints.
    pub(crate) logs: PathBuf,
    /// For spills, its own folder first.
    pub(crate) scratch: Vec<PathBuf>,
    /// Where a map may put its output, best first. Each in a folder of its own.
    pub(crate) outputs: Vec<PathBuf>,
    /// Where a reduce may save its checkpoint, one a disk.
    pub(crate) checkpoint_dirs: Vec<PathBuf>,
}

/// Makes a folder of the tracker's own, if it is not there.
fn make_tracker_folder(path: &Path) -> io::Result<()> {
    fs::create_dir(path)
        .or_else(|error| if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })
}

pub(crate) fn warn(path: &Path, what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!(path = %path.display(), %error, "cannot {what} it");
    }
}
