//! Calls of the driver to the NameNode: fence earlier JobTracker processes, commit and delete
//! outputs, and check whether the NameNode accepts changes.

use super::{Driver, Leadership, notify_watchers};
use crate::{
    error::Refusal,
    leftovers, output, starts,
    writable::{self, NotWritable, Obstacle},
};
use dfs_client::{ClientError, error::Kind, ids::Start};
use mrcore::{
    Cluster, Event, Time,
    ids::JobId,
    job::{Job, JobState},
};
use std::{sync::Arc, time::Duration};

/// Time between two checks whether the NameNode accepts changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two attempts to confirm that this JobTracker leads its group.
const CONFIRM_INTERVAL: Duration = Duration::from_millis(200);
/// How long a submission waits until the NameNode has accepted this start.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(5);

impl Driver {
    /// Fences the leaders of earlier starts, and older JobTracker processes that use this journal. If
    /// this JobTracker is itself fenced, the process ends.
    pub(crate) async fn fence(self: Arc<Self>, leadership: Leadership) {
        let start = leadership.start;
        // Wait until the epoch, the number of this start, is durable. Otherwise the process after a
        // crash, or the next leader, could get the same epoch.
        loop {
            match self.read(|_| self.leadership()).await {
                Ok(now) if now == Some(leadership) => break,
                Ok(_) => return,
                Err(_) => tokio::time::sleep(CONFIRM_INTERVAL).await,
            }
        }
        let report = |why: String| {
            let is_new = self.accepted.borrow().as_ref().err() != Some(&why);
            if is_new {
                tracing::warn!(why, "the NameNode has not accepted this start yet");
                self.set_accepted(leadership, Err(why));
            }
        };
        let earlier = match self.record_start(start, report).await {
            Ok(earlier) => earlier,
            Err(why) => return self.fail(why),
        };
        match output::fence(&self.files, start, &earlier, report).await {
            Ok(()) => {
                tracing::info!(epoch = start.epoch, "older JobTrackers are fenced");
                self.set_accepted(leadership, Ok(()));
                self.record_accepted(leadership).await;
            }
            Err(error) => {
                if self.journal.member().is_none() {
                    let removed =
                        starts::change(&self.config().dir, move |folder| starts::remove(folder, start));
                    starts::shorten(removed.await);
                }
                self.fenced(leadership, &error).await;
            }
        }
    }

    /// Records a start durably before the NameNode gets it. Returns the earlier starts, ordered by
    /// epoch. In a group, the facts of the leadership contain its start.
    async fn record_start(&self, start: Start, report: impl Fn(String)) -> Result<Vec<Start>, String> {
        if self.journal.member().is_none() {
            return starts::record(&self.config().dir, start, report).await;
        }
        let before = |cluster: &Cluster| {
            cluster.starts().before(starts::to_fact(start)).map(starts::from_fact).collect()
        };
        Ok(self.peek(before))
    }

    /// Records that the NameNode has accepted the start of a leadership, so that earlier ones can be
    /// forgotten.
    async fn record_accepted(&self, leadership: Leadership) {
        let start = leadership.start;
        if self.journal.member().is_some() {
            self.handle_in(leadership, Event::StartAccepted { start: starts::to_fact(start) }).await;
        } else {
            let accepted = starts::change(&self.config().dir, move |folder| starts::accept(folder, start));
            starts::shorten(accepted.await);
        }
    }

    /// Pretends that the NameNode has accepted the start of a leadership.
    #[cfg(test)]
    pub(crate) async fn accept(&self, leadership: Leadership) {
        self.set_accepted(leadership, Ok(()));
        self.record_accepted(leadership).await;
    }

    /// Sets whether the NameNode has accepted the start of a leadership, unless it has ended.
    fn set_accepted(&self, leadership: Leadership, result: Result<(), String>) {
        let _inner = self.inner.lock();
        if self.leadership() == Some(leadership) {
            self.accepted.send_modify(|accepted| *accepted = result);
        }
    }

    /// The NameNode has refused the start of a leadership, because it knows another one. Ends the
    /// process, unless another member of the group leads: it has replaced this leader, which may not
    /// know that yet.
    pub(crate) async fn fenced(&self, leadership: Leadership, error: &ClientError) {
        while self.leadership() == Some(leadership) {
            if self.read(|_| self.leadership()).await == Ok(Some(leadership)) {
                return self.fail(output::fenced_message(error, self.journal.member().is_some()));
            }
            tokio::time::sleep(CONFIRM_INTERVAL).await;
        }
    }

