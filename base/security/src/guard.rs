//! The server side: how a daemon authenticates its callers.

use crate::{
    SecurityError,
    gate::{AccessPolicy, Closed, Gate},
    identity::Role,
    incoming::{self, Incoming},
    jobs::Jobs,
    keys::{Keyring, Purpose},
    revoked::{Credential, Revoked},
    stream::Stream,
    tls::{self, Pem},
    token::BlockKey,
};
use daemon::config::Config;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};
use tonic::transport::{Certificate, Server, ServerTlsConfig};
use tower_layer::Stack;

/// Timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of concurrent calls per connection. The HTTP/2 library of the client delays
/// further calls.
const STREAMS_MAX: u32 = 128;
/// Bytes of one request body that HTTP/2 buffers until they are read.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// Bytes of all request bodies on one connection that HTTP/2 buffers until they are read.
const CONNECTION_WINDOW_BYTES: u32 = 128 << 10;
/// Maximum decoded size of the metadata of a call; names and tokens are short.
const HEADER_BYTES_MAX: u32 = 8 << 10;
/// Maximum number of calls that a client may cancel before they are processed; then its connection
/// is closed (rapid reset, CVE-2023-44487).
const RESETS_MAX: usize = 20;
/// Interval of HTTP/2 pings, which detect clients that have disappeared.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);

/// A tonic server with the gate before its services.
pub type Layered = Server<Stack<Gate, tower_layer::Identity>>;

/// Authenticates the callers of a daemon. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Guard {
    access_policy: Arc<AccessPolicy>,
}

/// Returns the warning of a daemon that does not authenticate callers: what they can do, and how to
/// prevent it.
fn insecure_warning(role: Role) -> String {
    let open = match role {
        Role::NameNode => "read, change and delete all files as any user",
        Role::DataNode => "read all blocks and write new ones",
        Role::JobTracker => "submit and kill jobs as any user, and so run programs on every node",
        _ => "read the map outputs and logs of all jobs",
    };
    format!(
        "--insecure: callers are not authenticated: everyone who can reach this address can {open}; to close it, set \
         security.dir (`mrctl cluster init` makes it) or security.secret, and remove --insecure (cluster.insecure)"
    )
}

impl Guard {
    /// Creates a guard from the settings of a daemon with this role.
    pub fn new(config: &Config, role: Role) -> Result<Self, SecurityError> {
        let settings = &config.security;
        let mut keys = Keyring::default();
        let mut certificate = None;
        if !settings.secret.as_os_str().is_empty() {
            keys = Keyring::of_secret_file(&settings.secret)?;
        }
        if !settings.dir.as_os_str().is_empty() {
            let pem = Pem::of_daemon(&settings.dir, role)?;
            let server = tls::server_config(&pem, &settings.dir)?;
            certificate = Some((pem, server));
            if keys.is_empty() {
                keys = Keyring::of_role(&settings.dir, role)?;
            }
        }
        let closed = if settings.is_closed() {
            let revoked = Revoked::new(settings)?;
            Some(Closed { keys, revoked, jobs: Arc::default(), tls: certificate })
        } else {
            if config.cluster.insecure {
                tracing::warn!("{}", insecure_warning(role));
            }
            None
        };
        let mut admins: BTreeSet<String> = settings.admins.iter().cloned().collect();
        let enforces = settings.permissions.is_on(closed.is_some());
        if closed.is_none() && enforces {
            // The account that runs the daemon has full control of it anyway.
            admins.insert(daemon::account::user());
        }
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (group, users) in &settings.groups {
            for user in users {
                groups.entry(user.clone()).or_default().push(group.clone());
            }
        }
        let groups = groups.into_iter().map(|(user, groups)| (user, groups.into())).collect();
        Ok(Self { access_policy: Arc::new(AccessPolicy { closed, enforces, admins, groups }) })
    }

    /// Creates a guard that does not authenticate callers.
    pub fn open() -> Self {
        let access_policy =
            AccessPolicy { closed: None, enforces: false, admins: BTreeSet::new(), groups: BTreeMap::new() };
        Self { access_policy: Arc::new(access_policy) }
    }

    #[cfg(test)]
    pub(crate) fn access_policy(&self) -> &Arc<AccessPolicy> {
        &self.access_policy
    }

    /// Returns whether owners and permissions of files are enforced for callers who are not
    /// superusers.
    pub fn enforces(&self) -> bool {
        self.access_policy.enforces
    }

    /// Returns whether callers must prove their identity.
    pub fn is_closed(&self) -> bool {
        self.access_policy.closed.is_some()
    }

    /// Returns a server with the common limits, TLS if there is a certificate, and the gate before
    /// its services.
    pub fn server(&self) -> Result<Layered, tonic::transport::Error> {
        let mut server = server_builder();
        if let Some(Closed { tls: Some((pem, _)), .. }) = &self.access_policy.closed {
            let tls = ServerTlsConfig::new()
                .identity(tonic::transport::Identity::from_pem(&pem.own, &pem.own))
                .client_ca_root(Certificate::from_pem(&pem.authority))
                .client_auth_optional(true)
                .timeout(HANDSHAKE_TIMEOUT);
            server = server.tls_config(tls)?;
        }
        Ok(server.layer(Gate::new(self.access_policy.clone())))
    }

    /// Returns a stream of the connections to a bound address, for [`Self::server`]. Must be called
    /// within a Tokio runtime.
    pub fn incoming(&self, listener: TcpListener) -> io::Result<Incoming> {
        incoming::accept(listener, incoming::connection_limiter())
    }

    /// Returns the table of active jobs; not used in an open cluster.
    pub fn jobs(&self) -> Arc<Jobs> {
        self.access_policy.closed.as_ref().map_or_else(Arc::default, |closed| closed.jobs.clone())
    }

    /// Returns the server side of a bulk connection. Refuses a client whose certificate is revoked.
    pub fn accept(&self, socket: TcpStream) -> io::Result<Stream> {
        match &self.access_policy.closed {
            Some(Closed { tls: Some((_, config)), revoked, .. }) => {
                let session = rustls::ServerConnection::new(config.clone()).map_err(io::Error::other)?;
                let stream = Stream::secured(socket, session.into())?;
                let refused = stream.certificate().is_some_and(|certificate| {
                    tls::subject_of(&certificate).is_some_and(|(role, name)| {
                        revoked.contains(role, &name, Credential::Certificate(&certificate))
                    })
                });
                if refused { Err(io::Error::other("its certificate has been revoked")) } else { Ok(stream) }
            }
            _ => Ok(Stream::from(socket)),
        }
    }

    /// Returns the key that signs and checks access to blocks.
    pub fn block_key(&self) -> BlockKey {
        let key = self.access_policy.closed.as_ref().and_then(|closed| closed.keys.get(Purpose::Block));
        BlockKey::new(key.cloned())
    }
}

/// Returns a server with the limits above, without services.
pub(crate) fn server_builder() -> Server {
    Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
}
