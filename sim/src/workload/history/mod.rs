//! Reads job histories (docs/research/history-format.md). The result contains the real jobs as a
//! workload to replay, and their figures.
//!
//! The work of a map is the duration of the attempts whose output was used. The work of a reduce is
//! its duration after the end of the maps, or after its launch if that was later. The input is one
//! file per job, a folder of such files, or several histories in one file.

mod calibrate;
mod facts;
mod filter;
mod job;
mod min_shares;
mod records;

use super::{
    Workload,
    trace::{SizeLimit, Source, TraceError, check_task_times, check_time_range, describe_json_error},
};
use crate::{BEGINNING, Outcome};
pub use calibrate::Calibrated;
use facts::{FactFigures, FactLog};
use filter::HistoryFilter;
pub use filter::{PolicyUse, SkippedJob, skipped_jobs};
pub use job::Disturbances;
use job::{FinishedJob, Job};
pub use min_shares::UnknownShares;
pub use mrcore::history::{Environment, TrackerRow};
use mrcore::{
    PerPhase, Span, Time,
    history::{Head, Record, check_format},
    ids::JobId,
    job::{JobSpec, Program},
    metrics::Metrics,
};
use records::Trackers;
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    sync::Arc,
};

/// The real run of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Real {
    /// ID of the job.
    pub id: JobId,
    /// Name of the job.
    pub name: String,
    /// Time from submission to end.
    pub makespan: Span,
    /// Whether the job succeeded, and its history has all tasks.
    pub succeeded: bool,
}

/// Contents of job histories.
#[derive(Debug, Default)]
pub struct History {
    /// The jobs, to be replayed.
    pub workload: Workload,
    /// How each job really ran, in the order of `workload`.
    pub real: Vec<Real>,
    /// Program of each job, in the order of `workload`.
    pub programs: Vec<Program>,
    /// CPU seconds of the splits and reduces of each job, in the order of `workload`; 0 if the
    /// history does not record them.
    pub cpu_s: Vec<PerPhase<Vec<f64>>>,
    /// What disturbed the tasks of each job, in the order of `workload`.
    pub disturbances: Vec<Disturbances>,
    /// Names of the trackers that ran attempts.
    pub trackers: Vec<String>,
    /// The largest number of concurrent attempts of one tracker, which is a lower bound of its
    /// slots.
    pub slots: PerPhase<u32>,
    /// Policy and parameters at the submission of the last job, and the trackers that had registered
    /// at any submission. Older histories do not contain them.
    pub environment: Option<Environment>,
    /// Lost trackers: index of the tracker, when it was lost, and when it registered again. Times
    /// are relative to the first submission.
    pub losses: Vec<(u32, Span, Option<Span>)>,
    /// Figures of all jobs, relative to the first submission.
    pub metrics: Metrics,
    /// Why `metrics` has no dissatisfaction and fairness; `None` if it has them.
    pub unknown_shares: Option<UnknownShares>,
    /// Jobs that cannot be replayed.
    pub skipped_jobs: Vec<SkippedJob>,
    /// The policies that jobs were submitted to.
    pub policies: Vec<PolicyUse>,
    /// Whether the jobs were simulated. Their programs have the names of their groups, and their times
    /// follow from the profiles or the trace that the simulator was given.
    pub is_simulated: bool,
}

/// State while the files of a history are read.
#[derive(Default)]
struct HistoryReader {
    trackers: Trackers,
    facts: FactLog,
    jobs: Vec<FinishedJob>,
    size_limit: SizeLimit,
    first_submission: Option<Time>,
    filter: HistoryFilter,
    is_simulated: bool,
}

/// Reads a history file, or every `.jsonl` file of a folder.
pub fn read(path: &Path) -> Result<History, TraceError> {
    let mut reading = HistoryReader::default();
    for file in &files(path)? {
        let (source, counted) = Source::open(file)?;
        reading.read_lines(&source, BufReader::new(counted))?;
    }
    reading.into_history(path)
}

/// Reads the texts of histories, oldest job first. Each has a name for error messages.
pub fn read_texts(texts: &[(String, String)]) -> Result<History, TraceError> {
    let mut reading = HistoryReader::default();
    for (name, text) in texts {
        reading.read_lines(&Source::named(name), text.as_bytes())?;
    }
    reading.into_history(Path::new("the history"))
}

/// Returns the figures of a job from the text of its history. The job may be active.
pub fn figures(name: &str, text: &str) -> Result<Metrics, TraceError> {
    let mut reading = HistoryReader::default();
    reading.read_lines(&Source::named(name), text.as_bytes())?;
    Ok(reading.facts.into_figures(Vec::new()).metrics)
}

