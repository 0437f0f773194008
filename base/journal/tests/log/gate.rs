//! Tests of a slow sync: records that arrive meanwhile form one batch, up to a limit.

use crate::common::{read, record};
use fermata_journal::{
    crash::CrashDisk,
    disk::{Disk, ReadFile, WriteFile},
    log::{Content, Log, RECORD_BYTES_MAX, Recovery},
};
use std::{
    io,
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

/// Blocks syncs while it is closed. The state is: whether it is open, and how many syncs wait.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<(bool, usize)>, Condvar)>);

impl Gate {
    fn wait_until_open(&self) {
        let (state, moved) = &*self.0;
        let mut state = state.lock().unwrap();
        state.1 += 1;
        moved.notify_all();
        let mut state = moved.wait_while(state, |state| !state.0).unwrap();
        state.1 -= 1;
    }

    fn set(&self, open: bool) {
        self.0.0.lock().unwrap().0 = open;
        self.0.1.notify_all();
    }

    fn wait_for_blocked_sync(&self) {
        let (state, moved) = &*self.0;
        drop(moved.wait_while(state.lock().unwrap(), |state| state.1 == 0).unwrap());
    }
}

struct GateDisk(CrashDisk, Gate);
struct GateFile(Box<dyn WriteFile>, Gate);

impl GateDisk {
    #[expect(clippy::unnecessary_wraps, reason = "for and_then")]
    fn add_gate(&self, file: Box<dyn WriteFile>) -> io::Result<Box<dyn WriteFile>> {
        Ok(Box::new(GateFile(file, self.1.clone())))
    }
}

impl Disk for GateDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }
    fn create(&self, name: &str) -> io::Result<Box<dyn WriteFile>> {
        self.0.create(name).and_then(|file| self.add_gate(file))
    }
    fn append(&self, name: &str) -> io::Result<Box<dyn WriteFile>> {
        self.0.append(name).and_then(|file| self.add_gate(file))
    }
    fn overwrite(&self, name: &str) -> io::Result<Box<dyn WriteFile>> {
        // Only syncs of batches wait at the gate, not those of the commit point.
        self.0.overwrite(name)
    }
    fn open(&self, name: &str) -> io::Result<Box<dyn ReadFile>> {
        self.0.open(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.link(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }
    fn sync_folder(&self) -> io::Result<()> {
        self.0.sync_folder()
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.0.free_bytes()
    }
}

impl WriteFile for GateFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write(bytes)
    }
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }
    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.truncate(len)
    }
    fn sync(&mut self) -> io::Result<()> {
        self.1.wait_until_open();
        self.0.sync()
    }
}

fn gated_log() -> (CrashDisk, Gate, Log) {
    let (disk, gate) = (CrashDisk::new(), Gate::default());
    gate.set(true);
    let gated = Arc::new(GateDisk(disk.clone(), gate.clone()));
    let log = Log::open(gated, Content::Records, Recovery::Refuse).unwrap().log;
    gate.set(false);
    (disk, gate, log)
}

#[test]
fn records_during_a_sync_form_one_batch_and_wait_for_its_sync() {
    let (disk, gate, log) = gated_log();
    log.append(&record(1)).unwrap();
    gate.wait_for_blocked_sync();
    for seq in 2..=1000 {
        assert_eq!(log.append(&record(seq)).unwrap(), seq);
    }
    assert_eq!(log.durable(), 0);
    gate.set(true);
    log.sync(1000).unwrap();
    assert_eq!((log.stats().records, log.stats().batches), (1000, 2));
    log.close().unwrap();
    assert_eq!(read(&disk).unwrap().check(), 1000);
}

#[test]
fn appending_blocks_when_too_much_is_pending() {
    let (_, gate, log) = gated_log();
    let big = vec![0; RECORD_BYTES_MAX];
    log.append(b"being synced").unwrap();
    gate.wait_for_blocked_sync();
    for _ in 0..3 {
        log.append(&big).unwrap();
    }
    let (done, fourth) = crossbeam::channel::bounded(1);
    thread::scope(|scope| {
        scope.spawn(|| done.send(log.append(&big).unwrap()).unwrap());
        // Four such records and their length fields are just over the limit.
        assert!(fourth.recv_timeout(Duration::from_millis(100)).is_err(), "it waits for space");
        assert_eq!(log.last_seq(), 4);
        gate.set(true);
        assert_eq!(fourth.recv().unwrap(), 5);
    });
    log.sync(5).unwrap();
}

#[test]
fn has_room_for_is_false_when_an_append_would_block() {
    let (_, gate, log) = gated_log();
    log.append(&record(1)).unwrap();
    gate.wait_for_blocked_sync();
    let big = vec![0; RECORD_BYTES_MAX];
    for _ in 0..3 {
        assert!(log.has_room_for(RECORD_BYTES_MAX));
        log.append(&big).unwrap();
    }
    assert!(!log.has_room_for(RECORD_BYTES_MAX), "four such records and their length fields do not fit");
    gate.set(true);
    log.sync(4).unwrap();
    assert!(log.has_room_for(RECORD_BYTES_MAX));
}
