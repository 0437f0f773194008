//! Selecting, configuring, explaining and comparing policies on a real cluster.

use fermata_tests::{Cluster, Up, binaries, eventually};
use serde_json::Value;
use std::{fs, process::Command};

/// Settings: Fair, with fifo as its shadow, a second policy whose decisions have no effect. A node
/// has one map slot, and jobs do not wait for locality.
const FAIR: &str = "[jobtracker]\nheartbeat = \"200ms\"\n[tasktracker]\nmap_slots = 1\n\
    [scheduler]\nname = \"fair\"\nshadow = \"fifo\"\n\
    [scheduler.fair]\nnode_wait = \"0s\"\nrack_wait = \"0s\"\nfair_share_timeout = \"2s\"\n\
    [scheduler.fair.pools.ann]\nweight = 1.5\n";

fn submit_sleeping_job(cluster: &Cluster, user: &str, output: &str) -> String {
    let job = ["streaming", "--mapper", "sleep 600", "--input", "/in", "--output", output, "--user", user];
    cluster.detach(&job)
}

/// Starts two nodes. The job of ann has both slots, and the job of bob waits.
fn two_users(settings: &str) -> (Cluster, String, String) {
    let cluster = Cluster::up(Up { nodes: 2, block_size: "64KiB", settings, ..Up::default() });
    fs::write(cluster.path("in"), "some words\n".repeat(30_000)).unwrap();
    cluster.mrctl(&["fs", "put", "in", "/in"]);
    cluster.mrctl(&["fs", "mkdir", "/out"]);
    cluster.mrctl(&["fs", "chmod", "777", "/out"]);
    let ann = submit_sleeping_job(&cluster, "ann", "/out/ann");
    eventually("ann's job has both slots", || {
        (cluster.json(&["job", &ann])["maps"]["running"] == 2).then_some(())
    });
    let bob = submit_sleeping_job(&cluster, "bob", "/out/bob");
    (cluster, ann, bob)
}

fn waiting_rules(why: &Value) -> Vec<&str> {
    why["waiting_for"]
        .as_array()
        .expect("reasons")
        .iter()
        .filter_map(|reason| reason["rule"].as_str())
        .collect()
}

