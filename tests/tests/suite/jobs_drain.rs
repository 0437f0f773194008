//! A node is drained while jobs run, and then stopped. Checks that the output does not change and
//! that no work is lost.

use super::jobs_pause::{await_success, lines, running, stable_counters};
use fermata_tests::{Cluster, QUICK, Up, eventually};
use serde_json::Value;
use std::{fs, process::Stdio};

const SETTINGS: &str = "[jobtracker]\nheartbeat = \"200ms\"\n";
/// On a busy machine, speculative attempts would be killed.
const NO_SPECULATION: [&str; 2] = ["--conf", "speculation=false"];

fn cluster() -> Cluster {
    let settings = [QUICK, SETTINGS].concat();
    let cluster = Cluster::up(Up { nodes: 4, block_size: "256KiB", settings: &settings, ..Up::default() });
    fs::write(cluster.path("text"), lines(30_000)).unwrap();
    cluster.mrctl(&["fs", "put", "text", "/text"]);
    cluster
}

fn tracker(cluster: &Cluster, node: &str) -> Value {
    let nodes = cluster.json(&["nodes"]);
    let found = nodes.as_array().unwrap().iter().find(|found| found["node"] == node);
    found.unwrap_or_else(|| panic!("no {node}: {nodes}"))["tracker"].clone()
}

/// Drains a node and kills it as soon as it is drained. Returns the cost of the drain.
fn drain_and_stop(cluster: &Cluster, node: &str) -> Value {
    let drained = cluster.json(&["drain", node, "--deadline", "60s"]);
    assert_eq!((&drained["state"], &drained["tracker"]["state"]), (&"drained".into(), &"drained".into()));
    let left = ["maps_running", "reduces_running", "outputs", "checkpoints"];
    assert_eq!(left.map(|name| drained["tracker"][name].as_u64().unwrap()), [0; 4], "{drained}");
    cluster.mrctl(&["chaos", "kill", node]);
    drained["tracker"]["cost"].clone()
}

/// Checks that a job has the same output and counters as an undisturbed job, and that no work was
/// repeated.
fn check_nothing_lost(cluster: &Cluster, (job, output): (&str, &str), (plain, plain_output): (&Value, &str)) {
    let ended = await_success(cluster, job);
    assert_eq!(stable_counters(&ended), stable_counters(plain));
    assert!(
        cluster.output(output) == cluster.output(plain_output),
        "the output differs from an undisturbed run"
    );
    let history = cluster.mrctl(&["history", job]);
    for fact in ["map-output-lost", "checkpoint-lost", "attempt-killed", "attempt-failed"] {
        assert!(!history.contains(fact), "{fact}: {history}");
    }
    let cost = &ended["preemption"];
    assert_eq!(["kills", "bytes_lost", "ms_lost"].map(|name| cost[name].as_u64().unwrap()), [0; 3], "{cost}");
}

#[test]
fn node_is_drained_and_removed_during_a_sort() {
    let cluster = cluster();
    cluster.mrctl(&["submit", "teragen", "--output", "/gen", "--conf", "rows=30000", "--conf", "maps=4"]);
    let sort = ["terasort", "--input", "/gen", "--reduces", "3"];
    let plain = cluster.succeed(&[&sort[..], &["--output", "/plain"]].concat());
    let slow = ["--conf", "pace.map=50KiB", "--conf", "pace.reduce=300KiB", "--conf", "slow.start=0.2"];
    let job = cluster.detach(&[&sort[..], &slow, &NO_SPECULATION, &["--output", "/drained"]].concat());
    // Chooses a node that runs a map and has the output of another.
    let node = eventually("a node with a map done and another running", || {
        let tasks = cluster.json(&["tasks", &job]);
        let attempts = tasks.as_array().unwrap().iter().flat_map(|task| task["attempts"].as_array().unwrap());
        let attempts: Vec<&Value> =
            attempts.filter(|attempt| attempt["attempt"].as_str().unwrap().contains(".m")).collect();
        let on = |state: &str, node: &str| {
            attempts.iter().any(|attempt| attempt["state"] == state && attempt["tracker"] == node)
        };
        ["node1", "node2", "node3", "node4"]
            .into_iter()
            .find(|node| on("succeeded", node) && on("running", node))
    });
    let cost = drain_and_stop(&cluster, node);
    assert!(cost["outputs"].as_u64().unwrap() > 0 && cost["splits"].as_u64().unwrap() > 0, "{cost}");
    assert_eq!(["kills", "ms_lost", "redone"].map(|name| cost[name].as_u64().unwrap()), [0; 3], "{cost}");
    check_nothing_lost(&cluster, (&job, "/drained"), (&plain, "/plain"));
}

