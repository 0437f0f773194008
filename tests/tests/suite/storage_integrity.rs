//! Storage integrity with the real daemons: a read error affects only one replica; an older copy of
//! a master's folder never leads to wrong bytes or to a job without output; repeated commits are
//! recognised; repair starts soon after a start; and changes of nodes are logged.

use crate::dfs_namenode_restart::connect;
use dfs_client::{
    Commit, CommitMove,
    ids::{Start, StartId},
    path::DfsPath,
};
use fermata_tests::{Cluster, QUICK, READS, Strace, Up, copy_folder, eventually};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Makes a sector unreadable on each of three machines, each in a different block. Checks that only
/// these replicas are replaced.
#[test]
fn one_unreadable_block_per_node_costs_three_replicas_and_no_node() {
    let settings = format!("{QUICK}[datanode]\nscrub_rate = \"64MiB\"\nscrub_period = \"1s\"\n");
    let cluster = Cluster::up(Up { nodes: 3, replication: 2, settings: &settings, ..Up::default() });
    let contents: Vec<String> = (0..9).map(|n| format!("{n} content\n").repeat(5000)).collect();
    for (number, content) in contents.iter().enumerate() {
        fs::write(cluster.path("in"), content).unwrap();
        cluster.mrctl(&["fs", "put", "in", &format!("/f{number}")]);
    }
    cluster.mrctl(&["fs", "fsck", "/", "--wait", "5m"]);
    // Chooses a different block on each node.
    let mut used = BTreeSet::new();
    let mut held = Vec::new();
    for node in ["node1", "node2", "node3"] {
        let block = cluster
            .replicas_on(node)
            .into_iter()
            .find(|path| used.insert(path.file_name().unwrap().to_owned()));
        let block = fs::canonicalize(block.expect("a block that no other node had")).unwrap();
        let pid = cluster.pid_of(node, "datanode");
        let files = std::slice::from_ref(&block);
        let Some(bad) = Strace::hold_files(&cluster, &pid, READS, "error=EIO", files) else { return };
        held.push((node, block, bad));
    }
    // The scrubbers find the unreadable blocks. Meanwhile every byte can be read.
    let read_all = || {
        for (number, content) in contents.iter().enumerate() {
            assert!(cluster.mrctl(&["fs", "cat", &format!("/f{number}")]) == *content, "/f{number}");
        }
    };
    read_all();
    eventually("three corrupt replicas are found and replaced", || {
        let report = cluster.json(&["fs", "report"]);
        let replaced = report["corrupt_found_total"] == 3 && report["corrupt_replaced_total"] == 3;
        (replaced && report["under_replicated"] == 0 && report["missing"] == 0).then_some(())
    });
    cluster.mrctl(&["fs", "fsck", "/", "--wait", "5m"]);
    read_all();
    let nodes = cluster.json(&["fs", "report"])["nodes"].clone();
    for node in nodes.as_array().unwrap() {
        assert_eq!((&node["state"], &node["failed_volumes"]), (&"live".into(), &0.into()), "{node}");
    }
    for (node, block, _) in &held {
        assert!(!block.exists(), "{node}: the unreadable file is still in use");
        assert!(cluster.log(&format!("{node}-datanode")).contains("quarantined"), "{node}");
    }
    assert!(
        cluster.log("namenode").contains("corrupt replica: blk_"),
        "the log of the NameNode does not mention the corrupt replica"
    );
}

fn namenode_folder(cluster: &Cluster) -> PathBuf {
    cluster.path(".fermata/data/namenode")
}

/// Replaces the folder of the NameNode by an older copy. The NameNode must not run.
fn restore_older_copy(cluster: &Cluster, copy: &Path) {
    fs::remove_dir_all(namenode_folder(cluster)).unwrap();
    copy_folder(copy, &namenode_folder(cluster));
}

fn put(cluster: &Cluster, at: &str, content: &str) {
    fs::write(cluster.path("in"), content).unwrap();
    cluster.mrctl(&["fs", "put", "in", at]);
}

