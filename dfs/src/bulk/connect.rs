//! A connection to a DataNode, made within a time limit.

use std::{
    io,
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

/// Connects to the first address of `addr` (`host:port`) that answers, each within `timeout`. Frames are written
/// whole, so none waits for the next.
pub fn connect(addr: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for one in addr.to_socket_addrs()? {
        match TcpStream::connect_timeout(&one, timeout.max(Duration::from_millis(1))) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
