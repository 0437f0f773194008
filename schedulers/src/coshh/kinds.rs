//! Kinds of jobs, with their properties and classes. Jobs with the same user, program, size and
//! priority are a kind.

use super::{
    classes::{self, Classes, KindFacts, PART_MIN, distance},
    predictor::{Levels, Node, Predictor, Scope},
};
use crate::estimate::Mean;
use mrcore::{
    PerPhase, Phase, Span, Time,
    compute::{Numbers, Problem},
    ids::TrackerId,
    job::{Job, Priority},
};
use std::collections::BTreeMap;

/// Maximum number of kinds. Beyond it, the kinds without jobs that were last seen longest ago are
/// removed.
const KINDS_MAX: usize = 512;
/// A kind is part of the classification for this many arrival windows after its last job.
const REMEMBERED_WINDOWS: u64 = 3;

/// Kinds of different ranks are in different classes. The rank is the weight of the user (its bits)
/// and the priority.
type Rank = (u64, Priority);

#[derive(Debug)]
pub(super) struct Kind {
    rank: Rank,
    user: usize,
    has_min_share: bool,
    pub(super) levels: Levels,
    /// Mean number of tasks of a job.
    tasks: PerPhase<Mean>,
    /// Number of active jobs.
    jobs: u32,
    /// Arrival rate in jobs per second at the last arrival, with exponential decay over the window.
    arrivals: f64,
    last_seen: Time,
    /// Its class in each classification.
    class: [Option<usize>; 2],
    /// The features of the kind that the last classification used.
    classified_features: Vec<f64>,
    /// For each node of the classification: whether its tasks are not too slow there compared with
    /// the best node.
    fast_enough: Vec<bool>,
}

/// The solution of the last computation.
#[derive(Debug)]
struct Solution {
    nodes: Vec<Node>,
    classes: [Classes; 2],
    ranks: [Vec<Rank>; 2],
    /// For each class: whether any node that is suggested for the class has slots of a phase.
    has_slots: [Vec<PerPhase<bool>>; 2],
    /// The index of each node in `nodes`, and in the lists by node.
    node_index: BTreeMap<TrackerId, usize>,
}

#[derive(Debug)]
pub(super) struct Kinds {
    window: Span,
    /// The maximum distance between a kind and the centre of a class that it may join.
    radius: f64,
    /// A kind may run only on nodes where it takes at most this many times as long as on its best
    /// node; 0 for no limit.
    slowdown_max: f64,
    /// Whether classes are computed as in the paper.
    literal: bool,
    seed: u64,
    number_of_kind: BTreeMap<(Scope, Priority), usize>,
    kinds: BTreeMap<usize, Kind>,
    next_number: usize,
    solution: Option<Solution>,
    /// The nodes and kinds of the computation in progress.
    computing: Option<(Vec<Node>, Vec<usize>)>,
    /// Whether the classes must be computed again, because kinds, nodes or predictions have
    /// changed.
    stale: bool,
}

impl Kinds {
    pub(super) fn new(window: Span, radius: f64, slowest: f64, literal: bool, seed: u64) -> Self {
        Self {
            window,
            radius,
            slowdown_max: slowest,
            literal,
            seed,
            number_of_kind: BTreeMap::new(),
            kinds: BTreeMap::new(),
            next_number: 0,
            solution: None,
            computing: None,
            stale: false,
        }
    }

    /// Adds a job that has arrived, and returns the number of its kind. A kind without a class
    /// joins the nearest class within the radius. If there is none, the classes must be computed
    /// again.
    pub(super) fn add_job(
        &mut self,
        job: &Job,
        levels: Levels,
        (user, weight, has_min_share): (usize, f64, bool),
        now: Time,
        predictor: &Predictor,
    ) -> usize {
        let name = (levels[0].clone(), job.spec.priority);
        let number = *self.number_of_kind.entry(name).or_insert(self.next_number);
        if number == self.next_number {
            self.next_number += 1;
            self.kinds.insert(
                number,
                Kind {
                    rank: (weight.to_bits(), job.spec.priority),
                    user,
                    has_min_share,
                    levels,
                    tasks: PerPhase::default(),
                    jobs: 0,
                    arrivals: 0.0,
                    last_seen: now,
                    class: [None; 2],
                    classified_features: Vec::new(),
                    fast_enough: Vec::new(),
                },
            );
        }
        let window = self.window;
        if let Some(kind) = self.kinds.get_mut(&number) {
            kind.arrivals = kind.rate(now, window) + 1.0 / window.as_secs_f64().max(1e-6);
            kind.last_seen = now;
            kind.jobs += 1;
            kind.tasks.map.add(job.tasks.map.len() as f64);
            kind.tasks.reduce.add(job.tasks.reduce.len() as f64);
        }
        self.stale |= !self.assign_to_nearest_classes(number, predictor);
        self.check_speed_of_nodes(number, predictor);
        self.forget_oldest_kinds();
        number
    }

