//! The encoding of entries, votes and members, little endian. Integers are `u64`, unless noted.
//!
//! ```text
//! entry       kind u8 | term | blank: nothing; records: those of the proposal; membership
//! log ID      index + 1, or 0 for none | term
//! vote        0 none, 1 vote, 2 vote that a quorum has granted | term | node ID
//! place       of a snapshot: log ID of its last entry | log ID of the membership | membership
//! membership  number of sets | (number of IDs | IDs)* | number of nodes | (ID | length | address)*
//! ```
//! The index of an entry is not encoded: it is the number of its record in the journal, minus one.

use crate::types::{Entry, LogId, Membership, Proposal, SnapshotMeta, StoredMembership, Vote, log_id};
use openraft::{BasicNode, EntryPayload};
use std::collections::{BTreeMap, BTreeSet};

const BLANK: u8 = 0;
const RECORDS: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// Length of an encoded log ID.
pub(crate) const LOG_ID_BYTES: usize = 16;
/// Length of an encoded vote.
pub(crate) const VOTE_BYTES: usize = 24;

/// Encodes an entry, without its index.
pub fn encode_entry(entry: &Entry) -> Vec<u8> {
    let kind = match &entry.payload {
        EntryPayload::Blank => BLANK,
        EntryPayload::Normal(_) => RECORDS,
        EntryPayload::Membership(_) => MEMBERSHIP,
    };
    let mut out = vec![kind];
    put_u64(&mut out, entry.log_id.leader_id.term);
    match &entry.payload {
        EntryPayload::Blank => {}
        EntryPayload::Normal(proposal) => out.extend_from_slice(&proposal.records),
        EntryPayload::Membership(membership) => put_membership(&mut out, membership),
    }
    out
}

/// Decodes the entry with this index; `None` if the bytes are not an entry.
pub fn decode_entry(index: u64, bytes: &[u8]) -> Option<Entry> {
    let (kind, rest) = bytes.split_first()?;
    let mut reader = Reader(rest);
    let term = reader.u64()?;
    let payload = match *kind {
        BLANK => EntryPayload::Blank,
        RECORDS => EntryPayload::Normal(Proposal { records: std::mem::take(&mut reader.0).into() }),
        MEMBERSHIP => EntryPayload::Membership(reader.membership()?),
        _ => return None,
    };
    reader.0.is_empty().then(|| Entry { log_id: log_id(term, index), payload })
}

/// Encodes the place of a snapshot in the log. It is the first record of the snapshot.
pub fn encode_place(place: &SnapshotMeta) -> Vec<u8> {
    let mut out = Vec::new();
    put_log_id(&mut out, place.last_log_id);
    put_log_id(&mut out, *place.last_membership.log_id());
    put_membership(&mut out, place.last_membership.membership());
    out
}

