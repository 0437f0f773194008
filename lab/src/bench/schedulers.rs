//! `mrctl bench schedulers`: the cost of policies on a large cluster that exists only in memory
//! (`bench_cluster`).
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

/// Decisions for each median.
const ROUNDS: u32 = 3000;
/// Consecutive decisions are for distant trackers, so that caches do not help.
const STRIDE: u32 = 7919;
const LIMIT_US: f64 = 20.0;
/// COSHH also evaluates classes of jobs and trackers.
const LIMIT_COSHH_US: f64 = 50.0;
const LIMIT_PROGRAM_MS: f64 = 100.0;
/// A tick runs at most once per second, on the thread that answers heartbeats. It may take a tenth
/// of that.
const LIMIT_TICK_MS: f64 = 100.0;
const TICKS: u32 = 25;
const PROGRAMS: usize = 9;
/// The cluster for the cost per second of heartbeats.
const HUGE: Size = Size { trackers: 10_000, jobs: 200, waiting: 50_000 };
/// Long enough for a tick of policies that compute every ten seconds.
const SECONDS: u32 = 12;

/// Measure policies: time of a decision, of a linear program, of ten thousand heartbeats
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl bench schedulers\n  mrctl bench schedulers --only fair,coshh --json"
)]
pub struct Args {
    /// Measure only these policies
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    only: Vec<String>,
    /// Print JSON: one array of measurements
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
        figures.extend(decisions(spec)?);
        figures.extend(ticks(spec)?);
    }
    if chosen.iter().any(|spec| spec.contains("coshh")) {
        print_status("a linear program");
        figures.push(program());
    }
    for spec in chosen.iter().filter(|spec| !spec.contains('(')) {
        print_status(&format!("{} heartbeats under {spec}", HUGE.trackers));
        figures.push(heartbeats(spec, None)?);
    }
    if args.only.is_empty() {
        print_status("fair with fcs as shadow");
        figures.push(heartbeats("fair", Some("fcs"))?);
    }
    Ok(figures)
}

/// Median and p99 at full size, and the median with a tenth of the waiting tasks, which shows how
/// the cost grows.
fn decisions(spec: &str) -> Result<Vec<Measurement>> {
    let few = Size { waiting: LARGE.waiting / 10, ..LARGE };
    let of = |size: Size| -> Result<Vec<f64>> {
        let mut stage = BenchCluster::new(spec, &Params::new(), size)?;
        let one = |round: u32| {
            let started = Instant::now();
            drop(black_box(stage.decide(round.wrapping_mul(STRIDE))));
            started.elapsed().as_secs_f64() * 1e6
        };
        Ok((0..ROUNDS).map(one).collect())
    };
    let (all, few) = (of(LARGE)?, of(few)?);
    let limit = if spec.contains("coshh") { LIMIT_COSHH_US } else { LIMIT_US };
    Ok(vec![
        Measurement {
            limit: Some(Limit::AtMost(limit)),
            baseline: Some(median(few)),
            baseline_name: Some("a tenth of the waiting tasks"),
            ..Measurement::unlimited(format!("decide, {spec}, median"), median(all.clone()), "us")
        },
        Measurement::unlimited(format!("decide, {spec}, p99"), p99(all), "us"),
    ])
}

/// Ticks at full size with a running clock: estimates are updated and slots are preempted.
fn ticks(spec: &str) -> Result<Vec<Measurement>> {
    let mut stage = BenchCluster::new(spec, &Params::new(), LARGE)?;
    let one = |_| {
        stage.send_heartbeats();
        let started = Instant::now();
        stage.tick();
        started.elapsed().as_secs_f64() * 1e3
    };
    let all: Vec<f64> = (0..TICKS).map(one).collect();
    let longest = all.iter().copied().fold(0.0, f64::max);
    Ok(vec![
        Measurement::unlimited(format!("tick, {spec}, median"), median(all), "ms"),
        Measurement {
            limit: Some(Limit::AtMost(LIMIT_TICK_MS)),
            ..Measurement::unlimited(format!("tick, {spec}, longest of {TICKS} s"), longest, "ms")
        },
    ])
}

fn p99(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() * 99 / 100).copied().unwrap_or(0.0)
}

fn program() -> Measurement {
    let one = |_| {
        let problem = synthetic_problem(20, 100);
        let started = Instant::now();
        drop(black_box(problem.solve()));
        started.elapsed().as_secs_f64() * 1e3
    };
    Measurement {
        limit: Some(Limit::AtMost(LIMIT_PROGRAM_MS)),
        ..Measurement::unlimited(
            "linear program, 20 classes x 100 nodes, median",
            median((0..PROGRAMS).map(one).collect()),
            "ms",
        )
    }
}

/// CPU seconds of the core per second, if every tracker reports the progress of its twelve attempts
/// each second.
fn heartbeats(spec: &str, shadow: Option<&str>) -> Result<Measurement> {
    let mut stage = BenchCluster::with_shadow(spec, shadow, &Params::new(), HUGE)?;
    let second = |stage: &mut BenchCluster| {
        stage.send_heartbeats();
        stage.tick();
    };
    // In the first round all trackers get tasks for their free slots.
    second(&mut stage);
    let used =
        || cpu_seconds(std::process::id()).context("cannot read the CPU time of this process from /proc");
    let (started, before) = (Instant::now(), used()?);
    for _ in 0..SECONDS {
        second(&mut stage);
    }
    let value = (used()? - before) / f64::from(SECONDS);
    let shadow = shadow.map_or(String::new(), |shadow| format!(" with {shadow} as shadow"));
    Ok(Measurement {
        limit: Some(Limit::AtMost(0.5)),
        wall_seconds: started.elapsed().as_secs_f64(),
        ..Measurement::unlimited(
            format!("{} trackers each second, {spec}{shadow}", HUGE.trackers),
            value,
            "cores",
        )
    })
}
