//! The DataNode: stores block files, serves them with the bulk protocol, and reports them to the
//! NameNode.
//!
//! ```text
//! server ─ receive ─ mirror             one thread per connection, blocking code
//!    │  └─ send, local
//!    ▼
//!  store ─ partial ─ volume ─ disk      which replica is in which folder; the files themselves
//!    │  └─ open, space                  start; measuring free space on its own thread
//! pending_reports ─► link ─► NameNode   heartbeats on a small runtime; the data path does not wait;
//!                     │                 one link per NameNode
//!                     └─► queues ─► commands   copies, deletions, checks
//!                         scrub         reads all replicas slowly and verifies them
//! ```
//!
//! Invariants: a finalised block never changes. A block is reported as done only when it is
//! durable. A replica that is known to be damaged is never served. A folder that has failed is not
//! used again. Foreign files are not touched.
//!
//! The NameNode, and not the DataNode, decides on which nodes replicas are stored.

mod commands;
mod disk;
mod error;
mod layout;
mod link;
mod local;
mod mirror;
mod node;
mod open;
mod pending_reports;
mod queues;
mod receive;
mod scrub;
mod send;
mod server;
mod space;
mod store;
#[cfg(test)]
mod tests;
mod volume;

pub use error::DataNodeError;

use daemon::{
    MasterAddrs,
    config::{Config, DataNodeConfig},
    lifecycle::DaemonArgs,
};
use dfs_client::ids::NodeUuid;
use disk::{Disk, RealDisk};
use node::Node;
use proto::dfs::DataNodeAddress;
use security::{Credentials, Guard};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use store::Store;
use tokio::{
    sync::{Mutex, mpsc, watch},
    task::JoinHandle,
    time::Instant,
};

/// How long a stopping node waits for running transfers.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// How long a stopping node tries to report its newest replicas.
const REPORT_GRACE: Duration = Duration::from_secs(1);

/// A DataNode in this process. It serves from `start` until `stop` or until it is dropped. Needs a
/// tokio runtime with I/O and time.
#[derive(Debug)]
pub struct DataNode {
    node: Arc<Node>,
    address: DataNodeAddress,
    namenodes: MasterAddrs,
    ready: watch::Receiver<bool>,
    fatal_error: Mutex<mpsc::UnboundedReceiver<DataNodeError>>,
    accepting: Vec<JoinHandle<()>>,
    /// One task per NameNode.
    links: Vec<JoinHandle<()>>,
}

impl DataNode {
    /// Opens the data folders, binds the address, starts to serve, and starts to register with the
    /// NameNodes.
    pub async fn start(config: &Config) -> Result<Self, DataNodeError> {
        Self::start_on(config, Arc::new(RealDisk)).await
    }

    async fn start_on(config: &Config, disk: Arc<dyn Disk>) -> Result<Self, DataNodeError> {
        let (fatal_error, fatal_errors) = mpsc::unbounded_channel();
        config.check()?;
        let namenodes = config.cluster.namenode.clone();
        let settings = config.datanode.clone();
        let listener = daemon::listen::bind(&settings.listen, config)?;
        let guard = Guard::new(config, security::Role::DataNode)?;
        let credentials = Credentials::of_daemon(config, security::Role::DataNode)?;
        let (dirs, for_store) = (settings.dirs.clone(), fatal_error.clone());
        let of_store = open::Settings::from(&settings);
        let opening = tokio::task::spawn_blocking(move || Store::open(&dirs, &of_store, disk, for_store));
        let store = opening.await.expect("opening the store does not panic")?;
        let bound = listener.local_addr().map_err(cannot_serve(&settings.listen))?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(cannot_serve(&settings.listen))?;
        let local = local::bind(store.first_folder(), &settings.socket_dir, store.uuid)
            .and_then(|(listener, path)| Ok((tokio::net::UnixListener::from_std(listener)?, path)))
            .inspect_err(
                |error| tracing::warn!(%error, "no socket for short-circuit reads: local readers use TCP"),
            )
            .ok();
        let (local, socket) = local.map_or((None, None), |(listener, path)| (Some(listener), Some(path)));
        let address = address_of(&settings, bound, store.uuid, socket);
        let node = Arc::new(Node {
            config: settings,
            epoch: node::AcknowledgedEpoch::new(store.namenode_start().epoch),
            store,
            connections: node::Connections::new(config.datanode.transfers_max as usize),
            command_queues: queues::CommandQueues::default(),
            stop: node::StopSignal::default(),
            blocks: guard.block_key(),
            guard,
            connector: credentials.connector(security::Role::DataNode),
            queries: node::NameNodeQueries::new(&credentials, &namenodes)?,
            credentials,
        });
        let (ready, is_ready) = watch::channel(false);
        let link = |namenode: &String| {
            link::Link::new(node.clone(), namenode, address.clone(), ready.clone(), fatal_error.clone())
        };
        let links = namenodes.iter().map(link).collect::<Result<Vec<_>, _>>()?;
        commands::start(&node).map_err(DataNodeError::Thread)?;
        let scrubbed = node.clone();
        let scrubber = std::thread::Builder::new().name("scrub".into());
        scrubber.spawn(move || scrub::run(&scrubbed)).map_err(DataNodeError::Thread)?;
        space::start(&node).map_err(DataNodeError::Thread)?;
        let links = links.into_iter().map(|link| tokio::spawn(link.run())).collect();
        let mut accepting = vec![tokio::spawn(server::accept_bulk(node.clone(), listener))];
        accepting.extend(local.map(|local| tokio::spawn(server::accept_local(node.clone(), local))));
        tracing::info!(node = address.node, uuid = address.uuid, addr = address.data_addr, "serving blocks");
        Ok(Self {
            node,
            address,
            namenodes,
            ready: is_ready,
            fatal_error: Mutex::new(fatal_errors),
            accepting,
            links,
        })
    }

