//! `mrctl up`: starts a local cluster of real processes on loopback and waits until it is ready.

use super::status::ClusterStatus;
use crate::output;
use anyhow::{Context, Result, bail};
use clusters::{
    folder::{DEFAULT_FOLDER, dir_flag},
    local::{
        ClusterState, Kind, Launch, Layout, Overrides, await_files, await_masters, describe_failure, lock,
        lost_data, restart,
    },
    trust,
};
use daemon::Bytes;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Start a cluster on this machine
///
/// The cluster consists of real processes on loopback: a namenode, a jobtracker, nodes with a
/// datanode and a tasktracker each, and a gateway that serves files to HTTP clients. Only your account can use it: its secret is in the cluster
/// folder, where mrctl finds it. --open admits every account of this machine. Tasks never run as
/// root: if root starts the cluster, they run as `tasktracker.task_user`, or as nobody if that is
/// not set.
///
/// A later start in the same folder, after `mrctl down`, has the same files, layout, ports and
/// access. While the cluster runs, `mrctl up` restarts daemons that have died and waits until the
/// file system is ready. Settings come from --config, else from ./fermata.toml, else from the copy
/// in the folder; flags override them. The addresses and folders of the daemons are always
/// determined by mrctl.
///
/// If the cluster has run before and its masters start, but another daemon does not or safemode
/// stays on, the running daemons are kept: a warning names the problem, the state is "degraded",
/// and with --detach the exit code is 1.
///
/// With --masters 3 the cluster survives the loss of a namenode and of a jobtracker: those of each
/// kind are a group, in which a majority must run. This is experimental: use it for trials only.
/// `mrctl masters` shows which ones lead. A later start may have another number. A master that has
/// lost its folder gets everything from the others of its kind.
///
/// If a majority of a kind has lost its folders, --recover makes a new group of one that is left, with
/// everything in its folder; the others join it with empty folders. What only the lost ones have
/// acknowledged is lost, so choose with `mrctl masters --offline`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl up                                   run until Ctrl-C\n  \
    mrctl up --detach                          return when it is ready\n  \
    mrctl up --nodes 6 --racks 2 --replication 3 --detach\n  \
    mrctl up --config my.toml --detach         use your own settings\n  \
    mrctl up --open --detach                   allow clients without credentials\n  \
    mrctl up --masters 3 --detach              three of each master\n  \
    mrctl up --recover namenode2 --detach      two of three are lost\n\n\
    `jobtracker --print-config` prints all settings with their defaults.")]
pub(crate) struct Args {
    /// Number of nodes, each with a datanode and a tasktracker [default: 3, or as before in this
    /// folder]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=200))]
    nodes: Option<u32>,
    /// Number of namenodes, and of jobtrackers: 1, 3 or 5 [default: 1, or as before in this folder].
    /// More than one is experimental
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    masters: Option<u32>,
    /// Default number of replicas of a block [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    replication: Option<u32>,
    /// Default block size [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    block_size: Option<Bytes>,
    /// Number of racks, to which the nodes are assigned in turn [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=200))]
    racks: Option<u32>,
    /// Folder for data, logs and configuration
    #[arg(long, value_name = "DIR", default_value = DEFAULT_FOLDER)]
    dir: PathBuf,
    /// Admit every account of this machine without authentication
    #[arg(long)]
    open: bool,
    /// Require authentication again, after a start with --open
    #[arg(long, conflicts_with = "open")]
    closed: bool,
    /// Start without the old jobs if the folder of the jobtracker is missing or empty
    #[arg(long, value_name = "DAEMON", value_parser = ["jobtracker"])]
    format: Option<String>,
    /// Start this namenode or jobtracker once with its flag --recover, before all others
    #[arg(long, value_name = "NAME")]
    recover: Vec<String>,
    /// Port of the namenode [default: that of the last start, else a free port]
    #[arg(long, value_name = "PORT")]
    namenode_port: Option<u16>,
    /// Port of the gateway [default: that of the last start, else a free port]
    #[arg(long, value_name = "PORT")]
    gateway_port: Option<u16>,
    /// Map slots of each node [default: 2]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    map_slots: Option<u32>,
    /// Reduce slots of each node [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    reduce_slots: Option<u32>,
    /// Scheduling policy, such as fair or 'chronos(fair)' [default: coda]; see `mrctl schedulers`
    #[arg(long, value_name = "NAME")]
    scheduler: Option<String>,
    /// Shadow policy, which decides without effect, for `mrctl shadow`; empty for none
    #[arg(long, value_name = "NAME")]
    shadow: Option<String>,
    /// Return when the cluster is ready, and keep it running
    #[arg(long)]
    detach: bool,
    /// Print the state of the cluster as JSON when it is ready
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Returns whether any flag sets a property that cannot be changed while the cluster is
    /// running.
    fn has_layout_flags(&self) -> bool {
        let Self { nodes, masters, racks, map_slots, reduce_slots, replication, .. } = self;
        let numbers = [nodes, masters, racks, map_slots, reduce_slots, replication];
        let names = [&self.scheduler, &self.shadow];
        self.open
            || self.closed
            || self.block_size.is_some()
            || self.namenode_port.is_some()
            || self.gateway_port.is_some()
            || !self.recover.is_empty()
            || numbers.into_iter().any(Option::is_some)
            || names.into_iter().any(Option::is_some)
    }

