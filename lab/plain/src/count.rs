//! Word count with two threads: each counts one half of the memory-mapped text.

use crate::{input::map, table::WordCounts};
use anyhow::{Context, Result};
use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    thread,
};

/// Writes each word of `file` with its count, `WORD TAB COUNT`, sorted by word. Words are separated
/// by ASCII white space.
pub fn count(file: &Path, out: &Path) -> Result<()> {
    let text = map(file)?;
    let words = count_bytes(&text).into_sorted();
    let failed = || format!("cannot write {}", out.display());
    let mut out = BufWriter::new(File::create(out).with_context(failed)?);
    for (word, count) in words {
        out.write_all(&word).and_then(|()| writeln!(out, "\t{count}")).with_context(failed)?;
    }
    out.flush().with_context(failed)
}

fn count_bytes(text: &[u8]) -> WordCounts {
    let middle = text.len() / 2;
    let middle = middle + text[middle..].iter().take_while(|byte| !byte.is_ascii_whitespace()).count();
    let (first, second) = text.split_at(middle);
    thread::scope(|scope| {
        let second = scope.spawn(|| count_part(second));
        let mut table = count_part(first);
        table.merge(second.join().expect("counting does not panic"));
        table
    })
}

fn count_part(text: &[u8]) -> WordCounts {
    let mut table = WordCounts::new();
    let mut rest = text;
    loop {
        let Some(start) = rest.iter().position(|byte| !byte.is_ascii_whitespace()) else { return table };
        rest = &rest[start..];
        let length = word_length(rest);
        table.count(rest, length);
        rest = &rest[length..];
    }
}

/// Returns the number of bytes before the next white space. Examines eight bytes at a time.
#[inline]
fn word_length(text: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = ONES << 7;
    let mut length = 0;
    while let Some(eight) = text[length..].first_chunk::<8>() {
        let bytes = u64::from_le_bytes(*eight);
        // The lowest set mark is the first byte below '!'. Marks above it may be false.
        let marks = bytes.wrapping_sub(ONES * u64::from(b'!')) & !bytes & HIGHS;
        if marks == 0 {
            length += 8;
            continue;
        }
        length += marks.trailing_zeros() as usize / 8;
        if text[length].is_ascii_whitespace() {
            return length;
        }
        length += 1;
    }
    let rest = &text[length..];
    length + rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::collections::BTreeMap;

    fn naive_counts(text: &[u8]) -> Vec<(Vec<u8>, u64)> {
        let mut counts = BTreeMap::new();
        for word in text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
            *counts.entry(word.to_vec()).or_insert(0) += 1;
        }
        counts.into_iter().collect()
    }

    #[test]
    fn counts_match_a_naive_implementation() {
        let mut random = Random(11);
        // Few different bytes, so that white space, control bytes and repeated words all occur.
        let alphabet = b"ab\x00\x0b\x1f\x20\x80\xff \n\t\r\x0c";
        for length in (0..200).chain([10_000, 100_000]) {
            let spaces = alphabet.len() as u32;
            let text: Vec<u8> = (0..length).map(|_| alphabet[random.below(spaces) as usize]).collect();
            assert_eq!(count_bytes(&text).into_sorted(), naive_counts(&text), "{text:?}");
            let letters: Vec<u8> = (0..length).map(|_| b"abc \x01"[random.below(5) as usize]).collect();
            assert_eq!(count_bytes(&letters).into_sorted(), naive_counts(&letters));
        }
    }

    #[test]
    fn counts_of_a_file_are_written_as_sorted_lines() {
        let folder = tempfile::tempdir().unwrap();
        let (file, out) = (folder.path().join("in"), folder.path().join("out"));
        std::fs::write(&file, "to be or\nnot to  be\r\n").unwrap();
        count(&file, &out).unwrap();
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "be\t2\nnot\t1\nor\t1\nto\t2\n");
    }
}
