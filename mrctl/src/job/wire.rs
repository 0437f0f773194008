//! The JobTracker over gRPC: nothing but this module knows wire types of jobs.

mod scheduling;

use super::{
    model::{Attempt, Job, Phase, Task, Tracker},
    preempt::How,
};
use anyhow::{Context, Result, anyhow, bail};
use dfs::client::ClientOptions;
use proto::mr::{self as pb, job_tracker_client::JobTrackerClient, tracker_logs_client::TrackerLogsClient};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tonic::{
    Code, Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long a submission is repeated while there is no answer.
const SUBMIT_PATIENCE: Duration = Duration::from_secs(10);
/// A tracker that has not begun to send a log by then is as good as gone.
const LOG_WITHIN: Duration = Duration::from_secs(10);

/// Nobody knows what became of a submission.
#[derive(Debug, thiserror::Error)]
#[error("the JobTracker at {addr} does not take the job: {why}; `mrctl jobs` shows whether it has")]
pub(crate) struct Unanswered {
    addr: String,
    why: String,
}

/// A job to be submitted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Submission {
    pub(crate) name: String,
    pub(crate) queue: String,
    pub(crate) priority: String,
    pub(crate) builtin: Option<String>,
    pub(crate) executable: Option<String>,
    pub(crate) files: Vec<String>,
    pub(crate) inputs: Vec<String>,
    pub(crate) output: String,
    pub(crate) reduces: u32,
    pub(crate) conf: BTreeMap<String, String>,
}

/// A connection to a JobTracker.
#[derive(Clone)]
pub(crate) struct JobTracker {
    client: JobTrackerClient<Channel>,
    addr: String,
    user: MetadataValue<Ascii>,
}

/// A job's status, again and again.
pub(crate) struct Watch(Streaming<pb::JobStatus>);

impl Watch {
    /// The next status; None when the job is over and has been told.
    pub(crate) async fn next(&mut self) -> Result<Option<Job>> {
        Ok(self.0.message().await.map_err(refusal)?.map(job))
    }
}

async fn channel(addr: &str, what: &str) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{addr}"))
        .with_context(|| format!("{what} address {addr:?} is not host:port"))?;
    let connecting = endpoint.connect_timeout(CONNECT_WITHIN).tcp_nodelay(true).connect().await;
    connecting
        .map_err(|_| anyhow!("cannot reach the {what} at {addr}: is it running? start one with `mrctl up`"))
}

/// Whether there was no answer, rather than a refusal.
fn is_passing(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Cancelled | Code::Unknown)
}

/// A refusal is shown in the server's own words.
fn refusal(status: Status) -> anyhow::Error {
    if is_passing(&status) {
        return anyhow!("the JobTracker does not answer: {}", status.message());
    }
    anyhow!("{}", status.message())
}

impl JobTracker {
    /// Connects, as `user` if one is named.
    pub(crate) async fn connect(addr: &str, user: Option<&str>) -> Result<Self> {
        let client = JobTrackerClient::new(channel(addr, "JobTracker").await?);
        let own = || ClientOptions::new("", daemon::config::ClientConfig::default()).user;
        let user = user.map_or_else(own, str::to_owned);
        let user =
            user.parse().map_err(|_| anyhow!("user name {user:?} is not plain text: set FERMATA_USER"))?;
        Ok(Self { client, addr: addr.into(), user })
    }

    pub(crate) fn addr(&self) -> &str {
        &self.addr
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("fermata-user", self.user.clone());
        request
    }

    /// Submits; sent again with the same id if the answer is lost, which makes no second job.
    pub(crate) async fn submit(&self, submission: Submission) -> Result<String> {
        use pb::program::Kind;
        let kind = match (submission.builtin, submission.executable) {
            (Some(name), None) => Kind::Builtin(name),
            (None, Some(path)) => Kind::Executable(path),
            _ => bail!("a job is either a built-in program or an executable"),
        };
        let message = pb::SubmitRequest {
            request_id: uuid::Uuid::new_v4().as_bytes().to_vec(),
            name: submission.name,
            queue: submission.queue,
            priority: submission.priority,
            program: Some(pb::Program { kind: Some(kind), files: submission.files }),
            inputs: submission.inputs,
            output: submission.output,
            reduces: submission.reduces,
            conf: submission.conf.into_iter().collect(),
        };
        let began = Instant::now();
        loop {
            match self.client.clone().submit(self.request(message.clone())).await {
                Ok(reply) => return Ok(reply.into_inner().job),
                Err(status) if !is_passing(&status) => return Err(refusal(status)),
                Err(status) if began.elapsed() > SUBMIT_PATIENCE => {
                    let (addr, why) = (self.addr.clone(), status.message().to_owned());
                    return Err(Unanswered { addr, why }.into());
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(300)).await,
            }
        }
    }

