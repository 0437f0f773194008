//! Tests of torn and damaged logs. A torn tail is cut and saved. Damage is refused with its
//! position, or dropped and reported. A replay never contains a wrong record.
//!
//! The tests damage a log in each of three states: closed cleanly (sealed), after a crash of the
//! process (the commit point is exact), and after a power loss (the commit point lags behind the
//! log).

use crate::common::{Contents, append, open, read, read_with, snapshot};
use fermata_journal::{
    LogError,
    crash::{CrashDisk, Survive},
    log::Recovery,
};

const FIRST_SEGMENT: &str = "edits-00000000000000000001.log";
const NEWEST_SEGMENT: &str = "edits-00000000000000000005.log";
const COMMIT: &str = "COMMIT";
/// Length of a file header, and of a batch with one record of these tests.
const GRAIN: usize = 64;

/// Returns a cleanly closed log: records 1 to 4 in a closed segment, 5 to 8 in the newest segment,
/// each in a separate batch.
fn two_segments() -> CrashDisk {
    let disk = CrashDisk::new();
    let log = open(&disk);
    append(&log, 4);
    log.rotate().unwrap();
    append(&log, 4);
    log.close().unwrap();
    disk
}

/// Returns the log of [`two_segments`] after a crash.
fn two_segments_after_crash(survive: Survive) -> CrashDisk {
    let disk = CrashDisk::new();
    let log = open(&disk);
    append(&log, 4);
    log.rotate().unwrap();
    append(&log, 4);
    disk.after_crash(survive)
}

