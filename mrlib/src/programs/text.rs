//! Everyday programs over lines: wordcount, grep, sort.

use super::sum::{Combine, ONE, Total};
use crate::{
    api::{Emit, Mapper, Pass},
    conf::Conf,
    context::{Context, Counter},
    error::TaskError,
    job::Job,
};

/// The words of a line: whatever stands between ASCII white space.
pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

struct WordCount;

impl Mapper for WordCount {
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
    Ok(Job::map(|_| Ok(WordCount)).combine(|_| Ok(Combine)).reduce(|_| Ok(Total)))
}

/// Lines that contain a text. Each goes out as it is, under the name of its file when asked for.
struct Grep {
    pattern: Vec<u8>,
    invert: bool,
    matched: Option<Counter>,
}

impl Mapper for Grep {
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
        let matched = *self.matched.get_or_insert_with(|| context.counter("LINES_MATCHED"));
        context.add(matched, 1);
        out.emit(line, b"")
    }
}

pub(super) fn grep(conf: &Conf) -> Result<Job, TaskError> {
    let pattern =
        conf.get("grep.pattern").ok_or("grep needs a text to look for: --conf grep.pattern=TEXT")?;
    if pattern.is_empty() {
        return Err("grep.pattern is empty: name a text to look for".into());
    }
    let pattern = pattern.as_bytes().to_vec();
    let invert = conf.parse("grep.invert", false)?;
    Ok(Job::map(move |_| Ok(Grep { pattern: pattern.clone(), invert, matched: None })))
}

/// Lines become keys, and the sort does the rest.
struct LineToKey;

impl Mapper for LineToKey {
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
    Ok(Job::map(|_| Ok(LineToKey)).reduce(|_| Ok(Pass)).totally_ordered())
}
