//! Random events of a world: work, requests of users, faults.

use crate::{
    rng::Rng,
    world::{SimTracker, World},
};
use mrcore::{
    Event, Phase, Span,
    event::{AttemptReport, AttemptStatus, FetchFailure, Reply},
    ids::{AttemptId, Incarnation, JobId, RequestId, TaskId},
    job::{JobSpec, Priority, Split},
    task::{AttemptResult, CheckpointInfo, PreemptKind},
    tracker::Tracker,
};
use std::{collections::BTreeMap, sync::Arc};

/// An address that no tracker has.
pub(crate) const OUTDATED: &str = "outdated:1";

impl World {
    /// Attempts of a tracker make progress or end.
    pub(crate) fn work(&mut self, at: usize) {
        self.copy(at);
        let ids: Vec<AttemptId> = self.trackers[at].running.keys().copied().collect();
        for attempt in ids {
            let random = self.rng.below(if self.faults { 100 } else { 20 });
            let dies = self.rng.one_in(if self.faults { 12 } else { 2 });
            let refuses = self.faults && self.rng.one_in(60);
            let sim = &mut self.trackers[at];
            if let Some(kind) = sim.dying.get(&attempt).copied().filter(|_| dies || refuses) {
                sim.dying.remove(&attempt);
                if refuses && kind != PreemptKind::Kill {
                    sim.running.entry(attempt).and_modify(|run| run.refusals += 1);
                    continue;
                }
                let status = self.end_preempted(at, attempt, kind);
                self.trackers[at].running.remove(&attempt);
                self.trackers[at].ended.push(AttemptReport { attempt, status });
                continue;
            }
            let Some(status) = self.end_attempt(at, attempt, random) else { continue };
            let sim = &mut self.trackers[at];
            sim.running.remove(&attempt);
            sim.dying.remove(&attempt);
            sim.ended.push(AttemptReport { attempt, status });
        }
    }

    /// How an attempt ends by itself; `None` if it continues.
    fn end_attempt(&mut self, at: usize, attempt: AttemptId, random: u64) -> Option<AttemptStatus> {
        let known = self.core.cluster().attempt(attempt);
        let resumed = known.is_some_and(|known| known.resumed_from.is_some());
        let elsewhere = resumed && known.is_some_and(|known| known.checkpoint_on != Some(known.tracker));
        let sim = &mut self.trackers[at];
        let run = sim.running.get_mut(&attempt)?;
        Some(match random {
            _ if run.will_fail => AttemptStatus::CheckpointCorrupt("file not found".into()),
            0..8 => {
                if attempt.phase() == Phase::Map {
                    sim.outputs.insert(attempt);
                }
                let counters = vec![("RECORDS".to_owned(), 1 + u64::from(attempt.task.index))];
                AttemptStatus::Succeeded(AttemptResult { counters, ..AttemptResult::default() })
            }
            94 | 95 if elsewhere => {
                self.counts.unreachable += 1;
                AttemptStatus::CheckpointUnreachable("its tracker does not answer".into())
            }
            96 if resumed => AttemptStatus::CheckpointCorrupt("its checkpoint is damaged".into()),
            96..98 => AttemptStatus::Failed("it failed".into()),
            98 => AttemptStatus::Killed("out of memory".into()),
            // It makes no progress.
            99 => return None,
            _ => {
                run.done = (run.done + 0.1).min(0.99);
                run.bytes_in += 7;
                run.records += u64::from(run.done >= 0.5);
                return None;
            }
        })
    }

    /// Copies the files that a tracker was ordered to copy, if another tracker still has them.
    fn copy(&mut self, at: usize) {
        for attempt in std::mem::take(&mut self.trackers[at].copying) {
            let fails = self.faults && self.rng.one_in(6);
            let checkpoint = self.trackers.iter().find_map(|sim| sim.checkpoints.get(&attempt).copied());
            let output = self.trackers.iter().any(|sim| sim.outputs.contains(&attempt));
            let status = if !fails && (output || checkpoint.is_some()) {
                let sim = &mut self.trackers[at];
                match checkpoint {
                    None => drop(sim.outputs.insert(attempt)),
                    Some(checkpoint) => drop(sim.checkpoints.insert(attempt, checkpoint)),
                }
                AttemptStatus::Copied(1)
            } else {
                AttemptStatus::CopyFailed("file not found".into())
            };
            self.trackers[at].ended.push(AttemptReport { attempt, status });
        }
    }

