//! A running program and its three pipes.
//!
//! One thread writes stdin, one reads stdout and one reads stderr, with short queues between them
//! and the task. The task never waits to write without also reading, so no deadlock is possible
//! whatever the sizes of pipes and the behaviour of the program. A program may stop reading early;
//! the remaining input is dropped. If it leaves background processes that have its pipes open, the
//! task does not wait for them, but reads all output of the program itself. Data in either
//! direction and reports are signs of life. A slow program gets only little input in advance
//! ([`Window`]).

use super::{command::split_command, report::Reports, window::Window};
use crate::process::{MARK_VAR, shim};
use mrlib_api::{Conf, Context, TaskError, task_settings};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, ioctl_fionread},
};
use std::{
    collections::VecDeque,
    env,
    io::{self, Read as _, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, ExitStatus, Stdio},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

/// Bytes per chunk.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks in the queue of each direction.
const CHUNKS_WAITING: usize = 4;
/// Interval at which a task that waits for a program checks whether it is killed.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The same interval, for `poll`.
const POLL_TIMESPEC: Timespec = Timespec { tv_sec: 0, tv_nsec: POLL_INTERVAL.as_nanos() as i64 };
/// Interval at which a task checks whether a program has read its input: first, and longest.
const READ_INTERVAL: Duration = Duration::from_micros(250);
const READ_INTERVAL_MAX: Duration = Duration::from_millis(10);
/// How long the pipes may stay open without data after the program has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Prefix of variables that are only for the task process.
const RESERVED_PREFIX: &str = "FERMATA_";

/// Variable names that programs written for Hadoop use, and the corresponding settings.
const HADOOP_NAMES: [(&str, &str); 11] = [
    ("mapreduce_task_attempt_id", task_settings::TASK_ATTEMPT),
    ("mapreduce_task_id", task_settings::TASK_ID),
    ("mapreduce_task_partition", task_settings::TASK_INDEX),
    ("mapreduce_task_output_dir", task_settings::TASK_OUTPUT),
    ("mapreduce_job_id", task_settings::JOB_ID),
    ("mapreduce_job_name", task_settings::JOB_NAME),
    ("mapreduce_job_user_name", task_settings::JOB_USER),
    ("mapreduce_job_reduces", task_settings::JOB_REDUCES),
    ("mapreduce_map_input_file", task_settings::MAP_INPUT_FILE),
    ("mapreduce_map_input_start", task_settings::MAP_INPUT_START),
    ("mapreduce_map_input_length", task_settings::MAP_INPUT_LENGTH),
];

/// Receives the output of a program.
type Take<'a> = dyn FnMut(&[u8], &mut Context) -> Result<(), TaskError> + 'a;

/// A running program.
pub(super) struct Program {
    /// The setting and its command, for error messages.
    name: String,
    child: Child,
    pipes: Arc<Pipes>,
    reports: Arc<Reports>,
    /// Input that was not queued yet.
    chunk: Vec<u8>,
    window: Window,
    /// Disconnected when all threads have ended.
    threads: Receiver<()>,
    /// Whether the exit status was read.
    ended: bool,
}

#[derive(Default)]
struct Pipes {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    to: VecDeque<Vec<u8>>,
    /// The pipe until it is closed, to find out how much of it is unread.
    stdin: Option<Arc<ChildStdin>>,
    /// Bytes that were ever queued, and written to the pipe.
    queued: u64,
    written: u64,
    /// No more input will be added.
    to_end: bool,
    /// The program has closed its stdin.
    to_closed: bool,
    from: VecDeque<Vec<u8>>,
    /// No more output will come.
    from_end: bool,
    /// The program has ended.
    ended: bool,
    /// Since the end of the program its pipe was empty, and all its output is in `from`.
    from_drained: bool,
    abandoned: bool,
    /// Chunks moved in either direction.
    moved: u64,
}

impl Program {
    /// Starts the command of this setting.
    pub(super) fn start(setting: &str, conf: &Conf) -> Result<Self, TaskError> {
        let command = conf.get(setting).unwrap_or_default();
        let name = format!("{setting} `{command}`");
        let argv = split_command(command).map_err(|why| TaskError::Program(format!("{name}: {why}")))?;
        let (mut child, reports) = (spawn(&name, &argv, conf)?, Arc::<Reports>::default());
        let pipes = Arc::<Pipes>::default();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let stderr = child.stderr.take().expect("stderr is piped");
        let (writing, reading, reporting) = (pipes.clone(), pipes.clone(), reports.clone());
        let (alive, threads) = mpsc::channel();
        let run = |work: Box<dyn FnOnce() + Send>| {
            let alive = alive.clone();
            thread::spawn(move || {
                work();
                drop(alive);
            });
        };
        let stdin = Arc::new(stdin.expect("stdin is piped"));
        pipes.lock().stdin = Some(stdin.clone());
        run(Box::new(move || writing.write(stdin)));
        run(Box::new(move || reading.read(stdout.expect("stdout is piped"))));
        run(Box::new(move || reporting.read(stderr)));
        let chunk = Vec::with_capacity(CHUNK_BYTES);
        let window = Window::new(Instant::now());
        Ok(Self { name, child, pipes, reports, chunk, window, threads, ended: false })
    }

    /// Adds bytes to the input of the program.
    #[inline]
    pub(super) fn feed(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.chunk.extend_from_slice(part);
        }
    }

    /// Whether enough input was added to call `exchange`.
    #[inline]
    pub(super) fn needs_exchange(&self) -> bool {
        self.chunk.len() >= self.window.part_bytes(CHUNK_BYTES)
    }

    /// Queues the added input and takes the available output. With `all`, closes stdin, takes all
    /// output, and waits for the end of the program, which must be successful.
    pub(super) fn exchange(
        &mut self,
        all: bool,
        context: &mut Context,
        take: &mut Take<'_>,
    ) -> Result<(), TaskError> {
        let pipes = self.pipes.clone();
        let room = self.window.part_bytes(CHUNK_BYTES);
        let mut chunk = Some(std::mem::replace(&mut self.chunk, Vec::with_capacity(room)));
        let mut waiting = pipes.lock();
        let (mut last_output, mut ended) = (Instant::now(), None::<Instant>);
        let mut read_interval = READ_INTERVAL;
        loop {
            if let Some(output) = waiting.from.pop_front() {
                pipes.changed.notify_all();
                drop(waiting);
                take(&output, context)?;
                context.mark_alive();
                context.check()?;
                last_output = Instant::now();
                waiting = pipes.lock();
                continue;
            }
            let unread = waiting.unread();
            self.window.update(Instant::now(), waiting.queued - unread);
            let has_room = all || self.window.has_room(unread);
            if waiting.to_closed || (waiting.to.len() < CHUNKS_WAITING && has_room) {
                if !waiting.to_closed {
                    waiting.queue(chunk.take());
                }
                waiting.to_end |= all;
                pipes.changed.notify_all();
                if ended.is_none() && all && matches!(self.child.try_wait(), Ok(Some(_))) {
                    ended = Some(Instant::now());
                    waiting.ended = true;
                }
                let silent = last_output.elapsed() >= DRAIN_TIMEOUT
                    && ended.is_some_and(|at| at.elapsed() >= DRAIN_TIMEOUT);
                if !all || waiting.from_end || (silent && waiting.from_drained) {
                    break;
                }
            }
            let moved = waiting.moved;
            let interval = if has_room { POLL_INTERVAL } else { read_interval };
            read_interval = (read_interval * 2).min(READ_INTERVAL_MAX);
            let woken = pipes.changed.wait_timeout(waiting, interval);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
            if waiting.moved != moved {
                context.mark_alive();
            }
            self.reports.apply_to(context);
            context.check()?;
        }
        let gone = waiting.from_end;
        drop(waiting);
        self.reports.apply_to(context);
        context.check()?;
        if all || gone { self.check_end(all, context) } else { Ok(()) }
    }

    /// Checks how the program has ended. A program that has only closed its stdout is waited for at
    /// the end of the input.
    fn check_end(&mut self, all: bool, context: &mut Context) -> Result<(), TaskError> {
        let failed = |name: &str| TaskError::io(format!("wait for {name}"));
        let mut pause = Duration::from_millis(1);
        let status = loop {
            match self.child.try_wait().map_err(failed(&self.name))? {
                Some(status) => break status,
                None if !all => return Ok(()),
                None => {}
            }
            thread::sleep(pause);
            pause = (pause * 2).min(POLL_INTERVAL);
            self.reports.apply_to(context);
            context.check()?;
        };
        if all || !status.success() {
            self.ended = true;
            self.close_pipes();
            self.reports.apply_to(context);
        }
        if status.success() {
            return context.check();
        }
        // Not an error of the current record: the program may have failed at a much earlier one.
        Err(TaskError::Crashed {
            program: self.name.clone(),
            how: how(status),
            stderr: self.reports.last_lines(),
        })
    }

    /// Ends the threads. A thread whose pipe is still open in another process is not waited for.
    fn close_pipes(&self) {
        self.pipes.lock().abandoned = true;
        self.pipes.changed.notify_all();
        let _ = self.threads.recv_timeout(DRAIN_TIMEOUT);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.ended {
            // The program was abandoned. If it has ended by itself, the kill fails.
            let _ = self.child.kill();
            let _ = self.child.wait();
            // Threads may wait for pipes that a background process keeps open, so they are not
            // waited for.
            self.pipes.lock().abandoned = true;
            self.pipes.changed.notify_all();
        }
    }
}

