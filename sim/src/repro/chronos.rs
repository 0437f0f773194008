//! The Chronos paper: two jobs on 8 nodes, one of which dies (section 5, figures 1 to 4).

use super::{Assumed, Lab, Number, Ours, PaperNumber, Reproduction, Results, change, columns, per_run};
use crate::{
    Outcome, Setup, Workload, clusters,
    experiment::{Comparison, Experiment, ExperimentError, Variant, makespan_s},
    fault::{Fault, FaultKind},
    profile::{Profile, Profiles},
    report::{Cell, Table, by_policy, charts, svg},
    workload::papers,
};
use mrcore::{
    Phase, Span, Time,
    ids::JobId,
    metrics::{JobFigures, stats::quantile},
};
use std::{collections::BTreeMap, ops::Range};

/// The node that dies.
const FAILING_NODE: u32 = 3;

/// Parameters that turn preemption by Fair off. The paper has none.
const NEVER: [(&str, &str); 2] = [("fair.min_share_timeout", "never"), ("fair.fair_share_timeout", "never")];

/// When the node dies.
#[derive(Clone, Copy)]
enum FailureTime {
    /// When this fraction of the first job's map phase has passed.
    InMaps(f64),
    /// When this fraction of the time from the end of the first job's maps to its end has passed.
    InReduces(f64),
}

/// What an experiment assumes.
struct Assumptions {
    setup: Setup,
    profiles: Profiles,
    /// Seconds between the submissions of the two jobs.
    gap_s: f64,
    /// Fraction of the maps that must be done before reduces start.
    slow_start: Option<f64>,
    /// Number of reduces of each job.
    reduces: Option<usize>,
    /// Fraction of the phase after which the node dies.
    failure: Option<f64>,
    /// Whether slow tasks get speculative attempts, and slow maps are split.
    speculation: bool,
}

impl Assumptions {
    fn of(lab: &Lab<'_>) -> Self {
        Self {
            setup: clusters::chronos(),
            profiles: lab.profiles.clone(),
            gap_s: 1.0,
            slow_start: None,
            reduces: None,
            failure: None,
            speculation: true,
        }
    }

    /// Changes the profiles of both programs.
    fn profile(&mut self, change: impl Fn(&mut Profile)) {
        self.profiles.values_mut().for_each(change);
    }

    fn workload(&self, program: &str, seed: u64) -> Workload {
        let mut workload = papers::chronos(&self.profiles, program, seed);
        workload.jobs[1].at = Span((self.gap_s * 1e6) as u64);
        for job in &mut workload.jobs {
            job.slow_start = self.slow_start.unwrap_or(job.slow_start);
            (job.speculation, job.split_slow) = (self.speculation, self.speculation);
            if let Some(count) = self.reduces {
                job.reduces = job.reduces.iter().copied().cycle().take(count).collect();
                job.reduces.iter_mut().for_each(|reduce| reduce.share = 1.0 / count as f32);
            }
        }
        workload
    }

    /// Returns the time of the failure in seconds for each of the first `seeds` seeds, computed from
    /// runs of the inner policy without a failure. `None` if such a run is stopped.
    fn failure_times_s(
        &self,
        lab: &Lab<'_>,
        case: &Case,
        seeds: u64,
    ) -> Result<Option<BTreeMap<u64, f64>>, ExperimentError> {
        let Some(at) = case.at else { return Ok(Some(BTreeMap::new())) };
        let workload = |seed| self.workload(case.program, seed);
        let [inner, ..] = case.policies();
        let variants = vec![inner];
        let undisturbed = self.experiment(&workload, None, variants, lab.seed_range(seeds));
        let comparison = lab.run_unarchived(&format!("{}: without a failure", case.title), undisturbed)?;
        if comparison.runs[0].iter().any(|outcome| outcome.stopped) {
            return Ok(None);
        }
        let since_start =
            |time: Option<Time>| time.map_or(0.0, |time| time.since(crate::BEGINNING).as_secs_f64());
        let of_run = |outcome: &Outcome| {
            let first = outcome.metrics.job(JobId(1));
            let maps_done = since_start(first.and_then(|job| job.maps_done));
            let ended = since_start(first.and_then(|job| job.ended));
            match at {
                FailureTime::InMaps(part) => self.failure.unwrap_or(part) * maps_done,
                FailureTime::InReduces(part) => {
                    maps_done + self.failure.unwrap_or(part) * (ended - maps_done)
                }
            }
        };
        Ok(Some(comparison.seeds.iter().copied().zip(comparison.runs[0].iter().map(of_run)).collect()))
    }

