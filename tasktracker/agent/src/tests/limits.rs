//! Tests of message limits, unknown attempts, clean-up, isolation, copies and the number of maps.

use super::*;

/// Reconnects. Returns the jobs that the agent registers.
fn registered_jobs(world: &mut World) -> Vec<JobId> {
    world.handle(Event::Disconnected);
    let again = world.handle(Event::Connected);
    let [Action::Register { jobs, .. }] = &again[..] else { panic!("{again:?}") };
    let jobs = jobs.clone();
    world.accept_registration();
    jobs
}

#[test]
fn attempts_stopped_after_a_registration_are_reported_until_acknowledged() {
    let mut world = World::registered();
    let id = attempt("job_1.m0.0");
    world.handle_orders(0, vec![(1, launch("job_1.m0.0"))]);
    // The JobTracker has declared the tracker lost, and requests a registration.
    let again = world.handle(Event::RegisterAgain);
    let [Action::Register { attempts, .. }] = &again[..] else { panic!("{again:?}") };
    assert!(matches!(&attempts[..], [Report { status: Status::Running(_), .. }]));
    world.accept_registration();
    let kill = Order::Preempt(id, PreemptKind::Kill, "given up".into());
    assert_eq!(world.handle_orders(0, vec![(1, kill)]), [Action::Kill(id, "given up".into())]);
    // Until the process has ended, every heartbeat reports the attempt as running.
    assert_eq!(describe_reports(&world.heartbeat_after(DEFAULT_INTERVAL)), ["job_1.m0.0 running"]);
    world.handle(Event::Ended(id, AttemptEnd::Killed("killed".into())));
    world.handle_orders(2, vec![]);
    assert_eq!(describe_reports(&world.heartbeat_after(HEARTBEAT_GAP)), ["job_1.m0.0 killed"]);
    // The connection is closed before the heartbeat is answered, so the registration reports that
    // the attempt has ended.
    world.handle(Event::Disconnected);
    let again = world.handle(Event::Connected);
    let [Action::Register { attempts, .. }] = &again[..] else { panic!("{again:?}") };
    assert_eq!(state_name(&attempts[0].status), "killed");
    // An attempt that was preempted before the connection was closed is killed once, and reported.
    world.accept_registration();
    world.handle_orders(
        0,
        vec![
            (1, launch("job_1.m1.0")),
            (2, Order::Preempt(attempt("job_1.m1.0"), PreemptKind::Kill, "why".into())),
        ],
    );
    world.handle(Event::RegisterAgain);
    world.accept_registration();
    assert_eq!(
        world.handle_orders(
            0,
            vec![(1, Order::Preempt(attempt("job_1.m1.0"), PreemptKind::Kill, "void".into()))]
        ),
        []
    );
    world.handle(Event::Ended(attempt("job_1.m1.0"), AttemptEnd::Failed("signal 9".into())));
    assert_eq!(describe_reports(&world.heartbeat_after(HEARTBEAT_GAP)), ["job_1.m1.0 killed"]);
}

#[test]
fn reports_that_do_not_fit_into_one_message_are_sent_in_the_next() {
    let mut world = World::new();
    world.agent.slots.map = 2;
    world.handle(Event::Connected);
    world.accept_registration();
    let large = || AttemptEnd::Succeeded { result: 3 << 20, output: false };
    let mut number = 0;
    for index in 0..4 {
        let text = format!("job_1.m{index}.0");
        number += 1;
        world.handle_orders(0, vec![(number, launch(&text))]);
        world.handle(Event::Ended(attempt(&text), large()));
    }
    let first = world.heartbeat_after(HEARTBEAT_GAP);
    let running = ["job_1.m1.0 running", "job_1.m2.0 running", "job_1.m3.0 running"];
    assert_eq!(describe_reports(&first), [&running[..], &["job_1.m0.0 succeeded"]].concat());
    // The other ended attempts are reported one per heartbeat, and as running until then.
    world.handle_orders(first.seq, vec![]);
    let second = world.heartbeat_after(HEARTBEAT_GAP);
    assert_eq!(describe_reports(&second)[2], "job_1.m1.0 succeeded");
    // A registration also contains at most one report of an ended attempt.
    world.handle(Event::Disconnected);
    let again = world.handle(Event::Connected);
    let [Action::Register { attempts, .. }] = &again[..] else { panic!("{again:?}") };
    let states: Vec<&str> = attempts.iter().map(|report| state_name(&report.status)).collect();
    assert_eq!(states, ["running", "running", "succeeded"]);
    let first = world.handle(registered());
    let [Action::Heartbeat(first)] = &first[..] else { panic!("{first:?}") };
    assert_eq!(describe_reports(first), ["job_1.m3.0 running", "job_1.m2.0 succeeded"]);
}

