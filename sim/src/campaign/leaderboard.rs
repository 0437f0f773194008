//! Scores of the policies of a campaign, with statistics over seeds.
//!
//! Differences are paired by seed: for each seed the logarithm of the ratio of the mean completions of
//! the jobs that succeeded under both policies. A policy that is twice as slow in one seed and twice as
//! fast in another does not differ, and a seed with a tenfold ratio does not hide the others. The mean
//! of the logarithms has a 95% interval by Student's t-distribution; both are shown as ratios.
//!
//! Whether a difference is more than chance is decided for all differences of the campaign together:
//! p-values are corrected after Holm, so that the chance of one false verdict in the whole campaign is
//! at most 5%. They are of Wilcoxon's signed-rank test of the logarithms: in some workloads a few seeds
//! have ratios of five and more, and the t-test then shows no difference where all seeds have the same
//! sign. With too few seeds for the smallest p-value of that test to survive the correction, they are
//! of the t-test.
//!
//! Quantiles and ratios that are pooled over the jobs of all seeds have intervals by the bootstrap over
//! seeds: the jobs of a seed are not independent.

use super::{ALONE, FAIR, JobRecord, RunRecord};
use crate::{
    experiment::{Change, Figure},
    report::{
        Cell, Table,
        svg::{self, Bar},
    },
    rng::Rng,
};
use mrcore::metrics::stats::{holm, jain, mean, p_value, quantile, signed_rank};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

/// Differences with a corrected p-value below this are more than chance.
const SIGNIFICANCE: f64 = 0.05;
/// The fraction of the jobs that counts as the largest jobs, by their time alone.
const LARGEST: f64 = 0.1;

/// Number of samples of the bootstrap, and the seed of their random numbers.
const SAMPLES: usize = 1000;
const SAMPLES_SEED: u64 = 1;

/// Number of stopped runs that a note names.
const STOPPED_SHOWN_MAX: usize = 3;

/// Tests whether the logarithms of ratios differ from 0. Returns the p-value and whether the policy is
/// slower; `None` for fewer than two seeds.
fn test(logarithms: &[f64], comparisons: usize) -> Option<(f64, bool)> {
    let seeds = logarithms.len();
    let smallest = 2.0 * 0.5_f64.powf(seeds as f64) * comparisons as f64;
    if smallest < SIGNIFICANCE {
        signed_rank(logarithms)
    } else {
        p_value(logarithms).map(|p| (p, mean(logarithms) > 0.0))
    }
}

/// Scores of one policy on one workload. Quantiles are over all jobs of all seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    pub workload: String,
    pub policy: String,
    /// Mean completion over seeds. A job that failed or had not ended counts until the end of the
    /// run, and the mean is a lower bound.
    pub completion_s: Figure,
    /// Relative difference of the mean completion to the reference, over seeds; null for the
    /// reference itself.
    pub against_reference: Option<Change>,
    /// p-value of that difference, corrected for all comparisons of the campaign.
    pub p_corrected: Option<f64>,
    /// Whether the policy is slower than the reference according to the test.
    #[serde(skip)]
    is_slower: bool,
    /// Completion divided by the time alone on the cluster: median, 95th and 99th percentile. Null, as
    /// is every other figure that compares two runs, if one of them was stopped in any seed. A job
    /// that did not succeed counts until the end of the run here and below, so these are lower bounds
    /// if `unfinished` is not 0.
    pub slowdown_p50: Option<f64>,
    pub slowdown_p95: Option<f64>,
    pub slowdown_p99: Option<f64>,
    /// Jain's index of the slowdowns, mean over seeds: 1 if all jobs are slowed down equally. Null if
    /// `unfinished` is not 0.
    pub jain: Option<f64>,
    /// Jobs without a slowdown, over all seeds: they did not succeed alone, or were not submitted.
    pub slowdown_left_out: usize,
    /// Finish-time fairness: completion divided by the completion under `fair`, 99th percentile over
    /// the jobs of all seeds, and its 95% interval; null for one seed.
    pub rho_p99: Option<f64>,
    pub rho_p99_low: Option<f64>,
    pub rho_p99_high: Option<f64>,
    /// Jobs without a finish-time fairness, over all seeds: they did not succeed under `fair`, or were
    /// not submitted. The largest tenth is also without those among them.
    pub rho_left_out: usize,
    /// Mean completion of the largest tenth of the jobs of all seeds, divided by that under `fair`, and
    /// its 95% interval; null for one seed.
    pub largest_against_fair: Option<f64>,
    pub largest_against_fair_low: Option<f64>,
    pub largest_against_fair_high: Option<f64>,
    pub makespan_s: Figure,
    pub locality: Option<Figure>,
    /// Fraction of the slots of each phase that were in use.
    pub map_slots_used: Option<Figure>,
    pub reduce_slots_used: Option<Figure>,
    pub lost_slot_s: Figure,
    pub overhead_slot_s: Figure,
    pub preemptions: Figure,
    /// Jobs that failed, had not ended or were not submitted, over all seeds.
    pub unfinished: usize,
    /// Jobs that did not succeed under both this policy and the reference, over all seeds.
    pub left_out: usize,
    /// Whether the time limit stopped a run of this policy or of the reference.
    pub stopped: bool,
}

