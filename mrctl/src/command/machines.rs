//! `mrctl cluster up`, `down`, `restart`, `logs` and `upgrade`: commands for the daemons of a
//! cluster on several machines.
//!
//! Every command can be repeated: steps that are already done are skipped.

use super::{master_reports::MasterReports, rolling};
use crate::output::{self, Usage};
use anyhow::{Result, bail};
use clusters::{
    locate::Target,
    remote::{DaemonStatus, Fleet, Machine, MachineRole, Package, Programs, Reach, on_all},
};
use security::Role;
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

/// How long a restarted node may take until both masters report it as live.
const RESTART_TIMEOUT: Duration = Duration::from_secs(90);

/// Runs `action` on all machines in parallel and prints one line per machine, in their order.
/// Returns the results and the number of failures.
pub(super) fn on_each<'a, T: Send>(
    machines: impl IntoIterator<Item = &'a Machine>,
    action: impl Fn(&Machine) -> Result<T> + Sync,
    text: impl Fn(&Machine, &T) -> String,
) -> (Vec<(&'a Machine, Result<T>)>, usize) {
    let results = on_all(machines, action, |machine, result| {
        let name = &machine.host.name;
        match result {
            // A closed standard output must not stop the action.
            Ok(done) => drop(output::line(format!("{name}: {}", text(machine, done)))),
            Err(error) => eprintln!("mrctl: {name}: {}", output::chain(error)),
        }
    });
    let failed = results.iter().filter(|(_, result)| result.is_err()).count();
    (results, failed)
}

/// Returns the names of the machines whose action succeeded.
fn succeeded<'a, T>(results: &[(&'a Machine, Result<T>)]) -> Vec<&'a str> {
    let well = results.iter().filter(|(_, result)| result.is_ok());
    well.map(|(machine, _)| machine.host.name.as_str()).collect()
}

/// Describes what was copied to a machine, and the state of its daemons.
pub(super) fn describe_installation(
    machine: &Machine,
    (copied, statuses): &(&str, Vec<DaemonStatus>),
) -> String {
    format!("{copied}; {}", describe_daemons(machine, statuses))
}

pub(super) fn exit_code_for(failed: usize) -> ExitCode {
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Describes the state of the daemons of a machine, with advice.
pub(super) fn describe_daemons(machine: &Machine, statuses: &[DaemonStatus]) -> String {
    let one = |one: &DaemonStatus| {
        let about = match (one.pid, &one.addr) {
            (Some(pid), Some(addr)) => format!(" (pid {pid}, {addr})"),
            (Some(pid), None) => format!(" (pid {pid})"),
            _ => String::new(),
        };
        let usual =
            |reported: &&String| one.is_healthy() && ["up", "live", "follower"].contains(&reported.as_str());
        let reported =
            one.reported.as_ref().filter(|reported| !usual(reported)).map(|reported| format!(", {reported}"));
        format!("{} {}{about}{}", one.daemon, one.state, reported.unwrap_or_default())
    };
    let all = statuses.iter().map(one).collect::<Vec<_>>().join(", ");
    let name = &machine.host.name;
    if statuses.iter().any(|one| one.outdated) {
        return format!(
            "{all}; they run with older settings or programs: `mrctl cluster restart {name}` updates them"
        );
    }
    if statuses.iter().any(|one| one.reported.as_deref() == Some("drained")) {
        return format!("{all}; it gets no work or blocks until `mrctl drain {name} --cancel`");
    }
    all
}

/// Copies missing files and starts the daemons that are not running.
pub(super) fn install_and_start(
    programs: Option<&Programs>,
    package: &Package,
    machine: &Machine,
) -> Result<(&'static str, Vec<DaemonStatus>)> {
    let copied = machine.install(programs, package)?;
    Ok((copied, machine.start(&machine.host.role.daemons())?))
}

pub(super) fn stop_all(machine: &Machine) -> Result<Vec<&'static str>> {
    let mut stopped = Vec::new();
    for daemon in machine.host.role.daemons().into_iter().rev() {
        if machine.stop(daemon)? {
            stopped.push(daemon);
        }
    }
    Ok(stopped)
}

/// Copy programs and settings to all machines and start the daemons
///
/// The command can be repeated: files that are up to date are not copied again, and running daemons
/// are not touched. Data folders are created at the first start of a daemon. Later, a daemon whose
/// data folders are all empty is not started, because that means an unmounted or lost disk; see
/// --format.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl cluster up --cluster mycluster
  mrctl cluster up --cluster mycluster --shell 'oarsh {host}' \\
      --remote-dir /tmp/fermata
  mrctl cluster up --cluster mycluster --format n3     n3 has new, empty disks
  mrctl --config mycluster/fermata.toml fs report")]
pub(crate) struct Up {
    #[command(flatten)]
    reach: Reach,
    /// Start daemons of this machine whose data folders are all empty; may be repeated
    #[arg(long, value_name = "HOST")]
    format: Vec<String>,
}

