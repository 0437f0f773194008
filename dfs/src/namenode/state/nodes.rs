//! The table of DataNodes.
//!
//! A node keeps its index as long as it is in the table, so that replica lists need only four bytes
//! per replica. A dead node has no replicas, no commands and no copies.

use crate::namenode::{
    op::{Command, Registration, Replica, Usage},
    view::{NodeAddress, NodeState},
};
use dfs_client::ids::{BlockId, NodeUuid, Nonce};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A copy of this size or more uses a complete slot (`copies_max`, `copies_per_node_max`). Smaller
/// copies share a slot, so that a node has enough copies to do until its next heartbeat.
pub(super) const SLOT_BYTES: u64 = 4 << 20;

/// The index of a node in the table.
pub(super) type NodeIx = u32;

/// All DataNodes that have registered since the start of the NameNode.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    slots: Vec<Node>,
    by_uuid: BTreeMap<NodeUuid, NodeIx>,
    /// Number of staying nodes, which are expected to keep their replicas: they are neither dead
    /// nor draining.
    staying: usize,
}

/// Whether heartbeats of a node arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Liveness {
    Live,
    Suspect,
    Dead,
}

/// What the NameNode knows about a DataNode.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) registration: Registration,
    pub(super) liveness: Liveness,
    pub(super) draining: bool,
    pub(super) last_heartbeat_ms: u64,
    /// The sequence number of the last heartbeat and the answer to it, in case it is repeated.
    pub(super) last_answer: Option<(u64, Vec<Command>)>,
    /// Good replicas of committed blocks.
    pub(super) blocks: BTreeSet<BlockId>,
    /// For a dead node: the number of `blocks` when it died.
    pub(super) replicas_at_death: usize,
    /// For a draining node: blocks with too few replicas on staying nodes.
    pub(super) undrained_blocks: BTreeSet<BlockId>,
    pub(super) deletes: Deletes,
    /// Copies and checks to send with the next reply.
    pub(super) outbox: VecDeque<Command>,
    /// Running copies from this node.
    pub(super) sending: Traffic,
    /// Running copies to this node.
    pub(super) receiving: Traffic,
    /// Whether the last copy to this node timed out. Other nodes may not be able to reach it,
    /// although its heartbeats arrive.
    pub(super) missed_copy: bool,
    /// Number of blocks that are being written to this node.
    pub(super) writes: u32,
    /// The epoch that the node has acknowledged in its last heartbeat; 0 after a registration. It
    /// executes no deletion of an earlier epoch any more, and has reported those that it has
    /// executed.
    pub(super) acknowledged: u64,
    /// Whether the node must register again, because its replicas are not all known any more.
    pub(super) must_register: bool,
    pub(super) incoming_report: Option<IncomingReport>,
    /// Whether the full report of the node is complete.
    pub(super) reported: bool,
    /// Whether the end of its drain has been logged.
    pub(super) drained_reported: bool,
}

/// The capacity that running copies use: of the whole cluster, or of one node in one direction.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Traffic {
    /// The used capacity in bytes. A slot has `SLOT_BYTES`.
    pub(super) share: u64,
}

impl Traffic {
    pub(super) fn add(&mut self, share: u64) {
        self.share += share;
    }

    pub(super) fn remove(&mut self, share: u64) {
        self.share -= share;
    }

    /// Returns the number of used slots, including partly used ones.
    pub(super) fn slots(self) -> u32 {
        self.share.div_ceil(SLOT_BYTES) as u32
    }

    /// Returns whether one of `slots` is completely free. A small copy also needs a free slot,
    /// because otherwise small copies could delay a large one forever.
    pub(super) fn has_slot(self, slots: u32) -> bool {
        self.share + SLOT_BYTES <= u64::from(slots) * SLOT_BYTES
    }

    pub(super) fn uses_at_most_half_of(self, slots: u32) -> bool {
        2 * self.share <= u64::from(slots) * SLOT_BYTES
    }

    /// Returns whether at most `slots` slots are used. Used to check the invariants.
    pub(super) fn is_within(self, slots: u32) -> bool {
        self.share <= u64::from(slots) * SLOT_BYTES
    }
}

