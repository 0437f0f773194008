//! The COSHH paper: a hundred jobs of the Facebook and Yahoo! classes on six unequal resources,
//! then fewer jobs, more resources and prediction errors (sections 5 and 6, tables 6 to 9, figures
//! 5 to 24), and the Facebook classes on four unequal machines (section 7, table 12, figures 25 to
//! 28).

use super::{
    Assumed, ComputeOurs, Lab, Number, Ours, PaperNumber, Reproduction, Results, Rules,
    SENSITIVITY_SEEDS_MAX, Sign, bars, change, change_cell, columns, difference, per_run, resize,
    run_difference,
};
use crate::{
    Outcome, Setup, clusters,
    experiment::{Comparison, Experiment, ExperimentError, Figure, Variant, makespan_s},
    report::{Cell, Table, by_group, charts, deciding_s, locality, summary},
    setup::Machine,
    workload::coshh::{self, Class, FACEBOOK, YAHOO},
};
use mrcore::PerPhase;

/// Mean seconds between jobs. The paper does not give it, but states that the cluster is overloaded
/// from job 50 on.
const GAP_S: f64 = 60.0;

/// The policies that the paper compares.
const PAPER_POLICIES: [&str; 3] = ["fifo", "fair", "coshh"];

/// Label of COSHH with the rules of the paper only.
const LITERAL: &str = "coshh, literal";

/// Label of COSHH with durations of tasks that it learns from tasks that end. In the paper, and
/// under the label `coshh`, they are given.
const LEARNED: &str = "coshh, learned";

/// Fair without preemption and delay scheduling, as in the paper, which describes it with sticky
/// slots.
const NAIVE_FAIR: [(&str, &str); 4] = [
    ("min_share_timeout", "never"),
    ("fair_share_timeout", "never"),
    ("node_wait", "0s"),
    ("rack_wait", "0s"),
];

/// Mean seconds between jobs on the four machines of section 7, which have about a tenth of the
/// computing rate of the six resources.
const REAL_GAP_S: f64 = 600.0;

/// Label of our variant of COSHH that avoids slow nodes, which is not in the paper.
const AVOIDS_SLOW_NODES: &str = "coshh, learned, no slow nodes";

/// The assumptions about Yahoo!'s jobs are varied with a quarter of their tasks, and with a quarter of
/// the gap between jobs.
const LONG_REDUCTION: f64 = 0.25;

/// Network rate of a resource with slow storage, bytes per second for all its slots.
const SLOW_BYTES_PER_S: f64 = 0.5e6;

/// The numbers of two figures in the paper: the one with completion times, and the one with
/// scheduling times.
type FigureNumbers = [u32; 2];

/// What an experiment assumes.
struct Assumptions {
    setup: Setup,
    gap_s: f64,
    /// Factor of the numbers of tasks of a job, which are one of 20.
    tasks: f64,
    /// Fraction of the maps that must be done before reduces start.
    slow_start: Option<f64>,
    /// Parameters of Fair.
    fair: Vec<(&'static str, &'static str)>,
    /// Whether COSHH learns the durations of tasks.
    learns: bool,
    /// Maximum number of seeds.
    seeds_max: u64,
}

impl Assumptions {
    fn of(setup: Setup) -> Self {
        let (fair, seeds_max) = (NAIVE_FAIR.to_vec(), u64::MAX);
        Self { setup, gap_s: GAP_S, tasks: 1.0, slow_start: None, fair, learns: false, seeds_max }
    }

    /// Multiplies the numbers of tasks and the gap between jobs, so that the load stays.
    fn resize(&mut self, factor: f64) {
        self.tasks *= factor;
        self.gap_s *= factor;
    }

    fn slots(&mut self, of: impl Fn(u32) -> u32) {
        for machine in &mut self.setup.machines {
            machine.slots = PerPhase { map: of(machine.slots.map), reduce: of(machine.slots.reduce) };
        }
    }

    /// Changes the machines that are slow.
    fn slow_machines(&mut self, change: impl Fn(&mut Machine)) {
        self.setup.machines.iter_mut().filter(|machine| machine.speed < 1.0).for_each(change);
    }
}

/// Results of the paper for a workload. Arrays of three are for FIFO, Fair and COSHH.
struct PaperFigures {
    name: &'static str,
    classes: &'static [Class],
    /// Whether a run takes long: the jobs of Yahoo! have six times as many tasks.
    is_long: bool,
    /// Relative change of the mean completion time: COSHH compared with FIFO, and with Fair.
    changes: [f64; 2],
    /// Relative change of the mean completion time with identical users: COSHH compared with Fair,
    /// and Fair compared with FIFO.
    identical: [f64; 2],
    /// Rows of table 6 or 7: dissatisfaction, fairness, locality.
    metrics: [[f64; 3]; 3],
    /// Rows of table 8 or 9, with identical users: fairness, locality.
    identical_metrics: [[f64; 3]; 2],
    /// The table with minimum shares, and that with identical users.
    tables: [&'static str; 2],
    with_shares: FigureNumbers,
    with_identical_users: FigureNumbers,
    by_jobs: FigureNumbers,
    by_resources: FigureNumbers,
    by_error: FigureNumbers,
}

const PAPER_FIGURES: [PaperFigures; 2] = [
    PaperFigures {
        name: "Yahoo!",
        classes: &YAHOO,
        is_long: true,
        changes: [-0.7449, -0.7973],
        identical: [-0.7592, -0.3772],
        metrics: [[8.618, 7.16e-4, 1.209], [4.974, 0.965, 2.779], [0.956, 0.974, 0.965]],
        identical_metrics: [[1.032, 0.504, 0.856], [0.949, 0.979, 0.981]],
        tables: ["table 6", "table 8"],
        with_shares: [6, 7],
        with_identical_users: [10, 11],
        by_jobs: [13, 15],
        by_resources: [17, 19],
        by_error: [21, 23],
    },
    PaperFigures {
        name: "Facebook",
        classes: &FACEBOOK,
        is_long: false,
        changes: [-0.3127, -0.4241],
        identical: [-0.4297, -0.2642],
        metrics: [[10.782, 8.31e-2, 0.294], [6.646, 2.537, 0.663], [0.977, 0.957, 0.950]],
        identical_metrics: [[1.188, 0.429, 0.926], [0.934, 0.952, 0.983]],
        tables: ["table 7", "table 9"],
        with_shares: [5, 8],
        with_identical_users: [9, 12],
        by_jobs: [14, 16],
        by_resources: [18, 20],
        by_error: [22, 24],
    },
];

impl PaperFigures {
    /// Runs `jobs` jobs under these policies.
    fn run(
        &self,
        lab: &Lab<'_>,
        what: &str,
        (all, jobs): (&Assumptions, u32),
        (variants, identical): (Vec<Variant>, bool),
    ) -> Result<Comparison, ExperimentError> {
        let workload = |seed| {
            let mut workload = coshh::workload(self.name, self.classes, jobs, all.gap_s, seed);
            for job in &mut workload.jobs {
                job.slow_start = all.slow_start.unwrap_or(job.slow_start);
                resize(job, all.tasks);
            }
            workload
        };
        let experiment = Experiment {
            setup: all.setup.clone(),
            faults: None,
            workload: &workload,
            users: coshh::min_shares(self.classes, identical),
            variants,
            seeds: lab.seed_range(self.seeds(lab).min(all.seeds_max)),
            limit: None,
            alone: false,
            monitor: None,
        };
        lab.run(&format!("{}, {what}", self.name), experiment)
    }

