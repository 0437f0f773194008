//! Runs a reduce: shuffle, merge, reduce; begun anew, or gone on with from where another attempt was checkpointed.
//!
//! Runs are merged in the order of their maps' places in the input, whatever memory or disk they came to lie on, so that
//! the same map outputs give the same output bytes. A reduce that is to be checkpointed leaves off where its stage can: a
//! shuffle with the outputs that are here, a merge with what it has made and the rest of what it was making it of, the
//! last stage between two key groups. What it leaves is a [`ReduceState`], and a reduce that takes it up gives the same bytes
//! and counts every record once. Where there is no room for it on any disk, or it is longer than any may be, the reduce
//! takes it up itself and continues.

mod final_progress;
mod final_stage;

#[cfg(test)]
mod tests;

use super::{
    Liveness, Meter, PreemptRefusal, PreemptRequest, Progress, Settings, TaskIo, TaskOutcome, disk_failed,
};
use crate::{
    checkpoint::{self, CheckpointSource, ReduceState, SourceRun, Stage},
    conf::Conf,
    error::TaskError,
    fetch::{
        FetchListener, FetchOptions, FetchProgress, Fetched, MapFeed, Shuffled, fetch_all,
        remote_checkpoint::RemoteCheckpoint,
    },
    job::Job,
    merge::{Fewer, OpenPass, SortOrder, factor_for, merge_down},
    segment::{Run, Stored},
    task,
};
use proto::mr::FetchFailed;
use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc, thread, time::Instant};

/// Of a task's memory, the part for fetched outputs; the rest is for merging.
const SHUFFLE_FRACTION: f64 = 0.6;
/// Of a task's memory, the part for the blocks of runs that are merged at the same time.
const BLOCKS_FRACTION: f64 = 0.25;
/// The three stages are taken for equally long.
const STAGES: f64 = 3.0;

/// CPU time of a task over all of its attempts that count.
pub(crate) const CPU_COUNTER: &str = "CPU_MILLISECONDS";
pub(crate) const SHUFFLE_COUNTER: &str = "SHUFFLE_BYTES";
pub(crate) const RECORDS_COUNTER: &str = "REDUCE_INPUT_RECORDS";
/// From the word that it is to be checkpointed until all but the list of its state was on the disks, over all pauses; and
/// what had to be written for that because it was in memory.
const PAUSE_COUNTER: &str = "PAUSE_MILLISECONDS";
const MEMORY_COUNTER: &str = "CHECKPOINT_MEMORY_BYTES";
/// How often it was resumed; from an attempt's start until it went on where it was, in its last stage with the
/// first record, over all of them; and what came from other nodes for that.
const RESUMES_COUNTER: &str = "RESUMES";
const RESUME_COUNTER: &str = "RESUME_MILLISECONDS";
const COPIED_COUNTER: &str = "CHECKPOINT_COPIED_BYTES";

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
    /// Told of each map output that could not be fetched.
    pub fetch_failed: Arc<dyn Fn(FetchFailed) + Send + Sync>,
    /// Folders to save its checkpoint in, best one a disk; without any it cannot be checkpointed.
    pub checkpoint_dirs: Vec<PathBuf>,
    /// The state to take up.
    pub from: Option<CheckpointSource>,
    /// When the attempt was begun with.
    pub started: Instant,
}

impl ReduceTask {
    /// What to count when it has taken up a state and continues.
    fn resumed(&self) -> [(&'static str, u64); 2] {
        [(RESUMES_COUNTER, 1), (RESUME_COUNTER, self.started.elapsed().as_millis() as u64)]
    }
}

/// How a reduce ended, if well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReduceEnd {
    /// It is done.
    Done(TaskOutcome),
    /// Its state is checkpointed, as it was told.
    Paused(Paused),
}

/// What a paused reduce tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paused {
    /// Where it continues.
    pub stage: Stage,
    /// The size of its checkpoint.
    pub bytes: u64,
}