    /// Waits until the leading NameNode has accepted the registration and the first full report.
    pub async fn ready(&self) -> Result<(), DataNodeError> {
        let mut ready = self.ready.clone();
        tokio::select! {
            Ok(_) = ready.wait_for(|ready| *ready) => Ok(()),
            error = self.failed() => Err(error),
        }
    }

    /// Returns the advertised address of the bulk protocol, `host:port`.
    pub fn data_addr(&self) -> &str {
        &self.address.data_addr
    }

    /// Returns the address that clients and other nodes get.
    pub fn address(&self) -> &DataNodeAddress {
        &self.address
    }

    /// Returns the ID of the node, which is stored in its data folders.
    pub fn uuid(&self) -> NodeUuid {
        self.node.store.uuid
    }

    /// Waits for an error that ends the node: the NameNode refuses it, or all folders have failed.
    pub async fn failed(&self) -> DataNodeError {
        match self.fatal_error.lock().await.recv().await {
            Some(error) => error,
            // This is not reached, because the senders exist as long as the node.
            None => std::future::pending().await,
        }
    }

    /// Stops the node. Accepts no more connections, waits a short time for running transfers, and
    /// reports the new replicas and the stop to the NameNode.
    pub async fn stop(mut self) {
        for task in self.accepting.drain(..) {
            task.abort();
            task.await.ok();
        }
        wait_until(STOP_GRACE, || self.node.connections.running_requests() == 0).await;
        let known = *self.ready.borrow();
        if known {
            wait_until(REPORT_GRACE, || self.node.store.pending_reports.is_empty()).await;
        }
        // Wait until the tasks of the links have ended. Another heartbeat after the report of the
        // stop would make the node live again.
        for link in self.links.drain(..) {
            link.abort();
            link.await.ok();
        }
        if known {
            link::report_stop(&self.node, &self.namenodes).await;
        }
        self.node.stop.begin_stop();
        self.node.connections.close();
        // Wait for the other threads: the locks of the data folders are released when the last
        // thread ends.
        wait_until(STOP_GRACE, || Arc::strong_count(&self.node) == 1).await;
    }
}

/// Waits until `holds` returns true, but at most for `limit`.
async fn wait_until(limit: Duration, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + limit;
    while !holds() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Drop for DataNode {
    fn drop(&mut self) {
        self.accepting.iter().for_each(JoinHandle::abort);
        self.links.iter().for_each(JoinHandle::abort);
        self.node.stop.begin_stop();
        self.node.connections.close();
        let folders: Vec<&Path> = self.node.store.volumes.iter().map(|volume| volume.paths.root()).collect();
        local::remove(Path::new(&self.address.local_socket), &folders);
    }
}

/// Runs a DataNode until it is stopped (SIGTERM, SIGINT) or fails. Writes the ready file with the
/// bulk address when the node is registered and has reported its replicas.
pub async fn run(config: &Config, args: &DaemonArgs) -> Result<(), DataNodeError> {
    let node = DataNode::start(config).await?;
    let serve = async {
        node.ready().await?;
        args.write_ready(node.data_addr()).map_err(|source| DataNodeError::Ready { source })?;
        Err(node.failed().await)
    };
    tokio::select! {
        () = daemon::lifecycle::stop_signal() => {}
        end = serve => return end,
    }
    tracing::info!("stopping");
    node.stop().await;
    Ok(())
}

fn address_of(
    config: &DataNodeConfig,
    bound: SocketAddr,
    uuid: NodeUuid,
    socket: Option<PathBuf>,
) -> DataNodeAddress {
    let host = daemon::host_name();
    let data_addr = if !config.advertise.is_empty() {
        config.advertise.clone()
    } else if bound.ip().is_unspecified() {
        format!("{host}:{}", bound.port())
    } else {
        bound.to_string()
    };
    DataNodeAddress {
        node: if config.node.is_empty() { host.clone() } else { config.node.clone() },
        uuid: uuid.to_string(),
        data_addr,
        rack: config.rack.clone(),
        local_socket: socket.map_or_else(String::new, |path| path.to_string_lossy().into_owned()),
        host,
        seal: Vec::new(),
    }
}

fn cannot_serve(addr: &str) -> impl FnOnce(std::io::Error) -> DataNodeError {
    move |source| DataNodeError::Serve { addr: addr.into(), source }
}
