//! A tracker as the JobTracker knows it.

use crate::{
    ids::{AttemptId, HostId, Incarnation, RackId, TrackerId},
    phase::{PerPhase, Phase},
    time::{Span, Time},
};
use std::collections::BTreeSet;

/// Whether a tracker can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackerState {
    /// Its heartbeats arrive.
    Live,
    /// Its heartbeats are late or its connection broke. It gets no new work.
    Suspect,
    /// It was known before a restart of the JobTracker and has not registered since.
    Awaited,
    /// It was given up. Its attempts run elsewhere.
    Lost,
}

/// A drain that a user requested for a tracker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// The user who requested it.
    pub by: String,
    /// When it was requested.
    pub since: Time,
    /// The deadline. Attempts that are still running then are killed.
    pub until: Time,
    /// The cost so far.
    pub cost: DrainCost,
}

/// The cost of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DrainCost {
    pub splits: u32,
    pub pauses: u32,
    pub kills: u32,
    pub time_lost: Span,
    /// Number of map outputs that other trackers have copied.
    pub outputs: u32,
    pub output_bytes: u64,
    /// Number of checkpoints of paused reduces that other trackers have copied.
    pub checkpoints: u32,
    pub checkpoint_bytes: u64,
    /// Number of outputs and checkpoints that could not be copied. Their tasks run again.
    pub redone: u32,
}

/// A tracker, according to the facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracker {
    pub id: TrackerId,
    /// Its name, which is unique.
    pub name: String,
    /// The number of this process among all that have registered with this name.
    pub incarnation: Incarnation,
    pub host: HostId,
    pub rack: RackId,
    /// Where reduces fetch map output from it, `host:port`.
    pub shuffle_addr: String,
    /// Where logs of its attempts are read, `host:port`.
    pub logs_addr: String,
    /// Number of slots.
    pub slots: PerPhase<u32>,
    /// Whether it can be used.
    pub state: TrackerState,
    /// Attempts that hold its slots.
    pub running: PerPhase<BTreeSet<AttemptId>>,
    /// Maps whose output it has, unless it did not list them when it registered
    /// (`Cluster::outputs_on`).
    pub outputs: BTreeSet<AttemptId>,
    /// Paused attempts whose checkpoint it has.
    pub checkpoints: BTreeSet<AttemptId>,
    /// The drain, if it is being drained.
    pub drain: Option<Drain>,
}

impl Tracker {
    /// Returns whether it may be given work: it is live and not being drained.
    pub fn accepts_work(&self) -> bool {
        self.state == TrackerState::Live && self.drain.is_none()
    }

    /// Returns the slots that policies divide among jobs: none if the tracker is suspect, lost or
    /// being drained. The slots of awaited trackers count.
    pub fn capacity(&self) -> PerPhase<u32> {
        let relied_on = matches!(self.state, TrackerState::Live | TrackerState::Awaited);
        if relied_on && self.drain.is_none() { self.slots } else { PerPhase::default() }
    }

    /// Returns the number of slots that no known attempt holds; 0 if the tracker accepts no work.
    /// Unknown attempts may hold these slots: see [`crate::Cluster::free_slots`].
    pub(crate) fn unassigned_slots(&self, phase: Phase) -> u32 {
        if !self.accepts_work() {
            return 0;
        }
        self.slots[phase].saturating_sub(self.running[phase].len() as u32)
    }
}
