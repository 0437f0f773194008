//! Limits of messages, unknown attempts, clean-up, isolation, and the number of maps.

use super::*;

fn jobs(world: &mut World) -> Vec<JobId> {
    world.on(Event::Disconnected);
    let again = world.on(Event::Connected);
    let [Action::Register { jobs, .. }] = &again[..] else { panic!("{again:?}") };
    let jobs = jobs.clone();
    world.register();
    jobs
}

#[test]
fn unknown_attempts_are_stopped_and_reported_until_acknowledged() {
    let mut world = World::online();
    let id = attempt("job_1.m0.0");
    world.orders(0, vec![(1, launch("job_1.m0.0"))]);
    // The JobTracker had declared the tracker lost in the meantime.
    let again = world.on(Event::RegisterAgain);
    let [Action::Register { attempts, .. }] = &again[..] else { panic!("{again:?}") };
    assert!(matches!(&attempts[..], [Report { status: Status::Running(_), .. }]));
    world.register();
    let stop = Order::Preempt(id, PreemptKind::Kill, "given up".into());
    assert_eq!(world.orders(0, vec![(1, stop)]), [Action::Kill(id, "given up".into())]);
    // Until its process has ended it is reported as running, in every heartbeat.
    assert_eq!(reported(&world.beat_after(INTERVAL)), ["job_1.m0.0 running"]);
    world.on(Event::Ended(id, AttemptEnd::Killed("killed".into())));
    world.orders(2, vec![]);
    assert_eq!(reported(&world.beat_after(HEARTBEAT_GAP)), ["job_1.m0.0 killed"]);
    // The connection is closed without an answer: the end is part of the registration.
    world.on(Event::Disconnected);
    let again = world.on(Event::Connected);
    let [Action::Register { attempts, .. }] = &again[..] else { panic!("{again:?}") };
    assert_eq!(state_name(&attempts[0].status), "killed");
    // An attempt that was preempted before the connection was closed is killed once, and reported.
    world.register();
    world.orders(
        0,
        vec![
            (1, launch("job_1.m1.0")),
            (2, Order::Preempt(attempt("job_1.m1.0"), PreemptKind::Kill, "why".into())),
        ],
    );
    world.on(Event::RegisterAgain);
    world.register();
    assert_eq!(
        world.orders(0, vec![(1, Order::Preempt(attempt("job_1.m1.0"), PreemptKind::Kill, "void".into()))]),
        []
    );
    world.on(Event::Ended(attempt("job_1.m1.0"), AttemptEnd::Failed("signal 9".into())));
    assert_eq!(reported(&world.beat_after(HEARTBEAT_GAP)), ["job_1.m1.0 killed"]);
}

#[test]
fn no_message_is_longer_than_the_jobtracker_reads() {
    let mut world = World::new();
    world.agent.slots.map = 2;
    world.on(Event::Connected);
    world.register();
    let large = || AttemptEnd::Succeeded { result: 3 << 20, output: false };
    let mut number = 0;
    for index in 0..4 {
        let text = format!("job_1.m{index}.0");
        number += 1;
        world.orders(0, vec![(number, launch(&text))]);
        world.on(Event::Ended(attempt(&text), large()));
    }
    let first = world.beat_after(HEARTBEAT_GAP);
    let running = ["job_1.m1.0 running", "job_1.m2.0 running", "job_1.m3.0 running"];
    assert_eq!(reported(&first), [&running[..], &["job_1.m0.0 succeeded"]].concat());
    // The other ends follow one by one; until then their attempts are reported as running.
    world.orders(first.seq, vec![]);
    let second = world.beat_after(HEARTBEAT_GAP);
    assert_eq!(reported(&second)[2], "job_1.m1.0 succeeded");
    // A registration has one end too.
    world.on(Event::Disconnected);
    let again = world.on(Event::Connected);
    let [Action::Register { attempts, .. }] = &again[..] else { panic!("{again:?}") };
    let words: Vec<&str> = attempts.iter().map(|report| state_name(&report.status)).collect();
    assert_eq!(words, ["running", "running", "succeeded"]);
    let first = world.on(registered());
    let [Action::Heartbeat(first)] = &first[..] else { panic!("{first:?}") };
    assert_eq!(reported(first), ["job_1.m3.0 running", "job_1.m2.0 succeeded"]);
}

