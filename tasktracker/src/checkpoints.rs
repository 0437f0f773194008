//! Checkpoints of attempts on this tracker's disks, and take up from there.
//!
//! A checkpoint belongs to the attempt that made it. Its folders live on after the attempt, through sweeps and restarts of
//! the tracker, until the JobTracker has it dropped or its job has ended.

use crate::{
    agent::{AttemptEnd, CheckpointSource},
    disks::{AttemptFolders, Disks},
    ids::Attempt,
    shuffle_store::ShuffleStore,
};
use mrlib::{TaskError, checkpoint};
use proto::mr::TaskStart;
use std::{collections::BTreeSet, path::PathBuf};

/// Folders above one of an attempt's that were made along with it: `checkpoints`, the job's, and `jobs`.
const PARENT_FOLDERS: usize = 3;
/// Above a token: the job's, and `jobs`.
const PARENT_FOLDERS_OF_TOKEN: usize = 2;

/// Tells a reduce where to save its checkpoint, and which one to take up.
pub(crate) fn prepare(
    start: &mut TaskStart,
    work: &AttemptFolders,
    from: Option<&CheckpointSource>,
    shuffle_store: &ShuffleStore,
) {
    let texts = |paths: &[PathBuf]| paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    start.checkpoint_dirs = texts(&work.checkpoint_dirs);
    let Some(CheckpointSource { attempt, addr }) = from else { return };
    start.from = attempt.to_string();
    match shuffle_store.checkpoint(*attempt) {
        Some(dirs) => start.resume_dirs = texts(&dirs),
        None => start.resume_addr.clone_from(addr),
    }
}

/// What a task says that it has checkpointed must be there, whole and its own: others are told that it is.
pub(crate) fn conclude(
    attempt: Attempt,
    work: &AttemptFolders,
    shuffle_store: &ShuffleStore,
    disks: &Disks,
) -> AttemptEnd {
    match checkpoint::read(&work.checkpoint_dirs) {
        Ok(found) if found.attempt == attempt.to_string() => {
            match settle(attempt, &work.checkpoint_dirs, disks, shuffle_store) {
                Ok(()) => {
                    shuffle_store.add_checkpoint(attempt, work.checkpoint_dirs.clone());
                    AttemptEnd::Paused(checkpoint::info(&found))
                }
                Err(error) => AttemptEnd::Failed(format!("its checkpoint is not durable: {error}")),
            }
        }
        Ok(found) => AttemptEnd::Failed(format!("it saved the checkpoint of {}", found.attempt)),
        Err(error) => AttemptEnd::Failed(format!("its checkpoint cannot be used: {error}")),
    }
}

/// What is in the folders of a state is synced; so now are the names of these, which the tracker made, and the token
/// without which the next start could not serve it: a failure of power must take nothing of what is said to be safe.
pub(crate) fn settle(
    attempt: Attempt,
    dirs: &[PathBuf],
    disks: &Disks,
    shuffle_store: &ShuffleStore,
) -> Result<(), TaskError> {
    let job = attempt.job;
    let token =
        shuffle_store.keep_token(job, disks).map_err(TaskError::io(format!("keep the token of {job}")))?;
    let above = dirs.iter().flat_map(|dir| dir.ancestors().skip(1).take(PARENT_FOLDERS));
    let above = above.chain(token.ancestors().skip(1).take(PARENT_FOLDERS_OF_TOKEN));
    let names: BTreeSet<PathBuf> = above.map(PathBuf::from).collect();
    let kept: Vec<PathBuf> = std::iter::once(token.clone()).chain(names).collect();
    checkpoint::sync(&kept)
}
