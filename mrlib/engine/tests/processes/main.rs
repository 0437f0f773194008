//! Tests task processes with a simulated tracker, and splits of files in the distributed file
//! system.

mod daemons;
mod dfs;
mod dfs_input;
mod task;
