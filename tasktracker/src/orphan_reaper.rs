//! The reaper: a process next to the tracker that kills the processes which a tracker leaves behind
//! when it is killed with SIGKILL.
//!
//! The kernel kills task processes when the tracker dies, because they request this, but it does
//! not kill their children. The reaper waits until a pipe that only the tracker has open is closed,
//! then kills all processes whose environment has the mark of this tracker (see `system`), and
//! exits. If the reaper is killed too, the next start of the tracker kills the processes.

use crate::system;
use std::{
    io::{self, Read},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Environment variable with the first folder of the tracker. A process with this variable is a
/// reaper.
const REAPER_VAR: &str = "FERMATA_REAPER_OF";
/// Environment variable with the incarnation of the tracker, the number of its start.
const INCARNATION_VAR: &str = "FERMATA_REAPER_OF_INCARNATION";
/// How long to wait for killed processes to end.
pub(crate) const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts the reaper for this incarnation of the tracker whose first folder is `root`. It runs
/// until its stdin, a pipe, is closed.
pub(crate) fn start(root: &Path, incarnation: u64) -> io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .env_clear()
        .env(REAPER_VAR, root)
        .env(INCARNATION_VAR, incarnation.to_string())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // With its own process group, the reaper does not get the SIGINT of Ctrl-C, which is for
        // the tracker.
        .process_group(0)
        .spawn()
}

/// If this process was started as a reaper, runs until its tracker has ended and returns true.
/// Otherwise returns false at once.
pub fn run_if_reaper() -> bool {
    let Some(root) = std::env::var_os(REAPER_VAR).map(PathBuf::from) else { return false };
    let mut unused = [0; 64];
    while matches!(io::stdin().read(&mut unused), Ok(1..)) {}
    // Kill only processes of this incarnation, because the next incarnation of the tracker may
    // already be running.
    if let Some(incarnation) = std::env::var(INCARNATION_VAR).ok().and_then(|text| text.parse().ok()) {
        system::kill_marked(&root, Some(incarnation), KILL_TIMEOUT);
    }
    true
}
