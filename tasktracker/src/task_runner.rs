//! Runs attempts: fetches the files of the job, finds a process, waits until it has finished the
//! attempt, and reports how the attempt ended.
//!
//! There is one asynchronous task per attempt. Invariants: an attempt is reported as ended after
//! its process group is dead or its process is idle, and after its folders are removed. The
//! reported error is the original one: the message of the task, or if there is none, how its
//! process ended, with the last lines of its stderr.

use crate::{
    checkpoints, confine,
    disks::{AttemptFolders, Disks, ProcessFolders},
    fetch::{Fetcher, JobFiles},
    logs::LogRetention,
    pool::Pool,
    process::{Process, describe_exit, with_stderr},
    shuffle_store::ShuffleStore,
    task_session::{Command, CommandReceiver, Outcome, TaskSession},
    wire::{AttemptEnd, CheckpointSource, Event, MapEventBatch},
};
use engine::segment::Index;
use mrlib_api::limits::truncate_failure;
use proto::mr::{Progress, TaskResult, TaskSpec, TaskStart, ToTask, program, task_spec};
use security::Connector;
use std::{os::unix::fs::symlink, path::PathBuf, sync::Arc, time::Duration};
use tokio::{sync::mpsc, task::JoinError};
use types::{AttemptId, Phase, PreemptKind};

/// Time between two progress reports of an attempt whose files are being fetched.
const KEEP_ALIVE_PERIOD: Duration = Duration::from_secs(1);

/// Runs attempts, and has the resources that they need.
#[derive(Debug)]
pub(crate) struct TaskRunner {
    /// Folders of the tracker.
    pub(crate) disks: Arc<Disks>,
    /// Fetches the files of jobs.
    pub(crate) fetcher: Fetcher,
    /// Idle processes.
    pub(crate) pool: Arc<Pool>,
    /// Map outputs and checkpoints.
    pub(crate) shuffle_store: Arc<ShuffleStore>,
    /// Limits the number of ended attempts whose logs are kept.
    pub(crate) log_retention: LogRetention,
    /// Maximum size of each log in bytes; 0 for no limit.
    pub(crate) log_max: u64,
    /// Memory that a task uses for its buffers.
    pub(crate) memory_bytes: u64,
    /// The permit for a copy from another tracker. Only one copy is made at a time.
    pub(crate) copying: tokio::sync::Semaphore,
    /// Connects to other trackers.
    pub(crate) connector: Connector,
    /// Certificate authority of servers; empty without TLS.
    pub(crate) authority: Vec<u8>,
    /// Whether owners are enforced. If so, the owner of logs is stored with them.
    pub(crate) enforce_owners: bool,
    /// Whether tasks are confined to their folders.
    pub(crate) confine: bool,
    /// Additional folders that confined tasks may read.
    pub(crate) reads: Vec<PathBuf>,
    /// Folders that confined tasks may write, in addition to their own.
    pub(crate) writes: Vec<PathBuf>,
    /// Channel for events to the agent.
    pub(crate) events: mpsc::Sender<Event>,
}

impl TaskRunner {
    /// Starts an attempt. The returned sender passes commands to it.
    pub(crate) fn start(
        self: &Arc<Self>,
        attempt: AttemptId,
        spec: Box<TaskSpec>,
        resume_from: Option<CheckpointSource>,
    ) -> mpsc::UnboundedSender<Command> {
        let (commands, receiver) = mpsc::unbounded_channel();
        let task_runner = self.clone();
        tokio::spawn(async move {
            let ending = match task_runner.run_attempt(attempt, *spec, resume_from, receiver).await {
                AttemptEnd::Failed(text) => AttemptEnd::Failed(truncate_failure(text)),
                AttemptEnd::Killed(text) => AttemptEnd::Killed(truncate_failure(text)),
                other => other,
            };
            task_runner.events.send(Event::Ended(attempt, ending)).await.ok();
        });
        commands
    }

