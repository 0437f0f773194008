//! The layout of a local cluster, and the command lines of its daemons.
//!
//! A folder keeps its number of nodes and racks, its ports and its access (closed or open) from one
//! start to the next, unless flags change them. A new cluster is closed: its secret is in the
//! folder, and only the account that started it can read that. Processes are in `launch`, the
//! creation of folders in `folders`.

use super::state::Kind;
use anyhow::{Context, Result, bail};
use daemon::{
    Bytes,
    config::{Choice, Config, ConfigError, SchedulerConfig},
    files::{PRIVATE, USUAL, replace},
};
use schedulers::PolicyError;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use view::output::Usage;

/// Flags that override the stored layout, or the defaults in a new folder.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Number of nodes.
    pub nodes: Option<u32>,
    /// Number of NameNodes.
    pub masters: Option<u32>,
    /// Number of racks.
    pub racks: Option<u32>,
    /// Replicas of new files.
    pub replication: Option<u32>,
    /// Block size of new files.
    pub block_size: Option<Bytes>,
    /// The configuration file to use instead of the one in the folder.
    pub config: Option<PathBuf>,
    /// Map slots of each node.
    pub map_slots: Option<u32>,
    /// Reduce slots of each node.
    pub reduce_slots: Option<u32>,
    /// The scheduling policy.
    pub scheduler: Option<String>,
    /// The shadow policy.
    pub shadow: Option<String>,
    /// Whether every local account may use the cluster. None: as stored in the folder.
    pub open: Option<bool>,
    /// Whether the caller removes the folder when the cluster has stopped.
    pub temporary: bool,
    /// The NameNode that is started once with `--recover` before all others.
    pub recover: Option<String>,
}

/// The contents of `layout.json`: what the next start needs to know.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StoredLayout {
    pub(super) nodes: u32,
    pub(super) racks: u32,
    /// Number of NameNodes; absent if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) masters: Option<u32>,
    /// Whether it was started with `--open`.
    pub(super) open: bool,
    /// Ports of the namenode and the jobtracker at the last start.
    pub(super) ports: Option<[u16; 2]>,
    /// Ports of the second and the following NameNodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) other_namenode_ports: Vec<u16>,
    /// The NameNode that has all files, until the others have joined it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) forming: Option<String>,
    /// The parent of the folders of the trackers, if it is not in the cluster folder.
    pub(super) tasks: Option<PathBuf>,
    /// Whether the complete cluster has started once, so that its masters have data.
    pub(super) formatted: bool,
    /// The configured replication, if `fermata.toml` has a lower one because of the number of
    /// nodes.
    pub(super) replication_wanted: Option<u32>,
}

impl StoredLayout {
    pub(super) fn path(folder: &Path) -> PathBuf {
        folder.join("layout.json")
    }

    /// Reads `layout.json`. Returns None if the folder has never contained a cluster.
    pub(super) fn load(folder: &Path) -> Result<Option<Self>> {
        let path = Self::path(folder);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            // A file that is not UTF-8 is also damaged.
            Err(error) if error.kind() == ErrorKind::InvalidData => error.to_string(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let why = match serde_json::from_str::<Self>(&text) {
            Ok(shape) if shape.masters() as usize != shape.other_namenode_ports.len() + 1 => {
                "the number of NameNodes and that of their ports differ".to_owned()
            }
            Ok(shape) if shape.nodes > 0 => return Ok(Some(shape)),
            Ok(_) => "the number of nodes is missing".to_owned(),
            Err(error) => error.to_string(),
        };
        bail!(
            "{} is damaged ({why}): it has the number of nodes and racks of this cluster; restore it, or write {{\"nodes\": N, \
             \"racks\": R, \"formatted\": true}} to it with the numbers of this cluster (for several NameNodes also their number as \
             \"masters\", and the ports of all but the first as \"other_namenode_ports\")",
            path.display()
        )
    }

    fn masters(&self) -> u32 {
        self.masters.unwrap_or(1)
    }
}

/// The account that tasks run as, if it is not that of the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TaskAccount {
    pub(super) name: String,
    pub(super) ids: (u32, u32),
}

/// A planned cluster in a folder.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The cluster folder, as an absolute path.
    pub folder: PathBuf,
    /// Number of nodes, named node1 to nodeN.
    pub nodes: u32,
    /// Number of NameNodes, named namenode, namenode2 to namenodeM. If there are several, they are
    /// a group.
    pub masters: u32,
    /// Number of NameNodes at the last start.
    pub(super) masters_before: u32,
    /// The NameNode that has all files, until the others have joined it.
    pub(super) forming: Option<String>,
    /// Whether the folder was that of one NameNode, and is to be that of several.
    pub(super) begins_to_form: bool,
    /// The NameNode that is started once with `--recover` before all others.
    pub(super) recover: Option<String>,
    /// Whether the NameNodes are started in order to remove some of them, which may be done already.
    pub(super) removes_last: bool,
    /// Number of racks, named rack1 to rackR.
    pub racks: u32,
    /// The configuration of all daemons and clients.
    pub config: Config,
    /// The number of nodes at the last start, if it was larger.
    pub nodes_before: Option<u32>,
    /// Ports of the namenode and the jobtracker at the last start.
    pub ports: Option<[u16; 2]>,
    /// Ports of the second and the following NameNodes.
    pub(super) other_namenode_ports: Vec<u16>,
    /// Whether every local account may use it.
    pub open: bool,
    /// Whether the complete cluster has started once, so that its masters have data.
    pub formatted: bool,
    /// The number of nodes that had data at the last start.
    nodes_known: u32,
    /// The configured replication, if it was reduced because there are fewer nodes.
    pub replication_wanted: Option<u32>,
    /// Whether the caller removes the folder when the cluster has stopped.
    pub temporary: bool,
    /// The parent of the folders of the trackers.
    pub(super) tasks: PathBuf,
    pub(super) account: Option<TaskAccount>,
}

