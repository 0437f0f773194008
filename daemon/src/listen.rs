//! Where a daemon may listen. Loopback needs nothing; any other address is refused unless callers must prove who they
//! are, or the operator says in as many words that nothing protects it.

use crate::config::Config;
use std::{
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    time::{Duration, Instant},
};

/// How long an address may be taken: whoever looks for a free port (`mrctl up` does) holds one for a moment.
const ADDRESS_IN_USE_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(20);
/// Connections that may wait to be accepted.
const QUEUE: i32 = 4096;

/// Why an address cannot be served on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// It is not `host:port`.
    #[error("listen address {0:?} is not host:port (a port is a number up to 65535)")]
    Malformed(String),
    /// It is reachable from other machines.
    #[error(
        "refusing to listen on {0}: it can be reached from other machines and nothing says who calls; listen on \
         127.0.0.1, set security.dir (`mrctl cluster init` makes it) or security.secret, or pass --insecure on a \
         network that you trust"
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

/// Binds `addr`, if this daemon may serve on it.
pub fn bind(addr: &str, config: &Config) -> Result<TcpListener, ListenError> {
    let bind = |source| ListenError::Bind { addr: addr.into(), source };
    if !is_host_port(addr) {
        return Err(ListenError::Malformed(addr.into()));
    }
    let resolved: Vec<SocketAddr> = addr.to_socket_addrs().map_err(bind)?.collect();
    if let Some(open) = resolved.iter().find(|addr| !addr.ip().is_loopback())
        && !(config.cluster.insecure || config.security.is_closed())
    {
        return Err(ListenError::Open(*open));
    }
    let listener = bind_with_retry(&resolved).map_err(bind)?;
    // The standard library asks for 128; thousands come back at once after a restart. The kernel has its own limit.
    rustix::net::listen(&listener, QUEUE).map_err(|error| bind(error.into()))?;
    listener.set_nonblocking(true).map_err(bind)?;
    Ok(listener)
}

fn bind_with_retry(addrs: &[SocketAddr]) -> io::Result<TcpListener> {
    let deadline = Instant::now() + ADDRESS_IN_USE_TIMEOUT;
    loop {
        match TcpListener::bind(addrs) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(RETRY);
            }
            bound => return bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn briefly_used_address_is_retried() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = taken.local_addr().unwrap().to_string();
        let held = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(taken);
        });
        let config = Config::default();
        let bound = bind(&addr, &config).unwrap();
        held.join().unwrap();
        let error = bind(&addr, &config).unwrap_err();
        assert!(matches!(error, ListenError::Bind { .. }) && error.to_string().contains(&addr), "{error}");
        drop(bound);
    }

    #[test]
    fn listens_on_loopback_unless_configured_or_closed() {
        let mut config = Config::default();
        bind("127.0.0.1:0", &config).unwrap();
        let error = bind("0.0.0.0:0", &config).unwrap_err();
        assert!(matches!(error, ListenError::Open(_)), "{error}");
        assert!(error.to_string().contains("security.dir") && !error.to_string().contains('\n'), "{error}");
        config.cluster.insecure = true;
        bind("0.0.0.0:0", &config).unwrap();
        config.cluster.insecure = false;
        config.security.secret = "secret".into();
        bind("0.0.0.0:0", &config).unwrap();
    }

    #[test]
    fn malformed_addresses_are_named() {
        for addr in ["", "localhost", "127.0.0.1:70000", "127.0.0.1:http", ":80"] {
            assert!(matches!(bind(addr, &Config::default()), Err(ListenError::Malformed(_))), "{addr}");
        }
    }
}
