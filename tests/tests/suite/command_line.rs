//! Errors on the command line, and the advice in their messages.

use fermata_tests::{Cluster, TIMEOUT, Up, binaries, eventually};
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
    let message = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.code() == Some(2)
            && message.contains("fiffo")
            && message.contains("choose one of")
            && message.contains("fifo"),
        "{message}"
    );
    assert_eq!(message.lines().count(), 1, "{message}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something was written");
}

#[test]
fn interrupted_comparison_keeps_its_runs_and_says_how_it_continues() {
    let folder = tempfile::tempdir().unwrap();
    let compare = |seeds: &str| {
        let mut command = Command::new(binaries().join("mrctl"));
        command.args(["lab", "compare", "--policies", "fifo", "--workloads", "gridmix[jobs=20]"]);
        command.args(["--dir", "results", "--seeds", seeds]).current_dir(folder.path());
        command
    };
    let stored = || fs::read_dir(folder.path().join("results")).map_or(0, Iterator::count);
    let comparing = compare("400").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("a run is stored", || (stored() > 0).then_some(()));
    assert!(Command::new("kill").args(["-INT", &comparing.id().to_string()]).status().unwrap().success());
    let ended = comparing.wait_with_output().unwrap();
    let why = String::from_utf8_lossy(&ended.stderr);
    let lines: Vec<&str> = why.lines().collect();
    let first = "mrctl: interrupted: stopping the runs in progress; a second Ctrl-C ends mrctl at once";
    let last = format!(
        "mrctl: interrupted: {} of 1200 runs are stored in results; the same command does the others: mrctl lab compare ",
        stored()
    );
    assert!(lines.len() == 2 && lines[0] == first && lines[1].starts_with(&last), "{why}");
    assert_eq!(ended.status.code(), Some(1));
    let ran = compare("1").output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// As under `nohup`.
#[test]
fn comparison_that_was_started_with_hangups_ignored_runs_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(binaries().join("mrctl"));
    command.args(["lab", "compare", "--policies", "fifo", "--workloads", "gridmix[jobs=20]"]);
    command.args(["--dir", "results", "--seeds", "20"]).current_dir(folder.path());
    let comparing = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let stored = || fs::read_dir(folder.path().join("results")).map_or(0, Iterator::count);
    eventually("a run is stored", || (stored() > 0).then_some(()));
    assert!(Command::new("kill").args(["-HUP", &comparing.id().to_string()]).status().unwrap().success());
    let ended = comparing.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// The policy does not answer, and does not end when its standard input is closed.
#[test]
fn interrupted_simulation_removes_its_histories_and_its_policy() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("policy.sh"), "echo $$ > new; mv new pid; exec sleep 1000\n").unwrap();
    let simulate = |policy: &str| {
        let mut command = Command::new(binaries().join("mrctl"));
        command.args(["sim", "--workload", "gridmix", "--jobs", "2", "--history", "h"]);
        command.args(["--scheduler", policy]).current_dir(folder.path());
        command
    };
    let start = || {
        let mut command = simulate("external[command=sh policy.sh;timeout=1000s]");
        let run = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let policy = eventually("the policy has started", || fs::read_to_string(path("pid")).ok());
        fs::remove_file(path("pid")).unwrap();
        (run, policy.trim().to_owned())
    };
    let signal = |which: &str, pid: &str| {
        assert!(Command::new("kill").args([which, pid]).status().unwrap().success());
    };
    let (run, policy) = start();
    assert!(path(".h.partial").is_dir());
    signal("-INT", &run.id().to_string());
    let ended = run.wait_with_output().unwrap();
    let why = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{why}");
    assert_eq!(why, "mrctl: interrupted: the run is not complete, so no result is written\n");
    assert!(!path(".h.partial").exists());
    let has_ended = || (!std::path::Path::new("/proc").join(&policy).join("exe").exists()).then_some(());
    eventually("the policy has ended", has_ended);
    // A process that is killed cannot remove its histories. The next one does.
    let (mut run, policy) = start();
    run.kill().unwrap();
    run.wait().unwrap();
    signal("-KILL", &policy);
    assert!(path(".h.partial").is_dir());
    let ran = simulate("fifo").output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(!path(".h.partial").exists());
    assert_eq!(fs::read_dir(path("h")).unwrap().count(), 2);
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
    let wait_for = |word: &str| {
        let end = Instant::now() + TIMEOUT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = lines.recv_timeout(left).unwrap_or_else(|_| panic!("{TIMEOUT:?} without {word:?}"));
            if line.contains(word) {
                return line;
            }
        }
    };
    eventually("the job runs", || {
        let jobs = cluster.json(&["jobs"]);
        (jobs[0]["maps"]["running"] == 1).then_some(())
    });
    cluster.mrctl(&["chaos", "kill", "jobtracker"]);
    let message = wait_for("does not answer");
    assert!(message.contains("`mrctl up`") && message.contains("job_1"), "{message}");

    let line = cluster.refused(1, &["jobs"]);
    assert!(line.contains("it has died") && line.contains("`mrctl up`"), "{line}");
    let log = "logs/jobtracker.log";
    let line = cluster.refused(1, &["health", "jobtracker"]);
    assert!(
        line.contains("does not answer (") && line.contains(log) && line.contains("`mrctl up`"),
        "{line}"
    );
    let top = cluster.try_mrctl(&["top", "--once"]);
    // The header names the JobTracker; only the error message contains advice.
    assert!(top.code == 1 && top.stdout.contains("the JobTracker does not answer"), "{}", top.stdout);
    assert!(!top.stdout.contains("mrctl up"), "{}", top.stdout);
    assert!(top.stderr.lines().count() == 1 && top.stderr.contains("`mrctl up`"), "{}", top.stderr);
    let nodes = cluster.try_mrctl(&["nodes"]);
    assert_eq!(nodes.code, 1);
    assert!(nodes.stdout.contains("DATANODE") && !nodes.stdout.contains("TRACKER"), "{}", nodes.stdout);
    assert!(nodes.stderr.contains("TaskTrackers are not shown"), "{}", nodes.stderr);
    let datanodes = cluster.try_mrctl(&["nodes", "--json"]);
    assert!(datanodes.code == 1 && datanodes.stdout.contains("\"tracker\": null"), "{}", datanodes.stdout);

    cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    wait_for("is reachable again");
    cluster.mrctl(&["kill", "job_1"]);
    assert_eq!(follower.wait().unwrap().code(), Some(1));

    // A frozen process accepts connections but does not answer.
    cluster.mrctl(&["chaos", "stop", "jobtracker"]);
    let started = Instant::now();
    let ran = cluster.try_mrctl(&["jobs"]);
    let health = cluster.refused(1, &["health", "jobtracker"]);
    cluster.mrctl(&["chaos", "cont", "jobtracker"]);
    assert!(ran.code == 1 && started.elapsed() < Duration::from_secs(30), "{}", ran.stderr);
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("mrctl: waiting for the JobTracker at "), "{lines:#?}");
    let line = cluster.refused(1, &["chaos", "cont", "jobtracker"]);
    assert!(line.contains("jobtracker is already running"), "{line}");
    for line in [lines[1], &health] {
        assert!(line.contains("does not answer (") && line.contains(log), "{line}");
        assert!(line.contains("`mrctl chaos cont jobtracker"), "{line}");
    }
}

