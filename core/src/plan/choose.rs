//! Chooses the task of a job that fits a tracker best, for policies.

use super::{CheckpointPlace, Locality, Plan};
use crate::{
    ids::{AttemptId, TaskId, TrackerId},
    job::Job,
    phase::Phase,
    tracker::Tracker,
};

impl Plan<'_> {
    /// Returns the first of the pending tasks with these indexes that this round has not assigned
    /// and that may run on a tracker. Tasks with a reservation are skipped: they get their slot
    /// before the policy decides.
    fn first_runnable(
        &self,
        job: &Job,
        phase: Phase,
        on: TrackerId,
        indexes: impl Iterator<Item = u32>,
    ) -> Option<TaskId> {
        let mut ids = indexes.map(|index| TaskId { job: job.id, phase, index });
        ids.find(|id| {
            !self.assigned_tasks.contains(id)
                && self.reserved_place(*id).is_none()
                && !self.cluster.is_delayed(*id)
                && job.task(*id).is_some_and(|task| {
                    job.may_start_task(task)
                        && self.unavailable_checkpoint(task).is_none()
                        && !self.is_avoided(job, task, on)
                })
        })
    }

    /// Returns the pending tasks of a job, starting with the first one that is neither assigned nor
    /// reserved.
    fn unreserved<'p>(&self, job: &'p Job, phase: Phase) -> impl Iterator<Item = u32> + use<'p> {
        let is_taken = |index: u32| {
            let id = TaskId { job: job.id, phase, index };
            self.assigned_tasks.contains(&id) || self.reserved_place(id).is_some()
        };
        let pending = &job.pending[phase];
        let mut below = self.first_index_to_check.borrow_mut();
        let below = below.entry((job.id, phase)).or_default();
        *below = pending.starting_at(*below).find(|index| !is_taken(*index)).unwrap_or(u32::MAX);
        pending.starting_at(*below)
    }

    /// Returns the pending map of a job whose input is nearest to a tracker, at most as far away as
    /// `limit`.
    pub fn next_map(&self, job: &Job, tracker: TrackerId, limit: Locality) -> Option<(TaskId, Locality)> {
        if self.unassigned_pending(job, Phase::Map) == 0 || !self.may_use(job, tracker) {
            return None;
        }
        let at = self.cluster.tracker(tracker)?;
        let pending = &job.pending.map;
        if let Some(task) = self.first_runnable(job, Phase::Map, tracker, pending.on_host(at.host)) {
            return Some((task, Locality::NodeLocal));
        }
        if limit >= Locality::RackLocal
            && let Some(task) = self.first_map_in_rack(job, at)
        {
            return Some((task, Locality::RackLocal));
        }
        if limit < Locality::OffRack {
            return None;
        }
        let task = self.first_runnable(job, Phase::Map, tracker, self.unreserved(job, Phase::Map))?;
        Some((task, Locality::OffRack))
    }

    /// Returns the best locality that any pending map of a job can get, on trackers that accept
    /// work and that neither the job nor the map avoids. Waiting for a better locality would be
    /// useless.
    pub fn best_possible_locality(&self, job: &Job) -> Locality {
        let pending = &job.pending.map;
        let usable = |id: &TrackerId| self.accepts_work(*id) && self.may_use(job, *id);
        let on = |host| {
            let mut trackers = self.cluster.trackers_on(host).filter(usable);
            trackers.any(|id| self.first_runnable(job, Phase::Map, id, pending.on_host(host)).is_some())
        };
        if pending.hosts().any(on) {
            return Locality::NodeLocal;
        }
        let mut others = self.cluster.trackers().filter(|tracker| usable(&tracker.id));
        if others.any(|tracker| self.first_map_in_rack(job, tracker).is_some()) {
            Locality::RackLocal
        } else {
            Locality::OffRack
        }
    }

    /// Returns a pending map of a job whose input is in the rack of a tracker. Iterates over the
    /// shorter of two lists: the hosts in the rack, or the hosts that have input of the job.
    fn first_map_in_rack(&self, job: &Job, at: &Tracker) -> Option<TaskId> {
        let hosts = self.cluster.hosts_in(at.rack)?;
        let pending = &job.pending.map;
        let on = |host| self.first_runnable(job, Phase::Map, at.id, pending.on_host(host));
        if pending.host_count() < hosts.len() {
            pending.hosts().filter(|host| hosts.contains(host)).find_map(on)
        } else {
            hosts.iter().copied().find_map(on)
        }
    }

    /// Returns the next pending reduce of a job for a tracker: a reduce whose checkpoint is there,
    /// else the first one that cannot resume now on the tracker of its checkpoint.
    pub fn next_reduce(&self, job: &Job, tracker: TrackerId) -> Option<TaskId> {
        if let Some((task, _)) = self.next_reduce_at(job, tracker, CheckpointPlace::Local) {
            return Some(task);
        }
        if self.unassigned_pending(job, Phase::Reduce) == 0 || !self.may_use(job, tracker) {
            return None;
        }
        let checkpoint_elsewhere = |index: &u32| {
            let task = &job.tasks.reduce[*index as usize];
            task.checkpoint.is_some_and(|checkpoint| {
                let there = checkpoint.tracker;
                self.free_slots(there, Phase::Reduce) > 0
                    && self.may_use(job, there)
                    && !self.is_avoided(job, task, there)
            })
        };
        let others = self.unreserved(job, Phase::Reduce).filter(|index| !checkpoint_elsewhere(index));
        self.first_runnable(job, Phase::Reduce, tracker, others)
    }

    /// Returns the next pending reduce of a job for a tracker, chosen by the place of its
    /// checkpoint, which must not come after `limit` in the order of [`CheckpointPlace`]. With
    /// [`CheckpointPlace::None`], no reduce migrates.
    pub fn next_reduce_at(
        &self,
        job: &Job,
        tracker: TrackerId,
        limit: CheckpointPlace,
    ) -> Option<(TaskId, CheckpointPlace)> {
        if self.unassigned_pending(job, Phase::Reduce) == 0 || !self.may_use(job, tracker) {
            return None;
        }
        let pending = &job.pending.reduce;
        let at = self.cluster.tracker(tracker)?;
        let first = AttemptId { task: TaskId { job: job.id, phase: Phase::Reduce, index: 0 }, number: 0 };
        let its = at.checkpoints.range(first..).take_while(|attempt| attempt.job() == job.id);
        let here = its.map(|attempt| attempt.task.index).filter(|index| pending.contains(*index));
        if let Some(task) = self.first_runnable(job, Phase::Reduce, tracker, here) {
            return Some((task, CheckpointPlace::Local));
        }
        if limit < CheckpointPlace::None {
            return None;
        }
        let has_checkpoint = |index: u32| job.tasks.reduce[index as usize].checkpoint.is_some();
        let fresh = self.unreserved(job, Phase::Reduce).filter(|index| !has_checkpoint(*index));
        if let Some(task) = self.first_runnable(job, Phase::Reduce, tracker, fresh) {
            return Some((task, CheckpointPlace::None));
        }
        if limit < CheckpointPlace::Remote {
            return None;
        }
        let moved = self.unreserved(job, Phase::Reduce).filter(|index| has_checkpoint(*index));
        self.first_runnable(job, Phase::Reduce, tracker, moved).map(|task| (task, CheckpointPlace::Remote))
    }

    /// Returns whether a job has a pending task that a tracker could run if it had a free slot.
    pub fn has_work_for(&self, job: &Job, phase: Phase, tracker: TrackerId) -> bool {
        match phase {
            Phase::Map => self.next_map(job, tracker, Locality::OffRack).is_some(),
            Phase::Reduce => self.next_reduce(job, tracker).is_some(),
        }
    }

    /// Returns a straggler of a job that may get a speculative attempt on a tracker.
    pub fn next_straggler(&self, job: &Job, phase: Phase, tracker: TrackerId) -> Option<TaskId> {
        let slow = self.cluster.stragglers(job.id, phase);
        let mut ids = slow.map(|index| TaskId { job: job.id, phase, index });
        ids.find(|task| self.check(*task, tracker).is_ok())
    }

    /// Returns how near a task's input is to a tracker.
    pub fn locality(&self, task: TaskId, tracker: TrackerId) -> Locality {
        let (Some(task), Some(tracker)) = (self.cluster.task(task), self.cluster.tracker(tracker)) else {
            return Locality::OffRack;
        };
        self.cluster.locality(task, tracker)
    }

    /// Returns the trackers with a free slot of this phase, ordered by ID.
    pub fn free_trackers(&self, phase: Phase) -> impl Iterator<Item = TrackerId> + '_ {
        self.cluster.free_trackers(phase).filter(move |id| self.free_slots(*id, phase) > 0)
    }

    /// Returns whether a tracker accepts work: it is live and not being drained.
    pub fn accepts_work(&self, tracker: TrackerId) -> bool {
        self.cluster.tracker(tracker).is_some_and(Tracker::accepts_work)
    }
}
