//! Slots taken back: what may be asked of an attempt, and the facts that follow.

use super::{
    Cluster,
    apply::{Misfit, misfit},
};
use crate::{
    ids::{AttemptId, TaskId},
    job::Job,
    phase::Phase,
    task::{Attempt, AttemptResult, AttemptState, Checkpoint, Recall, Stage, Task, Work},
    time::{Span, Time},
};

/// Why an attempt cannot be asked for its slot in this way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Unfit {
    #[error("there is no attempt {0}")]
    Unknown(AttemptId),
    #[error("{0} holds no slot: it has ended")]
    Ended(AttemptId),
    #[error("{0} is done, its job's output is being moved into place or its job is over")]
    TooLate(AttemptId),
    #[error("{0} has been told to give its slot back already")]
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
}

/// A map of which less is left, of its whole range, is not split for being slow: the last few records are not worth a task.
const REST_MIN: f32 = 0.05;

impl Cluster {
    /// Whether the rest of a map that is slow is better taken from it than read by another as well.
    pub fn is_better_split(&self, job: &Job, slow: &Attempt) -> bool {
        job.spec.splits_slow_maps()
            && self.may_recall(slow.id, Recall::Split).is_ok()
            && slow.refusals == 0
            && slow.progress.done <= 1.0 - REST_MIN
    }

    /// Whether an attempt may be asked for its slot in this way.
    pub fn may_recall(&self, id: AttemptId, how: Recall) -> Result<(), Unfit> {
        let attempt = self.attempt(id).ok_or(Unfit::Unknown(id))?;
        let job = self.job(id.job()).ok_or(Unfit::Unknown(id))?;
        if !attempt.state.holds_slot() {
            return Err(Unfit::Ended(id));
        }
        if !job.is_running() {
            return Err(Unfit::TooLate(id));
        }
        match (attempt.state, how) {
            (AttemptState::Launching | AttemptState::Running, _)
            // What was asked for gently may be asked for again, and at once.
            | (AttemptState::Splitting | AttemptState::Pausing, Recall::Kill) => {}
            _ => return Err(Unfit::Already(id)),
        }
        let divisible = || {
            let root = job.task(id.task).map_or(0, |task| task.root);
            job.spec.splits.get(root as usize).is_some_and(|split| split.divisible)
        };
        match (how, id.phase()) {
            (Recall::Split, Phase::Reduce) => Err(Unfit::NotAMap(id)),
            (Recall::Pause, Phase::Map) => Err(Unfit::NotAReduce(id)),
            (Recall::Split, Phase::Map) if !divisible() => Err(Unfit::Indivisible(id)),
            _ => Ok(()),
        }
    }

    pub(super) fn attempt_recalled(
        &mut self,
        at: Time,
        id: AttemptId,
        how: Recall,
        blame: Option<&String>,
        hold: bool,
    ) -> Result<(), Misfit> {
        let Some(attempt) = self.attempt_mut(id).filter(|attempt| attempt.state.is_trying()) else {
            return misfit(format!("{id} does not try"));
        };
        // Asked again in the same way, it was asked when it was asked first.
        let before = attempt.recalled.filter(|(was, _)| *was == how);
        attempt.recalled = Some((how, before.map_or(at, |(_, asked)| asked)));
        attempt.holds |= hold;
        attempt.heard = at;
        match how {
            Recall::Kill => self.recall(at, id, blame)?,
            Recall::Split => attempt.state = AttemptState::Splitting,
            Recall::Pause => attempt.state = AttemptState::Pausing,
        }
        self.task_mut(id.task)?.held |= hold;
        self.settle(id.task)
    }

    /// Somebody waits for its slot until then.
    pub(super) fn slot_due(&mut self, id: AttemptId, until: Time) -> Result<(), Misfit> {
        let Some(attempt) = self.attempt_mut(id) else { return misfit(format!("{id} is not known")) };
        attempt.due = Some(until);
        Ok(())
    }

    /// It goes on as if nobody had asked.
    pub(super) fn recall_refused(&mut self, id: AttemptId, refusals: Option<u32>) -> Result<(), Misfit> {
        let asked =
            |attempt: &&mut Attempt| matches!(attempt.state, AttemptState::Pausing | AttemptState::Splitting);
        let Some(attempt) = self.attempt_mut(id).filter(asked) else {
            return misfit(format!("{id} was not asked for its slot"));
        };
        (attempt.state, attempt.recalled) = (AttemptState::Running, None);
        (attempt.due, attempt.refusals) = (None, refusals.unwrap_or(attempt.refusals + 1));
        if std::mem::take(&mut attempt.holds) {
            // Another of its attempts may have been asked as well, and may have put its state aside already.
            let task = self.task_mut(id.task)?;
            let state = task.checkpoint.map(|aside| aside.attempt);
            task.held = task
                .attempts
                .iter()
                .any(|other| other.holds && (other.state.holds_slot() || state == Some(other.id)));
        }
        self.settle(id.task)
    }

