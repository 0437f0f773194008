//! Faults on a local cluster: scenario files; damaged, slow and full nodes by `mrctl chaos`; a
//! short soak.

use fermata_tests::{Cluster, QUICK, Row, Up, binaries, eventually, is_gone, random_file, sha256_of};
use serde_json::Value;
use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

fn cluster() -> Cluster {
    let settings = format!(
        "{QUICK}[jobtracker]\nheartbeat = \"200ms\"\n\
         [datanode]\nscrub_rate = \"0\"\n"
    );
    Cluster::up(Up { nodes: 4, racks: 2, settings: &settings, ..Up::default() })
}

/// Puts a file with three blocks and three replicas of each block, and returns its checksum.
fn put(cluster: &Cluster) -> String {
    let source = cluster.path("source");
    random_file(&source, 3 << 20, 9);
    cluster.mrctl(&["fs", "put", "--replication", "3", source.to_str().unwrap(), "/file"]);
    sha256_of(&source)
}

fn get(cluster: &Cluster) -> String {
    let got = cluster.path("got");
    cluster.mrctl(&["fs", "get", "--force", "/file", got.to_str().unwrap()]);
    sha256_of(&got)
}

#[test]
fn scenario_runs_and_reports_its_measurements() {
    let cluster = cluster();
    put(&cluster);
    let args = ["submit", "teragen", "--output", "/gen", "--conf", "rows=50000", "--conf", "maps=4"];
    cluster.mrctl(&args);
    let scenario = "[[step]]\nwhen = \"job 1 maps 25%\"\ndo = \"kill\"\nnode = \"any running job 1\"\nfor = \"4s\"\n\n\
                    [[step]]\nwhen = \"job 1 ended\"\nafter = \"500ms\"\ndo = \"stop\"\nnode = \"jobtracker\"\nfor = \"2s\"\n";
    fs::write(cluster.path("faults.toml"), scenario).unwrap();
    // The scenario waits for a job that is not submitted yet.
    let mut play = cluster
        .command(&["chaos", "run", "faults.toml", "--within", "90s", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut printed = BufReader::new(play.stderr.take().unwrap()).lines();
    assert!(
        printed.any(|line| line.unwrap().contains("faults.toml:1: waits for job 1")),
        "the scenario ended without waiting"
    );
    let sort = ["terasort", "--input", "/gen", "--output", "/sorted", "--conf", "pace.map=400KiB"];
    cluster.succeed(&sort);
    let ended = play.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert!(ended.status.success() && report["recovered"] == true, "{report:#}");
    let [kill, stop] = [0, 1].map(|at| report["steps"][at].clone());
    assert_eq!((&kill["verb"], &stop["node"]), (&"kill".into(), &"jobtracker".into()), "{report:#}");
    for step in [&kill, &stop] {
        let [detected, recovered] = ["detected_s", "recovered_s"].map(|key| step[key].as_f64().unwrap());
        assert!(
            detected < recovered && step["healed_s"].as_f64().unwrap() > step["at_s"].as_f64().unwrap(),
            "{step}"
        );
    }
    assert_eq!(report["jobs"][0]["state"], "succeeded", "{report:#}");
    let message =
        cluster.mrctl(&["chaos", "recovery", "fifo=.fermata/data/jobtracker/history", "--report", "r.html"]);
    assert!(message.contains("first job's wait s") && message.contains("\nfifo "), "{message}");
    assert!(fs::read_to_string(cluster.path("r.html")).unwrap().contains("<table"));
    assert!(cluster.refused(2, &["chaos", "recovery", "=x"]).contains("NAME=HISTORY"));
    check_bad_scenarios_are_refused(&cluster);
}

fn check_bad_scenarios_are_refused(cluster: &Cluster) {
    let cases = [
        ("[[step]]\nat = \"1s\"\ndo = \"explode\"\n", 2, "bad.toml:1: do = \"explode\""),
        (
            "\n[[step]]\nat = \"1s\"\ndo = \"kill\"\nnode = \"node9\"\n",
            2,
            "bad.toml:2: there is no node node9: use node1,",
        ),
        ("[[step]\n", 2, "bad.toml:1: "),
    ];
    for (text, code, words) in cases {
        fs::write(cluster.path("bad.toml"), text).unwrap();
        let printed = cluster.refused(code, &["chaos", "run", "bad.toml"]);
        assert!(printed.contains(words) && printed.lines().count() == 1, "{printed}");
        if !text.contains("node9") {
            let printed = cluster.refused(2, &["sim", "--workload", "mixed", "--faults", "bad.toml"]);
            assert!(printed.contains(words), "{printed}");
        }
    }
    assert!(cluster.refused(2, &["chaos", "run", "nowhere.toml"]).contains("nowhere.toml"));
    // Actions that need several machines are refused before anything is done. So is a file without
    // steps.
    let step = |what: &str| format!("[[step]]\nat = \"0s\"\ndo = {what}\n");
    let cut =
        step("\"kill\"\nnode = \"node1\"") + &step("\"partition\"\nnode = \"node1\"\nfrom = \"master\"");
    fs::write(cluster.path("bad.toml"), cut).unwrap();
    let printed = cluster.refused(2, &["chaos", "run", "bad.toml", "--within", "5s"]);
    assert!(printed.contains("bad.toml:5: a cluster on one machine"), "{printed}");
    assert!(
        cluster.refused(2, &["chaos", "partition", "node1", "node2"]).contains("a cluster on one machine")
    );
    fs::write(cluster.path("bad.toml"), "").unwrap();
    assert!(cluster.refused(2, &["chaos", "run", "bad.toml"]).contains("has no [[step]]"));
    let printed = cluster.mrctl(&["chaos", "fill-disk", "node1", "--clear"]);
    assert!(printed.contains("was not filled by mrctl"), "{printed}");
}

/// Forwards the frames of a client (HTTP/2: 9 bytes of head with the length and the type) to a server
/// until a request begins (type 1) that `is_forwarded` refuses.
fn forward_requests(
    mut client: &TcpStream,
    mut server: &TcpStream,
    is_forwarded: impl Fn() -> bool,
) -> io::Result<()> {
    let mut preface = [0; 24];
    client.read_exact(&mut preface)?;
    server.write_all(&preface)?;
    loop {
        let mut head = [0; 9];
        client.read_exact(&mut head)?;
        if head[3] == 1 && !is_forwarded() {
            return Ok(());
        }
        let mut frame = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        client.read_exact(&mut frame)?;
        server.write_all(&[&head[..], &frame].concat())?;
    }
}

/// Returns the address of a proxy of the JobTracker that kills it before it gets the request with this
/// number, from 1.
fn proxy_that_kills_before(request: usize, cluster: &Cluster) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let (jobtracker, pid) = (cluster.config().cluster.jobtracker, cluster.pid_of("jobtracker", "jobtracker"));
    let requests = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            // While the JobTracker is down, the connection of the client is closed.
            let Ok(server) = TcpStream::connect(&jobtracker[0]) else { continue };
            let (requests, pid) = (requests.clone(), pid.clone());
            let (mut answers, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || io::copy(&mut answers, &mut to));
            std::thread::spawn(move || {
                let is_forwarded = || requests.fetch_add(1, Ordering::Relaxed) + 1 != request;
                if forward_requests(&client, &server, is_forwarded).is_ok() {
                    assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
                    eventually("the JobTracker has ended", || is_gone(&pid).then_some(()));
                }
                client.shutdown(Shutdown::Both).ok();
                server.shutdown(Shutdown::Both).ok();
            });
        }
    });
    addr
}

