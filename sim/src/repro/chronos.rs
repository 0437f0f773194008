//! The Chronos paper: two jobs on 8 nodes, one of which dies (section 5, figures 1 to 4).

use super::{Lab, Number, Reproduction, change};
use crate::{
    Outcome, World, clusters,
    experiment::{Comparison, Experiment, ExperimentError, Variant, makespan_s},
    fault::{Fault, FaultKind},
    profile::Profiles,
    report::{Cell, Table, by_group, charts},
    workload::papers,
};
use mrcore::{Phase, Span, Time, ids::JobId, metrics::JobFigures};

/// When the node dies.
#[derive(Clone, Copy)]
enum FailureTime {
    /// When this fraction of the first job's map phase has passed.
    InMaps(f64),
    /// When this fraction of the time from the end of the first job's maps to its end has passed.
    InReduces(f64),
}

/// Returns the time of the failure in seconds, computed from a run without a failure.
fn failure_time_s(profiles: &Profiles, program: &str, scheduler: &str, at: FailureTime, seed: u64) -> f64 {
    let mut undisturbed = clusters::chronos();
    scheduler.clone_into(&mut undisturbed.scheduler);
    undisturbed.seed = seed;
    let world = World::new(undisturbed, papers::chronos(profiles, program, seed)).ok();
    let Some(outcome) = world.and_then(|world| world.run(None).ok()) else { return 0.0 };
    let since_start = |time: Option<Time>| time.map_or(0.0, |time| time.since(Time(1_000_000)).as_secs_f64());
    let first = outcome.metrics.job(JobId(1));
    let maps_done = since_start(first.and_then(|job| job.maps_done));
    let ended = since_start(first.and_then(|job| job.ended));
    match at {
        FailureTime::InMaps(part) => part * maps_done,
        FailureTime::InReduces(part) => maps_done + part * (ended - maps_done),
    }
}

#[derive(Clone, Copy)]
struct Case<'a> {
    title: &'a str,
    program: &'a str,
    inner: &'a str,
    at: Option<FailureTime>,
}

fn compare(out: &mut Reproduction, lab: &Lab<'_>, case: &Case<'_>) -> Result<Comparison, ExperimentError> {
    let (Case { title, program, inner, at }, Lab { profiles, seeds, .. }) = (*case, lab);
    let faults = |seed: u64| -> Vec<Fault> {
        let at_s = at.map(|at| failure_time_s(profiles, program, inner, at, seed));
        at_s.map(|at_s| Fault { at_s, for_s: None, what: FaultKind::Node { node: 3 } }).into_iter().collect()
    };
    let wrapped = format!("chronos({inner})");
    let never = [("fair.min_share_timeout", "never"), ("fair.fair_share_timeout", "never")];
    let paper = [("early", "lost"), never[0], never[1]];
    let variants = vec![
        Variant::tuned(inner, inner, &never),
        Variant::tuned("chronos", &wrapped, &paper),
        Variant::tuned("chronos, kill", &wrapped, &[paper[0], never[0], never[1], ("preempt", "kill")]),
        Variant::tuned("chronos, literal", &wrapped, &[("literal", "true"), never[0], never[1]]),
    ];
    let experiment = Experiment {
        setup: clusters::chronos(),
        faults: Some(&faults),
        workload: &|seed| papers::chronos(profiles, program, seed),
        users: Vec::new(),
        variants,
        seeds: 1..seeds + 1,
        limit: None,
        alone: false,
        monitor: None,
    };
    let comparison = lab.run(title, &experiment)?;
    out.part(title, recovery(&comparison), charts(&comparison));
    out.part(format!("{title}: completion, s"), by_group(&comparison, makespan_s), String::new());
    Ok(comparison)
}

