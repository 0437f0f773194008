//! The same jobs under several policies and seeds, side by side.

use crate::{Broken, Outcome, Setup, Workload, World, fault::Fault};
use mrcore::{
    Span,
    ids::JobId,
    metrics::{
        JobFigures,
        shares::Promise,
        stats::{confidence, mean},
    },
};
use schedulers::{MakeError, Params};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A policy and its parameters, under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    /// In tables.
    pub label: String,
    /// As `schedulers::make` takes it.
    pub scheduler: String,
    /// By dotted key.
    pub params: Params,
}

/// Why an experiment cannot be made.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ExperimentError {
    #[error("{0:?} is not a list of policies such as fifo,chronos(fair),fcs[preempt=kill;literal=true]")]
    NoList(String),
    #[error(transparent)]
    Make(#[from] MakeError),
    #[error("{variant}, seed {seed}: {broken}")]
    Broken { variant: String, seed: u64, broken: Broken },
}

impl Variant {
    /// Without parameters.
    pub fn plain(scheduler: &str) -> Self {
        Self { label: scheduler.to_owned(), scheduler: scheduler.to_owned(), params: Params::new() }
    }

    /// With these parameters, each `key` beginning with a section's name or else within its own.
    pub fn tuned(label: &str, scheduler: &str, params: &[(&str, &str)]) -> Self {
        let outer = scheduler.split('(').next().unwrap_or(scheduler);
        let found = schedulers::POLICIES.iter().find(|policy| policy.name.split('(').next() == Some(outer));
        let section = found.map_or(outer, |policy| policy.section);
        // `pools.a.weight` is of fair, `fair.pools.a.weight` too.
        let is_full = |key: &str| key.split_once('.').is_some_and(|(first, _)| schedulers::is_section(first));
        let full = |key: &str| if is_full(key) { key.to_owned() } else { format!("{section}.{key}") };
        let params = params.iter().map(|(key, value)| (full(key), (*value).to_owned())).collect();
        Self { label: label.to_owned(), scheduler: scheduler.to_owned(), params }
    }

    /// With these parameters too, where it has none of its own.
    #[must_use]
    pub fn told(mut self, params: &Params) -> Self {
        for (key, value) in params {
            self.params.entry(key.clone()).or_insert_with(|| value.clone());
        }
        self
    }

    /// Reads `fifo,chronos(fair),fcs[preempt=kill;literal=true]`, and checks that each can be made.
    pub fn list(text: &str) -> Result<Vec<Self>, ExperimentError> {
        let bad = || ExperimentError::NoList(text.to_owned());
        let mut variants = Vec::new();
        for part in split_outside(text).ok_or_else(bad)? {
            let (scheduler, given) = match part.split_once('[') {
                None => (part, ""),
                Some((scheduler, rest)) => (scheduler, rest.strip_suffix(']').ok_or_else(bad)?),
            };
            let pairs = given.split(';').filter(|pair| !pair.is_empty());
            let pairs: Option<Vec<(&str, &str)>> = pairs.map(|pair| pair.split_once('=')).collect();
            let variant = Self::tuned(part, scheduler, &pairs.ok_or_else(bad)?);
            schedulers::make(&variant.scheduler, &variant.params)?;
            variants.push(variant);
        }
        if variants.is_empty() { Err(bad()) } else { Ok(variants) }
    }
}

/// Cuts at commas that are in no brackets.
fn split_outside(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0_i32, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[from..].trim());
    (depth == 0 && parts.iter().all(|part| !part.is_empty())).then_some(parts)
}

/// What is to be compared.
pub struct Experiment<'a> {
    /// The world; the policy, its parameters and the seed are set for each run.
    pub setup: Setup,
    /// What goes wrong, if that depends on the seed.
    pub faults: Option<&'a (dyn Fn(u64) -> Vec<Fault> + Sync)>,
    /// The jobs of a seed.
    pub workload: &'a (dyn Fn(u64) -> Workload + Sync),
    /// Users and what they were promised, if that is counted.
    pub users: Vec<(String, Promise)>,
    /// The policies.
    pub variants: Vec<Variant>,
    /// From 1 on.
    pub seeds: u64,
    /// Jobs that have not ended by then are left; none to wait for ever.
    pub limit: Option<Span>,
    /// Whether to find how long a job of each group takes alone, for slowdowns.
    pub alone: bool,
}

