//! Self-join: from associations of k fields to those of k + 1.
//!
//! Each line is k sorted fields between commas. Two lines that agree on all but the last field give one line of
//! k + 1: the shared fields and both last ones, in order.

use super::documents::Distinct;
use crate::{
    api::{Emit, Mapper, Reducer, Values},
    conf::Conf,
    context::Context,
    error::TaskError,
    job::Job,
};

struct CutLast;

impl Mapper for CutLast {
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
        match line.iter().rposition(|byte| *byte == b',') {
            Some(cut) => out.emit(&line[..cut], &line[cut + 1..]),
            None => Ok(()),
        }
    }
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
        // Values come sorted: equal ones are neighbours. All different ones lie in `bytes`, each up to its end.
        let (mut bytes, mut ends) = (Vec::new(), vec![0]);
        let mut start = 0;
        while let Some(value) = values.next()? {
            if ends.len() == 1 || bytes[start..] != *value {
                start = bytes.len();
                bytes.extend_from_slice(value);
                ends.push(bytes.len());
            }
        }
        let mut line = Vec::new();
        for first in 0..ends.len() - 1 {
            line.clear();
            line.extend_from_slice(key);
            line.push(b',');
            line.extend_from_slice(&bytes[ends[first]..ends[first + 1]]);
            line.push(b',');
            let stem = line.len();
            for second in first + 1..ends.len() - 1 {
                line.truncate(stem);
                line.extend_from_slice(&bytes[ends[second]..ends[second + 1]]);
                out.emit(&line, b"")?;
            }
        }
        Ok(())
    }
}

pub(super) fn job(_conf: &Conf) -> Result<Job, TaskError> {
    Ok(Job::map(|_| Ok(CutLast)).combine(|_| Ok(Distinct)).reduce(|_| Ok(Pairs)).sorted_values())
}
