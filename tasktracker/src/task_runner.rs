//! The life cycle of an attempt: fetch its files, find a process, run it, and report its end.
//!
//! There is one asynchronous task per attempt. Invariants: the end of an attempt is reported after
//! its process group is dead, or its process is idle, and its folders are removed. The reported
//! error is the original one: the message of the task, else how its process ended, with the last
//! lines of its stderr.

use crate::{
    checkpoints, confine,
    disks::{AttemptFolders, Disks, ProcessFolders},
    fetch::{Fetcher, JobFiles},
    logs::Retention,
    pool::Pool,
    process::{Process, describe_exit, with_stderr},
    shuffle_store::ShuffleStore,
    task_session::{Command, Commands, Outcome, TaskSession},
    wire::{AttemptEnd, CheckpointSource, Event, MapEventBatch},
};
use engine::segment::Index;
use mrlib_api::limits::truncate_failure;
use proto::mr::{Progress, TaskResult, TaskSpec, TaskStart, ToTask, program, task_spec};
use security::Connector;
use std::{os::unix::fs::symlink, path::PathBuf, sync::Arc, time::Duration};
use tokio::{sync::mpsc, task::JoinError};
use types::{AttemptId, Phase, PreemptKind};

/// Interval of progress reports of an attempt whose files are being fetched.
const KEEP_ALIVE_PERIOD: Duration = Duration::from_secs(1);

/// Resources of attempts.
#[derive(Debug)]
pub(crate) struct TaskRunner {
    /// Folders of the tracker.
    pub(crate) disks: Arc<Disks>,
    /// Files of jobs.
    pub(crate) fetcher: Fetcher,
    /// Idle processes.
    pub(crate) pool: Arc<Pool>,
    /// Map outputs and checkpoints.
    pub(crate) shuffle_store: Arc<ShuffleStore>,
    /// Logs of ended attempts.
    pub(crate) retention: Retention,
    /// Maximum bytes of each log; 0 for no limit.
    pub(crate) log_max: u64,
    /// Memory that a task uses for its buffers.
    pub(crate) memory_bytes: u64,
    /// Only one copy from another tracker is made at a time.
    pub(crate) copying: tokio::sync::Semaphore,
    /// Connections to other trackers.
    pub(crate) connector: Connector,
    /// Certificate authority of servers; empty without TLS.
    pub(crate) authority: Vec<u8>,
    /// Whether owners are enforced; then the owner of logs is stored.
    pub(crate) enforce_owners: bool,
    /// Whether tasks are confined to their folders.
    pub(crate) confine: bool,
    /// Additional folders that confined tasks may read.
    pub(crate) reads: Vec<PathBuf>,
    /// Channel for events to the agent.
    pub(crate) events: mpsc::Sender<Event>,
}

impl TaskRunner {
    /// Starts an attempt. The returned sender passes commands to it.
    pub(crate) fn start(
        self: &Arc<Self>,
        attempt: AttemptId,
        spec: Box<TaskSpec>,
        from: Option<CheckpointSource>,
    ) -> mpsc::UnboundedSender<Command> {
        let (commands, receiver) = mpsc::unbounded_channel();
        let task_runner = self.clone();
        tokio::spawn(async move {
            let ending = match task_runner.run_attempt(attempt, *spec, from, receiver).await {
                AttemptEnd::Failed(words) => AttemptEnd::Failed(truncate_failure(words)),
                AttemptEnd::Killed(words) => AttemptEnd::Killed(truncate_failure(words)),
                good => good,
            };
            task_runner.events.send(Event::Ended(attempt, ending)).await.ok();
        });
        commands
    }

    async fn run_attempt(
        self: &Arc<Self>,
        attempt: AttemptId,
        spec: TaskSpec,
        from: Option<CheckpointSource>,
        mut commands: Commands,
    ) -> AttemptEnd {
        let mut early = EarlyCommands::default();
        let files = match self.fetch(attempt, &spec, &mut commands, &mut early).await {
            Ok(files) => files,
            Err(ending) => return ending,
        };
        let AssignedProcess { process, to_task, work, start } =
            match self.assign_process(attempt, spec, from, files).await {
                Ok(moved) => moved,
                Err(why) => return AttemptEnd::Failed(why),
            };
        let mut session = TaskSession::new(self.events.clone(), attempt, start, process, to_task);
        for more in early.map_events {
            session.send_map_events(more);
        }
        if let Some((kind, why)) = early.preempts {
            session.preempt(kind, why);
        }
        session.run(&mut commands).await;
        self.conclude(attempt, session, work).await
    }

