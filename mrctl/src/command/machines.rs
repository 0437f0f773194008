//! `mrctl cluster up` and what follows it: the daemons of a cluster on its machines.
//!
//! How to reach them is remembered in the cluster's folder (`launch.json`), so that it is said once. Every command may be
//! given again: what is done already is left as it is.

use crate::{
    locate::Target,
    output::{self, Usage},
    remote::{Hosts, Machine, Package, Part, Programs, Shell, Standing, on_all},
};
use anyhow::{Context, Result, bail};
use daemon::config::Config;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

/// Where a machine's folder is when nobody says otherwise.
const REMOTE_DIR: &str = "/var/tmp/fermata";
/// A node that was started again has this long to be counted on.
const BACK_WITHIN: Duration = Duration::from_secs(90);

/// Which cluster, and how its machines are reached.
#[derive(Debug, clap::Args)]
pub(crate) struct Reach {
    /// The cluster's folder, as made by `mrctl cluster init`
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) cluster: PathBuf,
    /// Which machine does what [default: the file hosts in the cluster's folder]
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Command that runs another on a machine, such as 'oarsh {host}' [default: ssh {host}, or as said before]
    #[arg(long, value_name = "COMMAND")]
    shell: Option<Shell>,
    /// Folder on each machine [default: /var/tmp/fermata, or as said before]
    #[arg(long, value_name = "DIR")]
    remote_dir: Option<String>,
    /// Folder with the programs on each machine: nothing is copied [default: copy those beside mrctl]
    #[arg(long, value_name = "DIR")]
    programs: Option<String>,
}

impl Reach {
    /// As was said when it was started.
    pub(crate) fn of(cluster: &Path) -> Self {
        Self { cluster: cluster.to_owned(), hosts: None, shell: None, remote_dir: None, programs: None }
    }
}

/// What is remembered of it.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Launch {
    hosts: Option<PathBuf>,
    shell: Option<String>,
    remote_dir: Option<String>,
    programs: Option<String>,
}

impl Launch {
    fn path(cluster: &Path) -> PathBuf {
        cluster.join("launch.json")
    }

    fn load(cluster: &Path) -> Result<Self> {
        let path = Self::path(cluster);
        match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| {
                Usage(format!("{}: {error}: delete it, and say how with flags", path.display())).into()
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }
}

/// A cluster of machines.
pub(crate) struct Fleet {
    pub(crate) machines: Vec<Machine>,
    hosts_file: PathBuf,
    pub(crate) cluster: PathBuf,
    launch: Launch,
}

impl Fleet {
    pub(crate) fn of(reach: &Reach) -> Result<Self> {
        let cluster = reach.cluster.clone();
        Package::of(&cluster)?;
        let before = Launch::load(&cluster)?;
        let said = |flag: &Option<String>, before: Option<String>| flag.clone().or(before);
        let launch = Launch {
            hosts: reach.hosts.as_ref().map(std::path::absolute).transpose()?.or(before.hosts),
            shell: said(&reach.shell.as_ref().map(ToString::to_string), before.shell),
            remote_dir: said(&reach.remote_dir, before.remote_dir),
            programs: said(&reach.programs, before.programs),
        };
        let shell = match &launch.shell {
            Some(text) => text.parse().map_err(|why| Usage(format!("shell {text:?}: {why}")))?,
            None => Shell::default(),
        };
        let dir = remote_path(launch.remote_dir.as_deref().unwrap_or(REMOTE_DIR))?;
        let bin = match &launch.programs {
            Some(folder) => remote_path(folder)?,
            None => format!("{dir}/bin"),
        };
        let hosts_file = launch.hosts.clone().unwrap_or_else(|| cluster.join("hosts"));
        let hosts = Hosts::load(&hosts_file)?;
        let ports = ports(&Config::load(Some(&cluster.join("fermata.toml")))?)?;
        // Machines that are one (namespaces of a test) must not share a folder.
        let machine = |host: crate::remote::Host| {
            let dir = dir.replace("{host}", &host.name);
            Machine { bin: bin.replace("{host}", &host.name), dir, host, shell: shell.clone(), ports }
        };
        let machines = hosts.all.into_iter().map(machine).collect();
        Ok(Self { machines, hosts_file, cluster, launch })
    }

