//! The hSRTF paper: 31 jobs of three sizes on 58 nodes, in the order of the paper (section 5,
//! figures 2 and 3).

use super::{
    Assumed, Lab, Number, Ours, PaperNumber, Reproduction, Results, Sign, change, change_cell, columns,
    difference, mean_of,
};
use crate::{
    Setup, clusters,
    experiment::{Comparison, Experiment, ExperimentError, Variant, makespan_s, reduce_wait_s},
    profile::{Profile, Profiles},
    report::{Cell, Table, by_policy, charts, summary, svg},
    workload::papers,
};
use mrcore::{Span, metrics::JobFigures};
use std::fmt::Write as _;

/// The policies of table 1 of the paper.
const PAPER_POLICIES: [&str; 6] = ["fifo", "fair", "hsrtf-pu", "hsrtf-pup", "hsrtf-pr", "hsrtf-prp"];

/// Sizes of jobs, in the order of the parts of figures 2 and 3.
const SIZES: [&str; 3] = ["small", "medium", "large"];

/// Returns Hadoop's Fair scheduler as the papers used it: with delay scheduling, without
/// preemption.
pub(super) fn plain_fair() -> Variant {
    Variant::tuned("fair", "fair", &[("min_share_timeout", "never"), ("fair_share_timeout", "never")])
}

fn waiting_s(job: &JobFigures) -> Option<f64> {
    job.waiting().map(Span::as_secs_f64)
}

fn execution_s(job: &JobFigures) -> Option<f64> {
    job.execution().map(Span::as_secs_f64)
}

/// What a part of figure 2 shows.
type Measure = fn(&JobFigures) -> Option<f64>;

/// A statement of the paper about figure 2: its part, the measure and the jobs that it shows, two
/// policies, and how the first compares with the second.
type Statement = (&'static str, (&'static str, Measure), &'static str, [&'static str; 2], Sign);

const COMPLETION: (&str, Measure) = ("completion", makespan_s);
const WAITING: (&str, Measure) = ("waiting", waiting_s);
const EXECUTION: (&str, Measure) = ("execution", execution_s);

/// Statements of sections 5.1 to 5.3 that have no number.
const STATEMENTS: [Statement; 27] = [
    ("figure 2a", COMPLETION, "small", ["hsrtf-pup", "hsrtf-pu"], Sign::NotLess),
    ("figure 2a", COMPLETION, "small", ["hsrtf-prp", "hsrtf-pr"], Sign::NotLess),
    ("figure 2b", COMPLETION, "medium", ["hsrtf-pr", "fifo"], Sign::Less),
    ("figure 2b", COMPLETION, "medium", ["hsrtf-pr", "fair"], Sign::Less),
    ("figure 2b", COMPLETION, "medium", ["hsrtf-pr", "hsrtf-pu"], Sign::Less),
    ("figure 2b", COMPLETION, "medium", ["hsrtf-pr", "hsrtf-pup"], Sign::Less),
    ("figure 2b", COMPLETION, "medium", ["hsrtf-pr", "hsrtf-prp"], Sign::Less),
    ("figure 2b", COMPLETION, "medium", ["hsrtf-prp", "fair"], Sign::Less),
    ("figure 2c", COMPLETION, "large", ["hsrtf-prp", "hsrtf-pr"], Sign::More),
    ("figure 2c", COMPLETION, "large", ["hsrtf-pup", "hsrtf-pu"], Sign::More),
    ("figure 2d", WAITING, "small", ["hsrtf-pu", "fifo"], Sign::NotLess),
    ("figure 2d", WAITING, "small", ["hsrtf-pup", "hsrtf-pu"], Sign::Less),
    ("figure 2d", WAITING, "small", ["hsrtf-prp", "hsrtf-pr"], Sign::Less),
    ("figure 2e", WAITING, "medium", ["hsrtf-pu", "fifo"], Sign::NotLess),
    ("figure 2e", WAITING, "medium", ["hsrtf-pr", "fair"], Sign::Less),
    ("figure 2e", WAITING, "medium", ["hsrtf-prp", "fair"], Sign::Less),
    ("figure 2e", WAITING, "medium", ["hsrtf-pup", "hsrtf-pu"], Sign::More),
    ("figure 2f", WAITING, "large", ["hsrtf-pu", "fifo"], Sign::Less),
    ("figure 2f", WAITING, "large", ["hsrtf-pr", "fifo"], Sign::Less),
    ("figure 2f", WAITING, "large", ["hsrtf-pr", "fair"], Sign::Less),
    ("figure 2g", EXECUTION, "small", ["hsrtf-pu", "fifo"], Sign::Less),
    ("figure 2g", EXECUTION, "small", ["hsrtf-pr", "fair"], Sign::Less),
    ("figure 2h", EXECUTION, "medium", ["hsrtf-pr", "fifo"], Sign::Less),
    ("figure 2h", EXECUTION, "medium", ["hsrtf-pr", "fair"], Sign::Less),
    ("figure 2h", EXECUTION, "medium", ["hsrtf-pu", "fifo"], Sign::More),
    ("figure 2i", EXECUTION, "large", ["hsrtf-pr", "fifo"], Sign::More),
    ("figure 2i", EXECUTION, "large", ["hsrtf-pu", "fifo"], Sign::More),
];

