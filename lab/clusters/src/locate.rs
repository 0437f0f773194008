//! Finds the cluster that a command is for, from flags, environment variables, files or folders.

use crate::{
    folder::{DEFAULT_FOLDER, dir_flag},
    local::{ClusterState, Daemon, Kind, ask_masters},
    trust,
};
use anyhow::{Context, Result, bail};
use client::{Cluster, Error, JobTracker};
use daemon::{
    MasterAddrs, Period,
    config::{ClientConfig, Config, SecurityConfig},
};
use dfs_client::{Client, ClientError, ClientOptions, Listener, group::GroupClient};
use security::{Credentials, Role};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};
use view::masters::{AllMasters, MastersStatus};
use view::output::{Usage, chain};
use view::status_cache::{Connecting, Masters};

/// A daemon that started less than this ago may not be ready yet.
const STARTING_FOR: Duration = Duration::from_secs(10);

/// Global flags that select a cluster and the credentials for it.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub struct Target {
    /// Address of the namenode; of several with commas
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT[,...]",
        env = "FERMATA_NAMENODE",
        hide_env_values = true
    )]
    namenode: Option<String>,
    /// Address of the jobtracker; of several with commas
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT[,...]",
        env = "FERMATA_JOBTRACKER",
        hide_env_values = true
    )]
    jobtracker: Option<String>,
    /// Configuration file of the cluster
    #[arg(long, global = true, value_name = "FILE", env = "FERMATA_CONFIG", hide_env_values = true, value_parser = any_path())]
    config: Option<PathBuf>,
    /// Folder with certificates, for a closed cluster
    #[arg(long, global = true, value_name = "DIR", env = "FERMATA_SECURITY_DIR", hide_env_values = true, value_parser = any_path())]
    security_dir: Option<PathBuf>,
    /// Name of the certificate in that folder to present
    #[arg(long, global = true, value_name = "NAME", env = "FERMATA_IDENTITY", hide_env_values = true)]
    identity: Option<String>,
    /// File with a token to present instead of a certificate
    #[arg(long, global = true, value_name = "FILE", env = "FERMATA_TOKEN_FILE", hide_env_values = true, value_parser = any_path())]
    token_file: Option<PathBuf>,
}

/// The addresses and settings of the cluster that `Target::find` has found.
#[derive(Debug, PartialEq)]
struct FoundCluster {
    namenode: MasterAddrs,
    jobtracker: MasterAddrs,
    client: ClientConfig,
    security: SecurityConfig,
    origin: Origin,
    /// False if only the address of the NameNode was given, without a configuration file.
    has_jobtracker: bool,
}

/// The folder of `mrctl up` in which the cluster was found, if any. The process IDs and logs in the
/// folder explain why a daemon is unreachable.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Origin(Option<PathBuf>);

impl Origin {
    /// Returns advice for an error message about an unreachable master.
    pub fn advice(&self, master: Kind) -> String {
        let name = master.program();
        let state = self.0.as_deref().and_then(|folder| ClusterState::load(folder).ok().flatten());
        let Some((folder, mut state)) = self.0.as_deref().zip(state) else {
            return format!(
                "is it running? start a cluster here with `mrctl up`, or name another with --{name}"
            );
        };
        let dir = dir_flag(Some(folder));
        if state.running().next().is_none() {
            return format!("its cluster is not running: start it again with `mrctl up{dir}`");
        }
        if state.masters_of(master).count() > 1 {
            return group_advice(&state, master, &dir);
        }
        match state.find(name, None) {
            Ok(daemon) if daemon.identity.is_frozen() => {
                let (pid, log) = (daemon.identity.pid, daemon.log.display());
                format!(
                    "it is frozen (pid {pid}, see {log}): continue it with `mrctl chaos cont {name}{dir}`"
                )
            }
            Ok(daemon) if daemon.is_running() => {
                let (pid, log) = (daemon.identity.pid, daemon.log.display());
                if let Some(age) = daemon.identity.age().filter(|age| *age < STARTING_FOR) {
                    return format!(
                        "it was started {} s ago (pid {pid}) and may not be ready yet: see {log}",
                        age.as_secs()
                    );
                }
                format!(
                    "it is running (pid {pid}): see {log}, or restart it with `mrctl chaos restart {name}{dir}`"
                )
            }
            Ok(daemon) => {
                let log = daemon.log.display();
                format!("it has died (see {log}): start it again with `mrctl up{dir}`")
            }
            Err(_) => {
                format!("the cluster in {} has no {name}: start one with `mrctl up`", folder.display())
            }
        }
    }
}

