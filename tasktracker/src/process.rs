//! Starts and kills task processes, and detects when they have ended.
//!
//! Each process is the leader of a process group. The whole group is killed when the process is
//! killed, and also when the leader has ended. `monitor` handles processes that leave the group. A
//! PID is not used after the process was reaped, because it may belong to another process by then.
//!
//! Children ask the kernel to kill them when their parent *thread* ends, so one thread that lives
//! as long as the tracker starts all of them. The child itself first changes its account, makes
//! this request and sets its limits, as the environment variables of mrlib say: doing this between
//! fork and exec would need unsafe code, and a fork copies the page tables of the tracker.
//! Therefore every child is a program of Fermata. The executable of a job is started by a launcher
//! (`shim` of mrlib), which waits until it is in its control group.

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

/// Maximum number of messages of a child that are not handled yet. If there are more, the child
/// waits.
const MESSAGES_MAX: usize = 8;
/// Maximum number of processes that wait to be started. If there are more, the callers wait.
const REQUESTS_MAX: usize = 64;
/// PATH of tasks that have an account of their own, not that of the tracker.
const TASK_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Stack size of a thread that only waits for a process.
const WAITER_STACK_BYTES: usize = 64 << 10;

/// Parameters of a new process.
#[derive(Debug, Clone)]
pub(crate) struct ProcessStart {
    /// Working folder.
    pub(crate) folder: PathBuf,
    /// Files for stdout and stderr.
    pub(crate) logs: Arc<[File; 2]>,
    /// The program that the launcher starts; `None` for a process that runs built-in programs.
    pub(crate) launch: Option<LaunchProgram>,
}

/// Common settings of all processes.
#[derive(Debug, Clone)]
pub(crate) struct ProcessEnvironment {
    /// Path of the umbilical, the Unix socket that task processes connect to.
    pub(crate) umbilical: PathBuf,
    /// First folder of the tracker. It is part of the environment variable that marks the processes
    /// of the tracker.
    pub(crate) root: PathBuf,
    /// Incarnation of the tracker.
    pub(crate) incarnation: u64,
    /// Limits of a task process including its children.
    pub(crate) limits: Limits,
    /// Maximum address space of each process; 0 for no limit.
    pub(crate) address_space_max: u64,
    /// Maximum number of open files of each process; 0 for no limit.
    pub(crate) files_max: u64,
    /// Account of the processes; `None` if it is the account of the tracker.
    pub(crate) account: Option<Account>,
    /// Control groups that enforce the limits, if available.
    pub(crate) groups: Option<Groups>,
    /// The children of this process that are not tasks; `None` if this process is not the
    /// subreaper.
    pub(crate) other_children: Option<Vec<Pid>>,
}

/// A message that a process sent to the tracker.
#[derive(Debug)]
pub(crate) enum ProcessMessage {
    /// The process has connected. Messages to it are sent over this channel.
    Hello(mpsc::Sender<proto::mr::ToTask>),
    /// Any later message.
    Message(proto::mr::FromTask),
    /// The connection was closed; with the error if a message was invalid.
    Closed(Option<String>),
}

/// A task process, with its messages.
#[derive(Debug)]
pub(crate) struct Process {
    /// Kills the process.
    pub(crate) handle: Arc<ProcessHandle>,
    /// Messages of the process.
    pub(crate) messages: mpsc::Receiver<ProcessMessage>,
    /// Receives the exit status after the process was reaped and its group killed.
    pub(crate) exit_status: oneshot::Receiver<ExitStatus>,
}

/// Kills a process, and remembers the reason.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    pid: Pid,
    /// Identifies the process within its tracker. Not a PID.
    process_number: u64,
    /// False once the process may have been reaped.
    is_running: Mutex<bool>,
    kill_reason: Mutex<Option<String>>,
    /// Maximum number of processes in the control group, and the groups, which enforce it.
    process_limit: Option<(u64, Groups)>,
    /// Whether the kernel has refused to start another process in the control group. Set when the
    /// process has ended.
    fork_refused: OnceLock<bool>,
}

