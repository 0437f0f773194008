//! Reads one partition of a segment file from memory or disk.

use super::{BLOCK_HEADER_BYTES, Extent, Index, LONG_BYTES};
use crate::scratch::ScratchFile;
use bytes::Bytes;
use mrlib_api::TaskError;
use std::{
    fs::File,
    io::ErrorKind,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Maximum factor by which a block grows when lz4 decompresses it.
const EXPANSION_MAX: u64 = 256;

/// Where the stored bytes of a partition are.
#[derive(Debug, Clone)]
pub enum Stored {
    /// In memory. These bytes are the partition and nothing else.
    Memory(Bytes),
    /// In a file, which is opened for each reader.
    File(PathBuf),
    /// In a scratch file, which exists as long as this value.
    Scratch(ScratchFile),
    /// In an open file.
    Open(Arc<File>),
}

/// A sorted run: the stored bytes of a partition with their extent. It can be opened any number of
/// times.
#[derive(Debug, Clone)]
pub struct Run {
    /// The stored bytes. In a file they begin at `extent.offset`; in memory there are no other
    /// bytes.
    pub stored: Stored,
    /// Lengths, number of records, checksum.
    pub extent: Extent,
    /// The name for error messages.
    pub name: Arc<str>,
    /// Whether the checksum was verified, so that readers from memory can skip the check.
    pub verified: bool,
    /// The record to begin with, if it is not the first.
    pub start: Option<RunPosition>,
    /// Runs that follow this run, in order. Their own `more` is empty.
    pub more: Vec<Run>,
}

impl Run {
    /// Returns partition `partition` of the segment file at `path`, according to its index.
    pub fn of_file(path: PathBuf, partition: u32) -> Result<Self, TaskError> {
        let name: Arc<str> = path.display().to_string().into();
        let index = Index::read(&path)?;
        let Some(extent) = index.extents.get(partition as usize).copied() else {
            let file = Index::path_of(&path).display().to_string();
            return Err(TaskError::Damaged {
                file,
                offset: 8,
                why: "it has fewer partitions than requested",
            });
        };
        Ok(Self::new(Stored::File(path), extent, name))
    }

    /// Creates a run whose checksum was not verified yet.
    pub fn new(stored: Stored, extent: Extent, name: Arc<str>) -> Self {
        Self { stored, extent, name, verified: false, start: None, more: Vec::new() }
    }

    /// Creates a run in memory. `extent.offset` is ignored.
    pub fn in_memory(name: &str, bytes: Bytes, extent: Extent) -> Self {
        let extent = Extent { offset: 0, ..extent };
        Self::new(Stored::Memory(bytes), extent, name.into())
    }

    /// Returns this run and the runs that follow it.
    pub fn parts(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.more)
    }

    /// Appends another run, whose records come after those of this run.
    #[must_use]
    pub fn followed_by(mut self, mut other: Self) -> Self {
        let more = std::mem::take(&mut other.more);
        self.more.push(other);
        self.more.extend(more);
        self
    }

    /// Returns the number of unread stored bytes, including those of the current block.
    pub fn unread_bytes(&self) -> u64 {
        let left =
            |run: &Self| run.extent.stored - run.start.map_or(0, |start| start.block.min(run.extent.stored));
        self.parts().map(left).sum()
    }

    /// Opens a reader before the first record, or before the record at `start`. The reader ends
    /// with the first part.
    pub fn open(&self) -> Result<SegmentReader, TaskError> {
        match self.start {
            Some(start) => self.open_at(start),
            None => self.open_from_start(),
        }
    }

    fn open_from_start(&self) -> Result<SegmentReader, TaskError> {
        let open = |path: &Path| -> Result<Source, TaskError> {
            let file = File::open(path).map_err(TaskError::io(format!("open {}", path.display())))?;
            Ok(Source::File(Arc::new(file)))
        };
        let source = match &self.stored {
            Stored::Memory(bytes) => Source::Memory(bytes.clone()),
            Stored::File(path) => open(path)?,
            Stored::Scratch(file) => open(file.path())?,
            Stored::Open(file) => Source::File(file.clone()),
        };
        // Data from a disk is verified every time.
        let trusted = self.verified && matches!(source, Source::Memory(_));
        let reader = SegmentReader {
            source,
            name: self.name.clone(),
            extent: self.extent,
            read: 0,
            raw: 0,
            records: 0,
            crc: (!trusted).then_some(0),
            start_and_crc: (0, 0),
            block_crc: None,
            next_header: None,
            block_at: 0,
            start: 0,
            packed: Vec::new(),
            unpacked: Vec::new(),
            block: Block::Packed(0..0),
            at: 0,
            end: 0,
            value_at: 0,
            value_end: 0,
        };
        match &reader.source {
            Source::Memory(bytes) if bytes.len() as u64 != self.extent.stored => {
                Err(reader.damaged_error("it does not have the expected length"))
            }
            // Check the length before memory is allocated for the data.
            Source::File(file) => {
                let length = file.metadata().map_err(|error| reader.read_error(error))?.len();
                let end = self.extent.offset.checked_add(self.extent.stored);
                if end.is_none_or(|end| end > length) {
                    return Err(reader.damaged_error("the file ends early"));
                }
                Ok(reader)
            }
            Source::Memory(_) => Ok(reader),
        }
    }

    /// Opens a reader before the record at `position`, which a reader of the same bytes has
    /// returned. Earlier bytes are not read; the position has their checksum, so damage in the
    /// remainder is still detected at the end.
    pub fn open_at(&self, position: RunPosition) -> Result<SegmentReader, TaskError> {
        let mut reader = self.open_from_start()?;
        reader.crc = reader.crc.map(|_| position.crc);
        if position.block > self.extent.stored || position.raw > self.extent.raw {
            return Err(reader.damaged_error("it is too short for the position to continue from"));
        }
        (reader.read, reader.raw) = (position.block, position.raw);
        reader.start_and_crc = (position.block, position.crc);
        if !reader.next_block()? || position.at >= reader.end as u64 {
            return Err(reader.damaged_error("no record starts at the position to continue from"));
        }
        (reader.value_end, reader.records) = (position.at as usize, position.records);
        Ok(reader)
    }
}