/// Returns advice about several masters of a kind of which none serves. `dir` is the `--dir` flag of the
/// cluster folder.
fn group_advice(state: &ClusterState, kind: Kind, dir: &str) -> String {
    let dead: Vec<&str> =
        state.masters_of(kind).filter(|one| !one.is_running()).map(|one| one.name.as_str()).collect();
    let frozen = state.masters_of(kind).find(|one| one.is_frozen());
    let title = if kind == Kind::Jobtracker { "JobTrackers" } else { "NameNodes" };
    match (dead.as_slice(), frozen) {
        ([], None) => format!("all {title} are running: `mrctl masters` shows what they do"),
        ([], Some(frozen)) => frozen.frozen_advice(dir),
        ([one], _) => format!("{one} has died: start it again with `mrctl up{dir}`"),
        (several, _) => format!("{} have died: start them again with `mrctl up{dir}`", several.join(" and ")),
    }
}

impl Target {
    /// Selects the cluster by its configuration file.
    pub fn of_config(file: &Path) -> Self {
        Self { config: Some(file.to_owned()), ..Self::default() }
    }

    /// Returns the configuration file for a new cluster: the value of `--config`, else
    /// `./fermata.toml`.
    pub fn config_for_up(&self) -> Option<PathBuf> {
        let here = PathBuf::from("fermata.toml");
        self.config_file().or_else(|| here.is_file().then_some(here))
    }

    /// Returns the value of `--config`, if it is not empty.
    pub fn config_file(&self) -> Option<PathBuf> {
        self.config.clone().filter(|file| !file.as_os_str().is_empty())
    }

    /// Returns flags that select the same cluster, with the same credentials, from every folder.
    pub fn flags(&self) -> Result<Vec<String>> {
        let cwd = std::env::current_dir().context("cannot determine the current folder")?;
        let found = self.find(&cwd)?;
        let mut flags = Vec::new();
        let mut add = |name: &str, value: String| flags.extend([format!("--{name}"), value]);
        let path = |path: &Path| cwd.join(path).to_string_lossy().into_owned();
        if let Some(folder) = &found.origin.0 {
            add("config", path(&folder.join("fermata.toml")));
        } else {
            if let Some(file) = self.config_or_local_file(&cwd) {
                add("config", path(&file));
            }
            for (name, addr) in [("namenode", &self.namenode), ("jobtracker", &self.jobtracker)] {
                if let Some(addr) = addr.as_ref().filter(|addr| !addr.is_empty()) {
                    add(name, addr.clone());
                }
            }
        }
        for (name, file) in [("security-dir", &self.security_dir), ("token-file", &self.token_file)] {
            if let Some(file) = file.as_ref().filter(|file| !file.as_os_str().is_empty()) {
                add(name, path(file));
            }
        }
        if let Some(identity) = self.identity.as_ref().filter(|name| !name.is_empty()) {
            add("identity", identity.clone());
        }
        Ok(flags)
    }

    /// Returns whether flags or environment variables select the cluster.
    pub fn is_named(&self) -> bool {
        let named = [&self.namenode, &self.jobtracker].into_iter().flatten().any(|addr| !addr.is_empty());
        named || self.config_file().is_some()
    }

    /// Connects to the NameNode of the selected cluster.
    pub async fn connect(&self) -> Result<Client> {
        self.connect_as(None).await
    }

