//! The FCS paper: 171 jobs of ten sizes on 45 workers, map-heavy and reduce-heavy; pausing compared
//! with killing; delays; scale (sections 2 and 5, tables 1 to 4, figures 1, 3 and 6 to 15).

use super::{
    Assumed, Lab, Number, Ours, PaperNumber, Reproduction, Results, Rules, Sign, bars, change, change_cell,
    columns, difference, hsrtf::plain_fair, mean_of, per_run, resize,
};
use crate::{
    Outcome, Setup, Workload, clusters,
    experiment::{Comparison, Experiment, ExperimentError, TimesAlone, Variant, makespan_s, reduce_wait_s},
    profile::{Profile, Profiles},
    report::{Cell, Table, by_group, charts, slowdowns, summary},
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
/// their size, and with this number of jobs: the policies together then take ten seconds.
const REDUCTION: u32 = 9;
const REDUCED_JOBS: u32 = 86;

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
    /// What else the paper says.
    other_numbers: fn() -> Vec<PaperNumber>,
    /// The worst slowdowns that the paper prints under Fair, by group.
    printed_slowdowns: &'static [(&'static str, f64)],
}

/// Over which groups of jobs the worst slowdowns are compared.
#[derive(Debug, Clone, Copy)]
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
    other_numbers: map_heavy_numbers,
    printed_slowdowns: &[("3", 16.0)],
};

const REDUCE_HEAVY: Heavy = Heavy {
    title: "Reduce-heavy",
    kinds: &papers::FCS_REDUCE_HEAVY,
    means: ("table 4", [978.0, 1364.0, 8829.0]),
    against_fair: -0.28,
    figures: ["figure 12", "figure 13", "figure 14"],
    slowdown: (Fairness::Mean, -0.352),
    other_numbers: reduce_heavy_numbers,
    printed_slowdowns: &[],
};

/// What the experiments assume.
struct Assumptions {
    setup: Setup,
    profiles: Profiles,
    /// Factor of the gaps between jobs.
    gaps: f64,
    /// Number of nodes for `GridMix` jobs.
    mix_nodes: usize,
    /// Factor of the numbers of tasks of `GridMix` jobs.
    mix_size: f64,
    /// Factor of the number of nodes for the heavy workloads.
    heavy_nodes: f64,
    /// Fraction of the maps that must be done before reduces start.
    slow_start: Option<f64>,
}

impl Assumptions {
    fn of(lab: &Lab<'_>) -> Self {
        let (setup, profiles) = (clusters::fcs(), lab.profiles.clone());
        let (mix_nodes, mix_size, heavy_nodes) = (MIX_NODES, 1.0, 1.0);
        Self { setup, profiles, gaps: 1.0, mix_nodes, mix_size, heavy_nodes, slow_start: None }
    }

    fn profile(&mut self, change: impl Fn(&mut Profile)) {
        self.profiles.values_mut().for_each(change);
    }

    /// Sets the map output of the reduce-heavy programs over the whole range of section 5.4, 1:1 to
    /// 3:1. The paper does not say which program has which.
    fn set_map_output(&mut self) {
        let map_out = [
            ("fcs-terasort", 1.0),
            ("fcs-rankinvertedidx", 2.0),
            ("fcs-selfjoin", 2.0),
            ("fcs-sequencecount", 3.0),
        ];
        for (program, map_out) in map_out {
            self.profiles.entry(program.to_owned()).and_modify(|profile| profile.map_out = map_out);
        }
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
        let jobs = move |all: &Self, seed| {
            papers::fcs(&all.profiles, &reduced, all.gaps * GAP_S, REDUCED_JOBS, seed)
        };
        let nodes = self.heavy_nodes * self.setup.machines.len() as f64 / f64::from(REDUCTION);
        let seeds = lab.sensitivity_seeds();
        self.run(lab, title, (nodes.round() as usize, seeds, true), heavy_variants(), &jobs)
    }

    /// Runs jobs like those of `GridMix`. They have one user: with several, Fair would divide the
    /// slots among their pools, and `fcs` could also preempt maps for these pools.
    fn run_gridmix(
        &self,
        lab: &Lab<'_>,
        what: &str,
        (count, seeds): (u32, u64),
        variants: Vec<Variant>,
    ) -> Result<Comparison, ExperimentError> {
        let jobs = |all: &Self, seed| {
            let gap_s = all.gaps * MIX_GAP_S;
            let mut workload = synthetic::gridmix(&all.profiles, Arrivals::Poisson, count, gap_s, seed);
            for job in &mut workload.jobs {
                job.user = "all".into();
                resize(job, all.mix_size);
            }
            workload
        };
        self.run(lab, &format!("{what}, {count} jobs"), (self.mix_nodes, seeds, false), variants, &jobs)
    }
}

/// Returns the policies for the heavy workloads.
fn heavy_variants() -> Vec<Variant> {
    vec![Variant::plain("fcs"), plain_fair(), Variant::plain("capacity"), literal(LITERAL, &[])]
}

