//! Checks invariants over the sequence of events. They are numbered as in [`crate::invariants`].
//!
//! - 1: a task is done once, unless its output was lost since.
//! - 3: a report counts only if its tracker has registered in this epoch and is its newest
//!   incarnation.
//! - 5: a repeated heartbeat changes nothing.
//! - 6: maps that are done run again only while reduces need their output; reduces that are done
//!   never run again.
//! - 8: every attempt ends before its job is forgotten.

use crate::{
    cluster::Cluster,
    event::{Effect, Event, Reply},
    fact::Fact,
    ids::{AttemptId, Incarnation, JobId, TaskId, TrackerId},
    phase::Phase,
};
use std::collections::{BTreeMap, BTreeSet};

/// Observes every event with its effects, in order and across restarts.
#[derive(Debug, Default)]
pub struct TraceChecker {
    epoch: u64,
    /// Trackers that have registered in this epoch: their incarnation and the number of the newest
    /// heartbeat.
    last_heartbeats: BTreeMap<TrackerId, (Incarnation, u64)>,
    done_tasks: BTreeSet<TaskId>,
    /// All attempts of known jobs, and whether they have ended.
    attempt_ended: BTreeMap<AttemptId, bool>,
}

impl TraceChecker {
    /// Checks whether the effects of an event are allowed. The error describes the first violation.
    pub fn check(&mut self, event: &Event, effects: &[Effect], after: &Cluster) -> Result<(), String> {
        let unreliable = self.cannot_report(event);
        let facts = effects.iter().filter_map(|effect| match effect {
            Effect::Append(entry) => Some(&entry.fact),
            _ => None,
        });
        for fact in facts {
            if let Some(why) = unreliable
                && is_report(fact)
            {
                return Err(format!("{fact:?} was caused by {why}"));
            }
            self.check_fact(fact, after)?;
        }
        match event {
            Event::Heartbeat(heartbeat) => {
                if let Some((incarnation, seq)) = self.last_heartbeats.get_mut(&heartbeat.tracker)
                    && *incarnation == heartbeat.incarnation
                {
                    *seq = heartbeat.seq.max(*seq);
                }
            }
            Event::Registration { .. } => {
                for effect in effects {
                    if let Effect::Reply { reply: Reply::Registered { tracker, incarnation, .. }, .. } =
                        effect
                    {
                        self.last_heartbeats.insert(*tracker, (*incarnation, 0));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns why reports in this event must not count; `None` if they may count.
    fn cannot_report(&self, event: &Event) -> Option<&'static str> {
        let Event::Heartbeat(heartbeat) = event else {
            let may_report = matches!(event, Event::Registration { .. });
            return (!may_report).then_some("an event that reports nothing");
        };
        match self.last_heartbeats.get(&heartbeat.tracker) {
            None => Some("a tracker that has not registered (invariant 3)"),
            Some((incarnation, _)) if *incarnation != heartbeat.incarnation => {
                Some("another incarnation of the tracker (invariant 3)")
            }
            Some((_, seq)) if heartbeat.seq <= *seq => {
                Some("a heartbeat that was handled before (invariant 5)")
            }
            Some(_) => None,
        }
    }

    fn check_fact(&mut self, fact: &Fact, after: &Cluster) -> Result<(), String> {
        match fact {
            Fact::JobTrackerStarted { epoch, .. } => {
                if *epoch <= self.epoch {
                    return Err(format!(
                        "epoch {epoch} was started after epoch {} (invariant 3)",
                        self.epoch
                    ));
                }
                (self.epoch, self.last_heartbeats) = (*epoch, BTreeMap::new());
            }
            Fact::TrackerLost { tracker, .. } => drop(self.last_heartbeats.remove(tracker)),
            Fact::AttemptLaunched { attempt, .. } => self.check_launch(*attempt)?,
            Fact::AttemptSucceeded { attempt, .. } | Fact::MapSplit { attempt, .. } => {
                self.check_end(*attempt)?;
                if !self.done_tasks.insert(attempt.task) {
                    return Err(format!("{attempt}: its task was already done (invariant 1)"));
                }
            }
            Fact::AttemptPaused { attempt, .. }
            | Fact::AttemptFailed { attempt, .. }
            | Fact::AttemptKilled { attempt, .. } => self.check_end(*attempt)?,
            Fact::MapOutputLost { attempt, .. } => self.check_output_lost(*attempt, after)?,
            Fact::JobForgotten { job } => self.check_forgotten_job(*job)?,
            _ => {}
        }
        Ok(())
    }

    fn check_launch(&mut self, attempt: AttemptId) -> Result<(), String> {
        if self.done_tasks.contains(&attempt.task) {
            return Err(format!("{attempt} was launched, but its task is done (invariant 6)"));
        }
        match self.attempt_ended.insert(attempt, false) {
            None => Ok(()),
            Some(_) => Err(format!("{attempt} was launched twice (invariant 5)")),
        }
    }

    fn check_end(&mut self, attempt: AttemptId) -> Result<(), String> {
        match self.attempt_ended.insert(attempt, true) {
            Some(false) => Ok(()),
            Some(true) => Err(format!("{attempt} ended twice (invariant 3)")),
            None => Err(format!("{attempt} ended and was never launched (invariant 3)")),
        }
    }

    fn check_output_lost(&mut self, attempt: AttemptId, after: &Cluster) -> Result<(), String> {
        self.done_tasks.remove(&attempt.task);
        let job = after
            .job(attempt.job())
            .ok_or_else(|| format!("the output of {attempt} was lost, but its job is unknown"))?;
        let is_done = |task: &&TaskId| task.job == job.id && task.phase == Phase::Reduce;
        if self.done_tasks.iter().filter(is_done).count() < job.tasks.reduce.len() {
            return Ok(());
        }
        Err(format!("the output of {attempt} was given up, but no reduce needs it (invariant 6)"))
    }

    fn check_forgotten_job(&mut self, job: JobId) -> Result<(), String> {
        self.done_tasks.retain(|task| task.job != job);
        let of_it: Vec<AttemptId> = self.attempt_ended.keys().filter(|id| id.job() == job).copied().collect();
        for attempt in of_it {
            if self.attempt_ended.remove(&attempt) == Some(false) {
                return Err(format!("{job} was forgotten, but {attempt} has not ended (invariant 8)"));
            }
        }
        Ok(())
    }
}

/// Returns whether a fact can only follow from the report of a tracker.
fn is_report(fact: &Fact) -> bool {
    matches!(
        fact,
        Fact::AttemptSucceeded { .. }
            | Fact::MapSplit { .. }
            | Fact::AttemptPaused { .. }
            | Fact::MapOutputCopied { .. }
            | Fact::CheckpointCopied { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{event::Heartbeat, fact::Entry, task::AttemptResult, time::Time, why::Why};

    fn attempt(text: &str) -> AttemptId {
        text.parse().unwrap()
    }

    fn appended(facts: Vec<Fact>) -> Vec<Effect> {
        facts.into_iter().map(|fact| Effect::Append(Entry { at: Time::default(), fact })).collect()
    }

    fn heartbeat(seq: u64) -> Event {
        let (tracker, incarnation) = (TrackerId(1), Incarnation(7));
        Event::Heartbeat(Heartbeat {
            tracker,
            incarnation,
            seq,
            acked: 0,
            attempts: vec![],
            fetch_failures: vec![],
        })
    }

    fn launched(id: &str) -> Fact {
        let (attempt, tracker) = (attempt(id), TrackerId(1));
        Fact::AttemptLaunched {
            attempt,
            tracker,
            speculative: false,
            resumed_from: None,
            why: Why::default(),
        }
    }

    fn succeeded(id: &str) -> Fact {
        Fact::AttemptSucceeded { attempt: attempt(id), result: AttemptResult::default() }
    }

    #[test]
    fn reports_count_once_and_only_from_the_registered_tracker() {
        let cluster = Cluster::default();
        let mut trace_checker = TraceChecker::default();
        let mut check =
            |event: &Event, facts: Vec<Fact>| trace_checker.check(event, &appended(facts), &cluster);
        check(&Event::Tick, vec![launched("job_1.m0.0"), launched("job_1.m1.0")]).unwrap();
        assert!(check(&heartbeat(1), vec![succeeded("job_1.m0.0")]).unwrap_err().contains("not registered"));
        trace_checker.last_heartbeats.insert(TrackerId(1), (Incarnation(7), 0));
        let mut check =
            |event: &Event, facts: Vec<Fact>| trace_checker.check(event, &appended(facts), &cluster);
        check(&heartbeat(1), vec![succeeded("job_1.m0.0")]).unwrap();
        assert!(check(&heartbeat(1), vec![succeeded("job_1.m1.0")]).unwrap_err().contains("(invariant 5)"));
        assert!(check(&heartbeat(2), vec![launched("job_1.m0.1")]).unwrap_err().contains("(invariant 6)"));
        assert!(check(&heartbeat(3), vec![launched("job_1.m1.0")]).unwrap_err().contains("twice"));
        assert!(
            check(&Event::Tick, vec![Fact::JobForgotten { job: JobId(1) }])
                .unwrap_err()
                .contains("(invariant 8)")
        );
    }
}
