//! The daemons of the distributed file system. Files are divided into blocks, blocks are replicated
//! on DataNodes, and one NameNode manages the namespace.
//!
//! - [`namenode`]: the namespace and the block map as a pure state machine, and its gRPC driver;
//! - [`datanode`]: block files on disk, the bulk protocol, pipelines, scrubbing.
//!
//! The client, the bulk protocol and the types that clients and daemons share are in the crate
//! `dfs-client`.

pub mod datanode;
pub mod namenode;
