//! Tests of decisions that need no policy: which jobs are accepted, what a repeated commit deletes,
//! when launches are suspended, how much of a report is stored, and repeated requests.

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

fn submission(request: u128, user: &str, maps: u64, output: &str) -> Event {
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
    Event::Submission { request: RequestId(request), spec: Arc::new(spec) }
}

/// Submits a job and returns the reply.
fn submit(core: &mut JobTracker, request: u128, user: &str, maps: u64, output: &str) -> Reply {
    let effects = send(core, submission(request, user, maps, output));
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
    let request = RequestId(1000 + u128::from(job));
    send(core, Event::Kill { request, job: JobId(job), by: "ann".into() });
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

fn registration(name: &str, maps: u32) -> Event {
    let tracker = Registration {
        name: name.into(),
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
    Event::Registration { request: RequestId(1), tracker }
}

/// Registers a tracker, submits a job and runs one attempt of each of its maps, which end as
/// reported.
fn run_maps(reports: Vec<AttemptStatus>) -> JobTracker {
    let mut core = start(Config::default());
    let maps = reports.len() as u32;
    send(&mut core, registration("t1", maps));
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

/// A JobTracker with its journal.
struct Recorded {
    core: JobTracker,
    journal: Vec<Entry>,
    now: Time,
    /// Requests of users, with their first answers.
    answered: Vec<(Event, Option<Reply>)>,
}

impl Recorded {
    /// Carries out the effects. Returns the reply and the number of new facts.
    fn execute(&mut self, effects: Vec<Effect>) -> (Option<Reply>, usize) {
        let (mut answer, before) = (None, self.journal.len());
        for effect in effects {
            match effect {
                Effect::Append(entry) => self.journal.push(entry),
                Effect::Reply { reply, .. } => answer = Some(reply),
                _ => {}
            }
        }
        (answer, self.journal.len() - before)
    }

    fn send(&mut self, event: Event) -> (Option<Reply>, usize) {
        let mut effects = Vec::new();
        self.core.handle(self.now, event, &mut effects);
        self.execute(effects)
    }

    /// Sends a request twice. Checks that it records this many facts, one of them the answer, and
    /// that only the first one has an effect.
    fn send_twice(&mut self, event: Event, facts: usize) {
        let (answer, recorded) = self.send(event.clone());
        assert_eq!(recorded, facts, "{event:?}");
        self.answered.push((event, answer));
        self.repeat_all();
    }

    fn repeat_all(&mut self) {
        for (event, answer) in self.answered.clone() {
            assert_eq!(self.send(event.clone()), (answer, 0), "{event:?}");
        }
    }

    fn tracker(&self, name: &str) -> TrackerId {
        self.core.cluster().tracker_named(name).expect("it has registered").id
    }
}

#[test]
fn repeated_requests_get_the_first_answer_and_have_one_effect_also_after_a_restart() {
    let config = Config { jobs_kept: 1, absence: Span(u64::MAX), ..Config::default() };
    let core = JobTracker::new(config.clone(), Box::new(Idle));
    let mut run = Recorded { core, journal: Vec::new(), now: Time(1), answered: Vec::new() };
    for event in [Event::Start, registration("t1", 1), registration("t2", 1), submission(1, "ann", 1, "")] {
        run.send(event);
    }
    let (t1, t2, by) = (run.tracker("t1"), run.tracker("t2"), || "ann".to_owned());
    let map = TaskId { job: JobId(1), phase: Phase::Map, index: 0 };
    let mut launched = Vec::new();
    run.core.launch(run.now, map, t1, false, Why::rule("test"), &mut launched);
    run.execute(launched);

    let (attempt, kind) = (map.attempt(0), PreemptKind::Kill);
    run.send_twice(Event::Preemption { request: RequestId(10), attempt, kind, by: by() }, 2);
    // Refusals are answers too.
    let attempt = map.attempt(1);
    run.send_twice(Event::Preemption { request: RequestId(11), attempt, kind, by: by() }, 1);
    run.send_twice(Event::Resumption { request: RequestId(12), task: map, on: None, by: by() }, 1);
    let within = Some(Span::secs(60));
    run.send_twice(Event::Drain { request: RequestId(13), tracker: t2, within, by: by() }, 2);
    run.now = run.now + Span::secs(1);
    run.repeat_all();
    run.send_twice(Event::Drain { request: RequestId(14), tracker: t2, within: None, by: by() }, 2);
    for number in 2..=3 {
        run.send(submission(number.into(), "ann", 1, ""));
        let request = RequestId(20 + u128::from(number));
        run.send_twice(Event::Kill { request, job: JobId(number), by: by() }, 2);
    }
    run.send(submission(4, "ann", 1, ""));
    assert!(run.core.cluster().job(JobId(2)).is_none(), "job 2 is not forgotten");
    run.send(Event::Disconnection { tracker: t2, incarnation: Incarnation(1) });
    run.now = run.now + config.lost_after + Span::secs(1);
    run.send(Event::Tick);
    run.send_twice(Event::Forget { request: RequestId(30), tracker: t2, by: by() }, 2);

    run.core = JobTracker::new(config, Box::new(Idle));
    run.journal.iter().for_each(|entry| run.core.replay(entry).expect("the facts are consistent"));
    run.send(Event::Start);
    run.repeat_all();
    // Answers expire. Then the request is a new one.
    run.now = run.now + Span::secs(601);
    let (event, answer) = run.answered.pop().expect("there are requests");
    let refused = Reply::Refused(format!("there is no tracker {t2}"));
    assert_eq!((answer, run.send(event).0), (Some(Reply::Accepted), Some(refused)));
}
