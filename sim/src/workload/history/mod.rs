//! Our own job histories (docs/history.md): what really ran, as a workload to run again, and the figures of it.
//!
//! A map's work is the time that its attempts which count took, a reduce's that from when its maps were done (or it
//! was launched, if that was later). One file a job, a folder of them, or several one after the other in a file.

mod calibrate;
mod heed;
mod lines;
mod promised;
mod told;

use super::{
    JobPlan, MapPlan, ReducePlan, Workload, seconds,
    trace::{Room, Source, TraceError},
};
use crate::Outcome;
pub use calibrate::Calibrated;
use heed::Heed;
pub use heed::{LeftOut, Ran, left_out};
use lines::{Head, Line, Trackers};
pub use lines::{Place, Under};
use mrcore::{
    Fact, PerPhase, Phase, Span, Time,
    ids::{AttemptId, JobId},
    job::{JobOutcome, JobSpec},
    metrics::{Metrics, group},
};
pub use promised::Unsaid;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    sync::Arc,
};
use told::{Counted, Told};

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
    pub unsaid: Option<Unsaid>,
    /// Jobs that cannot be run again.
    pub left_out: Vec<LeftOut>,
    /// The policies that jobs were submitted to.
    pub policies: Vec<Ran>,
}

/// One job as it is read.
struct Job {
    id: JobId,
    submitted: Time,
    spec: Arc<JobSpec>,
    launched: BTreeMap<AttemptId, Time>,
    /// The split of each map.
    roots: Vec<u32>,
    work_s: Vec<f64>,
    reduce_s: Vec<f64>,
    processor: PerPhase<Vec<f64>>,
    maps_left: usize,
    maps_done: Option<Time>,
    bytes_out: f64,
    reduced_bytes: f64,
    ended: Option<Time>,
    succeeded: bool,
    last: Time,
}

/// A job that is over.
struct Finished {
    at: Time,
    plan: JobPlan,
    real: Real,
    /// Who has the input of each map.
    hosts: Vec<Vec<String>>,
    program: String,
    processor: PerPhase<Vec<f64>>,
}

/// What is gathered from all files.
#[derive(Default)]
struct Reading {
    trackers: Trackers,
    told: Told,
    jobs: Vec<Finished>,
    room: Room,
    first: Option<Time>,
    heed: Heed,
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
    Ok(reading.told.count(Vec::new()).metrics)
}

