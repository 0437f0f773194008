//! A large cluster under load, made of facts: what a policy is measured on.
//!
//! Every slot is held but one of each kind on every tracker; every job has maps and reduces that wait, with input on
//! three hosts each. Who has a clock asks the policy ([`BenchCluster::decide`]) and takes the time.

use crate::{Params, PolicyError, make};
use mrcore::{
    Cluster, Config, Effect, Event, Fact, JobTracker, PerPhase, Phase, Span, Time, Why,
    compute::Problem,
    event::{AttemptReport, AttemptStatus, Heartbeat},
    fact::Entry,
    ids::{AttemptId, Incarnation, JobId, RequestId, TaskId, TrackerId},
    job::{JobSpec, Priority, Split},
    plan::Decision,
    scheduler::Cause,
    task::{Attempt, AttemptResult, AttemptState, CheckpointInfo, Progress},
};
use std::{collections::BTreeMap, sync::Arc};

/// How large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Trackers, of eight map and four reduce slots each, forty to a rack.
    pub trackers: u32,
    /// Running jobs.
    pub jobs: u32,
    /// Maps that wait, over all jobs, besides one for every free slot.
    pub waiting: u32,
}

/// The size that figures are wanted for.
pub const LARGE: Size = Size { trackers: 1000, jobs: 200, waiting: 50_000 };

const SLOTS: PerPhase<u32> = PerPhase { map: 8, reduce: 4 };
const BEGIN: Time = Time(1_000_000_000);

/// The cluster and its policy.
#[derive(Debug)]
pub struct BenchCluster {
    core: JobTracker,
    size: Size,
    now: Time,
    seq: u64,
}

impl BenchCluster {
    /// Sets it up.
    pub fn new(spec: &str, params: &Params, size: Size) -> Result<Self, PolicyError> {
        Self::shadowed(spec, None, params, size)
    }

    /// The same with another policy in its shadow.
    pub fn shadowed(
        spec: &str,
        shadow: Option<&str>,
        params: &Params,
        size: Size,
    ) -> Result<Self, PolicyError> {
        let mut core = JobTracker::new(Config::default(), make(spec, params)?);
        if let Some(shadow) = shadow {
            core = core.with_shadow(make(shadow, params)?);
        }
        let mut stage = Self { core, size, now: BEGIN, seq: 0 };
        for tracker in 0..size.trackers {
            stage.apply(Fact::TrackerJoined {
                tracker: TrackerId(tracker),
                name: format!("t{tracker}"),
                incarnation: Incarnation(1),
                host: format!("h{tracker}"),
                rack: format!("r{}", tracker / 40),
                shuffle_addr: "s".into(),
                logs_addr: "l".into(),
                slots: SLOTS,
            });
        }
        for job in 1..=size.jobs {
            let fact = Fact::JobSubmitted {
                job: JobId(job),
                request: RequestId(u128::from(job)),
                spec: stage.job(job),
            };
            stage.apply(fact);
        }
        let last = Phase::BOTH.map(|phase| stage.fill(phase)).concat();
        // Policies that think when time passes have thought, and what they wanted solved is. Some look at all free slots
        // then: there is none before that.
        stage.tick();
        for attempt in last {
            stage.apply(Fact::AttemptKilled { attempt, why: "to make room".into(), bytes_in: 0 });
        }
        Ok(stage)
    }

    /// A second later time is looked at.
    pub fn tick(&mut self) {
        self.now = self.now + Span::secs(1);
        self.handle(Event::Tick);
    }

    /// What the core wants solved is solved at once; nothing else that it wants is done.
    fn handle(&mut self, event: Event) {
        let mut out = Vec::new();
        self.core.handle(self.now, event, &mut out);
        for effect in out {
            if let Effect::Compute { number, problem } = effect {
                let answer = problem.solve();
                self.core.handle(self.now, Event::Computed { number, answer }, &mut Vec::new());
            }
        }
    }

    /// Every tracker says how far its attempts are.
    pub fn send_heartbeats(&mut self) {
        (0..self.size.trackers).for_each(|tracker| self.heartbeat(tracker));
    }

    fn apply(&mut self, fact: Fact) {
        self.core.replay(&Entry { at: BEGIN, fact }).expect("made to fit");
    }

    /// Slots of a kind.
    fn slots(&self, phase: Phase) -> u32 {
        self.size.trackers * SLOTS[phase]
    }

