//! Attempts on a machine: how far they are, at what pace, and when they will be done.
//!
//! An attempt is only looked at when something happens to it: its state is what it was at `since`, and continues at a
//! known rate from there. A map is one piece of work. A reduce fetches, then merges and reduces.

use super::{fetch::Fetch, net::FlowId};
use mrcore::{
    Time,
    ids::AttemptId,
    task::{CheckpointInfo, PreemptKind, Progress, Stage},
};

/// An attempt under way.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) id: AttemptId,
    /// Its number in this world, never used again.
    pub(super) key: u64,
    /// Goes up when its pace changes: what was expected before does not count.
    pub(super) version: u32,
    /// How it was told to release its slot.
    pub(super) preempting: Option<PreemptKind>,
    /// It has stopped working, to checkpointed what it has.
    pub(super) is_frozen: bool,
    /// It fails at this point of its work.
    pub(super) fails_at: Option<f64>,
    /// When what follows was true.
    pub(super) since: Time,
    pub(super) flow: Option<FlowId>,
    pub(super) work: Work,
    /// Counts its reports.
    pub(super) activity: u64,
}

/// What it does.
#[derive(Debug)]
pub(super) enum Work {
    /// A map.
    Map(MapRun),
    /// A reduce.
    Reduce(ReduceRun),
    /// Nothing will come of it: its input cannot be read.
    Failing(&'static str),
    /// Nor of this: the machine that has its state does not answer.
    CheckpointUnreachable,
}

/// A map.
#[derive(Debug)]
pub(super) struct MapRun {
    /// Its range.
    pub(super) start: u64,
    pub(super) end: u64,
    /// Part done, and part done in a second.
    pub(super) done: f64,
    pub(super) rate: f64,
    /// Seconds of computing for all of it at speed 1.
    pub(super) work_s: f64,
    /// Map output for each byte.
    pub(super) out: f64,
    /// The split that its range is of.
    pub(super) root: u32,
    /// Where it reads from, if that is another machine.
    pub(super) source: Option<u32>,
}

/// A reduce.
#[derive(Debug)]
pub(super) struct ReduceRun {
    pub(super) fetch: Fetch,
    /// Its part of every map's output.
    pub(super) share: f64,
    /// Bytes of map output (of all reduces) that it fetches in a second.
    pub(super) rate: f64,
    /// How many maps there are, as it was told.
    pub(super) maps: u32,
    /// Once it has fetched all: seconds of merging and of reducing at speed 1, and the part that is done.
    pub(super) final_stages: Option<FinalStages>,
    /// When it last said what it cannot fetch.
    pub(super) last_fetch_failure: Time,
    /// Until it has come: the checkpoint that it resumes from, if that lies elsewhere.
    pub(super) transfer: Option<Transfer>,
}

impl ReduceRun {
    /// Bytes that it has fetched and not reduced.
    pub(super) fn state_bytes(&self) -> f64 {
        self.fetch.got * self.share * self.final_stages.map_or(1.0, |final_stages| 1.0 - final_stages.done)
    }
}

/// A state on its way from one machine to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Transfer {
    pub(super) source: u32,
    /// Bytes to come, and in a second.
    pub(super) left: f64,
    pub(super) rate: f64,
    pub(super) began: Time,
}

/// What follows the shuffle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FinalStages {
    pub(super) merge_s: f64,
    pub(super) reduce_s: f64,
    pub(super) done: f64,
    /// Part done in a second.
    pub(super) rate: f64,
}

impl FinalStages {
    fn merge_part(&self) -> f64 {
        let all = self.merge_s + self.reduce_s;
        if all > 0.0 { self.merge_s / all } else { 0.0 }
    }

    fn stage(&self) -> Stage {
        if self.done < self.merge_part() { Stage::Merge } else { Stage::Reduce }
    }
}

/// The state of a paused reduce.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StoredCheckpoint {
    pub(super) fetch: Fetch,
    pub(super) final_stages: Option<FinalStages>,
    pub(super) checkpoint: CheckpointInfo,
}

