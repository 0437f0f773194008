//! `mrctl chaos`: faults by signal, on the daemons that `mrctl up` started here and on nothing else.

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
}

/// Which daemon.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of a node, or `namenode`
    node: String,
    /// Which of the node's daemons
    #[arg(long, value_enum)]
    daemon: Option<Kind>,
    /// Folder of the cluster [default: the nearest .fermata upwards]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) async fn run(command: ChaosCommand) -> Result<ExitCode> {
    let (args, signal, done) = match command {
        ChaosCommand::Kill(args) => (args, Signal::KILL, "killed"),
        ChaosCommand::Stop(args) => (args, Signal::STOP, "froze"),
        ChaosCommand::Cont(args) => (args, Signal::CONT, "continued"),
        ChaosCommand::Restart(args) => return again(&args).await,
    };
    let folder = state_folder(args.dir.as_deref())?;
    let mut state = ClusterState::require(&folder)?;
    let daemon = state.find(&args.node, args.daemon)?;
    if !daemon.signal(signal)? {
        let name = &daemon.name;
        let dir = dir_flag(args.dir.as_deref());
        bail!("{name} is not running: start it with `mrctl chaos restart {name}{dir}`");
    }
    if signal == Signal::KILL {
        // Its port and its lock are free only when it is really gone.
        end(&[(&daemon.identity, &daemon.args)], Duration::from_secs(10))?;
    }
    output::line(format!("{done} {} (pid {})", daemon.name, daemon.identity.pid))?;
    if signal != Signal::CONT && daemon.kind == Kind::Datanode {
        let limit = Config::load(Some(&folder.join("fermata.toml")))?.namenode.dead_after;
        output::line(format!(
            "the namenode calls it dead after {limit} of silence, then its blocks are copied"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn again(args: &Args) -> Result<ExitCode> {
    let folder = state_folder(args.dir.as_deref())?;
    ClusterState::require(&folder)?;
    let _held = lock(&folder)?;
    let mut state = ClusterState::require(&folder)?;
    let daemon = state.find(&args.node, args.daemon)?;
    end(&[(&daemon.identity, &daemon.args)], Duration::from_secs(10))?;
    let (name, kind) = (daemon.name.clone(), daemon.kind);
    restart(&folder, &mut state, &name, kind).await?;
    let daemon = state.find(&name, Some(kind))?;
    output::line(format!("started {name} (pid {}) at {}", daemon.identity.pid, daemon.addr))?;
    Ok(ExitCode::SUCCESS)
}
