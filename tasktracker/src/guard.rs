//! A small process beside the tracker that kills whatever the tracker leaves running when it dies, however it dies.
//!
//! Task processes ask the kernel to die with the tracker, but what they have started themselves (a streaming
//! program and its pipes) cannot. The guard is told each process group that begins and ends, through a pipe; when
//! the pipe is closed there is no tracker any more, and it kills the groups that are left, and ends.

use parking_lot::Mutex;
use rustix::process::{Pid, Signal};
use std::{
    collections::BTreeSet,
    io::{self, BufRead, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitCode, Stdio},
};

/// The argument that makes this program the guard of another tracker.
pub const GUARD_ARG: &str = "--guard";

/// The way to the guard.
#[derive(Debug, Default)]
pub(crate) struct Guard(Mutex<Option<Child>>);

impl Guard {
    /// Starts one: this same program, in a group of its own.
    pub(crate) fn start() -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(GUARD_ARG).stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        Ok(Self(Mutex::new(Some(command.spawn()?))))
    }

    /// A group has begun.
    pub(crate) fn watch(&self, group: Pid) {
        self.tell('+', group);
    }

    /// A group has been killed, and its number is about to be free for others.
    pub(crate) fn forget(&self, group: Pid) {
        self.tell('-', group);
    }

    fn tell(&self, what: char, group: Pid) {
        let mut guard = self.0.lock();
        let Some(child) = guard.as_mut() else { return };
        let line = format!("{what}{}\n", group.as_raw_nonzero());
        let told = child.stdin.as_mut().map(|pipe| pipe.write_all(line.as_bytes()));
        if let Some(Err(error)) = told {
            tracing::warn!(%error, "the guard is gone: what tasks start may outlive a crash of this tracker");
            if let Some(mut child) = guard.take() {
                child.wait().ok();
            }
        }
    }
}

/// The guard's whole life.
pub fn serve() -> ExitCode {
    let left = groups(io::stdin().lock());
    for group in left.iter().filter_map(|group| Pid::from_raw(*group)) {
        // An error means that nobody is left in it.
        rustix::process::kill_process_group(group, Signal::KILL).ok();
    }
    ExitCode::SUCCESS
}

/// The groups that have begun and not ended.
fn groups(lines: impl BufRead) -> BTreeSet<i32> {
    let mut groups = BTreeSet::new();
    for line in lines.lines().map_while(Result::ok) {
        let number = |text: &str| text.parse::<i32>().ok().filter(|number| *number > 1);
        if let Some(group) = line.strip_prefix('+').and_then(number) {
            groups.insert(group);
        } else if let Some(group) = line.strip_prefix('-').and_then(number) {
            groups.remove(&group);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_ended_is_left() {
        assert_eq!(groups(&b"+10\n+20\n-10\n+30\n-20\n"[..]), [30].into());
        // Never everybody, never init, never half a number that makes no sense.
        assert_eq!(groups(&b"+0\n+1\n+-1\n+\nx\n+77"[..]), [77].into());
    }
}
