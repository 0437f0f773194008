//! Preemption, and paused work resumed: one way for policies, drains and people.
//!
//! An attempt that is recalled holds its slot until its tracker says what came of it. However a recall and what an
//! attempt does by itself cross each other, the first word of the tracker settles it: a map that was to be split and
//! is done is done; a reduce that was to be paused and is done is done; one that was to be killed and says where it
//! was split has lost nothing.
//!
//! A state on a disk is deleted when the last who may read it has ended ([`JobTracker::drop_unused_checkpoints`]): whoever takes it up,
//! also a duplicate, only reads it. Of two states of a task the further one is kept.

use super::JobTracker;
use crate::{
    cluster::NotPreemptible,
    event::{Effect, Order, Reply},
    fact::{Fact, TRACKER_LOST},
    ids::{AttemptId, RequestId, TaskId, TrackerId},
    phase::Phase,
    plan::{Plan, Refused, Why},
    task::{Attempt, AttemptResult, AttemptState, Checkpoint, CheckpointInfo, PreemptKind, Task},
    time::Time,
    tracker::TrackerState,
};
use std::collections::BTreeSet;

/// A state that attempts could not reach so often, although its tracker is there, is given up.
const UNREACHABLE_MAX: u32 = 3;
/// A state that so many attempts took up and failed with is given up.
const FAILED_MAX: usize = 2;

impl JobTracker {
    /// Somebody wants an attempt's slot back. A task that they pause waits until they say otherwise; not if they kill what
    /// was to be paused.
    pub(super) fn preempt(
        &mut self,
        now: Time,
        request: RequestId,
        id: AttemptId,
        kind: PreemptKind,
        by: &str,
        out: &mut Vec<Effect>,
    ) {
        let (why, hold) = (format!("{by} wants its slot"), kind == PreemptKind::Pause);
        let known = self.cluster.attempt(id);
        let same = known.and_then(|known| known.preempt_request).is_some_and(|(was, _)| was == kind);
        let was_to_wait = known.is_some_and(|known| known.hold_requested);
        let is_pausing = known.is_some_and(|known| known.state == AttemptState::Pausing);
        let reply = match self.cluster.may_preempt(id, kind) {
            Ok(()) => {
                self.request_preemption(now, id, kind, &why, hold, out);
                Reply::Accepted
            }
            // Asked twice, done once; but that its task is to wait may be new.
            Err(NotPreemptible::Already(_)) if same => {
                if is_pausing && !was_to_wait {
                    let fact = Fact::PreemptionRequested { attempt: id, kind, why, fault: false, hold };
                    self.record(now, fact, out);
                }
                Reply::Accepted
            }
            Err(unfit) => Reply::Refused(unfit.to_string()),
        };
        if kind == PreemptKind::Kill && was_to_wait && reply == Reply::Accepted {
            self.release(now, id.task, out);
        }
        Self::reply(request, reply, out);
    }

    fn release(&mut self, now: Time, id: TaskId, out: &mut Vec<Effect>) {
        if self.cluster.task(id).is_some_and(|task| task.on_hold) {
            self.record(now, Fact::TaskReleased { task: id }, out);
        }
    }

