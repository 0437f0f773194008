//! The task engine: runs the map and reduce tasks of a job, in a task process or in local mode.
//!
//! Input, sort, map output, shuffle, merge, checkpoints and output; the built-in programs and
//! streaming; the main functions of `mrtask` and of the executables of users ([`run()`]).

pub mod checkpoint;
mod dfs_error;
pub mod execution;
pub mod fetch;
pub mod frame;
pub mod input;
pub mod local;
pub mod merge;
pub mod output;
mod panics;
pub mod partition;
pub mod process;
pub mod programs;
pub mod ranges;
pub mod registry;
pub mod run;
pub mod scratch;
pub mod segment;
pub mod settings;
pub mod sort;
pub mod streaming;
pub mod task;
mod task_conf;

pub use run::run;
