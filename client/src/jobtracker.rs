//! The gRPC client of the JobTracker. Converts protobuf messages into the types of `model`.

mod drain;
mod scheduling;
#[cfg(test)]
mod tests;

use crate::rpc::{self, Rpc};
use crate::{
    Error, PreemptKind, Result, Submission,
    error::innermost,
    model::{self, Attempt, Job, PhaseStatus, Preemption, Task, Tracker},
};
use daemon::MasterAddrs;
use dfs_client::{
    BackupPart, BackupStart,
    masters::{AnyReply, Boxed, CallError, ConnectError, Masters},
};
use proto::Reply;
use proto::mr::{self as pb, tracker_logs_client::TrackerLogsClient};
use security::{Credentials, Role};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tonic::{
    Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::{self, Channel},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of HTTP/2 pings. A frozen or disconnected server is detected after this time and
/// [`PONG_TIMEOUT`].
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// How long to wait for the answer to a ping.
const PONG_TIMEOUT: Duration = Duration::from_secs(4);
/// How long a call may take before the listener is notified.
const NOTICE_AFTER: Duration = Duration::from_secs(2);
/// How long a request is repeated while the JobTracker does not reply.
pub(crate) const RETRY_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a connection or a query waits until one of several `JobTrackers` leads.
const LEADER_TIMEOUT: Duration = Duration::from_millis(2500);
/// The pause before a request is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(300);
/// Maximum size of a reply. A page of tasks has about 1 MiB, a job with all its inputs and counters
/// about 2 MiB. The list of 11,000 jobs with the longest paths and errors, the most that the
/// JobTracker has with its default limits, has about 150 MiB.
const REPLY_BYTES_MAX: usize = 256 << 20;
/// A tracker that has not begun to send a log after this time counts as unreachable.
const LOG_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a JobTracker, or to the leader of several.
#[derive(Clone)]
pub struct JobTracker {
    masters: Masters,
    addrs: String,
    user: MetadataValue<Ascii>,
    credentials: Credentials,
    advice: Option<Arc<dyn Fn() -> String + Send + Sync>>,
    listener: Option<Arc<Listener>>,
}

/// Is notified at most once, when a call has no reply after two seconds.
struct Listener {
    notify: Box<dyn Fn(&str) + Send + Sync>,
    is_notified: AtomicBool,
}

/// A stream of status messages of a job.
pub struct Watch {
    from: String,
    stream: Streaming<pb::JobStatus>,
}

impl Watch {
    /// Returns the next status; None after the last status of an ended job.
    pub async fn next(&mut self) -> Result<Option<Job>> {
        let message = self.stream.message().await.map_err(|status| Error::of(&self.from, &status))?;
        Ok(message.map(job))
    }
}

/// Awaits `work`. Calls `notify` with a line about the server at `addr` if `work` takes longer than
/// two seconds.
pub async fn notify_if_slow<T>(
    server: Role,
    addr: &str,
    work: impl Future<Output = T>,
    notify: impl FnOnce(&str),
) -> T {
    let mut work = std::pin::pin!(work);
    if let Ok(done) = tokio::time::timeout(NOTICE_AFTER, &mut work).await {
        return done;
    }
    let seconds = NOTICE_AFTER.as_secs();
    notify(&format!("waiting for the {} at {addr}: no answer for {seconds} s", server.title()));
    work.await
}

/// Connects to a daemon of this role.
pub async fn channel(addr: &str, credentials: &Credentials, server: Role) -> Result<Channel> {
    let endpoint = credentials.endpoint(addr, server).ok_or_else(|| malformed(addr))?.with(configure);
    endpoint.connect().await.map_err(|error| Error::unreachable(server, addr, innermost(&error)))
}

fn configure(endpoint: transport::Endpoint) -> transport::Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PONG_TIMEOUT)
}

fn malformed(addr: &str) -> Error {
    Error::Invalid(format!("address {addr:?} is not host:port"))
}

impl JobTracker {
    /// Connects to the JobTracker at this address, or to the one of several that leads, as `user` if
    /// given.
    pub async fn connect(
        addrs: impl Into<MasterAddrs>,
        user: Option<&str>,
        credentials: Credentials,
    ) -> Result<Self> {
        let own = || credentials.name().map_or_else(daemon::account::user, str::to_owned);
        let user = user.map_or_else(own, str::to_owned);
        let user: MetadataValue<Ascii> = user
            .parse()
            .map_err(|_| Error::Invalid(format!("user name {user:?} is not plain text: set FERMATA_USER")))?;
        let masters =
            Masters::new(Role::JobTracker, &addrs.into(), credentials.clone(), user.clone(), configure);
        let masters = masters.map_err(|addr| malformed(&addr))?;
        let limit = if masters.is_single() { 2 * CONNECT_TIMEOUT } else { LEADER_TIMEOUT };
        let (addrs, role) = (masters.addrs(), Role::JobTracker);
        masters.connect(limit).await.map_err(|error| match error {
            ConnectError::Unreachable(why) => Error::unreachable(role, &addrs, why),
            ConnectError::NoLeader(tried) => Error::no_leader(role, tried),
        })?;
        Ok(Self { masters, addrs, user, credentials, advice: None, listener: None })
    }

