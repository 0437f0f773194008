//! What an operator finds in the log: the state machine notes it, the driver writes it.

use super::State;
use std::fmt;

/// Events kept for the driver, which takes them at every tick.
const EVENTS_MAX: usize = 10_000;

/// Something that happened to a DataNode, to a drain or to safemode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A DataNode registered for the first time since the NameNode started.
    NodeRegistered(String),
    /// A DataNode that was suspect or dead, or that started again, is back.
    NodeBack(String),
    /// A DataNode has not been heard of for `suspect_after`.
    NodeSuspect(String),
    /// A DataNode is dead, and how many replicas it had.
    NodeDead(String, usize),
    /// A DataNode was refused, and why.
    NodeRefused(String),
    /// A replica is corrupt: block, node, reason.
    ReplicaCorrupt(String),
    /// A drain began, or was cancelled.
    Drain(String, bool),
    /// A drain is finished: the node may be stopped.
    Drained(String),
    /// Safemode is on, and why.
    SafemodeEntered(String),
    /// Safemode is off.
    SafemodeLeft(String),
}

impl Event {
    /// Whether somebody may have to do something.
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
                write!(f, "DataNode {node} is dead: {replicas} to be copied elsewhere")
            }
            Self::NodeRefused(why) => write!(f, "DataNode refused: {why}"),
            Self::ReplicaCorrupt(what) => write!(f, "corrupt replica: {what}"),
            Self::Drain(node, true) => write!(f, "drain of DataNode {node} began"),
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

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Notes drains that have come to their end.
    pub(super) fn note_drained(&mut self) {
        for ix in 0..self.nodes.len() {
            let node = self.nodes.get_mut(ix);
            let drained = node.state() == crate::namenode::view::NodeState::Drained;
            if drained && !node.drained_reported {
                let name = node.who.node.clone();
                self.note(Event::Drained(name));
            }
            self.nodes.get_mut(ix).drained_reported = drained;
        }
    }
}
