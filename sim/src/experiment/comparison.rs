//! Results of an experiment: means over seeds, and comparisons of policies.

use super::Variant;
use crate::{BEGINNING, Outcome};
use mrcore::{
    PerPhase, Phase, Span,
    ids::JobId,
    metrics::{
        JobFigures,
        stats::{confidence, mean},
    },
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Results of an experiment.
#[derive(Debug)]
pub struct Comparison {
    /// The compared policies.
    pub variants: Vec<Variant>,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// For each variant, one run per seed.
    pub runs: Vec<Vec<Outcome>>,
    /// For each seed, how long jobs take when they run alone; empty if not measured.
    pub alone: Vec<TimesAlone>,
    /// Names of the groups of jobs, in the order of [`Workload::groups`](crate::Workload::groups).
    pub groups: Vec<String>,
    /// Slots of the cluster.
    pub slots: PerPhase<u32>,
}

/// How long jobs take when they run alone on a cluster without faults. This is the base of
/// slowdowns.
#[derive(Debug, Clone, PartialEq)]
pub enum TimesAlone {
    /// By group: how long its first job takes. Other jobs of the group may be shorter, so their
    /// slowdown can be below 1.
    Groups(BTreeMap<String, Span>),
    /// By job: how long it takes, simulated from its own history. A slowdown below 1 can then only
    /// be an error of the model, and is raised to 1.
    Jobs(BTreeMap<JobId, Span>),
    /// The runs were stopped. Those that were done would not represent the others.
    Stopped,
}

impl TimesAlone {
    /// Returns the slowdown of a job: its duration divided by its duration alone.
    fn slowdown(&self, id: JobId, job: &JobFigures) -> Option<f64> {
        let times = |alone: &Span| Some(makespan_s(job)? / alone.as_secs_f64().max(1e-6));
        match self {
            Self::Groups(groups) => times(groups.get(&job.group)?),
            Self::Jobs(jobs) => times(jobs.get(&id)?).map(|times| times.max(1.0)),
            Self::Stopped => None,
        }
    }
}

/// A figure over seeds: its mean, and half the width of its 95% confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figure {
    /// Mean over seeds.
    pub mean: f64,
    /// Half the width of the confidence interval. There is none for one seed, and none if a run was
    /// stopped: its value is not that of a whole run.
    pub half_width: Option<f64>,
    /// Whether some jobs had not ended. If so, the mean is a lower bound.
    pub is_lower_bound: bool,
    /// Number of seeds. With one seed there is no interval; with none there is no value.
    pub seeds: usize,
}

impl Figure {
    /// Computes the figure from one value per seed.
    pub fn of(values: &[f64]) -> Self {
        Self {
            mean: mean(values),
            half_width: (values.len() > 1).then(|| confidence(values)),
            is_lower_bound: false,
            seeds: values.len(),
        }
    }

    /// Removes the interval unless all runs were whole.
    #[must_use]
    pub fn of_whole_runs(self, are_whole: bool) -> Self {
        Self { half_width: self.half_width.filter(|_| are_whole), ..self }
    }

    /// Returns the figure if it has at least one seed.
    pub fn known(self) -> Option<Self> {
        (self.seeds > 0).then_some(self)
    }

    /// Returns by which fraction this mean is smaller than the mean of `other`: 0.2 means a fifth
    /// less.
    pub fn less_than(self, other: Self) -> f64 {
        if other.mean == 0.0 { 0.0 } else { 1.0 - self.mean / other.mean }
    }
}

/// A relative difference over seeds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Change {
    /// Geometric mean of the ratios of the seeds, minus 1.
    pub mean: f64,
    /// The 95% interval; null for one seed.
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub seeds: usize,
    /// Number of seeds in which the policy is slower than the reference.
    pub slower_seeds: usize,
}

