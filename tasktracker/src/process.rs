//! Task processes as the system sees them: start, kill, know when they are gone.
//!
//! Each is the leader of a process group of its own, and a kill takes the whole group; so does the leader's end.
//! What leaves the group is `process_monitor`'s. The number of a process is not used after it has been reaped: it may be
//! another's by then. Children ask the kernel to be killed with their parent *thread*, so all are started by one
//! thread that lives as long as the tracker. The change to the tasks' account, that request and the limits are made by
//! the child itself, first thing (mrlib's variables in its environment): doing it between fork and exec takes unsafe
//! code, and a fork copies the tracker's page tables. So every child is a program of ours: the executable of a job
//! comes after that, by a launcher (mrlib's `shim`), which waits until it is in its control group.

use crate::{
    cgroup::Groups,
    confine::Account,
    process_monitor::{Limits, MonitoredProcess, ProcessMonitor, process_limit_message},
    system::{self, Mark},
};
use mrlib::task::{
    UMBILICAL_VAR,
    frame::write_frame,
    process::{ACCOUNT_VAR, LIMIT_AS_VAR, LIMIT_NOFILE_VAR, MARK_VAR, TRACKER_PID_VAR},
    shim::LAUNCH_VAR,
};
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
    sync::{Arc, OnceLock, mpsc as threads},
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};

/// Messages of one child that wait to be read; a child that says more waits itself.
const MESSAGES_MAX: usize = 8;
/// Where tasks of another account than the tracker's find programs.
const TASK_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Of a thread that only waits.
const WAITER_STACK: usize = 64 << 10;

/// What is needed to start any process.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    /// Its current folder.
    pub(crate) folder: PathBuf,
    /// Its stdout and stderr.
    pub(crate) logs: Arc<[File; 2]>,
    /// What it is to become.
    pub(crate) launch: Option<LaunchProgram>,
}

/// What all processes get.
#[derive(Debug, Clone)]
pub(crate) struct ProcessEnvironment {
    /// Path of the umbilical's socket.
    pub(crate) umbilical: PathBuf,
    /// The tracker's first folder, by which its processes are known.
    pub(crate) root: PathBuf,
    /// This start of the tracker.
    pub(crate) incarnation: u64,
    /// What they may take together with all that they start.
    pub(crate) limits: Limits,
    /// Address space that each process may take; 0 for no limit.
    pub(crate) address_space_max: u64,
    /// Files that each may have open; 0 for no limit.
    pub(crate) files_max: u64,
    /// The account that they get, if it is not the tracker's.
    pub(crate) account: Option<Account>,
    /// Groups that hold them to their limits, if there are any.
    pub(crate) groups: Option<Groups>,
    /// If this process takes over what escapes: its children that are no tasks.
    pub(crate) others: Option<Vec<Pid>>,
}

/// What comes from a process over its umbilical.
#[derive(Debug)]
pub(crate) enum ProcessMessage {
    /// It is there; this is the way to it.
    Hello(mpsc::Sender<proto::mr::ToTask>),
    /// A message.
    Message(proto::mr::FromTask),
    /// It hung up, or said something that makes no sense.
    Closed(Option<String>),
}

/// A process, and all that is heard of it.
#[derive(Debug)]
pub(crate) struct Process {
    /// To end it.
    pub(crate) handle: Arc<Handle>,
    /// What it says.
    pub(crate) messages: mpsc::Receiver<ProcessMessage>,
    /// How it ended; by then it has been reaped, and its group killed.
    pub(crate) ended: oneshot::Receiver<ExitStatus>,
}

/// Ends a process.
#[derive(Debug)]
pub(crate) struct Handle {
    pid: Pid,
    number: u64,
    /// False once it may have been reaped.
    is_running: Mutex<bool>,
    kill_reason: Mutex<Option<String>>,
    /// The processes that it may have, and the groups that hold it to them.
    bound: Option<(u64, Groups)>,
    /// Whether the kernel has refused it one more; known for good when it has ended.
    refused: OnceLock<bool>,
}

