//! The types generated from the .proto files, and constants that both sides share.
//!
//! `tests/generated.rs` compares `generated/` with the .proto files and updates it.
//! Each master converts them to its own types in its `wire` modules.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    clippy::large_enum_variant,
    reason = "generated code; the .proto files have the comments"
)]

/// The file system: NameNode, DataNodes, and the headers of the bulk protocol.
pub mod dfs {
    include!("generated/fermata.dfs.v1.rs");
}

/// The runtime: JobTracker, TaskTrackers, and the umbilical between a tracker and its task
/// processes.
pub mod mr {
    include!("generated/fermata.mr.v1.rs");
}

/// Implements `Debug` for a message with a token by these fields alone.
macro_rules! debug_without_token {
    ($($message:ty: $($field:ident)*;)*) => {$(
        impl std::fmt::Debug for $message {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($message))$(.field(stringify!($field), &self.$field))*.finish_non_exhaustive()
            }
        }
    )*};
}

debug_without_token! {
    dfs::BulkRequest: op;
    dfs::CopyBlock: block_id length targets nonce;
    dfs::LocatedBlock: block_id offset length nodes damaged_on nonce;
    mr::CopyFiles: attempt addr partitions;
    mr::TaskSpec: attempt job_name user program conf input reduces work_output namenode;
}

/// The version of the protocol between JobTracker and TaskTrackers. Both must have the same.
pub const TRACKER_PROTOCOL: u32 = 7;

/// The version of the protocol between the NameNode and DataNodes. Both must have the same.
pub const DATANODE_PROTOCOL: u32 = 4;

/// The folder of the file system for files that tasks need. Each job has a folder in it, which the
/// JobTracker removes when the job has ended.
pub const STAGING: &str = "/tmp/fermata/staging";