    /// Fetches the files of the job; commands that arrive meanwhile are stored. An error is the end
    /// of the attempt.
    async fn fetch(
        &self,
        attempt: AttemptId,
        spec: &TaskSpec,
        commands: &mut Commands,
        early: &mut EarlyCommands,
    ) -> Result<JobFiles, AttemptEnd> {
        let fetching = self.fetcher.files(attempt.job(), spec);
        tokio::pin!(fetching);
        // Large files take time. The client fails by itself when no data arrives.
        let mut beats = tokio::time::interval(KEEP_ALIVE_PERIOD);
        let mut activity = 0;
        let files = loop {
            tokio::select! {
                biased;
                files = &mut fetching => break files,
                _ = beats.tick() => {
                    if activity > 0 {
                        let fetching = Progress { activity, stage: "files".into(), ..Progress::default() };
                        // Not awaited: the next report is as good.
                        self.events.try_send(Event::Progressed(attempt, fetching)).ok();
                    }
                    activity += 1;
                }
                command = commands.recv() => match command {
                    Some(Command::MapEvents(more)) => early.map_events.push(more),
                    Some(Command::Preempt(kind, why)) => early.preempts = Some((kind, why)),
                    Some(Command::Kill(why)) => return Err(AttemptEnd::Killed(why)),
                    None => return Err(AttemptEnd::Killed("the tracker stops".into())),
                },
            }
        };
        match files {
            Ok(files) => Ok(files),
            // Not counted as a failure: another attempt would wait for the file system too.
            Err(error) if error.is_unavailable() => Err(AttemptEnd::Killed(error.to_string())),
            Err(error) => Err(AttemptEnd::Failed(error.to_string())),
        }
    }

    /// Returns the first message to the process. Blocks on disks, because a rule requires that its
    /// folder exists.
    fn task_start(
        &self,
        attempt: AttemptId,
        mut spec: TaskSpec,
        from: Option<&CheckpointSource>,
        work: &AttemptFolders,
    ) -> TaskStart {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let outputs = if makes_output(attempt, &spec) { &work.outputs[..] } else { &[] };
        // A reduce gets a token for its own partition only. A map gets none.
        spec.shuffle_token = match &spec.input {
            Some(task_spec::Input::Partition(own)) => {
                security::partition_token(&spec.shuffle_token, &attempt.job().to_string(), own.index)
            }
            _ => Vec::new(),
        };
        let reuse = may_reuse(&spec);
        let mut start = TaskStart {
            authority: self.authority.clone(),
            work_dir: text(&work.own),
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
            checkpoints::prepare(&mut start, work, from, &self.shuffle_store);
        }
        start.confinement = self.confine.then(|| {
            confine::confinement(&self.disks, attempt.job(), work, &start.resume_dirs, reuse, &self.reads)
        });
        start
    }

    /// Finds a process, and turns its folders into those of the attempt. An executable is started
    /// after the folders exist, because it is confined to them from its start.
    async fn assign_process(
        self: &Arc<Self>,
        attempt: AttemptId,
        spec: TaskSpec,
        from: Option<CheckpointSource>,
        files: JobFiles,
    ) -> Result<AssignedProcess, String> {
        let JobFiles { executable, side } = files;
        let (waiting, place) = if executable.is_some() {
            (None, None)
        } else {
            let fresh = self.pool.take(attempt.job()).await.map_err(|error| error.to_string())?;
            (Some((fresh.process, fresh.to_task)), Some(fresh.place))
        };
        let task_runner = self.clone();
        let making = move || {
            let work = task_runner.make_folders(attempt, &spec, place, side)?;
            let start = task_runner.task_start(attempt, spec, from.as_ref(), &work);
            Ok((work, start))
        };
        let (work, mut start) = in_background(making).await?;
        let (process, to_task) = match (waiting, executable) {
            (Some(waiting), _) => waiting,
            (None, program) => {
                let (program, confinement) = (program.unwrap_or_default(), start.confinement.take());
                match self.pool.launch(&program, &work, confinement).await {
                    Ok(process) => (process, None),
                    Err(error) => {
                        let disks = self.disks.clone();
                        return in_background(move || {
                            disks.abandon(&work);
                            Err(error.to_string())
                        })
                        .await;
                    }
                }
            }
        };
        Ok(AssignedProcess { process, to_task, work, start })
    }

    /// Creates the folders, with the files of the job. Blocks on disks.
    fn make_folders(
        &self,
        attempt: AttemptId,
        spec: &TaskSpec,
        place: Option<ProcessFolders>,
        side: Vec<(String, PathBuf)>,
    ) -> Result<AttemptFolders, String> {
        let disks = &self.disks;
        let place =
            place.map_or_else(|| disks.make_process_folders(), Ok).map_err(|error| error.to_string())?;
        self.shuffle_store.add_token(attempt.job(), &spec.shuffle_token, disks);
        let work = match disks.make_attempt_folders(attempt, &place) {
            Ok(work) => work,
            Err(error) => {
                place.discard();
                return Err(error.to_string());
            }
        };
        if self.enforce_owners {
            work.write_owner(&spec.user);
        }
        for (name, file) in side {
            if let Err(error) = symlink(file, work.own.join(&name)) {
                disks.abandon(&work);
                return Err(format!("cannot link side file {name}: {error}"));
            }
        }
        Ok(work)
    }

