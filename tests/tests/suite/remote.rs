//! Behaviour of `mrctl cluster` on machines: it does not touch folders of other clusters,
//! distinguishes old from current state, and has timeouts. Master and node are both this machine.

use fermata_tests::{Ran, binaries, skip, task_account};
use serde_json::Value;
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

/// A master `m` and a node `n`, with a shell command that runs everything locally.
struct Pair {
    folder: tempfile::TempDir,
}

/// Shell command that runs a command on this machine, with the name of the machine in its
/// environment.
const LOCAL_SHELL: &str = "env WHERE={host}";

impl Pair {
    fn new() -> Self {
        let space = binaries().with_file_name("tmp");
        fs::create_dir_all(&space).unwrap();
        let folder = tempfile::Builder::new().prefix("remote-").tempdir_in(space).unwrap();
        // Tasks have another account, and must be able to reach their folders.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let pair = Self { folder };
        pair.init("mycluster");
        pair
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn init(&self, lab: &str) {
        let ran = self.run(&["init", lab, "--master", "m=127.0.0.1", "--node", "n=127.0.0.1"]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let file = self.path(lab).join("fermata.toml");
        let mut text = fs::read_to_string(&file).unwrap();
        let held = [9400, 9401, 9500, 9501].map(|usual| {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            text = text.replace(&format!(":{usual}"), &format!(":{}", free.local_addr().unwrap().port()));
            free
        });
        drop(held);
        let text = text.replace("0.0.0.0", "127.0.0.1");
        fs::write(file, text.replace("[tasktracker]\n", &format!("[tasktracker]\n{}\n", task_account())))
            .unwrap();
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(binaries().join("mrctl"));
        command.arg("cluster").args(args).current_dir(self.folder.path()).output().unwrap().into()
    }

    /// Runs `mrctl cluster ARGS --cluster LAB`. All clusters use the same folder.
    fn run_for(&self, lab: &str, args: &[&str]) -> Ran {
        let (dir, programs) = (self.path("{host}").display().to_string(), binaries().display().to_string());
        let way = ["--cluster", lab, "--shell", LOCAL_SHELL, "--remote-dir", &dir, "--programs", &programs];
        self.run(&[args, &way[..]].concat())
    }

    #[track_caller]
    fn run_ok(&self, args: &[&str]) -> String {
        let ran = self.run_for("mycluster", args);
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    fn pid(&self, host: usize, daemon: usize) -> i64 {
        let ran = self.run_for("mycluster", &["status", "--json"]);
        let status: Value = serde_json::from_str(&ran.stdout).unwrap();
        status[host]["daemons"][daemon]["pid"].as_i64().unwrap()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.run_for("mycluster", &["down"]);
    }
}

#[test]
fn cluster_leaves_foreign_folders_alone_and_reports_its_status() {
    let pair = Pair::new();
    let up = pair.run_ok(&["up"]);
    assert!(up.contains("m: settings copied; namenode running (pid "), "{up}");
    assert!(!up.contains("older settings"), "{up}");

    // Another cluster uses the same folders.
    pair.init("other");
    for args in [&["up"][..], &["status"], &["restart", "n"], &["down"], &["down", "--purge"], &["upgrade"]] {
        let ran = pair.run_for("other", args);
        assert_eq!(ran.code, 1, "{args:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("belongs to cluster mycluster-"), "{args:?}: {}", ran.stderr);
    }
    assert!(pair.path("m/data/namenode").is_dir());
    pair.run_ok(&["status"]);

    check_partial_hosts_file_applies_to_one_command(&pair);
    check_changed_and_active_settings_are_distinguished(&pair);
    check_daemons_inherit_no_open_files(&pair);
    check_unknown_connections_do_not_fill_the_log(&pair);
    check_frozen_daemon_is_not_running(&pair);
    check_machine_is_removed(&pair);
    assert!(pair.run_ok(&["down", "--purge"]).contains("deleted"));
    assert!(!pair.path("m").exists());
}

/// Checks that a hosts file with some of the machines applies to one command only.
fn check_partial_hosts_file_applies_to_one_command(pair: &Pair) {
    let all = fs::read_to_string(pair.path("mycluster/hosts")).unwrap();
    let master: Vec<&str> = all.lines().filter(|line| line.starts_with("m ")).collect();
    let part = pair.path("part");
    fs::write(&part, master.join("\n") + "\n").unwrap();
    let up = pair.run_ok(&["up", "--hosts", part.to_str().unwrap()]);
    assert!(up.contains("m: ") && !up.contains("n: "), "{up}");
    let up = pair.run_ok(&["up"]);
    assert!(up.contains("m: ") && up.contains("n: "), "the next `up` skips a machine: {up}");
}

fn check_changed_and_active_settings_are_distinguished(pair: &Pair) {
    assert!(pair.run_ok(&["up"]).contains("n: settings are up to date; datanode running"));
    let file = pair.path("mycluster/fermata.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("[datanode]\n", "[datanode]\nscrub_period = \"5h\"\n")).unwrap();
    let up = pair.run_ok(&["up"]);
    assert!(up.contains("n: settings copied") && up.contains("`mrctl cluster restart n` updates"), "{up}");
    let before = pair.pid(1, 0);
    let restarted = pair.run_ok(&["restart", "n"]);
    assert!(
        restarted.starts_with("n: settings are up to date") && !restarted.contains("older"),
        "{restarted}"
    );
    assert_ne!(pair.pid(1, 0), before);
    // A restart also copies changed settings.
    fs::write(&file, text).unwrap();
    assert!(pair.run_ok(&["restart", "n"]).starts_with("n: settings copied"));
    pair.run_ok(&["restart", "m"]);
    assert!(!pair.run_ok(&["up"]).contains("older"));
}

fn check_daemons_inherit_no_open_files(pair: &Pair) {
    let (secret, lock) = (pair.path("mycluster/security/admin.pem"), pair.path("lock"));
    let mrctl = binaries().join("mrctl");
    let script = "exec 9<$1 8>$2; flock 8; exec $0 cluster restart n --cluster mycluster";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(mrctl).arg(&secret).arg(&lock).current_dir(pair.folder.path());
    let ran: Ran = command.output().unwrap().into();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for daemon in 0..2 {
        let pid = pair.pid(1, daemon);
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
            let open = fs::read_link(entry.path()).unwrap_or_default();
            assert!(open != secret && open != lock, "{pid}: {}", open.display());
        }
    }
    let free = Command::new("flock").arg("--nonblock").arg(&lock).arg("true").status().unwrap();
    assert!(free.success(), "a daemon has inherited the lock of the process that started it");
}

fn check_unknown_connections_do_not_fill_the_log(pair: &Pair) {
    let socket = pair.path("n/data/tasktracker/umbilical.sock");
    if !socket.exists() {
        return skip("a shorter path", "the path of the umbilical is too long");
    }
    for _ in 0..500 {
        std::os::unix::net::UnixStream::connect(&socket).unwrap();
    }
    let log = || fs::read_to_string(pair.path("n/logs/tasktracker.log")).unwrap();
    let count = |log: &str| log.matches("refused a connection to the umbilical").count();
    fermata_tests::eventually("unknown connections are logged", || (count(&log()) > 0).then_some(()));
    assert!(count(&log()) <= 2, "{}", count(&log()));
}

fn check_frozen_daemon_is_not_running(pair: &Pair) {
    let signal = |what: &str| {
        let mut command = Command::new(binaries().join("mrctl"));
        command.args(["chaos", what, "namenode", "--cluster", "mycluster"]).current_dir(pair.folder.path());
        Ran::from(command.output().unwrap())
    };
    assert_eq!(signal("stop").code, 0);
    let status = pair.run_for("mycluster", &["status"]);
    assert_eq!(status.code, 1, "{}", status.stdout);
    assert!(status.stdout.contains("m: namenode frozen (pid "), "{}", status.stdout);
    assert_eq!(signal("cont").code, 0);
    fermata_tests::eventually("the cluster is healthy", || {
        (pair.run_for("mycluster", &["status"]).code == 0).then_some(())
    });
    let json: Value = serde_json::from_str(&pair.run_ok(&["status", "--json"])).unwrap();
    assert_eq!(json[0]["daemons"][0]["reported"], "up", "{json}");
    assert_eq!(json[1]["daemons"][1]["reported"], "live", "{json}");
    assert_eq!(signal("kill").code, 0);
    let again = fermata_tests::eventually("the NameNode is gone", || {
        let ran = signal("kill");
        (ran.code == 1).then_some(ran)
    });
    assert!(again.stderr.contains("namenode on m not running"), "{}", again.stderr);
    pair.run_ok(&["up"]);
}

fn check_machine_is_removed(pair: &Pair) {
    for (node, words) in [
        ("n", "n is still running: drain it first with `mrctl cluster drain n`"),
        ("m", "m is a master"),
        ("x", "no machine x"),
    ] {
        let ran = pair.run_for("mycluster", &["remove", node]);
        assert!(ran.code != 0 && ran.stderr.contains(words), "{}", ran.stderr);
    }
    pair.run_ok(&["remove", "n", "--force", "--purge"]);
    assert!(!pair.path("n").exists());
    let status = pair.run_ok(&["status"]);
    assert!(!status.contains("n: "), "{status}");
    let added = pair.run_for("mycluster", &["add", "m"]);
    assert!(added.code == 2 && added.stderr.contains("m is a master"), "{}", added.stderr);
}

#[test]
fn invalid_requests_are_rejected_before_any_change() {
    let pair = Pair::new();
    let refused = |args: &[&str], words: &str| {
        let ran = pair.run(args);
        assert!(ran.code == 2 && ran.stderr.contains(words), "{args:?}: {} {}", ran.code, ran.stderr);
    };
    refused(&["init", "z1", "--master", "m", "--node", "m"], "m is listed twice");
    refused(&["init", "z1", "--master", "m", "--node", "n=999.1.1.1"], "is not an address");
    assert!(!pair.path("z1").exists());
    for name in ["fermata", "root", "jobtracker", "datanode", "admin"] {
        refused(&["user", name, "--cluster", "mycluster", "--out", "theirs"], "is a reserved name");
    }
    assert!(!pair.path("theirs").exists());
    refused(&["up", "--cluster", "mycluster", "--remote-dir", "/"], "is not a folder for machines");
    refused(&["up", "--cluster", "nowhere"], "has no fermata.toml");
    // A machine that does not answer is reported after a timeout.
    let (hangs, started) = (pair.path("hangs"), Instant::now());
    fs::write(&hangs, "sleep 100 & sleep 100\n").unwrap();
    let shell = format!("sh {} {{host}}", hangs.display());
    let ran = pair.run(&["status", "--cluster", "mycluster", "--shell", &shell]);
    assert!(ran.code == 1 && ran.stderr.contains("n: no answer after 20 s"), "{}", ran.stderr);
    assert!(started.elapsed() < Duration::from_mins(1));
    let ran = pair.run(&["status", "--cluster", "mycluster", "--shell", "echo {host}"]);
    assert!(ran.code == 1 && ran.stderr.contains("runs no scripts there"), "{}", ran.stderr);
}

/// Checks that, of data folders outside the folder of the machine, only those marked as this
/// cluster's are purged.
#[test]
fn purge_does_not_touch_folders_of_others() {
    let pair = Pair::new();
    let (file, disk, foreign) =
        (pair.path("mycluster/fermata.toml"), pair.path("disk"), pair.path("foreign"));
    let text = fs::read_to_string(&file).unwrap();
    let with = |dirs: &[&PathBuf]| {
        let mut table: toml::Table = text.parse().unwrap();
        let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        table["datanode"].as_table_mut().unwrap().insert("dirs".into(), dirs.into());
        fs::write(&file, table.to_string()).unwrap();
    };
    with(&[&disk]);
    pair.run_ok(&["up"]);
    let mark = fs::read_to_string(disk.join("CLUSTER")).unwrap();
    assert!(mark.starts_with("mycluster-"), "{mark}");
    pair.run_ok(&["down"]);
    // The settings contain a folder of another owner with the same names in it.
    for name in ["current", "tmp", "logs"] {
        fs::create_dir_all(foreign.join(name)).unwrap();
    }
    fs::write(foreign.join("VERSION"), "3\n").unwrap();
    with(&[&disk, &foreign]);
    let ran = pair.run_for("mycluster", &["down", "--purge"]);
    assert!(ran.code == 1 && ran.stderr.contains("foreign stays"), "{}{}", ran.stdout, ran.stderr);
    assert!(!disk.exists(), "the folder of this cluster is left");
    for name in ["current", "tmp", "logs", "VERSION"] {
        assert!(foreign.join(name).exists(), "{name} is gone");
    }
}

/// A cluster of one master gets two more, at other addresses of this machine, and then loses the first.
#[test]
fn one_master_becomes_three_when_more_machines_are_listed() {
    let pair = Pair::new();
    pair.run_ok(&["up"]);
    let mrctl = |args: &[&str]| {
        let mut command = Command::new(binaries().join("mrctl"));
        command.args(["--config", "mycluster/fermata.toml"]).args(args).current_dir(pair.folder.path());
        Ran::from(command.output().unwrap())
    };
    let local = pair.path("file");
    fs::write(&local, "some bytes").unwrap();
    let put = mrctl(&["fs", "put", local.to_str().unwrap(), "/file"]);
    assert_eq!(put.code, 0, "{}", put.stderr);
    pair.run_ok(&["down"]);

    let (hosts, file) = (pair.path("mycluster/hosts"), pair.path("mycluster/fermata.toml"));
    let listed = fs::read_to_string(&hosts).unwrap() + "m2 master addr=127.0.0.2\nm3 master addr=127.0.0.3\n";
    fs::write(&hosts, listed).unwrap();
    let refused = pair.run_for("mycluster", &["up"]);
    assert!(refused.code == 2 && refused.stderr.contains("list the same machines"), "{}", refused.stderr);
    let mut settings: toml::Table = fs::read_to_string(&file).unwrap().parse().unwrap();
    let cluster = settings["cluster"].as_table_mut().unwrap();
    let others: Vec<String> = ["namenode", "jobtracker"]
        .into_iter()
        .map(|daemon| {
            let first = cluster[daemon].as_str().unwrap().to_owned();
            let all = [1, 2, 3].map(|at| first.replace("127.0.0.1", &format!("127.0.0.{at}")));
            cluster.insert(daemon.into(), all.to_vec().into());
            first
        })
        .collect();
    fs::write(&file, settings.to_string()).unwrap();
    pair.run_ok(&["up"]);
    let masters = mrctl(&["masters"]);
    assert!(masters.stdout.contains("3 of 3 NameNodes are up"), "{}{}", masters.stdout, masters.stderr);
    assert!(masters.stdout.contains("3 of 3 JobTrackers are up"), "{}", masters.stdout);
    let kill = mrctl(&["chaos", "kill", "m", "--cluster", "mycluster"]);
    assert_eq!(kill.code, 0, "{}", kill.stderr);
    assert_eq!(mrctl(&["fs", "cat", "/file"]).stdout, "some bytes");
    let masters = mrctl(&["masters"]).stdout;
    assert!(others.iter().all(|first| masters.contains(&format!("{first} refused"))), "{masters}");
    pair.run_ok(&["down", "--purge"]);
    assert!(!pair.path("m2").exists());
}

#[test]
fn masters_of_a_new_cluster_are_an_odd_number_of_machines() {
    let pair = Pair::new();
    let refused = |masters: &[&str], words: &str| {
        let masters: Vec<&str> = masters.iter().flat_map(|master| ["--master", master]).collect();
        let ran = pair.run(&[&["init", "z1"], &masters[..]].concat());
        assert!(ran.code == 2 && ran.stderr.contains(words), "{masters:?}: {} {}", ran.code, ran.stderr);
        assert!(!pair.path("z1").exists());
    };
    refused(&["a", "b"], "give --master 1, 3 or 5 times");
    refused(&["a", "b", "a"], "masters a and a have the address a");
    refused(&["a", "b=10.0.0.1", "c=10.0.0.1"], "masters b and c have the address 10.0.0.1");
    let made = pair.run(&["init", "z1", "--master", "a", "--master", "b=10.0.0.2", "--master", "c"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let settings = fs::read_to_string(pair.path("z1/fermata.toml")).unwrap();
    assert!(settings.contains("namenode = [\"a:9400\", \"10.0.0.2:9400\", \"c:9400\"]"), "{settings}");
    assert!(settings.contains("jobtracker = [\"a:9500\", \"10.0.0.2:9500\", \"c:9500\"]"), "{settings}");
    let hosts = fs::read_to_string(pair.path("z1/hosts")).unwrap();
    assert!(hosts.ends_with("a master\nb master addr=10.0.0.2\nc master\n"), "{hosts}");
    let user = pair.run(&["user", "ann", "--cluster", "z1", "--out", "ann"]);
    assert_eq!(user.code, 0, "{}", user.stderr);
    let settings = fs::read_to_string(pair.path("ann/fermata.toml")).unwrap();
    assert!(settings.contains("namenode = \"a:9400,10.0.0.2:9400,c:9400\""), "{settings}");
}
