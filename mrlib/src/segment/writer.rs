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
    /// Stored bytes not yet written: whole blocks, then the header of the block being filled, still empty, and its
    /// records as they are.
    out: Vec<u8>,
    /// Where in `out` that header is.
    block: usize,
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
    packed: Vec<u8>,
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
            out: vec![0; BLOCK_HEADER_BYTES],
            block: 0,
            offset: 0,
            pack: Pack { wanted: compress, skip: 0, next_skip: 1, packed: Vec::new() },
        })
    }

    /// Adds a record. Partitions come in order, and records within them as they shall be read.
    #[inline]
    pub fn append(&mut self, partition: u32, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        if partition as usize != self.partition {
            self.go_to(partition as usize)?;
        }
        let length = key.len() + value.len();
        if self.raw() + length + 10 > BLOCK_BYTES {
            self.seal()?;
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

    /// Bytes of the records in the block being filled.
    #[inline]
    fn raw(&self) -> usize {
        self.out.len() - self.block - BLOCK_HEADER_BYTES
    }

    /// Writes what is left. The index is the caller's to keep or to `write`.
    pub fn finish(mut self) -> Result<Index, TaskError> {
        self.go_to(self.extents.len())?;
        self.flush()?;
        Ok(Index { extents: self.extents })
    }

    fn go_to(&mut self, partition: usize) -> Result<(), TaskError> {
        assert!(partition > self.partition || self.extents.is_empty(), "partitions come in order");
        self.seal()?;
        let end = self.offset + self.block as u64;
        for extent in self.extents.iter_mut().take(partition + 1).skip(self.partition + 1) {
            extent.offset = end;
        }
        self.partition = partition;
        Ok(())
    }

    /// Ends the block, if there is anything in it, and begins the next.
    fn seal(&mut self) -> Result<(), TaskError> {
        let raw = self.raw();
        if raw == 0 {
            return Ok(());
        }
        let records = self.block + BLOCK_HEADER_BYTES;
        if let Some(packed) = self.pack.compress(&self.out[records..]) {
            self.out.truncate(records);
            self.out.extend_from_slice(packed);
        }
        let stored = self.out.len() - records;
        self.out[self.block..records].copy_from_slice(&header(stored as u32, raw as u32));
        self.account(raw);
        if self.block >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    /// A block of one record, without a copy. The one being filled is empty.
    fn append_long(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        let max = key.len() + value.len() + 10;
        if u32::try_from(max).is_err() {
            return Err(TaskError::Program(format!("a pair of {max} bytes is too long: the limit is 4 GiB")));
        }
        put_varint(&mut self.out, key.len() as u32);
        put_varint(&mut self.out, value.len() as u32);
        let raw = self.raw() + key.len() + value.len();
        let records = self.block + BLOCK_HEADER_BYTES;
        self.out[self.block..records].copy_from_slice(&header(raw as u32, raw as u32));
        self.account(raw);
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

    /// Notes the block that ends with `out`, and the raw bytes of it; the next begins there.
    fn account(&mut self, raw: usize) {
        let extent = &mut self.extents[self.partition];
        extent.crc = crc32c::crc32c_append(extent.crc, &self.out[self.block..]);
        extent.stored += (self.out.len() - self.block) as u64;
        extent.raw += raw as u64;
        extent.block_max = extent.block_max.max(raw as u64);
        self.block = self.out.len();
        self.out.extend_from_slice(&[0; BLOCK_HEADER_BYTES]);
    }

    /// Writes all whole blocks. The one being filled is empty.
    fn flush(&mut self) -> Result<(), TaskError> {
        let written = self.file.write_all(&self.out[..self.block]);
        written.map_err(TaskError::io(format!("write {}", self.path.display())))?;
        self.offset += self.block as u64;
        self.out.clear();
        self.out.resize(BLOCK_HEADER_BYTES, 0);
        self.block = 0;
        Ok(())
    }
}

impl Pack {
    /// The block compressed, if that saves half: what saves less costs more time than it saves, on disks and networks
    /// as fast as today's. If it does not, the next blocks, first one and then more and more, are not even tried: what
    /// random bytes cost is soon nothing.
    fn compress(&mut self, block: &[u8]) -> Option<&[u8]> {
        if !self.wanted || block.len() > LONG_BYTES {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.packed.resize(lz4_flex::block::get_maximum_output_size(block.len()), 0);
        let length = lz4_flex::block::compress_into(block, &mut self.packed).unwrap_or(usize::MAX);
        let pays = length <= block.len() / 2;
        self.skip = if pays { 0 } else { self.next_skip };
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
