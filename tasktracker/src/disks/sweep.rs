//! What an earlier start left on the disks: map output and whole checkpoints are kept, the rest goes.

use super::{DROPPED, Disks, OUTPUT, TOKEN, remove_tree, warn};
use crate::{
    error::{TrackerError, folder},
    ids::{Attempt, Job},
};
use mrlib::{TaskError, checkpoint, segment::Index};
use proto::mr::PausedState;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

/// What is there.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Map outputs, and where.
    pub(crate) outputs: BTreeMap<Attempt, PathBuf>,
    /// States that were put aside, and the folders of each.
    pub(crate) checkpoints: BTreeMap<Attempt, Vec<PathBuf>>,
    /// What is told of them.
    pub(crate) states: BTreeMap<Attempt, PausedState>,
    /// Shuffle tokens of their jobs.
    pub(crate) tokens: BTreeMap<Job, Vec<u8>>,
    /// Jobs that have a folder on any disk.
    pub(crate) jobs: BTreeSet<Job>,
}

impl Disks {
    /// Removes leftovers of attempts, and finds the map outputs.
    pub(super) fn sweep(&self) -> Result<Found, TrackerError> {
        let mut found = Found::default();
        for disk in &self.all {
            for name in ["warm", "printed", "jobs", "logs"] {
                let path = disk.root.join(name);
                fs::create_dir_all(&path).map_err(folder("make", &path))?;
            }
            for part in ["warm", "printed"] {
                for (name, path) in entries(&disk.root.join(part))? {
                    if name.parse::<u64>().is_ok() {
                        remove_tree(&path).map_err(folder("clean", &path))?;
                    }
                }
            }
        }
        for job in self.jobs()? {
            if let Some(token) = self.read_token(job)? {
                found.tokens.insert(job, token);
            }
            for path in self.job_folders(job) {
                sweep_job(&path, job, &mut found)?;
            }
            self.sweep_asides(job, &mut found)?;
            let kept = found.outputs.keys().chain(found.checkpoints.keys());
            if !kept.into_iter().any(|attempt| attempt.job == job) {
                found.tokens.remove(&job);
                for path in self.job_folders(job) {
                    remove_empty(&path)?;
                }
            }
            if self.job_folders(job).any(|path| path.exists()) {
                found.jobs.insert(job);
            }
        }
        Ok(found)
    }

    /// One that cannot be read is not one that is not there: all that the job has here would go with it.
    fn read_token(&self, job: Job) -> Result<Option<Vec<u8>>, TrackerError> {
        for path in self.job_folders(job).map(|folder| folder.join(TOKEN)) {
            match fs::read(&path) {
                Ok(token) if !token.is_empty() => return Ok(Some(token)),
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(folder("read", &path)(error));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// A checkpoint is whole if its state can be read; without the job's token nobody could ship it.
    fn sweep_asides(&self, job: Job, found: &mut Found) -> Result<(), TrackerError> {
        let mut asides = BTreeMap::<Attempt, Vec<PathBuf>>::new();
        for folder in self.job_folders(job) {
            for (name, path) in entries(&folder.join("aside"))? {
                // One that was dropped, and not yet deleted.
                if name.split_once(DROPPED).is_some_and(|(name, _)| name.parse::<Attempt>().is_ok()) {
                    warn(&path, "remove", remove_tree(&path));
                }
                // Whatever else lies there is not ours.
                let of_attempt = name.parse::<Attempt>().ok().filter(|attempt| attempt.job == job);
                if let Some(attempt) =
                    of_attempt.filter(|_| path.symlink_metadata().is_ok_and(|found| found.is_dir()))
                {
                    asides.entry(attempt).or_default().push(path);
                }
            }
        }
        for (attempt, dirs) in asides {
            match checkpoint::read(&dirs) {
                Ok(state) if state.attempt == attempt.to_string() && found.tokens.contains_key(&job) => {
                    found.checkpoints.insert(attempt, dirs);
                    found.states.insert(attempt, checkpoint::told(&state));
                }
                Err(error) if !is_waste(&error) => leave(attempt, &error),
                _ => dirs.iter().try_for_each(|dir| remove_tree(dir).map_err(folder("remove", dir)))?,
            }
        }
        for folder in self.job_folders(job) {
            // Fails while there is something in it.
            fs::remove_dir(folder.join("aside")).ok();
        }
        Ok(())
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
}

fn sweep_job(path: &Path, job: Job, found: &mut Found) -> Result<(), TrackerError> {
    for leftover in ["work", "program", "files"] {
        let leftover = path.join(leftover);
        remove_tree(&leftover).map_err(folder("clean", &leftover))?;
    }
    let output = path.join("output");
    for (name, its) in entries(&output)? {
        let Ok(attempt) = name.parse::<Attempt>() else { continue };
        let whole = its.join(OUTPUT);
        match Index::read(&whole) {
            Ok(_) if attempt.job == job && found.tokens.contains_key(&job) => {
                found.outputs.insert(attempt, whole);
            }
            Err(error) if !is_waste(&error) => leave(attempt, &error),
            // Half written, or of a job that nobody could show a token for.
            _ => remove_tree(&its).map_err(folder("remove", &its))?,
        }
    }
    if entries(&output)?.is_empty() {
        fs::remove_dir(&output).ok();
    }
    Ok(())
}

/// Whether what could not be read is not what was written, or was never written to the end. A disk that fails for a moment,
/// and another account than that which wrote it, say nothing of the bytes.
fn is_waste(error: &TaskError) -> bool {
    match error {
        TaskError::Damaged { .. } | TaskError::Spoilt(_) => true,
        TaskError::Io { source, .. } => {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
        }
        _ => false,
    }
}

fn leave(attempt: Attempt, error: &TaskError) {
    tracing::error!(%attempt, %error, "what it left is not served, and stays: it cannot be read; mend that and start again");
}

/// Removes the folder of a job that nothing is left of. A file that is not ours keeps it.
fn remove_empty(path: &Path) -> Result<(), TrackerError> {
    if entries(path)?.iter().all(|(name, _)| name == TOKEN || name == "token.tmp") {
        remove_tree(path).map_err(folder("remove", path))?;
    }
    Ok(())
}

/// The entries of a folder by name; none if there is no folder.
pub(super) fn entries(path: &Path) -> Result<Vec<(String, PathBuf)>, TrackerError> {
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
