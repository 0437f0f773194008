//! The settings of a job that the engine reads.

use mrlib_api::{Conf, InputFormat, Job, TaskError, codec::Codec, settings};
use types::quantity::Bytes;

/// The settings of a job that the engine reads, parsed once when a task starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `map.output.compress`: compress blocks with lz4 if that makes them smaller.
    pub compress: bool,
    /// `sort.memory`: memory for sorting and merging, instead of the memory of the task.
    pub sort_memory: Option<u64>,
    /// `merge.factor`: maximum number of runs in one merge.
    pub merge_factor: usize,
    /// `fetch.parallel`: number of parallel fetches.
    pub fetch_parallel: usize,
    /// `pace.map`: maximum read rate of a map, in bytes per second.
    pub pace_map: Option<u64>,
    /// `pace.reduce`: maximum read rate of a reduce, in bytes per second.
    pub pace_reduce: Option<u64>,
    /// `record.bytes.max`: the maximum length of a record.
    pub record_bytes_max: u64,
    /// `skip.bad.records`: how many records a task may skip because they cannot be read or make the
    /// mapper fail.
    pub skip_records: u64,
    /// `input.codec`: how input files are decoded.
    pub codec: Codec,
    /// `input.format`, or the format of the job.
    pub input: InputFormat,
    /// `total.order.splits`: the file with the split keys of a job with total order.
    pub total_order_splits: Option<String>,
    /// `output.replication`: number of replicas of the output, if set.
    pub output_replication: Option<u32>,
}

impl Settings {
    /// Parses the settings of a job. Errors name the setting.
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
            total_order_splits: conf.get(settings::SPLIT_KEYS).map(str::to_owned),
            output_replication: output_replication(conf)?,
        })
    }
}

/// Returns `output.replication`, if it is set.
pub(crate) fn output_replication(conf: &Conf) -> Result<Option<u32>, String> {
    const KEY: &str = "output.replication";
    conf.get(KEY).map(|_| conf.parse(KEY, 1)).transpose()
}

/// Returns `record.bytes.max`, the maximum length of a record.
pub(crate) fn record_bytes_max(conf: &Conf) -> Result<u64, String> {
    Ok(conf.parse("record.bytes.max", Bytes(256 << 20))?.0.max(1))
}
