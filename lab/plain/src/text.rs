//! Generates text for word count: word frequencies follow Zipf's law, frequent words are short,
//! lines have about 80 bytes.
//!
//! Unlike real text it has no capitals and no punctuation, so the number of different words is
//! fixed.

use crate::random::Random;
use anyhow::{Context, Result};
use std::{
    collections::HashSet,
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

/// Number of different words.
pub(crate) const WORDS: usize = 100_000;
/// A line ends at the first word that ends beyond this column.
const LINE_END_COLUMN: usize = 76;
/// Letters with approximately their frequency in English.
const LETTERS: &[u8; 64] = b"eeeeeeeetttttaaaaaoooooiiiinnnnsssshhhrrrrddllllcuummwfggypbbvkj";

/// Writes `bytes` bytes of text. The last word may be truncated.
pub fn make(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let mut random = Random(seed);
    let words = vocabulary(&mut random);
    let table = AliasTable::new((0..words.len()).map(|rank| 1.0 / (rank as f64 + 2.7)));
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).with_context(failed)?);
    let mut line = Vec::with_capacity(2 * LINE_END_COLUMN);
    let mut left = bytes;
    while left > 0 {
        line.clear();
        while line.len() < LINE_END_COLUMN {
            line.extend_from_slice(&words[table.draw(&mut random)]);
            line.push(b' ');
        }
        let end = line.len() - 1;
        line[end] = b'\n';
        line.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        file.write_all(&line).with_context(failed)?;
        left -= line.len() as u64;
    }
    file.flush().with_context(failed)
}

/// Returns words by rank: the hundred most frequent have one to five letters, the next two to
/// eight, the others two to 14. The average word of the text then has between five and six letters,
/// as in English.
fn vocabulary(random: &mut Random) -> Vec<Vec<u8>> {
    let mut seen = HashSet::new();
    let mut words = Vec::with_capacity(WORDS);
    while words.len() < WORDS {
        let length = match words.len() {
            0..100 => 1 + random.below(3) + random.below(3),
            100..1000 => 2 + random.below(4) + random.below(4),
            _ => 2 + random.below(4) + random.below(4) + random.below(4) + random.below(4),
        };
        let word: Vec<u8> = (0..length).map(|_| LETTERS[random.below(64) as usize]).collect();
        if seen.insert(word.clone()) {
            words.push(word);
        }
    }
    words
}

/// Draws indices with given weights in constant time (Walker's alias method).
struct AliasTable {
    /// For each index: the probability of keeping the index, and the index to use otherwise.
    shares: Vec<(f64, u32)>,
}

impl AliasTable {
    fn new(weights: impl Iterator<Item = f64>) -> Self {
        let weights: Vec<f64> = weights.collect();
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        let mut shares: Vec<(f64, u32)> = weights.iter().map(|weight| (weight / mean, 0)).collect();
        let (mut poor, mut rich): (Vec<usize>, Vec<usize>) =
            (0..shares.len()).partition(|at| shares[*at].0 < 1.0);
        while let (Some(low), Some(&high)) = (poor.pop(), rich.last()) {
            shares[low].1 = high as u32;
            shares[high].0 -= 1.0 - shares[low].0;
            if shares[high].0 < 1.0 {
                poor.extend(rich.pop());
            }
        }
        // Indices that remain because of rounding errors keep their full probability.
        for at in poor.into_iter().chain(rich) {
            shares[at].0 = 1.0;
        }
        Self { shares }
    }

    fn draw(&self, random: &mut Random) -> usize {
        let at = random.below(self.shares.len() as u32) as usize;
        let (own, other) = self.shares[at];
        if random.fraction() < own { at } else { other as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_weights() {
        let table = AliasTable::new([1.0, 2.0, 5.0].into_iter());
        let mut random = Random(3);
        let mut drawn = [0_u32; 3];
        for _ in 0..80_000 {
            drawn[table.draw(&mut random)] += 1;
        }
        for (count, expected) in drawn.into_iter().zip([10_000_u32, 20_000, 50_000]) {
            assert!(count.abs_diff(expected) < 600, "{drawn:?}");
        }
    }

    #[test]
    fn text_is_reproducible() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
        make(&one, 300_000, 5).unwrap();
        make(&other, 300_000, 5).unwrap();
        let text = std::fs::read_to_string(&one).unwrap();
        assert_eq!(text.len(), 300_000);
        assert_eq!(text, std::fs::read_to_string(&other).unwrap());
        let lines: Vec<&str> = text.lines().collect();
        let whole = &lines[..lines.len() - 1];
        assert!(whole.iter().all(|line| (LINE_END_COLUMN - 1..LINE_END_COLUMN + 19).contains(&line.len())));
        let words: HashSet<&str> = text.split_ascii_whitespace().collect();
        assert!(words.len() > 5000, "{}", words.len());
    }
}
