//! Counts words in a hash table with open addressing, whose slots contain short words inline.
//!
//! The key of a slot is the word, zero padding, and the length of the word in the last byte.
//! Different words therefore have different keys, and no key is all zeros. Longer words are rare
//! and are counted in a `HashMap`.

use std::collections::HashMap;

/// Length of the longest word that a slot can contain, in bytes.
const INLINE_BYTES_MAX: usize = 15;
const INITIAL_SLOTS: usize = 1 << 16;

#[derive(Clone, Copy, Default)]
struct Slot {
    key: [u64; 2],
    count: u64,
}

pub(crate) struct WordCounts {
    slots: Vec<Slot>,
    used: usize,
    long: HashMap<Vec<u8>, u64>,
}

impl WordCounts {
    pub(crate) fn new() -> Self {
        Self { slots: vec![Slot::default(); INITIAL_SLOTS], used: 0, long: HashMap::new() }
    }

    /// Counts the word in the first `length` bytes of `text`. More text may follow the word.
    #[inline]
    pub(crate) fn count(&mut self, text: &[u8], length: usize) {
        if length > INLINE_BYTES_MAX {
            self.add_long(&text[..length], 1);
            return;
        }
        let bytes = if let Some(whole) = text.first_chunk::<16>() {
            u128::from_le_bytes(*whole)
        } else {
            let mut padded = [0; 16];
            padded[..length].copy_from_slice(&text[..length]);
            u128::from_le_bytes(padded)
        };
        let word = bytes & !(u128::MAX << (8 * length));
        let key = [word as u64, (word >> 64) as u64 | (length as u64) << 56];
        self.add(key, 1);
    }

    #[inline]
    fn add(&mut self, key: [u64; 2], count: u64) {
        let mask = self.slots.len() - 1;
        let mut at = hash(key) & mask;
        loop {
            let slot = &mut self.slots[at];
            if slot.key == key {
                slot.count += count;
                return;
            }
            if slot.count == 0 {
                *slot = Slot { key, count };
                self.used += 1;
                if self.used * 2 > self.slots.len() {
                    self.grow();
                }
                return;
            }
            at = (at + 1) & mask;
        }
    }

    fn add_long(&mut self, word: &[u8], count: u64) {
        match self.long.get_mut(word) {
            Some(kept) => *kept += count,
            None => drop(self.long.insert(word.to_vec(), count)),
        }
    }

    fn grow(&mut self) {
        let bigger = vec![Slot::default(); 2 * self.slots.len()];
        let slots = std::mem::replace(&mut self.slots, bigger);
        self.used = 0;
        for slot in slots.into_iter().filter(|slot| slot.count > 0) {
            self.add(slot.key, slot.count);
        }
    }

    /// Adds the counts of another table.
    pub(crate) fn merge(&mut self, other: Self) {
        for slot in other.slots.into_iter().filter(|slot| slot.count > 0) {
            self.add(slot.key, slot.count);
        }
        for (word, count) in other.long {
            self.add_long(&word, count);
        }
    }

    /// Returns every word once with its count, sorted by bytes.
    pub(crate) fn into_sorted(self) -> Vec<(Vec<u8>, u64)> {
        let short = self.slots.into_iter().filter(|slot| slot.count > 0).map(|slot| {
            let [low, high] = slot.key.map(u64::to_le_bytes);
            let length = usize::from(high[7]);
            ([low, high].concat()[..length].to_vec(), slot.count)
        });
        let mut words: Vec<(Vec<u8>, u64)> = short.chain(self.long).collect();
        words.sort_unstable();
        words
    }
}

#[inline]
fn hash([low, high]: [u64; 2]) -> usize {
    let wide = u128::from(low ^ 0x9e37_79b9_7f4a_7c15) * u128::from(high ^ 0xd6e8_feb8_6659_fd93);
    (wide as u64 ^ (wide >> 64) as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_words_are_counted_separately() {
        let mut table = WordCounts::new();
        let long = "a word of more than fifteen bytes".as_bytes();
        for word in [b"a" as &[u8], b"a\0", b"a\0b", b"exactly15 bytes", b"sixteen bytes ab", long, b"a"] {
            table.count(word, word.len());
        }
        // The same word, followed by other text.
        table.count(b"a and much more text", 1);
        let expected: [(&[u8], u64); 6] = [
            (b"a", 3),
            (b"a\0", 1),
            (b"a\0b", 1),
            (long, 1),
            (b"exactly15 bytes", 1),
            (b"sixteen bytes ab", 1),
        ];
        let counted = table.into_sorted();
        let counted: Vec<(&[u8], u64)> = counted.iter().map(|(word, count)| (&word[..], *count)).collect();
        assert_eq!(counted, expected);
    }

    #[test]
    fn table_grows_and_merges() {
        let (mut one, mut other) = (WordCounts::new(), WordCounts::new());
        for number in 0..200_000_u32 {
            let word = number.to_string();
            one.count(word.as_bytes(), word.len());
            if number % 2 == 0 {
                other.count(word.as_bytes(), word.len());
            }
        }
        one.merge(other);
        let words = one.into_sorted();
        assert_eq!(words.len(), 200_000);
        assert!(words.iter().all(|(word, count)| *count == 1 + u64::from(word.last().unwrap() % 2 == 0)));
    }
}
