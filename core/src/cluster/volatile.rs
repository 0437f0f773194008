//! The volatile half of the cluster: what trackers have reported and what the JobTracker has
//! concluded, as far as no fact covers it. It is lost with the process and is not in the journal.
//!
//! Entries use the IDs of the durable half, and are removed when their job, attempt or tracker is
//! removed there. An entry that does not exist yet has its default value.

use super::Durable;
use crate::{
    fact::Fact,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    phase::{PerPhase, Phase},
    task::{Attempt, AttemptState, Progress},
    time::Time,
    tracker::TrackerState,
};
use std::collections::{BTreeMap, BTreeSet};

/// What the tracker of an attempt has reported about it since the JobTracker started.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct ReportedState {
    /// The progress, if the attempt was reported as running.
    pub(crate) progress: Option<Progress>,
    /// When the progress last changed.
    pub(crate) last_progress: Time,
    /// When the attempt was last reported.
    pub(crate) last_report: Time,
    /// The number of records that the attempt had reduced when it saved its checkpoint.
    pub(crate) checkpoint_records: u64,
}

impl ReportedState {
    /// Returns the progress of the attempt that this is about.
    pub(super) fn progress_of(&self, attempt: &Attempt) -> Progress {
        let known = self.progress.unwrap_or(Progress { stage: attempt.stage, ..Progress::default() });
        match attempt.state {
            AttemptState::Succeeded => Progress { done: 1.0, ..known },
            // The last report may be from an earlier stage than the checkpoint.
            AttemptState::Paused => Progress { stage: attempt.stage, ..known },
            _ => known,
        }
    }
}

/// All volatile values.
#[derive(Debug, Clone, Default)]
pub(crate) struct Volatile {
    /// The time of the last heartbeat of each tracker. A registration counts as a heartbeat, and so
    /// does a start of the JobTracker: every tracker gets the full timeout to register again.
    pub(crate) last_seen: BTreeMap<TrackerId, Time>,
    /// Attempts that a tracker reports as running but that the JobTracker has given up. Each takes
    /// a slot until the tracker no longer reports it. Trackers without such attempts have no entry.
    unknown_attempts: BTreeMap<TrackerId, PerPhase<BTreeSet<AttemptId>>>,
    /// Map outputs that their trackers did not list at registration, and that no reduce needed at
    /// that time.
    missing_outputs: BTreeSet<AttemptId>,
    /// The indexes of running tasks that are much slower than others of their phase, as of the last
    /// check. Jobs without stragglers have no entry.
    pub(crate) stragglers: PerPhase<BTreeMap<JobId, BTreeSet<u32>>>,
    /// Trackers that may have files of a job although they did not run its attempts.
    extra_trackers: BTreeMap<JobId, BTreeSet<TrackerId>>,
    /// Tasks that were interrupted and wait before they are launched again, and until when.
    delayed_tasks: BTreeMap<TaskId, Time>,
    /// What was reported about each attempt: by job, phase and index of the task.
    reported_states: BTreeMap<JobId, PerPhase<Vec<TaskReports>>>,
}

/// What trackers have reported about the attempts of a task. Most tasks have one attempt: its entry
/// is not in a vector, because every heartbeat needs it.
#[derive(Debug, Clone, Default)]
struct TaskReports {
    first: ReportedState,
    others: Vec<ReportedState>,
}

/// What trackers have reported about the attempts of one job and phase, by index of the task.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reports<'a>(&'a [TaskReports]);

impl<'a> Reports<'a> {
    pub(super) fn get(self, id: AttemptId) -> Option<&'a ReportedState> {
        let task = self.0.get(id.task.index as usize)?;
        id.number.checked_sub(1).map_or(Some(&task.first), |other| task.others.get(other as usize))
    }

    /// Returns the progress of an attempt, as last reported by its tracker since the JobTracker
    /// started.
    pub fn progress(self, attempt: &Attempt) -> Progress {
        self.get(attempt.id).copied().unwrap_or_default().progress_of(attempt)
    }

    /// Returns whether the tracker has reported an attempt as running since the JobTracker started.
    pub(crate) fn has_started(self, attempt: &Attempt) -> bool {
        self.get(attempt.id).is_some_and(|reported| reported.progress.is_some())
    }

    /// Returns when the progress of an attempt last changed, or when the attempt was launched if
    /// that is later.
    pub(crate) fn last_progress(self, attempt: &Attempt) -> Time {
        self.get(attempt.id).map_or(attempt.launched, |reported| reported.last_progress.max(attempt.launched))
    }

    /// Returns when the tracker last reported an attempt, or when the tracker was last sent an
    /// order about the attempt if that is later.
    pub(crate) fn last_reported(self, attempt: &Attempt) -> Time {
        self.get(attempt.id)
            .map_or(attempt.last_order, |reported| reported.last_report.max(attempt.last_order))
    }
}

