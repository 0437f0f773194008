//! A connection to a DataNode, made within a time limit.

use security::{Connector, Stream};
use std::{
    io,
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

/// Connects to the first address of `addr` (`host:port`) that answers, each within `timeout`. Frames are written
/// whole, so none waits for the next. A TLS handshake has the same limit for each of its steps.
pub fn connect(addr: &str, timeout: Duration, connector: &Connector) -> io::Result<Stream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
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
