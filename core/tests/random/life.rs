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
    task::{Aside, AttemptResult, Recall},
    tracker::Tracker,
};
use std::{collections::BTreeMap, sync::Arc};

/// An address that no tracker has.
pub(crate) const OUTDATED: &str = "outdated:1";

impl World {
    /// Its attempts come further or end.
    pub(crate) fn work(&mut self, at: usize) {
        self.copy(at);
        let ids: Vec<AttemptId> = self.bodies[at].running.keys().copied().collect();
        for attempt in ids {
            let fate = self.dice.below(if self.faults { 100 } else { 20 });
            let dies = self.dice.one_in(if self.faults { 12 } else { 2 });
            let refuses = self.faults && self.dice.one_in(60);
            let body = &mut self.bodies[at];
            if let Some(how) = body.dying.get(&attempt).copied().filter(|_| dies || refuses) {
                body.dying.remove(&attempt);
                if refuses && how != Recall::Kill {
                    body.running.entry(attempt).and_modify(|run| run.refusals += 1);
                    continue;
                }
                let status = self.yielded(at, attempt, how);
                self.bodies[at].running.remove(&attempt);
                self.bodies[at].ended.push(AttemptReport { attempt, status });
                continue;
            }
            let Some(status) = self.fate(at, attempt, fate) else { continue };
            let body = &mut self.bodies[at];
            body.running.remove(&attempt);
            body.dying.remove(&attempt);
            body.ended.push(AttemptReport { attempt, status });
        }
    }

    /// How an attempt ends by itself; None if it goes on.
    fn fate(&mut self, at: usize, attempt: AttemptId, fate: u64) -> Option<AttemptStatus> {
        let known = self.mind.cluster().attempt(attempt);
        let took = known.is_some_and(|known| known.from.is_some());
        let elsewhere = took && known.is_some_and(|known| known.origin != Some(known.tracker));
        let body = &mut self.bodies[at];
        let run = body.running.get_mut(&attempt)?;
        Some(match fate {
            _ if run.doomed => AttemptStatus::Spoilt("it is not there".into()),
            0..8 => {
                if attempt.phase() == Phase::Map {
                    body.outputs.insert(attempt);
                }
                let counters = vec![("RECORDS".to_owned(), 1 + u64::from(attempt.task.index))];
                AttemptStatus::Succeeded(AttemptResult { counters, ..AttemptResult::default() })
            }
            94 | 95 if elsewhere => {
                self.seen.unreached += 1;
                AttemptStatus::Unreached("nobody answers".into())
            }
            96 if took => AttemptStatus::Spoilt("bits have rotted".into()),
            96..98 => AttemptStatus::Failed("it broke".into()),
            98 => AttemptStatus::Killed("out of memory".into()),
            // It is stuck.
            99 => return None,
            _ => {
                run.done = (run.done + 0.1).min(0.99);
                run.bytes_in += 7;
                run.records += u64::from(run.done >= 0.5);
                return None;
            }
        })
    }

    /// What it was to take from others is here, if it is still there, or is not.
    fn copy(&mut self, at: usize) {
        for attempt in std::mem::take(&mut self.bodies[at].taking) {
            let fails = self.faults && self.dice.one_in(6);
            let aside = self.bodies.iter().find_map(|body| body.checkpoints.get(&attempt).copied());
            let output = self.bodies.iter().any(|body| body.outputs.contains(&attempt));
            let status = if !fails && (output || aside.is_some()) {
                let body = &mut self.bodies[at];
                match aside {
                    None => drop(body.outputs.insert(attempt)),
                    Some(aside) => drop(body.checkpoints.insert(attempt, aside)),
                }
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
        let (start, end) = known.map_or((0, 0), |(task, known)| (task.start, known.end));
        let run = self.bodies[at].running.get(&attempt).copied().unwrap_or_default();
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
            // It had not begun.
            Recall::Pause if run.doomed => AttemptStatus::Killed("it had not begun".into()),
            Recall::Pause => {
                let stage = crate::world::stage(attempt.phase(), run.done);
                let bytes = self.dice.below(1000);
                let aside = Aside { stage, bytes, bytes_in: run.bytes_in, records: run.records };
                self.bodies[at].checkpoints.insert(attempt, aside);
                AttemptStatus::Paused(aside)
            }
        }
    }

    pub(crate) fn unfetched(&mut self, at: usize) -> Vec<FetchFailure> {
        if !self.faults || !self.dice.one_in(15) {
            return Vec::new();
        }
        let reduces = self.bodies[at].running.keys().filter(|attempt| attempt.phase() == Phase::Reduce);
        let reduces: Vec<AttemptId> = reduces.copied().collect();
        // At times all of them have been told an address that nobody has any more.
        let outdated = self.dice.one_in(3);
        let mut failures = Vec::new();
        for reduce in reduces {
            let job = self.mind.cluster().job(reduce.job());
            let winners = job.iter().flat_map(|job| &job.tasks.map).filter_map(mrcore::task::Task::winner);
            let maps: Vec<AttemptId> = winners.map(|attempt| attempt.id).collect();
            if !maps.is_empty() {
                let map = maps[self.dice.below(maps.len() as u64) as usize];
                let addr = if outdated { OUTDATED.to_owned() } else { self.addr_of(map) };
                failures.push(FetchFailure { reduce, map, addr });
            }
        }
        failures
    }

    /// Where a map's output is fetched, as the mind knows.
    fn addr_of(&self, map: AttemptId) -> String {
        let cluster = self.mind.cluster();
        let keeper = cluster.attempt(map).and_then(|map| cluster.tracker(map.keeper));
        keeper.map_or_else(String::new, |keeper| keeper.shuffle_addr.clone())
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
            pin: mrcore::job::InputPin::default(),
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
            6 | 7 => {
                // Where something is being put aside, if that is anywhere.
                let pausing = |body: &Body| body.dying.values().any(|how| *how == Recall::Pause);
                let at = self.bodies.iter().position(pausing).unwrap_or(at);
                self.die(at);
            }
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
            2 => self.die(at),
            3 => {
                let incarnation = Incarnation(self.bodies[at].incarnation);
                if let Some(tracker) = self.bodies[at].number.take() {
                    self.send(Event::Disconnection { tracker, incarnation });
                }
            }
            _ => self.bodies[at].away_until = self.now + Span::secs(self.dice.below(20)),
        }
    }

