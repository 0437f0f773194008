//! Tests that a task which sends, uses or prints too much ends only its own attempt.

use super::*;
use proto::mr::attempt_report::Status as Report;

#[tokio::test(flavor = "multi_thread")]
async fn oversized_task_messages_fail_only_that_attempt() {
    let world = World::start().await;
    world.launch("job_1.m9.0", "hang");
    world.jobtracker.progress_of("job_1.m9.0").await;
    let cases = [
        ("job_1.m0.0", "counters:1001", "more than 1000 counters in one task"),
        ("job_1.m1.0", "pieces:10001", "the task wrote 10001 output files: the maximum is 10000"),
        // This result is longer than a message to the JobTracker may be.
        ("job_1.m2.0", "counters:700000", "the task sent a message of "),
    ];
    for (attempt, fake, text) in cases {
        world.launch(attempt, fake);
        let failure = world.jobtracker.failure_of(attempt).await;
        assert!(failure.starts_with(text), "{fake}: {failure}");
    }
    for (attempt, fake) in [("job_1.m3.0", "counters:1000"), ("job_1.m4.0", "pieces:10000")] {
        world.launch(attempt, fake);
        assert!(matches!(world.jobtracker.end_of(attempt).await, Report::Succeeded(_)), "{fake}");
    }
    world.launch("job_1.m5.0", "long:3000000");
    let failure = world.jobtracker.failure_of("job_1.m5.0").await;
    assert!(failure.len() <= 16 << 10, "{}", failure.len());
    assert!(failure.starts_with("beginsss") && failure.ends_with("sssend"));
    let statuses = world.jobtracker.with(|received| {
        let running = |report: &proto::mr::AttemptReport| match &report.status {
            Some(Report::Running(progress)) => progress.status.len(),
            _ => 0,
        };
        received.heartbeats.iter().flat_map(|heartbeat| &heartbeat.attempts).map(running).max()
    });
    assert!(statuses.unwrap() <= 1024);
    // The connection was never closed, and the other attempt still runs.
    assert_eq!(world.jobtracker.with(|received| received.registrations.len()), 1);
    let ended = world.jobtracker.with(|received| received.ended.iter().any(|(id, _)| id == "job_1.m9.0"));
    assert!(!ended);
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_that_exceeds_the_memory_limit_fails_and_the_error_has_use_and_limit() {
    let world = World::start_with(|config| {
        config.tasktracker.task_memory = Bytes::mib(16);
        config.tasktracker.task_memory_max = Bytes::mib(100);
    })
    .await;
    world.launch("job_1.m1.0", "eat:50");
    world.launch("job_1.m0.0", "eat:300");
    let failure = world.jobtracker.failure_of("job_1.m0.0").await;
    let used = failure.strip_prefix("out of memory: the task used ").and_then(|rest| rest.split_once(' '));
    let (used, rest) = used.unwrap_or_else(|| panic!("{failure}"));
    assert!((101..400).contains(&used.parse::<u64>().unwrap()), "{failure}");
    assert!(rest.starts_with("MiB, the limit is 100 MiB (task_memory_max)"), "{failure}");
    assert!(!world.jobtracker.with(|received| received.ended.iter().any(|(id, _)| id == "job_1.m1.0")));
}

#[tokio::test(flavor = "multi_thread")]
async fn resource_limits_apply_to_a_task_on_mrlib() {
    let mut world = World::without_tracker(|config| {
        config.tasktracker.task_memory_max = Bytes::mib(512);
        config.tasktracker.task_files_max = 777;
    })
    .await;
    world.start_tracker_with(&example("limited_task")).await;
    world.launch("job_1.m0.0", "");
    assert_eq!(world.jobtracker.failure_of("job_1.m0.0").await, "limits Some(2147483648) Some(777)");
    let mut hungry = spec("job_1.m1.0", "");
    hungry.conf.insert("eat".into(), "yes".into());
    world.launch_spec(hungry);
    let failure = world.jobtracker.failure_of("job_1.m1.0").await;
    assert!(failure.starts_with("killed by signal 6 (aborted):\n"), "{failure}");
    assert!(failure.contains("memory allocation of 67108864 bytes failed"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_that_prints_too_much_fails_and_its_log_is_truncated() {
    let world = World::start_with(|config| config.tasktracker.task_log_max = Bytes::mib(1)).await;
    world.launch("job_1.m0.0", "print");
    let failure = world.jobtracker.failure_of("job_1.m0.0").await;
    assert!(failure.starts_with("the task printed more than "), "{failure}");
    assert!(failure.contains(" to stdout (task_log_max)"), "{failure}");
    assert_eq!(world.log("job_1.m0.0", false, 0).await.unwrap().len(), 1 << 20);
}
