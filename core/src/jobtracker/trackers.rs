//! Registration, heartbeats and loss of trackers.
//!
//! A tracker is identified by its name. Each process that registers with the name gets the next
//! incarnation, and only the newest is accepted, so no clock of a tracker matters. A tracker
//! registers again after it was lost, after a restart of the JobTracker, and after a lost answer.
//! It then reports its attempts and files, and the JobTracker reconciles its state with the report.
//! A tracker that stays lost is forgotten.

use super::JobTracker;
use crate::{
    event::{AttemptReport, AttemptStatus, Effect, Heartbeat, Order, Registration, Reply},
    fact::{Fact, TRACKER_LOST},
    ids::{AttemptId, Incarnation, JobId, RequestId, TrackerId},
    job::MapEvent,
    phase::Phase,
    task::{CheckpointInfo, Task},
    time::Time,
    tracker::{Tracker, TrackerState},
};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of map events in one order, so that it fits into a message.
const MAP_EVENTS_MAX: usize = 4096;
/// If a job has more running reduces than this, its trackers get map events only in replies to
/// heartbeats.
const REDUCES_NOTIFIED_AT_ONCE: usize = 64;
/// A tracker with this many unacknowledged orders gets map events only in replies to heartbeats.
const UNACKED_ORDERS_MAX: u64 = 32;

/// Returns the incarnation of a process that registers. `claimed` is the incarnation that the
/// process claims to have, `newest` the newest one that was assigned for its name. Returns `None`
/// if another process has registered with the name since. A claimed incarnation that was never
/// assigned (the journal was lost, or the process belongs to another cluster) counts as no claim.
fn incarnation_of(claimed: Incarnation, newest: Incarnation) -> Option<Incarnation> {
    match claimed.0 {
        0 => Some(Incarnation(newest.0 + 1)),
        claimed if claimed < newest.0 => None,
        claimed if claimed == newest.0 => Some(newest),
        _ => Some(Incarnation(newest.0 + 1)),
    }
}

impl JobTracker {
    pub(super) fn register(
        &mut self,
        now: Time,
        request: RequestId,
        mut new: Registration,
        out: &mut Vec<Effect>,
    ) {
        let known = self.cluster.tracker_named(&new.name).map(|tracker| (tracker.id, tracker.incarnation));
        let newest = known.map_or(Incarnation(0), |(_, newest)| newest);
        let Some(incarnation) = incarnation_of(new.incarnation, newest) else {
            let why = format!("another process has taken the name {} since this process started", new.name);
            return Self::reply(request, Reply::Refused(why), out);
        };
        let id = known.map_or(self.cluster.next_tracker(), |(id, _)| id);
        let before = known.and_then(|(id, _)| self.cluster.tracker(id));
        let moved = before.is_some_and(|before| before.shuffle_addr != new.shuffle_addr);
        let checkpoint_infos: BTreeMap<AttemptId, CheckpointInfo> = new.checkpoints.into_iter().collect();
        new.attempts.extend(self.unreported_pauses(id, &new.attempts, &checkpoint_infos));
        let reported: BTreeSet<AttemptId> = new.attempts.iter().map(|report| report.attempt).collect();
        let why =
            if incarnation == newest { "its tracker no longer runs it" } else { "its tracker was restarted" };
        self.give_up_attempts(now, id, &reported, why, out);
        self.record(
            now,
            Fact::TrackerJoined {
                tracker: id,
                name: new.name,
                incarnation,
                host: new.host,
                rack: new.rack,
                shuffle_addr: new.shuffle_addr,
                logs_addr: new.logs_addr,
                slots: new.slots,
            },
            out,
        );
        // Orders of the previous registration are void. The reports show which of them were carried
        // out.
        self.outboxes.insert(id, super::Outbox::default());
        self.copies.forget(id);
        let outputs: BTreeSet<AttemptId> = new.outputs.into_iter().collect();
        self.give_up_outputs(now, id, &outputs, "its tracker no longer has it", out);
        // Outputs that the tracker no longer has and that are not needed now may be needed later.
        self.cluster.set_listed_outputs(id, &outputs);
        if moved {
            self.reannounce_outputs(now, id, out);
        }
        let checkpoints: BTreeSet<AttemptId> = checkpoint_infos.keys().copied().collect();
        self.give_up_checkpoints(now, id, &checkpoints, "its tracker no longer has it", out);
        let mut jobs: BTreeSet<JobId> = new.jobs.into_iter().collect();
        jobs.extend(reported.iter().chain(&outputs).map(|attempt| attempt.job()));
        self.clean_unknown_jobs(id, jobs);
        for report in new.attempts {
            self.handle_report(now, id, report, out);
        }
        for (attempt, checkpoint) in checkpoint_infos {
            self.cluster.set_checkpoint_info(id, attempt, checkpoint);
        }
        // This comes last, because the reports above may have added checkpoints that are needed.
        self.drop_unknown_checkpoints(id, &checkpoints);
        self.repeat_preemptions(now, id, out);
        let epoch = self.cluster.epoch();
        Self::reply(request, Reply::Registered { tracker: id, epoch, incarnation }, out);
        self.work_arrived = true;
        self.pending_map_events.extend(self.cluster.active_jobs().map(|job| job.id));
    }

