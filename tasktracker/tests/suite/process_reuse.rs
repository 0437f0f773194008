//! One process runs several attempts of one job, one after another.

use super::*;
use proto::mr::attempt_report::Status as Report;

/// A reduce without maps, which needs no file system.
fn reduce_of_nothing(attempt: &str) -> TaskSpec {
    let input = Some(task_spec::Input::Partition(Partition { index: 0, maps: 0 }));
    TaskSpec { input, ..spec(attempt, "") }
}

/// Runs an attempt, and returns its PID and working folder.
async fn process_of(world: &World, spec: TaskSpec) -> (u32, String) {
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
    world.start_tracker_of(&example("reused_task")).await;
    // On a busy machine the idle process may have expired before the next attempt starts.
    let (mut first, mut index) = (0, 0);
    let folder = loop {
        let attempt = format!("job_1.r{index}.0");
        let (process, folder) = process_of(&world, reduce_of_nothing(&attempt)).await;
        assert!(folder.ends_with(&format!("/jobs/job_1/work/{attempt}")), "{folder}");
        if std::mem::replace(&mut first, process) == process {
            break folder;
        }
        index += 1;
        assert!(index < 20, "no process was reused");
    };
    assert!(!Path::new(&folder).exists());
    let (other, _) = process_of(&world, reduce_of_nothing("job_2.r0.0")).await;
    assert_ne!(other, first);
    world.jobtracker.order(order::Kind::Clean("job_1".into()));
    until_true("the end of idle processes", || is_dead(first) && is_dead(other)).await;
    let left = files(&world.root().join("jobs"));
    assert!(!left.iter().any(|path| path.contains("work/job")), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_or_streaming_process_is_not_reused() {
    let mut world = World::without_tracker(|_| {}).await;
    world.start_tracker_of(&example("reused_task")).await;
    let mut bad = reduce_of_nothing("job_1.r0.0");
    bad.conf.insert("panic".into(), String::new());
    world.launch_spec(bad);
    let failure = world.jobtracker.failure_of("job_1.r0.0").await;
    assert!(failure.contains("panic requested"), "{failure}");
    let failed = world.log("job_1.r0.0", false, 0).await.unwrap();
    let (after, _) = process_of(&world, reduce_of_nothing("job_1.r1.0")).await;
    assert!(!failed.starts_with(&format!("{after} ")), "{failed}");
    let streaming = |attempt| {
        let program = Program {
            kind: Some(program::Kind::Builtin("streaming".into())),
            files: vec![],
            settings: vec![],
        };
        TaskSpec { program: Some(program), ..reduce_of_nothing(attempt) }
    };
    let (first, _) = process_of(&world, streaming("job_2.r0.0")).await;
    let (second, _) = process_of(&world, streaming("job_2.r1.0")).await;
    assert_ne!(first, second);
}
