//! The live log.
use crate::{AppendError, LogError, LogFailed, Seq, disk::Disk, replay::Replay, snapshot::SnapshotWriter};
use std::sync::Arc;

/// What to do about damage when opening. A torn tail (the last batch, never acknowledged) is not damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Refuse to open, with the file and the offset.
    Refuse,
    /// Drop everything from the damage on, keep the dropped files aside, and say so in [`Opened::dropped`].
    DropDamaged,
}

/// An unfinished batch that was cut from the end of the newest segment. None of it was ever acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// Which file.
    pub file: String,
    /// Where it was cut.
    pub offset: u64,
    /// How much went.
    pub bytes: u64,
}

/// What [`Recovery::DropDamaged`] dropped, for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Which file.
    pub file: String,
    /// From which offset on.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
    /// Records that are known to have been in there; there may have been more.
    pub records_known: u64,
    /// Where the file, as it was, is kept. `None` if there was no such file.
    pub kept_as: Option<String>,
    /// What was wrong.
    pub why: String,
}

/// A log just opened.
pub struct Opened {
    /// Takes records at once; the replay is not disturbed by them.
    pub log: Log,
    /// The snapshot and every record that was there.
    pub replay: Replay,
    /// The torn tail, if there was one.
    pub torn: Option<Torn>,
    /// Empty unless [`Recovery::DropDamaged`] found damage.
    pub dropped: Vec<Dropped>,
}

/// Counts since the log was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Records made durable.
    pub records: u64,
    /// Batches, each one write and one sync.
    pub batches: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// The live log. Share it by `Arc`. Dropping it flushes what is pending and ends its thread.
pub struct Log {}

impl Log {
    /// Opens the log of a folder, or starts one. Everything that will be replayed is verified first, so that damage
    /// is known before the first record is seen.
    pub fn open(_disk: Arc<dyn Disk>, _recovery: Recovery) -> Result<Opened, LogError> {
        todo!()
    }
    /// Adds a record. Order of calls is order of numbers. Not durable yet: see `wait_durable`. Blocks while
    /// more than `PENDING_BYTES_MAX` wait for the disk.
    pub fn append(&self, _record: &[u8]) -> Result<Seq, AppendError> {
        todo!()
    }
    /// Adds records with consecutive numbers in one batch: after a crash all are there or none. Returns the last number.
    pub fn append_many<R: AsRef<[u8]>>(&self, _records: &[R]) -> Result<Seq, AppendError> {
        todo!()
    }
    /// The number of the newest record appended, durable or not.
    pub fn last_seq(&self) -> Seq {
        todo!()
    }
    /// Everything up to here is durable.
    pub fn durable(&self) -> Seq {
        todo!()
    }
    /// Returns when everything up to `seq` is durable, or the log has failed.
    pub async fn wait_durable(&self, _seq: Seq) -> Result<(), LogFailed> {
        todo!()
    }
    /// The same, blocking the thread.
    pub fn sync(&self, _seq: Seq) -> Result<(), LogFailed> {
        todo!()
    }
    /// Returns when the log has failed; never otherwise.
    pub async fn failed(&self) -> LogFailed {
        todo!()
    }
    /// Closes the current segment after everything appended so far and starts the next; blocks until done. Returns the
    /// last record of the closed segments. Does nothing if the current segment is empty.
    pub fn rotate(&self) -> Result<Seq, LogFailed> {
        todo!()
    }
    /// Bytes in the current segment.
    pub fn segment_bytes(&self) -> u64 {
        todo!()
    }
    /// Bytes a restart would have to replay after the newest snapshot.
    pub fn bytes_since_snapshot(&self) -> u64 {
        todo!()
    }
    /// The newest snapshot; 0 if there is none.
    pub fn snapshot_seq(&self) -> Seq {
        todo!()
    }
    /// Bytes free where the log is.
    pub fn free_bytes(&self) -> std::io::Result<u64> {
        todo!()
    }
    /// Counts since the log was opened.
    pub fn stats(&self) -> Stats {
        todo!()
    }
    /// Reads newest snapshot and closed segments up to `upto` (from `rotate`), while the log lives on.
    pub fn replay_closed(&self, _upto: Seq) -> Result<Replay, LogError> {
        todo!()
    }
    /// Starts a snapshot of the state after record `seq` (from `rotate`).
    pub fn snapshot_writer(&self, _seq: Seq) -> Result<SnapshotWriter, LogError> {
        todo!()
    }
    /// Tells the log that the snapshot at `seq` is finished: removes snapshots but the last two, and segments that
    /// lie wholly before the older of them.
    pub fn snapshot_done(&self, _seq: Seq) -> Result<(), LogError> {
        todo!()
    }
    /// Flushes and ends; the same as dropping it, but tells of failure.
    pub fn close(self) -> Result<(), LogFailed> {
        todo!()
    }
}
