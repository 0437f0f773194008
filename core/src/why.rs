//! Reasons of decisions, and the recent events of each job.

use crate::{
    fact::{Entry, Fact},
    ids::JobId,
    task::AttemptResult,
};
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    collections::{BTreeMap, VecDeque},
    fmt,
};

/// The reason of a decision: the name of a rule, and numbers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Why {
    /// The name of the rule, such as `oldest-job`.
    pub rule: Cow<'static, str>,
    /// Named numbers, such as `share = 0.25`.
    pub numbers: Vec<(Cow<'static, str>, f64)>,
}

impl Why {
    /// A reason that is not a rule of a policy.
    pub fn named(reason: String) -> Self {
        Self { rule: Cow::Owned(reason), numbers: Vec::new() }
    }

    /// A rule without numbers.
    pub const fn rule(rule: &'static str) -> Self {
        Self { rule: Cow::Borrowed(rule), numbers: Vec::new() }
    }

    /// Parses the output of `Display`. `None` if the text is not a rule with numbers.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let is_rule = |rule: &&str| !rule.is_empty() && !rule.contains('=');
        let rule = words.next().filter(is_rule)?.to_owned();
        let number = |word: &str| {
            let (name, value) = word.split_once('=')?;
            Some((Cow::Owned(name.to_owned()), value.parse().ok()?))
        };
        let numbers = words.map(number).collect::<Option<Vec<_>>>()?;
        Some(Self { rule: Cow::Owned(rule), numbers })
    }

    /// The number with this name.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
    }

    /// Adds a number.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.numbers.push((Cow::Borrowed(name), value));
        self
    }

    /// Adds the number `for_job`: the job that benefits from the decision.
    #[must_use]
    pub fn benefit(self, job: JobId) -> Self {
        self.with("for_job", f64::from(job.0))
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rule)?;
        // At most three digits after the point.
        self.numbers
            .iter()
            .try_for_each(|(name, value)| write!(f, " {name}={}", (value * 1000.0).round() / 1000.0))
    }
}

/// Recent decisions and events of each job. They depend only on the facts, so they are the same
/// after a replay.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    jobs: BTreeMap<JobId, RecentFacts>,
}

/// The recent facts of a job. Launches have a list of their own, because there are so many that
/// they would evict the reasons of preemptions.
#[derive(Debug, Default)]
struct RecentFacts {
    launches: VecDeque<Entry>,
    others: VecDeque<Entry>,
}

impl Recent {
    /// Adds a fact. At most `max` launches and `max` other facts are kept for each job.
    pub(crate) fn note(&mut self, entry: &Entry, max: usize) {
        let Some(job) = entry.fact.job() else { return };
        let fact = match &entry.fact {
            Fact::JobForgotten { .. } => {
                self.jobs.remove(&job);
                return;
            }
            Fact::JobSubmitted { .. }
            | Fact::AttemptSucceeded { .. }
            | Fact::MapOutputMoved { .. }
            | Fact::MapOutputCopied { .. } => return,
            Fact::MapSplit { attempt, position, .. } => {
                Fact::MapSplit { attempt: *attempt, position: *position, result: AttemptResult::default() }
            }
            fact => fact.clone(),
        };
        let recent_facts = self.jobs.entry(job).or_default();
        let recent = match fact {
            Fact::AttemptLaunched { .. } => &mut recent_facts.launches,
            _ => &mut recent_facts.others,
        };
        recent.push_back(Entry { at: entry.at, fact });
        while recent.len() > max {
            recent.pop_front();
        }
    }

    /// The recent facts of a job, oldest first.
    pub(crate) fn of(&self, job: JobId) -> Vec<Entry> {
        let Some(recent_facts) = self.jobs.get(&job) else { return Vec::new() };
        let mut all: Vec<Entry> = recent_facts.others.iter().chain(&recent_facts.launches).cloned().collect();
        all.sort_by_key(|entry| entry.at);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{TaskId, TrackerId},
        phase::Phase,
        task::PreemptKind,
        time::Time,
    };

    fn task(index: u32) -> TaskId {
        TaskId { job: JobId(1), phase: Phase::Map, index }
    }

    #[test]
    fn launches_do_not_evict_preemption_reasons() {
        let mut recent = Recent::default();
        let note = |recent: &mut Recent, at, fact| recent.note(&Entry { at: Time(at), fact }, 3);
        let (attempt, why) = (task(0).attempt(0), "for another".to_owned());
        note(
            &mut recent,
            1,
            Fact::PreemptionRequested { attempt, kind: PreemptKind::Split, why, fault: false, hold: false },
        );
        for index in 0..100 {
            let (attempt, tracker) = (task(index).attempt(0), TrackerId(0));
            let fact = Fact::AttemptLaunched {
                attempt,
                tracker,
                speculative: false,
                resumed_from: None,
                why: Why::default(),
            };
            note(&mut recent, 10 + u64::from(index), fact);
        }
        let times: Vec<u64> = recent.of(JobId(1)).iter().map(|entry| entry.at.0).collect();
        assert_eq!(times, [1, 107, 108, 109]);
        note(&mut recent, 200, Fact::JobForgotten { job: JobId(1) });
        assert!(recent.of(JobId(1)).is_empty());
    }

    #[test]
    fn numbers_are_short() {
        let why = Why::rule("share").with("held", 2.0).with("share", 10.0 / 3.0).benefit(JobId(7));
        assert_eq!(why.to_string(), "share held=2 share=3.333 for_job=7");
    }

    #[test]
    fn reason_display_round_trips() {
        let why = Why::rule("fair-share,node-local").with("held", 3.0).with("share", 2.5);
        assert_eq!(Why::parse(&why.to_string()), Some(why));
        assert_eq!(Why::parse("recovery"), Some(Why::rule("recovery")));
        for text in ["", "killed by ann", "its tracker is lost", "held=3", "share a=1 b=x"] {
            assert_eq!(Why::parse(text), None, "{text}");
        }
    }
}
