//! The cluster that is measured, and programs run beside it or on it, with what they cost.

use super::usage::Usage;
use crate::{
    bench::layout,
    cluster::Launch,
    job::{
        follow::follow,
        wire::{JobTracker, Submission},
    },
};
use anyhow::{Context, Result, bail, ensure};
use dfs::{
    client::{Client, PutOptions, PutSource},
    path::DfsPath,
};
use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::Command;

/// After a job, until its tracker has reaped the last task process and the pools are full again: that belongs to it.
const SETTLE: Duration = Duration::from_millis(500);
/// How long deletes may take to reach the disks.
const DELETE_TIMEOUT: Duration = Duration::from_secs(30);

/// What is measured.
pub(super) struct Cluster {
    pub(super) launch: Launch,
    pub(super) files: Client,
    pub(super) tracker: JobTracker,
}

/// A run of something.
#[derive(Debug, Clone, Default)]
pub(super) struct Ran {
    /// Seconds from its start to its end.
    pub(super) wall: f64,
    /// Processor seconds.
    pub(super) usage: Usage,
}

impl Cluster {
    /// Starts it, one replica of everything.
    pub(super) async fn start(folder: &Path, nodes: u32) -> Result<Self> {
        let mut layout = layout(folder, "mr", nodes, false)?;
        // All nodes share this machine: more maps at a time than it has cores would only take each other's caches.
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        layout.config.tasktracker.map_slots = (cores / nodes.max(1)).max(1);
        let launch = Launch::start(layout, None).await?;
        let files = launch.client().await?;
        let tracker = JobTracker::connect(&launch.state.jobtracker, None, launch.credentials()?).await?;
        Ok(Self { launch, files, tracker })
    }

    /// Runs a program beside the cluster, to its end; `client` is what it used itself.
    pub(super) async fn run(&self, command: &mut Command) -> Result<Ran> {
        let before = Usage::of(&self.launch).await?;
        let (wall, _) = finish(command).await?;
        Ok(Ran { wall, usage: Usage::of(&self.launch).await?.since(&before) })
    }

    /// Runs a plain program.
    pub(super) async fn plain(&self, name: &str, file: &Path, out: &Path) -> Result<Ran> {
        self.run(own()?.args(["bench", "plain", name]).arg(file).arg(out)).await
    }

    /// Submits a job as a user would, in a process of its own, and waits for its end; its id and its cost.
    pub(super) async fn submit(&self, arguments: &[&str]) -> Result<(String, Ran)> {
        let before = Usage::of(&self.launch).await?;
        let (id, wall) = self.submit_uncounted(arguments).await?;
        tokio::time::sleep(SETTLE).await;
        Ok((id, Ran { wall, usage: Usage::of(&self.launch).await?.since(&before) }))
    }

    /// The same without its cost, which takes time to read: its id and its seconds.
    pub(super) async fn submit_uncounted(&self, arguments: &[&str]) -> Result<(String, f64)> {
        let mut command = own()?;
        command
            .arg("--config")
            .arg(self.launch.layout.config_file())
            .arg("submit")
            .args(arguments)
            .arg("--json");
        let (wall, stdout) = finish(&mut command).await?;
        let job: serde_json::Value = serde_json::from_slice(&stdout).unwrap_or_default();
        let id = job["job"].as_str().context("`mrctl submit --json` did not print a job")?;
        Ok((id.to_owned(), wall))
    }

    /// Submits a job from this process over a connection that is there already; seconds from submit to done.
    pub(super) async fn submit_here(&self, submission: Submission) -> Result<f64> {
        let since = Instant::now();
        let id = self.tracker.submit(submission).await?;
        let Some(job) = follow(&self.tracker, &id, true).await? else { bail!("interrupted") };
        ensure!(job.state == "succeeded", "{id} {}: {}", job.state, job.why);
        Ok(since.elapsed().as_secs_f64())
    }

    /// Processor seconds that a job's maps and reduces say they used.
    pub(super) async fn by_phase(&self, job: &str) -> Result<[f64; 2]> {
        let mut seconds = [0.0; 2];
        for task in self.tracker.tasks(job).await? {
            let used: u64 =
                task.attempts.iter().filter_map(|attempt| attempt.counters.get("CPU_MILLISECONDS")).sum();
            let phase = usize::from(task.task.contains(".r"));
            seconds[phase] += used as f64 / 1000.0;
        }
        Ok(seconds)
    }

    /// Copies a local file in.
    pub(super) async fn put(&self, file: &Path, to: &str) -> Result<()> {
        let options = PutOptions { make_parents: true, ..PutOptions::default() };
        self.files.put(PutSource::File(file.to_owned()), &DfsPath::parse(to)?, options, &()).await?;
        Ok(())
    }

    /// Copies some bytes in.
    pub(super) async fn put_bytes(&self, bytes: Vec<u8>, to: &str) -> Result<()> {
        let options = PutOptions { make_parents: true, ..PutOptions::default() };
        let source = PutSource::Reader(Box::new(std::io::Cursor::new(bytes)));
        self.files.put(source, &DfsPath::parse(to)?, options, &()).await?;
        Ok(())
    }

    /// Hands all bytes of a job's output, part after part, to `sink`.
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

    /// Deletes a folder and waits until the disks have their room back, which should not fall into what is measured
    /// next.
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

/// This program, to be run again.
fn own() -> Result<Command> {
    Ok(Command::new(std::env::current_exe().context("cannot determine the path of mrctl")?))
}

/// Runs a program to its end: its seconds, and what it printed.
async fn finish(command: &mut Command) -> Result<(f64, Vec<u8>)> {
    let name = command.as_std().get_program().to_string_lossy().into_owned();
    let since = Instant::now();
    let ended = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
    let wall = since.elapsed().as_secs_f64();
    let ended = ended.with_context(|| format!("cannot run {name}"))?;
    let why = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{name} failed ({}): {}", ended.status, why.trim());
    Ok((wall, ended.stdout))
}
