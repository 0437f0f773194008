//! The measured speed of nodes, and what maps lose on nodes without their input.

use crate::estimate::Mean;
use mrcore::{Cluster, Phase, Time, ids::TrackerId, job::Job, task::Attempt};
use std::collections::BTreeMap;

/// A node below this speed is slow.
pub(super) const SLOW: f64 = 0.33;
/// A node is called slow only after maps have run there for this long.
const SLOW_MEASURED_S: f64 = 60.0;
/// A finished map counts this much less for the speed of its node with each later one.
const FORGETTING: f64 = 0.95;
/// The value of locality is measured by the last maps of all nodes, which took about this long in
/// total. With fewer of them, short maps would wait at one time and not at another.
const LOCALITY_MEASURED_S: f64 = 600.0;
/// How much it takes to change the assumption that maps take equally long everywhere.
const LOCALITY_PRIOR: MapTimes = MapTimes { expected_s: 10.0, taken_s: 10.0 };

/// What is known about the nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    /// The speed of each node relative to the usual speed, if maps have run there long enough.
    speeds: BTreeMap<TrackerId, f64>,
    /// The speed of the maps that each node has finished.
    finished_maps: BTreeMap<TrackerId, NodeSpeed>,
    /// The times of finished maps that were node-local, and of those that were not.
    finished_near: MapTimes,
    finished_far: MapTimes,
    /// How many times as long a map takes that is not node-local.
    remote_slowdown: f64,
}

/// A map, or the part of it that is done.
pub(super) struct MeasuredMap<'a> {
    pub(super) job: &'a Job,
    pub(super) attempt: &'a Attempt,
    /// The fraction that is done.
    pub(super) done: f64,
    /// The seconds that all of it is expected to take on a node with the usual speed.
    pub(super) expected_s: f64,
}

/// The speed of maps on a node: the mean logarithm of expected time divided by measured time. In a
/// ratio of sums, one long map that was expected wrongly would outweigh all others.
#[derive(Debug, Clone, Copy, Default)]
struct NodeSpeed {
    log_ratio: Mean,
    taken_s: f64,
}

impl NodeSpeed {
    fn add(&mut self, done: f64, expected_s: f64, taken_s: f64) {
        let ratio = done * expected_s.max(1e-3) / taken_s.max(1e-3);
        self.log_ratio.add_many(done * ratio.ln(), done);
        self.taken_s += taken_s;
    }

    /// Lets what was added so far count less.
    fn forget(&mut self, factor: f64) {
        let Mean { sum, count } = self.log_ratio;
        self.log_ratio = Mean { sum: sum * factor, count: count * factor };
        self.taken_s *= factor;
    }
}

/// The expected and the measured time of maps.
#[derive(Debug, Clone, Copy, Default)]
struct MapTimes {
    expected_s: f64,
    taken_s: f64,
}

impl MapTimes {
    fn add(&mut self, expected_s: f64, taken_s: f64) {
        self.expected_s += expected_s;
        self.taken_s += taken_s;
    }

    /// Lets what was added so far count less.
    fn forget(&mut self, factor: f64) {
        (self.expected_s, self.taken_s) = (self.expected_s * factor, self.taken_s * factor);
    }

    fn ratio(&self) -> f64 {
        self.expected_s / self.taken_s.max(1e-6)
    }
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            speeds: BTreeMap::new(),
            finished_maps: BTreeMap::new(),
            finished_near: MapTimes::default(),
            finished_far: MapTimes::default(),
            remote_slowdown: 1.0,
        }
    }
}

impl Nodes {
    /// Returns the speed of a node. A node without measurements is assumed to have the usual speed.
    pub(super) fn speed(&self, tracker: TrackerId) -> f64 {
        self.speeds.get(&tracker).copied().unwrap_or(1.0)
    }

    pub(super) fn has_slow(&self) -> bool {
        self.speeds.values().any(|speed| *speed < SLOW)
    }

    /// Returns how many times as long a map takes that is not node-local.
    pub(super) fn remote_slowdown(&self) -> f64 {
        self.remote_slowdown
    }

    /// Forgets a node that is gone.
    pub(super) fn forget(&mut self, tracker: TrackerId) {
        self.speeds.remove(&tracker);
        self.finished_maps.remove(&tracker);
    }