#[test]
fn long_status_texts_are_omitted_if_the_message_would_be_too_long() {
    let mut world = World::new();
    world.agent.slots.map = 10_000;
    world.on(Event::Connected);
    world.register();
    let count = 4000;
    let orders = (0..count).map(|at| (at + 1, launch(&format!("job_1.m{at}.0")))).collect();
    world.orders(0, orders);
    for at in 0..count {
        let progress = Progress { text: "s".repeat(1024), ..Progress::default() };
        world.on(Event::Progressed(attempt(&format!("job_1.m{at}.0")), progress));
    }
    let sent = world.beat_after(INTERVAL);
    assert_eq!(sent.attempts.len(), count as usize);
    let status = |report: &Report| match &report.status {
        Status::Running(progress) => progress.text.len(),
        Status::Ended(_) | Status::Copied(_) => 0,
    };
    let bytes: usize = sent.attempts.iter().map(status).sum();
    assert!((1 << 20..4 << 20).contains(&bytes), "{bytes}");
}

#[test]
fn repeated_fetch_failures_are_reported_once_per_address() {
    let mut world = World::online();
    world.orders(0, vec![(1, launch("job_1.r0.0"))]);
    for _ in 0..1000 {
        world.on(Event::FetchFailed(unfetched("job_1.r0.0", "job_1.m1.0", "node2:7000")));
        world.on(Event::FetchFailed(unfetched("job_1.r0.0", "job_1.m1.0", "node2:7001")));
    }
    let reported = world.beat_after(HEARTBEAT_GAP).fetch_failures.clone();
    let addrs: Vec<&str> = reported.iter().map(|failure| failure.addr.as_str()).collect();
    assert_eq!(addrs, ["node2:7000", "node2:7001"]);
}

#[test]
fn every_job_with_leftovers_is_registered() {
    let mut world = World::online();
    world.orders(0, vec![(1, launch("job_1.m0.0")), (2, Order::MapEvents(JobId(2), some(0, &["a"], 1)))]);
    assert_eq!(jobs(&mut world), [JobId(1), JobId(2)]);
    world.orders(0, vec![(1, Order::Clean(JobId(1))), (2, Order::Clean(JobId(2)))]);
    // Not deleted yet: the order could be lost with this start.
    assert_eq!(jobs(&mut world), [JobId(1), JobId(2)]);
    world.on(Event::Cleaned(JobId(2), true));
    let gone = world.on(Event::Ended(attempt("job_1.m0.0"), AttemptEnd::Killed("killed".into())));
    assert!(gone.contains(&Action::Clean(JobId(1))), "{gone:?}");
    assert_eq!(jobs(&mut world), [JobId(1)]);
    // Files that could not be deleted are tried again a minute later, and at once when it is
    // ordered again.
    world.on(Event::Cleaned(JobId(1), false));
    assert_eq!(jobs(&mut world), [JobId(1)]);
    assert!(world.after(CLEAN_RETRY_DELAY).contains(&Action::Clean(JobId(1))));
    world.on(Event::Cleaned(JobId(1), false));
    assert_eq!(world.orders(0, vec![(1, Order::Clean(JobId(1)))]), [Action::Clean(JobId(1))]);
    // Map events of a job that is being deleted are ignored.
    world.orders(0, vec![(2, Order::MapEvents(JobId(1), some(0, &["a"], 1)))]);
    world.on(Event::Cleaned(JobId(1), true));
    assert_eq!(jobs(&mut world), []);
    assert!(world.agent.map_event_lists.is_empty() && world.agent.cleaning.is_empty());
}

#[test]
fn map_count_change_alone_is_forwarded() {
    let mut world = World::online();
    let reduce = attempt("job_1.r0.0");
    world.orders(0, vec![(1, launch("job_1.r0.0"))]);
    let actions = world.orders(0, vec![(2, Order::MapEvents(JobId(1), some(0, &["a"], 5)))]);
    assert_eq!(actions, [Action::MapEvents(reduce, some(0, &["a"], 5))]);
    let actions = world.orders(0, vec![(3, Order::MapEvents(JobId(1), some(1, &[], 6)))]);
    assert_eq!(actions, [Action::MapEvents(reduce, some(1, &[], 6))]);
    // A reduce that is launched later gets the newest number.
    world.on(Event::Ended(reduce, AttemptEnd::Failed("boom".into())));
    let actions = world.orders(0, vec![(4, launch("job_1.r0.1"))]);
    assert_eq!(actions[1], Action::MapEvents(attempt("job_1.r0.1"), some(0, &["a"], 6)));
}

