//! Random lives of a cluster, from a seed: jobs come, attempts end in every way, trackers fall silent, break off and
//! come back, the JobTracker dies and replays its journal. After every event the invariants hold; when the faults
//! stop, every job ends; and the journal always gives the cluster that it came from.
//!
//! `FERMATA_SEED=7 cargo test -p mrcore --test random` plays one seed, `FERMATA_SEEDS=1000` so many.

use mrcore::{
    Config, Effect, Event, Fact, JobTracker, PerPhase, Phase, Plan, Scheduler, Span, Time, Why,
    digest::digest,
    event::{AttemptReport, AttemptStatus, FetchFailure, Heartbeat, Order, Registration, Reply},
    fact::Entry,
    ids::{AttemptId, Incarnation, JobId, RequestId, TaskId, TrackerId},
    invariants,
    job::{JobOutcome, JobSpec, Priority, Split},
    scheduler::{Cause, Round},
    task::{AttemptResult, Progress, Recall, Stage},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// splitmix64: small, and the same everywhere.
#[derive(Debug, Clone)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

/// Takes any job that can use a slot, in a random order; duplicates stragglers.
#[derive(Debug)]
struct Anyhow(Dice);

impl Scheduler for Anyhow {
    fn name(&self) -> &'static str {
        "anyhow"
    }

    fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
        let Cause::Offer(tracker) = round.cause else { return };
        let cluster = plan.cluster();
        if self.0.one_in(6) {
            self.take_back(plan, tracker);
        }
        for phase in Phase::BOTH {
            let mut jobs: Vec<_> = cluster.active_jobs().collect();
            while plan.free(tracker, phase) > 0 && !jobs.is_empty() {
                let at = self.0.below(jobs.len() as u64) as usize;
                let job = jobs[at];
                let waiting = match phase {
                    Phase::Map => {
                        plan.next_map(job, tracker, mrcore::plan::Locality::OffRack).map(|(task, _)| task)
                    }
                    Phase::Reduce => plan.next_reduce(job, tracker),
                };
                let task = waiting.or_else(|| plan.next_straggler(job, phase, tracker));
                if task.is_none_or(|task| plan.assign(task, tracker, Why::rule("anyhow")).is_err()) {
                    jobs.remove(at);
                }
            }
        }
    }
}

impl Anyhow {
    /// Takes some slot of a tracker back, by any means; whether that may be is the plan's to say.
    fn take_back(&mut self, plan: &mut Plan<'_>, tracker: TrackerId) {
        let running =
            plan.cluster().tracker(tracker).map(|tracker| tracker.running.clone()).unwrap_or_default();
        let attempts: Vec<AttemptId> = running.map.into_iter().chain(running.reduce).collect();
        if attempts.is_empty() {
            return;
        }
        let attempt = attempts[self.0.below(attempts.len() as u64) as usize];
        let how = [Recall::Split, Recall::Pause, Recall::Split, Recall::Pause, Recall::Kill];
        let before = plan.yielding(tracker, attempt.phase());
        if plan.preempt(attempt, how[self.0.below(5) as usize], Why::rule("anyhow")).is_ok() {
            assert!(plan.preempt(attempt, Recall::Kill, Why::rule("twice")).is_err());
            assert!(plan.yielding(tracker, attempt.phase()) >= before);
        }
    }
}

/// A tracker's own picture.
#[derive(Debug, Default)]
struct Body {
    number: Option<TrackerId>,
    incarnation: u64,
    slots: PerPhase<u32>,
    seq: u64,
    acked: u64,
    running: BTreeMap<AttemptId, f32>,
    /// Told to stop, and not gone yet: processes take their time.
    dying: BTreeMap<AttemptId, Recall>,
    /// States put aside.
    checkpoints: BTreeSet<AttemptId>,
    /// Ended, and not yet told with an answered heartbeat.
    ended: Vec<AttemptReport>,
    outputs: BTreeSet<AttemptId>,
    /// Jobs that it has a folder of.
    jobs: BTreeSet<JobId>,
    /// Its process is gone or cut off until then.
    away_until: Time,
}

struct World {
    seed: u64,
    dice: Dice,
    now: Time,
    mind: JobTracker,
    journal: Vec<Entry>,
    bodies: Vec<Body>,
    requests: u128,
    commits: Vec<JobId>,
    faults: bool,
    submitted: u32,
    seen: Seen,
}

