//! To clients: why jobs wait, which policies there are, how the one in the shadow differs.

use super::status::ms;
use crate::told::{Teller, Told, task_of};
use mrcore::{
    JobTracker, Phase, Time, Why,
    ids::{JobId, TaskId},
    shadow::{Choice, Difference},
};
use proto::mr as pb;
use schedulers::{Description, Params, timed::Deciding};

/// Whom a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    Job(JobId),
    Task(TaskId),
}

impl Whom {
    pub(crate) fn job(self) -> JobId {
        match self {
            Whom::Job(job) => job,
            Whom::Task(task) => task.job,
        }
    }
}

fn reason(teller: &Teller<'_>, job: JobId, why: &Why) -> pb::Reason {
    let words = teller.say(job, why);
    let number = |(name, value): &(std::borrow::Cow<'static, str>, f64)| pb::Number {
        name: name.clone().into_owned(),
        value: *value,
    };
    pb::Reason {
        rule: why.rule.clone().into_owned(),
        numbers: why.numbers.iter().map(number).collect(),
        words,
    }
}

/// Why a job or a task waits; None if there is no such.
pub(crate) fn why(mind: &JobTracker, params: &Params, now: Time, whom: Whom) -> Option<pb::WhyReply> {
    let teller = Teller { cluster: mind.cluster(), params };
    let job = mind.cluster().job(whom.job())?;
    let (of, state, waits) = match whom {
        Whom::Job(id) => {
            // As lists of jobs show it.
            let idle = job.is_running() && Phase::BOTH.into_iter().all(|phase| job.running[phase].is_empty());
            let state = if idle { "waiting" } else { super::status::job_state(job).0 };
            (id.to_string(), state, mind.explain(now, id))
        }
        Whom::Task(id) => {
            let task = job.task(id)?;
            (id.to_string(), super::status::task_state(job, task), mind.explain_task(now, id))
        }
    };
    let lately = mind.recent(job.id);
    let lately = lately.iter().filter(|entry| match whom {
        Whom::Job(_) => true,
        Whom::Task(task) => task_of(&entry.fact) == Some(task),
    });
    let happening = |at: Time, told: Told| pb::Happening {
        at_ms: ms(at),
        what: told.what.into(),
        attempt: told.whom,
        tracker: told.tracker,
        why: told.why.map(|why| reason(&teller, job.id, &why)),
        words: told.words,
    };
    Some(pb::WhyReply {
        of,
        state: state.into(),
        scheduler: mind.scheduler_name().into(),
        waits: waits.iter().map(|why| reason(&teller, job.id, why)).collect(),
        lately: lately.filter_map(|entry| Some(happening(entry.at, teller.tell(entry)?))).collect(),
    })
}

/// The policies, with their parameters as they are.
pub(crate) fn schedulers(
    mind: &JobTracker,
    described: Vec<Description>,
    deciding: Deciding,
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
        scheduler: mind.scheduler_name().into(),
        shadow: mind.shadow().map_or_else(String::new, |shadow| shadow.name().into()),
        policies: described.into_iter().map(policy).collect(),
        rounds: deciding.rounds,
        deciding_us: deciding.total.as_micros() as u64,
        longest_us: deciding.longest.as_micros() as u64,
    }
}

/// How the policy in the shadow differs; None if there is none.
pub(crate) fn shadow(mind: &JobTracker, params: &Params) -> Option<pb::ShadowReply> {
    let shadow = mind.shadow()?;
    let teller = Teller { cluster: mind.cluster(), params };
    let tally = shadow.tally();
    let difference = |(at, difference): &(Time, Difference)| difference_info(&teller, *at, difference);
    Some(pb::ShadowReply {
        scheduler: mind.scheduler_name().into(),
        shadow: shadow.name().into(),
        same: tally.same,
        other: tally.other,
        left_free: tally.left_free,
        sooner: tally.sooner,
        both_took: tally.both_took,
        policy_took: tally.policy_took,
        shadow_took: tally.shadow_took,
        differences: shadow.differences().map(difference).collect(),
    })
}

fn difference_info(teller: &Teller<'_>, at: Time, difference: &Difference) -> pb::ShadowDifference {
    let choice = |choice: &Choice| pb::Choice {
        task: choice.0.to_string(),
        taken_back: false,
        why: Some(reason(teller, choice.0.job, &choice.1)),
    };
    let phase_name = |phase: Phase| match phase {
        Phase::Map => "map".to_owned(),
        Phase::Reduce => "reduce".to_owned(),
    };
    match difference {
        Difference::Slot { on, phase, policy, shadow } => pb::ShadowDifference {
            at_ms: ms(at),
            tracker: teller.tracker(*on),
            phase: phase_name(*phase),
            policy: policy.as_ref().map(choice),
            shadow: shadow.as_ref().map(choice),
        },
        Difference::TakenBack { attempt, by_shadow, why } => {
            let on = teller.cluster.attempt(*attempt).map(|attempt| teller.tracker(attempt.tracker));
            let why = Some(reason(teller, attempt.job(), why));
            let taken = pb::Choice { task: attempt.to_string(), taken_back: true, why };
            let (policy, shadow) = if *by_shadow { (None, Some(taken)) } else { (Some(taken), None) };
            let phase = phase_name(attempt.phase());
            pb::ShadowDifference { at_ms: ms(at), tracker: on.unwrap_or_default(), phase, policy, shadow }
        }
    }
}
