//! The client of the distributed file system: reads and writes files, and calls the NameNode.
//!
//! [`Client`] is a handle that is cheap to clone. Namespace calls are retried with the same request
//! ID until the configured deadline. Data is transferred directly to and from DataNodes with the
//! bulk protocol.
//!
//! Neither metadata nor data is cached: every call goes to the NameNode, and every byte is
//! verified.
//!
//! [`bulk`], [`checksum`], [`error`], [`ids`] and [`path`] are also used by the NameNode and the
//! DataNode, and [`masters`] by the clients of the JobTracker.

pub mod bulk;
pub mod checksum;
pub mod error;
pub mod group;
pub mod ids;
pub mod masters;
pub mod path;

mod admin;
mod call;
mod client_error;
mod connection;
mod fetch;
mod get;
mod glob;
mod inputs;
mod lease;
mod local;
mod model;
mod namespace;
mod open_file;
mod pipeline;
mod put;
mod reader;
mod rpc;
mod threads;
mod wait;
mod wire;
mod writer;

#[cfg(test)]
mod tests;

pub use client_error::ClientError;
pub use glob::NamePattern;
pub use inputs::{InputError, Inputs};
pub use local::{LocalBlock, ReadError};
pub use model::*;
pub use reader::{FileReader, LostRange};
pub use wait::Listener;
pub use writer::FileWriter;

use crate::path::DfsPath;
use connection::{BufferPool, IdleConnections, Timeouts};
use daemon::MasterAddrs;
use masters::{ConnectError, Masters};
use parking_lot::Mutex;
use security::{Connector, Credentials, Role};
use std::sync::{Arc, atomic::AtomicBool};
use std::time::{Duration, Instant};
use tonic::metadata::{Ascii, MetadataValue};

type Result<T> = std::result::Result<T, ClientError>;

/// The name under which the health service reports whether the NameNode accepts changes:
/// `NOT_SERVING` in safemode. The service of the NameNode itself stays `SERVING`, because a
/// supervisor must not stop the NameNode: DataNodes must reach it to end safemode.
pub const WRITABLE_SERVICE: &str = "fermata.dfs.v1.NameNode/writable";

/// Maximum size of a reply, large enough for a page of a large folder or file.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// Options of a client.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Address of the NameNode, `host:port`, or of all members of its group.
    pub namenode: MasterAddrs,
    /// The user name. A cluster without authentication accepts it without proof. In a cluster with
    /// authentication it is the user that the caller acts for, if that is not the user of the
    /// credentials.
    pub user: String,
    /// The credentials of the caller.
    pub credentials: Credentials,
    /// The host name of this machine. DataNodes on this machine must report the same name.
    pub host: String,
    /// The `[client]` section of the configuration.
    pub config: daemon::config::ClientConfig,
    /// Is called when an operation waits for longer than two seconds. If there is a listener, the
    /// client does not wait for a safemode that only an operator can end.
    pub listener: Option<Listener>,
    /// With several NameNodes: how long a call waits for the leader before the others are asked.
    pub silence: Duration,
}

impl ClientOptions {
    /// Creates options without credentials. The user is `FERMATA_USER` or else the account, and the
    /// host name is that of the system.
    pub fn new(namenode: impl Into<MasterAddrs>, config: daemon::config::ClientConfig) -> Self {
        let host = daemon::host_name();
        let (user, credentials) = (daemon::account::user(), Credentials::default());
        let (namenode, silence) = (namenode.into(), masters::SILENCE);
        Self { namenode, user, credentials, host, config, listener: None, silence }
    }

    /// Sets the credentials. If they contain a user name, also sets the user name.
    #[must_use]
    pub fn with(mut self, credentials: Credentials) -> Self {
        if let Some(name) = credentials.name() {
            name.clone_into(&mut self.user);
        }
        self.credentials = credentials;
        self
    }
}

/// A connection to one file system.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    /// The user that this handle acts for, if it differs from the user of the client.
    acts_for: Option<MetadataValue<Ascii>>,
}

struct Inner {
    options: ClientOptions,
    masters: Masters,
    user: MetadataValue<Ascii>,
    connector: Connector,
    /// Identifies this client as the writer of its files.
    holder: String,
    leases: Mutex<lease::Leases>,
    threads: Arc<threads::Threads>,
    idle: Arc<IdleConnections>,
    buffers: Arc<BufferPool>,
    /// Whether a reader that may skip lost blocks has waited for a block until the deadline without
    /// success. Later waits are short.
    has_given_up: AtomicBool,
}

