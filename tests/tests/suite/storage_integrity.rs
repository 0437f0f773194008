//! Storage integrity on the real daemons: a read error costs one replica, an older copy of the NameNode's folder never leads
//! to wrong bytes, commits are recognised whatever became of their output, repair does not idle after a start, and the log
//! says what happened to nodes.

use crate::dfs_namenode_restart::connect;
use dfs::{
    client::{Commit, CommitMove},
    path::DfsPath,
};
use fermata_tests::{Cluster, QUICK, Up, binaries, eventually};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_mins(2);
/// Whatever reads the bytes of a file.
const READS: &str = "pread64,preadv,preadv2,read,readv,sendfile";

fn log_of(cluster: &Cluster, daemon: &str) -> String {
    fs::read_to_string(cluster.path(&format!(".fermata/logs/{daemon}.log"))).unwrap_or_default()
}

fn pid_of(cluster: &Cluster, node: &str) -> String {
    let text = fs::read_to_string(cluster.path(".fermata/cluster.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&text).unwrap();
    let daemons = state["daemons"].as_array().unwrap();
    let found = daemons.iter().find(|daemon| daemon["name"] == node && daemon["kind"] == "datanode");
    found.unwrap()["pid"].to_string()
}

/// Makes every read of one file by one process fail. Ends when dropped.
struct BadSector(Child);

impl BadSector {
    /// None, with a message, where strace cannot be used.
    fn inject(pid: &str, file: &Path) -> Option<Self> {
        let inject = format!("inject={READS}:error=EIO");
        let mut command = Command::new("strace");
        command.args(["-f", "-q", "-o", "/dev/null", "-P"]).arg(file);
        command.args(["-e", &format!("trace={READS}"), "-e", &inject, "-p", pid]);
        let Ok(child) = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn() else {
            eprintln!("skipped: strace is not installed");
            return None;
        };
        let mut held = Self(child);
        let attached = eventually("strace attaches, or cannot", PATIENCE, || {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let traced = (!status.contains("TracerPid:\t0")).then_some(true);
            traced.or_else(|| held.0.try_wait().unwrap().map(|_| false))
        });
        if !attached {
            eprintln!("skipped: strace may not attach to processes here");
            return None;
        }
        Some(held)
    }
}

impl Drop for BadSector {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = Command::new("kill").arg(self.0.id().to_string()).stderr(Stdio::null()).status();
            let _ = self.0.wait();
        }
    }
}

/// Audit 2: an unreadable sector on each of three machines, each in another block.
#[test]
fn one_unreadable_block_per_node_costs_three_replicas_and_no_node() {
    let settings = format!("{QUICK}[datanode]\nscrub_rate = \"64MiB\"\nscrub_period = \"1s\"\n");
    let cluster = Cluster::up(Up { nodes: 3, replication: 2, settings: &settings, ..Up::default() });
    let contents: Vec<String> = (0..9).map(|n| format!("{n} content\n").repeat(5000)).collect();
    for (number, content) in contents.iter().enumerate() {
        fs::write(cluster.path("in"), content).unwrap();
        cluster.mrctl(&["fs", "put", "in", &format!("/f{number}")]);
    }
    cluster.mrctl(&["fs", "fsck", "/", "--wait", "60s"]);
    // One block per node, each another one.
    let mut taken = BTreeSet::new();
    let mut held = Vec::new();
    for node in ["node1", "node2", "node3"] {
        let block = cluster
            .replicas_on(node)
            .into_iter()
            .find(|path| taken.insert(path.file_name().unwrap().to_owned()));
        let block = fs::canonicalize(block.expect("a block that no other node had")).unwrap();
        let Some(bad) = BadSector::inject(&pid_of(&cluster, node), &block) else { return };
        held.push((node, block, bad));
    }
    // The scrubbers find them; every byte can be read all the while.
    let read_all = || {
        for (number, content) in contents.iter().enumerate() {
            assert!(cluster.mrctl(&["fs", "cat", &format!("/f{number}")]) == *content, "/f{number}");
        }
    };
    read_all();
    eventually("three corrupt replicas are found and replaced", PATIENCE, || {
        let report = cluster.json(&["fs", "report"]);
        let replaced = report["corrupt_found_total"] == 3 && report["corrupt_replaced_total"] == 3;
        (replaced && report["under_replicated"] == 0 && report["missing"] == 0).then_some(())
    });
    cluster.mrctl(&["fs", "fsck", "/", "--wait", "60s"]);
    read_all();
    let nodes = cluster.json(&["fs", "report"])["nodes"].clone();
    for node in nodes.as_array().unwrap() {
        assert_eq!((&node["state"], &node["failed_volumes"]), (&"live".into(), &0.into()), "{node}");
    }
    for (node, block, _) in &held {
        assert!(!block.exists(), "{node}: the unreadable file is out of service");
        assert!(log_of(&cluster, &format!("{node}-datanode")).contains("quarantined"), "{node}");
    }
    assert!(log_of(&cluster, "namenode").contains("corrupt replica: blk_"), "the NameNode's log says so too");
}

