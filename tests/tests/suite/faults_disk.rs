//! Disk faults in the real binaries, injected by strace: every fsync of a daemon fails or kills it.
//! Checks that acknowledged data exists afterwards, that data which could not be made durable was
//! never acknowledged, and that jobs give the same output. Skipped with a message if strace cannot
//! be used.

use fermata_tests::{Cluster, QUICK, Row, SYNCS, Strace, Up, eventually, is_gone, random_file, sha256_of};
use std::{fs, process::Stdio};

/// System calls that send data.
const SEND_CALLS: &str = "write,writev,sendto,sendmsg";
/// System calls with which a tracker or a task saves a checkpoint: renames, deletes and syncs.
const CHECKPOINT_CALLS: &str = "rename,renameat,renameat2,unlink,unlinkat,mkdir,fsync,fdatasync";

fn cluster() -> Cluster {
    let settings = format!(
        "{QUICK}[jobtracker]\nheartbeat = \"200ms\"\n\
         [client]\ndeadline = \"2s\"\n"
    );
    Cluster::up(Up { nodes: 3, settings: &settings, ..Up::default() })
}

fn await_death(cluster: &Cluster, name: &str, kind: &str) {
    let pid = cluster.pid_of(name, kind);
    eventually(&format!("the {kind} of {name} has ended"), || is_gone(&pid).then_some(()));
}

#[test]
fn data_that_is_not_durable_is_not_acknowledged() {
    let cluster = cluster();
    cluster.mrctl(&["fs", "mkdir", "/before"]);
    fs::write(cluster.path("in"), "a b\n".repeat(1000)).unwrap();
    cluster.mrctl(&["fs", "put", "in", "/in"]);

    // The NameNode acknowledges nothing that is not durable, and ends.
    let Some(held) = Strace::hold(&cluster, "namenode", "namenode", "error=EIO") else { return };
    let mut row = Row::begin("every fsync of the namenode fails");
    assert_eq!(
        cluster.try_mrctl(&["fs", "mkdir", "/never"]).code,
        1,
        "a folder that is not durable was acknowledged"
    );
    await_death(&cluster, "namenode", "namenode");
    row.detected();
    drop(held);
    row.restart_clock();
    cluster.mrctl(&["chaos", "restart", "namenode"]);
    cluster.mrctl(&["fs", "stat", "/before"]);
    cluster.mrctl(&["fs", "mkdir", "/after"]);
    row.recovered();

    // A job that is not durable is not accepted.
    let Some(held) = Strace::hold(&cluster, "jobtracker", "jobtracker", "error=EIO") else { return };
    let never = ["submit", "wordcount", "--input", "/in", "--output", "/never-counted", "--detach"];
    let mut row = Row::begin("every fsync of the jobtracker fails");
    assert_eq!(cluster.try_mrctl(&never).code, 1, "a job that is not durable was acknowledged");
    await_death(&cluster, "jobtracker", "jobtracker");
    row.detected();
    drop(held);
    row.restart_clock();
    cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    cluster.succeed(&["wordcount", "--input", "/in", "--output", "/counted"]);
    row.recovered();

    // A DataNode whose disk fails stops using it. The other nodes have the complete file.
    let Some(held) = Strace::hold(&cluster, "node1", "datanode", "error=EIO") else { return };
    let source = cluster.path("source");
    random_file(&source, 6 << 20, 3);
    let mut row = Row::begin("every fsync of a datanode fails");
    cluster.mrctl(&["fs", "put", source.to_str().unwrap(), "/file"]);
    let got = cluster.path("got");
    cluster.mrctl(&["fs", "get", "/file", got.to_str().unwrap()]);
    assert_eq!(sha256_of(&got), sha256_of(&source));
    await_death(&cluster, "node1", "datanode");
    row.detected();
    drop(held);
    let log = fs::read_to_string(cluster.path(".fermata/logs/node1-datanode.log")).unwrap();
    assert!(log.contains("Input/output error"), "{log}");
    cluster.mrctl(&["fs", "fsck", "/", "--wait", "5m"]);
    row.recovered();
}

