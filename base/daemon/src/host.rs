//! The name of this host. DataNodes report it as the location of blocks, and trackers register with
//! it. Both must use the same name, so that maps can run on the host of their input.

/// Returns `FERMATA_HOST` if it is set (for several nodes on one machine, or if the name of the
/// system is not known to others), else the name of the system.
pub fn host_name() -> String {
    let text = std::env::var(HOST_VAR).ok().filter(|name| !name.is_empty());
    text.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

/// Environment variable with the host name.
pub const HOST_VAR: &str = "FERMATA_HOST";

/// Returns whether `addr` has a host and a port.
pub(crate) fn is_host_port(addr: &str) -> bool {
    addr.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}
