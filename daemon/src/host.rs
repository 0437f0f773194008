//! What this machine is called: in block locations and by trackers, which must agree for work to run where its data is.

/// `FERMATA_HOST` if it is set (machines that are one, or whose own name nobody knows), else the system's name.
pub fn host_name() -> String {
    let text = std::env::var(HOST_VAR).ok().filter(|name| !name.is_empty());
    text.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

/// The variable that names it.
pub const HOST_VAR: &str = "FERMATA_HOST";
