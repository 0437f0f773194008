//! Offers to the scheduler, and carrying out what it decides.

use super::JobTracker;
use crate::{
    event::{Effect, Order},
    fact::Fact,
    ids::{TaskId, TrackerId},
    phase::Phase,
    plan::{Decision, Plan, Why},
    scheduler::{Cause, Round},
    time::Time,
};
use std::collections::BTreeSet;

/// When work arrives, this many trackers are offered it at once; the rest come by with their heartbeats.
const OFFERS_MAX: usize = 64;

impl JobTracker {
    /// Offers a tracker's free slots.
    pub(super) fn offer(&mut self, now: Time, tracker: TrackerId, out: &mut Vec<Effect>) {
        let has_room = Phase::BOTH.into_iter().any(|phase| self.cluster.free[phase].contains(&tracker));
        if has_room && !self.cluster.active.is_empty() {
            self.round(now, Cause::Offer(tracker), out);
        }
    }

    /// Asks the scheduler, and carries out its plan.
    pub(super) fn round(&mut self, now: Time, cause: Cause, out: &mut Vec<Effect>) {
        let mut plan = Plan::new(&self.cluster, &self.config, now);
        self.scheduler.decide(Round { now, cause }, &mut plan);
        for decision in plan.into_decisions() {
            match decision {
                Decision::Assign { task, on, speculative, why } => {
                    self.launch(now, task, on, speculative, why, out);
                }
                Decision::Preempt { attempt, how, why } => {
                    self.recall(now, attempt, how, &why.to_string(), false, out);
                }
            }
        }
    }

    /// A paused task's next attempt takes up where it stood, wherever it runs.
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
        let aside = task.checkpoint.filter(|_| !speculative);
        let from = aside.map(|checkpoint| checkpoint.attempt);
        self.record(now, Fact::AttemptLaunched { attempt, tracker: on, speculative, from, why }, out);
        self.order(on, Order::Launch(attempt));
        if id.phase == Phase::Reduce {
            self.news_for.insert(id.job);
        }
    }

    /// Work has arrived while slots are free: no need to wait for heartbeats. Trackers that hold the input of
    /// waiting maps are asked first, so that haste costs no locality.
    pub(super) fn offer_free_slots(&mut self, now: Time, out: &mut Vec<Effect>) {
        let free =
            |id: &TrackerId| Phase::BOTH.into_iter().any(|phase| self.cluster.free[phase].contains(id));
        let mut asked = BTreeSet::new();
        let mut order: Vec<TrackerId> = Vec::new();
        let waiting = self.cluster.active_jobs().filter(|job| !job.pending.map.is_empty());
        let near = waiting.flat_map(|job| job.wanted_hosts().take(OFFERS_MAX)).take(OFFERS_MAX);
        for tracker in near.flat_map(|host| self.cluster.trackers_on(host)).filter(free) {
            if asked.insert(tracker) {
                order.push(tracker);
            }
        }
        let from = self.next_offer;
        for phase in Phase::BOTH {
            let ring = self.cluster.free[phase].range(from..).chain(self.cluster.free[phase].range(..from));
            for tracker in ring.take(OFFERS_MAX) {
                if asked.insert(*tracker) {
                    order.push(*tracker);
                }
            }
        }
        order.truncate(OFFERS_MAX);
        for tracker in order {
            if !self.has_launchable() {
                break;
            }
            self.offer(now, tracker, out);
            self.next_offer = TrackerId(tracker.0 + 1);
        }
    }

    fn has_launchable(&self) -> bool {
        self.cluster.active_jobs().any(|job| {
            !job.pending.map.is_empty()
                || (!job.pending.reduce.is_empty() && job.reduces_may_start())
                || Phase::BOTH.into_iter().any(|phase| !job.stragglers[phase].is_empty())
        })
    }
}
