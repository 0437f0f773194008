//! The running log: assigns sequence numbers to records and makes them durable.
//!
//! Appending copies a record into the pending batch under a mutex. One thread writes and syncs
//! batches (see `writer`). A record must not be acknowledged before [`Log::wait_durable`] has
//! returned.
//!
//! A snapshot is made in the background, from the files and not from the live state:
//! 1. [`Log::rotate`] closes the current segment and returns its last record, `upto`;
//! 2. [`Log::replay_closed`]`(upto)` replays the previous snapshot and the closed segments into a
//!    second state;
//! 3. [`Log::snapshot_writer`]`(upto)` writes that state; its `finish` makes it durable;
//! 4. [`Log::snapshot_done`]`(upto)` removes files that are no longer needed. The last two
//!    snapshots are kept, and all records after the older one, so that one damaged snapshot loses
//!    nothing.

use crate::{
    AppendError, LogError, LogFailed, Seq,
    disk::Disk,
    executor::Executor,
    format::{BATCH_HEADER_BYTES, FILE_HEADER_BYTES, FileHeader, FileKind, Name},
    repair::{rename_damaged, repair},
    replay::Replay,
    segment::push_record,
    snapshot::{SnapshotFile, SnapshotReader, SnapshotReceiver, SnapshotWriter},
    source::Source,
    survey::{End, Survey},
    writer::{Change, Files, Pending, Progress, Request, Shared, SteppedWriter, WhenDurable, Writer},
};
pub use crate::{
    format::{BATCH_BYTES_MAX, Content, RECORD_BYTES_MAX},
    repair::{Dropped, Torn, rename_all},
    survey::Recovery,
    writer::Stats,
};
use crossbeam::channel::bounded;
use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};
use tokio::sync::watch;

/// A log that was just opened.
pub struct Opened {
    /// The log. It accepts new records immediately; these do not become part of `replay`.
    pub log: Log,
    /// Reads the snapshot and all records after it.
    pub replay: Replay,
    /// The torn tail, if there was one.
    pub torn: Option<Torn>,
    /// Damaged snapshots that were renamed. An older snapshot and the records after it replace
    /// them, so nothing is lost.
    pub replaced: Vec<Dropped>,
    /// Damaged parts that were dropped; empty unless [`Recovery::DropDamaged`] found damage.
    pub dropped: Vec<Dropped>,
}

/// The running log, to be shared by `Arc`. Dropping it flushes pending records and ends its thread.
pub struct Log {
    disk: Arc<dyn Disk>,
    content: Content,
    shared: Arc<Shared>,
    writer: WriterHandle,
    snapshots: Mutex<()>,
    /// Whether a damaged snapshot was dropped, which another one is to replace.
    needs_snapshot: AtomicBool,
}

/// A log that is not in use, and is read without a change of its files.
pub struct Examined {
    /// Reads the snapshot and all records after it.
    pub replay: Replay,
    /// The last record that can be read.
    pub last_seq: Seq,
    /// Number of bytes of an unfinished write at the end, which are not read.
    pub torn: Option<u64>,
    /// Why nothing after [`Self::last_seq`] can be read, although there may be more.
    pub damage: Option<String>,
}

/// Reads a log of entries or of records that no process has opened. With [`Recovery::DropDamaged`],
/// damage is no error.
pub fn examine(disk: Arc<dyn Disk>, recovery: Recovery) -> Result<Examined, LogError> {
    let survey = Survey::take(&*disk, recovery, Content::Entries)?;
    let (torn, damage) = match &survey.end {
        End::Complete => (None, None),
        End::Torn { bytes } => (Some(*bytes), None),
        End::Damage(damage) => (None, Some(damage.error.to_string())),
    };
    let damage = damage.or_else(|| survey.commit_lost.as_ref().map(ToString::to_string));
    let segments = survey.valid_segments.iter().map(|segment| segment.first).collect();
    let last_seq = survey.last_seq;
    let replay = Replay::new(disk, survey.base(), segments, last_seq)?;
    Ok(Examined { replay, last_seq, torn, damage })
}