    /// Returns the number of seeds.
    fn seeds(&self, lab: &Lab<'_>) -> u64 {
        if self.is_long { lab.seeds_of_long_runs() } else { lab.seeds }
    }

    /// Returns the policies for a cluster, with the minimum shares of the users as parameters.
    fn variants(
        &self,
        Assumptions { setup, fair, learns, .. }: &Assumptions,
        identical: bool,
    ) -> Vec<Variant> {
        let share_params = clusters::share_params(&coshh::min_shares(self.classes, identical));
        let given = |variant| if *learns { variant } else { self.with_given_durations(variant, setup) };
        let all = [
            Variant::plain("fifo"),
            Variant::tuned("fair", "fair", fair),
            given(Variant::plain("coshh")),
            given(Variant::tuned(LITERAL, "coshh", &[("literal", "true")])),
            Variant::tuned(LEARNED, "coshh", &[]),
            // Avoids nodes on which a task takes ten times as long as on others.
            Variant::tuned(AVOIDS_SLOW_NODES, "coshh", &[("slowest", "10")]),
        ];
        all.into_iter().map(|variant| variant.with_params(&share_params)).collect()
    }

    /// Adds the durations of the tasks on the machines of a cluster to the parameters of a variant.
    fn with_given_durations(&self, variant: Variant, setup: &Setup) -> Variant {
        variant.with_params(&coshh::given_durations(self.classes, &setup.machines).into_iter().collect())
    }

    /// Returns the policies that the paper compares, COSHH also with the rules of the paper only.
    fn paper_variants(&self, all: &Assumptions, identical: bool) -> Vec<Variant> {
        let is_papers =
            |variant: &Variant| variant.label == LITERAL || PAPER_POLICIES.contains(&variant.label.as_str());
        self.variants(all, identical).into_iter().filter(is_papers).collect()
    }
}

/// Runs a hundred jobs on the six resources of table 3 under the policies of the paper.
fn compare(
    out: &mut Reproduction,
    paper_figures: &PaperFigures,
    identical: bool,
    lab: &Lab<'_>,
) -> Result<Comparison, ExperimentError> {
    let (users, [completion, deciding]) = if identical {
        ("identical users", paper_figures.with_identical_users)
    } else {
        ("minimum shares", paper_figures.with_shares)
    };
    let title = format!("{}, {users}", paper_figures.name);
    let all = Assumptions::of(clusters::coshh(6));
    let variants = paper_figures.paper_variants(&all, identical);
    let comparison = paper_figures.run(lab, users, (&all, 100), (variants, identical))?;
    let figures = format!("{title} (completion: figure {completion}, deciding: figure {deciding})");
    out.part(figures, summary(&comparison), charts(&comparison));
    out.part(format!("{title}: the paper's metrics"), metrics(&comparison), String::new());
    out.part(format!("{title}: completion by class, s"), by_group(&comparison, makespan_s), String::new());
    Ok(comparison)
}

/// Returns the scheduling time of a run, for numbers that compare it.
#[expect(clippy::unnecessary_wraps)] // Other numbers of a run can be missing.
fn scheduling_s(outcome: &Outcome) -> Option<f64> {
    Some(deciding_s(outcome))
}

#[expect(clippy::unnecessary_wraps)] // Other numbers of a run can be missing.
fn dissatisfaction(outcome: &Outcome) -> Option<f64> {
    Some(outcome.metrics.shares.dissatisfaction())
}

/// Returns the fairness over all users, as the paper defines it.
#[expect(clippy::unnecessary_wraps)] // Other numbers of a run can be missing.
fn fairness(outcome: &Outcome) -> Option<f64> {
    Some(outcome.metrics.shares.fairness_of_all_users())
}

fn metrics(comparison: &Comparison) -> Table {
    let mut table =
        Table::new(&["policy", "dissatisfaction", "fairness", "fairness, users with jobs", "locality"]);
    for (at, variant) in comparison.variants.iter().enumerate() {
        table.row(vec![
            variant.label.as_str().into(),
            comparison.figure_of(at, dissatisfaction).into(),
            comparison.figure_of(at, fairness).into(),
            comparison.figure(at, |outcome| outcome.metrics.shares.fairness()).into(),
            Cell::fraction(comparison.figure_of(at, locality)),
        ]);
    }
    table
}

/// A figure of a run.
type OfRun = fn(&Outcome) -> Option<f64>;

/// Returns a row of a metrics table of the paper: a number for each of its policies.
fn row_of(
    source: &str,
    prefix: &str,
    (what, of): (&str, OfRun),
    paper: [Number; 3],
) -> impl Iterator<Item = PaperNumber> {
    PAPER_POLICIES.into_iter().zip(paper).map(move |(label, paper)| {
        let column = format!("{what} under {label}");
        let ours = move |comparison: Results<'_>| per_run(comparison, label, of);
        PaperNumber::new(source, (format!("{prefix}: {column}"), column), paper, ours)
    })
}

impl PaperFigures {
    /// Returns the numbers of figures 5 and 6 and tables 6 and 7, without scheduling times.
    fn numbers(&self) -> Vec<PaperNumber> {
        let name = self.name;
        let completion = format!("figure {}", self.with_shares[0]);
        let mut all = Vec::new();
        for (other, paper) in ["fifo", "fair"].into_iter().zip(self.changes) {
            let names =
                (format!("{name}: mean completion, coshh against {other}"), format!("coshh against {other}"));
            let ours = move |comparison: Results<'_>| change(comparison, None, "coshh", other);
            all.push(PaperNumber::new(completion.as_str(), names, Number::Change(paper), ours));
        }
        let names = (format!("{name}: mean completion, fair minus fifo"), "fair minus fifo");
        let more = Number::Statement(Sign::More);
        all.push(PaperNumber::new(completion, names, more, |comparison: Results<'_>| {
            difference(comparison, None, ("fair", "fifo"), makespan_s)
        }));
        let [first, second, third] = self.metrics;
        let table = self.tables[0];
        all.extend(row_of(table, name, ("dissatisfaction", dissatisfaction), first.map(Number::Plain)));
        all.extend(row_of(table, name, ("fairness", fairness), second.map(Number::Plain)));
        all.extend(row_of(table, name, ("locality", locality), third.map(Number::Part)));
        all
    }

