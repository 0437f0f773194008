//! The state machine, simulated trackers, and the messages between them.

use crate::{
    event_counts::EventCounts,
    map_events::{MapEventLog, Ranges},
    random_events::OUTDATED,
    rng::Rng,
};
use mrcore::{
    Config, Effect, Event, Fact, JobTracker, PerPhase, Phase, Scheduler, Span, Time,
    cluster::Durable,
    compute::Numbers,
    event::{AttemptReport, AttemptStatus, Heartbeat, Order, Registration, Reply},
    fact::Entry,
    ids::{AttemptId, Incarnation, JobId, RequestId, TrackerId},
    invariants,
    job::JobOutcome,
    task::{CheckpointInfo, PreemptKind, PreemptRefusal, Progress, Stage},
    trace_checker::TraceChecker,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

/// A running attempt.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Run {
    pub(crate) done: f32,
    pub(crate) bytes_in: u64,
    pub(crate) records: u64,
    pub(crate) refusals: u32,
    /// The checkpoint that it should resume from does not exist.
    pub(crate) will_fail: bool,
}

/// The state of a simulated tracker.
#[derive(Debug, Default)]
pub(crate) struct SimTracker {
    pub(crate) number: Option<TrackerId>,
    pub(crate) incarnation: u64,
    /// How often its process was started. Each start has another address.
    pub(crate) starts: u32,
    pub(crate) slots: PerPhase<u32>,
    pub(crate) seq: u64,
    pub(crate) acked: u64,
    pub(crate) running: BTreeMap<AttemptId, Run>,
    /// Attempts that were preempted and have not ended yet.
    pub(crate) dying: BTreeMap<AttemptId, PreemptKind>,
    /// Its checkpoints.
    pub(crate) checkpoints: BTreeMap<AttemptId, CheckpointInfo>,
    /// Reports of ended attempts that have not been acknowledged.
    pub(crate) ended: Vec<AttemptReport>,
    pub(crate) outputs: BTreeSet<AttemptId>,
    /// Jobs of which it has a folder.
    pub(crate) jobs: BTreeSet<JobId>,
    /// Attempts whose files it should copy.
    pub(crate) copying: BTreeSet<AttemptId>,
    /// The map events that its reduces have received.
    pub(crate) map_events: BTreeMap<JobId, MapEventLog>,
    /// Its process is down or disconnected until this time.
    pub(crate) down_until: Time,
}

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) rng: Rng,
    pub(crate) now: Time,
    pub(crate) make: Make,
    pub(crate) core: JobTracker,
    pub(crate) journal: Vec<Entry>,
    pub(crate) trackers: Vec<SimTracker>,
    pub(crate) requests: u128,
    pub(crate) commits: Vec<JobId>,
    /// Solutions of computations that have not been sent.
    pub(crate) solutions: Vec<(u64, Numbers)>,
    pub(crate) faults: bool,
    pub(crate) submitted: u32,
    pub(crate) counts: EventCounts,
    /// The ranges of all map outputs that ever counted.
    pub(crate) ranges: Ranges,
    /// Checkpoints that were lost with a disk.
    pub(crate) destroyed: BTreeSet<AttemptId>,
    trace_checker: TraceChecker,
    /// All facts so far, applied to an empty cluster.
    replica: Durable,
}

pub(crate) fn config() -> Config {
    Config {
        launch_timeout: Span::secs(8),
        task_timeout: Span::secs(20),
        straggler_after: Span::secs(4),
        preemption_timeout: Span::secs(6),
        jobs_kept: 5,
        ..Config::default()
    }
}

/// Creates the state machine of a world from its seed.
pub(crate) type Make = Rc<dyn Fn(u64) -> JobTracker>;

/// A state machine with this policy.
pub(crate) fn core(scheduler: Box<dyn Scheduler>) -> JobTracker {
    JobTracker::new(config(), scheduler)
}

impl World {
    pub(crate) fn new(seed: u64, make: Make) -> Self {
        let mut rng = Rng(seed);
        let trackers = (0..2 + rng.below(4)).map(|_| SimTracker {
            incarnation: 0,
            slots: PerPhase { map: 1 + rng.below(3) as u32, reduce: 1 + rng.below(2) as u32 },
            ..SimTracker::default()
        });
        let trackers = trackers.collect();
        let mut world = Self {
            seed,
            rng,
            now: Time(1_000_000),
            core: make(seed),
            make,
            journal: Vec::new(),
            trackers,
            requests: 0,
            commits: Vec::new(),
            solutions: Vec::new(),
            faults: true,
            submitted: 0,
            counts: EventCounts::default(),
            ranges: Ranges::default(),
            destroyed: BTreeSet::new(),
            trace_checker: TraceChecker::default(),
            replica: Durable::default(),
        };
        world.send(Event::Start);
        world
    }

