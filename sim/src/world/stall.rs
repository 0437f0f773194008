//! Detects stalls: runs in which no job can make further progress.
//!
//! A run has stalled if for an hour only periodic events have occurred and no other event is
//! pending. A run has also stalled if attempts start and end without progress: for an hour, no task
//! has ended, been split, or saved a checkpoint with more progress than before; in that time every
//! slot was used a hundred times on average; no running attempt has run for half of that time; and
//! no external event is pending. Recovery from any loss needs far fewer attempts than that. A map
//! that runs again because its output was lost counts as progress at most ten times.

use super::{World, queue::SimEvent};
use mrcore::{
    Fact, Phase, Span, Time,
    ids::{AttemptId, TaskId},
};
use std::collections::BTreeMap;

/// Minimum duration of a stall. Longer than any policy waits.
const STALL_MIN: Span = Span::secs(3600);
/// How often every slot must be used without progress, on average.
const SLOT_USES_MIN: u64 = 100;
/// Maximum number of repetitions of a map that count as progress.
const REPETITIONS_MAX: u32 = 10;

/// Records what a run has done, to detect stalls.
#[derive(Debug)]
pub(super) struct StallDetector {
    /// Time of the last event that was not periodic.
    last_event: Time,
    /// Time of the last progress or external event.
    last_progress: Time,
    /// Attempts launched since `last_progress`.
    launched: u64,
    /// How often the output of each map was lost.
    outputs_lost: BTreeMap<TaskId, u32>,
    /// Progress of reduces at their last pause: bytes fetched, and records reduced.
    last_checkpoint: BTreeMap<TaskId, (u64, u64)>,
}

impl StallDetector {
    pub(super) fn new(now: Time) -> Self {
        let (outputs_lost, last_checkpoint) = (BTreeMap::new(), BTreeMap::new());
        Self { last_event: now, last_progress: now, launched: 0, outputs_lost, last_checkpoint }
    }

    fn record_progress(&mut self, at: Time) {
        (self.last_progress, self.launched) = (at, 0);
    }

    pub(super) fn record_event(&mut self, at: Time, what: SimEvent) {
        if !what.is_periodic() {
            self.last_event = at;
        }
        if what.is_external() {
            self.record_progress(at);
        }
    }

    pub(super) fn record_fact(&mut self, at: Time, fact: &Fact) {
        match fact {
            Fact::AttemptLaunched { .. } => self.launched += 1,
            Fact::MapOutputLost { attempt, .. } => *self.outputs_lost.entry(attempt.task).or_default() += 1,
            Fact::AttemptSucceeded { attempt, .. }
                if self.outputs_lost.get(&attempt.task).is_none_or(|lost| *lost <= REPETITIONS_MAX) =>
            {
                self.record_progress(at);
            }
            Fact::JobSubmitted { .. } | Fact::JobEnded { .. } => self.record_progress(at),
            _ => {}
        }
    }

    /// Records that a reduce has saved a checkpoint or that a map was split, and how far it got.
    /// Counts as progress if no earlier attempt of the task got as far.
    pub(super) fn record_checkpoint_or_split(&mut self, at: Time, id: AttemptId, reached: (u64, u64)) {
        let before = self.last_checkpoint.insert(id.task, reached).unwrap_or_default();
        if reached > before {
            self.record_progress(at);
        }
    }
}

impl World {
    /// Returns whether the run has stalled at the time of the next event.
    pub(super) fn is_stalled(&self, at: Time, next: SimEvent) -> bool {
        let StallDetector { last_event, last_progress, launched, .. } = self.stall_detector;
        if next.is_periodic() && self.queue.has_only_periodic_events() && at.since(last_event) > STALL_MIN {
            return true;
        }
        let since = at.since(last_progress);
        since > STALL_MIN && self.queue.has_no_external_event() && launched > self.launches_min() && {
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

    /// Returns the number of launches with which every slot is used [`SLOT_USES_MIN`] times on
    /// average.
    fn launches_min(&self) -> u64 {
        let slots =
            self.nodes.iter().map(|node| Phase::BOTH.map(|phase| node.slots[phase]).iter().sum::<u32>());
        SLOT_USES_MIN * u64::from(slots.sum::<u32>().max(1))
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

    /// Preempts every attempt that has run for the time `after`, until the time `until`.
    #[derive(Debug)]
    struct KillOldAttempts {
        inner: Fifo,
        after: Span,
        until: Time,
    }

    impl Scheduler for KillOldAttempts {
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

        fn tick_interval(&self) -> Option<Span> {
            Some(Span::secs(1))
        }

        fn outranks(&self, _: mrcore::ids::JobId, _: mrcore::ids::JobId, _: Phase, _: &Plan<'_>) -> bool {
            false
        }
    }

    fn run_with_kills(after: Span, until: Time) -> Outcome {
        let Trial { setup, workload, .. } = short();
        let setup = Setup { machines: setup.machines[..2].to_vec(), ..setup };
        let config = setup.config.clone();
        let mut world = World::new(setup, workload).expect("a policy");
        let policy = KillOldAttempts { inner: Fifo::default(), after, until };
        world.core = Some(JobTracker::new(config, Box::new(policy)));
        world.send_event(mrcore::Event::Start);
        world.run(None).expect("no rule broken")
    }

    #[test]
    fn endless_kills_are_a_stall() {
        let never = Time(u64::MAX);
        let killed = run_with_kills(Span::millis(500), never);
        assert!(killed.unfinished > 0, "all jobs ended although their attempts are killed");
        let left = killed
            .metrics
            .jobs()
            .find_map(|(_, job)| job.observed_until)
            .expect("unfinished jobs are observed until the stall");
        assert!(left.0 > STALL_MIN.0, "the run ended before the stall timeout: {left}");
        // Kills that stop after half an hour are not a stall.
        assert_eq!(run_with_kills(Span::millis(500), Time(1_800_000_000)).unfinished, 0);
        assert_eq!(
            run_with_kills(Span::secs(600), never).unfinished,
            0,
            "jobs did not end although their attempts end before they would be killed"
        );
    }

    #[test]
    fn repeated_work_is_no_progress() {
        let task = TaskId { job: mrcore::ids::JobId(1), phase: Phase::Reduce, index: 0 };
        let mut progress = StallDetector::new(Time(0));
        progress.record_checkpoint_or_split(Time(10), task.attempt(0), (100, 0));
        assert_eq!(progress.last_progress, Time(10));
        progress.record_checkpoint_or_split(Time(20), task.attempt(1), (100, 0));
        assert_eq!(progress.last_progress, Time(10), "the second checkpoint is no further than the first");
        progress.record_checkpoint_or_split(Time(30), task.attempt(2), (100, 1));
        assert_eq!(progress.last_progress, Time(30));
        let map = TaskId { phase: Phase::Map, ..task }.attempt(0);
        let done = Fact::AttemptSucceeded { attempt: map, result: AttemptResult::default() };
        for at in 40..60 {
            progress.record_fact(Time(at), &done);
            progress.record_fact(
                Time(at),
                &Fact::MapOutputLost { attempt: map, why: String::new(), unfetched: false },
            );
        }
        assert_eq!(progress.last_progress, Time(50), "the tenth repetition is the last that counts");
    }
}