/// Restores an older copy of the NameNode folder while a DataNode is down, and writes new files of
/// the same lengths. The DataNode comes back, and the other one is lost. Checks that no bytes of
/// another file are read.
#[test]
fn restored_older_copy_of_the_namenode_never_serves_bytes_of_another_file() {
    let settings = format!("{QUICK}[client]\ndeadline = \"10s\"\n");
    let cluster = Cluster::up(Up { nodes: 2, replication: 2, settings: &settings, ..Up::default() });
    put(&cluster, "/a", "kept since before the copy\n");
    let copy = cluster.path("copy");
    copy_folder(&namenode_folder(&cluster), &copy);
    for number in 0..4 {
        put(&cluster, &format!("/b{number}"), &format!("bytes of file b number {number}\n"));
    }
    cluster.mrctl(&["chaos", "kill", "node1", "--daemon", "datanode"]);
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    restore_older_copy(&cluster, &copy);
    cluster.restart_namenode();
    for number in 0..4 {
        put(&cluster, &format!("/c{number}"), &format!("bytes of file c number {number}\n"));
    }
    cluster.mrctl(&["chaos", "restart", "node1", "--daemon", "datanode"]);
    eventually("node1 has reported", || {
        let report = cluster.json(&["fs", "report"]);
        let nodes = report["nodes"].as_array()?.clone();
        (nodes.len() == 2 && nodes.iter().all(|node| node["state"] == "live")).then_some(())
    });
    // Blocks that the restored NameNode does not know are kept and reported.
    let message = cluster.mrctl(&["fs", "report"]);
    assert!(message.contains("future_blocks") && message.contains("older copy"), "{message}");
    assert!(cluster.mrctl(&["fs", "fsck", "/a"]).contains("future_blocks"));
    cluster.mrctl(&["chaos", "kill", "node2", "--daemon", "datanode"]);
    let mut read = 0;
    for number in 0..4 {
        let ran = cluster.try_mrctl(&["fs", "cat", &format!("/c{number}")]);
        let right = format!("bytes of file c number {number}\n");
        if ran.code == 0 {
            // The block was copied to node1 before the other node was lost.
            assert_eq!(ran.stdout, right, "wrong bytes");
            read += 1;
        } else {
            assert!(ran.code == 1 && ran.stdout.is_empty(), "{}{}", ran.stdout, ran.stderr);
            assert!(ran.stderr.contains("blk_"), "the error does not name the block: {}", ran.stderr);
        }
    }
    eprintln!("{read} of 4 could be read");
    assert_eq!(cluster.mrctl(&["fs", "cat", "/a"]), "kept since before the copy\n");
}

/// Checks that DataNodes refuse a NameNode that is older than the last one they registered with,
/// until an operator accepts it.
#[test]
fn datanodes_refuse_an_older_namenode_until_an_operator_accepts_it() {
    let settings = format!("{QUICK}[client]\ndeadline = \"10s\"\n");
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings: &settings, ..Up::default() });
    put(&cluster, "/a", "kept since before the copy\n");
    let copy = cluster.path("copy");
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    copy_folder(&namenode_folder(&cluster), &copy);
    for _ in 0..2 {
        cluster.restart_namenode();
        put(&cluster, "/b", "written after the copy\n");
        cluster.mrctl(&["fs", "rm", "/b"]);
        cluster.mrctl(&["chaos", "kill", "namenode"]);
    }
    restore_older_copy(&cluster, &copy);
    cluster.mrctl(&["chaos", "restart", "namenode"]);
    eventually("DataNode and NameNode log the reason", || {
        let theirs = cluster.log("node1-datanode").contains("an older NameNode runs");
        let ours = cluster.log("namenode").contains("DataNode refused: node1");
        (theirs && ours).then_some(())
    });
    let message = cluster.mrctl(&["fs", "report"]);
    assert!(message.contains("refused") && message.contains("namenode --recover"), "{message}");
    assert_ne!(cluster.try_mrctl(&["fs", "cat", "/a"]).code, 0);

    // The documented step is one start with --recover, which accepts the copy.
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    cluster.recover("namenode", |_| {});
    cluster.mrctl(&["chaos", "restart", "namenode"]);
    eventually("the datanode is back", || {
        (cluster.try_mrctl(&["fs", "cat", "/a"]).stdout == "kept since before the copy\n").then_some(())
    });
    assert!(!cluster.mrctl(&["fs", "report"]).contains("refused"));
}

/// Repeats a commit after the user has moved its output. Checks that the commit is recognised, also
/// by a restarted NameNode.
#[test]
fn repeated_commit_is_recognised_after_its_output_was_moved() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    put(&cluster, "/job/piece", "output of a job\n");
    let path = |at: &str| DfsPath::parse(at).unwrap();
    let commit = Commit {
        scope: "test".into(),
        start: Start { epoch: 1, id: StartId(1) },
        commit_id: "job_1".into(),
        moves: vec![CommitMove { pieces: vec![path("/job/piece")], to: path("/out/part-0") }],
        deletes: vec![path("/work")],
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ask = || runtime.block_on(async { connect(&cluster).await.commit(commit.clone()).await });
    assert!(!ask().unwrap(), "the first commit was taken for a repetition");
    cluster.mrctl(&["fs", "mv", "/out/part-0", "/mine"]);
    assert!(ask().unwrap(), "the repeated commit was not recognised");
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    cluster.mrctl(&["chaos", "restart", "namenode"]);
    eventually("recognised after a restart", || ask().ok().filter(|done| *done).map(drop));
    assert_eq!(cluster.mrctl(&["fs", "cat", "/mine"]), "output of a job\n");
    assert_ne!(
        cluster.try_mrctl(&["fs", "stat", "/out/part-0"]).code,
        0,
        "the repeated commit created the output again"
    );
}

