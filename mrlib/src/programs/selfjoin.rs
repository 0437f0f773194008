//! Self-join: from associations of k fields to those of k + 1.
//!
//! Each line is k sorted fields between commas. Two lines that agree on all but the last field give one line of
//! k + 1: the shared fields and both last ones, in order.

use crate::{
    api::{Emit, Mapper, Reducer, Values},
    conf::Conf,
    context::Context,
    error::TaskError,
    job::Job,
};

struct CutLast;

impl Mapper for CutLast {
    fn map(
        &mut self,
        _key: &[u8],
        line: &[u8],
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        match line.iter().rposition(|byte| *byte == b',') {
            Some(cut) => out.emit(&line[..cut], &line[cut + 1..]),
            None => Ok(()),
        }
    }
}

/// Drops doubles early; values come sorted.
struct Distinct;

impl Reducer for Distinct {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        for last in distinct(values)? {
            out.emit(key, &last)?;
        }
        Ok(())
    }
}

fn distinct(values: &mut dyn Values) -> Result<Vec<Vec<u8>>, TaskError> {
    let mut found: Vec<Vec<u8>> = Vec::new();
    while let Some(value) = values.next()? {
        if found.last().is_none_or(|last| last != value) {
            found.push(value.to_vec());
        }
    }
    Ok(found)
}

struct Pairs;

impl Reducer for Pairs {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        let lasts = distinct(values)?;
        let mut line = Vec::new();
        for (at, first) in lasts.iter().enumerate() {
            for second in &lasts[at + 1..] {
                line.clear();
                for part in [key, b",", first, b",", second] {
                    line.extend_from_slice(part);
                }
                out.emit(&line, b"")?;
            }
        }
        Ok(())
    }
}

pub(super) fn job(_conf: &Conf) -> Result<Job, TaskError> {
    Ok(Job::map(|_| Ok(CutLast)).combine(|_| Ok(Distinct)).reduce(|_| Ok(Pairs)).sorted_values())
}
