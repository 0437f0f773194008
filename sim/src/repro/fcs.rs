//! The FCS paper: 171 jobs of ten sizes on 45 workers, map-heavy and reduce-heavy; pausing compared
//! with killing; delays; scale (section 5, tables 1 to 4, figures 6 to 15).

use super::{Lab, Number, Reproduction, change, hsrtf::plain_fair};
use crate::{
    Setup, clusters,
    experiment::{Comparison, Experiment, ExperimentError, Figure, Variant, makespan_s, reduce_wait_s},
    report::{Cell, Table, by_group, change_cell, charts, slowdowns, summary},
    workload::{
        papers::{self, Kind},
        synthetic::{self, Arrivals},
    },
};
use mrcore::metrics::stats::mean;

/// Mean seconds between `GridMix` jobs. The paper describes a stress test, but not its number of
/// nodes. With 10 s on twelve nodes, reduce slots are never scarce and all policies give the same
/// result.
const MIX_GAP_S: f64 = 3.0;

fn run_heavy(
    out: &mut Reproduction,
    lab: &Lab<'_>,
    title: &str,
    kinds: &[Kind],
) -> Result<Comparison, ExperimentError> {
    let variants = vec![
        Variant::plain("fcs"),
        plain_fair(),
        Variant::plain("capacity"),
        Variant::tuned("fcs, literal", "fcs", &[("literal", "true")]),
        Variant::tuned("fcs, kill", "fcs", &[("preempt", "kill")]),
    ];
    let experiment = Experiment {
        setup: clusters::fcs(),
        faults: None,
        workload: &|seed| papers::fcs(lab.profiles, kinds, 30.0, 171, seed),
        users: Vec::new(),
        variants,
        seeds: 1..lab.seeds + 1,
        limit: None,
        alone: true,
        monitor: None,
    };
    let comparison = lab.run(title, &experiment)?;
    out.part(title, summary(&comparison), charts(&comparison));
    out.part(format!("{title}: execution by group, s"), by_group(&comparison, makespan_s), String::new());
    let wait = by_group(&comparison, reduce_wait_s);
    out.part(format!("{title}: wait of reduces by group, s"), wait, String::new());
    out.part(format!("{title}: worst slowdown by group"), slowdowns(&comparison), String::new());
    let taken = by_group(&comparison, |job| Some(f64::from(job.preemption.preemptions())));
    out.part(format!("{title}: preemptions of a job, by group"), taken, String::new());
    Ok(comparison)
}

/// Returns the relative change of the worst slowdown from Fair to FCS: for the group that gains
/// most, and as the mean over groups. Both are computed per seed and averaged over seeds.
fn fairness(comparison: &Comparison) -> Option<[Figure; 2]> {
    let (fcs, fair) = (comparison.index("fcs")?, comparison.index("fair")?);
    let groups = comparison.groups.iter().map(|group| {
        let worst = |at| comparison.worst_slowdowns(at, Some(group));
        let both = worst(fcs).into_iter().zip(worst(fair)).filter_map(|(fcs, fair)| fcs.zip(fair));
        both.map(|(fcs, fair)| fcs / fair - 1.0).collect::<Vec<f64>>()
    });
    let groups: Vec<Vec<f64>> = groups.collect();
    let seeds = groups.iter().map(Vec::len).min()?;
    let of_seed = |seed: usize| groups.iter().map(|group| group[seed]).collect::<Vec<f64>>();
    let best: Vec<f64> =
        (0..seeds).map(|seed| of_seed(seed).into_iter().fold(f64::INFINITY, f64::min)).collect();
    let means: Vec<f64> = (0..seeds).map(|seed| mean(&of_seed(seed))).collect();
    Some([Figure::of(&best), Figure::of(&means)])
}

/// Runs jobs like those of `GridMix` under several policies.
fn run_gridmix(
    lab: &Lab<'_>,
    what: &str,
    jobs: u32,
    variants: Vec<Variant>,
) -> Result<Comparison, ExperimentError> {
    let experiment = Experiment {
        setup: Setup { machines: clusters::fcs().machines[..12].to_vec(), ..clusters::fcs() },
        faults: None,
        workload: &|seed| synthetic::gridmix(lab.profiles, Arrivals::Poisson, jobs, MIX_GAP_S, seed),
        users: Vec::new(),
        variants,
        seeds: 1..lab.seeds + 1,
        limit: None,
        alone: false,
        monitor: None,
    };
    lab.run(&format!("{what}, {jobs} jobs"), &experiment)
}

/// Adds a row to a table: the number of jobs, the mean completion time under each of two policies,
/// and the relative change from the second to the first.
fn add_row(table: &mut Table, jobs: u32, comparison: &Comparison) {
    if comparison.variants.len() == 2 {
        let mean = |at| comparison.mean_over(at, None, makespan_s);
        let change = change_cell(comparison.change(None, 0, 1));
        table.row(vec![Cell::count(jobs as usize), mean(0).into(), mean(1).into(), change]);
    }
}