/// The scores of all policies on all workloads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Leaderboard {
    /// The policy that others are compared with.
    pub reference: String,
    pub scores: Vec<Score>,
    /// Runs that are missing, also of single jobs and of `fair`, because other parts of the campaign
    /// have not done them yet.
    pub missing_runs: usize,
    /// Runs that the time limit stopped: workload, policy and seed. Figures that compare two runs are
    /// left out if one of them was stopped in any seed.
    pub stopped_runs: Vec<String>,
    /// Runs that ended because a task was started again and again: workload, policy, seed and the task.
    pub stalled_runs: Vec<String>,
    #[serde(skip)]
    slowdowns: Vec<Vec<f64>>,
    /// Mean completion of each seed, for each score.
    #[serde(skip)]
    means: Vec<Vec<f64>>,
}

/// The runs of one policy on one workload, by seed.
type BySeed<'a> = BTreeMap<u64, &'a RunRecord>;

/// Returns the completion of each job that succeeded.
fn completions(run: &RunRecord) -> BTreeMap<u32, f64> {
    run.jobs.iter().filter_map(|job| Some((job.job, job.completion_s?))).collect()
}

/// Returns the completion of each job that was submitted. A job that did not succeed counts until the
/// end of the run.
fn least_completions(run: &RunRecord) -> BTreeMap<u32, f64> {
    let at_least = |job: &JobRecord| job.completion_s.unwrap_or(run.makespan_s - job.submitted_s);
    run.jobs.iter().map(|job| (job.job, at_least(job))).collect()
}

/// Calls `of` for each job in both maps, with its number and both completions. Returns the number of
/// jobs that are in only one of them.
fn paired(ours: &BTreeMap<u32, f64>, theirs: &RunRecord, mut of: impl FnMut(u32, f64, f64)) -> usize {
    let all = ours.keys().copied().chain(theirs.jobs.iter().map(|job| job.job)).collect::<BTreeSet<_>>();
    let theirs = completions(theirs);
    let mut left_out = 0;
    for job in all {
        match (ours.get(&job), theirs.get(&job)) {
            (Some(our_s), Some(their_s)) => of(job, *our_s, *their_s),
            _ => left_out += 1,
        }
    }
    left_out
}

