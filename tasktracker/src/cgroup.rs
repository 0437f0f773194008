//! Control groups (cgroups), versions 1 and 2. With them the kernel limits the memory and the
//! number of processes of a task process and its children. If the tracker cannot create groups, it
//! logs this once, and only the process monitor enforces the limits.
//!
//! There is one group per task process, next to the group of the tracker. Its name contains the
//! incarnation of the tracker (the number of its start) and the number of the process.

use rustix::process::Pid;
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Prefix of the names of the groups of task processes.
const TASK_GROUP_PREFIX: &str = "fermata-task-";
/// Name of the group of the tracker itself.
const TRACKER_GROUP: &str = "fermata-tracker";
/// A group without a process is removed only if it is older than this, because the process of a new
/// group may not have entered it yet.
const EMPTY_GROUP_AGE: Duration = Duration::from_mins(1);

/// Limits of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupLimits {
    /// Memory in bytes.
    pub(crate) memory: u64,
    /// Number of processes and threads.
    pub(crate) processes: u64,
}

/// The control groups of task processes.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    parents: Parents,
    incarnation: u64,
}

impl Groups {
    /// Finds where this process may create groups. Logs a warning and returns `None` if it may not
    /// create any.
    pub(crate) fn open(limits: GroupLimits, incarnation: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        match Self::open_in(Path::new(CGROUP_ROOT), &own, limits, incarnation) {
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

    fn open_in(mounted: &Path, own: &str, limits: GroupLimits, incarnation: u64) -> Result<Self, String> {
        let parents = if mounted.join("cgroup.controllers").exists() {
            parents_v2(mounted, own, limits)?
        } else {
            parents_v1(mounted, own, limits)?
        };
        let groups = Self { parents, incarnation };
        groups.sweep();
        // Create and remove a group now, so that an error does not occur later, in a task.
        let created = groups.create(0);
        groups.remove(0).ok();
        created
            .map(|()| groups)
            .map_err(|error| format!("this account may not create control groups: {error}"))
    }

    /// Removes groups that a killed tracker has left. Groups with processes and new groups are
    /// kept.
    fn sweep(&self) {
        let entries = self.parents.iter().flat_map(|(parent, _)| fs::read_dir(parent)).flatten().flatten();
        for entry in
            entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(TASK_GROUP_PREFIX))
        {
            let age =
                entry.metadata().and_then(|about| about.modified()).ok().and_then(|at| at.elapsed().ok());
            if age.is_some_and(|age| age > EMPTY_GROUP_AGE) {
                fs::remove_dir(entry.path()).ok();
            }
        }
    }

    /// Returns the folders of the group of a process, each with its limits.
    fn folders(&self, number: u64) -> impl Iterator<Item = (PathBuf, &[(&'static str, u64)])> {
        let name = format!("{TASK_GROUP_PREFIX}{}-{number}", self.incarnation);
        self.parents.iter().map(move |(parent, limits)| (parent.join(&name), &limits[..]))
    }

    /// Creates the group of the process with this number, and sets its limits.
    pub(crate) fn create(&self, number: u64) -> io::Result<()> {
        for (folder, limits) in self.folders(number) {
            fs::create_dir(&folder)?;
            for (file, limit) in limits {
                fs::write(folder.join(file), limit.to_string())?;
            }
        }
        Ok(())
    }

    /// Moves a process into the group with this number.
    pub(crate) fn enter(&self, number: u64, pid: Pid) -> io::Result<()> {
        for (folder, _) in self.folders(number) {
            fs::write(folder.join("cgroup.procs"), pid.as_raw_nonzero().to_string())?;
        }
        Ok(())
    }

    /// Returns how often the kernel has refused to start another process in the group with this
    /// number.
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

/// The parent folders of the groups: one for each controller, or one for both. Each has the names
/// and values of the limits that are set in its groups.
type Parents = Vec<(PathBuf, Vec<(&'static str, u64)>)>;

/// Returns the parents of the groups in version 1, which has a tree of groups for each controller.
fn parents_v1(mounted: &Path, own: &str, limits: GroupLimits) -> Result<Parents, String> {
    let parent = |controller: &str, limit: (&'static str, u64)| {
        let path = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            fields.next()?.split(',').any(|name| name == controller).then(|| fields.next())?
        });
        let path =
            path.ok_or_else(|| format!("this process is in no cgroup of the {controller} controller"))?;
        let folder = mounted.join(controller).join(path.trim_start_matches('/'));
        let missing = || format!("{} does not exist", folder.display());
        if folder.is_dir() { Ok((folder.clone(), vec![limit])) } else { Err(missing()) }
    };
    Ok(vec![
        parent("memory", ("memory.limit_in_bytes", limits.memory))?,
        parent("pids", ("pids.max", limits.processes))?,
    ])
}

/// Returns the parent of the groups in version 2, which has one tree of groups. A group with
/// processes cannot delegate controllers, so the tracker moves into a group next to the groups of
/// its tasks. Child processes that it starts later start in the new group; earlier ones do not
/// move.
fn parents_v2(mounted: &Path, own: &str, limits: GroupLimits) -> Result<Parents, String> {
    let path =
        own.lines().find_map(|line| line.strip_prefix("0::")).ok_or("this process is in no control group")?;
    let base = mounted.join(path.trim_start_matches('/'));
    let in_base = processes_in(&base);
    let init = container_init().filter(|init| in_base.contains(init));
    let movers: Vec<u32> = init.into_iter().chain([std::process::id()]).collect();
    move_and_delegate(&base, &movers, "+memory +pids").map_err(|error| {
        let remaining: Vec<String> = processes_in(&base).iter().map(u32::to_string).collect();
        let remaining = if remaining.is_empty() {
            String::new()
        } else {
            format!(" (it has the processes {})", remaining.join(", "))
        };
        format!("cannot create groups below {}: {error}{remaining}", base.display())
    })?;
    Ok(vec![(base, vec![("memory.max", limits.memory), ("pids.max", limits.processes)])])
}

/// Moves these processes from the group `base` into a group below it, and then delegates the
/// controllers of `base`. The order matters: the kernel does not delegate controllers of a group
/// with processes.
fn move_and_delegate(base: &Path, movers: &[u32], controllers: &str) -> io::Result<()> {
    let tracker = base.join(TRACKER_GROUP);
    fs::create_dir_all(&tracker)?;
    for pid in movers {
        // The kernel accepts one PID per write.
        let mut procs = OpenOptions::new().append(true).create(true).open(tracker.join("cgroup.procs"))?;
        procs.write_all(format!("{pid}\n").as_bytes())?;
    }
    fs::write(base.join("cgroup.subtree_control"), controllers)
}

/// Returns the processes of a group.
fn processes_in(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// Returns the PID of the init process of a container (1), if this process runs in one and its
/// parent is the init process that the daemon itself provides (`daemon::init_process`).
fn container_init() -> Option<u32> {
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
    fn kernel_refuses_to_fork_more_processes_than_the_limit() {
        let limits = GroupLimits { memory: 64 << 20, processes: 3 };
        let Some(groups) = Groups::open(limits, u64::from(std::process::id())) else {
            return skip("cgroups", "no control groups for this account");
        };
        groups.create(1).unwrap();
        // The script waits until it is in its group, then starts five processes at the same time.
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
    fn error_says_which_control_group_is_missing() {
        let limits = GroupLimits { memory: 1, processes: 2 };
        let dir = tempfile::tempdir().unwrap();
        let why = |own: &str| Groups::open_in(dir.path(), own, limits, 1).unwrap_err();
        assert_eq!(why("3:nonesuch:/a\n0::/\n"), "this process is in no cgroup of the memory controller");
        // The groups can be hidden, as they are under `ip netns exec`.
        assert!(why("3:memory:/a\n4:pids:/a\n").ends_with("memory/a does not exist"));
        fs::create_dir_all(dir.path().join("memory/a")).unwrap();
        assert!(why("3:memory:/a\n4:pids:/a\n").ends_with("pids/a does not exist"));
        fs::write(dir.path().join("cgroup.controllers"), "memory pids").unwrap();
        assert_eq!(why("3:memory:/a\n"), "this process is in no control group");
    }

    /// Uses plain folders instead of real groups. Checks which processes are moved, and that no
    /// controller is delegated before.
    #[test]
    fn controllers_are_delegated_only_after_the_tracker_has_moved() {
        let limits = GroupLimits { memory: 64, processes: 3 };
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("unit");
        fs::create_dir(&base).unwrap();
        let read = |name: &str| fs::read_to_string(base.join(name)).unwrap_or_default();
        fs::write(dir.path().join("cgroup.controllers"), "memory pids").unwrap();
        let own = std::process::id();
        fs::write(base.join("cgroup.procs"), format!("{own}\n7\n")).unwrap();
        // If the tracker cannot move, no controller is delegated, and the error lists the remaining
        // processes.
        fs::create_dir_all(base.join(TRACKER_GROUP).join("cgroup.procs")).unwrap();
        let why = Groups::open_in(dir.path(), "0::/unit\n", limits, 1).unwrap_err();
        assert!(
            why.contains("cannot create groups below")
                && why.ends_with(&format!("(it has the processes {own}, 7)")),
            "{why}"
        );
        assert!(!base.join("cgroup.subtree_control").exists());
        fs::remove_dir(base.join(TRACKER_GROUP).join("cgroup.procs")).unwrap();
        let parents = parents_v2(dir.path(), "0::/unit\n", limits).unwrap();
        assert_eq!(parents, [(base.clone(), vec![("memory.max", 64), ("pids.max", 3)])]);
        assert_eq!(read(&format!("{TRACKER_GROUP}/cgroup.procs")), format!("{own}\n"));
        assert_eq!(read("cgroup.subtree_control"), "+memory +pids");
    }

    /// Tests the assumption of `parents_v2` on a kernel with version 2 and any available
    /// controller.
    #[test]
    fn kernel_delegates_only_controllers_of_groups_without_processes() {
        let skipped = |why: &str| skip("cgroups", why);
        let mounts = [CGROUP_ROOT, "/sys/fs/cgroup/unified"].map(Path::new);
        let Some(mount) = mounts.into_iter().find(|mount| mount.join("cgroup.controllers").exists()) else {
            return skipped("no version 2 of control groups");
        };
        let base = mount.join(format!("fermata-test-{}", std::process::id()));
        if fs::create_dir(&base).is_err() {
            return skipped("this account may not create control groups");
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
        // The first call moves only the tracker, as if the reaper had been started before the move.
        let refused = move_and_delegate(&base, &[tracker], &format!("+{controller}"));
        let remaining = processes_in(&base);
        let delegated = move_and_delegate(&base, &[reaper], &format!("+{controller}"));
        let both = processes_in(&base.join(TRACKER_GROUP));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        for folder in [&base.join(TRACKER_GROUP), &base] {
            while fs::remove_dir(folder).is_err() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(remaining, [reaper]);
        delegated.unwrap();
        assert_eq!(both.len(), 2, "{both:?}");
    }
}
