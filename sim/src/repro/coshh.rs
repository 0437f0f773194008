//! The COSHH paper: a hundred jobs of the Facebook and Yahoo! classes on six unequal resources,
//! then fewer jobs, more resources and prediction errors (sections 5 and 6, tables 6 to 9, figures
//! 5 to 24). Section 7 (table 12, figures 25 to 28) used a real cluster and is not reproduced.

use super::{Lab, Number, Reproduction, change};
use crate::{
    Setup, clusters,
    experiment::{Comparison, Experiment, ExperimentError, Figure, Variant, makespan_s},
    report::{Cell, Table, by_group, change_cell, charts, deciding_s, locality, summary},
    workload::coshh::{self, Class, FACEBOOK, YAHOO},
};

/// Mean seconds between jobs. The paper does not give it, but states that the cluster is overloaded
/// from job 50 on.
const GAP_S: f64 = 60.0;

/// The policies that the paper compares.
const PAPER_POLICIES: [&str; 3] = ["fifo", "fair", "coshh"];

/// Label of COSHH with durations of tasks that it learns from tasks that end. In the paper, and
/// under the label `coshh`, they are given.
const LEARNED: &str = "coshh, learned";

/// Label of our variant of COSHH that avoids slow nodes, which is not in the paper.
const AVOIDS_SLOW_NODES: &str = "coshh, learned, no slow nodes";

/// Network rate of a resource with slow storage, bytes per second for all its slots.
const SLOW_BYTES_PER_S: f64 = 0.5e6;

/// The numbers of two figures in the paper: the one with completion times, and the one with
/// scheduling times.
type FigureNumbers = [u32; 2];

/// Results of the paper for a workload. Arrays of three are for FIFO, Fair and COSHH.
struct PaperFigures {
    name: &'static str,
    classes: &'static [Class],
    /// Relative change of the mean completion time: COSHH compared with FIFO, and with Fair.
    changes: [f64; 2],
    /// Relative change of the mean completion time with identical users: COSHH compared with Fair,
    /// and Fair compared with FIFO.
    identical: [f64; 2],
    /// Rows of table 6 or 7: dissatisfaction, fairness, locality.
    metrics: [[f64; 3]; 3],
    /// Rows of table 8 or 9, with identical users: fairness, locality.
    identical_metrics: [[f64; 3]; 2],
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
        changes: [-0.7449, -0.7973],
        identical: [-0.7592, -0.3772],
        metrics: [[8.618, 7.16e-4, 1.209], [4.974, 0.965, 2.779], [0.956, 0.974, 0.965]],
        identical_metrics: [[1.032, 0.504, 0.856], [0.949, 0.979, 0.981]],
        with_shares: [6, 7],
        with_identical_users: [10, 11],
        by_jobs: [13, 15],
        by_resources: [17, 19],
        by_error: [21, 23],
    },
    PaperFigures {
        name: "Facebook",
        classes: &FACEBOOK,
        changes: [-0.3127, -0.4241],
        identical: [-0.4297, -0.2642],
        metrics: [[10.782, 8.31e-2, 0.294], [6.646, 2.537, 0.663], [0.977, 0.957, 0.950]],
        identical_metrics: [[1.188, 0.429, 0.926], [0.934, 0.952, 0.983]],
        with_shares: [5, 8],
        with_identical_users: [9, 12],
        by_jobs: [14, 16],
        by_resources: [18, 20],
        by_error: [22, 24],
    },
];

impl PaperFigures {
    /// Runs `jobs` jobs on a cluster under these policies.
    fn run(
        &self,
        lab: &Lab<'_>,
        what: &str,
        (setup, jobs): (Setup, u32),
        (variants, identical): (Vec<Variant>, bool),
    ) -> Result<Comparison, ExperimentError> {
        let experiment = Experiment {
            setup,
            faults: None,
            workload: &|seed| coshh::workload(self.name, self.classes, jobs, GAP_S, seed),
            users: coshh::min_shares(self.classes, identical),
            variants,
            seeds: 1..lab.seeds + 1,
            limit: None,
            alone: false,
            monitor: None,
        };
        lab.run(&format!("{}, {what}", self.name), &experiment)
    }

