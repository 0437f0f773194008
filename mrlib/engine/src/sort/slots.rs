//! The slots of the hash table: open addressing with linear probing; a slot is half a cache line.
//!
//! If the table is larger than the cache, nearly every access waits for memory. So a slot can be
//! prefetched ([`Slots::prefetch`]), which other hash tables do not offer.

use super::memory;

/// Maximum length of a key that is stored in the slot.
pub(super) const SHORT_KEY: usize = 16;
/// A key and its values.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(super) struct Slot {
    /// Encoded by [`super::key::Packed`].
    pub(super) key: [u8; SHORT_KEY],
    /// The value if it is short; otherwise the first and last offset of the list, as two u32.
    pub(super) payload: [u8; 8],
    pub(super) key_length: u32,
    /// Below [`PARTITIONS_MAX`].
    partition: [u8; 3],
    /// Length of the value in `payload`, or a marker.
    pub(super) value_length: u8,
}

/// Limit of the three bytes for the partition.
pub(super) const PARTITIONS_MAX: u32 = 1 << 24;
/// `key_length` of an empty slot. No key has this length.
const NO_KEY: u32 = u32::MAX;
const EMPTY: Slot =
    Slot { key: [0; SHORT_KEY], payload: [0; 8], key_length: NO_KEY, partition: [0; 3], value_length: 0 };
const FIRST: usize = 16;

impl Slot {
    /// A slot without a value.
    pub(super) fn new(key: [u8; SHORT_KEY], key_length: u32, partition: u32, value_length: u8) -> Self {
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
    all: Vec<Slot>,
    used: usize,
    max: usize,
}

impl Slots {
    /// At most `max` slots, a power of two.
    pub(super) fn new(max: usize) -> Self {
        Self { all: Vec::new(), used: 0, max: max.max(FIRST) }
    }

    /// Number of slots in use.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Number of slots that may still be added.
    #[inline]
    pub(super) fn free(&self) -> usize {
        (self.max / 4 * 3).saturating_sub(self.used)
    }

    /// Prefetches the slot for a hash.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        if let Some(slot) = self.all.get(hash as usize & self.all.len().wrapping_sub(1)) {
            memory::prefetch(slot);
        }
    }

    /// Finds the slot of a key.
    #[inline]
    pub(super) fn find(&mut self, hash: u64, same: impl Fn(&Slot) -> bool) -> Option<&mut Slot> {
        let mask = self.all.len().checked_sub(1)?;
        let mut at = hash as usize & mask;
        loop {
            let slot = &self.all[at];
            if same(slot) {
                return Some(&mut self.all[at]);
            }
            if slot.key_length == NO_KEY {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds the slot of a new key. There must be a free slot.
    pub(super) fn insert(&mut self, hash: u64, slot: Slot, hash_of: impl Fn(&Slot) -> u64) {
        if self.used >= self.all.len() / 2 && self.all.len() < self.max {
            let larger = (2 * self.all.len()).max(FIRST);
            let old = std::mem::replace(&mut self.all, memory::filled(EMPTY, larger));
            for slot in old.into_iter().filter(|slot| slot.key_length != NO_KEY) {
                self.place(hash_of(&slot), slot);
            }
        }
        self.place(hash, slot);
        self.used += 1;
    }

    fn place(&mut self, hash: u64, slot: Slot) {
        let mask = self.all.len() - 1;
        let mut at = hash as usize & mask;
        while self.all[at].key_length != NO_KEY {
            at = (at + 1) & mask;
        }
        self.all[at] = slot;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.all.iter().filter(|slot| slot.key_length != NO_KEY)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.all.iter_mut().filter(|slot| slot.key_length != NO_KEY)
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
            self.place(hash_of(&slot), slot);
        }
    }

    pub(super) fn clear(&mut self) {
        self.all.fill(EMPTY);
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(key: u64) -> Slot {
        let mut bytes = [0; SHORT_KEY];
        bytes[..8].copy_from_slice(&key.to_le_bytes());
        Slot::new(bytes, 8, 70_000 + key as u32, 0)
    }

    fn number(slot: &Slot) -> u64 {
        u64::from(slot.partition()) - 70_000
    }

    #[test]
    fn colliding_keys_are_found() {
        // Few distinct hashes, so that most keys collide.
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
