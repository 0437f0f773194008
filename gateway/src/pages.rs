//! A web server on loopback with read-only pages about a cluster, as one user sees it. `mrctl web`
//! runs this server.
//!
//! It is a client like all commands, with the same calls and credentials, so a page shows only what
//! its user may see. It has no pages that change the cluster, and it listens only on loopback. It
//! uses neither standard output nor standard input, so that any program can embed it.

use super::{
    answer::{WebServer, router},
    guard::Guard,
    serve::{ConnectionLimits, serve},
};
use anyhow::{Context, Result};
use std::{net::Ipv4Addr, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use view::status_cache::{Masters, StatusCache};

/// One request per connection: a new connection is cheap on loopback, and no client can block others
/// for long.
const LIMITS: ConnectionLimits = ConnectionLimits {
    connections_max: 64,
    head_bytes_max: 16 << 10,
    head_timeout: Duration::from_secs(5),
    keep_alive: false,
    connection_timeout: Some(Duration::from_mins(1)),
};

/// A web server for the pages, on a port of 127.0.0.1.
pub struct Gateway {
    listener: TcpListener,
    server: Arc<WebServer>,
}

/// Makes the addresses that users open in a browser.
#[derive(Clone)]
pub struct Addresses(Arc<WebServer>);

impl Gateway {
    /// Listens on this port of 127.0.0.1; 0 means any free port.
    pub async fn bind(port: u16, masters: Box<dyn Masters>) -> Result<Self> {
        let name = masters.authenticated_name()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        let listener = listener.with_context(|| format!("cannot listen on 127.0.0.1:{port}"))?;
        let port = listener.local_addr().context("cannot determine the port")?.port();
        let guard = Guard::new(port, name.is_some());
        let server = Arc::new(WebServer { guard, status_cache: StatusCache::new(masters, name) });
        Ok(Self { listener, server })
    }

    /// Returns a handle that makes the addresses to open.
    pub fn addresses(&self) -> Addresses {
        Addresses(self.server.clone())
    }

    /// Serves the pages until the future is dropped.
    pub async fn serve(&self) {
        serve(&self.listener, router(self.server.clone()), LIMITS).await;
    }
}

impl Addresses {
    /// Returns whether each address is valid only once. In a closed cluster an address contains a
    /// token, because other accounts of this machine could open it too.
    pub fn are_valid_once(&self) -> bool {
        self.0.guard.is_closed()
    }

    /// Returns an address, with a new token if one is needed.
    pub fn make(&self) -> String {
        self.0.guard.address()
    }
}
