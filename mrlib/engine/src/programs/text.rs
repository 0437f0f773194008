//! Common programs over lines: wordcount, grep, sort.

use super::sum::{ONE, SumCombiner, SumReducer};
use mrlib_api::{Conf, Context, Counter, Emit, IdentityReducer, Job, Mapper, TaskError};

/// Returns the words of a line, separated by ASCII white space.
#[inline]
pub(super) fn words(line: &[u8]) -> Words<'_> {
    Words { line, at: 0 }
}

/// Iterates over the words of a line.
pub(super) struct Words<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        while self.line.get(self.at)?.is_ascii_whitespace() {
            self.at += 1;
        }
        let start = self.at;
        self.at = end_of_word(self.line, start);
        Some(&self.line[start..self.at])
    }
}

/// Returns the end of the word that begins at `start`. Checks eight bytes at a time, because no
/// white space character is above a blank.
#[inline]
fn end_of_word(line: &[u8], start: usize) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const ABOVE: u64 = (b' ' as u64 + 1) * ONES;
    const HIGH: u64 = 0x80 * ONES;
    let mut at = start;
    while let Some(eight) = line.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let eight = u64::from_le_bytes(*eight);
        // Sets the high bit of each byte that is not above a blank. The bits after the first may be
        // wrong, but only the first is used.
        let low = eight.wrapping_sub(ABOVE) & !eight & HIGH;
        if low == 0 {
            at += 8;
            continue;
        }
        at += low.trailing_zeros() as usize / 8;
        if line[at].is_ascii_whitespace() {
            return at;
        }
        at += 1;
    }
    let rest = line[at..].iter().position(u8::is_ascii_whitespace);
    rest.map_or(line.len(), |length| at + length)
}

struct WordCount;

impl Mapper for WordCount {
    fn divisible() -> bool {
        true
    }

    fn map(
        &mut self,
        _key: &[u8],
        line: &[u8],
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        words(line).try_for_each(|word| out.emit(word, &ONE))
    }
}

pub(super) fn word_count(_conf: &Conf) -> Result<Job, TaskError> {
    Ok(Job::map(|_| Ok(WordCount)).combine(|_| Ok(SumCombiner)).reduce(|_| Ok(SumReducer)))
}

/// Emits the lines that contain a text, or those that do not.
struct Grep {
    pattern: Vec<u8>,
    invert: bool,
    lines_matched: Option<Counter>,
}

impl Mapper for Grep {
    fn divisible() -> bool {
        true
    }

    fn map(
        &mut self,
        _key: &[u8],
        line: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        let found = memchr::memmem::find(line, &self.pattern).is_some();
        if found == self.invert {
            return Ok(());
        }
        let matched = *self.lines_matched.get_or_insert_with(|| context.counter("LINES_MATCHED"));
        context.add(matched, 1);
        out.emit(line, b"")
    }
}

pub(super) fn grep(conf: &Conf) -> Result<Job, TaskError> {
    let pattern =
        conf.get("grep.pattern").ok_or("grep needs a text to search for: --conf grep.pattern=TEXT")?;
    if pattern.is_empty() {
        return Err("grep.pattern is empty: it must be a text to search for".into());
    }
    let pattern = pattern.as_bytes().to_vec();
    let invert = conf.parse("grep.invert", false)?;
    Ok(Job::map(move |_| Ok(Grep { pattern: pattern.clone(), invert, lines_matched: None })))
}

/// Emits each line as a key, so that the engine sorts them.
struct LineToKey;

impl Mapper for LineToKey {
    fn divisible() -> bool {
        true
    }

    fn map(
        &mut self,
        _key: &[u8],
        line: &[u8],
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        out.emit(line, b"")
    }
}

pub(super) fn identity(_conf: &Conf) -> Result<Job, TaskError> {
    Ok(Job::map(|_| Ok(LineToKey)))
}

pub(super) fn sort(_conf: &Conf) -> Result<Job, TaskError> {
    Ok(Job::map(|_| Ok(LineToKey)).reduce(|_| Ok(IdentityReducer)).totally_ordered())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_are_separated_by_white_space(
            line in prop::collection::vec(
                prop_oneof![Just(b' '), Just(b'a'), Just(b'\t'), Just(0), Just(0x0b), Just(0x1f), Just(b'!'), any::<u8>()],
                0..60,
            ),
        ) {
            let plain = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            prop_assert_eq!(words(&line).collect::<Vec<_>>(), plain.collect::<Vec<_>>());
        }
    }
}
