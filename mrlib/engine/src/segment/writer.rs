//! Writes a segment file.
//!
//! The file is not synced: a map output that is lost in a crash of the machine is computed again.

use super::{BLOCK_BYTES, BLOCK_HEADER_BYTES, Extent, Index, LONG_BYTES};
use mrlib_api::TaskError;
use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

/// Bytes per write to the file.
const WRITE_BYTES: usize = 1 << 20;
/// Maximum number of blocks that are left uncompressed after a block that did not become smaller.
const SKIP_MAX: u32 = 32;

/// Writes sorted records. If it is dropped before `finish`, the file is incomplete and has no
/// index.
#[derive(Debug)]
pub struct SegmentWriter {
    path: PathBuf,
    file: File,
    extents: Vec<Extent>,
    partition: usize,
    /// Stored bytes that are not written yet: complete blocks, then the empty header and the raw
    /// records of the current block.
    out: Vec<u8>,
    /// The offset of the header of the current block in `out`.
    block_start: usize,
    /// The offset of `out` in the file.
    offset: u64,
    compressor: BlockCompressor,
}

/// Decides for which blocks compression is tried.
#[derive(Debug)]
struct BlockCompressor {
    is_enabled: bool,
    /// Number of blocks to leave uncompressed before the next try.
    blocks_to_skip: u32,
    /// The value of `blocks_to_skip` after the next unsuccessful try.
    next_skip: u32,
    packed: Vec<u8>,
}

