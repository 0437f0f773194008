//! The writer thread: takes all pending records, writes them as one batch, syncs it, and notifies
//! waiters.
//!
//! New records collect while a batch is being synced, so group commit adds no delay. The thread
//! ends at the first failure. A failed sync is never repeated: the kernel may have dropped the
//! dirty pages and would report success the second time.

use crate::{
    LogError, LogFailed, Seq,
    commit::{CommitFile, Point},
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

/// A buffer that has grown beyond this is freed after use.
const SPARE_BYTES_MAX: usize = 4 << 20;

/// State shared by the writer and the users of the log.
pub(crate) struct Shared {
    pub(crate) pending: Mutex<Pending>,
    /// Has a message when there may be work for the writer.
    pub(crate) work: (Sender<()>, Receiver<()>),
    /// Signalled when the writer has taken or finished a batch, or failed.
    pub(crate) moved: Condvar,
    pub(crate) durable: AtomicU64,
    /// The newest record, durable or not: `Pending::next` minus one, readable without the lock.
    pub(crate) last: AtomicU64,
    /// Whether `Pending::failed` is set, readable without the lock.
    pub(crate) has_failed: AtomicBool,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) files: Mutex<Files>,
}

/// Work for the writer.
pub(crate) struct Pending {
    /// Space for the batch header, then the payload.
    pub(crate) buffer: Vec<u8>,
    pub(crate) count: u32,
    /// Number of the next record.
    pub(crate) next: Seq,
    pub(crate) rotations: Vec<Sender<Result<Seq, LogFailed>>>,
    /// Set when the log accepts no more records; the writer ends after the pending ones.
    pub(crate) closing: bool,
    /// Set when the commit point is to be synced.
    pub(crate) settling: bool,
    pub(crate) failed: Option<LogFailed>,
}

impl Pending {
    /// Fails if the log has failed or is closed.
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

/// State that waiters watch.
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
    /// Batches, each one write and one sync.
    pub batches: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// The files of the log, and counters.
pub(crate) struct Files {
    /// Oldest first; the last one is being written.
    pub(crate) segments: Vec<Segment>,
    /// Oldest first.
    pub(crate) snapshots: Vec<Seq>,
    pub(crate) stats: Stats,
}

struct TakenBatch {
    buffer: Vec<u8>,
    first: Seq,
    count: u32,
    rotations: Vec<Sender<Result<Seq, LogFailed>>>,
    settle: bool,
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
        while pending.count == 0 && pending.rotations.is_empty() && !pending.settling {
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
            first: pending.next - u64::from(count),
            count,
            rotations: std::mem::take(&mut pending.rotations),
            settle: std::mem::take(&mut pending.settling),
        };
        drop(pending);
        self.moved.notify_all();
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
        // The lock orders this after a waiter that has read `durable` and is about to sleep.
        drop(self.pending());
        self.moved.notify_all();
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
        self.moved.notify_all();
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

/// Reports a failure if the writer panics, so that waiters do not wait forever.
struct PanicGuard(Arc<Shared>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail("the journal's writer has panicked", Vec::new());
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
            if done.is_ok() && batch.settle {
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
        let sealed = Point { sealed: true, ..self.point(shared.durable.load(Ordering::Acquire)) };
        if let Err(error) = self.commit.write_both(sealed) {
            shared.fail(&error.to_string(), Vec::new());
        }
    }

    /// Returns the commit point when everything up to `committed` is durable.
    fn point(&self, committed: Seq) -> Point {
        let newest = self.shared.files().segments.last().map_or(0, |segment| segment.first);
        Point { newest, committed, sealed: false }
    }

    fn write_batch(&mut self, batch: &mut TakenBatch) -> Result<(), LogError> {
        let mut header = BatchHeader {
            first: batch.first,
            count: batch.count,
            payload_bytes: (batch.buffer.len() - BATCH_HEADER_BYTES) as u32,
            payload_crc: 0,
        };
        batch.buffer.resize(header.whole(), 0);
        mask(self.salt, &mut batch.buffer[BATCH_HEADER_BYTES..]);
        header.payload_crc = crc32c::crc32c(&batch.buffer[BATCH_HEADER_BYTES..]);
        batch.buffer[..BATCH_HEADER_BYTES].copy_from_slice(&header.encode(self.salt));
        self.file.write(&batch.buffer).map_err(LogError::io("write", &self.name))?;
        self.file.sync().map_err(LogError::io("sync", &self.name))?;
        // After the sync, so that it claims only durable records, and before waiters are notified.
        self.commit.note(self.point(header.end() - 1))?;
        let bytes = batch.buffer.len() as u64;
        self.shared.mark_durable(header.end() - 1, bytes, u64::from(batch.count));
        Ok(())
    }

    /// Starts the segment with `first` as its first record, unless the current one is empty.
    fn rotate(&mut self, first: Seq) -> Result<(), LogError> {
        if !self.shared.files().segments.last().is_some_and(has_records) {
            return Ok(());
        }
        let (file, salt) = start_segment(&*self.disk, first)?;
        self.file = file;
        self.salt = salt;
        self.name = FileKind::Segment.name(first);
        self.shared.files().segments.push(Segment { first, bytes: FILE_HEADER_BYTES as u64 });
        // Durable before the first record of the segment, so that a missing newest segment is
        // detected.
        self.commit.write_both(self.point(first - 1))
    }
}
