//! Tests jobs from submission to output, as a tracker and a client see them.

use super::cluster::*;
use mrcore::ids::JobId;
use proto::mr as pb;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn job_with_maps_and_reduces_writes_its_output() {
    let cluster = Cluster::start().await;
    cluster.put("/in/a", &vec![b'x'; 150 << 10]).await;
    cluster.put("/in/_hidden", b"not input").await;
    cluster.put("/in/empty", b"").await;
    let mut tracker = cluster.tracker("node1").await;
    let mut client = cluster.client().await;
    let job = client.submit(submission("/in", "/out", 2)).await.unwrap().into_inner().job;
    assert_eq!(job, "job_1");
    let mut maps = Vec::new();
    for _ in 0..3 {
        maps.push(tracker.next_launch().await);
    }
    let mut ranges = Vec::new();
    for map in &maps {
        assert_eq!(map.namenodes, *cluster.config.cluster.namenode);
        assert_eq!((map.reduces, map.work_output.as_str(), map.shuffle_token.len()), (2, "", 16));
        assert!(map.conf.is_empty(), "conf contains settings that the user did not set: {:?}", map.conf);
        let Some(pb::task_spec::Input::Split(split)) = &map.input else { panic!("{map:?}") };
        assert_eq!(split.source, "/in/a");
        ranges.push((split.start, split.end));
        tracker.succeed(&cluster, map, b"").await;
    }
    assert_eq!(ranges, [(0, 65536), (65536, 131_072), (131_072, 153_600)]);
    for _ in 0..2 {
        let reduce = tracker.next_launch().await;
        assert_eq!(reduce.work_output, format!("/out/_temporary/job_1/{}", reduce.attempt));
        let Some(pb::task_spec::Input::Partition(partition)) = &reduce.input else { panic!("{reduce:?}") };
        assert_eq!(partition.maps, 3);
        tracker.succeed(&cluster, &reduce, format!("part {}\n", partition.index).as_bytes()).await;
    }
    assert_eq!(tracker.next_clean().await, "job_1");
    let status = cluster.status("job_1").await;
    assert_eq!((status.state.as_str(), status.local_maps), ("succeeded", 3));
    assert_eq!(status.counters["MAP_INPUT_RECORDS"], 5);
    assert_eq!(status.inputs, ["/in"]);
    assert_eq!(cluster.length("/out/part-r-00000").await, 7);
    assert_eq!(cluster.length("/out/part-r-00001").await, 7);
    assert!(cluster.exists("/out/_SUCCESS").await && !cluster.exists("/out/_temporary").await);
    let tasks = client
        .tasks(pb::TasksRequest { job, after: String::new(), only: String::new() })
        .await
        .unwrap()
        .into_inner()
        .tasks;
    assert_eq!(tasks.len(), 5);
    assert_eq!((tasks[0].state.as_str(), tasks[0].attempts[0].locality.as_str()), ("done", "node-local"));
    assert_eq!(tasks[0].attempts[0].why, "first-in-queue,node-local");
    check_history(&cluster).await;
    check_token_is_hidden(&cluster, &maps[0].shuffle_token).await;
}

/// Checks that the shuffle token of a job is neither in its history nor in its status nor in the
/// debug output of the core.
async fn check_token_is_hidden(cluster: &Cluster, token: &[u8]) {
    let history = serde_json::to_string(&cluster.history("job_1").await).unwrap();
    let status = format!("{:?}", cluster.status("job_1").await);
    let (spec, digest) = cluster.peek(|cluster| {
        let spec = cluster.job(JobId(1)).unwrap().spec.clone();
        (spec, mrcore::digest::digest(cluster))
    });
    assert_eq!(spec.payload.shuffle_token.bytes(), token);
    let hex = token.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    let numbers = format!("{token:?}");
    for text in [history, status, digest, format!("{spec:?}")] {
        for shown in [&hex, &numbers, &numbers.replace(' ', "")] {
            assert!(!text.contains(shown.as_str()), "{text}");
        }
    }
}

