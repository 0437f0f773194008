//! The event queue: a heap by time; events at the same time are in order of insertion.

use mrcore::{Time, ids::JobId};
use std::{cmp::Ordering, collections::BinaryHeap};

/// Simulated events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SimEvent {
    /// The next job is submitted.
    Arrival,
    /// A heartbeat or another deadline of a tracker.
    AgentDeadline { node: u32 },
    /// A tracker tries to connect to the JobTracker. Ignored if a newer version is scheduled.
    Connect { node: u32, version: u32 },
    /// The process of an attempt has started.
    Started { node: u32, key: u64 },
    /// An attempt reaches the end of its current work. Ignored if a newer version is scheduled
    /// because its speed has changed.
    Done { node: u32, key: u64, version: u32 },
    /// A preempted attempt has released its slot.
    SlotReleased { node: u32, key: u64 },
    /// Timer of the JobTracker.
    Tick,
    /// Flow rates are computed again.
    UpdateRates,
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
    /// A copy of files ends. Ignored if a newer version is scheduled because its rate has changed.
    Copied { key: u64, version: u32 },
    /// Random events are due.
    Random,
    /// The NameNode declares a DataNode dead, unless it has returned since.
    DatanodeDead { node: u32, returns: u32 },
}

impl SimEvent {
    /// Returns whether the event is external: a submission, or the start or end of a fault. The
    /// number of such events in a run is limited.
    pub(super) fn is_external(self) -> bool {
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

    /// Returns whether the event is periodic.
    pub(super) fn is_periodic(self) -> bool {
        matches!(self, Self::AgentDeadline { .. } | Self::Connect { .. } | Self::Tick | Self::UpdateRates)
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
    not_periodic: usize,
    /// Number of external events.
    external: usize,
}

impl Queue {
    pub(super) fn push(&mut self, at: Time, what: SimEvent) {
        self.sequence += 1;
        self.not_periodic += usize::from(!what.is_periodic());
        self.external += usize::from(what.is_external());
        self.heap.push(ScheduledEvent { at, sequence: self.sequence, what });
    }

    pub(super) fn pop(&mut self) -> Option<(Time, SimEvent)> {
        let ScheduledEvent { at, what, .. } = self.heap.pop()?;
        self.not_periodic -= usize::from(!what.is_periodic());
        self.external -= usize::from(what.is_external());
        Some((at, what))
    }

    /// Returns whether no external event is pending.
    pub(super) fn has_no_external_event(&self) -> bool {
        self.external == 0
    }

    /// Returns whether only periodic events are pending.
    pub(super) fn has_only_periodic_events(&self) -> bool {
        self.not_periodic == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_ordered_by_time_then_insertion() {
        let mut queue = Queue::default();
        queue.push(Time(5), SimEvent::Tick);
        queue.push(Time(3), SimEvent::UpdateRates);
        queue.push(Time(3), SimEvent::Arrival);
        assert!(!queue.has_only_periodic_events() && !queue.has_no_external_event());
        let order: Vec<SimEvent> = std::iter::from_fn(|| queue.pop()).map(|(_, what)| what).collect();
        assert_eq!(order, [SimEvent::UpdateRates, SimEvent::Arrival, SimEvent::Tick]);
        queue.push(Time(7), SimEvent::Tick);
        assert!(queue.has_only_periodic_events() && queue.has_no_external_event());
        queue.push(Time(8), SimEvent::SlotReleased { node: 0, key: 0 });
        assert!(!queue.has_only_periodic_events() && queue.has_no_external_event());
    }
}