    /// Returns reports of pauses that the tracker did not send because it died after a reduce had
    /// saved its checkpoint. The checkpoints in its registration show these pauses.
    fn unreported_pauses(
        &self,
        id: TrackerId,
        reports: &[AttemptReport],
        checkpoint_infos: &BTreeMap<AttemptId, CheckpointInfo>,
    ) -> Vec<AttemptReport> {
        let Some(tracker) = self.cluster.tracker(id) else { return Vec::new() };
        let reported = |attempt: &AttemptId| reports.iter().any(|report| report.attempt == *attempt);
        let unreported = tracker.running.reduce.iter().filter(|attempt| !reported(attempt));
        let paused = |attempt: &AttemptId| {
            let status = AttemptStatus::Paused(*checkpoint_infos.get(attempt)?);
            Some(AttemptReport { attempt: *attempt, status })
        };
        unreported.filter_map(paused).collect()
    }

    /// Records new addresses of map outputs, so that reduces get them: the tracker now serves its
    /// map outputs at a different address.
    fn reannounce_outputs(&mut self, now: Time, id: TrackerId, out: &mut Vec<Effect>) {
        let cluster = &self.cluster;
        let is_output_on = |map: &AttemptId| cluster.attempt(*map).is_some_and(|map| map.output_on == id);
        self.fetch_failures.retain(|map, _| !is_output_on(map));
        let Some(tracker) = self.cluster.tracker(id) else { return };
        let counts = |attempt: &AttemptId| {
            let job = self.cluster.job(attempt.job()).filter(|job| job.is_running());
            job.and_then(|job| job.task(attempt.task)?.winning_attempt())
                .is_some_and(|winner| winner.id == *attempt)
        };
        for attempt in self.cluster.outputs_on(tracker).filter(counts).collect::<Vec<_>>() {
            self.record(now, Fact::MapOutputMoved { attempt }, out);
        }
    }

    /// Orders the deletion of files of jobs that are finished or unknown.
    fn clean_unknown_jobs(&mut self, tracker: TrackerId, jobs: BTreeSet<JobId>) {
        for job in jobs {
            if self.cluster.job(job).is_some_and(|job| !job.has_ended()) {
                self.cluster.volatile.add_extra_tracker(job, tracker);
            } else {
                self.queue_order(tracker, Order::Clean(job));
            }
        }
    }

