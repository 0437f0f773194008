//! `mrctl down`: nothing of the cluster keeps running, its data stays unless told otherwise.

use crate::{
    cluster::{ClusterState, ExitKind, lock, remove_elsewhere},
    locate::state_folder,
    output,
};
use anyhow::{Context, Result};
use serde::Serialize;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Stop the cluster that `mrctl up` started
///
/// Each daemon gets ten seconds to end by itself. The data stays, unless --purge.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl down\n  mrctl down --purge             and remove its data")]
pub(crate) struct Args {
    /// Folder of the cluster [default: the nearest .fermata upwards]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Remove the folder's data, logs and configuration too
    #[arg(long)]
    purge: bool,
    /// Print what was stopped as JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Stopped {
    folder: PathBuf,
    daemons: Vec<Ended>,
    purged: bool,
}

#[derive(Debug, Serialize)]
struct Ended {
    name: String,
    kind: &'static str,
    pid: u32,
    /// `stopped`, `killed` (it did not stop in time) or `gone` (it was not running).
    result: &'static str,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let folder = state_folder(args.dir.as_deref())?;
    let mut with_params = Stopped { folder: folder.clone(), daemons: Vec::new(), purged: args.purge };
    let print_status = |text: String| if args.json { Ok(()) } else { output::line(text) };
    if !folder.is_dir() {
        print_status(format!("nothing is running: there is no folder {}", folder.display()))?;
        return if args.json {
            output::json(&with_params).map(|()| ExitCode::SUCCESS)
        } else {
            Ok(ExitCode::SUCCESS)
        };
    }
    let locked = lock(&folder)?;
    match ClusterState::load(&folder)? {
        None => print_status(format!("nothing is running in {}", folder.display()))?,
        Some(state) => with_params.daemons = stop(&folder, &state, &print_status)?,
    }
    if args.purge {
        purge(&folder)?;
        print_status(format!("removed the data in {}", folder.display()))?;
    }
    drop(locked);
    if args.json {
        output::json(&with_params)?;
    }
    if args.purge {
        // Only if nothing else is in it: what we did not make stays.
        let _ = fs::remove_file(folder.join("LOCK"));
        let _ = fs::remove_dir(&folder);
    }
    Ok(ExitCode::SUCCESS)
}

fn stop(
    folder: &Path,
    state: &ClusterState,
    print_status: &impl Fn(String) -> Result<()>,
) -> Result<Vec<Ended>> {
    let mut ended = Vec::new();
    for (daemon, rng_of) in state.stop_all()? {
        let (name, pid) = (daemon.title(), daemon.identity.pid);
        let (result, line) = match rng_of {
            ExitKind::NotRunning => ("gone", format!("{name} (pid {pid}) was not running")),
            ExitKind::Stopped => ("stopped", format!("stopped {name} (pid {pid})")),
            ExitKind::Killed => ("killed", format!("killed {name} (pid {pid}): it did not stop in time")),
        };
        print_status(line)?;
        ended.push(Ended { name: daemon.name.clone(), kind: daemon.kind.program(), pid, result });
    }
    let path = ClusterState::path(folder);
    fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    if ended.iter().all(|one| one.result == "gone") {
        print_status(format!("nothing was running in {}", folder.display()))?;
    }
    Ok(ended)
}

/// Removes what `mrctl up` made, by name, and nothing else: the folder may have been given by mistake.
fn purge(folder: &Path) -> Result<()> {
    remove_elsewhere(folder)?;
    for part in ["data", "tasks", "logs", "run"] {
        let path = folder.join(part);
        if path.is_dir() {
            // Tasks have left there what they liked.
            daemon::tree::remove(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    for part in ["fermata.toml", "layout.json", "secret", "revoked"] {
        let _ = fs::remove_file(folder.join(part));
    }
    Ok(())
}