/// The position of a record in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunPosition {
    /// Stored bytes of the run before the header of the block that contains the record.
    pub block: u64,
    /// Raw bytes of the run before that block.
    pub raw: u64,
    /// Raw bytes of the block before the record.
    pub at: u64,
    /// Number of records of the run before the record.
    pub records: u64,
    /// CRC-32C of the stored bytes of the run before that block.
    pub crc: u32,
}

#[derive(Debug)]
enum Source {
    Memory(Bytes),
    File(Arc<File>),
}

/// Where the raw bytes of the current block are.
#[derive(Debug)]
enum Block {
    /// In the source, which is in memory.
    Memory(Range<usize>),
    /// In `packed`, as read from the file.
    Packed(Range<usize>),
    /// In `unpacked`.
    Unpacked,
}

/// Reads the records of one run. `key` and `value` are slices of the current block.
#[derive(Debug)]
pub struct SegmentReader {
    source: Source,
    name: Arc<str>,
    extent: Extent,
    /// Stored bytes read, including headers.
    read: u64,
    /// Raw bytes of the blocks read.
    raw: u64,
    /// Number of records returned.
    records: u64,
    /// Checksum of the bytes read; None if it is not needed.
    crc: Option<u32>,
    /// The offset at which reading began, and the checksum of the bytes before it, which may not
    /// exist any more.
    start_and_crc: (u64, u32),
    /// Checksum of the bytes before the current block.
    block_crc: Option<u32>,
    /// The header of the next block, read together with the current block.
    next_header: Option<[u8; BLOCK_HEADER_BYTES]>,
    packed: Vec<u8>,
    unpacked: Vec<u8>,
    /// Offset of the header of the current block.
    block_at: u64,
    block: Block,
    /// Offset of the current record in the block.
    start: usize,
    /// Offset of the current key in the block.
    at: usize,
    /// End of the block.
    end: usize,
    value_at: usize,
    value_end: usize,
}