pub(crate) async fn up(args: &Up) -> Result<ExitCode> {
    let mut fleet = Fleet::of(&args.reach)?;
    for name in &args.format {
        fleet.find(name)?;
    }
    fleet.declare_new(&args.format)?;
    fleet.remember()?;
    let (programs, package) = (fleet.programs()?, fleet.package()?);
    let begin = |machine: &Machine| install_and_start(programs.as_ref(), &package, machine);
    let start = |machines: Vec<&Machine>| -> Result<usize> {
        let (_, failed) = on_each(machines.iter().copied(), begin, describe_installation);
        fleet.record_formatted(machines)?;
        Ok(failed)
    };
    let again = "fix the cause and run the same command again";
    let masters = fleet.with_role(MachineRole::Master);
    let mut failed = 0;
    for stage in fleet.masters_to_start() {
        let is_founder = stage.len() == 1 && masters.len() > 1;
        failed += start(stage)?;
        // Without the one that forms the group, the others wait for it. With a majority, clients are
        // served.
        if failed > 0 && (is_founder || 2 * failed >= masters.len()) {
            eprintln!("mrctl: {failed} of the machines failed; its nodes were not started: {again}");
            return Ok(ExitCode::FAILURE);
        }
    }
    if masters.iter().any(|machine| !machine.members.is_empty()) {
        rolling::await_votes(&fleet.target()).await?;
    }
    failed += start(fleet.with_role(MachineRole::Node))?;
    if failed > 0 {
        eprintln!("mrctl: {failed} of the machines failed: {again}");
        return Ok(ExitCode::FAILURE);
    }
    let config = args.reach.cluster.join("fermata.toml");
    output::line(format!("use it with: mrctl --config {} nodes", output::shell(&config)))?;
    Ok(ExitCode::SUCCESS)
}

/// Stop all daemons; the data stays
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  mrctl cluster down --cluster mycluster")]
pub(crate) struct Down {
    #[command(flatten)]
    reach: Reach,
    /// Delete the cluster's folders on every machine, including all files in the cluster
    #[arg(long)]
    purge: bool,
}

pub(crate) fn down(args: &Down) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let mut failed = 0;
    for role in [MachineRole::Node, MachineRole::Master] {
        let end = |machine: &Machine| {
            let stopped = stop_all(machine)?;
            if args.purge {
                machine.purge()?;
            }
            Ok(stopped)
        };
        let rest = if args.purge { "; deleted its data" } else { "" };
        let text = |_: &Machine, stopped: &Vec<&str>| match stopped[..] {
            [] => format!("no daemon was running{rest}"),
            _ => format!("stopped {}{rest}", stopped.join(" and ")),
        };
        let (results, not) = on_each(fleet.with_role(role), end, text);
        failed += not;
        if args.purge {
            fleet.forget_formatted(&succeeded(&results))?;
        }
    }
    Ok(exit_code_for(failed))
}

/// Stop and start the daemons of a machine, or of all masters, with the current settings
///
/// Without a machine, the masters are restarted one after the other: those that lead come last, and
/// another one leads before they stop, so that no request fails. The next one is restarted when all
/// vote and lack nothing. Refused while a master is down. Nodes are not restarted.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl cluster restart --cluster mycluster      all masters\n  mrctl cluster restart n2 --cluster mycluster"
)]
pub(crate) struct Restart {
    /// Name of the machine [default: all masters]
    node: Option<String>,
    #[command(flatten)]
    reach: Reach,
}

fn restart_machine(machine: &Machine) -> Result<Vec<DaemonStatus>> {
    stop_all(machine)?;
    machine.start(&machine.host.role.daemons())
}

pub(crate) async fn restart(args: &Restart) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let package = fleet.package()?;
    // Only `upgrade` replaces programs. The settings are copied in any case.
    let renewal = Renewal { programs: None, package: &package, keeps_stopped: false };
    let Some(node) = &args.node else { return restart_masters(&fleet, &renewal).await };
    let machine = fleet.find(node)?;
    if machine.host.role == MachineRole::Node {
        // A node waits for its masters when it starts. Explain why that takes long.
        for (master, why) in MasterReports::query(&fleet.target()).await.unreachable() {
            eprintln!("mrctl: the {master} does not answer ({why}): {node} will serve when it is up");
        }
    }
    Ok(exit_code_for(renewal.restart(machine).1))
}

/// What is installed on machines before their daemons are restarted.
struct Renewal<'a> {
    programs: Option<&'a Programs>,
    package: &'a Package,
    /// Whether a machine that was stopped stays stopped.
    keeps_stopped: bool,
}

