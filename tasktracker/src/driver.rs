//! The driver of the agent: passes events to the agent, and executes its actions. It never blocks:
//! slow work runs in separate asynchronous tasks, and disk access on blocking threads.

use crate::{
    disks::{log_failure, remove_tree},
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
    /// Address of the JobTracker that the tracker was last connected to, for messages.
    pub(crate) jobtracker: String,
    /// Runs attempts.
    pub(crate) task_runner: Arc<TaskRunner>,
    /// Set to true when the JobTracker has accepted the first registration.
    pub(crate) ready: watch::Sender<bool>,
    /// Errors that end the tracker.
    pub(crate) fatal_errors: mpsc::UnboundedSender<TrackerError>,
    /// Channels for commands to the running attempts and copies.
    pub(crate) commands: HashMap<AttemptId, mpsc::UnboundedSender<Command>>,
    /// Blocking tasks that rename checkpoints which are going to be deleted.
    pub(crate) checkpoint_renames: HashMap<AttemptId, Vec<JoinHandle<()>>>,
    /// When the driver was created: time 0 of the agent.
    pub(crate) started: Instant,
    /// Channel to the JobTracker, while the tracker is connected.
    pub(crate) to_jobtracker: Option<mpsc::Sender<FromTracker>>,
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
                self.execute(action);
            }
        }
    }

    /// Returns the time of the agent: microseconds since the driver was created.
    fn now(&self) -> Time {
        Time(self.started.elapsed().as_micros() as u64)
    }

    /// Converts a time of the agent. Returns `None` if it is too far in the future for an
    /// [`Instant`].
    fn instant(&self, time: Time) -> Option<Instant> {
        self.started.checked_add(Duration::from_micros(time.0))
    }

    /// Removes the command channel of an attempt or copy that has ended.
    fn on_task_event(&mut self, event: Event) -> Event {
        match &event {
            Event::Ended(attempt, ending) => {
                self.commands.remove(attempt);
                tracing::debug!(%attempt, ?ending, "attempt ended");
            }
            Event::Copied(attempt, result) => {
                self.commands.remove(attempt);
                tracing::info!(%attempt, ?result, "copied files of the attempt from another tracker");
            }
            _ => {}
        }
        event
    }

    fn on_link_event(&mut self, event: LinkEvent) -> Option<Event> {
        match event {
            LinkEvent::Up(out, jobtracker) => {
                self.jobtracker = jobtracker;
                self.to_jobtracker = Some(out);
                Some(Event::Connected)
            }
            LinkEvent::Down => {
                self.to_jobtracker = None;
                Some(Event::Disconnected)
            }
            LinkEvent::Message(message) => {
                let event = wire::event(message);
                match &event {
                    Some(Event::Registered { .. }) => {
                        tracing::info!(jobtracker = self.jobtracker, "registered with the jobtracker");
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

    fn execute(&mut self, action: Action) {
        match action {
            Action::Start(attempt, Launch { spec, resume_from }) => {
                tracing::debug!(%attempt, ?resume_from, "starting an attempt");
                let commands = self.task_runner.start(attempt, spec, resume_from);
                self.commands.insert(attempt, commands);
            }
            Action::Kill(attempt, why) => {
                tracing::debug!(%attempt, why, "killing an attempt");
                self.send_command(attempt, Command::Kill(why));
            }
            Action::Preempt(attempt, kind, why) => {
                tracing::debug!(%attempt, ?kind, why, "preempting an attempt");
                self.send_command(attempt, Command::Preempt(kind, why));
            }
            Action::MapEvents(reduce, mut batch) => {
                batch.events = batch.events.into_iter().map(|event| self.with_local_path(event)).collect();
                self.send_command(reduce, Command::MapEvents(batch));
            }
            Action::DropCheckpoint(attempt) => self.drop_checkpoint(attempt),
            Action::CopyFiles(attempt, source) => {
                // The copy may have the same folder as a checkpoint that is going to be deleted, so
                // it starts after the checkpoint is renamed.
                let renames = self.checkpoint_renames.remove(&attempt).unwrap_or_default();
                let commands = self.task_runner.start_copy(attempt, source, renames);
                self.commands.insert(attempt, commands);
            }
            Action::Clean(job) => self.clean(job),
            Action::Register { incarnation, attempts, outputs, checkpoints, jobs } => {
                let message =
                    wire::register(&self.identity, incarnation, attempts, &outputs, checkpoints, &jobs);
                send_registration(&mut self.to_jobtracker, message);
            }
            Action::Heartbeat(heartbeat) => {
                self.send_heartbeat(wire::heartbeat(Arc::unwrap_or_clone(heartbeat)));
            }
            Action::Exit(text) => {
                let jobtracker = self.jobtracker.clone();
                self.fatal_errors.send(TrackerError::Refused { jobtracker, text }).ok();
            }
        }
    }

    fn send_command(&self, attempt: AttemptId, command: Command) {
        if let Some(commands) = self.commands.get(&attempt) {
            // An error means that the attempt is already ending.
            commands.send(command).ok();
        }
    }

    /// Sends a heartbeat to the JobTracker. If the channel is full the heartbeat is dropped, because
    /// the agent repeats it.
    fn send_heartbeat(&self, message: FromTracker) {
        if let Some(to_jobtracker) = &self.to_jobtracker
            && to_jobtracker.try_send(message).is_err()
        {
            tracing::debug!("the connection to the jobtracker is full or closed");
        }
    }

    /// Adds the local path of the map output to an event, if the output is on this tracker.
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
        tracing::debug!(%attempt, "deleting a checkpoint");
        self.task_runner.shuffle_store.drop_checkpoint(attempt);
        let disks = self.task_runner.disks.clone();
        let rename = tokio::task::spawn_blocking(move || {
            let dropped = disks.rename_for_deletion(attempt);
            // The deletion is a separate task, because a copy waits only for the rename.
            tokio::task::spawn_blocking(move || {
                for path in &dropped {
                    log_failure(path, "remove", remove_tree(path));
                }
            });
        });
        self.checkpoint_renames.retain(|_, renames| {
            renames.retain(|rename| !rename.is_finished());
            !renames.is_empty()
        });
        self.checkpoint_renames.entry(attempt).or_default().push(rename);
    }

    /// Forgets a job and deletes its files.
    fn clean(&self, job: JobId) {
        let task_runner = self.task_runner.clone();
        task_runner.pool.forget(job);
        task_runner.shuffle_store.forget(job);
        task_runner.fetcher.forget(job);
        tokio::spawn(async move {
            let disks = task_runner.disks.clone();
            let complete = tokio::task::spawn_blocking(move || disks.delete_job_files(job)).await;
            task_runner.events.send(Event::Cleaned(job, complete.unwrap_or(false))).await.ok();
        });
    }
}

/// Sends a registration to the JobTracker. The agent does not repeat a registration. If the channel
/// is full it is closed, so that the JobTracker reads the messages in it and then ends the
/// connection. The agent registers again on the next connection.
fn send_registration(to_jobtracker: &mut Option<mpsc::Sender<FromTracker>>, message: FromTracker) {
    if let Some(channel) = to_jobtracker
        && channel.try_send(message).is_err()
    {
        tracing::info!(
            "cannot send the registration: the connection to the jobtracker is full; connecting again"
        );
        *to_jobtracker = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_is_closed_if_a_registration_cannot_be_sent() {
        let (sender, mut sent) = mpsc::channel(2);
        let mut to_jobtracker = Some(sender);
        for _ in 0..2 {
            send_registration(&mut to_jobtracker, FromTracker::default());
            assert!(to_jobtracker.is_some(), "closed although the channel has room");
        }
        send_registration(&mut to_jobtracker, FromTracker::default());
        assert!(to_jobtracker.is_none());
        for _ in 0..2 {
            assert!(sent.try_recv().is_ok());
        }
        assert!(matches!(sent.try_recv(), Err(mpsc::error::TryRecvError::Disconnected)));
    }
}
