//! Task processes as the system sees them: start, kill, know when they are gone.
//!
//! Each is the leader of a process group of its own, and a kill takes the whole group; so does the leader's end.
//! The number of a process is not used after it has been reaped: it may be another's by then. Children ask the
//! kernel to be killed with their parent *thread*, so all are started by one thread that lives as long as the
//! tracker. That request and the limits are made by the child itself, first thing (`FERMATA_*` in its
//! environment), because doing it between fork and exec takes unsafe code. What they start in turn is killed by the
//! guard. Deliberately absent: catching a grandchild that leaves the group on purpose.

use crate::guard::Guard;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::{
    collections::HashMap,
    fs::File,
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, mpsc as threads},
};
use tokio::sync::{mpsc, oneshot};

/// Messages of one child that wait to be read; a child that says more waits itself.
const SAID_MAX: usize = 64;

/// What is needed to start any process.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    /// The executable.
    pub(crate) program: PathBuf,
    /// Its current folder; stdout and stderr become files in it.
    pub(crate) folder: PathBuf,
}

/// What all processes get.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    /// Path of the umbilical's socket.
    pub(crate) umbilical: PathBuf,
    /// Address space that each may take; 0 for no limit.
    pub(crate) memory_max: u64,
    /// Files that each may have open; 0 for no limit.
    pub(crate) files_max: u64,
}

/// What comes from a process over its umbilical.
#[derive(Debug)]
pub(crate) enum Said {
    /// It is there; this is the way to it.
    Hello(mpsc::UnboundedSender<proto::mr::ToTask>),
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
    pub(crate) said: mpsc::Receiver<Said>,
    /// How it ended; by then it has been reaped, and its group killed.
    pub(crate) ended: oneshot::Receiver<ExitStatus>,
}

/// Ends a process.
#[derive(Debug)]
pub(crate) struct Handle {
    pid: Pid,
    /// False once it may have been reaped.
    there: Mutex<bool>,
}

impl Handle {
    /// Kills the group, if its leader is still there.
    pub(crate) fn kill(&self) {
        if *self.there.lock() {
            // An error means that there is nobody left to kill.
            rustix::process::kill_process_group(self.pid, Signal::KILL).ok();
        }
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
    living: Arc<Living>,
}

type Request = (Start, oneshot::Sender<io::Result<Process>>);

#[derive(Debug)]
struct Living {
    table: Mutex<HashMap<i32, Entry>>,
    guard: Guard,
}

#[derive(Debug)]
struct Entry {
    handle: Arc<Handle>,
    /// Taken by the first connection.
    said: Option<mpsc::Sender<Said>>,
}

impl Spawner {
    /// Begins the thread that all processes are started from.
    pub(crate) fn start(surroundings: Surroundings, guard: Guard) -> io::Result<Self> {
        let (requests, incoming) = threads::channel::<Request>();
        let living = Arc::new(Living { table: Mutex::default(), guard });
        let for_thread = living.clone();
        std::thread::Builder::new().name("spawner".into()).spawn(move || {
            for (start, reply) in incoming {
                // If nobody waits for it any more, dropping it kills it.
                reply.send(spawn(&start, &surroundings, &for_thread)).ok();
            }
        })?;
        Ok(Self { requests, living })
    }

    /// Starts a process.
    pub(crate) async fn spawn(&self, start: Start) -> io::Result<Process> {
        let (reply, started) = oneshot::channel();
        let over = || io::Error::other("the tracker is stopping");
        self.requests.send((start, reply)).map_err(|_| over())?;
        started.await.map_err(|_| over())?
    }

    /// The way to the owner of the living process `pid`, once.
    pub(crate) fn claim(&self, pid: i32) -> Option<mpsc::Sender<Said>> {
        self.living.table.lock().get_mut(&pid)?.said.take()
    }

