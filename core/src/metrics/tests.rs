//! Figures of a small life, worked out by hand.

use super::*;
use crate::{
    fact::Fact,
    ids::{Incarnation, RequestId},
    job::{Priority, Split},
    plan::Why,
    task::{AttemptResult, Stage},
};

fn joined(tracker: u32, rack: &str) -> Fact {
    Fact::TrackerJoined {
        tracker: TrackerId(tracker),
        name: format!("t{tracker}"),
        incarnation: Incarnation(1),
        host: format!("h{tracker}"),
        rack: rack.into(),
        shuffle_addr: String::new(),
        logs_addr: String::new(),
        slots: PerPhase { map: 2, reduce: 1 },
    }
}

fn submitted() -> Fact {
    let split = |host: &str| Split {
        source: String::new(),
        start: 0,
        end: 100,
        divisible: true,
        hosts: vec![host.to_owned()],
    };
    let spec = JobSpec {
        name: "sort".into(),
        user: "ann".into(),
        queue: String::new(),
        priority: Priority::Normal,
        program: String::new(),
        splits: vec![split("h0"), split("h1")],
        reduces: 1,
        output: String::new(),
        slow_start: 1.0,
        speculation: false,
        attempts_max: 4,
        conf: [(GROUP.to_owned(), "large".to_owned())].into(),
    };
    Fact::JobSubmitted { job: JobId(1), request: RequestId(1), spec: Arc::new(spec) }
}

fn attempt(phase: Phase, index: u32, number: u32) -> AttemptId {
    TaskId { job: JobId(1), phase, index }.attempt(number)
}

fn launched(attempt: AttemptId, tracker: u32, from: Option<AttemptId>) -> Fact {
    let (tracker, why) = (TrackerId(tracker), Why::rule("test"));
    Fact::AttemptLaunched { attempt, tracker, speculative: false, from, why }
}

fn succeeded(attempt: AttemptId) -> Fact {
    Fact::AttemptSucceeded { attempt, result: AttemptResult::default() }
}

fn recalled(attempt: AttemptId, how: Recall) -> Fact {
    Fact::AttemptRecalled { attempt, how, why: String::new(), fault: false, hold: false }
}

#[test]
fn a_job_that_is_split_paused_and_moved() {
    let (m0, m1, tail) = (attempt(Phase::Map, 0, 0), attempt(Phase::Map, 1, 0), attempt(Phase::Map, 2, 0));
    let (r0, r1) = (attempt(Phase::Reduce, 0, 0), attempt(Phase::Reduce, 0, 1));
    let life = [
        (0, joined(0, "a")),
        (0, joined(1, "a")),
        (10, submitted()),
        (13, launched(m0, 0, None)),
        (14, launched(m1, 0, None)),
        (20, recalled(m1, Recall::Split)),
        (21, Fact::MapSplit { attempt: m1, position: 50, result: AttemptResult::default() }),
        (22, succeeded(m0)),
        (25, launched(tail, 1, None)),
        (30, succeeded(tail)),
        (34, launched(r0, 0, None)),
        (40, recalled(r0, Recall::Pause)),
        (41, Fact::AttemptPaused { attempt: r0, stage: Stage::Reduce, bytes: 5, bytes_in: 5 }),
        (47, launched(r1, 1, Some(r0))),
        (50, succeeded(r1)),
        (51, Fact::JobEnded { job: JobId(1), outcome: JobOutcome::Succeeded }),
    ];
    let mut metrics = Metrics::default();
    for (at, fact) in &life {
        metrics.observe(Time(at * 1_000_000), fact);
    }
    let job = metrics.job(JobId(1)).expect("it is known");
    assert_eq!(job.group, "large");
    assert_eq!(job.makespan(), Some(Span::secs(41)));
    assert_eq!(job.waiting(), Some(Span::secs(3)));
    assert_eq!(job.execution(), Some(Span::secs(38)));
    assert_eq!(job.maps_done, Some(Time(30_000_000)));
    // 30 to 34 at first, 41 to 47 after the pause.
    assert_eq!(job.reduce_wait(), Span::secs(10));
    assert_eq!(job.near, [2, 1, 0], "m0 and the tail are where their input is, m1 is in the rack");
    assert_eq!(job.taken, Taken { splits: 1, pauses: 1, kills: 0, resumes: 1, migrations: 1 });
    assert_eq!(job.held, PerPhase { map: Span::secs(9 + 7 + 5), reduce: Span::secs(7 + 3) });
    assert_eq!(job.slowdown(Span::secs(20)), Some(2.05));
    assert_eq!(job.lost, Span(0));
}

#[test]
fn work_of_a_lost_tracker() {
    let (m0, m1) = (attempt(Phase::Map, 0, 0), attempt(Phase::Map, 1, 0));
    let killed = |attempt| Fact::AttemptKilled { attempt, why: String::new(), bytes_in: 60 };
    let life = [
        (0, joined(0, "a")),
        (0, joined(1, "b")),
        (1, submitted()),
        (1, launched(m0, 1, None)),
        (1, launched(m1, 1, None)),
        (5, succeeded(m1)),
        (20, Fact::TrackerLost { tracker: TrackerId(1), why: String::new() }),
        (20, killed(m0)),
        (20, Fact::MapOutputLost { attempt: m1, why: String::new(), unfetched: false }),
        (22, launched(attempt(Phase::Map, 0, 1), 0, None)),
        (25, launched(attempt(Phase::Map, 1, 1), 0, None)),
    ];
    let mut metrics = Metrics::default();
    for (at, fact) in &life {
        metrics.observe(Time(at * 1_000_000), fact);
    }
    let (waited, longest) = (Span::secs(7), Span::secs(5));
    let expected = Recovery { tasks: 2, maps: 2, local: 1, waited, maps_waited: waited, longest };
    assert_eq!(metrics.recovery, expected);
    let job = metrics.job(JobId(1)).expect("it is known");
    assert_eq!((job.lost, job.lost_bytes, job.taken.kills), (Span::secs(19), 60, 0));
    assert_eq!(job.near, [2, 0, 2]);
    assert_eq!(job.recovery, metrics.recovery, "all of it is this job's");
}
