//! Tests that crash the disk after each single operation of a scripted run, with every [`Survive`].
//!
//! After reopening, every acknowledged record must exist, in order, and no record may exist that
//! was never appended.

use crate::common::{append, open, read, read_replay, record, snapshot};
use fermata_journal::{
    LogError,
    crash::{CrashDisk, Survive},
    log::{Content, Log, Recovery},
};
use std::sync::Arc;

const SEEDS: u64 = 40;

/// How many records a run has appended, and how many of these were acknowledged.
#[derive(Debug, Default, Clone, Copy)]
struct Run {
    appended: u64,
    acknowledged: u64,
}

impl Run {
    fn append(&mut self, log: &Log, count: u64) -> Result<(), LogError> {
        let records: Vec<_> = (1..=count).map(|n| record(self.appended + n)).collect();
        self.appended += count;
        let seq = log.append_many(&records).map_err(|error| match error {
            fermata_journal::AppendError::Failed(failed) => LogError::from(failed),
            error @ fermata_journal::AppendError::TooLarge { .. } => panic!("{error}"),
        })?;
        log.sync(seq)?;
        self.acknowledged = log.durable();
        Ok(())
    }

    /// Uses all functions of the log: append, rotate, make snapshots, remove old files, reopen.
    fn script(&mut self, disk: &CrashDisk) -> Result<(), LogError> {
        let opened = Log::open(Arc::new(disk.clone()), Content::Records, Recovery::Refuse)?;
        let log = opened.log;
        for round in 0..4 {
            self.append(&log, 1 + round)?;
            self.append(&log, 6)?;
            snapshot(&log)?;
            self.append(&log, 2)?;
            log.rotate()?;
            self.append(&log, 1)?;
        }
        log.close()?;
        let log = Log::open(Arc::new(disk.clone()), Content::Records, Recovery::Refuse)?.log;
        self.append(&log, 3)?;
        snapshot(&log)?;
        log.close()?;
        Ok(())
    }
}

fn check(run: Run, disk: &CrashDisk, context: &str) -> u64 {
    let contents = read(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
    let there = contents.check();
    assert!(there >= run.acknowledged, "{context}: {} acknowledged, {there} exist", run.acknowledged);
    assert!(there <= run.appended, "{context}: {} appended, {there} exist", run.appended);
    there
}

fn all_survive_cases() -> impl Iterator<Item = Survive> {
    [Survive::Everything, Survive::SyncedOnly].into_iter().chain((0..SEEDS).map(Survive::Seeded))
}

#[test]
fn nothing_acknowledged_is_lost_at_any_crash_point() {
    let disk = CrashDisk::new();
    let mut run = Run::default();
    run.script(&disk).unwrap();
    assert_eq!(run.acknowledged, run.appended);
    let operations = disk.operations();
    assert!(operations > 100, "the script has few operations: {operations}");
    let (mut lost, mut saved) = (0, 0);
    for point in 0..operations {
        let disk = CrashDisk::new();
        disk.crash_after(point);
        let mut run = Run::default();
        assert!(run.script(&disk).is_err() && disk.crashed(), "crash at {point}");
        for survive in all_survive_cases() {
            let context = format!("crash at {point}, {survive:?}");
            let after = disk.after_crash(survive);
            let there = check(run, &after, &context);
            lost += u64::from(there < run.appended);
            saved += u64::from(there > run.acknowledged);
            // Records that the restart has replayed are durable: a power loss does not remove them.
            let again = Run { acknowledged: there, ..run };
            check(again, &after.after_crash(Survive::SyncedOnly), &format!("{context}, then power loss"));
            // The log accepts more records.
            append(&open(&after), 2);
            let later = Run { appended: there + 2, acknowledged: there + 2 };
            check(
                later,
                &after.after_crash(Survive::SyncedOnly),
                &format!("{context}, two more, then power loss"),
            );
        }
    }
    println!("{operations} crash points, {} cases each", all_survive_cases().count());
    assert!(lost > 0 && saved > 0, "unacknowledged records were lost ({lost}) and kept ({saved}) at times");
}

#[test]
fn dropping_damage_can_be_repeated_after_a_crash_in_between() {
    let whole = CrashDisk::new();
    let log = open(&whole);
    append(&log, 5);
    log.rotate().unwrap();
    append(&log, 5);
    log.close().unwrap();
    let mut files = whole.files();
    files.get_mut("edits-00000000000000000001.log").unwrap()[2 * 64 + 33] ^= 1;
    let drop_damaged = |disk: &CrashDisk| {
        let mut opened = Log::open(Arc::new(disk.clone()), Content::Records, Recovery::DropDamaged)?;
        let records = read_replay(&mut opened.replay)?.1;
        opened.log.close()?;
        Ok::<_, LogError>(records.len())
    };
    let disk = CrashDisk::with_files(files.clone());
    assert_eq!(drop_damaged(&disk).unwrap(), 1);
    for point in 0..disk.operations() {
        for survive in all_survive_cases() {
            let disk = CrashDisk::with_files(files.clone());
            disk.crash_after(point);
            assert!(drop_damaged(&disk).is_err());
            let after = disk.after_crash(survive);
            assert_eq!(drop_damaged(&after).unwrap(), 1, "crash at {point}, {survive:?}");
            let saved = after.files();
            for (name, bytes) in files.iter().filter(|(name, _)| *name != "COMMIT") {
                assert!(
                    saved.values().any(|saved| saved == bytes),
                    "{name} is still there, crash at {point}"
                );
            }
        }
    }
}

#[test]
fn a_snapshot_is_durable_when_finished_and_not_visible_before() {
    let disk = CrashDisk::new();
    let log = open(&disk);
    append(&log, 2);
    let mut writer = log.snapshot_writer(2).unwrap();
    for seq in 1..=2 {
        writer.push(&record(seq)).unwrap();
    }
    for survive in all_survive_cases() {
        assert_eq!(read(&disk.after_crash(survive)).unwrap().snapshot_seq, 0);
    }
    writer.finish().unwrap();
    for survive in all_survive_cases() {
        let contents = read(&disk.after_crash(survive)).unwrap();
        assert_eq!((contents.snapshot_seq, contents.check()), (2, 2), "{survive:?}");
    }
}
