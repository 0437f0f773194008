//! Monitors running task processes: their memory, number of processes and output, and escaped
//! processes.
//!
//! The monitor runs in a separate thread, which sleeps while there is no process. A task process
//! that exceeds a limit is killed, with a message that becomes the error of the attempt. Checks are
//! periodic, so a limit can be exceeded for one period; the kernel enforces the limit of the
//! address space immediately. An escaped process is a descendant that became a child of the tracker
//! when its parent died. It belongs to the task process that is named in its mark (an environment
//! variable, see `system`), and is killed when that process has ended.

use super::{ProcessHandle, ProcessTable};
use crate::system::{self, Mark};
use daemon::Bytes;
use rustix::process::{Pid, Signal, WaitOptions};
use std::{
    fs::File,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// Time between two checks of memory and output.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Time between two checks for escaped processes, when a task process has ended or an escaped
/// process was killed.
const ESCAPED_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Limits of a task process.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Memory of a process and its descendants, in bytes; 0 for no limit.
    pub(crate) memory: u64,
    /// Bytes in each of stdout and stderr; 0 for no limit.
    pub(crate) log: u64,
    /// Number of processes and threads of a task; 0 for no limit.
    pub(crate) processes: u64,
}

/// The monitor thread.
#[derive(Debug)]
pub(crate) struct ProcessMonitor {
    /// The monitored processes.
    pub(crate) processes: Arc<ProcessTable>,
    /// Limits of each task process.
    pub(crate) limits: Limits,
    /// The folder in the marks of the processes of this tracker.
    pub(crate) root: PathBuf,
    /// The incarnation in the marks of the processes of this tracker.
    pub(crate) incarnation: u64,
    /// The children of this process that are not tasks, which are never killed; `None` if this
    /// process is not the subreaper.
    pub(crate) other_children: Option<Vec<Pid>>,
}

/// A monitored task process.
#[derive(Debug, Clone)]
pub(crate) struct MonitoredProcess {
    /// Kills the process.
    pub(crate) handle: Arc<ProcessHandle>,
    /// Files with the stdout and stderr of the process.
    pub(crate) logs: Arc<[File; 2]>,
}

/// Returns the error message of a task that exceeds the limit for processes.
pub(crate) fn process_limit_message(max: u64) -> String {
    format!("the task started more than {max} processes and threads (task_processes_max)")
}

impl ProcessMonitor {
    /// Checks processes until the tracker stops.
    pub(crate) fn run(self) {
        let mut busy = false;
        let mut last_check = None;
        while self.processes.wait_for_work(if busy { ESCAPED_CHECK_INTERVAL } else { CHECK_INTERVAL }, busy) {
            let escaped = self.find_escaped();
            busy = escaped.is_none();
            if last_check.is_none_or(|last_check: Instant| last_check.elapsed() >= CHECK_INTERVAL) {
                last_check = Some(Instant::now());
                let escaped = escaped.unwrap_or_default();
                for process in self.processes.monitored() {
                    self.check_limits(&process, &escaped);
                }
            }
            std::thread::sleep(ESCAPED_CHECK_INTERVAL);
        }
    }

    /// Kills a task process that exceeds a limit. `escaped` are the escaped processes, each with
    /// the number of the task process that it belongs to.
    fn check_limits(&self, process: &MonitoredProcess, escaped: &[(Pid, u64)]) {
        for (file, name) in process.logs.iter().zip(["stdout", "stderr"]) {
            let length = file.metadata().map_or(0, |about| about.len());
            if self.limits.log > 0 && length > self.limits.log {
                let limit = Bytes(self.limits.log);
                process
                    .handle
                    .kill_with_reason(format!("the task printed more than {limit} to {name} (task_log_max)"));
            }
        }
        if self.limits.memory == 0 && self.limits.processes == 0 {
            return;
        }
        let mut tree = system::process_tree(process.handle.pid());
        let of_process = |(_, number): &&(Pid, u64)| *number == process.handle.process_number();
        tree.extend(escaped.iter().filter(of_process).map(|(pid, _)| *pid));
        let sum = |measure: fn(Pid) -> u64| tree.iter().map(|pid| measure(*pid)).sum::<u64>();
        // If there are control groups, the kernel already enforces this limit.
        let max = self.limits.processes;
        if max > 0 && sum(system::thread_count) > max {
            process.handle.kill_with_reason(process_limit_message(max));
        }
        if self.limits.memory > 0 && sum(system::private_memory) > self.limits.memory {
            let (used, limit) = (sum(system::proportional_memory), self.limits.memory);
            if used > limit {
                let (used, limit) = (used >> 20, limit >> 20);
                process.handle.kill_with_reason(format!(
                    "out of memory: the task used {used} MiB, the limit is {limit} MiB (task_memory_max); number of its processes: {}",
                    tree.len()
                ));
            }
        }
    }

    /// Returns the escaped processes that belong to a running task process, each with the number of
    /// that process. Kills all other escaped processes, and returns `None` if there were any,
    /// because they may not have ended yet.
    fn find_escaped(&self) -> Option<Vec<(Pid, u64)>> {
        let Some(other_children) = &self.other_children else { return Some(Vec::new()) };
        let mut belonging = Vec::new();
        let mut killed = false;
        for pid in self.processes.unknown_children(other_children) {
            if system::is_zombie(pid) {
                rustix::process::waitpid(Some(pid), WaitOptions::NOHANG).ok();
                continue;
            }
            match system::mark_of(pid, &self.root) {
                Some(Mark { process_number, incarnation })
                    if incarnation == self.incarnation && self.processes.is_running(process_number) =>
                {
                    belonging.push((pid, process_number));
                }
                _ => {
                    // The PID is valid until the child is reaped, and only this thread reaps it.
                    rustix::process::kill_process(pid, Signal::KILL).ok();
                    killed = true;
                }
            }
        }
        (!killed).then_some(belonging)
    }
}
