//! Encodes replies to clients: why a job waits, the policies, and how the shadow policy differs
//! from the policy in use.

use super::status::ms;
use mrcore::{
    Cluster, JobTracker, Time,
    shadow::{Choice, Difference},
};
use mrlib_api::error::one_line;
use proto::mr as pb;
use schedulers::{
    Description, Params,
    explain::{Explanation, FactFormatter, FactText, Reason, Subject, explain},
    timed::DecisionStats,
};

fn reason(reason: Reason) -> pb::Reason {
    let number =
        |(name, value): (std::borrow::Cow<'static, str>, f64)| pb::Number { name: name.into_owned(), value };
    let Reason { why, text } = reason;
    pb::Reason { rule: why.rule.into_owned(), numbers: why.numbers.into_iter().map(number).collect(), text }
}

/// Renders facts with the names of this cluster.
pub(crate) fn formatter<'a>(cluster: &'a Cluster, params: &'a Params) -> FactFormatter<'a> {
    FactFormatter { cluster, params, one_line }
}

/// Encodes why a job or a task waits. `not_writable` is the reason why its output cannot be written
/// now, if any. Returns None if the job or task does not exist.
pub(crate) fn why(
    core: &JobTracker,
    params: &Params,
    now: Time,
    subject: Subject,
    not_writable: Option<String>,
) -> Option<pb::WhyReply> {
    let Explanation { of, state, scheduler, waiting_for, recent_events } =
        explain(core, formatter(core.cluster(), params), now, subject)?;
    let not_writable = not_writable.filter(|_| state != "done").map(|text| pb::Reason {
        rule: "namenode-not-writable".into(),
        numbers: Vec::new(),
        text,
    });
    let event = |(at, fact): (Time, FactText)| pb::JobEvent {
        at_ms: ms(at),
        what: fact.what.into(),
        attempt: fact.subject,
        tracker: fact.tracker,
        why: fact.why.map(reason),
        text: fact.text,
    };
    Some(pb::WhyReply {
        of,
        state: state.into(),
        scheduler,
        waiting_for: not_writable.into_iter().chain(waiting_for.into_iter().map(reason)).collect(),
        recent_events: recent_events.into_iter().map(event).collect(),
    })
}

/// Encodes the policies with the current values of their parameters.
pub(crate) fn schedulers(
    core: &JobTracker,
    described: Vec<Description>,
    deciding: DecisionStats,
) -> pb::SchedulersReply {
    let parameter = |own: schedulers::Parameter| pb::Parameter {
        key: own.key,
        value: own.value,
        default: own.default,
        about: own.about,
    };
    let policy = |own: Description| pb::Policy {
        name: own.name.into(),
        about: own.about.into(),
        section: own.section.into(),
        parameters: own.parameters.into_iter().map(parameter).collect(),
    };
    pb::SchedulersReply {
        scheduler: core.scheduler_name().into(),
        shadow: core.shadow().map_or_else(String::new, |shadow| shadow.name().into()),
        policies: described.into_iter().map(policy).collect(),
        rounds: deciding.rounds,
        deciding_us: deciding.total.as_micros() as u64,
        longest_us: deciding.longest.as_micros() as u64,
    }
}

/// Encodes how the decisions of the shadow policy differ from those of the policy in use. Returns
/// None if there is no shadow policy.
pub(crate) fn shadow(core: &JobTracker, params: &Params) -> Option<pb::ShadowReply> {
    let shadow = core.shadow()?;
    let formatter = formatter(core.cluster(), params);
    let tally = shadow.tally();
    let difference = |(at, difference): &(Time, Difference)| difference_info(&formatter, *at, difference);
    Some(pb::ShadowReply {
        scheduler: core.scheduler_name().into(),
        shadow: shadow.name().into(),
        same: tally.same,
        other: tally.other,
        left_free: tally.left_free,
        sooner: tally.sooner,
        both_preempted: tally.both_preempted,
        policy_preempted: tally.policy_preempted,
        shadow_preempted: tally.shadow_preempted,
        differences: shadow.differences().map(difference).collect(),
    })
}

fn difference_info(formatter: &FactFormatter<'_>, at: Time, difference: &Difference) -> pb::ShadowDifference {
    let choice = |choice: &Choice| pb::Choice {
        task: choice.0.to_string(),
        preempted: false,
        why: Some(reason(formatter.reason(choice.0.job, choice.1.clone()))),
    };
    match difference {
        Difference::Slot { on, phase, policy, shadow } => pb::ShadowDifference {
            at_ms: ms(at),
            tracker: formatter.tracker(*on),
            phase: phase.to_string(),
            policy: policy.as_ref().map(choice),
            shadow: shadow.as_ref().map(choice),
        },
        Difference::Preempted { attempt, by_shadow, why } => {
            let on = formatter.cluster.attempt(*attempt).map(|attempt| formatter.tracker(attempt.tracker));
            let why = Some(reason(formatter.reason(attempt.job(), why.clone())));
            let preempted = pb::Choice { task: attempt.to_string(), preempted: true, why };
            let (policy, shadow) = if *by_shadow { (None, Some(preempted)) } else { (Some(preempted), None) };
            let phase = attempt.phase().to_string();
            pb::ShadowDifference { at_ms: ms(at), tracker: on.unwrap_or_default(), phase, policy, shadow }
        }
    }
}