    /// Counts a finished map for the speed of its node and for the value of locality.
    pub(super) fn record(&mut self, map: &MeasuredMap<'_>, now: Time, cluster: &Cluster) {
        let taken_s = now.since(map.attempt.launched).as_secs_f64();
        let node = self.finished_maps.entry(map.attempt.tracker).or_default();
        node.forget(FORGETTING);
        node.add(1.0, map.expected_s, taken_s);
        let times = match map.is_node_local(cluster) {
            Some(true) => &mut self.finished_near,
            Some(false) => &mut self.finished_far,
            None => return,
        };
        times.add(map.expected_s, taken_s);
        times.forget((LOCALITY_MEASURED_S / times.taken_s.max(1e-6)).min(1.0));
    }

    /// Measures the speed of each node by the maps that it has finished and those that run: the
    /// expected time of what they have done, divided by the time that it took, relative to the
    /// median over the slots of all nodes that have run maps. A node counts as slow only if its maps
    /// took long enough together.
    pub(super) fn measure(&mut self, running: &[MeasuredMap<'_>], now: Time, cluster: &Cluster) {
        let mut speeds = self.finished_maps.clone();
        let (mut near, mut far) = (LOCALITY_PRIOR, LOCALITY_PRIOR);
        near.add(self.finished_near.expected_s, self.finished_near.taken_s);
        far.add(self.finished_far.expected_s, self.finished_far.taken_s);
        for map in running {
            let taken_s = now.since(map.attempt.launched).as_secs_f64();
            speeds.entry(map.attempt.tracker).or_default().add(map.done, map.expected_s, taken_s);
            match map.is_node_local(cluster) {
                Some(true) => near.add(map.done * map.expected_s, taken_s),
                Some(false) => far.add(map.done * map.expected_s, taken_s),
                None => {}
            }
        }
        self.remote_slowdown = near.ratio() / far.ratio();
        let slots = |id: &TrackerId| cluster.tracker(*id).map_or(0, |tracker| tracker.slots[Phase::Map]);
        let ratios = speeds.iter().filter_map(|(id, node)| Some((node.log_ratio.value()?, slots(id))));
        let mut ratios: Vec<(f64, u32)> = ratios.collect();
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        let usual = median(ratios.iter().copied()).unwrap_or(0.0);
        let measured = speeds.iter().filter(|(_, node)| node.taken_s > SLOW_MEASURED_S);
        let speed = |node: &NodeSpeed| Some((node.log_ratio.value()? - usual).exp());
        self.speeds = measured.filter_map(|(id, node)| Some((*id, speed(node)?))).collect();
    }
}

impl MeasuredMap<'_> {
    /// Returns whether the map is node-local; `None` if its input has no hosts.
    fn is_node_local(&self, cluster: &Cluster) -> Option<bool> {
        let host = cluster.tracker(self.attempt.tracker)?.host;
        let hosts = &self.job.task(self.attempt.id.task)?.hosts;
        (!hosts.is_empty()).then(|| hosts.contains(&host))
    }
}

/// Returns the median of values in ascending order, each of which counts this many times.
fn median(values: impl Iterator<Item = (f64, u32)> + Clone) -> Option<f64> {
    let mut half = values.clone().map(|(_, count)| count).sum::<u32>() / 2;
    for (value, count) in values {
        if half < count {
            return Some(value);
        }
        half -= count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_speed_is_the_median_over_slots() {
        let of = |values: &[(f64, u32)]| median(values.iter().copied());
        assert_eq!(of(&[(-4.0, 2), (0.0, 2), (0.1, 2)]), Some(0.0));
        // Two slow nodes with a slot each do not outweigh a usual one with four.
        assert_eq!(of(&[(-4.0, 1), (-4.0, 1), (0.0, 4)]), Some(0.0));
        assert_eq!(of(&[(-4.0, 0), (0.0, 1)]), Some(0.0));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn one_long_map_does_not_outweigh_others() {
        // A node with a tenth of the usual speed, and one map that was expected to take far longer.
        let mut node = NodeSpeed::default();
        for _ in 0..9 {
            node.add(1.0, 10.0, 100.0);
        }
        node.add(1.0, 10_000.0, 100.0);
        let speed = node.log_ratio.value().expect("measured").exp();
        assert!((0.1..0.3).contains(&speed), "a ratio of sums would be about ten: {speed}");
        // Half a map counts half.
        let mut node = NodeSpeed::default();
        node.add(1.0, 10.0, 10.0);
        node.add(0.5, 10.0, 50.0);
        let speed = node.log_ratio.value().expect("measured").exp();
        assert!((speed - 0.1_f64.powf(1.0 / 3.0)).abs() < 1e-6, "{speed}");
    }
}
