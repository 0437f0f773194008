//! The `datanode` daemon: parses flags, which override `fermata.toml`, and calls
//! `fermata_dfs::datanode::run`.

use clap::Parser;
use daemon::{Bytes, MasterAddrs, Period, lifecycle::DaemonArgs};
use std::{path::PathBuf, process::ExitCode};

/// Stores blocks of the file system on the disks of this machine and serves them
#[derive(Debug, Parser)]
#[command(name = "datanode", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Name of the node, unique in the cluster [default: the host name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Rack of the node
    #[arg(long, value_name = "RACK")]
    rack: Option<String>,
    /// Address to serve blocks on; port 0 selects a free port
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Address that clients and other nodes connect to, if it differs from the listen address
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Data folder for blocks, preferably one per disk; may be given several times
    #[arg(long = "dir", value_name = "FOLDER")]
    dirs: Vec<PathBuf>,
    /// Address of the NameNode, host:port; of several NameNodes with commas
    #[arg(long, value_name = "HOST:PORT")]
    namenode: Option<MasterAddrs>,
    /// Free space to leave on each disk, e.g. 1GiB
    #[arg(long, value_name = "SIZE")]
    reserve: Option<Bytes>,
    /// Maximum number of concurrent bulk connections
    #[arg(long, value_name = "N")]
    transfers_max: Option<u32>,
    /// Close a connection that is silent for this long, e.g. 30s
    #[arg(long, value_name = "TIME")]
    transfer_timeout: Option<Period>,
    /// Bytes per second that the scrubber reads, e.g. 8MiB; 0 turns it off
    #[arg(long, value_name = "SIZE")]
    scrub_rate: Option<Bytes>,
    /// Time in which the scrubber reads every block once, e.g. 7d
    #[arg(long, value_name = "TIME")]
    scrub_period: Option<Period>,
}

fn main() -> ExitCode {
    daemon::lifecycle::prepare_process();
    let args: Args = daemon::usage::parse();
    let daemon = args.daemon.clone();
    let config = match daemon.load(|config| args.override_config(config)) {
        Ok(Some(config)) => config,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => return daemon::lifecycle::exit_usage("datanode", &error),
    };
    daemon.start_logging();
    // This runtime serves only the heartbeats. Blocks are transferred on separate threads.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let result = match runtime {
        Ok(runtime) => {
            runtime.block_on(fermata_dfs::datanode::run(&config, &daemon)).map_err(anyhow::Error::from)
        }
        Err(error) => Err(anyhow::Error::from(error).context("cannot start the runtime")),
    };
    daemon::lifecycle::exit("datanode", result)
}

impl Args {
    fn override_config(self, config: &mut daemon::config::Config) {
        fn set<T>(to: &mut T, flag: Option<T>) {
            if let Some(value) = flag {
                *to = value;
            }
        }
        set(&mut config.cluster.namenode, self.namenode);
        let node = &mut config.datanode;
        set(&mut node.node, self.node);
        set(&mut node.rack, self.rack);
        set(&mut node.listen, self.listen);
        set(&mut node.advertise, self.advertise);
        set(&mut node.reserve, self.reserve);
        set(&mut node.transfers_max, self.transfers_max);
        set(&mut node.transfer_timeout, self.transfer_timeout);
        set(&mut node.scrub_rate, self.scrub_rate);
        set(&mut node.scrub_period, self.scrub_period);
        if !self.dirs.is_empty() {
            node.dirs = self.dirs;
        }
    }
}
