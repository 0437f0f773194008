//! Merges sorted runs, and cuts the result into key groups.
//!
//! A loser tree holds one record of each run; equal records come in the order of their runs, so a merge is stable,
//! and with runs in a fixed order its result is too. Merging in several passes keeps that: only neighbours are
//! merged.

use crate::{
    api::{KeyOrder, Pair, Values},
    engine::Scratch,
    error::TaskError,
    segment::{Run, SegmentReader, SegmentWriter, Stored},
};
use std::{cmp::Ordering, ops::Range};

#[cfg(test)]
mod tests;

/// Records between two calls of a `step`.
const STEP_RECORDS: u32 = if cfg!(test) { 3 } else { 4096 };

/// How records are sorted: by key, perhaps then by the bytes of the value.
#[derive(Debug, Clone, Copy, Default)]
pub struct SortOrder {
    /// Of keys.
    pub keys: KeyOrder,
    /// Whether records of equal keys are sorted by value.
    pub values: bool,
}

impl SortOrder {
    /// A number that sorts as the key does, as far as it can tell: equal numbers say nothing.
    #[inline]
    pub(crate) fn prefix(self, key: &[u8]) -> u64 {
        match self.keys {
            KeyOrder::Bytes => prefix(key),
            KeyOrder::Reverse => !prefix(key),
            KeyOrder::By(_) => 0,
        }
    }

    #[inline]
    pub(crate) fn compare(self, a: (&[u8], &[u8]), b: (&[u8], &[u8])) -> Ordering {
        let keys = self.keys.compare(a.0, b.0);
        if self.values { keys.then_with(|| a.1.cmp(b.1)) } else { keys }
    }
}

