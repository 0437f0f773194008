//! Tests of the invariants of the agent.

use super::*;

mod limits;

const ISOLATION_TIMEOUT: Span = Span::secs(600);
const LOST_AFTER: Span = Span::secs(7200);

/// The data types of the tests. A result is only its size in bytes.
#[derive(Debug, Clone, PartialEq)]
struct TestTypes;

#[derive(Debug, Clone, PartialEq, Default)]
struct Progress {
    percent: u32,
    text: String,
}

impl DriverTypes for TestTypes {
    type Launch = String;
    type Source = String;
    type Progress = Progress;
    type Result = usize;
    type Checkpoint = String;
    type MapEvent = String;

    fn no_progress(_: AttemptId) -> Progress {
        Progress::default()
    }
    fn progress_bytes(progress: &Progress) -> usize {
        progress.text.len()
    }
    fn result_bytes(result: &usize) -> usize {
        *result
    }
    fn clear_text(progress: &mut Progress) {
        progress.text.clear();
    }
}

type Agent = crate::Agent<TestTypes>;
type Event = crate::Event<TestTypes>;
type Action = crate::Action<TestTypes>;
type Order = crate::Order<TestTypes>;
type Heartbeat = crate::Heartbeat<TestTypes>;
type Report = crate::AttemptReport<TestTypes>;
type Status = crate::AttemptStatus<TestTypes>;
type AttemptEnd = crate::AttemptEnd<TestTypes>;
type MapEventBatch = crate::MapEventBatch<TestTypes>;

/// An agent and the current time.
struct World {
    agent: Agent,
    now: Time,
}

fn attempt(text: &str) -> AttemptId {
    text.parse().unwrap()
}

fn launch(text: &str) -> Order {
    Order::Launch(attempt(text), text.into())
}

fn fetch_failure(reduce: &str, map: &str, addr: &str) -> FetchFailure {
    FetchFailure { reduce: attempt(reduce), map: attempt(map), addr: addr.into() }
}

fn registered() -> Event {
    Event::Registered { heartbeat: DEFAULT_INTERVAL, lost_after: LOST_AFTER, incarnation: Incarnation(1) }
}

fn success() -> AttemptEnd {
    AttemptEnd::Succeeded { result: 0, output: true }
}

fn map_event_batch(first: u64, maps: &[&str], count: u32) -> MapEventBatch {
    MapEventBatch { first, events: maps.iter().map(|map| (*map).into()).collect(), maps: count }
}

impl World {
    fn new() -> Self {
        let agent = Agent::new(
            PerPhase { map: 2, reduce: 1 },
            BTreeSet::new(),
            BTreeMap::new(),
            BTreeSet::new(),
            Some(ISOLATION_TIMEOUT),
        );
        Self { agent, now: Time(1_000_000) }
    }

    /// Returns an agent that is registered and whose first heartbeat was answered.
    fn registered() -> Self {
        let mut world = Self::new();
        world.handle(Event::Connected);
        world.accept_registration();
        world
    }

    /// Accepts the registration of the agent and answers its first heartbeat.
    fn accept_registration(&mut self) {
        let first = self.handle(registered());
        assert!(matches!(&first[..], [Action::Heartbeat(heartbeat)] if heartbeat.seq == 1), "{first:?}");
        assert_eq!(self.handle_orders(1, vec![]), []);
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.agent.handle(self.now, event, &mut out);
        out
    }

    fn handle_orders(&mut self, answers: u64, orders: Vec<(u64, Order)>) -> Vec<Action> {
        self.handle(Event::Orders { answers, orders })
    }

    /// Lets time pass, and returns the actions of a tick.
    fn tick_after(&mut self, time: Span) -> Vec<Action> {
        self.now = self.now + time;
        self.handle(Event::Tick)
    }

    /// Lets time pass. Returns the heartbeat that is sent then.
    fn heartbeat_after(&mut self, time: Span) -> Arc<Heartbeat> {
        match self.tick_after(time).pop() {
            Some(Action::Heartbeat(heartbeat)) => heartbeat,
            other => panic!("expected a heartbeat, got {other:?}"),
        }
    }
}

