//! Tests of unreadable sectors (EIO). In the commit point or in one snapshot they lose nothing. In
//! a segment they are damage, which `DropDamaged` removes.

use crate::{
    Content, Item, Log, LogError, Opened, Recovery,
    crash::{CrashDisk, Survive},
    disk::Disk,
    format::FileKind,
};
use std::sync::Arc;

const COMMIT: &str = "COMMIT";
/// Length of a file header, and of a batch with one record of these tests.
const GRAIN: usize = 64;

fn open(disk: &CrashDisk, recovery: Recovery) -> Result<Opened, LogError> {
    Log::open(Arc::new(disk.clone()), Content::Records, recovery)
}

/// Appends records up to sequence number `last`, each in a separate batch. Each contains its
/// sequence number.
fn append(log: &Log, last: u64) {
    for seq in log.last_seq() + 1..=last {
        assert_eq!(log.append(&seq.to_le_bytes()).unwrap(), seq);
        log.sync(seq).unwrap();
    }
}

/// Makes a snapshot of all records so far.
fn snapshot(log: &Log) {
    let upto = log.rotate().unwrap();
    let mut writer = log.snapshot_writer(upto).unwrap();
    for seq in 1..=upto {
        writer.push(&seq.to_le_bytes()).unwrap();
    }
    writer.finish().unwrap();
    log.snapshot_done(upto).unwrap();
}

/// Reads all records, checks that none is missing or wrong, and returns how many there are.
fn check_and_count(opened: &mut Opened) -> u64 {
    let mut records = 0_u64;
    while let Some(Item::Snapshot(bytes) | Item::Record { bytes, .. }) = opened.replay.next().unwrap() {
        records += 1;
        assert_eq!(bytes, records.to_le_bytes());
    }
    records
}

fn count_after_reopening(disk: &CrashDisk, recovery: Recovery) -> u64 {
    check_and_count(&mut open(disk, recovery).unwrap())
}

/// Returns a log with eight records and snapshots at 3 and 6, closed cleanly or still open.
fn with_snapshots(closed: bool) -> CrashDisk {
    let disk = CrashDisk::new();
    let log = open(&disk, Recovery::Refuse).unwrap().log;
    for last in [3, 6] {
        append(&log, last);
        snapshot(&log);
    }
    append(&log, 8);
    if closed {
        log.close().unwrap();
    }
    disk.after_crash(Survive::Everything)
}

#[test]
fn an_unreadable_slot_of_the_commit_point_leaves_the_other() {
    for closed in [true, false] {
        for slot in [0, 4096] {
            let disk = with_snapshots(closed);
            disk.fail_reads(COMMIT, slot..slot + 4096);
            let mut opened = open(&disk, Recovery::Refuse).unwrap();
            assert_eq!(check_and_count(&mut opened), 8, "slot at {slot}, closed {closed}");
            assert!(opened.dropped.is_empty());
            append(&opened.log, 11);
            drop(opened);
            assert_eq!(count_after_reopening(&disk, Recovery::Refuse), 11);
        }
    }
}

#[test]
fn an_unreadable_commit_point_is_damage_and_can_be_dropped() {
    let disk = with_snapshots(true);
    disk.fail_reads(COMMIT, 0..8192);
    let error = open(&disk, Recovery::Refuse).err().unwrap();
    assert!(error.is_damage() && error.to_string().contains(COMMIT), "{error}");
    assert_eq!(count_after_reopening(&disk, Recovery::DropDamaged), 8);
    assert_eq!(count_after_reopening(&disk, Recovery::Refuse), 8);
}

#[test]
fn an_unreadable_or_damaged_newest_snapshot_is_replaced_by_the_older_one() {
    let newest = FileKind::Snapshot.name(6);
    for closed in [true, false] {
        for at in [0, GRAIN, with_snapshots(true).files()[&newest].len() - 1] {
            for recovery in [Recovery::Refuse, Recovery::DropDamaged] {
                let unreadable = with_snapshots(closed);
                unreadable.fail_reads(&newest, at..at + 1);
                let flipped = with_snapshots(closed);
                let mut bytes = flipped.files()[&newest].clone();
                bytes[at] ^= 1;
                flipped.set_file(&newest, bytes);
                for disk in [unreadable, flipped] {
                    let mut called = false;
                    let before_loss = || {
                        called = true;
                        Ok(())
                    };
                    let mut opened = Log::open_with_loss_hook(
                        Arc::new(disk.clone()),
                        Content::Records,
                        recovery,
                        before_loss,
                    )
                    .unwrap();
                    assert_eq!(
                        (opened.replay.snapshot_seq(), check_and_count(&mut opened)),
                        (3, 8),
                        "damage at {at}"
                    );
                    let [replaced] = &opened.replaced[..] else { panic!("{:?}", opened.replaced) };
                    assert_eq!(replaced.file, newest);
                    assert_eq!(replaced.saved_as.as_deref(), Some(&*format!("{newest}.damaged-1")));
                    assert!(opened.dropped.is_empty() && opened.loss("log").is_none() && !called, "no loss");
                    snapshot(&opened.log);
                    drop(opened);
                    assert!(open(&disk, Recovery::Refuse).unwrap().replaced.is_empty());
                    assert_eq!(count_after_reopening(&disk, Recovery::Refuse), 8);
                }
            }
        }
    }
}