/// How often each rare case was hit: what never happens is not tested.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Seen {
    jobs: u32,
    succeeded: u32,
    failed: u32,
    zombies: u32,
    duplicates: u32,
    outputs_lost: u32,
    unfetched: u32,
    blacklisted: u32,
    trackers_lost: u32,
    restarts: u32,
    late_words: u32,
    forgotten: u32,
    cleaned: u32,
    splits: u32,
    splits_of_tails: u32,
    pauses: u32,
    pauses_again: u32,
    resumes: u32,
    released: u32,
    checkpoints_lost: u32,
    dropped: u32,
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.jobs += other.jobs;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.zombies += other.zombies;
        self.duplicates += other.duplicates;
        self.outputs_lost += other.outputs_lost;
        self.unfetched += other.unfetched;
        self.blacklisted += other.blacklisted;
        self.trackers_lost += other.trackers_lost;
        self.restarts += other.restarts;
        self.late_words += other.late_words;
        self.forgotten += other.forgotten;
        self.cleaned += other.cleaned;
        self.splits += other.splits;
        self.splits_of_tails += other.splits_of_tails;
        self.pauses += other.pauses;
        self.pauses_again += other.pauses_again;
        self.resumes += other.resumes;
        self.released += other.released;
        self.checkpoints_lost += other.checkpoints_lost;
        self.dropped += other.dropped;
    }
}

fn config() -> Config {
    Config {
        launch_timeout: Span::secs(8),
        task_timeout: Span::secs(20),
        straggler_after: Span::secs(4),
        jobs_kept: 5,
        ..Config::default()
    }
}