impl Client {
    /// Returns the NameNodes, and the user name as it is sent to them. Connects to none.
    fn masters(options: &ClientOptions) -> Result<(Masters, MetadataValue<Ascii>)> {
        let user = MetadataValue::try_from(&options.user).map_err(|_| {
            let message = format!("user name {:?} is not plain ASCII: set FERMATA_USER", options.user);
            ClientError::Refused(crate::error::Error::new(crate::error::Kind::Invalid, message))
        })?;
        let limit = options.config.connect_timeout.0;
        let (credentials, own) = (options.credentials.clone(), user.clone());
        let masters = Masters::new(Role::NameNode, &options.namenode, credentials, own, |endpoint| {
            endpoint
                .connect_timeout(limit)
                .tcp_nodelay(true)
                .tcp_keepalive(Some(Duration::from_secs(30)))
                .http2_keep_alive_interval(Duration::from_secs(10))
                .keep_alive_timeout(Duration::from_secs(10))
        });
        let masters = masters.map_err(|_| ClientError::Unreachable {
            addr: options.namenode.to_string(),
            reason: "not an address: write host:port".into(),
        })?;
        Ok((masters.with_silence(options.silence), user))
    }

    /// Connects to the NameNode. Fails after `connect_timeout`; the error contains `host:port`. With
    /// several NameNodes, finds the one that leads.
    pub async fn connect(options: ClientOptions) -> Result<Client> {
        let addr = options.namenode.to_string();
        let unreachable = |reason: String| ClientError::Unreachable { addr: addr.clone(), reason };
        let limit = options.config.connect_timeout.0;
        let (masters, user) = Self::masters(&options)?;
        masters.connect(limit).await.map_err(|error| match error {
            ConnectError::NoLeader(tried) => ClientError::NoLeader { tried },
            ConnectError::Unreachable(cause) if security::tls_mismatch(&cause).is_some() => {
                call::tls_mismatch(&addr, &cause)
            }
            ConnectError::Unreachable(cause) => unreachable(cause),
        })?;
        let holder = format!("{}@{}:{}", options.user, options.host, uuid::Uuid::new_v4());
        let connector = options.credentials.connector(Role::DataNode);
        let inner = Inner {
            connector,
            options,
            masters,
            user,
            holder,
            leases: Mutex::default(),
            threads: Arc::default(),
            idle: Arc::default(),
            buffers: Arc::default(),
            has_given_up: AtomicBool::new(false),
        };
        Ok(Client { inner: Arc::new(inner), acts_for: None })
    }

    /// Returns a client that acts on behalf of `user`. Only daemons and admins may do this. Fails
    /// if the name is not valid in gRPC metadata.
    pub fn acting_for(&self, user: &str) -> Result<Client> {
        let acts_for = user.parse().map_err(|_| {
            let message = format!("cannot act for user {user:?}: the name is not plain ASCII");
            ClientError::Refused(crate::error::Error::new(crate::error::Kind::Invalid, message))
        })?;
        Ok(Client { inner: self.inner.clone(), acts_for: Some(acts_for) })
    }

    /// Returns the address of the NameNode that leads, as far as this client knows.
    pub fn leader(&self) -> &str {
        self.inner.masters.addr(self.inner.masters.leader().at)
    }

    /// Completes when this client uses another NameNode than now, because another one leads.
    pub fn leader_changed(&self) -> impl Future<Output = ()> + use<> {
        self.inner.masters.leader_changed()
    }

    /// Returns whether the cluster is closed: this client has credentials.
    pub fn is_closed(&self) -> bool {
        self.inner.options.credentials.name().is_some()
    }

    /// Like [`Client::connect`], but retries until the `deadline`, for callers that can wait for a
    /// restart of the NameNode.
    pub async fn connect_with_retry(options: ClientOptions) -> Result<Client> {
        let end = Instant::now() + options.config.deadline.0;
        let mut backoff = call::Backoff::new();
        loop {
            match Self::connect(options.clone()).await {
                Err(error @ (ClientError::Unreachable { .. } | ClientError::NoLeader { .. }))
                    if backoff.sleep_until(end).await =>
                {
                    tracing::debug!(%error, "retrying to connect");
                }
                other => return other,
            }
        }
    }

    /// Creates a file and opens it for writing.
    pub async fn create(&self, path: &DfsPath, options: CreateOptions) -> Result<FileWriter> {
        FileWriter::create(self, path, options).await
    }

    /// Opens a closed file to append to it.
    pub async fn append(&self, path: &DfsPath) -> Result<FileWriter> {
        FileWriter::append(self, path).await
    }

    /// Opens a file for reading. The reader ignores bytes that are appended later.
    pub async fn open(&self, path: &DfsPath) -> Result<FileReader> {
        FileReader::open(self, path).await
    }

    /// Returns the timeouts of a reader. They are short, because a reader can try other replicas.
    fn read_timeouts(&self) -> Timeouts {
        let config = &self.inner.options.config;
        let silence = (config.deadline.0 / 4).clamp(Duration::from_millis(250), Duration::from_secs(15));
        Timeouts { connect: config.connect_timeout.0, silence, connector: self.inner.connector.clone() }
    }

    /// Returns the timeouts for setting up a pipeline. They are long, because the first node may
    /// wait for its mirror. Once the pipeline is set up, the nodes send their timeout to the
    /// writer.
    fn write_timeouts(&self) -> Timeouts {
        let config = &self.inner.options.config;
        let silence = (config.deadline.0 / 2).max(Duration::from_secs(1));
        Timeouts { connect: config.connect_timeout.0, silence, connector: self.inner.connector.clone() }
    }
}
