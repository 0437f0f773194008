//! `mrctl cluster up` and what follows it: the daemons of a cluster on its machines.
//!
//! Every command may be given again: what is done already is left as it is.

use crate::{
    locate::Target,
    output::{self, Usage},
    remote::{Fleet, Machine, Part, Reach, Standing, on_all},
};
use anyhow::{Context, Result, bail};
use std::{
    fs,
    process::ExitCode,
    time::{Duration, Instant},
};

/// A node that was started again has this long to be counted on.
const BACK_WITHIN: Duration = Duration::from_secs(90);

/// Does something on every machine at once, and prints a line for each when it is done there; what came of it, and how
/// many failed.
pub(super) fn on_each<'a, T: Send>(
    machines: impl IntoIterator<Item = &'a Machine>,
    act: impl Fn(&Machine) -> Result<T> + Sync,
    words: impl Fn(&T) -> String + Sync,
) -> (Vec<(&'a Machine, Result<T>)>, usize) {
    let results = on_all(machines, |machine| {
        let result = act(machine);
        let name = &machine.host.name;
        match &result {
            // Who does not read what it says does not stop what it does.
            Ok(done) => drop(output::line(format!("{name}: {}", words(done)))),
            Err(error) => eprintln!("mrctl: {name}: {}", output::chain(error)),
        }
        result
    });
    let failed = results.iter().filter(|(_, result)| result.is_err()).count();
    (results, failed)
}

/// What was copied, and how the daemons stand.
fn installed((copied, standings): &(&str, Vec<Standing>)) -> String {
    format!("{copied}; {}", shown(standings))
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
        let begin = |machine: &Machine| {
            let copied = machine.install(programs.as_ref(), &package)?;
            let mut standings = Vec::new();
            for daemon in part.daemons() {
                standings.push(machine.start(daemon)?);
            }
            Ok((copied, standings))
        };
        let (_, failed) = on_each(fleet.of_part(part), begin, installed);
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
    let results = if args.json {
        on_all(&fleet.machines, Machine::look)
    } else {
        on_each(&fleet.machines, Machine::look, |standings| shown(standings)).0
    };
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
    }
    Ok(exit(usize::from(!well)))
}

/// Stop all daemons; data stays
#[derive(Debug, clap::Args)]
pub(crate) struct Down {
    #[command(flatten)]
    reach: Reach,
    /// Delete what is ours on every machine, files in the cluster included
    #[arg(long)]
    purge: bool,
}

pub(crate) fn down(args: &Down) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let mut failed = 0;
    for part in [Part::Node, Part::Master] {
        let end = |machine: &Machine| {
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
        };
        let rest = if args.purge { "; what it kept is deleted" } else { "" };
        let words = |stopped: &Vec<&str>| match stopped[..] {
            [] => format!("nothing ran{rest}"),
            _ => format!("stopped {}{rest}", stopped.join(" and ")),
        };
        failed += on_each(fleet.of_part(part), end, words).1;
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
    Ok(exit(on_each([fleet.find(&args.node)?], again, |standings| shown(standings)).1))
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
    let begin = |machine: &Machine| {
        let copied = machine.install(programs.as_ref(), &package)?;
        let daemons = machine.host.part.daemons();
        let standings: Vec<_> =
            daemons.into_iter().map(|daemon| machine.start(daemon)).collect::<Result<_>>()?;
        Ok((copied, standings))
    };
    Ok(exit(on_each([fleet.find(&args.node)?], begin, installed).1))
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
        let renew = |machine: &Machine| {
            let before = machine.look()?;
            let copied = machine.install(programs.as_ref(), &package)?;
            // One that somebody has stopped, or drained, stays so.
            let stopped = before.iter().all(|one| one.state == "absent");
            Ok((copied, if stopped { before } else { again(machine)? }))
        };
        let (results, failed) = on_each([*machine], renew, installed);
        let runs = |result: &Result<(&str, Vec<Standing>)>| {
            result.as_ref().is_ok_and(|(_, standings)| standings.iter().any(|one| one.state == "running"))
        };
        let counted_on = results.iter().all(|(_, result)| runs(result));
        if failed > 0 {
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
    let end = |machine: &Machine| {
        machine.host.part.daemons().into_iter().rev().try_for_each(|daemon| machine.stop(daemon).map(drop))
    };
    Ok(exit(on_each([machine], end, |()| "stopped".to_owned()).1))
}
