//! Bytes that must not be printed.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A token. The journal has it, but no log and no history: `Debug` does not show it, and there is
/// no `Display`.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Wraps the bytes of a token.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes of the token.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
