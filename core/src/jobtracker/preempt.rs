//! Preempts attempts and resumes paused tasks, for policies, drains and users.
//!
//! A preempted attempt holds its slot until its tracker reports how it ended. The attempt may have
//! ended before it received the order. Then the report decides: an attempt that has succeeded
//! counts as succeeded, and a map that was to be killed but reports a split counts as split.
//!
//! A checkpoint is deleted when no attempt can read it any more
//! ([`JobTracker::drop_unused_checkpoints`]). Several attempts, also speculative ones, may read the
//! same checkpoint. Of two checkpoints of a task, the one with more progress is kept.

use super::JobTracker;
use crate::{
    cluster::NotPreemptible,
    event::{Effect, Order},
    fact::{Fact, TRACKER_LOST},
    ids::{AttemptId, TaskId, TrackerId},
    phase::Phase,
    plan::{Plan, Refused, Why},
    task::{Attempt, AttemptResult, AttemptState, CheckpointInfo, PreemptKind, Task},
    time::Time,
    tracker::TrackerState,
};
use std::collections::BTreeSet;

/// A checkpoint is given up after this many failed reads while its tracker was live.
const UNREACHABLE_COUNT_MAX: u32 = 3;
/// A checkpoint is given up after this many attempts that resumed from it have failed.
const FAILED_RESUMES_MAX: usize = 2;

impl JobTracker {
    /// Handles the request of a user to preempt an attempt. A task that is paused this way is on
    /// hold until a user resumes it. If the user kills the attempt while it is being paused, the
    /// hold ends.
    pub(super) fn preempt_for_user(
        &mut self,
        now: Time,
        id: AttemptId,
        kind: PreemptKind,
        by: &str,
        out: &mut Vec<Effect>,
    ) -> Result<(), String> {
        let (why, hold) = (format!("preempted by {by}"), kind == PreemptKind::Pause);
        let known = self.cluster.attempt(id);
        let same = known.and_then(|known| known.preempt_request).is_some_and(|(was, _)| was == kind);
        let had_hold = known.is_some_and(|known| known.hold_requested);
        let is_pausing = known.is_some_and(|known| known.state == AttemptState::Pausing);
        match self.cluster.may_preempt(id, kind) {
            Ok(()) => self.request_preemption(now, id, kind, &why, hold, out),
            // A second request has no effect, except that it may add a hold.
            Err(NotPreemptible::Already(_)) if same => {
                if is_pausing && !had_hold {
                    let fact = Fact::PreemptionRequested { attempt: id, kind, why, fault: false, hold };
                    self.record(now, fact, out);
                }
            }
            Err(error) => return Err(error.to_string()),
        }
        if kind == PreemptKind::Kill && had_hold {
            self.release_hold(now, id.task, out);
        }
        Ok(())
    }

    fn release_hold(&mut self, now: Time, id: TaskId, out: &mut Vec<Effect>) {
        if self.cluster.task(id).is_some_and(|task| task.on_hold) {
            self.record(now, Fact::TaskReleased { task: id }, out);
        }
    }

    /// Orders an attempt to release its slot. The caller has checked that it may be preempted.
    pub(super) fn request_preemption(
        &mut self,
        now: Time,
        id: AttemptId,
        kind: PreemptKind,
        why: &str,
        hold: bool,
        out: &mut Vec<Effect>,
    ) {
        let fact = Fact::PreemptionRequested { attempt: id, kind, why: why.to_owned(), fault: false, hold };
        self.record(now, fact, out);
        if let Some(tracker) = self.cluster.attempt(id).map(|attempt| attempt.tracker) {
            self.queue_order(tracker, Order::Preempt { attempt: id, kind, why: why.to_owned() });
        }
    }

