//! Runs the same jobs under several policies and seeds, and compares the results.

mod comparison;
mod variant;

use crate::{Outcome, Recording, RuleViolation, Setup, WhyError, Workload, World, fault::Fault};
pub(crate) use comparison::utilisation;
pub use comparison::{Change, Comparison, Figure, TimesAlone, makespan_s, reduce_wait_s};
use crossbeam::channel;
use mrcore::{
    PerPhase, Span,
    ids::JobId,
    metrics::{JobFigures, shares::MinShare},
};
use schedulers::{
    Params, PolicyError,
    explain::{Explanation, Subject},
};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};
pub use variant::{COMBINATIONS_MAX, Combination, Variant, combinations, split_outside_brackets};

/// Label of the runs of single jobs.
pub const ALONE: &str = "alone";

/// Why an experiment failed.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    #[error("{0:?} is not a list of policies such as fifo,chronos(fair),fcs[preempt=kill;literal=true]")]
    NoList(String),
    #[error("{0:?} has more than {COMBINATIONS_MAX} combinations: give fewer values")]
    TooMany(String),
    #[error("the label before ={0} is empty: give it a name, as in mine={0}, or omit the =")]
    EmptyLabel(String),
    #[error("the label {0} stands for other runs: choose another label")]
    ReservedLabel(String),
    #[error(
        "the label {label} is given twice: give one of the two policies another, as in other={scheduler}"
    )]
    RepeatedLabel { label: String, scheduler: String },
    #[error(
        "{policy}: {key} is given twice: remove one; values to compare are separated by |, as in {key}=1|2"
    )]
    RepeatedParameter { policy: String, key: String },
    #[error(transparent)]
    Make(#[from] PolicyError),
    #[error("the time limit stopped the simulation of the policy that ran: give a longer --time-limit")]
    ReplayStopped,
    #[error(transparent)]
    Why(#[from] WhyError),
    #[error("{variant}, seed {seed}: {why}")]
    RealRun { variant: String, seed: u64, why: String },
    #[error("{variant}, seed {seed}: {broken}")]
    RuleViolation { variant: String, seed: u64, broken: RuleViolation },
}

/// An experiment: a cluster, a workload, and the policies to compare.
pub struct Experiment<'a> {
    /// The simulated cluster. Policy, parameters and seed are set for each run.
    pub setup: Setup,
    /// Generates the faults for a seed, if they depend on it.
    pub faults: Option<&'a (dyn Fn(u64) -> Vec<Fault> + Sync)>,
    /// Generates the jobs for a seed.
    pub workload: &'a (dyn Fn(u64) -> Workload + Sync),
    /// Users and their minimum shares, if these are measured.
    pub users: Vec<(String, MinShare)>,
    /// The policies to compare.
    pub variants: Vec<Variant>,
    /// The seeds of the runs.
    pub seeds: Range<u64>,
    /// Simulated time after which a run stops even if jobs are active; `None` for no limit.
    pub limit: Option<Span>,
    /// Whether to also simulate the first job of each group alone, to compute slowdowns.
    pub alone: bool,
    /// Is called regularly during each run. If it returns false, the run stops, and its active jobs
    /// count as unfinished.
    pub monitor: Option<&'a (dyn Fn(RunProgress<'_>) -> bool + Sync)>,
}

/// Progress of one run.
#[derive(Debug, Clone, Copy)]
pub struct RunProgress<'a> {
    /// Label of the policy; [`ALONE`] for the runs of single jobs.
    pub label: &'a str,
    pub seed: u64,
    /// Real time since the start of the run.
    pub elapsed: Duration,
    /// Number of jobs that have ended.
    pub ended: usize,
    /// Number of all jobs.
    pub jobs: usize,
}

/// Progress of an experiment: one run is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step<'a> {
    /// Label of the policy; [`ALONE`] for the runs of single jobs.
    pub label: &'a str,
    /// Whether this was the last run of the policy.
    pub is_last: bool,
    /// Number of runs that are done.
    pub done: usize,
    /// Total number of runs.
    pub of: usize,
}

