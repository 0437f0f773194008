//! How long finished jobs are kept, and the messages about removed ones.

use fermata_tests::{Cluster, Strace, Up, eventually, is_gone};
use std::{fs, path::Path, process::Command, slice, time::UNIX_EPOCH};

#[test]
fn old_jobs_are_forgotten_and_errors_about_logs_name_the_unreachable_tracker() {
    let settings = "[jobtracker]\njobs_kept = 2\nhistories_kept = 4\nheartbeat = \"200ms\"\n";
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings, ..Up::default() });
    fs::write(cluster.path("f"), "a b\n").unwrap();
    cluster.mrctl(&["fs", "put", "f", "/f"]);
    for at in 1..=7 {
        cluster.succeed(&["wordcount", "--input", "/f", "--output", &format!("/out{at}")]);
    }
    let jobs = cluster.json(&["jobs"]);
    let kept: Vec<&str> = jobs.as_array().unwrap().iter().map(|job| job["job"].as_str().unwrap()).collect();
    // Old jobs are removed when a new one is submitted.
    assert_eq!(kept, ["job_5", "job_6", "job_7"]);
    // The job is only in the history. Commands that need the job in memory refer to the history.
    for command in ["job", "tasks", "counters", "kill"] {
        let line = cluster.refused(1, &[command, "job_4"]);
        assert!(line.contains("job_4") && line.contains("mrctl history job_4"), "{command}: {line}");
    }
    assert!(cluster.refused(1, &["logs", "job_4.m0"]).contains("mrctl history job_4"));
    assert!(cluster.mrctl(&["history", "job_4"]).lines().count() > 3);
    // The job is not even in the history.
    let line = cluster.refused(1, &["history", "job_1"]);
    assert!(line.contains("job_1") && line.contains("newest 4"), "{line}");
    assert!(cluster.refused(1, &["job", "job_1"]).contains("no job_1: `mrctl jobs` lists"));

    let logs = ["logs", "job_7.m0"];
    cluster.mrctl(&logs);
    cluster.mrctl(&["chaos", "stop", "node1", "--daemon", "tasktracker"]);
    let frozen = cluster.refused(1, &logs);
    assert!(frozen.contains("node1") && frozen.contains("is unreachable"), "{frozen}");
    cluster.mrctl(&["chaos", "kill", "node1", "--daemon", "tasktracker"]);
    let lost = cluster.refused(1, &logs);
    assert!(lost.contains("node1") && lost.contains("is unreachable"), "{lost}");
    // Logs survive a restart of the tracker.
    cluster.mrctl(&["chaos", "restart", "node1", "--daemon", "tasktracker"]);
    cluster.mrctl(&logs);
}

/// Returns the lines of a history, each with its time in microseconds.
fn lines_of(history: &Path) -> Vec<(u128, String)> {
    let time = |line: &str| {
        let fact: serde_json::Value = serde_json::from_str(line).unwrap();
        u128::from(fact["at_us"].as_u64().unwrap())
    };
    fs::read_to_string(history).unwrap().lines().map(|line| (time(line), line.to_owned())).collect()
}

/// strace makes writes to the history slow. The JobTracker is stopped while lines of a killed job
/// wait to be written. Checks that it writes them before it ends.
#[test]
fn history_is_complete_after_a_clean_stop() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("text"), "word\n".repeat(20_000)).unwrap();
    cluster.mrctl(&["fs", "put", "text", "/text"]);
    let slow = ["wordcount", "--conf", "pace.map=10KiB", "--input", "/text", "--output", "/out"];
    let job = cluster.detach(&slow);
    eventually("the map of the job runs", || {
        (cluster.json(&["job", &job])["maps"]["running"] != 0).then_some(())
    });
    let history = cluster.path(&format!(".fermata/data/jobtracker/history/{job}.jsonl"));
    let history = fs::canonicalize(history).unwrap();
    let pid = cluster.pid_of("jobtracker", "jobtracker");
    let second = "delay_enter=1000000";
    let Some(held) = Strace::hold_files(&cluster, &pid, "write", second, slice::from_ref(&history)) else {
        return;
    };
    cluster.mrctl(&["kill", &job]);
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    eventually("the JobTracker has ended", || is_gone(&pid).then_some(()));
    let stopped_at = UNIX_EPOCH.elapsed().unwrap().as_micros();
    drop(held);
    let stopped = lines_of(&history);
    // At its next start the JobTracker adds missing lines from the journal.
    cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    let complete = lines_of(&history);
    let known: Vec<_> = complete.into_iter().filter(|(at, _)| *at <= stopped_at).collect();
    assert!(known.iter().any(|(_, line)| line.contains("job-ended")), "{known:#?}");
    assert!(stopped.starts_with(&known), "known: {known:#?}, in the file: {stopped:#?}");
}