    /// Returns the policies for a cluster, with the minimum shares of the users as parameters.
    fn variants(&self, setup: &Setup, identical: bool) -> Vec<Variant> {
        // Without preemption and delay scheduling, as in the paper, which describes Fair with
        // sticky slots.
        let naive = [
            ("min_share_timeout", "never"),
            ("fair_share_timeout", "never"),
            ("node_wait", "0s"),
            ("rack_wait", "0s"),
        ];
        let share_params = clusters::share_params(&coshh::min_shares(self.classes, identical));
        let all = [
            Variant::plain("fifo"),
            Variant::tuned("fair", "fair", &naive),
            self.with_given_durations(Variant::plain("coshh"), setup),
            Variant::tuned(LEARNED, "coshh", &[]),
            self.with_given_durations(
                Variant::tuned("coshh, literal", "coshh", &[("literal", "true")]),
                setup,
            ),
            // Avoids nodes on which a task takes ten times as long as on others.
            Variant::tuned(AVOIDS_SLOW_NODES, "coshh", &[("slowest", "10")]),
        ];
        all.into_iter().map(|variant| variant.with_params(&share_params)).collect()
    }

    /// Adds the durations of the tasks on the machines of a cluster to the parameters of a variant.
    fn with_given_durations(&self, variant: Variant, setup: &Setup) -> Variant {
        variant.with_params(&coshh::given_durations(self.classes, &setup.machines).into_iter().collect())
    }

    /// Returns the policies that the paper compares.
    fn paper_variants(&self, setup: &Setup) -> Vec<Variant> {
        let is_papers = |variant: &Variant| PAPER_POLICIES.contains(&variant.label.as_str());
        self.variants(setup, false).into_iter().filter(is_papers).collect()
    }
}

/// Runs a hundred jobs on the six resources of table 3.
fn compare(
    out: &mut Reproduction,
    paper_figures: &PaperFigures,
    identical: bool,
    lab: &Lab<'_>,
) -> Result<Comparison, ExperimentError> {
    let (users, [completion, deciding]) = if identical {
        ("users alike", paper_figures.with_identical_users)
    } else {
        ("minimum shares", paper_figures.with_shares)
    };
    let title = format!("{}, {users}", paper_figures.name);
    let setup = clusters::coshh(6);
    let variants = paper_figures.variants(&setup, identical);
    let comparison = paper_figures.run(lab, users, (setup, 100), (variants, identical))?;
    let figures = format!("{title} (completion: figure {completion}; deciding: figure {deciding})");
    out.part(figures, summary(&comparison), charts(&comparison));
    out.part(format!("{title}: the paper's metrics"), metrics(&comparison), String::new());
    out.part(format!("{title}: completion by class, s"), by_group(&comparison, makespan_s), String::new());
    Ok(comparison)
}

fn dissatisfaction(comparison: &Comparison, at: usize) -> Figure {
    comparison.figure(at, |outcome| outcome.metrics.shares.dissatisfaction())
}

/// Returns the fairness over all users, as the paper defines it.
fn fairness(comparison: &Comparison, at: usize) -> Figure {
    comparison.figure(at, |outcome| outcome.metrics.shares.fairness_of_all_users())
}

fn fairness_of_users_with_jobs(comparison: &Comparison, at: usize) -> Figure {
    comparison.figure(at, |outcome| outcome.metrics.shares.fairness())
}

fn metrics(comparison: &Comparison) -> Table {
    let mut table =
        Table::new(&["policy", "dissatisfaction", "fairness", "fairness, users with jobs", "locality"]);
    for (at, variant) in comparison.variants.iter().enumerate() {
        table.row(vec![
            variant.label.as_str().into(),
            dissatisfaction(comparison, at).into(),
            fairness(comparison, at).into(),
            fairness_of_users_with_jobs(comparison, at).into(),
            Cell::fraction(comparison.figure_of(at, locality)),
        ]);
    }
    table
}

/// Adds a row of a metrics table of the paper, with our values.
fn claim_row(
    out: &mut Reproduction,
    what: &str,
    comparison: &Comparison,
    paper: [Number; 3],
    of: impl Fn(&Comparison, usize) -> Figure,
) {
    for (label, paper) in PAPER_POLICIES.iter().zip(paper) {
        let ours = comparison.index(label).map(|at| of(comparison, at));
        out.claim(format!("{what} under {label}"), paper, ours);
    }
}

