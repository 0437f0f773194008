//! Attempts: their progress, speed changes, preemption and end.

use super::{
    SimEvent, World,
    run::{FinalStages, Mishap, ReduceRun, Run, StoredCheckpoint, Work},
    tracker::AttemptEnd,
};
use mrcore::{
    Phase, Span,
    ids::AttemptId,
    task::{AttemptResult, CheckpointInfo, PreemptKind},
};

impl World {
    /// Schedules the next event of an attempt: when its current work will be done.
    pub(super) fn schedule_next_change(&mut self, at: usize, key: u64) {
        let Some(run) = self.nodes[at].run(key) else { return };
        run.version += 1;
        let Some(seconds) = run.next_s() else { return };
        let when = run.since + Span((seconds * 1e6).ceil() as u64);
        let (node, version) = (at as u32, run.version);
        self.queue.push(when, SimEvent::Done { node, key, version });
    }

    /// Removes an attempt from its machine.
    pub(super) fn remove_run(&mut self, at: usize, key: u64) -> Option<Run> {
        let place = self.nodes[at].runs.iter().position(|run| run.key == key)?;
        let run = self.nodes[at].runs.remove(place);
        self.running_attempts -= 1;
        self.end_flow(run.flow);
        Some(run)
    }

    /// Removes an attempt from its machine, and reports how it ended.
    fn end_attempt(&mut self, at: usize, key: u64, end: AttemptEnd) {
        let Some(run) = self.remove_run(at, key) else { return };
        if let AttemptEnd::Succeeded { output: true, result: (result, _) } = &end {
            self.nodes[at].add_output(run.id, result.bytes_out);
        }
        self.report_end(at, run.id, end);
    }

    /// Returns the report of a successful attempt. Maps of jobs with reduces have an output.
    /// `position` is where a map was split, if it was.
    fn success_report(&self, id: AttemptId, bytes_out: u64, position: Option<u64>) -> AttemptEnd {
        let job = self.jobs_known.get(&id.job()).map(|known_job| &self.workload.jobs[known_job.plan]);
        let output = id.phase() == Phase::Map && job.is_some_and(|job| !job.reduces.is_empty());
        let mut result = AttemptResult { bytes_out, ..AttemptResult::default() };
        if self.checks.is_some() {
            // Each attempt of a task has a different value, so that a sum over the wrong attempts
            // is noticed.
            result.counters.push(("RECORDS".to_owned(), 1 + bytes_out % 7 + u64::from(id.number)));
        }
        AttemptEnd::Succeeded { result: (result, position), output }
    }

    /// Handles the end of the current work of an attempt.
    pub(super) fn finish_work(&mut self, at: usize, key: u64, version: u32) {
        let now = self.now;
        let Some(run) = self.nodes[at].run(key).filter(|run| run.version == version) else { return };
        run.advance(now);
        let (id, failing) = (run.id, run.fails_at.is_some());
        let at_end = match &run.work {
            Work::Map(_) => true,
            Work::Reduce(reduce) => reduce.transfer.is_none() && reduce.final_stages.is_some(),
            Work::Failing(_) | Work::CheckpointUnreachable => false,
        };
        if failing && at_end {
            return self.apply_mishap(at, key);
        }
        let end = match &run.work {
            Work::Failing(why) if run.id.phase() == Phase::Reduce => {
                AttemptEnd::CheckpointCorrupt((*why).into())
            }
            Work::Failing(why) => AttemptEnd::Failed((*why).into()),
            Work::CheckpointUnreachable => {
                AttemptEnd::CheckpointUnreachable("the machine with its checkpoint is unreachable".into())
            }
            Work::Map(map) => {
                let bytes_out = ((map.end - map.start) as f64 * map.out) as u64;
                self.success_report(id, bytes_out, None)
            }
            Work::Reduce(reduce) if reduce.transfer.is_some() => return self.resume_after_transfer(at, key),
            Work::Reduce(reduce) if reduce.final_stages.is_none() => return self.start_final_stages(at, key),
            Work::Reduce(reduce) => {
                let bytes_in = reduce.fetch.fetched * reduce.share;
                self.success_report(id, (bytes_in * self.reduce_out(id)) as u64, None)
            }
        };
        self.end_attempt(at, key, end);
    }

    /// Makes an attempt fail, be killed or hang, as planned.
    fn apply_mishap(&mut self, at: usize, key: u64) {
        let Some(run) = self.nodes[at].run(key) else { return };
        match run.mishap {
            Mishap::Fails => self.end_attempt(at, key, AttemptEnd::Failed("injected failure".into())),
            Mishap::IsKilled => self.end_attempt(at, key, AttemptEnd::Killed("out of memory".into())),
            Mishap::Hangs => {
                run.hangs = true;
                let flow = run.flow.take();
                self.end_flow(flow);
            }
        }
    }

