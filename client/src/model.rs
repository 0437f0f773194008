//! Jobs, tasks and trackers as `--json` prints them.

#![allow(clippy::struct_field_names, reason = "the names are those of the JSON")]

use crate::scheduling::Throughput;
use daemon::count;
use serde::Serialize;
use std::collections::BTreeMap;
use types::JobId;
#[cfg(feature = "openapi")]
use utoipa::ToSchema;

/// The progress of a phase of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct PhaseStatus {
    /// Number of tasks.
    pub total: u32,
    /// Tasks that wait for a slot.
    pub pending: u32,
    /// Tasks with a running attempt.
    pub running: u32,
    /// Tasks that a user has paused.
    pub paused: u32,
    /// Tasks that are done.
    pub done: u32,
    /// Attempts that failed.
    pub failed_attempts: u32,
    /// Attempts that were killed.
    pub killed_attempts: u32,
    /// The progress of the phase, from 0 to 1.
    pub progress: f64,
}

impl PhaseStatus {
    /// Describes the phase: `3 of 8 done (41%), 2 running, 3 waiting; 0 attempts failed, 1 killed`,
    /// or `none`.
    pub fn describe(&self) -> String {
        if self.total == 0 {
            return "none".into();
        }
        let paused = if self.paused > 0 { format!(", {} paused", self.paused) } else { String::new() };
        format!(
            "{} of {} done ({:.0}%), {} running, {} waiting{paused}; {} failed, {} killed",
            self.done,
            self.total,
            self.progress * 100.0,
            self.running,
            self.pending,
            count(self.failed_attempts.into(), "attempt"),
            self.killed_attempts
        )
    }
}

/// A job. Times are in milliseconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct Job {
    /// The ID, such as `job_7`.
    pub job: String,
    /// The human-readable name.
    pub name: String,
    /// The owner.
    pub user: String,
    /// The queue or pool.
    pub queue: String,
    /// The priority, from `very-low` to `very-high`.
    pub priority: String,
    /// The name of a built-in program, or the path of an executable.
    pub program: String,
    /// `running`, `committing`, `succeeded`, `failed` or `killed`.
    pub state: String,
    /// Why the job failed or was killed. For an active job: why its output cannot be written now,
    /// or that it waits until a user resumes its tasks.
    pub why: String,
    /// When the job was submitted.
    pub submitted_ms: u64,
    /// When the first attempt of the job started; 0 before that.
    pub started_ms: u64,
    /// When the job ended; 0 before that.
    pub ended_ms: u64,
    /// The progress of its maps.
    pub maps: PhaseStatus,
    /// The progress of its reduces.
    pub reduces: PhaseStatus,
    /// Number of maps that were node-local.
    pub local_maps: u64,
    /// Number of maps that were rack-local.
    pub rack_maps: u64,
    /// The inputs, as submitted. A list of jobs has only the first ones.
    pub inputs: Vec<String>,
    /// Number of inputs that are not in `inputs`.
    pub more_inputs: u32,
    /// The folder of the output; empty if the output is discarded.
    pub output: String,
    /// The sums of the counters of its tasks.
    pub counters: BTreeMap<String, u64>,
    /// The work that preemption has saved and lost.
    pub preemption: Preemption,
    /// Whether inputs, output and counters are left out, because the caller is not the owner.
    pub partial: bool,
}

/// The work that preemption has saved and lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct Preemption {
    /// Maps that were split.
    pub splits: u32,
    /// Reduces that were paused.
    pub pauses: u32,
    /// Reduces that were resumed.
    pub resumes: u32,
    /// Reduces that were resumed on another tracker.
    pub migrations: u32,
    /// Attempts that preemption killed.
    pub kills: u32,
    /// Checkpoints that were lost.
    pub checkpoints_lost: u32,
    /// Bytes processed that did not have to be processed again.
    pub bytes_saved: u64,
    /// The time that it took to process `bytes_saved`.
    pub ms_saved: u64,
    /// Bytes processed that had to be processed again.
    pub bytes_lost: u64,
    /// The time that it took to process `bytes_lost`.
    pub ms_lost: u64,
    /// The total size of all checkpoints.
    pub checkpoint_bytes: u64,
    /// The sum of the times from a preemption request until its slot was free.
    pub latency_ms: u64,
}

impl Job {
    /// Returns whether the job has ended.
    pub fn has_ended(&self) -> bool {
        !matches!(self.state.as_str(), "running" | "committing")
    }

