//! Estimates the work of jobs in slot seconds.
//!
//! The work of maps is measured from those of the job that are done or report progress, that of
//! reduces from those that are done. Before that, it is predicted from earlier jobs: those of the
//! same program whose tasks have about as many input bytes, else those of the same program, else
//! all. A prediction counts as much as one task that was measured.

use crate::{
    estimate::{self, DataFlow, Mean},
    params::Section,
    paused::PausedReduces,
};
use mrcore::{
    Cluster, Fact, PerPhase, Phase, Span, Time,
    ids::JobId,
    job::Job,
    task::{Attempt, Progress, Stage},
};
use std::collections::BTreeMap;

/// An earlier job counts this much less with each later job of its kind.
const FORGETTING: f64 = 0.9;

/// Tasks of this many programs are remembered.
const PROGRAMS_MAX: usize = 1000;

/// The maps of a job are compared with each other when as many have been measured.
const MEASURED_MAPS_MIN: f64 = 3.0;

/// The estimated work of a job.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Work {
    /// Slot seconds that are left.
    pub(super) left_s: PerPhase<f64>,
    /// Slot seconds of the whole job.
    pub(super) total_s: PerPhase<f64>,
    /// Seconds of one task.
    pub(super) task_s: PerPhase<f64>,
    /// Slot seconds of all maps, only from maps of this job. `None` until several have been
    /// measured.
    pub(super) measured_map_s: Option<f64>,
    /// Slot seconds of all maps, only from earlier jobs of the same program with tasks of the same
    /// size. `None` if there was none.
    pub(super) earlier_map_s: Option<f64>,
    /// Input bytes of all maps.
    pub(super) input_bytes: f64,
    /// Bytes that each reduce fetches.
    pub(super) reduce_bytes: f64,
}

/// The estimated slot seconds of the maps of a job.
struct MapWork {
    total_s: f64,
    left_s: f64,
    /// The total, only from maps of this job.
    measured_s: Option<f64>,
}

/// Which earlier jobs a prediction is made from: the program, the phase, and the logarithm of the
/// input bytes of a task. `None` stands for all.
type Kind = (Option<ProgramNumber>, Phase, Option<u32>);

/// The number of a program, in the order in which programs were first submitted.
type ProgramNumber = u32;

/// Times of the tasks of earlier jobs.
#[derive(Debug, Default)]
struct EarlierTasks {
    /// Seconds of a task.
    seconds: Mean,
    /// The logarithm of these seconds: its mean is not changed much by a few tasks on slow nodes.
    log_seconds: Mean,
    /// Input bytes of a task.
    bytes: Mean,
}

#[derive(Debug)]
pub(super) struct Estimator {
    default_s: PerPhase<f64>,
    /// Whether to predict from earlier jobs.
    predicts: bool,
    /// Whether only reduces that are done count for the estimate of a reduce.
    ignores_running_reduces: bool,
    error: EstimateError,
    flow: DataFlow,
    /// By name, with the last job that was submitted.
    programs: BTreeMap<String, (ProgramNumber, JobId)>,
    next_program: ProgramNumber,
    /// The programs of the active jobs.
    program_of: BTreeMap<JobId, ProgramNumber>,
    earlier_tasks: BTreeMap<Kind, EarlierTasks>,
    /// Bytes of map output for each byte of input of earlier jobs, by program.
    selectivity: BTreeMap<ProgramNumber, Mean>,
}

