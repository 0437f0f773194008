//! A local cluster, driven through `mrctl` like a user would.

use crate::{TIMEOUT, binaries, eventually};
use daemon::config::Config;
use security::Credentials;
use serde_json::Value;
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// Options of a new cluster.
#[derive(Debug, Clone, Copy)]
pub struct Up<'a> {
    /// Number of nodes.
    pub nodes: u32,
    /// Number of NameNodes.
    pub masters: u32,
    /// Number of racks.
    pub racks: u32,
    /// Default replication.
    pub replication: u32,
    /// Default block size.
    pub block_size: &'a str,
    /// Additional contents of `fermata.toml`.
    pub settings: &'a str,
    /// Whether every local account may use the cluster (`--open`), for clients without credentials.
    pub open: bool,
}

impl Default for Up<'_> {
    fn default() -> Self {
        Self {
            nodes: 3,
            masters: 1,
            racks: 1,
            replication: 2,
            block_size: "1MiB",
            settings: QUICK,
            open: false,
        }
    }
}

/// Settings with which the NameNode sends its orders quickly. A silent node is dead only after the
/// default time: tests also run on machines that are so busy that a heartbeat is seconds late.
pub const QUICK: &str = "[namenode]\nheartbeat = \"200ms\"\n";

/// A running cluster and its folder. Dropping it stops the daemons and removes the folder.
pub struct Cluster {
    folder: tempfile::TempDir,
}

/// Result of a command.
pub struct Ran {
    /// Exit code; -1 if a signal ended the command.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Returns the setting with which tasks of a tracker that runs as root get another account. That
/// account needs access to the folders of the tracker, but not to its programs.
pub fn task_account() -> &'static str {
    "task_user = \"nobody\""
}

/// Returns whether this test may inspect daemons through /proc, which only root may. Prints a
/// message if not.
pub fn may_inspect_daemons() -> bool {
    let root = is_root();
    if !root {
        crate::skip("root", "only root can look into daemons, which are not dumpable");
    }
    root
}

/// Returns whether this test runs as root.
pub fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:\t0\t"))
}

/// Returns a port for the NameNode of a new cluster. The next port is for its JobTracker. No other
/// cluster gets one of them, not even while their daemon is dead: a test that kills a daemon and
/// starts it again needs its port. Clusters that choose their ports themselves use higher ones.
fn unused_port() -> u16 {
    static CLUSTERS: AtomicU32 = AtomicU32::new(0);
    let ports = 4_000..10_000;
    // Tests may run in one process or each in its own.
    let first = std::process::id().wrapping_mul(8);
    loop {
        let pair = first.wrapping_add(CLUSTERS.fetch_add(1, Ordering::Relaxed)) % (ports.len() as u32 / 2);
        let port = ports.start + 2 * pair as u16;
        if [port, port + 1].iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()) {
            return port;
        }
    }
}

impl Cluster {
    /// Starts a cluster and waits until it is ready.
    pub fn up(up: Up<'_>) -> Self {
        // The folder is in the build folder, because a gigabyte of blocks should not be in a tmpfs.
        let space = binaries().with_file_name("tmp");
        fs::create_dir_all(&space).expect("a writable build folder");
        let folder =
            tempfile::Builder::new().prefix("cluster-").tempdir_in(space).expect("a temporary folder");
        // Tasks may have another account, and must be able to reach their folders.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).expect("a folder of our own");
        let cluster = Self { folder };
        fs::write(cluster.path("base.toml"), up.settings).expect("a writable folder");
        let (base, nodes, racks) =
            (cluster.path("base.toml").display().to_string(), up.nodes.to_string(), up.racks.to_string());
        let (replication, port) = (up.replication.to_string(), unused_port().to_string());
        let mut args = vec!["up", "--detach", "--config", &base, "--nodes", &nodes, "--racks", &racks];
        args.extend(["--replication", &replication, "--block-size", up.block_size]);
        args.extend(["--namenode-port", &port]);
        args.extend(up.open.then_some("--open"));
        let masters = up.masters.to_string();
        if up.masters > 1 {
            args.extend(["--masters", &masters]);
        }
        let ran = cluster.try_mrctl(&args);
        assert_eq!(ran.code, 0, "mrctl up failed: {}{}", ran.stdout, ran.stderr);
        cluster
    }

    /// Returns a path in the folder of the test (the state of the cluster is in `.fermata` there).
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the configuration of clients.
    pub fn config(&self) -> Config {
        Config::load(Some(&self.path(".fermata/fermata.toml"))).expect("the cluster's own configuration")
    }

    /// Returns the credentials of the account of this test.
    pub fn credentials(&self) -> Credentials {
        let security = self.config().security;
        Credentials::of_client(&security, &daemon::account::user()).expect("the cluster's own secret")
    }

