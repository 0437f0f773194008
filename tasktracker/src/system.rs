//! Reads information about processes from `/proc`, and identifies the processes of a tracker by
//! marks.
//!
//! Each task process is started with a mark in its environment, which its children inherit: the
//! number of the process, the incarnation of its tracker, and the first folder of the tracker. The
//! mark identifies descendants that have left their process group, and descendants that a killed
//! tracker has left behind. A descendant that also clears its environment is found only while its
//! tracker runs, which becomes its parent.

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
/// Time between two checks whether killed processes have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The contents of a mark, without the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Identifies the task process within its tracker. Not a PID.
    pub(crate) process_number: u64,
    /// Incarnation of the tracker.
    pub(crate) incarnation: u64,
}

/// Returns the value of the environment variable for a mark. `root` is the first folder of the
/// tracker.
pub(crate) fn format_mark(mark: Mark, root: &Path) -> OsString {
    let Mark { process_number, incarnation } = mark;
    let numbers = format!("{process_number}.{incarnation}:");
    OsString::from_vec([numbers.as_bytes(), root.as_os_str().as_bytes()].concat())
}

/// Returns the mark of a process, if it has one and belongs to the tracker with this first folder.
pub(crate) fn mark_of(pid: Pid, root: &Path) -> Option<Mark> {
    let environment = fs::read(proc_path(pid, "environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let mark = variables.find_map(|pair| pair.strip_prefix(MARK_VAR.as_bytes())?.strip_prefix(b"="))?;
    let colon = mark.iter().position(|byte| *byte == b':')?;
    let (numbers, folder) = (&mark[..colon], &mark[colon + 1..]);
    let (number, incarnation) = std::str::from_utf8(numbers).ok()?.split_once('.')?;
    let mark = Mark { process_number: number.parse().ok()?, incarnation: incarnation.parse().ok()? };
    (folder == root.as_os_str().as_bytes()).then_some(mark)
}

/// Kills every process whose mark has this folder, and this incarnation if it is given. Returns
/// when there is no such process, or when `timeout` has passed.
pub(crate) fn kill_marked(root: &Path, incarnation: Option<u64>, timeout: Duration) {
    let until = Instant::now() + timeout;
    let own = rustix::process::getpid();
    let matches = |mark: Mark| incarnation.is_none_or(|incarnation| incarnation == mark.incarnation);
    loop {
        let marked = |pid: &Pid| *pid != own && mark_of(*pid, root).is_some_and(matches) && !is_zombie(*pid);
        let remaining: Vec<Pid> = numeric_entries(Path::new("/proc")).into_iter().filter(marked).collect();
        if remaining.is_empty() || Instant::now() >= until {
            return;
        }
        for pid in remaining {
            tracing::warn!(
                pid = pid.as_raw_nonzero().get(),
                "killing a process that a killed tracker has left"
            );
            // The PID may belong to another process by now, so check the mark again after the
            // process was opened.
            if let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty())
                && mark_of(pid, root).is_some_and(matches)
            {
                rustix::process::pidfd_send_signal(pidfd, Signal::KILL).ok();
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the children of a process, according to `/proc`; none if the process has ended.
pub(crate) fn children(pid: Pid) -> Vec<Pid> {
    let folder = proc_path(pid, "task");
    let mut found = Vec::new();
    for thread in numeric_entries(Path::new(&folder)) {
        let list = format!("{folder}/{}/children", thread.as_raw_nonzero());
        let list = fs::read_to_string(list).unwrap_or_default();
        found.extend(list.split_whitespace().filter_map(|number| Pid::from_raw(number.parse().ok()?)));
    }
    found
}

/// Returns a process and all its descendants.
pub(crate) fn process_tree(root: Pid) -> Vec<Pid> {
    let mut found = vec![root];
    let mut at = 0;
    while let Some(pid) = found.get(at).copied() {
        found.extend(children(pid));
        at += 1;
    }
    found
}

/// Returns the number of threads of a process; 0 if it has ended.
pub(crate) fn thread_count(pid: Pid) -> u64 {
    numeric_entries(Path::new(&proc_path(pid, "task"))).len() as u64
}

/// Returns the private memory of a process in bytes, without mapped files. Memory that a process
/// shares with its children is counted for each of them.
pub(crate) fn private_memory(pid: Pid) -> u64 {
    let pages = || {
        let text = fs::read_to_string(proc_path(pid, "statm")).ok()?;
        let mut fields = text.split_whitespace().skip(1).map_while(|field| field.parse::<u64>().ok());
        let (resident, shared) = (fields.next()?, fields.next()?);
        Some(resident.saturating_sub(shared))
    };
    pages().unwrap_or(0) * PAGE_BYTES
}

/// Returns the private memory of a process in bytes, with its proportional share of the memory that
/// it shares with its children. Slower than [`private_memory`].
pub(crate) fn proportional_memory(pid: Pid) -> u64 {
    let text = fs::read_to_string(proc_path(pid, "smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or_else(|| private_memory(pid), |kib| kib << 10)
}

/// Makes the kernel kill this process rather than a daemon when the machine runs out of memory.
pub(crate) fn prefer_for_oom_kill(pid: Pid) {
    if let Err(error) = fs::write(proc_path(pid, "oom_score_adj"), "1000") {
        tracing::debug!(%error, "cannot make the out-of-memory killer prefer a task process");
    }
}

/// Returns whether a process has ended but is not reaped yet.
pub(crate) fn is_zombie(pid: Pid) -> bool {
    // The state follows the name of the program in brackets. The name may itself contain brackets.
    let stat = fs::read_to_string(proc_path(pid, "stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('Z'))
}

fn proc_path(pid: Pid, name: &str) -> String {
    format!("/proc/{}/{name}", pid.as_raw_nonzero())
}

/// Returns the entries of a folder whose names are PIDs or thread IDs.
fn numeric_entries(folder: &Path) -> Vec<Pid> {
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

    fn spawn_marked(root: &Path, process_number: u64, incarnation: u64) -> Child {
        let mut command = Command::new("sleep");
        let mark = format_mark(Mark { process_number, incarnation }, root);
        command.arg("1000").process_group(0).env(MARK_VAR, mark).spawn().unwrap()
    }

    #[test]
    fn only_processes_with_this_folder_and_incarnation_in_their_mark_are_killed() {
        let (root, other) = (Path::new("/a folder"), Path::new("/a folder/deeper"));
        let mut ours = [spawn_marked(root, 7, 1), spawn_marked(root, 8, 1)];
        let (mut unknown, mut later) = (spawn_marked(other, 7, 1), spawn_marked(root, 7, 2));
        let mark = Mark { process_number: 8, incarnation: 1 };
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
    fn children_and_memory_of_this_process_are_found() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let (own, pid) = (rustix::process::getpid(), Pid::from_child(&child));
        assert!(children(own).contains(&pid));
        assert!(process_tree(own).contains(&pid));
        let before = private_memory(own);
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(private_memory(own) >= before + (48 << 20));
        assert!(proportional_memory(own) >= 48 << 20);
        drop(block);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
