//! The `namenode` daemon: parses flags, which override `fermata.toml`, and serves until it is
//! stopped.

use clap::Parser;
use daemon::{Bytes, config::Config, lifecycle::DaemonArgs};
use journal::Recovery;
use std::{path::PathBuf, process::ExitCode};

/// Manages the namespace, the block locations and the leases of the file system
#[derive(Debug, Parser)]
#[command(name = "namenode", version)]
struct Args {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Address to serve on, host:port; port 0 selects a free port
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Folder for the edit log and snapshots
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// ID of this namenode in its group, from 1; 0 for the only namenode [default: 0]
    #[arg(long, value_name = "ID")]
    member: Option<u64>,
    /// Addresses of other namenodes of the group, which this one joins if its folder is empty
    #[arg(long, value_name = "ADDR[,...]", value_delimiter = ',')]
    join: Option<Vec<String>>,
    /// Address that other namenodes of the group use, host:port [default: that of --listen]
    #[arg(long, value_name = "ADDR")]
    advertise: Option<String>,
    /// Default number of replicas of a new file
    #[arg(long, value_name = "N")]
    replication: Option<u32>,
    /// Default block size of a new file
    #[arg(long, value_name = "SIZE")]
    block_size: Option<Bytes>,
    /// Drop the unreadable records of a damaged edit log, report them, and continue; the damaged
    /// files are kept. Also accept an older copy of the folder: DataNodes that have registered with
    /// a later start register again
    #[arg(long)]
    recover: bool,
}

impl Args {
    fn override_config(&self, config: &mut Config) {
        let Self { listen, dir, member, join, advertise, replication, block_size, .. } = self;
        let to = &mut config.namenode;
        to.listen = listen.clone().unwrap_or_else(|| to.listen.clone());
        to.dir = dir.clone().unwrap_or_else(|| to.dir.clone());
        to.member = member.unwrap_or(to.member);
        to.join = join.clone().unwrap_or_else(|| to.join.clone());
        to.advertise = advertise.clone().unwrap_or_else(|| to.advertise.clone());
        to.replication = replication.unwrap_or(to.replication);
        to.block_size = block_size.unwrap_or(to.block_size);
    }
}

fn main() -> ExitCode {
    daemon::lifecycle::prepare_process();
    let args: Args = daemon::usage::parse();
    match args.daemon.load(|config| args.override_config(config)) {
        Ok(Some(config)) => daemon::lifecycle::exit("namenode", start(&args, &config)),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => daemon::lifecycle::exit_usage("namenode", &error),
    }
}

fn start(args: &Args, config: &Config) -> anyhow::Result<()> {
    args.daemon.start_logging();
    let recovery = if args.recover { Recovery::DropDamaged } else { Recovery::Refuse };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(runtime.block_on(fermata_dfs::namenode::run(config, &args.daemon, recovery))?)
}
