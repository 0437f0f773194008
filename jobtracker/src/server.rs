//! The JobTracker's service for people and programs: each method is a few lines around the driver.

use crate::{driver::Driver, error::Refusal, history, submit, wire};
use daemon::serve::stream_chunks;
use mrcore::{Cluster, ids::JobId, job::Job};
use proto::mr::{self as pb, job_tracker_server::JobTracker};
use schedulers::{Params, timed::DecisionTimes};
use security::Identity;
use std::{
    collections::BTreeSet,
    io::{self, Read},
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{Semaphore, mpsc},
    time::{Instant, timeout_at},
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

/// At least this long between two messages of one watch, except before the last.
const WATCH_PERIOD: Duration = Duration::from_millis(100);
/// And this many times as long as the last one was in the making, up to a limit.
const WATCH_DIVISOR: u32 = 10;
const WATCH_PERIOD_MAX: Duration = Duration::from_secs(5);
/// History goes in messages of about this size.
const CHUNK_BYTES: usize = 1 << 20;
/// Histories read at one time.
pub(crate) const READERS_MAX: usize = 64;
/// Jobs whose inputs are looked at and cut at one time.
pub(crate) const SUBMISSIONS_MAX: usize = 256;

/// Streams that follow a job at one time.
pub(crate) const WATCHERS_MAX: usize = 4096;

type Answer<T> = Result<Response<T>, Status>;
type Chunks<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Serves clients.
#[derive(Clone)]
pub(crate) struct ClientService {
    pub(crate) driver: Arc<Driver>,
    pub(crate) histories: PathBuf,
    pub(crate) params: Arc<Params>,
    pub(crate) decision_times: Arc<DecisionTimes>,
    /// Histories that may yet be read at this time.
    pub(crate) readers: Arc<Semaphore>,
    /// Jobs that may yet be taken in.
    pub(crate) submitting: Arc<Semaphore>,
    /// Streams that may yet follow a job.
    pub(crate) watchers: Arc<Semaphore>,
    /// The queues that a job may name, if not any.
    pub(crate) queues: Arc<Option<BTreeSet<String>>>,
}

impl ClientService {
    async fn of_job<T>(&self, id: JobId, read: impl FnOnce(&Cluster, &Job) -> T) -> Result<T, Refusal> {
        let found = self.driver.read(|cluster| cluster.job(id).map(|job| read(cluster, job))).await?;
        found.ok_or_else(|| self.unknown(id))
    }

    /// Whether the caller may do to the job what only its owner may. A job that is not remembered has its owner in its
    /// history.
    async fn permit(&self, who: &Identity, id: JobId) -> Result<(), Refusal> {
        if who.superuser {
            return Ok(());
        }
        let found = self.driver.read(|cluster| cluster.job(id).map(|job| job.spec.user.clone())).await?;
        let owner = found.or_else(|| history::owner(&self.histories, id)).ok_or_else(|| self.unknown(id))?;
        if who.owns(&owner) {
            return Ok(());
        }
        Err(Refusal::denied(format!("{id} is {owner}'s: {} may not do this with it", who.name)))
    }

    /// A queue that nobody configured would share the default one and escape the caps of those that somebody did.
    fn check_queue(&self, name: &str) -> Result<(), Refusal> {
        let Some(queues) = self.queues.as_ref().as_ref().filter(|queues| !queues.contains(name)) else {
            return Ok(());
        };
        let known: Vec<&str> = queues.iter().map(String::as_str).collect();
        Err(Refusal::invalid(format!("there is no queue {name:?}: the queues are {}", known.join(", "))))
    }

    /// A job may be too old to be remembered.
    fn unknown(&self, id: JobId) -> Refusal {
        let known = history::path_of(&self.histories, id).exists();
        Refusal::not_found(if known {
            format!("{id} has ended and is no longer in memory; see `mrctl history {id}`")
        } else {
            format!("there is no {id}")
        })
    }

    /// Status and whether the job has ended.
    async fn status(&self, who: &Identity, id: JobId) -> Result<(pb::JobStatus, bool), Refusal> {
        self.of_job(id, |cluster, job| (wire::job_status(cluster, job, who, true), job.is_over())).await
    }

    /// Sends a job's status whenever it has changed, until it is over or nobody listens.
    async fn watch_job(self, who: Identity, id: JobId, to: mpsc::Sender<Result<pb::JobStatus, Status>>) {
        let mut watch_job = self.driver.watch_job(id);
        loop {
            watch_job.mark_unchanged();
            let began = Instant::now();
            let status = self.status(&who, id).await;
            let over = !matches!(status, Ok((_, false)));
            // Of a job with very many tasks a status is long in the making, and trackers wait meanwhile.
            let next =
                Instant::now() + (began.elapsed() * WATCH_DIVISOR).clamp(WATCH_PERIOD, WATCH_PERIOD_MAX);
            let message = status.map(|(status, _)| status).map_err(Status::from);
            if to.send(message).await.is_err() || over {
                return;
            }
            tokio::select! {
                changed = watch_job.changed() => if changed.is_err() { return },
                () = to.closed() => return,
            }
            // The end is told at once; anything else at its time. All who follow a job are woken by every word of it, so
            // the condition variable itself says whether it is over: to ask would keep trackers waiting.
            if timeout_at(next, watch_job.wait_for(|over| *over)).await.is_ok_and(|over| over.is_err()) {
                return;
            }
        }
    }
}

#[tonic::async_trait]
impl JobTracker for ClientService {
    type WatchStream = Chunks<pb::JobStatus>;
    type HistoryStream = Chunks<pb::HistoryChunk>;

    async fn submit(&self, request: Request<pb::SubmitRequest>) -> Answer<pb::SubmitReply> {
        let submission = wire::submission(request)?;
        let _turn = self.submitting.try_acquire().map_err(|_| {
            Refusal::overloaded(format!("{SUBMISSIONS_MAX} jobs are being submitted: try later"))
        })?;
        self.check_queue(&submission.queue)?;
        let job = submit::submit(&self.driver, submission).await?;
        Ok(Response::new(pb::SubmitReply { job: job.to_string() }))
    }

    async fn kill(&self, request: Request<pb::KillRequest>) -> Answer<pb::KillReply> {
        let who = wire::caller(&request)?;
        let (request, job, by) = wire::kill(request)?;
        self.of_job(job, |_, _| ()).await?;
        self.permit(&who, job).await?;
        self.driver.kill(request, job, by).await?;
        Ok(Response::new(pb::KillReply {}))
    }

    async fn preempt(&self, request: Request<pb::PreemptRequest>) -> Answer<pb::PreemptReply> {
        let who = wire::caller(&request)?;
        let (request, attempt, kind, by) = wire::preempt(request)?;
        self.of_job(attempt.job(), |_, _| ()).await?;
        self.permit(&who, attempt.job()).await?;
        self.driver.preempt(request, attempt, kind, by).await?;
        Ok(Response::new(pb::PreemptReply {}))
    }

    async fn resume(&self, request: Request<pb::ResumeRequest>) -> Answer<pb::ResumeReply> {
        let who = wire::caller(&request)?;
        let (request, task, on, by) = wire::resume(request)?;
        self.of_job(task.job, |_, _| ()).await?;
        self.permit(&who, task.job).await?;
        self.driver.resume(request, task, on.as_deref(), by).await?;
        Ok(Response::new(pb::ResumeReply {}))
    }

    async fn drain(&self, request: Request<pb::DrainTrackerRequest>) -> Answer<pb::DrainTrackerReply> {
        let wire::DrainRequest { request, node, within, status_only, by } = wire::drain(request)?;
        let found =
            self.driver.read(|cluster| cluster.tracker_named(&node).map(|tracker| tracker.id)).await?;
        let id = found.ok_or_else(|| Refusal::not_found(format!("there is no tracker {node}")))?;
        if !status_only {
            self.driver.drain(request, id, within, by).await?;
        }
        let status = |core: &mrcore::JobTracker| Some(wire::drain_status(core, core.cluster().tracker(id)?));
        let status = self.driver.read_core(status).await?;
        Ok(Response::new(status.unwrap_or_default()))
    }

    async fn forget_node(&self, request: Request<pb::ForgetNodeRequest>) -> Answer<pb::ForgetNodeReply> {
        let (request, node, by) = wire::forget(request)?;
        self.driver.forget(request, &node, by).await?;
        Ok(Response::new(pb::ForgetNodeReply {}))
    }

    async fn jobs(&self, request: Request<pb::JobsRequest>) -> Answer<pb::JobsReply> {
        let who = wire::caller(&request)?;
        let all = request.into_inner().all;
        let jobs = self.driver.read(|cluster| {
            let jobs = cluster.jobs().filter(|job| all || !job.is_over());
            jobs.map(|job| wire::job_status(cluster, job, &who, false)).collect()
        });
        Ok(Response::new(pb::JobsReply { jobs: jobs.await? }))
    }

    async fn job(&self, request: Request<pb::JobRequest>) -> Answer<pb::JobStatus> {
        let who = wire::caller(&request)?;
        let id = wire::job_id(&request.into_inner().job)?;
        Ok(Response::new(self.status(&who, id).await?.0))
    }

    async fn watch(&self, request: Request<pb::JobRequest>) -> Answer<Self::WatchStream> {
        let who = wire::caller(&request)?;
        let id = wire::job_id(&request.into_inner().job)?;
        self.of_job(id, |_, _| ()).await?;
        let watcher = self
            .watchers
            .clone()
            .try_acquire_owned()
            .map_err(|_| Refusal::overloaded(format!("{WATCHERS_MAX} streams follow jobs: try later")))?;
        let (sender, receiver) = mpsc::channel(1);
        let watching = self.clone().watch_job(who, id, sender);
        tokio::spawn(async move {
            watching.await;
            drop(watcher);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn tasks(&self, request: Request<pb::TasksRequest>) -> Answer<pb::TasksReply> {
        let who = wire::caller(&request)?;
        let (id, which) = wire::tasks(&request.into_inner())?;
        self.permit(&who, id).await?;
        Ok(Response::new(self.of_job(id, |cluster, job| wire::task_statuses(cluster, job, which)).await?))
    }

    async fn trackers(&self, _: Request<pb::TrackersRequest>) -> Answer<pb::TrackersReply> {
        let now = self.driver.now();
        let trackers = self.driver.read_core(|core| wire::tracker_infos(core, now)).await?;
        Ok(Response::new(pb::TrackersReply { trackers, notices: self.driver.notices() }))
    }

    async fn why(&self, request: Request<pb::WhyRequest>) -> Answer<pb::WhyReply> {
        let who = wire::caller(&request)?;
        let subject = wire::subject(&request.into_inner().of)?;
        let now = self.driver.now();
        self.of_job(subject.job(), |_, _| ()).await?;
        self.permit(&who, subject.job()).await?;
        let reply = self.driver.read_core(|core| wire::why(core, &self.params, now, subject)).await?;
        Ok(Response::new(reply.ok_or_else(|| unknown_task(subject))?))
    }

    async fn schedulers(&self, _: Request<pb::SchedulersRequest>) -> Answer<pb::SchedulersReply> {
        // They were checked at the start.
        let described = schedulers::describe(&self.params).unwrap_or_default();
        let deciding = self.decision_times.snapshot();
        Ok(Response::new(self.driver.read_core(|core| wire::schedulers(core, described, deciding)).await?))
    }

    async fn shadow(&self, _: Request<pb::ShadowRequest>) -> Answer<pb::ShadowReply> {
        let reply = self.driver.read_core(|core| wire::shadow(core, &self.params)).await?;
        let message =
            "no policy runs in the shadow: start the jobtracker with --shadow NAME, or set scheduler.shadow";
        Ok(Response::new(reply.ok_or_else(|| Refusal::refused(message))?))
    }

    async fn history(&self, request: Request<pb::JobRequest>) -> Answer<Self::HistoryStream> {
        let who = wire::caller(&request)?;
        let id = wire::job_id(&request.into_inner().job)?;
        self.driver.read(|_| ()).await?;
        self.permit(&who, id).await?;
        self.driver.history_writer().flush().await;
        let path = history::path_of(&self.histories, id);
        let file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let stored_checkpoint = self.driver.config().histories_kept;
                let message = format!(
                    "there is no history of {id}: it never was, or is not of the newest {stored_checkpoint}"
                );
                return Err(Refusal::not_found(message).into());
            }
            Err(error) => return Err(unreadable(id, &error)),
        };
        let reader = self.readers.clone().try_acquire_owned().map_err(|_| {
            Refusal::unavailable(format!("{READERS_MAX} histories are being read: try later"))
        })?;
        let (sender, receiver) = mpsc::channel(2);
        let mut lines = Lines { file, buffer: Vec::new(), ended: false };
        tokio::spawn(async move {
            let _reader = reader;
            let piece = move |lines: io::Result<String>| {
                lines.map(|lines| pb::HistoryChunk { lines }).map_err(|error| unreadable(id, &error))
            };
            stream_chunks(sender, move || lines.next().map(piece)).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

fn unknown_task(subject: wire::Subject) -> Refusal {
    let job = subject.job();
    Refusal::not_found(match subject {
        wire::Subject::Task(task) => format!("there is no task {task}: `mrctl tasks {job}` lists them"),
        wire::Subject::Job(_) => format!("there is no {job}"),
    })
}

fn unreadable(id: JobId, error: &io::Error) -> Status {
    Refusal::unavailable(format!("history of {id} cannot be read: {error}")).into()
}

/// A file in pieces that end with a line where they can, and with a whole character always.
struct Lines<R> {
    file: R,
    buffer: Vec<u8>,
    ended: bool,
}

impl<R: Read> Iterator for Lines<R> {
    type Item = io::Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let read = self.file.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut self.buffer);
            self.ended = !matches!(read, Ok(bytes) if bytes > 0);
            if let Err(error) = read {
                return Some(Err(error));
            }
            let whole = match self.buffer.iter().rposition(|byte| *byte == b'\n') {
                Some(newline) => newline + 1,
                None => match std::str::from_utf8(&self.buffer) {
                    Ok(text) => text.len(),
                    Err(error) => error.valid_up_to(),
                },
            };
            if whole > 0 {
                let rest = self.buffer.split_off(whole);
                let lines = std::mem::replace(&mut self.buffer, rest);
                return Some(Ok(String::from_utf8_lossy(&lines).into_owned()));
            }
        }
        None
    }
}
