//! The life of an attempt: its files fetched, a process found for it, what that says and how it ends.
//!
//! One task an attempt, told straight through. What holds: an attempt's ending is reported after its process
//! group is dead, or has nothing more to do with it, and its folders are gone; the error is the real one: the task's own words, else how its process
//! ended, with the last lines of its stderr.

use crate::{
    agent::{Ending, Event, MapNews, Origin},
    aside, confine,
    disks::{Disks, Place, Work},
    fetch::{Fetcher, JobFiles},
    held::Held,
    ids::{Attempt, Phase},
    logs::Retention,
    pool::Pool,
    process::{Process, last_words, with_stderr},
    talk::{Outcome, Talk},
};
use mrlib::{segment::Index, task::limits::short_failure};
use proto::mr::{Progress, Recall, TaskResult, TaskSpec, TaskStart, ToTask, program, task_spec};
use security::Connector;
use std::{os::unix::fs::symlink, path::PathBuf, sync::Arc, time::Duration};
use tokio::{sync::mpsc, task::JoinError};

/// Between two signs of life of an attempt whose files are being fetched.
const BEAT_PERIOD: Duration = Duration::from_secs(1);

/// What a running attempt is told.
#[derive(Debug)]
pub(crate) enum Command {
    /// Entries of its job's map events.
    News(MapNews),
    /// End at once.
    Kill(String),
    /// End by itself, in this way.
    Ask(Recall, String),
}

/// What attempts need.
#[derive(Debug)]
pub(crate) struct Nursery {
    /// Folders.
    pub(crate) disks: Arc<Disks>,
    /// Their jobs' files.
    pub(crate) fetcher: Fetcher,
    /// Idle processes.
    pub(crate) pool: Arc<Pool>,
    /// Where map output goes.
    pub(crate) held: Arc<Held>,
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
    pub(crate) owners_bind: bool,
    /// Whether tasks are kept to their folders,
    pub(crate) confine: bool,
    /// and to these, for reading.
    pub(crate) reads: Vec<PathBuf>,
    /// Where what happens is told.
    pub(crate) events: mpsc::Sender<Event>,
}

/// What an attempt is told.
pub(crate) type Commands = mpsc::UnboundedReceiver<Command>;

impl Nursery {
    /// Begins an attempt; the sender reaches it.
    pub(crate) fn start(
        self: &Arc<Self>,
        attempt: Attempt,
        spec: Box<TaskSpec>,
        from: Option<Origin>,
    ) -> mpsc::UnboundedSender<Command> {
        let (commands, receiver) = mpsc::unbounded_channel();
        let nursery = self.clone();
        tokio::spawn(async move {
            let ending = match nursery.live(attempt, *spec, from, receiver).await {
                Ending::Failed(words) => Ending::Failed(short_failure(words)),
                Ending::Killed(words) => Ending::Killed(short_failure(words)),
                good => good,
            };
            nursery.events.send(Event::Ended(attempt, ending)).await.ok();
        });
        commands
    }

    async fn live(
        self: &Arc<Self>,
        attempt: Attempt,
        spec: TaskSpec,
        from: Option<Origin>,
        mut commands: Commands,
    ) -> Ending {
        let mut early = Early::default();
        let files = match self.fetch(attempt, &spec, &mut commands, &mut early).await {
            Ok(files) => files,
            Err(ending) => return ending,
        };
        let Moved { process, to_task, work, start } = match self.move_in(attempt, spec, from, files).await {
            Ok(moved) => moved,
            Err(why) => return Ending::Failed(why),
        };
        let mut talk = Talk::new(self.events.clone(), attempt, start, process, to_task);
        for more in early.news {
            talk.pass_on(more);
        }
        if let Some((how, why)) = early.asked {
            talk.ask(how, why);
        }
        talk.run(&mut commands).await;
        self.conclude(attempt, talk, work).await
    }

