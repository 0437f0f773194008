//! One fact as one line of JSON, for users and for the simulator. docs/research/history-format.md
//! documents the format.
//!
//! These types define the format. They are separate from the types of the core, so that the core
//! can change while old histories stay readable.

use crate::spec;
use mrcore::{
    Fact, PerPhase, Time, Why,
    fact::Entry,
    ids::{JobId, TrackerId},
    job::{JobOutcome, JobSpec, Split},
    task::{AttemptResult, PreemptKind, Stage},
};
use serde::Serialize;
use std::collections::BTreeMap;

/// Incremented when a reader of the older format would misunderstand the newer one.
const FORMAT: u32 = 3;

/// Trackers by ID.
pub(super) type Names = BTreeMap<TrackerId, KnownTracker>;

/// A tracker as the history shows it.
pub(super) struct KnownTracker {
    pub(super) name: String,
    pub(super) host: String,
    pub(super) rack: String,
    pub(super) slots: PerPhase<u32>,
    /// Whether the tracker is lost and has not registered again.
    pub(super) is_lost: bool,
}

/// The scheduling policy and its parameters as configured.
#[derive(Debug, Clone, Default)]
pub(crate) struct Policy {
    pub(crate) name: String,
    pub(crate) params: BTreeMap<String, String>,
}

/// The first line of a history.
#[derive(Serialize)]
struct Head<'a> {
    format: u32,
    cluster: &'a str,
    job: String,
    at_us: u64,
    spec: Spec<'a>,
}

#[derive(Serialize)]
struct Spec<'a> {
    name: &'a str,
    user: &'a str,
    queue: &'a str,
    priority: &'static str,
    program: &'a str,
    inputs: Vec<String>,
    files: Vec<String>,
    output: &'a str,
    reduces: u32,
    slow_start: f64,
    speculation: bool,
    attempts_max: u32,
    conf: BTreeMap<&'a str, &'a str>,
    /// Hosts that the splits refer to by index.
    hosts: Vec<&'a str>,
    splits: Vec<Run<'a>>,
}

/// Consecutive splits of one file with the same length and the same hosts, which keeps the history
/// of a job with many maps short. The range is that of the first split. A field that is left out
/// has the value of the run before: the same file, and a start where that run ended.
#[derive(Serialize)]
struct Run<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<u64>,
    end: u64,
    #[serde(skip_serializing_if = "is_one")]
    count: u32,
    #[serde(skip_serializing_if = "is_true")]
    divisible: bool,
    hosts: Vec<u32>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_one(count: &u32) -> bool {
    *count == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_true(value: &bool) -> bool {
    *value
}

/// Groups splits into runs. Returns the hosts and the runs.
fn runs(splits: &[Split]) -> (Vec<&str>, Vec<Run<'_>>) {
    let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
    let mut hosts = Vec::new();
    let mut runs: Vec<Run<'_>> = Vec::new();
    let mut before: Option<&Split> = None;
    for split in splits {
        let number = |host| {
            *numbers.entry(host).or_insert_with(|| {
                hosts.push(host);
                hosts.len() as u32 - 1
            })
        };
        let on: Vec<u32> = split.hosts.iter().map(String::as_str).map(number).collect();
        let same_file = before.is_some_and(|before| before.source == split.source);
        let follows = same_file && before.is_some_and(|before| before.end == split.start);
        let length = |split: &Split| split.end.saturating_sub(split.start);
        let as_long = before.is_some_and(|before| length(before) == length(split));
        match runs.last_mut() {
            Some(run) if follows && as_long && (run.divisible, &run.hosts) == (split.divisible, &on) => {
                run.count += 1;
            }
            _ => runs.push(Run {
                source: (!same_file).then_some(split.source.as_str()),
                start: (!follows).then_some(split.start),
                end: split.end,
                count: 1,
                divisible: split.divisible,
                hosts: on,
            }),
        }
        before = Some(split);
    }
    (hosts, runs)
}

impl<'a> Spec<'a> {
    fn of(spec: &'a JobSpec) -> Self {
        let (hosts, splits) = runs(&spec.splits);
        Self {
            name: &spec.name,
            user: &spec.user,
            queue: &spec.queue,
            priority: spec::priority_name(spec.priority),
            program: &spec.program,
            inputs: spec::inputs(spec),
            files: spec::files(spec),
            output: &spec.output,
            reduces: spec.reduces,
            slow_start: spec.slow_start,
            speculation: spec.speculation,
            attempts_max: spec.attempts_max,
            conf: spec::settings(spec).map(|(key, value)| (key.as_str(), value.as_str())).collect(),
            hosts,
            splits,
        }
    }
}

/// Every other line of a history.
#[derive(Serialize)]
struct Record<'a> {
    at_us: u64,
    fact: RecordFact<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum RecordFact<'a> {
    SubmittedTo {
        policy: &'a str,
        params: &'a BTreeMap<String, String>,
        trackers: Vec<TrackerRecord<'a>>,
    },
    JobCommitting {},
    JobEnded {
        outcome: &'static str,
        why: &'a str,
    },
    AttemptLaunched {
        attempt: String,
        tracker: &'a str,
        host: &'a str,
        speculative: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        resumed_from: Option<String>,
        why: ReasonRecord<'a>,
    },
    PreemptionRequested {
        attempt: String,
        kind: PreemptKind,
        why: &'a str,
        fault: bool,
        hold: bool,
    },
    MapSplit {
        attempt: String,
        position: u64,
        bytes_out: u64,
        counters: BTreeMap<&'a str, u64>,
        pieces: &'a [String],
    },
    AttemptPaused {
        attempt: String,
        stage: Stage,
        bytes: u64,
        bytes_in: u64,
    },
    PreemptionRefused {
        attempt: String,
        refusals: u32,
        why: &'a str,
    },
    TaskReleased {
        task: String,
    },
    CheckpointLost {
        attempt: String,
        why: &'a str,
    },
    AttemptSucceeded {
        attempt: String,
        bytes_out: u64,
        counters: BTreeMap<&'a str, u64>,
        pieces: &'a [String],
    },
    AttemptFailed {
        attempt: String,
        error: &'a str,
    },
    AttemptKilled {
        attempt: String,
        why: &'a str,
        bytes_in: u64,
    },
    MapOutputLost {
        attempt: String,
        why: &'a str,
        unfetched: bool,
    },
    MapOutputCopied {
        attempt: String,
        tracker: &'a str,
        bytes: u64,
    },
    CheckpointCopied {
        attempt: String,
        tracker: &'a str,
        bytes: u64,
    },
    TrackerBlacklisted {
        tracker: &'a str,
    },
}

