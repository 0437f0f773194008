//! Jobs, tasks and attempts.

use super::{
    Answer,
    error::{ApiError, ErrorReply},
    extract::{Asked, Sent},
    page, stream,
};
use crate::caller::Caller;
use axum::{
    Json,
    extract::Path,
    http::{
        StatusCode,
        header::{self, HeaderValue},
    },
    response::{IntoResponse, Response},
};
use client::{
    JobTracker, PreemptKind, Submission,
    model::{Attempt, Job, Task, attempt_of},
    scheduling::WhyReply,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};
use utoipa::{IntoParams, ToSchema};

/// The default and the largest part of a log.
const LOG_BYTES_DEFAULT: u64 = 64 << 10;
const LOG_BYTES_MAX: u64 = 4 << 20;
/// The pause before a broken stream is opened again, and between two queries for `events`.
const INTERVAL: Duration = Duration::from_secs(1);

/// Which jobs to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct JobsQuery {
    /// Only jobs in this state: `running`, `committing`, `succeeded`, `failed` or `killed`.
    state: Option<String>,
    /// Only jobs of this user.
    user: Option<String>,
    /// Number of entries, 100 if missing, at most 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// The ID to continue after: `next` of the page before.
    after: Option<String>,
}

/// A page of jobs, oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct JobsPage {
    jobs: Vec<Job>,
    /// The ID to continue after; null at the end.
    next: Option<String>,
}

/// Lists the jobs that the JobTracker remembers.
#[utoipa::path(get, path = "/api/v1/jobs", params(JobsQuery), responses(
    (status = 200, body = JobsPage), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn list(caller: Caller, Asked(query): Asked<JobsQuery>) -> Answer<JobsPage> {
    let all = query.state.as_deref().is_none_or(|state| !matches!(state, "running" | "committing"));
    let mut jobs = caller.jobs().await?.jobs(all).await?;
    let fits = |wanted: &Option<String>, value: &str| wanted.as_deref().is_none_or(|wanted| wanted == value);
    jobs.retain(|job| fits(&query.state, &job.state) && fits(&query.user, &job.user));
    let (jobs, next) = page(jobs, |job| &job.job, query.after.as_deref(), query.limit)?;
    Ok(Json(JobsPage { jobs, next }))
}

/// A job to submit: a built-in program, or an executable that is in the file system.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NewJob {
    /// The name for people.
    name: String,
    /// The queue or pool; empty for `default`.
    queue: String,
    /// From `very-low` to `very-high`; empty for `normal`.
    priority: String,
    /// The name of a built-in program.
    builtin: Option<String>,
    /// The path of an executable in the file system.
    executable: Option<String>,
    /// Paths of side files in the file system.
    files: Vec<String>,
    /// Names of the settings that the executable declares.
    declared: Vec<String>,
    /// Files, folders and patterns to read.
    inputs: Vec<String>,
    /// A new folder for the output; empty to discard the output.
    output: String,
    /// The number of reduces.
    reduces: u32,
    /// The settings of the job.
    conf: BTreeMap<String, String>,
    /// Whether the executable promises that its input may be divided at any record.
    divisible: bool,
    /// The folder with the program and the side files, directly in `/tmp/fermata/staging`. It is
    /// deleted when the job ends; empty for none.
    staging: String,
}

/// A submitted job.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Submitted {
    /// The ID of the job.
    job: String,
}

/// Submits a job.
#[utoipa::path(post, path = "/api/v1/jobs", request_body = NewJob, responses(
    (status = 201, body = Submitted), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn submit(
    caller: Caller,
    Sent(new): Sent<NewJob>,
) -> Result<(StatusCode, Json<Submitted>), ApiError> {
    let NewJob { name, queue, priority, builtin, executable, files, declared, .. } = new;
    let name = if name.is_empty() { builtin.clone().unwrap_or_default() } else { name };
    let submission = Submission {
        name,
        queue,
        priority,
        builtin,
        executable,
        files,
        declared,
        inputs: new.inputs,
        output: new.output,
        reduces: new.reduces,
        conf: new.conf,
        divisible: new.divisible,
        staging: new.staging,
    };
    let job = caller.jobs().await?.submit(submission).await?;
    Ok((StatusCode::CREATED, Json(Submitted { job })))
}

/// Shows a job.
#[utoipa::path(get, path = "/api/v1/jobs/{job}", params(("job" = String, Path)), responses(
    (status = 200, body = Job), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn show(caller: Caller, Path(id): Path<String>) -> Answer<Job> {
    Ok(Json(caller.jobs().await?.job(&id).await?))
}

