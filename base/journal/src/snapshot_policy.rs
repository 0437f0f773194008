//! Decides when snapshots are made: after a number of bytes of records, one at a time, and only if
//! enough disk space remains for the journal.

use crate::Log;
use std::{
    io, thread,
    time::{Duration, Instant},
};

/// Free space that a snapshot needs, relative to the size of its sources. The result may be larger
/// than these.
const SPACE_FACTOR: f64 = 1.5;
/// Interval of syncs of the commit point. The next batch waits for the sync.
const SYNC_INTERVAL: Duration = Duration::from_secs(3);

/// Makes snapshots of one journal.
pub struct SnapshotPolicy {
    every_bytes: u64,
    reserve: u64,
    /// Bytes since the last snapshot at which the next is due. After a failure it is increased by
    /// the same amount, so that attempts are not repeated at once.
    due: u64,
    /// Whether the lack of disk space was logged.
    warned: bool,
    /// The running snapshot thread; returns whether it succeeded.
    making: Option<thread::JoinHandle<bool>>,
    /// When the commit point was last synced, and the interval.
    synced_at: Instant,
    sync_every: Duration,
}

impl SnapshotPolicy {
    /// A snapshot every `every_bytes` of records; each leaves at least `reserve` bytes on the disk.
    pub fn new(every_bytes: u64, reserve: u64) -> Self {
        Self {
            every_bytes,
            reserve,
            due: every_bytes,
            warned: false,
            making: None,
            synced_at: Instant::now(),
            sync_every: SYNC_INTERVAL,
        }
    }

    /// Runs `make` in a separate thread if a snapshot is due. Also syncs the commit point every few
    /// seconds. To be called at least that often.
    pub fn check<E: std::fmt::Display>(
        &mut self,
        log: &Log,
        make: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) {
        if self.synced_at.elapsed() >= self.sync_every {
            log.settle();
            self.synced_at = Instant::now();
        }
        let grown = log.bytes_since_snapshot();
        if let Some(made) = self.making.take_if(|making| making.is_finished())
            && made.join().unwrap_or(false)
        {
            self.due = self.every_bytes;
        }
        if self.making.is_none() && grown > self.due && self.has_room(log) {
            self.due = grown + self.every_bytes;
            let made = thread::Builder::new().name("snapshot".into()).spawn(move || {
                let made = make();
                if let Err(error) = &made {
                    tracing::error!(%error, "the snapshot failed: the journal keeps growing");
                }
                made.is_ok()
            });
            match made {
                Ok(making) => self.making = Some(making),
                Err(error) => tracing::error!(%error, "the snapshot failed: cannot start a thread"),
            }
        }
    }

    fn has_room(&mut self, log: &Log) -> bool {
        let shortage = match space(log, self.reserve) {
            Ok(Ok(())) => None,
            Ok(Err((needed, free))) => Some(format!("it needs {needed} bytes and {free} are free")),
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = &shortage
            && !self.warned
        {
            tracing::warn!(why, "not enough disk space for a snapshot: the journal keeps growing");
        }
        self.warned = shortage.is_some();
        shortage.is_none()
    }
}

/// Checks that a snapshot would leave at least `reserve` bytes on the disk of the log. Otherwise
/// returns the needed and the free bytes.
fn space(log: &Log, reserve: u64) -> io::Result<Result<(), (u64, u64)>> {
    let from = log.snapshot_bytes()? + log.bytes_since_snapshot();
    let needed = ((from as f64 * SPACE_FACTOR) as u64).saturating_add(reserve);
    let free = log.free_bytes()?;
    Ok(if free >= needed { Ok(()) } else { Err((needed, free)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Recovery,
        crash::CrashDisk,
        disk::{Disk, RealDisk},
    };
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    struct Bench {
        log: Log,
        made: Arc<AtomicU32>,
        _folder: Option<tempfile::TempDir>,
    }

    impl Bench {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let disk = Arc::new(RealDisk::open(folder.path()).unwrap());
            Self { _folder: Some(folder), ..Self::on(disk) }
        }

        fn on(disk: Arc<dyn Disk>) -> Self {
            let log = Log::open(disk, Recovery::Refuse).unwrap().log;
            Self { log, made: Arc::default(), _folder: None }
        }

        fn grow(&self, bytes: usize) {
            let seq = self.log.append(&vec![7; bytes]).unwrap();
            self.log.sync(seq).unwrap();
        }

        /// Returns the number of attempts after this check. Every attempt fails.
        fn check(&self, snapshots: &mut SnapshotPolicy) -> u32 {
            self.check_with(snapshots, Err("on purpose"))
        }

        fn check_with(&self, snapshots: &mut SnapshotPolicy, result: Result<(), &'static str>) -> u32 {
            let made = self.made.clone();
            snapshots.check(&self.log, move || {
                made.fetch_add(1, Ordering::Relaxed);
                result
            });
            while snapshots.making.as_ref().is_some_and(|making| !making.is_finished()) {
                thread::yield_now();
            }
            self.made.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_failed_snapshot_is_tried_again_after_as_many_bytes() {
        let bench = Bench::new();
        let mut snapshots = SnapshotPolicy::new(1000, 0);
        assert_eq!(bench.check(&mut snapshots), 0);
        bench.grow(1100);
        assert_eq!(bench.check(&mut snapshots), 1);
        assert_eq!(bench.check(&mut snapshots), 1, "not at once");
        bench.grow(1100);
        assert_eq!(bench.check(&mut snapshots), 2);
    }

    #[test]
    fn after_a_snapshot_the_next_is_due_after_as_many_bytes_as_ever() {
        let bench = Bench::new();
        let mut snapshots = SnapshotPolicy::new(1000, 0);
        bench.grow(1100);
        // As if records had arrived during the snapshot: the log does not become shorter.
        assert_eq!(bench.check_with(&mut snapshots, Ok(())), 1);
        assert_eq!(bench.check_with(&mut snapshots, Ok(())), 2, "at once");
    }

    #[test]
    fn commit_point_is_synced_periodically() {
        let disk = CrashDisk::new();
        let bench = Bench::on(Arc::new(disk.clone()));
        let mut snapshots = SnapshotPolicy::new(1 << 30, 0);
        snapshots.sync_every = Duration::from_hours(1);
        let before = disk.counts().syncs;
        for _ in 0..20 {
            bench.grow(10);
            bench.check(&mut snapshots);
        }
        // When this returns, the writer has completed all earlier requests.
        bench.log.rotate().unwrap();
        let rotated = disk.counts().syncs;
        assert!(rotated - before <= 20 + 3, "one for each batch, and those of the rotation");
        bench.grow(10);
        snapshots.sync_every = Duration::ZERO;
        bench.check(&mut snapshots);
        while disk.counts().syncs < rotated + 2 {
            thread::yield_now();
        }
    }

    #[test]
    fn snapshot_respects_the_disk_reserve() {
        let bench = Bench::new();
        bench.grow(1100);
        let free = bench.log.free_bytes().unwrap();
        let mut tight = SnapshotPolicy::new(1000, free.saturating_mul(2));
        assert_eq!(bench.check(&mut tight), 0);
        assert!(tight.warned);
        tight.reserve = 0;
        assert_eq!(bench.check(&mut tight), 1, "made as soon as there is room");
        assert!(!tight.warned);
    }
}
