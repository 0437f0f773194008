//! Bytes that must not be printed.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The bytes of a token. They are stored in the journal, but must not appear in logs and histories:
/// `Debug` does not show them, and there is no `Display`.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Wraps the bytes of a token.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the token.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