fn all_states() -> [(&'static str, CrashDisk); 3] {
    [
        ("closed", two_segments()),
        ("killed", two_segments_after_crash(Survive::Everything)),
        ("power loss", two_segments_after_crash(Survive::SyncedOnly)),
    ]
}

/// Returns a log for which three snapshots were made. It has the last two of them, and the segments
/// after the older one.
fn with_snapshots() -> CrashDisk {
    let disk = CrashDisk::new();
    let log = open(&disk);
    for _ in 0..3 {
        append(&log, 3);
        snapshot(&log).unwrap();
    }
    append(&log, 2);
    log.close().unwrap();
    disk
}

fn with_changed_file(disk: &CrashDisk, file: &str, change: impl FnOnce(&mut Vec<u8>)) -> CrashDisk {
    let mut files = disk.files();
    change(files.get_mut(file).expect("the file"));
    CrashDisk::with_files(files)
}

fn file_names(disk: &CrashDisk) -> Vec<String> {
    disk.files().into_keys().collect()
}

#[test]
fn tail_torn_at_any_byte_is_cut_and_saved_and_the_log_continues() {
    let whole = two_segments_after_crash(Survive::SyncedOnly);
    let content = whole.files()[NEWEST_SEGMENT].clone();
    let border = content.len() - GRAIN;
    for cut in border + 1..content.len() {
        // The last batch is one sector of the disk. A part of it exists, perhaps followed by zeros.
        for zeros in [0, 3 * GRAIN - cut % GRAIN, 5000] {
            let disk = with_changed_file(&whole, NEWEST_SEGMENT, |bytes| {
                bytes.truncate(cut);
                bytes.resize(cut + zeros, 0);
            });
            let before = disk.files()[NEWEST_SEGMENT].clone();
            // If the bytes after the cut were zeros, the batch is complete. That depends on the
            // random salt of the segment, which masks the payload.
            let is_whole = before.starts_with(&content);
            let (records, end) = if is_whole { (8, content.len()) } else { (7, border) };
            let opened = read(&disk).unwrap();
            let torn = opened.torn.as_ref().expect("a torn tail");
            assert_eq!((opened.check(), torn.offset), (records, end as u64), "cut at {cut}, {zeros} zeros");
            assert_eq!(torn.bytes, (before.len() - end) as u64);
            assert_eq!(torn.saved_as, format!("{NEWEST_SEGMENT}.torn-1"));
            assert_eq!(disk.files()[&torn.saved_as], before[end..], "the torn tail is saved unchanged");
            append(&open(&disk), 2);
            let contents = read(&disk).unwrap();
            assert_eq!((contents.check(), &contents.torn), (records + 2, &None), "cut at {cut}");
        }
    }
}

#[test]
fn a_missing_tail_that_the_commit_point_covers_is_damage() {
    for whole in [two_segments(), two_segments_after_crash(Survive::Everything)] {
        let len = whole.files()[NEWEST_SEGMENT].len();
        for cut in GRAIN..len {
            let disk = with_changed_file(&whole, NEWEST_SEGMENT, |bytes| bytes.truncate(cut));
            let error = read(&disk).unwrap_err();
            assert!(error.is_damage() && error.to_string().contains(NEWEST_SEGMENT), "cut at {cut}: {error}");
            let contents = read_with(&disk, Recovery::DropDamaged).unwrap();
            assert_eq!(contents.check(), 4 + (cut / GRAIN) as u64 - 1, "cut at {cut}");
            assert!(!contents.dropped.is_empty(), "cut at {cut}");
            assert_eq!(read(&disk).unwrap().check(), contents.check(), "valid afterwards");
        }
    }
}

#[test]
fn a_sealed_log_has_no_torn_tail() {
    let whole = two_segments();
    for extra in [1, GRAIN, 100] {
        let disk = with_changed_file(&whole, NEWEST_SEGMENT, |bytes| bytes.resize(bytes.len() + extra, 0));
        let error = read(&disk).unwrap_err();
        assert!(error.is_damage() && error.to_string().contains(NEWEST_SEGMENT), "{error}");
    }
}

#[test]
fn every_flipped_bit_of_an_acknowledged_record_is_damage() {
    for (state, whole) in all_states() {
        for (file, content) in whole.files() {
            if file == COMMIT {
                continue;
            }
            for at in 0..content.len() {
                for bit in 0..8 {
                    let disk = with_changed_file(&whole, &file, |bytes| bytes[at] ^= 1 << bit);
                    let error = read(&disk).expect_err("a flipped bit");
                    assert!(error.is_damage(), "{state}: flip at {file}:{at}: {error}");
                    assert!(error.to_string().contains(&file), "{error} names {file}");
                    assert!(error.offset() <= at as u64, "flip at {at} is reported at {}", error.offset());
                }
                // Dropping the damage always succeeds, and never gives a wrong record.
                let disk = with_changed_file(&whole, &file, |bytes| bytes[at] ^= 1);
                let damaged = disk.files()[&file].clone();
                let contents = read_with(&disk, Recovery::DropDamaged).unwrap();
                let saved = contents.check();
                assert!(saved < 8 && !contents.dropped.is_empty(), "{state}: flip at {file}:{at}");
                let copies: Vec<_> = disk.files().into_values().filter(|bytes| *bytes == damaged).collect();
                assert_eq!(copies.len(), 1, "the damaged file is kept");
                assert_eq!(read(&disk).unwrap().check(), saved, "valid afterwards");
            }
        }
    }
}

#[test]
fn a_flipped_bit_of_the_commit_point_loses_nothing() {
    for (state, whole) in all_states() {
        for slot in [0, 4096] {
            for at in slot..slot + 32 {
                let disk = with_changed_file(&whole, COMMIT, |bytes| bytes[at] ^= 1);
                assert_eq!(read(&disk).unwrap().check(), 8, "{state}: flip at {at}");
            }
        }
        let disk = with_changed_file(&whole, COMMIT, |bytes| bytes.fill(0xff));
        let error = read(&disk).unwrap_err();
        assert!(error.is_damage() && error.to_string().contains(COMMIT), "{error}");
        let contents = read_with(&disk, Recovery::DropDamaged).unwrap();
        assert_eq!((contents.check(), contents.dropped.len()), (8, 1), "{state}");
        assert!(disk.files().contains_key("COMMIT.damaged-1"));
    }
}

#[test]
fn missing_newest_segment_is_detected() {
    for (state, whole) in all_states() {
        let mut files = whole.files();
        files.remove(NEWEST_SEGMENT);
        let disk = CrashDisk::with_files(files);
        let error = read(&disk).unwrap_err();
        assert!(error.is_damage() && error.to_string().contains(NEWEST_SEGMENT), "{state}: {error}");
        let contents = read_with(&disk, Recovery::DropDamaged).unwrap();
        assert_eq!((contents.check(), contents.dropped.len()), (4, 1), "{state}");
        append(&open(&disk), 2);
        assert_eq!(read(&disk).unwrap().check(), 6);
    }
    // A missing newest segment without records is detected too.
    let disk = CrashDisk::new();
    let log = open(&disk);
    append(&log, 4);
    log.rotate().unwrap();
    let mut files = disk.after_crash(Survive::SyncedOnly).files();
    files.remove(NEWEST_SEGMENT);
    assert!(matches!(read(&CrashDisk::with_files(files)), Err(LogError::Gap { expected: 5, .. })));
}

#[test]
fn missing_files_are_detected() {
    for (state, whole) in all_states() {
        let mut files = whole.files();
        files.remove(COMMIT);
        let disk = CrashDisk::with_files(files);
        let error = read(&disk).unwrap_err();
        assert!(error.is_damage() && error.to_string().contains(COMMIT), "{state}: {error}");
        assert_eq!(read_with(&disk, Recovery::DropDamaged).unwrap().check(), 8);
        assert_eq!(read(&disk).unwrap().check(), 8, "the commit point was created again");

        let mut files = whole.files();
        files.retain(|name, _| name == COMMIT);
        let disk = CrashDisk::with_files(files);
        assert!(read(&disk).unwrap_err().is_damage(), "{state}: only the commit point exists");
        let contents = read_with(&disk, Recovery::DropDamaged).unwrap();
        assert_eq!((contents.check(), contents.dropped.len()), (0, 1));
    }
    // The records in the newest snapshot also exist in segments after the older snapshot. Those in
    // the older snapshot exist nowhere else.
    let mut files = with_snapshots().files();
    files.remove("snapshot-00000000000000000009.snap");
    assert_eq!(read(&CrashDisk::with_files(files.clone())).unwrap().check(), 11);
    files.remove("snapshot-00000000000000000006.snap");
    assert!(matches!(read(&CrashDisk::with_files(files)), Err(LogError::Gap { expected: 1, .. })));
}

#[test]
fn every_flipped_bit_of_the_newest_snapshot_is_detected_and_the_older_one_replaces_it() {
    let whole = with_snapshots();
    let file = "snapshot-00000000000000000009.snap";
    let check = |disk: &CrashDisk, context: &str| {
        let damaged = disk.files()[file].clone();
        let contents = read(disk).unwrap();
        assert_eq!((contents.snapshot_seq, contents.check()), (6, 11), "{context}");
        let [replaced] = &contents.replaced[..] else { panic!("{context}: {:?}", contents.replaced) };
        assert!(replaced.why.contains(file) && contents.dropped.is_empty(), "{context}");
        assert_eq!(replaced.saved_as.as_deref(), Some(&*format!("{file}.damaged-1")));
        assert_eq!(
            disk.files()[&format!("{file}.damaged-1")],
            damaged,
            "the damaged snapshot is saved unchanged"
        );
    };
    for at in 0..whole.files()[file].len() {
        for bit in 0..8 {
            let disk = with_changed_file(&whole, file, |bytes| bytes[at] ^= 1 << bit);
            check(&disk, &format!("flip at {at}"));
        }
        check(&with_changed_file(&whole, file, |bytes| bytes.truncate(at)), &format!("cut at {at}"));
    }
    check(&with_changed_file(&whole, file, |bytes| bytes.push(0)), "longer");
}

#[test]
fn dropped_parts_are_reported_and_saved() {
    let whole = two_segments();
    let before = whole.files();
    let second = 2 * GRAIN;
    let disk = with_changed_file(&whole, FIRST_SEGMENT, |bytes| bytes[second + 33] ^= 1);
    assert!(
        matches!(read(&disk), Err(LogError::Damaged { file, offset, .. }) if file == FIRST_SEGMENT && offset == second as u64)
    );
    let damaged = disk.files();
    let contents = read_with(&disk, Recovery::DropDamaged).unwrap();
    assert_eq!(contents.check(), 1);
    let [cut, renamed] = &contents.dropped[..] else { panic!("{:?}", contents.dropped) };
    assert_eq!((cut.file.as_str(), cut.offset, cut.records_known), (FIRST_SEGMENT, second as u64, 2));
    assert_eq!(cut.bytes, (before[FIRST_SEGMENT].len() - second) as u64);
    assert_eq!((renamed.file.as_str(), renamed.records_known), (NEWEST_SEGMENT, 4));
    for dropped in &contents.dropped {
        assert_eq!(disk.files()[dropped.saved_as.as_ref().unwrap()], damaged[&dropped.file]);
    }
    assert_eq!(disk.files()[FIRST_SEGMENT], before[FIRST_SEGMENT][..second]);
    append(&open(&disk), 3);
    assert_eq!(read(&disk).unwrap().check(), 4);
}

#[test]
fn a_missing_segment_is_a_gap() {
    let disk = CrashDisk::new();
    let log = open(&disk);
    for _ in 0..3 {
        append(&log, 2);
        log.rotate().unwrap();
    }
    log.close().unwrap();
    let mut files = disk.files();
    files.remove("edits-00000000000000000003.log");
    let disk = CrashDisk::with_files(files.clone());
    assert!(matches!(read(&disk), Err(LogError::Gap { expected: 3, found: Some(5), .. })));
    let contents: Contents = read_with(&disk, Recovery::DropDamaged).unwrap();
    assert_eq!((contents.check(), contents.dropped.len()), (2, 2));
    assert_eq!(read(&disk).unwrap().check(), 2);
    // Without the first segment no record can be used, and all other segments are saved.
    files.remove(FIRST_SEGMENT);
    let disk = CrashDisk::with_files(files.clone());
    assert!(matches!(read(&disk), Err(LogError::Gap { expected: 1, found: Some(5), .. })));
    let contents = read_with(&disk, Recovery::DropDamaged).unwrap();
    assert_eq!((contents.check(), contents.dropped.len()), (0, files.len() - 1));
    let segments = files.keys().filter(|name| *name != COMMIT);
    assert!(segments.into_iter().all(|name| disk.files().contains_key(&format!("{name}.damaged-1"))));
    append(&open(&disk), 1);
    assert_eq!(read(&disk).unwrap().check(), 1);
}

#[test]
fn a_snapshot_without_the_segments_after_it_is_a_gap() {
    let mut files = with_snapshots().files();
    files.retain(|name, _| name.starts_with("snapshot") || name == COMMIT);
    let disk = CrashDisk::with_files(files);
    assert!(matches!(read(&disk), Err(LogError::Gap { expected: 10, found: None, .. })));
    let contents = read_with(&disk, Recovery::DropDamaged).unwrap();
    assert_eq!((contents.check(), contents.dropped.len()), (9, 1));
    append(&open(&disk), 1);
    assert_eq!(read(&disk).unwrap().check(), 10);
}

#[test]
fn damaged_snapshots_without_segments_are_not_an_empty_log() {
    let mut files = with_snapshots().files();
    files.retain(|name, _| name.starts_with("snapshot") || name == COMMIT);
    for (_, bytes) in files.iter_mut().filter(|(name, _)| *name != COMMIT) {
        bytes.pop();
    }
    let disk = CrashDisk::with_files(files.clone());
    assert!(read(&disk).is_err());
    let contents = read_with(&disk, Recovery::DropDamaged).unwrap();
    assert_eq!(contents.check(), 0);
    let mut snapshots = files.keys().filter(|name| *name != COMMIT);
    assert!(contents.dropped.len() >= files.len() - 1, "each snapshot is reported");
    assert!(
        snapshots.all(|name| disk.files().contains_key(&format!("{name}.damaged-1"))),
        "each snapshot is saved"
    );
}

#[test]
fn files_with_a_wrong_header_are_refused() {
    let whole = two_segments();
    let short = with_changed_file(&whole, FIRST_SEGMENT, |bytes| bytes.truncate(10));
    assert!(matches!(read(&short), Err(LogError::ShortHeader { offset: 10, .. })));
    let other = with_changed_file(&whole, FIRST_SEGMENT, |bytes| bytes[0] = b'X');
    assert!(matches!(read(&other), Err(LogError::BadMagic { file }) if file == FIRST_SEGMENT));
    let newer = with_changed_file(&whole, FIRST_SEGMENT, |bytes| {
        bytes[4] = 4;
        let crc = crc32c::crc32c(&bytes[..20]);
        bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    });
    let untouched = file_names(&newer);
    assert!(matches!(read_with(&newer, Recovery::DropDamaged), Err(LogError::Version { found: 4, .. })));
    assert_eq!(file_names(&newer), untouched, "a newer version is not damage");
    let mut swapped = whole.files();
    let first = swapped[FIRST_SEGMENT].clone();
    swapped.insert("edits-00000000000000000005.log".into(), first);
    assert!(matches!(read(&CrashDisk::with_files(swapped)), Err(LogError::Damaged { offset: 8, .. })));
}

#[test]
fn zero_or_batch_like_records_do_not_change_the_result() {
    let disk = CrashDisk::new();
    let log = open(&disk);
    append(&log, 3);
    // One record contains the batches of another log, the other only zeros.
    for record in [disk.files()[FIRST_SEGMENT].clone(), vec![0; 4096]] {
        let disk = CrashDisk::new();
        let log = open(&disk);
        log.sync(log.append(&record).unwrap()).unwrap();
        let whole = disk.after_crash(Survive::SyncedOnly);
        let length = whole.files()[FIRST_SEGMENT].len();
        for at in (GRAIN..length).step_by(7) {
            let flipped = with_changed_file(&whole, FIRST_SEGMENT, |bytes| bytes[at] ^= 1);
            assert!(read(&flipped).unwrap_err().is_damage(), "flip at {at}");
            let torn = with_changed_file(&whole, FIRST_SEGMENT, |bytes| {
                bytes[at / GRAIN * GRAIN..][..GRAIN].fill(0);
            });
            let contents = read(&torn).unwrap();
            assert!(contents.records.is_empty() && contents.torn.is_some(), "lost sector at {at}");
        }
    }
}
