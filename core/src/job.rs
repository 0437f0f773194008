//! What a job is: as submitted, and as it stands.

use crate::{
    cluster::PendingTasks,
    ids::{AttemptId, HostId, JobId, RequestId, TaskId, TrackerId},
    phase::{PerPhase, Phase},
    task::{Attempt, Stage, Task, Work},
    time::{Span, Time},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

/// How much a job matters to its owner. Higher goes first where a policy looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Priority {
    VeryLow,
    Low,
    #[default]
    Normal,
    High,
    VeryHigh,
}

/// The input file of a split as it was when the job was submitted. Means nothing to the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InputPin {
    /// The file's id; 0 if there is none.
    pub file: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// The input of one map: a range of a file, and who has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// What to read. Means nothing to the core.
    pub source: String,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Whether a map of it may end before the end of its range and leave the rest to another.
    pub divisible: bool,
    /// Hosts that have the bytes, best first.
    pub hosts: Vec<String>,
    /// Which file is meant, whatever may be at its path later.
    pub pin: InputPin,
}

/// A job as submitted. Everything the core does not understand is in `conf`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// For people.
    pub name: String,
    /// Who submitted it.
    pub user: String,
    /// Where it queues; what that means is the policy's affair.
    pub queue: String,
    /// Its priority.
    pub priority: Priority,
    /// What it runs.
    pub program: String,
    /// One map each.
    pub splits: Vec<Split>,
    /// How many reduces; none makes a map-only job.
    pub reduces: u32,
    /// Where its output goes; empty for none.
    pub output: String,
    /// Part of the maps that must be done before reduces may start.
    pub slow_start: f64,
    /// Whether stragglers may be duplicated.
    pub speculation: bool,
    /// A task that fails this often fails the job.
    pub attempts_max: u32,
    /// Everything else.
    pub conf: BTreeMap<String, String>,
}

/// Setting of a job whose slow maps are not divided, only tried again: `false`. For mappers of which nobody knows whether
/// it matters to them where their input begins and ends.
pub const SPLIT_SLOW: &str = "speculation.split";

impl JobSpec {
    /// Whether what a slow map has not read may be taken from it.
    pub fn splits_slow_maps(&self) -> bool {
        self.speculation && self.conf.get(SPLIT_SLOW).is_none_or(|value| value.trim() != "false")
    }
}

/// Where a job stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// Tasks are waiting or running.
    Running,
    /// Every task is done; its output is being moved into place.
    Committing,
    /// Over. Attempts that were told to stop may still hold their slots for a moment.
    Ended(JobOutcome),
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobOutcome {
    /// Its output is there, whole.
    Succeeded,
    /// It could not continue, and why.
    Failed(String),
    /// Somebody stopped it, and who or why.
    Killed(String),
}

/// What preemption has cost and saved. Conserved and lost together are the work of all attempts that ended because
/// their slots were wanted; what is lost later, with a checkpoint or the output of a map's first half, moves from the one
/// to the other. Times are those of attempts, from launch to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Preemption {
    pub splits: u32,
    pub pauses: u32,
    pub resumes: u32,
    /// Resumes on another tracker than the pause.
    pub migrations: u32,
    pub kills: u32,
    /// Checkpoints that were gone or damaged when they were wanted.
    pub checkpoints_lost: u32,
    pub bytes_saved: u64,
    pub time_saved: Span,
    pub bytes_lost: u64,
    pub time_lost: Span,
    pub checkpoint_bytes: u64,
    /// From the word that a slot is wanted back to its being free, over all splits and pauses.
    pub latency: Span,
}

impl Preemption {
    /// So much has been done, and nothing of it is kept yet.
    pub(crate) fn add_lost(&mut self, work: Work) {
        self.bytes_lost += work.bytes;
        self.time_lost = self.time_lost + work.time;
    }

    /// Of the same work so much is kept now, instead of that.
    pub(crate) fn update_saved(&mut self, was: Work, now: Work) {
        self.bytes_saved = self.bytes_saved + now.bytes - was.bytes;
        self.time_saved = Span(self.time_saved.0 + now.time.0 - was.time.0);
        self.bytes_lost = self.bytes_lost + was.bytes - now.bytes;
        self.time_lost = Span(self.time_lost.0 + was.time.0 - now.time.0);
    }

    /// What there was to keep or to lose.
    pub(crate) fn all(&self) -> Work {
        let time = self.time_saved + self.time_lost;
        Work { bytes: self.bytes_saved + self.bytes_lost, time }
    }
}

/// A change in what reducers can fetch. They follow the list of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MapEvent {
    /// This attempt's output can be fetched from that tracker.
    Available(AttemptId, TrackerId),
    /// This attempt's output is gone or not to be trusted.
    Withdrawn(AttemptId),
}

