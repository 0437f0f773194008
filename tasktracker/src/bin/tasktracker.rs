//! The TaskTracker program. Reads `fermata.toml`, which flags override, and serves until it is
//! stopped.

use clap::Parser;
use daemon::{MasterAddrs, lifecycle::DaemonArgs};
use std::{path::PathBuf, process::ExitCode};

/// Runs the tasks of Fermata jobs on this machine
#[derive(Debug, Parser)]
#[command(name = "tasktracker", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Name of the node, unique in the cluster [default: the host name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Rack of the node
    #[arg(long, value_name = "RACK")]
    rack: Option<String>,
    /// Address of the shuffle server; port 0 chooses a free port
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Folder for map outputs, spills and logs, ideally one per disk; may be repeated
    #[arg(long = "dir", value_name = "FOLDER")]
    dirs: Vec<PathBuf>,
    /// Address of the JobTracker; of several with commas
    #[arg(long, value_name = "HOST:PORT[,...]")]
    jobtracker: Option<MasterAddrs>,
    /// Maximum number of concurrent maps
    #[arg(long, value_name = "N")]
    map_slots: Option<u32>,
    /// Maximum number of concurrent reduces
    #[arg(long, value_name = "N")]
    reduce_slots: Option<u32>,
    /// Number of idle task processes that are started in advance
    #[arg(long, value_name = "N")]
    warm_tasks: Option<u32>,
    /// Program that runs built-in jobs [default: mrtask next to this program]
    #[arg(long, value_name = "FILE")]
    mrtask: Option<PathBuf>,
}

fn main() -> ExitCode {
    if fermata_tasktracker::run_if_reaper() {
        return ExitCode::SUCCESS;
    }
    if let Some(code) = daemon::init_process::run_as_init("tasktracker") {
        return code;
    }
    daemon::lifecycle::prepare_process();
    let args: Args = daemon::usage::parse();
    let (daemon, mrtask) = (args.daemon.clone(), args.mrtask.clone());
    let config = match daemon.load(|config| args.override_config(config)) {
        Ok(Some(config)) => config,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => return daemon::lifecycle::exit_usage("tasktracker", &error),
    };
    daemon.start_logging();
    // Two threads are enough, because the runtime handles only short messages. Tasks are separate
    // processes, and other threads serve map outputs.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime
            .block_on(fermata_tasktracker::run(&config, &daemon, mrtask.as_deref()))
            .map_err(anyhow::Error::from),
        Err(error) => Err(anyhow::Error::from(error).context("cannot start the runtime")),
    };
    daemon::lifecycle::exit("tasktracker", result)
}

impl Args {
    fn override_config(self, config: &mut daemon::config::Config) {
        fn set<T>(to: &mut T, flag: Option<T>) {
            if let Some(value) = flag {
                *to = value;
            }
        }
        set(&mut config.cluster.jobtracker, self.jobtracker);
        let tracker = &mut config.tasktracker;
        set(&mut tracker.node, self.node);
        set(&mut tracker.rack, self.rack);
        set(&mut tracker.listen, self.listen);
        set(&mut tracker.map_slots, self.map_slots);
        set(&mut tracker.reduce_slots, self.reduce_slots);
        set(&mut tracker.warm_tasks, self.warm_tasks);
        if !self.dirs.is_empty() {
            tracker.dirs = self.dirs;
        }
    }
}
