//! What somebody at the command line meets when something is wrong, and what they are told to do about it.

use fermata_tests::{Cluster, Up, binaries, eventually};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

#[test]
fn invalid_scheduler_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Command::new(binaries().join("mrctl"));
    let ran =
        up.args(["up", "--detach", "--scheduler", "fiffo"]).current_dir(folder.path()).output().unwrap();
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.code() == Some(2)
            && told.contains("fiffo")
            && told.contains("choose one of")
            && told.contains("fifo"),
        "{told}"
    );
    assert_eq!(told.lines().count(), 1, "{told}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something was written");
}

#[test]
fn dead_jobtracker_error_says_what_to_do() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("f"), "a\n").unwrap();
    cluster.mrctl(&["fs", "put", "f", "/f"]);
    let sleeper = ["submit", "streaming", "--mapper", "sleep 600", "--input", "/f", "--output", "/s"];
    let mut follower =
        cluster.command(&sleeper).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (heard, lines) = mpsc::channel();
    let stderr = BufReader::new(follower.stderr.take().unwrap());
    std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| heard.send(line)));
    let wait_for = |word: &str, limit: u64| {
        let end = Instant::now() + Duration::from_secs(limit);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = lines.recv_timeout(left).unwrap_or_else(|_| panic!("{limit} s without {word:?}"));
            if line.contains(word) {
                return line;
            }
        }
    };
    eventually("it runs", Duration::from_secs(20), || {
        let jobs = cluster.json(&["jobs"]);
        (jobs[0]["maps"]["running"] == 1).then_some(())
    });
    cluster.mrctl(&["chaos", "kill", "jobtracker"]);
    let told = wait_for("does not answer", 6);
    assert!(told.contains("`mrctl up`") && told.contains("job_1"), "{told}");

    let line = cluster.refused(1, &["jobs"]);
    assert!(line.contains("it has died") && line.contains("`mrctl up`"), "{line}");
    let nodes = cluster.try_mrctl(&["nodes"]);
    assert_eq!(nodes.code, 1);
    assert!(nodes.stdout.contains("DATANODE") && !nodes.stdout.contains("TRACKER"), "{}", nodes.stdout);
    assert!(nodes.stderr.contains("tasktrackers are not shown"), "{}", nodes.stderr);
    let datanodes = cluster.try_mrctl(&["nodes", "--json"]);
    assert!(datanodes.code == 1 && datanodes.stdout.contains("\"tracker\": null"), "{}", datanodes.stdout);

    cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    wait_for("answers again", 20);
    cluster.mrctl(&["kill", "job_1"]);
    assert_eq!(follower.wait().unwrap().code(), Some(1));

    // Frozen, it takes connections and says nothing.
    cluster.mrctl(&["chaos", "stop", "jobtracker"]);
    let started = Instant::now();
    let line = cluster.refused(1, &["jobs"]);
    cluster.mrctl(&["chaos", "cont", "jobtracker"]);
    assert!(line.contains("does not answer") && started.elapsed() < Duration::from_secs(30), "{line}");
}

#[test]
fn an_address_of_the_clusters_own_is_used_with_the_credentials_of_its_folder() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    let status = cluster.json(&["status"]);
    let [namenode, jobtracker] = ["namenode", "jobtracker"].map(|master| status[master].as_str().unwrap());
    cluster.mrctl(&["--namenode", namenode, "fs", "ls", "/"]);
    cluster.mrctl(&["--jobtracker", jobtracker, "jobs"]);

    // Elsewhere there is no credential, and the caller is told how to show one.
    let elsewhere = tempfile::tempdir().unwrap();
    let args = ["--namenode", namenode, "fs", "ls", "/"];
    let ran = cluster.command(&args).current_dir(elsewhere.path()).output().unwrap();
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success(), "{told}");
    for flag in ["--config", "--security-dir", "--token-file"] {
        assert!(told.contains(flag), "{told}");
    }

    // A token makes no other.
    let token = cluster.path("token");
    fs::write(&token, cluster.mrctl(&["token"])).unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let line = cluster.refused(2, &["--token-file", token.to_str().unwrap(), "token", "--valid", "7d"]);
    assert!(line.contains("a token makes no other"), "{line}");
}

#[test]
fn job_commands_show_jobs() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("f"), "a b\nc d\ne f\n").unwrap();
    cluster.mrctl(&["fs", "put", "f", "/in/f"]);
    let told = cluster.mrctl(&[
        "submit",
        "wordcount",
        "--input",
        "/in",
        "--output",
        "/out",
        "--conf",
        "split.size=4B",
    ]);
    assert!(told.contains("3 maps (3 node-local, 0 rack-local), 1 reduce"), "{told}");
    assert!(told.contains("mrctl fs cat '/out/part-*'"), "{told}");

    let table = cluster.mrctl(&["tasks", "job_1"]);
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows.len(), 6, "{table}");
    assert!(
        rows[1].starts_with("job_1.m0.0  succeeded  node1") && rows[1].ends_with("/in/f 0..4"),
        "{table}"
    );
    assert_eq!(rows[5], "3 maps: 3 done; 1 reduce: 1 done");
    assert_eq!(cluster.mrctl(&["tasks", "job_1", "--state", "failed"]).lines().count(), 1);

    let lines = cluster.mrctl(&["history", "job_1"]).lines().count();
    assert_eq!(cluster.json(&["history", "job_1"]).as_array().unwrap().len(), lines);

    let line = cluster.refused(1, &["kill", "job_1"]);
    assert!(line.contains("job_1 has succeeded already"), "{line}");

    // What a job writes is thrown away only if one says so.
    let told = cluster.mrctl(&["submit", "wordcount", "--input", "/in", "--no-output"]);
    assert!(told.contains("thrown away"), "{told}");
    assert_eq!(cluster.json(&["job", "job_2"])["counters"]["REDUCE_OUTPUT_RECORDS"], 6);
}

#[test]
fn blocks_on_unreachable_nodes_are_missing_not_corrupt() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("f"), "a").unwrap();
    cluster.mrctl(&["fs", "put", "f", "/f"]);
    assert!(cluster.mrctl(&["fs", "fsck", "/f*", "/"]).contains("is healthy"));
    cluster.mrctl(&["chaos", "kill", "node1", "--daemon", "datanode"]);
    eventually("its death is noticed", Duration::from_secs(20), || {
        let ran = cluster.try_mrctl(&["fs", "fsck", "/f*"]);
        (ran.code == 1 && ran.stdout.contains("is MISSING") && !ran.stdout.contains("CORRUPT")).then_some(())
    });
    cluster.mrctl(&["chaos", "restart", "node1", "--daemon", "datanode"]);
    cluster.mrctl(&["fs", "fsck", "--wait", "60s"]);
}