/// Kills the JobTracker when it makes the answer to a request durable. The client repeats the
/// request.
#[test]
fn kill_is_carried_out_once_if_the_jobtracker_dies_before_its_answer() {
    let cluster = cluster();
    fs::write(cluster.path("in"), "a\n").unwrap();
    cluster.mrctl(&["fs", "put", "in", "/in"]);
    let job = cluster.detach(&["streaming", "--mapper", "sleep 600", "--input", "/in", "--output", "/out"]);
    eventually("the job runs", || (cluster.json(&["job", &job])["maps"]["running"] == 1).then_some(()));
    let Some(held) = Strace::hold(&cluster, "jobtracker", "jobtracker", "signal=KILL:when=1") else { return };
    let killing = cluster.command(&["kill", &job]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    await_death(&cluster, "jobtracker", "jobtracker");
    drop(held);
    cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    let killed = killing.unwrap().wait_with_output().unwrap();
    assert!(killed.status.success(), "{}", String::from_utf8_lossy(&killed.stderr));
    assert_eq!(cluster.json(&["job", &job])["state"], "killed");
    assert_eq!(cluster.mrctl(&["history", &job]).matches("\"job-ended\"").count(), 1);
}

/// Kills the NameNode at its nth sync. Checks that the acknowledged folders exist after a restart.
/// Returns `None` if strace cannot be used.
fn kill_namenode_at_sync(cluster: &Cluster, point: u32) -> Option<()> {
    let held = Strace::hold(cluster, "namenode", "namenode", &format!("signal=KILL:when={point}"))?;
    let mut acknowledged = Vec::new();
    for number in 0..point + 20 {
        let path = format!("/edit-{point}-{number}");
        if cluster.try_mrctl(&["fs", "mkdir", &path]).code != 0 {
            break;
        }
        acknowledged.push(path);
    }
    assert!(acknowledged.len() < point as usize + 20, "the NameNode did not die");
    drop(held);
    cluster.mrctl(&["chaos", "restart", "namenode"]);
    for path in &acknowledged {
        cluster.mrctl(&["fs", "stat", path]);
    }
    println!("the namenode dies at sync {point}: {} acknowledged edits are there", acknowledged.len());
    Some(())
}

/// Kills the JobTracker at the nth of `calls` after the submission of a job. Checks the output of
/// the job after a restart. Returns false if the job ended before the kill, and `None` if strace
/// cannot be used.
fn kill_jobtracker_at_call(cluster: &Cluster, calls: &str, point: u32, wanted: &[u8]) -> Option<bool> {
    let output = format!("/counted-{}-{point}", calls.len());
    let pid = cluster.pid_of("jobtracker", "jobtracker");
    let held = Strace::hold_at(cluster, &pid, &[], calls, &format!("signal=KILL:when={point}"))?;
    let submit = ["submit", "wordcount", "--input", "/in", "--output", &output, "--detach"];
    // The submission is not acknowledged if the JobTracker dies first. Whether the job exists is
    // found out after the restart.
    cluster.try_mrctl(&submit);
    eventually("the JobTracker dies, or the job has ended", || {
        if is_gone(&pid) {
            return Some(());
        }
        let ran = cluster.try_mrctl(&["jobs", "--json"]);
        let jobs: serde_json::Value = serde_json::from_str(&ran.stdout).ok()?;
        let over = |job: &serde_json::Value| job["output"] == output.as_str() && job["state"] == "succeeded";
        jobs.as_array()?.iter().any(over).then_some(())
    });
    drop(held);
    // The JobTracker may have died after the job ended.
    let died = is_gone(&pid);
    if died {
        cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    }
    let existing = |job: &serde_json::Value| job["output"] == output.as_str();
    if !cluster.json(&["jobs"]).as_array().unwrap().iter().any(existing) {
        cluster.mrctl(&submit);
    }
    eventually("the job succeeds", || {
        let jobs = cluster.json(&["jobs"]);
        let job = jobs.as_array()?.iter().find(|job| existing(job))?.clone();
        assert_ne!(job["state"], "failed", "{job}");
        (job["state"] == "succeeded").then_some(())
    });
    assert_eq!(cluster.output(&output), wanted, "the JobTracker died at call {point} of {calls}");
    cluster.wait_clean();
    println!("the jobtracker dies at call {point} of {calls}: {died}");
    Some(died)
}

fn cluster_with_counted_words() -> (Cluster, Vec<u8>) {
    let cluster = cluster();
    fs::write(cluster.path("in"), "a b\n".repeat(1000)).unwrap();
    cluster.mrctl(&["fs", "put", "in", "/in"]);
    cluster.succeed(&["wordcount", "--input", "/in", "--output", "/counted"]);
    let wanted = cluster.output("/counted");
    (cluster, wanted)
}

#[test]
fn masters_killed_at_a_sync_lose_nothing_acknowledged() {
    let (cluster, wanted) = cluster_with_counted_words();
    if kill_jobtracker_at_call(&cluster, SYNCS, 3, &wanted).is_some() {
        kill_namenode_at_sync(&cluster, 2);
    }
}

#[test]
#[ignore = "minutes: scripts/long-tests masters_die_at_every"]
fn masters_die_at_every_point_of_a_job_and_lose_nothing() {
    let (cluster, wanted) = cluster_with_counted_words();
    for (calls, step) in [(SYNCS, 1), (SEND_CALLS, 3)] {
        let mut deaths = 0;
        for point in (1..400).step_by(step) {
            match kill_jobtracker_at_call(&cluster, calls, point, &wanted) {
                Some(true) => deaths += 1,
                Some(false) => break,
                None => return,
            }
        }
        println!("{deaths} points of {calls} from the submission of a job to its end");
    }
    for point in 1..=8 {
        kill_namenode_at_sync(&cluster, point);
    }
}

/// Kills a tracker, or its task, at the nth disk operation after a reduce was preempted. Checks the
/// output of the job. Returns false if there are fewer operations, and `None` if strace cannot be
/// used.
fn kill_during_pause(cluster: &Cluster, point: u32, wanted: &[u8]) -> Option<bool> {
    let output = format!("/paused-{point}");
    let conf = ["--conf", "pace.reduce=6KiB", "--conf", "slow.start=0", "--reduces", "1"];
    let id = cluster.detach(&[&["wordcount", "--input", "/words", "--output", &output], &conf[..]].concat());
    let (attempt, node) = eventually("the reduce is in its last stage", || {
        let tasks = cluster.json(&["tasks", &id]);
        let all = tasks
            .as_array()?
            .iter()
            .filter(|task| task["task"].as_str().is_some_and(|name| name.contains(".r")));
        let running = all.flat_map(|task| task["attempts"].as_array().unwrap().clone());
        let attempt = running
            .into_iter()
            .find(|one| one["state"] == "running" && one["progress"].as_f64() > Some(0.7))?;
        Some((attempt["attempt"].as_str()?.to_owned(), attempt["tracker"].as_str()?.to_owned()))
    });
    let pid = cluster.pid_of(&node, "tasktracker");
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<String> =
        children.flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect();
    let held =
        Strace::hold_at(cluster, &pid, &children, CHECKPOINT_CALLS, &format!("signal=KILL:when={point}"))?;
    cluster.try_mrctl(&["preempt", &attempt, "--how", "pause"]);
    let task = attempt.rsplit_once('.').unwrap().0.to_owned();
    let died = eventually("the reduce has paused, or the tracker has died", || {
        if is_gone(&pid) {
            return Some(true);
        }
        let killed = fs::read_to_string(cluster.path("strace.log")).unwrap_or_default().contains("SIGKILL");
        let tasks = cluster.json(&["tasks", &id]);
        let paused =
            tasks.as_array()?.iter().any(|one| one["task"] == task.as_str() && one["state"] == "paused");
        if killed { Some(true) } else { paused.then_some(false) }
    });
    drop(held);
    if is_gone(&pid) {
        cluster.mrctl(&["chaos", "restart", &node, "--daemon", "tasktracker"]);
    }
    eventually("the job succeeds", || {
        // A paused task waits until it is resumed.
        cluster.try_mrctl(&["resume", &task]);
        let job = cluster.json(&["job", &id]);
        assert_ne!(job["state"], "failed", "{job}");
        (job["state"] == "succeeded").then_some(())
    });
    assert_eq!(cluster.output(&output), wanted, "killed at call {point}");
    cluster.wait_clean();
    println!("dies at call {point} while a reduce saves its checkpoint: {died}");
    Some(died)
}

#[test]
#[ignore = "minutes: scripts/long-tests trackers_die_at_every"]
fn trackers_die_at_every_point_of_a_pause_and_change_no_byte() {
    let cluster = cluster();
    let words: Vec<String> = (0..3000).map(|number| format!("word{number:05}\n")).collect();
    fs::write(cluster.path("words"), words.concat()).unwrap();
    cluster.mrctl(&["fs", "put", "words", "/words"]);
    cluster.succeed(&["wordcount", "--input", "/words", "--output", "/calm", "--reduces", "1"]);
    let wanted = cluster.output("/calm");
    let deaths =
        (1..30).take_while(|point| kill_during_pause(&cluster, *point, &wanted) == Some(true)).count();
    println!("{deaths} points of a pause");
}
