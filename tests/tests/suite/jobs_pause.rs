//! Reduces are paused, and resume on the same or another node. Checks that the output does not
//! change.

use fermata_tests::{Cluster, QUICK, Up, eventually};
use serde_json::Value;
use std::{fs, path::PathBuf};

/// Settings with which unreachable trackers are detected soon.
const SETTINGS: &str = "[jobtracker]\nheartbeat = \"200ms\"\nsuspect_after = \"1s\"\nlost_after = \"20s\"\n";

/// Returns different lines, so that a lost or repeated line changes the output.
pub(crate) fn lines(count: usize) -> String {
    let line = |at: usize| ["line ", &at.to_string(), " ", &"word ".repeat(at % 9), "\n"].concat();
    (0..count).map(line).collect()
}

fn cluster(nodes: u32) -> Cluster {
    cluster_with(nodes, SETTINGS)
}

fn cluster_with(nodes: u32, settings: &str) -> Cluster {
    let settings = [QUICK, settings].concat();
    let cluster = Cluster::up(Up { nodes, block_size: "256KiB", settings: &settings, ..Up::default() });
    fs::write(cluster.path("text"), lines(30_000)).unwrap();
    cluster.mrctl(&["fs", "put", "text", "/text"]);
    cluster
}

fn task(cluster: &Cluster, task: &str) -> Value {
    let job = task.split('.').next().unwrap();
    let tasks = cluster.json(&["tasks", job]);
    let found = tasks.as_array().unwrap().iter().find(|found| found["task"] == task);
    found.unwrap_or_else(|| panic!("no {task}: {tasks}")).clone()
}

fn newest_attempt(task: &Value) -> Value {
    task["attempts"].as_array().unwrap().last().cloned().unwrap_or_default()
}

/// Waits until the newest attempt of a task runs in this stage, and returns it.
pub(crate) fn running(cluster: &Cluster, name: &str, stage: &str) -> String {
    eventually(&format!("{name} in {stage}"), || {
        let attempt = newest_attempt(&task(cluster, name));
        let is_there = attempt["state"] == "running" && attempt["stage"] == stage;
        is_there.then(|| attempt["attempt"].as_str().unwrap().to_owned())
    })
}

/// Pauses the running attempt of a task, and returns the paused attempt as JSON.
pub(crate) fn pause(cluster: &Cluster, name: &str, stage: &str) -> Value {
    let attempt = running(cluster, name, stage);
    cluster.mrctl(&["preempt", &attempt, "--how", "pause"]);
    eventually(&format!("the checkpoint of {attempt}"), || {
        let task = task(cluster, name);
        assert_ne!(task["state"], "succeeded", "{attempt} had finished before it was asked to pause");
        (task["state"] == "paused" && task["paused"] == attempt.as_str()).then(|| newest_attempt(&task))
    })
}

/// Waits until a job has succeeded, and returns it.
pub(crate) fn await_success(cluster: &Cluster, job: &str) -> Value {
    cluster.try_mrctl(&["job", job, "--follow"]);
    let job = cluster.json(&["job", job]);
    assert_eq!(job["state"], "succeeded", "{job}");
    job
}

/// Returns the counters that do not depend on time and place of a run.
pub(crate) fn stable_counters(job: &Value) -> Vec<(&'static str, Value)> {
    let names = [
        "MAP_INPUT_RECORDS",
        "MAP_OUTPUT_RECORDS",
        "REDUCE_INPUT_GROUPS",
        "REDUCE_OUTPUT_RECORDS",
        "OUTPUT_BYTES",
    ];
    names.map(|name| (name, job["counters"][name].clone())).into()
}

const SLOW_REDUCE: [&str; 2] = ["--conf", "pace.reduce=40KiB"];
const WORDCOUNT: [&str; 5] = ["wordcount", "--reduces", "1", "--input", "/text"];