    fn experiment<'a>(
        &self,
        workload: &'a (dyn Fn(u64) -> Workload + Sync),
        faults: Option<&'a (dyn Fn(u64) -> Vec<Fault> + Sync)>,
        variants: Vec<Variant>,
        seeds: Range<u64>,
    ) -> Experiment<'a> {
        Experiment {
            setup: self.setup.clone(),
            faults,
            workload,
            users: Vec::new(),
            variants,
            seeds,
            limit: None,
            alone: false,
            monitor: None,
        }
    }

    /// Runs the two jobs of a case under these policies. `None` if a run that gives the time of the
    /// failure is stopped.
    fn run(
        &self,
        lab: &Lab<'_>,
        title: &str,
        case: &Case,
        variants: Vec<Variant>,
    ) -> Result<Option<Comparison>, ExperimentError> {
        let Some(times_s) = self.failure_times_s(lab, case, lab.seeds)? else { return Ok(None) };
        let faults = |seed| times_s.get(&seed).map(|at_s| death(*at_s, FAILING_NODE)).into_iter().collect();
        let workload = |seed| self.workload(case.program, seed);
        let seeds = lab.seed_range(lab.seeds);
        Ok(Some(lab.run(title, self.experiment(&workload, Some(&faults), variants, seeds))?))
    }
}

fn death(at_s: f64, node: u32) -> Fault {
    Fault { at_s, for_s: None, what: FaultKind::Node { node } }
}

/// An experiment of the paper.
#[derive(Clone, Copy)]
struct Case {
    title: &'static str,
    program: &'static str,
    inner: &'static str,
    at: Option<FailureTime>,
}

impl Case {
    /// Returns the inner policy, and Chronos around it that acts when the node is lost: with our rules,
    /// and with those of the paper only.
    fn policies(&self) -> [Variant; 3] {
        let wrapped = format!("chronos({})", self.inner);
        [
            Variant::tuned(self.inner, self.inner, &NEVER),
            Variant::tuned("chronos", &wrapped, &[("early", "lost"), NEVER[0], NEVER[1]]),
            Variant::tuned("chronos, literal", &wrapped, &[("literal", "true"), NEVER[0], NEVER[1]]),
        ]
    }
}

const FIFO: Case = Case {
    title: "Fifo, wordcount, before the reduces",
    program: "wordcount",
    inner: "fifo",
    at: Some(FailureTime::InMaps(0.45)),
};
const FAIR: Case = Case { title: "Fair, wordcount, before the reduces", inner: "fair", ..FIFO };
const SORT: Case = Case {
    title: "Fifo, sort, in the reduces",
    program: "sort",
    inner: "fifo",
    at: Some(FailureTime::InReduces(0.8)),
};
const CALM: Case = Case { title: "No failure", program: "wordcount", inner: "fifo", at: None };

/// Runs a case under all policies, and compares them with the numbers of the paper.
fn compare(
    out: &mut Reproduction,
    lab: &Lab<'_>,
    case: &Case,
    numbers: &[PaperNumber],
) -> Result<Option<Comparison>, ExperimentError> {
    let Case { title, inner, .. } = *case;
    let wrapped = format!("chronos({inner})");
    let mut variants = case.policies().to_vec();
    variants.push(Variant::tuned(
        "chronos, kill",
        &wrapped,
        &[("early", "lost"), NEVER[0], NEVER[1], ("preempt", "kill")],
    ));
    let Some(comparison) = Assumptions::of(lab).run(lab, title, case, variants)? else {
        for number in numbers {
            out.claim_of(number.what.as_str(), number.paper, |_| None).of(&number.source);
        }
        return Ok(None);
    };
    out.claim_all(numbers, &comparison);
    out.part(title, recovery(&comparison), charts(&comparison));
    out.part(format!("{title}: completion, s"), by_policy(&comparison, makespan_s), String::new());
    let locality = by_policy(&comparison, JobFigures::locality);
    out.part(format!("{title}: locality of all maps"), locality, String::new());
    Ok(Some(comparison))
}

/// Runs an experiment that is not in the paper: jobs allow speculative attempts, and Chronos
/// acts when heartbeats of the node are late (suspect) instead of when the node is lost.
fn on_suspicion(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let columns = ["policy", "first job, s", "second, s", "speculative attempts", "lost slot-seconds"];
    let mut table = Table::new(&columns);
    for case in [FIFO, FAIR] {
        let wrapped = format!("chronos({})", case.inner);
        let [plain, mut chronos, _] = case.policies();
        chronos.label = format!("{wrapped}, when lost");
        let suspect = Variant::tuned(&format!("{wrapped}, when suspect"), &wrapped, &NEVER);
        let title = format!("on suspicion, {}", case.inner);
        let comparison = Assumptions::of(lab).run(lab, &title, &case, vec![plain, chronos, suspect])?;
        let Some(comparison) = comparison else { continue };
        let sum = |at: usize, of: fn(&JobFigures) -> f64| -> Cell {
            comparison.figure(at, |outcome| outcome.metrics.jobs().map(|(_, job)| of(job)).sum()).into()
        };
        for (at, variant) in comparison.variants.iter().enumerate() {
            let elapsed = |group| Cell::from(comparison.mean_over(at, Some(group), makespan_s));
            table.row(vec![
                variant.label.as_str().into(),
                elapsed("small"),
                elapsed("large"),
                sum(at, |job| f64::from(job.speculative_attempts)),
                sum(at, |job| job.lost.as_secs_f64()),
            ]);
        }
    }
    out.part("Wordcount, speculative attempts allowed: acting on suspicion", table, String::new());
    Ok(())
}