    /// Determines the nodes that are fast enough for a kind that was not part of the last
    /// computation.
    fn check_speed_of_nodes(&mut self, number: usize, predictor: &Predictor) {
        let (Some(solution), Some(kind)) = (&self.solution, self.kinds.get_mut(&number)) else { return };
        if kind.fast_enough.is_empty() {
            kind.fast_enough = kind.fast_enough_on(&solution.nodes, predictor, self.slowdown_max);
        }
    }

    /// Counts a job of this kind as ended.
    pub(super) fn end_job(&mut self, number: usize) {
        if let Some(kind) = self.kinds.get_mut(&number) {
            kind.jobs = kind.jobs.saturating_sub(1);
        }
    }

    fn forget_oldest_kinds(&mut self) {
        while self.kinds.len() > KINDS_MAX {
            let idle = self.kinds.iter().filter(|(_, kind)| kind.jobs == 0);
            let Some(oldest) = idle.min_by_key(|(_, kind)| kind.last_seen).map(|(number, _)| *number) else {
                return;
            };
            self.kinds.remove(&oldest);
            self.number_of_kind.retain(|_, number| *number != oldest);
        }
    }

    /// Adds a kind that is in no class to the nearest classes. Returns whether the kind is in
    /// classes now.
    fn assign_to_nearest_classes(&mut self, number: usize, predictor: &Predictor) -> bool {
        let (Some(solution), Some(kind)) = (&self.solution, self.kinds.get(&number)) else { return false };
        if kind.class[1].is_some() {
            return true;
        }
        let features = classes::features(&kind.times(&solution.nodes, predictor));
        let nearest = |stage: usize| {
            let centres = solution.classes[stage].centres.iter().zip(&solution.ranks[stage]).enumerate();
            let alike = centres.filter(|(_, (_, rank))| **rank == kind.rank);
            let by_distance = alike.map(|(class, (centre, _))| (distance(&features, centre), class));
            by_distance.filter(|(far, _)| *far <= self.radius).min_by(|a, b| a.0.total_cmp(&b.0))
        };
        let found = [nearest(0).filter(|_| kind.has_min_share), nearest(1)]
            .map(|found| found.map(|(_, class)| class));
        if found[1].is_none() || (kind.has_min_share && found[0].is_none()) {
            return false;
        }
        if let Some(kind) = self.kinds.get_mut(&number) {
            kind.class = found;
            kind.classified_features = features;
        }
        true
    }

    /// Marks the classes as outdated, because nodes have changed.
    pub(super) fn nodes_changed(&mut self) {
        self.stale = true;
    }

    /// Drops the last solution and the computation in progress if they contain a tracker that is
    /// forgotten.
    pub(super) fn forget_tracker(&mut self, tracker: TrackerId) {
        let contains = |nodes: &[Node]| nodes.iter().any(|(node, _)| *node == tracker);
        self.computing.take_if(|(nodes, _)| contains(nodes));
        if self.solution.take_if(|solution| contains(&solution.nodes)).is_some() {
            self.kinds.values_mut().for_each(|kind| kind.class = [None; 2]);
        }
    }

    /// Marks the classes as outdated if the time of some kind on some node differs by more than the
    /// radius from the time that the classification used.
    pub(super) fn check_predictions(&mut self, predictor: &Predictor) {
        let Some(solution) = self.solution.as_ref().filter(|_| self.computing.is_none()) else { return };
        let drifted = |kind: &Kind| {
            let now = classes::features(&kind.times(&solution.nodes, predictor));
            now.iter().zip(&kind.classified_features).any(|(now, then)| (now - then).abs() > self.radius)
        };
        let stale = self.kinds.values().any(|kind| kind.jobs > 0 && drifted(kind));
        self.stale |= stale;
    }

