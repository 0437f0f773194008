//! A hash table of records by key, which combines values as they arrive.
//!
//! The value of a key is in its slot if it is short and the combiner folds new values into it in
//! place. Otherwise its values are a list in the arena. When the arena is full, lists are combined
//! into a new arena ([`CombineTable::compact`]). If that does not free enough space, or there are
//! too many keys, the table is spilled.
//!
//! The table is used only for keys that are sorted by their bytes: there, keys are equal in the
//! sort order exactly if their bytes are equal.

use super::{
    STEP_RECORDS,
    combine::Combiner,
    key::PackedKey,
    slots::{PARTITIONS_MAX, Slot, Slots},
};
use crate::{
    merge::{SortOrder, prefix},
    segment::SegmentWriter,
};
use mrlib_api::{KeyOrder, Liveness, Pair, TaskError, Values};

/// `value_length` of a slot whose values are a list.
const VALUE_LIST: u8 = u8::MAX;
/// `value_length` of a slot without a value.
const NO_VALUE: u8 = VALUE_LIST - 1;
/// Marks the end of a list, instead of an offset in the arena.
const END_OF_LIST: u32 = u32::MAX;
/// Size of the header of a value in a list: the offset of the next value, and the length of the
/// value.
const NODE_BYTES: usize = 8;

/// Maximum bytes in the arena for a record with a short key and a number.
const SHORT_RECORD_BYTES: usize = 8 + 8 + 2 * NODE_BYTES + 8;

/// Returns the offsets of the first and the last value of a slot, if its values are a list.
fn list_of(slot: &Slot) -> Option<(u32, u32)> {
    let both = u64::from_le_bytes(slot.payload);
    let (first, last) = (both as u32, (both >> 32) as u32);
    (slot.value_length == VALUE_LIST).then_some((first, last))
}

fn set_list(slot: &mut Slot, first: u32, last: u32) {
    slot.payload = (u64::from(first) | u64::from(last) << 32).to_le_bytes();
    slot.value_length = VALUE_LIST;
}

/// Adds a value to a slot: in the slot itself if it is the first value and short, otherwise to the
/// list.
fn add(slot: &mut Slot, arena: &mut Vec<u8>, value: &[u8]) {
    if slot.value_length == NO_VALUE {
        if value.len() <= 8 {
            slot.payload[..value.len()].copy_from_slice(value);
            slot.value_length = value.len() as u8;
        } else {
            let node = put_node(arena, value);
            set_list(slot, node, node);
        }
        return;
    }
    let (first, last) = list_of(slot).unwrap_or_else(|| {
        let node = put_node(arena, &slot.payload[..slot.value_length as usize]);
        (node, node)
    });
    let node = put_node(arena, value);
    arena[last as usize..][..4].copy_from_slice(&node.to_le_bytes());
    set_list(slot, first, node);
}

/// Appends a value to the arena, as the last value of a list. Returns its offset.
fn put_node(arena: &mut Vec<u8>, value: &[u8]) -> u32 {
    let at = arena.len() as u32;
    arena.extend_from_slice(&END_OF_LIST.to_le_bytes());
    arena.extend_from_slice(&(value.len() as u32).to_le_bytes());
    arena.extend_from_slice(value);
    at
}

/// Iterates over the values of a list.
struct List<'a> {
    arena: &'a [u8],
    key: &'a [u8],
    next: u32,
}

impl<'a> List<'a> {
    fn take(&mut self) -> Option<&'a [u8]> {
        let node = self.arena.get(self.next as usize..)?;
        let number = |at: usize| u32::from_le_bytes([node[at], node[at + 1], node[at + 2], node[at + 3]]);
        self.next = number(0);
        Some(&node[NODE_BYTES..][..number(4) as usize])
    }
}

impl Values for List<'_> {
    fn next(&mut self) -> Result<Option<&[u8]>, TaskError> {
        Ok(self.take())
    }

    fn next_pair(&mut self) -> Result<Option<Pair<'_>>, TaskError> {
        Ok(self.take().map(|value| (self.key, value)))
    }

    fn key(&self) -> &[u8] {
        self.key
    }
}

/// Number of records that wait while their slots are prefetched.
const PREFETCH_DISTANCE: usize = 8;

/// A record with a short key and a number to add.
#[derive(Debug, Clone, Copy, Default)]
struct WaitingRecord {
    key: PackedKey,
    value: [u8; 8],
}

