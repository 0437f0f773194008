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
    /// Where this process may make groups; none if it may not, which is said.
    pub(crate) fn open(bounds: Bounds, incarnation: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        match Self::open_in(Path::new(MOUNTED), &own, bounds, incarnation) {
            Ok(groups) => Some(groups),
            Err(why) => {
                tracing::warn!(
                    why,
                    "no control groups: the kernel does not hold tasks to task_memory_max and task_processes_max, the \
                     tracker looks every half second"
                );
                None
            }
        }
    }

    fn open_in(mounted: &Path, own: &str, bounds: Bounds, incarnation: u64) -> Result<Self, String> {
        let parents = if mounted.join("cgroup.controllers").exists() {
            second(mounted, own, bounds)?
        } else {
            first(mounted, own, bounds)?
        };
        let groups = Self { parents, incarnation };
        groups.sweep();
        // Tried now, so that a task does not meet the error.
        let tried = groups.make(0);
        groups.remove(0).ok();
        tried.map(|()| groups).map_err(|error| format!("this account may make none: {error}"))
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

    /// How often the kernel has refused the group of this number one more process.
    pub(crate) fn refusals(&self, number: u64) -> u64 {
        let events = self.folders(number).filter_map(|(folder, _)| {
            let text = fs::read_to_string(folder.join("pids.events")).ok()?;
            text.lines().find_map(|line| line.strip_prefix("max ")?.trim().parse::<u64>().ok())
        });
        events.sum()
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

type Parents = Vec<(PathBuf, Vec<(&'static str, u64)>)>;

/// Version 1: a tree for each controller.
fn first(mounted: &Path, own: &str, bounds: Bounds) -> Result<Parents, String> {
    let of = |controller: &str, limit: (&'static str, u64)| {
        let path = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            fields.next()?.split(',').any(|name| name == controller).then(|| fields.next())?
        });
        let path = path.ok_or_else(|| format!("this process is in none of {controller}"))?;
        let folder = mounted.join(controller).join(path.trim_start_matches('/'));
        let missing = || format!("{} is not there", folder.display());
        if folder.is_dir() { Ok((folder.clone(), vec![limit])) } else { Err(missing()) }
    };
    Ok(vec![
        of("memory", ("memory.limit_in_bytes", bounds.memory))?,
        of("pids", ("pids.max", bounds.processes))?,
    ])
}

/// Version 2: one tree. A group with processes of its own cannot hand controllers down, so the tracker moves into a
/// group beside those of its tasks.
fn second(mounted: &Path, own: &str, bounds: Bounds) -> Result<Parents, String> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::")).ok_or("this process is in none")?;
    let base = mounted.join(path.trim_start_matches('/'));
    let tracker = base.join("fermata-tracker");
    let settled = fs::create_dir_all(&tracker)
        .and_then(|()| fs::write(tracker.join("cgroup.procs"), std::process::id().to_string()))
        .and_then(|()| fs::write(base.join("cgroup.subtree_control"), "+memory +pids"));
    settled.map_err(|error| format!("{} cannot be divided: {error}", base.display()))?;
    Ok(vec![(base, vec![("memory.max", bounds.memory), ("pids.max", bounds.processes)])])
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
        assert!(groups.refusals(1) > 0);
        assert_eq!(groups.refusals(2), 0);
        while groups.remove(1).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    #[test]
    fn where_there_are_none_is_said() {
        let bounds = Bounds { memory: 1, processes: 2 };
        let dir = tempfile::tempdir().unwrap();
        let why = |own: &str| Groups::open_in(dir.path(), own, bounds, 1).unwrap_err();
        assert_eq!(why("3:nonesuch:/a\n0::/\n"), "this process is in none of memory");
        // As where `ip netns exec` hides them.
        assert!(why("3:memory:/a\n4:pids:/a\n").ends_with("memory/a is not there"));
        fs::create_dir_all(dir.path().join("memory/a")).unwrap();
        assert!(why("3:memory:/a\n4:pids:/a\n").ends_with("pids/a is not there"));
        fs::write(dir.path().join("cgroup.controllers"), "memory pids").unwrap();
        assert_eq!(why("3:memory:/a\n"), "this process is in none");
    }
}
