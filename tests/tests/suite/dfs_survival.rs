//! Files survive the death of DataNodes.

use fermata_tests::{Cluster, Up, eventually, random_file, sha256_of};
use std::{
    io::Write as _,
    process::{Child, Stdio},
};

const MIB: u64 = 1 << 20;

fn get_sha256(cluster: &Cluster, path: &str) -> String {
    let local = cluster.path("got");
    cluster.mrctl(&["fs", "get", "--force", path, local.to_str().unwrap()]);
    sha256_of(&local)
}

/// Starts a put of a file, and writes its first bytes to standard input.
fn begin_put(cluster: &Cluster, path: &str, first: &[u8]) -> Child {
    let mut command = cluster.command(&["fs", "put", "-", path]);
    let mut put = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("mrctl starts");
    put.stdin.as_mut().unwrap().write_all(first).expect("the put reads its input");
    put
}

#[test]
fn large_file_survives_a_dead_node_during_the_put_and_another_later() {
    let cluster = Cluster::up(Up { block_size: "16MiB", ..Up::default() });
    let source = cluster.path("source");
    random_file(&source, 256 * MIB, 1);
    let wanted = sha256_of(&source);

    let bytes = std::fs::read(&source).unwrap();
    let (first, rest) = bytes.split_at(bytes.len() / 2 + 1);
    let mut put = begin_put(&cluster, "/big", first);
    eventually("node1 holds two blocks of the put", || {
        (cluster.replicas_on("node1").len() >= 2).then_some(())
    });
    cluster.mrctl(&["chaos", "kill", "node1"]);
    put.stdin.take().unwrap().write_all(rest).expect("the put reads the rest");
    assert!(put.wait().unwrap().success(), "the put failed when a DataNode died");
    assert_eq!(get_sha256(&cluster, "/big"), wanted);
    cluster.mrctl(&["fs", "fsck", "/", "--wait", "5m"]);

    cluster.mrctl(&["chaos", "restart", "node1"]);
    cluster.mrctl(&["chaos", "kill", "node2"]);
    assert_eq!(get_sha256(&cluster, "/big"), wanted);
    cluster.mrctl(&["fs", "fsck", "/", "--wait", "5m"]);
    assert_eq!(get_sha256(&cluster, "/big"), wanted);
}

#[test]
fn drained_node_can_be_stopped_without_under_replicated_blocks() {
    let cluster = Cluster::up(Up { nodes: 4, racks: 2, ..Up::default() });
    let source = cluster.path("source");
    random_file(&source, 16 << 20, 2);
    cluster.mrctl(&["fs", "put", source.to_str().unwrap(), "/file"]);
    cluster.mrctl(&["drain", "node2", "--deadline", "60s"]);
    cluster.mrctl(&["chaos", "kill", "node2"]);
    let report = cluster.json(&["fs", "report"]);
    assert_eq!((&report["under_replicated"], &report["missing"]), (&0.into(), &0.into()), "{report}");
    assert_eq!(get_sha256(&cluster, "/file"), sha256_of(&source));
}

#[test]
fn replicas_spread_over_racks_and_follow_setrep() {
    let cluster = Cluster::up(Up { nodes: 4, racks: 2, ..Up::default() });
    let source = cluster.path("source");
    random_file(&source, 5 << 20, 3);
    cluster.mrctl(&["fs", "put", "--replication", "3", source.to_str().unwrap(), "/file"]);
    let stat = cluster.json(&["fs", "stat", "--blocks", "/file"])[0].clone();
    let blocks = stat["locations"].as_array().expect("block locations");
    assert_eq!(blocks.len(), 5);
    for block in blocks {
        let racks: std::collections::BTreeSet<&str> =
            block["nodes"].as_array().unwrap().iter().map(|node| node["rack"].as_str().unwrap()).collect();
        assert_eq!(racks.len(), 2, "{block}");
        assert_eq!(block["nodes"].as_array().unwrap().len(), 3, "{block}");
    }
    cluster.mrctl(&["fs", "setrep", "1", "--wait", "/file"]);
    eventually("two replicas of each block are deleted", || {
        let left: usize = (1..=4).map(|node| cluster.replicas_on(&format!("node{node}")).len()).sum();
        (left == 5).then_some(())
    });
    cluster.mrctl(&["fs", "setrep", "4", "--wait", "/file"]);
    assert_eq!(get_sha256(&cluster, "/file"), sha256_of(&source));
}

#[test]
fn a_killed_put_leaves_nothing_behind() {
    let settings = format!("{}lease = \"3s\"\n", fermata_tests::QUICK);
    let cluster = Cluster::up(Up { settings: &settings, ..Up::default() });
    let mut put = begin_put(&cluster, "/half", &vec![7; 20 * MIB as usize]);
    eventually("a block arrives", || (!cluster.replicas_on("node1").is_empty()).then_some(()));
    put.kill().unwrap();
    put.wait().unwrap();
    assert!(cluster.refused(1, &["fs", "stat", "/half"]).contains("/half"), "a half-written file is visible");
    eventually("the lease ends and the file is gone", || {
        (cluster.json(&["fs", "report"])["files"] == 0).then_some(())
    });
    eventually("the blocks of the file are deleted", || {
        let left: usize = (1..=3).map(|node| cluster.replicas_on(&format!("node{node}")).len()).sum();
        (left == 0).then_some(())
    });
}
