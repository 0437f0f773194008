//! The state that the threads of a DataNode share.

use super::{commands::CommandQueues, link::NameNodeQueries, server::Connections, store::Store};
use daemon::config::DataNodeConfig;
use parking_lot::{Condvar, Mutex};
use security::{BlockKey, Connector, Credentials, Guard};
use std::time::{Duration, Instant};

/// A running DataNode.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) config: DataNodeConfig,
    pub(super) store: Store,
    pub(super) connections: Connections,
    pub(super) command_queues: CommandQueues,
    pub(super) stop: Stop,
    /// The access policy for callers.
    pub(super) guard: Guard,
    /// The key to verify the tokens of callers.
    pub(super) blocks: BlockKey,
    /// The credentials for calls to the NameNode.
    pub(super) credentials: Credentials,
    /// The TLS settings for connections to other DataNodes.
    pub(super) connector: Connector,
    /// Calls to the NameNode from blocking threads.
    pub(super) queries: NameNodeQueries,
}

impl Node {
    /// Returns the ID of the node as text.
    pub(super) fn uuid(&self) -> String {
        self.store.uuid.to_string()
    }
}

/// Signals the stop of the node to threads that sleep.
#[derive(Debug, Default)]
pub(super) struct Stop {
    stopping: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Wakes all waiting threads. The node stays in the stopping state.
    pub(super) fn wake(&self) {
        *self.stopping.lock() = true;
        self.changed.notify_all();
    }

    /// Sleeps for `time`. Returns true at once if the node stops.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut stopping = self.stopping.lock();
        while !*stopping && !self.changed.wait_until(&mut stopping, until).timed_out() {}
        *stopping
    }

    /// Whether the node is stopping.
    pub(super) fn is_stopping(&self) -> bool {
        *self.stopping.lock()
    }
}
