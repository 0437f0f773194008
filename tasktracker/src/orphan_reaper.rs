//! The reaper: a process next to the tracker that kills the remaining processes of a tracker that
//! was killed with SIGKILL.
//!
//! Task processes request to be killed with the tracker, but their children do not. The reaper
//! waits for the end of a pipe that only the tracker has open, then kills all processes with the
//! mark of this tracker, and exits. If the reaper is killed too, the next start of the tracker does
//! the same.

use crate::system;
use std::{
    io::{self, Read},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

const REAPER_VAR: &str = "FERMATA_REAPER_OF";
const INCARNATION_VAR: &str = "FERMATA_REAPER_OF_INCARNATION";
/// Maximum time for killed processes to end.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts the reaper of this incarnation of the tracker with the first folder `root`. It runs as
/// long as the pipe in the child is open.
pub(crate) fn start(root: &Path, incarnation: u64) -> io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .env_clear()
        .env(REAPER_VAR, root)
        .env(INCARNATION_VAR, incarnation.to_string())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C is for the tracker only.
        .process_group(0)
        .spawn()
}

/// Runs as the reaper until its tracker has ended, if this process was started as one.
pub fn run_if_reaper() -> bool {
    let Some(root) = std::env::var_os(REAPER_VAR).map(PathBuf::from) else { return false };
    let mut nothing = [0; 64];
    while matches!(io::stdin().read(&mut nothing), Ok(1..)) {}
    // Only this incarnation: the next start of the tracker may be running already.
    if let Some(incarnation) = std::env::var(INCARNATION_VAR).ok().and_then(|text| text.parse().ok()) {
        system::kill_marked(&root, Some(incarnation), DRAIN_TIMEOUT);
    }
    true
}
