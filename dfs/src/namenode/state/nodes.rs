//! The table of DataNodes.
//!
//! A node keeps its index for as long as its name is known, so that replica lists hold four bytes a replica.
//! A dead node holds nothing: no replica, no command, no copy.

use super::repair::Traffic;
use crate::{
    ids::{BlockId, NodeUuid, Nonce},
    namenode::{
        op::{Command, Registration, Replica},
        view::{NodeAddress, NodeState},
    },
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A node's place in the table.
pub(super) type Ix = u32;

/// All DataNodes registered since the start.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    slots: Vec<Node>,
    by_uuid: BTreeMap<NodeUuid, Ix>,
    /// Nodes that can be counted on to keep a replica: neither dead nor draining.
    staying: usize,
}

/// Whether a node is heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Liveness {
    Live,
    Suspect,
    Dead,
}

/// One DataNode.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) who: Registration,
    pub(super) liveness: Liveness,
    pub(super) draining: bool,
    pub(super) last_heartbeat_ms: u64,
    pub(super) capacity: u64,
    pub(super) used: u64,
    pub(super) free: u64,
    pub(super) disks: Vec<(u64, u64)>,
    pub(super) volumes: u32,
    pub(super) failed_volumes: u32,
    /// The last heartbeat and its answer, for a repeat of it.
    pub(super) last: Option<(u64, Vec<Command>)>,
    /// Good replicas of committed blocks.
    pub(super) blocks: BTreeSet<BlockId>,
    /// Of a draining node: blocks that are not yet safe elsewhere.
    pub(super) left: BTreeSet<BlockId>,
    pub(super) deletes: Deletes,
    /// Copies and checks to be told with the next answer.
    pub(super) outbox: VecDeque<Command>,
    /// Copies under way from here.
    pub(super) sending: Traffic,
    /// Copies under way to here.
    pub(super) receiving: Traffic,
    /// The last one never came: others may not reach it, though it reaches us.
    pub(super) missed_copy: bool,
    /// Blocks being written here.
    pub(super) writes: u32,
    pub(super) report: Option<Incoming>,
    /// Its full report is in.
    pub(super) reported: bool,
    /// The end of its drain has been noted.
    pub(super) drained_reported: bool,
}

/// A full report on its way.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    pub(super) next_chunk: u32,
    pub(super) replicas: Vec<Replica>,
    /// Blocks that heartbeats have told of since: they know better than the report.
    pub(super) touched: BTreeSet<BlockId>,
}

/// Replicas that a node has been, or is to be, told to delete, with their nonces. They count no more.
#[derive(Debug, Default)]
pub(super) struct Deletes {
    pending: BTreeMap<BlockId, Nonce>,
    /// Those of `pending` that were never told and are good.
    surplus: BTreeSet<BlockId>,
    sent: BTreeMap<BlockId, Nonce>,
    sent_at: VecDeque<(u64, BlockId)>,
}

impl Deletes {
    pub(super) fn add(&mut self, block: BlockId, nonce: Nonce) {
        if self.sent.get(&block) != Some(&nonce) {
            self.pending.insert(block, nonce);
        }
    }

    /// Whether this very replica is to go.
    pub(super) fn contains(&self, block: BlockId, nonce: Nonce) -> bool {
        [&self.pending, &self.sent].iter().any(|map| map.get(&block) == Some(&nonce))
    }

    /// Whether any replica of this id is to go.
    pub(super) fn contains_block(&self, block: BlockId) -> bool {
        self.pending.contains_key(&block) || self.sent.contains_key(&block)
    }

    /// The node says it is done. Whether it was asked to.
    pub(super) fn done(&mut self, block: BlockId) -> bool {
        self.surplus.remove(&block);
        self.pending.remove(&block).is_some() | self.sent.remove(&block).is_some()
    }

    /// It is good, and going only because there are too many.
    pub(super) fn mark_cancellable(&mut self, block: BlockId) {
        if self.pending.contains_key(&block) {
            self.surplus.insert(block);
        }
    }

    /// The replica is needed after all: whether it is still there for sure, and stays.
    pub(super) fn cancel(&mut self, block: BlockId) -> bool {
        self.surplus.remove(&block) && self.pending.remove(&block).is_some()
    }

