//! COSHH: a hundred jobs of Facebook's and Yahoo!'s classes on six unequal resources (sections 5 and 6, tables 6 to 9,
//! figures 5, 6, 9, 10, 13, 14, 17, 18).

use super::{Lab, Number, Reproduction, change};
use crate::{
    clusters,
    experiment::{Comparison, Experiment, ExperimentError, Variant, makespan_s},
    report::{Cell, Table, by_group, charts, locality, summary},
    workload::coshh::{self, Class, FACEBOOK, YAHOO},
};
use mrcore::Span;

/// Mean gap between jobs: the paper does not give it, but says that the cluster is overloaded from job 50 on.
const GAP_S: f64 = 60.0;

/// What our variant is called.
const CHOOSY: &str = "coshh, no slow nodes";

/// What a resource with slow storage gets from others, bytes a second for all its slots.
const SLOW_BYTES_PER_S: f64 = 0.5e6;

/// The policies, told what the users were promised.
fn variants(classes: &[Class], alike: bool) -> Vec<Variant> {
    // As in the paper, which blames Fair for sticky slots: nothing taken back, and no waiting for better places.
    let naive = [
        ("min_share_timeout", "never"),
        ("fair_share_timeout", "never"),
        ("node_wait", "0s"),
        ("rack_wait", "0s"),
    ];
    let told = clusters::told(&coshh::promises(classes, alike));
    let all = [
        Variant::plain("fifo"),
        Variant::tuned("fair", "fair", &naive),
        Variant::plain("coshh"),
        Variant::tuned("coshh, literal", "coshh", &[("literal", "true")]),
        // Ours: not where tasks take ten times as long.
        Variant::tuned(CHOOSY, "coshh", &[("slowest", "10")]),
    ];
    all.into_iter().map(|variant| variant.told(&told)).collect()
}

fn compare(
    out: &mut Reproduction,
    (name, classes): (&str, &[Class]),
    alike: bool,
    lab: &Lab<'_>,
) -> Result<Comparison, ExperimentError> {
    let experiment = Experiment {
        setup: clusters::coshh(6),
        faults: None,
        workload: &|seed| coshh::workload(name, classes, 100, GAP_S, seed),
        users: coshh::promises(classes, alike),
        variants: variants(classes, alike),
        seeds: lab.seeds,
        limit: None,
        alone: false,
    };
    let users = if alike { "users alike" } else { "minimum shares" };
    let comparison = lab.run(&format!("{name}, {users}"), &experiment)?;
    out.part(format!("{name}, {users}"), summary(&comparison), charts(&comparison));
    out.part(format!("{name}, {users}: the paper's metrics"), metrics(&comparison), String::new());
    out.part(
        format!("{name}, {users}: completion by class, s"),
        by_group(&comparison, makespan_s),
        String::new(),
    );
    Ok(comparison)
}

fn metrics(comparison: &Comparison) -> Table {
    let mut table = Table::new(&["policy", "dissatisfaction", "fairness", "locality"]);
    for (at, variant) in comparison.variants.iter().enumerate() {
        table.row(vec![
            variant.label.as_str().into(),
            comparison.figure(at, |outcome| outcome.metrics.shares.dissatisfaction()).into(),
            comparison.figure(at, |outcome| outcome.metrics.shares.fairness()).into(),
            Cell::part(comparison.figure(at, locality)),
        ]);
    }
    table
}

fn tables(out: &mut Reproduction, name: &str, comparison: &Comparison, paper: [[f64; 3]; 3]) {
    let rows = ["dissatisfaction", "fairness", "locality"];
    for (row, figures) in rows.iter().zip(paper) {
        for (label, figure) in ["fifo", "fair", "coshh"].iter().zip(figures) {
            let ours = comparison.index(label).map(|at| match *row {
                "dissatisfaction" => {
                    comparison.figure(at, |outcome| outcome.metrics.shares.dissatisfaction())
                }
                "fairness" => comparison.figure(at, |outcome| outcome.metrics.shares.fairness()),
                _ => comparison.figure(at, locality),
            });
            let paper = if *row == "locality" { Number::Part(figure) } else { Number::Plain(figure) };
            out.claim(format!("{name}: {row} under {label}"), paper, ours);
        }
    }
}

