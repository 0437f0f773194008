//! `mrctl up`, `down`, `demo`: starting and stopping a local cluster.

use fermata_tests::{Cluster, Up, binaries, copy_folder, eventually, may_inspect_daemons, random_file};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{MetadataExt, PermissionsExt},
    process::{Command, Stdio},
};

fn pids(cluster: &Cluster) -> Vec<u32> {
    let state = fs::read_to_string(cluster.path(".fermata/cluster.json")).expect("a state file");
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    let daemons = state["daemons"].as_array().expect("daemons");
    daemons.iter().map(|daemon| u32::try_from(daemon["pid"].as_u64().unwrap()).unwrap()).collect()
}

fn alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn up_is_ready_and_down_leaves_nothing_running() {
    let cluster = Cluster::up(Up::default());
    let report = cluster.json(&["fs", "report"]);
    assert_eq!(report["nodes"].as_array().unwrap().len(), 3);
    assert_eq!(report["safemode"]["on"], false);

    let again = cluster.refused(1, &["up", "--detach"]);
    assert!(again.contains("already running"), "{again}");

    let pids = pids(&cluster);
    assert_eq!(pids.len(), 9, "two masters, two daemons on each of three nodes, and the gateway");
    assert!(pids.iter().all(|pid| alive(*pid)));
    cluster.mrctl(&["down"]);
    assert!(!pids.iter().any(|pid| alive(*pid)), "down left a daemon running");
    cluster.mrctl(&["down"]);
}

#[test]
fn up_in_a_running_folder_starts_dead_daemons_again() {
    let cluster = Cluster::up(Up { nodes: 2, ..Up::default() });
    assert_eq!(cluster.json(&["status"])["state"], "running");
    let before = pids(&cluster);
    for (name, daemon) in [("node2", "datanode"), ("jobtracker", "jobtracker")] {
        cluster.mrctl(&["chaos", "kill", name, "--daemon", daemon]);
    }
    let ran = cluster.try_mrctl(&["status"]);
    assert!(ran.code == 1 && ran.stdout.starts_with("degraded, closed"), "{}", ran.stdout);
    assert!(ran.stdout.ends_with("restart the daemons that have died with `mrctl up`\n"), "{}", ran.stdout);
    assert!(cluster.refused(1, &["up", "--nodes", "3"]).contains("flags cannot change a running cluster"));
    let started = cluster.mrctl(&["up"]);
    assert_eq!(started.lines().count(), 2, "{started}");
    assert_eq!(cluster.json(&["status"])["state"], "running");
    let after = pids(&cluster);
    assert_eq!(before.iter().filter(|pid| after.contains(pid)).count(), 5, "the others were not restarted");
    cluster.mrctl(&["jobs"]);
}

