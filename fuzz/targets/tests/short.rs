//! Runs every fuzz target for a short time, with the same seeded mutations of valid inputs every
//! time.
//!
//! `FERMATA_FUZZ_SECONDS=600` runs each target for at least 600 seconds, with a new seed every
//! time.

use fermata_fuzzing::{Campaign, memory::CountingAllocator, target, targets};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const EXECUTIONS: u64 = 20_000;

fn run(name: &str) {
    let target = target(name).expect("a target with this name");
    let long = std::env::var("FERMATA_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let seed = match long {
        Some(_) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        None => 17,
    };
    let time = Duration::from_secs(long.unwrap_or(0));
    let tally = Campaign { executions: EXECUTIONS, time, seed }.run(&target);
    println!(
        "{name}: {} executions of seed {seed}, {} accepted, {:.1} s, the longest {:.0?}",
        tally.executions,
        tally.accepted,
        tally.time.as_secs_f64(),
        tally.longest
    );
    if let Some((input, why)) = tally.finding {
        panic!("{name}: execution {}: {why}\ninput: {}", tally.executions, input.escape_ascii());
    }
    assert!(
        tally.accepted > 0,
        "no mutation was accepted, so the properties of accepted inputs were not checked"
    );
}

macro_rules! short_runs {
    ($($name:ident)*) => {
        $(#[test] fn $name() { run(stringify!($name)); })*

        #[test]
        fn every_target_has_a_short_run_and_a_libfuzzer_entry() {
            let names: Vec<&str> = targets().iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
            let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
            let manifest = std::fs::read_to_string(manifest).expect("the manifest of the libFuzzer entries");
            for name in names {
                assert!(manifest.contains(&format!("name = \"{name}\"\n")), "{name} has no libFuzzer entry");
            }
        }
    };
}

short_runs! {
    segment
    segment_index
    checkpoint
    split_keys
    input_records
    umbilical_to_task
    umbilical_from_task
    shuffle_request
    shuffle_answer
    bulk_frame
    checksum_file
    dfs_path
    journal
    namenode_edit
    namenode_snapshot
    jobtracker_facts
    trace_swim
    trace_rumen
    trace_history
    configuration
    scenario
    token
    revoked_list
}
