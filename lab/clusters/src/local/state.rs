//! `cluster.json`: the daemons that `mrctl up` has started in a cluster folder. Every change
//! replaces the file atomically, so that `mrctl down` can stop them however `mrctl up` ended.

use super::process::{ExitKind, Identity, end_processes};
use anyhow::{Context, Result, bail};
use daemon::{
    files::{PRIVATE, replace},
    lock::{FolderLock, LockError},
};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// How long daemons may take to stop before they are killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for another mrctl process that changes the same folder.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);

/// The kind of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Namenode,
    Datanode,
    Jobtracker,
    Tasktracker,
    Gateway,
}

impl Kind {
    /// Returns the file name of the binary.
    pub fn program(self) -> &'static str {
        match self {
            Self::Namenode => "namenode",
            Self::Datanode => "datanode",
            Self::Jobtracker => "jobtracker",
            Self::Tasktracker => "tasktracker",
            Self::Gateway => "gateway",
        }
    }

    /// Returns whether it is a master.
    pub fn is_master(self) -> bool {
        matches!(self, Self::Namenode | Self::Jobtracker)
    }

    /// Returns whether it is a daemon of a node. The two daemons of a node share the name of the
    /// node; the names of all others say what they are.
    pub(super) fn is_on_node(self) -> bool {
        matches!(self, Self::Datanode | Self::Tasktracker)
    }
}

/// A record of one daemon, which suffices to find, signal and restart it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemon {
    /// `namenode`, `namenode2`, `jobtracker`, `gateway`, or the name of the node.
    pub name: String,
    /// The kind of daemon.
    pub kind: Kind,
    #[serde(flatten)]
    pub identity: Identity,
    /// The `host:port` that it listens on; empty until it is ready.
    pub addr: String,
    /// Its rack; empty for the masters.
    pub rack: String,
    /// Its data folder.
    pub dir: PathBuf,
    /// Its log file.
    pub log: PathBuf,
    /// The length of the log at the last start of the daemon.
    #[serde(default)]
    pub log_before: u64,
    /// The file that it writes when it is ready.
    pub ready_file: PathBuf,
    /// Its arguments, without the name of the binary.
    pub args: Vec<String>,
}

impl Daemon {
    /// Returns the name of the daemon for messages: `namenode`, or `node1's datanode`.
    pub fn title(&self) -> String {
        if self.kind.is_on_node() {
            format!("{}'s {}", self.name, self.kind.program())
        } else {
            self.name.clone()
        }
    }

    /// Returns whether it is a master of a group.
    pub(super) fn is_member(&self) -> bool {
        self.kind.is_master() && self.args.iter().any(|word| word == "--member")
    }

    /// Returns whether its process is running.
    pub fn is_running(&self) -> bool {
        self.identity.is_running(&self.args)
    }

    /// Returns whether a signal has stopped its process.
    pub fn is_frozen(&self) -> bool {
        self.is_running() && self.identity.is_frozen()
    }

    /// Returns `running`, `frozen` (by a signal) or `dead`.
    pub fn process_state(&self) -> &'static str {
        match (self.is_running(), self.identity.is_frozen()) {
            (false, _) => "dead",
            (true, true) => "frozen",
            (true, false) => "running",
        }
    }

    /// Returns advice for a daemon that a signal has stopped. `dir` is the `--dir` flag of the
    /// cluster folder.
    pub fn frozen_advice(&self, dir: &str) -> String {
        let (title, pid, name) = (self.title(), self.identity.pid, &self.name);
        format!("{title} is frozen (pid {pid}): continue it with `mrctl chaos cont {name}{dir}`")
    }

    /// Sends a signal. Returns false if the process is not running.
    pub fn signal(&self, signal: Signal) -> Result<bool> {
        let pid = self.identity.pid;
        self.identity
            .signal(&self.args, signal)
            .with_context(|| format!("cannot signal {} (pid {pid})", self.title()))
    }
}

