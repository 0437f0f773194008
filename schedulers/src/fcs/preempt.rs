//! Algorithm 1 of the paper: pauses reduces for jobs with less remaining work.

use super::{Fcs, work};
use mrcore::{
    Cluster, Phase, Plan, Time, Why,
    cluster::Reports,
    ids::{AttemptId, JobId, TrackerId},
    job::Job,
    plan::CheckpointPlace,
    task::{Attempt, AttemptState},
};
use std::collections::{BTreeMap, BTreeSet};

/// A reduce that may be paused.
struct Victim {
    left: work::RemainingWork,
    attempt: AttemptId,
    tracker: TrackerId,
}

/// Why a reduce is not paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Guard {
    NewlyLaunched,
    NearlyDone,
    SlackUsedUp,
}

impl Fcs {
    /// Pauses reduces for every job with pending reduces, starting with the job with the least
    /// remaining work. Victims are reduces of jobs with more remaining work; reduces of the job
    /// with the most remaining work are paused first.
    pub(super) fn preempt(&self, plan: &mut Plan<'_>) {
        let cluster = plan.cluster();
        let idle: u32 = plan.free_trackers(Phase::Reduce).map(|on| plan.free_slots(on, Phase::Reduce)).sum();
        let short = self.waiting_jobs.iter().filter_map(|id| cluster.job(id));
        if short.map(|job| plan.startable_tasks(job, Phase::Reduce)).sum::<usize>() <= idle as usize {
            return;
        }
        // Slots that are being released count as available, otherwise a pause that takes longer than
        // a second would cause another one. The paper counts available slots (`literal`).
        let held = cluster.active_jobs().flat_map(|job| &job.running.reduce);
        let expected = held.filter(|id| !self.settings.literal && plan.is_slot_expected(**id));
        let mut available = idle as usize + expected.count();
        let mut victims = self.victims(plan);
        for id in self.waiting_jobs.iter() {
            if victims.is_empty() {
                return;
            }
            self.preempt_for(id, &mut available, &mut victims, plan);
        }
    }

    /// Pauses reduces for one job, if free slots and slots that are being released are not enough.
    /// A paused reduce needs a slot on the tracker of its checkpoint, a new reduce can use any
    /// slot. As printed, every job compares its demand with all available slots (`literal`);
    /// otherwise a slot counts for one job only.
    fn preempt_for(&self, id: JobId, available: &mut usize, victims: &mut Vec<Victim>, plan: &mut Plan<'_>) {
        let (Some(job), Some(known)) = (plan.cluster().job(id), self.estimates.get(&id)) else { return };
        let demand = plan.startable_tasks(job, Phase::Reduce);
        let literal = self.settings.literal;
        let spared = demand.min(*available);
        if !literal {
            *available -= spared;
        }
        let home =
            |index: u32| job.tasks.reduce[index as usize].checkpoint.map(|checkpoint| checkpoint.tracker);
        let homes: Vec<TrackerId> = self.paused.tasks_of(id).filter_map(home).collect();
        let fresh = demand.saturating_sub(homes.len());
        // Slots that are available go to new reduces first, then to paused reduces. The remaining
        // reduces need a victim.
        let wants = homes.into_iter().map(Some).chain((spared.min(fresh)..fresh).map(|_| None));
        // As printed, a paused reduce also preempts on other nodes (`literal`).
        let wants = wants.map(|home| home.filter(|_| !literal));
        let wants: Vec<Option<TrackerId>> = wants.take(demand - spared).collect();
        let tolerance = self.settings.tolerance;
        // Caches: the preemptions of this round do not change which trackers are usable.
        let mut usable: BTreeMap<TrackerId, bool> = BTreeMap::new();
        let mut impossible: BTreeSet<Option<TrackerId>> = BTreeSet::new();
        for wanted in wants {
            if impossible.contains(&wanted) {
                continue;
            }
            // Victims are ordered by the remaining work of their jobs, the most first.
            let more = |victim: &Victim| known.remaining.is_less_than(victim.left, tolerance);
            let outranked = victims.iter().enumerate().filter(|(_, victim)| more(victim));
            let mut near = outranked.filter(|(_, victim)| wanted.is_none_or(|on| on == victim.tracker));
            let found = near.find(|(_, victim)| {
                let could =
                    || literal || plan.next_reduce_at(job, victim.tracker, CheckpointPlace::None).is_some();
                *usable.entry(victim.tracker).or_insert_with(could)
            });
            let Some(at) = found.map(|(at, _)| at) else {
                impossible.insert(wanted);
                continue;
            };
            let victim = victims.remove(at);
            let theirs =
                self.estimates.get(&victim.attempt.job()).map_or(known.remaining, |known| known.remaining);
            let why = Why::rule("less-remaining-work").with("shuffle_left", known.remaining.shuffle);
            let why =
                why.with("bytes_left", known.remaining.bytes).with("victim_shuffle_left", theirs.shuffle);
            let why = why.with("victim_bytes_left", theirs.bytes).with_beneficiary(id);
            let _ = plan.preempt_in_mode(victim.attempt, self.map_policy.preempt_mode(), why);
        }
    }

