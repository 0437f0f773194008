//! The life of an attempt: its files fetched, a process found for it, what that says and how it ends.
//!
//! One task an attempt, told straight through. What holds: an attempt's ending is reported after its process
//! group is dead, or has nothing more to do with it, and its folders are gone; the error is the real one: the task's own words, else how its process
//! ended, with the last lines of its stderr.

use crate::{
    agent::{AttemptEnd, CheckpointSource, Event, MapEventBatch},
    checkpoints, confine,
    disks::{AttemptFolders, Disks, ProcessFolders},
    fetch::{Fetcher, JobFiles},
    ids::{Attempt, Phase},
    logs::Retention,
    pool::Pool,
    process::{Process, describe_exit, with_stderr},
    shuffle_store::ShuffleStore,
    task_session::{Outcome, TaskSession},
};
use mrlib::{segment::Index, task::limits::truncate_failure};
use proto::mr::{PreemptKind, Progress, TaskResult, TaskSpec, TaskStart, ToTask, program, task_spec};
use security::Connector;
use std::{os::unix::fs::symlink, path::PathBuf, sync::Arc, time::Duration};
use tokio::{sync::mpsc, task::JoinError};

/// Between two signs of life of an attempt whose files are being fetched.
const KEEP_ALIVE_PERIOD: Duration = Duration::from_secs(1);

/// What a running attempt is told.
#[derive(Debug)]
pub(crate) enum Command {
    /// Entries of its job's map events.
    MapEvents(MapEventBatch),
    /// End at once.
    Kill(String),
    /// End by itself, in this way.
    Preempt(PreemptKind, String),
}

/// What attempts need.
#[derive(Debug)]
pub(crate) struct TaskRunner {
    /// Folders.
    pub(crate) disks: Arc<Disks>,
    /// Their jobs' files.
    pub(crate) fetcher: Fetcher,
    /// Idle processes.
    pub(crate) pool: Arc<Pool>,
    /// Where map output goes.
    pub(crate) shuffle_store: Arc<ShuffleStore>,
    /// Logs.
    pub(crate) retention: Retention,
    /// Bytes of each log that are kept; 0 for all.
    pub(crate) log_max: u64,
    /// Memory that a task plans for.
    pub(crate) memory_bytes: u64,
    /// Copies from other trackers are made one at a time.
    pub(crate) copying: tokio::sync::Semaphore,
    /// Turns connections to other trackers into streams.
    pub(crate) connector: Connector,
    /// The certificate that servers must be signed by; empty where they speak no TLS.
    pub(crate) authority: Vec<u8>,
    /// Whether owners bind: then logs are kept with whose they are.
    pub(crate) enforce_owners: bool,
    /// Whether tasks are kept to their folders,
    pub(crate) confine: bool,
    /// and to these, for reading.
    pub(crate) reads: Vec<PathBuf>,
    /// Where what happens is told.
    pub(crate) events: mpsc::Sender<Event>,
}

/// What an attempt is told.
pub(crate) type Commands = mpsc::UnboundedReceiver<Command>;

