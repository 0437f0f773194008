//! Starts attempts: chooses where a map reads its input and from which checkpoint a reduce resumes.

use super::{
    SimEvent, World,
    run::{FinalStages, MapRun, Mishap, ReduceRun, Run, Transfer, Work},
    tracker::AttemptEnd,
};
use crate::rng::mix;
use mrcore::{Phase, Span, Time, ids::AttemptId};

impl World {
    pub(super) fn launch(&mut self, at: usize, id: AttemptId) {
        self.nodes[at].jobs.insert(id.job());
        if !self.start_attempt(at, id) {
            self.report_end(at, id, AttemptEnd::Killed("its job has ended".into()));
        }
    }

    /// Starts the attempt. Returns false if its job is not known.
    fn start_attempt(&mut self, at: usize, id: AttemptId) -> bool {
        let Some(known_job) = self.jobs_known.get(&id.job()) else { return false };
        let job = &self.workload.jobs[known_job.plan];
        let (costs, own) = (&self.setup.costs, job.startup_time);
        self.newest_key += 1;
        let mut rng = self.rng_of(id);
        let late = if costs.start_spread > Span(0) { rng.below(costs.start_spread.0) } else { 0 };
        let start = self.now + costs.start + own + Span(late);
        let fails = self.setup.failing > 0 && rng.one_in(self.setup.failing);
        let mishap = match rng.below(4) {
            _ if self.random.is_none() => Mishap::Fails,
            0 => Mishap::IsKilled,
            1 => Mishap::Hangs,
            _ => Mishap::Fails,
        };
        let work = match id.phase() {
            Phase::Map => self.map_work(at, id),
            Phase::Reduce => self.reduce_work(at, id),
        };
        let Some((work, delay)) = work else { return false };
        if self.is_restart(id) {
            self.metrics.restarted(id.job(), start.since(self.now) + delay);
        }
        let run = Run {
            id,
            key: self.newest_key,
            version: 0,
            preempting: None,
            is_frozen: false,
            fails_at: fails.then(|| rng.unit()),
            mishap,
            hangs: false,
            refusals: 0,
            since: start + delay,
            flow: None,
            work,
            activity: 0,
        };
        let moves = run.awaits_checkpoint();
        self.nodes[at].runs.push(run);
        self.running_attempts += 1;
        if self.setup.out_of_band {
            self.queue.push(start, SimEvent::Started { node: at as u32, key: self.newest_key });
        }
        match id.phase() {
            Phase::Map => self.start_reading(at, self.newest_key),
            Phase::Reduce if moves => self.start_transfer(at, self.newest_key),
            Phase::Reduce => self.follow_map_events(at, self.newest_key),
        }
        true
    }

    /// Whether this attempt exists only because of a preemption: it runs the remainder of a split
    /// map, or an attempt of its task was preempted.
    fn is_restart(&self, id: AttemptId) -> bool {
        let task = self.core.as_ref().and_then(|core| core.cluster().task(id.task));
        let planned = self
            .jobs_known
            .get(&id.job())
            .map_or(0, |known_job| self.workload.jobs[known_job.plan].maps.len());
        let is_rest = id.phase() == Phase::Map && id.task.index as usize >= planned;
        is_rest
            || task.is_some_and(|task| task.attempts.iter().any(|attempt| attempt.preempt_request.is_some()))
    }

    /// Returns the work of a map, and its additional delay at the start.
    fn map_work(&self, at: usize, id: AttemptId) -> Option<(Work, Span)> {
        let known_job = self.jobs_known.get(&id.job())?;
        let task = self.core.as_ref()?.cluster().task(id.task)?;
        let job = &self.workload.jobs[known_job.plan];
        let plan = job.maps.get(task.root as usize)?;
        let total = plan.bytes.max(1);
        let work_s = (f64::from(plan.work_s) * task.bytes() as f64 / total as f64).max(1e-3);
        let source = match self.choose_replica(at as u32, known_job.copies_of(task.root), id) {
            Some(source) => (source != at as u32).then_some(source),
            None => return Some((Work::Failing("no replica of its input can be read"), Span::secs(3))),
        };
        let (start, end, root, out) = (task.start, task.end, task.root, job.map_out);
        Some((Work::Map(MapRun { start, end, done: 0.0, rate: 0.0, work_s, out, root, source }), Span(0)))
    }

    /// Chooses the machine whose replica is read: the same machine, a machine in the same rack, any
    /// other machine, or a machine with a replica made by repair.
    fn choose_replica(&self, at: u32, replicas: &[u32], id: AttemptId) -> Option<u32> {
        let readable = |node: &&u32| self.nodes[**node as usize].has_blocks();
        if replicas.contains(&at) && readable(&&at) {
            return Some(at);
        }
        let live = || replicas.iter().filter(readable);
        let near = live().find(|node| self.net.same_rack(**node, at));
        let far = || {
            let count = live().count() as u64;
            live().nth((mix(u64::from(id.task.index)) % count.max(1)) as usize)
        };
        let copied = || {
            let made = replicas.iter().any(|node| self.nodes[*node as usize].blocks_replaced);
            let first = mix(u64::from(id.task.index)) as usize % self.nodes.len();
            let mut order = (0..self.nodes.len()).map(|step| ((first + step) % self.nodes.len()) as u32);
            made.then(|| order.find(|node| readable(&node))).flatten()
        };
        near.or_else(far).copied().or_else(copied)
    }

