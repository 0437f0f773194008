//! Slots taken back, and paused work taken up again: one way for policies, drains and people.
//!
//! An attempt that is recalled holds its slot until its tracker says what came of it. However a recall and what an
//! attempt does by itself cross each other, the first word of the tracker settles it: a map that was to be split and
//! is done is done; a reduce that was to be paused and is done is done; one that was to be killed and says where it
//! was split has lost nothing.

use super::JobTracker;
use crate::{
    cluster::Unfit,
    event::{Effect, Order, Reply},
    fact::Fact,
    ids::{AttemptId, RequestId, TaskId, TrackerId},
    phase::Phase,
    plan::Why,
    task::{AttemptResult, Checkpoint, Recall, Stage},
    time::{Span, Time},
    tracker::TrackerState,
};
use std::collections::BTreeSet;

impl JobTracker {
    /// Somebody wants an attempt's slot back.
    pub(super) fn preempt(
        &mut self,
        now: Time,
        request: RequestId,
        id: AttemptId,
        how: Recall,
        by: &str,
        out: &mut Vec<Effect>,
    ) {
        let same =
            self.cluster.attempt(id).and_then(|attempt| attempt.recalled).is_some_and(|(was, _)| was == how);
        let reply = match self.cluster.may_recall(id, how) {
            Ok(()) => {
                self.recall(now, id, how, &format!("{by} wants its slot"), how == Recall::Pause, out);
                Reply::Taken
            }
            // Asked twice, done once.
            Err(Unfit::Already(_)) if same => Reply::Taken,
            Err(unfit) => Reply::Refused(unfit.to_string()),
        };
        Self::reply(request, reply, out);
    }

