//! Examines the files of an earlier start: keeps map outputs and complete checkpoints, and removes
//! other files. Files that cannot be removed are logged, and deleted with their job: they were made
//! by tasks, which must not be able to prevent the start of a tracker.

use super::{DROPPED_INFIX, Disks, OUTPUT_FILE, TOKEN_FILE, TOKEN_TEMPORARY_FILE, log_failure, remove_tree};
use crate::error::{TrackerError, folder_error};
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

/// The files of an earlier start that are kept.
#[derive(Debug, Default)]
pub(crate) struct FoundFiles {
    /// Paths of map outputs.
    pub(crate) outputs: BTreeMap<AttemptId, PathBuf>,
    /// Folders of checkpoints.
    pub(crate) checkpoints: BTreeMap<AttemptId, Vec<PathBuf>>,
    /// Descriptions of the checkpoints, for the registration.
    pub(crate) checkpoint_infos: BTreeMap<AttemptId, CheckpointInfo>,
    /// Shuffle tokens of the jobs.
    pub(crate) tokens: BTreeMap<JobId, Vec<u8>>,
    /// Jobs with a folder on any disk.
    pub(crate) jobs: BTreeSet<JobId>,
}

impl Disks {
    /// Removes files of earlier attempts. Returns the map outputs, checkpoints, tokens and jobs
    /// that are kept.
    pub(super) fn sweep(&self) -> FoundFiles {
        let mut found = FoundFiles::default();
        let parts =
            self.disks.iter().flat_map(|disk| ["warm", "process-logs"].map(|part| disk.root.join(part)));
        for (name, path) in parts.flat_map(|part| list_or_warn(&part)) {
            if let Ok(number) = name.parse::<u64>() {
                log_failure(&path, "remove", remove_tree(&path));
                // The folder may still exist if it could not be removed, so do not use its number
                // again.
                self.next_number.fetch_max(number.saturating_add(1), Ordering::Relaxed);
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
                    "the files of this job are kept but not served, because its token cannot be read: fix the error and restart the tracker"
                ),
            }
            if self.job_folders(job).any(|path| path.exists()) {
                found.jobs.insert(job);
            }
        }
        found
    }

    /// Examines all folders of a job. Removes them if no output and no checkpoint is kept.
    fn sweep_job(&self, job: JobId, found: &mut FoundFiles) {
        for path in self.job_folders(job) {
            sweep_folder(&path, job, found);
        }
        self.sweep_checkpoints(job, found);
        let kept = found.outputs.keys().chain(found.checkpoints.keys());
        if !kept.into_iter().any(|attempt| attempt.job() == job) {
            found.tokens.remove(&job);
            self.job_folders(job).for_each(|path| remove_if_unused(&path));
        }
    }

    /// Reads the stored token of a job. Returns an error, and not `None`, if the token exists but
    /// cannot be read: without a token, all files of the job would be removed.
    fn read_token(&self, job: JobId) -> Result<Option<Vec<u8>>, TrackerError> {
        for path in self.job_folders(job).map(|folder| folder.join(TOKEN_FILE)) {
            match fs::read(&path) {
                Ok(token) if !token.is_empty() => return Ok(Some(token)),
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(folder_error("read", &path)(error));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Finds the complete checkpoints of a job, and removes the others. A checkpoint is complete if
    /// its state can be read. If the token of the job is missing, its checkpoints are also removed,
    /// because they could not be transferred.
    fn sweep_checkpoints(&self, job: JobId, found: &mut FoundFiles) {
        let mut checkpoint_dirs = BTreeMap::<AttemptId, Vec<PathBuf>>::new();
        for folder in self.job_folders(job) {
            for (name, path) in list_or_warn(&folder.join("checkpoints")) {
                // The JobTracker ordered the deletion of this checkpoint, but it was not finished.
                if name.split_once(DROPPED_INFIX).is_some_and(|(name, _)| name.parse::<AttemptId>().is_ok()) {
                    log_failure(&path, "remove", remove_tree(&path));
                }
                // Ignore other files, which do not belong to the tracker.
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
                    found.checkpoint_infos.insert(attempt, checkpoint::info(&state));
                }
                Err(error) if !is_damage(&error) => log_unreadable(attempt, &error),
                _ => dirs.iter().for_each(|dir| log_failure(dir, "remove", remove_tree(dir))),
            }
        }
        for folder in self.job_folders(job) {
            // This fails, as intended, if the folder is not empty.
            fs::remove_dir(folder.join("checkpoints")).ok();
        }
    }

    /// Returns the jobs with a folder on any disk.
    fn jobs(&self) -> BTreeSet<JobId> {
        let names = self.disks.iter().flat_map(|disk| list_or_warn(&disk.root.join("jobs")));
        names.filter_map(|(name, _)| name.parse().ok()).collect()
    }
}

/// Examines the folder of a job on one disk, except its checkpoints.
fn sweep_folder(path: &Path, job: JobId, found: &mut FoundFiles) {
    for leftover in ["work", "program", "files"].map(|part| path.join(part)) {
        log_failure(&leftover, "remove", remove_tree(&leftover));
    }
    let output = path.join("output");
    for (name, folder) in list_or_warn(&output) {
        let Ok(attempt) = name.parse::<AttemptId>() else { continue };
        let file = folder.join(OUTPUT_FILE);
        match Index::read(&file) {
            Ok(_) if attempt.job() == job && found.tokens.contains_key(&job) => {
                found.outputs.insert(attempt, file);
            }
            Err(error) if !is_damage(&error) => log_unreadable(attempt, &error),
            // The output is incomplete, or its job has no token.
            _ => log_failure(&folder, "remove", remove_tree(&folder)),
        }
    }
    // This fails, as intended, if the folder is not empty.
    fs::remove_dir(&output).ok();
}

/// Returns whether the error shows that the file is incomplete or damaged. Temporary errors of a
/// disk, or missing permissions, do not show this.
fn is_damage(error: &TaskError) -> bool {
    match error {
        TaskError::Damaged { .. } | TaskError::CheckpointCorrupt(_) => true,
        TaskError::Io { source, .. } => {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
        }
        _ => false,
    }
}

fn log_unreadable(attempt: AttemptId, error: &TaskError) {
    tracing::error!(%attempt, %error, "the files of this attempt are kept but not served, because they cannot be read: fix the error and restart the tracker");
}

/// Removes the folder of a job on one disk if it contains nothing but the token. A folder with
/// files that do not belong to the tracker is kept.
fn remove_if_unused(path: &Path) {
    match list_folder(path) {
        Ok(entries) if entries.iter().all(|(name, _)| name == TOKEN_FILE || name == TOKEN_TEMPORARY_FILE) => {
            log_failure(path, "remove", remove_tree(path));
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "cannot read this folder: its files are kept"),
    }
}

/// Returns the names and paths of the entries of a folder. If the folder cannot be read, logs a
/// warning and returns no entries.
fn list_or_warn(path: &Path) -> Vec<(String, PathBuf)> {
    list_folder(path).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read this folder: its files are kept");
        Vec::new()
    })
}

/// Returns the names and paths of the entries of a folder; none if the folder does not exist.
pub(super) fn list_folder(path: &Path) -> Result<Vec<(String, PathBuf)>, TrackerError> {
    let read = || -> io::Result<Vec<(String, PathBuf)>> {
        let entry = |entry: io::Result<fs::DirEntry>| {
            entry.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
        };
        fs::read_dir(path)?.map(entry).collect()
    };
    match read() {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound) => Ok(Vec::new()),
        other => other.map_err(folder_error("read", path)),
    }
}
