//! The folders of a local cluster: their permissions, and where tasks run.
//!
//! All folders belong to the account that started the cluster. If tasks run as another account,
//! that account may traverse, but not list, the folders on the path to its files. If it cannot
//! reach the cluster folder at all (for example below a home folder), the folders of the trackers
//! and the sockets of the DataNodes are below `/var/tmp`; `layout.json` records the path.

use super::layout::{Layout, SECRET, Shape, TaskAccount};
use anyhow::{Context, Result, bail};
use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Prefix of a folder for trackers outside the cluster folder.
const ELSEWHERE: &str = "fermata-tasks-";
/// Other accounts may traverse the folder but not list it.
const TRAVERSABLE: u32 = 0o711;
const CLOSED: u32 = 0o700;
/// Other accounts may list the folder.
const READABLE: u32 = 0o755;

impl Layout {
    /// Creates the folder, its subfolders and its secret.
    pub fn make(&mut self) -> Result<()> {
        let traversable = if self.account.is_some() { TRAVERSABLE } else { CLOSED };
        make_folder(&self.folder, if self.open { READABLE } else { traversable })?;
        for part in ["logs", "run"] {
            make_folder(&self.folder.join(part), CLOSED)?;
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
        self.tasks = self.place_tasks()?;
        // Tasks that cannot reach the folder cannot reach the sockets of the DataNodes in it
        // either.
        let sockets = &mut self.config.datanode.socket_dir;
        if sockets.as_os_str().is_empty() || is_named_elsewhere(sockets) {
            *sockets = if is_elsewhere(&self.tasks) { self.tasks.clone() } else { PathBuf::new() };
        }
        Ok(())
    }

    /// A folder for the trackers that tasks can reach.
    fn place_tasks(&self) -> Result<PathBuf> {
        let own = self.folder.join("tasks");
        let Some(account) = &self.account else {
            make_folder(&own, CLOSED)?;
            return Ok(own);
        };
        make_folder(&own, TRAVERSABLE)?;
        let Some(closed) = blocked(&own, account)? else {
            if is_elsewhere(&self.tasks) {
                // Remains from a start when tasks could not reach the folder.
                daemon::tree::remove(&self.tasks)
                    .with_context(|| format!("cannot remove {}", self.tasks.display()))?;
            }
            return Ok(own);
        };
        if is_elsewhere(&self.tasks) && blocked(&self.tasks, account)?.is_none() {
            return Ok(self.tasks.clone());
        }
        for base in ["/var/tmp", "/tmp"].map(Path::new).into_iter().filter(|base| base.is_dir()) {
            if blocked(base, account)?.is_none()
                && let Ok(made) = tempfile::Builder::new().prefix(ELSEWHERE).tempdir_in(base)
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

/// The first folder on the path that tasks cannot enter.
fn blocked(path: &Path, account: &TaskAccount) -> Result<Option<PathBuf>> {
    daemon::account::blocked_at(path, account.ids)
        .with_context(|| format!("cannot read the permissions of {}", path.display()))
}

fn make_folder(path: &Path, mode: u32) -> Result<()> {
    let made =
        fs::create_dir_all(path).and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)));
    made.with_context(|| format!("cannot create folder {}", path.display()))
}

fn is_named_elsewhere(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(ELSEWHERE))
}

/// Whether `place_tasks` has created this folder outside the cluster folder.
fn is_elsewhere(path: &Path) -> bool {
    let own = |about: fs::Metadata| about.is_dir() && about.uid() == rustix::process::geteuid().as_raw();
    is_named_elsewhere(path) && fs::symlink_metadata(path).is_ok_and(own)
}

/// Removes the folders of the trackers if they are outside `folder`.
pub fn remove_elsewhere(folder: &Path) -> Result<()> {
    let shape = Shape::load(folder).unwrap_or_else(|error| {
        eprintln!("mrctl: warning: {error:#}; folders of tasks outside {} are not removed", folder.display());
        None
    });
    match shape.and_then(|shape| shape.tasks).filter(|path| is_elsewhere(path)) {
        Some(path) => {
            daemon::tree::remove(&path).with_context(|| format!("cannot remove {}", path.display()))
        }
        None => Ok(()),
    }
}

/// A new folder for a temporary cluster, removed when dropped. Tasks of another account can
/// traverse it.
pub fn temporary(within: &Path, prefix: &str) -> Result<tempfile::TempDir> {
    let made = tempfile::Builder::new().prefix(prefix).tempdir_in(within);
    let folder = made.with_context(|| format!("cannot create a folder in {}", within.display()))?;
    if rustix::process::geteuid().is_root() {
        make_folder(folder.path(), TRAVERSABLE)?;
    }
    Ok(folder)
}
