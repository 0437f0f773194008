//! Daemons are killed while a job runs. Checks that its output is byte for byte the same as without
//! faults.

use fermata_tests::{Cluster, QUICK, Up, eventually};
use serde_json::Value;
use std::{cell::RefCell, fs, process::Stdio};

/// Starts a cluster with 20 MB of records. Also returns the checksums of their sort without faults,
/// by part. Maps are paced so that there is time for a fault.
fn cluster() -> (Cluster, Vec<String>) {
    cluster_losing_trackers_after("10s")
}

fn cluster_losing_trackers_after(silence: &str) -> (Cluster, Vec<String>) {
    let settings = format!("{QUICK}[jobtracker]\nheartbeat = \"200ms\"\nlost_after = \"{silence}\"\n");
    let cluster = Cluster::up(Up { nodes: 4, block_size: "1MiB", settings: &settings, ..Up::default() });
    cluster.mrctl(&["submit", "teragen", "--output", "/gen", "--conf", "rows=200000", "--conf", "maps=4"]);
    sort(&cluster, "/calm", &[]);
    let sums = sums(&cluster, "/calm");
    assert_eq!(sums.len(), 4);
    (cluster, sums)
}

fn sort(cluster: &Cluster, output: &str, extra: &[&str]) -> String {
    let args = ["submit", "terasort", "--input", "/gen", "--output", output, "--reduces", "4"];
    cluster.mrctl(&[&args[..], extra].concat())
}

fn sums(cluster: &Cluster, folder: &str) -> Vec<String> {
    let parts = cluster.json(&["fs", "ls", &format!("{folder}/part-*")]);
    let paths = parts.as_array().unwrap().iter().map(|part| part["path"].as_str().unwrap().to_owned());
    paths
        .map(|path| {
            let local = cluster.path("part");
            cluster.mrctl(&["fs", "get", "--force", &path, local.to_str().unwrap()]);
            fermata_tests::sha256_of(&local)
        })
        .collect()
}

/// The phase in which a sort is disturbed. Its tasks are paced, so that there is time for a fault.
#[derive(Clone, Copy)]
enum DisturbedPhase {
    Mapping,
    Reducing,
}

impl DisturbedPhase {
    fn pace(self) -> &'static str {
        match self {
            Self::Mapping => "pace.map=500KiB",
            // A reduce takes five seconds.
            Self::Reducing => "pace.reduce=1MiB",
        }
    }

    fn is_reached(self, job: &serde_json::Value) -> Option<bool> {
        Some(match self {
            Self::Mapping => job["maps"]["done"].as_u64()? >= 3,
            Self::Reducing => {
                job["maps"]["done"] == job["maps"]["total"] && job["reduces"]["progress"].as_f64()? > 0.75
            }
        })
    }
}

/// Starts a slow sort, injects `fault` while maps run, and checks the output.
fn check_sort_with_fault(fault: impl Fn(&Cluster)) {
    let (cluster, calm) = cluster();
    disturb_sort(&cluster, &calm, "/disturbed", DisturbedPhase::Mapping, fault);
}

/// Starts a sort, injects `fault` at the time `when`, and checks the output. Returns the job after
/// its end.
fn disturb_sort(
    cluster: &Cluster,
    calm: &[String],
    output: &str,
    when: DisturbedPhase,
    fault: impl Fn(&Cluster),
) -> Value {
    let args = ["submit", "terasort", "--input", "/gen", "--output", output, "--reduces", "4"];
    let args = [&args[..], &["--conf", when.pace(), "--json"]].concat();
    let job = cluster.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the job has reached the phase to disturb", || {
        let jobs = cluster.json(&["jobs", "--running"]);
        when.is_reached(jobs.as_array()?.first()?)?.then_some(())
    });
    fault(cluster);
    let ended = job.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{text}{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(sums(cluster, output), calm, "the output differs from an undisturbed run");
    // Restarts dead daemons, which find the files of a job that has ended.
    for node in ["node1", "node2", "node3", "node4"] {
        if cluster.try_mrctl(&["chaos", "cont", node, "--daemon", "tasktracker"]).code != 0 {
            cluster.mrctl(&["chaos", "restart", node]);
        }
    }
    eventually("all trackers are back", || {
        let nodes = cluster.json(&["nodes"]);
        nodes.as_array().unwrap().iter().all(|node| node["tracker"]["state"] == "live").then_some(())
    });
    cluster.wait_clean();
    serde_json::from_str(&text).unwrap()
}

