//! Applies the facts about map outputs (lost, served at a different address, copied to another
//! tracker), copied checkpoints and drains.

use super::{
    Durable,
    apply::{ApplyError, apply_error},
};
use crate::{
    ids::{AttemptId, TrackerId},
    job::MapEvent,
    phase::Phase,
    task::{Task, Work},
    time::{Span, Time},
    tracker::{Drain, DrainCost},
};

impl Durable {
    pub(super) fn map_output_lost(&mut self, id: AttemptId, unfetched: bool) -> Result<(), ApplyError> {
        let task = self.task_mut(id.task)?;
        if id.phase() != Phase::Map || task.done_by != Some(id.number) {
            return apply_error(format!("{id} has no output"));
        }
        task.done_by = None;
        let bytes = task.bytes();
        let attempt = &mut task.attempts[id.number as usize];
        let result = attempt.result.take().unwrap_or_default();
        let on = attempt.output_on;
        let task_time = attempt.ended.map_or(Span(0), |ended| ended.since(attempt.launched));
        if unfetched {
            task.unfetched += 1;
            task.avoided_trackers.insert(on);
        }
        let job = self.job_mut(id.job())?;
        if unfetched {
            *job.failures.entry(on).or_default() += 1;
        }
        job.succeeded.map -= 1;
        job.task_time.map.0 -= task_time.0;
        job.bytes_mapped -= bytes;
        for (name, value) in &result.counters {
            if let Some(sum) = job.counters.get_mut(name) {
                *sum = sum.wrapping_sub(*value);
            }
        }
        job.maps_done = None;
        job.map_events.push(MapEvent::Withdrawn(id));
        if let Some(tracker) = self.trackers.get_mut(&on) {
            tracker.outputs.remove(&id);
        }
        self.add_drain_cost(on, |cost| cost.redone += 1);
        self.update_saved_work(id.task, Work::default())?;
        self.update_pending(id.task)
    }

    pub(super) fn map_output_moved(&mut self, id: AttemptId) -> Result<(), ApplyError> {
        let winner = self.task(id.task).and_then(Task::winning_attempt).filter(|winner| winner.id == id);
        let Some(on) = winner.map(|winner| winner.output_on) else {
            return apply_error(format!("{id} has no output"));
        };
        self.job_mut(id.job())?.map_events.push(MapEvent::Available(id, on));
        Ok(())
    }

    pub(super) fn map_output_copied(
        &mut self,
        id: AttemptId,
        by: TrackerId,
        bytes: u64,
    ) -> Result<(), ApplyError> {
        let task = self.task_mut(id.task)?;
        if id.phase() != Phase::Map || task.done_by != Some(id.number) {
            return apply_error(format!("{id} has no output"));
        }
        let from = std::mem::replace(&mut task.attempts[id.number as usize].output_on, by);
        self.job_mut(id.job())?.map_events.push(MapEvent::Available(id, by));
        if let Some(tracker) = self.trackers.get_mut(&from) {
            tracker.outputs.remove(&id);
        }
        self.tracker_mut(by)?.outputs.insert(id);
        self.add_drain_cost(from, |cost| {
            cost.outputs += 1;
            cost.output_bytes += bytes;
        });
        Ok(())
    }

    pub(super) fn checkpoint_copied(
        &mut self,
        id: AttemptId,
        by: TrackerId,
        bytes: u64,
    ) -> Result<(), ApplyError> {
        let checkpoint = self.task_mut(id.task)?.checkpoint.as_mut();
        let Some(checkpoint) = checkpoint.filter(|checkpoint| checkpoint.attempt == id) else {
            return apply_error(format!("{id} has no checkpoint"));
        };
        let from = std::mem::replace(&mut checkpoint.tracker, by);
        if let Some(tracker) = self.trackers.get_mut(&from) {
            tracker.checkpoints.remove(&id);
        }
        self.tracker_mut(by)?.checkpoints.insert(id);
        self.add_drain_cost(from, |cost| {
            cost.checkpoints += 1;
            cost.checkpoint_bytes += bytes;
        });
        Ok(())
    }

    fn tracker_mut(&mut self, id: TrackerId) -> Result<&mut crate::tracker::Tracker, ApplyError> {
        self.trackers.get_mut(&id).ok_or_else(|| ApplyError(format!("{id} is not known")))
    }

    /// Starts a drain. If the tracker is already being drained, changes only the deadline.
    pub(super) fn tracker_draining(
        &mut self,
        at: Time,
        id: TrackerId,
        by: &str,
        until: Time,
    ) -> Result<(), ApplyError> {
        let new = Drain { by: by.to_owned(), since: at, until, cost: DrainCost::default() };
        let changed = self.change_tracker(id, |tracker| tracker.drain.get_or_insert(new).until = until);
        changed.ok_or_else(|| ApplyError(format!("{id} is not known")))?;
        self.draining_trackers.insert(id);
        Ok(())
    }

    pub(super) fn drain_cancelled(&mut self, id: TrackerId) -> Result<(), ApplyError> {
        let changed = self.change_tracker(id, |tracker| tracker.drain = None);
        changed.ok_or_else(|| ApplyError(format!("{id} is not known")))?;
        self.draining_trackers.remove(&id);
        Ok(())
    }

    /// Adds to the cost of a drain, if the tracker is being drained.
    pub(super) fn add_drain_cost(&mut self, id: TrackerId, add: impl FnOnce(&mut DrainCost)) {
        if let Some(drain) = self.trackers.get_mut(&id).and_then(|tracker| tracker.drain.as_mut()) {
            add(&mut drain.cost);
        }
    }
}
