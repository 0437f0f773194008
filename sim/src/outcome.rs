//! The result of a run.

use mrcore::{PerPhase, Time, metrics::Metrics};
use schedulers::timed::DecisionStats;
use std::collections::BTreeMap;

/// Maximum number of tasks of a workload whose durations are kept.
pub(crate) const TIMED_TASKS_MAX: usize = 1000;

/// The figures of a run without rule violations.
#[derive(Debug)]
pub struct Outcome {
    /// Name of the policy.
    pub scheduler: String,
    /// Figures of all jobs.
    pub metrics: Metrics,
    /// When the last job ended.
    pub end: Time,
    /// Hash of all facts.
    pub hash: u64,
    /// Number of simulated events.
    pub events: u64,
    /// Number of facts.
    pub facts: u64,
    /// Number of jobs that did not end within the limit, or that could never end.
    pub unfinished: usize,
    /// Those of these jobs that were not submitted.
    pub unsubmitted: Vec<UnsubmittedJob>,
    /// Whether the monitor of the run has stopped it.
    pub stopped: bool,
    /// The task that was started again and again, which ended the run; in one line.
    pub stall: Option<String>,
    /// When each fault that occurred began.
    pub fault_times: Vec<Time>,
    /// How often rare cases occurred, if rules were checked.
    pub cases: Cases,
    /// Seconds that each successful attempt held its slot; empty for a workload of more than 1,000
    /// tasks.
    pub task_times: Vec<f32>,
    /// CPU time that the policy took to decide, or for an external policy the real time until its
    /// answers. The total includes its classifications and linear
    /// programs, which are computed outside of the rounds. The only figure that differs between runs
    /// with the same seed.
    pub deciding: DecisionStats,
}

/// A job that was not submitted before the run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsubmittedJob {
    pub name: String,
    pub group: String,
    pub user: String,
    /// Number of its tasks.
    pub tasks: PerPhase<u32>,
    /// Bytes of its input.
    pub input_bytes: u64,
}

/// A run that violated a rule, whose external policy failed, or whose histories cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at {at}: {what}")]
pub struct RuleViolation {
    /// Simulated time.
    pub at: String,
    /// Description of the violation or failure.
    pub what: String,
}

/// How often rare cases occurred, by name of the case. A case that never occurs is not tested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cases(BTreeMap<&'static str, u64>);

impl Cases {
    /// Returns how often a case occurred.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(name, count)| *self.0.entry(name).or_default() += count);
    }

    pub(crate) fn add(&mut self, name: &'static str, occurred: bool) {
        *self.0.entry(name).or_default() += u64::from(occurred);
    }
}