#[test]
fn paused_reduce_resumes_locally_and_remotely() {
    let cluster = cluster(3);
    let plain = cluster.succeed(&[&WORDCOUNT[..], &["--output", "/plain"]].concat());
    // Reduces start with the first map, and maps are slow.
    let slow = ["--conf", "pace.map=100KiB", "--conf", "slow.start=0"];
    let job = cluster.detach(&[&WORDCOUNT[..], &slow, &SLOW_REDUCE, &["--output", "/paused"]].concat());
    let reduce = format!("{job}.r0");
    let paused = pause(&cluster, &reduce, "shuffle");
    let other = |paused: &Value| {
        let on = paused["tracker"].as_str().unwrap();
        ["node1", "node2", "node3"].into_iter().find(|node| *node != on).unwrap()
    };
    // Every command must show the same stage.
    for (command, stage) in [("why", "paused in shuffle"), ("tasks", "pause in shuffle")] {
        let shown = cluster.mrctl(&[command, if command == "why" { &reduce } else { &job }]);
        assert!(shown.contains(stage), "{shown}");
    }
    let history = cluster.mrctl(&["history", &job]);
    let line = history.lines().find(|line| line.contains("attempt-paused")).expect("the pause");
    assert!(line.contains("\"stage\":\"shuffle\""), "{line}");
    let refused = cluster.refused(1, &["resume", &reduce, "--on", "nowhere"]);
    assert!(refused.contains("nowhere"), "{refused}");
    cluster.mrctl(&["resume", &reduce, "--on", other(&paused)]);
    let paused = pause(&cluster, &reduce, "reduce");
    assert_eq!(paused["resumed_from"], format!("{reduce}.0").as_str(), "{paused}");
    cluster.mrctl(&["resume", &reduce]);
    let again = running(&cluster, &reduce, "reduce");
    assert_eq!(
        newest_attempt(&task(&cluster, &reduce))["tracker"],
        paused["tracker"],
        "the reduce should resume where its checkpoint is"
    );
    let refused = cluster.refused(1, &["resume", &reduce]);
    assert!(refused.contains(&format!("{again} is running")), "{refused}");
    let paused = pause(&cluster, &reduce, "reduce");
    let shown = cluster.mrctl(&["tasks", &job]);
    assert!(shown.contains("paused until `mrctl resume`") && shown.contains("slot free after"), "{shown}");
    for command in [&["jobs", "--running"][..], &["job", &job]] {
        let shown = cluster.mrctl(command);
        assert!(shown.contains("waits: 1 task is paused by a user until `mrctl resume`"), "{shown}");
    }
    let listed = cluster.mrctl(&["jobs", "--running"]);
    let before_why = listed.lines().nth(1).unwrap().split("waits: ").next().unwrap().trim_end();
    assert!(before_why.ends_with(" s"), "TOOK is empty: {listed}");
    cluster.mrctl(&["resume", &reduce, "--on", other(&paused)]);
    let ended = await_success(&cluster, &job);
    assert_eq!(stable_counters(&ended), stable_counters(&plain));
    assert!(
        cluster.output("/plain") == cluster.output("/paused"),
        "the output differs from an undisturbed run"
    );
    let cost = &ended["preemption"];
    let figures = ["pauses", "resumes", "migrations", "kills", "checkpoints_lost", "bytes_lost", "ms_lost"];
    let figures = figures.map(|name| cost[name].as_u64().unwrap());
    assert_eq!(figures, [3, 3, 2, 0, 0, 0, 0], "{cost}");
    assert!(cluster.mrctl(&["job", &job]).contains("3 pauses, 3 resumes (2 elsewhere)"));
    assert_eq!(cluster.json(&["counters", &job])["PREEMPT_PAUSES"], 3);
    assert!(cluster.refused(1, &["resume", &reduce]).contains("not running"));
    cluster.wait_clean();
}

fn checkpoint_dir(cluster: &Cluster, paused: &Value) -> PathBuf {
    let text = |name: &str| paused[name].as_str().unwrap().to_owned();
    let (node, attempt) = (text("tracker"), text("attempt"));
    let job = attempt.split('.').next().unwrap();
    cluster.path(&format!(".fermata/tasks/{node}/jobs/{job}/checkpoints/{attempt}"))
}