/// Statements of section 5.4 about waiting: hSRTF reduces it "compared to Fifo and Fair schedulers,
/// regardless of the job sizes". Those that sections 5.1 to 5.3 make as well are above. Those about
/// small and medium jobs under Pu and Fifo contradict sections 5.1 and 5.2.
const DISCUSSED: [Statement; 7] = [
    ("figure 2d", WAITING, "small", ["hsrtf-pu", "fifo"], Sign::Less),
    ("figure 2d", WAITING, "small", ["hsrtf-pr", "fifo"], Sign::Less),
    ("figure 2d", WAITING, "small", ["hsrtf-pu", "fair"], Sign::Less),
    ("figure 2e", WAITING, "medium", ["hsrtf-pu", "fifo"], Sign::Less),
    ("figure 2e", WAITING, "medium", ["hsrtf-pr", "fifo"], Sign::Less),
    ("figure 2e", WAITING, "medium", ["hsrtf-pu", "fair"], Sign::Less),
    ("figure 2f", WAITING, "large", ["hsrtf-pu", "fair"], Sign::Less),
];

/// The modes of hSRTF.
const MODES: [&str; 4] = ["hsrtf-pu", "hsrtf-pup", "hsrtf-pr", "hsrtf-prp"];

/// Returns a mode with the rules of the paper only, but for eq. 2, which gives seconds. With eq. 2 as
/// printed, `hsrtf-pup` kills attempts forever and no job ends.
fn literal(mode: &str) -> Variant {
    let label = format!("{mode}, literal, eq. 2 in seconds");
    Variant::tuned(&label, mode, &[("literal", "true"), ("eq2", "seconds")])
}

/// "The huge reduction in waiting times" of small jobs under Pr against Fair: at least a tenth of
/// their completion.
const HUGE: Number = Number::ChangeRange(f64::NEG_INFINITY, -0.1);

/// What an experiment assumes.
struct Assumptions {
    setup: Setup,
    profiles: Profiles,
    gap_s: f64,
    /// Fraction of the maps that must be done before reduces start.
    slow_start: Option<f64>,
    /// Whether slow tasks get speculative attempts, and slow maps are split.
    speculation: bool,
    fair: Variant,
}

impl Assumptions {
    fn of(lab: &Lab<'_>) -> Self {
        Self {
            setup: clusters::hsrtf(),
            profiles: lab.profiles.clone(),
            gap_s: 10.0,
            slow_start: None,
            speculation: true,
            fair: plain_fair(),
        }
    }

    /// Changes the profiles of both programs.
    fn profile(&mut self, change: impl Fn(&mut Profile)) {
        self.profiles.values_mut().for_each(change);
    }

    fn run(
        &self,
        lab: &Lab<'_>,
        title: &str,
        variants: Vec<Variant>,
        (seeds, alone): (u64, bool),
    ) -> Result<Comparison, ExperimentError> {
        let workload = |seed| {
            let mut workload = papers::hsrtf(&self.profiles, seed);
            for (number, job) in workload.jobs.iter_mut().enumerate() {
                job.at = Span((self.gap_s * 1e6 * number as f64) as u64);
                job.slow_start = self.slow_start.unwrap_or(job.slow_start);
                (job.speculation, job.split_slow) = (self.speculation, self.speculation);
            }
            workload
        };
        let experiment = Experiment {
            setup: self.setup.clone(),
            faults: None,
            workload: &workload,
            users: Vec::new(),
            variants,
            seeds: lab.seed_range(seeds),
            limit: Some(Span::secs(2500)),
            alone,
            monitor: None,
        };
        lab.run(title, experiment)
    }
}

