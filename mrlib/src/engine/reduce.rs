//! Runs a reduce: shuffle, merge, reduce.
//!
//! Runs are merged in the order of their maps' places in the input, whatever memory or disk they came to lie on, so that
//! the same map outputs give the same output bytes. [`Watch`] is told of every record and every key group: it is the one
//! place that knows how far the merge and the output are, where the stop flag is looked at, and where a pause will
//! enter.

use super::{Meter, OutputSink, Progress, Pulse, Settings, StopFlag, TaskIo, TaskOutcome};
use crate::{
    api::{Emit, Pair, Pass, Reducer, Values},
    conf::Conf,
    context::Context,
    error::TaskError,
    fetch::{FetchListener, FetchOptions, FetchProgress, MapFeed, fetch_all},
    job::Job,
    merge::{Groups, Merge, SortOrder, factor_for, merge_down},
    segment::Run,
};
use std::sync::Arc;

/// Of a task's memory, the part for fetched outputs; the rest is for merging.
const SHUFFLE_PART: f64 = 0.6;
/// Of a task's memory, the part for the blocks of runs that are merged at the same time.
const BLOCKS_PART: f64 = 0.25;
/// A record's lengths, most often.
const LENGTHS_BYTES: usize = 2;
/// The three stages are taken for equally long.
const STAGES: f64 = 3.0;

/// A reduce to run.
#[derive(Clone)]
pub struct ReduceTask {
    /// Which of the job's reduces.
    pub partition: u32,
    /// The job's settings.
    pub conf: Conf,
    /// The live list of map outputs.
    pub feed: Arc<MapFeed>,
    /// What shuffle servers know the job by.
    pub token: Vec<u8>,
    /// Told of each map attempt whose output could not be fetched.
    pub unfetched: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Runs it to the end.
pub fn run_reduce(job: &Job, task: &ReduceTask, io: &mut dyn TaskIo) -> Result<TaskOutcome, TaskError> {
    let settings = Settings::new(job, &task.conf)?;
    let memory = settings.sort_memory.unwrap_or_else(|| io.memory_bytes());
    let budget = (memory as f64 * SHUFFLE_PART) as u64;
    let (runs, shuffled) = shuffle(task, &settings, budget, io)?;
    let runs = merge(job, &settings, runs, memory, budget, io)?;
    let order = SortOrder { keys: job.order, values: job.sort_values };
    let merge = Merge::open(&runs, order)?;
    let input_bytes = runs.iter().map(|run| run.extent.raw).sum();
    let watch = Watch::new(io, input_bytes, shuffled, settings.pace_reduce);
    reduce(job, task, Groups::new(merge, job.grouping.unwrap_or(job.order)), watch)
}

struct Listener<'a> {
    io: &'a mut dyn TaskIo,
    task: &'a ReduceTask,
    pulse: Pulse,
    bytes: u64,
}

impl FetchListener for Listener<'_> {
    fn progress(&mut self, progress: FetchProgress) {
        self.bytes = progress.bytes;
        let part = f64::from(progress.here) / f64::from(progress.maps.max(1));
        let done = part.min(1.0) / STAGES;
        self.io.progress(&Progress {
            done,
            stage: "shuffle",
            bytes_in: progress.bytes,
            ..Progress::default()
        });
    }

    fn unfetched(&mut self, attempt: &str) {
        (self.task.unfetched)(attempt);
    }

    fn beat(&mut self) {
        self.pulse.beat();
    }
}

fn shuffle(
    task: &ReduceTask,
    settings: &Settings,
    budget: u64,
    io: &mut dyn TaskIo,
) -> Result<(Vec<Run>, u64), TaskError> {
    let (scratch, stop) = (io.scratch(), io.stop());
    let options = FetchOptions::new(task.partition, task.token.clone(), settings.fetch_parallel, budget);
    io.progress(&Progress { stage: "shuffle", ..Progress::default() });
    let mut listener = Listener { pulse: io.pulse(), io, task, bytes: 0 };
    let fetched = fetch_all(&task.feed, &options, &scratch, &stop, &mut listener)?;
    Ok((fetched.into_iter().map(|(_, run)| run).collect(), listener.bytes))
}

