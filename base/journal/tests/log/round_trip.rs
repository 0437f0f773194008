//! Tests that a reopened log contains what was written: records, segments, snapshots.

use crate::common::{append, open, read, read_replay, record, snapshot};
use fermata_journal::{
    AppendError,
    crash::CrashDisk,
    log::{BATCH_BYTES_MAX, RECORD_BYTES_MAX},
};

#[test]
fn records_are_replayed_in_order_after_each_reopening() {
    let disk = CrashDisk::new();
    assert_eq!(read(&disk).unwrap().check(), 0);
    for round in 1..=5 {
        let log = open(&disk);
        assert_eq!(log.durable(), (round - 1) * 7);
        append(&log, 7);
        log.close().unwrap();
        assert_eq!(read(&disk).unwrap().check(), round * 7);
    }
    assert_eq!(disk.files().len(), 2, "one segment and the commit point");
}

#[test]
fn pending_records_are_flushed_when_the_log_is_dropped() {
    let disk = CrashDisk::new();
    let log = open(&disk);
    for seq in 1..=100 {
        assert_eq!(log.append(&record(seq)).unwrap(), seq);
    }
    drop(log);
    assert_eq!(read(&disk).unwrap().check(), 100);
}

#[test]
fn records_of_one_call_are_one_batch_and_empty_records_are_stored() {
    let disk = CrashDisk::new();
    let log = open(&disk);
    let records: Vec<_> = (1..=10).map(record).collect();
    assert_eq!(log.append_many(&records).unwrap(), 10);
    log.sync(10).unwrap();
    assert_eq!(log.stats().batches, 1);
    assert_eq!(log.append_many::<&[u8]>(&[]).unwrap(), 10);
    assert_eq!(log.append(b"").unwrap(), 11);
    log.close().unwrap();
    let contents = read(&disk).unwrap();
    assert_eq!(contents.records.len(), 11);
    assert_eq!(contents.records[10], (11, Vec::new()));
}

#[test]
fn a_record_over_the_limit_is_refused_and_uses_no_sequence_number() {
    let log = open(&CrashDisk::new());
    let big = vec![0; RECORD_BYTES_MAX + 1];
    assert!(matches!(log.append(&big), Err(AppendError::TooLarge { max: RECORD_BYTES_MAX, .. })));
    let many = vec![&big[1..]; 4];
    assert!(matches!(log.append_many(&many), Err(AppendError::TooLarge { max: BATCH_BYTES_MAX, .. })));
    assert_eq!(log.append(&big[1..]).unwrap(), 1);
}

#[test]
fn rotation_closes_the_segment_unless_it_is_empty() {
    let disk = CrashDisk::new();
    let log = open(&disk);
    assert_eq!(log.rotate().unwrap(), 0);
    append(&log, 3);
    let bytes = log.bytes_since_snapshot();
    assert_eq!(log.rotate().unwrap(), 3);
    assert_eq!(log.rotate().unwrap(), 3);
    assert!(log.bytes_since_snapshot() > bytes);
    append(&log, 2);
    log.close().unwrap();
    assert_eq!(disk.files().len(), 3, "two segments and the commit point");
    assert_eq!(read(&disk).unwrap().check(), 5);
}

#[test]
fn closed_segments_are_replayed_while_the_log_is_in_use() {
    let disk = CrashDisk::new();
    let log = open(&disk);
    append(&log, 4);
    let upto = log.rotate().unwrap();
    let mut replay = log.replay_closed(upto).unwrap();
    append(&log, 4);
    let (snapshot, records) = read_replay(&mut replay).unwrap();
    assert_eq!((snapshot.len(), records.len()), (0, 4));
}

#[test]
fn two_snapshots_and_the_records_after_the_older_are_kept() {
    let disk = CrashDisk::new();
    let log = open(&disk);
    for round in 1..=4 {
        append(&log, 5);
        assert_eq!(snapshot(&log).unwrap(), round * 5);
        assert!(log.snapshot_bytes().unwrap() > 0);
    }
    append(&log, 2);
    log.close().unwrap();
    let names: Vec<_> = disk.files().into_keys().collect();
    assert_eq!(
        names,
        [
            "COMMIT",
            "edits-00000000000000000016.log",
            "edits-00000000000000000021.log",
            "snapshot-00000000000000000015.snap",
            "snapshot-00000000000000000020.snap",
        ]
    );
    let contents = read(&disk).unwrap();
    assert_eq!((contents.snapshot_seq, contents.check()), (20, 22));
}

#[test]
fn unfinished_files_are_removed_and_unknown_files_are_kept() {
    let disk = CrashDisk::new();
    let log = open(&disk);
    append(&log, 3);
    let mut unfinished = log.snapshot_writer(3).unwrap();
    unfinished.push(b"piece").unwrap();
    drop(unfinished);
    log.close().unwrap();
    disk.set_file("notes.tmp", *b"mine");
    assert_eq!(read(&disk).unwrap().check(), 3);
    let names: Vec<_> = disk.files().into_keys().collect();
    assert_eq!(names, ["COMMIT", "edits-00000000000000000001.log", "notes.tmp"]);
}