#[test]
fn lab_commands_work_with_and_without_the_word_lab() {
    let mrctl = |args: &[&str]| {
        let ran = Command::new(binaries().join("mrctl")).args(args).output().unwrap();
        String::from_utf8(ran.stdout).unwrap()
    };
    let help = mrctl(&["--help"]);
    let (everyday, lab) = help.split_once("\nLab:\n").unwrap();
    for name in ["bench", "chaos", "sim", "replay", "repro", "verify"] {
        let line = format!("\n  {name} ");
        assert!(!everyday.contains(&line) && format!("\n{lab}").contains(&line), "{name}: {help}");
        let (short, long) = (mrctl(&[name, "--help"]), mrctl(&["lab", name, "--help"]));
        let same = long.replace(&format!("mrctl lab {name}"), &format!("mrctl {name}"));
        assert!(short.len() > 100 && short == same, "{short}\n{long}");
    }
}

#[test]
fn addresses_of_the_local_cluster_use_its_credentials() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    let status = cluster.json(&["status"]);
    let [namenode, jobtracker] = ["namenode", "jobtracker"].map(|master| status[master].as_str().unwrap());
    cluster.mrctl(&["--namenode", namenode, "fs", "ls", "/"]);
    cluster.mrctl(&["--jobtracker", jobtracker, "jobs"]);

    // In another folder there is no credential. The message explains how to give one.
    let elsewhere = tempfile::tempdir().unwrap();
    let args = ["--namenode", namenode, "fs", "ls", "/"];
    let ran = cluster.command(&args).current_dir(elsewhere.path()).output().unwrap();
    let message = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success(), "{message}");
    for flag in ["--config", "--security-dir", "--token-file"] {
        assert!(message.contains(flag), "{message}");
    }

    // A client that has only a token cannot create another token.
    let token = cluster.path("token");
    fs::write(&token, cluster.mrctl(&["token"])).unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let line = cluster.refused(2, &["--token-file", token.to_str().unwrap(), "token", "--valid", "7d"]);
    assert!(line.contains("cannot create another"), "{line}");
}