/// Name, kind and rack of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// `namenode`, `namenode2`, `jobtracker`, or the name of the node.
    pub name: String,
    /// The kind of daemon.
    pub kind: Kind,
    /// The rack; empty for the NameNode and the JobTracker.
    pub rack: String,
}

fn namenode_name(number: u32) -> String {
    if number == 1 { "namenode".into() } else { format!("namenode{number}") }
}

impl Role {
    /// Returns the name of the daemon in file names. Unlike `name`, which both daemons of a node
    /// share, it is unique.
    fn label(&self) -> String {
        if self.kind.is_master() {
            self.name.clone()
        } else {
            format!("{}-{}", self.name, self.kind.program())
        }
    }
}

/// Returns whether a folder is missing or empty: it was deleted, or its disk is not mounted.
pub(super) fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none())
}

/// Returns a warning if the folder of a DataNode that had blocks is missing or empty.
pub fn lost_data(node: &str, dir: &Path) -> Option<String> {
    is_empty(dir).then(|| {
        format!(
            "{} is missing or empty: {node}'s datanode starts empty, and its replicas are copied from other nodes; if \
             its disk is just not mounted, run `mrctl down` and mount it",
            dir.display()
        )
    })
}

fn ensure_usage(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Usage(what()).into()) }
}

/// Fails if a policy is unknown or has bad parameters. Called before the settings are written.
pub fn check_scheduler(config: &SchedulerConfig) -> Result<(), ConfigError> {
    let params = config.parameters()?;
    let shadow = Some(("shadow", &config.shadow)).filter(|(_, name)| !name.trim().is_empty());
    for (key, name) in std::iter::once(("name", &config.name)).chain(shadow) {
        schedulers::make(name, &params).map_err(|error| {
            let (key, value) = match &error {
                PolicyError::Unknown { name } => (key, Some(name.clone())),
                PolicyError::Parameter(bad) => (bad.place(), None),
            };
            ConfigError::Setting { key: format!("scheduler.{key}"), value, why: error.to_string() }
        })?;
    }
    Ok(())
}

/// The account of tasks if the cluster runs as root and the settings name none.
const TASK_USER: &str = "nobody";
/// The name of the secret file in the cluster folder.
pub(super) const SECRET: &str = "secret";

/// Closes the cluster with the secret in its folder, unless it is to be open or the settings close
/// it in another way. `of_folder` means that the settings are from the cluster folder.
fn set_access(config: &mut Config, secret: &Path, of_folder: bool, open: bool) -> Result<()> {
    let security = &mut config.security;
    // If the folder was moved, its settings still have the old path of the secret.
    let moved = of_folder && security.secret.file_name() == secret.file_name() && !security.secret.exists();
    let own = security.secret.as_os_str().is_empty() || security.secret == secret || moved;
    if !security.dir.as_os_str().is_empty() || !own {
        return ensure_usage(!open, || {
            "--open: the configuration closes this cluster (security.dir or security.secret): remove these, or --open"
                .into()
        });
    }
    security.secret = if open { PathBuf::new() } else { secret.to_owned() };
    Ok(())
}

/// Returns the account for tasks of a cluster that runs as root. Tasks never run as root, unless
/// `tasks_as_root` is set.
fn task_account(config: &mut Config, root: bool) -> Result<Option<TaskAccount>> {
    let tasks = &mut config.tasktracker;
    if !root {
        return Ok(None);
    }
    if tasks.task_user.is_empty() {
        if tasks.tasks_as_root {
            return Ok(None);
        }
        tasks.task_user = TASK_USER.into();
    }
    let name = tasks.task_user.clone();
    match daemon::account::find(&name).filter(|(user, _)| *user != 0) {
        Some(ids) => Ok(Some(TaskAccount { name, ids })),
        None => bail!(Usage(format!(
            "tasktracker.task_user = {name:?}: there is no such account, or it is root; tasks of a cluster that runs as \
             root need another account"
        ))),
    }
}

/// Turns confinement off where the kernel has no Landlock: otherwise a tracker would refuse tasks
/// of its own account. In a cluster with its own secret, tasks are programs of the account that
/// started it, which can read the secret anyway.
fn relax_confinement(config: &mut Config, own_secret: bool, own_account: bool, landlock: bool) {
    let tasks = &mut config.tasktracker;
    if own_secret && !own_account && !landlock && tasks.confine == Choice::Auto {
        tasks.confine = Choice::Off;
    }
}

const NODES_DEFAULT: u32 = 3;
/// The possible numbers of NameNodes.
const MASTERS: [u32; 3] = [1, 3, 5];
const NODES_MAX: u32 = 200;

/// Fails if the path cannot be the folder of a cluster: it is a file, or the configuration, which
/// is UTF-8, cannot contain it.
fn check_folder(folder: &Path) -> Result<(), Usage> {
    let shown = folder.display();
    if folder.exists() && !folder.is_dir() {
        return Err(Usage(format!("{shown} is a file, not a folder: name another folder with --dir")));
    }
    if folder.to_str().is_none() {
        return Err(Usage(format!("{shown} is not UTF-8: name another folder with --dir")));
    }
    Ok(())
}

impl Layout {
    /// Returns the layout for `folder`: the stored one, with `overrides` applied. This changes no
    /// file.
    pub fn prepare(folder: &Path, overrides: &Overrides) -> Result<Self> {
        let folder = std::path::absolute(folder)
            .with_context(|| format!("cannot determine the path of {}", folder.display()))?;
        check_folder(&folder)?;
        let own = folder.join("fermata.toml");
        let own = own.exists().then_some(own.as_path());
        let file = overrides.config.as_deref().or(own);
        let config = Config::load(file)?;
        let shape = StoredLayout::load(&folder)?;
        Self::plan(folder, shape, config, overrides).map_err(|error| match error.downcast::<ConfigError>() {
            Ok(error) => error.found_in(file).into(),
            Err(error) => error,
        })
    }