    /// Returns the numbers of figures 9 and 10 and tables 8 and 9.
    fn identical_numbers(&self) -> Vec<PaperNumber> {
        let prefix = format!("{}, identical users", self.name);
        let completion = format!("figure {}", self.with_identical_users[0]);
        let mut all = Vec::new();
        for ((one, other), paper) in [("coshh", "fair"), ("fair", "fifo")].into_iter().zip(self.identical) {
            let column = format!("{one} against {other}");
            let ours = move |comparison: Results<'_>| change(comparison, None, one, other);
            let names = (format!("{prefix}: {column}"), column);
            all.push(PaperNumber::new(completion.as_str(), names, Number::Change(paper), ours));
        }
        let [first, second] = self.identical_metrics;
        let table = self.tables[1];
        all.extend(row_of(table, &prefix, ("fairness", fairness), first.map(Number::Plain)));
        all.extend(row_of(table, &prefix, ("locality", locality), second.map(Number::Part)));
        // "Fair has the best, and COSHH the second best fairness"; less is better.
        for (one, other) in [("fair", "coshh"), ("coshh", "fifo")] {
            let column = format!("fairness, {one} minus {other}");
            let ours = move |comparison: Results<'_>| run_difference(comparison, (one, other), fairness);
            let names = (format!("{prefix}: {column}"), column);
            all.push(PaperNumber::new(table, names, Number::PlainStatement(Sign::Less), ours));
        }
        all
    }
}

/// Reproduces figures 5 to 8 and tables 6 and 7.
fn with_shares(
    out: &mut Reproduction,
    paper_figures: &PaperFigures,
    lab: &Lab<'_>,
) -> Result<Comparison, ExperimentError> {
    let (comparison, name) = (compare(out, paper_figures, false, lab)?, paper_figures.name);
    out.claim_all(&paper_figures.numbers(), &comparison);
    let deciding = format!("figure {}", paper_figures.with_shares[1]);
    let longer =
        |rules, one| run_difference(Results { comparison: &comparison, rules }, (one, "fifo"), scheduling_s);
    let what = format!("{name}: scheduling time of coshh minus that of fifo (CPU s)");
    out.claim_of(what, Number::Seconds(5.0), |rules| longer(rules, "coshh")).of(&deciding);
    let what = format!("{name}: scheduling time of fair minus that of fifo");
    out.claim_of(what, Number::Statement(Sign::More), |rules| longer(rules, "fair")).of(&deciding);
    Ok(comparison)
}

/// Compares COSHH with learned durations and with our limit of slow nodes, which the paper does not
/// have, with Fair.
fn vary_rules(
    out: &mut Reproduction,
    paper_figures: &PaperFigures,
    lab: &Lab<'_>,
) -> Result<(), ExperimentError> {
    let seeds_max = SENSITIVITY_SEEDS_MAX;
    let all = Assumptions { seeds_max, ..Assumptions::of(clusters::coshh(6)) };
    let is_other = |variant: &Variant| !["fifo", "coshh", LITERAL].contains(&variant.label.as_str());
    let variants = paper_figures.variants(&all, false).into_iter().filter(is_other).collect();
    let comparison = paper_figures.run(lab, "other rules", (&all, 100), (variants, false))?;
    let name = paper_figures.name;
    for label in [LEARNED, AVOIDS_SLOW_NODES] {
        let ours = change(Results::ours(&comparison), None, label, "fair");
        let what = format!("{name}: mean completion, {label} against fair");
        out.claim(what, Number::Change(paper_figures.changes[1]), ours).of("not in the paper");
    }
    out.part(format!("{name}, minimum shares: other rules"), summary(&comparison), String::new());
    Ok(())
}

/// Returns the scheduling time under a policy in one experiment, minus that in another with the same
/// seeds; the seeds that both have are compared.
fn longer_scheduling(one: &Comparison, other: &Comparison, rules: Rules, label: &str) -> Option<Ours> {
    let runs = |comparison| {
        let comparison = Results { comparison, rules };
        let at = comparison.index(label)?;
        Some(comparison.runs[at].iter().map(deciding_s).collect::<Vec<f64>>())
    };
    let pairs = runs(one)?.into_iter().zip(runs(other)?);
    Some(Ours::of(pairs.map(|(one, other)| Some(one - other)).collect()))
}

/// Reproduces figures 9 to 12 and tables 8 and 9. `shares` is the run with minimum shares.
fn with_identical_users(
    out: &mut Reproduction,
    paper_figures: &PaperFigures,
    shares: &Comparison,
    lab: &Lab<'_>,
) -> Result<(), ExperimentError> {
    let comparison = compare(out, paper_figures, true, lab)?;
    out.claim_all(&paper_figures.identical_numbers(), &comparison);
    for label in ["fair", "coshh"] {
        let ours = |rules| longer_scheduling(&comparison, shares, rules, label);
        let name = paper_figures.name;
        let what = format!("{name}: scheduling time of {label}, identical users minus minimum shares");
        let deciding = format!("figure {}", paper_figures.with_identical_users[1]);
        out.claim_of(what, Number::Statement(Sign::Less), ours).of(&deciding);
    }
    Ok(())
}

/// Returns the four machines of table 11. Speed 1 is 3200 MHz; half of the slots are map slots.
fn real_cluster() -> Setup {
    let mut setup = clusters::coshh(4);
    for (machine, mhz) in setup.machines.iter_mut().zip([100.0, 800.0, 400.0, 3200.0]) {
        *machine = Machine {
            slots: PerPhase { map: 2, reduce: 2 },
            speed: mhz / 3200.0,
            cores: f64::INFINITY,
            disk: 100e6,
            nic: 250e6,
            disk_bytes: 4_000_000_000_000_000,
            ..machine.clone()
        };
    }
    setup
}

