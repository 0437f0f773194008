//! Processes by pid, guarded against the pid having passed to someone else.
//!
//! A process is ours only if its start time and its command line are those that were written down. Nothing
//! here signals a pid without looking first. A zombie counts as gone: it runs no more.

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    time::{Duration, Instant},
};

/// `/proc/PID/stat` counts time in these; the kernel's interface fixes it at 100 a second.
const TICKS_PER_SECOND: f64 = 100.0;
const POLL: Duration = Duration::from_millis(20);

/// One process, for as long as it lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// As the system numbers it.
    pub(crate) pid: u32,
    /// Ticks from boot to its start, field 22 of its stat.
    pub(crate) started_ticks: u64,
}

/// How a process came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitKind {
    /// It was not running.
    NotRunning,
    /// It ended when asked.
    Stopped,
    /// It had to be killed.
    Killed,
}

/// What is needed from `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    parent: u32,
    cpu_ticks: u64,
    reaped_ticks: u64,
    started_ticks: u64,
}

/// The program's name may hold spaces and brackets, so fields count from the last closing bracket.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: number(1)? as u32,
        cpu_ticks: number(11)? + number(12)?,
        reaped_ticks: number(13)? + number(14)?,
        started_ticks: number(19)?,
    })
}

fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// The words of a command line as the kernel keeps it.
fn parse_cmdline(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    text.strip_suffix('\0').unwrap_or(&text).split('\0').map(str::to_owned).collect()
}

impl Identity {
    /// Of a process that was just started. None if it is gone already.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, started_ticks: stat(pid)?.started_ticks })
    }

    /// Whether it still runs, with the arguments `args` after its program's name.
    pub(crate) fn is_running(&self, args: &[String]) -> bool {
        let Some(stat) = stat(self.pid) else { return false };
        if stat.started_ticks != self.started_ticks {
            return false;
        }
        if matches!(stat.state, 'Z' | 'X') {
            // The main thread can be a zombie while others still hold the process's files and ports.
            return threads(self.pid) > 1;
        }
        let Ok(cmdline) = fs::read(format!("/proc/{}/cmdline", self.pid)) else { return false };
        // For a moment at its start, and on its way out, it has no command line, but it has its files and
        // ports; pid and start time say enough then.
        cmdline.is_empty() || parse_cmdline(&cmdline).get(1..).is_some_and(|words| words == args)
    }

    /// Sends `signal`, if the process still is the one that was meant. False if it is not.
    pub(crate) fn signal(&self, args: &[String], signal: Signal) -> io::Result<bool> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
        if !self.is_running(args) {
            return Ok(false);
        }
        match kill_process(pid, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Ends every process: asks all first, then waits for up to `timeout`, then kills what is left.
pub(crate) fn end(processes: &[(&Identity, &[String])], timeout: Duration) -> io::Result<Vec<ExitKind>> {
    let mut asked = Vec::with_capacity(processes.len());
    for (identity, args) in processes {
        // One that is stopped would not see the request before it continues.
        let alive = identity.signal(args, Signal::TERM)?;
        asked.push(alive && identity.signal(args, Signal::CONT).is_ok());
    }
    let running = |at: usize| processes[at].0.is_running(processes[at].1);
    let deadline = Instant::now() + timeout;
    while Instant::now() < deadline && (0..asked.len()).any(|at| asked[at] && running(at)) {
        std::thread::sleep(POLL);
    }
    let mut exits = Vec::with_capacity(asked.len());
    for (at, (identity, args)) in processes.iter().enumerate() {
        let killed = asked[at] && identity.signal(args, Signal::KILL)?;
        while killed && running(at) {
            std::thread::sleep(POLL);
        }
        exits.push(match (asked[at], killed) {
            (false, _) => ExitKind::NotRunning,
            (true, false) => ExitKind::Stopped,
            (true, true) => ExitKind::Killed,
        });
    }
    Ok(exits)
}

/// Processor time a process has used so far, in user and kernel.
pub(crate) fn cpu_seconds(pid: u32) -> Option<f64> {
    Some(stat(pid)?.cpu_ticks as f64 / TICKS_PER_SECOND)
}

/// Processor time of a process and of those it left behind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Times {
    /// Who started it.
    pub(crate) parent: u32,
    /// Seconds of its own.
    pub(crate) own: f64,
    /// Seconds of its children that have ended and been waited for, and of theirs.
    pub(crate) reaped: f64,
}

/// Of one process; None if it is gone.
pub(crate) fn times(pid: u32) -> Option<Times> {
    let stat = stat(pid)?;
    let seconds = |ticks: u64| ticks as f64 / TICKS_PER_SECOND;
    Some(Times { parent: stat.parent, own: seconds(stat.cpu_ticks), reaped: seconds(stat.reaped_ticks) })
}

/// Memory a process has resident, in bytes.
pub(crate) fn memory_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeper() -> (Child, Identity, Vec<String>) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        // For a moment after its start it has no command line yet.
        while fs::read(format!("/proc/{}/cmdline", identity.pid)).unwrap().is_empty() {
            std::thread::yield_now();
        }
        (child, identity, vec!["600".to_owned()])
    }

    #[test]
    fn stat_is_read_past_a_hostile_name() {
        let text = "42 (a) b (c d) S 1 42 42 0 -1 4194560 1 0 0 0 7 5 3 1 20 0 1 0 987 4096 1 0";
        let stat = Stat { state: 'S', parent: 1, cpu_ticks: 12, reaped_ticks: 4, started_ticks: 987 };
        assert_eq!(parse_stat(text), Some(stat));
        assert_eq!(parse_stat("42 (x"), None);
        assert_eq!(parse_stat("42 (x) S 1"), None);
    }

    #[test]
    fn the_command_line_is_split_at_nuls() {
        assert_eq!(parse_cmdline(b"/bin/x\0--dir\0a b\0"), ["/bin/x", "--dir", "a b"]);
        assert_eq!(parse_cmdline(b"x\0\0"), ["x", ""]);
    }

    #[test]
    fn reused_pid_is_never_signalled() {
        let (mut child, identity, args) = sleeper();
        let earlier = Identity { started_ticks: identity.started_ticks - 1, ..identity.clone() };
        assert!(!earlier.signal(&args, Signal::KILL).unwrap());
        assert!(!identity.signal(&["other".to_owned()], Signal::KILL).unwrap());
        assert_eq!(child.try_wait().unwrap(), None);
        assert_eq!(end(&[(&identity, &args)], Duration::from_secs(10)).unwrap(), [ExitKind::Stopped]);
        child.wait().unwrap();
        assert_eq!(end(&[(&identity, &args)], Duration::from_secs(10)).unwrap(), [ExitKind::NotRunning]);
    }

    #[test]
    fn a_stopped_process_still_ends_and_a_zombie_is_gone() {
        let (mut child, identity, args) = sleeper();
        assert!(identity.signal(&args, Signal::STOP).unwrap());
        assert_eq!(end(&[(&identity, &args)], Duration::from_secs(10)).unwrap(), [ExitKind::Stopped]);
        // Not yet waited for: a zombie.
        assert!(!identity.is_running(&args));
        child.wait().unwrap();
    }

    #[test]
    fn this_process_uses_memory_and_time() {
        let pid = std::process::id();
        assert!(memory_bytes(pid).unwrap() > 1 << 16);
        assert!(cpu_seconds(pid).unwrap() >= 0.0);
    }
}
