//! Reads one partition of a segment file, from wherever its stored bytes are.

use super::{BLOCK_HEADER_BYTES, Extent, Index, LONG_BYTES};
use crate::{engine::ScratchFile, error::TaskError};
use bytes::Bytes;
use std::{
    fs::File,
    io::ErrorKind,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// lz4 makes no block more than this many times longer.
const EXPANSION_MAX: u64 = 256;

/// Where a partition's stored bytes are.
#[derive(Debug, Clone)]
pub enum Stored {
    /// In memory: just these bytes.
    Memory(Bytes),
    /// In a file, opened when it is read.
    File(PathBuf),
    /// In a scratch file, which lives as long as this does.
    Scratch(ScratchFile),
    /// In an open file.
    Open(Arc<File>),
}

/// One sorted run: a partition's stored bytes and what is known of them. Opens to a reader any number of times.
#[derive(Debug, Clone)]
pub struct Run {
    /// The bytes. For files `extent.offset` says where in it; memory holds just the run.
    pub stored: Stored,
    /// Lengths, record count, checksum.
    pub extent: Extent,
    /// Named in errors.
    pub name: Arc<str>,
    /// Its checksum has been found right, so that readers of memory need not look again.
    pub verified: bool,
    /// Where to begin, if not at the first record: what comes before has been read by somebody else.
    pub start: Option<Place>,
    /// What goes on where it ends: in order, none of them with more of its own.
    pub more: Vec<Run>,
}

impl Run {
    /// Partition `partition` of the segment file at `path`, by the index beside it.
    pub fn of_file(path: PathBuf, partition: u32) -> Result<Self, TaskError> {
        let name: Arc<str> = path.display().to_string().into();
        let index = Index::read(&path)?;
        let Some(extent) = index.extents.get(partition as usize).copied() else {
            let file = Index::path_of(&path).display().to_string();
            return Err(TaskError::Damaged {
                file,
                offset: 8,
                why: "it has fewer partitions than asked for",
            });
        };
        Ok(Self::new(Stored::File(path), extent, name))
    }

    /// Of bytes that nobody has looked at yet.
    pub fn new(stored: Stored, extent: Extent, name: Arc<str>) -> Self {
        Self { stored, extent, name, verified: false, start: None, more: Vec::new() }
    }

    /// Stored bytes that have been fetched. `extent.offset` does not matter.
    pub fn in_memory(name: &str, bytes: Bytes, extent: Extent) -> Self {
        let extent = Extent { offset: 0, ..extent };
        Self::new(Stored::Memory(bytes), extent, name.into())
    }

    /// It, and what goes on where it ends.
    pub fn parts(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.more)
    }

    /// One run of both: the other's records are to come after its own.
    #[must_use]
    pub fn followed_by(mut self, mut other: Self) -> Self {
        let more = std::mem::take(&mut other.more);
        self.more.push(other);
        self.more.extend(more);
        self
    }

    /// Stored bytes that are still to be read, those of the block at hand included.
    pub fn left(&self) -> u64 {
        let left =
            |run: &Self| run.extent.stored - run.start.map_or(0, |start| start.block.min(run.extent.stored));
        self.parts().map(left).sum()
    }

    /// A reader at the door of the first record, or of the one to start at. It ends where the first part does.
    pub fn open(&self) -> Result<SegmentReader, TaskError> {
        match self.start {
            Some(start) => self.open_at(start),
            None => self.open_whole(),
        }
    }

    fn open_whole(&self) -> Result<SegmentReader, TaskError> {
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
        // What has gone through a disk is looked at whenever it is read.
        let trusted = self.verified && matches!(source, Source::Memory(_));
        let reader = SegmentReader {
            source,
            name: self.name.clone(),
            extent: self.extent,
            read: 0,
            raw: 0,
            records: 0,
            crc: (!trusted).then_some(0),
            before: (0, 0),
            block_crc: None,
            ahead: None,
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
                Err(reader.damaged("its length is not the one it should have"))
            }
            // Before memory is taken for what is not there.
            Source::File(file) => {
                let length = file.metadata().map_err(|error| reader.unreadable(error))?.len();
                let end = self.extent.offset.checked_add(self.extent.stored);
                if end.is_none_or(|end| end > length) {
                    return Err(reader.damaged("the file ends early"));
                }
                Ok(reader)
            }
            Source::Memory(_) => Ok(reader),
        }
    }

    /// A reader at the door of the record that starts at `place`, as a reader of the same bytes has told it. What comes
    /// before is not read; the place knows its checksum, so that damage in the rest is seen at the end as ever.
    pub fn open_at(&self, place: Place) -> Result<SegmentReader, TaskError> {
        let mut reader = self.open_whole()?;
        reader.crc = reader.crc.map(|_| place.crc);
        if place.block > self.extent.stored || place.raw > self.extent.raw {
            return Err(reader.damaged("it is too short for the place to continue from"));
        }
        (reader.read, reader.raw) = (place.block, place.raw);
        reader.before = (place.block, place.crc);
        if !reader.next_block()? || place.at >= reader.end as u64 {
            return Err(reader.damaged("no record starts at the place to continue from"));
        }
        (reader.value_end, reader.records) = (place.at as usize, place.records);
        Ok(reader)
    }
}

