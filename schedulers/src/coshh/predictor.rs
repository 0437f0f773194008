//! Predicts task durations from tasks that are done: by program, user and size of the input, and by
//! node.
//!
//! The prediction for a job uses the most specific level with data: its program, user and size; its
//! program at the same size; its program; all programs. Durations are stored as if on a node of
//! speed 1. The speed of a node is the ratio of predicted to actual durations on it. Where the most
//! specific level has been measured often enough on a node, only these measurements count, because
//! a node can be fast for one program and slow for another.
//!
//! The durations of a user's tasks can also be given, with the speeds of nodes: then nothing is
//! learned about them. In the simulations of the paper they were known.
//!
//! Differs from the paper: no background clustering of history logs. The levels above replace its
//! lookup table.

use crate::estimate::Mean;
use mrcore::{
    PerPhase, Phase, Span, Time,
    ids::{AttemptId, TrackerId},
    job::{Job, JobSpec, Program},
};
use std::collections::BTreeMap;

/// Maximum weight of a mean, in samples, so that old samples fade.
const SAMPLES_MAX: f64 = 64.0;
/// If a kind has at least this many samples on a node, only they are used for predictions there.
const SAMPLES_ENOUGH: f64 = 3.0;
/// Maximum number of scopes with statistics. Beyond it, the least recently used ones are removed.
const SCOPES_MAX: usize = 4096;

/// A node with its slots.
pub(super) type Node = (TrackerId, PerPhase<u32>);

/// The jobs whose task durations are averaged together, from specific to general.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// A program, a user and a size.
    Kind(Program, String, u32),
    /// A program and a size.
    ProgramSize(Program, u32),
    Program(Program),
    All,
}

/// The measured task durations of one scope.
#[derive(Debug, Clone, Default)]
struct DurationStats {
    /// Mean seconds of a task, converted to a node of speed 1.
    seconds: PerPhase<Mean>,
    /// Mean measured seconds of a task on each node.
    observed: BTreeMap<TrackerId, PerPhase<Mean>>,
    /// The mean relative error of predictions.
    error: Mean,
    last_used: Time,
}

/// The scopes that a job belongs to, the most specific first.
pub(super) type Levels = [Scope; 4];

#[derive(Debug)]
pub(super) struct Predictor {
    stats: BTreeMap<Scope, DurationStats>,
    /// The mean logarithm of the speed of each node.
    speeds: BTreeMap<TrackerId, PerPhase<Mean>>,
    /// The assumed seconds of a task before any was measured.
    default: PerPhase<f64>,
    /// The mean relative error of all predictions.
    error: Mean,
    /// The given seconds of a task on a node of speed 1, by user.
    given_seconds: BTreeMap<String, PerPhase<Option<f64>>>,
    /// The given speeds of nodes, for given durations. Other nodes have speed 1.
    given_speeds: BTreeMap<TrackerId, f64>,
    /// Elapsed seconds of the longest-running task, by kind and node.
    running: BTreeMap<Scope, BTreeMap<TrackerId, PerPhase<f64>>>,
    /// Upper bound of the logarithm of the speed of each node, from the elapsed times of running
    /// tasks.
    speed_max: BTreeMap<TrackerId, PerPhase<f64>>,
    /// For experiments: the maximum relative error that is added to predictions, and the seed of
    /// the error.
    injected_error: (f64, u64),
}

/// Returns the size class of a job: the binary logarithm of its input bytes.
pub(super) fn size_class(spec: &JobSpec) -> u32 {
    let bytes: u64 = spec.splits.iter().map(|split| split.end - split.start).sum();
    bytes.max(1).ilog2()
}

pub(super) fn levels(spec: &JobSpec, size: u32) -> Levels {
    let program = || spec.program.clone();
    [
        Scope::Kind(program(), spec.user.clone(), size),
        Scope::ProgramSize(program(), size),
        Scope::Program(program()),
        Scope::All,
    ]
}

fn add_fading(mean: &mut Mean, value: f64) {
    if mean.count >= SAMPLES_MAX {
        mean.sum *= (SAMPLES_MAX - 1.0) / mean.count;
        mean.count = SAMPLES_MAX - 1.0;
    }
    mean.add(value);
}