/// Regression: `up` returned before the DataNodes had registered with the restarted NameNode.
#[test]
fn up_after_a_dead_namenode_waits_until_all_datanodes_have_registered_again() {
    let cluster = Cluster::up(Up { nodes: 2, replication: 2, ..Up::default() });
    fs::write(cluster.path("hello"), "hello").unwrap();
    cluster.mrctl(&["fs", "put", "hello", "/hello"]);
    let datanode = cluster.pid_of("node2", "datanode");
    let signal = |signal: &str| Command::new("kill").args([signal, &datanode]).status().unwrap().success();
    assert!(signal("-STOP"));
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    let mut up = cluster.command(&["up"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(up.stderr.take().unwrap()).lines().map_while(Result::ok);
    let waits =
        lines.find(|line| line.contains("node2's datanode has not registered with the namenode (see "));
    assert!(signal("-CONT"));
    assert!(waits.is_some_and(|line| line.contains("node2-datanode.log")), "up did not wait for node2");
    assert!(up.wait().unwrap().success());
    let report = cluster.json(&["fs", "report"]);
    let nodes = report["nodes"].as_array().unwrap();
    let ready = |node: &serde_json::Value| node["reported"] == true && node["free"].as_u64() > Some(0);
    assert!(nodes.len() == 2 && nodes.iter().all(ready) && report["safemode"]["on"] == false, "{report}");
    cluster.mrctl(&["fs", "put", "hello", "/again"]);
}

#[test]
fn a_datanode_that_cannot_start_leaves_a_degraded_cluster_that_works() {
    let cluster = Cluster::up(Up { replication: 3, ..Up::default() });
    fs::write(cluster.path("hello"), "hello").unwrap();
    cluster.mrctl(&["fs", "put", "hello", "/hello"]);
    cluster.mrctl(&["down"]);
    let version = cluster.path(".fermata/data/node2/VERSION");
    let kept = fs::read(&version).unwrap();
    fs::remove_file(&version).unwrap();

    let ran = cluster.try_mrctl(&["up", "--detach"]);
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.starts_with("degraded: jobtracker at"), "{}", ran.stdout);
    let warned =
        ran.stderr.lines().find(|line| line.starts_with("mrctl: warning: node2's datanode has died: "));
    assert!(warned.is_some_and(|line| line.contains("VERSION")), "{}", ran.stderr);
    assert_eq!(cluster.mrctl(&["fs", "cat", "/hello"]), "hello");
    let counts = ["--output", "/counts", "--conf", "output.replication=1"];
    cluster.succeed(&[&["wordcount", "--input", "/hello"], &counts[..]].concat());
    assert_eq!(cluster.try_mrctl(&["status"]).code, 1);

    // The DataNode still cannot start. The warning is the same, and other daemons are not
    // restarted.
    let again = cluster.try_mrctl(&["up"]);
    assert!(again.code == 1 && again.stderr.contains("node2's datanode has died: "), "{}", again.stderr);
    assert_eq!(cluster.mrctl(&["fs", "cat", "/hello"]), "hello");
    fs::write(&version, kept).unwrap();
    assert!(cluster.mrctl(&["up"]).contains("started node2's datanode again"));
    assert_eq!(cluster.json(&["status"])["state"], "running");
}

/// Regression: a lost data folder was created again without a message.
#[test]
fn a_lost_data_folder_is_named_and_its_replicas_are_copied_again() {
    let cluster = Cluster::up(Up { nodes: 2, replication: 2, ..Up::default() });
    fs::write(cluster.path("hello"), "hello").unwrap();
    cluster.mrctl(&["fs", "put", "hello", "/hello"]);
    let folder = cluster.path(".fermata/data/node2");
    let lose_and_start = |args: &[&str]| {
        fs::remove_dir_all(&folder).unwrap();
        let before = cluster.log("node2-datanode").len();
        let ran = cluster.try_mrctl(args);
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
        let lost = "data/node2 is missing or empty: node2's datanode starts empty";
        assert_eq!(ran.stderr.lines().filter(|line| line.contains(lost)).count(), 1, "{}", ran.stderr);
        let log = cluster.log("node2-datanode")[before..].to_owned();
        let warned = |line: &&str| line.contains(" WARN ") && line.contains("starts empty");
        assert!(log.lines().filter(warned).all(|line| line.contains("data/node2")), "{log}");
        assert_eq!(log.lines().filter(warned).count(), 1, "{log}");
        cluster.mrctl(&["fs", "fsck", "/", "--wait", "5m"]);
        assert_eq!(cluster.replicas_on("node2").len(), 1);
    };
    cluster.mrctl(&["down"]);
    lose_and_start(&["up", "--detach"]);
    cluster.mrctl(&["chaos", "kill", "node2", "--daemon", "datanode"]);
    // A DataNode that is not started by `mrctl up` is refused, because the NameNode knows that it
    // had replicas.
    fs::remove_dir_all(&folder).unwrap();
    let refused = cluster.try_mrctl(&["chaos", "restart", "node2", "--daemon", "datanode"]);
    assert_ne!(refused.code, 0, "{}", refused.stdout);
    let log = cluster.log("node2-datanode");
    assert!(log.contains("node2 had 1 replica, but its data folders are empty"), "{log}");
    lose_and_start(&["up"]);
    cluster.mrctl(&["down"]);
    let again = cluster.try_mrctl(&["up", "--detach"]);
    assert!(!again.stderr.contains("starts empty"), "{}", again.stderr);
}

#[test]
fn a_cluster_in_safemode_is_left_running_so_that_safemode_can_be_turned_off() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("hello"), "hello").unwrap();
    cluster.mrctl(&["fs", "put", "hello", "/hello"]);
    cluster.mrctl(&["down"]);
    for replica in cluster.replicas_on("node1") {
        fs::remove_file(replica).unwrap();
    }
    let ran = cluster.try_mrctl(&["up", "--detach"]);
    assert!(ran.code == 1 && ran.stdout.starts_with("degraded: "), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("mrctl: waiting up to "), "{}", ran.stderr);
    let warned = ran.stderr.lines().find(|line| line.starts_with("mrctl: warning: "));
    assert!(warned.is_some_and(|line| line.contains("`mrctl fs safemode off`")), "{}", ran.stderr);
    cluster.mrctl(&["fs", "safemode", "off"]);
    cluster.mrctl(&["fs", "put", "hello", "/again"]);
}

