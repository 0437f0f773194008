//! Tests of what a member of a group of masters does with its log: it removes entries that its
//! leader does not have, gets snapshots that are newer than its log, and reads old entries.

use crate::common::{Records, read_replay};
use fermata_journal::{
    AppendError, Item, LogError,
    crash::{CrashDisk, Survive},
    log::{Content, Log, Recovery},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Barrier, Mutex, mpsc},
    thread,
};

const SEEDS: u64 = 20;

fn open(disk: &CrashDisk) -> Result<Log, LogError> {
    Log::open(Arc::new(disk.clone()), Content::Entries, Recovery::Refuse).map(|opened| opened.log)
}

/// Returns the last record of the snapshot, and the records after it.
fn contents(disk: &CrashDisk) -> Result<(u64, Records), LogError> {
    let mut opened = Log::open(Arc::new(disk.clone()), Content::Entries, Recovery::Refuse)?;
    Ok((opened.replay.snapshot_seq(), read_replay(&mut opened.replay)?.1))
}

/// A member: its log, and what the log must contain.
struct Member {
    log: Log,
    /// All records with their values. A value is never used twice, so that a record that was
    /// removed can be distinguished from the record that has its number now.
    records: BTreeMap<u64, Vec<u8>>,
    /// Records that may be there after a crash although they were removed.
    removed: BTreeMap<u64, Vec<u8>>,
    durable: u64,
    snapshot: u64,
    values: u64,
}

impl Member {
    fn new(log: Log) -> Self {
        let (records, removed) = (BTreeMap::new(), BTreeMap::new());
        Self { log, records, removed, durable: 0, snapshot: 0, values: 0 }
    }

    /// Appends records in one batch.
    fn append(&mut self, count: u64) -> Result<(), LogError> {
        let first = self.log.last_seq() + 1;
        let mut batch = Vec::new();
        for seq in first..first + count {
            self.values += 1;
            let mut value = self.values.to_le_bytes().to_vec();
            value.resize(8 + (self.values % 70) as usize, 7);
            batch.push(value.clone());
            self.records.insert(seq, value);
        }
        let (done, durable) = mpsc::channel();
        let when_durable = move |result| done.send(result).expect("the test waits for it");
        self.log.append_then(&batch, when_durable).map_err(|error| match error {
            AppendError::Failed(failed) => LogError::from(failed),
            error @ AppendError::TooLarge { .. } => panic!("{error}"),
        })?;
        durable.recv().expect("it is called in any case")?;
        self.durable = first + count - 1;
        // They have replaced records that were removed.
        self.removed.clear();
        Ok(())
    }

    fn truncate_after(&mut self, last: u64) -> Result<(), LogError> {
        self.removed = self.records.split_off(&(last + 1));
        self.durable = last;
        self.log.truncate_after(last)?;
        assert_eq!((self.log.last_seq(), self.log.durable()), (last, last));
        Ok(())
    }

    /// Gets a snapshot of the leader that includes record `seq`.
    fn install(&mut self, seq: u64) -> Result<(), LogError> {
        let mut writer = self.log.snapshot_writer(seq)?;
        writer.push(&seq.to_le_bytes())?;
        writer.finish()?;
        (self.snapshot, self.records) = (seq, BTreeMap::new());
        self.log.skip_to(seq)?;
        self.log.snapshot_done(seq)?;
        self.durable = seq;
        Ok(())
    }

    fn script(&mut self) -> Result<(), LogError> {
        self.append(3)?;
        self.truncate_after(1)?; // within a batch
        self.append(1)?;
        self.append(2)?;
        self.truncate_after(2)?; // between batches
        self.append(4)?;
        self.log.rotate()?;
        self.append(2)?;
        self.log.rotate()?;
        self.append(1)?;
        self.truncate_after(4)?; // two segments and a part of a batch
        self.append(2)?;
        self.log.rotate()?;
        self.truncate_after(6)?; // nothing
        self.append(2)?;
        self.truncate_after(6)?; // all records of a segment
        self.append(1)?;
        self.install(20)?;
        self.append(3)?;
        self.truncate_after(20)?;
        self.append(2)?;
        self.install(30)?;
        self.append(1)
    }

