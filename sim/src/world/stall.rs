//! Detection of stalls: runs in which no job can make progress any more.
//!
//! A run has stalled if for an hour only periodic events have occurred and no other event is
//! pending. It has also stalled if attempts start and end without progress. That is the case if,
//! for an hour, no task has ended, been split, or saved a checkpoint further than before; in that
//! time every slot was used a hundred times on average; no running attempt has run for half of that
//! time; and no external event is pending. Recovery from any loss needs far fewer attempts than
//! that. A map that runs again because its output was lost counts as progress ten times.

use super::{World, queue::SimEvent};
use mrcore::{
    Fact, Phase, Span, Time,
    ids::{AttemptId, TaskId},
};
use std::collections::BTreeMap;

/// Longer than any policy waits.
const LONG: Span = Span::secs(3600);
/// How often every slot is used without progress.
const FILLINGS: u64 = 100;
/// How often the repetition of a map counts as progress.
const LOSSES: u32 = 10;

/// Progress of the run.
#[derive(Debug)]
pub(super) struct Progress {
    /// Time of the last event that was not periodic.
    moved: Time,
    /// Time of the last progress or external event.
    advanced: Time,
    /// Attempts launched since then.
    launched: u64,
    /// How often the output of each map was lost.
    lost: BTreeMap<TaskId, u32>,
    /// Progress of reduces at their last pause: bytes fetched, and records reduced.
    checkpoint: BTreeMap<TaskId, (u64, u64)>,
}

impl Progress {
    pub(super) fn new(now: Time) -> Self {
        let (lost, checkpoint) = (BTreeMap::new(), BTreeMap::new());
        Self { moved: now, advanced: now, launched: 0, lost, checkpoint }
    }

    fn advance(&mut self, at: Time) {
        (self.advanced, self.launched) = (at, 0);
    }

    pub(super) fn happened(&mut self, at: Time, what: SimEvent) {
        if !what.is_routine() {
            self.moved = at;
        }
        if what.is_from_outside() {
            self.advance(at);
        }
    }

    pub(super) fn record_fact(&mut self, at: Time, fact: &Fact) {
        match fact {
            Fact::AttemptLaunched { .. } => self.launched += 1,
            Fact::MapOutputLost { attempt, .. } => *self.lost.entry(attempt.task).or_default() += 1,
            Fact::AttemptSucceeded { attempt, .. }
                if self.lost.get(&attempt.task).is_none_or(|lost| *lost <= LOSSES) =>
            {
                self.advance(at);
            }
            Fact::JobSubmitted { .. } | Fact::JobEnded { .. } => self.advance(at),
            _ => {}
        }
    }

    /// A reduce has saved a checkpoint, or a map was split: counts if it is further than before.
    pub(super) fn released(&mut self, at: Time, id: AttemptId, reached: (u64, u64)) {
        let before = self.checkpoint.insert(id.task, reached).unwrap_or_default();
        if reached > before {
            self.advance(at);
        }
    }
}

impl World {
    /// Whether the run has stalled at the time of the next event.
    pub(super) fn is_stalled(&self, at: Time, next: SimEvent) -> bool {
        let Progress { moved, advanced, launched, .. } = self.progress;
        if next.is_routine() && self.queue.is_routine() && at.since(moved) > LONG {
            return true;
        }
        let since = at.since(advanced);
        since > LONG && self.queue.is_left_to_itself() && launched > self.fillings() && {
            let recent = Time(at.0 - since.0 / 2);
            let young = |id: &AttemptId| {
                self.core
                    .as_ref()
                    .and_then(|core| core.cluster().attempt(*id))
                    .is_none_or(|attempt| attempt.launched > recent)
            };
            self.nodes.iter().flat_map(|node| &node.runs).all(|run| young(&run.id))
        }
    }

