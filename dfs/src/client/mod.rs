//! What programs use to read and write the file system.
//!
//! [`Client`] is a cheap handle: clone it freely. Namespace calls are retried until the configured deadline with
//! the same request id. Data goes straight to and from DataNodes over the bulk protocol.
//!
//! Deliberately absent: caching of metadata or data. Every call asks the NameNode; every byte is verified.

mod admin;
mod call;
mod connection;
mod error;
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
mod threads;
mod wait;
mod wire;
mod writer;

#[cfg(test)]
mod tests;

pub use error::ClientError;
pub use inputs::{InputError, Inputs};
pub use local::{LocalBlock, ReadError};
pub use model::*;
pub use reader::{FileReader, Lost};
pub use wait::Listener;
pub use writer::FileWriter;

use crate::path::DfsPath;
use connection::{Buffers, Idle, Timeouts};
use parking_lot::Mutex;
use security::{Connector, Credentials, Role};
use std::sync::{Arc, atomic::AtomicBool};
use std::time::{Duration, Instant};
use tonic::metadata::{Ascii, MetadataValue};

type Result<T> = std::result::Result<T, ClientError>;

/// A page of a large folder or file may be long, but not without end.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// What a client needs to know.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// `host:port`.
    pub namenode: String,
    /// Who calls, where names are believed; else for whom, if that is another.
    pub user: String,
    /// What is shown to prove it.
    pub credentials: Credentials,
    /// This machine's name, as DataNodes give theirs.
    pub host: String,
    /// The `[client]` section.
    pub config: daemon::config::ClientConfig,
    /// Told when an operation waits for more than a moment. Where there is one, what only an operator can end (a
    /// safemode turned on by hand) is not waited for.
    pub listener: Option<Listener>,
}

impl ClientOptions {
    /// The user from `FERMATA_USER`, else the account; the host name from the system. Nothing to show.
    pub fn new(namenode: impl Into<String>, config: daemon::config::ClientConfig) -> Self {
        let host = daemon::host_name();
        let (user, credentials) = (daemon::account::user(), Credentials::default());
        Self { namenode: namenode.into(), user, credentials, host, config, listener: None }
    }

    /// The same with something to show, as whoever it is of.
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
    /// For whom, if not for whom the client was made.
    acts_for: Option<MetadataValue<Ascii>>,
}

struct Inner {
    options: ClientOptions,
    rpc: call::Rpc,
    user: MetadataValue<Ascii>,
    connector: Connector,
    /// Names this client to the NameNode as the writer of its files.
    holder: String,
    leases: Mutex<lease::Leases>,
    threads: Arc<threads::Threads>,
    idle: Arc<Idle>,
    buffers: Arc<Buffers>,
    /// A reader that may skip has waited the whole time for a block for nothing.
    has_given_up: AtomicBool,
}

impl Client {
    /// Connects; fails within `connect_timeout`, naming `host:port`.
    pub async fn connect(options: ClientOptions) -> Result<Client> {
        let addr = options.namenode.clone();
        let unreachable = |reason: String| ClientError::Unreachable { addr: addr.clone(), reason };
        let user = MetadataValue::try_from(&options.user).map_err(|_| {
            let message = format!("user name {:?} is not plain ASCII: set FERMATA_USER", options.user);
            ClientError::Refused(crate::error::Error::new(crate::error::Kind::Invalid, message))
        })?;
        let limit = options.config.connect_timeout.0;
        let endpoint = options
            .credentials
            .endpoint(&addr, Role::NameNode)
            .ok_or_else(|| unreachable("not an address: write host:port".into()))?
            .with(|endpoint| {
                endpoint
                    .connect_timeout(limit)
                    .tcp_nodelay(true)
                    .tcp_keepalive(Some(Duration::from_secs(30)))
                    .http2_keep_alive_interval(Duration::from_secs(10))
                    .keep_alive_timeout(Duration::from_secs(10))
            });
        let channel = match tokio::time::timeout(limit, endpoint.connect()).await {
            Ok(connected) => connected.map_err(|error| {
                let cause = call::root_cause(&error);
                if security::tls_mismatch(&cause).is_some() {
                    call::tls_mismatch(&addr, &cause)
                } else {
                    unreachable(cause)
                }
            })?,
            Err(_) => return Err(unreachable(format!("no answer within {limit:?}"))),
        };
        let rpc = call::Rpc::new(channel).max_decoding_message_size(REPLY_BYTES_MAX);
        let holder = format!("{}@{}:{}", options.user, options.host, uuid::Uuid::new_v4());
        let connector = options.credentials.connector(Role::DataNode);
        let inner = Inner {
            connector,
            options,
            rpc,
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

    /// The same client on behalf of `user`, which only daemons and admins may be. A name that cannot travel is left
    /// out.
    #[must_use]
    pub fn acting_for(&self, user: &str) -> Client {
        Client { inner: self.inner.clone(), acts_for: user.parse().ok() }
    }

    /// Connects like [`Client::connect`], again and again until the `deadline`: for those who can wait for a NameNode
    /// that is just being started again.
    pub async fn connect_with_retry(options: ClientOptions) -> Result<Client> {
        let end = Instant::now() + options.config.deadline.0;
        let mut backoff = call::Backoff::new();
        loop {
            match Self::connect(options.clone()).await {
                Err(error @ ClientError::Unreachable { .. }) if backoff.sleep_until(end).await => {
                    tracing::debug!(%error, "connecting again");
                }
                other => return other,
            }
        }
    }

    /// Creates a file to write.
    pub async fn create(&self, path: &DfsPath, options: CreateOptions) -> Result<FileWriter> {
        FileWriter::create(self, path, options).await
    }

    /// Opens a closed file to write more at its end.
    pub async fn append(&self, path: &DfsPath) -> Result<FileWriter> {
        FileWriter::append(self, path).await
    }

    /// Opens a file to read; its length is that at opening.
    pub async fn open(&self, path: &DfsPath) -> Result<FileReader> {
        FileReader::open(self, path).await
    }

    /// A reader has other replicas to turn to, so it does not wait long for one.
    fn read_timeouts(&self) -> Timeouts {
        let config = &self.inner.options.config;
        let silence = (config.deadline.0 / 4).clamp(Duration::from_millis(250), Duration::from_secs(15));
        Timeouts { connect: config.connect_timeout.0, silence, connector: self.inner.connector.clone() }
    }

    /// How long a writer waits for a pipeline to be set up: the first node may itself be waiting for a mirror.
    /// How long it waits after that, it is told by the nodes.
    fn write_timeouts(&self) -> Timeouts {
        let config = &self.inner.options.config;
        let silence = (config.deadline.0 / 2).max(Duration::from_secs(1));
        Timeouts { connect: config.connect_timeout.0, silence, connector: self.inner.connector.clone() }
    }
}
