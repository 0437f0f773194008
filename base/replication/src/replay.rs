//! Reads the records of a group's log in the order in which they were committed, without what only
//! Raft needs.

use crate::{
    codec::{LogPosition, decode_entry},
    store::StoreError,
    types::Proposal,
};
use journal::{Content, Seq};
use openraft::EntryPayload;

/// An item of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A record of the snapshot. All snapshot records come before the records of the log.
    Snapshot(Vec<u8>),
    /// The records of an entry of the log.
    Records(Seq, Proposal),
}

/// Reads the records of a snapshot and of the entries after it.
pub struct Replay {
    inner: journal::Replay,
    /// Whether the next record of the snapshot is its position, which is not an item.
    position_is_next: bool,
}

impl Replay {
    pub(crate) fn new(inner: journal::Replay) -> Self {
        let position_is_next = inner.snapshot_content() == Some(Content::Entries);
        Self { inner, position_is_next }
    }

    /// Returns the last record that the snapshot includes; 0 if there is no snapshot.
    pub fn snapshot_seq(&self) -> Seq {
        self.inner.snapshot_seq()
    }

    /// Returns the position of the snapshot. Call this once, and before [`Self::next`]. It is an
    /// error if one master has written the snapshot.
    pub(crate) fn position(&mut self) -> Result<LogPosition, StoreError> {
        let seq = self.snapshot_seq();
        let is_next = std::mem::take(&mut self.position_is_next);
        let position = match self.inner.next()? {
            Some(journal::Item::Snapshot(bytes)) if is_next => LogPosition::decode(bytes),
            _ => None,
        };
        position.ok_or(StoreError::SnapshotUndecodable { seq })
    }

    /// Returns the next item; `None` at the end.
    #[expect(clippy::should_implement_trait, reason = "an error ends the replay")]
    pub fn next(&mut self) -> Result<Option<Item>, StoreError> {
        if self.position_is_next {
            self.position()?;
        }
        loop {
            return Ok(match self.inner.next()? {
                None => None,
                Some(journal::Item::Snapshot(bytes)) => Some(Item::Snapshot(bytes.to_vec())),
                Some(journal::Item::Record { seq, bytes }) => {
                    Some(Item::Records(seq, Proposal::of(&[bytes])))
                }
                Some(journal::Item::Entry { seq, bytes }) => {
                    let entry = decode_entry(seq - 1, bytes).ok_or(StoreError::Undecodable { seq })?;
                    let EntryPayload::Normal(proposal) = entry.payload else { continue };
                    Some(Item::Records(seq, proposal))
                }
            });
        }
    }
}