    /// Connects to the file system as this user, or else as the account of this process. Waits are
    /// reported on standard error.
    pub async fn connect_as(&self, user: Option<&str>) -> Result<Client> {
        let listener = Listener::new(|line| eprintln!("mrctl: {line}"));
        self.connect_with(|options| {
            options.listener = Some(listener);
            if let Some(user) = user {
                user.clone_into(&mut options.user);
            }
        })
        .await
    }

    /// Connects with a short deadline and without messages about retries, for callers that poll.
    async fn connect_briefly(&self, timeout: Period) -> Result<Client> {
        self.connect_with(|options| {
            options.config.deadline = timeout;
            options.config.connect_timeout = timeout;
        })
        .await
    }

    async fn connect_with(&self, set: impl FnOnce(&mut ClientOptions)) -> Result<Client> {
        let cwd = std::env::current_dir().context("cannot determine the current folder")?;
        let found = self.find(&cwd)?;
        let options = ClientOptions::new(&found.namenode, found.client.clone());
        let mut options = options.with(client::credentials(&found.security)?);
        set(&mut options);
        match Client::connect(options).await {
            Err(error @ (ClientError::Unreachable { .. } | ClientError::NoLeader { .. })) => {
                bail!("{error}; {}", found.origin.advice(Kind::Namenode))
            }
            other => Ok(other?),
        }
    }

    /// Asks all masters of this kind at once what they do. Waits for `limit` at most.
    pub async fn masters(&self, kind: Role, limit: Duration) -> Result<MastersStatus> {
        self.masters_as(kind, None, limit).await
    }

    /// Like [`Self::masters`], with other credentials than those of the caller if given.
    pub async fn masters_as(
        &self,
        kind: Role,
        own: Option<Credentials>,
        limit: Duration,
    ) -> Result<MastersStatus> {
        let (addrs, origin, security) = self.find_master(kind)?;
        let credentials = own.map_or_else(|| client::credentials(&security), Ok)?;
        let state = origin.0.as_deref().and_then(|folder| ClusterState::load(folder).ok().flatten());
        Box::pin(ask_masters(kind, &addrs, credentials, state.as_ref(), limit)).await
    }

    /// Asks all NameNodes and all `JobTrackers` at once what they do.
    pub async fn all_masters(&self, limit: Duration) -> Result<AllMasters> {
        let namenodes = self.masters(Role::NameNode, limit);
        if !self.has_jobtracker()? {
            return Ok(AllMasters::new(vec![namenodes.await?]));
        }
        let (namenodes, jobtrackers) = tokio::join!(namenodes, self.masters(Role::JobTracker, limit));
        Ok(AllMasters::new(vec![namenodes?, jobtrackers?]))
    }

    /// Returns the folder of `mrctl up` in which the cluster was found; `None` if it is not a local one.
    pub fn local_folder(&self) -> Result<Option<PathBuf>> {
        let cwd = std::env::current_dir().context("cannot determine the current folder")?;
        Ok(self.find(&cwd)?.origin.0)
    }

    /// Returns a client that changes the group of the masters of this kind.
    pub fn group(&self, role: Role) -> Result<GroupClient> {
        let (addrs, security) = self.master(role)?;
        Ok(GroupClient::new(role, &addrs, client::credentials(&security)?)?)
    }

    /// Returns the addresses of the NameNodes, and the client and security settings for them.
    pub fn namenode(&self) -> Result<(MasterAddrs, ClientConfig, SecurityConfig)> {
        let cwd = std::env::current_dir().context("cannot determine the current folder")?;
        let found = self.find(&cwd)?;
        Ok((found.namenode, found.client, found.security))
    }

    /// Returns the addresses of the masters, and the credentials for them.
    pub fn cluster(&self) -> Result<Cluster> {
        let cwd = std::env::current_dir().context("cannot determine the current folder")?;
        let found = self.find(&cwd)?;
        Ok(Cluster::new(found.namenode, found.jobtracker, found.client, found.security)?)
    }

    /// Connects to the JobTracker of the selected cluster.
    pub async fn jobtracker(&self) -> Result<JobTracker> {
        self.jobtracker_as(None).await
    }

