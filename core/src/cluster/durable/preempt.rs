//! Decides whether an attempt may be preempted, and applies the facts about preemption.

use super::{
    Durable,
    apply::{ApplyError, apply_error},
};
use crate::{
    ids::{AttemptId, TaskId},
    phase::Phase,
    task::{Attempt, AttemptResult, AttemptState, Checkpoint, PreemptKind, Stage, Task, Work},
    time::{Span, Time},
};

/// Why an attempt cannot be preempted with a certain [`PreemptKind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotPreemptible {
    #[error("there is no attempt {0}")]
    Unknown(AttemptId),
    #[error("{0} holds no slot: it has ended")]
    Ended(AttemptId),
    #[error("too late to preempt {0}: its job has ended or is committing its output")]
    TooLate(AttemptId),
    #[error("{0} is already being preempted")]
    Already(AttemptId),
    #[error("{0} is a map: only reduces can be paused")]
    NotAReduce(AttemptId),
    #[error("{0} is a reduce: only maps can be split")]
    NotAMap(AttemptId),
    #[error(
        "{0} cannot be split: it reads a whole file, or its mapper does not promise that its input may be divided \
         (streaming: --conf stream.mapper.divisible=true, Rust: Mapper::divisible); it can only be killed"
    )]
    Indivisible(AttemptId),
    #[error("{0} cannot be preempted without a loss of work")]
    LosesWork(AttemptId),
}

impl Durable {
    /// Checks whether an attempt may be preempted with this kind of preemption.
    pub fn may_preempt(&self, id: AttemptId, kind: PreemptKind) -> Result<(), NotPreemptible> {
        let attempt = self.attempt(id).ok_or(NotPreemptible::Unknown(id))?;
        let job = self.job(id.job()).ok_or(NotPreemptible::Unknown(id))?;
        if !attempt.state.holds_slot() {
            return Err(NotPreemptible::Ended(id));
        }
        if !job.is_running() {
            return Err(NotPreemptible::TooLate(id));
        }
        match (attempt.state, kind) {
            (AttemptState::Running, _)
            // An attempt that is being split or paused may still be killed.
            | (AttemptState::Splitting | AttemptState::Pausing, PreemptKind::Kill) => {}
            _ => return Err(NotPreemptible::Already(id)),
        }
        let divisible = || {
            let root = job.task(id.task).map_or(0, |task| task.root);
            job.spec.splits.get(root as usize).is_some_and(|split| split.divisible)
        };
        match (kind, id.phase()) {
            (PreemptKind::Split, Phase::Reduce) => Err(NotPreemptible::NotAMap(id)),
            (PreemptKind::Pause, Phase::Map) => Err(NotPreemptible::NotAReduce(id)),
            (PreemptKind::Split, Phase::Map) if !divisible() => Err(NotPreemptible::Indivisible(id)),
            _ => Ok(()),
        }
    }

    pub(super) fn preemption_requested(
        &mut self,
        at: Time,
        id: AttemptId,
        kind: PreemptKind,
        fault: Option<&String>,
        hold: bool,
    ) -> Result<(), ApplyError> {
        let Some(attempt) = self.attempt_mut(id).filter(|attempt| attempt.state.is_viable()) else {
            return apply_error(format!("{id} is not running"));
        };
        // A repeated request of the same kind keeps the time of the first request.
        let before = attempt.preempt_request.filter(|(was, _)| *was == kind);
        attempt.preempt_request = Some((kind, before.map_or(at, |(_, asked)| asked)));
        attempt.hold_requested |= hold;
        attempt.last_order = at;
        match kind {
            PreemptKind::Kill => self.mark_killing(at, id, fault)?,
            PreemptKind::Split => attempt.state = AttemptState::Splitting,
            PreemptKind::Pause => attempt.state = AttemptState::Pausing,
        }
        self.task_mut(id.task)?.on_hold |= hold;
        self.update_pending(id.task)
    }

