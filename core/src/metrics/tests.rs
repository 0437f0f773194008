//! The metrics of small histories, compared with values computed by hand.

use super::*;
use crate::{
    fact::Fact,
    ids::{Incarnation, RequestId},
    job::{Payload, Priority, Program, Split},
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
        pin: crate::job::InputPin::default(),
    };
    let spec = JobSpec {
        name: "sort".into(),
        user: "ann".into(),
        queue: String::new(),
        priority: Priority::Normal,
        program: Program::Builtin(String::new()),
        splits: vec![split("h0"), split("h1")],
        reduces: 1,
        output: String::new(),
        slow_start: 1.0,
        speculation: false,
        split_slow: true,
        attempts_max: 4,
        conf: [(GROUP.to_owned(), "large".to_owned())].into(),
        payload: Payload::default(),
    };
    Fact::JobSubmitted { job: JobId(1), request: RequestId(1), spec: Arc::new(spec) }
}

fn attempt(phase: Phase, index: u32, number: u32) -> AttemptId {
    TaskId { job: JobId(1), phase, index }.attempt(number)
}

fn launched(attempt: AttemptId, tracker: u32, resumed_from: Option<AttemptId>) -> Fact {
    let (tracker, why) = (TrackerId(tracker), Why::rule("test"));
    Fact::AttemptLaunched { attempt, tracker, speculative: false, resumed_from, why }
}

fn succeeded(attempt: AttemptId) -> Fact {
    Fact::AttemptSucceeded { attempt, result: AttemptResult::default() }
}

fn preempted(attempt: AttemptId, kind: PreemptKind) -> Fact {
    Fact::PreemptionRequested { attempt, kind, why: String::new(), fault: false, hold: false }
}

#[test]
fn split_paused_and_migrated_job_has_the_figures_computed_by_hand() {
    let (m0, m1, tail) = (attempt(Phase::Map, 0, 0), attempt(Phase::Map, 1, 0), attempt(Phase::Map, 2, 0));
    let (r0, r1) = (attempt(Phase::Reduce, 0, 0), attempt(Phase::Reduce, 0, 1));
    let events = [
        (0, joined(0, "a")),
        (0, joined(1, "a")),
        (10, submitted()),
        (13, launched(m0, 0, None)),
        (14, launched(m1, 0, None)),
        (20, preempted(m1, PreemptKind::Split)),
        (21, Fact::MapSplit { attempt: m1, position: 50, result: AttemptResult::default() }),
        (22, succeeded(m0)),
        (25, launched(tail, 1, None)),
        (30, succeeded(tail)),
        (34, launched(r0, 0, None)),
        (40, preempted(r0, PreemptKind::Pause)),
        (
            41,
            Fact::AttemptPaused {
                attempt: r0,
                stage: Stage::Reduce,
                bytes: 5,
                bytes_in: 5,
                interrupted: false,
            },
        ),
        (47, launched(r1, 1, Some(r0))),
        (50, succeeded(r1)),
        (51, Fact::JobEnded { job: JobId(1), outcome: JobOutcome::Succeeded }),
    ];
    let mut metrics = Metrics::default();
    for (at, fact) in &events {
        metrics.observe(Time(at * 1_000_000), fact);
    }
    let job = metrics.job(JobId(1)).expect("it is known");
    assert_eq!(job.group, "large");
    assert_eq!((job.input_bytes, &job.failure), (200, &None));
    assert_eq!(job.makespan(), Some(Span::secs(41)));
    assert_eq!(job.waiting(), Some(Span::secs(3)));
    assert_eq!(job.waiting().zip(job.execution()).map(|(a, b)| a + b), job.makespan());
    assert_eq!(job.execution(), Some(Span::secs(38)));
    assert_eq!(job.maps_done, Some(Time(30_000_000)));
    // The reduce waits from 30 s to 34 s before its first launch, and from 41 s to 47 s after the
    // pause.
    assert_eq!(job.reduce_wait(), Some(Span::secs(10)));
    assert_eq!(job.first_reduce, Some(Time(34_000_000)));
    assert_eq!(job.near, [2, 1, 0], "m0 and the remainder are node-local, m1 is rack-local");
    assert_eq!(job.locality(), Some(2.0 / 3.0));
    let recovery = (job.recovery.mean_wait(), job.recovery.mean_map_wait(), job.recovery.locality());
    assert_eq!(recovery, (None, None, None), "nothing was lost, so recovery has no values");
    assert_eq!(
        job.preemption,
        PreemptionCounts { splits: 1, pauses: 1, kills: 0, resumes: 1, migrations: 1, internal: 0 }
    );
    assert_eq!(job.held, PerPhase { map: Span::secs(9 + 7 + 5), reduce: Span::secs(7 + 3) });
    assert_eq!(job.slowdown(Span::secs(20)), Some(2.05));
    assert_eq!(job.lost, Span(0));
    // The preemption latency: from 20 s to 21 s and from 40 s to 41 s. No fact contains the time to
    // start again.
    assert_eq!(job.overhead(), Span::secs(2));
}

