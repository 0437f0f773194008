//! Merges sorted runs, and cuts the result into key groups.

use crate::{
    api::{KeyOrder, Values},
    engine::Scratch,
    error::TaskError,
    segment::{Run, SegmentReader},
};

/// How records are sorted: by key, perhaps then by the bytes of the value.
#[derive(Debug, Clone, Copy, Default)]
pub struct SortOrder {
    /// Of keys.
    pub keys: KeyOrder,
    /// Whether records of equal keys are sorted by value.
    pub values: bool,
}

/// Records in order, one at a time, lent.
pub trait Cursor {
    /// Goes to the next record; false at the end.
    fn next(&mut self) -> Result<bool, TaskError>;
    /// The current record's key.
    fn key(&self) -> &[u8];
    /// The current record's value.
    fn value(&self) -> &[u8];
}

/// A merge of sorted runs by a loser tree. Equal records come in the order of their runs.
#[derive(Debug)]
pub struct Merge {}

impl Merge {
    /// Over these readers, none of which has been moved yet.
    pub fn new(_readers: Vec<SegmentReader>, _order: SortOrder) -> Result<Self, TaskError> {
        todo!()
    }

    /// Over these runs, opened here.
    pub fn open(_runs: &[Run], _order: SortOrder) -> Result<Self, TaskError> {
        todo!()
    }

    /// Stored bytes read so far, of all runs (for progress).
    pub fn stored_read(&self) -> u64 {
        todo!()
    }
}

impl Cursor for Merge {
    fn next(&mut self) -> Result<bool, TaskError> {
        todo!()
    }

    fn key(&self) -> &[u8] {
        todo!()
    }

    fn value(&self) -> &[u8] {
        todo!()
    }
}

/// Runs, made fewer: while there are more than `factor`, the smallest are merged into new ones in scratch folders.
/// What a merge makes is removed when its last `Run` is gone. `step` is called now and then (stop flag, progress).
pub fn merge_down(
    _runs: Vec<Run>,
    _order: SortOrder,
    _factor: usize,
    _compress: bool,
    _scratch: &Scratch,
    _step: &mut dyn FnMut() -> Result<(), TaskError>,
) -> Result<Vec<Run>, TaskError> {
    todo!()
}

/// Cuts sorted records into groups of keys that are equal under `grouping`.
#[derive(Debug)]
pub struct Groups<C> {
    _cursor: C,
}

impl<C: Cursor> Groups<C> {
    /// Over a cursor that has not been moved yet.
    pub fn new(_cursor: C, _grouping: KeyOrder) -> Self {
        todo!()
    }

    /// The next group: its first key and its values. What was left of the group before is passed over.
    #[allow(clippy::should_implement_trait, reason = "lends from itself, which an Iterator cannot")]
    pub fn next(&mut self) -> Result<Option<(&[u8], GroupedValues<'_, C>)>, TaskError> {
        todo!()
    }

    /// Records met so far.
    pub fn records(&self) -> u64 {
        todo!()
    }

    /// The cursor underneath.
    pub fn cursor(&self) -> &C {
        todo!()
    }
}

/// The values of one group.
#[derive(Debug)]
pub struct GroupedValues<'a, C> {
    _cursor: &'a mut C,
}

impl<C: Cursor> Values for GroupedValues<'_, C> {
    fn next(&mut self) -> Result<Option<&[u8]>, TaskError> {
        todo!()
    }

    fn key(&self) -> &[u8] {
        todo!()
    }
}