    /// Returns the computation that is due, if there is one. It stays due while there are no nodes,
    /// or no kinds that count.
    pub(super) fn problem(
        &mut self,
        nodes: &BTreeMap<TrackerId, PerPhase<u32>>,
        now: Time,
        predictor: &Predictor,
    ) -> Option<Problem> {
        if !self.stale || nodes.is_empty() {
            return None;
        }
        let memory = Span(self.window.0.saturating_mul(REMEMBERED_WINDOWS));
        let counts = |kind: &Kind| kind.jobs > 0 || now.since(kind.last_seen) < memory;
        let chosen: Vec<usize> =
            self.kinds.iter().filter(|(_, kind)| counts(kind)).map(|(number, _)| *number).collect();
        if chosen.is_empty() {
            return None;
        }
        self.stale = false;
        let nodes: Vec<Node> = nodes.iter().map(|(node, slots)| (*node, *slots)).collect();
        let mut ranks: Vec<Rank> = self.kinds.values().map(|kind| kind.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let facts: Vec<KindFacts> = chosen
            .iter()
            .filter_map(|number| self.kinds.get(number))
            .map(|kind| KindFacts {
                rank: ranks.binary_search(&kind.rank).unwrap_or(0),
                user: kind.user,
                has_min_share: kind.has_min_share,
                arrivals: kind.rate(now, self.window),
                times: kind.times(&nodes, predictor),
                fast_enough: kind.fast_enough_on(&nodes, predictor, self.slowdown_max),
            })
            .collect();
        let problem = classes::problem(&facts, nodes.len(), self.literal, self.seed);
        for (number, facts) in chosen.iter().zip(&facts) {
            if let Some(kind) = self.kinds.get_mut(number) {
                kind.classified_features = classes::features(&facts.times);
                kind.fast_enough.clone_from(&facts.fast_enough);
            }
        }
        self.computing = Some((nodes, chosen));
        Some(problem)
    }

    /// Uses the solution of the computation. If it failed, the last classes stay in use. Kinds
    /// without a class may run anywhere.
    pub(super) fn use_solution(&mut self, answer: &Numbers, predictor: &Predictor) {
        let Some((nodes, chosen)) = self.computing.take() else { return };
        let Some(classes) = classes::read_classes(answer, nodes.len()) else { return };
        self.kinds.values_mut().for_each(|kind| kind.class = [None; 2]);
        let mut ranks = [Vec::new(), Vec::new()];
        for stage in 0..2 {
            ranks[stage] = vec![(0, Priority::default()); classes[stage].centres.len()];
            for (number, class) in chosen.iter().zip(&classes[stage].class_of_kind) {
                let (Some(kind), Some(class)) = (self.kinds.get_mut(number), *class) else { continue };
                kind.class[stage] = Some(class);
                ranks[stage][class] = kind.rank;
            }
        }
        // What is known about the nodes of the last computation does not apply to other kinds.
        for (number, kind) in &mut self.kinds {
            if chosen.binary_search(number).is_err() {
                kind.fast_enough.clear();
            }
        }
        let node_index = nodes.iter().enumerate().map(|(at, (node, _))| (*node, at)).collect();
        let able = |parts: &Vec<f64>| {
            let suggested = || nodes.iter().zip(parts).filter(|(_, part)| **part > PART_MIN);
            let has = |phase: Phase| suggested().any(|((_, slots), _)| slots[phase] > 0);
            PerPhase { map: has(Phase::Map), reduce: has(Phase::Reduce) }
        };
        let has_slots = [0, 1].map(|stage: usize| classes[stage].delta.iter().map(able).collect());
        self.solution = Some(Solution { nodes, classes, ranks, has_slots, node_index });
        // Kinds that have arrived since the computation started join the new classes, if they can.
        let late: Vec<usize> =
            self.kinds.iter().filter(|(_, kind)| kind.jobs > 0).map(|(at, _)| *at).collect();
        for number in late.into_iter().filter(|number| chosen.binary_search(number).is_err()) {
            self.stale |= !self.assign_to_nearest_classes(number, predictor);
            self.check_speed_of_nodes(number, predictor);
        }
    }

    /// Returns the class of a kind in a classification.
    pub(super) fn class(&self, number: usize, stage: usize) -> Option<usize> {
        self.kinds.get(&number).and_then(|kind| kind.class[stage])
    }

    pub(super) fn kind(&self, number: usize) -> Option<&Kind> {
        self.kinds.get(&number)
    }

    /// Returns whether a node is suggested for tasks of a kind and phase. A kind without a class
    /// may run on any node that is fast enough, and a kind with a class whose nodes have no slots
    /// of this phase anywhere. A node that was not part of the computation may run any kind.
    pub(super) fn is_suggested(&self, number: usize, stage: usize, phase: Phase, node: TrackerId) -> bool {
        let (Some(solution), Some(class)) = (&self.solution, self.class(number, stage)) else {
            return self.is_fast_enough(number, node);
        };
        let Some(at) = solution.node_index.get(&node) else { return true };
        if solution.has_slots[stage].get(class).is_none_or(|able| !able[phase]) {
            return true;
        }
        solution.classes[stage].delta.get(class).is_none_or(|parts| parts[*at] > PART_MIN)
    }

    /// Returns whether a node may run tasks of a kind if no class that is suggested for the node
    /// has a task.
    pub(super) fn is_fast_enough(&self, number: usize, node: TrackerId) -> bool {
        let at = self.solution.as_ref().and_then(|solution| solution.node_index.get(&node));
        let (Some(at), Some(kind)) = (at, self.kinds.get(&number)) else { return true };
        kind.fast_enough.get(*at).copied().unwrap_or(true)
    }

    /// Returns the nodes that are suggested for a kind in either classification, ordered by the
    /// fraction of the node that the kind should get, the greatest first.
    pub(super) fn suggested_nodes(&self, number: usize) -> Vec<TrackerId> {
        let Some(solution) = &self.solution else { return Vec::new() };
        let part = |stage: usize, at: usize| {
            let class = self.class(number, stage)?;
            solution.classes[stage].delta.get(class)?.get(at).copied()
        };
        let parts = solution.nodes.iter().enumerate().map(|(at, (node, _))| {
            let sum: f64 = (0..2).filter_map(|stage| part(stage, at)).sum();
            (sum, *node)
        });
        let mut parts: Vec<(f64, TrackerId)> = parts.filter(|(part, _)| *part > PART_MIN).collect();
        parts.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        parts.into_iter().map(|(_, node)| node).collect()
    }

    /// Returns the factor by which arrival rates could grow, according to the last solution of a
    /// classification.
    pub(super) fn lambda(&self, stage: usize) -> Option<f64> {
        self.solution.as_ref().map(|solution| solution.classes[stage].lambda)
    }
}

impl Kind {
    fn rate(&self, now: Time, window: Span) -> f64 {
        let age = now.since(self.last_seen).as_secs_f64() / window.as_secs_f64().max(1e-6);
        self.arrivals * (-age).exp()
    }