/// Runs it to the end, or until it is to be checkpointed.
pub fn run_reduce(job: &Job, task: &ReduceTask, io: &mut dyn TaskIo) -> Result<ReduceEnd, TaskError> {
    let ran = run(job, task, io);
    match ran {
        // What shows only when it is read.
        Err(error) if task.from.is_some() => Err(of_state(task, error)),
        ran => ran,
    }
}

/// Damage, and files of the state that are gone or cut off, are told as the state's, not as this task's.
fn of_state(task: &ReduceTask, error: TaskError) -> TaskError {
    let dirs = task.from.iter().flat_map(|origin| &origin.dirs);
    let names_it = |what: &str| dirs.clone().any(|dir| what.contains(&*dir.to_string_lossy()));
    let gone =
        |source: &io::Error| matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof);
    let is_its = match &error {
        TaskError::Damaged { .. } => true,
        TaskError::Io { what, source } => gone(source) && names_it(what),
        _ => false,
    };
    if is_its { TaskError::CheckpointCorrupt(error.to_string()) } else { error }
}

fn run(job: &Job, task: &ReduceTask, io: &mut dyn TaskIo) -> Result<ReduceEnd, TaskError> {
    let settings = Settings::new(job, &task.conf)?;
    let memory = settings.sort_memory.unwrap_or_else(|| io.memory_bytes());
    let mut state = restore(task, io)?;
    loop {
        let left = match go_on(job, task, (&settings, memory), state, io)? {
            Stop::Done(outcome) => return Ok(ReduceEnd::Done(outcome)),
            Stop::Stopped(left) => left,
        };
        let (closed, entry) = save_checkpoint(task, left, io)?;
        let error = match entry {
            Ok(bytes) => return Ok(ReduceEnd::Paused(Paused { stage: closed.stage, bytes })),
            Err(error) => error,
        };
        let Some(refusal) = refusal(&error) else { return Err(error) };
        eprintln!("pause refused: its checkpoint cannot be saved: {error}");
        io.stop().refuse(refusal);
        state = closed;
    }
}

/// Why it continues, if that is why its state could not be checkpointed.
pub(crate) fn refusal(error: &TaskError) -> Option<PreemptRefusal> {
    match error {
        _ if disk_failed(error) => Some(PreemptRefusal::NoSpace),
        // Its reducer carries more than is ever read back.
        TaskError::Io { source, .. } if source.kind() == io::ErrorKind::FileTooLarge => {
            Some(PreemptRefusal::ReducerNotSavable)
        }
        _ => None,
    }
}

/// Where a reduce has come to.
enum Stop {
    /// The end.
    Done(TaskOutcome),
    /// It is to be checkpointed.
    Stopped(Stopped),
}

/// Counters over all attempts so far, and pieces.
type Closed = (BTreeMap<String, u64>, Vec<String>);

/// Where a reduce has left off.
struct Stopped {
    state: ReduceState,
    /// What is still to be done to have the state's counters and pieces.
    close: Option<Box<dyn FnOnce() -> Result<Closed, TaskError>>>,
}

impl From<ReduceState> for Stop {
    fn from(state: ReduceState) -> Self {
        Self::Stopped(Stopped { state, close: None })
    }
}

