//! Reads one partition of a segment file, from wherever its stored bytes are.

use super::Extent;
use crate::{engine::ScratchFile, error::TaskError};
use bytes::Bytes;
use std::{fs::File, path::PathBuf, sync::Arc};

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
}

impl Run {
    /// Partition `partition` of the segment file at `path`, by the index beside it.
    pub fn of_file(_path: PathBuf, _partition: u32) -> Result<Self, TaskError> {
        todo!()
    }

    /// Stored bytes that have been fetched. `extent.offset` does not matter.
    pub fn in_memory(_name: &str, _bytes: Bytes, _extent: Extent) -> Self {
        todo!()
    }

    /// A reader at the first record's door.
    pub fn open(&self) -> Result<SegmentReader, TaskError> {
        todo!()
    }
}

/// Reads the records of one run; `key` and `value` are slices of the current block.
#[derive(Debug)]
pub struct SegmentReader {}

impl SegmentReader {
    /// Goes to the next record; false at the end, when the run has been verified as a whole.
    #[allow(clippy::should_implement_trait, reason = "lends from itself, which an Iterator cannot")]
    pub fn next(&mut self) -> Result<bool, TaskError> {
        todo!()
    }

    /// The current record's key.
    pub fn key(&self) -> &[u8] {
        todo!()
    }

    /// The current record's value.
    pub fn value(&self) -> &[u8] {
        todo!()
    }

    /// Stored bytes read so far.
    pub fn stored_read(&self) -> u64 {
        todo!()
    }
}
