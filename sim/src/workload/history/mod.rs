//! Our own job histories (docs/research/history-format.md): what really ran, as a workload to run again, and the figures of it.
//!
//! A map's work is the time that its attempts which count took, a reduce's that from when its maps were done (or it
//! was launched, if that was later). One file a job, a folder of them, or several one after the other in a file.

mod calibrate;
mod facts;
mod filter;
mod job;
mod min_shares;
mod records;

use super::{
    Workload,
    trace::{SizeLimit, Source, TraceError, check_task_times, check_time_range},
};
use crate::Outcome;
pub use calibrate::Calibrated;
use facts::{Counted, FactLog};
use filter::HistoryFilter;
pub use filter::{Ran, SkippedJob, skipped_jobs};
use job::{Finished, Job};
pub use min_shares::UnknownShares;
pub use mrcore::job::Split;
use mrcore::{PerPhase, Span, Time, ids::JobId, job::JobSpec, metrics::Metrics};
use records::{Head, Record, Trackers};
pub use records::{SplitRun, TrackerRow, Under, expand};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    sync::Arc,
};

/// When the first job came, as histories are told: as in a simulated world.
const BEGINNING: Time = Time(1_000_000);

/// How a job really went.
#[derive(Debug, Clone, PartialEq)]
pub struct Real {
    /// Which it was.
    pub id: JobId,
    /// Its name.
    pub name: String,
    /// From submission to end.
    pub makespan: Span,
    /// Whether it did what it was to do.
    pub succeeded: bool,
}

/// What histories tell.
#[derive(Debug, Default)]
pub struct History {
    /// The jobs, to be run again.
    pub workload: Workload,
    /// How each went, in the same order.
    pub real: Vec<Real>,
    /// What each ran, in the same order.
    pub programs: Vec<String>,
    /// Processor seconds of each one's splits and reduces, in the same order; 0 where a history does not say.
    pub processor: Vec<PerPhase<Vec<f64>>>,
    /// Trackers that ran something, by name.
    pub trackers: Vec<String>,
    /// The most attempts that one of them ran at a time: it had at least so many slots.
    pub slots: PerPhase<u32>,
    /// What the last job was submitted to: the policy, its parameters and the cluster. Older histories do not say.
    pub under: Option<Under>,
    /// Trackers that were lost, by number: when, and when they were there again, counted from when the first job came.
    pub losses: Vec<(u32, Span, Option<Span>)>,
    /// The figures of all jobs, counted from when the first one came.
    pub metrics: Metrics,
    /// Why dissatisfaction and fairness are not among them, if they are not.
    pub unknown_shares: Option<UnknownShares>,
    /// Jobs that cannot be run again.
    pub skipped_jobs: Vec<SkippedJob>,
    /// The policies that jobs were submitted to.
    pub policies: Vec<Ran>,
}

/// What is gathered from all files.
#[derive(Default)]
struct Reading {
    trackers: Trackers,
    facts: FactLog,
    jobs: Vec<Finished>,
    size_limit: SizeLimit,
    first: Option<Time>,
    filter: HistoryFilter,
}

/// Reads a file, or every `.jsonl` of a folder.
pub fn read(path: &Path) -> Result<History, TraceError> {
    let mut reading = Reading::default();
    for file in &files(path)? {
        let (source, counted) = Source::open(file)?;
        reading.take(&source, BufReader::new(counted))?;
    }
    reading.end(path)
}

/// Reads texts of histories, the oldest job first, each with a name for errors.
pub fn read_texts(texts: &[(String, String)]) -> Result<History, TraceError> {
    let mut reading = Reading::default();
    for (name, text) in texts {
        reading.take(&Source::named(name), text.as_bytes())?;
    }
    reading.end(Path::new("the history"))
}

/// The figures of a job that may still run, from the text of its history.
pub fn figures(name: &str, text: &str) -> Result<Metrics, TraceError> {
    let mut reading = Reading::default();
    reading.take(&Source::named(name), text.as_bytes())?;
    Ok(reading.facts.count(Vec::new()).metrics)
}