impl SegmentWriter {
    /// Creates or replaces a file with this number of partitions. With `compress`, blocks are
    /// compressed if that saves enough.
    pub fn create(path: &Path, partitions: u32, compress: bool) -> Result<Self, TaskError> {
        let file = File::create(path).map_err(TaskError::io(format!("create {}", path.display())))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            extents: vec![Extent::default(); partitions as usize],
            partition: 0,
            out: vec![0; BLOCK_HEADER_BYTES],
            block_start: 0,
            offset: 0,
            compressor: BlockCompressor {
                is_enabled: compress,
                blocks_to_skip: 0,
                next_skip: 1,
                packed: Vec::new(),
            },
        })
    }

    /// Appends a record. Partitions must come in order, and their records in sorted order.
    #[inline]
    pub fn append(&mut self, partition: u32, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        if partition as usize != self.partition {
            self.start_partition(partition as usize)?;
        }
        let length = key.len() + value.len();
        if self.block_raw_bytes() + length + 10 > BLOCK_BYTES {
            self.end_block()?;
            if length > LONG_BYTES {
                return self.append_long(key, value);
            }
        }
        put_varint(&mut self.out, key.len() as u32);
        put_varint(&mut self.out, value.len() as u32);
        self.out.extend_from_slice(key);
        self.out.extend_from_slice(value);
        self.extents[self.partition].records += 1;
        Ok(())
    }

    /// Returns the raw bytes of the current block.
    #[inline]
    fn block_raw_bytes(&self) -> usize {
        self.out.len() - self.block_start - BLOCK_HEADER_BYTES
    }

    /// Writes the remaining blocks. Returns the index, which the caller may `write`.
    pub fn finish(mut self) -> Result<Index, TaskError> {
        self.start_partition(self.extents.len())?;
        self.flush()?;
        Ok(Index { extents: self.extents })
    }

    /// Ends the current partition and starts `partition`.
    fn start_partition(&mut self, partition: usize) -> Result<(), TaskError> {
        assert!(partition > self.partition || self.extents.is_empty(), "partitions must come in order");
        self.end_block()?;
        let end = self.offset + self.block_start as u64;
        for extent in self.extents.iter_mut().take(partition + 1).skip(self.partition + 1) {
            extent.offset = end;
        }
        self.partition = partition;
        Ok(())
    }

    /// Ends the current block, unless it is empty, and starts the next block.
    fn end_block(&mut self) -> Result<(), TaskError> {
        let raw = self.block_raw_bytes();
        if raw == 0 {
            return Ok(());
        }
        let records = self.block_start + BLOCK_HEADER_BYTES;
        if let Some(packed) = self.compressor.compress(&self.out[records..]) {
            self.out.truncate(records);
            self.out.extend_from_slice(packed);
        }
        let stored = self.out.len() - records;
        self.out[self.block_start..records].copy_from_slice(&header(stored as u32, raw as u32));
        self.add_block_to_extent(raw);
        if self.block_start >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes a block with one record, without copying it. The current block must be empty.
    fn append_long(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        let max = key.len() + value.len() + 10;
        if u32::try_from(max).is_err() {
            return Err(TaskError::Program(format!("a pair of {max} bytes is too long: the limit is 4 GiB")));
        }
        put_varint(&mut self.out, key.len() as u32);
        put_varint(&mut self.out, value.len() as u32);
        let raw = self.block_raw_bytes() + key.len() + value.len();
        let records = self.block_start + BLOCK_HEADER_BYTES;
        self.out[self.block_start..records].copy_from_slice(&header(raw as u32, raw as u32));
        self.add_block_to_extent(raw);
        self.flush()?;
        for part in [key, value] {
            let extent = &mut self.extents[self.partition];
            extent.crc = crc32c::crc32c_append(extent.crc, part);
            extent.stored += part.len() as u64;
            self.file.write_all(part).map_err(TaskError::io(format!("write {}", self.path.display())))?;
            self.offset += part.len() as u64;
        }
        self.extents[self.partition].records += 1;
        Ok(())
    }

    /// Adds the block at the end of `out`, with `raw` raw bytes, to the extent. The next block
    /// begins after it.
    fn add_block_to_extent(&mut self, raw: usize) {
        let extent = &mut self.extents[self.partition];
        extent.crc = crc32c::crc32c_append(extent.crc, &self.out[self.block_start..]);
        extent.stored += (self.out.len() - self.block_start) as u64;
        extent.raw += raw as u64;
        extent.block_max = extent.block_max.max(raw as u64);
        self.block_start = self.out.len();
        self.out.extend_from_slice(&[0; BLOCK_HEADER_BYTES]);
    }

    /// Writes all complete blocks. The current block must be empty.
    fn flush(&mut self) -> Result<(), TaskError> {
        let written = self.file.write_all(&self.out[..self.block_start]);
        written.map_err(TaskError::io(format!("write {}", self.path.display())))?;
        self.offset += self.block_start as u64;
        self.out.clear();
        self.out.resize(BLOCK_HEADER_BYTES, 0);
        self.block_start = 0;
        Ok(())
    }
}

impl BlockCompressor {
    /// Compresses a block if that saves half of it: smaller savings cost more time than they gain
    /// with current disks and networks. After an unsuccessful try the next blocks are not tried,
    /// first one and then more and more, so that incompressible data costs almost nothing.
    fn compress(&mut self, block: &[u8]) -> Option<&[u8]> {
        if !self.is_enabled || block.len() > LONG_BYTES {
            return None;
        }
        if self.blocks_to_skip > 0 {
            self.blocks_to_skip -= 1;
            return None;
        }
        self.packed.resize(lz4_flex::block::get_maximum_output_size(block.len()), 0);
        let length = lz4_flex::block::compress_into(block, &mut self.packed).unwrap_or(usize::MAX);
        let pays = length <= block.len() / 2;
        self.blocks_to_skip = if pays { 0 } else { self.next_skip };
        self.next_skip = if pays { 1 } else { (self.next_skip * 2).min(SKIP_MAX) };
        pays.then(|| &self.packed[..length])
    }
}

fn header(stored: u32, raw: u32) -> [u8; BLOCK_HEADER_BYTES] {
    let mut bytes = [0; BLOCK_HEADER_BYTES];
    bytes[..4].copy_from_slice(&stored.to_le_bytes());
    bytes[4..].copy_from_slice(&raw.to_le_bytes());
    bytes
}

#[inline]
fn put_varint(out: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