#[test]
fn job_commands_show_tasks_history_and_discarded_output() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("f"), ["a b", "c d", "e f"].map(|words| format!("{words:63}\n")).concat())
        .unwrap();
    cluster.mrctl(&["fs", "put", "f", "/in/f"]);
    let message = cluster.mrctl(&[
        "submit",
        "wordcount",
        "--input",
        "/in",
        "--output",
        "/out",
        "--conf",
        "split.size=64B",
    ]);
    assert!(message.contains("3 maps (3 node-local, 0 rack-local), 1 reduce"), "{message}");
    assert!(message.contains("mrctl fs cat '/out/part-*'"), "{message}");

    let table = cluster.mrctl(&["tasks", "job_1"]);
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows.len(), 6, "{table}");
    assert!(
        rows[1].starts_with("job_1.m0.0  succeeded  node1") && rows[1].ends_with("/in/f 0..64"),
        "{table}"
    );
    assert_eq!(rows[5], "3 maps: 3 done; 1 reduce: 1 done");
    assert_eq!(cluster.mrctl(&["tasks", "job_1", "--state", "failed"]).lines().count(), 1);

    let lines = cluster.mrctl(&["history", "job_1"]).lines().count();
    assert_eq!(cluster.json(&["history", "job_1"]).as_array().unwrap().len(), lines);

    let line = cluster.refused(1, &["kill", "job_1"]);
    assert!(line.contains("job_1 has already succeeded"), "{line}");

    // The output of a job is discarded only on request.
    let message = cluster.mrctl(&["submit", "wordcount", "--input", "/in", "--no-output"]);
    assert!(message.contains("discarded"), "{message}");
    assert_eq!(cluster.json(&["job", "job_2"])["counters"]["REDUCE_OUTPUT_RECORDS"], 6);
}

#[test]
fn blocks_on_unreachable_nodes_are_missing_not_corrupt() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("f"), "a").unwrap();
    cluster.mrctl(&["fs", "put", "f", "/f"]);
    assert!(cluster.mrctl(&["fs", "fsck", "/f*", "/"]).contains("is healthy"));
    cluster.mrctl(&["chaos", "kill", "node1", "--daemon", "datanode"]);
    eventually("the death of the DataNode is detected", || {
        let ran = cluster.try_mrctl(&["fs", "fsck", "/f*"]);
        (ran.code == 1 && ran.stdout.contains("/f* has MISSING blocks: ") && !ran.stdout.contains("CORRUPT"))
            .then_some(())
    });
    cluster.mrctl(&["chaos", "restart", "node1", "--daemon", "datanode"]);
    cluster.mrctl(&["fs", "fsck", "--wait", "5m"]);
}
