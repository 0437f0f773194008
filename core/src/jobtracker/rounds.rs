//! Offers free slots to the policy, and carries out its decisions.

use super::{JobTracker, POLICY_TICK_INTERVAL_MIN};
use crate::{
    compute::Numbers,
    event::{Effect, Order},
    fact::Fact,
    ids::{TaskId, TrackerId},
    job::Job,
    phase::Phase,
    plan::{Decision, Locality, Plan, Why},
    scheduler::{Cause, Round},
    shadow::Shadow,
    task::PreemptKind,
    time::Time,
};
use std::collections::BTreeSet;

impl JobTracker {
    /// Offers the free slots of a tracker to the policy, if a task could use one. A slot can also be
    /// reserved for a task that is not pending, because it still runs on a suspect tracker.
    pub(super) fn offer(&mut self, now: Time, tracker: TrackerId, out: &mut Vec<Effect>) {
        let has_free_slot = Phase::BOTH.into_iter().any(|phase| self.cluster.has_free_slot(tracker, phase));
        if has_free_slot && (self.has_launchable_task() || !self.reservations.is_empty()) {
            self.run_round(now, Cause::Offer(tracker), out);
        }
    }

    /// Lets the policy decide, without carrying out its decisions.
    pub fn consult(&mut self, now: Time, cause: Cause) -> Vec<Decision> {
        self.rounds += 1;
        let mut plan = Plan::new(&self.cluster, &self.config, &self.reservations, now);
        if let Cause::Offer(tracker) = cause {
            plan.fill_reservations(tracker);
        }
        self.scheduler.decide(Round { now, cause }, &mut plan);
        let (decisions, refusals) = plan.finish();
        self.refusals += refusals;
        decisions
    }

    /// Returns the number of rounds so far.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Returns how many decisions of the policy the plan has refused. A correct policy has none.
    pub fn refusals(&self) -> u64 {
        self.refusals
    }

    /// Returns a pending task that could run on a free slot of a tracker now, regardless of the
    /// policy. For tests.
    pub fn runnable_task(&self, now: Time, tracker: TrackerId, phase: Phase) -> Option<TaskId> {
        let plan = Plan::new(&self.cluster, &self.config, &self.reservations, now);
        if plan.free_slots(tracker, phase) == 0 {
            return None;
        }
        self.cluster.active_jobs().find_map(|job| match phase {
            Phase::Map => plan.next_map(job, tracker, Locality::OffRack).map(|(task, _)| task),
            Phase::Reduce => plan.next_reduce(job, tracker),
        })
    }

    /// Lets the policy decide and carries out its plan. Does nothing while launches are suspended:
    /// the slot of a preempted attempt would stay free.
    pub(super) fn run_round(&mut self, now: Time, cause: Cause, out: &mut Vec<Effect>) {
        if self.launches_suspended {
            return;
        }
        let decisions = self.consult(now, cause);
        if let Some(shadow) = &mut self.shadow {
            let seen = (&self.cluster, &self.config, &self.reservations);
            shadow.compare(Round { now, cause }, seen, &decisions);
        }
        for decision in decisions {
            match decision {
                Decision::Assign { task, on, speculative, why } => {
                    self.launch(now, task, on, speculative, why, out);
                }
                Decision::Preempt { attempt, kind, why } => {
                    self.request_preemption(now, attempt, kind, &why.to_string(), false, out);
                    if kind != PreemptKind::Kill {
                        let until = now + self.config.preemption_timeout;
                        self.record(now, Fact::PreemptionDeadlineSet { attempt, until }, out);
                    }
                }
                Decision::Reserve { task, on, accepted_slots, why } => {
                    let until = self.reserved_until(now);
                    self.reservations.insert(task, (on, accepted_slots), until, why);
                }
            }
        }
    }

    /// Returns when a reservation that is made now lapses.
    pub(super) fn reserved_until(&self, now: Time) -> Time {
        now + self.config.preemption_timeout + self.config.reserve_for
    }

    /// Runs a periodic round if one is due. Otherwise runs one for the shadow if that is due.
    pub(super) fn run_periodic_round_if_due(&mut self, now: Time, out: &mut Vec<Effect>) {
        let is_due =
            self.policy_tick_interval().is_some_and(|every| now.since(self.last_policy_tick) >= every);
        if is_due {
            self.last_policy_tick = now;
            self.run_round(now, Cause::Tick, out);
        } else {
            self.run_shadow_round(now, |shadow| {
                shadow.next_tick(POLICY_TICK_INTERVAL_MIN).is_some_and(|next| next <= now)
            });
        }
    }

