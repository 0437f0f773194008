//! Whole jobs in local mode, and task processes under a tracker that is a test.

mod dfs;
#[allow(dead_code, unreachable_pub, reason = "a binary's main, used here for its job")]
#[path = "../../../examples/wordcount-job/src/main.rs"]
mod example;
mod local;
mod task;
