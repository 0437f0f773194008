//! The types of data that the agent passes on without reading it.

use std::fmt::Debug;
use types::AttemptId;

/// Data that the agent can store and send again.
pub trait Data: Clone + Debug + PartialEq {}

impl<T: Clone + Debug + PartialEq> Data for T {}

/// The types of the data that the agent passes on between the JobTracker and the attempts. The
/// daemon uses protobuf messages, the simulator uses the types of its model. The functions that
/// return sizes give an upper estimate of the bytes in a message. The default size is 0: then
/// messages have no maximum length.
pub trait DriverTypes: Data {
    /// What an attempt runs, and the checkpoint that it resumes from.
    type Launch: Data;
    /// Location of the files to copy.
    type Source: Data;
    /// Progress of a running attempt.
    type Progress: Data;
    /// Result of a successful attempt.
    type Result: Data;
    /// Description of a checkpoint.
    type Checkpoint: Data;
    /// An entry of the list of map outputs of a job.
    type MapEvent: Data;

    /// Returns the progress of an attempt that has reported none.
    fn no_progress(attempt: AttemptId) -> Self::Progress;

    /// Returns the size of a progress report in a heartbeat, in bytes.
    fn progress_bytes(_: &Self::Progress) -> usize {
        0
    }

    /// Returns the size of a result in a heartbeat, in bytes.
    fn result_bytes(_: &Self::Result) -> usize {
        0
    }

    /// Returns the size of the description of a checkpoint in a heartbeat, in bytes.
    fn checkpoint_bytes(_: &Self::Checkpoint) -> usize {
        0
    }

    /// Removes the status text from a progress report. Called if the message would be too long with
    /// it.
    fn clear_text(_: &mut Self::Progress) {}
}
