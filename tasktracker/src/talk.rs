//! The talk with one task process: what it says is checked and cut to size before anybody else sees it.
//!
//! A task may be anybody's program. What holds: nothing of what it says is longer, or more, than the JobTracker
//! takes; whoever breaks a rule is ended, and the words say which.

use crate::{
    agent::{ENDED_BYTES, Event, FetchFailure, MapNews},
    child::{Command, Commands},
    ids::{Attempt, Job, Phase},
    kept::Waiting,
    pool::HELLO,
    process::{Process, Said},
};
use mrlib::task::limits::{PIECES_MAX, check_counters, short_failure, short_status};
use prost::Message;
use proto::mr::{
    MapEvent, Progress, Recall, TaskMapEvents, TaskResult, TaskStart, TaskStop, ToTask, Unfetched, from_task,
    task_spec, to_task,
};
use std::{process::ExitStatus, time::Duration};
use tokio::{sync::mpsc, time::Instant};

/// How long a process may take to end after its last word, and how long one that hung up.
const GRACE: Duration = Duration::from_secs(5);
/// Map events in one message, so that it stays far below the longest.
const NEWS_MAX: usize = 20_000;
/// Bytes of a task's result; a message to the JobTracker has room for one such.
const RESULT_BYTES_MAX: usize = ENDED_BYTES - 1024;
/// Letters of a stage's name.
const NAME_CHARS: usize = 64;
/// As long as the JobTracker takes a tracker's shuffle address to be.
const ADDR_BYTES_MAX: usize = 256;

/// How the talk with a process ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// All its work is done.
    Done(TaskResult),
    /// It has put its state aside.
    Paused,
    /// It could not take up what another attempt put aside.
    Spoilt(String),
    /// It could not get at it.
    Unreached(String),
    /// It was told to pause before it had begun.
    Unbegun(String),
    /// Its own words.
    Failed(String),
    /// Its own words, and every attempt would fail like it.
    Fatal(String),
    /// The file system did not answer it.
    Away(String),
    /// We ended it, because it did not keep to the rules.
    Broken(String),
    /// It ended without a word.
    Ended(ExitStatus),
    /// It was told to.
    Stopped(String),
}

