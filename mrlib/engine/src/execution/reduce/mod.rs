//! Runs a reduce through shuffle, merge and reduce, from the start or from a checkpoint.
//!
//! Runs are merged in the order of their maps in the input, wherever they are stored, so that the
//! same map outputs always give the same bytes of output.
//!
//! A reduce can be paused in every stage: in the shuffle with the outputs fetched so far, in a
//! merge with the run written so far and the remainders of its inputs, in the last stage between
//! two key groups. The result is a [`ReduceState`]. A reduce that resumes from it gives the same
//! output and counts every record once. If no disk has enough space for the checkpoint, or it would
//! be too large, the same attempt continues from that state.

mod final_progress;
mod final_stage;

#[cfg(test)]
mod tests;

use super::{Meter, Progress, TaskIo, TaskOutcome};
use crate::{
    checkpoint::{self, CheckpointSource, ReduceState, SHUFFLE_COUNTER, SourceRun, Stage},
    fetch::{
        FetchListener, FetchOptions, FetchProgress, FetchedOutput, MapFeed, ShuffleResult, fetch_all,
        remote_checkpoint::RemoteCheckpoint,
    },
    merge::{MergeResult, OpenPass, SortOrder, factor_for, merge_down},
    scratch::disk_failed,
    segment::{Run, Stored},
    settings::Settings,
};
use mrlib_api::{Conf, Job, Liveness, PreemptKind, PreemptRefusal, TaskError, task_settings};
use proto::mr::FetchFailed;
use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc, thread, time::Instant};

/// Fraction of the memory of a task that fetched outputs may use. The remainder is for merging.
const SHUFFLE_FRACTION: f64 = 0.6;
/// Fraction of the memory of a task that the blocks of runs may use while they are merged.
const BLOCKS_FRACTION: f64 = 0.25;
/// Number of stages. The progress assumes that all take equally long.
const STAGES: f64 = 3.0;

/// The counter of the CPU time of a task, over all attempts whose work counts.
pub(crate) const CPU_COUNTER: &str = "CPU_MILLISECONDS";
/// The counter of milliseconds from the request to pause until all runs were saved, over all
/// pauses.
const PAUSE_COUNTER: &str = "PAUSE_MILLISECONDS";
/// The counter of bytes that checkpoints had to write because the runs were in memory.
const MEMORY_COUNTER: &str = "CHECKPOINT_MEMORY_BYTES";
/// The counter of how often the reduce was resumed.
const RESUMES_COUNTER: &str = "RESUMES";
/// The counter of milliseconds from the start of an attempt until it had resumed, over all
/// attempts. In the last stage an attempt has resumed when it processes its first record.
const RESUME_COUNTER: &str = "RESUME_MILLISECONDS";
/// The counter of bytes of checkpoints that were copied from other nodes.
const COPIED_COUNTER: &str = "CHECKPOINT_COPIED_BYTES";

/// A reduce to run.
#[derive(Clone)]
pub struct ReduceTask {
    /// The index of the reduce.
    pub partition: u32,
    /// The settings of the job.
    pub conf: Conf,
    /// The list of map events, which grows while the reduce runs.
    pub feed: Arc<MapFeed>,
    /// The token for shuffle servers, which is valid for the partition of this reduce.
    pub token: Vec<u8>,
    /// Called for each map output that could not be fetched.
    pub fetch_failed: Arc<dyn Fn(FetchFailed) + Send + Sync>,
    /// Folders for a checkpoint, ideally one per disk. If empty, the reduce cannot be paused.
    pub checkpoint_dirs: Vec<PathBuf>,
    /// The checkpoint to resume from.
    pub resume_from: Option<CheckpointSource>,
    /// When the attempt was started.
    pub started: Instant,
}

impl ReduceTask {
    /// Returns the counters to add when the reduce has resumed.
    fn resume_counters(&self) -> [(&'static str, u64); 2] {
        [(RESUMES_COUNTER, 1), (RESUME_COUNTER, self.started.elapsed().as_millis() as u64)]
    }
}

/// How a reduce ended without an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReduceEnd {
    /// The reduce is complete.
    Done(TaskOutcome),
    /// A checkpoint was saved as requested. The reduce resumes in this stage.
    Paused(Stage),
}