/// Returns FCS that kills reduces instead of pausing them.
fn killing() -> Variant {
    Variant::tuned("fcs, kill", "fcs", &[("preempt", "kill")])
}

/// Returns FCS with only the rules of the paper that kills reduces.
fn literal_killing() -> Variant {
    literal("fcs, kill, literal", &[("preempt", "kill")])
}

/// Returns FCS with only the rules of the paper, and these parameters.
fn literal(label: &str, params: &[(&str, &str)]) -> Variant {
    Variant::tuned(label, "fcs", &[&[("literal", "true")], params].concat())
}

/// Returns FCS that never moves a paused reduce to another node.
fn without_migration() -> Variant {
    Variant::tuned("fcs, no migration", "fcs", &[NO_MIGRATION])
}

/// The same with only the rules of the paper.
fn literal_without_migration() -> Variant {
    literal("fcs, no migration, literal", &[NO_MIGRATION])
}

/// More offers than any paused reduce skips.
const NO_MIGRATION: (&str, &str) = ("skips", "100000");

fn preemptions(job: &JobFigures) -> f64 {
    f64::from(job.preemption.preemptions())
}

/// Returns the relative change of the mean of `of` over a group from Fair to FCS, paired by seed.
/// `None` if jobs are left out. There is no figure if the mean under Fair is 0 with some seed.
fn change_of(comparison: Results<'_>, group: &str, of: fn(&JobFigures) -> Option<f64>) -> Option<Ours> {
    let (fcs, fair) = (comparison.index("fcs")?, comparison.index("fair")?);
    let means = |at: usize| comparison.means(at, Some(group), of).into_iter();
    let pairs: Vec<(f64, f64)> =
        means(fcs).zip(means(fair)).map(|(fcs, fair)| fcs.zip(fair)).collect::<Option<_>>()?;
    let changes = pairs.into_iter().map(|(fcs, fair)| (fair > 0.0).then(|| fcs / fair - 1.0)).collect();
    Some(Ours::of_changes(changes).of_all_seeds())
        .filter(|_| comparison.left_out(Some(group), fcs, fair) == 0)
}

/// Returns the worst slowdown of a group (of all jobs if `None`) under a policy.
fn worst_slowdown(comparison: Results<'_>, label: &str, group: Option<&str>) -> Option<Ours> {
    let at = comparison.index(label)?;
    let estimate = comparison.worst_slowdown(at, group).into();
    Some(Ours { estimate, ..Ours::of(comparison.worst_slowdowns(at, group)) })
}

/// Runs the jobs of a table of the paper, and compares them with all that the paper says.
fn repeat_heavy(out: &mut Reproduction, lab: &Lab<'_>, heavy: &Heavy) -> Result<Comparison, ExperimentError> {
    let title = heavy.title;
    let comparison = Assumptions::of(lab).run_heavy(lab, title, heavy.kinds, heavy_variants())?;
    out.part(title, summary(&comparison), charts(&comparison));
    let mut by = |what: &str, y_label: &str, of: fn(&JobFigures) -> Option<f64>| {
        let table = by_group(&comparison, of);
        let chart = bars(&table, &[], y_label, None);
        out.part(format!("{title}: {what}"), table, chart);
    };
    by("execution by group, s", "execution, s", makespan_s);
    by("wait of reduces by group, s", "wait of reduces, s", reduce_wait_s);
    by("preemptions of a job, by group", "preemptions of a job", |job| Some(preemptions(job)));
    let table = slowdowns(&comparison);
    let printed = heavy.printed_slowdowns;
    let paper = Some(("the paper, fair", printed)).filter(|_| !printed.is_empty());
    let chart = bars(&table, &[], "worst slowdown", paper);
    out.part(format!("{title}: worst slowdown by group"), table, chart);
    out.claim_all(&heavy.numbers(), &comparison);
    Ok(comparison)
}

impl Heavy {
    /// Returns what the paper says about the jobs.
    fn numbers(&self) -> Vec<PaperNumber> {
        let Heavy {
            title, means: (table, means), against_fair, figures, slowdown: (fairness, slowdown), ..
        } = *self;
        let mut all = Vec::new();
        let names = (format!("{title}: FCS against Fair"), "FCS against Fair");
        let ours = |results: Results<'_>| change(results, None, "fcs", "fair");
        all.push(PaperNumber::new(table, names, Number::Change(against_fair), ours));
        let labels = [("fcs", means[0]), ("fair", means[1]), ("capacity", means[2])];
        for (label, paper) in labels {
            let names = (format!("{title}: mean under {label}"), format!("mean under {label}"));
            let ours = move |comparison: Results<'_>| mean_of(comparison, label, None, makespan_s);
            all.push(PaperNumber::new(table, names, Number::Seconds(paper), ours));
        }
        let what = match fairness {
            Fairness::Best => "best group",
            Fairness::Mean => "mean over groups",
        };
        let column = format!("worst slowdown, {what}, FCS against Fair");
        let ours = move |results: Results<'_>| fairness.change(results);
        let names = (format!("{title}: {column}"), column);
        all.push(PaperNumber::new(figures[2], names, Number::Change(slowdown), ours));
        all.extend((self.other_numbers)());
        all
    }
}