#[derive(Serialize)]
struct TrackerRecord<'a> {
    name: &'a str,
    host: &'a str,
    rack: &'a str,
    map_slots: u32,
    reduce_slots: u32,
}

#[derive(Serialize)]
struct ReasonRecord<'a> {
    rule: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    numbers: BTreeMap<&'a str, f64>,
}

impl<'a> ReasonRecord<'a> {
    fn of(why: &'a Why) -> Self {
        Self {
            rule: &why.rule,
            numbers: why.numbers.iter().map(|(name, value)| (name.as_ref(), *value)).collect(),
        }
    }
}

fn outcome(outcome: &JobOutcome) -> RecordFact<'_> {
    let (outcome, why) = match outcome {
        JobOutcome::Succeeded => ("succeeded", ""),
        JobOutcome::Failed(why) => ("failed", why.as_str()),
        JobOutcome::Killed(why) => ("killed", why.as_str()),
    };
    RecordFact::JobEnded { outcome, why }
}

fn counters(result: &AttemptResult) -> BTreeMap<&str, u64> {
    result.counters.iter().map(|(name, value)| (name.as_str(), *value)).collect()
}

fn split(attempt: String, position: u64, result: &AttemptResult) -> RecordFact<'_> {
    let (counters, AttemptResult { bytes_out, pieces, .. }) = (counters(result), result);
    RecordFact::MapSplit { attempt, position, bytes_out: *bytes_out, counters, pieces }
}

fn succeeded(attempt: String, result: &AttemptResult) -> RecordFact<'_> {
    let counters = counters(result);
    RecordFact::AttemptSucceeded { attempt, bytes_out: result.bytes_out, counters, pieces: &result.pieces }
}

/// The first line of a history.
fn head(cluster: &str, job: JobId, at: Time, spec: &JobSpec) -> String {
    json(&Head { format: FORMAT, cluster, job: job.to_string(), at_us: at.0, spec: Spec::of(spec) })
}

/// Identifies the line of [`submitted_to`].
pub(super) const SUBMITTED_TO: &str = r#""fact":{"submitted-to""#;

