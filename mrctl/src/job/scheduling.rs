//! Scheduling data as `--json` prints it.

#![allow(clippy::struct_field_names, reason = "the names are those of the JSON")]

use serde::Serialize;
use std::collections::BTreeMap;

/// Why a decision was made, or why a job or task waits.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Reason {
    pub(crate) rule: String,
    pub(crate) numbers: BTreeMap<String, f64>,
    pub(crate) text: String,
}

/// A scheduling decision about a job, or another event of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct JobEvent {
    pub(crate) at_ms: u64,
    pub(crate) what: String,
    pub(crate) attempt: String,
    pub(crate) tracker: String,
    pub(crate) why: Option<Reason>,
    pub(crate) text: String,
}

/// Why a job or a task waits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Why {
    pub(crate) of: String,
    pub(crate) state: String,
    pub(crate) scheduler: String,
    pub(crate) waiting_for: Vec<Reason>,
    pub(crate) recent_events: Vec<JobEvent>,
}

impl Why {
    /// Whether the job or task has ended.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state.as_str(), "succeeded" | "failed" | "killed" | "done")
    }
}

/// All policies, and those in use.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Schedulers {
    /// The policy in use; None without a cluster.
    pub(crate) scheduler: Option<String>,
    pub(crate) shadow: Option<String>,
    /// How long the policy in use takes to decide; None without a cluster.
    pub(crate) deciding: Option<DecisionStats>,
    pub(crate) policies: Vec<Policy>,
}

/// The time that a policy has needed for its decisions since the JobTracker started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct DecisionStats {
    pub(crate) rounds: u64,
    pub(crate) total_us: u64,
    pub(crate) longest_us: u64,
}

impl DecisionStats {
    pub(crate) fn describe(&self) -> String {
        let mean = self.total_us as f64 / self.rounds.max(1) as f64;
        let rounds = crate::output::count(self.rounds, "decision round");
        format!("{rounds}, {mean:.1} us on average, {} us at most", self.longest_us)
    }
}

/// A policy and its parameters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Policy {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) section: String,
    pub(crate) in_use: bool,
    pub(crate) parameters: Vec<Parameter>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Parameter {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) default: String,
    pub(crate) about: String,
}

/// How the decisions of the shadow policy differ from those of the policy in use.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Comparison {
    pub(crate) scheduler: String,
    pub(crate) shadow: String,
    pub(crate) same: u64,
    pub(crate) other: u64,
    pub(crate) left_free: u64,
    pub(crate) sooner: u64,
    pub(crate) both_preempted: u64,
    pub(crate) policy_preempted: u64,
    pub(crate) shadow_preempted: u64,
    pub(crate) differences: Vec<Difference>,
}

/// One decision in which the two policies differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Difference {
    pub(crate) at_ms: u64,
    pub(crate) tracker: String,
    pub(crate) phase: String,
    pub(crate) policy: Option<Choice>,
    pub(crate) shadow: Option<Choice>,
}

/// The decision of one of the two policies.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Choice {
    pub(crate) task: String,
    pub(crate) preempted: bool,
    pub(crate) why: Reason,
}

/// The measured speed of a tracker. A value is None until it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Throughput {
    pub(crate) attempts: u32,
    pub(crate) bytes_per_second: Option<f64>,
    pub(crate) speed: Option<f64>,
}
