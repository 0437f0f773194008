//! A second policy on the same facts, without effect: what would it have done here?
//!
//! The shadow is told every fact, and is asked whenever the policy is, over the same cluster, before anything of the round
//! is carried out; and by itself when it wants a round. Its decisions are compared and thrown away. It lives in the world
//! that the policy makes: what it would have done with slots that it gave out differently long ago, a simulation of the
//! history tells.
//!
//! Slots of a tracker are alike, so a round's launches are compared by job, tracker and phase. What the policy does not
//! follow the shadow in, the shadow will want again in the next round: such wishes are counted once.
//!
//! Cost: every round is decided twice. Memory: the second policy's own, [`DIFFERENCES_MAX`] differences, and the wishes,
//! of which [`WANTED_MAX`] are remembered. Not durable: the counts start over with the process.

use crate::{
    cluster::Cluster,
    config::Config,
    fact::Fact,
    ids::{AttemptId, TaskId, TrackerId},
    phase::Phase,
    plan::{Decision, Plan},
    reserve::Reservations,
    scheduler::{Cause, Round, Scheduler},
    time::{Span, Time},
    why::Why,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The newest differences are kept.
pub const DIFFERENCES_MAX: usize = 100;
/// Tasks that the shadow wanted to start are remembered until they do, but no more than these.
pub const WANTED_MAX: usize = 10_000;

/// How often the two agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Slots that both gave to the same job.
    pub same: u64,
    /// Slots that the shadow would have given to another job.
    pub other: u64,
    /// Slots that the policy gave out and the shadow would have left free.
    pub left_free: u64,
    /// Tasks that the shadow would have started while the policy left the slot free.
    pub sooner: u64,
    /// Attempts whose slot both took back, at whatever time.
    pub both_preempted: u64,
    /// Attempts whose slot the policy took back.
    pub policy_preempted: u64,
    /// Attempts whose slot the shadow would have taken back.
    pub shadow_preempted: u64,
    /// Decisions of the shadow that were refused: a sound policy has none.
    pub refused: u64,
}

/// A task, and why it.
pub type Choice = (TaskId, Why);

/// Where the two went different ways.
#[derive(Debug, Clone, PartialEq)]
pub enum Difference {
    /// A slot of a tracker.
    Slot {
        /// Of which tracker.
        on: TrackerId,
        /// Of which kind.
        phase: Phase,
        /// What the policy put there.
        policy: Option<Choice>,
        /// What the shadow would have put there.
        shadow: Option<Choice>,
    },
    /// A slot that one of them took back, and the other had not by then.
    Preempted {
        /// Whose.
        attempt: AttemptId,
        /// It was the shadow that would have.
        by_shadow: bool,
        /// Why.
        why: Why,
    },
}

/// The second policy, and how it compares.
#[derive(Debug)]
pub struct Shadow {
    pub(crate) scheduler: Box<dyn Scheduler>,
    pub(crate) computing: Option<u64>,
    tally: Tally,
    differences: VecDeque<(Time, Difference)>,
    /// Tasks that wait, and that the shadow would have started.
    wanted_tasks: BTreeSet<TaskId>,
    /// Attempts that live, and whose slot the policy, or the shadow, wants back.
    preempted: BTreeSet<AttemptId>,
    wanted: BTreeSet<AttemptId>,
    last_tick: Time,
}