/// Returns the duration of a successful attempt, if it is representative: attempts that ran only a
/// part of their task are excluded, and the time of a reduce starts when all maps are done.
pub(super) fn sample(job: &Job, id: AttemptId) -> Option<f64> {
    let ended = job.task(id.task)?.attempts.get(id.number as usize)?.ended?;
    Some(ended.since(counts_from(job, id)?).as_secs_f64()).filter(|seconds| *seconds > 0.0)
}

/// Returns the elapsed time of a running attempt, if it is representative, measured as in
/// [`sample`].
pub(super) fn snapshot(job: &Job, id: AttemptId, now: Time) -> Option<f64> {
    Some(now.since(counts_from(job, id)?).as_secs_f64())
}

/// Returns the time from which the duration of an attempt is measured, if the attempt is
/// representative.
fn counts_from(job: &Job, id: AttemptId) -> Option<Time> {
    let attempt = job.task(id.task)?.attempts.get(id.number as usize)?;
    let is_original = id.phase() == Phase::Reduce || (id.task.index as usize) < job.spec.splits.len();
    if attempt.resumed_from.is_some() || attempt.preempt_request.is_some() || !is_original {
        return None;
    }
    match id.phase() {
        Phase::Map => Some(attempt.launched),
        Phase::Reduce => Some(attempt.launched.max(job.maps_done?)),
    }
}

/// The data from which the durations of tasks of one phase are predicted.
struct PredictionBase<'a> {
    predictor: &'a Predictor,
    phase: Phase,
    /// Given seconds on a node of speed 1.
    given: Option<f64>,
    /// Seconds on a node of speed 1.
    seconds: f64,
    observed: Option<&'a BTreeMap<TrackerId, PerPhase<Mean>>>,
    running: Option<&'a BTreeMap<TrackerId, PerPhase<f64>>>,
}

impl PredictionBase<'_> {
    fn seconds_on(&self, node: TrackerId) -> f64 {
        if let Some(given) = self.given {
            return given / self.predictor.given_speeds.get(&node).copied().unwrap_or(1.0);
        }
        let observed =
            self.observed.and_then(|observed| observed.get(&node)).map(|observed| observed[self.phase]);
        let enough = observed.filter(|observed| observed.count >= SAMPLES_ENOUGH).and_then(Mean::value);
        let expected = enough.unwrap_or_else(|| self.seconds / self.predictor.speed(node, self.phase));
        let snapshot =
            self.running.and_then(|running| running.get(&node)).map_or(0.0, |snapshot| snapshot[self.phase]);
        expected.max(snapshot)
    }
}

impl Predictor {
    pub(super) fn new(default: PerPhase<Span>, error: f64, seed: u64) -> Self {
        let default = PerPhase { map: default.map.as_secs_f64(), reduce: default.reduce.as_secs_f64() };
        Self {
            stats: BTreeMap::new(),
            speeds: BTreeMap::new(),
            default,
            error: Mean::default(),
            given_seconds: BTreeMap::new(),
            given_speeds: BTreeMap::new(),
            running: BTreeMap::new(),
            speed_max: BTreeMap::new(),
            injected_error: (error, seed),
        }
    }

    /// Sets the given seconds of the tasks of a user, on a node of speed 1.
    pub(super) fn set_given_seconds(&mut self, user: &str, seconds: PerPhase<Option<f64>>) {
        if seconds != PerPhase::default() {
            self.given_seconds.insert(user.to_owned(), seconds);
        }
    }

    /// Sets the given speed of a node.
    pub(super) fn set_given_speed(&mut self, node: TrackerId, speed: f64) {
        self.given_speeds.insert(node, speed);
    }

    /// Adds a measured duration of a task on a node.
    pub(super) fn observe_duration(
        &mut self,
        of: &Levels,
        phase: Phase,
        on: TrackerId,
        seconds: f64,
        now: Time,
    ) {
        let known =
            of.iter().any(|scope| self.stats.get(scope).is_some_and(|it| it.seconds[phase].count > 0.0));
        if known {
            let error = (self.predict(of, phase, on) - seconds).abs() / seconds;
            add_fading(&mut self.error, error);
            add_fading(&mut self.stats.entry(of[0].clone()).or_default().error, error);
        }
        // Only a comparison with tasks of the same kind shows how fast a node is.
        if let Some(own) = self.stats.get(&of[0]).and_then(|own| own.seconds[phase].value()) {
            add_fading(&mut self.speeds.entry(on).or_default()[phase], (own / seconds).ln());
        }
        let speed = self.speed(on, phase);
        for scope in of {
            let stats = self.stats.entry(scope.clone()).or_default();
            add_fading(&mut stats.seconds[phase], seconds * speed);
            stats.last_used = now;
        }
        if let Some(own) = self.stats.get_mut(&of[0]) {
            add_fading(&mut own.observed.entry(on).or_default()[phase], seconds);
        }
        self.forget_least_recently_used();
    }

