//! The server's side: what a daemon asks of those who call it.

use crate::{
    SecurityError,
    gate::Gate,
    identity::Role,
    keys::{Keyring, Purpose},
    stream::Stream,
    tls::{self, Pem},
    token::BlockKey,
};
use daemon::config::Config;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::TcpStream,
    sync::Arc,
    time::Duration,
};
use tonic::transport::{Certificate, Server, ServerTlsConfig};
use tower_layer::Stack;

/// A caller has this long to prove itself.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// A server with its gate.
pub type Layered = Server<Stack<Gate, tower_layer::Identity>>;

/// What a daemon asks of its callers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Guard {
    door: Arc<Door>,
}

/// What the gate needs to know.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) closed: Option<Closed>,
    /// Whether owners and modes bind those who are not superusers.
    pub(crate) enforces: bool,
    pub(crate) admins: BTreeSet<String>,
    groups: BTreeMap<String, Arc<[String]>>,
}

#[derive(Debug)]
pub(crate) struct Closed {
    pub(crate) keys: Keyring,
    tls: Option<(Pem, Arc<rustls::ServerConfig>)>,
}

impl Door {
    pub(crate) fn groups_of(&self, user: &str) -> Arc<[String]> {
        self.groups.get(user).cloned().unwrap_or_default()
    }
}

impl Guard {
    /// By the settings of a daemon of this role.
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
                keys = Keyring::of_key_file(&settings.dir.join(format!("{role}.keys")))?;
            }
        }
        let closed = settings.is_closed().then_some(Closed { keys, tls: certificate });
        let mut admins: BTreeSet<String> = settings.admins.iter().cloned().collect();
        let enforces = settings.permissions.holds(closed.is_some());
        if closed.is_none() && enforces {
            // Whoever runs the daemon can do everything to it anyhow.
            admins.insert(daemon::account::user());
        }
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (group, users) in &settings.groups {
            for user in users {
                groups.entry(user.clone()).or_default().push(group.clone());
            }
        }
        let groups = groups.into_iter().map(|(user, groups)| (user, groups.into())).collect();
        Ok(Self { door: Arc::new(Door { closed, enforces, admins, groups }) })
    }

    /// One that asks nothing.
    pub fn open() -> Self {
        let door = Door { closed: None, enforces: false, admins: BTreeSet::new(), groups: BTreeMap::new() };
        Self { door: Arc::new(door) }
    }

    #[cfg(test)]
    pub(crate) fn door(&self) -> &Door {
        &self.door
    }

    /// Whether callers must prove who they are.
    pub fn is_closed(&self) -> bool {
        self.door.closed.is_some()
    }

    /// A server with the limits of the house, TLS if there is a certificate, and the gate before its services.
    pub fn server(&self) -> Result<Layered, tonic::transport::Error> {
        let mut server = daemon::serve::builder();
        if let Some(Closed { tls: Some((pem, _)), .. }) = &self.door.closed {
            let tls = ServerTlsConfig::new()
                .identity(tonic::transport::Identity::from_pem(&pem.own, &pem.own))
                .client_ca_root(Certificate::from_pem(&pem.authority))
                .client_auth_optional(true)
                .timeout(HANDSHAKE_WITHIN);
            server = server.tls_config(tls)?;
        }
        Ok(server.layer(Gate::new(self.door.clone())))
    }

    /// The server's end of a connection for bytes.
    pub fn accept(&self, socket: TcpStream) -> io::Result<Stream> {
        match &self.door.closed {
            Some(Closed { tls: Some((_, config)), .. }) => {
                let session = rustls::ServerConnection::new(config.clone()).map_err(io::Error::other)?;
                Stream::secured(socket, session.into())
            }
            _ => Ok(Stream::from(socket)),
        }
    }

    /// Signs and checks access to blocks.
    pub fn blocks(&self) -> BlockKey {
        let key = self.door.closed.as_ref().and_then(|closed| closed.keys.get(Purpose::Block));
        BlockKey::new(key.cloned())
    }
}