    /// The attempt's task ends where it stood; a new one has the rest.
    pub(super) fn map_split(
        &mut self,
        at: Time,
        id: AttemptId,
        position: u64,
        result: &AttemptResult,
    ) -> Result<(), Misfit> {
        let task = self.task_mut(id.task)?;
        let (start, end, root, hosts) = (task.start, task.end, task.root, task.hosts.clone());
        if task.is_done() || position <= start || position >= end || id.phase() != Phase::Map {
            return misfit(format!("{id} was split at {position}, outside its range or after its end"));
        }
        let fits = |attempt: &&Attempt| attempt.end == end && attempt.state.holds_slot();
        let Some(attempt) = task.attempts.get(id.number as usize).filter(fits) else {
            return misfit(format!("{id} has another range than its task, or has ended"));
        };
        let (launched, recalled, on) = (attempt.launched, attempt.recalled, attempt.tracker);
        task.end = position;
        let job = self.job_mut(id.job())?;
        let tail = TaskId { index: job.tasks.map.len() as u32, ..id.task };
        job.tasks.map.push(Task::new(tail, root, position, end, hosts));
        let stats = &mut job.preemption;
        stats.splits += 1;
        add(&mut stats.yielding, recalled.map_or(Span(0), |(_, asked)| at.since(asked)));
        self.count_drain(on, |cost| cost.splits += 1);
        self.settle(tail)?;
        self.attempt_succeeded(at, id, result)?;
        let work = Work { bytes: position - start, time: at.since(launched) };
        self.count_work(id, work)?;
        self.keep_work(id.task, work)
    }

    pub(super) fn attempt_paused(
        &mut self,
        at: Time,
        id: AttemptId,
        (stage, bytes): (Stage, u64),
        bytes_in: u64,
    ) -> Result<(), Misfit> {
        let Some(attempt) = self.attempt(id).filter(|_| id.phase() == Phase::Reduce) else {
            return misfit(format!("{id} is not a known reduce"));
        };
        let (tracker, launched, recalled) = (attempt.tracker, attempt.launched, attempt.recalled);
        let base = attempt.base;
        self.release(at, id, AttemptState::Paused)?;
        if let Some(attempt) = self.attempt_mut(id) {
            // What it said last may be older.
            attempt.progress.stage = stage;
        }
        let own = Work { bytes: bytes_in.saturating_sub(base.bytes), time: at.since(launched) };
        let checkpoint = Checkpoint { attempt: id, tracker, stage, bytes, work: base + own, records: 0 };
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
        add(&mut stats.yielding, recalled.map_or(Span(0), |(_, asked)| at.since(asked)));
        self.count_drain(tracker, |cost| cost.pauses += 1);
        self.count_work(id, own)?;
        self.keep_work(id.task, base + own)
    }

    /// An attempt that ended because its slot was wanted has done so much. It is lost, but for what is kept of it.
    fn count_work(&mut self, id: AttemptId, work: Work) -> Result<(), Misfit> {
        if let Some(attempt) = self.attempt_mut(id) {
            attempt.worked = Some(work);
        }
        self.job_mut(id.job())?.preemption.add_lost(work);
        Ok(())
    }

    /// What a task's result or checkpoint is made of, of what such attempts have done, is this much now.
    pub(super) fn keep_work(&mut self, id: TaskId, now: Work) -> Result<(), Misfit> {
        let was = std::mem::replace(&mut self.task_mut(id)?.kept, now);
        self.job_mut(id.job)?.preemption.keep(was, now);
        Ok(())
    }

    pub(super) fn checkpoint_lost(&mut self, id: AttemptId) -> Result<(), Misfit> {
        let task = self.task_mut(id.task)?;
        let Some(checkpoint) = task.checkpoint.take_if(|checkpoint| checkpoint.attempt == id) else {
            return misfit(format!("{id} has no state put aside"));
        };
        self.job_mut(id.job())?.preemption.checkpoints_lost += 1;
        self.count_drain(checkpoint.tracker, |cost| cost.redone += 1);
        self.forget_checkpoint(checkpoint);
        self.keep_work(id.task, Work::default())
    }

    pub(super) fn forget_checkpoint(&mut self, checkpoint: Checkpoint) {
        if let Some(tracker) = self.trackers.get_mut(&checkpoint.tracker) {
            tracker.checkpoints.remove(&checkpoint.attempt);
        }
    }

    /// An attempt that was killed for its slot, or was asked for it and came to nothing, has worked in vain. One that was
    /// asked and had read nothing yet had nothing to lose.
    pub(super) fn count_kill(&mut self, at: Time, id: AttemptId, bytes_in: u64) -> Result<(), Misfit> {
        let Some(attempt) = self.attempt(id).filter(|attempt| attempt.blame.is_none()) else { return Ok(()) };
        let Some((how, _)) = attempt.recalled else { return Ok(()) };
        let bytes = bytes_in.saturating_sub(attempt.base.bytes);
        let (work, on) = (Work { bytes, time: at.since(attempt.launched) }, attempt.tracker);
        if how != Recall::Kill && bytes == 0 {
            return Ok(());
        }
        self.count_work(id, work)?;
        if how == Recall::Kill {
            self.job_mut(id.job())?.preemption.kills += 1;
            self.count_drain(on, |cost| cost.kills += 1);
        }
        self.count_drain(on, |cost| add(&mut cost.time_lost, work.time));
        Ok(())
    }
}

fn add(total: &mut Span, more: Span) {
    *total = *total + more;
}