    pub(super) fn heartbeat(&mut self, now: Time, heartbeat: Heartbeat, out: &mut Vec<Effect>) {
        let Heartbeat { tracker: id, incarnation, seq, acked, attempts, fetch_failures } = heartbeat;
        let state = self.cluster.tracker(id).filter(|tracker| tracker.incarnation == incarnation);
        let state = state.map(|tracker| tracker.state);
        if !matches!(state, Some(TrackerState::Live | TrackerState::Suspect)) {
            out.push(Effect::RegisterAgain { tracker: id, incarnation });
            return;
        }
        self.cluster.volatile.last_seen.insert(id, now);
        if state == Some(TrackerState::Suspect) {
            self.record(now, Fact::TrackerRecovered { tracker: id }, out);
            self.restart_timeouts_on(now, id);
        }
        let outbox = self.outboxes.entry(id).or_default();
        outbox.acked_order = acked;
        while outbox.unacked_orders.front().is_some_and(|(number, _)| *number <= acked) {
            outbox.unacked_orders.pop_front();
        }
        // A repeated heartbeat gets the same answer and changes nothing.
        if seq > outbox.last_seq {
            outbox.last_seq = seq;
            self.forget_unknown_attempts(id, &attempts);
            for report in attempts {
                self.handle_report(now, id, report, out);
            }
            for failure in fetch_failures {
                self.fetch_failed(now, id, failure, out);
            }
            self.offer(now, id, out);
        }
        self.send_map_events();
        self.send_map_events_to(id);
        self.send_orders(id, Some(seq), out);
    }

    pub(super) fn disconnected(
        &mut self,
        now: Time,
        id: TrackerId,
        incarnation: Incarnation,
        out: &mut Vec<Effect>,
    ) {
        let tracker = self.cluster.tracker(id).filter(|tracker| tracker.incarnation == incarnation);
        if tracker.is_some_and(|tracker| tracker.state == TrackerState::Live) {
            self.declare_suspect(now, id, "its connection broke", out);
        }
    }

    pub(super) fn declare_suspect(&mut self, now: Time, id: TrackerId, why: &str, out: &mut Vec<Effect>) {
        self.record(now, Fact::TrackerSuspected { tracker: id, why: why.into() }, out);
    }

    /// Gives up a tracker: its attempts run elsewhere, and maps whose output is still needed run
    /// again.
    pub(super) fn declare_lost(&mut self, now: Time, id: TrackerId, why: &str, out: &mut Vec<Effect>) {
        self.record(now, Fact::TrackerLost { tracker: id, why: why.into() }, out);
        self.outboxes.remove(&id);
        self.copies.forget(id);
        self.give_up_attempts(now, id, &BTreeSet::new(), TRACKER_LOST, out);
        let on_hold = self.checkpoints_on_hold(id);
        self.give_up_checkpoints(now, id, &on_hold, TRACKER_LOST, out);
        self.give_up_outputs(now, id, &BTreeSet::new(), TRACKER_LOST, out);
    }

    /// Handles the request of a user to remove a lost tracker from the list of known trackers.
    pub(super) fn forget_for_user(
        &mut self,
        now: Time,
        id: TrackerId,
        by: &str,
        out: &mut Vec<Effect>,
    ) -> Result<(), String> {
        if let Some(why) = self.refusal_to_forget(id) {
            return Err(why);
        }
        self.record_forgotten(now, id, &format!("requested by {by}"), out);
        Ok(())
    }

    /// Forgets trackers that have been lost for long and have no file that a job needs.
    pub(super) fn forget_lost(&mut self, now: Time, out: &mut Vec<Effect>) {
        let silent = self.cluster.silent_trackers(now, self.config.forget_after);
        let lost = silent.filter(|tracker| tracker.state == TrackerState::Lost);
        for id in lost.map(|tracker| tracker.id).collect::<Vec<_>>() {
            if self.refusal_to_forget(id).is_none() {
                self.record_forgotten(now, id, &format!("lost for {}", self.config.forget_after), out);
            }
        }
    }

