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
use std::path::PathBuf;

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
        Ok(found) if found.attempt == attempt.to_string() => {
            held.add_checkpoint(attempt, work.asides.clone());
            Ending::Paused(checkpoint::told(&found))
        }
        Ok(found) => Ending::Failed(format!("it put aside the state of {}", found.attempt)),
        Err(error) => {
            Ending::Failed(format!("it said that its state is put aside, but that cannot be used: {error}"))
        }
    }
}
