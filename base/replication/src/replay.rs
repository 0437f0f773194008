//! Reads the records of a master's journal in the order in which they became durable, with and
//! without a group, and without what only Raft needs.

use crate::{
    codec::{decode_entry, decode_place},
    error::StoreError,
    types::{Proposal, SnapshotMeta, split_record},
};
use journal::{Content, Seq};
use openraft::EntryPayload;
use std::sync::Arc;

/// An item of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// A record of the snapshot. All snapshot records come before the records of the log.
    Snapshot(&'a [u8]),
    /// A record of the log.
    Record {
        /// Sequence number of the record; of the entry that contains it if there is a group.
        seq: Seq,
        /// Bytes of the record.
        bytes: &'a [u8],
    },
}

/// Reads the records of a snapshot and those of the log after it.
pub struct Replay {
    inner: journal::Replay,
    /// Whether the next record of the snapshot is its place, which is not an item.
    place_is_next: bool,
    /// The records of the entry that is being read, each with its length before it.
    records: Arc<[u8]>,
    /// Offset of the next of them.
    next_record: usize,
    /// Sequence number of that entry.
    seq: Seq,
}

impl From<journal::Replay> for Replay {
    fn from(inner: journal::Replay) -> Self {
        let place_is_next = inner.snapshot_content() == Some(Content::Entries);
        Self { inner, place_is_next, records: Arc::default(), next_record: 0, seq: 0 }
    }
}

impl Replay {
    /// Returns the last record that the snapshot includes; 0 if there is no snapshot.
    pub fn snapshot_seq(&self) -> Seq {
        self.inner.snapshot_seq()
    }

    /// Returns the place of the snapshot. Call this once, and before [`Self::next`]. It is an error
    /// if one master has written the snapshot.
    pub(crate) fn place(&mut self) -> Result<SnapshotMeta, StoreError> {
        let is_next = std::mem::take(&mut self.place_is_next);
        if is_next {
            return Self::place_of(&mut self.inner);
        }
        Err(StoreError::SnapshotUndecodable { seq: self.snapshot_seq() })
    }

    /// Returns the place of the snapshot of a group, which is its first record.
    pub(crate) fn place_of(replay: &mut journal::Replay) -> Result<SnapshotMeta, StoreError> {
        let seq = replay.snapshot_seq();
        let place = match replay.next()? {
            Some(journal::Item::Snapshot(bytes)) => decode_place(bytes),
            _ => None,
        };
        place.ok_or(StoreError::SnapshotUndecodable { seq })
    }

    /// Returns the next item; `None` at the end. The replay cannot be used after an error.
    #[expect(
        clippy::should_implement_trait,
        reason = "the returned item borrows from self, which Iterator does not allow"
    )]
    pub fn next(&mut self) -> Result<Option<Item<'_>>, StoreError> {
        if self.place_is_next {
            self.place()?;
        }
        while self.next_record == self.records.len() {
            if !self.inner.advance()? {
                return Ok(None);
            }
            let Some(journal::Item::Entry { seq, bytes }) = self.inner.current() else {
                return Ok(self.inner.current().map(|item| match item {
                    journal::Item::Snapshot(bytes) => Item::Snapshot(bytes),
                    journal::Item::Record { seq, bytes } | journal::Item::Entry { seq, bytes } => {
                        Item::Record { seq, bytes }
                    }
                }));
            };
            let entry = decode_entry(seq - 1, bytes).ok_or(StoreError::Undecodable { seq })?;
            if let EntryPayload::Normal(Proposal { records }) = entry.payload {
                (self.seq, self.records, self.next_record) = (seq, records, 0);
            }
        }
        let seq = self.seq;
        let (bytes, rest) =
            split_record(&self.records[self.next_record..]).ok_or(StoreError::Undecodable { seq })?;
        self.next_record = self.records.len() - rest.len();
        Ok(Some(Item::Record { seq, bytes }))
    }
}
