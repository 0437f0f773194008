//! The tracker's folders, best one a disk, and what lies where in them:
//!
//! ```text
//! LOCK
//! warm/N/                        of an idle process: becomes its attempt's folder, by a rename
//! jobs/JOB/work/ATTEMPT/         current folder, spills, stdout, stderr
//! jobs/JOB/output/ATTEMPT.out    map output, and its .index
//! jobs/JOB/program, jobs/JOB/files/    fetched once a job, in one of the folders
//! jobs/JOB/token                 the job's shuffle token, in the first folder
//! logs/ATTEMPT/{stdout,stderr}
//! ```
//!
//! What holds: names come from typed ids; what we did not make is not touched; a full or failing folder is left
//! alone for a while. Deliberately absent: fsync. What a power cut takes is made again by running the map again.

use crate::{
    error::{TrackerError, folder},
    ids::{Attempt, Job},
    index,
};
use daemon::lock::FolderLock;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// A folder that was full or failed gets no new attempt for this long, if there is another.
const SHUN: Duration = Duration::from_secs(60);
/// With less than this, a failed attempt's disk was full even if nothing says so.
const NO_ROOM: u64 = 1 << 20;

/// Asks how many bytes are free. A seam for tests.
pub(crate) type Room = fn(&Path) -> io::Result<u64>;

/// All folders.
#[derive(Debug)]
pub(crate) struct Disks {
    all: Vec<Disk>,
    reserve: u64,
    room: Room,
    turn: AtomicU64,
}

#[derive(Debug)]
struct Disk {
    root: PathBuf,
    /// Attempts that have their folder here.
    load: AtomicU64,
    shunned: Mutex<Option<Instant>>,
    _lock: FolderLock,
}

