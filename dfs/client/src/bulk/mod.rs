//! The bulk protocol: transfers blocks between clients and DataNodes, in frames over TCP.
//!
//! A frame is a 16-byte header, a small protobuf body and raw data. The CRC in the header covers
//! the header and the body. The chunk checksums in the body cover the data, so that no second pass
//! over the data is needed.
//!
//! ```text
//! offset  0  magic  u16   "FB"
//!         2  version u8
//!         3  kind    u8
//!         4  body length u32, little endian
//!         8  data length u32
//!        12  CRC32C of bytes 0..12 and the body
//!        16  body, then data
//! ```
//!
//! **Write.** The client sends `Request(WriteBlock)` to the first node. Each node connects to the
//! next node of the pipeline (its mirror) and forwards the remaining list; then a `Status` with the
//! nodes that are ready returns to the client. `Packet`s follow in order, each with complete chunks
//! except the last. Each node verifies the checksums, writes the data and forwards the packet. It
//! acknowledges with a cumulative `Status` when all nodes after it have received the bytes. After
//! the `last` packet each node makes its replica durable (fsync, rename, fsync of the folder), and
//! one `Status { done }` names the nodes that have the replica.
//!
//! A mirror that fails is removed from the pipeline: the other nodes continue, and `faults`
//! contains the failed node and the reason. If the *first* node fails, the client connects to the
//! next node of the last status. It sets `resume_at` to the start of the first packet that it still
//! has: a client keeps all unacknowledged packets, and the last packet until `done`. The node
//! truncates its partial replica there and takes it over from the old connection. A node that has
//! already finalised the block answers `done` at once.
//!
//! A client without data to send sends a keep-alive every quarter of the `timeout_ms` in the
//! statuses: a `Packet` without data that is not the last. A keep-alive is forwarded and
//! acknowledged like any other packet. Silence in either direction therefore means that a node or
//! the client has failed, even if the source of the data is slow. The client gives up the first
//! node if an acknowledgement is late by `timeout_ms`.
//!
//! **Read.** `Request(ReadBlock)` is answered with a `ReadReply` that has all checksums of the
//! range, followed by the raw bytes (`sendfile`).
//!
//! **Local.** `Request(OpenLocal)` over the Unix socket of the node is answered with a `ReadReply`
//! that has two file descriptors (data file, checksum file) as ancillary data. Its `length` is 0,
//! and no bytes follow.
//!
//! Any request may be answered with `Error`. A connection may be used for several requests, one
//! after the other. Transfers at the same time use separate connections. Data is not compressed.

mod connect;
mod frame;

pub use connect::connect;
pub use frame::{
    FRAME_HEADER_BYTES, Frame, FrameError, FrameKind, encode_frame, is_timeout, read_frame, read_request,
    recycle,
};

/// Returns the timeout for setting up a pipeline of `nodes` nodes if the pipeline could also
/// continue without its first node. The timeout doubles with each node. The node before a silent
/// node therefore times out first, and can still report the silent node. A set-up transfers no
/// data, so a node that takes longer is stopped or unreachable.
pub fn set_up_timeout(nodes: usize) -> std::time::Duration {
    std::time::Duration::from_secs(3) * (1 << nodes.clamp(1, 6)) / 2
}

/// The kind of a refusal that is not a fault of the DataNode: the DataNode must ask the NameNode,
/// which does not answer.
pub const NAMENODE_UNAVAILABLE: &str = "namenode-unavailable";

/// Number of data bytes in a full packet, a multiple of the chunk size.
pub const PACKET_BYTES: usize = 8 * crate::checksum::CHUNK_BYTES;

/// Maximum number of bytes that a writer sends before they are acknowledged.
pub const WINDOW_BYTES: usize = 16 * PACKET_BYTES;