impl Change {
    /// Computes the difference from the logarithm of the ratio in each seed; `None` without seeds.
    pub(crate) fn of(logarithms: &[f64]) -> Option<Self> {
        let (center, half_width, seeds) = (mean(logarithms), confidence(logarithms), logarithms.len());
        let end = |logarithm: f64| (seeds > 1).then(|| logarithm.exp_m1());
        let slower_seeds = logarithms.iter().filter(|logarithm| **logarithm > 0.0).count();
        let (low, high) = (end(center - half_width), end(center + half_width));
        (seeds > 0).then(|| Self { mean: center.exp_m1(), low, high, seeds, slower_seeds })
    }

    /// Returns the ends of the 95% interval; `None` for one seed.
    pub(crate) fn interval(&self) -> Option<[f64; 2]> {
        self.low.zip(self.high).map(|(low, high)| [low, high])
    }
}

impl Comparison {
    /// Returns a warning if all jobs of a run had ended before this time after its start, so that
    /// `what`, which was to happen then, never happened.
    pub fn never_happened(&self, what: &str, at: Span) -> Option<String> {
        let all = self.runs.iter().flatten();
        let had_ended = |run: &&Outcome| run.unfinished == 0 && run.end < BEGINNING + at;
        let (over, count) = (all.clone().filter(had_ended).count(), crate::count(all.count(), "run"));
        (over > 0).then(|| {
            format!(
                "{what} never happened in {over} of {count}: all jobs had ended by then; give an earlier time"
            )
        })
    }

    /// Returns the mean of `of` over the runs of a variant.
    pub fn figure(&self, variant: usize, of: impl Fn(&Outcome) -> f64) -> Figure {
        self.figure_of(variant, |outcome| Some(of(outcome)))
    }

    /// Like [`Self::figure`], but ignores runs in which `of` has no value.
    pub fn figure_of(&self, variant: usize, of: impl Fn(&Outcome) -> Option<f64>) -> Figure {
        self.over_seeds(variant, &self.runs[variant].iter().map(of).collect::<Vec<_>>())
    }

    /// Returns the figure of a variant from its value in each seed. It has no interval if one of the
    /// runs was stopped.
    fn over_seeds(&self, variant: usize, values: &[Option<f64>]) -> Figure {
        let figure = Figure::of(&values.iter().copied().flatten().collect::<Vec<_>>());
        figure.of_whole_runs(!self.is_stopped(variant, variant))
    }

    /// Returns the mean of `of` over the jobs of a group (all jobs if `None`), averaged over seeds.
    pub fn mean_over(
        &self,
        variant: usize,
        group: Option<&str>,
        of: impl Fn(&JobFigures) -> Option<f64>,
    ) -> Figure {
        let figure = self.over_seeds(variant, &self.means(variant, group, of));
        Figure {
            is_lower_bound: self.count(variant, group, |job| job.observed_until.is_some()) > 0,
            ..figure
        }
    }

