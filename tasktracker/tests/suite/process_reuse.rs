//! Tests that one process runs several attempts of one job, one after another.

use super::*;
use proto::mr::attempt_report::Status as Report;

/// Returns a reduce without maps, which needs no file system.
fn reduce_without_maps(attempt: &str) -> TaskSpec {
    let input = Some(task_spec::Input::Partition(Partition { index: 0, maps: 0 }));
    TaskSpec { input, ..spec(attempt, "") }
}

/// Runs an attempt. Returns the PID and the working folder that it has printed.
async fn run_attempt(world: &World, spec: TaskSpec) -> (u32, String) {
    let attempt = spec.attempt.clone();
    world.launch_spec(spec);
    let end = world.jobtracker.end_of(&attempt).await;
    assert!(matches!(end, Report::Succeeded(_)), "{end:?}");
    let printed = world.log(&attempt, false, 0).await.unwrap();
    let (pid, folder) = printed.split_once(' ').unwrap();
    assert_eq!(world.log(&attempt, true, 0).await.unwrap(), format!("process {pid}\n"));
    (pid.parse().unwrap(), folder.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn process_is_reused_only_for_its_job() {
    let mut world = World::without_tracker(|_| {}).await;
    world.start_tracker_with(&example("reused_task")).await;
    // Try several times, because on a busy machine the idle process may expire before the next
    // attempt starts.
    let (mut first, mut index) = (0, 0);
    let folder = loop {
        let attempt = format!("job_1.r{index}.0");
        let (process, folder) = run_attempt(&world, reduce_without_maps(&attempt)).await;
        assert!(folder.ends_with(&format!("/jobs/job_1/work/{attempt}")), "{folder}");
        if std::mem::replace(&mut first, process) == process {
            break folder;
        }
        index += 1;
        assert!(index < 20, "no process was reused");
    };
    assert!(!Path::new(&folder).exists());
    let (other, _) = run_attempt(&world, reduce_without_maps("job_2.r0.0")).await;
    assert_ne!(other, first);
    world.jobtracker.order(order::Kind::Clean("job_1".into()));
    until_true("the idle processes to end", || is_dead(first) && is_dead(other)).await;
    let remaining = files(&world.root().join("jobs"));
    assert!(!remaining.iter().any(|path| path.contains("work/job")), "{remaining:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_or_streaming_process_is_not_reused() {
    let mut world = World::without_tracker(|_| {}).await;
    world.start_tracker_with(&example("reused_task")).await;
    let mut panicking = reduce_without_maps("job_1.r0.0");
    panicking.conf.insert("panic".into(), String::new());
    world.launch_spec(panicking);
    let failure = world.jobtracker.failure_of("job_1.r0.0").await;
    assert!(failure.contains("panic requested"), "{failure}");
    let failed = world.log("job_1.r0.0", false, 0).await.unwrap();
    let (after, _) = run_attempt(&world, reduce_without_maps("job_1.r1.0")).await;
    assert!(!failed.starts_with(&format!("{after} ")), "{failed}");
    let streaming = |attempt| {
        let program = Program {
            kind: Some(program::Kind::Builtin("streaming".into())),
            files: vec![],
            settings: vec![],
        };
        TaskSpec { program: Some(program), ..reduce_without_maps(attempt) }
    };
    let (first, _) = run_attempt(&world, streaming("job_2.r0.0")).await;
    let (second, _) = run_attempt(&world, streaming("job_2.r1.0")).await;
    assert_ne!(first, second);
}