impl Reading {
    fn end(self, path: &Path) -> Result<History, TraceError> {
        let Reading {
            trackers,
            facts,
            mut jobs,
            filter: HistoryFilter { skipped_jobs: others, policies, .. },
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
        let Counted { metrics, slots, lost } = facts.count(minimum.unwrap_or_default());
        let lost = lost.into_iter().filter_map(|(tracker, at, back)| {
            let node = number(by_number.get(tracker.0 as usize)?)?;
            Some((node, at.since(BEGINNING), back.map(|back| back.since(BEGINNING))))
        });
        let losses = lost.collect();
        let mut history =
            History { slots, metrics, unknown_shares, under: trackers.under, losses, ..History::default() };
        for Finished { at, mut plan, real, hosts, program, processor } in jobs {
            plan.at = at.since(first);
            plan.hosts = hosts.iter().map(|hosts| hosts.iter().filter_map(number).collect()).collect();
            history.workload.jobs.push(plan);
            history.real.push(real);
            history.programs.push(program);
            history.processor.push(processor);
        }
        history.workload.name =
            path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        (history.trackers, history.skipped_jobs, history.policies) = (names, others, policies);
        Ok(history)
    }
}

/// A file, or those of a folder: the oldest job first, whose numbers go up with time.
fn files(path: &Path) -> Result<Vec<PathBuf>, TraceError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
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

impl Reading {
    fn take(&mut self, source: &Source, lines: impl BufRead) -> Result<(), TraceError> {
        let (mut current, mut is_passed_over): (Option<Job>, bool) = (None, false);
        let mut line = 0;
        for text in lines.lines() {
            line += 1;
            let text = text.map_err(|error| source.unreadable(line, error))?;
            if text.trim().is_empty() {
                continue;
            }
            let value: Value =
                serde_json::from_str(&text).map_err(|error| source.bad(line, error.to_string()))?;
            if value.get("format").is_some() {
                self.close(current.take()).map_err(|what| source.bad(line - 1, what))?;
                current = self.head(value).map_err(|what| source.bad(line, what))?;
                is_passed_over = current.is_none();
                continue;
            }
            let Some(job) = &mut current else {
                if is_passed_over {
                    continue;
                }
                let what = "a fact before the job that it is of: no line with `format` above it";
                return Err(source.bad(line, what));
            };
            let facts: Record =
                serde_json::from_value(value).map_err(|error| source.bad(line, error.to_string()))?;
            self.line(job, &facts).map_err(|what| source.bad(line, format!("{}: {what}", job.id)))?;
        }
        self.close(current).map_err(|what| source.bad(line, what))
    }

    fn close(&mut self, job: Option<Job>) -> Result<(), String> {
        let Some(job) = job else { return Ok(()) };
        self.filter.end(&job, self.trackers.under.as_ref());
        if let Some(finished) = job.finish() {
            check_task_times(&finished.plan).map_err(|what| format!("{}: {what}", finished.real.id))?;
            self.jobs.push(finished);
        }
        Ok(())
    }

    /// None for a job that has been read already.
    fn head(&mut self, value: Value) -> Result<Option<Job>, String> {
        let head: Head = serde_json::from_value(value).map_err(|error| error.to_string())?;
        if !(1..=2).contains(&head.format) {
            return Err(format!("format {}: this reads format 1", head.format));
        }
        let id: JobId = head.job.parse().map_err(|error| format!("{error}"))?;
        if !self.filter.begin(&head.cluster, id)? {
            return Ok(None);
        }
        let (submitted, spec) = (Time(head.at_us), Arc::new(JobSpec::from(head.spec)));
        let first = *self.first.get_or_insert(submitted);
        check_time_range(seconds_between(submitted, first))?;
        // Before anything is made for each of them.
        self.size_limit.take(spec.splits.len() as f64 + f64::from(spec.reduces))?;
        let job = Job::new(id, submitted, spec);
        self.trackers.begin();
        self.facts.add(shifted(job.submitted, first), records::submitted(id, &job.spec));
        Ok(Some(job))
    }

    fn line(&mut self, job: &mut Job, line: &Record) -> Result<(), String> {
        let at = Time(line.at_us);
        if at < job.last {
            return Err(format!("at_us {} is before {} of the line above", at.0, job.last.0));
        }
        if check_time_range(seconds_between(at, job.submitted)).is_err() {
            return Err(format!("at_us {} is more than ten years after {}", at.0, job.submitted.0));
        }
        job.last = at;
        let first = self.first.unwrap_or(job.submitted);
        for entry in self.trackers.facts(job.id, at, line)? {
            job.take(at, &entry.fact);
            self.facts.add(shifted(at, first), entry.fact);
        }
        Ok(())
    }
}

/// Seconds between the two.
fn seconds_between(one: Time, other: Time) -> f64 {
    Span(one.0.abs_diff(other.0)).as_secs_f64()
}

fn shifted(at: Time, first: Time) -> Time {
    BEGINNING + at.since(first)
}

impl History {
    /// As if it had been simulated under this policy. The figures go with it.
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
            unfinished,
            faults: 0,
            deciding: schedulers::timed::DecisionStats::default(),
        }
    }
}

#[cfg(test)]
mod tests;