    /// Like [`Self::mean_over`], but returns one mean per seed; `None` for a seed in which `of` has
    /// no value for any job.
    pub(crate) fn means(
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

    /// Returns the relative difference of the mean makespan under variant `one` to that under
    /// `other`, with the logarithms of the ratios, as in a campaign: a policy that is twice as slow
    /// in one seed and twice as fast in another does not differ. Only jobs that succeeded under both
    /// count ([`Self::left_out`] counts the others). Both variants run the same jobs in each seed,
    /// so differences between seeds do not widen the interval. Returns `None` if no job counts, or
    /// if a run was stopped: the jobs that ended by then do not represent the others.
    pub fn difference(&self, one: usize, other: usize) -> Option<Change> {
        let of_seed = |seed| {
            let pairs = self.pairs(seed, None, one, other);
            let (ours, theirs): (Vec<f64>, Vec<f64>) = pairs.into_iter().flatten().unzip();
            (mean(&ours) > 0.0 && mean(&theirs) > 0.0).then(|| (mean(&ours) / mean(&theirs)).ln())
        };
        let logarithms = || (0..self.seeds.len()).filter_map(of_seed).collect::<Vec<f64>>();
        (!self.is_stopped(one, other)).then(logarithms).and_then(|logarithms| Change::of(&logarithms))
    }

    /// Returns whether the time limit stopped a run of one of two variants.
    pub fn is_stopped(&self, one: usize, other: usize) -> bool {
        self.runs[one].iter().chain(&self.runs[other]).any(|outcome| outcome.stopped)
    }

    /// Returns how many jobs of a group (or all jobs) did not succeed under both variants, over all
    /// seeds. Jobs that were not submitted before a run was stopped count only for all jobs.
    pub fn left_out(&self, group: Option<&str>, one: usize, other: usize) -> usize {
        let of_seed = |seed: usize| {
            let pairs = self.pairs(seed, group, one, other);
            let unsubmitted =
                |variant: usize| self.runs[variant].get(seed).map_or(0, |run| run.unsubmitted.len());
            let not_submitted = if group.is_none() { unsubmitted(one).min(unsubmitted(other)) } else { 0 };
            pairs.iter().filter(|pair| pair.is_none()).count() + not_submitted
        };
        (0..self.seeds.len()).map(of_seed).sum()
    }

    /// Returns the makespans of each job under two variants, in one seed; `None` for a job that did
    /// not succeed under both.
    pub(crate) fn pairs(
        &self,
        seed: usize,
        group: Option<&str>,
        one: usize,
        other: usize,
    ) -> Vec<Option<(f64, f64)>> {
        let (Some(ours), Some(theirs)) = (self.runs[one].get(seed), self.runs[other].get(seed)) else {
            return Vec::new();
        };
        let in_group = |(_, job): &(JobId, &JobFigures)| group.is_none_or(|group| job.group == group);
        let ids = |outcome: &Outcome| -> BTreeSet<JobId> {
            outcome.metrics.jobs().filter(in_group).map(|(id, _)| id).collect()
        };
        let succeeded = |outcome: &Outcome, id: JobId| {
            let job = outcome.metrics.job(id).filter(|job| job.succeeded)?;
            job.makespan().map(Span::as_secs_f64)
        };
        let all = &ids(ours) | &ids(theirs);
        all.into_iter().map(|id| succeeded(ours, id).zip(succeeded(theirs, id))).collect()
    }

    /// Returns the fraction of the slots of a phase that were in use.
    pub fn utilisation(&self, variant: usize, phase: Phase) -> Figure {
        self.over_seeds(variant, &self.utilisations(variant, phase))
    }

    /// Like [`Self::utilisation`], but returns one value per seed; `None` without slots or jobs.
    pub fn utilisations(&self, variant: usize, phase: Phase) -> Vec<Option<f64>> {
        self.runs[variant].iter().map(|outcome| utilisation(outcome, self.slots, phase)).collect()
    }

    /// Counts the jobs of a group (or all jobs) with a property, over all seeds.
    pub fn count(&self, variant: usize, group: Option<&str>, is: impl Fn(&JobFigures) -> bool) -> usize {
        self.values(variant, group, |job| is(job).then_some(1.0)).len()
    }

    /// Returns how many jobs of a group (or all jobs) failed and how many did not end, also those that
    /// were not submitted, over all seeds. If these numbers differ between policies, their means are over different jobs.
    pub fn unfinished(&self, variant: usize, group: Option<&str>) -> (usize, usize) {
        let failed = self.count(variant, group, |job| job.ended.is_some() && !job.succeeded);
        let unsubmitted = self.runs[variant].iter().flat_map(|run| &run.unsubmitted);
        let unsubmitted = unsubmitted.filter(|job| group.is_none_or(|group| job.group == group)).count();
        (failed, unsubmitted + self.count(variant, group, |job| job.observed_until.is_some()))
    }

    /// Returns `of` for every job of a group (or all jobs) that has a value, over all seeds.
    pub fn values(
        &self,
        variant: usize,
        group: Option<&str>,
        of: impl Fn(&JobFigures) -> Option<f64>,
    ) -> Vec<f64> {
        let jobs = self.runs[variant].iter().flat_map(|outcome| outcome.metrics.jobs().map(|(_, job)| job));
        jobs.filter(|job| group.is_none_or(|group| job.group == group)).filter_map(of).collect()
    }

    /// Returns the largest slowdown in a group (or of all jobs), as a mean over seeds.
    pub fn worst_slowdown(&self, variant: usize, group: Option<&str>) -> Figure {
        let figure = self.over_seeds(variant, &self.worst_slowdowns(variant, group));
        Figure { is_lower_bound: self.unfinished(variant, group).1 > 0, ..figure }
    }

    /// Like [`Self::worst_slowdown`], but returns one value per seed; `None` for a seed without a
    /// slowdown.
    pub fn worst_slowdowns(&self, variant: usize, group: Option<&str>) -> Vec<Option<f64>> {
        let worst = |(outcome, alone): (&Outcome, &TimesAlone)| {
            let jobs = outcome.metrics.jobs();
            let jobs = jobs.filter(|(_, job)| group.is_none_or(|group| job.group == group));
            jobs.filter_map(|(id, job)| alone.slowdown(id, job)).max_by(f64::total_cmp)
        };
        self.runs[variant].iter().zip(&self.alone).map(worst).collect()
    }

    /// Returns the index of the variant with this label.
    pub fn index(&self, label: &str) -> Option<usize> {
        self.variants.iter().position(|variant| variant.label == label)
    }
}

/// Returns the fraction of the slots of a phase that were in use, from the first submission to the
/// end of the last job; `None` if there are no slots or no jobs.
pub(crate) fn utilisation(outcome: &Outcome, slots: PerPhase<u32>, phase: Phase) -> Option<f64> {
    let jobs = || outcome.metrics.jobs().map(|(_, job)| job);
    let last = jobs().filter_map(|job| job.ended.or(job.observed_until)).max()?;
    let span_s = last.since(jobs().map(|job| job.submitted).min()?).as_secs_f64();
    let held_s: f64 = jobs().map(|job| job.held[phase].as_secs_f64()).sum();
    let slots = f64::from(slots[phase]);
    (slots * span_s > 0.0).then(|| held_s / (slots * span_s))
}

/// Returns the mean seconds that a reduce of the job waited for a slot after the maps were done;
/// `None` for a job without reduces.
pub fn reduce_wait_s(job: &JobFigures) -> Option<f64> {
    job.reduce_wait().map(Span::as_secs_f64)
}

/// Returns the seconds from submission to the end of a job; `None` for a failed job. For a job that
/// was active when the run stopped, returns a lower bound: the seconds until then.
pub fn makespan_s(job: &JobFigures) -> Option<f64> {
    let until = if job.ended.is_some() { job.ended.filter(|_| job.succeeded) } else { job.observed_until };
    Some(until?.since(job.submitted).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Cases;
    use mrcore::{
        Fact, PerPhase, Time, Why,
        ids::{Incarnation, RequestId, TaskId, TrackerId},
        job::{InputPin, JobOutcome, JobSpec, Payload, Priority, Program, Split},
        metrics::Metrics,
        task::AttemptResult,
    };
    use std::sync::Arc;

    /// A job with one map: its group, when it was submitted, when its map was launched, and when
    /// and whether it ended. Times are in seconds.
    struct JobRun(&'static str, u64, u64, Option<(u64, bool)>);

    fn spec(group: &str) -> JobSpec {
        let split = Split {
            source: "/in".into(),
            start: 0,
            end: 100,
            divisible: true,
            hosts: Vec::new(),
            pin: InputPin::default(),
        };
        JobSpec {
            name: group.into(),
            user: "ann".into(),
            queue: String::new(),
            priority: Priority::Normal,
            program: Program::Builtin("p".into()),
            splits: vec![split],
            reduces: 0,
            output: String::new(),
            slow_start: 0.0,
            speculation: false,
            split_slow: true,
            attempts_max: 1,
            conf: BTreeMap::new(),
            payload: Payload::default(),
        }
    }

    /// Returns the outcome of a run with these jobs that was stopped at `until_s`.
    fn outcome(jobs: &[JobRun], until_s: u64, unsubmitted: usize) -> Outcome {
        let mut metrics = Metrics::default();
        let mut facts: Vec<(u64, Fact)> = vec![(
            0,
            Fact::TrackerJoined {
                tracker: TrackerId(0),
                name: "t".into(),
                incarnation: Incarnation(1),
                host: "h".into(),
                rack: "r".into(),
                shuffle_addr: String::new(),
                logs_addr: String::new(),
                slots: PerPhase { map: 2, reduce: 0 },
            },
        )];
        for (number, JobRun(group, submitted, launched, ended)) in (1..).zip(jobs) {
            let job = JobId(number);
            let request = RequestId(u128::from(number));
            facts.push((*submitted, Fact::JobSubmitted { job, request, spec: Arc::new(spec(group)) }));
            let attempt = TaskId { job, phase: Phase::Map, index: 0 }.attempt(0);
            let (tracker, speculative, resumed_from) = (TrackerId(0), false, None);
            let why = Why::default();
            facts.push((
                *launched,
                Fact::AttemptLaunched { attempt, tracker, speculative, resumed_from, why },
            ));
            if let Some((at_s, succeeded)) = *ended {
                facts.push((at_s, Fact::AttemptSucceeded { attempt, result: AttemptResult::default() }));
                let outcome =
                    if succeeded { JobOutcome::Succeeded } else { JobOutcome::Failed("no space".into()) };
                facts.push((at_s, Fact::JobEnded { job, outcome }));
            }
        }
        facts.sort_by_key(|(at_s, _)| *at_s);
        for (at_s, fact) in &facts {
            metrics.observe(Time(at_s * 1_000_000), fact);
        }
        metrics.end_observation(Time(until_s * 1_000_000));
        let [name, group, user] = ["late", "g", "u"].map(str::to_owned);
        let tasks = PerPhase { map: 1, reduce: 0 };
        let not_submitted = crate::UnsubmittedJob { name, group, user, tasks, input_bytes: 1 };
        Outcome {
            scheduler: "fifo".into(),
            metrics,
            end: Time(until_s * 1_000_000),
            hash: 0,
            events: 0,
            facts: 0,
            task_times: Vec::new(),
            unfinished: 0,
            unsubmitted: vec![not_submitted; unsubmitted],
            stopped: false,
            stall: None,
            fault_times: Vec::new(),
            cases: Cases::default(),
            deciding: schedulers::timed::DecisionStats::default(),
        }
    }

    fn comparison(runs: Vec<Vec<Outcome>>) -> Comparison {
        Comparison {
            variants: runs.iter().map(|_| Variant::plain("fifo")).collect(),
            seeds: (1..=runs[0].len() as u64).collect(),
            runs,
            alone: Vec::new(),
            groups: vec!["large".into(), "small".into()],
            slots: PerPhase { map: 2, reduce: 0 },
        }
    }

    #[test]
    fn fault_after_the_end_of_all_jobs_never_happened() {
        let run = |end_s| outcome(&[JobRun("large", 0, 0, Some((end_s, true)))], end_s, 0);
        let stopped = Outcome { unfinished: 1, ..run(9) };
        let both = comparison(vec![vec![run(10), run(20)], vec![stopped, run(20)]]);
        // A run starts at 1 s.
        assert_eq!(both.never_happened("x", Span::secs(9)), None);
        let warning = "x never happened in 1 of 4 runs: all jobs had ended by then; give an earlier time";
        assert_eq!(both.never_happened("x", Span::secs(10)).as_deref(), Some(warning));
    }

    #[test]
    fn jobs_without_success_under_both_policies_are_left_out_and_counted() {
        let done = |group, end_s| JobRun(group, 0, 0, Some((end_s, true)));
        let failed = |group| JobRun(group, 0, 0, Some((9, false)));
        let one = vec![
            outcome(&[done("large", 20), done("small", 10)], 20, 0),
            outcome(&[done("large", 20), failed("small")], 20, 0),
            // Three jobs were not submitted here, two under the other policy.
            outcome(&[done("large", 20)], 20, 3),
        ];
        let other = vec![
            outcome(&[done("large", 40), done("small", 10)], 40, 0),
            outcome(&[done("large", 40), done("small", 1)], 40, 0),
            outcome(&[done("large", 40), done("small", 1)], 40, 2),
        ];
        let both = comparison(vec![one, other]);
        // The small job failed under one policy in the second seed, and was submitted only under
        // the other in the third. Two more jobs of the third seed were submitted under neither.
        assert_eq!(both.left_out(None, 0, 1), 1 + 1 + 2);
        assert_eq!(both.left_out(None, 1, 0), 4, "the order of the policies does not matter");
        assert_eq!(both.left_out(Some("small"), 0, 1), 2);
        assert_eq!(both.left_out(Some("large"), 0, 1), 0);
        // Over the other jobs: 30 s to 50 s, then only the large job.
        let difference = both.difference(0, 1).expect("jobs succeeded");
        let geometric = (0.6_f64 * 0.5 * 0.5).cbrt() - 1.0;
        assert!((difference.mean - geometric).abs() < 1e-9 && difference.seeds == 3, "{difference:?}");
    }

    /// As in a campaign: half and twice the time is no difference, although the mean ratio is 1.25.
    #[test]
    fn difference_of_policies_is_of_the_logarithms_of_paired_ratios() {
        let run = |end_s| outcome(&[JobRun("large", 0, 0, Some((end_s, true)))], end_s, 0);
        let both = comparison(vec![vec![run(10), run(10)], vec![run(20), run(5)]]);
        let difference = both.difference(1, 0).expect("jobs succeeded");
        assert!(difference.mean.abs() < 1e-9 && difference.slower_seeds == 1, "{difference:?}");
        let table = crate::report::against_first(&both).text();
        assert!(table.contains("+0.0% (-") && table.contains("no difference that these seeds"), "{table}");
    }

    #[test]
    fn figures_of_one_seed_or_of_a_stopped_run_have_no_interval() {
        let run = |end_s| outcome(&[JobRun("large", 0, 0, Some((end_s, true)))], end_s, 0);
        let stopped = || Outcome { stopped: true, ..run(30) };
        let runs = vec![vec![run(10), run(20)], vec![run(10), stopped()]];
        let both = comparison(runs);
        let figures = |at: usize| {
            let mean = both.mean_over(at, None, makespan_s);
            [mean, both.utilisation(at, Phase::Map), both.figure(at, |outcome| outcome.end.0 as f64)]
        };
        assert!(figures(0).iter().all(|figure| figure.half_width.is_some()), "{:?}", figures(0));
        for figure in figures(1) {
            assert_eq!((figure.half_width, figure.seeds), (None, 2));
            assert!(!crate::report::show(figure).contains('±'));
        }
        assert_eq!(Figure::of(&[3.0]).half_width, None);
        // Equal values have an interval, of width 0.
        assert_eq!(Figure::of(&[3.0, 3.0]).half_width, Some(0.0));
    }

    #[test]
    fn utilisation_is_the_used_part_of_the_slots_from_first_submission_to_last_end() {
        // Two slots from 10 s to 30 s. The first job holds one for 10 s, the second for 15 s.
        let jobs = [JobRun("large", 10, 10, Some((20, true))), JobRun("small", 12, 15, Some((30, true)))];
        let whole = comparison(vec![vec![outcome(&jobs, 1000, 0)]]);
        let map = whole.utilisation(0, Phase::Map);
        assert!((map.mean - 25.0 / 40.0).abs() < 1e-9, "{map:?}");
        assert_eq!(whole.utilisation(0, Phase::Reduce).seeds, 0, "there are no reduce slots");
        // A job that runs when the run is stopped counts up to then, with the slot that it holds.
        let jobs = [JobRun("large", 10, 10, Some((20, true))), JobRun("small", 12, 15, None)];
        let cut = comparison(vec![vec![outcome(&jobs, 60, 0)]]);
        let map = cut.utilisation(0, Phase::Map);
        assert!((map.mean - 55.0 / 100.0).abs() < 1e-9, "{map:?}");
        // The mean over seeds.
        let jobs = [JobRun("large", 0, 0, Some((20, true))), JobRun("small", 0, 0, Some((20, true)))];
        let jobs = [vec![outcome(&jobs, 20, 0), outcome(&jobs[..1], 20, 0)]];
        let map = comparison(jobs.into()).utilisation(0, Phase::Map);
        assert!((map.mean - 0.75).abs() < 1e-9 && map.seeds == 2, "{map:?}");
    }
}