    fn remember(&self) -> Result<()> {
        let path = Launch::path(&self.cluster);
        let text = serde_json::to_string_pretty(&self.launch)? + "\n";
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    pub(crate) fn find(&self, name: &str) -> Result<&Machine> {
        let names =
            || self.machines.iter().map(|machine| machine.host.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = self.machines.iter().find(|machine| machine.host.name == name);
        found.ok_or_else(|| Usage(format!("there is no machine {name}: {}", names())).into())
    }

    fn of_part(&self, part: Part) -> Vec<&Machine> {
        self.machines.iter().filter(|machine| machine.host.part == part).collect()
    }

    fn programs(&self) -> Result<Option<Programs>> {
        if self.launch.programs.is_some() { Ok(None) } else { Programs::own().map(Some) }
    }

    fn package(&self) -> Result<Package> {
        Package::of(&self.cluster)
    }

    /// This cluster, for commands that talk with it.
    fn target(&self) -> Target {
        Target::of_config(&self.cluster.join("fermata.toml"))
    }
}

/// A path that goes through a shell as it is.
fn remote_path(path: &str) -> Result<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/' | '{' | '}');
    let plain = path.replace("{host}", "x");
    if !path.starts_with('/')
        || !plain.chars().all(fits)
        || plain.contains(['{', '}'])
        || plain.contains("..")
    {
        bail!(Usage(format!(
            "{path:?} is not a folder for machines: an absolute path of letters, digits, . - _ (and {{host}})"
        )));
    }
    Ok(path.trim_end_matches('/').to_owned())
}

fn ports(config: &Config) -> Result<[u16; 2]> {
    let port = |addr: &str| -> Result<u16> {
        let port = addr.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        port.with_context(|| format!("{addr:?} in fermata.toml is not host:port"))
    };
    Ok([port(&config.datanode.listen)?, port(&config.tasktracker.listen)?])
}

/// Prints a line for each machine as it was, and counts those that failed.
fn tell<T>(results: Vec<(&Machine, Result<T>)>, words: impl Fn(&T) -> String) -> Result<usize> {
    let mut failed = 0;
    for (machine, result) in results {
        match result {
            Ok(done) => output::line(format!("{}: {}", machine.host.name, words(&done)))?,
            Err(error) => {
                failed += 1;
                eprintln!("mrctl: {}: {}", machine.host.name, output::chain(&error));
            }
        }
    }
    Ok(failed)
}

fn exit(failed: usize) -> ExitCode {
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn shown(standings: &[Standing]) -> String {
    let one = |one: &Standing| match (one.pid, &one.addr) {
        (Some(pid), Some(addr)) => format!("{} {} (pid {pid}, {addr})", one.daemon, one.state),
        (Some(pid), None) => format!("{} {} (pid {pid})", one.daemon, one.state),
        _ => format!("{} {}", one.daemon, one.state),
    };
    standings.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Copy programs and settings to every machine and start the daemons
///
/// Safe to run twice: what is there is not copied again, what runs is left alone.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl cluster up --cluster lab
  mrctl cluster up --cluster lab --shell 'oarsh {host}' --remote-dir /tmp/f
  mrctl --config lab/fermata.toml fs report")]
pub(crate) struct Up {
    #[command(flatten)]
    reach: Reach,
}

pub(crate) fn up(args: &Up) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    fleet.remember()?;
    let (programs, package) = (fleet.programs()?, fleet.package()?);
    for part in [Part::Master, Part::Node] {
        let results = on_all(fleet.of_part(part), |machine| {
            let copied = machine.install(programs.as_ref(), &package)?;
            let mut standings = Vec::new();
            for daemon in part.daemons() {
                standings.push(machine.start(daemon)?);
            }
            Ok((copied, standings))
        });
        let failed = tell(results, |(copied, standings)| format!("{copied}; {}", shown(standings)))?;
        if failed > 0 {
            let rest = if part == Part::Master { "; its nodes were not started" } else { "" };
            eprintln!("mrctl: {failed} of the machines failed{rest}: mend that and run the same again");
            return Ok(ExitCode::FAILURE);
        }
    }
    let config = args.reach.cluster.join("fermata.toml");
    output::line(format!("use it with: mrctl --config {} nodes", output::shell(&config)))?;
    Ok(ExitCode::SUCCESS)
}

/// Show which daemons run where
#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    #[command(flatten)]
    reach: Reach,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn status(args: &Status) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let results = on_all(&fleet.machines, Machine::look);
    let whole = |standings: &[Standing]| standings.iter().all(|one| one.state == "running");
    let well = results.iter().all(|(_, result)| result.as_ref().is_ok_and(|standings| whole(standings)));
    if args.json {
        let rows = results.iter().map(|(machine, result)| {
            let (daemons, error) = match result {
                Ok(standings) => (Some(standings), None),
                Err(error) => (None, Some(output::chain(error))),
            };
            let host = &machine.host;
            serde_json::json!({ "host": host.name, "addr": host.addr, "rack": host.rack, "daemons": daemons, "error": error })
        });
        output::json(&rows.collect::<Vec<_>>())?;
    } else {
        tell(results, |standings| shown(standings))?;
    }
    Ok(exit(usize::from(!well)))
}

/// Stop all daemons; data stays
#[derive(Debug, clap::Args)]
pub(crate) struct Down {
    #[command(flatten)]
    reach: Reach,
    /// Delete our folder on every machine, files in the cluster included
    #[arg(long)]
    purge: bool,
}

pub(crate) fn down(args: &Down) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let mut failed = 0;
    for part in [Part::Node, Part::Master] {
        let results = on_all(fleet.of_part(part), |machine| {
            let mut stopped = Vec::new();
            for daemon in part.daemons().into_iter().rev() {
                if machine.stop(daemon)? {
                    stopped.push(daemon);
                }
            }
            if args.purge {
                machine.purge()?;
            }
            Ok(stopped)
        });
        let end = if args.purge { "; its folder is deleted" } else { "" };
        failed += tell(results, |stopped| match stopped[..] {
            [] => format!("nothing ran{end}"),
            _ => format!("stopped {}{end}", stopped.join(" and ")),
        })?;
    }
    Ok(exit(failed))
}

/// Stop and start the daemons of a machine
#[derive(Debug, clap::Args)]
pub(crate) struct Restart {
    /// Which machine
    node: String,
    #[command(flatten)]
    reach: Reach,
}

fn again(machine: &Machine) -> Result<Vec<Standing>> {
    let daemons = machine.host.part.daemons();
    for daemon in daemons.into_iter().rev() {
        machine.stop(daemon)?;
    }
    daemons.into_iter().map(|daemon| machine.start(daemon)).collect()
}

pub(crate) fn restart(args: &Restart) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let results = on_all([fleet.find(&args.node)?], again);
    Ok(exit(tell(results, |standings| shown(standings))?))
}

