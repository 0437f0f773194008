//! Injects faults on the machines of a cluster that `mrctl cluster up` started: signals to daemons,
//! damaged and full disks, network partitions.
//!
//! A partition sets a wrong hardware (MAC) address for the other machine in the neighbour table.
//! Packets are then dropped silently, as in a broken network, instead of being refused. This needs
//! root on the machine, both machines in one network, and no firewall.

use super::node::{Damage, FILL_BYTES_MAX, FILL_FILE, FaultSignal, ResourceUsage, too_much_space_message};
use anyhow::{Context, Result, bail};
use clusters::{
    local::Kind,
    remote::{DaemonStatus, Fleet, Machine, MachineRole, on_all},
};
use daemon::Bytes;
use std::time::Duration;
use view::output::Usage;

/// A hardware address that no machine has.
const UNUSED_MAC: &str = "02:00:00:00:00:01";

/// Returns the machine of a node, and those daemons of the machine that `kinds` selects.
fn find_daemons<'a>(
    fleet: &'a Fleet,
    node: &str,
    kinds: &[Kind],
) -> Result<(&'a Machine, Vec<&'static str>)> {
    let of_master = ["namenode", "jobtracker"].into_iter().find(|name| *name == node);
    let (machine, all) = if let (Some(daemon), Some(machine)) = (of_master, master(fleet)) {
        (machine, vec![daemon])
    } else {
        let machine = fleet.find(node)?;
        (machine, machine.host.role.daemons().to_vec())
    };
    let wanted: Vec<_> = all
        .iter()
        .copied()
        .filter(|daemon| kinds.is_empty() || kinds.iter().any(|kind| kind.program() == *daemon))
        .collect();
    if wanted.is_empty() {
        bail!(Usage(format!("{node} has no such daemon; it has: {}", all.join(" and "))));
    }
    Ok((machine, wanted))
}

fn master(fleet: &Fleet) -> Option<&Machine> {
    fleet.machines.iter().find(|machine| machine.host.role == MachineRole::Master)
}

/// Returns the machine with this name. The name may also be that of a master daemon.
fn machine_of_link<'a>(fleet: &'a Fleet, name: &str) -> Result<&'a Machine> {
    match master(fleet) {
        Some(machine) if matches!(name, "namenode" | "jobtracker" | "master") => Ok(machine),
        _ => fleet.find(name),
    }
}

pub(super) fn resource_usage(fleet: &Fleet) -> Result<Vec<ResourceUsage>> {
    let script = |machine: &Machine| {
        let daemons = machine.host.role.daemons().join(" ");
        machine.script(&format!(
            "for x in {daemons}; do alive $x || continue
set -- /proc/$p/fd/*
echo $x $(sed -n 's/^VmRSS:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/$p/status) $# $(cat /proc/$p/task/*/children | wc -w)
done
"
        ))
    };
    let mut all = Vec::new();
    for (machine, output) in on_all(&fleet.machines, script, |_, _| {}) {
        let output = output.with_context(|| format!("cannot inspect {}", machine.host.name))?;
        for line in output.lines() {
            let text: Vec<&str> = line.split_whitespace().collect();
            let [program, kib, files, tasks] = text[..] else { continue };
            let number = |word: &str| word.parse::<u64>().unwrap_or(0);
            all.push(ResourceUsage {
                node: machine.host.name.clone(),
                program: program.to_owned(),
                bytes: number(kib) << 10,
                files: number(files),
                tasks: number(tasks) as u32,
            });
        }
    }
    Ok(all)
}

pub(super) fn job_files(fleet: &Fleet) -> Result<Vec<String>> {
    let nodes = fleet.machines.iter().filter(|machine| machine.host.role == MachineRole::Node);
    let find = |machine: &Machine| {
        let folders = machine.data.of_daemon("tasktracker").iter().map(|dir| format!("{dir}/jobs"));
        let folders = folders.collect::<Vec<_>>().join(" ");
        machine.script(&format!("find {folders} -mindepth 1 -maxdepth 1 2>/dev/null; true\n"))
    };
    let mut all = Vec::new();
    for (_, output) in on_all(nodes, find, |_, _| {}) {
        all.extend(output?.lines().map(str::to_owned));
    }
    Ok(all)
}

