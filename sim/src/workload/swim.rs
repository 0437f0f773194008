//! Reads SWIM traces: jobs of Facebook as tab-separated lines.
//!
//! Columns: ID, submission (s), gap (s), map input, shuffle, reduce output (bytes). Up to three more
//! columns with paths may follow, which are ignored. There is no header. Bytes are scaled by the
//! ratio of cluster sizes; arrival times are not scaled. A job has one map per block of its input,
//! but a map-only job that writes more than it reads has one map per block of its output. A job has
//! one reduce per GiB that its reduces read and write, up to a limit.
//!
//! The trace has no task times. We use those of the Facebook job class (COSHH, table 4) with the
//! most similar bytes. A small job takes 20 s, independent of its input.

use super::{
    JobPlan, MapPlan, ReducePlan, Workload, seconds,
    trace::{SizeLimit, Source, TraceError, check_task_times, check_time_range},
};
use mrcore::job::Priority;
use std::{
    io::{BufRead, BufReader},
    path::Path,
};

/// How to scale a trace to a cluster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scaling {
    /// Factor for all bytes, usually the number of nodes of the cluster divided by that of the
    /// trace.
    pub bytes: f64,
    /// Bytes of a block.
    pub block: u64,
    /// Maximum number of reduces of a job.
    pub reduces_max: u32,
}

/// Returns the number of nodes of the cluster that a trace was recorded on, from the name of its
/// file: 3,000 for the traces of 2010, 600 for those of 2009 and all others.
pub fn nodes_of(path: &Path) -> u32 {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with("FB-2010") { 3000 } else { 600 }
}

/// A class of jobs with its rates.
struct Class {
    name: &'static str,
    /// Seconds of every map in addition to those for its bytes.
    fixed_s: f64,
    map_mbps: f64,
    reduce_mbps: f64,
}

/// Loads and small jobs, which have no shuffle.
const LOAD: Class = Class { name: "load", fixed_s: 15.0, map_mbps: 5.445, reduce_mbps: 1.0 };
/// Jobs whose map output is much smaller than the input.
const AGGREGATE: Class = Class { name: "aggregate", fixed_s: 5.0, map_mbps: 2.204, reduce_mbps: 1.0 };
/// Jobs whose map output is about as large as the input.
const TRANSFORM: Class = Class { name: "transform", fixed_s: 5.0, map_mbps: 0.6631, reduce_mbps: 2.331 };
/// Jobs whose map output is larger than the input.
const EXPAND: Class = Class { name: "expand", fixed_s: 5.0, map_mbps: 0.3884, reduce_mbps: 2.566 };

fn class(input: f64, shuffle: f64) -> &'static Class {
    match shuffle / input.max(1.0) {
        _ if shuffle == 0.0 => &LOAD,
        ratio if ratio < 0.3 => &AGGREGATE,
        ratio if ratio <= 1.5 || input < 1e9 => &TRANSFORM,
        _ => &EXPAND,
    }
}

/// Reads a trace.
pub fn read(path: &Path, scaling: Scaling) -> Result<Workload, TraceError> {
    let (source, counted) = Source::open(path)?;
    let mut reader = BufReader::new(counted);
    let (mut text, mut line, mut before_s) = (String::new(), 0, 0.0_f64);
    let (mut jobs, mut size_limit) = (Vec::new(), SizeLimit::default());
    loop {
        text.clear();
        line += 1;
        let read = reader.read_line(&mut text).map_err(|error| source.unreadable(line, error))?;
        if read == 0 {
            break;
        }
        let row = text.trim_end_matches(['\n', '\r']);
        if row.is_empty() {
            continue;
        }
        let row = Row::parse(row).map_err(|what| source.damaged(line, what))?;
        if row.submit_s < before_s {
            let what = format!("submitted at {} s, before the job above it ({before_s} s)", row.submit_s);
            return Err(source.damaged(line, what));
        }
        check_time_range(row.submit_s).map_err(|what| source.bad(line, what))?;
        before_s = row.submit_s;
        let tasks = row.maps(scaling) + row.reduces(scaling);
        size_limit.add_job(tasks).map_err(|what| source.bad(line, what))?;
        let plan = row.plan(scaling);
        check_task_times(&plan).map_err(|what| source.bad(line, what))?;
        jobs.push(plan);
    }
    if jobs.is_empty() {
        return Err(source.empty());
    }
    let name = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(Workload { name, jobs })
}

struct Row<'a> {
    id: &'a str,
    submit_s: f64,
    input: f64,
    shuffle: f64,
    output: f64,
}

