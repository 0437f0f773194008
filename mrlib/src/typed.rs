//! Serde types on top of bytes.
