//! The session with the process of one attempt. The messages of the process are checked and
//! shortened before they are passed on.
//!
//! A task may be any program, so its messages are not trusted. Invariants: no message or result
//! that is passed on is longer than the JobTracker accepts; a process that violates the protocol is
//! killed, and the error names the violation.

use crate::{
    idle_processes::IdleProcess,
    pool::HELLO_TIMEOUT,
    process::{Process, ProcessMessage},
    wire::{self, Event, MapEventBatch},
};
use agent::{ENDED_BYTES_MAX, FetchFailure};
use mrlib_api::limits::{check_counters, check_pieces, truncate_failure, truncate_status};
use prost::Message;
use proto::mr::{
    FetchFailed, MapEvent, Progress, TaskMapEvents, TaskPreempt, TaskResult, TaskStart, ToTask, from_task,
    task_spec, to_task,
};
use std::{process::ExitStatus, time::Duration};
use tokio::{sync::mpsc, time::Instant};
use types::{AttemptId, JobId, Phase, PreemptKind};

/// How long a process may take to exit after its last message, or after it has disconnected.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of map events in one message to a task.
const MAP_EVENTS_MAX: usize = 20_000;
/// Maximum size of the result of a task in bytes, so that it fits into a message to the JobTracker.
const RESULT_BYTES_MAX: usize = ENDED_BYTES_MAX - 1024;
/// Maximum number of characters of the name of a stage, and of a wrong name in an error.
const NAME_CHARS_MAX: usize = 64;
/// Maximum length of a shuffle address. The JobTracker has the same limit.
const ADDR_BYTES_MAX: usize = 256;

/// Commands to a running attempt.
#[derive(Debug)]
pub(crate) enum Command {
    /// Pass these map events of its job to the attempt.
    MapEvents(MapEventBatch),
    /// Kill the attempt, for this reason.
    Kill(String),
    /// Preempt the attempt in this way, for this reason.
    Preempt(PreemptKind, String),
}

pub(crate) type CommandReceiver = mpsc::UnboundedReceiver<Command>;

/// How a session ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The task has succeeded.
    Done(TaskResult),
    /// The task has saved a checkpoint.
    Paused,
    /// The checkpoint to resume from is damaged.
    CheckpointCorrupt(String),
    /// The checkpoint to resume from is unreachable.
    CheckpointUnreachable(String),
    /// The task was preempted before it had resumed from its checkpoint.
    NotResumed(String),
    /// The task failed with this message.
    Failed(String),
    /// The task failed with this message, and every other attempt would fail too.
    Fatal(String),
    /// The file system was unavailable for the task.
    DfsUnavailable(String),
    /// The process was killed because it violated the protocol or a limit.
    ProtocolError(String),
    /// The process ended without a result.
    Ended(ExitStatus),
    /// The task was killed as requested, for this reason.
    Killed(String),
}

/// The session with one process for one attempt, until the process has ended or is idle.
#[derive(Debug)]
pub(crate) struct TaskSession {
    events: mpsc::Sender<Event>,
    attempt: AttemptId,
    /// The first message to the process, until it is sent.
    start: Option<TaskStart>,
    makes_output: bool,
    /// Whether the process may run another attempt after this one.
    reuse: bool,
    /// Whether the process has finished this attempt and waits for another one.
    is_idle: bool,
    /// Number of maps of the job, as far as known.
    maps: u32,
    process: Process,
    to_task: Option<mpsc::Sender<ToTask>>,
    /// Messages that are sent as soon as the process has sent its first message.
    unsent: Vec<ToTask>,
    /// The message with which the task reports how it has ended.
    last_message: Option<from_task::Kind>,
    /// Why the attempt was killed, if the JobTracker or the tracker ordered it.
    kill_reason: Option<String>,
    /// The error, if the process has violated the protocol or a timeout.
    protocol_error: Option<String>,
    exit_status: Option<ExitStatus>,
    disconnected: bool,
    /// When the process is killed if nothing happens before, and the error that is reported then.
    deadline: Option<(Instant, String)>,
}