    /// Returns the seconds from the submission to the end of the job.
    pub fn seconds(&self) -> f64 {
        self.ended_ms.saturating_sub(self.submitted_ms) as f64 / 1000.0
    }

    /// Describes how many maps were node-local or rack-local. Returns None for a job without real
    /// input: the maps of teragen read only a line that describes the rows to generate.
    pub fn locality(&self) -> Option<String> {
        let reads = self.maps.total > 0 && self.program != "teragen";
        reads.then(|| format!("{} node-local, {} rack-local", self.local_maps, self.rack_maps))
    }

    /// Returns the state to show to users: `waiting` if no attempt of an active job is running.
    pub fn display_state(&self) -> &str {
        if self.is_waiting() { "waiting" } else { &self.state }
    }

    /// Returns whether the job is in state `running` but none of its attempts is running.
    pub fn is_waiting(&self) -> bool {
        self.state == "running" && self.maps.running + self.reduces.running == 0
    }
}

/// Returns whether the JobTracker may have forgotten older jobs, judged by gaps in the job IDs. How
/// many is unknown, because a recovered JobTracker skips IDs.
pub fn has_forgotten<'a>(jobs: impl IntoIterator<Item = &'a Job>) -> bool {
    let (count, newest) = jobs.into_iter().fold((0, 0), |(count, newest), job| {
        (count + 1, job.job.parse::<JobId>().map_or(newest, |id| newest.max(id.0)))
    });
    newest > count
}

/// Returns the attempt with this ID, or the newest attempt of the task with this ID.
pub fn attempt_of<'a>(tasks: &'a [Task], id: &str) -> Option<&'a Attempt> {
    let exact = tasks.iter().find_map(|task| task.attempt(id));
    exact.or_else(|| tasks.iter().find(|task| task.task == id)?.attempts.last())
}

/// A task and its attempts.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct Task {
    /// The ID, such as `job_7.m3`.
    pub task: String,
    /// The state of the task.
    pub state: String,
    /// The input file of a map; empty for a reduce.
    pub source: String,
    /// The offset of the first byte that a map reads from `source`.
    pub start: u64,
    /// The offset after the last byte that a map reads from `source`.
    pub end: u64,
    /// All attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// The index of the submitted split that contains the range of this map.
    pub root: u32,
    /// The ID of the map that was split, if this task processes the remainder of its range.
    pub remainder_of: Option<String>,
    /// Whether the task waits until a user resumes it.
    pub on_hold: bool,
    /// The paused attempt that the next attempt resumes from; empty if there is none.
    pub paused: String,
    /// The tracker that has the checkpoint of `paused`.
    pub paused_on: String,
    /// The size of that checkpoint.
    pub paused_bytes: u64,
}

impl Task {
    /// Returns the attempts that occupy a slot.
    pub fn running(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(|attempt| attempt.ended_ms == 0 && attempt.state != "succeeded")
    }

    /// Returns the attempt of this task with this ID.
    pub fn attempt(&self, id: &str) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| attempt.attempt == id)
    }
}

/// An attempt of a task.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct Attempt {
    /// The ID, such as `job_7.m3.0`.
    pub attempt: String,
    /// The tracker that the attempt was launched on.
    pub tracker: String,
    /// The address at which that tracker serves logs.
    #[serde(skip)]
    pub logs_addr: String,
    /// The state of the attempt.
    pub state: String,
    /// The progress of the attempt, from 0 to 1.
    pub progress: f64,
    /// What the attempt is doing: `map`, `shuffle`, `merge` or `reduce`.
    pub stage: String,
    /// When the attempt was launched, in milliseconds since 1970.
    pub launched_ms: u64,
    /// When it ended; 0 before that.
    pub ended_ms: u64,
    /// Whether the attempt was launched because another one of its task is slow or on a suspect
    /// tracker.
    pub speculative: bool,
    /// Locality of the input of a map: `node-local`, `rack-local` or `off-rack`; empty for a
    /// reduce.
    pub locality: String,
    /// Why the scheduler launched the attempt.
    pub why: String,
    /// Why the attempt failed or was killed.
    pub error: String,
    /// The attempt whose checkpoint this attempt resumed from.
    pub resumed_from: String,
    /// How the attempt was preempted: `split`, `pause` or `kill`; empty if it was not preempted.
    pub preempt_kind: String,
    /// When the preemption was requested; 0 if it was not preempted.
    pub preempted_ms: u64,
    /// The tracker that had the output of a map when it was lost, so that the map ran again; empty
    /// if it was not lost.
    pub output_lost_on: String,
    /// The counters of the attempt.
    pub counters: BTreeMap<String, u64>,
}

