//! The types of a Raft group.

use openraft::{BasicNode, impls::leader_id_std};
use std::{fmt, sync::Arc};

openraft::declare_raft_types!(
    /// A group of masters. Each term has at most one leader (`leader_id_std`).
    pub Group:
        D = Proposal,
        R = (),
        NodeId = u64,
        Node = BasicNode,
        LeaderId = leader_id_std::LeaderId<u64, u64>,
        AsyncRuntime = crate::runtime::Runtime,
);

/// The position of an entry: its index, and the term of the leader that wrote it.
pub type LogId = openraft::alias::LogIdOf<Group>;
/// A vote of a member for a leader.
pub type Vote = openraft::alias::VoteOf<Group>;
/// An entry of the log.
pub type Entry = openraft::alias::EntryOf<Group>;
/// The members of a group.
pub type Membership = openraft::Membership<u64, BasicNode>;
/// The members of a group, and the entry that made them so.
pub type StoredMembership = openraft::alias::StoredMembershipOf<Group>;
/// The place of a snapshot in the log: its last entry, and the members at that entry.
pub type SnapshotMeta = openraft::alias::SnapshotMetaOf<Group>;

/// What a leader proposes: the records of one or more events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// Each record with its length before it (`u32`, little endian).
    pub records: Arc<[u8]>,
}

impl Proposal {
    /// Makes a proposal of these records.
    pub fn of<R: AsRef<[u8]>>(records: &[R]) -> Self {
        Self { records: Self::encode(records).into() }
    }

    /// Returns each record with its length before it.
    pub(crate) fn encode<R: AsRef<[u8]>>(records: &[R]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for record in records {
            let record = record.as_ref();
            bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
            bytes.extend_from_slice(record);
        }
        bytes
    }

    /// Returns the records; `None` in place of a record whose length is wrong, and nothing after.
    pub fn records(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let mut rest = Some(&self.records[..]);
        std::iter::from_fn(move || {
            let bytes = rest.take().filter(|bytes| !bytes.is_empty())?;
            let record = split_record(bytes);
            rest = record.map(|(_, after)| after);
            Some(record.map(|(record, _)| record))
        })
    }
}

/// Splits the first record, which has its length before it, from the bytes after it.
pub(crate) fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a proposal of {} bytes", self.records.len())
    }
}

/// Returns the position of an entry.
pub fn log_id(term: u64, index: u64) -> LogId {
    LogId::new_term_index(term, index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_proposal_are_separated_again() {
        let records = [&b"one"[..], b"", b"three"];
        let proposal = Proposal::of(&records);
        assert_eq!(proposal.records().collect::<Vec<_>>(), records.map(Some));
        let cut = Proposal { records: proposal.records[..proposal.records.len() - 1].into() };
        assert_eq!(cut.records().collect::<Vec<_>>(), [Some(records[0]), Some(records[1]), None]);
        assert_eq!(Proposal::of::<&[u8]>(&[]).records().count(), 0);
    }
}