/// Returns the numbers of table 12 and the statements of section 7. The text has identical users;
/// table 12 and figure 25 also have the users of table 5. The paper does not define `competitive`: here
/// it is a fairness that is at most a quarter greater than that of Fair, and a locality that is at most
/// five percentage points less.
fn four_machines_numbers(identical: bool) -> Vec<PaperNumber> {
    let (prefix, sign) =
        if identical { ("identical users", Sign::Less) } else { ("minimum shares", Sign::More) };
    let mut all = Vec::new();
    let mut add = |source: &str, column: String, paper, ours: Box<ComputeOurs>| {
        all.push(PaperNumber::new(source, (format!("{prefix}: {column}"), column), paper, ours));
    };
    let completion = |comparison: Results<'_>| difference(comparison, None, ("fair", "fifo"), makespan_s);
    add("figure 25", "fair minus fifo".into(), Number::Statement(sign), Box::new(completion));
    for other in ["fifo", "coshh"] {
        let ours = move |comparison: Results<'_>| run_difference(comparison, ("fair", other), fairness);
        let column = format!("fairness, fair minus {other}");
        add("figure 26", column, Number::PlainStatement(Sign::Less), Box::new(ours));
    }
    let column = "fairness, coshh against fair (competitive)".to_owned();
    let competitive = Number::ChangeRange(f64::NEG_INFINITY, 0.25);
    add(
        "figure 26",
        column,
        competitive,
        Box::new(|comparison: Results<'_>| {
            let (coshh, fair) = (comparison.index("coshh")?, comparison.index("fair")?);
            let pairs = comparison.runs[coshh].iter().zip(&comparison.runs[fair]);
            let change = |(coshh, fair): (&Outcome, &Outcome)| {
                Some(fairness(coshh)? / fairness(fair).filter(|fair| *fair > 0.0)? - 1.0)
            };
            Some(Ours::of_changes(pairs.map(change).collect()))
        }),
    );
    for other in ["fifo", "fair"] {
        let ours = move |comparison: Results<'_>| run_difference(comparison, ("coshh", other), locality);
        let column = format!("locality, coshh minus {other} (competitive)");
        add("figure 27", column, Number::PartRange(-0.05, f64::INFINITY), Box::new(ours));
    }
    let less = Number::Statement(Sign::Less);
    add(
        "figure 28",
        "scheduling time of coshh minus 25 s".into(),
        less,
        Box::new(|comparison: Results<'_>| {
            per_run(comparison, "coshh", |outcome| Some(deciding_s(outcome) - 25.0))
        }),
    );
    let more = Number::Statement(Sign::More);
    add(
        "figure 28",
        "scheduling time, coshh minus fifo".into(),
        more,
        Box::new(|comparison: Results<'_>| run_difference(comparison, ("coshh", "fifo"), scheduling_s)),
    );
    if !identical {
        let paper = [10.302, 3.984, 5.869].map(Number::Plain);
        all.extend(row_of("table 12", "four machines", ("dissatisfaction", dissatisfaction), paper));
    }
    all
}

/// Returns what section 7 assumes.
fn four_machines() -> Assumptions {
    Assumptions { gap_s: REAL_GAP_S, ..Assumptions::of(real_cluster()) }
}

/// Repeats section 7 in the simulator: the jobs of Facebook on the four machines of table 11.
fn repeat_real_cluster(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let [_, facebook] = &PAPER_FIGURES;
    for (identical, title) in [(false, FOUR_MACHINES), (true, FOUR_MACHINES_IDENTICAL)] {
        let all = four_machines();
        let variants = facebook.paper_variants(&all, identical);
        let comparison = facebook.run(lab, title, (&all, 100), (variants, identical))?;
        out.part(title, summary(&comparison), charts(&comparison));
        let table = metrics(&comparison);
        let chart = bars(&table, &["fairness"], "fairness", None);
        out.part(format!("{title}: the paper's metrics"), table, chart);
        out.claim_all(&four_machines_numbers(identical), &comparison);
    }
    Ok(())
}

/// Tables of the completion time and the decision time as functions of a parameter.
struct Curves {
    completion: Table,
    deciding: Table,
}

impl Curves {
    fn new(what: &str) -> Self {
        let head: Vec<&str> = [what, "seeds"].into_iter().chain(PAPER_POLICIES).collect();
        let changes = ["coshh against fifo", "coshh against fair"];
        Self { completion: Table::new(&[&head[..], &changes].concat()), deciding: Table::new(&head) }
    }

    fn add(&mut self, step: u32, comparison: &Comparison) {
        let row = |of: &dyn Fn(usize) -> Figure| -> Vec<Cell> {
            let known = PAPER_POLICIES.iter().filter_map(|label| comparison.index(label));
            let first = [step as usize, comparison.seeds.len()].map(Cell::count);
            first.into_iter().chain(known.map(|at| of(at).into())).collect()
        };
        let versus = |other| change_cell(change(Results::ours(comparison), None, "coshh", other));
        let mut completion = row(&|at| comparison.mean_over(at, None, makespan_s));
        completion.extend(["fifo", "fair"].map(versus));
        self.completion.row(completion);
        self.deciding.row(row(&|at| comparison.figure(at, deciding_s)));
    }

    /// Adds the tables and their charts. `printed` are scheduling times under COSHH that the paper
    /// prints.
    fn report(
        self,
        out: &mut Reproduction,
        title: &str,
        [completion, deciding]: FigureNumbers,
        printed: &[(&str, f64)],
    ) {
        let chart = bars(&self.completion, &PAPER_POLICIES, "mean completion, s", None);
        out.part(format!("{title}: mean completion, s (figure {completion})"), self.completion, chart);
        let paper = Some(("the paper, coshh", printed)).filter(|_| !printed.is_empty());
        let chart = bars(&self.deciding, &PAPER_POLICIES, "scheduling time, CPU s", paper);
        let of = format!("{title}: scheduling time, CPU s (figure {deciding})");
        out.part(of, self.deciding, chart);
    }
}

/// Adds what section 6.2.1 says about a number of jobs: COSHH compared with the other policies, and
/// Fair compared with FIFO.
fn state(
    out: &mut Reproduction,
    comparison: &Comparison,
    jobs: u32,
    paper_figures: &PaperFigures,
    (coshh, fair): (Option<Sign>, Option<Sign>),
) {
    let others = [("coshh", "fifo", coshh), ("coshh", "fair", coshh), ("fair", "fifo", fair)];
    for (one, other, sign) in others {
        let Some(sign) = sign else { continue };
        let ours = |rules| difference(Results { comparison, rules }, None, (one, other), makespan_s);
        let what = format!("{}, {jobs} jobs: {one} minus {other}", paper_figures.name);
        out.claim_of(what, Number::Statement(sign), ours).of(&format!("figure {}", paper_figures.by_jobs[0]));
    }
}

