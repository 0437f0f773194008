//! Machines with limited resources on this machine: network namespaces whose links, disks and
//! processors have a known rate, and a cluster on them that `mrctl cluster` starts.
//!
//! | resource | limit |
//! |---|---|
//! | link | a token bucket (`tc tbf`) in each direction |
//! | disk | an ext4 file system on a loop device, throttled by the `blkio` (version 1) or `io` (version 2) controller of control groups |
//! | processor | a quota of the `cpu` controller for all processes of the machine |
//!
//! The first machine has the masters and no limits. Dropping the value stops and removes everything.
//!
//! A run has a lock, which ends with its process, and stores the path of its folder in the file of
//! the lock. So who has the lock knows that a folder in the file is of a run that was killed, and
//! removes all that this run has left: [`remove_all`] finds it by the folder and the names of the
//! machines, not by what this process remembers. The commands of a run have the environment variable
//! [`RUN`], and its other processes are in a network namespace or control group of a machine.

use anyhow::{Context, Result, bail, ensure};
use clusters::{
    local::temporary_folder,
    remote::{Fleet, Reach},
};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use std::{
    ffi::OsString,
    fs,
    io::{Read, Seek, Write},
    os::{
        fd::OwnedFd,
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::{MetadataExt, PermissionsExt},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};
use view::output::Usage;

/// Prefix of the names of the machines.
const NAME: &str = "fmv";
/// Number in the addresses 10.77.SUBNET.0/24 of the machines.
const SUBNET: &str = "77";
/// The script that creates the namespaces.
const NET: &str = include_str!("../../../deploy/netns/net");
/// Programs that the machines run.
const PROGRAMS: [&str; 5] = ["namenode", "jobtracker", "datanode", "tasktracker", "mrtask"];
/// Other programs that this module calls.
const TOOLS: [&str; 7] = ["bash", "ip", "tc", "losetup", "mkfs.ext4", "mount", "umount"];
/// Folder on each machine for files that stay in memory. Linux would write cached files to the disk
/// after half a minute.
pub(super) const MEMORY: &str = "memory";
/// Size of each disk; the space is only used as files are written.
const DISK_BYTES: u64 = 8 << 30;
/// Period of the quota of a processor. A short one keeps the delays of daemons short.
const CPU_PERIOD_US: f64 = 20_000.0;
/// How far the kernel reads ahead. With megabytes, readers of a slow disk take turns of a second.
const READ_AHEAD_KB: &str = "128";
/// Prefix of the names of the folders of runs.
const FOLDER: &str = "fermata-verify-";
/// The environment variable of all commands of a run, and of the processes that they start. Its value
/// is the folder of the run.
pub(super) const RUN: &str = "FERMATA_VERIFY_RUN";
const LOCK_INTERVAL: Duration = Duration::from_millis(200);
/// How long the processes of a machine may take to end before its control group is removed.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const END_INTERVAL: Duration = Duration::from_millis(20);
/// Burst of the token bucket. It must be larger than the packets of the local network, which are up
/// to 64 KiB.
const LINK_BURST: &str = "128kb";
/// Bytes of a frame on the link, and of data in it.
const FRAME_BYTES: f64 = 1514.0;
const FRAME_DATA_BYTES: f64 = 1448.0;

/// The resources of each machine with a DataNode and a TaskTracker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limits {
    /// Cores; below 1, a part of one.
    pub(super) cores: f64,
    /// Bytes per second of the disk, for reads and for writes.
    pub(super) disk: u64,
    /// Bytes of data per second of the link, in each direction.
    pub(super) link: u64,
}

/// A cluster on limited machines.
pub(super) struct Machines {
    folder: tempfile::TempDir,
    nodes: usize,
    /// Loop devices, and where they are mounted.
    disks: Vec<(String, PathBuf)>,
    groups: Vec<PathBuf>,
    lock: NamesLock,
}

