//! `[client]`: how programs talk with the file system.

use crate::Period;
use serde::{Deserialize, Serialize};

/// `[client]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    /// How long one operation is retried before it fails.
    pub deadline: Period,
    /// How long to try to connect.
    pub connect_timeout: Period,
    /// Blocks of one file written at the same time by `put`.
    pub parallel_blocks: usize,
    /// Read blocks on this machine straight from the file.
    pub short_circuit: bool,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            deadline: Period::secs(60),
            connect_timeout: Period::secs(5),
            parallel_blocks: 2,
            short_circuit: true,
        }
    }
}
