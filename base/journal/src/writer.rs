//! The writer, a thread: takes all pending records, writes them as one batch, syncs it, and notifies
//! waiters.
//!
//! While a batch is being synced, new records collect for the next batch. So group commit adds no
//! delay. The thread ends at the first failure. A failed sync is never repeated: the kernel may
//! have dropped the dirty pages and would report success the second time.
//!
//! On a simulated disk there is no thread: the same steps are tasks of the runtime, and a caller that
//! waits for the writer does its work.

use crate::{
    LogError, LogFailed, Seq,
    bugs::{self, Bug},
    commit::{CommitFile, CommitPoint},
    disk::Disk,
    executor::Delay,
    format::{BATCH_HEADER_BYTES, Content, FILE_HEADER_BYTES},
    segment::{ActiveSegment, seal_batch},
    survey::{Segment, has_records},
    truncate::truncate,
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

/// A function that is called when records are durable, or when the log has failed before.
pub(crate) type WhenDurable = Box<dyn FnOnce(Result<(), LogFailed>) + Send>;

/// A request to change the files of the log. Callers wait for the answer.
pub(crate) struct Request {
    pub(crate) what: Change,
    pub(crate) reply: Sender<Result<Seq, LogFailed>>,
}

/// How to change the files of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Start a new segment.
    Rotate,
    /// Remove all records after this one.
    Truncate(Seq),
    /// Continue after this record, the last of a snapshot, which is newer than the log.
    Skip(Seq),
}

/// Work for the writer.
pub(crate) struct Pending {
    /// Space for the batch header, then the payload.
    pub(crate) buffer: Vec<u8>,
    /// Number of records in `buffer`.
    pub(crate) count: u32,
    /// Sequence number of the next record.
    pub(crate) next_seq: Seq,
    /// Functions to call when all of `buffer` is durable.
    pub(crate) when_durable: Vec<WhenDurable>,
    /// Changes to make after `buffer` is written.
    pub(crate) requests: Vec<Request>,
    /// Whether a request will change `next_seq`. No record is accepted meanwhile.
    pub(crate) seq_changes: bool,
    /// Set when the log accepts no more records. The writer ends after it has written the pending
    /// records.
    pub(crate) closing: bool,
    /// Set when the commit point is to be synced.
    pub(crate) sync_commit: bool,
    pub(crate) failed: Option<LogFailed>,
}

impl Pending {
    fn has_no_work(&self) -> bool {
        self.count == 0 && self.when_durable.is_empty() && self.requests.is_empty() && !self.sync_commit
    }

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
    when_durable: Vec<WhenDurable>,
    requests: Vec<Request>,
    sync_commit: bool,
}

enum Taken {
    Batch(TakenBatch),
    /// There is no work now.
    Nothing,
    /// There is no work, and there will be none.
    Closing,
}

impl Shared {
    pub(crate) fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all pending work, and leaves `spare` for more.
    fn take(&self, spare: &mut Vec<u8>) -> Taken {
        let mut pending = self.pending();
        if pending.has_no_work() {
            return if pending.closing { Taken::Closing } else { Taken::Nothing };
        }
        let count = std::mem::take(&mut pending.count);
        let batch = TakenBatch {
            buffer: std::mem::replace(&mut pending.buffer, std::mem::take(spare)),
            first: pending.next_seq - u64::from(count),
            count,
            when_durable: std::mem::take(&mut pending.when_durable),
            requests: std::mem::take(&mut pending.requests),
            sync_commit: std::mem::take(&mut pending.sync_commit),
        };
        drop(pending);
        self.progressed.notify_all();
        Taken::Batch(batch)
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
        self.set_durable(seq);
        // Taking the lock ensures that a caller of `Log::sync` that has read the old value of
        // `durable` is already waiting, and does not miss the notification.
        drop(self.pending());
        self.progressed.notify_all();
    }

    fn set_durable(&self, seq: Seq) {
        self.durable.store(seq, Ordering::Release);
        self.progress.send_modify(|progress| progress.durable = seq);
    }

