//! The live log: records in, numbers out, durable soon after.
//!
//! Appending copies a record into the pending batch under a mutex; one thread writes and syncs batches (see
//! `writer`). Nothing is to be acknowledged to anybody before [`Log::wait_durable`] has returned.
//!
//! The background snapshot, which never touches the live state:
//! 1. [`Log::rotate`] closes the current segment and gives the last record of it, `upto`;
//! 2. [`Log::replay_closed`]`(upto)` replays the previous snapshot and the closed segments into a second state;
//! 3. [`Log::snapshot_writer`]`(upto)` writes that state; its `finish` makes it durable;
//! 4. [`Log::snapshot_done`]`(upto)` removes what is no longer needed. The last two snapshots stay, and all records
//!    after the older one, so that one damaged snapshot loses nothing.

pub use crate::format::{BATCH_BYTES_MAX, RECORD_BYTES_MAX};
use crate::{
    AppendError, LogError, LogFailed, Seq,
    disk::Disk,
    format::{BATCH_HEADER_BYTES, FileKind},
    repair::repair,
    replay::Replay,
    snapshot::SnapshotWriter,
    survey::Survey,
    writer::{Files, Pending, Progress, Shared, Writer},
};
use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
};
use tokio::sync::watch;

/// What to do about damage when opening. A torn tail (the last batch, whose write was cut short) is not damage, and a
/// damaged snapshot alone loses nothing: both are dealt with and reported, whatever this says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Refuse to open, with the file and the offset.
    Refuse,
    /// Drop everything from the damage on, keep copies of what is dropped, and report it in [`Opened::dropped`].
    DropDamaged,
}

/// A batch that was cut from the end of the newest segment because its write had not been finished. It should not have
/// been acknowledged, but a disk that lost a synced sector leaves the same: the owner treats it as a possible loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// Which file.
    pub file: String,
    /// Where it was cut.
    pub offset: u64,
    /// How much was cut.
    pub bytes: u64,
    /// The file that keeps the bytes that were cut.
    pub saved_as: String,
}

/// A damaged file or part of one that is not used, for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Which file.
    pub file: String,
    /// From which offset on it could not be used; the offset of the damage where a whole file went.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
    /// Records that are known to have been in there; there may have been more.
    pub records_known: u64,
    /// Where the file, as it was, is kept. `None` if there was no such file.
    pub saved_as: Option<String>,
    /// What was wrong.
    pub why: String,
}

/// A log just opened.
pub struct Opened {
    /// Takes records at once; the replay is not disturbed by them.
    pub log: Log,
    /// The snapshot and every record that was there.
    pub replay: Replay,
    /// The torn tail, if there was one.
    pub torn: Option<Torn>,
    /// Damaged snapshots that were renamed; an older one and the records after it replace them. Nothing is lost.
    pub replaced: Vec<Dropped>,
    /// Empty unless [`Recovery::DropDamaged`] found damage.
    pub dropped: Vec<Dropped>,
}

/// Counts since the log was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Records made durable.
    pub records: u64,
    /// Batches, each one write and one sync.
    pub batches: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// The live log. Share it by `Arc`. Dropping it flushes what is pending and ends its thread.
pub struct Log {
    disk: Arc<dyn Disk>,
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    /// Opens the log of a folder, or starts one. Everything that will be replayed is verified first, so that
    /// damage is known before the first record is seen; and made durable, if a crash left it in the page cache.
    pub fn open(disk: Arc<dyn Disk>, recovery: Recovery) -> Result<Opened, LogError> {
        Self::open_noting(disk, recovery, || Ok(()))
    }

    /// The same; `note` runs before anything is cut or dropped, and if it fails nothing is.
    pub fn open_noting(
        disk: Arc<dyn Disk>,
        recovery: Recovery,
        note: impl FnOnce() -> io::Result<()>,
    ) -> Result<Opened, LogError> {
        let mut survey = Survey::take(&*disk, recovery)?;
        if survey.loses_data() {
            note().map_err(LogError::io("note a loss beside", "the journal folder"))?;
        }
        let replayed = survey.sound.iter().map(|segment| segment.first).collect();
        let (base, last) = (survey.base(), survey.last);
        let repaired = repair(&*disk, &mut survey)?;
        let replay = Replay::new(Arc::clone(&disk), base, replayed, last)?;
        let name = repaired.segments.last().map(|segment| FileKind::Segment.name(segment.first));
        let shared = Arc::new(Shared {
            pending: Mutex::new(Pending {
                buffer: vec![0; BATCH_HEADER_BYTES],
                count: 0,
                next: last + 1,
                rotations: Vec::new(),
                closing: false,
                settling: false,
                idle: false,
                failed: None,
            }),
            work: Condvar::new(),
            moved: Condvar::new(),
            durable: AtomicU64::new(last),
            last: AtomicU64::new(last),
            has_failed: AtomicBool::new(false),
            progress: watch::Sender::new(Progress { durable: last, failed: None }),
            files: Mutex::new(Files {
                segments: repaired.segments,
                snapshots: survey.snapshots,
                stats: Stats::default(),
            }),
        });
        let writer = Writer {
            disk: Arc::clone(&disk),
            shared: Arc::clone(&shared),
            file: repaired.file,
            salt: repaired.salt,
            commit: repaired.commit,
            name: name.expect("there is always a segment being written"),
        };
        let writer = thread::Builder::new()
            .name("journal".into())
            .spawn(move || writer.run())
            .map_err(LogError::io("start the thread of", "the journal"))?;
        let log = Self { disk, shared, writer: Mutex::new(Some(writer)) };
        let (torn, replaced, dropped) = (repaired.torn, repaired.replaced, repaired.dropped);
        Ok(Opened { log, replay, torn, replaced, dropped })
    }

