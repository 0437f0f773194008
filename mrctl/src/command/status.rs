//! `mrctl status`: shows the cluster in a folder, which accounts may use it, and which of its
//! daemons are running.

use crate::output;
use anyhow::{Result, bail};
use clusters::{
    folder::dir_flag,
    local::{ClusterState, Layout, Overrides},
    locate::{Target, state_folder},
};
use security::Role;
use serde::Serialize;
use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};
use view::masters::MastersStatus;

/// How long to wait for the masters.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Show the local cluster: its users and running daemons
///
/// This command checks only that the processes are running and not frozen by a signal; `mrctl
/// nodes` and `mrctl health` query the masters. Only several masters are asked which one leads.
/// The exit code is 0 if all daemons are running. For a cluster on several machines use `mrctl
/// cluster status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl status\n  mrctl status --json")]
pub(crate) struct Args {
    /// Folder of the cluster [default: .fermata here or in the nearest parent folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The state of a local cluster, as `up --json` and `status --json` print it.
#[derive(Debug, Serialize)]
pub(crate) struct ClusterStatus {
    folder: PathBuf,
    /// `running`, `degraded` (some daemons have died, are frozen or are not ready) or `stopped`.
    state: &'static str,
    /// `closed` or `open`.
    access: &'static str,
    /// The accounts that may use the cluster.
    users: String,
    /// The configuration file that clients use.
    config: PathBuf,
    namenode: String,
    jobtracker: String,
    /// Address of the gateway; empty if there is none.
    gateway: String,
    /// Which of several NameNodes leads; null if there is one, or if the cluster is stopped.
    namenodes: Option<MastersStatus>,
    /// The same about several `JobTrackers`.
    jobtrackers: Option<MastersStatus>,
    daemons: Vec<DaemonProcess>,
    /// One line per problem.
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct DaemonProcess {
    name: String,
    kind: &'static str,
    /// `running`, `frozen` (by a signal) or `dead`.
    state: &'static str,
    pid: u32,
    addr: String,
    log: PathBuf,
    #[serde(skip)]
    title: String,
    #[serde(skip)]
    advice: Option<String>,
}

impl ClusterStatus {
    pub(crate) fn of(folder: &Path) -> Result<Self> {
        let layout = Layout::prepare(folder, &Overrides::default())?;
        let state = ClusterState::load(folder)?.unwrap_or_default();
        let dir = dir_flag(Some(folder));
        let process = |daemon: &clusters::local::Daemon| DaemonProcess {
            name: daemon.name.clone(),
            kind: daemon.kind.program(),
            state: daemon.process_state(),
            pid: daemon.identity.pid,
            addr: daemon.addr.clone(),
            log: daemon.log.clone(),
            title: if daemon.name == daemon.kind.program() {
                format!("the {}", daemon.name)
            } else {
                daemon.title()
            },
            advice: daemon.is_frozen().then(|| daemon.frozen_advice(&dir)),
        };
        let daemons: Vec<DaemonProcess> = state.daemons.iter().map(process).collect();
        let security = &layout.config.security;
        let (access, users) = match (security.is_closed(), layout.has_own_secret()) {
            (false, _) => ("open", "every account of this machine".to_owned()),
            (true, true) => ("closed", format!("only {}", owner(&layout.folder))),
            (true, false) => ("closed", "users with credentials for the cluster".to_owned()),
        };
        Ok(Self {
            state: overall_state(&daemons.iter().map(|daemon| daemon.state).collect::<Vec<_>>()),
            access,
            users,
            warnings: layout.exposed_secret().into_iter().collect(),
            config: layout.config_file(),
            folder: layout.folder,
            namenode: state.namenode,
            jobtracker: state.jobtracker,
            gateway: state.gateway,
            namenodes: None,
            jobtrackers: None,
            daemons,
        })
    }

