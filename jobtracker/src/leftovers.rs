//! What a job leaves in the file system that nobody needs after its end: its work folder, and what was staged for
//! it at submission.
//!
//! Cleared when the job ends; again when an attempt that outlived its job is gone, because it may have written
//! since; and at every start for the jobs that are remembered, because a crash may have come in between. Only
//! names that Fermata gave are deleted: a folder around them goes if it is empty, and only if one of them was
//! there. What a client staged that died before it could submit goes a day later.

use crate::{
    driver::Driver,
    error::Refusal,
    output::{Pause, WORK_DIR, is_transient},
};
use dfs::{
    client::{Attributes, ClientError, FileStatus},
    error::Kind,
    path::DfsPath,
};
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

/// The setting that names where a job's files were staged.
const STAGING_KEY: &str = "staging";

/// What is staged for longer than this, and named by no job, was staged for nothing.
const STAGED_MAX: Duration = Duration::from_hours(24);
/// Between two looks for such.
const SWEEP_INTERVAL: Duration = Duration::from_hours(1);

/// What may be left of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// Whose: nothing is cleared away that this user could not. None: nobody's, for the JobTracker to clear.
    user: Option<String>,
    /// The folder its attempts wrote in, if it may be there.
    work: Option<DfsPath>,
    /// Whether its output folder has nothing of worth in it.
    discard_output: bool,
    staging: Option<DfsPath>,
}

impl Leftovers {
    /// Of a job whose work is over. The commit of one that succeeded deleted its work folder: it is looked for only if
    /// somebody may have written since.
    pub(crate) fn of(job: &Job, written_since: bool) -> Self {
        let discard_output = !matches!(job.state, JobState::Ended(JobOutcome::Succeeded));
        let work =
            || DfsPath::parse(&job.spec.output).ok()?.join(WORK_DIR).ok()?.join(&job.id.to_string()).ok();
        let work = if discard_output || written_since { work() } else { None };
        let user = Some(job.spec.user.clone());
        Self { user, work, discard_output, staging: staging(&job.spec.conf).ok().flatten() }
    }

    /// What is to be cleared away after this: of a job that has succeeded, and of one that was over before its last
    /// attempt, which went with its tracker.
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

/// Where a job's files were staged. Anything but a folder of its own in the staging area is refused: it would be
/// deleted with the job.
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

/// Clears away what is left of a job, however long the NameNode is away.
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

/// Clears away what a crash left: of every job that is over, what is still there.
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

/// Clears away what was staged so long ago and is named by no job.
pub(crate) async fn sweep_staging(driver: &Arc<Driver>, age: Duration) {
    let Some(before) = SystemTime::now().checked_sub(age) else { return };
    let before_ms = before.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let mut old = staged(driver).await;
    old.retain(|entry| entry.modified_ms <= before_ms);
    // Looked at after the folder: a job that was submitted in between is seen.
    let named = driver.peek(|cluster| {
        let of = |job: &Job| staging(&job.spec.conf).ok().flatten();
        cluster.jobs().filter_map(of).collect::<BTreeSet<DfsPath>>()
    });
    for path in old.into_iter().map(|entry| entry.path).filter(|path| !named.contains(path)) {
        tracing::info!(path = path.as_str(), "staged long ago, and no job came");
        let left = Leftovers { user: None, work: None, discard_output: false, staging: Some(path) };
        clear(driver.clone(), left).await;
    }
}

/// In a closed cluster users stage in a folder of the JobTracker's, each what only they may take away again.
async fn open_staging(driver: &Driver) {
    let mut pause = Pause::new();
    while let Err(error) = try_open_staging(driver).await {
        // A NameNode that is still in safemode is one that is away.
        if !is_transient(&error) {
            return tracing::warn!(%error, "users cannot stage files in {STAGING}");
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

/// All folders in the staging area.
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
            // Nobody has staged anything yet.
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
