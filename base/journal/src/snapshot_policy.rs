//! Decides when snapshots are made: after a number of bytes of records, one at a time, and only if
//! enough disk space remains for the journal.

use crate::Log;
use std::{
    io, thread,
    time::{Duration, Instant},
};

/// Free space required for a snapshot, relative to the bytes of the previous snapshot and the
/// segments after it. The new snapshot may be larger than these.
const SPACE_FACTOR: f64 = 1.5;
/// Interval at which the commit point is synced. Not shorter, because batches wait for such a sync.
const SYNC_INTERVAL: Duration = Duration::from_secs(3);

/// Makes snapshots of one journal, and a new one when one was dropped because it is damaged.
pub struct SnapshotPolicy {
    /// Bytes of records after which a snapshot is made.
    every_bytes: u64,
    /// Bytes that must stay free on the disk.
    reserve_bytes: u64,
    /// The next snapshot is made when the log has grown by this many bytes since the last one. A
    /// failed snapshot adds `every_bytes`, so that it is not repeated at once.
    due_bytes: u64,
    /// Whether the lack of disk space was logged.
    shortage_logged: bool,
    /// The running snapshot thread; returns whether it succeeded.
    snapshot_thread: Option<thread::JoinHandle<bool>>,
    /// When the commit point was last synced.
    synced_at: Instant,
    /// Interval at which the commit point is synced.
    sync_every: Duration,
}

impl SnapshotPolicy {
    /// Makes a snapshot after every `every_bytes` of records, if at least `reserve` bytes of the
    /// disk stay free.
    pub fn new(every_bytes: u64, reserve: u64) -> Self {
        Self {
            every_bytes,
            reserve_bytes: reserve,
            due_bytes: every_bytes,
            shortage_logged: false,
            snapshot_thread: None,
            synced_at: Instant::now(),
            sync_every: SYNC_INTERVAL,
        }
    }

    /// Runs `make` in a separate thread if a snapshot is due. Also syncs the commit point if the
    /// last sync is a few seconds ago, so call this at least that often.
    pub fn check<E: std::fmt::Display>(
        &mut self,
        log: &Log,
        make: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) {
        if self.synced_at.elapsed() >= self.sync_every {
            log.request_commit_sync();
            self.synced_at = Instant::now();
        }
        let grown = log.bytes_since_snapshot();
        if let Some(made) = self.snapshot_thread.take_if(|making| making.is_finished())
            && made.join().unwrap_or(false)
        {
            self.due_bytes = self.every_bytes;
        }
        let is_due = || grown > self.due_bytes || log.take_needs_snapshot();
        if self.snapshot_thread.is_none() && is_due() && self.has_room(log) {
            self.due_bytes = grown + self.every_bytes;
            let made = thread::Builder::new().name("snapshot".into()).spawn(move || {
                let made = make();
                if let Err(error) = &made {
                    tracing::error!(%error, "the snapshot failed: the journal keeps growing");
                }
                made.is_ok()
            });
            match made {
                Ok(making) => self.snapshot_thread = Some(making),
                Err(error) => tracing::error!(%error, "the snapshot failed: cannot start a thread"),
            }
        }
    }

    fn has_room(&mut self, log: &Log) -> bool {
        let shortage = shortage(log, self.reserve_bytes);
        if let Some(why) = &shortage
            && !self.shortage_logged
        {
            tracing::warn!(why, "not enough disk space for a snapshot: the journal keeps growing");
        }
        self.shortage_logged = shortage.is_some();
        shortage.is_none()
    }
}

/// Returns why there is too little space for a snapshot; `None` if there is enough.
pub fn shortage(log: &Log, reserve: u64) -> Option<String> {
    match check_space(log, reserve) {
        Ok(Ok(())) => None,
        Ok(Err((needed, free))) => Some(format!("it needs {needed} bytes and {free} are free")),
        Err(error) => Some(error.to_string()),
    }
}