/// Returns how long a tracker without answers waits until it stops its running map.
fn isolated(timeout: Option<Span>, lost_after: Span) -> Span {
    let mut world = World::new();
    let slots = PerPhase { map: 1, reduce: 1 };
    world.agent = Agent::new(slots, BTreeSet::new(), BTreeMap::new(), BTreeSet::new(), timeout);
    world.on(Event::Connected);
    world.on(Event::Registered { heartbeat: INTERVAL, lost_after, incarnation: Incarnation(1) });
    world.orders(1, vec![(1, launch("job_1.m0.0"))]);
    let began = world.now;
    let step = Span::millis(100);
    for _ in 0..100_000 {
        if world.after(step).iter().any(|action| matches!(action, Action::Kill(..))) {
            return world.now.since(began);
        }
    }
    panic!("the map is never stopped");
}

#[test]
fn isolated_tracker_stops_its_tasks_before_it_is_lost() {
    let secs = Span::secs;
    let lost = isolated(None, secs(10));
    assert!(secs(8) <= lost && lost < secs(10), "{lost:?}");
    assert_eq!(isolated(Some(secs(3)), secs(10)), secs(3), "sooner if configured");
    let lost = isolated(Some(secs(600)), secs(10));
    assert!(lost < secs(10), "never later: {lost:?}");
}

#[test]
fn time_without_an_answer_counts_from_when_the_message_was_sent() {
    let mut world = World::online();
    world.orders(0, vec![(1, launch("job_1.m0.0"))]);
    let sent = world.now + INTERVAL;
    let heartbeat = world.beat_after(INTERVAL);
    // The answer is late; the JobTracker may have received the message at the start of that time.
    world.now = world.now + Span(INTERVAL.0 / 2);
    world.orders(heartbeat.seq, vec![]);
    world.on(Event::Disconnected);
    assert_eq!(world.agent.next_deadline(), Some(sent + ISOLATION_TIMEOUT));
    // Orders that answer no heartbeat do not show what the JobTracker has received.
    world.on(Event::Connected);
    world.register();
    let last_answered = world.now;
    world.now = world.now + Span(INTERVAL.0 / 4);
    world.orders(0, vec![(1, launch("job_1.m1.0"))]);
    world.on(Event::Disconnected);
    assert_eq!(world.agent.next_deadline(), Some(last_answered + ISOLATION_TIMEOUT));
}

#[test]
fn the_incarnation_that_the_jobtracker_gave_is_registered_again() {
    let mut world = World::new();
    let first = world.on(Event::Connected);
    assert!(matches!(&first[..], [Action::Register { incarnation: Incarnation(0), .. }]), "{first:?}");
    world.on(Event::Registered { heartbeat: INTERVAL, lost_after: LOST_AFTER, incarnation: Incarnation(7) });
    let again = world.on(Event::RegisterAgain);
    assert!(matches!(&again[..], [Action::Register { incarnation: Incarnation(7), .. }]), "{again:?}");
}

#[test]
fn isolated_tracker_stops_and_reports_its_tasks() {
    let mut world = World::online();
    let id = attempt("job_1.m0.0");
    world.orders(0, vec![(1, launch("job_1.m0.0"))]);
    world.on(Event::Disconnected);
    assert_eq!(world.agent.next_deadline(), Some(world.now + ISOLATION_TIMEOUT));
    assert_eq!(world.after(Span(ISOLATION_TIMEOUT.0 - HEARTBEAT_GAP.0)), []);
    let why = "isolated from the jobtracker for 600.0 s".to_string();
    assert_eq!(world.after(HEARTBEAT_GAP), [Action::Kill(id, why.clone())]);
    assert_eq!(world.after(ISOLATION_TIMEOUT), []);
    assert_eq!(world.agent.next_deadline(), None);
    world.on(Event::Ended(id, AttemptEnd::Failed("signal 9".into())));
    let again = world.on(Event::Connected);
    let [Action::Register { attempts, .. }] = &again[..] else { panic!("{again:?}") };
    assert_eq!(attempts[..], [Report { attempt: id, status: Status::Ended(AttemptEnd::Killed(why)) }]);
    // After a new registration the tracker works as before.
    world.register();
    world.orders(0, vec![(1, launch("job_1.m1.0"))]);
    assert!(
        !world
            .after(Span(ISOLATION_TIMEOUT.0 - HEARTBEAT_GAP.0))
            .iter()
            .any(|action| matches!(action, Action::Kill(..)))
    );
}

