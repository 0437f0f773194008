//! The fault matrix on machines: one master and five nodes on two racks with certificates. Each row
//! is a scenario file, executed by `mrctl chaos run` during a sort. Checks that the fault is
//! detected, that the cluster recovers, and that the output of the sort does not change.
//! Measurements are printed; docs/operate/fault-matrix.md contains the table. Skipped if namespaces
//! cannot be created.

use fermata_tests::{Machines, eventually};
use serde_json::Value;
use std::fs;

/// Maximum time until a fault is detected. On an idle machine it takes only a few seconds, but
/// other tests may run at the same time.
const DETECTED_WITHIN_S: f64 = 15.0;
/// Maximum time until the cluster has recovered.
const RECOVERED_WITHIN_S: f64 = 60.0;

/// A row of the fault matrix: the name of the fault, its steps, and whether a master must report
/// it.
struct Row {
    name: &'static str,
    steps: &'static str,
    detected: bool,
}

/// Beginning of the scenario of every row: its fault starts when a tenth of the maps is done.
const CONDITION: &str = "[[step]]\nwhen = \"job 1 maps reach 10%\"\n";

const SHORT_MATRIX: [Row; 3] = [
    Row {
        name: "a node is frozen past its expiry, and continues",
        steps: "do = \"stop\"\nnode = \"any running job 1\"\nfor = \"6s\"\n",
        detected: true,
    },
    Row {
        name: "a node and the master do not reach each other for 6 s",
        steps: "do = \"partition\"\nnode = \"any running job 1\"\nfrom = \"master\"\nfor = \"6s\"\n",
        detected: true,
    },
    Row {
        name: "the master receives nothing from a node for 6 s",
        steps: "do = \"partition\"\nnode = \"node4\"\nfrom = \"master\"\none_way = true\nfor = \"6s\"\n",
        detected: true,
    },
];

const REMAINING_MATRIX: [Row; 10] = [
    Row {
        name: "a tasktracker is killed, and started 4 s later",
        steps: "do = \"kill\"\nnode = \"any running job 1\"\ndaemon = \"tasktracker\"\nfor = \"4s\"\n",
        detected: true,
    },
    Row {
        name: "the jobtracker is killed, and started 2 s later",
        steps: "do = \"kill\"\nnode = \"jobtracker\"\nfor = \"2s\"\n",
        detected: true,
    },
    Row {
        name: "a datanode is killed, and started 5 s later",
        steps: "do = \"kill\"\nnode = \"node2\"\ndaemon = \"datanode\"\nfor = \"5s\"\n",
        detected: true,
    },
    Row {
        name: "a machine dies, and comes back 8 s later",
        steps: "do = \"kill\"\nnode = \"any running job 1\"\nfor = \"8s\"\n",
        detected: true,
    },
    Row {
        name: "the namenode is killed, and started 2 s later",
        steps: "do = \"kill\"\nnode = \"namenode\"\nfor = \"2s\"\n",
        detected: true,
    },
    Row {
        name: "a node receives nothing from the master for 6 s",
        steps: "do = \"partition\"\nnode = \"master\"\nfrom = \"node3\"\none_way = true\nfor = \"6s\"\n",
        detected: true,
    },
    Row {
        name: "two nodes do not reach each other for 6 s",
        steps: "do = \"partition\"\nnode = \"node1\"\nfrom = \"node5\"\nfor = \"6s\"\n",
        detected: false,
    },
    Row { name: "a byte of a replica flips", steps: "do = \"corrupt\"\nnode = \"node3\"\n", detected: true },
    Row {
        name: "a replica is truncated",
        steps: "do = \"corrupt\"\nnode = \"node4\"\ntruncate = true\n",
        detected: true,
    },
    Row {
        name: "a node runs for a fifth of the time, for 5 s",
        steps: "do = \"slow\"\nnode = \"any running job 1\"\nfor = \"5s\"\n",
        detected: false,
    },
];

const SORT: [&str; 8] =
    ["submit", "terasort", "--input", "/lab/gen", "--reduces", "4", "--conf", "pace.map=400KiB"];

