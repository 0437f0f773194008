//! Task processes with a tracker that is simulated by the test, and splits of files in the
//! distributed file system.

mod daemons;
mod dfs;
mod dfs_input;
mod task;
