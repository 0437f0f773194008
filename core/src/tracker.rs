//! A tracker as the JobTracker sees it.

use crate::{
    ids::{AttemptId, HostId, Incarnation, RackId, TrackerId},
    phase::{PerPhase, Phase},
    time::{Span, Time},
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

/// A tracker that is being drained, or is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Who wants it.
    pub by: String,
    /// Since when.
    pub since: Time,
    /// Then, what still runs is killed.
    pub until: Time,
    /// So far.
    pub cost: DrainCost,
}

/// What a drain has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct DrainCost {
    pub splits: u32,
    pub pauses: u32,
    pub kills: u32,
    pub time_lost: Span,
    /// Map outputs that others have now.
    pub outputs: u32,
    pub output_bytes: u64,
    /// States of paused reduces that others have now.
    pub checkpoints: u32,
    pub checkpoint_bytes: u64,
    /// Outputs and states that could not be moved: what made them runs again.
    pub redone: u32,
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
    pub unknown_attempts: PerPhase<BTreeSet<AttemptId>>,
    /// When it was last heard of.
    pub last_seen: Time,
    /// Whether it is being drained.
    pub drain: Option<Drain>,
}

impl Tracker {
    /// Whether it may be given work: it can be relied on, and is not being drained.
    pub fn accepts_work(&self) -> bool {
        self.state == TrackerState::Live && self.drain.is_none()
    }

    /// Slots that policies divide among jobs: none if it cannot be relied on or is being drained. After a restart of the
    /// JobTracker those that are expected back count.
    pub fn capacity(&self) -> PerPhase<u32> {
        let relied_on = matches!(self.state, TrackerState::Live | TrackerState::Awaited);
        if relied_on && self.drain.is_none() { self.slots } else { PerPhase::default() }
    }

    /// Slots that nothing holds; none if it takes no work.
    pub fn free(&self, phase: Phase) -> u32 {
        if !self.accepts_work() {
            return 0;
        }
        let taken = self.running[phase].len() + self.unknown_attempts[phase].len();
        self.slots[phase].saturating_sub(taken as u32)
    }
}
