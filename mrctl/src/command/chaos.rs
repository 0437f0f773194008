//! `mrctl chaos`: faults by signal, on the daemons that `mrctl up` started here, or on those of a cluster's machines, and on
//! nothing else.

use super::{chaos_local, chaos_machines, machines::Reach};
use crate::{
    cluster::{ClusterState, Kind, end, lock, restart},
    locate::{dir_flag, state_folder},
    output,
};
use anyhow::{Result, bail};
use daemon::config::Config;
use rustix::process::Signal;
use std::{path::PathBuf, process::ExitCode, time::Duration};

/// What to do to a daemon.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Examples:\n  \
    mrctl chaos kill node2\n  \
    mrctl chaos restart node2\n  \
    mrctl chaos stop namenode        freeze it; `cont` lets it go on")]
pub(crate) enum ChaosCommand {
    /// Kill it on the spot (SIGKILL)
    Kill(Args),
    /// Freeze it (SIGSTOP)
    Stop(Args),
    /// Let a frozen one go on (SIGCONT)
    Cont(Args),
    /// Start it again with the same arguments; one that runs is ended first
    Restart(Args),
    Partition(chaos_machines::Partition),
    Heal(chaos_machines::Heal),
    Corrupt(chaos_local::Corrupt),
    Slow(chaos_local::Slow),
    FillDisk(chaos_local::FillDisk),
}

/// Which daemon.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of a node, `namenode` or `jobtracker`
    node: String,
    /// Which of the node's daemons [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    daemon: Vec<Kind>,
    /// Folder of the cluster [default: the nearest .fermata upwards]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Folder of a cluster on several machines, as made by `mrctl cluster init`
    #[arg(long, value_name = "DIR", conflicts_with = "dir")]
    cluster: Option<PathBuf>,
}

impl Args {
    /// How to reach it, if it is on several machines.
    fn reach(&self) -> Option<Reach> {
        self.cluster.as_deref().map(Reach::of)
    }
}

pub(crate) async fn run(command: ChaosCommand) -> Result<ExitCode> {
    let (args, signal, done) = match command {
        ChaosCommand::Kill(args) => (args, Signal::KILL, "killed"),
        ChaosCommand::Stop(args) => (args, Signal::STOP, "froze"),
        ChaosCommand::Cont(args) => (args, Signal::CONT, "continued"),
        ChaosCommand::Restart(args) => return again(&args).await,
        ChaosCommand::Partition(args) => return chaos_machines::partition(&args),
        ChaosCommand::Heal(args) => return chaos_machines::heal(&args),
        ChaosCommand::Corrupt(args) => return chaos_local::corrupt(&args),
        ChaosCommand::Slow(args) => return chaos_local::slow(&args).await,
        ChaosCommand::FillDisk(args) => return chaos_local::fill_disk(&args),
    };
    if let Some(reach) = args.reach() {
        let name = if signal == Signal::KILL {
            "KILL"
        } else if signal == Signal::STOP {
            "STOP"
        } else {
            "CONT"
        };
        return chaos_machines::signal(&reach, &args.node, &args.daemon, name, done);
    }
    let folder = state_folder(args.dir.as_deref())?;
    let mut state = ClusterState::require(&folder)?;
    let mut hit = Vec::new();
    for kind in kinds(&mut state, &args)? {
        let daemon = state.find(&args.node, Some(kind))?;
        if !daemon.signal(signal)? {
            continue;
        }
        hit.push(kind);
        if signal == Signal::KILL {
            // Its port and its lock are free only when it is really gone.
            end(&[(&daemon.identity, &daemon.args)], Duration::from_secs(10))?;
        }
        output::line(format!("{done} {} (pid {})", daemon.title(), daemon.identity.pid))?;
    }
    if hit.is_empty() {
        let (name, dir) = (&args.node, dir_flag(args.dir.as_deref()));
        bail!("{name} is not running: start it with `mrctl chaos restart {name}{dir}`");
    }
    if signal != Signal::CONT && hit.contains(&Kind::Datanode) {
        let limit = Config::load(Some(&folder.join("fermata.toml")))?.namenode.dead_after;
        output::line(format!(
            "the namenode calls it dead after {limit} of silence, then its blocks are copied"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The kinds of daemon that are meant: those named, or all that the node has.
fn kinds(state: &mut ClusterState, args: &Args) -> Result<Vec<Kind>> {
    if !args.daemon.is_empty() {
        return Ok(args.daemon.clone());
    }
    state.find(&args.node, None)?;
    Ok(state.daemons.iter().filter(|daemon| daemon.name == args.node).map(|daemon| daemon.kind).collect())
}

async fn again(args: &Args) -> Result<ExitCode> {
    if let Some(reach) = args.reach() {
        return chaos_machines::restart(&reach, &args.node, &args.daemon);
    }
    let folder = state_folder(args.dir.as_deref())?;
    ClusterState::require(&folder)?;
    let _held = lock(&folder)?;
    let mut state = ClusterState::require(&folder)?;
    for kind in kinds(&mut state, args)? {
        let daemon = state.find(&args.node, Some(kind))?;
        end(&[(&daemon.identity, &daemon.args)], Duration::from_secs(10))?;
        let name = daemon.name.clone();
        restart(&folder, &mut state, &name, kind).await?;
        let daemon = state.find(&name, Some(kind))?;
        output::line(format!("started {} (pid {}) at {}", daemon.title(), daemon.identity.pid, daemon.addr))?;
    }
    Ok(ExitCode::SUCCESS)
}
