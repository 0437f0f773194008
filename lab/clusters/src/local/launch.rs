//! Starts daemons and waits until they are ready.
//!
//! A launch that is dropped before `keep` stops the daemons that it started, so that a failed or
//! interrupted start leaves no process. A cluster that has started completely before is started as
//! far as possible: if its masters are ready, other failures are warnings. Each daemon has its own
//! process group, no standard input, and a log file: Ctrl-C reaches only mrctl, and closing the
//! terminal stops no daemon.

mod members;

use super::{
    layout::{Layout, MASTER_KINDS, OtherPorts, Role, is_empty},
    masters::ask_masters,
    process::{Identity, cpu_seconds, end_processes, memory_bytes},
    state::{ClusterState, Daemon, Kind},
};
use crate::folder::dir_flag;
use anyhow::{Context, Result, anyhow, bail};
use daemon::files::{PRIVATE, replace};
use dfs_client::{Attributes, Client, ClientOptions, NodeReport, NodeState, path::DfsPath};
pub use members::unused_name;
use members::{change_members, joining};
use rand::RngExt;
use security::Credentials;
use std::{
    fs,
    io::ErrorKind,
    net::TcpListener,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use view::{masters::MasterStatus, output::Usage};

const READY_TIMEOUT: Duration = Duration::from_mins(1);
/// How long mrctl waits before it prints what it is waiting for.
const NOTICE_AFTER: Duration = Duration::from_secs(5);
/// How long to wait for the end of safemode after all DataNodes have reported. No further blocks
/// will be reported then.
const SAFEMODE_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long to wait for what a NameNode knows about its group.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
const LOG_LINES: usize = 12;
/// Validity of the token for the gateway. A new one is written at each start.
const GATEWAY_TOKEN_LIFETIME: Duration = Duration::from_hours(10 * 365 * 24);
/// The owner of the root folder in a new namespace.
const INITIAL_ROOT_OWNER: &str = "fermata";
/// The flag that daemons recommend in their log when their journal is damaged.
const RECOVER_FLAG: &str = "--recover";

/// A cluster that this process is starting or has started.
pub struct Launch {
    /// The planned cluster.
    pub layout: Layout,
    /// The daemons that have been started.
    pub state: ClusterState,
    /// One line for each failure that did not stop the launch.
    pub warnings: Vec<String>,
    children: Vec<Child>,
    keep: bool,
    /// Whether a failure of a daemon that is not a master is only a warning.
    tolerant: bool,
}

impl Launch {
    /// Starts a complete cluster and waits until all nodes accept blocks and tasks.
    pub async fn start(layout: Layout, port: Option<u16>) -> Result<Self> {
        Box::pin(Self::start_namenodes(layout, port)).await?.start_remaining_daemons().await
    }

    /// Starts a complete cluster like `start`. If the cluster has started completely before and its
    /// masters are ready now, other failures are only warnings.
    pub async fn start_degraded(layout: Layout, port: Option<u16>) -> Result<Self> {
        let mut launch = Box::pin(Self::start_namenodes(layout, port)).await?;
        launch.tolerant = launch.layout.formatted;
        let mut launch = launch.start_remaining_daemons().await?;
        let gateway = launch.start_gateway().await;
        launch.tolerate(gateway)?;
        Ok(launch)
    }

    /// Starts the gateway. In a closed cluster, its clients need a token, which is written to a file
    /// that only the account of the cluster can read.
    async fn start_gateway(&mut self) -> Result<()> {
        let layout = &self.layout;
        if !layout.config.security.dir.as_os_str().is_empty() {
            eprintln!(
                "mrctl: note: no gateway is started, because it cannot serve a cluster with certificates yet"
            );
            return Ok(());
        }
        if let Err(error) = program_path(Kind::Gateway).map_err(|error| view::output::chain(&error)) {
            eprintln!("mrctl: note: no gateway is started: {error}");
            return Ok(());
        }
        let path = layout.gateway_token();
        if layout.open {
            let _ = fs::remove_file(&path);
        } else {
            let (token, _) = self.credentials()?.token(GATEWAY_TOKEN_LIFETIME)?;
            replace(&path, (token + "\n").as_bytes(), PRIVATE, false)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let taken: Vec<u16> = layout.ports.into_iter().flatten().collect();
        let port = match layout.gateway_port {
            Some(port) if layout.is_gateway_port_fixed => port,
            before => find_free_port(before.into_iter(), &taken)?,
        };
        if let Some(before) = layout.gateway_port.filter(|before| *before != port) {
            eprintln!("mrctl: note: port {before} of the gateway is in use: it gets {port}");
        }
        self.layout.set_gateway_port(port)?;
        let at = self.state.daemons.len();
        self.spawn(&Layout::gateway())?;
        self.state.gateway = self.await_daemon(at, Instant::now() + READY_TIMEOUT).await?;
        self.state.save(&self.layout.folder)
    }

    async fn start_remaining_daemons(mut self) -> Result<Self> {
        Box::pin(self.start_file_system()).await?;
        self.start_jobtracker().await?;
        self.start_all(Kind::Tasktracker).await?;
        self.layout.set_formatted()?;
        Ok(self)
    }

    /// Starts the file system and the JobTracker, but no TaskTrackers, so that jobs are accepted
    /// and wait.
    pub async fn start_without_trackers(layout: Layout, port: Option<u16>) -> Result<Self> {
        let mut launch = Box::pin(Self::start_files(layout, port)).await?;
        launch.start_jobtracker().await?;
        Ok(launch)
    }

    /// Starts only the file system.
    pub async fn start_files(layout: Layout, port: Option<u16>) -> Result<Self> {
        let mut launch = Box::pin(Self::start_namenodes(layout, port)).await?;
        Box::pin(launch.start_file_system()).await?;
        Ok(launch)
    }

    async fn start_file_system(&mut self) -> Result<()> {
        self.start_all(Kind::Datanode).await?;
        let ready = Box::pin(await_files(&self.layout, &self.state, self.tolerant)).await;
        self.tolerate(ready)?;
        let owned = Box::pin(self.give_root_to_caller()).await;
        self.tolerate(owned)
    }

    pub(super) async fn start_jobtracker(&mut self) -> Result<()> {
        if self.layout.masters > 1 {
            self.state.jobtracker = self.layout.config.cluster.jobtracker.to_string();
            return self.start_group(Kind::Jobtracker).await;
        }
        let at = self.state.daemons.len();
        self.spawn(&Layout::jobtracker())?;
        self.state.jobtracker = self.await_daemon(at, Instant::now() + READY_TIMEOUT).await?;
        Ok(())
    }

    /// Starts a daemon of this kind on every node and waits until all are ready. The timeout
    /// restarts with each daemon that becomes ready.
    async fn start_all(&mut self, kind: Kind) -> Result<()> {
        let first = self.state.daemons.len();
        for role in self.layout.on_nodes(kind) {
            self.spawn(&role)?;
        }
        let mut deadline = Instant::now() + READY_TIMEOUT;
        for at in first..self.state.daemons.len() {
            match self.await_daemon(at, deadline).await {
                Ok(_) => deadline = Instant::now() + READY_TIMEOUT,
                Err(_) if self.tolerant => self.warnings.push(describe_failure(&self.state.daemons[at])),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Turns an error into a warning if `tolerant` is set.
    fn tolerate(&mut self, result: Result<()>) -> Result<()> {
        match result {
            Err(error) if self.tolerant => self.warnings.push(view::output::chain(&error)),
            other => return other,
        }
        Ok(())
    }

    /// Starts only the NameNodes and waits until they serve.
    pub async fn start_namenodes(mut layout: Layout, port: Option<u16>) -> Result<Self> {
        let port = port.filter(|port| *port != 0);
        layout = Box::pin(change_members(layout, port)).await?;
        check_group_ports(&layout, port)?;
        let ports = choose_ports(port, layout.ports)?;
        let others = choose_other_ports(&layout, ports)?;
        if let Some(note) = layout.ports.and_then(|before| moved_ports_note(port, before, ports)) {
            eprintln!("mrctl: note: {note}");
        }
        layout.make()?;
        layout.write_config(ports, others)?;
        let mut launch = Self::of(layout);
        if launch.layout.masters == 1 {
            launch.spawn(&Layout::namenode())?;
            launch.state.namenode = launch.await_daemon(0, Instant::now() + READY_TIMEOUT).await?;
        } else {
            launch.state.namenode = launch.layout.config.cluster.namenode.to_string();
            launch.start_group(Kind::Namenode).await?;
        }
        Ok(launch)
    }

    /// Prepares a launch that has started nothing yet.
    fn of(layout: Layout) -> Self {
        let (state, warnings, children) = (ClusterState::default(), Vec::new(), Vec::new());
        Self { layout, state, warnings, children, keep: false, tolerant: false }
    }

    /// Starts the masters of a group. If it has started completely before, a majority suffices.
    async fn start_group(&mut self, kind: Kind) -> Result<()> {
        let first = self.state.daemons.len();
        // The one that forms the group, which the others join, is started first.
        let (founder, others): (Vec<_>, Vec<_>) =
            self.layout.masters_of(kind).partition(|role| self.layout.is_founder(role));
        let has_founder = !founder.is_empty();
        let roles: Vec<Role> = founder.into_iter().chain(others).collect();
        let mut failures = Vec::new();
        for role in &roles {
            self.spawn(role)?;
            if has_founder && self.state.daemons.len() == first + 1 {
                self.await_daemon(first, Instant::now() + READY_TIMEOUT).await?;
            }
        }
        let deadline = Instant::now() + READY_TIMEOUT;
        for at in first..self.state.daemons.len() {
            if let Err(error) = self.await_daemon(at, deadline).await {
                failures.push((at, error));
            }
        }
        let up = roles.len() - failures.len();
        let is_enough = self.layout.formatted && (has_founder || self.layout.is_majority(up));
        let is_complete = failures.is_empty();
        for (at, error) in failures {
            if !is_enough {
                return Err(error);
            }
            self.warnings.push(describe_failure(&self.state.daemons[at]));
        }
        Box::pin(await_masters(&self.layout, &self.state, kind)).await?;
        if is_complete { self.layout.end_forming(kind) } else { Ok(()) }
    }

    /// Kills the NameNode and starts it again on another port, because another process may have
    /// taken the old one. Returns how long it took from the start until it was ready.
    pub async fn restart_namenode(&mut self) -> Result<Duration> {
        let namenode = &self.state.daemons[0];
        let pid = namenode.identity.pid;
        end_processes(&[(&namenode.identity, &namenode.args)], Duration::ZERO)?;
        // A process holds the lock of its folder until its last thread has ended. Only waiting for
        // the child makes sure of that.
        if let Some(at) = self.children.iter().position(|child| child.id() == pid) {
            self.children.swap_remove(at).wait().context("cannot wait for the namenode")?;
        }
        let namenode = &mut self.state.daemons[0];
        let listen =
            namenode.args.iter().position(|word| word == "--listen").context("a namenode has --listen")?;
        namenode.args[listen + 1] = "127.0.0.1:0".into();
        let since = Instant::now();
        let child = spawn_process(namenode)?;
        self.children.push(child);
        self.state.namenode = self.await_daemon(0, since + READY_TIMEOUT).await?;
        Ok(since.elapsed())
    }

    /// Returns the CPU seconds that all daemons have used so far.
    pub fn cpu_seconds(&self) -> f64 {
        self.state.daemons.iter().filter_map(|daemon| cpu_seconds(daemon.identity.pid)).sum()
    }

    /// Returns the resident memory of the namenode, in bytes.
    pub fn namenode_memory(&self) -> Result<u64> {
        memory_bytes(self.state.daemons[0].identity.pid)
            .context("cannot read the memory of the namenode from /proc")
    }

    /// Connects to the file system.
    pub async fn client(&self) -> Result<Client> {
        connect(&self.layout, &self.state).await
    }

    /// Returns the credentials for this cluster.
    pub fn credentials(&self) -> Result<Credentials> {
        credentials(&self.layout)
    }

    /// Keeps the daemons running after this value is dropped.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Stops all daemons.
    pub fn stop(&mut self) -> Result<()> {
        self.keep = true;
        self.state.stop_all()?;
        let path = ClusterState::path(&self.layout.folder);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
        if self.layout.temporary { super::remove_outside_folder(&self.layout.folder) } else { Ok(()) }
    }

    /// Makes the account that started a closed cluster the owner of `/` in the file system, so that
    /// its jobs, which have no superuser rights, can write there.
    async fn give_root_to_caller(&self) -> Result<()> {
        let credentials = self.credentials()?;
        let Some(name) = credentials.name().filter(|_| self.layout.has_own_secret()) else { return Ok(()) };
        let client = self.client().await?;
        let root = DfsPath::root();
        if client.stat(&root).await?.owner != INITIAL_ROOT_OWNER {
            return Ok(());
        }
        let attributes = Attributes { owner: Some(name.to_owned()), ..Attributes::default() };
        Ok(client.set_attributes(&root, attributes).await?)
    }

    /// Collects the exit statuses of ended children, so that none stays a zombie.
    pub fn reap(&mut self) {
        self.children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    fn spawn(&mut self, role: &Role) -> Result<()> {
        self.spawn_with(role, &[])
    }

    /// Starts a daemon with additional flags.
    fn spawn_with(&mut self, role: &Role, flags: &[&str]) -> Result<()> {
        let layout = &self.layout;
        let mut daemon = Daemon {
            name: role.name.clone(),
            kind: role.kind,
            identity: Identity { pid: 0, started_ticks: 0 },
            addr: String::new(),
            rack: role.rack.clone(),
            dir: layout.data_dir(role),
            log: layout.log(role),
            log_before: 0,
            ready_file: layout.ready_file(role),
            args: layout.args(role).into_iter().chain(flags.iter().map(|flag| (*flag).to_owned())).collect(),
        };
        self.children.push(spawn_process(&mut daemon)?);
        self.state.daemons.push(daemon);
        self.state.save(&self.layout.folder)
    }

    /// Waits until the daemon with index `at` is ready. Returns its address.
    async fn await_daemon(&mut self, at: usize, deadline: Instant) -> Result<String> {
        let addr = await_ready(&self.state.daemons[at], deadline).await?;
        self.state.daemons[at].addr.clone_from(&addr);
        self.state.save(&self.layout.folder)?;
        Ok(addr)
    }
}

/// A wait with a deadline, which prints one message if it takes long.
struct TimedWait {
    since: Instant,
    deadline: Instant,
    announced: bool,
}

impl TimedWait {
    fn until(deadline: Instant) -> Self {
        Self { since: Instant::now(), deadline, announced: false }
    }

    fn has_lasted(&self, time: Duration) -> bool {
        self.since.elapsed() > time
    }

    fn is_over(&self) -> bool {
        Instant::now() > self.deadline
    }

    fn print_notice(&mut self, what: impl FnOnce() -> String) {
        if !self.announced && self.has_lasted(NOTICE_AFTER) {
            self.announced = true;
            let left = self.deadline.saturating_duration_since(Instant::now()).as_secs();
            eprintln!("mrctl: waiting up to {left} s more: {}", what());
        }
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Err(error) = self.stop() {
            eprintln!("mrctl: {}; retry with `mrctl down`", view::output::chain(&error));
        }
    }
}

/// Starts a daemon again with its recorded arguments, waits until it is ready, and records its new
/// process.
pub async fn restart(folder: &Path, state: &mut ClusterState, name: &str, kind: Kind) -> Result<()> {
    let masters = if kind == Kind::Jobtracker { &state.jobtracker } else { &state.namenode }.clone();
    let daemon = state.find(name, Some(kind))?;
    if daemon.is_member() && is_empty(&daemon.dir) {
        eprintln!(
            "mrctl: warning: {} is missing or empty: {name} starts empty, and gets everything from the others",
            daemon.dir.display()
        );
        daemon.args = joining(std::mem::take(&mut daemon.args), &masters)?;
    }
    // Drop the handle: the process outlives this one and is identified by its PID from now on.
    drop(spawn_process(state.find(name, Some(kind))?)?);
    state.save(folder)?;
    let daemon = state.find(name, Some(kind))?;
    daemon.addr = await_ready(daemon, Instant::now() + READY_TIMEOUT).await?;
    state.save(folder)
}

fn credentials(layout: &Layout) -> Result<Credentials> {
    Ok(client::credentials(&layout.config.security)?)
}

fn client_options(layout: &Layout, state: &ClusterState) -> Result<ClientOptions> {
    let options = ClientOptions::new(&state.namenode, layout.config.client.clone());
    Ok(options.with(credentials(layout)?))
}

async fn connect(layout: &Layout, state: &ClusterState) -> Result<Client> {
    Ok(Client::connect(client_options(layout, state)?).await?)
}

/// Waits until one of several masters of a kind leads, and all that are ready vote. Returns at once if
/// there is only one.
pub async fn await_masters(layout: &Layout, state: &ClusterState, kind: Kind) -> Result<()> {
    if layout.masters == 1 {
        return Ok(());
    }
    let (role, addrs) = layout.group(kind);
    let mut waiting = TimedWait::until(Instant::now() + READY_TIMEOUT);
    loop {
        let all = ask_masters(role, addrs, credentials(layout)?, Some(state), ANSWER_TIMEOUT).await?;
        let votes = |daemon: &Daemon| {
            let is_it = |one: &&MasterStatus| one.address == daemon.addr && one.error.is_none();
            all.masters.iter().filter(is_it).any(|one| one.votes == Some(true))
        };
        let is_ready =
            |daemon: &&Daemon| !daemon.addr.is_empty() && daemon.is_running() && !daemon.is_frozen();
        if all.serves && (layout.removes_last || state.masters_of(kind).filter(is_ready).all(votes)) {
            return Ok(());
        }
        if waiting.is_over() {
            bail!(
                "the {}s do not serve after {} s: {}",
                role.title(),
                waiting.since.elapsed().as_secs(),
                all.summary
            );
        }
        waiting.print_notice(|| all.summary);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until all DataNodes that are ready have registered and reported, and safemode is off. With
/// `tolerant`, an error is a single line, without the log of the daemon, and the wait ends early if
/// safemode does not end after all DataNodes have reported.
pub async fn await_files(layout: &Layout, state: &ClusterState, tolerant: bool) -> Result<()> {
    let client = connect(layout, state).await?;
    let serves = |daemon: &&Daemon| daemon.kind == Kind::Datanode && !daemon.addr.is_empty();
    let datanodes: Vec<&Daemon> = state.daemons.iter().filter(serves).collect();
    let mut waiting = TimedWait::until(Instant::now() + READY_TIMEOUT);
    let mut all_reported = false;
    loop {
        let report = client.report().await?;
        let why = match unregistered(&report.nodes, &datanodes) {
            Some(unregistered) => unregistered,
            None if report.safemode.on => {
                if tolerant && !all_reported {
                    waiting.deadline = waiting.deadline.min(Instant::now() + SAFEMODE_TIMEOUT);
                }
                all_reported = true;
                report.safemode.reason
            }
            None => return Ok(()),
        };
        if let Some(dead) = datanodes.iter().find(|daemon| !daemon.is_running()) {
            return Err(if tolerant { anyhow!(describe_failure(dead)) } else { start_error(dead) });
        }
        if waiting.is_over() {
            let seconds = waiting.since.elapsed().as_secs();
            let dir = dir_flag(Some(&layout.folder));
            let more = layout.nodes_before.filter(|_| all_reported).map_or_else(String::new, |before| {
                format!(
                    "; `mrctl down{dir}` and `mrctl up{dir} --nodes {before}` start all nodes that this cluster had"
                )
            });
            bail!("the file system is not ready after {seconds} s: {why}{more}");
        }
        waiting.print_notice(|| why);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Describes the DataNodes that have not registered or not reported their blocks yet, with their
/// log files. Returns None if all have.
fn unregistered(nodes: &[NodeReport], datanodes: &[&Daemon]) -> Option<String> {
    let is_known = |daemon: &Daemon| {
        let up = |node: &NodeReport| !matches!(node.state, NodeState::Suspect | NodeState::Dead);
        nodes.iter().any(|node| node.address.node == daemon.name && up(node) && node.reported)
    };
    let absent: Vec<&Daemon> = datanodes.iter().copied().filter(|daemon| !is_known(daemon)).collect();
    let first = absent.first()?;
    let more = match absent.len() - 1 {
        0 => String::new(),
        more => format!(", and {}", view::output::count(more as u64, "other")),
    };
    let (title, log) = (first.title(), first.log.display());
    Some(format!("{title} has not registered with the namenode (see {log}){more}"))
}

/// Returns the path of the binary of a daemon, which is in the folder of mrctl.
pub(super) fn program_path(kind: Kind) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot determine the path of mrctl")?;
    let path = own.with_file_name(kind.program());
    if !path.is_file() {
        bail!(
            "{} is missing in the folder of mrctl: build it with `cargo build --workspace`",
            path.display()
        );
    }
    Ok(path)
}

/// Returns a note about masters whose port has changed since the last start, because the old port
/// is in use. `asked` is the port of `--namenode-port`.
fn moved_ports_note(asked: Option<u16>, before: [u16; 2], now: [u16; 2]) -> Option<String> {
    let masters = ["namenode", "jobtracker"].into_iter().zip(before.into_iter().zip(now));
    let moved =
        masters.filter(|(name, (before, now))| before != now && (asked.is_none() || *name != "namenode"));
    let moved: Vec<String> = moved
        .map(|(name, (before, now))| format!("port {before} of the {name} is in use: it gets {now}"))
        .collect();
    let notes = moved.join("; ");
    (!moved.is_empty()).then(|| format!("{notes}; programs with the old address must use the new one"))
}

/// Returns the ports of the NameNode and of the JobTracker. The NameNode gets the port `asked`. The
/// ports of the last start are used again if they are free; the JobTracker else gets the port after
/// the one that was asked for. Other ports are random, outside the range that the kernel uses for
/// outgoing connections, so that a restarted daemon finds its port free.
fn choose_ports(asked: Option<u16>, before: Option<[u16; 2]>) -> Result<[u16; 2]> {
    let choose = |preferred: [Option<u16>; 2], other: Option<u16>| {
        find_free_port(preferred.into_iter().flatten(), other.as_slice())
    };
    let [namenode, jobtracker] = before.map_or([None; 2], |before| before.map(Some));
    let namenode = match asked {
        Some(port) => port,
        None => choose([namenode, None], jobtracker)?,
    };
    let next = asked.and_then(|port| port.checked_add(1));
    Ok([namenode, choose([jobtracker, next], Some(namenode))?])
}

/// Returns the ports of the second and the following masters: those of the last start, and free ones.
fn choose_other_ports(layout: &Layout, taken: [u16; 2]) -> Result<OtherPorts> {
    let mut all = layout.other_ports.clone();
    for kind in MASTER_KINDS {
        while all.of(kind).len() + 1 < layout.masters as usize {
            let taken = [&taken[..], &all.namenode, &all.jobtracker].concat();
            let port = find_free_port(std::iter::empty(), &taken)?;
            all.of_mut(kind).push(port);
        }
    }
    Ok(all)
}

/// Fails if a master of a group that has started before would get another port: the others know it by
/// its address.
fn check_group_ports(layout: &Layout, asked: Option<u16>) -> Result<()> {
    let is_group = layout.masters > 1 && !layout.begins_to_form;
    let Some(ports) = layout.ports.filter(|_| is_group) else { return Ok(()) };
    let first = ports[0];
    if let Some(asked) = asked.filter(|asked| *asked != first) {
        bail!(Usage(format!(
            "--namenode-port {asked}: the first of several NameNodes keeps its port {first}, because the others know it by its \
             address: omit the flag"
        )));
    }
    for (kind, first) in MASTER_KINDS.into_iter().zip(ports) {
        let ports = std::iter::once(first).chain(layout.other_ports.of(kind).iter().copied());
        if let Some((role, port)) = layout.masters_of(kind).zip(ports).find(|(_, port)| !is_free(*port)) {
            bail!(
                "port {port} of {} is in use by another process, and the masters of a group keep their ports: end that \
                 process, and run `mrctl up{}` again",
                role.name,
                dir_flag(Some(&layout.folder))
            );
        }
    }
    Ok(())
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// Returns the first of the preferred ports that is free and not taken, else a random one.
fn find_free_port(preferred: impl Iterator<Item = u16>, taken: &[u16]) -> Result<u16> {
    let mut random = rand::rng();
    let ports = (0..200).map(|_| random.random_range(10_000..32_000));
    let mut ports = preferred.chain(ports);
    ports
        .find(|port| !taken.contains(port) && is_free(*port))
        .context("no free ports found on 127.0.0.1 from 10000 to 32000")
}

fn spawn_process(daemon: &mut Daemon) -> Result<Child> {
    let _ = fs::remove_file(&daemon.ready_file);
    let log = fs::OpenOptions::new().create(true).append(true).open(&daemon.log);
    let log = log.with_context(|| format!("cannot open log {}", daemon.log.display()))?;
    daemon.log_before = log.metadata().map_or(0, |about| about.len());
    let errors = log.try_clone().context("cannot share a log file")?;
    let program = program_path(daemon.kind)?;
    let child = Command::new(&program)
        .args(&daemon.args)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    daemon.identity = Identity::of(child.id())
        .with_context(|| format!("{} vanished from /proc right after its start", daemon.title()))?;
    daemon.addr.clear();
    Ok(child)
}

async fn await_ready(daemon: &Daemon, deadline: Instant) -> Result<String> {
    let mut waiting = TimedWait::until(deadline);
    loop {
        if let Ok(text) = fs::read_to_string(&daemon.ready_file) {
            return Ok(text.trim().to_owned());
        }
        if !daemon.is_running() {
            return Err(start_error(daemon));
        }
        if waiting.is_over() {
            bail!(describe_failure(daemon));
        }
        waiting.print_notice(|| describe_failure(daemon));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns what the daemon has logged since its last start.
fn log_of_start(daemon: &Daemon) -> String {
    let log = fs::read(&daemon.log).unwrap_or_default();
    let own = log.get(daemon.log_before as usize..).unwrap_or(&log);
    String::from_utf8_lossy(own).into_owned()
}

/// Describes in one line why a daemon is not ready, with the last error or warning in its log.
pub fn describe_failure(daemon: &Daemon) -> String {
    let (title, log) = (daemon.title(), daemon.log.display());
    let what = if daemon.is_running() { "does not serve yet" } else { "has died" };
    let why = last_error_line(&log_of_start(daemon), daemon.kind.program());
    format!("{title} {what}{}; see {log}", why.map_or(String::new(), |why| format!(": {why}")))
}

/// Returns the last error or warning in a log, without time and module. A daemon that exits prints
/// the reason after its program name.
fn last_error_line(log: &str, program: &str) -> Option<String> {
    log.lines().rev().find_map(|line| {
        let logged = [" ERROR ", " WARN "].into_iter().find_map(|level| line.split_once(level));
        let logged = logged.map(|(_, text)| text.split_once(": ").map_or(text, |(_, text)| text));
        let message = logged.or_else(|| line.strip_prefix(program)?.strip_prefix(": "))?;
        Some(message.trim().to_owned())
    })
}

fn start_error(daemon: &Daemon) -> anyhow::Error {
    let tail = last_lines(&log_of_start(daemon), LOG_LINES);
    let (title, log) = (daemon.title(), daemon.log.display());
    let advice = if tail.contains(RECOVER_FLAG) { recovery_advice(daemon) } else { String::new() };
    anyhow!("{title} died while starting; the end of {log}:\n{tail}{advice}")
}

/// Returns advice that contains the complete command to start the daemon once with `--recover`.
fn recovery_advice(daemon: &Daemon) -> String {
    let program = program_path(daemon.kind).unwrap_or_else(|_| daemon.kind.program().into());
    let words = std::iter::once(program.to_string_lossy().into_owned());
    let command: Vec<String> =
        words.chain(daemon.args.clone()).map(|word| view::output::shell(word.as_ref())).collect();
    let command = command.join(" ");
    let skipped = if daemon.kind == Kind::Jobtracker { "; it skips job IDs up to the Unix time" } else { "" };
    format!(
        "\nto start it once with {RECOVER_FLAG} (stop it with Ctrl-C when it is ready, then start the cluster \
         again{skipped}):\n  {command} {RECOVER_FLAG}"
    )
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let tail: Vec<String> =
        lines[lines.len().saturating_sub(count)..].iter().map(|line| format!("  {line}")).collect();
    if tail.is_empty() { "  (empty)".into() } else { tail.join("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_are_returned() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "  b\n  c");
        assert_eq!(last_lines("a\n", 2), "  a");
        assert_eq!(last_lines("", 2), "  (empty)");
    }

    #[test]
    fn last_error_line_has_no_time_and_module() {
        let warned = "2026-11-16T14:00:07Z  WARN fermata_dfs::datanode::link: refused why=\"an older NameNode runs\"\n\
                      2026-11-16T14:00:08Z  INFO fermata_dfs::datanode: waits\n";
        let last_error = |log: &str| last_error_line(log, "datanode");
        assert_eq!(last_error(warned).as_deref(), Some("refused why=\"an older NameNode runs\""));
        let died = format!("{warned}datanode: /d/VERSION is missing\n");
        assert_eq!(last_error(&died).as_deref(), Some("/d/VERSION is missing"));
        assert_eq!(last_error("2026-11-16T14:00:08Z  INFO a: b\n"), None);
    }

    #[test]
    fn datanode_is_ready_only_when_it_is_up_and_has_reported_its_blocks() {
        let daemon = |name: &str| Daemon {
            name: name.into(),
            kind: Kind::Datanode,
            identity: Identity { pid: 0, started_ticks: 0 },
            addr: "127.0.0.1:1".into(),
            rack: "rack1".into(),
            dir: "d".into(),
            log: format!("logs/{name}.log").into(),
            log_before: 0,
            ready_file: "r".into(),
            args: Vec::new(),
        };
        let node = |name: &str, state, reported| NodeReport {
            address: dfs_client::NodeAddress {
                node: name.into(),
                uuid: "u".into(),
                data_addr: "127.0.0.1:1".into(),
                rack: "rack1".into(),
                local_socket: None,
                host: "h".into(),
                seal: Vec::new(),
            },
            state,
            capacity: 1,
            used: 0,
            free: 1,
            blocks: 0,
            last_heartbeat_ms_ago: 0,
            volumes: 1,
            failed_volumes: 0,
            blocks_left_to_drain: 0,
            version: String::new(),
            reported,
        };
        let (one, two) = (daemon("node1"), daemon("node2"));
        let absent = |nodes: &[NodeReport]| unregistered(nodes, &[&one, &two]);
        let missing =
            "node1's datanode has not registered with the namenode (see logs/node1.log), and 1 other";
        assert_eq!(absent(&[]).as_deref(), Some(missing));
        let up = node("node1", NodeState::Live, true);
        let missing = "node2's datanode has not registered with the namenode (see logs/node2.log)";
        for (state, reported) in
            [(NodeState::Live, false), (NodeState::Suspect, true), (NodeState::Dead, true)]
        {
            let other = node("node2", state, reported);
            assert_eq!(absent(&[up.clone(), other]).as_deref(), Some(missing), "{state:?}");
        }
        for state in [NodeState::Live, NodeState::Draining, NodeState::Drained] {
            assert_eq!(absent(&[up.clone(), node("node2", state, true)]), None, "{state:?}");
        }
    }

    #[test]
    fn chosen_ports_can_be_bound() {
        let ports = choose_ports(None, None).unwrap();
        assert_eq!(choose_ports(None, Some(ports)).unwrap(), ports, "those of the last start");
        let [asked, other] = choose_ports(Some(ports[1]), Some(ports)).unwrap();
        assert!(asked == ports[1] && other != ports[1], "the JobTracker's port was asked for");
        let _held = ports.map(|port| TcpListener::bind(("127.0.0.1", port)).unwrap());
        let others = choose_ports(None, Some(ports)).unwrap();
        assert!(others.iter().all(|port| !ports.contains(port)), "{others:?}");
    }

    #[test]
    fn jobtracker_gets_the_port_after_the_one_asked_for_if_free() {
        let asked = choose_ports(None, None).unwrap()[0];
        let next = TcpListener::bind(("127.0.0.1", asked + 1));
        assert!(next.is_err() || choose_ports(Some(asked), None).unwrap() != [asked, asked + 1]);
        drop(next);
        let ports = choose_ports(Some(asked), None).unwrap();
        assert!(ports == [asked, asked + 1] || TcpListener::bind(("127.0.0.1", asked + 1)).is_err());
    }

    #[test]
    fn master_keeps_its_port_if_free_and_a_new_port_is_noted() {
        let before = choose_ports(None, None).unwrap();
        let _held = TcpListener::bind(("127.0.0.1", before[0])).unwrap();
        let now = choose_ports(None, Some(before)).unwrap();
        assert!(now[0] != before[0] && now[1] == before[1], "{before:?} {now:?}");
        assert_eq!(moved_ports_note(None, [1, 2], [1, 2]), None);
        assert_eq!(moved_ports_note(Some(5), [1, 2], [5, 2]), None, "requested");
        let note = moved_ports_note(None, [1, 2], [3, 2]).unwrap();
        assert!(note.starts_with("port 1 of the namenode is in use: it gets 3; programs"), "{note}");
    }
}