/// Runs a reduce to the end, or until it is paused.
pub fn run_reduce(job: &Job, task: &ReduceTask, io: &mut dyn TaskIo) -> Result<ReduceEnd, TaskError> {
    let ran = run(job, task, io);
    match ran {
        // Some damage of a checkpoint shows only when its runs are read.
        Err(error) if task.resume_from.is_some() => Err(as_checkpoint_error(task, error)),
        ran => ran,
    }
}

/// Turns every error about damaged data, and errors about missing or truncated files in the
/// checkpoint folders, into `CheckpointCorrupt`.
fn as_checkpoint_error(task: &ReduceTask, error: TaskError) -> TaskError {
    let dirs = task.resume_from.iter().flat_map(|source| &source.dirs);
    let is_in_checkpoint = |what: &str| dirs.clone().any(|dir| what.contains(&*dir.to_string_lossy()));
    let gone =
        |source: &io::Error| matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof);
    let is_corrupt = match &error {
        TaskError::Damaged { .. } => true,
        TaskError::Io { what, source } => gone(source) && is_in_checkpoint(what),
        _ => false,
    };
    if is_corrupt { TaskError::CheckpointCorrupt(error.to_string()) } else { error }
}

fn run(job: &Job, task: &ReduceTask, io: &mut dyn TaskIo) -> Result<ReduceEnd, TaskError> {
    let settings = Settings::new(job, &task.conf)?;
    let memory = settings.sort_memory.unwrap_or_else(|| io.memory_bytes());
    let mut state = restore(task, io)?;
    loop {
        let left = match run_stages(job, task, (&settings, memory), state, io)? {
            StagesEnd::Done(outcome) => return Ok(ReduceEnd::Done(outcome)),
            StagesEnd::Paused(left) => left,
        };
        let (closed, entry) = save_checkpoint(task, left, io)?;
        let Err(error) = entry else { return Ok(ReduceEnd::Paused(closed.stage)) };
        let Some(refusal) = refusal(&error) else { return Err(error) };
        eprintln!("pause refused: the checkpoint cannot be saved: {error}");
        io.control().refuse(refusal);
        state = closed;
    }
}

/// Returns the refusal if the error means that the reduce continues without a checkpoint.
pub(crate) fn refusal(error: &TaskError) -> Option<PreemptRefusal> {
    match error {
        _ if disk_failed(error) => Some(PreemptRefusal::NoSpace),
        // The state of the reducer is too large: the checkpoint could not be restored.
        TaskError::Io { source, .. } if source.kind() == io::ErrorKind::FileTooLarge => {
            Some(PreemptRefusal::ReducerNotSavable)
        }
        _ => None,
    }
}

/// How an execution of the stages ended.
enum StagesEnd {
    /// The reduce is complete.
    Done(TaskOutcome),
    /// A checkpoint is to be saved.
    Paused(PausedReduce),
}

/// The counters over all attempts so far, and the pieces.
type CountersAndPieces = (BTreeMap<String, u64>, Vec<String>);

/// A reduce that has stopped between two steps because a checkpoint is to be saved.
struct PausedReduce {
    state: ReduceState,
    /// Closes the output and returns the final counters and pieces.
    close_output: Option<Box<dyn FnOnce() -> Result<CountersAndPieces, TaskError>>>,
}

impl From<ReduceState> for StagesEnd {
    fn from(state: ReduceState) -> Self {
        Self::Paused(PausedReduce { state, close_output: None })
    }
}