/// What comes to a resource whose storage is slow is slow as well: otherwise resources differ in their speed alone, every class is
/// as much slower on a slow one as any other, and no matching is better than another. Table 3 says 40 kbit/s, at which a run
/// would take years; this is what makes most of the time of classes with much input go into reading it.
fn slow_storage(
    out: &mut Reproduction,
    (name, classes): (&str, &[Class]),
    lab: &Lab<'_>,
) -> Result<Comparison, ExperimentError> {
    let mut setup = clusters::coshh(6);
    setup.beat_every(Span::secs(4 * 3600));
    (setup.tick, setup.config.absence) = (setup.heartbeat, Span(10 * setup.heartbeat.0));
    for machine in setup.machines.iter_mut().filter(|machine| machine.disk < SLOW_BYTES_PER_S) {
        machine.nic = SLOW_BYTES_PER_S;
    }
    let experiment = Experiment {
        setup,
        faults: None,
        workload: &|seed| coshh::workload(name, classes, 100, GAP_S, seed),
        users: coshh::promises(classes, false),
        variants: variants(classes, false),
        seeds: lab.seeds,
        limit: None,
        alone: false,
    };
    let comparison = lab.run(&format!("{name}, slow storage"), &experiment)?;
    out.part(format!("{name}, slow storage is slow for all"), summary(&comparison), charts(&comparison));
    Ok(comparison)
}

/// Completion against the number of jobs, and of resources.
fn scaling(
    out: &mut Reproduction,
    (name, classes): (&str, &[Class]),
    lab: &Lab<'_>,
) -> Result<(), ExperimentError> {
    for by_jobs in [true, false] {
        let steps: &[u32] = if by_jobs { &[5, 20, 40, 60, 80, 100] } else { &[6, 30, 54, 102] };
        let variants = variants(classes, false);
        let mut head = vec![if by_jobs { "jobs" } else { "resources" }];
        head.extend(variants.iter().map(|variant| variant.label.as_str()));
        let mut table = Table::new(&head);
        for step in steps {
            let (jobs, resources) = if by_jobs { (*step, 6) } else { (100, *step) };
            let experiment = Experiment {
                setup: clusters::coshh(resources),
                faults: None,
                workload: &|seed| coshh::workload(name, classes, jobs, GAP_S, seed),
                users: Vec::new(),
                variants: variants.clone(),
                seeds: lab.seeds.min(3),
                limit: None,
                alone: false,
            };
            let by = if by_jobs { "jobs" } else { "resources" };
            let comparison = lab.run(&format!("{name}, {step} {by}"), &experiment)?;
            let mean = |at| Cell::from(comparison.mean_over(at, None, makespan_s));
            let step = Cell::count(*step as usize);
            table.row(std::iter::once(step).chain((0..variants.len()).map(mean)).collect());
        }
        let by = if by_jobs { "number of jobs" } else { "number of resources" };
        out.part(format!("{name}: mean completion by {by}, s"), table, String::new());
    }
    Ok(())
}

/// Completion when predicted times are off by up to so much (figures 21 to 24).
fn errors(
    out: &mut Reproduction,
    (name, classes): (&str, &[Class]),
    lab: &Lab<'_>,
) -> Result<(), ExperimentError> {
    let told = clusters::told(&coshh::promises(classes, false));
    let variants: Vec<Variant> = ["0", "0.1", "0.2", "0.3", "0.4"]
        .iter()
        .map(|error| Variant::tuned(error, "coshh", &[("error", error)]).told(&told))
        .collect();
    let experiment = Experiment {
        setup: clusters::coshh(6),
        faults: None,
        workload: &|seed| coshh::workload(name, classes, 100, GAP_S, seed),
        users: Vec::new(),
        variants,
        seeds: lab.seeds,
        limit: None,
        alone: false,
    };
    let comparison = lab.run(&format!("{name}, predictions that are off"), &experiment)?;
    let mut table = Table::new(&["error up to", "mean completion, s", "against none"]);
    let mean = |at| comparison.mean_over(at, None, makespan_s);
    for (at, variant) in comparison.variants.iter().enumerate() {
        let more = Cell::percent(Some(-mean(at).less_than(mean(0))));
        table.row(vec![variant.label.as_str().into(), mean(at).into(), more]);
    }
    out.part(format!("{name}: predictions that are off (figures 21 to 24)"), table, String::new());
    Ok(())
}