/// Returns statements about the difference between FCS and Fair in each of these groups.
fn of_groups(
    source: &'static str,
    what: &'static str,
    groups: std::ops::RangeInclusive<u32>,
    (sign, of): (Sign, fn(&JobFigures) -> Option<f64>),
) -> impl Iterator<Item = PaperNumber> {
    groups.map(move |group| {
        let what = format!("{what} of group {group}, FCS minus Fair");
        let ours = move |comparison: Results<'_>| {
            difference(comparison, Some(&group.to_string()), ("fcs", "fair"), of)
        };
        PaperNumber::new(source, (what.clone(), what), Number::Statement(sign), ours)
    })
}

/// Returns a number about one group, whose claim and column have the same name.
fn of_group(
    source: &'static str,
    what: impl Into<String>,
    paper: Number,
    ours: impl Fn(Results<'_>) -> Option<Ours> + 'static,
) -> PaperNumber {
    let what = what.into();
    PaperNumber::new(source, (what.clone(), what), paper, ours)
}

/// Returns what figures 1 and 8 to 11 show.
fn map_heavy_numbers() -> Vec<PaperNumber> {
    let mut all = vec![of_group(
        "figure 1",
        "worst slowdown of a job under Fair (the paper has other jobs)",
        Number::Plain(52.0),
        |comparison| worst_slowdown(comparison, "fair", None),
    )];
    // "up to 2.4x speedup for jobs in group 2"; "only jobs in Group 9 are negatively affected, at an
    // average ratio of 0.79".
    for (group, paper) in [("2", 1.0 / 2.4 - 1.0), ("9", 1.0 / 0.79 - 1.0)] {
        let what = format!("execution of group {group}, FCS against Fair");
        let ours = move |comparison: Results<'_>| change(comparison, Some(group), "fcs", "fair");
        all.push(of_group("figure 8", what, Number::Change(paper), ours));
    }
    all.extend(of_groups("figure 8", "execution", 1..=8, (Sign::Less, makespan_s)));
    let paper = Number::Change(1.0 / 32.2 - 1.0);
    all.push(of_group("figure 9", "wait of group 5, FCS against Fair", paper, |comparison| {
        change_of(comparison, "5", reduce_wait_s)
    }));
    all.extend(of_groups("figure 9", "wait", 1..=8, (Sign::Less, reduce_wait_s)));
    all.extend(of_groups("figure 9", "wait", 9..=10, (Sign::More, reduce_wait_s)));
    for group in ["1", "2", "3", "4"] {
        let what = format!("preemptions of a job of group {group}");
        let ours = move |comparison: Results<'_>| {
            mean_of(comparison, "fcs", Some(group), |job| Some(preemptions(job)))
        };
        all.push(of_group("figure 10", what, Number::PlainRead(0.0, FIGURE_10_ACCURACY), ours));
    }
    all.push(of_group(
        "figure 11",
        "worst slowdown in group 3 under Fair",
        Number::Plain(16.0),
        |comparison| worst_slowdown(comparison, "fair", Some("3")),
    ));
    all
}

/// Returns what section 7 and figures 12 and 13 show.
fn reduce_heavy_numbers() -> Vec<PaperNumber> {
    let mut all = Vec::new();
    // Section 7: "up to 39.7% and 88.9%", against Fair and Capacity.
    let names = ("Reduce-heavy: FCS against Capacity", "FCS against Capacity");
    let ours = |results: Results<'_>| change(results, None, "fcs", "capacity");
    all.push(PaperNumber::new("table 4", names, Number::Change(-0.889), ours));
    all.extend(of_groups("figure 12", "execution", 1..=10, (Sign::Less, makespan_s)));
    for (group, label) in [("1", "fcs"), ("1", "fair"), ("2", "fcs"), ("4", "fcs")] {
        let what = format!("wait of group {group} under {label}");
        let ours = move |comparison: Results<'_>| mean_of(comparison, label, Some(group), reduce_wait_s);
        all.push(of_group("figure 13", what, Number::SecondsRead(0.0, FIGURE_13_ACCURACY_S), ours));
    }
    // "ranging from 9.8x to 84.5x".
    let range = Number::ChangeRange(1.0 / 84.5 - 1.0, 1.0 / 9.8 - 1.0);
    let (comparable, most) = (Number::Change(0.0), Number::Change(0.15));
    for (group, note, paper) in [
        ("5", "", range),
        ("6", "", range),
        ("7", "", range),
        ("3", " (comparable)", comparable),
        ("8", " (comparable)", comparable),
        ("9", " (up to)", most),
        ("10", " (up to)", most),
    ] {
        let what = format!("wait of group {group}, FCS against Fair{note}");
        let ours = move |comparison: Results<'_>| change_of(comparison, group, reduce_wait_s);
        all.push(of_group("figure 13", what, paper, ours));
    }
    all
}

