//! The NameNode's process: flags over `fermata.toml`, then serve until told to stop.

use clap::Parser;
use daemon::{Bytes, config::Config, lifecycle::DaemonArgs};
use journal::Recovery;
use std::{path::PathBuf, process::ExitCode};

/// Keeps the names, the block map and the leases of a Fermata file system.
#[derive(Debug, Parser)]
#[command(name = "namenode", version)]
struct Args {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Address to serve on, host:port; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Folder for the edit log and snapshots
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Replicas of a new file that does not ask for a number
    #[arg(long, value_name = "N")]
    replication: Option<u32>,
    /// Block size of a new file that does not ask for one
    #[arg(long, value_name = "SIZE")]
    block_size: Option<Bytes>,
    /// Drop what cannot be read of a damaged edit log, say what, and continue; the damaged files are kept. Also accepts an
    /// older copy of the folder: DataNodes that have seen a later start register again
    #[arg(long)]
    recover: bool,
}

impl Args {
    fn override_config(&self, config: &mut Config) {
        let Self { listen, dir, replication, block_size, .. } = self;
        let to = &mut config.namenode;
        to.listen = listen.clone().unwrap_or_else(|| to.listen.clone());
        to.dir = dir.clone().unwrap_or_else(|| to.dir.clone());
        to.replication = replication.unwrap_or(to.replication);
        to.block_size = block_size.unwrap_or(to.block_size);
    }
}

fn main() -> ExitCode {
    daemon::lifecycle::begin();
    let args = Args::parse();
    match args.daemon.load(|config| args.override_config(config)) {
        Ok(Some(config)) => daemon::lifecycle::exit("namenode", start(&args, &config)),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => daemon::lifecycle::exit_usage("namenode", &error),
    }
}

fn start(args: &Args, config: &Config) -> anyhow::Result<()> {
    args.daemon.begin_log();
    let recovery = if args.recover { Recovery::DropDamaged } else { Recovery::Refuse };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(runtime.block_on(fermata_dfs::namenode::run(config, &args.daemon, recovery))?)
}