impl TaskSession {
    /// Creates a session. [`Self::run`] starts it.
    pub(crate) fn new(
        events: mpsc::Sender<Event>,
        attempt: AttemptId,
        start: TaskStart,
        process: Process,
        to_task: Option<mpsc::Sender<ToTask>>,
    ) -> Self {
        let maps = match start.spec.as_ref().and_then(|spec| spec.input.as_ref()) {
            Some(task_spec::Input::Partition(partition)) => partition.maps,
            _ => 0,
        };
        let late = format!("the task did not send its first message (Hello) within {HELLO_TIMEOUT:?}");
        Self {
            events,
            attempt,
            makes_output: !start.map_output.is_empty(),
            reuse: start.reuse,
            is_idle: false,
            maps,
            start: Some(start),
            process,
            to_task,
            unsent: Vec::new(),
            last_message: None,
            kill_reason: None,
            protocol_error: None,
            exit_status: None,
            disconnected: false,
            deadline: Some((Instant::now() + HELLO_TIMEOUT, late)),
        }
    }

    /// Returns whether the attempt writes a map output for reduces.
    pub(crate) fn makes_output(&self) -> bool {
        self.makes_output
    }

    /// Runs the session until the process has ended or is idle.
    pub(crate) async fn run(&mut self, commands: &mut CommandReceiver) {
        if self.to_task.is_some() && self.protocol_error.is_none() {
            self.send_start().await;
        }
        while !self.is_idle && (self.exit_status.is_none() || !self.disconnected) {
            let until = self.deadline.as_ref().map(|(until, _)| *until);
            let timeout = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = self.process.messages.recv(), if !self.disconnected => self.on_message(message).await,
                status = &mut self.process.exit_status, if self.exit_status.is_none() => {
                    self.exit_status = Some(status.unwrap_or_default());
                    self.deadline = Some((Instant::now() + EXIT_TIMEOUT, String::new()));
                }
                Some(command) = commands.recv() => self.handle_command(command),
                () = timeout => {
                    if self.exit_status.is_some() {
                        // The task process has ended, but an escaped process keeps the connection
                        // open. No more messages will come.
                        return;
                    }
                    self.kill_after_deadline();
                }
            }
        }
    }

    async fn on_message(&mut self, message: Option<ProcessMessage>) {
        match message {
            Some(ProcessMessage::Hello(to_task)) => {
                self.to_task = Some(to_task);
                if self.protocol_error.is_none() {
                    self.send_start().await;
                }
            }
            Some(ProcessMessage::Message(message)) => self.handle_message(message.kind).await,
            Some(ProcessMessage::Closed(why)) => self.disconnect(why),
            None => self.disconnect(None),
        }
    }

    fn disconnect(&mut self, why: Option<String>) {
        self.disconnected = true;
        if let Some(why) = why {
            self.terminate(why);
        } else if self.exit_status.is_none() && self.last_message.is_none() {
            self.deadline = Some((
                Instant::now() + EXIT_TIMEOUT,
                "the task closed its umbilical without a result".into(),
            ));
        }
    }

    /// Kills the process because of this error.
    pub(crate) fn terminate(&mut self, why: String) {
        self.protocol_error.get_or_insert(why);
        self.process.handle.kill();
    }

    /// Sends the first message and all unsent messages to the process.
    async fn send_start(&mut self) {
        let Some(start) = self.start.take() else { return };
        self.deadline = None;
        self.send(to_task::Kind::Start(start));
        for message in std::mem::take(&mut self.unsent) {
            self.enqueue(message);
        }
        self.send_event(Event::Started(self.attempt)).await;
    }

    async fn handle_message(&mut self, kind: Option<from_task::Kind>) {
        match kind {
            Some(from_task::Kind::Progress(progress)) => {
                self.send_event(Event::Progressed(self.attempt, shorten_progress(progress))).await;
            }
            Some(from_task::Kind::FetchFailed(fetch_failed)) => {
                match failed_map(self.attempt.job(), &fetch_failed) {
                    Ok(map) => {
                        let failure = FetchFailure { reduce: self.attempt, map, addr: fetch_failed.addr };
                        self.send_event(Event::FetchFailed(failure)).await;
                    }
                    Err(why) => self.terminate(why),
                }
            }
            // Further messages that report the end of the attempt are ignored.
            Some(
                from_task::Kind::Done(_)
                | from_task::Kind::Failed(_)
                | from_task::Kind::Fatal(_)
                | from_task::Kind::DfsUnavailable(_)
                | from_task::Kind::Paused(_)
                | from_task::Kind::NotResumed(_)
                | from_task::Kind::CheckpointUnreachable(_)
                | from_task::Kind::CheckpointCorrupt(_),
            ) if self.last_message.is_some() => {}
            Some(from_task::Kind::Hello(_)) => {
                let succeeded =
                    matches!(self.last_message, Some(from_task::Kind::Done(_) | from_task::Kind::Paused(_)));
                self.is_idle =
                    self.reuse && succeeded && self.kill_reason.is_none() && self.protocol_error.is_none();
            }
            Some(last_message) => match check_message(self.attempt.job(), last_message) {
                Ok(last_message) => self.record_last_message(last_message),
                Err(why) => self.terminate(why),
            },
            None => {}
        }
    }

    fn record_last_message(&mut self, last_message: from_task::Kind) {
        self.last_message = Some(last_message);
        self.deadline = Some((Instant::now() + EXIT_TIMEOUT, String::new()));
    }

    async fn send_event(&self, event: Event) {
        self.events.send(event).await.ok();
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::MapEvents(map_events) => self.send_map_events(map_events),
            Command::Preempt(kind, why) => self.preempt(kind, why),
            Command::Kill(why) => {
                self.kill_reason.get_or_insert(why);
                self.process.handle.kill();
            }
        }
    }

    /// Preempts the task.
    pub(crate) fn preempt(&mut self, kind: PreemptKind, why: String) {
        self.send(to_task::Kind::Preempt(TaskPreempt { why, kind: wire::preempt_kind(kind).into() }));
    }

    /// Sends map events, in messages of limited length.
    pub(crate) fn send_map_events(&mut self, map_events: MapEventBatch) {
        let MapEventBatch { first, events, maps } = map_events;
        if maps > 0 {
            self.maps = maps;
        }
        let mut pieces: Vec<&[MapEvent]> = events.chunks(MAP_EVENTS_MAX).collect();
        if pieces.is_empty() {
            // Send a message without events, because the number of maps may have changed.
            pieces.push(&[]);
        }
        for (piece, events) in pieces.into_iter().enumerate() {
            let first = first + (piece * MAP_EVENTS_MAX) as u64;
            let map_events = TaskMapEvents { first, events: events.to_vec(), maps: self.maps };
            self.send(to_task::Kind::MapEvents(map_events));
        }
    }

    /// Sends a message to the process, or stores it until the process has connected.
    fn send(&mut self, kind: to_task::Kind) {
        let message = ToTask { kind: Some(kind) };
        match (&self.to_task, &self.start) {
            (Some(_), None) => self.enqueue(message),
            _ => self.unsent.push(message),
        }
    }

    fn enqueue(&mut self, message: ToTask) {
        // The channel is closed if the process has ended, which is handled elsewhere. It is full if
        // the process does not read its messages.
        if let Some(to_task) = &self.to_task
            && matches!(to_task.try_send(message), Err(mpsc::error::TrySendError::Full(_)))
        {
            self.terminate("the task does not read its messages".into());
        }
    }

    fn kill_after_deadline(&mut self) {
        if let Some((_, why)) = self.deadline.take()
            && self.last_message.is_none()
        {
            self.protocol_error.get_or_insert(why);
        }
        self.process.handle.kill();
    }

    /// Returns how the session ended, and the process if it is idle.
    pub(crate) fn into_outcome(self) -> (Outcome, Option<IdleProcess>) {
        let fork_refusal = self.process.handle.fork_refusal();
        let violation = self
            .protocol_error
            .or_else(|| self.process.handle.kill_reason())
            .or_else(|| fork_refusal.clone());
        let with_refusal = |text| match &fork_refusal {
            Some(why) => format!("{why}: {text}"),
            None => text,
        };
        let outcome = match (self.last_message, self.kill_reason, violation) {
            (Some(from_task::Kind::Done(result)), ..) => Outcome::Done(result),
            (Some(from_task::Kind::Paused(_)), ..) => Outcome::Paused,
            (_, Some(why), _) => Outcome::Killed(why),
            (Some(from_task::Kind::NotResumed(text)), ..) => Outcome::NotResumed(text),
            (Some(from_task::Kind::Failed(text)), ..) => Outcome::Failed(with_refusal(text)),
            (Some(from_task::Kind::Fatal(text)), ..) => Outcome::Fatal(text),
            (Some(from_task::Kind::CheckpointCorrupt(text)), ..) => Outcome::CheckpointCorrupt(text),
            (Some(from_task::Kind::CheckpointUnreachable(text)), ..) => Outcome::CheckpointUnreachable(text),
            (Some(from_task::Kind::DfsUnavailable(text)), ..) => Outcome::DfsUnavailable(text),
            (_, _, Some(why)) => Outcome::ProtocolError(why),
            _ => Outcome::Ended(self.exit_status.unwrap_or_default()),
        };
        let process = self.process;
        let idle = self.to_task.filter(|_| self.is_idle).map(|to_task| IdleProcess { process, to_task });
        (outcome, idle)
    }
}

