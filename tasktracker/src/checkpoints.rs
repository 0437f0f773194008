//! Checkpoints of attempts on the disks of this tracker, and resuming from them.
//!
//! A checkpoint belongs to the attempt that made it. Its folders remain after the attempt, and
//! after restarts of the tracker, until the JobTracker orders its deletion or its job has ended.

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

/// Number of parent folders created with a checkpoint folder: `checkpoints`, that of the job, and
/// `jobs`.
const PARENT_FOLDERS: usize = 3;
/// Number of parent folders of a token: that of the job, and `jobs`.
const PARENT_FOLDERS_OF_TOKEN: usize = 2;

/// Sets where a reduce saves its checkpoint, and from which one it resumes.
pub(crate) fn prepare(
    start: &mut TaskStart,
    work: &AttemptFolders,
    from: Option<&CheckpointSource>,
    shuffle_store: &ShuffleStore,
) {
    let texts = |paths: &[PathBuf]| paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    start.checkpoint_dirs = texts(&work.checkpoint_dirs);
    let Some(CheckpointSource { attempt, addr }) = from else { return };
    start.resumed_from = attempt.to_string();
    match shuffle_store.checkpoint(*attempt) {
        Some(dirs) => start.resume_dirs = texts(&dirs),
        None => start.resume_addr.clone_from(addr),
    }
}

/// Verifies the checkpoint that a task has reported, because others rely on the report: it must be
/// complete and belong to the attempt.
pub(crate) fn conclude(
    attempt: AttemptId,
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
                Err(error) => AttemptEnd::Failed(format!("the checkpoint is not durable: {error}")),
            }
        }
        Ok(found) => AttemptEnd::Failed(format!("the task saved the checkpoint of {}", found.attempt)),
        Err(error) => AttemptEnd::Failed(format!("the checkpoint cannot be used: {error}")),
    }
}

/// Makes a checkpoint durable. The task has synced the contents of its folders; this syncs their
/// names, and the token without which the next start could not serve it.
pub(crate) fn settle(
    attempt: AttemptId,
    dirs: &[PathBuf],
    disks: &Disks,
    shuffle_store: &ShuffleStore,
) -> Result<(), TaskError> {
    let job = attempt.job();
    let token =
        shuffle_store.keep_token(job, disks).map_err(TaskError::io(format!("store the token of {job}")))?;
    let above = dirs.iter().flat_map(|dir| dir.ancestors().skip(1).take(PARENT_FOLDERS));
    let above = above.chain(token.ancestors().skip(1).take(PARENT_FOLDERS_OF_TOKEN));
    let names: BTreeSet<PathBuf> = above.map(PathBuf::from).collect();
    let kept: Vec<PathBuf> = std::iter::once(token.clone()).chain(names).collect();
    checkpoint::sync(&kept)
}