#[test]
fn up_with_an_older_copy_of_the_namenode_leaves_a_degraded_cluster_and_says_why() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("hello"), "hello").unwrap();
    cluster.mrctl(&["fs", "put", "hello", "/hello"]);
    let (folder, older, newest) =
        (cluster.path(".fermata/data/namenode"), cluster.path("older"), cluster.path("newest"));
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    copy_folder(&folder, &older);
    // The restored NameNode repeats the first of these epochs, but the DataNode has seen the
    // second.
    for _ in 0..2 {
        cluster.restart_namenode();
        cluster.mrctl(&["chaos", "kill", "namenode"]);
    }
    cluster.mrctl(&["down"]);
    fs::rename(&folder, &newest).unwrap();
    fs::rename(&older, &folder).unwrap();

    let ran = cluster.try_mrctl(&["up", "--detach"]);
    assert!(ran.code == 1 && ran.stdout.starts_with("degraded: "), "{}{}", ran.stdout, ran.stderr);
    let warned = "mrctl: warning: node1's datanode does not serve yet: ";
    let warned = ran.stderr.lines().find_map(|line| line.strip_prefix(warned)).unwrap_or_default();
    for word in ["an older NameNode runs", "start it from the newest one", "namenode --recover"] {
        assert!(warned.contains(word), "{word:?} is not in a warning of the datanode: {}", ran.stderr);
    }
    // The cluster keeps running, so that the operator can examine it.
    assert!(pids(&cluster).into_iter().all(alive));
    assert_eq!(cluster.mrctl(&["jobs"]), "no jobs\n");
    assert!(cluster.mrctl(&["fs", "report"]).contains("older copy of its folder"));

    cluster.mrctl(&["down"]);
    fs::remove_dir_all(&folder).unwrap();
    fs::rename(&newest, &folder).unwrap();
    cluster.mrctl(&["up", "--detach"]);
    assert_eq!(cluster.mrctl(&["fs", "cat", "/hello"]), "hello");
}

#[test]
fn damaged_layout_and_lost_master_folders_are_refused_without_changes() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    cluster.mrctl(&["down"]);
    let layout = cluster.path(".fermata/layout.json");
    let kept = fs::read(&layout).unwrap();
    fs::write(&layout, "garbage").unwrap();
    let line = cluster.refused(1, &["up", "--detach"]);
    assert!(line.contains("layout.json is damaged (") && line.contains("restore it, or write"), "{line}");
    fs::write(&layout, kept).unwrap();

    for master in ["namenode", "jobtracker"] {
        let (folder, away) = (cluster.path(&format!(".fermata/data/{master}")), cluster.path("away"));
        fs::rename(&folder, &away).unwrap();
        let line = cluster.refused(1, &["up", "--detach"]);
        assert!(line.contains(&format!("data/{master} is missing or empty")), "{line}");
        assert!(!folder.exists(), "nothing is formatted");
        fs::rename(&away, &folder).unwrap();
    }
    cluster.mrctl(&["up", "--detach"]);
    cluster.mrctl(&["down"]);
    // With `--format` the JobTracker starts empty.
    fs::remove_dir_all(cluster.path(".fermata/data/jobtracker")).unwrap();
    cluster.mrctl(&["up", "--detach", "--format", "jobtracker"]);
    assert_eq!(cluster.mrctl(&["jobs"]), "no jobs\n");
}

#[test]
fn status_warns_of_a_secret_that_others_can_read_and_names_the_owner_of_the_folder() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    let owner = fs::metadata(cluster.path(".fermata")).unwrap().uid();
    let status = cluster.json(&["status"]);
    assert_eq!(status["users"], format!("only {}", daemon::account::name_of(owner)));
    assert_eq!(status["warnings"].as_array().unwrap().len(), 0, "{status}");
    fs::set_permissions(cluster.path(".fermata/secret"), fs::Permissions::from_mode(0o644)).unwrap();
    let ran = cluster.try_mrctl(&["status"]);
    assert!(ran.stderr.contains("secret has mode 644") && ran.stderr.contains("chmod 600"), "{}", ran.stderr);
}

#[test]
fn a_replication_that_the_nodes_cannot_hold_is_noted() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    cluster.mrctl(&["down"]);
    fs::write(cluster.path("nine.toml"), "[namenode]\nreplication = 9\n").unwrap();
    let ran = cluster.try_mrctl(&["up", "--detach", "--config", "nine.toml"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("note: namenode.replication = 9, but the cluster has 1 node: new files get 1;"),
        "{}",
        ran.stderr
    );
}

