//! Deletes files that earlier processes have left in the file system, and ensures that the staging
//! area of a closed cluster belongs to the JobTracker.
//!
//! Every start of the JobTracker, and every leadership of a member of a group, deletes the leftovers of
//! all ended jobs in memory, because a crash may have interrupted an earlier deletion. Staging folders
//! of clients that died before they submitted their job are deleted after a day.

use crate::{
    driver::Driver,
    files::{Backoff, Files, is_transient},
    leftovers::{LeftoverFolders, clear, staging_folder},
};
use dfs_client::{
    Attributes, Client, ClientError, FileStatus,
    error::{Error, Kind},
    path::DfsPath,
};
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
/// Time between two checks of the staging area. Clients wait longer than this for a missing one.
const AREA_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two checks of the staging area while the NameNode is unreachable or in safemode.
const AREA_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Deletes the leftovers of all jobs that ended before this start, and then, at a fixed interval,
/// old staging folders without a job. Never returns.
pub(crate) async fn sweep_loop(driver: Arc<Driver>) {
    // A JobTracker with an older copy of its folder does not know all jobs that use files.
    driver.await_accepted().await;
    tokio::join!(guard_staging_area(driver.files()), sweep(&driver));
}

async fn sweep(driver: &Driver) {
    let staged: BTreeSet<DfsPath> =
        list_staging_folders(driver).await.into_iter().map(|entry| entry.path).collect();
    let of_ended_jobs = |cluster: &Cluster| -> Vec<Leftovers> {
        cluster.jobs().filter(|job| job.has_ended()).map(|job| Leftovers::of_job(job, true)).collect()
    };
    for leftovers in driver.peek(of_ended_jobs) {
        let mut leftovers = LeftoverFolders::of_job(&leftovers);
        leftovers.staging = leftovers.staging.filter(|path| staged.contains(path));
        clear(driver.files(), &leftovers).await;
    }
    loop {
        sweep_staging(driver, STAGING_AGE_MAX).await;
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
        driver.read(|cluster| cluster.jobs().filter_map(staging_folder).collect::<BTreeSet<DfsPath>>());
    // If another member of the group leads, it deletes them.
    let Ok(in_use) = in_use.await else { return };
    for path in old.into_iter().map(|entry| entry.path).filter(|path| !in_use.contains(path)) {
        tracing::info!(path = path.as_str(), "deleting a staging folder that no job uses");
        clear(driver.files(), &LeftoverFolders::of_staging(path)).await;
    }
}

/// Creates and checks the staging area of a closed cluster. Returns at once in an open cluster, and
/// otherwise never.
async fn guard_staging_area(files: &Files) {
    let Some(account) = files.authenticated_name() else { return };
    let mut reported = String::new();
    loop {
        let secured = match files.client().await {
            Ok(client) => secure_staging_area(&client, account).await,
            Err(error) => Err(error),
        };
        let retry = match secured {
            Ok(()) => AREA_CHECK_INTERVAL,
            // A NameNode in safemode counts as unreachable.
            Err(error) if is_transient(&error) => AREA_RETRY_INTERVAL,
            Err(error) => {
                let text = error.to_string();
                if text != reported {
                    tracing::error!(
                        error = text,
                        "cannot take over {STAGING}: users cannot send files with their jobs"
                    );
                    reported = text;
                }
                AREA_CHECK_INTERVAL
            }
        };
        tokio::time::sleep(retry).await;
    }
}

/// Creates the staging area and its parent, or takes them over from another account. Creates `/tmp`
/// for all users if it does not exist, and does not change it otherwise. Only the
/// JobTracker, as `account`, may rename the area and the folders of others in it: the owner of either
/// folder could exchange the programs of all users. All users may create folders in the area, and
/// each user may delete only its own folders.
pub(crate) async fn secure_staging_area(client: &Client, account: &str) -> Result<(), ClientError> {
    let area = DfsPath::parse(STAGING).expect("a plain path");
    let (parent, _) = area.split_last().expect("the area is not the root");
    let (tmp, _) = parent.split_last().expect("the area is in /tmp");
    if client.stat(&tmp).await.is_err_and(|error| error.is(Kind::NotFound)) {
        client.mkdir_with(&tmp, true, 0o1777).await?;
    }
    // The parent comes first, so that nobody can exchange the area after it was checked.
    for (folder, mode) in [(&parent, 0o755), (&area, 0o1777)] {
        let found = match client.stat(folder).await {
            Err(error) if error.is(Kind::NotFound) => {
                client.mkdir_with(folder, true, mode).await?;
                client.stat(folder).await?
            }
            found => found?,
        };
        if !found.is_dir {
            let message = format!("{folder} is a file of {}: delete it", found.owner);
            return Err(ClientError::Refused(Error::new(Kind::NotDirectory, message)));
        }
        if found.owner == account && found.mode == mode {
            continue;
        }
        if found.owner != account {
            tracing::warn!(%folder, owner = found.owner, "the folder belongs to another account: taking it over");
        }
        let owned = Attributes { owner: Some(account.into()), mode: Some(mode), ..Attributes::default() };
        client.set_attributes(folder, owned).await?;
    }
    Ok(())
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