impl Volatile {
    /// Updates the entries after a fact was applied to the durable half.
    pub(super) fn update(&mut self, at: Time, fact: &Fact, durable: &Durable) {
        match fact {
            Fact::JobTrackerStarted { .. } => {
                let expected = durable.trackers().filter(|tracker| tracker.state != TrackerState::Lost);
                self.last_seen.extend(expected.map(|tracker| (tracker.id, at)));
            }
            Fact::TrackerJoined { tracker, .. } => {
                self.last_seen.insert(*tracker, at);
                self.unknown_attempts.remove(tracker);
            }
            Fact::TrackerForgotten { tracker, .. } => {
                self.last_seen.remove(tracker);
                self.unknown_attempts.remove(tracker);
            }
            Fact::MapOutputLost { attempt, .. } | Fact::MapOutputCopied { attempt, .. } => {
                self.missing_outputs.remove(attempt);
            }
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => {
                for phase in Phase::BOTH {
                    self.stragglers[phase].remove(job);
                }
                self.missing_outputs.retain(|attempt| attempt.job() != *job);
                self.delayed_tasks.retain(|task, _| task.job != *job);
            }
            Fact::JobForgotten { job } => {
                self.extra_trackers.remove(job);
                self.reported_states.remove(job);
            }
            _ => {}
        }
    }