    /// Sets the time at which the attempt is killed if it still holds its slot.
    pub(super) fn set_preemption_deadline(&mut self, id: AttemptId, until: Time) -> Result<(), ApplyError> {
        let Some(attempt) = self.attempt_mut(id) else { return apply_error(format!("{id} is not known")) };
        attempt.preempt_deadline = Some(until);
        Ok(())
    }

    /// Marks an attempt as running again, because it has refused to be preempted.
    pub(super) fn preemption_refused(&mut self, id: AttemptId, refusals: u32) -> Result<(), ApplyError> {
        let preempted =
            |attempt: &&mut Attempt| matches!(attempt.state, AttemptState::Pausing | AttemptState::Splitting);
        let Some(attempt) = self.attempt_mut(id).filter(preempted) else {
            return apply_error(format!("{id} was not preempted"));
        };
        (attempt.state, attempt.preempt_request) = (AttemptState::Running, None);
        (attempt.preempt_deadline, attempt.refusals) = (None, refusals);
        if std::mem::take(&mut attempt.hold_requested) {
            // Another attempt of the task may also have been paused with a hold, and may already
            // have saved its checkpoint.
            let task = self.task_mut(id.task)?;
            let checkpointed = task.checkpoint.map(|checkpoint| checkpoint.attempt);
            task.on_hold = task.attempts.iter().any(|other| {
                other.hold_requested && (other.state.holds_slot() || checkpointed == Some(other.id))
            });
        }
        self.update_pending(id.task)
    }

    /// Marks the task of a split attempt as done. Its range now ends where the attempt stopped, and
    /// a new task gets the remainder.
    pub(super) fn map_split(
        &mut self,
        at: Time,
        id: AttemptId,
        position: u64,
        result: &AttemptResult,
    ) -> Result<(), ApplyError> {
        let task = self.task_mut(id.task)?;
        let (start, end, root, hosts) = (task.start, task.end, task.root, task.hosts.clone());
        if task.is_done() || position <= start || position >= end || id.phase() != Phase::Map {
            return apply_error(format!(
                "{id} was split at {position}: that is outside its range, or its task is already done"
            ));
        }
        let fits = |attempt: &&Attempt| attempt.end == end && attempt.state.holds_slot();
        let Some(attempt) = task.attempts.get(id.number as usize).filter(fits) else {
            return apply_error(format!(
                "{id} was split, but its range is not that of its task, or it has ended"
            ));
        };
        let (launched, preempt_request, on) = (attempt.launched, attempt.preempt_request, attempt.tracker);
        task.end = position;
        let job = self.job_mut(id.job())?;
        let remainder = TaskId { index: job.tasks.map.len() as u32, ..id.task };
        job.tasks.map.push(Task::new(remainder, root, position, end, hosts));
        let stats = &mut job.preemption;
        stats.splits += 1;
        add(&mut stats.latency, preempt_request.map_or(Span(0), |(_, asked)| at.since(asked)));
        self.add_drain_cost(on, |cost| cost.splits += 1);
        self.update_pending(remainder)?;
        self.attempt_succeeded(at, id, result)?;
        let work = Work { bytes: position - start, time: at.since(launched) };
        self.count_work(id, work)?;
        self.update_saved_work(id.task, work)
    }