#[test]
fn restarted_tracker_finds_checkpoints_and_rejects_damaged_ones() {
    let cluster = cluster(3);
    let plain = cluster.succeed(&[&WORDCOUNT[..], &["--output", "/plain"]].concat());
    let job = cluster.detach(&[&WORDCOUNT[..], &SLOW_REDUCE, &["--output", "/paused"]].concat());
    let reduce = format!("{job}.r0");
    let paused = pause(&cluster, &reduce, "reduce");
    let node = paused["tracker"].as_str().unwrap();
    cluster.mrctl(&["chaos", "kill", node, "--daemon", "tasktracker"]);
    cluster.mrctl(&["chaos", "restart", node, "--daemon", "tasktracker"]);
    cluster.mrctl(&["chaos", "kill", "jobtracker"]);
    cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    eventually("the tracker is back", || {
        let nodes = cluster.json(&["nodes"]);
        let live = |found: &Value| found["node"] == node && found["tracker"]["state"] == "live";
        nodes.as_array().unwrap().iter().any(live).then_some(())
    });
    assert_eq!(task(&cluster, &reduce)["paused"], paused["attempt"], "the checkpoint should still exist");
    cluster.mrctl(&["resume", &reduce, "--on", node]);
    let paused = pause(&cluster, &reduce, "reduce");
    assert_eq!(paused["resumed_from"], format!("{reduce}.0").as_str());
    // Damages the last byte of a sorted run in the checkpoint, which has not been read yet.
    let files = fs::read_dir(checkpoint_dir(&cluster, &paused)).unwrap().map(|entry| entry.unwrap().path());
    let run = files.filter(|path| !path.ends_with("state")).max_by_key(|path| path.metadata().unwrap().len());
    let run = run.expect("there is one");
    let mut bytes = fs::read(&run).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&run, bytes).unwrap();
    cluster.mrctl(&["resume", &reduce]);
    let ended = await_success(&cluster, &job);
    assert_eq!(stable_counters(&ended), stable_counters(&plain));
    assert!(
        cluster.output("/plain") == cluster.output("/paused"),
        "the output differs from an undisturbed run"
    );
    let cost = &ended["preemption"];
    assert_eq!((&cost["checkpoints_lost"], &cost["pauses"]), (&1.into(), &2.into()), "{cost}");
    assert_eq!(ended["reduces"]["failed_attempts"], 0, "the task was not at fault: {ended}");
    cluster.wait_clean();
}

#[test]
fn reduce_waits_for_the_unreachable_tracker_with_its_checkpoint() {
    let cluster = cluster(3);
    let plain = cluster.succeed(&[&WORDCOUNT[..], &["--output", "/plain"]].concat());
    let job = cluster.detach(&[&WORDCOUNT[..], &SLOW_REDUCE, &["--output", "/paused"]].concat());
    let reduce = format!("{job}.r0");
    let paused = pause(&cluster, &reduce, "reduce");
    let node = paused["tracker"].as_str().unwrap();
    let mut others = ["node1", "node2", "node3"].into_iter().filter(|other| *other != node);
    cluster.mrctl(&["chaos", "kill", node, "--daemon", "tasktracker"]);
    eventually("the tracker is suspect", || {
        let nodes = cluster.json(&["nodes"]);
        let found = nodes.as_array().unwrap().iter().find(|found| found["node"] == node).cloned();
        found.filter(|found| found["tracker"]["state"] == "suspect")
    });
    // Other trackers have free slots, but do not get the reduce.
    cluster.mrctl(&["resume", &reduce]);
    let refused = cluster.refused(1, &["resume", &reduce, "--on", others.next().unwrap()]);
    assert!(refused.contains("which sends no heartbeats"), "{refused}");
    cluster.mrctl(&["chaos", "restart", node, "--daemon", "tasktracker"]);
    let ended = await_success(&cluster, &job);
    assert_eq!(stable_counters(&ended), stable_counters(&plain));
    assert!(
        cluster.output("/plain") == cluster.output("/paused"),
        "the output differs from an undisturbed run"
    );
    let cost = &ended["preemption"];
    let figures = ["pauses", "resumes", "checkpoints_lost", "bytes_lost", "ms_lost"];
    assert_eq!(figures.map(|name| cost[name].as_u64().unwrap()), [1, 1, 0, 0, 0], "{cost}");
    cluster.wait_clean();
}

