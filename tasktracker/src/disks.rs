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
//! jobs/JOB/aside/ATTEMPT/        what a paused reduce has put aside (mrlib's `checkpoint`), perhaps on several disks
//! jobs/JOB/program, jobs/JOB/files/    fetched once a job, in one of the folders
//! jobs/JOB/token                 the job's shuffle token, in one of the folders
//! logs/ATTEMPT/{stdout,stderr}, and owner where owners bind
//! ```
//!
//! What holds: names come from typed ids; what we did not make is not touched; `warm/N` and the folders of attempts in
//! `work`, `output` and `aside` are the task's to write in, and only by careful opening do we read there; all folders
//! above them, and what else lies here, are the tracker's, so no task can put a link in our way; a full or failing folder is left
//! alone for a while, and one that cannot be used when the tracker starts is left out, if there is another; nothing that a
//! task left keeps the tracker from starting. Deliberately absent: fsync, but for the incarnation and what tasks put
//! aside. What else a power cut takes is made again by running the map again.

mod open;
mod places;
mod printed;
mod room;
mod sweep;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) use printed::{Printed, files as log_files};
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
use parking_lot::Mutex;
use room::{Gauge, Room};
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
const SHUN: Duration = Duration::from_mins(1);
/// Of a folder that another account walks through and cannot list.
const PASSABLE: u32 = 0o711;
/// Map output in its attempt's folder.
const OUTPUT: &str = "out";
/// A job's token, in its folder.
const TOKEN: &str = "token";
/// The same while it is being written.
const TOKEN_ASIDE: &str = "token.new";
/// With less than this, the disk of a process that ended without a word was full.
const NO_ROOM: u64 = 1 << 20;

/// What follows an attempt's name where what it put aside is being deleted, with a number behind it.
const DROPPED: &str = ".dropped-";
static UNNAMED: AtomicU64 = AtomicU64::new(0);

/// How often a job's folder is tried to be removed: an escaped process may still write there.
const CLEAN_TRIES: u32 = 10;
const CLEAN_PAUSE: Duration = Duration::from_millis(100);

/// All folders.
#[derive(Debug)]
pub(crate) struct Disks {
    all: Vec<Disk>,
    reserve: u64,
    room: Room,
    turn: AtomicU64,
    numbers: AtomicU64,
    account: Option<Account>,
}

