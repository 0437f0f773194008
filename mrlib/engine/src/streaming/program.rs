//! A running program and its three pipes.
//!
//! One thread writes stdin, one reads stdout and one reads stderr, with short queues between them
//! and the task. The task never waits to write without also reading, so no deadlock is possible
//! whatever the sizes of pipes and the behaviour of the program. A program may stop reading early;
//! the remaining input is dropped. If it leaves background processes that have its pipes open, the
//! task does not wait for them, but still reads all output of the program. Data in either
//! direction and reports are signs of life. A slow program gets only little input in advance
//! ([`Window`]).

use super::{ENVIRONMENT, EXIT_STATUS, command::split_command, report::Reports, window::Window};
use crate::process::{MARK_VAR, shim};
use crossbeam::channel::{self, Receiver, Select, Sender, TryRecvError, TrySendError};
use mrlib_api::{Conf, Context, TaskError, task_settings};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, ioctl_fionread},
};
use std::{
    collections::BTreeMap,
    env,
    io::{self, Read as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, ExitStatus, Stdio},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Bytes per chunk.
const CHUNK_BYTES: usize = 64 << 10;
/// Maximum number of chunks in the queue of each direction.
const CHUNKS_WAITING: usize = 4;
/// Interval at which a task that waits for a program checks whether it is killed.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// `POLL_INTERVAL` in the type that `poll` needs.
const POLL_TIMESPEC: Timespec = Timespec { tv_sec: 0, tv_nsec: POLL_INTERVAL.as_nanos() as i64 };
/// First interval at which a task checks whether a program has read its input. It doubles with each
/// check.
const READ_INTERVAL: Duration = Duration::from_micros(250);
/// Longest interval at which a task checks whether a program has read its input.
const READ_INTERVAL_MAX: Duration = Duration::from_millis(10);
/// How long the pipes may stay open without data after the program has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Prefix of environment variables that are only for the task process.
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
type TakeOutput<'a> = dyn FnMut(&[u8], &mut Context) -> Result<(), TaskError> + 'a;

/// A running program.
pub(super) struct Program {
    /// The setting and its command, for error messages.
    name: String,
    child: Child,
    pipes: Arc<Pipes>,
    reports: Arc<Reports>,
    /// Input that was not queued yet.
    chunk: Vec<u8>,
    /// Queued input. None after the last chunk; disconnected if the program has closed its stdin.
    to: Option<Sender<Vec<u8>>>,
    /// Number of bytes queued since the start.
    bytes_queued: u64,
    /// The pipe to stdin until it is closed, to find out how much of its data is unread.
    stdin: Weak<ChildStdin>,
    /// Output of the program. Disconnected after the last chunk.
    from: Receiver<Vec<u8>>,
    window: Window,
    /// Disconnected when all threads have ended.
    threads: Receiver<()>,
    /// Whether the exit status was read.
    has_ended: bool,
    /// Whether an exit status other than 0 is an error.
    status_counts: bool,
}

/// What the task and the threads of the pipes share, besides the data.
#[derive(Default)]
struct Pipes {
    /// Bytes that were written to stdin.
    bytes_written: AtomicU64,
    /// Chunks moved in either direction.
    chunks_moved: AtomicU64,
    /// Whether the program has ended.
    program_ended: AtomicBool,
    /// Whether stdout was empty after the end of the program, so that all its output was queued.
    drained: AtomicBool,
    /// Whether the task does not need the program any more, so that the threads end.
    abandoned: AtomicBool,
}

impl Program {
    /// Starts the command of this setting.
    pub(super) fn start(setting: &str, conf: &Conf) -> Result<Self, TaskError> {
        let command = conf.get(setting).unwrap_or_default();
        let name = format!("{setting} `{}`", in_one_line(command));
        let argv = split_command(command).map_err(|why| TaskError::Program(format!("{name}: {why}")))?;
        let (mut child, reports) = (spawn(&name, &argv, conf)?, Arc::<Reports>::default());
        let pipes = Arc::<Pipes>::default();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let stderr = child.stderr.take().expect("stderr is piped");
        let (writing, reading, reporting) = (pipes.clone(), pipes.clone(), reports.clone());
        let (alive, threads) = channel::bounded(0);
        let run = |work: Box<dyn FnOnce() + Send>| {
            let alive = alive.clone();
            thread::spawn(move || {
                work();
                drop(alive);
            });
        };
        let (to, input) = channel::bounded(CHUNKS_WAITING);
        let (output, from) = channel::bounded(CHUNKS_WAITING);
        let pipe = Arc::new(stdin.expect("stdin is piped"));
        let stdin = Arc::downgrade(&pipe);
        run(Box::new(move || writing.write(&pipe, &input)));
        run(Box::new(move || reading.read(stdout.expect("stdout is piped"), &output)));
        run(Box::new(move || reporting.read(stderr)));
        let (chunk, to, bytes_queued) = (Vec::with_capacity(CHUNK_BYTES), Some(to), 0);
        let (window, has_ended) = (Window::new(Instant::now()), false);
        let status_counts = conf.parse(EXIT_STATUS, true)?;
        Ok(Self {
            name,
            child,
            pipes,
            reports,
            chunk,
            to,
            bytes_queued,
            stdin,
            from,
            window,
            threads,
            has_ended,
            status_counts,
        })
    }

    /// Adds bytes to the input of the program.
    #[inline]
    pub(super) fn add_input(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.chunk.extend_from_slice(part);
        }
    }

    /// Returns whether enough input was added to call `exchange`.
    #[inline]
    pub(super) fn needs_exchange(&self) -> bool {
        self.chunk.len() >= self.window.part_bytes(CHUNK_BYTES)
    }

    /// Queues the added input and passes the available output to `take`. With `all`, closes stdin,
    /// passes all output, and waits for the end of the program, which must be successful.
    pub(super) fn exchange(
        &mut self,
        all: bool,
        context: &mut Context,
        take: &mut TakeOutput<'_>,
    ) -> Result<(), TaskError> {
        let room = self.window.part_bytes(CHUNK_BYTES);
        let mut chunk = Some(std::mem::replace(&mut self.chunk, Vec::with_capacity(room)));
        let (mut last_output, mut ended) = (Instant::now(), None::<Instant>);
        let (mut read_interval, mut moved) = (READ_INTERVAL, self.pipes.chunks_moved.load(Ordering::Relaxed));
        let gone = loop {
            // Read this flag before the queue: if it is set, the queue has all output of the
            // program.
            let drained = self.pipes.drained.load(Ordering::Acquire);
            let gone = match self.from.try_recv() {
                Ok(output) => {
                    take(&output, context)?;
                    context.mark_alive();
                    context.check()?;
                    last_output = Instant::now();
                    continue;
                }
                Err(error) => error == TryRecvError::Disconnected,
            };
            let unread = self.unread_bytes();
            self.window.update(Instant::now(), self.bytes_queued - unread);
            let has_room = all || self.window.has_room(unread);
            if has_room {
                self.queue_chunk(&mut chunk);
            }
            let waits = all || chunk.is_some();
            if ended.is_none() && waits && matches!(self.child.try_wait(), Ok(Some(_))) {
                ended = Some(Instant::now());
                self.pipes.program_ended.store(true, Ordering::Relaxed);
            }
            if ended.is_some() {
                // The program has ended, but a background process may keep its stdin open.
                chunk = None;
            }
            if chunk.is_none() {
                if all {
                    self.to = None;
                }
                let silent = last_output.elapsed() >= DRAIN_TIMEOUT
                    && ended.is_some_and(|at| at.elapsed() >= DRAIN_TIMEOUT);
                if !all || gone || (silent && drained) {
                    break gone || ended.is_some();
                }
            }
            let interval = if has_room { POLL_INTERVAL } else { read_interval };
            read_interval = (read_interval * 2).min(READ_INTERVAL_MAX);
            self.wait(!gone, has_room && chunk.is_some(), interval);
            let moved_before = std::mem::replace(&mut moved, self.pipes.chunks_moved.load(Ordering::Relaxed));
            if moved != moved_before {
                context.mark_alive();
            }
            self.reports.apply_to(context);
            context.check()?;
        };
        self.reports.apply_to(context);
        context.check()?;
        if all || gone { self.check_end(all, context) } else { Ok(()) }
    }

    /// Queues a chunk if the queue has room. Drops it if the program has closed its stdin.
    fn queue_chunk(&mut self, chunk: &mut Option<Vec<u8>>) {
        let (Some(to), Some(bytes)) = (&self.to, chunk.take().filter(|bytes| !bytes.is_empty())) else {
            return;
        };
        let length = bytes.len() as u64;
        match to.try_send(bytes) {
            Ok(()) => self.bytes_queued += length,
            Err(TrySendError::Full(bytes)) => *chunk = Some(bytes),
            Err(TrySendError::Disconnected(_)) => {}
        }
    }

    /// Waits until there is output, until the queue of input has room, or for the interval.
    fn wait(&self, for_output: bool, for_room: bool, interval: Duration) {
        let mut select = Select::new();
        if for_output {
            select.recv(&self.from);
        }
        if let Some(to) = self.to.as_ref().filter(|_| for_room) {
            select.send(to);
        }
        // A timeout is not an error: the caller checks output and queue in any case.
        let _ = select.ready_timeout(interval);
    }

    /// Returns the queued bytes that the program has not read but still can; 0 if its stdin is
    /// closed. Approximate while a chunk is being written.
    fn unread_bytes(&self) -> u64 {
        let Some(stdin) = self.stdin.upgrade() else { return 0 };
        let mut wanted = [PollFd::new(&stdin, PollFlags::empty())];
        let polled = poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        if polled.is_ok() && wanted[0].revents().contains(PollFlags::ERR) {
            // No process has the other end open. The next write fails.
            return 0;
        }
        let in_pipe = ioctl_fionread(&stdin).unwrap_or(0);
        (self.bytes_queued - self.pipes.bytes_written.load(Ordering::Relaxed) + in_pipe)
            .min(self.bytes_queued)
    }

    /// Checks the exit status if the program has exited. If `all`, first waits for a program that
    /// has closed its stdout but is still running.
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
            self.has_ended = true;
            self.close_pipes();
            self.reports.apply_to(context);
        }
        if status.success() || (!self.status_counts && status.code().is_some()) {
            return context.check();
        }
        // This is not an error of the current record, because the program may have failed at a much
        // earlier one.
        Err(TaskError::Crashed {
            program: self.name.clone(),
            how: describe_exit(status),
            stderr: self.reports.last_lines(),
        })
    }

    /// Ends the threads. A thread whose pipe is still open in another process is not waited for.
    fn close_pipes(&mut self) {
        self.pipes.abandoned.store(true, Ordering::Relaxed);
        (self.to, self.from) = (None, channel::never());
        let _ = self.threads.recv_timeout(DRAIN_TIMEOUT);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.has_ended {
            // The task does not need the program any more. If it has already ended, the kill fails.
            let _ = self.child.kill();
            let _ = self.child.wait();
            // Threads may wait for pipes that a background process keeps open, so they are not
            // waited for.
            self.pipes.abandoned.store(true, Ordering::Relaxed);
        }
    }
}

