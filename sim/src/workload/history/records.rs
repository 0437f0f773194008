//! Converts the lines of a history back to facts, so that code for facts can process histories.
//!
//! The history of a job contains names of trackers, but not when they register or are lost.
//! Trackers are numbered as they first appear. A tracker registers with its first attempt, is lost
//! with the first attempt that ended because of a loss, and registers again with its next attempt.
//! The racks and slots of trackers, and the policy, are in the line with the environment of the
//! submission.

use mrcore::{
    Fact, PerPhase, Time, Why,
    fact::{Entry, TRACKER_LOST},
    ids::{AttemptId, Incarnation, JobId, RequestId, TrackerId},
    job::{InputPin, JobOutcome, JobSpec, Priority, Split},
    task::{AttemptResult, PreemptKind, Stage},
};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    str::FromStr,
    sync::Arc,
};

/// The format that this build reads: that of `jobtracker/src/history/record.rs`.
const FORMAT: u32 = 3;

/// Rejects a history of another format: its records have other names.
pub fn check_format(format: u32) -> Result<(), String> {
    if format == FORMAT { Ok(()) } else { Err(format!("format {format}: this build reads format {FORMAT}")) }
}

/// The first line of a history.
#[derive(Deserialize)]
pub(super) struct Head {
    pub(super) format: u32,
    #[serde(default)]
    pub(super) cluster: String,
    pub(super) job: String,
    pub(super) at_us: u64,
    pub(super) spec: Spec,
}

/// The job as submitted.
#[derive(Deserialize)]
pub(super) struct Spec {
    name: String,
    user: String,
    queue: String,
    priority: Priority,
    #[serde(default)]
    program: String,
    reduces: u32,
    slow_start: f64,
    speculation: bool,
    #[serde(default)]
    conf: BTreeMap<String, String>,
    #[serde(default)]
    hosts: Vec<String>,
    splits: Vec<SplitRun>,
}

/// Consecutive splits of one file; the range is that of the first one. Without a file or a start,
/// the splits continue where the previous ones ended.
#[derive(Debug, Deserialize)]
pub struct SplitRun {
    source: Option<String>,
    start: Option<u64>,
    end: u64,
    #[serde(default = "one")]
    count: u32,
    #[serde(default = "yes")]
    divisible: bool,
    #[serde(default)]
    hosts: Vec<usize>,
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

/// Maximum number of maps. A history with more is rejected.
const MAPS_MAX: usize = 10_000_000;

/// Expands runs to splits; `names` are the numbered hosts.
pub fn expand(runs: Vec<SplitRun>, names: &[String]) -> Vec<Split> {
    let mut splits: Vec<Split> = Vec::new();
    for SplitRun { source, start, end, count, divisible, hosts } in runs {
        let hosts: Vec<String> = hosts.into_iter().filter_map(|host| names.get(host).cloned()).collect();
        let before = splits.last();
        let source = source.or_else(|| before.map(|split| split.source.clone())).unwrap_or_default();
        let start = start.or_else(|| before.map(|split| split.end)).unwrap_or(0);
        let length = end.saturating_sub(start);
        for index in 0..u64::from(count).min((MAPS_MAX - splits.len()) as u64) {
            let start = start.saturating_add(length.saturating_mul(index));
            let end = start.saturating_add(length);
            let (source, hosts) = (source.clone(), hosts.clone());
            splits.push(Split { source, start, end, divisible, hosts, pin: InputPin::default() });
        }
    }
    splits
}

/// Every line after the first.
#[derive(Deserialize)]
pub(super) struct Record {
    pub(super) at_us: u64,
    fact: BTreeMap<String, Value>,
}

impl From<Spec> for JobSpec {
    fn from(spec: Spec) -> Self {
        let splits = expand(spec.splits, &spec.hosts);
        Self {
            name: spec.name,
            user: spec.user,
            queue: spec.queue,
            priority: spec.priority,
            program: spec.program,
            splits,
            reduces: spec.reduces,
            output: String::new(),
            slow_start: spec.slow_start,
            speculation: spec.speculation,
            attempts_max: 4,
            conf: spec.conf,
        }
    }
}

/// The trackers of a cluster, and their state at the current line.
#[derive(Debug, Default)]
pub(super) struct Trackers {
    numbers: BTreeMap<String, TrackerId>,
    joined: BTreeSet<TrackerId>,
    /// Tracker of each running attempt.
    on: BTreeMap<AttemptId, TrackerId>,
    /// Environment of the last submission, if the history contains it.
    pub(super) under: Option<Under>,
}

/// The environment of a submission: policy and cluster.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Under {
    /// Name of the policy for `schedulers::make`.
    pub policy: String,
    /// Parameters of the policy.
    pub params: BTreeMap<String, String>,
    /// Registered trackers.
    pub trackers: Vec<TrackerRow>,
}

