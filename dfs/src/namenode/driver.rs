//! The body around the state machine: clock, lock, edit log, and the order between them.
//!
//! A mutation is applied and its record queued under one write lock, so that log order is memory order. No
//! answer leaves, not even a refusal or a read, before every record that it could have seen is durable (ADR
//! 0004). With nothing pending that is one atomic load.

use super::{
    namespace::Record,
    op::{BlockLength, Heartbeat, HeartbeatAnswer, Now, Outcome, Registration, Request},
    state::State,
};
use crate::{
    error::{Error, Kind},
    ids::{Incarnation, NodeUuid},
};
use daemon::config::NameNodeConfig;
use journal::{AppendError, Log, LogFailed, Seq, codec};
use parking_lot::RwLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// How often time is told to the state.
pub(crate) const TICK: Duration = Duration::from_millis(200);
/// How long a close waits for its blocks to be reported before the caller is told to ask again.
const REPLICA_WAIT: Duration = Duration::from_secs(3);

/// The NameNode without its sockets.
pub(crate) struct Driver {
    state: RwLock<State>,
    log: Log,
    started: Instant,
    disk_reserve: u64,
    /// Rung when a DataNode has reported replicas.
    replicas_reported: Notify,
}

impl Driver {
    pub(crate) fn new(state: State, log: Log, started: Instant, config: &NameNodeConfig) -> Self {
        Self {
            state: RwLock::new(state),
            log,
            started,
            disk_reserve: config.disk_reserve.0,
            replicas_reported: Notify::new(),
        }
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    pub(crate) fn cluster_id(&self) -> String {
        self.state.read().cluster_id().to_owned()
    }

    pub(crate) fn now(&self) -> Now {
        now_since(self.started)
    }

    /// Carries out a client's operation, then has `answer` read what the reply needs from the same state.
    pub(crate) async fn submit<T>(
        &self,
        request: Request,
        answer: impl Fn(&State, Outcome) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let deadline = tokio::time::Instant::now() + REPLICA_WAIT;
        loop {
            // Listening starts before the attempt, so that a report between the two is not missed.
            let reported = self.replicas_reported.notified();
            let result = self.durably(|driver| driver.attempt(request.clone(), &answer)).await?;
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

    fn attempt<T>(
        &self,
        request: Request,
        answer: impl Fn(&State, Outcome) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut state = self.state.write();
        let handled = state.handle(self.now(), request)?;
        if let Some(record) = handled.record {
            self.append(&record)?;
        }
        answer(&state, handled.outcome)
    }

    /// Answers a question.
    pub(crate) async fn query<T>(&self, ask: impl FnOnce(&State) -> Result<T, Error>) -> Result<T, Error> {
        self.durably(|driver| ask(&driver.state.read())).await?
    }

    /// Changes what is not durable: nodes, leases, safemode.
    pub(crate) async fn adjust<T>(
        &self,
        change: impl FnOnce(&mut State, Now) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.durably(|driver| change(&mut driver.state.write(), driver.now())).await?
    }

    pub(crate) async fn register(&self, registration: Registration) -> Result<String, Error> {
        self.adjust(|state, now| {
            state.register(now, registration)?;
            Ok(state.cluster_id().to_owned())
        })
        .await
    }

    pub(crate) async fn full_report(
        &self,
        node: NodeUuid,
        incarnation: Incarnation,
        chunk: u32,
        last: bool,
        replicas: Vec<BlockLength>,
    ) -> Result<(), Error> {
        self.adjust(|state, now| state.full_report(now, node, incarnation, chunk, last, replicas)).await?;
        self.replicas_reported.notify_waiters();
        Ok(())
    }

    /// The answer, passed through `wire` while the state is still at hand.
    pub(crate) async fn heartbeat<T>(
        &self,
        node: NodeUuid,
        incarnation: Incarnation,
        heartbeat: Heartbeat,
        wire: impl FnOnce(&State, HeartbeatAnswer) -> T,
    ) -> Result<T, Error> {
        let news = !heartbeat.received.is_empty();
        let answer = self
            .adjust(|state, now| {
                let answer = state.heartbeat(now, node, incarnation, heartbeat);
                Ok(wire(state, answer))
            })
            .await?;
        if news {
            self.replicas_reported.notify_waiters();
        }
        Ok(answer)
    }

    /// Tells the state what time it is.
    pub(crate) fn tick(&self) -> Result<(), Error> {
        let free = self.log.free_bytes().ok();
        let mut state = self.state.write();
        state.set_disk_low(free.filter(|free| *free < self.disk_reserve));
        for record in state.tick(self.now()) {
            self.append(&record)?;
        }
        Ok(())
    }

    fn append(&self, record: &Record) -> Result<Seq, Error> {
        self.log.append(&codec::encode(record)).map_err(|error| match error {
            AppendError::Failed(failed) => unavailable(&failed),
            // The record is applied but cannot be logged: memory and disk have parted. There is no way on.
            AppendError::TooLarge { bytes, max } => {
                panic!("an edit of {bytes} bytes exceeds the log's {max}")
            }
        })
    }

    /// Runs `work`, and hands out what it says once all that it could have seen is durable.
    async fn durably<T>(&self, work: impl FnOnce(&Self) -> T) -> Result<T, Error> {
        let value = work(self);
        self.log.wait_durable(self.log.last_seq()).await.map_err(|failed| unavailable(&failed))?;
        Ok(value)
    }
}

pub(crate) fn now_since(started: Instant) -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { mono_ms: started.elapsed().as_millis() as u64, wall_ms: wall.as_millis() as u64 }
}

fn unavailable(failed: &LogFailed) -> Error {
    Error::new(Kind::Unavailable, format!("the NameNode cannot write its edit log: {failed}"))
}
