//! Self-join: from associations of k fields to associations of k + 1 fields.
//!
//! Each line has k sorted fields, separated by commas. Two lines with the same fields except the
//! last give one line of k + 1 fields: the common fields and both last fields, in order.

use super::documents::Distinct;
use mrlib_api::{Conf, Context, Emit, Job, Mapper, Reducer, TaskError, Values};

struct SplitLastField;

impl Mapper for SplitLastField {
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

struct JoinLastFields;

impl Reducer for JoinLastFields {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        // Values are sorted, so equal values are adjacent. `bytes` has all distinct values, and
        // `ends` the offset at which each value ends.
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
    Ok(Job::map(|_| Ok(SplitLastField))
        .combine(|_| Ok(Distinct))
        .reduce(|_| Ok(JoinLastFields))
        .sorted_values())
}
