//! The races that the core settles, as they are seen to happen.

use crate::world::World;
use mrcore::{
    Event, Fact,
    event::Reply,
    ids::{AttemptId, TaskId},
    task::{AttemptState, PreemptKind, Stage},
};
use std::collections::BTreeSet;

/// What was so before an event.
#[derive(Debug, Default)]
pub(crate) struct Before {
    /// An attempt that somebody wants the slot of, and where it stood.
    asked: Option<AttemptState>,
    /// A task that somebody wants to continue was being paused.
    resumes_pausing: bool,
    /// Attempts that were being paused.
    pausing: BTreeSet<AttemptId>,
    /// Reduces that two attempts tried at.
    doubled: BTreeSet<TaskId>,
    /// Attempts that a tracker reports as it registers; none with any other event.
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
        let doubled = |task: &&mrcore::task::Task| task.viable().count() > 1;
        let tasks = running.into_iter().filter_map(|id| cluster.task(id.task));
        before.doubled = tasks.filter(doubled).map(|task| task.id).collect();
        before
    }

    pub(crate) fn note_reply(&mut self, before: &Before, reply: &Reply) {
        match (before.asked, reply) {
            (Some(_), Reply::Refused(why)) if why.contains("is being moved into place") => {
                self.counts.preemptions_too_late += 1;
            }
            (Some(_), Reply::Refused(why)) if why.contains("it has ended") => {
                self.counts.preemptions_after_end += 1;
            }
            (Some(AttemptState::Pausing | AttemptState::Splitting), _) => {
                self.counts.preemptions_repeated += 1
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
                self.counts.duplicates_paused += u32::from(before.doubled.contains(&attempt.task));
                let unsent = before.registers.as_ref().is_some_and(|sent| !sent.contains(attempt));
                self.counts.pauses_unreported += u32::from(unsent);
            }
            Fact::AttemptKilled { attempt, why, .. } => {
                self.counts.less_far += u32::from(why.contains("another attempt's state is further"));
                self.counts.tails_lost += u32::from(self.is_tail(attempt.task));
            }
            Fact::MapOutputLost { attempt, .. } => {
                let waits = |task: &mrcore::task::Task| {
                    task.checkpoint.is_some_and(|checkpoint| checkpoint.stage == Stage::Shuffle)
                };
                let job = cluster.job(attempt.job());
                let paused = job.is_some_and(|job| job.tasks.reduce.iter().any(waits));
                self.counts.replaced_after_pause += u32::from(paused);
                self.counts.tails_lost += u32::from(self.is_tail(attempt.task));
            }
            Fact::PreemptionRefused { .. } => self.counts.refused += 1,
            Fact::JobTrackerStarted { .. } => {
                self.counts.restarts_while_pausing += before.pausing.len() as u32
            }
            _ => {}
        }
    }

    fn is_tail(&self, id: TaskId) -> bool {
        self.core
            .cluster()
            .task(id)
            .is_some_and(|task| task.root != id.index && id.phase == mrcore::Phase::Map)
    }
}
