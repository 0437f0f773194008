//! Deletes what a job leaves in the file system after its end: its work folder and its staging
//! folder.
//!
//! They are deleted when the job ends. They are deleted again when an attempt that outlived its job
//! has ended, because it may have written in between. They are also deleted at every start of the
//! JobTracker for all jobs in memory, because a crash may have interrupted the deletion. Only names
//! that Fermata has created are deleted. A parent folder is deleted if it is empty and contained
//! one of these names. Staging folders of clients that died before the submission are deleted after
//! a day.

use crate::{
    driver::Driver,
    error::Refusal,
    output::{Pause, WORK_DIR, is_transient},
};
use dfs_client::{Attributes, ClientError, FileStatus, error::Kind, path::DfsPath};
use mrcore::{
    Cluster, Fact,
    job::{Job, JobOutcome, JobState},
};
use proto::STAGING;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The setting with the staging folder of a job.
const STAGING_KEY: &str = "staging";

/// Age at which a staging folder without a job is deleted.
const STAGED_MAX: Duration = Duration::from_hours(24);
/// Time between two searches for such folders.
const SWEEP_INTERVAL: Duration = Duration::from_hours(1);

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
    staging: Option<DfsPath>,
}

impl Leftovers {
    /// The leftovers of a job that has ended. The commit of a successful job deletes its work
    /// folder, so this includes it only if an attempt may have written since.
    pub(crate) fn of(job: &Job, written_since: bool) -> Self {
        let discard_output = !matches!(job.state, JobState::Ended(JobOutcome::Succeeded));
        let work =
            || DfsPath::parse(&job.spec.output).ok()?.join(WORK_DIR).ok()?.join(&job.id.to_string()).ok();
        let work = if discard_output || written_since { work() } else { None };
        let user = Some(job.spec.user.clone());
        Self { user, work, discard_output, staging: staging(&job.spec.conf).ok().flatten() }
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

/// The staging folder of a job. It must be directly in the staging area, because it is deleted with
/// the job.
pub(crate) fn staging(conf: &BTreeMap<String, String>) -> Result<Option<DfsPath>, Refusal> {
    let Some(text) = conf.get(STAGING_KEY) else { return Ok(None) };
    let path = DfsPath::parse(text).ok();
    let own = path.filter(|path| path.split_last().is_some_and(|(above, _)| above.as_str() == STAGING));
    own.map(Some).ok_or_else(|| {
        Refusal::invalid(format!(
            "setting {STAGING_KEY} = {text:?}: it must be a folder in {STAGING}, which is deleted with the job"
        ))
    })
}

/// Deletes the leftovers of a job. Retries for as long as the NameNode is down.
pub(crate) async fn clear(driver: Arc<Driver>, left: Leftovers) {
    let mut pause = Pause::new();
    while let Err(error) = try_clear(&driver, &left).await {
        tracing::warn!(%error, "cannot delete the leftovers of a job");
        if !is_transient(&error) {
            return;
        }
        pause.wait().await;
    }
}

async fn try_clear(driver: &Driver, left: &Leftovers) -> Result<(), ClientError> {
    let client = driver.files().client().await?;
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

/// Deletes what is left of all jobs that have ended before this start.
pub(crate) async fn sweep(driver: Arc<Driver>) {
    if driver.files().is_closed() {
        open_staging(&driver).await;
    }
    let staged: BTreeSet<DfsPath> = staged(&driver).await.into_iter().map(|entry| entry.path).collect();
    let over = |cluster: &Cluster| -> Vec<Leftovers> {
        cluster.jobs().filter(|job| job.is_over()).map(|job| Leftovers::of(job, true)).collect()
    };
    for mut left in driver.peek(over) {
        left.staging = left.staging.filter(|path| staged.contains(path));
        clear(driver.clone(), left).await;
    }
    loop {
        sweep_staging(&driver, STAGED_MAX).await;
        tokio::time::sleep(SWEEP_INTERVAL).await;
    }
}

/// Deletes staging folders that are older than `age` and belong to no job.
pub(crate) async fn sweep_staging(driver: &Arc<Driver>, age: Duration) {
    let Some(before) = SystemTime::now().checked_sub(age) else { return };
    let before_ms = before.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let mut old = staged(driver).await;
    old.retain(|entry| entry.modified_ms <= before_ms);
    // Read after the folders are listed, so that a job submitted in between is seen.
    let named = driver.peek(|cluster| {
        let of = |job: &Job| staging(&job.spec.conf).ok().flatten();
        cluster.jobs().filter_map(of).collect::<BTreeSet<DfsPath>>()
    });
    for path in old.into_iter().map(|entry| entry.path).filter(|path| !named.contains(path)) {
        tracing::info!(path = path.as_str(), "deleting a staging folder that no job uses");
        let left = Leftovers { user: None, work: None, discard_output: false, staging: Some(path) };
        clear(driver.clone(), left).await;
    }
}

/// In a closed cluster the staging area belongs to the JobTracker. All users may create folders in
/// it, and each may delete only its own.
async fn open_staging(driver: &Driver) {
    let mut pause = Pause::new();
    while let Err(error) = try_open_staging(driver).await {
        // A NameNode in safemode counts as unreachable.
        if !is_transient(&error) {
            return tracing::warn!(%error, "cannot create {STAGING}: users cannot stage files");
        }
        pause.wait().await;
    }
}

async fn try_open_staging(driver: &Driver) -> Result<(), ClientError> {
    let client = driver.files().client().await?;
    let area = DfsPath::parse(STAGING).expect("a plain path");
    client.mkdir(&area, true).await?;
    let shared = Attributes { mode: Some(0o1777), ..Attributes::default() };
    client.set_attributes(&area, shared).await
}

async fn staged(driver: &Driver) -> Vec<FileStatus> {
    let area = DfsPath::parse(STAGING).expect("a plain path");
    let mut pause = Pause::new();
    loop {
        let listed = match driver.files().client().await {
            Ok(client) => client.list(&area).await,
            Err(error) => Err(error),
        };
        match listed {
            Ok(entries) => return entries,
            Err(error) if is_transient(&error) => pause.wait().await,
            // The staging area does not exist yet.
            Err(_) => return Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(staging: &str) -> BTreeMap<String, String> {
        [(STAGING_KEY.to_owned(), staging.to_owned())].into()
    }

    #[test]
    fn only_a_folder_in_the_staging_area_is_one() {
        assert_eq!(staging(&BTreeMap::new()).unwrap(), None);
        let own = staging(&conf("/tmp/fermata/staging/1b2c")).unwrap().unwrap();
        assert_eq!(own.as_str(), "/tmp/fermata/staging/1b2c");
        for bad in
            ["/", "/home", STAGING, "/tmp/fermata/staging/a/b", "relative", "/tmp/fermata/staging/../x", ""]
        {
            let error = staging(&conf(bad)).unwrap_err().to_string();
            assert!(error.starts_with("setting staging = "), "{error}");
        }
    }
}
