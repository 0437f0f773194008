//! Checks what `coshh` learns about nodes, and for which jobs it suggests them.

use fermata_schedulers::{Params, make};
use mrcore::{
    Config, Effect, Event, Fact, JobTracker, PerPhase, Phase, Time, Why,
    fact::Entry,
    ids::{Incarnation, JobId, RequestId, TaskId, TrackerId},
    job::{JobOutcome, JobSpec, Payload, Priority, Program, Split},
    task::AttemptResult,
};
use std::{collections::BTreeMap, sync::Arc};

const FAST: TrackerId = TrackerId(0);
const SLOW: TrackerId = TrackerId(1);

fn at(seconds: u64) -> Time {
    Time(seconds * 1_000_000)
}

fn replay(core: &mut JobTracker, seconds: u64, fact: Fact) {
    core.replay(&Entry { at: at(seconds), fact }).unwrap();
}

fn submit(core: &mut JobTracker, seconds: u64, job: JobId, user: &str) {
    let split = |_| Split {
        source: "/in".into(),
        start: 0,
        end: 100,
        divisible: true,
        hosts: Vec::new(),
        pin: mrcore::job::InputPin::default(),
    };
    let spec = JobSpec {
        name: String::new(),
        user: user.into(),
        queue: "default".into(),
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
    replay(
        core,
        seconds,
        Fact::JobSubmitted { job, request: RequestId(u128::from(job.0)), spec: Arc::new(spec) },
    );
}

/// Creates two nodes and a finished job of each of two users, with four maps of each job on each
/// node.
fn history() -> JobTracker {
    let params = Params::from([("coshh.arrival_window".to_owned(), "1000000s".to_owned())]);
    let mut core = JobTracker::new(Config::default(), make("coshh", &params).unwrap());
    for tracker in [FAST, SLOW] {
        replay(
            &mut core,
            0,
            Fact::TrackerJoined {
                tracker,
                name: format!("t{}", tracker.0),
                incarnation: Incarnation(1),
                host: format!("h{}", tracker.0),
                rack: "r".into(),
                shuffle_addr: "s".into(),
                logs_addr: "l".into(),
                slots: PerPhase { map: 8, reduce: 0 },
            },
        );
    }
    // Seconds on the fast and on the slow node: the rates of the paper, [[9, 5], [2, 1]].
    for (job, user, times) in [(JobId(1), "ann", [10, 18]), (JobId(2), "bob", [45, 90])] {
        submit(&mut core, 0, job, user);
        for index in 0..8 {
            let attempt = TaskId { job, phase: Phase::Map, index }.attempt(0);
            let tracker = [FAST, SLOW][index as usize % 2];
            let (speculative, resumed_from, why) = (false, None, Why::default());
            replay(&mut core, 0, Fact::AttemptLaunched { attempt, tracker, speculative, resumed_from, why });
        }
        for node in 0..2 {
            for index in (node..8).step_by(2) {
                let attempt = TaskId { job, phase: Phase::Map, index }.attempt(0);
                let result = AttemptResult::default();
                replay(&mut core, times[node as usize], Fact::AttemptSucceeded { attempt, result });
            }
        }
        replay(&mut core, 100, Fact::JobCommitting { job });
        replay(&mut core, 100, Fact::JobEnded { job, outcome: JobOutcome::Succeeded });
    }
    core
}

/// Starts the JobTracker and runs its computations. Returns their number.
fn start(core: &mut JobTracker) -> u32 {
    let (mut out, mut computed) = (Vec::new(), 0);
    core.handle(at(200), Event::Start, &mut out);
    while let Some(effect) = out.pop() {
        if let Effect::Compute { number, problem } = effect {
            assert_eq!(problem.solve(), problem.solve());
            core.handle(at(200), Event::Computed { number, answer: problem.solve() }, &mut out);
            computed += 1;
        }
    }
    computed
}

#[test]
fn node_speeds_are_measured_from_finished_tasks() {
    let core = history();
    let speed = |node| core.throughput(node).map.speed().expect("compared with others");
    let ratio = speed(FAST) / speed(SLOW);
    assert!((1.5..2.3).contains(&ratio), "the ratio is 1.8 for one job and 2 for the other: {ratio}");
}

/// Returns the number of nodes that are suggested for a job, if the job has a class.
fn suggested(core: &JobTracker, job: JobId) -> Option<f64> {
    let reasons = core.explain(at(200), job);
    reasons.iter().find(|why| why.rule == "class-suggested-nodes")?.number("nodes")
}

#[test]
fn classes_share_the_nodes_as_in_the_paper() {
    let mut core = history();
    submit(&mut core, 150, JobId(3), "bob");
    submit(&mut core, 150, JobId(4), "ann");
    assert_eq!(suggested(&core, JobId(3)), None, "nothing has been computed");
    assert_eq!(start(&mut core), 1);
    // As in the example of the paper: bob gets the fast node and half of the slow one, ann gets the
    // other half.
    assert_eq!(suggested(&core, JobId(3)), Some(2.0));
    assert_eq!(suggested(&core, JobId(4)), Some(1.0));
}

#[test]
fn failed_computation_leaves_jobs_without_a_class() {
    let mut core = history();
    submit(&mut core, 150, JobId(3), "bob");
    let mut out = Vec::new();
    core.handle(at(200), Event::Start, &mut out);
    let computed = out.iter().find_map(|effect| match effect {
        Effect::Compute { number, .. } => Some(*number),
        _ => None,
    });
    let answer = mrcore::compute::Numbers::default();
    core.handle(at(200), Event::Computed { number: computed.unwrap(), answer }, &mut out);
    assert_eq!(suggested(&core, JobId(3)), None);
}