/// What came of it.
#[derive(Debug)]
pub struct Comparison {
    /// The policies.
    pub variants: Vec<Variant>,
    /// For each, its runs by seed.
    pub runs: Vec<Vec<Outcome>>,
    /// For each seed, how long a job of each group takes alone.
    pub alone: Vec<BTreeMap<String, Span>>,
    /// Groups in the order of the workload, or of their numbers.
    pub groups: Vec<String>,
    /// The cluster's slots.
    pub slots: mrcore::PerPhase<u32>,
}

impl Experiment<'_> {
    /// Runs everything, on as many cores as there are.
    pub fn run(&self) -> Result<Comparison, ExperimentError> {
        let seeds: Vec<u64> = (1..=self.seeds.max(1)).collect();
        let workload = (self.workload)(1);
        let mut groups: Vec<String> = Vec::new();
        for job in &workload.jobs {
            if !groups.contains(&job.group) {
                groups.push(job.group.clone());
            }
        }
        // Groups that are called by numbers are in the order of these.
        if groups.iter().all(|group| group.parse::<u64>().is_ok()) {
            groups.sort_by_key(|group| group.parse::<u64>().unwrap_or(u64::MAX));
        }
        let cases: Vec<(usize, u64)> = (0..self.variants.len())
            .flat_map(|variant| seeds.iter().map(move |seed| (variant, *seed)))
            .collect();
        let outcomes = in_parallel(cases.len(), |at| {
            let (variant, seed) = cases[at];
            self.one(&self.variants[variant], seed)
        });
        let mut runs: Vec<Vec<Outcome>> = self.variants.iter().map(|_| Vec::new()).collect();
        for ((variant, _), outcome) in cases.iter().zip(outcomes) {
            runs[*variant].push(outcome?);
        }
        let alone = if self.alone {
            let alone = in_parallel(seeds.len(), |at| self.alone(seeds[at], &groups));
            alone.into_iter().collect::<Result<_, _>>()?
        } else {
            Vec::new()
        };
        let slots = self.setup.slots();
        Ok(Comparison { variants: self.variants.clone(), runs, alone, groups, slots })
    }

    fn one(&self, variant: &Variant, seed: u64) -> Result<Outcome, ExperimentError> {
        let mut setup = self.setup.clone();
        setup.scheduler.clone_from(&variant.scheduler);
        setup.params.clone_from(&variant.params);
        setup.seed = seed;
        if let Some(faults) = self.faults {
            setup.faults = faults(seed);
        }
        let world = World::new(setup, (self.workload)(seed))?.with_users(self.users.clone());
        let broken = |broken| ExperimentError::Broken { variant: variant.label.clone(), seed, broken };
        world.run(self.limit).map_err(broken)
    }

    /// How long the first job of each group takes when it has the cluster for itself, and nothing goes wrong.
    fn alone(&self, seed: u64, groups: &[String]) -> Result<BTreeMap<String, Span>, ExperimentError> {
        let workload = (self.workload)(seed);
        let mut times = BTreeMap::new();
        for group in groups {
            let Some(index) = workload.jobs.iter().position(|job| job.group == *group) else { continue };
            let mut setup = self.setup.clone();
            setup.faults.clear();
            setup.steps.clear();
            setup.seed = seed;
            "fifo".clone_into(&mut setup.scheduler);
            setup.params = Params::new();
            let world = World::new(setup, workload.alone(index))?;
            let broken = |broken| ExperimentError::Broken { variant: "alone".into(), seed, broken };
            let outcome = world.run(None).map_err(broken)?;
            // One that cannot end, say for want of slots, has no such time.
            if let Some(took) = outcome.metrics.job(JobId(1)).and_then(JobFigures::makespan) {
                times.insert(group.clone(), took);
            }
        }
        Ok(times)
    }
}

/// Does `count` things on all cores; results are in order.
fn in_parallel<T: Send>(count: usize, one: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(count.max(1));
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        return;
                    }
                    let result = one(at);
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A figure over seeds: its mean, and half the width of its 95% confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// The mean.
    pub mean: f64,
    /// Half the interval; 0 of one seed.
    pub around: f64,
    /// Some of what it is of was not over: it is more.
    pub at_least: bool,
    /// How many seeds it is of: of one there is no interval.
    pub seeds: usize,
}

impl Figure {
    /// Of values, one a seed.
    pub fn of(values: &[f64]) -> Self {
        Self { mean: mean(values), around: confidence(values), at_least: false, seeds: values.len() }
    }