    async fn run_attempt(
        self: &Arc<Self>,
        attempt: AttemptId,
        spec: TaskSpec,
        resume_from: Option<CheckpointSource>,
        mut commands: CommandReceiver,
    ) -> AttemptEnd {
        let mut early = EarlyCommands::default();
        let files = match self.fetch(attempt, &spec, &mut commands, &mut early).await {
            Ok(files) => files,
            Err(ending) => return ending,
        };
        let AssignedProcess { process, to_task, work, start } =
            match self.assign_process(attempt, spec, resume_from, files).await {
                Ok(assigned) => assigned,
                Err(why) => return AttemptEnd::Failed(why),
            };
        let mut session = TaskSession::new(self.events.clone(), attempt, start, process, to_task);
        for more in early.map_events {
            session.send_map_events(more);
        }
        if let Some((kind, why)) = early.preemption {
            session.preempt(kind, why);
        }
        session.run(&mut commands).await;
        self.conclude(attempt, session, work).await
    }

    /// Fetches the files of the job, and stores commands that arrive meanwhile in `early`. The
    /// error says how the attempt has ended.
    async fn fetch(
        &self,
        attempt: AttemptId,
        spec: &TaskSpec,
        commands: &mut CommandReceiver,
        early: &mut EarlyCommands,
    ) -> Result<JobFiles, AttemptEnd> {
        let fetching = self.fetcher.files(attempt.job(), spec);
        tokio::pin!(fetching);
        // Report progress periodically, because large files take time. The client returns an error
        // by itself if no data arrives.
        let mut ticks = tokio::time::interval(KEEP_ALIVE_PERIOD);
        let mut activity = 0;
        let files = loop {
            tokio::select! {
                biased;
                files = &mut fetching => break files,
                _ = ticks.tick() => {
                    if activity > 0 {
                        let fetching = Progress { activity, ..Progress::default() };
                        // Do not wait if the channel is full; the next report will do.
                        self.events.try_send(Event::Progressed(attempt, fetching)).ok();
                    }
                    activity += 1;
                }
                command = commands.recv() => match command {
                    Some(Command::MapEvents(more)) => early.map_events.push(more),
                    Some(Command::Preempt(kind, why)) => early.preemption = Some((kind, why)),
                    Some(Command::Kill(why)) => return Err(AttemptEnd::Killed(why)),
                    None => return Err(AttemptEnd::Killed("the tracker is stopping".into())),
                },
            }
        };
        match files {
            Ok(files) => Ok(files),
            // This is not reported as a failure, because another attempt would have to wait for the
            // file system too.
            Err(error) if error.is_unavailable() => Err(AttemptEnd::Killed(error.to_string())),
            Err(error) => Err(AttemptEnd::Failed(error.to_string())),
        }
    }

    /// Returns the first message to the process. May block on disks, because it creates the folders
    /// that a confined task may access.
    fn task_start(
        &self,
        attempt: AttemptId,
        mut spec: TaskSpec,
        resume_from: Option<&CheckpointSource>,
        work: &AttemptFolders,
    ) -> TaskStart {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let outputs = if makes_output(attempt, &spec) { &work.outputs[..] } else { &[] };
        // A reduce gets only the token of its own partition. A map gets no token.
        spec.shuffle_token = match &spec.input {
            Some(task_spec::Input::Partition(own)) => {
                security::partition_token(&spec.shuffle_token, &attempt.job().to_string(), own.index)
            }
            _ => Vec::new(),
        };
        let reuse = may_reuse_process(&spec);
        let mut start = TaskStart {
            authority: self.authority.clone(),
            work_dir: text(&work.working),
            scratch_dirs: work.scratch.iter().map(text).collect(),
            memory_bytes: self.memory_bytes,
            map_output: outputs.first().map(text).unwrap_or_default(),
            other_map_outputs: outputs.iter().skip(1).map(text).collect(),
            reuse,
            spec: Some(spec),
            client: Some(self.fetcher.client_settings()),
            ..TaskStart::default()
        };
        if attempt.phase() == Phase::Reduce {
            checkpoints::set_checkpoint_locations(&mut start, work, resume_from, &self.shuffle_store);
        }
        start.confinement = self.confine.then(|| {
            let (reads, writes) = (&self.reads, &self.writes);
            confine::confinement(&self.disks, attempt.job(), work, &start.resume_dirs, reuse, reads, writes)
        });
        start
    }