impl Fairness {
    /// Returns the relative change of the worst slowdown from Fair to FCS, paired by seed.
    fn change(self, comparison: Results<'_>) -> Option<Ours> {
        let (fcs, fair) = (comparison.index("fcs")?, comparison.index("fair")?);
        let groups: Vec<Vec<Option<f64>>> = comparison
            .groups
            .iter()
            .map(|group| {
                let worst = |at| comparison.worst_slowdowns(at, Some(group)).into_iter();
                worst(fcs).zip(worst(fair)).map(|(fcs, fair)| Some(fcs? / fair? - 1.0)).collect()
            })
            .collect();
        let changes = (0..comparison.seeds.len()).map(|seed| {
            let of_seed: Vec<f64> =
                groups.iter().filter_map(|group| group.get(seed).copied().flatten()).collect();
            (!of_seed.is_empty()).then(|| match self {
                Fairness::Best => of_seed.into_iter().fold(f64::INFINITY, f64::min),
                Fairness::Mean => mean(&of_seed),
            })
        });
        Some(Ours::of_changes(changes.collect()))
    }
}

/// Adds a row to a table: the number of jobs, and for each pair of policies the mean completion time
/// under both, and the relative change from the second to the first.
fn add_row(table: &mut Table, jobs: u32, comparison: &Comparison, pairs: &[(usize, usize)]) {
    let mut row = vec![Cell::count(jobs as usize)];
    for (one, other) in pairs {
        let mean = |at: usize| Cell::from(comparison.mean_over(at, None, makespan_s));
        let label = |at: usize| comparison.variants[at].label.as_str();
        let change = change(Results::ours(comparison), None, label(*one), label(*other));
        row.extend([mean(*one), mean(*other), change_cell(change)]);
    }
    table.row(row);
}

/// How accurately figure 10 shows preemptions of a job. The text says that some groups have none, of
/// bars: shorter ones look like 0.
const FIGURE_10_ACCURACY: f64 = 0.1;

/// The same for the waits of 0 in figure 13, which has groups that wait for thousands of seconds.
const FIGURE_13_ACCURACY_S: f64 = 50.0;

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
    ) -> Result<(Comparison, [Option<Ours>; 4]), ExperimentError> {
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
        let of_fair = |of: &dyn Fn(usize) -> Ours| comparison.index("fair").map(of);
        let reduce_slot = |choose: fn(f64, f64) -> f64| {
            per_run(Results::ours(&comparison), "fair", |outcome| first_reduce_s(outcome, choose))
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
        // Of Fair, so the rules of FCS do not matter.
        out.claim_of(what, paper, |_| ours.clone()).of("figure 3");
    }
    Ok(())
}

/// Shows how figure 3 depends on its jobs.
fn vary_eight_jobs(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let mut rows = Vec::new();
    for (label, jobs) in EIGHT_JOBS_VARIATIONS {
        let (_, figures) = jobs.run(lab, &format!("eight jobs, {label}"), lab.sensitivity_seeds())?;
        let ours = figures.to_vec();
        rows.push(Assumed { assumption: label.to_owned(), literal: ours.clone(), ours });
    }
    let numbers = FIGURE_3_NUMBERS.map(|(_, column, paper)| (column, paper));
    out.sensitivity("Sensitivity, eight jobs", &numbers, &rows);
    Ok(())
}

