//! Detects stalls: runs in which no job can make further progress.
//!
//! A run has stalled if for an hour only periodic events have occurred and no other event is
//! pending. A run has also stalled if attempts start and end without progress: for an hour, no task
//! has ended, been split, or saved a checkpoint with more progress than before; in that time every
//! slot was used a hundred times on average; no running attempt has run for half of that time; and
//! no external event is pending. Recovery from any loss needs far fewer attempts than that. A map
//! that runs again because its output was lost counts as progress at most ten times.
//!
//! These rules are about all tasks. A single task has stalled if it was started thousands of times
//! since the last external event, and since any work of it was saved or done. The run ends then, even
//! if other tasks make progress.

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
/// How many attempts of a task may start before they are counted, and how many then without progress.
const STARTS_MAX: u32 = 5_000;

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
    /// Tasks with more than [`STARTS_MAX`] attempts.
    restarted: BTreeMap<TaskId, Restarts>,
    /// A task that has stalled.
    stuck: Option<TaskId>,
}

/// The attempts of a task since it made progress, or since the last external event.
#[derive(Debug)]
struct Restarts {
    /// The number of the first of them.
    first: u32,
    /// What the last one was asked, and why.
    asked: Option<String>,
    /// How the last one ended.
    ended: Option<String>,
}

impl Restarts {
    fn record(&mut self, fact: &Fact) {
        match fact {
            Fact::PreemptionRequested { kind, why, .. } => {
                self.asked = Some(format!("asked to {kind} ({why})"));
            }
            Fact::AttemptKilled { why, .. } => self.ended = Some(format!("killed ({why})")),
            Fact::AttemptFailed { error, .. } => self.ended = Some(format!("failed ({error})")),
            Fact::AttemptPaused { .. } => self.ended = Some("paused".to_owned()),
            _ => {}
        }
    }
}

impl StallDetector {
    pub(super) fn new(now: Time) -> Self {
        Self {
            last_event: now,
            last_progress: now,
            launched: 0,
            outputs_lost: BTreeMap::new(),
            last_checkpoint: BTreeMap::new(),
            restarted: BTreeMap::new(),
            stuck: None,
        }
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
            self.restarted.clear();
            self.stuck = None;
        }
    }

    pub(super) fn record_fact(&mut self, at: Time, fact: &Fact) {
        self.count_starts(fact);
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

    /// Records that a task has made progress.
    fn forget_starts(&mut self, task: TaskId) {
        self.restarted.remove(&task);
        self.stuck = self.stuck.filter(|stuck| *stuck != task);
    }

    /// Counts the attempts of tasks that were started very often.
    fn count_starts(&mut self, fact: &Fact) {
        let (AttemptId { task, number }, is_done) = match fact {
            Fact::AttemptLaunched { attempt, .. }
            | Fact::PreemptionRequested { attempt, .. }
            | Fact::AttemptPaused { attempt, .. }
            | Fact::AttemptFailed { attempt, .. }
            | Fact::AttemptKilled { attempt, .. } => (*attempt, false),
            Fact::AttemptSucceeded { attempt, .. } | Fact::MapSplit { attempt, .. } => (*attempt, true),
            Fact::JobEnded { job, .. } => {
                self.restarted.retain(|task, _| task.job != *job);
                self.stuck = self.stuck.filter(|task| task.job != *job);
                return;
            }
            _ => return,
        };
        if number < STARTS_MAX {
            return;
        }
        if is_done {
            return self.forget_starts(task);
        }
        let new = Restarts { first: number, asked: None, ended: None };
        let restarts = self.restarted.entry(task).or_insert(new);
        restarts.record(fact);
        if number - restarts.first >= STARTS_MAX {
            self.stuck = Some(task);
        }
    }

    /// Records that a reduce has saved a checkpoint or that a map was split, and how far it got.
    /// Counts as progress if no earlier attempt of the task got as far.
    pub(super) fn record_checkpoint_or_split(&mut self, at: Time, id: AttemptId, reached: (u64, u64)) {
        let before = self.last_checkpoint.insert(id.task, reached).unwrap_or_default();
        if reached > before {
            self.record_progress(at);
            self.forget_starts(id.task);
        }
    }
}

