//! What an earlier start left on the disks: map output and whole checkpoints are kept, the rest goes. What will not go
//! stays, with a word, and is tried again with its job: tasks made it, and no task decides whether a tracker starts.

use super::{DROPPED, Disks, OUTPUT, TOKEN, TOKEN_TEMPORARY, remove_tree, warn};
use crate::{
    error::{TrackerError, folder},
    ids::{Attempt, Job},
};
use mrlib::{TaskError, checkpoint, segment::Index};
use proto::mr::CheckpointInfo;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
};

/// What is there.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Map outputs, and where.
    pub(crate) outputs: BTreeMap<Attempt, PathBuf>,
    /// States that were checkpointed, and the folders of each.
    pub(crate) checkpoints: BTreeMap<Attempt, Vec<PathBuf>>,
    /// What is told of them.
    pub(crate) states: BTreeMap<Attempt, CheckpointInfo>,
    /// Shuffle tokens of their jobs.
    pub(crate) tokens: BTreeMap<Job, Vec<u8>>,
    /// Jobs that have a folder on any disk.
    pub(crate) jobs: BTreeSet<Job>,
}

impl Disks {
    /// Removes leftovers of attempts, and finds the map outputs.
    pub(super) fn sweep(&self) -> Found {
        let mut found = Found::default();
        let parts =
            self.all.iter().flat_map(|disk| ["warm", "process-logs"].map(|part| disk.root.join(part)));
        for (name, path) in parts.flat_map(|part| listed(&part)) {
            if let Ok(number) = name.parse::<u64>() {
                warn(&path, "remove", remove_tree(&path));
                // One that stays has its number.
                self.numbers.fetch_max(number.saturating_add(1), Ordering::Relaxed);
            }
        }
        for job in self.jobs() {
            match self.read_token(job) {
                Ok(token) => {
                    found.tokens.extend(token.map(|token| (job, token)));
                    self.sweep_job(job, &mut found);
                }
                Err(error) => tracing::error!(
                    %job, %error,
                    "its files are not served, and stay: its token cannot be read; fix that and restart"
                ),
            }
            if self.job_folders(job).any(|path| path.exists()) {
                found.jobs.insert(job);
            }
        }
        found
    }

    fn sweep_job(&self, job: Job, found: &mut Found) {
        for path in self.job_folders(job) {
            sweep_folder(&path, job, found);
        }
        self.sweep_checkpoints(job, found);
        let kept = found.outputs.keys().chain(found.checkpoints.keys());
        if !kept.into_iter().any(|attempt| attempt.job == job) {
            found.tokens.remove(&job);
            self.job_folders(job).for_each(|path| remove_empty(&path));
        }
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
    fn sweep_checkpoints(&self, job: Job, found: &mut Found) {
        let mut checkpoint_dirs = BTreeMap::<Attempt, Vec<PathBuf>>::new();
        for folder in self.job_folders(job) {
            for (name, path) in listed(&folder.join("checkpoints")) {
                // One that was dropped, and not yet deleted.
                if name.split_once(DROPPED).is_some_and(|(name, _)| name.parse::<Attempt>().is_ok()) {
                    warn(&path, "remove", remove_tree(&path));
                }
                // Whatever else lies there is not ours.
                let of_attempt = name.parse::<Attempt>().ok().filter(|attempt| attempt.job == job);
                if let Some(attempt) =
                    of_attempt.filter(|_| path.symlink_metadata().is_ok_and(|found| found.is_dir()))
                {
                    checkpoint_dirs.entry(attempt).or_default().push(path);
                }
            }
        }
        for (attempt, dirs) in checkpoint_dirs {
            match checkpoint::read(&dirs) {
                Ok(state) if state.attempt == attempt.to_string() && found.tokens.contains_key(&job) => {
                    found.checkpoints.insert(attempt, dirs);
                    found.states.insert(attempt, checkpoint::info(&state));
                }
                Err(error) if !is_garbage(&error) => leave(attempt, &error),
                _ => dirs.iter().for_each(|dir| warn(dir, "remove", remove_tree(dir))),
            }
        }
        for folder in self.job_folders(job) {
            // Fails while there is something in it.
            fs::remove_dir(folder.join("checkpoints")).ok();
        }
    }

    fn jobs(&self) -> BTreeSet<Job> {
        let names = self.all.iter().flat_map(|disk| listed(&disk.root.join("jobs")));
        names.filter_map(|(name, _)| name.parse().ok()).collect()
    }
}

/// A job's folder on one disk, but for the checkpoint there.
fn sweep_folder(path: &Path, job: Job, found: &mut Found) {
    for leftover in ["work", "program", "files"].map(|part| path.join(part)) {
        warn(&leftover, "remove", remove_tree(&leftover));
    }
    let output = path.join("output");
    for (name, its) in listed(&output) {
        let Ok(attempt) = name.parse::<Attempt>() else { continue };
        let whole = its.join(OUTPUT);
        match Index::read(&whole) {
            Ok(_) if attempt.job == job && found.tokens.contains_key(&job) => {
                found.outputs.insert(attempt, whole);
            }
            Err(error) if !is_garbage(&error) => leave(attempt, &error),
            // Half written, or of a job that nobody could show a token for.
            _ => warn(&its, "remove", remove_tree(&its)),
        }
    }
    // Fails while there is something in it.
    fs::remove_dir(&output).ok();
}

/// Whether what could not be read is not what was written, or was never written to the end. A disk that fails for a moment,
/// and another account than that which wrote it, say nothing of the bytes.
fn is_garbage(error: &TaskError) -> bool {
    match error {
        TaskError::Damaged { .. } | TaskError::CheckpointCorrupt(_) => true,
        TaskError::Io { source, .. } => {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
        }
        _ => false,
    }
}

fn leave(attempt: Attempt, error: &TaskError) {
    tracing::error!(%attempt, %error, "its files are not served, and stay: it cannot be read; fix that and restart");
}

/// Removes the folder of a job that nothing is left of. A file that is not ours keeps it.
fn remove_empty(path: &Path) {
    match entries(path) {
        Ok(left) if left.iter().all(|(name, _)| name == TOKEN || name == TOKEN_TEMPORARY) => {
            warn(path, "remove", remove_tree(path));
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "left as it is"),
    }
}

/// The entries of a folder by name; none if it cannot be read, which is said.
fn listed(path: &Path) -> Vec<(String, PathBuf)> {
    entries(path).unwrap_or_else(|error| {
        tracing::warn!(%error, "left as it is");
        Vec::new()
    })
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
