//! Torn tails are cut, damage is refused with its place or dropped with a report, wrong records never appear.

use crate::common::{Contents, append, open, read, read_with, snapshot};
use fermata_journal::{LogError, crash::CrashDisk, log::Recovery};

const FIRST: &str = "edits-00000000000000000001.log";

/// Records 1 to 4 in a closed segment, 5 to 8 in the newest; each in its own batch.
fn two_segments() -> CrashDisk {
    let disk = CrashDisk::new();
    let log = open(&disk);
    append(&log, 4);
    log.rotate().unwrap();
    append(&log, 4);
    log.close().unwrap();
    disk
}

/// Three snapshots' worth: two kept, and the segments after the older.
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

fn changed(disk: &CrashDisk, file: &str, change: impl FnOnce(&mut Vec<u8>)) -> CrashDisk {
    let mut files = disk.files();
    change(files.get_mut(file).expect("the file"));
    CrashDisk::with_files(files)
}

fn names(disk: &CrashDisk) -> Vec<String> {
    disk.files().into_keys().collect()
}

/// Where the last batch of the newest segment begins: the length without the last record.
fn last_batch_at(whole: &CrashDisk, newest: &str, records: u64) -> u64 {
    let len = whole.files()[newest].len();
    (0..len)
        .rev()
        .find(|cut| {
            let disk = changed(whole, newest, |bytes| bytes.truncate(*cut));
            let contents = read(&disk).expect("a torn tail");
            contents.torn.is_none() && contents.check() == records - 1
        })
        .expect("a border between batches") as u64
}

#[test]
fn a_tail_torn_at_any_byte_is_cut_and_the_log_goes_on() {
    let whole = two_segments();
    let newest = "edits-00000000000000000005.log";
    let border = last_batch_at(&whole, newest, 8);
    for cut in border + 1..whole.files()[newest].len() as u64 {
        for zeros in [0, 3, 5000] {
            let disk = changed(&whole, newest, |bytes| {
                bytes.truncate(cut as usize);
                bytes.resize(cut as usize + zeros, 0);
            });
            let log = open(&disk);
            assert_eq!(log.durable(), 7, "cut at {cut}");
            append(&log, 2);
            drop(log);
            let contents = read(&disk).unwrap();
            assert_eq!((contents.check(), &contents.torn), (9, &None), "cut at {cut}");
        }
    }
    let torn =
        read(&changed(&whole, newest, |bytes| bytes.truncate(border as usize + 5))).unwrap().torn.unwrap();
    assert_eq!((torn.file.as_str(), torn.offset, torn.bytes), (newest, border, 5));
}

/// Opens `disk`, in which one byte of `file` at `at` is wrong.
fn check_flip(disk: &CrashDisk, file: &str, at: u64, total: u64, last_batch: Option<u64>) {
    let in_last_batch = last_batch.is_some_and(|border| at >= border);
    match read(disk) {
        Ok(contents) => {
            let torn = contents.torn.as_ref().map(|torn| torn.offset);
            assert!(in_last_batch && torn == last_batch, "flip at {file}:{at} unnoticed");
            assert_eq!(contents.check(), total - 1);
        }
        Err(error) => {
            assert!(error.is_damage() && !in_last_batch, "flip at {file}:{at}: {error}");
            assert!(error.to_string().contains(file), "{error} names {file}");
            assert!(error.offset() <= at, "flip at {at} blamed on {}", error.offset());
        }
    }
}

#[test]
fn every_flipped_bit_is_noticed_and_never_gives_a_wrong_record() {
    let whole = two_segments();
    let newest = "edits-00000000000000000005.log";
    let border = last_batch_at(&whole, newest, 8);
    for (file, content) in whole.files() {
        for at in 0..content.len() {
            for bit in 0..8 {
                let disk = changed(&whole, &file, |bytes| bytes[at] ^= 1 << bit);
                let last_batch = (file == newest).then_some(border);
                check_flip(&disk, &file, at as u64, 8, last_batch);
            }
            // And dropping it never gives a wrong record either, and always gives a log.
            let disk = changed(&whole, &file, |bytes| bytes[at] ^= 1);
            let contents = read_with(&disk, Recovery::DropDamaged).unwrap();
            let kept = contents.check();
            assert!(kept < 8, "flip at {file}:{at}");
            assert!(contents.torn.is_some() || !contents.dropped.is_empty());
            assert_eq!(read(&disk).unwrap().check(), kept, "sound afterwards");
        }
    }
}

#[test]
fn every_flipped_bit_of_a_snapshot_is_refused_and_dropping_it_loses_nothing() {
    let whole = with_snapshots();
    let file = "snapshot-00000000000000000009.snap";
    for at in 0..whole.files()[file].len() {
        for bit in 0..8 {
            let disk = changed(&whole, file, |bytes| bytes[at] ^= 1 << bit);
            check_flip(&disk, file, at as u64, 11, None);
        }
        let disk = changed(&whole, file, |bytes| bytes.truncate(at));
        assert!(read(&disk).unwrap_err().is_damage(), "cut at {at}");
        let contents = read_with(&disk, Recovery::DropDamaged).unwrap();
        assert_eq!((contents.snapshot_seq, contents.check()), (6, 11));
        assert_eq!(contents.dropped[0].kept_as.as_deref(), Some(&*format!("{file}.damaged-1")));
        assert_eq!(disk.files()[&format!("{file}.damaged-1")].len(), at, "kept as it was");
    }
    let longer = changed(&whole, file, |bytes| bytes.push(0));
    assert!(read(&longer).unwrap_err().is_damage());
}

