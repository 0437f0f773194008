//! Checks for every policy how long a job waits for its first slot while many other jobs are
//! submitted. The limits are stated here and in README.md.
//!
//! There are two trackers with two map slots each. A user submits a job of eight maps every four
//! seconds, and each map takes three seconds: 1.5 times as much as the cluster can do. After a
//! minute, another user submits a job of one map. In the second case, a job of two maps is
//! submitted every second, and the other job has forty maps.

use fermata_schedulers::{Params, make, specs};
use mrcore::{
    Config, Effect, Event, Fact, JobTracker, PerPhase, Span, Time,
    event::{AttemptReport, AttemptStatus, Heartbeat, Order, Registration},
    ids::{AttemptId, Incarnation, JobId, RequestId, TrackerId},
    job::{JobSpec, Payload, Priority, Program, Split},
    task::{AttemptResult, Progress},
};
use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

/// Maximum seconds from submission to the launch of the first map, by policy: for a small job among
/// larger ones, and for a large job among smaller ones (`None` if it may wait forever). A wrapper
/// does not change them.
const WAIT_LIMITS_S: &[(&str, u64, Option<u64>)] = &[
    // The job waits for all jobs that were submitted before. After a minute with 1.5 times the
    // possible work, that takes half a minute.
    ("fifo", 60, Some(60)),
    ("capacity", 60, Some(60)),
    // The job gets the next free slot, because its user holds none.
    ("fair", 6, Some(6)),
    ("fcs", 6, Some(6)),
    ("coshh", 6, Some(6)),
    // The job has used nothing yet. Jobs that have used less than ten seconds of slot time run in the
    // order of submission.
    ("las", 6, Some(60)),
    // A small job preempts larger ones. A large job waits until it takes longer than under fair
    // sharing.
    ("coda", 6, Some(90)),
    // Shortest first: a small job does not wait, a large one waits as long as smaller ones are
    // submitted.
    ("hsrtf-pu", 6, None),
    ("hsrtf-pup", 6, None),
    // Jobs without a slot come first. Such a job yields to shorter jobs that are submitted within
    // ten times its remaining time, here about 350 s. The jobs submitted until then take 1.5 times
    // as long.
    ("hsrtf-pr", 6, Some(600)),
    ("hsrtf-prp", 6, Some(600)),
];
/// The limits of policies that are not in the list.
const DEFAULT_WAIT_LIMITS_S: (u64, Option<u64>) = (60, Some(60));

struct FloodedCluster {
    core: JobTracker,
    now: Time,
    requests: u128,
    /// The attempts that each tracker runs, and their launch times; 0 if the attempt is to be
    /// killed.
    running: [BTreeMap<AttemptId, Time>; 2],
    /// For each tracker: the number of the last heartbeat, and of the newest order received.
    seq: [(u64, u64); 2],
    launched: BTreeMap<JobId, Time>,
}

impl FloodedCluster {
    fn new(spec: &str) -> Self {
        let core = JobTracker::new(Config::default(), make(spec, &Params::new()).unwrap());
        let mut flood = Self {
            core,
            now: Time(1_000_000),
            requests: 0,
            running: [BTreeMap::new(), BTreeMap::new()],
            seq: [(0, 0); 2],
            launched: BTreeMap::new(),
        };
        flood.send(Event::Start);
        for at in 0..2 {
            flood.requests += 1;
            let tracker = Registration {
                name: format!("t{at}"),
                incarnation: Incarnation(1),
                host: format!("h{at}"),
                rack: "r".into(),
                shuffle_addr: "s".into(),
                logs_addr: "l".into(),
                slots: PerPhase { map: 2, reduce: 1 },
                attempts: Vec::new(),
                outputs: Vec::new(),
                checkpoints: Vec::new(),
                jobs: Vec::new(),
            };
            flood.send(Event::Registration { request: RequestId(flood.requests), tracker });
        }
        flood
    }

    fn send(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.core.handle(self.now, event, &mut effects);
        let mut commits = Vec::new();
        for effect in effects {
            match effect {
                Effect::Append(entry) => {
                    if let Fact::AttemptLaunched { attempt, .. } = entry.fact {
                        self.launched.entry(attempt.job()).or_insert(self.now);
                    }
                }
                Effect::SendOrders { tracker, orders, .. } => self.receive_orders(tracker, orders),
                Effect::CommitJob { job } => commits.push(job),
                Effect::Compute { number, problem } => {
                    self.send(Event::Computed { number, answer: problem.solve() });
                }
                _ => {}
            }
        }
        for job in commits {
            self.send(Event::CommitResult { job, repeated: false, result: Ok(()) });
        }
    }

