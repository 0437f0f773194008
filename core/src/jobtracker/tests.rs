//! Tests of decisions that need no policy: which jobs are accepted, what a repeated commit deletes,
//! when launches are suspended, and how much of a report is stored.

use super::*;
use crate::{
    event::{AttemptReport, AttemptStatus, Heartbeat, JobRefusal, Registration},
    ids::{Incarnation, TaskId},
    job::{InputPin, Job, JobSpec, Payload, Priority, Program, Split},
    output::Leftovers,
    plan::Plan,
    scheduler::Round,
    task::AttemptResult,
    why::Why,
};
use std::sync::Arc;

/// A policy that assigns no slot.
#[derive(Debug)]
struct Idle;

impl Scheduler for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn decide(&mut self, _: Round, _: &mut Plan<'_>) {}

    fn outranks(&self, _: JobId, _: JobId, _: Phase, _: &Plan<'_>) -> bool {
        false
    }
}

fn start(config: Config) -> JobTracker {
    let mut core = JobTracker::new(config, Box::new(Idle));
    send(&mut core, Event::Start);
    core
}

fn send(core: &mut JobTracker, event: Event) -> Vec<Effect> {
    let mut effects = Vec::new();
    core.handle(Time(1), event, &mut effects);
    effects
}

/// Submits a job and returns the reply.
fn submit(core: &mut JobTracker, request: u128, user: &str, maps: u64, output: &str) -> Reply {
    let split = |index| Split {
        source: "/input".into(),
        start: index,
        end: index + 1,
        divisible: false,
        hosts: Vec::new(),
        pin: InputPin::default(),
    };
    let spec = JobSpec {
        name: "job".into(),
        user: user.into(),
        queue: String::new(),
        priority: Priority::Normal,
        program: Program::Builtin("test".into()),
        splits: (0..maps).map(split).collect(),
        reduces: 0,
        output: output.into(),
        slow_start: 1.0,
        speculation: false,
        split_slow: false,
        attempts_max: 4,
        conf: BTreeMap::new(),
        payload: Payload { staging: Some("/staged".into()), ..Payload::default() },
    };
    let effects = send(core, Event::Submission { request: RequestId(request), spec: Arc::new(spec) });
    let reply = effects.into_iter().find_map(|effect| match effect {
        Effect::Reply { reply, .. } => Some(reply),
        _ => None,
    });
    reply.expect("a submission has a reply")
}

fn overloaded(why: &str) -> Reply {
    Reply::JobRefused(JobRefusal::Overloaded(why.into()))
}

fn kill(core: &mut JobTracker, job: u32) {
    send(core, Event::Kill { request: RequestId(1000), job: JobId(job), by: "ann".into() });
}

#[test]
fn jobs_over_the_limits_of_active_jobs_are_refused() {
    let mut core = start(Config { jobs_max: 2, user_jobs_max: 1, ..Config::default() });
    assert_eq!(submit(&mut core, 1, "ann", 1, ""), Reply::Submitted(JobId(1)));
    let second = submit(&mut core, 2, "ann", 1, "");
    assert_eq!(second, overloaded("user ann has 1 job active (jobtracker.user_jobs_max)"));
    assert_eq!(submit(&mut core, 3, "bob", 1, ""), Reply::Submitted(JobId(2)));
    let third = submit(&mut core, 4, "cid", 1, "");
    assert_eq!(third, overloaded("the cluster has 2 jobs active (jobtracker.jobs_max)"));
    let Reply::JobRefused(refusal) = third else { unreachable!() };
    assert_eq!(refusal.to_string(), "the cluster has 2 jobs active (jobtracker.jobs_max): try again later");
    // A repeated request gets its job although the limits are reached.
    assert_eq!(submit(&mut core, 1, "ann", 1, ""), Reply::Submitted(JobId(1)));
    assert_eq!(core.check_load(RequestId(1), "ann", 0), Ok(()));
    assert!(core.check_load(RequestId(5), "ann", 0).is_err());
    // Ended jobs do not count.
    kill(&mut core, 1);
    assert_eq!(submit(&mut core, 5, "ann", 1, ""), Reply::Submitted(JobId(3)));
}

