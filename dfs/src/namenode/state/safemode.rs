//! Safemode: nothing is changed and no replica is deleted. There are three independent reasons:
//! waiting for blocks after a start, the command of an operator, and too little space on the disk
//! of the edit log. The command is durable: it is in the [`Namespace`].

use super::{Event, State, nodes::Liveness};
use crate::namenode::{
    namespace::{Edit, Namespace, Record},
    op::Now,
    settings::Settings,
    view::SafemodeStatus,
};

/// Maximum number of dead DataNodes that the advice names.
const NAMED_NODES_MAX: usize = 3;

/// The volatile reasons why safemode is on, or since when it is off.
#[derive(Debug)]
pub(super) struct Safemode {
    /// Whether the NameNode waits for blocks after a start.
    waiting: bool,
    /// Whether an operator has ended the wait.
    is_wait_ended: bool,
    /// The free space of the disk of the edit log, if it is too low.
    low_disk_free: Option<u64>,
    /// Monotonic time of the first tick after the end of safemode. `None` while safemode is on.
    left_ms: Option<u64>,
    /// Whether the last event in the log said that safemode is on.
    last_noted_on: bool,
}

impl Safemode {
    pub(super) fn at_start(settings: &Settings, namespace: &Namespace) -> Self {
        let mut safemode = Self {
            waiting: false,
            is_wait_ended: false,
            low_disk_free: None,
            left_ms: None,
            last_noted_on: false,
        };
        safemode.wait_for_blocks(settings, namespace);
        safemode
    }

    /// Begins the wait for blocks, if there are any.
    pub(super) fn wait_for_blocks(&mut self, settings: &Settings, namespace: &Namespace) {
        self.waiting = blocks_needed(settings, namespace) > 0 || settings.safemode_nodes_min > 0;
        (self.is_wait_ended, self.left_ms) = (false, None);
    }

    /// Like [`Self::wait_for_blocks`], for a member of a group that has just started: each record may
    /// add blocks.
    pub(super) fn wait_for_more_blocks(&mut self, settings: &Settings, namespace: &Namespace) {
        if !self.is_wait_ended {
            self.wait_for_blocks(settings, namespace);
        }
    }

    /// Ends the wait for blocks by command.
    pub(super) fn end_wait(&mut self) {
        (self.waiting, self.is_wait_ended) = (false, true);
    }

    /// Begins the time since the end of safemode again.
    pub(super) fn restart_grace(&mut self) {
        self.left_ms = None;
    }

    /// Returns whether safemode has been off for this long.
    pub(super) fn has_been_off_for(&self, now: Now, ms: u64) -> bool {
        self.left_ms.is_some_and(|left| now.mono_ms.saturating_sub(left) >= ms)
    }
}

/// Returns the number of committed blocks that must be reported before safemode ends. Committed
/// blocks of open files count too, because their writers have received confirmations.
fn blocks_needed(settings: &Settings, namespace: &Namespace) -> u64 {
    (namespace.committed_blocks() as f64 * settings.safemode_threshold).ceil() as u64
}

impl State {
    pub(super) fn in_safemode(&self) -> bool {
        self.namespace.safemode() || self.safemode.waiting || self.safemode.low_disk_free.is_some()
    }

    /// Turns safemode on or off by command. Turning it off also ends the wait for blocks, in a group
    /// that of all members: each of them may lead soon. Returns the record, which must be durable
    /// before the reply is sent; `None` if no record is needed.
    pub fn set_safemode(&mut self, now: Now, on: bool) -> Option<Record> {
        if !on {
            self.safemode.end_wait();
        }
        let is_for_followers = self.is_member && !on;
        if self.namespace.safemode() == on && !is_for_followers {
            return None;
        }
        let record = Record { at_ms: now.wall_ms, request: None, edits: vec![Edit::SafemodeSet { on }] };
        self.apply_record(now, &record);
        Some(record)
    }

    /// Sets the free space of the disk of the edit log if it is too low; `None` if there is enough
    /// space.
    pub fn set_disk_low(&mut self, free: Option<u64>) {
        self.safemode.low_disk_free = free;
    }

    /// Returns whether the disk of the edit log has too little free space.
    pub fn is_disk_low(&self) -> bool {
        self.safemode.low_disk_free.is_some()
    }