    /// Checks a disk after a crash. Returns the last record.
    fn check(&self, disk: &CrashDisk, context: &str) -> u64 {
        let (snapshot, records) = contents(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(snapshot >= self.snapshot, "{context}: the snapshot at {} is lost", self.snapshot);
        let last = records.last().map_or(snapshot, |(seq, _)| *seq);
        assert!(last >= self.durable, "{context}: {} is durable, {last} is the last", self.durable);
        if snapshot == self.snapshot {
            for (seq, value) in &records {
                let expected = [self.records.get(seq), self.removed.get(seq)];
                assert!(expected.contains(&Some(value)), "{context}: record {seq} is {value:?}");
            }
            // No record that was removed is there without all others before it.
            let is_removed = |(seq, value): &&(u64, Vec<u8>)| self.removed.get(seq) == Some(value);
            let first_removed = records.iter().find(is_removed).map(|(seq, _)| *seq);
            assert!(first_removed.is_none_or(|seq| Some(&seq) == self.removed.keys().next()), "{context}");
        }
        last
    }
}

#[test]
fn a_crash_while_entries_are_removed_or_skipped_leaves_a_valid_log() {
    let disk = CrashDisk::new();
    let mut member = Member::new(open(&disk).unwrap());
    let start = disk.operations();
    member.script().unwrap();
    let operations = disk.operations() - start;
    let last = member.check(&disk.after_crash(Survive::Everything), "complete");
    assert_eq!(last, 31);
    let (mut kept, mut cut) = (0, 0);
    for point in 0..operations {
        let disk = CrashDisk::new();
        let mut member = Member::new(open(&disk).unwrap());
        disk.crash_after(point);
        assert!(member.script().is_err() && disk.crashed(), "crash at {point}");
        let cases = [Survive::Everything, Survive::SyncedOnly].into_iter();
        for survive in cases.chain((0..SEEDS).map(Survive::Seeded)) {
            let context = format!("crash at {point}, {survive:?}");
            let after = disk.after_crash(survive);
            let last = member.check(&after, &context);
            kept += u64::from(last > member.durable);
            cut += u64::from(last == member.durable);
            // What was read is durable, and more can be appended.
            let log = open(&after).unwrap();
            log.sync(log.append(b"more").unwrap()).unwrap();
            drop(log);
            let again = contents(&after.after_crash(Survive::SyncedOnly));
            let (_, records) = again.unwrap_or_else(|error| panic!("{context}, again: {error}"));
            assert_eq!(records.last().map(|(seq, bytes)| (*seq, &bytes[..])), Some((last + 1, &b"more"[..])));
        }
    }
    assert!(kept > 0 && cut > 0, "both cases occur: {kept}, {cut}");
}

#[test]
fn records_are_read_while_the_log_is_in_use() {
    let disk = CrashDisk::new();
    let mut member = Member::new(open(&disk).unwrap());
    for _ in 0..3 {
        member.append(2).unwrap();
        member.append(3).unwrap();
        member.log.rotate().unwrap();
    }
    member.append(1).unwrap();
    for from in 1..=16 {
        for upto in from - 1..=16 {
            let records = read_replay(&mut member.log.read(from, upto)).unwrap().1;
            let expected = member.records.iter().filter(|(seq, _)| (from..=upto).contains(*seq));
            let expected: Records = expected.map(|(seq, value)| (*seq, value.clone())).collect();
            assert_eq!(records, expected, "{from} to {upto}");
        }
    }
}

#[test]
fn a_log_of_entries_may_begin_with_records_and_not_the_reverse() {
    let disk = CrashDisk::new();
    let single = |disk: &CrashDisk| Log::open(Arc::new(disk.clone()), Content::Records, Recovery::Refuse);
    let log = single(&disk).unwrap().log;
    log.append(b"record").unwrap();
    log.close().unwrap();
    let log = open(&disk).unwrap();
    log.append(b"entry").unwrap();
    log.close().unwrap();
    let mut opened = Log::open(Arc::new(disk.clone()), Content::Entries, Recovery::Refuse).unwrap();
    assert_eq!(opened.replay.next().unwrap(), Some(Item::Record { seq: 1, bytes: b"record" }));
    assert_eq!(opened.replay.next().unwrap(), Some(Item::Entry { seq: 2, bytes: b"entry" }));
    assert_eq!(opened.replay.next().unwrap(), None);
    drop(opened);
    for recovery in [Recovery::Refuse, Recovery::DropDamaged] {
        let before = disk.files();
        let refused = Log::open(Arc::new(disk.clone()), Content::Records, recovery).err().unwrap();
        assert!(matches!(refused, LogError::OfGroup { .. }), "{refused}");
        assert_eq!(disk.files(), before, "nothing is changed");
    }
}

#[test]
fn a_group_does_not_hide_lost_records_behind_a_snapshot() {
    let disk = CrashDisk::new();
    let mut member = Member::new(open(&disk).unwrap());
    member.append(2).unwrap();
    member.install(10).unwrap();
    member.append(2).unwrap();
    member.log.close().unwrap();
    let files = disk.files().into_iter().filter(|(name, _)| !name.starts_with("edits-")).collect::<Vec<_>>();
    let refused = open(&CrashDisk::with_files(files)).err().unwrap();
    assert!(refused.is_damage(), "{refused}");
}

#[test]
fn functions_are_called_in_order_and_also_when_the_log_fails() {
    let disk = CrashDisk::new();
    let log = open(&disk).unwrap();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let append = |number: u64, records: &[&[u8]]| {
        let calls = Arc::clone(&calls);
        log.append_then(records, move |result| calls.lock().unwrap().push((number, result.is_ok())))
    };
    append(1, &[b"a", b"b"]).unwrap();
    append(2, &[]).unwrap();
    append(3, &[b"c"]).unwrap();
    log.rotate().unwrap();
    assert_eq!(*calls.lock().unwrap(), [(1, true), (2, true), (3, true)]);
    disk.crash_after(0);
    append(4, &[b"d"]).unwrap();
    assert!(log.rotate().is_err());
    assert!(append(5, &[b"e"]).is_err());
    assert_eq!(calls.lock().unwrap()[3..], [(4, false)]);
    assert!(log.truncate_after(1).is_err() && log.skip_to(9).is_err());
}

/// The member makes a snapshot while it receives one of its leader.
#[test]
fn two_snapshots_that_are_registered_together_are_both_known() {
    const ROUNDS: u64 = 2000;
    let log = &open(&CrashDisk::new()).unwrap();
    let barrier = &Barrier::new(2);
    for round in 1..=ROUNDS {
        let seqs = [2 * round - 1, 2 * round];
        for seq in seqs {
            log.snapshot_writer(seq).unwrap().finish().unwrap();
        }
        thread::scope(|scope| {
            for seq in seqs {
                scope.spawn(move || {
                    barrier.wait();
                    log.keep_snapshot(seq).unwrap();
                });
            }
        });
        assert_eq!(log.newest_snapshot().unwrap().map(|newest| newest.seq), Some(seqs[1]));
    }
}