    /// Takes an idle process from the pool and makes its folders the folders of the attempt. A job
    /// with its own executable gets a new process instead, which is started only after the folders
    /// exist, because it is confined to them from the start.
    async fn assign_process(
        self: &Arc<Self>,
        attempt: AttemptId,
        spec: TaskSpec,
        resume_from: Option<CheckpointSource>,
        files: JobFiles,
    ) -> Result<AssignedProcess, String> {
        let JobFiles { executable, side_files } = files;
        let (unassigned, folders) = if executable.is_some() {
            (None, None)
        } else {
            let unassigned = self.pool.take(attempt.job()).await.map_err(|error| error.to_string())?;
            (Some((unassigned.process, unassigned.to_task)), Some(unassigned.folders))
        };
        let task_runner = self.clone();
        let making = move || {
            let work = task_runner.make_folders(attempt, &spec, folders, side_files)?;
            let start = task_runner.task_start(attempt, spec, resume_from.as_ref(), &work);
            Ok((work, start))
        };
        let (work, mut start) = in_background(making).await?;
        let (process, to_task) = match (unassigned, executable) {
            (Some(unassigned), _) => unassigned,
            (None, program) => {
                let (program, confinement) = (program.unwrap_or_default(), start.confinement.take());
                match self.pool.launch(&program, &work, confinement).await {
                    Ok(process) => (process, None),
                    Err(error) => {
                        let disks = self.disks.clone();
                        return in_background(move || {
                            disks.remove_unstarted(&work);
                            Err(error.to_string())
                        })
                        .await;
                    }
                }
            }
        };
        Ok(AssignedProcess { process, to_task, work, start })
    }

    /// Creates the folders of the attempt, with links to the side files of the job. May block on
    /// disks.
    fn make_folders(
        &self,
        attempt: AttemptId,
        spec: &TaskSpec,
        folders: Option<ProcessFolders>,
        side_files: Vec<(String, PathBuf)>,
    ) -> Result<AttemptFolders, String> {
        let disks = &self.disks;
        let folders =
            folders.map_or_else(|| disks.make_process_folders(), Ok).map_err(|error| error.to_string())?;
        self.shuffle_store.add_token(attempt.job(), &spec.shuffle_token, disks);
        let work = match disks.make_attempt_folders(attempt, &folders) {
            Ok(work) => work,
            Err(error) => {
                folders.discard();
                return Err(error.to_string());
            }
        };
        if self.enforce_owners {
            work.write_owner(&spec.user);
        }
        for (name, file) in side_files {
            if let Err(error) = symlink(file, work.working.join(&name)) {
                disks.remove_unstarted(&work);
                return Err(format!("cannot link side file {name}: {error}"));
            }
        }
        Ok(work)
    }

    /// Determines how the attempt has ended, removes its folders, and keeps its process if it can
    /// be reused.
    async fn conclude(&self, attempt: AttemptId, session: TaskSession, work: AttemptFolders) -> AttemptEnd {
        let (disks, shuffle_store, log_retention) =
            (self.disks.clone(), self.shuffle_store.clone(), self.log_retention.clone());
        let pool = self.pool.clone();
        let log_max = self.log_max;
        let makes_output = session.makes_output();
        let (outcome, idle) = session.into_outcome();
        let concluding = tokio::task::spawn_blocking(move || {
            let (ending, output) = match outcome {
                Outcome::Done(result) => find_output(result, makes_output, &work),
                Outcome::Paused => (checkpoints::verify_saved(attempt, &work, &shuffle_store, &disks), None),
                Outcome::CheckpointCorrupt(why) => (AttemptEnd::CheckpointCorrupt(why), None),
                Outcome::CheckpointUnreachable(why) => (AttemptEnd::CheckpointUnreachable(why), None),
                Outcome::Failed(text) => (AttemptEnd::Failed(name_full_disk(text, &disks)), None),
                Outcome::Fatal(text) => (AttemptEnd::Fatal(text), None),
                Outcome::ProtocolError(why) => {
                    (fail_without_result(with_stderr(&why, &work.logs), &disks, &work), None)
                }
                Outcome::Ended(status) => {
                    (fail_without_result(describe_exit(status, &work.logs), &disks, &work), None)
                }
                Outcome::Killed(why) | Outcome::DfsUnavailable(why) | Outcome::NotResumed(why) => {
                    (AttemptEnd::Killed(why), None)
                }
            };
            if attempt.phase() == Phase::Reduce && !matches!(ending, AttemptEnd::Paused(_)) {
                disks.delete_checkpoint(attempt);
            }
            let reuse =
                idle.is_some() && matches!(ending, AttemptEnd::Succeeded { .. } | AttemptEnd::Paused(_));
            let process_logs = reuse.then(|| disks.detach_logs(&work)).transpose().unwrap_or_else(|error| {
                tracing::warn!(%attempt, %error, "cannot separate the logs of the attempt: its process is not reused");
                None
            });
            disks.remove_attempt_folders(&work, output.as_ref().map(|(path, _)| path.as_path()), log_max);
            if let Some((path, index)) = output {
                shuffle_store.add_output(attempt, path, index);
            }
            log_retention.add(attempt, &disks);
            if let (Some(idle), Some(process_logs)) = (idle, process_logs) {
                pool.keep_idle(attempt.job(), idle, process_logs);
            }
            ending
        });
        concluding.await.unwrap_or_else(|error| AttemptEnd::Failed(internal_error(&error)))
    }
}

