//! The reducer and combiner that counting programs share.
//!
//! Between tasks a count is eight little-endian bytes; the reducer writes it as decimal digits.

use mrlib_api::{Context, Emit, Reducer, TaskError, Values};

/// The count 1.
pub(super) const ONE: [u8; 8] = 1_u64.to_le_bytes();

pub(super) fn decode_count(bytes: &[u8]) -> Result<u64, TaskError> {
    let bytes = bytes.try_into().map_err(|_| TaskError::from("a count is not eight bytes long"))?;
    Ok(u64::from_le_bytes(bytes))
}

fn total(values: &mut dyn Values) -> Result<u64, TaskError> {
    let mut total = 0_u64;
    while let Some(value) = values.next()? {
        total = total.wrapping_add(decode_count(value)?);
    }
    Ok(total)
}

/// The combiner: emits the sum in binary.
pub(super) struct SumCombiner;

impl Reducer for SumCombiner {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        out.emit(key, &total(values)?.to_le_bytes())
    }

    #[inline]
    fn fold(&mut self, into: &mut [u8], value: &[u8]) -> bool {
        let (Ok(kept), Ok(more)) = (decode_count(into), decode_count(value)) else { return false };
        into.copy_from_slice(&kept.wrapping_add(more).to_le_bytes());
        true
    }

    fn adds(&self) -> bool {
        true
    }
}

/// The reducer: emits the sum as decimal digits.
pub(super) struct SumReducer;

impl Reducer for SumReducer {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        out.emit(key, total(values)?.to_string().as_bytes())
    }
}
