//! The NameNode under 64 concurrent clients: stat calls and durable creates.

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

/// Concurrent clients.
pub(crate) const CALLERS: usize = 64;
/// Connections that they share.
const CHANNELS: usize = 8;
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_secs(4);
/// Files for stat calls.
const FILES: usize = 1024;

/// The call that each client repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    Stat,
    Create,
}

/// The shared connections.
pub(crate) async fn channels(launch: &Launch) -> Result<Vec<Channel>> {
    let (mut channels, credentials) = (Vec::new(), launch.credentials()?);
    for _ in 0..CHANNELS {
        channels.push(wire::connect(&launch.state.namenode, &credentials, Role::NameNode).await?);
    }
    Ok(channels)
}

/// Waits until the NameNode accepts changes.
pub(crate) async fn writable(launch: &Launch) -> Result<()> {
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
    let launch = Launch::start_namenode(layout, None).await?;
    writable(&launch).await?;
    let channels = channels(&launch).await?;
    let mut setup = Caller::new(channels[0].clone());
    for file in 0..FILES {
        let open = setup.create(&stat_path(file)).await?;
        setup.close(open).await?;
    }
    let mut figures = Vec::new();
    if stats {
        figures.push(rounds(&launch, &channels, Load::Stat, "stats", 30_000.0).await?);
    }
    if creates {
        figures.push(rounds(&launch, &channels, Load::Create, "durable creates", 5_000.0).await?);
    }
    Ok(figures)
}

fn stat_path(file: usize) -> String {
    format!("/stat/folder{}/file{file}", file % 16)
}

async fn rounds(
    launch: &Launch,
    channels: &[Channel],
    load: Load,
    name: &str,
    least: f64,
) -> Result<Measurement> {
    let (mut rates, mut cpus) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let cpu = CpuMeter::new(launch);
        rates.push(drive(channels, load, round).await?);
        cpus.push(cpu.seconds());
    }
    Ok(Measurement {
        name: format!("{name}, {CALLERS} clients"),
        value: median(rates),
        unit: "per s",
        limit: Some(Limit::AtLeast(least)),
        baseline: None,
        baseline_name: None,
        wall_seconds: ROUND.as_secs_f64(),
        daemon_cpu_seconds: median(cpus),
    })
}

/// Calls per second over one round.
async fn drive(channels: &[Channel], load: Load, round: usize) -> Result<f64> {
    let done = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    let since = Instant::now();
    for at in 0..CALLERS {
        let mut caller = Caller::new(channels[at % channels.len()].clone());
        let (done, over) = (Arc::clone(&done), Arc::clone(&over));
        callers.spawn(async move {
            let mut number = at;
            while !over.load(Relaxed) {
                match load {
                    Load::Stat => caller.stat(&stat_path(number % FILES)).await?,
                    Load::Create => {
                        caller.create(&format!("/create/{round}/{at}/{number}")).await?;
                    }
                }
                number += CALLERS + 1;
                done.fetch_add(1, Relaxed);
            }
            anyhow::Ok(())
        });
    }
    tokio::time::sleep(ROUND).await;
    let rate = done.load(Relaxed) as f64 / since.elapsed().as_secs_f64();
    over.store(true, Relaxed);
    while let Some(caller) = callers.join_next().await {
        caller.context("a caller ended early")??;
    }
    Ok(rate)
}