impl Shadow {
    pub(crate) fn new(scheduler: Box<dyn Scheduler>) -> Self {
        Self {
            scheduler,
            computing: None,
            tally: Tally::default(),
            differences: VecDeque::new(),
            wanted_tasks: BTreeSet::new(),
            preempted: BTreeSet::new(),
            wanted: BTreeSet::new(),
            last_tick: Time(0),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.scheduler.name()
    }

    /// The counts since the process began.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// The newest differences, oldest first.
    pub fn differences(&self) -> impl DoubleEndedIterator<Item = &(Time, Difference)> {
        self.differences.iter()
    }

    pub(crate) fn observe(&mut self, now: Time, fact: &Fact, cluster: &Cluster) {
        self.scheduler.observe(now, fact, cluster);
        match fact {
            Fact::AttemptLaunched { attempt, .. } => {
                self.wanted_tasks.remove(&attempt.task);
            }
            Fact::AttemptSucceeded { attempt, .. }
            | Fact::AttemptFailed { attempt, .. }
            | Fact::AttemptKilled { attempt, .. }
            | Fact::AttemptPaused { attempt, .. }
            | Fact::MapSplit { attempt, .. } => {
                self.preempted.remove(attempt);
                self.wanted.remove(attempt);
            }
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => {
                self.wanted_tasks.retain(|task| task.job != *job);
            }
            _ => {}
        }
    }

    /// When it wants to be asked next because time passes.
    pub(crate) fn next_tick(&self, least: Span) -> Option<Time> {
        self.scheduler.tick_every().map(|every| self.last_tick + every.max(least))
    }

    /// Asks it what the policy was asked, or what it wants to be asked by itself, and compares.
    pub(crate) fn compare(
        &mut self,
        round: Round,
        (cluster, config, reserved): (&Cluster, &Config, &Reservations),
        policy: &[Decision],
    ) {
        let mut plan = Plan::new(cluster, config, reserved, round.now);
        match round.cause {
            Cause::Offer(tracker) => plan.fill_reservations(tracker),
            Cause::Tick => self.last_tick = round.now,
        }
        // Promises are the policy's own, and come first in both lists.
        let reserved_slots = plan.decisions().len();
        self.scheduler.decide(round, &mut plan);
        let (shadow, refused) = plan.finish();
        self.tally.refused += refused;
        let policy = policy.get(reserved_slots..).unwrap_or_default();
        let shadow = shadow.get(reserved_slots..).unwrap_or_default();
        self.compare_slots(round.now, policy, shadow);
        self.compare_preemptions(round.now, policy, shadow);
    }

    fn compare_slots(&mut self, now: Time, policy: &[Decision], shadow: &[Decision]) {
        let mut places: BTreeMap<(TrackerId, Phase), (Vec<Choice>, Vec<Choice>)> = BTreeMap::new();
        for (on, choice) in policy.iter().filter_map(launch) {
            places.entry((on, choice.0.phase)).or_default().0.push(choice);
        }
        for (on, choice) in shadow.iter().filter_map(launch) {
            places.entry((on, choice.0.phase)).or_default().1.push(choice);
        }
        for ((on, phase), (mut policy, mut shadow)) in places {
            policy.retain(|(task, _)| {
                let twin = shadow.iter().position(|(other, _)| other.job == task.job);
                if let Some(at) = twin {
                    shadow.remove(at);
                    self.tally.same += 1;
                }
                twin.is_none()
            });
            let mut shadow = shadow.into_iter();
            for choice in policy {
                let instead = shadow.next();
                match instead {
                    Some(_) => self.tally.other += 1,
                    None => self.tally.left_free += 1,
                }
                self.note(now, Difference::Slot { on, phase, policy: Some(choice), shadow: instead });
            }
            for choice in shadow {
                if self.wanted_tasks.insert(choice.0) {
                    self.tally.sooner += 1;
                    self.note(now, Difference::Slot { on, phase, policy: None, shadow: Some(choice) });
                }
            }
        }
        while self.wanted_tasks.len() > WANTED_MAX {
            self.wanted_tasks.pop_first();
        }
    }

    fn compare_preemptions(&mut self, now: Time, policy: &[Decision], shadow: &[Decision]) {
        // The policy's first: what both take back in one round is no difference.
        for (attempt, why) in policy.iter().filter_map(preemption_of) {
            self.preempted.insert(attempt);
            self.tally.policy_preempted += 1;
            let agreed = self.wanted.contains(&attempt);
            self.tally.both_preempted += u64::from(agreed);
            if !agreed && !shadow.iter().filter_map(preemption_of).any(|(other, _)| other == attempt) {
                self.note(now, Difference::Preempted { attempt, by_shadow: false, why: why.clone() });
            }
        }
        for (attempt, why) in shadow.iter().filter_map(preemption_of) {
            if !self.wanted.insert(attempt) {
                continue;
            }
            self.tally.shadow_preempted += 1;
            if self.preempted.contains(&attempt) {
                self.tally.both_preempted += 1;
            } else {
                self.note(now, Difference::Preempted { attempt, by_shadow: true, why: why.clone() });
            }
        }
    }

    fn note(&mut self, now: Time, difference: Difference) {
        self.differences.push_back((now, difference));
        while self.differences.len() > DIFFERENCES_MAX {
            self.differences.pop_front();
        }
    }
}

fn launch(decision: &Decision) -> Option<(TrackerId, Choice)> {
    match decision {
        Decision::Assign { task, on, why, .. } => Some((*on, (*task, why.clone()))),
        Decision::Preempt { .. } | Decision::Reserve { .. } => None,
    }
}

fn preemption_of(decision: &Decision) -> Option<(AttemptId, &Why)> {
    match decision {
        Decision::Preempt { attempt, why, .. } => Some((*attempt, why)),
        Decision::Assign { .. } | Decision::Reserve { .. } => None,
    }
}