#[test]
fn long_status_texts_are_omitted_if_the_message_would_be_too_long() {
    let mut world = World::new();
    world.agent.slots.map = 10_000;
    world.handle(Event::Connected);
    world.accept_registration();
    let count = 4000;
    let orders = (0..count).map(|at| (at + 1, launch(&format!("job_1.m{at}.0")))).collect();
    world.handle_orders(0, orders);
    for at in 0..count {
        let progress = Progress { text: "s".repeat(1024), ..Progress::default() };
        world.handle(Event::Progressed(attempt(&format!("job_1.m{at}.0")), progress));
    }
    let sent = world.heartbeat_after(DEFAULT_INTERVAL);
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
    let mut world = World::registered();
    world.handle_orders(0, vec![(1, launch("job_1.r0.0"))]);
    for _ in 0..1000 {
        world.handle(Event::FetchFailed(fetch_failure("job_1.r0.0", "job_1.m1.0", "node2:7000")));
        world.handle(Event::FetchFailed(fetch_failure("job_1.r0.0", "job_1.m1.0", "node2:7001")));
    }
    let reported = world.heartbeat_after(HEARTBEAT_GAP).fetch_failures.clone();
    let addrs: Vec<&str> = reported.iter().map(|failure| failure.addr.as_str()).collect();
    assert_eq!(addrs, ["node2:7000", "node2:7001"]);
}

#[test]
fn job_is_registered_until_its_files_are_deleted() {
    let mut world = World::registered();
    world.handle_orders(
        0,
        vec![(1, launch("job_1.m0.0")), (2, Order::MapEvents(JobId(2), map_event_batch(0, &["a"], 1)))],
    );
    assert_eq!(registered_jobs(&mut world), [JobId(1), JobId(2)]);
    world.handle_orders(0, vec![(1, Order::Clean(JobId(1))), (2, Order::Clean(JobId(2)))]);
    // The files are not deleted yet, so the jobs are still registered: the order would be lost if
    // the tracker restarted.
    assert_eq!(registered_jobs(&mut world), [JobId(1), JobId(2)]);
    world.handle(Event::Cleaned(JobId(2), true));
    let actions = world.handle(Event::Ended(attempt("job_1.m0.0"), AttemptEnd::Killed("killed".into())));
    assert!(actions.contains(&Action::Clean(JobId(1))), "{actions:?}");
    assert_eq!(registered_jobs(&mut world), [JobId(1)]);
    // If files could not be deleted, the deletion is repeated a minute later, or at once if the
    // JobTracker orders it again.
    world.handle(Event::Cleaned(JobId(1), false));
    assert_eq!(registered_jobs(&mut world), [JobId(1)]);
    assert!(world.tick_after(CLEAN_RETRY_DELAY).contains(&Action::Clean(JobId(1))));
    world.handle(Event::Cleaned(JobId(1), false));
    assert_eq!(world.handle_orders(0, vec![(1, Order::Clean(JobId(1)))]), [Action::Clean(JobId(1))]);
    // Map events of a job that is being deleted are ignored.
    world.handle_orders(0, vec![(2, Order::MapEvents(JobId(1), map_event_batch(0, &["a"], 1)))]);
    world.handle(Event::Cleaned(JobId(1), true));
    assert_eq!(registered_jobs(&mut world), []);
    assert!(world.agent.map_event_lists.is_empty() && world.agent.cleaning.is_empty());
}

#[test]
fn changed_number_of_maps_is_sent_to_reduces_without_new_events() {
    let mut world = World::registered();
    let reduce = attempt("job_1.r0.0");
    world.handle_orders(0, vec![(1, launch("job_1.r0.0"))]);
    let actions =
        world.handle_orders(0, vec![(2, Order::MapEvents(JobId(1), map_event_batch(0, &["a"], 5)))]);
    assert_eq!(actions, [Action::MapEvents(reduce, map_event_batch(0, &["a"], 5))]);
    let actions = world.handle_orders(0, vec![(3, Order::MapEvents(JobId(1), map_event_batch(1, &[], 6)))]);
    assert_eq!(actions, [Action::MapEvents(reduce, map_event_batch(1, &[], 6))]);
    // A reduce that is launched later gets the newest number of maps.
    world.handle(Event::Ended(reduce, AttemptEnd::Failed("boom".into())));
    let actions = world.handle_orders(0, vec![(4, launch("job_1.r0.1"))]);
    assert_eq!(actions[1], Action::MapEvents(attempt("job_1.r0.1"), map_event_batch(0, &["a"], 6)));
}

