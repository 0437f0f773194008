//! Faults on the machines of a cluster that `mrctl cluster up` started: signals to daemons, and cut links.
//!
//! A link is cut by teaching one machine a wrong hardware address of the other: what it sends is lost in silence, as on a
//! broken network, and not refused. That takes root there and both machines on one network, and no firewall.

use super::machines::{Fleet, Reach};
use crate::{
    cluster::Kind,
    output::{self, Usage},
    remote::{Machine, Part},
};
use anyhow::{Result, bail};
use std::process::ExitCode;

/// Nobody has this hardware address.
const NOWHERE: &str = "02:00:00:00:00:01";

/// Drop what one machine sends to another, in silence, until `heal` (clusters of `mrctl cluster` only)
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl chaos partition n1 n2 --cluster lab              neither hears the other
  mrctl chaos partition n1 m1 --one-way --cluster lab    m1 does not hear n1")]
pub(crate) struct Partition {
    /// A machine
    a: String,
    /// Another
    b: String,
    /// Only what the first sends to the second
    #[arg(long)]
    one_way: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Mend the links of a machine, or of all
#[derive(Debug, clap::Args)]
pub(crate) struct Heal {
    /// Which machine [default: all]
    node: Option<String>,
    #[command(flatten)]
    reach: Reach,
}

/// A machine and which of its daemons are meant.
fn find<'a>(fleet: &'a Fleet, node: &str, kinds: &[Kind]) -> Result<(&'a Machine, Vec<&'static str>)> {
    let master = || fleet.machines.iter().find(|machine| machine.host.part == Part::Master);
    let of_master = ["namenode", "jobtracker"].into_iter().find(|name| *name == node);
    let (machine, all) = if let (Some(daemon), Some(machine)) = (of_master, master()) {
        (machine, vec![daemon])
    } else {
        let machine = fleet.find(node)?;
        (machine, machine.host.part.daemons().to_vec())
    };
    let wanted: Vec<_> = all
        .iter()
        .copied()
        .filter(|daemon| kinds.is_empty() || kinds.iter().any(|kind| kind.program() == *daemon))
        .collect();
    if wanted.is_empty() {
        bail!(Usage(format!("{node} has no such daemon: {}", all.join(" and "))));
    }
    Ok((machine, wanted))
}

/// Sends a signal to daemons of a machine.
pub(crate) fn signal(
    reach: &Reach,
    node: &str,
    kinds: &[Kind],
    signal: &str,
    done: &str,
) -> Result<ExitCode> {
    let fleet = Fleet::of(reach)?;
    let (machine, daemons) = find(&fleet, node, kinds)?;
    for daemon in daemons {
        let pid = machine.signal(daemon, signal)?;
        output::line(format!("{done} {daemon} of {} (pid {pid})", machine.host.name))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends daemons of a machine and starts them again.
pub(crate) fn restart(reach: &Reach, node: &str, kinds: &[Kind]) -> Result<ExitCode> {
    let fleet = Fleet::of(reach)?;
    let (machine, daemons) = find(&fleet, node, kinds)?;
    for daemon in daemons {
        machine.stop(daemon)?;
        let pid = machine.start(daemon)?.pid.unwrap_or(0);
        output::line(format!("started {daemon} of {} (pid {pid})", machine.host.name))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// In a script: the address of a machine, and the interface that leads there.
fn way_to(machine: &Machine) -> String {
    format!(
        "a=$(getent ahostsv4 {0} | head -n 1 | cut -d ' ' -f 1); a=${{a:-{0}}}
d=$(ip -o route get $a | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p'); [ -n \"$d\" ] || {{ echo \"no way to $a\" >&2; exit 1; }}
",
        machine.host.addr
    )
}

pub(crate) fn partition(args: &Partition) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let (a, b) = (fleet.find(&args.a)?, fleet.find(&args.b)?);
    if args.a == args.b {
        bail!(Usage(format!("{} cannot be cut off from itself: name two machines", args.a)));
    }
    let ways: &[(&Machine, &Machine)] = if args.one_way { &[(a, b)] } else { &[(a, b), (b, a)] };
    for (from, to) in ways {
        let cut = format!("{}ip neigh replace $a lladdr {NOWHERE} dev $d nud permanent\n", way_to(to));
        from.shell.script(&from.host.name, &cut)?;
        output::line(format!("{} does not hear {} any more", to.host.name, from.host.name))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn heal(args: &Heal) -> Result<ExitCode> {
    let fleet = Fleet::of(&args.reach)?;
    let only = args.node.as_deref().map(|node| fleet.find(node)).transpose()?;
    let concerned = |machine: &&Machine| only.is_none_or(|only| only.host.name == machine.host.name);
    for from in &fleet.machines {
        let mut mend = String::new();
        for to in &fleet.machines {
            if to.host.name != from.host.name && (concerned(&from) || concerned(&to)) {
                let (way, name) = (way_to(to), &to.host.name);
                mend += "( ";
                mend += &way;
                mend += &[
                    "ip neigh show $a | grep -qi ",
                    NOWHERE,
                    " && ip neigh del $a dev $d && echo ",
                    name,
                    " )\n",
                ]
                .concat();
            }
        }
        for to in from.shell.script(&from.host.name, &format!("{mend}true\n"))?.lines() {
            output::line(format!("{to} hears {} again", from.host.name))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
