//! Measures empty tasks per second: with real trackers and task processes, and with simulated
//! trackers.

use super::{cluster::Cluster, fake_tracker, usage::Usage};
use crate::bench::{
    layout,
    measurement::{Limit, Measurement},
};
use anyhow::{Context, Result};
use client::{JobTracker, Submission};
use clusters::local::Launch;
use daemon::Period;
use dfs_client::{PutOptions, PutSource, path::DfsPath};
use security::{Credentials, Role};
use std::{collections::BTreeMap, path::Path, time::Instant};
use tokio::task::JoinSet;

/// The number of tasks.
pub(super) const TASKS: u32 = 10_000;
const LIMIT_PER_SECOND: f64 = 500.0;
/// The length of the line that is the input of one task.
const LINE_BYTES: usize = 64;
const INPUT_FILES: u32 = 4;

/// Returns lines that do not match the pattern of the job, so that each task reads one line and
/// writes nothing.
fn input() -> Vec<u8> {
    let mut line = vec![b'x'; LINE_BYTES - 1];
    line.push(b'\n');
    line.repeat((TASKS / INPUT_FILES) as usize)
}

fn submission() -> Submission {
    Submission {
        name: "empty tasks".into(),
        builtin: Some("grep".into()),
        inputs: vec!["/tasks".into()],
        reduces: 0,
        conf: BTreeMap::from([
            ("split.size".into(), format!("{LINE_BYTES}B")),
            ("grep.pattern".into(), "nothing".into()),
        ]),
        ..Submission::default()
    }
}

/// Measures the rate with real trackers and task processes.
pub(super) async fn measure(cluster: &Cluster) -> Result<Vec<Measurement>> {
    for file in 0..INPUT_FILES {
        cluster.put_bytes(input(), &format!("/tasks/{file}")).await?;
    }
    let before = Usage::of(&cluster.launch).await?;
    let wall = cluster.submit_here(submission()).await?;
    let usage = Usage::of(&cluster.launch).await?.since(&before);
    cluster.delete("/tasks").await?;
    let mut figures = vec![Measurement {
        limit: Some(Limit::AtLeast(LIMIT_PER_SECOND)),
        wall_seconds: wall,
        daemon_cpu_seconds: usage.total(),
        ..Measurement::unlimited(format!("{TASKS} empty tasks"), f64::from(TASKS) / wall.max(1e-9), "tasks/s")
    }];
    for kind in ["tasks", "tasktracker", "jobtracker", "namenode", "datanode"] {
        let seconds = usage.0.get(kind).copied().unwrap_or(0.0);
        let each = 1000.0 * seconds / f64::from(TASKS);
        figures.push(Measurement::unlimited(format!("an empty task: {kind}, CPU time"), each, "ms"));
    }
    Ok(figures)
}

/// Measures the rate of the same job with simulated trackers, which report success at once. This is
/// the capacity of the JobTracker itself.
pub(super) async fn measure_jobtracker_only(folder: &Path, trackers: u32) -> Result<Measurement> {
    let mut layout = layout(folder, "alone", 1, false)?;
    layout.config.jobtracker.suspect_after = Period::secs(600);
    layout.config.jobtracker.lost_after = Period::secs(1200);
    let slots = layout.config.tasktracker.map_slots;
    let launch = Launch::start_without_trackers(layout, None).await?;
    let files = launch.client().await?;
    for file in 0..INPUT_FILES {
        let options = PutOptions { make_parents: true, ..PutOptions::default() };
        let source = PutSource::Reader(Box::new(std::io::Cursor::new(input())));
        files.put(source, &DfsPath::parse(&format!("/tasks/{file}"))?, options, &()).await?;
    }
    let credentials = Credentials::of_daemon(&launch.layout.config, Role::TaskTracker)?;
    let mut fakes = JoinSet::new();
    for number in 1..=trackers {
        let name = format!("node{number}");
        let fake =
            fake_tracker::FakeTracker::attach(&launch.state.jobtracker, &credentials, &name, slots).await?;
        fakes.spawn(fake.serve());
    }
    let tracker = JobTracker::connect(&launch.state.jobtracker, None, launch.credentials()?).await?;
    let before = Usage::of(&launch).await?;
    let since = Instant::now();
    tracker.submit(submission()).await?;
    while let Some(fake) = fakes.join_next().await {
        fake.context("a simulated tracker panicked")??;
    }
    let wall = since.elapsed().as_secs_f64();
    let usage = Usage::of(&launch).await?.since(&before);
    Ok(Measurement {
        wall_seconds: wall,
        daemon_cpu_seconds: usage.total(),
        ..Measurement::unlimited(
            format!("{TASKS} empty tasks, simulated trackers"),
            f64::from(TASKS) / wall.max(1e-9),
            "tasks/s",
        )
    })
}