/// A deliberate error of all estimates, for experiments.
#[derive(Debug, Clone, Copy)]
struct EstimateError {
    factor: f64,
    kind: ErrorKind,
    seed: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ErrorKind {
    /// Each job is over- or underestimated at random.
    Random,
    Over,
    Under,
}

impl EstimateError {
    /// Returns the factor of the estimates of a job, always the same.
    fn factor_of(self, job: JobId) -> f64 {
        let mixed = u64::from(job.0) << 32 | u64::from(self.seed);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let is_over = match self.kind {
            ErrorKind::Random => (mixed ^ (mixed >> 32)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 63 == 0,
            ErrorKind::Over => true,
            ErrorKind::Under => false,
        };
        if is_over { self.factor } else { 1.0 / self.factor }
    }
}

impl Estimator {
    pub(super) fn new(section: &mut Section<'_>) -> Self {
        let map =
            section.span("default_map", Span::secs(30), "assumed duration of a map before any was measured");
        let about = "assumed duration of a reduce before any was measured";
        let reduce = section.span("default_reduce", Span::secs(30), about);
        let predicts = section.switch("predictions", "predict the work of a job from earlier jobs");
        let about = "reduces that run do not change the estimate of a reduce";
        let ignores_running_reduces = section.switch("ignore_running_reduces", about);
        let about = "for experiments: estimates are wrong by this factor";
        let factor = section.number("estimate_error", 1.0, 1.0..=1000.0, about);
        let about = "for experiments: whether each job is over- or underestimated, or all are overestimated or underestimated";
        let kinds = [
            ("random", ErrorKind::Random),
            ("systematic", ErrorKind::Over),
            ("underestimate", ErrorKind::Under),
        ];
        let kind = section.choice("estimate_error_kind", &kinds, about);
        let about =
            "for experiments: which jobs are over- and which underestimated; simulations set their seed";
        let seed = section.count("estimate_error_seed", 1, about);
        Self {
            default_s: PerPhase { map: map.as_secs_f64(), reduce: reduce.as_secs_f64() },
            predicts,
            ignores_running_reduces,
            error: EstimateError { factor, kind, seed },
            flow: DataFlow::default(),
            programs: BTreeMap::new(),
            next_program: 0,
            program_of: BTreeMap::new(),
            earlier_tasks: BTreeMap::new(),
            selectivity: BTreeMap::new(),
        }
    }

    /// Observes a fact. Must be called with every fact.
    pub(super) fn observe(&mut self, fact: &Fact, cluster: &Cluster) {
        match fact {
            Fact::JobSubmitted { job, spec, .. } => {
                let next = &mut self.next_program;
                let program = self.programs.entry(spec.program.name().to_owned()).or_insert_with(|| {
                    *next += 1;
                    (*next, *job)
                });
                program.1 = *job;
                self.program_of.insert(*job, program.0);
                self.forget_programs();
            }
            Fact::JobCommitting { job } => {
                if let Some(job) = cluster.job(*job) {
                    self.learn_from(job);
                }
            }
            Fact::JobEnded { job, .. } => {
                self.program_of.remove(job);
            }
            _ => {}
        }
        self.flow.observe(fact, cluster);
    }

    /// Forgets the program that was last submitted longest ago and has no active job, if there are
    /// too many.
    fn forget_programs(&mut self) {
        if self.programs.len() <= PROGRAMS_MAX {
            return;
        }
        let is_active = |number| self.program_of.values().any(|own| *own == number);
        let idle = self.programs.values().filter(|(number, _)| !is_active(*number));
        let Some((oldest, _)) = idle.min_by_key(|(_, last)| *last).copied() else { return };
        self.programs.retain(|_, (number, _)| *number != oldest);
        self.selectivity.remove(&oldest);
        self.earlier_tasks.retain(|(program, ..), _| *program != Some(oldest));
    }

    fn learn_from(&mut self, job: &Job) {
        let maps = job.spec.splits.len() as f64;
        self.learn(job, Phase::Map, self.map_bytes(job), job.task_time.map.as_secs_f64() / maps.max(1.0));
        let (time, count) = job.reduce_times;
        if count > 0 {
            let seconds = time.as_secs_f64() / f64::from(count);
            self.learn(job, Phase::Reduce, self.flow.bytes_per_reduce(job), seconds);
        }
        if let Some(program) = self.program_of.get(&job.id) {
            // Each byte of input counts once. Otherwise one job with a few bytes of input and much
            // output would make all later jobs seem large.
            let bytes_in = self.flow.input_bytes(job.id);
            let bytes_out = bytes_in * self.flow.selectivity(job.id);
            forget(self.selectivity.entry(*program).or_default()).add_many(bytes_out, bytes_in);
        }
    }

    fn learn(&mut self, job: &Job, phase: Phase, bytes: f64, seconds: f64) {
        for kind in self.kinds(job, phase, bytes) {
            let tasks = self.earlier_tasks.entry(kind).or_default();
            forget(&mut tasks.seconds).add(seconds);
            forget(&mut tasks.log_seconds).add(seconds.max(1e-3).ln());
            forget(&mut tasks.bytes).add(bytes);
        }
    }

    /// Returns the kinds of jobs that a prediction is made from, the most similar first.
    fn kinds(&self, job: &Job, phase: Phase, bytes: f64) -> [Kind; 3] {
        let program = self.program_of.get(&job.id).copied();
        let size = Some(bytes.max(1.0).log2().round() as u32);
        [(program, phase, size), (program, phase, None), (None, phase, None)]
    }

