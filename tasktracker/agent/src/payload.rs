//! Data that the agent passes on without reading it.

use std::fmt::Debug;
use types::AttemptId;

/// Data that can be stored and sent again.
pub trait Data: Clone + Debug + PartialEq {}

impl<T: Clone + Debug + PartialEq> Data for T {}

/// The types of the data that the agent passes on between the JobTracker and the attempts. The
/// daemon uses messages, the simulator the types of its model. The sizes are upper estimates of the
/// bytes in a message; without them, messages have no maximum length.
pub trait Payload: Data {
    /// What an attempt runs, and the checkpoint that it resumes from.
    type Launch: Data;
    /// Where files to copy are.
    type Source: Data;
    /// Progress of a running attempt.
    type Progress: Data;
    /// Result of a successful attempt.
    type Result: Data;
    /// Description of a checkpoint.
    type Checkpoint: Data;
    /// An entry of the list of map outputs of a job.
    type MapEvent: Data;

    /// Progress of an attempt that has reported none.
    fn no_progress(attempt: AttemptId) -> Self::Progress;

    /// Size of a progress.
    fn progress_bytes(_: &Self::Progress) -> usize {
        0
    }

    /// Size of a result.
    fn result_bytes(_: &Self::Result) -> usize {
        0
    }

    /// Size of the description of a checkpoint.
    fn checkpoint_bytes(_: &Self::Checkpoint) -> usize {
        0
    }

    /// Removes the text from a progress, because the message would be too long.
    fn clear_text(_: &mut Self::Progress) {}
}