/// Returns the part of the slot time of the reduces of the large job that they do not need in the runs
/// `alone`.
fn idle(runs: &[Outcome], alone: &[Outcome]) -> Ours {
    let held_s = |outcome: &Outcome, job: usize| {
        Some(outcome.metrics.job(JobId(job as u32))?.held.reduce.as_secs_f64()).filter(|held_s| *held_s > 0.0)
    };
    let idle = runs.iter().zip(alone);
    let idle = idle.map(|(ours, alone)| Some(1.0 - held_s(alone, 1)? / held_s(ours, PROFILE_LARGE)?));
    Ours::of(idle.collect())
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
fn delay(comparison: &Comparison, at: usize) -> Ours {
    let of_seed = |(outcome, alone): (&Outcome, &TimesAlone)| {
        let TimesAlone::Groups(alone) = alone else { return None };
        let later = outcome.metrics.jobs().skip(PROFILE_LARGE);
        let delays =
            later.filter_map(|(_, job)| Some(makespan_s(job)? / alone.get(&job.group)?.as_secs_f64() - 1.0));
        let delays: Vec<f64> = delays.collect();
        // None if the runs of single jobs were stopped.
        (!delays.is_empty()).then(|| mean(&delays))
    };
    Ours::of_changes(comparison.runs[at].iter().zip(&comparison.alone).map(of_seed).collect())
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
    for (jobs, paper) in [(80, -0.113), (130, -0.218), (180, -0.257)] {
        let variants = vec![Variant::plain("fcs"), killing(), literal(LITERAL, &[]), literal_killing()];
        let comparison =
            Assumptions::of(lab).run_gridmix(lab, "pausing and killing", (jobs, lab.seeds), variants)?;
        let less = |rules| change(Results { comparison: &comparison, rules }, None, "fcs", "fcs, kill");
        out.claim_of(format!("pause against kill, {jobs} jobs"), Number::Change(paper), less).of("figure 7");
        add_row(&mut table, jobs, &comparison, &[(0, 1), (2, 3)]);
    }
    let chart = bars(
        &table,
        &["fcs, s", "fcs with kill, s", "literal, s", "literal with kill, s"],
        "completion, s",
        None,
    );
    out.part(FIGURE_7, table, chart);
    Ok(())
}

/// Varies D, the number of offers that a paused reduce skips before it migrates to another node.
fn vary_skips(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let mut table = Table::new(&["D", "mean completion, s", "against no migration", "migrations"]);
    let counts = ["0", "20", "40", "60", "80", "100", "120", "140"];
    let mut variants = counts.map(|count| Variant::tuned(count, "fcs", &[("skips", count)])).to_vec();
    variants.push(without_migration());
    let never = variants.len() - 1;
    variants
        .extend(["20", "60", "140"].map(|count| literal(&format!("{count}, literal"), &[("skips", count)])));
    variants.push(literal_without_migration());
    let literal_never = variants.len() - 1;
    let comparison = Assumptions::of(lab).run_gridmix(lab, "skips", (100, lab.seeds), variants)?;
    for (at, variant) in comparison.variants.iter().enumerate() {
        let moved = comparison.figure(at, |outcome| {
            outcome.metrics.jobs().map(|(_, job)| f64::from(job.preemption.migrations)).sum()
        });
        let mean = comparison.mean_over(at, None, makespan_s);
        let base = if at > never { literal_never } else { never };
        let base_label = comparison.variants[base].label.as_str();
        let results = Results::ours(&comparison);
        let versus_base = change(results, None, &variant.label, base_label).filter(|_| at != base);
        let versus_base = change_cell(versus_base);
        table.row(vec![variant.label.as_str().into(), mean.into(), versus_base, moved.into()]);
    }
    let results = |rules| Results { comparison: &comparison, rules };
    let ours = |rules| change(results(rules), None, "60", "fcs, no migration");
    out.claim_of("D = 60 against no migration", Number::Change(-0.096), ours).of("figure 6");
    for other in ["20", "140"] {
        let ours = |rules| difference(results(rules), None, ("60", other), makespan_s);
        out.claim_of(format!("D = 60 minus D = {other}"), Number::Statement(Sign::Less), ours).of("figure 6");
    }
    let chart = bars(&table, &["mean completion, s"], "completion, s", None);
    out.part(FIGURE_6, table, chart);
    Ok(())
}

/// Compares FCS with Fair for an increasing number of jobs.
fn vary_jobs(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let mut table =
        Table::new(&["jobs", "fcs, s", "fair, s", "against fair", "literal, s", "fair, s", "against fair"]);
    // For the rules of the paper and for ours: by number of jobs, the change in each seed.
    let mut all: [Vec<Vec<f64>>; 2] = Default::default();
    for (jobs, paper) in [(60, Some(-0.10)), (120, None), (180, None), (240, None), (300, Some(-0.28))] {
        let variants = vec![Variant::plain("fcs"), plain_fair(), literal(LITERAL, &[])];
        let comparison =
            Assumptions::of(lab).run_gridmix(lab, "number of jobs", (jobs, lab.seeds), variants)?;
        let results = |rules| Results { comparison: &comparison, rules };
        if let Some(paper) = paper {
            let ours = |rules| change(results(rules), None, "fcs", "fair");
            out.claim_of(format!("{jobs} jobs, FCS against Fair"), Number::Change(paper), ours)
                .of("figure 15");
        }
        for (rules, all) in [Rules::Paper, Rules::Ours].into_iter().zip(&mut all) {
            // Nothing if jobs failed or did not end.
            let changes =
                change(results(rules), None, "fcs", "fair").map_or_else(Vec::new, |ours| ours.by_seed);
            all.push(changes.into_iter().flatten().collect());
        }
        add_row(&mut table, jobs, &comparison, &[(0, 1), (2, 1)]);
    }
    // The mean over the numbers of jobs, in each seed.
    let average = |rules| {
        let all = &all[usize::from(rules == Rules::Ours)];
        let seeds = all.iter().map(Vec::len).min().unwrap_or(0);
        let of_seed = |seed: usize| mean(&all.iter().map(|changes| changes[seed]).collect::<Vec<f64>>());
        Some(Ours::of_changes((0..seeds).map(|seed| Some(of_seed(seed))).collect()))
    };
    let what = "mean over the numbers of jobs, FCS against Fair";
    out.claim_of(what, Number::Change(-0.397), average).of("figure 15");
    let chart = bars(&table, &["fcs, s", "fair, s", "literal, s"], "completion, s", None);
    out.part(FIGURE_15, table, chart);
    Ok(())
}

/// The jobs for which an assumption is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    GridMix,
    Heavy,
}

