//! Task processes of the operating system: start, kill, and detection of their end.
//!
//! Each process is the leader of a process group. A kill ends the whole group, and so does the end
//! of the leader. `monitor` handles processes that leave the group. A PID is not used after
//! the process was reaped, because it may belong to another process by then. Children request to be
//! killed with their parent *thread*, so all are started by one thread that lives as long as the
//! tracker. The child itself changes its account, makes that request and sets its limits first (by
//! variables of mrlib in its environment): doing this between fork and exec needs unsafe code, and
//! a fork copies the page tables of the tracker. Therefore every child is a program of Fermata. The
//! executable of a job is started by a launcher (`shim` of mrlib), which waits until it is in its
//! control group.

mod monitor;

pub(crate) use monitor::Limits;

use crate::{
    account::Account,
    cgroup::Groups,
    system::{self, Mark},
};
use engine::{
    frame::write_frame,
    process::{ACCOUNT_VAR, LIMIT_AS_VAR, LIMIT_NOFILE_VAR, MARK_VAR, TRACKER_PID_VAR, shim::LAUNCH_VAR},
    task::UMBILICAL_VAR,
};
use monitor::{MonitoredProcess, ProcessMonitor, process_limit_message};
use parking_lot::{Condvar, Mutex};
use proto::mr::LaunchProgram;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use std::{
    collections::HashMap,
    fs::File,
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};

/// Maximum number of unread messages of a child; then the child waits.
const MESSAGES_MAX: usize = 8;
/// Maximum number of processes that wait to be started; then the caller waits.
const REQUESTS_MAX: usize = 64;
/// PATH of tasks with another account than the tracker.
const TASK_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Stack size of a thread that only waits.
const WAITER_STACK: usize = 64 << 10;

/// Parameters of a new process.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    /// Working folder.
    pub(crate) folder: PathBuf,
    /// Files for stdout and stderr.
    pub(crate) logs: Arc<[File; 2]>,
    /// Program to be started by the launcher.
    pub(crate) launch: Option<LaunchProgram>,
}

/// Common settings of all processes.
#[derive(Debug, Clone)]
pub(crate) struct ProcessEnvironment {
    /// Path of the socket of the umbilical.
    pub(crate) umbilical: PathBuf,
    /// First folder of the tracker, which is part of the mark of its processes.
    pub(crate) root: PathBuf,
    /// Incarnation of the tracker.
    pub(crate) incarnation: u64,
    /// Limits of a process including its children.
    pub(crate) limits: Limits,
    /// Maximum address space of each process; 0 for no limit.
    pub(crate) address_space_max: u64,
    /// Maximum number of open files of each process; 0 for no limit.
    pub(crate) files_max: u64,
    /// Account of the processes, if it is not that of the tracker.
    pub(crate) account: Option<Account>,
    /// Control groups that enforce the limits, if available.
    pub(crate) groups: Option<Groups>,
    /// If this process is the subreaper: its children that are not tasks.
    pub(crate) others: Option<Vec<Pid>>,
}

/// A message of a process over its umbilical.
#[derive(Debug)]
pub(crate) enum ProcessMessage {
    /// The process has connected; orders are sent over this channel.
    Hello(mpsc::Sender<proto::mr::ToTask>),
    /// Any later message.
    Message(proto::mr::FromTask),
    /// The connection was closed, or a message was invalid.
    Closed(Option<String>),
}

/// A process with its messages.
#[derive(Debug)]
pub(crate) struct Process {
    /// Kills the process.
    pub(crate) handle: Arc<Handle>,
    /// Messages of the process.
    pub(crate) messages: mpsc::Receiver<ProcessMessage>,
    /// Exit status; by then it was reaped, and its group killed.
    pub(crate) ended: oneshot::Receiver<ExitStatus>,
}

/// Kills a process.
#[derive(Debug)]
pub(crate) struct Handle {
    pid: Pid,
    number: u64,
    /// False once it may have been reaped.
    is_running: Mutex<bool>,
    kill_reason: Mutex<Option<String>>,
    /// Maximum number of processes, and the groups that enforce it.
    bound: Option<(u64, Groups)>,
    /// Whether the kernel has refused it another process; set when it has ended.
    refused: OnceLock<bool>,
}

