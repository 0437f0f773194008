//! The task process's side of the umbilical, the connection to the tracker.

use crate::{
    execution::Progress,
    fetch::MapFeed,
    frame::{read_frame, write_frame},
};
use mrlib_api::{Liveness, PreemptKind, PreemptRefusal, TaskControl, TaskError};
use proto::mr::{self, FromTask, TaskStart, ToTask, from_task, to_task};
use std::{
    io,
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Maximum time between two progress messages, which are signs of life.
const REPORT_INTERVAL_MAX: Duration = Duration::from_secs(2);

/// Shared by the threads that run the task, read messages, and send reports.
pub(super) struct Umbilical {
    writer: Mutex<UnixStream>,
    latest: Mutex<LatestProgress>,
    control: TaskControl,
    liveness: Liveness,
    feed: Arc<MapFeed>,
    /// Whether the final message was sent.
    is_final_sent: AtomicBool,
}

struct LatestProgress {
    progress: mr::Progress,
    /// Whether the progress has changed since it was sent.
    changed: bool,
    /// When the progress was last sent.
    sent: Instant,
}

/// Why [`Umbilical::listen`] has returned.
pub(super) enum Received {
    /// The connection was closed or failed.
    Closed(io::Error),
    /// The tracker sent a malformed message.
    Malformed(TaskError),
    /// The tracker sent the next attempt.
    Start(Box<TaskStart>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Umbilical {
    /// Returns the account of the tracker.
    pub(super) fn tracker_account(&self) -> io::Result<u32> {
        Ok(rustix::net::sockopt::socket_peercred(&*lock(&self.writer))?.uid.as_raw())
    }

    pub(super) fn new(writer: UnixStream, maps: u32) -> Self {
        let latest =
            LatestProgress { progress: mr::Progress::default(), changed: false, sent: Instant::now() };
        Self {
            writer: Mutex::new(writer),
            latest: Mutex::new(latest),
            control: TaskControl::default(),
            liveness: Liveness::default(),
            feed: Arc::new(MapFeed::new(maps)),
            is_final_sent: AtomicBool::new(false),
        }
    }

    pub(super) fn control(&self) -> TaskControl {
        self.control.clone()
    }

    pub(super) fn liveness(&self) -> Liveness {
        self.liveness.clone()
    }

    pub(super) fn feed(&self) -> Arc<MapFeed> {
        self.feed.clone()
    }

    /// Stores the progress, which is sent later.
    pub(super) fn progress(&self, progress: &Progress) {
        self.liveness.mark_alive();
        let mut latest = lock(&self.latest);
        let known = &mut latest.progress;
        known.done = progress.done;
        known.bytes_in = progress.bytes_in;
        known.bytes_out = progress.bytes_out;
        if known.stage != progress.stage.name() {
            progress.stage.name().clone_into(&mut known.stage);
        }
        if let Some(status) = &progress.status {
            status.clone_into(&mut known.status);
        }
        latest.changed = true;
    }

    /// Sends the progress if it has changed, if a preemption was refused, or if nothing was sent
    /// for `REPORT_INTERVAL_MAX`.
    pub(super) fn send_progress(&self) -> io::Result<()> {
        let progress = {
            let mut latest = lock(&self.latest);
            latest.changed |= latest.progress.refusals != self.control.refusals();
            if !latest.changed && latest.sent.elapsed() < REPORT_INTERVAL_MAX {
                return Ok(());
            }
            latest.changed = false;
            latest.sent = Instant::now();
            latest.progress.activity = self.liveness.count();
            latest.progress.refusals = self.control.refusals();
            latest.progress.set_refused(last_refusal(&self.control));
            latest.progress.clone()
        };
        self.send(from_task::Kind::Progress(progress))
    }

    /// Returns whether the final message was sent.
    pub(super) fn final_message_sent(&self) -> bool {
        self.is_final_sent.load(Ordering::Relaxed)
    }

    /// Sends a message. Any message other than progress and failed fetches is the final message.
    pub(super) fn send(&self, kind: from_task::Kind) -> io::Result<()> {
        if !matches!(kind, from_task::Kind::Progress(_) | from_task::Kind::FetchFailed(_)) {
            self.is_final_sent.store(true, Ordering::Relaxed);
        }
        write_frame(&mut *lock(&self.writer), &FromTask { kind: Some(kind) })
    }

    /// Reads messages until the connection is closed or another attempt starts.
    pub(super) fn listen(&self, mut reader: UnixStream) -> Received {
        loop {
            let received = match read_frame::<ToTask>(&mut reader) {
                Ok(Some(received)) => received,
                Ok(None) => return Received::Closed(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => return Received::Closed(error),
            };
            match received.kind {
                Some(to_task::Kind::MapEvents(map_events)) => {
                    if let Err(error) = self.feed.push(map_events) {
                        return Received::Malformed(error);
                    }
                }
                Some(to_task::Kind::Preempt(preempt)) => {
                    match preempt.kind() {
                        // The kind is unknown to this version. The newer tracker ends this process
                        // if necessary.
                        mr::PreemptKind::Unspecified => continue,
                        mr::PreemptKind::Kill => self.control.kill(preempt.why),
                        mr::PreemptKind::Split => self.control.request_preemption(PreemptKind::Split),
                        mr::PreemptKind::Pause => self.control.request_preemption(PreemptKind::Pause),
                    }
                    self.feed.wake();
                }
                Some(to_task::Kind::Start(start)) => return Received::Start(start.into()),
                // A message of a newer tracker that this version does not know.
                None => {}
            }
        }
    }
}

fn last_refusal(control: &TaskControl) -> proto::mr::PreemptRefusal {
    match control.last_refusal() {
        None => proto::mr::PreemptRefusal::Unspecified,
        Some(PreemptRefusal::NoSpace) => proto::mr::PreemptRefusal::NoSpace,
        Some(PreemptRefusal::ReducerNotSavable) => proto::mr::PreemptRefusal::ReducerNotSavable,
        Some(PreemptRefusal::MapperNotDivisible) => proto::mr::PreemptRefusal::MapperNotDivisible,
    }
}