pub(super) fn reproduce(lab: &Lab<'_>) -> Result<Reproduction, ExperimentError> {
    let mut out = Reproduction::new(
        "COSHH at the paper's size",
        "Six resources (table 3) with 31 map and 23 reduce slots; 100 jobs in the proportions of table 4, users of \
         table 5, 128 MB blocks, 3 copies. Arrivals Poisson with a mean gap of 60 s: the paper does not give them.",
    );
    let (facebook, yahoo) = (("Facebook", &FACEBOOK[..]), ("Yahoo!", &YAHOO[..]));
    let shares = compare(&mut out, yahoo, false, lab)?;
    out.claim("Yahoo!: COSHH against FIFO", Number::Change(-0.7449), change(&shares, None, "coshh", "fifo"));
    out.claim("Yahoo!: COSHH against Fair", Number::Change(-0.7973), change(&shares, None, "coshh", "fair"));
    let paper = [[8.618, 7.16e-4, 1.209], [4.974, 0.965, 2.779], [0.956, 0.974, 0.965]];
    tables(&mut out, "Yahoo!", &shares, paper);
    let shares = compare(&mut out, facebook, false, lab)?;
    out.claim(
        "Facebook: COSHH against FIFO",
        Number::Change(-0.3127),
        change(&shares, None, "coshh", "fifo"),
    );
    out.claim(
        "Facebook: COSHH against Fair",
        Number::Change(-0.4241),
        change(&shares, None, "coshh", "fair"),
    );
    let ours = change(&shares, None, CHOOSY, "fair");
    out.claim("Facebook: COSHH without slow nodes against Fair", Number::Change(-0.4241), ours);
    let paper = [[10.782, 8.31e-2, 0.294], [6.646, 2.537, 0.663], [0.977, 0.957, 0.950]];
    tables(&mut out, "Facebook", &shares, paper);
    let alike = compare(&mut out, yahoo, true, lab)?;
    out.claim(
        "Yahoo!, users alike: COSHH against Fair",
        Number::Change(-0.7592),
        change(&alike, None, "coshh", "fair"),
    );
    out.claim(
        "Yahoo!, users alike: Fair against FIFO",
        Number::Change(-0.3772),
        change(&alike, None, "fair", "fifo"),
    );
    let alike = compare(&mut out, facebook, true, lab)?;
    out.claim(
        "Facebook, users alike: COSHH against Fair",
        Number::Change(-0.4297),
        change(&alike, None, "coshh", "fair"),
    );
    out.claim(
        "Facebook, users alike: Fair against FIFO",
        Number::Change(-0.2642),
        change(&alike, None, "fair", "fifo"),
    );
    let slow = slow_storage(&mut out, facebook, lab)?;
    for (other, paper) in [("fifo", -0.3127), ("fair", -0.4241)] {
        let what = format!("Facebook, slow storage: COSHH against {other}");
        out.claim(what, Number::Change(paper), change(&slow, None, "coshh", other));
    }
    for (label, paper) in [("fifo", 0.977), ("fair", 0.957), ("coshh", 0.950)] {
        let ours = slow.index(label).map(|at| slow.figure(at, locality));
        out.claim(format!("Facebook, slow storage: locality under {label}"), Number::Part(paper), ours);
    }
    errors(&mut out, facebook, lab)?;
    errors(&mut out, yahoo, lab)?;
    scaling(&mut out, facebook, lab)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::World;

    /// A run is long, and looked at every twenty minutes: that must not look like tasks that are stuck.
    #[test]
    fn nothing_is_lost_where_nothing_goes_wrong() {
        for variant in variants(&YAHOO, false) {
            let mut setup = clusters::coshh(6);
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

    /// Half of the resources are a hundred times slower: what runs there holds its job up for days.
    #[test]
    fn slow_resources_are_found_out_and_left_alone() {
        let told = clusters::told(&coshh::promises(&FACEBOOK, false));
        let mean_s = |slowest: &str, seed: u64| {
            let variant = Variant::tuned("coshh", "coshh", &[("slowest", slowest)]).told(&told);
            let mut setup = clusters::coshh(6);
            (setup.scheduler, setup.params) = (variant.scheduler, variant.params);
            let workload = coshh::workload("Facebook", &FACEBOOK, 30, GAP_S, seed);
            let outcome = World::new(setup, workload).expect("a policy").run(None).expect("no rule broken");
            let times: Vec<f64> = outcome.metrics.jobs().filter_map(|(_, job)| makespan_s(job)).collect();
            mrcore::metrics::stats::mean(&times)
        };
        // How much it matters depends on where the large jobs happen to begin.
        let of = |slowest| (1..=4).map(|seed| mean_s(slowest, seed)).sum::<f64>() / 4.0;
        let (anywhere, fit) = (of("0"), of("10"));
        assert!(fit < 0.95 * anywhere, "{fit} s against {anywhere} s");
    }
}