/// Show the end of a machine's logs
#[derive(Debug, clap::Args)]
pub(crate) struct Logs {
    /// Which machine
    node: String,
    #[command(flatten)]
    reach: Reach,
    /// Of this daemon only
    #[arg(long, value_name = "NAME")]
    daemon: Option<String>,
    /// How many lines of each
    #[arg(long, value_name = "N", default_value_t = 20)]
    lines: u32,
}

pub(crate) fn logs(args: &Logs) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let machine = fleet.find(&args.node)?;
    let daemons = machine.host.part.daemons();
    if let Some(wanted) = &args.daemon
        && !daemons.contains(&wanted.as_str())
    {
        bail!(Usage(format!("{} has no {wanted}: {}", args.node, daemons.join(" and "))));
    }
    for daemon in
        daemons.into_iter().filter(|daemon| args.daemon.as_deref().is_none_or(|wanted| wanted == *daemon))
    {
        output::line(format!("== {daemon} on {}", args.node))?;
        output::line(machine.log(daemon, args.lines)?.trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Add a machine to the hosts file and start its daemons
#[derive(Debug, clap::Args)]
pub(crate) struct Add {
    /// Its name
    node: String,
    /// The rack it stands in
    #[arg(long, value_name = "NAME", default_value = "default")]
    rack: String,
    /// Where others reach it [default: its name]
    #[arg(long, value_name = "ADDRESS")]
    addr: Option<String>,
    #[command(flatten)]
    reach: Reach,
}

pub(crate) fn add(args: &Add) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    if fleet.machines.iter().all(|machine| machine.host.name != args.node) {
        let addr = args.addr.clone().unwrap_or_else(|| args.node.clone());
        let host =
            crate::remote::Host { name: args.node.clone(), part: Part::Node, rack: args.rack.clone(), addr };
        let before = fs::read_to_string(&fleet.hosts_file)?;
        let gap = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
        let after = format!("{before}{gap}{}", host.line());
        for word in [&args.node, &args.rack, &host.addr] {
            crate::remote::check_host(word).map_err(Usage)?;
        }
        fs::write(&fleet.hosts_file, after)
            .with_context(|| format!("cannot write {}", fleet.hosts_file.display()))?;
    }
    let fleet = Fleet::of(&args.reach)?;
    let (programs, package) = (fleet.programs()?, fleet.package()?);
    let results = on_all([fleet.find(&args.node)?], |machine| {
        let copied = machine.install(programs.as_ref(), &package)?;
        let daemons = machine.host.part.daemons();
        let standings: Vec<_> =
            daemons.into_iter().map(|daemon| machine.start(daemon)).collect::<Result<_>>()?;
        Ok((copied, standings))
    });
    Ok(exit(tell(results, |(copied, standings)| format!("{copied}; {}", shown(standings)))?))
}

/// Bring every machine to the programs beside this mrctl, one after another
///
/// The master first, then node by node; the next one's turn comes when the last is counted on again. Jobs go on.
#[derive(Debug, clap::Args)]
pub(crate) struct Upgrade {
    #[command(flatten)]
    reach: Reach,
}

pub(crate) async fn upgrade(args: &Upgrade) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let (programs, package) = (fleet.programs()?, fleet.package()?);
    let masters = fleet.of_part(Part::Master);
    for machine in masters.iter().chain(&fleet.of_part(Part::Node)) {
        let results = on_all([*machine], |machine| {
            let before = machine.look()?;
            let copied = machine.install(programs.as_ref(), &package)?;
            // One that somebody has stopped, or drained, stays so.
            let stopped = before.iter().all(|one| one.state == "absent");
            Ok((copied, if stopped { before } else { again(machine)? }))
        });
        let runs = |result: &Result<(&str, Vec<Standing>)>| {
            result.as_ref().is_ok_and(|(_, standings)| standings.iter().any(|one| one.state == "running"))
        };
        let counted_on = results.iter().all(|(_, result)| runs(result));
        if tell(results, |(copied, standings)| format!("{copied}; {}", shown(standings)))? > 0 {
            eprintln!("mrctl: the upgrade stops here: mend that and run it again");
            return Ok(ExitCode::FAILURE);
        }
        if machine.host.part == Part::Node && counted_on {
            back(&fleet.target(), &machine.host.name).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until both masters count on a node.
async fn back(target: &Target, node: &str) -> Result<()> {
    let deadline = Instant::now() + BACK_WITHIN;
    loop {
        let (files, trackers) = (target.connect().await, target.jobtracker().await);
        if let (Ok(client), Ok(jobtracker)) = (files, trackers)
            && let (Ok(report), Ok(trackers)) = (client.report().await, jobtracker.trackers().await)
        {
            let stores = report
                .nodes
                .iter()
                .any(|one| one.address.node == node && one.state == dfs::client::NodeState::Live);
            let works = trackers.iter().any(|one| one.name == node && one.state == "live");
            if stores && works {
                return Ok(());
            }
        }
        if Instant::now() > deadline {
            bail!(
                "{node} runs but is not counted on after {} s: see `mrctl cluster logs {node}`",
                BACK_WITHIN.as_secs()
            );
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Empty a machine, and stop its daemons
///
/// As `mrctl drain`; what it kept is elsewhere before it stops.
#[derive(Debug, clap::Args)]
pub(crate) struct Drain {
    #[command(flatten)]
    drain: super::drain::Args,
    #[command(flatten)]
    reach: Reach,
}

pub(crate) async fn drain(args: Drain) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let (name, cancel) = (args.drain.node.clone(), args.drain.cancel);
    let machine = fleet.find(&name)?;
    let drained = super::drain::run(args.drain, &fleet.target()).await?;
    if cancel || drained != ExitCode::SUCCESS {
        return Ok(drained);
    }
    let results = on_all([machine], |machine| {
        machine.host.part.daemons().into_iter().rev().try_for_each(|daemon| machine.stop(daemon).map(drop))
    });
    Ok(exit(tell(results, |()| "stopped".to_owned())?))
}
