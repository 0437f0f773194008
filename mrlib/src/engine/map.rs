//! Runs a map.

use super::{TaskIo, TaskOutcome};
use crate::{conf::Conf, error::TaskError, job::Job};
use std::path::PathBuf;

/// A map to run.
#[derive(Debug, Clone)]
pub struct MapTask {
    /// The file that is read.
    pub source: String,
    /// Its records that start in `start..end`.
    pub start: u64,
    /// See `start`.
    pub end: u64,
    /// The whole file, whatever `end` says (gzip, whole-file records).
    pub whole: bool,
    /// How many reduces there are; 0: map only.
    pub reduces: u32,
    /// Where the map output goes (the index beside it); not used by a map-only job.
    pub map_output: PathBuf,
    /// The job's settings.
    pub conf: Conf,
}

/// Runs it to the end of its range.
pub fn run_map(_job: &Job, _task: &MapTask, _io: &mut dyn TaskIo) -> Result<TaskOutcome, TaskError> {
    todo!()
}
