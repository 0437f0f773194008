//! `mrctl cluster add`, `drain` and `remove`: add and remove machines. `add` changes the hosts file
//! before it starts daemons, and `remove` after it has stopped them, so that the file lists every
//! machine with a running daemon.

use super::machines::{describe_installation, exit_code_for, install_and_start, on_each, stop_all};
use crate::output::{self, Usage};
use anyhow::{Context, Result, bail};
use clusters::remote::{Fleet, Host, Machine, MachineRole, Reach, check_addr, check_host};
use daemon::files::{USUAL, replace};
use std::{fs, path::Path, process::ExitCode};

/// Add a machine to the hosts file and start its daemons
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  mrctl cluster add n7 --rack r2 --cluster mycluster")]
pub(crate) struct Add {
    /// Name of the machine
    node: String,
    /// Its rack
    #[arg(long, value_name = "NAME", default_value = "default")]
    rack: String,
    /// Address at which other machines reach it [default: its name]
    #[arg(long, value_name = "ADDRESS")]
    addr: Option<String>,
    #[command(flatten)]
    reach: Reach,
}

fn read(hosts: &Path) -> Result<String> {
    fs::read_to_string(hosts).with_context(|| format!("cannot read {}", hosts.display()))
}

fn write(hosts: &Path, text: &str) -> Result<()> {
    let written = replace(hosts, text.as_bytes(), USUAL, true);
    written.with_context(|| format!("cannot write {}", hosts.display()))
}

pub(crate) fn add(args: &Add) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    match fleet.machines.iter().find(|machine| machine.host.name == args.node) {
        Some(known) if known.host.role == MachineRole::Master => {
            bail!(Usage(format!("{} is a master: `mrctl cluster up` starts it", args.node)));
        }
        Some(_) => {}
        None => {
            let addr = args.addr.clone().unwrap_or_else(|| args.node.clone());
            for word in [&args.node, &args.rack] {
                check_host(word).map_err(Usage)?;
            }
            check_addr(&addr).map_err(Usage)?;
            let host =
                Host { name: args.node.clone(), role: MachineRole::Node, rack: args.rack.clone(), addr };
            let before = read(&fleet.hosts_file)?;
            let gap = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
            write(&fleet.hosts_file, &format!("{before}{gap}{}", host.line()))?;
        }
    }
    let mut fleet = Fleet::of(&args.reach)?;
    for machine in fleet.machines.iter_mut().filter(|machine| machine.host.name == args.node) {
        // The NameNode may remember a machine of this name that was removed, and that had blocks.
        machine.format = machine.formatted.is_empty();
    }
    let (programs, package) = (fleet.programs()?, fleet.package()?);
    let begin = |machine: &Machine| install_and_start(programs.as_ref(), &package, machine);
    let machine = fleet.find(&args.node)?;
    let (_, failed) = on_each([machine], begin, describe_installation);
    fleet.record_formatted([machine])?;
    Ok(exit_code_for(failed))
}

/// Drain a machine and stop its daemons
///
/// This does the same as `mrctl drain` and then stops the daemons. The machine stays in the hosts
/// file, so the next `mrctl cluster up` starts it again; `mrctl cluster remove` removes it
/// permanently.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  mrctl cluster drain n3 --cluster mycluster")]
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
    let text = |machine: &Machine, _: &Vec<&str>| {
        format!("stopped; `mrctl cluster remove {}` removes it permanently", machine.host.name)
    };
    Ok(exit_code_for(on_each([machine], stop_all, text).1))
}

/// Remove a machine from the hosts file
///
/// The command refuses to remove a machine whose daemons are running: drain it first, so that no
/// data is lost.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl cluster drain n5 --cluster mycluster
  mrctl cluster remove n5 --purge --cluster mycluster
  mrctl cluster remove n5 --force --cluster mycluster   its hardware has failed")]
pub(crate) struct Remove {
    /// Name of the machine
    node: String,
    /// Delete the cluster's folders on it
    #[arg(long)]
    purge: bool,
    /// Also remove a machine that is running (its daemons are stopped) or cannot be reached
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    reach: Reach,
}

pub(crate) fn remove(args: &Remove) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let (machine, name) = (fleet.find(&args.node)?, &args.node);
    if machine.host.role == MachineRole::Master {
        bail!(Usage(format!(
            "{name} is a master and cannot be removed; `mrctl cluster down` stops the cluster"
        )));
    }
    let end = || -> Result<()> {
        let runs = machine.daemon_statuses()?.iter().any(|one| one.pid.is_some());
        if runs && !args.force {
            bail!(
                "{name} is still running: drain it first with `mrctl cluster drain {name}`, or use --force"
            );
        }
        stop_all(machine)?;
        if args.purge { machine.purge() } else { Ok(()) }
    };
    match end() {
        Err(error) if args.force => eprintln!("mrctl: {name}: {}", output::chain(&error)),
        ended => ended?,
    }
    let text = read(&fleet.hosts_file)?;
    write(&fleet.hosts_file, &without_host(&text, name))?;
    fleet.forget_formatted(&[name.as_str()])?;
    let rest = if args.purge { "" } else { "; its data stays on it" };
    output::line(format!("{name}: removed from the cluster{rest}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the text of a hosts file without the line of this machine. All other lines stay
/// unchanged.
fn without_host(text: &str, name: &str) -> String {
    let is_it = |line: &str| line.split('#').next().unwrap_or("").split_whitespace().next() == Some(name);
    text.split_inclusive('\n').filter(|line| !is_it(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_a_host_keeps_other_lines() {
        let text = "# n2 is new\nm master\n n2   node rack=r1 # n2\nn22 node\nn3 node";
        assert_eq!(without_host(text, "n2"), "# n2 is new\nm master\nn22 node\nn3 node");
        assert_eq!(without_host(text, "n3"), "# n2 is new\nm master\n n2   node rack=r1 # n2\nn22 node\n");
    }
}
