//! How every daemon serves gRPC: the limits on a connection, and sockets that do not wait to fill a packet.

use std::{io, net::TcpListener, time::Duration};
use tonic::transport::{Server, server::TcpIncoming};

/// Streams a client may have open on one connection.
const STREAMS_MAX: u32 = 1024;
/// A client that is gone without a word is noticed after about this long.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// A server with the limits of the house; services are added to it.
pub fn builder() -> Server {
    Server::builder().max_concurrent_streams(STREAMS_MAX).http2_keepalive_interval(Some(KEEPALIVE))
}

/// The connections to a bound address. Called within a runtime.
pub fn incoming(listener: TcpListener) -> io::Result<TcpIncoming> {
    Ok(TcpIncoming::from(tokio::net::TcpListener::from_std(listener)?).with_nodelay(Some(true)))
}
