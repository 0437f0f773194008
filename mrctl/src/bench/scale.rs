//! A namenode with many files and blocks: memory for each, and the time to start up again from its edit log.
//!
//! The blocks are made by RPC as clients and datanodes would, against datanodes that exist only as reports.
//! Snapshots are off, so that every edit is replayed; the retry cache is small, so that it is not taken for
//! the memory of files.

use super::{
    CpuMeter, layout,
    measurement::{Limit, Measurement},
    names::{CALLERS, channels, writable},
    wire::{Caller, FakeTracker},
};
use crate::cluster::Launch;
use anyhow::{Context, Result};
use daemon::{Bytes, Period};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};
use tokio::task::JoinSet;
use tonic::transport::Channel;

const REPLICAS: usize = 3;
const BLOCKS_PER_FILE: u64 = 4;
/// Files that one caller makes before it reports and closes them.
const BATCH: u64 = 50;
const FILES_PER_FOLDER: u64 = 1000;
const MILLION: f64 = 1e6;

/// Measures what is wanted of memory and start-up.
pub(crate) async fn measure(
    folder: &Path,
    blocks: u64,
    memory: bool,
    replay: bool,
) -> Result<Vec<Measurement>> {
    let mut layout = layout(folder, "scale", 1, false)?;
    let config = &mut layout.config.namenode;
    config.replication = REPLICAS as u32;
    config.snapshot_bytes = Bytes(1 << 50);
    config.retry_cache = 1000;
    config.suspect_after = Period::secs(3600);
    config.dead_after = Period::secs(7200);
    let mut launch = Launch::start_namenode(layout, None).await?;
    writable(&launch).await?;
    let channels = channels(&launch).await?;
    let mut ghosts = Vec::new();
    for number in 1..=REPLICAS {
        ghosts.push(FakeTracker::register(channels[0].clone(), &format!("ghost{number}")).await?);
    }
    let ghosts: Arc<[FakeTracker]> = ghosts.into();
    let files = blocks.div_ceil(BLOCKS_PER_FILE);
    // The first files pay for buffers that every start has.
    fill(&channels, &ghosts, "warm", 1000, BLOCKS_PER_FILE).await?;

    let mut figures = namenode_memory(&launch, &channels, &ghosts, files).await?;
    if !memory {
        figures.clear();
    }
    if replay {
        figures.push(startup(&mut launch).await?);
    }
    Ok(figures)
}

/// Makes the files and measures what the namenode grew by: first for files without blocks, then with.
async fn namenode_memory(
    launch: &Launch,
    channels: &[Channel],
    ghosts: &Arc<[FakeTracker]>,
    files: u64,
) -> Result<Vec<Measurement>> {
    let mut grown = Vec::new();
    for (name, blocks) in [("empty", 0), ("full", BLOCKS_PER_FILE)] {
        let before = launch.namenode_memory()?;
        let (cpu, since) = (CpuMeter::new(launch), Instant::now());
        fill(channels, ghosts, name, files, blocks).await?;
        let bytes = launch.namenode_memory()?.saturating_sub(before);
        grown.push((bytes as f64, since.elapsed().as_secs_f64(), cpu.seconds()));
    }
    let (per_file, per_block) = split(grown[0].0, grown[1].0, files);
    let figure =
        |name: String, value, limit, (_, wall_seconds, daemon_cpu_seconds): (f64, f64, f64)| Measurement {
            name,
            value,
            unit: "bytes",
            limit,
            baseline: None,
            baseline_name: None,
            wall_seconds,
            daemon_cpu_seconds,
        };
    let blocks = files * BLOCKS_PER_FILE;
    Ok(vec![
        figure(format!("memory per file ({files} files)"), per_file, None, grown[0]),
        figure(
            format!("memory per block ({blocks} blocks, {REPLICAS} replicas)"),
            per_block,
            Some(Limit::AtMost(400.0)),
            grown[1],
        ),
    ])
}

/// Bytes per file and per block, from what `files` files took without and with blocks.
fn split(empty: f64, full: f64, files: u64) -> (f64, f64) {
    let per_file = empty / files as f64;
    let blocks = (files * BLOCKS_PER_FILE) as f64;
    (per_file, ((full - empty) / blocks).max(0.0))
}

/// Makes `files` closed files of `blocks` blocks, by many callers at once.
async fn fill(
    channels: &[Channel],
    ghosts: &Arc<[FakeTracker]>,
    name: &str,
    files: u64,
    blocks: u64,
) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    for at in 0..CALLERS {
        let mut caller = Caller::new(channels[at % channels.len()].clone());
        let (next, ghosts, name) = (Arc::clone(&next), Arc::clone(ghosts), name.to_owned());
        callers.spawn(async move {
            loop {
                let begin = next.fetch_add(BATCH, Relaxed);
                if begin >= files {
                    return anyhow::Ok(());
                }
                batch(&mut caller, &ghosts, &name, begin..files.min(begin + BATCH), blocks).await?;
            }
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller.context("a caller ended early")??;
    }
    Ok(())
}

async fn batch(
    caller: &mut Caller,
    ghosts: &[FakeTracker],
    name: &str,
    files: std::ops::Range<u64>,
    blocks: u64,
) -> Result<()> {
    let mut open = Vec::new();
    for number in files {
        let mut file =
            caller.create(&format!("/{name}/{}/part-{number:07}", number / FILES_PER_FOLDER)).await?;
        for _ in 0..blocks {
            caller.add_block(&mut file).await?;
        }
        open.push(file);
    }
    if blocks > 0 {
        let all: Vec<(u64, u64)> = open.iter().flat_map(|file| file.blocks.iter().copied()).collect();
        // As many replicas as made-up datanodes: each of them has every block.
        for ghost in ghosts {
            ghost.report(&all).await?;
        }
    }
    for file in open {
        caller.close(file).await?;
    }
    Ok(())
}

/// Kills the namenode and times its start from the edit log alone.
async fn startup(launch: &mut Launch) -> Result<Measurement> {
    let edits = launch.client().await?.report().await?.last_edit;
    let took = launch.restart_namenode().await?.as_secs_f64();
    Ok(Measurement {
        name: format!("start-up, a million edits (from {edits})"),
        value: took * MILLION / (edits.max(1) as f64),
        unit: "s",
        limit: Some(Limit::AtMost(10.0)),
        baseline: None,
        baseline_name: None,
        wall_seconds: took,
        daemon_cpu_seconds: launch.cpu_seconds(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_split_between_files_and_blocks() {
        let (file, block) = split(1000.0, 5000.0, 10);
        assert!((file - 100.0).abs() < 1e-9 && (block - 100.0).abs() < 1e-9);
        assert!(split(5000.0, 1000.0, 10).1.abs() < 1e-9);
    }
}