impl Reading {
    fn end(self, path: &Path) -> Result<History, TraceError> {
        let Reading { trackers, told, mut jobs, heed: Heed { left_out: others, policies, .. }, .. } = self;
        if jobs.is_empty() {
            let path = path.display().to_string();
            return Err(match left_out(&others) {
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
        let promised = promised::promises(jobs.iter().map(|job| job.plan.user.as_str()), &policies);
        let unsaid = promised.as_ref().err().copied();
        let Counted { metrics, slots, lost } = told.count(promised.unwrap_or_default());
        let lost = lost.into_iter().filter_map(|(tracker, at, back)| {
            let node = number(by_number.get(tracker.0 as usize)?)?;
            Some((node, at.since(BEGINNING), back.map(|back| back.since(BEGINNING))))
        });
        let losses = lost.collect();
        let mut history =
            History { slots, metrics, unsaid, under: trackers.under, losses, ..History::default() };
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
        (history.trackers, history.left_out, history.policies) = (names, others, policies);
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
        for (number, text) in lines.lines().enumerate() {
            let line = number as u64 + 1;
            let text = text.map_err(|error| source.unreadable(line, error))?;
            if text.trim().is_empty() {
                continue;
            }
            let value: Value =
                serde_json::from_str(&text).map_err(|error| source.bad(line, error.to_string()))?;
            if value.get("format").is_some() {
                self.close(current.take());
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
            let told: Line =
                serde_json::from_value(value).map_err(|error| source.bad(line, error.to_string()))?;
            self.line(job, &told).map_err(|what| source.bad(line, format!("{}: {what}", job.id)))?;
        }
        self.close(current);
        Ok(())
    }

    fn close(&mut self, job: Option<Job>) {
        let Some(job) = job else { return };
        self.heed.end(&job, self.trackers.under.as_ref());
        self.jobs.extend(job.finish());
    }

    /// None for a job that has been read already.
    fn head(&mut self, value: Value) -> Result<Option<Job>, String> {
        let head: Head = serde_json::from_value(value).map_err(|error| error.to_string())?;
        if head.format != 1 {
            return Err(format!("format {}: this reads format 1", head.format));
        }
        let id: JobId = head.job.parse().map_err(|error| format!("{error}"))?;
        if !self.heed.begin(&head.cluster, id)? {
            return Ok(None);
        }
        let job = Job::new(id, Time(head.at_us), Arc::new(head.spec.into()));
        self.room.take(job.spec.splits.len() as f64 + f64::from(job.spec.reduces))?;
        self.trackers.begin();
        let first = *self.first.get_or_insert(job.submitted);
        self.told.add(shifted(job.submitted, first), lines::submitted(id, &job.spec));
        Ok(Some(job))
    }

    fn line(&mut self, job: &mut Job, line: &Line) -> Result<(), String> {
        let at = Time(line.at_us);
        if at < job.last {
            return Err(format!("at_us {} is before {} of the line above", at.0, job.last.0));
        }
        job.last = at;
        let first = self.first.unwrap_or(job.submitted);
        for entry in self.trackers.facts(job.id, at, line)? {
            job.take(at, &entry.fact);
            self.told.add(shifted(at, first), entry.fact);
        }
        Ok(())
    }
}

fn shifted(at: Time, first: Time) -> Time {
    BEGINNING + at.since(first)
}

impl Job {
    fn new(id: JobId, submitted: Time, spec: Arc<JobSpec>) -> Self {
        let (maps, reduces) = (spec.splits.len(), spec.reduces as usize);
        Self {
            id,
            submitted,
            launched: BTreeMap::new(),
            roots: (0..maps as u32).collect(),
            work_s: vec![0.0; maps],
            reduce_s: vec![0.0; reduces],
            processor: PerPhase { map: vec![0.0; maps], reduce: vec![0.0; reduces] },
            maps_left: maps,
            maps_done: (maps == 0).then_some(submitted),
            bytes_out: 0.0,
            reduced_bytes: 0.0,
            ended: None,
            succeeded: false,
            last: submitted,
            spec,
        }
    }

    fn take(&mut self, at: Time, fact: &Fact) {
        match fact {
            Fact::AttemptLaunched { attempt, .. } => drop(self.launched.insert(*attempt, at)),
            Fact::AttemptSucceeded { attempt, result } => {
                self.used(*attempt, &result.counters);
                self.counted(at, *attempt, result.bytes_out, false);
            }
            Fact::MapSplit { attempt, result, .. } => {
                self.used(*attempt, &result.counters);
                self.counted(at, *attempt, result.bytes_out, true);
            }
            Fact::AttemptPaused { attempt, .. } => self.paused(at, *attempt),
            Fact::AttemptFailed { attempt, .. } | Fact::AttemptKilled { attempt, .. } => {
                self.launched.remove(attempt);
            }
            Fact::MapOutputLost { attempt, .. } => {
                self.maps_left += 1;
                self.maps_done = None;
                if let Some(root) = self.roots.get(attempt.task.index as usize) {
                    self.work_s[*root as usize] = 0.0;
                }
            }
            Fact::JobEnded { outcome, .. } => {
                (self.ended, self.succeeded) = (Some(at), *outcome == JobOutcome::Succeeded);
            }
            _ => {}
        }
    }

    fn used(&mut self, id: AttemptId, counters: &[(String, u64)]) {
        let index = id.task.index as usize;
        let at = match id.phase() {
            Phase::Map => self.roots.get(index).map_or(index, |root| *root as usize),
            Phase::Reduce => index,
        };
        let used = counters.iter().find(|(name, _)| name == lines::CPU);
        if let (Some((_, used)), Some(sum)) = (used, self.processor[id.phase()].get_mut(at)) {
            *sum += *used as f64 / 1e3;
        }
    }

    fn counted(&mut self, at: Time, id: AttemptId, bytes: u64, split: bool) {
        let Some(launched) = self.launched.remove(&id) else { return };
        let index = id.task.index as usize;
        match id.phase() {
            Phase::Map => {
                self.bytes_out += bytes as f64;
                let root = self.roots.get(index).copied().unwrap_or(0);
                if let Some(work) = self.work_s.get_mut(root as usize) {
                    *work += at.since(launched).as_secs_f64();
                }
                if split {
                    self.roots.push(root);
                } else {
                    self.maps_left = self.maps_left.saturating_sub(1);
                }
                if self.maps_left == 0 {
                    self.maps_done = Some(at);
                }
            }
            Phase::Reduce => {
                self.reduced_bytes += bytes as f64;
                self.reduced(at, launched, index);
            }
        }
    }

    fn paused(&mut self, at: Time, id: AttemptId) {
        if let Some(launched) = self.launched.remove(&id) {
            self.reduced(at, launched, id.task.index as usize);
        }
    }

    /// Time after the maps is the reduce's own; before, it waited for them.
    fn reduced(&mut self, at: Time, launched: Time, index: usize) {
        if let (Some(done), Some(work)) = (self.maps_done, self.reduce_s.get_mut(index)) {
            *work += at.since(launched.max(done)).as_secs_f64();
        }
    }

    fn finish(self) -> Option<Finished> {
        let ended = self.ended?;
        let JobSpec { name, user, queue, priority, slow_start, speculation, splits, program, .. } =
            self.spec.as_ref();
        let read: f64 = splits.iter().map(|split| (split.end - split.start) as f64).sum();
        let maps = splits.iter().zip(&self.work_s);
        let share = 1.0 / self.reduce_s.len().max(1) as f32;
        let plan = JobPlan {
            at: Span(0),
            group: group(&self.spec).to_owned(),
            name: name.clone(),
            user: user.clone(),
            queue: queue.clone(),
            priority: *priority,
            maps: maps
                .map(|(split, work)| MapPlan { bytes: split.end - split.start, work_s: *work as f32 })
                .collect(),
            hosts: Vec::new(),
            reduces: self
                .reduce_s
                .iter()
                .map(|work| ReducePlan { share, factor: 0.0, fixed_s: *work as f32 })
                .collect(),
            map_out: self.bytes_out / read.max(1.0),
            reduce_rate: 1e12,
            merge_rate: 1e12,
            reduce_out: if self.bytes_out > 0.0 { self.reduced_bytes / self.bytes_out } else { 1.0 },
            start: seconds(0.0),
            slow_start: *slow_start,
            speculation: *speculation,
        };
        let hosts = splits.iter().map(|split| split.hosts.clone()).collect();
        let makespan = ended.since(self.submitted);
        let real = Real { id: self.id, name: name.clone(), makespan, succeeded: self.succeeded };
        let program = program.clone();
        Some(Finished { at: self.submitted, plan, real, hosts, program, processor: self.processor })
    }
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
            deciding: schedulers::timed::Deciding::default(),
        }
    }
}

#[cfg(test)]
mod tests;
