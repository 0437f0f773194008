//! The JobTracker program. Reads `fermata.toml`, which flags override, and serves until it is
//! stopped.

use clap::Parser;
use daemon::{MasterAddrs, config::Config, lifecycle::DaemonArgs};
use journal::Recovery;
use std::{path::PathBuf, process::ExitCode};

/// Runs the jobs of a Fermata cluster: accepts jobs, assigns tasks to TaskTrackers, commits output
#[derive(Debug, Parser)]
#[command(name = "jobtracker", version)]
struct Args {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Address to listen on, host:port; port 0 picks a free port
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Folder for the journal and job history
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// ID of this jobtracker in its group, from 1; 0 for the only jobtracker [default: 0]
    #[arg(long, value_name = "ID")]
    member: Option<u64>,
    /// Addresses of other jobtrackers of the group, which this one joins if its folder is empty
    #[arg(long, value_name = "ADDR[,...]", value_delimiter = ',')]
    join: Option<Vec<String>>,
    /// Address that other jobtrackers of the group use, host:port [default: that of --listen]
    #[arg(long, value_name = "ADDR")]
    advertise: Option<String>,
    /// Address of the NameNode, host:port; of several with commas
    #[arg(long, value_name = "ADDR[,ADDR...]")]
    namenode: Option<MasterAddrs>,
    /// Scheduling policy, such as fair or 'chronos(fair)'; `mrctl schedulers` lists them
    #[arg(long, value_name = "NAME")]
    scheduler: Option<String>,
    /// Second policy that decides on the same facts without effect, for comparison; empty for none
    #[arg(long, value_name = "NAME")]
    shadow: Option<String>,
    /// Start with a damaged journal or an older copy: drop damaged records, report them, keep the
    /// damaged files, and skip job IDs, so that none is used twice
    #[arg(long)]
    recover: bool,
}

impl Args {
    fn override_config(&self, config: &mut Config) {
        fn set<T: Clone>(to: &mut T, flag: Option<&T>) {
            if let Some(value) = flag {
                *to = value.clone();
            }
        }
        set(&mut config.jobtracker.listen, self.listen.as_ref());
        set(&mut config.jobtracker.dir, self.dir.as_ref());
        set(&mut config.jobtracker.member, self.member.as_ref());
        set(&mut config.jobtracker.join, self.join.as_ref());
        set(&mut config.jobtracker.advertise, self.advertise.as_ref());
        set(&mut config.scheduler.name, self.scheduler.as_ref());
        set(&mut config.scheduler.shadow, self.shadow.as_ref());
        set(&mut config.cluster.namenode, self.namenode.as_ref());
    }
}

fn main() -> ExitCode {
    daemon::lifecycle::prepare_process();
    let args: Args = daemon::usage::parse();
    match args.daemon.load_checked(|config| args.override_config(config), fermata_jobtracker::check_scheduler)
    {
        Ok(Some(config)) => daemon::lifecycle::exit("jobtracker", start(&args, &config)),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => daemon::lifecycle::exit_usage("jobtracker", &error),
    }
}

fn start(args: &Args, config: &Config) -> anyhow::Result<()> {
    args.daemon.start_logging();
    let recovery = if args.recover { Recovery::DropDamaged } else { Recovery::Refuse };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(runtime.block_on(fermata_jobtracker::run(config, &args.daemon, recovery))?)
}