impl ProcessHandle {
    /// Returns an error message if the kernel has refused to start another process in the control
    /// group.
    pub(crate) fn fork_refusal(&self) -> Option<String> {
        let (max, groups) = self.process_limit.as_ref()?;
        let now = || groups.refusals(self.process_number) > 0;
        let refused = self.fork_refused.get().copied().unwrap_or_else(now);
        refused.then(|| process_limit_message(*max))
    }

    /// Kills the process group, if its leader still runs.
    pub(crate) fn kill(&self) {
        if *self.is_running.lock() {
            // An error means that no process of the group is left.
            rustix::process::kill_process_group(self.pid, Signal::KILL).ok();
        }
    }

    /// Kills the process group with a reason that the user sees, if its leader still runs.
    pub(crate) fn kill_with_reason(&self, why: String) {
        if *self.is_running.lock() {
            self.kill_reason.lock().get_or_insert(why);
        }
        self.kill();
    }

    /// Returns why the process was killed, if it was killed with a reason.
    pub(crate) fn kill_reason(&self) -> Option<String> {
        self.kill_reason.lock().clone()
    }

    /// Returns the PID of the process. It is invalid after the process was reaped.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the number of the process, as it is in its mark.
    pub(crate) fn process_number(&self) -> u64 {
        self.process_number
    }
}

impl Process {
    /// Returns whether the process is still usable: it has not ended, disconnected, or been killed.
    pub(crate) fn is_usable(&mut self) -> bool {
        matches!(self.exit_status.try_recv(), Err(oneshot::error::TryRecvError::Empty))
            && self.messages.is_empty()
            && self.handle.kill_reason().is_none()
    }
}

impl Drop for Process {
    /// Kills the process, because its messages would not be read any more.
    fn drop(&mut self) {
        self.handle.kill();
    }
}

/// Starts task processes, and keeps a table of the running ones.
#[derive(Debug, Clone)]
pub(crate) struct Spawner {
    requests: mpsc::Sender<Request>,
    processes: Arc<ProcessTable>,
    account: Option<Account>,
}

type Request = (PathBuf, ProcessStart, oneshot::Sender<io::Result<Process>>);

/// The table of running task processes.
#[derive(Debug, Default)]
pub(crate) struct ProcessTable {
    state: Mutex<TableState>,
    /// Notified when the state changes.
    changed: Condvar,
    groups: Option<Groups>,
}

#[derive(Debug, Default)]
struct TableState {
    /// Running processes by PID.
    by_pid: HashMap<i32, TableEntry>,
    /// Number of the newest process.
    newest_number: u64,
    /// Whether a process has ended since the last check of the monitor.
    process_ended: bool,
    /// Whether the tracker is stopping.
    closing: bool,
}

#[derive(Debug)]
struct TableEntry {
    monitored: MonitoredProcess,
    /// Channel for the messages of the process. The first connection of the process takes it.
    messages: Option<mpsc::Sender<ProcessMessage>>,
}

impl ProcessTable {
    /// Waits until the monitor has to check processes: when a process has ended, after `period` if
    /// any process runs, and always after `period` if the monitor is `busy`. Returns false when the
    /// tracker stops.
    pub(crate) fn wait_for_work(&self, period: Duration, busy: bool) -> bool {
        let mut table = self.state.lock();
        let mut until = None;
        while !table.process_ended && !table.closing {
            if table.by_pid.is_empty() && !busy {
                self.changed.wait(&mut table);
            } else {
                let until = *until.get_or_insert_with(|| Instant::now() + period);
                if self.changed.wait_until(&mut table, until).timed_out() {
                    break;
                }
            }
        }
        table.process_ended = false;
        !table.closing
    }

    /// Returns all running task processes.
    pub(crate) fn monitored(&self) -> Vec<MonitoredProcess> {
        self.state.lock().by_pid.values().map(|entry| entry.monitored.clone()).collect()
    }

    /// Returns whether the task process with this number runs.
    pub(crate) fn is_running(&self, number: u64) -> bool {
        self.state.lock().by_pid.values().any(|entry| entry.monitored.handle.process_number == number)
    }

