//! The slots of the hash table: open addressing with linear probing; a slot is half a cache line.
//!
//! If the table is larger than the cache, nearly every access waits for memory. So a slot can be
//! prefetched ([`Slots::prefetch`]), which other hash tables do not offer.

use super::memory;

/// Maximum length of a key that is stored in its slot.
pub(super) const SHORT_KEY_BYTES: usize = 16;
/// A key and its values.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(super) struct Slot {
    /// Encoded by [`super::key::PackedKey`].
    pub(super) key: [u8; SHORT_KEY_BYTES],
    /// The value if it is short; otherwise the offsets of the first and last value of the list, as
    /// two u32.
    pub(super) payload: [u8; 8],
    pub(super) key_length: u32,
    /// The partition, below [`PARTITIONS_MAX`].
    partition: [u8; 3],
    /// Length of the value in `payload`, or a marker.
    pub(super) value_length: u8,
}

/// Limit of the number of partitions, because a slot has three bytes for the partition.
pub(super) const PARTITIONS_MAX: u32 = 1 << 24;
/// `key_length` of an empty slot. No key has this length.
const NO_KEY: u32 = u32::MAX;
const EMPTY_SLOT: Slot = Slot {
    key: [0; SHORT_KEY_BYTES],
    payload: [0; 8],
    key_length: NO_KEY,
    partition: [0; 3],
    value_length: 0,
};
/// Number of slots of the smallest table.
const SLOTS_MIN: usize = 16;

impl Slot {
    /// Creates a slot without a value.
    pub(super) fn new(key: [u8; SHORT_KEY_BYTES], key_length: u32, partition: u32, value_length: u8) -> Self {
        let [a, b, c, _] = partition.to_le_bytes();
        Self { key, payload: [0; 8], key_length, partition: [a, b, c], value_length }
    }

    #[inline]
    pub(super) fn partition(&self) -> u32 {
        let [a, b, c] = self.partition;
        u32::from_le_bytes([a, b, c, 0])
    }
}

/// The table of slots.
pub(super) struct Slots {
    /// Empty, or a power of two long.
    slots: Vec<Slot>,
    used: usize,
    max: usize,
}

impl Slots {
    /// Creates a table of at most `max` slots, a power of two.
    pub(super) fn new(max: usize) -> Self {
        Self { slots: Vec::new(), used: 0, max: max.max(SLOTS_MIN) }
    }

    /// Returns the number of slots in use.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Returns the number of slots that may still be added.
    #[inline]
    pub(super) fn free(&self) -> usize {
        (self.max / 4 * 3).saturating_sub(self.used)
    }

    /// Prefetches the slot for a hash.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        if let Some(slot) = self.slots.get(hash as usize & self.slots.len().wrapping_sub(1)) {
            memory::prefetch(slot);
        }
    }

    /// Finds the slot of a key.
    #[inline]
    pub(super) fn find(&mut self, hash: u64, same: impl Fn(&Slot) -> bool) -> Option<&mut Slot> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut at = hash as usize & mask;
        loop {
            let slot = &self.slots[at];
            if same(slot) {
                return Some(&mut self.slots[at]);
            }
            if slot.key_length == NO_KEY {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds the slot of a new key. There must be a free slot.
    pub(super) fn insert(&mut self, hash: u64, slot: Slot, hash_of: impl Fn(&Slot) -> u64) {
        if self.used >= self.slots.len() / 2 && self.slots.len() < self.max {
            let larger = (2 * self.slots.len()).max(SLOTS_MIN);
            let old = std::mem::replace(&mut self.slots, memory::vec_of_copies(EMPTY_SLOT, larger));
            for slot in old.into_iter().filter(|slot| slot.key_length != NO_KEY) {
                self.store(hash_of(&slot), slot);
            }
        }
        self.store(hash, slot);
        self.used += 1;
    }

    /// Stores a slot in the first empty place for its hash.
    fn store(&mut self, hash: u64, slot: Slot) {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while self.slots[at].key_length != NO_KEY {
            at = (at + 1) & mask;
        }
        self.slots[at] = slot;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.key_length != NO_KEY)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut().filter(|slot| slot.key_length != NO_KEY)
    }

    /// Removes all slots for which `keep` returns false.
    pub(super) fn retain(&mut self, keep: impl Fn(&Slot) -> bool, hash_of: impl Fn(&Slot) -> u64) {
        if self.iter().all(&keep) {
            return;
        }
        let kept: Vec<Slot> = self.iter().filter(|slot| keep(slot)).copied().collect();
        self.clear();
        self.used = kept.len();
        for slot in kept {
            self.store(hash_of(&slot), slot);
        }
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill(EMPTY_SLOT);
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(key: u64) -> Slot {
        let mut bytes = [0; SHORT_KEY_BYTES];
        bytes[..8].copy_from_slice(&key.to_le_bytes());
        Slot::new(bytes, 8, 70_000 + key as u32, 0)
    }

    fn number(slot: &Slot) -> u64 {
        u64::from(slot.partition()) - 70_000
    }

    #[test]
    fn colliding_keys_are_found() {
        // Use few distinct hashes, so that most keys collide.
        let hash = |key: u64| key % 7;
        let hash_of = |slot: &Slot| hash(number(slot));
        let mut slots = Slots::new(64);
        let mut keys = 0;
        while slots.free() > 0 {
            slots.insert(hash(keys), slot(keys), hash_of);
            keys += 1;
        }
        assert_eq!((keys, slots.len()), (48, 48));
        let mut found =
            |key: u64| slots.find(hash(key), |slot| slot.key_length == 8 && number(slot) == key).is_some();
        assert!((0..48).all(&mut found) && !(48..60).any(&mut found));
        slots.retain(|slot| number(slot).is_multiple_of(3), hash_of);
        let mut found =
            |key: u64| slots.find(hash(key), |slot| slot.key_length == 8 && number(slot) == key).is_some();
        assert!((0..48).all(|key| found(key) == (key % 3 == 0)));
        assert_eq!((slots.len(), slots.free(), slots.iter().count()), (16, 32, 16));
        slots.clear();
        assert_eq!((slots.len(), slots.iter().count()), (0, 0));
    }
}
