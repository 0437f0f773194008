//! Checkpoints of paused reduces on the disks of this tracker: prepares a reduce to save or resume
//! from one, verifies saved checkpoints and makes them durable.
//!
//! A checkpoint belongs to the attempt that made it. Its folders stay after the attempt has ended,
//! also after restarts of the tracker, until the JobTracker orders its deletion or its job has
//! ended.

use crate::{
    disks::{AttemptFolders, Disks},
    shuffle_store::ShuffleStore,
    wire::{AttemptEnd, CheckpointSource},
};
use engine::checkpoint;
use mrlib_api::TaskError;
use proto::mr::TaskStart;
use std::{collections::BTreeSet, path::PathBuf};
use types::AttemptId;

/// Number of parent folders of a checkpoint folder that may be new: `checkpoints`, the folder of
/// the job, and `jobs`.
const CHECKPOINT_PARENT_FOLDERS: usize = 3;
/// Number of parent folders of a token file that may be new: the folder of the job, and `jobs`.
const TOKEN_PARENT_FOLDERS: usize = 2;

/// Sets where a reduce saves its checkpoint, and from which checkpoint it resumes.
pub(crate) fn set_checkpoint_locations(
    start: &mut TaskStart,
    work: &AttemptFolders,
    resume_from: Option<&CheckpointSource>,
    shuffle_store: &ShuffleStore,
) {
    let texts = |paths: &[PathBuf]| paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    start.checkpoint_dirs = texts(&work.checkpoint_dirs);
    let Some(CheckpointSource { attempt, addr }) = resume_from else { return };
    start.resumed_from = attempt.to_string();
    match shuffle_store.checkpoint(*attempt) {
        Some(dirs) => start.resume_dirs = texts(&dirs),
        None => start.resume_addr.clone_from(addr),
    }
}

/// Verifies the checkpoint that a task has reported, and makes it durable. It must be complete and
/// belong to the attempt, because the JobTracker and other trackers rely on the report. Returns how
/// the attempt ended.
pub(crate) fn verify_saved(
    attempt: AttemptId,
    work: &AttemptFolders,
    shuffle_store: &ShuffleStore,
    disks: &Disks,
) -> AttemptEnd {
    match checkpoint::read(&work.checkpoint_dirs) {
        Ok(found) if found.attempt == attempt.to_string() => {
            match make_durable(attempt, &work.checkpoint_dirs, disks, shuffle_store) {
                Ok(()) => {
                    shuffle_store.add_checkpoint(attempt, work.checkpoint_dirs.clone());
                    AttemptEnd::Paused(checkpoint::info(&found))
                }
                Err(error) => AttemptEnd::Failed(format!("the checkpoint is not durable: {error}")),
            }
        }
        Ok(found) => AttemptEnd::Failed(format!("the task saved the checkpoint of {}", found.attempt)),
        Err(error) => AttemptEnd::Failed(format!("the checkpoint cannot be used: {error}")),
    }
}

/// Makes a checkpoint or a copied map output in the folders `dirs` durable. The contents of the
/// folders are already synced. This function syncs the parent folders, and the token of the job,
/// without which the next start of the tracker could not serve the files.
pub(crate) fn make_durable(
    attempt: AttemptId,
    dirs: &[PathBuf],
    disks: &Disks,
    shuffle_store: &ShuffleStore,
) -> Result<(), TaskError> {
    let job = attempt.job();
    let token = shuffle_store
        .ensure_token_stored(job, disks)
        .map_err(TaskError::io(format!("store the token of {job}")))?;
    let parents = dirs.iter().flat_map(|dir| dir.ancestors().skip(1).take(CHECKPOINT_PARENT_FOLDERS));
    let parents = parents.chain(token.ancestors().skip(1).take(TOKEN_PARENT_FOLDERS));
    let parents: BTreeSet<PathBuf> = parents.map(PathBuf::from).collect();
    let unsynced: Vec<PathBuf> = std::iter::once(token.clone()).chain(parents).collect();
    checkpoint::sync(&unsynced)
}