    pub(crate) fn send(&mut self, event: Event) -> Option<Reply> {
        let shown = format!("{event:?}");
        let mut effects = Vec::new();
        let before = self.before(&event);
        self.core.handle(self.now, event.clone(), &mut effects);
        if let Err(what) = self.trace_checker.check(&event, &effects, self.core.cluster()) {
            panic!("seed {}: {what}\nafter {shown}", self.seed);
        }
        let mut answer = None;
        for effect in effects {
            match effect {
                Effect::Append(entry) => {
                    self.note(&entry.fact);
                    self.note_race(&before, &entry.fact);
                    if let Err(what) = self.replica.apply(entry.at, &entry.fact) {
                        panic!("seed {}: {what}\nafter {shown}", self.seed);
                    }
                    self.journal.push(entry);
                }
                Effect::Reply { reply, .. } => {
                    self.note_reply(&before, &reply);
                    answer = Some(reply);
                }
                Effect::SendOrders { tracker, answer, orders } => self.sent(tracker, answer, orders),
                Effect::RequestRegistration { tracker, .. } => {
                    if let Some(sim) = self.trackers.iter_mut().find(|sim| sim.number == Some(tracker)) {
                        sim.number = None;
                    }
                }
                Effect::CommitJob { job } => self.commits.push(job),
                Effect::DiscardOutput { .. } => {}
                Effect::Compute { number, problem } => self.solutions.push((number, problem.solve())),
            }
        }
        if let Err(what) = invariants::check(self.core.cluster()) {
            panic!("seed {}: {what}\nafter {shown}", self.seed);
        }
        assert!(
            self.replica == *self.core.cluster().durable(),
            "seed {}: the facts do not give the durable half\nafter {shown}",
            self.seed
        );
        answer
    }

    pub(crate) fn note(&mut self, fact: &Fact) {
        match fact {
            Fact::JobEnded { outcome: JobOutcome::Succeeded, .. } => self.counts.succeeded += 1,
            Fact::JobEnded { outcome: JobOutcome::Failed(_), .. } => self.counts.failed += 1,
            Fact::AttemptLaunched { speculative: true, resumed_from, .. } => {
                self.counts.duplicates += 1;
                self.counts.resumes += u32::from(resumed_from.is_some());
                self.counts.duplicates_resumed += u32::from(resumed_from.is_some());
            }
            Fact::MapOutputLost { unfetched: true, .. } => self.counts.unfetched += 1,
            Fact::MapOutputLost { .. } => self.counts.outputs_lost += 1,
            Fact::TrackerBlacklisted { .. } => self.counts.blacklisted += 1,
            Fact::TrackerLost { .. } => self.counts.trackers_lost += 1,
            Fact::JobForgotten { .. } => self.counts.forgotten += 1,
            Fact::AttemptSucceeded { attempt, .. } => self.ranges.note(*attempt, self.core.cluster()),
            Fact::MapSplit { attempt, .. } => {
                self.ranges.note(*attempt, self.core.cluster());
                self.counts.splits += 1;
                let task = self.core.cluster().task(attempt.task);
                self.counts.splits_of_remainders +=
                    u32::from(task.is_some_and(|task| task.root != task.id.index));
            }
            Fact::AttemptPaused { attempt, .. } => {
                self.counts.pauses += 1;
                let paused = self.core.cluster().attempt(*attempt);
                self.counts.pauses_again +=
                    u32::from(paused.is_some_and(|paused| paused.resumed_from.is_some()));
            }
            Fact::AttemptLaunched { resumed_from: Some(_), .. } => self.counts.resumes += 1,
            Fact::TaskReleased { .. } => self.counts.released += 1,
            Fact::CheckpointLost { .. } => self.counts.checkpoints_lost += 1,
            Fact::TrackerDraining { .. } => self.counts.drains += 1,
            Fact::MapOutputCopied { .. } => self.counts.outputs_copied += 1,
            Fact::CheckpointCopied { .. } => self.counts.checkpoints_copied += 1,
            _ => {}
        }
    }

    /// A tracker receives orders. If it is down, they are lost.
    pub(crate) fn sent(&mut self, tracker: TrackerId, answer: Option<u64>, orders: Vec<(u64, Order)>) {
        let now = self.now;
        let lazy = self.faults && self.rng.one_in(40);
        let Some(at) = self.trackers.iter().position(|sim| sim.number == Some(tracker)) else { return };
        let sim = &mut self.trackers[at];
        if sim.down_until > now {
            return;
        }
        if answer == Some(sim.seq) {
            sim.ended.clear();
        }
        for (number, order) in orders {
            if number <= self.trackers[at].acked {
                continue;
            }
            self.trackers[at].acked = number;
            // A launch that the tracker loses and never reports.
            if !(lazy && matches!(order, Order::Launch(_))) {
                self.execute(at, tracker, order);
            }
        }
        let sim = &self.trackers[at];
        for phase in Phase::BOTH {
            let running = sim.running.keys().filter(|attempt| attempt.phase() == phase).count();
            assert!(running <= sim.slots[phase] as usize, "seed {}: {tracker} has too few slots", self.seed);
        }
    }

