//! Daemons die while a job runs; its output is the same, byte for byte, as without.

use fermata_tests::{Cluster, QUICK, Up, eventually};
use std::{process::Stdio, time::Duration};

const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster with 20 MB of records, and the checksums of their undisturbed sort, part by part. Maps are paced so
/// that there is time to kill something.
fn cluster() -> (Cluster, Vec<String>) {
    let settings =
        format!("{QUICK}[jobtracker]\nheartbeat = \"200ms\"\nsuspect_after = \"1s\"\nlost_after = \"2s\"\n");
    let cluster = Cluster::up(Up { nodes: 4, block_size: "1MiB", settings: &settings, ..Up::default() });
    cluster.mrctl(&["submit", "teragen", "--output", "/gen", "--conf", "rows=200000", "--conf", "maps=4"]);
    sort(&cluster, "/calm", &[]);
    let sums = sums(&cluster, "/calm");
    assert_eq!(sums.len(), 4);
    (cluster, sums)
}

fn sort(cluster: &Cluster, output: &str, extra: &[&str]) -> String {
    let args = ["submit", "terasort", "--input", "/gen", "--output", output, "--reduces", "4"];
    cluster.mrctl(&[&args[..], extra].concat())
}

fn sums(cluster: &Cluster, folder: &str) -> Vec<String> {
    let parts = cluster.json(&["fs", "ls", &format!("{folder}/part-*")]);
    let paths = parts.as_array().unwrap().iter().map(|part| part["path"].as_str().unwrap().to_owned());
    paths
        .map(|path| {
            let local = cluster.path("part");
            cluster.mrctl(&["fs", "get", "--force", &path, local.to_str().unwrap()]);
            fermata_tests::sha256_of(&local)
        })
        .collect()
}

/// Starts a slow sort, waits until some of its maps are done, does `harm`, and compares the result.
fn disturbed(harm: impl Fn(&Cluster)) {
    let (cluster, calm) = cluster();
    let args = [
        "submit",
        "terasort",
        "--input",
        "/gen",
        "--output",
        "/disturbed",
        "--reduces",
        "4",
        "--conf",
        "pace.map=500KiB",
        "--json",
    ];
    let job = cluster.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("some maps are done", PATIENCE, || {
        let jobs = cluster.json(&["jobs", "--running"]);
        let done = jobs.as_array()?.first()?["maps"]["done"].as_u64()?;
        (done >= 3).then_some(())
    });
    harm(&cluster);
    let ended = job.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{text}{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(sums(&cluster, "/disturbed"), calm, "the output differs from an undisturbed run");
    // Whoever died comes back and finds what it has of a job that is over.
    for node in ["node1", "node2", "node3", "node4"] {
        if cluster.try_mrctl(&["chaos", "cont", node, "--daemon", "tasktracker"]).code != 0 {
            cluster.mrctl(&["chaos", "restart", node]);
        }
    }
    eventually("all trackers are back", PATIENCE, || {
        let nodes = cluster.json(&["nodes"]);
        nodes.as_array().unwrap().iter().all(|node| node["tracker"]["state"] == "live").then_some(())
    });
    cluster.wait_clean();
}

#[test]
fn a_tracker_is_killed() {
    disturbed(|cluster| {
        cluster.mrctl(&["chaos", "kill", "node2", "--daemon", "tasktracker"]);
    });
}

#[test]
fn a_whole_node_is_killed() {
    disturbed(|cluster| {
        cluster.mrctl(&["chaos", "kill", "node3"]);
    });
}

#[test]
fn the_jobtracker_is_killed_and_comes_back() {
    disturbed(|cluster| {
        cluster.mrctl(&["chaos", "kill", "jobtracker"]);
        cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    });
}

#[test]
fn the_namenode_is_killed_and_comes_back() {
    disturbed(|cluster| {
        cluster.mrctl(&["chaos", "kill", "namenode"]);
        cluster.mrctl(&["chaos", "restart", "namenode"]);
    });
}

#[test]
fn a_tracker_is_frozen_past_its_expiry_and_goes_on() {
    disturbed(|cluster| {
        cluster.mrctl(&["chaos", "stop", "node4", "--daemon", "tasktracker"]);
        eventually("it is given up", PATIENCE, || {
            let nodes = cluster.json(&["nodes"]);
            let lost =
                |node: &serde_json::Value| node["node"] == "node4" && node["tracker"]["state"] == "lost";
            nodes.as_array().unwrap().iter().any(lost).then_some(())
        });
        cluster.mrctl(&["chaos", "cont", "node4", "--daemon", "tasktracker"]);
    });
}
