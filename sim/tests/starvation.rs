//! Bounds on the completion of a job with reduces under a flood of other jobs, for every policy
//! with preemption. Completion is measured instead of the first launch, because a job could be
//! launched once and then be preempted forever.
//!
//! The cluster has two nodes with two map slots and one reduce slot each, and gets 1.5 times the
//! load that it can process for ten minutes. Either jobs of eight maps and two reduces arrive every
//! eight seconds, and after a minute a job with one map and one reduce. Or jobs of one map and one
//! reduce arrive every two seconds, and then a job with twenty maps and four reduces. Maps and
//! reduces take three seconds.

use fermata_sim::{
    Setup, Workload, World, experiment::makespan_s, profile::Profile, rng::Rng, workload::Outline,
};
use mrcore::{PerPhase, Span};
use std::fmt::Write as _;

/// Maximum seconds to completion, by policy: for a small job among larger ones, and for a large job
/// among smaller ones (`None` if it may wait as long as smaller jobs arrive). They hold for the
/// policy alone and for a wrapped one.
const BOUNDS: &[(&str, u64, Option<u64>)] = &[
    // After all earlier jobs.
    ("fifo", 90, Some(120)),
    ("capacity", 90, Some(120)),
    // Its share of the slots, from the next free one.
    ("fair", 30, Some(150)),
    ("coshh", 30, Some(150)),
    // Its reduces come first after they have waited for five times their own duration, one after
    // the other.
    ("fcs", 30, Some(300)),
    // Shortest first: a large job does not end while smaller ones arrive. Under pr it gets a slot
    // only now and then.
    ("hsrtf-pu", 30, None),
    ("hsrtf-pup", 30, None),
    ("hsrtf-pr", 30, None),
    ("hsrtf-prp", 30, None),
];

const THREE_SECONDS: Profile = Profile {
    map_mbps: 10.0,
    map_out: 0.1,
    reduce_mbps: 1.0,
    reduce_out: 1.0,
    merge_mbps: 1000.0,
    start_s: 0.0,
    spread: 0.0,
};

fn job(at_s: f64, who: &str, maps: u32, reduces: u32) -> Outline<'static> {
    let (name, group, user) = (who.to_owned(), who.to_owned(), who.to_owned());
    Outline { at_s, name, group, user, maps, block: 30_000_000, reduces, profile: &THREE_SECONDS }
}

/// Returns the seconds from submission to the end of the job, or to the end of the run.
fn takes(spec: &str, flood: (u32, u32, f64), one: (u32, u32)) -> (f64, bool) {
    let mut rng = Rng::new(1);
    let count = (600.0 / flood.2) as u32;
    let mut jobs: Vec<_> =
        (0..count).map(|number| job(f64::from(number) * flood.2, "flood", flood.0, flood.1)).collect();
    jobs.push(job(60.5, "one", one.0, one.1));
    let jobs = jobs.into_iter().map(|job| job.plan(&mut rng)).collect();
    let workload = Workload { name: "flood".into(), jobs }.sorted();
    let mut setup = Setup::even(2, PerPhase { map: 2, reduce: 1 }, spec);
    setup.costs.start = Span::millis(1);
    let outcome =
        World::new(setup, workload).expect("a policy").run(Some(Span::secs(600))).expect("no rule broken");
    let (_, one) = outcome.metrics.jobs().find(|(_, job)| job.group == "one").expect("it came");
    (makespan_s(one).expect("it has not failed"), one.ended.is_some())
}

#[test]
fn completion_time_is_within_the_stated_bound() {
    let mut wrong = String::new();
    for spec in schedulers::specs() {
        let inner = spec.trim_start_matches("chronos(").trim_end_matches(')');
        let stated = BOUNDS.iter().find(|(name, ..)| *name == inner);
        let (small, large) = stated.map_or((90, Some(150)), |(_, small, large)| (*small, *large));
        let elapsed = (takes(&spec, (8, 2, 8.0), (1, 1)), takes(&spec, (1, 1, 1.0), (20, 4)));
        println!("{spec}: a small job takes {:?}, a large one {:?}", elapsed.0, elapsed.1);
        let within = |(elapsed, ended): (f64, bool), bound: u64| ended && elapsed <= bound as f64;
        if !within(elapsed.0, small) || large.is_some_and(|large| !within(elapsed.1, large)) {
            let _ = writeln!(wrong, "{spec}: took {elapsed:?}, stated are {small} and {large:?}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
