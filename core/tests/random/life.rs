//! What befalls a world: work, people, faults, time.

use crate::{
    dice::Dice,
    world::{Body, World},
};
use mrcore::{
    Event, Phase, Span,
    digest::digest,
    event::{AttemptReport, AttemptStatus, FetchFailure, Reply},
    ids::{AttemptId, Incarnation, JobId, RequestId, TaskId},
    job::{JobSpec, Priority, Split},
    task::{AttemptResult, Recall, Stage},
    tracker::Tracker,
};
use std::{collections::BTreeMap, sync::Arc};

impl World {
    /// Its attempts come further or end.
    pub(crate) fn work(&mut self, at: usize) {
        self.copy(at);
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

    /// What it was to take from others is here, if it is still there, or is not.
    fn copy(&mut self, at: usize) {
        for attempt in std::mem::take(&mut self.bodies[at].taking) {
            let fails = self.faults && self.dice.one_in(6);
            let has = |body: &Body| body.outputs.contains(&attempt) || body.checkpoints.contains(&attempt);
            let status = if !fails && self.bodies.iter().any(has) {
                let body = &mut self.bodies[at];
                match attempt.phase() {
                    Phase::Map => body.outputs.insert(attempt),
                    Phase::Reduce => body.checkpoints.insert(attempt),
                };
                AttemptStatus::Taken(1)
            } else {
                AttemptStatus::NotTaken("it is not there".into())
            };
            self.bodies[at].ended.push(AttemptReport { attempt, status });
        }
    }

    /// Somebody has a tracker emptied, or used again.
    fn drain(&mut self, at: usize) {
        let Some(tracker) = self.bodies[at].number else { return };
        self.requests += 1;
        let (request, by) = (RequestId(self.requests), "u".to_owned());
        let is_draining = self.mind.cluster().tracker(tracker).is_some_and(|tracker| tracker.drain.is_some());
        let within = (!is_draining).then(|| Span::secs(self.dice.below(40)));
        self.send(Event::Drain { request, tracker, within, by });
    }

    /// Nothing is on a tracker that is drained, and all are used again.
    pub(crate) fn return_drained(&mut self) {
        let trackers: Vec<_> = self.mind.cluster().trackers().map(|tracker| tracker.id).collect();
        for tracker in trackers {
            let status = self.mind.drain_status(tracker);
            assert!(status.is_empty(), "seed {}: {tracker} is not empty: {status:?}", self.seed);
            self.requests += 1;
            let request = RequestId(self.requests);
            self.send(Event::Drain { request, tracker, within: None, by: "u".into() });
        }
    }

    /// What comes of an attempt that gives its slot back: at times it has done nothing, or all.
    pub(crate) fn yielded(&mut self, at: usize, attempt: AttemptId, how: Recall) -> AttemptStatus {
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
                let bytes = self.dice.below(1000);
                let redo = bytes.is_multiple_of(8).then(|| ("it cannot be saved".into(), Span(bytes)));
                AttemptStatus::Paused { stage, bytes, redo }
            }
        }
    }

    pub(crate) fn unfetched(&mut self, at: usize) -> Vec<FetchFailure> {
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

    pub(crate) fn submit(&mut self) {
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
            user: format!("u{}", self.dice.below(3)),
            queue: ["default", "a", "b.c"][self.dice.below(3) as usize].into(),
            priority: [Priority::Low, Priority::Normal, Priority::High][self.dice.below(3) as usize],
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
    pub(crate) fn fault(&mut self) {
        let at = self.dice.below(self.bodies.len() as u64) as usize;
        match self.dice.below(10) {
            6..8 => self.meddle(at),
            8 => self.drain(at),
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
                body.taking.clear();
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
    pub(crate) fn meddle(&mut self, at: usize) {
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
    pub(crate) fn restart(&mut self) {
        let mut mind = (self.make)(self.seed);
        for entry in &self.journal {
            mind.replay(entry).unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
        }
        let (live, replayed) = (digest(self.mind.cluster()), digest(mind.cluster()));
        assert_eq!(live, replayed, "seed {}", self.seed);
        self.seen.refusals += self.mind.refusals() as u32;
        self.mind = mind;
        self.seen.restarts += 1;
        self.commits.clear();
        self.sums.clear();
        self.bodies.iter_mut().for_each(|body| body.number = None);
        self.send(Event::Start);
    }

    pub(crate) fn step(&mut self) {
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
        for (number, answer) in std::mem::take(&mut self.sums) {
            self.send(Event::Computed { number, answer });
        }
        for at in 0..self.bodies.len() {
            if self.bodies[at].away_until <= self.now && self.dice.one_in(2) {
                self.heartbeat(at);
            }
        }
    }

    /// Nothing is held any more.
    pub(crate) fn let_go(&mut self) {
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

    pub(crate) fn is_quiet(&self) -> bool {
        let cluster = self.mind.cluster();
        // Of what was given up, a tracker's next word says that it is gone.
        let is_idle = |tracker: &Tracker, phase: Phase| {
            tracker.running[phase].is_empty() && tracker.strangers[phase].is_empty()
        };
        let idle =
            cluster.trackers().all(|tracker| Phase::BOTH.into_iter().all(|phase| is_idle(tracker, phase)));
        let at_rest =
            |body: &Body| body.running.is_empty() && body.ended.is_empty() && body.away_until <= self.now;
        idle && self.bodies.iter().all(at_rest) && cluster.jobs().all(mrcore::job::Job::is_over)
    }
}