/// Runs a program to its end and returns its output.
fn run(folder: &Path, program: &str, args: &[&str]) -> Result<String> {
    let ran = Command::new(program)
        .args(args)
        .env(RUN, folder)
        .env("SUBNET", SUBNET)
        // A signal from the terminal must not stop what removes the machines.
        .process_group(0)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    let (out, why) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    ensure!(ran.status.success(), "`{program} {}` failed: {}", args.join(" "), why.trim());
    Ok(out.trim().to_owned())
}

/// Runs a command of this `mrctl`.
fn mrctl(folder: &Path, args: &[&str]) -> Result<String> {
    let own = std::env::current_exe().context("cannot find the program file of mrctl")?;
    run(folder, &own.display().to_string(), args)
}

/// Fails if limited machines cannot be created here, and says why.
pub(super) fn check() -> Result<()> {
    let instead = "`mrctl verify --paced` compares with tasks that sleep, and does not need root";
    if !rustix::process::geteuid().is_root() {
        bail!(Usage(format!(
            "machines with limited disks and links need root: run mrctl verify as root; {instead}"
        )));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let exists = |tool: &str| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    if let Some(tool) = TOOLS.iter().find(|tool| !exists(tool)) {
        bail!("{tool} is not installed: install iproute2, e2fsprogs and util-linux; {instead}");
    }
    match Controllers::find() {
        Ok(_) => Ok(()),
        Err(error) => bail!("{error:#}; {instead}"),
    }
}

fn lock_path() -> String {
    format!("/run/fermata-net-{NAME}.lock")
}

/// Returns the folder of the run that is stored in the file of the lock, if there is one.
fn stored_folder(file: &mut fs::File) -> std::io::Result<Option<PathBuf>> {
    let mut stored = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut stored)?;
    let folder = PathBuf::from(OsString::from_vec(stored));
    let is_ours = folder.file_name().is_some_and(|name| name.as_bytes().starts_with(FOLDER.as_bytes()));
    Ok(is_ours.then_some(folder))
}

/// Returns the folder of a run that was killed, if it has left machines. Does not need root.
pub(super) fn left_by_killed_run() -> Option<PathBuf> {
    let mut file = fs::File::open(lock_path()).ok()?;
    file.try_lock_shared().ok()?;
    stored_folder(&mut file).ok()?
}

/// The lock on the names of the machines. It ends with this process; processes that it starts do not
/// inherit it.
struct NamesLock {
    path: String,
    file: fs::File,
}

impl NamesLock {
    /// Takes the lock; returns `None` if another process has it.
    fn try_take() -> Result<Option<Self>> {
        let path = lock_path();
        let open = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = open.with_context(|| format!("cannot create {path}"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { path, file })),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {path}")),
        }
    }

    /// Takes the lock. Waits until other runs have released it.
    async fn take() -> Result<Self> {
        let mut is_notified = false;
        loop {
            if let Some(lock) = Self::try_take()? {
                return Ok(lock);
            }
            if !is_notified {
                eprintln!("mrctl: waiting until another `mrctl verify` has ended");
                is_notified = true;
            }
            tokio::time::sleep(LOCK_INTERVAL).await;
        }
    }

    /// Stores the folder of the run that has the lock; an empty path after it was removed.
    fn store(&mut self, folder: &Path) -> Result<()> {
        let write = |file: &mut fs::File| {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(folder.as_os_str().as_bytes())
        };
        write(&mut self.file).with_context(|| format!("cannot write {}", self.path))
    }

    /// Removes what a killed run has left. Returns its folder, if there was one.
    fn remove_left(&mut self) -> Result<Option<PathBuf>> {
        let stored = stored_folder(&mut self.file).with_context(|| format!("cannot read {}", self.path))?;
        let Some(folder) = stored else { return Ok(None) };
        eprintln!("mrctl: removing what a killed `mrctl verify` has left in {}", folder.display());
        let errors: Vec<String> = remove_all(&folder).iter().map(|error| format!("{error:#}")).collect();
        ensure!(
            errors.is_empty(),
            "cannot remove what a killed `mrctl verify` has left in {}: {}; remove it yourself and empty {}",
            folder.display(),
            errors.join("; "),
            self.path
        );
        self.store(Path::new(""))?;
        Ok(Some(folder))
    }
}

