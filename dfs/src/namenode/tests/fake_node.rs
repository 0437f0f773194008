//! A fake DataNode of the test bench, which stores its replicas in a map.

use crate::namenode::op::{Command, Heartbeat, Registration, Replica, Usage};
use dfs_client::ids::{BlockId, NodeIncarnation, NodeUuid, Nonce, StartId};
use std::collections::{BTreeMap, BTreeSet};

/// A fake DataNode.
#[derive(Debug, Clone)]
pub(super) struct FakeNode {
    pub(super) name: String,
    pub(super) rack: String,
    pub(super) uuid: NodeUuid,
    pub(super) incarnation: u64,
    pub(super) seq: u64,
    pub(super) up: bool,
    /// Whether the replies to this node are lost.
    pub(super) loses_replies: bool,
    /// Whether other nodes cannot reach this node.
    pub(super) isolated: bool,
    pub(super) capacity: u64,
    /// The length of each replica, and whether it is damaged.
    pub(super) disk: BTreeMap<BlockId, (u64, bool)>,
    /// The nonces of the replicas that are or were on disk.
    pub(super) nonces: BTreeMap<BlockId, Nonce>,
    /// The nonces that writers send for new blocks.
    pub(super) offered_nonces: BTreeMap<BlockId, Nonce>,
    /// The start of the NameNode that the node last registered with.
    pub(super) last_namenode_start: (u64, StartId),
    pub(super) quarantined: BTreeSet<BlockId>,
    pub(super) pending_reports: Heartbeat,
    pub(super) received_commands: Vec<Command>,
}

impl FakeNode {
    pub(super) fn new(index: usize, name: &str, rack: &str) -> Self {
        Self {
            name: name.into(),
            rack: rack.into(),
            uuid: NodeUuid(uuid::Uuid::from_u128(index as u128 + 1)),
            incarnation: 1,
            seq: 0,
            up: true,
            loses_replies: false,
            isolated: false,
            capacity: 1_000_000,
            disk: BTreeMap::new(),
            nonces: BTreeMap::new(),
            offered_nonces: BTreeMap::new(),
            last_namenode_start: (0, StartId(0)),
            quarantined: BTreeSet::new(),
            pending_reports: Heartbeat::default(),
            received_commands: Vec::new(),
        }
    }

    pub(super) fn registration(&self) -> Registration {
        Registration {
            uuid: self.uuid,
            incarnation: NodeIncarnation(self.incarnation),
            node: self.name.clone(),
            host: self.name.clone(),
            rack: self.rack.clone(),
            data_addr: format!("{}:1", self.name),
            local_socket: String::new(),
            version: "test".into(),
            cluster_id: "c1".into(),
            declared_new: false,
            seen_epoch: self.last_namenode_start.0,
            seen_start: self.last_namenode_start.1,
            usage: self.usage(),
        }
    }

    pub(super) fn usage(&self) -> Usage {
        let used = self.disk.values().map(|(length, _)| length).sum();
        let free = self.capacity - used;
        Usage { capacity: self.capacity, used, free, volumes: 1, ..Usage::default() }
    }

    /// Stores a replica from a writer, unless another block with the same ID is on disk.
    pub(super) fn receive(&mut self, block: BlockId, length: u64) {
        let nonce = self.offered_nonces.get(&block).copied().unwrap_or(Nonce(0));
        if self.disk.contains_key(&block) && self.nonce(block) != nonce {
            return;
        }
        self.disk.insert(block, (length, false));
        self.nonces.insert(block, nonce);
        self.pending_reports.received.push(self.replica(block));
    }

    pub(super) fn nonce(&self, block: BlockId) -> Nonce {
        self.nonces.get(&block).copied().unwrap_or(Nonce(0))
    }

    /// Returns the report of a replica on disk.
    pub(super) fn replica(&self, block: BlockId) -> Replica {
        Replica { block, nonce: self.nonce(block), length: self.disk[&block].0 }
    }

    pub(super) fn move_to_bad(&mut self, block: BlockId) {
        self.disk.remove(&block);
        self.quarantined.insert(block);
        self.pending_reports.bad.push((block, "checksum".into()));
    }

    pub(super) fn has_reports(&self) -> bool {
        let Heartbeat { received, deleted, bad, lost, .. } = &self.pending_reports;
        !(received.is_empty() && deleted.is_empty() && bad.is_empty() && lost.is_empty())
    }
}