fn namenode_folder(cluster: &Cluster) -> PathBuf {
    cluster.path(".fermata/data/namenode")
}

fn copy_folder(from: &Path, to: &Path) {
    let ran = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(ran.success(), "cp -a {} {}", from.display(), to.display());
}

/// Puts an older copy in the place of the NameNode's folder. The NameNode is not running.
fn restore(cluster: &Cluster, copy: &Path) {
    fs::remove_dir_all(namenode_folder(cluster)).unwrap();
    copy_folder(copy, &namenode_folder(cluster));
}

fn put(cluster: &Cluster, at: &str, content: &str) {
    fs::write(cluster.path("in"), content).unwrap();
    cluster.mrctl(&["fs", "put", "in", at]);
}

/// Audit 3: an older copy of the NameNode's folder is restored while a DataNode is away, new files of the same lengths are
/// written, the DataNode comes back and the others are lost.
#[test]
fn restored_older_copy_of_the_namenode_never_serves_bytes_of_another_file() {
    let settings = format!("{QUICK}[client]\ndeadline = \"4s\"\n");
    let cluster = Cluster::up(Up { nodes: 2, replication: 2, settings: &settings, ..Up::default() });
    put(&cluster, "/a", "kept since before the copy\n");
    let copy = cluster.path("copy");
    copy_folder(&namenode_folder(&cluster), &copy);
    for number in 0..4 {
        put(&cluster, &format!("/b{number}"), &format!("bytes of file b number {number}\n"));
    }
    cluster.mrctl(&["chaos", "kill", "node1", "--daemon", "datanode"]);
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    restore(&cluster, &copy);
    cluster.mrctl(&["chaos", "restart", "namenode"]);
    for number in 0..4 {
        put(&cluster, &format!("/c{number}"), &format!("bytes of file c number {number}\n"));
    }
    cluster.mrctl(&["chaos", "restart", "node1", "--daemon", "datanode"]);
    eventually("node1 has reported", PATIENCE, || {
        let report = cluster.json(&["fs", "report"]);
        let nodes = report["nodes"].as_array()?.clone();
        (nodes.len() == 2 && nodes.iter().all(|node| node["state"] == "live")).then_some(())
    });
    // What the restored NameNode does not know is kept, and people are told.
    let told = cluster.mrctl(&["fs", "report"]);
    assert!(told.contains("future_blocks") && told.contains("older copy"), "{told}");
    assert!(cluster.mrctl(&["fs", "fsck", "/a"]).contains("future_blocks"));
    cluster.mrctl(&["chaos", "kill", "node2", "--daemon", "datanode"]);
    let mut read = 0;
    for number in 0..4 {
        let ran = cluster.try_mrctl(&["fs", "cat", &format!("/c{number}")]);
        let right = format!("bytes of file c number {number}\n");
        if ran.code == 0 {
            // Copied to node1 in time.
            assert_eq!(ran.stdout, right, "wrong bytes");
            read += 1;
        } else {
            assert!(ran.code == 1 && ran.stdout.is_empty(), "{}{}", ran.stdout, ran.stderr);
            assert!(ran.stderr.contains("blk_"), "a clear error: {}", ran.stderr);
        }
    }
    eprintln!("{read} of 4 could be read");
    assert_eq!(cluster.mrctl(&["fs", "cat", "/a"]), "kept since before the copy\n");
}

/// Audit 3: DataNodes refuse a NameNode that is older than the last one they registered with, until an operator accepts it.
#[test]
fn datanodes_refuse_an_older_namenode_until_an_operator_accepts_it() {
    let settings = format!("{QUICK}[client]\ndeadline = \"3s\"\n");
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings: &settings, ..Up::default() });
    put(&cluster, "/a", "kept since before the copy\n");
    let copy = cluster.path("copy");
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    copy_folder(&namenode_folder(&cluster), &copy);
    for _ in 0..2 {
        cluster.mrctl(&["chaos", "restart", "namenode"]);
        put(&cluster, "/b", "written after the copy\n");
        cluster.mrctl(&["fs", "rm", "/b"]);
        cluster.mrctl(&["chaos", "kill", "namenode"]);
    }
    restore(&cluster, &copy);
    cluster.mrctl(&["chaos", "restart", "namenode"]);
    eventually("both sides say why", PATIENCE, || {
        let theirs = log_of(&cluster, "node1-datanode").contains("an older NameNode runs");
        let ours = log_of(&cluster, "namenode").contains("DataNode refused: node1");
        (theirs && ours).then_some(())
    });
    let told = cluster.mrctl(&["fs", "report"]);
    assert!(told.contains("refused") && told.contains("namenode --recover"), "{told}");
    assert_ne!(cluster.try_mrctl(&["fs", "cat", "/a"]).code, 0);

    // The documented step: one start with --recover accepts the copy.
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    let ready = cluster.path("accepted");
    let mut accepting = Command::new(binaries().join("namenode"))
        .arg("--config")
        .arg(cluster.path(".fermata/fermata.toml"))
        .args(["--listen", "127.0.0.1:0", "--recover", "--ready-file"])
        .arg(&ready)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually("it has started", PATIENCE, || ready.exists().then_some(()));
    accepting.kill().unwrap();
    accepting.wait().unwrap();
    cluster.mrctl(&["chaos", "restart", "namenode"]);
    eventually("the datanode is back", PATIENCE, || {
        (cluster.try_mrctl(&["fs", "cat", "/a"]).stdout == "kept since before the copy\n").then_some(())
    });
    assert!(!cluster.mrctl(&["fs", "report"]).contains("refused"));
}