/// An assumption and how it is varied.
type Variation = (&'static str, fn(&mut Assumptions));

/// One assumption is varied in each, and two in the last four: none alone gives the paper's change
/// of small jobs against Fair, or that medium jobs are shorter under Pr than under Fifo.
const VARIATIONS: [Variation; 28] = [
    ("as assumed", |_| {}),
    ("task times: maps twice as fast", |all| all.profile(|profile| profile.map_mbps *= 2.0)),
    ("task times: maps half as fast", |all| all.profile(|profile| profile.map_mbps /= 2.0)),
    ("task times: reduces twice as fast", |all| all.profile(|profile| profile.reduce_mbps *= 2.0)),
    ("task times: reduces half as fast", |all| all.profile(|profile| profile.reduce_mbps /= 2.0)),
    ("task times: reduces a quarter as fast", |all| all.profile(|profile| profile.reduce_mbps /= 4.0)),
    ("task times: spread 0.5", |all| all.profile(|profile| profile.spread = 0.5)),
    ("task times: a task starts after 10 s", |all| all.profile(|profile| profile.start_s = 10.0)),
    ("slots: 4 map slots a node", |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.map = 4);
    }),
    ("slots: 2 map slots a node", |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.map = 2);
    }),
    ("slots: 1 reduce slot a node", |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.reduce = 1);
    }),
    ("slots: 4 reduce slots a node", |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.reduce = 4);
    }),
    ("slots: 29 nodes", |all| all.setup.machines.truncate(29)),
    ("gap: 5 s", |all| all.gap_s = 5.0),
    ("gap: 20 s", |all| all.gap_s = 20.0),
    ("slow start: after half of the maps", |all| all.slow_start = Some(0.5)),
    ("slow start: after all maps", |all| all.slow_start = Some(1.0)),
    ("heartbeats: every 1 s", |all| all.setup.set_heartbeat_interval(Span::secs(1))),
    ("heartbeats: at once if a slot is free", |all| all.setup.out_of_band = true),
    ("heartbeats: Fair waits 15 s for locality", |all| {
        let waits = [("node_wait", "15s"), ("rack_wait", "15s")];
        all.fair = Variant::tuned("fair", "fair", &waits).with_params(&plain_fair().params);
    }),
    ("disk: 50 MB/s", |all| all.setup.machines.iter_mut().for_each(|machine| machine.disk = 50e6)),
    ("disk: no memory for cached files", |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.cache = 0);
    }),
    ("network: 30 MB/s a node", |all| all.setup.machines.iter_mut().for_each(|machine| machine.nic = 30e6)),
    ("speculation: none, and no splits of slow maps", |all| all.speculation = false),
    ("two: reduces half as fast, gap 5 s", |all| {
        all.profile(|profile| profile.reduce_mbps /= 2.0);
        all.gap_s = 5.0;
    }),
    ("two: reduces half as fast, spread 0.5", |all| {
        all.profile(|profile| (profile.reduce_mbps, profile.spread) = (profile.reduce_mbps / 2.0, 0.5));
    }),
    ("two: 4 reduce slots a node, maps twice as fast", |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.reduce = 4);
        all.profile(|profile| profile.map_mbps *= 2.0);
    }),
    ("two: 4 reduce slots a node, gap 5 s", |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.reduce = 4);
        all.gap_s = 5.0;
    }),
];

/// Returns the name of a policy in the names of columns: `PuP` for `hsrtf-pup`.
fn short(label: &str) -> String {
    let name = label.trim_start_matches("hsrtf-");
    let last = if name.len() == 3 { "P" } else { &name[name.len() - 1..] };
    format!("{}{}{last}", name[..1].to_uppercase(), &name[1..name.len() - 1])
}

