//! A cluster of real processes on this machine: what to start, what runs, how to signal it.
//!
//! The state folder belongs to it: `fermata.toml`, `secret` (what closes it), `cluster.json` (what runs), `layout.json`
//! (what it was made with), `logs/`, `run/` (ready files), `data/` and `tasks/`. Deliberately absent: anything on
//! another host.

mod folders;
mod launch;
mod layout;
mod process;
mod state;

pub(crate) use folders::{remove_elsewhere, temporary};
pub(crate) use launch::{Launch, failure, restart};
pub(crate) use layout::{Layout, Overrides, check_scheduler};
#[cfg(test)]
pub(crate) use process::Identity;
pub(crate) use process::{ExitKind, Times, cpu_seconds, end, memory_bytes, times};
pub(crate) use state::{ClusterState, Daemon, Kind, lock};
