//! What the driver does at the NameNode: it fences earlier processes of the JobTracker, commits and
//! deletes outputs, and checks whether the NameNode accepts changes.

use super::{Driver, notify_watchers};
use crate::{
    leftovers::{self, Leftovers},
    output,
    writable::{self, NotWritable, Obstacle},
};
use dfs_client::error::Kind;
use mrcore::{
    Event, Time,
    ids::JobId,
    job::{Job, JobState},
};
use std::{sync::Arc, time::Duration};

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Driver {
    /// Fences older processes that use this journal.
    pub(crate) async fn fence(self: Arc<Self>) {
        // `read` waits until the epoch is durable. Otherwise a process after a crash could get the
        // same one.
        let Ok(epoch) = self.read(|cluster| cluster.epoch()).await else { return };
        match output::fence(&self.files, epoch).await {
            Ok(()) => tracing::info!(epoch, "older JobTrackers are fenced"),
            Err(why) => self.fail(why),
        }
    }

    /// Commits the output of a job and reports the result to the core.
    pub(super) async fn commit(self: Arc<Self>, id: JobId) {
        let scope = self.files.scope().to_owned();
        let plan = self.peek(|cluster| {
            let job = cluster.job(id).filter(|job| job.state == JobState::Committing)?;
            Some((job.spec.user.clone(), Leftovers::of(job, true), output::plan(job, scope, cluster.epoch())))
        });
        // If the journal has lost the end of the job, the job ran again and its new pieces are not
        // needed.
        let mut not_needed = None;
        let result = match plan {
            // The job is no longer committing.
            None => return,
            Some((_, _, Ok(None))) => Ok(()),
            Some((user, left, Ok(Some(commit)))) => match output::commit(&self.files, &user, commit).await {
                Err(error) if error.is(Kind::Fenced) => return self.fail(output::fenced_out(&error)),
                Ok(true) => {
                    tracing::info!(job = %id, "the NameNode has this commit already: the output does not change");
                    not_needed = Some(left);
                    Ok(())
                }
                result => result.map(drop).map_err(|error| error.to_string()),
            },
            Some((_, _, Err(error))) => Err(error.to_string()),
        };
        self.handle(Event::CommitResult { job: id, result });
        if let Some(left) = not_needed {
            self.clear(left).await;
        }
    }

    /// Deletes the leftovers of a job.
    pub(super) async fn clear(self: Arc<Self>, left: Leftovers) {
        leftovers::clear(&self.files, &left).await;
    }

    /// Checks whether the NameNode accepts changes, while jobs that write are active.
    pub(crate) async fn watch_namenode(self: Arc<Self>) {
        loop {
            let (began, obstacle) = if self.peek(|cluster| cluster.jobs().any(writable::writes)) {
                let asking = async { self.files.client().await?.safemode().await };
                writable::check(|| self.now(), asking).await
            } else {
                (self.now(), None)
            };
            self.set_obstacle(obstacle, began);
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Sets why the NameNode accepts no changes, according to a check that started at `began`; None
    /// if it accepts them.
    fn set_obstacle(&self, obstacle: Option<Obstacle>, began: Time) {
        let changed = {
            let mut state = self.not_writable.lock();
            let next = obstacle.map(|obstacle| NotWritable::next(state.as_ref(), obstacle, began));
            std::mem::replace(&mut *state, next.clone()) != next
        };
        if changed {
            let mut inner = self.inner.lock();
            let jobs = inner.core.cluster().jobs().filter(|job| writable::writes(job));
            let jobs = jobs.map(|job| job.id).collect();
            notify_watchers(&mut inner, &jobs);
        }
    }

    /// Why the output of a job cannot be written now, for people.
    pub(crate) fn not_writable(&self, job: &Job) -> Option<String> {
        let state = self.not_writable.lock();
        let state = state.as_ref().filter(|_| writable::writes(job))?;
        Some(state.describe(self.files.namenode(), self.now()))
    }
}
