//! `hadoop jar hadoop-streaming.jar`: submits a streaming job and follows it, with the messages of
//! Hadoop on standard error.
//!
//! Exit codes: 0; 1 if the job fails or an option is wrong; 2 if the input does not exist; 4 if the
//! output exists; 5 if the job cannot be submitted.

use super::{
    ids,
    log::{self, Progress},
    options::{Request, SideFile, Translated},
    path::{self, ClusterPath},
};
use crate::output::{self, Usage};
use anyhow::{Context, Result, ensure};
use client::{
    Error, JobTracker, Observer, Program, StagingFolder, Submission,
    model::{Attempt, Job},
    scheduling::Reason,
};
use clusters::locate::Target;
use dfs_client::{Client, GetOptions, path::DfsPath};
use engine::registry;
use std::{collections::BTreeSet, process::ExitCode, time::Duration};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const STREAM_JOB: &str = "streaming.StreamJob";
const JOB: &str = "mapreduce.Job";
/// Largest file that is divided by lines.
const LIST_BYTES_MAX: usize = 64 << 20;
/// Maximum number of maps that get a number of lines.
const LISTS_MAX: usize = 10_000;

pub(super) async fn run(args: &[String], target: &Target, user: &str) -> Result<ExitCode> {
    let parsed = Request::parse(args).and_then(|request| Ok((request.translate(user)?, request)));
    let (Translated { submission, warnings, lines_per_map }, request) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return Ok(failed(&error, 1)),
    };
    for warning in warnings {
        log::warn(STREAM_JOB, warning);
    }
    let tracker = target.jobtracker_as(None).await?;
    let client = target.connect_as(None).await?;
    let output = submission.output.clone();
    let needs = Needs { files: &request.side_files(), lines_per_map, user };
    let submitted = submit(needs, submission, target, &tracker, &client).await;
    let id = match submitted {
        Ok(id) => id,
        Err(error) => return Ok(failed(&error, exit_code(&error))),
    };
    log::info("impl.YarnClientImpl", format!("Submitted application {}", ids::application(&id)));
    log::info(JOB, format!("The url to track the job: {id} (mrctl job {id}, mrctl web)"));
    log::info(JOB, format!("Running job: {}", ids::job(&id)));
    if request.background {
        return Ok(ExitCode::SUCCESS);
    }
    let job = follow(&tracker, &id).await?;
    log::end(&job);
    if job.state != "succeeded" {
        log::error(STREAM_JOB, "Job not successful!");
        eprintln!("Streaming Command Failed!");
        return Ok(ExitCode::FAILURE);
    }
    if request.lazy_output && !output.is_empty() {
        delete_empty_parts(&client, &output).await?;
    }
    log::info(STREAM_JOB, format!("Output directory: hdfs://{output}"));
    Ok(ExitCode::SUCCESS)
}

/// Prints why nothing was submitted.
fn failed(error: &anyhow::Error, code: u8) -> ExitCode {
    log::error(STREAM_JOB, format!("Error Launching job : {}", output::chain(error)));
    eprintln!("Streaming Command Failed!");
    ExitCode::from(code)
}

/// Returns the exit code of Hadoop for an error of a submission.
fn exit_code(error: &anyhow::Error) -> u8 {
    let text = error.to_string();
    if text.starts_with("input ") && text.contains("does not exist") {
        2
    } else if text.starts_with("output ") && text.contains("exists") {
        4
    } else if output::exit_code(error) == 2 {
        1
    } else {
        5
    }
}

/// What has to be uploaded for a job.
struct Needs<'a> {
    files: &'a [SideFile],
    /// The lines of the input that each map gets, if the input is divided by lines.
    lines_per_map: Option<usize>,
    user: &'a str,
}

/// Divides the input into files for one map each: `OFFSET TAB LINE` for each of its lines. Returns
/// their paths. This format is for short lists of large work, which is read here.
async fn divide(
    inputs: &[String],
    lines_per_map: usize,
    staging: &mut StagingFolder<'_>,
    client: &Client,
) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for file in client.find_inputs(inputs, false, usize::MAX).await?.files {
        let mut bytes = Vec::new();
        let mut reader = client.open(&file.path).await?;
        while let Some(piece) = reader.next().await? {
            bytes.extend_from_slice(&piece);
            ensure!(
                bytes.len() <= LIST_BYTES_MAX,
                Usage(format!("{}: a list of work has at most 64 MiB", file.path))
            );
        }
        let (mut lines, mut offset) = (Vec::new(), 0);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            lines.push([format!("{offset}\t").as_bytes(), line].concat());
            offset += line.len();
        }
        for of_map in lines.chunks(lines_per_map) {
            ensure!(
                paths.len() < LISTS_MAX,
                Usage(format!("more than {LISTS_MAX} maps: give each map more lines"))
            );
            let name = format!("lines-{:05}", paths.len());
            paths.push(staging.put_bytes(&name, of_map.concat()).await?);
        }
    }
    Ok(paths)
}

