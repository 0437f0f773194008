//! Jobs in local mode, and task processes with a tracker that is simulated by the test.

mod dfs;
#[allow(dead_code, unreachable_pub, reason = "a binary's main, used here for its job")]
#[path = "../../../examples/wordcount-job/src/main.rs"]
mod example;
mod local;
mod task;
