//! Measures a NameNode with many files and blocks: its memory per file and per block, and the time
//! to restart from its edit log.
//!
//! The blocks are created by the RPCs of clients and DataNodes, with simulated DataNodes. Snapshots
//! are off, so that every edit is replayed. The retry cache is small, so that its memory does not
//! count as memory of files.

use super::{
    CpuMeter, layout,
    measurement::{Limit, Measurement},
    names::{CLIENTS, await_writable, channels},
    wire::{Caller, FakeDataNode},
};
use anyhow::{Context, Result};
use clusters::local::Launch;
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
/// The number of files that a client creates before it reports their blocks and closes them.
const FILES_PER_BATCH: u64 = 50;
const FILES_PER_FOLDER: u64 = 1000;
const MILLION: f64 = 1e6;

/// Runs the selected measurements.
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
    let mut launch = Launch::start_namenodes(layout, None).await?;
    await_writable(&launch).await?;
    let channels = channels(&launch).await?;
    let mut datanodes = Vec::new();
    for number in 1..=REPLICAS {
        datanodes.push(FakeDataNode::register(channels[0].clone(), &format!("fake{number}")).await?);
    }
    let datanodes: Arc<[FakeDataNode]> = datanodes.into();
    let files = blocks.div_ceil(BLOCKS_PER_FILE);
    // Create some files before the measurement, because the first files allocate buffers that are
    // needed once.
    create_files(&channels, &datanodes, "warm", 1000, BLOCKS_PER_FILE).await?;

    let mut figures = namenode_memory(&launch, &channels, &datanodes, files).await?;
    if !memory {
        figures.clear();
    }
    if replay {
        figures.push(measure_startup(&mut launch).await?);
    }
    Ok(figures)
}

/// Creates files and measures the growth of the memory of the NameNode, first for files without
/// blocks, then with.
async fn namenode_memory(
    launch: &Launch,
    channels: &[Channel],
    datanodes: &Arc<[FakeDataNode]>,
    files: u64,
) -> Result<Vec<Measurement>> {
    let mut grown = Vec::new();
    for (name, blocks) in [("empty", 0), ("full", BLOCKS_PER_FILE)] {
        let before = launch.namenode_memory()?;
        let (cpu, since) = (CpuMeter::new(launch), Instant::now());
        create_files(channels, datanodes, name, files, blocks).await?;
        let bytes = launch.namenode_memory()?.saturating_sub(before);
        grown.push((bytes as f64, since.elapsed().as_secs_f64(), cpu.seconds()));
    }
    let (per_file, per_block) = memory_per_file_and_block(grown[0].0, grown[1].0, files);
    let figure =
        |name: String, value, limit, (_, wall_seconds, daemon_cpu_seconds): (f64, f64, f64)| Measurement {
            limit,
            wall_seconds,
            daemon_cpu_seconds,
            ..Measurement::unlimited(name, value, "bytes")
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

/// Returns the bytes per file and per block. `empty` is the memory for `files` files without
/// blocks, `full` the memory for as many files with blocks.
fn memory_per_file_and_block(empty: f64, full: f64, files: u64) -> (f64, f64) {
    let per_file = empty / files as f64;
    let blocks = (files * BLOCKS_PER_FILE) as f64;
    (per_file, ((full - empty) / blocks).max(0.0))
}

/// Creates `files` closed files of `blocks` blocks each, with many concurrent clients.
async fn create_files(
    channels: &[Channel],
    datanodes: &Arc<[FakeDataNode]>,
    name: &str,
    files: u64,
    blocks: u64,
) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    for at in 0..CLIENTS {
        let mut caller = Caller::new(channels[at % channels.len()].clone());
        let (next, datanodes, name) = (Arc::clone(&next), Arc::clone(datanodes), name.to_owned());
        callers.spawn(async move {
            loop {
                let begin = next.fetch_add(FILES_PER_BATCH, Relaxed);
                if begin >= files {
                    return anyhow::Ok(());
                }
                create_batch(
                    &mut caller,
                    &datanodes,
                    &name,
                    begin..files.min(begin + FILES_PER_BATCH),
                    blocks,
                )
                .await?;
            }
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller.context("a caller ended early")??;
    }
    Ok(())
}

async fn create_batch(
    caller: &mut Caller,
    datanodes: &[FakeDataNode],
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
        // There are as many DataNodes as replicas, so each has all blocks.
        for datanode in datanodes {
            datanode.report(&all).await?;
        }
    }
    for file in open {
        caller.close(file).await?;
    }
    Ok(())
}

/// Kills the NameNode and measures its start from the edit log.
async fn measure_startup(launch: &mut Launch) -> Result<Measurement> {
    let edits = launch.client().await?.report().await?.last_edit;
    let took = launch.restart_namenode().await?.as_secs_f64();
    Ok(Measurement {
        limit: Some(Limit::AtMost(10.0)),
        wall_seconds: took,
        daemon_cpu_seconds: launch.cpu_seconds(),
        ..Measurement::unlimited(
            format!("start-up, a million edits (from {edits})"),
            took * MILLION / (edits.max(1) as f64),
            "s",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_split_between_files_and_blocks() {
        let (file, block) = memory_per_file_and_block(1000.0, 5000.0, 10);
        assert!((file - 100.0).abs() < 1e-9 && (block - 100.0).abs() < 1e-9);
        assert!(memory_per_file_and_block(5000.0, 1000.0, 10).1.abs() < 1e-9);
    }
}
