//! The JobTracker's state machine: a deterministic state machine without clock, socket, thread, file or hidden randomness.
//!
//! Events go in with the time, effects come out. The daemon and the simulator run this same code. Read in this
//! order: [`event`] (what goes in and out), [`fact`] (what is remembered), [`cluster`] (what policies see),
//! [`plan`] and [`scheduler`] (how policies decide), [`JobTracker`] (how it all moves). Beside these: [`why`] (reasons),
//! [`compute`] (long work of policies), [`shadow`] (a second policy without effect), [`scenario`] (plays as text).

pub mod cluster;
pub mod compute;
pub mod config;
pub mod digest;
pub mod event;
pub mod fact;
pub mod ids;
pub mod invariants;
pub mod job;
mod jobtracker;
pub mod metrics;
pub mod phase;
pub mod plan;
mod reserve;
pub mod scenario;
pub mod scheduler;
pub mod shadow;
pub mod speed;
pub mod task;
pub mod time;
pub mod trace_checker;
pub mod tracker;
pub mod why;

pub use cluster::Cluster;
pub use config::Config;
pub use event::{Effect, Event};
pub use fact::Fact;
pub use jobtracker::{DrainStatus, JobTracker};
pub use phase::{PerPhase, Phase};
pub use plan::{Plan, Refused};
pub use scheduler::Scheduler;
pub use time::{Span, Time};
pub use why::Why;
