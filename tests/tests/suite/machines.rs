//! Clusters on several machines: network namespaces with addresses of their own, closed by certificates, started by
//! `mrctl cluster`. Skipped, with a word, where namespaces cannot be made.

use fermata_tests::{Ran, binaries, eventually};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_mins(2);

/// Numbered namespaces; the first is the master. Dropped, everything is stopped and taken away.
struct Machines {
    folder: tempfile::TempDir,
    name: &'static str,
}

fn net() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/netns/net")
}

impl Machines {
    /// None where the right to make namespaces is missing.
    fn make(name: &'static str, subnet: u8, racks: &[&str]) -> Option<Self> {
        let count = (racks.len() + 1).to_string();
        let run = |args: &[&str]| {
            Command::new(net()).args(args).env("SUBNET", subnet.to_string()).output().unwrap()
        };
        // What a run before this one may have left.
        run(&["down", name]);
        let made = run(&["up", name, &count]);
        if !made.status.success() {
            run(&["down", name]);
            let why = String::from_utf8_lossy(&made.stderr);
            eprintln!("skipped: no network namespaces here: {}", why.trim());
            return None;
        }
        let space = binaries().with_file_name("tmp");
        fs::create_dir_all(&space).unwrap();
        let folder = tempfile::Builder::new().prefix("machines-").tempdir_in(space).unwrap();
        let machines = Self { folder, name };
        let master = format!("{name}1=10.77.{subnet}.1");
        let nodes: Vec<String> = (racks.iter().zip(2..))
            .flat_map(|(rack, at)| ["--node".to_owned(), format!("{name}{at}=10.77.{subnet}.{at}@{rack}")])
            .collect();
        let args: Vec<&str> = nodes.iter().map(String::as_str).collect();
        machines.mrctl(&[&["cluster", "init", "lab", "--master", &master], &args[..]].concat());
        machines.set(
            "namenode",
            "replication = 2\nheartbeat = \"200ms\"\nsuspect_after = \"1s\"\ndead_after = \"3s\"",
        );
        machines.set("jobtracker", "heartbeat = \"200ms\"\nsuspect_after = \"1s\"\nlost_after = \"3s\"");
        machines.set("tasktracker", "tasks_as_root = true");
        let dir = format!("{}/{{host}}", machines.folder.path().display());
        let programs = binaries().display().to_string();
        let shell = "ip netns exec {host}";
        machines.cluster(&["up", "--shell", shell, "--remote-dir", &dir, "--programs", &programs]);
        Some(machines)
    }

    fn set(&self, section: &str, settings: &str) {
        let file = self.folder.path().join("lab/fermata.toml");
        let text = fs::read_to_string(&file).unwrap();
        let head = format!("[{section}]\n");
        assert!(text.contains(&head), "{text}");
        fs::write(file, text.replace(&head, &format!("{head}{settings}\n"))).unwrap();
    }

    fn node(&self, at: u32) -> String {
        format!("{}{at}", self.name)
    }

    fn try_mrctl(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(binaries().join("mrctl"));
        command.args(args).current_dir(self.folder.path()).env("FERMATA_CONFIG", "lab/fermata.toml");
        command.output().unwrap().into()
    }

    fn mrctl(&self, args: &[&str]) -> String {
        let ran = self.try_mrctl(args);
        assert_eq!(ran.code, 0, "mrctl {args:?}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    fn cluster(&self, args: &[&str]) -> String {
        self.mrctl(&[&["cluster"], args, &["--cluster", "lab"]].concat())
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.mrctl(&[args, &["--json"]].concat())).unwrap()
    }

    /// Waits until a tracker is in this state.
    fn await_tracker(&self, node: &str, state: &str) {
        eventually(&format!("{node} is {state}"), PATIENCE, || {
            let ran = self.try_mrctl(&["nodes", "--json"]);
            let nodes: Value = serde_json::from_str(&ran.stdout).ok()?;
            let one = nodes.as_array()?.iter().find(|one| one["node"] == node)?.clone();
            (one["tracker"]["state"] == state).then_some(())
        });
    }

    fn sums(&self, folder: &str) -> Vec<String> {
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
                fermata_tests::sha256_of(&to)
            })
            .collect()
    }

    /// Processes of ours.
    fn processes(&self) -> Vec<String> {
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
        self.try_mrctl(&["cluster", "down", "--cluster", "lab"]);
        let _ = Command::new(net()).args(["down", self.name]).output();
    }
}