/// Runs an experiment that is not in the paper: jobs allow speculative attempts, and Chronos
/// acts when heartbeats of the node are late (suspect) instead of when the node is lost.
fn on_suspicion(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let Lab { profiles, seeds, .. } = *lab;
    let at = FailureTime::InMaps(0.45);
    let never = [("fair.min_share_timeout", "never"), ("fair.fair_share_timeout", "never")];
    let lost = [("early", "lost"), never[0], never[1]];
    let columns = ["policy", "first job, s", "second, s", "speculative attempts", "lost slot-seconds"];
    let mut table = Table::new(&columns);
    for inner in ["fifo", "fair"] {
        let wrapped = format!("chronos({inner})");
        let faults = |seed| {
            vec![Fault {
                at_s: failure_time_s(profiles, "wordcount", inner, at, seed),
                for_s: None,
                what: FaultKind::Node { node: 3 },
            }]
        };
        let workload = |seed| {
            let mut workload = papers::chronos(profiles, "wordcount", seed);
            workload.jobs.iter_mut().for_each(|job| job.speculation = true);
            workload
        };
        let variants = vec![
            Variant::tuned(inner, inner, &never),
            Variant::tuned(&format!("{wrapped}, when lost"), &wrapped, &lost),
            Variant::tuned(&format!("{wrapped}, when suspect"), &wrapped, &never),
        ];
        let (users, limit, alone) = (Vec::new(), None, false);
        let experiment = Experiment {
            setup: clusters::chronos(),
            faults: Some(&faults),
            workload: &workload,
            users,
            variants,
            seeds: 1..seeds + 1,
            limit,
            alone,
            monitor: None,
        };
        let comparison = lab.run(&format!("on suspicion, {inner}"), &experiment)?;
        let sum = |at: usize, of: fn(&JobFigures) -> f64| -> Cell {
            comparison.figure(at, |outcome| outcome.metrics.jobs().map(|(_, job)| of(job)).sum()).into()
        };
        for (at, variant) in comparison.variants.iter().enumerate() {
            let elapsed = |group| Cell::from(comparison.mean_over(at, Some(group), makespan_s));
            let speculative_attempts = sum(at, |job| f64::from(job.speculative_attempts));
            let lost = sum(at, |job| job.lost.as_secs_f64());
            table.row(vec![
                variant.label.as_str().into(),
                elapsed("small"),
                elapsed("large"),
                speculative_attempts,
                lost,
            ]);
        }
    }
    out.part("Wordcount, speculative attempts allowed: acting on suspicion", table, String::new());
    Ok(())
}

