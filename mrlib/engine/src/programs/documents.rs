//! Programs about words in files, from the benchmark suites of the scheduling papers.
//!
//! The name of a file is the last component of its path. Words are separated by white space, as in
//! wordcount.

use super::{
    sum::{ONE, SumCombiner, SumReducer, decode_count},
    text::words,
};
use mrlib_api::{Conf, Context, Emit, InputFormat, Job, Mapper, Partitioner, Reducer, TaskError, Values};

fn file_name(context: &Context) -> Vec<u8> {
    context.source().rsplit('/').next().unwrap_or_default().as_bytes().to_vec()
}

/// Separates words, and precedes the name of a file. Words cannot contain a space, but file names
/// can.
const SPACE: u8 = b' ';
/// Ends the name of a file. No name contains this byte, so all keys of a file sort together.
const END_OF_NAME: u8 = 0;

struct WordToFile;

impl Mapper for WordToFile {
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
        let file = file_name(context);
        words(line).try_for_each(|word| out.emit(word, &file))
    }
}

/// Emits equal adjacent values only once. As a reducer with sorted values it emits each
/// distinct value once. As a combiner, whose values are not sorted, it removes some duplicates.
pub(super) struct Distinct;

impl Reducer for Distinct {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        let (mut last, mut first) = (Vec::new(), true);
        while let Some(value) = values.next()? {
            if first || last != value {
                out.emit(key, value)?;
                value.clone_into(&mut last);
                first = false;
            }
        }
        Ok(())
    }
}

/// Emits the distinct values of a key on one line.
struct ListDistinct;

impl Reducer for ListDistinct {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        let mut list: Vec<u8> = Vec::new();
        let mut last = 0;
        while let Some(value) = values.next()? {
            if list.is_empty() || list[last..] != *value {
                if !list.is_empty() {
                    list.push(SPACE);
                }
                last = list.len();
                list.extend_from_slice(value);
            }
        }
        out.emit(key, &list)
    }
}

pub(super) fn inverted_index(_conf: &Conf) -> Result<Job, TaskError> {
    Ok(Job::map(|_| Ok(WordToFile)).combine(|_| Ok(Distinct)).reduce(|_| Ok(ListDistinct)).sorted_values())
}

/// Emits `FILE NUL WORD` with the count 1. Counts are summed first; the reducer then groups its
/// sorted keys by file.
struct FileAndWord;

impl Mapper for FileAndWord {
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
        let mut key = file_name(context);
        key.push(END_OF_NAME);
        let stem = key.len();
        for word in words(line) {
            key.truncate(stem);
            key.extend_from_slice(word);
            out.emit(&key, &ONE)?;
        }
        Ok(())
    }
}

/// Sends all words of a file to one reduce, although they are different keys.
struct ByFile;

impl Partitioner for ByFile {
    fn partition(&self, key: &[u8], _value: &[u8], partitions: u32) -> u32 {
        let file = key.split(|byte| *byte == END_OF_NAME).next().unwrap_or_default();
        crate::partition::HashPartitioner.partition(file, b"", partitions)
    }
}

/// Collects the words of a file that are frequent enough. Emits them when the next file begins.
struct TermVector {
    count_min: u64,
    file: Vec<u8>,
    terms: Vec<(u64, Vec<u8>)>,
}

impl TermVector {
    fn flush(&mut self, out: &mut dyn Emit) -> Result<(), TaskError> {
        if self.terms.is_empty() {
            return Ok(());
        }
        self.terms.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let mut line = Vec::new();
        for (count, word) in self.terms.drain(..) {
            if !line.is_empty() {
                line.push(SPACE);
            }
            line.extend_from_slice(&word);
            line.extend_from_slice(format!(":{count}").as_bytes());
        }
        out.emit(&self.file, &line)
    }
}

impl Reducer for TermVector {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        let cut = key.iter().position(|byte| *byte == END_OF_NAME).ok_or("a key has no file name")?;
        let (file, word) = (&key[..cut], &key[cut + 1..]);
        if file != self.file {
            self.flush(out)?;
            self.file = file.to_vec();
        }
        let mut total = 0;
        while let Some(value) = values.next()? {
            total += decode_count(value)?;
        }
        if total >= self.count_min {
            self.terms.push((total, word.to_vec()));
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut dyn Emit, _context: &mut Context) -> Result<(), TaskError> {
        self.flush(out)
    }
}

pub(super) fn term_vector(conf: &Conf) -> Result<Job, TaskError> {
    let count_min = conf.parse("termvector.min", 2_u64)?;
    let job = Job::map(|_| Ok(FileAndWord)).combine(|_| Ok(SumCombiner)).partition(|_| Ok(ByFile));
    Ok(job.reduce(move |_| Ok(TermVector { count_min, file: Vec::new(), terms: Vec::new() })))
}

/// Emits every three consecutive words of a line, with the file.
struct Sequences;

impl Mapper for Sequences {
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
        let file = file_name(context);
        let words: Vec<&[u8]> = words(line).collect();
        let mut key = Vec::new();
        for three in words.windows(3) {
            key.clear();
            for word in three {
                key.extend_from_slice(word);
                key.push(SPACE);
            }
            key.extend_from_slice(&file);
            out.emit(&key, &ONE)?;
        }
        Ok(())
    }
}

pub(super) fn sequence_count(_conf: &Conf) -> Result<Job, TaskError> {
    Ok(Job::map(|_| Ok(Sequences)).combine(|_| Ok(SumCombiner)).reduce(|_| Ok(SumReducer)))
}

/// Reads `W1 W2 W3 FILE TAB COUNT`. Emits the sequence as the key, and count and file as the value,
/// so that values sort by count.
struct SequenceToFile;

impl Mapper for SequenceToFile {
    fn divisible() -> bool {
        true
    }

    fn map(
        &mut self,
        key: &[u8],
        value: &[u8],
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        let wrong =
            || TaskError::from("the input of rankedinvertedindex must be the output of sequencecount");
        let mut spaces = memchr::memchr_iter(SPACE, key);
        let cut = spaces.nth(2).ok_or_else(wrong)?;
        let text = std::str::from_utf8(value).map_err(|_| wrong())?;
        let count: u64 = text.parse().map_err(|_| wrong())?;
        // The complement, so that the largest count sorts first.
        let mut ranked = (!count).to_be_bytes().to_vec();
        ranked.extend_from_slice(&key[cut + 1..]);
        out.emit(&key[..cut], &ranked)
    }
}

struct Ranking;

impl Reducer for Ranking {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        let mut line = Vec::new();
        while let Some(value) = values.next()? {
            let (rank, file) = value.split_at_checked(8).ok_or("a rank has fewer than eight bytes")?;
            let count = !u64::from_be_bytes(rank.try_into().expect("eight bytes"));
            if !line.is_empty() {
                line.push(SPACE);
            }
            line.extend_from_slice(file);
            line.extend_from_slice(format!(":{count}").as_bytes());
        }
        out.emit(key, &line)
    }
}

pub(super) fn ranked_inverted_index(_conf: &Conf) -> Result<Job, TaskError> {
    let job = Job::map(|_| Ok(SequenceToFile)).reduce(|_| Ok(Ranking)).read(InputFormat::KeyValueLines);
    Ok(job.sorted_values())
}
