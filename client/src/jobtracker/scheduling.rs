//! Calls about scheduling.

use super::JobTracker;
use crate::rpc;
use crate::{
    Result,
    scheduling::{
        Choice, Comparison, DecisionStats, Difference, JobEvent, Parameter, Policy, Reason, Schedulers,
        Throughput, WhyReply, policy_names,
    },
};
use proto::mr as pb;

impl JobTracker {
    /// Returns why a job or a task waits.
    pub async fn why(&self, of: &str) -> Result<WhyReply> {
        let reply = self.query(rpc::why, pb::WhyRequest { of: of.into() }).await?;
        Ok(WhyReply {
            of: reply.of,
            state: reply.state,
            scheduler: reply.scheduler,
            waiting_for: reply.waiting_for.into_iter().map(reason).collect(),
            recent_events: reply.recent_events.into_iter().map(job_event).collect(),
        })
    }

    /// Returns all policies, and those in use.
    pub async fn schedulers(&self) -> Result<Schedulers> {
        let reply = self.query(rpc::schedulers, pb::SchedulersRequest {}).await?;
        let policies = reply.policies.into_iter().map(|own| policy(own, &reply.scheduler)).collect();
        let shadow = Some(reply.shadow).filter(|name| !name.is_empty());
        let deciding =
            DecisionStats { rounds: reply.rounds, total_us: reply.deciding_us, longest_us: reply.longest_us };
        Ok(Schedulers { scheduler: Some(reply.scheduler), shadow, deciding: Some(deciding), policies })
    }

    /// Returns how the decisions of the shadow policy differ from those of the policy in use.
    pub async fn shadow(&self) -> Result<Comparison> {
        let reply = self.query(rpc::shadow, pb::ShadowRequest {}).await?;
        Ok(Comparison {
            scheduler: reply.scheduler,
            shadow: reply.shadow,
            same: reply.same,
            other: reply.other,
            left_free: reply.left_free,
            sooner: reply.sooner,
            both_preempted: reply.both_preempted,
            policy_preempted: reply.policy_preempted,
            shadow_preempted: reply.shadow_preempted,
            differences: reply.differences.into_iter().map(difference).collect(),
        })
    }
}

fn reason(reason: pb::Reason) -> Reason {
    let numbers = reason.numbers.into_iter().map(|number| (number.name, number.value)).collect();
    Reason { rule: reason.rule, numbers, text: reason.text }
}

fn job_event(event: pb::JobEvent) -> JobEvent {
    JobEvent {
        at_ms: event.at_ms,
        what: event.what,
        attempt: event.attempt,
        tracker: event.tracker,
        why: event.why.map(reason),
        text: event.text,
    }
}

fn policy(policy: pb::Policy, in_use: &str) -> Policy {
    let parameter = |own: pb::Parameter| Parameter {
        key: own.key,
        value: own.value,
        default: own.default,
        about: own.about,
    };
    Policy {
        in_use: policy_names(in_use).any(|name| name == policy.name),
        name: policy.name,
        about: policy.about,
        section: policy.section,
        parameters: policy.parameters.into_iter().map(parameter).collect(),
    }
}

fn difference(difference: pb::ShadowDifference) -> Difference {
    let choice = |own: pb::Choice| Choice {
        task: own.task,
        preempted: own.preempted,
        why: own.why.map(reason).unwrap_or_default(),
    };
    Difference {
        at_ms: difference.at_ms,
        tracker: difference.tracker,
        phase: difference.phase,
        policy: difference.policy.map(choice),
        shadow: difference.shadow.map(choice),
    }
}

pub(super) fn throughput(message: Option<pb::Throughput>) -> Throughput {
    let pb::Throughput { attempts, bytes_per_second, speed } = message.unwrap_or_default();
    // On the wire, 0 means unknown; neither value can be 0.
    let known = |value: f64| (value > 0.0).then_some(value);
    Throughput { attempts, bytes_per_second: known(bytes_per_second), speed: known(speed) }
}
