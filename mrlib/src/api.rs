//! What a job author writes: a mapper, perhaps a combiner and a reducer, over raw bytes.
//!
//! Keys and values are byte strings. Serde types go on top in a module of their own. An implementation is made again
//! for each task, so it may keep state; `finish` is called once, at the end of the task's input (also when a map is
//! split: then the rest of the range is another task with a `finish` of its own).

use crate::{context::Context, error::TaskError};
use std::cmp::Ordering;

/// Where output goes.
pub trait Emit {
    /// Puts out one pair. The bytes are copied.
    fn emit(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError>;
}

/// A key and a value, lent.
pub type Pair<'a> = (&'a [u8], &'a [u8]);

/// The values of one key group, one after the other.
pub trait Values {
    /// The next value; the bytes are lent until the next call.
    fn next(&mut self) -> Result<Option<&[u8]>, TaskError>;

    /// The next value with the key that came with it.
    fn next_pair(&mut self) -> Result<Option<Pair<'_>>, TaskError>;

    /// The key that came with the value returned last: under a grouping comparator it may differ from the group's
    /// first (secondary sort).
    fn key(&self) -> &[u8];
}

/// Turns input records into pairs.
pub trait Mapper: Send {
    /// One record. For lines, `key` is the byte offset in the file as eight big-endian bytes.
    fn map(
        &mut self,
        key: &[u8],
        value: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError>;

    /// The end of the task's input.
    fn finish(&mut self, _out: &mut dyn Emit, _context: &mut Context) -> Result<(), TaskError> {
        Ok(())
    }

    /// Promises that its range may be divided between two tasks at any record: what it puts out for a record depends on
    /// that record alone, and sums that it puts out at the end may come in parts. One that numbers records, samples them
    /// or needs to see all of them must not promise it. Without the promise a map is never split: to get its slot back
    /// it can only be killed, and a slow one is run a second time instead of being divided.
    fn divisible() -> bool
    where
        Self: Sized,
    {
        false
    }
}

/// What a reducer keeps from one key group to the next. It decides how a reduce can be paused between two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateBetweenKeys {
    /// Nothing: another one, made again, goes on as well.
    None,
    /// Something that `save` gives out and `restore` takes in.
    Savable,
    /// Something that it cannot give out, and why. Such a reduce is paused while it fetches and merges; in its last
    /// stage it refuses and continues.
    NotSavable(&'static str),
}

/// Turns a key and its values into output. Also serves as combiner, which must then put out pairs of the kind
/// that it takes in, and may run any number of times.
pub trait Reducer: Send {
    /// One key group.
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError>;

    /// For a combiner that can work in place: puts `value` into `into`, the value kept so far for the same key
    /// (a sum of eight bytes, say), and says true. False, with `into` as it was: `reduce` will be called with both.
    #[inline]
    fn fold(&mut self, _into: &mut [u8], _value: &[u8]) -> bool {
        false
    }

    /// For a combiner whose `fold` adds eight-byte little-endian numbers, wrapping around, and refuses all else: the
    /// engine may then add by itself, which is faster.
    fn adds(&self) -> bool {
        false
    }

    /// The end of the task's input. Not called on a combiner.
    fn finish(&mut self, _out: &mut dyn Emit, _context: &mut Context) -> Result<(), TaskError> {
        Ok(())
    }

    /// What it keeps from one key group to the next. One that keeps anything must say so.
    fn state_between_keys(&self) -> StateBetweenKeys {
        StateBetweenKeys::None
    }

    /// For [`StateBetweenKeys::Savable`], between two key groups: what another one needs to continue. What it has held back for output
    /// it may also put out now. It gets no more keys after that.
    fn save(&mut self, _out: &mut dyn Emit, _context: &mut Context) -> Result<Vec<u8>, TaskError> {
        Ok(Vec::new())
    }

    /// For [`StateBetweenKeys::Savable`], before its first key: what `save` gave out, never changed.
    fn restore(&mut self, _state: &[u8]) -> Result<(), TaskError> {
        Ok(())
    }
}

/// A reducer that puts every pair out as it came in. A job with reduces and no reducer has this one.
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

/// Chooses the reduce that gets a pair.
pub trait Partitioner: Send + Sync {
    /// From 0 to `partitions - 1`.
    fn partition(&self, key: &[u8], value: &[u8], partitions: u32) -> u32;
}

/// An order of keys.
#[derive(Debug, Clone, Copy, Default)]
pub enum KeyOrder {
    /// By bytes. The fastest: eight-byte prefixes are compared as numbers.
    #[default]
    Bytes,
    /// By bytes, backwards.
    Reverse,
    /// By a function of the author's.
    By(fn(&[u8], &[u8]) -> Ordering),
}

impl KeyOrder {
    /// Compares two keys.
    #[inline]
    pub fn compare(self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            KeyOrder::Bytes => a.cmp(b),
            KeyOrder::Reverse => b.cmp(a),
            KeyOrder::By(order) => order(a, b),
        }
    }
}