fn wait_lost(cluster: &Cluster, node: &str) {
    eventually("the tracker is lost", || {
        let nodes = cluster.json(&["nodes"]);
        let lost = |one: &serde_json::Value| one["node"] == node && one["tracker"]["state"] == "lost";
        nodes.as_array().unwrap().iter().any(lost).then_some(())
    });
}

#[test]
fn output_is_the_same_when_a_tracker_is_killed() {
    let (cluster, calm) = cluster();
    let killed = RefCell::new(String::new());
    let job = disturb_sort(&cluster, &calm, "/disturbed", DisturbedPhase::Mapping, |cluster| {
        let jobs = cluster.json(&["jobs", "--running"]);
        let maps = attempts(cluster, jobs[0]["job"].as_str().unwrap(), "m");
        let done = maps.iter().find(|map| map["state"] == "succeeded").expect("a map that is done");
        let node = done["tracker"].as_str().unwrap();
        cluster.mrctl(&["chaos", "kill", node, "--daemon", "tasktracker"]);
        *killed.borrow_mut() = node.to_owned();
    });
    let shown = cluster.mrctl(&["tasks", job["job"].as_str().unwrap()]);
    assert!(shown.contains(&format!("output lost on {}", killed.borrow())), "{shown}");
}

#[test]
fn output_is_the_same_when_a_node_is_killed() {
    check_sort_with_fault(|cluster| {
        cluster.mrctl(&["chaos", "kill", "node3"]);
    });
}

#[test]
fn output_is_the_same_when_the_jobtracker_restarts() {
    // Tasks stop if the JobTracker does not answer in this time.
    let (cluster, calm) = cluster_losing_trackers_after("10m");
    let job = disturb_sort(&cluster, &calm, "/disturbed", DisturbedPhase::Mapping, |cluster| {
        cluster.mrctl(&["chaos", "kill", "jobtracker"]);
        cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    });
    // Finished work is kept, and running attempts continue. Only an attempt whose launch order had
    // not arrived is started again.
    let tasks = cluster.json(&["tasks", job["job"].as_str().unwrap()]);
    for task in tasks.as_array().unwrap() {
        let attempts = task["attempts"].as_array().unwrap();
        let (done, others): (Vec<_>, Vec<_>) =
            attempts.iter().partition(|attempt| attempt["state"] == "succeeded");
        assert_eq!(done.len(), 1, "{task}");
        let never_ran =
            |attempt: &&Value| attempt["state"] == "killed" && attempt["progress"].as_f64() == Some(0.0);
        assert!(others.iter().all(never_ran), "{task}");
    }
}

/// Returns every attempt of the tasks of a job in one phase (`m` or `r`).
fn attempts(cluster: &Cluster, job: &str, phase: &str) -> Vec<Value> {
    let tasks = cluster.json(&["tasks", job]);
    let of_phase = |task: &&Value| task["task"].as_str().unwrap().starts_with(&format!("{job}.{phase}"));
    let tasks = tasks.as_array().unwrap().iter().filter(of_phase);
    tasks.flat_map(|task| task["attempts"].as_array().unwrap().clone()).collect()
}

fn names(attempts: &[Value]) -> Vec<&str> {
    attempts.iter().map(|attempt| attempt["attempt"].as_str().unwrap()).collect()
}

