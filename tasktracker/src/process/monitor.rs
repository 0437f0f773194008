//! Monitors running task processes: memory, number of processes, output, and escaped processes.
//!
//! It runs in a separate thread, which sleeps while there is no process. A process that exceeds a
//! limit is killed with a message that becomes the error of the attempt. Checks are periodic, so a
//! limit can be exceeded for one period; the address space, which the kernel limits immediately,
//! has its own limit. An escaped process is a descendant that became a child of the tracker when
//! its parent died. It belongs to the task process in its mark, and is killed when that has ended.

use super::{Handle, ProcessTable};
use crate::system::{self, Mark};
use daemon::Bytes;
use rustix::process::{Pid, Signal, WaitOptions};
use std::{
    fs::File,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// Interval of checks of memory and output.
const PERIOD: Duration = Duration::from_millis(500);
/// Interval of checks for escaped processes, when a process has ended or one of them is dying.
const PERIOD_MIN: Duration = Duration::from_millis(50);

/// Limits of a task process.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Memory of a process and its descendants; 0 for no limit.
    pub(crate) memory: u64,
    /// Bytes of stdout or stderr; 0 for no limit.
    pub(crate) log: u64,
    /// Number of processes and threads; 0 for no limit.
    pub(crate) processes: u64,
}

/// The monitor thread.
#[derive(Debug)]
pub(crate) struct ProcessMonitor {
    /// The monitored processes.
    pub(crate) processes: Arc<ProcessTable>,
    /// Their limits.
    pub(crate) limits: Limits,
    /// Folder in the marks of the processes of this tracker.
    pub(crate) root: PathBuf,
    /// Incarnation in the marks.
    pub(crate) incarnation: u64,
    /// If this process is the subreaper: its children that are not tasks, which are never killed.
    pub(crate) others: Option<Vec<Pid>>,
}

/// A monitored process.
#[derive(Debug, Clone)]
pub(crate) struct MonitoredProcess {
    /// Kills the process.
    pub(crate) handle: Arc<Handle>,
    /// Its stdout and stderr.
    pub(crate) logs: Arc<[File; 2]>,
}

/// Returns the error of a task that exceeds the number of processes.
pub(crate) fn process_limit_message(max: u64) -> String {
    format!("the task started more than {max} processes and threads (task_processes_max)")
}

impl ProcessMonitor {
    /// Runs until the tracker ends.
    pub(crate) fn watch(self) {
        let mut busy = false;
        let mut looked = None;
        while self.processes.wait_for_work(if busy { PERIOD_MIN } else { PERIOD }, busy) {
            let escaped = self.escaped();
            busy = escaped.is_none();
            if looked.is_none_or(|looked: Instant| looked.elapsed() >= PERIOD) {
                looked = Some(Instant::now());
                let escaped = escaped.unwrap_or_default();
                for one in self.processes.watched() {
                    self.check(&one, &escaped);
                }
            }
            std::thread::sleep(PERIOD_MIN);
        }
    }

    fn check(&self, one: &MonitoredProcess, escaped: &[(Pid, u64)]) {
        for (file, name) in one.logs.iter().zip(["stdout", "stderr"]) {
            let length = file.metadata().map_or(0, |about| about.len());
            if self.limits.log > 0 && length > self.limits.log {
                let limit = Bytes(self.limits.log);
                one.handle
                    .kill_with_reason(format!("the task printed more than {limit} to {name} (task_log_max)"));
            }
        }
        if self.limits.memory == 0 && self.limits.processes == 0 {
            return;
        }
        let mut tree = system::tree(one.handle.pid());
        tree.extend(escaped.iter().filter(|(_, number)| *number == one.handle.number()).map(|(pid, _)| *pid));
        let sum = |measure: fn(Pid) -> u64| tree.iter().map(|pid| measure(*pid)).sum::<u64>();
        // With control groups, the kernel enforces this limit already.
        let max = self.limits.processes;
        if max > 0 && sum(system::threads) > max {
            one.handle.kill_with_reason(process_limit_message(max));
        }
        if self.limits.memory > 0 && sum(system::memory) > self.limits.memory {
            let (used, limit) = (sum(system::proportional_memory), self.limits.memory);
            if used > limit {
                let (used, limit) = (used >> 20, limit >> 20);
                one.handle.kill_with_reason(format!(
                    "out of memory: the task used {used} MiB of {limit} MiB (task_memory_max), processes: {}",
                    tree.len()
                ));
            }
        }
    }

    /// Returns escaped children that belong to a running process, with its number; others are
    /// killed. `None` if some of them have not ended yet.
    fn escaped(&self) -> Option<Vec<(Pid, u64)>> {
        let Some(others) = &self.others else { return Some(Vec::new()) };
        let mut belonging = Vec::new();
        let mut dying = false;
        for pid in self.processes.unknown_children(others) {
            if system::is_zombie(pid) {
                rustix::process::waitpid(Some(pid), WaitOptions::NOHANG).ok();
                continue;
            }
            match system::mark_of(pid, &self.root) {
                Some(Mark { number, incarnation })
                    if incarnation == self.incarnation && self.processes.has(number) =>
                {
                    belonging.push((pid, number));
                }
                _ => {
                    // The PID of a child is valid until it is reaped, which only this thread does.
                    rustix::process::kill_process(pid, Signal::KILL).ok();
                    dying = true;
                }
            }
        }
        (!dying).then_some(belonging)
    }
}