#[test]
fn limit_of_tasks_per_user_does_not_apply_to_the_only_job_of_the_user() {
    let mut core = start(Config { user_tasks_max: 5, ..Config::default() });
    assert_eq!(submit(&mut core, 1, "ann", 4, ""), Reply::Submitted(JobId(1)));
    let second = submit(&mut core, 2, "ann", 2, "");
    let why = "user ann would have 6 tasks in active jobs (jobtracker.user_tasks_max)";
    assert_eq!(second, overloaded(why));
    assert_eq!(submit(&mut core, 3, "bob", 9, ""), Reply::Submitted(JobId(2)));
    assert_eq!(submit(&mut core, 4, "ann", 1, ""), Reply::Submitted(JobId(3)));
}

#[test]
fn output_folder_of_an_active_job_is_refused() {
    let mut core = start(Config::default());
    assert_eq!(submit(&mut core, 1, "ann", 1, "/a/out"), Reply::Submitted(JobId(1)));
    let in_use = JobRefusal::OutputInUse { job: JobId(1), output: "/a/out".into() };
    for output in ["/a/out", "/a/out/below", "/a"] {
        let refused = Reply::JobRefused(in_use.clone());
        assert_eq!(submit(&mut core, 2, "bob", 1, output), refused, "{output}");
    }
    assert_eq!(
        in_use.to_string(),
        "job_1 is writing to /a/out: wait until it ends, or choose another output"
    );
    assert_eq!(core.check_output_unused(RequestId(1), "/a/out"), Ok(()), "its own request");
    for (request, output) in [(3, "/a/output"), (4, "/b"), (5, ""), (6, "")] {
        assert!(matches!(submit(&mut core, request, "bob", 1, output), Reply::Submitted(_)), "{output}");
    }
    kill(&mut core, 1);
    assert!(matches!(submit(&mut core, 7, "bob", 1, "/a/out/below"), Reply::Submitted(_)));
}

#[test]
fn repeated_commit_deletes_the_pieces_of_the_second_run() {
    let deleted = |repeated: bool| -> Vec<Leftovers> {
        let mut core = start(Config::default());
        // A job without tasks is committed at once.
        submit(&mut core, 1, "ann", 0, "/out");
        let effects = send(&mut core, Event::CommitResult { job: JobId(1), repeated, result: Ok(()) });
        assert!(core.cluster().job(JobId(1)).is_some_and(Job::has_ended));
        let ended = effects.iter().position(|effect| matches!(effect, Effect::Append(_))).unwrap();
        let deletions = effects[ended..].iter().filter_map(|effect| match effect {
            Effect::DeleteLeftovers { leftovers, .. } => Some(leftovers.clone()),
            _ => None,
        });
        deletions.collect()
    };
    let leftovers = |work_folder: Option<&str>, discard_output| Leftovers {
        user: "ann".into(),
        staging: Some("/staged".into()),
        work_folder: work_folder.map(str::to_owned),
        discard_output,
    };
    let (staged, pieces) = (leftovers(None, false), leftovers(Some("/out/_temporary/job_1"), true));
    assert_eq!(deleted(false), std::slice::from_ref(&staged));
    assert_eq!(deleted(true), [staged, pieces]);
}

#[test]
fn launches_are_suspended_below_a_quarter_of_the_disk_reserve() {
    let mut core = start(Config { disk_reserve_bytes: 400, ..Config::default() });
    for (bytes, suspended) in [(100, false), (99, true), (0, true), (100, false)] {
        assert_eq!(core.suspends_launches(bytes), suspended);
        send(&mut core, Event::FreeSpace { bytes });
        assert_eq!(core.launches_suspended(), suspended, "{bytes} bytes free");
    }
}

