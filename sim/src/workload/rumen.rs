//! Reads Rumen traces: job histories of Hadoop, as a sequence of JSON objects.
//!
//! Traces contain the times and bytes of every attempt. The time of a task is that of its
//! successful attempt. If no attempt succeeded, it is that of the last attempt, because failed work
//! is load too. A value of -1 means unknown; unknown values are taken from the other tasks of the
//! job. Jobs without tasks are skipped. The trace is read as a stream, with one job in memory at a
//! time.

use super::{
    JobPlan, MapPlan, ReducePlan, Workload, seconds,
    trace::{SizeLimit, Source, TraceError, check_task_times, check_time_range, describe_json_error},
};
use mrcore::{job::Priority, metrics::stats::quantile};
use serde::Deserialize;
use std::{collections::BTreeMap, path::Path};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Job {
    #[serde(rename = "jobID")]
    id: String,
    user: Option<String>,
    queue: Option<String>,
    priority: Option<String>,
    submit_time: i64,
    finish_time: i64,
    map_tasks: Option<Vec<Task>>,
    reduce_tasks: Option<Vec<Task>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Task {
    #[serde(rename = "taskID")]
    id: String,
    attempts: Option<Vec<Attempt>>,
    preferred_locations: Option<Vec<Location>>,
    #[serde(default = "unknown")]
    input_bytes: i64,
    #[serde(default = "unknown")]
    output_bytes: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attempt {
    result: Option<String>,
    start_time: i64,
    finish_time: i64,
    #[serde(default = "unknown")]
    sort_finished: i64,
    #[serde(default = "unknown")]
    hdfs_bytes_read: i64,
    #[serde(default = "unknown")]
    map_input_bytes: i64,
}

#[derive(Deserialize)]
struct Location {
    layers: Option<Vec<String>>,
}

fn unknown() -> i64 {
    -1
}

/// Index of each machine, in order of appearance.
type Hosts = BTreeMap<String, u32>;

/// Contents of a trace.
#[derive(Debug)]
pub struct Trace {
    /// The jobs of the trace.
    pub workload: Workload,
    /// Number of machines in the trace.
    pub hosts: usize,
    /// IDs of jobs without tasks, for example jobs that were killed before they had any.
    pub without_tasks: Vec<String>,
}

/// Reads a trace.
pub fn read(path: &Path) -> Result<Trace, TraceError> {
    let (source, counted) = Source::open(path)?;
    let stream = serde_json::Deserializer::from_reader(counted).into_iter::<Job>();
    let (mut jobs, mut hosts, mut size_limit) = (Vec::new(), Hosts::new(), SizeLimit::default());
    let mut without_tasks = Vec::new();
    for job in stream {
        let job = job.map_err(|error| {
            if error.is_io() {
                source.unreadable(error.line() as u64, error.into())
            } else {
                source.damaged(error.line() as u64, describe_json_error(&error))
            }
        })?;
        let tasks = [&job.map_tasks, &job.reduce_tasks].map(|tasks| tasks.as_ref().map_or(0, Vec::len));
        let named = |what: String| format!("{}: {what}", job.id);
        let limited = size_limit.add_job((tasks[0] + tasks[1]) as f64);
        limited.map_err(|what| source.error_here(named(what)))?;
        let plan = plan(&job, &mut hosts).map_err(|what| source.damaged(source.line_here(), named(what)))?;
        check_task_times(&plan.1).map_err(|what| source.error_here(named(what)))?;
        if tasks == [0, 0] {
            without_tasks.push(job.id);
            continue;
        }
        jobs.push(plan);
    }
    let first = jobs.iter().map(|(submitted, _)| *submitted).min().ok_or_else(|| source.empty())?;
    let last = jobs.iter().map(|(submitted, _)| *submitted).max().unwrap_or(first);
    check_time_range((last - first) as f64 / 1e3).map_err(|what| source.error_here(what))?;
    let at = |(submitted, mut job): (i64, JobPlan)| {
        job.at = seconds((submitted - first) as f64 / 1e3);
        job
    };
    let name = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    // Hadoop writes a job when it ends, so the file is not in the order of submission.
    let workload = Workload { name, jobs: jobs.into_iter().map(at).collect() };
    Ok(Trace { workload: workload.sorted(), hosts: hosts.len(), without_tasks })
}

fn plan(job: &Job, hosts: &mut Hosts) -> Result<(i64, JobPlan), String> {
    if job.submit_time < 0 {
        return Err(format!("the job has the negative submitTime {}", job.submit_time));
    }
    if job.finish_time < job.submit_time {
        return Err(format!(
            "the job finished at {}, before it was submitted at {}",
            job.finish_time, job.submit_time
        ));
    }
    let (maps, reduces) =
        (job.map_tasks.as_deref().unwrap_or(&[]), job.reduce_tasks.as_deref().unwrap_or(&[]));
    for task in maps.iter().chain(reduces) {
        task.check()?;
    }
    let usual = |tasks: &[Task]| {
        let known: Vec<f64> = tasks.iter().filter_map(Task::work_s).collect();
        if known.is_empty() { 10.0 } else { quantile(&known, 0.5) }
    };
    let usual_s = (usual(maps), usual(reduces));
    let map = |task: &Task| MapPlan {
        bytes: task.bytes().unwrap_or(1),
        work_s: task.work_s().unwrap_or(usual_s.0) as f32,
        divisible: true,
    };
    let plans: Vec<MapPlan> = maps.iter().map(map).collect();
    let sum =
        |tasks: &[Task], of: fn(&Task) -> i64| tasks.iter().map(|task| of(task).max(0) as f64).sum::<f64>();
    let read: f64 = plans.iter().map(|map| map.bytes as f64).sum();
    let shuffled = sum(reduces, |task| task.input_bytes).max(sum(maps, |task| task.output_bytes));
    let even = 1.0 / reduces.len().max(1) as f64;
    let fetched = sum(reduces, |task| task.input_bytes);
    let reduce = |task: &Task| ReducePlan {
        share: if fetched > 0.0 { task.input_bytes.max(0) as f64 / fetched } else { even } as f32,
        factor: 0.0,
        fixed_s: task.work_s().unwrap_or(usual_s.1) as f32,
    };
    let user = job.user.clone().unwrap_or_else(|| "unknown".into());
    let plan = JobPlan {
        at: seconds(0.0),
        name: job.id.clone(),
        group: user.clone(),
        user,
        queue: job.queue.clone().unwrap_or_else(|| "default".into()),
        priority: priority(job.priority.as_deref()),
        hosts: maps.iter().map(|task| task.hosts(hosts)).collect(),
        maps: plans,
        reduces: reduces.iter().map(reduce).collect(),
        map_out: if reduces.is_empty() { 0.0 } else { shuffled / read.max(1.0) },
        reduce_rate: 1e9,
        merge_rate: 1e9,
        reduce_out: 1.0,
        startup_time: seconds(0.0),
        slow_start: 0.05,
        speculation: true,
        split_slow: true,
    };
    Ok((job.submit_time, plan))
}

fn priority(text: Option<&str>) -> Priority {
    match text {
        Some("VERY_HIGH") => Priority::VeryHigh,
        Some("HIGH") => Priority::High,
        Some("LOW") => Priority::Low,
        Some("VERY_LOW") => Priority::VeryLow,
        _ => Priority::Normal,
    }
}

impl Task {
    fn check(&self) -> Result<(), String> {
        for bytes in [self.input_bytes, self.output_bytes] {
            if bytes < -1 {
                return Err(format!("{}: {bytes} bytes; only -1 (unknown) may be below 0", self.id));
            }
        }
        let backwards =
            |attempt: &&Attempt| attempt.finish_time >= 0 && attempt.finish_time < attempt.start_time;
        match self.attempts.iter().flatten().find(backwards) {
            Some(attempt) => Err(format!(
                "{}: an attempt finished at {}, before it started at {}",
                self.id, attempt.finish_time, attempt.start_time
            )),
            None => Ok(()),
        }
    }

    /// Returns the attempt whose values are used: the one that succeeded, else the last.
    fn counted_attempt(&self) -> Option<&Attempt> {
        let attempts = self.attempts.as_deref().unwrap_or(&[]);
        let succeeded = attempts.iter().find(|attempt| attempt.result.as_deref() == Some("SUCCESS"));
        succeeded.or(attempts.last())
    }

    /// Returns the duration of a map, or of a reduce after its shuffle and sort, in seconds, if
    /// known.
    fn work_s(&self) -> Option<f64> {
        let attempt = self.counted_attempt()?;
        let from = attempt.sort_finished.max(attempt.start_time);
        (attempt.start_time >= 0 && attempt.finish_time >= from)
            .then(|| (attempt.finish_time - from) as f64 / 1e3)
    }

    /// Returns the input bytes, if known.
    fn bytes(&self) -> Option<u64> {
        let attempt = self.counted_attempt();
        let read = attempt.map_or([-1; 2], |attempt| [attempt.hdfs_bytes_read, attempt.map_input_bytes]);
        [self.input_bytes, read[0], read[1]].into_iter().find(|bytes| *bytes > 0).map(|bytes| bytes as u64)
    }

    /// Returns the machines with the input, and adds new names to `known`.
    fn hosts(&self, known: &mut Hosts) -> Vec<u32> {
        let names =
            self.preferred_locations.iter().flatten().filter_map(|place| place.layers.as_ref()?.last());
        let number = |name: &String| {
            let next = known.len() as u32;
            *known.entry(name.clone()).or_insert(next)
        };
        names.map(number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const JOB: &str = r#"{"jobID": "job_1", "user": "ann", "submitTime": 1000, "finishTime": 9000,
 "mapTasks": [{"taskID": "m0", "inputBytes": 100, "outputBytes": 50, "preferredLocations": [{"layers": ["r", "h1"]}],
  "attempts": [{"result": "FAILED", "startTime": 1000, "finishTime": 1500}, {"result": "SUCCESS", "startTime": 2000, "finishTime": 4000}]},
  {"taskID": "m1", "inputBytes": -1, "outputBytes": -1, "attempts": []}],
 "reduceTasks": [{"taskID": "r0", "inputBytes": 50, "outputBytes": 5,
  "attempts": [{"result": "SUCCESS", "startTime": 3000, "finishTime": 8000, "sortFinished": 7000}]}]}
"#;

    fn parse(text: &str) -> Result<Trace, TraceError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.json");
        fs::write(&path, text).expect("a file");
        read(&path)
    }

    #[test]
    fn task_times_come_from_successful_attempts_or_from_other_tasks() {
        let later = JOB.replace("job_1", "job_2").replace("\"submitTime\": 1000", "\"submitTime\": 500");
        let killed = r#"{"jobID": "job_3", "submitTime": 500, "finishTime": 550, "outcome": "KILLED"}"#;
        let Trace { workload, hosts, without_tasks } =
            parse(&format!("{JOB}{later}{killed}")).expect("it reads");
        assert_eq!((hosts, without_tasks, workload.jobs.len()), (1, vec!["job_3".to_owned()], 2));
        assert_eq!(workload.jobs[0].name, "job_2", "in order of submission");
        let job = &workload.jobs[1];
        assert_eq!(job.at, mrcore::Span::millis(500));
        assert_eq!(job.maps, [100, 1].map(|bytes| MapPlan { bytes, work_s: 2.0, divisible: true }));
        assert_eq!((job.reduces[0].fixed_s, job.reduces[0].share), (1.0, 1.0));
        assert!((job.map_out - 50.0 / 101.0).abs() < 1e-9);
    }

    #[test]
    fn error_of_a_bad_trace_names_the_job_or_line() {
        let cases = [
            (format!("{JOB}{}", JOB.replace("\"submitTime\": 1000,", "")), "submitTime"),
            (JOB.replace("\"inputBytes\": 100", "\"inputBytes\": -100"), "m0: -100 bytes"),
            (
                JOB.replace("\"finishTime\": 4000", "\"finishTime\": 40"),
                "an attempt finished at 40, before it started at 2000",
            ),
            (
                JOB.replace("\"finishTime\": 9000", "\"finishTime\": 9"),
                "finished at 9, before it was submitted at 1000",
            ),
            // Times in microseconds, for a map and for a reduce, and an impossible number of bytes.
            (
                JOB.replace("\"finishTime\": 4000", "\"finishTime\": 1200000000000000"),
                "job_1: a task takes 1",
            ),
            (
                JOB.replace("\"finishTime\": 8000", "\"finishTime\": 1200000000000000"),
                "(ten years); check the units",
            ),
            (
                JOB.replace("\"inputBytes\": 100", "\"inputBytes\": 1000000000000000000"),
                "(ten years); check the units",
            ),
            (JOB.replace("1000,", "99999999999999999999999,"), ":1: a number is too large at column "),
            (String::new(), "no jobs in it"),
            (format!("{JOB}{{"), ":7: EOF while parsing an object at column "),
            (format!("{JOB}{{"), "; the file is damaged, not complete or of another format: get it again"),
        ];
        for (text, expected) in cases {
            let error = parse(&text).map(|_| ()).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error} should contain {expected}");
        }
    }
}