    /// Returns a connection that acts on behalf of `user`. In a closed cluster only admins may do this.
    pub fn acting_for(&self, user: &str) -> Result<Self> {
        let user = user.parse().map_err(|_| {
            Error::Invalid(format!("cannot act for user {user:?}: the name is not plain ASCII"))
        })?;
        Ok(Self { user, ..self.clone() })
    }

    /// Sets the function that returns the advice in errors about an unreachable JobTracker.
    #[must_use]
    pub fn with_advice(self, advice: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self { advice: Some(Arc::new(advice)), ..self }
    }

    /// Calls `notify` with one line, at most once, if a call has no reply after two seconds.
    #[must_use]
    pub fn with_listener(self, notify: impl Fn(&str) + Send + Sync + 'static) -> Self {
        let listener = Listener { notify: Box::new(notify), is_notified: AtomicBool::new(false) };
        Self { listener: Some(Arc::new(listener)), ..self }
    }

    /// Returns the address of the JobTracker, or the list of several.
    pub fn addr(&self) -> &str {
        &self.addrs
    }

    /// Returns the address of the JobTracker that calls go to.
    fn leader_addr(&self) -> &str {
        self.masters.addr(self.masters.leader().at)
    }

    /// Returns what the user can do if the JobTracker is unreachable; empty without advice.
    pub fn advice(&self) -> String {
        self.advice.as_ref().map_or_else(String::new, |advice| advice())
    }

    fn refusal(&self, status: &Status) -> Error {
        Error::of(self.leader_addr(), status).with_advice(|| self.advice())
    }

