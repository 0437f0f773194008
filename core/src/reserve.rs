//! Reservations: the next free slot of a tracker is kept for a task, usually because an attempt was
//! preempted for this task.
//!
//! A reservation ends when its task is launched (there, or on a slot that is equally good and was
//! free earlier), when its tracker or its job is gone, or when it lapses. Reservations are not
//! durable: after a restart the task waits like any other.

use crate::{
    fact::Fact,
    ids::{JobId, TaskId, TrackerId},
    phase::Phase,
    time::{Span, Time},
    why::Why,
};
use std::collections::BTreeMap;

/// The slots that a task with a reservation may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptedSlots {
    /// Only a slot of the tracker with the reservation.
    ThisTracker,
    /// Also a slot of another tracker that is as near to the input or checkpoint of the task.
    EquallyNear,
}

/// All reservations.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    by_task: BTreeMap<TaskId, Reservation>,
    by_tracker: BTreeMap<TrackerId, BTreeMap<TaskId, Why>>,
}

#[derive(Debug, Clone, Copy)]
struct Reservation {
    on: TrackerId,
    until: Time,
    accepted_slots: AcceptedSlots,
}

impl Reservations {
    pub(crate) fn insert(
        &mut self,
        task: TaskId,
        (on, accepted_slots): (TrackerId, AcceptedSlots),
        until: Time,
        why: Why,
    ) {
        self.remove(task);
        self.by_task.insert(task, Reservation { on, until, accepted_slots });
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

    /// Removes reservations that a fact makes void.
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

    /// Extends all reservations by this time.
    pub(crate) fn extend(&mut self, by: Span) {
        self.by_task.values_mut().for_each(|place| place.until = place.until + by);
    }

    /// Removes lapsed reservations and returns whether there were any.
    pub(crate) fn expire(&mut self, now: Time) -> bool {
        self.remove_where(|_, place| place.until <= now)
    }

    /// Returns the tracker where a slot is reserved for a task.
    pub(crate) fn tracker_for(&self, task: TaskId) -> Option<TrackerId> {
        self.by_task.get(&task).map(|place| place.on)
    }

    /// Returns whether only the reserved tracker may run the task.
    pub(crate) fn is_only_for_tracker(&self, task: TaskId) -> bool {
        self.by_task.get(&task).is_some_and(|place| place.accepted_slots == AcceptedSlots::ThisTracker)
    }

    /// Returns the tasks of a job and phase that have a reservation.
    pub(crate) fn tasks_of(&self, job: JobId, phase: Phase) -> impl Iterator<Item = TaskId> + '_ {
        let (first, last) = (TaskId { job, phase, index: 0 }, TaskId { job, phase, index: u32::MAX });
        self.by_task.range(first..=last).map(|(task, _)| *task)
    }

    /// Returns the tasks that have a reservation on a tracker, with the reasons.
    pub(crate) fn tasks_on(&self, tracker: TrackerId) -> impl Iterator<Item = (TaskId, &Why)> + '_ {
        self.by_tracker.get(&tracker).into_iter().flatten().map(|(task, why)| (*task, why))
    }

    /// Returns the tasks that have a reservation on a tracker other than this one, with the
    /// reasons.
    pub(crate) fn tasks_elsewhere(&self, tracker: TrackerId) -> impl Iterator<Item = (TaskId, &Why)> + '_ {
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
        let mut reservations = Reservations::default();
        for index in 0..4 {
            reservations.insert(
                task(index),
                (TrackerId(index % 2), AcceptedSlots::EquallyNear),
                Time(10 + u64::from(index)),
                Why::rule("test"),
            );
        }
        let fact = Fact::AttemptSucceeded {
            attempt: task(0).attempt(0),
            result: crate::task::AttemptResult::default(),
        };
        reservations.observe(&fact);
        assert_eq!(reservations.tracker_for(task(0)), None);
        reservations.observe(&Fact::TrackerLost { tracker: TrackerId(1), why: String::new() });
        let left: Vec<TaskId> = reservations.tasks_of(JobId(1), Phase::Map).collect();
        assert_eq!(left, [task(2)], "the others were on the tracker that is gone");
        assert!(!reservations.expire(Time(11)) && reservations.expire(Time(12)));
        assert!(reservations.is_empty() && reservations.tasks_on(TrackerId(0)).next().is_none());
        reservations.insert(task(5), (TrackerId(0), AcceptedSlots::EquallyNear), Time(99), Why::rule("test"));
        reservations.observe(&Fact::JobCommitting { job: JobId(1) });
        assert!(reservations.is_empty());
    }

    #[test]
    fn newer_reservation_of_a_task_replaces_the_older_one() {
        let mut reservations = Reservations::default();
        reservations.insert(task(0), (TrackerId(0), AcceptedSlots::ThisTracker), Time(9), Why::rule("test"));
        reservations.insert(task(0), (TrackerId(1), AcceptedSlots::ThisTracker), Time(9), Why::rule("test"));
        assert_eq!(reservations.tracker_for(task(0)), Some(TrackerId(1)));
        assert!(reservations.tasks_on(TrackerId(0)).next().is_none());
    }
}