/// Returns the attempts in a heartbeat, each with its state.
fn describe_reports(heartbeat: &Heartbeat) -> Vec<String> {
    heartbeat
        .attempts
        .iter()
        .map(|report| format!("{} {}", report.attempt, state_name(&report.status)))
        .collect()
}

fn state_name(status: &Status) -> &'static str {
    match status {
        Status::Running(_) => "running",
        Status::Ended(AttemptEnd::Succeeded { .. }) => "succeeded",
        Status::Ended(AttemptEnd::Paused(_)) => "paused",
        Status::Ended(AttemptEnd::CheckpointCorrupt(_)) => "checkpoint corrupt",
        Status::Ended(AttemptEnd::CheckpointUnreachable(_)) => "checkpoint unreachable",
        Status::Ended(AttemptEnd::Failed(_)) => "failed",
        Status::Ended(AttemptEnd::Fatal(_)) => "fatal",
        Status::Ended(AttemptEnd::Killed(_)) => "killed",
        Status::Copied(Ok(_)) => "copied",
        Status::Copied(Err(_)) => "not copied",
    }
}

#[test]
fn repeated_order_is_executed_once() {
    let mut world = World::registered();
    let first = vec![(1, launch("job_1.m0.0"))];
    assert_eq!(
        world.handle_orders(0, first.clone()),
        [Action::Start(attempt("job_1.m0.0"), "job_1.m0.0".into())]
    );
    assert_eq!(world.handle_orders(0, first.clone()), []);
    let ended = Event::Ended(attempt("job_1.m0.0"), success());
    assert_eq!(world.handle(ended), []);
    // The order is also ignored if it is repeated after the attempt has ended.
    assert_eq!(world.handle_orders(0, first.clone()), []);
    assert_eq!(world.heartbeat_after(HEARTBEAT_GAP).acked, 1);
    world.handle_orders(2, first.clone());
    assert_eq!(world.handle_orders(0, vec![first[0].clone(), (2, launch("job_1.m1.0"))]).len(), 1);
    assert_eq!(world.heartbeat_after(DEFAULT_INTERVAL).acked, 2);
}

#[test]
fn ended_attempt_is_reported_until_acknowledged() {
    let mut world = World::registered();
    world.handle_orders(0, vec![(1, launch("job_1.m0.0")), (2, launch("job_1.m1.0"))]);
    world.handle(Event::Ended(attempt("job_1.m0.0"), success()));
    assert_eq!(world.agent.next_deadline(), Some(world.now + HEARTBEAT_GAP));
    let sent = world.heartbeat_after(HEARTBEAT_GAP);
    assert_eq!(describe_reports(&sent), ["job_1.m1.0 running", "job_1.m0.0 succeeded"]);
    // While the heartbeat is not answered, it is repeated, and does not contain later events.
    world.handle(Event::Ended(attempt("job_1.m1.0"), AttemptEnd::Failed("boom".into())));
    assert_eq!(world.heartbeat_after(DEFAULT_INTERVAL), sent);
    assert_eq!(world.heartbeat_after(DEFAULT_INTERVAL), sent);
    // An answer to another heartbeat does not count.
    assert_eq!(world.handle_orders(sent.seq - 1, vec![]), []);
    assert_eq!(world.heartbeat_after(DEFAULT_INTERVAL), sent);
    world.handle_orders(sent.seq, vec![]);
    let next = world.heartbeat_after(HEARTBEAT_GAP);
    assert_eq!(next.seq, sent.seq + 1);
    assert_eq!(describe_reports(&next), ["job_1.m1.0 failed"]);
    world.handle_orders(next.seq, vec![]);
    assert_eq!(describe_reports(&world.heartbeat_after(DEFAULT_INTERVAL)), [""; 0]);
}

#[test]
fn events_within_a_short_time_are_reported_in_one_heartbeat() {
    let mut world = World::registered();
    world.handle_orders(0, vec![(1, launch("job_1.m0.0")), (2, launch("job_1.m1.0"))]);
    assert_eq!(world.handle(Event::Started(attempt("job_1.m0.0"))), []);
    assert_eq!(world.tick_after(Span(HEARTBEAT_GAP.0 / 2)), []);
    assert_eq!(world.handle(Event::Started(attempt("job_1.m1.0"))), []);
    let sent = world.heartbeat_after(Span(HEARTBEAT_GAP.0 / 2));
    assert_eq!(describe_reports(&sent), ["job_1.m0.0 running", "job_1.m1.0 running"]);
    // A start while a heartbeat is unanswered is reported in the next heartbeat, soon after the
    // answer.
    world.handle(Event::Started(attempt("job_1.m1.0")));
    world.handle_orders(sent.seq, vec![]);
    world.heartbeat_after(HEARTBEAT_GAP);
}

