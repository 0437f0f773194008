//! Reasons: why something was decided, and what was decided lately for each job.

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

/// Why something was decided: the rule's name, and the numbers that it went by.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Why {
    /// Such as `oldest-job`.
    pub rule: Cow<'static, str>,
    /// Such as `share = 0.25`.
    pub numbers: Vec<(Cow<'static, str>, f64)>,
}

impl Why {
    /// For a reason that is not a rule of a policy.
    pub fn named(reason: String) -> Self {
        Self { rule: Cow::Owned(reason), numbers: Vec::new() }
    }

    /// By this rule alone.
    pub const fn rule(rule: &'static str) -> Self {
        Self { rule: Cow::Borrowed(rule), numbers: Vec::new() }
    }

    /// Reads what `Display` shows; nothing if the text is not a rule and numbers.
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

    /// The number of this name.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
    }

    /// And this number.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.numbers.push((Cow::Borrowed(name), value));
        self
    }

    /// For the good of this job: the number `for_job`.
    #[must_use]
    pub fn benefit(self, job: JobId) -> Self {
        self.with("for_job", f64::from(job.0))
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rule)?;
        // Three digits after the point say enough; whole numbers show none.
        self.numbers
            .iter()
            .try_for_each(|(name, value)| write!(f, " {name}={}", (value * 1000.0).round() / 1000.0))
    }
}

/// What was decided and what befell each job lately. A pure fold of the facts, so it is the same after a replay.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    jobs: BTreeMap<JobId, RecentFacts>,
}

/// Launches come by the thousand, and must not push out why slots were preempted.
#[derive(Debug, Default)]
struct RecentFacts {
    launches: VecDeque<Entry>,
    others: VecDeque<Entry>,
}

impl Recent {
    /// Takes a fact down; `max` of each kind are kept a job.
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

    /// Of one job, oldest first.
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
                from: None,
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
