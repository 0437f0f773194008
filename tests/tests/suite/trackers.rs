//! Isolated, lost and returning trackers, and their tasks.

use fermata_tests::{Cluster, Up, binaries, eventually, skip};
use std::{
    fs,
    os::unix::{fs::OpenOptionsExt, process::ExitStatusExt},
    path::PathBuf,
    process::{Command, Stdio},
};

const SETTINGS: &str = "[jobtracker]\nheartbeat = \"200ms\"\n";

fn signal(pids: &[String], name: &str) {
    let ran = Command::new("kill").arg(name).args(pids).status().unwrap();
    assert!(ran.success(), "kill {name} {pids:?}");
}

/// Returns the number of sleeping mappers of a streaming job.
fn sleepers(cluster: &Cluster) -> usize {
    let tasks = cluster.processes_in(".fermata/tasks");
    let name = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    tasks.iter().filter(|pid| name(pid).trim() == "sleep").count()
}

#[test]
fn tracker_without_replies_stops_its_tasks_before_it_is_lost() {
    // The timeout is long enough for the JobTracker to notice, when it continues, that it was
    // frozen itself.
    let settings = format!("{SETTINGS}lost_after = \"12s\"\n");
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings: &settings, ..Up::default() });
    fs::write(cluster.path("text"), "word\n").unwrap();
    cluster.mrctl(&["fs", "put", "text", "/text"]);
    let endless =
        ["streaming", "--mapper", "sleep 600", "--reduces", "0", "--input", "/text", "--output", "/out"];
    let job = cluster.detach(&endless);
    eventually("a task runs", || (sleepers(&cluster) > 0).then_some(()));
    let jobtracker = cluster.processes_named("jobtracker");
    signal(&jobtracker, "-STOP");
    // The tracker decides by itself, because the frozen JobTracker can neither send orders nor
    // declare it lost.
    eventually("the tasks of the tracker are stopped", || (sleepers(&cluster) == 0).then_some(()));
    signal(&jobtracker, "-CONT");
    // The task runs again, but never at the same time as its first attempt.
    eventually("the task runs again", || (sleepers(&cluster) == 1).then_some(()));
    let tasks = cluster.json(&["tasks", &job]);
    let first = &tasks[0]["attempts"][0];
    let why = first["error"].as_str().unwrap();
    assert!(why.contains("isolated from the JobTracker"), "{tasks}");
    let log = fs::read_to_string(cluster.path(".fermata/logs/jobtracker.log")).unwrap();
    assert!(!log.contains("tracker is lost"), "the tracker was lost before it stopped its tasks: {log}");
    cluster.mrctl(&["kill", &job]);
}

#[test]
fn a_lost_tracker_is_forgotten_by_name_and_a_live_one_is_not() {
    let cluster = Cluster::up(Up { nodes: 2, replication: 1, settings: SETTINGS, ..Up::default() });
    let forget = || cluster.try_mrctl(&["nodes", "forget", "node2"]);
    let refused = forget();
    cluster.mrctl(&["chaos", "kill", "node2", "--daemon", "tasktracker"]);
    eventually("the tracker is lost", || {
        let nodes = cluster.json(&["nodes"]);
        nodes.as_array()?.iter().any(|node| node["tracker"]["state"] == "lost").then_some(())
    });
    let forgotten = forget();
    let nodes = cluster.json(&["nodes"]);
    let names: Vec<_> = nodes.as_array().unwrap().iter().filter(|node| !node["tracker"].is_null()).collect();
    assert_eq!(names.len(), 1, "a lost tracker is still listed: {nodes}, {}", forgotten.stderr);
    assert_eq!(forgotten.code, 0, "{}", forgotten.stderr);
    let removed = "TaskTracker node2 was removed from the list; DataNode node2 (live) stays in the list\n";
    assert_eq!(forgotten.stdout, removed);
    assert!(forget().stderr.contains("there is no TaskTracker node2"));
    assert!(refused.code == 1 && refused.stderr.contains("not lost"), "{}", refused.stderr);
    let log = fs::read_to_string(cluster.path(".fermata/logs/jobtracker.log")).unwrap();
    for line in ["tracker registered", "tracker is lost", "tracker is forgotten"] {
        assert!(log.contains(line), "{line:?} is not in the log");
    }
    // The tracker returns as a new tracker.
    cluster.mrctl(&["chaos", "restart", "node2", "--daemon", "tasktracker"]);
}

