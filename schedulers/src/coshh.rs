//! COSHH: matches classes of jobs with nodes, for heterogeneous jobs on heterogeneous machines.
//!
//! By Rasooli and Down. Jobs with the same user, program, size and priority are a kind. Kinds that
//! take about the same time on every node form a class (`classes`). A linear program suggests
//! classes for each node. In stage 1, a free slot goes to a job of a suggested class whose user is
//! farthest below its minimum share, by weight. In stage 2, it goes to a job of a suggested class
//! whose user holds the fewest slots relative to its weight. Slots that the same round has assigned
//! count as held. Classes are computed outside of the core, and only when a job fits no class, when
//! nodes join or leave, or when the predictions have changed by more than the radius. Until then
//! the last solution is used.
//!
//! Differs from the paper: if no suggested class has a task, the slot goes to any job; of two users
//! in the same position the one who came first is served, no lots are drawn; maps and reduces have
//! separate minimum shares and slots; k-means uses logarithms; nodes of nearly the same speed are one
//! column of the program. `literal = true` reverts all of these. Durations of tasks are learned,
//! unless they are given (`users.NAME.map_time`). With `slowest`, no task runs where it would take
//! many times longer than on its best node. The paper does not mention tasks that cannot run where
//! they are suggested: they run anywhere (`may_need_other_nodes`, `Kinds::is_suggested`).
//!
//! COSHH does not preempt and does not wait for locality: a slot gets the nearest map of a job at
//! once.

mod classes;
mod kinds;
mod kmeans;
mod lp;
mod predictor;
#[cfg(test)]
mod tests;
mod users;

use crate::{
    fill::{SlotOrder, fill_in_order, locality_reason},
    params::Section,
};
use kinds::Kinds;
use mrcore::{
    Cluster, Fact, PerPhase, Phase, Plan, Scheduler, Span, Time, Why,
    compute::{Numbers, Problem},
    ids::{JobId, TaskId, TrackerId},
    job::Job,
    plan::Locality,
    scheduler::{Cause, Round},
    tracker::TrackerState,
};
use predictor::Predictor;
use std::collections::BTreeMap;
use users::{User, Users};

/// The texts of the rules of this policy.
pub const RULE_TEXTS: &[crate::explain::RuleText] = &[
    (
        "below-min-share",
        "user {user} held {held} of its minimum share of {min slot|slots}[, and this node is suggested for job class {class}]",
    ),
    (
        "smallest-share",
        "user {user} held {held slot|slots} with weight {weight}, the smallest share of all users[, and this node is suggested for job class {class}]",
    ),
    (
        "any-class",
        "no job class that is suggested for this node has a task that can run here, so all classes were considered; user {user} held {held slot|slots} with weight {weight}",
    ),
    (
        "users-share-of-map-slots",
        "user {user} holds {held map slot|map slots} (weight {weight}, minimum {min}); {users_ahead user goes|users go} first",
    ),
    (
        "users-share-of-reduce-slots",
        "user {user} holds {held reduce slot|reduce slots} (weight {weight}, minimum {min}); {users_ahead user goes|users go} first",
    ),
    (
        "users-share-of-slots",
        "user {user} holds {held slot|slots} of both kinds (weight {weight}, minimum {min}); {users_ahead user goes|users go} first",
    ),
    (
        "not-classified",
        "the nodes for its job class have not been computed yet: until then it may run on any node",
    ),
    (
        "class-suggested-nodes",
        "{nodes node is|nodes are} suggested for its job class[ {class}][!literal ; it also gets other nodes that would be idle]\
         [; the cluster can run {lambda} times the current rate of jobs]\
         [; predicted task durations are off by {prediction_error:%}]",
    ),
];

/// The `coshh` policy.
#[derive(Debug)]
pub struct Coshh {
    users: Users,
    kinds: Kinds,
    predictor: Predictor,
    /// The given speeds of nodes, by the name of the tracker.
    node_speeds: BTreeMap<String, f64>,
    /// The slots of each tracker that are divided among jobs.
    nodes: BTreeMap<TrackerId, PerPhase<u32>>,
    /// Whether only the rules of the paper are used.
    literal: bool,
    seed: u64,
    slowdown_max: f64,
    recheck_interval: Span,
    now: Time,
}

/// The rule that assigns a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShareStage {
    /// Stage 1: a user below its minimum share, and a class of the kinds whose users have a minimum
    /// share.
    MinShare,
    /// Stage 2: the user with the smallest share, and a class of all kinds.
    Share,
    /// No suggested class has a task: any job.
    Any,
}

impl ShareStage {
    /// Returns the index of the classification that this stage uses.
    fn classification(self) -> Option<usize> {
        match self {
            ShareStage::MinShare => Some(0),
            ShareStage::Share => Some(1),
            ShareStage::Any => None,
        }
    }