/// The second line: the policy and the trackers at the time of the submission.
pub(super) fn submitted_to(at: Time, policy: &Policy, names: &Names) -> String {
    let not_lost = names.values().filter(|tracker| !tracker.is_lost);
    let trackers = not_lost.map(|KnownTracker { name, host, rack, slots, .. }| TrackerRecord {
        name,
        host,
        rack,
        map_slots: slots.map,
        reduce_slots: slots.reduce,
    });
    let Policy { name, params } = policy;
    let fact = RecordFact::SubmittedTo { policy: name, params, trackers: trackers.collect() };
    json(&Record { at_us: at.0, fact })
}

/// The line of a fact, with its newline. None if the fact is not part of the history of a job.
pub(super) fn render(cluster: &str, names: &Names, entry: &Entry) -> Option<String> {
    let Time(at_us) = entry.at;
    let named = |id: &TrackerId| names.get(id).map_or(("?", "?"), |tracker| (&tracker.name, &tracker.host));
    let fact = match &entry.fact {
        Fact::JobSubmitted { job, spec, .. } => return Some(head(cluster, *job, entry.at, spec)),
        Fact::JobCommitting { .. } => RecordFact::JobCommitting {},
        Fact::JobEnded { outcome: kind, .. } => outcome(kind),
        Fact::AttemptLaunched { attempt, tracker, speculative, resumed_from, why } => {
            let (tracker, host) = named(tracker);
            let (attempt, why) = (attempt.to_string(), ReasonRecord::of(why));
            let (speculative, resumed_from) = (*speculative, resumed_from.map(|paused| paused.to_string()));
            RecordFact::AttemptLaunched { attempt, tracker, host, speculative, resumed_from, why }
        }
        Fact::PreemptionRequested { attempt, kind, why, fault, hold } => {
            let (attempt, kind, fault, hold) = (attempt.to_string(), *kind, *fault, *hold);
            RecordFact::PreemptionRequested { attempt, kind, why, fault, hold }
        }
        Fact::MapSplit { attempt, position, result } => split(attempt.to_string(), *position, result),
        Fact::AttemptPaused { attempt, stage, bytes, bytes_in } => {
            let (attempt, stage) = (attempt.to_string(), *stage);
            RecordFact::AttemptPaused { attempt, stage, bytes: *bytes, bytes_in: *bytes_in }
        }
        Fact::PreemptionRefused { attempt, refusals, why } => {
            RecordFact::PreemptionRefused { attempt: attempt.to_string(), refusals: *refusals, why }
        }
        Fact::TaskReleased { task } => RecordFact::TaskReleased { task: task.to_string() },
        Fact::CheckpointLost { attempt, why } => {
            RecordFact::CheckpointLost { attempt: attempt.to_string(), why }
        }
        Fact::AttemptSucceeded { attempt, result } => succeeded(attempt.to_string(), result),
        Fact::AttemptFailed { attempt, error } => {
            RecordFact::AttemptFailed { attempt: attempt.to_string(), error }
        }
        Fact::AttemptKilled { attempt, why, bytes_in } => {
            RecordFact::AttemptKilled { attempt: attempt.to_string(), why, bytes_in: *bytes_in }
        }
        Fact::MapOutputLost { attempt, why, unfetched } => {
            RecordFact::MapOutputLost { attempt: attempt.to_string(), why, unfetched: *unfetched }
        }
        Fact::MapOutputCopied { attempt, tracker, bytes } => {
            let (attempt, tracker) = (attempt.to_string(), named(tracker).0);
            RecordFact::MapOutputCopied { attempt, tracker, bytes: *bytes }
        }
        Fact::CheckpointCopied { attempt, tracker, bytes } => {
            let (attempt, tracker) = (attempt.to_string(), named(tracker).0);
            RecordFact::CheckpointCopied { attempt, tracker, bytes: *bytes }
        }
        Fact::TrackerBlacklisted { tracker, .. } => {
            RecordFact::TrackerBlacklisted { tracker: named(tracker).0 }
        }
        Fact::JobTrackerStarted { .. }
        | Fact::IdsSkipped { .. }
        | Fact::TrackerJoined { .. }
        | Fact::TrackerSuspected { .. }
        | Fact::TrackerRecovered { .. }
        | Fact::TrackerLost { .. }
        | Fact::MapOutputMoved { .. }
        | Fact::TrackerDraining { .. }
        | Fact::DrainCancelled { .. }
        | Fact::TrackerForgotten { .. }
        | Fact::PreemptionDeadlineSet { .. }
        | Fact::JobForgotten { .. } => return None,
    };
    Some(json(&Record { at_us, fact }))
}

fn json(line: &impl Serialize) -> String {
    let mut text = serde_json::to_string(line).expect("plain data");
    text.push('\n');
    text
}
