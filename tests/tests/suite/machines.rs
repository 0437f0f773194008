//! Clusters on several machines: network namespaces with their own addresses and certificates,
//! started by `mrctl cluster`. Skipped with a message if namespaces cannot be created.

use fermata_tests::{Machines, Row, binaries, eventually, load::while_clients_work, skip};
use serde_json::Value;
use std::{fs, process::Command, time::Instant};

#[test]
fn closed_cluster_survives_killed_and_partitioned_machines() {
    let Some(machines) = Machines::make("fa", 11, &["r1", "r1", "r2"]) else { return };
    let [second, third, fourth] = [2, 3, 4].map(|at| machines.node(at));
    // A second `up` must change nothing.
    let status = machines.json(&["cluster", "status", "--cluster", "mycluster"]);
    machines.cluster(&["up"]);
    assert_eq!(machines.json(&["cluster", "status", "--cluster", "mycluster"]), status);
    let daemons: Vec<&Value> =
        status.as_array().unwrap().iter().flat_map(|host| host["daemons"].as_array().unwrap()).collect();
    assert_eq!(daemons.len(), 8);
    assert!(daemons.iter().all(|daemon| daemon["state"] == "running"), "{status}");

    // A caller without a credential must get nothing.
    let bare = Command::new(binaries().join("mrctl"))
        .args(["--namenode", "10.77.11.1:9400", "fs", "ls", "/"])
        .output()
        .unwrap();
    assert_eq!(bare.status.code(), Some(1));

    check_job_survives_the_death_of(&machines, &second);
    machines.cluster(&["up"]);
    machines.await_tracker(&second, "live");

    check_isolated_node_recovers(&machines, &third);

    machines.cluster(&["restart", &fourth]);
    machines.await_tracker(&fourth, "live");
    let log = machines.cluster(&["logs", &fourth, "--daemon", "datanode"]);
    assert!(log.contains("== datanode on"), "{log}");
    let unknown = machines.try_mrctl(&["cluster", "restart", "fa9", "--cluster", "mycluster"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("fa1, fa2, fa3, fa4"), "{}", unknown.stderr);

    machines.cluster(&["down"]);
    assert!(machines.processes().is_empty(), "{:?}", machines.processes());
    let status = machines.try_mrctl(&["cluster", "status", "--cluster", "mycluster"]).stdout;
    assert!(status.contains("absent") && !status.contains("running"), "{status}");
}

/// Blocks messages from a node to the master, but not those from the master to the node. Checks
/// that the node is lost, and that it recovers by itself afterwards.
fn check_isolated_node_recovers(machines: &Machines, node: &str) {
    let master = machines.node(1);
    machines.mrctl(&["chaos", "partition", node, &master, "--one-way", "--cluster", "mycluster"]);
    machines.await_tracker(node, "lost");
    let printed = machines.mrctl(&["chaos", "heal", "--cluster", "mycluster"]);
    assert_eq!(printed.trim(), format!("{master} receives packets from {node} again"));
    machines.await_tracker(node, "live");
    machines.mrctl(&["fs", "fsck", "/", "--wait", "5m"]);
}

/// Kills a machine during a sort. Checks that the output is the same as without a fault.
fn check_job_survives_the_death_of(machines: &Machines, node: &str) {
    machines.mrctl(&["fs", "mkdir", "/lab"]);
    machines.mrctl(&["fs", "chown", "admin", "/lab"]);
    machines.mrctl(&[
        "submit",
        "teragen",
        "--output",
        "/lab/gen",
        "--conf",
        "rows=100000",
        "--conf",
        "maps=6",
    ]);
    let sort = [
        "submit",
        "terasort",
        "--input",
        "/lab/gen",
        "--reduces",
        "4",
        "--conf",
        "pace.map=500KiB",
        "--output",
    ];
    machines.mrctl(&[&sort[..], &["/lab/calm"]].concat());
    let calm = machines.sums("/lab/calm");

    let id = machines.json(&[&sort[..], &["/lab/sorted", "--detach"]].concat())["job"]
        .as_str()
        .unwrap()
        .to_owned();
    eventually("a map is done", || {
        (machines.json(&["job", &id])["maps"]["done"].as_u64()? >= 1).then_some(())
    });
    machines.mrctl(&["chaos", "kill", node, "--cluster", "mycluster"]);
    let over = machines.mrctl(&["job", &id, "--follow"]);
    assert!(over.contains("succeeded"), "{over}");
    assert_eq!(machines.sums("/lab/sorted"), calm, "the output differs from an undisturbed run");
    assert_eq!(
        machines.try_mrctl(&["cluster", "status", "--cluster", "mycluster"]).code,
        1,
        "two daemons are dead"
    );
}

/// A cluster is extended, upgraded while a job runs, has full disks, and is reduced.
#[test]
fn cluster_works_while_machines_are_added_filled_upgraded_and_drained() {
    let Some(machines) = Machines::prepare("fc", 13, &["r1", "r2", "r1"], 2) else { return };
    let [first, second, third, fourth] = [1, 2, 3, 4].map(|at| machines.node(at));
    machines.set("namenode", "disk_reserve = \"16MiB\"");
    machines.set("jobtracker", "disk_reserve = \"16MiB\"");
    machines.set("datanode", "reserve = \"8MiB\"");
    machines.set("tasktracker", "reserve = \"4MiB\"");
    let small = machines.small_disk(1, "96m") && machines.small_disk(3, "96m");
    machines.up();
    machines.mrctl(&["fs", "mkdir", "/lab"]);
    machines.mrctl(&["fs", "chown", "admin", "/lab"]);

    let bad = machines.try_mrctl(&["cluster", "add", "a;b", "--cluster", "mycluster"]);
    assert_eq!(bad.code, 2, "{}", bad.stderr);
    for _ in 0..2 {
        machines.cluster(&["add", &fourth, "--rack", "r1", "--addr", "10.77.13.4"]);
    }
    machines.await_tracker(&fourth, "live");
    let hosts = std::fs::read_to_string(machines.path("mycluster/hosts")).unwrap();
    assert_eq!(hosts.matches(&fourth).count(), 1, "{hosts}");

    let rows = ["--conf", "rows=60000", "--conf", "maps=6"];
    machines.mrctl(&[&["submit", "teragen", "--output", "/lab/gen"], &rows[..]].concat());
    let sort = ["submit", "terasort", "--input", "/lab/gen", "--reduces", "4", "--output"];
    machines.mrctl(&[&sort[..], &["/lab/calm"]].concat());
    let calm = machines.sums("/lab/calm");

    if small {
        check_full_disks(&machines, &first, &third);
    } else {
        skip("mount", "a small disk cannot be mounted");
    }

    // All daemons are restarted during a job, one after the other.
    let slow = ["/lab/upgraded", "--conf", "pace.map=200KiB", "--detach"];
    let id = machines.json(&[&sort[..], &slow[..]].concat())["job"].as_str().unwrap().to_owned();
    let before = machines.json(&["cluster", "status", "--cluster", "mycluster"]);
    machines.cluster(&["upgrade"]);
    let after = machines.json(&["cluster", "status", "--cluster", "mycluster"]);
    for (was, is) in before.as_array().unwrap().iter().zip(after.as_array().unwrap()) {
        for at in 0..2 {
            assert_eq!(is["daemons"][at]["state"], "running", "{after}");
            assert_ne!(was["daemons"][at]["pid"], is["daemons"][at]["pid"], "{after}");
        }
    }
    let over = machines.mrctl(&["job", &id, "--follow"]);
    assert!(over.contains("succeeded"), "{over}");
    assert_eq!(machines.sums("/lab/upgraded"), calm);

    machines.cluster(&["drain", &second, "--deadline", "60s"]);
    let is_stopped = || {
        let status = machines.try_mrctl(&["cluster", "status", "--cluster", "mycluster", "--json"]).stdout;
        let status: Value = serde_json::from_str(&status).unwrap();
        let host = status.as_array().unwrap().iter().find(|host| host["host"] == second.as_str()).unwrap();
        assert_eq!(host["daemons"][0]["state"], "absent", "{status}");
    };
    is_stopped();
    assert_eq!(machines.sums("/lab/upgraded"), calm, "the output is not readable from the other nodes");
    // A machine that was stopped on purpose must not be started by the next upgrade.
    machines.cluster(&["upgrade"]);
    is_stopped();
}

/// Fills the disks of a master and of a node. Checks that the master keeps its data and accepts no
/// changes, and that the node is not used.
fn check_full_disks(machines: &Machines, master: &str, node: &str) {
    machines.mrctl(&["chaos", "fill-disk", master, "--leave", "8MiB", "--cluster", "mycluster"]);
    let mut row = Row::begin("the namenode's disk is full, and has space again");
    eventually("the namenode is in safemode", || {
        let report = machines.json(&["fs", "report"]);
        (report["safemode"]["on"] == true).then_some(())
    });
    row.detected();
    machines.mrctl(&["fs", "ls", "/lab"]);
    let printed = machines.mrctl(&["chaos", "fill-disk", master, "--clear", "--cluster", "mycluster"]);
    assert_eq!(printed.trim(), format!("the disk of {master} has free space again"));
    row.restart_clock();
    eventually("the namenode takes changes again", || {
        (machines.json(&["fs", "report"])["safemode"]["on"] == false).then_some(())
    });
    row.recovered();

    machines.mrctl(&["chaos", "fill-disk", node, "--cluster", "mycluster"]);
    let sort = ["submit", "terasort", "--input", "/lab/gen", "--reduces", "4", "--output", "/lab/full"];
    let row = Row::begin("a node's disk is full: a sort does not use it");
    machines.mrctl(&sort);
    row.recovered();
    assert_eq!(machines.sums("/lab/full"), machines.sums("/lab/calm"));
    machines.mrctl(&["chaos", "fill-disk", node, "--clear", "--cluster", "mycluster"]);
    machines.mrctl(&["fs", "fsck", "/", "--wait", "5m"]);
    // The disk of this machine is that of the build folder, which is too large to fill without
    // `--force`.
    let much = machines.try_mrctl(&["chaos", "fill-disk", &machines.node(2), "--cluster", "mycluster"]);
    assert!(much.code == 1 && much.stderr.contains("--force"), "{}{}", much.stdout, much.stderr);
}

/// Waits until all six masters vote and lack nothing.
fn await_masters(machines: &Machines) -> Value {
    eventually("all masters have everything", || {
        let ran = machines.try_mrctl(&["masters", "--json"]);
        let all: Value = serde_json::from_str(&ran.stdout).ok()?;
        let list = all["masters"].as_array()?;
        let is_complete = |one: &Value| one["votes"] == true && one["lag"] == 0;
        (all["serves"] == true && list.len() == 6 && list.iter().all(is_complete)).then_some(all)
    })
}

#[test]
fn cluster_with_three_masters_survives_the_loss_of_the_one_that_leads() {
    let Some(machines) = Machines::prepare_with("fg", 31, 3, &["r1", "r1"], 2) else { return };
    let [first, second] = [1, 2].map(|at| machines.node(at));
    machines.up();
    await_masters(&machines);
    let statuses = machines.json(&["cluster", "status", "--cluster", "mycluster"]);
    let reported = |daemon: usize, role: &str| {
        let hosts = statuses.as_array().unwrap().iter();
        hosts.filter(|host| host["daemons"][daemon]["reported"] == role).count()
    };
    for daemon in [0, 1] {
        assert_eq!((reported(daemon, "leader"), reported(daemon, "follower")), (1, 2), "{statuses}");
    }
    machines.mrctl(&["fs", "mkdir", "/lab"]);
    machines.mrctl(&["fs", "chown", "admin", "/lab"]);
    let rows = ["--conf", "rows=100000", "--conf", "maps=6"];
    machines.mrctl(&[&["submit", "teragen", "--output", "/lab/gen"], &rows[..]].concat());
    let sort = ["submit", "terasort", "--input", "/lab/gen", "--reduces", "4", "--output"];
    machines.mrctl(&[&sort[..], &["/lab/calm"]].concat());
    let calm = machines.sums("/lab/calm");

    // The first machine leads both groups, and dies while a job runs.
    machines.mrctl(&["masters", "transfer", "10.77.31.1:9400"]);
    machines.mrctl(&["masters", "transfer", "10.77.31.1:9500", "--daemon", "jobtracker"]);
    let slow = ["/lab/sorted", "--conf", "pace.map=500KiB", "--detach"];
    let id = machines.json(&[&sort[..], &slow[..]].concat())["job"].as_str().unwrap().to_owned();
    eventually("a map is done", || {
        (machines.json(&["job", &id])["maps"]["done"].as_u64()? >= 1).then_some(())
    });
    machines.mrctl(&["chaos", "kill", &first, "--cluster", "mycluster"]);
    let killed = Instant::now();
    machines.mrctl(&["fs", "mkdir", "/lab/after"]);
    println!("a folder was created {:.1} s after kill -9 of both leaders", killed.elapsed().as_secs_f64());
    let over = machines.mrctl(&["job", &id, "--follow"]);
    assert!(over.contains("succeeded"), "{over}");
    assert_eq!(machines.sums("/lab/sorted"), calm, "the output differs from an undisturbed run");
    assert_eq!(machines.try_mrctl(&["cluster", "status", "--cluster", "mycluster"]).code, 1);
    let refused = machines.try_mrctl(&["cluster", "restart", "--cluster", "mycluster"]);
    assert!(refused.code == 1 && refused.stderr.contains("10.77.31.1:9400"), "{}", refused.stderr);

    // It comes back without its disk: the operator confirms that, and it gets everything.
    let data = machines.path(&first).join("data");
    fs::rename(data.join("namenode"), data.join("lost")).unwrap();
    let up = machines.try_mrctl(&["cluster", "up", "--cluster", "mycluster"]);
    assert!(
        up.code == 1 && up.stderr.contains("or let it get everything from the other masters"),
        "{}",
        up.stderr
    );
    machines.cluster(&["up", "--format", &first]);
    await_masters(&machines);
    machines.cluster(&["up"]);

    // All masters are restarted while clients work, and then the nodes, too.
    let file = machines.path("file");
    fs::write(&file, "some bytes").unwrap();
    machines.mrctl(&["fs", "mkdir", "/lab/load"]);
    let mut restarted = String::new();
    let work = while_clients_work(
        |args| machines.try_mrctl(args),
        &file,
        "/lab/load",
        || restarted = machines.cluster(&["restart"]),
    );
    println!("created, read, submitted during a restart of three machines: {work:?}");
    assert_eq!(restarted.matches("namenode running").count(), 3, "{restarted}");
    let before = machines.json(&["cluster", "status", "--cluster", "mycluster"]);
    machines.cluster(&["upgrade"]);
    let after = machines.json(&["cluster", "status", "--cluster", "mycluster"]);
    for (was, is) in before.as_array().unwrap().iter().zip(after.as_array().unwrap()) {
        assert_ne!(was["daemons"][0]["pid"], is["daemons"][0]["pid"], "{after}");
    }

    machines.cluster(&["down"]);
    assert!(machines.processes().is_empty(), "{:?}", machines.processes());
    machines.cluster(&["up"]);
    await_masters(&machines);
    machines.mrctl(&["chaos", "kill", &second, "--cluster", "mycluster"]);
    assert_eq!(machines.sums("/lab/sorted"), calm);
    machines.mrctl(&["fs", "ls", "/lab/after"]);
}