impl Leaderboard {
    /// Computes the scores of these policies on these workloads, each with this number of seeds.
    pub fn of(
        records: &[RunRecord],
        workloads: &[&str],
        policies: &[&str],
        seeds: u64,
        reference: &str,
    ) -> Self {
        let mut runs: BTreeMap<(&str, &str), BySeed<'_>> = BTreeMap::new();
        for record in records {
            let by_seed = runs.entry((record.workload.as_str(), record.policy.as_str())).or_default();
            by_seed.insert(record.seed, record);
        }
        let stopped_runs = records.iter().filter(|record| record.stopped).map(RunRecord::describe).collect();
        let stalled = |record: &RunRecord| Some(format!("{}: {}", record.describe(), record.stall.as_ref()?));
        let stalled_runs = records.iter().filter_map(stalled).collect();
        let none = BySeed::new();
        let of = |workload, policy| runs.get(&(workload, policy)).unwrap_or(&none);
        let (mut scores, mut changes, mut missing_runs) = (Vec::new(), Vec::new(), 0);
        let (mut slowdowns, mut means) = (Vec::new(), Vec::new());
        for workload in workloads {
            let expected: BTreeSet<&str> = policies.iter().copied().chain([ALONE, FAIR]).collect();
            let there = expected.iter().map(|policy| of(workload, policy).len());
            missing_runs += (seeds as usize * expected.len()).saturating_sub(there.sum());
            for policy in policies {
                let ours = of(workload, policy);
                let others = [of(workload, reference), of(workload, ALONE), of(workload, FAIR)];
                let (score, logarithms, slowed) = score(workload, policy, ours, others, *policy == reference);
                scores.push(score);
                changes.push(logarithms);
                slowdowns.push(slowed);
                means.push(ours.values().map(|run| mean_completion(run)).collect());
            }
        }
        let comparisons = changes.iter().filter(|logarithms| logarithms.len() > 1).count();
        let tests: Vec<_> = changes.iter().map(|logarithms| test(logarithms, comparisons)).collect();
        let p_values: Vec<f64> = tests.iter().flatten().map(|(p, _)| *p).collect();
        let mut corrected = holm(&p_values).into_iter();
        for (score, test) in scores.iter_mut().zip(tests) {
            score.p_corrected = test.and_then(|_| corrected.next());
            score.is_slower = test.is_some_and(|(_, is_slower)| is_slower);
        }
        let reference = reference.to_owned();
        Self { reference, scores, missing_runs, stopped_runs, stalled_runs, slowdowns, means }
    }

    /// Describes which runs the time limit stopped, and which stalled, in one line for each kind.
    pub fn notes(&self) -> Vec<String> {
        let stalled = self.stalled_runs.first().map(|run| {
            let more = self.stalled_runs.len() - 1;
            let more =
                if more > 0 { format!("; and {}", crate::count(more, "other run")) } else { String::new() };
            format!("a run ended with jobs that can never end: {run}{more}")
        });
        self.stopped_note().into_iter().chain(stalled).collect()
    }

    /// Describes which runs the time limit stopped, and what that means; `None` if there are none.
    pub(super) fn stopped_note(&self) -> Option<String> {
        let runs = self.stopped_runs.iter().take(STOPPED_SHOWN_MAX).map(String::as_str);
        let more = self.stopped_runs.len().saturating_sub(STOPPED_SHOWN_MAX);
        let more = (more > 0).then(|| format!("{more} more"));
        let runs: Vec<&str> = runs.chain(more.as_deref()).collect();
        (!runs.is_empty()).then(|| {
            format!(
                "{} reached --time-limit ({}): means with ≥ are lower bounds, and what is compared with a run that was stopped is left out: give a longer --time-limit",
                crate::count(self.stopped_runs.len(), "run"),
                runs.join("; ")
            )
        })
    }