/// Reproduces figures 5 to 8 and tables 6 and 7.
fn with_shares(
    out: &mut Reproduction,
    paper_figures: &PaperFigures,
    lab: &Lab<'_>,
) -> Result<Comparison, ExperimentError> {
    let (comparison, name) = (compare(out, paper_figures, false, lab)?, paper_figures.name);
    let versus = |one, other| change(&comparison, None, one, other);
    for (other, paper) in ["fifo", "fair"].iter().zip(paper_figures.changes) {
        out.claim(
            format!("{name}: mean completion, coshh against {other}"),
            Number::Change(paper),
            versus("coshh", other),
        );
    }
    for label in ["coshh, literal", LEARNED, AVOIDS_SLOW_NODES] {
        out.claim(
            format!("{name}: mean completion, {label} against fair"),
            Number::Change(paper_figures.changes[1]),
            versus(label, "fair"),
        );
    }
    let longer = extra_decision_time(&comparison, "coshh", "fifo");
    let what = format!("{name}: scheduling time of coshh minus that of fifo (wall-clock s)");
    out.claim(what, Number::Seconds(5.0), longer);
    let [first, second, third] = paper_figures.metrics;
    claim_row(
        out,
        &format!("{name}: dissatisfaction"),
        &comparison,
        first.map(Number::Plain),
        dissatisfaction,
    );
    claim_row(out, &format!("{name}: fairness"), &comparison, second.map(Number::Plain), fairness);
    claim_row(out, &format!("{name}: locality"), &comparison, third.map(Number::Part), |comparison, at| {
        comparison.figure_of(at, locality)
    });
    Ok(comparison)
}

/// Reproduces figures 9 to 12 and tables 8 and 9.
fn with_identical_users(
    out: &mut Reproduction,
    paper_figures: &PaperFigures,
    lab: &Lab<'_>,
) -> Result<(), ExperimentError> {
    let (comparison, what) =
        (compare(out, paper_figures, true, lab)?, format!("{}, users alike", paper_figures.name));
    for ((one, other), paper) in
        [("coshh", "fair"), ("fair", "fifo")].into_iter().zip(paper_figures.identical)
    {
        let ours = change(&comparison, None, one, other);
        out.claim(format!("{what}: {one} against {other}"), Number::Change(paper), ours);
    }
    let [first, second] = paper_figures.identical_metrics;
    claim_row(out, &format!("{what}: fairness"), &comparison, first.map(Number::Plain), fairness);
    claim_row(out, &format!("{what}: locality"), &comparison, second.map(Number::Part), |comparison, at| {
        comparison.figure_of(at, locality)
    });
    Ok(())
}

/// Returns how much longer one policy took to decide than another, as a figure over seeds.
fn extra_decision_time(comparison: &Comparison, one: &str, other: &str) -> Option<Figure> {
    let runs = |label| Some(&comparison.runs[comparison.index(label)?]);
    let pairs = runs(one)?.iter().zip(runs(other)?);
    Some(Figure::of(&pairs.map(|(one, other)| deciding_s(one) - deciding_s(other)).collect::<Vec<_>>()))
}