    /// Returns whether callers of the cluster authenticate with the secret in its folder.
    pub fn has_own_secret(&self) -> bool {
        self.config.security.secret == self.folder.join(SECRET)
    }

    /// Returns a warning if other accounts can read the secret in the folder.
    pub fn exposed_secret(&self) -> Option<String> {
        let path = self.folder.join(SECRET);
        let mode = fs::metadata(&path).ok().filter(|_| self.has_own_secret())?.permissions().mode() & 0o777;
        (mode & 0o077 != 0).then(|| {
            let (shown, dir) = (path.display(), crate::folder::dir_flag(Some(&self.folder)));
            format!(
                "{shown} has mode {mode:o}: other accounts may have read the secret of this cluster, and daemons do not start \
                 with it; run `chmod 600 {}`, or create a new one: `mrctl down{dir}`, remove the file, `mrctl up{dir}`",
                view::output::shell(&path)
            )
        })
    }

    /// Returns the account that tasks run as, if it is not that of the caller.
    pub fn task_account(&self) -> Option<&str> {
        self.account.as_ref().map(|account| account.name.as_str())
    }

    /// Returns whether tasks can read the secret of the cluster: they are not confined and run as
    /// the account of the cluster.
    pub fn tasks_read_secret(&self) -> bool {
        let confine = self.config.tasktracker.confine;
        self.config.security.is_closed() && confine == Choice::Off && self.account.is_none()
    }

