//! The types of the Raft group.

use openraft::{BasicNode, impls::leader_id_std};
use std::{fmt, sync::Arc};

openraft::declare_raft_types!(
    /// A group of masters. One leader per term (`leader_id_std`).
    pub Group:
        D = Proposal,
        R = (),
        NodeId = u64,
        Node = BasicNode,
        LeaderId = leader_id_std::LeaderId<u64, u64>,
);

pub type LogId = openraft::alias::LogIdOf<Group>;
pub type Vote = openraft::alias::VoteOf<Group>;
pub type Entry = openraft::alias::EntryOf<Group>;
pub type Membership = openraft::Membership<u64, BasicNode>;
pub type StoredMembership = openraft::alias::StoredMembershipOf<Group>;
pub type SnapshotMeta = openraft::alias::SnapshotMetaOf<Group>;
pub type Raft = openraft::Raft<Group, crate::machine::Machine>;

/// What the leader proposes: records, numbered within its term from 1. Number 0 is not checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    pub number: u64,
    pub records: Arc<[u8]>,
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proposal {} of {} bytes", self.number, self.records.len())
    }
}

pub fn log_id(term: u64, index: u64) -> LogId {
    LogId::new_term_index(term, index)
}

/// Little-endian encoding by hand, so that openraft needs no `serde`.
pub mod code {
    use super::*;
    use openraft::EntryPayload;
    use std::collections::{BTreeMap, BTreeSet};

    pub fn put_u64(out: &mut Vec<u8>, value: u64) {
        out.extend_from_slice(&value.to_le_bytes());
    }
    pub fn put_log_id(out: &mut Vec<u8>, id: Option<&LogId>) {
        // Index + 1, so that 0 means none.
        put_u64(out, id.map_or(0, |id| id.index + 1));
        put_u64(out, id.map_or(0, |id| id.leader_id.term));
    }
    pub fn put_vote(out: &mut Vec<u8>, vote: Option<&Vote>) {
        put_u64(out, vote.map_or(0, |vote| if vote.committed { 2 } else { 1 }));
        put_u64(out, vote.map_or(0, |vote| vote.leader_id.term));
        put_u64(out, vote.map_or(0, |vote| vote.leader_id.voted_for));
    }
    pub fn put_membership(out: &mut Vec<u8>, membership: &Membership) {
        let joint = membership.get_joint_config();
        put_u64(out, joint.len() as u64);
        for config in joint {
            put_u64(out, config.len() as u64);
            config.iter().for_each(|id| put_u64(out, *id));
        }
        put_u64(out, membership.nodes().count() as u64);
        for (id, node) in membership.nodes() {
            put_u64(out, *id);
            put_u64(out, node.addr.len() as u64);
            out.extend_from_slice(node.addr.as_bytes());
        }
    }
    pub fn put_stored_membership(out: &mut Vec<u8>, stored: &StoredMembership) {
        put_log_id(out, stored.log_id().as_ref());
        put_membership(out, stored.membership());
    }
    pub fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
        put_u64(out, entry.log_id.index);
        put_u64(out, entry.log_id.leader_id.term);
        match &entry.payload {
            EntryPayload::Blank => out.push(0),
            EntryPayload::Normal(proposal) => {
                out.push(1);
                put_u64(out, proposal.number);
                out.extend_from_slice(&proposal.records);
            }
            EntryPayload::Membership(membership) => {
                out.push(2);
                put_membership(out, &membership);
            }
        }
    }

    /// Reads what `put_*` wrote. Panics on bad input: the callers have checked a checksum.
    pub struct Reader<'a>(pub &'a [u8]);

    impl Reader<'_> {
        pub fn u64(&mut self) -> u64 {
            let (head, rest) = self.0.split_first_chunk::<8>().expect("eight bytes");
            self.0 = rest;
            u64::from_le_bytes(*head)
        }
        pub fn u8(&mut self) -> u8 {
            let (head, rest) = self.0.split_first().expect("a byte");
            self.0 = rest;
            *head
        }
        pub fn log_id(&mut self) -> Option<LogId> {
            let (next, term) = (self.u64(), self.u64());
            next.checked_sub(1).map(|index| log_id(term, index))
        }
        pub fn vote(&mut self) -> Option<Vote> {
            let (kind, term, node) = (self.u64(), self.u64(), self.u64());
            match kind {
                0 => None,
                1 => Some(Vote::new(term, node)),
                _ => Some(Vote::new_committed(term, node)),
            }
        }
        pub fn membership(&mut self) -> Membership {
            let configs: Vec<BTreeSet<u64>> =
                (0..self.u64()).map(|_| (0..self.u64()).map(|_| self.u64()).collect()).collect();
            let nodes: BTreeMap<u64, BasicNode> = (0..self.u64())
                .map(|_| {
                    let (id, len) = (self.u64(), self.u64() as usize);
                    let (addr, rest) = self.0.split_at(len);
                    self.0 = rest;
                    (id, BasicNode::new(String::from_utf8_lossy(addr)))
                })
                .collect();
            if configs.is_empty() {
                return Membership::default();
            }
            Membership::new(configs, nodes).expect("a valid membership")
        }
        pub fn stored_membership(&mut self) -> StoredMembership {
            let id = self.log_id();
            StoredMembership::new(id, self.membership())
        }
        pub fn entry(&mut self) -> Entry {
            let (index, term) = (self.u64(), self.u64());
            let payload = match self.u8() {
                0 => EntryPayload::Blank,
                1 => EntryPayload::Normal(Proposal { number: self.u64(), records: self.0.into() }),
                _ => EntryPayload::Membership(self.membership()),
            };
            Entry { log_id: log_id(term, index), payload }
        }
    }
}
