//! The driver of the state machine: adds the clock, the lock and the edit log.
//!
//! A change is applied and its record is queued under one write lock, so that the order of the log
//! is the order of the changes in memory. No reply is sent before every record that it could depend
//! on is durable (ADR 0004). This includes refusals and reads. If no record is pending, the check
//! is one atomic load.
//!
//! A member of a group answers clients only while it leads, and a read or a refusal only when a
//! quorum has confirmed that it still led after the value was read (ADR 0040). The ticket that says
//! in which leadership a value was read is taken under the lock under which it was read.

use super::{
    op::{Heartbeat, HeartbeatAnswer, Now, Outcome, Registration, Replica, Request},
    state::State,
};
use daemon::config::NameNodeConfig;
use dfs_client::{
    error::{Error, Kind, Leader},
    ids::{NodeIncarnation, NodeUuid, RequestId, StartId},
};
use journal::{
    bugs::{self, Bug},
    codec,
    log::RECORD_BYTES_MAX,
};
use parking_lot::RwLock;
use replication::{
    master::Journal,
    member::Member,
    proposals::{AppendError, NotCommitted, Ticket},
};
use security::Role;
use std::{
    collections::HashSet,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{sync::Notify, time::Instant};

/// Interval between two calls of [`State::tick`].
pub const TICK: Duration = Duration::from_millis(200);
/// Maximum number of users for whom this process creates home folders. Further users are served,
/// but get no home folder.
const HOMES_MAX: usize = 100_000;
/// How long a close waits until DataNodes have reported the blocks of the file, before the client
/// must retry.
const REPLICA_WAIT: Duration = Duration::from_secs(3);

/// The reply to the registration of a DataNode. `epoch` and `start` identify the start of the
/// NameNode.
pub struct RegistrationReply {
    pub cluster_id: String,
    pub epoch: u64,
    pub start: StartId,
    pub leads: bool,
}

/// What a driver takes from outside: its clocks and its random numbers. A simulation has its own.
pub struct Environment {
    /// The start of the process.
    pub started: Instant,
    /// Returns the time of the wall clock.
    pub wall: Box<dyn Fn() -> SystemTime + Send + Sync>,
    /// Returns a random ID for a start.
    pub start_id: Box<dyn Fn() -> StartId + Send + Sync>,
}

impl Environment {
    /// Uses the clocks and the random numbers of the machine. The process starts now.
    pub fn of_machine() -> Self {
        Self { started: Instant::now(), wall: Box::new(SystemTime::now), start_id: Box::new(StartId::random) }
    }

    /// Returns the current time.
    pub fn now(&self) -> Now {
        let wall = (self.wall)().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { mono_ms: self.started.elapsed().as_millis() as u64, wall_ms: wall.as_millis() as u64 }
    }
}

/// The NameNode without its sockets.
pub struct Driver {
    pub(super) state: RwLock<State>,
    journal: Journal,
    pub(super) cluster_id: String,
    /// Number of answers that a snapshot keeps.
    pub(super) retry_cache: usize,
    environment: Environment,
    disk_reserve: u64,
    /// Notified when a DataNode has reported replicas.
    replicas_reported: Notify,
    /// Users whose home folder need not be created: it exists, or creating it was refused.
    pub(super) homes: RwLock<HashSet<Box<str>>>,
}

impl Driver {
    pub fn new(state: State, journal: Journal, environment: Environment, config: &NameNodeConfig) -> Self {
        Self {
            cluster_id: state.cluster_id().to_owned(),
            retry_cache: config.retry_cache,
            state: RwLock::new(state),
            journal,
            environment,
            disk_reserve: config.disk_reserve.0,
            replicas_reported: Notify::new(),
            homes: RwLock::default(),
        }
    }

    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(crate) fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    pub(crate) fn now(&self) -> Now {
        self.environment.now()
    }

    /// Returns a random ID for a leadership.
    pub(super) fn start_id(&self) -> StartId {
        (self.environment.start_id)()
    }

    /// Returns what `ask` reads of the state, without a confirmation that this NameNode still leads.
    pub fn read<T>(&self, ask: impl FnOnce(&State) -> T) -> T {
        ask(&self.state.read())
    }

    /// Executes an operation of a client. Then `answer` makes the reply from the same state, before
    /// other operations can change it.
    pub async fn submit<T>(
        &self,
        request: Request,
        answer: impl Fn(&State, Outcome) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let deadline = tokio::time::Instant::now() + REPLICA_WAIT;
        loop {
            // Register for the notification before the attempt, so that a report between the two is
            // not missed.
            let reported = self.replicas_reported.notified();
            let (result, seen) = self.try_submit(request.clone(), &answer)?;
            self.wait(seen).await?;
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

    /// Returns the reply, and what must be waited for before it is sent.
    fn try_submit<T>(
        &self,
        request: Request,
        answer: impl Fn(&State, Outcome) -> Result<T, Error>,
    ) -> Result<(Result<T, Error>, Seen), Error> {
        let mut state = self.state.write();
        self.check_leader(&state)?;
        let mut appended = None;
        let result = self.check_log_capacity(RECORD_BYTES_MAX).and_then(|()| {
            let id = if bugs::has(Bug::RequestRepeated) {
                RequestId(self.start_id().0.into())
            } else {
                request.id
            };
            let handled = state.handle(self.now(), Request { id, ..request })?;
            if let Some(entry) = handled.entry {
                appended = Some(self.append(&entry.bytes)?);
            }
            answer(&state, handled.outcome)
        });
        Ok((result, self.seen(appended)))
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
        {
            let state = self.state.read();
            if !state.is_leader() {
                return;
            }
            if let Ok(true) = state.has_home(user) {
                self.homes.write().insert(user.into());
                return;
            }
        }
        let mut state = self.state.write();
        match self.make_home(&mut state, user) {
            Ok(()) => {}
            Err(error) if error.is_transient() => return,
            Err(error) => tracing::warn!(user, %error, "cannot create the home folder"),
        }
        // The end of a leadership clears the list under the lock of the state: the folder may not be
        // committed.
        self.homes.write().insert(user.into());
    }

    fn make_home(&self, state: &mut State, user: &str) -> Result<(), Error> {
        self.check_leader(state)?;
        self.check_log_capacity(RECORD_BYTES_MAX)?;
        match state.make_home(self.now(), user)? {
            Some(entry) => self.append(&entry.bytes).map(drop),
            None => Ok(()),
        }
    }

    /// Executes a read-only query.
    pub async fn query<T>(&self, ask: impl FnOnce(&State) -> Result<T, Error>) -> Result<T, Error> {
        let (value, seen) = {
            let state = self.state.read();
            self.check_leader(&state)?;
            (ask(&state), self.seen(None))
        };
        self.wait(seen).await?;
        value
    }

    /// Turns safemode on or off. Then `answer` makes the reply from the same state.
    pub(crate) async fn set_safemode<T>(
        &self,
        on: bool,
        answer: impl FnOnce(&State) -> T,
    ) -> Result<T, Error> {
        let (value, seen) = {
            let mut state = self.state.write();
            self.check_leader(&state)?;
            self.check_log_capacity(RECORD_BYTES_MAX)?;
            let record = state.set_safemode(self.now(), on);
            let appended = record.map(|record| self.append(&codec::encode(&record))).transpose()?;
            (answer(&state), self.seen(appended))
        };
        self.wait(seen).await?;
        Ok(value)
    }

    /// Changes volatile state for a client: leases, checks.
    pub(crate) async fn change_volatile<T>(
        &self,
        change: impl FnOnce(&mut State, Now) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (value, seen) = {
            let mut state = self.state.write();
            self.check_leader(&state)?;
            (change(&mut state, self.now()), self.seen(None))
        };
        self.wait(seen).await?;
        value
    }

    /// Processes a report of a DataNode. The answer of a leader waits until what it could depend on
    /// is durable, and not for a confirmation by a quorum: DataNodes compare epochs. A follower
    /// answers only from what is committed: a DataNode that has stored an epoch that is never
    /// committed is refused by all members.
    async fn report<T>(&self, process: impl FnOnce(&mut State, Now) -> Result<T, Error>) -> Result<T, Error> {
        let (value, newest) = {
            let mut state = self.state.write();
            if !state.is_leader() && self.journal.member().is_some_and(|member| !member.is_committed()) {
                let why =
                    "this NameNode does not lead its group any more, and restores its namespace: try again";
                return Err(Error::new(Kind::Unavailable, why));
            }
            let value = process(&mut state, self.now());
            (value, state.is_leader().then(|| self.journal.newest()))
        };
        if let Some(newest) = newest.filter(|_| !bugs::has(Bug::ReportAnsweredEarly)) {
            let durable = self.journal.wait(newest).await;
            durable.and_then(|()| self.journal.check()).map_err(|why| self.log_error(&why))?;
        }
        value
    }

    pub async fn register(&self, registration: Registration) -> Result<RegistrationReply, Error> {
        self.report(|state, now| {
            state.register(now, registration)?;
            let namespace = state.namespace();
            Ok(RegistrationReply {
                cluster_id: namespace.cluster_id().to_owned(),
                epoch: namespace.epoch(),
                start: namespace.start_id().unwrap_or(StartId(0)),
                leads: state.is_leader(),
            })
        })
        .await
    }

    pub async fn full_report(
        &self,
        node: NodeUuid,
        incarnation: NodeIncarnation,
        chunk: u32,
        last: bool,
        replicas: Vec<Replica>,
    ) -> Result<(), Error> {
        self.report(|state, now| {
            state.full_report(now, node, incarnation, chunk, last, replicas)?;
            self.replicas_reported.notify_waiters();
            Ok(())
        })
        .await
    }

    /// Processes a heartbeat. `wire` converts the answer to a reply while the state is locked.
    pub async fn heartbeat<T>(
        &self,
        node: NodeUuid,
        incarnation: NodeIncarnation,
        mut heartbeat: Heartbeat,
        wire: impl FnOnce(&State, HeartbeatAnswer) -> T,
    ) -> Result<T, Error> {
        let has_received = !heartbeat.received.is_empty();
        self.report(|state, now| {
            if bugs::has(Bug::FollowerForgetsReplicas) && !state.is_leader() {
                heartbeat.received.clear();
            }
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

    /// Returns whether this NameNode executes changes: it leads, and is not in safemode.
    pub fn is_writable(&self) -> bool {
        let state = self.state.read();
        state.is_leader() && !state.safemode().on
    }

    /// Runs the periodic work of the state machine, and logs its events.
    pub fn tick(&self) -> Result<(), Error> {
        let free = self.journal.free_bytes().ok();
        let mut state = self.state.write();
        state.set_disk_low(free.filter(|free| *free < self.disk_reserve));
        if state.is_leader() {
            if self.is_paused() {
                return Ok(());
            }
            // A tick recovers abandoned files until their edits would fill one record, and then
            // completes the current file. It may therefore need the capacity of two records.
            self.check_log_capacity(2 * RECORD_BYTES_MAX)?;
        }
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
        if self.is_paused() {
            let message = "this NameNode lets another one of its group lead: try again";
            return Err(Error::new(Kind::Unavailable, message));
        }
        let message = "the NameNode's disk does not keep up with its edit log: retry, and check that disk";
        Err(Error::new(Kind::Unavailable, message))
    }

    fn is_paused(&self) -> bool {
        self.journal.member().is_some_and(Member::is_paused)
    }

    /// Changes nothing from now on, because another member is to lead.
    pub(crate) fn pause(&self) {
        if let Some(member) = self.journal.member() {
            let _state = self.state.write();
            member.pause();
        }
    }

    /// Returns whether the disk of the edit log is nearly full; `None` unless this NameNode leads a
    /// group.
    pub(crate) fn disk_of_leader_is_low(&self) -> Option<bool> {
        let state = self.state.read();
        (self.journal.member().is_some() && state.is_leader()).then(|| state.is_disk_low())
    }

    /// Appends a record that has been applied to the edit log. The caller has called
    /// `check_log_capacity` under the same lock.
    pub(super) fn append(&self, record: &[u8]) -> Result<Ticket, Error> {
        match self.journal.append(&[record]) {
            Ok(ticket) => Ok(ticket),
            Err(AppendError::Failed(failed)) => Err(self.log_error(&failed.into())),
            // The size of a record is limited, and a leadership ends under the lock that the caller
            // has, so this is a bug. Memory and disk differ now, so the process must end.
            Err(error @ (AppendError::TooLarge { .. } | AppendError::NotLeader)) => {
                tracing::error!(%error, "an applied edit cannot be logged: the NameNode aborts");
                std::process::abort()
            }
        }
    }

    /// Refuses a request of a client if another member of the group leads.
    fn check_leader(&self, state: &State) -> Result<(), Error> {
        if state.is_leader() { Ok(()) } else { Err(self.not_leader(state)) }
    }

    /// Returns what a reply must wait for. The caller has the lock of the state.
    fn seen(&self, appended: Option<Ticket>) -> Seen {
        appended.map_or_else(|| Seen::Read(self.journal.newest()), Seen::Appended)
    }

    /// Waits until a reply may be sent: until what was appended for it is durable, and otherwise
    /// until all records that it could depend on are, and no other member can have changed what was
    /// read. The second is an error if the log has failed, because memory may contain changes that
    /// are not in the log.
    async fn wait(&self, seen: Seen) -> Result<(), Error> {
        let durable = match seen {
            Seen::Appended(ticket) => self.journal.wait(ticket).await,
            Seen::Read(ticket) => self.journal.confirm(ticket).await,
        };
        durable.map_err(|why| self.log_error(&why))
    }

    fn log_error(&self, why: &NotCommitted) -> Error {
        let message = match why {
            NotCommitted::NotLeader => return self.not_leader(&self.state.read()),
            NotCommitted::NoQuorum => why.to_string(),
            NotCommitted::Failed(_) => format!("the NameNode cannot write its edit log: {why}"),
        };
        Error::new(Kind::Unavailable, message)
    }

    /// Returns the refusal of a member that does not lead. It names the leader if it knows that.
    fn not_leader(&self, state: &State) -> Error {
        let Journal::Group(member) = &self.journal else { unreachable!("one NameNode always leads") };
        let epoch = state.namespace().epoch();
        Error::not_leader(Role::NameNode, member.other_leader().map(|addr| Leader { addr, epoch }))
    }
}

/// What a reply has seen.
enum Seen {
    /// It answers a change, which was appended.
    Appended(Ticket),
    /// It has read the state when this was the newest ticket.
    Read(Ticket),
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
        let environment = Environment::of_machine();
        let state = State::new(Settings::from(&config), namespace, environment.now());
        let driver = &Driver::new(state, Journal::Single(log), environment, &config);
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
