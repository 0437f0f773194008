//! `mrctl down`: nothing of the cluster keeps running, its data stays unless told otherwise.

use crate::{
    cluster::{ClusterState, Fate, lock},
    locate::state_folder,
    output,
};
use anyhow::{Context, Result};
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
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let folder = state_folder(args.dir.as_deref())?;
    if !folder.is_dir() {
        output::line(format!("nothing is running: there is no folder {}", folder.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let held = lock(&folder)?;
    match ClusterState::load(&folder)? {
        None => output::line(format!("nothing is running in {}", folder.display()))?,
        Some(state) => stop(&folder, &state)?,
    }
    if args.purge {
        purge(&folder)?;
    }
    drop(held);
    if args.purge {
        // Only if nothing else is in it: what we did not make stays.
        let _ = fs::remove_file(folder.join("LOCK"));
        let _ = fs::remove_dir(&folder);
    }
    Ok(ExitCode::SUCCESS)
}

fn stop(folder: &Path, state: &ClusterState) -> Result<()> {
    let mut stopped = 0;
    for (daemon, fate) in state.stop_all()? {
        let (name, pid) = (daemon.title(), daemon.identity.pid);
        match fate {
            Fate::Gone => output::line(format!("{name} (pid {pid}) was not running"))?,
            Fate::Stopped => output::line(format!("stopped {name} (pid {pid})"))?,
            Fate::Killed => output::line(format!("killed {name} (pid {pid}): it did not stop in time"))?,
        }
        stopped += usize::from(fate != Fate::Gone);
    }
    let path = ClusterState::path(folder);
    fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    if stopped == 0 {
        output::line(format!("nothing was running in {}", folder.display()))?;
    }
    Ok(())
}

/// Removes what `mrctl up` made, by name, and nothing else: the folder may have been given by mistake.
fn purge(folder: &Path) -> Result<()> {
    for part in ["data", "tasks", "logs", "run"] {
        let path = folder.join(part);
        if path.is_dir() {
            // Tasks have left there what they liked.
            daemon::tree::remove(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    for part in ["fermata.toml", "layout.json"] {
        let _ = fs::remove_file(folder.join(part));
    }
    output::line(format!("removed the data in {}", folder.display()))
}