impl<'a> Row<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        let columns: Vec<&str> = text.split('\t').collect();
        let (6..=9, &[id, submit, gap, input, shuffle, output, ..]) = (columns.len(), &columns[..]) else {
            return Err(format!(
                "{} columns, not 6 to 9 (id, submit s, gap s, map input, shuffle, reduce output, paths; tab-separated)",
                columns.len()
            ));
        };
        let number = |name: &str, text: &str| match text.trim().parse::<f64>() {
            Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
            Ok(value) if value < 0.0 => Err(format!("{name} is {text}: below 0")),
            Ok(value) if value.is_infinite() => Err(format!("{name} is {text}: too large")),
            _ => Err(format!("{name} is {text:?}: not a number")),
        };
        number("gap", gap)?;
        Ok(Self {
            id,
            submit_s: number("submission", submit)?,
            input: number("map input", input)?,
            shuffle: number("shuffle", shuffle)?,
            output: number("reduce output", output)?,
        })
    }

    /// Returns the scaled bytes that determine the number of maps.
    fn size(&self, scaling: Scaling) -> f64 {
        scaling.bytes * if self.shuffle == 0.0 { self.input.max(self.output) } else { self.input }
    }

    fn maps(&self, scaling: Scaling) -> f64 {
        (self.size(scaling) / scaling.block as f64).ceil().max(1.0)
    }

    fn reduces(&self, scaling: Scaling) -> f64 {
        let wanted = ((self.shuffle + self.output) * scaling.bytes / f64::from(1 << 30)).round().max(1.0);
        if self.shuffle == 0.0 { 0.0 } else { wanted.min(f64::from(scaling.reduces_max.max(1))) }
    }

    fn plan(&self, scaling: Scaling) -> JobPlan {
        let class = class(self.input, self.shuffle);
        let [input, shuffle, output] =
            [self.input, self.shuffle, self.output].map(|bytes| bytes * scaling.bytes);
        let count = self.maps(scaling);
        let each = self.size(scaling) / count;
        let map = MapPlan {
            bytes: (input / count) as u64,
            work_s: (class.fixed_s + each / (class.map_mbps * 1e6)) as f32,
            divisible: true,
        };
        let reduces = self.reduces(scaling) as usize;
        let reduce = ReducePlan { share: 1.0 / reduces.max(1) as f32, factor: 1.0, fixed_s: 0.0 };
        JobPlan {
            at: seconds(self.submit_s),
            name: self.id.to_owned(),
            group: class.name.to_owned(),
            // The trace has no users.
            user: "user1".into(),
            queue: "default".into(),
            priority: Priority::Normal,
            maps: vec![map; count as usize],
            hosts: Vec::new(),
            reduces: vec![reduce; reduces],
            map_out: shuffle / input.max(count),
            reduce_rate: class.reduce_mbps * 1e6,
            merge_rate: 40e6,
            reduce_out: output / shuffle.max(1.0),
            startup_time: seconds(1.0),
            slow_start: 0.05,
            speculation: true,
            split_slow: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const SCALING: Scaling = Scaling { bytes: 1.0, block: 128 << 20, reduces_max: 100 };

    fn parse(text: &str) -> Result<Workload, TraceError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.tsv");
        fs::write(&path, text).expect("a file");
        read(&path, SCALING)
    }

    #[test]
    fn rows_are_converted_to_jobs() {
        let workload = parse(
            "job0\t49\t49\t740773\t2339561\t627471\tinputPath1\t\t\njob1\t60\t11\t300000000\t0\t900000000\n",
        );
        let jobs = workload.expect("it reads").jobs;
        assert_eq!((jobs[0].maps.len(), jobs[0].reduces.len()), (1, 1));
        assert!((jobs[0].map_out * jobs[0].maps[0].bytes as f64 - 2_339_561.0).abs() < 5.0);
        assert_eq!(
            (jobs[1].maps.len(), jobs[1].reduces.len()),
            (7, 0),
            "the number of maps must follow from the output"
        );
    }

    #[test]
    fn error_of_a_bad_trace_names_the_line() {
        let good = "job0\t49\t49\t740773\t2339561\t627471\n";
        let cases = [
            (format!("{good}job1\t60\t11\t3\t4\n"), ":2: 5 columns, not 6 to 9"),
            (format!("{good}job1\t60\t11\t3\t4\t5\ta\tb\tc\td\n"), ":2: 10 columns, not 6 to 9"),
            (format!("{good}{good}job1\t60\t11\t-3\t4\t5\n"), ":3: map input is -3: below 0"),
            (
                format!("{good}job1\t12\t11\t3\t4\t5\n"),
                ":2: submitted at 12 s, before the job above it (49 s)",
            ),
            (format!("{good}job1\tnan\t11\t3\t4\t5\n"), ":2: submission is \"nan\": not a number"),
            (format!("{good}job1\tnoon\t11\t3\t4\t5\n"), ":2: submission is \"noon\": not a number"),
            (
                format!("{good}job1\t9e18\t11\t3\t4\t5\n"),
                ":2: submitted 9000000000000000000 s after the beginning",
            ),
            (
                format!("{good}job1\t60\t11\t1e18\t4\t5\n"),
                ":2: a job of 7450580598 tasks: the maximum is 1000000",
            ),
            (format!("{good}job1\t60\t11\t3\t4e18\t5\n"), ":2: a task takes "),
            (good.repeat(1_000_001), ":1000001: 1000001 jobs and 2000002 tasks up to here"),
            (String::new(), "no jobs in it"),
        ];
        for (text, expected) in cases {
            let error = parse(&text).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error} should contain {expected}");
        }
        assert!(read(Path::new("/nowhere/trace.tsv"), SCALING).is_err());
    }
}
