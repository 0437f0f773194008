//! The history of a job: a line for the job as submitted, then a line for each of its facts.
//! docs/research/history-format.md describes the format.
//!
//! The JobTracker and the simulator write these types as JSON, the simulator and the clients read
//! them. They are separate from the types of the core: trackers are named, IDs are text, and splits
//! are grouped. A history contains no secrets. Readers skip fields and kinds of facts that they do
//! not know.

mod lines;

use crate::{
    fact::Fact,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::{InputPin, JobOutcome, JobSpec, Payload, Priority, Program, Split},
    task::{AttemptResult, PreemptKind, Stage},
    why::Why,
};
pub use lines::{HistoryLines, Policy};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{borrow::Cow, collections::BTreeMap};

/// The version of the format. It is incremented when a reader of the older format would
/// misunderstand the newer one.
pub const FORMAT: u32 = 3;

/// The setting of a job that says whether slow maps may be split.
const SPLIT_SLOW: &str = "speculation.split";

/// Maximum number of maps that a reader accepts. It ignores further maps.
const MAPS_MAX: usize = 10_000_000;

/// The first line of a history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The version of the format, see [`FORMAT`].
    pub format: u32,
    /// The ID of the cluster that ran the job.
    #[serde(default)]
    pub cluster: String,
    /// How the history was made, if it is of a simulated job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<String>,
    /// The ID of the job.
    #[serde(with = "text")]
    pub job: JobId,
    /// Time of submission, in microseconds since the Unix epoch.
    pub at_us: u64,
    /// The job as submitted.
    pub spec: Spec,
}

/// Refuses a history of another format, because its records have other names.
pub fn check_format(format: u32) -> Result<(), String> {
    if format == FORMAT {
        Ok(())
    } else {
        Err(format!("the history has format {format}: this build reads format {FORMAT}"))
    }
}

/// The job as submitted. The fields mean the same as those of [`JobSpec`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub name: String,
    pub user: String,
    pub queue: String,
    pub priority: Priority,
    #[serde(with = "text")]
    pub program: Program,
    #[serde(default)]
    pub inputs: Vec<String>,
    #[serde(default)]
    pub files: Vec<String>,
    #[serde(default)]
    pub output: String,
    pub reduces: u32,
    pub slow_start: f64,
    pub speculation: bool,
    /// Whether slow maps may be split. Older histories have this only as `speculation.split` in
    /// `conf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_slow: Option<bool>,
    #[serde(default = "default_attempts_max")]
    pub attempts_max: u32,
    #[serde(default)]
    pub conf: BTreeMap<String, String>,
    /// Hosts that the splits refer to by index.
    #[serde(default)]
    pub hosts: Vec<String>,
    pub splits: Vec<SplitRun>,
}

/// Consecutive splits of one file with the same length and the same hosts, which keeps the history
/// of a job with many maps short. The range is that of the first split. A field that is left out
/// follows from the previous run: the same file, and a start where that run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitRun {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
    pub end: u64,
    #[serde(default = "default_count", skip_serializing_if = "is_one")]
    pub count: u32,
    #[serde(default = "default_true", skip_serializing_if = "is_true")]
    pub divisible: bool,
    #[serde(default)]
    pub hosts: Vec<u32>,
}

/// Any line after the first. The fact is a [`HistoryFact`], or JSON for [`known_fact`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record<F> {
    /// When it happened, in microseconds since the Unix epoch.
    pub at_us: u64,
    /// What happened.
    pub fact: F,
}

/// The kinds of [`HistoryFact`].
const KINDS: [&str; 17] = [
    "submitted-to",
    "job-committing",
    "job-ended",
    "attempt-launched",
    "preemption-requested",
    "map-split",
    "attempt-paused",
    "preemption-refused",
    "task-released",
    "checkpoint-lost",
    "attempt-succeeded",
    "attempt-failed",
    "attempt-killed",
    "map-output-lost",
    "map-output-copied",
    "checkpoint-copied",
    "tracker-blacklisted",
];

