//! The trash of a user, and `mrctl fs expunge`.
//!
//! With `client.trash_interval`, `mrctl fs rm` and `hadoop fs -rm` move files to
//! `/user/NAME/.Trash/HOUR/PATH`, where HOUR is the current hour (UTC). A folder of an hour whose
//! newest entry is older than the interval has expired. No daemon empties the trash: each of these
//! commands deletes what has expired in the trash of its user, and so does `expunge`. Without the
//! setting, which is the default as in Hadoop, files are deleted.

use super::lookup;
use crate::output;
use anyhow::{Context, Result, bail};
use clusters::locate::Target;
use dfs_client::{Attributes, Client, ClientError, error::Kind, path::DfsPath};
use std::{process::ExitCode, time::Duration};

/// Delete from your trash what has expired
///
/// `client.trash_interval` is the time after which deleted files expire. `fs rm` does the same.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl fs expunge\n  mrctl fs expunge --all")]
pub(crate) struct Expunge {
    /// Delete everything in the trash
    #[arg(long)]
    all: bool,
}

/// The trash of a user.
#[derive(Debug)]
pub(crate) struct Trash {
    folder: DfsPath,
    interval: Duration,
}

impl Trash {
    /// Returns the trash of the caller, and whether deleted files are moved to it.
    fn of(target: &Target) -> Result<(Self, bool)> {
        let interval = target.namenode()?.1.trash_interval.0;
        let user = target.authenticated_name()?.unwrap_or_else(daemon::account::user);
        let folder = DfsPath::parse(&format!("/user/{user}/.Trash"))?;
        Ok((Self { folder, interval }, !interval.is_zero()))
    }

    /// Returns the trash that deleted files are moved to; None if they are deleted.
    pub(crate) fn in_use(target: &Target) -> Result<Option<Self>> {
        let (trash, in_use) = Self::of(target)?;
        Ok(in_use.then_some(trash))
    }

    /// Moves a file or folder to the trash and returns its new path. Returns None for one that is in
    /// the trash already. Refuses a folder that contains the trash.
    pub(crate) async fn take(&self, client: &Client, path: &DfsPath) -> Result<Option<DfsPath>> {
        if path.is_within(&self.folder) {
            return Ok(None);
        }
        if self.folder.is_within(path) {
            bail!("cannot move {path} to the trash, which is in it: delete its other entries one by one");
        }
        let taken = async {
            client.mkdir_with(&self.folder, true, 0o700).await?;
            let now = output::now_ms();
            let hour = output::time(now).get(..13).unwrap_or_default().replace(' ', "-");
            let (folder, first) = self.target(&hour, path)?;
            match move_into(client, path, (&folder, &first)).await {
                // Another deleted file has this path, or that of a folder above it.
                Err(error) if matches!(error.kind(), Some(Kind::Exists | Kind::NotDirectory)) => {}
                moved => return moved.map(|()| first).map_err(Into::into),
            }
            let (folder, second) = self.target(&format!("{hour}-{now}"), path)?;
            move_into(client, path, (&folder, &second)).await?;
            anyhow::Ok(second)
        };
        let advice = || format!("cannot move {path} to the trash; --skip-trash deletes it");
        taken.await.with_context(advice).map(Some)
    }

    /// Returns the folder of an hour, and the path of a deleted file in it.
    fn target(&self, hour: &str, path: &DfsPath) -> Result<(DfsPath, DfsPath)> {
        let folder = self.folder.join(hour)?;
        let target = DfsPath::parse(&format!("{folder}{path}"))?;
        Ok((folder, target))
    }

    /// Deletes what has expired, or everything if `all` is set.
    pub(crate) async fn expire(&self, client: &Client, all: bool) -> Result<()> {
        if lookup(client, &self.folder).await?.is_none() {
            return Ok(());
        }
        let interval = u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX);
        let before = output::now_ms().saturating_sub(interval);
        for entry in client.list(&self.folder).await? {
            if all || entry.modified_ms < before {
                client.delete(&entry.path, true).await?;
            }
        }
        Ok(())
    }
}

/// Moves a file or folder to a path in the folder of an hour. The time of that folder becomes that of its
/// newest entry, also if the entry is deep in it.
async fn move_into(
    client: &Client,
    from: &DfsPath,
    (hour, to): (&DfsPath, &DfsPath),
) -> Result<(), ClientError> {
    if let Some((folder, _)) = to.split_last() {
        client.mkdir(&folder, true).await?;
    }
    // Before the move, so that no other command deletes the folder as expired after it.
    let now = Attributes { modified_ms: Some(output::now_ms()), ..Attributes::default() };
    client.set_attributes(hour, now).await?;
    client.rename(from, to, false).await
}

/// Deletes from the trash of the caller what has expired, or everything.
pub(crate) async fn empty(client: &Client, target: &Target, all: bool) -> Result<()> {
    let (trash, in_use) = Trash::of(target)?;
    // Without an interval nothing expires.
    if all || in_use { trash.expire(client, all).await } else { Ok(()) }
}

pub(crate) async fn expunge(args: Expunge, client: &Client, target: &Target) -> Result<ExitCode> {
    empty(client, target, args.all).await?;
    Ok(ExitCode::SUCCESS)
}