#[test]
fn why_explains_waiting_and_preemptions() {
    let patient = FAIR.replace("\"2s\"", "\"600s\"");
    let (cluster, ann, bob) = two_users(&patient);
    let why = cluster.json(&["why", &bob]);
    assert_eq!(waiting_rules(&why), ["no-free-slot", "pool-share-of-map-slots"], "{why}");
    let text = cluster.mrctl(&["why", &bob]);
    let maps = why["waiting_for"][0]["numbers"]["maps_waiting"].as_f64().expect("a number");
    assert!(text.starts_with(&format!("{bob} is waiting (scheduler: fair)\n")), "{text}");
    assert!(
        text.contains(&format!("  {maps} maps wait: 2 map slots are all taken, 0 by this job\n")),
        "{text}"
    );
    assert!(
        text.contains("pool bob holds no map slot of its fair share of 0.8 (weight 1, minimum 0)"),
        "{text}"
    );
    // The lists must show the same state.
    let jobs = cluster.mrctl(&["jobs"]);
    let row = jobs.lines().find(|line| line.starts_with(&format!("{bob} "))).expect("a row of the job");
    assert!(row.contains("waiting") && !row.contains("running"), "{jobs}");
    let text = cluster.mrctl(&["why", &format!("{ann}.m0")]);
    assert!(text.contains("it is running on node"), "{text}");
    assert!(text.contains("m0.0 started on node"), "{text}");
    assert!(text.contains("pool ann held no slot of its fair share of 2"), "{text}");
    // The JobTracker is killed. Policy, parameters and reasons must be the same after a restart.
    cluster.mrctl(&["chaos", "kill", "jobtracker"]);
    cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    eventually("the trackers are back", || {
        let why = cluster.json(&["why", &bob]);
        (waiting_rules(&why) == ["no-free-slot", "pool-share-of-map-slots"]).then_some(())
    });
    let after = cluster.mrctl(&["why", &bob]);
    assert!(after.contains("pool bob holds no map slot of its fair share of 0.8"), "{after}");
    let after = cluster.mrctl(&["why", &format!("{ann}.m0")]);
    assert!(after.contains("pool ann held no slot of its fair share of 2"), "{after}");
    let all = cluster.json(&["schedulers"]);
    assert_eq!((&all["scheduler"], &all["shadow"]), (&Value::from("fair"), &Value::from("fifo")));
    let fair = all["policies"].as_array().unwrap().iter().find(|policy| policy["name"] == "fair").unwrap();
    let value = |key: &str| {
        let mut parameters = fair["parameters"].as_array().unwrap().iter();
        parameters.find(|parameter| parameter["key"] == key).map(|parameter| parameter["value"].clone())
    };
    assert_eq!(value("pools.ann.weight"), Some("1.5".into()), "{fair}");
    assert_eq!((value("node_wait"), value("min_share_timeout")), (Some("0s".into()), Some("15s".into())));
    // Slots of a silent node and the attempts on it must not be counted.
    cluster.mrctl(&["chaos", "stop", "node1", "--daemon", "tasktracker"]);
    let numbers = eventually("one slot is left", || {
        let numbers = cluster.json(&["why", &ann])["waiting_for"][0]["numbers"].clone();
        (numbers["map_slots"] == 1.0).then_some(numbers)
    });
    assert_eq!((&numbers["running"], &numbers["excluded"]), (&1.0.into(), &1.0.into()), "{numbers}");
    cluster.mrctl(&["chaos", "cont", "node1", "--daemon", "tasktracker"]);
    let refused = cluster.refused(1, &["why", &format!("{ann}.m9999")]);
    assert!(refused.contains("there is no task"), "{refused}");
    for job in [&ann, &bob] {
        cluster.mrctl(&["kill", job]);
    }
    let over = cluster.mrctl(&["why", &bob]);
    assert!(over.starts_with(&format!("{bob} is killed\n")) && over.contains("the job has ended"), "{over}");
}

#[test]
fn preemptions_are_explained_and_the_shadow_is_compared() {
    // Each job has a share of one slot. A mapper that sleeps reads no record, so it cannot be
    // split, only killed.
    let (cluster, ann, bob) = two_users(
        &FAIR
            .replace("weight = 1.5", "weight = 1")
            .replace("[scheduler.fair]\n", "[scheduler.fair]\npreempt = \"kill\"\n"),
    );
    eventually("bob has a slot", || (cluster.json(&["job", &bob])["maps"]["running"] == 1).then_some(()));
    let text = cluster.mrctl(&["why", &ann]);
    let expected =
        format!("the slot goes to the pool of {bob} that held no slot, less than its fair share of 1");
    assert!(text.contains(&expected), "{text}");
    let shadow = cluster.json(&["shadow"]);
    assert_eq!((&shadow["scheduler"], &shadow["shadow"]), (&Value::from("fair"), &Value::from("fifo")));
    assert!(shadow["same"].as_u64() >= Some(2), "{shadow}");
    assert!(shadow["other"].as_u64() >= Some(1), "fifo would have given the slot to {ann}: {shadow}");
    assert_eq!(
        (shadow["policy_preempted"].as_u64(), shadow["shadow_preempted"].as_u64()),
        (Some(1), Some(0)),
        "{shadow}"
    );
    let text = cluster.mrctl(&["shadow"]);
    assert!(text.starts_with("fifo in the shadow of fair\n"), "{text}");
    assert!(text.contains(&format!("{ann} rather than {bob}")), "{text}");
    let history = cluster.mrctl(&["history", &ann]);
    assert!(history.contains("pool-below-share"), "the history has no reasons: {history}");
    for job in [&ann, &bob] {
        cluster.mrctl(&["kill", job]);
    }
    let figures = eventually("both jobs have ended", || {
        let figures = cluster.json(&["history", "--figures"]);
        let all = figures["groups"].as_array().and_then(|groups| groups.last()).cloned()?;
        (all["jobs"] == 2).then_some((figures, all))
    });
    let (figures, all) = figures;
    assert_eq!(all["preempted"], 1, "ann's slot: {figures}");
    assert_eq!(
        (&all["succeeded"], &all["waiting_s"]),
        (&0.into(), &Value::Null),
        "both were killed: {figures}"
    );
    assert!(all.get("reduce_wait_s").is_some(), "keys have no spaces: {figures}");
    assert!(figures["deciding"]["rounds"].as_u64() > Some(0), "{figures}");
    assert!(figures["fairness"].as_f64() > Some(0.0), "ann had more than bob for a while: {figures}");
    let text = cluster.mrctl(&["history", "--figures"]);
    assert!(text.contains("worst slowdown") && text.contains("decision rounds"), "{text}");
}

