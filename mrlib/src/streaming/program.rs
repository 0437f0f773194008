//! A running program and its three pipes.
//!
//! No deadlock, whatever the sizes of pipes and the habits of programs: one thread writes stdin, one reads stdout, one
//! reads stderr, with short queues between them and the task. The task never waits for room on the way in without
//! also taking what comes out. A program may stop reading early; what is left for it is dropped. What a program that
//! has ended left running, with its pipes open, is not waited for; what the program itself wrote is all taken. Bytes that move and words for us are signs of life.

use super::{command::split_command, report::Reports};
use crate::{conf::Conf, context::Context, error::TaskError, task, task::process::MARK_VAR};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    collections::VecDeque,
    env,
    io::{self, Read as _, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Stdio},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

/// Bytes handed on at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks that wait on either side.
const CHUNKS_WAITING: usize = 4;
/// While it waits for a program the task looks this often whether it shall stop.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The same, for the system.
const POLL_TIMESPEC: Timespec = Timespec { tv_sec: 0, tv_nsec: POLL_INTERVAL.as_nanos() as i64 };
/// Once a program has ended, its pipes may stay silent and open for this long.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Variables that start so are between us and the tracker.
const RESERVED_PREFIX: &str = "FERMATA_";

/// Names that programs written for Hadoop look for, and our settings of the same meaning.
const HADOOP_NAMES: [(&str, &str); 11] = [
    ("mapreduce_task_attempt_id", task::TASK_ATTEMPT),
    ("mapreduce_task_id", task::TASK_ID),
    ("mapreduce_task_partition", task::TASK_INDEX),
    ("mapreduce_task_output_dir", task::TASK_OUTPUT),
    ("mapreduce_job_id", task::JOB_ID),
    ("mapreduce_job_name", task::JOB_NAME),
    ("mapreduce_job_user_name", task::JOB_USER),
    ("mapreduce_job_reduces", task::JOB_REDUCES),
    ("mapreduce_map_input_file", task::MAP_INPUT_FILE),
    ("mapreduce_map_input_start", task::MAP_INPUT_START),
    ("mapreduce_map_input_length", task::MAP_INPUT_LENGTH),
];

/// Takes what a program has written.
type Take<'a> = dyn FnMut(&[u8], &mut Context) -> Result<(), TaskError> + 'a;

/// One program at work.
pub(super) struct Program {
    /// Named in errors: the setting and its command.
    name: String,
    child: Child,
    pipes: Arc<Pipes>,
    reports: Arc<Reports>,
    /// What is fed next.
    chunk: Vec<u8>,
    /// Disconnected when the last of the threads has ended.
    threads: Receiver<()>,
    /// It has been waited for.
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
    /// Nothing more will be fed.
    to_end: bool,
    /// The program reads no more.
    to_closed: bool,
    from: VecDeque<Vec<u8>>,
    /// Nothing more will come.
    from_end: bool,
    /// The program has ended.
    over: bool,
    /// Since it has ended, its pipe was empty, and all that came out of it is in `from`.
    from_dry: bool,
    abandoned: bool,
    /// Chunks that went either way.
    moved: u64,
}

impl Program {
    /// Starts the command of this setting.
    pub(super) fn start(setting: &str, conf: &Conf) -> Result<Self, TaskError> {
        let command = conf.get(setting).unwrap_or_default();
        let name = format!("{setting} {command:?}");
        let argv = split_command(command).map_err(|why| TaskError::Program(format!("{name}: {why}")))?;
        let (mut child, reports) = (spawn(&name, &argv, conf)?, Arc::<Reports>::default());
        let pipes = Arc::<Pipes>::default();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let stderr = child.stderr.take().expect("asked for");
        let (writing, reading, reporting) = (pipes.clone(), pipes.clone(), reports.clone());
        let (alive, threads) = mpsc::channel();
        let run = |work: Box<dyn FnOnce() + Send>| {
            let alive = alive.clone();
            thread::spawn(move || {
                work();
                drop(alive);
            });
        };
        run(Box::new(move || writing.write(stdin.expect("asked for"))));
        run(Box::new(move || reading.read(stdout.expect("asked for"))));
        run(Box::new(move || reporting.read(stderr)));
        let chunk = Vec::with_capacity(CHUNK_BYTES);
        Ok(Self { name, child, pipes, reports, chunk, threads, ended: false })
    }

