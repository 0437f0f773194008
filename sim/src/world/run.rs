//! A running attempt: its progress, its speed, and when its work will be done.
//!
//! `Run` contains the state of an attempt at the time `since`. From then on the attempt advances at
//! a known rate. The state is updated only when an event affects the attempt. A map has one stage;
//! a reduce fetches, then merges and reduces.

use super::{fetch::Fetch, net::FlowId};
use mrcore::{
    Time,
    ids::AttemptId,
    task::{CheckpointInfo, PreemptKind, PreemptRefusal, Progress, Stage},
};

/// A running attempt.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) id: AttemptId,
    /// Unique number in the simulation.
    pub(super) key: u64,
    /// Incremented when the speed changes; scheduled events of older versions are invalid.
    pub(super) version: u32,
    /// Kind of the preemption in progress.
    pub(super) preempting: Option<PreemptKind>,
    /// Whether the attempt has stopped working, to write its output or checkpoint.
    pub(super) is_frozen: bool,
    /// Progress at which `mishap` happens; `None` if nothing goes wrong.
    pub(super) fails_at: Option<f64>,
    /// What happens at the progress `fails_at`.
    pub(super) mishap: Mishap,
    /// Whether the attempt makes no further progress.
    pub(super) hangs: bool,
    /// How often the attempt refused a preemption.
    pub(super) refusals: u32,
    /// Time at which the fields below are valid.
    pub(super) since: Time,
    pub(super) flow: Option<FlowId>,
    pub(super) work: Work,
    /// Number of progress reports, from which the core sees that the attempt is alive.
    pub(super) activity: u64,
}

/// What goes wrong with an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mishap {
    /// The attempt fails.
    Fails,
    /// The process of the attempt is killed by another process.
    IsKilled,
    /// The attempt makes no further progress.
    Hangs,
}

/// Current work of an attempt.
#[derive(Debug)]
pub(super) enum Work {
    Map(MapRun),
    Reduce(ReduceRun),
    /// The attempt will fail with this error.
    Failing(&'static str),
    /// The checkpoint is on an unreachable machine.
    CheckpointUnreachable,
}

/// State of a map.
#[derive(Debug)]
pub(super) struct MapRun {
    /// Byte range of its input.
    pub(super) start: u64,
    pub(super) end: u64,
    /// Fraction of the range that is done.
    pub(super) done: f64,
    /// Fraction of the range that is processed per second.
    pub(super) rate: f64,
    /// Seconds of computing for the whole range at speed 1.
    pub(super) work_s: f64,
    /// Bytes of output per byte of input.
    pub(super) out: f64,
    /// Index of the original split.
    pub(super) root: u32,
    /// Machine that it reads from, if remote.
    pub(super) source: Option<u32>,
}

impl MapRun {
    /// Returns the bytes of its range, at least 1.
    pub(super) fn bytes(&self) -> f64 {
        (self.end - self.start).max(1) as f64
    }
}

/// State of a reduce.
#[derive(Debug)]
pub(super) struct ReduceRun {
    pub(super) fetch: Fetch,
    /// Its fraction of every map output.
    pub(super) share: f64,
    /// Bytes of map output, counted for all reduces together, that it fetches per second.
    pub(super) rate: f64,
    /// Number of maps, as received from the JobTracker.
    pub(super) maps: u32,
    /// Number of map events that it has received.
    pub(super) events_seen: usize,
    /// Number of map events of its job when the path of its shuffle was determined.
    pub(super) events_in_path: usize,
    /// Merge and reduce; set after the shuffle.
    pub(super) final_stages: Option<FinalStages>,
    /// When it last reported fetch failures.
    pub(super) last_fetch_failure: Time,
    /// Transfer of the remote checkpoint that it resumes from, until it has arrived.
    pub(super) transfer: Option<Transfer>,
}

impl ReduceRun {
    /// Returns the bytes that are fetched but not yet reduced.
    pub(super) fn state_bytes(&self) -> f64 {
        self.fetch.fetched
            * self.share
            * self.final_stages.map_or(1.0, |final_stages| 1.0 - final_stages.done)
    }
}

/// Transfer of a checkpoint between machines.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Transfer {
    pub(super) source: u32,
    /// Remaining bytes.
    pub(super) left: f64,
    /// Bytes per second.
    pub(super) rate: f64,
    pub(super) began: Time,
}

/// The stages after the shuffle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FinalStages {
    /// Seconds of computing at speed 1.
    pub(super) merge_s: f64,
    pub(super) reduce_s: f64,
    /// Bytes of its input, at least 1.
    pub(super) bytes: f64,
    /// Fraction of both stages together that is done.
    pub(super) done: f64,
    /// Fraction of both stages together that is done per second.
    pub(super) rate: f64,
}

