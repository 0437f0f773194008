//! Bounds on the completion of a job with reduces under a flood of other jobs, for every policy
//! with preemption. Completion is measured instead of the first launch, because a job could be
//! launched once and then be preempted forever.
//!
//! The cluster has two nodes with two map slots and one reduce slot each. For ten minutes it gets
//! 1.5 times the work that its reduce slots can process. In the first case jobs with eight maps and
//! two reduces arrive every eight seconds, and after a minute one job with one map and one reduce.
//! In the second case jobs with one map and one reduce arrive every second, and after a minute one
//! job with twenty maps and four reduces. A map takes three seconds. A reduce takes three seconds
//! for each map of its job, divided by the number of reduces.

use fermata_sim::{
    Setup, Workload, World,
    experiment::makespan_s,
    fault::{Fault, FaultKind},
    profile::Profile,
    rng::Rng,
    workload::Outline,
};
use mrcore::{PerPhase, Span};
use std::fmt::Write as _;

/// Maximum seconds to completion, by policy: for a small job among larger ones, and for a large job
/// among smaller ones (`None` if the job may wait as long as other jobs arrive). The bounds
/// hold for the policy alone and wrapped in Chronos.
const BOUNDS: &[(&str, Option<u64>, Option<u64>)] = &[
    // The job runs after all earlier jobs.
    ("fifo", Some(90), Some(120)),
    ("capacity", Some(90), Some(120)),
    // The job gets its share of the slots, starting with the next free slot.
    ("fair", Some(30), Some(150)),
    ("coshh", Some(30), Some(150)),
    // After five times its own duration, a reduce of the job shares 30 % of the slots with others.
    ("fcs", Some(30), Some(300)),
    // Once the job takes longer than under fair sharing, it shares 30 % of the slots with such
    // jobs.
    ("coda", Some(30), Some(300)),
    // Jobs that have used little slot time run first, so a large job does not end while small jobs
    // arrive.
    ("las", Some(30), None),
    // Short jobs run first, so a large job does not end while smaller jobs arrive. Under pr it
    // sometimes gets a slot.
    ("hsrtf-pu", Some(30), None),
    ("hsrtf-pup", Some(30), None),
    ("hsrtf-pr", Some(30), None),
    ("hsrtf-prp", Some(30), None),
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

/// Runs `coda` on two nodes until all jobs have ended. The first node has this speed. Returns the
/// completion of each job with its group, by job ID.
fn completions_under_coda(jobs: Vec<Outline<'_>>, speed: f64) -> Vec<(String, f64)> {
    let mut rng = Rng::new(1);
    let jobs = jobs.into_iter().map(|job| job.plan(&mut rng)).collect();
    let workload = Workload { name: "jobs".into(), jobs }.sorted();
    let mut setup = Setup::even(2, PerPhase { map: 2, reduce: 1 }, "coda");
    setup.machines[0].speed = speed;
    let outcome = World::new(setup, workload).expect("a policy").run(None).expect("no rule broken");
    let completion = |job| makespan_s(job).expect("the job has not failed");
    outcome.metrics.jobs().map(|(_, job)| (job.group.clone(), completion(job))).collect()
}

/// A node stays known as slow when all maps have left it.
#[test]
fn coda_does_not_try_a_slow_node_again_and_again() {
    let small = |number| Outline { block: 200_000_000, ..job(f64::from(number) * 30.0, "small", 1, 0) };
    let completions = completions_under_coda((0..60).map(small).collect(), 0.01);
    let late = completions.iter().filter(|(_, completion_s)| *completion_s > 30.0).count();
    assert!((1..=6).contains(&late), "{late} of 60 jobs were late: {completions:?}");
}

/// A job with ten bytes of input and 10 MB of map output says little about jobs with more input.
#[test]
fn job_with_little_input_does_not_mislead_coda() {
    let much_output = Profile { map_out: 1e6, ..THREE_SECONDS };
    let little_input = Outline { block: 10, profile: &much_output, ..job(10.0, "small", 1, 1) };
    let mut jobs = vec![job(0.0, "small", 1, 1), little_input];
    jobs.extend((0..10).map(|number| job(30.0 + f64::from(number), "large", 8, 2)));
    jobs.extend((0..5).map(|number| job(60.0 + f64::from(number) * 10.0, "small", 1, 1)));
    let completions = completions_under_coda(jobs, 1.0);
    let late = completions.iter().filter(|(group, completion_s)| group == "small" && *completion_s > 25.0);
    assert_eq!(late.collect::<Vec<_>>(), Vec::<&(String, f64)>::new());
}

/// Returns the seconds from submission to the end of the job or of the run, and whether the job has
/// ended.
fn completion_s(spec: &str, params: &[(&str, &str)], flood: (u32, u32, f64), one: (u32, u32)) -> (f64, bool) {
    let mut rng = Rng::new(1);
    let count = (600.0 / flood.2) as u32;
    let mut jobs: Vec<_> =
        (0..count).map(|number| job(f64::from(number) * flood.2, "flood", flood.0, flood.1)).collect();
    jobs.push(job(60.5, "one", one.0, one.1));
    let jobs = jobs.into_iter().map(|job| job.plan(&mut rng)).collect();
    let workload = Workload { name: "flood".into(), jobs }.sorted();
    let mut setup = Setup::even(2, PerPhase { map: 2, reduce: 1 }, spec);
    setup.params = params.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    setup.costs.start = Span::millis(1);
    let outcome =
        World::new(setup, workload).expect("a policy").run(Some(Span::secs(600))).expect("no rule broken");
    let (_, one) = outcome.metrics.jobs().find(|(_, job)| job.group == "one").expect("the job was submitted");
    (makespan_s(one).expect("the job has not failed"), one.ended.is_some())
}

#[test]
fn completion_time_is_within_the_stated_bound() {
    let mut wrong = String::new();
    for spec in schedulers::specs() {
        let inner = spec.trim_start_matches("chronos(").trim_end_matches(')');
        let stated = BOUNDS.iter().find(|(name, ..)| *name == inner);
        let (small, large) = stated.map_or((Some(90), Some(150)), |(_, small, large)| (*small, *large));
        let elapsed =
            (completion_s(&spec, &[], (8, 2, 8.0), (1, 1)), completion_s(&spec, &[], (1, 1, 1.0), (20, 4)));
        println!("{spec}: a small job takes {:?}, a large one {:?}", elapsed.0, elapsed.1);
        let within = |(elapsed, ended): (f64, bool), bound: Option<u64>| {
            bound.is_none_or(|bound| ended && elapsed <= bound as f64)
        };
        if !within(elapsed.0, small) || !within(elapsed.1, large) {
            let _ = writeln!(wrong, "{spec}: took {elapsed:?}, the bounds are {small:?} and {large:?}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Returns the completion of each job of a random workload, by job ID. `loses_node`: the tracker of
/// the second node dies after a minute and a half, for a minute.
fn completions_s(spec: &str, params: &[(&str, &str)], loses_node: bool, seed: u64) -> Vec<f64> {
    let mut rng = Rng::new(seed);
    let mut at_s = 0.0;
    let jobs = (0..60).map(|number| {
        at_s += rng.exponential(5.5);
        // Heavy tails: most jobs have one or two maps, some have forty.
        let maps = (rng.spread(1.3) * 2.0).round().clamp(1.0, 40.0) as u32;
        let user = ["ann", "bob", "eve"][number % 3];
        job(at_s, user, maps, rng.below(3) as u32).plan(&mut rng)
    });
    let workload = Workload { name: "random".into(), jobs: jobs.collect::<Vec<_>>() }.sorted();
    let mut setup = Setup::even(2, PerPhase { map: 2, reduce: 1 }, spec);
    setup.params = params.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    setup.costs.start = Span::millis(1);
    if loses_node {
        setup.faults.push(Fault { at_s: 90.0, for_s: Some(60.0), what: FaultKind::Tracker { node: 1 } });
    }
    let outcome = World::new(setup, workload).expect("a policy").run(None).expect("no rule broken");
    outcome.metrics.jobs().map(|(_, job)| makespan_s(job).expect("the job has not failed")).collect()
}

/// A job is overdue from 1.5 times its completion under fair sharing. What it needs then, on its
/// part of 30 % of the slots, is included in the limit.
#[test]
fn no_job_takes_much_longer_under_coda_than_under_fair() {
    let (mut fair_sum, mut coda_sum) = (0.0, 0.0);
    for seed in 0..8 {
        let (fair, coda) = (completions_s("fair", &[], false, seed), completions_s("coda", &[], false, seed));
        let late = fair.iter().zip(&coda).filter(|(fair, coda)| **coda > 3.0 * **fair + 15.0);
        assert_eq!(late.collect::<Vec<_>>(), vec![], "seed {seed}");
        fair_sum += fair.iter().sum::<f64>();
        coda_sum += coda.iter().sum::<f64>();
    }
    assert!(coda_sum < 0.9 * fair_sum, "the mean under coda is not shorter: {coda_sum} and {fair_sum}");
}

/// The same with wrong estimates, minimum shares and a lost node, for other seeds:
/// `FERMATA_SEEDS` is their number. A job that is overestimated by a factor of two is overdue when
/// it takes three times as long as under fair sharing.
#[test]
fn bound_of_coda_holds_with_wrong_estimates_pools_and_a_lost_node() {
    let seeds = std::env::var("FERMATA_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let wrong = ("coda.estimate_error", "2");
    let pools = vec![
        ("fair.pools.bob.min_maps", "1"),
        ("coda.pools.bob.min_maps", "1"),
        ("fair.pools.eve.weight", "2"),
        ("coda.pools.eve.weight", "2"),
    ];
    let cases = [
        ("wrong estimates", 6.0, vec![wrong], false),
        ("pools", 3.0, pools, false),
        ("a lost node", 3.0, vec![], true),
    ];
    for (what, factor, params, loses_node) in cases {
        for seed in 100..100 + seeds {
            let of = |spec: &str| {
                let own: Vec<_> = params.iter().copied().filter(|(key, _)| key.starts_with(spec)).collect();
                completions_s(spec, &own, loses_node, seed)
            };
            let (fair, coda) = (of("fair"), of("coda"));
            let late = fair.iter().zip(&coda).filter(|(fair, coda)| **coda > factor * **fair + 20.0);
            assert_eq!(late.collect::<Vec<_>>(), vec![], "{what}, seed {seed}");
        }
    }
}

/// The bound is what ends the large job of the second case: without it, the job starves.
#[test]
fn without_its_bound_coda_starves_a_large_job() {
    let flood = (1, 1, 1.0);
    assert!(completion_s("coda", &[], flood, (20, 4)).1);
    assert!(!completion_s("coda", &[("coda.overdue_share", "0")], flood, (20, 4)).1);
}

/// The jobs that arrive use all reduce slots and become overdue as well, but a large job that is
/// overdue keeps its part of the slots for overdue jobs.
#[test]
fn large_job_ends_among_other_overdue_jobs_under_coda() {
    let (elapsed_s, ended) = completion_s("coda", &[], (4, 2, 6.0), (40, 4));
    assert!(ended && elapsed_s < 400.0, "the job takes {elapsed_s} s");
}

/// The guarantee of `coda` about overdue jobs, in random clusters of 20 to 54 map slots with too much work:
/// each of n overdue jobs gets 1/n of the slots for such jobs, is not passed over below it, and keeps
/// it. Debug builds check it in every round (`schedulers/src/coda/guarantee.rs`), so a run that breaks it
/// panics here. `FERMATA_SEEDS` is the number of runs.
#[test]
#[cfg(debug_assertions)]
fn overdue_jobs_get_and_keep_their_shares_under_coda() {
    let seeds = std::env::var("FERMATA_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let mut with_overdue_jobs = 0;
    for seed in 0..seeds {
        let [on, off] = ["0.3", "0"].map(|share| overloaded(share, seed));
        with_overdue_jobs += usize::from(on != off);
    }
    // Otherwise the rule had no effect, and nothing was checked.
    assert!(with_overdue_jobs > 0, "jobs were overdue in none of {seeds} runs");
}

/// Runs random jobs that need more than all slots, under `coda` with this share of the slots for
/// overdue jobs. Returns the hash of the run.
#[cfg(debug_assertions)]
fn overloaded(overdue_share: &str, seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let (nodes, map, reduce) = (5 + rng.below(5) as u32, 4 + rng.below(3) as u32, 2 + rng.below(2) as u32);
    let slots = f64::from(nodes * map);
    let mut at_s = 0.0;
    let jobs = (0..400).map(|number| {
        // A flood of small jobs needs 1.2 times the map slots; every fortieth job is large. A map takes
        // three seconds.
        let maps = if number % 40 == 0 { 40 + rng.below(40) as u32 } else { 1 + rng.below(4) as u32 };
        at_s += rng.exponential(2.5 * 3.0 / (1.2 * slots));
        job(at_s, ["ann", "bob"][number % 2], maps, rng.below(2) as u32).plan(&mut rng)
    });
    let workload = Workload { name: "overload".into(), jobs: jobs.collect::<Vec<_>>() }.sorted();
    let mut setup = Setup::even(nodes, PerPhase { map, reduce }, "coda");
    setup.params.insert("coda.overdue_share".into(), overdue_share.into());
    setup.costs.start = Span::millis(1);
    World::new(setup, workload).expect("a policy").run(None).expect("no rule broken").hash
}