    /// Adds a record. The order of calls is the order of numbers. Not durable yet: see [`Self::wait_durable`].
    /// Blocks while [`BATCH_BYTES_MAX`] bytes wait for the disk.
    pub fn append(&self, record: &[u8]) -> Result<Seq, AppendError> {
        self.append_many(&[record])
    }

    /// Adds records with consecutive numbers in one batch: after a crash all are there or none. Returns the last
    /// number; that of the newest record if there are none to add.
    pub fn append_many<R: AsRef<[u8]>>(&self, records: &[R]) -> Result<Seq, AppendError> {
        let mut bytes = 0;
        for record in records {
            let record_bytes = record.as_ref().len();
            bytes += 4 + record_bytes;
            if record_bytes > RECORD_BYTES_MAX {
                return Err(AppendError::TooLarge { bytes: record_bytes, max: RECORD_BYTES_MAX });
            }
        }
        if bytes > BATCH_BYTES_MAX {
            return Err(AppendError::TooLarge { bytes, max: BATCH_BYTES_MAX });
        }
        let mut pending = self.room_for(bytes)?;
        for record in records {
            let record = record.as_ref();
            pending.buffer.extend_from_slice(&(record.len() as u32).to_le_bytes());
            pending.buffer.extend_from_slice(record);
        }
        pending.count += records.len() as u32;
        pending.next += records.len() as u64;
        let last = pending.next - 1;
        self.shared.last.store(last, Ordering::Release);
        self.wake_writer(pending);
        Ok(last)
    }

    fn room_for(&self, bytes: usize) -> Result<MutexGuard<'_, Pending>, LogFailed> {
        let mut pending = self.shared.pending();
        loop {
            pending.check_open()?;
            if pending.buffer.len() - BATCH_HEADER_BYTES + bytes <= BATCH_BYTES_MAX {
                return Ok(pending);
            }
            pending = self.shared.moved.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn wake_writer(&self, pending: MutexGuard<'_, Pending>) {
        let idle = pending.idle;
        drop(pending);
        if idle {
            self.shared.work.notify_one();
        }
    }

    /// Whether a record of up to `bytes` would be taken at once. It stays so until somebody appends.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        let pending = self.shared.pending();
        pending.buffer.len() - BATCH_HEADER_BYTES + 4 + bytes <= BATCH_BYTES_MAX
    }

    /// The number of the newest record, durable or not.
    pub fn last_seq(&self) -> Seq {
        self.shared.last.load(Ordering::Acquire)
    }

    /// Fails if the log has failed, even where all that was taken is durable.
    pub fn check(&self) -> Result<(), LogFailed> {
        if !self.shared.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.shared.pending().failed.clone().map_or(Ok(()), Err)
    }

    /// Everything up to here is durable.
    pub fn durable(&self) -> Seq {
        self.shared.durable.load(Ordering::Acquire)
    }

    /// Returns when everything up to `seq` is durable, or the log has failed before it was.
    pub async fn wait_durable(&self, seq: Seq) -> Result<(), LogFailed> {
        if self.durable() >= seq {
            return Ok(());
        }
        let mut progress = self.shared.progress.subscribe();
        let moved = progress
            .wait_for(|progress| progress.durable >= seq || progress.failed.is_some())
            .await
            .expect("the sender is in `self`");
        match &moved.failed {
            Some(failed) if moved.durable < seq => Err(failed.clone()),
            _ => Ok(()),
        }
    }

