//! Reads a snapshot, then the records after it, one at a time.
//!
//! Used at start, and by background snapshots, which replay the closed segments into a second state
//! while the log is in use. At most one batch (or one snapshot record) and a read-ahead are in
//! memory.

use crate::{LogError, Seq, disk::Disk, format::FileKind, segment::SegmentReader, snapshot::SnapshotReader};
use std::{collections::VecDeque, sync::Arc};

/// An item of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// A record of the snapshot. These come first.
    Snapshot(&'a [u8]),
    /// A record of the log.
    Record {
        /// Number of the record.
        seq: Seq,
        /// Bytes of the record.
        bytes: &'a [u8],
    },
}

/// Streams a snapshot, then every record after it up to [`Self::last_seq`].
///
/// [`crate::Log::snapshot_done`] must not be called while a replay is in use, because it may remove
/// files that are still to be read.
pub struct Replay {
    disk: Arc<dyn Disk>,
    snapshot_seq: Seq,
    snapshot: Option<SnapshotReader>,
    segments: VecDeque<Seq>,
    segment: Option<SegmentReader>,
    next: Seq,
    last: Seq,
}

enum At {
    Snapshot,
    Record,
    End,
}

impl Replay {
    /// `segments` are the first records of the segments to read, in order; the first segment may
    /// begin before the snapshot.
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
        let next = snapshot_seq + 1;
        Ok(Self { disk, snapshot_seq, snapshot, segments, segment: None, next, last })
    }

    /// Returns the last record that is part of the snapshot; 0 if there is no snapshot.
    pub fn snapshot_seq(&self) -> Seq {
        self.snapshot_seq
    }

    /// Returns the last record of the replay.
    pub fn last_seq(&self) -> Seq {
        self.last
    }

    /// Returns the next item; `None` at the end. The replay cannot be used after an error.
    #[expect(
        clippy::should_implement_trait,
        reason = "the returned item borrows from self, which Iterator does not allow"
    )]
    pub fn next(&mut self) -> Result<Option<Item<'_>>, LogError> {
        Ok(match self.advance()? {
            At::Snapshot => self.snapshot.as_ref().map(|reader| Item::Snapshot(reader.record())),
            At::Record => self.segment.as_ref().map(|reader| {
                let (seq, bytes) = reader.record();
                Item::Record { seq, bytes }
            }),
            At::End => None,
        })
    }

    fn advance(&mut self) -> Result<At, LogError> {
        if let Some(reader) = &mut self.snapshot {
            if reader.advance()? {
                return Ok(At::Snapshot);
            }
            self.snapshot = None;
        }
        while self.next <= self.last {
            if let Some(reader) = &mut self.segment {
                while reader.advance(self.last)? {
                    let (seq, _) = reader.record();
                    if seq >= self.next {
                        self.next = seq + 1;
                        return Ok(At::Record);
                    }
                }
            }
            self.segment = match self.segments.pop_front() {
                Some(first) if first <= self.next => Some(SegmentReader::open(&*self.disk, first)?),
                found => return Err(gap(self.next, found)),
            };
        }
        Ok(At::End)
    }
}

/// Returns the error for a missing record.
pub(crate) fn gap(expected: Seq, found: Option<Seq>) -> LogError {
    LogError::Gap { file: FileKind::Segment.name(expected), expected, found }
}