/// Continues from a state, to the end or until a checkpoint is to be saved.
fn run_stages(
    job: &Job,
    task: &ReduceTask,
    (settings, memory): (&Settings, u64),
    mut state: ReduceState,
    io: &mut dyn TaskIo,
) -> Result<StagesEnd, TaskError> {
    if state.stage == Stage::Shuffle {
        let ShuffleResult { outputs, is_complete } =
            shuffle(task, settings, fraction_of(memory, SHUFFLE_FRACTION), &mut state, io)?;
        let source_runs = outputs.into_iter().map(|FetchedOutput { attempt, root, start, run }| SourceRun {
            run,
            map: Some((attempt, root, start)),
        });
        if !is_complete {
            state.runs = source_runs.collect();
            return Ok(state.into());
        }
        // From here on only the order of the runs matters.
        let merged = source_runs
            .filter(|source| source.run.extent.records > 0)
            .map(|source| SourceRun { map: None, ..source });
        (state.runs, state.stage) = (merged.collect(), Stage::Merge);
    }
    if state.stage == Stage::Merge {
        let runs = std::mem::take(&mut state.runs).into_iter().map(|source| source.run).collect();
        let MergeResult { runs, open_pass, is_done } =
            merge(job, task, settings, (runs, state.open_pass), memory, io)?;
        state.runs = runs.into_iter().map(|run| SourceRun { run, map: None }).collect();
        state.open_pass = open_pass;
        if !is_done {
            return Ok(state.into());
        }
    }
    if pause_requested(task, io)? {
        return Ok(state.into());
    }
    final_stage::reduce(job, task, settings.pace_reduce, state, io)
}

fn fraction_of(memory: u64, fraction: f64) -> u64 {
    (memory as f64 * fraction) as u64
}

/// Returns whether a checkpoint is requested and possible.
fn pause_requested(task: &ReduceTask, io: &dyn TaskIo) -> Result<bool, TaskError> {
    Ok(io.control().preempt_request()? == Some(PreemptKind::Pause) && !task.checkpoint_dirs.is_empty())
}

/// Returns the state to start from: that of the checkpoint, or the initial state.
fn restore(task: &ReduceTask, io: &mut dyn TaskIo) -> Result<ReduceState, TaskError> {
    let Some(source) = &task.resume_from else { return Ok(ReduceState::default()) };
    let (control, liveness, scratch) = (io.control(), io.liveness(), io.scratch());
    io.progress(&Progress { stage: Stage::Shuffle, ..Progress::default() });
    let mut remote = RemoteCheckpoint::new(&source.addr, &task.token, &source.attempt, control, liveness);
    remote.connector = io.connector();
    let mut state = checkpoint::restore(source, task.partition, &scratch, &mut remote)?;
    *state.counters.entry(COPIED_COUNTER.into()).or_default() += remote.bytes;
    if state.stage != Stage::Reduce {
        for (counter, more) in task.resume_counters() {
            *state.counters.entry(counter.into()).or_default() += more;
        }
    }
    Ok(state)
}

/// Saves a checkpoint for this attempt. Returns the complete state, and the size of the checkpoint
/// or the error. The JobTracker waits for the slot, so runs are saved while the output is closed.
fn save_checkpoint(
    task: &ReduceTask,
    left: PausedReduce,
    io: &mut dyn TaskIo,
) -> Result<(ReduceState, Result<u64, TaskError>), TaskError> {
    let PausedReduce { mut state, close_output, .. } = left;
    io.liveness().mark_alive();
    let runs = &state.runs;
    let (started, closed) = thread::scope(|scope| {
        let save = || checkpoint::begin_save(&task.checkpoint_dirs, runs);
        let Some(close_output) = close_output else { return (save(), Ok(None)) };
        let other = thread::Builder::new().spawn_scoped(scope, save);
        let closed = close_output().map(Some);
        // If no thread can be started, the current thread does both.
        let started = other.ok().and_then(|other| other.join().ok());
        (started.unwrap_or_else(save), closed)
    });
    if let Some((counters, pieces)) = closed? {
        (state.counters, state.pieces) = (counters, pieces);
    }
    // Only the checkpoint has these counters. If it cannot be saved, the attempt continues without
    // them.
    let mut paused = state.clone();
    let requested_at =
        io.control().requested_at().map_or(0, |requested_at| requested_at.elapsed().as_millis() as u64);
    for (counter, more) in [
        (CPU_COUNTER, io.cpu_milliseconds()),
        (PAUSE_COUNTER, requested_at),
        (MEMORY_COUNTER, started.memory_bytes()),
    ] {
        *paused.counters.entry(counter.into()).or_default() += more;
    }
    let attempt = task.conf.get(task_settings::TASK_ATTEMPT).unwrap_or_default();
    let entry = started.complete(&task.checkpoint_dirs, attempt, task.partition, &paused);
    Ok((state, entry))
}