impl HistoryReader {
    /// Combines the jobs that were read to a history. `path` is for error messages.
    fn into_history(self, path: &Path) -> Result<History, TraceError> {
        let HistoryReader {
            trackers,
            facts,
            mut jobs,
            filter: HistoryFilter { skipped_jobs: others, policies, .. },
            is_simulated,
            ..
        } = self;
        if jobs.is_empty() {
            let path = path.display().to_string();
            return Err(match skipped_jobs(&others) {
                Some(what) => TraceError::NoneEnded { path, what },
                None => TraceError::Empty { path },
            });
        }
        jobs.sort_by_key(|job| job.at);
        let first = jobs[0].at;
        let by_number = trackers.names();
        let mut names = by_number.clone();
        names.sort();
        let number = |name: &String| names.iter().position(|known| known == name).map(|at| at as u32);
        let minimum = min_shares::min_shares(jobs.iter().map(|job| job.plan.user.as_str()), &policies);
        let unknown_shares = minimum.as_ref().err().copied();
        let FactFigures { metrics, slots, lost } = facts.into_figures(minimum.unwrap_or_default());
        let lost = lost.into_iter().filter_map(|(tracker, at, back)| {
            let node = number(by_number.get(tracker.0 as usize)?)?;
            Some((node, at.since(BEGINNING), back.map(|back| back.since(BEGINNING))))
        });
        let losses = lost.collect();
        let mut history = History {
            slots,
            metrics,
            unknown_shares,
            environment: trackers.into_environment(),
            losses,
            is_simulated,
            ..History::default()
        };
        for FinishedJob { at, mut plan, real, hosts, program, cpu_s, disturbances } in jobs {
            history.disturbances.push(disturbances);
            plan.at = at.since(first);
            plan.hosts = hosts.iter().map(|hosts| hosts.iter().filter_map(number).collect()).collect();
            history.workload.jobs.push(plan);
            history.real.push(real);
            history.programs.push(program);
            history.cpu_s.push(cpu_s);
        }
        history.workload.name =
            path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        (history.trackers, history.skipped_jobs, history.policies) = (names, others, policies);
        Ok(history)
    }
}

/// The end of the name of a folder with histories of a run that has not ended.
pub const PARTIAL: &str = "partial";

/// Returns the file, or the files of the folder with the oldest job first. Job IDs increase with
/// time.
fn files(path: &Path) -> Result<Vec<PathBuf>, TraceError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    if path.extension().is_some_and(|extension| extension == PARTIAL) {
        return Err(TraceError::Partial { path: path.display().to_string() });
    }
    let unreadable = |source| TraceError::Unreadable { path: path.display().to_string(), source };
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        if file.extension().is_some_and(|extension| extension == "jsonl") {
            files.push(file);
        }
    }
    let number = |file: &PathBuf| file.file_stem()?.to_str()?.parse::<JobId>().ok();
    files.sort_by_key(|file| (number(file), file.clone()));
    Ok(files)
}

impl HistoryReader {
    /// Reads the lines of one source.
    fn read_lines(&mut self, source: &Source, lines: impl BufRead) -> Result<(), TraceError> {
        let (mut current, mut is_passed_over): (Option<Job>, bool) = (None, false);
        let mut line = 0;
        for text in lines.lines() {
            line += 1;
            let text = text.map_err(|error| source.unreadable(line, error))?;
            if text.trim().is_empty() {
                continue;
            }
            let value: Value = serde_json::from_str(&text)
                .map_err(|error| source.damaged(line, describe_json_error(&error)))?;
            if value.get("format").is_some() {
                self.end_job(current.take()).map_err(|what| source.bad(line - 1, what))?;
                current = self.start_job(value).map_err(|what| source.bad(line, what))?;
                is_passed_over = current.is_none();
                continue;
            }
            let Some(job) = &mut current else {
                if is_passed_over {
                    continue;
                }
                let what = "a fact without a job: there is no line with `format` before it";
                return Err(source.damaged(line, what));
            };
            let record: Record<Value> =
                serde_json::from_value(value).map_err(|error| source.damaged(line, error.to_string()))?;
            let read = self.read_fact(job, record);
            read.map_err(|what| source.damaged(line, format!("{}: {what}", job.id)))?;
        }
        self.end_job(current).map_err(|what| source.bad(line, what))
    }

