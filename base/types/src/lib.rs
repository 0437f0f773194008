//! Plain data that the JobTracker, the TaskTrackers and the simulator share. Each concept is
//! defined once, here; `wire` modules convert to and from messages.
//!
//! Pure: no clock, file or socket.

pub mod ids;
pub mod phase;
pub mod preempt;
pub mod quantity;
pub mod time;

pub use ids::{AttemptId, JobId, TaskId, TrackerId};
pub use phase::{PerPhase, Phase};
pub use preempt::PreemptKind;
pub use time::{Span, Time};
