//! Reading: a snapshot, then the records after it, one at a time.
use crate::{LogError, Seq};

/// One step of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// A record of the snapshot. All of these come first.
    Snapshot(&'a [u8]),
    /// A record of the log.
    Record {
        /// Its number.
        seq: Seq,
        /// Its bytes.
        bytes: &'a [u8],
    },
}

/// Streams the newest snapshot, then every record after it up to `last_seq`, with one batch in memory at a time.
/// Do not call `Log::snapshot_done` while one is in use: it may remove files yet to be read.
pub struct Replay {}

impl Replay {
    /// What the snapshot contains; 0 if there is none.
    pub fn snapshot_seq(&self) -> Seq {
        todo!()
    }
    /// The last record that will come.
    pub fn last_seq(&self) -> Seq {
        todo!()
    }
    /// The next piece; `None` at the end. After an error the replay is over.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Item<'_>>, LogError> {
        todo!()
    }
}