    /// Ends the history of a job.
    fn end_job(&mut self, job: Option<Job>) -> Result<(), String> {
        let Some(job) = job else { return Ok(()) };
        self.filter.end(&job, self.trackers.environment.as_ref());
        if let Some(finished) = job.finish() {
            check_task_times(&finished.plan).map_err(|what| format!("{}: {what}", finished.real.id))?;
            self.jobs.push(finished);
        }
        Ok(())
    }

    /// Starts the history of a job from its first line. Returns `None` for a job that was read
    /// before.
    fn start_job(&mut self, value: Value) -> Result<Option<Job>, String> {
        let head: Head = serde_json::from_value(value).map_err(|error| error.to_string())?;
        check_format(head.format)?;
        let id = head.job;
        if !self.filter.begin(&head.cluster, id)? {
            return Ok(None);
        }
        let submitted = Time(head.at_us);
        self.is_simulated |= head.made_by.is_some();
        let first = *self.first_submission.get_or_insert(submitted);
        check_time_range(seconds_between(submitted, first))?;
        // Checked before memory is allocated for the tasks: a run of splits is one record.
        let maps: f64 = head.spec.splits.iter().map(|run| f64::from(run.count)).sum();
        self.size_limit.add_job(maps + f64::from(head.spec.reduces))?;
        let spec = Arc::new(JobSpec::from(head.spec));
        let job = Job::new(id, submitted, spec);
        self.trackers.reset();
        self.facts.add(shift_time(job.submitted, first), records::submission_fact(id, &job.spec));
        Ok(Some(job))
    }

    /// Reads a line with a fact of a job.
    fn read_fact(&mut self, job: &mut Job, line: Record<Value>) -> Result<(), String> {
        let at = Time(line.at_us);
        if at < job.last_line_at {
            return Err(format!("at_us {} is before {} of the line above", at.0, job.last_line_at.0));
        }
        if check_time_range(seconds_between(at, job.submitted)).is_err() {
            return Err(format!("at_us {} is more than ten years after {}", at.0, job.submitted.0));
        }
        job.last_line_at = at;
        let first = self.first_submission.unwrap_or(job.submitted);
        for entry in self.trackers.facts(job.id, at, line.fact)? {
            job.record_fact(at, &entry.fact);
            self.facts.add(shift_time(at, first), entry.fact);
        }
        Ok(())
    }
}

/// Returns the seconds between two times.
fn seconds_between(one: Time, other: Time) -> f64 {
    Span(one.0.abs_diff(other.0)).as_secs_f64()
}

/// Returns a time relative to the first submission, which is at the beginning as in simulated runs.
fn shift_time(at: Time, first: Time) -> Time {
    BEGINNING + at.since(first)
}

impl History {
    /// Returns the trackers whose racks and slots are known.
    pub fn described_trackers(&self) -> &[TrackerRow] {
        self.environment.as_ref().map_or(&[], |environment| &environment.trackers)
    }

    /// Says what is guessed about the cluster; `None` if the history describes every tracker.
    pub fn guessed_cluster(&self) -> Option<String> {
        let guessed = self.trackers.len().saturating_sub(self.described_trackers().len());
        let all = crate::count(self.trackers.len(), "node");
        (guessed > 0).then(|| {
            format!(
                "the history does not describe {guessed} of {all} (they registered after the last \
                 submission, or the history is of an older version): each has the largest number of \
                 slots that one node used, and nodes that ran nothing are missing: compare them with \
                 your cluster, and give --nodes, --map-slots and --reduce-slots"
            )
        })
    }

    /// Returns what the history is of.
    pub fn run_name(&self) -> &'static str {
        if self.is_simulated { "the simulated run of the history" } else { "the real run" }
    }

    /// Returns the outcome as if the history had been simulated under this policy. Moves the
    /// figures out of the history.
    pub fn outcome(&mut self, scheduler: &str) -> Outcome {
        let metrics = std::mem::take(&mut self.metrics);
        let ended = metrics.jobs().filter_map(|(_, job)| job.ended);
        let unfinished = metrics.jobs().filter(|(_, job)| job.ended.is_none()).count();
        Outcome {
            scheduler: scheduler.to_owned(),
            end: ended.max().unwrap_or(BEGINNING),
            metrics,
            hash: 0,
            events: 0,
            facts: 0,
            task_times: Vec::new(),
            unfinished,
            unsubmitted: Vec::new(),
            stopped: false,
            stall: None,
            fault_times: Vec::new(),
            cases: crate::Cases::default(),
            deciding: schedulers::timed::DecisionStats::default(),
        }
    }
}

#[cfg(test)]
mod tests;