/// Varies the number of jobs from 5 to 100. `hundred` is the run with 100 jobs, which is already
/// done. The paper: below about 30 jobs COSHH has the longest completion, and beyond the shortest; Fair
/// is first better than FIFO in an overloaded system, and then worse.
fn vary_job_count(
    out: &mut Reproduction,
    paper_figures: &PaperFigures,
    hundred: &Comparison,
    lab: &Lab<'_>,
) -> Result<(), ExperimentError> {
    let mut curves = Curves::new("jobs");
    let seeds_max = SENSITIVITY_SEEDS_MAX;
    let deciding = format!("figure {}", paper_figures.by_jobs[1]);
    let mut claims = Vec::new();
    for (jobs, coshh, fair) in [
        (5, Some(Sign::More), None),
        (20, Some(Sign::More), None),
        (30, None, Some(Sign::Less)),
        (50, Some(Sign::Less), None),
    ] {
        let what = format!("{jobs} jobs");
        let all = Assumptions { seeds_max, ..Assumptions::of(clusters::coshh(6)) };
        let variants = paper_figures.paper_variants(&all, false);
        let comparison = paper_figures.run(lab, &what, (&all, jobs), (variants, false))?;
        curves.add(jobs, &comparison);
        state(out, &comparison, jobs, paper_figures, (coshh, fair));
        if jobs == 5 {
            let longer = |label| {
                [Rules::Paper, Rules::Ours].map(|rules| longer_scheduling(hundred, &comparison, rules, label))
            };
            claims.extend(PAPER_POLICIES.map(|label| (label, longer(label))));
        }
    }
    state(out, hundred, 100, paper_figures, (Some(Sign::Less), Some(Sign::More)));
    for (label, [literal, ours]) in claims {
        let what = format!("{}: scheduling time of {label}, 100 jobs minus 5 jobs", paper_figures.name);
        let of = |rules| if rules == Rules::Paper { literal.clone() } else { ours.clone() };
        out.claim_of(what, Number::Statement(Sign::More), of).of(&deciding);
    }
    curves.add(100, hundred);
    let title = format!("{}, by the number of jobs", paper_figures.name);
    curves.report(out, &title, paper_figures.by_jobs, &[]);
    Ok(())
}

/// Varies the number of resources, of the types of table 10, from 6 to 102.
fn vary_resource_count(
    out: &mut Reproduction,
    paper_figures: &PaperFigures,
    lab: &Lab<'_>,
) -> Result<(), ExperimentError> {
    let mut curves = Curves::new("resources");
    let name = paper_figures.name;
    let [completion, deciding] = paper_figures.by_resources.map(|number| format!("figure {number}"));
    let mut runs = Vec::new();
    for (resources, paper_s) in [(6, Some(60.0)), (57, None), (102, Some(180.0))] {
        let what = format!("{resources} resources");
        let seeds_max = SENSITIVITY_SEEDS_MAX;
        let all = Assumptions { seeds_max, ..Assumptions::of(clusters::coshh_growing(resources)) };
        let variants = paper_figures.paper_variants(&all, false);
        let comparison = paper_figures.run(lab, &what, (&all, 100), (variants, false))?;
        curves.add(resources, &comparison);
        if let Some(paper_s) = paper_s {
            let ours = |rules| per_run(Results { comparison: &comparison, rules }, "coshh", scheduling_s);
            let what = format!("{name}, {resources} resources: coshh decides (60 to 180 s)");
            out.claim_of(what, Number::Seconds(paper_s), ours).of(&deciding);
        }
        runs.push(comparison);
    }
    // The paper: shorter up to about 57 resources, then slightly longer.
    for (one, other, sign, what) in [(1, 0, Sign::Less, "57 minus 6"), (2, 1, Sign::More, "102 minus 57")] {
        for label in PAPER_POLICIES {
            let ours = |rules| {
                let means = |at: usize| {
                    let run = Results { comparison: &runs[at], rules };
                    Some(run.means(run.index(label)?, None, makespan_s))
                };
                let pairs = means(one)?.into_iter().zip(means(other)?);
                Some(Ours::of(pairs.map(|(one, other)| Some(one? - other?)).collect()))
            };
            let what = format!("{name}: completion under {label}, {what} resources");
            out.claim_of(what, Number::Statement(sign), ours).of(&completion);
        }
    }
    for label in ["fair", "coshh"] {
        let what = format!("{name}: scheduling time of {label}, 102 minus 6 resources");
        let ours = |rules| longer_scheduling(&runs[2], &runs[0], rules, label);
        out.claim_of(what, Number::Statement(Sign::More), ours).of(&deciding);
    }
    let title = format!("{name}, by the number of resources (table 10)");
    curves.report(out, &title, paper_figures.by_resources, &[("6", 60.0), ("102", 180.0)]);
    Ok(())
}

/// Varies the maximum error of the given durations of tasks.
fn vary_prediction_error(
    out: &mut Reproduction,
    paper_figures: &PaperFigures,
    lab: &Lab<'_>,
) -> Result<(), ExperimentError> {
    let name = paper_figures.name;
    let share_params = clusters::share_params(&coshh::min_shares(paper_figures.classes, false));
    let seeds_max = SENSITIVITY_SEEDS_MAX;
    let all = Assumptions { seeds_max, ..Assumptions::of(clusters::coshh(6)) };
    let off = |label: &str, params: &[(&str, &str)]| {
        let variant = Variant::tuned(label, "coshh", params).with_params(&share_params);
        paper_figures.with_given_durations(variant, &all.setup)
    };
    let mut variants = paper_figures.paper_variants(&all, false);
    variants.retain(|variant| !["coshh", LITERAL].contains(&variant.label.as_str()));
    variants.extend(["0", "0.1", "0.2", "0.4"].map(|error| off(error, &[("error", error)])));
    let literal = |error| off(&format!("{error}, literal"), &[("literal", "true"), ("error", error)]);
    variants.extend(["0", "0.4"].map(literal));
    let what = "prediction errors";
    let comparison = paper_figures.run(lab, what, (&all, 100), (variants, false))?;
    let head =
        ["policy, or coshh with an error up to", "mean completion, s", "against none", "deciding, CPU s"];
    let mut table = Table::new(&head);
    for (at, variant) in comparison.variants.iter().enumerate() {
        let none = if variant.label.ends_with(", literal") { "0, literal" } else { "0" };
        let versus_none = change(Results::ours(&comparison), None, &variant.label, none);
        let versus_none = versus_none.filter(|_| variant.label != none);
        table.row(vec![
            variant.label.as_str().into(),
            comparison.mean_over(at, None, makespan_s).into(),
            change_cell(versus_none),
            comparison.figure(at, deciding_s).into(),
        ]);
    }
    let [completion, deciding] = paper_figures.by_error.map(|number| format!("figure {number}"));
    let results = |rules| Results { comparison: &comparison, rules };
    let ours = |rules| change(results(rules), None, "0.4", "0");
    out.claim_of(format!("{name}: errors up to 40% against none"), Number::Change(0.0), ours).of(&completion);
    for other in ["fifo", "fair"] {
        let ours = |rules| difference(results(rules), None, ("0.4", other), makespan_s);
        let what = format!("{name}: completion with errors up to 40% minus that under {other}");
        out.claim_of(what, Number::Statement(Sign::Less), ours).of(&completion);
    }
    // "The error level can cause a slight increase in scheduling time".
    let ours = |rules| run_difference(results(rules), ("0.4", "0"), scheduling_s);
    let claim = format!("{name}: scheduling time with errors up to 40% minus that without");
    out.claim_of(claim, Number::Statement(Sign::NotLess), ours).of(&deciding);
    let charts = bars(&table, &["mean completion, s"], "mean completion, s", None)
        + &bars(&table, &["deciding, CPU s"], "scheduling time, CPU s", None);
    let [first, second] = paper_figures.by_error;
    out.part(format!("{name}: {what} (figures {first} and {second})"), table, charts);
    Ok(())
}

