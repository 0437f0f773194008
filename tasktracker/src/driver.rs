//! The body around the agent: brings it what happens, and does what it says. Waits for nothing else: whatever
//! takes time runs in tasks of its own, and whatever touches a disk on threads that may wait for it.

use crate::{
    agent::{Action, Agent, Event},
    child::{Command, Nursery},
    disks::{remove_tree, warn},
    error::TrackerError,
    ids::{Attempt, Job},
    link::News,
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
    /// The mind.
    pub(crate) agent: Agent,
    /// Who we are.
    pub(crate) who: Identity,
    /// Where the JobTracker is, for messages.
    pub(crate) jobtracker: String,
    /// Runs attempts.
    pub(crate) nursery: Arc<Nursery>,
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
    pub(crate) async fn run(mut self, mut events: mpsc::Receiver<Event>, mut news: mpsc::Receiver<News>) {
        let mut actions = Vec::new();
        loop {
            let deadline = self.agent.next_deadline();
            let patience = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                Some(event) = events.recv() => Some(self.of_child(event)),
                Some(news) = news.recv() => self.of_link(news),
                () = patience => Some(Event::Tick),
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

    fn of_child(&mut self, event: Event) -> Event {
        match &event {
            Event::Ended(attempt, ending) => {
                self.children.remove(attempt);
                tracing::debug!(%attempt, ?ending, "ended");
            }
            Event::Took(attempt, result) => {
                self.children.remove(attempt);
                tracing::info!(%attempt, ?result, "copied what it left on another tracker");
            }
            _ => {}
        }
        event
    }

    fn of_link(&mut self, news: News) -> Option<Event> {
        match news {
            News::Up(out) => {
                self.out = Some(out);
                Some(Event::Connected)
            }
            News::Down => {
                self.out = None;
                Some(Event::Disconnected)
            }
            News::Said(message) => {
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
                let child = self.nursery.start(attempt, spec, from);
                self.children.insert(attempt, child);
            }
            Action::Kill(attempt, why) => {
                tracing::debug!(%attempt, why, "stopping");
                self.command(attempt, Command::Kill(why));
            }
            Action::Ask(attempt, how, why) => {
                tracing::debug!(%attempt, ?how, why, "asking for its slot");
                self.command(attempt, Command::Ask(how, why));
            }
            Action::News(reduce, mut news) => {
                news.events = news.events.into_iter().map(|event| self.localised(event)).collect();
                self.command(reduce, Command::News(news));
            }
            Action::Drop(attempt) => self.drop_checkpoint(attempt),
            Action::Take(attempt, source) => {
                // What is copied may be of the same name as what is being dropped.
                let dropping = self.dropping.remove(&attempt).unwrap_or_default();
                let copying = self.nursery.take(attempt, source, dropping);
                self.children.insert(attempt, copying);
            }
            Action::Clean(job) => self.clean(job),
            Action::Register { incarnation, attempts, outputs, checkpoints, jobs } => {
                self.send(wire::register(&self.who, incarnation, attempts, &outputs, checkpoints, &jobs));
            }
            Action::Beat(heartbeat) => self.send(wire::heartbeat(heartbeat)),
            Action::Exit(words) => {
                let jobtracker = self.jobtracker.clone();
                self.alarm.send(TrackerError::Refused { jobtracker, words }).ok();
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
    fn localised(&self, mut event: MapEvent) -> MapEvent {
        if let Some(map_event::Kind::Available(map)) = &mut event.kind
            && map.tracker == self.who.name
            && let Ok(attempt) = map.attempt.parse()
            && let Some(path) = self.nursery.held.output(attempt)
        {
            map.local_path = path.to_string_lossy().into_owned();
        }
        event
    }

    fn drop_checkpoint(&mut self, attempt: Attempt) {
        tracing::debug!(%attempt, "what it put aside is deleted");
        self.nursery.held.drop_checkpoint(attempt);
        let disks = self.nursery.disks.clone();
        let dropping = tokio::task::spawn_blocking(move || {
            let dropped = disks.unname_aside(attempt);
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
        let nursery = self.nursery.clone();
        nursery.pool.forget(job);
        nursery.held.forget(job);
        nursery.fetcher.forget(job);
        tokio::spawn(async move {
            let disks = nursery.disks.clone();
            let whole = tokio::task::spawn_blocking(move || disks.clean(job)).await.unwrap_or(false);
            nursery.events.send(Event::Cleaned(job, whole)).await.ok();
        });
    }
}
