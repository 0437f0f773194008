//! Crashes after every single disk operation of a scripted run, with every [`Survive`].
//!
//! After reopening, every acknowledged record exists, in order, and no record exists that was never
//! appended.

use crate::common::{append, drain, open, read, record, snapshot};
use fermata_journal::{
    LogError,
    crash::{CrashDisk, Survive},
    log::{Log, Recovery},
};
use std::sync::Arc;

const SEEDS: u64 = 40;

/// Progress of a run.
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

    /// Uses all functions of the log: appends, rotations, snapshots, retention, reopening.
    fn script(&mut self, disk: &CrashDisk) -> Result<(), LogError> {
        let opened = Log::open(Arc::new(disk.clone()), Recovery::Refuse)?;
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
        let log = Log::open(Arc::new(disk.clone()), Recovery::Refuse)?.log;
        self.append(&log, 3)?;
        snapshot(&log)?;
        log.close()?;
        Ok(())
    }
}

fn check(run: Run, disk: &CrashDisk, context: &str) -> u64 {
    let contents = read(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
    let there = contents.check();
    assert!(there >= run.acknowledged, "{context}: {} acknowledged, {there} there", run.acknowledged);
    assert!(there <= run.appended, "{context}: {} appended, {there} there", run.appended);
    there
}

fn ways() -> impl Iterator<Item = Survive> {
    [Survive::Everything, Survive::SyncedOnly].into_iter().chain((0..SEEDS).map(Survive::Seeded))
}

#[test]
fn nothing_acknowledged_is_lost_at_any_crash_point() {
    let disk = CrashDisk::new();
    let mut run = Run::default();
    run.script(&disk).unwrap();
    assert_eq!(run.acknowledged, run.appended);
    let operations = disk.operations();
    assert!(operations > 100, "the script does something: {operations}");
    let (mut lost, mut saved) = (0, 0);
    for point in 0..operations {
        let disk = CrashDisk::new();
        disk.crash_after(point);
        let mut run = Run::default();
        assert!(run.script(&disk).is_err() && disk.crashed(), "crash at {point}");
        for survive in ways() {
            let context = format!("crash at {point}, {survive:?}");
            let after = disk.survivor(survive);
            let there = check(run, &after, &context);
            lost += u64::from(there < run.appended);
            saved += u64::from(there > run.acknowledged);
            // What the restart has replayed is durable: a second crash, of the machine, does not
            // lose it.
            let again = Run { acknowledged: there, ..run };
            check(again, &after.survivor(Survive::SyncedOnly), &format!("{context}, then power loss"));
            // The log continues from there.
            append(&open(&after), 2);
            let later = Run { appended: there + 2, acknowledged: there + 2 };
            check(
                later,
                &after.survivor(Survive::SyncedOnly),
                &format!("{context}, two more, then power loss"),
            );
        }
    }
    println!("{operations} crash points, {} ways each", ways().count());
    assert!(lost > 0 && saved > 0, "unacknowledged records were lost ({lost}) and kept ({saved}) at times");
}

#[test]
fn a_crash_while_dropping_damage_leaves_a_log_that_can_be_dropped_again() {
    let whole = CrashDisk::new();
    let log = open(&whole);
    append(&log, 5);
    log.rotate().unwrap();
    append(&log, 5);
    log.close().unwrap();
    let mut files = whole.files();
    files.get_mut("edits-00000000000000000001.log").unwrap()[2 * 64 + 33] ^= 1;
    let drop_damaged = |disk: &CrashDisk| {
        let mut opened = Log::open(Arc::new(disk.clone()), Recovery::DropDamaged)?;
        let records = drain(&mut opened.replay)?.1;
        opened.log.close()?;
        Ok::<_, LogError>(records.len())
    };
    let disk = CrashDisk::with_files(files.clone());
    assert_eq!(drop_damaged(&disk).unwrap(), 1);
    for point in 0..disk.operations() {
        for survive in ways() {
            let disk = CrashDisk::with_files(files.clone());
            disk.crash_after(point);
            assert!(drop_damaged(&disk).is_err());
            let after = disk.survivor(survive);
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
fn a_finished_snapshot_is_durable_and_an_unfinished_one_is_not_there() {
    let disk = CrashDisk::new();
    let log = open(&disk);
    append(&log, 2);
    let mut writer = log.snapshot_writer(2).unwrap();
    for seq in 1..=2 {
        writer.push(&record(seq)).unwrap();
    }
    for survive in ways() {
        assert_eq!(read(&disk.survivor(survive)).unwrap().snapshot_seq, 0);
    }
    writer.finish().unwrap();
    for survive in ways() {
        let contents = read(&disk.survivor(survive)).unwrap();
        assert_eq!((contents.snapshot_seq, contents.check()), (2, 2), "{survive:?}");
    }
}