    fn why(self, near: Option<Locality>) -> Why {
        let rules = match self {
            ShareStage::MinShare => {
                ["below-min-share,node-local", "below-min-share,rack-local", "below-min-share"]
            }
            ShareStage::Share => ["smallest-share,node-local", "smallest-share,rack-local", "smallest-share"],
            ShareStage::Any => ["any-class,node-local", "any-class,rack-local", "any-class"],
        };
        locality_reason(rules, near.unwrap_or(Locality::OffRack))
    }
}

impl Coshh {
    /// Reads the parameters.
    pub fn new(section: &mut Section<'_>) -> Self {
        let mut users = Users::new(section);
        let window = section.span(
            "arrival_window",
            Span::secs(600),
            "period over which arrival rates of jobs are measured",
        );
        let radius = section.number(
            "radius",
            0.5,
            0.0..=100.0,
            "a job joins a class if their times differ by less than this (0.5: by a factor of 1.6)",
        );
        let about = "no task runs on a node where it would take this many times longer than on its best node; 0: no limit";
        let slowest = section.number("slowest", 0.0, 0.0..=1e6, about);
        let about = "only the rules of the paper: leave a slot free if no suggested class has work, draw lots between users in the same position, \
                     count slots and minimum shares of both kinds together, cluster rates and not logarithms, merge only equal nodes";
        let literal = section.flag("literal", false, about);
        users.joint_shares = literal;
        let slowest = if literal { 0.0 } else { slowest };
        let seed = section.count("seed", 1, "seed of the clustering, of lots and of `error`");
        let about = "for experiments: maximum random error added to predictions, as a fraction of them";
        let error = section.number("error", 0.0, 0.0..=0.9, about);
        let default = PerPhase {
            map: section.span(
                "default_map",
                Span::secs(30),
                "assumed duration of a map before any was measured",
            ),
            reduce: section.span(
                "default_reduce",
                Span::secs(60),
                "assumed duration of a reduce before any was measured",
            ),
        };
        let mut names = section.names("nodes");
        names.insert("default".into());
        let about = "speed of the node for given durations (users.NAME.map_time)";
        let speed = |name: String| {
            let speed = section.number(&format!("nodes.{name}.speed"), 1.0, 1e-6..=1e6, about);
            (name, speed)
        };
        let node_speeds = names.into_iter().map(speed).collect();
        Self {
            users,
            node_speeds,
            kinds: Kinds::new(window, radius, slowest, literal, u64::from(seed)),
            predictor: Predictor::new(default, error, u64::from(seed)),
            nodes: BTreeMap::new(),
            literal,
            seed: u64::from(seed),
            slowdown_max: slowest,
            recheck_interval: section.span(
                "recheck",
                Span::secs(10),
                "how often classes are compared with new measurements",
            ),
            now: Time(0),
        }
    }

    /// Updates the slots of a tracker that has joined, left, or changed its slots. A suspect
    /// tracker may be back soon, so it does not cause a new computation.
    fn tracker_changed(&mut self, id: TrackerId, cluster: &Cluster) {
        let Some(tracker) = cluster.tracker(id).filter(|tracker| tracker.state != TrackerState::Suspect)
        else {
            return;
        };
        let speed = self.node_speeds.get(&tracker.name).or(self.node_speeds.get("default"));
        self.predictor.set_given_speed(id, speed.copied().unwrap_or(1.0));
        let slots = Some(tracker.capacity()).filter(|slots| *slots != PerPhase::default());
        let before = match slots {
            Some(slots) => self.nodes.insert(id, slots),
            None => self.nodes.remove(&id),
        };
        if before != slots {
            self.kinds.nodes_changed();
        }
    }

    fn job_submitted(&mut self, id: JobId, now: Time, cluster: &Cluster) {
        let Some(job) = cluster.job(id) else { return };
        self.predictor.set_given_seconds(&job.spec.user, self.users.given_seconds(&job.spec.user));
        let number = self.users.user_number(&job.spec.user);
        let user = self.users.user(number);
        let facts = (number, user.weight, user.min_slots != PerPhase::default());
        let levels = predictor::levels(&job.spec, predictor::size_class(&job.spec));
        let kind = self.kinds.add_job(job, levels, facts, now, &self.predictor);
        self.users.add_job(job, number, kind);
    }

    fn job_ended(&mut self, job: JobId) {
        if self.users.end_job(job)
            && let Some(kind) = self.users.kind_of(job)
        {
            self.kinds.end_job(kind);
        }
    }

