//! Keys as the slots of the hash table hold them.

use super::slots::Slot;
use crate::merge::prefix;

/// The longest key that a slot holds whole.
pub(super) const SHORT_KEY: usize = 16;

/// A key on its way to its slot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Packed {
    /// For the table only: partitions are chosen by another hash, else the keys of one would crowd here.
    pub(super) hash: u64,
    /// A short key, then zeros. Of a longer one the first eight bytes, then, once it is in the arena, where, then a
    /// part of its hash: others are told apart without a look at the arena.
    bytes: [u8; SHORT_KEY],
    length: u32,
}

impl Packed {
    /// The partition counts where a key may be in several.
    #[inline]
    pub(super) fn new(key: &[u8], partition: Option<u32>) -> Self {
        let (first, length) = (prefix(key), key.len());
        let second = match key.last_chunk::<8>() {
            // The last eight bytes, without those that are among the first.
            Some(last) if (9..=SHORT_KEY).contains(&length) => {
                u64::from_be_bytes(*last) << (8 * (SHORT_KEY - length))
            }
            _ => 0,
        };
        let extra = (length as u64) << 32 ^ u64::from(partition.unwrap_or(0));
        let mut hash = mix(first ^ 0x243f_6a88_85a3_08d3, second ^ extra ^ 0x9e37_79b9_7f4a_7c15);
        let mut rest = second;
        if length > SHORT_KEY {
            for eight in key[8..].chunks(8) {
                hash = mix(hash ^ prefix(eight), 0xd6e8_feb8_6659_fd93);
            }
            rest = hash >> 32;
        }
        let bytes = (u128::from(first) << 64 | u128::from(rest)).to_be_bytes();
        Self { hash, bytes, length: length as u32 }
    }

    /// Whether the slot holds all of it.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.length as usize <= SHORT_KEY
    }

    /// The bytes of a short key.
    #[inline]
    pub(super) fn short(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }

    /// Whether this is the slot's; `key` is all of it.
    #[inline]
    pub(super) fn is(&self, key: &[u8], slot: &Slot, arena: &[u8]) -> bool {
        if self.length != slot.key_length {
            return false;
        }
        if self.is_short() {
            return self.bytes == slot.key;
        }
        self.bytes[..8] == slot.key[..8] && self.bytes[12..] == slot.key[12..] && slot.key(arena) == key
    }

    /// A slot for it, without a value; `key` is all of it.
    pub(super) fn slot(&self, key: &[u8], partition: u32, nothing: u8, arena: &mut Vec<u8>) -> Slot {
        let mut slot = Slot::new(self.bytes, self.length, partition, nothing);
        slot.move_key(key, arena);
        slot
    }
}

impl Slot {
    #[inline]
    pub(super) fn key<'a>(&'a self, arena: &'a [u8]) -> &'a [u8] {
        let length = self.key_length as usize;
        if length <= SHORT_KEY {
            return &self.key[..length];
        }
        let [.., a, b, c, d, _, _, _, _] = self.key;
        &arena[u32::from_be_bytes([a, b, c, d]) as usize..][..length]
    }

    /// Puts its key into an arena, if that is where it belongs.
    pub(super) fn move_key(&mut self, key: &[u8], arena: &mut Vec<u8>) {
        if key.len() > SHORT_KEY {
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
        fn a_slot_gives_its_key_back_and_knows_it(
            key in prop::collection::vec(0u8..3, 0..40),
            other in prop::collection::vec(0u8..3, 0..40),
            before in 0usize..5,
            partition in 0u32..1 << 24,
        ) {
            let mut arena = vec![7; before];
            let packed = Packed::new(&key, None);
            let slot = packed.slot(&key, partition, 9, &mut arena);
            prop_assert_eq!(slot.key(&arena), &key[..]);
            prop_assert_eq!((slot.partition(), slot.value_length), (partition, 9));
            prop_assert!(packed.is(&key, &slot, &arena));
            prop_assert_eq!(Packed::new(&other, None).is(&other, &slot, &arena), other == key);
            prop_assert_eq!(Packed::new(slot.key(&arena), None).hash, packed.hash);
            if packed.is_short() {
                prop_assert_eq!((packed.short(), arena.len()), (&key[..], before));
            }
        }
    }
}