    pub(super) fn reports(&self, job: JobId, phase: Phase) -> Reports<'_> {
        Reports(self.reported_states.get(&job).map_or(&[], |reports| &reports[phase]))
    }

    pub(super) fn reported_state(&self, id: AttemptId) -> Option<&ReportedState> {
        self.reports(id.job(), id.phase()).get(id)
    }

    /// Returns the entry of an attempt of a known job, and creates it if there is none.
    pub(super) fn reported_state_mut(&mut self, id: AttemptId) -> &mut ReportedState {
        let tasks = &mut self.reported_states.entry(id.job()).or_default()[id.phase()];
        let index = id.task.index as usize;
        if tasks.len() <= index {
            tasks.resize_with(index + 1, TaskReports::default);
        }
        let TaskReports { first, others } = &mut tasks[index];
        let Some(other) = id.number.checked_sub(1).map(|other| other as usize) else { return first };
        if others.len() <= other {
            others.resize_with(other + 1, ReportedState::default);
        }
        &mut others[other]
    }

    /// Returns the number of slots of a tracker that unknown attempts hold.
    pub(super) fn unknown_count(&self, tracker: TrackerId, phase: Phase) -> usize {
        self.unknown_attempts.get(&tracker).map_or(0, |unknown| unknown[phase].len())
    }

    /// Adds an unknown attempt and returns whether it is new.
    pub(crate) fn add_unknown(&mut self, tracker: TrackerId, attempt: AttemptId) -> bool {
        self.unknown_attempts.entry(tracker).or_default()[attempt.phase()].insert(attempt)
    }

    /// Removes the unknown attempts of a tracker that do not run any more.
    pub(crate) fn retain_unknown(&mut self, tracker: TrackerId, runs: impl Fn(&AttemptId) -> bool) {
        let Some(unknown) = self.unknown_attempts.get_mut(&tracker) else { return };
        for phase in Phase::BOTH {
            unknown[phase].retain(&runs);
        }
        if *unknown == PerPhase::default() {
            self.unknown_attempts.remove(&tracker);
        }
    }

    /// Stores which of the map outputs of a tracker are missing: those that the tracker did not
    /// list in its registration.
    pub(super) fn set_missing(&mut self, outputs: &BTreeSet<AttemptId>, listed: &BTreeSet<AttemptId>) {
        self.missing_outputs.retain(|attempt| !listed.contains(attempt));
        self.missing_outputs.extend(outputs.difference(listed));
    }

    pub(super) fn is_missing(&self, output: AttemptId) -> bool {
        self.missing_outputs.contains(&output)
    }

    /// Delays the next launch of a task.
    pub(crate) fn delay_task(&mut self, task: TaskId, until: Time) {
        self.delayed_tasks.insert(task, until);
    }

    /// Ends the delays that are over. Returns whether there were any.
    pub(crate) fn end_delays(&mut self, now: Time) -> bool {
        let before = self.delayed_tasks.len();
        self.delayed_tasks.retain(|_, until| *until > now);
        self.delayed_tasks.len() < before
    }

    pub(super) fn is_delayed(&self, task: TaskId) -> bool {
        self.delayed_tasks.contains_key(&task)
    }

    pub(super) fn has_delayed_tasks(&self) -> bool {
        !self.delayed_tasks.is_empty()
    }

    pub(super) fn delayed_tasks(&self, job: JobId, phase: Phase) -> impl Iterator<Item = TaskId> + '_ {
        let task = |index| TaskId { job, phase, index };
        self.delayed_tasks.range(task(0)..=task(u32::MAX)).map(|(task, _)| *task)
    }

    /// Adds a tracker that may have files of a job although it did not run attempts of the job.
    pub(crate) fn add_extra_tracker(&mut self, job: JobId, tracker: TrackerId) {
        self.extra_trackers.entry(job).or_default().insert(tracker);
    }

    /// Returns the trackers that may have files of a job although they did not run attempts of the
    /// job.
    pub(crate) fn extra_trackers(&self, job: JobId) -> impl Iterator<Item = TrackerId> + '_ {
        self.extra_trackers.get(&job).into_iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobOutcome;

    const JOB: JobId = JobId(1);
    const TRACKER: TrackerId = TrackerId(0);

    fn attempt(phase: Phase, index: u32) -> AttemptId {
        TaskId { job: JOB, phase, index }.attempt(0)
    }

    fn apply(volatile: &mut Volatile, fact: &Fact) {
        volatile.update(Time(1), fact, &Durable::default());
    }

    #[test]
    fn a_missing_output_counts_again_when_it_is_listed_or_copied() {
        let [stays, listed, copied, lost] = [0, 1, 2, 3].map(|index| attempt(Phase::Map, index));
        let mut volatile = Volatile::default();
        volatile.set_missing(&BTreeSet::from([stays, listed, copied, lost]), &BTreeSet::from([stays]));
        let missing =
            |volatile: &Volatile| [stays, listed, copied, lost].map(|output| volatile.is_missing(output));
        assert_eq!(missing(&volatile), [false, true, true, true]);
        volatile.set_missing(&BTreeSet::from([listed]), &BTreeSet::from([listed]));
        assert_eq!(missing(&volatile), [false, false, true, true]);
        apply(&mut volatile, &Fact::MapOutputCopied { attempt: copied, tracker: TRACKER, bytes: 1 });
        assert_eq!(missing(&volatile), [false, false, false, true]);
        apply(&mut volatile, &Fact::JobEnded { job: JOB, outcome: JobOutcome::Succeeded });
        assert_eq!(missing(&volatile), [false; 4]);
    }

    #[test]
    fn delay_of_a_task_ends_at_its_time() {
        let mut volatile = Volatile::default();
        let [early, late] = [1, 2].map(|index| attempt(Phase::Map, index).task);
        volatile.delay_task(early, Time(5));
        volatile.delay_task(late, Time(9));
        assert_eq!(volatile.delayed_tasks(JOB, Phase::Map).collect::<Vec<_>>(), [early, late]);
        assert_eq!(volatile.delayed_tasks(JOB, Phase::Reduce).count(), 0);
        assert!(!volatile.end_delays(Time(4)));
        assert!(volatile.end_delays(Time(5)));
        assert!(!volatile.is_delayed(early) && volatile.is_delayed(late));
    }

    #[test]
    fn entries_of_forgotten_jobs_and_trackers_are_removed() {
        let mut volatile = Volatile::default();
        let reduce = attempt(Phase::Reduce, 7);
        volatile.last_seen.insert(TRACKER, Time(1));
        volatile.add_unknown(TRACKER, reduce);
        volatile.set_missing(&BTreeSet::from([attempt(Phase::Map, 0)]), &BTreeSet::new());
        volatile.stragglers.map.insert(JOB, BTreeSet::from([3]));
        volatile.add_extra_tracker(JOB, TRACKER);
        volatile.delay_task(reduce.task, Time(9));
        volatile.reported_state_mut(reduce).last_report = Time(5);
        assert_eq!(volatile.reported_state(reduce).map(|reported| reported.last_report), Some(Time(5)));
        assert_eq!(
            (volatile.unknown_count(TRACKER, Phase::Reduce), volatile.extra_trackers(JOB).count()),
            (1, 1)
        );
        apply(&mut volatile, &Fact::JobEnded { job: JOB, outcome: JobOutcome::Succeeded });
        apply(&mut volatile, &Fact::JobForgotten { job: JOB });
        let (name, why) = (String::new(), String::new());
        apply(&mut volatile, &Fact::TrackerForgotten { tracker: TRACKER, name, why });
        assert_eq!(format!("{volatile:?}"), format!("{:?}", Volatile::default()));
    }
}
