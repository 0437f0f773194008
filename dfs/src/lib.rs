//! The distributed file system. Files are divided into blocks, blocks are replicated on DataNodes,
//! and one NameNode has the namespace.
//!
//! - [`namenode`]: the namespace and the block map as a pure state machine, and its gRPC driver;
//! - [`datanode`]: block files on disk, the bulk protocol, pipelines, scrubbing;
//! - [`client`]: the API to read and write files;
//! - [`bulk`], [`checksum`], [`error`], [`ids`], [`metadata`], [`path`]: shared by the three.

pub mod bulk;
pub mod checksum;
pub mod client;
pub mod datanode;
pub mod error;
pub mod ids;
pub mod metadata;
pub mod namenode;
pub mod path;