#[test]
fn figures_without_data_are_none() {
    let none = JobFigures { tasks: PerPhase { map: 2, reduce: 0 }, ..figures_after(vec![(0, submitted())]) };
    assert_eq!((none.reduce_wait(), none.locality()), (None, None), "no reduces, and no map launched yet");
    assert_eq!(
        figures_after(vec![(0, submitted())]).reduce_wait(),
        Some(Span(0)),
        "one reduce, which has not waited"
    );
}

#[test]
fn job_ended_before_first_map_counts_as_waiting() {
    let job = figures_after(vec![
        (10, submitted()),
        (14, Fact::JobEnded { job: JobId(1), outcome: JobOutcome::Killed("ann".into()) }),
    ]);
    assert_eq!((job.makespan(), job.waiting()), (Some(Span::secs(4)), Some(Span::secs(4))));
    assert_eq!(job.execution(), Some(Span(0)));
    assert_eq!((job.succeeded, job.failure.as_deref()), (false, Some("killed by ann")));
}

#[test]
fn lost_tracker_adds_lost_work_and_recovery_time() {
    let (m0, m1) = (attempt(Phase::Map, 0, 0), attempt(Phase::Map, 1, 0));
    let killed =
        |attempt| Fact::AttemptKilled { attempt, why: String::new(), bytes_in: 60, interrupted: false };
    let events = [
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
    for (at, fact) in &events {
        metrics.observe(Time(at * 1_000_000), fact);
    }
    let (waited, longest) = (Span::secs(7), Span::secs(5));
    let expected = Recovery { tasks: 2, maps: 2, local: 1, waited, maps_waited: waited, longest };
    assert_eq!(metrics.recovery, expected);
    let job = metrics.job(JobId(1)).expect("it is known");
    // Lost: m0, which ran from 1 s to 20 s, and m1, which ran from 1 s to 5 s and whose output was
    // lost with the node.
    assert_eq!((job.lost, job.lost_bytes, job.preemption.kills), (Span::secs(19 + 4), 60, 0));
    assert_eq!(job.near, [2, 0, 2]);
    assert_eq!(job.recovery, metrics.recovery, "all recovered tasks belong to this job");
}

fn figures_after(events: Vec<(u64, Fact)>) -> JobFigures {
    let mut metrics = Metrics::default();
    for (at, fact) in &events {
        metrics.observe(Time(at * 1_000_000), fact);
    }
    metrics.job(JobId(1)).expect("it is known").clone()
}

/// Returns the facts of a job whose two maps run from 1 s to 10 s.
fn maps() -> Vec<(u64, Fact)> {
    let maps = [0, 1].map(|index| attempt(Phase::Map, index, 0));
    let mut events = vec![(0, joined(0, "a")), (0, joined(1, "a")), (1, submitted())];
    events.extend(maps.map(|map| (1, launched(map, map.task.index, None))));
    events.extend(maps.map(|map| (10, succeeded(map))));
    events
}

#[test]
fn speculative_attempt_has_no_waiting_time() {
    let (r0, second) = (attempt(Phase::Reduce, 0, 0), attempt(Phase::Reduce, 0, 1));
    let mut events = maps();
    let (tracker, why) = (TrackerId(1), Why::rule("straggler"));
    events.extend([
        (13, launched(r0, 0, None)),
        (60, Fact::AttemptLaunched { attempt: second, tracker, speculative: true, resumed_from: None, why }),
        (70, Fact::AttemptKilled { attempt: second, why: String::new(), bytes_in: 0, interrupted: false }),
        (80, succeeded(r0)),
    ]);
    assert_eq!(figures_after(events).reduce_wait(), Some(Span::secs(3)));
}

#[test]
fn lost_map_output_counts_as_lost_work_and_ends_the_wait_for_a_slot() {
    let (m1, again, r0) =
        (attempt(Phase::Map, 1, 0), attempt(Phase::Map, 1, 1), attempt(Phase::Reduce, 0, 0));
    let mut events = maps();
    events.extend([
        (14, Fact::MapOutputLost { attempt: m1, why: String::new(), unfetched: false }),
        (15, launched(again, 0, None)),
        (25, succeeded(again)),
        (27, launched(r0, 0, None)),
    ]);
    let job = figures_after(events);
    assert_eq!(job.reduce_wait(), Some(Span::secs(4 + 2)), "10 to 14, 25 to 27");
    assert_eq!(job.lost, Span::secs(9), "the map ran from 1 to 10");
}

#[test]
fn lost_checkpoint_counts_as_lost_work() {
    let (r0, r1) = (attempt(Phase::Reduce, 0, 0), attempt(Phase::Reduce, 0, 1));
    let mut events = maps();
    events.extend([
        (10, launched(r0, 0, None)),
        (20, preempted(r0, PreemptKind::Pause)),
        (21, paused(r0)),
        (30, launched(r1, 0, Some(r0))),
        (35, preempted(r1, PreemptKind::Pause)),
        (36, paused(r1)),
        (40, Fact::CheckpointLost { attempt: r1, why: String::new() }),
    ]);
    // The reduce ran from 10 s to 21 s and from 30 s to 36 s.
    assert_eq!(figures_after(events).lost, Span::secs(11 + 6));
}

#[test]
fn splits_of_stragglers_and_drains_count_as_internal() {
    let [m0, m1] = [0, 1].map(|index| attempt(Phase::Map, index, 0));
    let split = |attempt| Fact::MapSplit { attempt, position: 50, result: AttemptResult::default() };
    let slow = |attempt| Fact::PreemptionRequested {
        attempt,
        kind: PreemptKind::Split,
        why: "straggler-split".into(),
        fault: false,
        hold: false,
    };
    let events = vec![
        (0, joined(0, "a")),
        (1, submitted()),
        (1, launched(m0, 0, None)),
        (1, launched(m1, 0, None)),
        (5, slow(m0)),
        (6, split(m0)),
        (7, Fact::TrackerDraining { tracker: TrackerId(0), by: "ann".into(), until: Time(0) }),
        (7, preempted(m1, PreemptKind::Split)),
        (8, split(m1)),
    ];
    let preemption = figures_after(events).preemption;
    assert_eq!((preemption.preemptions(), preemption.splits, preemption.internal), (0, 0, 2));
}

fn paused(attempt: AttemptId) -> Fact {
    Fact::AttemptPaused { attempt, stage: Stage::Reduce, bytes: 5, bytes_in: 5, interrupted: false }
}

#[test]
fn reduce_on_hold_has_no_slot_wait() {
    let (r0, r1) = (attempt(Phase::Reduce, 0, 0), attempt(Phase::Reduce, 0, 1));
    let hold = |attempt| Fact::PreemptionRequested {
        attempt,
        kind: PreemptKind::Pause,
        why: "by ann".into(),
        fault: false,
        hold: true,
    };
    let mut events = maps();
    events.extend([
        (12, launched(r0, 0, None)),
        (20, hold(r0)),
        (21, paused(r0)),
        (121, Fact::TaskReleased { task: r0.task }),
        (125, launched(r1, 1, Some(r0))),
        (130, succeeded(r1)),
    ]);
    assert_eq!(
        figures_after(events).reduce_wait(),
        Some(Span::secs(2 + 4)),
        "10 to 12, and 121 to 125: not the 100 s between"
    );
    // A reduce that refuses to pause is not on hold, so its next wait for a slot counts.
    let refused = |attempt| Fact::PreemptionRefused { attempt, refusals: 1, why: String::new() };
    let mut events = maps();
    events.extend([
        (12, launched(r0, 0, None)),
        (20, hold(r0)),
        (21, refused(r0)),
        (30, preempted(r0, PreemptKind::Pause)),
        (33, paused(r0)),
        (40, launched(r1, 0, Some(r0))),
    ]);
    let job = figures_after(events);
    assert_eq!(job.reduce_wait(), Some(Span::secs(2 + 7)), "10 to 12, and 33 to 40");
    assert_eq!(job.preemption_latency, Span::secs(3), "requested at 30 s: the first request was refused");
    // If one of two attempts refuses, the other one still puts the reduce on hold.
    let mut events = maps();
    events.extend([
        (12, launched(r0, 0, None)),
        (15, launched(r1, 1, None)),
        (20, hold(r0)),
        (21, hold(r1)),
        (22, refused(r0)),
        (25, paused(r1)),
        (30, Fact::AttemptKilled { attempt: r0, why: String::new(), bytes_in: 0, interrupted: false }),
        (130, Fact::TaskReleased { task: r0.task }),
        (134, launched(attempt(Phase::Reduce, 0, 2), 0, Some(r1))),
    ]);
    let waited = figures_after(events).reduce_wait();
    assert_eq!(waited, Some(Span::secs(2 + 4)), "10 to 12, and 130 to 134");
}

#[test]
fn resume_on_another_tracker_counts_as_migration() {
    let [r0, r1, r2, r3] = [0, 1, 2, 3].map(|number| attempt(Phase::Reduce, 0, number));
    let mut events = maps();
    let killed =
        |attempt| Fact::AttemptKilled { attempt, why: String::new(), bytes_in: 0, interrupted: false };
    events.extend([
        (10, launched(r0, 0, None)),
        (20, preempted(r0, PreemptKind::Pause)),
        (21, paused(r0)),
        (25, launched(r1, 1, Some(r0))),
        (26, killed(r1)),
        (27, launched(r2, 1, Some(r0))),
        (28, killed(r2)),
        (29, launched(r3, 0, Some(r0))),
    ]);
    let preemption = figures_after(events).preemption;
    assert_eq!(
        (preemption.resumes, preemption.migrations),
        (3, 2),
        "two resumes elsewhere, the third on the tracker where it was paused"
    );
}

#[test]
fn repeated_preemption_keeps_the_first_request_time() {
    let (r0, mut events) = (attempt(Phase::Reduce, 0, 0), maps());
    events.extend([
        (10, launched(r0, 0, None)),
        (20, preempted(r0, PreemptKind::Pause)),
        (24, preempted(r0, PreemptKind::Pause)),
        (26, paused(r0)),
    ]);
    assert_eq!(figures_after(events).preemption_latency, Span::secs(6));
}

#[test]
fn group_is_the_setting_or_else_the_job_name() {
    let Fact::JobSubmitted { spec, .. } = submitted() else { panic!("it is submitted") };
    assert_eq!(group(&spec), "large");
    let without_group = JobSpec { conf: [].into(), ..(*spec).clone() };
    assert_eq!(group(&without_group), "sort");
}
