//! Copies of files between machines that no attempt makes. Each is a flow over the disks and links
//! of both machines.
//!
//! Trackers copy map outputs and checkpoints from trackers that are being drained: in this file.
//! DataNodes copy blocks of lost machines: in `repair.rs`.

use super::{
    AgentEvent, SimEvent, World,
    net::{FlowId, Path},
    tracker::Model,
};
use agent::Copied;
use mrcore::{
    Phase, Span, Time,
    ids::{AttemptId, JobId, TrackerId},
};

/// A block of input: its job and split.
pub(super) type Block = (JobId, u32);

/// Blocks of a lost machine that are copied together.
#[derive(Debug)]
pub(super) struct BlockBatch {
    /// The lost machine.
    pub(super) lost: u32,
    pub(super) blocks: Vec<Block>,
    pub(super) bytes: u64,
}

/// A copy that is being made.
#[derive(Debug)]
pub(super) struct RunningCopy {
    pub(super) source: u32,
    pub(super) to: u32,
    pub(super) what: CopiedFiles,
    flow: FlowId,
    /// Bytes that were missing at `since`.
    left: f64,
    /// Bytes per second since then.
    rate: f64,
    since: Time,
    /// Number of changes of its rate.
    version: u32,
}

/// What is copied.
#[derive(Debug)]
pub(super) enum CopiedFiles {
    /// The output or the checkpoint of an attempt.
    OfAttempt(AttemptId),
    Blocks(BlockBatch),
}

impl World {
    /// Starts a copy. Returns its key, which is different from those of attempts.
    pub(super) fn start_copy(
        &mut self,
        (source, to): (u32, u32),
        (path, demand): (Path, f64),
        bytes: f64,
        what: CopiedFiles,
    ) -> u64 {
        self.newest_key += 1;
        let key = self.newest_key;
        let flow = self.net.add(path, demand, (to, key), false);
        let copy =
            RunningCopy { source, to, what, flow, left: bytes, rate: 0.0, since: self.now, version: 0 };
        self.copies.insert(key, copy);
        let rate = self.net.take_rate(flow);
        self.set_copy_rate(key, rate);
        self.request_rate_update();
        key
    }

    /// Sets the rate of a copy, and schedules its end.
    pub(super) fn set_copy_rate(&mut self, key: u64, rate: f64) {
        let Some(copy) = self.copies.get_mut(&key) else { return };
        copy.left = (copy.left - copy.rate * self.now.since(copy.since).as_secs_f64()).max(0.0);
        (copy.rate, copy.since, copy.version) = (rate, self.now, copy.version + 1);
        let seconds = if copy.left > 0.0 { copy.left / rate } else { 0.0 };
        if seconds.is_finite() {
            let (at, version) = (self.now + Span((seconds * 1e6).ceil() as u64), copy.version);
            self.queue.push(at, SimEvent::Copied { key, version });
        }
    }

    /// Handles the end of a copy, unless its rate has changed since the event was scheduled.
    pub(super) fn finish_copy(&mut self, key: u64, version: u32) {
        if self.copies.get(&key).is_none_or(|copy| copy.version != version) {
            return;
        }
        let Some(copy) = self.remove_copy(key) else { return };
        match copy.what {
            CopiedFiles::OfAttempt(attempt) => self.store_copied_files(&copy, attempt),
            CopiedFiles::Blocks(batch) => self.store_blocks(copy.to, batch),
        }
    }

    /// Removes a copy and its flow.
    pub(super) fn remove_copy(&mut self, key: u64) -> Option<RunningCopy> {
        let copy = self.copies.remove(&key)?;
        self.end_flow(Some(copy.flow));
        Some(copy)
    }

    /// Makes a tracker start to copy the files of an attempt from another tracker.
    pub(super) fn copy_files(&mut self, at: usize, attempt: AttemptId, from: TrackerId) {
        let to = at as u32;
        let source = self.by_tracker.get(&from).copied().unwrap_or(to);
        let bytes = self.stored_bytes(source as usize, attempt) as f64;
        let flow = (self.transfer_path(source, to), self.setup.costs.fetch);
        let key = self.start_copy((source, to), flow, bytes, CopiedFiles::OfAttempt(attempt));
        self.nodes[at].jobs.insert(attempt.job());
        self.nodes[at].copying.insert(attempt, key);
    }