    /// Connects to the JobTracker as another user. Waits are reported on standard error.
    pub async fn jobtracker_as(&self, user: Option<&str>) -> Result<JobTracker> {
        let notify = |line: &str| eprintln!("mrctl: {line}");
        let addr = self.find_jobtracker()?.0.to_string();
        let connecting = self.jobtracker_briefly(user);
        Ok(client::notify_if_slow(Role::JobTracker, &addr, connecting, notify).await?.with_listener(notify))
    }

    /// Connects to the JobTracker without messages about waits, for callers that poll.
    async fn jobtracker_briefly(&self, user: Option<&str>) -> Result<JobTracker> {
        let (addr, origin, security) = self.find_jobtracker()?;
        check_addrs("jobtracker", &addr)?;
        let connected = JobTracker::connect(&addr, user, client::credentials(&security)?).await;
        let tracker = connected.map_err(|error| {
            let tls_mismatch = security::tls_mismatch(&error.to_string()).map(str::to_owned);
            error.with_advice(|| tls_mismatch.unwrap_or_else(|| origin.advice(Kind::Jobtracker)))
        })?;
        Ok(tracker.with_advice(move || origin.advice(Kind::Jobtracker)))
    }

    /// Returns the error for a master that does not answer, with advice. It names all addresses.
    pub fn no_answer(&self, role: Role, why: &str) -> anyhow::Error {
        match self.find_master(role) {
            Ok((addrs, ..)) => self.no_answer_at(role, &addrs.to_string(), why),
            Err(error) => error,
        }
    }

    /// Like [`Self::no_answer`], for the master at this address.
    pub fn no_answer_at(&self, role: Role, addr: &str, why: &str) -> anyhow::Error {
        let kind = if role == Role::JobTracker { Kind::Jobtracker } else { Kind::Namenode };
        match self.find_master(role) {
            Ok((_, origin, _)) => {
                Error::unreachable(role, addr, why).with_advice(|| origin.advice(kind)).into()
            }
            Err(error) => error,
        }
    }

