//! Jobs in local mode.

#[allow(dead_code, unreachable_pub, reason = "a binary's main, used here for its job")]
#[path = "../../../examples/wordcount-job/src/main.rs"]
mod example;
mod local;