async fn check_history(cluster: &Cluster) {
    let history = cluster.history("job_1").await;
    assert_eq!(history[0]["format"], 3);
    // Consecutive splits are recorded as one entry with a count.
    let splits = history[0]["spec"]["splits"].as_array().unwrap();
    assert_eq!(splits.iter().map(|entry| entry["count"].as_u64().unwrap_or(1)).sum::<u64>(), 3);
    assert_eq!(history[0]["spec"]["conf"], serde_json::json!({}));
    let kinds: Vec<&str> = history[1..]
        .iter()
        .map(|line| line["fact"].as_object().unwrap().keys().next().unwrap().as_str())
        .collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "attempt-launched").count(), 5);
    assert_eq!(kinds.iter().filter(|kind| **kind == "attempt-succeeded").count(), 5);
    assert_eq!(kinds[kinds.len() - 2..], ["job-committing", "job-ended"]);
    let to = &history[1]["fact"]["submitted-to"];
    assert_eq!((&to["policy"], &to["trackers"][0]["name"]), (&"fifo".into(), &"node1".into()));
    assert_eq!(history[2]["fact"]["attempt-launched"]["tracker"], "node1");
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_input_gives_empty_parts() {
    let cluster = Cluster::start().await;
    cluster.put("/in/empty", b"").await;
    let mut tracker = cluster.tracker("node1").await;
    cluster.client().await.submit(submission("/in", "/out", 1)).await.unwrap();
    let reduce = tracker.next_launch().await;
    tracker.heartbeat(vec![succeeded(&reduce.attempt, pb::TaskResult::default())]).await;
    tracker.next_clean().await;
    assert_eq!(cluster.length("/out/part-r-00000").await, 0);
    assert!(cluster.exists("/out/_SUCCESS").await);
    // A job without maps and reduces succeeds at once.
    cluster.client().await.submit(submission("/in", "/out2", 0)).await.unwrap();
    until("the empty job", || async { cluster.status("job_2").await.state == "succeeded" }).await;
    assert!(cluster.exists("/out2/_SUCCESS").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn submission_that_is_sent_twice_creates_one_job() {
    let cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    let mut client = cluster.client().await;
    let request = submission("/in", "/out", 1);
    let first = client.submit(request.clone()).await.unwrap().into_inner().job;
    cluster.put("/out/in-the-way", b"").await;
    assert_eq!(client.submit(request).await.unwrap().into_inner().job, first);
    let jobs = client.jobs(pb::JobsRequest { all: true }).await.unwrap().into_inner().jobs;
    assert_eq!(jobs.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_get_the_input_format_that_was_checked_at_submission() {
    let cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    let mut tracker = cluster.tracker("node1").await;
    let conf = [("input.format".to_owned(), " whole ".to_owned())].into();
    let request = pb::SubmitRequest { conf, ..submission("/in", "/out", 0) };
    cluster.client().await.submit(request).await.unwrap();
    let Some(pb::task_spec::Input::Split(split)) = tracker.next_launch().await.input else { panic!("a map") };
    assert!(split.whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_job_stops_its_attempts_and_leaves_no_files() {
    let cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    let mut tracker = cluster.tracker("node1").await;
    let mut client = cluster.client().await;
    client.submit(submission("/in", "/out", 0)).await.unwrap();
    let map = tracker.next_launch().await;
    cluster.put(&format!("{}/piece-0", map.work_output), b"half").await;
    let kill = pb::KillRequest { request_id: vec![7; 16], job: "job_1".into() };
    client.kill(kill.clone()).await.unwrap();
    assert_eq!(tracker.next_preemption().await, map.attempt);
    let status = cluster.status("job_1").await;
    assert_eq!((status.state.as_str(), status.why.as_str()), ("killed", "by anonymous"));
    // After the first clean-up the attempt writes once more before it ends.
    until("the first clean-up", || async { !cluster.exists("/out").await }).await;
    cluster.put(&format!("{}/piece-1", map.work_output), b"late").await;
    tracker.heartbeat(vec![killed(&map.attempt)]).await;
    until("the second clean-up", || async { !cluster.exists("/out").await }).await;
    client.kill(kill).await.unwrap();
    let (code, _) =
        refusal(client.kill(pb::KillRequest { request_id: vec![8; 16], job: "job_9".into() }).await);
    assert_eq!(code, tonic::Code::NotFound);
    let trackers = client.trackers(pb::TrackersRequest {}).await.unwrap().into_inner().trackers;
    assert_eq!((trackers[0].maps_running, trackers[0].state.as_str()), (0, "live"));
    let last = cluster.history("job_1").await.pop().unwrap();
    assert_eq!(last["fact"]["attempt-killed"]["attempt"], map.attempt);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_reports_changes_and_reports_at_once_that_the_job_has_ended() {
    let cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    let mut tracker = cluster.tracker("node1").await;
    let mut client = cluster.client().await;
    client.submit(submission("/in", "", 0)).await.unwrap();
    let map = tracker.next_launch().await;
    let mut watch = client.watch(pb::JobRequest { job: "job_1".into() }).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().state, "running");
    tracker.heartbeat(vec![running(&map.attempt, 0.5)]).await;
    let half = with_timeout("the change", watch.message()).await.unwrap().unwrap();
    assert!((half.maps.unwrap().progress - 0.5).abs() < 0.01);
    let began = Instant::now();
    // Many changes within a short time must give few messages.
    for step in 0..200 {
        tracker.heartbeat(vec![running(&map.attempt, 0.5 + f64::from(step) / 1000.0)]).await;
    }
    tracker.heartbeat(vec![succeeded(&map.attempt, pb::TaskResult::default())]).await;
    let ended = Instant::now();
    let mut messages = 0;
    while let Some(status) = with_timeout("the end", watch.message()).await.unwrap() {
        messages += 1;
        if status.state == "succeeded" {
            assert!(watch.message().await.unwrap().is_none());
            break;
        }
    }
    let late = ended.elapsed();
    assert!(late < Duration::from_millis(90), "the last message came {late:?} after the job ended");
    let max = 3 + began.elapsed().as_millis() / 100;
    assert!(messages <= max, "{messages} messages: the maximum is {max}");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_of_a_commit_in_safemode_says_what_it_waits_for() {
    let cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    let mut tracker = cluster.tracker("node1").await;
    let mut client = cluster.client().await;
    client.submit(submission("/in", "/out", 0)).await.unwrap();
    let map = tracker.next_launch().await;
    cluster.dfs.set_safemode(true).await.unwrap();
    tracker.heartbeat(vec![succeeded(&map.attempt, pb::TaskResult::default())]).await;
    let mut watch = client.watch(pb::JobRequest { job: "job_1".into() }).await.unwrap().into_inner();
    // The job itself does not change, so only the safemode can cause another message.
    let status = with_timeout("safemode in the status", async {
        loop {
            let status = watch.message().await.unwrap().unwrap();
            if !status.why.is_empty() {
                return status;
            }
        }
    })
    .await;
    assert_eq!(status.state, "committing");
    let (start, end) = ("waits: the NameNode has been in safemode for ", "`mrctl fs safemode off` ends it");
    assert!(status.why.starts_with(start) && status.why.ends_with(end), "{}", status.why);
    let why = client.why(pb::WhyRequest { of: "job_1".into() }).await.unwrap().into_inner();
    assert!(why.waiting_for[0].text.ends_with(end), "{why:?}");
    let listed = client.jobs(pb::JobsRequest { all: false }).await.unwrap().into_inner().jobs;
    assert!(listed[0].why.ends_with(end), "{listed:?}");
    cluster.dfs.set_safemode(false).await.unwrap();
    until("the commit", || async { cluster.status("job_1").await.state == "succeeded" }).await;
    assert_eq!(cluster.status("job_1").await.why, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_reduce_shows_at_least_the_progress_of_its_checkpoint() {
    let cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    let mut tracker = cluster.tracker("node1").await;
    let mut client = cluster.client().await;
    client.submit(submission("/in", "/out", 1)).await.unwrap();
    let map = tracker.next_launch().await;
    tracker.succeed(&cluster, &map, b"").await;
    let reduce = tracker.next_launch().await;
    let report = |attempt: &str, stage: &str, done: f64| {
        let progress = pb::Progress { done, stage: stage.into(), ..Default::default() };
        let status = Some(pb::attempt_report::Status::Running(progress));
        vec![pb::AttemptReport { attempt: attempt.into(), status }]
    };
    tracker.heartbeat(report(&reduce.attempt, "reduce", 0.75)).await;
    let (request_id, kind) = (vec![7; 16], pb::PreemptKind::Pause.into());
    let attempt = reduce.attempt.clone();
    client.preempt(pb::PreemptRequest { request_id, attempt, kind }).await.unwrap();
    assert_eq!(tracker.next_preemption().await, reduce.attempt);
    let saved = pb::CheckpointInfo { stage: "reduce".into(), bytes: 100, ..Default::default() };
    let status = Some(pb::attempt_report::Status::Paused(saved));
    tracker.heartbeat(vec![pb::AttemptReport { attempt: reduce.attempt.clone(), status }]).await;
    let resume = pb::ResumeRequest { request_id: vec![8; 16], task: "job_1.r0".into(), on: String::new() };
    client.resume(resume).await.unwrap();
    let resumed = tracker.next_launch().await;
    // The resumed attempt has started and has not read its checkpoint yet, so it reports no
    // progress.
    tracker.heartbeat(report(&resumed.attempt, "start", 0.0)).await;
    let tasks = pb::TasksRequest { job: "job_1".into(), after: String::new(), only: "job_1.r0".into() };
    let tasks = client.tasks(tasks).await.unwrap().into_inner().tasks;
    let attempt = tasks[0].attempts.last().unwrap();
    assert_eq!((&attempt.attempt, &attempt.resumed_from), (&resumed.attempt, &reduce.attempt));
    assert_eq!((attempt.stage.as_str(), attempt.progress), ("reduce", 0.75));
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_heartbeat_changes_nothing() {
    let cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    let mut tracker = cluster.tracker("node1").await;
    cluster.client().await.submit(submission("/in", "", 1)).await.unwrap();
    let map = tracker.next_launch().await;
    let report = vec![succeeded(&map.attempt, pb::TaskResult::default())];
    tracker.heartbeat(report.clone()).await;
    let reduce = tracker.next_launch().await;
    tracker.repeat_heartbeat(report.clone()).await;
    tracker.repeat_heartbeat(report).await;
    assert_eq!(tracker.untaken_launches(), 0);
    let status = cluster.status("job_1").await;
    assert_eq!((status.maps.unwrap().done, status.reduces.unwrap().running), (1, 1));
    tracker.heartbeat(vec![succeeded(&reduce.attempt, pb::TaskResult::default())]).await;
    until("the end", || async { cluster.status("job_1").await.state == "succeeded" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tracker_is_suspect_as_soon_as_its_stream_ends() {
    let cluster = Cluster::start().await;
    let tracker = cluster.tracker("node1").await;
    let state = || async {
        let request = pb::TrackersRequest {};
        cluster.client().await.trackers(request).await.unwrap().into_inner().trackers[0].state.clone()
    };
    assert_eq!(state().await, "live");
    drop(tracker);
    until("the tracker to be suspect", || async { state().await == "suspect" }).await;
    let mut tracker = cluster.tracker("node1").await;
    assert_eq!(state().await, "live");
    // When an older stream of the tracker ends, the tracker stays live, because it has a newer one.
    let newer = cluster.tracker("node1").await;
    tracker.heartbeat_without_answer().await;
    drop(tracker);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(state().await, "live");
    drop(newer);
}

#[tokio::test(flavor = "multi_thread")]
async fn trackers_with_another_protocol_or_malformed_ids_are_refused() {
    let cluster = Cluster::start().await;
    let mut other = registration("node1");
    other.protocol = 99;
    let mut nameless = registration("node1");
    nameless.name.clear();
    let mut bad_output = registration("node1");
    bad_output.outputs = vec!["job_x".into()];
    for (register, text) in [(other, "protocol 99"), (nameless, "tracker name"), (bad_output, "\"job_x\"")] {
        let mut tracker = cluster.try_attach(register).await;
        let Some(pb::to_tracker::Kind::Refused(why)) = tracker.next().await else {
            panic!("the registration was accepted")
        };
        assert!(why.contains(text), "{why}");
        assert_eq!(tracker.next().await, None);
    }
    let trackers = cluster.client().await.trackers(pb::TrackersRequest {}).await.unwrap().into_inner();
    assert!(trackers.trackers.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_jobtracker_handles_few_events() {
    let cluster = Cluster::start().await;
    let mut tracker = cluster.tracker("node1").await;
    tracker.heartbeat(Vec::new()).await;
    let handled_before = cluster.events_handled();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let handled = cluster.events_handled() - handled_before;
    assert!((1..=4).contains(&handled), "an idle JobTracker handled {handled} events in 2.5 s");
}