#[test]
fn restartable_streaming_reducer_pauses_between_keys() {
    let cluster = cluster(3);
    // Counts the lines of each key, and keeps no state between keys.
    let count = "#!/usr/bin/env python3\nimport sys\nlast, n = None, 0\nfor line in sys.stdin:\n    \
                 key = line.split('\\t')[0]\n    if key != last and last is not None:\n        \
                 print(f'{last}\\t{n}')\n        n = 0\n    last, n = key, n + 1\n\
                 if last is not None:\n    print(f'{last}\\t{n}')\n";
    fs::write(cluster.path("count.py"), count).unwrap();
    let program =
        ["streaming", "--mapper", "tr -s ' ' '\\n'", "--reducer", "python3 count.py", "--file", "count.py"];
    let args = [&program[..], &["--reduces", "1", "--input", "/text"]].concat();
    let plain = cluster.succeed(&[&args[..], &["--output", "/plain"]].concat());
    for restartable in ["true", "false"] {
        let output = format!("/paused-{restartable}");
        let setting = format!("stream.reducer.restartable={restartable}");
        let more = ["--conf", &setting, "--conf", "pace.reduce=200KiB", "--output", &output];
        let job = cluster.detach(&[&args[..], &more].concat());
        let reduce = format!("{job}.r0");
        if restartable == "true" {
            pause(&cluster, &reduce, "reduce");
            cluster.mrctl(&["resume", &reduce]);
        } else {
            // The attempt refuses with a reason, and continues.
            let attempt = running(&cluster, &reduce, "reduce");
            let refused = cluster.refused(1, &["preempt", &attempt, "--how", "pause", "--wait"]);
            assert!(refused.contains("cannot save"), "{refused}");
            let history = cluster.mrctl(&["history", &job]);
            assert!(history.contains("preemption-refused"), "{history}");
        }
        let ended = await_success(&cluster, &job);
        assert_eq!(stable_counters(&ended), stable_counters(&plain));
        assert!(
            cluster.output("/plain") == cluster.output(&output),
            "the output differs from an undisturbed run"
        );
        let cost = &ended["preemption"];
        assert_eq!((&cost["ms_lost"], &cost["bytes_lost"]), (&0.into(), &0.into()), "{cost}");
        assert_eq!(cost["pauses"], u64::from(restartable == "true"), "{cost}");
    }
    cluster.wait_clean();
}

#[test]
fn task_on_hold_survives_the_loss_of_its_tracker() {
    let cluster = cluster_with(2, &SETTINGS.replace("20s", "2s"));
    let plain = cluster.succeed(&[&WORDCOUNT[..], &["--output", "/plain"]].concat());
    let job = cluster.detach(&[&WORDCOUNT[..], &SLOW_REDUCE, &["--output", "/held"]].concat());
    let reduce = format!("{job}.r0");
    let paused = pause(&cluster, &reduce, "reduce");
    let node = paused["tracker"].as_str().unwrap();
    let becomes = |state: &str| {
        eventually(&format!("{node} {state}"), || {
            let nodes = cluster.json(&["nodes"]);
            let found = nodes.as_array().unwrap().iter().find(|found| found["node"] == node)?;
            (found["tracker"]["state"] == state).then_some(())
        });
    };
    cluster.mrctl(&["chaos", "stop", node, "--daemon", "tasktracker"]);
    becomes("lost");
    assert!(
        cluster.refused(1, &["resume", &reduce, "--on", node]).contains("its tracker sends no heartbeats")
    );
    assert!(cluster.mrctl(&["why", &reduce]).contains("before that node comes back"));
    cluster.mrctl(&["chaos", "cont", node, "--daemon", "tasktracker"]);
    becomes("live");
    cluster.mrctl(&["resume", &reduce]);
    let ended = await_success(&cluster, &job);
    assert_eq!(stable_counters(&ended), stable_counters(&plain));
    assert!(
        cluster.output("/plain") == cluster.output("/held"),
        "the output differs from an undisturbed run"
    );
    let cost = &ended["preemption"];
    let figures = ["pauses", "resumes", "checkpoints_lost", "bytes_lost"];
    assert_eq!(figures.map(|name| cost[name].as_u64().unwrap()), [1, 1, 0, 0], "{cost}");
    cluster.wait_clean();
}
