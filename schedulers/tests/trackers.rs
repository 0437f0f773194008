//! Checks that the JobTracker assigns incarnations to trackers, and forgets trackers that stay
//! lost.

use fermata_schedulers::{Params, make};
use mrcore::{
    Config, Effect, Event, JobTracker, PerPhase, Span, Time,
    event::{Heartbeat, Registration, Reply},
    ids::{Incarnation, RequestId, TrackerId},
};

struct TestCluster {
    core: JobTracker,
    now: Time,
    requests: u128,
}

impl TestCluster {
    fn new() -> Self {
        let config = Config { forget_after: Span::secs(60), ..Config::default() };
        let core = JobTracker::new(config, make("fifo", &Params::new()).unwrap());
        let mut run = Self { core, now: Time(1_000_000), requests: 0 };
        run.send(Event::Start);
        run
    }

    fn send(&mut self, event: Event) -> Option<Reply> {
        let mut effects = Vec::new();
        self.core.handle(self.now, event, &mut effects);
        effects.into_iter().find_map(|effect| match effect {
            Effect::Reply { reply, .. } => Some(reply),
            _ => None,
        })
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    /// Registers a tracker. Returns the ID and incarnation that it gets; `None` if it is refused.
    fn register(&mut self, name: &str, claims: u64) -> Option<(TrackerId, u64)> {
        let request = self.request();
        let tracker = Registration {
            name: name.into(),
            incarnation: Incarnation(claims),
            host: name.into(),
            rack: "r".into(),
            shuffle_addr: "s:1".into(),
            logs_addr: "l:1".into(),
            slots: PerPhase { map: 1, reduce: 1 },
            attempts: Vec::new(),
            outputs: Vec::new(),
            checkpoints: Vec::new(),
            jobs: Vec::new(),
        };
        match self.send(Event::Registration { request, tracker }) {
            Some(Reply::Registered { tracker, incarnation, .. }) => Some((tracker, incarnation.0)),
            Some(Reply::Refused(_)) => None,
            other => panic!("{other:?}"),
        }
    }

    fn forget(&mut self, tracker: TrackerId) -> Reply {
        let request = self.request();
        self.send(Event::Forget { request, tracker, by: "ann".into() }).unwrap()
    }

    /// Advances the time by this many seconds, in which only this tracker sends heartbeats.
    fn pass_time(&mut self, seconds: u64, registered: (TrackerId, u64)) {
        for _ in 0..seconds {
            self.now = self.now + Span::secs(1);
            self.requests += 1;
            self.send(Event::Heartbeat(Heartbeat {
                tracker: registered.0,
                incarnation: Incarnation(registered.1),
                seq: self.requests as u64,
                acked: 0,
                attempts: Vec::new(),
                fetch_failures: Vec::new(),
            }));
            self.send(Event::Tick);
        }
    }

    fn knows_tracker(&self, name: &str) -> bool {
        self.core.cluster().tracker_named(name).is_some()
    }
}

#[test]
fn jobtracker_assigns_incarnations_and_any_process_may_reuse_a_name() {
    let mut run = TestCluster::new();
    let (id, first) = run.register("a", 0).unwrap();
    assert_eq!(first, 1);
    assert_eq!(run.register("a", 1), Some((id, 1)), "the same process registers again");
    assert_eq!(run.register("a", 0), Some((id, 2)), "a new process gets the next incarnation");
    assert_eq!(run.register("a", 1), None, "the old process has been replaced");
    // The process claims an incarnation that was never assigned, for example because the journal
    // was lost.
    assert_eq!(run.register("a", u64::MAX), Some((id, 3)));
    assert_eq!(run.register("a", 0), Some((id, 4)));
    assert_eq!(run.register("b", 7).map(|(_, incarnation)| incarnation), Some(1));
}

#[test]
fn lost_trackers_are_forgotten_on_request_or_after_a_time_and_their_ids_are_not_reused() {
    let mut run = TestCluster::new();
    let registered = run.register("a", 0).unwrap();
    let (lost, _) = run.register("b", 0).unwrap();
    assert!(matches!(run.forget(lost), Reply::Refused(why) if why.contains("not lost")));
    run.pass_time(15, registered);
    assert!(run.knows_tracker("b"), "the tracker is lost, but not forgotten");
    assert_eq!(run.forget(lost), Reply::Accepted);
    assert!(!run.knows_tracker("b"));
    assert!(matches!(run.forget(lost), Reply::Refused(_)));
    let (again, incarnation) = run.register("b", 1).unwrap();
    assert!(again > lost, "{again} is not {lost}");
    assert_eq!(incarnation, 1);
    run.pass_time(50, registered);
    assert!(run.knows_tracker("b"));
    run.pass_time(30, registered);
    assert!(!run.knows_tracker("b") && run.knows_tracker("a"));
    assert_eq!(run.core.cluster().trackers().count(), 1);
}