/// Starts a sort with slow reduces, calls `restart` when all maps are done, and checks that no map
/// runs again. `restart` gets the cluster, the job and the name of a node that runs a reduce.
fn restart_while_reducing(
    cluster: &Cluster,
    calm: &[String],
    output: &str,
    restart: impl Fn(&Cluster, &str, &str),
) {
    let sort = ["terasort", "--input", "/gen", "--output", output, "--reduces", "4"];
    // A reduce takes ten seconds, so reduces run when the restart comes.
    let job = cluster.detach(&[&sort[..], &["--conf", "pace.reduce=512KiB"]].concat());
    let reducing = eventually("all maps are done, and a reduce runs", || {
        let maps = &cluster.json(&["job", &job])["maps"];
        if maps["done"] != maps["total"] {
            return None;
        }
        let reduces = attempts(cluster, &job, "r");
        let running = reduces.iter().find(|attempt| attempt["state"] == "running")?;
        Some(running["tracker"].as_str()?.to_owned())
    });
    let before = attempts(cluster, &job, "m");
    restart(cluster, &job, &reducing);
    let ended = eventually("the job has ended", || {
        let status = cluster.json(&["job", &job]);
        (status["state"] != "running" && status["state"] != "committing").then_some(status)
    });
    assert_eq!(ended["state"], "succeeded", "{ended}");
    let after = attempts(cluster, &job, "m");
    assert_eq!(names(&after), names(&before), "a map ran again: {after:#?}");
    assert_eq!(ended["reduces"]["failed_attempts"], 0, "{ended}");
    assert_eq!(sums(cluster, output), calm, "the output differs from an undisturbed run");
    cluster.wait_clean();
}

/// After the restart each tracker has a different port, and its map outputs are still on its disks.
#[test]
fn done_maps_do_not_run_again_after_the_jobtracker_and_all_trackers_restart() {
    // The timeout is longer than the test takes, because maps of a lost tracker would run again.
    let (cluster, calm) = cluster_losing_trackers_after("10m");
    restart_while_reducing(&cluster, &calm, "/together", |cluster, _, _| {
        cluster.mrctl(&["down"]);
        cluster.mrctl(&["up", "--detach"]);
    });
    // One tracker runs a reduce again before any other tracker is back.
    restart_while_reducing(&cluster, &calm, "/in-turn", |cluster, job, first| {
        let nodes = ["node1", "node2", "node3", "node4"];
        let before = attempts(cluster, job, "r");
        cluster.mrctl(&["chaos", "kill", "jobtracker"]);
        for node in nodes {
            cluster.mrctl(&["chaos", "kill", node, "--daemon", "tasktracker"]);
        }
        cluster.mrctl(&["chaos", "restart", "jobtracker"]);
        cluster.mrctl(&["chaos", "restart", first, "--daemon", "tasktracker"]);
        eventually("a reduce runs there again", || {
            let runs_again = |attempt: &&Value| {
                let known = names(&before).contains(&attempt["attempt"].as_str().unwrap());
                attempt["state"] == "running" && attempt["tracker"] == first && !known
            };
            attempts(cluster, job, "r").iter().find(runs_again).map(|_| ())
        });
        for node in nodes.into_iter().filter(|node| *node != first) {
            cluster.mrctl(&["chaos", "restart", node, "--daemon", "tasktracker"]);
        }
    });
}

#[test]
fn output_is_the_same_when_the_namenode_restarts() {
    check_sort_with_fault(|cluster| {
        cluster.mrctl(&["chaos", "kill", "namenode"]);
        cluster.mrctl(&["chaos", "restart", "namenode"]);
    });
}

#[test]
fn unreachable_namenode_fails_no_attempt() {
    let settings = format!("{QUICK}block_size_min = \"16KiB\"\n[client]\ndeadline = \"1s\"\n");
    let cluster = Cluster::up(Up { nodes: 2, block_size: "16KiB", settings: &settings, ..Up::default() });
    fs::write(cluster.path("in"), "line\n".repeat(100_000)).unwrap();
    cluster.mrctl(&["fs", "put", "in", "/in"]);
    let args = ["streaming", "--mapper", "sh -c 'sleep 0.2; cat'", "--input", "/in", "--output", "/out"];
    let id = cluster.detach(&args);
    let maps = |name: &str| cluster.json(&["job", &id])["maps"][name].as_u64();
    eventually("a map is done", || (maps("done")? >= 1).then_some(()));
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    // Waits until more attempts have ended than a task may fail. Each has waited until its
    // deadline, and none counts as failed.
    eventually("attempts have given up", || (maps("killed_attempts")? >= 12).then_some(()));
    cluster.mrctl(&["chaos", "restart", "namenode"]);
    let over = cluster.mrctl(&["job", &id, "--follow"]);
    assert!(over.contains("succeeded"), "{over}");
    assert_eq!(maps("failed_attempts"), Some(0));
    cluster.wait_clean();
}

