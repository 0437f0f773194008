//! Where the partitions of a segment file lie.

use crate::error::TaskError;
use std::path::{Path, PathBuf};

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
    /// CRC-32C of the stored bytes.
    pub crc: u32,
}

/// The partitions of one segment file, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Index {
    /// One for each partition.
    pub extents: Vec<Extent>,
}

impl Index {
    /// `PATH.index`.
    pub fn path_of(_segment: &Path) -> PathBuf {
        todo!()
    }

    /// Reads and verifies the index beside `segment`.
    pub fn read(_segment: &Path) -> Result<Self, TaskError> {
        todo!()
    }

    /// Writes it beside `segment`.
    pub fn write(&self, _segment: &Path) -> Result<(), TaskError> {
        todo!()
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }

    /// From bytes; `file` is named if they are damaged.
    pub fn decode(_bytes: &[u8], _file: &Path) -> Result<Self, TaskError> {
        todo!()
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
