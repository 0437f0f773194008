//! The types generated from the .proto files, and constants that both sides share.
//!
//! Each master converts them to its own types in its `wire` modules.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    clippy::large_enum_variant,
    reason = "generated code; the .proto files have the comments"
)]

/// The descriptors of all messages and services, as a `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The file system: NameNode, DataNodes, and the headers of the bulk protocol.
pub mod dfs {
    tonic::include_proto!("fermata.dfs.v1");
}

/// The runtime: JobTracker, TaskTrackers, and the umbilical between a tracker and its task
/// processes.
pub mod mr {
    tonic::include_proto!("fermata.mr.v1");
}

/// The version of the protocol between JobTracker and TaskTrackers. Both must have the same.
pub const TRACKER_PROTOCOL: u32 = 7;

/// The folder of the file system for files that tasks need. Each job has a folder in it, which the
/// JobTracker removes when the job has ended.
pub const STAGING: &str = "/tmp/fermata/staging";
