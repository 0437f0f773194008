//! The hSRTF paper: 31 jobs of three sizes on 58 nodes, in the order of the paper (section 5,
//! figures 2 and 3).

use super::{Lab, Number, Reproduction, change};
use crate::{
    clusters,
    experiment::{Experiment, ExperimentError, Variant, makespan_s},
    report::{by_group, charts, summary},
    workload::papers,
};
use mrcore::{Span, metrics::JobFigures};

/// Returns Hadoop's Fair scheduler as the papers used it: with delay scheduling, without
/// preemption.
pub(super) fn plain_fair() -> Variant {
    Variant::tuned("fair", "fair", &[("min_share_timeout", "never"), ("fair_share_timeout", "never")])
}

pub(super) fn reproduce(lab: &Lab<'_>) -> Result<Reproduction, ExperimentError> {
    let mut out = Reproduction::new(
        "hSRTF at the paper's size",
        "58 nodes with 8 map and 2 reduce slots, 128 MB blocks, 3 replicas; 31 jobs, one every 10 s. The simulation stops after 2,500 s. The time of a job that is still running counts up to then, and figures with such jobs are marked ≥.",
    );
    let kill = [("preempt", "kill")];
    // With equation 2 as printed, hsrtf-pup kills attempts forever and no job ends.
    let (printed, literal) = ([("literal", "true")], [("literal", "true"), ("eq2", "seconds")]);
    let variants = vec![
        Variant::plain("fifo"),
        plain_fair(),
        Variant::plain("hsrtf-pu"),
        Variant::plain("hsrtf-pr"),
        Variant::plain("hsrtf-pup"),
        Variant::plain("hsrtf-prp"),
        Variant::tuned("hsrtf-pup, kill", "hsrtf-pup", &kill),
        Variant::tuned("hsrtf-prp, kill", "hsrtf-prp", &kill),
        Variant::tuned("hsrtf-pu, literal", "hsrtf-pu", &literal),
        Variant::tuned("hsrtf-pr, literal", "hsrtf-pr", &literal),
        Variant::tuned("hsrtf-pup, literal", "hsrtf-pup", &literal),
        Variant::tuned("hsrtf-prp, literal", "hsrtf-prp", &literal),
        Variant::tuned("hsrtf-pu, literal, eq. 2 printed", "hsrtf-pu", &printed),
        Variant::tuned("hsrtf-pr, literal, eq. 2 printed", "hsrtf-pr", &printed),
        // Not in the paper.
        Variant::plain("fcs"),
        Variant::tuned("fcs, literal", "fcs", &printed),
    ];
    let experiment = Experiment {
        setup: clusters::hsrtf(),
        faults: None,
        workload: &|seed| papers::hsrtf(lab.profiles, seed),
        users: Vec::new(),
        variants,
        seeds: 1..lab.seeds + 1,
        limit: Some(Span::secs(2500)),
        alone: true,
        monitor: None,
    };
    let comparison = lab.run("31 jobs", &experiment)?;
    let versus = |group: &str, one: &str, other: &str| change(&comparison, Some(group), one, other);
    for (rules, suffix) in [("", ""), (" (literal)", ", literal")] {
        for (mode, group, other, paper) in [
            ("pr", "small", "fifo", -0.45),
            ("pr", "small", "fair", -0.26),
            ("pr", "large", "fifo", 0.10),
            ("pr", "large", "fair", 0.002),
            ("pu", "small", "fifo", -0.43),
        ] {
            let what = format!("completion of {group} jobs, hsrtf-{mode}{rules} against {other}");
            let ours = versus(group, &format!("hsrtf-{mode}{suffix}"), other);
            out.claim(what, Number::Change(paper), ours);
        }
    }
    let locality = |label: &str| {
        let at = comparison.index(label)?;
        Some(comparison.mean_over(at, Some("small"), JobFigures::locality))
    };
    out.claim("locality of small jobs, hsrtf-pr", Number::Part(0.05), locality("hsrtf-pr"));
    out.claim("locality of small jobs, fair", Number::Part(1.0), locality("fair"));
    let waiting = |job: &JobFigures| job.waiting().map(Span::as_secs_f64);
    let execution = |job: &JobFigures| job.execution().map(Span::as_secs_f64);
    out.part("All policies", summary(&comparison), charts(&comparison));
    out.part("Completion by size, s (figure 2, a to c)", by_group(&comparison, makespan_s), String::new());
    out.part("Waiting by size, s (figure 2, d to f)", by_group(&comparison, waiting), String::new());
    out.part("Execution by size, s (figure 2, g to i)", by_group(&comparison, execution), String::new());
    out.part("Locality by size (figure 3)", by_group(&comparison, JobFigures::locality), String::new());
    let lost = by_group(&comparison, |job| Some(job.lost.as_secs_f64()));
    out.part("Slot seconds that a job loses, by size", lost, String::new());
    let overhead = by_group(&comparison, |job| Some(job.overhead().as_secs_f64()));
    out.part("Slot seconds of overhead of a job, by size", overhead, String::new());
    Ok(out)
}