impl Experiment<'_> {
    /// Runs all variants and seeds on all cores.
    pub fn run(&self) -> Result<Comparison, ExperimentError> {
        self.run_watched(&|_| {})
    }

    /// Like [`Self::run`], but also calls `watch` after every run.
    pub fn run_watched(&self, watch: &(dyn Fn(Step<'_>) + Sync)) -> Result<Comparison, ExperimentError> {
        self.run_recorded(watch, None)
    }

    /// Like [`Self::run_watched`], but also writes the histories of the runs of one policy. There
    /// must be one seed.
    pub fn run_recorded(
        &self,
        watch: &(dyn Fn(Step<'_>) + Sync),
        recording: Option<Recording<'_>>,
    ) -> Result<Comparison, ExperimentError> {
        let seeds: Vec<u64> = self.seeds.clone().collect();
        // A sample of a trace may lack a group.
        let mut groups: Vec<String> = Vec::new();
        for seed in &seeds {
            let more = (self.workload)(*seed).groups();
            groups.extend(more.into_iter().filter(|group| !groups.contains(group)).collect::<Vec<_>>());
        }
        let cases: Vec<(usize, u64)> = (0..self.variants.len())
            .flat_map(|variant| seeds.iter().map(move |seed| (variant, *seed)))
            .collect();
        let of = cases.len() + if self.alone { seeds.len() } else { 0 };
        let one_more = |count: &AtomicUsize| count.fetch_add(1, Ordering::Relaxed) + 1;
        let (ran, alone_ran) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let by_policy: Vec<AtomicUsize> = self.variants.iter().map(|_| AtomicUsize::new(0)).collect();
        let report = |label: &str, own: &AtomicUsize| {
            watch(Step { label, is_last: one_more(own) == seeds.len(), done: one_more(&ran), of });
        };
        let failed = AtomicBool::new(false);
        let outcomes = in_parallel(cases.len(), |at| {
            if failed.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let (variant, seed) = cases[at];
            let recording = recording.filter(|recording| recording.variant == variant);
            let outcome = self.run_one(&self.variants[variant], seed, recording);
            failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
            report(&self.variants[variant].label, &by_policy[variant]);
            outcome.map(Some)
        });
        let mut runs: Vec<Vec<Outcome>> = self.variants.iter().map(|_| Vec::new()).collect();
        for ((variant, _), outcome) in cases.iter().zip(outcomes) {
            runs[*variant].extend(outcome?);
        }
        let alone = if self.alone {
            let alone = in_parallel(seeds.len(), |at| {
                let alone = self.group_times_alone(seeds[at], &groups);
                report(ALONE, &alone_ran);
                alone
            });
            alone.into_iter().collect::<Result<_, _>>()?
        } else {
            Vec::new()
        };
        let slots = self.setup.slots();
        Ok(Comparison { variants: self.variants.clone(), seeds, runs, alone, groups, slots })
    }

    /// Explains why a job or a task waits in the run of the first policy with the first seed, at a
    /// time after its start. The run ends at that time.
    pub fn explain(&self, subject: Subject, at: Span) -> Result<Explanation, ExperimentError> {
        let (variant, seed) = (&self.variants[0], self.seeds.start);
        let (world, should_continue) = self.world(variant, seed)?;
        world.explain_at(at, subject, should_continue).map_err(|error| match error {
            WhyError::RuleViolation(broken) => run_error(variant, seed, broken),
            other => other.into(),
        })
    }

    /// Runs one variant with one seed.
    fn run_one(
        &self,
        variant: &Variant,
        seed: u64,
        recording: Option<Recording<'_>>,
    ) -> Result<Outcome, ExperimentError> {
        let (mut world, should_continue) = self.world(variant, seed)?;
        if let Some(recording) = recording {
            world = world.with_histories(recording);
        }
        let broken = |broken| run_error(variant, seed, broken);
        world.run_monitored(self.limit, should_continue).map_err(broken)
    }

    /// Creates the cluster of a variant and a seed, and the monitor of its run.
    fn world<'b>(
        &'b self,
        variant: &'b Variant,
        seed: u64,
    ) -> Result<(World, impl Fn(usize) -> bool + 'b), ExperimentError> {
        let mut setup = self.setup.clone();
        setup.scheduler.clone_from(&variant.scheduler);
        setup.params.clone_from(&variant.params);
        setup.seed = seed;
        if let Some(faults) = self.faults {
            setup.faults = faults(seed);
        }
        let workload = (self.workload)(seed);
        let (jobs, began) = (workload.jobs.len(), Instant::now());
        let world = World::new(setup, workload)?.with_users(self.users.clone());
        let should_continue = move |ended| {
            let progress = RunProgress { label: &variant.label, seed, elapsed: began.elapsed(), ended, jobs };
            self.monitor.is_none_or(|monitor| monitor(progress))
        };
        Ok((world, should_continue))
    }

    /// Simulates the first job of each group alone.
    fn group_times_alone(&self, seed: u64, groups: &[String]) -> Result<TimesAlone, ExperimentError> {
        let (workload, began) = ((self.workload)(seed), Instant::now());
        let mut times = BTreeMap::new();
        for (ended, group) in groups.iter().enumerate() {
            let should_continue = || {
                let (label, jobs) = (ALONE, groups.len());
                let progress = RunProgress { label, seed, elapsed: began.elapsed(), ended, jobs };
                self.monitor.is_none_or(|monitor| monitor(progress))
            };
            let Some(index) = workload.jobs.iter().position(|job| job.group == *group) else { continue };
            match time_alone(&self.setup, &workload, index, seed, should_continue)? {
                Alone::Took(elapsed) => drop(times.insert(group.clone(), elapsed)),
                Alone::NeverEnds => {}
                Alone::Stopped => return Ok(TimesAlone::Stopped),
            }
        }
        Ok(TimesAlone::Groups(times))
    }
}

fn run_error(variant: &Variant, seed: u64, broken: RuleViolation) -> ExperimentError {
    ExperimentError::RuleViolation { variant: variant.label.clone(), seed, broken }
}

/// How long a job takes alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alone {
    Took(Span),
    /// The job cannot end, for example because it has reduces and the cluster has no reduce slots.
    NeverEnds,
    /// The monitor has stopped the run.
    Stopped,
}

impl Alone {
    /// Returns how long the job took, if it ended.
    pub(crate) fn span(self) -> Option<Span> {
        if let Self::Took(span) = self { Some(span) } else { None }
    }
}

/// Simulates a job alone under `fifo` on a cluster without faults. If machines differ in speed, the
/// job also runs with the slots of the fastest machines only, and the shorter time counts: `fifo`
/// would give its tasks to slow machines while fast ones are free. Calls `should_continue` before
/// the run and regularly during it, and stops if it returns false.
pub(crate) fn time_alone(
    setup: &Setup,
    workload: &Workload,
    index: usize,
    seed: u64,
    should_continue: impl Fn() -> bool,
) -> Result<Alone, ExperimentError> {
    let mut setup = setup.clone();
    setup.faults.clear();
    setup.steps.clear();
    setup.seed = seed;
    "fifo".clone_into(&mut setup.scheduler);
    setup.params = Params::new();
    let run = |setup: Setup| {
        if !should_continue() {
            return Ok(Alone::Stopped);
        }
        let world = World::new(setup, workload.only_job(index))?;
        let broken = |broken| ExperimentError::RuleViolation { variant: ALONE.into(), seed, broken };
        let outcome = world.run_monitored(None, |_| should_continue()).map_err(broken)?;
        let job = outcome.metrics.job(JobId(1)).filter(|job| job.succeeded);
        Ok::<_, ExperimentError>(match job.and_then(JobFigures::makespan) {
            Some(span) => Alone::Took(span),
            None if outcome.stopped => Alone::Stopped,
            None => Alone::NeverEnds,
        })
    };
    let everywhere = run(setup.clone())?;
    let fastest = setup.machines.iter().map(|machine| machine.speed).fold(0.0, f64::max);
    let mut slower = setup.machines.iter_mut().filter(|machine| machine.speed < fastest).peekable();
    if slower.peek().is_none() || everywhere == Alone::Stopped {
        return Ok(everywhere);
    }
    // The machines stay, because they may store input.
    slower.for_each(|machine| machine.slots = PerPhase::default());
    Ok(match (everywhere, run(setup)?) {
        (Alone::Took(one), Alone::Took(other)) => Alone::Took(one.min(other)),
        (Alone::NeverEnds, other) | (_, other @ Alone::Stopped) => other,
        (one, _) => one,
    })
}

/// Returns for each job of a workload the index of the first job that it repeats, which takes as long
/// alone on a cluster. Samples of a trace have many such jobs.
pub(crate) fn first_equal_jobs(workload: &Workload) -> Vec<usize> {
    let mut known: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut first = Vec::with_capacity(workload.jobs.len());
    for (at, job) in workload.jobs.iter().enumerate() {
        let similar = known.entry(&job.name).or_default();
        let equal = similar.iter().copied().find(|other| job.is_repeated_by(&workload.jobs[*other]));
        first.push(equal.unwrap_or(at));
        if equal.is_none() {
            similar.push(at);
        }
    }
    first
}

/// Simulates every job of a workload alone. `ids[i]` is the job ID of job `i` of the workload. Calls
/// `monitor` regularly.
pub(crate) fn job_times_alone(
    setup: &Setup,
    workload: &Workload,
    ids: &[JobId],
    monitor: &(dyn Fn(RunProgress<'_>) -> bool + Sync),
) -> Result<TimesAlone, ExperimentError> {
    let (jobs, began, ended) = (workload.jobs.len(), Instant::now(), AtomicUsize::new(0));
    let should_continue = || {
        let (elapsed, ended) = (began.elapsed(), ended.load(Ordering::Relaxed));
        monitor(RunProgress { label: ALONE, seed: 1, elapsed, ended, jobs })
    };
    let all = in_parallel(jobs, |index| {
        let alone = time_alone(setup, workload, index, 1, should_continue);
        ended.fetch_add(1, Ordering::Relaxed);
        alone
    });
    let mut times = BTreeMap::new();
    for (id, alone) in ids.iter().zip(all) {
        match alone? {
            Alone::Took(elapsed) => drop(times.insert(*id, elapsed)),
            Alone::NeverEnds => {}
            Alone::Stopped => return Ok(TimesAlone::Stopped),
        }
    }
    Ok(TimesAlone::Jobs(times))
}

/// Calls `one` for each index in `0..count`, on all cores. Returns the results in index order.
pub(crate) fn in_parallel<T: Send>(count: usize, one: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(count.max(1));
    let (queue, tasks) = channel::unbounded();
    (0..count).for_each(|at| queue.send(at).expect("the receiver exists"));
    drop(queue);
    let (results, done) = channel::unbounded();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            let (tasks, results, one) = (&tasks, results.clone(), &one);
            scope.spawn(move || tasks.iter().for_each(|at| drop(results.send((at, one(at))))));
        }
    });
    drop(results);
    let mut done: Vec<(usize, T)> = done.iter().collect();
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clusters, profile,
        workload::{JobPlan, coshh, papers},
    };

    /// Starved jobs must not improve the mean of a run that is stopped by the limit.
    #[test]
    fn unfinished_jobs_count_up_to_the_limit_and_failed_jobs_do_not_count() {
        let profiles = profile::built_in();
        let mut setup = Setup::even(58, PerPhase { map: 8, reduce: 2 }, "fifo");
        let run = |setup: &Setup, limit| {
            let experiment = Experiment {
                setup: setup.clone(),
                faults: None,
                workload: &|seed| papers::hsrtf(&profiles, seed),
                users: Vec::new(),
                variants: vec![Variant::plain("fifo")],
                seeds: 1..2,
                limit: Some(Span::secs(limit)),
                alone: false,
                monitor: None,
            };
            experiment.run().expect("it runs")
        };
        let (cut, whole) = (run(&setup, 100), run(&setup, 100_000));
        let first = |comparison: &Comparison| {
            let job = comparison.runs[0][0].metrics.job(JobId(1)).expect("it came first").clone();
            makespan_s(&job).expect("it runs or is done")
        };
        assert!(
            first(&whole) > 150.0 && (90.0..=100.0).contains(&first(&cut)),
            "the large job is not measured up to the limit"
        );
        assert!(
            cut.mean_over(0, None, makespan_s).is_lower_bound
                && !whole.mean_over(0, None, makespan_s).is_lower_bound
        );
        assert!(cut.unfinished(0, None).1 > 0 && whole.unfinished(0, None) == (0, 0));
        // Every other attempt fails. A job that failed has no makespan.
        setup.failing = 2;
        let failing = run(&setup, 100_000);
        let (failed, _) = failing.unfinished(0, None);
        assert!(failed > 0);
        assert_eq!(failing.values(0, None, makespan_s).len(), 31 - failed);
        // All times in the table are means over succeeded jobs, so completion is waiting plus
        // execution.
        let rows = crate::report::of_groups(&failing, 0).json();
        let all = rows.as_array().and_then(|rows| rows.last()).expect("a row of all");
        let figure = |name: &str| all[name].as_f64().expect("a number");
        assert_eq!((&all["jobs"], &all["succeeded"]), (&31.into(), &(31 - failed).into()));
        assert!((figure("completion s") - figure("waiting s") - figure("execution s")).abs() < 1e-6, "{all}");
    }

    #[test]
    fn monitor_stops_a_run() {
        let profiles = profile::built_in();
        let experiment = Experiment {
            setup: Setup::even(58, PerPhase { map: 8, reduce: 2 }, "fifo"),
            faults: None,
            workload: &|seed| papers::hsrtf(&profiles, seed),
            users: Vec::new(),
            variants: vec![Variant::plain("fifo")],
            seeds: 7..8,
            limit: None,
            alone: false,
            monitor: Some(&|run| {
                assert_eq!((run.label, run.seed, run.jobs), ("fifo", 7, 31));
                run.ended == 0
            }),
        };
        let (failed, unfinished) = experiment.run().expect("it runs").unfinished(0, None);
        assert!(failed == 0 && (1..31).contains(&unfinished), "{unfinished} jobs are unfinished");
    }

    /// Half of the machines are a hundred times slower. A job alone must not be measured on them.
    #[test]
    fn time_alone_is_that_of_the_fastest_machines() {
        let workload = coshh::workload("test", &coshh::FACEBOOK, 20, 60.0, 1);
        let setup = clusters::coshh(6);
        let mut fast = setup.clone();
        fast.machines.iter_mut().for_each(|machine| machine.speed = 1.0);
        let small = workload.jobs.iter().position(|job| job.group == "Small jobs").expect("most jobs");
        let alone_s = |setup: &Setup, seed: u64| {
            let alone = time_alone(setup, &workload, small, seed, || true).expect("it runs");
            alone.span().expect("the job ends").as_secs_f64()
        };
        for seed in 1..=6 {
            let (unequal, equal) = (alone_s(&setup, seed), alone_s(&fast, seed));
            assert!(unequal < 2.0 * equal, "{unequal} s, but {equal} s if all machines are fast");
        }
    }

    #[test]
    fn monitor_sees_and_stops_the_runs_of_single_jobs() {
        let profiles = profile::built_in();
        let alone_calls = AtomicUsize::new(0);
        let experiment = Experiment {
            setup: Setup::even(58, PerPhase { map: 8, reduce: 2 }, "fifo"),
            faults: None,
            workload: &|seed| papers::hsrtf(&profiles, seed),
            users: Vec::new(),
            variants: vec![Variant::plain("fifo")],
            seeds: 1..2,
            limit: None,
            alone: true,
            monitor: Some(&|run| {
                let is_alone = run.label == ALONE;
                assert_eq!(run.jobs, if is_alone { 3 } else { 31 }, "groups, or jobs");
                alone_calls.fetch_add(usize::from(is_alone), Ordering::Relaxed);
                !(is_alone && run.ended == 2)
            }),
        };
        let comparison = experiment.run().expect("it runs");
        assert!(alone_calls.load(Ordering::Relaxed) >= 3, "each group is reported");
        assert_eq!(comparison.alone, [TimesAlone::Stopped], "two groups of three are none");
        assert_eq!(comparison.worst_slowdown(0, None).known(), None);
    }

    #[test]
    fn repeated_jobs_take_equally_long_alone() {
        let profiles = profile::built_in();
        let mut workload = papers::hsrtf(&profiles, 1);
        workload.jobs.truncate(4);
        let copy = JobPlan { user: "another".into(), group: "other".into(), ..workload.jobs[2].clone() };
        workload.jobs.push(JobPlan { at: Span::secs(900), ..copy.clone() });
        workload.jobs.push(JobPlan { slow_start: 1.0, ..copy.clone() });
        workload.jobs.push(JobPlan { name: "another".into(), ..copy });
        assert_eq!(first_equal_jobs(&workload), [0, 1, 2, 3, 2, 5, 6], "blocks are placed by name");
        let setup = Setup::even(10, PerPhase { map: 8, reduce: 2 }, "fifo");
        let alone = |at| time_alone(&setup, &workload, at, 3, || true).expect("it runs");
        assert!(alone(2).span().is_some() && alone(2) == alone(4));
    }

    #[test]
    fn comparison_has_a_figure_per_group_over_all_seeds() {
        let profiles = profile::built_in();
        let experiment = Experiment {
            setup: Setup::even(58, PerPhase { map: 8, reduce: 2 }, "fifo"),
            faults: None,
            workload: &|seed| papers::hsrtf(&profiles, seed),
            users: Vec::new(),
            variants: vec![Variant::plain("fifo"), Variant::plain("fifo")],
            seeds: 1..3,
            limit: None,
            alone: true,
            monitor: None,
        };
        let comparison = experiment.run().expect("it runs");
        assert_eq!(comparison.groups, ["large", "medium", "small"]);
        let (one, other) = (0, 1);
        let all = |variant| comparison.mean_over(variant, None, makespan_s);
        assert_eq!(all(one), all(other), "the same policy must give the same figures");
        assert!(comparison.worst_slowdown(one, None).mean >= 1.0);
        assert!(comparison.values(one, Some("small"), makespan_s).len() == 40);
    }
}