/// Removes what a killed run has left, and does not start a new one. Returns its folder, if there was
/// one.
pub(super) fn clean() -> Result<Option<PathBuf>> {
    match NamesLock::try_take()? {
        Some(mut lock) => lock.remove_left(),
        None => bail!("another `mrctl verify` is running: it removes its machines when it ends"),
    }
}

/// Kills all processes of a run, and removes all that it has created: machines, control groups, disks
/// and its folder. What does not exist is skipped. An error does not stop the removal of other things.
fn remove_all(folder: &Path) -> Vec<anyhow::Error> {
    // First, because a process that waits for its disk cannot be killed.
    let unlimit = |(device, machine): &(String, String)| Controllers::find()?.unlimit(device, machine);
    let mut results: Vec<Result<()>> = loop_devices(folder).iter().map(unlimit).collect();
    results.extend(remove_machines(folder));
    for (mount, name) in entries(folder) {
        // The folder of a machine is on its disk.
        if is_machine(&name) && device_of(&mount) != device_of(folder) {
            results.push(run(folder, "umount", &["--lazy", &mount.display().to_string()]).map(drop));
        }
    }
    for (device, _) in loop_devices(folder) {
        results.push(run(folder, "losetup", &["--detach", &format!("/dev/{device}")]).map(drop));
    }
    let removed = daemon::tree::remove(folder);
    results.push(removed.with_context(|| format!("cannot remove {}", folder.display())));
    results.into_iter().filter_map(Result::err).collect()
}

/// Kills all processes of machines and of the run with this folder, and removes the control groups and
/// network namespaces of machines.
fn remove_machines(folder: &Path) -> Vec<Result<()>> {
    let mut results = vec![end_processes(folder)];
    match Controllers::find() {
        Ok(controllers) => {
            results.extend(controllers.machine_groups().iter().map(|group| end_group(group)));
        }
        Err(error) => results.push(Err(error)),
    }
    results.push(net(folder, &["down", NAME]));
    results
}

/// Runs the script that creates and removes network namespaces, which is written to `folder`.
fn net(folder: &Path, args: &[&str]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let script = folder.join("net");
    write(&script, NET)?;
    run(folder, "bash", &[&[script.display().to_string().as_str()], args].concat()).map(drop)
}

fn is_machine(name: &str) -> bool {
    name.strip_prefix(NAME).is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Returns the paths and names of what is in a folder; nothing if it does not exist.
fn entries(folder: &Path) -> impl Iterator<Item = (PathBuf, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| (entry.path(), entry.file_name().to_string_lossy().into_owned()))
}

fn device_of(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.dev())
}

/// Returns the names of the loop devices whose files are in a folder, each with its machine.
fn loop_devices(folder: &Path) -> Vec<(String, String)> {
    let disk = |name: String| {
        let file = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
        let file = Path::new(&file).strip_prefix(folder).ok()?;
        Some((name, file.file_stem()?.to_string_lossy().into_owned()))
    };
    entries(Path::new("/sys/block")).filter_map(|(_, name)| disk(name)).collect()
}

/// Kills the processes that the run with this folder has started, and all in the network namespaces of
/// machines: a killed run may have left commands that still create machines.
fn end_processes(folder: &Path) -> Result<()> {
    let deadline = Instant::now() + END_TIMEOUT;
    loop {
        let found = kill(|| processes(|process| is_in_machine(process) || is_started_by(process, folder)));
        if found.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let found: Vec<String> = found.iter().map(Pid::to_string).collect();
            bail!("cannot end the processes {}", found.join(", "));
        }
        std::thread::sleep(END_INTERVAL);
    }
}

/// Returns the processes for whose folder in `/proc` this holds, without this process.
fn processes(is_wanted: impl Fn(&Path) -> bool) -> Vec<Pid> {
    let found = entries(Path::new("/proc")).filter_map(|(process, pid)| {
        let pid = Pid::from_raw(pid.parse().ok()?)?;
        (pid != getpid() && is_wanted(&process)).then_some(pid)
    });
    found.collect()
}