    /// Whether it may as well be 0, for all that its seeds say. Of one seed nobody can tell.
    pub fn is_noise(self) -> bool {
        self.seeds > 1 && self.mean.abs() <= self.around
    }

    /// How much less than another, as a part of it: 0.2 is a fifth less.
    pub fn less_than(self, other: Self) -> f64 {
        if other.mean == 0.0 { 0.0 } else { 1.0 - self.mean / other.mean }
    }
}

impl Comparison {
    /// A figure of a policy's runs.
    pub fn figure(&self, variant: usize, of: impl Fn(&Outcome) -> f64) -> Figure {
        Figure::of(&self.runs[variant].iter().map(of).collect::<Vec<_>>())
    }

    /// The mean over the jobs of a group (or of all) of something that each has.
    pub fn mean_over(
        &self,
        variant: usize,
        group: Option<&str>,
        of: impl Fn(&JobFigures) -> Option<f64>,
    ) -> Figure {
        let figure = Figure::of(&self.means(variant, group, of));
        Figure { at_least: self.count(variant, group, |job| job.left_at.is_some()) > 0, ..figure }
    }

    /// The same, seed by seed.
    fn means(
        &self,
        variant: usize,
        group: Option<&str>,
        of: impl Fn(&JobFigures) -> Option<f64>,
    ) -> Vec<f64> {
        let one = |outcome: &Outcome| {
            let jobs = outcome.metrics.jobs().map(|(_, job)| job);
            let jobs = jobs.filter(|job| group.is_none_or(|group| job.group == group));
            mean(&jobs.filter_map(&of).collect::<Vec<_>>())
        };
        self.runs[variant].iter().map(one).collect()
    }

    /// The mean makespan of a group (or of all) under one policy against that under another: -0.2 is a fifth less. Both meet
    /// the same jobs of each seed, so they are compared seed by seed: what seeds differ by is not in the interval. None if more
    /// jobs failed or did not end under one than under the other: means of different jobs say nothing.
    pub fn change(&self, group: Option<&str>, one: usize, other: usize) -> Option<Figure> {
        let (ours, theirs) = (self.means(one, group, makespan_s), self.means(other, group, makespan_s));
        let pairs = ours.iter().zip(&theirs).filter(|(_, theirs)| **theirs > 0.0);
        let changes: Vec<f64> = pairs.map(|(ours, theirs)| ours / theirs - 1.0).collect();
        (self.undone(one, group) == self.undone(other, group)).then(|| Figure::of(&changes))
    }

    /// How many jobs of a group (or of all) are so, over all seeds.
    pub fn count(&self, variant: usize, group: Option<&str>, is: impl Fn(&JobFigures) -> bool) -> usize {
        self.values(variant, group, |job| is(job).then_some(1.0)).len()
    }

    /// Jobs of a group (or of all) that failed, and that did not end, over all seeds. Where two policies differ in these,
    /// their means are of different jobs.
    pub fn undone(&self, variant: usize, group: Option<&str>) -> (usize, usize) {
        let failed = self.count(variant, group, |job| job.ended.is_some() && !job.succeeded);
        (failed, self.count(variant, group, |job| job.left_at.is_some()))
    }

    /// Every value of something that jobs of a group (or of all) have, over all seeds.
    pub fn values(
        &self,
        variant: usize,
        group: Option<&str>,
        of: impl Fn(&JobFigures) -> Option<f64>,
    ) -> Vec<f64> {
        let jobs = self.runs[variant].iter().flat_map(|outcome| outcome.metrics.jobs().map(|(_, job)| job));
        jobs.filter(|job| group.is_none_or(|group| job.group == group)).filter_map(of).collect()
    }

    /// The greatest slowdown in a group (or of all), mean over seeds.
    pub fn worst_slowdown(&self, variant: usize, group: Option<&str>) -> Figure {
        let figure = Figure::of(&self.worst_slowdowns(variant, group));
        Figure { at_least: self.undone(variant, group).1 > 0, ..figure }
    }

    /// The same, seed by seed.
    pub fn worst_slowdowns(&self, variant: usize, group: Option<&str>) -> Vec<f64> {
        let worst = |(outcome, alone): (&Outcome, &BTreeMap<String, Span>)| {
            let jobs = outcome.metrics.jobs().map(|(_, job)| job);
            let jobs = jobs.filter(|job| group.is_none_or(|group| job.group == group));
            let slowdown =
                |job: &JobFigures| Some(makespan_s(job)? / alone.get(&job.group)?.as_secs_f64().max(1e-6));
            jobs.filter_map(slowdown).fold(0.0, f64::max)
        };
        self.runs[variant].iter().zip(&self.alone).map(worst).collect()
    }

