//! Shared code of the tests: writes a log of known records, and reads and checks a log.

use fermata_journal::{
    LogError,
    crash::CrashDisk,
    log::{Content, Dropped, Log, Recovery, Torn},
    replay::{Item, Replay},
};
use std::sync::Arc;

/// Everything that was read from a log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) snapshot_seq: u64,
    pub(crate) snapshot: SnapshotRecords,
    pub(crate) records: Records,
    pub(crate) torn: Option<Torn>,
    pub(crate) replaced: Vec<Dropped>,
    pub(crate) dropped: Vec<Dropped>,
}

/// Returns the record that all tests use for `seq`: its sequence number, padded to a varying
/// length.
pub(crate) fn record(seq: u64) -> Vec<u8> {
    let mut bytes = seq.to_le_bytes().to_vec();
    bytes.resize(8 + (seq % 23) as usize, seq as u8);
    bytes
}

/// Snapshot records.
pub(crate) type SnapshotRecords = Vec<Vec<u8>>;
/// Records of the log with their sequence numbers.
pub(crate) type Records = Vec<(u64, Vec<u8>)>;

/// Reads a replay to its end.
pub(crate) fn read_replay(replay: &mut Replay) -> Result<(SnapshotRecords, Records), LogError> {
    let (mut snapshot, mut records) = (Vec::new(), Vec::new());
    while let Some(item) = replay.next()? {
        match item {
            Item::Snapshot(bytes) => {
                assert!(records.is_empty(), "the snapshot comes first");
                snapshot.push(bytes.to_vec());
            }
            Item::Record { seq, bytes } | Item::Entry { seq, bytes } => records.push((seq, bytes.to_vec())),
        }
    }
    Ok((snapshot, records))
}

/// Opens the log on `disk` and reads all of it.
pub(crate) fn read_with(disk: &CrashDisk, recovery: Recovery) -> Result<Contents, LogError> {
    let mut opened = Log::open(Arc::new(disk.clone()), Content::Records, recovery)?;
    let snapshot_seq = opened.replay.snapshot_seq();
    let (snapshot, records) = read_replay(&mut opened.replay)?;
    let (torn, replaced, dropped) = (opened.torn, opened.replaced, opened.dropped);
    Ok(Contents { snapshot_seq, snapshot, records, torn, replaced, dropped })
}

/// Opens the log and reads all of it; damage is an error.
pub(crate) fn read(disk: &CrashDisk) -> Result<Contents, LogError> {
    read_with(disk, Recovery::Refuse)
}

/// Opens a log that is expected to be valid.
pub(crate) fn open(disk: &CrashDisk) -> Log {
    Log::open(Arc::new(disk.clone()), Content::Records, Recovery::Refuse).expect("a valid log").log
}

/// Appends the next `count` records, each in a separate batch.
pub(crate) fn append(log: &Log, count: u64) {
    for _ in 0..count {
        let seq = log.append(&record(log.last_seq() + 1)).expect("a log without failure");
        log.sync(seq).expect("a log without failure");
    }
}

/// Makes a snapshot of all records so far, with one snapshot record for each. Returns the last.
pub(crate) fn snapshot(log: &Log) -> Result<u64, LogError> {
    let upto = log.rotate()?;
    let (mut state, records) = read_replay(&mut log.replay_closed(upto)?)?;
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
    /// Checks every record of the snapshot and after it, and returns how many there are.
    pub(crate) fn check(&self) -> u64 {
        assert_eq!(
            self.snapshot.len() as u64,
            self.snapshot_seq,
            "one snapshot record for each record of the log"
        );
        for (index, piece) in self.snapshot.iter().enumerate() {
            assert_eq!(*piece, record(index as u64 + 1), "snapshot piece {index}");
        }
        for (index, (seq, bytes)) in self.records.iter().enumerate() {
            assert_eq!(*seq, self.snapshot_seq + index as u64 + 1, "records are in order, without a gap");
            assert_eq!(*bytes, record(*seq), "record {seq}");
        }
        self.snapshot_seq + self.records.len() as u64
    }
}