    fn open_flag(&self) -> Option<bool> {
        (self.open || self.closed).then_some(self.open)
    }
}

/// Starts the cluster, and watches it unless `--detach` is given. `config` is the file of
/// `--config`, or `fermata.toml` in the current folder. Flags override its settings.
pub(crate) async fn run(args: Args, config: Option<PathBuf>) -> Result<ExitCode> {
    trust::check_folder(&args.dir)?;
    config.as_deref().map_or(Ok(()), trust::check_file)?;
    let has_layout_flags = args.has_layout_flags();
    let overrides = Overrides {
        nodes: args.nodes,
        masters: args.masters,
        racks: args.racks,
        replication: args.replication,
        block_size: args.block_size,
        config,
        map_slots: args.map_slots,
        reduce_slots: args.reduce_slots,
        open: args.open_flag(),
        scheduler: args.scheduler,
        shadow: args.shadow,
        gateway_port: args.gateway_port,
        temporary: false,
        recover: args.recover,
    };
    // Refuse invalid settings before anything is created or started.
    Layout::prepare(&args.dir, &overrides)?.check_masters(args.format.is_some())?;
    let locked = lock(&args.dir)?;
    if let Some(state) = running_cluster(&args.dir)? {
        refuse_second_start(&args.dir, &state, has_layout_flags)?;
        return restart_daemons(&args.dir, state, args.json).await;
    }
    let layout = Layout::prepare(&args.dir, &overrides)?;
    note_fewer_nodes(&layout);
    if layout.masters > 1 {
        eprintln!("mrctl: note: several masters are experimental: use them for trials only");
    }
    note_replication(&layout);
    note_access(&layout);
    for warning in layout.lost_data() {
        eprintln!("mrctl: warning: {warning}");
    }
    // Use one future for the complete run: a signal that arrives between two futures would be lost.
    let mut stop = std::pin::pin!(daemon::lifecycle::end_signal());
    let mut launch = tokio::select! {
        launch = Launch::start_degraded(layout, args.namenode_port) => launch?,
        () = &mut stop => bail!("interrupted while starting: all started daemons were stopped"),
    };
    drop(locked);
    if args.detach {
        launch.keep();
    }
    let dir = dir_flag(Some(&args.dir));
    for warning in &launch.warnings {
        eprintln!("mrctl: warning: {warning}");
    }
    let code = if launch.warnings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if args.json {
        let mut status = ClusterStatus::of(&launch.layout.folder)?;
        status.ask_masters().await;
        status.add(&launch.warnings);
        output::json(&status)?;
        return if args.detach { Ok(code) } else { watch(&mut launch, stop, &dir, true).await };
    }
    output::line(ready_message(&launch))?;
    if !launch.state.gateway.is_empty() {
        output::line(gateway_message(&launch))?;
    }
    if !dir.is_empty() {
        let file = args.dir.join("fermata.toml");
        output::line(format!("use it with: mrctl --config {}, or FERMATA_CONFIG", output::shell(&file)))?;
    }
    if args.detach {
        output::line(format!("stop it with: mrctl down{dir}"))?;
        return Ok(code);
    }
    output::line("running in the foreground; Ctrl-C stops it")?;
    watch(&mut launch, stop, &dir, false).await
}

fn note_fewer_nodes(layout: &Layout) {
    if let Some(before) = layout.nodes_before {
        let missing = layout.nodes + 1;
        eprintln!(
            "mrctl: note: this cluster had {before} nodes; blocks whose replicas are all on node{missing} or higher are missing"
        );
    }
}

