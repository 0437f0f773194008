//! Which reduce gets a pair.

use crate::{api::Partitioner, error::TaskError};

/// By a hash of the key. The hash is part of the specification: FNV-1a of 64 bits, its upper half scaled.
#[derive(Debug, Clone, Copy, Default)]
pub struct HashPartitioner;

impl Partitioner for HashPartitioner {
    fn partition(&self, _key: &[u8], _value: &[u8], _partitions: u32) -> u32 {
        todo!()
    }
}

/// By ranges of keys, so that parts in order are sorted as a whole.
#[derive(Debug, Clone)]
pub struct RangePartitioner {}

impl RangePartitioner {
    /// From the contents of a file of split keys (see `encode_splits`).
    pub fn decode(_bytes: &[u8], _order: crate::KeyOrder) -> Result<Self, TaskError> {
        todo!()
    }
}

impl Partitioner for RangePartitioner {
    fn partition(&self, _key: &[u8], _value: &[u8], _partitions: u32) -> u32 {
        todo!()
    }
}

/// Chooses `partitions - 1` split keys out of a sample, as the contents of a file for [`RangePartitioner::decode`].
pub fn encode_splits(_sample: Vec<Vec<u8>>, _partitions: u32, _order: crate::KeyOrder) -> Vec<u8> {
    todo!()
}
