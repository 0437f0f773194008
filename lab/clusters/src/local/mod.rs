//! A cluster of real processes on this machine: its layout, its start, its state.
//!
//! Its folder contains `fermata.toml`, `secret` (closes the cluster), `cluster.json` (the running
//! daemons), `layout.json` (nodes, racks, ports), `logs/`, `run/` (ready files), `data/` and
//! `tasks/`. Clusters on other machines are in `remote`.

mod folders;
mod launch;
mod layout;
mod process;
mod state;

pub use folders::{remove_elsewhere, temporary};
pub use launch::{Launch, await_files, failure, restart};
pub use layout::{Layout, Overrides, check_scheduler, lost_data};
#[cfg(test)]
pub use process::Identity;
pub use process::{ExitKind, Times, cpu_seconds, end, memory_bytes, times};
pub use state::{ClusterState, Daemon, Kind, lock};
