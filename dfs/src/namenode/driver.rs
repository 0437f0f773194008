//! The driver of the state machine: adds the clock, the lock and the edit log.
//!
//! A change is applied and its record is queued under one write lock, so that the order of the log
//! is the order of the changes in memory. No reply is sent before every record that it could depend
//! on is durable (ADR 0004). This includes refusals and reads. If no record is pending, the check
//! is one atomic load.

use super::{
    op::{Heartbeat, HeartbeatAnswer, Now, Outcome, Registration, Replica, Request},
    state::State,
};
use daemon::config::NameNodeConfig;
use dfs_client::{
    error::{Error, Kind},
    ids::{NodeIncarnation, NodeUuid, StartId},
};
use journal::{Log, codec, log::RECORD_BYTES_MAX};
use parking_lot::RwLock;
use replication::{
    master::Journal,
    proposals::{AppendError, NotCommitted, Ticket},
};
use std::{
    collections::HashSet,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::sync::Notify;

/// Interval between two calls of [`State::tick`].
pub(crate) const TICK: Duration = Duration::from_millis(200);
/// Maximum number of users for whom this process creates home folders. Further users are served,
/// but get no home folder.
const HOMES_MAX: usize = 100_000;
/// How long a close waits until DataNodes have reported the blocks of the file, before the client
/// must retry.
const REPLICA_WAIT: Duration = Duration::from_secs(3);

/// The reply to the registration of a DataNode. `epoch` and `start` identify the start of the
/// NameNode.
pub(crate) struct RegistrationReply {
    pub(crate) cluster_id: String,
    pub(crate) epoch: u64,
    pub(crate) start: StartId,
}

/// The NameNode without its sockets.
pub(crate) struct Driver {
    state: RwLock<State>,
    journal: Journal,
    started: Instant,
    disk_reserve: u64,
    /// Notified when a DataNode has reported replicas.
    replicas_reported: Notify,
    /// Users whose home folder need not be created: it exists, or creating it was refused.
    homes: RwLock<HashSet<Box<str>>>,
}

impl Driver {
    pub(crate) fn new(state: State, journal: Journal, started: Instant, config: &NameNodeConfig) -> Self {
        Self {
            state: RwLock::new(state),
            journal,
            started,
            disk_reserve: config.disk_reserve.0,
            replicas_reported: Notify::new(),
            homes: RwLock::default(),
        }
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(crate) fn log(&self) -> &Log {
        self.journal.log()
    }

    pub(crate) fn cluster_id(&self) -> String {
        self.state.read().cluster_id().to_owned()
    }

    pub(crate) fn now(&self) -> Now {
        now_since(self.started)
    }

    /// Executes an operation of a client. Then `answer` makes the reply from the same state, before
    /// other operations can change it.
    pub(crate) async fn submit<T>(
        &self,
        request: Request,
        answer: impl Fn(&State, Outcome) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let deadline = tokio::time::Instant::now() + REPLICA_WAIT;
        loop {
            // Register for the notification before the attempt, so that a report between the two is
            // not missed.
            let reported = self.replicas_reported.notified();
            let (result, appended) = self.try_submit(request.clone(), &answer);
            self.wait(appended).await?;
            match result {
                Err(error) if error.kind == Kind::NotYetReplicated => {
                    if tokio::time::timeout_at(deadline, reported).await.is_err() {
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
    }

    /// Returns the reply, and what was appended.
    fn try_submit<T>(
        &self,
        request: Request,
        answer: impl Fn(&State, Outcome) -> Result<T, Error>,
    ) -> (Result<T, Error>, Option<Ticket>) {
        let mut state = self.state.write();
        let mut appended = None;
        let result = self.check_log_capacity(RECORD_BYTES_MAX).and_then(|()| {
            let handled = state.handle(self.now(), request)?;
            if let Some(entry) = handled.entry {
                appended = Some(self.append(&entry.bytes)?);
            }
            answer(&state, handled.outcome)
        });
        (result, appended)
    }

    /// Creates `/user/NAME` at the first call of a user. A refusal does not fail the call, because
    /// the user may not need a home folder. The creation is retried only if the NameNode is in
    /// safemode or its log is not writable.
    ///
    /// This is called for every request. For a known user, only a read lock on `homes` is taken.
    /// That lock is not held while a folder is created, so two concurrent first calls may both try
    /// to create the folder; the second finds that it exists. When `HOMES_MAX` users are known, no
    /// folders are created for further users.
    pub(crate) fn ensure_home(&self, user: &str) {
        {
            let homes = self.homes.read();
            if homes.contains(user) || homes.len() >= HOMES_MAX {
                return;
            }
        }
        match self.make_home(user) {
            Ok(()) => {}
            Err(error) if error.is_transient() => return,
            Err(error) => tracing::warn!(user, %error, "cannot create the home folder"),
        }
        self.homes.write().insert(user.into());
    }

    fn make_home(&self, user: &str) -> Result<(), Error> {
        if self.state.read().has_home(user)? {
            return Ok(());
        }
        let mut state = self.state.write();
        self.check_log_capacity(RECORD_BYTES_MAX)?;
        match state.make_home(self.now(), user)? {
            Some(entry) => self.append(&entry.bytes).map(drop),
            None => Ok(()),
        }
    }

    /// Executes a read-only query.
    pub(crate) async fn query<T>(&self, ask: impl FnOnce(&State) -> Result<T, Error>) -> Result<T, Error> {
        let value = ask(&self.state.read());
        self.wait(None).await?;
        value
    }

    /// Turns safemode on or off. Then `answer` makes the reply from the same state.
    pub(crate) async fn set_safemode<T>(
        &self,
        on: bool,
        answer: impl FnOnce(&State) -> T,
    ) -> Result<T, Error> {
        let (value, appended) = {
            let mut state = self.state.write();
            self.check_log_capacity(RECORD_BYTES_MAX)?;
            let record = state.set_safemode(self.now(), on);
            let appended = record.map(|record| self.append(&codec::encode(&record))).transpose()?;
            (answer(&state), appended)
        };
        self.wait(appended).await?;
        Ok(value)
    }

    /// Changes volatile state: nodes, leases.
    pub(crate) async fn change_volatile<T>(
        &self,
        change: impl FnOnce(&mut State, Now) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let value = change(&mut self.state.write(), self.now());
        self.wait(None).await?;
        value
    }

    pub(crate) async fn register(&self, registration: Registration) -> Result<RegistrationReply, Error> {
        self.change_volatile(|state, now| {
            state.register(now, registration)?;
            let namespace = state.namespace();
            Ok(RegistrationReply {
                cluster_id: namespace.cluster_id().to_owned(),
                epoch: namespace.epoch(),
                start: namespace.start_id().unwrap_or(StartId(0)),
            })
        })
        .await
    }

    pub(crate) async fn full_report(
        &self,
        node: NodeUuid,
        incarnation: NodeIncarnation,
        chunk: u32,
        last: bool,
        replicas: Vec<Replica>,
    ) -> Result<(), Error> {
        self.change_volatile(|state, now| {
            state.full_report(now, node, incarnation, chunk, last, replicas)?;
            self.replicas_reported.notify_waiters();
            Ok(())
        })
        .await
    }

    /// Processes a heartbeat. `wire` converts the answer to a reply while the state is locked.
    pub(crate) async fn heartbeat<T>(
        &self,
        node: NodeUuid,
        incarnation: NodeIncarnation,
        heartbeat: Heartbeat,
        wire: impl FnOnce(&State, HeartbeatAnswer) -> T,
    ) -> Result<T, Error> {
        let has_received = !heartbeat.received.is_empty();
        self.change_volatile(|state, now| {
            let answer = state.heartbeat(now, node, incarnation, heartbeat);
            // Notify waiting closes before this heartbeat waits for the log: each close waits for
            // the log itself.
            if has_received {
                self.replicas_reported.notify_waiters();
            }
            Ok(wire(state, answer))
        })
        .await
    }

    /// Returns whether the NameNode refuses changes.
    pub(crate) fn in_safemode(&self) -> bool {
        self.state.read().safemode().on
    }

    /// Runs the periodic work of the state machine, and logs its events.
    pub(crate) fn tick(&self) -> Result<(), Error> {
        let free = self.log().free_bytes().ok();
        let mut state = self.state.write();
        state.set_disk_low(free.filter(|free| *free < self.disk_reserve));
        // A tick recovers abandoned files until their edits would fill one record, and then
        // completes the current file. It may therefore need the capacity of two records.
        self.check_log_capacity(2 * RECORD_BYTES_MAX)?;
        for record in state.tick(self.now()) {
            self.append(&codec::encode(&record))?;
        }
        let events = state.take_events();
        drop(state);
        for event in events {
            if event.is_warning() { tracing::warn!("{event}") } else { tracing::info!("{event}") }
        }
        Ok(())
    }

    /// Refuses an operation before it is applied if the log has too little capacity: the log must
    /// not block while the state is locked.
    fn check_log_capacity(&self, bytes: usize) -> Result<(), Error> {
        if self.journal.has_room_for(bytes) {
            return Ok(());
        }
        let message = "the NameNode's disk does not keep up with its edit log: retry, and check that disk";
        Err(Error::new(Kind::Unavailable, message))
    }

    /// Appends a record that has been applied to the edit log. The caller has called
    /// `check_log_capacity` under the same lock.
    fn append(&self, record: &[u8]) -> Result<Ticket, Error> {
        match self.journal.append(&[record]) {
            Ok(ticket) => Ok(ticket),
            Err(AppendError::Failed(failed)) => Err(log_error(&failed.into())),
            Err(AppendError::NotLeader) => Err(log_error(&NotCommitted::NotLeader)),
            // The size of a record is limited, so this is a bug. Memory and disk differ now, so the
            // process must end.
            Err(error @ AppendError::TooLarge { .. }) => {
                tracing::error!(%error, "an applied edit cannot be logged: the NameNode aborts");
                std::process::abort()
            }
        }
    }

    /// Waits until a reply may be sent: until what was appended for it is durable, and otherwise
    /// until all records that it could depend on are. The second is an error if the log has failed,
    /// because memory may contain changes that are not in the log.
    async fn wait(&self, appended: Option<Ticket>) -> Result<(), Error> {
        let durable = match appended {
            Some(ticket) => self.journal.wait(ticket).await,
            None => self.journal.confirm(self.journal.newest()).await,
        };
        durable.map_err(|why| log_error(&why))
    }
}

pub(crate) fn now_since(started: Instant) -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { mono_ms: started.elapsed().as_millis() as u64, wall_ms: wall.as_millis() as u64 }
}

fn log_error(why: &NotCommitted) -> Error {
    Error::new(Kind::Unavailable, format!("the NameNode cannot write its edit log: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namenode::{settings::Settings, storage::Storage};
    use crossbeam::channel::bounded;
    use journal::Recovery;
    use std::thread;

    #[test]
    fn user_with_a_home_does_not_wait_while_a_home_is_made_for_another() {
        let folder = tempfile::tempdir().unwrap();
        let config = NameNodeConfig::default();
        let Storage { log, namespace, .. } = Storage::open(folder.path(), Recovery::Refuse, &config).unwrap();
        let started = Instant::now();
        let state = State::new(Settings::from(&config), namespace, now_since(started));
        let driver = &Driver::new(state, Journal::Single(log), started, &config);
        driver.ensure_home("ann");
        assert!(driver.state.read().has_home("ann").unwrap());
        thread::scope(|scope| {
            let state = driver.state.write();
            let (begun, begins) = bounded(1);
            scope.spawn(move || {
                begun.send(()).unwrap();
                // Blocks on the lock of the state.
                driver.ensure_home("bob");
            });
            begins.recv().unwrap();
            let (done, ended) = bounded(1);
            scope.spawn(move || {
                // Repeat the call until the other thread has probably reached the lock.
                for _ in 0..100 {
                    driver.ensure_home("ann");
                    thread::sleep(Duration::from_millis(1));
                }
                done.send(()).unwrap();
            });
            ended
                .recv_timeout(Duration::from_mins(1))
                .expect("a user with a home folder waited for the creation of another user's");
            drop(state);
        });
        assert!(driver.state.read().has_home("bob").unwrap());
    }
}