    /// Determines the end of the attempt, and removes its folders.
    async fn conclude(&self, attempt: AttemptId, session: TaskSession, work: AttemptFolders) -> AttemptEnd {
        let (disks, shuffle_store, retention) =
            (self.disks.clone(), self.shuffle_store.clone(), self.retention.clone());
        let pool = self.pool.clone();
        let log_max = self.log_max;
        let makes_output = session.makes_output();
        let (outcome, waiting) = session.outcome();
        let concluding = tokio::task::spawn_blocking(move || {
            let (ending, output) = match outcome {
                Outcome::Done(result) => succeed(result, makes_output, &work),
                Outcome::Paused => (checkpoints::conclude(attempt, &work, &shuffle_store, &disks), None),
                Outcome::CheckpointCorrupt(why) => (AttemptEnd::CheckpointCorrupt(why), None),
                Outcome::CheckpointUnreachable(why) => (AttemptEnd::CheckpointUnreachable(why), None),
                Outcome::Failed(words) => (AttemptEnd::Failed(name_full_disk(words, &disks)), None),
                Outcome::Fatal(words) => (AttemptEnd::Fatal(words), None),
                Outcome::ProtocolError(kind) => {
                    (describe_silent_exit(with_stderr(&kind, &work.logs), &disks, &work), None)
                }
                Outcome::Ended(status) => {
                    (describe_silent_exit(describe_exit(status, &work.logs), &disks, &work), None)
                }
                Outcome::Stopped(why) | Outcome::DfsUnavailable(why) | Outcome::NotResumed(why) => {
                    (AttemptEnd::Killed(why), None)
                }
            };
            if attempt.phase() == Phase::Reduce && !matches!(ending, AttemptEnd::Paused(_)) {
                disks.delete_checkpoint(attempt);
            }
            let reuse =
                waiting.is_some() && matches!(ending, AttemptEnd::Succeeded { .. } | AttemptEnd::Paused(_));
            let process_logs = reuse.then(|| disks.detach_logs(&work)).transpose().unwrap_or_else(|error| {
                tracing::warn!(%attempt, %error, "cannot separate the logs of the attempt: its process is not reused");
                None
            });
            disks.remove_attempt_folders(&work, output.as_ref().map(|(path, _)| path.as_path()), log_max);
            if let Some((path, index)) = output {
                shuffle_store.add(attempt, path, index);
            }
            retention.add(attempt, &disks);
            if let (Some(waiting), Some(process_logs)) = (waiting, process_logs) {
                pool.keep_idle(attempt.job(), waiting, process_logs);
            }
            ending
        });
        concluding.await.unwrap_or_else(|error| AttemptEnd::Failed(bug(&error)))
    }
}

fn bug(error: &JoinError) -> String {
    format!("internal error of the tracker: {error}")
}

/// Runs a function that may block on a disk.
async fn in_background<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(act).await.unwrap_or_else(|error| Err(bug(&error)))
}

fn makes_output(attempt: AttemptId, spec: &TaskSpec) -> bool {
    attempt.phase() == Phase::Map && spec.reduces > 0
}

/// Whether a process may run several attempts of the job. A built-in program leaves nothing behind;
/// another program may leave a child process or changed statics.
fn may_reuse(spec: &TaskSpec) -> bool {
    let program = spec.program.as_ref().and_then(|program| program.kind.as_ref());
    matches!(program, Some(program::Kind::Builtin(name)) if name != engine::registry::STREAMING)
}

/// Finds the map output: the task writes it to the first disk with enough space.
fn succeed(
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

/// If a disk of the tracker is full, which is not a fault of the task, names it and avoids it for
/// the next attempt. The error must contain one of our folders, because the cluster's file system
/// may be full instead.
fn name_full_disk(words: String, disks: &Disks) -> String {
    const FULL: [&str; 4] = ["No space left on device", "os error 28", "Disk quota exceeded", "os error 122"];
    if !FULL.iter().any(|text| words.contains(text)) {
        return words;
    }
    match disks.folder_named_in(&words) {
        Some(disk) => avoid_full_disk(words, disks, disk),
        None => words,
    }
}

/// Describes the end of a process without a message. If one of its disks is full, that is the
/// likely reason.
fn describe_silent_exit(words: String, disks: &Disks, work: &AttemptFolders) -> AttemptEnd {
    AttemptEnd::Failed(match disks.full(work) {
        Some(disk) => avoid_full_disk(words, disks, disk),
        None => words,
    })
}

fn avoid_full_disk(words: String, disks: &Disks, disk: usize) -> String {
    disks.avoid(disk);
    format!("no space on {}: {words}", disks.root(disk).display())
}

/// A process in the folder of its attempt.
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
    preempts: Option<(PreemptKind, String)>,
}