/// Sends the job whenever it changes, until it has ended: server-sent events `job`, with the job as
/// JSON. An event `error` ends a stream that cannot continue.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/watch", params(("job" = String, Path)), responses(
    (status = 200, content_type = "text/event-stream", body = Job),
    (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn watch(caller: Caller, Path(id): Path<String>) -> Result<Response, ApiError> {
    let jobs = caller.jobs().await?;
    // An unknown job is an error of the call.
    jobs.job(&id).await?;
    Ok(stream::answer(|events| async move {
        // The request counts until the stream ends.
        let _caller = caller;
        loop {
            match send_statuses(&jobs, &id, &events).await {
                Ok(true) => return,
                Err(error) if !error.is_transient() => {
                    events.send("error", &ErrorReply::of(error.into())).await;
                    return;
                }
                // The JobTracker restarts, or another one leads.
                Ok(false) | Err(_) => tokio::time::sleep(INTERVAL).await,
            }
        }
    }))
}

/// Sends the statuses of a job over one connection. Returns whether there are no more to send.
async fn send_statuses(jobs: &JobTracker, id: &str, events: &stream::Events) -> client::Result<bool> {
    let mut statuses = jobs.watch(id).await?;
    while let Some(job) = statuses.next().await? {
        if !events.send("job", &job).await || job.has_ended() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sends each job when it is submitted, when its state changes and when a task of it has started or
/// ended: server-sent events `job`, with the job as JSON, without inputs and counters of jobs of other
/// users. The first events are all jobs that have not ended.
#[utoipa::path(get, path = "/api/v1/events", responses(
    (status = 200, content_type = "text/event-stream", body = Job),
    (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn events(caller: Caller) -> Result<Response, ApiError> {
    let jobs = caller.jobs().await?;
    let now = jobs.jobs(true).await?;
    // Jobs that have ended before are known, and those that have not are sent at once.
    let ended = now.iter().filter(|job| job.has_ended());
    let mut known: BTreeMap<String, Digest> = ended.map(|job| (job.job.clone(), digest(job))).collect();
    Ok(stream::answer(|events| async move {
        let _caller = caller;
        let mut now = Ok(now);
        loop {
            match now {
                Ok(all) => {
                    let mut current = BTreeMap::new();
                    for job in all {
                        let digest = digest(&job);
                        if known.get(&job.job) != Some(&digest) && !events.send("job", &job).await {
                            return;
                        }
                        current.insert(job.job, digest);
                    }
                    known = current;
                }
                Err(error) if !client::Error::is_transient(&error) => {
                    events.send("error", &ErrorReply::of(error.into())).await;
                    return;
                }
                Err(_) => {}
            }
            tokio::time::sleep(INTERVAL).await;
            now = jobs.jobs(true).await;
        }
    }))
}

/// What an event is sent for: the state, and the running and done tasks of both phases.
type Digest = (String, [u32; 4]);

fn digest(job: &Job) -> Digest {
    (job.state.clone(), [job.maps.running, job.maps.done, job.reduces.running, job.reduces.done])
}

/// Kills a job, and returns it.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/kill", params(("job" = String, Path)), responses(
    (status = 200, body = Job), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn kill(caller: Caller, Path(id): Path<String>) -> Answer<Job> {
    Ok(Json(caller.jobs().await?.kill(&id).await?))
}

/// Which tasks to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct TasksQuery {
    /// Only tasks in this state.
    state: Option<String>,
    /// Number of entries, 100 if missing, at most 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// The ID to continue after: `next` of the page before.
    after: Option<String>,
}

/// A page of tasks with their attempts.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TasksPage {
    tasks: Vec<Task>,
    /// The ID to continue after; null at the end.
    next: Option<String>,
}

/// Lists the tasks of a job.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/tasks", params(("job" = String, Path), TasksQuery), responses(
    (status = 200, body = TasksPage), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn tasks(
    caller: Caller,
    Path(id): Path<String>,
    Asked(query): Asked<TasksQuery>,
) -> Answer<TasksPage> {
    let mut tasks = caller.jobs().await?.tasks(&id).await?;
    tasks.retain(|task| query.state.as_deref().is_none_or(|state| state == task.state));
    let (tasks, next) = page(tasks, |task| &task.task, query.after.as_deref(), query.limit)?;
    Ok(Json(TasksPage { tasks, next }))
}

/// The counters of a job.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Counters {
    /// The sums over all tasks, by name.
    counters: BTreeMap<String, u64>,
}

/// Shows the counters of a job. Only its owner and admins see them.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/counters", params(("job" = String, Path)), responses(
    (status = 200, body = Counters), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn counters(caller: Caller, Path(id): Path<String>) -> Answer<Counters> {
    Ok(Json(Counters { counters: caller.jobs().await?.job(&id).await?.counters }))
}

/// Shows why a job waits, and its last events.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/why", params(("job" = String, Path)), responses(
    (status = 200, body = WhyReply), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn why(caller: Caller, Path(id): Path<String>) -> Answer<WhyReply> {
    Ok(Json(caller.jobs().await?.why(&id).await?))
}

/// Shows a task with its attempts.
#[utoipa::path(get, path = "/api/v1/tasks/{task}", params(("task" = String, Path)), responses(
    (status = 200, body = Task), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn task(caller: Caller, Path(id): Path<String>) -> Answer<Task> {
    let found = caller.jobs().await?.task(&id).await?;
    found.map(Json).ok_or_else(|| ApiError::not_found(format!("there is no task {id}")))
}

/// Where to resume a task.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Resume {
    /// The node; null for any.
    on: Option<String>,
}