/// Decodes the place of a snapshot in the log; `None` if the bytes are not one.
pub fn decode_place(bytes: &[u8]) -> Option<SnapshotMeta> {
    let mut reader = Reader(bytes);
    let (last_log_id, at) = (reader.log_id()?, reader.log_id()?);
    let last_membership = StoredMembership::new(at, reader.membership()?);
    reader.0.is_empty().then_some(SnapshotMeta { last_log_id, last_membership })
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_log_id(out: &mut Vec<u8>, id: Option<LogId>) {
    put_u64(out, id.map_or(0, |id| id.index + 1));
    put_u64(out, id.map_or(0, |id| id.leader_id.term));
}

pub(crate) fn put_vote(out: &mut Vec<u8>, vote: Option<Vote>) {
    put_u64(out, vote.map_or(0, |vote| if vote.committed { 2 } else { 1 }));
    put_u64(out, vote.map_or(0, |vote| vote.leader_id.term));
    put_u64(out, vote.map_or(0, |vote| vote.leader_id.voted_for));
}

fn put_membership(out: &mut Vec<u8>, membership: &Membership) {
    let sets = membership.get_joint_config();
    put_u64(out, sets.len() as u64);
    for set in sets {
        put_u64(out, set.len() as u64);
        for id in set {
            put_u64(out, *id);
        }
    }
    put_u64(out, membership.nodes().count() as u64);
    for (id, node) in membership.nodes() {
        put_u64(out, *id);
        put_u64(out, node.addr.len() as u64);
        out.extend_from_slice(node.addr.as_bytes());
    }
}

/// Reads what the functions `put_*` have written.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (value, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*value))
    }

    /// Returns `Some(None)` if there is no log ID.
    #[expect(clippy::option_option, reason = "what is absent is not malformed")]
    pub(crate) fn log_id(&mut self) -> Option<Option<LogId>> {
        let (next, term) = (self.u64()?, self.u64()?);
        Some(next.checked_sub(1).map(|index| log_id(term, index)))
    }

    /// Returns `Some(None)` if there is no vote.
    #[expect(clippy::option_option, reason = "what is absent is not malformed")]
    pub(crate) fn vote(&mut self) -> Option<Option<Vote>> {
        let (kind, term, node) = (self.u64()?, self.u64()?, self.u64()?);
        match kind {
            0 => Some(None),
            1 => Some(Some(Vote::new(term, node))),
            2 => Some(Some(Vote::new_committed(term, node))),
            _ => None,
        }
    }

    fn membership(&mut self) -> Option<Membership> {
        // The numbers are not trusted: a collection grows only with what is there.
        let (mut sets, mut nodes) = (Vec::new(), BTreeMap::new());
        for _ in 0..self.u64()? {
            let mut set = BTreeSet::new();
            for _ in 0..self.u64()? {
                set.insert(self.u64()?);
            }
            sets.push(set);
        }
        for _ in 0..self.u64()? {
            let (id, length) = (self.u64()?, usize::try_from(self.u64()?).ok()?);
            let (addr, rest) = self.0.split_at_checked(length)?;
            self.0 = rest;
            nodes.insert(id, BasicNode::new(std::str::from_utf8(addr).ok()?));
        }
        if sets.is_empty() {
            return nodes.is_empty().then(Membership::default);
        }
        Membership::new(sets, nodes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memberships() -> impl Strategy<Value = Membership> {
        let sets = prop::collection::vec(prop::collection::btree_set(1..6_u64, 1..4), 1..3);
        (sets, 1..6_u64).prop_map(|(sets, learner)| {
            let ids = sets.iter().flatten().copied().chain([learner]);
            let nodes: BTreeMap<_, _> = ids.map(|id| (id, BasicNode::new(format!("m{id}:9400")))).collect();
            Membership::new(sets, nodes).expect("every member has a node")
        })
    }

    fn payloads() -> impl Strategy<Value = EntryPayload<Proposal, u64, BasicNode>> {
        let records = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..4);
        prop_oneof![
            Just(EntryPayload::Blank),
            records.prop_map(|records| EntryPayload::Normal(Proposal::of(&records))),
            memberships().prop_map(EntryPayload::Membership),
        ]
    }

    proptest! {
        #[test]
        fn a_decoded_entry_equals_the_encoded_one(payload in payloads(), term: u64, index in 0..u64::MAX) {
            let entry = Entry { log_id: log_id(term, index), payload };
            prop_assert_eq!(decode_entry(index, &encode_entry(&entry)), Some(entry));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(entry) = decode_entry(7, &bytes) {
                prop_assert_eq!(decode_entry(7, &encode_entry(&entry)), Some(entry));
            }
        }
    }

    #[test]
    fn numbers_that_are_too_large_are_refused() {
        let mut bytes = vec![MEMBERSHIP];
        for number in [1, u64::MAX, u64::MAX] {
            put_u64(&mut bytes, number);
        }
        assert_eq!(decode_entry(1, &bytes), None);
    }
}
