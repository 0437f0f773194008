//! Checks the map events that reduces get: each range of the input comes from one attempt, and
//! together the ranges are the input.

use mrcore::{
    Cluster, Phase,
    ids::AttemptId,
    job::{Job, MapEvent},
    task::{Attempt, Task},
    tracker::TrackerState,
};
use std::collections::{BTreeMap, BTreeSet};

/// The split and the range of each map output.
#[derive(Debug, Default)]
pub(crate) struct Ranges(BTreeMap<AttemptId, (u32, u64, u64)>);

impl Ranges {
    /// An attempt has just succeeded.
    pub(crate) fn note(&mut self, attempt: AttemptId, cluster: &Cluster) {
        if let Some(task) = cluster.task(attempt.task).filter(|task| task.id.phase == Phase::Map) {
            self.0.insert(attempt, (task.root, task.start, task.end));
        }
    }
}

/// The map outputs of a job that its reduces on one tracker know.
#[derive(Debug, Default)]
pub(crate) struct MapEventLog {
    applied: usize,
    here: BTreeSet<AttemptId>,
}

impl MapEventLog {
    /// Applies new events. The error describes what is wrong.
    pub(crate) fn apply(
        &mut self,
        first: usize,
        maps: u32,
        events: &[MapEvent],
        ranges: &Ranges,
        cluster: &Cluster,
    ) -> Result<(), String> {
        if first > self.applied {
            return Err(format!("events start at {first}, but only {} were sent before", self.applied));
        }
        for event in events.iter().skip(self.applied - first) {
            match event {
                MapEvent::Available(attempt, on) => {
                    let awaited = cluster.tracker(*on).is_some_and(|on| on.state == TrackerState::Awaited);
                    let task = cluster.job(attempt.job()).and_then(|job| job.task(attempt.task));
                    let counts = |winner: &Attempt| winner.id == *attempt && winner.output_on == *on;
                    if awaited && task.and_then(Task::winner).is_some_and(counts) {
                        return Err(format!("{attempt} is announced on {on}, which has not registered"));
                    }
                    self.here.insert(*attempt)
                }
                MapEvent::Withdrawn(attempt) => self.here.remove(attempt),
            };
        }
        self.applied = self.applied.max(first + events.len());
        let mut consumed: Vec<(u32, u64, u64)> = Vec::new();
        for attempt in &self.here {
            consumed.push(*ranges.0.get(attempt).ok_or_else(|| format!("{attempt} has no output"))?);
        }
        consumed.sort_unstable();
        let twice = |pair: &&[(u32, u64, u64)]| pair[0].0 == pair[1].0 && pair[0].2 > pair[1].1;
        if let Some(pair) = consumed.windows(2).find(twice) {
            return Err(format!("a reduce would consume {pair:?}, which overlap"));
        }
        let job = self.here.first().and_then(|attempt| cluster.job(attempt.job()));
        match job.filter(|_| consumed.len() == maps as usize) {
            Some(job) => check_complete(job, &consumed),
            None => Ok(()),
        }
    }
}

/// A reduce with as many outputs as there are maps assumes that it has everything.
fn check_complete(job: &Job, consumed: &[(u32, u64, u64)]) -> Result<(), String> {
    for (root, split) in job.spec.splits.iter().enumerate() {
        let its = consumed.iter().filter(|(of, ..)| *of == root as u32);
        let bytes: u64 = its.map(|(_, start, end)| end - start).sum();
        if bytes != split.end - split.start {
            return Err(format!(
                "a reduce with all map outputs has {bytes} bytes of split {root}: {split:?}"
            ));
        }
    }
    Ok(())
}