#[test]
fn node_is_drained_and_removed_while_a_reduce_runs() {
    let cluster = cluster();
    // Every reduce slot is in use, so a tracker that cannot run the paused reduce yet must store
    // its checkpoint.
    let text = ["wordcount", "--reduces", "4", "--input", "/text"];
    let plain = cluster.succeed(&[&text[..], &["--output", "/plain"]].concat());
    let slow = ["--conf", "pace.reduce=15KiB", "--output", "/drained"];
    let job = cluster.detach(&[&text[..], &NO_SPECULATION, &slow].concat());
    running(&cluster, &format!("{job}.r0"), "reduce");
    let tasks = cluster.json(&["tasks", &job]);
    let reduce = tasks.as_array().unwrap().iter().find(|task| task["task"] == format!("{job}.r0").as_str());
    let node = reduce.unwrap()["attempts"][0]["tracker"].as_str().unwrap().to_owned();
    let cost = drain_and_stop(&cluster, &node);
    let done = ["pauses", "kills", "ms_lost", "redone"].map(|name| cost[name].as_u64().unwrap());
    assert_eq!(done, [1, 0, 0, 0], "{cost}");
    check_nothing_lost(&cluster, (&job, "/drained"), (&plain, "/plain"));
    let ended = cluster.json(&["job", &job]);
    assert_eq!((&ended["preemption"]["pauses"], &ended["preemption"]["migrations"]), (&1.into(), &1.into()));
}

#[test]
fn cancelled_drain_stays_cancelled_and_drain_kills_at_its_deadline() {
    let cluster = cluster();
    let sleep =
        ["streaming", "--mapper", "sleep 60", "--reduces", "0", "--input", "/text", "--output", "/slow"];
    let job = cluster.detach(&sleep);
    running(&cluster, &format!("{job}.m0"), "map");
    let tasks = cluster.json(&["tasks", &job]);
    let node = tasks[0]["attempts"][0]["tracker"].as_str().unwrap().to_owned();
    let mut drain = cluster.command(&["drain", &node, "--deadline", "90s"]);
    let drain = drain.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the tracker is draining", || (tracker(&cluster, &node)["state"] == "draining").then_some(()));
    cluster.mrctl(&["drain", &node, "--cancel"]);
    let watched = drain.wait_with_output().unwrap();
    let (printed, text) =
        (String::from_utf8_lossy(&watched.stdout), String::from_utf8_lossy(&watched.stderr));
    assert_eq!(watched.status.code(), Some(1), "{printed}{text}");
    assert!(printed.contains("runs ") && text.contains("is in use again"), "{printed}{text}");
    assert_eq!(tracker(&cluster, &node)["state"], "live");
    let ran = cluster.try_mrctl(&["drain", &node, "--deadline", "2s"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert!(
        ran.stdout.contains("killed after") && ran.stdout.contains("it can be stopped"),
        "{}",
        ran.stdout
    );
    assert_eq!(tracker(&cluster, &node)["state"], "drained");
    cluster.mrctl(&["kill", &job]);
    cluster.mrctl(&["drain", &node, "--cancel"]);
    cluster.wait_clean();
}
