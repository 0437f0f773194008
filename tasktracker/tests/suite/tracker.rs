//! Tests restarts, lost connections, unknown connections, and what a tracker leaves behind.

use super::*;
use proto::mr::attempt_report::Status as Report;
use std::io::Read;

#[tokio::test(flavor = "multi_thread")]
async fn outputs_survive_a_restart_until_their_job_is_cleaned() {
    let mut world = World::start().await;
    world.launch("job_1.m0.0", "ok");
    world.jobtracker.end_of("job_1.m0.0").await;
    world.launch("job_1.m1.0", "hang");
    world.jobtracker.progress_of("job_1.m1.0").await;
    world.stop_tracker().await;
    world.start_tracker().await;
    let last = world.jobtracker.with(|received| received.registrations.last().cloned()).unwrap();
    assert_eq!(last.outputs, ["job_1.m0.0"]);
    assert!(last.attempts.is_empty(), "{last:?}");
    let first = world.jobtracker.with(|received| received.registrations[0].clone());
    // The JobTracker assigns incarnations, so a new process has none yet.
    assert_eq!((first.incarnation, last.incarnation), (0, 0));
    // The new process serves the outputs to clients with the token.
    let mut stream = std::net::TcpStream::connect(world.tracker().shuffle_addr()).unwrap();
    let token = security::partition_token(b"secret", "job_1", 1);
    let request = engine::fetch::wire::request(&token, "job_1.m0.0", 1).unwrap();
    std::io::Write::write_all(&mut stream, &request).unwrap();
    let answer = engine::fetch::wire::read_answer(&mut stream).unwrap();
    assert!(matches!(answer, engine::fetch::wire::Answer::Data(_)), "{answer:?}");
    let mut stored = [0; 11];
    stream.read_exact(&mut stored).unwrap();
    assert_eq!(&stored, b"partition 1");
    // The job is registered until its files are deleted, so that the JobTracker can repeat a lost
    // order to delete them.
    assert_eq!(last.jobs, ["job_1"]);
    world.jobtracker.order(order::Kind::Clean("job_1".into()));
    let jobs = world.root().join("jobs");
    until_true("an empty folder", || std::fs::read_dir(&jobs).unwrap().next().is_none()).await;
    let registered = |world: &World| {
        world.jobtracker.with(jobtracker::Received::disconnect);
        let count = world.jobtracker.with(|received| received.registrations.len());
        let jobtracker = world.jobtracker.clone();
        async move {
            jobtracker.until("a registration", |received| received.registrations.get(count).cloned()).await
        }
    };
    while !registered(&world).await.jobs.is_empty() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn unanswered_heartbeat_is_repeated_without_changes() {
    let world = World::start().await;
    world.jobtracker.with(|received| received.mute = true);
    world.launch("job_1.m0.0", "ok");
    let has_end = |heartbeat: &proto::mr::Heartbeat| {
        heartbeat.attempts.iter().any(|report| matches!(report.status, Some(Report::Succeeded(_))))
    };
    // Wait until the last heartbeat was repeated several times.
    let repeated_seq = world.jobtracker.until("repeats", |received| {
        let last = received.heartbeats.last()?;
        let same: Vec<_> = received.heartbeats.iter().filter(|heartbeat| heartbeat.seq == last.seq).collect();
        assert!(same.iter().all(|heartbeat| heartbeat.attempts == last.attempts), "{same:?}");
        (same.len() >= 4).then_some(last.seq)
    });
    let seq = repeated_seq.await;
    world.jobtracker.with(|received| received.mute = false);
    assert!(matches!(world.jobtracker.end_of("job_1.m0.0").await, Report::Succeeded(_)));
    let ends = world.jobtracker.with(|received| {
        let ends = received.heartbeats.iter().filter(|heartbeat| has_end(heartbeat));
        ends.map(|heartbeat| heartbeat.seq).collect::<Vec<u64>>()
    });
    // Only one heartbeat reports that the attempt has ended: the unanswered one or the next.
    assert!(ends.iter().all(|end| *end == ends[0]) && (seq..=seq + 1).contains(&ends[0]), "{ends:?}");
    assert_eq!(world.jobtracker.with(|received| received.ended.len()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn reconnected_tracker_registers_its_attempts_and_outputs() {
    let world = World::start().await;
    world.launch("job_1.m0.0", "ok");
    world.jobtracker.end_of("job_1.m0.0").await;
    world.launch("job_1.m1.0", "hang");
    world.jobtracker.progress_of("job_1.m1.0").await;
    world.jobtracker.with(jobtracker::Received::disconnect);
    let again =
        world.jobtracker.until("a registration", |received| received.registrations.get(1).cloned()).await;
    assert_eq!(again.outputs, ["job_1.m0.0"]);
    let running: Vec<&str> = again.attempts.iter().map(|report| report.attempt.as_str()).collect();
    assert_eq!(running, ["job_1.m1.0"]);
    assert_eq!(again.incarnation, 1, "the incarnation that the JobTracker has assigned");
    // The attempt still runs, and the JobTracker can preempt it.
    let stop = proto::mr::Preempt {
        attempt: "job_1.m1.0".into(),
        why: "enough".into(),
        kind: proto::mr::PreemptKind::Kill.into(),
    };
    world.jobtracker.order(order::Kind::Preempt(stop));
    assert_eq!(world.jobtracker.end_of("job_1.m1.0").await, Report::Killed("enough".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_tracker_exits_and_kills_its_tasks() {
    let world = World::start().await;
    world.launch("job_1.m0.0", "fork:hang");
    let grandchild = world.grandchild("job_1.m0.0").await;
    world.jobtracker.with(|received| {
        received.refusal = Some("another process has taken the name here".into());
        received.disconnect();
    });
    let error = world.tracker().failed().await.to_string();
    assert!(error.contains("another process has taken the name here"), "{error}");
    until_true("the grandchild's death", || is_dead(grandchild)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_umbilical_connections_are_closed() {
    let world = World::start().await;
    let mut stream = std::os::unix::net::UnixStream::connect(world.root().join("umbilical.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_tracker_leaves_no_process_and_no_socket() {
    let mut world = World::start_with(|config| config.tasktracker.warm_tasks = 2).await;
    until_true("a full pool", || world.tracker().idle() == 2).await;
    world.launch("job_1.m0.0", "fork:hang");
    let grandchild = world.grandchild("job_1.m0.0").await;
    let (_, child) = state_of(grandchild).unwrap();
    world.stop_tracker().await;
    until_true("the child's death", || is_dead(child) && is_dead(grandchild)).await;
    assert!(!world.root().join("umbilical.sock").exists());
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn zombies() -> usize {
    let own = std::process::id();
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| state_of(*pid) == Some(('Z', own))).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_attempts_leave_no_processes_and_only_expected_files() {
    let world = World::start_with(|config| config.tasktracker.logs_kept = 5).await;
    // Use a long interval between heartbeats, so that the test fails if an event waits for a
    // periodic one.
    world.jobtracker.with(|received| {
        received.heartbeat_ms = 60_000;
        received.disconnect();
    });
    world.jobtracker.until("a registration", |received| received.registrations.get(1).map(drop)).await;
    let mut before = 0;
    let begin = std::time::Instant::now();
    for index in 0..200 {
        if index == 20 {
            until_true("a full pool", || world.tracker().idle() == 1).await;
            before = open_files();
        }
        let attempt = format!("job_1.m{index}.0");
        world.launch(&attempt, if index % 10 == 9 { "exit:1" } else { "ok" });
        world.jobtracker.end_of(&attempt).await;
    }
    println!("{:?} per attempt", begin.elapsed() / 200);
    until_true("a full pool", || world.tracker().idle() == 1).await;
    until_true("no more processes than the idle one", || world.tracker().processes() == 1).await;
    until_true("no zombie", || zombies() == 0).await;
    until_true("no file left open", || open_files() <= before + 2).await;
    world.jobtracker.order(order::Kind::Clean("job_1".into()));
    let jobs = world.root().join("jobs");
    until_true("an empty folder", || std::fs::read_dir(&jobs).unwrap().next().is_none()).await;
    let remaining = files(&world.root());
    let logs = remaining.iter().filter(|name| name.starts_with("logs/")).count();
    assert_eq!(logs, 2 * 5, "{remaining:?}");
    // The other files are LOCK, VOLUMES, `incarnation`, the socket, and the stdout and stderr of
    // the idle process.
    assert_eq!(remaining.len() - logs, 6, "{remaining:?}");
}
