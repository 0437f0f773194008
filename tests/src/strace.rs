//! Faults in the system calls of a daemon, injected by strace into the real binaries.

use crate::{Cluster, eventually, may_inspect_daemons};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// How long to wait for strace to detach before it is killed.
const DETACH_WITHIN: Duration = Duration::from_secs(10);
/// System calls that make data durable.
pub const SYNCS: &str = "fsync,fdatasync";
/// System calls that read the bytes of a file.
pub const READS: &str = "pread64,preadv,preadv2,read,readv,sendfile";

/// Injects a fault into a daemon until dropped.
pub struct Strace(Child);

impl Strace {
    /// Injects `what` (in the syntax of strace, such as `error=EIO`) into every fsync and fdatasync
    /// of a daemon. Prints a message and returns `None` if strace cannot be used.
    pub fn hold(cluster: &Cluster, name: &str, kind: &str, what: &str) -> Option<Self> {
        Self::hold_at(cluster, &cluster.pid_of(name, kind), &[], SYNCS, what)
    }

    /// Injects `what` into the system calls `calls` of the process `pid` and of the processes
    /// `others`.
    pub fn hold_at(cluster: &Cluster, pid: &str, others: &[String], calls: &str, what: &str) -> Option<Self> {
        let others = others.iter().flat_map(|other| ["-p".into(), other.into()]).collect();
        Self::attach(cluster.path("strace.log"), pid, calls, what, others)
    }

    /// Like [`Self::hold_at`], but only for calls on these files; for all calls if the list is
    /// empty.
    pub fn hold_files(
        cluster: &Cluster,
        pid: &str,
        calls: &str,
        what: &str,
        files: &[PathBuf],
    ) -> Option<Self> {
        let files = files.iter().flat_map(|file| ["-P".into(), file.clone()]).collect();
        Self::attach(cluster.path(&format!("strace-{pid}.log")), pid, calls, what, files)
    }

    /// Returns a command that starts a program, and injects `what` into its calls on this file from
    /// the start. The command has the PID of the program. Prints a message and returns `None` if
    /// strace cannot be used.
    pub fn starting(program: &Path, calls: &str, what: &str, file: &Path) -> Option<Command> {
        // strace finds the file of a call by inspecting the process.
        if !may_inspect_daemons() {
            return None;
        }
        let traced = || {
            let mut command = Command::new("strace");
            // With -D the tracer is not the parent of the program.
            command.args(["-D", "-f", "-q", "-o", "/dev/null"]);
            command
        };
        if !traced().arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            crate::skip("strace", "strace is not installed or may not trace processes here");
            return None;
        }
        let (trace, inject) = (format!("trace={calls}"), format!("inject={calls}:{what}"));
        let mut command = traced();
        command.args(["-e", &trace, "-e", &inject, "-P"]).arg(file).arg(program);
        Some(command)
    }

    fn attach(log: PathBuf, pid: &str, calls: &str, what: &str, more: Vec<PathBuf>) -> Option<Self> {
        let (trace, inject) = (format!("trace={calls}"), format!("inject={calls}:{what}"));
        let mut command = Command::new("strace");
        command.args(["-f", "-q", "-e", &trace, "-e", &inject, "-p", pid]).arg("-o").arg(&log).args(more);
        let Ok(child) = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn() else {
            crate::skip("strace", "strace is not installed");
            return None;
        };
        let mut strace = Self(child);
        let traced = || {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            (!status.contains("TracerPid:\t0")).then_some(true)
        };
        let attached = eventually("strace attaches, or cannot", || {
            // If strace has exited, the process may have ended before strace could attach. That
            // counts as attached. If the process is alive, strace was not permitted to attach.
            traced().or_else(|| strace.0.try_wait().expect("our child").map(|_| is_gone(pid)))
        });
        if !attached {
            crate::skip("strace", "strace may not attach to processes here");
            return None;
        }
        Some(strace)
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        // On SIGTERM strace detaches first. A strace that has already ended has no PID.
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = Command::new("kill").arg(self.0.id().to_string()).stderr(Stdio::null()).status();
            let since = Instant::now();
            while matches!(self.0.try_wait(), Ok(None)) && since.elapsed() < DETACH_WITHIN {
                std::thread::sleep(Duration::from_millis(10));
            }
            // strace never ends by itself if the process ended during a delayed call.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Returns whether the process has ended.
pub fn is_gone(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}
