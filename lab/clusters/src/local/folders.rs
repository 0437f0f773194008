//! Creates the folders of a local cluster with their permissions, and chooses where tasks run.
//!
//! All folders belong to the account that started the cluster. If tasks run as a different account,
//! that account may traverse, but not list, the folders on the path to its files. If it cannot
//! reach the cluster folder at all (for example below a home folder), the folders of the trackers
//! and the sockets of the DataNodes are below `/var/tmp`; `layout.json` records the path.

use super::layout::{Layout, SECRET, StoredLayout, TaskAccount};
use anyhow::{Context, Result, bail};
use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};
use view::output::Usage;

/// Prefix of the name of a folder for trackers that is outside the cluster folder.
const TASKS_FOLDER_PREFIX: &str = "fermata-tasks-";
/// Other accounts may traverse the folder but not list it.
const TRAVERSABLE: u32 = 0o711;
/// Other accounts have no access to the folder.
const PRIVATE: u32 = 0o700;
/// Other accounts may list the folder.
const READABLE: u32 = 0o755;

impl Layout {
    /// Creates the folder, its subfolders and its secret.
    pub fn make(&mut self) -> Result<()> {
        let traversable = if self.account.is_some() { TRAVERSABLE } else { PRIVATE };
        make_folder(&self.folder, if self.open { READABLE } else { traversable })?;
        for part in ["logs", "run"] {
            make_folder(&self.folder.join(part), PRIVATE)?;
        }
        // Tasks read blocks through sockets in these folders.
        let data = self.folder.join("data");
        make_folder(&data, traversable)?;
        for node in self.on_nodes(super::Kind::Datanode) {
            make_folder(&data.join(&node.name), traversable)?;
        }
        let secret = self.folder.join(SECRET);
        if self.has_own_secret() && !secret.exists() {
            let random = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()].map(|id| id.simple().to_string());
            security::write_private(&secret, (random.concat() + "\n").as_bytes())?;
        }
        self.tasks = self.choose_tasks_folder()?;
        // Tasks that cannot reach the folder cannot reach the sockets of the DataNodes in it
        // either.
        let sockets = &mut self.config.datanode.socket_dir;
        if sockets.as_os_str().is_empty() || has_tasks_folder_prefix(sockets) {
            *sockets = if is_outside_folder(&self.tasks) { self.tasks.clone() } else { PathBuf::new() };
        }
        Ok(())
    }

    /// Returns a folder that tasks can reach, for the folders of the trackers. Creates it if
    /// necessary.
    fn choose_tasks_folder(&self) -> Result<PathBuf> {
        let own = self.folder.join("tasks");
        let Some(account) = &self.account else {
            make_folder(&own, PRIVATE)?;
            return Ok(own);
        };
        make_folder(&own, TRAVERSABLE)?;
        let Some(closed) = first_blocked_folder(&own, account)? else {
            if is_outside_folder(&self.tasks) {
                // The folder was created by an earlier start, when tasks could not reach the
                // cluster folder. It is no longer needed.
                daemon::tree::remove(&self.tasks)
                    .with_context(|| format!("cannot remove {}", self.tasks.display()))?;
            }
            return Ok(own);
        };
        if is_outside_folder(&self.tasks) && first_blocked_folder(&self.tasks, account)?.is_none() {
            return Ok(self.tasks.clone());
        }
        for base in ["/var/tmp", "/tmp"].map(Path::new).into_iter().filter(|base| base.is_dir()) {
            if first_blocked_folder(base, account)?.is_none()
                && let Ok(made) = tempfile::Builder::new().prefix(TASKS_FOLDER_PREFIX).tempdir_in(base)
            {
                let made = made.keep();
                make_folder(&made, TRAVERSABLE)?;
                return Ok(made);
            }
        }
        bail!(
            "tasks run as account {}, which cannot enter {}: chmod o+x {1}, give the cluster another --dir, or set \
             tasktracker.task_user to an account that can",
            account.name,
            closed.display()
        )
    }
}

/// Returns the first folder on the path that tasks cannot enter; None if they can enter all.
fn first_blocked_folder(path: &Path, account: &TaskAccount) -> Result<Option<PathBuf>> {
    daemon::account::blocked_at(path, account.ids)
        .with_context(|| format!("cannot read the permissions of {}", path.display()))
}

fn make_folder(path: &Path, mode: u32) -> Result<()> {
    let made =
        fs::create_dir_all(path).and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)));
    made.with_context(|| format!("cannot create folder {}", path.display()))
}

fn has_tasks_folder_prefix(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(TASKS_FOLDER_PREFIX))
}

/// Returns whether `choose_tasks_folder` has created this folder outside the cluster folder.
fn is_outside_folder(path: &Path) -> bool {
    let own = |about: fs::Metadata| about.is_dir() && about.uid() == rustix::process::geteuid().as_raw();
    has_tasks_folder_prefix(path) && fs::symlink_metadata(path).is_ok_and(own)
}

/// Removes the folders of the trackers if they are outside `folder`.
pub fn remove_outside_folder(folder: &Path) -> Result<()> {
    let shape = StoredLayout::load(folder).unwrap_or_else(|error| {
        eprintln!("mrctl: warning: {error:#}; folders of tasks outside {} are not removed", folder.display());
        None
    });
    match shape.and_then(|shape| shape.tasks).filter(|path| is_outside_folder(path)) {
        Some(path) => {
            daemon::tree::remove(&path).with_context(|| format!("cannot remove {}", path.display()))
        }
        None => Ok(()),
    }
}

/// Creates a folder for a temporary cluster in the folder `within`, which is that of the flag `--dir`.
/// Dropping the result removes the folder. Tasks of another account can traverse it.
pub fn temporary_folder(within: &Path, prefix: &str) -> Result<tempfile::TempDir> {
    if !within.is_dir() {
        let why = "there is no such folder: create it, or give another one";
        bail!(Usage(format!("--dir {}: {why}", within.display())));
    }
    let made = tempfile::Builder::new().prefix(prefix).tempdir_in(within);
    let folder = made.with_context(|| format!("cannot create a folder in {}", within.display()))?;
    if rustix::process::geteuid().is_root() {
        make_folder(folder.path(), TRAVERSABLE)?;
    }
    Ok(folder)
}
