//! Finds and signals processes by PID, and recognises if the PID now belongs to another process.
//!
//! A process is the recorded one only if its start time and its command line match the record. All
//! signals are sent after this check. A zombie counts as ended.

use rustix::{
    process::{Pid, Signal, kill_process},
    time::{ClockId, clock_gettime},
};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    time::{Duration, Instant},
};

/// Clock ticks per second in `/proc/PID/stat`; the kernel interface fixes this at 100.
const TICKS_PER_SECOND: f64 = 100.0;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Identifies one process, even if another process gets its PID later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The process ID.
    pub pid: u32,
    /// Ticks from boot to its start: field 22 of `/proc/PID/stat`.
    pub started_ticks: u64,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitKind {
    /// It was not running.
    NotRunning,
    /// It ended after SIGTERM.
    Stopped,
    /// It was killed with SIGKILL.
    Killed,
}

/// The fields of `/proc/PID/stat` that are used.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    parent: u32,
    cpu_ticks: u64,
    reaped_ticks: u64,
    started_ticks: u64,
}

/// Parses `/proc/PID/stat`. The name of the program may contain spaces and brackets, so fields are
/// counted from the last closing bracket.
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

/// Parses the contents of `/proc/PID/cmdline` and returns the arguments.
fn parse_cmdline(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    text.strip_suffix('\0').unwrap_or(&text).split('\0').map(str::to_owned).collect()
}

impl Identity {
    /// Returns the identity of a process that was just started. None if it has already ended.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, started_ticks: stat(pid)?.started_ticks })
    }

    /// Returns how long ago the process started.
    pub fn age(&self) -> Option<Duration> {
        let since_boot = Duration::try_from(clock_gettime(ClockId::Boottime)).ok()?;
        since_boot
            .checked_sub(Duration::try_from_secs_f64(self.started_ticks as f64 / TICKS_PER_SECOND).ok()?)
    }

    /// Returns whether the process is still running and has the arguments `args` (without the name
    /// of the program).
    pub fn is_running(&self, args: &[String]) -> bool {
        let Some(stat) = stat(self.pid) else { return false };
        if stat.started_ticks != self.started_ticks {
            return false;
        }
        if matches!(stat.state, 'Z' | 'X') {
            // The main thread can be a zombie while others still have the files and ports open.
            return threads(self.pid) > 1;
        }
        let Ok(cmdline) = fs::read(format!("/proc/{}/cmdline", self.pid)) else { return false };
        // Directly after its start and while it exits, a process has no command line, but may have
        // files and ports open. PID and start time are enough then.
        cmdline.is_empty() || parse_cmdline(&cmdline).get(1..).is_some_and(|words| words == args)
    }

    /// Returns whether a signal has stopped the process, so that it does nothing until SIGCONT.
    pub fn is_frozen(&self) -> bool {
        let own = stat(self.pid).filter(|stat| stat.started_ticks == self.started_ticks);
        own.is_some_and(|stat| matches!(stat.state, 'T' | 't'))
    }

    /// Sends `signal` if this process is still running. Returns false if it is not.
    pub fn signal(&self, args: &[String], signal: Signal) -> io::Result<bool> {
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

/// Stops all processes: sends SIGTERM to all, waits for up to `timeout`, then kills the remaining
/// processes. Returns how each process ended.
pub fn end_processes(processes: &[(&Identity, &[String])], timeout: Duration) -> io::Result<Vec<ExitKind>> {
    let mut asked = Vec::with_capacity(processes.len());
    for (identity, args) in processes {
        // A stopped process gets SIGTERM only after SIGCONT.
        let alive = identity.signal(args, Signal::TERM)?;
        asked.push(alive && identity.signal(args, Signal::CONT).is_ok());
    }
    let running = |at: usize| processes[at].0.is_running(processes[at].1);
    let deadline = Instant::now() + timeout;
    while Instant::now() < deadline && (0..asked.len()).any(|at| asked[at] && running(at)) {
        std::thread::sleep(POLL_INTERVAL);
    }
    let mut exits = Vec::with_capacity(asked.len());
    for (at, (identity, args)) in processes.iter().enumerate() {
        let killed = asked[at] && identity.signal(args, Signal::KILL)?;
        while killed && running(at) {
            std::thread::sleep(POLL_INTERVAL);
        }
        exits.push(match (asked[at], killed) {
            (false, _) => ExitKind::NotRunning,
            (true, false) => ExitKind::Stopped,
            (true, true) => ExitKind::Killed,
        });
    }
    Ok(exits)
}

/// Returns the user and kernel CPU time of a process so far, in seconds.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    Some(stat(pid)?.cpu_ticks as f64 / TICKS_PER_SECOND)
}

/// CPU time of a process and of its ended children.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuTimes {
    /// The PID of its parent.
    pub parent: u32,
    /// CPU seconds of the process itself.
    pub own: f64,
    /// CPU seconds of its descendants that have ended and were waited for.
    pub reaped: f64,
}

/// Returns the CPU times of one process; None if it has ended.
pub fn cpu_times(pid: u32) -> Option<CpuTimes> {
    let stat = stat(pid)?;
    let seconds = |ticks: u64| ticks as f64 / TICKS_PER_SECOND;
    Some(CpuTimes { parent: stat.parent, own: seconds(stat.cpu_ticks), reaped: seconds(stat.reaped_ticks) })
}

/// Returns the resident memory of a process in bytes.
pub fn memory_bytes(pid: u32) -> Option<u64> {
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
        // Directly after its start it has no command line yet.
        while fs::read(format!("/proc/{}/cmdline", identity.pid)).unwrap().is_empty() {
            std::thread::yield_now();
        }
        (child, identity, vec!["600".to_owned()])
    }

    #[test]
    fn stat_is_parsed_if_the_program_name_has_brackets() {
        let text = "42 (a) b (c d) S 1 42 42 0 -1 4194560 1 0 0 0 7 5 3 1 20 0 1 0 987 4096 1 0";
        let stat = Stat { state: 'S', parent: 1, cpu_ticks: 12, reaped_ticks: 4, started_ticks: 987 };
        assert_eq!(parse_stat(text), Some(stat));
        assert_eq!(parse_stat("42 (x"), None);
        assert_eq!(parse_stat("42 (x) S 1"), None);
    }

    #[test]
    fn command_line_is_split_at_nul_bytes() {
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
        assert_eq!(
            end_processes(&[(&identity, &args)], Duration::from_secs(10)).unwrap(),
            [ExitKind::Stopped]
        );
        child.wait().unwrap();
        assert_eq!(
            end_processes(&[(&identity, &args)], Duration::from_secs(10)).unwrap(),
            [ExitKind::NotRunning]
        );
    }

    #[test]
    fn frozen_process_can_be_ended_and_a_zombie_counts_as_ended() {
        let (mut child, identity, args) = sleeper();
        assert!(identity.signal(&args, Signal::STOP).unwrap());
        assert_eq!(
            end_processes(&[(&identity, &args)], Duration::from_secs(10)).unwrap(),
            [ExitKind::Stopped]
        );
        // The parent has not waited for it yet: it is a zombie.
        assert!(!identity.is_running(&args));
        child.wait().unwrap();
    }

    #[test]
    fn memory_and_cpu_time_of_this_process_are_read() {
        let pid = std::process::id();
        assert!(memory_bytes(pid).unwrap() > 1 << 16);
        assert!(cpu_seconds(pid).unwrap() >= 0.0);
    }
}