    /// Handles the report that a map ended at a position because it was preempted. A map that ended
    /// at the start of its range has done nothing. A map that ended at the end of its range has
    /// succeeded.
    pub(super) fn map_split(
        &mut self,
        now: Time,
        id: AttemptId,
        position: u64,
        result: AttemptResult,
        out: &mut Vec<Effect>,
    ) {
        let range = self.cluster.task(id.task).map(|task| (task.start, task.end));
        let asked = self.cluster.attempt(id).and_then(|attempt| attempt.preempt_request).is_some();
        let Some((start, end)) = range.filter(|_| self.is_wanted(id) && id.phase() == Phase::Map) else {
            return self.attempt_killed(
                now,
                id,
                "the job, or another attempt of the task, had already finished",
                out,
            );
        };
        if position >= end {
            return self.attempt_succeeded(now, id, result, out);
        }
        if !asked {
            let error =
                format!("it ended at byte {position} of its input, before the end, without a preemption");
            return self.attempt_failed(now, id, error, out);
        }
        if position <= start {
            return self.attempt_killed(now, id, "it had read nothing yet", out);
        }
        let others = self.cluster.task(id.task).into_iter().flat_map(crate::task::Task::viable_attempts);
        let others: Vec<AttemptId> = others.map(|attempt| attempt.id).filter(|other| *other != id).collect();
        let (was_slow, on) = (self.was_slow(id), self.cluster.attempt(id).map(|attempt| attempt.tracker));
        self.record(now, Fact::MapSplit { attempt: id, position, result }, out);
        if let Some((on, remainder)) = on.filter(|_| was_slow).zip(self.remainder_of(id, position)) {
            self.reserve_slot_for_remainder(now, remainder, on);
        }
        for other in others {
            self.queue_kill_order(other, "another attempt of the task was split");
        }
        self.commit_if_done(now, id.job(), out);
    }

    /// Returns the task that got the remainder of the range when an attempt was split at a
    /// position.
    fn remainder_of(&self, id: AttemptId, position: u64) -> Option<TaskId> {
        let job = self.cluster.job(id.job())?;
        let root = job.task(id.task)?.root;
        let mut tasks = job.tasks.map.iter().rev();
        tasks.find(|task| (task.root, task.start) == (root, position)).map(|task| task.id)
    }

    /// Handles the report that a reduce has saved a checkpoint, with or without a request. The
    /// checkpoint is used unless another checkpoint of the task has more progress.
    pub(super) fn attempt_paused(
        &mut self,
        now: Time,
        id: AttemptId,
        checkpoint: CheckpointInfo,
        out: &mut Vec<Effect>,
    ) {
        let Some(on) = self.cluster.attempt(id).map(|attempt| attempt.tracker) else { return };
        let known = self.cluster.task(id.task).and_then(|task| task.checkpoint);
        let useless = if !self.is_wanted(id) || id.phase() != Phase::Reduce {
            Some("its checkpoint is not needed: its job or its task had already finished")
        } else if known.is_some_and(|known| self.cluster.is_ahead_of(&known, &checkpoint)) {
            Some("another attempt has a checkpoint with more progress")
        } else {
            None
        };
        let interrupted = self.is_interrupted(id);
        if let Some(why) = useless {
            self.record_killed(now, id, why, checkpoint.bytes_in, interrupted, out);
            return self.queue_order(on, Order::DropCheckpoint(id));
        }
        let CheckpointInfo { stage, bytes, bytes_in, .. } = checkpoint;
        self.record(now, Fact::AttemptPaused { attempt: id, stage, bytes, bytes_in, interrupted }, out);
        self.cluster.set_checkpoint_info(on, id, checkpoint);
        self.require_outputs(now, id.job(), out);
        if interrupted {
            self.after_interruption(now, id.task, "it paused without a request", out);
        }
    }

    /// Handles the report that the checkpoint that an attempt should resume from is missing or
    /// damaged. The attempt does not count as failed, and its task starts over.
    pub(super) fn checkpoint_corrupt(&mut self, now: Time, id: AttemptId, why: &str, out: &mut Vec<Effect>) {
        self.reject_checkpoint(now, id, why, out);
        self.attempt_killed(now, id, why, out);
    }

    /// Handles the report that the checkpoint that an attempt should resume from could not be read.
    /// If the tracker with the checkpoint is not live, the checkpoint may be readable later. If
    /// that tracker is live and this happens repeatedly, the checkpoint is given up.
    pub(super) fn checkpoint_unreachable(
        &mut self,
        now: Time,
        id: AttemptId,
        why: &str,
        out: &mut Vec<Effect>,
    ) {
        if let Some((paused, checkpoint_on)) = self.resumed_checkpoint(id)
            && self.cluster.tracker(checkpoint_on).is_some_and(|tracker| tracker.state == TrackerState::Live)
        {
            let times = self.unreachable_counts.entry(paused).or_default();
            *times += 1;
            if *times >= UNREACHABLE_COUNT_MAX {
                self.unreachable_counts.remove(&paused);
                self.reject_checkpoint(now, id, why, out);
            }
        }
        self.attempt_killed(now, id, why, out);
    }