/// Makes the runs few enough to be merged at one time. Many small ones that fit into memory are few enough. What
/// decides is the same for every attempt: lengths, not where the bytes happen to lie.
fn merge(
    job: &Job,
    settings: &Settings,
    runs: Vec<Run>,
    memory: u64,
    budget: u64,
    io: &mut dyn TaskIo,
) -> Result<Vec<Run>, TaskError> {
    let stored: u64 = runs.iter().map(|run| run.extent.stored).sum();
    let rooms: Vec<u64> = runs.iter().map(|run| run.extent.room()).collect();
    let for_blocks = (memory as f64 * BLOCKS_PART) as u64;
    let (scratch, stop) = (io.scratch(), io.stop());
    let at_merge = Progress { done: 1.0 / STAGES, stage: "merge", bytes_in: stored, ..Progress::default() };
    io.progress(&at_merge);
    if stored <= budget && rooms.iter().sum::<u64>() <= for_blocks {
        return Ok(runs);
    }
    let order = SortOrder { keys: job.order, values: job.sort_values };
    let (mut meter, pulse) = (Meter::new(None, false, io.pulse()), io.pulse());
    let mut step = || {
        if meter.tick(0, &stop)? {
            io.progress(&at_merge);
        }
        pulse.beat();
        stop.check()
    };
    let factor = factor_for(rooms, for_blocks, settings.merge_factor);
    merge_down(runs, order, factor, settings.compress, &scratch, &mut step)
}

fn reduce(
    job: &Job,
    task: &ReduceTask,
    mut groups: Groups<Merge>,
    mut watch: Watch<'_>,
) -> Result<TaskOutcome, TaskError> {
    let mut reducer: Box<dyn Reducer> = match &job.reducer {
        Some(make) => make(&task.conf)?,
        None => Box::new(Pass),
    };
    let pulse = watch.io.pulse();
    let mut context = Context::new(pulse.clone(), watch.stop.clone());
    let mut out = Output { sink: watch.io.open_output(job.output)?, records: 0, pulse };
    let mut group_count = 0;
    while let Some((key, values)) = groups.next()? {
        group_count += 1;
        let record_bytes = key.len() + LENGTHS_BYTES;
        let mut watched = Watched { values, watch: &mut watch, record_bytes };
        reducer.reduce(key, &mut watched, &mut out, &mut context)?;
        watch.boundary(&out, &mut context)?;
    }
    reducer.finish(&mut out, &mut context)?;
    let bytes_out = out.sink.bytes();
    let records = out.records;
    let pieces = out.sink.finish()?;
    let counters = [
        ("SHUFFLE_BYTES", watch.shuffled),
        ("REDUCE_INPUT_GROUPS", group_count),
        ("REDUCE_INPUT_RECORDS", groups.records()),
        ("REDUCE_OUTPUT_RECORDS", records),
        ("OUTPUT_BYTES", bytes_out),
    ];
    for (name, value) in counters {
        context.count(name, value);
    }
    context.check()?;
    Ok(TaskOutcome { counters: context.counters(), pieces, bytes_out, position: 0 })
}

struct Output {
    sink: Box<dyn OutputSink>,
    records: u64,
    pulse: Pulse,
}

impl Emit for Output {
    #[inline]
    fn emit(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        self.records += 1;
        self.pulse.emitted(self.records);
        self.sink.write(key, value)
    }
}

/// Watches a reduce go by: tells progress, keeps the pace, sees the stop flag.
struct Watch<'a> {
    io: &'a mut dyn TaskIo,
    stop: StopFlag,
    meter: Meter,
    input_bytes: u64,
    shuffled: u64,
    /// Bytes of records so far, about.
    read: u64,
    bytes_out: u64,
    status: Option<String>,
}

impl<'a> Watch<'a> {
    fn new(io: &'a mut dyn TaskIo, input_bytes: u64, shuffled: u64, pace: Option<u64>) -> Self {
        let (stop, meter) = (io.stop(), Meter::new(pace, false, io.pulse()));
        let mut watch = Self { io, stop, meter, input_bytes, shuffled, read: 0, bytes_out: 0, status: None };
        watch.tell();
        watch
    }

    #[inline]
    fn record(&mut self, bytes: usize) -> Result<(), TaskError> {
        self.read += bytes as u64;
        if self.meter.tick(self.read, &self.stop)? {
            // A group may be long.
            self.stop.check()?;
            self.tell();
        }
        Ok(())
    }

    /// Between two key groups: nothing of the one before is left, nothing of the next has been taken.
    fn boundary(&mut self, out: &Output, context: &mut Context) -> Result<(), TaskError> {
        self.bytes_out = out.sink.bytes();
        if let Some(status) = context.take_status() {
            self.status = Some(status);
        }
        context.check()
    }

    #[cold]
    fn tell(&mut self) {
        let part = self.read as f64 / self.input_bytes.max(1) as f64;
        self.io.progress(&Progress {
            done: (STAGES - 1.0 + part.min(1.0)) / STAGES,
            stage: "reduce",
            bytes_in: self.shuffled,
            bytes_out: self.bytes_out,
            status: self.status.take(),
        });
    }
}

struct Watched<'a, 'io, V> {
    values: V,
    watch: &'a mut Watch<'io>,
    /// Of a record without its value: the keys of a group are taken for equally long.
    record_bytes: usize,
}

impl<V: Values> Values for Watched<'_, '_, V> {
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