/// A job as it stands.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its name.
    pub id: JobId,
    /// The submission that made it.
    pub request: RequestId,
    /// As submitted.
    pub spec: Arc<JobSpec>,
    /// Where it stands.
    pub state: JobState,
    /// When it was submitted.
    pub submitted: Time,
    /// When its first attempt was launched.
    pub first_launch: Option<Time>,
    /// When its last map was done (the latest time, if some had to run again).
    pub maps_done: Option<Time>,
    /// When it was over.
    pub ended: Option<Time>,
    /// Its tasks, by index.
    pub tasks: PerPhase<Vec<Task>>,
    /// Tasks that wait for a slot.
    pub pending: PerPhase<PendingTasks>,
    /// Attempts that hold a slot.
    pub running: PerPhase<BTreeSet<AttemptId>>,
    /// Tasks done.
    pub succeeded: PerPhase<u32>,
    /// How long those took together.
    pub task_time: PerPhase<Span>,
    /// Bytes of the ranges of the maps that are done.
    pub bytes_mapped: u64,
    /// What its reduces took that could be measured, see [`Job::reduce_time`]: together, and how many.
    pub reduce_times: (Span, u32),
    /// Sums over the attempts whose results count, so that each record is counted once.
    pub counters: BTreeMap<String, u64>,
    /// What preemption has cost and saved.
    pub preemption: Preemption,
    /// Failures of its attempts by tracker.
    pub failures: BTreeMap<TrackerId, u32>,
    /// Trackers that it no longer uses.
    pub blacklist: BTreeSet<TrackerId>,
    /// What its reducers are told, in order.
    pub map_events: Vec<MapEvent>,
    /// Tasks that run much longer than others of their kind, as last looked. Not durable.
    pub stragglers: PerPhase<BTreeSet<u32>>,
    /// Trackers that may have something of it besides those that ran its attempts. Not durable: they say so themselves
    /// when they register.
    pub extra_trackers: BTreeSet<TrackerId>,
}

impl Job {
    /// Whether its tasks may be launched.
    pub fn is_running(&self) -> bool {
        self.state == JobState::Running
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        matches!(self.state, JobState::Ended(_))
    }

    /// Whether some reduce still has to fetch map output. One that is past its shuffle has it all.
    pub fn needs_map_output(&self) -> bool {
        let has_it_all = |task: &Task| {
            let checkpoint = task.checkpoint.is_some_and(|checkpoint| checkpoint.stage > Stage::Shuffle);
            let further = |attempt: &Attempt| attempt.progress.stage > Stage::Shuffle;
            task.is_done() || checkpoint || task.viable().any(further)
        };
        self.is_running() && !self.tasks.reduce.iter().all(has_it_all)
    }

    /// One of its tasks.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        if id.job != self.id {
            return None;
        }
        self.tasks[id.phase].get(id.index as usize)
    }

    /// Whether every task of a phase is done.
    pub fn is_done(&self, phase: Phase) -> bool {
        self.succeeded[phase] as usize == self.tasks[phase].len()
    }

    /// How many maps must be done for reduces to start. Maps that come by a split count like any other.
    pub fn maps_before_reduces(&self) -> u32 {
        (self.spec.slow_start * self.tasks.map.len() as f64).ceil() as u32
    }

    /// Whether enough maps are done for reduces to start.
    pub fn reduces_may_start(&self) -> bool {
        self.succeeded.map >= self.maps_before_reduces()
    }

    /// Whether tasks of a phase that wait may start now, or some of them.
    pub fn may_start(&self, phase: Phase) -> bool {
        let with_all_map_output = || {
            let mut waiting = self.pending.reduce.iter().map(|index| &self.tasks.reduce[index as usize]);
            self.preemption.pauses > 0 && waiting.any(has_all_map_output)
        };
        self.is_running() && (phase == Phase::Map || self.reduces_may_start() || with_all_map_output())
    }

    /// Whether a task that waits may start now. One that was paused with all map output fetched waits for no maps.
    pub fn may_start_task(&self, task: &Task) -> bool {
        let may = task.id.phase == Phase::Map || self.reduces_may_start() || has_all_map_output(task);
        self.is_running() && may
    }

    /// How long a task should take, by those of its kind that are done: maps by the bytes of their ranges, because a split
    /// makes short ones.
    pub fn expected_time(&self, task: &Task) -> Option<Span> {
        let mean = self.mean_time(task.id.phase)?;
        if task.id.phase == Phase::Reduce || self.bytes_mapped == 0 {
            return Some(mean);
        }
        let part = task.bytes() as f64 / self.bytes_mapped as f64;
        Some(Span((self.task_time.map.0 as f64 * part) as u64))
    }

    /// How long a task of a phase that is done took, on average.
    pub fn mean_time(&self, phase: Phase) -> Option<Span> {
        let done = u64::from(self.succeeded[phase]);
        (done > 0).then(|| Span(self.task_time[phase].0 / done))
    }

    /// How long a reduce has had a slot since all maps were done, or since it began after that: over all attempts that took
    /// up one another's state, and up to `now` if the last one still runs. Before that it mostly waits for maps. None
    /// while maps are missing.
    pub fn reduce_time(&self, id: AttemptId, now: Time) -> Option<Span> {
        let maps_done = self.maps_done.filter(|_| id.phase() == Phase::Reduce)?;
        let time = |attempt: &Attempt| attempt.ended.unwrap_or(now).since(attempt.launched.max(maps_done)).0;
        Some(Span(self.task(id.task)?.chain(id.number).map(time).sum()))
    }

    /// Hosts that hold input of maps that still wait.
    pub fn input_hosts(&self) -> impl Iterator<Item = HostId> + '_ {
        self.pending.map.hosts()
    }
}

/// Whether a reduce was paused with all map output fetched.
fn has_all_map_output(task: &Task) -> bool {
    task.checkpoint.is_some_and(|checkpoint| checkpoint.stage > Stage::Shuffle)
}

impl fmt::Display for JobOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobOutcome::Succeeded => f.write_str("succeeded"),
            JobOutcome::Failed(why) => write!(f, "failed: {why}"),
            JobOutcome::Killed(why) => write!(f, "killed: {why}"),
        }
    }
}