    /// Returns the predicted seconds of a task, if there was an earlier job. Tasks with other sizes
    /// count by their bytes.
    fn predicted_s(&self, job: &Job, phase: Phase, bytes: f64) -> Option<f64> {
        let kinds = self.kinds(job, phase, bytes).into_iter().filter(|_| self.predicts);
        kinds.filter_map(|kind| Some((kind.2, self.earlier_tasks.get(&kind)?))).find_map(|(size, tasks)| {
            let (seconds, earlier_bytes) = (tasks.seconds.value()?, tasks.bytes.value()?);
            Some(if size.is_none() { seconds * scale(bytes, earlier_bytes) } else { seconds })
        })
    }

    /// Returns the usual seconds of a map of earlier jobs of the same program with maps of the same
    /// size.
    fn typical_map_s(&self, job: &Job) -> Option<f64> {
        let [kind, ..] = self.kinds(job, Phase::Map, self.map_bytes(job));
        let earlier = self.earlier_tasks.get(&kind).filter(|_| self.predicts)?;
        earlier.log_seconds.value().map(f64::exp)
    }

    /// Returns the mean number of input bytes of a map as submitted.
    fn map_bytes(&self, job: &Job) -> f64 {
        self.flow.input_bytes(job.id) / (job.spec.splits.len() as f64).max(1.0)
    }

    /// Estimates the work of a job.
    pub(super) fn work(&self, job: &Job, paused: &PausedReduces, now: Time, cluster: &Cluster) -> Work {
        let MapWork { total_s: map_total, left_s: map_left, measured_s } = self.map_work(job, now, cluster);
        let maps = (job.spec.splits.len() as f64).max(1.0);
        let reduce_bytes = self.reduce_bytes(job);
        let reduce_s = self.reduce_seconds(job, reduce_bytes, map_total / maps, now, cluster);
        let reduces = f64::from(job.spec.reduces);
        let reports = || cluster.reports(job.id, Phase::Reduce);
        let running = furthest_attempts(job, Phase::Reduce, cluster).map(|(_, progress)| progress);
        let checkpoints = paused.tasks_of(job.id).filter_map(|index| {
            let task = job.tasks.reduce.get(index as usize)?;
            Some(reports().progress(task.attempts.get(task.checkpoint?.attempt.number as usize)?))
        });
        let partly: f64 = running.chain(checkpoints).map(part_reduced).sum();
        let reduces_left = (reduces - f64::from(job.succeeded.reduce) - partly).max(0.0);
        let factor = self.error.factor_of(job.id);
        Work {
            left_s: PerPhase { map: factor * map_left, reduce: factor * reduce_s * reduces_left },
            total_s: PerPhase { map: factor * map_total, reduce: factor * reduce_s * reduces },
            task_s: PerPhase { map: factor * map_total / maps, reduce: factor * reduce_s },
            measured_map_s: measured_s,
            earlier_map_s: self.typical_map_s(job).map(|seconds| seconds * maps),
            input_bytes: self.flow.input_bytes(job.id),
            reduce_bytes,
        }
    }

    fn map_work(&self, job: &Job, now: Time, cluster: &Cluster) -> MapWork {
        let maps = job.spec.splits.len() as f64;
        if maps == 0.0 || job.is_done(Phase::Map) {
            let spent = job.task_time.map.as_secs_f64();
            return MapWork { total_s: spent, left_s: 0.0, measured_s: Some(spent) };
        }
        // Fractions of the input. An input without bytes counts by tasks.
        let bytes = self.flow.input_bytes(job.id);
        let by_bytes = bytes > 0.0;
        let tasks = job.tasks.map.len() as f64;
        let mut done =
            if by_bytes { job.bytes_mapped as f64 / bytes } else { f64::from(job.succeeded.map) / tasks };
        let mut spent = job.task_time.map.as_secs_f64();
        for (attempt, progress) in furthest_attempts(job, Phase::Map, cluster) {
            let part = f64::from(progress.done);
            if part > 0.0 {
                let whole = job.task(attempt.id.task).map_or(0.0, |task| task.bytes() as f64);
                done += part * if by_bytes { whole / bytes } else { 1.0 / tasks };
                spent += now.since(attempt.launched).as_secs_f64();
            }
        }
        let done = done.min(1.0);
        let predicted = self.predicted_s(job, Phase::Map, self.map_bytes(job));
        let total = match predicted {
            // The prediction counts as much as one map that was measured.
            Some(seconds) => (spent + seconds) / (done + 1.0 / maps),
            None if done > 0.0 => spent / done,
            None => maps * self.default_s.map,
        };
        let measured_s = (done * maps >= MEASURED_MAPS_MIN).then(|| spent / done);
        MapWork { total_s: total, left_s: total * (1.0 - done), measured_s }
    }