/// Loses each of the eight nodes in turn, because under Fair the result depends on which job's
/// tasks the lost node ran.
fn lose_each_node(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let head = [
        "node",
        "first job's tasks",
        "second's",
        "fair: wait s",
        "first s",
        "second s",
        "chronos: wait s",
        "first s",
        "second s",
    ];
    let mut table = Table::new(&head);
    let assumed = Assumptions::of(lab);
    let Some(times_s) = assumed.failure_times_s(lab, &FAIR, 1)? else { return Ok(()) };
    let workload = |seed| assumed.workload(FAIR.program, seed);
    for node in 0..8 {
        let faults = |seed| vec![death(times_s[&seed], node)];
        let [plain, chronos, _] = FAIR.policies();
        let variants = vec![plain, chronos];
        let experiment = assumed.experiment(&workload, Some(&faults), variants, lab.seed_range(1));
        let comparison = lab.run(&format!("node {node}"), experiment)?;
        let tasks = |job: u32| {
            let figures = comparison.runs[0][0].metrics.job(JobId(job));
            Cell::count(figures.map_or(0, |job| job.recovery.tasks) as usize)
        };
        let mut row = vec![Cell::count(node as usize), tasks(1), tasks(2)];
        for at in 0..2 {
            row.push(comparison.figure_of(at, first_job_map_wait).into());
            let mean = |group| Cell::from(comparison.mean_over(at, Some(group), makespan_s));
            row.extend(["small", "large"].map(mean));
        }
        table.row(row);
    }
    out.part(format!("Fair, wordcount: each node in turn, seed {}", lab.first_seed), table, String::new());
    Ok(())
}

/// Shows how long the shares differ, for several limits of what counts as different. The paper does
/// not define its times.
fn vary_definition(out: &mut Reproduction, fair: &Comparison) {
    let mut table = Table::new(&["shares differ by more than", "fair, s", "chronos, s"]);
    let numbers = [("a tenth", 0.1), ("a quarter", 0.25), ("a half", 0.5)];
    table.row(vec!["the paper, not defined".into(), "48".into(), "2".into()]);
    for (label, limit) in numbers {
        let of = |at: usize| Cell::from(fair.figure_of(at, |outcome| unfair_s(outcome, limit)));
        table.row(vec![label.into(), of(0), of(1)]);
    }
    out.part("Time off fair share, by definition", table, String::new());
}

/// An assumption and how it is varied.
type Variation = (&'static str, fn(&mut Assumptions));

/// One assumption is varied in each, and several in those that say so: no single one gives the paper's
/// change of the second job, or its time off fair share with Chronos.
const VARIATIONS: [Variation; 30] = [
    ("as assumed", |_| {}),
    ("failure: after 20% of the phase", |all| all.failure = Some(0.2)),
    ("failure: after 30% of the phase", |all| all.failure = Some(0.3)),
    ("failure: after 35% of the phase", |all| all.failure = Some(0.35)),
    ("failure: after 60% of the phase", |all| all.failure = Some(0.6)),
    ("failure: after 95% of the phase", |all| all.failure = Some(0.95)),
    ("failure: lost after 10 s", |all| all.setup.config.lost_after = Span::secs(10)),
    ("task times: maps twice as fast", |all| all.profile(|profile| profile.map_mbps *= 2.0)),
    ("task times: maps half as fast", |all| all.profile(|profile| profile.map_mbps /= 2.0)),
    ("task times: reduces half as fast", |all| all.profile(|profile| profile.reduce_mbps /= 2.0)),
    ("task times: reduces a quarter as fast", |all| all.profile(|profile| profile.reduce_mbps /= 4.0)),
    ("task times: spread 0.3", |all| all.profile(|profile| profile.spread = 0.3)),
    ("slots: 4 map slots a node", |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.map = 4);
    }),
    ("slots: 2 reduce slots a node", |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.reduce = 2);
    }),
    ("slots: 16 reduces a job", |all| all.reduces = Some(16)),
    ("slots: 8 reduces a job", |all| all.reduces = Some(8)),
    ("gap: second job after 10 s", |all| all.gap_s = 10.0),
    ("gap: second job after 30 s", |all| all.gap_s = 30.0),
    ("slow start: after 5% of the maps", |all| all.slow_start = Some(0.05)),
    ("slow start: after all maps", |all| all.slow_start = Some(1.0)),
    ("heartbeats: every 1 s", |all| {
        let lost_after = all.setup.config.lost_after;
        all.setup.set_heartbeat_interval(Span::secs(1));
        all.setup.config.lost_after = lost_after;
    }),
    ("heartbeats: at once if a slot is free", |all| all.setup.out_of_band = true),
    ("disk: 50 MB/s", |all| all.setup.machines.iter_mut().for_each(|machine| machine.disk = 50e6)),
    ("disk: no memory for cached files", |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.cache = 0);
    }),
    ("network: 30 MB/s a node", |all| all.setup.machines.iter_mut().for_each(|machine| machine.nic = 30e6)),
    ("speculation: none, and no splits of slow maps", |all| all.speculation = false),
    ("two: failure after 35% of the phase, 2 reduce slots a node", |all| {
        all.failure = Some(0.35);
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.reduce = 2);
    }),
    ("two: 2 reduce slots a node, slow start after 5% of the maps", |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.reduce = 2);
        all.slow_start = Some(0.05);
    }),
    ("two: 4 map slots a node, reduces a quarter as fast", |all| {
        all.setup.machines.iter_mut().for_each(|machine| machine.slots.map = 4);
        all.profile(|profile| profile.reduce_mbps /= 4.0);
    }),
    ("two: heartbeats at once if a slot is free, second job after 30 s", |all| {
        (all.setup.out_of_band, all.gap_s) = (true, 30.0);
    }),
];

