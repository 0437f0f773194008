//! Copies map outputs and checkpoints from trackers that are being drained. The duration of a copy
//! is its bytes divided by the rate of one fetch; copies do not share links.

use super::{AgentEvent, SimEvent, World, tracker::Model};
use agent::Copied;
use mrcore::{
    Phase, Span,
    ids::{AttemptId, TrackerId},
};

impl World {
    /// Makes a tracker start to copy the files of an attempt from another tracker.
    pub(super) fn copy_files(&mut self, at: usize, attempt: AttemptId, from: TrackerId) {
        let source = self.by_tracker.get(&from).map_or(at, |source| *source as usize);
        let lasts = Span((self.stored_bytes(source, attempt) as f64 / self.setup.costs.fetch * 1e6) as u64);
        self.nodes[at].jobs.insert(attempt.job());
        self.nodes[at].copying.insert(attempt, source);
        self.queue.push(self.now + lasts, SimEvent::Copied { node: at as u32, attempt });
    }

    /// Stores the copied files and reports the result to the tracker.
    pub(super) fn finish_copy(&mut self, at: usize, attempt: AttemptId) {
        let Some(source) = self.nodes[at].copying.remove(&attempt) else { return };
        let copied = if self.one_in(6) { None } else { self.copy_stored_files(at, source, attempt) };
        let result = copied.ok_or_else(|| "the files cannot be read".to_owned());
        self.send_to_agent(at, AgentEvent::Copied(attempt, result));
    }

    /// Stops a copy. Returns whether there was one.
    pub(super) fn stop_copy(&mut self, at: usize, attempt: AttemptId) -> bool {
        let stopped = self.nodes[at].copying.remove(&attempt).is_some();
        if stopped {
            self.send_to_agent(at, AgentEvent::Copied(attempt, Err("stopped".into())));
        }
        stopped
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