#[test]
fn unknown_policy_is_rejected_before_any_change() {
    let folder = tempfile::tempdir().unwrap();
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new(binaries().join(program));
        let ran =
            command.args(args).current_dir(folder.path()).env_remove("FERMATA_CONFIG").output().unwrap();
        (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    let (code, message) = run("jobtracker", &["--scheduler", "fare", "--dir", "data"]);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("there is no scheduler \"fare\": choose one of fifo, fair"), "{message}");
    let (code, message) = run("jobtracker", &["--shadow", "chronos(fare)", "--dir", "data"]);
    assert!(code == Some(2) && message.contains("choose one of"), "{message}");
    let (code, message) = run("mrctl", &["up", "--scheduler", "fare", "--detach", "--dir", "up"]);
    assert!(code == Some(2) && message.contains("there is no scheduler \"fare\""), "{message}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something was created");
    let slip = "[cluster]\ninsecure = false\n\n[scheduler]\nname = \"fair\"\n\n[scheduler.fair]\nnod_wait = \"5s\"\n";
    fs::write(folder.path().join("slip.toml"), slip).unwrap();
    let (code, message) = run("jobtracker", &["--config", "slip.toml", "--dir", "data"]);
    assert_eq!(code, Some(2), "{message}");
    assert!(
        message.contains("slip.toml:8: there is no scheduler parameter fair.nod_wait; parameters of fair: "),
        "{message}"
    );
    let (code, message) = run("mrctl", &["up", "--config", "slip.toml", "--detach", "--dir", "up"]);
    assert!(code == Some(2) && message.contains("slip.toml:8: there is no scheduler parameter"), "{message}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "something was created");
    let (code, _) = run("jobtracker", &["--config", "slip.toml", "--scheduler", "fifo", "--print-config"]);
    assert_eq!(code, Some(2), "parameters of a policy that is not in use were not checked");
}

#[test]
fn policies_are_described_and_printed_without_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new(binaries().join(program));
        for key in ["FERMATA_NAMENODE", "FERMATA_JOBTRACKER", "FERMATA_CONFIG"] {
            command.env_remove(key);
        }
        let ran = command.args(args).current_dir(folder.path()).output().unwrap();
        assert!(ran.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    let text = run("mrctl", &["schedulers"]);
    assert!(
        text.contains("these are the defaults") && text.contains("\nchronos: wraps any policy:"),
        "{text}"
    );
    assert!(text.contains("    node_wait = 3s\n"), "{text}");
    fs::write(folder.path().join("own.toml"), FAIR).unwrap();
    let args = ["--config", "own.toml", "--scheduler", "chronos(fair)", "--print-config"];
    let printed = run("jobtracker", &args);
    assert!(printed.contains("[scheduler]\nname = \"chronos(fair)\"\nshadow = \"fifo\""), "{printed}");
    assert!(printed.contains("[scheduler.fair.pools.ann]\nweight = 1.5"), "{printed}");
}
