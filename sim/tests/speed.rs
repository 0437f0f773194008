//! Measures the speed of the simulator. `cargo test --release -p fermata-sim --test speed --
//! --ignored --nocapture --test-threads 1` prints events per second and peak memory;
//! `FERMATA_TRACES` is the folder of traces.

use fermata_sim::{
    Setup, Workload, World, profile,
    rng::Rng,
    workload::{Outline, papers, swim},
};
use mrcore::{PerPhase, Span};
use std::{
    path::{Path, PathBuf},
    time::Instant,
};

fn scheduler() -> String {
    std::env::var("FERMATA_SCHEDULER").unwrap_or_else(|_| "fifo".into())
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Returns the CPU seconds of this process. Elapsed time would include waiting for other processes.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or("");
    let ticks = after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

fn measure(name: &str, setup: Setup, workload: Workload, limit_s: f64) {
    let (nodes, jobs, tasks) = (setup.machines.len(), workload.jobs.len(), workload.tasks());
    let (started, cpu) = (Instant::now(), cpu_s());
    let outcome = World::new(setup, workload).expect("a policy").run(Some(Span::secs(100_000_000)));
    let outcome = outcome.unwrap_or_else(|broken| panic!("{broken}"));
    let (elapsed, took) = (started.elapsed().as_secs_f64(), cpu_s() - cpu);
    println!(
        "{name}: {nodes} nodes, {jobs} jobs, {tasks} tasks, {} of simulated time in {took:.1} s of one core ({elapsed:.1} s passed); {} events, {:.0} a second; \
         peak {} MiB; hash {:016x}; unfinished {}",
        outcome.end,
        outcome.events,
        outcome.events as f64 / took,
        peak_mib(),
        outcome.hash,
        outcome.unfinished
    );
    assert_eq!(outcome.unfinished, 0);
    assert!(took < limit_s, "{name} took {took:.1} s, not below {limit_s}");
}

#[test]
#[ignore = "a measurement, for release builds"]
fn fcs_workload_takes_less_than_20_cpu_seconds() {
    for (name, kinds) in [("map-heavy", papers::FCS_MAP_HEAVY), ("reduce-heavy", papers::FCS_REDUCE_HEAVY)] {
        let setup = Setup::even(45, PerPhase { map: 8, reduce: 4 }, &scheduler());
        measure(name, setup, papers::fcs(&profile::built_in(), &kinds, 30.0, 171, 1), 20.0);
    }
}

#[test]
#[ignore = "a measurement, for release builds"]
fn facebook_trace_takes_less_than_60_cpu_seconds() {
    let Some(traces) = std::env::var_os("FERMATA_TRACES").map(PathBuf::from) else {
        return skip::skip("traces", "FERMATA_TRACES names no folder of traces");
    };
    let path = traces.join(Path::new("swim/FB-2009_samples_24_times_1hr_0.tsv"));
    let scaling = swim::Scaling { bytes: 1.0, block: 128 << 20, reduces_max: 600 };
    let workload = swim::read(&path, scaling).unwrap_or_else(|error| panic!("{error}"));
    measure("FB-2009", Setup::even(600, PerPhase { map: 4, reduce: 2 }, &scheduler()), workload, 60.0);
}

#[test]
#[ignore = "a measurement, for release builds"]
fn ten_thousand_nodes_take_less_than_600_cpu_seconds() {
    let (profiles, mut rng) = (profile::built_in(), Rng::new(1));
    let job = |number: u32, rng: &mut Rng| {
        Outline {
            at_s: f64::from(number),
            name: format!("job-{number}"),
            group: format!("{}", number % 10),
            user: format!("user{}", number % 20),
            maps: 950,
            block: 128_000_000,
            reduces: 50,
            profile: &profiles["fcs-termvector"],
        }
        .plan(rng)
    };
    let jobs = (0..1000).map(|number| job(number, &mut rng)).collect();
    let workload = Workload { name: "large".into(), jobs };
    measure(
        "10,000 nodes",
        Setup::even(10_000, PerPhase { map: 4, reduce: 2 }, &scheduler()),
        workload,
        600.0,
    );
}