/// Returns the numbers and statements of the paper about figures 2 and 3.
fn numbers() -> Vec<PaperNumber> {
    let mut all = Vec::new();
    for (source, one, group, other, paper) in [
        ("figure 2a", "hsrtf-pr", "small", "fifo", -0.45),
        ("figure 2a", "hsrtf-pr", "small", "fair", -0.26),
        ("figure 2a", "hsrtf-pu", "small", "fifo", -0.43),
        ("figure 2c", "hsrtf-pr", "large", "fifo", 0.10),
        ("figure 2c", "hsrtf-pr", "large", "fair", 0.002),
    ] {
        let what = format!("completion of {group} jobs, {one} against {other}");
        let column = format!("{group}, {} against {}", short(one), short(other));
        let ours = move |results: Results<'_>| change(results, Some(group), one, other);
        all.push(PaperNumber::new(source, (what, column), Number::Change(paper), ours));
    }
    let names =
        ("small jobs that end sooner under hsrtf-pu than under fifo", "small, sooner under Pu than Fifo");
    all.push(PaperNumber::new("figure 2a", names, Number::Part(1.0), sooner));
    for (statements, section) in [(&STATEMENTS[..], ""), (&DISCUSSED[..], " (section 5.4)")] {
        for &(source, (measure, of), group, [one, other], sign) in statements {
            let what = format!("{measure} of {group} jobs, {one} minus {other}{section}");
            let column = format!("{group}, {} minus {}{section}", short(one), short(other));
            let ours = move |results: Results<'_>| difference(results, Some(group), (one, other), of);
            all.push(PaperNumber::new(source, (what, column), Number::Statement(sign), ours));
        }
    }
    let what = "waiting of small jobs, hsrtf-pr minus fair, as part of their completion (huge: at least 10%)";
    let names = (what, "waiting of small, Pr minus Fair");
    all.push(PaperNumber::new("figure 2d", names, HUGE, waiting_of_completion));
    let of_small = |label: &'static str, section: &str, paper| {
        let what = format!("locality of small jobs, {label}{section}");
        let column = format!("small, {}{section}", short(label));
        let ours = move |results: Results<'_>| mean_of(results, label, Some("small"), JobFigures::locality);
        PaperNumber::new("figure 3a", (what, column), paper, ours)
    };
    all.push(of_small("hsrtf-pr", "", Number::Part(0.05)));
    all.push(of_small("fair", "", Number::Part(1.0)));
    // Section 5.4: "it varies between 5% to 15% according to the applied hSRTF mode"; "hSRTF achieves
    // better data locality for both medium and large jobs".
    all.extend(MODES.map(|mode| of_small(mode, " (section 5.4)", Number::PartRange(0.05, 0.15))));
    for (source, size) in [("figure 3b", "medium"), ("figure 3c", "large")] {
        all.extend(MODES.map(|mode| {
            let what = format!("locality of {size} jobs minus that of small jobs, {mode}");
            let column = format!("{size} minus small, {}", short(mode));
            let ours = move |results: Results<'_>| locality_beyond_small(results, mode, size);
            PaperNumber::new(source, (what, column), Number::PartStatement(Sign::More), ours)
        }));
    }
    all
}

/// The columns of the first table of sensitivity.
const MAIN_COLUMNS: [&str; 8] = [
    "small, Pr against Fifo",
    "small, Pr against Fair",
    "small, Pu against Fifo",
    "large, Pr against Fifo",
    "large, Pr against Fair",
    "medium, Pr minus Fifo",
    "medium, Pr minus Fair",
    "waiting of small, Pr minus Fair",
];

/// Returns the title of the table of sensitivity that has a number.
fn table_of(number: &PaperNumber) -> &'static str {
    const TITLES: [(&str, &str); 3] = [
        ("figure 2a figure 2b figure 2c", "Sensitivity: completion"),
        ("figure 2d figure 2e figure 2f", "Sensitivity: waiting"),
        ("figure 2g figure 2h figure 2i", "Sensitivity: execution"),
    ];
    let is_main = MAIN_COLUMNS.contains(&number.column.as_str())
        && (number.source.as_str() < "figure 2d" || number.paper == HUGE);
    let of_figure = TITLES.iter().find(|(figures, _)| figures.contains(&number.source));
    if is_main { "Sensitivity" } else { of_figure.map_or("Sensitivity: locality", |(_, title)| title) }
}

