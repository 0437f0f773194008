//! Reads a snapshot, then the records after it, one at a time.
//!
//! A daemon replays its log at start. A background snapshot also replays the closed segments, into
//! a second state, while the log is in use. At most one batch (or one snapshot record) and a
//! read-ahead are in memory.

use crate::{
    LogError, Seq,
    disk::Disk,
    format::{Content, FileKind},
    segment::SegmentReader,
    snapshot::SnapshotReader,
};
use std::{collections::VecDeque, sync::Arc};

/// An item of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// A record of the snapshot. All snapshot records come before the records of the log.
    Snapshot(&'a [u8]),
    /// A record of the log.
    Record {
        /// Sequence number of the record.
        seq: Seq,
        /// Bytes of the record.
        bytes: &'a [u8],
    },
    /// A record of the log that is an entry of a group of masters.
    Entry {
        /// Sequence number of the record.
        seq: Seq,
        /// Bytes of the record.
        bytes: &'a [u8],
    },
}

/// Reads a snapshot, then every record after it up to [`Self::last_seq`].
///
/// [`crate::Log::snapshot_done`] must not be called while a replay is in use, because it may remove
/// files that are still to be read.
pub struct Replay {
    disk: Arc<dyn Disk>,
    snapshot_seq: Seq,
    snapshot: Option<SnapshotReader>,
    segments: VecDeque<Seq>,
    segment: Option<SegmentReader>,
    /// The next record to return.
    next_seq: Seq,
    /// The last record to return.
    last_seq: Seq,
}

impl Replay {
    /// Creates a replay of the snapshot at `snapshot_seq` and the records after it up to `last`.
    /// `segments` contains the first record of each segment to read, in order; the first segment
    /// may begin with records that the snapshot includes.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        snapshot_seq: Seq,
        segments: VecDeque<Seq>,
        last: Seq,
    ) -> Result<Self, LogError> {
        let snapshot = match snapshot_seq {
            0 => None,
            seq => Some(SnapshotReader::open(&*disk, seq)?),
        };
        let next_seq = snapshot_seq + 1;
        Ok(Self { disk, snapshot_seq, snapshot, segments, segment: None, next_seq, last_seq: last })
    }

    /// Creates a replay of the records from `from` to `last`, without a snapshot. `segments` is as
    /// for [`Self::new`].
    pub(crate) fn of_records(disk: Arc<dyn Disk>, from: Seq, segments: VecDeque<Seq>, last: Seq) -> Self {
        let snapshot_seq = from - 1;
        Self { disk, snapshot_seq, snapshot: None, segments, segment: None, next_seq: from, last_seq: last }
    }

    /// Returns the last record that the snapshot includes; 0 if there is no snapshot.
    pub fn snapshot_seq(&self) -> Seq {
        self.snapshot_seq
    }

    /// Returns what the snapshot was made of; `None` if there is no snapshot, or if it was read.
    pub fn snapshot_content(&self) -> Option<Content> {
        self.snapshot.as_ref().map(SnapshotReader::content)
    }

    /// Returns the last record of the replay.
    pub fn last_seq(&self) -> Seq {
        self.last_seq
    }

    /// Returns the next item; `None` at the end. The replay cannot be used after an error.
    #[expect(
        clippy::should_implement_trait,
        reason = "the returned item borrows from self, which Iterator does not allow"
    )]
    pub fn next(&mut self) -> Result<Option<Item<'_>>, LogError> {
        Ok(if self.advance()? { self.current() } else { None })
    }

    /// Returns the item to which [`Self::advance`] has advanced.
    pub fn current(&self) -> Option<Item<'_>> {
        if let Some(reader) = &self.snapshot {
            return Some(Item::Snapshot(reader.record()));
        }
        self.segment.as_ref().map(|reader| {
            let (seq, bytes) = reader.record();
            match reader.header().content {
                Content::Records => Item::Record { seq, bytes },
                Content::Entries => Item::Entry { seq, bytes },
            }
        })
    }

    /// Advances to the next item; returns false at the end. The replay cannot be used after an
    /// error.
    pub fn advance(&mut self) -> Result<bool, LogError> {
        if let Some(reader) = &mut self.snapshot {
            if reader.advance()? {
                return Ok(true);
            }
            self.snapshot = None;
        }
        while self.next_seq <= self.last_seq {
            if let Some(reader) = &mut self.segment {
                while reader.advance(self.last_seq)? {
                    let (seq, _) = reader.record();
                    if seq >= self.next_seq {
                        self.next_seq = seq + 1;
                        return Ok(true);
                    }
                }
            }
            self.segment = match self.segments.pop_front() {
                Some(first) if first <= self.next_seq => Some(SegmentReader::open(&*self.disk, first)?),
                found => return Err(gap(self.next_seq, found)),
            };
        }
        Ok(false)
    }
}

/// Returns the error for the missing record `expected`; `found` is the next existing record.
pub(crate) fn gap(expected: Seq, found: Option<Seq>) -> LogError {
    LogError::Gap { file: FileKind::Segment.name(expected), expected, found }
}