impl Waiting {
    fn queue(&mut self, chunk: Option<Vec<u8>>) {
        let chunk = chunk.filter(|chunk| !chunk.is_empty());
        self.queued += chunk.as_ref().map_or(0, Vec::len) as u64;
        self.to.extend(chunk);
    }

    /// Queued bytes that the program has not read, and may read. Approximate while a chunk is being
    /// written.
    fn unread(&self) -> u64 {
        let Some(stdin) = &self.stdin else { return 0 };
        let mut wanted = [PollFd::new(stdin, PollFlags::empty())];
        let polled = poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        if polled.is_ok() && wanted[0].revents().contains(PollFlags::ERR) {
            // No process has the other end open. The next write fails.
            return 0;
        }
        let in_pipe = ioctl_fionread(stdin).unwrap_or(0);
        (self.queued - self.written + in_pipe).min(self.queued)
    }
}

impl Pipes {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, stdin: Arc<ChildStdin>) {
        loop {
            let quiet =
                |waiting: &mut Waiting| waiting.to.is_empty() && !waiting.to_end && !waiting.abandoned;
            let mut waiting =
                self.changed.wait_while(self.lock(), quiet).unwrap_or_else(PoisonError::into_inner);
            let chunk = if waiting.abandoned { None } else { waiting.to.pop_front() };
            self.changed.notify_all();
            drop(waiting);
            // After any write error the program reads no more. Its exit status tells whether that
            // is an error.
            let written = chunk.filter(|chunk| (&*stdin).write_all(chunk).is_ok());
            let mut waiting = self.lock();
            let Some(chunk) = written else {
                waiting.to_closed = true;
                waiting.to.clear();
                waiting.stdin = None;
                self.changed.notify_all();
                // Closes the pipe: the program gets the end of its input.
                return drop(stdin);
            };
            waiting.written += chunk.len() as u64;
            waiting.moved += 1;
        }
    }

    /// Waits for output. Returns false if it is no longer needed. A blocking read could not be
    /// interrupted while the pipe is open.
    fn wait_for_bytes(&self, stdout: &ChildStdout) -> bool {
        loop {
            let (ended, abandoned) = {
                let waiting = self.lock();
                (waiting.ended, waiting.abandoned)
            };
            if abandoned {
                return false;
            }
            let mut wanted = [PollFd::new(stdout, PollFlags::IN)];
            match poll(&mut wanted, Some(&POLL_TIMESPEC)) {
                Ok(0) if ended => {
                    self.lock().from_drained = true;
                    self.changed.notify_all();
                }
                Ok(0) | Err(Errno::INTR) => {}
                // The read returns any error.
                Ok(_) | Err(_) => return true,
            }
        }
    }

    fn read(&self, mut stdout: ChildStdout) {
        loop {
            if !self.wait_for_bytes(&stdout) {
                return;
            }
            let mut chunk = vec![0; CHUNK_BYTES];
            let got = loop {
                match stdout.read(&mut chunk) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other.unwrap_or(0),
                }
            };
            let full =
                |waiting: &mut Waiting| waiting.from.len() >= CHUNKS_WAITING && !waiting.abandoned && got > 0;
            let mut waiting =
                self.changed.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
            if got == 0 || waiting.abandoned {
                waiting.from_end = true;
                self.changed.notify_all();
                return;
            }
            chunk.truncate(got);
            waiting.from.push_back(chunk);
            waiting.from_drained = false;
            waiting.moved += 1;
            self.changed.notify_all();
        }
    }
}