    /// Starts the merge and reduce stages, if the reduce has fetched all its input.
    fn start_final_stages(&mut self, at: usize, key: u64) {
        let Some(run) = self.nodes[at].run(key) else { return };
        let id = run.id;
        let Some(known_job) = self.jobs_known.get(&id.job()) else { return };
        let job = &self.workload.jobs[known_job.plan];
        let plan = job.reduces[id.task.index as usize];
        let (reduce_rate, merge_rate) = (job.reduce_rate, job.merge_rate);
        let Some(run) = self.nodes[at].run(key) else { return };
        let Work::Reduce(reduce) = &mut run.work else { return };
        if !reduce.fetch.has_all(reduce.maps) {
            return self.schedule_next_change(at, key);
        }
        let bytes = reduce.fetch.fetched * reduce.share;
        let merge_s = bytes / merge_rate;
        let reduce_s = f64::from(plan.fixed_s) + bytes / reduce_rate * f64::from(plan.factor);
        let bytes = bytes.max(1.0);
        reduce.final_stages = Some(FinalStages { merge_s, reduce_s, bytes, done: 0.0, rate: 0.0 });
        let shuffle = run.flow.take();
        self.end_flow(shuffle);
        self.start_final_flow(at, key);
    }

    /// Starts the reduce after its checkpoint has arrived.
    fn resume_after_transfer(&mut self, at: usize, key: u64) {
        let now = self.now;
        let Some(run) = self.nodes[at].run(key) else { return };
        let (id, flow) = (run.id, run.flow.take());
        let Work::Reduce(reduce) = &mut run.work else { return };
        let began = reduce.transfer.take().map_or(now, |transfer| transfer.began);
        self.metrics.restarted(id.job(), now.since(began));
        self.end_flow(flow);
        self.follow_map_events(at, key);
    }

