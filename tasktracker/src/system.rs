//! Information of the system about processes, and how those of a tracker are identified.
//!
//! Each task process is started with a mark in its environment, which its children inherit: the
//! number of the process, the incarnation of its tracker, and the first folder of the tracker. So
//! descendants are found that have left their process group, and those that a killed tracker has
//! left behind. A process that clears its environment too is found only while its tracker, which
//! then becomes its parent, runs.

use engine::process::MARK_VAR;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
    time::{Duration, Instant},
};

const PAGE_BYTES: u64 = 4096;
/// Interval of checks whether killed processes have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Contents of a mark, without the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Number of the task process of its tracker.
    pub(crate) number: u64,
    /// Incarnation of the tracker.
    pub(crate) incarnation: u64,
}

/// Returns the mark of a tracker with the first folder `root`.
pub(crate) fn mark(mark: Mark, root: &Path) -> OsString {
    let Mark { number, incarnation } = mark;
    OsString::from_vec([format!("{number}.{incarnation}:").as_bytes(), root.as_os_str().as_bytes()].concat())
}

/// Returns the mark of a process, if it is of a tracker with this folder.
pub(crate) fn mark_of(pid: Pid, root: &Path) -> Option<Mark> {
    let environment = fs::read(path(pid, "environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let mark = variables.find_map(|pair| pair.strip_prefix(MARK_VAR.as_bytes())?.strip_prefix(b"="))?;
    let colon = mark.iter().position(|byte| *byte == b':')?;
    let (numbers, folder) = (&mark[..colon], &mark[colon + 1..]);
    let (number, incarnation) = std::str::from_utf8(numbers).ok()?.split_once('.')?;
    let mark = Mark { number: number.parse().ok()?, incarnation: incarnation.parse().ok()? };
    (folder == root.as_os_str().as_bytes()).then_some(mark)
}

/// Kills every process with a mark of this folder, and of this incarnation if given, until there is
/// none or `timeout` has passed.
pub(crate) fn kill_marked(root: &Path, incarnation: Option<u64>, timeout: Duration) {
    let until = Instant::now() + timeout;
    let own = rustix::process::getpid();
    let meant = |mark: Mark| incarnation.is_none_or(|incarnation| incarnation == mark.incarnation);
    loop {
        let marked = |pid: &Pid| *pid != own && mark_of(*pid, root).is_some_and(meant) && !is_zombie(*pid);
        let left: Vec<Pid> = numbered(Path::new("/proc")).into_iter().filter(marked).collect();
        if left.is_empty() || Instant::now() >= until {
            return;
        }
        for pid in left {
            tracing::warn!(
                pid = pid.as_raw_nonzero().get(),
                "killing a process that a killed tracker has left"
            );
            // The PID may belong to another process by now: checked again after it was opened.
            if let Ok(held) = rustix::process::pidfd_open(pid, PidfdFlags::empty())
                && mark_of(pid, root).is_some_and(meant)
            {
                rustix::process::pidfd_send_signal(held, Signal::KILL).ok();
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the children of a process, as far as known.
pub(crate) fn children(pid: Pid) -> Vec<Pid> {
    let folder = path(pid, "task");
    let mut found = Vec::new();
    for thread in numbered(Path::new(&folder)) {
        let list = format!("{folder}/{}/children", thread.as_raw_nonzero());
        let list = fs::read_to_string(list).unwrap_or_default();
        found.extend(list.split_whitespace().filter_map(|number| Pid::from_raw(number.parse().ok()?)));
    }
    found
}

/// Returns a process and all its descendants.
pub(crate) fn tree(root: Pid) -> Vec<Pid> {
    let mut found = vec![root];
    let mut at = 0;
    while let Some(pid) = found.get(at).copied() {
        found.extend(children(pid));
        at += 1;
    }
    found
}

/// Returns the number of threads of a process; 0 if it has ended.
pub(crate) fn threads(pid: Pid) -> u64 {
    numbered(Path::new(&path(pid, "task"))).len() as u64
}

/// Returns the private memory of a process, without mapped files. Memory that it shares with its
/// children counts for each of them.
pub(crate) fn memory(pid: Pid) -> u64 {
    let pages = || {
        let text = fs::read_to_string(path(pid, "statm")).ok()?;
        let mut fields = text.split_whitespace().skip(1).map_while(|field| field.parse::<u64>().ok());
        let (resident, shared) = (fields.next()?, fields.next()?);
        Some(resident.saturating_sub(shared))
    };
    pages().unwrap_or(0) * PAGE_BYTES
}

/// Like [`memory`], with a proportional share of shared memory. Slower.
pub(crate) fn proportional_memory(pid: Pid) -> u64 {
    let text = fs::read_to_string(path(pid, "smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or_else(|| memory(pid), |kib| kib << 10)
}

/// Makes the kernel prefer this process to daemons when it runs out of memory.
pub(crate) fn prefer_for_oom_kill(pid: Pid) {
    if let Err(error) = fs::write(path(pid, "oom_score_adj"), "1000") {
        tracing::debug!(%error, "cannot make the out-of-memory killer prefer a task process");
    }
}

/// Whether a process has ended but is not reaped yet.
pub(crate) fn is_zombie(pid: Pid) -> bool {
    // The name before it, in brackets, may contain anything.
    let stat = fs::read_to_string(path(pid, "stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('Z'))
}

fn path(pid: Pid, name: &str) -> String {
    format!("/proc/{}/{name}", pid.as_raw_nonzero())
}

fn numbered(folder: &Path) -> Vec<Pid> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        os::unix::process::CommandExt,
        process::{Child, Command},
    };

    fn sleeper(root: &Path, number: u64, incarnation: u64) -> Child {
        let mut command = Command::new("sleep");
        let mark = mark(Mark { number, incarnation }, root);
        command.arg("1000").process_group(0).env(MARK_VAR, mark).spawn().unwrap()
    }

    #[test]
    fn only_marked_processes_are_killed() {
        let (root, other) = (Path::new("/a folder"), Path::new("/a folder/deeper"));
        let mut ours = [sleeper(root, 7, 1), sleeper(root, 8, 1)];
        let (mut unknown, mut later) = (sleeper(other, 7, 1), sleeper(root, 7, 2));
        let mark = Mark { number: 8, incarnation: 1 };
        assert_eq!(mark_of(Pid::from_child(&ours[1]), root), Some(mark));
        assert_eq!(mark_of(Pid::from_child(&unknown), root), None);
        kill_marked(root, Some(1), Duration::from_secs(20));
        for child in &mut ours {
            assert!(!child.wait().unwrap().success());
        }
        assert!(later.try_wait().unwrap().is_none());
        kill_marked(root, None, Duration::from_secs(20));
        assert!(!later.wait().unwrap().success());
        assert!(unknown.try_wait().unwrap().is_none());
        unknown.kill().unwrap();
        unknown.wait().unwrap();
    }

    #[test]
    fn children_and_memory_are_seen() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let (own, pid) = (rustix::process::getpid(), Pid::from_child(&child));
        assert!(children(own).contains(&pid));
        assert!(tree(own).contains(&pid));
        let before = memory(own);
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(memory(own) >= before + (48 << 20));
        assert!(proportional_memory(own) >= 48 << 20);
        drop(block);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
