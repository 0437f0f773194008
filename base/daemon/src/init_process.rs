//! Support for running as process 1 of a container, which becomes the parent of every orphaned
//! process. A daemon that is started as process 1 runs in a child process. Process 1 only reaps
//! orphans, forwards signals, and exits with the exit code of the child; the kernel then ends all
//! other processes of the container.

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};
use std::{
    io,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};
use tokio::signal::unix::{SignalKind, signal};

/// Added to the number of a signal to get the exit code of a process that the signal has ended, as
/// in a shell.
const SIGNAL_EXIT_CODE_BASE: i32 = 128;

/// Runs the daemon in a child process if this is process 1. Returns `None` otherwise; the daemon
/// then continues. Needed by daemons that kill their inherited child processes.
pub fn run_as_init(name: &str) -> Option<ExitCode> {
    if getpid() != Pid::INIT {
        return None;
    }
    Some(run_child_and_reap().unwrap_or_else(|error| {
        eprintln!("{name}: cannot start a child process as process 1: {error}");
        ExitCode::FAILURE
    }))
}

fn run_child_and_reap() -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Install the handlers before the child is started, because the kernel drops signals to
        // process 1 that have no handler.
        let mut ended = signal(SignalKind::child())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut quit = signal(SignalKind::quit())?;
        let mut term = signal(SignalKind::terminate())?;
        let mut args = std::env::args_os();
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(own) = args.next() {
            command.arg0(own);
        }
        let child = Pid::from_child(&command.args(args).spawn()?);
        loop {
            let received = tokio::select! {
                _ = ended.recv() => {
                    if let Some(code) = reap(child)? {
                        return Ok(code);
                    }
                    continue;
                }
                _ = hangup.recv() => Signal::HUP,
                _ = interrupt.recv() => Signal::INT,
                _ = quit.recv() => Signal::QUIT,
                _ = term.recv() => Signal::TERM,
            };
            // If the child has just ended, this fails, and the next iteration reaps it.
            kill_process(child, received).ok();
        }
    })
}

/// Reaps all ended processes. Returns the exit code of the child if it is among them.
fn reap(child: Pid) -> io::Result<Option<ExitCode>> {
    while let Some((pid, status)) = wait(WaitOptions::NOHANG)? {
        if pid == child {
            return Ok(Some(ExitCode::from(exit_code_of(status) as u8)));
        }
    }
    Ok(None)
}

fn exit_code_of(status: WaitStatus) -> i32 {
    let by_signal = status.terminating_signal().map(|signal| SIGNAL_EXIT_CODE_BASE + signal);
    status.exit_status().or(by_signal).unwrap_or(1)
}
