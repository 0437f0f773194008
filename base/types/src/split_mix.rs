//! `SplitMix64` (Steele, Lea and Flood): a generator of random numbers from a seed. It gives the
//! same numbers on every machine.
//!
//! Tests contain seeds that have shown a bug, so the numbers for a seed must never change.

/// Returns the next 64 random bits, and advances `state`, whose first value is the seed.
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}

/// Converts 64 random bits to a number in `0.0..1.0`.
pub fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// Mixes the bits of a number (the finaliser of `SplitMix64`): similar inputs give very different
/// outputs.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_equal_those_of_the_reference_implementation() {
        let mut state = 1_234_567;
        assert_eq!(
            [next(&mut state), next(&mut state)],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
        assert!(fraction(u64::MAX) < 1.0 && fraction(0) <= 0.0);
    }
}