impl FinalStages {
    /// Returns the bytes of input per second that a machine of this speed can process.
    pub(super) fn demand(&self, speed: f64) -> f64 {
        self.bytes * speed / (self.merge_s + self.reduce_s).max(1e-3)
    }

    fn merge_part(&self) -> f64 {
        let all = self.merge_s + self.reduce_s;
        if all > 0.0 { self.merge_s / all } else { 0.0 }
    }

    fn stage(&self) -> Stage {
        if self.done < self.merge_part() { Stage::Merge } else { Stage::Reduce }
    }
}

/// The checkpoint of a paused reduce.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StoredCheckpoint {
    pub(super) fetch: Fetch,
    pub(super) final_stages: Option<FinalStages>,
    pub(super) checkpoint: CheckpointInfo,
}

impl Run {
    /// Returns how many bytes of its input a reduce with this much memory has in files.
    pub(super) fn spilled_bytes(&self, memory: u64) -> f64 {
        match &self.work {
            Work::Reduce(reduce) => (reduce.fetch.fetched * reduce.share - memory as f64).max(0.0),
            _ => 0.0,
        }
    }

    /// Advances the state to `now`.
    pub(super) fn advance(&mut self, now: Time) {
        let passed = now.since(self.since).as_secs_f64();
        self.since = self.since.max(now);
        if self.is_frozen || self.hangs {
            return;
        }
        match &mut self.work {
            Work::Map(map) => map.done = (map.done + passed * map.rate).min(1.0),
            Work::Reduce(reduce) => match (&mut reduce.transfer, &mut reduce.final_stages) {
                (Some(transfer), _) => transfer.left = (transfer.left - passed * transfer.rate).max(0.0),
                (None, Some(final_stages)) => {
                    final_stages.done = (final_stages.done + passed * final_stages.rate).min(1.0);
                }
                (None, None) => reduce.fetch.add_fetched(passed * reduce.rate),
            },
            Work::Failing(_) | Work::CheckpointUnreachable => {}
        }
    }

    /// Returns the seconds from `since` until the current work is done; `None` if that depends on
    /// other events.
    pub(super) fn next_s(&self) -> Option<f64> {
        match &self.work {
            _ if self.is_frozen || self.hangs => None,
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
                None if reduce.fetch.is_caught_up() => Some(0.0),
                None => (reduce.rate > 0.0).then(|| reduce.fetch.backlog() / reduce.rate),
            },
            Work::Failing(_) | Work::CheckpointUnreachable => Some(0.0),
        }
    }

    /// Returns the progress for a report.
    pub(super) fn progress(&mut self) -> Progress {
        self.activity += u64::from(!self.hangs);
        let (activity, refusals) = (self.activity, self.refusals);
        let refused = (refusals > 0).then_some(PreemptRefusal::NoSpace);
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
                    refusals,
                    refused,
                }
            }
            Work::Reduce(reduce) => {
                let bytes_in = (reduce.fetch.fetched * reduce.share) as u64;
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
                    refusals,
                    refused,
                }
            }
            Work::Failing(_) | Work::CheckpointUnreachable => Progress { activity, ..Progress::default() },
        }
    }

    /// Returns whether the checkpoint that it resumes from is still being transferred.
    pub(super) fn awaits_checkpoint(&self) -> bool {
        matches!(&self.work, Work::Reduce(ReduceRun { transfer: Some(_), .. }))
    }

    /// Returns whether it uses a core: it is a map, or a reduce after its shuffle.
    pub(super) fn computes(&self) -> bool {
        let computes = match &self.work {
            Work::Map(_) => true,
            Work::Reduce(reduce) => reduce.transfer.is_none() && reduce.final_stages.is_some(),
            Work::Failing(_) | Work::CheckpointUnreachable => false,
        };
        computes && !self.is_frozen && !self.hangs
    }

    /// Returns the current stage.
    pub(super) fn stage(&self) -> Stage {
        match &self.work {
            Work::Reduce(reduce) => reduce.final_stages.as_ref().map_or(Stage::Shuffle, FinalStages::stage),
            _ => Stage::Map,
        }
    }

    /// Returns the bytes in memory that a preemption must write to disk.
    pub(super) fn unwritten(&self, memory: u64) -> f64 {
        match &self.work {
            Work::Map(map) => ((map.end - map.start) as f64 * map.done * map.out).min(memory as f64),
            Work::Reduce(reduce) => reduce.state_bytes().min(memory as f64),
            Work::Failing(_) | Work::CheckpointUnreachable => 0.0,
        }
    }
}
