//! `[client]`: settings of programs that use the file system.

use crate::Period;
use serde::{Deserialize, Serialize};

/// `[client]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    /// How long an operation is retried before it fails.
    pub deadline: Period,
    /// Timeout of a connection attempt.
    pub connect_timeout: Period,
    /// Blocks of one file that `put` writes at the same time.
    pub parallel_blocks: usize,
    /// Whether blocks on this machine are read directly from their files.
    pub short_circuit: bool,
    /// How long `mrctl fs rm` keeps deleted files in the trash of the user; 0 to delete them at once.
    pub trash_interval: Period,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            deadline: Period::secs(60),
            connect_timeout: Period::secs(5),
            parallel_blocks: 2,
            short_circuit: true,
            trash_interval: Period::secs(0),
        }
    }
}