    /// Called after an attempt that resumed from a checkpoint has failed. Gives up the checkpoint
    /// if another attempt also failed with it, or if the task has only one attempt left.
    pub(super) fn suspect_checkpoint(&mut self, now: Time, id: AttemptId, out: &mut Vec<Effect>) {
        let Some((paused, _)) = self.resumed_checkpoint(id) else { return };
        let Some(job) = self.cluster.job(id.job()) else { return };
        let Some(task) = job.task(id.task) else { return };
        let failed_with_it = |attempt: &&Attempt| {
            attempt.resumed_from == Some(paused) && attempt.state == AttemptState::Failed
        };
        let failed = task.attempts.iter().filter(failed_with_it).count();
        if failed >= FAILED_RESUMES_MAX || task.failures + 1 >= job.spec.attempts_max {
            let why = match failed {
                1 => "an attempt that resumed from it failed, and only one attempt is left".to_owned(),
                _ => format!("{failed} attempts that resumed from it failed"),
            };
            self.reject_checkpoint(now, id, &why, out);
        }
    }

    fn resumed_checkpoint(&self, id: AttemptId) -> Option<(AttemptId, TrackerId)> {
        let attempt = self.cluster.attempt(id)?;
        attempt.resumed_from.zip(attempt.checkpoint_on)
    }

    /// Gives up the checkpoint that an attempt resumed from. If the checkpoint has been copied to
    /// another tracker since, the copy is kept.
    fn reject_checkpoint(&mut self, now: Time, id: AttemptId, why: &str, out: &mut Vec<Effect>) {
        // Checkpoints of a finished job are not counted as lost.
        let job = self.cluster.job(id.job()).filter(|job| job.is_running());
        let checkpoint = job.and_then(|job| job.task(id.task)?.checkpoint);
        let checkpoint = checkpoint.map(|checkpoint| (checkpoint.attempt, checkpoint.tracker));
        if let Some((attempt, _)) =
            checkpoint.filter(|checkpoint| Some(*checkpoint) == self.resumed_checkpoint(id))
        {
            self.record(now, Fact::CheckpointLost { attempt, why: why.into() }, out);
        }
    }

    /// Returns the checkpoints of a task that an attempt may still read, with their trackers.
    pub(super) fn checkpoints(&self, id: TaskId) -> BTreeSet<(AttemptId, TrackerId)> {
        self.cluster.task(id).into_iter().flat_map(Task::checkpoints).collect()
    }

    /// Orders the deletion of checkpoints that are no longer needed. The files of a finished job
    /// are deleted with it.
    pub(super) fn drop_unused_checkpoints(
        &mut self,
        id: TaskId,
        mut before: BTreeSet<(AttemptId, TrackerId)>,
    ) {
        if self.cluster.job(id.job).is_none_or(crate::job::Job::has_ended) {
            return;
        }
        let wanted = self.checkpoints(id);
        before.retain(|checkpoint| !wanted.contains(checkpoint));
        for (attempt, tracker) in before {
            self.unreachable_counts.remove(&attempt);
            if self.cluster.tracker(tracker).is_some_and(|at| at.state != TrackerState::Lost) {
                self.queue_order(tracker, Order::DropCheckpoint(attempt));
            }
        }
    }

    /// Gives up checkpoints that a tracker should have but does not have.
    pub(super) fn give_up_checkpoints(
        &mut self,
        now: Time,
        id: TrackerId,
        except: &BTreeSet<AttemptId>,
        why: &str,
        out: &mut Vec<Effect>,
    ) {
        let Some(tracker) = self.cluster.tracker(id) else { return };
        let gone: Vec<AttemptId> = tracker.checkpoints.difference(except).copied().collect();
        for attempt in gone {
            self.record(now, Fact::CheckpointLost { attempt, why: why.into() }, out);
            self.require_outputs(now, attempt.job(), out);
        }
    }

    /// Returns the checkpoints on a tracker that belong to tasks on hold. They are kept when the
    /// tracker is lost, because it may come back before the tasks are resumed. A tracker that is
    /// being drained will not come back.
    pub(super) fn checkpoints_on_hold(&self, id: TrackerId) -> BTreeSet<AttemptId> {
        let Some(tracker) = self.cluster.tracker(id).filter(|tracker| tracker.drain.is_none()) else {
            return BTreeSet::new();
        };
        let is_on_hold = |attempt: &&AttemptId| self.cluster.task(attempt.task).is_some_and(Task::is_on_hold);
        tracker.checkpoints.iter().filter(is_on_hold).copied().collect()
    }

