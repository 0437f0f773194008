//! Writes a segment file.

use super::Index;
use crate::error::TaskError;
use std::path::Path;

/// Takes records in order and writes them. Dropped before `finish`, it leaves a file that nothing refers to.
#[derive(Debug)]
pub struct SegmentWriter {}

impl SegmentWriter {
    /// A new file (one that is there is replaced) of so many partitions; `compress` where it pays.
    pub fn create(_path: &Path, _partitions: u32, _compress: bool) -> Result<Self, TaskError> {
        todo!()
    }

    /// Adds a record. Partitions come in order, and records within them as they shall be read.
    pub fn append(&mut self, _partition: u32, _key: &[u8], _value: &[u8]) -> Result<(), TaskError> {
        todo!()
    }

    /// Writes what is left. The index is the caller's to keep or to `write`.
    pub fn finish(self) -> Result<Index, TaskError> {
        todo!()
    }
}
