//! Which task of a job takes a slot: a map near its input, or a reduce near its checkpoint.

use super::{Coda, FETCH_BYTES_PER_S, PATIENCE, PATIENCE_MIN_S, Waits, estimator::part_reduced, nodes::SLOW};
use mrcore::{
    Phase, Plan, Span,
    ids::{JobId, TaskId, TrackerId},
    job::Job,
    plan::CheckpointPlace,
    task::{Attempt, Task},
};

/// Maps that are slower elsewhere by less than this factor do not wait for a node-local slot.
const REMOTE_SLOWDOWN_MIN: f64 = 1.05;

impl Coda {
    /// Returns the map that a job would run on a tracker, and how near its input is. A job waits for
    /// a node-local slot, at most as long as a map loses elsewhere.
    pub(super) fn map_for(
        &self,
        job: &Job,
        tracker: TrackerId,
        waits: &mut Waits,
        plan: &Plan<'_>,
    ) -> Option<(TaskId, &'static str)> {
        let waited = waits.locality.since(job.id).map_or(Span(0), |since| plan.now().since(since));
        let is_over = waited.as_secs_f64() >= self.remote_loss_s(job.id);
        let (task, near) = waits.locality.next_map(job, tracker, is_over, plan)?;
        Some((task, near.name()))
    }

    /// Returns the seconds that a map of a job loses if it is not node-local.
    pub(super) fn remote_loss_s(&self, job: JobId) -> f64 {
        if !self.settings.measures_locality {
            return f64::INFINITY;
        }
        let slowdown = self.nodes.remote_slowdown();
        let loss_s = self.state(job).work.task_s.map * (slowdown - 1.0);
        if slowdown < REMOTE_SLOWDOWN_MIN { 0.0 } else { loss_s }
    }

    /// Returns the reduce that a job would run on a tracker: one whose checkpoint is there, a new
    /// one, or one whose checkpoint can be copied sooner than a slot is free where it is.
    pub(super) fn reduce_for(
        &self,
        job: &Job,
        tracker: TrackerId,
        plan: &Plan<'_>,
    ) -> Option<(TaskId, &'static str)> {
        if !self.settings.waits_for_checkpoint {
            return Some((plan.next_reduce(job, tracker)?, ""));
        }
        if let Some((task, place)) = plan.next_reduce_at(job, tracker, CheckpointPlace::None) {
            return Some((task, if place == CheckpointPlace::Local { "resumed" } else { "" }));
        }
        let mut paused =
            self.paused.tasks_of(job.id).filter_map(|index| job.tasks.reduce.get(index as usize));
        let found = paused.find(|task| {
            plan.reserved_place(task.id).is_none()
                && plan.could_run(task.id, tracker).is_ok()
                && self.may_migrate(task, plan)
        });
        found.map(|task| (task.id, "migrated"))
    }

    /// Returns whether a paused reduce may resume on a node without its checkpoint.
    fn may_migrate(&self, task: &Task, plan: &Plan<'_>) -> bool {
        let Some(checkpoint) = task.checkpoint else { return false };
        let copy_s = checkpoint.bytes as f64 / FETCH_BYTES_PER_S;
        let home = checkpoint.tracker;
        let paused_at = plan.cluster().attempt(checkpoint.attempt).and_then(|paused| paused.ended);
        let waited_s = paused_at.map_or(0.0, |at| plan.now().since(at).as_secs_f64());
        copy_s < self.release_s(home, plan)
            || plan.could_run(task.id, home).is_err()
            || waited_s > PATIENCE * copy_s + PATIENCE_MIN_S
    }

    /// Returns the seconds until a reduce slot of a tracker is free.
    fn release_s(&self, tracker: TrackerId, plan: &Plan<'_>) -> f64 {
        if plan.free_slots(tracker, Phase::Reduce) > 0 {
            return if self.speed(tracker) < SLOW { f64::INFINITY } else { 0.0 };
        }
        let Some(tracker) = plan.cluster().tracker(tracker).filter(|tracker| tracker.accepts_work()) else {
            return f64::INFINITY;
        };
        let attempts = tracker.running.reduce.iter().filter_map(|id| plan.cluster().attempt(*id));
        attempts.map(|attempt| self.remaining_s(attempt, plan)).fold(f64::INFINITY, f64::min)
    }

    /// Returns the seconds until an attempt ends by itself. A reduce that has already taken longer
    /// than predicted needs at least as much more.
    pub(super) fn remaining_s(&self, attempt: &Attempt, plan: &Plan<'_>) -> f64 {
        let progress = plan.cluster().progress(attempt);
        let state = self.state(attempt.id.job());
        let elapsed = plan.now().since(attempt.launched).as_secs_f64();
        match attempt.id.phase() {
            Phase::Map => {
                let done = f64::from(progress.done);
                if done > 0.0 { elapsed * (1.0 - done) / done } else { state.work.task_s.map }
            }
            Phase::Reduce => {
                let task_s = state.work.task_s.reduce;
                let job = plan.cluster().job(attempt.id.job());
                let taken = job.and_then(|job| job.reduce_time(attempt.id, plan.now()));
                let overrun_s = taken.map_or(0.0, |taken| taken.as_secs_f64() - task_s);
                let left_s = (task_s * (1.0 - part_reduced(progress))).max(overrun_s);
                state.maps_end_s + left_s / self.speed(attempt.tracker).min(1.0)
            }
        }
    }
}