    /// Puts bytes into the program's stdin, in time.
    #[inline]
    pub(super) fn feed(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.chunk.extend_from_slice(part);
        }
    }

    /// Whether so much has been fed that `exchange` is due.
    #[inline]
    pub(super) fn needs_exchange(&self) -> bool {
        self.chunk.len() >= CHUNK_BYTES
    }

    /// Hands on what was fed and takes what has come; with `all`, closes stdin, takes everything and waits for the
    /// program's end, which must be a good one.
    pub(super) fn exchange(
        &mut self,
        all: bool,
        context: &mut Context,
        take: &mut Take<'_>,
    ) -> Result<(), TaskError> {
        let pipes = self.pipes.clone();
        let mut chunk = Some(std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_BYTES)));
        let mut waiting = pipes.lock();
        let (mut came, mut over) = (Instant::now(), None::<Instant>);
        loop {
            if let Some(come) = waiting.from.pop_front() {
                pipes.changed.notify_all();
                drop(waiting);
                take(&come, context)?;
                context.mark_alive();
                context.check()?;
                came = Instant::now();
                waiting = pipes.lock();
                continue;
            }
            if waiting.to_closed || waiting.to.len() < CHUNKS_WAITING {
                if !waiting.to_closed {
                    waiting.to.extend(chunk.take().filter(|chunk| !chunk.is_empty()));
                }
                waiting.to_end |= all;
                pipes.changed.notify_all();
                if over.is_none() && all && matches!(self.child.try_wait(), Ok(Some(_))) {
                    over = Some(Instant::now());
                    waiting.over = true;
                }
                let silent =
                    came.elapsed() >= DRAIN_TIMEOUT && over.is_some_and(|at| at.elapsed() >= DRAIN_TIMEOUT);
                if !all || waiting.from_end || (silent && waiting.from_dry) {
                    break;
                }
            }
            let moved = waiting.moved;
            let woken = pipes.changed.wait_timeout(waiting, POLL_INTERVAL);
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

    /// How the program has ended. One that has only closed its stdout is waited for at the end of the input.
    fn check_end(&mut self, all: bool, context: &mut Context) -> Result<(), TaskError> {
        let failed = |name: &str| TaskError::io(format!("wait for {name}"));
        let mut nap = Duration::from_millis(1);
        let status = loop {
            match self.child.try_wait().map_err(failed(&self.name))? {
                Some(status) => break status,
                None if !all => return Ok(()),
                None => {}
            }
            thread::sleep(nap);
            nap = (nap * 2).min(POLL_INTERVAL);
            self.reports.apply_to(context);
            context.check()?;
        };
        if all || !status.success() {
            self.ended = true;
            self.leave_pipes();
            self.reports.apply_to(context);
        }
        if status.success() {
            return context.check();
        }
        let (name, text) = (&self.name, self.reports.last_lines());
        let last = if text.is_empty() { String::new() } else { format!("; its last output:\n{text}") };
        // Not an error of the record at hand: that one may be far from the one that the program stumbled over.
        Err(TaskError::Crashed { program: name.clone(), why: format!("ended with {status}{last}") })
    }

    /// Lets the threads end. One whose pipe somebody else holds open is left to itself.
    fn leave_pipes(&self) {
        self.pipes.lock().abandoned = true;
        self.pipes.changed.notify_all();
        let _ = self.threads.recv_timeout(DRAIN_TIMEOUT);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.ended {
            // Given up in the middle. If it has ended by itself, there is nothing to kill.
            let _ = self.child.kill();
            let _ = self.child.wait();
            // Threads may wait on pipes that a grandchild keeps open: they are left to themselves.
            self.pipes.lock().abandoned = true;
            self.pipes.changed.notify_all();
        }
    }
}

impl Pipes {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, mut stdin: ChildStdin) {
        loop {
            let quiet =
                |waiting: &mut Waiting| waiting.to.is_empty() && !waiting.to_end && !waiting.abandoned;
            let mut waiting =
                self.changed.wait_while(self.lock(), quiet).unwrap_or_else(PoisonError::into_inner);
            let chunk = if waiting.abandoned { None } else { waiting.to.pop_front() };
            self.changed.notify_all();
            drop(waiting);
            // However it fails, the program does not read any more. Its exit code tells whether that is a fault.
            let written = chunk.is_some_and(|chunk| stdin.write_all(&chunk).is_ok());
            if !written {
                let mut waiting = self.lock();
                waiting.to_closed = true;
                waiting.to.clear();
                self.changed.notify_all();
                return;
            }
            self.lock().moved += 1;
        }
    }

    /// False if nobody wants them any more. A read would not tell that there are none while the pipe is open.
    fn wait_for_bytes(&self, stdout: &ChildStdout) -> bool {
        loop {
            let (over, abandoned) = {
                let waiting = self.lock();
                (waiting.over, waiting.abandoned)
            };
            if abandoned {
                return false;
            }
            let mut wanted = [PollFd::new(stdout, PollFlags::IN)];
            match poll(&mut wanted, Some(&POLL_TIMESPEC)) {
                Ok(0) if over => {
                    self.lock().from_dry = true;
                    self.changed.notify_all();
                }
                Ok(0) | Err(Errno::INTR) => {}
                // The read tells what else there may be.
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
            waiting.from_dry = false;
            waiting.moved += 1;
            self.changed.notify_all();
        }
    }
}

fn spawn(name: &str, argv: &[String], conf: &Conf) -> Result<Child, TaskError> {
    // A side file is named as it is, without `./`: it lies in this folder.
    let beside = Path::new(".").join(&argv[0]);
    let executable = if beside.is_file() { beside.as_path() } else { Path::new(&argv[0]) };
    let mut command = task::shim::command(executable.as_os_str());
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
    // The system's folder for such files is shared by all, and a confined task cannot write there.
    if let Ok(own) = env::current_dir() {
        // Where tasks have an account of their own, home was the folder in which the process waited for work.
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
    if let Some(kind) = conf.get(task::TASK_KIND) {
        command.env("mapreduce_task_ismap", (kind == "map").to_string());
    }
    command.spawn().map_err(TaskError::io(format!("start {name}")))
}

/// A setting's name as a variable's: what is no letter or digit becomes an underscore.
fn variable(key: &str) -> String {
    key.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}
