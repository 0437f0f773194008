//! What commands and pages show: the state of a cluster, queried and cached, and its jobs, tasks,
//! nodes and files in words. `mrctl` and the gateway use it, so that both show the same.

pub mod figures;
pub mod files;
pub mod follow;
pub mod from_history;
pub mod job;
pub mod nodes;
pub mod output;
pub mod preempted;
pub mod status_cache;
pub mod tasks;