/// Returns whether a log is that of a group of masters: whether a file says so whose header is valid.
pub fn is_of_group(disk: &dyn Disk) -> Result<bool, LogError> {
    for name in disk.list().map_err(LogError::io("list", "the journal folder"))? {
        let Name::File(kind, seq) = Name::parse(&name) else { continue };
        let mut source = Source::open(disk, name.clone())?;
        let header =
            source.read(0, FILE_HEADER_BYTES).and_then(|head| FileHeader::parse(&name, kind, seq, head));
        match header {
            Ok(header) if header.content == Content::Entries => return Ok(true),
            Err(error) if !error.is_damage() => return Err(error),
            _ => {}
        }
    }
    Ok(false)
}

enum WriterHandle {
    Thread(Mutex<Option<JoinHandle<()>>>),
    /// On a simulated disk.
    Stepped(Arc<SteppedWriter>),
}

impl Log {
    /// Opens the log on `disk`, or creates it. Everything that will be replayed is verified first,
    /// so that damage is known before the first record is read. It is also synced, because after a
    /// crash it may be only in the page cache.
    ///
    /// A log of records must not contain entries of a group. A log of entries may begin with
    /// records.
    pub fn open(disk: Arc<dyn Disk>, content: Content, recovery: Recovery) -> Result<Opened, LogError> {
        Self::open_with_loss_hook(disk, content, recovery, || Ok(()))
    }

    /// Like [`Self::open`], but calls `before_loss` before anything is cut or dropped. If that call
    /// fails, nothing is changed and its error is returned.
    pub fn open_with_loss_hook(
        disk: Arc<dyn Disk>,
        content: Content,
        recovery: Recovery,
        before_loss: impl FnOnce() -> io::Result<()>,
    ) -> Result<Opened, LogError> {
        let mut survey = Survey::take(&*disk, recovery, content)?;
        if survey.loses_data() {
            before_loss().map_err(LogError::io("record a loss next to", "the journal folder"))?;
        }
        let replayed = survey.valid_segments.iter().map(|segment| segment.first).collect();
        let (base, last) = (survey.base(), survey.last_seq);
        let repaired = repair(&*disk, &mut survey)?;
        let replay = Replay::new(Arc::clone(&disk), base, replayed, last)?;
        let shared = Arc::new(Shared {
            pending: Mutex::new(Pending {
                buffer: vec![0; BATCH_HEADER_BYTES],
                count: 0,
                next_seq: last + 1,
                when_durable: Vec::new(),
                requests: Vec::new(),
                seq_changes: false,
                closing: false,
                sync_commit: false,
                failed: None,
            }),
            work: bounded(1),
            progressed: Condvar::new(),
            durable: AtomicU64::new(last),
            last_seq: AtomicU64::new(last),
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
            segment: repaired.segment,
            content,
            commit: repaired.commit,
            spare: vec![0; BATCH_HEADER_BYTES],
        };
        let writer = match disk.executor() {
            Executor::Threads => {
                let thread = thread::Builder::new().name("journal".into()).spawn(move || writer.run());
                let thread = thread.map_err(LogError::io("start the thread of", "the journal"))?;
                WriterHandle::Thread(Mutex::new(Some(thread)))
            }
            Executor::Simulated(delay) => WriterHandle::Stepped(SteppedWriter::new(writer, delay)),
        };
        let (snapshots, needs_snapshot) = (Mutex::default(), AtomicBool::new(false));
        let log = Self { disk, content, shared, writer, snapshots, needs_snapshot };
        let (torn, replaced, dropped) = (repaired.torn, repaired.replaced, repaired.dropped);
        Ok(Opened { log, replay, torn, replaced, dropped })
    }

    /// Appends a record and returns its sequence number, in the order of calls. The record is not
    /// durable yet: see [`Self::wait_durable`]. Blocks while [`BATCH_BYTES_MAX`] bytes wait for
    /// the disk.
    pub fn append(&self, record: &[u8]) -> Result<Seq, AppendError> {
        self.append_many(&[record])
    }

    /// Appends records with consecutive sequence numbers in one batch: after a crash all or none of
    /// them exist. Returns the sequence number of the newest record.
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
        let last = self.push(&mut pending, records);
        self.wake_writer(pending);
        Ok(last)
    }