    /// Returns the number of bytes that each reduce of a job gets.
    fn reduce_bytes(&self, job: &Job) -> f64 {
        let program = self.program_of.get(&job.id).filter(|_| self.predicts);
        let earlier = program.and_then(|program| self.selectivity.get(program));
        match earlier.and_then(|mean| mean.value()) {
            Some(selectivity) if job.succeeded.map == 0 => {
                self.flow.input_bytes(job.id) * selectivity / f64::from(job.spec.reduces.max(1))
            }
            _ => self.flow.bytes_per_reduce(job),
        }
    }

    /// Returns the seconds that a reduce takes after the last map. A prediction counts as much as one
    /// reduce that is done. Reduces that run do not count (`ignore_running_reduces`): how long their
    /// stages take relative to each other depends on the load of disks and network. Without earlier
    /// jobs a reduce is as long as a map with the same input (hSRTF, equation 2).
    fn reduce_seconds(&self, job: &Job, bytes: f64, map_s: f64, now: Time, cluster: &Cluster) -> f64 {
        let map_bytes = self.map_bytes(job);
        let like_a_map = || {
            let known = job.succeeded.map > 0 && map_bytes > 0.0;
            if known { map_s * scale(bytes, map_bytes) } else { self.default_s.reduce }
        };
        let predicted_s = self.predicted_s(job, Phase::Reduce, bytes).unwrap_or_else(like_a_map);
        let mut mean = if self.ignores_running_reduces {
            let (time, count) = job.reduce_times;
            Mean { sum: time.as_secs_f64(), count: f64::from(count) }
        } else {
            estimate::reduce_times(job, now, cluster)
        };
        mean.add(predicted_s);
        mean.sum / mean.count
    }
}

/// Returns how many times as long a task takes as tasks with other input. Without bytes, nothing is
/// known: a task without input, or a reduce whose maps have no output, may take any time.
fn scale(bytes: f64, earlier_bytes: f64) -> f64 {
    if bytes > 0.0 && earlier_bytes > 0.0 { bytes / earlier_bytes } else { 1.0 }
}

/// Returns the running attempts that have reported progress; of a task with several, the one that is
/// furthest.
fn furthest_attempts<'a>(
    job: &'a Job,
    phase: Phase,
    cluster: &'a Cluster,
) -> impl Iterator<Item = (&'a Attempt, Progress)> {
    let mut furthest: Vec<(&Attempt, Progress)> = Vec::new();
    for (attempt, progress) in cluster.running(job, phase) {
        let Some(progress) = progress else { continue };
        // Attempts are ordered by task.
        match furthest.last_mut().filter(|(known, _)| known.id.task == attempt.id.task) {
            Some((_, known)) if known.done >= progress.done => {}
            Some(known) => *known = (attempt, progress),
            None => furthest.push((attempt, progress)),
        }
    }
    furthest.into_iter()
}

/// Lets earlier values count less.
fn forget(mean: &mut Mean) -> &mut Mean {
    (mean.sum, mean.count) = (mean.sum * FORGETTING, mean.count * FORGETTING);
    mean
}

/// Returns the fraction of its work after the shuffle that a reduce has done. The shuffle is the
/// first third of its progress.
pub(super) fn part_reduced(progress: Progress) -> f64 {
    if progress.stage <= Stage::Shuffle {
        0.0
    } else {
        (1.5 * f64::from(progress.done) - 0.5).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_errors_depend_on_the_seed_and_balance() {
        let errors = |seed| {
            let error = EstimateError { factor: 2.0, kind: ErrorKind::Random, seed };
            (1..=100).map(|job| error.factor_of(JobId(job)) > 1.0).collect::<Vec<_>>()
        };
        for seed in 1..=20 {
            let over = errors(seed).iter().filter(|over| **over).count();
            assert!((30..=70).contains(&over), "seed {seed}: {over} of 100 are overestimated");
            assert_ne!(errors(seed), errors(seed + 1));
        }
    }

    #[test]
    fn task_without_input_is_not_predicted_to_take_no_time() {
        for (bytes, earlier_bytes, expected) in [(20.0, 10.0, 2.0), (0.0, 10.0, 1.0), (20.0, 0.0, 1.0)] {
            assert!((scale(bytes, earlier_bytes) - expected).abs() < 1e-9, "{bytes} {earlier_bytes}");
        }
    }
}