/// A TaskTracker.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct Tracker {
    /// The name of the tracker.
    pub name: String,
    /// The host of the tracker.
    pub host: String,
    /// The rack of the tracker.
    pub rack: String,
    /// `live`, `suspect`, `awaited` (not registered again since the JobTracker restarted), `lost`,
    /// `draining` or `drained`.
    pub state: String,
    /// Slots for maps.
    pub map_slots: u32,
    /// Slots for reduces.
    pub reduce_slots: u32,
    /// Maps that are running on the tracker.
    pub maps_running: u32,
    /// Reduces that are running on the tracker.
    pub reduces_running: u32,
    /// The time since its last heartbeat.
    pub last_heartbeat_ms_ago: u64,
    /// The measured speed of its maps.
    pub map_rates: Throughput,
    /// The measured speed of its reduces.
    pub reduce_rates: Throughput,
}

/// The progress of the drain of a tracker, or what a drain of the tracker would have to move.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct DrainState {
    /// The state of the tracker.
    pub state: String,
    /// Maps that are running on the tracker.
    pub maps_running: u32,
    /// Reduces that are running on the tracker.
    pub reduces_running: u32,
    /// Map outputs that jobs need and only this tracker has.
    pub outputs: u32,
    /// The size of these outputs.
    pub output_bytes: u64,
    /// Checkpoints that only this tracker has.
    pub checkpoints: u32,
    /// The size of these checkpoints.
    pub checkpoint_bytes: u64,
    /// The number of other trackers that accept work.
    pub others: u32,
    /// The work that the drain has moved and lost so far.
    pub cost: DrainCost,
}

/// The work that a drain has moved and lost so far.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct DrainCost {
    /// Maps that were split.
    pub splits: u32,
    /// Reduces that were paused.
    pub pauses: u32,
    /// Attempts that were killed.
    pub kills: u32,
    /// The run time of the killed attempts.
    pub ms_lost: u64,
    /// Map outputs that other trackers copied.
    pub outputs: u32,
    /// The size of the copied map outputs.
    pub output_bytes: u64,
    /// Checkpoints that other trackers copied.
    pub checkpoints: u32,
    /// The size of the copied checkpoints.
    pub checkpoint_bytes: u64,
    /// Tasks that run again, because their data could not be copied.
    pub redone: u32,
}

/// Sets `remainder_of` of each map that processes the remainder of a split map. A split creates a
/// new task with the next index, so the split map is the one whose range contained the first byte
/// of the new task at that time.
pub fn find_remainders(tasks: &mut [Task]) {
    // For each root, the tasks so far by the start of their range.
    let mut roots = BTreeMap::<u32, BTreeMap<u64, String>>::new();
    for task in tasks.iter_mut().filter(|task| !task.source.is_empty()) {
        let ranges = roots.entry(task.root).or_default();
        task.remainder_of = ranges.range(..task.start).next_back().map(|(_, parent)| parent.clone());
        ranges.insert(task.start, task.task.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_without_tasks_is_described_as_none() {
        assert_eq!(PhaseStatus { progress: 1.0, ..PhaseStatus::default() }.describe(), "none");
        let maps = PhaseStatus {
            total: 8,
            pending: 3,
            running: 2,
            paused: 1,
            done: 2,
            progress: 0.41,
            ..<_>::default()
        };
        let text = "2 of 8 done (41%), 2 running, 3 waiting, 1 paused; 0 attempts failed, 0 killed";
        assert_eq!(maps.describe(), text);
    }

    #[test]
    fn gaps_in_job_ids_mean_forgotten_jobs() {
        let jobs = |numbers: &[u64]| -> Vec<Job> {
            numbers.iter().map(|number| Job { job: format!("job_{number}"), ..Job::default() }).collect()
        };
        assert!(!has_forgotten(&jobs(&[])) && !has_forgotten(&jobs(&[1, 2])));
        assert!(has_forgotten(&jobs(&[2])) && has_forgotten(&jobs(&[1, 1_794_835_503])));
    }
}