fn mind(seed: u64) -> JobTracker {
    JobTracker::new(config(), Box::new(Anyhow(Dice(seed))))
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let bodies = (0..2 + dice.below(4)).map(|_| Body {
            incarnation: 1,
            slots: PerPhase { map: 1 + dice.below(3) as u32, reduce: 1 + dice.below(2) as u32 },
            ..Body::default()
        });
        let bodies = bodies.collect();
        let mut world = Self {
            seed,
            dice,
            now: Time(1_000_000),
            mind: mind(seed),
            journal: Vec::new(),
            bodies,
            requests: 0,
            commits: Vec::new(),
            faults: true,
            submitted: 0,
            seen: Seen::default(),
        };
        world.send(Event::Start);
        world
    }

    fn send(&mut self, event: Event) -> Option<Reply> {
        let shown = format!("{event:?}");
        let mut effects = Vec::new();
        self.mind.handle(self.now, event, &mut effects);
        let mut answer = None;
        for effect in effects {
            match effect {
                Effect::Append(entry) => {
                    self.note(&entry.fact);
                    self.journal.push(entry);
                }
                Effect::Reply { reply, .. } => answer = Some(reply),
                Effect::Tell { tracker, answer, orders } => self.told(tracker, answer, orders),
                Effect::AskToRegister { tracker, .. } => {
                    if let Some(body) = self.bodies.iter_mut().find(|body| body.number == Some(tracker)) {
                        body.number = None;
                    }
                }
                Effect::CommitJob { job } => self.commits.push(job),
                Effect::DiscardOutput { .. } => {}
            }
        }
        if let Err(what) = invariants::check(self.mind.cluster()) {
            panic!("seed {}: {what}\nafter {shown}", self.seed);
        }
        answer
    }

    fn note(&mut self, fact: &Fact) {
        match fact {
            Fact::JobEnded { outcome: JobOutcome::Succeeded, .. } => self.seen.succeeded += 1,
            Fact::JobEnded { outcome: JobOutcome::Failed(_), .. } => self.seen.failed += 1,
            Fact::AttemptLaunched { speculative: true, .. } => self.seen.duplicates += 1,
            Fact::MapOutputLost { unfetched: true, .. } => self.seen.unfetched += 1,
            Fact::MapOutputLost { .. } => self.seen.outputs_lost += 1,
            Fact::TrackerBlacklisted { .. } => self.seen.blacklisted += 1,
            Fact::TrackerLost { .. } => self.seen.trackers_lost += 1,
            Fact::JobForgotten { .. } => self.seen.forgotten += 1,
            Fact::MapSplit { attempt, .. } => {
                self.seen.splits += 1;
                let task = self.mind.cluster().task(attempt.task);
                self.seen.splits_of_tails += u32::from(task.is_some_and(|task| task.root != task.id.index));
            }
            Fact::AttemptPaused { attempt, .. } => {
                self.seen.pauses += 1;
                let paused = self.mind.cluster().attempt(*attempt);
                self.seen.pauses_again += u32::from(paused.is_some_and(|paused| paused.from.is_some()));
            }
            Fact::AttemptLaunched { from: Some(_), .. } => self.seen.resumes += 1,
            Fact::TaskReleased { .. } => self.seen.released += 1,
            Fact::CheckpointLost { .. } => self.seen.checkpoints_lost += 1,
            _ => {}
        }
    }

    /// A tracker takes its orders, unless it is away: then they are lost.
    fn told(&mut self, tracker: TrackerId, answer: Option<u64>, orders: Vec<(u64, Order)>) {
        let now = self.now;
        let lazy = self.faults && self.dice.one_in(40);
        let Some(body) = self.bodies.iter_mut().find(|body| body.number == Some(tracker)) else { return };
        if body.away_until > now {
            return;
        }
        if answer == Some(body.seq) {
            body.ended.clear();
        }
        for (number, order) in orders {
            if number <= body.acked {
                continue;
            }
            body.acked = number;
            match order {
                // A launch that goes nowhere: the tracker never speaks of it.
                Order::Launch(_) if lazy => {}
                Order::Launch(attempt) => {
                    body.running.insert(attempt, 0.0);
                    body.jobs.insert(attempt.job());
                }
                Order::Recall { attempt, how, .. } => {
                    if body.running.contains_key(&attempt) {
                        body.dying.insert(attempt, how);
                    }
                }
                Order::Drop(attempt) => {
                    self.seen.dropped += u32::from(body.checkpoints.remove(&attempt));
                }
                Order::Clean(job) => {
                    self.seen.cleaned += u32::from(body.jobs.remove(&job));
                    body.outputs.retain(|attempt| attempt.job() != job);
                    let its = body.running.keys().filter(|attempt| attempt.job() == job);
                    body.dying.extend(its.map(|attempt| (*attempt, Recall::Kill)));
                    body.checkpoints.retain(|attempt| attempt.job() != job);
                }
                Order::MapEvents { .. } => {}
            }
        }
        for phase in Phase::BOTH {
            let held = body.running.keys().filter(|attempt| attempt.phase() == phase).count();
            assert!(held <= body.slots[phase] as usize, "seed {}: {tracker} has no room", self.seed);
        }
    }

    fn register(&mut self, at: usize) {
        self.requests += 1;
        let request = RequestId(self.requests);
        let body = &mut self.bodies[at];
        let mut attempts = std::mem::take(&mut body.ended);
        attempts.extend(body.running.iter().map(|(attempt, done)| going(*attempt, *done)));
        let tracker = Registration {
            name: format!("t{at}"),
            incarnation: Incarnation(body.incarnation),
            host: format!("h{at}"),
            rack: format!("r{}", at % 2),
            shuffle_addr: "s".into(),
            logs_addr: "l".into(),
            slots: body.slots,
            attempts,
            outputs: body.outputs.iter().copied().collect(),
            checkpoints: body.checkpoints.iter().copied().collect(),
            jobs: body.jobs.iter().copied().collect(),
        };
        let is_zombie = |report: &AttemptReport| {
            let known = self.mind.cluster().attempt(report.attempt);
            known.is_none_or(|attempt| !attempt.state.holds_slot())
        };
        self.seen.zombies += tracker.attempts.iter().filter(|report| is_zombie(report)).count() as u32;
        (body.seq, body.acked) = (0, 0);
        // The number is known from before or is the next one; orders may come with the welcome.
        let known = self.mind.cluster().tracker_named(&tracker.name).map(|tracker| tracker.id);
        let next = TrackerId(self.mind.cluster().trackers().count() as u32);
        self.bodies[at].number = Some(known.unwrap_or(next));
        let reply = self.send(Event::Registration { request, tracker });
        assert!(matches!(reply, Some(Reply::Registered { .. })), "seed {}: {reply:?}", self.seed);
    }

    fn heartbeat(&mut self, at: usize) {
        let Some(tracker) = self.bodies[at].number else { return self.register(at) };
        self.work(at);
        let failures = self.unfetched(at);
        let body = &mut self.bodies[at];
        body.seq += 1;
        let mut attempts = body.ended.clone();
        attempts.extend(body.running.iter().map(|(attempt, done)| going(*attempt, *done)));
        let heartbeat = Heartbeat {
            tracker,
            incarnation: Incarnation(body.incarnation),
            seq: body.seq,
            acked: body.acked,
            attempts,
            fetch_failures: failures,
        };
        self.send(Event::Heartbeat(heartbeat.clone()));
        if self.dice.one_in(10) {
            let before = self.journal.len();
            self.send(Event::Heartbeat(heartbeat.clone()));
            assert_eq!(before, self.journal.len(), "seed {}: a repeat changed something", self.seed);
        }
        if heartbeat.incarnation.0 > 1 && self.dice.one_in(20) {
            self.late_word(heartbeat);
        }
    }

    /// Something that the process before this one said arrives only now.
    fn late_word(&mut self, mut heartbeat: Heartbeat) {
        heartbeat.incarnation.0 -= 1;
        heartbeat.seq += 100;
        let (before, numbers) = (self.journal.len(), self.numbers());
        self.send(Event::Heartbeat(heartbeat));
        assert_eq!(before, self.journal.len(), "seed {}: an older process was heard", self.seed);
        // The one that is there now is not the one that was asked to register.
        self.bodies.iter_mut().zip(numbers).for_each(|(body, number)| body.number = number);
        self.seen.late_words += 1;
    }

    fn numbers(&self) -> Vec<Option<TrackerId>> {
        self.bodies.iter().map(|body| body.number).collect()
    }

    /// Its attempts come further or end.
    fn work(&mut self, at: usize) {
        let ids: Vec<AttemptId> = self.bodies[at].running.keys().copied().collect();
        for attempt in ids {
            let fate = self.dice.below(if self.faults { 100 } else { 20 });
            let dies = self.dice.one_in(if self.faults { 12 } else { 2 });
            let body = &mut self.bodies[at];
            if let Some(how) = body.dying.get(&attempt).copied().filter(|_| dies) {
                body.dying.remove(&attempt);
                body.running.remove(&attempt);
                let status = self.yielded(at, attempt, how);
                self.bodies[at].ended.push(AttemptReport { attempt, status });
                continue;
            }
            let status = match fate {
                0..8 => {
                    if attempt.phase() == Phase::Map {
                        body.outputs.insert(attempt);
                    }
                    let counters = vec![("RECORDS".to_owned(), 1 + u64::from(attempt.task.index))];
                    AttemptStatus::Succeeded(AttemptResult { counters, ..AttemptResult::default() })
                }
                96 if self.mind.cluster().attempt(attempt).is_some_and(|known| known.from.is_some()) => {
                    AttemptStatus::Spoilt("bits have rotted".into())
                }
                96..98 => AttemptStatus::Failed("it broke".into()),
                98 => AttemptStatus::Killed("out of memory".into()),
                // It is stuck.
                99 => continue,
                _ => {
                    body.running.entry(attempt).and_modify(|done| *done = (*done + 0.1).min(0.99));
                    continue;
                }
            };
            body.running.remove(&attempt);
            body.dying.remove(&attempt);
            body.ended.push(AttemptReport { attempt, status });
        }
    }

    /// What comes of an attempt that gives its slot back: at times it has done nothing, or all.
    fn yielded(&mut self, at: usize, attempt: AttemptId, how: Recall) -> AttemptStatus {
        let task = self.mind.cluster().task(attempt.task);
        let known =
            task.and_then(|task| task.attempts.get(attempt.number as usize).map(|known| (task, known)));
        let (start, end, stage) = known
            .map_or((0, 0, Stage::Shuffle), |(task, known)| (task.start, known.end, known.progress.stage));
        let result = AttemptResult {
            counters: vec![("RECORDS".to_owned(), 1 + self.dice.below(5))],
            ..AttemptResult::default()
        };
        match how {
            Recall::Kill => AttemptStatus::Killed("as told".into()),
            Recall::Split => {
                self.bodies[at].outputs.insert(attempt);
                AttemptStatus::Split(start + self.dice.below(end.saturating_sub(start) + 1), result)
            }
            Recall::Pause => {
                self.bodies[at].checkpoints.insert(attempt);
                AttemptStatus::Paused { stage, bytes: self.dice.below(1000) }
            }
        }
    }

    fn unfetched(&mut self, at: usize) -> Vec<FetchFailure> {
        if !self.faults || !self.dice.one_in(15) {
            return Vec::new();
        }
        let reduces = self.bodies[at].running.keys().filter(|attempt| attempt.phase() == Phase::Reduce);
        let reduces: Vec<AttemptId> = reduces.copied().collect();
        let mut failures = Vec::new();
        for reduce in reduces {
            let job = self.mind.cluster().job(reduce.job());
            let winners = job.iter().flat_map(|job| &job.tasks.map).filter_map(mrcore::task::Task::winner);
            let maps: Vec<AttemptId> = winners.map(|attempt| attempt.id).collect();
            if !maps.is_empty() {
                let map = maps[self.dice.below(maps.len() as u64) as usize];
                failures.push(FetchFailure { reduce, map });
            }
        }
        failures
    }

    fn submit(&mut self) {
        self.submitted += 1;
        let hosts = self.bodies.len() as u64;
        let split = |dice: &mut Dice| Split {
            source: "/in".into(),
            start: 0,
            end: 10 + dice.below(90),
            divisible: !dice.one_in(8),
            hosts: vec![format!("h{}", dice.below(hosts))],
        };
        let spec = JobSpec {
            name: "j".into(),
            user: "u".into(),
            queue: "default".into(),
            priority: Priority::Normal,
            program: "p".into(),
            splits: (0..self.dice.below(6)).map(|_| split(&mut self.dice)).collect(),
            reduces: self.dice.below(4) as u32,
            output: String::new(),
            slow_start: [0.0, 0.05, 1.0][self.dice.below(3) as usize],
            speculation: self.dice.one_in(2),
            attempts_max: 2 + self.dice.below(3) as u32,
            conf: BTreeMap::new(),
        };
        self.requests += 1;
        let (request, spec) = (RequestId(self.requests), Arc::new(spec));
        let first = self.send(Event::Submission { request, spec: spec.clone() });
        assert_eq!(first, self.send(Event::Submission { request, spec }), "seed {}", self.seed);
    }

    /// Something goes wrong.
    fn fault(&mut self) {
        let at = self.dice.below(self.bodies.len() as u64) as usize;
        match self.dice.below(9) {
            6..8 => self.meddle(at),
            0 => self.restart(),
            1 => {
                let jobs: Vec<JobId> = self.mind.cluster().jobs().map(|job| job.id).collect();
                if !jobs.is_empty() {
                    self.requests += 1;
                    let job = jobs[self.dice.below(jobs.len() as u64) as usize];
                    self.send(Event::Kill { request: RequestId(self.requests), job, by: "u".into() });
                }
            }
            2 => {
                // The process dies and is started again.
                let body = &mut self.bodies[at];
                body.incarnation += 1;
                (body.number, body.seq, body.acked) = (None, 0, 0);
                body.running.clear();
                body.dying.clear();
                body.ended.clear();
                if self.dice.one_in(2) {
                    self.bodies[at].outputs.clear();
                }
                if self.dice.one_in(3) {
                    self.bodies[at].checkpoints.clear();
                }
                self.bodies[at].away_until = self.now + Span::secs(self.dice.below(15));
            }
            3 => {
                let incarnation = Incarnation(self.bodies[at].incarnation);
                if let Some(tracker) = self.bodies[at].number.take() {
                    self.send(Event::Disconnection { tracker, incarnation });
                }
            }
            _ => self.bodies[at].away_until = self.now + Span::secs(self.dice.below(20)),
        }
    }

    /// Somebody takes a slot back by hand, or has something go on.
    fn meddle(&mut self, at: usize) {
        self.requests += 1;
        let (request, by) = (RequestId(self.requests), "u".to_owned());
        let held = self.mind.cluster().active_jobs().flat_map(|job| &job.tasks.reduce).find(|task| task.held);
        if let Some(task) = held.map(|task| task.id).filter(|_| self.dice.one_in(2)) {
            let on = self.bodies[at].number.filter(|_| self.dice.one_in(2));
            self.send(Event::Resumption { request, task, on, by });
            return;
        }
        let running: Vec<AttemptId> = self.bodies[at].running.keys().copied().collect();
        if running.is_empty() {
            return;
        }
        let attempt = running[self.dice.below(running.len() as u64) as usize];
        let how = if attempt.phase() == Phase::Map { Recall::Split } else { Recall::Pause };
        let first = self.send(Event::Preemption { request, attempt, how, by: by.clone() });
        let again = self.send(Event::Preemption { request, attempt, how, by });
        assert_eq!(first, again, "seed {}", self.seed);
    }

    /// The JobTracker dies and comes back.
    fn restart(&mut self) {
        let mut mind = mind(self.seed);
        for entry in &self.journal {
            mind.replay(entry).unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
        }
        let (live, replayed) = (digest(self.mind.cluster()), digest(mind.cluster()));
        assert_eq!(live, replayed, "seed {}", self.seed);
        self.mind = mind;
        self.seen.restarts += 1;
        self.commits.clear();
        self.bodies.iter_mut().for_each(|body| body.number = None);
        self.send(Event::Start);
    }

    fn step(&mut self) {
        self.now = self.now + Span::millis(200);
        self.send(Event::Tick);
        if self.faults && self.dice.one_in(25) {
            self.submit();
        }
        if self.faults && self.dice.one_in(20) {
            self.fault();
        }
        for job in std::mem::take(&mut self.commits) {
            let fails = self.faults && self.dice.one_in(10);
            let result = if fails { Err("no room".into()) } else { Ok(()) };
            self.send(Event::CommitResult { job, result });
        }
        for at in 0..self.bodies.len() {
            if self.bodies[at].away_until <= self.now && self.dice.one_in(2) {
                self.heartbeat(at);
            }
        }
    }

    /// Nothing is held any more.
    fn let_go(&mut self) {
        let held =
            self.mind.cluster().active_jobs().flat_map(|job| &job.tasks.reduce).filter(|task| task.held);
        let held: Vec<TaskId> =
            held.filter(|task| task.trying().next().is_none()).map(|task| task.id).collect();
        for task in held {
            self.requests += 1;
            let event =
                Event::Resumption { request: RequestId(self.requests), task, on: None, by: "u".into() };
            assert_eq!(self.send(event), Some(Reply::Taken), "seed {}", self.seed);
        }
    }

    fn is_quiet(&self) -> bool {
        let cluster = self.mind.cluster();
        let idle = cluster
            .trackers()
            .all(|tracker| Phase::BOTH.into_iter().all(|phase| tracker.running[phase].is_empty()));
        let at_rest =
            |body: &Body| body.running.is_empty() && body.ended.is_empty() && body.away_until <= self.now;
        idle && self.bodies.iter().all(at_rest) && cluster.jobs().all(mrcore::job::Job::is_over)
    }
}

