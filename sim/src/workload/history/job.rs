//! Collects the work of one job from its history: durations and output of its tasks.
//!
//! For each map, only the attempt whose output the job used in the end counts. Attempts whose
//! output was lost are not part of profiles and are not replayed. Lines that do not belong to the
//! job are ignored.

use super::{
    super::{JobPlan, MapPlan, ReducePlan, seconds},
    Real, records,
};
use mrcore::{
    Fact, PerPhase, Phase, Span, Time,
    ids::{AttemptId, JobId},
    job::{JobOutcome, JobSpec, Program},
    metrics::group,
    task::{AttemptResult, Stage},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// State of a job while its history is read.
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) submitted: Time,
    pub(super) spec: Arc<JobSpec>,
    launched: BTreeMap<AttemptId, Time>,
    /// For each map, the index of its original split.
    roots: Vec<u32>,
    /// Maps whose output is available, by index.
    maps: BTreeMap<u32, TaskWork>,
    reduces: Vec<TaskWork>,
    /// Tasks with a launch and a result.
    done: BTreeSet<(Phase, u32)>,
    maps_left: usize,
    /// When the outputs of all maps last became available.
    maps_done: Option<Time>,
    pub(super) ended: Option<Time>,
    pub(super) succeeded: bool,
    pub(super) last_line_at: Time,
    disturbances: Disturbances,
}

/// Numbers of events that make the measured times of a job doubtful.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Disturbances {
    /// Attempts that failed or were killed, also because their tracker was lost.
    pub failed: u32,
    pub killed: u32,
    /// Attempts that were preempted: maps that were split, and reduces that were paused.
    pub split: u32,
    pub paused: u32,
    /// Map outputs that were lost.
    pub outputs_lost: u32,
}

impl Disturbances {
    /// Adds the numbers of another job.
    pub(super) fn add(&mut self, other: Self) {
        self.failed += other.failed;
        self.killed += other.killed;
        self.split += other.split;
        self.paused += other.paused;
        self.outputs_lost += other.outputs_lost;
    }
}

/// Duration and output of a task.
#[derive(Debug, Clone, Copy, Default)]
struct TaskWork {
    seconds: f64,
    cpu_s: f64,
    bytes_out: f64,
}

/// A job whose history has been read completely.
pub(super) struct FinishedJob {
    pub(super) at: Time,
    pub(super) plan: JobPlan,
    pub(super) real: Real,
    /// Hosts of the input of each map.
    pub(super) hosts: Vec<Vec<String>>,
    pub(super) program: Program,
    pub(super) cpu_s: PerPhase<Vec<f64>>,
    pub(super) disturbances: Disturbances,
}

impl Job {
    pub(super) fn new(id: JobId, submitted: Time, spec: Arc<JobSpec>) -> Self {
        let (maps, reduces) = (spec.splits.len(), spec.reduces as usize);
        Self {
            id,
            submitted,
            launched: BTreeMap::new(),
            roots: (0..maps as u32).collect(),
            maps: BTreeMap::new(),
            reduces: vec![TaskWork::default(); reduces],
            done: BTreeSet::new(),
            maps_left: maps,
            maps_done: (maps == 0).then_some(submitted),
            ended: None,
            succeeded: false,
            last_line_at: submitted,
            disturbances: Disturbances::default(),
            spec,
        }
    }

    /// Records a fact of the job.
    pub(super) fn record_fact(&mut self, at: Time, fact: &Fact) {
        self.count_disturbance(fact);
        match fact {
            Fact::AttemptLaunched { attempt, .. } => drop(self.launched.insert(*attempt, at)),
            Fact::AttemptSucceeded { attempt, result } => self.record_success(at, *attempt, result, false),
            Fact::MapSplit { attempt, result, .. } => self.record_success(at, *attempt, result, true),
            Fact::AttemptPaused { attempt, stage, .. } => self.record_pause(at, *attempt, *stage),
            Fact::AttemptFailed { attempt, .. } | Fact::AttemptKilled { attempt, .. } => {
                self.launched.remove(attempt);
            }
            Fact::MapOutputLost { attempt, .. } => {
                self.maps_left += usize::from(self.maps.remove(&attempt.task.index).is_some());
            }
            Fact::JobEnded { outcome, .. } => {
                (self.ended, self.succeeded) = (Some(at), *outcome == JobOutcome::Succeeded);
            }
            _ => {}
        }
    }

    fn count_disturbance(&mut self, fact: &Fact) {
        let seen = &mut self.disturbances;
        match fact {
            Fact::AttemptFailed { .. } => seen.failed += 1,
            Fact::AttemptKilled { .. } => seen.killed += 1,
            Fact::MapSplit { .. } => seen.split += 1,
            Fact::AttemptPaused { .. } => seen.paused += 1,
            Fact::MapOutputLost { .. } => seen.outputs_lost += 1,
            _ => {}
        }
    }