impl Handle {
    /// Returns the error message if it was refused a process.
    pub(crate) fn refusal(&self) -> Option<String> {
        let (max, groups) = self.bound.as_ref()?;
        let refused = self.refused.get().copied().unwrap_or_else(|| groups.refusals(self.number) > 0);
        refused.then(|| process_limit_message(*max))
    }

    /// Kills the group, if its leader still runs.
    pub(crate) fn kill(&self) {
        if *self.is_running.lock() {
            // An error means that there is no process left.
            rustix::process::kill_process_group(self.pid, Signal::KILL).ok();
        }
    }

    /// Kills it with a reason for the user, if its leader still runs.
    pub(crate) fn kill_with_reason(&self, why: String) {
        if *self.is_running.lock() {
            self.kill_reason.lock().get_or_insert(why);
        }
        self.kill();
    }

    /// Returns why it was killed.
    pub(crate) fn kill_reason(&self) -> Option<String> {
        self.kill_reason.lock().clone()
    }

    /// Returns its PID; invalid after it was reaped.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns its number in its mark.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Process {
    /// Whether it is still usable: it has not ended, disconnected, or been killed.
    pub(crate) fn alive(&mut self) -> bool {
        matches!(self.ended.try_recv(), Err(oneshot::error::TryRecvError::Empty))
            && self.messages.is_empty()
            && self.handle.kill_reason().is_none()
    }
}

impl Drop for Process {
    /// A process without a listener is killed.
    fn drop(&mut self) {
        self.handle.kill();
    }
}

/// Starts processes, and has a table of all that run.
#[derive(Debug, Clone)]
pub(crate) struct Spawner {
    requests: mpsc::Sender<Request>,
    processes: Arc<ProcessTable>,
    account: Option<Account>,
}

type Request = (PathBuf, Start, oneshot::Sender<io::Result<Process>>);

/// The running processes.
#[derive(Debug, Default)]
pub(crate) struct ProcessTable {
    table: Mutex<Table>,
    changed: Condvar,
    groups: Option<Groups>,
}

#[derive(Debug, Default)]
struct Table {
    all: HashMap<i32, Entry>,
    /// Number of processes started so far.
    number: u64,
    /// Whether a process has ended since the last check of the monitor.
    ended: bool,
    closing: bool,
}

#[derive(Debug)]
struct Entry {
    watched: MonitoredProcess,
    /// Taken by the first connection.
    messages: Option<mpsc::Sender<ProcessMessage>>,
}

impl ProcessTable {
    /// Waits until there is something to check: when a process has ended, after `period` while one
    /// runs, and always after `period` if the monitor is `busy`. Returns false when the tracker
    /// ends.
    pub(crate) fn wait_for_work(&self, period: Duration, busy: bool) -> bool {
        let mut table = self.table.lock();
        let mut until = None;
        while !table.ended && !table.closing {
            if table.all.is_empty() && !busy {
                self.changed.wait(&mut table);
            } else {
                let until = *until.get_or_insert_with(|| Instant::now() + period);
                if self.changed.wait_until(&mut table, until).timed_out() {
                    break;
                }
            }
        }
        table.ended = false;
        !table.closing
    }

    /// Returns all processes.
    pub(crate) fn watched(&self) -> Vec<MonitoredProcess> {
        self.table.lock().all.values().map(|entry| entry.watched.clone()).collect()
    }

    /// Whether the process with this number runs.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.table.lock().all.values().any(|entry| entry.watched.handle.number == number)
    }

    /// Returns the children of this process that are neither tasks nor in `others`. No process is
    /// started meanwhile.
    pub(crate) fn unknown_children(&self, others: &[Pid]) -> Vec<Pid> {
        let table = self.table.lock();
        let mut found = system::children(rustix::process::getpid());
        found.retain(|pid| !others.contains(pid) && !table.all.contains_key(&pid.as_raw_nonzero().get()));
        found
    }

    /// Puts a new process into its control group, before it has started anything.
    fn group(&self, number: u64, pid: Pid) {
        let Some(groups) = &self.groups else { return };
        if let Err(error) = groups.make(number).and_then(|()| groups.enter(number, pid)) {
            tracing::warn!(%error, "cannot put a task process into a control group");
        }
    }

    fn close(&self) {
        self.table.lock().closing = true;
        self.changed.notify_all();
    }

    /// Reaps a process that has ended, and removes it from the table, in one step, because its PID
    /// is free afterwards.
    fn reap(&self, pid: Pid) -> ExitStatus {
        let mut table = self.table.lock();
        let reaped = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        table.all.remove(&pid.as_raw_nonzero().get());
        table.ended = true;
        self.changed.notify_all();
        reaped
            .ok()
            .flatten()
            .map_or_else(ExitStatus::default, |(_, status)| ExitStatus::from_raw(status.as_raw()))
    }
}