impl World {
    /// Describes the task that has stalled, in one line; `None` if no task has.
    pub(super) fn stuck_task(&self) -> Option<String> {
        let task = self.stall_detector.stuck?;
        let restarts = self.stall_detector.restarted.get(&task)?;
        let job = self.core.as_ref().and_then(|core| core.cluster().job(task.job));
        let name = job.map_or_else(String::new, |job| format!(" ({})", job.spec.name));
        let steps = ["started".to_owned()].into_iter().chain(restarts.asked.clone());
        let steps: Vec<String> = steps.chain(restarts.ended.clone()).collect();
        Some(format!(
            "{task}{name} was started {STARTS_MAX} times without any work being saved or done: {}, and again",
            steps.join(", ")
        ))
    }

    /// Returns whether the run has stalled at the time of the next event.
    pub(super) fn is_stalled(&self, at: Time, next: SimEvent) -> bool {
        if self.stall_detector.stuck.is_some() && self.queue.has_no_external_event() {
            return true;
        }
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
        kills: fn(&AttemptId) -> bool,
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
                    (self.kills)(id)
                        && attempt.is_some_and(|attempt| round.now.since(attempt.launched) >= self.after)
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
        run_policy(short(), after, until, |_| true)
    }

    /// Runs a trial under a policy that kills those of the attempts that have run for a time.
    fn run_policy(trial: Trial, after: Span, until: Time, kills: fn(&AttemptId) -> bool) -> Outcome {
        let Trial { setup, workload, .. } = trial;
        let setup = Setup { machines: setup.machines[..2].to_vec(), ..setup };
        let config = setup.config.clone();
        let mut world = World::new(setup, workload).expect("a policy");
        let policy = KillOldAttempts { inner: Fifo::default(), after, until, kills };
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

    /// A map of a month runs beside the task, so that neither of the rules about all tasks applies.
    #[test]
    fn task_that_is_started_again_and_again_ends_the_run() {
        let mut trial = short();
        trial.workload.jobs[1].maps[0].work_s = 30.0 * 86_400.0;
        let looping = |id: &AttemptId| id.to_string().starts_with("job_1.m27.");
        let ran = run_policy(trial, Span::millis(500), Time(u64::MAX), looping);
        let day = Time(86_400_000_000);
        let left = ran.metrics.jobs().find_map(|(_, job)| job.observed_until).expect("an unfinished job");
        assert!(left > Time(STALL_MIN.0) && left < day, "the run ended at {left}");
        let stall = ran.stall.expect("a task that has stalled");
        let wanted = "job_1.m27 (large-0) was started 5000 times without any work being saved or done: \
                      started, asked to kill (restless), killed (restless), and again";
        assert_eq!(stall, wanted);
    }

    #[test]
    fn starts_count_from_the_last_progress_or_external_event() {
        let task = TaskId { job: mrcore::ids::JobId(1), phase: Phase::Reduce, index: 0 };
        let mut detector = StallDetector::new(Time(0));
        let start = |detector: &mut StallDetector, numbers: std::ops::Range<u32>| {
            for number in numbers {
                let (attempt, tracker) = (task.attempt(number), mrcore::ids::TrackerId(0));
                let (speculative, resumed_from, why) = (false, None, Why::default());
                let launched = Fact::AttemptLaunched { attempt, tracker, speculative, resumed_from, why };
                detector.record_fact(Time(1), &launched);
            }
        };
        start(&mut detector, 0..9_999);
        assert_eq!(detector.stuck, None);
        detector.record_checkpoint_or_split(Time(2), task.attempt(9_998), (1, 0));
        start(&mut detector, 9_999..14_999);
        assert_eq!(detector.stuck, None);
        start(&mut detector, 14_999..15_000);
        assert_eq!(detector.stuck, Some(task));
        detector.record_event(Time(3), SimEvent::Arrival);
        assert_eq!(detector.stuck, None);
        start(&mut detector, 15_000..20_001);
        assert_eq!(detector.stuck, Some(task));
        let (job, outcome) = (task.job, mrcore::job::JobOutcome::Succeeded);
        detector.record_fact(Time(4), &Fact::JobEnded { job, outcome });
        assert_eq!(detector.stuck, None);
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
