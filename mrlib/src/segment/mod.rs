//! Segment files: sorted records by partition. Spills, map outputs and merged runs all have this form.
//!
//! A file holds, for each partition in order, a run of blocks; a block is
//!
//! ```text
//! stored_len u32 LE | raw_len u32 LE | stored_len bytes
//! ```
//!
//! whose bytes are lz4 if `stored_len < raw_len`, else as they are; raw, it holds whole records
//! `varint key_len | varint value_len | key | value`. A reader needs one block in memory. Where partitions lie,
//! how long they are and their CRC-32C (of the stored bytes) is told by the [`Index`], kept beside a map output
//! as `PATH.index`.
//!
//! Damaged bytes are an error wherever they are met, never a panic; a partition is vouched for only when its
//! reader has come to the end.

mod index;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

pub use index::{Extent, Index};
pub use reader::{Place, Run, SegmentReader, Stored};
pub use writer::SegmentWriter;

/// Raw bytes in a block, but for a record that is longer by itself.
pub const BLOCK_BYTES: usize = 64 << 10;
/// A record of this length is written as it is, not copied into a block first, and never compressed.
const LONG_BYTES: usize = 1 << 20;
/// Lengths before a block's bytes.
const BLOCK_HEADER_BYTES: usize = 8;
