//! Segment files: sorted records by partition. Spills, map outputs and merged runs have this
//! format.
//!
//! A file contains a sequence of blocks for each partition, in order. A block is
//!
//! ```text
//! stored_len u32 LE | raw_len u32 LE | stored_len bytes
//! ```
//!
//! If `stored_len < raw_len`, the bytes are compressed with lz4. The raw bytes are complete records
//! `varint key_len | varint value_len | key | value`. A reader needs one block in memory. The
//! [`Index`] has the position, length and CRC-32C (of the stored bytes) of each partition; for a
//! map output it is in `PATH.index`.
//!
//! Damaged bytes give an error wherever they are found, never a panic. A partition is verified only
//! when its reader has reached the end.

mod index;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

pub use index::{Extent, Index};
pub use reader::{Run, RunPosition, SegmentReader, Stored};
pub use writer::SegmentWriter;

/// Raw bytes in a block, unless a single record is longer.
pub const BLOCK_BYTES: usize = 64 << 10;
/// A record longer than this is written directly, without a copy in a block, and never compressed.
const LONG_BYTES: usize = 1 << 20;
/// Size of the header of a block: two lengths.
const BLOCK_HEADER_BYTES: usize = 8;