impl Pipes {
    /// Writes the queued chunks to stdin. The pipe is closed when this method returns, and the
    /// program gets the end of its input.
    fn write(&self, mut stdin: &ChildStdin, input: &Receiver<Vec<u8>>) {
        for chunk in input {
            // After any write error the program reads no more. Its exit status tells whether that
            // is an error.
            if self.abandoned.load(Ordering::Relaxed) || stdin.write_all(&chunk).is_err() {
                return;
            }
            self.bytes_written.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            self.chunks_moved.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for output. Returns false if no more output is needed. Polls, because a blocking read
    /// could not be interrupted while the pipe is open.
    fn wait_for_bytes(&self, stdout: &ChildStdout) -> bool {
        while !self.abandoned.load(Ordering::Relaxed) {
            let ended = self.program_ended.load(Ordering::Relaxed);
            let mut wanted = [PollFd::new(stdout, PollFlags::IN)];
            match poll(&mut wanted, Some(&POLL_TIMESPEC)) {
                Ok(0) if ended => self.drained.store(true, Ordering::Release),
                Ok(0) | Err(Errno::INTR) => {}
                // The read returns any error.
                Ok(_) | Err(_) => return true,
            }
        }
        false
    }

    /// Reads stdout to its end and queues the output.
    fn read(&self, mut stdout: ChildStdout, output: &Sender<Vec<u8>>) {
        while self.wait_for_bytes(&stdout) {
            let mut chunk = vec![0; CHUNK_BYTES];
            let got = loop {
                match stdout.read(&mut chunk) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other.unwrap_or(0),
                }
            };
            chunk.truncate(got);
            self.drained.store(false, Ordering::Relaxed);
            if got == 0 || output.send(chunk).is_err() {
                return;
            }
            self.chunks_moved.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns the path to execute. A side file may be given without `./`, because it is in the current
/// folder.
fn executable(word: &str) -> PathBuf {
    let word = Path::new(word);
    let side_file = Path::new(".").join(word.strip_prefix(".").unwrap_or(word));
    if side_file.is_file() { side_file } else { word.to_owned() }
}

fn spawn(name: &str, argv: &[String], conf: &Conf) -> Result<Child, TaskError> {
    let mut command = shim::command(executable(&argv[0]).as_os_str());
    command.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (key, _) in env::vars_os() {
        if key.to_string_lossy().starts_with(RESERVED_PREFIX) {
            command.env_remove(key);
        }
    }
    for (key, value) in conf.iter() {
        let variable = variable_name(key);
        if !is_reserved(&variable) && key != ENVIRONMENT {
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
    for (variable, value) in environment(conf)? {
        command.env(variable, value);
    }
    command.spawn().map_err(TaskError::io(format!("start {name}")))
}

/// Returns whether a variable is only for the task process.
fn is_reserved(variable: &str) -> bool {
    variable.starts_with(RESERVED_PREFIX) || variable == MARK_VAR
}

/// Returns the environment variables of the setting [`ENVIRONMENT`].
pub(super) fn environment(conf: &Conf) -> Result<BTreeMap<String, String>, TaskError> {
    let Some(text) = conf.get(ENVIRONMENT) else { return Ok(BTreeMap::new()) };
    let variables: BTreeMap<String, String> = serde_json::from_str(text).map_err(|error| {
        TaskError::Program(format!("setting {ENVIRONMENT} is not a JSON object of texts: {error}"))
    })?;
    let cannot_be_set = |name: &&String| is_reserved(name) || name.is_empty() || name.contains(['=', '\0']);
    if let Some(name) = variables.keys().find(cannot_be_set) {
        return Err(TaskError::Program(format!(
            "setting {ENVIRONMENT}: {name:?} cannot be set: use another name"
        )));
    }
    if let Some((name, _)) = variables.iter().find(|(_, value)| value.contains('\0')) {
        return Err(TaskError::Program(format!(
            "setting {ENVIRONMENT}: the value of {name} has a NUL character"
        )));
    }
    Ok(variables)
}

/// Escapes line breaks and other control characters of a command, because the first line of an
/// error message must contain the cause.
fn in_one_line(command: &str) -> String {
    let escaped =
        |one: char| if one.is_control() { one.escape_default().collect() } else { String::from(one) };
    command.chars().map(escaped).collect()
}

/// Describes how a program has ended: `ended with exit status 1`, `was killed by signal 15
/// (SIGTERM)`.
fn describe_exit(status: ExitStatus) -> String {
    let verb = if status.code().is_some() { "ended with" } else { "was killed by" };
    let hint = match status.signal() {
        Some(9) => " (out of memory? the limit of a task is tasktracker.task_memory_max)",
        _ => "",
    };
    format!("{verb} {}{hint}", status.to_string().replacen(": ", " ", 1))
}

/// Returns the environment variable for a setting: every character except letters and digits
/// becomes an underscore.
fn variable_name(key: &str) -> String {
    key.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::executable;

    #[test]
    fn path_of_a_side_file_begins_with_a_dot() {
        // The folder of this crate is the working folder of its tests.
        for (word, path) in [
            ("./Cargo.toml", "./Cargo.toml"),
            ("Cargo.toml", "./Cargo.toml"),
            ("cat", "cat"),
            ("./nowhere", "./nowhere"),
            ("/bin/sh", "/bin/sh"),
        ] {
            assert_eq!(executable(word).as_os_str(), path);
        }
    }
}
