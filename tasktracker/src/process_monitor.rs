//! Watches over task processes while they run: what memory they take, how many they are, how much they print, and who has
//! escaped.
//!
//! A thread of its own, that sleeps while there is no process. What it cannot allow it ends with words that become
//! the attempt's error. Looks come at a period, so a limit can be passed by what a process does in one; the
//! address space, which the kernel limits at once, has a bound of its own. Escaped: a child that this tracker has
//! come to by the death of the parent in between. It belongs to the start that it bears the mark of, and dies
//! after that.

use crate::{
    process::{Handle, ProcessTable},
    system::{self, Mark},
};
use daemon::Bytes;
use rustix::process::{Pid, Signal, WaitOptions};
use std::{
    fs::File,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// Between two looks at what processes take and print.
const PERIOD: Duration = Duration::from_millis(500);
/// Between two looks for escaped processes, when something has ended or one of them is dying.
const PERIOD_MIN: Duration = Duration::from_millis(50);

/// What is allowed.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Memory of a process and all below it; 0 for no limit.
    pub(crate) memory: u64,
    /// Bytes on stdout or stderr; 0 for no limit.
    pub(crate) log: u64,
    /// Processes and threads; 0 for no limit.
    pub(crate) processes: u64,
}

/// The watch.
#[derive(Debug)]
pub(crate) struct ProcessMonitor {
    /// Who is watched.
    pub(crate) processes: Arc<ProcessTable>,
    /// What is allowed.
    pub(crate) limits: Limits,
    /// The folder in the marks of this tracker's processes.
    pub(crate) root: PathBuf,
    /// The incarnation in them.
    pub(crate) incarnation: u64,
    /// If this process takes over what escapes: its children that are no tasks, of which none is touched.
    pub(crate) others: Option<Vec<Pid>>,
}

/// A process that is watched.
#[derive(Debug, Clone)]
pub(crate) struct MonitoredProcess {
    /// To end it.
    pub(crate) handle: Arc<Handle>,
    /// Its stdout and stderr.
    pub(crate) logs: Arc<[File; 2]>,
}

/// What is said of a task that has, or wanted, more than this.
pub(crate) fn process_limit_message(max: u64) -> String {
    format!("it wanted more than {max} processes and threads (task_processes_max)")
}

impl ProcessMonitor {
    /// Watches until the tracker ends.
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
                    self.look(&one, &escaped);
                }
            }
            std::thread::sleep(PERIOD_MIN);
        }
    }

    fn look(&self, one: &MonitoredProcess, escaped: &[(Pid, u64)]) {
        for (file, name) in one.logs.iter().zip(["stdout", "stderr"]) {
            let length = file.metadata().map_or(0, |about| about.len());
            if self.limits.log > 0 && length > self.limits.log {
                let limit = Bytes(self.limits.log);
                one.handle.kill_with_reason(format!("it printed more than {limit} to {name} (task_log_max)"));
            }
        }
        if self.limits.memory == 0 && self.limits.processes == 0 {
            return;
        }
        let mut tree = system::tree(one.handle.pid());
        tree.extend(escaped.iter().filter(|(_, number)| *number == one.handle.number()).map(|(pid, _)| *pid));
        let sum = |measure: fn(Pid) -> u64| tree.iter().map(|pid| measure(*pid)).sum::<u64>();
        // Where there are control groups, the kernel has seen to it that there are no more.
        let max = self.limits.processes;
        if max > 0 && sum(system::threads) > max {
            one.handle.kill_with_reason(process_limit_message(max));
        }
        if self.limits.memory > 0 && sum(system::memory) > self.limits.memory {
            let (used, limit) = (sum(system::proportional_memory), self.limits.memory);
            if used > limit {
                let (used, limit) = (used >> 20, limit >> 20);
                one.handle.kill_with_reason(format!(
                    "out of memory: it used {used} MiB of {limit} MiB (task_memory_max), processes: {}",
                    tree.len()
                ));
            }
        }
    }

    /// Children that escaped and belong to a start that lives, with its number; others are ended. None if some of
    /// them have yet to go.
    fn escaped(&self) -> Option<Vec<(Pid, u64)>> {
        let Some(others) = &self.others else { return Some(Vec::new()) };
        let mut remote_error = Vec::new();
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
                    remote_error.push((pid, number));
                }
                _ => {
                    // A child's number stays its own until it is reaped, which only this thread does.
                    rustix::process::kill_process(pid, Signal::KILL).ok();
                    dying = true;
                }
            }
        }
        (!dying).then_some(remote_error)
    }
}