impl TaskRunner {
    /// Begins an attempt; the sender reaches it.
    pub(crate) fn start(
        self: &Arc<Self>,
        attempt: Attempt,
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
        attempt: Attempt,
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

    /// The job's files; meanwhile, what is said to the attempt is kept for it. An error is the attempt's end.
    async fn fetch(
        &self,
        attempt: Attempt,
        spec: &TaskSpec,
        commands: &mut Commands,
        early: &mut EarlyCommands,
    ) -> Result<JobFiles, AttemptEnd> {
        let fetching = self.fetcher.files(attempt.job, spec);
        tokio::pin!(fetching);
        // Large files take their time. The client gives up by itself when nothing comes.
        let mut beats = tokio::time::interval(KEEP_ALIVE_PERIOD);
        let mut activity = 0;
        let files = loop {
            tokio::select! {
                biased;
                files = &mut fetching => break files,
                _ = beats.tick() => {
                    if activity > 0 {
                        let fetching = Progress { activity, stage: "files".into(), ..Progress::default() };
                        // Not waited for: the next will do as well.
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
            // It counts against nobody, and another attempt waits for the file system as this one did.
            Err(error) if error.is_unavailable() => Err(AttemptEnd::Killed(error.to_string())),
            Err(error) => Err(AttemptEnd::Failed(error.to_string())),
        }
    }

    /// What its process is told first. Waits for disks: a rule needs its folder to be there.
    fn task_start(
        &self,
        attempt: Attempt,
        mut spec: TaskSpec,
        from: Option<&CheckpointSource>,
        work: &AttemptFolders,
    ) -> TaskStart {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let outputs = if makes_output(attempt, &spec) { &work.outputs[..] } else { &[] };
        // A task opens its own partition and no other. A map opens none.
        spec.shuffle_token = match &spec.input {
            Some(task_spec::Input::Partition(own)) => {
                security::partition_token(&spec.shuffle_token, &attempt.job.to_string(), own.index)
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
        if attempt.phase == Phase::Reduce {
            checkpoints::prepare(&mut start, work, from, &self.shuffle_store);
        }
        start.confinement = self.confine.then(|| {
            confine::confinement(&self.disks, attempt.job, work, &start.resume_dirs, reuse, &self.reads)
        });
        start
    }

    /// Finds it a process, and makes the process's folders the attempt's. An executable is started when they are made:
    /// it is locked into them from its beginning.
    async fn assign_process(
        self: &Arc<Self>,
        attempt: Attempt,
        spec: TaskSpec,
        from: Option<CheckpointSource>,
        files: JobFiles,
    ) -> Result<AssignedProcess, String> {
        let JobFiles { executable, side } = files;
        let (waiting, place) = if executable.is_some() {
            (None, None)
        } else {
            let fresh = self.pool.take(attempt.job).await.map_err(|error| error.to_string())?;
            (Some((fresh.process, fresh.to_task)), Some(fresh.place))
        };
        let task_runner = self.clone();
        let making = move || {
            let work = task_runner.make_folders(attempt, &spec, place, side)?;
            let start = task_runner.task_start(attempt, spec, from.as_ref(), &work);
            Ok((work, start))
        };
        let (work, mut start) = checkpoint_dir(making).await?;
        let (process, to_task) = match (waiting, executable) {
            (Some(waiting), _) => waiting,
            (None, program) => {
                let (program, confinement) = (program.unwrap_or_default(), start.confinement.take());
                match self.pool.launch(&program, &work, confinement).await {
                    Ok(process) => (process, None),
                    Err(error) => {
                        let disks = self.disks.clone();
                        return checkpoint_dir(move || {
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

    /// Makes the folders, with the job's files in them. Waits for disks.
    fn make_folders(
        &self,
        attempt: Attempt,
        spec: &TaskSpec,
        place: Option<ProcessFolders>,
        side: Vec<(String, PathBuf)>,
    ) -> Result<AttemptFolders, String> {
        let disks = &self.disks;
        let place =
            place.map_or_else(|| disks.make_process_folders(), Ok).map_err(|error| error.to_string())?;
        self.shuffle_store.add_token(attempt.job, &spec.shuffle_token, disks);
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

    /// What it came to, and the end of its folders.
    async fn conclude(&self, attempt: Attempt, session: TaskSession, work: AttemptFolders) -> AttemptEnd {
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
                    (describe_silent_exit(with_stderr(kind, &work.logs), &disks, &work), None)
                }
                Outcome::Ended(status) => {
                    (describe_silent_exit(describe_exit(status, &work.logs), &disks, &work), None)
                }
                Outcome::Stopped(why) | Outcome::DfsUnavailable(why) | Outcome::NotResumed(why) => {
                    (AttemptEnd::Killed(why), None)
                }
            };
            if attempt.phase == Phase::Reduce && !matches!(ending, AttemptEnd::Paused(_)) {
                disks.delete_checkpoint(attempt);
            }
            let reuse =
                waiting.is_some() && matches!(ending, AttemptEnd::Succeeded { .. } | AttemptEnd::Paused(_));
            let process_logs = reuse.then(|| disks.detach_logs(&work)).transpose().unwrap_or_else(|error| {
                tracing::warn!(%attempt, %error, "its logs cannot be separated: its process ends");
                None
            });
            disks.remove_attempt_folders(&work, output.as_ref().map(|(path, _)| path.as_path()), log_max);
            if let Some((path, index)) = output {
                shuffle_store.add(attempt, path, index);
            }
            retention.add(attempt, &disks);
            if let (Some(waiting), Some(process_logs)) = (waiting, process_logs) {
                pool.keep_idle(attempt.job, waiting, process_logs);
            }
            ending
        });
        concluding.await.unwrap_or_else(|error| AttemptEnd::Failed(bug(&error)))
    }
}

fn bug(error: &JoinError) -> String {
    format!("a bug of the tracker: {error}")
}

/// Does what may wait for a disk.
async fn checkpoint_dir<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(act).await.unwrap_or_else(|error| Err(bug(&error)))
}

fn makes_output(attempt: Attempt, spec: &TaskSpec) -> bool {
    attempt.phase == Phase::Map && spec.reduces > 0
}

/// Whether a process may serve one attempt of the job after another. A program of ours leaves nothing behind when it
/// is done; anybody else's may: a process that it started, a static.
fn may_reuse(spec: &TaskSpec) -> bool {
    let program = spec.program.as_ref().and_then(|program| program.kind.as_ref());
    matches!(program, Some(program::Kind::Builtin(name)) if name != mrlib::registry::STREAMING)
}

/// Map output is wherever there is a good one: the task takes the first disk that has room for it.
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
            let why = format!("its map output cannot be used: {error}");
            (AttemptEnd::Failed(why), None)
        }
    }
}

/// A full disk of ours is not the task's fault: says so, and lets the next attempt go elsewhere. The words must
/// tell of one of our folders: it may be the file system of the cluster that is full.
fn name_full_disk(words: String, disks: &Disks) -> String {
    const FULL: [&str; 4] = ["No space left on device", "os error 28", "Disk quota exceeded", "os error 122"];
    if !FULL.iter().any(|text| words.contains(text)) {
        return words;
    }
    match disks.folder_named_in(&words) {
        Some(disk) => blame_disk(words, disks, disk),
        None => words,
    }
}

/// The end of a process that could not say why. If a disk that it wrote to is full, that is the likely reason.
fn describe_silent_exit(words: String, disks: &Disks, work: &AttemptFolders) -> AttemptEnd {
    AttemptEnd::Failed(match disks.full(work) {
        Some(disk) => blame_disk(words, disks, disk),
        None => words,
    })
}

fn blame_disk(words: String, disks: &Disks, disk: usize) -> String {
    disks.avoid(disk);
    format!("no space on {}: {words}", disks.root(disk).display())
}

/// A process in its attempt's folder.
struct AssignedProcess {
    process: Process,
    to_task: Option<mpsc::Sender<ToTask>>,
    work: AttemptFolders,
    start: TaskStart,
}

/// What an attempt was told before it had a process.
#[derive(Default)]
struct EarlyCommands {
    map_events: Vec<MapEventBatch>,
    preempts: Option<(PreemptKind, String)>,
}