/// Compares pausing with killing for several numbers of jobs.
fn pause_or_kill(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let mut table = Table::new(&["jobs", "fcs, s", "fcs with kill, s", "against kill"]);
    for (jobs, paper) in [(80, -0.113), (130, -0.218), (180, -0.257)] {
        let variants =
            vec![Variant::plain("fcs"), Variant::tuned("fcs, kill", "fcs", &[("preempt", "kill")])];
        let comparison = run_gridmix(lab, "pausing and killing", jobs, variants)?;
        let less = change(&comparison, None, "fcs", "fcs, kill");
        out.claim(format!("pause compared with kill, {jobs} jobs"), Number::Change(paper), less);
        add_row(&mut table, jobs, &comparison);
    }
    out.part("Pausing compared with killing (figure 7)", table, String::new());
    Ok(())
}

/// Varies D, the number of offers that a paused reduce skips before it migrates to another node.
fn vary_skips(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let mut table = Table::new(&["D", "mean completion, s", "moved"]);
    let counts = ["0", "20", "60", "100", "140", "100000"];
    let variants = counts.map(|count| Variant::tuned(count, "fcs", &[("skips", count)]));
    let comparison = run_gridmix(lab, "skips", 100, variants.to_vec())?;
    for (at, variant) in comparison.variants.iter().enumerate() {
        let moved = comparison.figure(at, |outcome| {
            outcome.metrics.jobs().map(|(_, job)| f64::from(job.preemption.migrations)).sum()
        });
        let mean = comparison.mean_over(at, None, makespan_s);
        table.row(vec![variant.label.as_str().into(), mean.into(), moved.into()]);
    }
    out.claim(
        "D = 60 against no migration",
        Number::Change(-0.096),
        change(&comparison, None, "60", "100000"),
    );
    out.part("Skips before a paused reduce is moved (figure 6)", table, String::new());
    Ok(())
}

/// Compares FCS with Fair for an increasing number of jobs.
fn vary_jobs(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let mut table = Table::new(&["jobs", "fcs, s", "fair, s", "against fair"]);
    for (jobs, paper) in [(60, -0.10), (120, f64::NAN), (180, f64::NAN), (240, f64::NAN), (300, -0.28)] {
        let comparison = run_gridmix(lab, "number of jobs", jobs, vec![Variant::plain("fcs"), plain_fair()])?;
        if paper.is_finite() {
            let less = change(&comparison, None, "fcs", "fair");
            out.claim(format!("{jobs} jobs like GridMix's, against Fair"), Number::Change(paper), less);
        }
        add_row(&mut table, jobs, &comparison);
    }
    out.part("Number of jobs (figure 15)", table, String::new());
    Ok(())
}

pub(super) fn reproduce(lab: &Lab<'_>) -> Result<Reproduction, ExperimentError> {
    let mut out = Reproduction::new(
        "FCS at the paper's size",
        "45 workers with 8 map and 4 reduce slots, 128 MB blocks; 171 jobs of ten groups, arrivals Poisson with a \
         mean gap of 30 s. Figures 6, 7 and 15: jobs like GridMix's on 12 of the nodes, one every 3 s.",
    );
    let map = run_heavy(&mut out, lab, "Map-heavy", &papers::FCS_MAP_HEAVY)?;
    let seconds = |comparison: &Comparison, label: &str| {
        comparison.index(label).map(|at| comparison.mean_over(at, None, makespan_s))
    };
    out.claim("map-heavy: FCS against Fair", Number::Change(-0.31), change(&map, None, "fcs", "fair"));
    for (label, paper) in [("fcs", 247.0), ("fair", 359.0), ("capacity", 1061.0)] {
        out.claim(format!("map-heavy: mean under {label}"), Number::Seconds(paper), seconds(&map, label));
    }
    let better = fairness(&map);
    out.claim("map-heavy: worst slowdown, best group", Number::Change(-0.667), better.map(|[best, _]| best));
    let reduce = run_heavy(&mut out, lab, "Reduce-heavy", &papers::FCS_REDUCE_HEAVY)?;
    out.claim("reduce-heavy: FCS against Fair", Number::Change(-0.28), change(&reduce, None, "fcs", "fair"));
    for (label, paper) in [("fcs", 978.0), ("fair", 1364.0), ("capacity", 8829.0)] {
        out.claim(
            format!("reduce-heavy: mean under {label}"),
            Number::Seconds(paper),
            seconds(&reduce, label),
        );
    }
    let better = fairness(&reduce);
    out.claim(
        "reduce-heavy: worst slowdown, mean group",
        Number::Change(-0.352),
        better.map(|[_, mean]| mean),
    );
    pause_or_kill(&mut out, lab)?;
    vary_skips(&mut out, lab)?;
    vary_jobs(&mut out, lab)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile;

    #[test]
    fn every_variant_runs_with_all_seeds() {
        let profiles = profile::built_in();
        let lab = Lab::new(&profiles, 4, false, &|_, _| {});
        let mut out = Reproduction::new("", "");
        let comparison =
            run_heavy(&mut out, &lab, "Small jobs", &papers::FCS_MAP_HEAVY[..1]).expect("it runs");
        assert!(comparison.runs.iter().all(|runs| runs.len() == 4));
        assert_eq!(out.json()["tables"][0]["rows"][0]["completion, mean s"]["seeds"], 4);
    }
}
