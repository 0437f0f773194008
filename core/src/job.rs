//! Jobs: as submitted, and their current state.

use crate::{
    ids::{AttemptId, HostId, JobId, RequestId, TaskId, TrackerId},
    pending::PendingTasks,
    phase::{PerPhase, Phase},
    task::{Attempt, AttemptState, Stage, Task, Work},
    time::{Span, Time},
    why::Why,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
    sync::Arc,
};

pub use types::Secret;

/// Maximum number of counter names that the maps of a job may add, and that its reduces may add.
const COUNTERS_PER_PHASE_MAX: usize = 2000;
/// The counter to which counters with further names are added.
const EXCESS_COUNTERS: &str = "COUNTERS_OVER_LIMIT";

/// The priority of a job. Some policies run jobs with a higher priority first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    VeryLow,
    Low,
    #[default]
    Normal,
    High,
    VeryHigh,
}

/// What the tasks of a job run. As text: `builtin:wordcount`, `exec:/bin/my-job`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Program {
    /// A built-in program, by name.
    Builtin(String),
    /// An executable in the file system, by path.
    Executable(String),
}

impl Program {
    /// Returns the name of a built-in program, or the path of an executable.
    pub fn name(&self) -> &str {
        let (Self::Builtin(name) | Self::Executable(name)) = self;
        name
    }
}

/// Identifies the input file of a split as it was at submission. The core does not interpret it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InputPin {
    /// The ID of the file; 0 if it has none.
    pub file: u64,
    /// The length of the file in bytes.
    pub length: u64,
}

/// The input of one map: a range of a file, and the hosts that have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// The path of the file. The core does not interpret it.
    pub source: String,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Whether a map of this split may end before the end of its range and leave the remainder to
    /// another map.
    pub divisible: bool,
    /// Hosts that have the data, best first.
    pub hosts: Vec<String>,
    /// Identifies the file at submission, in case the path refers to another file later.
    pub pin: InputPin,
}

/// What the tasks of a job and the clients need to know, and the core does not interpret.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Payload {
    /// The inputs, as submitted: files, folders or patterns.
    pub inputs: Vec<String>,
    /// The paths of the side files of the program.
    pub files: Vec<String>,
    /// The folder with the files of the job that the client has staged. It is deleted with the job.
    pub staging: Option<String>,
    /// Whether each input file is one record.
    pub whole_files: bool,
    /// The token with which reduces fetch the map outputs of the job.
    pub shuffle_token: Secret,
}

/// A job as submitted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The name that users see.
    pub name: String,
    /// The user who submitted it.
    pub user: String,
    /// The queue that the job names. The policy decides what the queue means.
    pub queue: String,
    pub priority: Priority,
    /// The program that the tasks run.
    pub program: Program,
    /// The splits of the input. Each gets one map.
    pub splits: Vec<Split>,
    /// Number of reduces; 0 for a map-only job.
    pub reduces: u32,
    /// The output folder; empty if there is none.
    pub output: String,
    /// The fraction of the maps that must be done before reduces may start, from 0 to 1.
    pub slow_start: f64,
    /// Whether stragglers may get a speculative attempt or be split.
    pub speculation: bool,
    /// Whether slow maps may be split; otherwise they get a speculative attempt. Users disable
    /// it if the output of the mapper may depend on where its input begins and ends.
    pub split_slow: bool,
    /// The job fails when a task has failed this often.
    pub attempts_max: u32,
    /// The settings that the user has set.
    pub conf: BTreeMap<String, String>,
    /// Data for tasks and clients.
    pub payload: Payload,
}

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// Tasks are pending or running.
    Running,
    /// All tasks are done and the output is being committed.
    Committing,
    /// The job has ended. Attempts that are being killed may still hold their slots for a short
    /// time.
    Ended(JobOutcome),
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobOutcome {
    /// The output is complete and committed.
    Succeeded,
    /// It failed for this reason.
    Failed(String),
    /// A user killed it.
    Killed(String),
}