    fn receive_orders(&mut self, tracker: TrackerId, orders: Vec<(u64, Order)>) {
        let at = tracker.0 as usize;
        for (number, order) in
            orders.into_iter().filter(|(number, _)| *number > self.seq[at].1).collect::<Vec<_>>()
        {
            self.seq[at].1 = number;
            match order {
                Order::Launch(attempt) => {
                    self.running[at].insert(attempt, self.now);
                }
                // Every preemption is treated as a kill.
                Order::Preempt { attempt, .. } => {
                    self.running[at].insert(attempt, Time(0));
                }
                _ => {}
            }
        }
    }

    fn submit(&mut self, user: &str, maps: usize) {
        self.requests += 1;
        let split = |at: usize| Split {
            source: "/in".into(),
            start: 0,
            end: 100,
            divisible: true,
            hosts: vec![format!("h{}", at % 2)],
            pin: mrcore::job::InputPin::default(),
        };
        let spec = JobSpec {
            name: user.into(),
            user: user.into(),
            queue: "default".into(),
            priority: Priority::Normal,
            program: Program::Builtin("p".into()),
            splits: (0..maps).map(split).collect(),
            reduces: 0,
            output: String::new(),
            slow_start: 0.0,
            speculation: false,
            split_slow: true,
            attempts_max: 4,
            conf: BTreeMap::new(),
            payload: Payload::default(),
        };
        self.send(Event::Submission { request: RequestId(self.requests), spec: Arc::new(spec) });
    }

    /// Advances the time by a second: both trackers send heartbeats, and maps that have run for
    /// three seconds succeed.
    fn advance_one_second(&mut self) {
        self.now = self.now + Span::secs(1);
        self.send(Event::Tick);
        for at in 0..2 {
            let mut attempts = Vec::new();
            for (attempt, since) in std::mem::take(&mut self.running[at]) {
                let ran = self.now.since(since);
                let status = if since == Time(0) {
                    AttemptStatus::Killed("stopped by order".into())
                } else if ran >= Span::secs(3) {
                    AttemptStatus::Succeeded(AttemptResult { bytes_out: 100, ..AttemptResult::default() })
                } else {
                    self.running[at].insert(attempt, since);
                    let done = ran.as_secs_f64() as f32 / 3.0;
                    AttemptStatus::Running(Progress { done, ..Progress::default() })
                };
                attempts.push(AttemptReport { attempt, status });
            }
            self.seq[at].0 += 1;
            let (seq, acked) = self.seq[at];
            let tracker = TrackerId(at as u32);
            let (incarnation, fetch_failures) = (Incarnation(1), Vec::new());
            self.send(Event::Heartbeat(Heartbeat {
                tracker,
                incarnation,
                seq,
                acked,
                attempts,
                fetch_failures,
            }));
        }
    }
}

/// Returns how long a job waits for its first slot while a job of `flood_maps` maps is submitted
/// every `every` seconds.
fn wait_for_first_slot(spec: &str, flood_maps: usize, every: u32, maps: usize) -> Option<f64> {
    let mut flood = FloodedCluster::new(spec);
    let mut one = None;
    for second in 0..700 {
        if second % every == 0 {
            flood.submit("flood", flood_maps);
        }
        if second == 60 {
            flood.submit("one", maps);
            one = Some((flood.core.cluster().newest_job(), flood.now));
        }
        flood.advance_one_second();
    }
    let (job, submitted) = one?;
    flood.launched.get(&job).map(|at| at.since(submitted).as_secs_f64())
}

#[test]
fn waiting_time_is_within_the_limits_of_the_policy() {
    let mut wrong = String::new();
    for spec in specs() {
        let inner = spec.trim_start_matches("chronos(").trim_end_matches(')');
        let stated = WAIT_LIMITS_S.iter().find(|(name, ..)| *name == inner);
        let (small, large) = stated.map_or(DEFAULT_WAIT_LIMITS_S, |(_, small, large)| (*small, *large));
        let waited = (wait_for_first_slot(&spec, 8, 4, 1), wait_for_first_slot(&spec, 2, 1, 40));
        println!("{spec}: a small job waits {:?} s, a large one {:?} s", waited.0, waited.1);
        let within = |waited: Option<f64>, bound: u64| waited.is_some_and(|waited| waited <= bound as f64);
        if !within(waited.0, small) || large.is_some_and(|large| !within(waited.1, large)) {
            let _ = writeln!(
                wrong,
                "{spec}: the jobs waited {waited:?} s, but the limits are {small} and {large:?}"
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