#[test]
fn only_the_latest_progress_is_reported() {
    let mut world = World::registered();
    world.handle_orders(0, vec![(1, launch("job_1.m0.0"))]);
    for percent in [10, 20, 30] {
        let progress = Progress { percent, ..Progress::default() };
        assert_eq!(world.handle(Event::Progressed(attempt("job_1.m0.0"), progress)), []);
    }
    let sent = world.heartbeat_after(DEFAULT_INTERVAL);
    let [Report { status: Status::Running(progress), .. }] = &sent.attempts[..] else { panic!("{sent:?}") };
    assert_eq!(progress.percent, 30);
}

#[test]
fn unacknowledged_reports_are_sent_again_after_a_reconnect() {
    let mut world = World::registered();
    world.handle_orders(
        0,
        vec![(5, launch("job_1.m0.0")), (6, launch("job_1.m1.0")), (7, launch("job_1.r0.0"))],
    );
    world.handle(Event::Ended(attempt("job_1.m0.0"), success()));
    let last_answered = world.now;
    world.heartbeat_after(HEARTBEAT_GAP);
    world.handle(Event::FetchFailed(fetch_failure("job_1.r0.0", "job_1.m9.0", "node2:7000")));
    assert_eq!(world.handle(Event::Disconnected), []);
    assert_eq!(world.agent.next_deadline(), Some(last_answered + ISOLATION_TIMEOUT));
    // An attempt ends while the tracker is not connected.
    world.handle(Event::Ended(attempt("job_1.m1.0"), AttemptEnd::Failed("boom".into())));
    assert_eq!(world.tick_after(Span(DEFAULT_INTERVAL.0 * 100)), []);
    let again = world.handle(Event::Connected);
    let [Action::Register { attempts, outputs, .. }] = &again[..] else { panic!("{again:?}") };
    let states: Vec<&str> = attempts.iter().map(|report| state_name(&report.status)).collect();
    assert_eq!(states, ["running", "succeeded", "failed"]);
    assert_eq!(outputs[..], [attempt("job_1.m0.0")]);
    // If the registration is lost too, it is repeated.
    world.handle(Event::Disconnected);
    assert_eq!(world.handle(Event::Connected), again);
    let first = world.handle(registered());
    let [Action::Heartbeat(first)] = &first[..] else { panic!("{first:?}") };
    // Numbers start again at 1. Ended attempts that were in the registration are not reported
    // again; the fetch failure is.
    assert_eq!((first.seq, first.acked), (1, 0));
    assert_eq!(describe_reports(first), ["job_1.r0.0 running"]);
    assert_eq!(first.fetch_failures, [fetch_failure("job_1.r0.0", "job_1.m9.0", "node2:7000")]);
    let actions = world
        .handle_orders(1, vec![(1, Order::Preempt(attempt("job_1.r0.0"), PreemptKind::Kill, "why".into()))]);
    assert_eq!(actions, [Action::Kill(attempt("job_1.r0.0"), "why".into())]);
}

#[test]
fn attempt_that_ends_during_registration_is_reported_afterwards() {
    let mut world = World::registered();
    world.handle_orders(0, vec![(1, launch("job_1.m0.0"))]);
    assert!(matches!(&world.handle(Event::RegisterAgain)[..], [Action::Register { .. }]));
    world.handle(Event::Ended(attempt("job_1.m0.0"), success()));
    // Orders that were sent before the registration are ignored until the registration is answered.
    assert_eq!(world.handle_orders(0, vec![(2, launch("job_1.m1.0"))]), []);
    let first = world.handle(registered());
    let [Action::Heartbeat(first)] = &first[..] else { panic!("{first:?}") };
    assert_eq!(describe_reports(first), ["job_1.m0.0 succeeded"]);
}