    /// The job's files; meanwhile, what is said to the attempt is kept for it. An error is the attempt's end.
    async fn fetch(
        &self,
        attempt: Attempt,
        spec: &TaskSpec,
        commands: &mut Commands,
        early: &mut Early,
    ) -> Result<JobFiles, Ending> {
        let fetching = self.fetcher.files(attempt.job, spec);
        tokio::pin!(fetching);
        // Large files take their time. The client gives up by itself when nothing comes.
        let mut beats = tokio::time::interval(BEAT_PERIOD);
        let mut beat = 0;
        let files = loop {
            tokio::select! {
                biased;
                files = &mut fetching => break files,
                _ = beats.tick() => {
                    if beat > 0 {
                        let fetching = Progress { beat, stage: "files".into(), ..Progress::default() };
                        // Not waited for: the next will do as well.
                        self.events.try_send(Event::Progressed(attempt, fetching)).ok();
                    }
                    beat += 1;
                }
                command = commands.recv() => match command {
                    Some(Command::News(more)) => early.news.push(more),
                    Some(Command::Ask(how, why)) => early.asked = Some((how, why)),
                    Some(Command::Kill(why)) => return Err(Ending::Killed(why)),
                    None => return Err(Ending::Killed("the tracker stops".into())),
                },
            }
        };
        match files {
            Ok(files) => Ok(files),
            // It counts against nobody, and another attempt waits for the file system as this one did.
            Err(error) if error.is_away() => Err(Ending::Killed(error.to_string())),
            Err(error) => Err(Ending::Failed(error.to_string())),
        }
    }

    /// What its process is told first. Waits for disks: a rule needs its folder to be there.
    fn task_start(
        &self,
        attempt: Attempt,
        mut spec: TaskSpec,
        from: Option<&Origin>,
        work: &Work,
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
        let stay = may_stay(&spec);
        let mut start = TaskStart {
            authority: self.authority.clone(),
            work_dir: text(&work.own),
            scratch_dirs: work.scratch.iter().map(text).collect(),
            memory_bytes: self.memory_bytes,
            map_output: outputs.first().map(text).unwrap_or_default(),
            other_map_outputs: outputs.iter().skip(1).map(text).collect(),
            stay,
            spec: Some(spec),
            client: Some(self.fetcher.client_settings()),
            ..TaskStart::default()
        };
        if attempt.phase == Phase::Reduce {
            aside::prepare(&mut start, work, from, &self.held);
        }
        start.confinement = self.confine.then(|| {
            confine::confinement(&self.disks, attempt.job, work, &start.from_dirs, stay, &self.reads)
        });
        start
    }

    /// Finds it a process, and makes the process's folders the attempt's. An executable is started when they are made:
    /// it is locked into them from its beginning.
    async fn move_in(
        self: &Arc<Self>,
        attempt: Attempt,
        spec: TaskSpec,
        from: Option<Origin>,
        files: JobFiles,
    ) -> Result<Moved, String> {
        let JobFiles { executable, side } = files;
        let (waiting, place) = if executable.is_some() {
            (None, None)
        } else {
            let fresh = self.pool.take(attempt.job).await.map_err(|error| error.to_string())?;
            (Some((fresh.process, fresh.to_task)), Some(fresh.place))
        };
        let nursery = self.clone();
        let making = move || {
            let work = nursery.furnish(attempt, &spec, place, side)?;
            let start = nursery.task_start(attempt, spec, from.as_ref(), &work);
            Ok((work, start))
        };
        let (work, mut start) = aside(making).await?;
        let (process, to_task) = match (waiting, executable) {
            (Some(waiting), _) => waiting,
            (None, program) => {
                let (program, confinement) = (program.unwrap_or_default(), start.confinement.take());
                match self.pool.launch(&program, &work, confinement).await {
                    Ok(process) => (process, None),
                    Err(error) => {
                        let disks = self.disks.clone();
                        return aside(move || {
                            disks.abandon(&work);
                            Err(error.to_string())
                        })
                        .await;
                    }
                }
            }
        };
        Ok(Moved { process, to_task, work, start })
    }

