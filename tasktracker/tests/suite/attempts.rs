//! Tests attempts that succeed, fail or are killed, and how they are reported.

use super::*;
use proto::mr::{MapAvailable, MapEvent, MapEvents, Preempt, attempt_report::Status as Report, map_event};

fn kill_order(attempt: &str) -> order::Kind {
    order::Kind::Preempt(Preempt {
        attempt: attempt.into(),
        why: "enough".into(),
        kind: proto::mr::PreemptKind::Kill.into(),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_starts_reports_progress_and_succeeds() {
    let world = World::start().await;
    world.launch("job_1.m0.0", "ok");
    let Report::Succeeded(result) = world.jobtracker.end_of("job_1.m0.0").await else { panic!("not done") };
    assert_eq!(result.counters["RECORDS"], 3);
    world.launch("job_1.m1.0", "hang");
    world.jobtracker.progress_of("job_1.m1.0").await;
    world.jobtracker.order(kill_order("job_1.m1.0"));
    assert_eq!(world.jobtracker.end_of("job_1.m1.0").await, Report::Killed("enough".into()));
    // Each order was sent several times, but executed once.
    assert_eq!(world.jobtracker.with(|received| received.ended.len()), 2);
    let log = world.log("job_1.m0.0", false, 0).await.unwrap();
    // Tasks have the score with which the out-of-memory killer of the kernel prefers them.
    assert_eq!(log, "this is job_1.m0.0\noom_score_adj 1000\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_reported_with_their_cause() {
    let world = World::start().await;
    let cases = [
        ("job_1.m0.0", "exit:3", "exit code 3:\nline 10 of trouble\n"),
        ("job_1.m1.0", "crash", "killed by signal 6 (aborted):\nabout to crash"),
        ("job_1.m2.0", "failed:bad record at /in:7", "bad record at /in:7"),
        ("job_1.m3.0", "silent", "exit code 0 without a result"),
        ("job_1.m4.0", "close", "the task closed its umbilical without a result"),
    ];
    for (attempt, fake, text) in cases {
        world.launch(attempt, fake);
        let failure = world.jobtracker.failure_of(attempt).await;
        assert!(failure.starts_with(text), "{fake}: {failure}");
        assert!(fake != "exit:3" || failure.ends_with("line 19 of trouble"), "{failure}");
    }
    assert!(world.log("job_1.m0.0", true, 10).await.unwrap().ends_with("trouble\n"));
    let unknown = world.log("job_9.m0.0", true, 0).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);
    assert_eq!(world.log("../x", true, 0).await.unwrap_err().code(), tonic::Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_whose_process_is_killed_from_outside_fails() {
    let world = World::start().await;
    world.launch("job_1.m0.0", "fork:hang");
    let grandchild = world.grandchild("job_1.m0.0").await;
    let (_, child) = state_of(grandchild).unwrap();
    let pid = rustix::process::Pid::from_raw(child.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let failure = world.jobtracker.failure_of("job_1.m0.0").await;
    assert_eq!(failure, "killed by signal 9 (out of memory? its limit is tasktracker.task_memory_max)");
    until_true("the grandchild's death", || is_dead(grandchild)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grandchildren_die_when_the_attempt_is_killed_or_ends() {
    let world = World::start().await;
    world.launch("job_1.m0.0", "fork:hang");
    let grandchild = world.grandchild("job_1.m0.0").await;
    assert!(!is_dead(grandchild));
    world.jobtracker.order(kill_order("job_1.m0.0"));
    assert_eq!(world.jobtracker.end_of("job_1.m0.0").await, Report::Killed("enough".into()));
    until_true("the grandchild's death", || is_dead(grandchild)).await;
    world.launch("job_1.m1.0", "fork:ok");
    assert!(matches!(world.jobtracker.end_of("job_1.m1.0").await, Report::Succeeded(_)));
    let grandchild = world.grandchild("job_1.m1.0").await;
    until_true("the grandchild's death", || is_dead(grandchild)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reduces_get_map_events_with_local_paths() {
    let world = World::start().await;
    world.launch("job_1.m0.0", "ok");
    world.jobtracker.end_of("job_1.m0.0").await;
    world.launch("job_1.r0.0", "events:3");
    let available = |attempt: &str, tracker: &str| {
        let map =
            MapAvailable { attempt: attempt.into(), tracker: tracker.into(), ..MapAvailable::default() };
        MapEvent { kind: Some(map_event::Kind::Available(map)) }
    };
    let withdrawn = MapEvent { kind: Some(map_event::Kind::Withdrawn("job_1.m1.0".into())) };
    let map_events =
        |first, events| order::Kind::MapEvents(MapEvents { job: "job_1".into(), first, events, maps: 7 });
    world.jobtracker.order(map_events(0, vec![available("job_1.m0.0", "here")]));
    world.jobtracker.order(map_events(1, vec![available("job_1.m1.0", "there"), withdrawn]));
    let Report::Succeeded(result) = world.jobtracker.end_of("job_1.r0.0").await else { panic!("not done") };
    let path = std::fs::canonicalize(world.root()).unwrap().join("jobs/job_1/output/job_1.m0.0/out");
    let local = format!("job_1.m0.0={}", path.display());
    assert_eq!(result.pieces, [local.as_str(), "job_1.m1.0=", "-job_1.m1.0"]);
    // A reduce that is launched later gets the same events.
    world.launch("job_1.r1.0", "events:3");
    let Report::Succeeded(result) = world.jobtracker.end_of("job_1.r1.0").await else { panic!("not done") };
    assert_eq!(result.pieces.len(), 3);
    // The number of maps is the one in the map events, not the 2 in the launch order.
    assert_eq!(result.counters["MAPS"], 7);
    world.launch("job_1.r2.0", "unfetched:job_1.m0.0");
    let failure = world.jobtracker.until("a fetch failure", |received| {
        received.heartbeats.iter().find_map(|heartbeat| heartbeat.fetch_failures.first().cloned())
    });
    let failure = failure.await;
    let failure = (failure.reduce.as_str(), failure.map.as_str(), failure.addr.as_str());
    assert_eq!(failure, ("job_1.r2.0", "job_1.m0.0", "node2:7000"));
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_fetch_or_start_is_reported_with_its_cause() {
    let world = World::start_with(|config| config.client.deadline = daemon::Period::millis(200)).await;
    let mut spec = spec("job_1.m0.0", "ok");
    spec.namenodes = vec!["127.0.0.1:1".into()];
    spec.program = Some(Program {
        kind: Some(program::Kind::Executable("/bin/job".into())),
        files: vec![],
        settings: vec![],
    });
    world.launch_spec(spec.clone());
    // If the file system is unavailable, the attempt is killed and does not count as failed.
    let end = world.jobtracker.end_of("job_1.m0.0").await;
    assert!(matches!(&end, Report::Killed(why) if why.contains("127.0.0.1:1")), "{end:?}");
    spec.attempt = "job_1.m1.0".into();
    spec.program = None;
    world.launch_spec(spec);
    assert_eq!(world.jobtracker.failure_of("job_1.m1.0").await, "the task has no program");
}

#[tokio::test(flavor = "multi_thread")]
async fn error_names_the_full_disk_and_the_next_attempts_avoid_it() {
    let world = World::start_with(|config| {
        let other = config.tasktracker.dirs[0].with_file_name("two");
        config.tasktracker.dirs.push(other);
        config.tasktracker.warm_tasks = 0;
    })
    .await;
    let on = |name: &str, attempt: &str| world.dir.path().join(name).join("logs").join(attempt).exists();
    // If the DFS is full, no local disk is named.
    world.launch("job_1.m9.0", "failed:cannot write /out: no space on dn1: No space left on device");
    let failure = world.jobtracker.failure_of("job_1.m9.0").await;
    assert!(failure.starts_with("cannot write /out: "), "{failure}");
    let root = std::fs::canonicalize(world.dir.path().join("two")).unwrap();
    let text = format!("write {}/jobs/x: No space left on device (os error 28)", root.display());
    world.launch("job_1.m0.0", &format!("failed:{text}"));
    let failure = world.jobtracker.failure_of("job_1.m0.0").await;
    assert_eq!(failure, format!("no space on {}: {text}", root.display()));
    let full = "two";
    for index in 1..5 {
        let attempt = format!("job_1.m{index}.0");
        world.launch(&attempt, "ok");
        world.jobtracker.end_of(&attempt).await;
        assert!(!on(full, &attempt), "{attempt} went to the full disk");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn map_output_on_another_disk_is_found_and_the_partial_one_is_removed() {
    let world = World::start_with(|config| {
        let other = config.tasktracker.dirs[0].with_file_name("two");
        config.tasktracker.dirs.push(other);
    })
    .await;
    world.launch("job_1.m0.0", "elsewhere");
    assert!(matches!(world.jobtracker.end_of("job_1.m0.0").await, Report::Succeeded(_)));
    let outputs = ["one", "two"].map(|name| files(&world.dir.path().join(name).join("jobs/job_1/output")));
    let mut found: Vec<&String> = outputs.iter().flatten().collect();
    found.sort();
    // The partial output on the full disk was removed.
    assert_eq!(found, ["job_1.m0.0/out", "job_1.m0.0/out.index"], "{outputs:?}");
    world.launch("job_1.r0.0", "events:1");
    let map =
        MapAvailable { attempt: "job_1.m0.0".into(), tracker: "here".into(), ..MapAvailable::default() };
    let events = vec![MapEvent { kind: Some(map_event::Kind::Available(map)) }];
    let map_events = MapEvents { job: "job_1".into(), first: 0, events, maps: 1 };
    world.jobtracker.order(order::Kind::MapEvents(map_events));
    let Report::Succeeded(result) = world.jobtracker.end_of("job_1.r0.0").await else { panic!("not done") };
    let path = result.pieces[0].strip_prefix("job_1.m0.0=").unwrap();
    assert_eq!(std::fs::read(path).unwrap(), b"partition 0partition 1");
}