/// Returns whether a process is in the network namespace of a machine.
fn is_in_machine(process: &Path) -> bool {
    let namespace = |file: &Path| fs::metadata(file).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let own = namespace(&process.join("ns/net"));
    let mut machines = entries(Path::new("/run/netns")).filter(|(_, name)| is_machine(name));
    own.is_some() && machines.any(|(file, _)| namespace(&file) == own)
}

/// Returns whether a process has the variable of the run with this folder. A process that only has a
/// path in the folder as an argument may be one of a user who reads a log.
fn is_started_by(process: &Path, folder: &Path) -> bool {
    let variable = [RUN.as_bytes(), b"=", folder.as_os_str().as_bytes()].concat();
    let variables = fs::read(process.join("environ")).unwrap_or_default();
    variables.split(|byte| *byte == 0).any(|one| one == variable)
}

/// Kills the processes that `list` returns, and returns them.
fn kill(list: impl Fn() -> Vec<Pid>) -> Vec<Pid> {
    let found = list();
    let open = |pid: &Pid| Some((*pid, pidfd_open(*pid, PidfdFlags::empty()).ok()?));
    let opened: Vec<(Pid, OwnedFd)> = found.iter().filter_map(open).collect();
    // Another process may have got the number of one that ended before it was opened.
    let listed = list();
    for (_, process) in opened.iter().filter(|(pid, _)| listed.contains(pid)) {
        // It may have ended.
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
    found
}

/// Where the control groups of this machine are mounted.
enum Controllers {
    /// Version 1: a tree for `cpu` and one for `blkio`.
    Separate { cpu: PathBuf, blkio: PathBuf },
    /// Version 2: one tree.
    Unified(PathBuf),
}

impl Controllers {
    fn find() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/mounts").context("cannot read /proc/mounts")?;
        Self::of(&mounts, |root| {
            let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            ["cpu", "io"].iter().all(|wanted| controllers.split_whitespace().any(|name| name == *wanted))
        })
        .context("the control groups of this machine have no controllers for processors and disks")
    }

    /// Finds the trees in the text of `/proc/mounts`. `is_complete` says whether a tree of version 2
    /// has both controllers.
    fn of(mounts: &str, is_complete: impl Fn(&Path) -> bool) -> Option<Self> {
        let lines = || mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let separate = |controller: &str| {
            let has = |line: &Vec<&str>| {
                line.get(2) == Some(&"cgroup")
                    && line.get(3).is_some_and(|all| all.split(',').any(|one| one == controller))
            };
            lines().find(has).map(|line| PathBuf::from(line[1]))
        };
        if let (Some(cpu), Some(blkio)) = (separate("cpu"), separate("blkio")) {
            return Some(Self::Separate { cpu, blkio });
        }
        let unified = lines().filter(|line| line.get(2) == Some(&"cgroup2"));
        unified.map(|line| PathBuf::from(line[1])).find(|root| is_complete(root)).map(Self::Unified)
    }

    /// Returns the folder with the control groups of machines.
    fn root(&self) -> &Path {
        match self {
            Self::Separate { cpu, .. } => cpu,
            Self::Unified(root) => root,
        }
    }

    /// Returns the control group of a machine.
    fn group(&self, machine: &str) -> PathBuf {
        self.root().join(machine)
    }

    /// Returns the control groups of machines that exist.
    fn machine_groups(&self) -> Vec<PathBuf> {
        entries(self.root()).filter(|(_, name)| is_machine(name)).map(|(path, _)| path).collect()
    }

    /// Returns what to write to which files to limit the processor of a machine and the disk with this
    /// device number.
    fn limits(&self, machine: &str, limits: &Limits, device: &str) -> Vec<(PathBuf, String)> {
        let (group, quota) = (self.group(machine), (limits.cores * CPU_PERIOD_US) as u64);
        let mut all = self.disk_limit(machine, Some(limits.disk), device);
        match self {
            Self::Separate { .. } => {
                all.push((group.join("cpu.cfs_period_us"), format!("{CPU_PERIOD_US:.0}")));
                all.push((group.join("cpu.cfs_quota_us"), quota.to_string()));
            }
            Self::Unified(_) => all.push((group.join("cpu.max"), format!("{quota} {CPU_PERIOD_US:.0}"))),
        }
        all
    }

    /// Returns what to write to which files so that a machine reads and writes at most this number of
    /// bytes per second on the disk with this device number; without a number, there is no limit.
    fn disk_limit(&self, machine: &str, rate: Option<u64>, device: &str) -> Vec<(PathBuf, String)> {
        match self {
            // The kernel writes cached pages on behalf of the root group.
            Self::Separate { blkio, .. } => {
                let file = |key| blkio.join(format!("blkio.throttle.{key}_bps_device"));
                let text = format!("{device} {}", rate.unwrap_or(0));
                ["read", "write"].map(|key| (file(key), text.clone())).into()
            }
            Self::Unified(_) => {
                let rate = rate.map_or_else(|| "max".to_owned(), |rate| rate.to_string());
                let text = format!("{device} rbps={rate} wbps={rate}");
                vec![(self.group(machine).join("io.max"), text)]
            }
        }
    }

    /// Removes the limits of a loop device that is the disk of a machine.
    fn unlimit(&self, device: &str, machine: &str) -> Result<()> {
        let number = format!("/sys/block/{device}/dev");
        let number = fs::read_to_string(&number).with_context(|| format!("cannot read {number}"))?;
        let limits = self.disk_limit(machine, None, number.trim());
        // The group of the machine may not exist any more.
        limits.iter().filter(|(file, _)| file.exists()).try_for_each(|(file, text)| write(file, text))
    }

    /// Returns the file that processes are written to whose reads are to be limited, if that is not
    /// the one of the group of their machine.
    fn readers(&self) -> Option<PathBuf> {
        match self {
            Self::Separate { blkio, .. } => Some(blkio.join("cgroup.procs")),
            Self::Unified(_) => None,
        }
    }

    /// Enables the controllers for the groups of machines.
    fn enable(&self) -> Result<()> {
        match self {
            Self::Separate { .. } => Ok(()),
            // The kernel charges the write of a cached page to the memory group of the page.
            Self::Unified(root) => write(&root.join("cgroup.subtree_control"), "+cpu +io +memory"),
        }
    }
}