/// A fact of a job. The kinds and fields mean the same as those of [`Fact`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HistoryFact {
    /// The second line of a history, after the submission. It is not a fact of the job.
    SubmittedTo(Environment),
    JobCommitting {},
    JobEnded {
        /// `succeeded`, `failed` or `killed`.
        outcome: String,
        #[serde(default)]
        why: String,
    },
    AttemptLaunched {
        #[serde(with = "text")]
        attempt: AttemptId,
        tracker: String,
        #[serde(default)]
        host: String,
        #[serde(default)]
        speculative: bool,
        #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_text")]
        resumed_from: Option<AttemptId>,
        #[serde(default)]
        why: Reason,
    },
    PreemptionRequested {
        #[serde(with = "text")]
        attempt: AttemptId,
        kind: PreemptKind,
        #[serde(default)]
        why: String,
        #[serde(default)]
        fault: bool,
        #[serde(default)]
        hold: bool,
    },
    MapSplit {
        #[serde(with = "text")]
        attempt: AttemptId,
        position: u64,
        #[serde(flatten)]
        result: ResultFields,
    },
    AttemptPaused {
        #[serde(with = "text")]
        attempt: AttemptId,
        stage: Stage,
        #[serde(default)]
        bytes: u64,
        #[serde(default)]
        bytes_in: u64,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        interrupted: bool,
    },
    PreemptionRefused {
        #[serde(with = "text")]
        attempt: AttemptId,
        #[serde(default)]
        refusals: u32,
        #[serde(default)]
        why: String,
    },
    TaskReleased {
        #[serde(with = "text")]
        task: TaskId,
    },
    CheckpointLost {
        #[serde(with = "text")]
        attempt: AttemptId,
        #[serde(default)]
        why: String,
    },
    AttemptSucceeded {
        #[serde(with = "text")]
        attempt: AttemptId,
        #[serde(flatten)]
        result: ResultFields,
    },
    AttemptFailed {
        #[serde(with = "text")]
        attempt: AttemptId,
        #[serde(default)]
        error: String,
    },
    AttemptKilled {
        #[serde(with = "text")]
        attempt: AttemptId,
        #[serde(default)]
        why: String,
        #[serde(default)]
        bytes_in: u64,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        interrupted: bool,
    },
    MapOutputLost {
        #[serde(with = "text")]
        attempt: AttemptId,
        #[serde(default)]
        why: String,
        #[serde(default)]
        unfetched: bool,
    },
    MapOutputCopied {
        #[serde(with = "text")]
        attempt: AttemptId,
        tracker: String,
        #[serde(default)]
        bytes: u64,
    },
    CheckpointCopied {
        #[serde(with = "text")]
        attempt: AttemptId,
        tracker: String,
        #[serde(default)]
        bytes: u64,
    },
    TrackerBlacklisted {
        tracker: String,
    },
}

/// The policy and the cluster at the time of a submission.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// The name of the policy.
    pub policy: String,
    /// Its parameters, as configured.
    pub params: BTreeMap<String, String>,
    /// The registered trackers.
    pub trackers: Vec<TrackerRow>,
}

/// A tracker with its rack and slots.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrackerRow {
    pub name: String,
    pub host: String,
    pub rack: String,
    pub map_slots: u32,
    pub reduce_slots: u32,
}

/// The result of an attempt, as in [`AttemptResult`], as fields of the fact.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultFields {
    #[serde(default)]
    pub bytes_out: u64,
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    #[serde(default)]
    pub pieces: Vec<String>,
}

/// The reason of a launch, as in [`Why`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    #[serde(default)]
    pub rule: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<String, f64>,
}

/// Decodes the fact of a line. Returns `None` if a newer version has written a kind of fact that
/// this version does not know.
pub fn known_fact(fact: Value) -> Result<Option<HistoryFact>, String> {
    let kind = fact.as_object().and_then(|fact| fact.keys().next()).cloned().unwrap_or_default();
    if !KINDS.contains(&kind.as_str()) {
        return Ok(None);
    }
    serde_json::from_value(fact).map(Some).map_err(|error| format!("{kind}: {error}"))
}

