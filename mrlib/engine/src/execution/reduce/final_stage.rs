//! The last stage of a reduce: merges the runs and calls the reducer.

use super::{
    super::{TaskIo, TaskOutcome},
    CountersAndPieces, PausedReduce, ReduceTask, StagesEnd,
    final_progress::{ByteProgress, Output, ReduceProgress},
};
use crate::{
    checkpoint::{RECORDS_COUNTER, ReduceState, SHUFFLE_COUNTER, SourceRun, Stage},
    merge::{Groups, Merge, SortOrder},
    segment::Run,
};
use mrlib_api::{Context, IdentityReducer, Job, PreemptRefusal, Reducer, StateBetweenKeys, TaskError};

const OUTPUT_COUNTER: &str = "OUTPUT_BYTES";

/// The state of the last stage.
struct FinalStage {
    reducer: Box<dyn Reducer>,
    groups: Groups<Merge>,
    out: Output,
    context: Context,
    /// Key groups that this attempt has processed.
    group_count: u64,
}

/// Calls the reducer until the end, or until a checkpoint is to be saved.
pub(super) fn reduce(
    job: &Job,
    task: &ReduceTask,
    pace: Option<u64>,
    state: ReduceState,
    io: &mut dyn TaskIo,
) -> Result<StagesEnd, TaskError> {
    let runs: Vec<Run> = state.runs.iter().map(|source| source.run.clone()).collect();
    let order = SortOrder { keys: job.order, values: job.sort_values };
    let groups = Groups::new(Merge::open(&runs, order)?, job.grouping.unwrap_or(job.order));
    let byte_progress = ByteProgress {
        bytes_total: state.consumed_bytes + runs.iter().map(raw_bytes).sum::<u64>(),
        bytes_before: state.consumed_bytes
            + runs.iter().filter_map(|run| run.start).map(|start| start.raw + start.at).sum::<u64>(),
        bytes_shuffled: state.counters.get(SHUFFLE_COUNTER).copied().unwrap_or(0),
    };
    let mut work = FinalStage::new(job, task, groups, &state, io)?;
    if let StateBetweenKeys::NotSavable(why) = work.reducer.state_between_keys() {
        io.control().refuse_all(PreemptRefusal::ReducerNotSavable, why);
    }
    let mut progress = ReduceProgress::new(io, byte_progress, pace, !task.checkpoint_dirs.is_empty());
    while let Some((key, values)) = work.groups.next()? {
        if work.group_count == 0 && state.is_resuming {
            for (counter, more) in task.resume_counters() {
                work.context.count(counter, more);
            }
        }
        work.group_count += 1;
        let mut counted_values = progress.count_values(key, values);
        work.reducer.reduce(key, &mut counted_values, &mut work.out, &mut work.context)?;
        // After the last group, finishing is faster than a checkpoint.
        if progress.pause_after_group(&work.out, &mut work.context)? && work.groups.skip_to_next_group()? {
            return work.pause(byte_progress.bytes_total);
        }
    }
    work.reducer.finish(&mut work.out, &mut work.context)?;
    let (counters, pieces) = work.close()?;
    let bytes_out = counters.get(OUTPUT_COUNTER).copied().unwrap_or(0);
    Ok(StagesEnd::Done(TaskOutcome { counters, pieces, bytes_out, position: 0 }))
}

/// Returns the uncompressed bytes of the records of a run.
fn raw_bytes(run: &Run) -> u64 {
    run.parts().map(|part| part.extent.raw).sum()
}

impl FinalStage {
    fn new(
        job: &Job,
        task: &ReduceTask,
        groups: Groups<Merge>,
        state: &ReduceState,
        io: &mut dyn TaskIo,
    ) -> Result<Self, TaskError> {
        let mut reducer: Box<dyn Reducer> = match &job.reducer {
            Some(make) => make(&task.conf)?,
            None => Box::new(IdentityReducer),
        };
        if state.stage == Stage::Reduce && reducer.state_between_keys() == StateBetweenKeys::Savable {
            reducer.restore(&state.reducer)?;
        }
        let liveness = io.liveness();
        let mut context = Context::new(liveness.clone(), io.control());
        for (name, value) in &state.counters {
            context.count(name, *value);
        }
        let out = Output { sink: io.open_output(job.output, state.pieces.clone())?, records: 0, liveness };
        Ok(Self { reducer, groups, out, context, group_count: 0 })
    }

    /// Closes the output. Returns the counters and the pieces.
    fn close(mut self) -> Result<CountersAndPieces, TaskError> {
        let bytes_out = self.out.sink.bytes();
        let pieces = self.out.sink.finish()?;
        let counters = [
            ("REDUCE_INPUT_GROUPS", self.group_count),
            (RECORDS_COUNTER, self.groups.records()),
            ("REDUCE_OUTPUT_RECORDS", self.out.records),
            (OUTPUT_COUNTER, bytes_out),
        ];
        for (name, value) in counters {
            self.context.count(name, value);
        }
        self.context.check()?;
        Ok((self.context.counters(), pieces))
    }

    /// Stops between two key groups, for a checkpoint.
    fn pause(mut self, total_bytes: u64) -> Result<StagesEnd, TaskError> {
        let reducer = match self.reducer.state_between_keys() {
            StateBetweenKeys::Savable => self.reducer.save(&mut self.out, &mut self.context)?,
            StateBetweenKeys::None | StateBetweenKeys::NotSavable(_) => Vec::new(),
        };
        // Runs that were read completely are not needed any more.
        let rest = self.groups.cursor().remainders().into_iter().flatten();
        let runs: Vec<SourceRun> = rest.map(|run| SourceRun { run, map: None }).collect();
        let unread_bytes = runs.iter().map(|source| raw_bytes(&source.run)).sum::<u64>();
        let consumed_bytes = total_bytes - unread_bytes.min(total_bytes);
        let state =
            ReduceState { stage: Stage::Reduce, runs, reducer, consumed_bytes, ..ReduceState::default() };
        Ok(StagesEnd::Paused(PausedReduce { state, close_output: Some(Box::new(|| self.close())) }))
    }
}
