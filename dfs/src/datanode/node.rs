//! The state that the threads of a DataNode share.

use super::{error::Refusal, layout::NameNodeStart, queues::CommandQueues, store::Store};
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use daemon::config::DataNodeConfig;
use dfs_client::masters::Masters;
use parking_lot::Mutex;
use security::{BlockKey, ConnectionLimiter, Connector, Credentials, Guard};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// A running DataNode.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) config: DataNodeConfig,
    pub(super) store: Store,
    pub(super) connections: Connections,
    pub(super) command_queues: CommandQueues,
    pub(super) epoch: AcknowledgedEpoch,
    pub(super) stop: StopSignal,
    /// The access policy for callers.
    pub(super) guard: Guard,
    /// The key to verify the tokens of callers.
    pub(super) blocks: BlockKey,
    /// The credentials for calls to the NameNodes.
    pub(super) credentials: Credentials,
    /// The TLS settings for connections to other DataNodes.
    pub(super) connector: Connector,
    /// Sends queries to the leading NameNode from blocking threads.
    pub(super) queries: NameNodeQueries,
}

impl Node {
    /// Returns the ID of the node as text.
    pub(super) fn uuid(&self) -> String {
        self.store.uuid.to_string()
    }

    /// Acknowledges a start of the NameNode: stores it durably, then drops queued deletions and
    /// waits until the running one has ended. So no NameNode of an earlier epoch deletes a replica
    /// of this node any more, and every replica that it has deleted is in `pending_reports`.
    /// `forget` drops the deletions also if the epoch is not new. Does nothing if the node knows a
    /// later start. Blocks.
    pub(super) fn acknowledge(
        &self,
        cluster_id: &str,
        start: &NameNodeStart,
        forget: bool,
    ) -> Result<(), Refusal> {
        let _changing = self.epoch.changing.lock();
        let known = self.store.namenode_start();
        if start.epoch < known.epoch {
            return Ok(());
        }
        if *start != known || self.store.cluster_id().is_empty() {
            self.store.join_cluster(cluster_id, start.clone())?;
        }
        if forget || start.epoch > self.epoch.get() {
            self.command_queues.forget_deletions();
            self.epoch.epoch.store(start.epoch, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// The epoch that this node has acknowledged: the highest that any NameNode has sent it. It is
/// stored in `VERSION` (`Store::namenode_start`) before it is here.
#[derive(Debug)]
pub(super) struct AcknowledgedEpoch {
    epoch: AtomicU64,
    changing: Mutex<()>,
}

impl AcknowledgedEpoch {
    pub(super) fn new(epoch: u64) -> Self {
        Self { epoch: AtomicU64::new(epoch), changing: Mutex::default() }
    }

    pub(super) fn get(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }
}

/// Signals the threads of the node that it stops. Nothing is sent on the channel: it is closed when
/// the node stops.
#[derive(Debug)]
pub(super) struct StopSignal {
    sender: Mutex<Option<Sender<Infallible>>>,
    signal: Receiver<Infallible>,
}

impl Default for StopSignal {
    fn default() -> Self {
        let (sender, signal) = bounded(0);
        Self { sender: Mutex::new(Some(sender)), signal }
    }
}

impl StopSignal {
    /// Closes the channel, which wakes all waiting threads. The node is stopping from now on.
    pub(super) fn begin_stop(&self) {
        self.sender.lock().take();
    }

    /// Sleeps for `time` and returns false. Returns true early if the node stops.
    pub(super) fn wait(&self, time: Duration) -> bool {
        self.signal.recv_timeout(time) == Err(RecvTimeoutError::Disconnected)
    }

    /// Returns whether the node is stopping.
    pub(super) fn is_stopping(&self) -> bool {
        self.signal.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Returns the channel that is closed when the node stops.
    pub(super) fn channel(&self) -> &Receiver<Infallible> {
        &self.signal
    }
}

/// The open connections.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) connection_limiter: Arc<ConnectionLimiter>,
    /// Number of running requests. A connection between two requests is not counted.
    running_requests: AtomicUsize,
}

impl Connections {
    /// Creates an empty set of connections. `max` is the maximum number of connections with a valid
    /// token.
    pub(super) fn new(max: usize) -> Self {
        Self { connection_limiter: ConnectionLimiter::new(max), running_requests: AtomicUsize::new(0) }
    }

    /// Returns the number of connections.
    pub(super) fn count(&self) -> usize {
        self.connection_limiter.count()
    }

    /// Returns the number of running requests.
    pub(super) fn running_requests(&self) -> usize {
        self.running_requests.load(Ordering::SeqCst)
    }

    /// Closes all connections.
    pub(super) fn close(&self) {
        self.connection_limiter.close();
    }

    /// Runs `request` and counts it as running until it returns or panics.
    pub(super) fn during<T>(&self, request: impl FnOnce() -> T) -> T {
        self.running_requests.fetch_add(1, Ordering::SeqCst);
        let _count_down = OnDrop(|| self.running_requests.fetch_sub(1, Ordering::SeqCst));
        request()
    }
}

/// Calls a function on drop, also if the thread panics.
struct OnDrop<T, F: FnMut() -> T>(F);

impl<T, F: FnMut() -> T> Drop for OnDrop<T, F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Sends queries to the leading NameNode from the threads that transfer blocks.
#[derive(Debug)]
pub(super) struct NameNodeQueries {
    pub(super) masters: Masters,
    pub(super) runtime: tokio::runtime::Handle,
}
