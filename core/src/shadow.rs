//! A second policy that decides on the same facts, without effect, for comparison.
//!
//! The shadow observes every fact. It decides in every round of the policy, on the same cluster,
//! before the decisions of the policy are carried out, and also in rounds that it requests itself.
//! Its decisions are compared and discarded. The cluster always follows the policy: to find out how
//! it would develop under the shadow, simulate the history.
//!
//! The slots of a tracker are equal, so the launches of a round are compared by job, tracker and
//! phase. If the policy does not make a decision of the shadow, the shadow makes it again in the
//! following rounds; it is counted once.
//!
//! Cost: every round is decided twice. Memory: that of the second policy, [`DIFFERENCES_MAX`]
//! differences, and [`WANTED_TASKS_MAX`] tasks that the shadow wants to launch. Not durable: the
//! counts start at zero with the process.

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

/// Maximum number of differences that are kept. The oldest ones are removed.
pub const DIFFERENCES_MAX: usize = 100;
/// Maximum number of tasks that are remembered because the shadow would have launched them.
pub const WANTED_TASKS_MAX: usize = 10_000;

/// Counts of equal and different decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Slots that both policies gave to the same job.
    pub same: u64,
    /// Slots that the shadow would have given to another job.
    pub other: u64,
    /// Slots that the policy used and the shadow would have left free.
    pub left_free: u64,
    /// Tasks that the shadow would have launched when the policy left the slot free.
    pub sooner: u64,
    /// Attempts that both policies preempted, not necessarily at the same time.
    pub both_preempted: u64,
    /// Attempts that the policy preempted.
    pub policy_preempted: u64,
    /// Attempts that the shadow would have preempted.
    pub shadow_preempted: u64,
    /// Decisions of the shadow that the plan refused. A correct policy has none.
    pub refused: u64,
}

/// A task and the reason why it was chosen.
pub type Choice = (TaskId, Why);

/// A difference between the two policies.
#[derive(Debug, Clone, PartialEq)]
pub enum Difference {
    /// A slot was used differently.
    Slot {
        /// The tracker of the slot.
        on: TrackerId,
        /// The phase of the slot.
        phase: Phase,
        /// The task that the policy launched.
        policy: Option<Choice>,
        /// The task that the shadow would have launched.
        shadow: Option<Choice>,
    },
    /// One policy preempted an attempt that the other had not preempted by then.
    Preempted {
        attempt: AttemptId,
        /// Whether the shadow would have preempted it; otherwise the policy did.
        by_shadow: bool,
        why: Why,
    },
}

/// The second policy and the result of the comparison.
#[derive(Debug)]
pub struct Shadow {
    pub(crate) scheduler: Box<dyn Scheduler>,
    pub(crate) computing: Option<u64>,
    tally: Tally,
    differences: VecDeque<(Time, Difference)>,
    /// Pending tasks that the shadow would have launched.
    wanted_tasks: BTreeSet<TaskId>,
    /// Running attempts that the policy has preempted.
    policy_preemptions: BTreeSet<AttemptId>,
    /// Running attempts that the shadow would have preempted.
    wanted_preemptions: BTreeSet<AttemptId>,
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
            policy_preemptions: BTreeSet::new(),
            wanted_preemptions: BTreeSet::new(),
            last_tick: Time(0),
        }
    }

    /// Returns the name of the second policy.
    pub fn name(&self) -> &str {
        self.scheduler.name()
    }

    /// Returns how often the two policies agreed and differed since the process started.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Returns the newest differences, oldest first.
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
                self.policy_preemptions.remove(attempt);
                self.wanted_preemptions.remove(attempt);
            }
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => {
                self.wanted_tasks.retain(|task| task.job != *job);
            }
            _ => {}
        }
    }

    /// Returns when the next periodic round of the shadow is due. The interval is at least `least`.
    pub(crate) fn next_tick(&self, least: Span) -> Option<Time> {
        self.scheduler.tick_interval().map(|every| self.last_tick + every.max(least))
    }

    /// Lets the shadow decide in a round and compares its decisions with those of the policy.
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
        // The first decisions of both plans fill reservations of the policy. They are not compared.
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
        for (on, choice) in policy.iter().filter_map(launch_of) {
            places.entry((on, choice.0.phase)).or_default().0.push(choice);
        }
        for (on, choice) in shadow.iter().filter_map(launch_of) {
            places.entry((on, choice.0.phase)).or_default().1.push(choice);
        }
        for ((on, phase), (mut policy, mut shadow)) in places {
            policy.retain(|(task, _)| {
                let same_job = shadow.iter().position(|(other, _)| other.job == task.job);
                if let Some(at) = same_job {
                    shadow.remove(at);
                    self.tally.same += 1;
                }
                same_job.is_none()
            });
            let mut shadow = shadow.into_iter();
            for choice in policy {
                let instead = shadow.next();
                match instead {
                    Some(_) => self.tally.other += 1,
                    None => self.tally.left_free += 1,
                }
                self.add_difference(
                    now,
                    Difference::Slot { on, phase, policy: Some(choice), shadow: instead },
                );
            }
            for choice in shadow {
                if self.wanted_tasks.insert(choice.0) {
                    self.tally.sooner += 1;
                    self.add_difference(
                        now,
                        Difference::Slot { on, phase, policy: None, shadow: Some(choice) },
                    );
                }
            }
        }
        while self.wanted_tasks.len() > WANTED_TASKS_MAX {
            self.wanted_tasks.pop_first();
        }
    }

    fn compare_preemptions(&mut self, now: Time, policy: &[Decision], shadow: &[Decision]) {
        // First the decisions of the policy: a preemption that both decide in the same round is not
        // a difference.
        for (attempt, why) in policy.iter().filter_map(preemption_of) {
            self.policy_preemptions.insert(attempt);
            self.tally.policy_preempted += 1;
            let agreed = self.wanted_preemptions.contains(&attempt);
            self.tally.both_preempted += u64::from(agreed);
            if !agreed && !shadow.iter().filter_map(preemption_of).any(|(other, _)| other == attempt) {
                self.add_difference(
                    now,
                    Difference::Preempted { attempt, by_shadow: false, why: why.clone() },
                );
            }
        }
        for (attempt, why) in shadow.iter().filter_map(preemption_of) {
            if !self.wanted_preemptions.insert(attempt) {
                continue;
            }
            self.tally.shadow_preempted += 1;
            if self.policy_preemptions.contains(&attempt) {
                self.tally.both_preempted += 1;
            } else {
                self.add_difference(
                    now,
                    Difference::Preempted { attempt, by_shadow: true, why: why.clone() },
                );
            }
        }
    }

    fn add_difference(&mut self, now: Time, difference: Difference) {
        self.differences.push_back((now, difference));
        while self.differences.len() > DIFFERENCES_MAX {
            self.differences.pop_front();
        }
    }
}

fn launch_of(decision: &Decision) -> Option<(TrackerId, Choice)> {
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