/// A full report that is being received.
#[derive(Debug, Default)]
pub(super) struct IncomingReport {
    pub(super) next_chunk: u32,
    pub(super) replicas: Vec<Replica>,
    /// Blocks that heartbeats have reported since the report began. The heartbeats are newer than
    /// the report.
    pub(super) reported_since: BTreeSet<BlockId>,
}

/// Replicas that a node must delete, with their nonces. They no longer count as replicas.
#[derive(Debug, Default)]
pub(super) struct Deletes {
    /// Deletions to send.
    pending: BTreeMap<BlockId, Nonce>,
    /// Blocks in `pending` whose replica is good and is deleted only because there are too many.
    /// The deletion was never sent and can be cancelled.
    surplus: BTreeSet<BlockId>,
    /// Deletions that were sent and are not reported as done.
    sent: BTreeMap<BlockId, Nonce>,
    /// When each deletion was sent, in order of time.
    sent_at: VecDeque<(u64, BlockId)>,
}

impl Deletes {
    pub(super) fn add(&mut self, block: BlockId, nonce: Nonce) {
        if self.sent.get(&block) != Some(&nonce) {
            self.pending.insert(block, nonce);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.sent.is_empty()
    }

    /// Returns whether this replica is to be deleted.
    pub(super) fn contains(&self, block: BlockId, nonce: Nonce) -> bool {
        [&self.pending, &self.sent].iter().any(|map| map.get(&block) == Some(&nonce))
    }

    /// Returns whether any replica with this block ID is to be deleted.
    pub(super) fn contains_block(&self, block: BlockId) -> bool {
        self.pending.contains_key(&block) || self.sent.contains_key(&block)
    }

    /// Removes a deletion that the node has reported. Returns whether it was ordered.
    pub(super) fn finish(&mut self, block: BlockId) -> bool {
        self.surplus.remove(&block);
        self.pending.remove(&block).is_some() | self.sent.remove(&block).is_some()
    }

    /// Marks a deletion as cancellable: the replica is good, and is deleted only because there are
    /// too many.
    pub(super) fn mark_cancellable(&mut self, block: BlockId) {
        if self.pending.contains_key(&block) {
            self.surplus.insert(block);
        }
    }

    /// Cancels a deletion because the replica is needed. Returns false if it cannot be cancelled.
    pub(super) fn cancel(&mut self, block: BlockId) -> bool {
        self.surplus.remove(&block) && self.pending.remove(&block).is_some()
    }

    /// Returns up to `max` deletions to send. A deletion that was sent more than `again_after_ms`
    /// ago and is not done is sent again.
    pub(super) fn take_due(&mut self, now_ms: u64, again_after_ms: u64, max: usize) -> Vec<(BlockId, Nonce)> {
        while let Some((at, block)) = self.sent_at.front().copied()
            && now_ms.saturating_sub(at) >= again_after_ms
        {
            self.sent_at.pop_front();
            if let Some(nonce) = self.sent.remove(&block) {
                self.pending.entry(block).or_insert(nonce);
            }
        }
        let some: Vec<(BlockId, Nonce)> =
            self.pending.iter().map(|(block, nonce)| (*block, *nonce)).take(max).collect();
        for (block, nonce) in &some {
            self.pending.remove(block);
            self.surplus.remove(block);
            self.sent.insert(*block, *nonce);
            self.sent_at.push_back((now_ms, *block));
        }
        some
    }
}

impl Node {
    pub(super) fn new(registration: Registration, now_ms: u64, draining: bool) -> Self {
        Self {
            registration,
            liveness: Liveness::Live,
            draining,
            last_heartbeat_ms: now_ms,
            last_answer: None,
            blocks: BTreeSet::new(),
            replicas_at_death: 0,
            undrained_blocks: BTreeSet::new(),
            deletes: Deletes::default(),
            outbox: VecDeque::new(),
            sending: Traffic::default(),
            receiving: Traffic::default(),
            missed_copy: false,
            writes: 0,
            acknowledged: 0,
            must_register: false,
            incoming_report: Some(IncomingReport::default()),
            reported: false,
            drained_reported: false,
        }
    }