/// All daemons that were started in one cluster folder.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClusterState {
    /// The address of the NameNode; with commas if there are several.
    pub namenode: String,
    /// The address of the JobTracker; with commas if there are several; empty if there is none.
    #[serde(default)]
    pub jobtracker: String,
    /// The address of the gateway; empty if there is none.
    #[serde(default)]
    pub gateway: String,
    /// The daemons in the order of their start: the NameNodes, the DataNodes, the `JobTrackers`,
    /// the TaskTrackers, the gateway.
    pub daemons: Vec<Daemon>,
}

impl ClusterState {
    /// Returns the path of the state file in `folder`.
    pub fn path(folder: &Path) -> PathBuf {
        folder.join("cluster.json")
    }

    /// Reads the state file in `folder`; None if there is no such file.
    pub fn load(folder: &Path) -> Result<Option<Self>> {
        let path = Self::path(folder);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let state = serde_json::from_str(&text).with_context(|| {
            format!(
                "{} is damaged: stop the daemons of this cluster by hand, then remove the file",
                path.display()
            )
        })?;
        Ok(Some(state))
    }

    /// Reads the state like `load`, but a folder without a cluster is an error.
    pub fn require(folder: &Path) -> Result<Self> {
        match Self::load(folder)? {
            Some(state) => Ok(state),
            None => bail!("no cluster is running in {}: start one with `mrctl up`", folder.display()),
        }
    }

