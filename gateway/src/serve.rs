//! Accepts HTTP connections and gives their requests to a router. Limits the number of connections,
//! the size of a request head and the time to send it. Deliberately absent: everything about
//! requests and answers.

use axum::Router;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tower_service::Service;

/// The largest number of headers.
const HEADERS_MAX: usize = 64;
/// How long to wait before the next attempt if a connection cannot be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    /// Number of parallel connections. Further connections wait.
    pub(crate) connections_max: usize,
    /// The largest size of the request line and headers, approximately.
    pub(crate) head_bytes_max: usize,
    /// Timeout for the request line and headers, also of the next request on a connection.
    pub(crate) head_timeout: Duration,
    /// Whether a connection may have several requests.
    pub(crate) keep_alive: bool,
    /// Timeout for a complete connection.
    pub(crate) connection_timeout: Option<Duration>,
}

/// The address of the client, in the extensions of each request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Serves connections until the future is dropped.
pub(crate) async fn serve(listener: &TcpListener, router: Router, limits: ConnectionLimits) {
    let permits = Arc::new(Semaphore::new(limits.connections_max));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let Ok((stream, peer)) = listener.accept().await else {
            // The process may be out of file descriptors for a moment.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let serving = connection(stream, Peer(peer), router.clone(), limits);
        tokio::spawn(async move {
            let _permit = permit;
            // It is not an error if a client disconnects or is too slow.
            match limits.connection_timeout {
                Some(limit) => drop(tokio::time::timeout(limit, serving).await),
                None => drop(serving.await),
            }
        });
    }
}

async fn connection(
    stream: TcpStream,
    peer: Peer,
    router: Router,
    limits: ConnectionLimits,
) -> hyper::Result<()> {
    let _ = stream.set_nodelay(true);
    let answer = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        router.clone().call(request)
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(limits.head_bytes_max)
        .max_headers(HEADERS_MAX)
        .keep_alive(limits.keep_alive)
        .serve_connection(TokioIo::new(stream), answer)
        .await
}