    fn execute(&mut self, at: usize, tracker: TrackerId, order: Order) {
        if let Order::DropCheckpoint(attempt) = order {
            self.assert_unwanted(tracker, attempt);
        }
        let sim = &mut self.trackers[at];
        match order {
            Order::Launch(attempt) => self.launched(at, attempt),
            Order::Preempt { attempt, kind, .. } => {
                if sim.running.contains_key(&attempt) {
                    sim.dying.insert(attempt, kind);
                }
            }
            Order::DropCheckpoint(attempt) => {
                self.counts.dropped += u32::from(sim.checkpoints.remove(&attempt).is_some());
            }
            Order::Clean(job) => {
                self.counts.cleaned += u32::from(sim.jobs.remove(&job));
                sim.outputs.retain(|attempt| attempt.job() != job);
                sim.copying.retain(|attempt| attempt.job() != job);
                let its = sim.running.keys().filter(|attempt| attempt.job() == job);
                sim.dying.extend(its.map(|attempt| (*attempt, PreemptKind::Kill)));
                sim.checkpoints.retain(|attempt, _| attempt.job() != job);
                sim.map_events.remove(&job);
            }
            Order::CopyFiles { attempt, .. } => {
                sim.copying.insert(attempt);
                sim.jobs.insert(attempt.job());
            }
            Order::MapEvents { job, first, maps, events } => {
                let map_events = sim.map_events.entry(job).or_default();
                if let Err(what) = map_events.apply(first, maps, &events, &self.ranges, self.core.cluster()) {
                    panic!("seed {}: {job} on {tracker}: {what}", self.seed);
                }
            }
        }
    }

    /// A dropped checkpoint is not being read and will not be resumed from.
    fn assert_unwanted(&self, tracker: TrackerId, dropped: AttemptId) {
        let cluster = self.core.cluster();
        let Some(job) = cluster.job(dropped.job()).filter(|job| job.is_running()) else { return };
        let checkpoint = job.task(dropped.task).and_then(|task| task.checkpoint);
        let wanted = checkpoint
            .is_some_and(|checkpoint| (checkpoint.attempt, checkpoint.tracker) == (dropped, tracker));
        assert!(!wanted, "seed {}: {dropped} is dropped although its task will resume from it", self.seed);
        let reads = |attempt: &AttemptId| {
            cluster.attempt(*attempt).is_some_and(|attempt| {
                attempt.state.holds_slot()
                    && (attempt.resumed_from, attempt.checkpoint_on) == (Some(dropped), Some(tracker))
            })
        };
        let reader = self.trackers.iter().flat_map(|sim| sim.running.keys()).find(|attempt| reads(attempt));
        assert!(reader.is_none(), "seed {}: {dropped} is dropped while {reader:?} reads it", self.seed);
    }

    /// An attempt starts, from the checkpoint that the order names.
    fn launched(&mut self, at: usize, attempt: AttemptId) {
        let known = self.core.cluster().attempt(attempt);
        let resumed = known.and_then(|known| known.resumed_from.zip(known.checkpoint_on));
        let wanted = known.is_some_and(|known| known.state.is_viable());
        let mut run = Run::default();
        if let Some((paused, checkpoint_on)) = resumed {
            let checkpoint = self.core.cluster().task(attempt.task).and_then(|task| task.checkpoint);
            // It may have been copied to another tracker since.
            let now = checkpoint
                .filter(|checkpoint| checkpoint.attempt == paused)
                .map_or(checkpoint_on, |checkpoint| checkpoint.tracker);
            let has = |sim: &&SimTracker| sim.number == Some(now) || sim.number.is_none();
            let there = self.trackers.iter().filter(has).find_map(|sim| sim.checkpoints.get(&paused));
            if let Some(checkpoint) = there {
                (run.bytes_in, run.records) = (checkpoint.bytes_in, checkpoint.records);
            } else {
                // An order may arrive after the attempt was given up.
                let excused = self.destroyed.contains(&paused) || !wanted;
                assert!(
                    excused,
                    "seed {}: the checkpoint of {paused}, for {attempt}, is not where the order says",
                    self.seed
                );
                run.will_fail = true;
            }
        }
        let sim = &mut self.trackers[at];
        sim.running.insert(attempt, run);
        sim.jobs.insert(attempt.job());
    }

