//! Requests of clients. Each request is one event, and its reply waits until the facts of the event
//! are durable.

use super::Driver;
use crate::error::Refusal;
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
        let event = Event::Submission { request: request_id, spec: Arc::new(spec) };
        match self.request_reply(event).await? {
            Reply::Submitted(job) => Ok(job),
            Reply::JobRefused(why) => Err(why.into()),
            _ => Err(Refusal::unavailable("internal error: the core did not reply to the submission")),
        }
    }

    /// Refuses a submission if the disk is nearly full, or if the cluster or the user has too many
    /// jobs. The number of tasks is not known yet, and is checked by [`Self::submit`].
    pub(crate) fn check_capacity(&self, request_id: RequestId, user: &str) -> Result<(), Refusal> {
        if let Some(why) = self.disk_low_message() {
            return Err(Refusal::overloaded(why));
        }
        Ok(self.inner.lock().core.check_load(request_id, user, 0)?)
    }

    /// Refuses an output folder that an active job writes to.
    pub(crate) fn check_output_unused(&self, request_id: RequestId, output: &str) -> Result<(), Refusal> {
        Ok(self.inner.lock().core.check_output_unused(request_id, output)?)
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
            Some(name) => Some(self.tracker_named(name).await?),
        };
        self.expect_accepted(Event::Resumption { request: request_id, task, on, by }).await
    }

    /// Drains a tracker within a time, or cancels its drain if `within` is None.
    pub(crate) async fn drain(
        &self,
        request_id: RequestId,
        node: &str,
        within: Option<Span>,
        by: String,
    ) -> Result<(), Refusal> {
        let tracker = self.tracker_named(node).await?;
        self.expect_accepted(Event::Drain { request: request_id, tracker, within, by }).await
    }

    /// Forgets a lost tracker.
    pub(crate) async fn forget(&self, request_id: RequestId, node: &str, by: String) -> Result<(), Refusal> {
        let tracker = self.tracker_named(node).await?;
        self.expect_accepted(Event::Forget { request: request_id, tracker, by }).await
    }

    async fn tracker_named(&self, name: &str) -> Result<TrackerId, Refusal> {
        let found = self.read(|cluster| cluster.tracker_named(name).map(|tracker| tracker.id)).await?;
        found.ok_or_else(|| Refusal::unknown_node(name))
    }

    /// Carries out a request. If it is refused but was answered before, returns that answer: its
    /// job or its tracker may have been forgotten since, and then the request does not reach the
    /// core.
    pub(crate) async fn answer_once(
        &self,
        request_id: RequestId,
        carry_out: impl Future<Output = Result<(), Refusal>>,
    ) -> Result<(), Refusal> {
        let result = carry_out.await;
        if result.is_ok() {
            return result;
        }
        let now = self.now();
        let first =
            |cluster: &Cluster| cluster.answers().find(now, request_id).map(|why| why.map(str::to_owned));
        match self.read(first).await {
            Ok(Some(refusal)) => refusal.map_or(Ok(()), |why| Err(Refusal::refused(why))),
            Ok(None) | Err(_) => result,
        }
    }

    /// Handles an event and waits until it is durable. Returns an error if the core refuses it.
    async fn expect_accepted(&self, event: Event) -> Result<(), Refusal> {
        match self.request_reply(event).await? {
            Reply::Refused(why) => Err(Refusal::refused(why)),
            _ => Ok(()),
        }
    }
}
