//! Events for the log. The state machine records them, and the driver logs them.

use super::State;
use std::fmt;

/// Maximum number of recorded events. The driver takes them at every tick.
const EVENTS_MAX: usize = 10_000;

/// An event of a DataNode, of a drain or of safemode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A DataNode registered for the first time since the start of the NameNode.
    NodeRegistered(String),
    /// A DataNode that was suspect or dead, or that was restarted, is live again.
    NodeBack(String),
    /// A DataNode has sent no heartbeat for `suspect_after`.
    NodeSuspect(String),
    /// A DataNode is dead. It had this number of replicas.
    NodeDead(String, usize),
    /// The registration of a DataNode was refused. The text is the reason.
    NodeRefused(String),
    /// A replica is corrupt. The text has the block, the node and the reason.
    ReplicaCorrupt(String),
    /// A drain was started (true) or cancelled (false).
    Drain(String, bool),
    /// A drain is complete: the node may be stopped.
    Drained(String),
    /// Safemode is on. The text is the reason.
    SafemodeEntered(String),
    /// Safemode is off. The text is the reason.
    SafemodeLeft(String),
}

impl Event {
    /// Returns whether the event is a warning: an operator may have to act.
    pub fn is_warning(&self) -> bool {
        matches!(
            self,
            Self::NodeSuspect(_)
                | Self::NodeDead(..)
                | Self::NodeRefused(_)
                | Self::ReplicaCorrupt(_)
                | Self::SafemodeEntered(_)
        )
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeRegistered(node) => write!(f, "DataNode {node} registered"),
            Self::NodeBack(node) => write!(f, "DataNode {node} is back"),
            Self::NodeSuspect(node) => {
                write!(f, "DataNode {node} is suspect: no new blocks are placed there")
            }
            Self::NodeDead(node, replicas) => {
                let replicas = daemon::count(*replicas as u64, "replica");
                write!(f, "DataNode {node} is dead: {replicas} to be replaced on other nodes")
            }
            Self::NodeRefused(why) => write!(f, "DataNode refused: {why}"),
            Self::ReplicaCorrupt(what) => write!(f, "corrupt replica: {what}"),
            Self::Drain(node, true) => write!(f, "drain of DataNode {node} started"),
            Self::Drain(node, false) => write!(f, "drain of DataNode {node} cancelled"),
            Self::Drained(node) => write!(f, "drain of DataNode {node} finished: it may be stopped"),
            Self::SafemodeEntered(why) => f.write_str(why),
            Self::SafemodeLeft(why) => write!(f, "safemode is off: {why}"),
        }
    }
}

impl State {
    pub(super) fn note(&mut self, event: Event) {
        if self.events.len() < EVENTS_MAX {
            self.events.push(event);
        }
    }

    /// Returns the events since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Records an event for each drain that is complete.
    pub(super) fn note_drained(&mut self) {
        for ix in 0..self.nodes.len() {
            let node = self.nodes.get_mut(ix);
            let drained = node.state() == crate::namenode::view::NodeState::Drained;
            if drained && !node.drained_reported {
                let name = node.registration.node.clone();
                self.note(Event::Drained(name));
            }
            self.nodes.get_mut(ix).drained_reported = drained;
        }
    }
}
