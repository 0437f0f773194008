//! The types generated from the .proto files, and what both ends must agree on beside them.
//!
//! Each daemon turns them into its own types at its door (`wire.rs`); they go no further in.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    clippy::large_enum_variant,
    reason = "generated code; the .proto files carry the words"
)]

/// All of it, described: a `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The file system: NameNode, DataNodes, and the headers of the bulk protocol.
pub mod dfs {
    tonic::include_proto!("fermata.dfs.v1");
}

/// The runtime: JobTracker, TaskTrackers, and the umbilical between a tracker and its task processes.
pub mod mr {
    tonic::include_proto!("fermata.mr.v1");
}

/// The version of the talk between JobTracker and TaskTrackers: both are of the same.
pub const TRACKER_PROTOCOL: u32 = 7;

/// The folder of the file system in which clients put what the tasks of a job need, each job's in one of its own. The
/// JobTracker removes that with the job.
pub const STAGING: &str = "/tmp/fermata/staging";
