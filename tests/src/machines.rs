//! Machines for tests: network namespaces with their own addresses, and a cluster on them that
//! requires authentication, started by `mrctl cluster`. If namespaces cannot be created, a message
//! is printed and tests are skipped.

use crate::{Ran, binaries, eventually, sha256_of, task_account};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
};

/// Numbered network namespaces. The first is the master, or the first ones are. Dropping the value stops
/// and removes everything.
pub struct Machines {
    folder: tempfile::TempDir,
    name: &'static str,
    disks: Mutex<Vec<PathBuf>>,
    /// Lock that prevents other test runs from using the same machine names.
    _alone: fs::File,
}

fn net() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/netns/net")
}

impl Machines {
    /// Creates a master and one node per entry of `racks`, and starts a cluster on them. Returns
    /// `None` if namespaces cannot be created.
    pub fn make(name: &'static str, subnet: u8, racks: &[&str]) -> Option<Self> {
        let machines = Self::prepare(name, subnet, racks, racks.len())?;
        machines.up();
        Some(machines)
    }

    /// Like [`Self::make`], but does not start the cluster, and uses only the first `nodes` nodes.
    pub fn prepare(name: &'static str, subnet: u8, racks: &[&str], nodes: usize) -> Option<Self> {
        Self::prepare_with(name, subnet, 1, racks, nodes)
    }

    /// Like [`Self::prepare`], with several masters.
    pub fn prepare_with(
        name: &'static str,
        subnet: u8,
        masters: usize,
        racks: &[&str],
        nodes: usize,
    ) -> Option<Self> {
        let count = (racks.len() + masters).to_string();
        let run = |args: &[&str]| {
            Command::new(net()).args(args).env("SUBNET", subnet.to_string()).output().unwrap()
        };
        // Another run of these tests may use the same names. `net alone` takes the same lock.
        let lock = fs::File::create(format!("/run/fermata-net-{name}.lock"));
        let alone = match lock.and_then(|lock| lock.lock().map(|()| lock)) {
            Ok(lock) => lock,
            Err(error) => {
                crate::skip("namespaces", error);
                return None;
            }
        };
        // Removes what an earlier run may have left.
        run(&["down", name]);
        let made = run(&["up", name, &count]);
        if !made.status.success() {
            run(&["down", name]);
            let why = String::from_utf8_lossy(&made.stderr);
            // The machines exist, but a packet filter blocks them. Every test would time out.
            assert_ne!(made.status.code(), Some(3), "{}", why.trim());
            crate::skip("namespaces", why.trim());
            return None;
        }
        let space = binaries().with_file_name("tmp");
        fs::create_dir_all(&space).unwrap();
        let folder = tempfile::Builder::new().prefix("machines-").tempdir_in(space).unwrap();
        // Tasks have another account, and must be able to reach their folders.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let machines = Self { folder, name, disks: Mutex::default(), _alone: alone };
        let master = |at| ["--master".to_owned(), format!("{name}{at}=10.77.{subnet}.{at}")];
        let node = |(rack, at)| ["--node".to_owned(), format!("{name}{at}=10.77.{subnet}.{at}@{rack}")];
        let nodes = racks.iter().zip(masters + 1..).take(nodes).flat_map(node);
        let args: Vec<String> = (1..=masters).flat_map(master).chain(nodes).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        machines.mrctl(&[&["cluster", "init", "mycluster"], &args[..]].concat());
        machines.set("namenode", "replication = 2\nheartbeat = \"200ms\"");
        machines.set("jobtracker", "heartbeat = \"200ms\"");
        machines.set("tasktracker", task_account());
        Some(machines)
    }

    /// Starts the cluster.
    pub fn up(&self) {
        let dir = format!("{}/{{host}}", self.folder.path().display());
        let programs = binaries().display().to_string();
        let shell = "ip netns exec {host}";
        self.cluster(&["up", "--shell", shell, "--remote-dir", &dir, "--programs", &programs]);
    }