    /// Waits until the NameNode has accepted this start. A JobTracker that was started from an
    /// older copy of its folder is never accepted.
    pub(crate) async fn await_accepted(&self) {
        let mut accepted = self.accepted.subscribe();
        accepted.wait_for(Result::is_ok).await.expect("the sender is in `self`");
    }

    /// Refuses a submission if the NameNode does not accept this start soon. The newest folder of
    /// the JobTracker would not contain a job that was acknowledged by a start from an older copy.
    pub(crate) async fn check_accepted(&self) -> Result<(), Refusal> {
        tokio::select! {
            accepted = tokio::time::timeout(ACCEPT_TIMEOUT, self.await_accepted()) => accepted.map_err(|_| {
                let why = self.accepted.borrow().clone().err().unwrap_or_default();
                // Not `unavailable`: the client would try again, and then report that it got no reply.
                Refusal::refused(format!(
                    "job cannot be submitted: the NameNode has not accepted this start of the JobTracker yet: {why}; \
                     try again later"
                ))
            }),
            why = self.failed() => Err(Refusal::unavailable(why)),
        }
    }

    /// Commits the output of a job and reports the result to the core, unless the leadership ends
    /// before: the next leader repeats the commit.
    pub(super) async fn commit(self: Arc<Self>, leadership: Leadership, id: JobId) {
        tokio::select! {
            () = self.commit_in(leadership, id) => {}
            () = self.ended(leadership) => {}
        }
    }

    async fn commit_in(&self, leadership: Leadership, id: JobId) {
        self.await_accepted().await;
        let scope = self.files.scope().to_owned();
        let plan = self.peek(|cluster| {
            self.leadership().filter(|now| *now == leadership)?;
            let job = cluster.job(id).filter(|job| job.state == JobState::Committing)?;
            Some((job.spec.user.clone(), output::plan(job, scope, leadership.start)))
        });
        let mut repeated = false;
        let result = match plan {
            // The job is no longer committing.
            None => return,
            Some((_, Ok(None))) => Ok(()),
            Some((user, Ok(Some(commit)))) => match output::commit(&self.files, &user, commit).await {
                Err(error) if error.is(Kind::Fenced) => return self.fenced(leadership, &error).await,
                Ok(true) => {
                    tracing::info!(job = %id, "the NameNode already has this commit: the output does not change");
                    repeated = true;
                    Ok(())
                }
                result => result.map(drop).map_err(|error| error.to_string()),
            },
            Some((_, Err(error))) => Err(error.to_string()),
        };
        self.handle_in(leadership, Event::CommitResult { job: id, repeated, result }).await;
    }

    /// Deletes all leftovers that wait to be deleted.
    pub(super) async fn delete_leftovers(self: Arc<Self>) {
        // A job that was killed after a start from an older copy may be active in the newest folder.
        self.await_accepted().await;
        while let Some(leftovers) = self.leftovers.next() {
            leftovers::clear(&self.files, &leftovers).await;
        }
    }

    /// Checks at a fixed interval whether the NameNode accepts changes, while jobs with output are
    /// active. Never returns.
    pub(crate) async fn watch_namenode(self: Arc<Self>) {
        loop {
            let (began, obstacle) = if self.peek(|cluster| cluster.jobs().any(writable::has_output_to_write))
            {
                let answer = async { self.files.client().await?.safemode().await };
                writable::check(|| self.now(), answer).await
            } else {
                (self.now(), None)
            };
            self.set_obstacle(obstacle, began);
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Stores the result of a check that started at `began`, and notifies the watchers of affected
    /// jobs if it has changed. `obstacle` is None if the NameNode accepts changes.
    fn set_obstacle(&self, obstacle: Option<Obstacle>, began: Time) {
        let changed = {
            let mut state = self.not_writable.lock();
            let next = obstacle.map(|obstacle| NotWritable::after_check(state.as_ref(), obstacle, began));
            std::mem::replace(&mut *state, next.clone()) != next
        };
        if changed {
            let mut inner = self.inner.lock();
            let jobs = inner.core.cluster().jobs().filter(|job| writable::has_output_to_write(job));
            let jobs = jobs.map(|job| job.id).collect();
            notify_watchers(&mut inner, &jobs);
        }
    }

    /// Returns a sentence that says why the output of a job cannot be written now. None if it can,
    /// or if the job has no output to write.
    pub(crate) fn not_writable(&self, job: &Job) -> Option<String> {
        let state = self.not_writable.lock();
        let state = state.as_ref().filter(|_| writable::has_output_to_write(job))?;
        Some(state.describe(self.files.namenodes(), self.now()))
    }
}
