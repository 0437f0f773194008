//! The progress of the last stage of a reduce: counts records, checks for kills and preemption
//! requests, and reports.

use super::{
    super::{Meter, OutputSink, Progress, TaskIo},
    STAGES,
};
use mrlib_api::{Context, Emit, Liveness, Pair, PreemptKind, TaskControl, TaskError, Values};
use types::Stage;

/// Typical size in bytes of the two length fields of a record.
const LENGTHS_BYTES: usize = 2;

/// Counts the emitted pairs and passes them to the sink.
pub(super) struct Output {
    pub(super) sink: Box<dyn OutputSink>,
    pub(super) records: u64,
    pub(super) liveness: Liveness,
}

impl Emit for Output {
    #[inline]
    fn emit(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        self.records += 1;
        self.liveness.set_emitted(self.records);
        self.sink.write(key, value)
    }
}

/// The progress of a reduce, in bytes of records.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByteProgress {
    /// Bytes of all runs.
    pub(super) bytes_total: u64,
    /// Bytes read by earlier attempts.
    pub(super) bytes_before: u64,
    /// Bytes fetched by all attempts of the reduce.
    pub(super) bytes_shuffled: u64,
}

/// Reports progress, keeps the pace, and checks the control of the task.
pub(super) struct ReduceProgress<'a> {
    pub(super) io: &'a mut dyn TaskIo,
    control: TaskControl,
    meter: Meter,
    byte_progress: ByteProgress,
    /// Bytes of records read so far, approximately.
    read: u64,
    bytes_out: u64,
    status: Option<String>,
    /// Whether a checkpoint can be saved.
    preemptible: bool,
}

impl<'a> ReduceProgress<'a> {
    pub(super) fn new(
        io: &'a mut dyn TaskIo,
        byte_progress: ByteProgress,
        pace: Option<u64>,
        preemptible: bool,
    ) -> Self {
        let (control, meter) = (io.control(), Meter::new(pace, preemptible, io.liveness()));
        let mut progress =
            Self { io, control, meter, byte_progress, read: 0, bytes_out: 0, status: None, preemptible };
        progress.report();
        progress
    }

    #[inline]
    fn count_record(&mut self, bytes: usize) -> Result<(), TaskError> {
        self.read += bytes as u64;
        if self.meter.tick(self.read, &self.control)? {
            // Check for a kill here too, because a key group may have many values.
            self.control.check()?;
            self.report();
        }
        Ok(())
    }

    /// Updates the progress between two key groups, when no record is in use. Returns whether to
    /// save a checkpoint.
    pub(super) fn pause_after_group(
        &mut self,
        out: &Output,
        context: &mut Context,
    ) -> Result<bool, TaskError> {
        self.bytes_out = out.sink.bytes();
        if let Some(status) = context.take_status() {
            self.status = Some(status);
        }
        context.check()?;
        Ok(self.preemptible && self.control.preempt_request()? == Some(PreemptKind::Pause))
    }

    #[cold]
    fn report(&mut self) {
        let fraction = (self.byte_progress.bytes_before + self.read) as f64
            / self.byte_progress.bytes_total.max(1) as f64;
        self.io.progress(&Progress {
            done: (STAGES - 1.0 + fraction.min(1.0)) / STAGES,
            stage: Stage::Reduce,
            bytes_in: self.byte_progress.bytes_shuffled,
            bytes_out: self.bytes_out,
            status: self.status.take(),
        });
    }

    /// Wraps the values of a group, so that they are counted when the reducer reads them.
    pub(super) fn count_values<'w, V: Values>(
        &'w mut self,
        key: &[u8],
        values: V,
    ) -> ReportedValues<'w, 'a, V> {
        ReportedValues { values, record_bytes: key.len() + LENGTHS_BYTES, progress: self }
    }
}

pub(super) struct ReportedValues<'a, 'io, V> {
    values: V,
    progress: &'a mut ReduceProgress<'io>,
    /// Approximate bytes of a record without its value. All keys of a group are assumed to have the
    /// same length.
    record_bytes: usize,
}

impl<V: Values> Values for ReportedValues<'_, '_, V> {
    #[inline]
    fn next(&mut self) -> Result<Option<&[u8]>, TaskError> {
        let value = self.values.next()?;
        if let Some(value) = value {
            self.progress.count_record(self.record_bytes + value.len())?;
        }
        Ok(value)
    }

    #[inline]
    fn next_pair(&mut self) -> Result<Option<Pair<'_>>, TaskError> {
        let pair = self.values.next_pair()?;
        if let Some((_, value)) = pair {
            self.progress.count_record(self.record_bytes + value.len())?;
        }
        Ok(pair)
    }

    fn key(&self) -> &[u8] {
        self.values.key()
    }
}
