//! Scheduling data as `--json` prints it.

#![allow(clippy::struct_field_names, reason = "the names are those of the JSON")]

use serde::Serialize;
use std::collections::BTreeMap;
#[cfg(feature = "openapi")]
use utoipa::ToSchema;

/// Why a decision was made, or why a job or task waits.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct Reason {
    /// The name of the rule, such as `locality-wait`.
    pub rule: String,
    /// The numbers that the rule used.
    pub numbers: BTreeMap<String, f64>,
    /// The human-readable reason.
    pub text: String,
}

/// A scheduling decision about a job, or another event of the job.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct JobEvent {
    /// When the event happened, in milliseconds since 1970.
    pub at_ms: u64,
    /// The kind of event.
    pub what: String,
    /// The ID of the attempt; empty if the event concerns the whole job.
    pub attempt: String,
    /// The name of the tracker; empty if the event concerns no tracker.
    pub tracker: String,
    /// The reason, if the event is a scheduling decision.
    pub why: Option<Reason>,
    /// The human-readable description of the event.
    pub text: String,
}

/// Why a job or a task waits.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct WhyReply {
    /// The ID of the job or task.
    pub of: String,
    /// The state of the job or task.
    pub state: String,
    /// The policy in use.
    pub scheduler: String,
    /// Why the job or task waits; empty if it does not wait.
    pub waiting_for: Vec<Reason>,
    /// The last events, oldest first.
    pub recent_events: Vec<JobEvent>,
}

impl WhyReply {
    /// Returns whether the job or task has ended.
    pub fn has_ended(&self) -> bool {
        matches!(self.state.as_str(), "succeeded" | "failed" | "killed" | "done")
    }
}

/// All policies, and those in use.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct Schedulers {
    /// The policy in use; None if there is no cluster to ask.
    pub scheduler: Option<String>,
    /// The shadow policy, if any.
    pub shadow: Option<String>,
    /// How long the policy in use takes to decide; None if there is no cluster to ask.
    pub deciding: Option<DecisionStats>,
    /// All policies.
    pub policies: Vec<Policy>,
}

/// The time that a policy has needed for its decisions since the JobTracker started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct DecisionStats {
    /// The number of decision rounds.
    pub rounds: u64,
    /// The total time of all rounds in microseconds.
    pub total_us: u64,
    /// The time of the longest round in microseconds.
    pub longest_us: u64,
}

impl DecisionStats {
    /// Describes the number of rounds, their mean time and the longest time.
    pub fn describe(&self) -> String {
        let mean = self.total_us as f64 / self.rounds.max(1) as f64;
        let rounds = daemon::count(self.rounds, "decision round");
        format!("{rounds}, {mean:.1} us on average, {} us at most", self.longest_us)
    }
}

/// A policy and its parameters.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct Policy {
    /// The name of the policy.
    pub name: String,
    /// What the policy does.
    pub about: String,
    /// The section of `fermata.toml` that sets the parameters of the policy.
    pub section: String,
    /// Whether the policy is in use, alone or as a part of a composed policy.
    pub in_use: bool,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
}

/// A parameter of a policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct Parameter {
    /// The name of the parameter.
    pub key: String,
    /// The current value.
    pub value: String,
    /// The default value.
    pub default: String,
    /// What the parameter does.
    pub about: String,
}

/// How the decisions of the shadow policy differ from those of the policy in use.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct Comparison {
    /// The policy in use.
    pub scheduler: String,
    /// The shadow policy.
    pub shadow: String,
    /// Slots that both policies gave to the same job.
    pub same: u64,
    /// Slots that the shadow policy would have given to another job.
    pub other: u64,
    /// Slots that the policy in use filled and the shadow policy would have left free.
    pub left_free: u64,
    /// Tasks that the shadow policy would have launched when the policy in use left the slot free.
    pub sooner: u64,
    /// Attempts that the policy in use preempted and the shadow policy would have preempted too.
    pub both_preempted: u64,
    /// Attempts that the policy in use preempted.
    pub policy_preempted: u64,
    /// Attempts that the shadow policy would have preempted.
    pub shadow_preempted: u64,
    /// The last differences, oldest first.
    pub differences: Vec<Difference>,
}

/// One decision in which the two policies differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct Difference {
    /// When the decision was made, in milliseconds since 1970.
    pub at_ms: u64,
    /// The tracker that has the slot.
    pub tracker: String,
    /// The kind of slot: `map` or `reduce`.
    pub phase: String,
    /// The decision of the policy in use; None if it did nothing.
    pub policy: Option<Choice>,
    /// The decision of the shadow policy; None if it did nothing.
    pub shadow: Option<Choice>,
}

/// The decision of one of the two policies.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct Choice {
    /// The task that was launched, or the attempt that was preempted.
    pub task: String,
    /// Whether the decision is a preemption.
    pub preempted: bool,
    /// The reason for the decision.
    pub why: Reason,
}

/// The measured speed of a tracker. A value is None until it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct Throughput {
    /// The number of attempts that were measured.
    pub attempts: u32,
    /// Bytes per second of one attempt: input of maps, output of reduces.
    pub bytes_per_second: Option<f64>,
    /// Speed relative to other trackers that ran the same jobs; 1 on average.
    pub speed: Option<f64>,
}

/// Returns the names of the policies in the description of a composed policy: `chronos` and `fair`
/// for `chronos(fair)`.
pub fn policy_names(description: &str) -> impl Iterator<Item = &str> {
    description.split(['(', ')']).map(str::trim).filter(|name| !name.is_empty())
}
