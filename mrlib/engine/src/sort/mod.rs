//! The map-side sort buffer: collects pairs and writes one map output.
//!
//! A full buffer is sorted and spilled to scratch folders. At the end the spills are merged, as
//! many at a time as there is memory for their blocks. A pair longer than the buffer becomes a
//! spill of its own; two such spills are merged whatever memory they need. With a combiner, pairs
//! are first combined in a hash table, unless most keys turn out to be distinct.
//!
//! The same pairs and settings always give the same bytes.

mod combine;
mod combine_table;
mod key;
mod memory;
mod record_buffer;
mod slots;

#[cfg(test)]
mod tests;

pub(crate) use memory::with_capacity_for;

use crate::{
    merge::{Cursor, Groups, Merge, SortOrder, factor_for, next_pass},
    partition::Partitioning,
    scratch::{Scratch, ScratchFile, disk_failed},
    segment::{Extent, Index, Run, SegmentWriter, Stored},
};
use combine::Combiner;
use combine_table::CombineTable;
use mrlib_api::{Context, Emit, Liveness, Reducer, TaskControl, TaskError};
use record_buffer::RecordBuffer;
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Maximum memory of the buffer, because offsets in memory have 32 bits.
const MEMORY_BYTES_MAX: u64 = 4 << 30;
/// Number of records between two calls of `step`.
const STEP_RECORDS: u64 = 4096;

/// Called regularly during long work, to check for kills and report progress.
pub(crate) type Step<'a> = &'a mut dyn FnMut() -> Result<(), TaskError>;

/// The parameters of the buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SortSpec {
    pub(crate) partitions: u32,
    pub(crate) order: SortOrder,
    pub(crate) memory_bytes: u64,
    pub(crate) merge_factor: usize,
    pub(crate) compress: bool,
}

/// The counts of a map.
#[derive(Debug, Default)]
pub(crate) struct SortCounts {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) combine_in: u64,
    pub(crate) combine_out: u64,
    pub(crate) spilled: u64,
    /// The counters of the combiner.
    pub(crate) combiner: Context,
}

/// A sorted scratch file with all partitions.
struct Spill {
    file: ScratchFile,
    index: Index,
}

impl Spill {
    /// Returns the memory for one reader of the spill.
    fn reader_bytes(&self) -> u64 {
        self.index.extents.iter().map(Extent::reader_bytes).max().unwrap_or(0)
    }
}

/// The sort buffer of a map.
pub(crate) struct MapBuffer {
    spec: SortSpec,
    partitioning: Partitioning,
    scratch: Scratch,
    liveness: Liveness,
    combiner: Option<Combiner>,
    /// The table that combines pairs, used as long as many keys repeat.
    table: Option<CombineTable>,
    record_buffer: RecordBuffer,
    spills: Vec<Spill>,
    /// Whether a second thread may help to sort, because a split was requested and the slot is
    /// needed soon.
    second_thread: bool,
    records: u64,
    bytes: u64,
    spilled: u64,
}

impl MapBuffer {
    pub(crate) fn new(
        spec: SortSpec,
        partitioning: Partitioning,
        combiner: Option<Box<dyn Reducer>>,
        scratch: Scratch,
        liveness: Liveness,
    ) -> Self {
        let bytes_max = spec.memory_bytes.min(MEMORY_BYTES_MAX - 1) as usize;
        let table = combiner.as_ref().and_then(|_| {
            CombineTable::new(spec.order, spec.partitions, bytes_max, partitioning.depends_only_on_key())
        });
        Self {
            spec,
            partitioning,
            scratch,
            liveness: liveness.clone(),
            combiner: combiner
                .map(|one| Combiner::new(one, Context::new(liveness.clone(), TaskControl::default()))),
            table,
            record_buffer: RecordBuffer::new(spec.order, bytes_max),
            spills: Vec::new(),
            second_thread: false,
            records: 0,
            bytes: 0,
            spilled: 0,
        }
    }

    /// Returns the bytes of all pairs so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Allows a second thread for sorting from now on, because the slot is needed soon.
    pub(crate) fn allow_second_thread(&mut self) {
        self.second_thread = true;
    }

