//! A large cluster under load, built from facts, to measure policies.
//!
//! On every tracker, all slots but one of each phase are in use. Every job has pending maps and
//! reduces, and the input of each map is on three hosts. The caller measures how long
//! [`BenchCluster::decide`] takes.

use mrcore::{
    Cluster, Config, Effect, Event, Fact, JobTracker, PerPhase, Phase, Span, Time, Why,
    event::{AttemptReport, AttemptStatus, Heartbeat},
    fact::Entry,
    ids::{AttemptId, Incarnation, JobId, RequestId, TaskId, TrackerId},
    job::{JobSpec, Payload, Priority, Program, Split},
    plan::Decision,
    scheduler::Cause,
    task::{Attempt, AttemptResult, AttemptState, CheckpointInfo, Progress},
};
use schedulers::{Params, PolicyError, make};
use std::{collections::BTreeMap, sync::Arc};

/// The size of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    /// Number of trackers, each with eight map slots and four reduce slots. A rack has forty.
    pub(super) trackers: u32,
    /// Number of running jobs.
    pub(super) jobs: u32,
    /// Number of pending maps over all jobs, in addition to one for every free slot.
    pub(super) waiting: u32,
}

/// The size of the cluster in the published benchmark results.
pub(super) const LARGE: Size = Size { trackers: 1000, jobs: 200, waiting: 50_000 };

const SLOTS_PER_TRACKER: PerPhase<u32> = PerPhase { map: 8, reduce: 4 };
const START_TIME: Time = Time(1_000_000_000);

/// The cluster and its policy.
#[derive(Debug)]
pub(super) struct BenchCluster {
    core: JobTracker,
    size: Size,
    now: Time,
    seq: u64,
}

impl BenchCluster {
    /// Builds the cluster.
    pub(super) fn new(spec: &str, params: &Params, size: Size) -> Result<Self, PolicyError> {
        Self::with_shadow(spec, None, params, size)
    }

    /// Builds the cluster with a second policy as shadow.
    pub(super) fn with_shadow(
        spec: &str,
        shadow: Option<&str>,
        params: &Params,
        size: Size,
    ) -> Result<Self, PolicyError> {
        let mut core = JobTracker::new(Config::default(), make(spec, params)?);
        if let Some(shadow) = shadow {
            core = core.with_shadow(make(shadow, params)?);
        }
        let mut cluster = Self { core, size, now: START_TIME, seq: 0 };
        for tracker in 0..size.trackers {
            cluster.apply(Fact::TrackerJoined {
                tracker: TrackerId(tracker),
                name: format!("t{tracker}"),
                incarnation: Incarnation(1),
                host: format!("h{tracker}"),
                rack: format!("r{}", tracker / 40),
                shuffle_addr: "s".into(),
                logs_addr: "l".into(),
                slots: SLOTS_PER_TRACKER,
            });
        }
        for job in 1..=size.jobs {
            let fact = Fact::JobSubmitted {
                job: JobId(job),
                request: RequestId(u128::from(job)),
                spec: cluster.job_spec(job),
            };
            cluster.apply(fact);
        }
        let last = Phase::BOTH.map(|phase| cluster.fill_slots(phase)).concat();
        // A tick lets policies compute their estimates and solve their problems. It comes before
        // slots are freed, because some policies use free slots in it.
        cluster.tick();
        for attempt in last {
            cluster.apply(Fact::AttemptKilled {
                attempt,
                why: "to free a slot".into(),
                bytes_in: 0,
                interrupted: false,
            });
        }
        Ok(cluster)
    }

    /// Advances the time by a second and sends a tick.
    pub(super) fn tick(&mut self) {
        self.now = self.now + Span::secs(1);
        self.handle(Event::Tick);
    }

    /// Sends an event. Computations are solved at once, other effects are ignored.
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

    /// Sends a heartbeat of every tracker, with the progress of its attempts.
    pub(super) fn send_heartbeats(&mut self) {
        (0..self.size.trackers).for_each(|tracker| self.heartbeat(tracker));
    }

    fn apply(&mut self, fact: Fact) {
        self.core.replay(&Entry { at: START_TIME, fact }).expect("the facts are consistent");
    }

    /// Returns the number of slots of a phase in the whole cluster.
    fn slots(&self, phase: Phase) -> u32 {
        self.size.trackers * SLOTS_PER_TRACKER[phase]
    }

    fn job_spec(&self, number: u32) -> Arc<JobSpec> {
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
            program: Program::Builtin(format!("p{}", number % 10)),
            splits: (0..maps).map(split).collect(),
            reduces,
            output: String::new(),
            slow_start: 0.0,
            speculation: true,
            split_slow: true,
            attempts_max: 4,
            conf: BTreeMap::new(),
            payload: Payload::default(),
        })
    }

    /// Fills every slot, with all jobs in turn. Returns the attempt in the last slot of each
    /// tracker.
    fn fill_slots(&mut self, phase: Phase) -> Vec<AttemptId> {
        let mut last = Vec::new();
        let slots = self.slots(phase);
        for slot in 0..slots {
            let task = TaskId { job: JobId(slot % self.size.jobs + 1), phase, index: slot / self.size.jobs };
            let tracker = TrackerId(slot % self.size.trackers);
            let why = Why::default();
            let (attempt, speculative) = (task.attempt(0), false);
            self.apply(Fact::AttemptLaunched { attempt, tracker, speculative, resumed_from: None, why });
            if slot >= slots - self.size.trackers {
                last.push(attempt);
            }
        }
        last
    }

    /// Returns the decisions of the policy for the two free slots of a tracker. The decisions are
    /// not carried out.
    pub(super) fn decide(&mut self, tracker: u32) -> Vec<Decision> {
        self.core.consult(self.now, Cause::Offer(TrackerId(tracker % self.size.trackers)))
    }

    /// Handles a complete heartbeat of a tracker. It reports the progress of running attempts and
    /// that preempted attempts have ended. The decisions of the policy are carried out.
    pub(super) fn heartbeat(&mut self, tracker: u32) {
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
    let progress = Progress { done: 0.5, activity, ..cluster.progress(attempt) };
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
        AttemptState::Killing => AttemptStatus::Killed("stopped by order".into()),
        _ => AttemptStatus::Running(progress),
    };
    AttemptReport { attempt: attempt.id, status }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_with_many_trackers_and_few_jobs_has_work_for_free_slots() {
        let size = Size { trackers: 200, jobs: 2, waiting: 10 };
        let mut cluster = BenchCluster::new("fifo", &Params::new(), size).unwrap();
        assert_eq!(cluster.decide(7).len(), 2, "one map and one reduce");
    }

    #[test]
    fn every_policy_fills_free_slots_without_refused_decisions() {
        let size = Size { trackers: 20, jobs: 5, waiting: 200 };
        let params = Params::from(
            [("fair.node_wait", "0s"), ("fair.rack_wait", "0s"), ("hsrtf.colocate_wait", "0s")]
                .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        for spec in schedulers::specs() {
            let mut cluster = BenchCluster::new(&spec, &params, size).unwrap();
            assert_eq!(cluster.decide(7).len(), 2, "{spec}: one map and one reduce");
            assert_eq!(cluster.decide(7), cluster.decide(7), "{spec}: asking twice gives the same decisions");
            cluster.heartbeat(7);
            assert!(cluster.decide(7).is_empty(), "{spec}: the slots are taken");
            for _ in 0..40 {
                cluster.send_heartbeats();
                cluster.tick();
            }
            assert_eq!(cluster.core.refusals(), 0, "{spec}: decisions were refused within forty seconds");
        }
    }
}
