//! Fermata's file system: files cut into blocks, blocks replicated over DataNodes, names kept by one NameNode.
//!
//! - [`namenode`]: the namespace and block map as a pure state machine, and its thin gRPC driver;
//! - [`datanode`]: block files on disk, the bulk protocol, pipelines, scrubbing;
//! - [`client`]: what programs use to read and write;
//! - [`bulk`], [`checksum`], [`error`], [`ids`], [`metadata`], [`path`]: what the three share.

pub mod bulk;
pub mod checksum;
pub mod client;
pub mod datanode;
pub mod error;
pub mod ids;
pub mod metadata;
pub mod namenode;
pub mod path;