    /// Returns the command `mrctl ARGS`, in the folder of the test so that it finds the cluster.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binaries().join("mrctl"));
        command.args(args).current_dir(self.folder.path()).stdin(Stdio::null());
        for key in ["FERMATA_NAMENODE", "FERMATA_CONFIG"] {
            command.env_remove(key);
        }
        command
    }

    /// Runs `mrctl ARGS` to its end.
    pub fn try_mrctl(&self, args: &[&str]) -> Ran {
        self.command(args).output().expect("mrctl starts").into()
    }

    /// Runs `mrctl ARGS`, which must succeed, and returns its standard output.
    #[track_caller]
    pub fn mrctl(&self, args: &[&str]) -> String {
        let ran = self.try_mrctl(args);
        assert_eq!(ran.code, 0, "mrctl {args:?} failed: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    /// Runs `mrctl ARGS --json` and returns its output.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let out = self.mrctl(&[args, &["--json"]].concat());
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("mrctl {args:?} --json: {error}: {out}"))
    }

    /// Runs `mrctl ARGS`, which must fail with `code`, and returns its standard error. Checks that
    /// it is one line, except for usage errors (code 2).
    #[track_caller]
    pub fn refused(&self, code: i32, args: &[&str]) -> String {
        let ran = self.try_mrctl(args);
        assert_eq!(ran.code, code, "mrctl {args:?}: {}{}", ran.stdout, ran.stderr);
        // On a busy machine a command may also say that it waits.
        let waits = |line: &&str| line.starts_with("mrctl: waiting for ");
        let lines: Vec<&str> = ran.stderr.lines().filter(|line| !waits(line)).collect();
        assert!(code == 2 || lines.len() == 1, "mrctl {args:?}: expected one line: {}", ran.stderr);
        lines.join("\n") + "\n"
    }

    /// Submits a job, follows it to its end, and returns its state as JSON.
    #[track_caller]
    pub fn submit(&self, args: &[&str]) -> Value {
        let ran = self.try_mrctl(&[&["submit"], args, &["--json"]].concat());
        serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|error| panic!("mrctl submit {args:?}: {error}: {}{}", ran.stdout, ran.stderr))
    }

    /// Submits a job that must succeed.
    #[track_caller]
    pub fn succeed(&self, args: &[&str]) -> Value {
        let job = self.submit(args);
        assert_eq!(job["state"], "succeeded", "{args:?}: {job}");
        job
    }

    /// Submits a job without waiting, and returns its ID.
    #[track_caller]
    pub fn detach(&self, args: &[&str]) -> String {
        let job = self.json(&[&["submit"], args, &["--detach"]].concat());
        job["job"].as_str().expect("an id").to_owned()
    }

    /// Returns the bytes of all parts of the output of a job, in order.
    pub fn output(&self, folder: &str) -> Vec<u8> {
        let parts = format!("{folder}/part-*");
        let ran = self.command(&["fs", "cat", &parts]).output().expect("mrctl starts");
        assert!(ran.status.success(), "{folder}: {}", String::from_utf8_lossy(&ran.stderr));
        ran.stdout
    }

    /// Returns the PIDs of the processes whose working folder is in `folder` of the cluster: tasks
    /// and their children.
    pub fn processes_in(&self, folder: &str) -> Vec<u32> {
        let folder = fs::canonicalize(self.folder.path()).expect("our folder").join(folder);
        let pids = fs::read_dir("/proc").expect("proc").flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let cwd = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
            cwd.starts_with(&folder) && !stat.contains(") Z ")
        })
        .collect()
    }

    /// Returns the PIDs of the daemons of this cluster that run this program.
    pub fn processes_named(&self, program: &str) -> Vec<String> {
        let folder = fs::canonicalize(self.folder.path()).expect("our folder");
        let pids = fs::read_dir("/proc").expect("proc").flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let ours = pids.filter(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            let first = words.split('\0').next().unwrap_or_default();
            Path::new(first).file_name().is_some_and(|name| name == program)
                && words.contains(&*folder.to_string_lossy())
                && !stat.contains(") Z ")
        });
        ours.map(|pid| pid.to_string()).collect()
    }

    /// Returns the PID of the daemon of kind `kind` on the node `name`. For a master, `name` and
    /// `kind` are the same.
    pub fn pid_of(&self, name: &str, kind: &str) -> String {
        let text = fs::read_to_string(self.path(".fermata/cluster.json")).expect("a cluster that is up");
        let state: Value = serde_json::from_str(&text).expect("JSON");
        let daemons = state["daemons"].as_array().expect("a list");
        let found = daemons.iter().find(|daemon| daemon["name"] == name && daemon["kind"] == kind);
        found.unwrap_or_else(|| panic!("no {kind} on {name}: {text}"))["pid"].to_string()
    }

    /// Returns what a daemon has logged so far. Daemons are named like `namenode` and
    /// `node1-datanode`.
    pub fn log(&self, daemon: &str) -> String {
        fs::read_to_string(self.log_path(daemon)).unwrap_or_default()
    }

    fn log_path(&self, daemon: &str) -> PathBuf {
        self.path(&format!(".fermata/logs/{daemon}.log"))
    }

    /// Starts a master once with `--recover`, as an operator does when the master refuses to start.
    /// Calls `look` with its address, stops the master, and returns its log, which is also in its
    /// log file.
    #[track_caller]
    pub fn recover(&self, master: &str, look: impl FnOnce(&str)) -> String {
        self.recover_by(Command::new(binaries().join(master)), master, look)
    }

    /// Like [`Self::recover`], but `command` starts the master.
    #[track_caller]
    pub fn recover_by(&self, mut command: Command, master: &str, look: impl FnOnce(&str)) -> String {
        let ready = self.path("recovered");
        let before = self.log(master).len();
        let log = fs::File::options().append(true).open(self.log_path(master)).expect("its log");
        let mut recovering = command
            .arg("--config")
            .arg(self.path(".fermata/fermata.toml"))
            .args(["--listen", "127.0.0.1:0", "--recover", "--ready-file"])
            .arg(&ready)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the master's binary");
        let addr = eventually("the master is ready after --recover", || {
            let ended = recovering.try_wait().expect("our child");
            assert!(
                ended.is_none(),
                "{master} does not start with --recover: {}",
                &self.log(master)[before..]
            );
            fs::read_to_string(&ready).ok().filter(|addr| !addr.is_empty())
        });
        look(addr.trim());
        recovering.kill().expect("our child");
        recovering.wait().expect("our child");
        fs::remove_file(ready).expect("our folder");
        self.log(master)[before..].to_owned()
    }

    /// Restarts the NameNode and waits until it accepts changes.
    #[track_caller]
    pub fn restart_namenode(&self) {
        self.mrctl(&["chaos", "restart", "namenode"]);
        eventually("safemode is off", || {
            let report: Value =
                serde_json::from_str(&self.try_mrctl(&["fs", "report", "--json"]).stdout).ok()?;
            (report["safemode"]["on"] == false).then_some(())
        });
    }

    /// Returns what ended jobs have left behind: slots in use, files of trackers, files in the DFS.
    /// Empty if nothing is left.
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        for node in self.json(&["nodes"]).as_array().expect("nodes") {
            let tracker = &node["tracker"];
            if tracker["maps_running"] != 0 || tracker["reduces_running"] != 0 {
                left.push(format!("slots of {}: {tracker}", node["node"]));
            }
        }
        for tracker in fs::read_dir(self.path(".fermata/tasks")).expect("trackers' folders").flatten() {
            files_in(&tracker.path().join("jobs"), &mut left);
        }
        for entry in self.json(&["fs", "ls", "-R", "/"]).as_array().expect("files") {
            let path = entry["path"].as_str().expect("a path");
            if path.contains("/_temporary") || path.starts_with("/tmp/fermata/staging/") {
                left.push(path.to_owned());
            }
        }
        left
    }

    /// Waits until ended jobs use no slots and all their temporary files are removed.
    #[track_caller]
    pub fn wait_clean(&self) {
        let start = std::time::Instant::now();
        loop {
            let left = self.leftovers();
            if left.is_empty() {
                return;
            }
            assert!(start.elapsed() < TIMEOUT, "left behind: {left:#?}");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }

    /// Returns the data file of each replica on the disks of a node.
    pub fn replicas_on(&self, node: &str) -> Vec<PathBuf> {
        self.blocks_on(node, "current")
    }

    /// Like [`Self::replicas_on`], but for replicas that are being written.
    pub fn partial_blocks_on(&self, node: &str) -> Vec<PathBuf> {
        self.blocks_on(node, "tmp")
    }

    fn blocks_on(&self, node: &str, part: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        collect_blocks(&self.path(".fermata").join("data"), &[node, part], &mut found);
        found.sort();
        found
    }
}

fn files_in(folder: &Path, found: &mut Vec<String>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        // Not even an empty folder of a job may be left.
        found.push(path.display().to_string());
        files_in(&path, found);
    }
}

fn collect_blocks(folder: &Path, within: &[&str], found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            collect_blocks(&path, within, found);
        } else if name.starts_with("blk_")
            && path.extension().is_none()
            && within.iter().all(|name| path.components().any(|part| part.as_os_str() == *name))
        {
            found.push(path);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let ran = self.try_mrctl(&["down"]);
        if std::thread::panicking() {
            for entry in fs::read_dir(self.path(".fermata/logs")).into_iter().flatten().flatten() {
                let log = fs::read_to_string(entry.path()).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(15).collect();
                eprintln!("--- {}", entry.path().display());
                tail.iter().rev().for_each(|line| eprintln!("{line}"));
            }
        } else {
            assert_eq!(ran.code, 0, "mrctl down failed: {}{}", ran.stdout, ran.stderr);
        }
    }
}