/// What an earlier start left.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Map outputs, and where.
    pub(crate) outputs: BTreeMap<Attempt, PathBuf>,
    /// Shuffle tokens of their jobs.
    pub(crate) tokens: BTreeMap<Job, Vec<u8>>,
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
    /// Locks the folders, removes leftovers of attempts, and finds the map outputs.
    pub(crate) fn open(dirs: &[PathBuf], reserve: u64) -> Result<(Self, Found), TrackerError> {
        Self::open_with(dirs, reserve, free)
    }

    pub(crate) fn open_with(
        dirs: &[PathBuf],
        reserve: u64,
        room: Room,
    ) -> Result<(Self, Found), TrackerError> {
        let mut all = Vec::new();
        for dir in dirs {
            let lock = FolderLock::acquire(dir, "tasktracker")?;
            // Children have other current folders.
            let root = fs::canonicalize(dir).map_err(folder("use", dir))?;
            all.push(Disk { root, load: AtomicU64::new(0), shunned: Mutex::new(None), _lock: lock });
        }
        let disks = Self { all, reserve, room, turn: AtomicU64::new(0) };
        let found = disks.sweep()?;
        Ok((disks, found))
    }

    /// The folders, in the order of the configuration.
    pub(crate) fn roots(&self) -> impl Iterator<Item = &Path> {
        self.all.iter().map(|disk| disk.root.as_path())
    }

    fn sweep(&self) -> Result<Found, TrackerError> {
        let mut found = Found::default();
        for disk in &self.all {
            for name in ["warm", "jobs", "logs"] {
                let path = disk.root.join(name);
                fs::create_dir_all(&path).map_err(folder("make", &path))?;
            }
            let warm = disk.root.join("warm");
            for (name, path) in entries(&warm)? {
                if name.parse::<u64>().is_ok() {
                    remove_tree(&path).map_err(folder("clean", &path))?;
                }
            }
        }
        for job in self.jobs()? {
            if let Ok(token) = fs::read(self.token_path(job)) {
                found.tokens.insert(job, token);
            }
            // The first folder last: the token stays as long as there is output anywhere.
            for disk in self.all.iter().rev() {
                sweep_job(&disk.root.join("jobs").join(job.to_string()), job, &mut found)?;
            }
        }
        Ok(found)
    }

    fn jobs(&self) -> Result<Vec<Job>, TrackerError> {
        let mut jobs = Vec::new();
        for disk in &self.all {
            let names = entries(&disk.root.join("jobs"))?;
            jobs.extend(names.iter().filter_map(|(name, _)| name.parse::<Job>().ok()));
        }
        jobs.sort_unstable();
        jobs.dedup();
        Ok(jobs)
    }

    fn token_path(&self, job: Job) -> PathBuf {
        self.job_folder(0, job).join("token")
    }

    /// A job's own folder on this disk.
    pub(crate) fn job_folder(&self, disk: usize, job: Job) -> PathBuf {
        self.all[disk].root.join("jobs").join(job.to_string())
    }

    /// Keeps a job's token for the next start, readable by us alone.
    pub(crate) fn keep_token(&self, job: Job, token: &[u8]) -> io::Result<()> {
        let path = self.token_path(job);
        fs::create_dir_all(self.job_folder(0, job))?;
        let aside = path.with_extension("tmp");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        file.write_all(token)?;
        fs::rename(aside, path)
    }

    /// Whether a new attempt may go to this folder.
    pub(crate) fn usable(&self, disk: usize) -> bool {
        let Disk { root, shunned, .. } = &self.all[disk];
        let shunned = shunned.lock().is_some_and(|until| Instant::now() < until);
        !shunned && (self.room)(root).is_ok_and(|room| room > self.reserve)
    }

    /// The folder with the most room for each attempt in it; equals take turns.
    pub(crate) fn choose(&self) -> Result<usize, DiskError> {
        let count = self.all.len();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as usize;
        let share = |disk: usize| {
            let Disk { root, load, .. } = &self.all[disk];
            // Equal disks must count as equal although their room changes a little all the time.
            ((self.room)(root).unwrap_or(0) / (load.load(Ordering::Relaxed) + 1)) >> 26
        };
        let order = (0..count).map(|step| (turn + step) % count).filter(|disk| self.usable(*disk));
        let best = order.rev().max_by_key(|disk| share(*disk));
        // Rather a folder that failed lately than none.
        let roomy = |disk: &usize| (self.room)(&self.all[*disk].root).is_ok_and(|room| room > self.reserve);
        best.or_else(|| (0..count).find(roomy)).ok_or_else(|| {
            let names: Vec<String> = self.roots().map(|root| root.display().to_string()).collect();
            DiskError::NoSpace(names.join(", "))
        })
    }

    /// No new attempts here for a while.
    pub(crate) fn shun(&self, disk: usize) {
        *self.all[disk].shunned.lock() = Some(Instant::now() + SHUN);
    }

    /// If one of the folders has no room at all: which.
    pub(crate) fn full(&self) -> Option<usize> {
        let bound = NO_ROOM.min(self.reserve.max(1));
        (0..self.all.len()).find(|disk| (self.room)(&self.all[*disk].root).is_ok_and(|room| room < bound))
    }

    /// The folder's path.
    pub(crate) fn root(&self, disk: usize) -> &Path {
        &self.all[disk].root
    }

    /// A new folder for an idle process.
    pub(crate) fn make_warm(&self, disk: usize, number: u64) -> Result<PathBuf, DiskError> {
        let path = self.all[disk].root.join("warm").join(number.to_string());
        fs::create_dir(&path).map_err(|source| self.failed(disk, &path, source))?;
        Ok(path)
    }

    /// The folders of an attempt: its own, made of `warm` if it has one, and one on each other disk for spills.
    pub(crate) fn make_work(
        &self,
        disk: usize,
        attempt: Attempt,
        warm: Option<&Path>,
    ) -> Result<Work, DiskError> {
        let job = |disk: usize| self.job_folder(disk, attempt.job);
        let make = |disk: usize, path: &Path| {
            fs::create_dir_all(path).map_err(|source| self.failed(disk, path, source))
        };
        let output = job(disk).join("output");
        make(disk, &output)?;
        make(disk, &job(disk).join("work"))?;
        let own = job(disk).join("work").join(attempt.to_string());
        match warm {
            Some(warm) => fs::rename(warm, &own).map_err(|source| self.failed(disk, &own, source))?,
            None => make(disk, &own)?,
        }
        let mut scratch = vec![own.clone()];
        for other in (0..self.all.len()).filter(|other| *other != disk && self.usable(*other)) {
            let path = job(other).join("work").join(attempt.to_string());
            // A disk that will not is done without.
            if make(other, &path).is_ok() {
                scratch.push(path);
            }
        }
        self.all[disk].load.fetch_add(1, Ordering::Relaxed);
        Ok(Work { attempt, disk, own, scratch, output: output.join(format!("{attempt}.out")) })
    }

    fn failed(&self, disk: usize, path: &Path, source: io::Error) -> DiskError {
        self.shun(disk);
        if is_full(&source) {
            DiskError::NoSpace(self.all[disk].root.display().to_string())
        } else {
            DiskError::Io { path: path.into(), source }
        }
    }

    /// Removes an attempt's folders, keeping its logs, and its output unless it succeeded.
    pub(crate) fn end_work(&self, work: &Work, keep_output: bool) {
        let logs = self.all[work.disk].root.join("logs").join(work.attempt.to_string());
        let kept = fs::create_dir_all(&logs).and_then(|()| {
            fs::rename(work.own.join("stdout"), logs.join("stdout"))?;
            fs::rename(work.own.join("stderr"), logs.join("stderr"))
        });
        warn(&logs, "keep the logs in", kept);
        for path in &work.scratch {
            warn(path, "remove", remove_tree(path));
        }
        if !keep_output {
            for path in [index::path_of(&work.output), work.output.clone()] {
                warn(&path, "remove", gone(fs::remove_file(&path)));
            }
        }
        self.all[work.disk].load.fetch_sub(1, Ordering::Relaxed);
    }

    /// Deletes everything of a job but its logs.
    pub(crate) fn clean(&self, job: Job) {
        for path in (0..self.all.len()).map(|disk| self.job_folder(disk, job)) {
            warn(&path, "remove", remove_tree(&path));
        }
    }

    /// An attempt's log, running or over.
    pub(crate) fn log(&self, attempt: Attempt, name: &str) -> Option<PathBuf> {
        let job = attempt.job.to_string();
        let places = self.all.iter().flat_map(|disk| {
            let logs = disk.root.join("logs").join(attempt.to_string()).join(name);
            [disk.root.join("jobs").join(&job).join("work").join(attempt.to_string()).join(name), logs]
        });
        places.into_iter().find(|path| path.is_file())
    }

    /// Attempts whose logs are kept, the oldest first.
    pub(crate) fn logs(&self) -> Vec<Attempt> {
        let mut found = Vec::new();
        for disk in &self.all {
            for (name, path) in entries(&disk.root.join("logs")).unwrap_or_default() {
                let changed = fs::metadata(&path).and_then(|about| about.modified());
                if let (Ok(attempt), Ok(changed)) = (name.parse::<Attempt>(), changed) {
                    found.push((changed, attempt));
                }
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, attempt)| attempt).collect()
    }

    /// Deletes an attempt's logs.
    pub(crate) fn remove_log(&self, attempt: Attempt) {
        for disk in &self.all {
            let path = disk.root.join("logs").join(attempt.to_string());
            warn(&path, "remove", remove_tree(&path));
        }
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
    /// For spills, its own folder first.
    pub(crate) scratch: Vec<PathBuf>,
    /// Where a map puts its output.
    pub(crate) output: PathBuf,
}

