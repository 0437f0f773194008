//! The invariants of the agent.

use super::*;

mod limits;

const ISOLATION_TIMEOUT: Span = Span::secs(600);
const LOST_AFTER: Span = Span::secs(7200);

/// Payload of the tests. A result is its size.
#[derive(Debug, Clone, PartialEq)]
struct Texts;

#[derive(Debug, Clone, PartialEq, Default)]
struct Progress {
    percent: u32,
    text: String,
}

impl Payload for Texts {
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

type Agent = crate::Agent<Texts>;
type Event = crate::Event<Texts>;
type Action = crate::Action<Texts>;
type Order = crate::Order<Texts>;
type Heartbeat = crate::Heartbeat<Texts>;
type Report = crate::Report<Texts>;
type Status = crate::Status<Texts>;
type AttemptEnd = crate::AttemptEnd<Texts>;
type MapEventBatch = crate::MapEventBatch<Texts>;

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

fn unfetched(reduce: &str, map: &str, addr: &str) -> FetchFailure {
    FetchFailure { reduce: attempt(reduce), map: attempt(map), addr: addr.into() }
}

fn registered() -> Event {
    Event::Registered { heartbeat: INTERVAL, lost_after: LOST_AFTER, incarnation: Incarnation(1) }
}

fn done() -> AttemptEnd {
    AttemptEnd::Succeeded { result: 0, output: true }
}

fn some(first: u64, maps: &[&str], count: u32) -> MapEventBatch {
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

    /// Connected, registered, first heartbeat answered.
    fn online() -> Self {
        let mut world = Self::new();
        world.on(Event::Connected);
        world.register();
        world
    }

    fn register(&mut self) {
        let first = self.on(registered());
        assert!(matches!(&first[..], [Action::Heartbeat(heartbeat)] if heartbeat.seq == 1), "{first:?}");
        assert_eq!(self.orders(1, vec![]), []);
    }

    fn on(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.agent.handle(self.now, event, &mut out);
        out
    }

    fn orders(&mut self, answers: u64, orders: Vec<(u64, Order)>) -> Vec<Action> {
        self.on(Event::Orders { answers, orders })
    }

    fn after(&mut self, time: Span) -> Vec<Action> {
        self.now = self.now + time;
        self.on(Event::Tick)
    }

    fn beat_after(&mut self, time: Span) -> Arc<Heartbeat> {
        match self.after(time).pop() {
            Some(Action::Heartbeat(heartbeat)) => heartbeat,
            other => panic!("no heartbeat but {other:?}"),
        }
    }
}

fn reported(heartbeat: &Heartbeat) -> Vec<String> {
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
fn an_order_is_taken_once() {
    let mut world = World::online();
    let first = vec![(1, launch("job_1.m0.0"))];
    assert_eq!(world.orders(0, first.clone()), [Action::Start(attempt("job_1.m0.0"), "job_1.m0.0".into())]);
    assert_eq!(world.orders(0, first.clone()), []);
    let ended = Event::Ended(attempt("job_1.m0.0"), done());
    assert_eq!(world.on(ended), []);
    // Also after it has ended and was reported, if the order is repeated.
    assert_eq!(world.orders(0, first.clone()), []);
    assert_eq!(world.beat_after(HEARTBEAT_GAP).acked, 1);
    world.orders(2, first.clone());
    assert_eq!(world.orders(0, vec![first[0].clone(), (2, launch("job_1.m1.0"))]).len(), 1);
    assert_eq!(world.beat_after(INTERVAL).acked, 2);
}

#[test]
fn ended_attempt_is_reported_until_acknowledged() {
    let mut world = World::online();
    world.orders(0, vec![(1, launch("job_1.m0.0")), (2, launch("job_1.m1.0"))]);
    world.on(Event::Ended(attempt("job_1.m0.0"), done()));
    assert_eq!(world.agent.next_deadline(), Some(world.now + HEARTBEAT_GAP));
    let sent = world.beat_after(HEARTBEAT_GAP);
    assert_eq!(reported(&sent), ["job_1.m1.0 running", "job_1.m0.0 succeeded"]);
    // Not answered: the same heartbeat is repeated, and later events wait.
    world.on(Event::Ended(attempt("job_1.m1.0"), AttemptEnd::Failed("boom".into())));
    assert_eq!(world.beat_after(INTERVAL), sent);
    assert_eq!(world.beat_after(INTERVAL), sent);
    // An answer to another heartbeat does not count.
    assert_eq!(world.orders(sent.seq - 1, vec![]), []);
    assert_eq!(world.beat_after(INTERVAL), sent);
    world.orders(sent.seq, vec![]);
    let next = world.beat_after(HEARTBEAT_GAP);
    assert_eq!(next.seq, sent.seq + 1);
    assert_eq!(reported(&next), ["job_1.m1.0 failed"]);
    world.orders(next.seq, vec![]);
    assert_eq!(reported(&world.beat_after(INTERVAL)), [""; 0]);
}

#[test]
fn simultaneous_events_share_a_heartbeat() {
    let mut world = World::online();
    world.orders(0, vec![(1, launch("job_1.m0.0")), (2, launch("job_1.m1.0"))]);
    assert_eq!(world.on(Event::Started(attempt("job_1.m0.0"))), []);
    assert_eq!(world.after(Span(HEARTBEAT_GAP.0 / 2)), []);
    assert_eq!(world.on(Event::Started(attempt("job_1.m1.0"))), []);
    let sent = world.beat_after(Span(HEARTBEAT_GAP.0 / 2));
    assert_eq!(reported(&sent), ["job_1.m0.0 running", "job_1.m1.0 running"]);
    // A start while a heartbeat is in flight is reported in the next one, immediately after the
    // answer.
    world.on(Event::Started(attempt("job_1.m1.0")));
    world.orders(sent.seq, vec![]);
    world.beat_after(HEARTBEAT_GAP);
}

#[test]
fn only_the_latest_progress_is_reported() {
    let mut world = World::online();
    world.orders(0, vec![(1, launch("job_1.m0.0"))]);
    for percent in [10, 20, 30] {
        let progress = Progress { percent, ..Progress::default() };
        assert_eq!(world.on(Event::Progressed(attempt("job_1.m0.0"), progress)), []);
    }
    let sent = world.beat_after(INTERVAL);
    let [Report { status: Status::Running(progress), .. }] = &sent.attempts[..] else { panic!("{sent:?}") };
    assert_eq!(progress.percent, 30);
}

#[test]
fn after_a_reconnect_everything_is_reported_again() {
    let mut world = World::online();
    world.orders(0, vec![(5, launch("job_1.m0.0")), (6, launch("job_1.m1.0")), (7, launch("job_1.r0.0"))]);
    world.on(Event::Ended(attempt("job_1.m0.0"), done()));
    let last_answered = world.now;
    world.beat_after(HEARTBEAT_GAP);
    world.on(Event::FetchFailed(unfetched("job_1.r0.0", "job_1.m9.0", "node2:7000")));
    assert_eq!(world.on(Event::Disconnected), []);
    assert_eq!(world.agent.next_deadline(), Some(last_answered + ISOLATION_TIMEOUT));
    // Attempts end in the meantime.
    world.on(Event::Ended(attempt("job_1.m1.0"), AttemptEnd::Failed("boom".into())));
    assert_eq!(world.after(Span(INTERVAL.0 * 100)), []);
    let again = world.on(Event::Connected);
    let [Action::Register { attempts, outputs, .. }] = &again[..] else { panic!("{again:?}") };
    let words: Vec<&str> = attempts.iter().map(|report| state_name(&report.status)).collect();
    assert_eq!(words, ["running", "succeeded", "failed"]);
    assert_eq!(outputs[..], [attempt("job_1.m0.0")]);
    // The registration is lost too: the next one is the same.
    world.on(Event::Disconnected);
    assert_eq!(world.on(Event::Connected), again);
    let first = world.on(registered());
    let [Action::Heartbeat(first)] = &first[..] else { panic!("{first:?}") };
    // Numbering starts over, registered ends are not reported again, and the fetch failure is still
    // reported.
    assert_eq!((first.seq, first.acked), (1, 0));
    assert_eq!(reported(first), ["job_1.r0.0 running"]);
    assert_eq!(first.fetch_failures, [unfetched("job_1.r0.0", "job_1.m9.0", "node2:7000")]);
    let taken =
        world.orders(1, vec![(1, Order::Preempt(attempt("job_1.r0.0"), PreemptKind::Kill, "why".into()))]);
    assert_eq!(taken, [Action::Kill(attempt("job_1.r0.0"), "why".into())]);
}

#[test]
fn end_during_registration_is_reported_afterwards() {
    let mut world = World::online();
    world.orders(0, vec![(1, launch("job_1.m0.0"))]);
    assert!(matches!(&world.on(Event::RegisterAgain)[..], [Action::Register { .. }]));
    world.on(Event::Ended(attempt("job_1.m0.0"), done()));
    // Orders from before are invalid until the answer.
    assert_eq!(world.orders(0, vec![(2, launch("job_1.m1.0"))]), []);
    let first = world.on(registered());
    let [Action::Heartbeat(first)] = &first[..] else { panic!("{first:?}") };
    assert_eq!(reported(first), ["job_1.m0.0 succeeded"]);
}

#[test]
fn duplicate_registration_request_is_ignored() {
    let mut world = World::online();
    assert!(matches!(&world.on(Event::RegisterAgain)[..], [Action::Register { .. }]));
    assert_eq!(world.on(Event::RegisterAgain), []);
    world.register();
    // One registration, one numbering of orders: an order after the answer is executed once.
    let taken = world.orders(0, vec![(1, launch("job_1.m0.0"))]);
    assert!(matches!(&taken[..], [Action::Start(..)]), "{taken:?}");
    assert!(matches!(&world.on(Event::RegisterAgain)[..], [Action::Register { .. }]));
}

#[test]
fn killed_attempt_is_reported_as_killed() {
    let mut world = World::online();
    let id = attempt("job_1.m0.0");
    world.orders(0, vec![(1, launch("job_1.m0.0"))]);
    assert_eq!(
        world.orders(
            0,
            vec![
                (2, Order::Preempt(id, PreemptKind::Kill, "enough".into())),
                (3, Order::Preempt(id, PreemptKind::Kill, "again".into()))
            ]
        ),
        [Action::Kill(id, "enough".into())]
    );
    world.on(Event::Ended(id, AttemptEnd::Failed("killed by signal 9".into())));
    let sent = world.beat_after(HEARTBEAT_GAP);
    assert_eq!(
        sent.attempts,
        [Report { attempt: id, status: Status::Ended(AttemptEnd::Killed("enough".into())) }]
    );
    // A preemption of an attempt that was reported already is ignored; one of an unknown attempt is
    // answered.
    assert_eq!(world.orders(0, vec![(4, Order::Preempt(id, PreemptKind::Kill, "late".into()))]), []);
    world.orders(sent.seq, vec![(5, Order::Preempt(attempt("job_9.m0.0"), PreemptKind::Kill, "who".into()))]);
    assert_eq!(reported(&world.beat_after(HEARTBEAT_GAP)), ["job_9.m0.0 killed"]);
}

#[test]
fn success_before_a_kill_counts() {
    let mut world = World::online();
    let id = attempt("job_1.m0.0");
    world.orders(
        0,
        vec![(1, launch("job_1.m0.0")), (2, Order::Preempt(id, PreemptKind::Kill, "enough".into()))],
    );
    world.on(Event::Ended(id, done()));
    assert_eq!(reported(&world.beat_after(HEARTBEAT_GAP)), ["job_1.m0.0 succeeded"]);
}

#[test]
fn attempts_do_not_exceed_the_slots() {
    let mut world = World::online();
    let ids = ["job_1.m0.0", "job_1.m1.0", "job_1.m2.0", "job_1.r0.0", "job_1.r1.0"];
    let orders = ids.iter().enumerate().map(|(at, id)| (at as u64 + 1, launch(id))).collect();
    let started = world.orders(0, orders);
    let ids: Vec<AttemptId> = started
        .iter()
        .map(|action| if let Action::Start(id, ..) = action { *id } else { panic!() })
        .collect();
    assert_eq!(ids, [attempt("job_1.m0.0"), attempt("job_1.m1.0"), attempt("job_1.r0.0")]);
    let sent = world.beat_after(HEARTBEAT_GAP);
    assert_eq!(reported(&sent)[3..], ["job_1.m2.0 killed", "job_1.r1.0 killed"]);
}

#[test]
fn map_events_reach_each_reduce_once_and_in_order() {
    let mut world = World::new();
    world.agent.slots.reduce = 2;
    world.on(Event::Connected);
    world.register();
    let map_events =
        |reduce: &str, first, maps: &[&str]| Action::MapEvents(attempt(reduce), some(first, maps, 0));
    world.orders(0, vec![(1, launch("job_1.r0.0"))]);
    let actions = world.orders(0, vec![(2, Order::MapEvents(JobId(1), some(0, &["a", "b"], 0)))]);
    assert_eq!(actions, [map_events("job_1.r0.0", 0, &["a", "b"])]);
    // A second reduce gets the earlier events.
    let actions = world.orders(0, vec![(3, launch("job_1.r1.0"))]);
    assert_eq!(actions[1..], [map_events("job_1.r1.0", 0, &["a", "b"])]);
    // An overlap, as after a registration, is skipped; events after a gap are ignored; other jobs
    // are not affected.
    let both = world.orders(0, vec![(4, Order::MapEvents(JobId(1), some(1, &["b", "c"], 0)))]);
    assert_eq!(both, [map_events("job_1.r0.0", 2, &["c"]), map_events("job_1.r1.0", 2, &["c"])]);
    assert_eq!(world.orders(0, vec![(5, Order::MapEvents(JobId(1), some(7, &["x"], 0)))]), []);
    assert_eq!(world.orders(0, vec![(6, Order::MapEvents(JobId(2), some(0, &["x"], 0)))]), []);
}

#[test]
fn a_job_is_cleaned_after_its_last_process() {
    let mut world = World::online();
    let id = attempt("job_1.m0.0");
    world.orders(0, vec![(1, launch("job_1.m0.0")), (2, launch("job_1.m1.0")), (3, launch("job_1.r0.0"))]);
    world.on(Event::Ended(attempt("job_1.m1.0"), done()));
    assert_eq!(world.agent.outputs.len(), 1);
    let kills = world.orders(0, vec![(4, Order::Clean(JobId(1)))]);
    assert_eq!(kills.len(), 2, "{kills:?}");
    assert_eq!(world.agent.outputs.len(), 0);
    // No attempt of the job is started any more.
    assert_eq!(world.orders(0, vec![(5, launch("job_1.m2.0"))]), []);
    assert_eq!(world.on(Event::Ended(id, done())), []);
    let last = world.on(Event::Ended(attempt("job_1.r0.0"), AttemptEnd::Killed("killed".into())));
    assert_eq!(last, [Action::Clean(JobId(1))]);
    assert_eq!(world.agent.outputs.len(), 0);
    assert_eq!(world.orders(0, vec![(6, Order::Clean(JobId(7)))]), [Action::Clean(JobId(7))]);
}

#[test]
fn refused_tracker_kills_its_attempts_and_exits() {
    let mut world = World::online();
    world.orders(0, vec![(1, launch("job_1.m0.0"))]);
    let end = world.on(Event::Refused("another has your name".into()));
    let words = "another has your name".to_string();
    assert_eq!(end, [Action::Kill(attempt("job_1.m0.0"), words.clone()), Action::Exit(words)]);
    assert_eq!(world.agent.next_deadline(), None);
}

#[test]
fn outputs_of_an_earlier_start_are_registered() {
    let (held, paused) = (attempt("job_1.m0.0"), attempt("job_9.r0.1"));
    let (outputs, jobs) = (BTreeSet::from([held]), BTreeSet::from([JobId(9)]));
    let checkpoint = (paused, "merge".to_string());
    let states = [checkpoint.clone()].into();
    let mut agent =
        Agent::new(PerPhase { map: 1, reduce: 1 }, outputs, states, jobs, Some(ISOLATION_TIMEOUT));
    let mut out = Vec::new();
    agent.handle(Time(0), Event::Connected, &mut out);
    let registered = Action::Register {
        incarnation: Incarnation(0),
        attempts: vec![],
        outputs: vec![held],
        checkpoints: vec![checkpoint],
        jobs: vec![JobId(1), JobId(9)],
    };
    assert_eq!(out, [registered]);
}

#[test]
fn unknown_order_is_acknowledged() {
    let mut world = World::online();
    assert_eq!(world.orders(0, vec![(1, Order::Unknown)]), []);
    assert_eq!(world.beat_after(INTERVAL).acked, 1);
}