    /// Continues after record `seq`, which is durable.
    fn continue_after(&self, seq: Seq) {
        let mut pending = self.pending();
        pending.next_seq = seq + 1;
        pending.seq_changes = false;
        self.last_seq.store(seq, Ordering::Release);
        self.set_durable(seq);
        drop(pending);
        self.progressed.notify_all();
    }

    fn fail(&self, reason: &str, when_durable: Vec<WhenDurable>, requests: Vec<Request>) {
        tracing::error!(reason, "the journal has failed");
        let failed = LogFailed { reason: reason.into() };
        let mut pending = self.pending();
        pending.failed = Some(failed.clone());
        self.has_failed.store(true, Ordering::Release);
        let more_requests = std::mem::take(&mut pending.requests);
        let more_when_durable = std::mem::take(&mut pending.when_durable);
        drop(pending);
        for request in requests.into_iter().chain(more_requests) {
            let _gone = request.reply.send(Err(failed.clone()));
        }
        for call in when_durable.into_iter().chain(more_when_durable) {
            call(Err(failed.clone()));
        }
        self.progress.send_modify(|progress| progress.failed = Some(failed));
        self.progressed.notify_all();
    }
}

/// State of the writer.
pub(crate) struct Writer {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) segment: ActiveSegment,
    pub(crate) content: Content,
    pub(crate) commit: CommitFile,
    /// A buffer to use again, with space for the batch header.
    pub(crate) spare: Vec<u8>,
}

/// What a step of the writer has done.
#[derive(PartialEq, Eq)]
enum Step {
    Worked,
    /// There was no work.
    Idle,
    /// The log is closed or has failed.
    Ended,
}

/// The writer of a log on a simulated disk.
pub(crate) struct SteppedWriter {
    /// `None` when the log is closed or has failed.
    writer: Mutex<Option<Writer>>,
    /// Whether a task will do the work.
    is_scheduled: AtomicBool,
    delay: Delay,
}

impl SteppedWriter {
    pub(crate) fn new(writer: Writer, delay: Delay) -> Arc<Self> {
        Arc::new(Self { writer: Mutex::new(Some(writer)), is_scheduled: AtomicBool::new(false), delay })
    }

    /// Does all work now.
    pub(crate) fn run(&self) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(active) = &mut *writer {
            match active.step() {
                Step::Worked => {}
                Step::Idle => return,
                Step::Ended => *writer = None,
            }
        }
    }

    /// Does all work after a delay.
    pub(crate) fn schedule(self: &Arc<Self>) {
        if self.is_scheduled.swap(true, Ordering::Relaxed) {
            return;
        }
        let (writer, delay) = (Arc::clone(self), (self.delay)());
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            writer.is_scheduled.store(false, Ordering::Relaxed);
            writer.run();
        });
    }
}

/// Reports a failure if the writer thread panics, so that callers do not wait forever.
struct PanicGuard(Arc<Shared>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail("the writer thread of the journal has panicked", Vec::new(), Vec::new());
        }
    }
}

impl Writer {
    /// Runs until the log is closed or fails.
    pub(crate) fn run(mut self) {
        let _guard = PanicGuard(Arc::clone(&self.shared));
        loop {
            match self.step() {
                Step::Worked => {}
                Step::Idle => self.shared.work.1.recv().expect("the sender is in `self`"),
                Step::Ended => return,
            }
        }
    }

    /// Does the work that is pending.
    fn step(&mut self) -> Step {
        match self.shared.take(&mut self.spare) {
            Taken::Batch(batch) => self.process(batch),
            Taken::Nothing => Step::Idle,
            Taken::Closing => {
                let durable = self.shared.durable.load(Ordering::Acquire);
                let sealed = CommitPoint { sealed: true, ..self.commit_point(durable) };
                if let Err(error) = self.commit.write_both(sealed) {
                    self.shared.fail(&error.to_string(), Vec::new(), Vec::new());
                }
                Step::Ended
            }
        }
    }

