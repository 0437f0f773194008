//! `mrctl bench schedulers`: measures the cost of policies on a large cluster that exists only in
//! memory (`bench_cluster`).
//!
//! No process is started: the core of the JobTracker and the policies are pure code. Medians are
//! wall time, because a decision is shorter than a tick of the CPU clock. Values per second are CPU
//! time.

use super::{
    bench_cluster::{BenchCluster, LARGE, Size},
    measurement::{Limit, Measurement, median},
};
use anyhow::{Context, Result};
use clusters::local::cpu_seconds;
use schedulers::{Params, coshh::synthetic_problem, specs};
use std::{hint::black_box, time::Instant};
use view::output::Usage;

/// The number of decisions for each median.
const DECISION_ROUNDS: u32 = 3000;
/// The distance between the trackers of two consecutive decisions. It is large so that caches do
/// not help.
const TRACKER_STRIDE: u32 = 7919;
const DECISION_LIMIT_US: f64 = 20.0;
/// The limit for COSHH is higher, because it also evaluates classes of jobs and trackers.
const COSHH_DECISION_LIMIT_US: f64 = 50.0;
const LINEAR_PROGRAM_LIMIT_MS: f64 = 100.0;
/// A tick runs at most once per second, on the thread that answers heartbeats. It may take a tenth
/// of that.
const TICK_LIMIT_MS: f64 = 100.0;
const TICK_ROUNDS: u32 = 25;
const LINEAR_PROGRAM_ROUNDS: usize = 9;
/// The size of the cluster for the measurement of heartbeats.
const HEARTBEAT_CLUSTER: Size = Size { trackers: 10_000, jobs: 200, waiting: 50_000 };
/// The duration of the measurement of heartbeats. It includes a tick of policies that compute every
/// ten seconds.
const HEARTBEAT_SECONDS: u32 = 12;

/// Measure policies: time of a decision, of a linear program, of ten thousand heartbeats
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl bench schedulers\n  mrctl bench schedulers --only fair,coshh --json"
)]
pub struct Args {
    /// Measure only these policies
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    only: Vec<String>,
    /// Print JSON: the measurements, and tables of them with the machine and the commit
    #[arg(long)]
    pub(super) json: bool,
}

/// Runs all measurements.
pub(super) fn measure(args: &Args) -> Result<Vec<Measurement>> {
    super::note_build(args.json);
    let known = specs();
    if let Some(unknown) = args.only.iter().find(|name| !known.contains(name)) {
        return Err(Usage(format!("there is no policy {unknown:?}: choose from {}", known.join(", "))).into());
    }
    let chosen: Vec<String> =
        known.into_iter().filter(|spec| args.only.is_empty() || args.only.contains(spec)).collect();
    let print_status = |text: &str| {
        if !args.json {
            eprintln!("{text}");
        }
    };
    let mut figures = Vec::new();
    for spec in &chosen {
        print_status(spec);
        figures.extend(measure_decisions(spec)?);
        figures.extend(measure_ticks(spec)?);
    }
    if chosen.iter().any(|spec| spec.contains("coshh")) {
        print_status("a linear program");
        figures.push(measure_linear_program());
    }
    for spec in chosen.iter().filter(|spec| !spec.contains('(')) {
        print_status(&format!("{} heartbeats under {spec}", HEARTBEAT_CLUSTER.trackers));
        figures.push(measure_heartbeats(spec, None)?);
    }
    if args.only.is_empty() {
        print_status("fair with fcs as shadow");
        figures.push(measure_heartbeats("fair", Some("fcs"))?);
    }
    Ok(figures)
}

