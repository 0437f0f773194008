//! Shared code of the tests: a small log of known records, and reading a log back.

use fermata_journal::{
    LogError,
    crash::CrashDisk,
    log::{Dropped, Log, Recovery, Torn},
    replay::{Item, Replay},
};
use std::sync::Arc;

/// Contents of a log, read back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) snapshot_seq: u64,
    pub(crate) snapshot: Pieces,
    pub(crate) records: Records,
    pub(crate) torn: Option<Torn>,
    pub(crate) replaced: Vec<Dropped>,
    pub(crate) dropped: Vec<Dropped>,
}

/// Returns the record with number `seq` in every test: its own number, with a varying length.
pub(crate) fn record(seq: u64) -> Vec<u8> {
    let mut bytes = seq.to_le_bytes().to_vec();
    bytes.resize(8 + (seq % 23) as usize, seq as u8);
    bytes
}

/// The records of a snapshot.
pub(crate) type Pieces = Vec<Vec<u8>>;
/// Records with their numbers.
pub(crate) type Records = Vec<(u64, Vec<u8>)>;

/// Reads a replay to its end.
pub(crate) fn drain(replay: &mut Replay) -> Result<(Pieces, Records), LogError> {
    let (mut snapshot, mut records) = (Vec::new(), Vec::new());
    while let Some(item) = replay.next()? {
        match item {
            Item::Snapshot(bytes) => {
                assert!(records.is_empty(), "the snapshot comes first");
                snapshot.push(bytes.to_vec());
            }
            Item::Record { seq, bytes } => records.push((seq, bytes.to_vec())),
        }
    }
    Ok((snapshot, records))
}

/// Opens the log on `disk` and reads all of it.
pub(crate) fn read_with(disk: &CrashDisk, recovery: Recovery) -> Result<Contents, LogError> {
    let mut opened = Log::open(Arc::new(disk.clone()), recovery)?;
    let snapshot_seq = opened.replay.snapshot_seq();
    let (snapshot, records) = drain(&mut opened.replay)?;
    let (torn, replaced, dropped) = (opened.torn, opened.replaced, opened.dropped);
    Ok(Contents { snapshot_seq, snapshot, records, torn, replaced, dropped })
}

/// Like [`read_with`], with an error on damage.
pub(crate) fn read(disk: &CrashDisk) -> Result<Contents, LogError> {
    read_with(disk, Recovery::Refuse)
}

/// Opens a valid log.
pub(crate) fn open(disk: &CrashDisk) -> Log {
    Log::open(Arc::new(disk.clone()), Recovery::Refuse).expect("a sound log").log
}

/// Appends the next `count` records, each in a separate batch.
pub(crate) fn append(log: &Log, count: u64) {
    for _ in 0..count {
        let seq = log.append(&record(log.last_seq() + 1)).expect("a log without failure");
        log.sync(seq).expect("a log without failure");
    }
}

/// Rotates, and snapshots the closed records as one record each.
pub(crate) fn snapshot(log: &Log) -> Result<u64, LogError> {
    let upto = log.rotate()?;
    let (mut state, records) = drain(&mut log.replay_closed(upto)?)?;
    state.extend(records.into_iter().map(|(_, bytes)| bytes));
    let mut writer = log.snapshot_writer(upto)?;
    for piece in &state {
        writer.push(piece)?;
    }
    writer.finish()?;
    log.snapshot_done(upto)?;
    Ok(upto)
}

impl Contents {
    /// Checks every record of the snapshot and after it, and returns their number.
    pub(crate) fn check(&self) -> u64 {
        assert_eq!(self.snapshot.len() as u64, self.snapshot_seq, "a snapshot piece for each record");
        for (index, piece) in self.snapshot.iter().enumerate() {
            assert_eq!(*piece, record(index as u64 + 1), "snapshot piece {index}");
        }
        for (index, (seq, bytes)) in self.records.iter().enumerate() {
            assert_eq!(*seq, self.snapshot_seq + index as u64 + 1, "no gap, in order");
            assert_eq!(*bytes, record(*seq), "record {seq}");
        }
        self.snapshot_seq + self.records.len() as u64
    }
}
