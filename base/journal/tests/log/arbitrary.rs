//! Tests that files with arbitrary bytes give an error or a valid log, never a panic or excessive
//! memory use.

use crate::common::{append, open, read, read_with, snapshot};
use fermata_journal::{crash::CrashDisk, log::Recovery};
use proptest::{collection::vec, prelude::*};

/// Returns a valid log with a snapshot and two segments.
fn valid_log() -> CrashDisk {
    let disk = CrashDisk::new();
    let log = open(&disk);
    append(&log, 5);
    snapshot(&log).unwrap();
    append(&log, 5);
    log.rotate().unwrap();
    append(&log, 5);
    log.close().unwrap();
    disk
}

proptest! {
    #[test]
    fn arbitrary_segments_and_snapshots_are_refused(
        segment in vec(any::<u8>(), 0..300),
        snapshot in vec(any::<u8>(), 0..300),
        magic in any::<bool>(),
    ) {
        let (mut segment, mut snapshot) = (segment, snapshot);
        if magic {
            segment.splice(0..0, *b"FMTJ\x02\0");
            snapshot.splice(0..0, *b"FMTS\x02\0");
        }
        let disk = CrashDisk::with_files([
            ("edits-00000000000000000001.log", segment),
            ("snapshot-00000000000000000001.snap", snapshot),
        ]);
        prop_assert!(read(&disk).is_err());
        let _ = read_with(&disk, Recovery::DropDamaged);
    }

    #[test]
    fn arbitrary_bytes_after_a_valid_start_never_give_wrong_records(junk in vec(any::<u8>(), 1..2000), cut in 0usize..400) {
        let disk = valid_log();
        let mut files = disk.files();
        for bytes in files.values_mut() {
            bytes.truncate(cut.max(64));
            bytes.extend_from_slice(&junk);
        }
        let disk = CrashDisk::with_files(files);
        if let Ok(contents) = read(&disk) {
            contents.check();
        }
        let contents = read_with(&disk, Recovery::DropDamaged);
        if let Ok(contents) = contents {
            contents.check();
        }
    }

    #[test]
    fn corrupted_bytes_are_detected(changes in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut files = valid_log().files();
        let names: Vec<_> = files.keys().cloned().collect();
        for (file, at, byte) in changes {
            let bytes = files.get_mut(&names[file.index(names.len())]).expect("a file of the log");
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let disk = CrashDisk::with_files(files);
        if let Ok(contents) = read(&disk) {
            // The log was closed cleanly, so nothing may be missing.
            prop_assert_eq!(contents.check(), 15);
        }
        read_with(&disk, Recovery::DropDamaged).unwrap().check();
        read(&disk).unwrap().check();
    }
}