/// The JobTracker dies after the NameNode has committed the output of a job, and before it has
/// recorded the commit, which strace makes slow. The user moves the output before the JobTracker is
/// back.
#[test]
fn job_succeeds_although_its_output_was_moved_before_the_commit_was_recorded() {
    // On a slow machine the record may be written before the JobTracker is killed, so the test is
    // repeated.
    assert!(
        (0..3).any(|_| output_is_moved_before_the_commit_is_recorded()),
        "the JobTracker was never killed between the commit and its record"
    );
}

/// Runs the test once. Returns false if the record was written too early.
fn output_is_moved_before_the_commit_is_recorded() -> bool {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    put(&cluster, "/in", &"word\n".repeat(20_000));
    let args = ["wordcount", "--conf", "pace.map=50KiB", "--input", "/in", "--output", "/out"];
    let id = cluster.detach(&args);
    eventually("the map of the job runs", || {
        (cluster.json(&["job", &id])["maps"]["running"] != 0).then_some(())
    });
    let journal = fs::read_dir(cluster.path(".fermata/data/jobtracker/journal")).unwrap().flatten();
    let segments = journal.map(|entry| entry.path()).filter(|path| path.extension() == Some("log".as_ref()));
    let newest = fs::canonicalize(segments.max().expect("a segment")).unwrap();
    let pid = cluster.pid_of("jobtracker", "jobtracker");
    let slow = "delay_enter=2000000";
    let held = Strace::hold_files(&cluster, &pid, "write,pwrite64", slow, std::slice::from_ref(&newest));
    let Some(held) = held else { return true };
    eventually("the output of the job is committed", || {
        (cluster.try_mrctl(&["fs", "stat", "/out/_SUCCESS"]).code == 0).then_some(())
    });
    cluster.mrctl(&["chaos", "kill", "jobtracker"]);
    drop(held);
    cluster.mrctl(&["fs", "mv", "/out", "/mine"]);
    cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    let job = eventually("the job has ended", || {
        let job = cluster.json(&["job", &id]);
        (job["state"] != "running" && job["state"] != "committing").then_some(job)
    });
    assert_eq!(job["state"], "succeeded", "{job}");
    assert_eq!(cluster.output("/mine"), b"word\t20000\n");
    cluster.log("jobtracker").contains("the NameNode already has this commit")
}

/// Copies the folder of a JobTracker that runs, and restores the copy after a job. The NameNode has
/// seen no start after the copy, so it cannot recognise the copy. A new job gets an ID that was
/// assigned before, and the NameNode knows a commit of that ID. Checks that the output of the new
/// job is committed nevertheless.
#[test]
fn jobs_after_a_restore_of_the_jobtracker_have_their_output() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    put(&cluster, "/in", "one two two\n");
    let folder = cluster.path(".fermata/data/jobtracker");
    let copy = cluster.path("copy");
    copy_folder(&folder, &copy);
    let mut numbers = Vec::new();
    for output in ["/before", "/after"] {
        let job = cluster.succeed(&["wordcount", "--input", "/in", "--output", output]);
        numbers.push(job["job"].clone());
        cluster.wait_clean();
        if output == "/before" {
            cluster.mrctl(&["chaos", "kill", "jobtracker"]);
            fs::remove_dir_all(&folder).unwrap();
            fs::rename(&copy, &folder).unwrap();
            cluster.mrctl(&["chaos", "restart", "jobtracker"]);
        }
    }
    assert_eq!(numbers[0], numbers[1], "the test requires two jobs with the same ID");
    assert_eq!(cluster.output("/after"), cluster.output("/before"));
    cluster.mrctl(&["fs", "stat", "/after/_SUCCESS"]);
}

/// Returns a block file of this cluster that some process has mapped into its memory, if there is
/// one.
fn mapped_block(cluster: &Cluster) -> Option<PathBuf> {
    let data = cluster.path(".fermata/data").display().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let maps = processes.filter_map(|entry| fs::read_to_string(entry.path().join("maps")).ok());
    maps.into_iter().find_map(|maps| {
        let mut paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
        paths.find(|path| path.starts_with(&data) && path.contains("blk_")).map(PathBuf::from)
    })
}

