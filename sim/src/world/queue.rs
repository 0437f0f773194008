//! The event queue: a heap by time; events at the same time are in order of insertion.

use mrcore::{
    Time,
    ids::{AttemptId, JobId},
};
use std::{cmp::Ordering, collections::BinaryHeap};

/// Simulated events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub(super) enum SimEvent {
    /// The next job is submitted.
    Arrival,
    /// A heartbeat or another deadline of a tracker.
    Beat { node: u32 },
    /// A tracker tries to connect to the JobTracker. An older version was replaced by a newer one.
    Connect { node: u32, version: u32 },
    /// The process of an attempt has started.
    Started { node: u32, key: u64 },
    /// An attempt reaches the end of its current work. An older version is invalid because its
    /// speed has changed.
    Done { node: u32, key: u64, version: u32 },
    /// A preempted attempt has released its slot.
    SlotReleased { node: u32, key: u64 },
    /// Timer of the JobTracker.
    Tick,
    /// Flow rates are computed again.
    Share,
    /// The output of a job is committed.
    Committed { job: JobId },
    /// The optimisation problem of a policy is solved.
    Solved { number: u64 },
    /// A step of the scenario is due.
    Step { index: u32 },
    /// A fault begins.
    Fault { index: u32 },
    /// A fault ends.
    Heal { index: u32 },
    /// A step of the scenario is undone.
    Undo { index: u32 },
    /// A tracker has copied the files of an attempt.
    Copied { node: u32, attempt: AttemptId },
    /// Random events are due.
    Random,
    /// The file system has replicated the blocks of a lost node, unless the node has returned
    /// since.
    Repaired { node: u32, returns: u32 },
}

impl SimEvent {
    /// Whether the event is external: a submission, a fault, or the end of one. The number of these
    /// is limited.
    pub(super) fn is_from_outside(self) -> bool {
        matches!(
            self,
            Self::Random
                | Self::Arrival
                | Self::Step { .. }
                | Self::Undo { .. }
                | Self::Fault { .. }
                | Self::Heal { .. }
        )
    }

    /// Whether the event is periodic.
    pub(super) fn is_routine(self) -> bool {
        matches!(self, Self::Beat { .. } | Self::Connect { .. } | Self::Tick | Self::Share)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScheduledEvent {
    at: Time,
    sequence: u64,
    what: SimEvent,
}

impl Ord for ScheduledEvent {
    /// The earliest event is the greatest, because `BinaryHeap` returns the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Future events.
#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: BinaryHeap<ScheduledEvent>,
    sequence: u64,
    /// Number of events that are not periodic.
    real: usize,
    /// Number of external events.
    outside: usize,
}

impl Queue {
    pub(super) fn push(&mut self, at: Time, what: SimEvent) {
        self.sequence += 1;
        self.real += usize::from(!what.is_routine());
        self.outside += usize::from(what.is_from_outside());
        self.heap.push(ScheduledEvent { at, sequence: self.sequence, what });
    }

    pub(super) fn pop(&mut self) -> Option<(Time, SimEvent)> {
        let ScheduledEvent { at, what, .. } = self.heap.pop()?;
        self.real -= usize::from(!what.is_routine());
        self.outside -= usize::from(what.is_from_outside());
        Some((at, what))
    }

    /// Whether no external event is pending.
    pub(super) fn is_left_to_itself(&self) -> bool {
        self.outside == 0
    }

    /// Whether only periodic events are pending.
    pub(super) fn is_routine(&self) -> bool {
        self.real == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_ordered_by_time_then_insertion() {
        let mut queue = Queue::default();
        queue.push(Time(5), SimEvent::Tick);
        queue.push(Time(3), SimEvent::Share);
        queue.push(Time(3), SimEvent::Arrival);
        assert!(!queue.is_routine() && !queue.is_left_to_itself());
        let order: Vec<SimEvent> = std::iter::from_fn(|| queue.pop()).map(|(_, what)| what).collect();
        assert_eq!(order, [SimEvent::Share, SimEvent::Arrival, SimEvent::Tick]);
        queue.push(Time(7), SimEvent::Tick);
        assert!(queue.is_routine() && queue.is_left_to_itself());
        queue.push(Time(8), SimEvent::SlotReleased { node: 0, key: 0 });
        assert!(!queue.is_routine() && queue.is_left_to_itself());
    }
}
