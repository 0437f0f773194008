//! `mrctl masters`: what each master does, whether they serve, and changes of their groups.

#![allow(clippy::doc_markdown, reason = "doc comments here are help text, where backticks would be printed")]

use super::{offline, rolling};
use crate::output::{self, Usage};
use anyhow::{Result, anyhow, bail};
use clap::ValueEnum;
use clusters::{
    local::{self, ClusterState, Daemon, Kind, end_processes},
    locate::Target,
};
use daemon::Period;
use dfs_client::group::{ChangeResult, GroupChange, GroupClient};
use security::Role;
use std::{path::PathBuf, process::ExitCode, time::Duration};
use tokio::time::{Instant, sleep};

/// How long one request may take. A transfer waits twice for 1.5 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// A master that has not stopped after this time is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// The pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(500);

/// Show the leading masters, and change their groups
///
/// Asks each namenode and each jobtracker of the cluster. LAG is the number of log entries that it
/// lacks, and CONTACT the time since the leader has heard from it; only the leader knows these. The
/// exit code is 0 if one of each kind leads and a majority follows it, so that files can be read and
/// written and jobs run.
///
/// A master that has lost its folder, or a part of its log, gets everything from the others of its kind
/// when it is started again. If a majority has lost its folders, stop all, compare those that are left
/// with --offline, and continue with the one that has most: `mrctl up --recover NAME`. What only the
/// lost ones have acknowledged is lost.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  mrctl masters\n  mrctl masters --json\n  \
    mrctl masters transfer               let another namenode lead\n  \
    mrctl masters transfer --daemon jobtracker\n  \
    mrctl masters add host4:9400\n  \
    mrctl masters remove host2:9400\n  \
    mrctl masters replace host2:9400 host4:9400\n  \
    mrctl masters restart                one after the other\n  \
    mrctl masters --offline DIR1 DIR2    compare stopped masters\n  \
    mrctl up --masters 3 --detach        start three of each kind"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    change: Option<Change>,
    /// How long to wait for the answers
    #[arg(long, value_name = "TIME", default_value = "2s")]
    within: Period,
    /// Read the folders of masters that do not run, and name the one that has most: the one to
    /// recover if a majority has lost its folders
    #[arg(long, value_name = "DIR", num_args = 1..)]
    offline: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Change {
    /// Let another master lead, without losing a request
    ///
    /// The one that leads refuses changes, waits until all earlier ones are committed, and then lets
    /// the other one lead. Clients wait and continue. Stopping a leader (SIGTERM) does the same.
    Transfer {
        /// Address of the one that is to lead; any that answers if it is missing
        #[arg(value_name = "ADDR")]
        to: Option<String>,
        #[command(flatten)]
        of: Of,
    },
    /// Add a master to its group
    ///
    /// Waits until the new master asks to join, has the whole log, and votes. Start it with an empty
    /// folder, a new ID (--member) and the addresses of the others (--join). It may be started before
    /// or after this command.
    Add {
        /// Address at which clients and the others reach it
        #[arg(value_name = "ADDR")]
        address: String,
        #[command(flatten)]
        of: Of,
    },
    /// Remove a master from its group
    ///
    /// Refused if those that are left and up would be no majority. If it leads, another one leads
    /// first. Stop it then: it serves nobody.
    Remove {
        /// Address of the master, as in `mrctl masters`
        #[arg(value_name = "ADDR")]
        address: String,
        #[command(flatten)]
        of: Of,
    },
    /// Add a master, and then remove another one
    Replace {
        /// Address of the one that leaves the group
        #[arg(value_name = "OLD")]
        old: String,
        /// Address of the one that takes its place
        #[arg(value_name = "NEW")]
        new: String,
        #[command(flatten)]
        of: Of,
    },
    /// Restart the masters of a local cluster, one after the other
    ///
    /// Those that lead come last, and another one leads before they stop, so no request fails. The next
    /// one is restarted when all vote and lack nothing. Refused while a master is down. For a cluster on
    /// several machines: mrctl cluster restart.
    Restart,
}

