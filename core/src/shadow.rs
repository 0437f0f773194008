//! A second policy on the same facts, without effect: what would it have done?
//!
//! It is told every fact and asked in every round, and when it wants one itself, about the cluster as the real policy
//! made it. So it is compared decision by decision; where its choices would have led is the simulator's to say.

use crate::{
    cluster::Cluster,
    config::Config,
    fact::Fact,
    ids::{AttemptId, TaskId, TrackerId},
    plan::{Decision, Plan},
    reserve::Reservations,
    scheduler::{Cause, Round, Scheduler},
    time::Time,
};
use std::collections::{BTreeSet, VecDeque};

/// Differences remembered.
const DIFFERENCES_KEPT: usize = 256;

/// How often the two agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Rounds in which either decided anything.
    pub rounds: u64,
    /// In which both decided the same.
    pub same: u64,
    /// Tasks launched by the real policy, and those that the other would have, in these rounds.
    pub launches: (u64, u64),
    /// Slots taken back by each.
    pub recalls: (u64, u64),
}

/// A round in which they differed.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// When.
    pub at: Time,
    /// Why they were asked.
    pub cause: Cause,
    /// What was done.
    pub real: Vec<Decision>,
    /// What the other would have done.
    pub shadow: Vec<Decision>,
}

/// The second policy.
#[derive(Debug)]
pub struct Shadow {
    pub(crate) scheduler: Box<dyn Scheduler>,
    pub(crate) computing: Option<u64>,
    last_tick: Time,
    counts: Counts,
    differences: VecDeque<Difference>,
}

impl Shadow {
    pub(crate) fn new(scheduler: Box<dyn Scheduler>) -> Self {
        Self {
            scheduler,
            computing: None,
            last_tick: Time(0),
            counts: Counts::default(),
            differences: VecDeque::new(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.scheduler.name()
    }

    /// How often the two agreed.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Where they differed lately, oldest first.
    pub fn differences(&self) -> impl Iterator<Item = &Difference> {
        self.differences.iter()
    }

    pub(crate) fn observe(&mut self, now: Time, fact: &Fact, cluster: &Cluster) {
        self.scheduler.observe(now, fact, cluster);
    }

    /// Whether it wants a round by now because time has passed.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.scheduler.tick_every().is_some_and(|every| now.since(self.last_tick) >= every)
    }

    /// Asks it what was asked of the real one, and compares.
    pub(crate) fn compare(
        &mut self,
        round: Round,
        (cluster, config, reserved): (&Cluster, &Config, &Reservations),
        real: &[Decision],
    ) {
        let mut plan = Plan::new(cluster, config, reserved, round.now);
        match round.cause {
            Cause::Offer(tracker) => plan.keep_promises(tracker),
            Cause::Tick => self.last_tick = round.now,
        }
        self.scheduler.decide(round, &mut plan);
        let (shadow, _) = plan.finish();
        if real.is_empty() && shadow.is_empty() {
            return;
        }
        let (did, would) = (essence(real), essence(&shadow));
        self.counts.rounds += 1;
        self.counts.launches.0 += did.0.len() as u64;
        self.counts.launches.1 += would.0.len() as u64;
        self.counts.recalls.0 += did.1.len() as u64;
        self.counts.recalls.1 += would.1.len() as u64;
        if did == would {
            self.counts.same += 1;
            return;
        }
        if self.differences.len() == DIFFERENCES_KEPT {
            self.differences.pop_front();
        }
        self.differences.push_back(Difference {
            at: round.now,
            cause: round.cause,
            real: real.to_vec(),
            shadow,
        });
    }
}

/// What runs where, and whose slots are taken back, whatever the reasons.
fn essence(decisions: &[Decision]) -> (BTreeSet<(TaskId, TrackerId)>, BTreeSet<AttemptId>) {
    let (mut launches, mut recalls) = (BTreeSet::new(), BTreeSet::new());
    for decision in decisions {
        match decision {
            Decision::Assign { task, on, .. } => drop(launches.insert((*task, *on))),
            Decision::Preempt { attempt, .. } => drop(recalls.insert(*attempt)),
            Decision::Reserve { .. } => {}
        }
    }
    (launches, recalls)
}
