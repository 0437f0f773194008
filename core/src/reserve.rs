//! Slots that are spoken for: the next free slot of a tracker goes to a task that somebody's slot was preempted for.
//!
//! A reservation is kept until its task is launched (there, or where a slot that is as good came free first), its tracker
//! or its job is gone, or its time is up. Not durable: after a restart the task waits like any other.

use crate::{
    fact::Fact,
    ids::{JobId, TaskId, TrackerId},
    phase::Phase,
    time::{Span, Time},
    why::Why,
};
use std::collections::BTreeMap;

/// What keeps a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReservedFor {
    /// A slot of this tracker alone.
    ThisTracker,
    /// Also one elsewhere that is as near to what the task reads.
    EquallyNear,
}

/// The reservations.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    by_task: BTreeMap<TaskId, Reservation>,
    by_tracker: BTreeMap<TrackerId, BTreeMap<TaskId, Why>>,
}

#[derive(Debug, Clone, Copy)]
struct Reservation {
    on: TrackerId,
    until: Time,
    reserved_for: ReservedFor,
}

impl Reservations {
    pub(crate) fn insert(
        &mut self,
        task: TaskId,
        (on, reserved_for): (TrackerId, ReservedFor),
        until: Time,
        why: Why,
    ) {
        self.remove(task);
        self.by_task.insert(task, Reservation { on, until, reserved_for });
        self.by_tracker.entry(on).or_default().insert(task, why);
    }

    pub(crate) fn remove(&mut self, task: TaskId) {
        let Some(Reservation { on, .. }) = self.by_task.remove(&task) else { return };
        if let Some(there) = self.by_tracker.get_mut(&on) {
            there.remove(&task);
            if there.is_empty() {
                self.by_tracker.remove(&on);
            }
        }
    }

    fn remove_where(&mut self, is_void: impl Fn(TaskId, &Reservation) -> bool) -> bool {
        let void = self.by_task.iter().filter(|(task, place)| is_void(**task, place));
        let void: Vec<TaskId> = void.map(|(task, _)| *task).collect();
        for task in &void {
            self.remove(*task);
        }
        !void.is_empty()
    }

    /// What a fact makes void.
    pub(crate) fn observe(&mut self, fact: &Fact) {
        if self.by_task.is_empty() {
            return;
        }
        match fact {
            Fact::AttemptLaunched { attempt, .. } | Fact::AttemptSucceeded { attempt, .. } => {
                self.remove(attempt.task);
            }
            Fact::TrackerSuspected { tracker, .. }
            | Fact::TrackerLost { tracker, .. }
            | Fact::TrackerDraining { tracker, .. } => {
                self.remove_where(|_, place| place.on == *tracker);
            }
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => {
                self.remove_where(|task, _| task.job == *job);
            }
            _ => {}
        }
    }

    /// All is kept for so much longer.
    pub(crate) fn extend(&mut self, by: Span) {
        self.by_task.values_mut().for_each(|place| place.until = place.until + by);
    }

    /// What has been kept for too long goes; says whether anything did.
    pub(crate) fn expire(&mut self, now: Time) -> bool {
        self.remove_where(|_, place| place.until <= now)
    }

    /// Where a task is to run.
    pub(crate) fn place(&self, task: TaskId) -> Option<TrackerId> {
        self.by_task.get(&task).map(|place| place.on)
    }

    /// Whether a task is to run there and nowhere else.
    pub(crate) fn is_exact(&self, task: TaskId) -> bool {
        self.by_task.get(&task).is_some_and(|place| place.reserved_for == ReservedFor::ThisTracker)
    }

    /// Tasks of a job and phase that are to run somewhere.
    pub(crate) fn of(&self, job: JobId, phase: Phase) -> impl Iterator<Item = TaskId> + '_ {
        let (first, last) = (TaskId { job, phase, index: 0 }, TaskId { job, phase, index: u32::MAX });
        self.by_task.range(first..=last).map(|(task, _)| *task)
    }

    /// Tasks that are to run on a tracker, and why.
    pub(crate) fn on(&self, tracker: TrackerId) -> impl Iterator<Item = (TaskId, &Why)> + '_ {
        self.by_tracker.get(&tracker).into_iter().flatten().map(|(task, why)| (*task, why))
    }

    /// Tasks that are to run on other trackers, and why.
    pub(crate) fn elsewhere(&self, tracker: TrackerId) -> impl Iterator<Item = (TaskId, &Why)> + '_ {
        let others = self.by_tracker.iter().filter(move |(on, _)| **on != tracker);
        others.flat_map(|(_, there)| there).map(|(task, why)| (*task, why))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_task.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(index: u32) -> TaskId {
        TaskId { job: JobId(1), phase: Phase::Map, index }
    }

    #[test]
    fn reservation_ends_with_task_tracker_job_or_timeout() {
        let mut reserved_for = Reservations::default();
        for index in 0..4 {
            reserved_for.insert(
                task(index),
                (TrackerId(index % 2), ReservedFor::EquallyNear),
                Time(10 + u64::from(index)),
                Why::rule("test"),
            );
        }
        let fact = Fact::AttemptSucceeded {
            attempt: task(0).attempt(0),
            result: crate::task::AttemptResult::default(),
        };
        reserved_for.observe(&fact);
        assert_eq!(reserved_for.place(task(0)), None);
        reserved_for.observe(&Fact::TrackerLost { tracker: TrackerId(1), why: String::new() });
        let left: Vec<TaskId> = reserved_for.of(JobId(1), Phase::Map).collect();
        assert_eq!(left, [task(2)], "the others were on the tracker that is gone");
        assert!(!reserved_for.expire(Time(11)) && reserved_for.expire(Time(12)));
        assert!(reserved_for.is_empty() && reserved_for.on(TrackerId(0)).next().is_none());
        reserved_for.insert(task(5), (TrackerId(0), ReservedFor::EquallyNear), Time(99), Why::rule("test"));
        reserved_for.observe(&Fact::JobCommitting { job: JobId(1) });
        assert!(reserved_for.is_empty());
    }

    #[test]
    fn newer_reservation_replaces_older() {
        let mut reserved_for = Reservations::default();
        reserved_for.insert(task(0), (TrackerId(0), ReservedFor::ThisTracker), Time(9), Why::rule("test"));
        reserved_for.insert(task(0), (TrackerId(1), ReservedFor::ThisTracker), Time(9), Why::rule("test"));
        assert_eq!(reserved_for.place(task(0)), Some(TrackerId(1)));
        assert!(reserved_for.on(TrackerId(0)).next().is_none());
    }
}