/// The talk with one process about one attempt, until it is gone and has been heard out, or waits for another.
#[derive(Debug)]
pub(crate) struct Talk {
    events: mpsc::Sender<Event>,
    attempt: Attempt,
    start: Option<TaskStart>,
    makes_output: bool,
    /// The process was told to wait for another attempt when it is done.
    stays: bool,
    /// It waits.
    waits: bool,
    /// As far as it is known here.
    maps: u32,
    process: Process,
    to_task: Option<mpsc::Sender<ToTask>>,
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

impl Talk {
    /// Nothing is said before `run`.
    pub(crate) fn new(
        events: mpsc::Sender<Event>,
        attempt: Attempt,
        start: TaskStart,
        process: Process,
        to_task: Option<mpsc::Sender<ToTask>>,
    ) -> Self {
        let maps = match start.spec.as_ref().and_then(|spec| spec.input.as_ref()) {
            Some(task_spec::Input::Partition(partition)) => partition.maps,
            _ => 0,
        };
        let late = format!("it did not say hello within {HELLO:?}");
        Self {
            events,
            attempt,
            makes_output: !start.map_output.is_empty(),
            stays: start.stay,
            waits: false,
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

    /// Whether it was asked for map output.
    pub(crate) fn makes_output(&self) -> bool {
        self.makes_output
    }

    /// Talks until the process is gone, or waits for another attempt.
    pub(crate) async fn run(&mut self, commands: &mut Commands) {
        if self.to_task.is_some() && self.broken.is_none() {
            self.begin().await;
        }
        while !self.waits && (self.status.is_none() || !self.hung_up) {
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
                if self.broken.is_none() {
                    self.begin().await;
                }
            }
            Some(Said::Message(message)) => self.understand(message.kind).await,
            Some(Said::Closed(why)) => self.hang_up(why),
            None => self.hang_up(None),
        }
    }

    fn hang_up(&mut self, why: Option<String>) {
        self.hung_up = true;
        if let Some(why) = why {
            self.break_off(why);
        } else if self.status.is_none() && self.word.is_none() {
            self.limit = Some((Instant::now() + GRACE, "it closed its umbilical without a word".into()));
        }
    }

    /// Ends it because of this.
    pub(crate) fn break_off(&mut self, why: String) {
        self.broken.get_or_insert(why);
        self.process.handle.kill();
    }

    async fn begin(&mut self) {
        let Some(start) = self.start.take() else { return };
        self.limit = None;
        self.send(to_task::Kind::Start(start));
        for message in std::mem::take(&mut self.waiting) {
            self.pass(message);
        }
        self.tell(Event::Started(self.attempt)).await;
    }

    async fn understand(&mut self, kind: Option<from_task::Kind>) {
        match kind {
            Some(from_task::Kind::Progress(progress)) => {
                self.tell(Event::Progressed(self.attempt, short(progress))).await;
            }
            Some(from_task::Kind::Unfetched(unfetched)) => match map_of(self.attempt.job, &unfetched) {
                Ok(map) => {
                    let failure = FetchFailure { reduce: self.attempt, map, addr: unfetched.addr };
                    self.tell(Event::Unfetched(failure)).await;
                }
                Err(why) => self.break_off(why),
            },
            // What comes after the last word is none.
            Some(
                from_task::Kind::Done(_)
                | from_task::Kind::Failed(_)
                | from_task::Kind::Fatal(_)
                | from_task::Kind::Away(_)
                | from_task::Kind::Paused(_)
                | from_task::Kind::Unbegun(_)
                | from_task::Kind::Unreached(_)
                | from_task::Kind::Spoilt(_),
            ) if self.word.is_some() => {}
            Some(from_task::Kind::Hello(_)) => {
                let well = matches!(self.word, Some(from_task::Kind::Done(_) | from_task::Kind::Paused(_)));
                self.waits = self.stays && well && self.stopped.is_none() && self.broken.is_none();
            }
            Some(word) => match check_message(self.attempt.job, word) {
                Ok(word) => self.last_word(word),
                Err(why) => self.break_off(why),
            },
            None => {}
        }
    }

    fn last_word(&mut self, word: from_task::Kind) {
        self.word = Some(word);
        self.limit = Some((Instant::now() + GRACE, String::new()));
    }

    async fn tell(&self, event: Event) {
        self.events.send(event).await.ok();
    }

    fn commanded(&mut self, command: Command) {
        match command {
            Command::News(news) => self.pass_on(news),
            Command::Ask(how, why) => self.ask(how, why),
            Command::Kill(why) => {
                self.stopped.get_or_insert(why);
                self.process.handle.kill();
            }
        }
    }

    /// Asks it to end by itself.
    pub(crate) fn ask(&mut self, how: Recall, why: String) {
        self.send(to_task::Kind::Stop(TaskStop { why, how: how.into() }));
    }

    /// Tells it of maps, in messages of a moderate length.
    pub(crate) fn pass_on(&mut self, news: MapNews) {
        let MapNews { first, events, maps } = news;
        if maps > 0 {
            self.maps = maps;
        }
        let mut pieces: Vec<&[MapEvent]> = events.chunks(NEWS_MAX).collect();
        if pieces.is_empty() {
            // The number of maps is news by itself.
            pieces.push(&[]);
        }
        for (piece, events) in pieces.into_iter().enumerate() {
            let first = first + (piece * NEWS_MAX) as u64;
            let news = TaskMapEvents { first, events: events.to_vec(), maps: self.maps };
            self.send(to_task::Kind::MapEvents(news));
        }
    }

    fn send(&mut self, kind: to_task::Kind) {
        let message = ToTask { kind: Some(kind) };
        match (&self.to_task, &self.start) {
            (Some(_), None) => self.pass(message),
            _ => self.waiting.push(message),
        }
    }

    fn pass(&mut self, message: ToTask) {
        // A send fails when it is gone, and how it went says the rest; or when it does not read.
        if let Some(to_task) = &self.to_task
            && matches!(to_task.try_send(message), Err(mpsc::error::TrySendError::Full(_)))
        {
            self.break_off("it does not read what it is told".into());
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

    /// What it came to, and the process if it waits for another attempt.
    pub(crate) fn outcome(self) -> (Outcome, Option<Waiting>) {
        let refusal = self.process.handle.refusal();
        let broken = self.broken.or_else(|| self.process.handle.sentence()).or_else(|| refusal.clone());
        let explained = |words| match &refusal {
            Some(why) => format!("{why}: {words}"),
            None => words,
        };
        let outcome = match (self.word, self.stopped, broken) {
            (Some(from_task::Kind::Done(result)), ..) => Outcome::Done(result),
            (Some(from_task::Kind::Paused(_)), ..) => Outcome::Paused,
            (_, Some(why), _) => Outcome::Stopped(why),
            (Some(from_task::Kind::Unbegun(words)), ..) => Outcome::Unbegun(words),
            (Some(from_task::Kind::Failed(words)), ..) => Outcome::Failed(explained(words)),
            (Some(from_task::Kind::Fatal(words)), ..) => Outcome::Fatal(words),
            (Some(from_task::Kind::Spoilt(words)), ..) => Outcome::Spoilt(words),
            (Some(from_task::Kind::Unreached(words)), ..) => Outcome::Unreached(words),
            (Some(from_task::Kind::Away(words)), ..) => Outcome::Away(words),
            (_, _, Some(how)) => Outcome::Broken(how),
            _ => Outcome::Ended(self.status.unwrap_or_default()),
        };
        let process = self.process;
        let waiting = self.to_task.filter(|_| self.waits).map(|to_task| Waiting { process, to_task });
        (outcome, waiting)
    }
}

/// The map that could not be fetched from. Names and addresses come from us, so others are no mistake that a task of ours
/// could make.
fn map_of(job: Job, Unfetched { attempt: name, addr }: &Unfetched) -> Result<Attempt, String> {
    if addr.len() > ADDR_BYTES_MAX {
        let bytes = addr.len();
        return Err(format!(
            "it says that it cannot fetch from an address of {bytes} bytes: no tracker has that"
        ));
    }
    let map = name.parse::<Attempt>().ok().filter(|map| map.job == job && map.phase == Phase::Map);
    map.ok_or_else(|| {
        let name: String = name.chars().take(NAME_CHARS).collect();
        format!("it says that it cannot fetch {name:?}, which is no map of its job")
    })
}

/// With words short enough to be told every second.
fn short(mut progress: Progress) -> Progress {
    progress.status = short_status(progress.status);
    progress.stage = progress.stage.chars().take(NAME_CHARS).collect();
    progress
}

/// What a task of `job` said, as it is passed on; the reason if its attempt is ended for it. The checks alone.
pub(crate) fn check_message(job: Job, kind: from_task::Kind) -> Result<from_task::Kind, String> {
    match kind {
        from_task::Kind::Progress(progress) => Ok(from_task::Kind::Progress(short(progress))),
        from_task::Kind::Unfetched(unfetched) => {
            map_of(job, &unfetched).map(|_| from_task::Kind::Unfetched(unfetched))
        }
        from_task::Kind::Done(result) => check(&result).map(|()| from_task::Kind::Done(result)),
        from_task::Kind::Failed(words) => Ok(from_task::Kind::Failed(short_failure(words))),
        from_task::Kind::Fatal(words) => Ok(from_task::Kind::Fatal(short_failure(words))),
        from_task::Kind::Spoilt(words) => Ok(from_task::Kind::Spoilt(short_failure(words))),
        from_task::Kind::Unbegun(words) => Ok(from_task::Kind::Unbegun(short_failure(words))),
        from_task::Kind::Unreached(words) => Ok(from_task::Kind::Unreached(short_failure(words))),
        from_task::Kind::Away(words) => Ok(from_task::Kind::Away(short_failure(words))),
        word @ (from_task::Kind::Hello(_) | from_task::Kind::Paused(_)) => Ok(word),
    }
}

/// A result that the JobTracker would not take is the task's own failure, not the tracker's.
fn check(result: &TaskResult) -> Result<(), String> {
    check_counters(result.counters.keys().map(String::as_str))?;
    if result.pieces.len() > PIECES_MAX {
        return Err(format!("it wrote {} output files: {PIECES_MAX} at most", result.pieces.len()));
    }
    let bytes = result.encoded_len();
    if bytes > RESULT_BYTES_MAX {
        return Err(format!("its result has {bytes} bytes: {RESULT_BYTES_MAX} at most"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_maps_of_the_job_can_be_unfetched() {
        let map_of = |attempt: &str, addr: &str| {
            super::map_of(Job(1), &Unfetched { attempt: attempt.into(), addr: addr.into() })
        };
        assert_eq!(map_of("job_1.m3.0", "node2:7000").unwrap().to_string(), "job_1.m3.0");
        for other in ["x", "job_2.m3.0", "job_1.r3.0", &"\n".repeat(1 << 20)] {
            let why = map_of(other, "node2:7000").unwrap_err();
            assert!(why.ends_with("which is no map of its job") && why.len() < 300, "{why}");
        }
        let why = map_of("job_1.m3.0", &"x".repeat(1 << 20)).unwrap_err();
        assert!(why.contains("an address of 1048576 bytes"), "{why}");
    }
}