    /// Asks several masters which one leads.
    pub(crate) async fn ask_masters(&mut self) {
        let is_running = |one: &DaemonProcess| one.state == "running";
        if !self.daemons.iter().any(is_running) {
            return;
        }
        let target = Target::of_config(&self.config);
        for (role, addrs, answer) in [
            (Role::NameNode, &self.namenode, &mut self.namenodes),
            (Role::JobTracker, &self.jobtracker, &mut self.jobtrackers),
        ] {
            if !addrs.contains(',') {
                continue;
            }
            match target.masters(role, ANSWER_TIMEOUT).await {
                Ok(all) => {
                    if !all.serves {
                        self.state = "degraded";
                    }
                    *answer = Some(all);
                }
                Err(error) => self.warnings.push(output::chain(&error)),
            }
        }
    }

    /// Adds warnings from the start of the cluster. With any warning, its state becomes `degraded`.
    pub(crate) fn add(&mut self, warnings: &[String]) {
        if !warnings.is_empty() {
            self.state = "degraded";
            self.warnings.extend_from_slice(warnings);
        }
    }
}

/// Returns the state of a cluster from the states of its daemons.
fn overall_state(daemons: &[&str]) -> &'static str {
    let all = |state: &str| daemons.iter().all(|one| *one == state);
    match () {
        () if all("dead") => "stopped",
        () if all("running") => "running",
        () => "degraded",
    }
}

/// Returns the owner of the folder, which is the owner of the cluster.
fn owner(folder: &Path) -> String {
    let about = std::fs::metadata(folder);
    about.map_or_else(|_| daemon::account::user(), |about| daemon::account::name_of(about.uid()))
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode> {
    let folder = state_folder(args.dir.as_deref())?;
    if !folder.join("layout.json").is_file() {
        bail!(
            "no cluster in {}: start one with `mrctl up`; for a cluster of several machines use `mrctl cluster status`",
            folder.display()
        );
    }
    let mut status = ClusterStatus::of(&folder)?;
    status.ask_masters().await;
    let code = if status.state == "running" { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if args.json {
        output::json(&status)?;
        return Ok(code);
    }
    let ClusterStatus { state, access, users, folder, .. } = &status;
    output::line(format!("{state}, {access} ({users} can use it); folder {}", folder.display()))?;
    for group in [&status.namenodes, &status.jobtrackers].into_iter().flatten() {
        output::line(&group.summary)?;
    }
    for warning in &status.warnings {
        eprintln!("mrctl: warning: {warning}");
    }
    let mut table = output::table(&["NODE", "DAEMON", "STATE", "PID", "ADDRESS"], &[3]);
    for one in &status.daemons {
        let addr = if one.addr.is_empty() { "-" } else { &one.addr };
        table.add_row([&one.name, one.kind, one.state, &one.pid.to_string(), addr]);
    }
    if !status.daemons.is_empty() {
        output::print_table(&table)?;
    }
    let dir = dir_flag(Some(folder));
    match *state {
        "stopped" => output::line(format!("start it with `mrctl up{dir}`"))?,
        "degraded" => {
            for one in status.daemons.iter().filter(|one| one.state == "dead") {
                output::line(format!("{} has died: see {}", one.title, one.log.display()))?;
            }
            if status.daemons.iter().any(|one| one.state == "dead") {
                output::line(format!("restart the daemons that have died with `mrctl up{dir}`"))?;
            }
            for advice in status.daemons.iter().filter_map(|one| one.advice.as_ref()) {
                output::line(advice)?;
            }
        }
        _ => {}
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::overall_state;

    #[test]
    fn cluster_with_a_frozen_daemon_is_degraded() {
        assert_eq!(overall_state(&["running", "running"]), "running");
        assert_eq!(overall_state(&["dead", "dead"]), "stopped");
        assert_eq!(overall_state(&[]), "stopped");
        for states in [["running", "frozen"], ["frozen", "frozen"], ["dead", "frozen"], ["running", "dead"]] {
            assert_eq!(overall_state(&states), "degraded", "{states:?}");
        }
    }
}