#[test]
fn checkpoint_is_registered_until_dropped() {
    let mut world = World::online();
    world.orders(0, vec![(1, launch("job_1.r0.0"))]);
    let request_sent_at = world
        .orders(0, vec![(2, Order::Preempt(attempt("job_1.r0.0"), PreemptKind::Pause, "a slot".into()))]);
    assert_eq!(
        request_sent_at,
        [Action::Preempt(attempt("job_1.r0.0"), PreemptKind::Pause, "a slot".into())]
    );
    let state = "merge".to_string();
    world.on(Event::Ended(attempt("job_1.r0.0"), AttemptEnd::Paused(state.clone())));
    assert_eq!(reported(&world.beat_after(HEARTBEAT_GAP)), ["job_1.r0.0 paused"]);
    let registered_checkpoints = |world: &mut World| {
        let again = world.on(Event::RegisterAgain);
        let [Action::Register { checkpoints, .. }] = &again[..] else { panic!("{again:?}") };
        let checkpoints = checkpoints.clone();
        world.register();
        checkpoints
    };
    assert_eq!(registered_checkpoints(&mut world), [(attempt("job_1.r0.0"), state)]);
    let dropped = world.orders(0, vec![(1, Order::DropCheckpoint(attempt("job_1.r0.0")))]);
    assert_eq!(dropped, [Action::DropCheckpoint(attempt("job_1.r0.0"))]);
    assert_eq!(registered_checkpoints(&mut world), []);
}

#[test]
fn copied_files_are_kept_and_reported_until_acknowledged() {
    let mut world = World::online();
    let (output, state) = (attempt("job_1.m0.0"), attempt("job_1.r0.0"));
    let source = "other:1".to_string();
    let orders =
        vec![(1, Order::CopyFiles(output, source.clone())), (2, Order::CopyFiles(state, source.clone()))];
    let copies = [Action::CopyFiles(output, source.clone()), Action::CopyFiles(state, source.clone())];
    assert_eq!(world.orders(0, orders), copies);
    assert_eq!(
        world.orders(0, vec![(3, Order::CopyFiles(output, source.clone()))]),
        [],
        "the copy is in progress"
    );
    world.on(Event::Copied(output, Ok(Copied { bytes: 7, checkpoint: None })));
    world.on(Event::Copied(state, Err("gone".into())));
    let first = world.beat_after(HEARTBEAT_GAP);
    assert_eq!(reported(&first), ["job_1.m0.0 copied", "job_1.r0.0 not copied"]);
    // Not answered: reported again with the next registration, which contains the copies.
    world.on(Event::Disconnected);
    let again = world.on(Event::Connected);
    let [Action::Register { attempts, outputs, checkpoints, jobs, .. }] = &again[..] else {
        panic!("{again:?}")
    };
    assert_eq!(attempts.len(), 2);
    assert_eq!((&outputs[..], &checkpoints[..], &jobs[..]), (&[output][..], &[][..], &[JobId(1)][..]));
    world.register();
    // The files of a job are not deleted while a copy is in progress.
    world.orders(0, vec![(1, Order::CopyFiles(state, source.clone()))]);
    let over = world.orders(0, vec![(2, Order::Clean(JobId(1)))]);
    assert_eq!(over, [Action::Kill(state, "its job has ended".into())]);
    assert_eq!(
        world.on(Event::Copied(state, Ok(Copied { bytes: 0, checkpoint: Some(String::new()) }))),
        [Action::Clean(JobId(1))]
    );
    world.orders(0, vec![(3, Order::CopyFiles(output, source))]);
    assert_eq!(reported(&world.beat_after(HEARTBEAT_GAP)), ["job_1.r0.0 copied", "job_1.m0.0 not copied"]);
}