fn internal_error(error: &JoinError) -> String {
    format!("internal error of the tracker: {error}")
}

/// Runs a function that may block on a disk.
async fn in_background<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(act).await.unwrap_or_else(|error| Err(internal_error(&error)))
}

/// Returns whether the attempt writes a map output for reduces.
fn makes_output(attempt: AttemptId, spec: &TaskSpec) -> bool {
    attempt.phase() == Phase::Map && spec.reduces > 0
}

/// Returns whether a process may run several attempts of the job. A built-in program leaves nothing
/// behind; another program may leave child processes or changed static variables.
fn may_reuse_process(spec: &TaskSpec) -> bool {
    let program = spec.program.as_ref().and_then(|program| program.kind.as_ref());
    matches!(program, Some(program::Kind::Builtin(name)) if name != engine::registry::STREAMING)
}

/// Finds the map output of an attempt that has succeeded. The task has written it to the first disk
/// with enough space.
fn find_output(
    result: TaskResult,
    makes_output: bool,
    work: &AttemptFolders,
) -> (AttemptEnd, Option<(PathBuf, Index)>) {
    if !makes_output {
        return (AttemptEnd::Succeeded { result, output: false }, None);
    }
    let read = |path: &PathBuf| Index::read(path).map(|index| (path.clone(), index));
    let mut found = read(&work.outputs[0]);
    for other in &work.outputs[1..] {
        found = found.or_else(|error| read(other).map_err(|_| error));
    }
    match found {
        Ok(output) => (AttemptEnd::Succeeded { result, output: true }, Some(output)),
        Err(error) => {
            let why = format!("the map output cannot be used: {error}");
            (AttemptEnd::Failed(why), None)
        }
    }
}

/// If an error says that a disk of the tracker is full, adds the disk to the error and avoids it
/// for the next attempts. The error must contain the path of a folder of the tracker, because the
/// distributed file system may be full instead.
fn name_full_disk(text: String, disks: &Disks) -> String {
    const FULL: [&str; 4] = ["No space left on device", "os error 28", "Disk quota exceeded", "os error 122"];
    if !FULL.iter().any(|full| text.contains(full)) {
        return text;
    }
    match disks.folder_named_in(&text) {
        Some(disk) => avoid_full_disk(text, disks, disk),
        None => text,
    }
}

/// Returns the failure of an attempt whose process has ended without a result. If one of its disks
/// is full, which is the likely reason, the error names the disk.
fn fail_without_result(text: String, disks: &Disks, work: &AttemptFolders) -> AttemptEnd {
    AttemptEnd::Failed(match disks.full_disk_of(work) {
        Some(disk) => avoid_full_disk(text, disks, disk),
        None => text,
    })
}

fn avoid_full_disk(text: String, disks: &Disks, disk: usize) -> String {
    disks.avoid(disk);
    format!("no space on {}: {text}", disks.root(disk).display())
}

/// A process that was assigned to an attempt and runs in its folders.
struct AssignedProcess {
    process: Process,
    to_task: Option<mpsc::Sender<ToTask>>,
    work: AttemptFolders,
    start: TaskStart,
}

/// Commands that arrived before the attempt had a process.
#[derive(Default)]
struct EarlyCommands {
    map_events: Vec<MapEventBatch>,
    preemption: Option<(PreemptKind, String)>,
}
