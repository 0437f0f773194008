//! `mrctl chaos`: injects faults into a local cluster or a cluster on several machines: one at a
//! time (`target`), from a scenario file (`run`), or at random (`soak`).

mod args;
mod fault_action;
mod fault_log;
mod local;
mod machines;
mod node;
mod observer;
mod recovery;
mod run;
mod scenario_run;
mod soak;
mod target;

use anyhow::Result;
use clusters::{
    local::Kind,
    locate::state_folder,
    remote::{Fleet, Reach},
};
use node::FaultSignal;
use std::{path::PathBuf, process::ExitCode};
use target::ChaosTarget;
use view::output;

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Examples:\n  \
    mrctl chaos kill node2\n  \
    mrctl chaos restart node2\n  \
    mrctl chaos stop namenode        freeze it\n  \
    mrctl chaos cont namenode        continue it\n  \
    mrctl chaos heal                 restore all network links\n  \
    mrctl chaos corrupt blk_12       flip a byte of one replica\n  \
    mrctl chaos slow node2           run its daemons part of the time\n  \
    mrctl chaos fill-disk node2      leave no space for its data\n  \
    mrctl chaos run faults.toml      run a scenario and report its effects\n  \
    mrctl chaos soak --minutes 5     random faults on a cluster of its own")]
pub enum ChaosCommand {
    /// Kill a daemon (SIGKILL)
    Kill(Args),
    /// Freeze a daemon (SIGSTOP)
    Stop(Args),
    /// Continue a frozen daemon (SIGCONT)
    Cont(Args),
    /// Start a daemon with the same arguments; if it is running, it is stopped first
    Restart(Args),
    Partition(args::Partition),
    Heal(args::Heal),
    Corrupt(args::Corrupt),
    Slow(args::Slow),
    FillDisk(args::FillDisk),
    Run(run::Args),
    Soak(soak::Args),
    Recovery(recovery::Args),
}

/// Flags that select the cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterFlags {
    /// Folder of the cluster [default: .fermata here or in the nearest parent folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Folder of a cluster on several machines, as created by `mrctl cluster init`
    #[arg(long, value_name = "DIR", conflicts_with = "dir")]
    cluster: Option<PathBuf>,
}

impl ClusterFlags {
    fn target(&self) -> Result<ChaosTarget> {
        match &self.cluster {
            Some(cluster) => Ok(ChaosTarget::Machines(Fleet::of(&Reach::of(cluster))?)),
            None => ChaosTarget::local(state_folder(self.dir.as_deref())?),
        }
    }
}

/// Flags that select the daemons.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of a node, or of a master as `mrctl status` shows it, such as `namenode`
    node: String,
    /// Daemons of the node [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    daemon: Vec<Kind>,
    #[command(flatten)]
    at: ClusterFlags,
}

/// Injects the fault, or the faults of a scenario.
pub async fn run(command: ChaosCommand) -> Result<ExitCode> {
    match command {
        ChaosCommand::Kill(args) => signal(&args, FaultSignal::Kill),
        ChaosCommand::Stop(args) => signal(&args, FaultSignal::Stop),
        ChaosCommand::Cont(args) => {
            for line in args.at.target()?.cont(&args.node, &args.daemon)? {
                output::line(line)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        ChaosCommand::Restart(args) => {
            for line in args.at.target()?.restart(&args.node, &args.daemon).await? {
                output::line(line)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        ChaosCommand::Partition(args) => args::partition(&args),
        ChaosCommand::Heal(args) => args::heal(&args),
        ChaosCommand::Corrupt(args) => args::corrupt(&args),
        ChaosCommand::Slow(args) => args::slow(&args).await,
        ChaosCommand::FillDisk(args) => args::fill_disk(&args),
        ChaosCommand::Run(args) => Box::pin(run::run(&args)).await,
        ChaosCommand::Soak(args) => soak::run(&args).await,
        ChaosCommand::Recovery(args) => recovery::run(&args),
    }
}

fn signal(args: &Args, sign: FaultSignal) -> Result<ExitCode> {
    let target = args.at.target()?;
    let lines = match sign {
        FaultSignal::Stop => target.stop(&args.node, &args.daemon)?,
        _ => target.signal(&args.node, &args.daemon, sign)?,
    };
    for line in lines {
        output::line(line)?;
    }
    let keeps_blocks = args.daemon.is_empty() || args.daemon.contains(&Kind::Datanode);
    if keeps_blocks && let Some(limit) = target.dead_after(&args.node)? {
        output::line(format!(
            "the NameNode declares it dead after {limit} without heartbeats and then copies its blocks"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