/// Uploads the side files and submits the job.
async fn submit(
    needs: Needs<'_>,
    mut submission: Submission,
    target: &Target,
    tracker: &JobTracker,
    client: &Client,
) -> Result<String> {
    let program = Program::check(registry::STREAMING, &submission)?;
    let mut staging = StagingFolder::new(client);
    let submitting = async {
        for file in needs.files {
            let staged = stage(file, &mut staging, client, needs.user).await?;
            submission.files.push(staged);
        }
        if let Some(lines) = needs.lines_per_map {
            submission.inputs = divide(&submission.inputs, lines, &mut staging, client).await?;
        }
        program.stage(&mut submission, &mut staging, &target.cluster()?).await?;
        staging.add_to(&mut submission);
        anyhow::Ok(tracker.submit(submission).await?)
    };
    let submitted = submitting.await;
    if let Err(error) = &submitted {
        // Without a reply, the JobTracker may have accepted the job.
        if !matches!(error.downcast_ref(), Some(Error::NoReply { .. })) {
            staging.discard().await;
        }
    }
    submitted
}

/// Returns the path of a side file in the cluster, after an upload if it is not there with its name.
async fn stage(
    file: &SideFile,
    staging: &mut StagingFolder<'_>,
    client: &Client,
    user: &str,
) -> Result<String> {
    let SideFile { source, name } = file;
    if let Some(local) = path::local(source) {
        if !local.is_file() {
            return Err(Usage(format!("{source}: there is no such local file")).into());
        }
        return Ok(staging.put_named(&local, name).await?);
    }
    let from: DfsPath = ClusterPath::parse(source, user)?.exact()?;
    if from.name() == name {
        client.stat(&from).await?;
        return Ok(from.to_string());
    }
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let copy = folder.path().join("file");
    client.get(&from, &copy, GetOptions { overwrite: false }, &()).await?;
    Ok(staging.put_named(&copy, name).await?)
}

/// Passes on the state of a job, and when there are new failed attempts.
struct Follower {
    progress: Progress,
    failed_attempts: u32,
    new_failures: UnboundedSender<()>,
}

impl Observer for Follower {
    fn status(&mut self, job: &Job) {
        self.progress.update(job);
        let failed = job.maps.failed_attempts + job.reduces.failed_attempts;
        if std::mem::replace(&mut self.failed_attempts, failed) < failed {
            // The receiver is alive until the job has ended.
            let _ = self.new_failures.send(());
        }
    }

    fn unreachable(&mut self, tracker: &JobTracker, _job: &str, timeout: Duration) {
        let seconds = timeout.as_secs();
        log::warn(
            JOB,
            format!("the JobTracker at {} does not answer; retrying for {seconds} s", tracker.addr()),
        );
    }

    fn reachable(&mut self, tracker: &JobTracker) {
        log::info(JOB, format!("the JobTracker at {} is reachable again", tracker.addr()));
    }

    fn waits(&mut self, _job: &str, reasons: &[Reason]) {
        let texts: Vec<&str> = reasons.iter().map(|reason| reason.text.as_str()).collect();
        log::info(JOB, format!("the job waits: {}", texts.join("; ")));
    }
}

/// Follows a job until it has ended. Prints its progress and its failed attempts.
async fn follow(tracker: &JobTracker, id: &str) -> Result<Job> {
    let (new_failures, mut failures) = unbounded_channel();
    let mut follower = Follower { progress: Progress::default(), failed_attempts: 0, new_failures };
    let mut shown = BTreeSet::new();
    let job = {
        let mut following = std::pin::pin!(tracker.follow(id, &mut follower));
        loop {
            tokio::select! {
                job = &mut following => break job?,
                Some(()) = failures.recv() => show_failures(tracker, id, &mut shown).await?,
            }
        }
    };
    if job.state != "succeeded" {
        show_failures(tracker, id, &mut shown).await?;
    }
    Ok(job)
}

/// Prints the failed attempts that were not shown before.
async fn show_failures(tracker: &JobTracker, id: &str, shown: &mut BTreeSet<String>) -> Result<()> {
    let tasks = tracker.tasks(id).await?;
    let attempts = tasks.iter().flat_map(|task| &task.attempts);
    for Attempt { attempt, error, .. } in attempts.filter(|attempt| attempt.state == "failed") {
        if shown.insert(attempt.clone()) {
            log::info(JOB, format!("Task Id : {}, Status : FAILED\nError: {error}", ids::attempt(attempt)));
        }
    }
    Ok(())
}

/// Deletes the empty files of an output.
async fn delete_empty_parts(client: &Client, output: &str) -> Result<()> {
    for status in client.list(&DfsPath::parse(output)?).await? {
        let is_part = status.path.name().starts_with("part-");
        if is_part && !status.is_dir && status.length == 0 {
            client.delete(&status.path, false).await?;
        }
    }
    Ok(())
}
