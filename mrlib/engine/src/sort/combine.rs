//! Runs the combiner of a job.

use crate::merge::SortOrder;
use mrlib_api::{Context, Emit, Reducer, TaskError, Values, error::quoted};
use std::cmp::Ordering;

/// Receives a pair.
pub(crate) type PutPair<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<(), TaskError>;

/// A combiner with its counts.
pub(crate) struct Combiner {
    reducer: Box<dyn Reducer>,
    /// Whether the combiner only adds eight-byte numbers.
    adds: bool,
    /// A context of its own, because the mapper uses that of the task while it emits pairs.
    pub(crate) context: Context,
    pub(crate) records_in: u64,
    pub(crate) records_out: u64,
    unsorted_pairs: UnsortedPairs,
}

/// Pairs emitted for one key, before they are sorted by value: their bytes, and the position of
/// each pair.
#[derive(Default)]
struct UnsortedPairs {
    bytes: Vec<u8>,
    /// For each pair: start of the value, start of the key, end of the key.
    pairs: Vec<(usize, usize, usize)>,
}

impl Combiner {
    pub(crate) fn new(reducer: Box<dyn Reducer>, context: Context) -> Self {
        Self {
            adds: reducer.adds(),
            reducer,
            context,
            records_in: 0,
            records_out: 0,
            unsorted_pairs: UnsortedPairs::default(),
        }
    }

    /// Returns whether the combiner only adds eight-byte numbers.
    #[inline]
    pub(crate) fn adds(&self) -> bool {
        self.adds
    }

    #[inline]
    pub(crate) fn fold(&mut self, into: &mut [u8], value: &[u8]) -> bool {
        if self.adds
            && let (Ok(sum), Ok(value)) = (<&mut [u8; 8]>::try_from(&mut *into), <[u8; 8]>::try_from(value))
        {
            *sum = u64::from_le_bytes(*sum).wrapping_add(u64::from_le_bytes(value)).to_le_bytes();
            return true;
        }
        self.reducer.fold(into, value)
    }

    /// Combines the values of one key. The output is in sort order.
    pub(crate) fn run(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        order: SortOrder,
        put: PutPair<'_>,
    ) -> Result<(), TaskError> {
        if !order.values {
            let mut out = SameKeyOutput { key, order, put };
            return self.reducer.reduce(key, values, &mut out, &mut self.context);
        }
        let unsorted_pairs = &mut self.unsorted_pairs;
        let mut keep = |key: &[u8], value: &[u8]| {
            unsorted_pairs.add(key, value);
            Ok(())
        };
        let mut out = SameKeyOutput { key, order, put: &mut keep };
        let reduced = self.reducer.reduce(key, values, &mut out, &mut self.context);
        reduced.and_then(|()| self.unsorted_pairs.drain_to(put)).inspect_err(|_| self.unsorted_pairs.clear())
    }
}

impl UnsortedPairs {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(key);
        self.pairs.push((start, start + value.len(), self.bytes.len()));
    }

    /// Passes all pairs to `put`, sorted by value, and clears them.
    fn drain_to(&mut self, put: PutPair<'_>) -> Result<(), TaskError> {
        let bytes = &self.bytes;
        self.pairs.sort_by(|a, b| bytes[a.0..a.1].cmp(&bytes[b.0..b.1]));
        for (value, key, end) in &self.pairs {
            put(&bytes[*key..*end], &bytes[*value..*key])?;
        }
        self.clear();
        Ok(())
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.pairs.clear();
    }
}

/// Accepts only pairs that do not change the sort order.
struct SameKeyOutput<'a, 'b> {
    key: &'a [u8],
    order: SortOrder,
    put: PutPair<'b>,
}

impl Emit for SameKeyOutput<'_, '_> {
    fn emit(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        if self.order.keys.compare(self.key, key) != Ordering::Equal {
            let text = format!(
                "the combiner emitted key {} for key {}: a combiner must not change keys",
                quoted(key),
                quoted(self.key)
            );
            return Err(TaskError::Program(text));
        }
        (self.put)(key, value)
    }
}
