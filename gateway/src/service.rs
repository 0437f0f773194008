//! What all handlers of the daemon share.

use crate::{caller::Callers, refusals::Refusals};
use daemon::config::Config;
use std::net::SocketAddr;

pub(crate) struct Service {
    pub(crate) callers: Callers,
    pub(crate) refusals: Refusals,
    pub(crate) config: Config,
    /// The port on loopback; None if other machines can reach the gateway.
    pub(crate) loopback_port: Option<u16>,
}

impl Service {
    /// Makes the service of a gateway that listens on `addr`.
    pub(crate) fn new(config: &Config, addr: SocketAddr) -> Self {
        Self {
            callers: Callers::new(config),
            refusals: Refusals::default(),
            config: config.clone(),
            loopback_port: addr.ip().is_loopback().then(|| addr.port()),
        }
    }
}