/// Shows how all numbers and statements of the paper depend on what it does not print, and on its
/// settings.
fn vary_assumptions(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let mut tables: Vec<(&str, Vec<PaperNumber>)> = vec![("Sensitivity", Vec::new())];
    for number in numbers() {
        let title = table_of(&number);
        match tables.iter_mut().find(|(known, _)| *known == title) {
            Some((_, numbers)) => numbers.push(number),
            None => tables.push((title, vec![number])),
        }
    }
    let mut rows: Vec<Vec<Assumed>> = tables.iter().map(|_| Vec::new()).collect();
    let mut times = Vec::new();
    for (label, vary) in VARIATIONS {
        let mut all = Assumptions::of(lab);
        vary(&mut all);
        let mut variants = vec![Variant::plain("fifo"), all.fair.clone()];
        variants.extend(MODES.map(Variant::plain));
        variants.extend(MODES.map(literal));
        let comparison = all.run(lab, label, variants, (lab.sensitivity_seeds(), false))?;
        for ((_, numbers), rows) in tables.iter().zip(&mut rows) {
            rows.push(Assumed::new(label, numbers, &comparison));
        }
        let mut row = vec![Cell::from(label)];
        for policy in ["fifo", "fair", "hsrtf-pr"] {
            let at = comparison.index(policy).expect("the policy is a variant");
            row.extend(SIZES.map(|group| Cell::from(comparison.mean_over(at, Some(group), makespan_s))));
        }
        times.push(row);
    }
    for ((title, numbers), rows) in tables.iter().zip(&rows) {
        out.sensitivity(title, &columns(numbers), rows);
    }
    let mut head = vec!["assumption".to_owned()];
    for policy in ["Fifo", "Fair", "Pr"] {
        head.extend(SIZES.map(|size| format!("{policy}: {size}")));
    }
    let table = Table { head, rows: times };
    out.part("Completion under varied assumptions, s", table, String::new());
    Ok(())
}

/// Returns the locality of the jobs of a size minus that of small jobs, under one policy.
fn locality_beyond_small(comparison: Results<'_>, label: &str, size: &str) -> Option<Ours> {
    let at = comparison.index(label)?;
    let of = |size: &str| comparison.means(at, Some(size), JobFigures::locality).into_iter();
    Some(Ours::of(of(size).zip(of("small")).map(|(one, small)| Some(one? - small?)).collect()))
}

/// Returns the waiting of small jobs under Pr minus that under Fair, divided by their completion
/// under Fair.
fn waiting_of_completion(comparison: Results<'_>) -> Option<Ours> {
    let (pr, fair) = (comparison.index("hsrtf-pr")?, comparison.index("fair")?);
    let of = |at: usize, of: Measure| comparison.means(at, Some("small"), of).into_iter();
    let all = of(pr, waiting_s).zip(of(fair, waiting_s)).zip(of(fair, makespan_s));
    let changes = all.map(|((pr, fair), completion)| Some((pr? - fair?) / completion?));
    let ours = Ours::of_changes(changes.collect());
    Some(ours).filter(|_| comparison.left_out(Some("small"), pr, fair) == 0)
}

/// Returns the fraction of the small jobs that take less time under Pu than under Fifo.
fn sooner(comparison: Results<'_>) -> Option<Ours> {
    let (pu, fifo) = (comparison.index("hsrtf-pu")?, comparison.index("fifo")?);
    let of_seed = |seed: usize| {
        let pairs: Vec<(f64, f64)> =
            comparison.pairs(seed, Some("small"), pu, fifo).into_iter().flatten().collect();
        let sooner = pairs.iter().filter(|(pu, fifo)| pu < fifo).count();
        (!pairs.is_empty()).then(|| sooner as f64 / pairs.len() as f64)
    };
    Some(Ours::of((0..comparison.seeds.len()).map(of_seed).collect()))
}

/// Returns the three parts of a row of figure 2 as charts: the distribution for each size.
fn distributions(comparison: &Comparison, x_label: &str, of: Measure) -> String {
    let mut out = String::new();
    for size in SIZES {
        let series: Vec<(&str, Vec<f64>)> = PAPER_POLICIES
            .into_iter()
            .filter_map(|label| Some((label, comparison.values(comparison.index(label)?, Some(size), of))))
            .collect();
        let _ = write!(out, "<h3>{size} jobs</h3>{}", svg::cdf(&svg::SCREEN, x_label, &series));
    }
    out
}