    /// Like [`Self::append_many`] without a limit for each record, and calls `when_durable` when
    /// all records so far are durable, or when the log has failed. The calls have the order of the
    /// appends. Each call is made by the thread that writes the log, so it must be short. It is not
    /// made if this function returns an error.
    pub fn append_then<R: AsRef<[u8]>>(
        &self,
        records: &[R],
        when_durable: impl FnOnce(Result<(), LogFailed>) + Send + 'static,
    ) -> Result<Seq, AppendError> {
        let bytes = records.iter().map(|record| 4 + record.as_ref().len()).sum();
        if bytes > BATCH_BYTES_MAX {
            return Err(AppendError::TooLarge { bytes, max: BATCH_BYTES_MAX });
        }
        let mut pending = self.room_for(bytes)?;
        let last = self.push(&mut pending, records);
        let when_durable: WhenDurable = Box::new(when_durable);
        pending.when_durable.push(when_durable);
        self.wake_writer(pending);
        Ok(last)
    }

    fn push<R: AsRef<[u8]>>(&self, pending: &mut Pending, records: &[R]) -> Seq {
        for record in records {
            push_record(&mut pending.buffer, record.as_ref());
        }
        pending.count += records.len() as u32;
        pending.next_seq += records.len() as u64;
        let last = pending.next_seq - 1;
        self.shared.last_seq.store(last, Ordering::Release);
        last
    }

