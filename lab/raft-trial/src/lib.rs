//! Trial of openraft for the masters. See README.md.
pub mod cluster;
pub mod machine;
pub mod network;
pub mod store;
pub mod types;