/// An assumption, the jobs for which it is varied, and how.
type Variation = (&'static str, Scope, fn(&mut Assumptions));

/// One assumption is varied in each, except where two are named.
const VARIATIONS: [Variation; 21] = [
    ("as assumed", Scope::All, |_| {}),
    ("task times: maps twice as fast", Scope::All, |all| all.profile(|profile| profile.map_mbps *= 2.0)),
    ("task times: reduces twice as fast", Scope::All, |all| {
        all.profile(|profile| profile.reduce_mbps *= 2.0);
    }),
    ("task times: reduces a quarter as fast", Scope::All, |all| {
        all.profile(|profile| profile.reduce_mbps /= 4.0);
    }),
    ("map output: half", Scope::All, |all| all.profile(|profile| profile.map_out /= 2.0)),
    ("map output: double", Scope::All, |all| all.profile(|profile| profile.map_out *= 2.0)),
    ("map output: 1 to 3 times the input", Scope::Heavy, |all| all.set_map_output()),
    ("slots: 2 reduce slots a node", Scope::All, |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.reduce = 2);
    }),
    ("slots: 1 reduce slot a node", Scope::GridMix, |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.reduce = 1);
    }),
    ("gap: double", Scope::All, |all| all.gaps = 2.0),
    ("gap: half", Scope::GridMix, |all| all.gaps = 0.5),
    ("gap: 30 s", Scope::GridMix, |all| all.gaps = PAPER_MIX_GAP_S / MIX_GAP_S),
    ("nodes: 45, gap 30 s", Scope::GridMix, |all| {
        (all.gaps, all.mix_nodes) = (PAPER_MIX_GAP_S / MIX_GAP_S, all.setup.machines.len());
    }),
    ("nodes: a third more", Scope::Heavy, |all| all.heavy_nodes = 4.0 / 3.0),
    ("job sizes: half", Scope::GridMix, |all| all.mix_size = 0.5),
    ("job sizes: double, gap double", Scope::GridMix, |all| (all.mix_size, all.gaps) = (2.0, 2.0)),
    ("slow start: after all maps", Scope::All, |all| all.slow_start = Some(1.0)),
    ("heartbeats: at once if a slot is free", Scope::All, |all| all.setup.out_of_band = true),
    ("disk: twice as fast", Scope::All, |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.disk *= 2.0);
    }),
    ("replicas of output: 3", Scope::All, |all| all.setup.output_replication = 3),
    ("two: 1 reduce slot a node, reduces a quarter as fast", Scope::GridMix, |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.reduce = 1);
        all.profile(|profile| profile.reduce_mbps /= 4.0);
    }),
];

/// Returns the numbers of figures 6, 7 and 15 for jobs like those of `GridMix`.
fn mix_numbers() -> Vec<PaperNumber> {
    let mut all = Vec::new();
    for (column, one, other, paper) in [
        ("against Fair", "fcs", "fair", -0.397),
        ("pause against kill", "fcs", "fcs, kill", -0.257),
        ("D = 60 against no migration", "fcs", "fcs, no migration", -0.096),
    ] {
        let ours = move |comparison: Results<'_>| change(comparison, None, one, other);
        all.push(of_group("", column, Number::Change(paper), ours));
    }
    for (column, other) in [("D = 60 minus D = 20", "20"), ("D = 60 minus D = 140", "140")] {
        let ours = move |comparison: Results<'_>| difference(comparison, None, ("fcs", other), makespan_s);
        all.push(of_group("", column, Number::Statement(Sign::Less), ours));
    }
    all
}

/// Shows how figures 6, 7 and 15 depend on what the paper does not print, and on its settings.
fn vary_gridmix(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let (numbers, mut rows) = (mix_numbers(), Vec::new());
    for (label, scope, vary) in VARIATIONS {
        if scope == Scope::Heavy {
            continue;
        }
        let mut all = Assumptions::of(lab);
        vary(&mut all);
        let mut variants = vec![Variant::plain("fcs"), plain_fair(), killing(), without_migration()];
        variants.extend([literal(LITERAL, &[]), literal_killing(), literal_without_migration()]);
        for count in ["20", "140"] {
            variants.push(Variant::tuned(count, "fcs", &[("skips", count)]));
            variants.push(literal(&format!("{count}, literal"), &[("skips", count)]));
        }
        let comparison = all.run_gridmix(lab, label, (MIX_JOBS, lab.sensitivity_seeds()), variants)?;
        rows.push(Assumed::new(label, &numbers, &comparison));
    }
    out.sensitivity("Sensitivity, 180 jobs like GridMix's", &columns(&numbers), &rows);
    Ok(())
}