    /// Kills all.
    pub(crate) fn kill_all(&self) {
        let all: Vec<Arc<Handle>> =
            self.living.table.lock().values().map(|entry| entry.handle.clone()).collect();
        for handle in all {
            handle.kill();
        }
    }

    /// How many live.
    pub(crate) fn count(&self) -> usize {
        self.living.table.lock().len()
    }
}

fn spawn(start: &Start, surroundings: &Surroundings, living: &Arc<Living>) -> io::Result<Process> {
    let mut command = command(start, surroundings)?;
    let (say, said) = mpsc::channel(SAID_MAX);
    let (tell_end, ended) = oneshot::channel();
    // Held until the entry is in: the process may connect before `spawn` returns.
    let mut table = living.table.lock();
    let child = command.spawn()?;
    let pid = Pid::from_child(&child);
    let handle = Arc::new(Handle { pid, there: Mutex::new(true) });
    table.insert(pid.as_raw_nonzero().get(), Entry { handle: handle.clone(), said: Some(say) });
    drop(table);
    living.guard.watch(pid);
    let (for_wait, for_table) = (handle.clone(), living.clone());
    let process = Process { handle, said, ended };
    let waiter = std::thread::Builder::new().name("waiter".into()).stack_size(64 << 10);
    waiter.spawn(move || {
        let status = wait(child, &for_wait, &for_table);
        tell_end.send(status).ok();
    })?;
    Ok(process)
}

/// Waits for the leader's end, kills what is left of its group, and only then reaps it.
fn wait(mut child: Child, handle: &Handle, living: &Living) -> ExitStatus {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = rustix::process::waitid(WaitId::Pid(handle.pid), look) {}
    let mut there = handle.there.lock();
    rustix::process::kill_process_group(handle.pid, Signal::KILL).ok();
    *there = false;
    drop(there);
    living.table.lock().remove(&handle.pid.as_raw_nonzero().get());
    living.guard.forget(handle.pid);
    child.wait().unwrap_or_default()
}

fn command(start: &Start, surroundings: &Surroundings) -> io::Result<Command> {
    let log = |name: &str| File::create(start.folder.join(name)).map(Stdio::from);
    let mut command = Command::new(&start.program);
    command
        .current_dir(&start.folder)
        .stdin(Stdio::null())
        .stdout(log("stdout")?)
        .stderr(log("stderr")?)
        .process_group(0)
        .env_clear();
    for key in ["PATH", "HOME", "LANG", "FERMATA_LOG"] {
        if let Some(value) = std::env::var_os(key) {
            command.env(key, value);
        }
    }
    command.env("FERMATA_UMBILICAL", &surroundings.umbilical);
    command.env("FERMATA_TRACKER_PID", std::process::id().to_string());
    let limits =
        [("FERMATA_RLIMIT_AS", surroundings.memory_max), ("FERMATA_RLIMIT_NOFILE", surroundings.files_max)];
    for (key, limit) in limits {
        if limit > 0 {
            command.env(key, limit.to_string());
        }
    }
    Ok(command)
}

/// What a process's end says when the process itself said nothing, with the last lines of its stderr.
pub(crate) fn last_words(status: ExitStatus, folder: &Path) -> String {
    use std::os::unix::process::ExitStatusExt;
    let how = match (status.signal(), status.code()) {
        (Some(9), _) => "killed by signal 9 (out of memory?)".into(),
        (Some(signal), _) => format!("killed by signal {signal}{}", signal_name(signal)),
        (None, Some(0)) => "exit code 0, but it did not say that it was done".into(),
        (None, code) => format!("exit code {}", code.unwrap_or(-1)),
    };
    with_stderr(how, folder)
}

/// `how`, with the last lines of a process's stderr.
pub(crate) fn with_stderr(how: String, folder: &Path) -> String {
    const LINES: usize = 10;
    const BYTES: u64 = 4 << 10;
    let tail = crate::logs::tail(&folder.join("stderr"), BYTES).unwrap_or_default();
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