    /// The same, blocking the thread.
    pub fn sync(&self, seq: Seq) -> Result<(), LogFailed> {
        if self.durable() >= seq {
            return Ok(());
        }
        let mut pending = self.shared.pending();
        loop {
            if self.durable() >= seq {
                return Ok(());
            }
            if let Some(failed) = &pending.failed {
                return Err(failed.clone());
            }
            pending = self.shared.moved.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns when the log has failed; never otherwise.
    pub async fn failed(&self) -> LogFailed {
        let mut progress = self.shared.progress.subscribe();
        let moved =
            progress.wait_for(|progress| progress.failed.is_some()).await.expect("the sender is in `self`");
        moved.failed.clone().expect("waited for it")
    }

    /// Closes the current segment after everything appended so far and starts the next; blocks until that is
    /// done. Returns the last record of the closed segments. If the current segment is empty, it stays.
    pub fn rotate(&self) -> Result<Seq, LogFailed> {
        let (reply, done) = mpsc::sync_channel(1);
        let mut pending = self.shared.pending();
        pending.check_open()?;
        pending.rotations.push(reply);
        self.wake_writer(pending);
        done.recv().unwrap_or_else(|_| Err(LogFailed { reason: "the journal's writer is gone".into() }))
    }

    /// Bytes of the segments that a restart would read after the newest snapshot.
    pub fn bytes_since_snapshot(&self) -> u64 {
        let files = self.shared.files();
        let base = files.snapshots.last().copied().unwrap_or(0);
        files.segments[files.first_after(base)..].iter().map(|segment| segment.bytes).sum()
    }

    /// Bytes of the newest snapshot; 0 if there is none.
    pub fn snapshot_bytes(&self) -> io::Result<u64> {
        let newest = self.shared.files().snapshots.last().copied();
        newest.map_or(Ok(0), |seq| self.disk.open(&FileKind::Snapshot.name(seq))?.length())
    }

    /// Bytes free where the log is.
    pub fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }

    /// Counts since the log was opened.
    pub fn stats(&self) -> Stats {
        self.shared.files().stats
    }

    /// Reads the newest snapshot and the closed segments up to `upto` (from [`Self::rotate`]), while the log
    /// lives on.
    pub fn replay_closed(&self, upto: Seq) -> Result<Replay, LogError> {
        assert!(upto <= self.durable(), "only what is durable can be replayed");
        let files = self.shared.files();
        let base = files.snapshots.iter().copied().rfind(|seq| *seq <= upto).unwrap_or(0);
        let segments = &files.segments[files.first_after(base)..];
        let segments = segments.iter().map(|segment| segment.first).filter(|first| *first <= upto);
        Replay::new(Arc::clone(&self.disk), base, segments.collect(), upto)
    }

    /// Starts a snapshot of the state after record `seq` (from [`Self::rotate`]).
    pub fn snapshot_writer(&self, seq: Seq) -> Result<SnapshotWriter, LogError> {
        assert!(0 < seq && seq <= self.durable(), "a snapshot of what is durable");
        SnapshotWriter::start(Arc::clone(&self.disk), seq)
    }

    /// Tells the log that the snapshot at `seq` is finished. Removes all snapshots but the last two, and the
    /// segments that end before the older of them.
    pub fn snapshot_done(&self, seq: Seq) -> Result<(), LogError> {
        let name = FileKind::Snapshot.name(seq);
        self.disk.open(&name).map_err(LogError::io("find the finished snapshot", &name))?;
        let mut snapshots = self.shared.files().snapshots.clone();
        snapshots.push(seq);
        snapshots.sort_unstable();
        snapshots.dedup();
        let saved = snapshots.split_off(snapshots.len().saturating_sub(2));
        let older = if saved.len() == 2 { saved[0] } else { 0 };
        self.shared.files().snapshots = saved;
        self.remove(FileKind::Snapshot, &snapshots)?;
        // Removed in this order, and durably: a snapshot without the records after it must not be left.
        let removed: Vec<_> = {
            let mut files = self.shared.files();
            let end = files.first_after(older);
            files.segments.drain(..end).map(|segment| segment.first).collect()
        };
        self.remove(FileKind::Segment, &removed)
    }

    fn remove(&self, kind: FileKind, seqs: &[Seq]) -> Result<(), LogError> {
        for seq in seqs {
            let name = kind.name(*seq);
            self.disk.remove(&name).map_err(LogError::io("remove", &name))?;
        }
        if seqs.is_empty() {
            return Ok(());
        }
        self.disk.sync_folder().map_err(LogError::io("sync", "the journal folder"))
    }

    /// Has the commit point synced, if it is not, without waiting for it: to be called now and then, so that also after
    /// a power loss little of the log is not covered by it.
    pub fn settle(&self) {
        let mut pending = self.shared.pending();
        pending.settling = true;
        self.wake_writer(pending);
    }

    /// Flushes, seals and ends the log; takes no more records. Dropping it does the same, but does not report failure.
    pub fn close(&self) -> Result<(), LogFailed> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            self.shared.pending().closing = true;
            self.shared.work.notify_one();
            // A panic of the writer has been turned into a failure by itself.
            let _panicked = writer.join();
        }
        self.shared.pending().failed.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // The writer has logged a failure.
        let _failed = self.close();
    }
}

impl Files {
    /// Index of the first segment that holds, or will hold, a record after `seq`.
    fn first_after(&self, seq: Seq) -> usize {
        self.segments.partition_point(|segment| segment.first <= seq + 1).saturating_sub(1)
    }
}
