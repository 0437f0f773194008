//! Jobs, tasks and trackers as `--json` prints them.

#![allow(clippy::struct_field_names, reason = "the names are those of the JSON")]

use super::scheduling::Throughput;
use crate::output::count;
use mrlib::error::last_line;
use serde::Serialize;
use std::collections::BTreeMap;

/// The progress of a phase of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Phase {
    pub(crate) total: u32,
    pub(crate) pending: u32,
    pub(crate) running: u32,
    /// Tasks that a user put on hold.
    pub(crate) paused: u32,
    pub(crate) done: u32,
    pub(crate) failed_attempts: u32,
    pub(crate) killed_attempts: u32,
    pub(crate) progress: f64,
}

impl Phase {
    /// `3 of 8 done (41%), 2 running, 3 waiting; 0 attempts failed, 1 killed`.
    pub(crate) fn describe(&self) -> String {
        let paused = if self.paused > 0 { format!(", {} put on hold", self.paused) } else { String::new() };
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

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Job {
    pub(crate) job: String,
    pub(crate) name: String,
    pub(crate) user: String,
    pub(crate) queue: String,
    pub(crate) priority: String,
    pub(crate) program: String,
    pub(crate) state: String,
    pub(crate) why: String,
    pub(crate) submitted_ms: u64,
    pub(crate) started_ms: u64,
    pub(crate) ended_ms: u64,
    pub(crate) maps: Phase,
    pub(crate) reduces: Phase,
    pub(crate) local_maps: u64,
    pub(crate) rack_maps: u64,
    pub(crate) inputs: Vec<String>,
    pub(crate) output: String,
    pub(crate) counters: BTreeMap<String, u64>,
    pub(crate) preemption: Preemption,
    /// Whether inputs, output and counters are left out, because the caller is not the owner.
    pub(crate) partial: bool,
}

/// The work that preemption has saved and lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Preemption {
    pub(crate) splits: u32,
    pub(crate) pauses: u32,
    pub(crate) resumes: u32,
    pub(crate) migrations: u32,
    pub(crate) kills: u32,
    pub(crate) checkpoints_lost: u32,
    pub(crate) bytes_saved: u64,
    pub(crate) ms_saved: u64,
    pub(crate) bytes_lost: u64,
    pub(crate) ms_lost: u64,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) latency_ms: u64,
}

impl Job {
    /// Whether the job has ended.
    pub(crate) fn is_over(&self) -> bool {
        !matches!(self.state.as_str(), "running" | "committing")
    }

    /// From submission to end.
    pub(crate) fn seconds(&self) -> f64 {
        self.ended_ms.saturating_sub(self.submitted_ms) as f64 / 1000.0
    }

    /// How many maps were node-local or rack-local. None for a job without real input: the maps of
    /// teragen read only a line that describes the rows to generate.
    pub(crate) fn locality(&self) -> Option<String> {
        let reads = self.maps.total > 0 && self.program.rsplit(':').next() != Some("teragen");
        reads.then(|| format!("{} node-local, {} rack-local", self.local_maps, self.rack_maps))
    }

    /// The state for users: "waiting" if no attempt runs.
    pub(crate) fn display_state(&self) -> &str {
        if self.is_waiting() { "waiting" } else { &self.state }
    }

    /// The last line of the reason why it failed or was killed. In a stack trace this line names
    /// the exception.
    pub(crate) fn short_reason(&self) -> &str {
        last_line(&self.why)
    }

    /// Whether it is running but has no slot.
    pub(crate) fn is_waiting(&self) -> bool {
        self.state == "running" && self.maps.running + self.reduces.running == 0
    }
}

/// Whether the JobTracker may have forgotten older jobs, judged by the job numbers. Their number is
/// unknown, because a recovered JobTracker skips numbers.
pub(crate) fn has_forgotten<'a>(jobs: impl IntoIterator<Item = &'a Job>) -> bool {
    let number = |job: &Job| job.job.strip_prefix("job_").and_then(|number| number.parse::<u64>().ok());
    let (count, newest) = jobs.into_iter().fold((0, 0), |(count, newest), job| {
        (count + 1, number(job).map_or(newest, |number| number.max(newest)))
    });
    newest > count
}

