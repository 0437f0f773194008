//! The driver around the agent: brings it what happens, and does what it says. Waits for nothing else: whatever
//! takes time runs in tasks of its own, and whatever touches a disk on threads that may wait for it.

use crate::{
    agent::{Action, Agent, Event},
    disks::{remove_tree, warn},
    error::TrackerError,
    ids::{Attempt, Job},
    link::LinkEvent,
    task_runner::{Command, TaskRunner},
    wire::{self, Identity},
};
use proto::mr::{FromTracker, MapEvent, map_event};
use std::{collections::HashMap, sync::Arc, time::Instant};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

/// The loop's belongings.
#[derive(Debug)]
pub(crate) struct Driver {
    /// The state machine.
    pub(crate) agent: Agent,
    /// Who we are.
    pub(crate) identity: Identity,
    /// Where the JobTracker is, for messages.
    pub(crate) jobtracker: String,
    /// Runs attempts.
    pub(crate) task_runner: Arc<TaskRunner>,
    /// Set at the first registration.
    pub(crate) ready: watch::Sender<bool>,
    /// What ends the tracker.
    pub(crate) alarm: mpsc::UnboundedSender<TrackerError>,
    /// The way to each attempt.
    pub(crate) children: HashMap<Attempt, mpsc::UnboundedSender<Command>>,
    /// What is being taken from under its name.
    pub(crate) dropping: HashMap<Attempt, Vec<JoinHandle<()>>>,
    /// The way to the JobTracker, while there is one.
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
            let deadline = self.agent.next_deadline();
            let timeout = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                Some(event) = events.recv() => Some(self.on_task_event(event)),
                Some(link_events) = link_events.recv() => self.on_link_event(link_events),
                () = timeout => Some(Event::Tick),
                else => return,
            };
            if let Some(event) = event {
                self.agent.handle(Instant::now(), event, &mut actions);
            }
            for action in actions.drain(..) {
                self.act(action);
            }
        }
    }

    fn on_task_event(&mut self, event: Event) -> Event {
        match &event {
            Event::Ended(attempt, ending) => {
                self.children.remove(attempt);
                tracing::debug!(%attempt, ?ending, "ended");
            }
            Event::Copied(attempt, result) => {
                self.children.remove(attempt);
                tracing::info!(%attempt, ?result, "copied what it left on another tracker");
            }
            _ => {}
        }
        event
    }

    fn on_link_event(&mut self, link_events: LinkEvent) -> Option<Event> {
        match link_events {
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
                    Some(Event::RegisterAgain) => tracing::info!("asked to register again"),
                    Some(_) => {}
                    None => tracing::warn!("a message that this build does not know: ignored"),
                }
                event
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start(attempt, spec, from) => {
                tracing::debug!(%attempt, ?from, "starting");
                let child = self.task_runner.start(attempt, spec, from);
                self.children.insert(attempt, child);
            }
            Action::Kill(attempt, why) => {
                tracing::debug!(%attempt, why, "stopping");
                self.command(attempt, Command::Kill(why));
            }
            Action::Preempt(attempt, kind, why) => {
                tracing::debug!(%attempt, ?kind, why, "asking for its slot");
                self.command(attempt, Command::Preempt(kind, why));
            }
            Action::MapEvents(reduce, mut link_events) => {
                link_events.events =
                    link_events.events.into_iter().map(|event| self.with_local_path(event)).collect();
                self.command(reduce, Command::MapEvents(link_events));
            }
            Action::DropCheckpoint(attempt) => self.drop_checkpoint(attempt),
            Action::CopyFiles(attempt, source) => {
                // What is copied may be of the same name as what is being dropped.
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
            Action::Heartbeat(heartbeat) => self.send(wire::heartbeat(heartbeat)),
            Action::Exit(text) => {
                let jobtracker = self.jobtracker.clone();
                self.alarm.send(TrackerError::Refused { jobtracker, text }).ok();
            }
        }
    }

    fn command(&self, attempt: Attempt, command: Command) {
        if let Some(child) = self.children.get(&attempt) {
            // Fails when it is ending already.
            child.send(command).ok();
        }
    }

    /// A message that finds no room is lost, as on any line: the agent says it again.
    fn send(&self, message: FromTracker) {
        if let Some(out) = &self.out
            && out.try_send(message).is_err()
        {
            tracing::debug!("the line to the jobtracker is full or broken");
        }
    }

    /// With the path of the file, if it is here.
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

    fn drop_checkpoint(&mut self, attempt: Attempt) {
        tracing::debug!(%attempt, "checkpoint deleted");
        self.task_runner.shuffle_store.drop_checkpoint(attempt);
        let disks = self.task_runner.disks.clone();
        let dropping = tokio::task::spawn_blocking(move || {
            let dropped = disks.rename_for_deletion(attempt);
            // Whoever waits for the name does not wait for this.
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

    fn clean(&self, job: Job) {
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