/// Adds every figure and table of the paper to the inventory.
pub(super) fn take_inventory(out: &mut Reproduction) {
    let why = "it describes a month of logs of three research clusters, not a run under a scheduler, and the logs \
               are not part of the paper";
    out.not_reproduced("figure 1a", "execution times of jobs by input size, from logs", why);
    out.not_reproduced("figure 1b", "distribution of task durations, from logs", why);
    out.used("table 1", "the six schedulers");
    out.used("table 2", "the 31 jobs");
    for (title, parts) in [
        (
            FIGURE_2A,
            [
                ("figure 2a", "completion of small jobs"),
                ("figure 2b", "of medium jobs"),
                ("figure 2c", "of large jobs"),
            ],
        ),
        (
            FIGURE_2D,
            [
                ("figure 2d", "waiting of small jobs"),
                ("figure 2e", "of medium jobs"),
                ("figure 2f", "of large jobs"),
            ],
        ),
        (
            FIGURE_2G,
            [
                ("figure 2g", "execution of small jobs"),
                ("figure 2h", "of medium jobs"),
                ("figure 2i", "of large jobs"),
            ],
        ),
        (
            FIGURE_3,
            [
                ("figure 3a", "locality of small jobs"),
                ("figure 3b", "of medium jobs"),
                ("figure 3c", "of large jobs"),
            ],
        ),
    ] {
        for (name, shows) in parts {
            out.reproduced(name, shows, title);
        }
    }
}

const FIGURE_2A: &str = "Completion by size, s (figure 2, a to c)";
const FIGURE_2D: &str = "Waiting by size, s (figure 2, d to f)";
const FIGURE_2G: &str = "Execution by size, s (figure 2, g to i)";
const FIGURE_3: &str = "Locality by size (figure 3)";