/// Kills the processes of a control group and of the groups below it, and removes the groups.
fn end_group(group: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(group) else { return Ok(()) };
    for below in entries.filter_map(Result::ok).filter(|entry| entry.path().is_dir()) {
        end_group(&below.path())?;
    }
    let deadline = Instant::now() + END_TIMEOUT;
    loop {
        kill(|| {
            let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            listed.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
        });
        match fs::remove_dir(group) {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(error)
                    .with_context(|| format!("cannot remove the control group {}", group.display()));
            }
            Err(_) => std::thread::sleep(END_INTERVAL),
        }
    }
}

fn make_group(group: &Path) -> Result<()> {
    fs::create_dir_all(group).with_context(|| format!("cannot create the control group {}", group.display()))
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {text:?} to {}", file.display()))
}

impl Machines {
    /// Creates a master and `nodes` limited machines, in a temporary folder below `within`, and starts
    /// a cluster on them with these further flags of `mrctl cluster init` and settings. The machines
    /// are limited later, by [`Self::limit`].
    pub(super) async fn start(within: &Path, nodes: usize, flags: &[&str], settings: &str) -> Result<Self> {
        let mut lock = NamesLock::take().await?;
        lock.remove_left()?;
        // Without links, because the kernel shows the files of loop devices so.
        let within = fs::canonicalize(within).with_context(|| format!("cannot open {}", within.display()))?;
        let folder = temporary_folder(&within, FOLDER)?;
        lock.store(folder.path())?;
        let mut machines = Self { folder, nodes, disks: Vec::new(), groups: Vec::new(), lock };
        machines.create()?;
        machines.start_cluster(flags, settings)?;
        Ok(machines)
    }