/// Sends a signal to daemons of a machine. Returns a line for each daemon that it had an effect on.
pub(super) fn signal(fleet: &Fleet, node: &str, kinds: &[Kind], sign: FaultSignal) -> Result<Vec<String>> {
    let (machine, daemons) = find_daemons(fleet, node, kinds)?;
    let name = match sign {
        FaultSignal::Kill => "KILL",
        FaultSignal::Stop => "STOP",
        FaultSignal::Cont => "CONT",
    };
    let before = if sign == FaultSignal::Kill { Vec::new() } else { machine.daemon_statuses()? };
    let was_frozen =
        |daemon: &str| before.iter().any(|one: &DaemonStatus| one.daemon == daemon && one.state == "frozen");
    let (mut lines, mut is_running) = (Vec::new(), false);
    for daemon in &daemons {
        let Some(pid) = machine.signal(daemon, name)? else { continue };
        is_running = true;
        if sign.has_effect(was_frozen(daemon)) {
            lines.push(format!("{} {daemon} of {} (pid {pid})", sign.past_participle(), machine.host.name));
        }
    }
    if !is_running {
        let (all, host) = (daemons.join(" and "), &machine.host.name);
        bail!("{all} on {host} not running: start with `mrctl chaos restart {node}` or `mrctl cluster up`");
    }
    Ok(lines)
}

/// Stops daemons of a machine and starts them again.
pub(super) fn restart(fleet: &Fleet, node: &str, kinds: &[Kind]) -> Result<Vec<String>> {
    let (machine, daemons) = find_daemons(fleet, node, kinds)?;
    for daemon in daemons.iter().rev() {
        machine.stop(daemon)?;
    }
    let started = |one: &DaemonStatus| {
        format!("started {} of {} (pid {})", one.daemon, machine.host.name, one.pid.unwrap_or(0))
    };
    Ok(machine.start(&daemons)?.iter().map(started).collect())
}

