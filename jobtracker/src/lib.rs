//! The JobTracker daemon: clock, journal, sockets and file system around the core,
//! [`mrcore::JobTracker`].
//!
//! Read in this order: [`run`] (start to stop), `blueprint` (state and histories from a journal),
//! `opened` and `group` (the folder of one JobTracker, and of a member of a group), `lead` (what a
//! leader does periodically), `driver` (one lock, effects in order), `submit` and
//! `splits` (a request becomes a job), `link` (trackers), `server` and `shared_status` (clients),
//! `output` (commit), `leftovers` and `sweep` (deletion of temporary files), `files` (client of the
//! file system), `history` (job histories), `storage` and `compact` (the journal), `starts` (earlier
//! starts of this folder), `writable` (whether the NameNode accepts changes).
//!
//! Other crates have the scheduling policies (`schedulers`), the rules of tasks (`core`) and the
//! web pages (`gateway`).

mod active_jobs;
mod blueprint;
mod clock;
mod compact;
mod driver;
mod end;
mod error;
mod events;
mod files;
mod group;
mod history;
mod lead;
mod leftovers;
mod link;
mod opened;
mod output;
mod policy;
mod run;
mod server;
mod shared_status;
mod splits;
mod starts;
mod storage;
mod submit;
mod sweep;
mod wire;
mod writable;

#[cfg(test)]
mod tests;

pub use end::JobTrackerError;
pub use policy::check_scheduler;
pub use run::{Daemon, run};
pub use storage::StorageError;
