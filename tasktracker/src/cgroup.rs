//! Control groups, versions 1 and 2: the kernel limits the memory and the number of processes of a
//! task process including its children. If the tracker cannot create groups, it logs this once, and
//! only the process monitor enforces the limits.
//!
//! There is a group per task process, next to that of the tracker, named by the incarnation of the
//! tracker and the number of the process.

use rustix::process::Pid;
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

const MOUNTED: &str = "/sys/fs/cgroup";
const PREFIX: &str = "fermata-task-";
/// Group of the tracker itself.
const TRACKER: &str = "fermata-tracker";
/// Age after which a new group must have a process.
const SETTLED: Duration = Duration::from_mins(1);

/// Limits of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Memory in bytes.
    pub(crate) memory: u64,
    /// Number of processes and threads.
    pub(crate) processes: u64,
}

/// Parent folders of the groups: one per controller, or one for both.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    parents: Vec<(PathBuf, Vec<(&'static str, u64)>)>,
    incarnation: u64,
}

impl Groups {
    /// Returns where this process may create groups; logs a warning and returns `None` if it may
    /// not.
    pub(crate) fn open(bounds: Bounds, incarnation: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        match Self::open_in(Path::new(MOUNTED), &own, bounds, incarnation) {
            Ok(groups) => Some(groups),
            Err(why) => {
                tracing::warn!(
                    why,
                    "no control groups: the kernel does not enforce task_memory_max and task_processes_max, only the tracker checks them, every half second"
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
        // Tested now, so that the error does not occur in a task.
        let tried = groups.make(0);
        groups.remove(0).ok();
        tried.map(|()| groups).map_err(|error| format!("this account may not create control groups: {error}"))
    }

    /// Removes groups of a killed tracker. Groups with processes, and new groups, are kept.
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

    /// Creates the group of the process with this number.
    pub(crate) fn make(&self, number: u64) -> io::Result<()> {
        for (folder, limits) in self.folders(number) {
            fs::create_dir(&folder)?;
            for (file, limit) in limits {
                fs::write(folder.join(file), limit.to_string())?;
            }
        }
        Ok(())
    }

    /// Moves a process into its group.
    pub(crate) fn enter(&self, number: u64, pid: Pid) -> io::Result<()> {
        for (folder, _) in self.folders(number) {
            fs::write(folder.join("cgroup.procs"), pid.as_raw_nonzero().to_string())?;
        }
        Ok(())
    }

    /// Returns how often the kernel has refused the group of this number another process.
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

/// Version 1: a tree per controller.
fn first(mounted: &Path, own: &str, bounds: Bounds) -> Result<Parents, String> {
    let of = |controller: &str, limit: (&'static str, u64)| {
        let path = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            fields.next()?.split(',').any(|name| name == controller).then(|| fields.next())?
        });
        let path =
            path.ok_or_else(|| format!("this process is in no group of the controller {controller}"))?;
        let folder = mounted.join(controller).join(path.trim_start_matches('/'));
        let missing = || format!("{} does not exist", folder.display());
        if folder.is_dir() { Ok((folder.clone(), vec![limit])) } else { Err(missing()) }
    };
    Ok(vec![
        of("memory", ("memory.limit_in_bytes", bounds.memory))?,
        of("pids", ("pids.max", bounds.processes))?,
    ])
}

/// Version 2: one tree. A group with processes cannot delegate controllers, so the tracker moves
/// into a group next to those of its tasks. Its later child processes start there; earlier ones do
/// not move.
fn second(mounted: &Path, own: &str, bounds: Bounds) -> Result<Parents, String> {
    let path =
        own.lines().find_map(|line| line.strip_prefix("0::")).ok_or("this process is in no control group")?;
    let base = mounted.join(path.trim_start_matches('/'));
    let here = members(&base);
    let first = first_process().filter(|first| here.contains(first));
    let movers: Vec<u32> = first.into_iter().chain([std::process::id()]).collect();
    divide(&base, &movers, "+memory +pids").map_err(|error| {
        let left: Vec<String> = members(&base).iter().map(u32::to_string).collect();
        let left = if left.is_empty() {
            String::new()
        } else {
            format!(" (it has the processes {})", left.join(", "))
        };
        format!("cannot create groups below {}: {error}{left}", base.display())
    })?;
    Ok(vec![(base, vec![("memory.max", bounds.memory), ("pids.max", bounds.processes)])])
}

/// Moves these processes from a group into one below it, then delegates controllers: in this order,
/// because the kernel refuses it for a group with processes.
fn divide(base: &Path, movers: &[u32], controllers: &str) -> io::Result<()> {
    let tracker = base.join(TRACKER);
    fs::create_dir_all(&tracker)?;
    for pid in movers {
        // One PID per write.
        let mut procs = OpenOptions::new().append(true).create(true).open(tracker.join("cgroup.procs"))?;
        procs.write_all(format!("{pid}\n").as_bytes())?;
    }
    fs::write(base.join("cgroup.subtree_control"), controllers)
}

/// Returns the processes of a group.
fn members(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// Returns process 1 of a container if it is the init process of this daemon (`init_process` of the
/// crate daemon).
fn first_process() -> Option<u32> {
    let program = |pid: &str| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let parent = rustix::process::getppid().filter(|parent| *parent == Pid::INIT)?;
    (program("1").is_some() && program("1") == program("self")).then(|| parent.as_raw_nonzero().get() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip::skip;
    use std::process::Command;

    #[test]
    fn a_process_that_forks_too_much_is_stopped_by_the_kernel() {
        let bounds = Bounds { memory: 64 << 20, processes: 3 };
        let Some(groups) = Groups::open(bounds, u64::from(std::process::id())) else {
            return skip("cgroups", "no control groups for this account");
        };
        groups.make(1).unwrap();
        // The script waits until it is in its group, then starts five processes at a time.
        let script = "read go; for i in 1 2 3 4 5; do sleep 5 & done; wait";
        let mut child = Command::new("sh");
        child.args(["-c", script]).stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = child.spawn().unwrap();
        groups.enter(1, Pid::from_child(&child)).unwrap();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let ended = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&ended.stderr).to_lowercase();
        assert!(errors.contains("fork"), "{errors}");
        assert!(groups.refusals(1) > 0);
        assert_eq!(groups.refusals(2), 0);
        while groups.remove(1).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    #[test]
    fn missing_cgroups_are_reported() {
        let bounds = Bounds { memory: 1, processes: 2 };
        let dir = tempfile::tempdir().unwrap();
        let why = |own: &str| Groups::open_in(dir.path(), own, bounds, 1).unwrap_err();
        assert_eq!(why("3:nonesuch:/a\n0::/\n"), "this process is in no group of the controller memory");
        // As under `ip netns exec`, which hides them.
        assert!(why("3:memory:/a\n4:pids:/a\n").ends_with("memory/a does not exist"));
        fs::create_dir_all(dir.path().join("memory/a")).unwrap();
        assert!(why("3:memory:/a\n4:pids:/a\n").ends_with("pids/a does not exist"));
        fs::write(dir.path().join("cgroup.controllers"), "memory pids").unwrap();
        assert_eq!(why("3:memory:/a\n"), "this process is in no control group");
    }

    /// On plain folders: which processes are moved, and that nothing is delegated before.
    #[test]
    fn a_group_is_divided_when_the_tracker_has_left_it() {
        let bounds = Bounds { memory: 64, processes: 3 };
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("unit");
        fs::create_dir(&base).unwrap();
        let read = |name: &str| fs::read_to_string(base.join(name)).unwrap_or_default();
        fs::write(dir.path().join("cgroup.controllers"), "memory pids").unwrap();
        let own = std::process::id();
        fs::write(base.join("cgroup.procs"), format!("{own}\n7\n")).unwrap();
        // If the tracker cannot move, nothing is delegated, and the error lists the processes.
        fs::create_dir_all(base.join(TRACKER).join("cgroup.procs")).unwrap();
        let why = Groups::open_in(dir.path(), "0::/unit\n", bounds, 1).unwrap_err();
        assert!(
            why.contains("cannot create groups below")
                && why.ends_with(&format!("(it has the processes {own}, 7)")),
            "{why}"
        );
        assert!(!base.join("cgroup.subtree_control").exists());
        fs::remove_dir(base.join(TRACKER).join("cgroup.procs")).unwrap();
        let parents = second(dir.path(), "0::/unit\n", bounds).unwrap();
        assert_eq!(parents, [(base.clone(), vec![("memory.max", 64), ("pids.max", 3)])]);
        assert_eq!(read(&format!("{TRACKER}/cgroup.procs")), format!("{own}\n"));
        assert_eq!(read("cgroup.subtree_control"), "+memory +pids");
    }

    /// The assumption of `second`, tested on a kernel with version 2 and any available controller.
    #[test]
    fn kernel_delegates_controllers_only_of_a_group_without_processes() {
        let skipped = |why: &str| skip("cgroups", why);
        let mounts = [MOUNTED, "/sys/fs/cgroup/unified"].map(Path::new);
        let Some(mount) = mounts.into_iter().find(|mount| mount.join("cgroup.controllers").exists()) else {
            return skipped("no version 2 of control groups");
        };
        let base = mount.join(format!("fermata-test-{}", std::process::id()));
        if fs::create_dir(&base).is_err() {
            return skipped("this account may make no control groups");
        }
        let controllers = fs::read_to_string(base.join("cgroup.controllers")).unwrap();
        let Some(controller) = controllers.split_whitespace().find(|name| !["cpu", "cpuset"].contains(name))
        else {
            fs::remove_dir(&base).unwrap();
            return skipped("no controller is handed down to new groups");
        };
        let mut children = [(); 2].map(|()| Command::new("sleep").arg("1000").spawn().unwrap());
        let [tracker, reaper] = [0, 1].map(|which| children[which].id());
        for pid in [tracker, reaper] {
            fs::write(base.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        // As if the reaper were started first.
        let refused = divide(&base, &[tracker], &format!("+{controller}"));
        let left = members(&base);
        let divided = divide(&base, &[reaper], &format!("+{controller}"));
        let both = members(&base.join(TRACKER));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        for folder in [&base.join(TRACKER), &base] {
            while fs::remove_dir(folder).is_err() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(left, [reaper]);
        divided.unwrap();
        assert_eq!(both.len(), 2, "{both:?}");
    }
}
