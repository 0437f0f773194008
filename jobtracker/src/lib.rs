//! The JobTracker daemon: clock, journal, sockets and file system around [`mrcore::JobTracker`], the core.
//!
//! Read in this order: [`run`] (start to stop), `driver` (one lock, effects in order), `submit` and `splits` (a
//! request becomes a job), `link` (trackers), `server` (clients), `fact_text` (facts in words), `output` (moving a job's output into place),
//! `leftovers` (clearing away the rest), `history` (what is left for people and simulators), `storage` and `compact` (the journal).
//!
//! Deliberately absent: scheduling (in `schedulers`), any rule about tasks (in `core`), the web page.

mod active_jobs;
mod clock;
mod compact;
mod driver;
mod error;
mod events;
mod fact_text;
mod history;
mod leftovers;
mod link;
mod output;
mod policy;
mod run;
mod server;
mod spec;
mod splits;
mod storage;
mod submit;
mod wire;

#[cfg(test)]
mod tests;

pub use link::TRACKER_PROTOCOL;
pub use policy::check_scheduler;
pub use run::{Daemon, JobTrackerError, run};
pub use storage::StorageError;