    fn of_workload<'a>(&'a self, workload: &'a str) -> impl Iterator<Item = (&'a Score, &'a Vec<f64>)> {
        let scores = self.scores.iter().zip(&self.slowdowns);
        scores.filter(move |(score, _)| score.workload == workload)
    }

    fn workloads(&self) -> Vec<&str> {
        let mut seen = BTreeSet::new();
        let all = self.scores.iter().map(|score| score.workload.as_str());
        all.filter(|workload| seen.insert(*workload)).collect()
    }

    /// Returns the mean completion of each seed under each policy, for each workload, in seconds and
    /// in the order of the seeds.
    pub fn means_per_seed(&self) -> Vec<Value> {
        let rounded = |mean: &f64| json!((mean * 10.0).round() / 10.0);
        let one = |workload: &str| {
            let scores = self.scores.iter().zip(&self.means);
            let scores = scores.filter(|(score, _)| score.workload == workload);
            let policies: Map<String, Value> = scores
                .map(|(score, means)| (score.policy.clone(), means.iter().map(rounded).collect()))
                .collect();
            json!({ "workload": workload, "completion_s": policies })
        };
        self.workloads().into_iter().map(one).collect()
    }

    /// Returns a table for each workload, the policy with the lowest mean completion first.
    pub fn tables(&self) -> Vec<(String, Table)> {
        let fraction = |figure: Option<Figure>| figure.map_or_else(|| "-".into(), Cell::fraction);
        let both = |low: Option<f64>, high: Option<f64>| low.zip(high).map(|(low, high)| [low, high]);
        let one = |workload: &str| {
            let against = format!("against {}", self.reference);
            let mut table = Table::new(&[
                "policy",
                "completion, mean s",
                &against,
                "verdict",
                "slowdown p50",
                "p95",
                "p99",
                "Jain",
                "rho p99",
                "largest tenth / fair",
                "makespan s",
                "locality",
                "map slots used",
                "reduce slots used",
                "lost slot-s",
                "overhead slot-s",
                "preempted",
                "unfinished",
            ]);
            let mut scores: Vec<&Score> = self.of_workload(workload).map(|(score, _)| score).collect();
            let order = |score: &Score| (score.completion_s.is_lower_bound, score.completion_s.mean);
            scores.sort_by(|one, other| order(one).partial_cmp(&order(other)).unwrap_or(Ordering::Equal));
            for score in scores {
                let bound = |cell: Cell| cell.as_lower_bound(score.unfinished > 0);
                let slowdown = |value| bound(Cell::number(value)).without_jobs(score.slowdown_left_out);
                let rho = |cell| bound(cell).without_jobs(score.rho_left_out);
                table.row(vec![
                    score.policy.as_str().into(),
                    score.completion_s.into(),
                    score
                        .against_reference
                        .map_or_else(|| "-".into(), |change| Cell::change(change.mean, change.interval())),
                    self.verdict(score).into(),
                    slowdown(score.slowdown_p50),
                    slowdown(score.slowdown_p95),
                    slowdown(score.slowdown_p99),
                    Cell::number(score.jain),
                    rho(Cell::interval(score.rho_p99, both(score.rho_p99_low, score.rho_p99_high))),
                    rho(Cell::interval(
                        score.largest_against_fair,
                        both(score.largest_against_fair_low, score.largest_against_fair_high),
                    )),
                    score.makespan_s.into(),
                    fraction(score.locality),
                    fraction(score.map_slots_used),
                    fraction(score.reduce_slots_used),
                    score.lost_slot_s.into(),
                    score.overhead_slot_s.into(),
                    score.preemptions.into(),
                    Cell::count(score.unfinished),
                ]);
            }
            (workload.to_owned(), table)
        };
        self.workloads().into_iter().map(one).collect()
    }

    pub(super) fn verdict(&self, score: &Score) -> String {
        let mut verdict = match (score.against_reference, score.p_corrected) {
            (None, _) if score.policy == self.reference => "reference".to_owned(),
            (None, _) if score.stopped => "a run was stopped".to_owned(),
            (None, _) if score.left_out == 0 => "runs are missing".to_owned(),
            (None, _) => "no job succeeded under both".to_owned(),
            (Some(_), None) => "one seed: may be chance".to_owned(),
            (Some(_), Some(p)) if p < SIGNIFICANCE => {
                if score.is_slower { "slower" } else { "faster" }.to_owned()
            }
            (Some(_), Some(_)) => "no difference shown".to_owned(),
        };
        if score.left_out > 0 {
            let _ = write!(verdict, "; without {}", crate::count(score.left_out, "job"));
        }
        verdict
    }

    /// Returns the mean completion of each policy on each workload, divided by that of the best
    /// policy, with the geometric mean over the workloads; the best policy first.
    pub fn summary(&self) -> Table {
        let workloads = self.workloads();
        let head = ["policy", "geometric mean"].into_iter().chain(workloads.iter().copied());
        let mut table = Table::new(&head.collect::<Vec<_>>());
        let mut ratios: BTreeMap<&str, Vec<(f64, bool)>> = BTreeMap::new();
        for workload in &workloads {
            let known = |score: &Score| score.completion_s.known().filter(|figure| figure.mean > 0.0);
            let means = self.of_workload(workload).filter_map(|(score, _)| known(score));
            let best = means.filter(|figure| !figure.is_lower_bound).map(|figure| figure.mean);
            let best = best.fold(f64::INFINITY, f64::min);
            for (score, _) in self.of_workload(workload) {
                let ratio = known(score)
                    .map_or((f64::NAN, true), |figure| (figure.mean / best, figure.is_lower_bound));
                ratios.entry(&score.policy).or_default().push(ratio);
            }
        }
        let geometric = |ratios: &[(f64, bool)]| {
            let logarithms: Vec<f64> = ratios.iter().map(|(ratio, _)| ratio.ln()).collect();
            (mean(&logarithms).exp(), ratios.iter().any(|(_, is_lower_bound)| *is_lower_bound))
        };
        let mut rows: Vec<(&str, Vec<(f64, bool)>)> = ratios.into_iter().collect();
        rows.sort_by(|(_, one), (_, other)| {
            let order = |ratios: &[(f64, bool)]| (geometric(ratios).1, geometric(ratios).0);
            order(one).partial_cmp(&order(other)).unwrap_or(Ordering::Equal)
        });
        let cell = |(ratio, is_lower_bound): (f64, bool)| {
            let value = Some(ratio).filter(|ratio| ratio.is_finite() && *ratio > 0.0);
            Cell::number(value).as_lower_bound(is_lower_bound)
        };
        for (policy, ratios) in rows {
            let cells = [policy.into(), cell(geometric(&ratios))].into_iter();
            table.row(cells.chain(ratios.iter().map(|ratio| cell(*ratio))).collect());
        }
        table
    }

    /// Returns a chart for each workload: the distribution of the slowdowns under each policy.
    pub fn charts(&self, layout: &'static svg::Layout) -> Vec<(String, String)> {
        let one = |workload: &str| {
            let series: Vec<(&str, Vec<f64>)> = self
                .of_workload(workload)
                .map(|(score, slowdowns)| (score.policy.as_str(), slowdowns.clone()))
                .collect();
            (workload.to_owned(), svg::cdf(layout, "slowdown", &series))
        };
        self.workloads().into_iter().map(one).collect()
    }

    /// Returns a chart with the mean completion of each policy on each workload, relative to that of
    /// the reference. The intervals are those of the paired differences.
    pub fn completion_chart(&self, layout: &'static svg::Layout) -> String {
        let workloads = self.workloads();
        let mut series: Vec<(&str, Vec<Bar>)> = Vec::new();
        for workload in &workloads {
            for (at, (score, _)) in self.of_workload(workload).enumerate() {
                if series.len() <= at {
                    series.push((&score.policy, Vec::new()));
                }
                let ratio = match score.against_reference {
                    Some(change) => {
                        let [low, high] = change.interval().unwrap_or([change.mean; 2]);
                        Bar { value: 1.0 + change.mean, low: 1.0 + low, high: 1.0 + high }
                    }
                    None if score.policy == self.reference => (1.0, 0.0).into(),
                    // No job succeeded under both policies.
                    None => (0.0, 0.0).into(),
                };
                series[at].1.push(ratio);
            }
        }
        let groups: Vec<String> = workloads.iter().map(|workload| (*workload).to_owned()).collect();
        svg::bars(layout, &format!("completion / {}", self.reference), &groups, &series)
    }
}

