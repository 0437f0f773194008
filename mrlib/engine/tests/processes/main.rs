//! Task processes with a tracker that is simulated by the test.

mod dfs;
mod task;