impl Spawner {
    /// Starts the thread that starts all processes, and the one that monitors them.
    pub(crate) fn start(environment: ProcessEnvironment) -> io::Result<Self> {
        Self::start_with(environment, WAITER_STACK)
    }

    fn start_with(environment: ProcessEnvironment, waiter_stack: usize) -> io::Result<Self> {
        let (requests, mut incoming) = mpsc::channel::<Request>(REQUESTS_MAX);
        let account = environment.account;
        let processes =
            Arc::new(ProcessTable { groups: environment.groups.clone(), ..ProcessTable::default() });
        let for_thread = processes.clone();
        let monitor = ProcessMonitor {
            processes: processes.clone(),
            limits: environment.limits.clone(),
            root: environment.root.clone(),
            incarnation: environment.incarnation,
            others: environment.others.clone(),
        };
        std::thread::Builder::new().name("spawner".into()).spawn(move || {
            while let Some((program, start, reply)) = incoming.blocking_recv() {
                // If the caller is gone, dropping the process kills it.
                reply.send(spawn(&program, start, &environment, &for_thread, waiter_stack)).ok();
            }
            for_thread.close();
        })?;
        std::thread::Builder::new().name("monitor".into()).spawn(move || monitor.watch())?;
        Ok(Self { requests, processes, account })
    }

    /// Starts a process of this program.
    pub(crate) async fn spawn(&self, program: &Path, start: Start) -> io::Result<Process> {
        let (reply, started) = oneshot::channel();
        let over = || io::Error::other("the tracker is stopping");
        self.requests.send((program.into(), start, reply)).await.map_err(|_| over())?;
        started.await.map_err(|_| over())?
    }

    /// Returns the channel to the owner of the process `pid`, once.
    pub(crate) fn claim(&self, pid: i32) -> Option<mpsc::Sender<ProcessMessage>> {
        self.processes.table.lock().all.get_mut(&pid)?.messages.take()
    }

    /// Returns the account of processes, if it is not that of the tracker.
    pub(crate) fn account(&self) -> Option<Account> {
        self.account
    }

    /// Kills all processes.
    pub(crate) fn kill_all(&self) {
        for one in self.processes.watched() {
            one.handle.kill();
        }
    }

    /// Returns the number of running processes.
    pub(crate) fn count(&self) -> usize {
        self.processes.table.lock().all.len()
    }
}

fn spawn(
    program: &Path,
    start: Start,
    environment: &ProcessEnvironment,
    processes: &Arc<ProcessTable>,
    waiter_stack: usize,
) -> io::Result<Process> {
    let Start { folder, logs, launch } = start;
    let mut command = command(program, &folder, environment);
    if launch.is_some() {
        command.env(LAUNCH_VAR, "stdin").stdin(Stdio::piped());
    }
    command.stdout(logs[0].try_clone()?).stderr(logs[1].try_clone()?);
    let (message_sender, messages) = mpsc::channel(MESSAGES_MAX);
    let (report_end, ended) = oneshot::channel();
    // Locked until the entry exists: the process may connect before `spawn` returns.
    let mut table = processes.table.lock();
    table.number += 1;
    let number = table.number;
    let mark = Mark { number, incarnation: environment.incarnation };
    command.env(MARK_VAR, system::mark(mark, &environment.root));
    #[allow(clippy::zombie_processes, reason = "it is reaped by its number, in `wait`")]
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    system::prefer_for_oom_kill(pid);
    processes.group(number, pid);
    if let (Some(launch), Some(mut stdin)) = (launch, child.stdin.take()) {
        // If it does not read this it has died, and its exit status shows why.
        write_frame(&mut stdin, &launch).ok();
    }
    let handle = Arc::new(Handle {
        pid,
        number,
        is_running: Mutex::new(true),
        kill_reason: Mutex::default(),
        bound: processes.groups.clone().map(|groups| (environment.limits.processes, groups)),
        refused: OnceLock::new(),
    });
    let watched = MonitoredProcess { handle: handle.clone(), logs };
    table.all.insert(pid.as_raw_nonzero().get(), Entry { watched, messages: Some(message_sender) });
    processes.changed.notify_all();
    drop(table);
    let (for_wait, for_table) = (handle.clone(), processes.clone());
    let waiter = std::thread::Builder::new().name("waiter".into()).stack_size(waiter_stack);
    let waiting = waiter.spawn(move || {
        report_end.send(wait(&for_wait, &for_table)).ok();
    });
    if let Err(error) = waiting {
        // Its end would not be detected.
        handle.kill();
        wait(&handle, processes);
        return Err(error);
    }
    Ok(Process { handle, messages, ended })
}