/// The jobs and the machines for which an assumption is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Facebook,
    Yahoo,
    FourMachines,
}

use Scope::{Facebook as F, FourMachines as M, Yahoo as Y};

/// An assumption, the jobs and machines for which it is varied, and how.
type Variation = (&'static str, &'static [Scope], fn(&mut Assumptions));

/// One assumption is varied in each, except where two are named.
const VARIATIONS: [Variation; 15] = [
    ("as assumed", &[F, Y, M], |_| {}),
    ("task times: slow resources a tenth as fast, not a hundredth", &[F, Y], |all| {
        all.slow_machines(|machine| machine.speed = 0.1);
    }),
    ("gap: half", &[F, Y, M], |all| all.gap_s /= 2.0),
    ("gap: double", &[F, Y, M], |all| all.gap_s *= 2.0),
    ("slots: half", &[F, Y, M], |all| all.slots(|slots| slots.div_ceil(2))),
    ("slots: double", &[F, M], |all| all.slots(|slots| 2 * slots)),
    ("tasks: twice as many, gap double", &[F, Y], |all| all.resize(2.0)),
    ("tasks: half as many, gap half", &[F, Y], |all| all.resize(0.5)),
    ("slow start: after all maps", &[F, Y], |all| all.slow_start = Some(1.0)),
    ("heartbeats: work only with one, every 60 s", &[F], |all| all.setup.set_heartbeat_only()),
    ("Fair waits 15 s for locality", &[F, Y], |all| {
        all.fair = vec![NAIVE_FAIR[0], NAIVE_FAIR[1], ("node_wait", "15s"), ("rack_wait", "15s")];
    }),
    ("Fair preempts for minimum shares after 60 s", &[F, Y, M], |all| {
        all.fair[0] = ("min_share_timeout", "60s");
    }),
    ("durations learned", &[F, Y], |all| all.learns = true),
    ("network: 0.5 MB/s at slow storage", &[F], slow_links),
    ("network: 0.5 MB/s at slow storage, durations learned", &[F], |all| {
        slow_links(all);
        all.learns = true;
    }),
];

/// Makes transfers from and to resources with slow storage slow. Otherwise resources differ only in
/// speed, every class is slowed down equally, and no assignment of classes to resources is better
/// than another. Table 3 has 40 kbit/s, at which a block would take seven hours. At the rate used
/// here, reading takes most of the run time of classes with much input.
fn slow_links(all: &mut Assumptions) {
    for machine in all.setup.machines.iter_mut().filter(|machine| machine.disk < SLOW_BYTES_PER_S) {
        machine.nic = SLOW_BYTES_PER_S;
    }
}

/// Shows how the numbers of the paper depend on what it does not print.
fn vary_assumptions(out: &mut Reproduction, lab: &Lab<'_>, scope: Scope) -> Result<(), ExperimentError> {
    let [yahoo, facebook] = &PAPER_FIGURES;
    let (paper_figures, title) = match scope {
        Scope::Facebook => (facebook, "Facebook"),
        Scope::Yahoo => (yahoo, "Yahoo! with a quarter of the tasks"),
        Scope::FourMachines => (facebook, "four machines"),
    };
    // Minimum shares, and identical users for the jobs of Facebook, whose runs are short.
    let mut settings = vec![(false, "", paper_figures.numbers(), Vec::new())];
    match scope {
        Scope::Facebook => {
            settings.push((true, ", identical users", facebook.identical_numbers(), Vec::new()));
        }
        Scope::FourMachines => settings[0].2 = four_machines_numbers(false),
        Scope::Yahoo => {}
    }
    let mut times = Table::new(&["assumption", "fifo", "fair", "coshh"]);
    for (label, scopes, vary) in VARIATIONS {
        if !scopes.contains(&scope) {
            continue;
        }
        let seeds_max = SENSITIVITY_SEEDS_MAX;
        let mut all = match scope {
            Scope::FourMachines => Assumptions { seeds_max, ..four_machines() },
            _ => Assumptions { seeds_max, ..Assumptions::of(clusters::coshh(6)) },
        };
        if scope == Scope::Yahoo {
            all.resize(LONG_REDUCTION);
        }
        vary(&mut all);
        for (identical, users, numbers, rows) in &mut settings {
            let variants = paper_figures.paper_variants(&all, *identical);
            let what = format!("varied, {title}{users}: {label}");
            let comparison = paper_figures.run(lab, &what, (&all, 100), (variants, *identical))?;
            rows.push(Assumed::new(label, numbers, &comparison));
            if !*identical {
                let figures = PAPER_POLICIES.iter().filter_map(|label| comparison.index(label));
                let figures = figures.map(|at| Cell::from(comparison.mean_over(at, None, makespan_s)));
                times.row(std::iter::once(Cell::from(label)).chain(figures).collect());
            }
        }
    }
    for (_, users, numbers, rows) in &settings {
        out.sensitivity(&format!("Sensitivity, {title}{users}"), &columns(numbers), rows);
    }
    out.part(format!("Completion under varied assumptions, {title}, s"), times, String::new());
    Ok(())
}

