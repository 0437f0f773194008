//! Compares estimated durations of reduces with values computed by hand. The job has one map, which
//! takes 300 s, and a reduce that is launched after 15 s.

use super::*;
use mrcore::{
    Config, Event, JobTracker, PerPhase, Why,
    event::{AttemptReport, AttemptStatus, Heartbeat},
    fact::Entry,
    ids::{AttemptId, Incarnation, RequestId, TaskId, TrackerId},
    job::{JobSpec, Payload, Priority, Program, Split},
    task::{AttemptResult, PreemptKind, Progress, Stage},
};
use std::sync::Arc;

const JOB: JobId = JobId(1);

struct TestJob(JobTracker);

fn at(seconds: u64) -> Time {
    Time(seconds * 1_000_000)
}

fn map() -> AttemptId {
    TaskId { job: JOB, phase: Phase::Map, index: 0 }.attempt(0)
}

fn reduce(index: u32, number: u32) -> AttemptId {
    TaskId { job: JOB, phase: Phase::Reduce, index }.attempt(number)
}

impl TestJob {
    /// Creates a job with a map that has run since 0 s and a reduce that has run since 15 s.
    fn begin() -> Self {
        let scheduler = crate::make("fifo", &crate::Params::new()).expect("there is one");
        let mut job = Self(JobTracker::new(Config::default(), scheduler));
        job.apply(
            0,
            Fact::TrackerJoined {
                tracker: TrackerId(1),
                name: "t1".into(),
                incarnation: Incarnation(1),
                host: "h1".into(),
                rack: "r1".into(),
                shuffle_addr: String::new(),
                logs_addr: String::new(),
                slots: PerPhase { map: 1, reduce: 1 },
            },
        );
        let split = Split {
            source: String::new(),
            start: 0,
            end: 100,
            divisible: true,
            hosts: Vec::new(),
            pin: mrcore::job::InputPin::default(),
        };
        let spec = JobSpec {
            name: "j".into(),
            user: "ann".into(),
            queue: String::new(),
            priority: Priority::Normal,
            program: Program::Builtin(String::new()),
            splits: vec![split],
            reduces: 2,
            output: String::new(),
            slow_start: 0.0,
            speculation: false,
            split_slow: true,
            attempts_max: 4,
            conf: BTreeMap::new(),
            payload: Payload::default(),
        };
        job.apply(0, Fact::JobSubmitted { job: JOB, request: RequestId(1), spec: Arc::new(spec) });
        job.launch(0, map(), None);
        job.launch(15, reduce(0, 0), None);
        job
    }

    fn apply(&mut self, seconds: u64, fact: Fact) {
        self.0.replay(&Entry { at: at(seconds), fact }).expect("the facts are consistent");
    }

    fn launch(&mut self, seconds: u64, attempt: AttemptId, resumed_from: Option<AttemptId>) {
        let (tracker, why) = (TrackerId(1), Why::default());
        self.apply(
            seconds,
            Fact::AttemptLaunched { attempt, tracker, speculative: false, resumed_from, why },
        );
    }

    fn succeed(&mut self, seconds: u64, attempt: AttemptId) {
        self.apply(seconds, Fact::AttemptSucceeded { attempt, result: AttemptResult::default() });
    }

    fn pause(&mut self, seconds: u64, attempt: AttemptId) {
        let why = String::new();
        self.apply(
            seconds,
            Fact::PreemptionRequested { attempt, kind: PreemptKind::Pause, why, fault: false, hold: false },
        );
        self.apply(
            seconds,
            Fact::AttemptPaused { attempt, stage: Stage::Reduce, bytes: 1, bytes_in: 1, interrupted: false },
        );
    }

    /// Sends a heartbeat that reports new progress of one attempt. The progress of the other
    /// attempts has not changed.
    fn progress(&mut self, seconds: u64, attempt: AttemptId, done: f32) {
        let cluster = self.0.cluster();
        let tracker = cluster.tracker(TrackerId(1)).expect("it has joined");
        let running = tracker.running.map.iter().chain(&tracker.running.reduce);
        let report = |id: &AttemptId| {
            let mut progress =
                cluster.attempt(*id).map(|attempt| cluster.progress(attempt)).unwrap_or_default();
            if *id == attempt {
                progress = Progress { done, stage: Stage::Reduce, ..progress };
            }
            AttemptReport { attempt: *id, status: AttemptStatus::Running(progress) }
        };
        let (attempts, fetch_failures) = (running.map(report).collect(), Vec::new());
        let (tracker, incarnation) = (TrackerId(1), Incarnation(1));
        let heartbeat =
            Heartbeat { tracker, incarnation, seq: seconds, acked: u64::MAX, attempts, fetch_failures };
        self.0.handle(at(seconds), Event::Heartbeat(heartbeat), &mut Vec::new());
    }

    #[track_caller]
    fn expect_seconds(&self, seconds: u64, wanted: Option<f64>) {
        let cluster = self.0.cluster();
        let got = reduce_seconds(cluster.job(JOB).expect("it runs"), at(seconds), cluster);
        let near = got.zip(wanted).is_some_and(|(got, wanted)| (got - wanted).abs() < 1e-3);
        assert!(near || got == wanted, "{got:?} is not {wanted:?}");
    }
}

#[test]
fn duration_of_a_finished_reduce_starts_when_the_maps_are_done() {
    let mut job = TestJob::begin();
    job.succeed(300, map());
    job.expect_seconds(300, None);
    job.succeed(320, reduce(0, 0));
    job.expect_seconds(320, Some(20.0));
    // A reduce that started later counts from its launch: 20 s and 40 s.
    job.launch(330, reduce(1, 0), None);
    job.succeed(370, reduce(1, 0));
    job.expect_seconds(400, Some(30.0));
}

#[test]
fn duration_of_a_paused_reduce_is_the_sum_over_its_attempts() {
    let mut job = TestJob::begin();
    job.succeed(300, map());
    job.pause(310, reduce(0, 0));
    job.launch(350, reduce(0, 1), Some(reduce(0, 0)));
    job.succeed(365, reduce(0, 1));
    // The reduce ran from 300 s to 310 s and from 350 s to 365 s.
    job.expect_seconds(365, Some(25.0));
}

#[test]
fn duration_of_a_running_reduce_is_projected_from_its_progress_since_the_maps() {
    let mut job = TestJob::begin();
    job.progress(290, reduce(0, 0), 0.3);
    job.expect_seconds(290, None);
    job.succeed(300, map());
    // After a twentieth of the remaining work there is no estimate; after half of it in 30 s there
    // is one.
    job.progress(305, reduce(0, 0), 0.366);
    job.expect_seconds(305, None);
    job.progress(330, reduce(0, 0), 2.0 / 3.0);
    job.expect_seconds(330, Some(60.0));
    // For a reduce that was launched after the maps, all progress counts: half in 20 s is 40 s in
    // total. The first reduce has made no progress in the meantime, so its projection is now 80 s.
    job.launch(320, reduce(1, 0), None);
    job.progress(340, reduce(1, 0), 0.5);
    job.expect_seconds(340, Some(f64::midpoint(80.0, 40.0)));
}