    /// Stores the layout for the next start in this folder.
    pub(super) fn store(&self) -> Result<()> {
        let path = StoredLayout::path(&self.folder);
        let own = self.folder.join("tasks");
        let shape = StoredLayout {
            nodes: self.nodes_before.unwrap_or(self.nodes),
            racks: self.racks,
            masters: (self.masters > 1).then_some(self.masters),
            open: self.open,
            ports: self.ports,
            other_namenode_ports: self.other_namenode_ports.clone(),
            forming: self.forming.clone(),
            tasks: (self.tasks != own).then(|| self.tasks.clone()),
            formatted: self.formatted,
            replication_wanted: self.replication_wanted,
        };
        let text = serde_json::to_string(&shape).expect("the shape is plain data");
        replace(&path, (text + "\n").as_bytes(), PRIVATE, false)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Records that the masters have data. From then on, `check_masters` refuses an empty folder of
    /// a master.
    pub(super) fn set_formatted(&mut self) -> Result<()> {
        if self.formatted {
            return Ok(());
        }
        self.formatted = true;
        self.store()
    }

    /// Fails if the folder of a master had data and is empty now, because its disk may not be
    /// mounted. With `renew_jobs`, the folder of the JobTracker may be empty.
    pub fn check_masters(&self, renew_jobs: bool) -> Result<()> {
        let flag = crate::folder::dir_flag(Some(&self.folder));
        let lost = |role: &Role| self.formatted && is_empty(&self.data_dir(role));
        // The others join the one that has all files.
        let first = self.begins_to_form.then(|| Self::namenode().name);
        let founder = self.recover.as_ref().or(self.forming.as_ref()).or(first.as_ref());
        let needed = |role: &Role| founder.is_none_or(|founder| role.name == *founder);
        let namenodes = self.namenodes().filter(needed).filter(&lost).map(|role| self.data_dir(&role));
        let namenodes: Vec<PathBuf> = namenodes.collect();
        if let [first, ..] = namenodes.as_slice()
            && (founder.is_some() || !self.is_majority(self.masters as usize - namenodes.len()))
        {
            let more = match namenodes.len() - 1 {
                0 => String::new(),
                more => format!(" ({more} more of {} NameNodes)", self.masters),
            };
            let or_recover = if namenodes.len() < self.masters as usize && founder.is_none() {
                ", or continue with what one of the others has (`mrctl masters --offline` compares them, and `mrctl up --recover NAME` \
                 makes a new group of it)"
            } else {
                ""
            };
            bail!(
                "{} is missing or empty{more}, and this cluster had files: mount or restore it{or_recover}, or start a new cluster: \
                 `mrctl down{flag} --purge` removes the remaining data, then `mrctl up{flag}` creates a new cluster",
                first.display()
            );
        }
        let jobtracker = Self::jobtracker();
        if lost(&jobtracker) && !renew_jobs {
            bail!(
                "{} is missing or empty, and this cluster had jobs: mount or restore it, or start without these jobs: \
                 `mrctl up{flag} --format jobtracker`, which numbers jobs from job_1 again",
                self.data_dir(&jobtracker).display()
            );
        }
        Ok(())
    }

    /// Returns whether so many of the NameNodes can serve.
    pub fn is_majority(&self, namenodes: usize) -> bool {
        2 * namenodes > self.masters as usize
    }

    /// Returns whether a NameNode of a group has lost its folder: it joins again with another ID.
    fn is_lost_member(&self, role: &Role) -> bool {
        let is_formed = self.forming.is_none() && self.recover.is_none() && !self.begins_to_form;
        let had_one = self.namenodes().take(self.masters_before as usize).any(|known| known == *role);
        self.masters > 1 && self.formatted && is_formed && had_one && is_empty(&self.data_dir(role))
    }

    /// Returns a warning for each NameNode of a group and each DataNode that had data at the last
    /// start and has lost its folder.
    pub fn lost_data(&self) -> Vec<String> {
        let members = self.namenodes().filter(|role| self.is_lost_member(role)).map(|role| {
            format!(
                "{} is missing or empty: {} starts empty, and gets everything from the others; if its disk is just not mounted, run \
                 `mrctl down` and mount it",
                self.data_dir(&role).display(),
                role.name
            )
        });
        let known = self.on_nodes(Kind::Datanode).take(self.nodes_known as usize);
        members.chain(known.filter_map(|role| lost_data(&role.name, &self.data_dir(&role)))).collect()
    }

    fn plan(
        folder: PathBuf,
        before: Option<StoredLayout>,
        mut config: Config,
        overrides: &Overrides,
    ) -> Result<Self> {
        let earlier = before.as_ref().filter(|shape| shape.nodes > 0);
        let nodes = overrides.nodes.or(earlier.map(|shape| shape.nodes)).unwrap_or(NODES_DEFAULT);
        let racks = overrides.racks.or(earlier.map(|shape| shape.racks.clamp(1, nodes))).unwrap_or(1);
        ensure_usage((1..=NODES_MAX).contains(&nodes), || {
            format!("--nodes {nodes}: must be from 1 to {NODES_MAX}")
        })?;
        ensure_usage(racks >= 1, || "--racks 0: must be at least 1".into())?;
        let has = view::output::count(nodes.into(), "node");
        ensure_usage(racks <= nodes, || format!("--racks {racks}: the cluster has only {has}"))?;
        let masters_before = earlier.map(StoredLayout::masters);
        let masters = overrides.masters.or(masters_before).unwrap_or(1);
        ensure_usage(MASTERS.contains(&masters), || {
            format!(
                "--masters {masters}: must be 1, 3 or 5: a majority must be left when one fails, so an even number is no \
                 better than the odd one below it"
            )
        })?;
        let masters_before = masters_before.unwrap_or(masters);
        if let Some(name) = &overrides.recover {
            let known = (1..=masters).any(|number| *name == namenode_name(number));
            ensure_usage(known && earlier.is_some(), || {
                format!("--recover {name}: there is no such NameNode in {}", folder.display())
            })?;
            ensure_usage(masters == masters_before, || {
                format!("--recover {name}: the number of NameNodes cannot be changed at the same start")
            })?;
        }
        let begins_to_form =
            before.as_ref().is_some_and(|shape| shape.formatted) && masters_before == 1 && masters > 1;
        // The members of the group get these as flags.
        (config.namenode.member, config.namenode.join) = (0, Vec::new());
        config.namenode.advertise = String::new();
        config.namenode.dir = folder.join("data/namenode");
        config.namenode.safemode_nodes_min = config.namenode.safemode_nodes_min.min(nodes);
        // The file in the folder has the reduced value of the last start.
        let reduced_from =
            before.as_ref().and_then(|shape| shape.replication_wanted).filter(|_| overrides.config.is_none());
        let configured = config.namenode.replication.max(reduced_from.unwrap_or(0));
        config.namenode.replication = match overrides.replication {
            Some(replication) => {
                ensure_usage(replication >= 1, || "--replication 0: must be at least 1".into())?;
                ensure_usage(replication <= nodes, || {
                    format!(
                        "--replication {replication}: the cluster has {has}; ask for fewer replicas or more --nodes"
                    )
                })?;
                replication
            }
            None => configured.min(nodes),
        };
        if let Some(size) = overrides.block_size {
            config.namenode.block_size = size;
        }
        config.jobtracker.dir = folder.join("data/jobtracker");
        let open = overrides.open.or(before.as_ref().map(|shape| shape.open)).unwrap_or(false);
        set_access(&mut config, &folder.join(SECRET), overrides.config.is_none(), open)?;
        let account = task_account(&mut config, rustix::process::geteuid().is_root())?;
        let own_secret = config.security.secret == folder.join(SECRET);
        relax_confinement(&mut config, own_secret, account.is_some(), engine::process::can_confine());
        let tasks = &mut config.tasktracker;
        tasks.map_slots = overrides.map_slots.unwrap_or(tasks.map_slots);
        tasks.reduce_slots = overrides.reduce_slots.unwrap_or(tasks.reduce_slots);
        if let Some(scheduler) = &overrides.scheduler {
            config.scheduler.name.clone_from(scheduler);
        }
        if let Some(shadow) = &overrides.shadow {
            config.scheduler.shadow.clone_from(shadow);
        }
        config.check()?;
        check_scheduler(&config.scheduler)?;
        let nodes_before = before.as_ref().map(|shape| shape.nodes).filter(|before| *before > nodes);
        let before = before.unwrap_or_default();
        let nodes_known = if before.formatted { before.nodes.min(nodes) } else { 0 };
        let tasks = before.tasks.unwrap_or_else(|| folder.join("tasks"));
        Ok(Self {
            folder,
            nodes,
            masters,
            masters_before,
            forming: before.forming,
            begins_to_form,
            recover: overrides.recover.clone(),
            removes_last: false,
            racks,
            config,
            nodes_before,
            ports: before.ports,
            other_namenode_ports: before.other_namenode_ports,
            open,
            formatted: before.formatted,
            nodes_known,
            replication_wanted: (overrides.replication.is_none() && configured > nodes).then_some(configured),
            temporary: overrides.temporary,
            tasks,
            account,
        })
    }

    /// Writes `fermata.toml` for daemons and clients, with the ports of the masters, and stores the
    /// ports. `others` are those of the second and the following NameNodes.
    pub(super) fn write_config(&mut self, ports: [u16; 2], others: Vec<u16>) -> Result<()> {
        let [namenode, jobtracker] = ports;
        let namenodes = std::iter::once(&namenode).chain(&others).map(|port| format!("127.0.0.1:{port}"));
        self.config.cluster.namenode = namenodes.collect::<Vec<_>>().join(",").into();
        self.config.cluster.jobtracker = format!("127.0.0.1:{jobtracker}").into();
        (self.ports, self.other_namenode_ports) = (Some(ports), others);
        let path = self.config_file();
        let mode = if self.open { USUAL } else { PRIVATE };
        replace(&path, self.config.print().as_bytes(), mode, false)
            .with_context(|| format!("cannot write {}", path.display()))?;
        self.store()
    }

    /// Returns the configuration file in the folder.
    pub fn config_file(&self) -> PathBuf {
        self.folder.join("fermata.toml")
    }

    /// Returns the role of the first NameNode.
    pub fn namenode() -> Role {
        Role { name: "namenode".into(), kind: Kind::Namenode, rack: String::new() }
    }

    /// Returns the roles of all NameNodes, in order.
    pub fn namenodes(&self) -> impl Iterator<Item = Role> + use<> {
        (1..=self.masters).map(|number| Role { name: namenode_name(number), ..Self::namenode() })
    }

    /// Returns the role of the JobTracker.
    pub fn jobtracker() -> Role {
        Role { name: "jobtracker".into(), kind: Kind::Jobtracker, rack: String::new() }
    }

    /// Returns the roles of the daemons of this kind on all nodes, in order. Nodes are assigned to
    /// racks in turn.
    pub fn on_nodes(&self, kind: Kind) -> impl Iterator<Item = Role> + use<> {
        let racks = self.racks;
        (0..self.nodes).map(move |at| Role {
            name: format!("node{}", at + 1),
            kind,
            rack: format!("rack{}", at % racks + 1),
        })
    }

    /// Returns the data folder of a daemon.
    pub(super) fn data_dir(&self, role: &Role) -> PathBuf {
        let within =
            if role.kind == Kind::Tasktracker { self.tasks.clone() } else { self.folder.join("data") };
        within.join(&role.name)
    }

    /// Returns the log file of a daemon.
    pub fn log(&self, role: &Role) -> PathBuf {
        self.folder.join("logs").join(format!("{}.log", role.label()))
    }

    /// Returns the file that the daemon writes when it is ready.
    pub fn ready_file(&self, role: &Role) -> PathBuf {
        self.folder.join("run").join(format!("{}.ready", role.label()))
    }

    /// Returns the arguments of a daemon. Masters listen on the addresses in the configuration,
    /// where other daemons find them.
    pub fn args(&self, role: &Role) -> Vec<String> {
        let path = |path: PathBuf| path.to_string_lossy().into_owned();
        let mut args = vec!["--config".into(), path(self.config_file())];
        match role.kind {
            Kind::Namenode => {
                let addrs = &self.config.cluster.namenode;
                let at = self.namenodes().position(|one| one == *role).unwrap_or(0);
                args.extend(["--listen".into(), addrs[at].clone()]);
                if self.masters > 1 {
                    args.extend(["--member".into(), (at + 1).to_string()]);
                }
                // One forms the group, which any other may lead when the next one joins.
                if self.masters > 1 && !self.is_founder(role) {
                    let others = addrs.iter().filter(|addr| **addr != addrs[at]).map(String::as_str);
                    args.extend(["--join".into(), others.collect::<Vec<_>>().join(",")]);
                }
            }
            Kind::Jobtracker => args.extend(["--listen".into(), self.config.cluster.jobtracker.to_string()]),
            Kind::Datanode | Kind::Tasktracker => args.extend([
                "--node".into(),
                role.name.clone(),
                "--rack".into(),
                role.rack.clone(),
                "--listen".into(),
                "127.0.0.1:0".into(),
            ]),
        }
        args.extend(["--dir".into(), path(self.data_dir(role))]);
        args.extend(["--ready-file".into(), path(self.ready_file(role))]);
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_cannot_be_cluster_folders_are_usage_errors() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let odd = folder.path().join(OsStr::from_bytes(b"odd-\xff"));
        for (path, why) in [(file, "is a file, not a folder"), (odd, "is not UTF-8")] {
            let error = Layout::prepare(&path, &Overrides::default()).unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains(why), "{error}");
        }
    }