pub(super) fn reproduce(lab: &Lab<'_>) -> Result<Reproduction, ExperimentError> {
    let mut out = Reproduction::new(
        "hSRTF at the paper's size",
        "58 nodes with 8 map and 2 reduce slots, 128 MB blocks, 3 replicas; 31 jobs, one every 10 s. The simulation stops after 2,500 s. The time of a job that is still running counts up to then, and figures with such jobs are marked ≥.",
    );
    let kill = [("preempt", "kill")];
    let printed = [("literal", "true")];
    let variants = vec![
        Variant::plain("fifo"),
        plain_fair(),
        Variant::plain("hsrtf-pu"),
        Variant::plain("hsrtf-pr"),
        Variant::plain("hsrtf-pup"),
        Variant::plain("hsrtf-prp"),
        Variant::tuned("hsrtf-pup, kill", "hsrtf-pup", &kill),
        Variant::tuned("hsrtf-prp, kill", "hsrtf-prp", &kill),
        literal("hsrtf-pu"),
        literal("hsrtf-pr"),
        literal("hsrtf-pup"),
        literal("hsrtf-prp"),
        Variant::tuned("hsrtf-pu, literal, eq. 2 printed", "hsrtf-pu", &printed),
        Variant::tuned("hsrtf-pr, literal, eq. 2 printed", "hsrtf-pr", &printed),
        // Not in the paper.
        Variant::tuned("hsrtf-pr, no wait for co-location", "hsrtf-pr", &[("colocate_wait", "0s")]),
        Variant::plain("fcs"),
        Variant::tuned("fcs, literal", "fcs", &printed),
    ];
    let comparison = Assumptions::of(lab).run(lab, "31 jobs", variants, (lab.seeds, true))?;
    out.claim_all(&numbers(), &comparison);
    take_inventory(&mut out);
    let cdfs = |x_label: &str, of: Measure| distributions(&comparison, x_label, of);
    let by = |of: Measure| by_policy(&comparison, of);
    out.part("All policies", summary(&comparison), charts(&comparison));
    out.part(FIGURE_2A, by(makespan_s), cdfs("from submission to end, s", makespan_s));
    out.part(FIGURE_2D, by(waiting_s), cdfs("from submission to the first map, s", waiting_s));
    out.part(FIGURE_2G, by(execution_s), cdfs("from the first map to the end, s", execution_s));
    out.part(FIGURE_3, by_policy(&comparison, JobFigures::locality), String::new());
    out.part("Wait of a reduce for a slot by size, s", by(reduce_wait_s), String::new());
    out.part("Slot seconds that a job loses, by size", by(|job| Some(job.lost.as_secs_f64())), String::new());
    let overhead = by(|job| Some(job.overhead().as_secs_f64()));
    out.part("Slot seconds of overhead of a job, by size", overhead, String::new());
    let kills = ["hsrtf-pup", "hsrtf-prp"];
    let mut table = Table::new(&["against the same with kills", "large", "medium", "small", "all"]);
    for label in kills {
        let change = |group: Option<&str>| {
            let ours = change(Results::ours(&comparison), group, label, &format!("{label}, kill"));
            change_cell(ours)
        };
        let row = [Some("large"), Some("medium"), Some("small"), None].map(change);
        table.row(std::iter::once(Cell::from(label)).chain(row).collect());
    }
    out.part("Completion with lossless preemption against kills", table, String::new());
    if lab.is_complete {
        vary_assumptions(&mut out, lab)?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile;

    /// The claims that need figures other than a difference between two policies.
    #[test]
    fn locality_and_huge_waiting_are_compared() {
        let profiles = profile::built_in();
        let lab = Lab::new(&profiles, 2, false, &|_, _| {});
        let variants = vec![Variant::plain("hsrtf-pr"), literal("hsrtf-pr"), plain_fair()];
        let comparison = Assumptions::of(&lab).run(&lab, "", variants, (2, false)).expect("it runs");
        let mut out = Reproduction::new("", "");
        out.claim_all(&numbers(), &comparison);
        let json = out.json();
        let of = |what: &str| {
            let claims = json["claims"].as_array().expect("claims");
            let found =
                claims.iter().find(|claim| claim["what"].as_str().is_some_and(|text| text.contains(what)));
            found.unwrap_or_else(|| panic!("no claim {what}")).clone()
        };
        let medium = of("locality of medium jobs minus that of small jobs, hsrtf-pr");
        assert_eq!(
            (&medium["source"].as_str(), medium["literal"]["verdict"].as_str()),
            (&Some("figure 3b"), Some("agrees"))
        );
        let huge = of("huge: at least 10%");
        let huge = &huge["literal"];
        let change = huge["estimate"]["mean"].as_f64().expect("a number");
        assert!(change < 0.0 && change > -0.1, "less waiting, but not a tenth of the completion: {change}");
        assert!(huge["verdict"].as_str().is_some_and(|verdict| !verdict.starts_with("agrees")), "{huge}");
    }

    /// The tables of sensitivity have a column for every claim, and no column twice.
    #[test]
    fn every_claim_is_a_column_of_sensitivity() {
        let all = numbers();
        assert_eq!(all.len(), 5 + 1 + STATEMENTS.len() + DISCUSSED.len() + 1 + 2 + 4 + 8);
        let main: Vec<&str> = all
            .iter()
            .filter(|number| table_of(number) == "Sensitivity")
            .map(|number| number.column.as_str())
            .collect();
        assert_eq!(main, MAIN_COLUMNS);
        let mut columns: Vec<(&str, &str)> =
            all.iter().map(|number| (table_of(number), number.column.as_str())).collect();
        columns.sort_unstable();
        let count = columns.len();
        columns.dedup();
        // A statement and its repetition in section 5.4 differ in their names.
        assert_eq!(columns.len(), count);
        assert_eq!([short("hsrtf-pup"), short("hsrtf-pr"), short("fifo")], ["PuP", "Pr", "Fifo"]);
    }

    #[test]
    fn statements_name_policies_of_the_paper_and_variations_differ() {
        for (_, _, size, policies, _) in STATEMENTS.iter().chain(&DISCUSSED) {
            assert!(SIZES.contains(size) && policies.iter().all(|policy| PAPER_POLICIES.contains(policy)));
        }
        let profiles = profile::built_in();
        let lab = Lab::new(&profiles, 1, true, &|_, _| {});
        let of = |vary: fn(&mut Assumptions)| {
            let mut all = Assumptions::of(&lab);
            vary(&mut all);
            (all.setup, all.profiles, all.gap_s.to_bits(), all.slow_start, all.speculation, all.fair)
        };
        let base = of(|_| {});
        for (label, vary) in &VARIATIONS[1..] {
            assert_ne!(of(*vary), base, "{label} varies nothing");
        }
    }
}