impl SegmentReader {
    /// Advances to the next record. Returns false at the end, when the run has been verified.
    #[allow(
        clippy::should_implement_trait,
        reason = "returns references into itself, which an Iterator cannot"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<bool, TaskError> {
        if self.value_end == self.end && !self.next_block()? {
            return Ok(false);
        }
        self.start = self.value_end;
        let block = &self.block()[self.start..];
        let Some((key_at, key, value)) = record_lengths(block) else {
            return Err(self.damaged_error("a record exceeds its block"));
        };
        self.at = self.start + key_at;
        self.value_at = self.at + key;
        self.value_end = self.value_at + value;
        self.records += 1;
        Ok(true)
    }

    /// Returns the key of the current record.
    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.block()[self.at..self.value_at]
    }

    /// Returns the value of the current record.
    #[inline]
    pub fn value(&self) -> &[u8] {
        &self.block()[self.value_at..self.value_end]
    }

    /// Returns the position of the current record, for [`Run::open_at`], which continues with that
    /// record.
    pub fn position(&self) -> RunPosition {
        let (at, records) = (self.start as u64, self.records.saturating_sub(1));
        let crc = match (self.block_crc, &self.source) {
            (Some(crc), _) => crc,
            (None, Source::Memory(bytes)) => {
                let (from, crc) = self.start_and_crc;
                crc32c::crc32c_append(crc, &bytes[from as usize..self.block_at.max(from) as usize])
            }
            // Before the first block, or at the end.
            (None, Source::File(_)) => 0,
        };
        RunPosition { block: self.block_at, raw: self.raw - self.end as u64, at, records, crc }
    }

    /// Returns the bytes of memory in use.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.packed.capacity() + self.unpacked.capacity()
    }

    #[inline]
    fn block(&self) -> &[u8] {
        match (&self.block, &self.source) {
            (Block::Unpacked, _) => &self.unpacked,
            (Block::Memory(range), Source::Memory(bytes)) => &bytes[range.clone()],
            (Block::Packed(range) | Block::Memory(range), _) => &self.packed[range.clone()],
        }
    }

    /// Advances to the next block. Returns false at the end.
    fn next_block(&mut self) -> Result<bool, TaskError> {
        if self.read == self.extent.stored {
            self.verify()?;
            // Release the buffers: a merge has many readers, and some end long before others.
            (self.packed, self.unpacked, self.block) = (Vec::new(), Vec::new(), Block::Packed(0..0));
            (self.at, self.value_at, self.value_end, self.end) = (0, 0, 0, 0);
            return Ok(false);
        }
        let left = self.extent.stored - self.read;
        let header = match self.next_header.take() {
            Some(header) => header,
            None => self.read_header(left)?,
        };
        self.block_at = self.read;
        let both = u64::from_le_bytes(header);
        let (stored, raw) = (both & u64::from(u32::MAX), both >> 32);
        let fits = stored <= left - BLOCK_HEADER_BYTES as u64 && raw <= self.extent.raw - self.raw;
        if !fits
            || raw > self.extent.block_max
            || raw == 0
            || stored == 0
            || stored > raw
            || raw / EXPANSION_MAX > stored
        {
            return Err(self.damaged_error("the lengths of a block are invalid"));
        }
        self.block_crc = self.crc;
        self.crc = self.crc.map(|crc| crc32c::crc32c_append(crc, &header));
        self.read += BLOCK_HEADER_BYTES as u64;
        self.load_block(stored as usize)?;
        if stored < raw {
            self.decompress_block(raw as usize)?;
        }
        self.read += stored;
        self.raw += raw;
        (self.at, self.value_at, self.value_end, self.end) = (0, 0, 0, raw as usize);
        Ok(true)
    }

    fn read_header(&mut self, left: u64) -> Result<[u8; BLOCK_HEADER_BYTES], TaskError> {
        let mut header = [0; BLOCK_HEADER_BYTES];
        if left < BLOCK_HEADER_BYTES as u64 {
            return Err(self.damaged_error("it ends within the header of a block"));
        }
        match &self.source {
            Source::Memory(bytes) => {
                header.copy_from_slice(&bytes[self.read as usize..][..BLOCK_HEADER_BYTES]);
            }
            Source::File(file) => {
                let got = file.read_exact_at(&mut header, self.extent.offset + self.read);
                got.map_err(|error| self.read_error(error))?;
            }
        }
        Ok(header)
    }

    /// Loads the block of `stored` bytes at `read` without decompressing it.
    fn load_block(&mut self, stored: usize) -> Result<(), TaskError> {
        let start = self.read as usize;
        match &self.source {
            Source::Memory(bytes) => {
                self.crc = self.crc.map(|crc| crc32c::crc32c_append(crc, &bytes[start..start + stored]));
                self.block = Block::Memory(start..start + stored);
            }
            Source::File(file) => {
                // Also read the next header, so that each block needs one read.
                let left = self.extent.stored - self.read - stored as u64;
                let more = if left >= BLOCK_HEADER_BYTES as u64 { BLOCK_HEADER_BYTES } else { 0 };
                if self.packed.capacity() > LONG_BYTES && stored + more <= LONG_BYTES {
                    self.packed = Vec::new();
                }
                self.packed.resize(stored + more, 0);
                let got = file.read_exact_at(&mut self.packed, self.extent.offset + self.read);
                got.map_err(|error| self.read_error(error))?;
                self.next_header = self.packed[stored..].try_into().ok();
                self.crc = self.crc.map(|crc| crc32c::crc32c_append(crc, &self.packed[..stored]));
                self.block = Block::Packed(0..stored);
            }
        }
        Ok(())
    }

    fn decompress_block(&mut self, raw: usize) -> Result<(), TaskError> {
        let mut unpacked = std::mem::take(&mut self.unpacked);
        unpacked.resize(raw, 0);
        let got = lz4_flex::block::decompress_into(self.block(), &mut unpacked);
        self.unpacked = unpacked;
        self.block = Block::Unpacked;
        match got {
            Ok(length) if length == raw => Ok(()),
            _ => Err(self.damaged_error("a block cannot be decompressed")),
        }
    }

    /// Verifies the run at its end.
    fn verify(&self) -> Result<(), TaskError> {
        if self.crc.is_some_and(|crc| crc != self.extent.crc) {
            return Err(self.damaged_error("its checksum does not match"));
        }
        if self.records != self.extent.records || self.raw != self.extent.raw {
            return Err(self.damaged_error("it does not have the expected number of records"));
        }
        Ok(())
    }

    fn read_error(&self, error: std::io::Error) -> TaskError {
        if error.kind() == ErrorKind::UnexpectedEof {
            return self.damaged_error("the file ends early");
        }
        TaskError::Io { what: format!("read {}", self.name), source: error }
    }

    #[cold]
    fn damaged_error(&self, why: &'static str) -> TaskError {
        let offset = self.extent.offset.saturating_add(self.read);
        TaskError::Damaged { file: self.name.to_string(), offset, why }
    }
}

/// Returns the offset of the key of the record at the front of `block`, and the lengths of key and
/// value. None if the record exceeds the block.
#[inline]
fn record_lengths(block: &[u8]) -> Option<(usize, usize, usize)> {
    let (at, key, value) = match block {
        [key, value, ..] if key | value < 0x80 => (2, *key as usize, *value as usize),
        _ => {
            let (key, first) = varint(block)?;
            let (value, second) = varint(&block[first..])?;
            (first + second, key as usize, value as usize)
        }
    };
    (block.len() - at >= key + value).then_some((at, key, value))
}

/// Decodes a varint. Returns the number and its length in bytes.
fn varint(bytes: &[u8]) -> Option<(u32, usize)> {
    let mut number = 0u64;
    for (at, byte) in bytes.iter().enumerate().take(5) {
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((u32::try_from(number).ok()?, at + 1));
        }
    }
    None
}
