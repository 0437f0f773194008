//! Checks whether a task may run on a tracker.

use super::{Plan, Refused};
use crate::{
    ids::{TaskId, TrackerId},
    job::Job,
    phase::Phase,
    task::{Attempt, AttemptState, Task},
    tracker::{Tracker, TrackerState},
};

impl Plan<'_> {
    /// Checks whether `assign` would accept the task. Returns whether the attempt would be
    /// speculative.
    pub(super) fn check(&self, id: TaskId, on: TrackerId) -> Result<bool, Refused> {
        // First, because it costs least, and trackers with many reservations are often full.
        if self.free_slots(on, id.phase) == 0 {
            return Err(Refused::NoSlot { tracker: on, phase: id.phase });
        }
        self.could_run(id, on)
    }

    /// Checks whether a tracker could run a task if the tracker had a free slot. Returns whether
    /// the attempt would be speculative.
    pub fn could_run(&self, id: TaskId, on: TrackerId) -> Result<bool, Refused> {
        let Some(job) = self.cluster.job(id.job).filter(|job| job.is_running()) else {
            return Err(Refused::NotPending(id));
        };
        let task = job.task(id).ok_or(Refused::NotPending(id))?;
        self.fits(job, task, on)?;
        if job.pending[id.phase].contains(id.index) {
            return self.may_start_new(job, task, on).map(|()| false);
        }
        if task.live_attempts().any(|attempt| attempt.tracker == on) {
            return Err(Refused::SameTracker(on));
        }
        let may_speculate = job.spec.speculation
            && !task.on_hold
            && !task.avoided_trackers.contains(&on)
            && task.viable_attempts().count() == 1
            && (self.is_only_on_suspect_trackers(task) || self.is_straggler(job, task));
        if may_speculate { Ok(true) } else { Err(Refused::NotPending(id)) }
    }

    /// Checks whether a tracker could resume a task that is on hold, in a free slot that is not
    /// reserved for another task.
    pub(crate) fn could_resume(&self, job: &Job, task: &Task, on: TrackerId) -> Result<(), Refused> {
        self.fits(job, task, on)?;
        self.may_start_new(job, task, on)?;
        let phase = task.id.phase;
        let reserved_slots =
            self.reservations.tasks_on(on).filter(|(id, _)| id.phase == phase && *id != task.id).count();
        if self.free_slots(on, phase) as usize > reserved_slots {
            Ok(())
        } else {
            Err(Refused::NoSlot { tracker: on, phase })
        }
    }

    /// Checks whether a task may run on a tracker, apart from slots.
    fn fits(&self, job: &Job, task: &Task, on: TrackerId) -> Result<(), Refused> {
        if self.cluster.draining_trackers().contains(&on) {
            return Err(Refused::Draining(on));
        }
        if !self.may_use(job, on) {
            return Err(Refused::Blacklisted { job: job.id, tracker: on });
        }
        if self.assigned_tasks.contains(&task.id) {
            return Err(Refused::NotPending(task.id));
        }
        if self.cluster.is_delayed(task.id) {
            return Err(Refused::Delayed(task.id));
        }
        if let Some(place) =
            self.reserved_place(task.id).filter(|place| !self.is_equally_near(task, on, *place))
        {
            return Err(Refused::Reserved { task: task.id, on: place });
        }
        match self.unavailable_checkpoint(task) {
            Some(on) => Err(Refused::CheckpointUnavailable { task: task.id, on }),
            None => Ok(()),
        }
    }

    /// Returns whether the tracker `here` is as near to the input or checkpoint of a task as the
    /// tracker `reserved`, where a slot is reserved for the task.
    fn is_equally_near(&self, task: &Task, here: TrackerId, reserved: TrackerId) -> bool {
        if here == reserved || self.reservations.is_only_for_tracker(task.id) {
            return here == reserved;
        }
        match task.id.phase {
            Phase::Map => self.locality(task.id, here) <= self.locality(task.id, reserved),
            Phase::Reduce => task.checkpoint.is_none_or(|checkpoint| checkpoint.tracker != reserved),
        }
    }

    /// Checks whether a task without a running attempt may start on a tracker.
    fn may_start_new(&self, job: &Job, task: &Task, on: TrackerId) -> Result<(), Refused> {
        if !job.may_start_task(task) {
            return Err(Refused::SlowStart { job: job.id });
        }
        if self.is_avoided(job, task, on) {
            return Err(Refused::Avoided { task: task.id, tracker: on });
        }
        Ok(())
    }

    fn is_straggler(&self, job: &Job, task: &Task) -> bool {
        let phase = task.id.phase;
        let runs = |at: &Attempt| match at.state {
            AttemptState::Running => self.cluster.has_started(at),
            state => state == AttemptState::Splitting,
        };
        self.cluster.is_straggler(task.id)
            && task.viable_attempts().all(runs)
            && !task.viable_attempts().any(|at| self.cluster.should_split(job, at))
            && self.speculative_count(job, phase) < self.speculative_max(job, phase)
    }

    /// Returns whether all viable attempts of a task are on suspect trackers.
    fn is_only_on_suspect_trackers(&self, task: &Task) -> bool {
        let suspect = |at: &Tracker| at.state == TrackerState::Suspect;
        task.viable_attempts().all(|attempt| self.cluster.tracker(attempt.tracker).is_some_and(suspect))
    }

    fn speculative_count(&self, job: &Job, phase: Phase) -> usize {
        let running = job.running[phase].iter().filter_map(|id| self.cluster.attempt(*id));
        let now = self.granted_to(job, phase).speculative as usize;
        running.filter(|attempt| attempt.speculative).count() + now
    }

    fn speculative_max(&self, job: &Job, phase: Phase) -> usize {
        ((job.running[phase].len() as f64 * self.config.speculative_share).ceil() as usize).max(1)
    }
}
