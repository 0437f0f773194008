//! Watches the last stage of a reduce go by: the one place that knows how far the merge and the output are, where the
//! stop flag is looked at, and where a wish is heard.

use super::{
    super::{Liveness, Meter, OutputSink, PreemptRefusal, PreemptRequest, Progress, TaskControl, TaskIo},
    STAGES,
};
use crate::{
    api::{Emit, Pair, Values},
    context::Context,
    error::TaskError,
};

/// A record's lengths, most often.
const LENGTHS_BYTES: usize = 2;

/// Output, counted.
pub(super) struct Output {
    pub(super) sink: Box<dyn OutputSink>,
    pub(super) records: u64,
    pub(super) liveness: Liveness,
}

impl Emit for Output {
    #[inline]
    fn emit(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        self.records += 1;
        self.liveness.emitted(self.records);
        self.sink.write(key, value)
    }
}

/// How far a reduce is, in bytes of records.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByteProgress {
    /// Of all runs.
    pub(super) whole: u64,
    /// Read by attempts before this one.
    pub(super) before: u64,
    /// Fetched by all of them.
    pub(super) shuffled: u64,
}

/// Tells progress, keeps the pace, sees the stop flag.
pub(super) struct ReduceProgress<'a> {
    pub(super) io: &'a mut dyn TaskIo,
    stop: TaskControl,
    meter: Meter,
    byte_progress: ByteProgress,
    /// Bytes of records so far, about.
    read: u64,
    bytes_out: u64,
    status: Option<String>,
    /// Whether it can be checkpointed.
    preemptible: bool,
}

impl<'a> ReduceProgress<'a> {
    pub(super) fn new(
        io: &'a mut dyn TaskIo,
        byte_progress: ByteProgress,
        pace: Option<u64>,
        preemptible: bool,
    ) -> Self {
        let (stop, meter) = (io.stop(), Meter::new(pace, preemptible, io.liveness()));
        let mut watch =
            Self { io, stop, meter, byte_progress, read: 0, bytes_out: 0, status: None, preemptible };
        watch.report();
        watch
    }

    #[inline]
    fn record(&mut self, bytes: usize) -> Result<(), TaskError> {
        self.read += bytes as u64;
        if self.meter.tick(self.read, &self.stop)? {
            // A group may be long.
            self.stop.check()?;
            self.report();
        }
        Ok(())
    }

    /// Between two key groups: nothing of the one before is left, nothing of the next has been taken. Whether it is to
    /// be checkpointed.
    pub(super) fn boundary(&mut self, out: &Output, context: &mut Context) -> Result<bool, TaskError> {
        self.bytes_out = out.sink.bytes();
        if let Some(status) = context.take_status() {
            self.status = Some(status);
        }
        context.check()?;
        Ok(self.preemptible && self.stop.preempt_request()? == PreemptRequest::Pause)
    }

    /// It cannot be checkpointed here, and continues as if nobody had asked.
    #[cold]
    pub(super) fn refuse(&mut self, why: &str) {
        eprintln!("pause refused: {why}");
        self.stop.refuse(PreemptRefusal::ReducerNotSavable);
        self.report();
    }

    #[cold]
    fn report(&mut self) {
        let part = (self.byte_progress.before + self.read) as f64 / self.byte_progress.whole.max(1) as f64;
        self.io.progress(&Progress {
            done: (STAGES - 1.0 + part.min(1.0)) / STAGES,
            stage: "reduce",
            bytes_in: self.byte_progress.shuffled,
            bytes_out: self.bytes_out,
            status: self.status.take(),
        });
    }

    /// The values of a group, watched.
    pub(super) fn group<'w, V: Values>(&'w mut self, key: &[u8], values: V) -> ReportedValues<'w, 'a, V> {
        ReportedValues { values, record_bytes: key.len() + LENGTHS_BYTES, watch: self }
    }
}

pub(super) struct ReportedValues<'a, 'io, V> {
    values: V,
    watch: &'a mut ReduceProgress<'io>,
    /// Of a record without its value: the keys of a group are taken for equally long.
    record_bytes: usize,
}

impl<V: Values> Values for ReportedValues<'_, '_, V> {
    #[inline]
    fn next(&mut self) -> Result<Option<&[u8]>, TaskError> {
        let value = self.values.next()?;
        if let Some(value) = value {
            self.watch.record(self.record_bytes + value.len())?;
        }
        Ok(value)
    }

    #[inline]
    fn next_pair(&mut self) -> Result<Option<Pair<'_>>, TaskError> {
        let pair = self.values.next_pair()?;
        if let Some((_, value)) = pair {
            self.watch.record(self.record_bytes + value.len())?;
        }
        Ok(pair)
    }

    fn key(&self) -> &[u8] {
        self.values.key()
    }
}