/// Counts of the preemptions of a job, and the work that was saved and lost. Saved and lost work
/// together are the work of all attempts that ended because they were preempted. When a checkpoint
/// or the output of a split map is lost later, its work moves from saved to lost. The time of an
/// attempt is the time from its launch to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Preemption {
    pub splits: u32,
    pub pauses: u32,
    pub resumes: u32,
    /// Number of resumes on a different tracker than the one where the reduce was paused.
    pub migrations: u32,
    pub kills: u32,
    /// Number of checkpoints that were missing or damaged when they were needed.
    pub checkpoints_lost: u32,
    pub bytes_saved: u64,
    pub time_saved: Span,
    pub bytes_lost: u64,
    pub time_lost: Span,
    pub checkpoint_bytes: u64,
    /// Time from the request to the release of the slot, summed over all splits and pauses.
    pub latency: Span,
}

impl Preemption {
    /// Adds work that counts as lost until a part of it is saved.
    pub(crate) fn add_lost(&mut self, work: Work) {
        self.bytes_lost += work.bytes;
        self.time_lost = self.time_lost + work.time;
    }

    /// Changes how much of the counted work is saved, from `was` to `now`. The remainder is lost.
    pub(crate) fn update_saved(&mut self, was: Work, now: Work) {
        self.bytes_saved = self.bytes_saved + now.bytes - was.bytes;
        self.time_saved = Span(self.time_saved.0 + now.time.0 - was.time.0);
        self.bytes_lost = self.bytes_lost + was.bytes - now.bytes;
        self.time_lost = Span(self.time_lost.0 + was.time.0 - now.time.0);
    }

    /// Returns the sum of saved and lost work.
    pub(crate) fn total_work(&self) -> Work {
        let time = self.time_saved + self.time_lost;
        Work { bytes: self.bytes_saved + self.bytes_lost, time }
    }
}

/// A change of the map outputs that reduces can fetch. Each job has a list of map events, which its
/// reduces receive in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MapEvent {
    /// The output of this attempt can be fetched from this tracker.
    Available(AttemptId, TrackerId),
    /// The output of this attempt is gone or cannot be fetched.
    Withdrawn(AttemptId),
}

/// A job and its current state, according to the facts.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub id: JobId,
    /// The submission that created it.
    pub request: RequestId,
    /// The job as submitted.
    pub spec: Arc<JobSpec>,
    pub state: JobState,
    /// When it was submitted.
    pub submitted: Time,
    /// When its first attempt was launched.
    pub first_launch: Option<Time>,
    /// When its last map finished. If maps had to run again, the latest time.
    pub maps_done: Option<Time>,
    /// When it ended.
    pub ended: Option<Time>,
    /// Its tasks, by index.
    pub tasks: PerPhase<Vec<Task>>,
    /// Tasks that wait for a slot.
    pub pending: PerPhase<PendingTasks>,
    /// Attempts that hold a slot.
    pub running: PerPhase<BTreeSet<AttemptId>>,
    /// Number of tasks that are done.
    pub succeeded: PerPhase<u32>,
    /// The sum of the durations of the tasks that are done.
    pub task_time: PerPhase<Span>,
    /// The number of bytes in the ranges of the maps that are done.
    pub bytes_mapped: u64,
    /// The sum of the durations of reduces that could be measured ([`Job::reduce_time`]), and their
    /// number.
    pub reduce_times: (Span, u32),
    /// Counters summed over the attempts whose results count, so that each record is counted once.
    pub counters: BTreeMap<String, u64>,
    /// Cost and effect of preemption.
    pub preemption: Preemption,
    /// Number of failed attempts by tracker.
    pub failures: BTreeMap<TrackerId, u32>,
    /// Trackers that the job no longer uses.
    pub blacklist: BTreeSet<TrackerId>,
    /// The map events that its reduces receive, in order.
    pub map_events: Vec<MapEvent>,
}

impl Job {
    /// Limits the counters of an attempt that has succeeded: those with new names are added to one
    /// counter if the job has too many names already. Names are never removed, so a name is either
    /// counted in all results or in none.
    pub(crate) fn limit_counters(&self, phase: Phase, counters: &mut Vec<(String, u64)>) {
        let max = match phase {
            Phase::Map => COUNTERS_PER_PHASE_MAX,
            Phase::Reduce => 2 * COUNTERS_PER_PHASE_MAX,
        };
        let mut room = max.saturating_sub(self.counters.len());
        let mut excess: Option<u64> = None;
        counters.retain(|(name, value)| {
            let is_excess = name == EXCESS_COUNTERS || (room == 0 && !self.counters.contains_key(name));
            if is_excess {
                excess = Some(excess.unwrap_or_default().wrapping_add(*value));
            } else if !self.counters.contains_key(name) {
                room -= 1;
            }
            !is_excess
        });
        counters.extend(excess.map(|excess| (EXCESS_COUNTERS.to_owned(), excess)));
    }