    /// Stores the copied files and reports the result to the tracker.
    fn store_copied_files(&mut self, copy: &RunningCopy, attempt: AttemptId) {
        let (at, source) = (copy.to as usize, copy.source as usize);
        self.nodes[at].copying.remove(&attempt);
        let copied = if self.one_in(6) { None } else { self.copy_stored_files(at, source, attempt) };
        let result = copied.ok_or_else(|| "the files cannot be read".to_owned());
        self.send_to_agent(at, AgentEvent::Copied(attempt, result));
    }

    /// Stops a copy. Returns whether there was one.
    pub(super) fn stop_copy(&mut self, at: usize, attempt: AttemptId) -> bool {
        let key = self.nodes[at].copying.remove(&attempt);
        let stopped = key.and_then(|key| self.remove_copy(key)).is_some();
        if stopped {
            self.send_to_agent(at, AgentEvent::Copied(attempt, Err("stopped".into())));
        }
        stopped
    }

    /// Stops all copies of a tracker whose process has died.
    pub(super) fn drop_copies_of(&mut self, at: usize) {
        for key in std::mem::take(&mut self.nodes[at].copying).into_values() {
            self.remove_copy(key);
        }
    }

    fn copy_stored_files(&mut self, at: usize, source: usize, attempt: AttemptId) -> Option<Copied<Model>> {
        if source != at && !(self.nodes[source].serves() && self.nodes[at].serves()) {
            return None;
        }
        let bytes = self.stored_bytes(source, attempt);
        match attempt.phase() {
            Phase::Map => {
                self.nodes[source].outputs.contains_key(&attempt).then_some(())?;
                self.nodes[at].add_output(attempt, bytes);
                Some(Copied { bytes, checkpoint: None })
            }
            Phase::Reduce => {
                let saved = self.nodes[source].checkpoints.get(&attempt)?.clone();
                let checkpoint = Some(saved.checkpoint);
                self.nodes[at].checkpoints.insert(attempt, saved);
                Some(Copied { bytes, checkpoint })
            }
        }
    }

    fn stored_bytes(&self, source: usize, attempt: AttemptId) -> u64 {
        if let Some(saved) = self.nodes[source].checkpoints.get(&attempt) {
            return saved.checkpoint.bytes;
        }
        let result = self.core.as_ref().and_then(|core| core.cluster().attempt(attempt)?.result.as_ref());
        result.map_or(0, |result| result.bytes_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Setup, Workload,
        world::{fetch::Fetch, run::StoredCheckpoint},
    };
    use mrcore::{
        PerPhase,
        ids::{JobId, TaskId},
        task::{CheckpointInfo, Stage},
    };

    /// Returns how long copies of checkpoints of 10 MB from machine 0 to `targets` take, over links
    /// of 10 MB/s.
    fn copy_s(targets: &[usize]) -> f64 {
        let mut setup = Setup::even(4, PerPhase { map: 1, reduce: 1 }, "fifo");
        setup.machines.iter_mut().for_each(|machine| machine.nic = 10e6);
        let mut world = World::new(setup, Workload::default()).expect("a policy");
        let step = |world: &mut World| {
            let (at, what) = world.queue.pop().expect("it continues");
            world.now = at;
            world.handle_event(what);
        };
        while world.by_tracker.len() < 4 {
            step(&mut world);
        }
        let source = world.nodes[0].tracker_id.expect("registered");
        let began = world.now;
        for (index, to) in targets.iter().enumerate() {
            let task = TaskId { job: JobId(1), phase: Phase::Reduce, index: index as u32 };
            let checkpoint =
                CheckpointInfo { stage: Stage::Shuffle, bytes: 10_000_000, bytes_in: 0, records: 0 };
            let saved = StoredCheckpoint { fetch: Fetch::default(), final_stages: None, checkpoint };
            world.nodes[0].checkpoints.insert(task.attempt(0), saved);
            world.copy_files(*to, task.attempt(0), source);
        }
        while !world.copies.is_empty() {
            step(&mut world);
        }
        assert!(targets.iter().all(|to| world.nodes[*to].copying.is_empty()));
        world.now.since(began).as_secs_f64()
    }

    #[test]
    fn copies_share_the_link_of_the_machine_that_is_drained() {
        let (one, two, three) = (copy_s(&[1]), copy_s(&[1, 2]), copy_s(&[1, 2, 3]));
        assert!((one - 1.0).abs() < 0.01, "10 MB at 10 MB/s: {one} s");
        assert!((two - 2.0).abs() < 0.6 && (three - 3.0).abs() < 0.6, "{two} s, {three} s");
    }
}