#[test]
fn machines_of_a_closed_cluster_die_and_are_cut_off() {
    let Some(machines) = Machines::make("fa", 11, &["r1", "r1", "r2"]) else { return };
    let [second, third, fourth] = [2, 3, 4].map(|at| machines.node(at));
    // Once more changes nothing.
    let status = machines.json(&["cluster", "status", "--cluster", "lab"]);
    machines.cluster(&["up"]);
    assert_eq!(machines.json(&["cluster", "status", "--cluster", "lab"]), status);
    let daemons: Vec<&Value> =
        status.as_array().unwrap().iter().flat_map(|host| host["daemons"].as_array().unwrap()).collect();
    assert_eq!(daemons.len(), 8);
    assert!(daemons.iter().all(|daemon| daemon["state"] == "running"), "{status}");

    // Without a credential nothing is told.
    let bare = Command::new(binaries().join("mrctl"))
        .args(["--namenode", "10.77.11.1:9400", "fs", "ls", "/"])
        .output()
        .unwrap();
    assert_eq!(bare.status.code(), Some(1));

    dies_in_the_middle_of_a_job(&machines, &second);
    machines.cluster(&["up"]);
    machines.await_tracker(&second, "live");

    is_cut_off_and_comes_back(&machines, &third);

    machines.cluster(&["restart", &fourth]);
    machines.await_tracker(&fourth, "live");
    let log = machines.cluster(&["logs", &fourth, "--daemon", "datanode"]);
    assert!(log.contains("== datanode on"), "{log}");
    let unknown = machines.try_mrctl(&["cluster", "restart", "fa9", "--cluster", "lab"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("fa1, fa2, fa3, fa4"), "{}", unknown.stderr);

    machines.cluster(&["down"]);
    assert!(machines.processes().is_empty(), "{:?}", machines.processes());
    let status = machines.try_mrctl(&["cluster", "status", "--cluster", "lab"]).stdout;
    assert!(status.contains("absent") && !status.contains("running"), "{status}");
}

/// The master does not hear a node; the node hears the master. Then it is whole again by itself.
fn is_cut_off_and_comes_back(machines: &Machines, node: &str) {
    let master = machines.node(1);
    machines.mrctl(&["chaos", "partition", node, &master, "--one-way", "--cluster", "lab"]);
    machines.await_tracker(node, "lost");
    let said = machines.mrctl(&["chaos", "heal", "--cluster", "lab"]);
    assert_eq!(said.trim(), format!("{master} hears {node} again"));
    machines.await_tracker(node, "live");
    machines.mrctl(&["fs", "fsck", "/", "--wait", "60s"]);
}

/// A sort during which a machine dies gives what it gives in peace.
fn dies_in_the_middle_of_a_job(machines: &Machines, node: &str) {
    machines.mrctl(&["fs", "mkdir", "/lab"]);
    machines.mrctl(&["fs", "chown", "admin", "/lab"]);
    machines.mrctl(&[
        "submit",
        "teragen",
        "--output",
        "/lab/gen",
        "--conf",
        "rows=100000",
        "--conf",
        "maps=6",
    ]);
    let sort = [
        "submit",
        "terasort",
        "--input",
        "/lab/gen",
        "--reduces",
        "4",
        "--conf",
        "pace.map=500KiB",
        "--output",
    ];
    machines.mrctl(&[&sort[..], &["/lab/calm"]].concat());
    let calm = machines.sums("/lab/calm");

    let id = machines.json(&[&sort[..], &["/lab/sorted", "--detach"]].concat())["job"]
        .as_str()
        .unwrap()
        .to_owned();
    eventually("a map is done", PATIENCE, || {
        (machines.json(&["job", &id])["maps"]["done"].as_u64()? >= 1).then_some(())
    });
    machines.mrctl(&["chaos", "kill", node, "--cluster", "lab"]);
    let over = machines.mrctl(&["job", &id, "--follow"]);
    assert!(over.contains("succeeded"), "{over}");
    assert_eq!(machines.sums("/lab/sorted"), calm, "the output differs from an undisturbed run");
    assert_eq!(
        machines.try_mrctl(&["cluster", "status", "--cluster", "lab"]).code,
        1,
        "two daemons are dead"
    );
}