/// The first eight bytes as a number, zeros for those that are not there.
#[inline]
pub(crate) fn prefix(key: &[u8]) -> u64 {
    let be32 = |four: &[u8]| u64::from(u32::from_be_bytes([four[0], four[1], four[2], four[3]]));
    match key.len() {
        0 => 0,
        // Overlapping reads put a byte twice into the same place.
        length @ 1..=3 => {
            let put = |at: usize| u64::from(key[at]) << (56 - 8 * at);
            put(0) | put(length / 2) | put(length - 1)
        }
        length @ 4..=7 => be32(&key[..4]) << 32 | be32(&key[length - 4..]) << (64 - 8 * length),
        _ => be32(&key[..4]) << 32 | be32(&key[4..8]),
    }
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

/// A merge of sorted runs by a loser tree. Equal records come in the order of their runs.
#[derive(Debug)]
pub struct Merge {
    lanes: Vec<Lane>,
    /// The winner, then for each inner node the lane that lost there.
    tree: Vec<u32>,
    order: SortOrder,
    started: bool,
}

#[derive(Debug)]
struct Lane {
    /// What is read, and what comes after it.
    run: Run,
    reader: SegmentReader,
    prefix: u64,
    over: bool,
}

/// In a tree that is being built: wins against all.
const NOBODY: u32 = u32::MAX;

impl Merge {
    /// Over these runs.
    pub fn open(runs: &[Run], order: SortOrder) -> Result<Self, TaskError> {
        let lane = |run: &Run| Ok(Lane { run: run.clone(), reader: run.open()?, prefix: 0, over: false });
        let lanes = runs.iter().map(lane).collect::<Result<Vec<_>, TaskError>>()?;
        let tree = vec![NOBODY; lanes.len()];
        let mut merge = Self { lanes, tree, order, started: false };
        for at in 0..merge.lanes.len() {
            merge.lanes[at].advance(order)?;
        }
        for at in (0..merge.lanes.len()).rev() {
            merge.replay(at);
        }
        Ok(merge)
    }

    /// Lets `lane` play from its leaf to the root.
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
        if a == NOBODY || b == NOBODY {
            return a == NOBODY;
        }
        let (left, right) = (&self.lanes[a as usize], &self.lanes[b as usize]);
        match (left.over, right.over) {
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

    /// What is left of each run; None for those that are at their end. The record that `key` and `value` lend counts as
    /// not read yet.
    pub fn left(&self) -> Vec<Option<Run>> {
        let left = |lane: &Lane| Run { start: Some(lane.reader.place()), ..lane.run.clone() };
        self.lanes.iter().map(|lane| (!lane.over).then(|| left(lane))).collect()
    }

    fn winner(&self) -> &SegmentReader {
        &self.lanes[self.tree[0] as usize].reader
    }
}

impl Lane {
    #[inline]
    fn advance(&mut self, order: SortOrder) -> Result<(), TaskError> {
        self.over = !self.reader.next()? && !self.next_part()?;
        if !self.over {
            self.prefix = order.prefix(self.reader.key());
        }
        Ok(())
    }

    /// To the first record of the next part that has any.
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
        if self.started && !self.lanes[winner].over {
            self.lanes[winner].advance(self.order)?;
            self.replay(winner);
        }
        self.started = true;
        Ok(!self.lanes[self.tree[0] as usize].over)
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

/// Memory for blocks of runs is taken to be at least this: merges of very few runs would only be slow.
const BLOCKS_MIN: u64 = 1 << 20;

/// How many runs to merge at a time: `max`, or as many as fit into `memory` even if they are those that need the most
/// `rooms`; two, whatever they need.
pub(crate) fn factor_for(mut rooms: Vec<u64>, memory: u64, max: usize) -> usize {
    rooms.sort_unstable_by(|a, b| b.cmp(a));
    let mut left = memory.max(BLOCKS_MIN);
    let fitting = rooms.iter().take_while(|room| {
        let fits = **room <= left;
        left = left.saturating_sub(**room);
        fits
    });
    let fitting = fitting.count();
    if fitting == rooms.len() { max.max(2) } else { fitting.clamp(2, max.max(2)) }
}

/// Which neighbours to merge next, so that not more than `factor` runs remain in the end; None if it is so already.
/// The first pass takes just so many that all later ones are full.
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

/// What `merge_down` came to.
#[derive(Debug)]
pub struct Fewer {
    /// In their old order.
    pub runs: Vec<Run>,
    /// The pass that was left off, if one was.
    pub open: Option<OpenPass>,
    /// Whether they are few enough; if not, it was told to leave off.
    pub enough: bool,
}

/// A pass that was left off: one run is what it has made so far, of so many that come right behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenPass {
    /// Which run it has made.
    pub made: usize,
    /// How many it still reads.
    pub rest: usize,
}

/// Runs, made fewer: while there are more than `factor`, the smallest neighbours are merged into new ones in scratch
/// folders. What a merge makes is removed when its last `Run` is gone. `step` is called now and then (stop flag,
/// progress); if it says false, the pass at hand is left off. Given back, it is gone on with: nothing is done twice.
pub fn merge_down(
    mut runs: Vec<Run>,
    mut open: Option<OpenPass>,
    order: SortOrder,
    factor: usize,
    compress: bool,
    scratch: &Scratch,
    step: &mut dyn FnMut() -> Result<bool, TaskError>,
) -> Result<Fewer, TaskError> {
    let sizes = |runs: &[Run]| runs.iter().map(Run::left).collect::<Vec<_>>();
    loop {
        let pass = match open {
            Some(OpenPass { made, rest }) => made + 1..made + 1 + rest,
            None => match next_pass(&sizes(&runs), factor) {
                Some(pass) => pass,
                None => return Ok(Fewer { runs, open, enough: true }),
            },
        };
        if !step()? {
            return Ok(Fewer { runs, open, enough: false });
        }
        let (made, rest) = merge_pass(&runs[pass.clone()], order, compress, scratch, step)?;
        let (at, made) = match open.take() {
            Some(OpenPass { made: at, .. }) => (at, runs[at].clone().followed_by(made)),
            None => (pass.start, made),
        };
        let left = rest.len();
        runs.splice(at..pass.end, std::iter::once(made).chain(rest));
        if left > 0 {
            open = Some(OpenPass { made: at, rest: left });
            return Ok(Fewer { runs, open, enough: false });
        }
    }
}

/// Merges runs into one, in a scratch folder; what is left of them if `step` says false.
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
                rest = merge.left().into_iter().flatten().collect();
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

/// Cuts sorted records into groups of keys that are equal under `grouping`.
#[derive(Debug)]
pub struct Groups<C> {
    cursor: C,
    grouping: KeyOrder,
    /// The current group's first key.
    first: Vec<u8>,
    state: State,
    records: u64,
}

/// A group: its first key, and its values.
pub type Group<'a, C> = (&'a [u8], GroupedValues<'a, C>);

/// Where the cursor stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first record.
    Fresh,
    /// At a group's first record, which has not been given out.
    First,
    /// At a record that has been given out.
    Within,
    /// At the first record of the next group.
    Past,
    /// At the end.
    Over,
}

impl<C: Cursor> Groups<C> {
    /// Over a cursor that has not been moved yet.
    pub fn new(cursor: C, grouping: KeyOrder) -> Self {
        Self { cursor, grouping, first: Vec::new(), state: State::Fresh, records: 0 }
    }

    /// The next group: its first key and its values. What was left of the group before is passed over.
    #[allow(clippy::should_implement_trait, reason = "lends from itself, which an Iterator cannot")]
    pub fn next(&mut self) -> Result<Option<Group<'_, C>>, TaskError> {
        if self.state == State::Fresh {
            self.state = if self.cursor.next()? { State::Past } else { State::Over };
        }
        if !self.settle()? {
            return Ok(None);
        }
        self.first.clear();
        self.first.extend_from_slice(self.cursor.key());
        self.state = State::First;
        let values = self.values();
        Ok(Some((values.first, values)))
    }

    fn values(&mut self) -> GroupedValues<'_, C> {
        GroupedValues {
            cursor: &mut self.cursor,
            grouping: self.grouping,
            first: &self.first,
            state: &mut self.state,
            records: &mut self.records,
        }
    }

    /// Records given out or passed over so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Passes over what is left of the group at hand; whether another one follows. If so, the cursor is at its first
    /// record, which has not been given out.
    pub fn settle(&mut self) -> Result<bool, TaskError> {
        while !matches!(self.state, State::Past | State::Over) {
            self.values().advance()?;
        }
        Ok(self.state == State::Past)
    }

    /// What is grouped.
    pub fn cursor(&self) -> &C {
        &self.cursor
    }
}

/// The values of one group.
#[derive(Debug)]
pub struct GroupedValues<'a, C> {
    cursor: &'a mut C,
    grouping: KeyOrder,
    first: &'a [u8],
    state: &'a mut State,
    records: &'a mut u64,
}

impl<C: Cursor> GroupedValues<'_, C> {
    /// To the group's next record; false behind its last.
    #[inline]
    fn advance(&mut self) -> Result<bool, TaskError> {
        *self.state = match *self.state {
            State::First => State::Within,
            State::Within if !self.cursor.next()? => State::Over,
            State::Within => match self.grouping.compare(self.first, self.cursor.key()) {
                Ordering::Equal => State::Within,
                _ => State::Past,
            },
            ended => ended,
        };
        let within = *self.state == State::Within;
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
        // Behind the last value the cursor is at another group's key, or at none.
        if *self.state == State::Within { self.cursor.key() } else { self.first }
    }
}
