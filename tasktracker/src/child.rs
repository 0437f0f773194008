//! The life of an attempt: its files fetched, a process found for it, what that says and how it ends.
//!
//! One task an attempt, told straight through. What holds: an attempt's ending is reported after its process
//! group is dead and its folders are gone; the error is the real one: the task's own words, else how its process
//! ended, with the last lines of its stderr.

use crate::{
    agent::{Ending, Event},
    disks::{Disks, Work, says_full},
    fetch::Fetcher,
    held::Held,
    ids::{Attempt, Phase},
    index,
    logs::Retention,
    pool::{Fresh, HELLO, Pool},
    process::{Process, Said, last_words, with_stderr},
};
use proto::mr::{
    MapEvent, TaskMapEvents, TaskResult, TaskSpec, TaskStart, ToTask, from_task, task_spec, to_task,
};
use std::{os::unix::fs::symlink, process::ExitStatus, sync::Arc, time::Duration};
use tokio::{sync::mpsc, time::Instant};

/// How long a process may take to end after its last word, and how long one that hung up.
const GRACE: Duration = Duration::from_secs(5);
/// Map events in one message, so that it stays far below the longest.
const NEWS_MAX: usize = 20_000;

/// What a running attempt is told.
#[derive(Debug)]
pub(crate) enum Command {
    /// Entries of its job's map events.
    News(u64, Vec<MapEvent>),
    /// End at once.
    Kill(String),
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
    /// Memory that a task plans for.
    pub(crate) memory_bytes: u64,
    /// Where what happens is told.
    pub(crate) events: mpsc::Sender<Event>,
}

type Commands = mpsc::UnboundedReceiver<Command>;

impl Nursery {
    /// Begins an attempt; the sender reaches it.
    pub(crate) fn start(
        self: &Arc<Self>,
        attempt: Attempt,
        spec: Box<TaskSpec>,
    ) -> mpsc::UnboundedSender<Command> {
        let (commands, receiver) = mpsc::unbounded_channel();
        let nursery = self.clone();
        tokio::spawn(async move {
            let ending = nursery.live(attempt, *spec, receiver).await;
            nursery.events.send(Event::Ended(attempt, ending)).await.ok();
        });
        commands
    }

    async fn live(&self, attempt: Attempt, spec: TaskSpec, mut commands: Commands) -> Ending {
        let mut news = Vec::new();
        let files = {
            let fetching = self.fetcher.files(attempt.job, &spec);
            tokio::pin!(fetching);
            loop {
                tokio::select! {
                    files = &mut fetching => break files,
                    command = commands.recv() => match command {
                        Some(Command::News(first, events)) => news.push((first, events)),
                        Some(Command::Kill(why)) => return Ending::Killed(why),
                        None => return Ending::Killed("the tracker stops".into()),
                    },
                }
            }
        };
        let files = match files {
            Ok(files) => files,
            Err(error) => return Ending::Failed(error.to_string()),
        };
        let fresh = match &files.executable {
            Some(program) => self.pool.start(program).await,
            None => self.pool.take().await,
        };
        let fresh = match fresh {
            Ok(fresh) => fresh,
            Err(error) => return Ending::Failed(error.to_string()),
        };
        let (process, to_task, work) = match self.move_in(attempt, &spec, fresh, files.side).await {
            Ok(moved) => moved,
            Err(why) => return Ending::Failed(why),
        };
        let start = TaskStart {
            work_dir: work.own.to_string_lossy().into_owned(),
            scratch_dirs: work.scratch.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
            memory_bytes: self.memory_bytes,
            map_output: if makes_output(attempt, &spec) {
                work.output.to_string_lossy().into()
            } else {
                String::new()
            },
            spec: Some(spec),
        };
        let mut talk = Talk::new(self, attempt, start, process, to_task);
        for (first, events) in news {
            talk.pass_on(first, events);
        }
        talk.run(&mut commands).await;
        self.conclude(attempt, talk, work).await
    }