impl HistoryFact {
    /// Returns the history line of a fact. `named` returns the name and the host of a tracker.
    /// Returns `None` for a submission, which is in the [`Head`], and for facts that are not about
    /// a job.
    pub fn from_fact(fact: &Fact, named: &dyn Fn(TrackerId) -> (String, String)) -> Option<Self> {
        Some(match fact.clone() {
            Fact::JobCommitting { .. } => Self::JobCommitting {},
            Fact::JobEnded { outcome, .. } => {
                let (outcome, why) = outcome.name_and_reason();
                Self::JobEnded { outcome: outcome.to_owned(), why: why.to_owned() }
            }
            Fact::AttemptLaunched { attempt, tracker, speculative, resumed_from, why } => {
                let (tracker, host) = named(tracker);
                Self::AttemptLaunched { attempt, tracker, host, speculative, resumed_from, why: why.into() }
            }
            Fact::PreemptionRequested { attempt, kind, why, fault, hold } => {
                Self::PreemptionRequested { attempt, kind, why, fault, hold }
            }
            Fact::MapSplit { attempt, position, result } => {
                Self::MapSplit { attempt, position, result: result.into() }
            }
            Fact::AttemptPaused { attempt, stage, bytes, bytes_in, interrupted } => {
                Self::AttemptPaused { attempt, stage, bytes, bytes_in, interrupted }
            }
            Fact::PreemptionRefused { attempt, refusals, why } => {
                Self::PreemptionRefused { attempt, refusals, why }
            }
            Fact::TaskReleased { task } => Self::TaskReleased { task },
            Fact::CheckpointLost { attempt, why } => Self::CheckpointLost { attempt, why },
            Fact::AttemptSucceeded { attempt, result } => {
                Self::AttemptSucceeded { attempt, result: result.into() }
            }
            Fact::AttemptFailed { attempt, error } => Self::AttemptFailed { attempt, error },
            Fact::AttemptKilled { attempt, why, bytes_in, interrupted } => {
                Self::AttemptKilled { attempt, why, bytes_in, interrupted }
            }
            Fact::MapOutputLost { attempt, why, unfetched } => {
                Self::MapOutputLost { attempt, why, unfetched }
            }
            Fact::MapOutputCopied { attempt, tracker, bytes } => {
                Self::MapOutputCopied { attempt, tracker: named(tracker).0, bytes }
            }
            Fact::CheckpointCopied { attempt, tracker, bytes } => {
                Self::CheckpointCopied { attempt, tracker: named(tracker).0, bytes }
            }
            Fact::TrackerBlacklisted { tracker, .. } => {
                Self::TrackerBlacklisted { tracker: named(tracker).0 }
            }
            Fact::JobSubmitted { .. }
            | Fact::JobTrackerStarted { .. }
            | Fact::IdsSkipped { .. }
            | Fact::RequestAnswered { .. }
            | Fact::StartRecorded { .. }
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
        })
    }

    /// Returns the fact of a history line. `number` returns the ID of the tracker with a name.
    /// Returns `None` for the environment of the submission, which is not a fact.
    pub fn into_fact(
        self,
        job: JobId,
        mut number: impl FnMut(&str) -> TrackerId,
    ) -> Result<Option<Fact>, String> {
        Ok(Some(match self {
            Self::SubmittedTo(_) => return Ok(None),
            Self::JobCommitting {} => Fact::JobCommitting { job },
            Self::JobEnded { outcome, why } => {
                Fact::JobEnded { job, outcome: JobOutcome::from_name(&outcome, why)? }
            }
            Self::AttemptLaunched { attempt, tracker, speculative, resumed_from, why, .. } => {
                let tracker = number(&tracker);
                Fact::AttemptLaunched { attempt, tracker, speculative, resumed_from, why: why.into() }
            }
            Self::PreemptionRequested { attempt, kind, why, fault, hold } => {
                Fact::PreemptionRequested { attempt, kind, why, fault, hold }
            }
            Self::MapSplit { attempt, position, result } => {
                Fact::MapSplit { attempt, position, result: result.into() }
            }
            Self::AttemptPaused { attempt, stage, bytes, bytes_in, interrupted } => {
                Fact::AttemptPaused { attempt, stage, bytes, bytes_in, interrupted }
            }
            Self::PreemptionRefused { attempt, refusals, why } => {
                Fact::PreemptionRefused { attempt, refusals, why }
            }
            Self::TaskReleased { task } => Fact::TaskReleased { task },
            Self::CheckpointLost { attempt, why } => Fact::CheckpointLost { attempt, why },
            Self::AttemptSucceeded { attempt, result } => {
                Fact::AttemptSucceeded { attempt, result: result.into() }
            }
            Self::AttemptFailed { attempt, error } => Fact::AttemptFailed { attempt, error },
            Self::AttemptKilled { attempt, why, bytes_in, interrupted } => {
                Fact::AttemptKilled { attempt, why, bytes_in, interrupted }
            }
            Self::MapOutputLost { attempt, why, unfetched } => {
                Fact::MapOutputLost { attempt, why, unfetched }
            }
            Self::MapOutputCopied { attempt, tracker, bytes } => {
                Fact::MapOutputCopied { attempt, tracker: number(&tracker), bytes }
            }
            Self::CheckpointCopied { attempt, tracker, bytes } => {
                Fact::CheckpointCopied { attempt, tracker: number(&tracker), bytes }
            }
            Self::TrackerBlacklisted { tracker } => {
                Fact::TrackerBlacklisted { job, tracker: number(&tracker) }
            }
        }))
    }
}

