//! Tests of operator commands and settings: drains, stopped nodes, waiting for replicas, lost
//! blocks.

use fermata_tests::{Cluster, Up, eventually, random_file};
use std::{
    fs,
    io::Read,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

fn pid_of(cluster: &Cluster, node: &str, kind: &str) -> String {
    let text = fs::read_to_string(cluster.path(".fermata/cluster.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&text).unwrap();
    let all = state["daemons"].as_array().unwrap();
    let found = all.iter().find(|daemon| daemon["name"] == node && daemon["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} on {node}: {text}"))["pid"].to_string()
}

#[test]
fn refused_drain_names_its_cause_and_stopped_node_is_dead_at_once() {
    // Within the time of the test, a node is dead only if it says that it stops.
    let settings = "[namenode]\ndead_after = \"1h\"\n";
    let cluster = Cluster::up(Up { settings, ..Up::default() });
    let source = cluster.path("source");
    random_file(&source, 3 << 20, 9);
    cluster.mrctl(&["fs", "put", source.to_str().unwrap(), "/file"]);
    cluster.mrctl(&["drain", "node1", "--deadline", "60s"]);
    let line = cluster.refused(1, &["drain", "node2", "--deadline", "60s"]);
    for word in ["too few nodes would remain: 1 for", "/file", "2 replicas", "setrep", "--cancel"] {
        assert!(line.contains(word), "{word}: {line}");
    }
    let text = cluster.mrctl(&["nodes", "--json"]);
    assert_eq!(text.matches("\"node\":").count(), 3, "each node must be listed once: {text}");
    let nodes = cluster.json(&["nodes"]);
    let states: Vec<&str> =
        nodes.as_array().unwrap().iter().filter_map(|node| node["state"].as_str()).collect();
    assert_eq!(states, ["drained", "live", "live"], "a refused drain changes nothing");
    cluster.mrctl(&["drain", "node1", "--cancel"]);
    cluster.mrctl(&["fs", "fsck", "--wait", "5m"]);

    let pid = pid_of(&cluster, "node3", "datanode");
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    eventually("a stopped node is dead before its heartbeat timeout", || {
        let nodes = cluster.json(&["nodes"]);
        let node3 = nodes.as_array().unwrap().iter().find(|node| node["node"] == "node3").cloned().unwrap();
        (node3["state"] == "dead").then_some(())
    });
    cluster.mrctl(&["fs", "fsck", "--wait", "5m"]);
}

#[test]
fn fsck_waits_until_a_killed_datanode_is_live_or_dead() {
    let settings = "[namenode]\nheartbeat = \"200ms\"\nsuspect_after = \"3s\"\ndead_after = \"30s\"\n";
    let cluster = Cluster::up(Up { replication: 3, settings, ..Up::default() });
    random_file(&cluster.path("source"), 3 << 20, 9);
    cluster.mrctl(&["fs", "put", "source", "/file"]);
    cluster.mrctl(&["chaos", "kill", "node2", "--daemon", "datanode"]);
    let fsck = |wait: &str| {
        let ran = cluster.try_mrctl(&["fs", "fsck", "/", "--wait", wait, "--json"]);
        (serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap(), ran)
    };
    // The NameNode does not suspect the node yet.
    let (result, ran) = fsck("1s");
    let names = result["suspect_nodes"].as_array().unwrap();
    assert!(ran.code == 1 && names.contains(&"node2".into()), "{result}");
    let (result, ran) = fsck("5s");
    assert_eq!(result["suspect_nodes"], serde_json::json!(["node2"]), "{result}");
    assert!(ran.code == 1 && result["status"] == "healthy", "{result}");
    assert!(ran.stderr.contains("node2 (3 replicas) has sent no heartbeat for"), "{}", ran.stderr);
    let shown = cluster.mrctl(&["fs", "fsck", "/"]);
    assert!(shown.contains("\nsuspect: node2 (3 replicas) has sent no heartbeat for "), "{shown}");
    cluster.mrctl(&["chaos", "restart", "node2", "--daemon", "datanode"]);
    let result = cluster.json(&["fs", "fsck", "/", "--wait", "5m"]);
    assert_eq!(result["suspect_nodes"], serde_json::json!([]), "{result}");
}

/// Reads `/other`, which lacks its first and its last block, and deletes it meanwhile. Checks that
/// the missing bytes are reported although the read fails.
fn check_missing_bytes_are_reported_if_the_read_fails(cluster: &Cluster) {
    let mut cat = cluster.command(&["fs", "cat", "--skip-lost", "/other"]);
    let mut cat = cat.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The command cannot read far ahead of this reader.
    let mut first = vec![1; (1 << 20) + 1];
    cat.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert!(first[..1 << 20].iter().all(|byte| *byte == 0));
    cluster.mrctl(&["fs", "rm", "/other"]);
    let ended = cat.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&ended.stderr);
    let (hole, end) = ("1048576 bytes from byte 0 on could not be read", "no such file");
    assert!(message.find(hole).is_some_and(|at| message[at..].contains(end)), "{message}");
    assert_eq!(ended.status.code(), Some(1));
}

#[test]
fn lost_blocks_are_reported_and_settings_are_used() {
    let settings = "[client]\ndeadline = \"4s\"\n";
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings, ..Up::default() });
    let source = cluster.path("source");
    random_file(&source, 3 << 20, 10);
    cluster.mrctl(&["fs", "put", source.to_str().unwrap(), "/file"]);
    let wanted = fs::read(&source).unwrap();
    let other = cluster.path("other");
    random_file(&other, 3 << 20, 11);
    cluster.mrctl(&["fs", "put", other.to_str().unwrap(), "/other"]);
    let other = fs::read(&other).unwrap();

    // Deletes the only replica of the second block of `/file`, and those of the first and the last
    // block of `/other`.
    cluster.mrctl(&["chaos", "kill", "node1", "--daemon", "datanode"]);
    let blocks = cluster.replicas_on("node1");
    assert_eq!(blocks.len(), 6);
    for lost in [&wanted[1 << 20..2 << 20], &other[..1 << 20], &other[2 << 20..]] {
        let block = blocks.iter().find(|block| fs::read(block).is_ok_and(|bytes| bytes == lost));
        fs::remove_file(block.unwrap()).unwrap();
    }
    cluster.mrctl(&["chaos", "restart", "node1", "--daemon", "datanode"]);
    let got = cluster.path("got");
    let ran = cluster.try_mrctl(&["fs", "get", "/file", got.to_str().unwrap()]);
    assert_eq!(ran.code, 1);
    for word in ["waiting for a good replica", "at byte 1048576", "no good replica", "--skip-lost"] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    assert!(!got.exists(), "a file with missing bytes was written");
    let ran = cluster.try_mrctl(&["fs", "get", "--quiet", "--skip-lost", "/file", got.to_str().unwrap()]);
    for word in ["waiting for a good replica", "1048576 bytes from byte 1048576 on could not be read"] {
        assert!(ran.code == 1 && ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    let mut holed = wanted.clone();
    holed[1 << 20..2 << 20].fill(0);
    assert!(fs::read(&got).unwrap() == holed);
    check_missing_bytes_are_reported_if_the_read_fails(&cluster);
    let ran = cluster.try_mrctl(&["fs", "fsck"]);
    assert!(ran.code == 1 && ran.stdout.contains("--skip-lost"), "{}", ran.stdout);
    cluster.mrctl(&["fs", "rm", "/file"]);

    // Errors that waiting cannot resolve are reported at once. For other errors the command reports
    // that it waits.
    cluster.mrctl(&["fs", "safemode", "on"]);
    let started = Instant::now();
    let line = cluster.refused(1, &["fs", "mkdir", "/x"]);
    assert!(
        line.contains("turned on by an operator") && started.elapsed() < Duration::from_secs(10),
        "{line}"
    );
    cluster.mrctl(&["fs", "safemode", "off"]);
    cluster.mrctl(&["chaos", "stop", "namenode"]);
    let ran = cluster.try_mrctl(&["fs", "ls", "/"]);
    cluster.mrctl(&["chaos", "cont", "namenode"]);
    assert!(ran.code == 1 && ran.stderr.contains("waiting for the NameNode at"), "{}", ran.stderr);
    assert!(ran.stderr.contains("timeout in") && ran.stderr.contains("logs/namenode.log"), "{}", ran.stderr);

    // Checks that settings in a file next to the cluster folder are used, and that the cluster is
    // found although the file contains no address.
    cluster.mrctl(&["down"]);
    fs::write(cluster.path("fermata.toml"), "[namenode]\nblock_size = \"2MiB\"\n").unwrap();
    cluster.mrctl(&["up", "--detach"]);
    cluster.mrctl(&["fs", "put", source.to_str().unwrap(), "/again"]);
    assert_eq!(cluster.json(&["fs", "stat", "/again"])[0]["block_size"], 2 << 20);
}