    /// Returns the running reduces that may be paused, ordered by the remaining work of their jobs,
    /// the most first, then by progress, the least first.
    fn victims(&self, plan: &Plan<'_>) -> Vec<Victim> {
        let cluster = plan.cluster();
        let mut all = Vec::new();
        for id in self.by_remaining_work.iter().rev() {
            let (Some(job), Some(known)) = (cluster.job(id), self.estimates.get(&id)) else { continue };
            let (running, reports) =
                (cluster.running(job, Phase::Reduce), cluster.reports(id, Phase::Reduce));
            let mut attempts: Vec<(&Attempt, f32)> = running
                .filter_map(|(attempt, progress)| Some((attempt, progress?.done)))
                .filter(|(attempt, _)| plan.accepts_work(attempt.tracker) && !plan.is_preempted(attempt.id))
                .filter(|(attempt, done)| self.is_preemptable(job, (attempt, *done), reports, plan.now()))
                .collect();
            attempts.sort_by(|(a, done_a), (b, done_b)| {
                done_a.total_cmp(done_b).then(b.launched.cmp(&a.launched))
            });
            all.extend(attempts.iter().map(|(attempt, _)| Victim {
                left: known.remaining,
                attempt: attempt.id,
                tracker: attempt.tracker,
            }));
        }
        all
    }

    fn is_preemptable(
        &self,
        job: &Job,
        (attempt, done): (&Attempt, f32),
        reports: Reports<'_>,
        now: Time,
    ) -> bool {
        attempt.state == AttemptState::Running && self.guard(job, (attempt, done), reports, now).is_none()
    }

    /// Returns why a reduce is not paused: it was just launched, is nearly done, or has used up its
    /// slack.
    fn guard(
        &self,
        job: &Job,
        (attempt, done): (&Attempt, f32),
        reports: Reports<'_>,
        now: Time,
    ) -> Option<Guard> {
        let settings = &self.settings;
        if self.overdue_attempts.contains(&attempt.id) {
            return Some(Guard::SlackUsedUp);
        }
        if now.since(attempt.launched) < settings.newly_launched {
            return Some(Guard::NewlyLaunched);
        }
        if f64::from(done) > settings.nearly_done {
            return Some(Guard::NearlyDone);
        }
        let done = |attempt: &Attempt| reports.progress(attempt).done;
        let (total, service, estimate) = work::reduce_times(job.task(attempt.id.task)?, now, done)?;
        estimate.filter(|estimate| settings.is_overdue(total, service, *estimate)).map(|_| Guard::SlackUsedUp)
    }

    /// Explains why no reduce is paused for a job with pending reduces.
    pub(super) fn explain_no_preemption(
        &self,
        id: JobId,
        left: work::RemainingWork,
        now: Time,
        cluster: &Cluster,
    ) -> Option<Why> {
        if cluster.free_trackers(Phase::Reduce).next().is_some() {
            return None;
        }
        let (mut running, mut guarded) = (0, BTreeMap::<Guard, u32>::new());
        for job in cluster.active_jobs().filter(|job| job.id != id) {
            let Some(known) = self.estimates.get(&job.id) else { continue };
            if !left.is_less_than(known.remaining, self.settings.tolerance) {
                continue;
            }
            let (attempts, reports) =
                (cluster.running(job, Phase::Reduce), cluster.reports(job.id, Phase::Reduce));
            for (attempt, progress) in attempts.filter(|(attempt, _)| attempt.preempt_request.is_none()) {
                running += 1;
                let done = progress.unwrap_or_default().done;
                if let Some(guard) = self.guard(job, (attempt, done), reports, now) {
                    *guarded.entry(guard).or_default() += 1;
                }
            }
        }
        if running == 0 {
            return Some(Why::rule("no-job-with-more-work"));
        }
        let mut why = Why::rule("reduces-protected").with("tasks", f64::from(running));
        for (guard, count) in &guarded {
            let count = f64::from(*count);
            why = match guard {
                Guard::NewlyLaunched => {
                    why.with("new", count).with("at_most", self.settings.newly_launched.as_secs_f64())
                }
                Guard::NearlyDone => why.with("nearly", count).with("beyond", self.settings.nearly_done),
                Guard::SlackUsedUp => why.with("late", count),
            };
        }
        (guarded.values().sum::<u32>() == running).then_some(why)
    }
}