fn going(attempt: AttemptId, done: f32) -> AttemptReport {
    let stage = match attempt.phase() {
        Phase::Map => Stage::Map,
        Phase::Reduce if done < 0.5 => Stage::Shuffle,
        Phase::Reduce => Stage::Reduce,
    };
    let progress = Progress { done, stage, ..Progress::default() };
    AttemptReport { attempt, status: AttemptStatus::Running(progress) }
}

fn play(seed: u64) -> Seen {
    let mut world = World::new(seed);
    for _ in 0..800 {
        world.step();
    }
    world.faults = false;
    let mut steps = 0;
    while !world.is_quiet() {
        world.let_go();
        world.step();
        steps += 1;
        assert!(steps < 20_000, "seed {seed}: not at rest\n{}", digest(world.mind.cluster()));
    }
    // Every slot is free again, and nothing is kept of a job that is over once its tracker has spoken.
    for at in 0..world.bodies.len() {
        world.register(at);
    }
    for tracker in world.mind.cluster().trackers() {
        for phase in Phase::BOTH {
            assert_eq!(tracker.free(phase), tracker.slots[phase], "seed {seed}: {} leaks", tracker.name);
        }
    }
    let nothing_left = |body: &Body| body.jobs.is_empty() && body.checkpoints.is_empty();
    assert!(world.bodies.iter().all(nothing_left), "seed {seed}: files are left");
    world.restart();
    world.seen.jobs = world.submitted;
    world.seen
}

#[test]
fn random_lives_hold_the_invariants_and_come_to_rest() {
    let number = |key| std::env::var(key).ok().and_then(|text| text.parse::<u64>().ok());
    let one = number("FERMATA_SEED");
    let seeds = match one {
        Some(seed) => seed..seed + 1,
        None => 0..number("FERMATA_SEEDS").unwrap_or(60),
    };
    let mut seen = Seen::default();
    for seed in seeds {
        seen += play(seed);
    }
    println!("{seen:#?}");
    let rarest = [
        seen.succeeded,
        seen.failed,
        seen.zombies,
        seen.duplicates,
        seen.outputs_lost,
        seen.unfetched,
        seen.trackers_lost,
        seen.restarts,
        seen.late_words,
        seen.forgotten,
        seen.cleaned,
        seen.splits,
        seen.splits_of_tails,
        seen.pauses,
        seen.pauses_again,
        seen.resumes,
        seen.released,
        seen.checkpoints_lost,
        seen.dropped,
    ];
    assert!(one.is_some() || rarest.iter().all(|count| *count > 10), "something hardly happened: {seen:?}");
}
