//! The types generated from the .proto files, and constants that both sides share.
//!
//! `tests/generated.rs` compares `generated/` with the .proto files and, on request, updates it.
//! The masters (JobTracker and NameNode) convert the generated types to their own types in their
//! `wire` modules.
#![allow(
    unreachable_pub,
    clippy::pedantic,
    clippy::large_enum_variant,
    reason = "generated code; the .proto files have the comments"
)]

pub use prost::Message;
use std::pin::Pin;

/// The file system: NameNode, DataNodes, and the headers of the bulk protocol.
pub mod dfs {
    include!("generated/fermata.dfs.v1.rs");
}

/// The runtime: JobTracker, TaskTrackers, and the umbilical between a tracker and its task
/// processes.
pub mod mr {
    include!("generated/fermata.mr.v1.rs");
}

/// What every master answers.
pub mod master {
    include!("generated/fermata.master.v1.rs");
}

/// Messages between the members of a group of masters.
pub mod raft {
    include!("generated/fermata.raft.v1.rs");
}

/// Implements `Debug` for a message that contains a token. Only the given fields are printed, so
/// that the token is never logged.
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
    mr::TaskSpec: attempt job_name user program conf input reduces work_output namenodes;
}

/// A future of the reply to a call.
pub type Reply<T> = Pin<Box<dyn Future<Output = Result<tonic::Response<T>, tonic::Status>> + Send>>;

/// Defines a function for each call of a client. Their futures are boxed, so that only the crate
/// that uses this macro compiles the calls. The generated methods would be compiled again in every
/// crate that awaits them.
#[macro_export]
macro_rules! boxed_calls {
    ($client:ty: $($call:ident($request:ty) -> $reply:ty;)*) => {$(
        #[inline(never)]
        pub(crate) fn $call(
            client: &$client,
            request: tonic::Request<$request>,
        ) -> $crate::Reply<$reply> {
            let mut client = client.clone();
            Box::pin(async move { client.$call(request).await })
        }
    )*};
}

/// The version of the protocol between JobTracker and TaskTrackers. Both sides must
/// use the same version.
pub const TRACKER_PROTOCOL: u32 = 8;

/// The version of the protocol between the NameNode and DataNodes. Both sides must use
/// the same version.
pub const DATANODE_PROTOCOL: u32 = 5;

/// The folder in the file system for files that tasks need, such as executables. Each job has a
/// folder in it, which the JobTracker removes when the job has ended.
pub const STAGING: &str = "/tmp/fermata/staging";