#[test]
fn a_damaged_snapshot_is_refused_if_segments_do_not_contain_its_records() {
    for missing in [4, 7] {
        let disk = with_snapshots(true);
        let newest = FileKind::Snapshot.name(6);
        disk.fail_reads(&newest, 70..71);
        disk.remove(&FileKind::Segment.name(missing)).unwrap();
        let error = open(&disk, Recovery::Refuse).err().unwrap();
        let named_file = if missing == 4 { newest } else { FileKind::Segment.name(7) };
        assert!(error.is_damage() && error.to_string().contains(&named_file), "{error}");
        let mut opened = open(&disk, Recovery::DropDamaged).unwrap();
        assert!(opened.loss("log").is_some() && opened.replaced.is_empty() && opened.dropped.len() >= 2);
        assert_eq!(check_and_count(&mut opened), missing - 1);
    }
}

/// Returns a log with eight records in one segment that has an unreadable sector.
fn with_bad_sector(sector: std::ops::Range<usize>, closed: bool) -> CrashDisk {
    let disk = CrashDisk::new();
    let log = open(&disk, Recovery::Refuse).unwrap().log;
    append(&log, 8);
    if closed {
        log.close().unwrap();
    }
    let disk = disk.after_crash(Survive::Everything);
    disk.fail_reads(&FileKind::Segment.name(1), sector);
    disk
}

#[test]
fn an_unreadable_sector_of_a_segment_is_damage_and_records_before_it_are_kept() {
    let segment = FileKind::Segment.name(1);
    for closed in [true, false] {
        // Batch n contains record n, and begins at offset n * GRAIN.
        for batch in 1..=8 {
            let disk = with_bad_sector(batch * GRAIN..(batch + 1) * GRAIN, closed);
            let error = open(&disk, Recovery::Refuse).err().unwrap();
            assert!(error.is_damage(), "{error}");
            assert_eq!(error.offset(), (batch * GRAIN) as u64, "{error}");
            assert!(error.to_string().contains(&segment) && error.to_string().contains("input/output"));
            let damaged = disk.files()[&segment].clone();
            let mut opened = open(&disk, Recovery::DropDamaged).unwrap();
            assert_eq!(check_and_count(&mut opened), batch as u64 - 1);
            assert_eq!(opened.dropped[0].saved_as.as_deref(), Some(&*format!("{segment}.damaged-1")));
            append(&opened.log, 10);
            drop(opened);
            assert_eq!(count_after_reopening(&disk, Recovery::Refuse), 10);
            assert_eq!(disk.files()[&format!("{segment}.damaged-1")], damaged);
        }
        let disk = with_bad_sector(0..GRAIN, closed);
        assert!(open(&disk, Recovery::Refuse).err().unwrap().is_damage());
        assert_eq!(count_after_reopening(&disk, Recovery::DropDamaged), 0);
        assert_eq!(count_after_reopening(&disk, Recovery::Refuse), 0);
    }
}

#[test]
fn an_unreadable_tail_is_damage_where_a_torn_tail_would_be_cut() {
    let disk = CrashDisk::new();
    let log = open(&disk, Recovery::Refuse).unwrap().log;
    append(&log, 8);
    // Make the files look as after a power loss: the commit point is older than the last batch, and
    // the write of the last batch was interrupted.
    let disk = disk.after_crash(Survive::SyncedOnly);
    let segment = FileKind::Segment.name(1);
    let mut bytes = disk.files()[&segment].clone();
    let end = bytes.len();
    bytes[end - GRAIN..].fill(0);
    bytes.resize(end + 100, 0);
    disk.set_file(&segment, bytes);
    assert!(open(&disk.after_crash(Survive::Everything), Recovery::Refuse).unwrap().torn.is_some());
    disk.fail_reads(&segment, end..end + 100);
    assert!(open(&disk, Recovery::Refuse).err().unwrap().is_damage());
    assert_eq!(count_after_reopening(&disk, Recovery::DropDamaged), 7);
}

#[test]
fn a_crash_while_a_damaged_segment_is_cut_loses_neither_its_valid_start_nor_the_file() {
    let segment = FileKind::Segment.name(1);
    let recover = |disk: &CrashDisk| -> Result<u64, LogError> {
        let mut opened = open(disk, Recovery::DropDamaged)?;
        let records = check_and_count(&mut opened);
        opened.log.close()?;
        Ok(records)
    };
    let original = with_bad_sector(3 * GRAIN..4 * GRAIN, true);
    let damaged = original.files()[&segment].clone();
    let whole = original.after_crash(Survive::Everything);
    assert_eq!(recover(&whole).unwrap(), 2);
    for point in 0..whole.operations() {
        let disk = original.after_crash(Survive::Everything);
        disk.crash_after(point);
        assert!(recover(&disk).is_err() && disk.crashed(), "crash at {point}");
        let after = disk.after_crash(Survive::Everything);
        assert_eq!(recover(&after).unwrap(), 2, "crash at {point}");
        assert!(
            after.files().values().any(|bytes| *bytes == damaged),
            "the damaged file is kept, crash at {point}"
        );
    }
}
