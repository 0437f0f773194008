//! Combines all facts of a run into a hash, and measures attempts. Runs with the same hash have the
//! same facts.

use crate::rng::mix;
use mrcore::{
    Fact, Phase, Time,
    ids::{AttemptId, TaskId},
};
use std::collections::BTreeMap;

/// Hash of the facts so far.
#[derive(Debug, Default)]
pub(super) struct Trace {
    pub(super) hash: u64,
    pub(super) facts: u64,
}

impl Trace {
    pub(super) fn add(&mut self, at: Time, fact: &Fact) {
        // Answers have no effect of their own. The hashes of earlier results do not contain them.
        let Some([kind, one, two]) = hash_input(fact) else { return };
        self.facts += 1;
        for word in [at.0, kind, one, two] {
            self.hash = mix(self.hash ^ word).wrapping_add(word);
        }
    }
}

/// How long successful attempts hold their slots.
#[derive(Debug, Default)]
pub(super) struct TaskTimes {
    is_on: bool,
    launched: BTreeMap<AttemptId, Time>,
    /// Seconds of each successful attempt.
    pub(super) done: Vec<f32>,
}

impl TaskTimes {
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on, ..Self::default() }
    }

    pub(super) fn observe(&mut self, at: Time, fact: &Fact) {
        match fact {
            Fact::AttemptLaunched { attempt, .. } if self.is_on => {
                self.launched.insert(*attempt, at);
            }
            Fact::AttemptSucceeded { attempt, .. } => {
                let launched = self.launched.remove(attempt);
                self.done.extend(launched.map(|launched| at.since(launched).as_secs_f64() as f32));
            }
            _ => {}
        }
    }
}

fn task_bits(id: TaskId) -> u64 {
    u64::from(id.job.0) << 32 | u64::from(id.index) << 1 | u64::from(id.phase == Phase::Reduce)
}

fn attempt_bits(id: AttemptId) -> u64 {
    mix(task_bits(id.task)) ^ u64::from(id.number)
}

/// Returns the kind of a fact and two values that distinguish it from others of its kind. Returns
/// `None` for a fact that is not hashed.
fn hash_input(fact: &Fact) -> Option<[u64; 3]> {
    Some(match fact {
        Fact::JobTrackerStarted { epoch, .. } => [1, *epoch, 0],
        Fact::TrackerJoined { tracker, incarnation, .. } => [2, u64::from(tracker.0), incarnation.0],
        Fact::TrackerSuspected { tracker, .. } => [3, u64::from(tracker.0), 0],
        Fact::TrackerRecovered { tracker } => [4, u64::from(tracker.0), 0],
        Fact::TrackerLost { tracker, .. } => [5, u64::from(tracker.0), 0],
        Fact::JobSubmitted { job, .. } => [6, u64::from(job.0), 0],
        Fact::JobCommitting { job } => [7, u64::from(job.0), 0],
        Fact::JobEnded { job, outcome } => {
            [8, u64::from(job.0), u64::from(*outcome == mrcore::job::JobOutcome::Succeeded)]
        }
        Fact::JobForgotten { job } => [9, u64::from(job.0), 0],
        Fact::AttemptLaunched { attempt: id, tracker, .. } => [10, attempt_bits(*id), u64::from(tracker.0)],
        Fact::PreemptionRequested { attempt: id, kind, .. } => [11, attempt_bits(*id), *kind as u64],
        Fact::MapSplit { attempt: id, position, .. } => [12, attempt_bits(*id), *position],
        Fact::AttemptPaused { attempt: id, bytes, .. } => [13, attempt_bits(*id), *bytes],
        Fact::TaskReleased { task: id } => [14, task_bits(*id), 0],
        Fact::CheckpointLost { attempt: id, .. } => [15, attempt_bits(*id), 0],
        Fact::AttemptSucceeded { attempt: id, result } => [16, attempt_bits(*id), result.bytes_out],
        Fact::AttemptFailed { attempt: id, .. } => [17, attempt_bits(*id), 0],
        Fact::AttemptKilled { attempt: id, bytes_in, .. } => [18, attempt_bits(*id), *bytes_in],
        Fact::MapOutputLost { attempt: id, .. } => [19, attempt_bits(*id), 0],
        Fact::MapOutputMoved { attempt: id } => [20, attempt_bits(*id), 0],
        Fact::TrackerBlacklisted { job, tracker } => [21, u64::from(job.0), u64::from(tracker.0)],
        Fact::IdsSkipped { epoch, job } => [22, *epoch, u64::from(*job)],
        Fact::TrackerDraining { tracker, until, .. } => [24, u64::from(tracker.0), until.0],
        Fact::DrainCancelled { tracker, .. } => [25, u64::from(tracker.0), 0],
        Fact::TrackerForgotten { tracker, .. } => [31, u64::from(tracker.0), 0],
        Fact::MapOutputCopied { attempt: id, tracker, .. } => [26, attempt_bits(*id), u64::from(tracker.0)],
        Fact::CheckpointCopied { attempt: id, tracker, .. } => [27, attempt_bits(*id), u64::from(tracker.0)],
        Fact::PreemptionRefused { attempt: id, refusals, .. } => {
            [29, attempt_bits(*id), u64::from(*refusals)]
        }
        Fact::PreemptionDeadlineSet { attempt: id, until } => [30, attempt_bits(*id), until.0],
        Fact::RequestAnswered { .. } | Fact::StartRecorded { .. } => return None,
    })
}