/// C source of a library that sets the wall clock of a process a day ahead when it is preloaded.
const CLOCK_A_DAY_AHEAD: &str = r"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = syscall(SYS_clock_gettime, clock, time);
    if (!failed && clock == CLOCK_REALTIME) time->tv_sec += 24 * 60 * 60;
    return failed;
}
";

/// Compiles [`CLOCK_A_DAY_AHEAD`]. Returns `None` without a C compiler.
fn clock_a_day_ahead(cluster: &Cluster) -> Option<PathBuf> {
    let (source, library) = (cluster.path("ahead.c"), cluster.path("ahead.so"));
    fs::write(&source, CLOCK_A_DAY_AHEAD).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    compiler.status().is_ok_and(|ran| ran.success()).then_some(library)
}

#[test]
fn a_tracker_registers_after_its_clock_was_set_back() {
    // The cluster is open, because the tokens of a closed cluster expire by the same clock.
    let cluster = Cluster::up(Up { nodes: 2, settings: SETTINGS, open: true, ..Up::default() });
    let Some(ahead) = clock_a_day_ahead(&cluster) else {
        return skip("cc", "there is no C compiler");
    };
    let start = || {
        let log = cluster.log("node2-tasktracker");
        log.lines().rfind(|line| line.contains("tasktracker serves")).unwrap().to_owned()
    };
    let restart = |preload: Option<&PathBuf>| {
        let before = start();
        cluster.mrctl(&["chaos", "kill", "node2", "--daemon", "tasktracker"]);
        let mut command = cluster.command(&["chaos", "restart", "node2", "--daemon", "tasktracker"]);
        let ran = command.envs(preload.map(|library| ("LD_PRELOAD", library))).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        eventually("the new process registers", || {
            let log = cluster.log("node2-tasktracker");
            let (_, since) = log.rsplit_once("tasktracker serves").unwrap();
            (start() != before && since.contains(" registered")).then_some(())
        });
        eventually("the tracker is live", || {
            let nodes = cluster.json(&["nodes"]);
            let live = |node: &serde_json::Value| node["tracker"]["state"] == "live";
            nodes.as_array()?.iter().all(live).then_some(())
        });
    };
    let day = |line: &str| line[.."2026-01-01".len()].to_owned();
    let today = day(&start());
    restart(Some(&ahead));
    assert!(day(&start()) > today, "its clock is not ahead: {}", start());
    restart(None);
}

#[test]
fn sighup_ends_no_daemon() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings: SETTINGS, ..Up::default() });
    for daemon in ["namenode", "jobtracker", "datanode", "tasktracker"] {
        let pids = cluster.processes_named(daemon);
        assert!(!pids.is_empty(), "{daemon} is not running");
        signal(&pids, "-HUP");
        let printed = || {
            let logs = fs::read_dir(cluster.path(".fermata/logs")).unwrap().flatten();
            let mut texts = logs.filter_map(|log| {
                let name = log.file_name().to_string_lossy().into_owned();
                name.contains(daemon).then(|| fs::read_to_string(log.path()).unwrap_or_default())
            });
            texts.any(|text| text.contains("SIGHUP")).then_some(())
        };
        eventually(&format!("{daemon} logs the signal"), printed);
        assert_eq!(cluster.processes_named(daemon), pids, "{daemon} has ended");
    }
}