#[derive(Debug)]
struct Disk {
    root: PathBuf,
    gauge: Arc<Gauge>,
    /// Attempts that have their folder here.
    load: AtomicU64,
    shunned: Mutex<Option<Instant>>,
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
                    fs::set_permissions(&path, Permissions::from_mode(PASSABLE))
                        .map_err(folder("open", &path))?;
                }
                account.must_reach(&disk.root)?;
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
        make_own(&folder).and_then(|()| make_own(&path)).map(|()| path)
    }

    /// Makes an attempt's own folder in a part of its job's, and hands it over.
    fn make_its(&self, disk: usize, attempt: Attempt, part: &str) -> Result<PathBuf, DiskError> {
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
            last = make_own(&folder).and_then(|()| replace(&path, token, PRIVATE, false)).map(|()| path);
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
        let Disk { gauge, shunned, .. } = &self.all[disk];
        let shunned = shunned.lock().is_some_and(|until| Instant::now() < until);
        !shunned && gauge.answers() && self.is_roomy(disk)
    }

    /// Whether there was room when last it was asked.
    fn is_roomy(&self, disk: usize) -> bool {
        self.all[disk].gauge.figure().is_some_and(|room| room > self.reserve)
    }

    /// The folder with the most room for each attempt in it; equals take turns. By the last figures: no disk is asked.
    pub(crate) fn choose(&self) -> Result<usize, DiskError> {
        self.choose_but(&[])
    }

    /// The same, but none of these.
    pub(crate) fn choose_but(&self, not: &[usize]) -> Result<usize, DiskError> {
        let count = self.all.len();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as usize;
        let share = |disk: usize| {
            let Disk { gauge, load, .. } = &self.all[disk];
            // Equal disks must count as equal although their room changes a little all the time.
            (gauge.figure().unwrap_or(0) / (load.load(Ordering::Relaxed) + 1)) >> 26
        };
        let order = (0..count).map(|step| (turn + step) % count).filter(|disk| !not.contains(disk));
        let order = order.filter(|disk| self.usable(*disk));
        let best = order.rev().max_by_key(|disk| share(*disk));
        // Rather a folder that failed lately than none.
        let left = |disk: &usize| !not.contains(disk) && self.is_roomy(*disk);
        best.or_else(|| (0..count).find(left)).ok_or_else(|| {
            let names: Vec<String> = self.roots().map(|root| root.display().to_string()).collect();
            DiskError::NoSpace(names.join(", "))
        })
    }

    /// No new attempts here for a while.
    pub(crate) fn shun(&self, disk: usize) {
        *self.all[disk].shunned.lock() = Some(Instant::now() + SHUN);
    }

    /// If one of an attempt's disks has no room at all now: which.
    pub(crate) fn full(&self, work: &Work) -> Option<usize> {
        let bound = NO_ROOM.min(self.reserve.max(1));
        let used = |disk: &usize| work.scratch.iter().any(|path| path.starts_with(&self.all[*disk].root));
        let full = |disk: &usize| (self.room)(&self.all[*disk].root).is_ok_and(|room| room < bound);
        (0..self.all.len()).find(|disk| used(disk) && full(disk))
    }

    /// The folder of ours that these words tell of, the longest path if there are several.
    pub(crate) fn named_in(&self, words: &str) -> Option<usize> {
        let path = |disk: &usize| self.all[*disk].root.to_string_lossy();
        let named = (0..self.all.len()).filter(|disk| words.contains(&*path(disk)));
        named.max_by_key(|disk| path(disk).len())
    }

    /// The folder's path.
    pub(crate) fn root(&self, disk: usize) -> &Path {
        &self.all[disk].root
    }

    /// New folders for a process without an attempt, on the best disk.
    pub(crate) fn make_place(&self) -> Result<Place, DiskError> {
        let disk = self.choose()?;
        let folder = self.make_folder(disk)?;
        let printed = self.make_printed(disk).map_err(|source| self.failed(disk, &folder, source))?;
        Ok(Place { disk, folder, printed })
    }

    /// The same for a process that has its files already.
    pub(crate) fn make_place_for(&self, printed: Printed) -> Result<Place, DiskError> {
        let disk = self.choose()?;
        Ok(Place { disk, folder: self.make_folder(disk)?, printed })
    }

    fn make_folder(&self, disk: usize) -> Result<PathBuf, DiskError> {
        let path = self.all[disk].root.join("warm").join(self.number().to_string());
        let made = fs::create_dir(&path).and_then(|()| hand_over(&path, self.account));
        made.map_err(|source| self.failed(disk, &path, source))?;
        Ok(path)
    }

    /// The folders of an attempt: its own, made of its process's, and one on each other disk for spills.
    pub(crate) fn make_work(&self, attempt: Attempt, place: &Place) -> Result<Work, DiskError> {
        let disk = place.disk;
        let own = self.job_folder(disk, attempt.job).join("work").join(attempt.to_string());
        let moved = self.make_part(disk, attempt.job, "work").and_then(|_| fs::rename(&place.folder, &own));
        let logs = moved.and_then(|()| self.begin_logs(attempt, &place.printed));
        let logs = logs.map_err(|source| self.failed(disk, &own, source))?;
        let mut work = Work {
            attempt,
            disk,
            own: own.clone(),
            logs,
            scratch: vec![own],
            outputs: Vec::new(),
            asides: Vec::new(),
        };
        self.all[disk].load.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.make_results(disk, &mut work) {
            self.abandon(&work);
            return Err(error);
        }
        for other in (0..self.all.len()).filter(|other| *other != disk && self.usable(*other)) {
            // A disk that will not is done without.
            if let Ok(path) = self.make_its(other, attempt, "work") {
                work.scratch.push(path);
                self.make_results(other, &mut work).ok();
            }
        }
        Ok(work)
    }

    /// Where a map puts its output, or a reduce its state.
    fn make_results(&self, disk: usize, work: &mut Work) -> Result<(), DiskError> {
        match work.attempt.phase {
            Phase::Map => work.outputs.push(self.make_its(disk, work.attempt, "output")?.join(OUTPUT)),
            Phase::Reduce => work.asides.push(self.make_its(disk, work.attempt, "aside")?),
        }
        Ok(())
    }

    /// Where an attempt puts its state aside on a disk.
    fn aside(&self, disk: usize, attempt: Attempt) -> PathBuf {
        self.job_folder(disk, attempt.job).join("aside").join(attempt.to_string())
    }

    /// Deletes what an attempt put aside, whole or not.
    pub(crate) fn drop_aside(&self, attempt: Attempt) {
        for path in self.unname_aside(attempt) {
            warn(&path, "remove", remove_tree(&path));
        }
    }

    /// Takes the name from what an attempt put aside, so that another may come to lie there while this is deleted; the
    /// folders to delete.
    pub(crate) fn unname_aside(&self, attempt: Attempt) -> Vec<PathBuf> {
        let unname = |disk| {
            let path = self.aside(disk, attempt);
            let number = UNNAMED.fetch_add(1, Ordering::Relaxed);
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
        self.shun(disk);
        if is_full(&source) {
            DiskError::NoSpace(self.all[disk].root.display().to_string())
        } else {
            DiskError::Io { path: path.into(), source }
        }
    }

    /// Removes an attempt's folders and outputs, keeping its logs up to `log_max` bytes each (0: all), and the output
    /// that is good.
    pub(crate) fn end_work(&self, work: &Work, good: Option<&Path>, log_max: u64) {
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
    pub(crate) fn abandon(&self, work: &Work) {
        self.end_work(work, None, 0);
        self.remove_log(work.attempt);
    }

    /// Deletes everything of a job but its logs; false if something is left.
    pub(crate) fn clean(&self, job: Job) -> bool {
        let mut whole = true;
        for path in self.job_folders(job) {
            let mut removed = remove_tree(&path);
            for _ in 1..CLEAN_TRIES {
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
pub(crate) struct Place {
    /// Which disk its current folder is on.
    pub(crate) disk: usize,
    /// Its current folder.
    pub(crate) folder: PathBuf,
    /// What it prints into.
    pub(crate) printed: Printed,
}

impl Place {
    /// Removes them. There is no attempt yet, so there is nothing in them.
    pub(crate) fn discard(self) {
        warn(&self.folder, "remove", remove_tree(&self.folder));
    }
}

/// The folders of a running attempt.
#[derive(Debug)]
pub(crate) struct Work {
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
    /// Where a reduce may put its state aside, one a disk.
    pub(crate) asides: Vec<PathBuf>,
}

/// Makes a folder of the tracker's own, if it is not there.
fn make_own(path: &Path) -> io::Result<()> {
    fs::create_dir(path)
        .or_else(|error| if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })
}

pub(crate) fn warn(path: &Path, what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!(path = %path.display(), %error, "cannot {what} it");
    }
}