    /// Returns the folder of the run.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    fn shown(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Returns the name of the machine of a node, which are numbered from 0.
    pub(super) fn node(node: usize) -> String {
        format!("{NAME}{}", node + 2)
    }

    /// Returns the configuration file of the cluster.
    pub(super) fn config(&self) -> PathBuf {
        self.path("cluster/fermata.toml")
    }

    fn create(&mut self) -> Result<()> {
        let controllers = Controllers::find()?;
        controllers.enable()?;
        // The file of the lock may have been deleted since a run was killed.
        remove_machines(self.folder()).into_iter().collect::<Result<()>>()?;
        net(self.folder(), &["up", NAME, &(self.nodes + 1).to_string()])?;
        for node in 0..self.nodes {
            let machine = Self::node(node);
            self.create_disk(&machine)?;
            let group = controllers.group(&machine);
            make_group(&group)?;
            self.groups.push(group);
        }
        Ok(())
    }

    /// Limits the resources of every machine.
    pub(super) fn limit(&self, limits: &Limits) -> Result<()> {
        let controllers = Controllers::find()?;
        for (node, (disk, _)) in self.disks.iter().enumerate() {
            let (machine, link) = (Self::node(node), format!("{NAME}v{}", node + 2));
            let rate = format!("{:.0}bps", limits.link as f64 * FRAME_BYTES / FRAME_DATA_BYTES);
            let bucket = ["root", "tbf", "rate", &rate, "burst", LINK_BURST, "latency", "100ms"];
            let towards = [&["qdisc", "add", "dev", &link], &bucket[..]].concat();
            run(self.folder(), "tc", &towards)?;
            let from =
                [&["netns", "exec", &machine, "tc", "qdisc", "add", "dev", "eth0"], &bucket[..]].concat();
            run(self.folder(), "ip", &from)?;
            let device = fs::metadata(disk).with_context(|| format!("cannot inspect {disk}"))?;
            let device = device.rdev();
            let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
            for (file, text) in controllers.limits(&machine, limits, &device) {
                write(&file, &text)?;
            }
        }
        Ok(())
    }

