//! The settings of a job that the engine knows.

use crate::{
    conf::Conf,
    error::TaskError,
    job::{InputFormat, Job},
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
    /// `skip.bad.records`: those that cannot be read, or that the mapper returns an error for, are counted and passed
    /// over. Not those that it panics at: what it left behind is in no known state.
    pub skip_bad_records: bool,
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
        let bytes = |key: &str, default: u64| conf.parse(key, Bytes(default)).map(|bytes| bytes.0);
        let given = |key: &str| conf.get(key).map(|_| at_least(key, 1, bytes(key, 0)?)).transpose();
        Ok(Self {
            compress: conf.parse("map.output.compress", true)?,
            sort_memory: given("sort.memory")?,
            merge_factor: at_least("merge.factor", 2, conf.parse("merge.factor", 64)?)? as usize,
            fetch_parallel: at_least("fetch.parallel", 1, conf.parse("fetch.parallel", 4)?)? as usize,
            pace_map: given("pace.map")?,
            pace_reduce: given("pace.reduce")?,
            record_bytes_max: record_bytes_max(conf)?,
            skip_bad_records: conf.parse("skip.bad.records", false)?,
            input: conf.get("input.format").map_or(Ok(job.input), input_format)?,
            total_order_splits: conf.get("total.order.splits").map(str::to_owned),
            output_replication: output_replication(conf)?,
        })
    }
}

/// `output.replication`, if it is set.
pub(crate) fn output_replication(conf: &Conf) -> Result<Option<u32>, String> {
    const KEY: &str = "output.replication";
    let Some(text) = conf.get(KEY) else { return Ok(None) };
    let wanted = || format!("{KEY} = {text:?}: write a number such as 2");
    text.parse().ok().filter(|replicas| *replicas > 0).map(Some).ok_or_else(wanted)
}

/// `record.bytes.max`: no record of a job is longer.
pub(crate) fn record_bytes_max(conf: &Conf) -> Result<u64, String> {
    const KEY: &str = "record.bytes.max";
    at_least(KEY, 1, conf.parse(KEY, Bytes(256 << 20))?.0)
}

fn at_least(key: &str, least: u64, value: u64) -> Result<u64, String> {
    if value >= least { Ok(value) } else { Err(format!("{key} = {value}: it must be at least {least}")) }
}

fn input_format(text: &str) -> Result<InputFormat, String> {
    let fixed = || {
        let (record, key) = text.strip_prefix("fixed:")?.split_once(':')?;
        Some(InputFormat::Fixed { record: record.parse().ok()?, key: key.parse().ok()? })
    };
    match text {
        "lines" => Ok(InputFormat::Lines),
        "keyvalue" => Ok(InputFormat::KeyValueLines),
        "whole" => Ok(InputFormat::WholeFile),
        _ => fixed().ok_or_else(|| {
            format!("input.format = {text:?}: write lines, keyvalue, whole or fixed:RECORD:KEY (bytes)")
        }),
    }
}
