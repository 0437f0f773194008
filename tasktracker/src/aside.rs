//! What attempts put aside on this tracker's disks, and take up from there.
//!
//! A checkpoint belongs to the attempt that made it. Its folders live on after the attempt, through sweeps and restarts of
//! the tracker, until the JobTracker has it dropped or its job is over.

use crate::{
    agent::{Ending, Origin},
    disks::Work,
    held::Held,
    ids::Attempt,
};
use mrlib::checkpoint;
use proto::mr::TaskStart;
use std::{collections::BTreeSet, path::PathBuf};

/// Folders above one of an attempt's that were made along with it: `aside`, the job's, and `jobs`.
const FOLDERS_ABOVE: usize = 3;

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
pub(crate) fn conclude(attempt: Attempt, work: &Work, held: &Held) -> Ending {
    match checkpoint::read(&work.asides) {
        Ok(found) if found.attempt == attempt.to_string() => match checkpoint::sync(&names(work)) {
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

/// The folders that hold the names of an attempt's own. The task has synced what is in those, but it is the tracker that
/// made them: a failure of power must not take the name of what is safe.
fn names(work: &Work) -> Vec<PathBuf> {
    let above = work.asides.iter().flat_map(|dir| dir.ancestors().skip(1).take(FOLDERS_ABOVE));
    above.map(PathBuf::from).collect::<BTreeSet<_>>().into_iter().collect()
}
