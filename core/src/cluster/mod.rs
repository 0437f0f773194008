//! The state of the cluster as plain data, which scheduling policies read.
//!
//! It has a durable half ([`Durable`]), which only [`Cluster::apply`] changes, with new facts or
//! with facts replayed from the journal. The volatile half is what no fact covers (progress, the
//! time of the last heartbeat); it is lost with the process. The functions in this file need both
//! halves.

mod durable;
mod locality;
mod volatile;

pub use durable::{Answers, ApplyError, Durable, NotPreemptible};
pub use locality::Locality;
pub use volatile::Reports;

use crate::{
    fact::Fact,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::{Job, has_all_map_output},
    phase::Phase,
    task::{Attempt, Checkpoint, CheckpointInfo, PreemptKind, Progress, Stage, Task},
    time::{Span, Time},
    tracker::Tracker,
};
use std::{collections::BTreeSet, ops};
use volatile::Volatile;

/// A slow map with less than this fraction of its range left is not split, because the remainder
/// would be too small for a task of its own.
const REMAINDER_FRACTION_MIN: f32 = 0.05;

/// All trackers, jobs, tasks and attempts. Dereferences to the durable half, read-only.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    durable: Durable,
    pub(crate) volatile: Volatile,
}

impl ops::Deref for Cluster {
    type Target = Durable;

    fn deref(&self) -> &Durable {
        &self.durable
    }
}

impl Cluster {
    /// Applies one fact.
    pub fn apply(&mut self, at: Time, fact: &Fact) -> Result<(), ApplyError> {
        self.durable.apply(at, fact)?;
        self.volatile.update(at, fact, &self.durable);
        Ok(())
    }

    /// Returns the durable half.
    pub fn durable(&self) -> &Durable {
        &self.durable
    }

    /// Returns the time of the last heartbeat of a tracker.
    pub fn last_seen(&self, tracker: TrackerId) -> Time {
        self.volatile.last_seen.get(&tracker).copied().unwrap_or_default()
    }

    /// Returns the trackers that have sent no heartbeat for at least this time, ordered by ID.
    pub(crate) fn silent_trackers(&self, now: Time, limit: Span) -> impl Iterator<Item = &Tracker> {
        let silent = self.volatile.last_seen.iter().filter(move |(_, seen)| now.since(**seen) >= limit);
        silent.filter_map(|(id, _)| self.tracker(*id))
    }

    /// Returns the number of free slots of a tracker; 0 if the tracker accepts no work.
    pub fn free_slots(&self, tracker: &Tracker, phase: Phase) -> u32 {
        tracker.unassigned_slots(phase).saturating_sub(self.unknown_attempts(tracker.id, phase))
    }