#[test]
fn request_to_register_is_ignored_while_registering_or_disconnected() {
    let mut world = World::registered();
    assert!(matches!(&world.handle(Event::RegisterAgain)[..], [Action::Register { .. }]));
    assert_eq!(world.handle(Event::RegisterAgain), []);
    world.accept_registration();
    // The numbers of orders have started again at 1 only once, so an order after the answer is
    // executed.
    let actions = world.handle_orders(0, vec![(1, launch("job_1.m0.0"))]);
    assert!(matches!(&actions[..], [Action::Start(..)]), "{actions:?}");
    assert!(matches!(&world.handle(Event::RegisterAgain)[..], [Action::Register { .. }]));
    // Without a connection, the agent registers when it is connected again.
    world.handle(Event::Disconnected);
    assert_eq!(world.handle(Event::RegisterAgain), []);
    assert!(matches!(&world.handle(Event::Connected)[..], [Action::Register { .. }]));
}

#[test]
fn attempt_that_fails_while_being_killed_is_reported_as_killed() {
    let mut world = World::registered();
    let id = attempt("job_1.m0.0");
    world.handle_orders(0, vec![(1, launch("job_1.m0.0"))]);
    assert_eq!(
        world.handle_orders(
            0,
            vec![
                (2, Order::Preempt(id, PreemptKind::Kill, "enough".into())),
                (3, Order::Preempt(id, PreemptKind::Kill, "again".into()))
            ]
        ),
        [Action::Kill(id, "enough".into())]
    );
    world.handle(Event::Ended(id, AttemptEnd::Failed("killed by signal 9".into())));
    let sent = world.heartbeat_after(HEARTBEAT_GAP);
    assert_eq!(
        sent.attempts,
        [Report { attempt: id, status: Status::Ended(AttemptEnd::Killed("enough".into())) }]
    );
    // The order to kill an attempt that was already reported as ended is ignored. An unknown
    // attempt is reported as killed.
    assert_eq!(world.handle_orders(0, vec![(4, Order::Preempt(id, PreemptKind::Kill, "late".into()))]), []);
    world.handle_orders(
        sent.seq,
        vec![(5, Order::Preempt(attempt("job_9.m0.0"), PreemptKind::Kill, "who".into()))],
    );
    assert_eq!(describe_reports(&world.heartbeat_after(HEARTBEAT_GAP)), ["job_9.m0.0 killed"]);
}

#[test]
fn attempt_that_succeeds_while_being_killed_is_reported_as_succeeded() {
    let mut world = World::registered();
    let id = attempt("job_1.m0.0");
    world.handle_orders(
        0,
        vec![(1, launch("job_1.m0.0")), (2, Order::Preempt(id, PreemptKind::Kill, "enough".into()))],
    );
    world.handle(Event::Ended(id, success()));
    assert_eq!(describe_reports(&world.heartbeat_after(HEARTBEAT_GAP)), ["job_1.m0.0 succeeded"]);
}

#[test]
fn launch_without_a_free_slot_is_reported_as_killed() {
    let mut world = World::registered();
    let ids = ["job_1.m0.0", "job_1.m1.0", "job_1.m2.0", "job_1.r0.0", "job_1.r1.0"];
    let orders = ids.iter().enumerate().map(|(at, id)| (at as u64 + 1, launch(id))).collect();
    let started = world.handle_orders(0, orders);
    let ids: Vec<AttemptId> = started
        .iter()
        .map(|action| if let Action::Start(id, ..) = action { *id } else { panic!() })
        .collect();
    assert_eq!(ids, [attempt("job_1.m0.0"), attempt("job_1.m1.0"), attempt("job_1.r0.0")]);
    let sent = world.heartbeat_after(HEARTBEAT_GAP);
    assert_eq!(describe_reports(&sent)[3..], ["job_1.m2.0 killed", "job_1.r1.0 killed"]);
}

