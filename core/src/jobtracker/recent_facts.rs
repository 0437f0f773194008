//! The recent decisions and events of each job, for `mrctl why`.

use crate::{
    fact::{Entry, Fact},
    ids::JobId,
    task::AttemptResult,
};
use std::collections::{BTreeMap, VecDeque};

/// Recent decisions and events of each job. They depend only on the facts, so they are the same
/// after a replay.
#[derive(Debug, Default)]
pub(super) struct RecentFacts {
    jobs: BTreeMap<JobId, JobFacts>,
}

/// The recent facts of a job. Launches have a list of their own, because there are so many that
/// they would evict the reasons of preemptions.
#[derive(Debug, Default)]
struct JobFacts {
    launches: VecDeque<Entry>,
    others: VecDeque<Entry>,
}

impl RecentFacts {
    /// Adds a fact. At most `max` launches and `max` other facts are kept for each job.
    pub(super) fn add_fact(&mut self, entry: &Entry, max: usize) {
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
        let job_facts = self.jobs.entry(job).or_default();
        let recent = match fact {
            Fact::AttemptLaunched { .. } => &mut job_facts.launches,
            _ => &mut job_facts.others,
        };
        recent.push_back(Entry { at: entry.at, fact });
        while recent.len() > max {
            recent.pop_front();
        }
    }

    /// Returns the recent facts of a job, oldest first.
    pub(super) fn of_job(&self, job: JobId) -> Vec<Entry> {
        let Some(job_facts) = self.jobs.get(&job) else { return Vec::new() };
        let mut all: Vec<Entry> = job_facts.others.iter().chain(&job_facts.launches).cloned().collect();
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
        why::Why,
    };

    fn task(index: u32) -> TaskId {
        TaskId { job: JobId(1), phase: Phase::Map, index }
    }

    #[test]
    fn launches_do_not_evict_preemption_reasons() {
        let mut recent = RecentFacts::default();
        let note = |recent: &mut RecentFacts, at, fact| recent.add_fact(&Entry { at: Time(at), fact }, 3);
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
        let times: Vec<u64> = recent.of_job(JobId(1)).iter().map(|entry| entry.at.0).collect();
        assert_eq!(times, [1, 107, 108, 109]);
        note(&mut recent, 200, Fact::JobForgotten { job: JobId(1) });
        assert!(recent.of_job(JobId(1)).is_empty());
    }
}
