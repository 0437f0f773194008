//! `mrctl sim fuzz`: random simulations on all CPU cores.

use crate::output::{self, SimulationProgress, Usage, whole_number};
use anyhow::{Result, bail};
use sim::fuzz::{self, EventCounts, FailedRun};
use std::{
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Instant,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl sim fuzz --from 1000 --seeds 500\n  mrctl sim fuzz --seed 7")]
pub(crate) struct Args {
    /// Number of runs, each with its own seed
    #[arg(long, allow_negative_numbers = true, default_value_t = 500, value_parser = whole_number(1..))]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run only this seed
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(seed) = args.seed {
        let outcome = fuzz::run_seed(seed)?;
        output::line(format!("seed {seed}: {} events, trace {:016x}", outcome.events, outcome.hash))?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(end) = args.from.checked_add(args.seeds) else {
        let max = u64::MAX;
        return Err(Usage(format!("--from {}: the last seed must be at most {max}", args.from)).into());
    };
    let started = Instant::now();
    let seen = merge_results(run_threads(args, end), args.seeds)?;
    let elapsed_s = started.elapsed().as_secs_f64();
    output::line(format!(
        "{} runs, {} events ({:.0} per second), no invariant violated; {} faults, {} restarts of the JobTracker, {} jobs ({} \
         failed), {} splits, {} pauses, {} resumes, {} kills, {} speculative attempts, {} tasks \
         recovered",
        seen.runs,
        seen.events,
        seen.events as f64 / elapsed_s.max(1e-9),
        seen.faults,
        seen.restarts,
        seen.jobs,
        seen.failed,
        seen.splits,
        seen.pauses,
        seen.resumes,
        seen.kills,
        seen.speculative_attempts,
        seen.recovered
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The result of the runs of one thread; the outer error means that the thread panicked.
type ThreadResult = thread::Result<Result<EventCounts, FailedRun>>;

fn run_threads(args: &Args, end: u64) -> Vec<ThreadResult> {
    let parts = thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let (runs, started_runs) = (SimulationProgress::new(), AtomicUsize::new(0));
    let report = || {
        let (done, of) = (started_runs.fetch_add(1, Ordering::Relaxed), args.seeds as usize);
        let is_tenth = done > 0 && done.is_multiple_of((of / 10).max(1));
        runs.update("", done, of, is_tenth.then(|| "no invariant violated so far".to_owned()).as_ref());
    };
    thread::scope(|scope| {
        let part = |at: u64| {
            let seeds = (args.from..end).skip(at as usize).step_by(parts as usize).inspect(|_| report());
            scope.spawn(move || fuzz::run_seeds(seeds))
        };
        let parts: Vec<_> = (0..parts).map(part).collect();
        parts.into_iter().map(thread::ScopedJoinHandle::join).collect()
    })
}

/// Merges the results of all threads. It is an error if some of the `runs` have no result, because
/// they must not count as passed.
fn merge_results(parts: Vec<ThreadResult>, runs: u64) -> Result<EventCounts> {
    let (mut seen, mut is_lost) = (EventCounts::default(), false);
    for part in parts {
        match part {
            Ok(part) => seen = seen.with(&part?),
            Err(_) => is_lost = true,
        }
    }
    if is_lost || seen.runs != runs {
        bail!("only {} of {runs} runs were completed, because a thread panicked: see above", seen.runs);
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_runs_do_not_count_as_passed() {
        let part = |runs| Ok(Ok(EventCounts { runs, ..EventCounts::default() }));
        assert_eq!(merge_results(vec![part(3), part(2)], 5).expect("all five").runs, 5);
        let panicked = || Err(Box::new("index out of bounds") as Box<dyn std::any::Any + Send>);
        for parts in [vec![part(3), panicked()], vec![part(3), part(1)], vec![part(5), panicked()]] {
            assert!(merge_results(parts, 5).is_err());
        }
        // A failed run has precedence over a panicked thread, because its error names the seed.
        let broken = sim::RuleViolation { at: "0".into(), what: "a rule".into() };
        let bad = FailedRun { seed: 9, scheduler: "fifo".into(), broken };
        let error =
            merge_results(vec![panicked(), Ok(Err(bad))], 5).map(|_| ()).expect_err("bad").to_string();
        assert!(error.contains("mrctl sim fuzz --seed 9"), "{error}");
    }
}
