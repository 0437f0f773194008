//! Process 1 of a container becomes the parent of every process that has lost its own. A daemon that is started as
//! process 1 therefore runs in a child process. Process 1 only reaps orphans, forwards signals, and exits as the child
//! does; the kernel then ends every process that is left in the container.

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};
use std::{
    io,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};
use tokio::signal::unix::{SignalKind, signal};

/// What a shell says of a process that a signal has ended.
const BY_SIGNAL: i32 = 128;

/// For a daemon that ends whatever comes to it by the death of a parent. None: go on, this is not the first process.
pub fn run_as_init(name: &str) -> Option<ExitCode> {
    if getpid() != Pid::INIT {
        return None;
    }
    Some(serve().unwrap_or_else(|error| {
        eprintln!("{name}: as the first process it cannot start another: {error}");
        ExitCode::FAILURE
    }))
}

fn serve() -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before there is anybody to hand them on to: the kernel keeps from the first process what it does not listen to.
        let mut ended = signal(SignalKind::child())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut quit = signal(SignalKind::quit())?;
        let mut term = signal(SignalKind::terminate())?;
        let mut text = std::env::args_os();
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(own) = text.next() {
            command.arg0(own);
        }
        let child = Pid::from_child(&command.args(text).spawn()?);
        loop {
            let text = tokio::select! {
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
            // One that has just ended is reaped next.
            kill_process(child, text).ok();
        }
    })
}

/// Everybody who has ended; how the child did, if it is among them.
fn reap(child: Pid) -> io::Result<Option<ExitCode>> {
    while let Some((pid, status)) = wait(WaitOptions::NOHANG)? {
        if pid == child {
            return Ok(Some(ExitCode::from(code_of(status) as u8)));
        }
    }
    Ok(None)
}

fn code_of(status: WaitStatus) -> i32 {
    let by_signal = status.terminating_signal().map(|signal| BY_SIGNAL + signal);
    status.exit_status().or(by_signal).unwrap_or(1)
}
