//! Addresses that a daemon may listen on. Loopback is always allowed. Other addresses are refused
//! unless callers must prove their identity, or the operator sets `--insecure`.

use crate::{config::Config, host::is_host_port};
use std::{
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    time::{Duration, Instant},
};

/// How long to retry an address that is in use. A program that searches a free port (`mrctl up`)
/// may occupy the port for a moment.
const ADDRESS_IN_USE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which an address that is in use is retried.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of connections that wait to be accepted.
const ACCEPT_QUEUE_MAX: i32 = 4096;

/// Why a daemon cannot listen on an address.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is not `host:port`.
    #[error("listen address {0:?} is not host:port (a port is a number up to 65535)")]
    Malformed(String),
    /// Other machines can reach the address, and callers are not authenticated.
    #[error(
        "refusing to listen on {0}: other machines can reach it and callers are not authenticated; listen on \
         127.0.0.1, set security.dir (`mrctl cluster init` makes it) or security.secret, or pass --insecure on a \
         network that you trust"
    )]
    Open(SocketAddr),
    /// The operating system refused to bind the address.
    #[error("cannot listen on {addr}: {source}")]
    Bind {
        /// Address.
        addr: String,
        /// Cause.
        source: std::io::Error,
    },
}

/// Binds `addr`, if this daemon may listen on it.
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
    // The standard library uses a queue of 128, but thousands of clients reconnect after a restart.
    // The kernel may limit the queue further.
    rustix::net::listen(&listener, ACCEPT_QUEUE_MAX).map_err(|error| bind(error.into()))?;
    listener.set_nonblocking(true).map_err(bind)?;
    Ok(listener)
}

fn bind_with_retry(addrs: &[SocketAddr]) -> io::Result<TcpListener> {
    let deadline = Instant::now() + ADDRESS_IN_USE_TIMEOUT;
    loop {
        match TcpListener::bind(addrs) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(RETRY_INTERVAL);
            }
            bound => return bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_in_use_for_a_moment_is_retried() {
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
    fn non_loopback_addresses_require_insecure_or_authentication() {
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
    fn malformed_addresses_are_refused() {
        for addr in ["", "localhost", "127.0.0.1:70000", "127.0.0.1:http", ":80"] {
            assert!(matches!(bind(addr, &Config::default()), Err(ListenError::Malformed(_))), "{addr}");
        }
    }
}