/// A task maps the blocks of its node. The rest of a block becomes unreadable while it is read.
/// (Here the file is truncated, which gives SIGBUS like a bad sector.) Checks that the attempt
/// reads another replica, and that the bad replica is found.
#[test]
fn task_reads_another_replica_when_its_mapped_block_cannot_be_read() {
    if !fermata_tests::may_inspect_daemons() {
        return;
    }
    let up = Up { nodes: 2, replication: 2, block_size: "8MiB", ..Up::default() };
    let cluster = Cluster::up(up);
    put(&cluster, "/in", &"some words to count\n".repeat((6 << 20) / 20));
    cluster.succeed(&["wordcount", "--input", "/in", "--output", "/calm"]);
    let slow = ["--conf", "pace.map=1MiB", "--conf", "speculation=false"];
    let args = [&["wordcount", "--input", "/in", "--output", "/counted"], &slow[..]].concat();
    let id = cluster.detach(&args);
    let block = eventually("the map has mapped its block", || mapped_block(&cluster));
    // Truncates the end of the block, which the task has not read yet.
    let file = fs::File::options().write(true).open(&block).unwrap();
    file.set_len(fs::metadata(&block).unwrap().len() - (64 << 10)).unwrap();
    eventually("the job succeeds", || {
        let job = cluster.json(&["job", &id]);
        assert_ne!(job["state"], "failed", "{job}");
        (job["state"] == "succeeded").then_some(())
    });
    for task in cluster.json(&["tasks", &id]).as_array().unwrap() {
        assert_eq!(task["attempts"].as_array().unwrap().len(), 1, "an attempt failed: {task}");
    }
    assert_eq!(cluster.output("/counted"), cluster.output("/calm"));
    eventually("the bad replica is found", || {
        (cluster.json(&["fs", "report"])["corrupt_found_total"] == 1).then_some(())
    });
}

/// Checks that tasks map the blocks of their node although they have another account than the
/// DataNode, also in an open cluster.
#[test]
fn task_of_an_open_cluster_maps_its_block() {
    if !fermata_tests::may_inspect_daemons() {
        return;
    }
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, open: true, ..Up::default() });
    put(&cluster, "/in", &"some words to count\n".repeat((1 << 20) / 20));
    let args = ["wordcount", "--input", "/in", "--output", "/counted", "--conf", "pace.map=256KiB"];
    let id = cluster.detach(&args);
    eventually("the map has mapped its block", || {
        let block = mapped_block(&cluster);
        let state = cluster.json(&["job", &id])["state"].clone();
        assert!(block.is_some() || state != "succeeded", "the block was read over the network");
        block
    });
}

/// Checks that, after a start of the NameNode, work that does not depend on missing nodes starts at
/// once. Also checks that the log has lines about nodes, drains and safemode, but not about each
/// replica that `fsck --verify` reads.
#[test]
fn drain_and_setrep_do_not_wait_for_dead_after_and_nodes_are_logged() {
    let settings = "[namenode]\nheartbeat = \"200ms\"\nsuspect_after = \"2s\"\ndead_after = \"10m\"\n";
    let cluster = Cluster::up(Up { nodes: 3, replication: 1, settings, ..Up::default() });
    for number in 0..4 {
        put(&cluster, &format!("/f{number}"), "some bytes\n");
    }
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    cluster.restart_namenode();
    cluster.mrctl(&["fs", "setrep", "2", "/f0", "/f1", "/f2", "/f3"]);
    cluster.mrctl(&["fs", "fsck", "/", "--wait", "5m"]);
    cluster.mrctl(&["drain", "node1"]);
    cluster.mrctl(&["fs", "fsck", "/", "--verify", "--wait", "5m"]);
    cluster.mrctl(&["drain", "node1", "--cancel"]);
    cluster.mrctl(&["chaos", "kill", "node3", "--daemon", "datanode"]);
    eventually("a suspect node is in the log", || {
        cluster.log("namenode").contains("DataNode node3 is suspect").then_some(())
    });
    let log = cluster.log("namenode");
    for line in [
        "DataNode node1 registered",
        "safemode is off",
        "drain of DataNode node1 started",
        "drain of DataNode node1 finished",
    ] {
        assert!(log.contains(line), "{line:?} is not in {log}");
    }
    assert!(!log.contains("fsck --verify"), "the log has a line for each replica: {log}");
}

/// Checks that the health check reports that the NameNode is in safemode, but also that it is up,
/// because DataNodes must reach it for safemode to end.
#[test]
fn health_reports_safemode() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    let safemode = || cluster.json(&["health", "namenode"])["safemode"].clone();
    assert_eq!(safemode(), false);
    cluster.mrctl(&["fs", "safemode", "on"]);
    eventually("the health check reports the change of safemode", || (safemode() == true).then_some(()));
    assert!(cluster.mrctl(&["health", "namenode"]).contains("in safemode"));
    cluster.mrctl(&["fs", "safemode", "off"]);
    eventually("the health check reports the change of safemode", || (safemode() == false).then_some(()));
}
