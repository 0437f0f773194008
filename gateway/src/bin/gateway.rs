//! The gateway program. Reads `fermata.toml`, which flags override, and serves until it is stopped.

#![allow(clippy::doc_markdown, reason = "doc comments here are help text, where backticks would be printed")]

use clap::Parser;
use daemon::{MasterAddrs, config::Config, lifecycle::DaemonArgs};
use std::{path::PathBuf, process::ExitCode};

/// Serves a Fermata cluster over HTTP: files as WebHDFS, jobs as REST
#[derive(Debug, Parser)]
#[command(name = "gateway", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Address to listen on, host:port; port 0 picks a free port
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Folder for the lock of the gateway
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Address of the NameNode, host:port; of several with commas
    #[arg(long, value_name = "ADDR[,ADDR...]")]
    namenode: Option<MasterAddrs>,
    /// Address of the JobTracker, host:port; of several with commas
    #[arg(long, value_name = "ADDR[,ADDR...]")]
    jobtracker: Option<MasterAddrs>,
}

impl Args {
    fn override_config(&self, config: &mut Config) {
        fn set<T: Clone>(to: &mut T, flag: Option<&T>) {
            if let Some(value) = flag {
                *to = value.clone();
            }
        }
        set(&mut config.gateway.listen, self.listen.as_ref());
        set(&mut config.gateway.dir, self.dir.as_ref());
        set(&mut config.cluster.namenode, self.namenode.as_ref());
        set(&mut config.cluster.jobtracker, self.jobtracker.as_ref());
    }
}

fn main() -> ExitCode {
    daemon::lifecycle::prepare_process();
    let args: Args = daemon::usage::parse();
    match args.daemon.load(|config| args.override_config(config)) {
        Ok(Some(config)) => daemon::lifecycle::exit("gateway", start(&args, &config)),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => daemon::lifecycle::exit_usage("gateway", &error),
    }
}

fn start(args: &Args, config: &Config) -> anyhow::Result<()> {
    args.daemon.start_logging();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(runtime.block_on(fermata_gateway::run(config, &args.daemon))?)
}
