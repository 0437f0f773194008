//! Texts and tables about a cluster and its jobs, tasks, nodes and files. `mrctl` and the gateway
//! both use this crate, so that commands and web pages show the same texts.

pub mod figures;
pub mod files;
pub mod follow;
pub mod from_history;
pub mod job;
pub mod masters;
pub mod nodes;
pub mod output;
pub mod preempted;
pub mod status_cache;
pub mod tasks;