    /// Returns the trackers with a free slot, ordered by ID.
    pub fn free_trackers(&self, phase: Phase) -> impl Iterator<Item = TrackerId> + '_ {
        self.free_trackers_from(phase, TrackerId(0))
    }

    /// Returns the trackers with a free slot, ordered by ID, starting with `first`. Trackers with
    /// lower IDs than `first` come last.
    pub(crate) fn free_trackers_from(
        &self,
        phase: Phase,
        first: TrackerId,
    ) -> impl Iterator<Item = TrackerId> + '_ {
        let unassigned = self.durable.unassigned_trackers(phase);
        let in_order = unassigned.range(first..).chain(unassigned.range(..first)).copied();
        in_order.filter(move |id| self.has_slot_without_unknown_attempt(*id, phase))
    }

    /// Returns whether a tracker has a free slot.
    pub(crate) fn has_free_slot(&self, id: TrackerId, phase: Phase) -> bool {
        self.tracker(id).is_some_and(|tracker| self.free_slots(tracker, phase) > 0)
    }

    /// Returns whether a tracker with unassigned slots has one that is not taken by an unknown
    /// attempt, which the tracker still runs although the JobTracker has given it up.
    fn has_slot_without_unknown_attempt(&self, id: TrackerId, phase: Phase) -> bool {
        self.unknown_attempts(id, phase) == 0
            || self.tracker(id).is_some_and(|tracker| self.free_slots(tracker, phase) > 0)
    }

    /// Returns the number of slots that are held by attempts which the tracker still runs and the
    /// JobTracker has given up.
    pub fn unknown_attempts(&self, tracker: TrackerId, phase: Phase) -> u32 {
        self.volatile.unknown_count(tracker, phase) as u32
    }

    /// Returns the attempts of a job that hold a slot, ordered by ID, each with its progress. The
    /// progress is `None` until the tracker of the attempt has reported it.
    pub fn running<'a>(
        &'a self,
        job: &'a Job,
        phase: Phase,
    ) -> impl Iterator<Item = (&'a Attempt, Option<Progress>)> {
        let (tasks, running) = (&job.tasks[phase], &job.running[phase]);
        // Policies ask about all jobs, and in a backlog most of them run nothing.
        let known = if running.is_empty() { None } else { Some(self.volatile.reports(job.id, phase)) };
        let reports = known.unwrap_or_default();
        running.iter().filter_map(move |id| {
            let attempt = tasks.get(id.task.index as usize)?.attempts.get(id.number as usize)?;
            Some((attempt, reports.get(*id).and_then(|reported| reported.progress)))
        })
    }

    /// Returns whether the tracker has reported an attempt as running since the JobTracker started.
    pub fn has_started(&self, attempt: &Attempt) -> bool {
        self.reports(attempt.id.job(), attempt.id.phase()).has_started(attempt)
    }

    /// Returns the progress of an attempt, as last reported by its tracker since the JobTracker
    /// started.
    pub fn progress(&self, attempt: &Attempt) -> Progress {
        self.reports(attempt.id.job(), attempt.id.phase()).progress(attempt)
    }

    /// Returns what trackers have reported about the attempts of a job.
    pub fn reports(&self, job: JobId, phase: Phase) -> Reports<'_> {
        self.volatile.reports(job, phase)
    }

    /// Stores the progress of an attempt that its tracker has reported. Returns the attempt.
    pub(crate) fn set_progress(&mut self, id: AttemptId, now: Time, progress: Progress) -> Option<&Attempt> {
        let attempt = self.durable.attempt(id)?;
        let reported = self.volatile.reported_state_mut(id);
        if reported.progress_of(attempt) != progress {
            reported.last_progress = now;
        }
        reported.progress = Some(progress);
        reported.last_report = now;
        Some(attempt)
    }

    /// Sets the time of the last report of an attempt to `now`.
    pub(crate) fn set_reported(&mut self, id: AttemptId, now: Time) {
        self.volatile.reported_state_mut(id).last_report = now;
    }

    /// Moves the times of the last heartbeats, reports and progress forward by `paused_for`: what
    /// trackers did not send while the JobTracker itself was paused does not count as missed.
    pub(crate) fn extend_after_pause(&mut self, now: Time, paused_for: Span) {
        let later = |time: Time| (time + paused_for).min(now);
        self.volatile.last_seen.values_mut().for_each(|seen| *seen = later(*seen));
        let running = self.durable.jobs().flat_map(|job| job.running.map.iter().chain(&job.running.reduce));
        for id in running.copied().collect::<Vec<AttemptId>>() {
            let Some(attempt) = self.durable.attempt(id) else { continue };
            let reports = self.volatile.reports(id.job(), id.phase());
            let (progress, reported) = (reports.last_progress(attempt), reports.last_reported(attempt));
            let entry = self.volatile.reported_state_mut(id);
            (entry.last_progress, entry.last_report) = (later(progress), later(reported));
        }
    }

    /// Returns the map outputs that a tracker has, according to the facts and to its last
    /// registration.
    pub(crate) fn outputs_on<'a>(&'a self, tracker: &'a Tracker) -> impl Iterator<Item = AttemptId> + 'a {
        tracker.outputs.iter().copied().filter(|output| !self.volatile.is_missing(*output))
    }

    /// Returns whether a tracker has a map output.
    pub(crate) fn has_output(&self, tracker: &Tracker, output: AttemptId) -> bool {
        tracker.outputs.contains(&output) && !self.volatile.is_missing(output)
    }

    /// Stores which of its map outputs a tracker has listed in its registration.
    pub(crate) fn set_listed_outputs(&mut self, tracker: TrackerId, listed: &BTreeSet<AttemptId>) {
        if let Some(tracker) = self.durable.tracker(tracker) {
            self.volatile.set_missing(&tracker.outputs, listed);
        }
    }

    /// Stores what a tracker has reported about the checkpoint of an attempt.
    pub(crate) fn set_checkpoint_info(&mut self, on: TrackerId, id: AttemptId, info: CheckpointInfo) {
        let checkpoint = self.task(id.task).and_then(|task| task.checkpoint);
        if checkpoint.is_some_and(|checkpoint| (checkpoint.attempt, checkpoint.tracker) == (id, on)) {
            self.volatile.reported_state_mut(id).checkpoint_records = info.records;
        }
    }

    /// Returns whether a checkpoint has more progress than another checkpoint of the same task.
    pub(crate) fn is_ahead_of(&self, checkpoint: &Checkpoint, other: &CheckpointInfo) -> bool {
        let reported = self.volatile.reported_state(checkpoint.attempt);
        let records = reported.map_or(0, |reported| reported.checkpoint_records);
        (checkpoint.stage, records, checkpoint.work.bytes) > (other.stage, other.records, other.bytes_in)
    }

    /// Returns whether a task was interrupted and waits before it is launched again.
    pub fn is_delayed(&self, task: TaskId) -> bool {
        self.volatile.is_delayed(task)
    }

    /// Returns whether any task was interrupted and waits before it is launched again.
    pub fn has_delayed_tasks(&self) -> bool {
        self.volatile.has_delayed_tasks()
    }

    /// Returns the tasks of a job that were interrupted and wait before they are launched again.
    pub fn delayed_tasks(&self, job: JobId, phase: Phase) -> impl Iterator<Item = TaskId> + '_ {
        self.volatile.delayed_tasks(job, phase)
    }

    /// Returns the indexes of the running tasks of a job that are much slower than other tasks of
    /// their phase.
    pub fn stragglers(&self, job: JobId, phase: Phase) -> impl Iterator<Item = u32> + '_ {
        self.volatile.stragglers[phase].get(&job).into_iter().flatten().copied()
    }

    /// Returns whether a task is a straggler.
    pub(crate) fn is_straggler(&self, task: TaskId) -> bool {
        let slow = self.volatile.stragglers[task.phase].get(&task.job);
        slow.is_some_and(|slow| slow.contains(&task.index))
    }

    /// Returns the jobs with stragglers, oldest first.
    pub fn jobs_with_stragglers(&self, phase: Phase) -> impl Iterator<Item = &Job> {
        self.volatile.stragglers[phase].keys().filter_map(|job| self.job(*job))
    }

    /// Returns whether a slow map should be split instead of getting a speculative attempt.
    pub fn should_split(&self, job: &Job, slow: &Attempt) -> bool {
        job.spec.speculation
            && job.spec.split_slow
            && self.may_preempt(slow.id, PreemptKind::Split).is_ok()
            && slow.refusals == 0
            && self.progress(slow).done <= 1.0 - REMAINDER_FRACTION_MIN
    }

    /// Returns whether any reduce of a job still has to fetch map output. A reduce after its
    /// shuffle stage has fetched everything.
    pub(crate) fn needs_map_output(&self, job: &Job) -> bool {
        let reports = self.volatile.reports(job.id, Phase::Reduce);
        let further = |attempt: &Attempt| reports.progress(attempt).stage > Stage::Shuffle;
        let has_it_all =
            |task: &Task| task.is_done() || has_all_map_output(task) || task.viable_attempts().any(further);
        job.is_running() && !job.tasks.reduce.iter().all(has_it_all)
    }
}