    /// Makes the idle process's folder the attempt's.
    async fn move_in(
        &self,
        attempt: Attempt,
        spec: &TaskSpec,
        fresh: Fresh,
        side: Vec<(String, std::path::PathBuf)>,
    ) -> Result<(Process, Option<mpsc::UnboundedSender<ToTask>>, Work), String> {
        let (disks, held, token) = (self.disks.clone(), self.held.clone(), spec.shuffle_token.clone());
        let making = tokio::task::spawn_blocking(move || {
            held.learn_token(attempt.job, &token, &disks);
            let work = match disks.make_work(fresh.disk, attempt, Some(&fresh.folder)) {
                Ok(work) => work,
                Err(error) => {
                    fresh.discard();
                    return Err(error.to_string());
                }
            };
            for (name, file) in side {
                if let Err(error) = symlink(&file, work.own.join(&name)) {
                    fresh.process.handle.kill();
                    disks.end_work(&work, false);
                    return Err(format!("cannot link side file {name}: {error}"));
                }
            }
            Ok((fresh.process, fresh.to_task, work))
        });
        making.await.unwrap_or_else(|error| Err(format!("a bug of the tracker: {error}")))
    }

    /// What it came to, and the end of its folders.
    async fn conclude(&self, attempt: Attempt, talk: Talk<'_>, work: Work) -> Ending {
        let (disks, held, retention) = (self.disks.clone(), self.held.clone(), self.retention.clone());
        let makes_output = !talk.map_output.is_empty();
        let outcome = talk.outcome();
        let concluding = tokio::task::spawn_blocking(move || {
            let ending = match outcome {
                Outcome::Done(result) => succeed(result, makes_output, &work),
                Outcome::Failed(words) => Ending::Failed(words),
                Outcome::Broken(how) => Ending::Failed(with_stderr(how, &work.own)),
                Outcome::Ended(status) => Ending::Failed(last_words(status, &work.own)),
                Outcome::Stopped(why) => Ending::Killed(why),
            };
            let ending = match ending {
                Ending::Failed(words) => Ending::Failed(name_full_disk(words, &disks, work.disk)),
                other => other,
            };
            let keep = matches!(ending, Ending::Succeeded { output: true, .. });
            if keep {
                held.add(attempt, work.output.clone());
            }
            disks.end_work(&work, keep);
            retention.add(attempt, &disks);
            ending
        });
        concluding.await.unwrap_or_else(|error| Ending::Failed(format!("a bug of the tracker: {error}")))
    }
}

fn makes_output(attempt: Attempt, spec: &TaskSpec) -> bool {
    attempt.phase == Phase::Map && spec.reduces > 0
}

fn succeed(result: TaskResult, makes_output: bool, work: &Work) -> Ending {
    if makes_output && let Err(error) = index::read(&work.output) {
        return Ending::Failed(format!(
            "it said that it was done, but its map output cannot be used: {error}"
        ));
    }
    Ending::Succeeded { result, output: makes_output }
}

/// A full disk is not the task's fault: says so, and lets the next attempt go elsewhere.
fn name_full_disk(words: String, disks: &Disks, own: usize) -> String {
    let full = disks.full().or_else(|| says_full(&words).then_some(own));
    let Some(disk) = full else { return words };
    disks.shun(disk);
    format!("no space on {}: {words}", disks.root(disk).display())
}

/// How the talk with a process ended.
enum Outcome {
    Done(TaskResult),
    Failed(String),
    /// We ended it, because it did not keep to the rules.
    Broken(String),
    Ended(ExitStatus),
    Stopped(String),
}

/// The talk with one process, until it is gone and has been heard out.
struct Talk<'a> {
    nursery: &'a Nursery,
    attempt: Attempt,
    start: Option<TaskStart>,
    map_output: String,
    maps: u32,
    process: Process,
    to_task: Option<mpsc::UnboundedSender<ToTask>>,
    /// For when it has said hello.
    waiting: Vec<ToTask>,
    word: Option<from_task::Kind>,
    stopped: Option<String>,
    broken: Option<String>,
    status: Option<ExitStatus>,
    hung_up: bool,
    /// When patience ends, and what is wrong then.
    limit: Option<(Instant, String)>,
}

impl<'a> Talk<'a> {
    fn new(
        nursery: &'a Nursery,
        attempt: Attempt,
        start: TaskStart,
        process: Process,
        to_task: Option<mpsc::UnboundedSender<ToTask>>,
    ) -> Self {
        let maps = match start.spec.as_ref().and_then(|spec| spec.input.as_ref()) {
            Some(task_spec::Input::Partition(partition)) => partition.maps,
            _ => 0,
        };
        let late = format!("it did not say hello within {HELLO:?}");
        Self {
            nursery,
            attempt,
            map_output: start.map_output.clone(),
            maps,
            start: Some(start),
            process,
            to_task,
            waiting: Vec::new(),
            word: None,
            stopped: None,
            broken: None,
            status: None,
            hung_up: false,
            limit: Some((Instant::now() + HELLO, late)),
        }
    }