    /// Tells an attempt to give its slot back. It is known that it may be asked.
    pub(super) fn recall(
        &mut self,
        now: Time,
        id: AttemptId,
        how: Recall,
        why: &str,
        hold: bool,
        out: &mut Vec<Effect>,
    ) {
        let fact = Fact::AttemptRecalled { attempt: id, how, why: why.to_owned(), fault: false, hold };
        self.record(now, fact, out);
        if let Some(tracker) = self.cluster.attempt(id).map(|attempt| attempt.tracker) {
            self.order(tracker, Order::Recall { attempt: id, how, why: why.to_owned() });
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
        let recalled = self.cluster.attempt(id).and_then(|attempt| attempt.recalled);
        if recalled.is_none_or(|(how, _)| how == Recall::Pause) {
            let error =
                format!("it ended at byte {position} of its input, before the end, without being asked");
            return self.failed(now, id, error, out);
        }
        let Some((start, end)) = range.filter(|_| self.is_wanted(id) && id.phase() == Phase::Map) else {
            return self.killed(now, id, "it ended after another attempt, or after its job", out);
        };
        if position <= start {
            return self.killed(now, id, "it had read nothing yet", out);
        }
        if position >= end {
            return self.succeeded(now, id, result, out);
        }
        let others = self.cluster.task(id.task).into_iter().flat_map(crate::task::Task::trying);
        let twins: Vec<AttemptId> = others.map(|attempt| attempt.id).filter(|other| *other != id).collect();
        let (was_slow, on) = (self.was_slow(id), self.cluster.attempt(id).map(|attempt| attempt.tracker));
        self.record(now, Fact::MapSplit { attempt: id, position, result }, out);
        if let Some((on, rest)) = on.filter(|_| was_slow).zip(self.rest_of(id)) {
            self.place_rest(now, rest, on);
        }
        for twin in twins {
            self.order_stop(twin, "its range was divided");
        }
        self.advance(now, id.job(), out);
    }

    /// The task that the split of an attempt just made.
    fn rest_of(&self, id: AttemptId) -> Option<TaskId> {
        self.cluster.job(id.job())?.tasks.map.last().map(|task| task.id)
    }

    /// A reduce has put its state aside.
    pub(super) fn paused(
        &mut self,
        now: Time,
        id: AttemptId,
        (stage, bytes): (Stage, u64),
        redo: Option<(String, Span)>,
        out: &mut Vec<Effect>,
    ) {
        let Some(attempt) = self.cluster.attempt(id) else { return };
        let (on, bytes_in) = (attempt.tracker, attempt.progress.bytes_in);
        let asked = self.cluster.attempt(id).and_then(|attempt| attempt.recalled).is_some();
        if !asked || !self.is_wanted(id) || id.phase() != Phase::Reduce {
            self.killed(now, id, "it was put aside after another attempt was done, or after its job", out);
            return self.order(on, Order::Drop(id));
        }
        let before = self.cluster.task(id.task).and_then(|task| task.checkpoint);
        self.record(now, Fact::AttemptPaused { attempt: id, stage, bytes, bytes_in }, out);
        if let Some((why, time)) = redo {
            self.record(now, Fact::StageLost { attempt: id, why, time }, out);
        }
        self.drop_checkpoint(before);
        self.require_outputs(now, id.job(), out);
    }

    /// What an attempt was to take up is gone or damaged: nobody's fault, and its task begins anew.
    pub(super) fn spoilt(&mut self, now: Time, id: AttemptId, why: &str, out: &mut Vec<Effect>) {
        self.distrust_checkpoint(now, id, why, out);
        self.killed(now, id, why, out);
    }

    /// The state that an attempt took up is not used again.
    pub(super) fn distrust_checkpoint(&mut self, now: Time, id: AttemptId, why: &str, out: &mut Vec<Effect>) {
        let took = self.cluster.attempt(id).map_or((None, None), |attempt| (attempt.from, attempt.origin));
        let aside = self.cluster.task(id.task).and_then(|task| task.checkpoint);
        // A copy that was made elsewhere since is another matter.
        let its = |checkpoint: &Checkpoint| (Some(checkpoint.attempt), Some(checkpoint.tracker)) == took;
        if let Some(checkpoint) = aside.filter(its) {
            let attempt = checkpoint.attempt;
            self.record(now, Fact::CheckpointLost { attempt, why: why.into() }, out);
            self.drop_checkpoint(Some(checkpoint));
        }
    }

    /// Has a state deleted that nobody will take up.
    pub(super) fn drop_checkpoint(&mut self, checkpoint: Option<Checkpoint>) {
        if let Some(Checkpoint { attempt, tracker, .. }) = checkpoint {
            let there = self.cluster.tracker(tracker).is_some_and(|at| at.state != TrackerState::Lost);
            if there {
                self.order(tracker, Order::Drop(attempt));
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

    /// States that a tracker has and that nobody will take up can go.
    pub(super) fn drop_strange_checkpoints(&mut self, id: TrackerId, has: &BTreeSet<AttemptId>) {
        let Some(tracker) = self.cluster.tracker(id) else { return };
        let strange: Vec<AttemptId> = has.difference(&tracker.checkpoints).copied().collect();
        for attempt in strange {
            self.order(id, Order::Drop(attempt));
        }
    }

    /// Somebody wants a paused task to go on: at once where its state lies, or where they say, if there is room.
    pub(super) fn resume(
        &mut self,
        now: Time,
        request: RequestId,
        id: TaskId,
        on: Option<TrackerId>,
        by: &str,
        out: &mut Vec<Effect>,
    ) {
        let reply = match self.check_resume(id, on) {
            Ok(place) => {
                if self.cluster.task(id).is_some_and(|task| task.held) {
                    self.record(now, Fact::TaskReleased { task: id }, out);
                    self.work_arrived = true;
                }
                if let Some(on) = place {
                    let why = Why::named(format!("resumed by {by}"));
                    self.launch(now, id, on, false, why, out);
                }
                Reply::Taken
            }
            Err(why) => Reply::Refused(why),
        };
        Self::reply(request, reply, out);
    }

    /// Where a task goes on at once; None if that is left to the policy.
    fn check_resume(&self, id: TaskId, on: Option<TrackerId>) -> Result<Option<TrackerId>, String> {
        let job = self.cluster.job(id.job).filter(|job| job.is_running());
        let job = job.ok_or_else(|| format!("{} is not running", id.job))?;
        let task = job.task(id).ok_or_else(|| format!("there is no task {id}"))?;
        if task.is_done() {
            return Err(format!("{id} is done"));
        }
        if let Some(attempt) = task.trying().next() {
            return Err(format!("{id} is not paused: {} is at it", attempt.id));
        }
        let has_room =
            |on: TrackerId| self.cluster.free[id.phase].contains(&on) && !job.blacklist.contains(&on);
        match on {
            Some(on) if !has_room(on) => {
                let name = self.cluster.tracker(on).map_or("?", |tracker| &tracker.name);
                Err(format!("{name} has no free {} slot for it", id.phase))
            }
            Some(on) => Ok(Some(on)),
            None => Ok(task.checkpoint.map(|checkpoint| checkpoint.tracker).filter(|on| has_room(*on))),
        }
    }
}
