//! Checks that a forgotten tracker leaves no data in the policy.

use super::*;
use crate::Params;
use mrcore::{
    ids::{AttemptId, Incarnation, RequestId},
    invariants,
    job::{InputPin, JobOutcome, JobSpec, Payload, Priority, Program, Split},
    task::AttemptResult,
};
use std::sync::Arc;

const REMAINING: TrackerId = TrackerId(0);
/// The tracker that is forgotten. Its ID does not occur elsewhere in the state of the policy.
const FORGOTTEN: TrackerId = TrackerId(4711);
/// The arrival window. Three windows after its last job, a kind no longer counts.
const WINDOW: Span = Span::secs(100);

/// The policy and the cluster that it observes.
struct World {
    policy: Coshh,
    cluster: Cluster,
    now: Time,
    jobs: u32,
}

impl World {
    /// Creates two trackers and runs a job of bob, whose maps took twice as long on the second
    /// tracker.
    fn new() -> Self {
        let params =
            [("coshh.arrival_window", format!("{}s", WINDOW.as_secs_f64())), ("coshh.slowest", "9".into())];
        let params: Params = params.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let mut section = Section::of("coshh", &params);
        let policy = Coshh::new(&mut section);
        section.finish().unwrap();
        let mut world = Self { policy, cluster: Cluster::default(), now: Time(0), jobs: 0 };
        world.join(REMAINING);
        world.join(FORGOTTEN);
        let job = world.submit();
        let began = world.now;
        for index in 0..8 {
            world.launch(job, index, [REMAINING, FORGOTTEN][index as usize % 2]);
        }
        for (tracker, seconds) in [(0, 10), (1, 20)] {
            world.now = began + Span::secs(seconds);
            for index in (tracker..8).step_by(2) {
                let attempt = attempt(job, index);
                world.apply(Fact::AttemptSucceeded { attempt, result: AttemptResult::default() });
            }
        }
        world.apply(Fact::JobCommitting { job });
        world.apply(Fact::JobEnded { job, outcome: JobOutcome::Succeeded });
        world.compute();
        world
    }

    fn apply(&mut self, fact: Fact) {
        self.cluster.apply(self.now, &fact).unwrap();
        invariants::check(&self.cluster).unwrap();
        self.policy.observe(self.now, &fact, &self.cluster);
    }

    fn join(&mut self, tracker: TrackerId) {
        self.apply(Fact::TrackerJoined {
            tracker,
            name: tracker.to_string(),
            incarnation: Incarnation(1),
            host: tracker.to_string(),
            rack: "r".into(),
            shuffle_addr: String::new(),
            logs_addr: String::new(),
            slots: PerPhase { map: 4, reduce: 0 },
        });
    }

    /// Submits a job of bob with eight maps.
    fn submit(&mut self) -> JobId {
        let split = |_| Split {
            source: "/in".into(),
            start: 0,
            end: 100,
            divisible: true,
            hosts: Vec::new(),
            pin: InputPin::default(),
        };
        let spec = JobSpec {
            name: String::new(),
            user: "bob".into(),
            queue: String::new(),
            priority: Priority::Normal,
            program: Program::Builtin("p".into()),
            splits: (0..8).map(split).collect(),
            reduces: 0,
            output: String::new(),
            slow_start: 0.0,
            speculation: false,
            split_slow: true,
            attempts_max: 4,
            conf: BTreeMap::new(),
            payload: Payload::default(),
        };
        self.jobs += 1;
        let (job, request) = (JobId(self.jobs), RequestId(u128::from(self.jobs)));
        self.apply(Fact::JobSubmitted { job, request, spec: Arc::new(spec) });
        job
    }

    fn launch(&mut self, job: JobId, index: u32, tracker: TrackerId) {
        let (speculative, resumed_from, why) = (false, None, Why::default());
        self.apply(Fact::AttemptLaunched {
            attempt: attempt(job, index),
            tracker,
            speculative,
            resumed_from,
            why,
        });
    }

