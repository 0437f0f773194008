//! `mrctl chaos`: faults on the daemons that `mrctl up` started here, or on those of a cluster's machines, and on
//! nothing else. One at a time ([`site`]), from a scenario file ([`mod@run`]), or at random for as long as one likes ([`soak`]).

mod deed;
mod here;
mod ledger;
mod machines;
mod play;
mod recovery;
mod run;
mod sight;
mod site;
mod soak;
mod verbs;

use crate::{
    cluster::Kind,
    locate::state_folder,
    output,
    remote::{Fleet, Reach},
};
use anyhow::Result;
use site::{Sign, Site};
use std::{path::PathBuf, process::ExitCode};

/// What to do to a daemon.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Examples:\n  \
    mrctl chaos kill node2\n  \
    mrctl chaos restart node2\n  \
    mrctl chaos stop namenode        freeze it; `cont` lets it go on\n  \
    mrctl chaos run faults.toml      a scenario, and what came of it\n  \
    mrctl chaos soak --minutes 5     anything, on a cluster of its own")]
pub(crate) enum ChaosCommand {
    /// Kill it on the spot (SIGKILL)
    Kill(Args),
    /// Freeze it (SIGSTOP)
    Stop(Args),
    /// Let a frozen one go on (SIGCONT)
    Cont(Args),
    /// Start it again with the same arguments; one that runs is ended first
    Restart(Args),
    Partition(verbs::Partition),
    Heal(verbs::Heal),
    Corrupt(verbs::Corrupt),
    Slow(verbs::Slow),
    FillDisk(verbs::FillDisk),
    Run(run::Args),
    Soak(soak::Args),
    Recovery(recovery::Args),
}

/// Which cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct Where {
    /// Folder of the cluster [default: the nearest .fermata upwards]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Folder of a cluster on several machines, as made by `mrctl cluster init`
    #[arg(long, value_name = "DIR", conflicts_with = "dir")]
    cluster: Option<PathBuf>,
}

impl Where {
    fn site(&self) -> Result<Site> {
        match &self.cluster {
            Some(cluster) => Ok(Site::Machines(Fleet::of(&Reach::of(cluster))?)),
            None => Site::here(state_folder(self.dir.as_deref())?),
        }
    }
}

/// Which daemon.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of a node, `namenode` or `jobtracker`
    node: String,
    /// Which of the node's daemons [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    daemon: Vec<Kind>,
    #[command(flatten)]
    at: Where,
}

pub(crate) async fn run(command: ChaosCommand) -> Result<ExitCode> {
    match command {
        ChaosCommand::Kill(args) => signal(&args, Sign::Kill),
        ChaosCommand::Stop(args) => signal(&args, Sign::Stop),
        ChaosCommand::Cont(args) => signal(&args, Sign::Cont),
        ChaosCommand::Restart(args) => {
            for line in args.at.site()?.restart(&args.node, &args.daemon).await? {
                output::line(line)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        ChaosCommand::Partition(args) => verbs::partition(&args),
        ChaosCommand::Heal(args) => verbs::heal(&args),
        ChaosCommand::Corrupt(args) => verbs::corrupt(&args),
        ChaosCommand::Slow(args) => verbs::slow(&args).await,
        ChaosCommand::FillDisk(args) => verbs::fill_disk(&args),
        ChaosCommand::Run(args) => run::run(&args).await,
        ChaosCommand::Soak(args) => soak::run(&args).await,
        ChaosCommand::Recovery(args) => recovery::run(&args),
    }
}

fn signal(args: &Args, sign: Sign) -> Result<ExitCode> {
    let site = args.at.site()?;
    for line in site.signal(&args.node, &args.daemon, sign)? {
        output::line(line)?;
    }
    let keeps_blocks = args.daemon.is_empty() || args.daemon.contains(&Kind::Datanode);
    if sign != Sign::Cont
        && keeps_blocks
        && let Some(limit) = site.silence(&args.node)?
    {
        output::line(format!(
            "the namenode calls it dead after {limit} of silence, then its blocks are copied"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
