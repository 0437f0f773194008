//! Runs seeds of the simulated control plane.

use std::{
    collections::BTreeMap,
    env,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};
use world::{Bug, Options, RARE_EVENTS, Report, run};

const SEEDS_PER_BUG: u64 = 60;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// `FERMATA_SEED=7` runs this seed, and prints its events.
#[test]
fn one_seed() {
    let Some(seed) = number("FERMATA_SEED") else { return };
    let report = run(seed, &Options { prints: true, ..Options::default() });
    let report = report.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{report:#?}");
}

#[test]
fn a_seed_determines_the_whole_run() {
    for seed in 1..=3 {
        let runs: Vec<Report> = (0..2)
            .map(|_| run(seed, &Options::default()).unwrap_or_else(|failure| panic!("{failure}")))
            .collect();
        assert_eq!(runs[0], runs[1], "seed {seed} has two different runs");
    }
}

/// `FERMATA_WORLD_SEEDS=10000` runs more seeds, and `FERMATA_WORLD_FIRST=5000` others. The default
/// takes about 40 s of CPU time.
#[test]
fn all_seeds_pass() {
    let (seeds, first) =
        (number("FERMATA_WORLD_SEEDS").unwrap_or(80), number("FERMATA_WORLD_FIRST").unwrap_or(1));
    let next = AtomicU64::new(first);
    let (failures, totals) = (Mutex::new(Vec::new()), Mutex::new(BTreeMap::<&str, u64>::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        return;
                    }
                    match run(seed, &Options::default()) {
                        Ok(report) => {
                            let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
                            let counted = report.counters.into_iter();
                            for (what, count) in
                                counted.chain([("calls", report.calls), ("files", report.files)])
                            {
                                *totals.entry(what).or_default() += count;
                            }
                        }
                        Err(failure) => {
                            println!("{failure}");
                            failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure.seed);
                        }
                    }
                }
            });
        }
    });
    let (failures, totals) = (failures.into_inner().unwrap(), totals.into_inner().unwrap());
    println!("{seeds} seeds: {totals:#?}");
    assert!(failures.is_empty(), "{} of {seeds} seeds fail: {failures:?}", failures.len());
    for event in RARE_EVENTS {
        assert!(
            totals.get(event).is_some_and(|count| *count > 0),
            "{event:?} has not happened in {seeds} seeds"
        );
    }
}

/// Seeds that have found bugs. They are tried first, to save time; others find them, too.
const FOUND_BY: [(Bug, u64); 6] = [
    (Bug::SyncSkipped, 5),
    (Bug::CommitPointEarly, 6),
    (Bug::VoteNotStored, 3),
    (Bug::LeadsEarly, 2),
    (Bug::UncommittedKept, 16),
    (Bug::ReportAnsweredEarly, 18),
];

/// The checks find every bug that is put into the code on purpose.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "these bugs exist only with debug assertions")]
fn bugs_are_found() {
    let only = env::var("FERMATA_WORLD_BUG").ok();
    let seeds = number("FERMATA_WORLD_SEEDS").unwrap_or(SEEDS_PER_BUG);
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let name = format!("{bug:?}");
        if only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        let options = Options { bug: Some(bug), ..Options::default() };
        let first = FOUND_BY.iter().find(|(found, _)| *found == bug).map(|(_, seed)| *seed);
        match first.into_iter().chain(1..=seeds).find_map(|seed| run(seed, &options).err()) {
            Some(failure) => {
                let why: String = failure.why.lines().take(2).collect::<Vec<_>>().join(" ");
                println!("{name}: seed {}: {why:.200}", failure.seed);
            }
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "not found with {seeds} seeds: {missed:?}");
}
