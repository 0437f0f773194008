//! Merges sorted runs, and divides the result into key groups.
//!
//! A loser tree has one record of each run. Equal records come in the order of their runs, so a
//! merge is stable and its result depends only on the runs and their order. This also holds for
//! several passes, because only adjacent runs are merged.

use crate::{
    scratch::Scratch,
    segment::{Run, SegmentReader, SegmentWriter, Stored},
};
use mrlib_api::{KeyOrder, Pair, TaskError, Values};
use std::{cmp::Ordering, ops::Range};

#[cfg(test)]
mod tests;

/// Number of records between two calls of the `step` argument of [`merge_down`].
const STEP_RECORDS: u32 = if cfg!(test) { 3 } else { 4096 };

/// The order of records: by key, optionally then by the bytes of the value.
#[derive(Debug, Clone, Copy, Default)]
pub struct SortOrder {
    /// The order of keys.
    pub keys: KeyOrder,
    /// Whether records with equal keys are sorted by value.
    pub values: bool,
}

impl SortOrder {
    /// Returns a number that sorts like the key. If two numbers are equal, the keys must be
    /// compared.
    #[inline]
    pub(crate) fn prefix(self, key: &[u8]) -> u64 {
        match self.keys {
            KeyOrder::Bytes => prefix(key),
            KeyOrder::Reverse => !prefix(key),
            KeyOrder::By(_) | KeyOrder::Fields(_) => 0,
        }
    }

    #[inline]
    pub(crate) fn compare(self, a: (&[u8], &[u8]), b: (&[u8], &[u8])) -> Ordering {
        let keys = self.keys.compare(a.0, b.0);
        if self.values { keys.then_with(|| a.1.cmp(b.1)) } else { keys }
    }
}

/// Returns the first eight bytes of a key as a number. Missing bytes are zeros.
#[inline]
pub(crate) fn prefix(key: &[u8]) -> u64 {
    let be32 = |four: &[u8]| u64::from(u32::from_be_bytes([four[0], four[1], four[2], four[3]]));
    match key.len() {
        0 => 0,
        // Overlapping reads put the same byte into the same position.
        length @ 1..=3 => {
            let put = |at: usize| u64::from(key[at]) << (56 - 8 * at);
            put(0) | put(length / 2) | put(length - 1)
        }
        length @ 4..=7 => be32(&key[..4]) << 32 | be32(&key[length - 4..]) << (64 - 8 * length),
        _ => be32(&key[..4]) << 32 | be32(&key[4..8]),
    }
}

/// Iterates over sorted records.
pub trait Cursor {
    /// Advances to the next record. Returns false at the end.
    fn next(&mut self) -> Result<bool, TaskError>;
    /// Returns the key of the current record.
    fn key(&self) -> &[u8];
    /// Returns the value of the current record.
    fn value(&self) -> &[u8];
}

impl<C: Cursor + ?Sized> Cursor for &mut C {
    fn next(&mut self) -> Result<bool, TaskError> {
        (**self).next()
    }

    fn key(&self) -> &[u8] {
        (**self).key()
    }

    fn value(&self) -> &[u8] {
        (**self).value()
    }
}

/// A merge of sorted runs with a loser tree. Equal records come in the order of their runs.
#[derive(Debug)]
pub struct Merge {
    lanes: Vec<Lane>,
    /// The lane that has won, then for each inner node the lane that lost there.
    tree: Vec<u32>,
    order: SortOrder,
    started: bool,
}

#[derive(Debug)]
struct Lane {
    /// The run that is read, with the parts after it.
    run: Run,
    reader: SegmentReader,
    prefix: u64,
    at_end: bool,
}

/// A placeholder while the tree is built. It beats every lane.
const NO_LANE: u32 = u32::MAX;

impl Merge {
    /// Opens a merge of these runs.
    pub fn open(runs: &[Run], order: SortOrder) -> Result<Self, TaskError> {
        let lane = |run: &Run| Ok(Lane { run: run.clone(), reader: run.open()?, prefix: 0, at_end: false });
        let lanes = runs.iter().map(lane).collect::<Result<Vec<_>, TaskError>>()?;
        let tree = vec![NO_LANE; lanes.len()];
        let mut merge = Self { lanes, tree, order, started: false };
        for at in 0..merge.lanes.len() {
            merge.lanes[at].advance(order)?;
        }
        for at in (0..merge.lanes.len()).rev() {
            merge.replay(at);
        }
        Ok(merge)
    }

