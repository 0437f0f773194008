//! The encoding of keys in the slots of the hash table.

use super::slots::{SHORT_KEY_BYTES, Slot};
use crate::merge::prefix;

/// An encoded key with its hash.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PackedKey {
    /// The hash of the key in the table. It differs from the hash that chooses the partition;
    /// otherwise, all keys of a partition would collide in the table.
    pub(super) hash: u64,
    /// A short key, padded with zeros. For a longer key: its first eight bytes, its offset in the
    /// arena (once it is there), and a part of its hash, so that most different keys are recognised
    /// without reading the arena.
    bytes: [u8; SHORT_KEY_BYTES],
    length: u32,
}

impl PackedKey {
    /// Encodes a key. `partition` is set if the same key may be in several partitions.
    #[inline]
    pub(super) fn new(key: &[u8], partition: Option<u32>) -> Self {
        let (first, length) = (prefix(key), key.len());
        let second = match key.last_chunk::<8>() {
            // The last eight bytes, without those that are also among the first eight.
            Some(last) if (9..=SHORT_KEY_BYTES).contains(&length) => {
                u64::from_be_bytes(*last) << (8 * (SHORT_KEY_BYTES - length))
            }
            _ => 0,
        };
        let extra = (length as u64) << 32 ^ u64::from(partition.unwrap_or(0));
        let mut hash = mix(first ^ 0x243f_6a88_85a3_08d3, second ^ extra ^ 0x9e37_79b9_7f4a_7c15);
        let mut rest = second;
        if length > SHORT_KEY_BYTES {
            for eight in key[8..].chunks(8) {
                hash = mix(hash ^ prefix(eight), 0xd6e8_feb8_6659_fd93);
            }
            rest = hash >> 32;
        }
        let bytes = (u128::from(first) << 64 | u128::from(rest)).to_be_bytes();
        Self { hash, bytes, length: length as u32 }
    }

    /// Returns whether the key fits in the slot.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.length as usize <= SHORT_KEY_BYTES
    }

    /// Returns the bytes of a short key.
    #[inline]
    pub(super) fn short_bytes(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }

    /// Returns whether the slot has this key. `key` is the complete key.
    #[inline]
    pub(super) fn matches(&self, key: &[u8], slot: &Slot, arena: &[u8]) -> bool {
        if self.length != slot.key_length {
            return false;
        }
        if self.is_short() {
            return self.bytes == slot.key;
        }
        self.bytes[..8] == slot.key[..8] && self.bytes[12..] == slot.key[12..] && slot.key(arena) == key
    }

    /// Creates a slot with this key and without a value. `key` is the complete key.
    pub(super) fn new_slot(&self, key: &[u8], partition: u32, no_value: u8, arena: &mut Vec<u8>) -> Slot {
        let mut slot = Slot::new(self.bytes, self.length, partition, no_value);
        slot.move_key(key, arena);
        slot
    }
}

impl Slot {
    #[inline]
    pub(super) fn key<'a>(&'a self, arena: &'a [u8]) -> &'a [u8] {
        let length = self.key_length as usize;
        if length <= SHORT_KEY_BYTES {
            return &self.key[..length];
        }
        let [.., a, b, c, d, _, _, _, _] = self.key;
        &arena[u32::from_be_bytes([a, b, c, d]) as usize..][..length]
    }

    /// Copies the key to an arena if it is too long for the slot.
    pub(super) fn move_key(&mut self, key: &[u8], arena: &mut Vec<u8>) {
        if key.len() > SHORT_KEY_BYTES {
            self.key[8..12].copy_from_slice(&(arena.len() as u32).to_be_bytes());
            arena.extend_from_slice(key);
        }
    }
}

#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slot_returns_its_key_and_matches_no_other_key(
            key in prop::collection::vec(0u8..3, 0..40),
            other in prop::collection::vec(0u8..3, 0..40),
            before in 0usize..5,
            partition in 0u32..1 << 24,
        ) {
            let mut arena = vec![7; before];
            let packed = PackedKey::new(&key, None);
            let slot = packed.new_slot(&key, partition, 9, &mut arena);
            prop_assert_eq!(slot.key(&arena), &key[..]);
            prop_assert_eq!((slot.partition(), slot.value_length), (partition, 9));
            prop_assert!(packed.matches(&key, &slot, &arena));
            prop_assert_eq!(PackedKey::new(&other, None).matches(&other, &slot, &arena), other == key);
            prop_assert_eq!(PackedKey::new(slot.key(&arena), None).hash, packed.hash);
            if packed.is_short() {
                prop_assert_eq!((packed.short_bytes(), arena.len()), (&key[..], before));
            }
        }
    }
}
