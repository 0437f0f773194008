//! Deletes what earlier processes have left in the file system.
//!
//! At every start the leftovers of all jobs in memory that have ended are deleted, because a crash
//! may have interrupted the deletion. Staging folders of clients that died before the submission
//! are deleted after a day.

use crate::{
    driver::Driver,
    files::{Pause, is_transient},
    leftovers::{Leftovers, clear, staging},
};
use dfs_client::{Attributes, ClientError, FileStatus, path::DfsPath};
use mrcore::Cluster;
use proto::STAGING;
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Age at which a staging folder without a job is deleted.
const STAGED_MAX: Duration = Duration::from_hours(24);
/// Time between two searches for such folders.
const SWEEP_INTERVAL: Duration = Duration::from_hours(1);

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
        clear(driver.files(), &left).await;
    }
    loop {
        sweep_staging(&driver, STAGED_MAX).await;
        tokio::time::sleep(SWEEP_INTERVAL).await;
    }
}

/// Deletes staging folders that are older than `age` and belong to no job.
async fn sweep_staging(driver: &Driver, age: Duration) {
    let Some(before) = SystemTime::now().checked_sub(age) else { return };
    let before_ms = before.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let mut old = staged(driver).await;
    old.retain(|entry| entry.modified_ms <= before_ms);
    // Read after the folders are listed, so that a job submitted in between is seen.
    let named = driver.peek(|cluster| cluster.jobs().filter_map(staging).collect::<BTreeSet<DfsPath>>());
    for path in old.into_iter().map(|entry| entry.path).filter(|path| !named.contains(path)) {
        tracing::info!(path = path.as_str(), "deleting a staging folder that no job uses");
        clear(driver.files(), &Leftovers::of_staging(path)).await;
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