/// Our value for a number of the paper, with the inner policy.
type OurFigure = fn(Results<'_>, &str) -> Option<Ours>;

/// The source of a number of the paper, its names as a claim and as a column of its sensitivity, its
/// value, and ours.
type NumberRow = (&'static str, (&'static str, &'static str), Number, OurFigure);

/// Returns the numbers of the paper about a case.
fn numbers(rows: &[NumberRow], case: &Case) -> Vec<PaperNumber> {
    let inner = case.inner;
    let number = |&(source, names, paper, ours): &NumberRow| {
        PaperNumber::new(source, names, paper, move |comparison| ours(comparison, inner))
    };
    rows.iter().map(number).collect()
}

fn first_job(comparison: Results<'_>, inner: &str) -> Option<Ours> {
    change(comparison, Some("small"), "chronos", inner)
}

fn second_job(comparison: Results<'_>, inner: &str) -> Option<Ours> {
    change(comparison, Some("large"), "chronos", inner)
}

/// Returns a change over the seeds in which the first job lost tasks. In the others there is nothing
/// to recover.
fn after_a_loss(ours: Option<Ours>, comparison: Results<'_>, inner: &str) -> Option<Ours> {
    let lost = per_run(comparison, inner, first_job_wait)?.by_seed;
    let by_seed = ours?.by_seed.into_iter().zip(lost);
    Some(Ours::of_changes(by_seed.map(|(ours, lost)| ours.filter(|_| lost.is_some())).collect()))
}

fn first_job_after_a_loss(comparison: Results<'_>, inner: &str) -> Option<Ours> {
    Some(after_a_loss(first_job(comparison, inner), comparison, inner)?.mixed())
}

fn second_job_after_a_loss(comparison: Results<'_>, inner: &str) -> Option<Ours> {
    after_a_loss(second_job(comparison, inner), comparison, inner)
}

/// Returns the relative change of the locality of all maps of a job with Chronos.
fn locality_change(comparison: Results<'_>, inner: &str, group: &str) -> Option<Ours> {
    let of =
        |label: &str| Some(comparison.means(comparison.index(label)?, Some(group), JobFigures::locality));
    let pairs = of("chronos")?.into_iter().zip(of(inner)?);
    let change =
        |(ours, theirs): (Option<f64>, Option<f64>)| Some(ours? / theirs.filter(|it| *it > 0.0)? - 1.0);
    Some(Ours::of_changes(pairs.map(change).collect()))
}

fn first_job_locality(comparison: Results<'_>, inner: &str) -> Option<Ours> {
    locality_change(comparison, inner, "small")
}

fn second_job_locality(comparison: Results<'_>, inner: &str) -> Option<Ours> {
    locality_change(comparison, inner, "large")
}

fn wait_without(comparison: Results<'_>, inner: &str) -> Option<Ours> {
    per_run(comparison, inner, first_job_wait)
}

fn mixed_wait_without(comparison: Results<'_>, inner: &str) -> Option<Ours> {
    Some(wait_without(comparison, inner)?.mixed())
}

fn wait_with(comparison: Results<'_>, _: &str) -> Option<Ours> {
    per_run(comparison, "chronos", first_job_wait)
}

fn local_without(comparison: Results<'_>, inner: &str) -> Option<Ours> {
    per_run(comparison, inner, first_job_rerun_locality)
}

fn local_with(comparison: Results<'_>, _: &str) -> Option<Ours> {
    per_run(comparison, "chronos", first_job_rerun_locality)
}

/// Returns the time until both jobs have ended under the inner policy.
fn both_jobs(comparison: Results<'_>, inner: &str) -> Option<Ours> {
    per_run(comparison, inner, |outcome| {
        let jobs = || outcome.metrics.jobs().map(|(_, job)| job);
        let ended: Option<Vec<Time>> = jobs().map(|job| job.ended).collect();
        Some(ended?.into_iter().max()?.since(jobs().map(|job| job.submitted).min()?).as_secs_f64())
    })
}

fn unfair_without(comparison: Results<'_>, inner: &str) -> Option<Ours> {
    per_run(comparison, inner, |outcome| unfair_s(outcome, 0.1))
}

fn unfair_with(comparison: Results<'_>, _: &str) -> Option<Ours> {
    per_run(comparison, "chronos", |outcome| unfair_s(outcome, 0.1))
}

/// The change of completion under Fair: "by 2% to 14%", without a number for each job.
const LESS_UNDER_FAIR: Number = Number::ChangeRange(-0.14, -0.02);

const FIFO_NUMBERS: [NumberRow; 9] = [
    (
        "figure 1a",
        ("Fifo, wordcount: completion of the first job", "first job"),
        Number::Change(-0.20),
        first_job,
    ),
    (
        "figure 1a",
        ("Fifo, wordcount: completion of the second job", "second job"),
        Number::Change(-0.10),
        second_job,
    ),
    ("figure 1a", ("recovery wait under Fifo", "wait, Fifo"), Number::Seconds(51.0), wait_without),
    (
        "figure 1a",
        ("time until both jobs have ended, under Fifo (51 s are 15% of it)", "both jobs, Fifo"),
        Number::Seconds(51.0 / 0.15),
        both_jobs,
    ),
    ("figure 1a", ("recovery wait with Chronos", "wait, Chronos"), Number::Seconds(1.5), wait_with),
    ("figure 2a", ("recovery maps local under Fifo", "local, Fifo"), Number::Part(0.125), local_without),
    ("figure 2a", ("recovery maps local with Chronos", "local, Chronos"), Number::Part(1.0), local_with),
    (
        "figure 2a",
        ("Fifo, wordcount: locality of the first job", "locality of the first"),
        Number::Change(0.15),
        first_job_locality,
    ),
    (
        "figure 2a",
        ("Fifo, wordcount: locality of the second job", "of the second"),
        Number::Change(0.0),
        second_job_locality,
    ),
];

const FAIR_NUMBERS: [NumberRow; 7] = [
    ("figure 1b", ("Fair, wordcount: completion of the first job", "first job"), LESS_UNDER_FAIR, first_job),
    (
        "figure 1b",
        ("Fair, wordcount: completion of the second job", "second job"),
        LESS_UNDER_FAIR,
        second_job,
    ),
    (
        "figure 1b",
        ("time off fair share, under Fair", "off share, Fair"),
        Number::Seconds(48.0),
        unfair_without,
    ),
    (
        "figure 1b",
        ("time until both jobs have ended, under Fair (48 s are 16% of it)", "both jobs, Fair"),
        Number::Seconds(48.0 / 0.16),
        both_jobs,
    ),
    (
        "figure 1b",
        ("time off fair share, with Chronos", "off share, Chronos"),
        Number::Seconds(2.0),
        unfair_with,
    ),
    (
        "figure 2b",
        ("Fair, wordcount: locality of the first job", "locality of the first"),
        Number::Change(0.22),
        first_job_locality,
    ),
    (
        "figure 2b",
        ("Fair, wordcount: locality of the second job", "of the second"),
        Number::Change(0.0),
        second_job_locality,
    ),
];

/// In some seeds the lost tasks of the first job find a free slot, in others they wait for the end of
/// a reduce of the second job. The mean over both describes neither, so quartiles are compared. All
/// numbers are of the seeds in which the first job lost tasks.
const SORT_NUMBERS: [NumberRow; 4] = [
    (
        "figure 3",
        ("Fifo, sort: completion of the first job, median (quartiles; seeds with a loss)", "first job"),
        Number::Change(-0.55),
        first_job_after_a_loss,
    ),
    (
        "figure 3",
        ("Fifo, sort: completion of the second job, mean of the seeds with a loss", "second job"),
        Number::Change(-0.11),
        second_job_after_a_loss,
    ),
    (
        "figure 3",
        ("recovery wait under Fifo, sort, median (quartiles; seeds with a loss)", "wait, Fifo"),
        Number::Seconds(325.0),
        mixed_wait_without,
    ),
    (
        "figure 3",
        ("recovery wait with Chronos, sort, mean of the seeds with a loss", "wait, Chronos"),
        Number::Seconds(2.0),
        wait_with,
    ),
];

/// Shows how the numbers of a case depend on what the paper does not print, and on its settings.
fn vary_assumptions(
    out: &mut Reproduction,
    lab: &Lab<'_>,
    case: &Case,
    numbers: &[PaperNumber],
) -> Result<(), ExperimentError> {
    let mut rows = Vec::new();
    for (label, vary) in VARIATIONS {
        let mut all = Assumptions::of(lab);
        vary(&mut all);
        // The assumption of the case itself.
        let is_same = label == "slow start: after all maps" && case.program == "wordcount"
            || label == "slow start: after 5% of the maps" && case.program == "sort";
        if is_same {
            continue;
        }
        let title = format!("{}: {label}", case.title);
        let comparison = all.run(lab, &title, case, case.policies().to_vec())?;
        rows.extend(comparison.map(|comparison| Assumed::new(label, numbers, &comparison)));
    }
    out.sensitivity(&format!("Sensitivity: {}", case.title), &columns(numbers), &rows);
    Ok(())
}

/// Compares the durations of all successful attempts (figure 4a).
fn task_times(out: &mut Reproduction, comparison: &Comparison) {
    let mut table = Table::new(&["policy", "tasks", "mean s", "p10 s", "p50 s", "p90 s", "p99 s"]);
    let mut series = Vec::new();
    for at in [0, 1] {
        let label = comparison.variants[at].label.as_str();
        let of = |part: f64| {
            let times =
                |outcome: &Outcome| outcome.task_times.iter().copied().map(f64::from).collect::<Vec<_>>();
            Cell::from(comparison.figure(at, |outcome| quantile(&times(outcome), part)))
        };
        let mean = |outcome: &Outcome| {
            outcome.task_times.iter().copied().map(f64::from).sum::<f64>()
                / outcome.task_times.len().max(1) as f64
        };
        let tasks = comparison.figure(at, |outcome| outcome.task_times.len() as f64);
        table.row(vec![
            label.into(),
            tasks.into(),
            comparison.figure(at, mean).into(),
            of(0.1),
            of(0.5),
            of(0.9),
            of(0.99),
        ]);
        let all =
            comparison.runs[at].iter().flat_map(|outcome| outcome.task_times.iter().copied().map(f64::from));
        series.push((label, all.collect::<Vec<f64>>()));
    }
    let mean = |outcome: &Outcome| {
        let sum: f64 = outcome.task_times.iter().copied().map(f64::from).sum();
        (!outcome.task_times.is_empty()).then(|| sum / outcome.task_times.len() as f64)
    };
    let what = "mean duration of successful tasks, Chronos against Fifo";
    let longer = |rules| {
        let results = Results { comparison, rules };
        let pairs = comparison.runs[results.index("chronos")?].iter().zip(&comparison.runs[0]);
        let change = |(ours, theirs)| Some(mean(ours)? / mean(theirs)? - 1.0);
        Some(Ours::of_changes(pairs.map(change).collect()))
    };
    out.claim_of(what, Number::Change(0.0), longer).of("figure 4a");
    out.part("Durations of successful attempts", table, svg::cdf(&svg::SCREEN, "duration, s", &series));
}

/// Adds every figure of the paper to the inventory. It has no tables.
pub(super) fn take_inventory(out: &mut Reproduction) {
    let title = |case: &Case, what: &str| format!("{}{what}", case.title);
    out.reproduced("figure 1a", "completion under Fifo, wordcount", title(&FIFO, ": completion, s"));
    out.reproduced("figure 1b", "completion under Fair, wordcount", title(&FAIR, ": completion, s"));
    out.reproduced("figure 2a", "locality under Fifo, wordcount", title(&FIFO, ": locality of all maps"));
    out.reproduced("figure 2b", "locality under Fair, wordcount", title(&FAIR, ": locality of all maps"));
    out.reproduced("figure 3", "completion under Fifo, sort", title(&SORT, ": completion, s"));
    out.reproduced(
        "figure 4a",
        "durations of successful tasks, Fifo, wordcount",
        "Durations of successful attempts",
    );
    out.reproduced("figure 4b", "completion without a failure", title(&CALM, ": completion, s"));
}

/// Returns the wait of the lost tasks of a job as the paper defines it: the time from the detection
/// of the loss until all of them have started. A run in which the job lost no task has no value, so
/// that it does not count as a perfect recovery.
fn wait_of(outcome: &Outcome, job: u32) -> Option<f64> {
    let recovery = &outcome.metrics.job(JobId(job))?.recovery;
    (recovery.tasks > 0).then(|| recovery.longest.as_secs_f64())
}

/// Returns the wait until all lost tasks of the first job have started.
fn first_job_wait(outcome: &Outcome) -> Option<f64> {
    wait_of(outcome, 1)
}

/// Returns the mean wait of the lost tasks of the first job.
fn first_job_mean_wait(outcome: &Outcome) -> Option<f64> {
    outcome.metrics.job(JobId(1))?.recovery.mean_wait().map(Span::as_secs_f64)
}

/// Returns the mean wait of the lost maps of the first job.
pub(super) fn first_job_map_wait(outcome: &Outcome) -> Option<f64> {
    outcome.metrics.job(JobId(1))?.recovery.mean_map_wait().map(Span::as_secs_f64)
}

/// Returns the fraction of the first job's lost maps that were node-local when they ran again.
pub(super) fn first_job_rerun_locality(outcome: &Outcome) -> Option<f64> {
    outcome.metrics.job(JobId(1))?.recovery.locality()
}

/// Returns for how many seconds, between the loss and the end of the first job's maps, the two jobs
/// differed by more than this fraction of the map slots that they occupied together. `None` if no
/// task was lost, or if there are not two jobs.
fn unfair_s(outcome: &Outcome, limit: f64) -> Option<f64> {
    let metrics = &outcome.metrics;
    let (lost, ends) = (metrics.first_loss()?, metrics.job(JobId(1))?.maps_done?);
    let step = metrics.by_job.step();
    let held: Vec<Vec<f64>> = metrics.by_job.slots(Phase::Map).map(|(_, slots)| slots).collect();
    let [one, other] = held.as_slice() else { return None };
    let steps = (lost.0.div_ceil(step.0) as usize)..(ends.0 / step.0) as usize;
    let at = |slots: &[f64], step: usize| slots.get(step).copied().unwrap_or(0.0);
    let away = |step: &usize| {
        let (one, other) = (at(one, *step), at(other, *step));
        (one - other).abs() > limit * (one + other)
    };
    let away = steps.filter(away).count();
    Some(away as f64 * step.as_secs_f64())
}

/// Returns a table of how long lost tasks waited to run again, and with which locality they ran.
pub fn recovery(comparison: &Comparison) -> Table {
    let mut table = Table::new(&[
        "policy",
        "tasks run again",
        "first job's wait s",
        "second's s",
        "first job's mean wait s",
        "first job's maps local",
        "away from shares s",
        "lost slot-seconds",
        "overhead slot-seconds",
    ]);
    for (at, variant) in comparison.variants.iter().enumerate() {
        let sum = |of: fn(&JobFigures) -> Span| {
            move |outcome: &Outcome| outcome.metrics.jobs().map(|(_, job)| of(job).as_secs_f64()).sum()
        };
        table.row(vec![
            variant.label.as_str().into(),
            comparison.figure(at, |outcome| f64::from(outcome.metrics.recovery.tasks)).into(),
            comparison.figure_of(at, first_job_wait).into(),
            comparison.figure_of(at, |outcome| wait_of(outcome, 2)).into(),
            comparison.figure_of(at, first_job_mean_wait).into(),
            comparison.figure_of(at, first_job_rerun_locality).into(),
            comparison.figure_of(at, |outcome| unfair_s(outcome, 0.1)).into(),
            comparison.figure(at, sum(|job| job.lost)).into(),
            comparison.figure(at, sum(JobFigures::overhead)).into(),
        ]);
    }
    table
}

pub(super) fn reproduce(lab: &Lab<'_>) -> Result<Reproduction, ExperimentError> {
    let mut out = Reproduction::new(
        "Chronos at the paper's size",
        "8 nodes with 8 map and 4 reduce slots, 256 MB blocks, 2 replicas, lost after 25 s; jobs of 17 and 56 GB; \
         one node dies. The wait of a job lasts from the detection of the loss until all its lost tasks have started. \
         Tasks of the second job may wait longer, because no other job ranks below it.",
    );
    let of_fifo = numbers(&FIFO_NUMBERS, &FIFO);
    let of_fair = numbers(&FAIR_NUMBERS, &FAIR);
    let of_sort = numbers(&SORT_NUMBERS, &SORT);
    let wordcount = compare(&mut out, lab, &FIFO, &of_fifo)?;
    let fair = compare(&mut out, lab, &FAIR, &of_fair)?;
    if let Some(fair) = &fair {
        vary_definition(&mut out, fair);
    }
    lose_each_node(&mut out, lab)?;
    on_suspicion(&mut out, lab)?;
    compare(&mut out, lab, &SORT, &of_sort)?;
    if let Some(wordcount) = &wordcount {
        task_times(&mut out, wordcount);
    }
    let calm = compare(&mut out, lab, &CALM, &[])?;
    let overhead = |rules| change(Results { comparison: calm.as_ref()?, rules }, None, "chronos", "fifo");
    out.claim_of("no failure: completion of all jobs", Number::Change(0.0), overhead).of("figure 4b");
    take_inventory(&mut out);
    if lab.is_complete {
        vary_assumptions(&mut out, lab, &FIFO, &of_fifo)?;
        vary_assumptions(&mut out, lab, &FAIR, &of_fair)?;
        vary_assumptions(&mut out, lab, &SORT, &of_sort)?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::Step, profile};
    use std::{
        sync::{Mutex, atomic::Ordering},
        time::Duration,
    };

    #[test]
    fn runs_that_give_the_time_of_the_failure_have_progress_and_a_time_limit() {
        let profiles = profile::built_in();
        let titles = Mutex::new(Vec::new());
        let watch = |title: &str, _: Step<'_>| titles.lock().expect("no panic").push(title.to_owned());
        let times_s = |lab: &Lab<'_>, heartbeat| {
            let mut all = Assumptions::of(lab);
            all.setup.heartbeat = heartbeat;
            let times_s = all.failure_times_s(lab, &FIFO, 2).expect("it runs");
            times_s.map(|times_s| times_s.into_iter().collect::<Vec<_>>())
        };
        let lab = Lab::new(&profiles, 2, false, &watch);
        let times = times_s(&lab, Span::secs(3)).expect("no run is stopped");
        let [(1, first), (2, second)] = times[..] else { panic!("two seeds") };
        assert!(first > 0.0 && second > 0.0 && first.to_bits() != second.to_bits(), "{first} s, {second} s");
        let title = "Fifo, wordcount, before the reduces: without a failure";
        assert_eq!(*titles.lock().expect("no panic"), [title; 2]);
        assert!(lab.runs.lock().expect("no panic").is_empty(), "they are not in the archive");
        let lab = Lab::new(&profiles, 2, false, &|_, _| {}).with_time_limit(Duration::ZERO);
        // With more events, because the limit is checked only once in thousands of them.
        assert_eq!(times_s(&lab, Span::millis(5)), None, "the node would die at another time");
        assert_eq!(lab.stopped.load(Ordering::Relaxed), 2);
    }

    /// The run without a failure is of the policy that is compared: Fair that preempts nothing. In
    /// the paper's experiment Fair would preempt nothing anyway. So here the first job has all slots when
    /// the second arrives, and its maps take ten times as long.
    #[test]
    fn time_of_the_failure_is_that_of_the_compared_policy() {
        let profiles = profile::built_in();
        let lab = Lab::new(&profiles, 2, false, &|_, _| {});
        let mut all = Assumptions::of(&lab);
        all.gap_s = 20.0;
        all.profile(|profile| profile.map_mbps /= 10.0);
        let workload = |seed| all.workload(FAIR.program, seed);
        let maps_done_s = |variant: Variant| {
            let experiment = all.experiment(&workload, None, vec![variant], lab.seed_range(2));
            let comparison = lab.run("", experiment).expect("it runs");
            let of = |outcome: &Outcome| {
                let done = outcome.metrics.job(JobId(1)).and_then(|job| job.maps_done);
                done.expect("the maps end").since(crate::BEGINNING).as_secs_f64()
            };
            comparison.runs[0].iter().map(of).collect::<Vec<f64>>()
        };
        let [compared, ..] = FAIR.policies();
        assert!(compared.params.values().all(|value| value == "never"), "{compared:?}");
        let compared = maps_done_s(compared);
        let preempting = maps_done_s(Variant::plain(FAIR.inner));
        assert!(
            compared.iter().zip(&preempting).all(|(one, other)| one.to_bits() != other.to_bits()),
            "{preempting:?}"
        );
        let times_s = all.failure_times_s(&lab, &FAIR, 2).expect("it runs").expect("no run is stopped");
        let expected: Vec<f64> = compared.into_iter().map(|done_s| 0.45 * done_s).collect();
        assert_eq!(times_s.into_values().collect::<Vec<_>>(), expected);
    }

    /// A node dies in only one of two seeds. In the other there is nothing to recover, and so no change.
    #[test]
    fn changes_of_sort_are_of_the_seeds_in_which_tasks_were_lost() {
        let profiles = profile::built_in();
        let lab = Lab::new(&profiles, 2, false, &|_, _| {});
        let all = Assumptions::of(&lab);
        let died = |seed| (seed == 1).then(|| death(60.0, FAILING_NODE)).into_iter().collect();
        let workload = |seed| all.workload("wordcount", seed);
        let policies = SORT.policies().to_vec();
        let experiment = all.experiment(&workload, Some(&died), policies, lab.seed_range(2));
        let comparison = lab.run("", experiment).expect("it runs");
        let seeds = |ours: &Ours| ours.by_seed.iter().map(Option::is_some).collect::<Vec<_>>();
        let results = Results::ours(&comparison);
        let of = |number: &NumberRow| number.3(results, "fifo").expect("a value");
        assert_eq!(seeds(&first_job(results, "fifo").expect("a value")), [true, true]);
        for (number, is_mixed) in SORT_NUMBERS.iter().zip([true, false, true, false]) {
            let ours = of(number);
            assert_eq!((seeds(&ours), ours.is_mixed), (vec![true, false], is_mixed), "{:?}", number.1);
        }
        let mut out = Reproduction::new("", "");
        out.claim_all(&numbers(&SORT_NUMBERS, &SORT), &comparison);
        let wait = &out.claims().rows[2];
        assert!(wait[3].text().ends_with("; 1 seed)") && wait[5].text().contains("of 1 seed"), "{wait:?}");
    }

    /// A node dies in only one of two seeds. The other seed has no wait, which must not count as a
    /// wait of 0.
    #[test]
    fn run_without_lost_tasks_has_no_recovery_wait() {
        let profiles = profile::built_in();
        let died = |seed| {
            let fault = Fault { at_s: 60.0, for_s: None, what: FaultKind::Node { node: 3 } };
            (seed == 1).then_some(fault).into_iter().collect()
        };
        let run = |faults: Option<&(dyn Fn(u64) -> Vec<Fault> + Sync)>| {
            let experiment = Experiment {
                setup: clusters::chronos(),
                faults,
                workload: &|seed| papers::chronos(&profiles, "wordcount", seed),
                users: Vec::new(),
                variants: vec![Variant::plain("fifo")],
                seeds: 1..3,
                limit: None,
                alone: false,
                monitor: None,
            };
            experiment.run().expect("it runs")
        };
        let (some, none) = (run(Some(&died)), run(None));
        let first: Vec<Option<f64>> = some.runs[0].iter().map(first_job_wait).collect();
        assert!(first[0].is_some_and(|wait| wait > 0.0) && first[1].is_none(), "{first:?}");
        let wait = some.figure_of(0, first_job_wait);
        assert_eq!((wait.seeds, Some(wait.mean)), (1, first[0]), "only one seed has a wait");
        let rows = recovery(&none).json();
        for column in [
            "first job's wait s",
            "second's s",
            "first job's mean wait s",
            "first job's maps local",
            "away from shares s",
        ] {
            assert!(rows[0][column].is_null(), "{column}: {rows}");
        }
        assert_eq!(rows[0]["tasks run again"]["mean"], 0.0);
        assert!(recovery(&some).json()[0]["first job's maps local"]["seeds"] == 1);
    }
}
