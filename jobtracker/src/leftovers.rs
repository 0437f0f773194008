//! Deletes what a job leaves in the file system after its end: its work folder and its staging
//! folder.
//!
//! The core decides what is deleted and when. `sweep` deletes what a crash has left. Only folders that
//! Fermata has created are deleted. A parent folder is deleted if it is empty and contained one of
//! them.

use crate::{
    error::Refusal,
    files::{Backoff, Files, is_transient},
};
use dfs_client::{ClientError, error::Kind, path::DfsPath};
use mrcore::{job::Job, output::Leftovers};
use parking_lot::Mutex;
use proto::STAGING;
use std::collections::BTreeSet;

/// The folders to delete.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeftoverFolders {
    /// The user with whose permissions everything is deleted. None if the JobTracker deletes with
    /// its own permissions.
    user: Option<String>,
    work_folder: Option<DfsPath>,
    /// Whether to delete the output folder if it is empty.
    discard_output: bool,
    pub(crate) staging: Option<DfsPath>,
}

impl LeftoverFolders {
    /// Returns the leftovers of a client that created a staging folder and submitted no job.
    pub(crate) fn of_staging(path: DfsPath) -> Self {
        Self { user: None, work_folder: None, discard_output: false, staging: Some(path) }
    }

    /// Returns the leftovers of a job.
    pub(crate) fn of_job(leftovers: &Leftovers) -> Self {
        Self {
            user: Some(leftovers.user.clone()),
            work_folder: leftovers.work_folder.as_ref().and_then(|path| DfsPath::parse(path).ok()),
            discard_output: leftovers.discard_output,
            staging: leftovers.staging.as_ref().and_then(|path| staging_path(path)),
        }
    }
}

/// Returns the staging folder of a job.
pub(crate) fn staging_folder(job: &Job) -> Option<DfsPath> {
    staging_path(job.spec.payload.staging.as_ref()?)
}

/// Parses the path of a staging folder. Returns None if the folder is not directly in the staging
/// area: it is deleted with the job, so it must not be any other folder.
fn staging_path(text: &str) -> Option<DfsPath> {
    let path = DfsPath::parse(text).ok()?;
    path.split_last().is_some_and(|(above, _)| above.as_str() == STAGING).then_some(path)
}

/// Checks the staging folder of a submission; empty for none.
pub(crate) fn check_staging(text: &str) -> Result<Option<DfsPath>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    staging_path(text).map(Some).ok_or_else(|| {
        Refusal::invalid(format!(
            "staging folder {text:?}: it must be directly in {STAGING}, because it is deleted with the job"
        ))
    })
}

/// Leftovers that wait to be deleted, each once, by one tokio task. While the NameNode is down or has
/// not accepted this start, more are added and none is deleted.
#[derive(Debug, Default)]
pub(crate) struct LeftoverQueue {
    /// None if no tokio task is deleting leftovers.
    waiting: Mutex<Option<BTreeSet<LeftoverFolders>>>,
}

impl LeftoverQueue {
    /// Adds leftovers. Returns whether the caller must start a tokio task that deletes them.
    pub(crate) fn add(&self, leftovers: LeftoverFolders) -> bool {
        let mut waiting = self.waiting.lock();
        let must_start = waiting.is_none();
        waiting.get_or_insert_default().insert(leftovers);
        must_start
    }

    /// Removes and returns the next leftovers. If it returns None, the tokio task must end.
    pub(crate) fn next(&self) -> Option<LeftoverFolders> {
        let mut waiting = self.waiting.lock();
        let next = waiting.as_mut().and_then(BTreeSet::pop_first);
        if next.is_none() {
            *waiting = None;
        }
        next
    }
}

/// Deletes the leftovers of a job. Retries for as long as the NameNode is down.
pub(crate) async fn clear(files: &Files, leftovers: &LeftoverFolders) {
    let mut backoff = Backoff::new();
    while let Err(error) = try_clear(files, leftovers).await {
        tracing::warn!(%error, "cannot delete the leftovers of a job");
        if !is_transient(&error) {
            return;
        }
        backoff.wait().await;
    }
}

async fn try_clear(files: &Files, leftovers: &LeftoverFolders) -> Result<(), ClientError> {
    let client = files.client().await?;
    let client = match &leftovers.user {
        Some(user) => client.acting_for(user)?,
        None => client,
    };
    if let Some(staging) = &leftovers.staging {
        client.delete(staging, true).await?;
    }
    let Some(job_folder) = &leftovers.work_folder else { return Ok(()) };
    let mut found = client.delete(job_folder, true).await?;
    let Some((all_jobs, _)) = job_folder.split_last() else { return Ok(()) };
    let Some((output, _)) = all_jobs.split_last() else { return Ok(()) };
    for (folder, wanted) in [(all_jobs, true), (output, leftovers.discard_output)] {
        if !wanted {
            break;
        }
        match client.delete(&folder, false).await {
            Ok(existed) => found |= existed,
            Err(error) if error.is(Kind::NotEmpty) => break,
            Err(error) => return Err(error),
        }
        if !found {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_wait_once_and_one_task_deletes_them() {
        let folder =
            |name: &str| LeftoverFolders::of_staging(DfsPath::parse(&format!("{STAGING}/{name}")).unwrap());
        let queue = LeftoverQueue::default();
        assert!(queue.add(folder("a")), "no task was running");
        assert_eq!(queue.next(), Some(folder("a")));
        // While the task deletes the first, it may get more, also the same again.
        for name in ["b", "a", "b"] {
            assert!(!queue.add(folder(name)), "{name}: a task is running");
        }
        assert_eq!([queue.next(), queue.next(), queue.next()], [Some(folder("a")), Some(folder("b")), None]);
        assert!(queue.add(folder("c")), "the task has ended");
    }

    #[test]
    fn staging_folder_must_be_directly_in_the_staging_area() {
        assert_eq!(check_staging("").unwrap(), None);
        let folder = check_staging("/tmp/fermata/staging/1b2c").unwrap().unwrap();
        assert_eq!(folder.as_str(), "/tmp/fermata/staging/1b2c");
        for bad in
            ["/", "/home", STAGING, "/tmp/fermata/staging/a/b", "relative", "/tmp/fermata/staging/../x", " "]
        {
            let error = check_staging(bad).unwrap_err().to_string();
            assert!(error.starts_with("staging folder \""), "{error}");
        }
    }
}
