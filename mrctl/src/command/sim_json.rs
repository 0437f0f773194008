//! Returns a comparison of policies as JSON: how it was made, all values of the tables as numbers,
//! and all jobs of all seeds.

use super::provenance::Provenance;
use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value, json};
use sim::{
    BEGINNING, JobFigures, Phase, Span, UnsubmittedJob,
    catalog::{Case, CaseSize, Request},
    experiment::{Comparison, Figure, makespan_s, reduce_wait_s},
    report,
    workload::OfferedLoad,
};
use std::{ops::Range, path::PathBuf};

/// How a comparison was made.
#[derive(Debug, Serialize)]
pub(crate) struct Details {
    #[serde(flatten)]
    pub(crate) provenance: Provenance,
    /// Name or file of the workload.
    workload: String,
    /// The size of the workload in the first seed.
    #[serde(flatten)]
    pub(crate) size: CaseSize,
    /// The offered load in each seed, for [`job_rows`]; none if all jobs arrive at once.
    #[serde(skip)]
    offered_loads: Vec<Option<OfferedLoad>>,
}

impl Details {
    /// `size` is that of the first seed. The workloads of the other seeds are generated only if
    /// `has_rows`: if [`job_rows`] is called. `files` are those that the result depends on.
    pub(crate) fn of(
        case: &Case,
        request: &Request,
        (size, has_rows): (CaseSize, bool),
        seeds: &Range<u64>,
        files: &[PathBuf],
    ) -> Result<Self> {
        let mut provenance = Provenance::of_this_process().with_files(files.iter().map(PathBuf::as_path))?;
        provenance.scales.extend(size.scale.map(|scale| scale.to_string()));
        let others = if has_rows { seeds.start + 1..seeds.end } else { 0..0 };
        let others = others.map(|seed| case.size(seed).offered_load);
        let offered_loads = std::iter::once(size.offered_load).chain(others).collect();
        let workload = request.workload.clone();
        Ok(Self { provenance, workload, size, offered_loads })
    }
}

/// Returns all results of `mrctl sim`: how they were made, the seeds, and one row per policy.
pub(crate) fn comparison(details: &Details, comparison: &Comparison) -> Value {
    let mut all = json!(details);
    all["seeds"] = json!(comparison.seeds);
    all["policies"] = rows(comparison);
    all
}

/// Returns one row per policy. `completion_s` is the mean over jobs, in the row, in its `groups` and
/// in its `figures`. `makespan_s` is the time from the first submission to the end of the last job,
/// and only `figures` has it.
fn rows(comparison: &Comparison) -> Value {
    let change = |at| comparison.difference(at, 0).filter(|_| at > 0);
    let completion = |at, group| comparison.mean_over(at, group, makespan_s).known();
    let rows = comparison.variants.iter().zip(&comparison.runs).enumerate();
    let rows = rows.map(|(at, (variant, runs))| {
        let groups = comparison.groups.iter().map(|group| {
            let figure = completion(at, Some(group.as_str()));
            let (mean, half_width) =
                (figure.map(|figure| figure.mean), figure.and_then(|figure| figure.half_width));
            (group.clone(), json!({ "completion_s": mean, "half_width_s": half_width }))
        });
        let all = completion(at, None);
        let hashes: Vec<String> = runs.iter().map(|outcome| format!("{:016x}", outcome.hash)).collect();
        json!({
            "policy": variant.label,
            "completion_s": all.map(|figure| figure.mean),
            "half_width_s": all.and_then(|figure| figure.half_width),
            "against_first": change(at).map(|change| json!({
                "change": change.mean,
                "low": change.low,
                "high": change.high,
                "jobs_left_out": comparison.left_out(None, at, 0),
            })),
            "locality": comparison.figure_of(at, report::locality).known().map(|figure| figure.mean),
            "groups": groups.collect::<Map<_, _>>(),
            "traces": hashes,
            "events": runs.iter().map(|outcome| outcome.events).sum::<u64>(),
            "figures": figures(comparison, at),
            "jobs": jobs(comparison, at),
        })
    });
    rows.collect()
}

/// Returns the metrics and the jobs of every policy.
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