const FOUR_MACHINES: &str = "Four machines, minimum shares";
const FOUR_MACHINES_IDENTICAL: &str = "Four machines, identical users";

/// Adds every figure and table of the paper to the inventory.
pub(super) fn take_inventory(out: &mut Reproduction) {
    let diagram = "it is a diagram of the scheduler and shows no measurement";
    let example = "it illustrates the method with jobs whose sizes are not printed";
    out.not_reproduced("figure 1", "the parts of COSHH", diagram);
    out.not_reproduced("figure 2", "the queuing process", diagram);
    out.not_reproduced("table 1", "users of an example", example);
    out.not_reproduced("table 2", "jobs of an example", example);
    out.not_reproduced("figure 3", "primary classes of the example", example);
    out.not_reproduced("figure 4", "secondary classes of the example", example);
    for (name, shows) in
        [("table 3", "the six resources"), ("table 4", "the classes of jobs"), ("table 5", "the users")]
    {
        out.used(name, shows);
    }
    for figures in &PAPER_FIGURES {
        let name = figures.name;
        let shares = |users: &str, [completion, deciding]: FigureNumbers| {
            format!("{name}, {users} (completion: figure {completion}, deciding: figure {deciding})")
        };
        let with_shares = shares("minimum shares", figures.with_shares);
        let alike = shares("identical users", figures.with_identical_users);
        out.reproduced(
            figures.tables[0],
            "metrics with minimum shares",
            format!("{name}, minimum shares: the paper's metrics"),
        );
        out.reproduced(
            figures.tables[1],
            "metrics with identical users",
            format!("{name}, identical users: the paper's metrics"),
        );
        let by_jobs = format!("{name}, by the number of jobs");
        let by_resources = format!("{name}, by the number of resources (table 10)");
        let of = |title: &str, what: &str, number: u32| format!("{title}: {what} (figure {number})");
        let [completion, deciding] = ["mean completion, s", "scheduling time, CPU s"];
        let [jobs_completion, jobs_deciding] = figures.by_jobs;
        let [resources_completion, resources_deciding] = figures.by_resources;
        let [error_completion, error_deciding] = figures.by_error;
        let errors = format!("{name}: prediction errors (figures {error_completion} and {error_deciding})");
        for (number, shows, title) in [
            (figures.with_shares[0], "completion with minimum shares", with_shares.clone()),
            (figures.with_shares[1], "scheduling time with minimum shares", with_shares),
            (figures.with_identical_users[0], "completion with identical users", alike.clone()),
            (figures.with_identical_users[1], "scheduling time with identical users", alike),
            (jobs_completion, "completion by the number of jobs", of(&by_jobs, completion, jobs_completion)),
            (jobs_deciding, "scheduling time by the number of jobs", of(&by_jobs, deciding, jobs_deciding)),
            (
                resources_completion,
                "completion by the number of resources",
                of(&by_resources, completion, resources_completion),
            ),
            (
                resources_deciding,
                "scheduling time by the number of resources",
                of(&by_resources, deciding, resources_deciding),
            ),
            (error_completion, "completion with wrong predictions", errors.clone()),
            (error_deciding, "scheduling time with wrong predictions", errors),
        ] {
            out.reproduced(FIGURES[number as usize - 5], shows, title);
        }
    }
    out.used("table 10", "the types of resources");
    out.used("table 11", "the four machines, simulated here");
    out.reproduced(
        "table 12",
        "dissatisfaction on four machines",
        format!("{FOUR_MACHINES}: the paper's metrics"),
    );
    out.reproduced("figure 25", "completion on four machines", FOUR_MACHINES);
    out.reproduced("figure 26", "fairness on four machines", format!("{FOUR_MACHINES}: the paper's metrics"));
    out.reproduced("figure 27", "locality on four machines", format!("{FOUR_MACHINES}: the paper's metrics"));
    out.reproduced(
        "figure 28",
        "scheduling time on four machines (less than 25 s under COSHH)",
        FOUR_MACHINES,
    );
}

/// The names of figures 5 to 24.
const FIGURES: [&str; 20] = [
    "figure 5",
    "figure 6",
    "figure 7",
    "figure 8",
    "figure 9",
    "figure 10",
    "figure 11",
    "figure 12",
    "figure 13",
    "figure 14",
    "figure 15",
    "figure 16",
    "figure 17",
    "figure 18",
    "figure 19",
    "figure 20",
    "figure 21",
    "figure 22",
    "figure 23",
    "figure 24",
];