/// Draws as many seeds as there are, with replacement, and returns how often each was drawn.
fn resample(seeds: usize, rng: &mut Rng) -> Vec<usize> {
    let mut counts = vec![0; seeds];
    (0..seeds).for_each(|_| counts[rng.index(seeds)] += 1);
    counts
}

/// Returns the 95% interval of what `of` computes from how often each seed counts, by the bootstrap
/// over seeds; `None` for fewer than two seeds.
fn bootstrap(seeds: usize, of: impl Fn(&[usize]) -> Option<f64>) -> Option<[f64; 2]> {
    let mut rng = Rng::of(SAMPLES_SEED, "bootstrap");
    let values: Vec<f64> =
        (0..SAMPLES).filter(|_| seeds > 1).filter_map(|_| of(&resample(seeds, &mut rng))).collect();
    (!values.is_empty()).then(|| [0.025, 0.975].map(|part| quantile(&values, part)))
}

/// Returns the interval of a quantile over the values of all seeds.
fn quantile_interval(by_seed: &[Vec<f64>], part: f64) -> Option<[f64; 2]> {
    let values = by_seed.iter().enumerate();
    let mut sorted: Vec<(f64, usize)> =
        values.flat_map(|(seed, values)| values.iter().map(move |value| (*value, seed))).collect();
    sorted.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    bootstrap(by_seed.len(), |counts| {
        let total: usize = by_seed.iter().zip(counts).map(|(values, count)| values.len() * count).sum();
        let at = part * total.checked_sub(1)? as f64;
        // From the largest value on, because high quantiles are asked for.
        let value_at = |place: usize| {
            let mut above = total - 1 - place;
            let found = sorted.iter().find(|(_, seed)| {
                let is_found = above < counts[*seed];
                above = above.saturating_sub(counts[*seed]);
                is_found
            });
            found.map(|(value, _)| *value)
        };
        let (below, above) = (value_at(at.floor() as usize)?, value_at(at.ceil() as usize)?);
        Some(below + (above - below) * at.fract())
    })
}