    /// Sends a query. With several `JobTrackers` it is repeated while none of them leads.
    async fn query<M: Clone + Send + Sync, T: Send + 'static>(
        &self,
        call: fn(&Rpc, Request<M>) -> Reply<T>,
        message: M,
    ) -> Result<T> {
        let since = Instant::now();
        let reply = async {
            loop {
                match self.call(call, &message).await {
                    Err(Error::NoLeader { .. }) if since.elapsed() < LEADER_TIMEOUT => {
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                    reply => return reply,
                }
            }
        };
        self.notify_if_slow(reply).await
    }

    /// Sends a message once; with several `JobTrackers`, to the one that leads.
    async fn call<M: Clone + Send + Sync, T: Send + 'static>(
        &self,
        call: fn(&Rpc, Request<M>) -> Reply<T>,
        message: &M,
    ) -> Result<T> {
        let send = |channel| -> Boxed<'static, Result<AnyReply, Status>> {
            let client = Rpc::new(channel).max_decoding_message_size(REPLY_BYTES_MAX);
            let reply = call(&client, self.request(message.clone()));
            Box::pin(async { Ok(Box::new(reply.await?.into_inner()) as AnyReply) })
        };
        // Pings end a call to a JobTracker that does not answer.
        match self.masters.call(Duration::MAX, Duration::MAX, &send).await {
            Ok(reply) => Ok(*reply.downcast().expect("the reply that `send` has boxed")),
            Err(CallError::Status(status)) => Err(self.refusal(&status)),
            Err(CallError::NoLeader(tried)) => {
                Err(Error::no_leader(Role::JobTracker, tried).with_advice(|| self.advice()))
            }
            Err(CallError::Silent) => Err(Error::unreachable(Role::JobTracker, &self.addrs, "no answer")),
        }
    }

    /// Sends a request until it is answered. The JobTracker recognises a repeated request by its
    /// ID and carries it out once, also across a restart. `what` names the request in errors.
    async fn answer<M: Clone + Send + Sync, T: Send + 'static>(
        &self,
        what: impl Fn() -> String,
        call: fn(&Rpc, Request<M>) -> Reply<T>,
        message: M,
    ) -> Result<T> {
        let since = Instant::now();
        let answer = async {
            loop {
                match self.call(call, &message).await {
                    Ok(reply) => return Ok(reply),
                    Err(error) => self.pause_before_retry(error, since, &what).await?,
                }
            }
        };
        self.notify_if_slow(answer).await
    }

    /// Waits until a failed call may be repeated. Returns an error if a retry cannot succeed, or if
    /// there was no reply since `since` for too long.
    async fn pause_before_retry(
        &self,
        error: Error,
        since: Instant,
        what: impl Fn() -> String,
    ) -> Result<()> {
        if !error.is_transient() {
            return Err(error);
        }
        if since.elapsed() > RETRY_TIMEOUT {
            let why = match error {
                Error::Unreachable { why, .. } | Error::NoLeader { tried: why, .. } => why,
                other => other.to_string(),
            };
            let (addr, what, seconds) = (self.addrs.clone(), what(), RETRY_TIMEOUT.as_secs());
            return Err(Error::NoReply { addr, what, seconds, why, advice: self.advice() });
        }
        tokio::time::sleep(RETRY_PAUSE).await;
        Ok(())
    }

    async fn notify_if_slow<T>(&self, work: impl Future<Output = T>) -> T {
        let notify = |line: &str| {
            if let Some(listener) = &self.listener
                && !listener.is_notified.swap(true, Ordering::Relaxed)
            {
                (listener.notify)(line);
            }
        };
        notify_if_slow(Role::JobTracker, &self.addrs, work, notify).await
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        self.credentials.sign(request.metadata_mut(), &self.user);
        request
    }

    /// Submits a job. A submission that is repeated creates no second job.
    pub async fn submit(&self, submission: Submission) -> Result<String> {
        use pb::program::Kind as Program;
        let kind = match (submission.builtin, submission.executable) {
            (Some(name), None) => Program::Builtin(name),
            (None, Some(path)) => Program::Executable(path),
            _ => {
                let why = "a job is either a built-in program or an executable";
                return Err(Error::Invalid(why.into()));
            }
        };
        let message = pb::SubmitRequest {
            request_id: new_request_id(),
            name: submission.name,
            queue: submission.queue,
            priority: submission.priority,
            program: Some(pb::Program {
                kind: Some(kind),
                files: submission.files,
                settings: submission.declared,
            }),
            inputs: submission.inputs,
            output: submission.output,
            reduces: submission.reduces,
            conf: submission.conf.into_iter().collect(),
            staging: submission.staging,
            divisible: submission.divisible,
        };
        Ok(self.answer(|| "the submission".into(), rpc::submit, message).await?.job)
    }

    /// Kills a job. Returns its status afterwards.
    pub async fn kill(&self, id: &str) -> Result<Job> {
        let message = pb::KillRequest { request_id: new_request_id(), job: id.into() };
        self.answer(|| format!("the request to kill {id}"), rpc::kill, message).await?;
        // The JobTracker may die between the two: the job is killed, and the command must say so.
        let message = pb::JobRequest { job: id.into() };
        Ok(job(self
            .answer(|| format!("the query of {id} after the request to kill it"), rpc::job, message)
            .await?))
    }

    /// Requests the preemption of an attempt. [`JobTracker::resume`] resumes a paused task. The
    /// program may refuse the request; [`JobTracker::why`] shows the refusal.
    pub async fn preempt(&self, attempt: &str, kind: PreemptKind) -> Result<()> {
        let request_id = new_request_id();
        let kind = match kind {
            PreemptKind::Split => pb::PreemptKind::Split,
            PreemptKind::Pause => pb::PreemptKind::Pause,
            PreemptKind::Kill => pb::PreemptKind::Kill,
        };
        let message = pb::PreemptRequest { request_id, attempt: attempt.into(), kind: kind.into() };
        self.answer(|| format!("the request to preempt {attempt}"), rpc::preempt, message).await?;
        Ok(())
    }

    /// Resumes a paused task, on the tracker `on` if given.
    pub async fn resume(&self, task: &str, on: Option<&str>) -> Result<()> {
        let on = on.unwrap_or_default().into();
        let message = pb::ResumeRequest { request_id: new_request_id(), task: task.into(), on };
        self.answer(|| format!("the request to resume {task}"), rpc::resume, message).await?;
        Ok(())
    }

    /// Returns the active jobs; with `all`, also the ended jobs that the JobTracker has not
    /// forgotten.
    pub async fn jobs(&self, all: bool) -> Result<Vec<Job>> {
        let reply = self.query(rpc::jobs, pb::JobsRequest { all }).await?;
        Ok(reply.jobs.into_iter().map(job).collect())
    }

    /// Returns the status of a job.
    pub async fn job(&self, id: &str) -> Result<Job> {
        let message = pb::JobRequest { job: id.into() };
        Ok(job(self.query(rpc::job, message).await?))
    }

    /// Streams the status of a job until it ends or the connection breaks. [`JobTracker::follow`]
    /// reconnects.
    pub async fn watch(&self, id: &str) -> Result<Watch> {
        let message = pb::JobRequest { job: id.into() };
        let stream = self.query(rpc::watch, message).await?;
        Ok(Watch { from: self.leader_addr().to_owned(), stream })
    }

    /// Returns all tasks of a job.
    pub async fn tasks(&self, id: &str) -> Result<Vec<Task>> {
        let mut tasks: Vec<Task> = Vec::new();
        loop {
            let after = tasks.last().map_or_else(String::new, |last| last.task.clone());
            let page = pb::TasksRequest { job: id.into(), after, only: String::new() };
            let pb::TasksReply { tasks: page, more } = self.query_tasks(page).await?;
            let end = page.is_empty() || !more;
            tasks.extend(page.into_iter().map(task));
            if end {
                break;
            }
        }
        model::find_remainders(&mut tasks);
        Ok(tasks)
    }

    /// Returns one task. `remainder_of` is not set, because that needs all tasks.
    pub async fn task(&self, id: &str) -> Result<Option<Task>> {
        let job = id.split('.').next().unwrap_or_default().to_owned();
        let one = pb::TasksRequest { job, after: String::new(), only: id.into() };
        Ok(self.query_tasks(one).await?.tasks.pop().map(task))
    }

    async fn query_tasks(&self, which: pb::TasksRequest) -> Result<pb::TasksReply> {
        self.query(rpc::tasks, which).await
    }

    /// Returns all trackers.
    pub async fn trackers(&self) -> Result<Vec<Tracker>> {
        Ok(self.trackers_and_notices().await?.0)
    }

    /// Returns all trackers, and the JobTracker's warnings for its operator, one per line.
    pub async fn trackers_and_notices(&self) -> Result<(Vec<Tracker>, Vec<String>)> {
        let reply = self.query(rpc::trackers, pb::TrackersRequest {}).await?;
        let pb::TrackersReply { trackers, notices, .. } = reply;
        Ok((trackers.into_iter().map(tracker).collect(), notices))
    }

    /// Removes a lost tracker from the JobTracker's list of trackers.
    pub async fn forget_node(&self, name: &str) -> Result<()> {
        let message = pb::ForgetNodeRequest { request_id: new_request_id(), node: name.into() };
        self.answer(|| format!("the request to forget {name}"), rpc::forget_node, message).await?;
        Ok(())
    }

    /// Passes each chunk of the history of a job to `sink`. Continues after the last chunk if the
    /// connection breaks.
    pub async fn history<E: From<Error>>(
        &self,
        id: &str,
        mut sink: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut message = pb::HistoryRequest { job: id.into(), offset: 0 };
        let mut since = Instant::now();
        loop {
            let error = match self.query(rpc::history, message.clone()).await {
                Ok(mut chunks) => loop {
                    match chunks.message().await {
                        Ok(Some(chunk)) => {
                            sink(&chunk.lines)?;
                            (message.offset, since) = (chunk.next_offset, Instant::now());
                        }
                        Ok(None) => return Ok(()),
                        Err(status) => break self.refusal(&status),
                    }
                },
                Err(error) => error,
            };
            if message.offset == 0 {
                return Err(error.into());
            }
            let what = || format!("the request for the rest of the history of {id}");
            self.pause_before_retry(error, since, what).await?;
        }
    }

    /// Makes a snapshot on the JobTracker and passes each part of a backup to `sink`. The backup is
    /// complete if its last part was [`BackupPart::End`].
    pub async fn backup<E: From<Error>>(
        &self,
        mut sink: impl FnMut(BackupPart) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut chunks = self.query(rpc::backup, pb::BackupRequest {}).await?;
        loop {
            match chunks.message().await {
                Ok(Some(chunk)) => sink(backup_part(chunk))?,
                Ok(None) => return Ok(()),
                Err(status) => return Err(self.refusal(&status).into()),
            }
        }
    }

    /// Passes each chunk of the log of an attempt to `sink`.
    pub async fn log<E: From<Error>>(
        &self,
        attempt: &Attempt,
        stderr: bool,
        tail_bytes: u64,
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Attempt { attempt: id, tracker: node, logs_addr: addr, .. } = attempt;
        let silent =
            || Error::LogsUnreachable { attempt: id.clone(), node: node.clone(), addr: addr.clone() };
        let channel = channel(addr, &self.credentials, Role::TaskTracker);
        let mut client = TrackerLogsClient::new(channel.await.map_err(|_| silent())?);
        let message = self.request(pb::LogRequest { attempt: id.clone(), stderr, tail_bytes });
        let asked = tokio::time::timeout(LOG_TIMEOUT, client.log(message)).await.map_err(|_| silent())?;
        let refused = |status: Status| match Error::of(addr, &status) {
            refusal if refusal.is_transient() => silent(),
            refusal => refusal,
        };
        let mut chunks = asked.map_err(refused)?.into_inner();
        while let Some(chunk) = chunks.message().await.map_err(refused)? {
            sink(&chunk.data)?;
        }
        Ok(())
    }
}