    /// Replays the matches of `lane` from its leaf to the root.
    #[inline]
    fn replay(&mut self, lane: usize) {
        let mut winner = lane as u32;
        let mut node = usize::midpoint(lane, self.lanes.len());
        while node > 0 {
            let other = self.tree[node];
            if self.beats(other, winner) {
                self.tree[node] = winner;
                winner = other;
            }
            node /= 2;
        }
        self.tree[0] = winner;
    }

    #[inline]
    fn beats(&self, a: u32, b: u32) -> bool {
        if a == NO_LANE || b == NO_LANE {
            return a == NO_LANE;
        }
        let (left, right) = (&self.lanes[a as usize], &self.lanes[b as usize]);
        match (left.at_end, right.at_end) {
            (false, false) => {}
            (false, true) => return true,
            (true, _) => return false,
        }
        if left.prefix != right.prefix {
            return left.prefix < right.prefix;
        }
        let order = self.order.compare(left.record(), right.record());
        order.then(a.cmp(&b)) == Ordering::Less
    }

    /// Returns the unread remainder of each run; None for a run that was read completely. The
    /// current record counts as unread.
    pub fn remainders(&self) -> Vec<Option<Run>> {
        let left = |lane: &Lane| Run { start: Some(lane.reader.position()), ..lane.run.clone() };
        self.lanes.iter().map(|lane| (!lane.at_end).then(|| left(lane))).collect()
    }

    fn winner(&self) -> &SegmentReader {
        &self.lanes[self.tree[0] as usize].reader
    }
}

impl Lane {
    #[inline]
    fn advance(&mut self, order: SortOrder) -> Result<(), TaskError> {
        self.at_end = !self.reader.next()? && !self.next_part()?;
        if !self.at_end {
            self.prefix = order.prefix(self.reader.key());
        }
        Ok(())
    }

