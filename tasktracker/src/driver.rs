//! The driver of the agent: passes events to it, and executes its actions. It never blocks: slow
//! work runs in separate tasks, and disk access on blocking threads.

use crate::{
    disks::{remove_tree, warn},
    error::TrackerError,
    link::LinkEvent,
    task_runner::TaskRunner,
    task_session::Command,
    wire::{self, Action, Agent, Event, Identity, Launch},
};
use proto::mr::{FromTracker, MapEvent, map_event};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};
use types::{AttemptId, JobId, Time};

/// State of the driver loop.
#[derive(Debug)]
pub(crate) struct Driver {
    /// The state machine.
    pub(crate) agent: Agent,
    /// Identity of this tracker.
    pub(crate) identity: Identity,
    /// Address of the JobTracker, for messages.
    pub(crate) jobtracker: String,
    /// Runs attempts.
    pub(crate) task_runner: Arc<TaskRunner>,
    /// Set to true at the first registration.
    pub(crate) ready: watch::Sender<bool>,
    /// Errors that end the tracker.
    pub(crate) alarm: mpsc::UnboundedSender<TrackerError>,
    /// Channels to the running attempts.
    pub(crate) children: HashMap<AttemptId, mpsc::UnboundedSender<Command>>,
    /// Checkpoints that are being renamed for deletion.
    pub(crate) dropping: HashMap<AttemptId, Vec<JoinHandle<()>>>,
    /// Time 0 of the agent.
    pub(crate) started: Instant,
    /// Channel to the JobTracker, while connected.
    pub(crate) out: Option<mpsc::Sender<FromTracker>>,
}