/// Runs the jobs again with slow transfers from resources with slow storage. Otherwise resources
/// differ only in speed, every class is slowed down equally, and no assignment of classes to
/// resources is better than another. Table 3 has 40 kbit/s, at which a block would take seven
/// hours. At the rate used here, reading takes most of the run time of classes with much input.
fn slow_storage(
    out: &mut Reproduction,
    paper_figures: &PaperFigures,
    lab: &Lab<'_>,
) -> Result<(), ExperimentError> {
    let mut setup = clusters::coshh(6);
    for machine in setup.machines.iter_mut().filter(|machine| machine.disk < SLOW_BYTES_PER_S) {
        machine.nic = SLOW_BYTES_PER_S;
    }
    let mut variants = paper_figures.variants(&setup, false);
    // Given durations are those of the computation. Here reading takes longer, so COSHH learns.
    variants.retain(|variant| !["coshh", "coshh, literal"].contains(&variant.label.as_str()));
    let comparison = paper_figures.run(lab, "slow storage", (setup, 100), (variants, false))?;
    let title = format!("{}, slow storage is slow for all", paper_figures.name);
    out.part(title, summary(&comparison), charts(&comparison));
    let what = format!("{}, slow storage", paper_figures.name);
    for (other, paper) in ["fifo", "fair"].iter().zip(paper_figures.changes) {
        let ours = change(&comparison, None, LEARNED, other);
        out.claim(format!("{what}: {LEARNED} against {other}"), Number::Change(paper), ours);
    }
    for (label, paper) in ["fifo", "fair", LEARNED].iter().zip(paper_figures.metrics[2]) {
        let ours = comparison.index(label).map(|at| comparison.figure_of(at, locality));
        out.claim(format!("{what}: locality under {label}"), Number::Part(paper), ours);
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
        let head: Vec<&str> = std::iter::once(what).chain(PAPER_POLICIES).collect();
        let changes = ["coshh against fifo", "coshh against fair"];
        Self { completion: Table::new(&[&head[..], &changes].concat()), deciding: Table::new(&head) }
    }

    fn add(&mut self, step: u32, comparison: &Comparison) {
        let row = |of: &dyn Fn(usize) -> Figure| -> Vec<Cell> {
            let known = PAPER_POLICIES.iter().filter_map(|label| comparison.index(label));
            std::iter::once(Cell::count(step as usize)).chain(known.map(|at| of(at).into())).collect()
        };
        let versus = |other| change_cell(change(comparison, None, "coshh", other));
        let mut completion = row(&|at| comparison.mean_over(at, None, makespan_s));
        completion.extend(["fifo", "fair"].map(versus));
        self.completion.row(completion);
        self.deciding.row(row(&|at| comparison.figure(at, deciding_s)));
    }

    fn report(self, out: &mut Reproduction, title: &str, [completion, deciding]: FigureNumbers) {
        let of = format!("{title}: mean completion, s (figure {completion})");
        out.part(of, self.completion, String::new());
        let of = format!("{title}: scheduling time, wall-clock s (figure {deciding})");
        out.part(of, self.deciding, String::new());
    }
}

/// Varies the number of jobs from 5 to 100. `hundred` is the run with 100 jobs, which is already
/// done.
fn vary_job_count(
    out: &mut Reproduction,
    paper_figures: &PaperFigures,
    hundred: &Comparison,
    lab: &Lab<'_>,
) -> Result<(), ExperimentError> {
    let mut curves = Curves::new("jobs");
    for jobs in [5, 20, 40, 60, 80] {
        let what = format!("{jobs} jobs");
        let setup = clusters::coshh(6);
        let variants = paper_figures.paper_variants(&setup);
        let comparison = paper_figures.run(lab, &what, (setup, jobs), (variants, false))?;
        curves.add(jobs, &comparison);
    }
    curves.add(100, hundred);
    curves.report(out, &format!("{}, by the number of jobs", paper_figures.name), paper_figures.by_jobs);
    Ok(())
}

/// Varies the number of resources, of the types of table 10, from 6 to 102.
fn vary_resource_count(
    out: &mut Reproduction,
    paper_figures: &PaperFigures,
    lab: &Lab<'_>,
) -> Result<(), ExperimentError> {
    let mut curves = Curves::new("resources");
    for (resources, paper_s) in [(6, Some(60.0)), (30, None), (54, None), (102, Some(180.0))] {
        let what = format!("{resources} resources");
        let setup = clusters::coshh_growing(resources);
        let variants = paper_figures.paper_variants(&setup);
        let comparison = paper_figures.run(lab, &what, (setup, 100), (variants, false))?;
        curves.add(resources, &comparison);
        if let Some(paper_s) = paper_s {
            let ours = comparison.index("coshh").map(|at| comparison.figure(at, deciding_s));
            let what = format!("{}, {resources} resources: coshh decides (60 to 180 s)", paper_figures.name);
            out.claim(what, Number::Seconds(paper_s), ours);
        }
    }
    curves.report(
        out,
        &format!("{}, by the number of resources (table 10)", paper_figures.name),
        paper_figures.by_resources,
    );
    Ok(())
}