/// Returns how long a tracker that gets no answers waits until it stops its running map.
fn time_until_stopped(timeout: Option<Span>, lost_after: Span) -> Span {
    let mut world = World::new();
    let slots = PerPhase { map: 1, reduce: 1 };
    world.agent = Agent::new(slots, BTreeSet::new(), BTreeMap::new(), BTreeSet::new(), timeout);
    world.handle(Event::Connected);
    world.handle(Event::Registered { heartbeat: DEFAULT_INTERVAL, lost_after, incarnation: Incarnation(1) });
    world.handle_orders(1, vec![(1, launch("job_1.m0.0"))]);
    let began = world.now;
    let step = Span::millis(100);
    for _ in 0..100_000 {
        if world.tick_after(step).iter().any(|action| matches!(action, Action::Kill(..))) {
            return world.now.since(began);
        }
    }
    panic!("the map is never stopped");
}

#[test]
fn isolated_tracker_stops_its_tasks_before_it_is_lost() {
    let secs = Span::secs;
    let stopped = time_until_stopped(None, secs(10));
    assert!(secs(8) <= stopped && stopped < secs(10), "{stopped:?}");
    assert_eq!(time_until_stopped(Some(secs(3)), secs(10)), secs(3), "a shorter configured timeout applies");
    let stopped = time_until_stopped(Some(secs(600)), secs(10));
    assert!(stopped < secs(10), "the tasks were stopped too late: {stopped:?}");
}

#[test]
fn isolation_time_counts_from_when_the_last_answered_message_was_sent() {
    let mut world = World::registered();
    world.handle_orders(0, vec![(1, launch("job_1.m0.0"))]);
    let sent = world.now + DEFAULT_INTERVAL;
    let heartbeat = world.heartbeat_after(DEFAULT_INTERVAL);
    // The answer is late. The time counts from the heartbeat, because the JobTracker may have
    // received it at once.
    world.now = world.now + Span(DEFAULT_INTERVAL.0 / 2);
    world.handle_orders(heartbeat.seq, vec![]);
    world.handle(Event::Disconnected);
    assert_eq!(world.agent.next_deadline(), Some(sent + ISOLATION_TIMEOUT));
    // Orders that answer no heartbeat do not postpone the deadline, because they do not show that
    // the JobTracker has received anything.
    world.handle(Event::Connected);
    world.accept_registration();
    let last_answered = world.now;
    world.now = world.now + Span(DEFAULT_INTERVAL.0 / 4);
    world.handle_orders(0, vec![(1, launch("job_1.m1.0"))]);
    world.handle(Event::Disconnected);
    assert_eq!(world.agent.next_deadline(), Some(last_answered + ISOLATION_TIMEOUT));
}

#[test]
fn next_registration_contains_the_incarnation_that_the_jobtracker_assigned() {
    let mut world = World::new();
    let first = world.handle(Event::Connected);
    assert!(matches!(&first[..], [Action::Register { incarnation: Incarnation(0), .. }]), "{first:?}");
    world.handle(Event::Registered {
        heartbeat: DEFAULT_INTERVAL,
        lost_after: LOST_AFTER,
        incarnation: Incarnation(7),
    });
    let again = world.handle(Event::RegisterAgain);
    assert!(matches!(&again[..], [Action::Register { incarnation: Incarnation(7), .. }]), "{again:?}");
}

#[test]
fn isolated_tracker_stops_and_reports_its_tasks() {
    let mut world = World::registered();
    let id = attempt("job_1.m0.0");
    world.handle_orders(0, vec![(1, launch("job_1.m0.0"))]);
    world.handle(Event::Disconnected);
    assert_eq!(world.agent.next_deadline(), Some(world.now + ISOLATION_TIMEOUT));
    assert_eq!(world.tick_after(Span(ISOLATION_TIMEOUT.0 - HEARTBEAT_GAP.0)), []);
    let why = "isolated from the JobTracker for 600.0 s".to_string();
    assert_eq!(world.tick_after(HEARTBEAT_GAP), [Action::Kill(id, why.clone())]);
    assert_eq!(world.tick_after(ISOLATION_TIMEOUT), []);
    assert_eq!(world.agent.next_deadline(), None);
    world.handle(Event::Ended(id, AttemptEnd::Failed("signal 9".into())));
    let again = world.handle(Event::Connected);
    let [Action::Register { attempts, .. }] = &again[..] else { panic!("{again:?}") };
    assert_eq!(attempts[..], [Report { attempt: id, status: Status::Ended(AttemptEnd::Killed(why)) }]);
    // After a new registration the tracker works as before.
    world.accept_registration();
    world.handle_orders(0, vec![(1, launch("job_1.m1.0"))]);
    assert!(
        !world
            .tick_after(Span(ISOLATION_TIMEOUT.0 - HEARTBEAT_GAP.0))
            .iter()
            .any(|action| matches!(action, Action::Kill(..)))
    );
}

