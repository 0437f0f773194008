//! The state machine of the JobTracker. It handles one event at a time.
//!
//! Everything durable is *recorded* in one place, [`JobTracker::record`]: applied to the cluster,
//! passed to the scheduler, and appended to the journal. Orders to trackers wait in an outbox until
//! the tracker has acknowledged them. A repeated heartbeat gets the same answer and changes
//! nothing.
//!
//! | file | contents |
//! |---|---|
//! | `admission.rs` | which jobs are accepted |
//! | `jobs.rs` | submission, completion, commit, kill |
//! | `trackers.rs` | registration, heartbeats, suspicion, loss |
//! | `attempts.rs` | reports about attempts; fetch failures; blacklists |
//! | `preempt.rs` | preemption, checkpoints, resuming |
//! | `drain.rs` | draining of trackers |
//! | `rounds.rs` | offers to the scheduler, and execution of its plan |
//! | `reasons.rs`, `recent_facts.rs` | why a job waits, its recent events |
//! | `stragglers.rs` | detection and splitting of slow tasks |
//! | `timers.rs` | timeouts |

mod admission;
mod attempts;
mod drain;
mod jobs;
mod preempt;
mod reasons;
mod recent_facts;
mod rounds;
mod stragglers;
#[cfg(test)]
mod tests;
mod timers;
mod trackers;

pub use drain::DrainStatus;
use recent_facts::RecentFacts;