/// Resumes a paused task.
#[utoipa::path(post, path = "/api/v1/tasks/{task}/resume", params(("task" = String, Path)), request_body = Resume,
    responses((status = 204), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn resume(
    caller: Caller,
    Path(id): Path<String>,
    Sent(resume): Sent<Resume>,
) -> Result<StatusCode, ApiError> {
    caller.jobs().await?.resume(&id, resume.on.as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns an attempt by its ID.
async fn find_attempt(jobs: &JobTracker, id: &str) -> Result<Attempt, ApiError> {
    let task = id.rsplit_once('.').map_or(id, |(task, _)| task);
    let found = jobs.task(task).await?;
    let tasks: Vec<Task> = found.into_iter().collect();
    let attempt = attempt_of(&tasks, id).filter(|attempt| attempt.attempt == id).cloned();
    attempt.ok_or_else(|| ApiError::not_found(format!("there is no attempt {id}")))
}

/// Shows an attempt.
#[utoipa::path(get, path = "/api/v1/attempts/{attempt}", params(("attempt" = String, Path)), responses(
    (status = 200, body = Attempt), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn attempt(caller: Caller, Path(id): Path<String>) -> Answer<Attempt> {
    Ok(Json(find_attempt(&caller.jobs().await?, &id).await?))
}

/// Which part of which log to show.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct LogQuery {
    /// `stderr` (if missing) or `stdout`.
    #[param(pattern = "^(stderr|stdout)$")]
    stream: Option<String>,
    /// Number of bytes from the end, 64 KiB if missing, at most 4 MiB.
    #[param(minimum = 1, maximum = 4_194_304)]
    tail: Option<u64>,
}

/// Shows the end of the log of an attempt, as text.
#[utoipa::path(get, path = "/api/v1/attempts/{attempt}/log", params(("attempt" = String, Path), LogQuery), responses(
    (status = 200, content_type = "text/plain", body = String),
    (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn log(
    caller: Caller,
    Path(id): Path<String>,
    Asked(query): Asked<LogQuery>,
) -> Result<Response, ApiError> {
    let stderr = match query.stream.as_deref() {
        None | Some("stderr") => true,
        Some("stdout") => false,
        Some(other) => return Err(ApiError::invalid(format!("stream={other}: use stderr or stdout"))),
    };
    let tail = query.tail.unwrap_or(LOG_BYTES_DEFAULT);
    if !(1..=LOG_BYTES_MAX).contains(&tail) {
        return Err(ApiError::invalid(format!("tail={tail}: must be from 1 to {LOG_BYTES_MAX}")));
    }
    let jobs = caller.jobs().await?;
    let attempt = find_attempt(&jobs, &id).await?;
    let mut text = Vec::new();
    let add = |chunk: &[u8]| -> client::Result<()> {
        text.extend_from_slice(chunk);
        Ok(())
    };
    jobs.log(&attempt, stderr, tail, add).await?;
    let mut answer = text.into_response();
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(answer)
}

/// How to preempt an attempt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Preempt {
    /// `split` (a map), `pause` (a reduce) or `kill`.
    #[schema(pattern = "^(split|pause|kill)$")]
    kind: String,
}

/// Requests the preemption of an attempt. The program may refuse it, which `why` of the task shows.
#[utoipa::path(post, path = "/api/v1/attempts/{attempt}/preempt", params(("attempt" = String, Path)),
    request_body = Preempt,
    responses((status = 202), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn preempt(
    caller: Caller,
    Path(id): Path<String>,
    Sent(preempt): Sent<Preempt>,
) -> Result<StatusCode, ApiError> {
    let kind = match preempt.kind.as_str() {
        "split" => PreemptKind::Split,
        "pause" => PreemptKind::Pause,
        "kill" => PreemptKind::Kill,
        other => return Err(ApiError::invalid(format!("kind {other:?}: use split, pause or kill"))),
    };
    caller.jobs().await?.preempt(&id, kind).await?;
    Ok(StatusCode::ACCEPTED)
}