/// Where a record starts in a run, and what comes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// Of its block's header: stored bytes of the run before it.
    pub block: u64,
    /// Raw bytes of the run before that block.
    pub raw: u64,
    /// Raw bytes of the block before the record.
    pub at: u64,
    /// Records of the run before it.
    pub records: u64,
    /// CRC-32C of the run's stored bytes before that block.
    pub crc: u32,
}

#[derive(Debug)]
enum Source {
    Memory(Bytes),
    File(Arc<File>),
}

/// Where the current block's raw bytes are.
#[derive(Debug)]
enum Block {
    /// In the source, which is memory.
    Memory(Range<usize>),
    /// In `packed`, as they came from the file.
    Packed(Range<usize>),
    /// In `unpacked`.
    Unpacked,
}

/// Reads the records of one run; `key` and `value` are slices of the current block.
#[derive(Debug)]
pub struct SegmentReader {
    source: Source,
    name: Arc<str>,
    extent: Extent,
    /// Stored bytes consumed, headers included.
    read: u64,
    raw: u64,
    records: u64,
    /// Of what has been read; None if it need not be known.
    crc: Option<u32>,
    /// Where it began to read, and the checksum of what comes before, which may not be there.
    before: (u64, u32),
    /// Of what has been read before the current block.
    block_crc: Option<u32>,
    /// The next block's header, read along with the block before it.
    ahead: Option<[u8; BLOCK_HEADER_BYTES]>,
    packed: Vec<u8>,
    unpacked: Vec<u8>,
    /// Of the current block's header.
    block_at: u64,
    block: Block,
    /// Of the current record in the block.
    start: usize,
    /// Of the current key in the block.
    at: usize,
    /// Of the block.
    end: usize,
    value_at: usize,
    value_end: usize,
}

impl SegmentReader {
    /// Goes to the next record; false at the end, when the run has been verified as a whole.
    #[allow(clippy::should_implement_trait, reason = "lends from itself, which an Iterator cannot")]
    #[inline]
    pub fn next(&mut self) -> Result<bool, TaskError> {
        if self.value_end == self.end && !self.next_block()? {
            return Ok(false);
        }
        self.start = self.value_end;
        let block = &self.block()[self.start..];
        let Some((key_at, key, value)) = lengths(block) else {
            return Err(self.damaged("a record does not fit its block"));
        };
        self.at = self.start + key_at;
        self.value_at = self.at + key;
        self.value_end = self.value_at + value;
        self.records += 1;
        Ok(true)
    }