    fn record_forgotten(&mut self, now: Time, id: TrackerId, why: &str, out: &mut Vec<Effect>) {
        let Some(name) = self.cluster.tracker(id).map(|tracker| tracker.name.clone()) else { return };
        self.record(now, Fact::TrackerForgotten { tracker: id, name, why: why.into() }, out);
        self.outboxes.remove(&id);
        self.trackers_with_unsent_orders.remove(&id);
    }

    fn refusal_to_forget(&self, id: TrackerId) -> Option<String> {
        let Some(tracker) = self.cluster.tracker(id) else {
            return Some(format!("there is no tracker {id}"));
        };
        let name = &tracker.name;
        if tracker.state != TrackerState::Lost {
            return Some(format!("{name} is not lost: stop it, and wait until it is lost"));
        }
        let active =
            |attempt: &AttemptId| self.cluster.job(attempt.job()).is_some_and(|job| !job.has_ended());
        let outputs = self.cluster.outputs_on(tracker);
        let needed = outputs.chain(tracker.checkpoints.iter().copied()).find(active);
        needed.map(|attempt| {
            format!("{} still needs files on {name}: try again when the job has ended", attempt.job())
        })
    }

    fn give_up_attempts(
        &mut self,
        now: Time,
        id: TrackerId,
        except: &BTreeSet<AttemptId>,
        why: &str,
        out: &mut Vec<Effect>,
    ) {
        let Some(tracker) = self.cluster.tracker(id) else { return };
        let running = Phase::BOTH.into_iter().flat_map(|phase| &tracker.running[phase]);
        let gone: Vec<AttemptId> = running.filter(|attempt| !except.contains(attempt)).copied().collect();
        for attempt in gone {
            self.attempt_lost(now, attempt, why, out);
        }
    }

    fn give_up_outputs(
        &mut self,
        now: Time,
        id: TrackerId,
        except: &BTreeSet<AttemptId>,
        why: &str,
        out: &mut Vec<Effect>,
    ) {
        let Some(tracker) = self.cluster.tracker(id) else { return };
        let mut needed: BTreeMap<JobId, bool> = BTreeMap::new();
        let mut is_needed = |attempt: &AttemptId| {
            let job = attempt.job();
            let look = || self.cluster.job(job).is_some_and(|job| self.cluster.needs_map_output(job));
            *needed.entry(job).or_insert_with(look)
        };
        let gone = self.cluster.outputs_on(tracker).filter(|attempt| !except.contains(attempt));
        let lost: Vec<AttemptId> = gone.filter(|attempt| is_needed(attempt)).collect();
        let unneeded = needed.iter().filter(|(_, needed)| !**needed).map(|(job, _)| *job);
        self.lost_unneeded_outputs.extend(unneeded);
        for attempt in lost {
            self.record(now, Fact::MapOutputLost { attempt, why: why.into(), unfetched: false }, out);
        }
    }

    /// Checks whether map outputs that were lost while no reduce needed them are needed again,
    /// because a reduce has to start over. The maps are checked only if outputs may have been lost,
    /// because this function can be called for each of thousands of paused reduces.
    pub(super) fn require_outputs(&mut self, now: Time, job: JobId, out: &mut Vec<Effect>) {
        if !self.lost_unneeded_outputs.contains(&job) {
            return;
        }
        let Some(job) = self.cluster.job(job).filter(|job| self.cluster.needs_map_output(job)) else {
            return;
        };
        self.lost_unneeded_outputs.remove(&job.id);
        let winners = job.tasks.map.iter().filter_map(crate::task::Task::winning_attempt);
        let lost = winners.filter(|attempt| {
            let tracker = self.cluster.tracker(attempt.output_on);
            let has = |tracker: &Tracker| {
                tracker.state != TrackerState::Lost && self.cluster.has_output(tracker, attempt.id)
            };
            !tracker.is_some_and(has)
        });
        let lost: Vec<AttemptId> = lost.map(|attempt| attempt.id).collect();
        for attempt in lost {
            let why = "its tracker has lost the output, which is needed again".into();
            self.record(now, Fact::MapOutputLost { attempt, why, unfetched: false }, out);
        }
    }

