//! The state machine of the JobTracker. It is deterministic: it has no clock, socket, thread, file
//! or hidden randomness.
//!
//! The input is an event and the current time, the output is a list of effects. The daemon and the
//! simulator run the same code. Read the modules in this order: [`event`] (input and output),
//! [`fact`] (durable changes), [`cluster`] (the state that policies see), [`plan`] and
//! [`scheduler`] (how policies decide), [`JobTracker`] (how events change the state). Other
//! modules: [`why`] (reasons of decisions), [`compute`] (long computations of policies), [`shadow`]
//! (a second policy without effect), [`history`] (lines of job histories), [`scenario`] (tests as
//! text files).
//!
//! [`scenario`], [`invariants`], [`trace_checker`] and [`digest`] are for tests of several crates
//! and for the simulator. They are not behind a feature, because cargo would then compile this
//! crate, and all that use it, once with and once without it.

pub mod cluster;
pub mod compute;
pub mod config;
pub mod digest;
pub mod event;
pub mod fact;
pub mod history;
pub mod invariants;
pub mod job;
mod jobtracker;
pub mod metrics;
pub mod output;
pub mod pending;
pub mod plan;
mod reserve;
pub mod scenario;
pub mod scheduler;
pub mod shadow;
pub mod speed;
pub mod task;
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
pub use reserve::AcceptedSlots;
pub use scheduler::Scheduler;
pub use time::{Span, Time};
pub use types::{ids, phase, quantity, split_mix, time};
pub use why::Why;