use crate::{
    cluster::{ApplyError, Cluster},
    config::Config,
    event::{Effect, Event, NumberedOrder, Order, Reply},
    fact::{Entry, Fact},
    ids::{AttemptId, JobId, RequestId, TrackerId},
    phase::{PerPhase, Phase},
    reserve::Reservations,
    scheduler::Scheduler,
    shadow::Shadow,
    speed::{Speeds, Throughput},
    task::PreemptKind,
    time::{Span, Time},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The interval between two ticks.
const TICK_INTERVAL: Span = Span::secs(1);
/// The minimum interval between two periodic rounds of a policy.
const POLICY_TICK_INTERVAL_MIN: Span = Span::millis(100);
/// No attempt is launched while less than `disk_reserve_bytes` divided by this number is free.
const LAUNCH_RESERVE_DIVISOR: u64 = 4;

/// Orders to one tracker that it has not acknowledged.
#[derive(Debug, Default)]
struct Outbox {
    /// The sequence number of the last heartbeat that was handled.
    last_seq: u64,
    /// The number of the newest order.
    newest_order: u64,
    /// The number of the newest order that the tracker has acknowledged.
    acked_order: u64,
    /// Orders that are not acknowledged. The driver knows which of them it has sent.
    unacked_orders: VecDeque<NumberedOrder>,
    /// How many map events of each job have been sent to the tracker.
    map_events_sent: BTreeMap<JobId, usize>,
}

/// The state machine of the JobTracker.
#[derive(Debug)]
pub struct JobTracker {
    config: Config,
    cluster: Cluster,
    scheduler: Box<dyn Scheduler>,
    shadow: Option<Shadow>,
    outboxes: BTreeMap<TrackerId, Outbox>,
    /// Trackers with orders that have not been sent.
    trackers_with_unsent_orders: BTreeSet<TrackerId>,
    /// For each map output: the reduces that could not fetch it, and how often.
    fetch_failures: BTreeMap<AttemptId, BTreeMap<AttemptId, u32>>,
    /// For each reduce: trackers whose outputs were given up because this reduce alone could not
    /// fetch them.
    trackers_reported_alone: BTreeMap<AttemptId, BTreeSet<TrackerId>>,
    /// How often a checkpoint could not be read although its tracker was live.
    unreachable_counts: BTreeMap<AttemptId, u32>,
    /// Jobs of which map outputs may have been lost while no reduce needed them.
    lost_unneeded_outputs: BTreeSet<JobId>,
    /// Whether launches are suspended. Then no attempt is launched and no round is run.
    launches_suspended: bool,
    /// Whether there may be new work for trackers with free slots.
    work_arrived: bool,
    /// Jobs with attempts that have ended during the current event.
    jobs_with_ended_attempts: BTreeSet<JobId>,
    /// Jobs with map events that have not been sent.
    pending_map_events: BTreeSet<JobId>,
    /// Copies in progress from draining trackers.
    copies: drain::Copies,
    /// The tracker with which the next round of offers begins, so that no tracker is always last.
    next_offer: TrackerId,
    reservations: Reservations,
    rounds: u64,
    refusals: u64,
    recent_facts: RecentFacts,
    speeds: Speeds,
    /// The number of the computation of the policy that is in progress.
    computing: Option<u64>,
    /// The number of computations so far, of the policy and of the shadow.
    computations: u64,
    last_tick: Time,
    /// No attempt can be late before this time.
    next_timeout: Time,
    last_policy_tick: Time,
    last_event: Time,
}

impl JobTracker {
    /// Creates a state machine with an empty cluster.
    pub fn new(config: Config, scheduler: Box<dyn Scheduler>) -> Self {
        Self {
            config,
            cluster: Cluster::default(),
            scheduler,
            shadow: None,
            outboxes: BTreeMap::new(),
            trackers_with_unsent_orders: BTreeSet::new(),
            fetch_failures: BTreeMap::new(),
            trackers_reported_alone: BTreeMap::new(),
            unreachable_counts: BTreeMap::new(),
            lost_unneeded_outputs: BTreeSet::new(),
            launches_suspended: false,
            work_arrived: false,
            jobs_with_ended_attempts: BTreeSet::new(),
            pending_map_events: BTreeSet::new(),
            copies: drain::Copies::default(),
            next_offer: TrackerId(0),
            reservations: Reservations::default(),
            rounds: 0,
            refusals: 0,
            recent_facts: RecentFacts::default(),
            speeds: Speeds::default(),
            computing: None,
            computations: 0,
            last_tick: Time(0),
            next_timeout: Time(0),
            last_policy_tick: Time(0),
            last_event: Time(0),
        }
    }

    /// Adds a second policy, whose decisions have no effect. To be called before any event or
    /// replay.
    #[must_use]
    pub fn with_shadow(mut self, scheduler: Box<dyn Scheduler>) -> Self {
        self.shadow = Some(Shadow::new(scheduler));
        self
    }

    /// Returns the second policy with the result of the comparison, if there is a second policy.
    pub fn shadow(&self) -> Option<&Shadow> {
        self.shadow.as_ref()
    }

    /// Applies an entry of the journal. To be called before the `Start` event.
    pub fn replay(&mut self, entry: &Entry) -> Result<(), ApplyError> {
        self.cluster.apply(entry.at, &entry.fact)?;
        self.notify_policies(entry.at, &entry.fact);
        self.recent_facts.add_fact(entry, self.config.events_max);
        self.speeds.add_fact(entry, &self.cluster);
        Ok(())
    }

    /// Handles one event and adds the effects to `out`.
    pub fn handle(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        self.handle_own_pause(now, out);
        match event {
            Event::Start => self.start_epoch(now, out),
            Event::Tick => self.tick(now, out),
            Event::FreeSpace { bytes } => {
                self.launches_suspended = self.suspends_launches(bytes);
                self.work_arrived |= !self.launches_suspended;
            }
            Event::Submission { request, spec } => self.submit_job(now, request, spec, out),
            Event::Kill { request, job, by } => {
                self.answer_once(now, request, out, |core, out| core.kill_job(now, job, &by, out));
            }
            Event::Preemption { request, attempt, kind, by } => {
                self.answer_once(now, request, out, |core, out| {
                    core.preempt_for_user(now, attempt, kind, &by, out)
                });
            }
            Event::Resumption { request, task, on, by } => {
                self.answer_once(now, request, out, |core, out| {
                    core.resume_for_user(now, task, on, &by, out)
                });
            }
            Event::Drain { request, tracker, within, by } => {
                self.answer_once(now, request, out, |core, out| {
                    core.drain_for_user(now, tracker, within, by, out)
                });
            }
            Event::Forget { request, tracker, by } => {
                self.answer_once(now, request, out, |core, out| core.forget_for_user(now, tracker, &by, out));
            }
            Event::Registration { request, tracker } => self.register(now, request, tracker, out),
            Event::Heartbeat(heartbeat) => self.heartbeat(now, heartbeat, out),
            Event::Disconnection { tracker, incarnation } => {
                self.disconnected(now, tracker, incarnation, out);
            }
            Event::CommitResult { job, repeated, result } => {
                self.commit_result(now, job, repeated, result, out);
            }
            Event::Computed { number, answer } => self.pass_solution(now, number, &answer),
        }
        self.finish_event(now, out);
    }

    /// Returns when to send a `Tick` if no other event arrives before.
    pub fn next_deadline(&self) -> Option<Time> {
        let policy = self.policy_tick_interval().map(|every| self.last_policy_tick + every);
        let shadow = self.shadow.as_ref().and_then(|shadow| shadow.next_tick(POLICY_TICK_INTERVAL_MIN));
        policy.into_iter().chain(shadow).chain([self.last_tick + TICK_INTERVAL]).min()
    }

    fn policy_tick_interval(&self) -> Option<Span> {
        self.scheduler.tick_interval().map(|every| every.max(POLICY_TICK_INTERVAL_MIN))
    }

    /// Returns the current state of the cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns whether launches are suspended while this many bytes are free on the disk of the
    /// journal. The remaining space is kept for recording how the running attempts end: a
    /// JobTracker that cannot write its journal ends.
    pub fn suspends_launches(&self, free_bytes: u64) -> bool {
        free_bytes < self.config.disk_reserve_bytes / LAUNCH_RESERVE_DIVISOR
    }

    /// Returns whether launches are suspended, see [`Event::FreeSpace`].
    pub fn launches_suspended(&self) -> bool {
        self.launches_suspended
    }

    /// Returns the name of the policy.
    pub fn scheduler_name(&self) -> &str {
        self.scheduler.name()
    }

    /// Returns the throughput of a tracker.
    pub fn throughput(&self, tracker: TrackerId) -> PerPhase<Throughput> {
        self.speeds.throughput(tracker)
    }

    /// Starts a new epoch and repeats commits that were in progress before the restart.
    fn start_epoch(&mut self, now: Time, out: &mut Vec<Effect>) {
        let epoch = self.cluster.epoch() + 1;
        let scheduler = self.scheduler.name().to_owned();
        self.record(now, Fact::JobTrackerStarted { epoch, scheduler }, out);
        self.last_tick = now;
        self.lost_unneeded_outputs = self.cluster.active_jobs().map(|job| job.id).collect();
        self.resume_jobs(now, out);
    }

    /// Carries out the last steps of every event: offers free slots, sends map events and orders.
    fn finish_event(&mut self, now: Time, out: &mut Vec<Effect>) {
        // The preemption of an attempt may make a task pending that fits another slot, so there are
        // two passes. There are no more, in case a policy preempts in every round.
        for _ in 0..2 {
            if std::mem::take(&mut self.work_arrived) {
                self.offer_free_slots(now, out);
            }
            self.run_requested_round(now, out);
        }
        // Drains come after the policy, which may already have preempted attempts on draining
        // trackers.
        self.advance_drains(now, out);
        if std::mem::take(&mut self.work_arrived) {
            self.offer_free_slots(now, out);
        }
        self.work_arrived = false;
        self.delete_late_leftovers(out);
        self.start_computations(out);
        self.send_map_events();
        while let Some(tracker) = self.trackers_with_unsent_orders.first().copied() {
            self.send_orders(tracker, None, out);
        }
    }

    fn notify_policies(&mut self, now: Time, fact: &Fact) {
        // An answer changes nothing that policies may depend on.
        if matches!(fact, Fact::RequestAnswered { .. }) {
            return;
        }
        self.scheduler.observe(now, fact, &self.cluster);
        if let Some(shadow) = &mut self.shadow {
            shadow.observe(now, fact, &self.cluster);
        }
    }

    /// Records a fact: applies it, passes it to the policies and appends it to the journal. Durable
    /// state changes only here.
    fn record(&mut self, now: Time, fact: Fact, out: &mut Vec<Effect>) {
        let checkpoints = fact.affected_reduce().map(|task| (task, self.checkpoints(task)));
        self.cluster.apply(now, &fact).expect("only consistent facts are recorded");
        self.notify_policies(now, &fact);
        self.reservations.observe(&fact);
        self.update_next_timeout(now, &fact);
        match &fact {
            Fact::JobSubmitted { .. }
            | Fact::PreemptionRequested { kind: PreemptKind::Kill, .. }
            | Fact::AttemptPaused { .. }
            | Fact::TaskReleased { .. }
            | Fact::CheckpointLost { .. }
            | Fact::AttemptFailed { .. }
            | Fact::AttemptKilled { .. } => {
                self.work_arrived = true;
            }
            Fact::MapOutputMoved { attempt } | Fact::MapOutputCopied { attempt, .. } => {
                self.pending_map_events.insert(attempt.job());
            }
            // The tracker has free slots again.
            Fact::DrainCancelled { .. } => self.work_arrived = true,
            Fact::MapOutputLost { attempt, .. } | Fact::MapSplit { attempt, .. } => {
                self.work_arrived = true;
                self.pending_map_events.insert(attempt.job());
            }
            Fact::AttemptSucceeded { attempt, .. } => {
                // The slot of the attempt is offered when the heartbeat that reports the attempt is
                // handled. But this may be the last map that reduces had to wait for, and they can
                // use other free slots.
                let job = self.cluster.job(attempt.job());
                self.work_arrived |= attempt.phase() == Phase::Map
                    && job.is_some_and(|job| job.succeeded.map == job.maps_before_reduces());
                self.pending_map_events.insert(attempt.job());
            }
            _ => {}
        }
        self.copies.observe(&fact, &self.cluster);
        if let Some((task, before)) = checkpoints {
            self.drop_unused_checkpoints(task, before);
        }
        let entry = Entry { at: now, fact };
        self.recent_facts.add_fact(&entry, self.config.events_max);
        self.speeds.add_fact(&entry, &self.cluster);
        out.push(Effect::Append(entry));
    }

    /// Carries out a request of a user and records the answer: `Err` has the reason of a refusal. A
    /// repeated request gets the first answer and has no effect.
    fn answer_once(
        &mut self,
        now: Time,
        request: RequestId,
        out: &mut Vec<Effect>,
        carry_out: impl FnOnce(&mut Self, &mut Vec<Effect>) -> Result<(), String>,
    ) {
        let answered = self.cluster.answers().find(now, request).map(|refusal| refusal.map(str::to_owned));
        let refusal = answered.unwrap_or_else(|| {
            let refusal = carry_out(self, out).err();
            self.record(now, Fact::RequestAnswered { request, refusal: refusal.clone() }, out);
            refusal
        });
        Self::reply(request, refusal.map_or(Reply::Accepted, Reply::Refused), out);
    }

    fn reply(request: RequestId, reply: Reply, out: &mut Vec<Effect>) {
        out.push(Effect::Reply { request, reply });
    }

    fn queue_order(&mut self, tracker: TrackerId, order: Order) {
        let outbox = self.outboxes.entry(tracker).or_default();
        outbox.newest_order += 1;
        outbox.unacked_orders.push_back((outbox.newest_order, order));
        self.trackers_with_unsent_orders.insert(tracker);
    }

    fn send_orders(&mut self, tracker: TrackerId, answers: Option<u64>, out: &mut Vec<Effect>) {
        let outbox = self.outboxes.entry(tracker).or_default();
        self.trackers_with_unsent_orders.remove(&tracker);
        out.push(Effect::SendOrders {
            tracker,
            answers,
            orders: outbox.unacked_orders.iter().cloned().collect(),
        });
    }
}