    fn fillings(&self) -> u64 {
        let slots =
            self.nodes.iter().map(|node| Phase::BOTH.map(|phase| node.slots[phase]).iter().sum::<u32>());
        FILLINGS * u64::from(slots.sum::<u32>().max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Outcome, Setup,
        trial::{Trial, short},
    };
    use mrcore::{
        Cluster, JobTracker, Plan, Scheduler, Why,
        plan::PreemptMode,
        scheduler::{Cause, Round},
        task::AttemptResult,
    };
    use schedulers::fifo::Fifo;

    /// Preempts every slot after a while.
    #[derive(Debug)]
    struct RandomPreempter {
        inner: Fifo,
        after: Span,
        until: Time,
    }

    impl Scheduler for RandomPreempter {
        fn name(&self) -> &'static str {
            "restless"
        }

        fn observe(&mut self, now: Time, fact: &Fact, cluster: &Cluster) {
            self.inner.observe(now, fact, cluster);
        }

        fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
            self.inner.decide(round, plan);
            if round.cause == Cause::Tick && round.now < self.until {
                let old = |id: &AttemptId| {
                    let attempt = plan.cluster().attempt(*id);
                    attempt.is_some_and(|attempt| round.now.since(attempt.launched) >= self.after)
                };
                let running = |job: &mrcore::job::Job| Phase::BOTH.map(|phase| job.running[phase].clone());
                let all: Vec<AttemptId> =
                    plan.cluster().active_jobs().flat_map(running).flatten().filter(old).collect();
                for id in all {
                    let _ = plan.preempt_in_mode(id, PreemptMode::Kill, Why::rule("restless"));
                }
            }
        }

        fn tick_every(&self) -> Option<Span> {
            Some(Span::secs(1))
        }

        fn outranks(&self, _: mrcore::ids::JobId, _: mrcore::ids::JobId, _: Phase, _: &Plan<'_>) -> bool {
            false
        }
    }

    fn played(after: Span, until: Time) -> Outcome {
        let Trial { setup, workload, .. } = short();
        let setup = Setup { machines: setup.machines[..2].to_vec(), ..setup };
        let config = setup.config.clone();
        let mut world = World::new(setup, workload).expect("a policy");
        let policy = RandomPreempter { inner: Fifo::default(), after, until };
        world.core = Some(JobTracker::new(config, Box::new(policy)));
        world.send_event(mrcore::Event::Start);
        world.run(None).expect("no rule broken")
    }

    #[test]
    fn endless_kills_are_a_stall() {
        let never = Time(u64::MAX);
        let killed = played(Span::millis(500), never);
        assert!(killed.unfinished > 0, "no task could ever end");
        let left =
            killed.metrics.jobs().find_map(|(_, job)| job.observed_until).expect("they count up to then");
        assert!(left.0 > LONG.0, "it was waited for: {left}");
        // Kills that stop after half an hour are not a stall.
        assert_eq!(played(Span::millis(500), Time(1_800_000_000)).unfinished, 0);
        assert_eq!(played(Span::secs(600), never).unfinished, 0, "none of its tasks takes so long");
    }

    #[test]
    fn repeated_work_is_no_progress() {
        let task = TaskId { job: mrcore::ids::JobId(1), phase: Phase::Reduce, index: 0 };
        let mut progress = Progress::new(Time(0));
        progress.released(Time(10), task.attempt(0), (100, 0));
        assert_eq!(progress.advanced, Time(10));
        progress.released(Time(20), task.attempt(1), (100, 0));
        assert_eq!(progress.advanced, Time(10), "it has read no more");
        progress.released(Time(30), task.attempt(2), (100, 1));
        assert_eq!(progress.advanced, Time(30));
        let map = TaskId { phase: Phase::Map, ..task }.attempt(0);
        let done = Fact::AttemptSucceeded { attempt: map, result: AttemptResult::default() };
        for at in 40..60 {
            progress.record_fact(Time(at), &done);
            progress.record_fact(
                Time(at),
                &Fact::MapOutputLost { attempt: map, why: String::new(), unfetched: false },
            );
        }
        assert_eq!(progress.advanced, Time(50), "the eleventh time is the last that counts");
    }
}