    fn plan(before: Option<StoredLayout>, overrides: Overrides) -> Result<Layout> {
        Layout::plan("/x/.fermata".into(), before, Config::default(), &overrides)
    }

    #[test]
    fn new_folder_gets_the_defaults() {
        let layout = plan(None, Overrides::default()).unwrap();
        assert_eq!((layout.nodes, layout.racks, layout.config.namenode.replication), (3, 1, 2));
        let one = plan(None, Overrides { nodes: Some(1), ..Overrides::default() }).unwrap();
        assert_eq!(one.config.namenode.replication, 1);
    }

    #[test]
    fn existing_folder_keeps_its_layout() {
        let before = || Some(StoredLayout { nodes: 5, racks: 2, ..StoredLayout::default() });
        let same = plan(before(), Overrides::default()).unwrap();
        assert_eq!((same.nodes, same.racks, same.nodes_before), (5, 2, None));
        let fewer = plan(before(), Overrides { nodes: Some(4), ..Overrides::default() }).unwrap();
        assert_eq!((fewer.nodes, fewer.nodes_before), (4, Some(5)));
        let one = plan(before(), Overrides { nodes: Some(1), ..Overrides::default() }).unwrap();
        assert_eq!((one.nodes, one.racks), (1, 1));
        let more = plan(before(), Overrides { nodes: Some(6), ..Overrides::default() }).unwrap();
        assert_eq!((more.nodes, more.nodes_before), (6, None));
    }

