//! Writes a segment file.
//!
//! Deliberately absent: fsync. A map output that a crash of the machine takes is made again.

use super::{BLOCK_BYTES, BLOCK_HEADER_BYTES, Extent, Index, LONG_BYTES};
use crate::error::TaskError;
use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

/// Written to the file at a time.
const WRITE_BYTES: usize = 1 << 20;
/// Blocks that go uncompressed at most after one that did not pay.
const SKIP_MAX: u32 = 32;

/// Takes records in order and writes them. Dropped before `finish`, it leaves a file that nothing refers to.
#[derive(Debug)]
pub struct SegmentWriter {
    path: PathBuf,
    file: File,
    extents: Vec<Extent>,
    partition: usize,
    /// The records of the block being filled.
    block: Vec<u8>,
    /// Stored bytes not yet written.
    out: Vec<u8>,
    /// Where `out` goes.
    offset: u64,
    pack: Pack,
}

/// Whether, and for how many blocks not, compression is tried.
#[derive(Debug)]
struct Pack {
    wanted: bool,
    /// Blocks to leave as they are before it is tried again.
    skip: u32,
    /// `skip` after the next block that does not pay.
    next_skip: u32,
}

impl SegmentWriter {
    /// A new file (one that is there is replaced) of so many partitions; `compress` where it pays.
    pub fn create(path: &Path, partitions: u32, compress: bool) -> Result<Self, TaskError> {
        let file = File::create(path).map_err(TaskError::io(format!("create {}", path.display())))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            extents: vec![Extent::default(); partitions as usize],
            partition: 0,
            block: Vec::with_capacity(BLOCK_BYTES),
            out: Vec::new(),
            offset: 0,
            pack: Pack { wanted: compress, skip: 0, next_skip: 1 },
        })
    }

    /// Adds a record. Partitions come in order, and records within them as they shall be read.
    #[inline]
    pub fn append(&mut self, partition: u32, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        if partition as usize != self.partition {
            self.go_to(partition as usize)?;
        }
        let length = key.len() + value.len();
        if self.block.len() + length + 10 > BLOCK_BYTES {
            if !self.block.is_empty() {
                self.seal()?;
            }
            if length > LONG_BYTES {
                return self.append_long(key, value);
            }
        }
        put_varint(&mut self.block, key.len() as u32);
        put_varint(&mut self.block, value.len() as u32);
        self.block.extend_from_slice(key);
        self.block.extend_from_slice(value);
        self.extents[self.partition].records += 1;
        Ok(())
    }

    /// Writes what is left. The index is the caller's to keep or to `write`.
    pub fn finish(mut self) -> Result<Index, TaskError> {
        self.go_to(self.extents.len())?;
        self.flush()?;
        Ok(Index { extents: self.extents })
    }

    fn go_to(&mut self, partition: usize) -> Result<(), TaskError> {
        assert!(partition > self.partition || self.extents.is_empty(), "partitions come in order");
        if !self.block.is_empty() {
            self.seal()?;
        }
        let end = self.offset + self.out.len() as u64;
        for extent in self.extents.iter_mut().take(partition + 1).skip(self.partition + 1) {
            extent.offset = end;
        }
        self.partition = partition;
        Ok(())
    }

    /// Ends the block.
    fn seal(&mut self) -> Result<(), TaskError> {
        let (start, raw) = (self.out.len(), self.block.len());
        self.out.extend_from_slice(&[0; BLOCK_HEADER_BYTES]);
        if !self.pack.compress(&self.block, &mut self.out) {
            self.out.extend_from_slice(&self.block);
        }
        let stored = self.out.len() - start - BLOCK_HEADER_BYTES;
        self.out[start..start + BLOCK_HEADER_BYTES].copy_from_slice(&header(stored as u32, raw as u32));
        self.account(start, raw);
        self.block.clear();
        if self.out.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    /// A block of one record, without a copy.
    fn append_long(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        let mut lengths = Vec::with_capacity(10);
        let raw = key.len() + value.len() + 10;
        if u32::try_from(raw).is_err() {
            return Err(TaskError::Program(format!("a pair of {raw} bytes is too long: the limit is 4 GiB")));
        }
        put_varint(&mut lengths, key.len() as u32);
        put_varint(&mut lengths, value.len() as u32);
        let raw = lengths.len() + key.len() + value.len();
        let start = self.out.len();
        self.out.extend_from_slice(&header(raw as u32, raw as u32));
        self.out.extend_from_slice(&lengths);
        self.account(start, raw);
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

    /// Notes the stored bytes of `out` from `start` on, and the raw bytes of their block.
    fn account(&mut self, start: usize, raw: usize) {
        let extent = &mut self.extents[self.partition];
        extent.crc = crc32c::crc32c_append(extent.crc, &self.out[start..]);
        extent.stored += (self.out.len() - start) as u64;
        extent.raw += raw as u64;
        extent.block_max = extent.block_max.max(raw as u64);
    }

    fn flush(&mut self) -> Result<(), TaskError> {
        let written = self.file.write_all(&self.out);
        written.map_err(TaskError::io(format!("write {}", self.path.display())))?;
        self.offset += self.out.len() as u64;
        self.out.clear();
        Ok(())
    }
}

impl Pack {
    /// Puts `block` compressed at the end of `out`, if that saves a quarter. If it does not, the next blocks, first
    /// one and then more and more, are not even tried: what random bytes cost is soon nothing.
    fn compress(&mut self, block: &[u8], out: &mut Vec<u8>) -> bool {
        if !self.wanted || block.len() > LONG_BYTES {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        let start = out.len();
        out.resize(start + lz4_flex::block::get_maximum_output_size(block.len()), 0);
        let length = lz4_flex::block::compress_into(block, &mut out[start..]).unwrap_or(usize::MAX);
        let pays = length < block.len() - block.len() / 4;
        out.truncate(if pays { start + length } else { start });
        self.skip = if pays { 0 } else { self.next_skip };
        self.next_skip = if pays { 1 } else { (self.next_skip * 2).min(SKIP_MAX) };
        pays
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