    fn process(&mut self, mut batch: TakenBatch) -> Step {
        let mut done = if batch.count > 0 { self.write_batch(&mut batch) } else { Ok(()) };
        if done.is_ok() {
            for call in std::mem::take(&mut batch.when_durable) {
                call(Ok(()));
            }
        }
        let mut last = batch.first + u64::from(batch.count) - 1;
        for request in &batch.requests {
            if done.is_ok() {
                done = self.change(request.what, &mut last);
            }
        }
        if done.is_ok() && batch.sync_commit {
            done = self.commit.sync();
        }
        if let Err(error) = done {
            self.shared.fail(&error.to_string(), batch.when_durable, batch.requests);
            return Step::Ended;
        }
        for request in batch.requests {
            let _gone = request.reply.send(Ok(last));
        }
        self.spare = batch.buffer;
        self.spare.clear();
        if self.spare.capacity() > SPARE_BYTES_MAX {
            self.spare = Vec::new();
        }
        self.spare.resize(BATCH_HEADER_BYTES, 0);
        Step::Worked
    }

    /// Returns the commit point for a log whose last durable record is `committed`.
    fn commit_point(&self, committed: Seq) -> CommitPoint {
        let newest = self.shared.files().segments.last().map_or(0, |segment| segment.first);
        CommitPoint { newest, committed, sealed: false }
    }

    fn write_batch(&mut self, batch: &mut TakenBatch) -> Result<(), LogError> {
        let ActiveSegment { file, name, salt } = &mut self.segment;
        let header = seal_batch(&mut batch.buffer, batch.first, batch.count, *salt);
        file.write(&batch.buffer).map_err(LogError::io("write", name))?;
        if bugs::has(Bug::CommitPointEarly) {
            self.commit.write_both(self.commit_point(header.end_seq() - 1))?;
        }
        let ActiveSegment { file, name, .. } = &mut self.segment;
        if !bugs::has(Bug::SyncSkipped) {
            file.sync().map_err(LogError::io("sync", name))?;
        }
        // Write the commit point after the sync, so that it claims only durable records, and before
        // waiting callers are notified.
        self.commit.write_slot(self.commit_point(header.end_seq() - 1))?;
        let bytes = batch.buffer.len() as u64;
        self.shared.mark_durable(header.end_seq() - 1, bytes, u64::from(batch.count));
        Ok(())
    }

    /// Changes the files of the log. `last` is the last record, before and after the change.
    fn change(&mut self, what: Change, last: &mut Seq) -> Result<(), LogError> {
        match what {
            Change::Rotate => self.start_segment(*last + 1),
            Change::Truncate(after) => {
                let mut segments = self.shared.files().segments.clone();
                let kept = segments.partition_point(|segment| segment.first <= after + 1);
                let newest = segments[kept.saturating_sub(1)].first;
                // The commit point is lowered first, so that the records may be missing.
                self.commit.write_both(CommitPoint { newest, committed: after, sealed: false })?;
                self.segment = truncate(&*self.disk, &mut segments, after)?;
                self.shared.files().segments = segments;
                *last = after;
                self.shared.continue_after(after);
                Ok(())
            }
            Change::Skip(to) => {
                self.start_segment(to + 1)?;
                *last = to;
                self.shared.continue_after(to);
                Ok(())
            }
        }
    }

    /// Starts a new segment with `first` as its first record, unless the current segment is empty
    /// and begins there.
    fn start_segment(&mut self, first: Seq) -> Result<(), LogError> {
        let newest = self.shared.files().segments.last().copied();
        if newest.is_some_and(|newest| newest.first == first && !has_records(&newest)) {
            return Ok(());
        }
        self.segment = ActiveSegment::start(&*self.disk, self.content, first)?;
        self.shared.files().segments.push(Segment { first, bytes: FILE_HEADER_BYTES as u64 });
        // The commit point is durable before the first record of the new segment, so that a missing
        // newest segment is detected.
        self.commit.write_both(self.commit_point(first - 1))
    }
}
