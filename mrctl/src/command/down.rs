//! `mrctl down`: stops all daemons of a local cluster. Keeps the data, except with `--purge`.

use crate::output;
use anyhow::{Context, Result};
use clusters::{
    local::{ClusterState, ExitKind, lock, remove_outside_folder},
    locate::state_folder,
};
use serde::Serialize;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Stop the cluster that `mrctl up` started
///
/// A daemon that does not stop within ten seconds is killed. The data stays, except with --purge.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl down\n  mrctl down --purge             also remove its data")]
pub(crate) struct Args {
    /// Folder of the cluster [default: .fermata here or in the nearest parent folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Also remove data, logs and configuration
    #[arg(long)]
    purge: bool,
    /// Print the stopped daemons as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct StopReport {
    folder: PathBuf,
    daemons: Vec<StoppedDaemon>,
    purged: bool,
}

#[derive(Debug, Serialize)]
struct StoppedDaemon {
    name: String,
    kind: &'static str,
    pid: u32,
    /// `stopped`, `killed` (after the timeout) or `gone` (was not running).
    result: &'static str,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let folder = state_folder(args.dir.as_deref())?;
    let mut report = StopReport { folder: folder.clone(), daemons: Vec::new(), purged: args.purge };
    let print_status = |text: String| if args.json { Ok(()) } else { output::line(text) };
    if !folder.is_dir() {
        print_status(format!("nothing is running: there is no folder {}", folder.display()))?;
        return if args.json {
            output::json(&report).map(|()| ExitCode::SUCCESS)
        } else {
            Ok(ExitCode::SUCCESS)
        };
    }
    let locked = lock(&folder)?;
    match ClusterState::load(&folder)? {
        None => print_status(format!("nothing is running in {}", folder.display()))?,
        Some(state) => report.daemons = stop(&folder, &state, &print_status)?,
    }
    if args.purge {
        purge(&folder)?;
        print_status(format!("removed the data in {}", folder.display()))?;
    }
    drop(locked);
    if args.json {
        output::json(&report)?;
    }
    if args.purge {
        // Removing the folder fails if it still contains files that mrctl has not created. They are
        // kept.
        let _ = fs::remove_file(folder.join("LOCK"));
        let _ = fs::remove_dir(&folder);
    }
    Ok(ExitCode::SUCCESS)
}

fn stop(
    folder: &Path,
    state: &ClusterState,
    print_status: &impl Fn(String) -> Result<()>,
) -> Result<Vec<StoppedDaemon>> {
    let mut ended = Vec::new();
    for (daemon, exit) in state.stop_all()? {
        let (name, pid) = (daemon.title(), daemon.identity.pid);
        let (result, line) = match exit {
            ExitKind::NotRunning => ("gone", format!("{name} (pid {pid}) was not running")),
            ExitKind::Stopped => ("stopped", format!("stopped {name} (pid {pid})")),
            ExitKind::Killed => ("killed", format!("killed {name} (pid {pid}): it did not stop in time")),
        };
        print_status(line)?;
        ended.push(StoppedDaemon { name: daemon.name.clone(), kind: daemon.kind.program(), pid, result });
    }
    let path = ClusterState::path(folder);
    fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    if ended.iter().all(|one| one.result == "gone") {
        print_status(format!("nothing was running in {}", folder.display()))?;
    }
    Ok(ended)
}

/// Removes the files that `mrctl up` creates, by their names. Keeps all other files, because
/// `--dir` may be the wrong folder.
fn purge(folder: &Path) -> Result<()> {
    remove_outside_folder(folder)?;
    for part in ["data", "tasks", "logs", "run"] {
        let path = folder.join(part);
        if path.is_dir() {
            // Tasks may have left folders without permissions, which `fs::remove_dir_all` could not
            // delete.
            daemon::tree::remove(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    for part in ["fermata.toml", "layout.json", "secret", "gateway.token", "revoked"] {
        let _ = fs::remove_file(folder.join(part));
    }
    Ok(())
}