/// A row of the tables of sensitivity: an assumption, and for each number our results with the rules of
/// the paper and with ours.
type VariedRow<'a> = (&'a str, Vec<[Option<Ours>; 2]>);

/// Shows how the numbers of the heavy workloads depend on what the paper does not print, and on its
/// settings.
fn vary_heavy(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    // The means are in one table for both workloads. The other figures have tables of their own.
    let (mut means, mut others) = (Vec::new(), Vec::new());
    for heavy in [&MAP_HEAVY, &REDUCE_HEAVY] {
        for mut number in heavy.numbers() {
            let title = heavy.title.to_lowercase();
            if number.source == heavy.means.0 {
                number.column = format!("{title}, {}", number.column);
                means.push((heavy.title, number));
            } else {
                others.push((heavy.title, number));
            }
        }
    }
    let rows_of = VARIATIONS.iter().filter(|(_, scope, _)| *scope != Scope::GridMix);
    // For each row: our results for all numbers, with the rules of the paper and with ours.
    let (mut mean_rows, mut other_rows) = (Vec::new(), Vec::new());
    for (label, _, vary) in rows_of {
        let mut all = Assumptions::of(lab);
        vary(&mut all);
        let map_heavy = all.run_reduced(lab, &format!("Map-heavy, {label}"), MAP_HEAVY.kinds)?;
        let reduce_heavy = all.run_reduced(lab, &format!("Reduce-heavy, {label}"), REDUCE_HEAVY.kinds)?;
        let both = |(title, number): &(&str, PaperNumber)| {
            let comparison = if *title == MAP_HEAVY.title { &map_heavy } else { &reduce_heavy };
            [Rules::Paper, Rules::Ours].map(|rules| (number.ours)(Results { comparison, rules }))
        };
        mean_rows.push((*label, means.iter().map(both).collect::<Vec<_>>()));
        other_rows.push((*label, others.iter().map(both).collect::<Vec<_>>()));
    }
    // Adds the table of the numbers at these places.
    let mut add = |title: &str, numbers: &[(&str, PaperNumber)], rows: &[VariedRow<'_>], shown: &[usize]| {
        let numbers = shown.iter().map(|at| &numbers[*at].1);
        let columns: Vec<(&str, Number)> =
            numbers.map(|number| (number.column.as_str(), number.paper)).collect();
        let of = |both: &[[Option<Ours>; 2]], rules: usize| {
            shown.iter().map(|at| both[*at][rules].clone()).collect()
        };
        let row = |(label, both): &VariedRow<'_>| Assumed {
            assumption: (*label).to_owned(),
            literal: of(both, 0),
            ours: of(both, 1),
        };
        out.sensitivity(title, &columns, &rows.iter().map(row).collect::<Vec<_>>());
    };
    let all: Vec<usize> = (0..means.len()).collect();
    add("Sensitivity, heavy workloads", &means, &mean_rows, &all);
    let mut sources: Vec<(&str, &str)> = Vec::new();
    for (title, number) in &others {
        if !sources.contains(&(*title, number.source.as_str())) {
            sources.push((title, &number.source));
        }
    }
    for (title, source) in sources {
        let is_it = |at: &usize| others[*at].0 == title && others[*at].1.source == source;
        let shown: Vec<usize> = (0..others.len()).filter(is_it).collect();
        add(&format!("Sensitivity, {}: {source}", title.to_lowercase()), &others, &other_rows, &shown);
    }
    Ok(())
}

const FIGURE_3: &str = "Eight jobs, the third large: execution, s (figure 3)";
const FIGURE_6: &str = "Skips before a paused reduce is moved (figure 6)";
const FIGURE_7: &str = "Pausing compared with killing (figure 7)";
const FIGURE_15: &str = "Number of jobs (figure 15)";