    /// Records the result of an attempt that succeeded or was split.
    fn record_success(&mut self, at: Time, id: AttemptId, result: &AttemptResult, split: bool) {
        let Some(launched) = self.launched.remove(&id) else { return };
        self.done.insert((id.phase(), id.task.index));
        let used = result.counters.iter().find(|(name, _)| name == records::CPU_COUNTER);
        let done = TaskWork {
            seconds: at.since(launched).as_secs_f64(),
            cpu_s: used.map_or(0.0, |(_, used)| *used as f64 / 1e3),
            bytes_out: result.bytes_out as f64,
        };
        match id.phase() {
            Phase::Map => self.record_map(at, id.task.index, done, split),
            Phase::Reduce => {
                // The reduce has ended, so it had fetched all map outputs, even if some were lost
                // later.
                self.add_reduce_time(at, launched, id.task.index);
                if let Some(reduce) = self.reduces.get_mut(id.task.index as usize) {
                    reduce.cpu_s += done.cpu_s;
                    reduce.bytes_out += done.bytes_out;
                }
            }
        }
    }

    /// Records the result of a map.
    fn record_map(&mut self, at: Time, index: u32, done: TaskWork, split: bool) {
        let Some(root) = self.roots.get(index as usize).copied() else { return };
        let is_new = self.maps.insert(index, done).is_none();
        if split {
            // The remainder of the range becomes a new map.
            self.roots.push(root);
            self.maps_left += 1;
        }
        if is_new {
            self.maps_left = self.maps_left.saturating_sub(1);
        }
        if self.maps_left == 0 {
            self.maps_done = Some(at);
        }
    }

    /// Adds the work of a paused reduce, unless it was still in the shuffle.
    fn record_pause(&mut self, at: Time, id: AttemptId, stage: Stage) {
        if let Some(launched) = self.launched.remove(&id)
            && (self.maps_left == 0 || stage != Stage::Shuffle)
        {
            self.add_reduce_time(at, launched, id.task.index);
        }
    }

    /// Adds the time that a reduce worked after the end of the maps. Time before that was waiting.
    fn add_reduce_time(&mut self, at: Time, launched: Time, index: u32) {
        if let (Some(done), Some(reduce)) = (self.maps_done, self.reduces.get_mut(index as usize)) {
            reduce.seconds += at.since(launched.max(done)).as_secs_f64();
        }
    }

    /// Returns duration and output of each original split, summed over the maps of the split.
    fn splits(&self) -> Vec<TaskWork> {
        let mut splits = vec![TaskWork::default(); self.spec.splits.len()];
        for (index, map) in &self.maps {
            let root = self.roots.get(*index as usize);
            if let Some(split) = root.and_then(|root| splits.get_mut(*root as usize)) {
                split.seconds += map.seconds;
                split.cpu_s += map.cpu_s;
            }
        }
        splits
    }

    /// Returns how many tasks have no launch or no result. If there are any although the job
    /// succeeded, lines are missing, and the job would seem shorter than it was.
    pub(super) fn tasks_without_lines(&self) -> usize {
        let tasks = PerPhase { map: self.roots.len(), reduce: self.reduces.len() };
        let done = self.done.iter().filter(|(phase, index)| (*index as usize) < tasks[*phase]).count();
        tasks.map + tasks.reduce - done
    }

    /// Converts the history to a job to replay. Returns `None` if the job has not ended.
    pub(super) fn finish(self) -> Option<FinishedJob> {
        let ended = self.ended?;
        let JobSpec { name, user, queue, priority, slow_start, speculation, splits, program, .. } =
            self.spec.as_ref();
        let read: f64 = splits.iter().map(|split| (split.end - split.start) as f64).sum();
        let mapped: f64 = self.maps.values().map(|map| map.bytes_out).sum();
        let reduced: f64 = self.reduces.iter().map(|reduce| reduce.bytes_out).sum();
        let by_split = self.splits();
        let maps = splits.iter().zip(&by_split);
        let share = 1.0 / self.reduces.len().max(1) as f32;
        let plan = JobPlan {
            at: Span(0),
            group: group(&self.spec).to_owned(),
            name: name.clone(),
            user: user.clone(),
            queue: queue.clone(),
            priority: *priority,
            maps: maps
                .map(|(split, map)| MapPlan {
                    bytes: split.end - split.start,
                    work_s: map.seconds as f32,
                    divisible: split.divisible,
                })
                .collect(),
            hosts: Vec::new(),
            reduces: self
                .reduces
                .iter()
                .map(|reduce| ReducePlan { share, factor: 0.0, fixed_s: reduce.seconds as f32 })
                .collect(),
            map_out: mapped / read.max(1.0),
            reduce_rate: 1e12,
            merge_rate: 1e12,
            reduce_out: if mapped > 0.0 { reduced / mapped } else { 1.0 },
            startup_time: seconds(0.0),
            slow_start: *slow_start,
            speculation: *speculation,
            split_slow: self.spec.split_slow,
        };
        let hosts = splits.iter().map(|split| split.hosts.clone()).collect();
        let makespan = ended.since(self.submitted);
        let succeeded = self.succeeded && self.tasks_without_lines() == 0;
        let real = Real { id: self.id, name: name.clone(), makespan, succeeded };
        let program = program.clone();
        let used = |tasks: &[TaskWork]| tasks.iter().map(|task| task.cpu_s).collect();
        let cpu_s = PerPhase { map: used(&by_split), reduce: used(&self.reduces) };
        let disturbances = self.disturbances;
        Some(FinishedJob { at: self.submitted, plan, real, hosts, program, cpu_s, disturbances })
    }
}
