//! What the threads of a DataNode share.

use super::{commands::CommandQueues, link::NameNodeQueries, server::Connections, store::Store};
use daemon::config::DataNodeConfig;
use parking_lot::{Condvar, Mutex};
use security::{BlockKey, Connector, Credentials, Guard};
use std::time::{Duration, Instant};

/// One running DataNode.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) config: DataNodeConfig,
    pub(super) store: Store,
    pub(super) connections: Connections,
    pub(super) command_queues: CommandQueues,
    pub(super) stop: Stop,
    /// What is asked of those who connect,
    pub(super) guard: Guard,
    /// and checked of what they show.
    pub(super) blocks: BlockKey,
    /// What is shown to the NameNode,
    pub(super) credentials: Credentials,
    /// and asked of other DataNodes.
    pub(super) connector: Connector,
    /// Where threads ask the NameNode.
    pub(super) queries: NameNodeQueries,
}

impl Node {
    /// Its identity, as it travels.
    pub(super) fn uuid(&self) -> String {
        self.store.uuid.to_string()
    }
}

/// The end of the node, for threads that mostly sleep.
#[derive(Debug, Default)]
pub(super) struct Stop {
    stopping: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Wakes all who wait, for good.
    pub(super) fn wake(&self) {
        *self.stopping.lock() = true;
        self.changed.notify_all();
    }

    /// Sleeps; true, at once, if the node stops.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut stopping = self.stopping.lock();
        while !*stopping && !self.changed.wait_until(&mut stopping, until).timed_out() {}
        *stopping
    }

    /// Whether the node stops.
    pub(super) fn is_stopping(&self) -> bool {
        *self.stopping.lock()
    }
}
