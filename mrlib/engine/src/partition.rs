//! Chooses the reduce for a pair: by hash, by ranges of keys, or by a partitioner of the job.

use crate::merge::SortOrder;
use bytes::{Buf, BufMut};
use mrlib_api::{KeyOrder, Partitioner, TaskError};
use std::cmp::Ordering;

/// Partitions by a hash of the key. The hash is part of the specification: FNV-1a with 64 bits,
/// then mixed (`h ^ h >> 32` times `0x9e3779b97f4a7c15`), because the upper bits of FNV-1a hardly
/// differ for short keys. The upper half is then scaled to the number of partitions.
#[derive(Debug, Clone, Copy, Default)]
pub struct HashPartitioner;

impl Partitioner for HashPartitioner {
    #[inline]
    fn partition(&self, key: &[u8], _value: &[u8], partitions: u32) -> u32 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in key {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        hash = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (((hash >> 32) * u64::from(partitions)) >> 32) as u32
    }
}

/// Partitions by ranges of keys, so that all parts together are sorted.
#[derive(Debug, Clone)]
pub struct RangePartitioner {
    /// The first key of each partition except the first, in order.
    splits: Vec<Vec<u8>>,
    /// The prefixes of these keys as numbers, which are enough to place nearly every key.
    prefixes: Vec<u64>,
    order: KeyOrder,
}

impl RangePartitioner {
    /// Decodes a file of split keys (see [`encode_splits`]).
    pub fn decode(mut bytes: &[u8], order: KeyOrder) -> Result<Self, TaskError> {
        let total = bytes.len();
        let mut splits: Vec<Vec<u8>> = Vec::new();
        while !bytes.is_empty() {
            let at = total - bytes.len();
            let damaged =
                |why| TaskError::Damaged { file: "file of split keys".into(), offset: at as u64, why };
            let length = bytes.try_get_u32_le().map_err(|_| damaged("it ends within a length"))? as usize;
            let key = bytes.get(..length).ok_or_else(|| damaged("it ends within a key"))?;
            if splits.last().is_some_and(|last| order.compare(last, key) == Ordering::Greater) {
                return Err(damaged("keys are not in order"));
            }
            splits.push(key.to_vec());
            bytes.advance(length);
        }
        let prefix = SortOrder { keys: order, values: false };
        let prefixes = splits.iter().map(|split| prefix.prefix(split)).collect();
        Ok(Self { splits, prefixes, order })
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> u32 {
        self.splits.len() as u32 + 1
    }
}

impl Partitioner for RangePartitioner {
    #[inline]
    fn partition(&self, key: &[u8], _value: &[u8], _partitions: u32) -> u32 {
        let prefix = SortOrder { keys: self.order, values: false }.prefix(key);
        let below = self.prefixes.partition_point(|split| *split < prefix);
        let same = self.prefixes[below..].iter().take_while(|split| **split == prefix).count();
        let not_above = |split: &Vec<u8>| self.order.compare(split, key) != Ordering::Greater;
        (below + self.splits[below..below + same].partition_point(not_above)) as u32
    }
}

/// Chooses the `partitions - 1` split keys that divide a sample evenly. Returns the contents of a
/// file for [`RangePartitioner::decode`]: for each key its length as u32 little endian, and the
/// key.
pub fn encode_splits(mut sample: Vec<Vec<u8>>, partitions: u32, order: KeyOrder) -> Vec<u8> {
    sample.sort_unstable_by(|a, b| order.compare(a, b));
    let mut out = Vec::new();
    for cut in 1..partitions as usize {
        // Without a sample all split keys are empty, and the last partition gets all keys.
        let key = sample.get(cut * sample.len() / partitions as usize).map_or(&[][..], Vec::as_slice);
        out.put_u32_le(key.len() as u32);
        out.put_slice(key);
    }
    out
}

/// How a map partitions its output.
pub(crate) enum Partitioning {
    Hash,
    Ranges(RangePartitioner),
    Custom(Box<dyn Partitioner>),
}

impl Partitioning {
    /// Returns whether equal keys always get the same partition, so that one call per key is
    /// enough.
    pub(crate) fn depends_only_on_key(&self) -> bool {
        !matches!(self, Self::Custom(_))
    }

    /// Returns the partition of a pair. Fails if the partitioner of the job returns an invalid one.
    #[inline]
    pub(crate) fn choose(&self, key: &[u8], value: &[u8], partitions: u32) -> Result<u32, TaskError> {
        let chosen = match self {
            Self::Hash => return Ok(HashPartitioner.partition(key, value, partitions)),
            Self::Ranges(ranges) => ranges.partition(key, value, partitions),
            Self::Custom(own) => own.partition(key, value, partitions),
        };
        if chosen < partitions {
            return Ok(chosen);
        }
        let text = format!(
            "the partitioner chose partition {chosen}, but the job has {partitions} partitions, numbered from 0"
        );
        Err(TaskError::Program(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hash_partitioner_follows_its_specification() {
        // FNV-1a 64 of "a" is af63dc4c8601ec8c, of "" cbf29ce484222325.
        for (key, fnv) in [(&b"a"[..], 0xaf63_dc4c_8601_ec8c_u64), (b"", 0xcbf2_9ce4_8422_2325)] {
            let mixed = (fnv ^ fnv >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            assert_eq!(HashPartitioner.partition(key, b"", 1 << 16), (mixed >> 48) as u32);
        }
        let spread: Vec<_> =
            (0..7000u32).map(|n| HashPartitioner.partition(&n.to_be_bytes(), b"", 7)).collect();
        for partition in 0..7 {
            let share = spread.iter().filter(|chosen| **chosen == partition).count();
            assert!((500..1500).contains(&share), "{partition}: {share}");
        }
    }

    proptest! {
        #[test]
        fn partitions_follow_the_order_of_keys(
            sample in prop::collection::vec(prop::collection::vec(0u8..4, 0..4), 0..30),
            a in prop::collection::vec(0u8..4, 0..4),
            b in prop::collection::vec(0u8..4, 0..4),
            partitions in 1u32..9,
            reverse: bool,
        ) {
            let order = if reverse { KeyOrder::Reverse } else { KeyOrder::Bytes };
            let ranges = RangePartitioner::decode(&encode_splits(sample, partitions, order), order).unwrap();
            prop_assert_eq!(ranges.partitions(), partitions);
            let [left, right] = [&a, &b].map(|key| ranges.partition(key, &[], partitions));
            prop_assert!(left < partitions && right < partitions);
            prop_assert!(left == right || left.cmp(&right) == order.compare(&a, &b));
        }

        #[test]
        fn malformed_split_keys_do_not_panic(bytes in prop::collection::vec(0u8..6, 0..20)) {
            let _ = RangePartitioner::decode(&bytes, KeyOrder::Bytes);
        }
    }

    #[test]
    fn even_sample_gives_partitions_of_equal_size() {
        let sample = (0..1000u32).rev().map(|n| n.to_be_bytes().to_vec()).collect();
        let splits = encode_splits(sample, 4, KeyOrder::Bytes);
        let ranges = RangePartitioner::decode(&splits, KeyOrder::Bytes).unwrap();
        let share = |of| (0..1000u32).filter(|n| ranges.partition(&n.to_be_bytes(), b"", 4) == of).count();
        assert_eq!([0, 1, 2, 3].map(share), [250; 4]);
        assert!(RangePartitioner::decode(&splits[..5], KeyOrder::Bytes).is_err());
        assert!(RangePartitioner::decode(&splits, KeyOrder::Reverse).is_err());
    }
}
