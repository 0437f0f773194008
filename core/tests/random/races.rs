//! Counts the races between requests and reports that occur.

use crate::world::World;
use mrcore::{
    Event, Fact,
    event::Reply,
    ids::{AttemptId, TaskId},
    task::{AttemptState, PreemptKind, Stage},
};
use std::collections::BTreeSet;

/// The state before an event.
#[derive(Debug, Default)]
pub(crate) struct Before {
    /// The state of the attempt that a user preempts.
    asked: Option<AttemptState>,
    /// Whether the task that a user resumes was being paused.
    resumes_pausing: bool,
    /// Attempts that were being paused.
    pausing: BTreeSet<AttemptId>,
    /// Reduces with two viable attempts.
    duplicated: BTreeSet<TaskId>,
    /// The attempts that a tracker reports when it registers; `None` for other events.
    registers: Option<BTreeSet<AttemptId>>,
}

impl World {
    pub(crate) fn before(&self, event: &Event) -> Before {
        let cluster = self.core.cluster();
        let pausing = |task: &TaskId| {
            let mut viable = cluster.task(*task).into_iter().flat_map(mrcore::task::Task::viable);
            viable.any(|attempt| attempt.state == AttemptState::Pausing)
        };
        let mut before = Before::default();
        match event {
            Event::Preemption { attempt, .. } => {
                before.asked = cluster.attempt(*attempt).map(|attempt| attempt.state);
            }
            Event::Resumption { task, .. } => before.resumes_pausing = pausing(task),
            Event::Registration { tracker, .. } => {
                before.registers = Some(tracker.attempts.iter().map(|report| report.attempt).collect());
            }
            _ => {}
        }
        let running: Vec<&AttemptId> = cluster.jobs().flat_map(|job| &job.running.reduce).collect();
        let is_pausing =
            |id: &&AttemptId| cluster.attempt(**id).is_some_and(|at| at.state == AttemptState::Pausing);
        before.pausing = running.iter().copied().filter(is_pausing).copied().collect();
        let duplicated = |task: &&mrcore::task::Task| task.viable().count() > 1;
        let tasks = running.into_iter().filter_map(|id| cluster.task(id.task));
        before.duplicated = tasks.filter(duplicated).map(|task| task.id).collect();
        before
    }

    pub(crate) fn note_reply(&mut self, before: &Before, reply: &Reply) {
        match (before.asked, reply) {
            (Some(_), Reply::Refused(why)) if why.contains("too late to preempt") => {
                self.counts.preemptions_too_late += 1;
            }
            (Some(_), Reply::Refused(why)) if why.contains("it has ended") => {
                self.counts.preemptions_after_end += 1;
            }
            (Some(AttemptState::Pausing | AttemptState::Splitting), _) => {
                self.counts.preemptions_repeated += 1;
            }
            _ => {}
        }
        self.counts.resumes_while_pausing += u32::from(before.resumes_pausing && *reply == Reply::Accepted);
    }

    pub(crate) fn note_race(&mut self, before: &Before, fact: &Fact) {
        let cluster = self.core.cluster();
        match fact {
            Fact::PreemptionRequested { attempt, kind: PreemptKind::Kill, why, .. } => {
                self.counts.overdue += u32::from(why.contains("still holds its slot"));
                self.counts.kills_after_pause += u32::from(before.pausing.contains(attempt));
            }
            Fact::AttemptPaused { attempt, .. } => {
                self.counts.duplicates_paused += u32::from(before.duplicated.contains(&attempt.task));
                let unreported = before.registers.as_ref().is_some_and(|sent| !sent.contains(attempt));
                self.counts.pauses_unreported += u32::from(unreported);
            }
            Fact::AttemptKilled { attempt, why, .. } => {
                self.counts.behind_other_checkpoint +=
                    u32::from(why.contains("a checkpoint with more progress"));
                self.counts.remainders_lost += u32::from(self.is_remainder(attempt.task));
            }
            Fact::MapOutputLost { attempt, .. } => {
                let waits = |task: &mrcore::task::Task| {
                    task.checkpoint.is_some_and(|checkpoint| checkpoint.stage == Stage::Shuffle)
                };
                let job = cluster.job(attempt.job());
                let paused = job.is_some_and(|job| job.tasks.reduce.iter().any(waits));
                self.counts.replaced_after_pause += u32::from(paused);
                self.counts.remainders_lost += u32::from(self.is_remainder(attempt.task));
            }
            Fact::PreemptionRefused { .. } => self.counts.refused += 1,
            Fact::JobTrackerStarted { .. } => {
                self.counts.restarts_while_pausing += before.pausing.len() as u32;
            }
            _ => {}
        }
    }

    fn is_remainder(&self, id: TaskId) -> bool {
        self.core
            .cluster()
            .task(id)
            .is_some_and(|task| task.root != id.index && id.phase == mrcore::Phase::Map)
    }
}