#[test]
fn ports_are_stable_and_json_reports_the_result() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    let before = cluster.json(&["status"]);
    let down = cluster.json(&["down"]);
    let results: Vec<_> = down["daemons"].as_array().unwrap().iter().map(|one| &one["result"]).collect();
    assert_eq!(results, ["stopped"; 5], "{down}");
    assert_eq!(cluster.try_mrctl(&["status"]).code, 1);
    let up = cluster.json(&["up", "--detach"]);
    assert_eq!((&up["state"], &up["access"]), (&"running".into(), &"closed".into()), "{up}");
    for master in ["namenode", "jobtracker"] {
        assert!(up[master] == before[master] && up[master] != "", "{before} {up}");
    }
    // If a port is in use, another port is used.
    cluster.mrctl(&["down"]);
    let _held = std::net::TcpListener::bind(up["namenode"].as_str().unwrap()).unwrap();
    let moved = cluster.json(&["up", "--detach"]);
    assert_ne!(moved["namenode"], up["namenode"]);
    cluster.mrctl(&["fs", "ls", "/"]);
}

#[test]
fn daemons_end_when_their_folder_is_deleted() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    let pids = pids(&cluster);
    assert!(pids.len() == 5 && pids.iter().all(|pid| alive(*pid)));
    // The removal is repeated if daemons create files meanwhile.
    eventually("the folder is gone", || {
        fs::remove_dir_all(cluster.path(".fermata")).ok();
        (!cluster.path(".fermata").exists()).then_some(())
    });
    eventually("the daemons have ended", || (!pids.iter().any(|pid| alive(*pid))).then_some(()));
}

#[test]
fn data_outlives_down_and_up() {
    let cluster = Cluster::up(Up::default());
    fs::write(cluster.path("hello"), "some text").unwrap();
    cluster.mrctl(&["fs", "put", "hello", "/hello"]);
    cluster.mrctl(&["down"]);
    cluster.mrctl(&["up", "--detach"]);
    assert_eq!(cluster.mrctl(&["fs", "cat", "/hello"]), "some text");
}

#[test]
fn listeners_are_on_loopback_only() {
    if !may_inspect_daemons() {
        return;
    }
    let cluster = Cluster::up(Up::default());
    for pid in pids(&cluster) {
        for table in ["tcp", "tcp6"] {
            let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
            let inodes = socket_inodes(pid);
            for line in text.lines().skip(1) {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let (local, state, inode) = (fields[1], fields[3], fields[9]);
                if state == "0A" && inodes.contains(&inode.to_owned()) {
                    assert!(local.starts_with("0100007F:"), "pid {pid} listens on {local}");
                }
            }
        }
    }
}

fn socket_inodes(pid: u32) -> Vec<String> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
    targets
        .filter_map(|target| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect()
}

#[test]
fn a_foreground_cluster_ends_with_its_signal() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Command::new(binaries().join("mrctl"))
        .args(["up", "--nodes", "1", "--replication", "1"])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(up.stdout.take().unwrap()).lines();
    let ready = lines.map_while(Result::ok).any(|line| line.contains("running in the foreground"));
    assert!(ready, "mrctl up ended before it was ready");
    let stop = Command::new("kill").args(["-TERM", &up.id().to_string()]).status().unwrap();
    assert!(stop.success());
    assert!(up.wait().unwrap().success());
    assert!(!folder.path().join(".fermata/cluster.json").exists(), "the state file is left");
}

#[test]
fn start_with_fewer_nodes_says_how_to_start_all() {
    let cluster = Cluster::up(Up { nodes: 2, replication: 1, ..Up::default() });
    for name in ["a", "b", "c", "d"] {
        random_file(&cluster.path(name), 4 << 20, 1);
        cluster.mrctl(&["fs", "put", name, "/"]);
    }
    cluster.mrctl(&["down"]);
    let ran = cluster.try_mrctl(&["up", "--detach", "--nodes", "1"]);
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    // A notice before all DataNodes have registered has another, longer limit.
    let mut notices = ran.stderr.lines().filter(|line| line.contains("waiting up to"));
    let notice = notices.next_back().unwrap_or_else(|| panic!("no notice: {}", ran.stderr));
    let left = notice.split(' ').find_map(|word| word.parse::<u64>().ok()).expect("seconds");
    assert!(left <= 10, "the command gives up after 10 s: {}", ran.stderr);
    assert!(ran.stderr.contains("`mrctl down` and `mrctl up --nodes 2`"), "{}", ran.stderr);
    cluster.mrctl(&["down"]);
    cluster.mrctl(&["up", "--detach"]);
    cluster.mrctl(&["fs", "fsck", "/", "--wait", "5m"]);
}

#[test]
fn demo_works_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(binaries().join("mrctl"))
        .arg("demo")
        .current_dir(folder.path())
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("the same sha256") && text.contains("most frequent"), "{text}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}