fn note_replication(layout: &Layout) {
    if let Some(wanted) = layout.replication_wanted {
        let replication = layout.config.namenode.replication;
        let nodes = output::count(layout.nodes.into(), "node");
        eprintln!(
            "mrctl: note: namenode.replication = {wanted}, but the cluster has {nodes}: new files get {replication}; start more --nodes \
             for more replicas"
        );
    }
}

/// Prints warnings about unusual access rights.
fn note_access(layout: &Layout) {
    if layout.open {
        eprintln!("mrctl: warning: {}", open_warning(layout.task_account(), &daemon::account::user()));
    }
    if layout.config.tasktracker.tasks_as_root && rustix::process::geteuid().is_root() {
        eprintln!("mrctl: warning: tasks run as root (tasktracker.tasks_as_root = true)");
    }
    if layout.tasks_read_secret() {
        eprintln!(
            "mrctl: warning: tasks are not confined (tasktracker.confine = \"off\", or a kernel without Landlock): jobs can \
             read the secret of this cluster and all files that your account can read"
        );
    }
}

/// Returns the warning for `--open`. `own` is the account that runs the cluster. `tasks` is the
/// account that runs tasks, or None if that is also `own`.
fn open_warning(tasks: Option<&str>, own: &str) -> String {
    let reach = match tasks {
        Some(tasks) => format!("run programs as account {tasks}"),
        None => {
            format!("run programs as {own}, with access to all files, keys and processes of {own}")
        }
    };
    format!(
        "--open: every account of this machine can read, change and delete all files and jobs of this cluster, and \
         {reach}; to close it: `mrctl down`, then `mrctl up --closed`"
    )
}

/// Returns the cluster in this folder if at least one of its daemons is running.
fn running_cluster(folder: &Path) -> Result<Option<ClusterState>> {
    Ok(ClusterState::load(folder)?.filter(|state| state.running().next().is_some()))
}

/// Fails if all daemons of the cluster are already running, or if flags would change the layout of
/// a running cluster.
fn refuse_second_start(folder: &Path, state: &ClusterState, has_layout_flags: bool) -> Result<()> {
    let dead = state.daemons.iter().any(|daemon| !daemon.is_running());
    let running = state.describe_running().unwrap_or_default();
    let (at, dir) = (folder.display(), dir_flag(Some(folder)));
    if dead && has_layout_flags {
        bail!(
            "a cluster is running in {at} ({running}), and flags cannot change a running cluster: `mrctl up{dir}` without them restarts the dead \
             daemons"
        );
    }
    if !dead {
        if let Some(frozen) = state.daemons.iter().find(|daemon| daemon.is_frozen()) {
            bail!("a cluster is running in {at}, but {}", frozen.frozen_advice(&dir));
        }
        bail!(
            "a cluster is already running in {at} ({running}): stop it with `mrctl down{dir}`, or choose another --dir"
        );
    }
    Ok(())
}

