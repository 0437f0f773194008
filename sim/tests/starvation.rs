//! How soon a job with reduces *ends* in a flood of others, for every policy, with preempted slots and given again: a job that
//! is launched once and preempted forever would pass where only the first launch is looked at.
//!
//! Two nodes of two map slots and one reduce slot. Half as much again as they can do comes for ten minutes: jobs of eight
//! maps and two reduces every eight seconds, and after a minute one of one map and one reduce; or jobs of one map and one
//! reduce every two seconds, and one of twenty maps and four reduces. Maps and reduces take three seconds.

use fermata_sim::{
    Setup, Workload, World, experiment::makespan_s, profile::Profile, rng::Rng, workload::Outline,
};
use mrcore::{PerPhase, Span};
use std::fmt::Write as _;

/// Seconds within which the one job ends: a small one among larger ones, a large one among smaller ones (nothing for one that
/// may wait as long as they come), by the policy around which nothing or a wrapper is.
const BOUNDS: &[(&str, u64, Option<u64>)] = &[
    // Behind all that came earlier.
    ("fifo", 90, Some(120)),
    ("capacity", 90, Some(120)),
    // Its part of the slots, from the next one that comes free.
    ("fair", 30, Some(150)),
    ("coshh", 30, Some(150)),
    // Its reduces go first once they have waited for five times their own length, one after the other.
    ("fcs", 30, Some(300)),
    // Shortest first: a large one does not end while smaller ones come, also under pr, where it has a slot now and then.
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

/// Seconds from submission to end of the one job, or so far.
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