/// Checks that a snapshot would leave at least `reserve` bytes free on the disk of the log. If not,
/// the inner error contains the needed and the free bytes.
fn check_space(log: &Log, reserve: u64) -> io::Result<Result<(), (u64, u64)>> {
    let from = log.snapshot_bytes()? + log.bytes_since_snapshot();
    let needed = ((from as f64 * SPACE_FACTOR) as u64).saturating_add(reserve);
    let free = log.free_bytes()?;
    Ok(if free >= needed { Ok(()) } else { Err((needed, free)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Content, Recovery,
        crash::CrashDisk,
        disk::{Disk, RealDisk},
    };
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    struct TestLog {
        log: Log,
        attempts: Arc<AtomicU32>,
        _folder: Option<tempfile::TempDir>,
    }

    impl TestLog {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let disk = Arc::new(RealDisk::open(folder.path()).unwrap());
            Self { _folder: Some(folder), ..Self::on(disk) }
        }

        fn on(disk: Arc<dyn Disk>) -> Self {
            let log = Log::open(disk, Content::Records, Recovery::Refuse).unwrap().log;
            Self { log, attempts: Arc::default(), _folder: None }
        }

        fn grow(&self, bytes: usize) {
            let seq = self.log.append(&vec![7; bytes]).unwrap();
            self.log.sync(seq).unwrap();
        }

        /// Lets the policy check the log, with snapshots that fail. Returns how many have been
        /// tried.
        fn check(&self, snapshots: &mut SnapshotPolicy) -> u32 {
            self.check_with(snapshots, Err("on purpose"))
        }

        fn check_with(&self, snapshots: &mut SnapshotPolicy, result: Result<(), &'static str>) -> u32 {
            let made = self.attempts.clone();
            snapshots.check(&self.log, move || {
                made.fetch_add(1, Ordering::Relaxed);
                result
            });
            while snapshots.snapshot_thread.as_ref().is_some_and(|making| !making.is_finished()) {
                thread::yield_now();
            }
            self.attempts.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_failed_snapshot_is_retried_after_another_interval_of_bytes() {
        let test_log = TestLog::new();
        let mut snapshots = SnapshotPolicy::new(1000, 0);
        assert_eq!(test_log.check(&mut snapshots), 0);
        test_log.grow(1100);
        assert_eq!(test_log.check(&mut snapshots), 1);
        assert_eq!(test_log.check(&mut snapshots), 1, "not at once");
        test_log.grow(1100);
        assert_eq!(test_log.check(&mut snapshots), 2);
    }

    #[test]
    fn a_successful_snapshot_resets_the_interval() {
        let test_log = TestLog::new();
        let mut snapshots = SnapshotPolicy::new(1000, 0);
        test_log.grow(1100);
        // The test makes no real snapshot, so the log does not become shorter. The same happens if
        // many records arrive during a snapshot.
        assert_eq!(test_log.check_with(&mut snapshots, Ok(())), 1);
        assert_eq!(test_log.check_with(&mut snapshots, Ok(())), 2, "at once");
    }

    #[test]
    fn commit_point_is_synced_periodically() {
        let disk = CrashDisk::new();
        let test_log = TestLog::on(Arc::new(disk.clone()));
        let mut snapshots = SnapshotPolicy::new(1 << 30, 0);
        snapshots.sync_every = Duration::from_hours(1);
        let before = disk.counts().syncs;
        for _ in 0..20 {
            test_log.grow(10);
            test_log.check(&mut snapshots);
        }
        // When `rotate` returns, the writer has completed all earlier requests.
        test_log.log.rotate().unwrap();
        let rotated = disk.counts().syncs;
        assert!(rotated - before <= 20 + 3, "one sync for each batch, and those of the rotation");
        test_log.grow(10);
        snapshots.sync_every = Duration::ZERO;
        test_log.check(&mut snapshots);
        while disk.counts().syncs < rotated + 2 {
            thread::yield_now();
        }
    }

    #[test]
    fn snapshot_respects_the_disk_reserve() {
        let test_log = TestLog::new();
        test_log.grow(1100);
        let free = test_log.log.free_bytes().unwrap();
        let mut tight = SnapshotPolicy::new(1000, free.saturating_mul(2));
        assert_eq!(test_log.check(&mut tight), 0);
        assert!(tight.shortage_logged);
        tight.reserve_bytes = 0;
        assert_eq!(test_log.check(&mut tight), 1, "made as soon as there is room");
        assert!(!tight.shortage_logged);
    }
}