/// As during the replay of a long journal, the daemon runs but does not serve yet. Here it waits
/// for its configuration from a pipe.
#[test]
fn sighup_ends_no_daemon_that_is_still_starting() {
    const NONBLOCK: i32 = 0o4000;
    let folder = tempfile::tempdir().unwrap();
    for daemon in ["namenode", "jobtracker", "datanode", "tasktracker"] {
        let config = folder.path().join(daemon);
        assert!(Command::new("mkfifo").arg(&config).status().unwrap().success());
        let mut command = Command::new(binaries().join(daemon));
        command.args(["--print-config", "--config"]).arg(&config).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        // The pipe can be opened as soon as the daemon reads from it.
        let pipe = eventually(&format!("{daemon} reads its configuration"), || {
            fs::OpenOptions::new().write(true).custom_flags(NONBLOCK).open(&config).ok()
        });
        signal(&[child.id().to_string()], "-HUP");
        drop(pipe);
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), None, "{daemon}: {status}");
    }
}

#[test]
fn a_mapper_that_numbers_its_lines_is_never_split() {
    // `submit` prints advice under every policy, also under fifo, which itself does not preempt.
    let settings = format!("{SETTINGS}[scheduler]\nname = \"fifo\"\n");
    let cluster = Cluster::up(Up { settings: &settings, ..Up::default() });
    fs::write(cluster.path("text"), "line\n".repeat(60_000)).unwrap();
    cluster.mrctl(&["fs", "put", "text", "/text"]);
    let numbering = ["streaming", "--mapper", "awk {print(NR)}", "--reduces", "0", "--input", "/text"];
    cluster.succeed(&[&numbering[..], &["--output", "/plain"]].concat());
    let slow = ["--conf", "pace.map=100KiB", "--output", "/disturbed"];
    let ran = cluster.try_mrctl(&[&["submit"], &numbering[..], &slow[..], &["--detach"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let job = ran.stdout.split_whitespace().find(|word| word.starts_with("job_")).unwrap().to_owned();
    let running = || {
        let tasks = cluster.json(&["tasks", &job]);
        let attempts = tasks.as_array()?.iter().filter_map(|task| task["attempts"].as_array()).flatten();
        let mut running = attempts
            .filter(|attempt| attempt["state"] == "running" && attempt["progress"].as_f64() > Some(0.1));
        Some(running.next()?["attempt"].as_str()?.to_owned())
    };
    let attempt = eventually("a map has read some lines", running);
    let refused = cluster.try_mrctl(&["preempt", &attempt, "--how", "split"]);
    // The exit code is 0 if the map did not run there, else 1, because the drain takes longer than
    // a second. In both cases the drain continues.
    let drain = cluster.try_mrctl(&["drain", "node1", "--deadline", "1s"]);
    assert!(drain.code <= 1, "{}: {}", drain.code, drain.stderr);
    eventually("the job has ended", || (cluster.json(&["job", &job])["state"] == "succeeded").then_some(()));
    assert!(cluster.output("/disturbed") == cluster.output("/plain"), "a map was split: line numbers differ");
    let divisible = "stream.mapper.divisible=true";
    assert!(refused.code == 1 && refused.stderr.contains(divisible), "{}{}", refused.stdout, refused.stderr);
    assert_eq!(ran.stderr.matches(divisible).count(), 1, "the advice must be printed once: {}", ran.stderr);
}

#[test]
fn unknown_queue_is_refused() {
    let settings = "[scheduler]\nname = \"capacity\"\n[scheduler.capacity.queues.etl]\ncapacity = 30\n";
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings, ..Up::default() });
    fs::write(cluster.path("text"), "word\n").unwrap();
    cluster.mrctl(&["fs", "put", "text", "/text"]);
    let job = ["submit", "wordcount", "--input", "/text", "--output", "/out", "--queue"];
    let refused = cluster.refused(2, &[&job[..], &["elt"]].concat());
    assert!(refused.contains("\"elt\"") && refused.contains("default, etl"), "{refused}");
    cluster.mrctl(&[&job[..], &["etl"]].concat());
}
