//! Where a daemon may listen. Loopback needs nothing; any other address is refused unless the operator says
//! in as many words that nothing protects it, for there is no authentication yet.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

/// Why an address cannot be served on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// It is not `host:port`.
    #[error("listen address {0:?} is not host:port (a port is a number up to 65535)")]
    Malformed(String),
    /// It is reachable from other machines.
    #[error(
        "refusing to listen on {0}: it can be reached from other machines and callers are not authenticated; \
         listen on 127.0.0.1, or pass --insecure on a network that you trust"
    )]
    Open(SocketAddr),
    /// The system would not.
    #[error("cannot listen on {addr}: {source}")]
    Bind {
        /// Where.
        addr: String,
        /// Why.
        source: std::io::Error,
    },
}

/// Whether `addr` has a host and a port.
pub(crate) fn is_host_port(addr: &str) -> bool {
    addr.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// Binds `addr`, if it may be served on.
pub fn bind(addr: &str, insecure: bool) -> Result<TcpListener, ListenError> {
    let bind = |source| ListenError::Bind { addr: addr.into(), source };
    if !is_host_port(addr) {
        return Err(ListenError::Malformed(addr.into()));
    }
    let resolved: Vec<SocketAddr> = addr.to_socket_addrs().map_err(bind)?.collect();
    if let Some(open) = resolved.iter().find(|addr| !addr.ip().is_loopback())
        && !insecure
    {
        return Err(ListenError::Open(*open));
    }
    let listener = TcpListener::bind(&resolved[..]).map_err(bind)?;
    listener.set_nonblocking(true).map_err(bind)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_only_unless_told() {
        bind("127.0.0.1:0", false).unwrap();
        assert!(matches!(bind("0.0.0.0:0", false), Err(ListenError::Open(_))));
        bind("0.0.0.0:0", true).unwrap();
    }

    #[test]
    fn malformed_addresses_are_named() {
        for addr in ["", "localhost", "127.0.0.1:70000", "127.0.0.1:http", ":80"] {
            assert!(matches!(bind(addr, false), Err(ListenError::Malformed(_))), "{addr}");
        }
    }
}
