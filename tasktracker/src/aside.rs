//! What attempts put aside on this tracker's disks, and take up from there.
//!
//! A checkpoint belongs to the attempt that made it. Its folders live on after the attempt, through sweeps and restarts of
//! the tracker, until the JobTracker has it dropped or its job is over.

use crate::{
    agent::{Ending, Origin},
    disks::{Disks, Work},
    held::Held,
    ids::Attempt,
};
use mrlib::{TaskError, checkpoint};
use proto::mr::TaskStart;
use std::{collections::BTreeSet, path::PathBuf};

/// Folders above one of an attempt's that were made along with it: `aside`, the job's, and `jobs`.
const FOLDERS_ABOVE: usize = 3;
/// Above a token: the job's, and `jobs`.
const FOLDERS_ABOVE_TOKEN: usize = 2;

/// Tells a reduce where to put its state aside, and which one to take up.
pub(crate) fn prepare(start: &mut TaskStart, work: &Work, from: Option<&Origin>, held: &Held) {
    let texts = |paths: &[PathBuf]| paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    start.aside_dirs = texts(&work.asides);
    let Some(Origin { attempt, addr }) = from else { return };
    start.from = attempt.to_string();
    match held.checkpoint(*attempt) {
        Some(dirs) => start.from_dirs = texts(&dirs),
        None => start.from_addr.clone_from(addr),
    }
}

/// What a task says that it has put aside must be there, whole and its own: others are told that it is.
pub(crate) fn conclude(attempt: Attempt, work: &Work, held: &Held, disks: &Disks) -> Ending {
    match checkpoint::read(&work.asides) {
        Ok(found) if found.attempt == attempt.to_string() => match settle(attempt, &work.asides, disks, held)
        {
            Ok(()) => {
                held.add_checkpoint(attempt, work.asides.clone());
                Ending::Paused(checkpoint::told(&found))
            }
            Err(error) => Ending::Failed(format!("its state is put aside, but not for good: {error}")),
        },
        Ok(found) => Ending::Failed(format!("it put aside the state of {}", found.attempt)),
        Err(error) => {
            Ending::Failed(format!("it said that its state is put aside, but that cannot be used: {error}"))
        }
    }
}

/// What is in the folders of a state is synced; so now are the names of these, which the tracker made, and the token
/// without which the next start could not serve it: a failure of power must take nothing of what is said to be safe.
pub(crate) fn settle(
    attempt: Attempt,
    dirs: &[PathBuf],
    disks: &Disks,
    held: &Held,
) -> Result<(), TaskError> {
    let job = attempt.job;
    let token = held.keep_token(job, disks).map_err(TaskError::io(format!("keep the token of {job}")))?;
    let above = dirs.iter().flat_map(|dir| dir.ancestors().skip(1).take(FOLDERS_ABOVE));
    let above = above.chain(token.ancestors().skip(1).take(FOLDERS_ABOVE_TOKEN));
    let names: BTreeSet<PathBuf> = above.map(PathBuf::from).collect();
    let kept: Vec<PathBuf> = std::iter::once(token.clone()).chain(names).collect();
    checkpoint::sync(&kept)
}