    /// Returns the usage that the node has last reported.
    pub(super) fn usage(&self) -> &Usage {
        &self.registration.usage
    }

    /// Returns whether this entry of the table is unused. Every node in use has a name.
    pub(super) fn is_vacant(&self) -> bool {
        self.registration.node.is_empty()
    }

    /// Returns whether the node is expected to keep its replicas.
    pub(super) fn is_staying(&self) -> bool {
        self.liveness != Liveness::Dead && !self.draining
    }

    pub(super) fn state(&self) -> NodeState {
        match (self.liveness, self.draining) {
            (Liveness::Dead, _) => NodeState::Dead,
            (_, true) if self.reported && self.undrained_blocks.is_empty() => NodeState::Drained,
            (_, true) => NodeState::Draining,
            (Liveness::Suspect, false) => NodeState::Suspect,
            (Liveness::Live, false) => NodeState::Live,
        }
    }

    pub(super) fn address(&self) -> NodeAddress {
        NodeAddress {
            node: self.registration.node.clone(),
            uuid: self.registration.uuid,
            data_addr: self.registration.data_addr.clone(),
            rack: self.registration.rack.clone(),
            local_socket: self.registration.local_socket.clone(),
            host: self.registration.host.clone(),
        }
    }

    /// Records that a heartbeat has reported on this block. This is newer than a full report that
    /// is being received.
    pub(super) fn mark_reported(&mut self, block: BlockId) {
        if let Some(report) = &mut self.incoming_report {
            report.reported_since.insert(block);
        }
    }
}

impl Nodes {
    pub(super) fn find(&self, uuid: NodeUuid) -> Option<NodeIx> {
        self.by_uuid.get(&uuid).copied()
    }

    pub(super) fn find_name(&self, name: &str) -> Option<NodeIx> {
        self.iter().find(|(_, node)| node.registration.node == name).map(|(ix, _)| ix)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.slots.iter_mut()
    }

    pub(super) fn get(&self, ix: NodeIx) -> &Node {
        &self.slots[ix as usize]
    }

    pub(super) fn get_mut(&mut self, ix: NodeIx) -> &mut Node {
        &mut self.slots[ix as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeIx, &Node)> {
        self.slots.iter().enumerate().map(|(ix, node)| (ix as NodeIx, node))
    }

    pub(super) fn len(&self) -> NodeIx {
        self.slots.len() as NodeIx
    }

    pub(super) fn staying_count(&self) -> usize {
        self.staying
    }

    /// Counts the staying nodes again after a change. Returns whether the number has changed.
    pub(super) fn recount(&mut self) -> bool {
        let staying = self.slots.iter().filter(|node| node.is_staying()).count();
        std::mem::replace(&mut self.staying, staying) != staying
    }

    /// Adds a node, in an unused entry if there is one.
    pub(super) fn add(&mut self, node: Node) {
        let vacant = self.slots.iter().position(Node::is_vacant);
        let ix = vacant.unwrap_or(self.slots.len());
        self.by_uuid.insert(node.registration.uuid, ix as NodeIx);
        if vacant.is_some() {
            self.slots[ix] = node;
        } else {
            self.slots.push(node);
        }
    }

    /// Removes a dead node from the table. Its entry is unused from then on.
    pub(super) fn vacate(&mut self, ix: NodeIx) {
        let node = &mut self.slots[ix as usize];
        node.registration.node.clear();
        self.by_uuid.remove(&node.registration.uuid);
    }

    /// Returns the number of known nodes, including dead ones.
    pub(super) fn known_count(&self) -> usize {
        self.by_uuid.len()
    }

    /// Moves the times of the last heartbeats forward by the time for which the process was paused
    /// and could not receive heartbeats, but not into the future.
    pub(super) fn extend_after_pause(&mut self, now_ms: u64, pause_ms: u64) {
        for node in &mut self.slots {
            node.last_heartbeat_ms = (node.last_heartbeat_ms + pause_ms).min(now_ms);
        }
    }
}