/// A tracker with its rack and slots.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct TrackerRow {
    pub name: String,
    pub host: String,
    pub rack: String,
    pub map_slots: u32,
    pub reduce_slots: u32,
}

/// Name of the counter of CPU time.
pub(super) const CPU: &str = "CPU_MILLISECONDS";

impl Trackers {
    /// Returns the names by number.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<(&TrackerId, &String)> =
            self.numbers.iter().map(|(name, number)| (number, name)).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name.clone()).collect()
    }

    /// Resets the state: the history of another job starts at an earlier time.
    pub(super) fn begin(&mut self) {
        self.joined.clear();
        self.on.clear();
    }

    /// Returns the facts of a line; empty if the line is not needed here.
    pub(super) fn facts(&mut self, job: JobId, at: Time, line: &Record) -> Result<Vec<Entry>, String> {
        let mut facts = Vec::new();
        for (kind, value) in &line.fact {
            if kind == "submitted-to" {
                let under: Under =
                    serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
                // Trackers that never ran an attempt get a number too.
                for place in &under.trackers {
                    self.number(&place.name);
                }
                self.under = Some(under);
                continue;
            }
            let Some(fact) = self.fact(job, Fields { kind, value })? else { continue };
            facts.extend(self.around(&fact));
            facts.push(fact);
        }
        Ok(facts.into_iter().map(|fact| Entry { at, fact }).collect())
    }

    /// Returns the registration or loss of a tracker that this fact implies.
    fn around(&mut self, fact: &Fact) -> Option<Fact> {
        match fact {
            Fact::AttemptLaunched { attempt, tracker, .. } => {
                self.on.insert(*attempt, *tracker);
                let name = self.numbers.iter().find(|(_, number)| *number == tracker)?.0.clone();
                let known = self.under.iter().flat_map(|under| &under.trackers).find(|at| at.name == name);
                let (host, rack) =
                    known.map_or((name.clone(), String::new()), |at| (at.host.clone(), at.rack.clone()));
                self.joined.insert(*tracker).then(|| Fact::TrackerJoined {
                    tracker: *tracker,
                    host,
                    name,
                    incarnation: Incarnation(1),
                    rack,
                    shuffle_addr: String::new(),
                    logs_addr: String::new(),
                    slots: PerPhase::default(),
                })
            }
            Fact::AttemptKilled { attempt, why, .. } if why == TRACKER_LOST => {
                let tracker = *self.on.get(attempt)?;
                let why = why.clone();
                self.joined.remove(&tracker).then_some(Fact::TrackerLost { tracker, why })
            }
            _ => None,
        }
    }

    fn number(&mut self, name: &str) -> TrackerId {
        let next = TrackerId(self.numbers.len() as u32);
        *self.numbers.entry(name.to_owned()).or_insert(next)
    }

    fn fact(&mut self, job: JobId, fields: Fields<'_>) -> Result<Option<Fact>, String> {
        // CPU time is the only counter that is used here.
        let cpu = fields.value["counters"][CPU].as_u64().map(|used| (CPU.to_owned(), used));
        let result = || AttemptResult {
            bytes_out: fields.number("bytes_out"),
            counters: cpu.clone().into_iter().collect(),
            ..AttemptResult::default()
        };
        Ok(Some(match fields.kind {
            "attempt-launched" => Fact::AttemptLaunched {
                attempt: fields.attempt("attempt")?,
                tracker: self.number(fields.text("tracker").ok_or("a launch without a tracker")?),
                speculative: fields.flag("speculative"),
                resumed_from: fields
                    .text("resumed_from")
                    .map(|_| fields.attempt("resumed_from"))
                    .transpose()?,
                why: Why::default(),
            },
            "preemption-requested" => Fact::PreemptionRequested {
                attempt: fields.attempt("attempt")?,
                kind: fields.one_of("kind", PreemptKind::Kill)?,
                why: fields.words("why"),
                fault: fields.flag("fault"),
                hold: fields.flag("hold"),
            },
            "attempt-succeeded" => {
                Fact::AttemptSucceeded { attempt: fields.attempt("attempt")?, result: result() }
            }
            "map-split" => Fact::MapSplit {
                attempt: fields.attempt("attempt")?,
                position: fields.number("position"),
                result: result(),
            },
            "attempt-paused" => Fact::AttemptPaused {
                attempt: fields.attempt("attempt")?,
                stage: fields.one_of("stage", Stage::Reduce)?,
                bytes: fields.number("bytes"),
                bytes_in: fields.number("bytes_in"),
            },
            "attempt-failed" => {
                Fact::AttemptFailed { attempt: fields.attempt("attempt")?, error: fields.words("error") }
            }
            "attempt-killed" => Fact::AttemptKilled {
                attempt: fields.attempt("attempt")?,
                why: fields.words("why"),
                bytes_in: fields.number("bytes_in"),
            },
            "map-output-lost" => Fact::MapOutputLost {
                attempt: fields.attempt("attempt")?,
                why: fields.words("why"),
                unfetched: fields.flag("unfetched"),
            },
            "preemption-refused" => Fact::PreemptionRefused {
                attempt: fields.attempt("attempt")?,
                refusals: u32::try_from(fields.number("refusals")).unwrap_or(u32::MAX),
                why: fields.words("why"),
            },
            "task-released" => Fact::TaskReleased { task: fields.id("task", "a task")? },
            "checkpoint-lost" => {
                Fact::CheckpointLost { attempt: fields.attempt("attempt")?, why: fields.words("why") }
            }
            "job-ended" => Fact::JobEnded { job, outcome: fields.outcome() },
            _ => return Ok(None),
        }))
    }
}