/// Loses each of the eight nodes in turn, because under Fair the result depends on which job's
/// tasks the lost node ran.
fn lose_each_node(out: &mut Reproduction, lab: &Lab<'_>) -> Result<(), ExperimentError> {
    let profiles = lab.profiles;
    let never = [("fair.min_share_timeout", "never"), ("fair.fair_share_timeout", "never")];
    let lost = [("early", "lost"), never[0], never[1]];
    let variants =
        vec![Variant::tuned("fair", "fair", &never), Variant::tuned("chronos", "chronos(fair)", &lost)];
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
    let at_s = failure_time_s(profiles, "wordcount", "fair", FailureTime::InMaps(0.45), 1);
    for node in 0..8 {
        let experiment = Experiment {
            setup: clusters::chronos(),
            faults: Some(&move |_| vec![Fault { at_s, for_s: None, what: FaultKind::Node { node } }]),
            workload: &|seed| papers::chronos(profiles, "wordcount", seed),
            users: Vec::new(),
            variants: variants.clone(),
            seeds: 1..2,
            limit: None,
            alone: false,
            monitor: None,
        };
        let comparison = lab.run(&format!("node {node}"), &experiment)?;
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
    out.part("Fair, wordcount: each node in turn, seed 1", table, String::new());
    Ok(())
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

/// Returns for how many seconds, between the loss and the end of the first job's maps, the shares
/// of the two jobs in the occupied map slots differed from one half by more than a tenth. `None` if
/// no task was lost, or if there are not two jobs.
fn unfair_s(outcome: &Outcome) -> Option<f64> {
    let metrics = &outcome.metrics;
    let (lost, ends) = (metrics.first_loss()?, metrics.job(JobId(1))?.maps_done?);
    let step = metrics.by_job.step();
    let held: Vec<Vec<f64>> = metrics.by_job.slots(Phase::Map).map(|(_, slots)| slots).collect();
    let [one, other] = held.as_slice() else { return None };
    let steps = (lost.0.div_ceil(step.0) as usize)..(ends.0 / step.0) as usize;
    let at = |slots: &[f64], step: usize| slots.get(step).copied().unwrap_or(0.0);
    let away = |step: &usize| {
        let (one, other) = (at(one, *step), at(other, *step));
        (one - other).abs() > 0.1 * (one + other)
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
            comparison.figure_of(at, unfair_s).into(),
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
    let fifo = Case {
        title: "Fifo, wordcount, before the reduces",
        program: "wordcount",
        inner: "fifo",
        at: Some(FailureTime::InMaps(0.45)),
    };
    let wordcount = compare(&mut out, lab, &fifo)?;
    let versus = |comparison: &Comparison, group, inner| change(comparison, Some(group), "chronos", inner);
    let of = |comparison: &Comparison, label: &str, what: fn(&Outcome) -> Option<f64>| {
        comparison.index(label).map(|at| comparison.figure_of(at, what))
    };
    out.claim(
        "Fifo, wordcount: completion of the first job",
        Number::Change(-0.20),
        versus(&wordcount, "small", "fifo"),
    );
    out.claim(
        "Fifo, wordcount: completion of the second job",
        Number::Change(-0.10),
        versus(&wordcount, "large", "fifo"),
    );
    out.claim("recovery wait under Fifo", Number::Seconds(51.0), of(&wordcount, "fifo", first_job_wait));
    out.claim("recovery wait with Chronos", Number::Seconds(1.5), of(&wordcount, "chronos", first_job_wait));
    out.claim(
        "recovery maps local under Fifo",
        Number::Part(0.125),
        of(&wordcount, "fifo", first_job_rerun_locality),
    );
    out.claim(
        "recovery maps local with Chronos",
        Number::Part(1.0),
        of(&wordcount, "chronos", first_job_rerun_locality),
    );
    let fair = Case { title: "Fair, wordcount, before the reduces", inner: "fair", ..fifo };
    let fair = compare(&mut out, lab, &fair)?;
    out.claim(
        "Fair, wordcount: completion of the first job (paper: 2 to 14% less)",
        Number::Change(-0.14),
        versus(&fair, "small", "fair"),
    );
    out.claim(
        "Fair, wordcount: completion of the second job (paper: 2 to 14% less)",
        Number::Change(-0.02),
        versus(&fair, "large", "fair"),
    );
    out.claim("time off fair share, under Fair", Number::Seconds(48.0), of(&fair, "fair", unfair_s));
    out.claim("time off fair share, with Chronos", Number::Seconds(2.0), of(&fair, "chronos", unfair_s));
    lose_each_node(&mut out, lab)?;
    on_suspicion(&mut out, lab)?;
    let sort = Case {
        title: "Fifo, sort, in the reduces",
        program: "sort",
        inner: "fifo",
        at: Some(FailureTime::InReduces(0.8)),
    };
    let sort = compare(&mut out, lab, &sort)?;
    out.claim(
        "Fifo, sort: completion of the first job",
        Number::Change(-0.55),
        versus(&sort, "small", "fifo"),
    );
    out.claim(
        "Fifo, sort: completion of the second job",
        Number::Change(-0.11),
        versus(&sort, "large", "fifo"),
    );
    out.claim("recovery wait under Fifo, sort", Number::Seconds(325.0), of(&sort, "fifo", first_job_wait));
    out.claim("recovery wait with Chronos, sort", Number::Seconds(2.0), of(&sort, "chronos", first_job_wait));
    let calm = Case { title: "No failure (figure 4b)", program: "wordcount", inner: "fifo", at: None };
    let calm = compare(&mut out, lab, &calm)?;
    out.claim(
        "no failure: completion of all jobs",
        Number::Change(0.0),
        change(&calm, None, "chronos", "fifo"),
    );
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile;

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
