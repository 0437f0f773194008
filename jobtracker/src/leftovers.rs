//! Deletes what a job leaves in the file system after its end: its work folder and its staging
//! folder.
//!
//! They are deleted when the job ends. They are deleted again when an attempt that outlived its job
//! has ended, because it may have written in between. `sweep` deletes what a crash has left. Only
//! names that Fermata has created are deleted. A parent folder is deleted if it is empty and
//! contained one of these names.

use crate::{
    error::Refusal,
    files::{Files, Pause, is_transient},
    output::WORK_DIR,
};
use dfs_client::{ClientError, error::Kind, path::DfsPath};
use mrcore::{
    Cluster, Fact,
    job::{Job, JobOutcome, JobState},
};
use proto::STAGING;
use std::collections::BTreeMap;

/// The setting with the staging folder of a job.
const STAGING_KEY: &str = "staging";

/// What to delete after a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// The user with whose permissions everything is deleted. None: the JobTracker deletes with its
    /// own.
    user: Option<String>,
    /// The folder that the attempts wrote to, if it may exist.
    work: Option<DfsPath>,
    /// Whether to delete the output folder if it is empty: the job did not succeed.
    discard_output: bool,
    pub(crate) staging: Option<DfsPath>,
}

impl Leftovers {
    /// A staging folder without a job.
    pub(crate) fn of_staging(path: DfsPath) -> Self {
        Self { user: None, work: None, discard_output: false, staging: Some(path) }
    }

    /// The leftovers of a job that has ended. The commit of a successful job deletes its work
    /// folder, so this includes it only if an attempt may have written since.
    pub(crate) fn of(job: &Job, written_since: bool) -> Self {
        let discard_output = !matches!(job.state, JobState::Ended(JobOutcome::Succeeded));
        let work =
            || DfsPath::parse(&job.spec.output).ok()?.join(WORK_DIR).ok()?.join(&job.id.to_string()).ok();
        let work = if discard_output || written_since { work() } else { None };
        let user = Some(job.spec.user.clone());
        Self { user, work, discard_output, staging: staging(job) }
    }

    /// The leftovers to delete after a fact: of a job that has succeeded, or of an ended job whose
    /// last attempt was lost with its tracker.
    pub(crate) fn after(cluster: &Cluster, fact: &Fact) -> Option<Self> {
        match fact {
            Fact::JobEnded { job, outcome: JobOutcome::Succeeded } => {
                cluster.job(*job).map(|job| Self::of(job, false))
            }
            Fact::AttemptKilled { attempt, .. } => {
                let job = cluster.job(attempt.job()).filter(|job| job.is_over())?;
                let alone = job.running.map.is_empty() && job.running.reduce.is_empty();
                alone.then(|| Self::of(job, true))
            }
            _ => None,
        }
    }
}

/// The staging folder of a job.
pub(crate) fn staging(job: &Job) -> Option<DfsPath> {
    staging_path(job.spec.payload.staging.as_ref()?)
}

/// The path of a staging folder. It is directly in the staging area, because it is deleted with the
/// job.
fn staging_path(text: &str) -> Option<DfsPath> {
    let path = DfsPath::parse(text).ok()?;
    path.split_last().is_some_and(|(above, _)| above.as_str() == STAGING).then_some(path)
}

/// Takes the staging folder from the settings of a submission, where the client has put it.
pub(crate) fn take_staging(conf: &mut BTreeMap<String, String>) -> Result<Option<DfsPath>, Refusal> {
    let Some(text) = conf.remove(STAGING_KEY) else { return Ok(None) };
    staging_path(&text).map(Some).ok_or_else(|| {
        Refusal::invalid(format!(
            "setting {STAGING_KEY} = {text:?}: it must be a folder in {STAGING}, which is deleted with the job"
        ))
    })
}

/// Deletes the leftovers of a job. Retries for as long as the NameNode is down.
pub(crate) async fn clear(files: &Files, left: &Leftovers) {
    let mut pause = Pause::new();
    while let Err(error) = try_clear(files, left).await {
        tracing::warn!(%error, "cannot delete the leftovers of a job");
        if !is_transient(&error) {
            return;
        }
        pause.wait().await;
    }
}

async fn try_clear(files: &Files, left: &Leftovers) -> Result<(), ClientError> {
    let client = files.client().await?;
    let client = left.user.as_ref().map_or(client.clone(), |user| client.acting_for(user));
    if let Some(staging) = &left.staging {
        client.delete(staging, true).await?;
    }
    let Some(own) = &left.work else { return Ok(()) };
    let mut found = client.delete(own, true).await?;
    let Some((all, _)) = own.split_last() else { return Ok(()) };
    let Some((output, _)) = all.split_last() else { return Ok(()) };
    for (folder, wanted) in [(all, true), (output, left.discard_output)] {
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

    fn conf(staging: &str) -> BTreeMap<String, String> {
        [(STAGING_KEY.to_owned(), staging.to_owned())].into()
    }

    #[test]
    fn only_a_folder_in_the_staging_area_is_one() {
        assert_eq!(take_staging(&mut BTreeMap::new()).unwrap(), None);
        let mut settings = conf("/tmp/fermata/staging/1b2c");
        let own = take_staging(&mut settings).unwrap().unwrap();
        assert!(settings.is_empty(), "only what the user has set");
        assert_eq!(own.as_str(), "/tmp/fermata/staging/1b2c");
        for bad in
            ["/", "/home", STAGING, "/tmp/fermata/staging/a/b", "relative", "/tmp/fermata/staging/../x", ""]
        {
            let error = take_staging(&mut conf(bad)).unwrap_err().to_string();
            assert!(error.starts_with("setting staging = "), "{error}");
        }
    }
}
