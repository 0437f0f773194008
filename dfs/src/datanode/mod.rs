//! The DataNode: block files on disk, served over the bulk protocol, told to the NameNode.
//!
//! ```text
//! server ─ receive ─ mirror      a thread a connection, plain blocking code
//!    │  └─ send, local
//!    ▼
//!  store ─ partial ─ volume ─ disk     which replica lies where; the files themselves
//!    │  └─ open, space                  start-up; the room on the disks, measured aside
//!  news ─► link ─► NameNode            heartbeats, on a small runtime; the data path never waits for it
//!            └───► chores, scrub       copies, deletions, checks; re-reading everything slowly
//! ```
//!
//! What holds: a finalised block never changes; nothing is acknowledged before it is durable; a replica that is
//! known to be damaged is never served; a folder that failed once is not used again; files that are not ours
//! are not touched. Deliberately absent: any opinion on where replicas should be; that is the NameNode's.

mod commands;
mod disk;
mod error;
mod layout;
mod link;
mod local;
mod mirror;
mod node;
mod open;
mod partial;
mod pending_reports;
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

use crate::ids::NodeUuid;
use daemon::{
    config::{Config, DataNodeConfig},
    lifecycle::DaemonArgs,
};
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

/// How long transfers under way may continue when the node stops.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// How long a node that stops tries to tell of its newest replicas.
const REPORT_GRACE: Duration = Duration::from_secs(1);

/// A DataNode in this process: serves from `start` until `stop`, or until dropped. Needs a tokio runtime with
/// I/O and time.
#[derive(Debug)]
pub struct DataNode {
    node: Arc<Node>,
    address: DataNodeAddress,
    namenode: String,
    ready: watch::Receiver<bool>,
    alarm: Mutex<mpsc::UnboundedReceiver<DataNodeError>>,
    accepting: Vec<JoinHandle<()>>,
    link: JoinHandle<()>,
}

impl DataNode {
    /// Opens the folders, binds the address, serves, and begins to look for the NameNode.
    pub async fn start(config: &Config) -> Result<Self, DataNodeError> {
        Self::start_on(config, Arc::new(RealDisk)).await
    }

    async fn start_on(config: &Config, disk: Arc<dyn Disk>) -> Result<Self, DataNodeError> {
        let (alarm, alarms) = mpsc::unbounded_channel();
        config.check()?;
        let settings = config.datanode.clone();
        let listener = daemon::listen::bind(&settings.listen, config)?;
        let guard = Guard::new(config, security::Role::DataNode)?;
        let credentials = Credentials::of_daemon(config, security::Role::DataNode)?;
        let (dirs, for_store) = (settings.dirs.clone(), alarm.clone());
        let of_store = open::Settings::from(&settings);
        let opening = tokio::task::spawn_blocking(move || Store::open(&dirs, &of_store, disk, for_store));
        let store = opening.await.expect("opening does not panic")?;
        let bound = listener.local_addr().map_err(cannot_serve(&settings.listen))?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(cannot_serve(&settings.listen))?;
        let local = local::bind(store.first_folder(), &settings.socket_dir, store.uuid)
            .and_then(|(listener, path)| Ok((tokio::net::UnixListener::from_std(listener)?, path)))
            .inspect_err(|error| tracing::warn!(%error, "no local socket: readers here go over the network"))
            .ok();
        let (local, socket) = local.map_or((None, None), |(listener, path)| (Some(listener), Some(path)));
        let address = address_of(&settings, bound, store.uuid, socket);
        let node = Arc::new(Node {
            config: settings,
            store,
            connections: server::Connections::new(config.datanode.transfers_max as usize),
            command_queues: commands::CommandQueues::default(),
            stop: node::Stop::default(),
            blocks: guard.blocks(),
            guard,
            connector: credentials.connector(security::Role::DataNode),
            queries: link::NameNodeQueries::new(&credentials, &config.cluster.namenode)?,
            credentials,
        });
        let (ready, is_ready) = watch::channel(false);
        let link = link::Link::new(node.clone(), &config.cluster.namenode, address.clone(), ready, alarm)?;
        commands::start(&node).map_err(DataNodeError::Thread)?;
        let scrubbed = node.clone();
        let scrubber = std::thread::Builder::new().name("scrub".into());
        scrubber.spawn(move || scrub::run(&scrubbed)).map_err(DataNodeError::Thread)?;
        space::start(&node).map_err(DataNodeError::Thread)?;
        let link = tokio::spawn(link.run());
        let mut accepting = vec![tokio::spawn(server::accept_bulk(node.clone(), listener))];
        accepting.extend(local.map(|local| tokio::spawn(server::accept_local(node.clone(), local))));
        tracing::info!(node = address.node, uuid = address.uuid, addr = address.data_addr, "serving blocks");
        let namenode = config.cluster.namenode.clone();
        Ok(Self { node, address, namenode, ready: is_ready, alarm: Mutex::new(alarms), accepting, link })
    }

    /// Waits until the NameNode has taken the registration and the first full report.
    pub async fn ready(&self) -> Result<(), DataNodeError> {
        let mut ready = self.ready.clone();
        tokio::select! {
            Ok(_) = ready.wait_for(|ready| *ready) => Ok(()),
            error = self.failed() => Err(error),
        }
    }

    /// Where the bulk protocol is served, as others are told: `host:port`.
    pub fn data_addr(&self) -> &str {
        &self.address.data_addr
    }

    /// Everything others are told of it.
    pub fn address(&self) -> &DataNodeAddress {
        &self.address
    }

    /// The node's lasting identity.
    pub fn uuid(&self) -> NodeUuid {
        self.node.store.uuid
    }

    /// Waits for an error that ends the node: refused by the NameNode, or no folder left.
    pub async fn failed(&self) -> DataNodeError {
        match self.alarm.lock().await.recv().await {
            Some(error) => error,
            // The senders live as long as the node.
            None => std::future::pending().await,
        }
    }

    /// Stops accepting, gives running transfers a moment, tells the NameNode what came of them and that it goes,
    /// and ends.
    pub async fn stop(mut self) {
        for task in self.accepting.drain(..) {
            task.abort();
            task.await.ok();
        }
        until(STOP_GRACE, || self.node.connections.busy() == 0).await;
        let known = *self.ready.borrow();
        if known {
            until(REPORT_GRACE, || self.node.store.pending_reports.is_empty()).await;
        }
        // Only when it is gone for certain: a heartbeat after the goodbye would take it back.
        self.link.abort();
        (&mut self.link).await.ok();
        if known {
            link::goodbye(&self.node, &self.namenode, &self.address.uuid).await;
        }
        self.node.stop.wake();
        self.node.command_queues.wake();
        self.node.connections.close();
        // The folders' locks go with the last thread.
        until(STOP_GRACE, || Arc::strong_count(&self.node) == 1).await;
    }
}

/// Waits until it holds, but no longer than that.
async fn until(limit: Duration, holds: impl Fn() -> bool) {
    let timeout = Instant::now() + limit;
    while !holds() && Instant::now() < timeout {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Drop for DataNode {
    fn drop(&mut self) {
        self.accepting.iter().for_each(JoinHandle::abort);
        self.link.abort();
        self.node.stop.wake();
        self.node.command_queues.wake();
        self.node.connections.close();
        let folders: Vec<&Path> = self.node.store.volumes.iter().map(|volume| volume.paths.root()).collect();
        local::remove(Path::new(&self.address.local_socket), &folders);
    }
}

/// Runs a DataNode until it is asked to stop (SIGTERM, SIGINT) or cannot continue. Writes the ready file, with the
/// bulk address, once registered and reported.
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