    /// Mounts a small disk at the folder of a machine, before the machine is started. Returns false
    /// if that is not possible.
    pub fn small_disk(&self, at: u32, size: &str) -> bool {
        let folder = self.path(&self.node(at));
        fs::create_dir_all(&folder).unwrap();
        // Only the owner may write there; otherwise `mrctl cluster` refuses to copy files.
        let options = format!("size={size},mode=711");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&folder).stderr(Stdio::null());
        let done = mount.status().is_ok_and(|status| status.success());
        if done {
            self.disks.lock().unwrap().push(folder);
        }
        done
    }

    /// Returns a path in the folder of the test. The folder of a machine has the name of the
    /// machine.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Adds settings to a section of `fermata.toml`.
    pub fn set(&self, section: &str, settings: &str) {
        let file = self.folder.path().join("mycluster/fermata.toml");
        let text = fs::read_to_string(&file).unwrap();
        let head = format!("[{section}]\n");
        assert!(text.contains(&head), "{text}");
        fs::write(file, text.replace(&head, &format!("{head}{settings}\n"))).unwrap();
    }

    /// Returns the name of a machine, counted from 1.
    pub fn node(&self, at: u32) -> String {
        format!("{}{at}", self.name)
    }

    /// Runs `mrctl ARGS` to its end.
    pub fn try_mrctl(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(binaries().join("mrctl"));
        command.args(args).current_dir(self.folder.path()).env("FERMATA_CONFIG", "mycluster/fermata.toml");
        command.output().unwrap().into()
    }

    /// Runs `mrctl ARGS`, which must succeed, and returns its standard output.
    #[track_caller]
    pub fn mrctl(&self, args: &[&str]) -> String {
        let ran = self.try_mrctl(args);
        assert_eq!(ran.code, 0, "mrctl {args:?}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    /// Runs `mrctl cluster ARGS`.
    #[track_caller]
    pub fn cluster(&self, args: &[&str]) -> String {
        self.mrctl(&[&["cluster"], args, &["--cluster", "mycluster"]].concat())
    }

    /// Runs `mrctl ARGS --json` and returns its output.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.mrctl(&[args, &["--json"]].concat())).unwrap()
    }

    /// Waits until a tracker is in this state.
    pub fn await_tracker(&self, node: &str, state: &str) {
        eventually(&format!("{node} is {state}"), || {
            let ran = self.try_mrctl(&["nodes", "--json"]);
            let nodes: Value = serde_json::from_str(&ran.stdout).ok()?;
            let one = nodes.as_array()?.iter().find(|one| one["node"] == node)?.clone();
            (one["tracker"]["state"] == state).then_some(())
        });
    }

    /// Returns checksums of the four parts of the output of a job.
    pub fn sums(&self, folder: &str) -> Vec<String> {
        let parts = self.mrctl(&["fs", "ls", folder]);
        assert!(parts.contains("part-r-00003"), "{parts}");
        (0..4)
            .map(|part| {
                let to = self.folder.path().join("part");
                self.mrctl(&[
                    "fs",
                    "get",
                    "--force",
                    &format!("{folder}/part-r-{part:05}"),
                    to.to_str().unwrap(),
                ]);
                sha256_of(&to)
            })
            .collect()
    }

    /// Returns the command lines of the processes of this cluster.
    pub fn processes(&self) -> Vec<String> {
        let folder = self.folder.path().display().to_string();
        let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
        lines
            .filter(|line| line.contains(&format!("{folder}/{}", self.name)) && line.contains(".ready"))
            .collect()
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.try_mrctl(&["cluster", "down", "--cluster", "mycluster"]);
        let _ = Command::new(net()).args(["down", self.name]).output();
        for disk in self.disks.lock().unwrap().iter() {
            let _ = Command::new("umount").arg("-l").arg(disk).status();
        }
    }
}
