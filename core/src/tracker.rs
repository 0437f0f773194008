//! A tracker as the JobTracker sees it.

use crate::{
    ids::{AttemptId, HostId, Incarnation, RackId, TrackerId},
    phase::{PerPhase, Phase},
    time::Time,
};
use std::collections::BTreeSet;

/// Whether a tracker can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackerState {
    /// Heard of.
    Live,
    /// Silent for a while, or its connection broke: gets nothing new.
    Suspect,
    /// Known from before a restart of the JobTracker; expected back.
    Awaited,
    /// Given up: what it ran runs elsewhere.
    Lost,
}

/// A tracker.
#[derive(Debug, Clone)]
pub struct Tracker {
    /// Its number.
    pub id: TrackerId,
    /// Its name; one tracker a name.
    pub name: String,
    /// This start of it.
    pub incarnation: Incarnation,
    /// Its host.
    pub host: HostId,
    /// Its rack.
    pub rack: RackId,
    /// Where reducers fetch map output, `host:port`.
    pub shuffle_addr: String,
    /// Where its attempts' logs are read, `host:port`.
    pub logs_addr: String,
    /// How many attempts it takes at a time.
    pub slots: PerPhase<u32>,
    /// Whether it can be relied on.
    pub state: TrackerState,
    /// Attempts that hold its slots.
    pub running: PerPhase<BTreeSet<AttemptId>>,
    /// Attempts of maps whose output it serves.
    pub outputs: BTreeSet<AttemptId>,
    /// When it was last heard of.
    pub last_heard: Time,
}

impl Tracker {
    /// Slots that nothing holds; none if it cannot be relied on.
    pub fn free(&self, phase: Phase) -> u32 {
        if self.state != TrackerState::Live {
            return 0;
        }
        self.slots[phase].saturating_sub(self.running[phase].len() as u32)
    }
}
