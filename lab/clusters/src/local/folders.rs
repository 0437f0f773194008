//! Creates the folders of a local cluster with their permissions, and chooses where tasks run.
//!
//! All folders belong to the account that started the cluster. If tasks run as a different account,
//! that account may traverse, but not list, the folders on the path to its files. If it cannot
//! reach the cluster folder at all (for example below a home folder), the folders of the trackers
//! and the sockets of the DataNodes are below `/var/tmp`; `layout.json` records the path.

use super::{
    layout::{Layout, SECRET, StoredLayout, TaskAccount},
    state::ClusterState,
};
use anyhow::{Context, Result, bail};
use std::{
    collections::BTreeSet,
    fs::{self, File, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use view::output::Usage;

/// Prefix of the name of a folder for trackers that is outside the cluster folder.
const TASKS_FOLDER_PREFIX: &str = "fermata-tasks-";
/// How long the daemons of a cluster that a killed process has left may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);
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

/// Creates a folder for temporary machines in the folder `within`, which is that of the flag `--dir`.
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

/// The file in the folder of a temporary cluster that the process which uses the folder has locked.
const OWNER: &str = "OWNER";

/// The folders of the temporary clusters of this process.
static TEMPORARY: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn temporary() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The folder of a temporary cluster. Dropping it removes the folder; the daemons must have been
/// stopped. If the process is killed, the next process that creates such a folder beside it stops the
/// daemons and removes the folder.
pub struct TemporaryCluster {
    /// In [`TEMPORARY`] until the folder is removed or kept.
    folder: PathBuf,
    /// The lock ends with this process; daemons do not inherit it.
    _owner: File,
}

impl TemporaryCluster {
    /// Creates a folder as [`temporary_folder`] does, after it has removed the clusters that killed
    /// processes have left in `within`.
    pub fn create(within: &Path, prefix: &str) -> Result<Self> {
        remove_left_clusters(within, prefix);
        let folder = temporary_folder(within, prefix)?;
        // The file appears when it is locked, so that no other process takes the folder for a left one.
        let (new, owner) = (folder.path().join("OWNER.new"), folder.path().join(OWNER));
        let locked = File::create_new(&new).and_then(|file| {
            file.try_lock()?;
            fs::rename(&new, &owner)?;
            Ok(file)
        });
        let owner = locked.with_context(|| format!("cannot lock {}", owner.display()))?;
        let folder = folder.keep();
        temporary().insert(folder.clone());
        Ok(Self { folder, _owner: owner })
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Removes the folder.
    pub fn close(self) -> Result<()> {
        self.remove()
    }

    /// Keeps the folder, and returns its path.
    pub fn keep(self) -> PathBuf {
        temporary().remove(&self.folder);
        // Without the file, the folder is not taken for a left one.
        let _ = fs::remove_file(self.folder.join(OWNER));
        self.folder.clone()
    }

    /// Removes the folder, unless that was done before or it is kept. The end of the process waits
    /// until it is removed.
    fn remove(&self) -> Result<()> {
        let mut all = temporary();
        if !all.contains(&self.folder) {
            return Ok(());
        }
        let removed = daemon::tree::remove(&self.folder);
        all.remove(&self.folder);
        removed.with_context(|| format!("cannot remove {}", self.folder.display()))
    }
}

impl Drop for TemporaryCluster {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("mrctl: {}", view::output::chain(&error));
        }
    }
}

/// Kills the daemons of the temporary clusters of this process and removes their folders. The process
/// must end then.
pub fn remove_temporary_clusters() {
    for folder in temporary().iter() {
        if let Err(error) = remove_cluster(folder, Duration::ZERO) {
            eprintln!("mrctl: {error:#}");
        }
    }
}

/// Removes the clusters that killed processes have left in a folder. An error is only reported,
/// because it does not affect other clusters.
fn remove_left_clusters(within: &Path, prefix: &str) {
    for folder in fs::read_dir(within).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let has_prefix = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
        let own = |about: fs::Metadata| about.is_dir() && about.uid() == rustix::process::geteuid().as_raw();
        if !has_prefix || !fs::symlink_metadata(&folder).is_ok_and(own) {
            continue;
        }
        let owner = File::open(folder.join(OWNER)).ok().filter(|file| file.try_lock().is_ok());
        let Some(_owner) = owner else { continue };
        eprintln!("mrctl: removing the cluster that a killed mrctl has left in {}", folder.display());
        if let Err(error) = remove_cluster(&folder, END_TIMEOUT) {
            eprintln!("mrctl: {error:#}; `mrctl down --dir {0}` stops it, then remove {0}", folder.display());
        }
    }
}

