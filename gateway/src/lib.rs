//! A web server on loopback with read-only pages about a cluster, as one user sees it. `mrctl web`
//! runs this server.
//!
//! The gateway is a client like all commands, with the same calls and credentials, so a page shows
//! only what its user may see. It has no pages that change the cluster, and it listens only on
//! loopback. It uses neither standard output nor standard input, so that any program can embed it.

mod answer;
mod chart;
mod guard;
mod page;

use answer::WebServer;
use anyhow::{Context, Result};
use guard::Guard;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{net::Ipv4Addr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use view::status_cache::{Masters, StatusCache};

/// The largest number of parallel connections. Further connections wait.
const CONNECTIONS_MAX: usize = 64;
/// Timeout for the request line and headers.
const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for a connection, including the complete response.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);
/// The largest size of the request line and headers.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The largest number of headers.
const HEADERS_MAX: usize = 64;

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
        serve(&self.listener, &self.server).await;
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

async fn serve(listener: &TcpListener, server: &Arc<WebServer>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // The process may be out of file descriptors for a moment.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let server = server.clone();
        tokio::spawn(async move {
            let _permit = permit;
            // It is not an error if a client disconnects or is too slow.
            let _ = tokio::time::timeout(RESPONSE_TIMEOUT, connection(stream, server)).await;
        });
    }
}

/// Serves one request per connection: a new connection is cheap on loopback, and no client can
/// block others for long.
async fn connection(stream: TcpStream, server: Arc<WebServer>) -> hyper::Result<()> {
    let _ = stream.set_nodelay(true);
    let answer = service_fn(move |request| {
        let server = server.clone();
        async move { Ok::<_, std::convert::Infallible>(server.answer(&request).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer)
        .await
}