/// Measures the time of a decision: median and p99 at full size, and as baseline the median with a
/// tenth of the waiting tasks, which shows how the cost grows.
fn measure_decisions(spec: &str) -> Result<Vec<Measurement>> {
    let few = Size { waiting: LARGE.waiting / 10, ..LARGE };
    let of = |size: Size| -> Result<Vec<f64>> {
        let mut stage = BenchCluster::new(spec, &Params::new(), size)?;
        let one = |round: u32| {
            let started = Instant::now();
            drop(black_box(stage.decide(round.wrapping_mul(TRACKER_STRIDE))));
            started.elapsed().as_secs_f64() * 1e6
        };
        Ok((0..DECISION_ROUNDS).map(one).collect())
    };
    let (all, few) = (of(LARGE)?, of(few)?);
    let limit = if spec.contains("coshh") { COSHH_DECISION_LIMIT_US } else { DECISION_LIMIT_US };
    Ok(vec![
        Measurement {
            limit: Some(Limit::AtMost(limit)),
            baseline: Some(median(few)),
            baseline_name: Some("a tenth of the waiting tasks"),
            ..Measurement::of_policy(spec, "decide, median", median(all.clone()), "us")
        },
        Measurement::of_policy(spec, "decide, p99", p99(all), "us"),
    ])
}

/// Measures ticks at full size with a running clock, so that estimates are updated and slots are
/// preempted.
fn measure_ticks(spec: &str) -> Result<Vec<Measurement>> {
    let mut stage = BenchCluster::new(spec, &Params::new(), LARGE)?;
    let one = |_| {
        stage.send_heartbeats();
        let started = Instant::now();
        stage.tick();
        started.elapsed().as_secs_f64() * 1e3
    };
    let all: Vec<f64> = (0..TICK_ROUNDS).map(one).collect();
    let longest = all.iter().copied().fold(0.0, f64::max);
    Ok(vec![
        Measurement::of_policy(spec, "tick, median", median(all), "ms"),
        Measurement {
            limit: Some(Limit::AtMost(TICK_LIMIT_MS)),
            ..Measurement::of_policy(spec, &format!("tick, longest of {TICK_ROUNDS} s"), longest, "ms")
        },
    ])
}

fn p99(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() * 99 / 100).copied().unwrap_or(0.0)
}

fn measure_linear_program() -> Measurement {
    let one = |_| {
        let problem = synthetic_problem(20, 100);
        let started = Instant::now();
        drop(black_box(problem.solve()));
        started.elapsed().as_secs_f64() * 1e3
    };
    Measurement {
        limit: Some(Limit::AtMost(LINEAR_PROGRAM_LIMIT_MS)),
        ..Measurement::unlimited(
            "linear program, 20 classes x 100 nodes, median",
            median((0..LINEAR_PROGRAM_ROUNDS).map(one).collect()),
            "ms",
        )
    }
}

/// Measures the CPU seconds that the core uses per second if every tracker reports the progress of
/// its twelve attempts each second.
fn measure_heartbeats(spec: &str, shadow: Option<&str>) -> Result<Measurement> {
    let mut stage = BenchCluster::with_shadow(spec, shadow, &Params::new(), HEARTBEAT_CLUSTER)?;
    let second = |stage: &mut BenchCluster| {
        stage.send_heartbeats();
        stage.tick();
    };
    // In the first round all trackers get tasks for their free slots.
    second(&mut stage);
    let used =
        || cpu_seconds(std::process::id()).context("cannot read the CPU time of this process from /proc");
    let (started, before) = (Instant::now(), used()?);
    for _ in 0..HEARTBEAT_SECONDS {
        second(&mut stage);
    }
    let value = (used()? - before) / f64::from(HEARTBEAT_SECONDS);
    let shadow = shadow.map_or(String::new(), |shadow| format!(" with {shadow} as shadow"));
    Ok(Measurement {
        limit: Some(Limit::AtMost(0.5)),
        wall_seconds: started.elapsed().as_secs_f64(),
        ..Measurement::of_policy(
            &format!("{spec}{shadow}"),
            &format!("{} trackers each second", HEARTBEAT_CLUSTER.trackers),
            value,
            "cores",
        )
    })
}