    /// The current record's key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.block()[self.at..self.value_at]
    }

    /// The current record's value.
    #[inline]
    pub fn value(&self) -> &[u8] {
        &self.block()[self.value_at..self.value_end]
    }

    /// Where the current record starts: [`Run::open_at`] continues from there, with that record.
    pub fn place(&self) -> Place {
        let (at, records) = (self.start as u64, self.records.saturating_sub(1));
        let crc = match (self.block_crc, &self.source) {
            (Some(crc), _) => crc,
            (None, Source::Memory(bytes)) => {
                let (from, crc) = self.before;
                crc32c::crc32c_append(crc, &bytes[from as usize..self.block_at.max(from) as usize])
            }
            // Before the first block, and at the end.
            (None, Source::File(_)) => 0,
        };
        Place { block: self.block_at, raw: self.raw - self.end as u64, at, records, crc }
    }

    /// Bytes of memory that it holds.
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

    /// Goes to the next block; false at the end.
    fn next_block(&mut self) -> Result<bool, TaskError> {
        if self.read == self.extent.stored {
            self.check()?;
            // A merge has many readers, and some are at their end long before others.
            (self.packed, self.unpacked, self.block) = (Vec::new(), Vec::new(), Block::Packed(0..0));
            (self.at, self.value_at, self.value_end, self.end) = (0, 0, 0, 0);
            return Ok(false);
        }
        let left = self.extent.stored - self.read;
        let header = match self.ahead.take() {
            Some(header) => header,
            None => self.header(left)?,
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
            return Err(self.damaged("a block's lengths make no sense"));
        }
        self.block_crc = self.crc;
        self.crc = self.crc.map(|crc| crc32c::crc32c_append(crc, &header));
        self.read += BLOCK_HEADER_BYTES as u64;
        self.load(stored as usize)?;
        if stored < raw {
            self.unpack(raw as usize)?;
        }
        self.read += stored;
        self.raw += raw;
        (self.at, self.value_at, self.value_end, self.end) = (0, 0, 0, raw as usize);
        Ok(true)
    }

    fn header(&mut self, left: u64) -> Result<[u8; BLOCK_HEADER_BYTES], TaskError> {
        let mut header = [0; BLOCK_HEADER_BYTES];
        if left < BLOCK_HEADER_BYTES as u64 {
            return Err(self.damaged("it ends within a block's header"));
        }
        match &self.source {
            Source::Memory(bytes) => {
                header.copy_from_slice(&bytes[self.read as usize..][..BLOCK_HEADER_BYTES]);
            }
            Source::File(file) => {
                let got = file.read_exact_at(&mut header, self.extent.offset + self.read);
                got.map_err(|error| self.unreadable(error))?;
            }
        }
        Ok(header)
    }

    /// Makes the block of `stored` bytes at `read` current, as it is.
    fn load(&mut self, stored: usize) -> Result<(), TaskError> {
        let start = self.read as usize;
        match &self.source {
            Source::Memory(bytes) => {
                self.crc = self.crc.map(|crc| crc32c::crc32c_append(crc, &bytes[start..start + stored]));
                self.block = Block::Memory(start..start + stored);
            }
            Source::File(file) => {
                // The next header comes along: one read a block.
                let left = self.extent.stored - self.read - stored as u64;
                let more = if left >= BLOCK_HEADER_BYTES as u64 { BLOCK_HEADER_BYTES } else { 0 };
                if self.packed.capacity() > LONG_BYTES && stored + more <= LONG_BYTES {
                    self.packed = Vec::new();
                }
                self.packed.resize(stored + more, 0);
                let got = file.read_exact_at(&mut self.packed, self.extent.offset + self.read);
                got.map_err(|error| self.unreadable(error))?;
                self.ahead = self.packed[stored..].try_into().ok();
                self.crc = self.crc.map(|crc| crc32c::crc32c_append(crc, &self.packed[..stored]));
                self.block = Block::Packed(0..stored);
            }
        }
        Ok(())
    }

    fn unpack(&mut self, raw: usize) -> Result<(), TaskError> {
        let mut unpacked = std::mem::take(&mut self.unpacked);
        unpacked.resize(raw, 0);
        let got = lz4_flex::block::decompress_into(self.block(), &mut unpacked);
        self.unpacked = unpacked;
        self.block = Block::Unpacked;
        match got {
            Ok(length) if length == raw => Ok(()),
            _ => Err(self.damaged("a block does not decompress")),
        }
    }

    /// At the end: is it what was written?
    fn check(&self) -> Result<(), TaskError> {
        if self.crc.is_some_and(|crc| crc != self.extent.crc) {
            return Err(self.damaged("its checksum does not match"));
        }
        if self.records != self.extent.records || self.raw != self.extent.raw {
            return Err(self.damaged("it does not hold as many records as it should"));
        }
        Ok(())
    }

    fn unreadable(&self, error: std::io::Error) -> TaskError {
        if error.kind() == ErrorKind::UnexpectedEof {
            return self.damaged("the file ends early");
        }
        TaskError::Io { what: format!("read {}", self.name), source: error }
    }

    #[cold]
    fn damaged(&self, why: &'static str) -> TaskError {
        let offset = self.extent.offset.saturating_add(self.read);
        TaskError::Damaged { file: self.name.to_string(), offset, why }
    }
}

/// Where the key of the record at the front of `block` begins, and its two lengths; None if it does not fit.
#[inline]
fn lengths(block: &[u8]) -> Option<(usize, usize, usize)> {
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

/// A number and how many bytes it takes.
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
