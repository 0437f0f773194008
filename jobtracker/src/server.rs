//! The gRPC service for clients. Each method is a few lines around the driver.

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

/// Minimum time between two messages of a watch. The last message does not wait.
const WATCH_PERIOD: Duration = Duration::from_millis(100);
/// The time between two messages is also at least this many times the time to build a status, up to
/// [`WATCH_PERIOD_MAX`].
const WATCH_COST_FACTOR: u32 = 10;
const WATCH_PERIOD_MAX: Duration = Duration::from_secs(5);
/// Approximate size of a message with a part of a history.
const CHUNK_BYTES: usize = 1 << 20;
/// Histories that may be read at the same time.
pub(crate) const READERS_MAX: usize = 64;
/// Submissions that may be processed at the same time.
pub(crate) const SUBMISSIONS_MAX: usize = 256;

/// Watches of jobs that may be open at the same time.
pub(crate) const WATCHERS_MAX: usize = 4096;

type Answer<T> = Result<Response<T>, Status>;
type Chunks<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Clone)]
pub(crate) struct ClientService {
    pub(crate) driver: Arc<Driver>,
    pub(crate) histories: PathBuf,
    pub(crate) params: Arc<Params>,
    pub(crate) decision_times: Arc<DecisionTimes>,
    /// Permits for reading histories.
    pub(crate) readers: Arc<Semaphore>,
    /// Permits for submissions.
    pub(crate) submitting: Arc<Semaphore>,
    /// Permits for watches.
    pub(crate) watchers: Arc<Semaphore>,
    /// The queues that a job may name; None if any name is allowed.
    pub(crate) queues: Arc<Option<BTreeSet<String>>>,
}

impl ClientService {
    async fn of_job<T>(&self, id: JobId, read: impl FnOnce(&Cluster, &Job) -> T) -> Result<T, Refusal> {
        let found = self.driver.read(|cluster| cluster.job(id).map(|job| read(cluster, job))).await?;
        found.ok_or_else(|| self.unknown(id))
    }

    /// Checks that the caller owns the job or is an admin. If the job is no longer in memory, its
    /// history has the owner.
    async fn permit(&self, who: &Identity, id: JobId) -> Result<(), Refusal> {
        if who.superuser {
            return Ok(());
        }
        let found = self.driver.read(|cluster| cluster.job(id).map(|job| job.spec.user.clone())).await?;
        let owner = found.or_else(|| history::owner(&self.histories, id)).ok_or_else(|| self.unknown(id))?;
        if who.owns(&owner) {
            return Ok(());
        }
        Err(Refusal::denied(format!("{id} belongs to {owner}: {} may not do this", who.name)))
    }

    /// Checks that the queue is configured. A job in an unknown queue would share the default one
    /// and avoid the limits of its own.
    fn check_queue(&self, name: &str) -> Result<(), Refusal> {
        let Some(queues) = self.queues.as_ref().as_ref().filter(|queues| !queues.contains(name)) else {
            return Ok(());
        };
        let known: Vec<&str> = queues.iter().map(String::as_str).collect();
        Err(Refusal::invalid(format!("there is no queue {name:?}: the queues are {}", known.join(", "))))
    }

    /// The refusal for a job that is not in memory: it may have ended long ago, or never existed.
    fn unknown(&self, id: JobId) -> Refusal {
        let known = history::path_of(&self.histories, id).exists();
        Refusal::not_found(if known {
            format!("{id} has ended and is no longer in memory; see `mrctl history {id}`")
        } else {
            no_job(id)
        })
    }

    /// The status of a job, and whether it has ended.
    async fn status(&self, who: &Identity, id: JobId) -> Result<(pb::JobStatus, bool), Refusal> {
        self.of_job(id, |cluster, job| (self.encode(cluster, job, who, true), job.is_over())).await
    }

    /// Encodes a job, with the reason why its output cannot be written now.
    fn encode(&self, cluster: &Cluster, job: &Job, who: &Identity, with_counters: bool) -> pb::JobStatus {
        let mut status = wire::job_status(cluster, job, who, with_counters);
        if let Some(reason) = self.driver.not_writable(job) {
            status.why = format!("waits: {reason}");
        }
        status
    }

    /// Sends the status of a job whenever it has changed, until the job ends or the client
    /// disconnects.
    async fn watch_job(self, who: Identity, id: JobId, to: mpsc::Sender<Result<pb::JobStatus, Status>>) {
        let mut changes = self.driver.watch_job(id);
        loop {
            changes.mark_unchanged();
            let began = Instant::now();
            let status = self.status(&who, id).await;
            let over = !matches!(status, Ok((_, false)));
            // The status of a job with very many tasks takes long to build, and trackers wait for
            // the lock.
            let next =
                Instant::now() + (began.elapsed() * WATCH_COST_FACTOR).clamp(WATCH_PERIOD, WATCH_PERIOD_MAX);
            let message = status.map(|(status, _)| status).map_err(Status::from);
            if to.send(message).await.is_err() || over {
                return;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = to.closed() => return,
            }
            // Wait for the next message, or less if the job ends. The watch channel has the answer;
            // reading the cluster for every change would keep trackers waiting for the lock.
            if timeout_at(next, changes.wait_for(|over| *over)).await.is_ok_and(|over| over.is_err()) {
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
        let id = found.ok_or_else(|| Refusal::unknown_node(&node))?;
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
            jobs.map(|job| self.encode(cluster, job, &who, false)).collect()
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
        let reply = self.driver.read_core(|core| {
            let not_writable =
                core.cluster().job(subject.job()).and_then(|job| self.driver.not_writable(job));
            wire::why(core, &self.params, now, subject, not_writable)
        });
        let reply = reply.await?;
        Ok(Response::new(reply.ok_or_else(|| unknown_task(subject))?))
    }

    async fn schedulers(&self, _: Request<pb::SchedulersRequest>) -> Answer<pb::SchedulersReply> {
        // The parameters were checked at the start.
        let described = schedulers::describe(&self.params).unwrap_or_default();
        let deciding = self.decision_times.snapshot();
        Ok(Response::new(self.driver.read_core(|core| wire::schedulers(core, described, deciding)).await?))
    }

    async fn shadow(&self, _: Request<pb::ShadowRequest>) -> Answer<pb::ShadowReply> {
        let reply = self.driver.read_core(|core| wire::shadow(core, &self.params)).await?;
        let message =
            "no shadow policy runs: start the jobtracker with --shadow NAME, or set scheduler.shadow";
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
                let histories_kept = self.driver.config().histories_kept;
                let message = format!(
                    "there is no history of {id}: the job does not exist, or its history is not among the newest {histories_kept}"
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
        wire::Subject::Job(_) => no_job(job),
    })
}

fn no_job(id: JobId) -> String {
    format!("there is no {id}: `mrctl jobs` lists the jobs")
}

fn unreadable(id: JobId, error: &io::Error) -> Status {
    Refusal::unavailable(format!("history of {id} cannot be read: {error}")).into()
}

/// Reads a file in chunks that end with a line if possible, and never within a character.
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
