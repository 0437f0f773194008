//! The FCS paper: 171 jobs of ten sizes on 45 workers, map-heavy and reduce-heavy; pausing compared
//! with killing; delays; scale (sections 2 and 5, tables 1 to 4, figures 1, 3 and 6 to 15).

use super::{Lab, Number, Reproduction, Sign, change, difference, hsrtf::plain_fair};
use crate::{
    Outcome, Setup, Workload, clusters,
    experiment::{
        Comparison, Experiment, ExperimentError, Figure, TimesAlone, Variant, makespan_s, reduce_wait_s,
    },
    profile::{Profile, Profiles},
    report::{Cell, Table, by_group, change_cell, charts, slowdowns, summary},
    workload::{
        papers::{self, Kind},
        synthetic::{self, Arrivals},
    },
};
use mrcore::{
    PerPhase, Span, Time,
    ids::JobId,
    metrics::{JobFigures, stats::mean},
};
use std::cmp::Ordering;

/// Mean seconds between `GridMix` jobs. The paper gives 30 s for figure 6, but neither the sizes of
/// the jobs nor, for the stress test, the gap.
const MIX_GAP_S: f64 = 3.0;

/// Number of nodes for `GridMix` jobs. The paper has 45 for jobs whose sizes it does not print; with
/// 3 maps for a small job and 300 for a large one, reduce slots are scarce only on fewer nodes.
const MIX_NODES: usize = 12;

/// Mean seconds between the `GridMix` jobs of figure 6 in the paper.
const PAPER_MIX_GAP_S: f64 = 30.0;

/// Label of FCS with only the rules of the paper.
const LITERAL: &str = "fcs, literal";

/// Number of jobs with which the assumptions about `GridMix` are varied.
const MIX_JOBS: u32 = 180;

/// The assumptions about the heavy workloads are varied with jobs and a cluster of this part of
/// their size: a run then takes a few seconds.
const REDUCTION: u32 = 5;

/// Mean seconds between the jobs of tables 1 and 3.
const GAP_S: f64 = 30.0;

/// Seconds between the jobs of figure 3, and the number of its large job.
const PROFILE_GAP_S: u64 = 60;
const PROFILE_LARGE: usize = 3;