/// Audit 13: a commit that is repeated after the user has moved its output is recognised, also by a NameNode that has
/// started again.
#[test]
fn repeated_commit_is_recognised_after_its_output_was_moved() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    put(&cluster, "/job/piece", "output of a job\n");
    let path = |at: &str| DfsPath::parse(at).unwrap();
    let commit = Commit {
        scope: "test".into(),
        epoch: 1,
        commit_id: "job_1".into(),
        moves: vec![CommitMove { pieces: vec![path("/job/piece")], to: path("/out/part-0") }],
        deletes: vec![path("/work")],
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ask = || runtime.block_on(async { connect(&cluster).await.commit(commit.clone()).await });
    assert!(!ask().unwrap(), "it is new");
    cluster.mrctl(&["fs", "mv", "/out/part-0", "/mine"]);
    assert!(ask().unwrap(), "it was done before");
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    cluster.mrctl(&["chaos", "restart", "namenode"]);
    eventually("recognised after a restart", PATIENCE, || ask().ok().filter(|done| *done).map(drop));
    assert_eq!(cluster.mrctl(&["fs", "cat", "/mine"]), "output of a job\n");
    assert_ne!(cluster.try_mrctl(&["fs", "stat", "/out/part-0"]).code, 0, "nothing was put there again");
}

/// Operator 3 and 7: after a start of the NameNode, work that does not depend on late nodes begins at once; and the log
/// tells of nodes, drains and safemode, and nothing of each replica that `fsck --verify` looks at.
#[test]
fn drain_and_setrep_do_not_wait_for_dead_after_and_the_log_tells_of_nodes() {
    let settings = "[namenode]\nheartbeat = \"200ms\"\nsuspect_after = \"2s\"\ndead_after = \"10m\"\n";
    let cluster = Cluster::up(Up { nodes: 3, replication: 1, settings, ..Up::default() });
    for number in 0..4 {
        put(&cluster, &format!("/f{number}"), "some bytes\n");
    }
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    cluster.mrctl(&["chaos", "restart", "namenode"]);
    eventually("safemode is over", PATIENCE, || {
        (cluster.json(&["fs", "report"])["safemode"]["on"] == false).then_some(())
    });
    cluster.mrctl(&["fs", "setrep", "2", "/f0", "/f1", "/f2", "/f3"]);
    cluster.mrctl(&["fs", "fsck", "/", "--wait", "60s"]);
    cluster.mrctl(&["drain", "node1"]);
    cluster.mrctl(&["fs", "fsck", "/", "--verify", "--wait", "60s"]);
    cluster.mrctl(&["drain", "node1", "--cancel"]);
    cluster.mrctl(&["chaos", "kill", "node3", "--daemon", "datanode"]);
    eventually("a suspect node is in the log", PATIENCE, || {
        log_of(&cluster, "namenode").contains("DataNode node3 is suspect").then_some(())
    });
    let log = log_of(&cluster, "namenode");
    for line in [
        "DataNode node1 registered",
        "safemode is off",
        "drain of DataNode node1 began",
        "drain of DataNode node1 finished",
    ] {
        assert!(log.contains(line), "{line:?} is not in {log}");
    }
    assert!(!log.contains("fsck --verify"), "no line for each replica: {log}");
}

/// Health tells that the NameNode is in safemode, and that it is up: DataNodes must reach it for safemode to end.
#[test]
fn health_tells_of_safemode() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    let safemode = || cluster.json(&["health", "namenode"])["safemode"].clone();
    assert_eq!(safemode(), false);
    cluster.mrctl(&["fs", "safemode", "on"]);
    eventually("health knows", PATIENCE, || (safemode() == true).then_some(()));
    assert!(cluster.mrctl(&["health", "namenode"]).contains("in safemode"));
    cluster.mrctl(&["fs", "safemode", "off"]);
    eventually("health knows", PATIENCE, || (safemode() == false).then_some(()));
}
