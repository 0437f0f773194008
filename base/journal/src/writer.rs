//! The writer thread: takes all pending records, writes them as one batch, syncs it, and notifies
//! waiters.
//!
//! While a batch is being synced, new records collect for the next batch. So group commit adds no
//! delay. The thread ends at the first failure. A failed sync is never repeated: the kernel may
//! have dropped the dirty pages and would report success the second time.

use crate::{
    LogError, LogFailed, Seq,
    commit::{CommitFile, CommitPoint},
    disk::{Disk, WriteFile},
    format::{BATCH_HEADER_BYTES, BatchHeader, FILE_HEADER_BYTES, FileKind, mask},
    segment::start_segment,
    survey::{Segment, has_records},
};
use crossbeam::channel::{Receiver, Sender};
use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};
use tokio::sync::watch;

/// A batch buffer larger than this is freed after use; smaller buffers are used again.
const SPARE_BYTES_MAX: usize = 4 << 20;

/// State shared by the writer and the users of the log.
pub(crate) struct Shared {
    pub(crate) pending: Mutex<Pending>,
    /// Wakes the writer: contains a message when there may be work.
    pub(crate) work: (Sender<()>, Receiver<()>),
    /// Signalled when the writer has taken or finished a batch, or failed.
    pub(crate) progressed: Condvar,
    /// The last durable record.
    pub(crate) durable: AtomicU64,
    /// The newest record, durable or not. Equals `Pending::next_seq` minus one, but needs no lock.
    pub(crate) last_seq: AtomicU64,
    /// Whether `Pending::failed` is set. Needs no lock.
    pub(crate) has_failed: AtomicBool,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) files: Mutex<Files>,
}

/// Work for the writer.
pub(crate) struct Pending {
    /// Space for the batch header, then the payload.
    pub(crate) buffer: Vec<u8>,
    /// Number of records in `buffer`.
    pub(crate) count: u32,
    /// Sequence number of the next record.
    pub(crate) next_seq: Seq,
    /// Reply channels of the callers that wait for a rotation.
    pub(crate) rotations: Vec<Sender<Result<Seq, LogFailed>>>,
    /// Set when the log accepts no more records. The writer ends after it has written the pending
    /// records.
    pub(crate) closing: bool,
    /// Set when the commit point is to be synced.
    pub(crate) sync_commit: bool,
    pub(crate) failed: Option<LogFailed>,
}

impl Pending {
    /// Returns an error if the log has failed or is closed.
    pub(crate) fn check_open(&self) -> Result<(), LogFailed> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        if self.closing {
            return Err(LogFailed { reason: "it is closed".into() });
        }
        Ok(())
    }
}

/// Progress of the writer, for async callers that wait for it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    pub(crate) durable: Seq,
    pub(crate) failed: Option<LogFailed>,
}

/// Counters since the log was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Records made durable.
    pub records: u64,
    /// Batches made durable, each with one write and one sync.
    pub batches: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// The files of the log, and counters.
pub(crate) struct Files {
    /// Segments, oldest first. Records are appended to the last segment.
    pub(crate) segments: Vec<Segment>,
    /// Snapshots, oldest first.
    pub(crate) snapshots: Vec<Seq>,
    pub(crate) stats: Stats,
}

/// Work that the writer has taken from [`Pending`].
struct TakenBatch {
    buffer: Vec<u8>,
    first: Seq,
    count: u32,
    rotations: Vec<Sender<Result<Seq, LogFailed>>>,
    sync_commit: bool,
}

impl Shared {
    pub(crate) fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for work and takes all of it; `None` when the log is closing and nothing is pending.
    fn take(&self, mut spare: Vec<u8>) -> Option<TakenBatch> {
        spare.clear();
        if spare.capacity() > SPARE_BYTES_MAX {
            spare = Vec::new();
        }
        spare.resize(BATCH_HEADER_BYTES, 0);
        let mut pending = self.pending();
        while pending.count == 0 && pending.rotations.is_empty() && !pending.sync_commit {
            if pending.closing {
                return None;
            }
            drop(pending);
            self.work.1.recv().expect("the sender is in `self`");
            pending = self.pending();
        }
        let count = std::mem::take(&mut pending.count);
        let batch = TakenBatch {
            buffer: std::mem::replace(&mut pending.buffer, spare),
            first: pending.next_seq - u64::from(count),
            count,
            rotations: std::mem::take(&mut pending.rotations),
            sync_commit: std::mem::take(&mut pending.sync_commit),
        };
        drop(pending);
        self.progressed.notify_all();
        Some(batch)
    }