/// Waits for the end of the leader, kills the rest of its group, and only then reaps it.
fn wait(handle: &Handle, processes: &ProcessTable) -> ExitStatus {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = rustix::process::waitid(WaitId::Pid(handle.pid), look) {}
    let mut is_running = handle.is_running.lock();
    rustix::process::kill_process_group(handle.pid, Signal::KILL).ok();
    *is_running = false;
    drop(is_running);
    let status = processes.reap(handle.pid);
    handle
        .refused
        .get_or_init(|| handle.bound.as_ref().is_some_and(|(_, groups)| groups.refusals(handle.number) > 0));
    if let Some(groups) = &processes.groups {
        // Escaped processes may still be in the control group. The monitor kills them, and the
        // folder stays.
        groups.remove(handle.number).ok();
    }
    status
}

fn command(program: &Path, folder: &Path, environment: &ProcessEnvironment) -> Command {
    let mut command = Command::new(program);
    // The path may be that of a descriptor.
    command.arg0("mrtask").current_dir(folder).stdin(Stdio::null()).process_group(0).env_clear();
    let mut passed = vec!["LANG", "FERMATA_LOG", daemon::HOST_VAR];
    match environment.account {
        // Home and programs of the tracker belong to another account.
        Some(account) => {
            command.env(ACCOUNT_VAR, format!("{}:{}", account.user, account.group));
            command.env("PATH", TASK_PATH).env("HOME", folder);
        }
        None => passed.extend(["PATH", "HOME"]),
    }
    for key in passed {
        if let Some(value) = std::env::var_os(key) {
            command.env(key, value);
        }
    }
    command.env(UMBILICAL_VAR, &environment.umbilical);
    command.env(TRACKER_PID_VAR, std::process::id().to_string());
    let limits = [(LIMIT_AS_VAR, environment.address_space_max), (LIMIT_NOFILE_VAR, environment.files_max)];
    for (key, limit) in limits {
        if limit > 0 {
            command.env(key, limit.to_string());
        }
    }
    command
}

/// Describes the end of a process that sent no result, with the last lines of its stderr.
pub(crate) fn describe_exit(status: ExitStatus, logs: &Path) -> String {
    let how = match (status.signal(), status.code()) {
        (Some(9), _) => "killed by signal 9 (out of memory? its limit is tasktracker.task_memory_max)".into(),
        (Some(signal), _) => format!("killed by signal {signal}{}", signal_name(signal)),
        (None, Some(0)) => "exit code 0 without a result".into(),
        (None, code) => format!("exit code {}", code.unwrap_or(-1)),
    };
    with_stderr(&how, logs)
}

/// Appends the last lines of the stderr of a process to `how`.
pub(crate) fn with_stderr(how: &str, logs: &Path) -> String {
    const LINES: usize = 10;
    const BYTES: u64 = 4 << 10;
    let tail = crate::logs::tail(&logs.join("stderr"), BYTES).unwrap_or_default();
    let tail = String::from_utf8_lossy(&tail);
    let lines: Vec<&str> = tail.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    mrlib_api::error::with_stderr(how, &last.join("\n"))
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        4 => " (illegal instruction)",
        6 => " (aborted)",
        7 => " (bus error: a mapped file became shorter?)",
        8 => " (arithmetic error)",
        11 => " (segmentation fault)",
        15 => " (terminated)",
        25 => " (file too large)",
        _ => "",
    }
}

#[cfg(test)]
mod tests;