/// The attempt with this ID, or the newest attempt of the task with this ID.
pub(crate) fn attempt_of<'a>(tasks: &'a [Task], id: &str) -> Option<&'a Attempt> {
    let exact = tasks.iter().find_map(|task| task.attempt(id));
    exact.or_else(|| tasks.iter().find(|task| task.task == id)?.attempts.last())
}

/// A task and its attempts.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Task {
    pub(crate) task: String,
    pub(crate) state: String,
    pub(crate) source: String,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) root: u32,
    /// The map that was split, if this task is the remainder of its range.
    pub(crate) tail_of: Option<String>,
    pub(crate) on_hold: bool,
    /// The paused attempt that the next one resumes from; empty if there is none.
    pub(crate) paused: String,
    pub(crate) paused_on: String,
    pub(crate) paused_bytes: u64,
}

impl Task {
    /// The attempts that occupy a slot.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(|attempt| attempt.ended_ms == 0 && attempt.state != "succeeded")
    }

    pub(crate) fn attempt(&self, id: &str) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| attempt.attempt == id)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Attempt {
    pub(crate) attempt: String,
    pub(crate) tracker: String,
    #[serde(skip)]
    pub(crate) logs_addr: String,
    pub(crate) state: String,
    pub(crate) progress: f64,
    pub(crate) stage: String,
    pub(crate) launched_ms: u64,
    pub(crate) ended_ms: u64,
    pub(crate) speculative: bool,
    pub(crate) locality: String,
    pub(crate) why: String,
    pub(crate) error: String,
    pub(crate) resumed_from: String,
    pub(crate) preempt_kind: String,
    pub(crate) preempted_ms: u64,
    pub(crate) counters: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Tracker {
    pub(crate) name: String,
    pub(crate) host: String,
    pub(crate) rack: String,
    pub(crate) state: String,
    pub(crate) map_slots: u32,
    pub(crate) reduce_slots: u32,
    pub(crate) maps_running: u32,
    pub(crate) reduces_running: u32,
    pub(crate) last_heartbeat_ms_ago: u64,
    pub(crate) map_rates: Throughput,
    pub(crate) reduce_rates: Throughput,
}

/// The progress of the drain of a tracker. For a tracker that is not draining: what a drain would
/// have to move.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(crate) struct DrainState {
    pub(crate) state: String,
    pub(crate) maps_running: u32,
    pub(crate) reduces_running: u32,
    /// Map outputs that jobs need and only this tracker has.
    pub(crate) outputs: u32,
    pub(crate) output_bytes: u64,
    /// Checkpoints that only this tracker has.
    pub(crate) checkpoints: u32,
    pub(crate) checkpoint_bytes: u64,
    /// The number of other trackers that accept work.
    pub(crate) others: u32,
    pub(crate) cost: DrainCost,
}

/// What a drain has done so far.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(crate) struct DrainCost {
    pub(crate) splits: u32,
    pub(crate) pauses: u32,
    pub(crate) kills: u32,
    pub(crate) ms_lost: u64,
    pub(crate) outputs: u32,
    pub(crate) output_bytes: u64,
    pub(crate) checkpoints: u32,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) redone: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_in_job_numbers_mean_forgotten_jobs() {
        let jobs = |numbers: &[u64]| -> Vec<Job> {
            numbers.iter().map(|number| Job { job: format!("job_{number}"), ..Job::default() }).collect()
        };
        assert!(!has_forgotten(&jobs(&[])) && !has_forgotten(&jobs(&[1, 2])));
        assert!(has_forgotten(&jobs(&[2])) && has_forgotten(&jobs(&[1, 1_794_835_503])));
    }
}