    /// A user drains a tracker or cancels the drain.
    fn drain(&mut self, at: usize) {
        let Some(tracker) = self.trackers[at].number else { return };
        self.requests += 1;
        let (request, by) = (RequestId(self.requests), "u".to_owned());
        let is_draining = self.core.cluster().tracker(tracker).is_some_and(|tracker| tracker.drain.is_some());
        let within = (!is_draining).then(|| Span::secs(self.rng.below(40)));
        self.send(Event::Drain { request, tracker, within, by });
    }

    /// Checks that drained trackers are empty, and cancels all drains.
    pub(crate) fn return_drained(&mut self) {
        let trackers: Vec<_> = self.core.cluster().trackers().map(|tracker| tracker.id).collect();
        for tracker in trackers {
            let status = self.core.drain_status(tracker);
            assert!(status.is_empty(), "seed {}: {tracker} is not empty: {status:?}", self.seed);
            self.requests += 1;
            let request = RequestId(self.requests);
            self.send(Event::Drain { request, tracker, within: None, by: "u".into() });
        }
    }

    /// How a preempted attempt ends. It may have done nothing, or everything.
    pub(crate) fn end_preempted(
        &mut self,
        at: usize,
        attempt: AttemptId,
        kind: PreemptKind,
    ) -> AttemptStatus {
        let task = self.core.cluster().task(attempt.task);
        let known =
            task.and_then(|task| task.attempts.get(attempt.number as usize).map(|known| (task, known)));
        let (start, end) = known.map_or((0, 0), |(task, known)| (task.start, known.end));
        let run = self.trackers[at].running.get(&attempt).copied().unwrap_or_default();
        let result = AttemptResult {
            counters: vec![("RECORDS".to_owned(), 1 + self.rng.below(5))],
            ..AttemptResult::default()
        };
        match kind {
            PreemptKind::Kill => AttemptStatus::Killed("stopped by order".into()),
            PreemptKind::Split => {
                self.trackers[at].outputs.insert(attempt);
                AttemptStatus::Split(start + self.rng.below(end.saturating_sub(start) + 1), result)
            }
            // It has not started.
            PreemptKind::Pause if run.will_fail => AttemptStatus::Killed("it had not started".into()),
            PreemptKind::Pause => {
                let stage = crate::world::stage(attempt.phase(), run.done);
                let bytes = self.rng.below(1000);
                let checkpoint =
                    CheckpointInfo { stage, bytes, bytes_in: run.bytes_in, records: run.records };
                self.trackers[at].checkpoints.insert(attempt, checkpoint);
                AttemptStatus::Paused(checkpoint)
            }
        }
    }

    pub(crate) fn unfetched(&mut self, at: usize) -> Vec<FetchFailure> {
        if !self.faults || !self.rng.one_in(15) {
            return Vec::new();
        }
        let reduces = self.trackers[at].running.keys().filter(|attempt| attempt.phase() == Phase::Reduce);
        let reduces: Vec<AttemptId> = reduces.copied().collect();
        // In some cases, all reduces have an outdated address.
        let outdated = self.rng.one_in(3);
        let mut failures = Vec::new();
        for reduce in reduces {
            let job = self.core.cluster().job(reduce.job());
            let winners = job.iter().flat_map(|job| &job.tasks.map).filter_map(mrcore::task::Task::winner);
            let maps: Vec<AttemptId> = winners.map(|attempt| attempt.id).collect();
            if !maps.is_empty() {
                let map = maps[self.rng.below(maps.len() as u64) as usize];
                let addr = if outdated { OUTDATED.to_owned() } else { self.addr_of(map) };
                failures.push(FetchFailure { reduce, map, addr });
            }
        }
        failures
    }

    /// The address of the tracker that has a map output.
    fn addr_of(&self, map: AttemptId) -> String {
        let cluster = self.core.cluster();
        let output_on = cluster.attempt(map).and_then(|map| cluster.tracker(map.output_on));
        output_on.map_or_else(String::new, |output_on| output_on.shuffle_addr.clone())
    }