    /// Sends new map events of jobs to the trackers that run their reduces. A job with many running
    /// reduces would cause many orders for each map, so its trackers get the events with the next
    /// heartbeat, unless all maps are done.
    pub(super) fn send_map_events(&mut self) {
        for id in std::mem::take(&mut self.pending_map_events) {
            let Some(job) = self.cluster.job(id) else { continue };
            if job.running.reduce.len() > REDUCES_NOTIFIED_AT_ONCE && !job.is_done(Phase::Map) {
                continue;
            }
            let reduces = job.running.reduce.iter().filter_map(|attempt| self.cluster.attempt(*attempt));
            let trackers: BTreeSet<TrackerId> = reduces.map(|attempt| attempt.tracker).collect();
            let is_last = job.is_done(Phase::Map);
            for tracker in trackers {
                // A tracker with many unacknowledged orders gets the events with its next
                // heartbeat.
                let behind = self
                    .outboxes
                    .get(&tracker)
                    .map_or(0, |outbox| outbox.newest_order.saturating_sub(outbox.acked_order));
                if is_last || behind < UNACKED_ORDERS_MAX {
                    self.send_map_events_of(tracker, id);
                }
            }
        }
    }

    fn send_map_events_to(&mut self, id: TrackerId) {
        let reduces = self.cluster.tracker(id).into_iter().flat_map(|tracker| &tracker.running.reduce);
        let mut jobs: Vec<JobId> = reduces.map(|attempt| attempt.job()).collect();
        jobs.dedup(); // The attempts are ordered by job.
        for job in jobs {
            self.send_map_events_of(id, job);
        }
    }

    /// Sends a tracker the map events of a job that it has not received, up to the first event that
    /// names an awaited tracker, whose address is unknown until it registers. If that tracker is
    /// lost instead, its output is withdrawn and the events after it are sent.
    fn send_map_events_of(&mut self, tracker: TrackerId, id: JobId) {
        // Reduces of a finished job may take a while to end and need nothing any more.
        let Some(job) = self.cluster.job(id).filter(|job| job.is_running()) else { return };
        let outbox = self.outboxes.entry(tracker).or_default();
        let first = outbox.map_events_sent.get(&id).copied().unwrap_or(0);
        // An event about an output that was withdrawn or copied since does not delay later events.
        let counts = |map: AttemptId, on: TrackerId| {
            let winner = job.task(map.task).and_then(Task::winning_attempt);
            winner.is_some_and(|winner| winner.id == map && winner.output_on == on)
        };
        let is_awaited = |event: &MapEvent| match event {
            MapEvent::Available(map, on) => {
                let tracker = self.cluster.tracker(*on);
                tracker.is_some_and(|on| on.state == TrackerState::Awaited) && counts(*map, *on)
            }
            MapEvent::Withdrawn(_) => false,
        };
        let awaited = job.map_events[first..].iter().position(is_awaited);
        let known = awaited.map_or(job.map_events.len(), |at| first + at);
        if known == first {
            return;
        }
        let maps = job.tasks.map.len() as u32;
        outbox.map_events_sent.insert(id, known);
        for first in (first..known).step_by(MAP_EVENTS_MAX) {
            let next = known.min(first + MAP_EVENTS_MAX);
            let Some(job) = self.cluster.job(id) else { return };
            let events = job.map_events[first..next].to_vec();
            self.queue_order(tracker, Order::MapEvents { job: id, first, maps, events });
        }
    }

    /// Returns whether the process of the attempt has ended.
    pub(super) fn is_final(status: &AttemptStatus) -> bool {
        !matches!(status, AttemptStatus::Running(_))
    }
}