#[test]
fn checkpoint_is_registered_until_dropped() {
    let mut world = World::registered();
    world.handle_orders(0, vec![(1, launch("job_1.r0.0"))]);
    let actions = world.handle_orders(
        0,
        vec![(2, Order::Preempt(attempt("job_1.r0.0"), PreemptKind::Pause, "a slot".into()))],
    );
    assert_eq!(actions, [Action::Preempt(attempt("job_1.r0.0"), PreemptKind::Pause, "a slot".into())]);
    let state = "merge".to_string();
    world.handle(Event::Ended(attempt("job_1.r0.0"), AttemptEnd::Paused(state.clone())));
    assert_eq!(describe_reports(&world.heartbeat_after(HEARTBEAT_GAP)), ["job_1.r0.0 paused"]);
    let registered_checkpoints = |world: &mut World| {
        let again = world.handle(Event::RegisterAgain);
        let [Action::Register { checkpoints, .. }] = &again[..] else { panic!("{again:?}") };
        let checkpoints = checkpoints.clone();
        world.accept_registration();
        checkpoints
    };
    assert_eq!(registered_checkpoints(&mut world), [(attempt("job_1.r0.0"), state)]);
    let dropped = world.handle_orders(0, vec![(1, Order::DropCheckpoint(attempt("job_1.r0.0")))]);
    assert_eq!(dropped, [Action::DropCheckpoint(attempt("job_1.r0.0"))]);
    assert_eq!(registered_checkpoints(&mut world), []);
}

#[test]
fn copied_files_are_kept_and_reported_until_acknowledged() {
    let mut world = World::registered();
    let (output, state) = (attempt("job_1.m0.0"), attempt("job_1.r0.0"));
    let source = "other:1".to_string();
    let orders =
        vec![(1, Order::CopyFiles(output, source.clone())), (2, Order::CopyFiles(state, source.clone()))];
    let copies = [Action::CopyFiles(output, source.clone()), Action::CopyFiles(state, source.clone())];
    assert_eq!(world.handle_orders(0, orders), copies);
    assert_eq!(
        world.handle_orders(0, vec![(3, Order::CopyFiles(output, source.clone()))]),
        [],
        "the copy is in progress"
    );
    world.handle(Event::Copied(output, Ok(Copied { bytes: 7, checkpoint: None })));
    world.handle(Event::Copied(state, Err("gone".into())));
    let first = world.heartbeat_after(HEARTBEAT_GAP);
    assert_eq!(describe_reports(&first), ["job_1.m0.0 copied", "job_1.r0.0 not copied"]);
    // The heartbeat is not answered, so the next registration repeats the reports and contains the
    // copied output.
    world.handle(Event::Disconnected);
    let again = world.handle(Event::Connected);
    let [Action::Register { attempts, outputs, checkpoints, jobs, .. }] = &again[..] else {
        panic!("{again:?}")
    };
    assert_eq!(attempts.len(), 2);
    assert_eq!((&outputs[..], &checkpoints[..], &jobs[..]), (&[output][..], &[][..], &[JobId(1)][..]));
    world.accept_registration();
    // The files of a job are not deleted while a copy is in progress.
    world.handle_orders(0, vec![(1, Order::CopyFiles(state, source.clone()))]);
    let actions = world.handle_orders(0, vec![(2, Order::Clean(JobId(1)))]);
    assert_eq!(actions, [Action::Kill(state, "its job has ended".into())]);
    assert_eq!(
        world.handle(Event::Copied(state, Ok(Copied { bytes: 0, checkpoint: Some(String::new()) }))),
        [Action::Clean(JobId(1))]
    );
    world.handle_orders(0, vec![(3, Order::CopyFiles(output, source))]);
    assert_eq!(
        describe_reports(&world.heartbeat_after(HEARTBEAT_GAP)),
        ["job_1.r0.0 copied", "job_1.m0.0 not copied"]
    );
}