struct ShuffleListener<'a> {
    io: &'a mut dyn TaskIo,
    task: &'a ReduceTask,
    liveness: Liveness,
    /// Bytes fetched by earlier attempts.
    bytes_before: u64,
    /// Bytes fetched by this attempt.
    bytes: u64,
}

impl FetchListener for ShuffleListener<'_> {
    fn progress(&mut self, progress: FetchProgress) {
        self.bytes = progress.bytes;
        let fraction = f64::from(progress.fetched_count) / f64::from(progress.maps.max(1));
        let done = fraction.min(1.0) / STAGES;
        self.io.progress(&Progress {
            done,
            stage: Stage::Shuffle,
            bytes_in: self.bytes_before + progress.bytes,
            ..Progress::default()
        });
    }

    fn fetch_failed(&mut self, failure: FetchFailed) {
        (self.task.fetch_failed)(failure);
    }

    fn mark_alive(&mut self) {
        self.liveness.mark_alive();
    }
}

fn shuffle(
    task: &ReduceTask,
    settings: &Settings,
    budget: u64,
    state: &mut ReduceState,
    io: &mut dyn TaskIo,
) -> Result<ShuffleResult, TaskError> {
    let (scratch, control) = (io.scratch(), io.control());
    let fetched = |SourceRun { run, map }: SourceRun| {
        let (attempt, root, start) = map?;
        Some(FetchedOutput { attempt, root, start, run })
    };
    let before: Vec<FetchedOutput> =
        std::mem::take(&mut state.runs).into_iter().filter_map(fetched).collect();
    let in_memory = before.iter().filter(|fetched| matches!(fetched.run.stored, Stored::Memory(_)));
    let memory = budget.saturating_sub(in_memory.map(|fetched| fetched.run.extent.stored).sum());
    let mut options = FetchOptions::new(task.partition, task.token.clone(), settings.fetch_parallel, memory);
    options.connector = io.connector();
    options.preemptible = !task.checkpoint_dirs.is_empty();
    let counted = state.counters.entry(SHUFFLE_COUNTER.into()).or_default();
    io.progress(&Progress { stage: Stage::Shuffle, bytes_in: *counted, ..Progress::default() });
    let mut listener =
        ShuffleListener { liveness: io.liveness(), io, task, bytes_before: *counted, bytes: 0 };
    let shuffled = fetch_all(&task.feed, &options, &scratch, &control, before, &mut listener)?;
    *counted += listener.bytes;
    Ok(shuffled)
}

/// Merges runs until the last stage can merge the rest in one pass. Runs that fit in memory
/// together are not merged here, whatever their number.
fn merge(
    job: &Job,
    task: &ReduceTask,
    settings: &Settings,
    (runs, open_pass): (Vec<Run>, Option<OpenPass>),
    memory: u64,
    io: &mut dyn TaskIo,
) -> Result<MergeResult, TaskError> {
    let stored: u64 = runs.iter().map(Run::unread_bytes).sum();
    let buffer = |run: &Run| run.parts().map(|part| part.extent.reader_bytes()).max().unwrap_or(0);
    let buffers: Vec<u64> = runs.iter().map(buffer).collect();
    let (budget, for_blocks) = (fraction_of(memory, SHUFFLE_FRACTION), fraction_of(memory, BLOCKS_FRACTION));
    let (scratch, control) = (io.scratch(), io.control());
    let at_merge =
        Progress { done: 1.0 / STAGES, stage: Stage::Merge, bytes_in: stored, ..Progress::default() };
    io.progress(&at_merge);
    if open_pass.is_none() && stored <= budget && buffers.iter().sum::<u64>() <= for_blocks {
        return Ok(MergeResult { runs, open_pass, is_done: true });
    }
    let order = SortOrder { keys: job.order, values: job.sort_values };
    let (mut meter, liveness, preemptible) =
        (Meter::new(None, false, io.liveness()), io.liveness(), !task.checkpoint_dirs.is_empty());
    let mut step = || {
        if meter.tick(0, &control)? {
            io.progress(&at_merge);
        }
        liveness.mark_alive();
        Ok(control.preempt_request()? != Some(PreemptKind::Pause) || !preemptible)
    };
    let factor = factor_for(buffers, for_blocks, settings.merge_factor);
    merge_down(runs, open_pass, order, factor, settings.compress, &scratch, &mut step)
}
