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
    /// Attempts of maps whose output it serves, as facts and its own last registration say.
    pub outputs: BTreeSet<AttemptId>,
    /// Paused attempts whose state it keeps.
    pub checkpoints: BTreeSet<AttemptId>,
    /// Attempts that it says it runs and that the JobTracker gave up: their processes are there until it says
    /// otherwise, and so are the slots they take. Not durable.
    pub strangers: PerPhase<BTreeSet<AttemptId>>,
    /// When it was last heard of.
    pub last_heard: Time,
}

impl Tracker {
    /// Slots that nothing holds; none if it cannot be relied on.
    pub fn free(&self, phase: Phase) -> u32 {
        if self.state != TrackerState::Live {
            return 0;
        }
        let taken = self.running[phase].len() + self.strangers[phase].len();
        self.slots[phase].saturating_sub(taken as u32)
    }
}