    /// Makes reduces fail that were copying their checkpoint from the machine `gone`.
    pub(super) fn drop_transfers_from(&mut self, gone: usize) {
        let comes = |run: &Run| matches!(&run.work, Work::Reduce(ReduceRun { transfer: Some(transfer), .. }) if transfer.source as usize == gone);
        let mut stranded: Vec<(usize, u64)> = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            stranded.extend(node.runs.iter().filter(|run| comes(run)).map(|run| (at, run.key)));
        }
        for (at, key) in stranded {
            let now = self.now;
            let Some(run) = self.nodes[at].run(key) else { continue };
            run.since = now + Span::secs(1);
            run.work = Work::Failing("the checkpoint does not arrive");
            let flow = run.flow.take();
            self.end_flow(flow);
            self.schedule_next_change(at, key);
        }
    }

    /// Starts the preemption of an attempt. The attempt stops working. Its slot becomes free after
    /// a while; the work done so far is then in the checkpoint or output.
    pub(super) fn preempt(&mut self, at: usize, id: AttemptId, kind: PreemptKind) {
        let (now, costs) = (self.now, self.setup.costs.clone());
        let write = self.checkpoint_write_rate(at);
        let refuses = kind != PreemptKind::Kill && self.one_in(6);
        let late = if self.one_in(8) { Span::secs(30) } else { Span(0) };
        let Some(run) = self.nodes[at].runs.iter_mut().find(|run| run.id == id) else { return };
        if refuses {
            run.refusals += 1;
            return;
        }
        if run.preempting.is_some_and(|before| before == kind || before == PreemptKind::Kill) {
            return;
        }
        run.advance(now);
        run.preempting = Some(kind);
        let written = Span((run.unwritten(costs.memory) / write * 1e6) as u64);
        let delay = match kind {
            PreemptKind::Kill => costs.kill,
            // There is nothing to save in a checkpoint yet.
            PreemptKind::Pause if run.awaits_checkpoint() => costs.kill,
            PreemptKind::Split => costs.split + written,
            PreemptKind::Pause => costs.pause + written,
        };
        // An attempt that ends at this moment reports its end instead.
        let is_done = run.next_s().is_some_and(|seconds| seconds <= 0.0);
        let (key, mut flow) = (run.key, None);
        if kind != PreemptKind::Kill && !is_done {
            (run.is_frozen, flow) = (true, run.flow.take());
        }
        self.end_flow(flow);
        self.schedule_next_change(at, key);
        self.queue.push(now + delay + late, SimEvent::SlotReleased { node: at as u32, key });
    }

    /// Ends a preempted attempt, which releases its slot.
    pub(super) fn slot_released(&mut self, at: usize, key: u64) {
        let now = self.now;
        let Some(run) = self.nodes[at].run(key) else { return };
        run.advance(now);
        let (id, kind) = (run.id, run.preempting);
        let end = match (kind, &run.work) {
            (Some(PreemptKind::Split), Work::Map(map)) => {
                let position = map.start + ((map.end - map.start) as f64 * map.done) as u64;
                let bytes_out = ((position - map.start) as f64 * map.out) as u64;
                self.stall_detector.record_checkpoint_or_split(now, id, (position - map.start, 0));
                self.success_report(id, bytes_out, Some(position))
            }
            (Some(PreemptKind::Pause), Work::Reduce(ReduceRun { transfer: Some(_), .. })) => {
                // The checkpoint remains where it was.
                AttemptEnd::Killed("its checkpoint was still being transferred".into())
            }
            (Some(PreemptKind::Pause), Work::Reduce(_)) => match self.save_checkpoint(at, key) {
                Some(checkpoint) => {
                    self.stall_detector.record_checkpoint_or_split(
                        now,
                        id,
                        (checkpoint.bytes_in, checkpoint.records),
                    );
                    AttemptEnd::Paused(checkpoint)
                }
                None => return,
            },
            _ => AttemptEnd::Killed("preempted".into()),
        };
        self.end_attempt(at, key, end);
    }

    /// Saves the checkpoint of a reduce. Does nothing if the checkpoint that the reduce resumes
    /// from has not arrived.
    pub(super) fn save_checkpoint(&mut self, at: usize, key: u64) -> Option<CheckpointInfo> {
        let run = self.nodes[at].run(key)?;
        let (id, stage) = (run.id, run.stage());
        let Work::Reduce(reduce @ ReduceRun { transfer: None, .. }) = &run.work else { return None };
        let checkpoint = CheckpointInfo {
            stage,
            bytes: reduce.state_bytes() as u64,
            bytes_in: (reduce.fetch.fetched * reduce.share) as u64,
            records: reduce.final_stages.map_or(0, |final_stages| (final_stages.done * 1e6) as u64),
        };
        let saved =
            StoredCheckpoint { fetch: reduce.fetch.clone(), final_stages: reduce.final_stages, checkpoint };
        self.nodes[at].checkpoints.insert(id, saved);
        Some(checkpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        trial::{Trial, short},
        world::{io::fetch_demand, run::Transfer, tracker::AgentEvent},
    };
    use agent::{Action, AttemptStatus};

    /// Runs a simulation until a reduce runs. Returns the machine, ID and key of the reduce.
    fn until_a_reduce_runs() -> (World, usize, AttemptId, u64) {
        let Trial { setup, workload, .. } = short();
        let mut world = World::new(setup, workload).expect("a policy");
        loop {
            let (at, what) = world.queue.pop().expect("it continues");
            world.now = at;
            world.handle_event(what);
            let mut runs = world
                .nodes
                .iter()
                .enumerate()
                .flat_map(|(at, node)| node.runs.iter().map(move |run| (at, run)));
            if let Some((at, id, key)) =
                runs.find_map(|(at, run)| (run.id.phase() == Phase::Reduce).then_some((at, run.id, run.key)))
            {
                return (world, at, id, key);
            }
        }
    }

    /// Pauses a running reduce, optionally while its own checkpoint is still being transferred.
    fn pause_a_reduce(awaits_checkpoint: bool) -> (World, usize, AttemptId) {
        let (mut world, at, id, key) = until_a_reduce_runs();
        let (source, began) = ((at + 1) as u32 % world.nodes.len() as u32, world.now);
        if let Some(Work::Reduce(reduce)) = world.nodes[at].run(key).map(|run| &mut run.work) {
            reduce.transfer = awaits_checkpoint.then_some(Transfer { source, left: 1e9, rate: 1.0, began });
        }
        world.preempt(at, id, PreemptKind::Pause);
        world.slot_released(at, key);
        (world, at, id)
    }

    #[test]
    fn reduce_with_checkpoint_in_transfer_saves_nothing() {
        let (world, at, id) = pause_a_reduce(true);
        let reported = |mut world: World| {
            let mut actions = Vec::new();
            world.nodes[at].agent.handle(world.now, AgentEvent::RegisterAgain, &mut actions);
            let Some(Action::Register { attempts, .. }) = actions.pop() else { panic!("no registration") };
            attempts.into_iter().find(|report| report.attempt == id).expect("it is reported").status
        };
        assert!(!world.nodes[at].checkpoints.contains_key(&id), "a new checkpoint was saved");
        let end = reported(world);
        assert!(matches!(end, AttemptStatus::Ended(AttemptEnd::Killed(_))), "{end:?}");
        let (world, at, id) = pause_a_reduce(false);
        assert!(world.nodes[at].checkpoints.contains_key(&id));
    }

    #[test]
    fn reduce_demands_bandwidth_until_less_than_half_a_byte_is_missing() {
        let (mut world, at, _, key) = until_a_reduce_runs();
        let setup = world.setup.clone();
        let Some(Work::Reduce(reduce)) = world.nodes[at].run(key).map(|run| &mut run.work) else {
            panic!("a reduce")
        };
        (reduce.share, reduce.fetch.available, reduce.fetch.fetched) = (0.1, 1e9, 1e9 - 0.7);
        assert!(!reduce.fetch.is_caught_up() && fetch_demand(reduce, &setup) > 0.0);
        reduce.fetch.fetched = 1e9 - 0.4;
        assert!(reduce.fetch.is_caught_up() && fetch_demand(reduce, &setup) <= 0.0);
    }
}