    /// Makes the folders, with the job's files in them. Waits for disks.
    fn furnish(
        &self,
        attempt: Attempt,
        spec: &TaskSpec,
        place: Option<Place>,
        side: Vec<(String, PathBuf)>,
    ) -> Result<Work, String> {
        let disks = &self.disks;
        let place = place.map_or_else(|| disks.make_place(), Ok).map_err(|error| error.to_string())?;
        self.held.learn_token(attempt.job, &spec.shuffle_token, disks);
        let work = match disks.make_work(attempt, &place) {
            Ok(work) => work,
            Err(error) => {
                place.discard();
                return Err(error.to_string());
            }
        };
        if self.owners_bind {
            work.keep_owner(&spec.user);
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
    async fn conclude(&self, attempt: Attempt, talk: Talk, work: Work) -> Ending {
        let (disks, held, retention) = (self.disks.clone(), self.held.clone(), self.retention.clone());
        let pool = self.pool.clone();
        let log_max = self.log_max;
        let makes_output = talk.makes_output();
        let (outcome, waiting) = talk.outcome();
        let concluding = tokio::task::spawn_blocking(move || {
            let (ending, output) = match outcome {
                Outcome::Done(result) => succeed(result, makes_output, &work),
                Outcome::Paused => (aside::conclude(attempt, &work, &held, &disks), None),
                Outcome::Spoilt(why) => (Ending::Spoilt(why), None),
                Outcome::Unreached(why) => (Ending::Unreached(why), None),
                Outcome::Failed(words) => (Ending::Failed(name_full_disk(words, &disks)), None),
                Outcome::Fatal(words) => (Ending::Fatal(words), None),
                Outcome::Broken(how) => (speechless(with_stderr(how, &work.logs), &disks, &work), None),
                Outcome::Ended(status) => (speechless(last_words(status, &work.logs), &disks, &work), None),
                Outcome::Stopped(why) | Outcome::Away(why) | Outcome::Unbegun(why) => {
                    (Ending::Killed(why), None)
                }
            };
            if attempt.phase == Phase::Reduce && !matches!(ending, Ending::Paused(_)) {
                disks.drop_aside(attempt);
            }
            let stays = waiting.is_some() && matches!(ending, Ending::Succeeded { .. } | Ending::Paused(_));
            let printed = stays.then(|| disks.part_logs(&work)).transpose().unwrap_or_else(|error| {
                tracing::warn!(%attempt, %error, "what it printed cannot be kept apart: its process ends");
                None
            });
            disks.end_work(&work, output.as_ref().map(|(path, _)| path.as_path()), log_max);
            if let Some((path, index)) = output {
                held.add(attempt, path, index);
            }
            retention.add(attempt, &disks);
            if let (Some(waiting), Some(printed)) = (waiting, printed) {
                pool.keep(attempt.job, waiting, printed);
            }
            ending
        });
        concluding.await.unwrap_or_else(|error| Ending::Failed(bug(&error)))
    }
}

fn bug(error: &JoinError) -> String {
    format!("a bug of the tracker: {error}")
}

/// Does what may wait for a disk.
async fn aside<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(act).await.unwrap_or_else(|error| Err(bug(&error)))
}

fn makes_output(attempt: Attempt, spec: &TaskSpec) -> bool {
    attempt.phase == Phase::Map && spec.reduces > 0
}

/// Whether a process may serve one attempt of the job after another. A program of ours leaves nothing behind when it
/// is done; anybody else's may: a process that it started, a static.
fn may_stay(spec: &TaskSpec) -> bool {
    let program = spec.program.as_ref().and_then(|program| program.kind.as_ref());
    matches!(program, Some(program::Kind::Builtin(name)) if name != mrlib::registry::STREAMING)
}

/// Map output is wherever there is a good one: the task takes the first disk that has room for it.
fn succeed(result: TaskResult, makes_output: bool, work: &Work) -> (Ending, Option<(PathBuf, Index)>) {
    if !makes_output {
        return (Ending::Succeeded { result, output: false }, None);
    }
    let read = |path: &PathBuf| Index::read(path).map(|index| (path.clone(), index));
    let mut found = read(&work.outputs[0]);
    for other in &work.outputs[1..] {
        found = found.or_else(|error| read(other).map_err(|_| error));
    }
    match found {
        Ok(output) => (Ending::Succeeded { result, output: true }, Some(output)),
        Err(error) => {
            let why = format!("it said that it was done, but its map output cannot be used: {error}");
            (Ending::Failed(why), None)
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
    match disks.named_in(&words) {
        Some(disk) => blame(words, disks, disk),
        None => words,
    }
}

/// The end of a process that could not say why. If a disk that it wrote to is full, that is the likely reason.
fn speechless(words: String, disks: &Disks, work: &Work) -> Ending {
    Ending::Failed(match disks.full(work) {
        Some(disk) => blame(words, disks, disk),
        None => words,
    })
}

fn blame(words: String, disks: &Disks, disk: usize) -> String {
    disks.shun(disk);
    format!("no space on {}: {words}", disks.root(disk).display())
}

/// A process in its attempt's folder.
struct Moved {
    process: Process,
    to_task: Option<mpsc::Sender<ToTask>>,
    work: Work,
    start: TaskStart,
}

/// What an attempt was told before it had a process.
#[derive(Default)]
struct Early {
    news: Vec<MapNews>,
    asked: Option<(Recall, String)>,
}