    fn observe_duration(&mut self, attempt: mrcore::ids::AttemptId, now: Time, cluster: &Cluster) {
        let kind = self.users.kind_of(attempt.job()).and_then(|kind| self.kinds.kind(kind));
        let seconds = cluster.job(attempt.job()).and_then(|job| predictor::sample(job, attempt));
        let on = cluster.attempt(attempt).map(|attempt| attempt.tracker);
        if let (Some(kind), Some(seconds), Some(on)) = (kind, seconds, on) {
            self.predictor.observe_duration(&kind.levels, attempt.phase(), on, seconds, now);
        }
    }

    /// Uses the elapsed time of running tasks as a lower bound of their duration. Without it, a
    /// node on which tasks take a hundred times longer would be detected a hundred times later.
    fn observe_running_tasks(&mut self, now: Time, cluster: &Cluster) {
        self.predictor.forget_running();
        for tracker in cluster.trackers() {
            for phase in Phase::BOTH {
                for attempt in &tracker.running[phase] {
                    let kind = self.users.kind_of(attempt.job()).and_then(|kind| self.kinds.kind(kind));
                    let snapshot =
                        cluster.job(attempt.job()).and_then(|job| predictor::snapshot(job, *attempt, now));
                    if let (Some(kind), Some(seconds)) = (kind, snapshot) {
                        self.predictor.observe_running(&kind.levels[0], phase, tracker.id, seconds);
                    }
                }
            }
        }
    }

    /// Returns the task that gets a slot: of the first job of a user that belongs to a suggested
    /// class and can use the slot.
    fn slot_for(
        &self,
        number: usize,
        stage: ShareStage,
        phase: Phase,
        tracker: TrackerId,
        plan: &Plan<'_>,
    ) -> Option<(TaskId, Why)> {
        let user = self.users.user(number);
        let suggested = |kind: usize| match stage.classification() {
            Some(stage) => self.kinds.is_suggested(kind, stage, phase, tracker),
            None => self.kinds.is_fast_enough(kind, tracker),
        };
        let (task, near) = user.find_job(phase, suggested, |suggested, id| {
            let job = plan.cluster().job(id)?;
            let (task, near) = match phase {
                Phase::Map => {
                    let (task, near) = plan.next_map(job, tracker, Locality::OffRack)?;
                    (task, Some(near))
                }
                Phase::Reduce => (plan.next_reduce(job, tracker)?, None),
            };
            let tried = || job.task(task).is_some_and(|task| !task.attempts.is_empty());
            (suggested || tried() || !job.blacklist.is_empty()).then_some((task, near))
        })?;
        let why = self.with_class(stage.why(near), task.job, stage.classification().unwrap_or(1));
        Some((task, with_user_numbers(why, user, phase)))
    }

    fn with_class(&self, why: Why, job: JobId, stage: usize) -> Why {
        let class = self.users.kind_of(job).and_then(|kind| self.kinds.class(kind, stage));
        match class {
            Some(class) => why.with("class", class as f64),
            None => why,
        }
    }
}

impl SlotOrder for Coshh {
    /// Returns the task for a slot: by stage 1, then by stage 2, then from any job.
    fn choose(&mut self, phase: Phase, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        let slot_for = |user: usize, stage: ShareStage| self.slot_for(user, stage, phase, tracker, plan);
        let lot = |user: usize| {
            if self.literal { drawn([self.seed, plan.now().0, u64::from(tracker.0), user as u64]) } else { 0 }
        };
        let below_minimum = self.users.users_below_minimum(phase, lot);
        if self.literal {
            let by_share = || self.users.users_by_lot(phase, lot).into_iter();
            return below_minimum
                .iter()
                .find_map(|user| slot_for(*user, ShareStage::MinShare))
                .or_else(|| by_share().find_map(|user| slot_for(user, ShareStage::Share)));
        }
        below_minimum
            .iter()
            .find_map(|user| slot_for(*user, ShareStage::MinShare))
            .or_else(|| self.users.users_in_order(phase).find_map(|user| slot_for(user, ShareStage::Share)))
            .or_else(|| {
                let mut rest = below_minimum.iter().copied().chain(self.users.users_in_order(phase));
                rest.find_map(|user| slot_for(user, ShareStage::Any))
            })
    }

    fn charge(&mut self, job: JobId, phase: Phase, _plan: &Plan<'_>) {
        self.users.charge(job, phase);
    }

    fn restore(&mut self, job: JobId, cluster: &Cluster) {
        self.users.refresh(job, cluster);
    }
}