impl Handle {
    /// If it was refused a process: what is said of that.
    pub(crate) fn refusal(&self) -> Option<String> {
        let (max, groups) = self.bound.as_ref()?;
        let refused = self.refused.get().copied().unwrap_or_else(|| groups.refusals(self.number) > 0);
        refused.then(|| process_limit_message(*max))
    }

    /// Kills the group, if its leader is still there.
    pub(crate) fn kill(&self) {
        if *self.is_running.lock() {
            // An error means that there is nobody left to kill.
            rustix::process::kill_process_group(self.pid, Signal::KILL).ok();
        }
    }

    /// Kills it for something that it has done, if its leader is still there.
    pub(crate) fn kill_with_reason(&self, why: String) {
        if *self.is_running.lock() {
            self.kill_reason.lock().get_or_insert(why);
        }
        self.kill();
    }

    /// What it was killed for.
    pub(crate) fn kill_reason(&self) -> Option<String> {
        self.kill_reason.lock().clone()
    }

    /// Its number in the system; another's once it has been reaped.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Its number in its mark.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Process {
    /// Whether it waits: has not ended, hung up, or been condemned.
    pub(crate) fn alive(&mut self) -> bool {
        matches!(self.ended.try_recv(), Err(oneshot::error::TryRecvError::Empty))
            && self.messages.is_empty()
            && self.handle.kill_reason().is_none()
    }
}

impl Drop for Process {
    /// A process that nobody listens to any more has no reason to live.
    fn drop(&mut self) {
        self.handle.kill();
    }
}

/// Starts processes and knows all that live.
#[derive(Debug, Clone)]
pub(crate) struct Spawner {
    requests: threads::Sender<Request>,
    processes: Arc<ProcessTable>,
    account: Option<Account>,
}

type Request = (PathBuf, Start, oneshot::Sender<io::Result<Process>>);

/// The processes that live.
#[derive(Debug, Default)]
pub(crate) struct ProcessTable {
    table: Mutex<Table>,
    changed: Condvar,
    groups: Option<Groups>,
}

#[derive(Debug, Default)]
struct Table {
    all: HashMap<i32, Entry>,
    /// How many were started.
    number: u64,
    /// Something has ended since the warden looked.
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
    /// Waits until there is something to look at: when a process has ended, after `period` while one lives, and
    /// after `period` in any case if the warden is `busy`. False when the tracker ends.
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

    /// All of them.
    pub(crate) fn watched(&self) -> Vec<MonitoredProcess> {
        self.table.lock().all.values().map(|entry| entry.watched.clone()).collect()
    }