    fn die(&mut self, at: usize) {
        // The process dies and is started again; what was just put aside is there, and nobody has been told.
        let pausing = self.bodies[at].dying.iter().filter(|(_, how)| **how == Recall::Pause);
        for attempt in pausing.map(|(attempt, _)| *attempt).collect::<Vec<_>>() {
            if self.dice.one_in(2) {
                let _ = self.yielded(at, attempt, Recall::Pause);
            }
        }
        let body = &mut self.bodies[at];
        body.incarnation = 0;
        body.starts += 1;
        (body.number, body.seq, body.acked) = (None, 0, 0);
        body.running.clear();
        body.dying.clear();
        body.ended.clear();
        body.taking.clear();
        if self.dice.one_in(2) {
            self.bodies[at].outputs.clear();
        }
        if self.dice.one_in(3) {
            let gone = std::mem::take(&mut self.bodies[at].checkpoints);
            self.destroyed.extend(gone.into_keys());
        }
        self.bodies[at].away_until = self.now + Span::secs(self.dice.below(15));
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
        let ended = self.bodies[at].ended.iter().map(|report| report.attempt);
        // What is ending, or has ended and the mind does not know or has just heard.
        let known: Vec<AttemptId> = running.into_iter().chain(ended).collect();
        if known.is_empty() {
            return;
        }
        let doubled = |id: &AttemptId| {
            id.phase() == Phase::Reduce
                && self.mind.cluster().task(id.task).is_some_and(|task| task.trying().count() > 1)
        };
        let twins: Vec<AttemptId> = known.iter().copied().filter(doubled).collect();
        let known = if twins.is_empty() { known } else { twins };
        let attempt = known[self.dice.below(known.len() as u64) as usize];
        let gentle = if attempt.phase() == Phase::Map { Recall::Split } else { Recall::Pause };
        let how = if self.dice.one_in(4) { Recall::Kill } else { gentle };
        let first = self.send(Event::Preemption { request, attempt, how, by: by.clone() });
        let again = self.send(Event::Preemption { request, attempt, how, by });
        assert_eq!(first, again, "seed {}", self.seed);
        self.seen.kills_by_hand += u32::from(how == Recall::Kill && first == Some(Reply::Taken));
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
        if self.faults && self.dice.one_in(15) {
            let doubled = |id: &AttemptId| {
                id.phase() == Phase::Reduce
                    && self.mind.cluster().task(id.task).is_some_and(|task| task.trying().count() > 1)
            };
            let at = self.dice.below(self.bodies.len() as u64) as usize;
            let busy = self.bodies.iter().position(|body| body.running.keys().any(doubled));
            self.meddle(busy.unwrap_or(at));
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
        let held: Vec<TaskId> = held.map(|task| task.id).collect();
        for task in held {
            self.requests += 1;
            let event =
                Event::Resumption { request: RequestId(self.requests), task, on: None, by: "u".into() };
            let reply = self.send(event);
            let runs = self.mind.cluster().task(task).is_some_and(|task| task.trying().next().is_some());
            assert!(reply == Some(Reply::Taken) || runs, "seed {}: {reply:?}", self.seed);
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
