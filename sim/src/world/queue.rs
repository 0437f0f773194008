//! What is to come: a heap of moments, and among equal ones the order in which they were asked for.

use mrcore::{Time, ids::JobId};
use std::{cmp::Ordering, collections::BinaryHeap};

/// What can come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub(super) enum SimEvent {
    /// The next job is submitted.
    Arrival,
    /// A tracker speaks; of an older version, it has been put off.
    Beat { node: u32, version: u32 },
    /// An attempt comes to the end of what it does; of an older version, it has changed its pace since.
    Done { node: u32, key: u64, version: u32 },
    /// An attempt has released its slot.
    SlotReleased { node: u32, key: u64 },
    /// The JobTracker looks at the time.
    Tick,
    /// Rates of flows are found anew.
    Share,
    /// A job's output is in place.
    Committed { job: JobId },
    /// A policy's problem has been solved.
    Solved { number: u64 },
    /// A step of the scenario has come.
    Step { index: u32 },
    /// A fault begins.
    Fault { index: u32 },
    /// A fault is over.
    Heal { index: u32 },
    /// What a step of the scenario did is undone.
    Undo { index: u32 },
    /// The file system has made up for a lost node's blocks, if they have not been there again since.
    Repaired { node: u32, returns: u32 },
}

impl SimEvent {
    /// Whether it comes from outside: a job, a fault, the end of one. There are only so many of these.
    pub(super) fn is_from_outside(self) -> bool {
        matches!(
            self,
            Self::Arrival | Self::Step { .. } | Self::Undo { .. } | Self::Fault { .. } | Self::Heal { .. }
        )
    }

    /// Whether it comes again and again, whatever else does.
    pub(super) fn is_routine(self) -> bool {
        matches!(self, Self::Beat { .. } | Self::Tick | Self::Share)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScheduledEvent {
    at: Time,
    sequence: u64,
    what: SimEvent,
}

impl Ord for ScheduledEvent {
    /// The soonest is the greatest: that is what a heap gives first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The heap.
#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: BinaryHeap<ScheduledEvent>,
    sequence: u64,
    /// How many of them are no mere routine.
    real: usize,
    /// How many of them come from outside.
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

    /// Whether nothing is to come from outside: no job, no fault, no end of one.
    pub(super) fn is_left_to_itself(&self) -> bool {
        self.outside == 0
    }

    /// Whether nothing is to come but heartbeats and looks at the clock: no job, no end of any work, no end of a fault.
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