    /// Which variant has this label.
    pub fn index(&self, label: &str) -> Option<usize> {
        self.variants.iter().position(|variant| variant.label == label)
    }
}

/// From submission to end, in seconds. A job that was not over counts up to when it was last looked at, for it took longer
/// than that; one that failed has none, however soon it did.
pub fn makespan_s(job: &JobFigures) -> Option<f64> {
    let until = if job.ended.is_some() { job.ended.filter(|_| job.succeeded) } else { job.left_at };
    Some(until?.since(job.submitted).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{profile, workload::papers};
    use mrcore::PerPhase;

    #[test]
    fn lists_of_policies() {
        assert_eq!(
            split_outside("fifo, chronos(fair),fcs[a=1;b=2]"),
            Some(vec!["fifo", "chronos(fair)", "fcs[a=1;b=2]"])
        );
        assert_eq!(split_outside("fifo,"), None);
        assert_eq!(split_outside("chronos(fifo"), None);
        assert_eq!(Variant::list("fifo").expect("a list").len(), 1);
        let tuned = Variant::list("fair[pools.a.weight=2;fair.node_wait=5s]").expect("a list");
        assert_eq!(tuned[0].params.keys().collect::<Vec<_>>(), ["fair.node_wait", "fair.pools.a.weight"]);
        for bad in ["", "nonsense", "fifo[", "fifo[x=1]", "fifo[x]"] {
            assert!(Variant::list(bad).is_err(), "{bad}");
        }
    }

    /// Ten seconds' worth of jobs, cut off after a minute: whoever starves must not look better for it.
    #[test]
    fn jobs_that_did_not_end_count_up_to_the_limit_and_failed_ones_do_not() {
        let profiles = profile::built_in();
        let mut setup = Setup::even(58, PerPhase { map: 8, reduce: 2 }, "fifo");
        let run = |setup: &Setup, limit| {
            let experiment = Experiment {
                setup: setup.clone(),
                faults: None,
                workload: &|seed| papers::hsrtf(&profiles, seed),
                users: Vec::new(),
                variants: vec![Variant::plain("fifo")],
                seeds: 1,
                limit: Some(Span::secs(limit)),
                alone: false,
            };
            experiment.run().expect("it runs")
        };
        let (cut, whole) = (run(&setup, 100), run(&setup, 100_000));
        let first = |comparison: &Comparison| {
            let job = comparison.runs[0][0].metrics.job(JobId(1)).expect("it came first").clone();
            makespan_s(&job).expect("it runs or is done")
        };
        assert!(first(&whole) > 150.0 && (90.0..=100.0).contains(&first(&cut)), "a large job is cut off");
        assert!(
            cut.mean_over(0, None, makespan_s).at_least && !whole.mean_over(0, None, makespan_s).at_least
        );
        assert!(cut.undone(0, None).1 > 0 && whole.undone(0, None) == (0, 0));
        // Every other attempt fails: a job that gave up has no makespan.
        setup.failing = 2;
        let failing = run(&setup, 100_000);
        let (failed, _) = failing.undone(0, None);
        assert!(failed > 0);
        assert_eq!(failing.values(0, None, makespan_s).len(), 31 - failed);
    }

    #[test]
    fn seeds_and_groups_side_by_side() {
        let profiles = profile::built_in();
        let experiment = Experiment {
            setup: Setup::even(58, PerPhase { map: 8, reduce: 2 }, "fifo"),
            faults: None,
            workload: &|seed| papers::hsrtf(&profiles, seed),
            users: Vec::new(),
            variants: vec![Variant::plain("fifo"), Variant::plain("fifo")],
            seeds: 2,
            limit: None,
            alone: true,
        };
        let comparison = experiment.run().expect("it runs");
        assert_eq!(comparison.groups, ["large", "medium", "small"]);
        let (one, other) = (0, 1);
        let all = |variant| comparison.mean_over(variant, None, makespan_s);
        assert_eq!(all(one), all(other), "the same policy, the same figures");
        assert!(comparison.worst_slowdown(one, None).mean >= 1.0);
        assert!(comparison.values(one, Some("small"), makespan_s).len() == 40);
    }
}