    /// Up to `max` to tell now; those told longer than `again_after_ms` ago and not done are told again.
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
    pub(super) fn new(who: Registration, now_ms: u64, draining: bool) -> Self {
        Self {
            who,
            liveness: Liveness::Live,
            draining,
            last_heartbeat_ms: now_ms,
            capacity: 0,
            used: 0,
            free: 0,
            disks: Vec::new(),
            volumes: 0,
            failed_volumes: 0,
            last: None,
            blocks: BTreeSet::new(),
            left: BTreeSet::new(),
            deletes: Deletes::default(),
            outbox: VecDeque::new(),
            sending: Traffic::default(),
            receiving: Traffic::default(),
            missed_copy: false,
            writes: 0,
            report: Some(Incoming::default()),
            reported: false,
            drained_reported: false,
        }
    }

    /// A place without a node. Every node has a name.
    pub(super) fn is_vacant(&self) -> bool {
        self.who.node.is_empty()
    }

    /// Can be counted on to keep a replica.
    pub(super) fn is_staying(&self) -> bool {
        self.liveness != Liveness::Dead && !self.draining
    }

    pub(super) fn state(&self) -> NodeState {
        match (self.liveness, self.draining) {
            (Liveness::Dead, _) => NodeState::Dead,
            (_, true) if self.reported && self.left.is_empty() => NodeState::Drained,
            (_, true) => NodeState::Draining,
            (Liveness::Suspect, false) => NodeState::Suspect,
            (Liveness::Live, false) => NodeState::Live,
        }
    }

    pub(super) fn address(&self) -> NodeAddress {
        NodeAddress {
            node: self.who.node.clone(),
            uuid: self.who.uuid,
            data_addr: self.who.data_addr.clone(),
            rack: self.who.rack.clone(),
            local_socket: self.who.local_socket.clone(),
            host: self.who.host.clone(),
        }
    }

    /// Heartbeats know better than a full report on its way.
    pub(super) fn touch(&mut self, block: BlockId) {
        if let Some(report) = &mut self.report {
            report.touched.insert(block);
        }
    }
}

impl Nodes {
    pub(super) fn find(&self, uuid: NodeUuid) -> Option<Ix> {
        self.by_uuid.get(&uuid).copied()
    }

    pub(super) fn find_name(&self, name: &str) -> Option<Ix> {
        self.iter().find(|(_, node)| node.who.node == name).map(|(ix, _)| ix)
    }

    pub(super) fn get(&self, ix: Ix) -> &Node {
        &self.slots[ix as usize]
    }

    pub(super) fn get_mut(&mut self, ix: Ix) -> &mut Node {
        &mut self.slots[ix as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Ix, &Node)> {
        self.slots.iter().enumerate().map(|(ix, node)| (ix as Ix, node))
    }

    pub(super) fn len(&self) -> Ix {
        self.slots.len() as Ix
    }

    pub(super) fn staying(&self) -> usize {
        self.staying
    }

    /// Counts anew after a node's life or draining changed. Whether the number is another.
    pub(super) fn recount(&mut self) -> bool {
        let staying = self.slots.iter().filter(|node| node.is_staying()).count();
        std::mem::replace(&mut self.staying, staying) != staying
    }

    /// Adds a node, in a vacant place if there is one.
    pub(super) fn add(&mut self, node: Node) {
        let vacant = self.slots.iter().position(Node::is_vacant);
        let ix = vacant.unwrap_or(self.slots.len());
        self.by_uuid.insert(node.who.uuid, ix as Ix);
        if vacant.is_some() {
            self.slots[ix] = node;
        } else {
            self.slots.push(node);
        }
    }

    /// Takes its name from a dead node, and forgets it.
    pub(super) fn vacate(&mut self, ix: Ix) {
        let node = &mut self.slots[ix as usize];
        node.who.node.clear();
        self.by_uuid.remove(&node.who.uuid);
    }

    /// How many are known, dead ones included.
    pub(super) fn known(&self) -> usize {
        self.by_uuid.len()
    }

    /// Nobody could be heard for this long: it does not count as silence. Nobody is heard in the future.
    pub(super) fn extend_after_pause(&mut self, now_ms: u64, pause_ms: u64) {
        for node in &mut self.slots {
            node.last_heartbeat_ms = (node.last_heartbeat_ms + pause_ms).min(now_ms);
        }
    }
}