#[test]
fn output_is_the_same_when_a_tracker_is_frozen_until_it_is_lost() {
    check_sort_with_fault(|cluster| {
        cluster.mrctl(&["chaos", "stop", "node4", "--daemon", "tasktracker"]);
        wait_lost(cluster, "node4");
        cluster.mrctl(&["chaos", "cont", "node4", "--daemon", "tasktracker"]);
    });
}

#[test]
fn output_is_the_same_when_daemons_die_or_freeze_while_reduces_write() {
    let (cluster, calm) = cluster();
    disturb_sort(&cluster, &calm, "/tracker", DisturbedPhase::Reducing, |cluster| {
        cluster.mrctl(&["chaos", "kill", "node2", "--daemon", "tasktracker"]);
    });
    disturb_sort(&cluster, &calm, "/jobtracker", DisturbedPhase::Reducing, |cluster| {
        cluster.mrctl(&["chaos", "kill", "jobtracker"]);
        cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    });
    disturb_sort(&cluster, &calm, "/namenode", DisturbedPhase::Reducing, |cluster| {
        cluster.mrctl(&["chaos", "kill", "namenode"]);
        cluster.mrctl(&["chaos", "restart", "namenode"]);
    });
    // The tracker stays frozen until the job has ended. Its task continues to write, and its output
    // is removed.
    disturb_sort(&cluster, &calm, "/frozen", DisturbedPhase::Reducing, |cluster| {
        cluster.mrctl(&["chaos", "stop", "node3", "--daemon", "tasktracker"]);
    });
}

#[test]
fn tracker_that_was_down_when_a_job_ended_is_ordered_to_clean_up() {
    let settings = format!("{QUICK}[jobtracker]\nheartbeat = \"200ms\"\n");
    let cluster = Cluster::up(Up { nodes: 2, block_size: "64KiB", settings: &settings, ..Up::default() });
    fs::write(cluster.path("in"), "line\n".repeat(50_000)).unwrap();
    cluster.mrctl(&["fs", "put", "in", "/in"]);
    // Maps on the second node wait for a file, so that in the end only those maps are left.
    let go = cluster.path("go");
    let script = format!(
        "case \"$PWD\" in */node2/*) until [ -e {} ]; do sleep 0.1; done;; esac\ncat\n",
        go.display()
    );
    fs::write(cluster.path("map.sh"), script).unwrap();
    let args =
        ["streaming", "--mapper", "sh map.sh", "--file", "map.sh", "--input", "/in", "--output", "/out"];
    let id = cluster.detach(&args);
    let status = |name: &str| cluster.json(&["job", &id])["maps"][name].clone();
    eventually("only the second node's maps are left", || {
        let waiting = status("pending") == 0 && status("done").as_u64()? >= 1;
        (waiting && cluster.processes_in(".fermata/tasks/node1/jobs").is_empty()).then_some(())
    });
    cluster.mrctl(&["chaos", "stop", "node1", "--daemon", "tasktracker"]);
    wait_lost(&cluster, "node1");
    fs::write(go, "").unwrap();
    let over = cluster.mrctl(&["job", &id, "--follow"]);
    assert!(over.contains("succeeded"), "{over}");
    assert!(!cluster.leftovers().is_empty(), "the side file was deleted although its tracker was down");
    cluster.mrctl(&["chaos", "cont", "node1", "--daemon", "tasktracker"]);
    cluster.wait_clean();
}
