//! The index of a segment file: where its partitions are.
//!
//! On disk: `FMTX`, version u32, count u32; then for each partition offset, stored length, raw
//! length, records and longest block as u64 and a CRC-32C as u32; last the CRC-32C of all bytes
//! before it. Numbers are little endian.

use super::LONG_BYTES;
use bytes::{Buf, BufMut};
use daemon::safe_open;
use mrlib_api::TaskError;
use std::{
    io::Read,
    path::{Path, PathBuf},
};

const MAGIC: &[u8; 4] = b"FMTX";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 12;
const EXTENT_BYTES: usize = 44;
const CRC_BYTES: usize = 4;
/// Maximum size of an index: more than any job needs.
const INDEX_BYTES_MAX: u64 = 64 << 20;
/// Maximum size of one partition of one map output, 8 TiB. Sums over a million maps still fit in a
/// u64.
const EXTENT_BYTES_MAX: u64 = 8 << 40;

/// Where one partition is in a segment file, with its sizes and checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    /// Offset in the file of the first byte of the partition.
    pub offset: u64,
    /// Size of the partition in the file, in bytes.
    pub stored: u64,
    /// Size of the records before compression, in bytes.
    pub raw: u64,
    /// Number of records.
    pub records: u64,
    /// Raw bytes of the longest block of the partition, for which a reader needs memory.
    pub block_max: u64,
    /// CRC-32C of the stored bytes.
    pub crc: u32,
}

impl Extent {
    /// Returns the memory that a reader needs: the longest block as stored and, unless it is too
    /// long to be compressed, decompressed.
    pub fn reader_bytes(&self) -> u64 {
        self.block_max.saturating_add(self.block_max.min(LONG_BYTES as u64))
    }

    /// Returns whether a map output can have these sizes. If so, sums over all maps fit in a u64.
    pub fn is_plausible(&self) -> bool {
        [self.stored, self.raw, self.records, self.block_max].iter().all(|number| *number <= EXTENT_BYTES_MAX)
    }
}

/// The partitions of one segment file, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Index {
    /// The extent of each partition.
    pub extents: Vec<Extent>,
}

impl Index {
    /// Returns the path of the index of a segment file: `PATH.index`.
    pub fn path_of(segment: &Path) -> PathBuf {
        let mut name = segment.as_os_str().to_owned();
        name.push(".index");
        name.into()
    }

    /// Reads and verifies the index next to `segment`, and compares it with the length of that
    /// file.
    pub fn read(segment: &Path) -> Result<Self, TaskError> {
        let path = Self::path_of(segment);
        let reading = |path: &Path| TaskError::io(format!("read {}", path.display()));
        let damaged = |file: &Path, offset, why| {
            Err(TaskError::Damaged { file: file.display().to_string(), offset, why })
        };
        let mut bytes = Vec::new();
        // A tracker reads files that a task has written, so links are not followed.
        safe_open::open(&path)
            .and_then(|file| file.take(INDEX_BYTES_MAX + 1).read_to_end(&mut bytes))
            .map_err(reading(&path))?;
        if bytes.len() as u64 > INDEX_BYTES_MAX {
            return damaged(&path, INDEX_BYTES_MAX, "it is too long for an index");
        }
        let index = Self::decode(&bytes, &path)?;
        let length =
            safe_open::open(segment).and_then(|file| file.metadata()).map_err(reading(segment))?.len();
        if length < index.stored() {
            return damaged(segment, length, "it is shorter than its index requires");
        }
        Ok(index)
    }

    /// Writes the index next to `segment`.
    pub fn write(&self, segment: &Path) -> Result<(), TaskError> {
        let path = Self::path_of(segment);
        std::fs::write(&path, self.encode()).map_err(TaskError::io(format!("write {}", path.display())))
    }

    /// Encodes the index.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.extents.len() * EXTENT_BYTES + CRC_BYTES);
        out.put_slice(MAGIC);
        out.put_u32_le(VERSION);
        out.put_u32_le(self.extents.len() as u32);
        for extent in &self.extents {
            for number in [extent.offset, extent.stored, extent.raw, extent.records, extent.block_max] {
                out.put_u64_le(number);
            }
            out.put_u32_le(extent.crc);
        }
        out.put_u32_le(crc32c::crc32c(&out));
        out
    }

    /// Decodes an index. `file` is used in error messages.
    pub fn decode(bytes: &[u8], file: &Path) -> Result<Self, TaskError> {
        let damaged = |offset: usize, why| {
            Err(TaskError::Damaged { file: file.display().to_string(), offset: offset as u64, why })
        };
        if bytes.len() < HEADER_BYTES + CRC_BYTES || &bytes[..4] != MAGIC {
            return damaged(0, "it is not an index");
        }
        let (body, mut crc) = bytes.split_at(bytes.len() - CRC_BYTES);
        let mut rest = &body[MAGIC.len()..];
        if rest.get_u32_le() != VERSION {
            return damaged(4, "its version is not supported");
        }
        let count = rest.get_u32_le() as usize;
        if rest.len() % EXTENT_BYTES != 0 || rest.len() / EXTENT_BYTES != count {
            return damaged(8, "its length does not match its number of partitions");
        }
        if crc.get_u32_le() != crc32c::crc32c(body) {
            return damaged(body.len(), "its checksum does not match");
        }
        let mut extents = Vec::with_capacity(count);
        let mut end = 0;
        for at in 0..count {
            let [offset, stored, raw, records, block_max] = std::array::from_fn(|_| rest.get_u64_le());
            if offset != end || offset.checked_add(stored).is_none() {
                return damaged(HEADER_BYTES + at * EXTENT_BYTES, "partitions are not adjacent");
            }
            end = offset + stored;
            let extent = Extent { offset, stored, raw, records, block_max, crc: rest.get_u32_le() };
            if !extent.is_plausible() {
                return damaged(
                    HEADER_BYTES + at * EXTENT_BYTES,
                    "the size or record count of a partition exceeds the maximum",
                );
            }
            extents.push(extent);
        }
        Ok(Self { extents })
    }

    /// Returns the number of records in all partitions.
    pub fn records(&self) -> u64 {
        self.extents.iter().map(|extent| extent.records).sum()
    }

    /// Returns the number of stored bytes in all partitions.
    pub fn stored(&self) -> u64 {
        self.extents.iter().map(|extent| extent.stored).sum()
    }
}