/// `mrctl kill` queries the job, kills it, and queries it again for what it prints.
#[test]
fn kill_says_that_the_job_is_killed_if_the_jobtracker_dies_between_kill_and_query() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, open: true, ..Up::default() });
    fs::write(cluster.path("in"), "a\n").unwrap();
    cluster.mrctl(&["fs", "put", "in", "/in"]);
    let job = cluster.detach(&["streaming", "--mapper", "sleep 600", "--input", "/in", "--output", "/out"]);
    eventually("the job runs", || (cluster.json(&["job", &job])["maps"]["running"] == 1).then_some(()));
    let pid = cluster.pid_of("jobtracker", "jobtracker");
    let proxy = proxy_that_kills_before(3, &cluster);
    let mut killing = cluster.command(&["kill", &job, "--jobtracker", &proxy]);
    let killing = killing.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the JobTracker has been killed", || is_gone(&pid).then_some(()));
    cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    let killed = killing.wait_with_output().unwrap();
    let (out, why) = (String::from_utf8_lossy(&killed.stdout), String::from_utf8_lossy(&killed.stderr));
    assert!(killed.status.success() && out == format!("{job} was killed\n"), "{out}{why}");
    assert_eq!(cluster.json(&["job", &job])["state"], "killed");
}

/// Ends a scenario while a node is frozen and another is being restarted, because the reader of its
/// output is gone or because the user interrupts it. Checks that all nodes work again.
#[test]
fn interrupted_scenario_undoes_its_faults() {
    let cluster = cluster();
    let step = |what: &str, at: &str, node: &str, time: &str| {
        format!("[[step]]\nat = \"{at}\"\ndo = \"{what}\"\nnode = \"{node}\"\nfor = \"{time}\"\n")
    };
    let scenario = step("stop", "0s", "node2", "10m") + &step("kill", "0s", "node3", "1s");
    fs::write(cluster.path("faults.toml"), scenario).unwrap();
    for reads_on in [false, true] {
        let mut play =
            cluster.command(&["chaos", "run", "faults.toml"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut printed = BufReader::new(play.stdout.take().unwrap()).lines();
        assert!(printed.next().unwrap().unwrap().contains(": healthy"));
        if reads_on {
            assert!(printed.any(|line| line.unwrap().contains("killed")), "no step was executed");
            let interrupt = Command::new("kill").arg("-INT").arg(play.id().to_string()).status().unwrap();
            assert!(interrupt.success());
        }
        drop(printed);
        // If the reader is gone, the exit code does not matter.
        assert!(!(play.wait().unwrap().success() && reads_on));
        eventually("all nodes are live again", || {
            let nodes = cluster.json(&["nodes"]);
            let live = |node: &Value| node["state"] == "live" && node["tracker"]["state"] == "live";
            nodes.as_array().unwrap().iter().all(live).then_some(())
        });
    }
}

#[test]
fn replicas_that_chaos_damages_are_found_and_replaced() {
    let cluster = cluster();
    let sum = put(&cluster);
    let stat = cluster.json(&["fs", "stat", "--blocks", "/file"])[0].clone();
    let block = |at: usize| format!("blk_{}", stat["locations"][at]["block"].as_u64().unwrap());
    let node = |at: usize| stat["locations"][at]["nodes"][0]["node"].as_str().unwrap().to_owned();
    let printed = cluster.mrctl(&["chaos", "corrupt", &block(0), "--node", &node(0)]);
    assert!(printed.contains(&format!("of {} on {}", block(0), node(0))), "{printed}");
    let printed = cluster.mrctl(&["chaos", "corrupt", &block(1), "--node", &node(1), "--truncate"]);
    assert!(printed.starts_with(&format!("truncated {} on {}", block(1), node(1))), "{printed}");
    assert_eq!(get(&cluster), sum);
    // The exit code is 1 while copies for the damaged replicas are still being made.
    assert!(cluster.try_mrctl(&["fs", "fsck", "/", "--verify"]).code <= 1);
    eventually("both damaged replicas are replaced", || {
        let report = cluster.json(&["fs", "report"]);
        (report["corrupt_replaced_total"] == 2 && report["under_replicated"] == 0).then_some(())
    });
    assert_eq!(get(&cluster), sum);
    assert!(cluster.refused(2, &["chaos", "corrupt", "everything"]).contains("is not a block"));
    assert!(
        cluster
            .refused(1, &["chaos", "corrupt", "blk_999999"])
            .contains("cannot find blk_999999 on any datanode")
    );
    assert!(cluster.refused(1, &["chaos", "corrupt", &block(0), "--node", "node9"]).contains("on node9"));
}

#[test]
fn slowed_node_runs_a_fraction_of_the_time_and_recovers() {
    let cluster = cluster();
    let text = fs::read_to_string(cluster.path(".fermata/cluster.json")).unwrap();
    let state: Value = serde_json::from_str(&text).unwrap();
    let daemons = state["daemons"].as_array().unwrap().iter().filter(|daemon| daemon["name"] == "node2");
    let pids: Vec<String> = daemons.map(|daemon| daemon["pid"].to_string()).collect();
    assert_eq!(pids.len(), 2);
    let is_frozen = |pid: &String| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ");
    let mut slow = cluster
        .command(&["chaos", "slow", "node2", "--share", "0.2", "--for", "4s"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the daemons of the node are frozen", || pids.iter().all(is_frozen).then_some(()));
    let (mut looks, mut still) = (0, 0);
    while slow.try_wait().unwrap().is_none() {
        looks += 1;
        still += u32::from(pids.iter().all(is_frozen));
        std::thread::sleep(Duration::from_millis(7));
    }
    assert!(
        looks > 100 && still * 2 > looks && still < looks,
        "the daemons were frozen at {still} of {looks} checks"
    );
    let ended = slow.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && printed.contains("node2 runs at full speed again"), "{printed}");
    assert!(!pids.iter().any(is_frozen));
    assert!(
        cluster.refused(2, &["chaos", "slow", "node2", "--share", "1"]).contains("a fraction of the time")
    );
    assert!(cluster.refused(1, &["chaos", "slow", "node9", "--for", "1s"]).contains("it has"));
}

/// A second daemon with the node name of another daemon. Killed when dropped.
struct SecondDaemon(Child);

impl SecondDaemon {
    fn start(cluster: &Cluster, program: &str) -> Self {
        let mut command = Command::new(binaries().join(program));
        command.arg("--config").arg(cluster.path(".fermata/fermata.toml"));
        command.args(["--node", "node1", "--listen", "127.0.0.1:0", "--dir"]).arg(cluster.path(program));
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for SecondDaemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn newest_of_two_nodes_with_one_name_wins() {
    let cluster = cluster();
    let mut row = Row::begin("one name twice");
    let mut seconds = ["tasktracker", "datanode"].map(|program| SecondDaemon::start(&cluster, program));
    for (program, words) in [
        ("tasktracker", "another process has taken the name node1"),
        ("datanode", "the name node1 is in use by"),
    ] {
        let log = cluster.path(&format!(".fermata/logs/node1-{program}.log"));
        eventually(&format!("the first {program} ends and says why"), || {
            fs::read_to_string(&log).unwrap().contains(words).then_some(())
        });
    }
    row.detected();
    eventually("the second daemons are live", || {
        let nodes = cluster.json(&["nodes"]);
        let node = nodes.as_array()?.iter().find(|one| one["node"] == "node1")?.clone();
        (node["tracker"]["state"] == "live" && node["state"] == "live").then_some(())
    });
    row.recovered();
    assert!(seconds.iter_mut().all(|second| second.0.try_wait().unwrap().is_none()), "the second continues");
}

/// Starts many trackers that only send heartbeats, each on its own connection. The JobTracker is
/// killed. Checks that all trackers register with the next JobTracker process.
fn check_trackers_register_again(tls: bool) {
    let folder = tempfile::tempdir_in(binaries()).unwrap();
    let mut load = Command::new(binaries().join("mrctl"));
    load.args(["bench", "load", "--trackers", "300", "--seconds", "4", "--json", "--dir"]).arg(folder.path());
    if tls {
        load.arg("--tls");
    }
    let ran = load.output().unwrap();
    let text = String::from_utf8_lossy(&ran.stdout);
    let figures: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&ran.stderr)));
    println!("tls {tls}: {figures:#}");
    let all = figures["measurements"].as_array().unwrap();
    let of = |part: &str| {
        let found = all.iter().find(|figure| figure["name"].as_str().unwrap().contains(part));
        found.unwrap_or_else(|| panic!("{part}: {figures:#}"))["value"].as_f64().unwrap()
    };
    assert!(of("registered again") < 60.0, "{figures:#}");
    // Each tracker sends one heartbeat per second for four seconds before the kill and four after
    // it: 2,400 on an idle machine.
    assert!(of("heartbeats answered") >= 600.0, "{figures:#}");
}

#[test]
fn hundreds_of_trackers_register_again_after_a_jobtracker_crash() {
    check_trackers_register_again(false);
}

#[test]
fn hundreds_of_trackers_register_again_over_tls() {
    check_trackers_register_again(true);
}

#[test]
fn short_soak_finds_no_violation() {
    let folder = tempfile::tempdir_in(binaries()).unwrap();
    let ran = Command::new(binaries().join("mrctl"))
        .args(["chaos", "soak", "--minutes", "0.3", "--nodes", "4", "--seed", "11", "--json", "--dir"])
        .arg(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&ran.stdout);
    let report: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&ran.stderr)));
    println!("{report:#}");
    assert!(ran.status.success() && report["wrong"] == Value::Array(Vec::new()), "{report:#}");
    assert!(report["jobs"].as_u64() >= Some(2) && report["splits"].as_u64() >= Some(1), "{report:#}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the soak left files behind");
}