/// Runs on from a state, to the end or until it is to be checkpointed.
fn go_on(
    job: &Job,
    task: &ReduceTask,
    (settings, memory): (&Settings, u64),
    mut state: ReduceState,
    io: &mut dyn TaskIo,
) -> Result<Stop, TaskError> {
    if state.stage == Stage::Shuffle {
        let Shuffled { outputs, all } =
            shuffle(task, settings, share(memory, SHUFFLE_FRACTION), &mut state, io)?;
        let run_of_map = outputs.into_iter().map(|Fetched { attempt, root, start, run }| SourceRun {
            run,
            map: Some((attempt, root, start)),
        });
        if !all {
            state.runs = run_of_map.collect();
            return Ok(state.into());
        }
        // From now on only their order counts.
        let merged = run_of_map
            .filter(|run_of_map| run_of_map.run.extent.records > 0)
            .map(|run_of_map| SourceRun { map: None, ..run_of_map });
        (state.runs, state.stage) = (merged.collect(), Stage::Merge);
    }
    if state.stage == Stage::Merge {
        let runs = std::mem::take(&mut state.runs).into_iter().map(|run_of_map| run_of_map.run).collect();
        let Fewer { runs, open, enough } = merge(job, task, settings, (runs, state.open), memory, io)?;
        state.runs = runs.into_iter().map(|run| SourceRun { run, map: None }).collect();
        state.open = open;
        if !enough {
            return Ok(state.into());
        }
    }
    if is_wanted(task, io)? {
        return Ok(state.into());
    }
    final_stage::reduce(job, task, settings.pace_reduce, state, io)
}

fn share(memory: u64, part: f64) -> u64 {
    (memory as f64 * part) as u64
}

/// Whether it is to be checkpointed, and can be.
fn is_wanted(task: &ReduceTask, io: &dyn TaskIo) -> Result<bool, TaskError> {
    Ok(io.stop().preempt_request()? == PreemptRequest::Pause && !task.checkpoint_dirs.is_empty())
}

/// The state to begin with.
fn restore(task: &ReduceTask, io: &mut dyn TaskIo) -> Result<ReduceState, TaskError> {
    let Some(origin) = &task.from else { return Ok(ReduceState::default()) };
    let (stop, liveness, scratch) = (io.stop(), io.liveness(), io.scratch());
    io.progress(&Progress { stage: "shuffle", ..Progress::default() });
    let mut ship = RemoteCheckpoint::new(&origin.addr, &task.token, &origin.attempt, stop, liveness);
    ship.connector = io.connector();
    let mut state = checkpoint::restore(origin, task.partition, &scratch, &mut ship)?;
    *state.counters.entry(COPIED_COUNTER.into()).or_default() += ship.bytes;
    if state.stage != Stage::Reduce {
        for (counter, more) in task.resumed() {
            *state.counters.entry(counter.into()).or_default() += more;
        }
    }
    Ok(state)
}

/// Saves a checkpoint as this attempt's: the whole of it, and how long it is or why it could not be. Somebody waits for
/// the slot: the disks write its runs while the file system takes the last of its output.
fn save_checkpoint(
    task: &ReduceTask,
    left: Stopped,
    io: &mut dyn TaskIo,
) -> Result<(ReduceState, Result<u64, TaskError>), TaskError> {
    let Stopped { mut state, close, .. } = left;
    io.liveness().mark_alive();
    let runs = &state.runs;
    let (started, closed) = thread::scope(|scope| {
        let save = || checkpoint::begin(&task.checkpoint_dirs, runs);
        let Some(close) = close else { return (save(), Ok(None)) };
        let other = thread::Builder::new().spawn_scoped(scope, save);
        let closed = close().map(Some);
        // Where there is no thread to be had, this one does both.
        let started = other.ok().and_then(|other| other.join().ok());
        (started.unwrap_or_else(save), closed)
    });
    if let Some((counters, pieces)) = closed? {
        (state.counters, state.pieces) = (counters, pieces);
    }
    // These counters are the paused attempt's, whether it comes to that or not.
    let mut paused = state.clone();
    let requested_at =
        io.stop().requested_at().map_or(0, |requested_at| requested_at.elapsed().as_millis() as u64);
    for (counter, more) in [
        (CPU_COUNTER, io.cpu_milliseconds()),
        (PAUSE_COUNTER, requested_at),
        (MEMORY_COUNTER, started.memory_bytes()),
    ] {
        *paused.counters.entry(counter.into()).or_default() += more;
    }
    let attempt = task.conf.get(task::TASK_ATTEMPT).unwrap_or_default();
    let entry = started.end(&task.checkpoint_dirs, attempt, task.partition, &paused);
    Ok((state, entry))
}

