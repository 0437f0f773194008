//! `SplitMix64` of Steele, Lea and Flood: random numbers from a seed, the same on every machine.
//!
//! Seeds are kept as tests, so the numbers must never change.

/// The next 64 random bits of a stream. `state` is first its seed.
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}

/// A number in `0.0..1.0` from 64 random bits.
pub fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// The finaliser: similar numbers give very different ones.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_reference() {
        let mut state = 1_234_567;
        assert_eq!(
            [next(&mut state), next(&mut state)],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
        assert!(fraction(u64::MAX) < 1.0 && fraction(0) <= 0.0);
    }
}
