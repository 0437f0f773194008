//! The bulk protocol: blocks between clients and DataNodes, over framed TCP.
//!
//! A frame is a 16-byte header, a small protobuf body and raw data. The header's CRC covers header and body;
//! the data is covered by the chunk checksums in the body, so that it is read only once.
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
//! **Write.** `Request(WriteBlock)` → each node connects to its first mirror and passes the rest on; then a
//! `Status` comes back up with the nodes that are ready. `Packet`s follow, in order, whole chunks but for the
//! last; each node checks the sums, writes, forwards. Cumulative `Status`es come up as all nodes below have
//! taken the bytes. After the `last` packet each node makes its replica durable (fsync, rename, folder fsync)
//! and one `Status { done }` names the nodes that hold it. A mirror that dies is dropped: the rest go on, and
//! `faults` says who and why. If the *first* node dies, the writer goes to the next one named in the last
//! status with `resume_at` = the start of the first packet it still keeps (a writer keeps what is not acked,
//! and the last packet until `done`): the node cuts its partial replica there and takes over from the old
//! connection. A node that has finalised the block already answers `done` at once.
//!
//! A writer whose source gives nothing sends a keep-alive, a `Packet` without data that is not the last, every
//! quarter of the `timeout_ms` that the statuses name. It goes down the pipeline and is answered like any other
//! packet, so silence always means that a node (or the writer) is dead, in either direction, however slow the
//! source is. The writer itself gives the first node up after `timeout_ms` without an answer that is due.
//!
//! **Read.** `Request(ReadBlock)` → `ReadReply` with all checksums of the range, then the raw bytes (sendfile).
//!
//! **Local.** `Request(OpenLocal)` over the node's Unix socket → `ReadReply` with two descriptors (data file,
//! checksum file) as ancillary data, `length` 0 bytes following.
//!
//! Any request may be answered by `Error` instead. Deliberately absent: compression and multiplexing; a
//! transfer owns its connection. A connection may carry several requests, one after the other.

mod connect;
mod frame;

pub use connect::connect;
pub use frame::{
    FRAME_HEADER_BYTES, Frame, FrameError, FrameKind, encode_frame, is_timeout, read_frame, read_request,
    recycle,
};

/// How long the set-up of a pipeline of `nodes` is waited for while others could do without its first: twice as long as
/// for one node less, so that whoever stands before a silent node notices first and can still say so. A set-up moves
/// no data; a node that takes longer is frozen or cut off.
pub fn set_up_within(nodes: usize) -> std::time::Duration {
    std::time::Duration::from_secs(3) * (1 << nodes.clamp(1, 6)) / 2
}

/// The kind of a refusal that is no fault of the node: the NameNode, which it must ask, does not answer.
pub(crate) const NAMENODE_UNAVAILABLE: &str = "namenode-unavailable";

/// Data bytes in a full packet: a whole number of chunks.
pub const PACKET_BYTES: usize = 8 * crate::checksum::CHUNK_BYTES;

/// What a writer sends ahead of the acknowledgements, at the most.
pub const WINDOW_BYTES: usize = 16 * PACKET_BYTES;