    /// Whether the start of this number lives.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.table.lock().all.values().any(|entry| entry.watched.handle.number == number)
    }

    /// This process's children that are neither tasks nor among `others`. Nothing is started meanwhile.
    pub(crate) fn unknown_children(&self, others: &[Pid]) -> Vec<Pid> {
        let table = self.table.lock();
        let mut found = system::children(rustix::process::getpid());
        found.retain(|pid| !others.contains(pid) && !table.all.contains_key(&pid.as_raw_nonzero().get()));
        found
    }

    /// Puts a new process into a group of its own: it is one of ours, and has started nothing yet.
    fn group(&self, number: u64, pid: Pid) {
        let Some(groups) = &self.groups else { return };
        if let Err(error) = groups.make(number).and_then(|()| groups.enter(number, pid)) {
            tracing::warn!(%error, "a task process without a control group");
        }
    }

    fn close(&self) {
        self.table.lock().closing = true;
        self.changed.notify_all();
    }

    /// Reaps a process that has ended, and forgets it: in one step, because its number is free after that.
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
    /// Begins the thread that all processes are started from, and the one that watches them.
    pub(crate) fn start(environment: ProcessEnvironment) -> io::Result<Self> {
        Self::start_with(environment, WAITER_STACK)
    }

    fn start_with(environment: ProcessEnvironment, waiter_stack: usize) -> io::Result<Self> {
        let (requests, incoming) = threads::channel::<Request>();
        let account = environment.account;
        let processes =
            Arc::new(ProcessTable { groups: environment.groups.clone(), ..ProcessTable::default() });
        let for_thread = processes.clone();
        let warden = ProcessMonitor {
            processes: processes.clone(),
            limits: environment.limits.clone(),
            root: environment.root.clone(),
            incarnation: environment.incarnation,
            others: environment.others.clone(),
        };
        std::thread::Builder::new().name("spawner".into()).spawn(move || {
            for (program, start, reply) in incoming {
                // If nobody waits for it any more, dropping it kills it.
                reply.send(spawn(&program, start, &environment, &for_thread, waiter_stack)).ok();
            }
            for_thread.close();
        })?;
        std::thread::Builder::new().name("warden".into()).spawn(move || warden.watch())?;
        Ok(Self { requests, processes, account })
    }

    /// Starts a process of this program.
    pub(crate) async fn spawn(&self, program: &Path, start: Start) -> io::Result<Process> {
        let (reply, started) = oneshot::channel();
        let over = || io::Error::other("the tracker is stopping");
        self.requests.send((program.into(), start, reply)).map_err(|_| over())?;
        started.await.map_err(|_| over())?
    }

    /// The way to the owner of the living process `pid`, once.
    pub(crate) fn claim(&self, pid: i32) -> Option<mpsc::Sender<ProcessMessage>> {
        self.processes.table.lock().all.get_mut(&pid)?.messages.take()
    }

    /// The account that processes get, if it is not the tracker's.
    pub(crate) fn account(&self) -> Option<Account> {
        self.account
    }

    /// Kills all.
    pub(crate) fn kill_all(&self) {
        for one in self.processes.watched() {
            one.handle.kill();
        }
    }

    /// How many live.
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
    let (tell_end, ended) = oneshot::channel();
    // Held until the entry is in: the process may connect before `spawn` returns.
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
        // One that does not read it has died, and its end says why.
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
        tell_end.send(wait(&for_wait, &for_table)).ok();
    });
    if let Err(error) = waiting {
        // Nobody would notice its end.
        handle.kill();
        wait(&handle, processes);
        return Err(error);
    }
    Ok(Process { handle, messages, ended })
}

/// Waits for the leader's end, kills what is left of its group, and only then reaps it.
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
        // What has escaped the group of processes may still be in it: the warden ends that, and the folder stays.
        groups.remove(handle.number).ok();
    }
    status
}

fn command(program: &Path, folder: &Path, environment: &ProcessEnvironment) -> Command {
    let mut command = Command::new(program);
    // Its path may be that of a descriptor.
    command.arg0("mrtask").current_dir(folder).stdin(Stdio::null()).process_group(0).env_clear();
    let mut passed = vec!["LANG", "FERMATA_LOG", daemon::HOST_VAR];
    match environment.account {
        // The tracker's home and programs are of another account.
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

/// What a process's end says when the process itself said nothing, with the last lines of its stderr.
pub(crate) fn describe_exit(status: ExitStatus, logs: &Path) -> String {
    let how = match (status.signal(), status.code()) {
        (Some(9), _) => "killed by signal 9 (out of memory? its limit is tasktracker.task_memory_max)".into(),
        (Some(signal), _) => format!("killed by signal {signal}{}", signal_name(signal)),
        (None, Some(0)) => "exit code 0 without a result".into(),
        (None, code) => format!("exit code {}", code.unwrap_or(-1)),
    };
    with_stderr(how, logs)
}

/// `how`, with the last lines of a process's stderr.
pub(crate) fn with_stderr(how: String, logs: &Path) -> String {
    const LINES: usize = 10;
    const BYTES: u64 = 4 << 10;
    let tail = crate::logs::tail(&logs.join("stderr"), BYTES).unwrap_or_default();
    let tail = String::from_utf8_lossy(&tail);
    let lines: Vec<&str> = tail.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    if last.is_empty() { how } else { format!("{how}; stderr ends with:\n{}", last.join("\n")) }
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
