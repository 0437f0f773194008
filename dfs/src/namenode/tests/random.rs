//! A seeded random number generator for tests.

/// Returns pseudo-random numbers that depend only on the seed.
#[derive(Debug, Clone)]
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Returns a number less than `limit`.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (types::split_mix::next(&mut self.0) % limit as u64) as usize
    }

    /// Returns true with probability 1/`n`.
    pub(super) fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns one of the items.
    pub(super) fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
}
