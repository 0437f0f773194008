//! Under `fcs` small jobs overtake large ones, but only up to the limit on slack.
//!
//! There is one tracker with two reduce slots. First a job with one reduce of 30 seconds is
//! submitted. Then a job with one map and one reduce of 3 seconds is submitted every 1.5 seconds
//! (which uses all slots) or every second (which is 1.5 times as much as the slots can do).

use fermata_schedulers::{Params, make};
use mrcore::{
    Config, Effect, Event, Fact, JobTracker, PerPhase, Phase, Span, Time,
    event::{AttemptReport, AttemptStatus, Heartbeat, Order, Registration},
    ids::{AttemptId, Incarnation, JobId, RequestId, TaskId},
    job::{JobSpec, Payload, Priority, Program, Split},
    task::{AttemptResult, CheckpointInfo, PreemptKind, Progress, Stage},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

const LARGE: JobId = JobId(1);

struct World {
    core: JobTracker,
    now: Time,
    /// Running attempts, and how each is being preempted.
    running: BTreeMap<AttemptId, Option<PreemptKind>>,
    /// Work done for each task, in units of half a second.
    worked: BTreeMap<TaskId, u32>,
    heartbeats: u64,
    acked: u64,
    ended: BTreeMap<JobId, Time>,
    pauses: u32,
    /// Running reduces that were launched because their job was overdue.
    overdue: BTreeSet<AttemptId>,
    /// The largest number of such reduces at a time.
    overdue_max: usize,
}

impl World {
    fn new(params: &[(&str, &str)]) -> Self {
        let params: Params =
            params.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let mut world = Self {
            core: JobTracker::new(Config::default(), make("fcs", &params).unwrap()),
            now: Time(1_000_000),
            running: BTreeMap::new(),
            worked: BTreeMap::new(),
            heartbeats: 0,
            acked: 0,
            ended: BTreeMap::new(),
            pauses: 0,
            overdue: BTreeSet::new(),
            overdue_max: 0,
        };
        world.send(Event::Start);
        let tracker = Registration {
            name: "t".into(),
            incarnation: Incarnation(1),
            host: "h".into(),
            rack: "r".into(),
            shuffle_addr: "s".into(),
            logs_addr: "l".into(),
            slots: PerPhase { map: 20, reduce: 2 },
            attempts: Vec::new(),
            outputs: Vec::new(),
            checkpoints: Vec::new(),
            jobs: Vec::new(),
        };
        world.send(Event::Registration { request: RequestId(0), tracker });
        world
    }

    fn send(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.core.handle(self.now, event, &mut effects);
        for effect in effects {
            match effect {
                Effect::Append(entry) => match entry.fact {
                    Fact::AttemptLaunched { attempt, why, .. } if why.rule.starts_with("overdue") => {
                        self.overdue.insert(attempt);
                        self.overdue_max = self.overdue_max.max(self.overdue.len());
                    }
                    Fact::AttemptSucceeded { attempt, .. } => drop(self.overdue.remove(&attempt)),
                    Fact::JobEnded { job, .. } => {
                        self.ended.insert(job, self.now);
                    }
                    Fact::AttemptPaused { attempt, .. } if attempt.job() == LARGE => self.pauses += 1,
                    _ => {}
                },
                Effect::SendOrders { orders, .. } => {
                    for (number, order) in orders {
                        if number <= self.acked {
                            continue;
                        }
                        self.acked = number;
                        match order {
                            Order::Launch(attempt) => drop(self.running.insert(attempt, None)),
                            Order::Preempt { attempt, kind, .. } => {
                                self.running.entry(attempt).and_modify(|preempt| *preempt = Some(kind));
                            }
                            _ => {}
                        }
                    }
                }
                Effect::CommitJob { job } => {
                    self.send(Event::CommitResult { job, repeated: false, result: Ok(()) });
                }
                _ => {}
            }
        }
    }

    fn submit(&mut self, number: u32, bytes: u64) {
        let split = Split {
            source: "/in".into(),
            start: 0,
            end: bytes,
            divisible: true,
            hosts: vec!["h".into()],
            pin: mrcore::job::InputPin::default(),
        };
        let spec = JobSpec {
            name: "j".into(),
            user: "u".into(),
            queue: "default".into(),
            priority: Priority::Normal,
            program: Program::Builtin("p".into()),
            splits: vec![split],
            reduces: 1,
            output: String::new(),
            slow_start: 1.0,
            speculation: false,
            split_slow: true,
            attempts_max: 4,
            conf: BTreeMap::new(),
            payload: Payload::default(),
        };
        let request = RequestId(u128::from(number));
        self.send(Event::Submission { request, spec: Arc::new(spec) });
    }

    /// Advances the time by half a second.
    fn step(&mut self) {
        self.now = self.now + Span::millis(500);
        self.send(Event::Tick);
        let mut attempts = Vec::new();
        for (attempt, preempt) in std::mem::take(&mut self.running) {
            let worked = self.worked.entry(attempt.task).or_default();
            *worked += 1;
            let (steps, bytes_out) = match (attempt.phase(), attempt.job()) {
                (Phase::Map, LARGE) => (2, 10_000),
                (Phase::Map, _) => (2, 1000),
                (Phase::Reduce, LARGE) => (60, 0),
                (Phase::Reduce, _) => (6, 0),
            };
            let done = *worked as f32 / steps as f32;
            let status = if *worked >= steps {
                AttemptStatus::Succeeded(AttemptResult { bytes_out, ..AttemptResult::default() })
            } else if preempt == Some(PreemptKind::Pause) {
                AttemptStatus::Paused(CheckpointInfo {
                    stage: Stage::Shuffle,
                    bytes: 10,
                    ..CheckpointInfo::default()
                })
            } else {
                self.running.insert(attempt, preempt);
                AttemptStatus::Running(Progress { done, stage: Stage::Shuffle, ..Progress::default() })
            };
            attempts.push(AttemptReport { attempt, status });
        }
        self.heartbeats += 1;
        self.send(Event::Heartbeat(Heartbeat {
            tracker: mrcore::ids::TrackerId(0),
            incarnation: Incarnation(1),
            seq: self.heartbeats,
            acked: self.acked,
            attempts,
            fetch_failures: Vec::new(),
        }));
    }
}

/// Runs a simulation of ten minutes. Returns the seconds until the large job has ended, if it has,
/// and the number of its pauses.
fn simulate(params: &[(&str, &str)], steps_between: u32) -> (Option<f64>, u32) {
    let mut world = World::new(params);
    world.submit(1, 10_000);
    let begun = world.now;
    for step in 0..1200 {
        if step > 4 && step % steps_between == 0 {
            world.submit(step + 2, 1000);
        }
        world.step();
    }
    let took = world.ended.get(&LARGE).map(|at| at.since(begun).as_secs_f64());
    assert!(world.overdue_max <= 1, "overdue jobs had precedence for {} of 2 slots", world.overdue_max);
    println!("{params:?}, one every {steps_between} half seconds: {took:?} s, {} pauses", world.pauses);
    (took, world.pauses)
}

#[test]
fn large_job_ends_within_the_slack_limit() {
    // The job takes 30 s alone. It may take 5 times as long, plus some time until a slot is free.
    let (took, pauses) = simulate(&[], 3);
    assert!(pauses > 0 && took.is_some_and(|took| took <= 5.0 * 30.0 + 10.0), "{took:?}, {pauses} pauses");
    // With more work than the slots can do, the job shares one of the two slots with other jobs that
    // are overdue.
    let (took, pauses) = simulate(&[], 2);
    assert!(pauses > 0 && took.is_some_and(|took| took <= 220.0), "{took:?}, {pauses} pauses");
}

#[test]
fn large_job_ends_sooner_with_a_smaller_slack_limit() {
    let (took, _) = simulate(&[("fcs.slack_max", "2")], 2);
    assert!(took.is_some_and(|took| took <= 90.0), "{took:?}");
}

#[test]
fn large_job_may_wait_forever_with_literal() {
    let (took, _) = simulate(&[("fcs.literal", "true")], 2);
    assert_eq!(took, None);
}
