//! Which attempts are preempted, and for which jobs.

use super::{Coda, nodes::SLOW};
use crate::{
    fair::pools::Pool,
    ranked_queue::Real,
    victims::{PreemptionRules, Victims, preempt_for_jobs},
};
use mrcore::{
    AcceptedSlots, Cluster, PerPhase, Phase, Plan, Why,
    ids::{AttemptId, JobId, TaskId},
    job::Job,
    plan::Locality,
    task::Attempt,
};
use std::collections::BTreeSet;

/// Assumed cost in seconds of a preemption before any was measured.
const UNMEASURED_COST_S: f64 = 2.0;
/// Time to start a process again.
const RESTART_S: f64 = 1.0;
/// An attempt moves from a slow node for the first time if it ends this many times as soon elsewhere.
const MOVE_GAIN: f64 = 2.0;
/// An attempt is preempted if it would hold its slot for this many times the cost. Maps are short,
/// and a split map loses its locality.
const COST_MARGIN: PerPhase<f64> = PerPhase { map: 5.0, reduce: 1.25 };

impl Coda {
    /// Returns the rule by which a slot may move from a job to another, if it may. The order of the
    /// rules is that of `Precedence`. Slots that are being preempted do not count, and those that
    /// are reserved do, so a round takes no more than it should. No two jobs may take slots from
    /// each other.
    pub(super) fn preemption_rule(
        &self,
        to: JobId,
        from: JobId,
        phase: Phase,
        plan: &Plan<'_>,
    ) -> Option<&'static str> {
        let (to_state, from_state) = (self.state(to), self.state(from));
        // An overdue job keeps its share, and takes what it lacks from all others.
        let retained = |job| Self::retained_slots(job, phase, plan);
        if from_state.overdue_share(phase).is_some_and(|share| retained(from) <= share) {
            return None;
        }
        if to_state.overdue_share(phase).is_some_and(|share| retained(to) < share) {
            return Some("overdue-job");
        }
        if self.settings.min_shares && self.pools.pool_number(to) != self.pools.pool_number(from) {
            let at_min = |pool: &Pool| pool.retained_slots(phase, plan) <= f64::from(pool.min[phase]);
            if self.pools.pool_of(from).is_some_and(|pool| pool.min[phase] > 0 && at_min(pool)) {
                return None;
            }
            // What this round preempts for the pool counts.
            let below = |pool: &Pool| {
                pool.min[phase] > 0 && pool.retained_slots(phase, plan) < f64::from(pool.min[phase])
            };
            if self.pools.pool_of(to).is_some_and(below) {
                return Some("min-share");
            }
        }
        self.size_rule(to, from, phase)
    }

    /// Like [`Self::preemption_rule`], between two jobs that are not overdue and whose pools have
    /// their minimum shares.
    pub(super) fn size_rule(&self, to: JobId, from: JobId, phase: Phase) -> Option<&'static str> {
        let (to, from) = (self.state(to), self.state(from));
        if phase == Phase::Reduce && !to.is_ready {
            return None;
        }
        if phase == Phase::Reduce && !from.is_ready {
            return Some("waits-for-maps");
        }
        (from.size_for(phase) > self.settings.margin * to.size_for(phase)).then_some("larger-job")
    }

    /// Returns the seconds that a preemption costs: until the slot is free, to start the victim
    /// again, and to read back what it had in memory, which takes about as long as to write it.
    fn preemption_cost_s(&self, phase: Phase) -> f64 {
        let latency = self.latency[phase].value().unwrap_or(UNMEASURED_COST_S);
        RESTART_S + latency * if phase == Phase::Reduce { 2.0 } else { 1.0 }
    }

    /// Preempts attempts for waiting jobs: first those whose slots are node-local for a map of the
    /// job, then any.
    pub(super) fn preempt(&self, phase: Phase, plan: &mut Plan<'_>) {
        if !self.settings.preempts[phase] || self.waiting_jobs[phase].is_empty() {
            return;
        }
        let mut seen = BTreeSet::new();
        let in_order = self.in_order(phase, plan).map(|(id, _)| id);
        let in_need: Vec<JobId> = in_order.filter(|id| seen.insert(*id)).collect();
        let limits: &[Locality] = match phase {
            Phase::Map => &[Locality::NodeLocal, Locality::OffRack],
            Phase::Reduce => &[Locality::OffRack],
        };
        let ending_soon = self.slots_free_soon(phase, plan);
        for limit in limits {
            let victims = Victims::greatest_first(phase, plan, |attempt, done| {
                let rank = self.state(attempt.id.job()).rank(phase);
                // By work, not by time: otherwise the slots of slow nodes would be freed first.
                let left = 1.0 - f64::from(done);
                (rank, Real(left), attempt.id)
            });
            // Smaller jobs do not use the slots of slow nodes.
            let victims = victims.without_slots_on(|tracker| self.speed(tracker) < SLOW);
            let victims = victims.with_slots_ending_soon(ending_soon);
            let rules = Preemption { policy: self, limit: *limit };
            preempt_for_jobs(&in_need, phase, victims, &rules, self.settings.preempt_mode, plan);
        }
    }

    /// Preempts attempts on slow nodes that end sooner on another node.
    pub(super) fn leave_slow_nodes(&self, plan: &mut Plan<'_>) {
        if !self.settings.avoids_slow_nodes {
            return;
        }
        let cluster = plan.cluster();
        for tracker in cluster.trackers() {
            let speed = self.speed(tracker.id);
            if speed >= SLOW {
                continue;
            }
            for phase in Phase::BOTH.into_iter().filter(|phase| self.settings.preempts[*phase]) {
                for attempt in tracker.running[phase].iter().filter_map(|id| cluster.attempt(*id)) {
                    let state = self.state(attempt.id.job());
                    // A reduce waits for maps on any node.
                    let waits_s = if phase == Phase::Reduce { state.maps_end_s } else { 0.0 };
                    let left_s = self.remaining_s(attempt, plan) - waits_s;
                    let elsewhere_s = left_s * speed
                        + self.preemption_cost_s(phase)
                        + self.backlog_s(attempt.id.job(), phase);
                    // Each move must gain more than the one before. They are counted only for
                    // attempts that would gain enough for a first move.
                    let moves = left_s > MOVE_GAIN * elsewhere_s
                        && left_s > (MOVE_GAIN + f64::from(interruptions(attempt, cluster))) * elsewhere_s;
                    let is_new = plan.now().since(attempt.launched) < self.settings.newly_launched;
                    let mode = self.settings.preempt_mode;
                    let is_possible =
                        !plan.is_preempted(attempt.id) && plan.preempt_kind(attempt.id, mode).is_some();
                    if moves && !is_new && is_possible {
                        let why = Why::rule("slow-node").with("speed", speed);
                        let _ = plan.preempt_in_mode(attempt.id, mode, why);
                    }
                }
            }
        }
    }

    /// Returns the number of slots that will soon be free without preemption, and that waiting jobs
    /// would use.
    fn slots_free_soon(&self, phase: Phase, plan: &Plan<'_>) -> u32 {
        let cluster = plan.cluster();
        let attempts = cluster.active_jobs().flat_map(|job| cluster.running(job, phase));
        attempts
            .filter(|(attempt, _)| !plan.is_preempted(attempt.id) && self.ends_soon(attempt, plan))
            .filter(|(attempt, _)| plan.accepts_work(attempt.tracker) && self.speed(attempt.tracker) >= SLOW)
            .count() as u32
    }

    /// Returns whether an attempt ends by itself so soon that preempting it does not pay.
    fn ends_soon(&self, attempt: &Attempt, plan: &Plan<'_>) -> bool {
        let phase = attempt.id.phase();
        self.settings.weighs_cost
            && self.remaining_s(attempt, plan) < COST_MARGIN[phase] * self.preemption_cost_s(phase)
    }
}