/// Restarts the dead daemons of a running cluster.
async fn restart_daemons(folder: &Path, mut state: ClusterState, json: bool) -> Result<ExitCode> {
    // The masters are first, because the other daemons register with them: the state lists the
    // daemons in the order of a start.
    let dead: Vec<_> = state.daemons.iter().filter(|daemon| !daemon.is_running()).cloned().collect();
    let layout = Layout::prepare(folder, &Overrides::default())?;
    let mut warnings = Vec::new();
    for daemon in &dead {
        let had_blocks = daemon.kind == Kind::Datanode;
        if let Some(warning) = had_blocks.then(|| lost_data(&daemon.name, &daemon.dir)).flatten() {
            eprintln!("mrctl: warning: {warning}");
            // The NameNode knows that this DataNode had blocks.
            daemon::data_dirs::declare_new(&daemon.dir)
                .with_context(|| format!("cannot create {}", daemon.dir.display()))?;
        }
        let restarted = restart(folder, &mut state, &daemon.name, daemon.kind).await;
        let started = state.find(&daemon.name, Some(daemon.kind))?;
        if let Err(error) = restarted {
            // A master that does not start is an error, because the other daemons need it. Of several,
            // a majority suffices.
            let may_fail = daemon.kind.is_master() && layout.masters > 1;
            if daemon.kind.is_master() && !may_fail {
                return Err(error);
            }
            let warning = if may_fail { output::chain(&error) } else { describe_failure(started) };
            eprintln!("mrctl: warning: {warning}");
            warnings.push(warning);
        } else if !json {
            let (title, pid, addr) = (started.title(), started.identity.pid, &started.addr);
            output::line(format!("started {title} again (pid {pid}) at {addr}"))?;
        }
    }
    // The other DataNodes register again with a restarted NameNode.
    if dead.iter().any(|daemon| matches!(daemon.kind, Kind::Namenode | Kind::Datanode)) {
        let ready = async {
            await_masters(&layout, &state, Kind::Namenode).await?;
            await_files(&layout, &state, true).await
        };
        if let Err(error) = Box::pin(ready).await {
            warnings.push(output::chain(&error));
            eprintln!("mrctl: warning: {}", output::chain(&error));
        }
    }
    if dead.iter().any(|daemon| daemon.kind == Kind::Jobtracker)
        && let Err(error) = Box::pin(await_masters(&layout, &state, Kind::Jobtracker)).await
    {
        warnings.push(output::chain(&error));
        eprintln!("mrctl: warning: {}", output::chain(&error));
    }
    if json {
        let mut status = ClusterStatus::of(folder)?;
        status.ask_masters().await;
        status.add(&warnings);
        output::json(&status)?;
    }
    Ok(if warnings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn ready_message(launch: &Launch) -> String {
    let Launch { layout, state, .. } = launch;
    let racks = if layout.racks == 1 { String::new() } else { format!(" in {} racks", layout.racks) };
    let nodes = output::count(layout.nodes.into(), "node");
    let word = if launch.warnings.is_empty() { "ready" } else { "degraded" };
    let [namenodes, jobtrackers] = match layout.masters {
        1 => ["namenode", "jobtracker"],
        _ => ["namenodes", "jobtrackers"],
    };
    format!(
        "{word}: {jobtrackers} at {}, {namenodes} at {}, {nodes}{racks}, replication {}, blocks of {}, {}; folder {}",
        state.jobtracker.replace(',', ", "),
        state.namenode.replace(',', ", "),
        layout.config.namenode.replication,
        layout.config.namenode.block_size,
        if layout.open { "open to every local account" } else { "closed" },
        layout.folder.display()
    )
}

fn gateway_message(launch: &Launch) -> String {
    let token = if launch.layout.open {
        "name the user with user.name".into()
    } else {
        format!("token in {}", launch.layout.gateway_token().display())
    };
    format!("gateway (WebHDFS) at http://{}; {token}", launch.state.gateway)
}

/// Waits until the user stops the cluster, or until another process has stopped it with `mrctl
/// down`. Reports daemons that die in the meantime, but does not restart them: the user can do that
/// with another `mrctl up`. If `quiet`, prints nothing to standard output.
async fn watch(
    launch: &mut Launch,
    mut stop: impl Future<Output = ()> + Unpin,
    dir: &str,
    quiet: bool,
) -> Result<ExitCode> {
    let print_status = |line: &str| if quiet { Ok(()) } else { output::line(line) };
    let folder = launch.layout.folder.clone();
    let mut dead = BTreeSet::new();
    loop {
        tokio::select! {
            () = &mut stop => break,
            () = tokio::time::sleep(WATCH_INTERVAL) => {}
        }
        launch.reap();
        let Some(state) = ClusterState::load(&folder)? else {
            launch.keep();
            print_status("stopped by `mrctl down`")?;
            return Ok(ExitCode::SUCCESS);
        };
        for daemon in &state.daemons {
            if daemon.is_running() {
                dead.remove(&daemon.title());
            } else if dead.insert(daemon.title()) {
                let (title, log) = (daemon.title(), daemon.log.display());
                eprintln!("mrctl: {title} has died (see {log}): start it again with `mrctl up{dir}`");
            }
        }
        launch.state = state;
    }
    let _held = lock(&folder)?;
    // Daemons restarted by another `mrctl up` are not children of this process: read them from the
    // state file.
    if let Some(state) = ClusterState::load(&folder)? {
        launch.state = state;
    }
    launch.stop()?;
    print_status("stopped; the data stays: `mrctl up` starts the cluster again")?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_cluster_warning_names_the_task_account() {
        let own = open_warning(None, "ann");
        assert!(own.contains("run programs as ann, with access to all files"), "{own}");
        let other = open_warning(Some("nobody"), "root");
        assert!(other.contains("run programs as account nobody;") && !other.contains("root"), "{other}");
    }
}