    /// Tells an attempt to release its slot. It is known that it may be asked.
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
            self.order(tracker, Order::Preempt { attempt: id, kind, why: why.to_owned() });
        }
    }

    /// A map has ended where it stood. At the start of its range it has done nothing, at the end it is done.
    pub(super) fn split(
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
            return self.killed(now, id, "it ended after another attempt, or after its job", out);
        };
        if position >= end {
            return self.succeeded(now, id, result, out);
        }
        if !asked {
            let error =
                format!("it ended at byte {position} of its input, before the end, without a preemption");
            return self.failed(now, id, error, out);
        }
        if position <= start {
            return self.killed(now, id, "it had read nothing yet", out);
        }
        let others = self.cluster.task(id.task).into_iter().flat_map(crate::task::Task::viable);
        let twins: Vec<AttemptId> = others.map(|attempt| attempt.id).filter(|other| *other != id).collect();
        let (was_slow, on) = (self.was_slow(id), self.cluster.attempt(id).map(|attempt| attempt.tracker));
        self.record(now, Fact::MapSplit { attempt: id, position, result }, out);
        if let Some((on, rest)) = on.filter(|_| was_slow).zip(self.remainder_of(id, position)) {
            self.place_remainder(now, rest, on);
        }
        for twin in twins {
            self.order_stop(twin, "its range was divided");
        }
        self.advance(now, id.job(), out);
    }

    /// The task that has the rest of an attempt's range, from where it was split.
    fn remainder_of(&self, id: AttemptId, position: u64) -> Option<TaskId> {
        let job = self.cluster.job(id.job())?;
        let root = job.task(id.task)?.root;
        let mut tasks = job.tasks.map.iter().rev();
        tasks.find(|task| (task.root, task.start) == (root, position)).map(|task| task.id)
    }

    /// A reduce has saved its checkpoint, asked or not: a state is of use unless another is further.
    pub(super) fn paused(
        &mut self,
        now: Time,
        id: AttemptId,
        checkpoint: CheckpointInfo,
        out: &mut Vec<Effect>,
    ) {
        let Some(on) = self.cluster.attempt(id).map(|attempt| attempt.tracker) else { return };
        let known = self.cluster.task(id.task).and_then(|task| task.checkpoint);
        let useless = if !self.is_wanted(id) || id.phase() != Phase::Reduce {
            Some("it was saved after another attempt or the job had ended")
        } else if known.is_some_and(|known| known.is_ahead_of(&checkpoint)) {
            Some("another attempt has a checkpoint with more progress")
        } else {
            None
        };
        if let Some(why) = useless {
            if let Some(attempt) = self.cluster.attempt_mut(id) {
                attempt.progress.bytes_in = checkpoint.bytes_in;
            }
            self.killed(now, id, why, out);
            return self.order(on, Order::DropCheckpoint(id));
        }
        let CheckpointInfo { stage, bytes, bytes_in, .. } = checkpoint;
        self.record(now, Fact::AttemptPaused { attempt: id, stage, bytes, bytes_in }, out);
        self.update_checkpoint(on, id, checkpoint);
        self.require_outputs(now, id.job(), out);
    }

    /// What is no fact of a state that a tracker has.
    pub(super) fn update_checkpoint(&mut self, on: TrackerId, id: AttemptId, checkpoint: CheckpointInfo) {
        let job = self.cluster.jobs.get_mut(&id.job());
        let task = job.and_then(|job| job.tasks[id.phase()].get_mut(id.task.index as usize));
        let its = |known: &&mut Checkpoint| (known.attempt, known.tracker) == (id, on);
        if let Some(known) = task.and_then(|task| task.checkpoint.as_mut()).filter(its) {
            known.records = checkpoint.records;
        }
    }

    /// What an attempt was to take up is gone or damaged: no fault of the task, and its task starts over.
    pub(super) fn checkpoint_corrupt(&mut self, now: Time, id: AttemptId, why: &str, out: &mut Vec<Effect>) {
        self.reject_checkpoint(now, id, why, out);
        self.killed(now, id, why, out);
    }

    /// What an attempt was to take up could not be reached. If its tracker is away, nothing is known of it; if it is
    /// there, and that happens again and again, the state is of no use.
    pub(super) fn checkpoint_unreachable(
        &mut self,
        now: Time,
        id: AttemptId,
        why: &str,
        out: &mut Vec<Effect>,
    ) {
        if let Some((from, checkpoint_on)) = self.resumed_checkpoint(id)
            && self.cluster.tracker(checkpoint_on).is_some_and(|tracker| tracker.state == TrackerState::Live)
        {
            let times = self.checkpoint_unreachable.entry(from).or_default();
            *times += 1;
            if *times >= UNREACHABLE_MAX {
                self.checkpoint_unreachable.remove(&from);
                self.reject_checkpoint(now, id, why, out);
            }
        }
        self.killed(now, id, why, out);
    }

    /// A failure says little of the state that the attempt took up. If another fails with it, or the next would be the
    /// last, the task starts over.
    pub(super) fn suspect_checkpoint(&mut self, now: Time, id: AttemptId, out: &mut Vec<Effect>) {
        let Some((from, _)) = self.resumed_checkpoint(id) else { return };
        let Some(job) = self.cluster.job(id.job()) else { return };
        let Some(task) = job.task(id.task) else { return };
        let with_it =
            |attempt: &&Attempt| attempt.from == Some(from) && attempt.state == AttemptState::Failed;
        let failed = task.attempts.iter().filter(with_it).count();
        if failed >= FAILED_MAX || task.failures + 1 >= job.spec.attempts_max {
            let why = match failed {
                1 => "an attempt that resumed from it failed, and only one attempt is left".to_owned(),
                _ => format!("{failed} attempts that resumed from it failed"),
            };
            self.reject_checkpoint(now, id, &why, out);
        }
    }

    fn resumed_checkpoint(&self, id: AttemptId) -> Option<(AttemptId, TrackerId)> {
        let attempt = self.cluster.attempt(id)?;
        attempt.from.zip(attempt.checkpoint_on)
    }

    /// The state that an attempt took up is not used again. A copy that was made elsewhere since is another matter.
    fn reject_checkpoint(&mut self, now: Time, id: AttemptId, why: &str, out: &mut Vec<Effect>) {
        // Of a finished job nothing is used again, and its figures stay as they are.
        let job = self.cluster.job(id.job()).filter(|job| job.is_running());
        let checkpoint = job.and_then(|job| job.task(id.task)?.checkpoint);
        let checkpoint = checkpoint.map(|checkpoint| (checkpoint.attempt, checkpoint.tracker));
        if let Some((attempt, _)) =
            checkpoint.filter(|checkpoint| Some(*checkpoint) == self.resumed_checkpoint(id))
        {
            self.record(now, Fact::CheckpointLost { attempt, why: why.into() }, out);
        }
    }

    /// States of a task on disks that somebody may still read.
    pub(super) fn checkpoints(&self, id: TaskId) -> BTreeSet<(AttemptId, TrackerId)> {
        self.cluster.task(id).into_iter().flat_map(Task::checkpoints).collect()
    }

    /// Has states deleted that were wanted before, and are not now. With its job all of it goes.
    pub(super) fn drop_unused_checkpoints(
        &mut self,
        id: TaskId,
        mut before: BTreeSet<(AttemptId, TrackerId)>,
    ) {
        if self.cluster.job(id.job).is_none_or(crate::job::Job::is_over) {
            return;
        }
        let wanted = self.checkpoints(id);
        before.retain(|state| !wanted.contains(state));
        for (attempt, tracker) in before {
            self.checkpoint_unreachable.remove(&attempt);
            if self.cluster.tracker(tracker).is_some_and(|at| at.state != TrackerState::Lost) {
                self.order(tracker, Order::DropCheckpoint(attempt));
            }
        }
    }

    /// States that a tracker should have and has not are gone.
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

    /// States on a tracker that nobody will take up before somebody says so: it may come back until then. One that is drained
    /// is not to be used again.
    pub(super) fn checkpoints_on_hold(&self, id: TrackerId) -> BTreeSet<AttemptId> {
        let Some(tracker) = self.cluster.tracker(id).filter(|tracker| tracker.drain.is_none()) else {
            return BTreeSet::new();
        };
        let is_on_hold = |attempt: &&AttemptId| self.cluster.task(attempt.task).is_some_and(Task::is_on_hold);
        tracker.checkpoints.iter().filter(is_on_hold).copied().collect()
    }

    /// A task that is to continue, and whose state went with its tracker, starts over.
    fn give_up_lost_checkpoint(&mut self, now: Time, id: TaskId, out: &mut Vec<Effect>) {
        let Some(checkpoint) = self.cluster.task(id).and_then(|task| task.checkpoint) else { return };
        if self.cluster.tracker(checkpoint.tracker).is_some_and(|at| at.state == TrackerState::Lost) {
            let fact = Fact::CheckpointLost { attempt: checkpoint.attempt, why: TRACKER_LOST.into() };
            self.record(now, fact, out);
            self.require_outputs(now, id.job, out);
        }
    }

    /// States that a tracker has and that nobody will take up, or is reading, can go.
    pub(super) fn drop_unknown_checkpoints(&mut self, id: TrackerId, has: &BTreeSet<AttemptId>) {
        for attempt in has {
            if !self.checkpoints(attempt.task).contains(&(*attempt, id)) {
                self.order(id, Order::DropCheckpoint(*attempt));
            }
        }
    }

    /// Somebody wants a paused task to continue: at once where its state lies, or where they say, if there is room.
    pub(super) fn resume(
        &mut self,
        now: Time,
        request: RequestId,
        id: TaskId,
        on: Option<TrackerId>,
        by: &str,
        out: &mut Vec<Effect>,
    ) {
        let reply = match self.check_resume(now, id, on) {
            Ok(place) => {
                self.give_up_lost_checkpoint(now, id, out);
                // Without its state it may have to wait for maps.
                let place = place.filter(|_| {
                    let job = self.cluster.job(id.job);
                    !self.launches_suspended
                        && job.is_some_and(|job| job.task(id).is_some_and(|task| job.may_start_task(task)))
                });
                self.release(now, id, out);
                if let Some(on) = place {
                    let why = Why::named(format!("resumed by {by}"));
                    self.launch(now, id, on, false, why, out);
                }
                Reply::Accepted
            }
            Err(why) => Reply::Refused(why),
        };
        Self::reply(request, reply, out);
    }

    /// Where a task goes on at once; None if that is left to the policy.
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
        match task.viable().next() {
            // It continues when its state is checkpointed.
            Some(attempt) if task.on_hold && attempt.state == AttemptState::Pausing => {
                return match on {
                    None => Ok(None),
                    Some(_) => {
                        Err(format!("{} is being paused: choose a node after it has paused", attempt.id))
                    }
                };
            }
            Some(attempt) => return Err(format!("{id} is not paused: {} is at it", attempt.id)),
            None if !task.on_hold && task.checkpoint.is_none() => {
                return Err(format!("{id} is not paused: it waits for a slot"));
            }
            None => {}
        }
        let plan = Plan::new(&self.cluster, &self.config, &self.reserved, now);
        let Some(on) = on else {
            let home = task.checkpoint.map(|checkpoint| checkpoint.tracker);
            return Ok(home.filter(|home| plan.could_resume(job, task, *home).is_ok()));
        };
        let (name, state) =
            self.cluster.tracker(on).map_or(("?", None), |tracker| (&*tracker.name, Some(tracker.state)));
        if state != Some(TrackerState::Live) {
            return Err(format!("{name} cannot run it: its tracker sends no heartbeats; see `mrctl nodes`"));
        }
        match plan.could_resume(job, task, on) {
            Ok(()) => Ok(Some(on)),
            Err(Refused::NoSlot { .. }) => Err(format!("{name} has no free {} slot for it", id.phase)),
            Err(Refused::CheckpointUnavailable { on, .. }) => {
                let home = self.cluster.tracker(on).map_or("?", |tracker| &tracker.name);
                Err(format!("its checkpoint is on {home}, which sends no heartbeats"))
            }
            Err(Refused::Draining(_)) => {
                Err(format!("{name} is being drained: name another, or `mrctl drain {name} --cancel`"))
            }
            Err(refused) => Err(format!("{name} cannot take it: {refused}")),
        }
    }
}