    /// Returns whether its tasks may be launched.
    pub fn is_running(&self) -> bool {
        self.state == JobState::Running
    }

    /// Returns whether it has ended.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, JobState::Ended(_))
    }

    /// Returns the name of the state of one of its tasks.
    pub fn task_state(&self, task: &Task) -> &'static str {
        match (task.is_done(), task.viable_attempts().next()) {
            (true, _) => "done",
            (false, Some(_)) => "running",
            (false, None) if self.has_ended() => {
                let failed = task.attempts.last().is_some_and(|last| last.state == AttemptState::Failed);
                if failed { "failed" } else { "unfinished" }
            }
            (false, None) if task.on_hold => "paused",
            (false, None) => "waiting",
        }
    }

    /// Returns the task with this ID, if it belongs to this job.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        if id.job != self.id {
            return None;
        }
        self.tasks[id.phase].get(id.index as usize)
    }

    /// Returns whether every task of a phase is done.
    pub fn is_done(&self, phase: Phase) -> bool {
        self.succeeded[phase] as usize == self.tasks[phase].len()
    }

    /// Returns the number of tasks of a phase that a user has paused.
    pub(crate) fn tasks_on_hold(&self, phase: Phase) -> usize {
        self.tasks[phase].iter().filter(|task| task.on_hold && !task.is_done()).count()
    }

    /// Returns the reason if the job waits only for a user: no task runs or is pending, and a user
    /// has paused tasks.
    pub fn waits_for_user(&self) -> Option<Why> {
        let is_idle = |phase| self.running[phase].is_empty() && self.pending[phase].is_empty();
        if !self.is_running() || !Phase::BOTH.into_iter().all(is_idle) {
            return None;
        }
        let tasks: usize = Phase::BOTH.map(|phase| self.tasks_on_hold(phase)).iter().sum();
        (tasks > 0).then(|| Why::rule("on-hold").with("tasks", tasks as f64))
    }

    /// Returns how many maps must be done before reduces may start. Maps that were created by
    /// splits count too.
    pub fn maps_before_reduces(&self) -> u32 {
        (self.spec.slow_start * self.tasks.map.len() as f64).ceil() as u32
    }

    /// Returns whether enough maps are done for reduces to start.
    pub fn reduces_may_start(&self) -> bool {
        self.succeeded.map >= self.maps_before_reduces()
    }

    /// Returns whether any pending task of a phase may start now.
    pub fn may_start(&self, phase: Phase) -> bool {
        let with_all_map_output = || {
            let mut waiting = self.pending.reduce.iter().map(|index| &self.tasks.reduce[index as usize]);
            self.preemption.pauses > 0 && waiting.any(has_all_map_output)
        };
        self.is_running() && (phase == Phase::Map || self.reduces_may_start() || with_all_map_output())
    }

    /// Returns whether a pending task may start now. A reduce that was paused after its shuffle
    /// stage does not wait for maps.
    pub fn may_start_task(&self, task: &Task) -> bool {
        let may = task.id.phase == Phase::Map || self.reduces_may_start() || has_all_map_output(task);
        self.is_running() && may
    }

    /// Returns how long a task is expected to take, based on finished tasks of its phase. The
    /// expected time of a map is proportional to the size of its range, because maps that were
    /// split have shorter ranges.
    pub fn expected_time(&self, task: &Task) -> Option<Span> {
        let mean = self.mean_time(task.id.phase)?;
        if task.id.phase == Phase::Reduce || self.bytes_mapped == 0 {
            return Some(mean);
        }
        let part = task.bytes() as f64 / self.bytes_mapped as f64;
        Some(Span((self.task_time.map.0 as f64 * part) as u64))
    }

    /// Returns the mean duration of the finished tasks of a phase.
    pub fn mean_time(&self, phase: Phase) -> Option<Span> {
        let done = u64::from(self.succeeded[phase]);
        (done > 0).then(|| Span(self.task_time[phase].0 / done))
    }

    /// Returns how long a reduce has held a slot since all maps were done. Before that, a reduce
    /// mostly waits for maps. The time includes the earlier attempts whose checkpoints the attempt
    /// resumed from. The time of a running attempt ends at `now`. Returns `None` while maps are not
    /// done.
    pub fn reduce_time(&self, id: AttemptId, now: Time) -> Option<Span> {
        let maps_done = self.maps_done.filter(|_| id.phase() == Phase::Reduce)?;
        let time = |attempt: &Attempt| attempt.ended.unwrap_or(now).since(attempt.launched.max(maps_done)).0;
        Some(Span(self.task(id.task)?.resume_chain(id.number).map(time).sum()))
    }

    /// Returns the hosts that have input of pending maps.
    pub fn input_hosts(&self) -> impl Iterator<Item = HostId> + '_ {
        self.pending.map.hosts()
    }
}