/// Returns a synthetic problem with this many classes, each with its own rank, on nodes that all
/// differ. For benchmarks.
pub fn synthetic_problem(classes: usize, nodes: usize) -> Problem {
    let mixed = |seed: usize| (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let time = |class: usize, node: usize| 1.0 + mixed(class * nodes + node + 1) as f64 / 1e4;
    let kind = |class: usize| classes::KindFacts {
        rank: class,
        user: class,
        has_min_share: false,
        arrivals: 0.01 * (1.0 + class as f64),
        times: (0..nodes).map(|node| time(class, node)).collect(),
        fast_enough: vec![true; nodes],
    };
    classes::problem(&(0..classes).map(kind).collect::<Vec<_>>(), nodes, false, 1)
}

/// Returns the lot of a user: from the seed, the time, the tracker and the user, so that equal
/// histories give equal lots.
fn drawn(of: [u64; 4]) -> u64 {
    of.into_iter().fold(0, |mixed, part| {
        // The finalizer of SplitMix64.
        let mut mixed = (mixed ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

fn with_user_numbers(why: Why, user: &User, phase: Phase) -> Why {
    let why = why.with("held", f64::from(user.held(phase))).with("min", f64::from(user.minimum(phase)));
    why.with("weight", user.weight)
}

impl Scheduler for Coshh {
    fn name(&self) -> &'static str {
        "coshh"
    }

    fn observe(&mut self, now: Time, fact: &Fact, cluster: &Cluster) {
        self.now = now;
        if let Some(tracker) = fact.changes_slots_of() {
            self.tracker_changed(tracker, cluster);
        }
        match fact {
            Fact::JobSubmitted { job, .. } => self.job_submitted(*job, now, cluster),
            Fact::AttemptSucceeded { attempt, .. } => self.observe_duration(*attempt, now, cluster),
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => self.job_ended(*job),
            Fact::TrackerForgotten { tracker, .. } => {
                self.predictor.forget_tracker(*tracker);
                self.kinds.forget_tracker(*tracker);
            }
            _ => {}
        }
        if let Some(job) = fact.job() {
            self.users.refresh(job, cluster);
        }
        if let Fact::JobForgotten { job } = fact {
            self.users.forget_job(*job);
        }
    }

    fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
        match round.cause {
            Cause::Offer(tracker) => fill_in_order(self, tracker, plan),
            Cause::Tick => {
                self.now = round.now;
                if self.slowdown_max > 0.0 {
                    self.observe_running_tasks(round.now, plan.cluster());
                }
                self.kinds.check_predictions(&self.predictor);
            }
        }
    }

    fn tick_interval(&self) -> Option<Span> {
        Some(self.recheck_interval)
    }

    fn outranks(&self, a: JobId, b: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        let (Some(user_a), Some(user_b)) = (self.users.user_of(a), self.users.user_of(b)) else {
            return false;
        };
        if std::ptr::eq(user_a, user_b) {
            let place =
                |id: JobId| plan.cluster().job(id).map(|job| (std::cmp::Reverse(job.spec.priority), id));
            return place(a).zip(place(b)).is_some_and(|(a, b)| a < b);
        }
        let (has_a, has_b) = (user_a.retained_slots(phase, plan), user_b.retained_slots(phase, plan));
        if has_b <= user_b.minimum(phase) {
            return false;
        }
        let share = |held: u32, user: &User| f64::from(held) / user.weight;
        has_a < user_a.minimum(phase) || share(has_a + 1, user_a) < share(has_b, user_b)
    }

    fn explain(&self, job: &Job, _now: Time, _cluster: &Cluster) -> Vec<Why> {
        let (Some(user), Some(kind)) = (self.users.user_of(job.id), self.users.kind_of(job.id)) else {
            return Vec::new();
        };
        let mut reasons = Vec::new();
        let phases = Phase::BOTH.into_iter().filter(|phase| !job.pending[*phase].is_empty());
        for phase in phases.take(if self.literal { 1 } else { 2 }) {
            let rule = match phase {
                _ if self.literal => "users-share-of-slots",
                Phase::Map => "users-share-of-map-slots",
                Phase::Reduce => "users-share-of-reduce-slots",
            };
            let ahead = self.users.users_ahead_of(job.id, phase) as f64;
            reasons.push(with_user_numbers(Why::rule(rule), user, phase).with("users_ahead", ahead));
        }
        if self.kinds.class(kind, 1).is_none() {
            reasons.push(Why::rule("not-classified"));
            return reasons;
        }
        let mut why = self.with_class(Why::rule("class-suggested-nodes"), job.id, 1);
        why = why.with("nodes", self.kinds.suggested_nodes(kind).len() as f64);
        if self.literal {
            why = why.with("literal", 1.0);
        }
        if let Some(lambda) = self.kinds.lambda(1) {
            why = why.with("lambda", lambda);
        }
        if let Some(error) = self.kinds.kind(kind).and_then(|kind| self.predictor.error(&kind.levels)) {
            why = why.with("prediction_error", error);
        }
        reasons.push(why);
        reasons
    }

    fn next_computation(&mut self) -> Option<Problem> {
        self.kinds.problem(&self.nodes, self.now, &self.predictor)
    }

    fn finish_computation(&mut self, _now: Time, answer: &Numbers, _cluster: &Cluster) {
        self.kinds.use_solution(answer, &self.predictor);
    }
}