fn spawn(name: &str, argv: &[String], conf: &Conf) -> Result<Child, TaskError> {
    // A side file may be given without `./`, because it is in this folder.
    let side_file = Path::new(".").join(&argv[0]);
    let executable = if side_file.is_file() { side_file.as_path() } else { Path::new(&argv[0]) };
    let mut command = shim::command(executable.as_os_str());
    command.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (key, _) in env::vars_os() {
        if key.to_string_lossy().starts_with(RESERVED_PREFIX) {
            command.env_remove(key);
        }
    }
    for (key, value) in conf.iter() {
        let variable = variable(key);
        if !variable.starts_with(RESERVED_PREFIX) && variable != MARK_VAR {
            command.env(variable, value);
        }
    }
    // The shared temporary folder is not writable for a confined task.
    if let Ok(own) = env::current_dir() {
        // If tasks have their own account, HOME was the folder in which the process waited for an
        // attempt.
        if env::var_os("HOME").is_none_or(|home| !Path::new(&home).is_dir()) {
            command.env("HOME", &own);
        }
        command.env("TMPDIR", own);
    }
    for (hadoop, ours) in HADOOP_NAMES {
        if let Some(value) = conf.get(ours) {
            command.env(hadoop, value);
        }
    }
    if let Some(kind) = conf.get(task_settings::TASK_KIND) {
        command.env("mapreduce_task_ismap", (kind == "map").to_string());
    }
    command.spawn().map_err(TaskError::io(format!("start {name}")))
}

/// How a program has ended: `ended with exit status 1`, `was killed by signal 9 (SIGKILL)`.
fn how(status: ExitStatus) -> String {
    let verb = if status.code().is_some() { "ended with" } else { "was killed by" };
    format!("{verb} {}", status.to_string().replacen(": ", " ", 1))
}

/// The name of a setting as the name of a variable: every character except letters and digits
/// becomes an underscore.
fn variable(key: &str) -> String {
    key.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}
