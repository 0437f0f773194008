//! Deletes files that earlier processes have left in the file system.
//!
//! Every start of the JobTracker deletes the leftovers of all ended jobs in memory, because a crash
//! may have interrupted an earlier deletion. Staging folders of clients that died before they
//! submitted their job are deleted after a day.

use crate::{
    driver::Driver,
    files::{Backoff, is_transient},
    leftovers::{LeftoverFolders, clear, staging_folder},
};
use dfs_client::{Attributes, ClientError, FileStatus, path::DfsPath};
use mrcore::{Cluster, output::Leftovers};
use proto::STAGING;
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Age at which a staging folder without a job is deleted.
const STAGING_AGE_MAX: Duration = Duration::from_hours(24);
/// Time between two searches for staging folders without a job.
const SWEEP_INTERVAL: Duration = Duration::from_hours(1);

/// Deletes the leftovers of all jobs that ended before this start, and then, at a fixed interval,
/// old staging folders without a job. Never returns.
pub(crate) async fn sweep_loop(driver: Arc<Driver>) {
    // A JobTracker with an older copy of its folder does not know all jobs that use files.
    driver.await_accepted().await;
    if driver.files().is_closed() {
        create_staging_area(&driver).await;
    }
    let staged: BTreeSet<DfsPath> =
        list_staging_folders(&driver).await.into_iter().map(|entry| entry.path).collect();
    let of_ended_jobs = |cluster: &Cluster| -> Vec<Leftovers> {
        cluster.jobs().filter(|job| job.has_ended()).map(|job| Leftovers::of_job(job, true)).collect()
    };
    for leftovers in driver.peek(of_ended_jobs) {
        let mut leftovers = LeftoverFolders::of_job(&leftovers);
        leftovers.staging = leftovers.staging.filter(|path| staged.contains(path));
        clear(driver.files(), &leftovers).await;
    }
    loop {
        sweep_staging(&driver, STAGING_AGE_MAX).await;
        tokio::time::sleep(SWEEP_INTERVAL).await;
    }
}

/// Deletes staging folders that are older than `age` and belong to no job.
async fn sweep_staging(driver: &Driver, age: Duration) {
    let Some(before) = SystemTime::now().checked_sub(age) else { return };
    let before_ms = before.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let mut old = list_staging_folders(driver).await;
    old.retain(|entry| entry.modified_ms <= before_ms);
    // Read the jobs after the folders are listed, so that the folder of a job submitted in between
    // is not deleted.
    let in_use =
        driver.peek(|cluster| cluster.jobs().filter_map(staging_folder).collect::<BTreeSet<DfsPath>>());
    for path in old.into_iter().map(|entry| entry.path).filter(|path| !in_use.contains(path)) {
        tracing::info!(path = path.as_str(), "deleting a staging folder that no job uses");
        clear(driver.files(), &LeftoverFolders::of_staging(path)).await;
    }
}

/// Creates the staging area of a closed cluster, which belongs to the JobTracker. All users may
/// create folders in it, and each user may delete only its own folders.
async fn create_staging_area(driver: &Driver) {
    let mut backoff = Backoff::new();
    while let Err(error) = try_create_staging_area(driver).await {
        // A NameNode in safemode counts as unreachable.
        if !is_transient(&error) {
            return tracing::warn!(%error, "cannot create {STAGING}: users cannot stage files");
        }
        backoff.wait().await;
    }
}

async fn try_create_staging_area(driver: &Driver) -> Result<(), ClientError> {
    let client = driver.files().client().await?;
    let area = DfsPath::parse(STAGING).expect("a plain path");
    client.mkdir(&area, true).await?;
    let shared = Attributes { mode: Some(0o1777), ..Attributes::default() };
    client.set_attributes(&area, shared).await
}

/// Lists the staging folders. Waits while the NameNode is unreachable.
async fn list_staging_folders(driver: &Driver) -> Vec<FileStatus> {
    let area = DfsPath::parse(STAGING).expect("a plain path");
    let mut backoff = Backoff::new();
    loop {
        let listed = match driver.files().client().await {
            Ok(client) => client.list(&area).await,
            Err(error) => Err(error),
        };
        match listed {
            Ok(entries) => return entries,
            Err(error) if is_transient(&error) => backoff.wait().await,
            // The staging area does not exist yet.
            Err(_) => return Vec::new(),
        }
    }
}
