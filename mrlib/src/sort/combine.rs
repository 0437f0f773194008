//! Runs a job's combiner.

use crate::{
    api::{Emit, Reducer, Values},
    context::Context,
    error::TaskError,
    merge::SortOrder,
};
use std::cmp::Ordering;

/// What takes a pair.
pub(crate) type Put<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<(), TaskError>;

/// A combiner and what it did.
pub(crate) struct Combiner {
    reducer: Box<dyn Reducer>,
    /// Its own: the mapper holds the task's while pairs come in.
    pub(crate) context: Context,
    pub(crate) records_in: u64,
    pub(crate) records_out: u64,
}

impl Combiner {
    pub(crate) fn new(reducer: Box<dyn Reducer>) -> Self {
        Self { reducer, context: Context::default(), records_in: 0, records_out: 0 }
    }

    #[inline]
    pub(crate) fn fold(&mut self, into: &mut [u8], value: &[u8]) -> bool {
        self.reducer.fold(into, value)
    }

    /// Combines the values of one key. What comes out is in order.
    pub(crate) fn run(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        order: SortOrder,
        put: Put<'_>,
    ) -> Result<(), TaskError> {
        let mut kept = Vec::new();
        let mut keep = |key: &[u8], value: &[u8]| {
            kept.push((value.to_vec(), key.to_vec()));
            Ok(())
        };
        let mut out = Checked { key, order, put: if order.values { &mut keep } else { &mut *put } };
        self.reducer.reduce(key, values, &mut out, &mut self.context)?;
        kept.sort_by(|a, b| a.0.cmp(&b.0));
        kept.iter().try_for_each(|(value, key)| put(key, value))
    }
}

/// Takes only pairs that leave the sort order as it is.
struct Checked<'a, 'b> {
    key: &'a [u8],
    order: SortOrder,
    put: Put<'b>,
}

impl Emit for Checked<'_, '_> {
    fn emit(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        if self.order.keys.compare(self.key, key) != Ordering::Equal {
            let (given, taken) = (key.escape_ascii(), self.key.escape_ascii());
            let words =
                format!("the combiner put out key \"{given}\" for key \"{taken}\": it must keep keys");
            return Err(TaskError::Program(words));
        }
        (self.put)(key, value)
    }
}