    /// Returns the children of this process that are neither task processes nor in
    /// `other_children`. The table is locked meanwhile, so that no task process is started.
    pub(crate) fn unknown_children(&self, other_children: &[Pid]) -> Vec<Pid> {
        let table = self.state.lock();
        let mut found = system::children(rustix::process::getpid());
        found.retain(|pid| {
            !other_children.contains(pid) && !table.by_pid.contains_key(&pid.as_raw_nonzero().get())
        });
        found
    }

    /// Puts a new process into its control group, before it has started other processes.
    fn enter_group(&self, number: u64, pid: Pid) {
        let Some(groups) = &self.groups else { return };
        if let Err(error) = groups.create(number).and_then(|()| groups.enter(number, pid)) {
            tracing::warn!(%error, "cannot put a task process into a control group");
        }
    }

    fn close(&self) {
        self.state.lock().closing = true;
        self.changed.notify_all();
    }

    /// Reaps a process that has ended, and removes it from the table. The table is locked
    /// meanwhile, because the system may use the PID again afterwards.
    fn reap(&self, pid: Pid) -> ExitStatus {
        let mut table = self.state.lock();
        let reaped = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        table.by_pid.remove(&pid.as_raw_nonzero().get());
        table.process_ended = true;
        self.changed.notify_all();
        reaped
            .ok()
            .flatten()
            .map_or_else(ExitStatus::default, |(_, status)| ExitStatus::from_raw(status.as_raw()))
    }
}

impl Spawner {
    /// Starts a thread that starts all task processes, and a thread that monitors them.
    pub(crate) fn start(environment: ProcessEnvironment) -> io::Result<Self> {
        Self::start_with(environment, WAITER_STACK_BYTES)
    }

    fn start_with(environment: ProcessEnvironment, waiter_stack: usize) -> io::Result<Self> {
        let (requests, mut incoming) = mpsc::channel::<Request>(REQUESTS_MAX);
        let account = environment.account;
        let processes =
            Arc::new(ProcessTable { groups: environment.groups.clone(), ..ProcessTable::default() });
        let for_spawner = processes.clone();
        let monitor = ProcessMonitor {
            processes: processes.clone(),
            limits: environment.limits.clone(),
            root: environment.root.clone(),
            incarnation: environment.incarnation,
            other_children: environment.other_children.clone(),
        };
        std::thread::Builder::new().name("spawner".into()).spawn(move || {
            while let Some((program, start, reply)) = incoming.blocking_recv() {
                // If the caller is gone, the process is dropped here, which kills it.
                reply.send(spawn(&program, start, &environment, &for_spawner, waiter_stack)).ok();
            }
            for_spawner.close();
        })?;
        std::thread::Builder::new().name("monitor".into()).spawn(move || monitor.run())?;
        Ok(Self { requests, processes, account })
    }

    /// Starts a process of this program.
    pub(crate) async fn spawn(&self, program: &Path, start: ProcessStart) -> io::Result<Process> {
        let (reply, started) = oneshot::channel();
        let stopping = || io::Error::other("the tracker is stopping");
        self.requests.send((program.into(), start, reply)).await.map_err(|_| stopping())?;
        started.await.map_err(|_| stopping())?
    }

    /// Returns the channel for the messages of the process `pid`. Returns `None` if it is not a
    /// task process, or if the channel was claimed before.
    pub(crate) fn claim(&self, pid: i32) -> Option<mpsc::Sender<ProcessMessage>> {
        self.processes.state.lock().by_pid.get_mut(&pid)?.messages.take()
    }

    /// Returns the account of task processes; `None` if it is the account of the tracker.
    pub(crate) fn account(&self) -> Option<Account> {
        self.account
    }

    /// Kills all processes.
    pub(crate) fn kill_all(&self) {
        for process in self.processes.monitored() {
            process.handle.kill();
        }
    }

    /// Returns the number of running processes.
    pub(crate) fn count(&self) -> usize {
        self.processes.state.lock().by_pid.len()
    }
}

