//! A process beside the tracker that ends what the tracker leaves behind when it is killed with SIGKILL.
//!
//! Task processes ask the kernel to die with the tracker, but what they have started does not. The keeper waits
//! for the end of a pipe that only the tracker holds, then ends everything with this tracker's mark, and itself.
//! If it is killed too, the tracker's next start does the same.

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
/// How long killed processes may take to go.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts the keeper of this incarnation of the tracker whose first folder is `root`; it lives as long as the pipe in the child.
pub(crate) fn start(root: &Path, incarnation: u64) -> io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .env_clear()
        .env(REAPER_VAR, root)
        .env(INCARNATION_VAR, incarnation.to_string())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C is for the tracker.
        .process_group(0)
        .spawn()
}

/// If this process was started as a keeper: is one, until its tracker has ended.
pub fn run_if_reaper() -> bool {
    let Some(root) = std::env::var_os(REAPER_VAR).map(PathBuf::from) else { return false };
    let mut nothing = [0; 64];
    while matches!(io::stdin().read(&mut nothing), Ok(1..)) {}
    // What the next start runs by then is not for this one.
    if let Some(incarnation) = std::env::var(INCARNATION_VAR).ok().and_then(|text| text.parse().ok()) {
        system::kill_marked(&root, Some(incarnation), DRAIN_TIMEOUT);
    }
    true
}