    #[test]
    fn invalid_values_are_refused_with_the_flag() {
        let refusal = |overrides| plan(None, overrides).unwrap_err().to_string();
        assert!(refusal(Overrides { nodes: Some(0), ..Overrides::default() }).starts_with("--nodes 0"));
        assert!(refusal(Overrides { racks: Some(4), ..Overrides::default() }).starts_with("--racks 4"));
        let many = Overrides { replication: Some(4), ..Overrides::default() };
        assert!(refusal(many).starts_with("--replication 4: the cluster has 3 nodes;"));
        let single = Overrides { nodes: Some(1), racks: Some(2), ..Overrides::default() };
        assert_eq!(refusal(single), "--racks 2: the cluster has only 1 node");
        let tiny = Overrides { block_size: Some(Bytes(1)), ..Overrides::default() };
        assert!(refusal(tiny).starts_with("namenode.block_size = 1"));
        let fare = || Some("fare".to_owned());
        for wrong in [
            Overrides { scheduler: fare(), ..Overrides::default() },
            Overrides { shadow: fare(), ..Overrides::default() },
        ] {
            assert!(refusal(wrong).starts_with("there is no scheduler \"fare\": choose one of fifo, fair"));
        }
    }

    #[test]
    fn nodes_are_spread_over_racks() {
        let overrides = Overrides { nodes: Some(3), racks: Some(2), ..Overrides::default() };
        let layout = plan(None, overrides).unwrap();
        let nodes: Vec<Role> = layout.on_nodes(Kind::Datanode).collect();
        let racks: Vec<&str> = nodes.iter().map(|role| role.rack.as_str()).collect();
        assert_eq!(racks, ["rack1", "rack2", "rack1"]);
        assert_eq!(
            layout.args(&nodes[1]).join(" "),
            "--config /x/.fermata/fermata.toml --node node2 --rack rack2 --listen 127.0.0.1:0 \
             --dir /x/.fermata/data/node2 --ready-file /x/.fermata/run/node2-datanode.ready"
        );
        let tracker = layout.on_nodes(Kind::Tasktracker).next().unwrap();
        assert!(layout.args(&tracker).join(" ").contains("--dir /x/.fermata/tasks/node1"));
        assert_eq!(
            layout.args(&Layout::namenode()).join(" "),
            "--config /x/.fermata/fermata.toml --listen 127.0.0.1:9400 --dir /x/.fermata/data/namenode \
             --ready-file /x/.fermata/run/namenode.ready"
        );
    }