    pub(crate) async fn kill(&self, job: &str) -> Result<()> {
        let request_id = uuid::Uuid::new_v4().as_bytes().to_vec();
        let message = pb::KillRequest { request_id, job: job.into() };
        self.client.clone().kill(self.request(message)).await.map_err(refusal)?;
        Ok(())
    }

    pub(crate) async fn preempt(&self, attempt: &str, how: How) -> Result<()> {
        let request_id = uuid::Uuid::new_v4().as_bytes().to_vec();
        let how = match how {
            How::Split => pb::Recall::Split,
            How::Kill => pb::Recall::Kill,
        };
        let message = pb::PreemptRequest { request_id, attempt: attempt.into(), how: how.into() };
        self.client.clone().preempt(self.request(message)).await.map_err(refusal)?;
        Ok(())
    }

    pub(crate) async fn jobs(&self, all: bool) -> Result<Vec<Job>> {
        let reply = self.client.clone().jobs(self.request(pb::JobsRequest { all })).await.map_err(refusal)?;
        Ok(reply.into_inner().jobs.into_iter().map(job).collect())
    }

    pub(crate) async fn job(&self, id: &str) -> Result<Job> {
        let message = pb::JobRequest { job: id.into() };
        Ok(job(self.client.clone().job(self.request(message)).await.map_err(refusal)?.into_inner()))
    }

    pub(crate) async fn watch(&self, id: &str) -> Result<Watch> {
        let message = pb::JobRequest { job: id.into() };
        Ok(Watch(self.client.clone().watch(self.request(message)).await.map_err(refusal)?.into_inner()))
    }

    pub(crate) async fn tasks(&self, id: &str) -> Result<Vec<Task>> {
        let message = pb::TasksRequest { job: id.into() };
        let reply = self.client.clone().tasks(self.request(message)).await.map_err(refusal)?;
        Ok(reply.into_inner().tasks.into_iter().map(task).collect())
    }

    pub(crate) async fn trackers(&self) -> Result<Vec<Tracker>> {
        let message = self.request(pb::TrackersRequest {});
        let reply = self.client.clone().trackers(message).await.map_err(refusal)?;
        Ok(reply.into_inner().trackers.into_iter().map(tracker).collect())
    }

    /// Hands each piece of a job's history to `sink`.
    pub(crate) async fn history(&self, id: &str, mut sink: impl FnMut(&str) -> Result<()>) -> Result<()> {
        let message = pb::JobRequest { job: id.into() };
        let mut chunks =
            self.client.clone().history(self.request(message)).await.map_err(refusal)?.into_inner();
        while let Some(chunk) = chunks.message().await.map_err(refusal)? {
            sink(&chunk.lines)?;
        }
        Ok(())
    }
}

/// Hands each piece of an attempt's log to `sink`.
pub(crate) async fn log(
    attempt: &Attempt,
    stderr: bool,
    tail_bytes: u64,
    mut sink: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let Attempt { attempt: id, tracker: node, logs_addr: addr, .. } = attempt;
    let silent = || {
        anyhow!(
            "the logs of {id} are on {node}, whose tasktracker at {addr} does not answer: `mrctl nodes` shows its state"
        )
    };
    let mut client = TrackerLogsClient::new(channel(addr, "TaskTracker").await.map_err(|_| silent())?);
    let message = pb::LogRequest { attempt: id.clone(), stderr, tail_bytes };
    let asked = tokio::time::timeout(LOG_WITHIN, client.log(message)).await.map_err(|_| silent())?;
    let refused =
        |status: Status| if is_passing(&status) { silent() } else { anyhow!("{}", status.message()) };
    let mut chunks = asked.map_err(refused)?.into_inner();
    while let Some(chunk) = chunks.message().await.map_err(refused)? {
        sink(&chunk.data)?;
    }
    Ok(())
}

fn phase(phase: Option<pb::PhaseStatus>) -> Phase {
    let phase = phase.unwrap_or_default();
    Phase {
        total: phase.total,
        pending: phase.pending,
        running: phase.running,
        done: phase.done,
        failed_attempts: phase.failed_attempts,
        killed_attempts: phase.killed_attempts,
        progress: phase.progress,
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
        output: job.output,
        counters: job.counters.into_iter().collect(),
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
        last_heard_ms_ago: tracker.last_heard_ms_ago,
        map_pace: scheduling::pace(tracker.maps),
        reduce_pace: scheduling::pace(tracker.reduces),
    }
}
