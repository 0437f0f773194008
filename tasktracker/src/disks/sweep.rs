//! Finds the files of an earlier start: map outputs and complete checkpoints are kept, other files
//! are removed. Files that cannot be removed are logged and deleted with their job: tasks made
//! them, and must not be able to prevent the start of a tracker.

use super::{DROPPED, Disks, OUTPUT, TOKEN, TOKEN_TEMPORARY, remove_tree, warn};
use crate::error::{TrackerError, folder};
use engine::{checkpoint, segment::Index};
use mrlib_api::TaskError;
use proto::mr::CheckpointInfo;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
};
use types::{AttemptId, JobId};

/// Files of an earlier start.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Paths of map outputs.
    pub(crate) outputs: BTreeMap<AttemptId, PathBuf>,
    /// Folders of checkpoints.
    pub(crate) checkpoints: BTreeMap<AttemptId, Vec<PathBuf>>,
    /// Contents of the checkpoints, for reports.
    pub(crate) states: BTreeMap<AttemptId, CheckpointInfo>,
    /// Shuffle tokens of the jobs.
    pub(crate) tokens: BTreeMap<JobId, Vec<u8>>,
    /// Jobs with a folder on any disk.
    pub(crate) jobs: BTreeSet<JobId>,
}

impl Disks {
    /// Removes files of earlier attempts, and finds the map outputs.
    pub(super) fn sweep(&self) -> Found {
        let mut found = Found::default();
        let parts =
            self.all.iter().flat_map(|disk| ["warm", "process-logs"].map(|part| disk.root.join(part)));
        for (name, path) in parts.flat_map(|part| listed(&part)) {
            if let Ok(number) = name.parse::<u64>() {
                warn(&path, "remove", remove_tree(&path));
                // A folder that cannot be removed keeps its number.
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
                    "its files are kept but not served: its token cannot be read; fix the error and restart the tracker"
                ),
            }
            if self.job_folders(job).any(|path| path.exists()) {
                found.jobs.insert(job);
            }
        }
        found
    }

    fn sweep_job(&self, job: JobId, found: &mut Found) {
        for path in self.job_folders(job) {
            sweep_folder(&path, job, found);
        }
        self.sweep_checkpoints(job, found);
        let kept = found.outputs.keys().chain(found.checkpoints.keys());
        if !kept.into_iter().any(|attempt| attempt.job() == job) {
            found.tokens.remove(&job);
            self.job_folders(job).for_each(|path| remove_empty(&path));
        }
    }

    /// A token that cannot be read is not treated as missing, because all files of the job would be
    /// removed.
    fn read_token(&self, job: JobId) -> Result<Option<Vec<u8>>, TrackerError> {
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

    /// A checkpoint is complete if its state can be read. Without the token of the job it could not
    /// be transferred.
    fn sweep_checkpoints(&self, job: JobId, found: &mut Found) {
        let mut checkpoint_dirs = BTreeMap::<AttemptId, Vec<PathBuf>>::new();
        for folder in self.job_folders(job) {
            for (name, path) in listed(&folder.join("checkpoints")) {
                // A checkpoint that was dropped but not yet deleted.
                if name.split_once(DROPPED).is_some_and(|(name, _)| name.parse::<AttemptId>().is_ok()) {
                    warn(&path, "remove", remove_tree(&path));
                }
                // Other files do not belong to the tracker.
                let of_attempt = name.parse::<AttemptId>().ok().filter(|attempt| attempt.job() == job);
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
            // Fails if the folder is not empty.
            fs::remove_dir(folder.join("checkpoints")).ok();
        }
    }

    fn jobs(&self) -> BTreeSet<JobId> {
        let names = self.all.iter().flat_map(|disk| listed(&disk.root.join("jobs")));
        names.filter_map(|(name, _)| name.parse().ok()).collect()
    }
}

/// Examines the folder of a job on one disk, except checkpoints.
fn sweep_folder(path: &Path, job: JobId, found: &mut Found) {
    for leftover in ["work", "program", "files"].map(|part| path.join(part)) {
        warn(&leftover, "remove", remove_tree(&leftover));
    }
    let output = path.join("output");
    for (name, its) in listed(&output) {
        let Ok(attempt) = name.parse::<AttemptId>() else { continue };
        let whole = its.join(OUTPUT);
        match Index::read(&whole) {
            Ok(_) if attempt.job() == job && found.tokens.contains_key(&job) => {
                found.outputs.insert(attempt, whole);
            }
            Err(error) if !is_garbage(&error) => leave(attempt, &error),
            // Incomplete, or of a job without a token.
            _ => warn(&its, "remove", remove_tree(&its)),
        }
    }
    // Fails if the folder is not empty.
    fs::remove_dir(&output).ok();
}

/// Whether the error shows that the file is incomplete or damaged. Temporary errors of a disk, or a
/// file of another account, do not.
fn is_garbage(error: &TaskError) -> bool {
    match error {
        TaskError::Damaged { .. } | TaskError::CheckpointCorrupt(_) => true,
        TaskError::Io { source, .. } => {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
        }
        _ => false,
    }
}

fn leave(attempt: AttemptId, error: &TaskError) {
    tracing::error!(%attempt, %error, "its files are kept but not served: they cannot be read; fix the error and restart the tracker");
}

/// Removes the folder of a job without remaining files. Files that do not belong to the tracker
/// prevent it.
fn remove_empty(path: &Path) {
    match entries(path) {
        Ok(left) if left.iter().all(|(name, _)| name == TOKEN || name == TOKEN_TEMPORARY) => {
            warn(path, "remove", remove_tree(path));
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "cannot read this folder: its files are kept"),
    }
}

/// Returns the entries of a folder by name; logs a warning and returns none if it cannot be read.
fn listed(path: &Path) -> Vec<(String, PathBuf)> {
    entries(path).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read this folder: its files are kept");
        Vec::new()
    })
}

/// Returns the entries of a folder by name; none if it does not exist.
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