/// Returns the map attempt that a fetch failure names. The tracker itself has sent all names and
/// addresses to the task, so an invalid one is a violation of the protocol.
fn failed_map(job: JobId, FetchFailed { attempt: name, addr }: &FetchFailed) -> Result<AttemptId, String> {
    if addr.len() > ADDR_BYTES_MAX {
        let bytes = addr.len();
        return Err(format!(
            "a fetch failure of the task has an address of {bytes} bytes, which no tracker has"
        ));
    }
    let map = name.parse::<AttemptId>().ok().filter(|map| map.job() == job && map.phase() == Phase::Map);
    map.ok_or_else(|| {
        let name: String = name.chars().take(NAME_CHARS_MAX).collect();
        format!("a fetch failure of the task names {name:?}, which is not a map of its job")
    })
}

/// Shortens the texts in a progress report, which is part of every heartbeat.
fn shorten_progress(mut progress: Progress) -> Progress {
    progress.status = truncate_status(progress.status);
    progress.stage = progress.stage.chars().take(NAME_CHARS_MAX).collect();
    progress
}

/// Checks a message of a task of `job`. Returns the message with shortened texts, or the reason why
/// the attempt is ended.
pub(crate) fn check_message(job: JobId, kind: from_task::Kind) -> Result<from_task::Kind, String> {
    match kind {
        from_task::Kind::Progress(progress) => Ok(from_task::Kind::Progress(shorten_progress(progress))),
        from_task::Kind::FetchFailed(fetch_failed) => {
            failed_map(job, &fetch_failed).map(|_| from_task::Kind::FetchFailed(fetch_failed))
        }
        from_task::Kind::Done(result) => check_result(&result).map(|()| from_task::Kind::Done(result)),
        from_task::Kind::Failed(text) => Ok(from_task::Kind::Failed(truncate_failure(text))),
        from_task::Kind::Fatal(text) => Ok(from_task::Kind::Fatal(truncate_failure(text))),
        from_task::Kind::CheckpointCorrupt(text) => {
            Ok(from_task::Kind::CheckpointCorrupt(truncate_failure(text)))
        }
        from_task::Kind::NotResumed(text) => Ok(from_task::Kind::NotResumed(truncate_failure(text))),
        from_task::Kind::CheckpointUnreachable(text) => {
            Ok(from_task::Kind::CheckpointUnreachable(truncate_failure(text)))
        }
        from_task::Kind::DfsUnavailable(text) => Ok(from_task::Kind::DfsUnavailable(truncate_failure(text))),
        last_message @ (from_task::Kind::Hello(_) | from_task::Kind::Paused(_)) => Ok(last_message),
    }
}