pub(super) fn reproduce(lab: &Lab<'_>) -> Result<Reproduction, ExperimentError> {
    let [yahoo, facebook] = &PAPER_FIGURES;
    let setting = format!(
        "Six resources (table 3) with 31 map and 23 reduce slots; 100 jobs in the proportions of table 4, users of \
         table 5, 128 MB blocks, 3 replicas. A job has one task of 20, each of the size that the table gives. Poisson \
         arrivals with a mean gap of 60 s, which the paper does not give. The label coshh has given durations of tasks, as \
         in the paper. Deciding is the CPU time, on this machine, of the thread that computes the policy's decisions, \
         with its classifications and linear programs. The jobs of Yahoo! have {} seeds, \
         those of Facebook and the four machines {}; numbers of jobs and resources, wrong predictions, rules that are \
         not in the paper and each row of the tables of sensitivity {}.",
        yahoo.seeds(lab),
        facebook.seeds(lab),
        lab.sensitivity_seeds(),
    );
    let mut out = Reproduction::new("COSHH at the paper's size", &setting);
    take_inventory(&mut out);
    let mut shares = Vec::new();
    for paper_figures in &PAPER_FIGURES {
        shares.push(with_shares(&mut out, paper_figures, lab)?);
    }
    for (paper_figures, shares) in PAPER_FIGURES.iter().zip(&shares) {
        with_identical_users(&mut out, paper_figures, shares, lab)?;
    }
    for (paper_figures, shares) in PAPER_FIGURES.iter().zip(&shares) {
        vary_rules(&mut out, paper_figures, lab)?;
        vary_prediction_error(&mut out, paper_figures, lab)?;
        vary_job_count(&mut out, paper_figures, shares, lab)?;
        vary_resource_count(&mut out, paper_figures, lab)?;
    }
    repeat_real_cluster(&mut out, lab)?;
    if lab.is_complete {
        for scope in [Scope::Facebook, Scope::Yahoo, Scope::FourMachines] {
            vary_assumptions(&mut out, lab, scope)?;
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{World, profile};

    #[test]
    fn every_figure_of_the_paper_has_its_table() {
        let of = |paper_figures: &PaperFigures| {
            [
                paper_figures.with_shares,
                paper_figures.with_identical_users,
                paper_figures.by_jobs,
                paper_figures.by_resources,
                paper_figures.by_error,
            ]
            .concat()
        };
        let mut all: Vec<u32> = PAPER_FIGURES.iter().flat_map(of).collect();
        all.sort_unstable();
        assert_eq!(all, (5..=24).collect::<Vec<u32>>());
    }

    #[test]
    fn curves_have_intervals_and_decision_times() {
        let profiles = profile::built_in();
        let lab = Lab::new(&profiles, 2, false, &|_, _| {});
        let [_, facebook] = &PAPER_FIGURES;
        let all = Assumptions::of(clusters::coshh_growing(6));
        let variants = facebook.paper_variants(&all, false);
        let comparison = facebook.run(&lab, "5 jobs", (&all, 5), (variants, false)).expect("it runs");
        let mut curves = Curves::new("jobs");
        curves.add(5, &comparison);
        let mut out = Reproduction::new("", "");
        curves.report(&mut out, "Facebook", facebook.by_jobs, &[]);
        let json = out.json();
        let [completion, deciding] = [0, 1].map(|at| &json["tables"][at]);
        assert_eq!(completion["title"], "Facebook: mean completion, s (figure 14)");
        assert_eq!(deciding["title"], "Facebook: scheduling time, CPU s (figure 16)");
        assert!(completion["rows"][0]["coshh against fair"]["low"].is_number(), "{completion:#}");
        for label in PAPER_POLICIES {
            assert!(deciding["rows"][0][label]["mean"].as_f64() > Some(0.0), "{deciding:#}");
        }
    }

    /// The inventory does not count what the paper does not have.
    #[test]
    fn other_rules_are_not_claims_about_a_figure() {
        let profiles = profile::built_in();
        let lab = Lab::new(&profiles, 1, false, &|_, _| {});
        let mut out = Reproduction::new("", "");
        vary_rules(&mut out, &PAPER_FIGURES[1], &lab).expect("it runs");
        let json = out.json();
        let claims = json["claims"].as_array().expect("claims");
        let sources: Vec<&str> = claims.iter().filter_map(|claim| claim["source"].as_str()).collect();
        assert_eq!(sources, ["not in the paper"; 2]);
    }

    #[test]
    fn variations_differ_from_the_assumptions() {
        let of = |vary: fn(&mut Assumptions)| {
            let mut all = Assumptions::of(clusters::coshh(6));
            vary(&mut all);
            (all.setup, [all.gap_s, all.tasks].map(f64::to_bits), all.slow_start, all.fair, all.learns)
        };
        let base = of(|_| {});
        for (label, _, vary) in &VARIATIONS[1..] {
            assert_ne!(of(*vary), base, "{label} varies nothing");
        }
    }

    /// The statements about the four machines have a claim, and our limits of `competitive`.
    #[test]
    fn statements_about_four_machines_are_claims() {
        let profiles = profile::built_in();
        let lab = Lab::new(&profiles, 2, false, &|_, _| {});
        let [_, facebook] = &PAPER_FIGURES;
        let all = four_machines();
        let variants = facebook.paper_variants(&all, true);
        let comparison = facebook.run(&lab, "5 jobs", (&all, 5), (variants, true)).expect("it runs");
        let mut out = Reproduction::new("", "");
        out.claim_all(&four_machines_numbers(true), &comparison);
        let json = out.json();
        let claims = json["claims"].as_array().expect("claims");
        for figure in ["figure 25", "figure 26", "figure 27", "figure 28"] {
            assert!(claims.iter().any(|claim| claim["source"] == figure), "{figure}");
        }
        let short = claims
            .iter()
            .find(|claim| claim["what"] == "identical users: scheduling time of coshh minus 25 s");
        let short = short.expect("a claim");
        assert_eq!(
            (&short["literal"]["verdict"], short["literal"]["by_seed"].as_array().map(Vec::len)),
            (&"agrees".into(), Some(2))
        );
    }

    /// Tasks on slow resources take hours. They must not be considered stuck because of that.
    #[test]
    fn no_work_is_lost_without_faults() {
        let all = Assumptions::of(clusters::coshh(6));
        for variant in PAPER_FIGURES[0].variants(&all, false) {
            let mut setup = all.setup.clone();
            setup.scheduler.clone_from(&variant.scheduler);
            setup.params.clone_from(&variant.params);
            let workload = coshh::workload("Yahoo!", &YAHOO, 20, GAP_S, 1);
            let outcome = World::new(setup, workload).expect("a policy").run(None).expect("no rule broken");
            for (id, job) in outcome.metrics.jobs() {
                assert!(job.succeeded, "{}: {id} has not succeeded", variant.label);
                assert_eq!(job.lost, mrcore::Span(0), "{}: {id} has lost work", variant.label);
            }
        }
    }

    /// Half of the resources are a hundred times slower. With given durations and a limit, only a
    /// job that comes before the first classes are computed may have tasks there.
    #[test]
    fn slow_resources_are_avoided_if_a_limit_is_set() {
        let [_, facebook] = &PAPER_FIGURES;
        let share_params = clusters::share_params(&coshh::min_shares(&FACEBOOK, false));
        let slowed_down = |slowest: &str, seed: u64| {
            let mut setup = clusters::coshh(6);
            let variant = Variant::tuned("coshh", "coshh", &[("slowest", slowest)]);
            let variant = facebook.with_given_durations(variant.with_params(&share_params), &setup);
            (setup.scheduler, setup.params) = (variant.scheduler, variant.params);
            let workload = coshh::workload("Facebook", &FACEBOOK, 30, GAP_S, seed);
            let work_s = |job: &crate::workload::JobPlan| -> f64 {
                job.maps.iter().map(|map| f64::from(map.work_s)).sum()
            };
            let work_s: Vec<f64> = workload.jobs.iter().map(work_s).collect();
            let outcome = World::new(setup, workload).expect("a policy").run(None).expect("no rule broken");
            // Reads over the network take a few times as long as the computation, at most.
            let jobs = outcome.metrics.jobs().zip(work_s);
            jobs.filter(|((_, job), work_s)| job.held.map.as_secs_f64() > 8.0 * work_s).count()
        };
        let of = |slowest| (1..=4).map(|seed| slowed_down(slowest, seed)).sum::<usize>();
        let (anywhere, fit) = (of("0"), of("10"));
        assert!(fit <= 4 && anywhere >= 2 * fit.max(1), "{fit} jobs compared with {anywhere}");
    }
}
