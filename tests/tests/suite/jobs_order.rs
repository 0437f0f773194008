//! Order and location of jobs: kills, priorities, blacklists, speculative attempts, repeated
//! submissions.

use fermata_tests::{Cluster, TIMEOUT, Up, eventually};
use proto::mr as pb;
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
};

fn put(cluster: &Cluster, name: &str, text: &str) {
    fs::write(cluster.path(name), text).unwrap();
    cluster.mrctl(&["fs", "put", name, &format!("/{name}")]);
}

fn state(cluster: &Cluster, job: &str) -> Value {
    cluster.json(&["job", job])
}

/// Returns the lines that a process prints to stderr. They are read by a thread, so that a test
/// which waits for a line can fail after [`TIMEOUT`].
fn lines_of(child: &mut Child) -> Receiver<String> {
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}

fn next_line(lines: &Receiver<String>) -> String {
    lines.recv_timeout(TIMEOUT).expect("another line")
}

#[test]
fn kill_frees_slots_at_once_and_urgent_jobs_run_first() {
    // The heartbeat interval is long, so that the test fails if something waits for a periodic
    // heartbeat.
    let settings = "[jobtracker]\nheartbeat = \"60s\"\nsuspect_after = \"120s\"\nlost_after = \"240s\"\n\
                    [tasktracker]\nmap_slots = 1\n";
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings, ..Up::default() });
    put(&cluster, "in", "a b\n");
    let sleeper = ["streaming", "--mapper", "sleep 600", "--input", "/in", "--output"];
    let first = cluster.detach(&[&sleeper[..], &["/one"]].concat());
    let second = cluster.detach(&[&sleeper[..], &["/two"]].concat());
    eventually("the first job runs", || (state(&cluster, &first)["maps"]["running"] == 1).then_some(()));
    let count = ["wordcount", "--input", "/in", "--output"];
    let normal = cluster.detach(&[&count[..], &["/normal"]].concat());
    let urgent = cluster.detach(&[&count[..], &["/urgent", "--priority", "very-high"]].concat());
    assert_eq!(state(&cluster, &second)["maps"]["running"], 0);
    cluster.mrctl(&["kill", &first]);
    // The urgent job runs first. Then the second sleeping job runs, and is killed too.
    eventually("the urgent job is done", || (state(&cluster, &urgent)["state"] == "succeeded").then_some(()));
    eventually("the second job runs", || (state(&cluster, &second)["maps"]["running"] == 1).then_some(()));
    assert_ne!(state(&cluster, &normal)["state"], "succeeded");
    cluster.mrctl(&["kill", &second]);
    eventually("the normal job is done", || (state(&cluster, &normal)["state"] == "succeeded").then_some(()));
    for job in [&first, &second] {
        assert_eq!(state(&cluster, job)["state"], "killed");
        let again = cluster.refused(1, &["kill", job]);
        assert!(again.contains(&format!("{job} was already killed")), "{again}");
    }
    cluster.wait_clean();
    cluster.refused(1, &["fs", "stat", "/one"]);
}

#[test]
fn waiting_job_explains_why() {
    let settings = "[tasktracker]\nmap_slots = 1\n";
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings, ..Up::default() });
    put(&cluster, "in", "a b\n");
    let first = cluster.detach(&["streaming", "--mapper", "sleep 600", "--input", "/in", "--output", "/one"]);
    eventually("the first job runs", || (state(&cluster, &first)["maps"]["running"] == 1).then_some(()));
    let mut second = cluster.command(&["submit", "wordcount", "--input", "/in", "--output", "/two"]);
    let mut second = second.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let printed = lines_of(&mut second);
    assert_eq!(next_line(&printed), "job_2 submitted");
    let why = next_line(&printed);
    assert!(why.starts_with("mrctl: job_2 waits: ") && why.contains("job_1"), "{why}");
    cluster.mrctl(&["kill", &first]);
    assert!(second.wait().unwrap().success());
}

#[test]
fn job_says_that_it_waits_for_the_end_of_safemode() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    put(&cluster, "in", "a b\n");
    let sleeper = ["submit", "streaming", "--mapper", "sleep 600", "--input", "/in", "--output", "/one"];
    let mut follower = cluster.command(&sleeper);
    let mut follower = follower.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let printed = lines_of(&mut follower);
    assert_eq!(next_line(&printed), "job_1 submitted");
    eventually("the job runs", || (state(&cluster, "job_1")["maps"]["running"] == 1).then_some(()));
    cluster.mrctl(&["fs", "safemode", "on"]);
    let remedy = "`mrctl fs safemode off` ends it";
    let waits = std::iter::repeat_with(|| next_line(&printed));
    let waits = waits.take(100).find(|line| line.starts_with("mrctl: job_1 waits: ")).unwrap();
    assert!(waits.contains("the NameNode has been in safemode for") && waits.contains(remedy), "{waits}");
    for args in [&["jobs"][..], &["top", "--once"], &["why", "job_1"]] {
        let shown = cluster.mrctl(args);
        assert!(shown.contains("the NameNode has been in safemode for"), "{args:?}: {shown}");
    }
    let refused = cluster.refused(1, &["submit", "wordcount", "--input", "/in", "--output", "/two"]);
    assert!(refused.contains("in safemode") && refused.contains(remedy), "{refused}");
    cluster.mrctl(&["fs", "safemode", "off"]);
    eventually("the job no longer waits", || (state(&cluster, "job_1")["why"] == "").then_some(()));
    cluster.mrctl(&["kill", "job_1"]);
    assert!(!follower.wait().unwrap().success());
}