/// The group, and how long to wait.
#[derive(Debug, clap::Args)]
struct Of {
    /// The masters to change
    #[arg(long, value_enum, default_value = "namenode")]
    daemon: Master,
    /// How long to wait until the change is made
    #[arg(long, value_name = "TIME", default_value = "5m")]
    within: Period,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Master {
    Namenode,
    Jobtracker,
}

impl Of {
    fn role(&self) -> Role {
        match self.daemon {
            Master::Namenode => Role::NameNode,
            Master::Jobtracker => Role::JobTracker,
        }
    }
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    if let Some(change) = args.change {
        return make(change, target).await;
    }
    if !args.offline.is_empty() {
        return offline::run(&args.offline, args.json);
    }
    let all = target.all_masters(args.within.0).await?;
    if args.json {
        output::json(&all)?;
    } else {
        output::print_table(&all.table())?;
        all.groups.iter().try_for_each(|group| output::line(&group.summary))?;
    }
    Ok(if all.serves { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn make(change: Change, target: &Target) -> Result<ExitCode> {
    let (Change::Transfer { of, .. }
    | Change::Add { of, .. }
    | Change::Remove { of, .. }
    | Change::Replace { of, .. }) = &change
    else {
        return restart(target).await;
    };
    let (group, end) = (target.group(of.role())?, Instant::now() + of.within.0);
    match &change {
        Change::Transfer { to, .. } => {
            let leader = done(&group, GroupChange::Transfer(to.clone()), end).await?;
            output::line(format!("{leader} leads"))?;
        }
        Change::Add { address, .. } => add(&group, address, end).await?,
        Change::Remove { address, .. } => remove(&group, address, end).await?,
        Change::Replace { old, new, .. } => {
            add(&group, new, end).await?;
            remove(&group, old, end).await?;
        }
        Change::Restart => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Restarts all masters of a local cluster.
async fn restart(target: &Target) -> Result<ExitCode> {
    let Some(folder) = target.local_folder()? else {
        bail!(Usage(
            "this cluster was not started by `mrctl up`: use `mrctl cluster restart`, or restart one master after the other"
                .into()
        ));
    };
    let _held = local::lock(&folder)?;
    let mut state = ClusterState::require(&folder)?;
    let unit = |role| {
        move |daemon: &Daemon| rolling::Unit {
            name: daemon.name.clone(),
            masters: vec![(role, daemon.addr.clone())],
        }
    };
    let namenodes = state.masters_of(Kind::Namenode).map(unit(Role::NameNode));
    let units = namenodes.chain(state.masters_of(Kind::Jobtracker).map(unit(Role::JobTracker))).collect();
    rolling::restart(target, units, async |unit: &rolling::Unit| {
        let daemon = state.find(&unit.name, None)?;
        let kind = daemon.kind;
        end_processes(&[(&daemon.identity, &daemon.args)], STOP_TIMEOUT)?;
        local::restart(&folder, &mut state, &unit.name, kind).await?;
        output::line(format!("restarted {}", unit.name))
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

async fn add(group: &GroupClient, address: &str, end: Instant) -> Result<()> {
    done(group, GroupChange::Add(address.to_owned()), end).await?;
    output::line(format!("{address} votes; add it to the settings of all daemons and clients"))?;
    Ok(())
}

async fn remove(group: &GroupClient, address: &str, end: Instant) -> Result<()> {
    done(group, GroupChange::Remove(address.to_owned()), end).await?;
    output::line(format!("{address} was removed; stop it, and remove it from the settings"))?;
    Ok(())
}

/// Requests a change until it is made. Returns what the leader says about it.
async fn done(group: &GroupClient, change: GroupChange, end: Instant) -> Result<String> {
    let mut printed = String::new();
    loop {
        match group.change(&change, REQUEST_TIMEOUT).await.map_err(|why| anyhow!(why))? {
            ChangeResult::Done(leader) => return Ok(leader),
            ChangeResult::WaitsFor(what) if Instant::now() > end => bail!("gave up waiting for {what}"),
            ChangeResult::WaitsFor(what) => {
                if printed != what {
                    eprintln!("mrctl: waiting for {what}");
                    printed = what;
                }
            }
        }
        sleep(PAUSE).await;
    }
}