    /// Adds advice to the error of a file system call that the NameNode has not answered.
    pub fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let is_silent = |cause: &(dyn std::error::Error + 'static)| {
            matches!(cause.downcast_ref(), Some(ClientError::Deadline { kind: None, .. }))
        };
        if !error.chain().any(is_silent) {
            return error;
        }
        match self.find_master(Role::NameNode) {
            Ok((_, origin, _)) => anyhow::anyhow!("{}; {}", chain(&error), origin.advice(Kind::Namenode)),
            Err(_) => error,
        }
    }

    /// Returns the addresses of the `JobTrackers`, how they were found, and the security settings
    /// for them.
    fn find_jobtracker(&self) -> Result<(MasterAddrs, Origin, SecurityConfig)> {
        let cwd = std::env::current_dir().context("cannot determine the current folder")?;
        if let Some(named) = self.named_jobtracker() {
            let is_it = |found: &FoundCluster| contains_all(&found.jobtracker, &named);
            if let Some(found) = self.find_nearest_cluster(&cwd, is_it)? {
                return Ok((named, found.origin, self.with_flags(found.security)));
            }
            let security = load(self.config_for_address(&cwd).as_deref())?.security;
            return Ok((named, Origin::default(), self.with_flags(security)));
        }
        let found = self.find(&cwd)?;
        Ok((found.jobtracker, found.origin, found.security))
    }

    /// Returns the addresses of the `JobTrackers` or the NameNodes, by role, and the security settings
    /// for them.
    pub fn master(&self, role: Role) -> Result<(MasterAddrs, SecurityConfig)> {
        self.find_master(role).map(|(addr, _, security)| (addr, security))
    }

    fn find_master(&self, role: Role) -> Result<(MasterAddrs, Origin, SecurityConfig)> {
        if role == Role::JobTracker {
            return self.find_jobtracker();
        }
        let cwd = std::env::current_dir().context("cannot determine the current folder")?;
        let found = self.find(&cwd)?;
        Ok((found.namenode, found.origin, found.security))
    }

    /// Returns the credentials for the selected cluster.
    pub fn credentials(&self) -> Result<Credentials> {
        let (_, _, security) = self.find_jobtracker()?;
        Ok(client::credentials(&security)?)
    }

    /// Returns the authenticated name of the caller, or None if the cluster is open.
    pub fn authenticated_name(&self) -> Result<Option<String>> {
        Ok(self.credentials()?.name().map(str::to_owned))
    }

    /// Returns whether the cluster is known to have a JobTracker, so that an unreachable one is an
    /// error.
    pub fn has_jobtracker(&self) -> Result<bool> {
        let cwd = std::env::current_dir().context("cannot determine the current folder")?;
        Ok(self.named_jobtracker().is_some() || self.find(&cwd)?.has_jobtracker)
    }

    fn named_jobtracker(&self) -> Option<MasterAddrs> {
        self.jobtracker.as_deref().filter(|addr| !addr.is_empty()).map(MasterAddrs::from)
    }

    /// Returns the value of `--config`, else the `fermata.toml` in `cwd`.
    fn config_or_local_file(&self, cwd: &Path) -> Option<PathBuf> {
        self.config_file().or_else(|| {
            let here = cwd.join("fermata.toml");
            here.is_file().then_some(here)
        })
    }

    /// Returns the configuration file that goes with a given address: the value of `--config`, or
    /// the `fermata.toml` in `cwd` if the caller trusts it.
    fn config_for_address(&self, cwd: &Path) -> Option<PathBuf> {
        self.config_or_local_file(cwd)
            .filter(|file| self.config_file().is_some() || trust::check_file(file).is_ok())
    }

    /// Returns the security settings, in which flags override the values of the file.
    fn with_flags(&self, mut security: SecurityConfig) -> SecurityConfig {
        let set = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        security.dir = set(&self.security_dir).unwrap_or(security.dir);
        security.token = set(&self.token_file).unwrap_or(security.token);
        security.identity =
            self.identity.clone().filter(|name| !name.is_empty()).unwrap_or(security.identity);
        security
    }

    fn find(&self, cwd: &Path) -> Result<FoundCluster> {
        let mut found = self.find_cluster(cwd)?;
        found.security = self.with_flags(found.security);
        Ok(found)
    }

    /// Returns the cluster of the nearest folder, if `is_it` accepts it. Used when an address is
    /// given: if it is the address of that cluster, the credentials in the folder apply.
    fn find_nearest_cluster(
        &self,
        cwd: &Path,
        is_it: impl Fn(&FoundCluster) -> bool,
    ) -> Result<Option<FoundCluster>> {
        let Some(folder) = nearest_state_folder(cwd).filter(|_| self.config_file().is_none()) else {
            return Ok(None);
        };
        // The address selects the cluster, so a folder of another account is no error here.
        if trust::check_folder(&folder).is_err() {
            return Ok(None);
        }
        let config = Config::load(Some(&folder.join("fermata.toml")))?;
        Ok(Some(FoundCluster::new(config, Some(folder))).filter(is_it))
    }

    fn find_cluster(&self, cwd: &Path) -> Result<FoundCluster> {
        // An environment variable with an empty value counts as unset.
        if let Some(namenode) = self.namenode.as_ref().filter(|addr| !addr.is_empty()) {
            let namenode = MasterAddrs::from(namenode);
            check_addrs("namenode", &namenode)?;
            let is_it = |found: &FoundCluster| contains_all(&found.namenode, &namenode);
            let found = if let Some(found) = self.find_nearest_cluster(cwd, is_it)? {
                found
            } else {
                let file = self.config_for_address(cwd);
                let found = FoundCluster::new(load(file.as_deref())?, None);
                FoundCluster { has_jobtracker: file.is_some(), ..found }
            };
            return Ok(FoundCluster { namenode, ..found });
        }
        // A running cluster in the current folder has precedence over `fermata.toml` beside it: the
        // cluster has copied these settings and has its own addresses.
        let here = cwd.join(DEFAULT_FOLDER);
        let started = if self.config_file().is_some() {
            false
        } else {
            trust::check_folder(&here)?;
            is_up(&here)
        };
        if let Some(file) = self.config_or_local_file(cwd).filter(|_| !started) {
            let config = load(Some(&file))?;
            // Settings without addresses are those of the local cluster, which has its own.
            if self.config_file().is_none()
                && config.cluster == Config::default().cluster
                && has_layout(&here)
            {
                return Err(stopped_cluster_error(&here));
            }
            let parent = file.parent().map(|at| if at == Path::new("") { Path::new(".") } else { at });
            let folder = parent.filter(|folder| ClusterState::path(folder).is_file());
            return Ok(FoundCluster::new(config, folder.map(Path::to_owned)));
        }
        let Some(folder) = nearest_state_folder(cwd) else {
            if let Some(folder) = possible_state_folders(cwd).find(|folder| has_layout(folder)) {
                return Err(stopped_cluster_error(&folder));
            }
            bail!(
                "no cluster found: start one here with `mrctl up`, or name one with --namenode HOST:PORT and --jobtracker HOST:PORT"
            );
        };
        trust::check_folder(&folder)?;
        let config = Config::load(Some(&folder.join("fermata.toml")))?;
        Ok(FoundCluster::new(config, Some(folder)))
    }
}

