//! The process of an external policy: one line in, one line out, each with a time limit.
//!
//! Two threads move the lines, so that neither a process that does not read nor one that does not
//! answer can block the simulation. The process ends when its standard input is closed, else it is
//! killed. Processes that it has started are killed with it, unless they have left its group. A signal
//! from the terminal does not reach the group, so what ends the simulator calls [`kill_all`].

use crossbeam::channel::{self, Receiver, RecvTimeoutError, Sender};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Maximum length of an answer.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// How long a process may take to end after its standard input was closed.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the end of a process is checked.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The process groups of all policies that run.
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<Pid>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills the processes of all external policies. This process must end then: it can start no others.
pub fn kill_all() {
    let groups = running();
    for group in groups.iter() {
        let _ = kill_process_group(*group, Signal::KILL);
    }
    std::mem::forget(groups);
}

/// A running policy.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    /// Lines to standard input; `None` when it is closed.
    requests: Option<Sender<String>>,
    /// Lines from standard output. Closed at the end of the output.
    answers: Receiver<Vec<u8>>,
    timeout: Duration,
}

impl Process {
    /// Starts a program with arguments.
    pub(super) fn start(words: &[&str], timeout: Duration) -> Result<Self, String> {
        let (program, arguments) = words.split_first().ok_or("the command is empty")?;
        let mut running = running();
        let mut child = Command::new(program)
            .args(arguments)
            // Sets and dictionaries of Python have the same order in every run.
            .env("PYTHONHASHSEED", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start {program}: {error}"))?;
        running.push(Pid::from_child(&child));
        drop(running);
        let (requests, to_write) = channel::bounded(1);
        let (read, answers) = channel::bounded(1);
        if let Some((stdin, stdout)) = child.stdin.take().zip(child.stdout.take()) {
            thread::spawn(move || write_lines(stdin, &to_write));
            thread::spawn(move || read_lines(stdout, &read));
        }
        Ok(Self { child, requests: Some(requests), answers, timeout })
    }

    /// Sends a line and returns the line that answers it.
    pub(super) fn ask(&mut self, request: String) -> Result<String, String> {
        let deadline = Instant::now() + self.timeout;
        let sent = self.requests.as_ref().is_some_and(|out| out.send_deadline(request, deadline).is_ok());
        let answer = if sent { self.answers.recv_deadline(deadline) } else { Err(RecvTimeoutError::Timeout) };
        match answer {
            Ok(line) if line.len() as u64 > ANSWER_BYTES_MAX => {
                Err(format!("the answer is longer than {} MiB", ANSWER_BYTES_MAX >> 20))
            }
            Ok(line) => String::from_utf8(line).map_err(|_| "the answer is not UTF-8".into()),
            Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                Err(format!("no answer within {} s (parameter timeout)", self.timeout.as_secs_f64()))
            }
            // The writing thread has ended, or the output is closed.
            Err(_) => Err(format!("the process ended without an answer: {}", self.end())),
        }
    }

    /// Closes standard input, waits until the process has ended, and kills its group. Returns how it
    /// ended.
    fn end(&mut self) -> String {
        // After the first call the process ID may belong to another process.
        if self.requests.take().is_some() {
            let (group, deadline) = (Pid::from_child(&self.child), Instant::now() + END_TIMEOUT);
            // NOWAIT: the ID of the group stays reserved until `wait` below.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            while waitid(WaitId::Pid(group), options).is_ok_and(|ended| ended.is_none())
                && Instant::now() < deadline
            {
                thread::sleep(END_CHECK_INTERVAL);
            }
            let mut running = running();
            let _ = kill_process_group(group, Signal::KILL);
            // The ID is free after this, so the group must not be in the list any more.
            let _ = self.child.wait();
            running.retain(|other| *other != group);
        }
        self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

fn write_lines(mut stdin: ChildStdin, lines: &Receiver<String>) {
    for line in lines {
        if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

fn read_lines(stdout: ChildStdout, lines: &Sender<Vec<u8>>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let read = stdout.by_ref().take(ANSWER_BYTES_MAX + 1).read_until(b'\n', &mut line);
        if !read.is_ok_and(|bytes| bytes > 0) || lines.send(line).is_err() {
            return;
        }
    }
}