    /// Creates the disk of a machine, and mounts it as the folder of the machine.
    fn create_disk(&mut self, machine: &str) -> Result<()> {
        let (image, folder) = (self.shown(&format!("{machine}.disk")), self.path(machine));
        let file = fs::File::create(&image).with_context(|| format!("cannot create {image}"))?;
        file.set_len(DISK_BYTES).with_context(|| format!("cannot extend {image}"))?;
        // Without a journal and tables that are initialised later, only files are written to the disk.
        let plain = ["-q", "-m", "0", "-N", "65536", "-O", "^has_journal", "-E", "lazy_itable_init=0"];
        run(self.folder(), "mkfs.ext4", &[&plain[..], &[&image]].concat())?;
        let device = run(self.folder(), "losetup", &["--find", "--show", "--direct-io=on", &image])?;
        self.disks.push((device.clone(), folder.clone()));
        let name = device.trim_start_matches("/dev/");
        write(Path::new(&format!("/sys/block/{name}/queue/read_ahead_kb")), READ_AHEAD_KB)?;
        fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        run(self.folder(), "mount", &[&device, &folder.display().to_string()])?;
        let memory = folder.join(MEMORY);
        fs::create_dir(&memory).with_context(|| format!("cannot create {}", memory.display()))?;
        run(self.folder(), "mount", &["-t", "tmpfs", "none", &memory.display().to_string()])?;
        for folder in [&folder, &memory] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o711))
                .with_context(|| format!("cannot set the mode of {}", folder.display()))?;
        }
        Ok(())
    }

    fn start_cluster(&self, flags: &[&str], settings: &str) -> Result<()> {
        let own = std::env::current_exe().context("cannot find the program file of mrctl")?;
        let bin = self.path("bin");
        fs::create_dir(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
        for program in PROGRAMS {
            // The account of tasks may not be allowed to reach the folder of mrctl.
            let (from, to) = (own.with_file_name(program), bin.join(program));
            fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        }
        let groups: Vec<String> =
            self.groups.iter().map(|group| format!("{}/cgroup.procs", group.display())).collect();
        let cases: Vec<String> = (groups.iter().enumerate())
            .map(|(node, file)| format!("{}) echo $$ > {file} ;;\n", Self::node(node)))
            .collect();
        let readers = Controllers::find()?.readers();
        let readers = readers.map_or_else(String::new, |file| format!("echo $$ > {}\n", file.display()));
        let enter = format!(
            "#!/bin/sh\nset -e\nhost=$1\nshift\n{readers}case $host in\n{}esac\nexec ip netns exec \"$host\" \"$@\"\n",
            cases.concat()
        );
        write(&self.path("enter"), &enter)?;
        write(&self.path("settings.toml"), settings)?;
        let (cluster, file) = (self.shown("cluster"), self.shown("settings.toml"));
        let host = |number: usize| format!("{NAME}{number}=10.77.{SUBNET}.{number}");
        let mut init = vec!["cluster", "init", &cluster, "--no-tls", "--settings", &file];
        let (master, hosts) = (host(1), (2..self.nodes + 2).map(host).collect::<Vec<_>>());
        init.extend(["--master", &master]);
        for host in &hosts {
            init.extend(["--node", host]);
        }
        mrctl(self.folder(), &[&init[..], flags].concat())?;
        let shell = format!("sh {} {{host}}", self.shown("enter"));
        let (remote, programs) = (self.shown("{host}"), bin.display().to_string());
        let up = ["cluster", "up", "--cluster", &cluster, "--shell", &shell];
        let more = ["--remote-dir", &remote, "--programs", &programs];
        mrctl(self.folder(), &[&up[..], &more].concat()).map(drop)
    }

    /// Starts the daemons that are not running.
    pub(super) fn start_daemons(&self) -> Result<()> {
        mrctl(self.folder(), &["cluster", "up", "--cluster", &self.shown("cluster")]).map(drop)
    }

    /// Writes all files to the disks of the machines and forgets their cached pages, so that the next
    /// reads use the disks.
    pub(super) fn drop_caches(&self) -> Result<()> {
        for (device, folder) in &self.disks {
            fs::File::open(folder)
                .and_then(|opened| Ok(rustix::fs::syncfs(opened)?))
                .and_then(|()| forget_cached(folder))
                .with_context(|| format!("cannot empty the cache of {device}"))?;
        }
        Ok(())
    }

    /// Kills the daemons of a node.
    pub(super) fn kill(&self, node: usize) -> Result<()> {
        let fleet = Fleet::of(&Reach::of(&self.path("cluster")))?;
        let machine = fleet.find(&Self::node(node))?;
        for daemon in machine.host.role.daemons() {
            machine.signal(daemon, "KILL")?;
        }
        Ok(())
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        let cluster = self.path("cluster");
        // What this does not end is killed afterwards.
        if cluster.join("launch.json").exists()
            && let Err(error) =
                mrctl(self.folder(), &["cluster", "down", "--cluster", &cluster.display().to_string()])
        {
            eprintln!("mrctl: {error:#}");
        }
        let errors = remove_all(self.folder());
        // After an error, the next run tries again.
        let stored = if errors.is_empty() { self.lock.store(Path::new("")) } else { Ok(()) };
        for error in errors.into_iter().chain(stored.err()) {
            eprintln!("mrctl: {error:#}");
        }
    }
}