    /// Gives up the checkpoint of a task that is to be resumed, if the tracker with the checkpoint
    /// is lost. The task then starts over.
    fn give_up_lost_checkpoint(&mut self, now: Time, id: TaskId, out: &mut Vec<Effect>) {
        let Some(checkpoint) = self.cluster.task(id).and_then(|task| task.checkpoint) else { return };
        if self.cluster.tracker(checkpoint.tracker).is_some_and(|at| at.state == TrackerState::Lost) {
            let fact = Fact::CheckpointLost { attempt: checkpoint.attempt, why: TRACKER_LOST.into() };
            self.record(now, fact, out);
            self.require_outputs(now, id.job, out);
        }
    }

    /// Orders the deletion of checkpoints that a tracker has reported and that no attempt needs.
    pub(super) fn drop_unknown_checkpoints(&mut self, id: TrackerId, has: &BTreeSet<AttemptId>) {
        for attempt in has {
            if !self.checkpoints(attempt.task).contains(&(*attempt, id)) {
                self.queue_order(id, Order::DropCheckpoint(*attempt));
            }
        }
    }

    /// Handles the request of a user to resume a paused task. The task resumes at once on the
    /// tracker that the user has chosen, or else on the tracker that has its checkpoint, if that
    /// tracker has a free slot. Otherwise the policy places the task.
    pub(super) fn resume_for_user(
        &mut self,
        now: Time,
        id: TaskId,
        on: Option<TrackerId>,
        by: &str,
        out: &mut Vec<Effect>,
    ) -> Result<(), String> {
        let place = self.check_resume(now, id, on)?;
        self.give_up_lost_checkpoint(now, id, out);
        // If the checkpoint was lost, the task may have to wait for maps.
        let place = place.filter(|_| {
            let job = self.cluster.job(id.job);
            !self.launches_suspended
                && job.is_some_and(|job| job.task(id).is_some_and(|task| job.may_start_task(task)))
        });
        self.release_hold(now, id, out);
        if let Some(on) = place {
            let why = Why::from_text(format!("resumed by {by}"));
            self.launch(now, id, on, false, why, out);
        }
        Ok(())
    }

    /// Returns the tracker on which a task resumes at once, or `None` if the policy places the
    /// task. The error says why the task cannot be resumed.
    fn check_resume(
        &self,
        now: Time,
        id: TaskId,
        on: Option<TrackerId>,
    ) -> Result<Option<TrackerId>, String> {
        let job = self.cluster.job(id.job).filter(|job| job.is_running());
        let job = job.ok_or_else(|| format!("{} is not running", id.job))?;
        let task = job.task(id).ok_or_else(|| format!("there is no task {id}"))?;
        if task.is_done() {
            return Err(format!("{id} is done"));
        }
        match task.viable_attempts().next() {
            // The task resumes by itself when its checkpoint has been saved.
            Some(attempt) if task.on_hold && attempt.state == AttemptState::Pausing => {
                return match on {
                    None => Ok(None),
                    Some(_) => {
                        Err(format!("{} is being paused: choose a node after it has paused", attempt.id))
                    }
                };
            }
            Some(attempt) => return Err(format!("{id} is not paused: {} is running", attempt.id)),
            None if !task.on_hold && task.checkpoint.is_none() => {
                return Err(format!("{id} is not paused: it is waiting for a slot"));
            }
            None => {}
        }
        let plan = Plan::new(&self.cluster, &self.config, &self.reservations, now);
        let Some(on) = on else {
            let home = task.checkpoint.map(|checkpoint| checkpoint.tracker);
            return Ok(home.filter(|home| plan.could_resume(job, task, *home).is_ok()));
        };
        let (name, state) =
            self.cluster.tracker(on).map_or(("?", None), |tracker| (&*tracker.name, Some(tracker.state)));
        if state != Some(TrackerState::Live) {
            return Err(format!(
                "{name} cannot run {id}: its tracker sends no heartbeats; see `mrctl nodes`"
            ));
        }
        match plan.could_resume(job, task, on) {
            Ok(()) => Ok(Some(on)),
            Err(Refused::NoSlot { .. }) => Err(format!("{name} has no free {} slot for {id}", id.phase)),
            Err(Refused::CheckpointUnavailable { on, .. }) => {
                let home = self.cluster.tracker(on).map_or("?", |tracker| &tracker.name);
                Err(format!("the checkpoint of {id} is on {home}, which sends no heartbeats"))
            }
            Err(Refused::Draining(_)) => Err(format!(
                "{name} is being drained: choose another node, or cancel the drain with `mrctl drain {name} --cancel`"
            )),
            Err(refused) => Err(format!("{name} cannot run {id}: {refused}")),
        }
    }
}
