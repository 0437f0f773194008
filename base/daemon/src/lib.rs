//! Code shared by all Fermata processes: `fermata.toml`, sizes and durations, logging, the lock on
//! a data folder, startup and shutdown.
//!
//! Code that only one daemon needs does not belong here.

pub mod account;
mod client;
pub mod config;
pub mod data_dirs;
pub mod files;
mod host;
pub mod init_process;
pub mod lifecycle;
pub mod listen;
pub mod lock;
pub mod logging;
mod masters;
pub mod safe_open;
mod security;
pub mod serve;
pub mod tree;
pub mod usage;

pub use host::{HOST_VAR, host_name};
pub use masters::MasterAddrs;
pub use security::SecurityArgs;
pub use types::quantity::{Bytes, Period, QuantityError, count, human};

#[cfg(test)]
mod tests {
    use super::Period;

    #[test]
    fn longest_accepted_duration_can_be_added_to_the_current_time() {
        let longest = "100y".parse::<Period>().unwrap();
        assert!(std::time::Instant::now().checked_add(longest.0).is_some());
    }
}