impl Run {
    /// Brings its state up to a moment.
    pub(super) fn advance(&mut self, now: Time) {
        let passed = now.since(self.since).as_secs_f64();
        self.since = self.since.max(now);
        if self.is_frozen {
            return;
        }
        match &mut self.work {
            Work::Map(map) => map.done = (map.done + passed * map.rate).min(1.0),
            Work::Reduce(reduce) => match (&mut reduce.transfer, &mut reduce.final_stages) {
                (Some(transfer), _) => transfer.left = (transfer.left - passed * transfer.rate).max(0.0),
                (None, Some(final_stages)) => {
                    final_stages.done = (final_stages.done + passed * final_stages.rate).min(1.0)
                }
                (None, None) => reduce.fetch.run(passed * reduce.rate),
            },
            Work::Failing(_) | Work::CheckpointUnreachable => {}
        }
    }

    /// Seconds from `since` until something about it changes by itself; none if that is up to others.
    pub(super) fn next_s(&self) -> Option<f64> {
        match &self.work {
            _ if self.is_frozen => None,
            Work::Map(map) => {
                let goal = self.fails_at.unwrap_or(1.0);
                (map.rate > 0.0).then(|| ((goal - map.done) / map.rate).max(0.0))
            }
            Work::Reduce(ReduceRun { transfer: Some(transfer), .. }) => {
                (transfer.rate > 0.0).then(|| transfer.left / transfer.rate)
            }
            Work::Reduce(reduce) => match &reduce.final_stages {
                Some(final_stages) => {
                    let goal = self.fails_at.unwrap_or(1.0);
                    (final_stages.rate > 0.0)
                        .then(|| ((goal - final_stages.done) / final_stages.rate).max(0.0))
                }
                None if !reduce.fetch.knows_all_maps(reduce.maps) => None,
                None if reduce.fetch.backlog() < 0.5 => Some(0.0),
                None => (reduce.rate > 0.0).then(|| reduce.fetch.backlog() / reduce.rate),
            },
            Work::Failing(_) | Work::CheckpointUnreachable => Some(0.0),
        }
    }

    /// What its tracker says of it.
    pub(super) fn progress(&mut self) -> Progress {
        self.activity += 1;
        let activity = self.activity;
        match &self.work {
            Work::Map(map) => {
                let bytes_in = ((map.end - map.start) as f64 * map.done) as u64;
                let bytes_out = (bytes_in as f64 * map.out) as u64;
                Progress {
                    done: map.done as f32,
                    stage: Stage::Map,
                    bytes_in,
                    bytes_out,
                    activity,
                    refusals: 0,
                    refused: None,
                }
            }
            Work::Reduce(reduce) => {
                let bytes_in = (reduce.fetch.got * reduce.share) as u64;
                let (done, stage) = match &reduce.final_stages {
                    None => (reduce.fetch.fraction(reduce.maps) / 3.0, Stage::Shuffle),
                    Some(final_stages) => {
                        let merge = final_stages.merge_part();
                        let stage = final_stages.stage();
                        let third = match stage {
                            Stage::Merge => 1.0 + final_stages.done / merge,
                            _ => 2.0 + (final_stages.done - merge) / (1.0 - merge).max(1e-9),
                        };
                        (third / 3.0, stage)
                    }
                };
                Progress {
                    done: done.min(1.0) as f32,
                    stage,
                    bytes_in,
                    bytes_out: 0,
                    activity,
                    refusals: 0,
                    refused: None,
                }
            }
            Work::Failing(_) | Work::CheckpointUnreachable => Progress { activity, ..Progress::default() },
        }
    }

    /// Whether the checkpoint that it resumes from is still on its way.
    pub(super) fn is_slot_expected(&self) -> bool {
        matches!(&self.work, Work::Reduce(ReduceRun { transfer: Some(_), .. }))
    }

    /// What a reduce is doing.
    pub(super) fn stage(&self) -> Stage {
        match &self.work {
            Work::Reduce(reduce) => reduce.final_stages.as_ref().map_or(Stage::Shuffle, FinalStages::stage),
            _ => Stage::Map,
        }
    }

    /// Bytes that it would have to write to save its checkpoint, of those that are in memory.
    pub(super) fn unwritten(&self, memory: u64) -> f64 {
        match &self.work {
            Work::Map(map) => ((map.end - map.start) as f64 * map.done * map.out).min(memory as f64),
            Work::Reduce(reduce) => reduce.state_bytes().min(memory as f64),
            Work::Failing(_) | Work::CheckpointUnreachable => 0.0,
        }
    }
}