fn new_request_id() -> Vec<u8> {
    uuid::Uuid::new_v4().as_bytes().to_vec()
}

fn backup_part(chunk: pb::BackupChunk) -> BackupPart {
    match chunk.start {
        Some(pb::BackupStart { cluster_id, layout, journal, last_record, bytes }) => {
            BackupPart::Start(BackupStart { cluster_id, layout, journal, last_record, bytes })
        }
        None if !chunk.file.is_empty() => BackupPart::File(chunk.file),
        None if !chunk.data.is_empty() => BackupPart::Data(chunk.data),
        None => BackupPart::End(chunk.files),
    }
}

fn phase(phase: Option<pb::PhaseStatus>) -> PhaseStatus {
    let phase = phase.unwrap_or_default();
    PhaseStatus {
        total: phase.total,
        pending: phase.pending,
        running: phase.running,
        done: phase.done,
        failed_attempts: phase.failed_attempts,
        killed_attempts: phase.killed_attempts,
        progress: phase.progress,
        paused: phase.paused,
    }
}

fn job(job: pb::JobStatus) -> Job {
    Job {
        job: job.job,
        name: job.name,
        user: job.user,
        queue: job.queue,
        priority: job.priority,
        program: job.program,
        state: job.state,
        why: job.why,
        submitted_ms: job.submitted_ms,
        started_ms: job.started_ms,
        ended_ms: job.ended_ms,
        maps: phase(job.maps),
        reduces: phase(job.reduces),
        local_maps: job.local_maps,
        rack_maps: job.rack_maps,
        inputs: job.inputs,
        more_inputs: job.more_inputs,
        output: job.output,
        counters: job.counters.into_iter().collect(),
        preemption: preemption(job.preemption.unwrap_or_default()),
        partial: job.partial,
    }
}