    #[test]
    fn layout_is_stored_in_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let overrides = Overrides { nodes: Some(4), racks: Some(2), ..Overrides::default() };
        let mut first = Layout::prepare(folder.path(), &overrides).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        first.make().unwrap();
        first.config.namenode.block_size = Bytes::mib(8);
        first.write_config([9, 10], Vec::new()).unwrap();
        let second = Layout::prepare(folder.path(), &Overrides::default()).unwrap();
        assert_eq!((second.nodes, second.racks), (4, 2));
        assert_eq!(second.config.namenode.block_size, Bytes::mib(8));
        assert!(second.folder.join("logs").is_dir());
        assert_eq!(second.ports, Some([9, 10]));
        crate::local::remove_outside_folder(folder.path()).unwrap();
    }

    #[test]
    fn members_of_a_group_get_their_id_and_the_addresses_of_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let three = Overrides { masters: Some(3), ..Overrides::default() };
        let mut layout = Layout::prepare(folder.path(), &three).unwrap();
        layout.make().unwrap();
        layout.write_config([9, 10], vec![11, 12]).unwrap();
        let stored = Layout::prepare(folder.path(), &Overrides::default()).unwrap();
        assert_eq!(
            (stored.masters, stored.ports, stored.other_namenode_ports.clone()),
            (3, Some([9, 10]), vec![11, 12])
        );
        assert_eq!(layout.config.cluster.namenode.to_string(), "127.0.0.1:9,127.0.0.1:11,127.0.0.1:12");
        let args: Vec<String> = layout.namenodes().map(|role| layout.args(&role).join(" ")).collect();
        assert!(args[0].contains("--listen 127.0.0.1:9 --member 1 --dir") && !args[0].contains("--join"));
        let third = "--listen 127.0.0.1:12 --member 3 --join 127.0.0.1:9,127.0.0.1:11 --dir ";
        assert!(args[2].contains(third) && args[2].ends_with("/run/namenode3.ready"), "{}", args[2]);
        assert!(args[2].contains("/data/namenode3 "), "{}", args[2]);
        assert!(layout.log(&layout.namenodes().nth(1).unwrap()).ends_with("logs/namenode2.log"));
        crate::local::remove_outside_folder(folder.path()).unwrap();
    }

    #[test]
    fn number_of_namenodes_is_odd_and_can_be_changed() {
        let masters = |number| Overrides { masters: Some(number), ..Overrides::default() };
        for number in [0, 2, 4, 7] {
            let error = plan(None, masters(number)).unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains("must be 1, 3 or 5"), "{error}");
        }
        let one = || Some(StoredLayout { nodes: 3, racks: 1, ..StoredLayout::default() });
        assert_eq!(plan(one(), masters(1)).unwrap().masters, 1);
        let three = StoredLayout {
            masters: Some(3),
            other_namenode_ports: vec![11, 12],
            formatted: true,
            ..one().unwrap_or_default()
        };
        assert_eq!(plan(Some(three.clone()), Overrides::default()).unwrap().masters, 3);
        let fewer = plan(Some(three.clone()), masters(1)).unwrap();
        assert_eq!((fewer.masters, fewer.masters_before, fewer.begins_to_form), (1, 3, false));
        let of_one = StoredLayout { formatted: true, ..one().unwrap_or_default() };
        let more = plan(Some(of_one), masters(3)).unwrap();
        assert_eq!((more.masters, more.masters_before, more.begins_to_form), (3, 1, true));
        assert!(!plan(one(), masters(3)).unwrap().begins_to_form, "it has never started completely");
        let recover = |name: &str| Overrides { recover: Some(name.into()), ..Overrides::default() };
        assert_eq!(
            plan(Some(three.clone()), recover("namenode3")).unwrap().recover.as_deref(),
            Some("namenode3")
        );
        for (refused, why) in [
            (recover("namenode4"), "there is no such NameNode"),
            (Overrides { masters: Some(1), ..recover("namenode") }, "cannot be changed at the same start"),
        ] {
            let error = plan(Some(three.clone()), refused).unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains(why), "{error}");
        }
        // The file of a cluster with one NameNode is as it was before there were several.
        let text = serde_json::to_string(&one()).unwrap();
        assert!(!text.contains("masters") && !text.contains("other_namenode_ports"), "{text}");
    }

    #[test]
    fn majority_of_the_folders_suffices() {
        let folder = tempfile::tempdir().unwrap();
        let three = Overrides { masters: Some(3), ..Overrides::default() };
        let mut layout = Layout::prepare(folder.path(), &three).unwrap();
        layout.make().unwrap();
        layout.write_config([9, 10], vec![11, 12]).unwrap();
        layout.set_formatted().unwrap();
        let data = |name: &str| folder.path().join("data").join(name);
        for name in ["namenode", "namenode2", "namenode3", "jobtracker"] {
            fs::create_dir_all(data(name)).unwrap();
            fs::write(data(name).join("VERSION"), "").unwrap();
        }
        layout.check_masters(false).unwrap();
        assert!(!layout.namenodes().any(|role| layout.is_lost_member(&role)));
        fs::remove_dir_all(data("namenode")).unwrap();
        layout.check_masters(false).unwrap();
        let lost = layout.lost_data();
        assert!(lost[0].contains("namenode starts empty"), "{lost:?}");
        assert!(
            layout.args(&Layout::namenode()).contains(&"--join".to_owned()),
            "it must not form another group"
        );
        fs::remove_dir_all(data("namenode3")).unwrap();
        let error = layout.check_masters(false).unwrap_err().to_string();
        assert!(error.contains("data/namenode is missing or empty (1 more of 3 NameNodes)"), "{error}");
        assert!(error.contains("`mrctl up --recover NAME`"), "{error}");
        // The one that is left has all files.
        let recover = Overrides { recover: Some("namenode2".into()), ..Overrides::default() };
        let mut recovering = Layout::prepare(folder.path(), &recover).unwrap();
        recovering.check_masters(false).unwrap();
        recovering.recover = None;
        fs::create_dir_all(data("namenode3")).unwrap();
        fs::write(data("namenode3").join("VERSION"), "").unwrap();
        recovering.begin_forming("namenode2").unwrap();
        assert!(data("namenode3.replaced-1").exists() && !data("namenode3").exists());
        let mut stored = Layout::prepare(folder.path(), &Overrides::default()).unwrap();
        stored.check_masters(false).unwrap();
        let lost = stored.lost_data();
        assert!(!lost.iter().any(|line| line.contains("namenode")), "they are to be empty: {lost:?}");
        let second = stored.namenodes().nth(1).unwrap();
        assert!(stored.is_founder(&second) && !stored.is_founder(&Layout::namenode()));
        stored.end_forming().unwrap();
        let stored = Layout::prepare(folder.path(), &Overrides::default()).unwrap();
        assert!(!stored.is_founder(&second) && stored.check_masters(false).is_err());
        fs::remove_dir_all(data("namenode2")).unwrap();
        let error = stored.check_masters(false).unwrap_err().to_string();
        assert!(error.contains("(2 more of 3 NameNodes)") && !error.contains("--recover"), "{error}");
        crate::local::remove_outside_folder(folder.path()).unwrap();
    }

    #[test]
    fn tasks_of_another_account_can_reach_the_sockets() {
        let home = tempfile::tempdir().unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let mut layout = Layout::prepare(&home.path().join(".fermata"), &Overrides::default()).unwrap();
        layout.make().unwrap();
        let (sockets, other_account) = (layout.config.datanode.socket_dir.clone(), layout.account.is_some());
        assert_eq!(sockets == layout.tasks, other_account, "the folder cannot be traversed: {sockets:?}");
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o711)).unwrap();
        layout.make().unwrap();
        assert_eq!(layout.config.datanode.socket_dir, Path::new(""), "the folder can be traversed");
        assert!(!other_account || !sockets.exists(), "{sockets:?}");
    }

    #[test]
    fn damaged_layout_is_refused_with_its_file_and_advice() {
        let folder = tempfile::tempdir().unwrap();
        for damaged in [&b""[..], b"garbage", b"\xff\xfe", b"{}", b"{\"nodes\": 0}"] {
            fs::write(folder.path().join("layout.json"), damaged).unwrap();
            let error = Layout::prepare(folder.path(), &Overrides::default()).unwrap_err().to_string();
            assert!(
                error.contains("layout.json is damaged (") && error.contains("restore it, or"),
                "{error}"
            );
        }
        fs::write(folder.path().join("layout.json"), r#"{"nodes": 5, "formatted": true}"#).unwrap();
        let layout = Layout::prepare(folder.path(), &Overrides::default()).unwrap();
        assert_eq!((layout.nodes, layout.racks, layout.formatted), (5, 1, true));
    }

    #[test]
    fn empty_folder_of_a_master_is_refused_only_in_a_cluster_that_has_started_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut layout = Layout::prepare(folder.path(), &Overrides::default()).unwrap();
        layout.make().unwrap();
        layout.check_masters(false).unwrap();
        layout.set_formatted().unwrap();
        let mut layout = Layout::prepare(folder.path(), &Overrides::default()).unwrap();
        let refusal = |layout: &Layout| layout.check_masters(false).unwrap_err().to_string();
        assert!(refusal(&layout).contains("data/namenode is missing or empty"), "{}", refusal(&layout));
        layout.check_masters(true).unwrap_err();
        fs::create_dir(folder.path().join("data/namenode")).unwrap();
        assert!(refusal(&layout).contains("data/namenode is missing or empty"));
        fs::write(folder.path().join("data/namenode/VERSION"), "").unwrap();
        assert!(refusal(&layout).contains("--format jobtracker"), "{}", refusal(&layout));
        layout.check_masters(true).unwrap();
        layout.formatted = false;
        layout.check_masters(false).unwrap();
        crate::local::remove_outside_folder(folder.path()).unwrap();
    }

    #[test]
    fn lost_data_folders_are_named_except_those_of_new_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let prepare = |nodes| {
            Layout::prepare(folder.path(), &Overrides { nodes: Some(nodes), ..Overrides::default() }).unwrap()
        };
        let mut layout = prepare(2);
        layout.make().unwrap();
        assert_eq!(layout.lost_data(), Vec::<String>::new(), "a first start");
        layout.set_formatted().unwrap();
        fs::write(folder.path().join("data/node1/VERSION"), "").unwrap();
        for missing in [false, true] {
            if missing {
                fs::remove_dir(folder.path().join("data/node2")).unwrap();
            }
            let lost = prepare(4).lost_data();
            assert_eq!(lost.len(), 1, "{lost:?}");
            assert!(
                lost[0].contains("data/node2 is missing or empty: node2's datanode starts empty"),
                "{lost:?}"
            );
        }
        assert_eq!(prepare(1).lost_data(), Vec::<String>::new());
        crate::local::remove_outside_folder(folder.path()).unwrap();
    }

    #[test]
    fn replication_above_the_number_of_nodes_is_reduced() {
        let mut config = Config::default();
        config.namenode.replication = 9;
        let plan = |overrides| Layout::plan("/x".into(), None, config.clone(), &overrides).unwrap();
        let layout = plan(Overrides::default());
        assert_eq!((layout.config.namenode.replication, layout.replication_wanted), (3, Some(9)));
        let asked = plan(Overrides { replication: Some(2), ..Overrides::default() });
        assert_eq!((asked.config.namenode.replication, asked.replication_wanted), (2, None));
    }

    #[test]
    fn reduced_replication_is_restored_with_more_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let up = |nodes, replication| {
            let overrides = Overrides { nodes: Some(nodes), replication, ..Overrides::default() };
            let mut layout = Layout::prepare(folder.path(), &overrides).unwrap();
            layout.make().unwrap();
            layout.write_config([9, 10], Vec::new()).unwrap();
            (layout.config.namenode.replication, layout.replication_wanted)
        };
        assert_eq!(up(1, None), (1, Some(2)));
        assert_eq!(up(1, None), (1, Some(2)), "a second start with one node");
        assert_eq!(up(2, None), (2, None));
        assert_eq!(up(1, None), (1, Some(2)));
        assert_eq!(up(2, Some(1)), (1, None), "requested");
        assert_eq!(up(2, None), (1, None), "it stays as requested");
        crate::local::remove_outside_folder(folder.path()).unwrap();
    }

    #[test]
    fn cluster_is_closed_by_default_and_access_is_stored() {
        let folder = tempfile::tempdir().unwrap();
        let prepare = |open| {
            let mut layout =
                Layout::prepare(folder.path(), &Overrides { open, ..Overrides::default() }).unwrap();
            layout.make().unwrap();
            layout.write_config([9, 10], Vec::new()).unwrap();
            layout
        };
        let closed = prepare(None);
        assert!(closed.has_own_secret() && closed.config.security.is_closed() && !closed.open);
        let secret = fs::read(folder.path().join(SECRET)).unwrap();
        assert!(security::read_private(&folder.path().join(SECRET)).is_ok() && secret.len() > 32);
        let open = prepare(Some(true));
        assert!(open.open && !open.config.security.is_closed());
        assert!(prepare(None).open, "it stays open");
        let closed = prepare(Some(false));
        assert!(closed.has_own_secret());
        assert_eq!(fs::read(folder.path().join(SECRET)).unwrap(), secret);
        crate::local::remove_outside_folder(folder.path()).unwrap();
        // Settings that close the cluster in another way stay unchanged.
        let mut config = Config::default();
        config.security.dir = "/keys".into();
        let plan = |open| {
            Layout::plan("/x".into(), None, config.clone(), &Overrides { open, ..Overrides::default() })
        };
        assert!(!plan(None).unwrap().has_own_secret());
        assert!(plan(Some(true)).unwrap_err().to_string().starts_with("--open: the configuration closes"));
    }

    #[test]
    fn confinement_is_off_only_for_tasks_that_run_as_the_account_of_the_cluster() {
        let relaxed = |own_secret, own_account, landlock, set| {
            let mut config = Config::default();
            config.tasktracker.confine = set;
            relax_confinement(&mut config, own_secret, own_account, landlock);
            config.tasktracker.confine
        };
        assert_eq!(relaxed(true, false, false, Choice::Auto), Choice::Off);
        assert_eq!(relaxed(true, false, true, Choice::Auto), Choice::Auto);
        assert_eq!(relaxed(false, false, false, Choice::Auto), Choice::Auto);
        assert_eq!(relaxed(true, true, false, Choice::Auto), Choice::Auto);
        assert_eq!(relaxed(true, false, false, Choice::On), Choice::On);
    }

    #[test]
    fn root_cluster_uses_another_account_for_tasks() {
        let mut config = Config::default();
        assert_eq!(task_account(&mut config, false).unwrap(), None);
        assert_eq!(task_account(&mut config, true).unwrap().unwrap().name, "nobody");
        assert_eq!(config.tasktracker.task_user, "nobody");
        let mut config = Config::default();
        config.tasktracker.tasks_as_root = true;
        assert_eq!(task_account(&mut config, true).unwrap(), None);
        config.tasktracker.task_user = "no-such-account".into();
        assert!(task_account(&mut config, true).unwrap_err().to_string().contains("no such account"));
    }
}