#[test]
fn dropping_says_what_went_and_keeps_the_files() {
    let whole = two_segments();
    let before = whole.files();
    // The payload of the second batch: header 24, batch header 28, length 4, record 9; header 28, length 4.
    let second = 24 + 28 + 4 + 9;
    let disk = changed(&whole, FIRST, |bytes| bytes[second + 33] ^= 1);
    assert!(
        matches!(read(&disk), Err(LogError::Damaged { file, offset, .. }) if file == FIRST && offset == second as u64)
    );
    let damaged = disk.files();
    let contents = read_with(&disk, Recovery::DropDamaged).unwrap();
    assert_eq!(contents.check(), 1);
    let [cut, aside] = &contents.dropped[..] else { panic!("{:?}", contents.dropped) };
    assert_eq!((cut.file.as_str(), cut.offset, cut.records_known), (FIRST, second as u64, 2));
    assert_eq!(cut.bytes, (before[FIRST].len() - second) as u64);
    assert_eq!((aside.file.as_str(), aside.records_known), ("edits-00000000000000000005.log", 4));
    for dropped in &contents.dropped {
        assert_eq!(disk.files()[dropped.kept_as.as_ref().unwrap()], damaged[&dropped.file]);
    }
    assert_eq!(disk.files()[FIRST], before[FIRST][..second]);
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
    // Without its beginning nothing is left, and all of it is kept aside.
    files.remove(FIRST);
    let disk = CrashDisk::with_files(files.clone());
    assert!(matches!(read(&disk), Err(LogError::Gap { expected: 1, found: Some(5), .. })));
    let contents = read_with(&disk, Recovery::DropDamaged).unwrap();
    assert_eq!((contents.check(), contents.dropped.len()), (0, files.len()));
    assert!(files.keys().all(|name| disk.files().contains_key(&format!("{name}.damaged-1"))));
    append(&open(&disk), 1);
    assert_eq!(read(&disk).unwrap().check(), 1);
}

#[test]
fn a_snapshot_whose_segments_are_gone_is_a_gap() {
    let mut files = with_snapshots().files();
    files.retain(|name, _| name.starts_with("snapshot"));
    let disk = CrashDisk::with_files(files);
    assert!(matches!(read(&disk), Err(LogError::Gap { expected: 10, found: None, .. })));
    let contents = read_with(&disk, Recovery::DropDamaged).unwrap();
    assert_eq!((contents.check(), contents.dropped.len()), (9, 1));
    append(&open(&disk), 1);
    assert_eq!(read(&disk).unwrap().check(), 10);
}

#[test]
fn a_damaged_snapshot_and_nothing_else_is_not_an_empty_log() {
    let mut files = with_snapshots().files();
    files.retain(|name, _| name.starts_with("snapshot"));
    for bytes in files.values_mut() {
        bytes.pop();
    }
    let disk = CrashDisk::with_files(files.clone());
    assert!(read(&disk).is_err());
    let contents = read_with(&disk, Recovery::DropDamaged).unwrap();
    assert_eq!(contents.check(), 0);
    assert!(contents.dropped.len() >= files.len(), "each is told of");
    assert!(files.keys().all(|name| disk.files().contains_key(&format!("{name}.damaged-1"))), "and kept");
}

#[test]
fn wrong_files_are_refused_by_name() {
    let whole = two_segments();
    let short = changed(&whole, FIRST, |bytes| bytes.truncate(10));
    assert!(matches!(read(&short), Err(LogError::ShortHeader { offset: 10, .. })));
    let other = changed(&whole, FIRST, |bytes| bytes[0] = b'X');
    assert!(matches!(read(&other), Err(LogError::BadMagic { file }) if file == FIRST));
    let newer = changed(&whole, FIRST, |bytes| {
        bytes[4] = 2;
        let crc = crc32c::crc32c(&bytes[..20]);
        bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    });
    let untouched = names(&newer);
    assert!(matches!(read_with(&newer, Recovery::DropDamaged), Err(LogError::Version { found: 2, .. })));
    assert_eq!(names(&newer), untouched, "a newer version is not damage");
    let mut swapped = whole.files();
    let first = swapped[FIRST].clone();
    swapped.insert("edits-00000000000000000005.log".into(), first);
    assert!(matches!(read(&CrashDisk::with_files(swapped)), Err(LogError::Damaged { offset: 8, .. })));
}

#[test]
fn a_record_that_looks_like_a_batch_does_not_turn_a_torn_tail_into_damage() {
    let disk = CrashDisk::new();
    let log = open(&disk);
    append(&log, 3);
    log.close().unwrap();
    // The later batches of one log as the content of a record in another, which is then torn.
    let record = disk.files()[FIRST].clone();
    let disk = CrashDisk::new();
    let log = open(&disk);
    log.append(&record).unwrap();
    log.close().unwrap();
    let disk = changed(&disk, FIRST, |bytes| bytes[60] ^= 1);
    let contents = read(&disk).unwrap();
    assert!(contents.records.is_empty() && contents.torn.is_some());
}