    /// Runs the computation that the policy has requested, if any, as the JobTracker does after
    /// every event. Returns whether there was one.
    fn compute(&mut self) -> bool {
        let problem = self.policy.next_computation();
        if let Some(problem) = &problem {
            self.policy.finish_computation(self.now, &problem.solve(), &self.cluster);
        }
        problem.is_some()
    }

    fn lose(&mut self) {
        self.apply(Fact::TrackerLost { tracker: FORGOTTEN, why: String::new() });
    }

    fn forget(&mut self) {
        self.apply(Fact::TrackerForgotten {
            tracker: FORGOTTEN,
            name: FORGOTTEN.to_string(),
            why: String::new(),
        });
    }

    /// Returns the nodes that are suggested for the kind of a job.
    fn suggested(&self, job: JobId) -> Vec<TrackerId> {
        self.policy.users.kind_of(job).map_or_else(Vec::new, |kind| self.policy.kinds.suggested_nodes(kind))
    }

    /// Returns whether the state of the policy contains the tracker that is removed.
    fn mentions_forgotten(&self) -> bool {
        format!("{:?}", self.policy).contains(&format!("{FORGOTTEN:?}"))
    }
}

fn attempt(job: JobId, index: u32) -> AttemptId {
    TaskId { job, phase: Phase::Map, index }.attempt(0)
}

#[test]
fn forgotten_tracker_leaves_nothing_behind_while_jobs_run() {
    let mut world = World::new();
    let job = world.submit();
    world.launch(job, 0, FORGOTTEN);
    world.now = world.now + Span::secs(90);
    world.policy.observe_running_tasks(world.now, &world.cluster);
    world.apply(Fact::AttemptKilled {
        attempt: attempt(job, 0),
        why: String::new(),
        bytes_in: 0,
        interrupted: false,
    });
    assert!(world.mentions_forgotten() && world.suggested(job).contains(&FORGOTTEN));
    world.lose();
    assert!(world.compute(), "classes are computed for the nodes that are left");
    assert!(world.mentions_forgotten(), "it may come back: what was measured on it is kept");
    world.forget();
    assert!(!world.mentions_forgotten(), "{:#?}", world.policy);
    // Measurements of other trackers are still there, and the job is placed on the remaining node.
    assert_eq!(world.suggested(job), [REMAINING]);
    let kind = world.policy.users.kind_of(job).unwrap();
    let levels = world.policy.kinds.kind(kind).unwrap().levels.clone();
    let predicted = world.policy.predictor.predict(&levels, Phase::Map, REMAINING);
    assert!((9.9..10.1).contains(&predicted), "{predicted}");
    assert!(!world.compute(), "nothing has changed since");
}

#[test]
fn forgotten_tracker_leaves_nothing_behind_while_no_computation_is_due() {
    let mut world = World::new();
    world.now = world.now + Span(WINDOW.0 * 4);
    world.lose();
    assert!(!world.compute(), "no kind of job counts");
    world.forget();
    assert!(!world.mentions_forgotten(), "{:#?}", world.policy);
    let job = world.submit();
    assert!(world.compute(), "the last classes were for other nodes");
    assert_eq!(world.suggested(job), [REMAINING]);
}

#[test]
fn forgotten_tracker_is_not_restored_by_a_computation_in_progress() {
    let mut world = World::new();
    world.submit();
    let before = world.policy.next_computation();
    assert!(before.is_none(), "its kind is in a class");
    world.join(TrackerId(1));
    let problem = world.policy.next_computation().expect("nodes have changed");
    world.lose();
    world.forget();
    world.policy.finish_computation(world.now, &problem.solve(), &world.cluster);
    assert!(world.compute(), "classes are computed again without it");
    assert!(!world.mentions_forgotten(), "{:#?}", world.policy);
}