/// Adds every figure and table of the paper to the inventory.
pub(super) fn take_inventory(out: &mut Reproduction) {
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
         mean gap of 30 s. Figures 6, 7 and 15: jobs of one user like GridMix's on {MIX_NODES} of the nodes, one \
         every {MIX_GAP_S} s. Experiments with 171 jobs have {} seeds, the others {}; each row of the tables of \
         sensitivity has {}. For the heavy workloads these rows have {REDUCED_JOBS} jobs, and jobs and a cluster of a \
         ninth of their size.",
        lab.seeds_of_long_runs(),
        lab.seeds,
        lab.sensitivity_seeds()
    );
    let mut out = Reproduction::new("FCS at the paper's size", &setting);
    take_inventory(&mut out);
    repeat_heavy(&mut out, lab, &MAP_HEAVY)?;
    repeat_heavy(&mut out, lab, &REDUCE_HEAVY)?;
    profile_slots(&mut out, lab)?;
    vary_skips(&mut out, lab)?;
    pause_or_kill(&mut out, lab)?;
    vary_jobs(&mut out, lab)?;
    if lab.is_complete {
        vary_eight_jobs(&mut out, lab)?;
        vary_gridmix(&mut out, lab)?;
        vary_heavy(&mut out, lab)?;
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
            let seeds_of = |rules: &str| claims[0][rules]["estimate"]["seeds"].as_u64();
            assert_eq!([seeds_of("literal"), seeds_of("ours")], [Some(seeds as u64); 2], "{claims:?}");
        }
        let lab = Lab::new(&profiles, 4, false, &|_, _| {});
        let variants = vec![Variant::plain("fcs")];
        let mix = Assumptions::of(&lab).run_gridmix(&lab, "mix", (2, 4), variants).expect("it runs");
        assert_eq!(mix.runs[0].len(), 4);
    }

    #[test]
    fn change_from_0_has_no_figure() {
        let profiles = profile::built_in();
        let lab = Lab::new(&profiles, 2, false, &|_, _| {});
        let variants = vec![Variant::plain("fcs"), plain_fair()];
        let jobs = |_: &Assumptions, seed| papers::fcs(&profiles, &papers::FCS_MAP_HEAVY[..1], 3.0, 2, seed);
        let all = Assumptions::of(&lab);
        let comparison = all.run(&lab, "two jobs", (2, 2, false), variants, &jobs).expect("it runs");
        let change = |of| change_of(Results::ours(&comparison), "1", of);
        let from_0 = change(|_| Some(0.0)).expect("all jobs ended");
        assert_eq!((from_0.estimate.seeds, from_0.by_seed), (0, vec![None, None]));
        assert_eq!(
            change(|_| Some(2.0)).map(|ours| (ours.estimate.mean, ours.estimate.seeds)),
            Some((0.0, 2))
        );
        assert_eq!(change(|_| None), None);
    }

    /// Figure 7 compares pausing reduces with killing them, so maps must not count. Runs without
    /// timeouts for map slots are the same runs.
    #[test]
    fn maps_of_jobs_like_those_of_gridmix_are_not_preempted() {
        const NEVER: [(&str, &str); 2] = [("fair_share_timeout", "never"), ("min_share_timeout", "never")];
        let profiles = profile::built_in();
        let lab = Lab::new(&profiles, 1, false, &|_, _| {});
        let mut all = Assumptions { mix_nodes: 1, ..Assumptions::of(&lab) };
        // Few map slots and long maps, so that a second pool would wait for longer than the timeout.
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.map = 4);
        all.profile(|profile| profile.map_mbps /= 10.0);
        for mode in ["lossless", "kill"] {
            let one = Variant::tuned("one", "fcs", &[("preempt", mode)]);
            let other = Variant::tuned("other", "fcs", &[&[("preempt", mode)][..], &NEVER].concat());
            let mix = all.run_gridmix(&lab, "mix", (20, 1), vec![one, other]).expect("it runs");
            let sum = |at: usize, of: fn(&JobFigures) -> f64| {
                mix.figure(at, |outcome| outcome.metrics.jobs().map(|(_, job)| of(job)).sum()).mean
            };
            assert!(sum(0, preemptions) > 0.0, "{mode}: nothing is preempted");
            assert!(sum(0, |job| f64::from(job.preemption.splits)).abs() < 0.5, "{mode}: maps are split");
            for of in [preemptions, |job: &JobFigures| makespan_s(job).unwrap_or(f64::NAN)] {
                assert_eq!(sum(0, of).to_bits(), sum(1, of).to_bits(), "{mode}: timeouts matter");
            }
        }
    }

    #[test]
    fn jobs_like_those_of_gridmix_can_be_larger_or_smaller() {
        let profiles = profile::built_in();
        let one = synthetic::gridmix(&profiles, Arrivals::Poisson, 20, 3.0, 1).jobs;
        for (factor, times) in [(2.0, 2.0), (0.5, 0.5)] {
            for job in &one {
                let mut other = job.clone();
                resize(&mut other, factor);
                let wanted = (job.maps.len() as f64 * times).round().max(1.0);
                assert!(
                    (other.maps.len() as f64 - wanted).abs() < 0.5,
                    "{} maps, not {wanted}",
                    other.maps.len()
                );
                let shares: f32 = other.reduces.iter().map(|reduce| reduce.share).sum();
                assert!((shares - 1.0).abs() < 1e-3, "{shares}");
            }
        }
    }

    #[test]
    fn variations_differ_from_the_assumptions() {
        let profiles = profile::built_in();
        let lab = Lab::new(&profiles, 1, true, &|_, _| {});
        let of = |vary: fn(&mut Assumptions)| {
            let mut all = Assumptions::of(&lab);
            vary(&mut all);
            let factors = [all.gaps, all.mix_size, all.heavy_nodes].map(f64::to_bits);
            (all.setup, all.profiles, factors, all.mix_nodes, all.slow_start)
        };
        let base = of(|_| {});
        for (label, _, vary) in &VARIATIONS[1..] {
            assert_ne!(of(*vary), base, "{label} varies nothing");
        }
    }
}