/// Varies the maximum error of the given durations of tasks.
fn vary_prediction_error(
    out: &mut Reproduction,
    paper_figures: &PaperFigures,
    lab: &Lab<'_>,
) -> Result<(), ExperimentError> {
    let share_params = clusters::share_params(&coshh::min_shares(paper_figures.classes, false));
    let setup = clusters::coshh(6);
    let off = |error: &str| {
        let variant = Variant::tuned(error, "coshh", &[("error", error)]).with_params(&share_params);
        paper_figures.with_given_durations(variant, &setup)
    };
    let variants = ["0", "0.1", "0.2", "0.3", "0.4"].map(off).to_vec();
    let what = "prediction errors";
    let comparison = paper_figures.run(lab, what, (setup, 100), (variants, false))?;
    let mut table = Table::new(&["error up to", "mean completion, s", "against none", "deciding, real s"]);
    for (at, variant) in comparison.variants.iter().enumerate() {
        table.row(vec![
            variant.label.as_str().into(),
            comparison.mean_over(at, None, makespan_s).into(),
            change_cell(comparison.change(None, at, 0).filter(|_| at > 0)),
            comparison.figure(at, deciding_s).into(),
        ]);
    }
    let [completion, deciding] = paper_figures.by_error;
    out.part(
        format!("{}: {what} (figures {completion} and {deciding})", paper_figures.name),
        table,
        String::new(),
    );
    Ok(())
}

pub(super) fn reproduce(lab: &Lab<'_>) -> Result<Reproduction, ExperimentError> {
    let mut out = Reproduction::new(
        "COSHH at the paper's size",
        "Six resources (table 3) with 31 map and 23 reduce slots; 100 jobs in the proportions of table 4, users of \
         table 5, 128 MB blocks, 3 replicas. A job has one task of 20, each of the size that the table gives. Poisson \
         arrivals with a mean gap of 60 s, which the paper does not give. The label coshh has given durations of tasks, as \
         in the paper. \
         Deciding is the time of the policy's decisions on this machine, without classes and linear programs, \
         which are computed separately.",
    );
    let mut shares = Vec::new();
    for paper_figures in &PAPER_FIGURES {
        shares.push(with_shares(&mut out, paper_figures, lab)?);
    }
    for paper_figures in &PAPER_FIGURES {
        with_identical_users(&mut out, paper_figures, lab)?;
    }
    let [_, facebook] = &PAPER_FIGURES;
    slow_storage(&mut out, facebook, lab)?;
    for (paper_figures, shares) in PAPER_FIGURES.iter().zip(&shares) {
        vary_prediction_error(&mut out, paper_figures, lab)?;
        vary_job_count(&mut out, paper_figures, shares, lab)?;
        vary_resource_count(&mut out, paper_figures, lab)?;
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
        let setup = clusters::coshh_growing(6);
        let variants = facebook.paper_variants(&setup);
        let cluster = (setup, 5);
        let comparison = facebook.run(&lab, "5 jobs", cluster, (variants, false)).expect("it runs");
        let mut curves = Curves::new("jobs");
        curves.add(5, &comparison);
        let mut out = Reproduction::new("", "");
        curves.report(&mut out, "Facebook", facebook.by_jobs);
        let json = out.json();
        let [completion, deciding] = [0, 1].map(|at| &json["tables"][at]);
        assert_eq!(completion["title"], "Facebook: mean completion, s (figure 14)");
        assert_eq!(deciding["title"], "Facebook: scheduling time, wall-clock s (figure 16)");
        assert_eq!(completion["rows"][0]["coshh against fair"]["seeds"], 2, "{completion:#}");
        for label in PAPER_POLICIES {
            assert!(deciding["rows"][0][label]["mean"].as_f64() > Some(0.0), "{deciding:#}");
        }
    }

    /// Tasks on slow resources take hours. They must not be considered stuck because of that.
    #[test]
    fn no_work_is_lost_without_faults() {
        let cluster = clusters::coshh(6);
        for variant in PAPER_FIGURES[0].variants(&cluster, false) {
            let mut setup = cluster.clone();
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