impl Masters for Target {
    fn jobtracker(&self) -> Connecting<'_, JobTracker> {
        Box::pin(self.jobtracker_briefly(None))
    }

    fn namenode(&self, timeout: Period) -> Connecting<'_, Client> {
        Box::pin(self.connect_briefly(timeout))
    }

    fn authenticated_name(&self) -> Result<Option<String>> {
        Target::authenticated_name(self)
    }

    fn no_answer(&self, master: Role, why: &str) -> anyhow::Error {
        Target::no_answer(self, master, why)
    }
}

impl FoundCluster {
    fn new(config: Config, folder: Option<PathBuf>) -> Self {
        let Config { cluster, client, security, .. } = config;
        let (namenode, jobtracker) = (cluster.namenode, cluster.jobtracker);
        Self { namenode, jobtracker, client, security, origin: Origin(folder), has_jobtracker: true }
    }
}

/// Loads a configuration file after checking that the caller may trust it.
fn load(file: Option<&Path>) -> Result<Config> {
    file.map_or(Ok(()), trust::check_file)?;
    Ok(Config::load(file)?)
}

/// Accepts every path. The default parser of clap refuses an empty path, but here an empty
/// environment variable counts as unset.
fn any_path() -> impl clap::builder::TypedValueParser<Value = PathBuf> {
    clap::builder::TypedValueParser::map(clap::builder::OsStringValueParser::new(), PathBuf::from)
}

fn check_addrs(what: &str, addrs: &MasterAddrs) -> Result<()> {
    for addr in addrs.iter() {
        let parts = addr.rsplit_once(':');
        if parts.is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
            bail!(Usage(format!(
                "{what} address {addr:?} is not host:port (a port is a number up to 65535)"
            )));
        }
    }
    Ok(())
}

/// Returns whether the masters of a cluster include all that a flag names.
fn contains_all(masters: &MasterAddrs, named: &MasterAddrs) -> bool {
    named.iter().all(|addr| masters.contains(addr))
}

/// Returns whether a cluster was started in `folder`.
fn has_layout(folder: &Path) -> bool {
    folder.join("layout.json").is_file()
}

fn stopped_cluster_error(folder: &Path) -> anyhow::Error {
    let dir = dir_flag(Some(folder));
    anyhow::anyhow!("the cluster in {} is stopped: start it again with `mrctl up{dir}`", folder.display())
}

/// Returns whether a daemon of the cluster in `folder` is running. The state file alone proves
/// nothing: it survives a crash of the machine.
fn is_up(folder: &Path) -> bool {
    let state = ClusterState::load(folder).ok().flatten();
    state.is_some_and(|state| state.daemons.iter().any(Daemon::is_running))
}

/// Returns the nearest state folder, in `from` or its parents, that contains a state file or that
/// the caller cannot access.
fn nearest_state_folder(from: &Path) -> Option<PathBuf> {
    possible_state_folders(from).find(|folder| match fs::metadata(ClusterState::path(folder)) {
        Ok(about) => about.is_file(),
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied && folder.is_dir(),
    })
}

