//! The task's end of the umbilical: what is to be told, and what has been heard.

use super::frame::{read_frame, write_frame};
use crate::{
    engine::{Liveness, PreemptRefusal, PreemptRequest, Progress, TaskControl},
    error::TaskError,
    fetch::MapFeed,
};
use proto::mr::{self, FromTask, PreemptKind, TaskStart, ToTask, from_task, to_task};
use std::{
    io,
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Progress is sent at least this often, as a sign of life.
const REPORT_INTERVAL_MAX: Duration = Duration::from_secs(2);

/// Shared by the thread that runs the task, the one that reads, and the one that tells.
pub(super) struct Umbilical {
    writer: Mutex<UnixStream>,
    latest: Mutex<Latest>,
    stop: TaskControl,
    liveness: Liveness,
    feed: Arc<MapFeed>,
    /// The last word has been said.
    over: AtomicBool,
}

struct Latest {
    progress: mr::Progress,
    changed: bool,
    sent: Instant,
}

/// What listening has come to.
pub(super) enum Received {
    /// The tracker's end was closed, or broke.
    End(io::Error),
    /// It said what makes no sense.
    Nonsense(TaskError),
    /// Another attempt: this one is over.
    Start(Box<TaskStart>),
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Umbilical {
    /// The account of the tracker.
    pub(super) fn tracker_account(&self) -> io::Result<u32> {
        Ok(rustix::net::sockopt::socket_peercred(&*locked(&self.writer))?.uid.as_raw())
    }

    pub(super) fn new(writer: UnixStream, maps: u32) -> Self {
        let latest = Latest { progress: mr::Progress::default(), changed: false, sent: Instant::now() };
        Self {
            writer: Mutex::new(writer),
            latest: Mutex::new(latest),
            stop: TaskControl::default(),
            liveness: Liveness::default(),
            feed: Arc::new(MapFeed::new(maps)),
            over: AtomicBool::new(false),
        }
    }

    pub(super) fn stop(&self) -> TaskControl {
        self.stop.clone()
    }

    pub(super) fn liveness(&self) -> Liveness {
        self.liveness.clone()
    }

    pub(super) fn feed(&self) -> Arc<MapFeed> {
        self.feed.clone()
    }

    /// Notes how far the task is; it is sent when its time comes.
    pub(super) fn progress(&self, progress: &Progress) {
        self.liveness.mark_alive();
        let mut latest = locked(&self.latest);
        let known = &mut latest.progress;
        known.done = progress.done;
        known.bytes_in = progress.bytes_in;
        known.bytes_out = progress.bytes_out;
        if known.stage != progress.stage {
            progress.stage.clone_into(&mut known.stage);
        }
        if let Some(status) = &progress.status {
            status.clone_into(&mut known.status);
        }
        latest.changed = true;
    }

    /// Sends progress if there is news, or if the tracker has heard nothing for long.
    pub(super) fn send_progress(&self) -> io::Result<()> {
        let progress = {
            let mut latest = locked(&self.latest);
            if !latest.changed && latest.sent.elapsed() < REPORT_INTERVAL_MAX {
                return Ok(());
            }
            latest.changed = false;
            latest.sent = Instant::now();
            latest.progress.activity = self.liveness.count();
            latest.progress.refusals = self.stop.refusals();
            latest.progress.set_refused(refused(&self.stop));
            latest.progress.clone()
        };
        self.send(from_task::Kind::Progress(progress))
    }

    /// Whether the last message has been said.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub(super) fn send(&self, kind: from_task::Kind) -> io::Result<()> {
        if !matches!(kind, from_task::Kind::Progress(_) | from_task::Kind::FetchFailed(_)) {
            self.over.store(true, Ordering::Relaxed);
        }
        write_frame(&mut *locked(&self.writer), &FromTask { kind: Some(kind) })
    }

    /// Reads until the tracker's end is closed, or another attempt begins.
    pub(super) fn listen(&self, mut reader: UnixStream) -> Received {
        loop {
            let received = match read_frame::<ToTask>(&mut reader) {
                Ok(Some(received)) => received,
                Ok(None) => return Received::End(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => return Received::End(error),
            };
            match received.kind {
                Some(to_task::Kind::MapEvents(news)) => {
                    if let Err(error) = self.feed.push(news) {
                        return Received::Nonsense(error);
                    }
                }
                Some(to_task::Kind::Preempt(stop)) => {
                    match stop.kind() {
                        // Of a newer tracker, which will end this process if it must.
                        PreemptKind::Unspecified => continue,
                        PreemptKind::Kill => self.stop.set(stop.why),
                        PreemptKind::Split => self.stop.request_preemption(PreemptRequest::Split),
                        PreemptKind::Pause => self.stop.request_preemption(PreemptRequest::Pause),
                    }
                    self.feed.wake();
                }
                Some(to_task::Kind::Start(start)) => return Received::Start(start.into()),
                // Something of a newer tracker.
                None => {}
            }
        }
    }
}

fn refused(stop: &TaskControl) -> proto::mr::PreemptRefusal {
    match stop.refused() {
        None => proto::mr::PreemptRefusal::Unspecified,
        Some(PreemptRefusal::NoSpace) => proto::mr::PreemptRefusal::NoSpace,
        Some(PreemptRefusal::ReducerNotSavable) => proto::mr::PreemptRefusal::ReducerNotSavable,
        Some(PreemptRefusal::MapperNotDivisible) => proto::mr::PreemptRefusal::MapperNotDivisible,
    }
}
