//! The errors of the simulator: real and simulated duration of each job, and their distribution.

use anyhow::{Context, Result};
use mrcore::metrics::stats::{max, mean, quantile};
use serde_json::{Value, json};
use sim::{
    Outcome,
    catalog::CaseSize,
    report::{Cell, Table},
    trial::Fidelity,
};
use std::collections::BTreeMap;

/// A run of a workload and its simulations. Simulated values are means over these.
pub(super) struct Comparison {
    pub(super) name: String,
    /// The cluster, the jobs and the offered load of the simulated run.
    size: CaseSize,
    pub(super) fidelity: Fidelity,
    /// Real and simulated number of preemptions.
    pub(super) preemptions: [f64; 2],
    /// The share of the processors' time that the host gave to others during the real run, if known.
    pub(super) steal: Option<f64>,
    /// For each job in the real run: recovered tasks, maps among them, node-local ones among these,
    /// and the longest wait of a recovered task in seconds.
    recovery: Vec<Value>,
}

impl Comparison {
    /// Fails if a job did not succeed, for real or in a simulation.
    pub(super) fn of(
        name: &str,
        size: CaseSize,
        real: &Outcome,
        simulated: &[Outcome],
        steal: Option<f64>,
    ) -> Result<Self> {
        let preemptions = |outcome: &Outcome| -> f64 {
            outcome.metrics.jobs().map(|(_, job)| f64::from(job.preemption.preemptions())).sum()
        };
        let each = simulated.iter().map(|simulated| Fidelity::of(real, simulated));
        let each = each.collect::<Result<Vec<_>, _>>().with_context(|| format!("workload {name}"))?;
        let mut jobs = each.first().map_or_else(Vec::new, |first| first.jobs.clone());
        for (at, (.., simulated_s)) in jobs.iter_mut().enumerate() {
            *simulated_s = mean(&each.iter().map(|one| one.jobs[at].2).collect::<Vec<_>>());
        }
        let recovery = real.metrics.jobs().map(|(_, job)| {
            let recovery = &job.recovery;
            json!({
                "tasks": recovery.tasks,
                "maps": recovery.maps,
                "local": recovery.local,
                "longest_s": recovery.longest.as_secs_f64(),
            })
        });
        Ok(Self {
            name: name.to_owned(),
            size,
            fidelity: Fidelity { jobs },
            preemptions: [preemptions(real), mean(&simulated.iter().map(preemptions).collect::<Vec<_>>())],
            steal,
            recovery: recovery.collect(),
        })
    }

    pub(super) fn json(&self) -> Value {
        let jobs = self.fidelity.jobs.iter().zip(&self.recovery);
        let jobs = jobs.map(|((name, real_s, simulated_s), recovery)| {
            json!({ "job": name, "real_s": real_s, "simulated_s": simulated_s, "recovery": recovery })
        });
        let [real, simulated] = self.preemptions;
        json!({
            "trial": self.name,
            "size": self.size,
            "error": self.fidelity.error(),
            "preemptions": { "real": real, "simulated": simulated },
            "steal": self.steal,
            "jobs": jobs.collect::<Vec<_>>(),
        })
    }
}

/// Returns the mean error over all jobs.
pub(super) fn mean_error(all: &[Comparison]) -> f64 {
    Fidelity { jobs: all.iter().flat_map(|one| one.fidelity.jobs.clone()).collect() }.error()
}

/// Returns by how much the mean of the other real runs of the same job differs from each, as a mean over
/// all jobs: no simulator can be much better. `None` if no job ran twice.
fn real_error(runs: &[&Comparison]) -> Option<f64> {
    let mut by_job: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for run in runs {
        for (job, real_s, _) in &run.fidelity.jobs {
            by_job.entry((&run.name, job)).or_default().push(*real_s);
        }
    }
    let mut errors = Vec::new();
    for real in by_job.values().filter(|real| real.len() > 1) {
        let (sum, others) = (real.iter().sum::<f64>(), (real.len() - 1) as f64);
        errors.extend(real.iter().map(|real_s| ((sum - real_s) / others / real_s - 1.0).abs()));
    }
    (!errors.is_empty()).then(|| mean(&errors))
}

/// Returns the distribution of the errors of each trial and of all, each over all its runs and jobs.
pub(super) fn errors(all: &[Comparison]) -> Table {
    let head = [
        "workload",
        "runs",
        "jobs",
        "mean error",
        "p50",
        "p95",
        "largest",
        "mean difference",
        "mean error of other real runs",
        "preemptions, real",
        "preemptions, simulated",
        "CPU steal, mean",
        "CPU steal, largest",
    ];
    let mut table = Table::new(&head);
    let mut names: Vec<&str> = Vec::new();
    for one in all {
        if !names.contains(&one.name.as_str()) {
            names.push(&one.name);
        }
    }
    let whole = (names.len() > 1).then_some(None);
    for name in names.into_iter().map(Some).chain(whole) {
        let runs: Vec<&Comparison> =
            all.iter().filter(|one| name.is_none_or(|name| one.name == name)).collect();
        let differences: Vec<f64> = runs.iter().flat_map(|run| run.fidelity.differences()).collect();
        let errors: Vec<f64> = differences.iter().map(|difference| difference.abs()).collect();
        let steal: Vec<f64> = runs.iter().filter_map(|run| run.steal).collect();
        let percent = |value: f64| Cell::percent(Some(value));
        let preemptions =
            |at: usize| Cell::count(runs.iter().map(|run| run.preemptions[at]).sum::<f64>().round() as usize);
        table.row(vec![
            name.unwrap_or("all").into(),
            Cell::count(runs.len()),
            Cell::count(errors.len()),
            percent(mean(&errors)),
            percent(quantile(&errors, 0.5)),
            percent(quantile(&errors, 0.95)),
            percent(max(&errors)),
            percent(mean(&differences)),
            Cell::percent(real_error(&runs)),
            preemptions(0),
            preemptions(1),
            Cell::percent((!steal.is_empty()).then(|| mean(&steal))),
            Cell::percent((!steal.is_empty()).then(|| max(&steal))),
        ]);
    }
    table
}