/// Returns the interval of the ratio of two sums over the seeds.
fn ratio_interval(by_seed: &[[f64; 2]]) -> Option<[f64; 2]> {
    bootstrap(by_seed.len(), |counts| {
        let sum = |at: usize| -> f64 {
            by_seed.iter().zip(counts).map(|(sums, count)| sums[at] * *count as f64).sum()
        };
        Some(sum(0) / sum(1)).filter(|ratio| ratio.is_finite())
    })
}

/// Returns the score of a policy, the logarithm of the ratio to the reference in each seed, and the
/// slowdowns of all jobs.
fn score(
    workload: &str,
    policy: &str,
    ours: &BySeed<'_>,
    [reference, alone, fair]: [&BySeed<'_>; 3],
    is_reference: bool,
) -> (Score, Vec<f64>, Vec<f64>) {
    let are_whole = ours.values().all(|run| !run.stopped);
    let over_seeds = |of: &dyn Fn(&RunRecord) -> f64| {
        Figure::of(&ours.values().map(|run| of(run)).collect::<Vec<_>>()).of_whole_runs(are_whole)
    };
    let (mut changes, mut left_out) = (Vec::new(), 0);
    let (mut slowdown_left_out, mut rho_left_out) = (0, 0);
    let (mut slowdowns, mut jains) = (Vec::new(), Vec::new());
    // For each seed: all values, and the sums under this policy and under `fair`.
    let (mut rhos, mut largest): (Vec<Vec<f64>>, Vec<[f64; 2]>) = (Vec::new(), Vec::new());
    // In a run that was stopped, the jobs that ended do not represent the others.
    let are_complete = |runs: &BySeed<'_>| runs.values().chain(ours.values()).all(|run| !run.stopped);
    let stopped = !are_complete(reference);
    let [reference, alone, fair] = [reference, alone, fair].map(|runs| are_complete(runs).then_some(runs));
    for (seed, run) in ours {
        if let Some(other) = reference.and_then(|runs| runs.get(seed)).filter(|_| !is_reference) {
            let mut sums = [0.0, 0.0];
            let mut both = 0;
            paired(&completions(run), other, |_, our_s, their_s| {
                sums = [sums[0] + our_s, sums[1] + their_s];
                both += 1;
            });
            left_out += run.jobs.len().max(other.jobs.len()) - both;
            changes.extend((sums[0] > 0.0 && sums[1] > 0.0).then(|| (sums[0] / sums[1]).ln()));
        }
        let fair = fair.and_then(|runs| runs.get(seed));
        if let Some(alone) = alone.and_then(|runs| runs.get(seed)) {
            let mut slowed = Vec::new();
            slowdown_left_out += paired(&least_completions(run), alone, |_, our_s, alone_s| {
                slowed.push(our_s / alone_s.max(1e-6));
            });
            jains.extend(jain(&slowed));
            slowdowns.append(&mut slowed);
            if let Some(fair) = fair {
                let (large, mut sums) = (largest_jobs(alone), [0.0, 0.0]);
                paired(&least_completions(run), fair, |job, our_s, fair_s| {
                    if large.contains(&job) {
                        sums = [sums[0] + our_s, sums[1] + fair_s];
                    }
                });
                largest.extend((sums[1] > 0.0).then_some(sums));
            }
        }
        if let Some(fair) = fair {
            let mut of_seed = Vec::new();
            rho_left_out += paired(&least_completions(run), fair, |_, our_s, fair_s| {
                of_seed.push(our_s / fair_s.max(1e-6));
            });
            rhos.extend((!of_seed.is_empty()).then_some(of_seed));
        }
    }
    let ends = |interval: Option<[f64; 2]>| [0, 1].map(|at| interval.map(|ends| ends[at]));
    let known = |values: &[f64], part: f64| (!values.is_empty()).then(|| quantile(values, part));
    let unfinished =
        |run: &&RunRecord| run.unsubmitted + run.jobs.iter().filter(|job| job.completion_s.is_none()).count();
    let unfinished = ours.values().map(unfinished).sum();
    let over_known = |of: fn(&RunRecord) -> Option<f64>| {
        let values: Vec<f64> = ours.values().filter_map(|run| of(run)).collect();
        Figure::of(&values).of_whole_runs(are_whole).known()
    };
    let [rho_p99_low, rho_p99_high] = ends(quantile_interval(&rhos, 0.99));
    let [largest_against_fair_low, largest_against_fair_high] = ends(ratio_interval(&largest));
    let largest = largest.into_iter().reduce(|one, other| [one[0] + other[0], one[1] + other[1]]);
    let score = Score {
        workload: workload.to_owned(),
        policy: policy.to_owned(),
        completion_s: Figure { is_lower_bound: unfinished > 0, ..over_seeds(&mean_completion) },
        against_reference: Change::of(&changes),
        p_corrected: None,
        is_slower: false,
        slowdown_p50: known(&slowdowns, 0.5),
        slowdown_p95: known(&slowdowns, 0.95),
        slowdown_p99: known(&slowdowns, 0.99),
        slowdown_left_out,
        jain: (!jains.is_empty() && unfinished == 0).then(|| mean(&jains)),
        rho_p99: known(&rhos.concat(), 0.99),
        rho_p99_low,
        rho_p99_high,
        rho_left_out,
        largest_against_fair: largest.map(|[ours, fair]| ours / fair),
        largest_against_fair_low,
        largest_against_fair_high,
        makespan_s: over_seeds(&|run| run.makespan_s),
        locality: over_known(|run| run.locality),
        map_slots_used: over_known(|run| run.map_slots_used),
        reduce_slots_used: over_known(|run| run.reduce_slots_used),
        lost_slot_s: over_seeds(&|run| run.lost_slot_s),
        overhead_slot_s: over_seeds(&|run| run.overhead_slot_s),
        preemptions: over_seeds(&|run| run.preemptions as f64),
        unfinished,
        left_out,
        stopped,
    };
    (score, changes, slowdowns)
}

/// Returns the mean completion of the jobs of a run. A job that did not succeed counts until the end
/// of the run.
fn mean_completion(run: &RunRecord) -> f64 {
    mean(&least_completions(run).into_values().collect::<Vec<_>>())
}

/// Returns the largest tenth of the jobs, at least one, by their time alone.
fn largest_jobs(alone: &RunRecord) -> BTreeSet<u32> {
    let mut jobs: Vec<(u32, f64)> = completions(alone).into_iter().collect();
    jobs.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let count = (jobs.len() as f64 * LARGEST).ceil() as usize;
    jobs.into_iter().take(count).map(|(job, _)| job).collect()
}
