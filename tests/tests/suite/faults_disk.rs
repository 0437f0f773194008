//! Disks that fail where it hurts: every fsync of a daemon fails, or kills it (by strace, into the real binaries). What was
//! acknowledged is there afterwards, what could not be made durable never was acknowledged, and jobs go on to the same
//! output. Skipped, with a word, where strace cannot be used.

use fermata_tests::{Cluster, QUICK, Up, eventually, random_file, sha256_of};
use std::{
    fs,
    process::{Child, Command, Stdio},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_mins(1);

fn cluster() -> Cluster {
    let settings = format!(
        "{QUICK}[jobtracker]\nheartbeat = \"200ms\"\nsuspect_after = \"1s\"\nlost_after = \"4s\"\n\
         [client]\ndeadline = \"2s\"\n"
    );
    Cluster::up(Up { nodes: 3, settings: &settings, ..Up::default() })
}

fn pid_of(cluster: &Cluster, name: &str, kind: &str) -> String {
    let text = fs::read_to_string(cluster.path(".fermata/cluster.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&text).unwrap();
    let daemons = state["daemons"].as_array().unwrap();
    let found = daemons.iter().find(|daemon| daemon["name"] == name && daemon["kind"] == kind);
    found.unwrap()["pid"].to_string()
}

/// Holds a daemon in its hand. Dropped, it lets go.
struct Strace(Child);

impl Strace {
    /// Whenever the daemon makes something durable, `what` happens. None where that cannot be.
    fn hold(cluster: &Cluster, name: &str, kind: &str, what: &str) -> Option<Self> {
        let log = cluster.path("strace.log");
        let inject = format!("inject=fsync,fdatasync:{what}");
        let child = Command::new("strace")
            .args([
                "-f",
                "-q",
                "-e",
                "trace=fsync,fdatasync",
                "-e",
                &inject,
                "-p",
                &pid_of(cluster, name, kind),
            ])
            .arg("-o")
            .arg(&log)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(child) = child else {
            eprintln!("skipped: strace is not here");
            return None;
        };
        let mut held = Self(child);
        let pid = pid_of(cluster, name, kind);
        let traced = || {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            (!status.contains("TracerPid:\t0")).then_some(true)
        };
        let attached = eventually("strace holds it, or cannot", PATIENCE, || {
            traced().or_else(|| held.0.try_wait().unwrap().map(|_| false))
        });
        if !attached {
            eprintln!("skipped: strace may not hold processes here");
            return None;
        }
        Some(held)
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        // It lets go of what it holds when it is asked to end.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn await_death(cluster: &Cluster, name: &str, kind: &str) {
    let pid = pid_of(cluster, name, kind);
    eventually(&format!("the {kind} of {name} has ended"), PATIENCE, || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
}

#[test]
fn what_cannot_be_made_durable_is_not_acknowledged() {
    let cluster = cluster();
    cluster.mrctl(&["fs", "mkdir", "/before"]);
    fs::write(cluster.path("in"), "a b\n".repeat(1000)).unwrap();
    cluster.mrctl(&["fs", "put", "in", "/in"]);

    // The NameNode says nothing that it cannot keep, and ends.
    let Some(held) = Strace::hold(&cluster, "namenode", "namenode", "error=EIO") else { return };
    assert_eq!(cluster.try_mrctl(&["fs", "mkdir", "/never"]).code, 1, "a folder that is not durable");
    await_death(&cluster, "namenode", "namenode");
    drop(held);
    cluster.mrctl(&["chaos", "restart", "namenode"]);
    cluster.mrctl(&["fs", "stat", "/before"]);
    cluster.mrctl(&["fs", "mkdir", "/after"]);

    // A job that is not durable is not taken.
    let Some(held) = Strace::hold(&cluster, "jobtracker", "jobtracker", "error=EIO") else { return };
    let never = ["submit", "wordcount", "--input", "/in", "--output", "/never-counted", "--detach"];
    assert_eq!(cluster.try_mrctl(&never).code, 1, "a job that is not durable");
    await_death(&cluster, "jobtracker", "jobtracker");
    drop(held);
    cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    cluster.succeed(&["wordcount", "--input", "/in", "--output", "/counted"]);

    // A DataNode whose disk fails retires it; the file is whole on others.
    let Some(held) = Strace::hold(&cluster, "node1", "datanode", "error=EIO") else { return };
    let source = cluster.path("source");
    random_file(&source, 6 << 20, 3);
    cluster.mrctl(&["fs", "put", source.to_str().unwrap(), "/file"]);
    let got = cluster.path("got");
    cluster.mrctl(&["fs", "get", "/file", got.to_str().unwrap()]);
    assert_eq!(sha256_of(&got), sha256_of(&source));
    await_death(&cluster, "node1", "datanode");
    drop(held);
    let log = fs::read_to_string(cluster.path(".fermata/logs/node1-datanode.log")).unwrap();
    assert!(log.contains("Input/output error"), "{log}");
    cluster.mrctl(&["fs", "fsck", "/", "--wait", "60s"]);
}

/// The NameNode dies at the nth time that it makes something durable.
fn namenode_dies_at(cluster: &Cluster, point: u32) -> Option<()> {
    let held = Strace::hold(cluster, "namenode", "namenode", &format!("signal=KILL:when={point}"))?;
    let mut acknowledged = Vec::new();
    for number in 0..point + 20 {
        let path = format!("/edit-{point}-{number}");
        if cluster.try_mrctl(&["fs", "mkdir", &path]).code != 0 {
            break;
        }
        acknowledged.push(path);
    }
    assert!(acknowledged.len() < point as usize + 20, "it never died");
    drop(held);
    cluster.mrctl(&["chaos", "restart", "namenode"]);
    for path in &acknowledged {
        cluster.mrctl(&["fs", "stat", path]);
    }
    println!("the namenode dies at sync {point}: {} acknowledged edits are there", acknowledged.len());
    Some(())
}

/// The JobTracker dies at the nth time that it makes something durable, from the submission to the commit; false if the
/// job was over before that.
fn jobtracker_dies_at(cluster: &Cluster, point: u32, wanted: &[u8]) -> Option<bool> {
    let output = format!("/counted-{point}");
    let held = Strace::hold(cluster, "jobtracker", "jobtracker", &format!("signal=KILL:when={point}"))?;
    let submit = ["submit", "wordcount", "--input", "/in", "--output", &output, "--detach"];
    // Not acknowledged if it dies first; whether it is there afterwards, the JobTracker knows.
    cluster.try_mrctl(&submit);
    let pid = pid_of(cluster, "jobtracker", "jobtracker");
    let died = eventually("it dies, or the job is over", PATIENCE, || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if stat.is_empty() || stat.contains(") Z ") {
            return Some(true);
        }
        let ran = cluster.try_mrctl(&["jobs", "--json"]);
        let jobs: serde_json::Value = serde_json::from_str(&ran.stdout).ok()?;
        let over = |job: &serde_json::Value| job["output"] == output.as_str() && job["state"] == "succeeded";
        jobs.as_array()?.iter().any(over).then_some(false)
    });
    drop(held);
    if died {
        cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    }
    let there = |job: &serde_json::Value| job["output"] == output.as_str();
    if !cluster.json(&["jobs"]).as_array().unwrap().iter().any(there) {
        cluster.mrctl(&submit);
    }
    eventually("the job succeeds", PATIENCE, || {
        let jobs = cluster.json(&["jobs"]);
        let job = jobs.as_array()?.iter().find(|job| there(job))?.clone();
        assert_ne!(job["state"], "failed", "{job}");
        (job["state"] == "succeeded").then_some(())
    });
    assert_eq!(cluster.output(&output), wanted, "died at sync {point}");
    cluster.wait_clean();
    println!("the jobtracker dies at sync {point}: {died}");
    Some(died)
}

fn dies_at_points(points: impl Iterator<Item = u32> + Clone) -> u32 {
    let cluster = cluster();
    fs::write(cluster.path("in"), "a b\n".repeat(1000)).unwrap();
    cluster.mrctl(&["fs", "put", "in", "/in"]);
    cluster.succeed(&["wordcount", "--input", "/in", "--output", "/counted"]);
    let wanted = cluster.output("/counted");
    let mut deaths = 0;
    for point in points {
        match jobtracker_dies_at(&cluster, point, &wanted) {
            Some(true) => deaths += 1,
            Some(false) => break,
            None => return deaths,
        }
        if namenode_dies_at(&cluster, point).is_none() {
            return deaths;
        }
    }
    deaths
}

#[test]
fn masters_die_while_they_make_something_durable() {
    dies_at_points([1, 4].into_iter());
}

#[test]
#[ignore = "minutes: scripts/long-tests masters_die_at_every_sync"]
fn masters_die_at_every_sync_of_a_job() {
    let deaths = dies_at_points(1..40);
    println!("{deaths} points from the submission of a job to its end");
}
