//! Where the partitions of a segment file lie.
//!
//! On disk: `FMTX`, version u32, count u32, then for each partition offset, stored length, raw length, records and
//! longest block as u64 and a CRC-32C as u32; last the CRC-32C of all that. Little endian.

use super::LONG_BYTES;
use crate::error::TaskError;
use bytes::{Buf, BufMut};
use daemon::safe_open;
use std::{
    io::Read,
    path::{Path, PathBuf},
};

const MAGIC: &[u8; 4] = b"FMTX";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 12;
const EXTENT_BYTES: usize = 44;
const CRC_BYTES: usize = 4;
/// Longer than the index of any job that the JobTracker takes.
const BYTES_MAX: u64 = 64 << 20;
/// Bytes of one partition of one map output: 8 TiB. The sums over a million maps still fit into a u64.
const EXTENT_BYTES_MAX: u64 = 8 << 40;

/// One partition's stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    /// Of its first byte in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub stored: u64,
    /// Bytes of its records.
    pub raw: u64,
    /// How many records.
    pub records: u64,
    /// Raw bytes of its longest block: what a reader must have room for.
    pub block_max: u64,
    /// CRC-32C of the stored bytes.
    pub crc: u32,
}

impl Extent {
    /// Memory that a reader of it needs: for its longest block as it is stored and, unless that is too long to have
    /// been compressed, unpacked.
    pub fn room(&self) -> u64 {
        self.block_max.saturating_add(self.block_max.min(LONG_BYTES as u64))
    }

    /// Whether a map output can be so long: then a u64 holds the sums over all maps.
    pub fn is_plausible(&self) -> bool {
        [self.stored, self.raw, self.records, self.block_max].iter().all(|number| *number <= EXTENT_BYTES_MAX)
    }
}

/// The partitions of one segment file, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Index {
    /// One for each partition.
    pub extents: Vec<Extent>,
}

impl Index {
    /// `PATH.index`.
    pub fn path_of(segment: &Path) -> PathBuf {
        let mut name = segment.as_os_str().to_owned();
        name.push(".index");
        name.into()
    }

    /// Reads and verifies the index beside `segment`, also against that file's length.
    pub fn read(segment: &Path) -> Result<Self, TaskError> {
        let path = Self::path_of(segment);
        let reading = |path: &Path| TaskError::io(format!("read {}", path.display()));
        let damaged = |file: &Path, offset, why| {
            Err(TaskError::Damaged { file: file.display().to_string(), offset, why })
        };
        let mut bytes = Vec::new();
        // A tracker reads what a task has made.
        safe_open::open(&path)
            .and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes))
            .map_err(reading(&path))?;
        if bytes.len() as u64 > BYTES_MAX {
            return damaged(&path, BYTES_MAX, "it is longer than any index");
        }
        let index = Self::decode(&bytes, &path)?;
        let length =
            safe_open::open(segment).and_then(|file| file.metadata()).map_err(reading(segment))?.len();
        if length < index.stored() {
            return damaged(segment, length, "it is shorter than its index says");
        }
        Ok(index)
    }

    /// Writes it beside `segment`.
    pub fn write(&self, segment: &Path) -> Result<(), TaskError> {
        let path = Self::path_of(segment);
        std::fs::write(&path, self.encode()).map_err(TaskError::io(format!("write {}", path.display())))
    }

    /// Its bytes.
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

    /// From bytes; `file` is named if they are damaged.
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
            return damaged(4, "its version is not known here");
        }
        let count = rest.get_u32_le() as usize;
        if rest.len() % EXTENT_BYTES != 0 || rest.len() / EXTENT_BYTES != count {
            return damaged(8, "its length does not fit its count");
        }
        if crc.get_u32_le() != crc32c::crc32c(body) {
            return damaged(body.len(), "its checksum does not match");
        }
        let mut extents = Vec::with_capacity(count);
        let mut end = 0;
        for at in 0..count {
            let [offset, stored, raw, records, block_max] = std::array::from_fn(|_| rest.get_u64_le());
            if offset != end || offset.checked_add(stored).is_none() {
                return damaged(HEADER_BYTES + at * EXTENT_BYTES, "partitions do not follow each other");
            }
            end = offset + stored;
            let extent = Extent { offset, stored, raw, records, block_max, crc: rest.get_u32_le() };
            if !extent.is_plausible() {
                return damaged(HEADER_BYTES + at * EXTENT_BYTES, "a partition's numbers make no sense");
            }
            extents.push(extent);
        }
        Ok(Self { extents })
    }

    /// All records.
    pub fn records(&self) -> u64 {
        self.extents.iter().map(|extent| extent.records).sum()
    }

    /// All stored bytes.
    pub fn stored(&self) -> u64 {
        self.extents.iter().map(|extent| extent.stored).sum()
    }
}