/// A hash table of records by key.
pub(crate) struct CombineTable {
    slots: Slots,
    /// A ring buffer of waiting records. The table has enough free space for all of them.
    waiting: [WaitingRecord; PREFETCH_DISTANCE],
    /// Number of waiting records.
    waiting_count: usize,
    /// The index in `waiting` for the next record.
    next_waiting: usize,
    arena: Vec<u8>,
    /// Bytes of lists, which compaction may free.
    list_bytes: usize,
    arena_bytes_max: usize,
    order: SortOrder,
    /// Whether a key always has the same partition.
    by_key: bool,
    /// Number of records added since the table was empty.
    pub(crate) records: u64,
}

impl CombineTable {
    /// Creates an empty table. Returns None if the keys are not sorted by bytes, or there are too
    /// many partitions. `bytes_max` must be below 4 GiB.
    pub(crate) fn new(order: SortOrder, partitions: u32, bytes_max: usize, by_key: bool) -> Option<Self> {
        if matches!(order.keys, KeyOrder::By(_) | KeyOrder::Fields(_)) || partitions > PARTITIONS_MAX {
            return None;
        }
        // Use half of the memory: growing and sorting the slots needs a copy, and so does
        // compacting the arena.
        let slots_max = (bytes_max / 32 * 9 / size_of::<Slot>()).max(1);
        Some(Self {
            slots: Slots::new(1 << slots_max.ilog2()),
            waiting: [WaitingRecord::default(); PREFETCH_DISTANCE],
            waiting_count: 0,
            next_waiting: 0,
            arena: Vec::new(),
            list_bytes: 0,
            arena_bytes_max: bytes_max / 32 * 7,
            order,
            by_key,
            records: 0,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Returns the number of keys, without those of waiting records.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether a record fits in an empty table.
    pub(crate) fn fits(&self, key: &[u8], value: &[u8]) -> bool {
        key.len() + value.len() + 2 * NODE_BYTES + 8 <= self.arena_bytes_max
    }

    /// Adds a record. `choose` returns the partition of its key. Returns false if the table is
    /// full.
    #[inline]
    pub(crate) fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        combiner: &mut Combiner,
        choose: impl Fn(&[u8]) -> Result<u32, TaskError>,
    ) -> Result<bool, TaskError> {
        let need = key.len() + value.len() + PREFETCH_DISTANCE * SHORT_RECORD_BYTES;
        let tight = self.slots.free() <= PREFETCH_DISTANCE || self.arena.len() + need > self.arena_bytes_max;
        let known = if self.by_key { None } else { Some(choose(key)?) };
        let packed = PackedKey::new(key, known);
        // Additions commute, so their order does not matter.
        if packed.is_short()
            && known.is_none()
            && !tight
            && combiner.adds()
            && let Ok(value) = value.try_into()
        {
            self.put_after_prefetch(WaitingRecord { key: packed, value }, combiner, choose)?;
            self.records += 1;
            return Ok(true);
        }
        if tight {
            self.add_all_waiting(combiner, &choose)?;
        }
        let taken = self.put_immediately(packed, known, key, value, combiner, choose)?;
        self.records += u64::from(taken);
        Ok(taken)
    }

    /// Prefetches the slot of this record, and adds the oldest waiting record.
    #[inline]
    fn put_after_prefetch(
        &mut self,
        record: WaitingRecord,
        combiner: &mut Combiner,
        choose: impl Fn(&[u8]) -> Result<u32, TaskError>,
    ) -> Result<(), TaskError> {
        self.slots.prefetch(record.key.hash);
        let oldest = std::mem::replace(&mut self.waiting[self.next_waiting], record);
        self.next_waiting = (self.next_waiting + 1) % PREFETCH_DISTANCE;
        if self.waiting_count == PREFETCH_DISTANCE {
            return self.add_waiting(&oldest, combiner, choose);
        }
        self.waiting_count += 1;
        Ok(())
    }

    #[inline]
    fn add_waiting(
        &mut self,
        record: &WaitingRecord,
        combiner: &mut Combiner,
        choose: impl Fn(&[u8]) -> Result<u32, TaskError>,
    ) -> Result<(), TaskError> {
        let taken = self.put_immediately(
            record.key,
            None,
            record.key.short_bytes(),
            &record.value,
            combiner,
            choose,
        )?;
        debug_assert!(taken, "there was enough space when it was queued");
        Ok(())
    }

    /// Adds all waiting records.
    pub(crate) fn add_all_waiting(
        &mut self,
        combiner: &mut Combiner,
        choose: impl Fn(&[u8]) -> Result<u32, TaskError>,
    ) -> Result<(), TaskError> {
        while self.waiting_count > 0 {
            let oldest = self.waiting
                [(self.next_waiting + PREFETCH_DISTANCE - self.waiting_count) % PREFETCH_DISTANCE];
            self.add_waiting(&oldest, combiner, &choose)?;
            self.waiting_count -= 1;
        }
        Ok(())
    }

    #[inline]
    fn put_immediately(
        &mut self,
        packed: PackedKey,
        known: Option<u32>,
        key: &[u8],
        value: &[u8],
        combiner: &mut Combiner,
        choose: impl Fn(&[u8]) -> Result<u32, TaskError>,
    ) -> Result<bool, TaskError> {
        let arena = &self.arena;
        let same = |slot: &Slot| {
            packed.matches(key, slot, arena) && known.is_none_or(|partition| partition == slot.partition())
        };
        if let Some(slot) = self.slots.find(packed.hash, same) {
            let inline = slot.value_length as usize;
            if inline > 8 || !combiner.fold(&mut slot.payload[..inline], value) {
                let need = value.len() + 2 * NODE_BYTES + 8;
                if self.arena.len() + need > self.arena_bytes_max {
                    return Ok(false);
                }
                add(slot, &mut self.arena, value);
                self.list_bytes += need;
            }
        } else {
            let need = key.len() + value.len() + NODE_BYTES;
            if self.arena.len() + need > self.arena_bytes_max || self.slots.free() == 0 {
                return Ok(false);
            }
            let partition = known.map_or_else(|| choose(key), Ok)?;
            let mut slot = packed.new_slot(key, partition, NO_VALUE, &mut self.arena);
            add(&mut slot, &mut self.arena, value);
            let rehash = rehash(&self.arena, self.by_key);
            self.slots.insert(packed.hash, slot, rehash);
        }
        Ok(true)
    }

    /// Combines lists to free space in the arena. Returns false if the arena is still more than
    /// half full.
    pub(crate) fn compact(&mut self, combiner: &mut Combiner) -> Result<bool, TaskError> {
        // Without lists there is nothing to combine, and the number of keys does not change.
        if self.list_bytes < self.arena.len() / 2 || self.slots.free() == 0 {
            return Ok(false);
        }
        let old = std::mem::take(&mut self.arena);
        let new = &mut self.arena;
        for slot in self.slots.iter_mut() {
            let before = *slot;
            let key = before.key(&old);
            slot.move_key(key, new);
            let Some((first, last)) = list_of(slot) else { continue };
            slot.value_length = NO_VALUE;
            let mut list = List { arena: &old, key, next: first };
            if first == last {
                list.take().into_iter().for_each(|value| add(slot, new, value));
                continue;
            }
            combiner.run(key, &mut list, self.order, &mut |_, value| {
                add(slot, new, value);
                Ok(())
            })?;
        }
        // The combiner may have dropped keys.
        let rehash = rehash(&self.arena, self.by_key);
        self.slots.retain(|slot| slot.value_length != NO_VALUE, rehash);
        self.list_bytes = 0;
        Ok(self.arena.len() <= self.arena_bytes_max / 2)
    }

    /// Writes all records in order. They stay in the table, so that writing can be repeated on
    /// another disk.
    pub(crate) fn write(
        &mut self,
        writer: &mut SegmentWriter,
        combiner: &mut Combiner,
        liveness: &Liveness,
    ) -> Result<(), TaskError> {
        let (arena, order) = (&self.arena, self.order);
        liveness.mark_alive();
        let mut sorted: Vec<Slot> = self.slots.iter().copied().collect();
        let reverse = matches!(order.keys, KeyOrder::Reverse);
        let rank = |slot: &Slot| {
            let start = prefix(&slot.key);
            u128::from(slot.partition()) << 64 | u128::from(if reverse { !start } else { start })
        };
        sorted.sort_unstable_by(|a, b| {
            rank(a).cmp(&rank(b)).then_with(|| order.keys.compare(a.key(arena), b.key(arena)))
        });
        for (at, slot) in sorted.iter().enumerate() {
            if at % STEP_RECORDS as usize == 0 {
                liveness.mark_alive();
            }
            let key = slot.key(arena);
            let Some((first, last)) = list_of(slot) else {
                writer.append(slot.partition(), key, &slot.payload[..slot.value_length as usize])?;
                continue;
            };
            let mut list = List { arena, key, next: first };
            if first == last {
                list.take().map_or(Ok(()), |value| writer.append(slot.partition(), key, value))?;
                continue;
            }
            let put = &mut |key: &[u8], value: &[u8]| writer.append(slot.partition(), key, value);
            combiner.run(key, &mut list, order, put)?;
        }
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        (self.waiting_count, self.next_waiting) = (0, 0);
        self.arena.clear();
        self.list_bytes = 0;
        self.records = 0;
    }
}

/// Returns a function that computes the hash of the key of a slot.
fn rehash(arena: &[u8], by_key: bool) -> impl Fn(&Slot) -> u64 {
    move |slot| PackedKey::new(slot.key(arena), (!by_key).then(|| slot.partition())).hash
}