fn preemption(of: pb::Preemption) -> Preemption {
    Preemption {
        splits: of.splits,
        pauses: of.pauses,
        resumes: of.resumes,
        migrations: of.migrations,
        kills: of.kills,
        checkpoints_lost: of.checkpoints_lost,
        bytes_saved: of.bytes_saved,
        ms_saved: of.ms_saved,
        bytes_lost: of.bytes_lost,
        ms_lost: of.ms_lost,
        checkpoint_bytes: of.checkpoint_bytes,
        latency_ms: of.latency_ms,
    }
}

fn task(task: pb::TaskStatus) -> Task {
    Task {
        task: task.task,
        state: task.state,
        source: task.source,
        start: task.start,
        end: task.end,
        attempts: task.attempts.into_iter().map(attempt).collect(),
        root: task.root,
        remainder_of: None,
        on_hold: task.on_hold,
        paused: task.paused,
        paused_on: task.paused_on,
        paused_bytes: task.paused_bytes,
    }
}

fn attempt(attempt: pb::AttemptInfo) -> Attempt {
    Attempt {
        attempt: attempt.attempt,
        tracker: attempt.tracker,
        logs_addr: attempt.logs_addr,
        state: attempt.state,
        progress: attempt.progress,
        stage: attempt.stage,
        launched_ms: attempt.launched_ms,
        ended_ms: attempt.ended_ms,
        speculative: attempt.speculative,
        locality: attempt.locality,
        why: attempt.why,
        error: attempt.error,
        resumed_from: attempt.resumed_from,
        preempt_kind: attempt.preempt_kind,
        preempted_ms: attempt.preempted_ms,
        output_lost_on: attempt.output_lost_on,
        counters: attempt.counters.into_iter().collect(),
    }
}

fn tracker(tracker: pb::TrackerInfo) -> Tracker {
    Tracker {
        name: tracker.name,
        host: tracker.host,
        rack: tracker.rack,
        state: tracker.state,
        map_slots: tracker.map_slots,
        reduce_slots: tracker.reduce_slots,
        maps_running: tracker.maps_running,
        reduces_running: tracker.reduces_running,
        last_heartbeat_ms_ago: tracker.last_heartbeat_ms_ago,
        map_rates: scheduling::throughput(tracker.maps),
        reduce_rates: scheduling::throughput(tracker.reduces),
    }
}