    /// Ends the wait for blocks when enough are reported. After the end of safemode, starts the
    /// work that was delayed.
    pub(super) fn tick_safemode(&mut self, now: Now) {
        if self.safemode.waiting {
            let enough = self.good.len() as u64 >= blocks_needed(&self.settings, &self.namespace);
            self.safemode.waiting = !enough || self.reported_nodes() < self.settings.safemode_nodes_min;
        }
        if self.in_safemode() {
            self.safemode.left_ms = None;
        } else if self.safemode.left_ms.is_none() {
            self.safemode.left_ms = Some(now.mono_ms);
            self.nodes_changed();
        }
        self.note_safemode();
    }

    fn note_safemode(&mut self) {
        let on = self.in_safemode();
        if std::mem::replace(&mut self.safemode.last_noted_on, on) == on {
            return;
        }
        let status = self.safemode();
        self.note(if on {
            Event::SafemodeEntered(status.reason)
        } else {
            let total = self.namespace.committed_blocks();
            Event::SafemodeLeft(format!("{} of {total} blocks are reported", status.blocks_seen))
        });
    }

    fn reported_nodes(&self) -> u32 {
        self.nodes.iter().filter(|(_, node)| node.reported && node.liveness != Liveness::Dead).count() as u32
    }

    /// Returns advice on what to do about blocks that are not reported.
    fn missing_nodes_advice(&self) -> String {
        let dead = self.nodes.iter().filter(|(_, node)| node.liveness == Liveness::Dead);
        let dead: Vec<&str> = dead.map(|(_, node)| node.registration.node.as_str()).collect();
        let more = if dead.len() > NAMED_NODES_MAX { ", ..." } else { "" };
        match &dead[..dead.len().min(NAMED_NODES_MAX)] {
            [] if self.is_start_grace_over() => "start the DataNodes that are not running".into(),
            [] => "wait for the DataNodes".into(),
            named => format!("start the dead DataNodes again ({}{more})", named.join(", ")),
        }
    }

    /// Returns what is missing of the blocks that this NameNode waits for after its start; `None` if it
    /// does not wait.
    pub fn waits_for_blocks(&self) -> Option<String> {
        let (seen, needed) = (self.good.len() as u64, blocks_needed(&self.settings, &self.namespace));
        let total = self.namespace.committed_blocks();
        let (nodes, min) = (self.reported_nodes(), self.settings.safemode_nodes_min);
        let too_few = if nodes < min { format!(", and {nodes} of {min} DataNodes") } else { String::new() };
        let missing = || format!("{seen} of {total} blocks reported, {needed} needed{too_few}");
        self.safemode.waiting.then(missing)
    }

    /// Returns whether safemode is on, and why. If safemode is off, the reason may contain
    /// warnings.
    pub fn safemode(&self) -> SafemodeStatus {
        let (seen, needed) = (self.good.len() as u64, blocks_needed(&self.settings, &self.namespace));
        let mut reasons = Vec::new();
        if let Some(missing) = self.waits_for_blocks() {
            reasons.push(format!(
                "{missing}: {}; `mrctl fs safemode off` ends safemode at once",
                self.missing_nodes_advice()
            ));
        }
        if self.namespace.safemode() {
            reasons.push("turned on by an operator: `mrctl fs safemode off` ends it".into());
        }
        if let Some(free) = self.safemode.low_disk_free {
            reasons.push(format!("only {free} bytes are free on the disk of the edit log: free some space"));
        }
        let on = !reasons.is_empty();
        if !self.future.is_empty() {
            reasons.push(format!(
                "future_blocks {}: DataNodes have blocks that this NameNode never assigned, so its edit log is not the newest: restore the newest one; the blocks are not deleted",
                self.future.len()
            ));
        }
        if !self.stale.is_empty() {
            reasons.push(format!(
                "stale_replicas {}: DataNodes have replicas that were written before the NameNode was restored from an older copy of its folder, with block IDs that other blocks have now; they are never served, and are kept until an operator accepts the edit log of this NameNode with `namenode --recover`",
                self.stale.len()
            ));
        }
        if let Some(why) = self.refused_nodes.values().next() {
            let nodes = daemon::count(self.refused_nodes.len() as u64, "DataNode");
            reasons.push(format!("{nodes} refused: {why}"));
        }
        let reason = reasons.join("; ");
        let reason = if on { format!("safemode is on: {reason}") } else { reason };
        SafemodeStatus { on, reason, blocks_seen: seen, blocks_needed: needed }
    }
}
