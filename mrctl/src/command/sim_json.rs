//! A comparison for programs: every figure of the tables as a number, and every job of every seed.

use serde_json::{Map, Value, json};
use sim::{
    JobFigures, Span,
    experiment::{Comparison, Figure, makespan_s},
    report,
};

/// Every policy, with its figures and jobs.
pub(crate) fn policies(comparison: &Comparison) -> Value {
    let one = |at: usize| {
        json!({
            "policy": comparison.variants[at].label,
            "figures": figures(comparison, at),
            "jobs": jobs(comparison, at),
        })
    };
    (0..comparison.variants.len()).map(one).collect()
}

/// The columns of the main table. Seconds are simulated, but for `deciding_real_s`.
pub(crate) fn figures(comparison: &Comparison, at: usize) -> Value {
    let figure = |figure: Figure| json!(figure.known());
    let over = |of: fn(&JobFigures) -> Option<f64>| figure(comparison.mean_over(at, None, of));
    let total = |of: fn(&JobFigures) -> f64| {
        figure(comparison.figure(at, |outcome| outcome.metrics.jobs().map(|(_, job)| of(job)).sum()))
    };
    let (failed, unfinished) = comparison.undone(at, None);
    let mut all = Map::new();
    all.insert("completion_s".into(), over(makespan_s));
    all.insert("completion_p95_s".into(), figure(report::p95(comparison, at)));
    all.insert("waiting_s".into(), over(|job| job.waiting().map(Span::as_secs_f64)));
    all.insert("reduce_wait_s".into(), over(|job| Some(job.reduce_wait().as_secs_f64())));
    if !comparison.alone.is_empty() {
        all.insert("worst_slowdown".into(), figure(comparison.worst_slowdown(at, None)));
    }
    all.insert("locality".into(), figure(comparison.figure(at, report::locality)));
    all.insert("preempted".into(), total(|job| f64::from(job.taken.preemptions())));
    all.insert("lost_slot_s".into(), total(|job| job.lost.as_secs_f64()));
    all.insert("overhead_slot_s".into(), total(|job| job.overhead().as_secs_f64()));
    all.insert("makespan_s".into(), figure(report::last_end(comparison, at)));
    let deciding = |outcome: &sim::Outcome| outcome.deciding.total.as_secs_f64();
    all.insert("deciding_real_s".into(), figure(comparison.figure(at, deciding)));
    all.insert("failed".into(), failed.into());
    all.insert("unfinished".into(), unfinished.into());
    all.into()
}

/// Every job of every seed. Times are seconds from its submission on; one that is not there did not come.
pub(crate) fn jobs(comparison: &Comparison, at: usize) -> Value {
    let runs = comparison.runs[at].iter().zip(1_u64..);
    let all = runs.flat_map(|(outcome, seed)| {
        outcome.metrics.jobs().map(move |(id, job)| {
            json!({
                "seed": seed,
                "job": id.to_string(),
                "name": job.name,
                "group": job.group,
                "user": job.user,
                "maps": job.tasks.map,
                "reduces": job.tasks.reduce,
                "completion_s": job.makespan().map(Span::as_secs_f64),
                "succeeded": job.succeeded,
                "waiting_s": job.waiting().map(Span::as_secs_f64),
                "reduce_wait_s": job.reduce_wait().as_secs_f64(),
                "locality": job.locality(),
                "preempted": job.taken.preemptions(),
                "lost_slot_s": job.lost.as_secs_f64(),
                "overhead_slot_s": job.overhead().as_secs_f64(),
            })
        })
    });
    all.collect()
}