    /// Writes the map output and its index to the first of these paths whose disk has enough space.
    pub(crate) fn finish(
        mut self,
        paths: &[PathBuf],
        step: Step<'_>,
    ) -> Result<(Index, SortCounts), TaskError> {
        if !self.spills.is_empty() {
            self.spill()?;
            // From here on the memory is used for the blocks of the merged runs, each stored and
            // decompressed.
            (self.table, self.record_buffer) = (None, RecordBuffer::new(self.spec.order, 0));
            let buffers = self.spills.iter().map(Spill::reader_bytes).collect();
            let factor = factor_for(buffers, self.spec.memory_bytes, self.spec.merge_factor);
            let sizes = |spills: &[Spill]| spills.iter().map(|one| one.index.stored()).collect::<Vec<_>>();
            while let Some(pass) = next_pass(&sizes(&self.spills), factor) {
                let scratch = self.scratch.clone();
                let before = self.combiner_values();
                let made = scratch.create("merged", |path| {
                    self.restore_combiner(&before);
                    self.merge(pass.clone(), path, step)
                })?;
                self.spilled += made.1.records();
                self.spills.splice(pass, [Spill { file: made.0, index: made.1 }]);
            }
        }
        let index = self.write_output(paths, step)?;
        self.spilled += index.records();
        let mut counts = SortCounts {
            records: self.records,
            bytes: self.bytes,
            spilled: self.spilled,
            ..SortCounts::default()
        };
        if let Some(combiner) = self.combiner {
            counts.combine_in = combiner.records_in;
            counts.combine_out = combiner.records_out;
            counts.combiner = combiner.context;
        }
        Ok((index, counts))
    }

    fn write_output(&mut self, paths: &[PathBuf], step: Step<'_>) -> Result<Index, TaskError> {
        let before = self.combiner_values();
        let mut last = None;
        for path in paths {
            self.restore_combiner(&before);
            let made = if self.spills.is_empty() {
                self.write_memory(path)
            } else {
                self.merge(0..self.spills.len(), path, step)
            };
            match made.and_then(|index| index.write(path).map(|()| index)) {
                Err(error) if disk_failed(&error) => last = Some(error),
                made => return made,
            }
            // Errors are ignored, because the tracker deletes these files later.
            let _ = fs::remove_file(path);
            let _ = fs::remove_file(Index::path_of(path));
        }
        Err(last
            .unwrap_or_else(|| "a map has no path for its output: this is a bug in the TaskTracker".into()))
    }

    fn write_memory(&mut self, path: &Path) -> Result<Index, TaskError> {
        let mut writer = self.writer(path)?;
        self.write(&mut writer)?;
        let index = writer.finish()?;
        self.count_combined(self.records_in_memory(), index.records());
        Ok(index)
    }

    fn writer(&self, path: &Path) -> Result<SegmentWriter, TaskError> {
        SegmentWriter::create(path, self.spec.partitions, self.spec.compress)
    }

    /// Writes the records in memory, in order. At most one of table and buffer has records.
    fn write(&mut self, writer: &mut SegmentWriter) -> Result<(), TaskError> {
        if let (Some(table), Some(combiner)) = (&mut self.table, &mut self.combiner)
            && !table.is_empty()
        {
            let partitions = self.spec.partitions;
            table.add_all_waiting(combiner, |key| self.partitioning.choose(key, &[], partitions))?;
            return table.write(writer, combiner, &self.liveness);
        }
        self.record_buffer.write(writer, self.combiner.as_mut(), &self.liveness, self.second_thread)
    }

    /// Spills the records in memory to a scratch file.
    fn spill(&mut self) -> Result<(), TaskError> {
        let taken = self.records_in_memory();
        if taken == 0 {
            return Ok(());
        }
        let (scratch, before) = (self.scratch.clone(), self.combiner_values());
        let (file, index) = scratch.create("spill", |path| {
            self.restore_combiner(&before);
            let mut writer = self.writer(path)?;
            self.write(&mut writer)?;
            writer.finish()
        })?;
        self.count_combined(taken, index.records());
        self.spilled += index.records();
        self.spills.push(Spill { file, index });
        self.record_buffer.clear();
        if let Some(table) = &mut self.table {
            // If most keys occur once, the table only costs time.
            let keys_repeat = table.len() as u64 * 4 <= table.records * 3;
            table.clear();
            if !keys_repeat {
                self.table = None;
            }
        }
        Ok(())
    }

    /// Returns the counters of the combiner and its record counts, for `restore_combiner`.
    fn combiner_values(&self) -> (Vec<u64>, u64, u64) {
        let values = |one: &Combiner| (one.context.values(), one.records_in, one.records_out);
        self.combiner.as_ref().map(values).unwrap_or_default()
    }

    /// Resets the counts when records are combined again after a full disk, so that they count
    /// once.
    fn restore_combiner(&mut self, (values, records_in, records_out): &(Vec<u64>, u64, u64)) {
        if let Some(combiner) = &mut self.combiner {
            combiner.context.restore_values(values);
            (combiner.records_in, combiner.records_out) = (*records_in, *records_out);
        }
    }

