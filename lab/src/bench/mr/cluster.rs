//! Starts the measured cluster. Runs jobs and plain programs, and measures their cost.

use super::usage::Usage;
use crate::bench::layout;
use anyhow::{Context, Result, bail, ensure};
use client::{JobTracker, Submission};
use clusters::local::Launch;
use dfs_client::{Client, PutOptions, PutSource, path::DfsPath};
use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::Command;
use view::follow::follow;

/// How long to wait after a job until its tracker has reaped the last task process and has refilled
/// its pool of idle processes. That cost belongs to the job.
const SETTLE_TIME: Duration = Duration::from_millis(500);
/// How long the DataNodes may take to delete the blocks of deleted files.
const DELETE_TIMEOUT: Duration = Duration::from_secs(30);

/// The measured cluster, and connections to it.
pub(super) struct Cluster {
    pub(super) launch: Launch,
    pub(super) files: Client,
    pub(super) tracker: JobTracker,
}

/// The duration and cost of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct RunCost {
    /// Seconds from start to end.
    pub(super) wall: f64,
    /// CPU seconds by kind of process.
    pub(super) usage: Usage,
}

impl Cluster {
    /// Starts the cluster, with replication 1.
    pub(super) async fn start(folder: &Path, nodes: u32) -> Result<Self> {
        let mut layout = layout(folder, "mr", nodes, false)?;
        // All nodes share this machine: more parallel maps than cores would only compete for
        // caches.
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        layout.config.tasktracker.map_slots = (cores / nodes.max(1)).max(1);
        let launch = Launch::start(layout, None).await?;
        let files = launch.client().await?;
        let tracker = JobTracker::connect(&launch.state.jobtracker, None, launch.credentials()?).await?;
        Ok(Self { launch, files, tracker })
    }

    /// Runs a program outside the cluster to its end. Its own CPU time is counted as `client`.
    pub(super) async fn run(&self, command: &mut Command) -> Result<RunCost> {
        let before = Usage::of(&self.launch).await?;
        let (wall, _) = run_to_end(command).await?;
        Ok(RunCost { wall, usage: Usage::of(&self.launch).await?.since(&before) })
    }

    /// Runs a plain program.
    pub(super) async fn run_plain_program(&self, name: &str, file: &Path, out: &Path) -> Result<RunCost> {
        self.run(this_program()?.args(["bench", "plain", name]).arg(file).arg(out)).await
    }

    /// Submits a job in a separate process, as a user would, and waits for its end. Returns its ID
    /// and cost.
    pub(super) async fn submit(&self, arguments: &[&str]) -> Result<(String, RunCost)> {
        let before = Usage::of(&self.launch).await?;
        let (id, wall) = self.submit_without_cost(arguments).await?;
        tokio::time::sleep(SETTLE_TIME).await;
        Ok((id, RunCost { wall, usage: Usage::of(&self.launch).await?.since(&before) }))
    }

    /// Submits a job like `submit`, but does not read the cost, which takes time. Returns the job
    /// ID and the seconds.
    pub(super) async fn submit_without_cost(&self, arguments: &[&str]) -> Result<(String, f64)> {
        let mut command = this_program()?;
        command
            .arg("--config")
            .arg(self.launch.layout.config_file())
            .arg("submit")
            .args(arguments)
            .arg("--json");
        let (wall, stdout) = run_to_end(&mut command).await?;
        let job: serde_json::Value = serde_json::from_slice(&stdout).unwrap_or_default();
        let id = job["job"].as_str().context("`mrctl submit --json` did not print a job")?;
        Ok((id.to_owned(), wall))
    }

    /// Submits a job from this process over an existing connection. Returns the seconds from
    /// submission to completion.
    pub(super) async fn submit_here(&self, submission: Submission) -> Result<f64> {
        let since = Instant::now();
        let id = self.tracker.submit(submission).await?;
        let Some(job) = follow(&self.tracker, &id, true).await? else { bail!("interrupted") };
        ensure!(job.state == "succeeded", "{id} {}: {}", job.state, job.why);
        Ok(since.elapsed().as_secs_f64())
    }

    /// Returns the CPU seconds of all maps and of all reduces, from the counters of the job.
    pub(super) async fn cpu_seconds_by_phase(&self, job: &str) -> Result<[f64; 2]> {
        let mut seconds = [0.0; 2];
        for task in self.tracker.tasks(job).await? {
            let used: u64 =
                task.attempts.iter().filter_map(|attempt| attempt.counters.get("CPU_MILLISECONDS")).sum();
            let phase = usize::from(task.task.contains(".r"));
            seconds[phase] += used as f64 / 1000.0;
        }
        Ok(seconds)
    }

    /// Copies a local file into the cluster.
    pub(super) async fn put(&self, file: &Path, to: &str) -> Result<()> {
        let options = PutOptions { make_parents: true, ..PutOptions::default() };
        self.files.put(PutSource::File(file.to_owned()), &DfsPath::parse(to)?, options, &()).await?;
        Ok(())
    }

    /// Writes bytes to a file in the cluster.
    pub(super) async fn put_bytes(&self, bytes: Vec<u8>, to: &str) -> Result<()> {
        let options = PutOptions { make_parents: true, ..PutOptions::default() };
        let source = PutSource::Reader(Box::new(std::io::Cursor::new(bytes)));
        self.files.put(source, &DfsPath::parse(to)?, options, &()).await?;
        Ok(())
    }

    /// Passes all bytes of the output of a job, part by part, to `sink`.
    pub(super) async fn output(&self, folder: &str, mut sink: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut parts = self.files.glob(&format!("{folder}/part-*")).await?;
        parts.sort_by(|one, other| one.path.cmp(&other.path));
        for part in parts {
            let mut reader = self.files.open(&part.path).await?;
            while let Some(bytes) = reader.next().await? {
                sink(&bytes)?;
            }
        }
        Ok(())
    }

    /// Deletes a folder and waits until the space is free on the disks, so that this does not
    /// disturb the next measurement.
    pub(super) async fn delete(&self, folder: &str) -> Result<()> {
        let path = DfsPath::parse(folder)?;
        let bytes: u64 = self.files.walk(&path).await?.iter().map(|file| file.length).sum();
        let used = self.files.report().await?.used;
        self.files.delete(&path, true).await?;
        let deadline = Instant::now() + DELETE_TIMEOUT;
        while self.files.report().await?.used > used.saturating_sub(bytes) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}

/// Returns a command that runs this program.
fn this_program() -> Result<Command> {
    Ok(Command::new(std::env::current_exe().context("cannot determine the path of mrctl")?))
}

/// Runs a program to its end. Returns the seconds and its output.
async fn run_to_end(command: &mut Command) -> Result<(f64, Vec<u8>)> {
    let name = command.as_std().get_program().to_string_lossy().into_owned();
    let since = Instant::now();
    let ended = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
    let wall = since.elapsed().as_secs_f64();
    let ended = ended.with_context(|| format!("cannot run {name}"))?;
    let why = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{name} failed ({}): {}", ended.status, why.trim());
    Ok((wall, ended.stdout))
}
