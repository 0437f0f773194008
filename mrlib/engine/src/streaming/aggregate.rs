//! The reducer `aggregate` of streaming jobs: the mapper writes `FUNCTION:KEY TAB VALUE`, and the
//! output has one line `KEY TAB RESULT` for each function and key.
//!
//! The functions are those of Hadoop's package `aggregate`. `UniqValueCount` and `ValueHistogram`
//! have the different values of one key in memory.

use super::lines::split_pair;
use mrlib_api::{Context, Emit, Reducer, TaskError, Values};
use std::{collections::BTreeMap, str::FromStr};

/// The command of a reducer that selects this one.
pub const AGGREGATE: &str = "aggregate";

/// The state of one function.
#[derive(Debug)]
enum Function {
    LongSum(i64),
    LongMax(Option<i64>),
    LongMin(Option<i64>),
    DoubleSum(f64),
    StringMax(Option<Vec<u8>>),
    StringMin(Option<Vec<u8>>),
    /// Counts of values.
    Unique(BTreeMap<Vec<u8>, i64>),
    /// Sums of the counts of values, each written `VALUE TAB COUNT`.
    Histogram(BTreeMap<Vec<u8>, i64>),
}

impl Function {
    fn new(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"LongValueSum" => Self::LongSum(0),
            b"LongValueMax" => Self::LongMax(None),
            b"LongValueMin" => Self::LongMin(None),
            b"DoubleValueSum" => Self::DoubleSum(0.0),
            b"StringValueMax" => Self::StringMax(None),
            b"StringValueMin" => Self::StringMin(None),
            b"UniqValueCount" => Self::Unique(BTreeMap::new()),
            b"ValueHistogram" => Self::Histogram(BTreeMap::new()),
            _ => return None,
        })
    }

    fn add(&mut self, value: &[u8]) -> Result<(), TaskError> {
        match self {
            Self::LongSum(sum) => *sum = sum.wrapping_add(number(value)?),
            Self::LongMax(max) => *max = (*max).max(Some(number(value)?)),
            Self::LongMin(min) => {
                let value = number(value)?;
                *min = Some(min.map_or(value, |min| min.min(value)));
            }
            Self::DoubleSum(sum) => *sum += number::<f64>(value)?,
            Self::StringMax(max) if max.as_deref().is_none_or(|max| max < value) => {
                *max = Some(value.to_vec());
            }
            Self::StringMin(min) if min.as_deref().is_none_or(|min| min > value) => {
                *min = Some(value.to_vec());
            }
            Self::StringMax(_) | Self::StringMin(_) => {}
            Self::Unique(values) => *values.entry(value.to_vec()).or_default() += 1,
            Self::Histogram(values) => {
                let (value, count) = split_pair(value);
                let count = if count.is_empty() { 1 } else { number(count)? };
                *values.entry(value.to_vec()).or_default() += count;
            }
        }
        Ok(())
    }

    fn result(self) -> Vec<u8> {
        match self {
            Self::LongSum(number) | Self::LongMax(Some(number)) | Self::LongMin(Some(number)) => {
                number.to_string().into_bytes()
            }
            Self::DoubleSum(sum) => format!("{sum:?}").into_bytes(),
            Self::StringMax(Some(text)) | Self::StringMin(Some(text)) => text,
            Self::Unique(values) => values.len().to_string().into_bytes(),
            Self::Histogram(values) => histogram(values.into_values().collect()).into_bytes(),
            Self::LongMax(None) | Self::LongMin(None) | Self::StringMax(None) | Self::StringMin(None) => {
                Vec::new()
            }
        }
    }
}

/// Describes counts: how many there are, then their minimum, median, maximum, mean and standard
/// deviation.
fn histogram(mut counts: Vec<i64>) -> String {
    counts.sort_unstable();
    let (Some(min), Some(max)) = (counts.first(), counts.last()) else { return "0".into() };
    let (number, median) = (counts.len() as f64, counts[counts.len() / 2]);
    let mean = counts.iter().map(|count| *count as f64).sum::<f64>() / number;
    let variance = counts.iter().map(|count| (*count as f64 - mean).powi(2)).sum::<f64>() / number;
    format!("{}\t{min}\t{median}\t{max}\t{mean:?}\t{:?}", counts.len(), variance.sqrt())
}

fn number<T: FromStr>(text: &[u8]) -> Result<T, TaskError> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
    parsed.ok_or_else(|| {
        let text = String::from_utf8_lossy(text);
        TaskError::Program(format!("the reducer aggregate got {text:?}, which is not a number"))
    })
}

/// The reducer. It has no state between keys.
pub(super) struct Aggregate;

impl Reducer for Aggregate {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        let parts = key.iter().position(|byte| *byte == b':').map(|colon| (&key[..colon], &key[colon + 1..]));
        let known = parts.and_then(|(name, rest)| Some((Function::new(name)?, rest)));
        let Some((mut function, rest)) = known else {
            let key = String::from_utf8_lossy(key);
            return Err(TaskError::Program(format!(
                "the reducer aggregate got the key {key:?}: the mapper must write FUNCTION:KEY, for example LongValueSum:{key}"
            )));
        };
        while let Some(value) = values.next()? {
            function.add(value)?;
        }
        out.emit(rest, &function.result())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(name: &str, values: &[&str]) -> String {
        let mut function = Function::new(name.as_bytes()).expect(name);
        for value in values {
            function.add(value.as_bytes()).unwrap();
        }
        String::from_utf8(function.result()).unwrap()
    }

    #[test]
    fn functions_give_the_results_of_hadoop() {
        for (name, values, expected) in [
            ("LongValueSum", &["1", " 2", "-5"][..], "-2"),
            ("LongValueMax", &["1", "-2"], "1"),
            ("LongValueMin", &["1", "-2"], "-2"),
            ("DoubleValueSum", &["1", "1"], "2.0"),
            ("StringValueMax", &["b", "a"], "b"),
            ("StringValueMin", &["b", "a"], "a"),
            ("UniqValueCount", &["b", "a", "b"], "2"),
            ("ValueHistogram", &["a\t1", "b", "a\t2"], "2\t1\t3\t3\t2.0\t1.0"),
        ] {
            assert_eq!(result(name, values), expected, "{name}");
        }
        assert!(Function::new(b"Sum").is_none());
        assert!(Function::LongSum(0).add(b"x").unwrap_err().to_string().contains("not a number"));
    }
}