/// Returns the columns of the main table. Seconds are simulated time, except `deciding_s`.
pub(crate) fn figures(comparison: &Comparison, at: usize) -> Value {
    let figure = |figure: Figure| json!(figure.known());
    let over = |of: fn(&JobFigures) -> Option<f64>| figure(comparison.mean_over(at, None, of));
    let total = |of: fn(&JobFigures) -> f64| {
        figure(comparison.figure(at, |outcome| outcome.metrics.jobs().map(|(_, job)| of(job)).sum()))
    };
    let (failed, unfinished) = comparison.unfinished(at, None);
    let mut all = Map::new();
    all.insert("completion_s".into(), over(makespan_s));
    all.insert("completion_p95_s".into(), figure(report::p95(comparison, at)));
    all.insert("waiting_s".into(), over(|job| job.waiting().map(Span::as_secs_f64)));
    all.insert("reduce_wait_s".into(), over(reduce_wait_s));
    if !comparison.alone.is_empty() {
        all.insert("worst_slowdown".into(), figure(comparison.worst_slowdown(at, None)));
    }
    all.insert("locality".into(), figure(comparison.figure_of(at, report::locality)));
    for (name, phase) in [("map_slots_used", Phase::Map), ("reduce_slots_used", Phase::Reduce)] {
        all.insert(name.into(), figure(comparison.utilisation(at, phase)));
    }
    all.insert("preempted".into(), total(|job| f64::from(job.preemption.preemptions())));
    all.insert("lost_slot_s".into(), total(|job| job.lost.as_secs_f64()));
    all.insert("overhead_slot_s".into(), total(|job| job.overhead().as_secs_f64()));
    all.insert("makespan_s".into(), figure(report::makespan(comparison, at)));
    all.insert("deciding_s".into(), figure(comparison.figure(at, report::deciding_s)));
    let stopped = comparison.runs[at].iter().filter(|outcome| outcome.stopped).count();
    all.insert("stopped_runs".into(), stopped.into());
    let stalls = comparison.runs[at].iter().zip(&comparison.seeds);
    let stalls =
        stalls.filter_map(|(outcome, seed)| Some(json!({ "seed": seed, "why": outcome.stall.as_ref()? })));
    all.insert("stalls".into(), stalls.collect());
    all.insert("failed".into(), failed.into());
    all.insert("unfinished".into(), unfinished.into());
    all.into()
}

/// Returns all jobs of all seeds, in each seed first those that were submitted. Times are seconds since
/// the submission of the job, except `submitted_s`, which is since the start of the run. A value that
/// does not exist is null, such as `reduce_wait_s` of a job without reduces.
pub(crate) fn jobs(comparison: &Comparison, at: usize) -> Value {
    let runs = comparison.runs[at].iter().zip(&comparison.seeds);
    let all = runs.flat_map(|(outcome, seed)| {
        let submitted = outcome.metrics.jobs().map(move |(id, job)| {
            json!({
                "seed": seed,
                "job": id.to_string(),
                "name": job.name,
                "group": job.group,
                "user": job.user,
                "maps": job.tasks.map,
                "reduces": job.tasks.reduce,
                "input_bytes": job.input_bytes,
                "submitted_s": job.submitted.since(BEGINNING).as_secs_f64(),
                "completion_s": job.makespan().map(Span::as_secs_f64),
                "succeeded": job.succeeded,
                "failure": job.failure,
                "waiting_s": job.waiting().map(Span::as_secs_f64),
                "reduce_wait_s": reduce_wait_s(job),
                "locality": job.locality(),
                "preempted": job.preemption.preemptions(),
                "lost_slot_s": job.lost.as_secs_f64(),
                "overhead_slot_s": job.overhead().as_secs_f64(),
            })
        });
        submitted.chain(outcome.unsubmitted.iter().map(move |job| not_submitted(job, *seed)))
    });
    all.collect()
}

/// Returns a job that was not submitted before the run ended, with the keys of the others.
fn not_submitted(job: &UnsubmittedJob, seed: u64) -> Value {
    json!({
        "seed": seed,
        "job": null,
        "name": job.name,
        "group": job.group,
        "user": job.user,
        "maps": job.tasks.map,
        "reduces": job.tasks.reduce,
        "input_bytes": job.input_bytes,
        "submitted_s": null,
        "completion_s": null,
        "succeeded": false,
        "failure": null,
        "waiting_s": null,
        "reduce_wait_s": null,
        "locality": null,
        "preempted": 0,
        "lost_slot_s": 0.0,
        "overhead_slot_s": 0.0,
    })
}

