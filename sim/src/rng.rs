//! Random numbers from a seed. The same seed gives the same numbers on every machine and with every
//! version of the dependencies.
//!
//! Results are compared over years and seeds are kept as tests, so the generator must never change.
//! It is `SplitMix64`, with distributions by inversion or Box-Muller. It is not for cryptography.

use mrcore::split_mix;
pub use mrcore::split_mix::mix;

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Creates the stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x5851_f42d_4c95_7f2d))
    }

    /// Creates a separate stream for a purpose. Drawing from one stream does not change another.
    pub fn of(seed: u64, purpose: &str) -> Self {
        let folded = purpose.bytes().fold(seed, |sum, byte| mix(sum ^ u64::from(byte)));
        Self::new(folded)
    }

    /// Creates a separate stream for the item with this number.
    #[must_use]
    pub fn forked(&self, number: u64) -> Self {
        Self(mix(self.0 ^ mix(number)))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        split_mix::next(&mut self.0)
    }

    /// Returns an integer below `limit`; 0 for a limit of 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns a random index of a list with `len` items, which must not be 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns true with probability 1/`times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns a number in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        split_mix::fraction(self.bits())
    }

    /// Returns a number in `low..high`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Returns an exponentially distributed number, such as the time between two events of a
    /// Poisson process.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Returns a number with standard normal distribution.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Returns a log-normal factor with mean 1, for task times.
    pub fn spread(&mut self, sigma: f64) -> f64 {
        if sigma <= 0.0 {
            return 1.0;
        }
        (sigma * self.normal() - sigma * sigma / 2.0).exp()
    }

    /// Puts a list in random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.index(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_and_log_normal_numbers_have_the_expected_mean() {
        let mut rng = Rng::new(1);
        let mean = |mut draw: Box<dyn FnMut() -> f64>| (0..20_000).map(|_| draw()).sum::<f64>() / 20_000.0;
        let mut other = rng.clone();
        assert!((mean(Box::new(move || rng.exponential(30.0))) - 30.0).abs() < 1.0);
        assert!((mean(Box::new(move || other.spread(0.3))) - 1.0).abs() < 0.02);
    }

    #[test]
    fn streams_are_independent_and_reproducible() {
        let (mut one, mut same, mut other) = (Rng::of(7, "a"), Rng::of(7, "a"), Rng::of(7, "b"));
        let first = one.bits();
        assert_eq!(first, same.bits());
        assert_ne!(first, other.bits());
        assert!((0..1000).all(|_| one.below(3) < 3));
    }
}