    fn mark_durable(&self, seq: Seq, bytes: u64, records: u64) {
        {
            let mut files = self.files();
            files.stats.batches += 1;
            files.stats.records += records;
            files.stats.bytes += bytes;
            if let Some(segment) = files.segments.last_mut() {
                segment.bytes += bytes;
            }
        }
        self.durable.store(seq, Ordering::Release);
        self.progress.send_modify(|progress| progress.durable = seq);
        // Taking the lock ensures that a caller of `Log::sync` that has read the old value of
        // `durable` is already waiting, and does not miss the notification.
        drop(self.pending());
        self.progressed.notify_all();
    }

    fn fail(&self, reason: &str, rotations: Vec<Sender<Result<Seq, LogFailed>>>) {
        tracing::error!(reason, "the journal has failed");
        let failed = LogFailed { reason: reason.into() };
        let mut pending = self.pending();
        pending.failed = Some(failed.clone());
        self.has_failed.store(true, Ordering::Release);
        let waiting = std::mem::take(&mut pending.rotations);
        drop(pending);
        for reply in rotations.into_iter().chain(waiting) {
            let _gone = reply.send(Err(failed.clone()));
        }
        self.progress.send_modify(|progress| progress.failed = Some(failed));
        self.progressed.notify_all();
    }
}

/// State of the writer thread.
pub(crate) struct Writer {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) file: Box<dyn WriteFile>,
    pub(crate) salt: u32,
    pub(crate) commit: CommitFile,
    pub(crate) name: String,
}

/// Reports a failure if the writer thread panics, so that callers do not wait forever.
struct PanicGuard(Arc<Shared>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail("the writer thread of the journal has panicked", Vec::new());
        }
    }
}

impl Writer {
    /// Runs until the log is closed or fails.
    pub(crate) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let _guard = PanicGuard(Arc::clone(&shared));
        let mut spare = Vec::new();
        while let Some(mut batch) = shared.take(spare) {
            let mut done = if batch.count > 0 { self.write_batch(&mut batch) } else { Ok(()) };
            if done.is_ok() && !batch.rotations.is_empty() {
                done = self.rotate(batch.first + u64::from(batch.count));
            }
            if done.is_ok() && batch.sync_commit {
                done = self.commit.sync();
            }
            if let Err(error) = done {
                return shared.fail(&error.to_string(), batch.rotations);
            }
            for reply in batch.rotations {
                let _gone = reply.send(Ok(batch.first + u64::from(batch.count) - 1));
            }
            spare = batch.buffer;
        }
        let sealed =
            CommitPoint { sealed: true, ..self.commit_point(shared.durable.load(Ordering::Acquire)) };
        if let Err(error) = self.commit.write_both(sealed) {
            shared.fail(&error.to_string(), Vec::new());
        }
    }

    /// Returns the commit point for a log whose last durable record is `committed`.
    fn commit_point(&self, committed: Seq) -> CommitPoint {
        let newest = self.shared.files().segments.last().map_or(0, |segment| segment.first);
        CommitPoint { newest, committed, sealed: false }
    }

    fn write_batch(&mut self, batch: &mut TakenBatch) -> Result<(), LogError> {
        let mut header = BatchHeader {
            first: batch.first,
            count: batch.count,
            payload_bytes: (batch.buffer.len() - BATCH_HEADER_BYTES) as u32,
            payload_crc: 0,
        };
        batch.buffer.resize(header.padded_bytes(), 0);
        mask(self.salt, &mut batch.buffer[BATCH_HEADER_BYTES..]);
        header.payload_crc = crc32c::crc32c(&batch.buffer[BATCH_HEADER_BYTES..]);
        batch.buffer[..BATCH_HEADER_BYTES].copy_from_slice(&header.encode(self.salt));
        self.file.write(&batch.buffer).map_err(LogError::io("write", &self.name))?;
        self.file.sync().map_err(LogError::io("sync", &self.name))?;
        // Write the commit point after the sync, so that it claims only durable records, and before
        // waiting callers are notified.
        self.commit.write_slot(self.commit_point(header.end_seq() - 1))?;
        let bytes = batch.buffer.len() as u64;
        self.shared.mark_durable(header.end_seq() - 1, bytes, u64::from(batch.count));
        Ok(())
    }

    /// Starts a new segment with `first` as its first record, unless the current segment is empty.
    fn rotate(&mut self, first: Seq) -> Result<(), LogError> {
        if !self.shared.files().segments.last().is_some_and(has_records) {
            return Ok(());
        }
        let (file, salt) = start_segment(&*self.disk, first)?;
        self.file = file;
        self.salt = salt;
        self.name = FileKind::Segment.name(first);
        self.shared.files().segments.push(Segment { first, bytes: FILE_HEADER_BYTES as u64 });
        // The commit point is durable before the first record of the new segment, so that a missing
        // newest segment is detected.
        self.commit.write_both(self.commit_point(first - 1))
    }
}