impl Renewal<'_> {
    /// Restarts the daemons of a machine. Returns whether they run then, and the number of failures.
    fn restart(&self, machine: &Machine) -> (bool, usize) {
        let renew = |machine: &Machine| {
            let before = machine.daemon_statuses()?;
            let copied = machine.install(self.programs, self.package)?;
            let was_stopped = before.iter().all(|one| one.state == "absent");
            Ok((copied, if was_stopped && self.keeps_stopped { before } else { restart_machine(machine)? }))
        };
        let (results, failed) = on_each([machine], renew, describe_installation);
        let runs = |(_, result): &(_, Result<(&str, Vec<DaemonStatus>)>)| {
            result.as_ref().is_ok_and(|(_, statuses)| statuses.iter().any(|one| one.state == "running"))
        };
        (results.iter().all(runs), failed)
    }
}

/// Restarts the masters: several one after the other, so that no request fails.
async fn restart_masters(fleet: &Fleet, renewal: &Renewal<'_>) -> Result<ExitCode> {
    let masters = fleet.with_role(MachineRole::Master);
    if let [only] = masters[..]
        && only.members.is_empty()
    {
        return Ok(exit_code_for(renewal.restart(only).1));
    }
    let unit = |machine: &&Machine| {
        let role = |daemon| if daemon == "namenode" { Role::NameNode } else { Role::JobTracker };
        let members = machine.members.iter().map(|member| (role(member.daemon), member.address.clone()));
        rolling::Unit { name: machine.host.name.clone(), masters: members.collect() }
    };
    let units = masters.iter().map(unit).collect();
    rolling::restart(&fleet.target(), units, async |unit| match renewal.restart(fleet.find(&unit.name)?).1 {
        0 => Ok(()),
        _ => bail!("the masters that follow are not restarted: fix the cause and run the command again"),
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

/// Show the end of the logs of a machine
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  mrctl cluster logs n2 --cluster mycluster --daemon datanode")]
pub(crate) struct Logs {
    /// Name of the machine
    node: String,
    #[command(flatten)]
    reach: Reach,
    /// Only the log of this daemon
    #[arg(long, value_name = "NAME")]
    daemon: Option<String>,
    /// Number of lines of each log
    #[arg(long, value_name = "N", default_value_t = 20)]
    lines: u32,
}

pub(crate) fn logs(args: &Logs) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let machine = fleet.find(&args.node)?;
    let daemons = machine.host.role.daemons();
    if let Some(wanted) = &args.daemon
        && !daemons.contains(&wanted.as_str())
    {
        bail!(Usage(format!("{} has no {wanted}; it has: {}", args.node, daemons.join(" and "))));
    }
    for daemon in
        daemons.into_iter().filter(|daemon| args.daemon.as_deref().is_none_or(|wanted| wanted == *daemon))
    {
        output::line(format!("== {daemon} on {}", args.node))?;
        output::line(machine.log(daemon, args.lines)?.trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Install the programs in the folder of this mrctl, and the current settings, on all machines, one
/// after another
///
/// The masters are first, as with `restart`, then the nodes. Namenode and jobtracker must report a node
/// as live before the next node is restarted. Jobs continue.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  mrctl cluster upgrade --cluster mycluster")]
pub(crate) struct Upgrade {
    #[command(flatten)]
    reach: Reach,
}

pub(crate) async fn upgrade(args: &Upgrade) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let (programs, package) = (fleet.programs()?, fleet.package()?);
    let renewal = Renewal { programs: programs.as_ref(), package: &package, keeps_stopped: true };
    if restart_masters(&fleet, &renewal).await? != ExitCode::SUCCESS {
        return Ok(upgrade_stops());
    }
    for machine in fleet.with_role(MachineRole::Node) {
        let (runs, failed) = renewal.restart(machine);
        if failed > 0 {
            return Ok(upgrade_stops());
        }
        if runs {
            wait_until_live(&fleet.target(), &machine.host.name).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn upgrade_stops() -> ExitCode {
    eprintln!("mrctl: the upgrade stops here: fix the cause and run it again");
    ExitCode::FAILURE
}

/// Waits until both masters report the node as live.
async fn wait_until_live(target: &Target, node: &str) -> Result<()> {
    let deadline = Instant::now() + RESTART_TIMEOUT;
    loop {
        let (files, trackers) = (target.connect().await, target.jobtracker().await);
        if let (Ok(client), Ok(jobtracker)) = (files, trackers)
            && let (Ok(report), Ok(trackers)) = (client.report().await, jobtracker.trackers().await)
        {
            let stores = report
                .nodes
                .iter()
                .any(|one| one.address.node == node && one.state == dfs_client::NodeState::Live);
            let jobs = trackers.iter().any(|one| one.name == node && one.state == "live");
            if stores && jobs {
                return Ok(());
            }
        }
        if Instant::now() > deadline {
            bail!(
                "{node} is running but not live for both masters after {} s: see `mrctl cluster logs {node}`",
                RESTART_TIMEOUT.as_secs()
            );
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
