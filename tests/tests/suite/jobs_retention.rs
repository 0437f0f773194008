//! What is kept of jobs that are over, for how long, and what is said of what is gone.

use fermata_tests::{Cluster, Up};
use std::fs;

#[test]
fn old_jobs_are_forgotten_and_lost_trackers_named() {
    let settings = "[jobtracker]\njobs_kept = 2\nhistories_kept = 4\nheartbeat = \"200ms\"\n\
                    suspect_after = \"1s\"\nlost_after = \"2s\"\n";
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings, ..Up::default() });
    fs::write(cluster.path("f"), "a b\n").unwrap();
    cluster.mrctl(&["fs", "put", "f", "/f"]);
    for at in 1..=7 {
        cluster.succeed(&["wordcount", "--input", "/f", "--output", &format!("/out{at}")]);
    }
    let jobs = cluster.json(&["jobs"]);
    let kept: Vec<&str> = jobs.as_array().unwrap().iter().map(|job| job["job"].as_str().unwrap()).collect();
    // Old ones go when a new one comes.
    assert_eq!(kept, ["job_5", "job_6", "job_7"]);
    // In history alone: everything that needs the job says where to look.
    for command in ["job", "tasks", "counters", "kill"] {
        let line = cluster.refused(1, &[command, "job_4"]);
        assert!(line.contains("job_4") && line.contains("mrctl history job_4"), "{command}: {line}");
    }
    assert!(cluster.refused(1, &["logs", "job_4.m0"]).contains("mrctl history job_4"));
    assert!(cluster.mrctl(&["history", "job_4"]).lines().count() > 3);
    // Not even there.
    let line = cluster.refused(1, &["history", "job_1"]);
    assert!(line.contains("job_1") && line.contains("newest 4"), "{line}");
    assert!(cluster.refused(1, &["job", "job_1"]).contains("no job_1"));

    let logs = ["logs", "job_7.m0"];
    cluster.mrctl(&logs);
    cluster.mrctl(&["chaos", "stop", "node1", "--daemon", "tasktracker"]);
    let frozen = cluster.refused(1, &logs);
    assert!(frozen.contains("node1") && frozen.contains("does not answer"), "{frozen}");
    cluster.mrctl(&["chaos", "kill", "node1", "--daemon", "tasktracker"]);
    let lost = cluster.refused(1, &logs);
    assert!(lost.contains("node1") && lost.contains("does not answer"), "{lost}");
    // Logs outlive the tracker's process.
    cluster.mrctl(&["chaos", "restart", "node1", "--daemon", "tasktracker"]);
    cluster.mrctl(&logs);
}