    /// Returns the number of records added since memory was empty.
    fn records_in_memory(&self) -> u64 {
        self.record_buffer.len() as u64 + self.table.as_ref().map_or(0, |table| table.records)
    }

    /// Adds to the record counts of the combiner.
    fn count_combined(&mut self, records_in: u64, records_out: u64) {
        if let Some(combiner) = &mut self.combiner {
            combiner.records_in += records_in;
            combiner.records_out += records_out;
        }
    }

    /// Spills a single pair that does not fit in memory.
    fn spill_single_pair(&mut self, partition: u32, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        self.spill()?;
        let (file, index) = self.scratch.clone().create("spill", |path| {
            let mut writer = self.writer(path)?;
            writer.append(partition, key, value)?;
            writer.finish()
        })?;
        self.spilled += 1;
        self.spills.push(Spill { file, index });
        Ok(())
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        let partitions = self.spec.partitions;
        if let (Some(table), Some(combiner)) = (&mut self.table, &mut self.combiner) {
            let choose = |key: &[u8]| self.partitioning.choose(key, value, partitions);
            if table.put(key, value, combiner, choose)? {
                return Ok(());
            }
            return self.put_in_full_table(key, value);
        }
        let partition = self.partitioning.choose(key, value, partitions)?;
        if self.record_buffer.put(partition, key, value) {
            return Ok(());
        }
        self.spill()?;
        if self.record_buffer.put(partition, key, value) {
            return Ok(());
        }
        self.spill_single_pair(partition, key, value)
    }

    /// Adds a pair when the table is full.
    #[cold]
    fn put_in_full_table(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        if let (Some(table), Some(combiner)) = (&mut self.table, &mut self.combiner) {
            if !table.fits(key, value) {
                let partition = self.partitioning.choose(key, value, self.spec.partitions)?;
                return self.spill_single_pair(partition, key, value);
            }
            if !table.compact(combiner)? {
                self.spill()?;
            }
        }
        self.put(key, value)
    }

    /// Merges some spills into a segment file.
    fn merge(
        &mut self,
        spills: std::ops::Range<usize>,
        path: &Path,
        step: Step<'_>,
    ) -> Result<Index, TaskError> {
        let mut writer = self.writer(path)?;
        let spills = &self.spills[spills];
        let mut files = Vec::with_capacity(spills.len());
        for spill in spills {
            let path = spill.file.path();
            let file = File::open(path).map_err(TaskError::io(format!("open {}", path.display())))?;
            files.push((Arc::new(file), Arc::from(path.display().to_string())));
        }
        let mut records = 0;
        for partition in 0..self.spec.partitions {
            let mut runs = Vec::new();
            for (spill, (file, name)) in spills.iter().zip(&files) {
                let (extent, name) = (spill.index.extents[partition as usize], Arc::clone(name));
                if extent.records > 0 {
                    runs.push(Run::new(Stored::Open(file.clone()), extent, name));
                }
            }
            let mut merge = Merge::open(&runs, self.spec.order)?;
            // With sorted values the output of the combiner would have to be collected in memory to
            // sort it again.
            if let Some(combiner) = self.combiner.as_mut().filter(|_| !self.spec.order.values) {
                records += merge_combined(merge, partition, combiner, &mut writer, self.spec.order, step)?;
                continue;
            }
            while merge.next()? {
                writer.append(partition, merge.key(), merge.value())?;
                records += 1;
                if records % STEP_RECORDS == 0 {
                    step()?;
                }
            }
        }
        let index = writer.finish()?;
        self.count_combined(records, index.records());
        Ok(index)
    }
}

/// Merges one partition and combines it. Returns the number of records read.
fn merge_combined(
    merge: Merge,
    partition: u32,
    combiner: &mut Combiner,
    writer: &mut SegmentWriter,
    order: SortOrder,
    step: Step<'_>,
) -> Result<u64, TaskError> {
    let mut groups = Groups::new(merge, order.keys);
    let mut stepped = 0;
    while let Some((key, mut values)) = groups.next()? {
        combiner.run(key, &mut values, order, &mut |key, value| writer.append(partition, key, value))?;
        if groups.records() - stepped >= STEP_RECORDS {
            stepped = groups.records();
            step()?;
        }
    }
    Ok(groups.records())
}

impl Emit for MapBuffer {
    #[inline]
    fn emit(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        self.records += 1;
        self.liveness.set_emitted(self.records);
        self.bytes += (key.len() + value.len()) as u64;
        self.put(key, value)
    }
}