    /// Drops the measurements of a tracker that is forgotten: its ID is not assigned again.
    pub(super) fn forget_tracker(&mut self, tracker: TrackerId) {
        self.speeds.remove(&tracker);
        self.speed_max.remove(&tracker);
        self.given_speeds.remove(&tracker);
        for stats in self.stats.values_mut() {
            stats.observed.remove(&tracker);
        }
        for longest in self.running.values_mut() {
            longest.remove(&tracker);
        }
    }

    /// Drops the elapsed times of running tasks, before they are collected again.
    pub(super) fn forget_running(&mut self) {
        self.running.clear();
        self.speed_max.clear();
    }

    /// Adds the elapsed time of a running task of a kind on a node.
    pub(super) fn observe_running(&mut self, kind: &Scope, phase: Phase, on: TrackerId, seconds: f64) {
        let usual = self.stats.get(kind).and_then(|own| own.seconds[phase].value());
        if let Some(usual) = usual.filter(|usual| seconds > *usual) {
            let speed = &mut self.speed_max.entry(on).or_default()[phase];
            *speed = speed.min((usual / seconds).ln());
            let longest = &mut self.running.entry(kind.clone()).or_default().entry(on).or_default()[phase];
            *longest = longest.max(seconds);
        }
    }

    fn forget_least_recently_used(&mut self) {
        while self.stats.len() > SCOPES_MAX {
            let oldest = self.stats.iter().min_by_key(|(_, stats)| stats.last_used);
            let Some(oldest) = oldest.map(|(scope, _)| scope.clone()) else { return };
            self.stats.remove(&oldest);
        }
    }

    /// Returns the predicted seconds of a task on a node.
    pub(super) fn predict(&self, of: &Levels, phase: Phase, on: TrackerId) -> f64 {
        self.base(of, phase).seconds_on(on)
    }

