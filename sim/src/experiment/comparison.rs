//! What came of an experiment: figures over seeds, and how they compare.

use super::Variant;
use crate::Outcome;
use mrcore::{
    Span,
    ids::JobId,
    metrics::{
        JobFigures,
        stats::{confidence, mean},
    },
};
use serde::Serialize;
use std::collections::BTreeMap;

/// What came of it.
#[derive(Debug)]
pub struct Comparison {
    /// The policies.
    pub variants: Vec<Variant>,
    /// For each, its runs by seed.
    pub runs: Vec<Vec<Outcome>>,
    /// For each seed, how long jobs take alone; none if that was not asked.
    pub alone: Vec<Alone>,
    /// Groups in the order of the workload, or of their numbers.
    pub groups: Vec<String>,
    /// The cluster's slots.
    pub slots: mrcore::PerPhase<u32>,
}

/// How long jobs take when they have the cluster for themselves, and nothing goes wrong: what slowdown is against.
#[derive(Debug, Clone, PartialEq)]
pub enum Alone {
    /// The first job of each group. Others of it may be shorter: then they are slowed down by less than 1.
    Groups(BTreeMap<String, Span>),
    /// Each job itself, simulated from its own history. It was not faster than that: where it seems so, it is the model.
    Jobs(BTreeMap<JobId, Span>),
}

impl Alone {
    /// How many times longer than alone a job took.
    fn slowdown(&self, id: JobId, job: &JobFigures) -> Option<f64> {
        let times = |alone: &Span| Some(makespan_s(job)? / alone.as_secs_f64().max(1e-6));
        match self {
            Self::Groups(groups) => times(groups.get(&job.group)?),
            Self::Jobs(jobs) => times(jobs.get(&id)?).map(|times| times.max(1.0)),
        }
    }
}

/// A figure over seeds: its mean, and half the width of its 95% confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figure {
    /// The mean.
    pub mean: f64,
    /// Half the interval; 0 of one seed.
    pub around: f64,
    /// Some of what it is of was not over: it is more.
    pub at_least: bool,
    /// How many seeds it is of: of one there is no interval, of none nothing is known.
    pub seeds: usize,
}

impl Figure {
    /// Of values, one a seed.
    pub fn of(values: &[f64]) -> Self {
        Self { mean: mean(values), around: confidence(values), at_least: false, seeds: values.len() }
    }

    /// It, if there is anything that it is of.
    pub fn known(self) -> Option<Self> {
        (self.seeds > 0).then_some(self)
    }

    /// Whether it may as well be 0, for all that its seeds say. Of one seed nobody can tell.
    pub fn is_insignificant(self) -> bool {
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

    /// The same of what not every run has: of those that have it.
    pub fn figure_of(&self, variant: usize, of: impl Fn(&Outcome) -> Option<f64>) -> Figure {
        Figure::of(&self.runs[variant].iter().filter_map(of).collect::<Vec<_>>())
    }

    /// The mean over the jobs of a group (or of all) of something that each has.
    pub fn mean_over(
        &self,
        variant: usize,
        group: Option<&str>,
        of: impl Fn(&JobFigures) -> Option<f64>,
    ) -> Figure {
        let means: Vec<f64> = self.means(variant, group, of).into_iter().flatten().collect();
        let figure = Figure::of(&means);
        Figure { at_least: self.count(variant, group, |job| job.last_looked_at.is_some()) > 0, ..figure }
    }

    /// The same, seed by seed; none of a seed in which no job has it.
    fn means(
        &self,
        variant: usize,
        group: Option<&str>,
        of: impl Fn(&JobFigures) -> Option<f64>,
    ) -> Vec<Option<f64>> {
        let one = |outcome: &Outcome| {
            let jobs = outcome.metrics.jobs().map(|(_, job)| job);
            let jobs = jobs.filter(|job| group.is_none_or(|group| job.group == group));
            let values: Vec<f64> = jobs.filter_map(&of).collect();
            (!values.is_empty()).then(|| mean(&values))
        };
        self.runs[variant].iter().map(one).collect()
    }

    /// The mean makespan of a group (or of all) under one policy against that under another: -0.2 is a fifth less. Both meet
    /// the same jobs of each seed, so they are compared seed by seed: what seeds differ by is not in the interval. None if more
    /// jobs failed or did not end under one than under the other: means of different jobs say nothing.
    pub fn change(&self, group: Option<&str>, one: usize, other: usize) -> Option<Figure> {
        let (ours, theirs) = (self.means(one, group, makespan_s), self.means(other, group, makespan_s));
        let pairs = ours.into_iter().zip(theirs).filter_map(|(ours, theirs)| ours.zip(theirs));
        let pairs = pairs.filter(|(_, theirs)| *theirs > 0.0);
        let changes: Vec<f64> = pairs.map(|(ours, theirs)| ours / theirs - 1.0).collect();
        (self.unfinished(one, group) == self.unfinished(other, group)).then(|| Figure::of(&changes))
    }

    /// How many jobs of a group (or of all) are so, over all seeds.
    pub fn count(&self, variant: usize, group: Option<&str>, is: impl Fn(&JobFigures) -> bool) -> usize {
        self.values(variant, group, |job| is(job).then_some(1.0)).len()
    }

    /// Jobs of a group (or of all) that failed, and that did not end, over all seeds. Where two policies differ in these,
    /// their means are of different jobs.
    pub fn unfinished(&self, variant: usize, group: Option<&str>) -> (usize, usize) {
        let failed = self.count(variant, group, |job| job.ended.is_some() && !job.succeeded);
        (failed, self.count(variant, group, |job| job.last_looked_at.is_some()))
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
        let worst: Vec<f64> = self.worst_slowdowns(variant, group).into_iter().flatten().collect();
        Figure { at_least: self.unfinished(variant, group).1 > 0, ..Figure::of(&worst) }
    }

    /// The same, seed by seed; none of a seed in which no job has one.
    pub fn worst_slowdowns(&self, variant: usize, group: Option<&str>) -> Vec<Option<f64>> {
        let worst = |(outcome, alone): (&Outcome, &Alone)| {
            let jobs = outcome.metrics.jobs();
            let jobs = jobs.filter(|(_, job)| group.is_none_or(|group| job.group == group));
            jobs.filter_map(|(id, job)| alone.slowdown(id, job)).max_by(f64::total_cmp)
        };
        self.runs[variant].iter().zip(&self.alone).map(worst).collect()
    }

    /// Which variant has this label.
    pub fn index(&self, label: &str) -> Option<usize> {
        self.variants.iter().position(|variant| variant.label == label)
    }
}

/// How long one of a job's reduces waited for a slot after its maps were done, in seconds; none if it has no reduces.
pub fn reduce_wait_s(job: &JobFigures) -> Option<f64> {
    job.reduce_wait().map(Span::as_secs_f64)
}

/// From submission to end, in seconds. A job that was not over counts up to when it was last looked at, for it took longer
/// than that; one that failed has none, however soon it did.
pub fn makespan_s(job: &JobFigures) -> Option<f64> {
    let until = if job.ended.is_some() { job.ended.filter(|_| job.succeeded) } else { job.last_looked_at };
    Some(until?.since(job.submitted).as_secs_f64())
}