#[test]
fn map_events_reach_each_reduce_once_and_in_order() {
    let mut world = World::new();
    world.agent.slots.reduce = 2;
    world.handle(Event::Connected);
    world.accept_registration();
    let map_events = |reduce: &str, first, maps: &[&str]| {
        Action::MapEvents(attempt(reduce), map_event_batch(first, maps, 0))
    };
    world.handle_orders(0, vec![(1, launch("job_1.r0.0"))]);
    let actions =
        world.handle_orders(0, vec![(2, Order::MapEvents(JobId(1), map_event_batch(0, &["a", "b"], 0)))]);
    assert_eq!(actions, [map_events("job_1.r0.0", 0, &["a", "b"])]);
    // A second reduce gets the earlier events.
    let actions = world.handle_orders(0, vec![(3, launch("job_1.r1.0"))]);
    assert_eq!(actions[1..], [map_events("job_1.r1.0", 0, &["a", "b"])]);
    // Events that overlap with known ones, as after a registration, are sent once. Events after a
    // gap are ignored. Events of other jobs are not sent.
    let both =
        world.handle_orders(0, vec![(4, Order::MapEvents(JobId(1), map_event_batch(1, &["b", "c"], 0)))]);
    assert_eq!(both, [map_events("job_1.r0.0", 2, &["c"]), map_events("job_1.r1.0", 2, &["c"])]);
    assert_eq!(
        world.handle_orders(0, vec![(5, Order::MapEvents(JobId(1), map_event_batch(7, &["x"], 0)))]),
        []
    );
    assert_eq!(
        world.handle_orders(0, vec![(6, Order::MapEvents(JobId(2), map_event_batch(0, &["x"], 0)))]),
        []
    );
}

#[test]
fn files_of_a_job_are_deleted_after_its_last_process_has_ended() {
    let mut world = World::registered();
    let id = attempt("job_1.m0.0");
    world.handle_orders(
        0,
        vec![(1, launch("job_1.m0.0")), (2, launch("job_1.m1.0")), (3, launch("job_1.r0.0"))],
    );
    world.handle(Event::Ended(attempt("job_1.m1.0"), success()));
    assert_eq!(world.agent.outputs.len(), 1);
    let kills = world.handle_orders(0, vec![(4, Order::Clean(JobId(1)))]);
    assert_eq!(kills.len(), 2, "{kills:?}");
    assert_eq!(world.agent.outputs.len(), 0);
    // No attempt of the job is started while it is being cleaned up.
    assert_eq!(world.handle_orders(0, vec![(5, launch("job_1.m2.0"))]), []);
    assert_eq!(world.handle(Event::Ended(id, success())), []);
    let last = world.handle(Event::Ended(attempt("job_1.r0.0"), AttemptEnd::Killed("killed".into())));
    assert_eq!(last, [Action::Clean(JobId(1))]);
    assert_eq!(world.agent.outputs.len(), 0);
    assert_eq!(world.handle_orders(0, vec![(6, Order::Clean(JobId(7)))]), [Action::Clean(JobId(7))]);
}

#[test]
fn refused_tracker_kills_its_attempts_and_exits() {
    let mut world = World::registered();
    world.handle_orders(0, vec![(1, launch("job_1.m0.0"))]);
    let actions = world.handle(Event::Refused("another has your name".into()));
    let reason = "another has your name".to_string();
    assert_eq!(actions, [Action::Kill(attempt("job_1.m0.0"), reason.clone()), Action::Exit(reason)]);
    assert_eq!(world.agent.next_deadline(), None);
}

#[test]
fn outputs_and_checkpoints_of_an_earlier_start_are_registered() {
    let (map, paused) = (attempt("job_1.m0.0"), attempt("job_9.r0.1"));
    let (outputs, jobs) = (BTreeSet::from([map]), BTreeSet::from([JobId(9)]));
    let checkpoint = (paused, "merge".to_string());
    let checkpoints = [checkpoint.clone()].into();
    let mut agent =
        Agent::new(PerPhase { map: 1, reduce: 1 }, outputs, checkpoints, jobs, Some(ISOLATION_TIMEOUT));
    let mut out = Vec::new();
    agent.handle(Time(0), Event::Connected, &mut out);
    let registered = Action::Register {
        incarnation: Incarnation(0),
        attempts: vec![],
        outputs: vec![map],
        checkpoints: vec![checkpoint],
        jobs: vec![JobId(1), JobId(9)],
    };
    assert_eq!(out, [registered]);
}

#[test]
fn unknown_order_is_acknowledged() {
    let mut world = World::registered();
    assert_eq!(world.handle_orders(0, vec![(1, Order::Unknown)]), []);
    assert_eq!(world.heartbeat_after(DEFAULT_INTERVAL).acked, 1);
}