    /// Returns the data from which the durations of tasks of a phase are predicted, on any node.
    fn base(&self, of: &Levels, phase: Phase) -> PredictionBase<'_> {
        let known = of.iter().find_map(|scope| self.stats.get(scope)?.seconds[phase].value());
        let seconds = known.unwrap_or(self.default[phase]);
        let (observed, running) = (self.stats.get(&of[0]).map(|own| &own.observed), self.running.get(&of[0]));
        let given = match &of[0] {
            Scope::Kind(_, user, _) => self.given_seconds.get(user).and_then(|given| given[phase]),
            _ => None,
        };
        PredictionBase { predictor: self, phase, given, seconds, observed, running }
    }

    /// Returns for each node the seconds that a job with these tasks would take alone on the node,
    /// using all its slots. Phases run one after the other. A phase that the node has no slots for
    /// is left out; the result is 0 if both are.
    pub(super) fn job_seconds(&self, of: &Levels, tasks: PerPhase<f64>, nodes: &[Node]) -> Vec<f64> {
        let bases = Phase::BOTH.map(|phase| self.base(of, phase));
        let on_node = |(node, slots): &Node| {
            let able = bases.iter().filter(|base| slots[base.phase] > 0 && tasks[base.phase] > 0.0);
            let true_s: f64 = able
                .map(|base| tasks[base.phase] * base.seconds_on(*node) / f64::from(slots[base.phase]))
                .sum();
            true_s * self.error_factor(&of[0], *node)
        };
        nodes.iter().map(on_node).collect()
    }

    /// Returns the factor that adds an error to the prediction of a kind on a node: 1 unless errors
    /// are configured. It is always the same for the same kind and node.
    fn error_factor(&self, scope: &Scope, on: TrackerId) -> f64 {
        let (error, seed) = self.injected_error;
        if error == 0.0 {
            return 1.0;
        }
        let text = format!("{scope:?} {on} {seed}");
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        // The lowest bits of this hash are not mixed well.
        let unit = (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1_u64 << 53) as f64;
        1.0 + error * (2.0 * unit - 1.0)
    }

    /// Returns the speed of a node; 1 if nothing has been measured.
    fn speed(&self, on: TrackerId, phase: Phase) -> f64 {
        let known = self.speeds.get(&on).and_then(|speeds| speeds[phase].value()).unwrap_or(0.0);
        let speed_max = self.speed_max.get(&on).map_or(0.0, |speed_max| speed_max[phase]);
        if speed_max < 0.0 { known.min(speed_max).exp() } else { known.exp() }
    }

    /// Returns the mean relative error of predictions for tasks of this kind, or for all tasks if
    /// there is none for this kind.
    pub(super) fn error(&self, of: &Levels) -> Option<f64> {
        self.stats.get(&of[0]).and_then(|own| own.error.value()).or(self.error.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(program: &str, user: &str, size: u32) -> Levels {
        let spec = JobSpec {
            name: String::new(),
            user: user.into(),
            queue: String::new(),
            priority: mrcore::job::Priority::Normal,
            program: Program::Builtin(program.into()),
            splits: Vec::new(),
            reduces: 0,
            output: String::new(),
            slow_start: 0.0,
            speculation: false,
            split_slow: true,
            attempts_max: 1,
            conf: BTreeMap::new(),
            payload: mrcore::job::Payload::default(),
        };
        levels(&spec, size)
    }

    fn assert_close(got: f64, wanted: f64) {
        assert!((got - wanted).abs() < 1e-6, "{got} is not {wanted}");
    }

    const FAST: TrackerId = TrackerId(0);
    const SLOW: TrackerId = TrackerId(1);
    const MAP: Phase = Phase::Map;

    fn predictor() -> Predictor {
        Predictor::new(PerPhase { map: Span::secs(30), reduce: Span::secs(60) }, 0.0, 1)
    }

    #[test]
    fn unknown_kind_is_predicted_from_the_most_specific_known_level() {
        let mut all = predictor();
        assert_close(all.predict(&of("sort", "ann", 30), MAP, FAST), 30.0);
        all.observe_duration(&of("sort", "ann", 30), MAP, FAST, 10.0, Time(0));
        assert_close(all.predict(&of("sort", "ann", 30), MAP, FAST), 10.0);
        // Another user: the program at the same size is used.
        assert_close(all.predict(&of("sort", "bob", 30), MAP, FAST), 10.0);
        // With a different size, a task takes 40 s. For a third size, the mean of the program is
        // used.
        all.observe_duration(&of("sort", "ann", 20), MAP, FAST, 40.0, Time(0));
        assert_close(all.predict(&of("sort", "ann", 30), MAP, FAST), 10.0);
        assert_close(all.predict(&of("sort", "bob", 20), MAP, FAST), 40.0);
        assert_close(all.predict(&of("sort", "bob", 10), MAP, FAST), 25.0);
        assert_close(all.predict(&of("grep", "ann", 30), Phase::Reduce, FAST), 60.0);
    }

    #[test]
    fn node_speeds_and_prediction_errors_are_measured() {
        let mut all = predictor();
        let sort = of("sort", "ann", 30);
        all.observe_duration(&sort, MAP, FAST, 10.0, Time(0));
        // Predicted 10 s, took 20 s: half the speed, and an error of half of 20 s.
        all.observe_duration(&sort, MAP, SLOW, 20.0, Time(0));
        assert_close(all.speed(SLOW, MAP), 0.5);
        assert_close(all.speed(FAST, MAP), 1.0);
        assert_close(all.error(&sort).unwrap(), 0.5);
        // On a node of speed 1 both maps would take 10 s. The slow node has half that speed.
        assert_close(all.predict(&sort, MAP, SLOW), 20.0);
        all.observe_duration(&of("grep", "ann", 30), Phase::Reduce, FAST, 8.0, Time(0));
        assert_close(all.predict(&of("grep", "bob", 3), Phase::Reduce, FAST), 8.0);
    }

    #[test]
    fn measured_durations_of_a_kind_on_a_node_override_the_node_speed() {
        let mut all = predictor();
        let (sort, grep) = (of("sort", "ann", 30), of("grep", "ann", 30));
        for _ in 0..4 {
            all.observe_duration(&sort, MAP, FAST, 9.0, Time(0));
            all.observe_duration(&sort, MAP, SLOW, 18.0, Time(0));
            all.observe_duration(&grep, MAP, FAST, 50.0, Time(0));
            all.observe_duration(&grep, MAP, SLOW, 5.0, Time(0));
        }
        assert_close(all.predict(&sort, MAP, SLOW), 18.0);
        assert_close(all.predict(&grep, MAP, SLOW), 5.0);
        assert_close(all.predict(&grep, MAP, FAST), 50.0);
    }

    #[test]
    fn long_running_task_raises_the_estimate() {
        let mut all = predictor();
        let (sort, grep) = (of("sort", "ann", 30), of("grep", "ann", 30));
        all.observe_duration(&sort, MAP, FAST, 10.0, Time(0));
        all.observe_duration(&grep, MAP, FAST, 50.0, Time(0));
        all.observe_running(&sort[0], MAP, SLOW, 4.0);
        assert_close(all.predict(&sort, MAP, SLOW), 10.0);
        // 1000 s instead of 10 s: it takes at least that long, and other programs also take a
        // hundred times longer there.
        all.observe_running(&sort[0], MAP, SLOW, 1000.0);
        assert_close(all.predict(&sort, MAP, SLOW), 1000.0);
        assert_close(all.predict(&grep, MAP, SLOW), 5000.0);
        assert_close(all.predict(&sort, MAP, FAST), 10.0);
        all.forget_running();
        assert_close(all.predict(&sort, MAP, SLOW), 10.0);
    }

    #[test]
    fn given_durations_override_measured_ones() {
        let mut all = predictor();
        let (sort, grep) = (of("sort", "ann", 30), of("grep", "bob", 30));
        all.set_given_seconds("ann", PerPhase { map: Some(10.0), reduce: None });
        all.set_given_speed(SLOW, 0.01);
        for _ in 0..4 {
            all.observe_duration(&sort, MAP, FAST, 70.0, Time(0));
            all.observe_duration(&grep, MAP, SLOW, 70.0, Time(0));
        }
        assert_close(all.predict(&sort, MAP, FAST), 10.0);
        assert_close(all.predict(&sort, MAP, SLOW), 1000.0);
        // Reduces of ann and maps of bob are not given.
        assert_close(all.predict(&sort, Phase::Reduce, SLOW), 60.0);
        assert_close(all.predict(&grep, MAP, SLOW), 70.0);
        all.forget_tracker(SLOW);
        assert_close(all.predict(&sort, MAP, SLOW), 10.0);
    }

    #[test]
    fn job_time_on_a_node_depends_on_its_slots() {
        // 12 maps of 30 s on 4 slots and 2 reduces of 60 s on 1 slot: 90 s + 120 s. Without reduce
        // slots: 90 s.
        let (all, grep) = (predictor(), of("grep", "ann", 1));
        let tasks = PerPhase { map: 12.0, reduce: 2.0 };
        let on = |map, reduce| all.job_seconds(&grep, tasks, &[(FAST, PerPhase { map, reduce })])[0];
        assert_close(on(4, 1), 210.0);
        assert_close(on(4, 0), 90.0);
        assert_close(on(0, 0), 0.0);
    }

    #[test]
    fn injected_errors_are_bounded_and_reproducible() {
        let of_kind = |number: u32| of("grep", &format!("u{number}"), 1);
        let (tasks, slots) = (PerPhase { map: 1.0, reduce: 0.0 }, PerPhase { map: 1, reduce: 0 });
        let mut off = predictor();
        off.injected_error = (0.4, 1);
        let time = |number: u32| off.job_seconds(&of_kind(number), tasks, &[(FAST, slots)])[0] / 30.0;
        let times: Vec<f64> = (0..100).map(time).collect();
        assert!(times.iter().all(|time| (0.6..=1.4).contains(time)), "{times:?}");
        assert!(times.iter().any(|time| *time < 0.7) && times.iter().any(|time| *time > 1.3));
        assert_eq!(times, (0..100).map(time).collect::<Vec<_>>());
    }

    #[test]
    fn newer_samples_outweigh_old_ones() {
        let mut mean = Mean::default();
        (0..1000).for_each(|_| add_fading(&mut mean, 1.0));
        (0..200).for_each(|_| add_fading(&mut mean, 3.0));
        assert!(mean.value().unwrap() > 2.9, "{mean:?}");
    }
}