impl From<&JobSpec> for Spec {
    fn from(spec: &JobSpec) -> Self {
        let (hosts, splits) = group_splits(&spec.splits);
        let JobSpec { name, user, queue, priority, program, reduces, output, .. } = spec.clone();
        let Payload { inputs, files, .. } = spec.payload.clone();
        Self {
            name,
            user,
            queue,
            priority,
            program,
            inputs,
            files,
            output,
            reduces,
            slow_start: spec.slow_start,
            speculation: spec.speculation,
            split_slow: Some(spec.split_slow),
            attempts_max: spec.attempts_max,
            conf: spec.conf.clone(),
            hosts,
            splits,
        }
    }
}

/// Restores a job from its history. What a history does not contain is left empty: the pins of the
/// input files, and most of the payload.
impl From<Spec> for JobSpec {
    fn from(spec: Spec) -> Self {
        let splits = expand_runs(spec.splits, &spec.hosts);
        let split_slow =
            spec.split_slow.unwrap_or_else(|| spec.conf.get(SPLIT_SLOW).is_none_or(|value| value == "true"));
        let Spec { name, user, queue, priority, program, reduces, output, conf, .. } = spec;
        Self {
            name,
            user,
            queue,
            priority,
            program,
            splits,
            reduces,
            output,
            slow_start: spec.slow_start,
            speculation: spec.speculation,
            split_slow,
            attempts_max: spec.attempts_max,
            conf,
            payload: Payload { inputs: spec.inputs, files: spec.files, ..Payload::default() },
        }
    }
}