/// Returns shell commands that set `a` to the address of a machine and `d` to the network interface
/// through which it is reached.
fn route_to(machine: &Machine) -> String {
    format!(
        "a=$(getent ahostsv4 {0} | head -n 1 | cut -d ' ' -f 1); a=${{a:-{0}}}
d=$(ip -o route get $a | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p'); [ -n \"$d\" ] || {{ echo \"no route to $a\" >&2; exit 1; }}
",
        machine.host.addr
    )
}

pub(super) fn partition(fleet: &Fleet, a: &str, b: &str, one_way: bool) -> Result<Vec<String>> {
    let (a, b) = (machine_of_link(fleet, a)?, machine_of_link(fleet, b)?);
    if a.host.name == b.host.name {
        bail!(Usage(format!("{} cannot be partitioned from itself: name two machines", a.host.name)));
    }
    let ways: &[(&Machine, &Machine)] = if one_way { &[(a, b)] } else { &[(a, b), (b, a)] };
    let mut lines = Vec::new();
    for (from, to) in ways {
        let cut = format!("{}ip neigh replace $a lladdr {UNUSED_MAC} dev $d nud permanent\n", route_to(to));
        from.shell.script(&from.host.name, &cut)?;
        lines.push(format!("{} no longer receives packets from {}", to.host.name, from.host.name));
    }
    Ok(lines)
}

pub(super) fn heal(fleet: &Fleet, node: Option<&str>) -> Result<Vec<String>> {
    let only = node.map(|node| machine_of_link(fleet, node)).transpose()?;
    let concerned = |machine: &&Machine| only.is_none_or(|only| only.host.name == machine.host.name);
    let mut lines = Vec::new();
    for from in &fleet.machines {
        let mut script = String::new();
        for to in &fleet.machines {
            if to.host.name != from.host.name && (concerned(&from) || concerned(&to)) {
                let (way, name) = (route_to(to), &to.host.name);
                script += "( ";
                script += &way;
                script += &[
                    "ip neigh show $a | grep -qi ",
                    UNUSED_MAC,
                    " && ip neigh del $a dev $d && echo ",
                    name,
                    " )\n",
                ]
                .concat();
            }
        }
        for to in from.shell.script(&from.host.name, &format!("{script}true\n"))?.lines() {
            lines.push(format!("{to} receives packets from {} again", from.host.name));
        }
    }
    Ok(lines)
}

pub(super) fn corrupt(fleet: &Fleet, damage: &Damage) -> Result<String> {
    let nodes: Vec<&Machine> = match &damage.node {
        Some(node) => vec![fleet.find(node)?],
        None => fleet.machines.iter().filter(|machine| machine.host.role == MachineRole::Node).collect(),
    };
    let name = damage.block.as_deref().unwrap_or("blk_*");
    let inject = if damage.cut {
        "truncate -s $o $f && echo \"truncated ${f##*/} on $host to $o bytes: $f\""
    } else {
        "b=$(od -An -tu1 -j $o -N 1 $f | tr -d ' ')
printf \"\\\\$(printf %o $((255-b)))\" | dd of=$f bs=1 seek=$o conv=notrunc 2>/dev/null &&
echo \"flipped byte $o of ${f##*/} on $host: $f\""
    };
    for machine in nodes {
        let (host, random_number) = (&machine.host.name, damage.random_number % (1 << 31));
        let folders = machine.data.of_daemon("datanode").join(" ");
        let script = format!(
            "host={host}
all=$(find {folders} -path '*/current/*' -name '{name}' ! -name '*.*' 2>/dev/null | sort); [ -n \"$all\" ] || exit 0
n=$(echo \"$all\" | wc -l); f=$(echo \"$all\" | sed -n \"$(({random_number} % n + 1))p\")
o=$(($(stat -c %s $f) / 2))
{inject}
"
        );
        let output = machine.script(&script)?;
        if !output.is_empty() {
            return Ok(output.trim().to_owned());
        }
    }
    let block = damage.block.as_deref().unwrap_or("any block");
    let node = damage.node.as_deref().unwrap_or("any machine");
    bail!("cannot find {block} on {node}: `mrctl fs stat --blocks FILE` lists blocks and their nodes")
}

/// Daemons that are slowed down by a loop on their machine. When this is dropped, they run at full
/// speed again. Without that, the loop would continue after mrctl has ended.
struct SlowedDaemons(Machine, Vec<&'static str>);

impl Drop for SlowedDaemons {
    fn drop(&mut self) {
        let freed = "[ ! -e run/slow.pid ] || kill $(cat run/slow.pid) 2>/dev/null; rm -f run/slow.pid\n";
        let script =
            format!("{freed}for x in {}; do alive $x && kill -CONT $p; done; true\n", self.1.join(" "));
        if let Err(error) = self.0.script(&script) {
            eprintln!("mrctl: {} may still be slowed down: {error}", self.0.host.name);
        }
    }
}

/// Slows the daemons down until the time is over, or until the future is dropped.
pub(super) async fn slow(fleet: &Fleet, node: &str, share: f64, time: Duration) -> Result<()> {
    let (machine, daemons) = find_daemons(fleet, node, &[])?;
    let (runs, stands) = (0.1 * share, 0.1 * (1.0 - share));
    let script = format!(
        "each() {{ for x in {all}; do alive $x && kill -$1 $p; done; true; }}
echo $$ > run/slow.pid
trap 'each CONT' EXIT; trap exit HUP INT TERM
end=$(($(date +%s%3N) + {ms}))
while [ $(date +%s%3N) -lt $end ]; do each CONT; sleep {runs:.3}; each STOP; sleep {stands:.3}; done
",
        all = daemons.join(" "),
        ms = time.as_millis()
    );
    let (slowed_machine, _slowed) = (machine.clone(), SlowedDaemons(machine.clone(), daemons));
    tokio::task::spawn_blocking(move || slowed_machine.long_script(time, &script)).await??;
    Ok(())
}

pub(super) fn fill_disk(fleet: &Fleet, node: &str, leave: Bytes, force: bool) -> Result<String> {
    let (machine, _) = find_daemons(fleet, node, &[])?;
    let free = machine.script("df -B1 --output=avail data | tail -n 1\n")?;
    let free: u64 =
        free.trim().parse().with_context(|| format!("cannot determine the free space of {node}"))?;
    let gap = free.saturating_sub(leave.0);
    if gap > FILL_BYTES_MAX && !force {
        bail!("{}", too_much_space_message(gap, node));
    }
    machine.script(&format!(
        "rm -f data/{FILL_FILE}; [ {gap} -eq 0 ] || fallocate -l {gap} data/{FILL_FILE}\n"
    ))?;
    Ok(format!("filled {} of the disk of {node}", Bytes(gap)))
}

/// Removes the file that fills the disk. Returns false if there is none.
pub(super) fn clear_disk(fleet: &Fleet, node: &str) -> Result<bool> {
    let (machine, _) = find_daemons(fleet, node, &[])?;
    let output = machine
        .script(&format!("[ ! -e data/{FILL_FILE} ] || {{ rm data/{FILL_FILE} && echo removed; }}\n"))?;
    Ok(output.contains("removed"))
}