/// Returns the paths at which a state folder may be: in `from` and all its parents.
fn possible_state_folders(from: &Path) -> impl Iterator<Item = PathBuf> {
    from.ancestors().map(|folder| folder.join(DEFAULT_FOLDER))
}

/// Returns the cluster folder for a local command: `named`, else the nearest, else the default.
pub fn state_folder(named: Option<&Path>) -> Result<PathBuf> {
    let folder = if let Some(named) = named {
        named.to_owned()
    } else {
        let cwd = std::env::current_dir().context("cannot determine the current folder")?;
        nearest_state_folder(&cwd).unwrap_or_else(|| PathBuf::from(DEFAULT_FOLDER))
    };
    trust::check_folder(&folder)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::Identity;

    fn write_config(folder: &Path, namenode: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("fermata.toml"), format!("[cluster]\nnamenode = \"{namenode}\"\n")).unwrap();
    }

    /// Returns a daemon record that counts as running: its process is this test.
    fn this_process() -> Daemon {
        Daemon {
            name: "namenode".into(),
            kind: Kind::Namenode,
            identity: Identity::of(std::process::id()).unwrap(),
            addr: String::new(),
            rack: String::new(),
            dir: PathBuf::new(),
            log: PathBuf::new(),
            log_before: 0,
            ready_file: PathBuf::new(),
            args: std::env::args().skip(1).collect(),
        }
    }

    fn namenode_of(target: &Target, cwd: &Path) -> String {
        target.find(cwd).unwrap().namenode.to_string()
    }

    #[test]
    fn more_specific_choice_of_a_cluster_wins() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        let none = Target::default();
        let error = none.find(&deep).unwrap_err().to_string();
        assert!(error.starts_with("no cluster found: start one"), "{error}");
        // A stopped cluster is recognised by its `layout.json`.
        fs::create_dir_all(root.path().join(DEFAULT_FOLDER)).unwrap();
        fs::write(root.path().join(DEFAULT_FOLDER).join("layout.json"), "{}").unwrap();
        let error = Target::default().find(root.path()).unwrap_err().to_string();
        assert!(error.contains("is stopped: start it again with `mrctl up"), "{error}");
        fs::remove_file(root.path().join(DEFAULT_FOLDER).join("layout.json")).unwrap();

        // A folder whose cluster is stopped does not count.
        let folder = root.path().join(DEFAULT_FOLDER);
        write_config(&folder, "up:1");
        assert!(none.find(&deep).is_err());
        ClusterState::default().save(&folder).unwrap();
        assert_eq!(namenode_of(&none, &deep), "up:1");

        // The address of the cluster in that folder selects that cluster, with its credentials.
        let at = |addr: &str| Target { namenode: Some(addr.into()), ..Target::default() };
        assert_eq!(at("up:1").find(&deep).unwrap().origin, Origin(Some(folder.clone())));
        assert_eq!(at("other:1").find(&deep).unwrap().origin, Origin(None));
        write_config(&folder, "up:1,up:2");
        assert_eq!(at("up:2").find(&deep).unwrap().origin, Origin(Some(folder.clone())));
        assert_eq!(namenode_of(&at("up:2"), &deep), "up:2", "of two members");
        assert_eq!(at("up:2,other:1").find(&deep).unwrap().origin, Origin(None));

        write_config(&deep, "here:2");
        assert_eq!(namenode_of(&none, &deep), "here:2");

        // A running cluster in the current folder has precedence over the `fermata.toml` beside it.
        let local = deep.join(DEFAULT_FOLDER);
        write_config(&local, "local:5");
        assert_eq!(namenode_of(&none, &deep), "here:2", "it is not running");
        ClusterState::default().save(&local).unwrap();
        assert_eq!(namenode_of(&none, &deep), "here:2", "it has run");
        ClusterState { daemons: vec![this_process()], ..ClusterState::default() }.save(&local).unwrap();
        assert_eq!(namenode_of(&none, &deep), "local:5");
        fs::remove_dir_all(&local).unwrap();

        write_config(root.path(), "named:3");
        let config = Some(root.path().join("fermata.toml"));
        assert_eq!(namenode_of(&Target { config: config.clone(), ..Target::default() }, &deep), "named:3");
        assert_eq!(
            namenode_of(&Target { config, namenode: Some("flag:4".into()), ..Target::default() }, &deep),
            "flag:4"
        );
    }

    #[test]
    fn restart_of_a_daemon_that_was_just_started_is_not_advised() {
        let root = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        let mut daemon = Daemon { identity, args: vec!["600".into()], ..this_process() };
        // Directly after its start it has no command line yet.
        while !daemon.is_running() {
            std::thread::yield_now();
        }
        let advice = |daemon: &Daemon| {
            let state = ClusterState { daemons: vec![daemon.clone()], ..ClusterState::default() };
            state.save(root.path()).unwrap();
            Origin(Some(root.path().to_owned())).advice(Kind::Namenode)
        };
        let young = advice(&daemon);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(young.starts_with("it was started "), "{young}");
        assert!(!young.contains("chaos restart"), "{young}");
        daemon.identity.started_ticks = 0;
        assert!(daemon.identity.age().unwrap() > Duration::from_secs(1));
        let dead = advice(&daemon);
        assert!(dead.contains("is not running: start it again with `mrctl up"), "{dead}");
    }

    #[test]
    fn advice_about_a_group_names_the_members_that_have_died() {
        let root = tempfile::tempdir().unwrap();
        let ended = |name: &str| Daemon {
            name: name.into(),
            identity: Identity { pid: u32::MAX, started_ticks: 1 },
            ..this_process()
        };
        let advice = |daemons: Vec<Daemon>| {
            ClusterState { daemons, ..ClusterState::default() }.save(root.path()).unwrap();
            Origin(Some(root.path().to_owned())).advice(Kind::Namenode)
        };
        let one = advice(vec![this_process(), ended("namenode2")]);
        assert!(one.starts_with("namenode2 has died: start it again with `mrctl up"), "{one}");
        let two = advice(vec![ended("namenode"), ended("namenode2"), this_process()]);
        assert!(two.starts_with("namenode and namenode2 have died: start them again"), "{two}");
        assert!(advice(vec![this_process(), this_process()]).contains("`mrctl masters`"));
    }

    #[test]
    fn error_names_the_stopped_cluster_even_if_a_configuration_is_beside_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(DEFAULT_FOLDER);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("layout.json"), "{}").unwrap();
        let file = root.path().join("fermata.toml");
        fs::write(&file, "[namenode]\nreplication = 2\n").unwrap();
        let error = Target::default().find(root.path()).unwrap_err().to_string();
        assert!(error.contains("is stopped: start it again with `mrctl up"), "{error}");
        // A file that was named, or that has addresses, selects a cluster.
        let named = Target { config: Some(file), ..Target::default() };
        assert_eq!(namenode_of(&named, root.path()), Config::default().cluster.namenode.to_string());
        write_config(root.path(), "here:2");
        assert_eq!(namenode_of(&Target::default(), root.path()), "here:2");
    }

    #[test]
    fn invalid_addresses_and_missing_files_are_refused() {
        let root = tempfile::tempdir().unwrap();
        for addr in ["localhost", "localhost:70000", ":1", "x:y", "a:1,b", "a:1,"] {
            let target = Target { namenode: Some(addr.into()), ..Target::default() };
            assert!(target.find(root.path()).unwrap_err().to_string().contains("is not host:port"));
        }
        let (nothing, nowhere) = (Some(String::new()), Some(PathBuf::new()));
        let empty =
            Target { namenode: nothing.clone(), jobtracker: nothing, config: nowhere, ..Target::default() };
        assert!(empty.find(root.path()).unwrap_err().to_string().starts_with("no cluster found"));
        let target = Target { config: Some(root.path().join("absent.toml")), ..Target::default() };
        assert!(target.find(root.path()).unwrap_err().to_string().starts_with("cannot read "));
    }
}