/// Starts six machines with 10 MB of records. Also returns the checksums of their sort without
/// faults.
fn machines_with_records(name: &'static str, subnet: u8) -> Option<(Machines, Vec<String>)> {
    let machines = Machines::prepare(name, subnet, &["r1", "r1", "r1", "r2", "r2"], 5)?;
    machines.set("namenode", "suspect_after = \"1s\"\ndead_after = \"3s\"");
    machines.set("jobtracker", "suspect_after = \"1s\"\nlost_after = \"3s\"");
    machines.set("datanode", "scrub_period = \"2s\"");
    machines.up();
    machines.mrctl(&["fs", "mkdir", "/lab"]);
    machines.mrctl(&["fs", "chown", "admin", "/lab"]);
    let generate = ["submit", "teragen", "--output", "/lab/gen", "--conf", "rows=100000", "--conf", "maps=6"];
    machines.mrctl(&generate);
    machines.mrctl(&[&SORT[..6], &["--output", "/lab/calm"]].concat());
    let calm = machines.sums("/lab/calm");
    Some((machines, calm))
}

/// Returns what ended jobs have left behind. Empty if nothing is left.
fn leftovers(machines: &Machines) -> Vec<String> {
    let mut left = Vec::new();
    for node in machines.json(&["nodes"]).as_array().unwrap() {
        let tracker = &node["tracker"];
        if tracker["maps_running"] != 0 || tracker["reduces_running"] != 0 {
            left.push(format!("slots of {}: {tracker}", node["node"]));
        }
        let jobs = machines.path(node["node"].as_str().unwrap()).join("data/tasktracker/jobs");
        let files = fs::read_dir(jobs).into_iter().flatten().flatten();
        left.extend(files.map(|entry| entry.path().display().to_string()));
    }
    for entry in machines.json(&["fs", "ls", "-R", "/"]).as_array().unwrap() {
        let path = entry["path"].as_str().unwrap();
        if path.contains("/_temporary") || path.starts_with("/tmp/fermata/staging/") {
            left.push(path.to_owned());
        }
    }
    left
}

/// Executes a row during a sort, and checks the results.
fn run_row(machines: &Machines, calm: &[String], number: usize, row: &Row) {
    let Row { name, steps, detected } = row;
    let output = format!("/lab/row-{number}");
    fs::write(machines.path("row.toml"), format!("{CONDITION}{steps}")).unwrap();
    let job = machines.json(&[&SORT[..], &["--output", &output, "--detach"]].concat());
    let id = job["job"].as_str().unwrap().to_owned();
    let ran = machines.try_mrctl(&[
        "chaos",
        "run",
        "row.toml",
        "--cluster",
        "mycluster",
        "--within",
        "2m",
        "--json",
    ]);
    let report: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{name}: {}{}", ran.stdout, ran.stderr));
    assert_eq!(ran.code, 0, "{name}: {report:#}");
    let step = &report["steps"][0];
    let figure = |key: &str| step[key].as_f64();
    let shown = |key: &str| figure(key).map_or("-".to_owned(), |value| format!("{value:.1} s"));
    println!(
        "{name}: detected after {}, lost after {}, recovered after {}",
        shown("detected_s"),
        shown("lost_s"),
        shown("recovered_s")
    );
    assert!(figure("detected_s").is_some() || !detected, "{name}: not detected: {report:#}");
    assert!(figure("detected_s").is_none_or(|after| after < DETECTED_WITHIN_S), "{name}: {report:#}");
    assert!(figure("recovered_s").is_some_and(|after| after < RECOVERED_WITHIN_S), "{name}: {report:#}");
    let over = machines.mrctl(&["job", &id, "--follow"]);
    assert!(over.contains("succeeded"), "{name}: {over}");
    assert_eq!(machines.sums(&output), calm, "{name}: the output differs from an undisturbed run");
    assert_eq!(
        machines.json(&["job", &id])["maps"]["failed_attempts"],
        0,
        "{name}: the fault counted as a failure of the task"
    );
    machines.mrctl(&["fs", "fsck", "/", "--wait", "5m"]);
    eventually(&format!("{name}: all is clean"), || leftovers(machines).is_empty().then_some(()));
    machines.mrctl(&["fs", "rm", "-rf", &output]);
}

#[test]
fn faults_on_machines_are_detected_and_recovered() {
    let Some((machines, calm)) = machines_with_records("fb", 12) else { return };
    for (number, row) in SHORT_MATRIX.iter().enumerate() {
        run_row(&machines, &calm, number, row);
    }
}

#[test]
#[ignore = "two minutes: scripts/long-tests the_whole_fault_matrix"]
fn the_whole_fault_matrix_is_detected_and_recovered() {
    let Some((machines, calm)) = machines_with_records("fd", 14) else { return };
    for (number, row) in SHORT_MATRIX.iter().chain(&REMAINING_MATRIX).enumerate() {
        run_row(&machines, &calm, number, row);
    }
}