/// Makes the kernel forget the cached pages of all files below a folder, as far as they are on disk.
fn forget_cached(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let (entry, gone) = (entry?, |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound);
        let (path, kind) = (entry.path(), entry.file_type()?);
        let forgotten = if kind.is_dir() {
            forget_cached(&path)
        } else if kind.is_file() {
            fs::File::open(&path)
                .and_then(|file| Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?))
        } else {
            Ok(())
        };
        // Daemons may delete files at any time.
        if let Err(error) = forgotten
            && !gone(&error)
        {
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_of_both_versions_are_found() {
        let first = "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu,cpuacct 0 0\n\
                     cgroup /sys/fs/cgroup/blkio cgroup rw,relatime,blkio 0 0\n\
                     cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert!(matches!(
            Controllers::of(first, |_| true),
            Some(Controllers::Separate { cpu, blkio }) if cpu.ends_with("cpu") && blkio.ends_with("blkio")
        ));
        let second = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        assert!(
            matches!(Controllers::of(second, |_| true), Some(Controllers::Unified(root)) if root.ends_with("cgroup"))
        );
        assert!(Controllers::of(second, |_| false).is_none(), "without the controllers");
        assert!(Controllers::of("proc /proc proc rw 0 0\n", |_| true).is_none());
    }

    #[test]
    fn limits_of_disks_are_set_and_lifted_in_both_versions() {
        let limits = Limits { cores: 0.5, disk: 100, link: 1 };
        let texts = |files: Vec<(PathBuf, String)>| -> Vec<String> {
            files.iter().map(|(file, text)| format!("{} {text}", file.display())).collect()
        };
        let first = Controllers::Separate { cpu: "/cpu".into(), blkio: "/blkio".into() };
        let of_root = |rate: u64| {
            ["read", "write"].map(|key| format!("/blkio/blkio.throttle.{key}_bps_device 7:3 {rate}"))
        };
        assert_eq!(texts(first.limits("fmv2", &limits, "7:3"))[..2], of_root(100));
        assert_eq!(texts(first.disk_limit("fmv2", None, "7:3")), of_root(0));
        let second = Controllers::Unified("/all".into());
        let of_group = |rate: &str| [format!("/all/fmv2/io.max 7:3 rbps={rate} wbps={rate}")];
        assert_eq!(texts(second.limits("fmv2", &limits, "7:3"))[..1], of_group("100"));
        assert_eq!(texts(second.disk_limit("fmv2", None, "7:3")), of_group("max"));
    }

    /// Ends a process when the test ends.
    struct Sleep(std::process::Child);

    impl Sleep {
        fn start(command: &mut Command) -> Self {
            Self(command.spawn().expect("a program of every system"))
        }

        fn has_ended(&mut self) -> bool {
            self.0.try_wait().expect("our child").is_some()
        }
    }

    impl Drop for Sleep {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn only_processes_that_a_run_has_started_are_ended() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (ours, log) = (folder.path().join("run"), folder.path().join("run/log"));
        fs::create_dir(&ours).and_then(|()| fs::write(&log, "")).expect("our own folder");
        let mut reader = Sleep::start(Command::new("tail").arg("-f").arg(&log));
        let mut other = Sleep::start(Command::new("sleep").arg("600").env(RUN, folder.path().join("run2")));
        let mut started = Sleep::start(Command::new("sh").args(["-c", "sleep 600; true"]).env(RUN, &ours));
        let listed = || processes(|process| is_started_by(process, &ours));
        // The shell, and the program that it starts.
        let deadline = Instant::now() + Duration::from_mins(1);
        while listed().len() < 2 {
            assert!(Instant::now() < deadline, "{:?}", listed());
            std::thread::yield_now();
        }
        while !kill(listed).is_empty() {
            assert!(Instant::now() < deadline, "{:?}", listed());
        }
        assert!(started.0.wait().is_ok_and(|status| !status.success()));
        assert!(!reader.has_ended() && !other.has_ended());
    }

    #[test]
    fn only_the_folder_of_a_run_is_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("lock");
        let stored = |text: &str| {
            fs::write(&path, text)
                .and_then(|()| fs::File::open(&path))
                .and_then(|mut file| stored_folder(&mut file))
        };
        let ours = "/data/fermata-verify-a1";
        assert_eq!(stored(ours).expect("our own file"), Some(ours.into()));
        for other in ["", "/data", "/data/fermata-verify-a1/fmv2"] {
            assert_eq!(stored(other).expect("our own file"), None, "{other:?}");
        }
    }
}
