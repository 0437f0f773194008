//! Control groups: the kernel itself holds a task process, with all that it starts, to its memory and its number of
//! processes. Versions 1 and 2. Best effort: a tracker that may not make groups says so once, and its warden still
//! looks.
//!
//! A group a process, beside the tracker's own, named by the tracker's incarnation and the process's number.

use rustix::process::Pid;
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

const MOUNTED: &str = "/sys/fs/cgroup";
const PREFIX: &str = "fermata-task-";
/// A group has its process long before this.
const SETTLED: Duration = Duration::from_mins(1);

/// What a group holds its processes to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Bytes.
    pub(crate) memory: u64,
    /// Processes and threads.
    pub(crate) processes: u64,
}

/// Where groups are made: a folder for each controller, or one for both.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    parents: Vec<(PathBuf, Vec<(&'static str, u64)>)>,
    incarnation: u64,
}

impl Groups {
    /// Where this process may make groups; none if it may not.
    pub(crate) fn open(bounds: Bounds, incarnation: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let found = if Path::new(MOUNTED).join("cgroup.controllers").exists() {
            second(&own, bounds)
        } else {
            first(&own, bounds)
        };
        let groups = Self { parents: found, incarnation };
        groups.sweep();
        // Tried now, so that a task does not meet the error.
        match groups.make(0).and_then(|()| groups.remove(0)) {
            Ok(()) if !groups.parents.is_empty() => Some(groups),
            Ok(()) => None,
            Err(error) => {
                groups.remove(0).ok();
                tracing::warn!(%error, "no control groups: the warden alone holds tasks to their memory");
                None
            }
        }
    }

    /// Removes what a tracker that was killed has left. A group with a process in it stays, and so does a new one.
    fn sweep(&self) {
        let entries = self.parents.iter().flat_map(|(parent, _)| fs::read_dir(parent)).flatten().flatten();
        for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
            let age =
                entry.metadata().and_then(|about| about.modified()).ok().and_then(|at| at.elapsed().ok());
            if age.is_some_and(|age| age > SETTLED) {
                fs::remove_dir(entry.path()).ok();
            }
        }
    }

    fn folders(&self, number: u64) -> impl Iterator<Item = (PathBuf, &[(&'static str, u64)])> {
        let name = format!("{PREFIX}{}-{number}", self.incarnation);
        self.parents.iter().map(move |(parent, limits)| (parent.join(&name), &limits[..]))
    }

    /// Makes the group of the process of this number.
    pub(crate) fn make(&self, number: u64) -> io::Result<()> {
        for (folder, limits) in self.folders(number) {
            fs::create_dir(&folder)?;
            for (file, limit) in limits {
                fs::write(folder.join(file), limit.to_string())?;
            }
        }
        Ok(())
    }

    /// Puts a process into its group.
    pub(crate) fn enter(&self, number: u64, pid: Pid) -> io::Result<()> {
        for (folder, _) in self.folders(number) {
            fs::write(folder.join("cgroup.procs"), pid.as_raw_nonzero().to_string())?;
        }
        Ok(())
    }

    /// Removes a group, which must be empty.
    pub(crate) fn remove(&self, number: u64) -> io::Result<()> {
        let mut last = Ok(());
        for (folder, _) in self.folders(number) {
            last = last.and(fs::remove_dir(folder));
        }
        last
    }
}

/// Version 1: a tree for each controller.
fn first(own: &str, bounds: Bounds) -> Vec<(PathBuf, Vec<(&'static str, u64)>)> {
    let of = |controller: &str, limit: (&'static str, u64)| {
        let path = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            fields.next()?.split(',').any(|name| name == controller).then(|| fields.next())?
        })?;
        let folder = Path::new(MOUNTED).join(controller).join(path.trim_start_matches('/'));
        folder.is_dir().then(|| (folder, vec![limit]))
    };
    let memory = of("memory", ("memory.limit_in_bytes", bounds.memory));
    memory.into_iter().chain(of("pids", ("pids.max", bounds.processes))).collect()
}

/// Version 2: one tree. A group with processes of its own cannot hand controllers down, so the tracker moves into a
/// group beside those of its tasks.
fn second(own: &str, bounds: Bounds) -> Vec<(PathBuf, Vec<(&'static str, u64)>)> {
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::")) else { return Vec::new() };
    let base = Path::new(MOUNTED).join(path.trim_start_matches('/'));
    let tracker = base.join("fermata-tracker");
    let settled = fs::create_dir_all(&tracker)
        .and_then(|()| fs::write(tracker.join("cgroup.procs"), std::process::id().to_string()))
        .and_then(|()| fs::write(base.join("cgroup.subtree_control"), "+memory +pids"));
    match settled {
        Ok(()) => vec![(base, vec![("memory.max", bounds.memory), ("pids.max", bounds.processes)])],
        Err(error) => {
            tracing::warn!(%error, "control groups cannot be handed down");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_that_forks_too_much_is_stopped_by_the_kernel() {
        let bounds = Bounds { memory: 64 << 20, processes: 3 };
        let Some(groups) = Groups::open(bounds, u64::from(std::process::id())) else {
            return eprintln!("skipped: no control groups for this account");
        };
        groups.make(1).unwrap();
        // It waits to be put into its group, then wants five processes at a time.
        let script = "read go; for i in 1 2 3 4 5; do sleep 5 & done; wait";
        let mut child = Command::new("sh");
        child.args(["-c", script]).stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = child.spawn().unwrap();
        groups.enter(1, Pid::from_child(&child)).unwrap();
        io::Write::write_all(&mut child.stdin.take().unwrap(), b"go\n").unwrap();
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).to_lowercase();
        assert!(said.contains("fork"), "{said}");
        while groups.remove(1).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let bounds = Bounds { memory: 1, processes: 2 };
        assert!(first("3:nonesuch:/a\n0::/\n", bounds).is_empty());
        assert!(second("3:memory:/a\n", bounds).is_empty());
    }
}
