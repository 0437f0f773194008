//! The settings of a job that the engine knows.

use crate::{
    conf::Conf,
    error::TaskError,
    job::{InputFormat, Job},
};

/// Read once, when a task starts; nonsense is an error that names the setting.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `map.output.compress`: lz4 where it pays.
    pub compress: bool,
    /// `sort.memory`: for the sort buffer or merges, instead of what the task is given.
    pub sort_memory: Option<u64>,
    /// `merge.factor`: runs merged at a time.
    pub merge_factor: usize,
    /// `fetch.parallel`: fetches at a time.
    pub fetch_parallel: usize,
    /// `pace.map`: bytes a second.
    pub pace_map: Option<u64>,
    /// `pace.reduce`: bytes a second.
    pub pace_reduce: Option<u64>,
    /// `record.bytes.max`.
    pub record_bytes_max: u64,
    /// `skip.bad.records`: those that cannot be read, or that the mapper returns an error for, are counted and passed over.
    pub skip_bad_records: bool,
    /// `input.format`, else the job's.
    pub input: InputFormat,
}

impl Settings {
    /// From a job's settings.
    pub fn new(_job: &Job, _conf: &Conf) -> Result<Self, TaskError> {
        todo!()
    }
}