/// Whether an error says that a disk is full.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether somebody's words say that a disk is full.
pub(crate) fn says_full(words: &str) -> bool {
    ["No space left", "no space on", "os error 28", "Disk quota"].iter().any(|text| words.contains(text))
}

fn free(path: &Path) -> io::Result<u64> {
    let about = rustix::fs::statvfs(path)?;
    Ok(about.f_bavail * about.f_frsize)
}

fn sweep_job(path: &Path, job: Job, found: &mut Found) -> Result<(), TrackerError> {
    for leftover in ["work", "program", "files"] {
        let leftover = path.join(leftover);
        remove_tree(&leftover).map_err(folder("clean", &leftover))?;
    }
    let output = path.join("output");
    for (name, file) in entries(&output)? {
        let stem = name.strip_suffix(".index").unwrap_or(&name).strip_suffix(".out");
        let Some(attempt) = stem.and_then(|stem| stem.parse::<Attempt>().ok()) else { continue };
        let whole = output.join(format!("{attempt}.out"));
        if attempt.job == job && found.tokens.contains_key(&job) && index::read(&whole).is_ok() {
            found.outputs.insert(attempt, whole);
        } else {
            // Half written, or of a job that nobody could show a token for.
            gone(fs::remove_file(&file)).map_err(folder("remove", &file))?;
        }
    }
    if entries(&output)?.is_empty() {
        fs::remove_dir(&output).ok();
    }
    if !output.exists() && !found.outputs.keys().any(|attempt| attempt.job == job) {
        // Nothing of it is left here. A file that is not ours keeps the folder.
        if entries(path)?.iter().all(|(name, _)| name == "token" || name == "token.tmp") {
            remove_tree(path).map_err(folder("remove", path))?;
        }
    }
    Ok(())
}

/// The entries of a folder by name; none if there is no folder.
fn entries(path: &Path) -> Result<Vec<(String, PathBuf)>, TrackerError> {
    let read = || -> io::Result<Vec<(String, PathBuf)>> {
        let entry = |entry: io::Result<fs::DirEntry>| {
            entry.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
        };
        fs::read_dir(path)?.map(entry).collect()
    };
    match read() {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound) => Ok(Vec::new()),
        other => other.map_err(folder("read", path)),
    }
}

/// Not there any more is as good as removed.
fn gone(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

fn remove_tree(path: &Path) -> io::Result<()> {
    gone(fs::remove_dir_all(path))
}

fn warn(path: &Path, what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!(path = %path.display(), %error, "cannot {what} it");
    }
}

#[cfg(test)]
mod tests;