    /// Returns for each node whether tasks take at most `slowest` times as long there as on the
    /// best node. The number of slots does not matter.
    fn fast_enough_on(&self, nodes: &[Node], predictor: &Predictor, slowest: f64) -> Vec<bool> {
        let mut fit = vec![true; nodes.len()];
        let phases = Phase::BOTH.into_iter().filter(|phase| self.tasks[*phase].value().unwrap_or(0.0) > 0.0);
        for phase in phases.filter(|_| slowest > 0.0) {
            let time = |(node, slots): &Node| {
                (slots[phase] > 0).then(|| predictor.predict(&self.levels, phase, *node))
            };
            let times: Vec<Option<f64>> = nodes.iter().map(time).collect();
            let best = times.iter().flatten().copied().fold(f64::INFINITY, f64::min);
            for (fit, time) in fit.iter_mut().zip(times) {
                *fit &= time.is_none_or(|time| time <= best * slowest);
            }
        }
        fit
    }

    fn times(&self, nodes: &[Node], predictor: &Predictor) -> Vec<f64> {
        let tasks = |phase: Phase| self.tasks[phase].value().unwrap_or(0.0);
        let tasks = PerPhase { map: tasks(Phase::Map), reduce: tasks(Phase::Reduce) };
        predictor.job_seconds(&self.levels, tasks, nodes)
    }
}