/// Returns how often the task of an attempt was interrupted. The remainder of a map that was split
/// is a new task with the same root.
fn interruptions(attempt: &Attempt, cluster: &Cluster) -> u32 {
    let job = cluster.job(attempt.id.job()).filter(|_| attempt.id.phase() == Phase::Map);
    let root = cluster.task(attempt.id.task).map(|task| task.root);
    let pieces = job.into_iter().flat_map(|job| &job.tasks.map).filter(|task| Some(task.root) == root);
    attempt.id.number + (pieces.count() as u32).saturating_sub(1)
}

/// The rules of one round of preemptions.
struct Preemption<'a> {
    policy: &'a Coda,
    /// How near the input of a map must be.
    limit: Locality,
}

impl PreemptionRules for Preemption<'_> {
    fn deficit(&self, job: &Job, phase: Phase, plan: &Plan<'_>) -> u32 {
        let state = self.policy.state(job.id);
        if phase == Phase::Reduce && !state.is_ready && state.overdue_since.is_none() {
            return 0;
        }
        (plan.startable_tasks(job, phase) as u32).min(plan.cluster().slots(phase))
    }

    fn may_preempt_from(&self, to: JobId, from: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        self.policy.preemption_rule(to, from, phase, plan).is_some()
    }

    fn is_protected(&self, victim: &Attempt, plan: &Plan<'_>) -> bool {
        plan.now().since(victim.launched) < self.policy.settings.newly_launched
            || plan.has_just_resumed(victim)
            || self.policy.ends_soon(victim, plan)
    }

    fn task_in_slot(&self, job: &Job, victim: &Attempt, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        let (phase, tracker) = (victim.id.phase(), victim.tracker);
        if self.policy.is_too_slow(job.id, phase, tracker) {
            return None;
        }
        let (task, detail) = match phase {
            Phase::Map => {
                let (task, near) = plan.next_map(job, tracker, self.limit)?;
                (task, near.name())
            }
            Phase::Reduce => self.policy.reduce_for(job, tracker, plan)?,
        };
        let retained_slots = Coda::retained_slots(job.id, phase, plan);
        let precedence = self.policy.precedence(job.id, phase, retained_slots);
        Some((task, self.policy.launch_reason(job.id, phase, precedence, detail)))
    }

    /// A free slot of a slow node may be as near to the input, but the task would end later there.
    fn accepted_slots(&self) -> AcceptedSlots {
        if self.policy.settings.avoids_slow_nodes && self.policy.nodes.has_slow() {
            AcceptedSlots::ThisTracker
        } else {
            AcceptedSlots::EquallyNear
        }
    }

    fn reason(&self, victim: AttemptId, beneficiary: JobId, plan: &Plan<'_>) -> Why {
        let (from, to) = (self.policy.state(victim.job()), self.policy.state(beneficiary));
        let phase = victim.phase();
        let rule = self.policy.preemption_rule(beneficiary, victim.job(), phase, plan);
        let why = match rule {
            Some("waits-for-maps") => Why::rule("waits-for-maps").with("maps_end", from.maps_end_s),
            Some("larger-job") | None => {
                Why::rule("larger-job").with("size", from.size_for(phase)).with("less", to.size_for(phase))
            }
            Some(rule) => Why::rule(rule),
        };
        why.with_beneficiary(beneficiary)
    }
}