    /// Replaces the state file in `folder` atomically.
    pub fn save(&self, folder: &Path) -> Result<()> {
        let path = Self::path(folder);
        let text = serde_json::to_string_pretty(self).expect("the state is plain data");
        replace(&path, (text + "\n").as_bytes(), PRIVATE, false)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the daemons whose processes are running.
    pub fn running(&self) -> impl Iterator<Item = &Daemon> {
        self.daemons.iter().filter(|daemon| daemon.is_running())
    }

    /// Describes the running daemons: names the masters and counts the others. Returns None if no
    /// daemon is running.
    pub fn describe_running(&self) -> Option<String> {
        let mut words: Vec<String> = Vec::new();
        for kind in [Kind::Namenode, Kind::Jobtracker, Kind::Gateway, Kind::Datanode, Kind::Tasktracker] {
            match self.running().filter(|daemon| daemon.kind == kind).count() as u64 {
                0 => {}
                1 if !kind.is_on_node() => words.push(kind.program().into()),
                number => words.push(view::output::count(number, kind.program())),
            }
        }
        (!words.is_empty()).then(|| words.join(", "))
    }

    /// Returns the masters of this kind.
    pub fn masters_of(&self, kind: Kind) -> impl Iterator<Item = &Daemon> {
        self.daemons.iter().filter(move |daemon| daemon.kind == kind)
    }

    /// Returns the daemon called `name`, which must be of `kind` if that is given.
    pub fn find(&mut self, name: &str, kind: Option<Kind>) -> Result<&mut Daemon> {
        let mut names: Vec<&str> = self.daemons.iter().map(|daemon| daemon.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let known = names.join(", ");
        let wanted =
            |daemon: &&mut Daemon| daemon.name == name && kind.is_none_or(|kind| daemon.kind == kind);
        self.daemons.iter_mut().find(wanted).with_context(|| {
            let what = kind.map_or(String::new(), |kind| format!("{} on ", kind.program()));
            format!("no {what}{name} in this cluster: it has {known}")
        })
    }

    /// Stops all daemons and returns how each ended.
    pub fn stop_all(&self) -> Result<Vec<(&Daemon, ExitKind)>> {
        self.stop_within(STOP_TIMEOUT)
    }

    /// Stops all daemons and returns how each ended. Those that run longer than `timeout` are killed.
    pub fn stop_within(&self, timeout: Duration) -> Result<Vec<(&Daemon, ExitKind)>> {
        let mut daemons: Vec<&Daemon> = self.daemons.iter().collect();
        // A daemon stops before the daemons that it depends on.
        daemons.sort_by_key(|daemon| match daemon.kind {
            Kind::Gateway => 0,
            Kind::Tasktracker => 1,
            Kind::Jobtracker => 2,
            Kind::Datanode => 3,
            Kind::Namenode => 4,
        });
        let processes: Vec<_> =
            daemons.iter().map(|daemon| (&daemon.identity, daemon.args.as_slice())).collect();
        let exits = end_processes(&processes, timeout).context("cannot stop a daemon of this cluster")?;
        Ok(daemons.into_iter().zip(exits).collect())
    }
}

/// Locks the folder, so that no other mrctl process changes the cluster at the same time.
pub fn lock(folder: &Path) -> Result<FolderLock> {
    let notify = |holder: &str| {
        let seconds = LOCK_TIMEOUT.as_secs();
        eprintln!("mrctl: {} is in use by {holder}: waiting for up to {seconds} s", folder.display());
    };
    match FolderLock::acquire_within(folder, "mrctl", LOCK_TIMEOUT, notify) {
        Err(LockError::InUse { path, holder }) => {
            bail!("{} is in use by {holder}: try again when that has ended", path.display())
        }
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> ClusterState {
        let daemon = |name: &str, kind: Kind| Daemon {
            name: name.into(),
            kind,
            identity: Identity { pid: u32::MAX, started_ticks: 1 },
            addr: "127.0.0.1:1".into(),
            rack: "rack1".into(),
            dir: "d".into(),
            log: "l".into(),
            log_before: 0,
            ready_file: "r".into(),
            args: vec!["--dir".into(), "a b".into()],
        };
        ClusterState {
            namenode: "127.0.0.1:1".into(),
            jobtracker: String::new(),
            gateway: String::new(),
            daemons: vec![daemon("namenode", Kind::Namenode), daemon("node1", Kind::Datanode)],
        }
    }

    #[test]
    fn saved_state_loads() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(ClusterState::load(folder.path()).unwrap(), None);
        assert!(ClusterState::require(folder.path()).is_err());
        state().save(folder.path()).unwrap();
        assert_eq!(ClusterState::load(folder.path()).unwrap(), Some(state()));
        fs::write(ClusterState::path(folder.path()), "{").unwrap();
        let error = ClusterState::load(folder.path()).unwrap_err().to_string();
        assert!(error.contains("is damaged"), "{error}");
    }

    #[test]
    fn daemons_are_found_by_name_and_kind() {
        let mut state = state();
        assert_eq!(state.find("node1", Some(Kind::Datanode)).unwrap().name, "node1");
        let error = state.find("node9", None).unwrap_err().to_string();
        assert_eq!(error, "no node9 in this cluster: it has namenode, node1");
        assert!(state.find("namenode", Some(Kind::Datanode)).is_err());
    }

    #[test]
    fn frozen_daemon_is_not_called_running() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let mut daemon = state().daemons.remove(1);
        daemon.identity = Identity::of(child.id()).unwrap();
        daemon.args = vec!["600".into()];
        let wait_for = |state: &str| {
            let since = std::time::Instant::now();
            while daemon.process_state() != state {
                assert!(since.elapsed() < STOP_TIMEOUT, "{} and not {state}", daemon.process_state());
                std::thread::yield_now();
            }
        };
        wait_for("running");
        daemon.signal(Signal::STOP).unwrap();
        wait_for("frozen");
        assert!(daemon.is_frozen());
        assert!(daemon.frozen_advice("").ends_with("continue it with `mrctl chaos cont node1`"));
        daemon.signal(Signal::KILL).unwrap();
        wait_for("dead");
        assert!(!daemon.is_frozen());
        child.wait().unwrap();
    }

    #[test]
    fn stopping_a_dead_daemon_succeeds() {
        let state = state();
        assert_eq!(state.running().count(), 0);
        assert!(state.stop_all().unwrap().iter().all(|(_, exit)| *exit == ExitKind::NotRunning));
    }
}