struct ShuffleListener<'a> {
    io: &'a mut dyn TaskIo,
    task: &'a ReduceTask,
    liveness: Liveness,
    /// Fetched by attempts before this one.
    before: u64,
    bytes: u64,
}

impl FetchListener for ShuffleListener<'_> {
    fn progress(&mut self, progress: FetchProgress) {
        self.bytes = progress.bytes;
        let part = f64::from(progress.fetched_count) / f64::from(progress.maps.max(1));
        let done = part.min(1.0) / STAGES;
        self.io.progress(&Progress {
            done,
            stage: "shuffle",
            bytes_in: self.before + progress.bytes,
            ..Progress::default()
        });
    }

    fn fetch_failed(&mut self, fetch_failed: FetchFailed) {
        (self.task.fetch_failed)(fetch_failed);
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
) -> Result<Shuffled, TaskError> {
    let (scratch, stop) = (io.scratch(), io.stop());
    let fetched = |SourceRun { run, map }: SourceRun| {
        let (attempt, root, start) = map?;
        Some(Fetched { attempt, root, start, run })
    };
    let before: Vec<Fetched> = std::mem::take(&mut state.runs).into_iter().filter_map(fetched).collect();
    let in_memory = before.iter().filter(|fetched| matches!(fetched.run.stored, Stored::Memory(_)));
    let memory = budget.saturating_sub(in_memory.map(|fetched| fetched.run.extent.stored).sum());
    let mut options = FetchOptions::new(task.partition, task.token.clone(), settings.fetch_parallel, memory);
    options.connector = io.connector();
    options.preemptible = !task.checkpoint_dirs.is_empty();
    let counted = state.counters.entry(SHUFFLE_COUNTER.into()).or_default();
    io.progress(&Progress { stage: "shuffle", bytes_in: *counted, ..Progress::default() });
    let mut listener = ShuffleListener { liveness: io.liveness(), io, task, before: *counted, bytes: 0 };
    let shuffled = fetch_all(&task.feed, &options, &scratch, &stop, before, &mut listener)?;
    *counted += listener.bytes;
    Ok(shuffled)
}

/// Makes the runs few enough to be merged at one time. Many small ones that fit into memory are few enough.
fn merge(
    job: &Job,
    task: &ReduceTask,
    settings: &Settings,
    (runs, open): (Vec<Run>, Option<OpenPass>),
    memory: u64,
    io: &mut dyn TaskIo,
) -> Result<Fewer, TaskError> {
    let stored: u64 = runs.iter().map(Run::left).sum();
    let room = |run: &Run| run.parts().map(|part| part.extent.room()).max().unwrap_or(0);
    let rooms: Vec<u64> = runs.iter().map(room).collect();
    let (budget, for_blocks) = (share(memory, SHUFFLE_FRACTION), share(memory, BLOCKS_FRACTION));
    let (scratch, stop) = (io.scratch(), io.stop());
    let at_merge = Progress { done: 1.0 / STAGES, stage: "merge", bytes_in: stored, ..Progress::default() };
    io.progress(&at_merge);
    if open.is_none() && stored <= budget && rooms.iter().sum::<u64>() <= for_blocks {
        return Ok(Fewer { runs, open, enough: true });
    }
    let order = SortOrder { keys: job.order, values: job.sort_values };
    let (mut meter, liveness, preemptible) =
        (Meter::new(None, false, io.liveness()), io.liveness(), !task.checkpoint_dirs.is_empty());
    let mut step = || {
        if meter.tick(0, &stop)? {
            io.progress(&at_merge);
        }
        liveness.mark_alive();
        Ok(stop.preempt_request()? != PreemptRequest::Pause || !preemptible)
    };
    let factor = factor_for(rooms, for_blocks, settings.merge_factor);
    merge_down(runs, open, order, factor, settings.compress, &scratch, &mut step)
}