/// Returns whether a reduce was paused after its shuffle stage, so that it needs no more map
/// output.
pub(crate) fn has_all_map_output(task: &Task) -> bool {
    task.checkpoint.is_some_and(|checkpoint| checkpoint.stage > Stage::Shuffle)
}

/// The names of priorities, from the lowest.
const PRIORITIES: [(Priority, &str); 5] = [
    (Priority::VeryLow, "very-low"),
    (Priority::Low, "low"),
    (Priority::Normal, "normal"),
    (Priority::High, "high"),
    (Priority::VeryHigh, "very-high"),
];

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = PRIORITIES.iter().find(|(priority, _)| priority == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}

impl FromStr for Priority {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = PRIORITIES.iter().find(|(_, name)| *name == text);
        found.map(|(priority, _)| *priority).ok_or_else(|| {
            let names = PRIORITIES.map(|(_, name)| name);
            format!("priority {text:?} is not one of {}", names.join(", "))
        })
    }
}

const BUILTIN_PREFIX: &str = "builtin:";
const EXECUTABLE_PREFIX: &str = "exec:";

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin(name) => write!(f, "{BUILTIN_PREFIX}{name}"),
            Self::Executable(path) => write!(f, "{EXECUTABLE_PREFIX}{path}"),
        }
    }
}

impl FromStr for Program {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix(BUILTIN_PREFIX) {
            return Ok(Self::Builtin(name.to_owned()));
        }
        let path = text.strip_prefix(EXECUTABLE_PREFIX).map(|path| Self::Executable(path.to_owned()));
        path.ok_or_else(|| {
            format!("program {text:?} begins neither with {BUILTIN_PREFIX} nor with {EXECUTABLE_PREFIX}")
        })
    }
}

impl JobState {
    /// Returns the name of the state, and the reason if the job failed or was killed.
    pub fn name_and_reason(&self) -> (&'static str, &str) {
        match self {
            JobState::Running => ("running", ""),
            JobState::Committing => ("committing", ""),
            JobState::Ended(outcome) => outcome.name_and_reason(),
        }
    }
}

impl JobOutcome {
    /// Returns the name of the outcome, and the reason (empty if the job succeeded).
    pub fn name_and_reason(&self) -> (&'static str, &str) {
        match self {
            JobOutcome::Succeeded => ("succeeded", ""),
            JobOutcome::Failed(why) => ("failed", why),
            JobOutcome::Killed(why) => ("killed", why),
        }
    }

    /// Returns the outcome with this name.
    pub fn from_name(name: &str, why: String) -> Result<Self, String> {
        match name {
            "succeeded" => Ok(JobOutcome::Succeeded),
            "failed" => Ok(JobOutcome::Failed(why)),
            "killed" => Ok(JobOutcome::Killed(why)),
            _ => Err(format!("outcome {name:?} is not one of succeeded, failed, killed")),
        }
    }
}

impl fmt::Display for JobOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name_and_reason() {
            (name, "") => f.write_str(name),
            (name, why) => write!(f, "{name}: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_priorities_are_parsed_from_their_text() {
        for program in [Program::Builtin("sort".into()), Program::Executable("/bin/job".into())] {
            assert_eq!(program.to_string().parse(), Ok(program));
        }
        assert!("sort".parse::<Program>().is_err());
        for (priority, name) in PRIORITIES {
            assert_eq!((priority.to_string().as_str(), name.parse()), (name, Ok(priority)));
        }
        let error = "urgent".parse::<Priority>().unwrap_err();
        assert_eq!(error, "priority \"urgent\" is not one of very-low, low, normal, high, very-high");
    }
}