/// Checks a result. A result that the JobTracker would not accept is an error of the task, not of
/// the tracker.
fn check_result(result: &TaskResult) -> Result<(), String> {
    check_counters(result.counters.keys().map(String::as_str))?;
    check_pieces(&result.pieces)?;
    let bytes = result.encoded_len();
    if bytes > RESULT_BYTES_MAX {
        return Err(format!("the result of the task has {bytes} bytes: the maximum is {RESULT_BYTES_MAX}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetch_failures_must_name_maps_of_the_job() {
        let failed_map = |attempt: &str, addr: &str| {
            super::failed_map(JobId(1), &FetchFailed { attempt: attempt.into(), addr: addr.into() })
        };
        assert_eq!(failed_map("job_1.m3.0", "node2:7000").unwrap().to_string(), "job_1.m3.0");
        for other in ["x", "job_2.m3.0", "job_1.r3.0", &"\n".repeat(1 << 20)] {
            let why = failed_map(other, "node2:7000").unwrap_err();
            assert!(why.ends_with("which is not a map of its job") && why.len() < 300, "{why}");
        }
        let why = failed_map("job_1.m3.0", &"x".repeat(1 << 20)).unwrap_err();
        assert!(why.contains("an address of 1048576 bytes"), "{why}");
    }
}