    fn room_for(&self, bytes: usize) -> Result<MutexGuard<'_, Pending>, LogFailed> {
        let mut pending = self.shared.pending();
        loop {
            pending.check_open()?;
            if !pending.seq_changes && pending.buffer.len() - BATCH_HEADER_BYTES + bytes <= BATCH_BYTES_MAX {
                return Ok(pending);
            }
            pending = self.wait_for_writer(pending);
        }
    }

    fn wake_writer(&self, pending: MutexGuard<'_, Pending>) {
        drop(pending);
        match &self.writer {
            // If the channel is full, the writer will wake up anyway.
            WriterHandle::Thread(_) => drop(self.shared.work.0.try_send(())),
            WriterHandle::Stepped(writer) => writer.schedule(),
        }
    }

    /// Waits until the writer has done something.
    fn wait_for_writer<'a>(&'a self, pending: MutexGuard<'a, Pending>) -> MutexGuard<'a, Pending> {
        match &self.writer {
            WriterHandle::Thread(_) => {
                self.shared.progressed.wait(pending).unwrap_or_else(PoisonError::into_inner)
            }
            WriterHandle::Stepped(writer) => {
                drop(pending);
                writer.run();
                self.shared.pending()
            }
        }
    }

    /// Returns whether a record of up to `bytes` bytes can be appended without blocking. The answer
    /// is valid until the next append.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        let pending = self.shared.pending();
        !pending.seq_changes && pending.buffer.len() - BATCH_HEADER_BYTES + 4 + bytes <= BATCH_BYTES_MAX
    }

    /// Returns the sequence number of the newest record, durable or not.
    pub fn last_seq(&self) -> Seq {
        self.shared.last_seq.load(Ordering::Acquire)
    }

    /// Returns an error if the log has failed, even if all accepted records are durable.
    pub fn check(&self) -> Result<(), LogFailed> {
        if !self.shared.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.shared.pending().failed.clone().map_or(Ok(()), Err)
    }

    /// Returns the sequence number of the last durable record.
    pub fn durable(&self) -> Seq {
        self.shared.durable.load(Ordering::Acquire)
    }

    /// Waits until all records up to `seq` are durable. Returns an error if the log fails before.
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

    /// Like [`Self::wait_durable`], but blocks the thread.
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
            pending = self.wait_for_writer(pending);
        }
    }

    /// Waits until the log fails, and returns the failure.
    pub async fn failed(&self) -> LogFailed {
        let mut progress = self.shared.progress.subscribe();
        let moved =
            progress.wait_for(|progress| progress.failed.is_some()).await.expect("the sender is in `self`");
        moved.failed.clone().expect("waited for it")
    }

    /// Closes the current segment after all records appended so far, and starts the next segment.
    /// Blocks until that is done. Returns the last record in the closed segments. If the current
    /// segment is empty, it is not closed.
    pub fn rotate(&self) -> Result<Seq, LogFailed> {
        self.change(Change::Rotate)
    }

    /// Removes all records after `last`, and waits until they are removed. The next record gets the
    /// number `last + 1`. Panics if a snapshot includes a later record.
    pub fn truncate_after(&self, last: Seq) -> Result<(), LogFailed> {
        if last >= self.last_seq() {
            return Ok(());
        }
        let newest_snapshot = self.shared.files().snapshots.last().copied().unwrap_or(0);
        assert!(last >= newest_snapshot, "cannot remove record {}: a snapshot includes it", last + 1);
        self.change(Change::Truncate(last)).map(drop)
    }

    /// Continues after the newest snapshot, whose last record is `seq`, although the log has only
    /// records before it. Until then a crash leaves the old records and the snapshot, and the log
    /// continues after the snapshot when it is opened. Panics if the log has a later record.
    pub fn skip_to(&self, seq: Seq) -> Result<(), LogFailed> {
        assert!(self.content == Content::Entries, "only a member of a group gets newer snapshots");
        assert!(seq >= self.last_seq(), "cannot skip to {seq}: there are later records");
        self.change(Change::Skip(seq)).map(drop)
    }

    fn change(&self, what: Change) -> Result<Seq, LogFailed> {
        let (reply, done) = bounded(1);
        let mut pending = self.shared.pending();
        pending.check_open()?;
        pending.requests.push(Request { what, reply });
        pending.seq_changes |= what != Change::Rotate;
        match &self.writer {
            WriterHandle::Thread(_) => self.wake_writer(pending),
            WriterHandle::Stepped(_) => drop(self.wait_for_writer(pending)),
        }
        done.recv().unwrap_or_else(|_| {
            Err(LogFailed { reason: "the writer thread of the journal has ended".into() })
        })
    }

    /// Returns the total length of the segments that a restart reads after the newest snapshot.
    pub fn bytes_since_snapshot(&self) -> u64 {
        let files = self.shared.files();
        let base = files.snapshots.last().copied().unwrap_or(0);
        files.segments[files.first_segment_after(base)..].iter().map(|segment| segment.bytes).sum()
    }

    /// Returns the length of the newest snapshot; 0 if there is none.
    pub fn snapshot_bytes(&self) -> io::Result<u64> {
        let newest = self.shared.files().snapshots.last().copied();
        newest.map_or(Ok(0), |seq| self.disk.open(&FileKind::Snapshot.name(seq))?.length())
    }

    /// Returns where the work runs that waits for the disk of the log.
    pub fn executor(&self) -> Executor {
        self.disk.executor()
    }

    /// Returns the number of free bytes on the disk of the log.
    pub fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }

    /// Returns what was written since the log was opened.
    pub fn stats(&self) -> Stats {
        self.shared.files().stats
    }

    /// Reads the newest snapshot and the closed segments up to `upto` (from [`Self::rotate`]),
    /// while the log is in use.
    pub fn replay_closed(&self, upto: Seq) -> Result<Replay, LogError> {
        assert!(upto <= self.durable(), "cannot replay up to record {upto}: it is not durable");
        let files = self.shared.files();
        let base = files.snapshots.iter().copied().rfind(|seq| *seq <= upto).unwrap_or(0);
        let segments = &files.segments[files.first_segment_after(base)..];
        let segments = segments.iter().map(|segment| segment.first).filter(|first| *first <= upto);
        Replay::new(Arc::clone(&self.disk), base, segments.collect(), upto)
    }

    /// Reads the snapshot whose last record is `seq`, and nothing after it.
    pub fn replay_snapshot(&self, seq: Seq) -> Result<Replay, LogError> {
        Replay::new(Arc::clone(&self.disk), seq, VecDeque::new(), seq)
    }

    /// Reads the durable records from `from` to `upto`, while the log is in use. If some of them are
    /// removed meanwhile, the replay can fail, or return others.
    pub fn read(&self, from: Seq, upto: Seq) -> Replay {
        assert!(from > 0, "the first record is 1");
        let files = self.shared.files();
        let segments = &files.segments[files.first_segment_after(from - 1)..];
        let segments = segments.iter().map(|segment| segment.first).filter(|first| *first <= upto);
        Replay::of_records(Arc::clone(&self.disk), from, segments.collect(), upto)
    }

    /// Waits until no snapshot is being made. The owner keeps the result while it makes a snapshot,
    /// from the call of [`Self::rotate`] until it is registered.
    pub fn lock_snapshots(&self) -> MutexGuard<'_, ()> {
        self.snapshots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a snapshot of the state after record `seq` (from [`Self::rotate`]). In a group, the
    /// record may be one that only other members have: see [`Self::skip_to`].
    pub fn snapshot_writer(&self, seq: Seq) -> Result<SnapshotWriter, LogError> {
        assert!(
            0 < seq && (seq <= self.durable() || self.content == Content::Entries),
            "cannot make a snapshot at record {seq}: it is not durable"
        );
        SnapshotWriter::start(Arc::clone(&self.disk), self.content, seq)
    }

    /// Returns the newest snapshot as a file; `None` if there is none.
    pub fn newest_snapshot(&self) -> Result<Option<SnapshotFile>, LogError> {
        let newest = self.shared.files().snapshots.last().copied();
        newest.map(|seq| SnapshotFile::open(&*self.disk, seq)).transpose()
    }

    /// Verifies the snapshot at `seq`. If it is damaged, it is not used any more: its file is renamed,
    /// the older snapshot and the records after it take its place, and [`Self::take_needs_snapshot`]
    /// asks for a new one. Returns the damage.
    pub fn check_snapshot(&self, seq: Seq) -> Result<Option<Dropped>, LogError> {
        let damage = match SnapshotReader::verify(&*self.disk, seq) {
            Ok(_) => return Ok(None),
            Err(error) if error.is_damage() => error,
            Err(error) => return Err(error),
        };
        {
            let mut files = self.shared.files();
            let Some(at) = files.snapshots.iter().position(|known| *known == seq) else { return Ok(None) };
            files.snapshots.remove(at);
        }
        self.needs_snapshot.store(true, Ordering::Release);
        let mut names = self.disk.list().map_err(LogError::io("list", "the journal folder"))?;
        let dropped = rename_damaged(&*self.disk, &mut names, &FileKind::Snapshot.name(seq), 0, &damage)?;
        self.disk.sync_folder().map_err(LogError::io("sync", "the journal folder"))?;
        tracing::error!(
            file = dropped.file,
            saved_as = dropped.saved_as.as_deref().unwrap_or("-"),
            why = dropped.why,
            "a snapshot is damaged: a new one is made from the older one and the records after it; check the disk"
        );
        Ok(Some(dropped))
    }

    /// Drops damaged snapshots until the newest is valid, or none is left. The caller has
    /// [`Self::lock_snapshots`].
    pub fn check_newest_snapshot(&self) -> Result<(), LogError> {
        loop {
            let newest = self.shared.files().snapshots.last().copied();
            if newest.map(|seq| self.check_snapshot(seq)).transpose()?.flatten().is_none() {
                return Ok(());
            }
        }
    }

    /// Returns why the newest snapshot and the closed segments up to `upto` cannot be read; `None` if
    /// they can.
    pub fn find_damage(&self, upto: Seq) -> Option<LogError> {
        let read = || {
            let mut replay = self.replay_closed(upto)?;
            while replay.advance()? {}
            Ok(())
        };
        read().err().filter(LogError::is_damage)
    }

    /// Returns once whether a damaged snapshot was dropped, so that a new one must be made.
    pub fn take_needs_snapshot(&self) -> bool {
        self.needs_snapshot.swap(false, Ordering::AcqRel)
    }

    /// Starts to receive a snapshot that another member of the group has written, and whose last
    /// record is `seq`.
    pub fn receive_snapshot(&self, seq: Seq) -> Result<SnapshotReceiver, LogError> {
        assert!(self.content == Content::Entries && seq > 0, "only a member of a group receives snapshots");
        SnapshotReceiver::start(Arc::clone(&self.disk), seq)
    }

    /// Registers the finished snapshot at `seq`. Removes all snapshots except the last two, and all
    /// segments that contain no record after the older of these two.
    pub fn snapshot_done(&self, seq: Seq) -> Result<(), LogError> {
        self.keep_snapshot(seq)?;
        self.remove_segments(Seq::MAX)
    }

    /// Registers the finished snapshot at `seq`, and removes all snapshots except the last two. Then
    /// call [`Self::remove_segments`].
    pub fn keep_snapshot(&self, seq: Seq) -> Result<(), LogError> {
        let name = FileKind::Snapshot.name(seq);
        self.disk.open(&name).map_err(LogError::io("find the finished snapshot", &name))?;
        let removed = {
            // One lock: another snapshot may be registered at the same time.
            let mut files = self.shared.files();
            let snapshots = &mut files.snapshots;
            snapshots.push(seq);
            snapshots.sort_unstable();
            snapshots.dedup();
            let newest = snapshots.split_off(snapshots.len().saturating_sub(2));
            std::mem::replace(snapshots, newest)
        };
        self.remove(FileKind::Snapshot, &removed)
    }

    /// Removes all segments that contain neither a record after the older of the last two snapshots
    /// nor one after `upto`. A member of a group keeps records longer, for members that are behind.
    pub fn remove_segments(&self, upto: Seq) -> Result<(), LogError> {
        // The removal of older snapshots is durable, so no snapshot is left without the records
        // after it.
        let removed: Vec<_> = {
            let mut files = self.shared.files();
            let older = if let [older, _] = files.snapshots[..] { older } else { 0 };
            let end = files.first_segment_after(older.min(upto));
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

    /// Requests a sync of the commit point, and does not wait for it. Call this regularly, so that
    /// after a power loss the commit point covers most of the log.
    pub fn request_commit_sync(&self) {
        let mut pending = self.shared.pending();
        pending.sync_commit = true;
        self.wake_writer(pending);
    }

    /// Flushes, seals and closes the log. Dropping the log does the same, but returns no failure.
    pub fn close(&self) -> Result<(), LogFailed> {
        match &self.writer {
            WriterHandle::Thread(thread) => {
                let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(thread) = thread {
                    let mut pending = self.shared.pending();
                    pending.closing = true;
                    self.wake_writer(pending);
                    // A panic of the writer has already been reported as a failure.
                    let _panicked = thread.join();
                }
            }
            WriterHandle::Stepped(_) => {
                let mut pending = self.shared.pending();
                pending.closing = true;
                drop(self.wait_for_writer(pending));
            }
        }
        self.shared.pending().failed.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // The writer thread has already logged the failure.
        let _failed = self.close();
    }
}

impl Files {
    /// Returns the index of the first segment that contains, or will contain, a record after `seq`.
    fn first_segment_after(&self, seq: Seq) -> usize {
        self.segments.partition_point(|segment| segment.first <= seq + 1).saturating_sub(1)
    }
}
