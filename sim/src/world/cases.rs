//! Counts rare cases of a checked run.

use crate::Cases;
use mrcore::{
    Cluster, Event, Fact, Phase,
    event::{FetchFailure, Reply},
    ids::{AttemptId, TaskId},
    job::JobOutcome,
    task::{AttemptState, PreemptKind, Stage, Task},
};
use std::collections::BTreeSet;

/// The part of the state before an event that is needed to recognise rare cases.
#[derive(Debug, Default)]
pub(super) struct Before {
    /// The state of the attempt that a user preempts.
    preempted_state: Option<AttemptState>,
    /// Whether the task that a user resumes was being paused.
    resumes_pausing: bool,
    /// Attempts that were being paused.
    pausing: BTreeSet<AttemptId>,
    /// Reduces with more than one viable attempt, that is, one whose result may still count.
    reduces_with_two_attempts: BTreeSet<TaskId>,
    /// Whether a tracker registers with an attempt that the JobTracker no longer expects to run.
    pub(super) reports_given_up_attempt: bool,
    /// Whether all fetch failures of a heartbeat are about outdated addresses of map outputs.
    pub(super) only_outdated_fetch_failures: bool,
    /// The attempts that a tracker reports when it registers; `None` for other events.
    registered_attempts: Option<BTreeSet<AttemptId>>,
}

impl Before {
    pub(super) fn new(event: &Event, cluster: &Cluster) -> Self {
        let is_pausing =
            |id: &AttemptId| cluster.attempt(*id).is_some_and(|at| at.state == AttemptState::Pausing);
        let mut before = Self::default();
        match event {
            Event::Preemption { attempt, .. } => {
                before.preempted_state = cluster.attempt(*attempt).map(|attempt| attempt.state);
            }
            Event::Resumption { task, .. } => {
                let mut viable = cluster.task(*task).into_iter().flat_map(Task::viable_attempts);
                before.resumes_pausing = viable.any(|attempt| attempt.state == AttemptState::Pausing);
            }
            Event::Heartbeat(heartbeat) => {
                let mut failures = heartbeat.fetch_failures.iter();
                before.only_outdated_fetch_failures = failures.all(|failure| !is_current(failure, cluster));
            }
            Event::Registration { tracker, .. } => {
                let holds = |id| cluster.attempt(id).is_some_and(|attempt| attempt.state.holds_slot());
                before.reports_given_up_attempt =
                    tracker.attempts.iter().any(|report| !holds(report.attempt));
                before.registered_attempts =
                    Some(tracker.attempts.iter().map(|report| report.attempt).collect());
            }
            _ => {}
        }
        let running: Vec<AttemptId> = cluster.jobs().flat_map(|job| &job.running.reduce).copied().collect();
        before.pausing = running.iter().copied().filter(is_pausing).collect();
        let tasks = running.into_iter().filter_map(|id| cluster.task(id.task));
        before.reduces_with_two_attempts =
            tasks.filter(|task| task.viable_attempts().count() > 1).map(|task| task.id).collect();
        before
    }
}

impl Cases {
    pub(super) fn note_reply(&mut self, before: &Before, reply: &Reply) {
        if let (Some(state), Reply::Refused(why)) = (before.preempted_state, reply) {
            self.add("preemption too late", why.contains("too late to preempt"));
            self.add("preemption after the end", why.contains("it has ended"));
            let releasing = matches!(state, AttemptState::Pausing | AttemptState::Splitting);
            self.add("preemption repeated", releasing);
        } else if matches!(before.preempted_state, Some(AttemptState::Pausing | AttemptState::Splitting)) {
            self.add("preemption repeated", true);
        }
        self.add("resumed while being paused", before.resumes_pausing && *reply == Reply::Accepted);
    }

    pub(super) fn note_fact(&mut self, before: &Before, fact: &Fact, cluster: &Cluster) {
        let is_remainder =
            |id: TaskId| id.phase == Phase::Map && cluster.task(id).is_some_and(|task| task.root != id.index);
        match fact {
            Fact::JobEnded { outcome, .. } => {
                self.add("job succeeded", *outcome == JobOutcome::Succeeded);
                self.add("job failed", matches!(outcome, JobOutcome::Failed(_)));
                self.add("job killed", matches!(outcome, JobOutcome::Killed(_)));
            }
            Fact::AttemptLaunched { speculative, resumed_from, .. } => {
                self.add("speculative attempt", *speculative);
                self.add("resume", resumed_from.is_some());
                self.add("speculative attempt resumed", *speculative && resumed_from.is_some());
            }
            Fact::PreemptionRequested { attempt, kind: PreemptKind::Kill, why, .. } => {
                self.add("not started", why.contains("did not start it"));
                self.add("killed at its deadline", why.contains("still holds its slot"));
                self.add("killed while being paused", before.pausing.contains(attempt));
            }
            Fact::PreemptionRefused { .. } => self.add("preemption refused by the task", true),
            Fact::MapSplit { attempt, .. } => {
                self.add("split", true);
                self.add("split of a remainder", is_remainder(attempt.task));
            }
            Fact::AttemptPaused { attempt, .. } => {
                let resumed = cluster.attempt(*attempt).is_some_and(|paused| paused.resumed_from.is_some());
                let unreported =
                    before.registered_attempts.as_ref().is_some_and(|sent| !sent.contains(attempt));
                self.add("pause", true);
                self.add("paused again", resumed);
                let had_two_attempts = before.reduces_with_two_attempts.contains(&attempt.task);
                self.add("one of two attempts paused", had_two_attempts);
                self.add("pause found at the start of the tracker", unreported);
            }
            Fact::AttemptKilled { attempt, why, .. } => {
                self.add("checkpoint behind another", why.contains("a checkpoint with more progress"));
                self.add("remainder lost", is_remainder(attempt.task));
            }
            Fact::MapOutputLost { attempt, unfetched, .. } => {
                let waits = |task: &Task| {
                    task.checkpoint.is_some_and(|checkpoint| checkpoint.stage == Stage::Shuffle)
                };
                let job = cluster.job(attempt.job());
                self.add("output not fetched", *unfetched);
                self.add("output lost", !*unfetched);
                let paused = job.is_some_and(|job| job.tasks.reduce.iter().any(waits));
                self.add("output replaced after a pause", paused);
                self.add("remainder lost", is_remainder(attempt.task));
            }
            Fact::JobTrackerStarted { .. } => {
                self.add("restart", true);
                self.add("restart during a pause", !before.pausing.is_empty());
            }
            _ => self.note_other(fact),
        }
    }

    fn note_other(&mut self, fact: &Fact) {
        let name = match fact {
            Fact::TrackerLost { .. } => "tracker lost",
            Fact::TrackerBlacklisted { .. } => "tracker blacklisted",
            Fact::JobForgotten { .. } => "job forgotten",
            Fact::TaskReleased { .. } => "task released",
            Fact::CheckpointLost { .. } => "checkpoint lost",
            Fact::TrackerDraining { .. } => "drain",
            Fact::MapOutputCopied { .. } => "output copied",
            Fact::CheckpointCopied { .. } => "checkpoint copied",
            _ => return,
        };
        self.add(name, true);
    }
}

/// Returns whether a fetch failed at the current address of the map output.
fn is_current(failure: &FetchFailure, cluster: &Cluster) -> bool {
    let output_on = cluster.attempt(failure.map).and_then(|map| cluster.tracker(map.output_on));
    output_on.is_some_and(|output_on| output_on.shuffle_addr == failure.addr)
}