#[test]
fn failing_node_is_blacklisted() {
    let settings = "[jobtracker]\nheartbeat = \"200ms\"\n";
    let cluster = Cluster::up(Up { nodes: 4, block_size: "64KiB", settings, ..Up::default() });
    put(&cluster, "in", &"some words\n".repeat(100_000));
    let script = "case \"$PWD\" in */node2/*) echo this node is broken >&2; exit 1;; esac\nsleep 0.2\ncat\n";
    fs::write(cluster.path("map.sh"), script).unwrap();
    let args = ["streaming", "--mapper", "sh map.sh", "--file", "map.sh", "--reducer", "wc -l"];
    let job = cluster.succeed(&[&args[..], &["--input", "/in", "--output", "/out"]].concat());
    assert_eq!(String::from_utf8(cluster.output("/out")).unwrap().trim(), "100000");
    let id = job["job"].as_str().unwrap();
    let failed = job["maps"]["failed_attempts"].as_u64().unwrap();
    // Three failures blacklist the node. Concurrent attempts may fail too.
    assert!((3..=5).contains(&failed), "{job}");
    let history = cluster.mrctl(&["history", id]);
    assert_eq!(history.matches("tracker-blacklisted").count(), 1, "{history}");
    assert!(history.contains("this node is broken"), "{history}");
    // Another job uses the node as before.
    let args = ["streaming", "--mapper", "sh -c 'echo $PWD'", "--reduces", "0", "--input", "/in"];
    cluster.succeed(&[&args[..], &["--output", "/where"]].concat());
    assert!(String::from_utf8(cluster.output("/where")).unwrap().contains("/node2/"));
    cluster.wait_clean();
}

#[test]
fn a_straggler_gets_a_speculative_attempt_and_the_first_to_finish_counts() {
    let settings = "[jobtracker]\nheartbeat = \"200ms\"\n";
    let cluster = Cluster::up(Up { nodes: 3, block_size: "64KiB", settings, ..Up::default() });
    put(&cluster, "in", &"w\n".repeat(150_000));
    let paced = ["wordcount", "--input", "/in", "--output", "/out", "--conf", "pace.map=32KiB"];
    let id = cluster.detach(&paced);
    let stopped = eventually("a map of the job runs", || {
        cluster.processes_in(".fermata/tasks/node1/jobs").first().copied()
    });
    let signal = |name: &str| Command::new("kill").args([name, &stopped.to_string()]).status().unwrap();
    assert!(signal("-STOP").success());
    let over = eventually("the job is done without it", || {
        Some(state(&cluster, &id)).filter(|job| job["state"] != "running" && job["state"] != "committing")
    });
    assert_eq!(over["state"], "succeeded", "{over}");
    assert_eq!(cluster.output("/out"), b"w\t150000\n");
    let tasks = cluster.json(&["tasks", &id]);
    let attempts: Vec<&Value> =
        tasks.as_array().unwrap().iter().flat_map(|task| task["attempts"].as_array().unwrap()).collect();
    let mut speculative = attempts.iter().filter(|attempt| attempt["speculative"] == true);
    assert!(speculative.any(|attempt| attempt["state"] == "succeeded"), "{tasks}");
    // The stopped attempt is killed.
    cluster.wait_clean();
    eventually("the stopped process is gone", || {
        (!cluster.processes_in(".fermata/tasks/node1/jobs").contains(&stopped)).then_some(())
    });
}

#[test]
fn repeated_submission_is_accepted_once() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    put(&cluster, "in", "a b a\n");
    let addr = || {
        let state = fs::read_to_string(cluster.path(".fermata/cluster.json")).unwrap();
        let state: Value = serde_json::from_str(&state).unwrap();
        format!("http://{}", state["jobtracker"].as_str().unwrap())
    };
    let request = pb::SubmitRequest {
        request_id: vec![42; 16],
        name: "once".into(),
        program: Some(pb::Program {
            kind: Some(pb::program::Kind::Builtin("wordcount".into())),
            files: Vec::new(),
            settings: Vec::new(),
        }),
        inputs: vec!["/in".into()],
        output: "/out".into(),
        reduces: 1,
        ..pb::SubmitRequest::default()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let submit = || {
        runtime.block_on(async {
            let mut client = pb::job_tracker_client::JobTrackerClient::connect(addr()).await.unwrap();
            let mut call = tonic::Request::new(request.clone());
            let user = daemon::account::user().parse().unwrap();
            cluster.credentials().sign(call.metadata_mut(), &user);
            client.submit(call).await.unwrap().into_inner().job
        })
    };
    let mut ids = BTreeSet::from([submit(), submit()]);
    let id = ids.first().unwrap().clone();
    eventually("the job is done", || (state(&cluster, &id)["state"] == "succeeded").then_some(()));
    // The output exists now, so a new job would be refused.
    ids.insert(submit());
    cluster.mrctl(&["chaos", "kill", "jobtracker"]);
    cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    ids.insert(submit());
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert_eq!(cluster.json(&["jobs"]).as_array().unwrap().len(), 1);
    assert_eq!(cluster.output("/out"), b"a\t2\nb\t1\n");
}
