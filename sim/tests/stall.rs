//! Checks that a run which has stalled ends and reports its unfinished jobs.

use fermata_sim::{
    Outcome, PerPhase, Setup, World,
    catalog::{self, Request},
    fault::{Fault, FaultKind},
};

fn run_with(change: impl Fn(&mut Setup)) -> Outcome {
    let request = Request { workload: "gridmix".into(), nodes: Some(3), jobs: Some(4), ..Request::default() };
    let case = catalog::open(&request).unwrap_or_else(|error| panic!("{error}"));
    let mut setup = case.setup;
    change(&mut setup);
    World::new(setup, (case.workload)(1)).expect("a policy").run(None).expect("no rule broken")
}

#[test]
fn run_with_jobs_that_cannot_end_is_stopped() {
    assert_eq!(run_with(|_| {}).unfinished, 0);
    let no_reduces = run_with(|setup| {
        setup.machines.iter_mut().for_each(|machine| machine.slots = PerPhase { map: 4, reduce: 0 });
    });
    assert!(no_reduces.unfinished > 0);
    let left = no_reduces.metrics.jobs().filter(|(_, job)| job.observed_until.is_some()).count();
    assert_eq!(left, no_reduces.unfinished, "unfinished jobs must be observed until the stall");
    let dead = run_with(|setup| {
        setup.faults =
            (0..3).map(|node| Fault { at_s: 5.0, for_s: None, what: FaultKind::Node { node } }).collect();
    });
    assert_eq!(dead.fault_times.len(), 3);
    assert!(dead.unfinished > 0);
}

/// A long outage that will end is not a stall: everything is down for two hours and then works
/// again.
#[test]
fn run_waits_for_the_end_of_faults() {
    let away = run_with(|setup| {
        let two_hours = |node| Fault { at_s: 5.0, for_s: Some(7200.0), what: FaultKind::Node { node } };
        setup.faults = (0..3).map(two_hours).collect();
    });
    assert_eq!(away.unfinished, 0);
}