/// Stops the daemons of the clusters in a folder, or directly below it, and removes it. Daemons that
/// run longer than `timeout` are killed.
fn remove_cluster(folder: &Path, timeout: Duration) -> Result<()> {
    let below = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for cluster in std::iter::once(folder.to_owned()).chain(below.filter(|path| path.is_dir())) {
        if let Some(state) = ClusterState::load(&cluster)? {
            state.stop_within(timeout)?;
            remove_outside_folder(&cluster)?;
        }
    }
    daemon::tree::remove(folder).with_context(|| format!("cannot remove {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::{Daemon, Identity, Kind};
    use std::process::{Child, Command};

    /// Writes the state of a cluster with a daemon that runs.
    fn cluster_with_a_daemon(folder: &Path) -> Child {
        let daemon = Command::new("sleep").arg("1000").spawn().unwrap();
        let daemon_row = Daemon {
            name: "namenode".into(),
            kind: Kind::Namenode,
            identity: Identity::of(daemon.id()).unwrap(),
            addr: "127.0.0.1:1".into(),
            rack: "rack1".into(),
            dir: "d".into(),
            log: "l".into(),
            log_before: 0,
            ready_file: "r".into(),
            args: vec!["1000".into()],
        };
        let state = ClusterState {
            namenode: String::new(),
            jobtracker: String::new(),
            gateway: String::new(),
            daemons: vec![daemon_row],
        };
        fs::create_dir_all(folder).unwrap();
        state.save(folder).unwrap();
        daemon
    }

    #[test]
    fn cluster_of_a_killed_process_is_stopped_and_removed_by_the_next_one() {
        let within = tempfile::tempdir().unwrap();
        let folder = |name: &str| within.path().join(name);
        // One with the cluster below it, one that is kept, and one of another command.
        let mut left = cluster_with_a_daemon(&folder("fermata-trial-a/cluster"));
        let mut kept = cluster_with_a_daemon(&folder("fermata-trial-b"));
        let mut other = cluster_with_a_daemon(&folder("fermata-soak-c"));
        for owned in ["fermata-trial-a", "fermata-soak-c"] {
            File::create_new(folder(owned).join(OWNER)).unwrap();
        }
        // Waits for its child, so that it does not stay in the list of processes.
        let waiting = std::thread::spawn(move || left.wait().unwrap());
        let used = TemporaryCluster::create(within.path(), "fermata-trial-").unwrap();
        waiting.join().unwrap();
        assert!(!folder("fermata-trial-a").exists());
        assert!(folder("fermata-trial-b").exists() && folder("fermata-soak-c").exists());
        // A folder in use is not removed, and a kept one neither.
        let second = TemporaryCluster::create(within.path(), "fermata-trial-").unwrap();
        assert!(used.path().exists());
        let second = second.keep();
        let third = TemporaryCluster::create(within.path(), "fermata-trial-").unwrap();
        assert!(second.exists() && third.path().exists());
        let (used_path, third_path) = (used.path().to_owned(), third.path().to_owned());
        used.close().unwrap();
        drop(third);
        assert!(!used_path.exists() && !third_path.exists());
        for child in [&mut kept, &mut other] {
            assert!(child.try_wait().unwrap().is_none(), "it was stopped");
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