    fn job(&self, number: u32) -> Arc<JobSpec> {
        let maps = (self.size.waiting + self.slots(Phase::Map)) / self.size.jobs + 1;
        let reduces = self.slots(Phase::Reduce) / self.size.jobs + 20;
        let host = |map: u32, copy: u32| {
            let seed = u64::from(number) << 40 | u64::from(map) << 8 | u64::from(copy);
            let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            format!("h{}", (mixed >> 33) % u64::from(self.size.trackers))
        };
        let split = |map: u32| Split {
            source: "/in".into(),
            start: 0,
            end: 128 << 20,
            divisible: true,
            hosts: (0..3).map(|copy| host(map, copy)).collect(),
            pin: mrcore::job::InputPin::default(),
        };
        Arc::new(JobSpec {
            name: format!("job {number}"),
            user: format!("u{}", number % 20),
            queue: "default".into(),
            priority: Priority::Normal,
            program: format!("p{}", number % 10),
            splits: (0..maps).map(split).collect(),
            reduces,
            output: String::new(),
            slow_start: 0.0,
            speculation: true,
            attempts_max: 4,
            conf: BTreeMap::new(),
        })
    }

    /// Every slot is held, by all jobs in turn; who holds the last one of each tracker.
    fn fill(&mut self, phase: Phase) -> Vec<AttemptId> {
        let mut last = Vec::new();
        let slots = self.slots(phase);
        for slot in 0..slots {
            let task = TaskId { job: JobId(slot % self.size.jobs + 1), phase, index: slot / self.size.jobs };
            let tracker = TrackerId(slot % self.size.trackers);
            let why = Why::default();
            let (attempt, speculative) = (task.attempt(0), false);
            self.apply(Fact::AttemptLaunched { attempt, tracker, speculative, from: None, why });
            if slot >= slots - self.size.trackers {
                last.push(attempt);
            }
        }
        last
    }

    /// What the policy does with a tracker's two free slots. Nothing is carried out.
    pub fn decide(&mut self, tracker: u32) -> Vec<Decision> {
        self.core.consult(self.now, Cause::Offer(TrackerId(tracker % self.size.trackers)))
    }

    /// A whole heartbeat of a tracker that says how far its attempts are, and that those that were told to release their slots
    /// have; if it is offered anything, it is carried out.
    pub fn heartbeat(&mut self, tracker: u32) {
        let tracker = TrackerId(tracker % self.size.trackers);
        self.seq += 1;
        let cluster = self.core.cluster();
        let at = cluster.tracker(tracker).expect("it has joined");
        let running = at.running.map.iter().chain(&at.running.reduce);
        let attempts =
            running.filter_map(|id| Some(report(cluster.attempt(*id)?, cluster, self.seq))).collect();
        let (incarnation, seq, acked) = (Incarnation(1), self.seq, u64::MAX);
        let heartbeat = Heartbeat { tracker, incarnation, seq, acked, attempts, fetch_failures: Vec::new() };
        self.handle(Event::Heartbeat(heartbeat));
    }
}

fn report(attempt: &Attempt, cluster: &Cluster, activity: u64) -> AttemptReport {
    let progress = Progress { done: 0.5, activity, ..attempt.progress };
    let result = AttemptResult::default;
    let status = match attempt.state {
        AttemptState::Splitting => {
            let (start, end) = cluster.task(attempt.id.task).map_or((0, 2), |task| (task.start, task.end));
            AttemptStatus::Split(start + (end - start) / 2, result())
        }
        AttemptState::Pausing => AttemptStatus::Paused(CheckpointInfo {
            stage: progress.stage,
            bytes: 1 << 20,
            bytes_in: progress.bytes_in,
            records: 0,
        }),
        AttemptState::Stopping => AttemptStatus::Killed("as it was told".into()),
        _ => AttemptStatus::Running(progress),
    };
    AttemptReport { attempt: attempt.id, status }
}

/// A linear program of coshh's for so many classes and different nodes, made up.
pub fn program(classes: usize, nodes: usize) -> Problem {
    crate::coshh::synthetic_problem(classes, nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bench_cluster_fits_many_trackers_and_few_jobs() {
        let size = Size { trackers: 200, jobs: 2, waiting: 10 };
        let mut stage = BenchCluster::new("fifo", &Params::new(), size).unwrap();
        assert_eq!(stage.decide(7).len(), 2, "one map and one reduce");
    }

    #[test]
    fn every_policy_has_something_for_a_tracker() {
        let size = Size { trackers: 20, jobs: 5, waiting: 200 };
        let params = Params::from(
            [("fair.node_wait", "0s"), ("fair.rack_wait", "0s"), ("hsrtf.colocate_wait", "0s")]
                .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        for spec in crate::specs() {
            let mut stage = BenchCluster::new(&spec, &params, size).unwrap();
            assert_eq!(stage.decide(7).len(), 2, "{spec}: one map and one reduce");
            assert_eq!(stage.decide(7), stage.decide(7), "{spec}: asking changes nothing");
            stage.heartbeat(7);
            assert!(stage.decide(7).is_empty(), "{spec}: the slots are taken");
            for _ in 0..40 {
                stage.send_heartbeats();
                stage.tick();
            }
            assert_eq!(stage.core.refusals(), 0, "{spec}: in forty seconds");
        }
    }
}