    pub(super) fn attempt_paused(
        &mut self,
        at: Time,
        id: AttemptId,
        (stage, bytes): (Stage, u64),
        bytes_in: u64,
    ) -> Result<(), ApplyError> {
        let Some(attempt) = self.attempt(id).filter(|_| id.phase() == Phase::Reduce) else {
            return apply_error(format!("{id} is not a known reduce"));
        };
        let (tracker, launched, preempt_request) =
            (attempt.tracker, attempt.launched, attempt.preempt_request);
        let prior_work = attempt.prior_work;
        self.release_slot(at, id, AttemptState::Paused)?;
        if let Some(attempt) = self.attempt_mut(id) {
            attempt.stage = stage;
        }
        let own = Work { bytes: bytes_in.saturating_sub(prior_work.bytes), time: at.since(launched) };
        let checkpoint = Checkpoint { attempt: id, tracker, stage, bytes, work: prior_work + own };
        let before = self.task_mut(id.task)?.checkpoint.replace(checkpoint);
        if let Some(before) = before {
            self.forget_checkpoint(before);
        }
        if let Some(tracker) = self.trackers.get_mut(&tracker) {
            tracker.checkpoints.insert(id);
        }
        let stats = &mut self.job_mut(id.job())?.preemption;
        stats.pauses += 1;
        stats.checkpoint_bytes += bytes;
        add(&mut stats.latency, preempt_request.map_or(Span(0), |(_, asked)| at.since(asked)));
        self.add_drain_cost(tracker, |cost| cost.pauses += 1);
        self.count_work(id, own)?;
        self.update_saved_work(id.task, prior_work + own)
    }

    /// Adds the work of a preempted attempt to the lost work of its job.
    /// [`Self::update_saved_work`] then moves what is saved from lost to saved work.
    fn count_work(&mut self, id: AttemptId, work: Work) -> Result<(), ApplyError> {
        if let Some(attempt) = self.attempt_mut(id) {
            attempt.work_done = Some(work);
        }
        self.job_mut(id.job())?.preemption.add_lost(work);
        Ok(())
    }

    /// Sets how much work of preempted attempts is part of the result or the checkpoint of a task.
    pub(super) fn update_saved_work(&mut self, id: TaskId, now: Work) -> Result<(), ApplyError> {
        let was = std::mem::replace(&mut self.task_mut(id)?.saved_work, now);
        self.job_mut(id.job)?.preemption.update_saved(was, now);
        Ok(())
    }

    pub(super) fn checkpoint_lost(&mut self, id: AttemptId) -> Result<(), ApplyError> {
        let task = self.task_mut(id.task)?;
        let Some(checkpoint) = task.checkpoint.take_if(|checkpoint| checkpoint.attempt == id) else {
            return apply_error(format!("{id} has no checkpoint"));
        };
        self.job_mut(id.job())?.preemption.checkpoints_lost += 1;
        self.add_drain_cost(checkpoint.tracker, |cost| cost.redone += 1);
        self.forget_checkpoint(checkpoint);
        self.update_saved_work(id.task, Work::default())
    }

    pub(super) fn forget_checkpoint(&mut self, checkpoint: Checkpoint) {
        if let Some(tracker) = self.trackers.get_mut(&checkpoint.tracker) {
            tracker.checkpoints.remove(&checkpoint.attempt);
        }
    }

    /// Counts the work of a preempted attempt that was killed as lost. If the attempt should have
    /// been split or paused and had not read anything, nothing is counted.
    pub(super) fn count_kill(&mut self, at: Time, id: AttemptId, bytes_in: u64) -> Result<(), ApplyError> {
        let Some(attempt) = self.attempt(id).filter(|attempt| attempt.fault.is_none()) else { return Ok(()) };
        let Some((kind, _)) = attempt.preempt_request else { return Ok(()) };
        let bytes = bytes_in.saturating_sub(attempt.prior_work.bytes);
        let (work, on) = (Work { bytes, time: at.since(attempt.launched) }, attempt.tracker);
        if kind != PreemptKind::Kill && bytes == 0 {
            return Ok(());
        }
        self.count_work(id, work)?;
        if kind == PreemptKind::Kill {
            self.job_mut(id.job())?.preemption.kills += 1;
            self.add_drain_cost(on, |cost| cost.kills += 1);
        }
        self.add_drain_cost(on, |cost| add(&mut cost.time_lost, work.time));
        Ok(())
    }
}

fn add(total: &mut Span, more: Span) {
    *total = *total + more;
}