impl Driver {
    /// Runs until dropped.
    pub(crate) async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        mut link_events: mpsc::Receiver<LinkEvent>,
    ) {
        let mut actions = Vec::new();
        loop {
            let deadline = self.agent.next_deadline().and_then(|deadline| self.instant(deadline));
            let timeout = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                Some(event) = events.recv() => Some(self.on_task_event(event)),
                Some(event) = link_events.recv() => self.on_link_event(event),
                () = timeout => Some(Event::Tick),
                else => return,
            };
            if let Some(event) = event {
                self.agent.handle(self.now(), event, &mut actions);
            }
            for action in actions.drain(..) {
                self.act(action);
            }
        }
    }

    /// The time of the agent: microseconds since the start.
    fn now(&self) -> Time {
        Time(self.started.elapsed().as_micros() as u64)
    }

    /// `None` for a time that no clock can show.
    fn instant(&self, time: Time) -> Option<Instant> {
        self.started.checked_add(Duration::from_micros(time.0))
    }

    fn on_task_event(&mut self, event: Event) -> Event {
        match &event {
            Event::Ended(attempt, ending) => {
                self.children.remove(attempt);
                tracing::debug!(%attempt, ?ending, "ended");
            }
            Event::Copied(attempt, result) => {
                self.children.remove(attempt);
                tracing::info!(%attempt, ?result, "copied files of the attempt from another tracker");
            }
            _ => {}
        }
        event
    }

    fn on_link_event(&mut self, event: LinkEvent) -> Option<Event> {
        match event {
            LinkEvent::Up(out) => {
                self.out = Some(out);
                Some(Event::Connected)
            }
            LinkEvent::Down => {
                self.out = None;
                Some(Event::Disconnected)
            }
            LinkEvent::Message(message) => {
                let event = wire::event(message);
                match &event {
                    Some(Event::Registered { .. }) => {
                        tracing::info!(jobtracker = self.jobtracker, "registered");
                        self.ready.send_replace(true);
                    }
                    Some(Event::RegisterAgain) => {
                        tracing::info!("the jobtracker requests a new registration");
                    }
                    Some(_) => {}
                    None => tracing::warn!("ignored a message that this build does not know"),
                }
                event
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start(attempt, Launch { spec, from }) => {
                tracing::debug!(%attempt, ?from, "starting");
                let child = self.task_runner.start(attempt, spec, from);
                self.children.insert(attempt, child);
            }
            Action::Kill(attempt, why) => {
                tracing::debug!(%attempt, why, "stopping");
                self.command(attempt, Command::Kill(why));
            }
            Action::Preempt(attempt, kind, why) => {
                tracing::debug!(%attempt, ?kind, why, "preempting an attempt");
                self.command(attempt, Command::Preempt(kind, why));
            }
            Action::MapEvents(reduce, mut batch) => {
                batch.events = batch.events.into_iter().map(|event| self.with_local_path(event)).collect();
                self.command(reduce, Command::MapEvents(batch));
            }
            Action::DropCheckpoint(attempt) => self.drop_checkpoint(attempt),
            Action::CopyFiles(attempt, source) => {
                // The copy may have the same name as a checkpoint that is being dropped.
                let dropping = self.dropping.remove(&attempt).unwrap_or_default();
                let copying = self.task_runner.take(attempt, source, dropping);
                self.children.insert(attempt, copying);
            }
            Action::Clean(job) => self.clean(job),
            Action::Register { incarnation, attempts, outputs, checkpoints, jobs } => {
                self.send(wire::register(
                    &self.identity,
                    incarnation,
                    attempts,
                    &outputs,
                    checkpoints,
                    &jobs,
                ));
            }
            Action::Heartbeat(heartbeat) => self.send(wire::heartbeat(Arc::unwrap_or_clone(heartbeat))),
            Action::Exit(text) => {
                let jobtracker = self.jobtracker.clone();
                self.alarm.send(TrackerError::Refused { jobtracker, text }).ok();
            }
        }
    }

    fn command(&self, attempt: AttemptId, command: Command) {
        if let Some(child) = self.children.get(&attempt) {
            // Fails if the attempt is ending already.
            child.send(command).ok();
        }
    }

    /// Sends a message. It is dropped if the channel is full; the agent repeats it.
    fn send(&self, message: FromTracker) {
        if let Some(out) = &self.out
            && out.try_send(message).is_err()
        {
            tracing::debug!("the connection to the jobtracker is full or closed");
        }
    }

    /// Adds the local path of a map output, if it is on this tracker.
    fn with_local_path(&self, mut event: MapEvent) -> MapEvent {
        if let Some(map_event::Kind::Available(map)) = &mut event.kind
            && map.tracker == self.identity.name
            && let Ok(attempt) = map.attempt.parse()
            && let Some(path) = self.task_runner.shuffle_store.output(attempt)
        {
            map.local_path = path.to_string_lossy().into_owned();
        }
        event
    }

    fn drop_checkpoint(&mut self, attempt: AttemptId) {
        tracing::debug!(%attempt, "checkpoint deleted");
        self.task_runner.shuffle_store.drop_checkpoint(attempt);
        let disks = self.task_runner.disks.clone();
        let dropping = tokio::task::spawn_blocking(move || {
            let dropped = disks.rename_for_deletion(attempt);
            // Deletion runs separately, because others wait only for the rename.
            tokio::task::spawn_blocking(move || {
                for path in &dropped {
                    warn(path, "remove", remove_tree(path));
                }
            });
        });
        self.dropping.retain(|_, all| {
            all.retain(|one| !one.is_finished());
            !all.is_empty()
        });
        self.dropping.entry(attempt).or_default().push(dropping);
    }

    fn clean(&self, job: JobId) {
        let task_runner = self.task_runner.clone();
        task_runner.pool.forget(job);
        task_runner.shuffle_store.forget(job);
        task_runner.fetcher.forget(job);
        tokio::spawn(async move {
            let disks = task_runner.disks.clone();
            let whole = tokio::task::spawn_blocking(move || disks.clean(job)).await.unwrap_or(false);
            task_runner.events.send(Event::Cleaned(job, whole)).await.ok();
        });
    }
}