    pub(crate) fn submit(&mut self) {
        self.submitted += 1;
        let hosts = self.trackers.len() as u64;
        let split = |rng: &mut Rng| Split {
            source: "/in".into(),
            start: 0,
            end: 10 + rng.below(90),
            divisible: !rng.one_in(8),
            hosts: vec![format!("h{}", rng.below(hosts))],
            pin: mrcore::job::InputPin::default(),
        };
        let spec = JobSpec {
            name: "j".into(),
            user: format!("u{}", self.rng.below(3)),
            queue: ["default", "a", "b.c"][self.rng.below(3) as usize].into(),
            priority: [Priority::Low, Priority::Normal, Priority::High][self.rng.below(3) as usize],
            program: "p".into(),
            splits: (0..self.rng.below(6)).map(|_| split(&mut self.rng)).collect(),
            reduces: self.rng.below(4) as u32,
            output: String::new(),
            slow_start: [0.0, 0.05, 1.0][self.rng.below(3) as usize],
            speculation: self.rng.one_in(2),
            attempts_max: 2 + self.rng.below(3) as u32,
            conf: BTreeMap::new(),
        };
        self.requests += 1;
        let (request, spec) = (RequestId(self.requests), Arc::new(spec));
        let first = self.send(Event::Submission { request, spec: spec.clone() });
        assert_eq!(first, self.send(Event::Submission { request, spec }), "seed {}", self.seed);
    }

    /// Injects a random fault.
    pub(crate) fn fault(&mut self) {
        let at = self.rng.below(self.trackers.len() as u64) as usize;
        match self.rng.below(10) {
            6 | 7 => {
                // Prefers a tracker where a reduce is being paused.
                let pausing = |sim: &SimTracker| sim.dying.values().any(|kind| *kind == PreemptKind::Pause);
                let at = self.trackers.iter().position(pausing).unwrap_or(at);
                self.die(at);
            }
            8 => self.drain(at),
            0 => self.restart(),
            1 => {
                let jobs: Vec<JobId> = self.core.cluster().jobs().map(|job| job.id).collect();
                if !jobs.is_empty() {
                    self.requests += 1;
                    let job = jobs[self.rng.below(jobs.len() as u64) as usize];
                    self.send(Event::Kill { request: RequestId(self.requests), job, by: "u".into() });
                }
            }
            2 => self.die(at),
            3 => {
                let incarnation = Incarnation(self.trackers[at].incarnation);
                if let Some(tracker) = self.trackers[at].number.take() {
                    self.send(Event::Disconnection { tracker, incarnation });
                }
            }
            _ => self.trackers[at].down_until = self.now + Span::secs(self.rng.below(20)),
        }
    }

    fn die(&mut self, at: usize) {
        // The process dies and is started again. Checkpoints that were just saved are on disk but
        // have not been reported.
        let pausing = self.trackers[at].dying.iter().filter(|(_, kind)| **kind == PreemptKind::Pause);
        for attempt in pausing.map(|(attempt, _)| *attempt).collect::<Vec<_>>() {
            if self.rng.one_in(2) {
                let _ = self.end_preempted(at, attempt, PreemptKind::Pause);
            }
        }
        let sim = &mut self.trackers[at];
        sim.incarnation = 0;
        sim.starts += 1;
        (sim.number, sim.seq, sim.acked) = (None, 0, 0);
        sim.running.clear();
        sim.dying.clear();
        sim.ended.clear();
        sim.copying.clear();
        if self.rng.one_in(2) {
            self.trackers[at].outputs.clear();
        }
        if self.rng.one_in(3) {
            let gone = std::mem::take(&mut self.trackers[at].checkpoints);
            self.destroyed.extend(gone.into_keys());
        }
        self.trackers[at].down_until = self.now + Span::secs(self.rng.below(15));
    }

