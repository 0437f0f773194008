//! Plain data that the masters, the TaskTrackers, the simulator and clients share. Each concept is
//! defined once, here; `wire` modules convert to and from messages. Also contains the generator of
//! random numbers for seeded tests and simulations.
//!
//! The code is pure: it uses no clock, file or socket.

pub mod fetch;
pub mod group;
pub mod ids;
pub mod phase;
pub mod preempt;
pub mod quantity;
pub mod secret;
pub mod spelling;
pub mod split_mix;
pub mod stage;
pub mod time;

pub use fetch::FetchFailure;
pub use ids::{AttemptId, JobId, TaskId, TrackerId};
pub use phase::{PerPhase, Phase};
pub use preempt::{PreemptKind, PreemptRefusal};
pub use secret::Secret;
pub use stage::Stage;
pub use time::{Span, Time};