    /// Runs a round if the policy has requested one. Otherwise runs one for the shadow if the
    /// policy of the shadow has requested one.
    pub(super) fn run_requested_round(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.scheduler.needs_round() {
            self.run_round(now, Cause::Tick, out);
        } else {
            self.run_shadow_round(now, |shadow| shadow.scheduler.needs_round());
        }
    }

    /// Runs a round only for the shadow, if `wants` returns `true`.
    fn run_shadow_round(&mut self, now: Time, wants: impl Fn(&Shadow) -> bool) {
        if let Some(shadow) = self.shadow.as_mut().filter(|shadow| wants(shadow)) {
            let seen = (&self.cluster, &self.config, &self.reservations);
            shadow.compare(Round { now, cause: Cause::Tick }, seen, &[]);
        }
    }

    /// Starts a computation that a policy has requested, at most one at a time for each policy.
    pub(super) fn start_computations(&mut self, out: &mut Vec<Effect>) {
        let shadow = self.shadow.as_mut().map(|shadow| (&mut shadow.scheduler, &mut shadow.computing));
        for (policy, computing) in [(&mut self.scheduler, &mut self.computing)].into_iter().chain(shadow) {
            if computing.is_none()
                && let Some(problem) = policy.next_computation()
            {
                self.computations += 1;
                *computing = Some(self.computations);
                out.push(Effect::Compute { number: self.computations, problem });
            }
        }
    }

    /// Passes the solution of a computation to the policy that requested it. A solution with any
    /// other number is from before a restart and is ignored.
    pub(super) fn pass_solution(&mut self, now: Time, number: u64, answer: &Numbers) {
        if self.computing.take_if(|waited| *waited == number).is_some() {
            self.scheduler.finish_computation(now, answer, &self.cluster);
            self.work_arrived = true;
        }
        if let Some(shadow) = &mut self.shadow
            && shadow.computing.take_if(|waited| *waited == number).is_some()
        {
            shadow.scheduler.finish_computation(now, answer, &self.cluster);
        }
    }

    /// Launches an attempt. If the task has a checkpoint, the attempt resumes from it. A
    /// speculative attempt may resume from the same checkpoint, because attempts only read
    /// checkpoints.
    pub(super) fn launch(
        &mut self,
        now: Time,
        id: TaskId,
        on: TrackerId,
        speculative: bool,
        why: Why,
        out: &mut Vec<Effect>,
    ) {
        let Some(task) = self.cluster.task(id) else { return };
        let attempt = id.attempt(task.attempts.len() as u32);
        let resumed_from = task.checkpoint.map(|checkpoint| checkpoint.attempt);
        let launched = Fact::AttemptLaunched { attempt, tracker: on, speculative, resumed_from, why };
        self.record(now, launched, out);
        self.queue_order(on, Order::Launch(attempt));
        if id.phase == Phase::Reduce {
            self.pending_map_events.insert(id.job);
        }
    }

    /// Offers free slots to the policy at once when work has arrived, instead of waiting for
    /// heartbeats. The slots of trackers that have input of pending maps are offered first, for
    /// locality.
    pub(super) fn offer_free_slots(&mut self, now: Time, out: &mut Vec<Effect>) {
        let max = self.config.offers_max;
        let free =
            |id: &TrackerId| Phase::BOTH.into_iter().any(|phase| self.cluster.has_free_slot(*id, phase));
        let mut asked = BTreeSet::new();
        let mut order: Vec<TrackerId> = Vec::new();
        let waiting = self.cluster.active_jobs().filter(|job| !job.pending.map.is_empty());
        let near = waiting.flat_map(|job| job.input_hosts().take(max)).take(max);
        for tracker in near.flat_map(|host| self.cluster.trackers_on(host)).filter(free) {
            if asked.insert(tracker) {
                order.push(tracker);
            }
        }
        let from = self.next_offer;
        for phase in Phase::BOTH {
            for tracker in self.cluster.free_trackers_from(phase, from).take(max) {
                if asked.insert(tracker) {
                    order.push(tracker);
                }
            }
        }
        order.truncate(max);
        for tracker in order {
            if !self.has_launchable_task() {
                break;
            }
            self.offer(now, tracker, out);
            self.next_offer = TrackerId(tracker.0 + 1);
        }
    }

    fn has_launchable_task(&self) -> bool {
        let has_pending = |job: &Job| {
            !job.pending.map.is_empty() || (!job.pending.reduce.is_empty() && job.may_start(Phase::Reduce))
        };
        self.cluster.active_jobs().any(has_pending)
            || Phase::BOTH.into_iter().any(|phase| self.cluster.jobs_with_stragglers(phase).next().is_some())
    }
}
