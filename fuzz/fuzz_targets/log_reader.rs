//! Fuzzes the journal's readers: arbitrary bytes behind sound file headers, and a sound log with spoilt bytes.
//!
//! The first byte chooses. Checksums would stop a fuzzer at the first header, so headers are made sound, and
//! the second kind starts from a log that the journal itself wrote.

#![no_main]

use fermata_journal::{
    crash::CrashDisk,
    log::{Log, Recovery},
    replay::Item,
};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, OnceLock};

const RECORDS: u64 = 20;

fuzz_target!(|input: &[u8]| {
    let Some((kind, input)) = input.split_first() else { return };
    let spoilt = kind % 2 == 1;
    let disk = if spoilt { spoilt_log(input) } else { arbitrary_files(*kind, input) };
    for recovery in [Recovery::Refuse, Recovery::DropDamaged] {
        let Ok(mut opened) = Log::open(Arc::new(disk.clone()), recovery) else { continue };
        let mut next = opened.replay.snapshot_seq() + 1;
        while let Ok(Some(item)) = opened.replay.next() {
            if let Item::Record { seq, bytes } = item {
                assert_eq!(seq, next, "no gap");
                assert!(!spoilt || bytes == record(seq), "a wrong record {seq}");
                next += 1;
            }
        }
    }
});

fn record(seq: u64) -> Vec<u8> {
    vec![seq as u8; seq as usize * 3]
}

/// A segment and a snapshot with arbitrary content; with sound headers or, at times, without.
fn arbitrary_files(kind: u8, input: &[u8]) -> CrashDisk {
    let (segment, snapshot) = input.split_at(input.len() / 2);
    let file = |magic: &[u8; 4], content: &[u8]| {
        let mut bytes = Vec::new();
        if kind & 2 == 0 {
            bytes.extend_from_slice(magic);
            bytes.extend_from_slice(&[2, 0, 0, 0]);
            bytes.extend_from_slice(&1u64.to_le_bytes());
            bytes.extend_from_slice(&0u32.to_le_bytes());
            bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
            bytes.resize(64, 0);
        }
        bytes.extend_from_slice(content);
        bytes
    };
    let disk = CrashDisk::new();
    disk.set_file("edits-00000000000000000001.log", file(b"FMTJ", segment));
    if kind & 4 == 0 {
        disk.set_file("snapshot-00000000000000000001.snap", file(b"FMTS", snapshot));
    }
    disk
}

/// A sound log of two segments; each four bytes of input change one byte of it.
fn spoilt_log(input: &[u8]) -> CrashDisk {
    static SOUND: OnceLock<CrashDisk> = OnceLock::new();
    let mut files = SOUND.get_or_init(sound_log).files();
    for change in input.chunks_exact(4) {
        let index = usize::from(change[0]) % files.len();
        let bytes = files.values_mut().nth(index).expect("an index below the count");
        let at = usize::from(u16::from_le_bytes([change[1], change[2]]));
        match at.checked_sub(bytes.len()) {
            None => bytes[at] ^= change[3],
            Some(beyond) if change[3] % 2 == 0 => bytes.truncate(beyond),
            Some(_) => bytes.push(change[3]),
        }
    }
    CrashDisk::with_files(files)
}

fn sound_log() -> CrashDisk {
    let disk = CrashDisk::new();
    let log = Log::open(Arc::new(disk.clone()), Recovery::Refuse).expect("a fresh log").log;
    for seq in 1..=RECORDS {
        log.append(&record(seq)).expect("a living log");
        log.sync(seq).expect("a living log");
        if seq == RECORDS / 2 {
            log.rotate().expect("a living log");
        }
    }
    log.close().expect("a living log");
    disk
}
