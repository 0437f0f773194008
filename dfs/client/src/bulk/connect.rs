//! Connects to a DataNode with a timeout.

use security::{Connector, Stream};
use std::{
    io,
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

/// Connects to `addr` (`host:port`). If the host name has several IP addresses, uses the first one
/// that accepts within `timeout`. Sets `TCP_NODELAY`, because every write is a complete frame. Each
/// step of a TLS handshake has the same timeout.
pub fn connect(addr: &str, timeout: Duration, connector: &Connector) -> io::Result<Stream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    let timeout = timeout.max(Duration::from_millis(1));
    for one in addr.to_socket_addrs()? {
        match TcpStream::connect_timeout(&one, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return connector.secure(stream, timeout);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