    pub(crate) fn register(&mut self, at: usize) {
        self.requests += 1;
        let request = RequestId(self.requests);
        let sim = &mut self.trackers[at];
        let mut attempts = std::mem::take(&mut sim.ended);
        attempts.extend(sim.running.iter().map(|(attempt, run)| running_report(*attempt, *run)));
        let tracker = Registration {
            name: format!("t{at}"),
            incarnation: Incarnation(sim.incarnation),
            host: format!("h{at}"),
            rack: format!("r{}", at % 2),
            shuffle_addr: format!("h{at}:{}", sim.starts),
            logs_addr: "l".into(),
            slots: sim.slots,
            attempts,
            outputs: sim.outputs.iter().copied().collect(),
            checkpoints: sim.checkpoints.clone().into_iter().collect(),
            jobs: sim.jobs.iter().copied().collect(),
        };
        let is_zombie = |report: &AttemptReport| {
            let known = self.core.cluster().attempt(report.attempt);
            known.is_none_or(|attempt| !attempt.state.holds_slot())
        };
        self.counts.zombies += tracker.attempts.iter().filter(|report| is_zombie(report)).count() as u32;
        (sim.seq, sim.acked) = (0, 0);
        sim.map_events.clear();
        // The number of the tracker is known or is the next one. Orders may arrive with the reply.
        let known = self.core.cluster().tracker_named(&tracker.name).map(|tracker| tracker.id);
        let next = TrackerId(self.core.cluster().trackers().count() as u32);
        self.trackers[at].number = Some(known.unwrap_or(next));
        let reply = self.send(Event::Registration { request, tracker });
        let Some(Reply::Registered { incarnation, .. }) = reply else {
            panic!("seed {}: {reply:?}", self.seed)
        };
        self.trackers[at].incarnation = incarnation.0;
    }

    pub(crate) fn heartbeat(&mut self, at: usize) {
        let Some(tracker) = self.trackers[at].number else { return self.register(at) };
        self.work(at);
        let failures = self.unfetched(at);
        let sim = &mut self.trackers[at];
        sim.seq += 1;
        let mut attempts = sim.ended.clone();
        attempts.extend(sim.running.iter().map(|(attempt, run)| running_report(*attempt, *run)));
        let heartbeat = Heartbeat {
            tracker,
            incarnation: Incarnation(sim.incarnation),
            seq: sim.seq,
            acked: sim.acked,
            attempts,
            fetch_failures: failures,
        };
        let (outputs_lost, failures) = (self.counts.unfetched, &heartbeat.fetch_failures);
        let outdated = failures.iter().all(|failure| failure.addr == OUTDATED);
        self.send(Event::Heartbeat(heartbeat.clone()));
        assert!(
            !outdated || outputs_lost == self.counts.unfetched,
            "seed {}: a map runs again because of an address that its tracker does not have",
            self.seed
        );
        for phase in Phase::BOTH {
            let idle = self.core.runnable_task(self.now, tracker, phase).is_some();
            self.counts.idle[phase] += u32::from(idle);
        }
        if self.rng.one_in(10) {
            let before = self.journal.len();
            self.send(Event::Heartbeat(heartbeat.clone()));
            assert_eq!(before, self.journal.len(), "seed {}: a repeat changed something", self.seed);
        }
        if heartbeat.incarnation.0 > 1 && self.rng.one_in(20) {
            self.late_report(heartbeat);
        }
    }

    /// A heartbeat of the previous process arrives late.
    pub(crate) fn late_report(&mut self, mut heartbeat: Heartbeat) {
        heartbeat.incarnation.0 -= 1;
        heartbeat.seq += 100;
        let (before, numbers) = (self.journal.len(), self.numbers());
        self.send(Event::Heartbeat(heartbeat));
        assert_eq!(
            before,
            self.journal.len(),
            "seed {}: a heartbeat of an older process was accepted",
            self.seed
        );
        // The request to register was for the older process.
        self.trackers.iter_mut().zip(numbers).for_each(|(sim, number)| sim.number = number);
        self.counts.late_reports += 1;
    }

    pub(crate) fn numbers(&self) -> Vec<Option<TrackerId>> {
        self.trackers.iter().map(|sim| sim.number).collect()
    }
}
/// The stage that corresponds to a progress.
pub(crate) fn stage(phase: Phase, done: f32) -> Stage {
    match phase {
        Phase::Map => Stage::Map,
        Phase::Reduce if done < 0.5 => Stage::Shuffle,
        Phase::Reduce => Stage::Reduce,
    }
}

pub(crate) fn running_report(attempt: AttemptId, run: Run) -> AttemptReport {
    let progress = Progress {
        done: run.done,
        stage: stage(attempt.phase(), run.done),
        bytes_in: run.bytes_in,
        refusals: run.refusals,
        refused: (run.refusals > 0).then_some(PreemptRefusal::NoSpace),
        ..Progress::default()
    };
    AttemptReport { attempt, status: AttemptStatus::Running(progress) }
}
