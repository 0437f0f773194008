//! Seeded mutations of valid inputs: flipped bits, cuts, splices, changed lengths.

use types::split_mix;

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        split_mix::next(&mut self.0)
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.next() % bound as u64) as usize }
    }

    /// Returns a range within `0..length`.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        // Most ranges are short, some reach to the end.
        let most = if self.below(4) == 0 { length - start } else { (length - start).min(16) };
        start..start + self.below(most + 1)
    }
}

/// Edge cases for numbers in binary formats, such as lengths and counts.
const EDGE_NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x00ff_ffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Edge cases for text formats.
const EDGE_TEXTS: [&[u8]; 16] = [
    b"",
    b"\"",
    b"0",
    b"-1",
    b"1e308",
    b"1e14",
    b"NaN",
    b"18446744073709551615",
    b"9223372036854775807",
    b"99999999999999999999",
    b"\xc3\xa4\xf0\x9f\x99\x82",
    b"\xff\xfe",
    b"\0",
    b"\n",
    b"\t",
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
];

/// Returns one of `seeds` with one to four mutations.
pub(crate) fn mutated(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut input = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(4) {
        mutate(random, &mut input, seeds);
    }
    input
}

/// Applies one random mutation.
fn mutate(random: &mut Random, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    let length = input.len();
    match random.below(11) {
        0 | 1 if length > 0 => input[random.below(length)] ^= 1 << random.below(8),
        2 if length > 0 => input[random.below(length)] = random.next() as u8,
        3 => input.truncate(random.below(length + 1)),
        4 => {
            let range = random.range(length);
            input.drain(range);
        }
        5 => {
            let range = random.range(length);
            let copied = input[range].to_vec();
            let at = random.below(length + 1);
            input.splice(at..at, copied);
        }
        6 => {
            let at = random.below(length + 1);
            let junk: Vec<u8> = (0..random.below(20)).map(|_| random.next() as u8).collect();
            input.splice(at..at, junk);
        }
        7 => {
            // Joins the start of this input and the end of another.
            let other = &seeds[random.below(seeds.len())];
            input.truncate(random.below(length + 1));
            input.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
        8 | 9 => edit_number(random, input),
        _ => edit_text(random, input),
    }
}

/// Changes a little-endian number to one of [`EDGE_NUMBERS`], to a slightly different value, or to
/// the length of the input.
fn edit_number(random: &mut Random, input: &mut [u8]) {
    let width = [1, 2, 4, 8][random.below(4)];
    if input.len() < width {
        return;
    }
    let at = random.below(input.len() - width + 1);
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(&input[at..at + width]);
    let step = random.below(4) as u64 + 1;
    let number = match random.below(4) {
        0 => u64::from_le_bytes(bytes).wrapping_add(step),
        1 => u64::from_le_bytes(bytes).wrapping_sub(step),
        2 => input.len() as u64,
        _ => EDGE_NUMBERS[random.below(EDGE_NUMBERS.len())],
    };
    input[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
}

/// Replaces a sequence of digits, or any short range, by one of [`EDGE_TEXTS`].
fn edit_text(random: &mut Random, input: &mut Vec<u8>) {
    let word = EDGE_TEXTS[random.below(EDGE_TEXTS.len())];
    let from = random.below(input.len() + 1);
    let digit = input[from..].iter().position(u8::is_ascii_digit).filter(|_| random.below(3) > 0);
    let range = match digit {
        Some(digit) => {
            let start = from + digit;
            let digits = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            start..start + digits
        }
        None => random.range(input.len()),
    };
    input.splice(range, word.iter().copied());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_mutations_and_most_inputs_differ() {
        let seeds = vec![b"some 17 bytes long".to_vec(), vec![0; 40]];
        let all = |seed| {
            let mut random = Random::new(seed);
            (0..1000).map(|_| mutated(&mut random, &seeds)).collect::<Vec<_>>()
        };
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
        let distinct: std::collections::BTreeSet<_> = all(1).into_iter().collect();
        assert!(distinct.len() > 700, "{} of 1000", distinct.len());
    }
}