    /// Makes maps that read from the machine `gone`, which is unreachable, read another replica.
    pub(super) fn read_elsewhere(&mut self, gone: usize) {
        let reads = |run: &Run| match &run.work {
            Work::Map(map) if !run.is_frozen && map.source == Some(gone as u32) => Some(map.root),
            _ => None,
        };
        let mut affected: Vec<(usize, u64, AttemptId, u32)> = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let its = node.runs.iter().filter_map(|run| Some((at, run.key, run.id, reads(run)?)));
            affected.extend(its);
        }
        for (at, key, id, root) in affected {
            let copies =
                self.jobs_known.get(&id.job()).map_or(&[][..], |known_job| known_job.copies_of(root));
            let source = self.choose_replica(at as u32, copies, id);
            let now = self.now;
            let Some(run) = self.nodes[at].run(key) else { continue };
            run.advance(now);
            let flow = run.flow.take();
            self.end_flow(flow);
            let Some(run) = self.nodes[at].run(key) else { continue };
            if let (Some(source), Work::Map(map)) = (source, &mut run.work) {
                map.source = (source != at as u32).then_some(source);
            } else {
                run.since = now + Span::secs(3);
                run.work = Work::Failing("no replica of its input can be read any more");
            }
            self.start_reading(at, key);
        }
    }

    /// Returns the work of a reduce, and its additional delay at the start.
    fn reduce_work(&mut self, at: usize, id: AttemptId) -> Option<(Work, Span)> {
        let known_job = self.jobs_known.get(&id.job())?;
        let share = f64::from(self.workload.jobs[known_job.plan].reduces.get(id.task.index as usize)?.share);
        let cluster = self.core.as_ref()?.cluster();
        let maps = cluster.job(id.job())?.tasks.map.len() as u32;
        let attempt = cluster.attempt(id)?;
        let resumed_from = attempt.resumed_from;
        let checkpoint =
            cluster.task(id.task)?.checkpoint.filter(|checkpoint| Some(checkpoint.attempt) == resumed_from);
        // The current location of the checkpoint, which may have moved.
        let place = checkpoint.map(|checkpoint| checkpoint.tracker).or(attempt.checkpoint_on);
        let holder = place.and_then(|place| self.by_tracker.get(&place)).map(|holder| *holder as usize);
        let mut reduce = ReduceRun {
            fetch: super::fetch::Fetch::default(),
            share: share.max(1e-12),
            rate: 0.0,
            maps,
            events_seen: 0,
            events_in_path: 0,
            final_stages: None,
            last_fetch_failure: Time(0),
            transfer: None,
        };
        let Some(paused) = resumed_from else { return Some((Work::Reduce(reduce), Span(0))) };
        let there = holder.filter(|holder| *holder == at || self.nodes[*holder].serves());
        let elsewhere = holder != Some(at);
        if there.is_none() || (elsewhere && self.one_in(8)) {
            self.count("checkpoint unreachable", true);
            return Some((Work::CheckpointUnreachable, Span::secs(6)));
        }
        let saved = there.and_then(|holder| self.nodes[holder].checkpoints.get(&paused).cloned());
        let damaged = self.one_in(12);
        if saved.is_none() {
            self.checkpoint_missing(paused, id);
        }
        let Some(saved) = saved.filter(|_| !damaged) else {
            return Some((Work::Failing("the checkpoint does not exist"), Span::secs(1)));
        };
        // Before the reduce continues, it reads the part of the checkpoint that it had in memory. A
        // remote checkpoint is transferred first.
        let in_memory = saved.checkpoint.bytes.min(self.setup.costs.memory) as f64;
        let read_s = in_memory / self.checkpoint_read_rate(at);
        reduce.transfer = there.filter(|holder| *holder != at).map(|holder| Transfer {
            source: holder as u32,
            left: saved.checkpoint.bytes as f64,
            rate: 0.0,
            began: self.now,
        });
        reduce.fetch = saved.fetch;
        let back: Vec<u32> = reduce.fetch.blocked.iter().map(|blocked| blocked.node).collect();
        for node in back {
            if self.nodes[node as usize].serves() {
                reduce.fetch.unblock(node);
            }
        }
        reduce.final_stages =
            saved.final_stages.map(|final_stages| FinalStages { rate: 0.0, ..final_stages });
        Some((Work::Reduce(reduce), crate::workload::seconds(read_s)))
    }
}