/// Registers a tracker, submits a job and runs one attempt of each of its maps, which end as
/// reported.
fn run_maps(reports: Vec<AttemptStatus>) -> JobTracker {
    let mut core = start(Config::default());
    let maps = reports.len() as u32;
    let tracker = Registration {
        name: "t1".into(),
        incarnation: Incarnation(1),
        host: "h1".into(),
        rack: "r1".into(),
        shuffle_addr: "h1:1".into(),
        logs_addr: "h1:2".into(),
        slots: PerPhase { map: maps, reduce: 0 },
        attempts: Vec::new(),
        outputs: Vec::new(),
        checkpoints: Vec::new(),
        jobs: Vec::new(),
    };
    send(&mut core, Event::Registration { request: RequestId(1), tracker });
    assert_eq!(submit(&mut core, 2, "ann", maps.into(), ""), Reply::Submitted(JobId(1)));
    let tracker = core.cluster().tracker_named("t1").expect("it has registered").id;
    let task = |index| TaskId { job: JobId(1), phase: Phase::Map, index };
    for index in 0..maps {
        core.launch(Time(1), task(index), tracker, false, Why::rule("test"), &mut Vec::new());
    }
    let report = |(index, status)| AttemptReport { attempt: task(index).attempt(0), status };
    let attempts = (0..).zip(reports).map(report).collect();
    let (incarnation, fetch_failures) = (Incarnation(1), Vec::new());
    let heartbeat = Heartbeat { tracker, incarnation, seq: 1, acked: 0, attempts, fetch_failures };
    send(&mut core, Event::Heartbeat(heartbeat));
    core
}

#[test]
fn counters_over_the_limit_of_a_job_are_added_to_one_counter() {
    let counters = |from: u64, value: u64| {
        let counters = (from..from + 1000).map(|name| (format!("{name:05}"), value)).collect();
        AttemptStatus::Succeeded(AttemptResult { counters, ..AttemptResult::default() })
    };
    // Two maps fill the limit of 2000 names. The third has 500 of them, and 500 others.
    let core = run_maps(vec![counters(0, 1), counters(1000, 1), counters(1500, 10), counters(5000, 100)]);
    let job = core.cluster().job(JobId(1)).expect("it is known");
    assert_eq!(job.counters.len(), 2001);
    assert_eq!((job.counters["01499"], job.counters["01500"]), (1, 11));
    assert_eq!(job.counters["COUNTERS_OVER_LIMIT"], 500 * 10 + 1000 * 100);
    let result = |index: usize| job.tasks.map[index].winning_attempt().and_then(|won| won.result.as_ref());
    assert_eq!(result(2).map(|result| result.counters.len()), Some(501));
    assert_eq!(result(3).map(|result| result.counters.len()), Some(1), "the rest is not stored");
    crate::invariants::check(core.cluster()).unwrap();
}

#[test]
fn start_of_the_reason_of_a_killed_attempt_is_stored() {
    let why = format!("the cause {}", "\u{e9}".repeat(1000));
    let core = run_maps(vec![AttemptStatus::Killed(why.clone())]);
    let task = &core.cluster().job(JobId(1)).expect("it is known").tasks.map[0];
    let stored = task.attempts[0].error.as_deref().unwrap_or_default();
    assert!(stored.len() <= 256 && stored.len() > 250 && why.starts_with(stored), "{stored}");
}

#[test]
fn delay_after_interruptions_is_doubled_up_to_a_minute() {
    let core = run_maps(vec![AttemptStatus::Killed("the file system is unavailable".into())]);
    let mut task = core.cluster().job(JobId(1)).expect("it is known").tasks.map[0].clone();
    assert_eq!(task.interruptions, 1);
    let delays = [1, 4, 5, 6, 10, 11, 999].map(|interruptions| {
        task.interruptions = interruptions;
        task.retry_delay().0 / 1_000_000
    });
    assert_eq!(delays, [0, 0, 1, 2, 32, 60, 60]);
}