/// Returns, for each job of each trial, the mean durations over all runs.
pub(super) fn durations(all: &[Comparison]) -> Table {
    let mut table = Table::new(&[
        "workload",
        "job",
        "real, mean s",
        "real, shortest s",
        "real, longest s",
        "simulated, mean s",
        "mean error",
    ]);
    let mut jobs: Vec<(&str, &str)> = Vec::new();
    for one in all {
        for (job, ..) in &one.fidelity.jobs {
            if !jobs.contains(&(&one.name, job)) {
                jobs.push((&one.name, job));
            }
        }
    }
    for (workload, job) in jobs {
        let runs = all.iter().filter(|one| one.name == workload);
        let jobs = runs.flat_map(|run| run.fidelity.jobs.iter().filter(|(name, ..)| name == job).cloned());
        let fidelity = Fidelity { jobs: jobs.collect() };
        let real: Vec<f64> = fidelity.jobs.iter().map(|(_, real, _)| *real).collect();
        let simulated: Vec<f64> = fidelity.jobs.iter().map(|(.., simulated)| *simulated).collect();
        let seconds = |value: f64| Cell::Number(Some(value), format!("{value:.1}"));
        table.row(vec![
            workload.into(),
            job.into(),
            seconds(mean(&real)),
            seconds(real.iter().copied().fold(f64::INFINITY, f64::min)),
            seconds(max(&real)),
            seconds(mean(&simulated)),
            Cell::percent(Some(fidelity.error())),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::{
        Span, World,
        trial::{Trial, short},
    };

    fn size() -> CaseSize {
        let Trial { setup, workload, .. } = short();
        CaseSize::of(&setup, &workload)
    }

    fn comparison(name: &str, jobs: &[(&str, f64, f64)]) -> Comparison {
        let jobs =
            jobs.iter().map(|(name, real, simulated)| ((*name).to_owned(), *real, *simulated)).collect();
        Comparison {
            name: name.to_owned(),
            size: size(),
            fidelity: Fidelity { jobs },
            preemptions: [2.0, 3.0],
            steal: (name == "sort").then_some(0.02),
            recovery: Vec::new(),
        }
    }

    fn row(table: &Table, at: usize) -> Vec<String> {
        table.rows[at].iter().map(|cell| cell.text().to_owned()).collect()
    }

    #[test]
    fn runs_with_a_job_that_did_not_succeed_are_refused() {
        let run = |limit: Option<Span>| {
            let Trial { setup, workload, .. } = short();
            World::new(setup, workload).expect("a policy").run(limit).expect("no rule broken")
        };
        let (whole, part) = (run(None), run(Some(Span::secs(5))));
        let of = |real, simulated: &[Outcome]| Comparison::of("sort", size(), real, simulated, None);
        let both = of(&whole, &[run(None), run(None)]).expect("all jobs have succeeded");
        assert_eq!((both.fidelity.jobs.len(), both.fidelity.error()), (3, 0.0));
        let why =
            |compared: Result<Comparison>| format!("{:#}", compared.err().expect("a job has not ended"));
        let expected = |run| {
            format!("workload sort: large-0 did not succeed in the {run}, so its duration cannot be compared")
        };
        assert_eq!(why(of(&whole, &[run(None), run(Some(Span::secs(5)))])), expected("simulation"));
        assert_eq!(why(of(&part, &[run(None)])), expected("real run"));
    }

    #[test]
    fn errors_are_those_of_all_runs_of_a_workload() {
        let all = [
            comparison("sort", &[("a", 10.0, 11.0), ("b", 10.0, 8.0)]),
            comparison("sort", &[("a", 10.0, 10.0), ("b", 10.0, 10.0)]),
            comparison("count", &[("a", 10.0, 15.0)]),
        ];
        assert!((mean_error(&all) - 0.16).abs() < 1e-9);
        let table = errors(&all);
        assert_eq!(row(&table, 0)[..7], ["sort", "2", "4", "7.5%", "5.0%", "18.5%", "20.0%"]);
        assert_eq!(row(&table, 2)[..4], ["all", "3", "5", "16.0%"]);
        assert_eq!(row(&table, 2)[9..], ["6", "9", "2.0%", "2.0%"]);
        assert_eq!(row(&table, 0)[11..], ["2.0%", "2.0%"]);
        assert_eq!(row(&table, 1)[11..], ["-", "-"], "not known");
        assert_eq!((&*row(&table, 0)[8], &*row(&table, 1)[8]), ("0.0%", "-"), "one run has no other");
        let varied = [comparison("sort", &[("a", 10.0, 0.0)]), comparison("sort", &[("a", 12.5, 0.0)])];
        // 12.5 s instead of 10 s, and 10 s instead of 12.5 s.
        assert_eq!(row(&errors(&varied), 0)[8], "22.5%");
        assert_eq!(varied[0].json()["size"], json!(size()));
        assert_eq!(row(&durations(&all), 1)[..6], ["sort", "b", "10.0", "10.0", "10.0", "9.0"]);
    }
}