    async fn run(&mut self, commands: &mut Commands) {
        if self.to_task.is_some() {
            self.begin().await;
        }
        while self.status.is_none() || !self.hung_up {
            let until = self.limit.as_ref().map(|(until, _)| *until);
            let patience = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                said = self.process.said.recv(), if !self.hung_up => self.heard(said).await,
                status = &mut self.process.ended, if self.status.is_none() => {
                    self.status = Some(status.unwrap_or_default());
                    self.limit = Some((Instant::now() + GRACE, String::new()));
                }
                Some(command) = commands.recv() => self.commanded(command),
                () = patience => {
                    if self.status.is_some() {
                        // Somebody outside its group holds the umbilical: there is nothing more to hear.
                        return;
                    }
                    self.give_up();
                }
            }
        }
    }

    async fn heard(&mut self, said: Option<Said>) {
        match said {
            Some(Said::Hello(to_task)) => {
                self.to_task = Some(to_task);
                self.begin().await;
            }
            Some(Said::Message(message)) => self.understand(message.kind).await,
            Some(Said::Closed(why)) => self.hang_up(why),
            None => self.hang_up(None),
        }
    }

    fn hang_up(&mut self, why: Option<String>) {
        self.hung_up = true;
        if let Some(why) = why {
            self.broken.get_or_insert(why);
            self.process.handle.kill();
        } else if self.status.is_none() && self.word.is_none() {
            self.limit = Some((Instant::now() + GRACE, "it closed its umbilical without a word".into()));
        }
    }

    async fn begin(&mut self) {
        let Some(start) = self.start.take() else { return };
        self.limit = None;
        self.send(to_task::Kind::Start(start));
        for message in std::mem::take(&mut self.waiting) {
            if let Some(to_task) = &self.to_task {
                to_task.send(message).ok();
            }
        }
        self.tell(Event::Started(self.attempt)).await;
    }

    async fn understand(&mut self, kind: Option<from_task::Kind>) {
        match kind {
            Some(from_task::Kind::Progress(progress)) => {
                self.tell(Event::Progressed(self.attempt, progress)).await;
            }
            Some(from_task::Kind::Unfetched(map)) => match map.parse() {
                Ok(map) => self.tell(Event::Unfetched { reduce: self.attempt, map }).await,
                Err(error) => {
                    tracing::warn!(attempt = %self.attempt, %error, "an unfetched output of no map");
                }
            },
            Some(word @ (from_task::Kind::Done(_) | from_task::Kind::Failed(_))) => {
                self.word.get_or_insert(word);
                self.limit = Some((Instant::now() + GRACE, String::new()));
            }
            Some(from_task::Kind::Hello(_)) | None => {}
        }
    }

    async fn tell(&self, event: Event) {
        self.nursery.events.send(event).await.ok();
    }

    fn commanded(&mut self, command: Command) {
        match command {
            Command::News(first, events) => self.pass_on(first, events),
            Command::Kill(why) => {
                self.stopped.get_or_insert(why);
                self.process.handle.kill();
            }
        }
    }

    fn pass_on(&mut self, first: u64, events: Vec<MapEvent>) {
        for (piece, events) in events.chunks(NEWS_MAX).enumerate() {
            let first = first + (piece * NEWS_MAX) as u64;
            let news = TaskMapEvents { first, events: events.to_vec(), maps: self.maps };
            self.send(to_task::Kind::MapEvents(news));
        }
    }

    fn send(&mut self, kind: to_task::Kind) {
        let message = ToTask { kind: Some(kind) };
        match (&self.to_task, &self.start) {
            // A send fails when it is gone; how it went says the rest.
            (Some(to_task), None) => drop(to_task.send(message)),
            _ => self.waiting.push(message),
        }
    }

    fn give_up(&mut self) {
        if let Some((_, why)) = self.limit.take()
            && self.word.is_none()
        {
            self.broken.get_or_insert(why);
        }
        self.process.handle.kill();
    }

    fn outcome(self) -> Outcome {
        match (self.word, self.stopped, self.broken) {
            (Some(from_task::Kind::Done(result)), ..) => Outcome::Done(result),
            (_, Some(why), _) => Outcome::Stopped(why),
            (Some(from_task::Kind::Failed(words)), ..) => Outcome::Failed(words),
            (_, _, Some(how)) => Outcome::Broken(how),
            _ => Outcome::Ended(self.status.unwrap_or_default()),
        }
    }
}