    /// Advances to the first record of the next part that has records.
    #[cold]
    fn next_part(&mut self) -> Result<bool, TaskError> {
        while !self.run.more.is_empty() {
            let next = self.run.more.remove(0);
            self.run = Run { more: std::mem::take(&mut self.run.more), ..next };
            self.reader = self.run.open()?;
            if self.reader.next()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn record(&self) -> (&[u8], &[u8]) {
        (self.reader.key(), self.reader.value())
    }
}

impl Cursor for Merge {
    #[inline]
    fn next(&mut self) -> Result<bool, TaskError> {
        let Some(&winner) = self.tree.first() else { return Ok(false) };
        let winner = winner as usize;
        if self.started && !self.lanes[winner].at_end {
            self.lanes[winner].advance(self.order)?;
            self.replay(winner);
        }
        self.started = true;
        Ok(!self.lanes[self.tree[0] as usize].at_end)
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.winner().key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.winner().value()
    }
}

/// Minimum memory for the blocks of runs. With less, a merge of very few runs at a time would be
/// slow.
const BLOCKS_BYTES_MIN: u64 = 1 << 20;

/// Returns the number of runs to merge at a time: as many as fit in `memory` if they are the runs
/// with the largest `buffers` (memory of each reader, in bytes), at most `max` and at least two.
pub(crate) fn factor_for(mut buffers: Vec<u64>, memory: u64, max: usize) -> usize {
    buffers.sort_unstable_by(|a, b| b.cmp(a));
    let mut left = memory.max(BLOCKS_BYTES_MIN);
    let fitting = buffers.iter().take_while(|buffer| {
        let fits = **buffer <= left;
        left = left.saturating_sub(**buffer);
        fits
    });
    let fitting = fitting.count();
    if fitting == buffers.len() { max.max(2) } else { fitting.clamp(2, max.max(2)) }
}

/// Returns the adjacent runs to merge next, so that at most `factor` runs remain in the end. None
/// if no merge is needed. The first pass merges only as many runs as needed to make all later
/// passes full.
pub(crate) fn next_pass(sizes: &[u64], factor: usize) -> Option<Range<usize>> {
    let factor = factor.max(2);
    if sizes.len() <= factor {
        return None;
    }
    let width = match (sizes.len() - 1) % (factor - 1) {
        0 => factor,
        odd => odd + 1,
    };
    let mut sum: u64 = sizes[..width].iter().sum();
    let mut best = (sum, 0);
    for start in 1..=sizes.len() - width {
        sum = sum + sizes[start + width - 1] - sizes[start - 1];
        best = best.min((sum, start));
    }
    Some(best.1..best.1 + width)
}

/// The result of [`merge_down`].
#[derive(Debug)]
pub struct MergeResult {
    /// The runs, in their order.
    pub runs: Vec<Run>,
    /// The unfinished pass, if there is one.
    pub open_pass: Option<OpenPass>,
    /// Whether the runs are few enough. If not, `step` has interrupted the merge.
    pub is_done: bool,
}

/// An unfinished pass: one run with its output so far, directly followed by the remainders of its
/// inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenPass {
    /// The index of the run with the output so far.
    pub output_run: usize,
    /// The number of inputs, which follow the output run.
    pub inputs: usize,
}

/// Merges adjacent runs, smallest first, into new runs in scratch folders until at most `factor`
/// are left. A merged run is removed when its last `Run` is dropped. `step` is called regularly, to
/// check for kills and report progress. If it returns false, the current pass is interrupted. If
/// the result is passed in again, that pass continues and no work is repeated.
pub fn merge_down(
    mut runs: Vec<Run>,
    mut open_pass: Option<OpenPass>,
    order: SortOrder,
    factor: usize,
    compress: bool,
    scratch: &Scratch,
    step: &mut dyn FnMut() -> Result<bool, TaskError>,
) -> Result<MergeResult, TaskError> {
    let sizes = |runs: &[Run]| runs.iter().map(Run::unread_bytes).collect::<Vec<_>>();
    loop {
        let pass = match open_pass {
            Some(OpenPass { output_run, inputs }) => output_run + 1..output_run + 1 + inputs,
            None => match next_pass(&sizes(&runs), factor) {
                Some(pass) => pass,
                None => return Ok(MergeResult { runs, open_pass, is_done: true }),
            },
        };
        if !step()? {
            return Ok(MergeResult { runs, open_pass, is_done: false });
        }
        let (made, rest) = merge_pass(&runs[pass.clone()], order, compress, scratch, step)?;
        let (at, made) = match open_pass.take() {
            Some(OpenPass { output_run: at, .. }) => (at, runs[at].clone().followed_by(made)),
            None => (pass.start, made),
        };
        let left = rest.len();
        runs.splice(at..pass.end, std::iter::once(made).chain(rest));
        if left > 0 {
            open_pass = Some(OpenPass { output_run: at, inputs: left });
            return Ok(MergeResult { runs, open_pass, is_done: false });
        }
    }
}

/// Merges runs into one in a scratch folder. Returns the new run, and the remainders if `step` has
/// returned false.
fn merge_pass(
    runs: &[Run],
    order: SortOrder,
    compress: bool,
    scratch: &Scratch,
    step: &mut dyn FnMut() -> Result<bool, TaskError>,
) -> Result<(Run, Vec<Run>), TaskError> {
    let (file, (index, rest)) = scratch.create("merged", |path| {
        let mut writer = SegmentWriter::create(path, 1, compress)?;
        let mut merge = Merge::open(runs, order)?;
        let (mut count, mut rest) = (0, Vec::new());
        while merge.next()? {
            if count > 0 && count % STEP_RECORDS == 0 && !step()? {
                rest = merge.remainders().into_iter().flatten().collect();
                break;
            }
            writer.append(0, merge.key(), merge.value())?;
            count += 1;
        }
        Ok((writer.finish()?, rest))
    })?;
    let name = file.path().display().to_string().into();
    Ok((Run::new(Stored::Scratch(file), index.extents[0], name), rest))
}

/// Divides sorted records into groups of keys that are equal under `grouping`.
#[derive(Debug)]
pub struct Groups<C> {
    cursor: C,
    grouping: KeyOrder,
    /// The first key of the current group.
    first_key: Vec<u8>,
    state: GroupPosition,
    records: u64,
}

/// The first key of a group, and its values.
pub type Group<'a, C> = (&'a [u8], GroupedValues<'a, C>);

/// The position of the cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupPosition {
    /// Before the first record.
    Start,
    /// At the first record of a group, which was not returned yet.
    First,
    /// At a record that was returned.
    Within,
    /// At the first record of the next group.
    NextGroup,
    /// At the end.
    End,
}

