//! Tests of the log on real files: contents, group commit, and the speed of appending and reading.

use crate::common::{append, read_replay, record, snapshot};
use fermata_journal::{
    disk::{Disk, RealDisk},
    log::{Content, Log, Recovery},
};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

fn open(disk: &Arc<RealDisk>) -> fermata_journal::Opened {
    Log::open(Arc::clone(disk) as Arc<dyn Disk>, Content::Records, Recovery::Refuse).expect("a valid log")
}

#[test]
fn snapshots_and_records_are_replayed_and_a_torn_tail_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::open(folder.path().join("deep/edits")).unwrap());
    let log = open(&disk).log;
    assert!(log.free_bytes().unwrap() > 0);
    append(&log, 10);
    snapshot(&log).unwrap();
    append(&log, 2);
    // Make the files look as after a power loss: a part of the last batch is missing, and the
    // commit point is older than that batch.
    let commit = std::fs::read(disk.folder().join("COMMIT")).unwrap();
    append(&log, 1);
    let newest = disk.folder().join("edits-00000000000000000011.log");
    let mut bytes = std::fs::read(&newest).unwrap();
    bytes.truncate(bytes.len() - 1);
    log.close().unwrap();
    std::fs::write(&newest, &bytes).unwrap();
    std::fs::write(disk.folder().join("COMMIT"), commit).unwrap();
    let mut opened = open(&disk);
    let torn = opened.torn.clone().unwrap();
    assert_eq!(std::fs::read(disk.folder().join(torn.saved_as)).unwrap(), bytes[bytes.len() - 63..]);
    append(&opened.log, 2);
    let (pieces, records) = read_replay(&mut opened.replay).unwrap();
    assert_eq!((pieces.len(), records.len()), (10, 2));
    drop(opened);
    let mut opened = open(&disk);
    assert_eq!(opened.torn, None);
    assert_eq!(read_replay(&mut opened.replay).unwrap().1.last().unwrap(), &(14, record(14)));
}

#[test]
fn concurrent_appends_share_batches() {
    const THREADS: u64 = 16;
    const RECORDS_PER_THREAD: u64 = 200;
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::open(folder.path()).unwrap());
    let log = open(&disk).log;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let log = &log;
            scope.spawn(move || {
                for n in 0..RECORDS_PER_THREAD {
                    let seq = log.append(&(thread * RECORDS_PER_THREAD + n).to_le_bytes()).unwrap();
                    log.sync(seq).unwrap();
                    assert!(log.durable() >= seq);
                }
            });
        }
    });
    let stats = log.stats();
    println!("{} records in {} batches", stats.records, stats.batches);
    assert_eq!(stats.records, THREADS * RECORDS_PER_THREAD);
    assert!(stats.batches < stats.records / 2, "{stats:?}");
    log.close().unwrap();
    let (_, records) = read_replay(&mut open(&disk).replay).unwrap();
    let mut values: Vec<_> =
        records.iter().map(|(_, bytes)| u64::from_le_bytes(bytes[..].try_into().unwrap())).collect();
    for thread in 0..THREADS {
        let own: Vec<_> = values.iter().filter(|value| **value / RECORDS_PER_THREAD == thread).collect();
        assert!(own.is_sorted(), "the records of each thread are in their order");
    }
    values.sort_unstable();
    assert!(values.into_iter().eq(0..THREADS * RECORDS_PER_THREAD), "each record exists once");
}

/// The limits are ten times the values that are expected on an idle machine, so that the test fails
/// only after a serious regression.
#[test]
fn appending_and_reading_a_million_records_is_fast() {
    const RECORDS: u64 = 1_000_000;
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::open(folder.path()).unwrap());
    let log = open(&disk).log;
    let bytes = [7; 60];
    let start = Instant::now();
    for _ in 0..RECORDS {
        log.append(&bytes).unwrap();
    }
    let appending = start.elapsed();
    log.sync(RECORDS).unwrap();
    let durable = start.elapsed();
    let batches = log.stats().batches;
    log.close().unwrap();
    let start = Instant::now();
    let mut opened = open(&disk);
    let opening = start.elapsed();
    let mut count = 0;
    while let Some(item) = opened.replay.next().unwrap() {
        std::hint::black_box(item);
        count += 1;
    }
    let reading = start.elapsed();
    println!(
        "append {:.2} us each, {batches} batches, durable after {durable:?}; open {opening:?}, with replay {reading:?}",
        appending.as_secs_f64() * 1e6 / RECORDS as f64,
    );
    assert_eq!(count, RECORDS);
    assert!(appending < Duration::from_secs(10), "{appending:?}");
    assert!(reading < Duration::from_secs(10), "{reading:?}");
}