/// Returns the rows of CSV and Parquet: every job of every policy and seed, with its policy and with
/// the utilisation and the offered load of its run.
pub(crate) fn job_rows(details: &Details, comparison: &Comparison) -> Vec<Map<String, Value>> {
    let mut rows = Vec::new();
    for (at, variant) in comparison.variants.iter().enumerate() {
        let used = Phase::BOTH.map(|phase| comparison.utilisations(at, phase));
        let Value::Array(jobs) = jobs(comparison, at) else { continue };
        for mut job in jobs {
            let run = comparison.seeds.iter().position(|seed| job["seed"] == *seed);
            let run = run.expect("every job has the seed of its run");
            let load = details.offered_loads.get(run).copied().flatten();
            job["policy"] = variant.label.as_str().into();
            job["map_slots_used"] = json!(used[0][run]);
            job["reduce_slots_used"] = json!(used[1][run]);
            job["offered_load_map"] = json!(load.map(|load| load.map));
            job["offered_load_reduce"] = json!(load.map(|load| load.reduce));
            rows.extend(job.as_object().cloned());
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::{
        PerPhase, Setup,
        experiment::{Experiment, Variant},
        profile,
        workload::papers,
    };

    #[test]
    fn rows_have_the_utilisation_and_offered_load_of_their_seed() {
        let request = Request { workload: "gridmix".into(), jobs: Some(4), ..Request::default() };
        let case = sim::catalog::open(&request).expect("a name");
        let details = Details::of(&case, &request, (case.size(1), true), &(1..3), &[]).expect("no files");
        let experiment = Experiment {
            setup: case.setup,
            faults: None,
            workload: &case.workload,
            users: Vec::new(),
            variants: vec![Variant::plain("fifo")],
            seeds: 1..3,
            limit: None,
            alone: false,
            monitor: None,
        };
        let comparison = experiment.run().expect("it runs");
        let rows = job_rows(&details, &comparison);
        assert_eq!(rows.len(), 8);
        for (row, seed) in [(&rows[0], 0), (&rows[7], 1)] {
            assert_eq!((&row["policy"], &row["seed"]), (&json!("fifo"), &json!(seed + 1)));
            let load = details.offered_loads[seed].expect("jobs arrive over time");
            assert_eq!(row["offered_load_map"], json!(load.map));
            assert_eq!(row["offered_load_reduce"], json!(load.reduce));
            assert_eq!(row["map_slots_used"], json!(comparison.utilisations(0, Phase::Map)[seed]));
        }
        assert_ne!(rows[0]["reduce_slots_used"], rows[7]["reduce_slots_used"]);
        let csv = super::super::sim_csv::jobs(&details, &comparison);
        let header = csv.lines().nth(1).expect("names of the columns");
        assert!(
            header.starts_with("policy,completion_s,") && header.contains(",offered_load_map,"),
            "{header}"
        );
        assert!(csv.lines().nth(2).is_some_and(|row| row.starts_with("fifo,")), "{csv}");
    }

    #[test]
    fn jobs_that_were_not_submitted_are_unfinished_and_have_rows() {
        let request = Request { workload: "gridmix".into(), jobs: Some(6), ..Request::default() };
        let case = sim::catalog::open(&request).expect("a name");
        let submissions: Vec<Span> = (case.workload)(1).jobs.iter().map(|job| job.at).collect();
        let experiment = Experiment {
            setup: case.setup,
            faults: None,
            workload: &case.workload,
            users: Vec::new(),
            variants: vec![Variant::plain("fifo")],
            seeds: 1..2,
            limit: Some(Span(submissions[2].0 + 1_000)),
            alone: false,
            monitor: None,
        };
        let comparison = experiment.run().expect("it runs");
        let rows = jobs(&comparison, 0);
        let rows = rows.as_array().expect("rows");
        assert_eq!((rows.len(), &rows[0]["submitted_s"]), (6, &json!(submissions[0].as_secs_f64())));
        let unfinished = rows.iter().filter(|row| row["completion_s"].is_null()).count();
        assert_eq!(figures(&comparison, 0)["unfinished"], unfinished);
        let last = rows[5].as_object().expect("a row");
        assert_eq!((&last["job"], &last["submitted_s"]), (&Value::Null, &Value::Null));
        assert!(last["maps"].as_u64() > Some(0) && last["succeeded"] == false, "{last:?}");
        assert!(last.keys().eq(rows[0].as_object().expect("a row").keys()));
    }

    #[test]
    fn columns_and_keys_of_results_are_documented_with_their_units() {
        let page = include_str!("../../../docs/research/simulator.md");
        let request = Request { workload: "gridmix".into(), jobs: Some(2), ..Request::default() };
        let case = sim::catalog::open(&request).expect("a name");
        let experiment = Experiment {
            setup: case.setup,
            faults: None,
            workload: &case.workload,
            users: Vec::new(),
            variants: vec![Variant::plain("fifo"), Variant::plain("fair")],
            seeds: 1..2,
            limit: None,
            alone: true,
            monitor: None,
        };
        let comparison = experiment.run().expect("it runs");
        for column in &report::summary(&comparison).head[1..] {
            let units = [", mean s", " slot-seconds", " s"];
            let name = units.iter().find_map(|unit| column.strip_suffix(unit)).unwrap_or(column);
            let is_name = |cell: &str| cell.contains(&format!("`{name}`"));
            let mut rows = page.lines().map(|line| line.split(" | ").collect::<Vec<_>>());
            let has_unit = |row: &Vec<&str>| matches!(row[..], [first, "s" | "%" | "ratio" | "jobs" | "slots" | "slot-seconds", _] if is_name(first));
            assert!(rows.any(|row| has_unit(&row)), "{column} has no row with a unit");
        }
        let rows = rows(&comparison);
        let keys = |of: &Value| of.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
        let (row, against) = (&rows[0], &rows[1]["against_first"]);
        for key in [keys(row), keys(&row["figures"]), keys(&row["jobs"][0]), keys(against)].concat() {
            assert!(page.contains(&format!("`{key}`")), "{key} is not documented");
        }
    }

    #[test]
    fn json_keys_are_unique() {
        let profiles = profile::built_in();
        let experiment = Experiment {
            setup: Setup::even(20, PerPhase { map: 8, reduce: 2 }, "fifo"),
            faults: None,
            workload: &|seed| {
                let mut workload = papers::hsrtf(&profiles, seed);
                workload
                    .jobs
                    .iter_mut()
                    .filter(|job| job.group == "small")
                    .for_each(|job| job.reduces.clear());
                workload
            },
            users: Vec::new(),
            variants: vec![Variant::plain("fifo"), Variant::plain("fair")],
            seeds: 1..2,
            limit: None,
            alone: false,
            monitor: None,
        };
        let json = rows(&experiment.run().expect("it runs"));
        for row in json.as_array().expect("a row for each policy") {
            assert_eq!(row["completion_s"], row["figures"]["completion_s"]["mean"]);
            assert_eq!(
                (&row["makespan_s"], &row["groups"]["large"]["makespan_s"]),
                (&Value::Null, &Value::Null)
            );
            let seconds = |value: &Value| value.as_f64().expect("a number");
            let (mean, makespan) = (&row["completion_s"], &row["figures"]["makespan_s"]["mean"]);
            assert!(seconds(makespan) > 1.5 * seconds(mean), "makespan {makespan}, mean completion {mean}");
            assert!(seconds(&row["groups"]["large"]["completion_s"]) > 0.0);
            let jobs = row["jobs"].as_array().expect("jobs");
            assert_eq!(jobs[0]["input_bytes"], 256_u64 * 128_000_000, "256 blocks");
            assert!(jobs.iter().all(|job| job["failure"].is_null() && job["succeeded"] == true));
            let waiting_for = |job: &&Value| job["reduce_wait_s"].is_null();
            assert_eq!(
                jobs.iter().filter(waiting_for).count(),
                20,
                "small jobs have no reduces, so reduce_wait_s is null"
            );
        }
    }
}