/// Groups splits into runs. Returns the hosts and the runs.
fn group_splits(splits: &[Split]) -> (Vec<String>, Vec<SplitRun>) {
    let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
    let mut hosts = Vec::new();
    let mut runs: Vec<SplitRun> = Vec::new();
    let mut before: Option<&Split> = None;
    for split in splits {
        let number = |host| {
            *numbers.entry(host).or_insert_with(|| {
                hosts.push(host.to_owned());
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
            _ => runs.push(SplitRun {
                source: (!same_file).then(|| split.source.clone()),
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

/// Expands runs to splits. `names` are the hosts that the runs refer to by index.
pub fn expand_runs(runs: Vec<SplitRun>, names: &[String]) -> Vec<Split> {
    let mut splits: Vec<Split> = Vec::new();
    for SplitRun { source, start, end, count, divisible, hosts } in runs {
        let hosts: Vec<String> =
            hosts.into_iter().filter_map(|host| names.get(host as usize).cloned()).collect();
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

impl From<AttemptResult> for ResultFields {
    fn from(result: AttemptResult) -> Self {
        let AttemptResult { counters, pieces, bytes_out } = result;
        Self { bytes_out, counters: counters.into_iter().collect(), pieces }
    }
}

impl From<ResultFields> for AttemptResult {
    fn from(result: ResultFields) -> Self {
        let ResultFields { bytes_out, counters, pieces } = result;
        Self { counters: counters.into_iter().collect(), pieces, bytes_out }
    }
}

impl From<Why> for Reason {
    fn from(why: Why) -> Self {
        let numbers = why.numbers.into_iter().map(|(name, value)| (name.into_owned(), value)).collect();
        Self { rule: why.rule.into_owned(), numbers }
    }
}

impl From<Reason> for Why {
    fn from(why: Reason) -> Self {
        let numbers = why.numbers.into_iter().map(|(name, value)| (Cow::Owned(name), value)).collect();
        Self { rule: Cow::Owned(why.rule), numbers }
    }
}

fn default_true() -> bool {
    true
}

fn default_attempts_max() -> u32 {
    4
}

fn default_count() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
fn is_one(count: &u32) -> bool {
    *count == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
fn is_true(value: &bool) -> bool {
    *value
}

/// Serialises a value as the text that it prints and parses.
mod text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::{fmt::Display, str::FromStr};

    pub(super) fn serialize<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(
        from: D,
    ) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Same as [`text`], for a field that may be left out or null.
mod optional_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::{fmt::Display, str::FromStr};

    #[expect(clippy::ref_option, reason = "serde requires this signature")]
    pub(super) fn serialize<S: Serializer>(value: &Option<impl Display>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job_from_json(fields: Value) -> JobSpec {
        let mut spec = json!({
            "name": "n", "user": "ann", "queue": "q", "priority": "normal", "program": "builtin:sort",
            "reduces": 1, "slow_start": 0.05, "speculation": true, "splits": [],
        });
        let Value::Object(fields) = fields else { panic!("not an object") };
        spec.as_object_mut().unwrap().extend(fields);
        serde_json::from_value::<Spec>(spec).unwrap().into()
    }

    #[test]
    fn absent_fields_of_a_job_have_the_values_of_a_submission_without_settings() {
        let job = job_from_json(json!({}));
        assert_eq!((job.split_slow, job.attempts_max), (true, 4));
        let older = job_from_json(json!({"conf": {"speculation.split": "false"}}));
        assert!(!older.split_slow);
        let both = json!({"conf": {"speculation.split": "true"}, "split_slow": false, "attempts_max": 2});
        let job = job_from_json(both);
        assert_eq!((job.split_slow, job.attempts_max), (false, 2));
    }

    #[test]
    fn all_kinds_of_facts_are_known() {
        let error = serde_json::from_str::<HistoryFact>(r#"{"no-such-fact":{}}"#).expect_err("unknown");
        let kinds = KINDS.map(|kind| format!("`{kind}`")).join(", ");
        assert!(error.to_string().contains(&format!("expected one of {kinds}")), "{error}");
    }

    /// Checks that the facts which the JobTracker writes to a history are read unchanged.
    #[test]
    fn written_facts_are_read_unchanged() {
        let attempt: AttemptId = "job_7.m3.0".parse().expect("an attempt");
        let (job, tracker, why) = (JobId(7), TrackerId(1), String::from("why"));
        let result =
            AttemptResult { counters: vec![("C".into(), 5)], pieces: vec!["/p".into()], bytes_out: u64::MAX };
        let launched = |resumed_from, why| {
            let speculative = resumed_from == Some(attempt);
            Fact::AttemptLaunched { attempt, tracker, speculative, resumed_from, why }
        };
        let kind = PreemptKind::Split;
        let facts = [
            Fact::JobCommitting { job },
            Fact::JobEnded { job, outcome: JobOutcome::Succeeded },
            Fact::JobEnded { job, outcome: JobOutcome::Failed(why.clone()) },
            Fact::JobEnded { job, outcome: JobOutcome::Killed(why.clone()) },
            launched(None, Why::rule("rule")),
            launched(Some(attempt), Why::rule("rule").with("number", 1.5)),
            Fact::PreemptionRequested { attempt, kind, why: why.clone(), fault: true, hold: false },
            Fact::MapSplit { attempt, position: 9, result: result.clone() },
            Fact::AttemptPaused { attempt, stage: Stage::Merge, bytes: 1, bytes_in: 2, interrupted: true },
            Fact::PreemptionRefused { attempt, refusals: 1, why: why.clone() },
            Fact::TaskReleased { task: attempt.task },
            Fact::CheckpointLost { attempt, why: why.clone() },
            Fact::AttemptSucceeded { attempt, result },
            Fact::AttemptFailed { attempt, error: why.clone() },
            Fact::AttemptKilled { attempt, why: why.clone(), bytes_in: 3, interrupted: true },
            Fact::MapOutputLost { attempt, why, unfetched: true },
            Fact::MapOutputCopied { attempt, tracker, bytes: 3 },
            Fact::CheckpointCopied { attempt, tracker, bytes: 3 },
            Fact::TrackerBlacklisted { job, tracker },
        ];
        let named = |_| ("node1".to_owned(), "host1".to_owned());
        for fact in facts {
            let line = HistoryFact::from_fact(&fact, &named).expect("a fact of a job");
            let line = serde_json::to_value(line).expect("plain data");
            let read = known_fact(line).expect("it reads").expect("a known kind");
            assert_eq!(read.into_fact(job, |_| tracker), Ok(Some(fact)));
        }
    }

    #[test]
    fn unknown_kinds_are_skipped_and_invalid_facts_are_refused() {
        let launched = |attempt: &str, from: Value| {
            let fields = json!({"attempt": attempt, "tracker": "node1", "resumed_from": from});
            json!({"attempt-launched": fields})
        };
        assert_eq!(known_fact(json!({"something-new": {"x": 1}})), Ok(None));
        assert!(matches!(
            known_fact(launched("job_7.r0.1", json!("job_7.r0.0"))),
            Ok(Some(HistoryFact::AttemptLaunched { resumed_from: Some(_), .. }))
        ));
        assert!(matches!(
            known_fact(launched("job_7.r0.1", Value::Null)),
            Ok(Some(HistoryFact::AttemptLaunched { resumed_from: None, .. }))
        ));
        let error = known_fact(launched("job_07.r0.1", Value::Null)).unwrap_err();
        assert!(error.starts_with("attempt-launched: ") && error.contains("job_07.r0.1"), "{error}");
    }
}