fn spawn(
    program: &Path,
    start: ProcessStart,
    environment: &ProcessEnvironment,
    processes: &Arc<ProcessTable>,
    waiter_stack: usize,
) -> io::Result<Process> {
    let ProcessStart { folder, logs, launch } = start;
    let mut command = command(program, &folder, environment);
    if launch.is_some() {
        command.env(LAUNCH_VAR, "stdin").stdin(Stdio::piped());
    }
    command.stdout(logs[0].try_clone()?).stderr(logs[1].try_clone()?);
    let (message_sender, messages) = mpsc::channel(MESSAGES_MAX);
    let (report_exit, exit_status) = oneshot::channel();
    // The table is locked until it has an entry for the process, because the process may connect
    // before `spawn` returns.
    let mut table = processes.state.lock();
    table.newest_number += 1;
    let number = table.newest_number;
    let mark = Mark { process_number: number, incarnation: environment.incarnation };
    command.env(MARK_VAR, system::format_mark(mark, &environment.root));
    #[allow(clippy::zombie_processes, reason = "`wait` reaps it by its PID")]
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    system::prefer_for_oom_kill(pid);
    processes.enter_group(number, pid);
    if let (Some(launch), Some(mut stdin)) = (launch, child.stdin.take()) {
        // If the launcher does not read this it has died, and its exit status shows why.
        write_frame(&mut stdin, &launch).ok();
    }
    let handle = Arc::new(ProcessHandle {
        pid,
        process_number: number,
        is_running: Mutex::new(true),
        kill_reason: Mutex::default(),
        process_limit: processes.groups.clone().map(|groups| (environment.limits.processes, groups)),
        fork_refused: OnceLock::new(),
    });
    let monitored = MonitoredProcess { handle: handle.clone(), logs };
    table.by_pid.insert(pid.as_raw_nonzero().get(), TableEntry { monitored, messages: Some(message_sender) });
    processes.changed.notify_all();
    drop(table);
    let (for_wait, for_table) = (handle.clone(), processes.clone());
    let waiter = std::thread::Builder::new().name("waiter".into()).stack_size(waiter_stack);
    let waiting = waiter.spawn(move || {
        report_exit.send(wait(&for_wait, &for_table)).ok();
    });
    if let Err(error) = waiting {
        // Without a thread that waits, it would not be detected that the process has ended.
        handle.kill();
        wait(&handle, processes);
        return Err(error);
    }
    Ok(Process { handle, messages, exit_status })
}

/// Waits until the leader of a process group has ended, kills the rest of the group, and only then
/// reaps the leader. Returns its exit status.
fn wait(handle: &ProcessHandle, processes: &ProcessTable) -> ExitStatus {
    let without_reaping = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = rustix::process::waitid(WaitId::Pid(handle.pid), without_reaping)
    {
    }
    let mut is_running = handle.is_running.lock();
    rustix::process::kill_process_group(handle.pid, Signal::KILL).ok();
    *is_running = false;
    drop(is_running);
    let status = processes.reap(handle.pid);
    handle.fork_refused.get_or_init(|| {
        handle.process_limit.as_ref().is_some_and(|(_, groups)| groups.refusals(handle.process_number) > 0)
    });
    if let Some(groups) = &processes.groups {
        // This fails if escaped processes are still in the control group. The monitor kills them,
        // and the next start removes the group.
        groups.remove(handle.process_number).ok();
    }
    status
}

fn command(program: &Path, folder: &Path, environment: &ProcessEnvironment) -> Command {
    let mut command = Command::new(program);
    // Set the name of the program, because `program` may be the path of a file descriptor.
    command.arg0("mrtask").current_dir(folder).stdin(Stdio::null()).process_group(0).env_clear();
    let mut inherited = vec!["LANG", "FERMATA_LOG", daemon::HOST_VAR];
    match environment.account {
        // The HOME and PATH of the tracker are for its own account.
        Some(account) => {
            command.env(ACCOUNT_VAR, format!("{}:{}", account.user, account.group));
            command.env("PATH", TASK_PATH).env("HOME", folder);
        }
        None => inherited.extend(["PATH", "HOME"]),
    }
    for key in inherited {
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

/// Describes how a process that sent no result has ended, with the last lines of its stderr.
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