/// Returns the fact of a submission.
pub(super) fn submitted(job: JobId, spec: &Arc<JobSpec>) -> Fact {
    Fact::JobSubmitted { job, request: RequestId(u128::from(job.0)), spec: spec.clone() }
}

#[derive(Clone, Copy)]
struct Fields<'a> {
    kind: &'a str,
    value: &'a Value,
}

impl Fields<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        self.value.get(key).and_then(Value::as_str)
    }

    fn words(&self, key: &str) -> String {
        self.text(key).unwrap_or_default().to_owned()
    }

    fn number(&self, key: &str) -> u64 {
        self.value.get(key).and_then(Value::as_u64).unwrap_or(0)
    }

    fn flag(&self, key: &str) -> bool {
        self.value.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    fn attempt(&self, key: &str) -> Result<AttemptId, String> {
        self.id(key, "an attempt")
    }

    fn id<T: FromStr<Err: Display>>(&self, key: &str, what: &str) -> Result<T, String> {
        let name = self.text(key).ok_or_else(|| format!("{} without {what}", self.kind))?;
        name.parse().map_err(|error| format!("{}: {error}", self.kind))
    }

    fn outcome(&self) -> JobOutcome {
        match self.text("outcome") {
            Some("failed") => JobOutcome::Failed(self.words("why")),
            Some("killed") => JobOutcome::Killed(self.words("why")),
            _ => JobOutcome::Succeeded,
        }
    }

    fn one_of<T: serde::de::DeserializeOwned>(&self, key: &str, usual: T) -> Result<T, String> {
        let Some(value) = self.value.get(key) else { return Ok(usual) };
        serde_json::from_value(value.clone()).map_err(|error| format!("{}: {key}: {error}", self.kind))
    }
}