/// A workload of table 1 or 3, and what the paper says about it.
struct Heavy {
    title: &'static str,
    kinds: &'static [Kind],
    /// The table of mean times, and the times under FCS, Fair and Capacity in seconds.
    means: (&'static str, [f64; 3]),
    /// Relative change of the mean time from Fair to FCS.
    against_fair: f64,
    /// The figures of execution, wait and worst slowdown by group.
    figures: [&'static str; 3],
    /// What the paper says about the change of the worst slowdown from Fair to FCS.
    slowdown: (Fairness, f64),
}

/// Over which groups of jobs the worst slowdowns are compared.
#[derive(Clone, Copy)]
enum Fairness {
    /// The group that gains most.
    Best,
    /// The mean over groups.
    Mean,
}

const MAP_HEAVY: Heavy = Heavy {
    title: "Map-heavy",
    kinds: &papers::FCS_MAP_HEAVY,
    means: ("table 2", [247.0, 359.0, 1061.0]),
    against_fair: -0.31,
    figures: ["figure 8", "figure 9", "figure 11"],
    slowdown: (Fairness::Best, -0.667),
};

const REDUCE_HEAVY: Heavy = Heavy {
    title: "Reduce-heavy",
    kinds: &papers::FCS_REDUCE_HEAVY,
    means: ("table 4", [978.0, 1364.0, 8829.0]),
    against_fair: -0.28,
    figures: ["figure 12", "figure 13", "figure 14"],
    slowdown: (Fairness::Mean, -0.352),
};

/// What the experiments assume.
struct Assumptions {
    setup: Setup,
    profiles: Profiles,
    /// Factor of the gaps between jobs.
    gaps: f64,
    /// Number of nodes for `GridMix` jobs.
    mix_nodes: usize,
    /// Fraction of the maps that must be done before reduces start.
    slow_start: Option<f64>,
}

impl Assumptions {
    fn of(lab: &Lab<'_>) -> Self {
        let (setup, profiles) = (clusters::fcs(), lab.profiles.clone());
        Self { setup, profiles, gaps: 1.0, mix_nodes: MIX_NODES, slow_start: None }
    }

    fn profile(&mut self, change: impl Fn(&mut Profile)) {
        self.profiles.values_mut().for_each(change);
    }

    /// Runs jobs on the first `nodes` nodes.
    fn run(
        &self,
        lab: &Lab<'_>,
        title: &str,
        (nodes, seeds, alone): (usize, u64, bool),
        variants: Vec<Variant>,
        jobs: &(dyn Fn(&Self, u64) -> Workload + Sync),
    ) -> Result<Comparison, ExperimentError> {
        let workload = |seed| {
            let mut workload = jobs(self, seed);
            for job in &mut workload.jobs {
                job.slow_start = self.slow_start.unwrap_or(job.slow_start);
            }
            workload
        };
        let mut setup = self.setup.clone();
        setup.machines.truncate(nodes);
        let experiment = Experiment {
            setup,
            faults: None,
            workload: &workload,
            users: Vec::new(),
            variants,
            seeds: lab.seed_range(seeds),
            limit: None,
            alone,
            monitor: None,
        };
        lab.run(title, experiment)
    }

    /// Runs jobs of a table of the paper at its size.
    fn run_heavy(
        &self,
        lab: &Lab<'_>,
        title: &str,
        kinds: &'static [Kind],
        variants: Vec<Variant>,
    ) -> Result<Comparison, ExperimentError> {
        let jobs = |all: &Self, seed| papers::fcs(&all.profiles, kinds, all.gaps * GAP_S, 171, seed);
        self.run(lab, title, (usize::MAX, lab.seeds_of_long_runs(), true), variants, &jobs)
    }

    /// Runs jobs of a table of the paper, and a cluster, of a part of their size.
    fn run_reduced(
        &self,
        lab: &Lab<'_>,
        title: &str,
        kinds: &'static [Kind],
    ) -> Result<Comparison, ExperimentError> {
        let reduced: Vec<Kind> = kinds
            .iter()
            .map(|kind| Kind {
                maps: kind.maps / REDUCTION,
                reduces: (kind.reduces / REDUCTION).max(1),
                ..*kind
            })
            .collect();
        let jobs = move |all: &Self, seed| papers::fcs(&all.profiles, &reduced, all.gaps * GAP_S, 171, seed);
        let nodes = self.setup.machines.len() / REDUCTION as usize;
        let variants = vec![Variant::plain("fcs"), plain_fair()];
        let seeds = lab.sensitivity_seeds().min(lab.seeds_of_long_runs());
        self.run(lab, title, (nodes, seeds, false), variants, &jobs)
    }

    /// Runs jobs like those of `GridMix`.
    fn run_gridmix(
        &self,
        lab: &Lab<'_>,
        what: &str,
        (count, seeds): (u32, u64),
        variants: Vec<Variant>,
    ) -> Result<Comparison, ExperimentError> {
        let jobs = |all: &Self, seed| {
            synthetic::gridmix(&all.profiles, Arrivals::Poisson, count, all.gaps * MIX_GAP_S, seed)
        };
        self.run(lab, &format!("{what}, {count} jobs"), (self.mix_nodes, seeds, false), variants, &jobs)
    }
}

/// Returns FCS that kills reduces instead of pausing them.
fn killing() -> Variant {
    Variant::tuned("fcs, kill", "fcs", &[("preempt", "kill")])
}

/// Returns FCS with only the rules of the paper, and these parameters.
fn literal(label: &str, params: &[(&str, &str)]) -> Variant {
    Variant::tuned(label, "fcs", &[&[("literal", "true")], params].concat())
}

/// Returns FCS that never moves a paused reduce to another node.
fn without_migration() -> Variant {
    Variant::tuned("fcs, no migration", "fcs", &[("skips", "100000")])
}

fn preemptions(job: &JobFigures) -> f64 {
    f64::from(job.preemption.preemptions())
}

fn seconds(comparison: &Comparison, label: &str) -> Option<Figure> {
    comparison.index(label).map(|at| comparison.mean_over(at, None, makespan_s))
}

/// Our rules and those of the paper: the suffix in claims, and the label of the policy.
const RULES: [(&str, &str); 2] = [("", "fcs"), (" (literal)", LITERAL)];

/// Returns the relative change of the mean of `of` over a group from Fair to FCS, paired by seed.
/// `None` if jobs are left out, or if the mean under Fair is 0 with some seed.
fn change_of(comparison: &Comparison, group: &str, of: fn(&JobFigures) -> Option<f64>) -> Option<Figure> {
    let (fcs, fair) = (comparison.index("fcs")?, comparison.index("fair")?);
    let means = |at: usize| comparison.means(at, Some(group), of).into_iter();
    let change =
        |(fcs, fair): (Option<f64>, Option<f64>)| Some(fcs? / fair.filter(|fair| *fair > 0.0)? - 1.0);
    let changes: Option<Vec<f64>> = means(fcs).zip(means(fair)).map(change).collect();
    changes.filter(|_| comparison.left_out(Some(group), fcs, fair) == 0).map(|changes| Figure::of(&changes))
}

/// Runs the jobs of a table of the paper, and compares what both workloads have.
fn repeat_heavy(out: &mut Reproduction, lab: &Lab<'_>, heavy: &Heavy) -> Result<Comparison, ExperimentError> {
    let Heavy { title, kinds, means: (table, means), against_fair, figures, slowdown: (fairness, slowdown) } =
        heavy;
    let variants =
        vec![Variant::plain("fcs"), plain_fair(), Variant::plain("capacity"), literal(LITERAL, &[])];
    let comparison = Assumptions::of(lab).run_heavy(lab, title, kinds, variants)?;
    out.part(*title, summary(&comparison), charts(&comparison));
    let by = |of: fn(&JobFigures) -> Option<f64>| by_group(&comparison, of);
    out.part(format!("{title}: execution by group, s"), by(makespan_s), String::new());
    out.part(format!("{title}: wait of reduces by group, s"), by(reduce_wait_s), String::new());
    out.part(format!("{title}: worst slowdown by group"), slowdowns(&comparison), String::new());
    out.part(
        format!("{title}: preemptions of a job, by group"),
        by(|job| Some(preemptions(job))),
        String::new(),
    );
    for (rules, label) in RULES {
        let ours = change(&comparison, None, label, "fair");
        let what = format!("{title}: FCS{rules} against Fair");
        out.claim(what, Number::Change(*against_fair), ours).of(table);
    }
    for (label, paper) in [("fcs", means[0]), (LITERAL, means[0]), ("fair", means[1]), ("capacity", means[2])]
    {
        let ours = seconds(&comparison, label);
        out.claim(format!("{title}: mean under {label}"), Number::Seconds(paper), ours).of(table);
    }
    let what = match fairness {
        Fairness::Best => "best group",
        Fairness::Mean => "mean over groups",
    };
    for (rules, label) in RULES {
        let ours = fairness.change(&comparison, label);
        let what = format!("{title}: worst slowdown, {what}, FCS{rules} against Fair");
        out.claim(what, Number::Change(*slowdown), ours).of(figures[2]);
    }
    Ok(comparison)
}

/// Adds statements about the difference between FCS and Fair in each of these groups.
fn state(
    out: &mut Reproduction,
    comparison: &Comparison,
    (source, what): (&str, &str),
    groups: std::ops::RangeInclusive<u32>,
    (sign, of): (Sign, fn(&JobFigures) -> Option<f64>),
) {
    for group in groups {
        let ours = difference(comparison, Some(&group.to_string()), ("fcs", "fair"), of);
        out.claim(format!("{what} of group {group}, FCS minus Fair"), Number::Statement(sign), ours)
            .of(source);
    }
}

/// Reproduces tables 1 and 2 and figures 1 and 8 to 11.
fn repeat_map_heavy(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let comparison = repeat_heavy(out, lab, &MAP_HEAVY)?;
    let worst = comparison.index("fair").map(|at| comparison.worst_slowdown(at, None));
    out.claim("worst slowdown of a job under Fair (the paper has other jobs)", Number::Plain(52.0), worst)
        .of("figure 1");
    let of = |group: &str| change(&comparison, Some(group), "fcs", "fair");
    // "up to 2.4x speedup for jobs in group 2"; "only jobs in Group 9 are negatively affected, at an
    // average ratio of 0.79".
    for (group, paper) in [("2", 1.0 / 2.4 - 1.0), ("9", 1.0 / 0.79 - 1.0)] {
        let what = format!("execution of group {group}, FCS against Fair");
        out.claim(what, Number::Change(paper), of(group)).of("figure 8");
    }
    state(out, &comparison, ("figure 8", "execution"), 1..=8, (Sign::Less, makespan_s));
    let wait = change_of(&comparison, "5", reduce_wait_s);
    out.claim("wait of group 5, FCS against Fair", Number::Change(1.0 / 32.2 - 1.0), wait).of("figure 9");
    state(out, &comparison, ("figure 9", "wait"), 1..=8, (Sign::Less, reduce_wait_s));
    state(out, &comparison, ("figure 9", "wait"), 9..=10, (Sign::More, reduce_wait_s));
    for group in ["1", "2", "3", "4"] {
        let ours = comparison
            .index("fcs")
            .map(|at| comparison.mean_over(at, Some(group), |job| Some(preemptions(job))));
        out.claim(format!("preemptions of a job of group {group}"), Number::Plain(0.0), ours).of("figure 10");
    }
    let third = comparison.index("fair").map(|at| comparison.worst_slowdown(at, Some("3")));
    out.claim("worst slowdown in group 3 under Fair", Number::Plain(16.0), third).of("figure 11");
    Ok(())
}

/// Reproduces tables 3 and 4 and figures 12 to 14.
fn repeat_reduce_heavy(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let comparison = repeat_heavy(out, lab, &REDUCE_HEAVY)?;
    // Section 7: "up to 39.7% and 88.9%", against Fair and Capacity.
    for (rules, label) in RULES {
        let ours = change(&comparison, None, label, "capacity");
        out.claim(format!("Reduce-heavy: FCS{rules} against Capacity"), Number::Change(-0.889), ours)
            .of("table 4");
    }
    state(out, &comparison, ("figure 12", "execution"), 1..=10, (Sign::Less, makespan_s));
    for (group, label) in [("1", "fcs"), ("1", "fair"), ("2", "fcs"), ("4", "fcs")] {
        let ours = comparison.index(label).map(|at| comparison.mean_over(at, Some(group), reduce_wait_s));
        out.claim(format!("wait of group {group} under {label}"), Number::Seconds(0.0), ours).of("figure 13");
    }
    // "ranging from 9.8x to 84.5x".
    for group in ["5", "6", "7"] {
        let ours = change_of(&comparison, group, reduce_wait_s);
        let paper = Number::ChangeRange(1.0 / 84.5 - 1.0, 1.0 / 9.8 - 1.0);
        out.claim(format!("wait of group {group}, FCS against Fair"), paper, ours).of("figure 13");
    }
    for group in ["3", "8"] {
        let ours = change_of(&comparison, group, reduce_wait_s);
        out.claim(format!("wait of group {group}, FCS against Fair (comparable)"), Number::Change(0.0), ours)
            .of("figure 13");
    }
    for group in ["9", "10"] {
        let ours = change_of(&comparison, group, reduce_wait_s);
        out.claim(format!("wait of group {group}, FCS against Fair (up to)"), Number::Change(0.15), ours)
            .of("figure 13");
    }
    Ok(())
}

impl Fairness {
    /// Returns the relative change of the worst slowdown from Fair to the policy with this label,
    /// paired by seed.
    fn change(self, comparison: &Comparison, label: &str) -> Option<Figure> {
        let (fcs, fair) = (comparison.index(label)?, comparison.index("fair")?);
        let groups = comparison.groups.iter().map(|group| {
            let worst = |at| comparison.worst_slowdowns(at, Some(group));
            let both = worst(fcs).into_iter().zip(worst(fair)).filter_map(|(fcs, fair)| fcs.zip(fair));
            both.map(|(fcs, fair)| fcs / fair - 1.0).collect::<Vec<f64>>()
        });
        let groups: Vec<Vec<f64>> = groups.collect();
        let seeds = groups.iter().map(Vec::len).min()?;
        let changes = (0..seeds).map(|seed| {
            let of_seed: Vec<f64> = groups.iter().map(|group| group[seed]).collect();
            match self {
                Fairness::Best => of_seed.into_iter().fold(f64::INFINITY, f64::min),
                Fairness::Mean => mean(&of_seed),
            }
        });
        Some(Figure::of(&changes.collect::<Vec<f64>>()))
    }
}

/// Adds a row to a table: the number of jobs, and for each pair of policies the mean completion time
/// under both, and the relative change from the second to the first.
fn add_row(table: &mut Table, jobs: u32, comparison: &Comparison, pairs: &[(usize, usize)]) {
    let mut row = vec![Cell::count(jobs as usize)];
    for (one, other) in pairs {
        let mean = |at: usize| Cell::from(comparison.mean_over(at, None, makespan_s));
        row.extend([mean(*one), mean(*other), change_cell(comparison.change(None, *one, *other))]);
    }
    table.row(row);
}

/// What figure 3 assumes about its eight jobs. The paper prints only that the third has as many
/// reduces as there are slots.
#[derive(Clone, Copy)]
struct EightJobs {
    program: &'static str,
    /// Maps and reduces of the first two jobs.
    early: (u32, u32),
}

const EIGHT_JOBS: EightJobs = EightJobs { program: "fcs-terasort", early: LATER };

/// Maps and reduces of the jobs after the third.
const LATER: (u32, u32) = (100, 4);

/// Assumptions about figure 3. Kmeans has little map output; small early jobs have ended when the
/// third gets its reduce slots.
const EIGHT_JOBS_VARIATIONS: [(&str, EightJobs); 4] = [
    ("as assumed", EIGHT_JOBS),
    ("program: kmeans", EightJobs { program: "fcs-kmeans", ..EIGHT_JOBS }),
    ("jobs 1 and 2: 10 maps, 1 reduce", EightJobs { early: (10, 1), ..EIGHT_JOBS }),
    ("kmeans, and jobs 1 and 2: 10 maps, 1 reduce", EightJobs { program: "fcs-kmeans", early: (10, 1) }),
];

/// What the paper says about figure 3, and the columns of its sensitivity.
const FIGURE_3_NUMBERS: [(&str, &str, Number); 4] = [
    (
        "jobs 4 to 8 under Fair: completion against that alone (significantly delayed: at least 10%)",
        "delay of jobs 4 to 8",
        Number::ChangeRange(0.1, f64::INFINITY),
    ),
    // "Jobs 4-8 cannot get a share until Job 3 completes".
    (
        "first of jobs 4 to 8 to get a reduce slot under Fair, minus the end of job 3",
        "first reduce slot of jobs 4 to 8",
        Number::Statement(Sign::NotLess),
    ),
    (
        "last of jobs 4 to 8 to get a reduce slot under Fair, minus the end of job 3",
        "last of these jobs",
        Number::Statement(Sign::NotLess),
    ),
    ("time that reduces of job 3 are idle, under Fair", "reduces of job 3 idle", Number::Part(0.876)),
];

impl EightJobs {
    fn workload(self, all: &Assumptions, seed: u64) -> Workload {
        const NAMES: [&str; 8] = ["1", "2", "3", "4", "5", "6", "7", "8"];
        let mut jobs = Vec::new();
        for (at, group) in NAMES.into_iter().enumerate() {
            let (maps, reduces) = match (at + 1).cmp(&PROFILE_LARGE) {
                Ordering::Less => self.early,
                Ordering::Equal => (2000, 20),
                Ordering::Greater => LATER,
            };
            let kind = Kind { group, program: self.program, maps, reduces, jobs: 1 };
            let mut one = papers::fcs(&all.profiles, &[kind], 0.0, 1, seed * 8 + at as u64).jobs;
            for job in &mut one {
                job.at = Span::secs(PROFILE_GAP_S * at as u64);
            }
            jobs.append(&mut one);
        }
        Workload { name: "fcs-profile".into(), jobs }
    }

    /// Runs the jobs on 40 map slots of ten nodes and 20 reduce slots of ten others. Also returns our
    /// figures for [`FIGURE_3_NUMBERS`].
    fn run(
        self,
        lab: &Lab<'_>,
        title: &str,
        seeds: u64,
    ) -> Result<(Comparison, [Option<Figure>; 4]), ExperimentError> {
        let mut all = Assumptions::of(lab);
        all.setup.machines.truncate(20);
        for (at, machine) in all.setup.machines.iter_mut().enumerate() {
            machine.slots =
                if at < 10 { PerPhase { map: 4, reduce: 0 } } else { PerPhase { map: 0, reduce: 2 } };
        }
        let jobs = move |all: &Assumptions, seed| self.workload(all, seed);
        let variants = vec![plain_fair(), Variant::plain("fcs")];
        let comparison = all.run(lab, title, (20, seeds, true), variants, &jobs)?;
        // The large job alone with reduces that start after all maps: they never wait for map outputs.
        all.slow_start = Some(1.0);
        let large = move |all: &Assumptions, seed| self.workload(all, seed).only_job(PROFILE_LARGE - 1);
        let title = format!("{title}: the large job alone");
        let alone = all.run(lab, &title, (20, seeds, false), vec![plain_fair()], &large)?;
        let of_fair = |of: &dyn Fn(usize) -> Figure| comparison.index("fair").map(of);
        let reduce_slot = |choose: fn(f64, f64) -> f64| {
            of_fair(&|at| comparison.figure_of(at, |outcome| first_reduce_s(outcome, choose)))
        };
        let figures = [
            of_fair(&|at| delay(&comparison, at)),
            reduce_slot(f64::min),
            reduce_slot(f64::max),
            of_fair(&|at| idle(&comparison.runs[at], &alone.runs[0])),
        ];
        Ok((comparison, figures))
    }
}

/// Repeats figure 3.
fn profile_slots(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let (comparison, figures) = EIGHT_JOBS.run(lab, "eight jobs", lab.seeds)?;
    out.part(FIGURE_3, by_group(&comparison, makespan_s), charts(&comparison));
    out.part(
        "Eight jobs, the third large: wait of reduces, s",
        by_group(&comparison, reduce_wait_s),
        String::new(),
    );
    for ((what, _, paper), ours) in FIGURE_3_NUMBERS.into_iter().zip(figures) {
        out.claim(what, paper, ours).of("figure 3");
    }
    Ok(())
}

/// Shows how figure 3 depends on its jobs.
fn vary_eight_jobs(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let mut rows = Vec::new();
    for (label, jobs) in EIGHT_JOBS_VARIATIONS {
        let (_, figures) = jobs.run(lab, &format!("eight jobs, {label}"), lab.sensitivity_seeds())?;
        rows.push((label.to_owned(), figures.to_vec()));
    }
    let numbers = FIGURE_3_NUMBERS.map(|(_, column, paper)| (column, paper));
    out.sensitivity("Sensitivity, eight jobs", &numbers, &rows);
    Ok(())
}

/// Returns the part of the slot time of the reduces of the large job that they do not need in the runs
/// `alone`.
fn idle(runs: &[Outcome], alone: &[Outcome]) -> Figure {
    let held_s = |outcome: &Outcome, job: usize| {
        Some(outcome.metrics.job(JobId(job as u32))?.held.reduce.as_secs_f64()).filter(|held_s| *held_s > 0.0)
    };
    let idle = runs.iter().zip(alone);
    let idle = idle.filter_map(|(ours, alone)| Some(1.0 - held_s(alone, 1)? / held_s(ours, PROFILE_LARGE)?));
    Figure::of(&idle.collect::<Vec<f64>>())
}

/// Returns when one of the jobs after the large one got its first reduce slot, in seconds after the
/// end of the large job. `choose` chooses among the jobs.
fn first_reduce_s(outcome: &Outcome, choose: fn(f64, f64) -> f64) -> Option<f64> {
    let ended = outcome.metrics.job(JobId(PROFILE_LARGE as u32))?.ended?;
    let since = |time: Time| Span(time.0).as_secs_f64() - Span(ended.0).as_secs_f64();
    let later = outcome.metrics.jobs().skip(PROFILE_LARGE);
    let firsts: Option<Vec<f64>> = later.map(|(_, job)| job.first_reduce.map(since)).collect();
    firsts?.into_iter().reduce(choose)
}

/// Returns by which fraction the jobs after the large one take longer than alone.
fn delay(comparison: &Comparison, at: usize) -> Figure {
    let of_seed = |(outcome, alone): (&Outcome, &TimesAlone)| {
        let TimesAlone::Groups(alone) = alone else { return None };
        let later = outcome.metrics.jobs().skip(PROFILE_LARGE);
        let delays =
            later.filter_map(|(_, job)| Some(makespan_s(job)? / alone.get(&job.group)?.as_secs_f64() - 1.0));
        Some(mean(&delays.collect::<Vec<f64>>()))
    };
    Figure::of(&comparison.runs[at].iter().zip(&comparison.alone).filter_map(of_seed).collect::<Vec<_>>())
}

/// Compares pausing with killing for several numbers of jobs.
fn pause_or_kill(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let mut table = Table::new(&[
        "jobs",
        "fcs, s",
        "fcs with kill, s",
        "against kill",
        "literal, s",
        "literal with kill, s",
        "literal, against kill",
    ]);
    let literal_kill = || literal("fcs, literal, kill", &[("preempt", "kill")]);
    for (jobs, paper) in [(80, -0.113), (130, -0.218), (180, -0.257)] {
        let variants = vec![Variant::plain("fcs"), killing(), literal(LITERAL, &[]), literal_kill()];
        let comparison =
            Assumptions::of(lab).run_gridmix(lab, "pausing and killing", (jobs, lab.seeds), variants)?;
        for (rules, label) in RULES {
            let less = change(&comparison, None, label, &format!("{label}, kill"));
            out.claim(format!("pause against kill{rules}, {jobs} jobs"), Number::Change(paper), less)
                .of("figure 7");
        }
        add_row(&mut table, jobs, &comparison, &[(0, 1), (2, 3)]);
    }
    out.part(FIGURE_7, table, String::new());
    Ok(())
}

/// Varies D, the number of offers that a paused reduce skips before it migrates to another node.
fn vary_skips(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let mut table = Table::new(&["D", "mean completion, s", "against no migration", "migrations"]);
    let counts = ["0", "20", "40", "60", "80", "100", "120", "140"];
    let mut variants = counts.map(|count| Variant::tuned(count, "fcs", &[("skips", count)])).to_vec();
    variants.push(without_migration());
    let never = variants.len() - 1;
    variants.extend(["20", "60", "140", "100000"].map(|count| {
        let label =
            if count == "100000" { "no migration, literal".into() } else { format!("{count}, literal") };
        literal(&label, &[("skips", count)])
    }));
    let literal_never = variants.len() - 1;
    let comparison = Assumptions::of(lab).run_gridmix(lab, "skips", (100, lab.seeds), variants)?;
    for (at, variant) in comparison.variants.iter().enumerate() {
        let moved = comparison.figure(at, |outcome| {
            outcome.metrics.jobs().map(|(_, job)| f64::from(job.preemption.migrations)).sum()
        });
        let mean = comparison.mean_over(at, None, makespan_s);
        let base = if at > never { literal_never } else { never };
        let change = change_cell(comparison.change(None, at, base).filter(|_| at != base));
        table.row(vec![variant.label.as_str().into(), mean.into(), change, moved.into()]);
    }
    let versus = |one: &str, other: &str| change(&comparison, None, one, other);
    for (rules, suffix, never) in
        [("", "", "fcs, no migration"), (" (literal)", ", literal", "no migration, literal")]
    {
        let best = format!("60{suffix}");
        out.claim(
            format!("D = 60 against no migration{rules}"),
            Number::Change(-0.096),
            versus(&best, never),
        )
        .of("figure 6");
        for other in ["20", "140"] {
            let ours = difference(&comparison, None, (&best, &format!("{other}{suffix}")), makespan_s);
            out.claim(format!("D = 60 minus D = {other}{rules}"), Number::Statement(Sign::Less), ours)
                .of("figure 6");
        }
    }
    out.part(FIGURE_6, table, String::new());
    Ok(())
}

/// Compares FCS with Fair for an increasing number of jobs.
fn vary_jobs(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let mut table =
        Table::new(&["jobs", "fcs, s", "fair, s", "against fair", "literal, s", "fair, s", "against fair"]);
    let mut all: [Vec<Vec<f64>>; 2] = Default::default();
    for (jobs, paper) in [(60, Some(-0.10)), (120, None), (180, None), (240, None), (300, Some(-0.28))] {
        let variants = vec![Variant::plain("fcs"), plain_fair(), literal(LITERAL, &[])];
        let comparison =
            Assumptions::of(lab).run_gridmix(lab, "number of jobs", (jobs, lab.seeds), variants)?;
        let means = |label: &str| {
            comparison.index(label).map_or_else(Vec::new, |at| comparison.means(at, None, makespan_s))
        };
        for ((rules, label), all) in RULES.into_iter().zip(&mut all) {
            let less = change(&comparison, None, label, "fair");
            if let Some(paper) = paper {
                let what = format!("{jobs} jobs, FCS{rules} against Fair");
                out.claim(what, Number::Change(paper), less).of("figure 15");
            }
            // Nothing if jobs failed or did not end.
            let pairs = means(label).into_iter().zip(means("fair")).filter(|_| less.is_some());
            all.push(pairs.filter_map(|(fcs, fair)| Some(fcs? / fair? - 1.0)).collect());
        }
        add_row(&mut table, jobs, &comparison, &[(0, 1), (2, 1)]);
    }
    for ((rules, _), all) in RULES.into_iter().zip(&all) {
        // The mean over the numbers of jobs, in each seed.
        let seeds = all.iter().map(Vec::len).min().unwrap_or(0);
        let of_seed = |seed: usize| mean(&all.iter().map(|changes| changes[seed]).collect::<Vec<f64>>());
        let average = Figure::of(&(0..seeds).map(of_seed).collect::<Vec<f64>>());
        let what = format!("mean over the numbers of jobs, FCS{rules} against Fair");
        out.claim(what, Number::Change(-0.397), Some(average)).of("figure 15");
    }
    out.part(FIGURE_15, table, String::new());
    Ok(())
}

/// An assumption and how it is varied.
type Variation = (&'static str, fn(&mut Assumptions));

/// One assumption is varied in each.
const VARIATIONS: [Variation; 11] = [
    ("as assumed", |_| {}),
    ("task times: maps twice as fast", |all| all.profile(|profile| profile.map_mbps *= 2.0)),
    ("task times: reduces twice as fast", |all| all.profile(|profile| profile.reduce_mbps *= 2.0)),
    ("task times: reduces a quarter as fast", |all| all.profile(|profile| profile.reduce_mbps /= 4.0)),
    ("slots: 2 reduce slots a node", |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.reduce = 2);
    }),
    ("gap: double", |all| all.gaps = 2.0),
    ("gap: 30 s", |all| all.gaps = PAPER_MIX_GAP_S / MIX_GAP_S),
    ("nodes: 45, gap 30 s", |all| {
        (all.gaps, all.mix_nodes) = (PAPER_MIX_GAP_S / MIX_GAP_S, all.setup.machines.len());
    }),
    ("slow start: after all maps", |all| all.slow_start = Some(1.0)),
    ("heartbeats: at once if a slot is free", |all| all.setup.out_of_band = true),
    ("disk: twice as fast", |all| all.setup.machines.iter_mut().for_each(|machine| machine.disk *= 2.0)),
];

/// The variations for the heavy workloads, each of which takes a minute with three seeds.
const HEAVY_VARIATIONS: [&str; 4] = [
    "as assumed",
    "task times: maps twice as fast",
    "task times: reduces twice as fast",
    "slow start: after all maps",
];

/// Shows how the numbers of the paper depend on what it does not print, and on its settings.
fn vary_assumptions(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let (mut mix, mut heavy) = (Vec::new(), Vec::new());
    for (label, vary) in VARIATIONS {
        let mut all = Assumptions::of(lab);
        vary(&mut all);
        let variants = vec![Variant::plain("fcs"), plain_fair(), killing(), without_migration()];
        let comparison = all.run_gridmix(lab, label, (MIX_JOBS, lab.sensitivity_seeds()), variants)?;
        let versus = |other: &str| change(&comparison, None, "fcs", other);
        mix.push((label.to_owned(), vec![versus("fair"), versus("fcs, kill"), versus("fcs, no migration")]));
    }
    out.sensitivity(
        "Sensitivity, 180 jobs like GridMix's",
        &[
            ("against Fair", Number::Change(-0.397)),
            ("pause against kill", Number::Change(-0.257)),
            ("D = 60 against no migration", Number::Change(-0.096)),
        ],
        &mix,
    );
    for (label, vary) in VARIATIONS.into_iter().filter(|(label, _)| HEAVY_VARIATIONS.contains(label)) {
        let mut all = Assumptions::of(lab);
        vary(&mut all);
        let mut row = Vec::new();
        for Heavy { title, kinds, .. } in [&MAP_HEAVY, &REDUCE_HEAVY] {
            let comparison = all.run_reduced(lab, &format!("{title}, {label}"), kinds)?;
            row.extend([change(&comparison, None, "fcs", "fair"), seconds(&comparison, "fair")]);
        }
        heavy.push((label.to_owned(), row));
    }
    out.sensitivity(
        "Sensitivity, heavy workloads at a fifth of their size",
        &[
            ("map-heavy, FCS against Fair", Number::Change(MAP_HEAVY.against_fair)),
            ("map-heavy, mean under Fair", Number::Seconds(MAP_HEAVY.means.1[1])),
            ("reduce-heavy, FCS against Fair", Number::Change(REDUCE_HEAVY.against_fair)),
            ("reduce-heavy, mean under Fair", Number::Seconds(REDUCE_HEAVY.means.1[1])),
        ],
        &heavy,
    );
    Ok(())
}

const FIGURE_3: &str = "Eight jobs, the third large: execution, s (figure 3)";
const FIGURE_6: &str = "Skips before a paused reduce is moved (figure 6)";
const FIGURE_7: &str = "Pausing compared with killing (figure 7)";
const FIGURE_15: &str = "Number of jobs (figure 15)";

/// Adds every figure and table of the paper to the inventory.
fn take_inventory(out: &mut Reproduction) {
    let diagram = "it is a diagram of the mechanism and shows no measurement";
    out.reproduced(
        "figure 1",
        "normalized execution of jobs of seven sizes under Fair; sizes and cluster are not printed, ours are \
         those of table 1",
        "Map-heavy: worst slowdown by group",
    );
    out.not_reproduced("figure 2", "an example of three jobs on eight slots", diagram);
    out.reproduced("figure 3", "slots over time of eight jobs, one of them large", FIGURE_3);
    out.not_reproduced("figure 4", "preemption during the shuffle", diagram);
    out.not_reproduced("figure 5", "preemption during the reduce", diagram);
    out.reproduced("figure 6", "mean execution by D", FIGURE_6);
    out.reproduced("figure 7", "pausing and killing for 80, 130 and 180 jobs", FIGURE_7);
    out.used("table 1", "the map-heavy jobs");
    out.reproduced("table 2", "mean execution, map-heavy", "Map-heavy");
    out.reproduced("figure 8", "execution by group, map-heavy", "Map-heavy: execution by group, s");
    out.reproduced(
        "figure 9",
        "wait of reduces by group, map-heavy",
        "Map-heavy: wait of reduces by group, s",
    );
    out.reproduced(
        "figure 10",
        "preemptions by group, map-heavy",
        "Map-heavy: preemptions of a job, by group",
    );
    out.reproduced("figure 11", "worst slowdown by group, map-heavy", "Map-heavy: worst slowdown by group");
    out.used("table 3", "the reduce-heavy jobs");
    out.reproduced("table 4", "mean execution, reduce-heavy", "Reduce-heavy");
    out.reproduced("figure 12", "execution by group, reduce-heavy", "Reduce-heavy: execution by group, s");
    out.reproduced(
        "figure 13",
        "wait of reduces by group, reduce-heavy",
        "Reduce-heavy: wait of reduces by group, s",
    );
    out.reproduced(
        "figure 14",
        "worst slowdown by group, reduce-heavy",
        "Reduce-heavy: worst slowdown by group",
    );
    out.reproduced("figure 15", "mean execution for 60 to 300 jobs", FIGURE_15);
}

pub(super) fn reproduce(lab: &Lab<'_>) -> Result<Reproduction, ExperimentError> {
    let setting = format!(
        "45 workers with 8 map and 4 reduce slots, 128 MB blocks; 171 jobs of ten groups, arrivals Poisson with a \
         mean gap of 30 s. Figures 6, 7 and 15: jobs like GridMix's on {MIX_NODES} of the nodes, one every \
         {MIX_GAP_S} s. Experiments with 171 jobs have {} seeds, the others {}.",
        lab.seeds_of_long_runs(),
        lab.seeds
    );
    let mut out = Reproduction::new("FCS at the paper's size", &setting);
    take_inventory(&mut out);
    repeat_map_heavy(&mut out, lab)?;
    repeat_reduce_heavy(&mut out, lab)?;
    profile_slots(&mut out, lab)?;
    vary_skips(&mut out, lab)?;
    pause_or_kill(&mut out, lab)?;
    vary_jobs(&mut out, lab)?;
    if lab.is_complete {
        vary_eight_jobs(&mut out, lab)?;
        vary_assumptions(&mut out, lab)?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile;

    #[test]
    fn long_runs_have_fewer_seeds_unless_the_reproduction_is_complete() {
        let profiles = profile::built_in();
        let heavy = Heavy { title: "Small jobs", kinds: &papers::FCS_MAP_HEAVY[..1], ..MAP_HEAVY };
        for (is_complete, seeds) in [(false, 3), (true, 4)] {
            let lab = Lab::new(&profiles, 4, is_complete, &|_, _| {}).with_first_seed(7);
            let mut out = Reproduction::new("", "");
            let comparison = repeat_heavy(&mut out, &lab, &heavy).expect("it runs");
            assert!(comparison.runs.iter().all(|runs| runs.len() == seeds));
            assert_eq!(comparison.seeds[..3], [7, 8, 9]);
            assert_eq!(out.json()["tables"][0]["rows"][0]["completion, mean s"]["seeds"], seeds);
            let claims = out.json()["claims"].as_array().cloned().expect("claims");
            let literal = claims
                .iter()
                .filter(|claim| claim["what"].as_str().is_some_and(|what| what.contains("literal")));
            assert_eq!(literal.count(), 3, "the rules of the paper: against Fair, mean, worst slowdown");
        }
        let lab = Lab::new(&profiles, 4, false, &|_, _| {});
        let variants = vec![Variant::plain("fcs")];
        let mix = Assumptions::of(&lab).run_gridmix(&lab, "mix", (2, 4), variants).expect("it runs");
        assert_eq!(mix.runs[0].len(), 4);
    }

    #[test]
    fn variations_differ_from_the_assumptions() {
        let profiles = profile::built_in();
        let lab = Lab::new(&profiles, 1, true, &|_, _| {});
        let of = |vary: fn(&mut Assumptions)| {
            let mut all = Assumptions::of(&lab);
            vary(&mut all);
            (all.setup, all.profiles, all.gaps.to_bits(), all.mix_nodes, all.slow_start)
        };
        let base = of(|_| {});
        for (label, vary) in &VARIATIONS[1..] {
            assert_ne!(of(*vary), base, "{label} varies nothing");
        }
        let is_known = |name: &&str| VARIATIONS.iter().any(|(label, _)| label == name);
        assert!(HEAVY_VARIATIONS.iter().all(is_known));
    }
}
