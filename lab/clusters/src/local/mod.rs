//! Local clusters, made of real processes on this machine.
//!
//! The folder of a cluster contains `fermata.toml`, `secret` (only who can read it may use the
//! cluster), `cluster.json` (the running daemons), `layout.json` (nodes, racks, masters, ports), `logs/`,
//! `run/` (ready files), `data/` and `tasks/`. Clusters on other machines are in `remote`.

mod folders;
mod launch;
mod layout;
mod masters;
mod process;
mod state;

pub use folders::{TemporaryCluster, remove_outside_folder, remove_temporary_clusters, temporary_folder};
pub use launch::{Launch, await_files, await_masters, describe_failure, restart, unused_name};
pub use layout::{Layout, Overrides, check_scheduler, lost_data};
pub use masters::ask_masters;
#[cfg(test)]
pub use process::Identity;
pub use process::{CpuTimes, ExitKind, cpu_seconds, cpu_times, end_processes, memory_bytes};
pub use state::{ClusterState, Daemon, Kind, lock};
