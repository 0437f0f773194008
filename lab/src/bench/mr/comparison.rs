//! Compares a job with the plain program that does the same work, round by round.

use super::{cluster::RunCost, usage::Usage};
use crate::bench::measurement::{Limit, Measurement, median};

/// The results of all rounds, for the job and for the plain program.
#[derive(Default)]
pub(super) struct Comparison {
    jobs: Vec<RunCost>,
    phases: Vec<[f64; 2]>,
    plain: Vec<RunCost>,
}

impl Comparison {
    pub(super) fn add(&mut self, job: RunCost, phases: [f64; 2], plain: RunCost) {
        self.jobs.push(job);
        self.phases.push(phases);
        self.plain.push(plain);
    }

    /// Returns the median duration of the jobs in seconds.
    pub(super) fn wall(&self) -> f64 {
        median(self.jobs.iter().map(|ran| ran.wall).collect())
    }

    /// Returns the median CPU seconds of the jobs.
    pub(super) fn cpu(&self) -> f64 {
        median(self.jobs.iter().map(|ran| ran.usage.total()).collect())
    }

    /// Returns the CPU time with its limit, the duration, and the CPU time by kind of process.
    pub(super) fn figures(&self, name: &str, most: f64) -> Vec<Measurement> {
        let plain = |of: fn(&RunCost) -> f64| Some(median(self.plain.iter().map(of).collect()));
        let cpu = Measurement {
            limit: Some(Limit::AtMostOfBaseline(most)),
            baseline: plain(|ran| ran.usage.total_of("client")),
            baseline_name: Some("the plain program on two threads, same input, same run; CPU seconds"),
            wall_seconds: self.wall(),
            daemon_cpu_seconds: self.cpu(),
            ..Measurement::unlimited(format!("{name}, CPU time"), self.cpu(), "s")
        };
        let wall = Measurement {
            baseline: plain(|ran| ran.wall),
            baseline_name: Some("the plain program"),
            ..Measurement::unlimited(format!("{name}, time"), self.wall(), "s")
        };
        let mut figures = vec![cpu, wall];
        for (phase, at) in [("maps", 0), ("reduces", 1)] {
            let seconds = median(self.phases.iter().map(|phases| phases[at]).collect());
            figures.push(Measurement::unlimited(format!("{name}: {phase}, by their counters"), seconds, "s"));
        }
        for kind in ["tasks", "datanode", "tasktracker", "namenode", "jobtracker", "client"] {
            let seconds = median(self.jobs.iter().map(|ran| ran.usage.total_of(kind)).collect());
            figures.push(Measurement::unlimited(format!("{name}: {kind}"), seconds, "s"));
        }
        figures
    }
}

impl Usage {
    fn total_of(&self, kind: &str) -> f64 {
        self.0.get(kind).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn job_is_compared_with_the_plain_program() {
        let ran = |wall, seconds: &[(&'static str, f64)]| RunCost {
            wall,
            usage: Usage(seconds.iter().copied().collect::<BTreeMap<_, _>>()),
        };
        let mut comparison = Comparison::default();
        comparison.add(
            ran(4.0, &[("tasks", 3.0), ("client", 1.0)]),
            [2.0, 1.0],
            ran(1.0, &[("client", 2.0)]),
        );
        let figures = comparison.figures("x", 2.0);
        assert_eq!((figures[0].is_limit_met(), figures[1].is_limit_met()), (Some(true), None));
        assert!((figures[0].value - 4.0).abs() < 1e-9 && (figures[1].value - 4.0).abs() < 1e-9);
        assert_eq!(comparison.figures("x", 1.9)[0].is_limit_met(), Some(false));
    }
}
