//! The settings of a job that the engine knows.

use crate::{
    conf::Conf,
    error::TaskError,
    input::Codec,
    job::{InputFormat, Job},
    settings,
};
use daemon::Bytes;

/// Read once, when a task starts; nonsense is an error that names the setting.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// `skip.bad.records`: how many a task may skip because they cannot be read or make the mapper fail.
    pub skip_records: u64,
    /// `input.codec`.
    pub codec: Codec,
    /// `input.format`, else the job's.
    pub input: InputFormat,
    /// `total.order.splits`: the file of split keys of a job that is sorted as a whole.
    pub total_order_splits: Option<String>,
    /// `output.replication`: replicas of what the job writes, if it says so.
    pub output_replication: Option<u32>,
}

impl Settings {
    /// From a job's settings.
    pub fn new(job: &Job, conf: &Conf) -> Result<Self, TaskError> {
        settings::check_engine(conf.iter())?;
        let given = |key: &str| -> Result<Option<u64>, String> {
            conf.get(key).map(|_| conf.parse(key, Bytes(0)).map(|bytes| bytes.0)).transpose()
        };
        let skip = conf.get("skip.bad.records").unwrap_or("false").trim();
        Ok(Self {
            compress: conf.parse("map.output.compress", true)?,
            sort_memory: given("sort.memory")?,
            merge_factor: conf.parse("merge.factor", 64)?,
            fetch_parallel: conf.parse("fetch.parallel", 4)?,
            pace_map: given("pace.map")?,
            pace_reduce: given("pace.reduce")?,
            record_bytes_max: record_bytes_max(conf)?,
            skip_records: settings::skip_records(skip).unwrap_or(0),
            codec: conf.parse("input.codec", Codec::Auto)?,
            input: conf.parse("input.format", job.input)?,
            total_order_splits: conf.get("total.order.splits").map(str::to_owned),
            output_replication: output_replication(conf)?,
        })
    }
}

/// `output.replication`, if it is set.
pub(crate) fn output_replication(conf: &Conf) -> Result<Option<u32>, String> {
    const KEY: &str = "output.replication";
    conf.get(KEY).map(|_| conf.parse(KEY, 1)).transpose()
}

/// `record.bytes.max`: no record of a job is longer.
pub(crate) fn record_bytes_max(conf: &Conf) -> Result<u64, String> {
    Ok(conf.parse("record.bytes.max", Bytes(256 << 20))?.0.max(1))
}