impl<C: Cursor> Groups<C> {
    /// Groups the records of a cursor that was not moved yet.
    pub fn new(cursor: C, grouping: KeyOrder) -> Self {
        Self { cursor, grouping, first_key: Vec::new(), state: GroupPosition::Start, records: 0 }
    }

    /// Returns the next group: its first key and its values. Unread values of the previous group
    /// are skipped.
    #[allow(
        clippy::should_implement_trait,
        reason = "returns references into itself, which an Iterator cannot"
    )]
    pub fn next(&mut self) -> Result<Option<Group<'_, C>>, TaskError> {
        if self.state == GroupPosition::Start {
            self.state = if self.cursor.next()? { GroupPosition::NextGroup } else { GroupPosition::End };
        }
        if !self.skip_to_next_group()? {
            return Ok(None);
        }
        self.first_key.clear();
        self.first_key.extend_from_slice(self.cursor.key());
        self.state = GroupPosition::First;
        let values = self.values();
        Ok(Some((values.first_key, values)))
    }

    fn values(&mut self) -> GroupedValues<'_, C> {
        GroupedValues {
            cursor: &mut self.cursor,
            grouping: self.grouping,
            first_key: &self.first_key,
            state: &mut self.state,
            records: &mut self.records,
        }
    }

    /// Returns the number of records returned or skipped so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Skips the unread values of the current group. Returns whether another group follows. If so,
    /// the cursor is at its first record, which was not returned yet.
    pub fn skip_to_next_group(&mut self) -> Result<bool, TaskError> {
        while !matches!(self.state, GroupPosition::NextGroup | GroupPosition::End) {
            self.values().advance()?;
        }
        Ok(self.state == GroupPosition::NextGroup)
    }

    /// Returns the underlying cursor.
    pub fn cursor(&self) -> &C {
        &self.cursor
    }
}

/// The values of one group.
#[derive(Debug)]
pub struct GroupedValues<'a, C> {
    cursor: &'a mut C,
    grouping: KeyOrder,
    first_key: &'a [u8],
    state: &'a mut GroupPosition,
    records: &'a mut u64,
}

impl<C: Cursor> GroupedValues<'_, C> {
    /// Advances to the next record of the group. Returns false at its end.
    #[inline]
    fn advance(&mut self) -> Result<bool, TaskError> {
        *self.state = match *self.state {
            GroupPosition::First => GroupPosition::Within,
            GroupPosition::Within if !self.cursor.next()? => GroupPosition::End,
            GroupPosition::Within => match self.grouping.compare(self.first_key, self.cursor.key()) {
                Ordering::Equal => GroupPosition::Within,
                _ => GroupPosition::NextGroup,
            },
            ended => ended,
        };
        let within = *self.state == GroupPosition::Within;
        *self.records += u64::from(within);
        Ok(within)
    }
}

impl<C: Cursor> Values for GroupedValues<'_, C> {
    #[inline]
    fn next(&mut self) -> Result<Option<&[u8]>, TaskError> {
        if self.advance()? { Ok(Some(self.cursor.value())) } else { Ok(None) }
    }

    #[inline]
    fn next_pair(&mut self) -> Result<Option<Pair<'_>>, TaskError> {
        if self.advance()? { Ok(Some((self.cursor.key(), self.cursor.value()))) } else { Ok(None) }
    }

    #[inline]
    fn key(&self) -> &[u8] {
        // After the last value the cursor is at the key of another group, or at the end.
        if *self.state == GroupPosition::Within { self.cursor.key() } else { self.first_key }
    }
}
