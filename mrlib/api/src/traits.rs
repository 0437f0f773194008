//! The interface for job authors: a mapper, and optionally a combiner and a reducer, over raw
//! bytes.
//!
//! Keys and values are byte strings; `mrlib::typed` adds serde types on top. Each task creates
//! its own instance, so an implementation may have state. `finish` is called once at the end of the
//! input of the task. If a map is split, the remainder of the range is another task with its own
//! instance and its own `finish`.

use crate::{context::Context, error::TaskError, key_fields::KeyFields};
use std::cmp::Ordering;

/// Receives output pairs.
pub trait Emit {
    /// Emits a pair. The bytes are copied.
    fn emit(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError>;
}

/// A borrowed key and value.
pub type Pair<'a> = (&'a [u8], &'a [u8]);

/// Iterates over the values of one key group.
pub trait Values {
    /// Returns the next value, which is valid until the next call; None after the last value.
    fn next(&mut self) -> Result<Option<&[u8]>, TaskError>;

    /// Returns the next value with its own key.
    fn next_pair(&mut self) -> Result<Option<Pair<'_>>, TaskError>;

    /// Returns the key of the value that was returned last. With a grouping comparator (secondary
    /// sort) it may differ from the key of the group.
    fn key(&self) -> &[u8];
}

/// Turns input records into pairs.
pub trait Mapper: Send {
    /// Processes one record. For lines, `key` is the byte offset in the file as eight big-endian
    /// bytes.
    fn map(
        &mut self,
        key: &[u8],
        value: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError>;

    /// Ends the work of the mapper, which may emit more pairs. Called at the end of the input.
    fn finish(&mut self, _out: &mut dyn Emit, _context: &mut Context) -> Result<(), TaskError> {
        Ok(())
    }

    /// Returns true to promise that the range of a map may be divided between two tasks at any
    /// record: the output for a record depends on that record alone, and sums that `finish` emits
    /// may come in parts. A mapper that numbers or samples records, or needs to see all of them,
    /// must return false. A map that is not divisible is never split: it can only be preempted by a
    /// kill, and a slow map is run a second time instead of being divided.
    fn divisible() -> bool
    where
        Self: Sized,
    {
        false
    }
}

/// The state that a reducer has between two key groups. It decides whether a reduce can be paused
/// there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateBetweenKeys {
    /// No state: a new reducer can continue.
    None,
    /// State that `save` returns and `restore` reads.
    Savable,
    /// State that cannot be saved, with the reason. The reduce can be paused during shuffle and
    /// merge; in its last stage it refuses and continues.
    NotSavable(&'static str),
}

/// Turns a key and its values into output. A combiner implements the same trait; it must emit pairs
/// of the type that it reads, and may run any number of times.
pub trait Reducer: Send {
    /// Processes one key group.
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError>;

    /// Merges `value` in place into `into`, the value for the same key so far (for example, a sum
    /// in eight bytes), and returns true. Only combiners need this. An implementation that returns
    /// false must not change `into`; the engine then calls `reduce` with both values.
    #[inline]
    fn fold(&mut self, _into: &mut [u8], _value: &[u8]) -> bool {
        false
    }

    /// Returns whether `fold` adds eight-byte little-endian numbers with wrap-around and refuses
    /// all other values. If so, the engine may add the numbers itself, which is faster.
    fn adds(&self) -> bool {
        false
    }

    /// Ends the work of the reducer, which may emit more pairs. Called at the end of the input, but
    /// not on a combiner.
    fn finish(&mut self, _out: &mut dyn Emit, _context: &mut Context) -> Result<(), TaskError> {
        Ok(())
    }

    /// Returns the kind of state that the reducer has between two key groups. A reducer with any
    /// state must override this.
    fn state_between_keys(&self) -> StateBetweenKeys {
        StateBetweenKeys::None
    }

    /// Returns the state that another instance needs to continue. Called between two key groups for
    /// [`StateBetweenKeys::Savable`]. The reducer may also emit output that it has buffered. It
    /// gets no more keys after this call.
    fn save(&mut self, _out: &mut dyn Emit, _context: &mut Context) -> Result<Vec<u8>, TaskError> {
        Ok(Vec::new())
    }

    /// Restores the state that `save` returned. Called before the first key for
    /// [`StateBetweenKeys::Savable`].
    fn restore(&mut self, _state: &[u8]) -> Result<(), TaskError> {
        Ok(())
    }
}

/// A reducer that emits every pair unchanged: the default of a job with reduces and no reducer.
#[derive(Debug, Clone, Copy, Default)]
pub struct IdentityReducer;

impl Reducer for IdentityReducer {
    fn reduce(
        &mut self,
        _key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        while let Some((key, value)) = values.next_pair()? {
            out.emit(key, value)?;
        }
        Ok(())
    }
}

/// Chooses the reduce for a pair.
pub trait Partitioner: Send + Sync {
    /// Returns the index of the reduce, less than `partitions`.
    fn partition(&self, key: &[u8], value: &[u8], partitions: u32) -> u32;
}

/// The order of keys.
#[derive(Debug, Clone, Copy, Default)]
pub enum KeyOrder {
    /// By bytes. The fastest, because prefixes of eight bytes are compared as numbers.
    #[default]
    Bytes,
    /// By bytes, descending.
    Reverse,
    /// By a function of the job.
    By(fn(&[u8], &[u8]) -> Ordering),
    /// By parts of the key.
    Fields(KeyFields),
}

impl KeyOrder {
    /// Compares two keys in this order.
    #[inline]
    pub fn compare(self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            KeyOrder::Bytes => a.cmp(b),
            KeyOrder::Reverse => b.cmp(a),
            KeyOrder::By(order) => order(a, b),
            KeyOrder::Fields(fields) => fields.compare(a, b),
        }
    }
}
