//! Measures the stat calls and durable creates of a NameNode with 64 concurrent clients.

use super::{
    CpuMeter,
    measurement::{Limit, Measurement, median},
    wire::{self, Caller},
};
use anyhow::{Context, Result, ensure};
use clusters::local::{Launch, Layout};
use security::Role;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinSet;
use tonic::transport::Channel;

/// The number of concurrent clients.
pub(crate) const CLIENTS: usize = 64;
/// The number of connections that the clients share.
const CHANNELS: usize = 8;
const ROUNDS: usize = 3;
const ROUND_TIME: Duration = Duration::from_secs(4);
/// The number of files for stat calls.
const STAT_FILES: usize = 1024;

/// The call that each client repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Stat,
    Create,
}

/// Opens the connections that the clients share.
pub(crate) async fn channels(launch: &Launch) -> Result<Vec<Channel>> {
    let (mut channels, credentials) = (Vec::new(), launch.credentials()?);
    for _ in 0..CHANNELS {
        channels.push(wire::connect(&launch.state.namenode, &credentials, Role::NameNode).await?);
    }
    Ok(channels)
}

/// Waits until the NameNode accepts changes.
pub(crate) async fn await_writable(launch: &Launch) -> Result<()> {
    let client = launch.client().await?;
    let deadline = Instant::now() + Duration::from_secs(30);
    while client.safemode().await?.on {
        ensure!(Instant::now() < deadline, "the namenode stays in safemode");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Runs the selected measurements.
pub(crate) async fn measure(layout: Layout, stats: bool, creates: bool) -> Result<Vec<Measurement>> {
    let launch = Launch::start_namenodes(layout, None).await?;
    await_writable(&launch).await?;
    let channels = channels(&launch).await?;
    let mut setup = Caller::new(channels[0].clone());
    for file in 0..STAT_FILES {
        let open = setup.create(&stat_path(file)).await?;
        setup.close(open).await?;
    }
    let mut figures = Vec::new();
    if stats {
        figures.push(measure_calls(&launch, &channels, CallKind::Stat, "stats", 30_000.0).await?);
    }
    if creates {
        figures.push(measure_calls(&launch, &channels, CallKind::Create, "durable creates", 5_000.0).await?);
    }
    Ok(figures)
}

fn stat_path(file: usize) -> String {
    format!("/stat/folder{}/file{file}", file % 16)
}

async fn measure_calls(
    launch: &Launch,
    channels: &[Channel],
    load: CallKind,
    name: &str,
    least: f64,
) -> Result<Measurement> {
    let (mut rates, mut cpus) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let cpu = CpuMeter::new(launch);
        rates.push(calls_per_second(channels, load, round).await?);
        cpus.push(cpu.seconds());
    }
    Ok(Measurement {
        limit: Some(Limit::AtLeast(least)),
        wall_seconds: ROUND_TIME.as_secs_f64(),
        daemon_cpu_seconds: median(cpus),
        ..Measurement::unlimited(format!("{name}, {CLIENTS} clients"), median(rates), "per s")
    })
}

/// Runs one round and returns the calls per second of all clients.
async fn calls_per_second(channels: &[Channel], load: CallKind, round: usize) -> Result<f64> {
    let done = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    let since = Instant::now();
    for at in 0..CLIENTS {
        let mut caller = Caller::new(channels[at % channels.len()].clone());
        let (done, over) = (Arc::clone(&done), Arc::clone(&over));
        callers.spawn(async move {
            let mut number = at;
            while !over.load(Relaxed) {
                match load {
                    CallKind::Stat => caller.stat(&stat_path(number % STAT_FILES)).await?,
                    CallKind::Create => {
                        caller.create(&format!("/create/{round}/{at}/{number}")).await?;
                    }
                }
                number += CLIENTS + 1;
                done.fetch_add(1, Relaxed);
            }
            anyhow::Ok(())
        });
    }
    tokio::time::sleep(ROUND_TIME).await;
    let rate = done.load(Relaxed) as f64 / since.elapsed().as_secs_f64();
    over.store(true, Relaxed);
    while let Some(caller) = callers.join_next().await {
        caller.context("a caller ended early")??;
    }
    Ok(rate)
}