    /// A user preempts an attempt or resumes a task.
    pub(crate) fn random_request(&mut self, at: usize) {
        self.requests += 1;
        let (request, by) = (RequestId(self.requests), "u".to_owned());
        let on_hold =
            self.core.cluster().active_jobs().flat_map(|job| &job.tasks.reduce).find(|task| task.on_hold);
        if let Some(task) = on_hold.map(|task| task.id).filter(|_| self.rng.one_in(2)) {
            let on = self.trackers[at].number.filter(|_| self.rng.one_in(2));
            self.send(Event::Resumption { request, task, on, by });
            return;
        }
        let running: Vec<AttemptId> = self.trackers[at].running.keys().copied().collect();
        let ended = self.trackers[at].ended.iter().map(|report| report.attempt);
        // Includes attempts whose end the core does not know yet.
        let known: Vec<AttemptId> = running.into_iter().chain(ended).collect();
        if known.is_empty() {
            return;
        }
        let duplicated = |id: &AttemptId| {
            id.phase() == Phase::Reduce
                && self.core.cluster().task(id.task).is_some_and(|task| task.viable().count() > 1)
        };
        let duplicates: Vec<AttemptId> = known.iter().copied().filter(duplicated).collect();
        let known = if duplicates.is_empty() { known } else { duplicates };
        let attempt = known[self.rng.below(known.len() as u64) as usize];
        let lossless = if attempt.phase() == Phase::Map { PreemptKind::Split } else { PreemptKind::Pause };
        let kind = if self.rng.one_in(4) { PreemptKind::Kill } else { lossless };
        let first = self.send(Event::Preemption { request, attempt, kind, by: by.clone() });
        let again = self.send(Event::Preemption { request, attempt, kind, by });
        assert_eq!(first, again, "seed {}", self.seed);
        self.counts.kills_by_user += u32::from(kind == PreemptKind::Kill && first == Some(Reply::Accepted));
    }

    /// The JobTracker dies and restarts.
    pub(crate) fn restart(&mut self) {
        let mut core = (self.make)(self.seed);
        for entry in &self.journal {
            core.replay(entry).unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
        }
        assert!(self.core.cluster().durable() == core.cluster().durable(), "seed {}", self.seed);
        self.counts.refusals += self.core.refusals() as u32;
        self.core = core;
        self.counts.restarts += 1;
        self.commits.clear();
        self.solutions.clear();
        self.trackers.iter_mut().for_each(|sim| sim.number = None);
        self.send(Event::Start);
    }

    pub(crate) fn step(&mut self) {
        self.now = self.now + Span::millis(200);
        self.send(Event::Tick);
        if self.faults && self.rng.one_in(25) {
            self.submit();
        }
        if self.faults && self.rng.one_in(20) {
            self.fault();
        }
        if self.faults && self.rng.one_in(15) {
            let duplicated = |id: &AttemptId| {
                id.phase() == Phase::Reduce
                    && self.core.cluster().task(id.task).is_some_and(|task| task.viable().count() > 1)
            };
            let at = self.rng.below(self.trackers.len() as u64) as usize;
            let busy = self.trackers.iter().position(|sim| sim.running.keys().any(duplicated));
            self.random_request(busy.unwrap_or(at));
        }
        for job in std::mem::take(&mut self.commits) {
            let fails = self.faults && self.rng.one_in(10);
            let result = if fails { Err("no space".into()) } else { Ok(()) };
            self.send(Event::CommitResult { job, result });
        }
        for (number, answer) in std::mem::take(&mut self.solutions) {
            self.send(Event::Computed { number, answer });
        }
        for at in 0..self.trackers.len() {
            if self.trackers[at].down_until <= self.now && self.rng.one_in(2) {
                self.heartbeat(at);
            }
        }
    }

    /// Resumes all tasks that are on hold.
    pub(crate) fn release(&mut self) {
        let on_hold =
            self.core.cluster().active_jobs().flat_map(|job| &job.tasks.reduce).filter(|task| task.on_hold);
        let on_hold: Vec<TaskId> = on_hold.map(|task| task.id).collect();
        for task in on_hold {
            self.requests += 1;
            let event =
                Event::Resumption { request: RequestId(self.requests), task, on: None, by: "u".into() };
            let reply = self.send(event);
            let runs = self.core.cluster().task(task).is_some_and(|task| task.viable().next().is_some());
            assert!(reply == Some(Reply::Accepted) || runs, "seed {}: {reply:?}", self.seed);
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        let cluster = self.core.cluster();
        // Attempts that were given up may still run until the next heartbeat of their tracker.
        let is_idle = |tracker: &Tracker, phase: Phase| {
            tracker.running[phase].is_empty() && cluster.unknown_attempts(tracker.id, phase) == 0
        };
        let idle =
            cluster.trackers().all(|tracker| Phase::BOTH.into_iter().all(|phase| is_idle(tracker, phase)));
        let at_rest =
            |sim: &SimTracker| sim.running.is_empty() && sim.ended.is_empty() && sim.down_until <= self.now;
        idle && self.trackers.iter().all(at_rest) && cluster.jobs().all(mrcore::job::Job::is_over)
    }
}
