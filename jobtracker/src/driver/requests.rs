//! Requests of clients. Each request is one event, and its reply waits until the facts of the event
//! are durable.

use super::Driver;
use crate::error::Refusal;
use daemon::config::JobTrackerConfig;
use dfs_client::path::DfsPath;
use mrcore::{
    Cluster, Event, Span,
    event::Reply,
    ids::{AttemptId, JobId, RequestId, TaskId, TrackerId},
    job::{Job, JobSpec},
    task::PreemptKind,
};
use std::sync::Arc;

impl Driver {
    /// Returns the job that this request has created, if the same request was sent before.
    pub(crate) async fn job_of_request(&self, request_id: RequestId) -> Result<Option<JobId>, Refusal> {
        self.read(|cluster| cluster.job_of_request(request_id)).await
    }

    /// Submits a job.
    pub(crate) async fn submit(&self, request_id: RequestId, spec: JobSpec) -> Result<JobId, Refusal> {
        self.check_backlog()?;
        let (reply, seq) = {
            let mut inner = self.inner.lock();
            let cluster = inner.core.cluster();
            check_output_unused(cluster, request_id, &spec.output)?;
            check_load(cluster, request_id, &spec.user, task_count(&spec), self.config())?;
            self.handle_locked(
                &mut inner,
                Event::Submission { request: request_id, spec: Arc::new(spec) },
                None,
            )
        };
        self.wait_durable(seq).await?;
        match reply {
            Some(Reply::Submitted(job)) => Ok(job),
            Some(Reply::Refused(why)) => Err(Refusal::refused(why)),
            _ => Err(Refusal::unavailable("internal error: the core did not reply to the submission")),
        }
    }

    /// Refuses a submission if the disk is nearly full, or if the cluster or the user has too many
    /// jobs. The number of tasks is not known yet, and is checked by [`Self::submit`].
    pub(crate) fn check_capacity(&self, request_id: RequestId, user: &str) -> Result<(), Refusal> {
        if let Some(why) = self.disk_low_message() {
            return Err(Refusal::overloaded(why));
        }
        self.peek(|cluster| check_load(cluster, request_id, user, 0, self.config()))
    }

    /// Refuses an output folder that an active job writes to.
    pub(crate) fn check_output_unused(&self, request_id: RequestId, output: &str) -> Result<(), Refusal> {
        self.peek(|cluster| check_output_unused(cluster, request_id, output))
    }

    /// Returns the output folders of all active jobs.
    pub(crate) fn active_outputs(&self) -> Vec<(JobId, DfsPath)> {
        let output = |job: &Job| Some((job.id, DfsPath::parse(&job.spec.output).ok()?));
        self.peek(|cluster| cluster.jobs().filter(|job| !job.has_ended()).filter_map(output).collect())
    }

    /// Kills a job.
    pub(crate) async fn kill(&self, request_id: RequestId, job: JobId, by: String) -> Result<(), Refusal> {
        self.expect_accepted(Event::Kill { request: request_id, job, by }).await
    }

    pub(crate) async fn preempt(
        &self,
        request_id: RequestId,
        attempt: AttemptId,
        kind: PreemptKind,
        by: String,
    ) -> Result<(), Refusal> {
        self.expect_accepted(Event::Preemption { request: request_id, attempt, kind, by }).await
    }

    /// Resumes a paused task, on the tracker with the name `on` if given.
    pub(crate) async fn resume(
        &self,
        request_id: RequestId,
        task: TaskId,
        on: Option<&str>,
        by: String,
    ) -> Result<(), Refusal> {
        let on = match on {
            None => None,
            Some(name) => {
                let found: Option<TrackerId> =
                    self.read(|cluster| cluster.tracker_named(name).map(|tracker| tracker.id)).await?;
                Some(found.ok_or_else(|| Refusal::unknown_node(name))?)
            }
        };
        self.expect_accepted(Event::Resumption { request: request_id, task, on, by }).await
    }

    /// Drains a tracker within a time, or cancels its drain if `within` is None.
    pub(crate) async fn drain(
        &self,
        request_id: RequestId,
        tracker: TrackerId,
        within: Option<Span>,
        by: String,
    ) -> Result<(), Refusal> {
        self.expect_accepted(Event::Drain { request: request_id, tracker, within, by }).await
    }

    /// Forgets a lost tracker.
    pub(crate) async fn forget(&self, request_id: RequestId, node: &str, by: String) -> Result<(), Refusal> {
        let found = self.read(|cluster| cluster.tracker_named(node).map(|tracker| tracker.id)).await?;
        let tracker = found.ok_or_else(|| Refusal::unknown_node(node))?;
        self.expect_accepted(Event::Forget { request: request_id, tracker, by }).await
    }

    /// Handles an event and waits until it is durable. Returns an error if the core refuses it.
    async fn expect_accepted(&self, event: Event) -> Result<(), Refusal> {
        match self.request_reply(event).await? {
            Reply::Refused(why) => Err(Refusal::refused(why)),
            _ => Ok(()),
        }
    }
}

fn task_count(spec: &JobSpec) -> u64 {
    spec.splits.len() as u64 + u64::from(spec.reduces)
}

/// Refuses a job that would exceed the limits of the cluster or of its user.
fn check_load(
    cluster: &Cluster,
    request_id: RequestId,
    user: &str,
    new_tasks: u64,
    limits: &JobTrackerConfig,
) -> Result<(), Refusal> {
    if cluster.job_of_request(request_id).is_some() {
        return Ok(());
    }
    let (mut all_jobs, mut user_jobs, mut user_tasks) = (0_usize, 0_usize, new_tasks);
    for job in cluster.jobs().filter(|job| !job.has_ended()) {
        all_jobs += 1;
        if job.spec.user == user {
            user_jobs += 1;
            user_tasks += task_count(&job.spec);
        }
    }
    let refuse = |why: String| Err(Refusal::overloaded(format!("{why}: try again later")));
    if all_jobs >= limits.jobs_max {
        let jobs = daemon::count(all_jobs as u64, "job");
        return refuse(format!("the cluster has {jobs} active (jobtracker.jobs_max)"));
    }
    if user_jobs >= limits.user_jobs_max {
        let jobs = daemon::count(user_jobs as u64, "job");
        return refuse(format!("user {user} has {jobs} active (jobtracker.user_jobs_max)"));
    }
    // This limit does not apply to the only job of a user. A single job has its own limits.
    if user_jobs > 0 && user_tasks > limits.user_tasks_max {
        return refuse(format!(
            "user {user} would have {user_tasks} tasks in active jobs (jobtracker.user_tasks_max)"
        ));
    }
    Ok(())
}

/// Refuses an output folder that an active job writes to, or that is inside or around such a
/// folder.
fn check_output_unused(cluster: &Cluster, request_id: RequestId, output: &str) -> Result<(), Refusal> {
    if cluster.job_of_request(request_id).is_some() {
        return Ok(());
    }
    let Some(job) = cluster.jobs().find(|job| shares_output(job, output)) else { return Ok(()) };
    let (id, output) = (job.id, &job.spec.output);
    Err(Refusal::exists(format!("{id} is writing to {output}: wait until it ends, or choose another output")))
}

/// Returns whether the job is active and its output folder is `output`, inside it or around it.
fn shares_output(job: &Job, output: &str) -> bool {
    let inside = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let other = job.spec.output.as_str();
    let both = !output.is_empty() && !other.is_empty() && !job.has_ended();
    both && (inside(output, other) || inside(other, output))
}
